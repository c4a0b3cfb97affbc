"""Whole kernels: traced, verified, read back from text, run in the simulator against NumPy."""

import numpy as np
import pytest

import tkc
from tests.language import kernels as K
from tests.language.kernels import array, f32, i32, traced
from tkc.ir.text import parse, show
from tkc.ir.verify import verify
from tkc.sim.level0 import run

bf, f, i = tkc.bfloat16, tkc.float32, tkc.int32
CASES = {
    "add": lambda: traced(K.add, array(f), array(f), array(f), i32(16)),
    "matmul": lambda: traced(K.matmul, array(bf, 2), array(bf, 2), array(bf, 2), num_warps=8),
    "matmul wide": lambda: traced(
        K.matmul, array(bf, 2, wide=True), array(bf, 2), array(bf, 2, shape=(4096, None))
    ),
    "attention": lambda: traced(K.attention, *[array(bf, 4)] * 4, f32(), False, 128),
    "attention causal": lambda: traced(K.attention, *[array(bf, 4)] * 4, f32(), True, 64),
    "layer_norm_bwd": lambda: traced(
        K.layer_norm_bwd,
        array(bf, 2),
        array(bf),
        array(bf, 2),
        array(f),
        array(f),
        array(bf, 2),
        array(f, 2),
        array(f, 2),
        1000,
    ),
    "split_k": lambda: traced(K.split_k, array(bf, 2), array(bf, 2), array(f, 2), 4),
    "grouped": lambda: traced(
        K.grouped, array(tkc.int64), array(tkc.uint64), array(tkc.int64), array(i, 2), 8
    ),
    "paged_decode": lambda: traced(
        K.paged_decode,
        array(bf, 3),
        array(bf, 4),
        array(bf, 4),
        array(i, 2),
        array(i),
        array(f, 4),
        array(f, 3),
        f32(),
        128,
        8,
        16,
    ),
    "mamba2": lambda: traced(
        K.mamba2, array(bf, 4), array(bf, 3), array(f), array(bf, 3), array(bf, 3), array(bf, 4)
    ),
    "histogram": lambda: traced(K.histogram, array(i), array(i), 256),
    "cross_entropy": lambda: traced(K.cross_entropy, array(bf, 2), array(i), array(f), 131072),
    "window_sinks": lambda: traced(K.window_sinks, *[array(bf, 4)] * 4, array(f), f32(), 256, 64),
}


@pytest.mark.parametrize("name", CASES)
def test_verified_and_round_trips(name):
    module = CASES[name]()
    verify(module)
    assert show(parse(show(module))) == show(module)
    located = show(module, locations=True)
    assert show(parse(located), locations=True) == located and "kernels.py" in located


def test_attributes():
    module = CASES["matmul"]()
    kernel = module.body.block.first_op
    assert (
        kernel.warps == 8
        and kernel.level == 0
        and [n.data for n in kernel.attributes["argument_names"]] == ["a", "b", "c"]
    )


R = np.random.default_rng(0)


def floats(*shape):
    return R.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n", [1, 7, 256, 257, 1000])
def test_add(n):
    x, y, out = floats(n), floats(n), np.zeros(n, np.float32)
    run(
        traced(K.add, array(f), array(f), array(f), i32(), BLOCK=256),
        [x, y, out, n],
        (-(-n // 256), 1, 1),
    )
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("M, N, K_", [(1, 1, 1), (33, 17, 65), (64, 48, 0), (31, 33, 32)])
def test_matmul(M, N, K_):
    a, b, c = floats(M, K_), floats(K_, N), np.full((M, N), 9, np.float32)
    run(
        traced(K.matmul, *[array(f, 2, strides=(None, None))] * 3, BM=32, BN=16, BK=32),
        [a, b, c],
        (-(-M // 32), -(-N // 16), 1),
    )
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Sq, Sk", [(40, 40), (17, 50)])
def test_attention(causal, Sq, Sk):
    q, k, v = floats(2, 2, Sq, 16), floats(2, 2, Sk, 16), floats(2, 2, Sk, 16)
    out = np.zeros_like(q)
    run(
        traced(K.attention, *[array(f, 4)] * 4, f32(), causal, 16, BM=16, BN=16),
        [q, k, v, out, 0.25],
        (-(-Sq // 16), 2, 2),
    )
    s = q @ k.swapaxes(-1, -2) * 0.25
    if causal:
        s = np.where(np.arange(Sq)[:, None] + Sk - Sq >= np.arange(Sk), s, -np.inf)
    np.testing.assert_allclose(out, softmax(s) @ v, rtol=1e-4, atol=1e-5)


def test_layer_norm_bwd():
    M, N, P = 13, 37, 2
    x, w, dy = floats(M, N), floats(N), floats(M, N)
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    dx, pw, pb = np.zeros_like(x), np.zeros((P, N), np.float32), np.zeros((P, N), np.float32)
    run(
        traced(
            K.layer_norm_bwd,
            *[
                array(f, 2),
                array(f),
                array(f, 2),
                array(f),
                array(f),
                array(f, 2),
                array(f, 2),
                array(f, 2),
            ],
            40,
        ),
        [x, w, dy, mean, rstd, dx, pw, pb],
        (P, 1, 1),
    )
    xh = (x - mean[:, None]) * rstd[:, None]
    g = dy * w
    want = (g - g.mean(1, keepdims=True) - xh * (xh * g).mean(1, keepdims=True)) * rstd[:, None]
    np.testing.assert_allclose(dx, want, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(pw.sum(0), (dy * xh).sum(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(pb.sum(0), dy.sum(0), rtol=1e-3, atol=1e-4)


def test_split_k():
    a, b = floats(20, 100), floats(100, 24)
    c = np.zeros((20, 24), np.float32)
    run(
        traced(K.split_k, array(f, 2), array(f, 2), array(f, 2), 3, BM=16, BN=16, BK=16),
        [a, b, c],
        (2, 2, 3),
    )
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_grouped():
    sizes = np.array([[20, 17, 9], [1, 40, 33], [16, 16, 16]], np.int32)
    As, Bs, Cs = (
        [np.ascontiguousarray(floats(s[p], s[r])) for s in sizes]
        for p, r in ((0, 2), (2, 1), (0, 1))
    )
    pointers = [np.array([x.ctypes.data for x in xs], np.int64) for xs in (As, Bs, Cs)]
    module = traced(
        K.grouped, *[array(tkc.int64)] * 3, array(i, 2), 3, DTYPE=f, BM=16, BN=16, BK=16
    )
    run(module, [*pointers, sizes], (12, 1, 1), buffers=[*As, *Bs, *Cs])
    for a, b, c in zip(As, Bs, Cs, strict=False):
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_paged_decode():
    B, H, R_, D, PAGE, pages = 2, 2, 4, 16, 4, 12
    q, kc, vc = floats(B, H * R_, D), floats(pages, H, PAGE, D), floats(pages, H, PAGE, D)
    table, lengths = (
        np.stack([R.permutation(pages)[:8] for _ in range(B)]).astype(np.int32),
        np.array([30, 21], np.int32),
    )
    part, lse = np.zeros((B, H * R_, 2, D), np.float32), np.zeros((B, H * R_, 2), np.float32)
    module = traced(
        K.paged_decode,
        array(f, 3),
        array(f, 4),
        array(f, 4),
        array(i, 2),
        array(i),
        array(f, 4),
        array(f, 3),
        f32(),
        D,
        R_,
        PAGE,
        BN=8,
        SPAN=16,
    )
    run(module, [q, kc, vc, table, lengths, part, lse, 0.25 * K.LOG2E], (B, H, 2))
    weights = np.exp2(lse - lse.max(-1, keepdims=True))
    got = (part * (weights / weights.sum(-1, keepdims=True))[..., None]).sum(2)
    for b in range(B):
        for h in range(H):
            k, v = (x[table[b], h].reshape(-1, D)[: lengths[b]] for x in (kc, vc))
            np.testing.assert_allclose(
                got[b, h * R_ : (h + 1) * R_],
                softmax(q[b, h * R_ : (h + 1) * R_] @ k.T * 0.25) @ v,
                rtol=1e-4,
                atol=1e-5,
            )


def test_mamba2():
    B, T, H, P, N, L = 1, 20, 2, 8, 8, 8
    x, dt, A, Bm, Cm = (
        floats(B, T, H, P),
        np.abs(floats(B, T, H)),
        -np.abs(floats(H)),
        floats(B, T, N),
        floats(B, T, N),
    )
    y = np.zeros_like(x)
    run(
        traced(
            K.mamba2,
            array(f, 4),
            array(f, 3),
            array(f),
            array(f, 3),
            array(f, 3),
            array(f, 4),
            L=L,
            N=N,
            P=P,
        ),
        [x, dt, A, Bm, Cm, y],
        (B, H, 1),
    )
    want = np.zeros_like(x)
    for h in range(H):
        state = np.zeros((N, P))
        for t in range(T):
            state = state * np.exp(dt[0, t, h] * A[h]) + dt[0, t, h] * np.outer(
                Bm[0, t], x[0, t, h]
            )
            want[0, t, h] = Cm[0, t] @ state
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3)


def test_histogram():
    x, out = R.integers(-2, 12, 1000).astype(np.int32), np.zeros(10, np.int32)
    run(traced(K.histogram, array(i), array(i), 10, BLOCK=256), [x, out], (4, 1, 1))
    np.testing.assert_array_equal(out, np.bincount(x[(x >= 0) & (x < 10)], minlength=10))


def test_cross_entropy():
    x, t = floats(3, 50), np.array([4, -1, 49], np.int32)
    logits, loss = x.copy(), np.zeros(3, np.float32)
    run(traced(K.cross_entropy, array(f, 2), array(i), array(f), 64), [logits, t, loss], (3, 1, 1))
    p = softmax(x)
    np.testing.assert_allclose(loss, np.where(t >= 0, -np.log(p[np.arange(3), t]), 0), rtol=1e-4)
    np.testing.assert_allclose(
        logits, (p - (np.arange(50) == t[:, None])) * (t >= 0)[:, None], rtol=1e-4, atol=1e-6
    )


def test_window_sinks():
    S, D, W = 45, 16, 20
    q, k, v, sinks = floats(1, 2, S, D), floats(1, 2, S, D), floats(1, 2, S, D), floats(2)
    out = np.zeros_like(q)
    run(
        traced(K.window_sinks, *[array(f, 4)] * 4, array(f), f32(), W, D, BM=16, BN=16),
        [q, k, v, out, sinks * np.float32(K.LOG2E), 0.25 * K.LOG2E],
        (3, 2, 1),
    )
    s = q @ k.swapaxes(-1, -2) * 0.25
    row, col = np.arange(S)[:, None], np.arange(S)
    s = np.where((col <= row) & (col > row - W), s, -np.inf)
    s = np.concatenate([np.broadcast_to(sinks[None, :, None, None], (1, 2, S, 1)), s], -1)
    np.testing.assert_allclose(out, softmax(s)[..., 1:] @ v, rtol=1e-4, atol=1e-5)
