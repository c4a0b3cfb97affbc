"""raise-pointers: addresses, masks and differences that only look like those of blocks."""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tests.passes.test_raise_pointers import (
    BK,
    BM,
    BN,
    copied,
    numbers,
    one_row_after_another,
    product_data,
    wide,
)
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.sim import level0


def moved_apart(a, b, c, M, N, K):
    """Every row moves by its own number: rows 0, 1, 2, … then 0, 2, 4, …"""
    rows, rk = tkc.arange(BM), tkc.arange(BK)
    total = tkc.zeros((BM, BN))
    for _ in tkc.range(0, N):
        x = tkc.load(a.ptr + rows[:, None] * a.strides[0] + rk[None, :])
        total = tkc.dot(x, tkc.load(b, (0, 0), (BK, BN)), total)
        rows = rows + tkc.arange(BM)
    tkc.store(c, (0, 0), total.to(c.dtype))


def test_rows_that_move_apart_stay():
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))] * 3
    module = traced(moved_apart, *args, i32(), i32(), i32())
    through(module, "raise-pointers", context("sm_90a"))
    x, y = numbers(3 * BM, BK), numbers(BK, BN, seed=1)
    level0.run(module, [x, y, c := np.zeros((BM, BN), np.float16), BM, 3, BK], (1, 1, 1))
    parts = (wide(x[: step * BM : step]) for step in (1, 2, 3))
    np.testing.assert_array_equal(c, sum(part @ wide(y) for part in parts))


def halves(a, b, c, M, N, K):
    """Two neighbours are one row, counted modulo something."""
    first, rk, rn = tkc.program_id(0) * BM, tkc.arange(BK), tkc.arange(BN)
    rm = ((first + tkc.arange(BM)) // 2) % M
    x = tkc.load(a.ptr + rm[:, None] * a.strides[0] + rk[None, :])
    made = tkc.dot(x, tkc.load(b, (0, 0), (BK, BN))).to(c.dtype)
    cp = c.ptr + (first + tkc.arange(BM))[:, None] * c.strides[0] + rn[None, :]
    tkc.store(cp, made, mask=(first // 2 + tkc.arange(BM) < M)[:, None] & (rn < N)[None, :])


def test_quotients_that_wrap_are_no_rows():
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))] * 3
    module = traced(halves, *args, i32(), i32(), i32())
    through(module, "raise-pointers", context("sm_90a"))
    given = [*product_data(2 * BM, BN, BK)[:3], BM, BN, BK]
    level0.run(module, given, (2, 1, 1))
    rows = np.arange(2 * BM) // 2
    wanted = wide(given[0])[rows] @ wide(given[1])
    wanted[BM + BM // 2 :] = 0  # what the mask leaves out
    np.testing.assert_array_equal(given[2], wanted)


def a_mask_of_squares(rm, rk, M):
    return (rm * rm)[:, None] + rk[None, :] < M


def test_a_mask_of_numbers_that_nothing_is_known_of_is_no_extent():
    """Each row ends at its own column."""
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))] * 3
    pointers = one_row_after_another
    module = traced(copied, *args, i32(), i32(), i32(), pointers=pointers, mask=a_mask_of_squares)
    through(module, "raise-pointers", context("sm_90a"))
    given = [numbers(BM, BK), numbers(BK, BN, seed=1), np.zeros((BM, BN), np.float16), 50, BN, BK]
    level0.run(module, given, (1, 1, 1))
    inside = np.arange(BM)[:, None] ** 2 + np.arange(BK) < 50
    np.testing.assert_array_equal(given[2], (wide(given[0]) * inside) @ wide(given[1]))


def what_is_left(x, n, sign):
    return x - x // n * n


def what_is_doubled(x, n, sign):
    """No remainder: the quotient's multiple is added."""
    return x + x // n * n


@pytest.mark.parametrize("function", [what_is_left, what_is_doubled])
def test_only_a_difference_is_a_remainder(function):
    def number(a, b, c, x, n, sign):
        rows, columns = tkc.arange(16)[:, None] * 16, tkc.arange(16)[None, :]
        place = function(x, n, sign)
        left = tkc.load(a.ptr + place * 16 + rows + columns)
        made = tkc.dot(left, tkc.load(b, (0, 0), (16, 16)))
        tkc.store(c, (0, 0), made.to(c.dtype))

    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))] * 3
    module = traced(number, *args, i32(), i32(), i32())
    through(module, "raise-pointers", context("sm_90a"))
    a, b = numbers(64, 16), numbers(16, 16, seed=1)
    level0.run(module, [a, b, c := np.zeros((16, 16), np.float16), 11, 4, 0], (1, 1, 1))
    first = function(11, 4, 0)
    np.testing.assert_array_equal(c, wide(a[first : first + 16]) @ wide(b))


def left_of_floats(a, b, c, x):
    """What a quotient's multiple leaves of floats is rounded; a remainder is not."""
    rows, columns = tkc.arange(16)[:, None], tkc.arange(16)[None, :]
    left = tkc.load(a.ptr + rows * a.strides[0] + columns)
    made = tkc.dot(left, tkc.load(b, (0, 0), (16, 16)))
    v = tkc.load(x, (0,), (16,))
    tkc.store(c, (0, 0), (made + (v - v // 0.3 * 0.3)[None, :]).to(c.dtype))


def test_a_difference_of_floats_is_no_remainder():
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))] * 2
    facts = ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16)
    row = ArrayArgument(tkc.float32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    module = traced(left_of_floats, *args, ArrayArgument(tkc.float32, facts), row)
    x = np.arange(16, dtype=np.float32) * 12345.7
    data = numbers(16, 16), numbers(16, 16, seed=1)
    results = []
    for step in (None, "raise-pointers"):
        if step:
            through(module, step, context("sm_90a"))
        results.append(np.zeros((16, 16), np.float32))
        level0.run(module, [*data, results[-1], x], (1, 1, 1))
    np.testing.assert_array_equal(*results)
