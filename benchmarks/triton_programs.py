"""Kernels with dots in Triton's language as its users write them, of kinds that no package's case
has.

`triton_written` says how each is called; `triton_kernels` races them by tkc beside Triton. The
module is imported in a process where the name `triton` means one or the other.
"""

import triton
import triton.language as tl

PRODUCTS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, warps, stages in (
        (128, 256, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 128, 64, 4, 3),
        (64, 128, 64, 4, 4),
    )
]
PAIRS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, warps, stages in (
        (128, 128, 64, 8, 3),
        (128, 64, 64, 4, 4),
        (64, 128, 64, 4, 3),
    )
]


@triton.jit
def _grouped(pid, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * columns
    first = pid // in_group * GROUP
    size = min(rows - first, GROUP)
    return first + pid % in_group % size, pid % in_group // size


@triton.autotune(PRODUCTS, key=["M", "N", "K"])
@triton.jit
def product_bias_gelu(
    x, w, bias, y, M, N, K, sx, sw, sy, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y = gelu(x w + bias), the sigmoid form."""
    i, j = _grouped(tl.program_id(0), M, N, BM, BN, 8)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    xs = x + rm[:, None] * sx + rk[None, :]
    ws = w + rk[:, None] * sw + rn[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(xs, mask=(rm[:, None] < M) & (rk[None, :] < K - k * BK), other=0.0)
        b = tl.load(ws, mask=(rk[:, None] < K - k * BK) & (rn[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
        xs += BK
        ws += BK * sw
    acc += tl.load(bias + rn, mask=rn < N, other=0.0)[None, :].to(tl.float32)
    acc = acc * tl.sigmoid(1.702 * acc)
    out = y + rm[:, None] * sy + rn[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.autotune(PRODUCTS, key=["M", "N", "K"])
@triton.jit
def batched_product(
    x, y, z, M, N, K, bx, sx, by, sy, bz, sz, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """z[b] = x[b] y[b]ᵀ: y has a row for each column of z."""
    b, i, j = (
        tl.program_id(1),
        tl.program_id(0) // tl.cdiv(N, BN),
        tl.program_id(0) % tl.cdiv(N, BN),
    )
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    x += b.to(tl.int64) * bx
    y += b.to(tl.int64) * by
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = tl.load(x + (rm % M)[:, None] * sx + (k + rk)[None, :])
        right = tl.load(y + (rn % N)[None, :] * sy + (k + rk)[:, None])
        acc = tl.dot(left, right, acc)
    out = z + b.to(tl.int64) * bz + rm[:, None] * sz + rn[None, :]
    tl.store(out, acc.to(z.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.autotune(PRODUCTS, key=["M", "N", "K"])
@triton.jit
def quantized_product(
    x, w, sx, sw, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y = (x wᵀ) sx sw: int8, a scale for each row of x and of w."""
    i, j = _grouped(tl.program_id(0), M, N, BM, BN, 8)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.int32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(x + rm[:, None] * K + (k * BK + rk)[None, :], mask=rm[:, None] < M, other=0)
        b = tl.load(w + rn[None, :] * K + (k * BK + rk)[:, None], mask=rn[None, :] < N, other=0)
        acc = tl.dot(a, b, acc)
    rows = tl.load(sx + rm, mask=rm < M, other=0.0)
    columns = tl.load(sw + rn, mask=rn < N, other=0.0)
    value = acc.to(tl.float32) * rows[:, None] * columns[None, :]
    out = y + rm[:, None] * N + rn[None, :]
    tl.store(out, value.to(y.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.autotune(PAIRS, key=["M", "N", "K"])
@triton.jit
def gated_product(x, w, v, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = silu(x w) · (x v)."""
    i, j = _grouped(tl.program_id(0), M, N, BM, BN, 8)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    xs = x + rm[:, None] * K + rk[None, :]
    place = rk[:, None] * N + rn[None, :]
    for _ in range(0, K, BK):
        a = tl.load(xs)
        gate += tl.dot(a, tl.load(w + place))
        up += tl.dot(a, tl.load(v + place))
        xs += BK
        place += BK * N
    value = gate * tl.sigmoid(gate) * up
    tl.store(y + rm[:, None] * N + rn[None, :], value.to(y.dtype.element_ty))


@triton.autotune(
    [
        triton.Config({"BM": 128, "BN": 128, "BK": 32, "SPLIT": s}, num_warps=8, num_stages=4)
        for s in (4, 8, 16)
    ],
    key=["M", "N", "K"],
    reset_to_zero=["dw"],
)
@triton.jit
def weight_gradient(
    x,
    dy,
    dw,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """dw = xᵀ dy in float32; SPLIT programs add up the parts of a tile. x: [M, K], dy: [M, N]."""
    i, j, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rk, rn = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    rm = part * BK + tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for m in range(0, M, BK * SPLIT):
        rows = m + rm
        a = tl.load(x + rows[None, :] * K + rk[:, None], mask=rows[None, :] < M, other=0.0)
        b = tl.load(dy + rows[:, None] * N + rn[None, :], mask=rows[:, None] < M, other=0.0)
        acc += tl.dot(a, b)
    tl.atomic_add(dw + rk[:, None] * N + rn[None, :], acc)


@triton.autotune(
    [triton.Config({}, num_warps=w, num_stages=s) for w, s in ((4, 3), (8, 3), (4, 4))],
    key=["ROW", "N"],
)
@triton.jit
def block_sparse_product(x, w, columns, starts, y, ROW, N, BLOCK: tl.constexpr, BN: tl.constexpr):
    """y = S w, S of dense blocks: those of block row i are x[starts[i]] … x[starts[i + 1] - 1]."""
    i, j = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(starts + i), tl.load(starts + i + 1)
    r, rn = tl.arange(0, BLOCK), j * BN + tl.arange(0, BN)
    acc = tl.zeros((BLOCK, BN), dtype=tl.float32)
    for at in range(begin, end):
        column = tl.load(columns + at)
        a = tl.load(x + at * BLOCK * BLOCK + r[:, None] * BLOCK + r[None, :])
        b = tl.load(w + (column * BLOCK + r)[:, None] * N + rn[None, :])
        acc += tl.dot(a, b)
    tl.store(y + (i * BLOCK + r)[:, None] * N + rn[None, :], acc.to(y.dtype.element_ty))


@triton.autotune(
    [triton.Config({"BN": n}, num_warps=w, num_stages=s) for n, w, s in ((64, 4, 3), (128, 4, 2))],
    key=["S", "GROUP"],
)
@triton.jit
def decode_parts(
    q,
    k,
    v,
    part,
    largest,
    total,
    scale,
    S,
    HEADS,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    BN: tl.constexpr,
):
    """Attention of one token a sequence over a part of its keys, for the heads that share them."""
    b, h, p = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    r, d = tl.arange(0, ROWS), tl.arange(0, D)
    head = h * GROUP + r
    inside = r < GROUP
    Q = tl.load(q + ((b * HEADS * GROUP + head) * D)[:, None] + d[None, :], mask=inside[:, None])
    most = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    sums = tl.zeros((ROWS,), dtype=tl.float32)
    acc = tl.zeros((ROWS, D), dtype=tl.float32)
    length = tl.cdiv(S, PARTS)
    for n in range(p * length, min((p + 1) * length, S), BN):
        rn = n + tl.arange(0, BN)
        here = rn < min((p + 1) * length, S)
        place = ((b * S + rn) * HEADS + h) * D
        K = tl.load(k + place[None, :] + d[:, None], mask=here[None, :], other=0.0)
        s = tl.dot(Q, K) * scale * 1.44269504
        s = tl.where(here[None, :], s, float("-inf"))
        now = tl.maximum(most, tl.max(s, 1))
        e = tl.math.exp2(s - now[:, None])
        less = tl.math.exp2(most - now)
        V = tl.load(v + place[:, None] + d[None, :], mask=here[:, None], other=0.0)
        acc = acc * less[:, None] + tl.dot(e.to(V.dtype), V)
        sums = sums * less + tl.sum(e, 1)
        most = now
    row = (b * HEADS * GROUP + head) * PARTS + p
    tl.store(part + row[:, None] * D + d[None, :], acc / sums[:, None], mask=inside[:, None])
    tl.store(largest + row, most, mask=inside)
    tl.store(total + row, sums, mask=inside)


@triton.jit
def decode_sum(part, largest, total, o, D: tl.constexpr, PARTS: tl.constexpr):
    """The parts of a head's result, put together."""
    row, d, p = tl.program_id(0), tl.arange(0, D), tl.arange(0, PARTS)
    most = tl.load(largest + row * PARTS + p)
    weight = tl.load(total + row * PARTS + p) * tl.math.exp2(most - tl.max(most, 0))
    values = tl.load(part + (row * PARTS + p)[:, None] * D + d[None, :])
    result = tl.sum(values * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(o + row * D + d, result.to(o.dtype.element_ty))


@triton.autotune(
    [
        triton.Config({"BM": m, "BN": n}, num_warps=w, num_stages=s)
        for m, n, w, s in ((128, 64, 4, 3), (128, 128, 8, 3), (64, 64, 4, 3))
    ],
    key=["S", "WINDOW", "D"],
)
@triton.jit
def window_attention(
    q, k, v, o, scale, S, WINDOW, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Causal attention over the last WINDOW keys. q, k, v, o: [batch · heads, S, D]."""
    i, h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rm, d = i * BM + tl.arange(0, BM), tl.arange(0, D)
    base = h * S * D
    Q = tl.load(q + base + rm[:, None] * D + d[None, :], mask=rm[:, None] < S, other=0.0)
    most = tl.full((BM,), float("-inf"), dtype=tl.float32)
    sums = tl.full((BM,), 0.0, dtype=tl.float32)
    acc = tl.zeros((BM, D), dtype=tl.float32)
    first = tl.maximum(0, (i * BM - WINDOW + 1) // BN * BN)
    for n in range(first, tl.minimum((i + 1) * BM, S), BN):
        rn = n + tl.arange(0, BN)
        K = tl.load(k + base + rn[None, :] * D + d[:, None], mask=rn[None, :] < S, other=0.0)
        s = tl.dot(Q, K) * (scale * 1.44269504)
        gap = rm[:, None] - rn[None, :]
        s = tl.where((gap >= 0) & (gap < WINDOW), s, -1.0e6)
        now = tl.maximum(most, tl.max(s, 1))
        e = tl.math.exp2(s - now[:, None])
        less = tl.math.exp2(most - now)
        V = tl.load(v + base + rn[:, None] * D + d[None, :], mask=rn[:, None] < S, other=0.0)
        acc = acc * less[:, None] + tl.dot(e.to(V.dtype), V)
        sums = sums * less + tl.sum(e, 1)
        most = now
    acc = acc / sums[:, None]
    out = o + base + rm[:, None] * D + d[None, :]
    tl.store(out, acc.to(o.dtype.element_ty), mask=rm[:, None] < S)


@triton.autotune(
    [triton.Config({}, num_warps=w, num_stages=s) for w, s in ((4, 2), (8, 2), (4, 3))], key=["S"]
)
@triton.jit
def retention(q, k, v, o, S, D: tl.constexpr, BLOCK: tl.constexpr):
    """o[i] = sum over j ≤ i of γ^(i - j) (q[i] · k[j]) v[j], a program for each head."""
    h, r, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK), tl.arange(0, D)
    decay = -tl.math.exp2(-5.0 - (h % 8).to(tl.float32))
    base = h * S * D
    inside = r[:, None] - r[None, :]
    within = tl.where(inside >= 0, tl.math.exp2(inside.to(tl.float32) * decay), 0.0)
    before = tl.math.exp2((r + 1).to(tl.float32) * decay)
    after = tl.math.exp2((BLOCK - 1 - r).to(tl.float32) * decay)
    state = tl.zeros((D, D), dtype=tl.float32)
    for n in range(0, S, BLOCK):
        place = base + (n + r)[:, None] * D + d[None, :]
        Q, K, V = tl.load(q + place), tl.load(k + place), tl.load(v + place)
        s = tl.dot(Q, tl.trans(K)) * within
        out = tl.dot(s.to(V.dtype), V) + tl.dot(Q, state.to(Q.dtype)) * before[:, None]
        kept = (K.to(tl.float32) * after[:, None]).to(V.dtype)
        state = state * tl.math.exp2(decay * BLOCK) + tl.dot(tl.trans(kept), V)
        tl.store(o + place, out.to(o.dtype.element_ty))
