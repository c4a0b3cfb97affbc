"""raise-pointers: rows that are gathered, and places in arrays too large for 32 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tkc
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tests.passes.test_raise_pointers import BK, BM, BN, numbers, remaining, wide
from tkc.ir import elementwise as ew
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4


def scattered(table, a, b, c, M, N, K):
    """Rows in an order that is computed; one that the mask leaves out lies before the first."""
    rm = tkc.program_id(0) * BM + tkc.arange(BM)
    return rm * 7 % M - 1, rm < M


def listed(table, a, b, c, M, N, K):
    """Rows that a table in memory has."""
    rm = tkc.program_id(0) * BM + tkc.arange(BM)
    return tkc.load(table.ptr + rm, mask=rm < M, other=-1), rm < M


def gathered(table, a, b, c, M, N, K, rows: tkc.constexpr, TURNED: tkc.constexpr):
    row, inside = rows(table, a, b, c, M, N, K)
    here = inside & (row >= 0)
    n, rk = tkc.program_id(1) * BN, tkc.arange(BK)
    acc = tkc.zeros((BM, BN))
    for k in range(0, K, BK):
        if TURNED:
            ap = a.ptr + (k + rk)[:, None] + row[None, :] * a.strides[0]
            x = tkc.load(ap, mask=here[None, :] & (k + rk < K)[:, None]).T
        else:
            ap = a.ptr + row[:, None] * a.strides[0] + (k + rk)[None, :]
            x = tkc.load(ap, mask=here[:, None] & (k + rk < K)[None, :])
        acc = tkc.dot(x, tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (tkc.program_id(0) * BM, n), acc.to(c.dtype))


def of_rows(rows: Callable, divisor: int, turned: bool):
    facts = [ArrayFacts((Fact(),) * 2, (Fact(divisor), Fact(exact=1)), 16)] * 3
    table = ArrayArgument(tkc.int32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    arrays = [ArrayArgument(tkc.float16, fact) for fact in facts]
    sizes = [i32(), i32(), i32()]
    return traced(gathered, table, *arrays, *sizes, rows=rows, TURNED=turned)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [scattered, listed])
def test_rows_that_are_gathered(rows, turned):
    m, n, k = 100, 64, 72
    order = np.arange(m) * 7 % m - 1
    data = numbers(m, 128), numbers(k, n, seed=1, pad=64)
    wanted = np.where(order[:, None] >= 0, wide(data[0])[order, :k], 0) @ wide(data[1])

    def check(run: Callable) -> None:
        given = [order.astype(np.int32), *data, np.zeros((m, 128), np.float16)[:, :n], m, n, k]
        run(given, (2, 1, 1))
        np.testing.assert_array_equal(given[3], wanted.astype(np.float16))

    raised = of_rows(rows, 128, turned)
    through(raised, "raise-pointers", context("sm_90a"))
    assert remaining(raised) == 0
    check(lambda given, grid: level0.run(raised, given, grid))
    for name in ("sm_80", "sm_90a"):
        module, given = of_rows(rows, 128, turned), context(name)
        through(module, PIPELINE[-1], given)
        check(lambda given, grid, module=module: level4.run(module, given, grid, 1))
        assert name == "sm_80" or any("a gather" in d for d in given.decisions)


@pytest.mark.parametrize("divisor", [8, 16, 32])
def test_short_rows_that_may_lie_before_the_first(divisor):
    """So many of them fit into a memory that their numbers take 64 bits."""
    m, n, k = 100, 64, 72
    order = np.arange(m) * 7 % m - 1
    data = numbers(m, 128), numbers(k, n, seed=1, pad=64)
    wanted = np.where(order[:, None] >= 0, wide(data[0])[order, :k], 0) @ wide(data[1])
    for name in ("sm_80", "sm_90a"):
        module = of_rows(listed, divisor, False)
        through(module, "raise-pointers", context(name))
        assert remaining(module) == 0
        module, given = of_rows(listed, divisor, False), context(name)
        through(module, PIPELINE[-1], given)
        arrays = [order.astype(np.int32), *data, np.zeros((m, 128), np.float16)[:, :n]]
        level4.run(module, [*arrays, m, n, k], (2, 1, 1), 1)
        np.testing.assert_array_equal(arrays[3], wanted.astype(np.float16))
        assert name == "sm_80" or any("a gather" in d for d in given.decisions)


def test_rows_that_start_at_odd_bytes_stay_by_pointers():
    module = of_rows(listed, 1, False)
    through(module, "raise-pointers", context("sm_90a"))
    assert remaining(module) == 1


# ---- arrays whose elements take more than 32 bits to count
ROW, FAR = 1 << 20, 2100


def far_away(table, a, b, c, M, N, K):
    """The stride is of 32 bits, and so is the number that is loaded; their product is not."""
    rm, rk = tkc.arange(16), tkc.arange(16)
    number = tkc.load(table.ptr).to(tkc.int64)
    x = tkc.load(a.ptr + number * M + rm[:, None] * 16 + rk[None, :])
    tkc.store(c, (0, 0), tkc.dot(x, tkc.load(b, (0, 0), (16, 16))).to(c.dtype))


def far_along_a_row(table, a, b, c, M, N, K):
    """An index of 64 bits along neighbours."""
    rm, rk = tkc.arange(16), tkc.arange(16)
    number = tkc.load(table.ptr).to(tkc.int64)
    x = tkc.load(a.ptr + number * 1024 * 1024 + rm[:, None] * 16 + rk[None, :])
    tkc.store(c, (0, 0), tkc.dot(x, tkc.load(b, (0, 0), (16, 16))).to(c.dtype))


def far_beside_a_difference(table, a, b, c, M, N, K):
    """The place is part of a difference that 32 bits hold, though they do not hold the part."""
    rm, rk, acc = tkc.arange(16), tkc.arange(16), tkc.zeros((16, 16))
    for i in range(K, K + 1):
        near = i * 1048576 - K * 1048576
        far = a.ptr + i.to(tkc.int64) * 1048576
        x = tkc.load(far + rm[:, None] * 16 + rk[None, :], mask=(near + rm < 16)[:, None])
        acc = tkc.dot(x, tkc.load(b, (0, 0), (16, 16)), acc)
    tkc.store(c, (0, 0), acc.to(c.dtype))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kernel", [far_away, far_along_a_row, far_beside_a_difference])
def test_places_in_large_arrays_are_counted_in_64_bits(kernel, large):
    where = FAR if large else 3
    a = np.zeros(where * ROW + 256, np.float16)  # of which little is ever touched
    a[where * ROW :] = numbers(16, 16).ravel()
    b = numbers(16, 16, seed=1)
    table = ArrayArgument(tkc.int32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    line = ArrayFacts((Fact(),), (Fact(exact=1),), 16)
    block = ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16)
    arrays = [ArrayArgument(tkc.float16, line, large), *[ArrayArgument(tkc.float16, block)] * 2]
    for name in ("sm_80", "sm_90a"):
        module = traced(kernel, table, *arrays, i32(), i32(), i32())
        through(module, PIPELINE[-1], context(name))
        c = np.zeros((16, 16), np.float16)
        given = [np.array([where], np.int32), a, b, c, ROW, 16, where]
        level4.run(module, given, (1, 1, 1), 1)
        wanted = wide(a[where * ROW :].reshape(16, 16)) @ wide(b)
        np.testing.assert_array_equal(c, wanted.astype(np.float16))


def at_a_product_of_numbers(a, b, c):
    """A place along neighbours that is never negative and takes more than 32 bits."""
    rm, rk = tkc.arange(16), tkc.arange(16)
    place = tkc.program_id(0).to(tkc.int64) * tkc.program_id(1).to(tkc.int64)
    x = tkc.load(a.ptr + place + rm[:, None] * 16 + rk[None, :])
    tkc.store(c, (0, 0), tkc.dot(x, tkc.load(b, (0, 0), (16, 16))).to(c.dtype))


def test_a_place_that_takes_more_than_32_bits_is_no_start():
    a = np.zeros(FAR * ROW + 256, np.float16)
    a[FAR * ROW :] = numbers(16, 16).ravel()
    b, line = numbers(16, 16, seed=1), ArrayFacts((Fact(),), (Fact(exact=1),), 16)
    block = ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16)
    arrays = [ArrayArgument(tkc.float16, line, True), *[ArrayArgument(tkc.float16, block)] * 2]
    module = traced(at_a_product_of_numbers, *arrays)
    through(module, "raise-pointers", context("sm_90a"))
    c = np.zeros((16, 16), np.float16)
    level0.run(module, [a, b, c], (FAR + 1, ROW + 1, 1), [(FAR, ROW, 0)])
    wanted = wide(a[FAR * ROW :].reshape(16, 16)) @ wide(b)
    np.testing.assert_array_equal(c, wanted.astype(np.float16))


def never_negative(table, a, b, c, M, N, K):
    """Rows in an order that is computed, none before the first."""
    rm = tkc.program_id(0) * BM + tkc.arange(BM)
    return rm * 7 % 64, rm < M


@pytest.mark.parametrize("rows, moved", [(never_negative, False), (listed, True)])
def test_an_array_begins_before_rows_that_may_be_negative_alone(rows, moved):
    module = of_rows(rows, 128, False)
    through(module, "raise-pointers", context("sm_90a"))
    assert remaining(module) == 0
    moves = [op for op in module.walk() if isinstance(op, ew.PointerAdd)]
    assert bool(moves) == moved


# ---- rows that are scattered
def rows_out(table, a, b, c, M, N, K):
    """A product is stored to the rows that a list has, but for those that the mask leaves out."""
    rm, rn = tkc.program_id(0) * BM + tkc.arange(BM), tkc.program_id(1) * BN + tkc.arange(BN)
    row = tkc.load(table.ptr + rm, mask=rm < M, other=-1)
    acc = tkc.zeros((BM, BN))
    for k in range(0, K, BK):
        x = tkc.load(a, (tkc.program_id(0) * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, tkc.program_id(1) * BN), (BK, BN)), acc)
    cp = c.ptr + row[:, None] * c.strides[0] + rn[None, :]
    tkc.store(cp, acc.to(c.dtype), mask=(row >= 0)[:, None] & (rn < N)[None, :])


@pytest.mark.parametrize("divisor", [8, 128])
def test_rows_that_are_scattered(divisor):
    m, n, k = 100, 60, 72
    order = np.arange(m) * 7 % m - 1
    table = ArrayArgument(tkc.int32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    fact = ArrayFacts((Fact(),) * 2, (Fact(divisor), Fact(exact=1)), 16)
    arrays = [ArrayArgument(tkc.float16, fact)] * 3
    data = numbers(m, k, pad=128 - k), numbers(k, n, seed=1, pad=128 - n)
    wanted = np.zeros((m, n))
    wanted[order[order >= 0]] = (wide(data[0]) @ wide(data[1]))[order >= 0]
    for name in ("sm_80", "sm_90a"):
        module = traced(rows_out, table, *arrays, i32(), i32(4), i32())
        through(module, "raise-pointers", context(name))
        assert remaining(module) == 0
        module = traced(rows_out, table, *arrays, i32(), i32(4), i32())
        through(module, PIPELINE[-1], context(name))
        c = np.zeros((m, 128), np.float16)[:, :n]
        level4.run(module, [order.astype(np.int32), *data, c, m, n, k], (2, 1, 1), 1)
        np.testing.assert_array_equal(c, wanted.astype(np.float16))
