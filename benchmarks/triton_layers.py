"""Layers of models in Triton's language as its users write them, all with dots: a second set, of
kinds that neither a package's case nor `triton_programs` has.

`triton_written_layers` says how each is called; `triton_kernels` races them by tkc beside Triton.
The module is imported in a process where the name `triton` means one or the other.
"""

import triton
import triton.language as tl


def _configs(*choices):
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in choices
    ]


@triton.autotune(
    _configs((128, 128, 128, 8, 3), (64, 128, 128, 4, 3), (64, 64, 128, 4, 4)),
    key=["M", "N", "K"],
)
@triton.jit
def blockwise_float8(
    a, b, c, sa, sb, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """c = a bᵀ of float8: a scale for 128 elements of a row of a, one for 128 x 128 of b."""
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    pa = a + rm[:, None] * K + rk[None, :]
    pb = b + rn[None, :] * K + rk[:, None]
    psa = sa + rm * (K // BK)
    psb = sb + (rn // BK) * (K // BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(tl.cdiv(K, BK)):
        x = tl.load(pa, mask=rm[:, None] < M, other=0.0)
        y = tl.load(pb, mask=rn[None, :] < N, other=0.0)
        left = tl.load(psa, mask=rm < M, other=0.0)
        right = tl.load(psb, mask=rn < N, other=0.0)
        acc += tl.dot(x, y) * left[:, None] * right[None, :]
        pa += BK
        pb += BK
        psa += 1
        psb += 1
    out = c + rm[:, None] * N + rn[None, :]
    tl.store(out, acc.to(c.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.autotune(
    _configs((16, 64, 128, 4, 4), (32, 64, 64, 4, 4), (64, 64, 64, 4, 4), (64, 128, 64, 8, 3)),
    key=["M", "N", "K"],
)
@triton.jit
def gptq_product(
    x,
    packed,
    zeros,
    scales,
    y,
    M,
    N,
    K,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y = x ((packed - zeros) scales): 4 bits, eight rows of k in a word, groups along k."""
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    px = x + rm[:, None] * K + rk[None, :]
    pw = packed + (rk[:, None] // 8) * N + rn[None, :]
    shift = (rk % 8) * 4
    zero_shift = (rn % 8) * 4
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        group = k // GROUP
        a = tl.load(px, mask=rm[:, None] < M, other=0.0)
        words = tl.load(pw)
        scale = tl.load(scales + group * N + rn)
        zero = (tl.load(zeros + group * (N // 8) + rn // 8) >> zero_shift) & 15
        w = ((words >> shift[:, None]) & 15) - zero[None, :]
        acc += tl.dot(a, (w * scale[None, :]).to(x.dtype.element_ty))
        px += BK
        pw += (BK // 8) * N
    out = y + rm[:, None] * N + rn[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=rm[:, None] < M)


@triton.autotune(
    _configs((128, 128, 64, 8, 3), (128, 128, 32, 8, 4), (64, 128, 64, 4, 3)), key=["C", "F"]
)
@triton.jit
def convolution(x, w, y, B, H, W, C, F, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = x * w, 3 x 3 with a border of zeros, channels last; w is [3, 3, C, F]."""
    i, j = tl.program_id(0), tl.program_id(1)
    place, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    column, row, image = place % W, place // W % H, place // (W * H)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for tap in range(9):
        r, s = row + tap // 3 - 1, column + tap % 3 - 1
        inside = (r >= 0) & (r < H) & (s >= 0) & (s < W) & (image < B)
        base = ((image * H + r) * W + s) * C
        for c in range(0, C, BK):
            a = tl.load(x + base[:, None] + c + rk[None, :], mask=inside[:, None], other=0.0)
            b = tl.load(w + (tap * C + c + rk[:, None]) * F + rn[None, :])
            acc = tl.dot(a, b, acc)
    out = y + place[:, None] * F + rn[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=place[:, None] < B * H * W)


@triton.jit
def paged_attention(
    q, k, v, pages, lengths, o, scale, S, PAGES, H, GROUP, BM: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """Causal attention of a sequence's last S queries on all its keys, which lie in pages."""
    i, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, d, n = i * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, PAGE)
    length = tl.load(lengths + b)
    at = length - S + rows
    query = q + ((b * S + rows[:, None]) * H + h) * D + d[None, :]
    x = tl.load(query, mask=rows[:, None] < S, other=0.0)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = length - S + (i + 1) * BM
    for p in range(0, tl.cdiv(tl.minimum(end, length), PAGE)):
        page = tl.load(pages + b * PAGES + p).to(tl.int64)
        base = (page * PAGE * (H // GROUP) + h // GROUP) * D
        step = (H // GROUP) * D
        keys = tl.load(k + base + n[None, :] * step + d[:, None])
        s = tl.dot(x, keys) * (scale * 1.44269504)
        s = tl.where(p * PAGE + n[None, :] <= at[:, None], s, float("-inf"))
        now = tl.maximum(largest, tl.max(s, 1))
        e = tl.math.exp2(s - now[:, None])
        fade = tl.math.exp2(largest - now)
        values = tl.load(v + base + n[:, None] * step + d[None, :])
        acc = acc * fade[:, None]
        acc = tl.dot(e.to(v.dtype.element_ty), values, acc)
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = o + ((b * S + rows[:, None]) * H + h) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty), mask=rows[:, None] < S)


@triton.jit
def bias_attention(
    q, k, v, bias, o, scale, M, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Attention of M queries on N keys with a matrix of biases for each head."""
    i, h = tl.program_id(0), tl.program_id(1)
    rows, d, n = i * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + (h * M + rows[:, None]) * D + d[None, :])
    largest = tl.full((BM,), -1.0e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        keys = tl.load(k + (h * N + start + n[:, None]) * D + d[None, :])
        s = tl.dot(x, tl.trans(keys)) * scale
        s += tl.load(bias + (h * M + rows[:, None]) * N + start + n[None, :]).to(tl.float32)
        now = tl.maximum(largest, tl.max(s, 1))
        e = tl.exp(s - now[:, None])
        fade = tl.exp(largest - now)
        values = tl.load(v + (h * N + start + n[:, None]) * D + d[None, :])
        acc = acc * fade[:, None] + tl.dot(e.to(v.dtype.element_ty), values)
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = o + (h * M + rows[:, None]) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def recurrent_cell(x, w, h0, y, B, T, BM: tl.constexpr, D: tl.constexpr):
    """h = tanh(x[t] + h w) over T steps; y[t] = h. Each program has BM sequences."""
    rows, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    weights = tl.load(w + d[:, None] * D + d[None, :])
    h = tl.load(h0 + rows[:, None] * D + d[None, :]).to(tl.float32)
    for t in range(T):
        at = (rows[:, None] * T + t) * D + d[None, :]
        z = tl.load(x + at).to(tl.float32) + tl.dot(h.to(w.dtype.element_ty), weights)
        h = 1.0 - 2.0 / (tl.exp(2.0 * z) + 1.0)
        tl.store(y + at, h.to(y.dtype.element_ty))


@triton.jit
def nearest_centre(
    x, c, norms, best, which, N, K, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """which[i] = the c[j] nearest to x[i], by |c|² - 2 x c."""
    rows, d, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    points = tl.load(x + rows[:, None] * D + d[None, :], mask=rows[:, None] < N, other=0.0)
    least = tl.full((BM,), float("inf"), tl.float32)
    at = tl.zeros((BM,), tl.int32)
    for j in range(0, K, BN):
        centres = tl.load(c + (j + n[None, :]) * D + d[:, None])
        far = tl.load(norms + j + n)[None, :] - 2.0 * tl.dot(points, centres)
        here, index = tl.min(far, 1), tl.argmin(far, 1)
        at = tl.where(here < least, j + index, at)
        least = tl.minimum(least, here)
    tl.store(best + rows, least, mask=rows < N)
    tl.store(which + rows, at, mask=rows < N)


@triton.jit
def norm_linear(x, g, w, y, M, N, K, eps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = rms_norm(x) g w: a row's square sum is made beside the product."""
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :]).to(tl.float32)
        squares += tl.sum(a * a, 1)
        a = a * tl.load(g + k + rk).to(tl.float32)[None, :]
        b = tl.load(w + (k + rk[:, None]) * N + rn[None, :])
        acc += tl.dot(a.to(w.dtype.element_ty), b)
    acc *= tl.rsqrt(squares / K + eps)[:, None]
    tl.store(y + rm[:, None] * N + rn[None, :], acc.to(y.dtype.element_ty))


@triton.jit
def classify(x, w, y, M, K, BM: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    """y = softmax(x w), a program has whole rows."""
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros((BM, N), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :])
        acc = tl.dot(a, tl.load(w + (k + rk[:, None]) * N + rn[None, :]), acc)
    e = tl.exp(acc - tl.max(acc, 1)[:, None])
    p = e / tl.sum(e, 1)[:, None]
    tl.store(y + rm[:, None] * N + rn[None, :], p.to(y.dtype.element_ty))


@triton.autotune(_configs((128, 128, 64, 8, 3), (128, 128, 64, 4, 4)), key=["M", "K"])
@triton.jit
def symmetric_product(x, y, M, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = x xᵀ: blocks above the diagonal are those below it, transposed."""
    i, j = tl.program_id(0), tl.program_id(1)
    if i < j:
        return
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :])
        b = tl.load(x + rn[:, None] * K + k + rk[None, :])
        acc = tl.dot(a, b.T, acc)
    value = acc.to(y.dtype.element_ty)
    tl.store(y + rm[:, None] * M + rn[None, :], value)
    if i > j:
        tl.store(y + rn[:, None] * M + rm[None, :], value.T)


@triton.jit
def linear_loss(x, w, target, loss, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Loss of the rows of x wᵀ, whose columns are never in memory."""
    rows, n, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    label = tl.load(target + rows)
    largest = tl.full((BM,), -1.0e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    own = tl.zeros((BM,), tl.float32)
    for j in range(0, N, BN):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            a = tl.load(x + rows[:, None] * K + k + rk[None, :])
            b = tl.load(w + (j + n[:, None]) * K + k + rk[None, :])
            acc = tl.dot(a, tl.trans(b), acc)
        own += tl.sum(tl.where(j + n[None, :] == label[:, None], acc, 0.0), 1)
        now = tl.maximum(largest, tl.max(acc, 1))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(acc - now[:, None]), 1)
        largest = now
    tl.store(loss + rows, largest + tl.log(total) - own)


@triton.autotune(
    _configs((128, 128, 32, 8, 3), (128, 128, 32, 4, 3), (64, 64, 32, 4, 4)), key=["M"]
)
@triton.jit
def float32_product(x, w, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = x w of float32, on tensor cores as tf32."""
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :])
        b = tl.load(w + (k + rk[:, None]) * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(y + rm[:, None] * N + rn[None, :], acc)


@triton.autotune(_configs((128, 128, 64, 8, 3), (64, 128, 64, 4, 4)), key=["N", "K"])
@triton.jit
def expert_product(
    x, w, y, token, expert, TOP, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y[p] = x[token[p] / TOP] w[expert of p's block]: places of a block belong to one expert."""
    i, j = tl.program_id(0), tl.program_id(1)
    rn, rk = j * BN + tl.arange(0, BN), tl.arange(0, BK)
    place = i * BM + tl.arange(0, BM)
    row = tl.load(token + place)
    e = tl.load(expert + i * BM // 128).to(tl.int64)
    px = x + (row[:, None] // TOP) * K + rk[None, :]
    pw = w + e * K * N + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc += tl.dot(tl.load(px), tl.load(pw))
        px += BK
        pw += BK * N
    tl.store(y + place[:, None] * N + rn[None, :], acc.to(y.dtype.element_ty))
