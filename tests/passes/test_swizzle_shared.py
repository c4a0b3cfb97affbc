"""swizzle-shared: how often a block in shared memory is read, in which layouts, how fast."""

from dataclasses import replace as replace_

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import BF16, aligned, context, through
from tests.passes.stages import count
from tkc.ir import shared, tile
from tkc.ir.rewrite import after, replace, retype
from tkc.ir.values import shared_type
from tkc.passes import swizzle_shared
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4

B2 = aligned(tkc.bfloat16, 2)


def scaled(a, b, c, N: tkc.constexpr):
    """The left operand is computed of a block."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        left = tkc.load(a, (0, k), (N, 64)) * 2
        total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))


def swizzled(converts: bool):
    """With the block in a layout in which matrices are read, and one more of it that is not."""
    module, given = traced(scaled, B2, B2, B2, N=64), context("sm_90a")
    through(module, "defer-reductions", given)
    load = next(op for op in module.walk() if isinstance(op, tile.Load))
    rows = load.result.type
    (use,) = load.result.uses
    matrix = use.operation
    assert isinstance(matrix, shared.Convert)
    retype(load.result, matrix.result.type)
    replace(matrix, [load.result])
    if converts:
        after(load, shared.Convert(load.result, rows))
    swizzle_shared.run(module, given)
    return module


def test_a_block_is_read_again_where_its_rows_lie_in_other_warps():
    """A matrix that threads had read would go through shared memory once more."""
    matrix, both = swizzled(False), swizzled(True)
    assert count(both, shared.Read) == count(matrix, shared.Read) + 1
    assert count(both, shared.Write) == count(matrix, shared.Write)


def weighted(q, k, out, B: tkc.constexpr, BK: tkc.constexpr):
    """Both operands are computed of blocks as they are loaded; those of k are dense along k."""
    total = tkc.zeros((B, B), tkc.float32)
    for s in tkc.range(0, q.shape[1], BK):
        a = tkc.exp2(tkc.load(q, (0, s), (B, BK)))
        total = tkc.dot(a, tkc.exp2(tkc.load(k, (s, 0), (BK, B))), total, precision="tf32")
    tkc.store(out, (0, 0), total)


def test_blocks_run_ahead_whichever_axis_is_dense_and_in_the_layout_they_are_loaded_in():
    rows = aligned(tkc.float32, 2)
    turned = replace_(rows.facts, strides=rows.facts.strides[::-1])
    columns = replace_(rows, facts=turned)
    module, given = traced(weighted, rows, columns, rows, B=32, BK=32), context("sm_80")
    through(module, "pipeline-async-copies", given)
    copies = {op.array.name_hint: op for op in module.walk() if isinstance(op, shared.CopyAsync)}
    assert sorted(copies) == ["k", "q"]
    assert all(copy.vector.value.data == 16 for copy in copies.values())
    assert [shared_type(copies[name].buffer).memory.fast for name in "qk"] == [1, 0]


def both_axes(x, out, M: tkc.constexpr, N: tkc.constexpr):
    """Numbers of all of a tile, and one of each row, along its last axis."""
    v = tkc.load(x, (0, 0, 0), (M, 2, N)).to(tkc.float32)
    total, most = tkc.sum(v, axis=(0, 1, 2)), tkc.max(v, axis=(1, 2))
    tkc.store(out, (0, 0), (most + total)[None, :])


def test_warps_meet_once_for_a_reduction_along_several_axes():
    """Each warp writes one number, or one a row, where it wrote one for each row of both axes."""
    x, out = aligned(tkc.bfloat16, 3), aligned(tkc.float32, 2)
    module = traced(both_axes, x, out, M=6, N=1024)
    given = context("sm_90a")
    through(module, "swizzle-shared", given)
    parts = [op.result.type.size for op in module.walk() if isinstance(op, shared.ReducePartial)]
    warps = given.plan.warps
    assert len(parts) == 2 and sum(parts) <= 7 * warps
    assert count(module, tile.Reduce) == 2


def first_of_largest(x, out, N: tkc.constexpr):
    """By a function of the user's, of two tiles."""

    def later(a, p, b, q):
        return tkc.where(b > a, b, a), tkc.where(b > a, q, p)

    most, place = tkc.reduce((tkc.load(x, (0, 0), (None, N)), tkc.arange(N)), 0, later)
    tkc.store(out, (0, 0), most)
    tkc.store(out, (0, 1), place.to(tkc.float32))


def test_warps_meet_for_one_element_each_of_what_a_function_reduces():
    """Each reduces its run of the axis; no tile is in several warps."""
    for n, runs in (4096, 8), (2100, 6):
        x, out = aligned(tkc.float32, 2), aligned(tkc.float32, 2)
        module = traced(first_of_largest, x, out, N=n)
        through(module, "swizzle-shared", context("sm_90a", num_warps=8))
        parts = [op for op in module.walk() if isinstance(op, shared.ReducePartial)]
        assert [r.type.extents for op in parts for r in op.results] == 2 * [(runs,)]
        reads = [op for op in module.walk() if isinstance(op, shared.Read)]
        assert [op.result.type.extents for op in reads] == 2 * [(runs,)]


def composed(x, y, out, N: tkc.constexpr):
    """Of each column the functions t -> v t + w, one after the other, which do not commute."""

    def then(a, b, c, d):
        return a * c, b * c + d

    v = tkc.dot(tkc.load(x, (0, 0), (N, 32)), tkc.load(y, (0, 0), (32, N)))
    a, b = tkc.reduce((v, v * 0.5), 0, then)
    tkc.store(out, (0, 0), a[None, :])
    tkc.store(out, (1, 0), b[None, :])


@pytest.mark.parametrize("target, n", [("sm_80", 64), ("sm_90a", 128)])
def test_warps_that_have_rows_in_pieces_reduce_them_in_order(target, n):
    """Each of the dot's warps has rows here and there; a function reduces those of a run."""
    out = array(tkc.float32, 2, shape=(2, n))
    module, given = traced(composed, B2, B2, out, N=n), context(target, num_warps=4)
    through(module, PIPELINE[-1], given)
    rng = np.random.default_rng(0)
    x, y = np.eye(32)[rng.integers(0, 32, n)], rng.choice([-1, 1], (32, n))
    found, want = np.zeros((2, n), np.float32), np.zeros((2, n))
    level4.run(module, [x.astype(BF16), y.astype(BF16), found], (1, 1, 1))
    want[0] = 1
    for row in x @ y:
        want = np.stack([want[0] * row, want[1] * row + row / 2])
    np.testing.assert_array_equal(found, want)


def sums(a, out, N: tkc.constexpr):
    """Sums of rows, each in a warp, then of columns, of which all warps have parts."""
    x = tkc.load(a, (0, 0), (N, N)).to(tkc.float32)
    x = x / tkc.sum(x, 1)[:, None]
    tkc.store(out, (0, 0), x / tkc.sum(x, 0)[None, :])


def test_sums_of_warps_are_written_and_read_without_many_conflicts():
    """Each thread's neighbours in memory: as they are written, and as they are then read."""
    module = traced(sums, B2, aligned(tkc.float32, 2), N=128)
    given = context("sm_90a", num_warps=16)
    through(module, "swizzle-shared", given)
    accesses = [op for op in module.walk() if isinstance(op, shared.Read | shared.Write)]
    assert accesses
    assert all(op.conflicts.value.data <= 2 for op in accesses)
