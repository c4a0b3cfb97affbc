"""Whole kernels from Python to PTX, run on the little machine against level 0, and assembled for
every target without a spill.
"""

import numpy as np
import pytest

from tests.passes.kernels import CASES, PIPELINE, context, same, through
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import target
from tkc.sim.ptx import run

assembler = pytest.mark.skipif(
    ptxas.find("ptxas") is None, reason="ptxas is not installed (pip install nvidia-cuda-nvcc)"
)


def emitted(case, name="sm_80"):
    module = case.module()
    through(module, PIPELINE[-1], context(name, **case.options))
    return emit(module, target(name))


@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_what_level_0_does(name):
    case = CASES[name]
    data = case.data()
    arrays = iter(run(emitted(case), data, case.grid))
    after = [next(arrays) if isinstance(a, np.ndarray) else a for a in data]
    # half an ulp of an f16 result
    loose = 6e-4 if any(isinstance(a, np.ndarray) and a.dtype == np.float16 for a in data) else 1e-6
    same([after[i] for i in case.outputs], case.run(case.module()), max(case.tolerance, loose))


@assembler
@pytest.mark.parametrize("machine", ["sm_80", "sm_86", "sm_89"])
@pytest.mark.parametrize(
    "name",
    [
        "add, odd",
        "softmax",
        "product",
        "product, float32",
        "attention, causal",
        "mamba2",
        "shapes",
        "conditional",
        "layer norm backward",
    ],
)
def test_kernel_assembles_without_spill(name, machine):
    found = ptxas.assemble(emitted(CASES[name], machine).text, machine)
    assert found.clean, found.log
