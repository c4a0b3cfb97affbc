"""What compiling takes grows as the program does: no pass walks the program once for each of its
operations, and none takes a call for each step of a chain.

Counted are calls of Python functions, which do not depend on the machine. Four times the operations
are about four times the calls; where each operation cost a walk of its own, they were near sixteen.
LLVM, which makes none, is left out: it took most of the time of these tests.
"""

import cProfile
import pstats

import pytest

from tests.long_kernels import (
    ARGUMENTS,
    before_dot,
    branches,
    casts,
    dots,
    elementwise,
    in_loop,
    indices,
    masks,
    scalars,
    transposes,
    used_twice,
    wide,
)
from tkc.codegen.cpu import program

SMALL, LARGE, MAX_GROWTH = 64, 256, 4.8
# Of a GPU's passes, insert-synchronization still compares all accesses of shared memory with all,
# which `reductions`, `stores` and `dots` would show, and the layouts of `loads` all loads.
ON_GPU = (
    elementwise,
    used_twice,
    wide,
    scalars,
    indices,
    masks,
    casts,
    transposes,
    before_dot,
    in_loop,
    branches,
)
CASES = [*((k, "cpu") for k in ARGUMENTS), *((k, "sm_90a") for k in ON_GPU)]


def calls(kernel, operations: int, target: str) -> int:
    """How many functions are called to compile a kernel of so many operations."""
    profile = cProfile.Profile()
    profile.enable()
    kernel.compile(*ARGUMENTS[kernel], operations, target=target)
    profile.disable()
    return sum(each[1] for each in pstats.Stats(profile).stats.values())


@pytest.mark.parametrize(("kernel", "target"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_the_work_of_compiling_grows_as_the_program(kernel, target, monkeypatch):
    monkeypatch.setenv("TKC_CACHE", "0")
    for emit in ("emitted", "_emitted_once"):
        monkeypatch.setattr(program, emit, lambda machine, text: b"")
    calls(kernel, 2, target)  # imports are no part of it
    few, many = calls(kernel, SMALL, target), calls(kernel, LARGE, target)
    assert many / few < MAX_GROWTH, f"{few} calls for {SMALL} operations, {many} for {LARGE}"


def test_a_hundred_loops_on_the_cpu_do_not_abort_the_process():
    """LLVM's value numbering does, where it was built with assertions."""
    assert dots.compile(*ARGUMENTS[dots], 130, target="cpu").program


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize("kernel", [elementwise, indices, before_dot])
def test_no_limit_of_recursion_is_met(kernel, target):
    """Python's is 1000 calls, a walk that called itself took two or more a step."""
    compiled = kernel.compile(*ARGUMENTS[kernel], 510, target=target)
    assert compiled.ptx or compiled.program
