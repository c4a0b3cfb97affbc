"""Kernels on matrices in Triton's language as its users write them: a sixth set, of kinds that the
sets before have not, those with dots. `triton_written_sixth` says how each is called.
"""

import triton
import triton.language as tl


def _configs(*choices):
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in choices
    ]


@triton.autotune(
    _configs((128, 128, 128, 8, 3), (128, 128, 64, 4, 4), (64, 128, 128, 4, 4)),
    key=["M", "N", "K"],
)
@triton.jit
def zero_point_product(
    x, w, sx, zx, sw, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """int8 by int8, w: [N, K], rows of x with zero points, which the sums of w's rows take away."""
    pid, columns = tl.program_id(0), tl.cdiv(N, BN)
    rm, rn = pid // columns * BM + tl.arange(0, BM), pid % columns * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.int32)
    sums = tl.zeros((BN,), tl.int32)
    for k in range(0, tl.cdiv(K, BK)):
        at = k * BK + rk
        a = tl.load(x + rm[:, None] * K + at[None, :], mask=at[None, :] < K, other=0)
        b = tl.load(w + rn[None, :] * K + at[:, None], mask=at[:, None] < K, other=0)
        acc = tl.dot(a, b, acc)
        sums += tl.sum(b.to(tl.int32), 0)
    acc -= tl.load(zx + rm)[:, None] * sums[None, :]
    out = acc.to(tl.float32) * tl.load(sx + rm)[:, None] * tl.load(sw + rn)[None, :]
    at = rm[:, None] * N + rn[None, :]
    tl.store(y + at, out.to(y.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.autotune(
    _configs((128, 128, 64, 8, 3), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4)), key=["M", "N", "K"]
)
@triton.jit
def pruned_product(
    x, kept, place, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y = x wᵀ where of each four weights of a row two are kept: [N, K / 2], and a byte says which
    places of its four these have: [N, K / 4].
    """
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk, rg = tl.arange(0, BK), tl.arange(0, BK // 4)
    x_at = x + rm[:, None] * K + rk[None, :]
    first_at = kept + rn[:, None] * (K // 2) + 2 * rg[None, :]
    place_at = place + rn[:, None] * (K // 4) + rg[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        a = tl.load(x_at, mask=rm[:, None] < M, other=0.0)
        u, v = tl.load(first_at), tl.load(first_at + 1)
        p = tl.load(place_at).to(tl.int32)
        i, j = p & 3, (p >> 2) & 3
        w0 = tl.where(i == 0, u, tl.where(j == 0, v, 0.0))
        w1 = tl.where(i == 1, u, tl.where(j == 1, v, 0.0))
        w2 = tl.where(i == 2, u, tl.where(j == 2, v, 0.0))
        w3 = tl.where(i == 3, u, tl.where(j == 3, v, 0.0))
        w = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (BN, BK))
        acc = tl.dot(a, tl.trans(w), acc)
        x_at += BK
        first_at += BK // 2
        place_at += BK // 4
    tl.store(y + rm[:, None] * N + rn[None, :], acc.to(y.dtype.element_ty), mask=rm[:, None] < M)


@triton.jit
def kronecker_applied(x, a, b, y, P: tl.constexpr, Q: tl.constexpr):
    """Rows of P Q numbers by the Kronecker product of two matrices: a X bᵀ."""
    p, q = tl.arange(0, P), tl.arange(0, Q)
    own = tl.program_id(0).to(tl.int64) * P * Q
    u = tl.load(x + own + p[:, None] * Q + q[None, :])
    left = tl.load(a + p[:, None] * P + p[None, :])
    right = tl.load(b + q[None, :] * Q + q[:, None])
    once = tl.dot(left, u).to(u.dtype)
    out = tl.dot(once, right)
    tl.store(y + own + p[:, None] * Q + q[None, :], out.to(y.dtype.element_ty))


@triton.jit
def deformable(x, shift, w, y, H, W, C, F, BP: tl.constexpr, BF: tl.constexpr, BC: tl.constexpr):
    """A convolution of 3 x 3 whose taps lie where `shift` moves them: the nearest pixels of
    [B, H, W, C] weighted by distance, by w: [9, C, F].
    """
    image = tl.program_id(2)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    c = tl.arange(0, BC)
    inside = p < H * W
    row, column = p // W, p % W
    x += image * H * W * C
    acc = tl.zeros((BP, BF), tl.float32)
    for tap in range(9):
        at = ((image * H * W + p) * 9 + tap) * 2
        v = row + tap // 3 - 1 + tl.load(shift + at, mask=inside, other=0.0)
        u = column + tap % 3 - 1 + tl.load(shift + at + 1, mask=inside, other=0.0)
        top, left = tl.floor(v), tl.floor(u)
        dv, du = v - top, u - left
        i, j = top.to(tl.int32), left.to(tl.int32)
        for start in range(0, C, BC):
            a = tl.zeros((BP, BC), tl.float32)
            for r in tl.static_range(2):
                for s in tl.static_range(2):
                    ii, jj = i + r, j + s
                    here = inside & (ii >= 0) & (ii < H) & (jj >= 0) & (jj < W)
                    share = (dv if r else 1.0 - dv) * (du if s else 1.0 - du)
                    near = (ii * W + jj)[:, None] * C + start + c[None, :]
                    a += share[:, None] * tl.load(x + near, mask=here[:, None], other=0.0)
            b = tl.load(w + (tap * C + start + c[:, None]) * F + f[None, :])
            acc = tl.dot(a.to(b.dtype), b, acc)
    out = y + (image * H * W + p)[:, None] * F + f[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit
def grouped_convolution(
    x, w, bias, y, C, T, G: tl.constexpr, WIDTH: tl.constexpr, BT: tl.constexpr
):
    """Along time, in groups of G channels: x, y: [B, C, T], w: [WIDTH, C, G]."""
    group, batch = tl.program_id(1), tl.program_id(2)
    t, g = tl.program_id(0) * BT + tl.arange(0, BT), tl.arange(0, G)
    channel = group * G + g
    acc = tl.zeros((G, BT), tl.float32)
    for i in tl.static_range(WIDTH):
        at = t + i - WIDTH // 2
        a = tl.load(
            x + (batch * C + channel[:, None]) * T + at[None, :],
            mask=(at[None, :] >= 0) & (at[None, :] < T),
            other=0.0,
        )
        acc += tl.dot(tl.load(w + (i * C + channel[:, None]) * G + g[None, :]), a)
    acc += tl.load(bias + channel)[:, None]
    acc = tl.maximum(acc, 0.0)
    out = y + (batch * C + channel[:, None]) * T + t[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=t[None, :] < T)


@triton.jit
def packed_attention(
    q, k, v, first, slope, o, scale, H, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Causal attention inside of each of several sequences in a row, [tokens, H, D], with biases
    that fall with distance (ALiBi).
    """
    i, h, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(first + sequence)
    length = tl.load(first + sequence + 1) - begin
    if i * BM >= length:
        return
    m, n, d = i * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    fall = tl.load(slope + h)
    rows = ((begin + m[:, None]) * H + h) * D + d[None, :]
    x = tl.load(q + rows, mask=m[:, None] < length, other=0.0)
    largest = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, tl.minimum((i + 1) * BM, length), BN):
        at = start + n
        keys = ((begin + at[None, :]) * H + h) * D + d[:, None]
        s = tl.dot(x, tl.load(k + keys, mask=at[None, :] < length, other=0.0)) * scale
        s -= fall * (m[:, None] - at[None, :]).to(tl.float32)
        s = tl.where((at[None, :] <= m[:, None]) & (at[None, :] < length), s, -1e30)
        now = tl.maximum(largest, tl.max(s, 1))
        fade, e = tl.exp(largest - now), tl.exp(s - now[:, None])
        values = ((begin + at[:, None]) * H + h) * D + d[None, :]
        a = tl.load(v + values, mask=at[:, None] < length, other=0.0)
        acc = tl.dot(e.to(a.dtype), a, acc * fade[:, None])
        total = total * fade + tl.sum(e, 1)
        largest = now
    out = acc / total[:, None]
    tl.store(o + rows, out.to(o.dtype.element_ty), mask=m[:, None] < length)


@triton.jit
def cosine_attention(q, k, v, heat, o, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Attention by cosines, a temperature for each head: rows of queries and keys are normed here,
    and no maximum is asked, since scores are bounded.
    """
    i, h = tl.program_id(0), tl.program_id(1)
    m, n, d = i * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    hot = tl.load(heat + h)
    x = tl.load(q + (h * N + m[:, None]) * D + d[None, :]).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]
    x = x.to(q.dtype.element_ty)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        b = tl.load(k + (h * N + start + n[:, None]) * D + d[None, :]).to(tl.float32)
        b = b * tl.rsqrt(tl.sum(b * b, 1) + 1e-6)[:, None]
        s = tl.dot(x, tl.trans(b.to(x.dtype)))
        e = tl.exp((s - 1.0) * hot)
        total += tl.sum(e, 1)
        a = tl.load(v + (h * N + start + n[:, None]) * D + d[None, :])
        acc = tl.dot(e.to(a.dtype), a, acc)
    out = o + (h * N + m[:, None]) * D + d[None, :]
    tl.store(out, (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def sums_by_centre(
    x, nearest, sums, count, N, K, D, BK: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):
    """The sums of the points of each centre, and how many these are: a product of ones where a
    point is a centre's, split over the points.
    """
    c = tl.program_id(0) * BK + tl.arange(0, BK)
    d, n = tl.program_id(1) * BD + tl.arange(0, BD), tl.arange(0, BN)
    acc = tl.zeros((BK, BD), tl.float32)
    many = tl.zeros((BK,), tl.int32)
    for start in range(tl.program_id(2) * BN, N, tl.num_programs(2) * BN):
        own = tl.load(nearest + start + n, mask=start + n < N, other=-1)
        is_own = own[None, :] == c[:, None]
        a = tl.load(
            x + (start + n)[:, None] * D + d[None, :], mask=(start + n)[:, None] < N, other=0.0
        )
        acc = tl.dot(is_own.to(a.dtype), a, acc)
        many += tl.sum(is_own.to(tl.int32), 1)
    tl.atomic_add(sums + c[:, None] * D + d[None, :], acc, sem="relaxed")
    if tl.program_id(1) == 0:
        tl.atomic_add(count + c, many, sem="relaxed")


@triton.jit
def quadratic_forms(x, mean, a, y, N, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """(x - mean) a (x - mean)ᵀ of each row, by block pointers."""
    i = tl.program_id(0) * BM
    d = tl.arange(0, D)
    rows = tl.make_block_ptr(x, (N, D), (D, 1), (i, 0), (BM, D), (1, 0))
    u = tl.load(rows, boundary_check=(0,), padding_option="zero").to(tl.float32)
    u = (u - tl.load(mean + d)[None, :]).to(x.dtype.element_ty)
    total = tl.zeros((BM,), tl.float32)
    a_at = tl.make_block_ptr(a, (D, D), (D, 1), (0, 0), (D, BK), (1, 0))
    x_at = tl.make_block_ptr(x, (N, D), (D, 1), (i, 0), (BM, BK), (1, 0))
    for k in range(0, D, BK):
        s = tl.dot(u, tl.load(a_at))
        own = tl.load(x_at, boundary_check=(0,), padding_option="zero").to(tl.float32)
        total += tl.sum(s * (own - tl.load(mean + k + tl.arange(0, BK))[None, :]), 1)
        a_at = tl.advance(a_at, (0, BK))
        x_at = tl.advance(x_at, (0, BK))
    m = i + tl.arange(0, BM)
    tl.store(y + m, total, mask=m < N)


@triton.autotune(
    _configs((128, 128, 64, 4, 3), (128, 256, 64, 8, 3), (64, 128, 64, 4, 4)), key=["M", "N", "K"]
)
@triton.jit
def scaled_residual_product(
    x, w, r, scale, keep, y, M, N, K, S, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y = r + keep[sample] scale x w by descriptors: a residual with layer scale, of which whole
    samples of S rows are dropped.
    """
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    x_of = tl.make_tensor_descriptor(x, [M, K], [K, 1], [BM, BK])
    w_of = tl.make_tensor_descriptor(w, [K, N], [N, 1], [BK, BN])
    r_of = tl.make_tensor_descriptor(r, [M, N], [N, 1], [BM, BN])
    y_of = tl.make_tensor_descriptor(y, [M, N], [N, 1], [BM, BN])
    factor = tl.load(keep + i // S)
    acc = tl.zeros((BM, BN), tl.float32)
    if factor != 0.0:
        for k in range(0, K, BK):
            acc = tl.dot(x_of.load([i, k]), w_of.load([k, j]), acc)
    column = tl.load(scale + j + tl.arange(0, BN)).to(tl.float32)
    out = r_of.load([i, j]).to(tl.float32) + acc * (column * factor)[None, :]
    y_of.store([i, j], out.to(y.dtype.element_ty))
