"""Products in Triton's language as its users write them: those of the seventh set without softmax.
See triton_heads.
"""

import triton
import triton.language as tl


def _configs(*choices):
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in choices
    ]


@triton.autotune(
    _configs((64, 128, 128, 4, 3), (128, 128, 128, 8, 3), (64, 64, 128, 4, 4)), key=["N", "K"]
)
@triton.jit
def float8_experts(
    x,
    xs,
    w,
    ws,
    share,
    token,
    expert,
    y,
    TOKENS,
    N,
    K,
    TOP: tl.constexpr,
    LIST: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Rows of tokens by the matrices of their experts in float8, scales of 1 x 128 and 128 x 128. A
    list names TOKENS TOP rows by expert, filled up to LIST rows each with numbers beyond.
    """
    pid, across = tl.program_id(0), tl.cdiv(N, BN)
    i, j = pid // across, pid % across
    rows = tl.load(token + i * BM + tl.arange(0, BM))
    own = tl.load(expert + i * BM // LIST)
    valid = rows < TOKENS * TOP
    rn, rk = j * BN + tl.arange(0, BN), tl.arange(0, BK)
    x_at = x + (rows // TOP)[:, None] * K + rk[None, :]
    w_at = w + own.to(tl.int64) * N * K + rn[None, :] * K + rk[:, None]
    groups = K // BK
    ws += (own * (N // 128) + rn // 128) * groups
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(groups):
        a = tl.load(x_at, mask=valid[:, None], other=0.0)
        left = tl.load(xs + rows // TOP * groups + k, mask=valid, other=0.0)
        acc += tl.dot(a, tl.load(w_at)) * left[:, None] * tl.load(ws + k)[None, :]
        x_at += BK
        w_at += BK
    acc *= tl.load(share + rows, mask=valid, other=0.0)[:, None]
    at = y + rows[:, None] * N + rn[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=valid[:, None])


@triton.jit
def listed_products(x, z, row, column, y, K, BS: tl.constexpr, BK: tl.constexpr):
    """x zᵀ at listed blocks of BS x BS alone: y: [blocks, BS, BS]."""
    block = tl.program_id(0)
    s, rk = tl.arange(0, BS), tl.arange(0, BK)
    rm, rn = tl.load(row + block) * BS + s, tl.load(column + block) * BS + s
    acc = tl.zeros((BS, BS), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :])
        b = tl.load(z + rn[None, :] * K + k + rk[:, None])
        acc = tl.dot(a, b, acc)
    at = y + block * BS * BS + s[:, None] * BS + s[None, :]
    tl.store(at, acc.to(y.dtype.element_ty))


@triton.autotune(_configs((128, 128, 64, 8, 3), (128, 256, 64, 8, 3)), key=["M", "N"])
@triton.jit
def gradients_of_experts(
    x, dy, first, dw, M, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """dw[e] = xᵀ dy over the rows of expert e, as many as it has."""
    i, j, e = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    begin, end = tl.load(first + e), tl.load(first + e + 1)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(begin, end, BK):
        t = (start + rk)[:, None]
        a = tl.load(x + t * M + rm[None, :], mask=t < end, other=0.0)
        b = tl.load(dy + t * N + rn[None, :], mask=t < end, other=0.0)
        acc = tl.dot(a.T, b, acc)
    at = (e * M + rm[:, None]) * N + rn[None, :]
    tl.store(dw + at, acc.to(dw.dtype.element_ty))


@triton.jit
def gated_to_float8(x, w, y, scale, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """silu(gate) up of a product whose columns are gates and others in turn, in float8 with a scale
    for each BN / 2 of a row: as many programs as the GPU holds take tiles in turn. w: [N, K].
    """
    half: tl.constexpr = BN // 2
    tall = tl.cdiv(M, BM)
    for tile in tl.range(tl.program_id(0), tall * (N // BN), tl.num_programs(0)):
        i, j = tile % tall, tile // tall
        rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            a = tl.load(x + rm[:, None] * K + k + rk[None, :], mask=rm[:, None] < M, other=0.0)
            b = tl.load(w + rn[None, :] * K + k + rk[:, None])
            acc = tl.dot(a, b, acc)
        gate, up = tl.split(tl.reshape(acc, (BM, half, 2)))
        out = gate * tl.sigmoid(gate) * up
        most = tl.maximum(tl.max(tl.abs(out), 1), 1e-10) / 448.0
        rh = j * half + tl.arange(0, half)
        value = tl.clamp(out / most[:, None], -448.0, 448.0).to(y.dtype.element_ty)
        tl.store(y + rm[:, None] * (N // 2) + rh[None, :], value, mask=rm[:, None] < M)
        tl.store(scale + rm * (N // BN) + j, most, mask=rm < M)


@triton.jit
def products_of_odd_sizes(
    x,
    z,
    y,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Products of many small matrices whose sizes are no powers of 2."""
    batch = tl.program_id(0).to(tl.int64)
    m, n, k = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BK)
    a = tl.load(x + batch * M * K + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
    b = tl.load(z + batch * K * N + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
    out = tl.dot(a, b).to(y.dtype.element_ty)
    tl.store(y + batch * M * N + m * N + n, out, mask=(m < M) & (n < N))


@triton.jit
def gradients_of_losses(
    x,
    w,
    lse,
    target,
    dx,
    T,
    V,
    D,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Gradients of rows by the loss of a linear layer: a tile's logits are computed again, and what
    its classes give is added to the rows.
    """
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, D, BK):
        a = tl.load(x + rm[:, None] * D + k + rk[None, :], mask=rm[:, None] < T, other=0.0)
        b = tl.load(w + rn[None, :] * D + k + rk[:, None], mask=rn[None, :] < V, other=0.0)
        acc = tl.dot(a, b, acc)
    p = tl.exp(acc - tl.load(lse + rm, mask=rm < T, other=0.0)[:, None])
    wanted = tl.load(target + rm, mask=rm < T, other=-1)
    p -= (wanted[:, None] == rn[None, :]).to(tl.float32)
    p = tl.where((rm[:, None] < T) & (rn[None, :] < V), p / T, 0.0).to(w.dtype.element_ty)
    for k in range(0, D, BK):
        b = tl.load(w + rn[:, None] * D + k + rk[None, :], mask=rn[:, None] < V, other=0.0)
        at = dx + rm[:, None] * D + k + rk[None, :]
        tl.atomic_add(at, tl.dot(p, b), mask=rm[:, None] < T, sem="relaxed")


@triton.autotune(_configs((64, 64, 64, 4, 3), (128, 128, 64, 8, 3)), key=["M", "N", "K"])
@triton.jit
def normal_float4(
    x,
    packed,
    most,
    most_scale,
    most_mean,
    table,
    y,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y = x wᵀ of weights of 4 bits, which say where a table has them (NF4), with scales for each
    BK = 64 of a row that are bytes themselves, with a scale for each 256 of them.
    """
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    rk, rp = tl.arange(0, BK), tl.arange(0, BK // 2)
    mean = tl.load(most_mean)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K // BK):
        a = tl.load(x + rm[:, None] * K + k * BK + rk[None, :], mask=rm[:, None] < M, other=0.0)
        pairs = tl.load(packed + rn[:, None] * (K // 2) + k * (BK // 2) + rp[None, :])
        group = rn * (K // BK) + k
        scale = tl.load(most + group).to(tl.float32) * tl.load(most_scale + group // 256) + mean
        high = tl.load(table + (pairs >> 4).to(tl.int32))
        low = tl.load(table + (pairs & 15).to(tl.int32))
        b = tl.reshape(tl.join(high, low), (BN, BK)) * scale[:, None]
        acc = tl.dot(a, tl.trans(b.to(a.dtype)), acc)
    at = y + rm[:, None] * N + rn[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=rm[:, None] < M)


@triton.jit
def triangle_products(x, z, y, N, C, BI: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr):
    """y[i, j, c] = sum over k of x[i, k, c] z[j, k, c]: a product for each channel, channels last,
    as the pairs of a protein are updated along triangles.
    """
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    j = tl.program_id(1) * BI + tl.arange(0, BI)
    c, rk = tl.program_id(2) * BC + tl.arange(0, BC), tl.arange(0, BK)
    left = x + i[:, None, None] * N * C + rk[None, :, None] * C + c[None, None, :]
    right = z + j[:, None, None] * N * C + rk[None, :, None] * C + c[None, None, :]
    acc = tl.zeros((BC, BI, BI), tl.float32)
    for _ in range(0, N, BK):
        a = tl.permute(tl.load(left), (2, 0, 1))
        b = tl.permute(tl.load(right), (2, 1, 0))
        acc = tl.dot(a, b, acc)
        left += BK * C
        right += BK * C
    out = tl.permute(acc, (1, 2, 0)).to(y.dtype.element_ty)
    tl.store(y + (i[:, None, None] * N + j[None, :, None]) * C + c[None, None, :], out)


@triton.jit
def spectra(
    sound,
    real,
    imaginary,
    filters,
    y,
    L,
    T,
    STEP: tl.constexpr,
    WIDTH: tl.constexpr,
    BINS: tl.constexpr,
    MELS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Logarithms of mel spectra of frames of WIDTH samples, STEP apart: Fourier transforms by two
    products with matrices, their powers by one with filters.
    """
    t, batch = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1)
    mel, bins, rk = tl.arange(0, MELS), tl.arange(0, BN), tl.arange(0, BK)
    sound += batch.to(tl.int64) * L
    acc = tl.zeros((BM, MELS), tl.float32)
    for n in range(0, BINS, BN):
        re, im = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
        for k in range(0, WIDTH, BK):
            at = t[:, None] * STEP + k + rk[None, :]
            a = tl.load(sound + at, mask=at < L, other=0.0)
            base = (k + rk[:, None]) * BINS + n + bins[None, :]
            re = tl.dot(a, tl.load(real + base), re)
            im = tl.dot(a, tl.load(imaginary + base), im)
        weights = tl.load(filters + (n + bins[:, None]) * MELS + mel[None, :])
        acc = tl.dot(re * re + im * im, weights, acc)
    out = tl.log(tl.maximum(acc, 1e-10)) * 0.4342944819
    tl.store(y + (batch * T + t[:, None]) * MELS + mel[None, :], out, mask=t[:, None] < T)


@triton.autotune(_configs((128, 128, 32, 8, 3), (64, 128, 64, 4, 3)), key=["M", "N", "K"])
@triton.jit
def polynomial_layer(
    x,
    coefficient,
    y,
    M,
    N,
    K,
    DEGREE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A layer of learned functions: each is a sum of Chebyshev polynomials of tanh(x), which are
    computed where they are multiplied. coefficient: [DEGREE + 1, K, N].
    """
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn, rk = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :], mask=rm[:, None] < M, other=0.0)
        u = 2.0 * tl.sigmoid(2.0 * a.to(tl.float32)) - 1.0
        once, now = tl.full((BM, BK), 1.0, tl.float32), u
        at = coefficient + (k + rk[:, None]) * N + rn[None, :]
        acc = tl.dot(once.to(x.dtype.element_ty), tl.load(at), acc)
        for i in tl.static_range(1, DEGREE + 1):
            acc = tl.dot(now.to(x.dtype.element_ty), tl.load(at + i * K * N), acc)
            later = 2.0 * u * now - once
            once = now
            now = later
    out = y + rm[:, None] * N + rn[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=rm[:, None] < M)


@triton.jit
def sparse_convolution(
    x,
    near,
    w,
    y,
    N,
    C,
    F,
    TAPS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A convolution of voxels that are listed: near[tap, n] is the voxel in a neighbour's place, or
    -1. w: [TAPS, C, F].
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    f, rk = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for tap in range(TAPS):
        rows = tl.load(near + tap * N + m, mask=m < N, other=-1)
        if tl.max(rows, 0) >= 0:
            for k in range(0, C, BK):
                at = rows[:, None] * C + k + rk[None, :]
                a = tl.load(x + at, mask=rows[:, None] >= 0, other=0.0)
                b = tl.load(w + (tap * C + k + rk[:, None]) * F + f[None, :])
                acc = tl.dot(a, b, acc)
    out = tl.maximum(acc, 0.0).to(y.dtype.element_ty)
    tl.store(y + m[:, None] * F + f[None, :], out, mask=m[:, None] < N)
