"""Kernels that nobody had in mind give what torch gives in float64, on the CPU and as programs of
threads for GPUs; all of them compile for sm_90a, and no dot leaves the tensor cores of Hopper.
"""

import pytest

from benchmarks import unseen

torch = pytest.importorskip("torch")
from benchmarks.unseen.__main__ import chosen  # noqa: E402
from benchmarks.unseen.operands import Operands, error  # noqa: E402

CASES = unseen.cases()
SIMULATED = ("nearest centre", "product of float32 by three", "edit distance", "compaction")


@pytest.mark.parametrize("case", CASES)
def test_as_torch_on_the_cpu(case):
    made = CASES[case](Operands())
    assert error(made) <= made.tolerance


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("case", SIMULATED)
def test_as_torch_in_the_simulator(case, target, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", target)
    made = CASES[case](Operands())
    assert error(made) <= made.tolerance


@pytest.mark.parametrize("case", CASES)
def test_large_ones_compile_for_hopper(case):
    for line in chosen(CASES[case](Operands(large=True, real=False))):
        assert "mma.sync" not in line
        assert " 0 bytes spilled" in line or "wgmma" not in line
