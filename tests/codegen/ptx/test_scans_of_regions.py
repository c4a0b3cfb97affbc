"""Scans by a function that does not commute: within a thread, over lanes in any order, padded, and
from the end.
"""

import re

import numpy as np
import pytest

import tkc
from tests.codegen.ptx.test_operations import check
from tests.language.kernels import array, traced
from tkc.codegen.ptx.emit import emit
from tkc.ir.dtypes import BY_NUMPY
from tkc.ir.target import target
from tkc.ir.text import show
from tkc.language.signature import Options
from tkc.passes import pipeline
from tkc.sim import level0, level4
from tkc.sim.ptx import run


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


@tkc.jit
def summed_in_runs(
    flags, x, ends, sums, SHAPE: tkc.constexpr, AXIS: tkc.constexpr, BACK: tkc.constexpr
):
    """Sums that begin anew where a flag is set: values of two types, of which the first is a truth
    value or a number.
    """
    at = (0,) * len(SHAPE)
    f, v = tkc.load(flags, at, SHAPE), tkc.load(x, at, SHAPE)

    def within(p, a, q, b):
        return p | q, tkc.where(q != 0, b, (a + b).to(b.dtype))

    f, v = tkc.scan((f, v), AXIS, within, reverse=BACK)
    tkc.store(ends, at, f)
    tkc.store(sums, at, v)


@tkc.jit
def largest_and_places(
    x, y, places, SHAPE: tkc.constexpr, AXIS: tkc.constexpr, BACK: tkc.constexpr
):
    """The largest so far and where the last of equals is."""
    line = tkc.load(x, (0,), SHAPE)

    def larger(a, i, b, j):
        later = (b > a) | ((b == a) & (j > i))
        return tkc.where(later, b, a), tkc.where(later, j, i)

    best, at = tkc.scan((line, tkc.arange(SHAPE[0])), AXIS, larger, reverse=BACK)
    tkc.store(y, (0,), best)
    tkc.store(places, (0,), at)


@tkc.jit
def last_set(x, y, SHAPE: tkc.constexpr, AXIS: tkc.constexpr, BACK: tkc.constexpr):
    """The last element so far that is not 0."""
    at = (0,) * len(SHAPE)
    line = tkc.load(x, at, SHAPE)
    tkc.store(y, at, tkc.scan(line, AXIS, lambda a, b: tkc.where(b != 0, b, a), reverse=BACK))


def over_warps(fn, data, shape, axis, back, warps, machine="sm_80"):
    """Several warps along an axis: at level 4 in any order, and in PTX, as at level 0. Gives the
    kernel's text.
    """
    constants = dict(SHAPE=shape, AXIS=axis, BACK=back)
    signature = [array(BY_NUMPY[x.dtype], x.ndim) for x in data]
    modules = [traced(fn, *signature, **constants) for _ in range(2)]
    pipeline.run(modules[1], target(machine), Options(num_warps=warps))
    want, got = ([x.copy() for x in data] for _ in range(2))
    level0.run(modules[0], want, (1,))
    level4.run(modules[1], got, (1,), seed=warps)
    emitted = run(emit(modules[1], target(machine)), data, seed=warps)
    for found in got, emitted:
        for g, w in zip(found, want, strict=True):
            assert np.array_equal(g, w, equal_nan=g.dtype.kind == "f"), (g, w)
    text = show(modules[1])
    assert f"warps = {warps} " in text
    return text


LINES = [
    ((33,), 0),
    ((517,), 0),
    ((1000,), 0),
    ((2048,), 0),
    ((3, 700), 1),
    ((700, 2), 0),
    ((2, 4, 512), 2),
]


@pytest.mark.parametrize("shape, axis", LINES)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("warps", [2, 4, 16])
def test_scans_of_pairs_over_warps(shape, axis, back, warps):
    r = np.random.default_rng(warps)
    x, z = (r.integers(-5, 6, shape).astype("i4") * 2 + 1 for _ in range(2))
    if len(shape) == 2:
        over_warps(composed, [x, z, 0 * x, 0 * z], shape, axis, back, warps)
    flags, values = r.random(shape) < 0.01, r.integers(-9, 9, shape).astype("f4")
    over_warps(summed_in_runs, [flags, values, 0 * flags > 0, 0 * values], shape, axis, back, warps)


@pytest.mark.parametrize("flags", ["?", "i1", "i4", "i8"])
@pytest.mark.parametrize("values", ["i1", "f2", "f4", "i8", "f8"])
@pytest.mark.parametrize("back", [False, True])
def test_scans_of_values_of_two_types_over_warps(flags, values, back):
    r, shape = np.random.default_rng(5), (900,)
    f = (r.random(shape) < 0.03).astype(flags)
    x = r.integers(-3, 4, shape).astype(values)
    over_warps(summed_in_runs, [f, x, np.zeros_like(f), np.zeros_like(x)], shape, 0, back, 4)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "f4", "i8", "f8"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("n, warps", [(31, 4), (129, 8), (640, 16), (1500, 4), (517, 32)])
def test_scans_of_one_value_over_warps(dtype, back, n, warps):
    r = np.random.default_rng(6)
    x = (r.integers(-9, 10, n) * (r.random(n) < 0.1)).astype(dtype)
    over_warps(last_set, [x, np.zeros_like(x)], (n,), 0, back, warps)


@pytest.mark.parametrize("n", [500, 4096])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_places_of_maxima_over_warps(n, back, warps):
    x = np.random.default_rng(7).integers(-99, 100, n).astype("f4")
    data = [x, np.zeros_like(x), np.zeros(n, "i4")]
    over_warps(largest_and_places, data, (n,), 0, back, warps)


def test_warps_exchange_what_their_runs_come_to_alone():
    n, warps = 4096, 8
    x = np.random.default_rng(7).standard_normal(n).astype("f4")
    data = [x, np.zeros_like(x), np.zeros(n, "i4")]
    text = over_warps(largest_and_places, data, (n,), 0, False, warps)
    buffers = re.findall(r"tile\.alloc .*!tile\.shared<1, (\w+),", text)
    assert buffers == [f"{warps}xf32", f"{warps}xi32"]
    assert text.count("tile.block_barrier") == 1


@tkc.jit
def last_set_of_rows(x, y, ROWS: tkc.constexpr, N: tkc.constexpr):
    """What a loop carries is scanned: rows one behind the other, from the end."""
    line = tkc.load(x, (0, 0), (1, N))
    for i in range(1, ROWS):
        line = tkc.scan(line, 1, lambda a, b: tkc.where(b != 0, b, a), reverse=True)
        tkc.store(y, (i - 1, 0), line)
        line = tkc.where(line > 4, 0, line) + tkc.load(x, (i, 0), (1, N))
    tkc.store(y, (ROWS - 1, 0), line)


@pytest.mark.parametrize("n", [300, 512])
def test_scans_of_what_a_loop_carries(n):
    r = np.random.default_rng(9)
    x = (r.integers(-9, 10, (5, n)) * (r.random((5, n)) < 0.1)).astype("i4")
    check(last_set_of_rows, [x, 0 * x], ROWS=5, N=n)


@tkc.jit
def counted_twice(x, y, z, N: tkc.constexpr):
    """Two scans by one function, one after the other, of lines that warps share."""
    line = tkc.load(x, (0,), (N,))
    first = tkc.scan(line, 0, lambda a, b: tkc.where(b != 0, b, a))
    second = tkc.scan(first + line, 0, lambda a, b: tkc.where(b > 2, b, a), reverse=True)
    tkc.store(y, (0,), first)
    tkc.store(z, (0,), second)


def test_scans_behind_one_another():
    x = np.random.default_rng(8).integers(-3, 4, 2000).astype("i4")
    check(counted_twice, [x, 0 * x, 0 * x], N=2000)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", ["i1", "u1"])
def test_running_maxima_of_narrow_numbers(back, dtype):
    """Each warp's run, as of wide ones."""
    x = np.random.default_rng(9).integers(0, 100, 777).astype(dtype)
    check(running_maximum, [x, np.zeros_like(x)], N=777, BACK=back)


@tkc.jit
def running_maximum(x, y, N: tkc.constexpr, BACK: tkc.constexpr):
    tkc.store(y, (0,), tkc.scan(tkc.load(x, (0,), (N,)), 0, tkc.maximum, reverse=BACK))


@tkc.jit
def scanned_products(x, w, y, SHAPE: tkc.constexpr, AXIS: tkc.constexpr, BACK: tkc.constexpr):
    """The last element so far that is more than 4, of a product."""
    m, n, k = SHAPE
    total = tkc.dot(tkc.load(x, (0, 0), (m, k)), tkc.load(w, (0, 0), (k, n)))
    big = tkc.scan(total, AXIS, lambda a, b: tkc.where(b > 4, b, a), reverse=BACK)
    tkc.store(y, (0, 0), big)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_scans_of_products(axis, back, machine):
    """Whose rows lie in the threads as tensor cores leave them: a warp's part is in pieces."""
    r, (m, n, k) = np.random.default_rng(10), (128, 32, 16)
    x, w = (r.integers(-2, 3, shape).astype("f2") for shape in ((m, k), (k, n)))
    data = [x, w, np.zeros((m, n), "f4")]
    over_warps(scanned_products, data, (m, n, k), axis, back, 4, machine)
