"""What compiling takes grows as the program does: no pass walks the program once for each of its
operations, and none takes a call for each step of a chain.

Counted are calls of functions, which do not depend on the machine. Four times the operations are
about four times the calls; where each operation cost a walk of its own, they were near sixteen.
"""

import cProfile
import pstats

import pytest

from tests.long_kernels import ARGUMENTS, dots

SMALL, LARGE, MOST = 64, 256, 4.8
TARGETS = ("cpu",)


def calls(kernel, operations: int, target: str) -> int:
    """How many functions are called to compile a kernel of so many operations."""
    profile = cProfile.Profile()
    profile.enable()
    kernel.compile(*ARGUMENTS[kernel], operations, target=target)
    profile.disable()
    return sum(each[1] for each in pstats.Stats(profile).stats.values())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", ARGUMENTS, ids=lambda kernel: kernel.__name__)
def test_the_work_of_compiling_grows_as_the_program(kernel, target, monkeypatch):
    monkeypatch.setenv("TKC_CACHE", "0")
    calls(kernel, 2, target)  # imports are no part of it
    few, many = calls(kernel, SMALL, target), calls(kernel, LARGE, target)
    assert many / few < MOST, f"{few} calls for {SMALL} operations, {many} for {LARGE}"


def test_a_hundred_loops_on_the_cpu_do_not_abort_the_process():
    """LLVM's value numbering does, where it was built with assertions."""
    assert dots.compile(*ARGUMENTS[dots], 130, target="cpu").program
