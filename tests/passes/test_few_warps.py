"""How few warps a program has: one or two for short tiles, one a line to sort, one where others
would meet in every iteration, or between dots that multiply what others made.
"""

import numpy as np
import pytest

import tkc
from tests.passes.test_streaming import plan_of, stages_of
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4


@tkc.jit
def _short(x, out, N: tkc.constexpr, ROWS: tkc.constexpr):
    """Rows after rows of a strip, so many of them at once in registers."""
    total = tkc.zeros((N,))
    for step in tkc.range(0, x.shape[0], ROWS):
        rows = [tkc.load(x, (step + r, 0), (None, N)) for r in range(ROWS)]
        for row in rows:
            total = total * 0.5 + row
    tkc.store(out, (0,), total)


@pytest.mark.parametrize(
    "columns, rows, warps",
    [(128, 1, 1), (256, 1, 2), (512, 1, 4), (1024, 1, 4), (128, 16, 4)],
)
def test_few_warps_move_whole_vectors_of_short_tiles(columns, rows, warps):
    """Of short tiles a thread of four warps would move less than 16 bytes at once; where one thread
    would hold many rows, four hide more latency.
    """
    x = np.random.default_rng(0).integers(-9, 10, (3 * rows, columns)).astype(np.float32)
    stages = stages_of(_short, x, np.zeros(columns, np.float32), N=columns, ROWS=rows)
    last = stages[PIPELINE[-1]]
    assert last.body.block.first_op.warps == warps
    out = np.zeros(columns, np.float32)
    level4.run(last, [x, out], (1, 1, 1), 1)
    want = np.zeros(columns, np.float32)
    for row in x:
        want = want * np.float32(0.5) + row
    np.testing.assert_array_equal(out, want)


@tkc.jit
def _in_order(x, out, ROWS: tkc.constexpr, N: tkc.constexpr):
    row = tkc.program_id(0) * ROWS
    tkc.store(out, (row, 0), tkc.sort(tkc.load(x, (row, 0), (ROWS, N))))


@pytest.mark.parametrize("rows, warps", [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_no_warps_without_a_line_to_sort(rows, warps):
    x = np.random.default_rng(0).integers(-99, 99, (rows, 512)).astype(np.int32)
    last = stages_of(_in_order, x, np.zeros_like(x), ROWS=rows, N=512)[PIPELINE[-1]]
    assert last.body.block.first_op.warps == warps
    out = np.zeros_like(x)
    level4.run(last, [x, out], (1, 1, 1), 1)
    np.testing.assert_array_equal(out, np.sort(x))


@tkc.jit
def cheapest_path(x, z, y, N: tkc.constexpr):
    """Dynamic time warping of two series: steps along a line are sums and minima so far."""
    pair = tkc.program_id(0)
    b, line = tkc.load(z[pair], (0,), (N,)), tkc.zeros((N,))
    for i in tkc.range(x.shape[1]):
        cost = tkc.abs(x[pair, i] - b)
        sums = tkc.cumsum(cost, axis=0)
        line = tkc.scan(line + cost - sums, 0, lambda a, b: tkc.minimum(a, b)) + sums
    tkc.store(y[pair], (0,), line)


@pytest.mark.parametrize("columns,warps", [(256, 1), (512, 1), (1024, 4)])
def test_one_warp_spares_others_a_meeting_in_every_iteration(columns, warps):
    """The lanes' share of a line is in one piece: loads are outside of the loop."""
    x, z, y = (np.zeros((3, n), np.float32) for n in (8, columns, columns))
    plan, compiled = plan_of(cheapest_path, x, z, y, N=columns)
    assert plan.warps == warps
    assert ("bar.sync" in compiled.ptx) == (warps > 1)
    if warps == 1:
        assert compiled.ptx.count("shfl.sync") == 2 * 5 + 1


def test_what_lines_in_one_warp_come_to():
    generator = np.random.default_rng(0)
    x, z = (generator.normal(size=(3, n)).astype(np.float32) for n in (8, 256))
    y = np.zeros_like(z)
    cheapest_path[3](x, z, y, N=256)
    line = np.zeros_like(z)
    for column in x.T:
        cost = np.abs(column[:, None] - z)
        sums = np.cumsum(cost, axis=1)
        line = np.minimum.accumulate(line + cost - sums, axis=1) + sums
    np.testing.assert_allclose(y, line, rtol=1e-4, atol=1e-4)


@tkc.jit
def largest_so_far(x, best, place, N: tkc.constexpr):
    """Of a line, and where it is: numbers that are cheap to make are there while lanes combine."""
    i = tkc.program_id(0)

    def larger(a, i, b, j):
        return tkc.where(b >= a, b, a), tkc.where(b >= a, j, i)

    a, at = tkc.scan((tkc.load(x[i], (0,), (N,)), tkc.arange(N)), 0, larger)
    tkc.store(best[i], (0,), a)
    tkc.store(place[i], (0,), at)


@pytest.mark.parametrize("columns, warps", [(1024, 4), (4096, 8)])
def test_a_scan_of_several_values_has_registers_for_what_it_reads(columns, warps):
    x = np.random.default_rng(1).integers(-99, 99, (2, columns)).astype(np.float32)
    best, place = np.zeros_like(x), np.zeros(x.shape, np.int32)
    plan, compiled = plan_of(largest_so_far, x, best, place, N=columns)
    assert plan.warps == warps
    assert compiled.resources.registers <= 96
    largest_so_far[2](x, best, place, N=columns)
    np.testing.assert_array_equal(best, np.maximum.accumulate(x, axis=1))
    np.testing.assert_array_equal(np.take_along_axis(x, place, 1), best)


@tkc.jit
def powers(x, y, N: tkc.constexpr, TIMES: tkc.constexpr):
    """A matrix multiplied by itself, again and again."""
    i = tkc.program_id(0)
    a = tkc.load(x[i], (0, 0), (N, N))
    total = a
    for _ in tkc.range(TIMES):
        total = tkc.dot(a, total).to(a.dtype)
    tkc.store(y[i], (0, 0), total)


@tkc.jit
def powers_by_parts(x, y, N: tkc.constexpr, TIMES: tkc.constexpr):
    """The same, each factor loaded in the loop."""
    i = tkc.program_id(0)
    total = tkc.load(x[i], (0, 0), (N, N))
    for _ in tkc.range(TIMES):
        total = tkc.dot(tkc.load(x[i], (0, 0), (N, N)), total).to(total.dtype)
    tkc.store(y[i], (0, 0), total)


@tkc.jit
def powers_from_right(x, y, N: tkc.constexpr, TIMES: tkc.constexpr):
    """The same by rows, of which each warp may have its own."""
    i = tkc.program_id(0)
    a = tkc.load(x[i], (0, 0), (N, N))
    total = a
    for _ in tkc.range(TIMES):
        total = tkc.dot(total, a).to(a.dtype)
    tkc.store(y[i], (0, 0), total)


@pytest.mark.parametrize(
    "fn, n, dtype, warps",
    [
        (powers, 16, np.float16, 1),
        (powers, 32, np.float16, 1),
        (powers, 48, np.float16, 2),
        (powers, 80, np.float16, 4),  # of which few fit a multiprocessor
        (powers, 32, np.float32, 4),  # multiply-adds
        (powers_by_parts, 32, np.float16, 4),  # loads to hide
        (powers_from_right, 32, np.float16, 1),  # two warps would have rows of their own
        (powers_from_right, 64, np.float16, 4),
    ],
)
def test_few_warps_multiply_what_they_made(fn, n, dtype, warps):
    """Of matrices that turn and mirror axes, so that nothing is rounded."""
    r = np.random.default_rng(0)
    x = np.stack([np.eye(n)[r.permutation(n)] * r.choice([-1, 1], n) for _ in range(3)])
    x = x.astype(dtype)
    y = np.zeros_like(x)
    plan, compiled = plan_of(fn, x, y, N=n, TIMES=16)
    assert plan.warps == warps
    if warps == 1:
        assert "bar.sync" not in compiled.ptx
    fn[3](x, y, N=n, TIMES=16)
    np.testing.assert_array_equal(y, np.linalg.matrix_power(x.astype(np.int64), 17))
