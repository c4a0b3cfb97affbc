"""Products that wait and signal keep the tensor cores of Hopper: warp roles, wgmma, tensor maps."""

import pytest

import tkc
from tests.kernels.distributed import waiting
from tkc.kernels.distributed import pieces

W = 2


def peers(text, rank=0):
    return tkc.peers([text] * W, rank)


CASES = {
    "gathered": (
        waiting.product_of_gathered,
        (
            "bf16[2, 2, 1024, 1024]",
            "bf16[1024, 2048]",
            "bf16[2, 1024, 2048]",
            peers("i32[2, 16]"),
            "i32[16]",
        ),
        {"C": 1 << 16, "BM": 128, "BN": 128, "BK": 64},
        (1, 0),
    ),
    "in pieces": (
        pieces._product_of_pieces.kernel,
        (
            "bf16[2, 512, 8192]",
            "bf16[8192, 5120]",
            "bf16[512, 5120]",
            peers("i32[2, 8]"),
            "i32[1]",
        ),
        {"C": 1024, "G": 8, "BM": 176, "BN": 128, "BK": 64},
        (1, 0),
    ),
    "to owners": (
        waiting.product_to_owners,
        (
            "bf16[2, 1024, 1024]",
            "bf16[1024, 2048]",
            peers("bf16[2, 2, 1024, 2048]"),
            peers("i32[2, 128]"),
            "i32[128]",
        ),
        {"BM": 128, "BN": 128, "BK": 64},
        (0, 1),
    ),
    "ring attention": (
        waiting.attention_of_gathered,
        (
            "bf16[8, 1024, 128]",
            "bf16[32, 1024, 128]",
            "bf16[32, 1024, 128]",
            "bf16[8, 1024, 128]",
            peers("i32[2, 8]"),
            peers("i32[2, 8]"),
            "i32[8]",
            "f32",
        ),
        {"CAUSAL": False, "D": 128, "BQ": 128, "BK": 64},
        (4, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_roles_and_wgmma_stay(name):
    kernel, arguments, constants, (waits, signals) = CASES[name]
    made = kernel.compile(*arguments, **constants, target="sm_90a")
    assert any("plan: roles: a producer" in line for line in made.decisions), made.decisions
    assert "wgmma" in made.ptx and "mma.sync" not in made.ptx
    assert "cp.async.bulk.tensor" in made.ptx
    # the producer waits, and fences behind each wait; so do the consumers, who copy nothing
    assert made.ptx.count("ld.acquire.sys") == 2 * waits
    assert made.ptx.count("fence.proxy.async.global") == waits
    assert made.ptx.count("st.release.sys") == signals
    assert not made.resources.spill_stores


@pytest.mark.parametrize("rows, pay", [(64, True), (1 << 14, False)])
def test_pieces_are_of_few_rows(rows, pay):
    """Where a product of all rows leaves no room, each rank's rows are one."""
    assert pieces._pay(W, rows, 4096, 4096, True, 4096, "sm_90a") == pay
    assert not pieces._pay(W, rows, 4096, 4096, True, 4096, "cpu")
    assert not pieces._pay(W, rows, 4096, 4096, True, 4096, "sm_80")
