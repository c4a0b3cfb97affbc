"""Kernels whose loops the passes pipeline, as users write them: `programs` launches them; tests
compile them too.
"""

from math import e, inf, log2
from typing import Any

import tkc
from tkc.language.arrays import Array
from tkc.language.values import Scalar


def matmul(
    a: Array,
    b: Array,
    c: Array,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    RELU: tkc.constexpr = False,
) -> None:
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    if RELU:
        acc = tkc.maximum(acc, 0)
    tkc.store(c, (m, n), acc.to(c.dtype))


def matmul_nt(
    a: Array, b: Array, c: Array, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr
) -> None:
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (n, k), (BN, BK)).T, acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


def by_cosines(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    D: tkc.constexpr,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 64,
) -> None:
    """Attention to normed keys; q, k, v, o: arrays [rows, D], rows of k and v a multiple of BN."""
    m = tkc.program_id(0) * BM
    x, total, acc = tkc.load(q, (m, 0), (BM, D)), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        y = tkc.load(k, (n, 0), (BN, D)).to(tkc.float32)
        y = y * tkc.rsqrt(tkc.sum(y * y, axis=1) + 1e-6)[:, None]
        e = tkc.exp(tkc.dot(x, y.to(k.dtype).T))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc)
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


def attention(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    scale: Scalar,
    CAUSAL: tkc.constexpr,
    D: tkc.constexpr,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 128,
) -> None:
    """q, k, v, o: arrays [batch, heads, rows, D]; `Any`, because what an index gives may be one
    element.
    """
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    q, k, v, o = q[b, h], k[b, h], v[b, h], o[b, h]
    c, shift = scale * log2(e), k.shape[0] - q.shape[0]
    rows, qi = m + tkc.arange(BM) + shift, tkc.load(q, (m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, tkc.minimum(k.shape[0], m + BM + shift) if CAUSAL else k.shape[0], BN):
        cols = n + tkc.arange(BN)
        keep = cols[None, :] < k.shape[0]
        if CAUSAL:
            keep = keep & (rows[:, None] >= cols[None, :])
        s = tkc.where(keep, tkc.dot(qi, tkc.load(k, (n, 0), (BN, D)).T), -inf)
        new = tkc.maximum(top, tkc.max(s, axis=1) * c)
        base = tkc.where(new == -inf, 0, new)
        p, shrink = tkc.exp2(s * c - base[:, None]), tkc.exp2(top - base)
        total = total * shrink + tkc.sum(p, axis=1)
        acc = tkc.dot(p.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc * shrink[:, None])
        top = new
    tkc.store(o, (m, 0), tkc.where(total[:, None] > 0, acc / total[:, None], 0).to(o.dtype))


def dequantized(
    x: Array,
    w: Array,
    s: Array,
    o: Array,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
) -> None:
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, scales = tkc.zeros((BM, BN)), tkc.load(s, (n,), (BN,))
    for k in tkc.range(0, x.shape[1], BK):
        acc = tkc.dot(
            tkc.load(x, (m, k), (BM, BK)),
            tkc.load(w, (k, n), (BK, BN)).to(tkc.bfloat16) * scales[None, :],
            acc,
        )
    tkc.store(o, (m, n), acc)
