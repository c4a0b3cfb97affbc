"""Constants of sums and products combine where they wrap only as their type is known to."""

import numpy as np
import pytest

import tkc
from tests.operations.case import Case, rubbish, run

HOWS = ("level 0", "cpu", "sm_80", "sm_89", "sm_90a")


def sums(x, signs, N: tkc.constexpr, LARGE: tkc.constexpr, MORE: tkc.constexpr):
    """No sum wraps, though LARGE + MORE would."""
    index = (tkc.load(x, (0,), (N,)) & 15) - 10
    tkc.store(signs, (0,), tkc.where((index + LARGE) + MORE < 0, 1, 0))


def products(x, signs, N: tkc.constexpr, LARGE: tkc.constexpr, MORE: tkc.constexpr):
    """No product wraps, though LARGE · MORE would: x is 0."""
    index = tkc.minimum(tkc.load(x, (0,), (N,)) & 3, 0)
    tkc.store(signs, (0,), tkc.where((index * LARGE) * MORE < 0, 1, 0))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("kernel", [sums, products])
def test_constants(kernel, dtype, how):
    t, n = np.dtype(dtype), 8
    bits = 8 * t.itemsize - (t.kind == "i")
    large, more = (
        ((1 << bits) - 1, 5) if kernel is sums else (1 << bits // 2, 1 << bits - bits // 2)
    )

    def want(a):
        x = a["x"].astype(object) & 3
        exact = x - 10 + large + more if kernel is sums else x * 0
        inside = exact % (1 << bits) if t.kind == "u" else exact
        return dict(signs=np.array([int(v < 0) for v in inside], np.int32))

    run(
        Case(
            f"{kernel.__name__} of {t}",
            kernel,
            lambda r: dict(
                x=np.resize([0, 1, 2, 3], n).astype(t),
                signs=rubbish(n, np.dtype(np.int32)),
                N=n,
                LARGE=large,
                MORE=more,
            ),
            want,
        ),
        how,
    )
