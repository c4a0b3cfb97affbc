"""Kernels on matrices in Triton's language as its users write them: a fourth set, of kinds that the
sets before have not, those with dots. `triton_written_matrices` says how each is called.
"""

import triton
import triton.language as tl


def _configs(*choices):
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in choices
    ]


@triton.jit
def dropped_attention(
    q, k, v, o, seed, keep, scale, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Attention whose weights are dropped by chance, a number drawn for each pair."""
    i, h = tl.program_id(0), tl.program_id(1)
    rows, d, n = i * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + (h * N + rows[:, None]) * D + d[None, :])
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        keys = tl.load(k + (h * N + start + n[None, :]) * D + d[:, None])
        s = tl.dot(x, keys) * scale
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        total = total * fade + tl.sum(e, 1)
        at = (h * N + rows[:, None]) * N + start + n[None, :]
        e = tl.where(tl.rand(seed, at) < keep, e, 0.0)
        values = tl.load(v + (h * N + start + n[:, None]) * D + d[None, :])
        acc = acc * fade[:, None] + tl.dot(e.to(v.dtype.element_ty), values)
        largest = now
    out = o + (h * N + rows[:, None]) * D + d[None, :]
    tl.store(out, (acc / (total[:, None] * keep)).to(o.dtype.element_ty))


@triton.jit
def bucket_attention(q, k, v, table, o, M, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Attention with a bias of a table for each distance, 128 at most, as T5 has it."""
    i, h = tl.program_id(0), tl.program_id(1)
    rows, d, n = i * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + (h * M + rows[:, None]) * D + d[None, :])
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, M, BN):
        keys = tl.load(k + (h * M + start + n[None, :]) * D + d[:, None])
        far = tl.minimum(tl.abs(rows[:, None] - start - n[None, :]), 127)
        s = tl.dot(x, keys) + tl.load(table + h * 128 + far)
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        values = tl.load(v + (h * M + start + n[:, None]) * D + d[None, :])
        acc = acc * fade[:, None] + tl.dot(e.to(v.dtype.element_ty), values)
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = o + (h * M + rows[:, None]) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def attention_weights(q, k, p, scale, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """softmax(q kᵀ) itself: once through the keys for the sums, once more for the weights."""
    i, h = tl.program_id(0), tl.program_id(1)
    rows, d, n = i * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + (h * N + rows[:, None]) * D + d[None, :])
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, N, BN):
        s = tl.dot(x, tl.load(k + (h * N + start + n[None, :]) * D + d[:, None])) * scale
        now = tl.maximum(largest, tl.max(s, 1))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(s - now[:, None]), 1)
        largest = now
    for start in range(0, N, BN):
        s = tl.dot(x, tl.load(k + (h * N + start + n[None, :]) * D + d[:, None])) * scale
        e = tl.exp(s - largest[:, None]) / total[:, None]
        at = p + (h * N + rows[:, None]) * N + start + n[None, :]
        tl.store(at, e.to(p.dtype.element_ty))


@triton.jit
def listed_blocks(
    q, k, v, first, column, o, scale, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Attention to the blocks of keys that a list of each block of queries names."""
    i, h = tl.program_id(0), tl.program_id(1)
    rows, d, n = i * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + (h * N + rows[:, None]) * D + d[None, :])
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for at in range(tl.load(first + i), tl.load(first + i + 1)):
        start = tl.load(column + at) * BN
        keys = tl.load(k + (h * N + start + n[None, :]) * D + d[:, None])
        s = tl.dot(x, keys) * scale
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        values = tl.load(v + (h * N + start + n[:, None]) * D + d[None, :])
        acc = acc * fade[:, None] + tl.dot(e.to(v.dtype.element_ty), values)
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = o + (h * N + rows[:, None]) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def block_diagonal(x, w, y, B, K: tl.constexpr, BM: tl.constexpr, D: tl.constexpr):
    """y[b, k] = x[b, k] w[k]: K products of D x D, one beside the other in a row."""
    i, k = tl.program_id(0), tl.program_id(1)
    rows, d = i * BM + tl.arange(0, BM), tl.arange(0, D)
    at = rows[:, None] * K * D + k * D + d[None, :]
    a = tl.load(x + at, mask=rows[:, None] < B, other=0.0)
    b = tl.load(w + k * D * D + d[:, None] * D + d[None, :])
    tl.store(y + at, tl.dot(a, b).to(y.dtype.element_ty), mask=rows[:, None] < B)


@triton.jit
def interactions(x, y, F: tl.constexpr, PAIRS: tl.constexpr, BF: tl.constexpr, D: tl.constexpr):
    """Products of each two of a sample's F features, those below the diagonal in a row."""
    sample = tl.program_id(0).to(tl.int64)
    f, d = tl.arange(0, BF), tl.arange(0, D)
    a = tl.load(x + sample * F * D + f[:, None] * D + d[None, :], mask=f[:, None] < F, other=0.0)
    z = tl.dot(a, tl.trans(a))
    place = f[:, None] * (f[:, None] - 1) // 2 + f[None, :]
    inside = (f[:, None] < F) & (f[None, :] < f[:, None])
    tl.store(y + sample * PAIRS + place, z.to(y.dtype.element_ty), mask=inside)


@triton.jit
def small_products(a, b, c, COUNT, BATCH: tl.constexpr, N: tl.constexpr):
    """c = a b of many matrices of N x N, BATCH in a program."""
    first = tl.program_id(0) * BATCH
    z, i, j = tl.arange(0, BATCH), tl.arange(0, N), tl.arange(0, N)
    at = ((first + z)[:, None, None] * N + i[None, :, None]) * N + j[None, None, :]
    inside = (first + z < COUNT)[:, None, None]
    x = tl.load(a + at, mask=inside, other=0.0)
    y = tl.load(b + at, mask=inside, other=0.0)
    tl.store(c + at, tl.dot(x, y).to(c.dtype.element_ty), mask=inside)


@triton.autotune(
    _configs((128, 256, 64, 8, 3), (128, 128, 64, 8, 3), (64, 128, 64, 4, 4)), key=["M", "N", "K"]
)
@triton.jit
def any_strides(
    a, b, c, M, N, K, am, ak, bk, bn, cm, cn, alpha, beta,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """c = alpha a b + beta c, of any sizes and strides."""
    pid = tl.program_id(0)
    tiles_n = tl.cdiv(N, BN)
    i, j = pid // tiles_n, pid % tiles_n
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left = k * BK + rk
        x = tl.load(
            a + rm[:, None] * am + left[None, :] * ak,
            mask=(rm[:, None] < M) & (left[None, :] < K),
            other=0.0,
        )
        y = tl.load(
            b + left[:, None] * bk + rn[None, :] * bn,
            mask=(left[:, None] < K) & (rn[None, :] < N),
            other=0.0,
        )
        acc = tl.dot(x, y, acc)
    at = c + rm[:, None] * cm + rn[None, :] * cn
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    old = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (alpha * acc + beta * old).to(c.dtype.element_ty), mask=inside)


@triton.autotune(_configs((64, 128, 64, 4, 4), (128, 128, 64, 8, 3)), key=["M", "N", "K"])
@triton.jit
def int8_by_bfloat16(x, w, s, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = x (w s) with weights of int8 and a scale a column."""
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :])
        b = tl.load(w + (k + rk[:, None]) * N + rn[None, :]).to(x.dtype.element_ty)
        acc += tl.dot(a, b)
    acc *= tl.load(s + rn).to(tl.float32)[None, :]
    tl.store(y + rm[:, None] * N + rn[None, :], acc.to(y.dtype.element_ty))


@triton.jit
def projections(
    x, w, b, cos, sin, q, k, v, S, N, K,
    BM: tl.constexpr, D: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Queries, keys and values of x w + b, heads of D; queries and keys are turned by halves."""
    i, head = tl.program_id(0), tl.program_id(1)
    rm, half, rk = i * BM + tl.arange(0, BM), tl.arange(0, D // 2), tl.arange(0, BK)
    first = head * D + half
    low, high = tl.zeros((BM, D // 2), tl.float32), tl.zeros((BM, D // 2), tl.float32)
    for at in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + at + rk[None, :])
        low = tl.dot(a, tl.load(w + (at + rk[:, None]) * 3 * N + first[None, :]), low)
        high = tl.dot(a, tl.load(w + (at + rk[:, None]) * 3 * N + first[None, :] + D // 2), high)
    low += tl.load(b + first).to(tl.float32)[None, :]
    high += tl.load(b + first + D // 2).to(tl.float32)[None, :]
    which, column = head * D // N, head * D % N
    out = rm[:, None] * N + column + half[None, :]
    if which == 2:
        tl.store(v + out, low.to(v.dtype.element_ty))
        tl.store(v + out + D // 2, high.to(v.dtype.element_ty))
    else:
        c = tl.load(cos + (rm % S)[:, None] * (D // 2) + half[None, :])
        s = tl.load(sin + (rm % S)[:, None] * (D // 2) + half[None, :])
        to = k if which == 1 else q
        tl.store(to + out, (low * c - high * s).to(q.dtype.element_ty))
        tl.store(to + out + D // 2, (high * c + low * s).to(q.dtype.element_ty))


@triton.jit
def locked_product(
    a, b, c, locks, M, N, K, SPLIT, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """c = a b, k split among programs that add to c one after the other, behind a lock."""
    tile, part = tl.program_id(0), tl.program_id(1)
    across = N // BN
    i, j = tile // across, tile % across
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(part * BK, K, SPLIT * BK):
        x = tl.load(a + rm[:, None] * K + k + rk[None, :])
        y = tl.load(b + (k + rk[:, None]) * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    at = c + rm[:, None] * N + rn[None, :]
    while tl.atomic_cas(locks + tile, 0, 1) == 1:
        pass
    count = tl.load(locks + M // BM * across + tile)
    if count == 0:
        tl.store(at, acc)
    else:
        tl.store(at, acc + tl.load(at))
    tl.store(locks + M // BM * across + tile, (count + 1) % SPLIT)
    tl.debug_barrier()
    tl.atomic_xchg(locks + tile, 0)


@triton.jit
def persistent_product(
    a, b, c, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """c = relu(a bᵀ), a program takes every PROGRAMSth tile; results leave in two halves."""
    across, down = tl.cdiv(N, BN), tl.cdiv(M, BM)
    for tile in tl.range(tl.program_id(0), across * down, PROGRAMS):
        i, j = tile % down, tile // down
        rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            x = tl.load(a + rm[:, None] * K + k + rk[None, :])
            y = tl.load(b + rn[:, None] * K + k + rk[None, :])
            acc = tl.dot(x, y.T, acc)
        parts = tl.permute(tl.reshape(tl.maximum(acc, 0.0), (BM, 2, BN // 2)), (0, 2, 1))
        first, second = tl.split(parts)
        half = j * BN + tl.arange(0, BN // 2)
        tl.store(c + rm[:, None] * N + half[None, :], first.to(c.dtype.element_ty))
        tl.store(c + rm[:, None] * N + half[None, :] + BN // 2, second.to(c.dtype.element_ty))


@triton.jit
def best_match(x, z, best, which, N, K, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """The z[j] of the largest cosine to x[i]; both are normed as they are read."""
    rows, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    a = tl.load(x + rows[:, None] * D + d[None, :]).to(tl.float32)
    a = (a * tl.rsqrt(tl.sum(a * a, 1))[:, None]).to(x.dtype.element_ty)
    most = tl.full((BM,), -2.0, tl.float32)
    at = tl.zeros((BM,), tl.int32)
    for j in range(0, K, BN):
        b = tl.load(z + (j + n[:, None]) * D + d[None, :]).to(tl.float32)
        b = (b * tl.rsqrt(tl.sum(b * b, 1))[:, None]).to(z.dtype.element_ty)
        s = tl.dot(a, tl.trans(b))
        here, index = tl.max(s, 1), tl.argmax(s, 1)
        at = tl.where(here > most, j + index, at)
        most = tl.maximum(most, here)
    tl.store(best + rows, most)
    tl.store(which + rows, at)
