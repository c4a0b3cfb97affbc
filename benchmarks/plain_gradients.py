"""Causal attention's backward as users write it, with no schedule in the program: in two kernels,
and in one whose programs add to dQ. After FlashAttention-2 (arXiv 2307.08691); LSE in powers of
two.
"""

from math import log

import tkc

LOG2E = 1 / log(2)


@tkc.jit
def gradients_of_keys(
    q,
    k,
    v,
    do,
    lse,
    delta,
    dk,
    dv,
    scale,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    D: tkc.constexpr,
):
    """Causal attention's backward, the half that goes over queries: dK, dV."""
    n, head = tkc.program_id(0) * BN, tkc.program_id(1)
    kt, vt = tkc.load(k, (head, n, 0), (None, BN, D)), tkc.load(v, (head, n, 0), (None, BN, D))
    dkt, dvt = tkc.zeros((BN, D)), tkc.zeros((BN, D))
    rn = n + tkc.arange(0, BN)
    for m in range(n // BM * BM, q.shape[1], BM):
        qt = tkc.load(q, (head, m, 0), (None, BM, D))
        dot = tkc.load(do, (head, m, 0), (None, BM, D))
        rm = m + tkc.arange(0, BM)
        s = tkc.dot(kt, qt.T) * (scale * LOG2E)
        keep = (rm[None, :] >= rn[:, None]) & (rm < q.shape[1])[None, :]
        p = tkc.where(keep, tkc.exp2(s - tkc.load(lse, (head, m), (None, BM))[None, :]), 0.0)
        dvt = tkc.dot(p.to(qt.dtype), dot, dvt)
        ds = p * (tkc.dot(vt, dot.T) - tkc.load(delta, (head, m), (None, BM))[None, :])
        dkt = tkc.dot(ds.to(qt.dtype), qt, dkt)
    tkc.store(dk[head], (n, 0), (dkt * scale).to(dk.dtype))
    tkc.store(dv[head], (n, 0), dvt.to(dv.dtype))


@tkc.jit
def gradient_of_queries(
    q,
    k,
    v,
    do,
    lse,
    delta,
    dq,
    scale,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    D: tkc.constexpr,
):
    """The half that goes over keys: dQ."""
    m, head = tkc.program_id(0) * BM, tkc.program_id(1)
    qt, dot = tkc.load(q, (head, m, 0), (None, BM, D)), tkc.load(do, (head, m, 0), (None, BM, D))
    ln, de = tkc.load(lse, (head, m), (None, BM)), tkc.load(delta, (head, m), (None, BM))
    acc = tkc.zeros((BM, D))
    rm = m + tkc.arange(0, BM)
    for n in range(0, tkc.minimum(m + BM, k.shape[1]), BN):
        kt = tkc.load(k, (head, n, 0), (None, BN, D))
        vt = tkc.load(v, (head, n, 0), (None, BN, D))
        s = tkc.dot(qt, kt.T) * (scale * LOG2E)
        keep = rm[:, None] >= (n + tkc.arange(0, BN))[None, :]
        p = tkc.where(keep, tkc.exp2(s - ln[:, None]), 0.0)
        ds = p * (tkc.dot(dot, vt.T) - de[:, None])
        acc = tkc.dot(ds.to(kt.dtype), kt, acc)
    tkc.store(dq[head], (m, 0), (acc * scale).to(dq.dtype))


@tkc.jit
def gradients_added(
    q,
    k,
    v,
    do,
    lse,
    delta,
    dq,
    dk,
    dv,
    scale,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    D: tkc.constexpr,
):
    """Both halves in one kernel: programs add to dQ, which is float32 and zeroed."""
    n, head = tkc.program_id(0) * BN, tkc.program_id(1)
    kt, vt = tkc.load(k, (head, n, 0), (None, BN, D)), tkc.load(v, (head, n, 0), (None, BN, D))
    dkt, dvt = tkc.zeros((BN, D)), tkc.zeros((BN, D))
    rn = n + tkc.arange(0, BN)
    for m in range(n // BM * BM, q.shape[1], BM):
        qt = tkc.load(q, (head, m, 0), (None, BM, D))
        dot = tkc.load(do, (head, m, 0), (None, BM, D))
        ln, de = tkc.load(lse, (head, m), (None, BM)), tkc.load(delta, (head, m), (None, BM))
        rm = m + tkc.arange(0, BM)
        s = tkc.dot(qt, kt.T) * (scale * LOG2E)
        keep = (rm[:, None] >= rn[None, :]) & (rm < q.shape[1])[:, None]
        p = tkc.where(keep, tkc.exp2(s - ln[:, None]), 0.0)
        dvt = tkc.dot(p.to(qt.dtype).T, dot, dvt)
        ds = (p * (tkc.dot(dot, vt.T) - de[:, None])).to(qt.dtype)
        dkt = tkc.dot(ds.T, qt, dkt)
        tkc.atomic_add(dq[head], (m, 0), tkc.dot(ds, kt) * scale)
    tkc.store(dk[head], (n, 0), (dkt * scale).to(dk.dtype))
    tkc.store(dv[head], (n, 0), dvt.to(dv.dtype))
