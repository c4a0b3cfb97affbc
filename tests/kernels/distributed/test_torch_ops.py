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
