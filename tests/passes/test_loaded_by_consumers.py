"""Operands that no role can copy: the consumers load them themselves, in the order of the program,
and wgmma multiplies them. Each kernel runs compiled, with its threads, under the happens-before
check.

All numbers are small integers, so that sums are exact and every result has one right value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import tkc
from tests.runtime.test_arrays_without_maps import failures

M, N, K = 128, 64, 32
ROWS, COLUMNS, DEPTH = 150, 72, 96


@tkc.jit
def gathered_pointers(a, packed, c):
    """A right operand that is computed from what pointers load, eight rows in 32 bits."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    columns, inner = n + tkc.arange(N), tkc.arange(K)
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        at = packed.ptr + ((k + inner) // 8)[:, None] * packed.strides[0] + columns[None, :]
        words = tkc.load(at, mask=(columns < c.shape[1])[None, :])
        w = ((words >> (inner % 8 * 4)[:, None]) & 15) - 8
        acc = tkc.dot(tkc.load(a, (m, k), (M, K)), w.to(a.dtype), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def at_odd_elements(a, b, c):
    """Rows that start at odd elements, on the right side."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        acc = tkc.dot(tkc.load(a, (m, k), (M, K)), tkc.load(b, (k, n), (K, N)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def filled(a, b, c):
    """A block that is filled with ones where its mask says no."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    inside = (n + tkc.arange(N) < b.shape[1] - 3)[None, :]
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        right = tkc.load(b, (k, n), (K, N), mask=inside, other=1.0)
        acc = tkc.dot(tkc.load(a, (m, k), (M, K)), right, acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def written_before(x, w, steps):
    """An operand lies where the program has written."""
    m = tkc.program_id(0) * M
    for _ in range(steps):
        block = tkc.load(x, (m, 0), (M, 64))
        right = tkc.load(w, (0, 0), (64, 64))
        tkc.store(x, (m, 0), tkc.dot(block, right).to(x.dtype))


@tkc.jit
def all_written_before(x, w, steps):
    """Both operands lie where the program has written: nothing is left for a ring."""
    m, n = tkc.program_id(0) * M, tkc.program_id(0) * 64
    for _ in range(steps):
        block = tkc.load(x, (m, 0), (M, 64))
        right = tkc.load(w, (n, 0), (64, 64))
        tkc.store(x, (m, 0), tkc.dot(block, right).to(x.dtype))
        tkc.store(w, (n, 0), right)


@tkc.jit
def two_sums(a, b, c, d):
    """Two sums go round a loop, one of a computed operand."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    plain, scaled = tkc.zeros((M, N)), tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        plain = tkc.dot(tkc.load(a, (m, k), (M, K)), tkc.load(b, (k, n), (K, N)), plain)
        left = tkc.maximum(tkc.load(a, (m, k), (M, K)), 0)
        scaled = tkc.dot(left, tkc.load(b, (k, n), (K, N)) * 2, scaled)
    tkc.store(c, (m, n), plain.to(c.dtype))
    tkc.store(d, (m, n), scaled.to(d.dtype))


@tkc.jit
def eight_bits(a, b, c):
    """A right operand of 8 bits that is computed: wgmma reads it K-major alone."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    acc = tkc.zeros((M, N), tkc.int32)
    for k in range(0, a.shape[1], K):
        right = -tkc.load(b, (k, n), (K, N))
        left = -tkc.load(a, (m, k), (M, K))
        acc = tkc.dot(left, right, acc)
    tkc.store(c, (m, n), acc)


@tkc.jit
def of_views(a, b, c):
    """A small block, fetched an iteration early, beside a view that the loop makes."""
    acc = tkc.zeros((M, 16))
    for s in range(a.shape[0]):
        right = tkc.load(b, (s * K, 0), (K, 16), other=1.0, mask=(tkc.arange(16) < 9)[None, :])
        acc = tkc.dot(tkc.load(a[s], (0, 0), (M, K)), right, acc) * b[s, 0]
    tkc.store(c, (0, 0), acc)


@dataclass(frozen=True)
class Case:
    """A kernel; its arguments, which come with what they must be after the launch."""

    kernel: tkc.JitFunction
    data: Callable[[], list[tuple[object, np.ndarray | None]]]
    grid: tuple[int, ...]


def numbers(*shape: int, dtype: type = np.float16, skip: int = 0) -> np.ndarray:
    """Small integers; skip: elements that stand before each row."""
    rng = np.random.default_rng(sum(shape))
    whole = rng.integers(-1, 2, (*shape[:-1], shape[-1] + skip)).astype(dtype)
    return whole[..., skip:]


GRID = (tkc.cdiv(ROWS, M), tkc.cdiv(COLUMNS, N))


def product(a: np.ndarray, b: np.ndarray, dtype: type = np.float16) -> np.ndarray:
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(dtype)


def words() -> list:
    a, four = numbers(ROWS, DEPTH), np.random.default_rng(0).integers(0, 16, (DEPTH, COLUMNS))
    packed = sum(four[i::8] << (4 * i) for i in range(8)).astype(np.uint32).view(np.int32)
    c = np.full((ROWS, COLUMNS), 9, np.float16)
    return [(a, None), (packed, None), (c, product(a, four - 8))]


def odd() -> list:
    a, b = numbers(ROWS, DEPTH), numbers(DEPTH, COLUMNS, skip=3)
    return [(a, None), (b, None), (np.full((ROWS, COLUMNS), 9, np.float16), product(a, b))]


def ones() -> list:
    a, b = numbers(ROWS, DEPTH), numbers(DEPTH, COLUMNS)
    known = b.copy()
    known[:, -3:] = 1
    return [(a, None), (b, None), (np.full((ROWS, COLUMNS), 9, np.float16), product(a, known))]


def in_place() -> list:
    x, w = numbers(2 * M, 64), np.roll(np.eye(64, dtype=np.float16), 3, 1)
    return [(x, np.roll(x, 9, 1)), (w, None), (3, None)]


def both_in_place() -> list:
    x, w = numbers(2 * M, 64), np.tile(np.roll(np.eye(64, dtype=np.float16), 3, 1), (2, 1))
    return [(x, np.roll(x, 9, 1)), (w, w.copy()), (3, None)]


def sums() -> list:
    a, b = numbers(ROWS, DEPTH), numbers(DEPTH, COLUMNS)
    c, d = (np.full((ROWS, COLUMNS), 9, np.float16) for _ in range(2))
    return [(a, None), (b, None), (c, product(a, b)), (d, product(np.maximum(a, 0), b * 2))]


def bytes_() -> list:
    a, b = numbers(ROWS, DEPTH, dtype=np.int8), numbers(DEPTH, 80, dtype=np.int8)
    c = np.full((ROWS, 80), 9, np.int32)
    return [(a, None), (b, None), (c, product(a, b, np.int32))]


def views() -> list:
    a, b = numbers(3, M, K), numbers(3 * K, 16)
    known, want = b.copy(), np.zeros((M, 16))
    known[:, 9:] = 1
    for s in range(3):
        want = (want + a[s].astype(np.float64) @ known[s * K : s * K + K]) * float(b[s, 0])
    return [(a, None), (b, None), (np.full((M, 16), 9, np.float32), want)]


CASES = {
    "gathered pointers": Case(gathered_pointers, words, GRID),
    "at odd elements": Case(at_odd_elements, odd, GRID),
    "filled": Case(filled, ones, GRID),
    "written before": Case(written_before, in_place, (2,)),
    "all written before": Case(all_written_before, both_in_place, (2,)),
    "two sums": Case(two_sums, sums, GRID),
    "eight bits": Case(eight_bits, bytes_, GRID),
    "of views": Case(of_views, views, (1,)),
}
EACH = pytest.mark.parametrize("name", CASES)


@EACH
def test_results(name, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    case = CASES[name]
    made = case.data()
    case.kernel[case.grid](*(given for given, _ in made))
    for given, wanted in made:
        if wanted is not None:
            assert np.array_equal(given, wanted)


@EACH
def test_the_text_computes_the_same(name):
    """No register is written that a dot under way still reads."""
    case = CASES[name]
    grid = (*case.grid, 1, 1)[:3]
    given = (x for x, _ in case.data())
    assert not failures(case.kernel, *given, target="sm_90a", grid=grid)


@EACH
def test_wgmma_without_a_spill(name):
    case = CASES[name]
    compiled = case.kernel.compile(*(given for given, _ in case.data()), target="sm_90a")
    assert "wgmma.mma_async" in compiled.ptx
    assert not compiled.resources.spill_stores


@pytest.mark.gpu
@EACH
def test_on_a_gpu(name):
    torch = pytest.importorskip("torch")
    case = CASES[name]
    made = case.data()
    given = [torch.from_numpy(np.array(x)).cuda() if np.ndim(x) else x for x, _ in made]
    case.kernel[case.grid](*given)
    for got, (_, wanted) in zip(given, made, strict=True):
        if wanted is not None:
            assert np.array_equal(got.cpu().numpy(), wanted)


def test_nothing_to_copy():
    """Where the consumers load all, they multiply it by wgmma all the same."""
    a, b = numbers(ROWS, DEPTH, skip=1), numbers(DEPTH, COLUMNS, skip=3)
    c = np.empty((ROWS, COLUMNS), np.float16)
    compiled = at_odd_elements.compile(a, b, c, target="sm_90a")
    assert sum("the consumers load" in line for line in compiled.decisions) == 2
    assert "wgmma.mma_async" in compiled.ptx
    assert not failures(at_odd_elements, a, b, c, target="sm_90a", grid=(*GRID, 1))


def read_twice(x, y, o, p):
    acc, other = tkc.zeros((128, 24)), tkc.zeros((128, 24))
    for k in tkc.range(0, x.shape[1], 32):
        rows = tkc.load(x, (0, k), (128, 32))
        acc = tkc.dot(rows, tkc.load(y, (k, 0), (32, 24)), acc)
        other = tkc.dot(rows, tkc.load(y, (k, 0), (32, 24)), other)
    tkc.store(o, (0, 0), acc)
    tkc.store(p, (0, 0), other)


def test_a_block_is_written_again_when_both_warpgroups_have_read_it(monkeypatch):
    """A barrier between a dot and its wait orders nothing: each warpgroup waits for its own dots.
    Found by random kernel 280.
    """
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, s).astype(np.float16) for s in ((128, 160), (160, 24)))
    o, p = np.zeros((2, 128, 24), np.float32)
    tkc.jit(read_twice)[1](x, y, o, p, num_warps=8)
    np.testing.assert_array_equal(o, x.astype(np.float32) @ y.astype(np.float32))
    np.testing.assert_array_equal(p, o)
