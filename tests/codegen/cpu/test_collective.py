"""Reductions, scans, sorts and histograms of odd shapes and every type, against the simulator; rows
long enough for 64 lanes.
"""

import ml_dtypes
import numpy as np
import pytest
from xdsl.builder import ImplicitBuilder
from xdsl.dialects.builtin import f32
from xdsl.ir import Block, Region

from tests.sim import building
from tkc.codegen.cpu import compile
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import TileType, is_bool, is_float
from tkc.sim.level0 import NUMPY, run

C = ew.CLASSES
SHAPES = [(1,), (17,), (1030,), (5, 33), (33, 5), (3, 4, 18), (2, 513), (600, 3), (1, 1)]
TYPES = {str(t): t for t in NUMPY}
random = np.random.default_rng(0)


@pytest.fixture
def both(monkeypatch):
    def pair(function, *inputs):
        out = []
        for runner in (run, lambda m, a, g: compile(m).run(a, g)):
            monkeypatch.setattr(building, "run", runner)
            out.append(building.evaluate(function, *inputs))
        return out

    return pair


def reductions(kinds, axis):
    return lambda v: tuple(tile.Reduce(kind, v, axis).result for kind in kinds)


def scans(kinds, axis):
    """From the beginning and from the end, by each kind."""
    return lambda v: tuple(tile.Scan(k, v, axis, r).result for k in kinds for r in (False, True))


def equal(pair):
    """The results of level 0 and of the CPU, one by one."""
    for want, got in zip(*pair, strict=True):
        np.testing.assert_array_equal(got, want)


def whole(t, shape):
    """Small whole numbers of a type: their sums are exact."""
    x = random.integers(0 if "u" in str(np.dtype(NUMPY[t])) else -2, 3, shape)
    return x.astype(NUMPY[t])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kind_along_every_axis(shape, both):
    x = random.integers(-2, 3, shape).astype(np.float32)
    n = random.integers(-99, 99, shape).astype(np.int32)
    for axis in range(len(shape)):
        for value in (x, n):
            equal(both(reductions(("sum", "max", "min", "argmax", "argmin"), axis), value))
        equal(both(reductions(("any", "all"), axis), n > 60))
        equal(both(scans(("sum", "max"), axis), x))


@pytest.mark.parametrize("t", TYPES.values(), ids=str)
def test_every_type(t, both):
    if is_bool(t):
        return
    x = whole(t, (4, 19))
    kinds = (
        ("sum", "prod", "max", "argmin") if is_float(t) else ("sum", "prod", "max", "argmin", "xor")
    )
    for want, got in zip(
        *both(
            lambda v: (
                *(tile.Reduce(k, v, a).result for k in kinds for a in (0, 1)),
                tile.Scan("sum", v, 0).result,
                tile.Sort(v).result,
                tile.Sort(v, True).result,
            ),
            x,
        ),
        strict=False,
    ):
        np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(want, np.float64))


def test_nan_wins_and_the_first_counts(both):
    x = np.tile(np.float32([1, 5, 5, -1, 0]), (3, 8))
    x[1, 20] = x[1, 30] = np.nan
    for kind in ("argmax", "argmin", "max", "min"):
        for axis in (0, 1):
            equal(both(reductions((kind,), axis), x))


def test_a_sum_is_as_good_as_pairwise(both):
    x = random.uniform(0, 1, (2, 100003)).astype(np.float32)
    want, got = both(lambda v: tile.Reduce("sum", v, 1).result, x)
    np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_welford_as_a_combination_of_three_tiles(axis, both):
    """Mean, squared distance and count: a combination that is not commutative in floating point and
    uses every operand.
    """

    def step(m0, s0, n0, m1, s1, n1):
        n = C["add"](n0, n1).result
        d = C["sub"](m1, m0).result
        share = C["div"](n1, n).result
        m = C["add"](m0, C["mul"](d, share).result).result
        s = C["add"](
            C["add"](s0, s1).result,
            C["mul"](C["mul"](d, d).result, C["mul"](n0, share).result).result,
        ).result
        return m, s, n

    def reduce(x, zero, one):
        block = Block(arg_types=[f32] * 6)
        with ImplicitBuilder(block):
            tile.Yield(*step(*block.args))
        kept = [n for a, n in enumerate(x.type.extents) if a != axis]
        return tuple(
            tile.Reduce(
                "combine", [x, zero, one], axis, [TileType(kept, f32)] * 3, Region(block)
            ).results
        )

    x = random.normal(size=(21, 34)).astype(np.float32)
    for want, got in zip(*both(reduce, x, np.zeros_like(x), np.ones_like(x)), strict=False):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 31, 1000])
def test_sorts(n, both):
    x = random.normal(size=(3, n)).astype(np.float32)
    x[0, ::5] = np.nan
    for down in (False, True):
        want, got = both(lambda v, down=down: tile.Sort(v, down).result, x)
        np.testing.assert_array_equal(got, want)
    words = random.integers(-128, 128, (2, n)).astype(np.int8)
    want, got = both(lambda v: tile.Sort(v).result, words)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_histograms(dtype, both):
    x = random.integers(0, 12, 1003).astype(dtype) - (
        np.array(1, dtype) if dtype != np.uint8 else np.array(0, dtype)
    )
    mask = random.integers(0, 2, 1003).astype(bool)
    for want, got in zip(
        *both(lambda v, m: (tile.Histogram(v, 10).result, tile.Histogram(v, 7, m).result), x, mask),
        strict=False,
    ):
        np.testing.assert_array_equal(got, want)


def test_short_floats_are_summed_in_float32(both):
    x = np.full((2, 4096), 1, ml_dtypes.bfloat16)
    want, got = both(lambda v: tile.Reduce("sum", v, 1).result, x)
    assert (got == want).all() and got[0] == 4096
