"""Loops of two dots between which consumers hand one another elements through shared memory: for a
number that says where a block lies, for a branch, for a loop without a count. Each once waited for
ever, read what nobody had written, or had the producer run the loop.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tkc

BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def in_simulator(monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")


def listed(s, v, table, at, SIZE):
    """Each step asks a table for its block of values."""
    row = tkc.max(tkc.load(table, (at,), (SIZE,)), axis=0)
    return s, tkc.load(v, (row * 64, 0), (64, 64))


def halved_where_large(s, v, table, at, SIZE):
    """A branch asks all elements, and leaves them or computes others."""
    if tkc.max(tkc.max(s, axis=1), axis=0) > 0.75:
        s = s * 0.5
    return s, tkc.load(v, (at * 64, 0), (64, 64))


def halved_until_small(s, v, table, at, SIZE):
    """A loop of which nobody knows how often it runs but who has the elements."""
    while tkc.max(tkc.max(s, axis=1), axis=0) > 0.5:
        s = s * 0.5
    return s, tkc.load(v, (at * 64, 0), (64, 64))


@tkc.jit
def two_dots(q, k, v, table, o, STEP: tkc.constexpr, BM: tkc.constexpr, SIZE: tkc.constexpr):
    m = tkc.program_id(0) * BM
    x, acc = tkc.load(q, (m, 0), (BM, 64)), tkc.zeros((BM, 64))
    for n in tkc.range(0, k.shape[0], 64):
        s = tkc.dot(x, tkc.load(k, (n, 0), (64, 64)).T)
        s, y = STEP(s, v, table, n // 64, SIZE)
        acc = tkc.dot(s.to(q.dtype), y, acc)
    tkc.store(o, (m, 0), acc)


def by_numpy(q, k, v, table, step, size):
    acc = np.zeros((len(q), 64), np.float64)
    for n in range(0, len(k), 64):
        s, row = q.astype(np.float64) @ k[n : n + 64].astype(np.float64).T, n // 64
        if step is listed:
            row = table[row : row + size].max()
        elif step is halved_where_large:
            s = s * 0.5 if s.max() > 0.75 else s
        else:
            while s.max() > 0.5:
                s = s * 0.5
        acc += s.astype(BF16).astype(np.float64) @ v[64 * row : 64 * row + 64].astype(np.float64)
    return acc


@pytest.mark.parametrize("options", [{}, {"num_warps": 4}, {"rotate": True}], ids=str)
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(
    "step, size",
    [(listed, 32), (listed, 256), (halved_where_large, 8), (halved_until_small, 8)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_what_consumers_hand_on_between_dots(step, size, rows, options):
    r = np.random.default_rng(size)
    q, k, v = ((r.standard_normal((256, 64)) / 8).astype(BF16) for _ in range(3))
    k[64:128] *= 3
    table, o = np.zeros(4 + size, np.int32), np.zeros((256, 64), np.float32)
    table[0], table[2], table[size + 2] = 3, 1, 2
    two_dots[256 // rows](q, k, v, table, o, STEP=step, BM=rows, SIZE=size, **options)
    parts = [by_numpy(q[m : m + rows], k, v, table, step, size) for m in range(0, 256, rows)]
    np.testing.assert_allclose(o, np.concatenate(parts), atol=2e-2)
