"""Products and sums over pairs in Triton's language as its users write them: the other half of the
third set (triton_serving).
"""

import triton
import triton.language as tl


def _configs(*choices):
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in choices
    ]


@triton.autotune(_configs((128, 256, 64, 8, 3), (128, 128, 64, 4, 4)), key=["M", "N", "K"])
@triton.jit
def product_to_float8(
    x, w, y, scale, largest, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y = float8(x w / scale), and the largest magnitude of x w."""
    pid = tl.program_id(0)
    across = tl.cdiv(N, BN)
    i, j = pid // across, pid % across
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :])
        b = tl.load(w + (k + rk[:, None]) * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.atomic_max(largest, tl.max(tl.abs(acc)))
    value = tl.clamp(acc / tl.load(scale), -448.0, 448.0).to(y.dtype.element_ty)
    tl.store(y + rm[:, None] * N + rn[None, :], value)


@triton.autotune(_configs((128, 128, 64, 8, 3), (64, 128, 64, 4, 4)), key=["M", "N", "K"])
@triton.jit
def complex_product(
    ar, ai, br, bi, yr, yi, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y = a b of complex numbers whose parts are arrays of their own."""
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    real = tl.zeros((BM, BN), tl.float32)
    imaginary = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = rm[:, None] * K + k + rk[None, :]
        right = (k + rk[:, None]) * N + rn[None, :]
        a, b = tl.load(ar + left), tl.load(ai + left)
        c, d = tl.load(br + right), tl.load(bi + right)
        real = tl.dot(a, c, real)
        imaginary = tl.dot(a, d, imaginary)
        imaginary = tl.dot(b, c, imaginary)
        real = tl.dot(-b, d, real)
    out = rm[:, None] * N + rn[None, :]
    tl.store(yr + out, real.to(yr.dtype.element_ty))
    tl.store(yi + out, imaginary.to(yi.dtype.element_ty))


@triton.autotune(_configs((64, 64, 128, 4, 4), (128, 128, 128, 8, 3)), key=["M", "N", "K"])
@triton.jit
def ternary_product(
    x, packed, y, xs, ws, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y = x w of int8 and weights -1, 0, 1 in two bits: the four quarters of k in one byte."""
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.int32)
    quarter = K // 4
    for k in range(0, quarter, BK):
        words = tl.load(packed + rn[None, :] * quarter + k + rk[:, None])
        for part in tl.static_range(4):
            a = tl.load(x + rm[:, None] * K + part * quarter + k + rk[None, :])
            w = (((words >> (2 * part)) & 3) - 1).to(tl.int8)
            acc += tl.dot(a, w)
    value = acc.to(tl.float32) * tl.load(xs + rm)[:, None] * tl.load(ws)
    tl.store(y + rm[:, None] * N + rn[None, :], value.to(y.dtype.element_ty))


@triton.autotune(_configs((128, 128, 64, 8, 3), (64, 64, 64, 4, 4)), key=["M", "T"])
@triton.jit
def centred_products(x, mean, y, T, M, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = (x - mean)ᵀ (x - mean) / T of T observations of M variables."""
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    left, right = tl.load(mean + rm), tl.load(mean + rn)
    acc = tl.zeros((BM, BN), tl.float32)
    for t in range(0, T, BK):
        a = tl.load(x + (t + rk[:, None]) * M + rm[None, :]).to(tl.float32) - left[None, :]
        b = tl.load(x + (t + rk[:, None]) * M + rn[None, :]).to(tl.float32) - right[None, :]
        acc += tl.dot(tl.trans(a.to(x.dtype.element_ty)), b.to(x.dtype.element_ty))
    tl.store(y + rm[:, None] * M + rn[None, :], acc / T)


@triton.jit
def convolution_of_time(
    x, w, b, y, T, C, F, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """y[t] = gelu(sum of x[t + s - WIDTH / 2] w[s] + b): [B, T, C] with [WIDTH, C, F]."""
    i, j, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for s in range(WIDTH):
        t = rm + s - WIDTH // 2
        inside = (t >= 0) & (t < T)
        for c in range(0, C, BK):
            a = tl.load(
                x + (batch * T + t[:, None]) * C + c + rk[None, :], mask=inside[:, None], other=0.0
            )
            acc = tl.dot(a, tl.load(w + (s * C + c + rk[:, None]) * F + rn[None, :]), acc)
    acc += tl.load(b + rn).to(tl.float32)[None, :]
    acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.70710678))
    out = y + (batch * T + rm[:, None]) * F + rn[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=rm[:, None] < T)


@triton.jit
def linear_attention(q, k, v, o, S, BT: tl.constexpr, D: tl.constexpr):
    """Causal attention with weights (elu(q) + 1) (elu(k) + 1), a program walks along a head."""
    h = tl.program_id(0)
    t, d = tl.arange(0, BT), tl.arange(0, D)
    state = tl.zeros((D, D), tl.float32)
    norm = tl.zeros((D,), tl.float32)
    for start in range(0, S, BT):
        at = (h * S + start + t[:, None]) * D + d[None, :]
        a = tl.load(q + at).to(tl.float32)
        b = tl.load(k + at).to(tl.float32)
        a = tl.where(a > 0, a + 1.0, tl.exp(a))
        b = tl.where(b > 0, b + 1.0, tl.exp(b))
        value = tl.load(v + at)
        left, right = a.to(value.dtype), b.to(value.dtype)
        s = tl.dot(left, tl.trans(right))
        s = tl.where(t[:, None] >= t[None, :], s, 0.0)
        weights = tl.sum(s, 1) + tl.sum(a * norm[None, :], 1)
        out = tl.dot(s.to(value.dtype), value) + tl.dot(left, state.to(value.dtype))
        tl.store(o + at, (out / weights[:, None]).to(o.dtype.element_ty))
        state += tl.dot(tl.trans(right), value)
        norm += tl.sum(b, 0)


@triton.jit
def gaussian_sums(x, z, v, y, scale, N, K, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """y[i] = sum over j of exp(-scale |x[i] - z[j]|²) v[j]."""
    rows, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    a = tl.load(x + rows[:, None] * D + d[None, :])
    wide = a.to(tl.float32)
    own = tl.sum(wide * wide, 1)
    acc = tl.zeros((BM,), tl.float32)
    for j in range(0, K, BN):
        b = tl.load(z + (j + n[:, None]) * D + d[None, :])
        broad = b.to(tl.float32)
        far = own[:, None] + tl.sum(broad * broad, 1)[None, :] - 2.0 * tl.dot(a, tl.trans(b))
        acc += tl.sum(tl.exp(-scale * far) * tl.load(v + j + n)[None, :], 1)
    tl.store(y + rows, acc)


@triton.jit
def transport_step(x, z, g, f, eps, N, K, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """f[i] = -eps log of the sum over j of exp((g[j] + 2 x[i] z[j]) / eps), as Sinkhorn has it."""
    rows, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    a = tl.load(x + rows[:, None] * D + d[None, :])
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for j in range(0, K, BN):
        b = tl.load(z + (j + n[:, None]) * D + d[None, :])
        s = (tl.load(g + j + n)[None, :] + 2.0 * tl.dot(a, b.T)) / eps
        now = tl.maximum(largest, tl.max(s, 1))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(s - now[:, None]), 1)
        largest = now
    tl.store(f + rows, -eps * (largest + tl.log(total)))


@triton.autotune(_configs((128, 128, 64, 8, 3), (128, 256, 64, 8, 3)), key=["M"])
@triton.jit
def polynomial_of_products(a, y, b, c, M, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = b a + c a a, a step of Newton and Schulz; a is symmetric. Programs in groups of rows."""
    pid = tl.program_id(0)
    tiles = M // BN
    width = 8 * tiles
    first = pid // width * 8
    high = tl.minimum(M // BM - first, 8)
    i, j = first + pid % width % high, pid % width // high
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    left, right = a + rm[:, None] * M + rk[None, :], a + rk[:, None] * M + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, M, BK):
        acc = tl.dot(tl.load(left), tl.load(right), acc)
        left += BK
        right += BK * M
    at = rm[:, None] * M + rn[None, :]
    value = b * tl.load(a + at).to(tl.float32) + c * acc
    tl.store(y + at, value.to(y.dtype.element_ty))
