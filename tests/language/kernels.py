"""Kernels of the language, for tests: plain functions, which `traced` traces for arguments."""

import tkc
from tkc.fuzz.kernels import attention  # noqa: F401 (a kernel like those below)
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import (
    ArrayArgument,
    ConstantArgument,
    Options,
    ScalarArgument,
    Signature,
)
from tkc.language.trace import trace

LOG2E = 1.4426950408889634
inf = tkc.inf


def array(
    dtype, rank: int = 1, wide: bool = False, shape=None, strides=None, align: int = 16
) -> ArrayArgument:
    """A contiguous array whose last stride is known to be 1."""

    def fact(n):
        return Fact(exact=n) if n is not None else Fact()

    shape, strides = shape or (None,) * rank, strides or (None,) * (rank - 1) + (1,)
    return ArrayArgument(
        dtype, ArrayFacts(tuple(map(fact, shape)), tuple(map(fact, strides)), align), wide
    )


def i32(divisor: int = 1) -> ScalarArgument:
    return ScalarArgument(tkc.int32, divisor)


def f32() -> ScalarArgument:
    return ScalarArgument(tkc.float32)


def traced(fn, *args, num_warps=None, **named):
    """The module of a function; what is no argument is a constant."""
    import inspect

    bound = inspect.signature(fn).bind(*args, **named)
    bound.apply_defaults()

    def as_argument(v):
        return v if isinstance(v, (ArrayArgument, ScalarArgument)) else ConstantArgument(v)

    return trace(
        fn,
        Signature(
            tuple((n, as_argument(v)) for n, v in bound.arguments.items()),
            Options(num_warps=num_warps),
        ),
    )


def add(x, y, out, n, BLOCK: tkc.constexpr = 1024):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    inside = i < n
    tkc.store(
        out.ptr + i,
        tkc.load(x.ptr + i, mask=inside) + tkc.load(y.ptr + i, mask=inside),
        mask=inside,
    )


def matmul(a, b, c, BM: tkc.constexpr = 128, BN: tkc.constexpr = 256, BK: tkc.constexpr = 64):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


# --------------------------------------------------------------------- harder ones: what else must
def layer_norm_bwd(x, w, dy, mean, rstd, dx, pw, pb, N: tkc.constexpr, ROWS: tkc.constexpr = 4):
    cols = tkc.arange(N)
    inside = cols < x.shape[1]
    wv = tkc.load(w, (0,), (N,)).to(tkc.float32)
    sw, sb = tkc.zeros((N,)), tkc.zeros((N,))
    for r in tkc.range(tkc.program_id(0) * ROWS, x.shape[0], tkc.num_programs(0) * ROWS):
        xv, g = (tkc.load(a, (r, 0), (ROWS, N)).to(tkc.float32) for a in (x, dy))
        mu, rs = tkc.load(mean, (r,), (ROWS,))[:, None], tkc.load(rstd, (r,), (ROWS,))[:, None]
        xh = tkc.where(inside[None, :], (xv - mu) * rs, 0)
        gw = g * wv[None, :]
        c1, c2 = (tkc.sum(t, axis=1) / x.shape[1] for t in (xh * gw, gw))
        tkc.store(dx, (r, 0), ((gw - c2[:, None] - xh * c1[:, None]) * rs).to(dx.dtype))
        sw, sb = sw + tkc.sum(g * xh, axis=0), sb + tkc.sum(g, axis=0)
    tkc.store(pw, (tkc.program_id(0), 0), sw[None, :])
    tkc.store(pb, (tkc.program_id(0), 0), sb[None, :])


def split_k(
    a,
    b,
    c,
    SPLITS: tkc.constexpr,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 256,
    BK: tkc.constexpr = 64,
):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    step = tkc.cdiv(tkc.cdiv(a.shape[1], BK), SPLITS) * BK
    k0 = tkc.program_id(2) * step
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(k0, tkc.minimum(k0 + step, a.shape[1]), BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.atomic_add(c, (m, n), acc)


def grouped(
    a_ptrs,
    b_ptrs,
    c_ptrs,
    sizes,
    G: tkc.constexpr,
    DTYPE: tkc.constexpr = tkc.bfloat16,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 128,
    BK: tkc.constexpr = 64,
):
    t, g, seen = tkc.program_id(0), 0, 0
    while g < G and t >= seen:
        seen = seen + tkc.cdiv(sizes[g, 0], BM) * tkc.cdiv(sizes[g, 1], BN)
        g = g + 1
    if t >= seen:
        return
    g = g - 1
    M, N, K = sizes[g, 0], sizes[g, 1], sizes[g, 2]
    A = tkc.array(a_ptrs[g], DTYPE, (M, K), (K, 1))
    B = tkc.array(b_ptrs[g], DTYPE, (K, N), (N, 1))
    C = tkc.array(c_ptrs[g], DTYPE, (M, N), (N, 1))
    t = t - (seen - tkc.cdiv(M, BM) * tkc.cdiv(N, BN))
    m, n = t % tkc.cdiv(M, BM) * BM, t // tkc.cdiv(M, BM) * BN
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(0, K, BK):
        acc = tkc.dot(tkc.load(A, (m, k), (BM, BK)), tkc.load(B, (k, n), (BK, BN)), acc)
    tkc.store(C, (m, n), acc.to(C.dtype))


def paged_decode(
    q,
    kc,
    vc,
    table,
    lengths,
    part,
    lse,
    c,
    D: tkc.constexpr,
    R: tkc.constexpr,
    PAGE: tkc.constexpr,
    BN: tkc.constexpr = 128,
    SPAN: tkc.constexpr = 1024,
):
    b, h, s = tkc.program_id(0), tkc.program_id(1), tkc.program_id(2)
    last = lengths[b]
    qi = tkc.load(q[b], (h * R, 0), (R, D))
    top, total, acc = tkc.full((R,), -inf), tkc.zeros((R,)), tkc.zeros((R, D))
    for n in tkc.range(s * SPAN, tkc.minimum(last, (s + 1) * SPAN), BN):
        pages = tkc.load(table[b], (n // PAGE,), (BN // PAGE,))
        kt = tkc.load(kc, (pages, h, 0, 0), (BN // PAGE, None, PAGE, D)).reshape(BN, D)
        vt = tkc.load(vc, (pages, h, 0, 0), (BN // PAGE, None, PAGE, D)).reshape(BN, D)
        sc = tkc.where((n + tkc.arange(BN))[None, :] < last, tkc.dot(qi, kt.T), -inf)
        new = tkc.maximum(top, tkc.max(sc, axis=1) * c)
        p, shrink = tkc.exp2(sc * c - new[:, None]), tkc.exp2(top - new)
        total, acc, top = (
            total * shrink + tkc.sum(p, 1),
            tkc.dot(p.to(vt.dtype), vt, acc * shrink[:, None]),
            new,
        )
    tkc.store(part, (b, h * R, s, 0), (acc / total[:, None])[:, None, :])
    tkc.store(lse, (b, h * R, s), (top + tkc.log2(total))[:, None])


def mamba2(x, dt, A, B, C, y, L: tkc.constexpr = 64, N: tkc.constexpr = 128, P: tkc.constexpr = 64):
    b, h = tkc.program_id(0), tkc.program_id(1)
    a, state = A[h], tkc.zeros((N, P))
    for t in tkc.range(0, x.shape[1], L):
        d = tkc.load(dt, (b, t, h), (None, L, None)).to(tkc.float32)
        xs = tkc.load(x, (b, t, h, 0), (None, L, None, P))
        Bt, Ct = tkc.load(B, (b, t, 0), (None, L, N)), tkc.load(C, (b, t, 0), (None, L, N))
        cum = tkc.cumsum(d * a * LOG2E, axis=0)
        i = tkc.arange(L)
        dec = tkc.where(i[:, None] >= i[None, :], tkc.exp2(cum[:, None] - cum[None, :]), 0)
        w = tkc.dot(Ct, Bt.T) * dec * d[None, :]
        yt = tkc.dot(w.to(xs.dtype), xs, tkc.dot(Ct, state.to(xs.dtype)) * tkc.exp2(cum)[:, None])
        end = cum[L - 1]
        state = tkc.dot(
            (Bt * (tkc.exp2(end - cum) * d)[:, None]).to(xs.dtype).T, xs, state * tkc.exp2(end)
        )
        tkc.store(y, (b, t, h, 0), yt.to(y.dtype)[None, :, None, :])


def histogram(x, out, BINS: tkc.constexpr, BLOCK: tkc.constexpr = 8192):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    inside = i < x.shape[0]
    v = tkc.load(x.ptr + i, mask=inside)
    tkc.atomic_add(out, (0,), tkc.histogram(v, BINS, mask=inside))


def cross_entropy(logits, target, loss, V: tkc.constexpr):
    r = tkc.program_id(0)
    inside = tkc.arange(V) < logits.shape[1]
    x = tkc.where(inside, tkc.load(logits[r], (0,), (V,)).to(tkc.float32), -inf)
    t = target[r]
    top = tkc.max(x)
    e = tkc.exp2((x - top) * LOG2E)
    total = tkc.sum(e)
    tkc.store(loss, (r,), tkc.where(t >= 0, tkc.log(total) + top - logits[r, t], 0))
    tkc.store(logits[r], (0,), ((e / total - (tkc.arange(V) == t)) * (t >= 0)).to(logits.dtype))


def window_sinks(
    q,
    k,
    v,
    o,
    sinks,
    c,
    W: tkc.constexpr,
    D: tkc.constexpr,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 128,
):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    rows, last = m + tkc.arange(BM), k.shape[2]
    qi = tkc.load(q[b, h], (m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), sinks[h]), tkc.full((BM,), 1.0), tkc.zeros((BM, D))
    first = max(0, m - W + 1) // BN * BN
    for n in range(first, min(m + BM, last), BN):
        cols = n + tkc.arange(BN)
        keep = (
            (cols[None, :] <= rows[:, None])
            & (cols[None, :] > rows[:, None] - W)
            & (cols[None, :] < last)
        )
        s = tkc.where(keep, tkc.dot(qi, tkc.load(k[b, h], (n, 0), (BN, D)).T), -inf)
        new = tkc.maximum(top, tkc.max(s, axis=1) * c)
        p, shrink = tkc.exp2(s * c - new[:, None]), tkc.exp2(top - new)
        total, acc, top = (
            total * shrink + tkc.sum(p, 1),
            tkc.dot(p.to(v.dtype), tkc.load(v[b, h], (n, 0), (BN, D)), acc * shrink[:, None]),
            new,
        )
    tkc.store(o[b, h], (m, 0), (acc / total[:, None]).to(o.dtype))
