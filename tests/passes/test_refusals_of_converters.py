"""What a role that computes operands refuses: operands that it cannot compute, or that others read,
and plans that have no room for it. Each is asked beside the nearest thing that it takes.
"""

from math import inf

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned, context, through
from tkc.ir import tile
from tkc.ir.digits import LayoutError
from tkc.ir.types import ArrayFacts, Fact, TileType, bf16
from tkc.ir.values import operations_in
from tkc.language.signature import ArrayArgument
from tkc.passes import Free
from tkc.passes.layouts.relayout import computed_layout
from tkc.passes.pipeline import PIPELINE
from tkc.passes.planning import hopper
from tkc.passes.planning.converting import conversions
from tkc.sim import level4

B2, F2, N1 = aligned(tkc.bfloat16, 2), aligned(tkc.float32, 2), array(tkc.int32)
# rows begin at multiples of 4 bytes: threads copy blocks, and no tensor map does
NARROW = ArrayArgument(tkc.bfloat16, ArrayFacts((Fact(),) * 2, (Fact(2), Fact(exact=1)), 4))


@pytest.fixture
def eager(monkeypatch):
    """The converter computes what it can, whether that pays or not."""
    monkeypatch.setattr(hopper, "LEAST_CONVERTER_GAIN", -inf)


def could(kernel, *arrays, asked=None, **constants):
    """How many operands of a kernel's dots the converter could compute."""
    dots = operations_in(traced(kernel, *arrays, **constants), tile.Dot)
    return len(conversions(dots, Free(**(asked or {})), ()))


# ---- what it can compute
def scored(q, k, w, o, MADE: tkc.constexpr, BEFORE: tkc.constexpr, N: tkc.constexpr):
    """Scores by keys that a loop computes of its blocks, of what is loaded before it, and of a
    number that it carries.
    """
    x, acc = tkc.load(q, (0, 0), (128, N)), tkc.zeros((128, N))
    given, carried = BEFORE(w, N), 1.0
    for n in tkc.range(0, k.shape[0], N):
        y = tkc.load(k, (n, 0), (N, N)).to(tkc.float32)
        s = tkc.maximum(tkc.dot(x, MADE(y, given, carried).to(q.dtype).T), 0)
        acc, carried = acc + s, tkc.minimum(tkc.max(s), 2.0)
    tkc.store(o, (0, 0), acc)


def row(w, n):
    return tkc.load(w, (0, 0), (None, n))


def matrix(w, n):
    return tkc.load(w, (0, 0), (n, n))


def masked_row(w, n):
    return tkc.load(w, (0, 0), (None, n), mask=tkc.arange(n) < 40)


def summed_row(w, n):
    return tkc.sum(matrix(w, n), axis=0)


def written_row(w, n):
    tkc.store(w, (0, 0), tkc.full((1, n), 2.0))
    return row(w, n)


def highest_of_row(w, n):
    return tkc.max(row(w, n))


def counted(w, n):
    """Nobody has this number twice."""
    return tkc.atomic_add(w.ptr, 1.0)


def twice(y, given, carried):
    return y * 2


def by_thirds(y, given, carried):
    """Of constants that threads would have in layouts that no layout of the operand gives."""
    rows, columns = y.shape
    thirds = tkc.broadcast_to(tkc.arange(3), (rows, columns // 3, 3))
    return y * tkc.reshape(thirds, y.shape)


def by_row(y, given, carried):
    return y * given[None, :]


def by_given(y, given, carried):
    return y * given


def by_number(y, given, carried):
    return y * carried


def by_own_sums(y, given, carried):
    return y * tkc.sum(y, axis=1)[:, None]


def by_other_sums(y, given, carried):
    return y * tkc.sum(y, axis=1)[None, :]


COMPUTED = {
    "a row's sum": (by_own_sums, row, 64, True),
    "another row's sum": (by_other_sums, row, 64, False),
    "a small tile": (by_row, row, 64, True),
    "a large tile": (by_given, matrix, 64, False),
    "a number that warps reduce": (by_given, highest_of_row, 64, False),
    "an atomic's number": (by_given, counted, 64, False),
    "a sum before the loop": (by_row, summed_row, 64, False),
    "a masked tile": (by_row, masked_row, 64, False),
    "a tile that is written": (by_row, written_row, 64, False),
    "a number that is carried": (by_number, row, 64, False),
    "reshaped constants": (by_thirds, row, 96, False),
    "few rows": (twice, row, 16, False),
    "many elements": (twice, row, 256, False),
}


@pytest.mark.parametrize("what", COMPUTED)
def test_of_what_the_converter_computes_operands(what):
    made, before, n, can = COMPUTED[what]
    assert could(scored, B2, B2, F2, F2, MADE=made, BEFORE=before, N=n) == can


# what keys then are, of a block, of what is loaded before the loop, and of the carried number
RUN = {
    "a small tile": lambda y, row, carried: y * row,
    "another row's sum": lambda y, row, carried: y * y.sum(1),
    "a tile that is written": lambda y, row, carried: y * 2,
    "a number that is carried": lambda y, row, carried: y * carried,
}


@pytest.mark.parametrize("what", RUN)
def test_what_it_does_not_compute_consumers_do(what, eager):
    made, before, n, can = COMPUTED[what]
    module = traced(scored, B2, B2, F2, F2, MADE=made, BEFORE=before, N=n)
    given = through(module, PIPELINE[-1], context("sm_90a"))
    assert given.plan.dots[0].b == ("converted" if can else "written")
    rng = np.random.default_rng(0)
    q, k, w = (rng.integers(-2, 3, (rows, n)) for rows in (128, 3 * n, n))
    want, carried = np.zeros((128, n)), 1.0
    for y in np.split(k, 3):
        s = np.maximum(q @ RUN[what](y, w[0], carried).T, 0)
        want, carried = want + s, min(s.max(), 2.0)
    q, k = (x.astype(ml_dtypes.bfloat16) for x in (q, k))
    o = np.full((128, n), np.nan, np.float32)
    level4.run(module, [q, k, w.astype(np.float32), o], (1, 1, 1), seed=0)
    np.testing.assert_array_equal(o, want)


@pytest.mark.parametrize("extents, fits", [((16, 64), True), ((8, 64), False), ((32, 16), False)])
def test_how_small_an_operand_warps_share(extents, fits):
    t = TileType(extents, bf16)
    if fits:
        assert computed_layout(t, 1, frozenset()).shape == extents
        return
    with pytest.raises(LayoutError, match="do not share an operand so small"):
        computed_layout(t, 1, frozenset())


def product(a, b, o, LEFT: tkc.constexpr):
    """One operand is computed, and the other one as it is."""
    acc = tkc.zeros((128, 128))
    for k in tkc.range(0, b.shape[0], 64):
        x, y = tkc.load(a, (0, k), (128, 64)), tkc.load(b, (k, 0), (64, 128))
        acc = tkc.dot(x * 2 if LEFT else x, y if LEFT else y * 2, acc)
    tkc.store(o, (0, 0), acc)


@pytest.mark.parametrize("left, swap, can", [(False, False, True), (True, True, False)])
def test_no_operand_of_a_transposed_dot(left, swap, can):
    """Of either the right one is computed."""
    assert could(product, B2, B2, F2, LEFT=left, asked={"swap_dots": swap}) == can


# ---- who may read it
def read(q, k, o, READ: tkc.constexpr):
    """Keys are computed for a dot, of blocks and of places, and for what READ makes of these."""
    x, acc, more = tkc.load(q, (0, 0), (128, 64)), tkc.zeros((128, 64)), tkc.zeros((64,))
    for n in tkc.range(0, k.shape[0], 64):
        at = (n + tkc.arange(64)).to(tkc.float32)
        y = (tkc.load(k, (n, 0), (64, 64)).to(tkc.float32) + at[:, None]).to(q.dtype)
        acc = acc + tkc.dot(x, y.T)
        acc, more = READ(x, y, at, acc, more)
    tkc.store(o, (0, 0), acc + more[None, :])


READERS = {
    "a dot": (lambda x, y, at, acc, more: (acc, more), True),
    "two dots": (lambda x, y, at, acc, more: (tkc.dot(x, y, acc), more), True),
    "a sum": (lambda x, y, at, acc, more: (acc, more + tkc.sum(y, axis=0)), False),
    "a sum of places": (lambda x, y, at, acc, more: (acc, more + at), True),
}


@pytest.mark.parametrize("reader", READERS)
def test_who_reads_what_the_converter_computes(reader):
    """What is made of constants and numbers, all may: each makes its own."""
    made, can = READERS[reader]
    assert could(read, B2, B2, F2, READ=made) == can


# ---- which plans have one
def placed(q, k, v, w, o, BM: tkc.constexpr, PLACE: tkc.constexpr):
    """Attention by keys that are computed, without a sum."""
    m = PLACE(w) * BM
    x, acc = tkc.load(q, (m, 0), (BM, 64)), tkc.zeros((BM, 64))
    for n in tkc.range(0, k.shape[0], 64):
        y = tkc.load(k, (n, 0), (64, 64)).to(tkc.float32) * 2
        e = tkc.exp(tkc.dot(x, y.to(q.dtype).T))
        acc = tkc.dot(e.to(q.dtype), tkc.load(v, (n, 0), (64, 64)), acc)
    tkc.store(o, (m, 0), acc.to(o.dtype))


def by_program(w):
    return tkc.program_id(0)


def after_a_signal(w):
    while tkc.load(w.ptr, sem="acquire") == 0:
        pass
    return tkc.program_id(0)


def by_sum_of(n):
    return lambda w: tkc.sum(tkc.load(w, (0,), (n,)))


PLANS = {
    "a block": (B2, by_program, 128, {}, "converted", ""),
    "a signal": (B2, after_a_signal, 128, {}, "written", ""),
    "copies by threads": (NARROW, by_program, 128, {}, "written", "would copy a block computes"),
    "two warpgroups": (B2, by_program, 128, {"num_warps": 8}, "converted", ""),
    "four warpgroups": (B2, by_program, 256, {"num_warps": 16}, "written", "beside 4 warpgroups"),
    "a place that a thread computes": (B2, by_sum_of(64), 128, {}, "converted", ""),
    "a place that warps compute": (B2, by_sum_of(512), 128, {}, "registers", "through shared mem"),
}


@pytest.mark.parametrize("beside", PLANS)
def test_beside_what_a_role_computes_operands(beside, eager):
    values, place, rows, asked, source, why = PLANS[beside]
    module = traced(placed, B2, B2, values, N1, B2, BM=rows, PLACE=place)
    given = through(module, "plan", context("sm_90a", **asked))
    assert given.plan.dots[0].b == source
    assert any(why in said for said in given.decisions), given.decisions
