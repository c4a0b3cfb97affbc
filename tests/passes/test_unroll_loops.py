"""unroll-loops: loops that load where what they have loaded says, and no others."""

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import count
from tkc.ir import tile
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

N = 64


def bag(table, index, out, M, STEPS: tkc.constexpr, CHAINED: tkc.constexpr, WRITES: tkc.constexpr):
    """Sums of rows of a table, those that another array names, or every second one."""
    row, i = tkc.program_id(0), tkc.arange(N)
    total = tkc.zeros((N,))
    for t in tkc.range(1, 2 * STEPS, 2):
        at = tkc.load(index.ptr + row * 2 * STEPS + t) if CHAINED else t
        x = tkc.load(table.ptr + at * M + i, mask=i < M)
        total = total + x
        if WRITES:
            tkc.store(out.ptr + row * M + i, total, mask=i < M)
    tkc.store(out.ptr + row * M + i, total, mask=i < M)


def module(steps: int = 4, chained: bool = True, writes: bool = False):
    kinds = [array(tkc.float32, 1), array(tkc.int32, 1), array(tkc.float32, 1), i32()]
    return traced(bag, *kinds, STEPS=steps, CHAINED=chained, WRITES=writes)


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_iterations_are_written_out(name):
    rng = np.random.default_rng(0)
    m, steps = 50, 4
    table = rng.integers(-9, 10, (12, m)).astype(np.float32)
    index = rng.integers(0, 12, (3, 2 * steps)).astype(np.int32)
    want = table[index[:, 1::2]].sum(1)
    made, given = module(steps), context(name)
    arrays = [table.reshape(-1), index.reshape(-1), np.zeros(3 * m, np.float32), m]
    level0.run(made, arrays, (3, 1, 1))
    np.testing.assert_array_equal(arrays[2].reshape(3, m), want)
    through(made, PIPELINE[-1], given)
    assert count(made, scf.ForOp) == 0 and count(made, tile.LoadPointers) == 2 * steps
    arrays[2] = np.zeros(3 * m, np.float32)
    level4.run(made, arrays, (3, 1, 1), 1)
    np.testing.assert_array_equal(arrays[2].reshape(3, m), want)


def ragged_bag(table, index, start, out, M, STEP: tkc.constexpr):
    """Sums of rows of a table: every STEPth of those that a part of another array names."""
    row, i = tkc.program_id(0), tkc.arange(N)
    total = tkc.zeros((N,))
    for t in tkc.range(tkc.load(start.ptr + row), tkc.load(start.ptr + row + 1), STEP):
        total = total * 2 + tkc.load(table.ptr + tkc.load(index.ptr + t) * M + i, mask=i < M)
    tkc.store(out.ptr + row * M + i, total, mask=i < M)


LISTS = (*(array(t) for t in (tkc.float32, tkc.int32, tkc.int32, tkc.float32)), i32())


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_four_iterations_at_once(name, step):
    """Where their number is loaded: rows of 0, 1, 3, 4, 5, 12 and 29 numbers, and one that ends
    before it begins.
    """
    rng = np.random.default_rng(1)
    m, start = 50, np.array([7, 7, 8, 11, 15, 20, 32, 61, 40], np.int32)
    table = rng.integers(0, 2, (12, m)).astype(np.float32)
    index = rng.integers(0, 12, 61).astype(np.int32)
    want = np.zeros((8, m), np.float32)
    for row in range(8):
        for t in range(start[row], start[row + 1], step):
            want[row] = want[row] * 2 + table[index[t]]
    made = traced(ragged_bag, *LISTS, STEP=step)
    arrays = [table.reshape(-1), index, start, np.zeros(8 * m, np.float32), m]
    given = context(name)
    through(made, "unroll-loops", given)
    assert any("4 iterations at once" in d for d in given.decisions)
    assert count(made, scf.ForOp) == 2
    level0.run(made, arrays, (8, 1, 1))
    np.testing.assert_array_equal(arrays[3].reshape(8, m), want)
    whole = traced(ragged_bag, *LISTS, STEP=step)
    through(whole, PIPELINE[-1], context(name))
    arrays[3] = np.zeros(8 * m, np.float32)
    level4.run(whole, arrays, (8, 1, 1), 1)
    np.testing.assert_array_equal(arrays[3].reshape(8, m), want)


def test_four_iterations_at_once_of_a_loop_that_ends_far_before_it_begins():
    """32 bits do not hold the distance, which wraps to more than two groups of iterations."""
    made = traced(ragged_bag, *LISTS, STEP=1)
    through(made, "unroll-loops", context("sm_90a"))
    table, index = np.ones((12, 50), np.float32), np.zeros(4, np.int32)
    for start, end in ((2_000_000_000, -1_999_999_997), (2_000_000_000, -2_147_483_648)):
        arrays = [
            table.reshape(-1),
            index,
            np.array([start, end], np.int32),
            np.ones(50, np.float32),
            50,
        ]
        level0.run(made, arrays, (1, 1, 1))
        assert not arrays[3].any()


def test_many_iterations_are_written_out_in_part():
    made, given = module(steps=17), context("sm_90a")
    through(made, "unroll-loops", given)
    assert count(made, scf.ForOp) == 2 and count(made, tile.LoadPointers) == 10


@pytest.mark.parametrize(
    "options", [{"chained": False}, {"writes": True}], ids=["known addresses", "effects"]
)
def test_other_loops_stay(options):
    made, given = module(**options), context("sm_90a")
    through(made, "unroll-loops", given)
    assert count(made, scf.ForOp) == 1
    assert not any(d.startswith("unroll-loops") for d in given.decisions)
