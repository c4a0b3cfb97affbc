"""Scans by a function that does not commute: within a thread, over lanes in any order, padded, and
from the end.
"""

import numpy as np
import pytest

import tkc
from tests.codegen.ptx.test_operations import check


@tkc.jit
def composed(x, z, a, b, SHAPE: tkc.constexpr, AXIS: tkc.constexpr, BACK: tkc.constexpr):
    """Linear functions one behind the other, modulo 2^32."""
    k, m = tkc.load(x, (0, 0), SHAPE), tkc.load(z, (0, 0), SHAPE)
    k, m = tkc.scan((k, m), AXIS, lambda p, q, u, v: (p * u, q * u + v), reverse=BACK)
    tkc.store(a, (0, 0), k)
    tkc.store(b, (0, 0), m)


SHAPES = [
    ((4, 64), 1),
    ((64, 3), 0),
    ((5, 37), 1),
    ((1, 512), 1),
    ((16, 1), 1),
    ((256, 2), 0),
    ((2, 300), 1),
    ((33, 8), 0),
    ((8, 33), 0),
    ((1, 2), 1),
]


@pytest.mark.parametrize("shape, axis", SHAPES)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_scans_of_pairs(shape, axis, back, dtype):
    r = np.random.default_rng(3)
    x, z = (r.integers(-5, 6, shape).astype(dtype) * 2 + 1 for _ in range(2))
    outs = [np.zeros(shape, dtype) for _ in range(2)]
    check(composed, [x, z, *outs], SHAPE=shape, AXIS=axis, BACK=back)


@tkc.jit
def least(x, out, N: tkc.constexpr, BACK: tkc.constexpr):
    """Of a line, in a loop's registers: no total is asked for."""
    line = tkc.load(x, (0,), (N,))
    tkc.store(out, (0,), tkc.scan(line, 0, tkc.minimum, reverse=BACK))


@pytest.mark.parametrize("n", [1, 2, 31, 32, 64, 100, 256, 1024])
@pytest.mark.parametrize("back", [False, True])
def test_scans_of_lines(n, back):
    x = np.random.default_rng(4).standard_normal(n).astype("f4")
    check(least, [x, np.zeros(n, "f4")], N=n, BACK=back)
