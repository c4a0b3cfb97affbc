"""Indices and masks of which a block is not what it seems: each of these kernels once gave
something else by blocks than by pointers, without a word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tests.operations.case import Case, run
from tests.passes.kernels import aligned
from tkc.fuzz.check import Comparison, Variant

N, K = 16, 64
ROWS = 80  # of x


def compared(kernel: Callable[..., None], programs: int = 1, **numbers: int) -> None:
    """The kernel at every level, on the CPU and in PTX beside what pointers give."""
    rng = np.random.default_rng(0)
    given = {
        "x": rng.integers(-4, 5, (ROWS, K)).astype(np.float32),
        "rows": rng.integers(0, ROWS, N).astype(np.int32),
        "o": np.zeros((ROWS, N), np.float32),
        "depth": K,
    } | numbers
    kinds = (aligned(tkc.float32, 2), array(tkc.int32), aligned(tkc.float32, 2))
    module = traced(kernel, *kinds, i32(), *(i32() for _ in numbers))

    def make() -> dict:
        return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in given.items()}

    comparison = Comparison(module, make, (programs,))
    assert comparison.want["o"].any()
    found = [comparison.cpu()]
    for target in ("sm_80", "sm_90a"):
        found += comparison.passes(Variant(target, 4, 3))
    assert not [f for f in found if f is not None]


def rolled(x, rows, o, depth, m, back):
    """Rows in a circle, the first ones from the end."""
    r, acc = tkc.program_id(0) * N - back + tkc.arange(N), tkc.zeros((N, N))
    for k in range(0, depth, N):
        c = k + tkc.arange(N)
        acc += tkc.load(x.ptr + (r % m)[:, None] * x.strides[0] + c[None, :])
    to = o.ptr + (r + back)[:, None] * o.strides[0] + tkc.arange(N)[None, :]
    tkc.store(to, acc, mask=(r < m)[:, None])


def test_a_remainder_of_what_is_negative_comes_from_the_end():
    compared(rolled, 3, m=40, back=5)


def handed_on(x, rows, o, depth, m, end):
    """A block is stored an iteration later, when more of its rows are inside."""
    j, before = tkc.arange(N), tkc.zeros((N, N))
    for i in range(0, end, 3):
        to = o.ptr + (i + j)[:, None] * o.strides[0] + j[None, :]
        tkc.store(to, before, mask=(j < m + i)[:, None])
        before = tkc.load(x.ptr + (j % (m + i))[:, None] * x.strides[0] + j[None, :])


def test_what_a_later_iteration_stores_is_not_what_this_one_leaves_out():
    compared(handed_on, m=2, end=64)


def summed(x, rows, o, depth, place: tkc.constexpr, inside: tkc.constexpr):
    """Blocks of rows at some places, with what some mask leaves in, added up."""
    j, acc = tkc.arange(N), tkc.zeros((N, N))
    for k in range(0, depth, N):
        c = k + tkc.arange(N)
        block = x.ptr + place(j)[:, None] * x.strides[0] + c[None, :]
        acc += tkc.load(block, mask=inside(j)[:, None], other=0)
    tkc.store(o.ptr + j[:, None] * o.strides[0] + j[None, :], acc)


def every(j):
    return j >= 0


def beside_one(j):
    return tkc.arange(1) + j


def without_quotients(j):
    return (j // 8) * 3 + j // 8 * (-3) + j


def quotients(j):
    return j // 4


def quotient_below(j):
    return j // 4 < 3


def quotient_from(j):
    return j // 4 >= 1


def quotient_of_others(j):
    return 7 - j // 2 > 3


PLACES = {
    "an arange of one element": (beside_one, every),
    "quotients that cancel out": (without_quotients, every),
    "a bound of quotients": (quotients, quotient_below),
    "a bound of quotients below": (quotients, quotient_from),
    "a bound of quotients, of rows one by one": (every_row := (lambda j: j), quotient_below),
    "a lower bound of quotients, of rows one by one": (every_row, quotient_from),
    "a bound of quotients that are taken off": (every_row, quotient_of_others),
}


@pytest.mark.parametrize("name", PLACES)
def test_rows_and_what_bounds_them(name):
    place, inside = PLACES[name]

    def kernel(x, rows, o, depth):
        summed(x, rows, o, depth, place, inside)

    compared(kernel)


def with_quotients(x, rows, o, depth, first, by: tkc.constexpr, kind: tkc.constexpr):
    """A block by pointers; quotients of numbers that wrap, and of floats, beside it."""
    j, acc = tkc.arange(N), tkc.zeros((N, N))
    for k in range(0, depth, N):
        c = k + tkc.arange(N)
        acc += tkc.load(x.ptr + j[:, None] * x.strides[0] + c[None, :])
    quotients = (tkc.multiple_of(first, 8).to(kind) + j.to(kind)) // by
    to = o.ptr + j[:, None] * o.strides[0] + j[None, :]
    tkc.store(to, acc + quotients.to(tkc.float32)[None, :])


@pytest.mark.parametrize("kind", [tkc.int32, tkc.uint8, tkc.float16], ids=str)
def test_quotients_beside_a_block_that_are_no_places(kind):
    def kernel(x, rows, o, depth, first):
        with_quotients(x, rows, o, depth, first, 8, kind)

    compared(kernel, first=2**31 - 8 if kind == tkc.int32 else 248)


def gathered(x, rows, o, depth):
    """What leaves out columns is no condition of the rows, though the tile has a unit axis."""
    r, acc = tkc.load(rows, (0,), (N,)), tkc.zeros((1, N, N))
    kept = (r % 3 > 0)[None, :, None]
    for k in range(0, depth, N):
        c = k + tkc.arange(N)
        block = x.ptr + r[None, None, :] * x.strides[0] + c[None, :, None]
        acc += tkc.load(block, mask=kept)
    j = tkc.arange(N)
    tkc.store(o.ptr + j[None, None, :] * o.strides[0] + j[None, :, None], acc)


def test_a_condition_beside_rows_that_are_gathered():
    compared(gathered)


def narrowed(x, rows, o, depth, many):
    """Numbers of 64 bits of which 32 are taken."""
    j, acc = tkc.arange(N), tkc.zeros((N, N))
    far = many.to(tkc.int64) * (1 << 32)
    for k in range(0, depth, N):
        c = k + tkc.arange(N)
        r = (far + j).to(tkc.int32) + (far + 3).to(tkc.int32)
        acc += tkc.load(x.ptr + r[:, None] * x.strides[0] + c[None, :])
    tkc.store(o.ptr + j[:, None] * o.strides[0] + j[None, :], acc)


def narrowed_below(x, rows, o, depth, many):
    """The same of numbers that are known not to be large."""
    j, acc = tkc.arange(N), tkc.zeros((N, N))
    far = -(tkc.maximum(many, 0).to(tkc.int64) * (1 << 32))
    for k in range(0, depth, N):
        c = k + tkc.arange(N)
        r = (far + j).to(tkc.int32)
        acc += tkc.load(x.ptr + r[:, None] * x.strides[0] + c[None, :])
    tkc.store(o.ptr + j[:, None] * o.strides[0] + j[None, :], acc)


@pytest.mark.parametrize("kernel", [narrowed, narrowed_below])
def test_numbers_that_are_cut_off(kernel):
    compared(kernel, many=3)


def rows_below(x: tkc.pointer, o: tkc.pointer, m):
    """A mask bounds the rows of what is read and of what is stored."""
    r, c = tkc.program_id(0) * N + tkc.arange(N), tkc.arange(N)
    inside = (r < m)[:, None]
    a = tkc.load(x + r[:, None] * N + c[None, :], mask=inside, other=0.0)
    tkc.store(o + r[:, None] * N + c[None, :], tkc.dot(a, a.T), mask=inside)


def rows_below_fewer(x: tkc.pointer, o: tkc.pointer, m):
    """The same of an argument that may be positive and its bound not."""
    rows_below(x, o, m - 20)


def rows_before_below(x: tkc.pointer, o: tkc.pointer, m):
    """The same of rows the first of which lie before the array."""
    r, c = tkc.program_id(0) * N + tkc.arange(N) - 4, tkc.arange(N)
    inside = ((r >= 0) & (r < m))[:, None]
    a = tkc.load(x + r[:, None] * N + c[None, :], mask=inside, other=0.0)
    tkc.store(o + r[:, None] * N + c[None, :], tkc.dot(a, a.T), mask=inside)


def columns_below(x: tkc.pointer, o: tkc.pointer, m):
    """The bound of a sum's columns."""
    r, c, acc = tkc.arange(N), tkc.arange(N), tkc.zeros((N, N))
    for k in range(0, 2):
        inside = (c < m - k * N)[None, :]
        a = tkc.load(x + r[:, None] * (2 * N) + k * N + c[None, :], mask=inside, other=0.0)
        acc = tkc.dot(a, a.T, acc)
    tkc.store(o + r[:, None] * N + c[None, :], acc)


def _row_products(x: np.ndarray, m: int) -> np.ndarray:
    """What the first m rows give, in blocks of N."""
    whole = np.where(np.arange(2 * N)[:, None] < m, x.reshape(2 * N, N), 0)
    blocks = [block @ block.T for block in whole.reshape(2, N, N)]
    return np.concatenate(blocks) * (np.arange(2 * N)[:, None] < m)


def _shifted_products(x: np.ndarray, m: int) -> np.ndarray:
    """The same in blocks that begin four rows before."""
    r = np.arange(-4, 2 * N)
    inside = ((r >= 0) & (r < min(m, 2 * N - 4)))[:, None]
    whole = np.where(inside, x.reshape(2 * N, N)[np.maximum(r, 0)], 0)
    blocks = [block @ block.T for block in whole[: 2 * N].reshape(2, N, N)]
    return np.concatenate([*blocks, np.zeros((4, N), np.float32)])[4:] * inside[4:]


def _column_products(x: np.ndarray, m: int) -> np.ndarray:
    a = np.where(np.arange(2 * N) < m, x.reshape(N, 2 * N), 0)
    return np.concatenate([a @ a.T, np.zeros((N, N), np.float32)])


BOUNDED = {
    rows_below: _row_products,
    rows_below_fewer: lambda x, m: _row_products(x, m - 20),
    rows_before_below: _shifted_products,
    columns_below: _column_products,
}


@pytest.mark.parametrize("how", ["level 0", "cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("m", [-(1 << 20), -16, -1, 0, 5, 16, 25])
@pytest.mark.parametrize("kernel", BOUNDED)
def test_a_bound_below_zero_leaves_nothing_in(kernel, m, how):
    x = (np.arange(2 * N * N) % 5 - 2).astype(np.float16)

    def given(r):
        return dict(x=x, o=np.zeros((2 * N, N), np.float32), m=m)

    want = BOUNDED[kernel](x.astype(np.float32), m).astype(np.float32)
    run(Case(kernel.__name__, kernel, given, lambda a: dict(o=want), (2,)), how)


def promised_in_a_branch(x: tkc.pointer, o: tkc.pointer, m):
    """A promise bounds what one branch stores, the same number that of the other."""
    r, c = tkc.arange(N), tkc.arange(N)
    a = tkc.load(x + r[:, None] * N + c[None, :])
    to, product = o + r[:, None] * N + c[None, :], tkc.dot(a, a.T)
    if m % N == 0:
        tkc.store(to, product, mask=(c < tkc.multiple_of(m, N))[None, :])
    else:
        tkc.store(to, product, mask=(c < m)[None, :])


def promised_in_a_loop(x: tkc.pointer, o: tkc.pointer, m):
    """The loop that makes the promise need not run."""
    r, c, acc = tkc.arange(N), tkc.arange(N), tkc.zeros((N, N))
    for _ in range(0, tkc.where(m % N == 0, 1, 0)):
        inside = (c < tkc.multiple_of(m, N))[None, :]
        a = tkc.load(x + r[:, None] * N + c[None, :], mask=inside, other=0.0)
        acc = tkc.dot(a, a.T, acc)
    b = tkc.load(x + r[:, None] * N + c[None, :], mask=(c < m)[None, :], other=0.0)
    tkc.store(o + r[:, None] * N + c[None, :], tkc.dot(b, b.T, acc))


def _promised_columns(x: np.ndarray, m: int) -> np.ndarray:
    return np.where(np.arange(N) < m, x @ x.T, 0)


def _promised_factors(x: np.ndarray, m: int) -> np.ndarray:
    a = np.where(np.arange(N) < m, x, 0)
    return a @ a.T * (2 if m % N == 0 else 1)


PROMISED = {promised_in_a_branch: _promised_columns, promised_in_a_loop: _promised_factors}


@pytest.mark.parametrize("how", ["level 0", "cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("m", [5, 13, 16])
@pytest.mark.parametrize("kernel", PROMISED)
def test_a_promise_that_is_not_made_is_not_believed(kernel, m, how):
    x = (np.arange(N * N) % 5 - 2).astype(np.float16)

    def given(r):
        return dict(x=x, o=np.zeros((N, N), np.float32), m=m)

    want = PROMISED[kernel](x.reshape(N, N).astype(np.float32), m).astype(np.float32)
    run(Case(kernel.__name__, kernel, given, lambda a: dict(o=want)), how)


def promised_blocks(x, rows, o, depth, m):
    """What a loop that does not run, or the iteration behind its last, would promise is not so."""
    acc = tkc.zeros((N, N))
    for _ in tkc.range(m, N):
        acc += tkc.load(x, (0, tkc.multiple_of(m, 4)), (N, N))
    for i in tkc.range(0, 3):
        acc += tkc.load(x, (0, tkc.multiple_of(tkc.where(i < 3, 4 * i, 3), 4)), (N, N))
    tkc.store(o, (0, 0), acc)


@pytest.mark.parametrize("m", [12, 17])
def test_an_iteration_that_does_not_exist_promises_nothing(m):
    compared(promised_blocks, m=m)


def promised_one_after_the_other(x, rows, o, depth, m):
    """The same of as many iterations as a launch says, blocks by arrays and by pointers."""
    acc, r, c = tkc.zeros((N, N)), tkc.arange(N), tkc.arange(N)
    for i in tkc.range(0, m):
        at = tkc.multiple_of(tkc.where(i < m, 4 * i, 3), 4)
        acc += tkc.load(x, (0, at), (N, N))
    for i in tkc.range(0, m):
        at = tkc.multiple_of(tkc.where(i < m, 4 * i, 3), 4)
        acc += tkc.load(x.ptr + r[:, None] * x.strides[0] + (at + c)[None, :])
    for i in tkc.range(0, m):
        at = tkc.multiple_of(tkc.where(i < m, 4 * i, 3), 4)
        acc = tkc.dot(tkc.load(x, (at, 0), (N, N)), tkc.load(x, (0, at), (N, N)), acc)
    tkc.store(o, (0, 0), acc)


@pytest.mark.parametrize("m", [1, 4])
def test_the_iteration_behind_the_last_promises_nothing(m):
    compared(promised_one_after_the_other, m=m)


def beside_the_first(x, rows, o, depth, first, end):
    """Rows that are near the first one, whatever its number is."""
    r, c, acc = tkc.arange(N), tkc.arange(N), tkc.zeros((N, N))
    for at in tkc.range(first, end):
        place = (at - first) * N + r
        block = tkc.load(x.ptr + place[:, None] * x.strides[0] + c[None, :])
        acc = tkc.dot(block, block.T, acc)
    tkc.store(o, (0, 0), acc)


@pytest.mark.parametrize("first", [0, 2**27 + 3, 2**31 - 5])
def test_a_difference_of_large_numbers_is_small(first):
    compared(beside_the_first, first=first, end=first + 3)
