"""Gathers within a tile: by shuffles where the axis lies within a warp, else by shared memory."""

import numpy as np
import pytest

import tkc
from tests.codegen.ptx.test_operations import check, numbers

DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]


@tkc.jit
def moved(x, out, N: tkc.constexpr, BY: tkc.constexpr):
    """Shifted by some places, the ends held."""
    j = tkc.arange(N)
    at = tkc.minimum(tkc.maximum(j - BY, 0), N - 1)
    tkc.store(out, (0,), tkc.gather(tkc.load(x, (0,), (N,)), at, 0))


@tkc.jit
def turned(x, out, N: tkc.constexpr, STEP: tkc.constexpr):
    """A permutation that is known."""
    at = tkc.arange(N) * STEP % N
    tkc.store(out, (0,), tkc.gather(tkc.load(x, (0,), (N,)), at, 0))


@tkc.jit
def named(x, places, out, N: tkc.constexpr, K: tkc.constexpr):
    """At places that are read."""
    at = tkc.load(places, (0,), (K,))
    tkc.store(out, (0,), tkc.gather(tkc.load(x, (0,), (N,)), at, 0))


@tkc.jit
def named_rows(x, places, out, M: tkc.constexpr, N: tkc.constexpr, AXIS: tkc.constexpr):
    """Along either axis of a tile."""
    at = tkc.load(places, (0, 0), (M, N))
    tkc.store(out, (0, 0), tkc.gather(tkc.load(x, (0, 0), (M, N)), at, AXIS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "n, by", [(32, 1), (256, 1), (256, -1), (100, 3), (64, -5), (1024, 8), (1, 0)]
)
def test_shifts(dtype, n, by):
    check(moved, [numbers(n, dtype), np.zeros(n, dtype)], N=n, BY=by)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "bool"])
@pytest.mark.parametrize("n, step", [(32, 5), (256, 8), (96, 7), (60, 7), (2048, 33)])
def test_permutations(dtype, n, step):
    check(turned, [numbers(n, dtype), np.zeros(n, dtype)], N=n, STEP=step)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "bool"])
@pytest.mark.parametrize(
    "n, k", [(32, 32), (64, 32), (32, 256), (256, 256), (40, 23), (1, 64), (7, 500)]
)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_places_that_are_read(dtype, n, k, index):
    at = np.random.default_rng(1).integers(0, n, k).astype(index)
    check(named, [numbers(n, dtype), at, np.zeros(k, dtype)], N=n, K=k)


@pytest.mark.parametrize("m, n", [(16, 32), (32, 16), (5, 48), (64, 3), (128, 2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_places_along_axes(m, n, axis):
    at = np.random.default_rng(1).integers(0, (m, n)[axis], (m, n)).astype("int32")
    check(named_rows, [numbers((m, n), "float32"), at, np.zeros((m, n), "f4")], M=m, N=n, AXIS=axis)
