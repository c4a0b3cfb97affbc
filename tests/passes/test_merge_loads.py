"""merge-loads: loads of neighbours are one, and no others; the same at every level."""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import count
from tkc.ir import shared, tile
from tkc.ir.values import operations_in, tile_type
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

N = 64
GRID = (3, 1, 1)


def corners(x, index, out, M):
    """Areas of boxes of four corners."""
    n = tkc.program_id(0) * N + tkc.arange(N)
    at, mask = x.ptr + n * 4, n < M
    x0, y0, x1, y1 = (tkc.load(at + i, mask=mask, other=-1) for i in range(4))
    tkc.store(out.ptr + n, (x1 - x0) * (y1 - y0) + x1, mask=mask)


def listed(x, index, out, M):
    """Pairs that an array names, the second part first."""
    n = tkc.program_id(0) * N + tkc.arange(N)
    at = 2 * tkc.load(index.ptr + n, mask=n < M)
    y, x = tkc.load(x.ptr + at + 1, mask=n < M), tkc.load(x.ptr + at, mask=n < M)
    tkc.store(out.ptr + n, x * 3 + y, mask=n < M)


def five(x, index, out, M):
    """Records of eight, of which five parts are read, from the second on: two, and two, and one."""
    n = tkc.program_id(0) * N + tkc.arange(N)
    total = tkc.zeros((N,))
    for i in (2, 3, 4, 5, 6):
        total = total * 2 + tkc.load(x.ptr + n * 8 + i, mask=n < M)
    tkc.store(out.ptr + n, total, mask=n < M)


def in_a_loop(x, index, out, M):
    """Records of a row, pairs in each step."""
    n = tkc.program_id(0) * N + tkc.arange(N)
    total = tkc.zeros((N,))
    for k in tkc.range(0, 4, 2):
        at = x.ptr + n * 4 + k
        total = total * 2 + tkc.load(at, mask=n < M) - 3 * tkc.load(at + 1, mask=n < M)
    tkc.store(out.ptr + n, total, mask=n < M)


def windows(x, index, out, M):
    """Neighbours of neighbours: rows that are not apart."""
    n = tkc.program_id(0) * N + tkc.arange(N)
    parts = [tkc.load(x.ptr + n + i, mask=n < M) for i in (0, 1)]
    tkc.store(out.ptr + n, parts[0] * 2 + parts[1], mask=n < M)


def in_a_circle(x, index, out, M):
    """Pairs by their numbers modulo another number."""
    n = tkc.program_id(0) * N + tkc.arange(N)
    at = x.ptr + (n % (M // 2 + 1)) * 2
    tkc.store(out.ptr + n, tkc.load(at) * 2 + tkc.load(at + 1), mask=n < M)


def odd(x, index, out, M):
    """Records of three."""
    n = tkc.program_id(0) * N + tkc.arange(N)
    parts = [tkc.load(x.ptr + n * 3 + i, mask=n < M) for i in (0, 1)]
    tkc.store(out.ptr + n, parts[0] * 2 + parts[1], mask=n < M)


def between(x, index, out, M):
    """Something is written between: the first part is another number then."""
    n = tkc.program_id(0) * N + tkc.arange(N)
    first = tkc.load(out.ptr + 2 * n, mask=n < M)
    tkc.store(out.ptr + 2 * n + 1, first * 2, mask=n < M)
    tkc.store(out.ptr + 2 * n, tkc.load(out.ptr + 2 * n + 1, mask=n < M) + 1, mask=n < M)


def other_masks(x, index, out, M):
    n = tkc.program_id(0) * N + tkc.arange(N)
    parts = [tkc.load(x.ptr + n * 2 + i, mask=n < M - i) for i in (0, 1)]
    tkc.store(out.ptr + n, parts[0] * 2 + parts[1], mask=n < M)


def other_numbers(x, index, out, M):
    n = tkc.program_id(0) * N + tkc.arange(N)
    parts = [tkc.load(x.ptr + n * 2 + i, mask=n < M - 9, other=z) for i, z in ((0, 0.0), (1, -0.0))]
    tkc.store(out.ptr + n, parts[0] + 1 / parts[1], mask=n < M)


# how many loads are left, and in how many elements the widest lie
KERNELS = {
    corners: (1, 4),
    listed: (2, 2),
    five: (3, 2),
    in_a_loop: (1, 2),
    windows: (2, 1),
    in_a_circle: (1, 2),
    odd: (2, 1),
    between: (2, 1),
    other_masks: (2, 1),
    other_numbers: (2, 1),
}


def data(m: int):
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, 8 * 3 * N).astype(np.float32)
    index = rng.integers(0, 2 * N, 3 * N).astype(np.int32)
    return [x, index, rng.integers(1, 5, 6 * N).astype(np.float32), m]


def module(kernel, align: int = 16):
    floats = array(tkc.float32, align=align)
    return traced(kernel, floats, array(tkc.int32), floats, i32())


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_merged_loads(kernel, name):
    made, given = module(kernel), context(name)
    whole = made.clone()
    through(made, "merge-loads", given)
    loads = operations_in(made, tile.LoadPointers)
    left, widest = KERNELS[kernel]
    assert len(loads) == left
    extents = [tile_type(op.result).extents for op in loads]
    assert max(t[-1] for t in extents if len(t) > 1 or widest == 1) in (widest, N)
    assert any("merge-loads" in line for line in given.decisions) == (widest > 1)
    for m in (3 * N, 2 * N + 5, 0):
        wanted = data(m)
        level0.run(whole, wanted, GRID)
        for run, module_ in ((level0.run, made), (level4.run, lowered(kernel, name))):
            found = data(m)
            run(module_, found, GRID)
            np.testing.assert_array_equal(found[2], wanted[2])


def lowered(kernel, name):
    made = module(kernel)
    through(made, PIPELINE[-1], context(name))
    return made


def rows_of_corners(x, o, M, FIRST: tkc.constexpr):
    """Areas of boxes, as blocks of an array of four or more columns."""
    n = tkc.program_id(0) * N
    x0, y0, x1, y1 = (tkc.load(x, (n, FIRST + i), (N, None), other=-1) for i in range(4))
    there = n + tkc.arange(N) < M
    more = tkc.load(x, (n, FIRST), (N, None), mask=there)
    tkc.store(o, (n,), (x1 - x0) * (y1 - y0) + x1 + 3 * more)


def steps_of_pairs(x, o, M, FIRST: tkc.constexpr):
    """Pairs of columns in turn, the second part first."""
    n, total = tkc.program_id(0) * N, tkc.zeros((N,))
    for k in tkc.range(FIRST, FIRST + 6, 2):
        second = tkc.load(x, (n, k + 1), (N, None))
        total = total * 2 + second * 3 - tkc.load(x, (n, k), (N, None))
    tkc.store(o, (n,), total)


def windows_of_rows(x, o, M, FIRST: tkc.constexpr):
    """Blocks that begin at neighbouring columns."""
    n, total = tkc.program_id(0) * N, tkc.zeros((N, 4))
    for i in tkc.static_range(4):
        total = total * 2 + tkc.load(x, (n, FIRST + i), (N, 4))
    tkc.store(o, (n,), tkc.sum(total, axis=1))


@pytest.mark.parametrize(
    "kernel, columns, first, left",
    [
        (rows_of_corners, 8, 0, 2),
        (rows_of_corners, 8, 4, 2),
        (rows_of_corners, 8, 2, 3),
        (rows_of_corners, 6, 0, 3),
        (rows_of_corners, 7, 0, 5),
        (rows_of_corners, None, 0, 5),
        (steps_of_pairs, 8, 0, 1),
        (steps_of_pairs, 8, 1, 2),
        (windows_of_rows, 8, 0, 4),
    ],
)
def test_merged_blocks(kernel, columns, first, left):
    rows = array(tkc.float32, 2, shape=(None, columns), strides=(columns, 1))
    made = traced(kernel, rows, array(tkc.float32), i32(), FIRST=first)
    whole, given = made.clone(), context("sm_90a")
    through(made, "merge-loads", given)
    assert count(made, tile.Load) == left
    lowered = whole.clone()
    through(lowered, PIPELINE[-1], context("sm_90a"))

    def arguments(m):
        x = np.random.default_rng(0).integers(-9, 10, (m, columns or 8)).astype(np.float32)
        return [x, np.zeros(m, np.float32), m - 3]

    for m in (3 * N, 2 * N + 5):
        level0.run(whole, wanted := arguments(m), GRID)
        for run, module_ in ((level0.run, made), (level4.run, lowered)):
            run(module_, found := arguments(m), GRID)
            np.testing.assert_array_equal(found[1], wanted[1])


def test_a_thread_reads_a_record_at_once():
    made = module(corners)
    given = context("sm_90a")
    through(made, PIPELINE[-1], given)
    (load,) = operations_in(made, tile.LoadPointers)
    assert tile_type(load.result).register_layout.vector(1, 4) == 4
    assert count(made, shared.Read) == 0


def test_rows_that_begin_anywhere_are_read_by_their_parts():
    made, given = module(corners, align=4), context("sm_90a")
    through(made, "merge-loads", given)
    assert count(made, tile.LoadPointers) == 4
