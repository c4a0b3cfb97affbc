"""Loads of loops that run one after the other share the stages of one ring: a product and what is
added to it behind its loop, the taps of a convolution. Each kernel runs
compiled, with its threads, under the happens-before check, and as PTX.

All numbers are small integers, so that sums are exact and every result has one right value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import tkc
from tests.passes.test_loaded_by_consumers import numbers
from tests.runtime.test_arrays_without_maps import failures

M, N, K = 128, 64, 64
ROWS, COLUMNS, DEPTH = 200, 128, 192


@tkc.jit
def with_more(x, w, t, b, y):
    """x W + t B: one step more, of other arrays."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    acc = tkc.zeros((M, N))
    for k in range(0, x.shape[1], K):
        acc = tkc.dot(tkc.load(x, (m, k), (M, K)), tkc.load(w, (k, n), (K, N)), acc)
    acc = tkc.dot(tkc.load(t, (m, 0), (M, K)), tkc.load(b, (0, n), (K, N)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


@tkc.jit
def with_less(x, w, t, b, y):
    """(x W) B: behind the loop a stage has a right operand alone."""
    m = tkc.program_id(0) * M
    acc = tkc.zeros((M, N))
    for k in range(0, x.shape[1], K):
        acc = tkc.dot(tkc.load(x, (m, k), (M, K)), tkc.load(w, (k, 0), (K, N)), acc)
    right = tkc.load(b, (0, 0), (N, N))
    tkc.store(y, (m, 0), tkc.dot(acc.to(x.dtype), right).to(y.dtype))


@tkc.jit
def with_more_before(x, w, t, b, y):
    """The same, but what is read behind the loop is loaded before it: it has a stage of its own."""
    m = tkc.program_id(0) * M
    right = tkc.load(b, (0, 0), (N, N))
    acc = tkc.zeros((M, N))
    for k in range(0, x.shape[1], K):
        acc = tkc.dot(tkc.load(x, (m, k), (M, K)), tkc.load(w, (k, 0), (K, N)), acc)
    tkc.store(y, (m, 0), tkc.dot(acc.to(x.dtype), right).to(y.dtype))


@tkc.jit
def taps(x, w, t, b, y):
    """Three loops, one behind the other; rows outside are zeros."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    acc = tkc.zeros((M, N))
    for tap in range(3):
        for k in range(0, x.shape[1], K):
            right = tkc.load(w, (tap * x.shape[1] + k, n), (K, N))
            acc = tkc.dot(tkc.load(x, (m + tap - 1, k), (M, K)), right, acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


@tkc.jit
def layers(x, w, t, b, y):
    """Two products, the middle a part at a time: a loop in a loop, and a dot behind it there, which
    still reads its stage in the next iteration.
    """
    m = tkc.program_id(0) * M
    acc = tkc.zeros((M, N))
    for j in range(0, w.shape[1], N):
        hidden = tkc.zeros((M, N))
        for k in range(0, x.shape[1], K):
            hidden = tkc.dot(tkc.load(x, (m, k), (M, K)), tkc.load(w, (k, j), (K, N)), hidden)
        left = tkc.maximum(hidden, 0.0).to(x.dtype)
        acc = tkc.dot(left, tkc.load(b, (j, 0), (N, N)), acc)
    tkc.store(y, (m, 0), acc.to(y.dtype))


@tkc.jit
def with_more_between(x, w, t, b, y):
    """x W + t B + x W: a step between two loops, of which the second needs its stage again."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    acc = tkc.zeros((M, N))
    for k in range(0, x.shape[1], K):
        acc = tkc.dot(tkc.load(x, (m, k), (M, K)), tkc.load(w, (k, n), (K, N)), acc)
    acc = tkc.dot(tkc.load(t, (m, 0), (M, K)), tkc.load(b, (0, n), (K, N)), acc)
    for k in range(0, x.shape[1], K):
        acc = tkc.dot(tkc.load(x, (m, k), (M, K)), tkc.load(w, (k, n), (K, N)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


@dataclass(frozen=True)
class Case:
    """A kernel; rows of w and of b; what it computes; columns of programs; rings."""

    kernel: tkc.JitFunction
    heights: tuple[int, int]
    want: Callable[..., np.ndarray]
    across: int = COLUMNS // N
    rings: int = 1

    def arguments(self) -> tuple[list[np.ndarray], np.ndarray]:
        x, w = numbers(ROWS, DEPTH), numbers(self.heights[0], COLUMNS)
        t, b = numbers(ROWS, K), numbers(self.heights[1], COLUMNS)
        y = np.full((ROWS, self.across * N), 9, np.float32)
        return [x, w, t, b, y], self.want(*(v.astype(np.int64) for v in (x, w, t, b)))

    @property
    def grid(self) -> tuple[int, int]:
        return tkc.cdiv(ROWS, M), self.across


def _convolved(x, w, t, b) -> np.ndarray:
    padded = np.pad(x, ((1, 1), (0, 0)))
    return sum(padded[i : i + ROWS] @ w[i * DEPTH : (i + 1) * DEPTH] for i in range(3))


def _chained(x, w, t, b) -> np.ndarray:
    return (x @ w[:, :N]) @ b[:N, :N]


CASES = {
    "with more": Case(with_more, (DEPTH, K), lambda x, w, t, b: x @ w + t @ b),
    "with more between": Case(
        with_more_between, (DEPTH, K), lambda x, w, t, b: 2 * (x @ w) + t @ b
    ),
    "with less": Case(with_less, (DEPTH, N), _chained, 1),
    "with more before": Case(with_more_before, (DEPTH, N), _chained, 1, 2),
    "taps": Case(taps, (3 * DEPTH, K), _convolved),
    "layers": Case(
        layers, (DEPTH, COLUMNS), lambda x, w, t, b: np.maximum(x @ w, 0) @ b[:, :N], 1, 2
    ),
}
EACH = pytest.mark.parametrize("name", CASES)


@EACH
@pytest.mark.parametrize("stages", (None, 2))
def test_results(name, stages, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    given, wanted = CASES[name].arguments()
    CASES[name].kernel[CASES[name].grid](*given, num_stages=stages)
    np.testing.assert_array_equal(given[-1], wanted)


@EACH
def test_the_text_computes_the_same(name):
    given, _ = CASES[name].arguments()
    assert not failures(CASES[name].kernel, *given, target="sm_90a", grid=(*CASES[name].grid, 1))


@EACH
def test_loops_share_a_ring(name):
    given, _ = CASES[name].arguments()
    compiled = CASES[name].kernel.compile(*given, target="sm_90a")
    assert "wgmma.mma_async" in compiled.ptx
    assert sum(d.startswith("plan: ring ") for d in compiled.decisions) == CASES[name].rings


@tkc.jit
def with_more_first(x, w, b, y):
    """A step before the loop, and beside it one of other blocks: no ring has room for two."""
    m = tkc.program_id(0) * M
    acc = tkc.dot(tkc.load(x, (m, 0), (M, 2 * K)), tkc.load(w, (0, 0), (2 * K, 4 * N)))
    acc += tkc.maximum(tkc.dot(tkc.load(x, (m, 0), (M, K)), tkc.load(b, (0, 0), (K, 4 * N))), 0)
    for k in range(0, x.shape[1], 2 * K):
        acc = tkc.dot(tkc.load(x, (m, k), (M, 2 * K)), tkc.load(w, (k, 0), (2 * K, 4 * N)), acc)
    tkc.store(y, (m, 0), acc)


def test_a_dot_that_reads_a_ring_of_one_stage_ends_in_its_iteration():
    given = numbers(M, DEPTH), numbers(DEPTH, 4 * N), numbers(K, 4 * N)
    given = *given, np.zeros((M, 4 * N), np.float32)
    compiled = with_more_first.compile(*given, target="sm_90a")
    stages = [d.split()[3] for d in compiled.decisions if d.startswith("plan: ring ")]
    assert stages == ["1", "1"]
    assert not failures(with_more_first, *given, target="sm_90a")
