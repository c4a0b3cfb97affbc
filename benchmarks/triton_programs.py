"""Kernels in Triton's language as its users write them, of kinds that no package's case has.

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


@triton.jit
def residual_norm(x, r, w, y, total, N, eps, BLOCK: tl.constexpr):
    """total = x + r; y = w total / rms(total)."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    inside = c < N
    a = tl.load(x + row * N + c, mask=inside, other=0.0).to(tl.float32)
    a += tl.load(r + row * N + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + row * N + c, a.to(total.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(a * a, 0) / N + eps)
    value = a * scale * tl.load(w + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * N + c, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def quantize_rows(x, y, scales, N, BLOCK: tl.constexpr):
    """y = x / scale in float8, the scale of a row its largest magnitude / 448."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(x + row * N + c, mask=c < N, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(a), 0), 1e-12) / 448.0
    tl.store(scales + row, scale)
    tl.store(y + row * N + c, (a / scale).to(y.dtype.element_ty), mask=c < N)


@triton.jit
def loss_of_rows(x, target, loss, N, BLOCK: tl.constexpr):
    """log of the sum of exponentials of a row, less its target's element; a pass over the row."""
    row = tl.program_id(0).to(tl.int64)
    most = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for n in range(0, N, BLOCK):
        c = n + tl.arange(0, BLOCK)
        a = tl.load(x + row * N + c, mask=c < N, other=-1.0e30).to(tl.float32)
        now = tl.maximum(most, a)
        sums = sums * tl.exp(most - now) + tl.exp(a - now)
        most = now
    top = tl.max(most, 0)
    total = tl.sum(sums * tl.exp(most - top), 0)
    own = tl.load(x + row * N + tl.load(target + row)).to(tl.float32)
    tl.store(loss + row, tl.log(total) + top - own)


@triton.jit
def route(x, weights, experts, N: tl.constexpr, TOP: tl.constexpr, ROWS: tl.constexpr):
    """The TOP largest of N logits of a token, and their softmax."""
    r, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, N)
    a = tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32)
    first = tl.max(a, 1)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for t in tl.static_range(TOP):
        best, at = tl.max(a, 1, return_indices=True)
        e = tl.exp(best - first)
        total += e
        tl.store(weights + r * TOP + t, e)
        tl.store(experts + r * TOP + t, at)
        a = tl.where(c[None, :] == at[:, None], float("-inf"), a)
    for t in tl.static_range(TOP):
        tl.store(weights + r * TOP + t, tl.load(weights + r * TOP + t) / total)


@triton.jit
def bag(table, index, y, N, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """y[i] = mean of the table's rows index[i, :]."""
    row, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for t in range(LENGTH):
        at = tl.load(index + row * LENGTH + t)
        acc += tl.load(table + at * N + c, mask=c < N, other=0.0).to(tl.float32)
    tl.store(y + row * N + c, (acc / LENGTH).to(y.dtype.element_ty), mask=c < N)


@triton.jit
def scatter_rows(x, index, y, N, BLOCK: tl.constexpr):
    """y[index[i]] += x[i]."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    at = tl.load(index + row)
    a = tl.load(x + row * N + c, mask=c < N, other=0.0).to(tl.float32)
    tl.atomic_add(y + at * N + c, a, mask=c < N)


@triton.jit
def depthwise(x, w, y, H, W, C, BW: tl.constexpr, BC: tl.constexpr):
    """3 × 3 depthwise convolution of images [.., H, W, C], zeros around."""
    row, j, cc = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, i = row // H, row % H
    rw, rc = j * BW + tl.arange(0, BW), cc * BC + tl.arange(0, BC)
    acc = tl.zeros((BW, BC), dtype=tl.float32)
    for a in tl.static_range(3):
        for b in tl.static_range(3):
            h, at = i + a - 1, rw + b - 1
            here = (h >= 0) & (h < H) & (at >= 0) & (at < W)
            place = x + ((n * H + h) * W + at)[:, None] * C + rc[None, :]
            value = tl.load(place, mask=here[:, None] & (rc[None, :] < C), other=0.0)
            weight = tl.load(w + (a * 3 + b) * C + rc, mask=rc < C, other=0.0)
            acc += value.to(tl.float32) * weight[None, :].to(tl.float32)
    out = y + ((n * H + i) * W + rw)[:, None] * C + rc[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=(rw[:, None] < W) & (rc[None, :] < C))


@triton.jit
def running_sum(x, y, N, BLOCK: tl.constexpr):
    """Running sums of rows, a part of a row at a time."""
    row = tl.program_id(0).to(tl.int64)
    before = 0.0
    for n in range(0, N, BLOCK):
        c = n + tl.arange(0, BLOCK)
        a = tl.load(x + row * N + c, mask=c < N, other=0.0)
        tl.store(y + row * N + c, tl.cumsum(a, 0) + before, mask=c < N)
        before += tl.sum(a, 0)


@triton.jit
def transposed(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """y = xᵀ."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    a = tl.load(x + rm[:, None] * N + rn[None, :], mask=inside)
    tl.store(y + rn[:, None] * M + rm[None, :], tl.trans(a), mask=tl.trans(inside))


@triton.jit
def adam_step(p, g, m, v, lr, beta1, beta2, eps, decay, c1, c2, N, BLOCK: tl.constexpr):
    """A step of AdamW, in place; moments in float32."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    grad = tl.load(g + i, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(m + i, mask=inside, other=0.0) * beta1 + grad * (1 - beta1)
    second = tl.load(v + i, mask=inside, other=0.0) * beta2 + grad * grad * (1 - beta2)
    value = tl.load(p + i, mask=inside, other=0.0).to(tl.float32) * (1 - lr * decay)
    value -= lr * (first / c1) / (tl.sqrt(second / c2) + eps)
    tl.store(m + i, first, mask=inside)
    tl.store(v + i, second, mask=inside)
    tl.store(p + i, value.to(p.dtype.element_ty), mask=inside)
