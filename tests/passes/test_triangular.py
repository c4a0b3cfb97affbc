"""Inverses of triangular matrices, row by row, as solvers of chunks compute them beside dots: sums
of each iteration in few lanes, the row that a comparison picks by one shuffle, vectors from one
axis to the other without shared memory, and rows that are loaded one iteration early.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler, assembles_clean
from tkc.codegen.ptx.emit import emit
from tkc.ir import threads, tile
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE

N, K = 16, 32


def inverse(a, x, out, products, n, LOADED: tkc.constexpr):
    """(1 + L)⁻¹ − 1, where L is what lies below the diagonal of a, or of x · xᵀ."""
    i = tkc.arange(N)
    below = i[:, None] > i[None, :]
    t = tkc.load(x, (0, 0), (N, K))
    product = tkc.dot(t, t.T)
    m = tkc.where(below, tkc.load(a, (0, 0), (N, N)) if LOADED else product, 0.0)
    inv = -m
    for k in tkc.range(1, n):
        if LOADED:
            row = -tkc.load(a, (k, 0), (None, N))
        else:
            row = tkc.sum(tkc.where((i == k)[:, None], -m, 0.0), axis=0)
        row = tkc.where(i < k, row, 0.0)
        row = row + tkc.sum(row[:, None] * inv, axis=0)
        inv = tkc.where((i == k)[:, None], row[None, :], inv)
    tkc.store(out, (0, 0), inv)
    tkc.store(products, (0, 0), product)


def module(loaded: bool, warps: int):
    facts = ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16)
    args = [ArrayArgument(t, facts) for t in (tkc.float32, tkc.float16, *[tkc.float32] * 2)]
    made, given = traced(inverse, *args, i32(), LOADED=loaded), context("sm_90a", num_warps=warps)
    through(made, PIPELINE[-1], given)
    return made, given


def wanted(m: np.ndarray) -> np.ndarray:
    found = -np.tril(m, -1)
    for k in range(1, N):
        row = np.where(np.arange(N) < k, -m[k], 0)
        found[k] = row + row @ found
    return found


@pytest.mark.parametrize("warps", (1, 2, 4))
@pytest.mark.parametrize("loaded", (False, True))
@assembler
def test_inverses_are_right(loaded, warps):
    made, _ = module(loaded, warps)
    assembles_clean(made)
    rng = np.random.default_rng(warps)
    x = rng.integers(-1, 2, (N, K)).astype(np.float16)
    a = rng.integers(-1, 2, (N, N)).astype(np.float32)
    out, products = np.zeros((2, N, N), np.float32)
    machine.run(made, [a, x, out, products, N], (1, 1, 1))
    x32 = x.astype(np.float32)
    np.testing.assert_array_equal(out, wanted(a if loaded else x32 @ x32.T))


def loop_of(text: str) -> str:
    """The loop over rows, which is the only one."""
    found = re.search(r"^\$(for_\d+):\n(.*?)bra\.uni \$\1;", text, re.M | re.S)
    assert found is not None
    return found[2]


def test_a_warp_sums_rows_in_registers_and_two_lanes():
    """And what an iteration begins with, which it loads, was loaded in the one before."""
    made, given = module(True, 1)
    loop = loop_of(emit(made, target("sm_90a")).text)
    assert loop.count("shfl.sync.bfly") == 1
    assert loop.index("ld.global") < loop.index("st.shared")
    assert any("one iteration early" in d for d in given.decisions)


def best_paths(step, score, out):
    """Each state's best way from another one, again and again: a matrix is loaded once."""
    move = tkc.load(step, (0, 0), (64, 64))
    state = tkc.load(score, (0, 0), (None, 64))
    for t in tkc.range(1, score.shape[0]):
        best = tkc.max(move + state[None, :], axis=1)
        state = best + tkc.load(score, (t, 0), (None, 64))
    tkc.store(out, (0,), state)


@pytest.mark.parametrize("warps, shuffles", [(2, 0), (4, 1), (8, 2)])
def test_several_warps_reduce_what_a_loop_keeps_in_few_lanes(warps, shuffles):
    """Not in those that load it best: it is loaded once, and reduced in every iteration."""
    matrix = ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))
    row = ArrayArgument(tkc.float32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    made = traced(best_paths, matrix, matrix, row)
    through(made, PIPELINE[-1], context("sm_90a", num_warps=warps))
    assert loop_of(emit(made, target("sm_90a")).text).count("shfl.sync") == shuffles
    rng = np.random.default_rng(0)
    move, score = rng.integers(-9, 9, (64, 64)), rng.integers(-9, 9, (5, 64))
    given = [move.astype(np.float32), score.astype(np.float32), np.zeros(64, np.float32)]
    machine.run(made, given, (1, 1, 1))
    state = score[0]
    for row in score[1:]:
        state = (move + state[None, :]).max(axis=1) + row
    np.testing.assert_array_equal(given[2], state)


def test_a_row_is_picked_and_turned_by_shuffles():
    """Of four columns a lane: one shuffle each for the row, four for the vector that multiplies
    rows, three each for the sums.
    """
    made, _ = module(False, 1)
    loop = loop_of(emit(made, target("sm_90a")).text)
    assert (loop.count("shfl.sync.idx"), loop.count("shfl.sync.bfly")) == (8, 12)
    assert ".shared" not in loop


def picked(x, out, n, START: tkc.constexpr, AXIS: tkc.constexpr, OTHER: tkc.constexpr):
    """One row or column of a matrix; zeros where there is none of that number."""
    i = tkc.arange(START, START + N)
    here = (i == n)[:, None] if AXIS == 0 else (n == i)[None, :]
    v = tkc.load(x, (0, 0), (N, N))
    tkc.store(out, (0,), tkc.sum(tkc.where(here, v, OTHER), axis=AXIS))


def picking(start: int = 0, axis: int = 0, other: float = 0.0, warps: int = 1):
    matrix = ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))
    row = ArrayArgument(tkc.float32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    made = traced(picked, matrix, row, i32(), START=start, AXIS=axis, OTHER=other)
    through(made, PIPELINE[-1], context("sm_90a", num_warps=warps))
    return made


@pytest.mark.parametrize("warps", (1, 4))
@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("start, n", [(0, 0), (0, 5), (0, 15), (0, 16), (0, -1), (3, 3), (3, 18)])
def test_a_sum_over_one_place_is_that_element(start, n, axis, warps):
    x = np.random.default_rng(n + 9).integers(1, 99, (N, N)).astype(np.float32)
    out = np.full(N, -1, np.float32)
    machine.run(picking(start, axis, warps=warps), [x, out, n], (1, 1, 1))
    inside = 0 <= n - start < N
    np.testing.assert_array_equal(out, x.take(n - start, axis) if inside else np.zeros(N))


def test_what_is_filled_with_something_else_is_summed():
    def kinds(made):
        return [type(op) for op in made.walk() if isinstance(op, (tile.Reduce, threads.Take))]

    assert kinds(picking()) == [threads.Take]
    assert kinds(picking(other=1.0)) == kinds(picking(other=-0.0)) == [tile.Reduce]


@tkc.jit
def least_of_flipped_pairs(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    values = tkc.load(x.ptr + tkc.zeros((ROWS, COLUMNS), tkc.int32))
    tkc.store(o, (0, 0), tkc.min(tkc.flip(values, 0), axis=1).reshape((ROWS, 1)))


@pytest.mark.parametrize("rows,columns", [(11, 3), (9, 7), (5, 32), (13, 1)])
def test_rows_of_any_number_are_reduced_within_a_warp(monkeypatch, rows, columns):
    """A layout asked for three lanes a row until 2026-11-29 (random kernel 24030259)."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    x, o = np.full(1, 2, np.float16), np.zeros((rows, 1), np.float16)
    least_of_flipped_pairs[1](x, o, ROWS=rows, COLUMNS=columns, num_warps=1)
    assert (o == 2).all()
