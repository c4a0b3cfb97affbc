"""Attention in Triton's language as its users write it: a seventh set, of kinds that none before
has. `triton_written_seventh` says how each is called.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def latent_prefill(
    q,
    k,
    turned,
    v,
    o,
    scale,
    S,
    H,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
):
    """Causal attention where a head's keys are D numbers of its own and R that all heads share. q:
    [S, H, D + R], k, v: [S, H, D], turned: [S, R]. The longest rows go first.
    """
    i, h = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    m, n = i * BM + tl.arange(0, BM), tl.arange(0, BN)
    d, r = tl.arange(0, D), tl.arange(0, R)
    rows = (m[:, None] * H + h) * (D + R)
    x = tl.load(q + rows + d[None, :], mask=m[:, None] < S, other=0.0)
    xr = tl.load(q + rows + D + r[None, :], mask=m[:, None] < S, other=0.0)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, tl.minimum((i + 1) * BM, S), BN):
        at = start + n
        inside = at < S
        keys = tl.load(k + (at[None, :] * H + h) * D + d[:, None], mask=inside[None, :], other=0.0)
        shared = tl.load(turned + at[None, :] * R + r[:, None], mask=inside[None, :], other=0.0)
        s = tl.dot(x, keys)
        s = tl.dot(xr, shared, s) * (scale * LOG2E)
        s = tl.where((m[:, None] >= at[None, :]) & inside[None, :], s, float("-inf"))
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp2(largest - now), tl.exp2(s - now[:, None])
        values = tl.load(
            v + (at[:, None] * H + h) * D + d[None, :], mask=inside[:, None], other=0.0
        )
        acc = tl.dot(e.to(values.dtype), values, acc * fade[:, None])
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = o + (m[:, None] * H + h) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty), mask=m[:, None] < S)


@triton.jit
def difference_attention(
    q, k, v, w, o, scale, share, S, eps, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """The difference of two causal attentions to the same values, whose heads are then normed. q,
    k: [H, 2, S, D], v: [H, S, 2 D].
    """
    i, h = tl.program_id(0), tl.program_id(1)
    m, n = i * BM + tl.arange(0, BM), tl.arange(0, BN)
    d, c = tl.arange(0, D), tl.arange(0, 2 * D)
    q += h * 2 * S * D
    k += h * 2 * S * D
    x0 = tl.load(q + m[:, None] * D + d[None, :])
    x1 = tl.load(q + (S + m[:, None]) * D + d[None, :])
    m0, m1 = tl.full((BM,), -1e30, tl.float32), tl.full((BM,), -1e30, tl.float32)
    t0, t1 = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    acc0, acc1 = tl.zeros((BM, 2 * D), tl.float32), tl.zeros((BM, 2 * D), tl.float32)
    for start in range(0, (i + 1) * BM, BN):
        at = start + n
        seen = m[:, None] >= at[None, :]
        values = tl.load(v + (h * S + at[:, None]) * 2 * D + c[None, :])
        s0 = tl.dot(x0, tl.load(k + at[None, :] * D + d[:, None])) * scale
        s0 = tl.where(seen, s0, -1e30)
        now = tl.maximum(m0, tl.max(s0, 1))
        e, fade = tl.exp(s0 - now[:, None]), tl.exp(m0 - now)
        acc0 = tl.dot(e.to(values.dtype), values, acc0 * fade[:, None])
        t0 = t0 * fade + tl.sum(e, 1)
        m0 = now
        s1 = tl.dot(x1, tl.load(k + (S + at[None, :]) * D + d[:, None])) * scale
        s1 = tl.where(seen, s1, -1e30)
        now = tl.maximum(m1, tl.max(s1, 1))
        e, fade = tl.exp(s1 - now[:, None]), tl.exp(m1 - now)
        acc1 = tl.dot(e.to(values.dtype), values, acc1 * fade[:, None])
        t1 = t1 * fade + tl.sum(e, 1)
        m1 = now
    out = acc0 / t0[:, None] - tl.load(share + h) * (acc1 / t1[:, None])
    out *= tl.rsqrt(tl.sum(out * out, 1) / (2 * D) + eps)[:, None] * tl.load(w + c)[None, :]
    tl.store(o + (h * S + m[:, None]) * 2 * D + c[None, :], out.to(o.dtype.element_ty))


@triton.jit
def float8_attention(
    q, k, v, o, qs, ks, vs, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Attention in float8, weights too, with a scale a head; values are turned: [H, D, N]."""
    i, h = tl.program_id(0), tl.program_id(1)
    q_at = tl.make_block_ptr(q + h * N * D, (N, D), (D, 1), (i * BM, 0), (BM, D), (1, 0))
    k_at = tl.make_block_ptr(k + h * N * D, (D, N), (1, D), (0, 0), (D, BN), (0, 1))
    v_at = tl.make_block_ptr(v + h * N * D, (N, D), (1, N), (0, 0), (BN, D), (0, 1))
    o_at = tl.make_block_ptr(o + h * N * D, (N, D), (D, 1), (i * BM, 0), (BM, D), (1, 0))
    factor = tl.load(qs + h) * tl.load(ks + h) * LOG2E
    x = tl.load(q_at)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for _ in range(0, N, BN):
        s = tl.dot(x, tl.load(k_at)) * factor
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp2(largest - now), tl.exp2(s - now[:, None])
        total = total * fade + tl.sum(e, 1)
        acc = tl.dot(e.to(q.dtype.element_ty), tl.load(v_at), acc * fade[:, None])
        largest = now
        k_at = tl.advance(k_at, (0, BN))
        v_at = tl.advance(v_at, (BN, 0))
    out = acc * (tl.load(vs + h) / total)[:, None]
    tl.store(o_at, out.to(o.dtype.element_ty))


@triton.jit
def window_attention(qkv, bias, hidden, o, scale, WINDOWS, H, N, BN: tl.constexpr, D: tl.constexpr):
    """Attention inside of windows of N pixels, with a bias for each pair of a head's and a mask of
    the windows of an image. qkv: [windows, N, 3, H, D], hidden: [WINDOWS, N, N].
    """
    window, h = tl.program_id(0), tl.program_id(1)
    n, d = tl.arange(0, BN), tl.arange(0, D)
    inside = n < N
    rows = qkv + ((window * N + n) * 3 * H + h) * D
    q = tl.load(rows[:, None] + d[None, :], mask=inside[:, None], other=0.0)
    k = tl.load(rows[:, None] + H * D + d[None, :], mask=inside[:, None], other=0.0)
    v = tl.load(rows[:, None] + 2 * H * D + d[None, :], mask=inside[:, None], other=0.0)
    pairs = n[:, None] * N + n[None, :]
    both = inside[:, None] & inside[None, :]
    s = tl.dot(q, tl.trans(k)) * scale
    s += tl.load(bias + h * N * N + pairs, mask=both, other=0.0)
    s += tl.load(hidden + window % WINDOWS * N * N + pairs, mask=both, other=0.0)
    s = tl.where(inside[None, :], s, float("-inf"))
    e = tl.exp(s - tl.max(s, 1)[:, None])
    e /= tl.sum(e, 1)[:, None]
    out = tl.dot(e.to(v.dtype), v).to(o.dtype.element_ty)
    at = o + ((window * N + n) * H + h)[:, None] * D + d[None, :]
    tl.store(at, out, mask=inside[:, None])


@triton.jit
def decoded_parts(
    q,
    cache_k,
    cache_v,
    scale_k,
    scale_v,
    pages,
    length,
    part,
    lse,
    scale,
    PAGES,
    SINKS,
    WINDOW,
    H: tl.constexpr,
    G: tl.constexpr,
    PAGE: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    """A part of the scores of one new token a sequence: it sees the first SINKS tokens and the last
    WINDOW, in pages of int8 with a scale a token and head. G heads ask each of H.
    """
    batch, h, which = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(2)
    have = tl.load(length + batch)
    seen = tl.minimum(have, SINKS + WINDOW)
    each = tl.cdiv(tl.cdiv(seen, parts), BN) * BN
    g, d, n = tl.arange(0, 16), tl.arange(0, D), tl.arange(0, BN)
    head = h * G + g
    x = tl.load(
        q + (batch * H * G + head)[:, None] * D + d[None, :], mask=g[:, None] < G, other=0.0
    )
    largest = tl.full((16,), -1e30, tl.float32)
    total = tl.zeros((16,), tl.float32)
    acc = tl.zeros((16, D), tl.float32)
    for start in range(which * each, tl.minimum(which * each + each, seen), BN):
        at = start + n
        inside = at < seen
        token = tl.where(at < SINKS, at, at + have - seen)
        page = tl.load(pages + batch * PAGES + token // PAGE, mask=inside, other=0)
        row = (page * PAGE + token % PAGE).to(tl.int64) * H + h
        keys = tl.load(cache_k + row[None, :] * D + d[:, None], mask=inside[None, :], other=0)
        each_k = tl.load(scale_k + row, mask=inside, other=0.0).to(tl.float32)
        s = tl.dot(x, keys.to(x.dtype)) * (each_k * scale)[None, :]
        s = tl.where(inside[None, :], s, -1e30)
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        total = total * fade + tl.sum(e, 1)
        values = tl.load(cache_v + row[:, None] * D + d[None, :], mask=inside[:, None], other=0)
        e *= tl.load(scale_v + row, mask=inside, other=0.0).to(tl.float32)[None, :]
        acc = acc * fade[:, None] + tl.dot(e.to(x.dtype), values.to(x.dtype))
        largest = now
    own = (batch * H * G + head) * parts + which
    total = tl.where(total > 0.0, total, 1.0)
    tl.store(part + own[:, None] * D + d[None, :], acc / total[:, None], mask=g[:, None] < G)
    tl.store(lse + own, largest + tl.log(total), mask=g < G)


@triton.jit
def decoded(part, lse, o, PARTS: tl.constexpr, D: tl.constexpr):
    """The parts of decoded_parts put together."""
    own, d, p = tl.program_id(0), tl.arange(0, D), tl.arange(0, PARTS)
    each = tl.load(lse + own * PARTS + p)
    weight = tl.exp(each - tl.max(each, 0))
    weight /= tl.sum(weight, 0)
    a = tl.load(part + (own * PARTS + p[:, None]) * D + d[None, :])
    tl.store(o + own * D + d, tl.sum(a * weight[:, None], 0).to(o.dtype.element_ty))


@triton.jit
def index_scores(
    q,
    k,
    scale,
    weight,
    begin,
    end,
    y,
    S,
    H: tl.constexpr,
    BQ: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    """Which keys a query should look at: of all heads the weighted sum of relu(q k), in float8, for
    the keys from begin to end of the query. q: [T, H, D], k: [S, D].
    """
    t = tl.program_id(0) * BQ
    rows, queries = tl.arange(0, BQ * H), t + tl.arange(0, BQ)
    d, n = tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + (t * H + rows[:, None]) * D + d[None, :])
    w = tl.load(weight + t * H + rows)
    first, last = tl.load(begin + queries), tl.load(end + queries)
    least, most = tl.min(first, 0), tl.max(last, 0)
    for start in range(least // BN * BN, most, BN):
        at = start + n
        keys = tl.load(k + at[None, :] * D + d[:, None], mask=at[None, :] < S, other=0.0)
        s = tl.maximum(tl.dot(x, keys), 0.0) * w[:, None]
        s = tl.sum(tl.reshape(s, (BQ, H, BN)), 1)
        s *= tl.load(scale + at, mask=at < S, other=0.0)[None, :]
        seen = (at[None, :] >= first[:, None]) & (at[None, :] < last[:, None])
        tl.store(y + queries[:, None] * S + at[None, :], s, mask=seen)
