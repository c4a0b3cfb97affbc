"""Operations on arrays in Triton's language as its users write them, none with dots: a second set,
of kinds that neither a package's case nor `triton_rows` has. See triton_layers.
"""

import triton
import triton.language as tl


@triton.jit
def softmax_backward(y, dy, dx, N, BLOCK: tl.constexpr):
    """dx = y (dy - sum of y dy)."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(y + row * N + c, mask=c < N, other=0.0).to(tl.float32)
    b = tl.load(dy + row * N + c, mask=c < N, other=0.0).to(tl.float32)
    value = a * (b - tl.sum(a * b, 0))
    tl.store(dx + row * N + c, value.to(dx.dtype.element_ty), mask=c < N)


@triton.jit
def swiglu_backward(h, dy, dh, N, BLOCK: tl.constexpr):
    """Gradients of silu(h[:, :N]) h[:, N:]."""
    row, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(h + row * 2 * N + c, mask=c < N, other=0.0).to(tl.float32)
    up = tl.load(h + row * 2 * N + N + c, mask=c < N, other=0.0).to(tl.float32)
    d = tl.load(dy + row * N + c, mask=c < N, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    dgate = d * up * s * (1.0 + gate * (1.0 - s))
    dup = d * gate * s
    tl.store(dh + row * 2 * N + c, dgate.to(dh.dtype.element_ty), mask=c < N)
    tl.store(dh + row * 2 * N + N + c, dup.to(dh.dtype.element_ty), mask=c < N)


@triton.jit
def rotate(x, cos, sin, S, H: tl.constexpr, D: tl.constexpr):
    """Rotary embedding in place of [B, S, H, D], halves of D paired; a program has a token."""
    token = tl.program_id(0)
    h, d = tl.arange(0, H), tl.arange(0, D // 2)
    c = tl.load(cos + (token % S) * (D // 2) + d)[None, :]
    s = tl.load(sin + (token % S) * (D // 2) + d)[None, :]
    first = x + token * H * D + h[:, None] * D + d[None, :]
    a, b = tl.load(first).to(tl.float32), tl.load(first + D // 2).to(tl.float32)
    tl.store(first, (a * c - b * s).to(x.dtype.element_ty))
    tl.store(first + D // 2, (b * c + a * s).to(x.dtype.element_ty))


@triton.jit
def group_norm(x, w, b, y, P, C, eps, G: tl.constexpr, BLOCK: tl.constexpr):
    """Of images [B, P, C]: a program has a group of G channels, and reads it twice."""
    image, group = tl.program_id(0), tl.program_id(1)
    p, c = tl.arange(0, BLOCK), tl.arange(0, G)
    base = image.to(tl.int64) * P * C + group * G
    total = tl.zeros((BLOCK, G), tl.float32)
    squares = tl.zeros((BLOCK, G), tl.float32)
    for start in range(0, P, BLOCK):
        at = base + (start + p)[:, None] * C + c[None, :]
        v = tl.load(x + at, mask=(start + p)[:, None] < P, other=0.0).to(tl.float32)
        total += v
        squares += v * v
    mean = tl.sum(total) / (P * G)
    scale = tl.rsqrt(tl.sum(squares) / (P * G) - mean * mean + eps)
    gamma = tl.load(w + group * G + c).to(tl.float32)[None, :]
    beta = tl.load(b + group * G + c).to(tl.float32)[None, :]
    for start in range(0, P, BLOCK):
        at = base + (start + p)[:, None] * C + c[None, :]
        inside = (start + p)[:, None] < P
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        value = (v - mean) * scale * gamma + beta
        tl.store(y + at, (value * tl.sigmoid(value)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def dropout(x, y, seed, p, N, BLOCK: tl.constexpr):
    """y = x / (1 - p) where a number drawn for the element is above p."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < N, other=0.0).to(tl.float32)
    kept = tl.rand(seed, at) > p
    tl.store(y + at, tl.where(kept, a / (1.0 - p), 0.0).to(y.dtype.element_ty), mask=at < N)


@triton.jit
def sort_rows(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + at, tl.sort(tl.load(x + at)))


@triton.jit
def counts(x, y, N, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """How often each number of 0 … BINS - 1 is there."""
    start = tl.program_id(0) * BLOCK * 8
    found = tl.zeros((BINS,), tl.int32)
    for i in range(8):
        at = start + i * BLOCK + tl.arange(0, BLOCK)
        found += tl.histogram(tl.load(x + at, mask=at < N, other=0), BINS)
    tl.atomic_add(y + tl.arange(0, BINS), found)


@triton.jit
def best_of_rows(x, which, N, BLOCK: tl.constexpr):
    """The place of a row's largest number, the first of equals."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    at = tl.zeros((BLOCK,), tl.int32)
    for n in range(0, N, BLOCK):
        a = tl.load(x + row * N + n + c, mask=n + c < N, other=float("-inf")).to(tl.float32)
        at = tl.where(a > most, n + c, at)
        most = tl.maximum(most, a)
    top = tl.max(most, 0)
    tl.store(which + row, tl.min(tl.where(most == top, at, N), 0))


@triton.jit
def column_sums(x, y, M, N, ROWS, BM: tl.constexpr, BN: tl.constexpr):
    """The gradient of a bias: a program sums ROWS rows of its columns and adds them to y."""
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    start = tl.program_id(0) * ROWS
    acc = tl.zeros((BM, BN), tl.float32)
    for r in range(start, start + ROWS, BM):
        rows = r + tl.arange(0, BM)
        inside = (rows[:, None] < M) & (c[None, :] < N)
        acc += tl.load(x + rows[:, None] * N + c[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.atomic_add(y + c, tl.sum(acc, 0), mask=c < N)


@triton.jit
def twice_as_large(x, y, H, W, C, BW: tl.constexpr, BC: tl.constexpr):
    """Bilinear, [B, H, W, C] to [B, 2 H, 2 W, C], corners not aligned."""
    line, c = tl.program_id(0), tl.program_id(2) * BC + tl.arange(0, BC)
    u = tl.program_id(1) * BW + tl.arange(0, BW)
    image, v = line // (2 * H), line % (2 * H)
    fy = tl.maximum((v + 0.5) * 0.5 - 0.5, 0.0)
    fx = tl.maximum((u + 0.5) * 0.5 - 0.5, 0.0)
    y0, x0 = fy.to(tl.int32), fx.to(tl.int32)
    y1, x1 = tl.minimum(y0 + 1, H - 1), tl.minimum(x0 + 1, W - 1)
    wy, wx = fy - y0, (fx - x0)[:, None]
    inside = (u[:, None] < 2 * W) & (c[None, :] < C)
    upper, lower = x + (image * H + y0) * W * C, x + (image * H + y1) * W * C
    left, right = x0[:, None] * C + c[None, :], x1[:, None] * C + c[None, :]
    a = tl.load(upper + left, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(upper + right, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(lower + left, mask=inside, other=0.0).to(tl.float32)
    e = tl.load(lower + right, mask=inside, other=0.0).to(tl.float32)
    value = (a * (1 - wx) + b * wx) * (1 - wy) + (d * (1 - wx) + e * wx) * wy
    out = y + (line * 2 * W + u[:, None]) * C + c[None, :]
    tl.store(out, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _step(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@triton.jit
def gated_scan(a, x, y, T, C, BT: tl.constexpr, BC: tl.constexpr):
    """y[t] = a[t] y[t - 1] + x[t] of [B, T, C]; a program has BC channels of a sequence."""
    b, c, t = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, BT)
    h = tl.zeros((BC,), tl.float32)
    for start in range(0, T, BT):
        at = (b * T + start + t[:, None]) * C + c[None, :]
        decay = tl.load(a + at).to(tl.float32)
        value = tl.load(x + at).to(tl.float32)
        product, sums = tl.associative_scan((decay, value), 0, _step)
        out = sums + product * h[None, :]
        tl.store(y + at, out.to(y.dtype.element_ty))
        h = tl.sum(tl.where(t[:, None] == BT - 1, out, 0.0), 0)


@triton.jit
def cache_rows(k, slots, cache, scales, H, D: tl.constexpr):
    """A token's head, in int8 with a scale, goes to its slot of a cache; slot -1: nowhere."""
    token, h, d = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    a = tl.load(k + (token * H + h) * D + d).to(tl.float32)
    scale = tl.max(tl.abs(a), 0) / 127.0 + 1e-8
    rounded = tl.extra.cuda.libdevice.rint(a / scale)
    tl.store(cache + (slot * H + h) * D + d, rounded.to(tl.int8))
    tl.store(scales + slot * H + h, scale)


@triton.jit
def norm_of_blocks(x, w, b, y, M, eps, N: tl.constexpr, ROWS: tl.constexpr):
    """Layer norm; a program has ROWS short rows."""
    r, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, N)
    at, inside = r[:, None] * N + c[None, :], r[:, None] < M
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    a -= (tl.sum(a, 1) / N)[:, None]
    scale = tl.rsqrt(tl.sum(a * a, 1) / N + eps)
    value = a * scale[:, None] * tl.load(w + c).to(tl.float32)[None, :]
    value += tl.load(b + c).to(tl.float32)[None, :]
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def divergence(x, z, loss, N, BLOCK: tl.constexpr):
    """sum of p (log p - log q) of a row, p and q the softmaxes of two rows; two passes."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    px, pz = -1.0e30, -1.0e30
    sx, sz = 0.0, 0.0
    for n in range(0, N, BLOCK):
        a = tl.load(x + row * N + n + c, mask=n + c < N, other=-1.0e30).to(tl.float32)
        b = tl.load(z + row * N + n + c, mask=n + c < N, other=-1.0e30).to(tl.float32)
        nx, nz = tl.maximum(px, tl.max(a, 0)), tl.maximum(pz, tl.max(b, 0))
        sx = sx * tl.exp(px - nx) + tl.sum(tl.exp(a - nx), 0)
        sz = sz * tl.exp(pz - nz) + tl.sum(tl.exp(b - nz), 0)
        px, pz = nx, nz
    lx, lz = px + tl.log(sx), pz + tl.log(sz)
    total = tl.zeros((BLOCK,), tl.float32)
    for n in range(0, N, BLOCK):
        inside = n + c < N
        a = tl.load(x + row * N + n + c, mask=inside, other=0.0).to(tl.float32) - lx
        b = tl.load(z + row * N + n + c, mask=inside, other=0.0).to(tl.float32) - lz
        total += tl.where(inside, tl.exp(a) * (a - b), 0.0)
    tl.store(loss + row, tl.sum(total, 0))


@triton.jit
def heat(x, y, H, W, k, BH: tl.constexpr, BW: tl.constexpr):
    """A step of the heat equation; zeros beyond the border."""
    r = (tl.program_id(0) * BH + tl.arange(0, BH))[:, None]
    c = (tl.program_id(1) * BW + tl.arange(0, BW))[None, :]
    at, inside = x + r * W + c, (r < H) & (c < W)
    middle = tl.load(at, mask=inside, other=0.0)
    above = tl.load(at - W, mask=inside & (r > 0), other=0.0)
    below = tl.load(at + W, mask=inside & (r < H - 1), other=0.0)
    left = tl.load(at - 1, mask=inside & (c > 0), other=0.0)
    right = tl.load(at + 1, mask=inside & (c < W - 1), other=0.0)
    tl.store(y + r * W + c, middle + k * (above + below + left + right - 4.0 * middle), mask=inside)


@triton.jit
def heads_first(x, y, S, H, D: tl.constexpr, BS: tl.constexpr):
    """[B, S, H, D] to [B, H, S, D]."""
    b, h = tl.program_id(0), tl.program_id(1)
    s, d = tl.program_id(2) * BS + tl.arange(0, BS), tl.arange(0, D)
    source = x + ((b * S + s[:, None]) * H + h) * D + d[None, :]
    a = tl.load(source, mask=s[:, None] < S)
    tl.store(y + ((b * H + h) * S + s[:, None]) * D + d[None, :], a, mask=s[:, None] < S)


@triton.jit
def matrix_vector(w, x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """y = w x."""
    rows, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for n in range(0, N, BN):
        a = tl.load(w + rows[:, None] * N + n + c[None, :]).to(tl.float32)
        acc += a * tl.load(x + n + c).to(tl.float32)[None, :]
    tl.store(y + rows, tl.sum(acc, 1).to(y.dtype.element_ty))


@triton.jit
def compacted(x, y, count, N, BLOCK: tl.constexpr):
    """The positive elements of x, each block's in order; blocks in the order of their arrival."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < N, other=0.0)
    kept = (a > 0.0).to(tl.int32)
    place = tl.cumsum(kept, 0) - kept
    base = tl.atomic_add(count, tl.sum(kept, 0))
    tl.store(y + base + place, a, mask=kept != 0)


@triton.jit
def nibbles(x, y, scales, N, BLOCK: tl.constexpr):
    """Rows in 4 bits, two columns (halves of a row) in a byte."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    low = tl.load(x + row * N + c, mask=c < N // 2, other=0.0).to(tl.float32)
    high = tl.load(x + row * N + N // 2 + c, mask=c < N // 2, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(low), 0), tl.max(tl.abs(high), 0))
    scale = tl.maximum(most, 1e-8) / 7.0
    a = (low / scale + 8.5).to(tl.int32)
    b = (high / scale + 8.5).to(tl.int32)
    tl.store(y + row * (N // 2) + c, (a | (b << 4)).to(tl.uint8), mask=c < N // 2)
    tl.store(scales + row, scale)
