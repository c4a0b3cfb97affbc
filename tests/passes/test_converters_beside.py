"""What stands beside operands that a role of its own computes or relays: other loops that read
blocks of the same kind, numbers that warps reduce before the loop, numbers that are loaded in it.
Each once read what nobody had written, waited for ever, or stopped the compiler.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tkc

BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


@pytest.fixture(autouse=True)
def in_simulator(monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")


def numbers(rows: int, columns: int, seed: int, dtype=BF16) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, columns)) / 4
    return values.astype(dtype)


def normed(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).sum(1, keepdims=True) + 1e-6)


@tkc.jit
def two_loops(q, k, v, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Keys that are normed, then others that are not."""
    m = tkc.program_id(0) * BM
    x, total = tkc.load(q, (m, 0), (BM, D)), tkc.zeros((BM,))
    for n in tkc.range(0, k.shape[0], BN):
        y = tkc.load(k, (n, 0), (BN, D)).to(tkc.float32)
        y = (y * tkc.rsqrt(tkc.sum(y * y, axis=1) + 1e-6)[:, None]).to(q.dtype)
        total = total + tkc.sum(tkc.exp(tkc.dot(x, y.T)), axis=1)
    for n in tkc.range(0, v.shape[0], BN):
        total = total + tkc.sum(tkc.exp(tkc.dot(x, tkc.load(v, (n, 0), (BN, D)).T)), axis=1)
    tkc.store(o, (m,), total)


@pytest.mark.parametrize("blocks", [1, 3, 16])
def test_stages_of_another_loop_are_released(blocks):
    q, k, v = numbers(128, 64, 0), numbers(192, 64, 1), numbers(64 * blocks, 64, 2)
    o = np.zeros(128, np.float32)
    two_loops[1](q, k, v, o, BM=128, BN=64, D=64)
    x = q.astype(np.float64)
    want = np.exp(x @ normed(k).T).sum(1) + np.exp(x @ v.astype(np.float64).T).sum(1)
    np.testing.assert_allclose(o, want, rtol=1e-3)


@tkc.jit
def by_rows_and_columns(x, w, u, o, B: tkc.constexpr):
    """Eight bits, of which one operand has to be relaid and the other has not."""
    total, a = tkc.zeros((B,)), tkc.load(x, (0, 0), (B, B))
    for n in tkc.range(0, w.shape[1], B):
        s = tkc.dot(a, tkc.load(w, (0, n), (B, B)))
        total = total + tkc.sum(tkc.maximum(s, 0), axis=1)
    for n in tkc.range(0, u.shape[0], B):
        s = tkc.dot(a, tkc.load(u, (n, 0), (B, B)).T)
        total = total + tkc.sum(tkc.maximum(s, 0), axis=1)
    tkc.store(o, (0,), total)


def test_stages_of_a_loop_without_a_relayout_are_released():
    x, w, u = numbers(128, 128, 0, F8), numbers(128, 384, 1, F8), numbers(128 * 12, 128, 2, F8)
    o = np.zeros(128, np.float32)
    by_rows_and_columns[1](x, w, u, o, B=128)
    x, w, u = (y.astype(np.float64) for y in (x, w, u))
    want = np.maximum(x @ w, 0).sum(1) + np.maximum(x @ u.T, 0).sum(1)
    np.testing.assert_allclose(o, want, rtol=1e-4)


@tkc.jit
def scaled(q, k, v, counter: tkc.pointer, o, KIND: tkc.constexpr):
    m = tkc.program_id(0) * 128
    x, total, acc = tkc.load(q, (m, 0), (128, 64)), tkc.zeros((128,)), tkc.zeros((128, 64))
    c = tkc.sum(x.to(tkc.float32)) * 0.01 if KIND == "reduced" else 1.0
    for n in tkc.range(0, k.shape[0], 64):
        if KIND == "loaded":
            c = (tkc.load(counter) + n // 64).to(tkc.float32)
        y = tkc.load(k, (n, 0), (64, 64)).to(tkc.float32)
        y = y * tkc.rsqrt(tkc.sum(y * y, axis=1) + 1e-6)[:, None] * c
        e = tkc.exp(tkc.dot(x, y.to(q.dtype).T))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(q.dtype), tkc.load(v, (n, 0), (64, 64)), acc)
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


@pytest.mark.parametrize("kind", ["reduced", "loaded", "none"])
def test_numbers_that_operands_are_scaled_by(kind):
    q, k, v = (numbers(n, 64, seed) for seed, n in enumerate((256, 256, 256)))
    o = np.zeros((256, 64), BF16)
    scaled[2](q, k, v, np.ones(1, np.int32), o, KIND=kind)
    for m in (0, 128):
        x = q[m : m + 128].astype(np.float64)
        by_block = 1 + np.arange(256)[:, None] // 64
        c = {"reduced": x.sum() * 0.01, "loaded": by_block, "none": 1.0}[kind]
        e = np.exp(x @ (normed(k) * c).T)
        want = e @ v.astype(np.float64) / e.sum(1, keepdims=True)
        np.testing.assert_allclose(o[m : m + 128].astype(np.float64), want, atol=4e-3)
