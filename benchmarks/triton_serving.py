"""Kernels of serving and training in Triton's language as its users write them, all with dots: a
third set, of kinds that the sets before have not (`triton_layers`, `triton_programs`).

`triton_written_serving` says how each is called. The module is imported in a process where the name
`triton` means Triton or tkc.
"""

import triton
import triton.language as tl


@triton.jit
def adapters_down(x, a, adapter, y, K, SPLIT, BM: tl.constexpr, R: tl.constexpr, BK: tl.constexpr):
    """y += x a[adapter of the block]ᵀ of several adapters of rank R, k split among programs."""
    i, part = tl.program_id(0), tl.program_id(1)
    rows, r, rk = i * BM + tl.arange(0, BM), tl.arange(0, R), tl.arange(0, BK)
    which = tl.load(adapter + i)
    if which < 0:
        return
    acc = tl.zeros((BM, R), tl.float32)
    for k in range(part * BK, K, SPLIT * BK):
        left = tl.load(x + rows[:, None] * K + k + rk[None, :])
        right = tl.load(a + (which * R + r[None, :]) * K + k + rk[:, None])
        acc += tl.dot(left, right)
    tl.atomic_add(y + rows[:, None] * R + r[None, :], acc)


@triton.jit
def adapters_up(h, b, adapter, y, N, BM: tl.constexpr, R: tl.constexpr, BN: tl.constexpr):
    """y += h b[adapter of the block]: what the base layer made is read and written."""
    i, j = tl.program_id(0), tl.program_id(1)
    which = tl.load(adapter + i)
    if which < 0:
        return
    rows, r, n = i * BM + tl.arange(0, BM), tl.arange(0, R), j * BN + tl.arange(0, BN)
    left = tl.load(h + rows[:, None] * R + r[None, :]).to(b.dtype.element_ty)
    right = tl.load(b + (which * N + n[None, :]) * R + r[:, None])
    at = y + rows[:, None] * N + n[None, :]
    tl.store(at, (tl.load(at).to(tl.float32) + tl.dot(left, right)).to(y.dtype.element_ty))


@triton.jit
def decode_by_token(
    q, k, v, table, starts, part, scale, H, PARTS: tl.constexpr,
    G: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """One part of a sequence's keys, which lie token by token anywhere in the cache; G query heads
    share a head of keys. Gives the weighted mean and the logarithm of the sum of weights."""
    b, h, p = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    g, d, dv = h * G + tl.arange(0, G), tl.arange(0, D), tl.arange(0, DV)
    begin = tl.load(starts + b)
    count = tl.load(starts + b + 1) - begin
    length = tl.cdiv(count, PARTS)
    first = p * length
    last = tl.minimum(first + length, count)
    x = tl.load(q + (b * H * G + g[:, None]) * D + d[None, :])
    largest = tl.full((G,), float("-inf"), tl.float32)
    total = tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, DV), tl.float32)
    for start in range(first, last, BN):
        n = start + tl.arange(0, BN)
        slot = tl.load(table + begin + n, mask=n < last, other=0).to(tl.int64)
        keys = tl.load(
            k + (slot[None, :] * H + h) * D + d[:, None], mask=n[None, :] < last, other=0.0
        )
        s = tl.dot(x, keys) * scale
        s = tl.where(n[None, :] < last, s, float("-inf"))
        values = tl.load(
            v + (slot[:, None] * H + h) * DV + dv[None, :], mask=n[:, None] < last, other=0.0
        )
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        acc = acc * fade[:, None] + tl.dot(e.to(v.dtype.element_ty), values)
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = part + ((b * H * G + g[:, None]) * PARTS + p) * (DV + 1)
    tl.store(out + dv[None, :], acc / total[:, None])
    tl.store(part + ((b * H * G + g) * PARTS + p) * (DV + 1) + DV, largest + tl.log(total))


@triton.jit
def extend_attention(
    q, k, v, cache_k, cache_v, table, prefix, o, scale, S, MOST, H, GROUP,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """New tokens attend to a prefix in the cache, token by token, then causally to themselves."""
    i, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, d, n = i * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    heads = H // GROUP
    g = h // GROUP
    x = tl.load(q + ((b * S + rows[:, None]) * H + h) * D + d[None, :], mask=rows[:, None] < S)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    length = tl.load(prefix + b)
    for start in range(0, length, BN):
        inside = start + n < length
        slot = tl.load(table + b * MOST + start + n, mask=inside, other=0).to(tl.int64)
        keys = tl.load(
            cache_k + (slot[None, :] * heads + g) * D + d[:, None], mask=inside[None, :], other=0.0
        )
        s = tl.where(inside[None, :], tl.dot(x, keys) * scale, float("-inf"))
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        values = tl.load(
            cache_v + (slot[:, None] * heads + g) * D + d[None, :], mask=inside[:, None], other=0.0
        )
        acc = acc * fade[:, None] + tl.dot(e.to(v.dtype.element_ty), values)
        total = total * fade + tl.sum(e, 1)
        largest = now
    for start in range(0, tl.minimum((i + 1) * BM, S), BN):
        at = start + n
        keys = tl.load(
            k + ((b * S + at[None, :]) * heads + g) * D + d[:, None],
            mask=at[None, :] < S,
            other=0.0,
        )
        s = tl.dot(x, keys) * scale
        s = tl.where((rows[:, None] >= at[None, :]) & (at[None, :] < S), s, float("-inf"))
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        values = tl.load(
            v + ((b * S + at[:, None]) * heads + g) * D + d[None, :],
            mask=at[:, None] < S,
            other=0.0,
        )
        acc = acc * fade[:, None] + tl.dot(e.to(v.dtype.element_ty), values)
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = o + ((b * S + rows[:, None]) * H + h) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty), mask=rows[:, None] < S)


@triton.jit
def selected_attention(
    q, k, v, blocks, o, scale, S, H, COUNT, G: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Each token's G query heads of one head of keys attend to COUNT blocks chosen for it."""
    t, h = tl.program_id(0), tl.program_id(1)
    b = tl.program_id(2)
    g, d, n = h * G + tl.arange(0, G), tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + ((b * S + t) * H * G + g[:, None]) * D + d[None, :])
    largest = tl.full((G,), float("-inf"), tl.float32)
    total = tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, D), tl.float32)
    for c in range(COUNT):
        start = tl.load(blocks + ((b * S + t) * H + h) * COUNT + c) * BN
        if start <= t:
            at = start + n
            keys = tl.load(k + ((b * S + at[None, :]) * H + h) * D + d[:, None])
            s = tl.where(at[None, :] <= t, tl.dot(x, keys) * scale, float("-inf"))
            now = tl.maximum(largest, tl.max(s, 1))
            fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
            values = tl.load(v + ((b * S + at[:, None]) * H + h) * D + d[None, :])
            acc = acc * fade[:, None] + tl.dot(e.to(v.dtype.element_ty), values)
            total = total * fade + tl.sum(e, 1)
            largest = now
    out = o + ((b * S + t) * H * G + g[:, None]) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def int8_attention(q, k, v, qs, ks, o, M, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Scores of int8 with a scale a block of rows; weights and values of 16 bits."""
    i, h = tl.program_id(0), tl.program_id(1)
    rows, d, n = i * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + (h * M + rows[:, None]) * D + d[None, :])
    left = tl.load(qs + h * (M // BM) + i)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        keys = tl.load(k + (h * N + start + n[None, :]) * D + d[:, None])
        right = tl.load(ks + h * (N // BN) + start // BN)
        s = tl.dot(x, keys).to(tl.float32) * (left * right)
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.math.exp2(largest - now), tl.math.exp2(s - now[:, None])
        values = tl.load(v + (h * N + start + n[:, None]) * D + d[None, :])
        acc = acc * fade[:, None] + tl.dot(e.to(tl.float16), values)
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = o + (h * M + rows[:, None]) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def small_perceptron(x, w1, w2, y, M, F, BM: tl.constexpr, BF: tl.constexpr, D: tl.constexpr):
    """y = x + relu(x w1)² w2; the hidden layer is never in memory."""
    rows, d, f = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BF)
    at = rows[:, None] * D + d[None, :]
    a = tl.load(x + at, mask=rows[:, None] < M, other=0.0)
    acc = a.to(tl.float32)
    for j in range(0, F, BF):
        first = tl.load(w1 + d[:, None] * F + j + f[None, :])
        hidden = tl.maximum(tl.dot(a, first), 0.0)
        hidden = (hidden * hidden).to(w2.dtype.element_ty)
        acc += tl.dot(hidden, tl.load(w2 + (j + f[:, None]) * D + d[None, :]))
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=rows[:, None] < M)
