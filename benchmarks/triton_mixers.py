"""Attention in Triton's language as its users write it: an eighth set, of kinds that none before
has. `triton_written_eighth` says how each is called.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def hstu_attention(
    q,
    k,
    v,
    times,
    first,
    by_place,
    by_time,
    o,
    alpha,
    MOST,
    H: tl.constexpr,
    BUCKETS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    """Causal attention of sequences in a row by silu of scores, without softmax, with biases by how
    far apart two events stand and lie in time: tables of MOST and of BUCKETS + 1 numbers.
    """
    start, batch, h = tl.program_id(0) * BM, tl.program_id(1) // H, tl.program_id(1) % H
    begin = tl.load(first + batch)
    length = tl.load(first + batch + 1) - begin
    if start >= length:
        return
    m, n, d = start + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    here = m < length
    rows = ((begin + m).to(tl.int64) * H + h)[:, None] * D + d[None, :]
    x = tl.load(q + rows, mask=here[:, None], other=0.0)
    now = tl.load(times + begin + m, mask=here, other=0)
    acc = tl.zeros((BM, D), tl.float32)
    for low in range(0, tl.minimum(start + BM, length), BN):
        at = low + n
        inside = at < length
        own = ((begin + at).to(tl.int64) * H + h) * D
        keys = tl.load(k + own[None, :] + d[:, None], mask=inside[None, :], other=0.0)
        s = tl.dot(x, keys) * alpha
        seen = (m[:, None] >= at[None, :]) & here[:, None] & inside[None, :]
        s += tl.load(by_place + m[:, None] - at[None, :], mask=seen, other=0.0)
        then = tl.load(times + begin + at, mask=inside, other=0)
        passed = tl.maximum(now[:, None] - then[None, :], 1).to(tl.float32)
        bucket = tl.minimum((tl.log(passed) / 0.301).to(tl.int32), BUCKETS)
        s += tl.load(by_time + bucket, mask=seen, other=0.0)
        s = tl.where(seen, s * tl.sigmoid(s) / MOST, 0.0)
        values = tl.load(v + own[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(s.to(values.dtype), values, acc)
    tl.store(o + rows, acc.to(o.dtype.element_ty), mask=here[:, None])


@triton.jit
def parts_of_4_bits(
    q,
    keys,
    key_scale,
    key_zero,
    values,
    value_scale,
    value_zero,
    lengths,
    part,
    lse,
    scale,
    S,
    G: tl.constexpr,
    GROUP: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    """A part of the attention of one new token a sequence to keys and values of 4 bits: keys are
    [B, HK, D, S / 8] words with a scale for GROUP tokens of a channel, values [B, HK, S, D / 8]
    with one for GROUP channels of a token. G heads ask each of HK.
    """
    batch, h, which = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, parts = tl.num_programs(1), tl.num_programs(2)
    length = tl.load(lengths + batch)
    each = tl.cdiv(tl.cdiv(length, parts), BN) * BN
    g, d, n = tl.arange(0, 16), tl.arange(0, D), tl.arange(0, BN)
    own = (batch * heads + h).to(tl.int64)
    head = own * G + g
    x = tl.load(q + head[:, None] * D + d[None, :], mask=g[:, None] < G, other=0.0)
    keys += own * D * (S // 8)
    key_scale += own * D * (S // GROUP)
    key_zero += own * D * (S // GROUP)
    values += own * S * (D // 8)
    value_scale += own * S * (D // GROUP)
    value_zero += own * S * (D // GROUP)
    largest = tl.full((16,), -1e30, tl.float32)
    total = tl.zeros((16,), tl.float32)
    acc = tl.zeros((16, D), tl.float32)
    for start in range(which * each, tl.minimum(which * each + each, length), BN):
        at = start + n
        inside = at < length
        words = tl.load(
            keys + d[:, None] * (S // 8) + at[None, :] // 8, mask=inside[None, :], other=0
        )
        group = d[:, None] * (S // GROUP) + at[None, :] // GROUP
        by = tl.load(key_scale + group, mask=inside[None, :], other=0.0)
        zero = tl.load(key_zero + group, mask=inside[None, :], other=0.0)
        k = ((words >> (at[None, :] % 8 * 4)) & 15).to(x.dtype) * by + zero
        s = tl.dot(x, k) * scale
        s = tl.where(inside[None, :], s, -1e30)
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        total = total * fade + tl.sum(e, 1)
        words = tl.load(
            values + at[:, None] * (D // 8) + d[None, :] // 8, mask=inside[:, None], other=0
        )
        group = at[:, None] * (D // GROUP) + d[None, :] // GROUP
        by = tl.load(value_scale + group, mask=inside[:, None], other=0.0)
        zero = tl.load(value_zero + group, mask=inside[:, None], other=0.0)
        v = ((words >> (d[None, :] % 8 * 4)) & 15).to(x.dtype) * by + zero
        acc = acc * fade[:, None] + tl.dot(e.to(x.dtype), v)
        largest = now
    to = head * parts + which
    total = tl.where(total > 0.0, total, 1.0)
    tl.store(part + to[:, None] * D + d[None, :], acc / total[:, None], mask=g[:, None] < G)
    tl.store(lse + to, largest + tl.log(total), mask=g < G)


@triton.jit
def parts_together(part, lse, o, PARTS, D: tl.constexpr):
    """The parts of parts_of_4_bits put together, one after another."""
    own, d = tl.program_id(0), tl.arange(0, D)
    largest, total = -1e30, 0.0
    acc = tl.zeros((D,), tl.float32)
    for p in range(PARTS):
        one = tl.load(lse + own * PARTS + p)
        now = tl.maximum(largest, one)
        fade, weight = tl.exp(largest - now), tl.exp(one - now)
        acc = acc * fade + weight * tl.load(part + (own * PARTS + p) * D + d)
        total = total * fade + weight
        largest = now
    tl.store(o + own * D + d, (acc / total).to(o.dtype.element_ty))


@triton.jit
def products_with_gradients(o, do, delta, N, BM: tl.constexpr, D: tl.constexpr):
    """delta = the sum of o do of each row."""
    m, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    at = m[:, None] * D + d[None, :]
    a = tl.load(o + at, mask=m[:, None] < N, other=0.0).to(tl.float32)
    b = tl.load(do + at, mask=m[:, None] < N, other=0.0).to(tl.float32)
    tl.store(delta + m, tl.sum(a * b, 1), mask=m < N)


@triton.jit
def gradients_of_attention(
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
    S,
    G: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    """Gradients of causal attention, G heads for each of keys, in one kernel: a program has a block
    of keys, walks along the queries of its heads, and adds what their gradients get from it.
    """
    low, hk = tl.program_id(0) * BN, tl.program_id(1)
    m, n, d = tl.arange(0, BM), low + tl.arange(0, BN), tl.arange(0, D)
    own = hk.to(tl.int64) * S * D + n[:, None] * D + d[None, :]
    keys = tl.load(k + own, mask=n[:, None] < S, other=0.0)
    values = tl.load(v + own, mask=n[:, None] < S, other=0.0)
    dk_acc = tl.zeros((BN, D), tl.float32)
    dv_acc = tl.zeros((BN, D), tl.float32)
    for g in range(G):
        head = (hk * G + g).to(tl.int64)
        for start in range(low // BM * BM, S, BM):
            i = start + m
            rows = head * S * D + i[:, None] * D + d[None, :]
            x = tl.load(q + rows, mask=i[:, None] < S, other=0.0)
            grad = tl.load(do + rows, mask=i[:, None] < S, other=0.0)
            norm = tl.load(lse + head * S + i, mask=i < S, other=0.0)
            less = tl.load(delta + head * S + i, mask=i < S, other=0.0)
            s = tl.dot(x, tl.trans(keys))
            p = tl.exp2(s * (scale * LOG2E) - norm[:, None] * LOG2E)
            p = tl.where((i[:, None] >= n[None, :]) & (i[:, None] < S), p, 0.0)
            dv_acc = tl.dot(tl.trans(p.to(grad.dtype)), grad, dv_acc)
            dp = tl.dot(grad, tl.trans(values))
            ds = (p * (dp - less[:, None]) * scale).to(x.dtype)
            dk_acc = tl.dot(tl.trans(ds), x, dk_acc)
            tl.atomic_add(dq + rows, tl.dot(ds, keys), mask=i[:, None] < S, sem="relaxed")
    tl.store(dk + own, dk_acc.to(dk.dtype.element_ty), mask=n[:, None] < S)
    tl.store(dv + own, dv_acc.to(dv.dtype.element_ty), mask=n[:, None] < S)


@triton.jit
def attention_to_words(
    q,
    k,
    v,
    o,
    scale,
    S,
    WORDS,
    H,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
):
    """Attention of the S pixels of an image to the WORDS of its prompt, at most BN, by heads of D
    numbers, no power of 2. q, o: [B, S, H, D], k, v: [B, WORDS, H, D].
    """
    batch, h = tl.program_id(1) // H, tl.program_id(1) % H
    m, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD)
    rows = ((batch * S + m).to(tl.int64) * H + h)[:, None] * D + d[None, :]
    words = (batch * WORDS + n) * H * D + h * D
    inside = (m[:, None] < S) & (d[None, :] < D)
    x = tl.load(q + rows, mask=inside, other=0.0)
    mask = (n[None, :] < WORDS) & (d[:, None] < D)
    keys = tl.load(k + words[None, :] + d[:, None], mask=mask, other=0.0)
    mask = (n[:, None] < WORDS) & (d[None, :] < D)
    values = tl.load(v + words[:, None] + d[None, :], mask=mask, other=0.0)
    s = tl.dot(x, keys) * scale
    s = tl.where(n[None, :] < WORDS, s, float("-inf"))
    e = tl.exp(s - tl.max(s, 1)[:, None])
    out = tl.dot(e.to(values.dtype), values) / tl.sum(e, 1)[:, None]
    tl.store(o + rows, out.to(o.dtype.element_ty), mask=inside)


@triton.jit
def neighbourhood_attention(
    q,
    k,
    v,
    bias,
    o,
    scale,
    Y,
    X,
    H,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    D: tl.constexpr,
):
    """Attention of each pixel to the WINDOW x WINDOW around it, moved inside of the image, with a
    learned bias by distance. A program has SIDE x SIDE pixels, and takes the WIDE x WIDE that they
    see TALL lines at a time. q, k, v, o: [B, Y, X, H, D], bias: [H, 2 WINDOW - 1, 2 WINDOW - 1].
    """
    batch, h = tl.program_id(2) // H, tl.program_id(2) % H
    top, left = tl.program_id(0) * SIDE, tl.program_id(1) * SIDE
    m, n, d = tl.arange(0, SIDE * SIDE), tl.arange(0, TALL * WIDE), tl.arange(0, D)
    i, j = top + m // SIDE, left + m % SIDE
    here = (i < Y) & (j < X)
    rows = (((batch * Y + i) * X + j).to(tl.int64) * H + h)[:, None] * D + d[None, :]
    x = tl.load(q + rows, mask=here[:, None], other=0.0)
    reach: tl.constexpr = WINDOW // 2
    above = tl.maximum(tl.minimum(top - reach, Y - WIDE), 0)
    beside = tl.maximum(tl.minimum(left - reach, X - WIDE), 0)
    first_i = tl.maximum(tl.minimum(i - reach, Y - WINDOW), 0)
    first_j = tl.maximum(tl.minimum(j - reach, X - WINDOW), 0)
    bias += h * (2 * WINDOW - 1) * (2 * WINDOW - 1)
    largest = tl.full((SIDE * SIDE,), -1e30, tl.float32)
    total = tl.zeros((SIDE * SIDE,), tl.float32)
    acc = tl.zeros((SIDE * SIDE, D), tl.float32)
    for line in range(0, WIDE, TALL):
        r, c = above + line + n // WIDE, beside + n % WIDE
        inside = (r < Y) & (c < X)
        own = (((batch * Y + r) * X + c).to(tl.int64) * H + h) * D
        keys = tl.load(k + own[None, :] + d[:, None], mask=inside[None, :], other=0.0)
        down, right = r[None, :] - first_i[:, None], c[None, :] - first_j[:, None]
        seen = (down >= 0) & (down < WINDOW) & (right >= 0) & (right < WINDOW)
        seen = seen & here[:, None] & inside[None, :]
        by = r[None, :] - i[:, None] + WINDOW - 1
        by = by * (2 * WINDOW - 1) + c[None, :] - j[:, None] + WINDOW - 1
        s = tl.dot(x, keys) * scale
        s += tl.load(bias + by, mask=seen, other=0.0)
        s = tl.where(seen, s, float("-inf"))
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        total = total * fade + tl.sum(e, 1)
        values = tl.load(v + own[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(e.to(values.dtype), values, acc * fade[:, None])
        largest = now
    out = (acc / total[:, None]).to(o.dtype.element_ty)
    tl.store(o + rows, out, mask=here[:, None])
