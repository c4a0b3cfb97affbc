"""Kernels of models in Triton's language as its users write them: a fifth set, of kinds that the
sets before have not, those with dots. `triton_written_models` says how each is called.
"""

import triton
import triton.language as tl


def _configs(*choices):
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in choices
    ]


@triton.jit
def _in_groups(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The tile of a program: GROUP rows of tiles at a time."""
    pid, rows, columns = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * columns)
    size = min(rows - group * GROUP, GROUP)
    within = pid % (GROUP * columns)
    return group * GROUP + within % size, within // size


@triton.autotune(
    _configs((128, 128, 64, 8, 3), (64, 256, 64, 8, 3), (64, 128, 64, 4, 4)), key=["M", "F", "K"]
)
@triton.jit
def swiglu_gradient(
    dy,
    w,
    gate,
    up,
    dgate,
    dup,
    M,
    F,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Gradients of silu(gate) up from that of its product with w: [F, K]."""
    i, j = _in_groups(M, F, BM, BN, 8)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    a, b = dy + rm[:, None] * K + rk[None, :], w + rn[None, :] * K + rk[:, None]
    dh = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a, mask=(rm[:, None] < M) & (rk[None, :] < K - k), other=0.0)
        y = tl.load(b, mask=(rn[None, :] < F) & (rk[:, None] < K - k), other=0.0)
        dh = tl.dot(x, y, dh)
        a += BK
        b += BK
    at = rm[:, None] * F + rn[None, :]
    inside = (rm[:, None] < M) & (rn[None, :] < F)
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    tl.store(dup + at, (dh * g * s).to(dup.dtype.element_ty), mask=inside)
    slope = s * (1.0 + g * (1.0 - s))
    tl.store(dgate + at, (dh * u * slope).to(dgate.dtype.element_ty), mask=inside)


@triton.autotune(
    _configs((128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (64, 128, 64, 4, 4)), key=["M", "N", "K"]
)
@triton.jit
def adapted_product(
    x,
    w,
    a,
    b,
    y,
    scale,
    M,
    N,
    K,
    R: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y = x w + scale (x a) b with a of R columns, in one pass over x."""
    i, j = _in_groups(M, N, BM, BN, 8)
    rm, rn = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    rk, rr = tl.arange(0, BK), tl.arange(0, R)
    acc = tl.zeros((BM, BN), tl.float32)
    low = tl.zeros((BM, R), tl.float32)
    for k in range(0, K, BK):
        u = tl.load(x + rm[:, None] * K + (k + rk)[None, :], mask=rm[:, None] < M, other=0.0)
        acc = tl.dot(u, tl.load(w + (k + rk)[:, None] * N + rn[None, :]), acc)
        low = tl.dot(u, tl.load(a + (k + rk)[:, None] * R + rr[None, :]), low)
    second = tl.load(b + rr[:, None] * N + rn[None, :])
    acc = tl.dot((low * scale).to(second.dtype), second, acc)
    at = y + rm[:, None] * N + rn[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=rm[:, None] < M)


@triton.jit
def spectrum(xr, xi, fr, fi, tr, ti, yr, yi, N: tl.constexpr):
    """The Fourier transform of N * N complex numbers by products with that of N: fr + i fi."""
    r, c = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    own = tl.program_id(0) * N * N + r * N + c
    ar, ai = tl.load(xr + own), tl.load(xi + own)
    br, bi = tl.load(fr + r * N + c), tl.load(fi + r * N + c)
    ur = tl.dot(br, ar) - tl.dot(bi, ai)
    ui = tl.dot(br, ai) + tl.dot(bi, ar)
    wr, wi = tl.load(tr + r * N + c), tl.load(ti + r * N + c)
    vr, vi = ur * wr - ui * wi, ur * wi + ui * wr
    vr, vi = vr.to(ar.dtype), vi.to(ar.dtype)
    zr = tl.dot(vr, br) - tl.dot(vi, bi)
    zi = tl.dot(vr, bi) + tl.dot(vi, br)
    to = tl.program_id(0) * N * N + c * N + r
    tl.store(yr + to, zr.to(yr.dtype.element_ty))
    tl.store(yi + to, zi.to(yi.dtype.element_ty))


@triton.jit
def expert_sums(
    x,
    w,
    token,
    expert,
    share,
    y,
    N,
    K,
    PAIRS,
    TOP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Tokens' sums of their experts' products: rows of pairs, in blocks of one expert, are added to
    the tokens' rows. A pair of the number PAIRS is none.
    """
    e = tl.load(expert + tl.program_id(0)).to(tl.int64)
    if e < 0:
        return
    pair = tl.load(token + tl.program_id(0) * BM + tl.arange(0, BM))
    here = pair < PAIRS
    rn, rk = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    a = x + pair[:, None] * K + rk[None, :]
    b = w + e * N * K + rn[None, :] * K + rk[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc += tl.dot(tl.load(a, mask=here[:, None], other=0.0), tl.load(b))
        a += BK
        b += BK
    acc *= tl.load(share + pair, mask=here, other=0.0)[:, None]
    to = y + (pair // TOP)[:, None] * N + rn[None, :]
    tl.atomic_add(to, acc, mask=here[:, None], sem="relaxed")


@triton.jit
def awq_product(
    x,
    packed,
    scales,
    zeros,
    y,
    M,
    N,
    K,
    G: tl.constexpr,
    SPLIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y = x w with w in words of eight numbers of 4 bits, side by side in the order of AWQ; a share
    of K is added.
    """
    i, j = tl.program_id(0) // tl.cdiv(N, BN), tl.program_id(0) % tl.cdiv(N, BN)
    order = tl.reshape((tl.arange(0, 2) * 4)[None, :] + tl.arange(0, 4)[:, None], (8,))
    shifts = tl.broadcast_to((order * 4)[None, :], (BK * (BN // 8), 8))
    shifts = tl.reshape(shifts, (BK, BN))
    group_shifts = tl.broadcast_to((order * 4)[None, :], (BN // 8, 8))
    group_shifts = tl.reshape(group_shifts, (1, BN))
    rm, rn = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    rw = j * (BN // 8) + tl.arange(0, BN // 8)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.program_id(1) * BK, K, SPLIT * BK):
        rk = k + tl.arange(0, BK)
        u = tl.load(x + rm[:, None] * K + rk[None, :], mask=rm[:, None] < M, other=0.0)
        b = tl.load(packed + rk[:, None] * (N // 8) + rw[None, :])
        b = tl.interleave(b, b)
        b = tl.interleave(b, b)
        b = tl.interleave(b, b)
        b = (b >> shifts) & 15
        z = tl.load(zeros + (k // G) * (N // 8) + rw[None, :])
        z = tl.interleave(z, z)
        z = tl.interleave(z, z)
        z = tl.interleave(z, z)
        z = (z >> group_shifts) & 15
        s = tl.load(scales + (k // G) * N + rn[None, :])
        w = ((b - z) * s).to(u.dtype)
        acc = tl.dot(u, w, acc)
    at = y + rm[:, None] * N + rn[None, :]
    tl.atomic_add(at, acc, mask=rm[:, None] < M, sem="relaxed")


@triton.jit
def patch_embedding(
    x,
    w,
    bias,
    places,
    y,
    TOKENS,
    F,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Patches of P x P of images [B, C, H, W] times w: [F, C P P], and places' rows added."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    across: tl.constexpr = W // P
    patches: tl.constexpr = (H // P) * across
    image, patch = m // patches, m % patches
    corner = image * (C * H * W) + (patch // across) * (P * W) + (patch % across) * P
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, C * P * P, BK):
        k = start + tl.arange(0, BK)
        inner = (k // (P * P)) * (H * W) + (k // P % P) * W + k % P
        a = tl.load(x + corner[:, None] + inner[None, :], mask=m[:, None] < TOKENS, other=0.0)
        acc = tl.dot(a, tl.load(w + n[None, :] * (C * P * P) + k[:, None]), acc)
    acc += tl.load(bias + n)[None, :].to(tl.float32)
    acc += tl.load(places + patch[:, None] * F + n[None, :]).to(tl.float32)
    at = y + m[:, None] * F + n[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=m[:, None] < TOKENS)


@triton.jit
def gated_cells(z, u, h0, y, B, T, BM: tl.constexpr, D: tl.constexpr):
    """T steps of a GRU: z has the input's part of three gates, u three matrices."""
    b = tl.program_id(0) * BM + tl.arange(0, BM)
    r, c = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    ur, uz = tl.load(u + r * D + c), tl.load(u + D * D + r * D + c)
    un = tl.load(u + 2 * D * D + r * D + c)
    h = tl.load(h0 + b[:, None] * D + c).to(tl.float32)
    for t in range(T):
        x = z + (t * B + b[:, None]) * (3 * D) + c
        low = h.to(u.dtype.element_ty)
        reset = tl.sigmoid(tl.load(x).to(tl.float32) + tl.dot(low, ur))
        keep = tl.sigmoid(tl.load(x + D).to(tl.float32) + tl.dot(low, uz))
        new = tl.load(x + 2 * D).to(tl.float32) + reset * tl.dot(low, un)
        new = 2.0 * tl.sigmoid(2.0 * new) - 1.0
        h = (1.0 - keep) * new + keep * h
        tl.store(y + (t * B + b[:, None]) * D + c, h.to(y.dtype.element_ty))


@triton.jit
def contrastive_gradient(
    x, z, rows, columns, dx, inverse, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """dx of a loss of N pairs among one another, whose logs of sums by rows and columns are given;
    `inverse`: one over the temperature.
    """
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    a = tl.load(x + i[:, None] * D + d[None, :], mask=i[:, None] < N, other=0.0)
    own = tl.load(rows + i, mask=i < N, other=0.0)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        j = start + tl.arange(0, BN)
        b = tl.load(z + j[:, None] * D + d[None, :], mask=j[:, None] < N, other=0.0)
        other = tl.load(columns + j, mask=j < N, other=0.0)
        s = tl.dot(a, tl.trans(b)) * inverse
        p = tl.exp(s - own[:, None]) + tl.exp(s - other[None, :])
        p = tl.where(i[:, None] == j[None, :], p - 2.0, p)
        p = tl.where(j[None, :] < N, p, 0.0)
        acc += tl.dot(p.to(b.dtype), b)
    acc *= inverse / (2.0 * N)
    at = dx + i[:, None] * D + d[None, :]
    tl.store(at, acc.to(dx.dtype.element_ty), mask=i[:, None] < N)


@triton.jit
def float8_persistent(
    x, w, sx, sw, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Float8 rows times float8 rows, scales by rows of both, by descriptors; programs take tiles in
    turn.
    """
    x_of = tl.make_tensor_descriptor(x, [M, K], [K, 1], [BM, BK])
    w_of = tl.make_tensor_descriptor(w, [N, K], [K, 1], [BN, BK])
    y_of = tl.make_tensor_descriptor(y, [M, N], [N, 1], [BM, BN])
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, tl.num_programs(0)):
        i, j = tile // across * BM, tile % across * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(x_of.load([i, k]), w_of.load([j, k]).T, acc)
        rm, rn = i + tl.arange(0, BM), j + tl.arange(0, BN)
        acc *= tl.load(sx + rm, mask=rm < M, other=0.0)[:, None]
        acc *= tl.load(sw + rn, mask=rn < N, other=0.0)[None, :]
        y_of.store([i, j], acc.to(y.dtype.element_ty))


@triton.jit
def exponentials(a, y, TERMS: tl.constexpr, SQUARES, N: tl.constexpr):
    """Exponentials of matrices of N x N: a sum of powers of a / 2^SQUARES, squared again."""
    r, c = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    at = tl.program_id(0) * N * N + r * N + c
    x = tl.load(a + at)
    for _ in range(SQUARES):
        x = x * 0.5
    one = tl.where(r == c, 1.0, 0.0)
    total = one
    for t in tl.static_range(TERMS):
        total = one + tl.dot(x, total) / (TERMS - t)
    for _ in range(SQUARES):
        total = tl.dot(total, total)
    tl.store(y + at, total)


@triton.jit
def accurate_product(
    x, w, y, M, N, K, sx, sw, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Float32 by three products of tf32, odd extents."""
    rm, rn = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        mask_x, mask_w = (
            (rm[:, None] < M) & (rk[None, :] < K),
            (rk[:, None] < K) & (rn[None, :] < N),
        )
        a = tl.load(x + rm[:, None] * sx + rk[None, :], mask=mask_x, other=0.0)
        b = tl.load(w + rk[:, None] * sw + rn[None, :], mask=mask_w, other=0.0)
        acc += tl.dot(a, b, input_precision="tf32x3")
    tl.store(y + rm[:, None] * N + rn[None, :], acc, mask=inside)


@triton.jit
def microscaled_product(
    x, w, scales, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y = x wᵀ, w of 4 bits with an exponent for 32 numbers of a row, by `tl.dot_scaled`."""
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    rk, rp, rs = tl.arange(0, BK), tl.arange(0, BK // 2), tl.arange(0, BK // 32)
    a = x + rm[:, None] * K + rk[None, :]
    b = w + rn[None, :] * (K // 2) + rp[:, None]
    s = scales + rn[:, None] * (K // 32) + rs[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        u = tl.load(a, mask=rm[:, None] < M, other=0.0)
        acc = tl.dot_scaled(u, None, "bf16", tl.load(b), tl.load(s), "e2m1", acc)
        a += BK
        b += BK // 2
        s += BK // 32
    at = y + rm[:, None] * N + rn[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=rm[:, None] < M)
