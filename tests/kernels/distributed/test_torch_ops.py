"""The functions of several ranks as torch's custom ops, on two processes of this host (gloo): the
parts that also run on two GPUs. Skipped where torch is not installed.
"""

import pytest

pytest.importorskip("torch.distributed")

from tests.gpu.torch_ranks import PARTS, outcomes  # noqa: E402


@pytest.fixture(scope="module")
def became():
    return outcomes(list(PARTS), cpu=True, limit=500, each=150)


@pytest.mark.parametrize("name", PARTS)
def test_two_processes(name, became):
    assert became[name] == "right"


def test_what_would_be_lost_is_an_error(tmp_path):
    """Derivatives that are carried forward, and gradients of what has none, by a group of one."""
    import torch

    import tkc
    from tkc.kernels.distributed import torch_ops

    x, forward = torch.randn(1, 64, 64), torch.autograd.forward_ad
    with forward.dual_level(), pytest.raises(tkc.LaunchError, match="carried forward"):
        torch.ops.tkc.all_reduce(forward.make_dual(x, x), "none")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    try:
        name = torch.distributed.group.WORLD.group_name
        given = [x.clone().requires_grad_() for _ in range(3)]
        out, _ = torch.ops.tkc.ring_attention(*given, True, False, True, name)
        found = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        with pytest.raises(tkc.LaunchError, match="ring_attention_backward has no gradient"):
            torch.autograd.grad(found[0].sum(), given)
    finally:
        torch_ops.close_groups()
        torch.distributed.destroy_process_group()
