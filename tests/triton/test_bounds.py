"""What loops read ahead of what nothing bounds: memory that is there, and no other."""

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl


@triton.jit
def passed_on(x, o, n, steps, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at, total = x + i, tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(steps):
        total = 0.5 * total + tl.load(at, mask=i < n, other=0.0)
        at += stride
    tl.store(o + i, total, mask=i < n)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_no_loop_reads_a_row_behind_its_last(monkeypatch, steps):
    """The simulator knows where the memory of each argument ends."""
    x = np.random.default_rng(0).normal(size=(max(steps, 1), 96)).astype(np.float32)[:steps]
    x = np.ascontiguousarray(x) if steps else np.zeros(1, np.float32)
    o, want = np.zeros(96, np.float32), np.zeros(96, np.float32)
    for row in x if steps else ():
        want = 0.5 * want + row
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    passed_on[(2,)](x, o, 96, steps, 96, BLOCK=64)
    np.testing.assert_allclose(o, want, rtol=1e-6)


@triton.jit
def attention(q, k, v, o, M, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rows, d, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    h = tl.program_id(1)
    x = tl.load(q + (h * M + rows[:, None]) * D + d[None, :])
    largest = tl.full((BM,), -1.0e30, tl.float32)
    total, acc = tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        keys = tl.load(k + (h * N + start + n[:, None]) * D + d[None, :])
        s = tl.dot(x, tl.trans(keys)) * 0.125
        now = tl.maximum(largest, tl.max(s, 1))
        p, fade = tl.exp(s - now[:, None]), tl.exp(largest - now)
        values = tl.load(v + (h * N + start + n[:, None]) * D + d[None, :])
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype.element_ty), values)
        total, largest = total * fade + tl.sum(p, 1), now
    tl.store(o + (h * M + rows[:, None]) * D + d[None, :], acc / total[:, None])


@pytest.mark.parametrize("heads", [1, 3])
def test_no_block_begins_a_program_more_than_there_are(monkeypatch, heads):
    """Each block issues the next program's first dot early; behind the last one there is none, and
    nothing says where the arrays end.
    """
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(heads)
    q, k, v = (rng.normal(size=(heads, n, 64)).astype(np.float16) for n in (256, 192, 192))
    o = np.zeros((heads, 256, 64), np.float32)
    attention[(2, heads)](q, k, v, o, 256, 192, BM=128, BN=64, D=64, num_warps=8)
    s = np.einsum("hmd,hnd->hmn", q.astype(np.float64), k.astype(np.float64)) * 0.125
    p = np.exp(s - s.max(-1, keepdims=True))
    want = np.einsum("hmn,hnd->hmd", p / p.sum(-1, keepdims=True), v.astype(np.float64))
    np.testing.assert_allclose(o, want, atol=3e-3)
    given = attention[(2, heads)](q, k, v, o, 256, 192, BM=128, BN=64, D=64, num_warps=8)
    assert any("first dot is issued before" in x for x in given.compiled_for("sm_90a").decisions)
