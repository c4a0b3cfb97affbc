"""Runs a kernel of scalar control flow twice: as plain Python with plain numbers, and traced in the
simulator; compares.
"""

import numpy as np

import tkc
from tests.language.kernels import array, i32, traced
from tkc.sim.level0 import run

SIZE = 64


class Plain:
    """Stands for tkc when the kernel runs as plain Python."""

    range = staticmethod(range)
    static_range = staticmethod(range)
    constexpr = tkc.constexpr
    minimum, maximum = staticmethod(min), staticmethod(max)

    @staticmethod
    def store(out, place, value):
        out[place[0]] = int(value)


def python(make, *numbers) -> np.ndarray:
    out, kernel = np.full(SIZE, -99, np.int32), make()
    kernel.__globals__["tkc"] = Plain  # its helpers see it too
    try:
        kernel(out, *numbers)
    finally:
        kernel.__globals__["tkc"] = tkc
    return out


def simulated(make, *numbers) -> np.ndarray:
    out = np.full(SIZE, -99, np.int32)
    run(traced(make(), array(tkc.int32), *(i32() for _ in numbers)), [out, *numbers], (1, 1, 1))
    return out


def agrees(make, *cases) -> None:
    """make() gives a fresh kernel (out, *numbers); traced and plain must write the same for every
    case.
    """
    for numbers in cases:
        np.testing.assert_array_equal(
            simulated(make, *numbers), python(make, *numbers), err_msg=f"numbers {numbers}"
        )
