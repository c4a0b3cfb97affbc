"""Attention with masks and biases that nobody prepared for: each is a Python expression in the
plain kernel, and what the passes do for causal attention they do for it: two dots in turns, a
stabilizer that is brought up to date where needed, masks where they cut. Right for Hopper with
threads, under the happens-before check.
"""

from math import e, inf, log2

import numpy as np
import pytest

import tkc
from tests.kernels.checks import double, numbers
from tkc.codegen.ptx.ptxas import find

LOG2E = log2(e)


def prefix(s, rows, cols, extra, slope):
    return tkc.where((cols[None, :] < 70) | (rows[:, None] >= cols[None, :]), s, -inf)


def window(s, rows, cols, extra, slope):
    return tkc.where(
        (rows[:, None] >= cols[None, :]) & (rows[:, None] - cols[None, :] < 100), s, -inf
    )


def both_sides(s, rows, cols, extra, slope):
    return tkc.where(tkc.abs(rows[:, None] - cols[None, :]) <= 50, s, -inf)


def alibi(s, rows, cols, extra, slope):
    return tkc.where(
        rows[:, None] >= cols[None, :],
        s - slope * (rows[:, None] - cols[None, :]).to(tkc.float32),
        -inf,
    )


def softcap(s, rows, cols, extra, slope):
    return 20 * tkc.tanh(s * (1 / 20))


def strided(s, rows, cols, extra, slope):
    return tkc.where(
        ((rows[:, None] - cols[None, :]) % 4 == 0) & (rows[:, None] >= cols[None, :]), s, -inf
    )


def of_documents(s, rows, cols, extra, slope):
    mine, other = (
        tkc.load(extra.ptr + rows, mask=rows < extra.shape[0], other=-1),
        tkc.load(extra.ptr + cols, mask=cols < extra.shape[0], other=-2),
    )
    return tkc.where(mine[:, None] == other[None, :], s, -inf)


SEEN = {
    prefix: lambda r, c, d: (c < 70) | (r >= c),
    window: lambda r, c, d: (r >= c) & (r - c < 100),
    both_sides: lambda r, c, d: abs(r - c) <= 50,
    alibi: lambda r, c, d: r >= c,
    softcap: lambda r, c, d: c >= 0,
    strided: lambda r, c, d: ((r - c) % 4 == 0) & (r >= c),
    of_documents: lambda r, c, d: d[r] == d[c],
}
# masks of affine indices: computed where they cut a block
CUT = {
    prefix,
    window,
    both_sides,
    alibi,
}


@tkc.jit
def attention(
    q,
    k,
    v,
    o,
    extra,
    scale,
    slope,
    MASK: tkc.constexpr,
    D: tkc.constexpr,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 128,
):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    q, k, v, o = q[b, h], k[b, h], v[b, h], o[b, h]
    rows, qi = m + tkc.arange(BM), tkc.load(q, (m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        cols = n + tkc.arange(BN)
        s = MASK(tkc.dot(qi, tkc.load(k, (n, 0), (BN, D)).T) * scale, rows, cols, extra, slope)
        s = tkc.where(cols[None, :] < k.shape[0], s, -inf) * LOG2E
        new = tkc.maximum(top, tkc.max(s, axis=1))
        base = tkc.where(new == -inf, 0, new)
        p, shrink = tkc.exp2(s - base[:, None]), tkc.exp2(top - base)
        total = total * shrink + tkc.sum(p, axis=1)
        acc = tkc.dot(p.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc * shrink[:, None])
        top = new
    tkc.store(o, (m, 0), (acc * tkc.where(total > 0, 1 / total, 0)[:, None]).to(o.dtype))


@pytest.mark.parametrize("mask", SEEN, ids=lambda f: f.__name__)
def test_masks(mask, monkeypatch):
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    for n in (130, 300):
        q, k, v = (numbers((1, 2, n, 64), "bfloat16", i) for i in range(3))
        ids = np.sort(np.random.default_rng(0).integers(0, 4, n)).astype(np.int32)
        o, slope = np.full_like(q, np.nan), 0.125
        attention[tkc.cdiv(n, 128), 2, 1](q, k, v, o, ids, 0.25, slope, MASK=mask, D=64)
        r, c = np.arange(n)[:, None], np.arange(n)[None, :]
        s = double(q) @ double(k).swapaxes(-1, -2) * 0.25
        if mask is alibi:
            s = s - slope * (r - c)
        if mask is softcap:
            s = 20 * np.tanh(s / 20)
        s = np.where(SEEN[mask](r, c, ids), s, -inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        want = p / p.sum(-1, keepdims=True) @ double(v)
        assert np.abs(double(o) - want).max() <= 0.02 * np.abs(want).max()


@pytest.mark.parametrize("mask", SEEN, ids=lambda f: f.__name__)
def test_what_the_passes_find(mask):
    heads = "bf16[1, 8, 4096, 64]"
    compiled = attention.compile(
        heads, heads, heads, heads, "i32[4096]", "f32", "f32", MASK=mask, D=64, target="sm_90a"
    )
    said = "\n".join(compiled.decisions)
    assert (
        "wgmma" in compiled.ptx
        and "rotate-loops: a dot" in said
        and "relax-stabilizers: the running maximum" in said
    )
    assert "split-masked-loops: the mask" in said or mask not in CUT
    if find("ptxas"):
        assert compiled.resources.clean, compiled.resources.log
