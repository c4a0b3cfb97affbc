"""Kernels on fields, tables and signals in Triton's language as its users write them: those of the
fourth set without dots. See triton_matrices.
"""

import triton
import triton.language as tl


@triton.jit
def pixel_shuffle(x, y, H, W, C: tl.constexpr, R: tl.constexpr, BW: tl.constexpr):
    """[B, H, W, C R R] to [B, H R, W R, C]."""
    line = tl.program_id(0)
    w, c = tl.program_id(1) * BW + tl.arange(0, BW), tl.arange(0, C)
    image, h = line // H, line % H
    for r in tl.static_range(R):
        for s in tl.static_range(R):
            at = ((image * H + h) * W + w)[:, None] * (C * R * R) + c[None, :] * R * R + r * R + s
            value = tl.load(x + at, mask=w[:, None] < W)
            to = ((image * H + h) * R + r) * W * R + w * R + s
            tl.store(y + to[:, None] * C + c[None, :], value, mask=w[:, None] < W)


@triton.jit
def packed_signs(x, y, N, WORDS: tl.constexpr):
    """A bit for each number that is above 0, 32 in a word."""
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    bit = tl.arange(0, 32)
    a = tl.load(x + word[:, None] * 32 + bit[None, :], mask=word[:, None] * 32 < N, other=0.0)
    bits = (a > 0).to(tl.int32) << bit[None, :]
    tl.store(y + word, tl.sum(bits, 1), mask=word * 32 < N)


@triton.jit
def hashes(x, y, N, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """Numbers mixed ROUNDS times."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(x + at, mask=at < N, other=0).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        h ^= h >> 16
        h *= 0x85EBCA6B
        h ^= h >> 13
        h *= 0xC2B2AE35
        h ^= h >> 16
    tl.store(y + at, h.to(tl.int32, bitcast=True), mask=at < N)


@triton.jit
def forces(position, mass, force, N, soft, BM: tl.constexpr, BN: tl.constexpr):
    """Forces of N bodies on one another; positions are three planes."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    x, y = tl.load(position + i), tl.load(position + N + i)
    z = tl.load(position + 2 * N + i)
    fx = tl.zeros((BM,), tl.float32)
    fy = tl.zeros((BM,), tl.float32)
    fz = tl.zeros((BM,), tl.float32)
    for start in range(0, N, BN):
        j = start + tl.arange(0, BN)
        dx = tl.load(position + j)[None, :] - x[:, None]
        dy = tl.load(position + N + j)[None, :] - y[:, None]
        dz = tl.load(position + 2 * N + j)[None, :] - z[:, None]
        r = tl.rsqrt(dx * dx + dy * dy + dz * dz + soft)
        w = tl.load(mass + j)[None, :] * r * r * r
        fx += tl.sum(w * dx, 1)
        fy += tl.sum(w * dy, 1)
        fz += tl.sum(w * dz, 1)
    tl.store(force + i, fx)
    tl.store(force + N + i, fy)
    tl.store(force + 2 * N + i, fz)


@triton.jit
def options(spot, strike, time, call, put, rate, volatility, N, BLOCK: tl.constexpr):
    """Prices of Black and Scholes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s, k = tl.load(spot + at, mask=at < N, other=1.0), tl.load(strike + at, mask=at < N, other=1.0)
    t = tl.load(time + at, mask=at < N, other=1.0)
    root = volatility * tl.sqrt(t)
    d1 = (tl.log(s / k) + (rate + 0.5 * volatility * volatility) * t) / root
    d2 = d1 - root
    n1 = 0.5 * (1.0 + tl.erf(d1 * 0.70710678))
    n2 = 0.5 * (1.0 + tl.erf(d2 * 0.70710678))
    paid = k * tl.exp(-rate * t)
    price = s * n1 - paid * n2
    tl.store(call + at, price, mask=at < N)
    tl.store(put + at, price - s + paid, mask=at < N)


@triton.jit
def wave(u, before, after, c, D, H, W, BH: tl.constexpr, BW: tl.constexpr):
    """A step of the wave equation on a grid of three axes, borders of zeros."""
    z = tl.program_id(0)
    y = tl.program_id(1) * BH + tl.arange(0, BH)[:, None]
    x = tl.program_id(2) * BW + tl.arange(0, BW)[None, :]
    at = (z * H + y) * W + x
    inside = (y < H) & (x < W)
    centre = tl.load(u + at, mask=inside, other=0.0)
    near = tl.load(u + at - 1, mask=inside & (x > 0), other=0.0)
    near += tl.load(u + at + 1, mask=inside & (x + 1 < W), other=0.0)
    near += tl.load(u + at - W, mask=inside & (y > 0), other=0.0)
    near += tl.load(u + at + W, mask=inside & (y + 1 < H), other=0.0)
    near += tl.load(u + at - H * W, mask=inside & (z > 0), other=0.0)
    near += tl.load(u + at + H * W, mask=inside & (z + 1 < D), other=0.0)
    old = tl.load(before + at, mask=inside, other=0.0)
    tl.store(after + at, 2.0 * centre - old + c * (near - 6.0 * centre), mask=inside)


@triton.jit
def looked_up(x, table, y, N, BLOCK: tl.constexpr):
    """Bytes by a table of 256 numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(x + at, mask=at < N, other=0).to(tl.int32)
    tl.store(y + at, tl.load(table + index), mask=at < N)


@triton.jit
def sums_down(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Running sums along columns."""
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    above = tl.zeros((BN,), tl.float32)
    for start in range(0, M, BM):
        r = start + tl.arange(0, BM)
        a = tl.load(x + r[:, None] * N + c[None, :])
        s = tl.cumsum(a, 0) + above[None, :]
        tl.store(y + r[:, None] * N + c[None, :], s)
        above += tl.sum(a, 0)


@triton.jit
def softmax_of_edges(first, x, y, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Softmax over the edges of each node of a graph, WIDE heads, BLOCK edges at most."""
    node = tl.program_id(0)
    begin, end = tl.load(first + node), tl.load(first + node + 1)
    e, h = begin + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    at = e[:, None] * WIDE + h[None, :]
    inside = e[:, None] < end
    a = tl.load(x + at, mask=inside, other=float("-inf")).to(tl.float32)
    w = tl.exp(a - tl.max(a, 0)[None, :])
    w = tl.where(inside, w, 0.0)
    tl.store(y + at, (w / tl.sum(w, 0)[None, :]).to(y.dtype.element_ty), mask=inside)


@triton.jit
def tridiagonal(a, b, c, d, x, scratch, M, N, BLOCK: tl.constexpr):
    """Systems of three diagonals, one in each lane: N equations of M systems side by side."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = m < M
    first = tl.load(b + m, mask=inside, other=1.0)
    above = tl.load(c + m, mask=inside, other=0.0) / first
    right = tl.load(d + m, mask=inside, other=0.0) / first
    tl.store(scratch + m, above, mask=inside)
    tl.store(x + m, right, mask=inside)
    for i in range(1, N):
        at = i * M + m
        low = tl.load(a + at, mask=inside, other=0.0)
        scale = 1.0 / (tl.load(b + at, mask=inside, other=1.0) - low * above)
        above = tl.load(c + at, mask=inside, other=0.0) * scale
        right = (tl.load(d + at, mask=inside, other=0.0) - low * right) * scale
        tl.store(scratch + at, above, mask=inside)
        tl.store(x + at, right, mask=inside)
    for back in range(1, N):
        at = (N - 1 - back) * M + m
        right = tl.load(x + at, mask=inside) - tl.load(scratch + at, mask=inside) * right
        tl.store(x + at, right, mask=inside)


@triton.jit
def cast_both_ways(x, y, z, scale, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """float8 of a matrix, and of its transpose."""
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    a = tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32) * tl.load(scale)
    value = a.to(y.dtype.element_ty)
    tl.store(y + r[:, None] * N + c[None, :], value)
    tl.store(z + c[:, None] * M + r[None, :], tl.trans(value))


@triton.jit
def embedded(token, place, table, places, w, b, y, N, eps, BLOCK: tl.constexpr):
    """Layer norm of a token's row plus a place's."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    inside = c < N
    t, p = tl.load(token + row).to(tl.int64), tl.load(place + row)
    a = tl.load(table + t * N + c, mask=inside, other=0.0).to(tl.float32)
    a += tl.load(places + p * N + c, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(a, 0) / N
    centred = tl.where(inside, a - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / N + eps)
    gamma = tl.load(w + c, mask=inside).to(tl.float32)
    beta = tl.load(b + c, mask=inside).to(tl.float32)
    tl.store(y + row * N + c, (centred * scale * gamma + beta).to(y.dtype.element_ty), mask=inside)


@triton.jit
def moved_rows(parent, x, y, S, ROW, BLOCK: tl.constexpr):
    """Rows of a cache in the order of the beams that go on."""
    beam, s = tl.program_id(0), tl.program_id(1)
    source = tl.load(parent + beam).to(tl.int64)
    for start in range(0, ROW, BLOCK):
        c = start + tl.arange(0, BLOCK)
        value = tl.load(x + (source * S + s) * ROW + c, mask=c < ROW)
        tl.store(y + (beam.to(tl.int64) * S + s) * ROW + c, value, mask=c < ROW)


@triton.jit
def sorted_with_places(x, values, places, N: tl.constexpr):
    """A row's numbers in order, and where each was: both in one word of 64 bits."""
    row, c = tl.program_id(0), tl.arange(0, N)
    bits = tl.load(x + row * N + c).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    both = tl.sort((ordered << 32) | c.to(tl.int64))
    key = (both >> 32).to(tl.int32)
    key = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    tl.store(values + row * N + c, key.to(tl.float32, bitcast=True))
    tl.store(places + row * N + c, (both & 0xFFFFFFFF).to(tl.int32))


@triton.jit
def blurred(x, y, H, W, BH: tl.constexpr, BW: tl.constexpr):
    """Bytes blurred by 1 4 6 4 1 along both axes, borders repeated."""
    image = tl.program_id(2)
    v = tl.program_id(0) * BH + tl.arange(0, BH)[:, None]
    u = tl.program_id(1) * BW + tl.arange(0, BW)[None, :]
    total = tl.zeros((BH, BW), tl.int32)
    for r in tl.static_range(5):
        for s in tl.static_range(5):
            yy = tl.minimum(tl.maximum(v + r - 2, 0), H - 1)
            xx = tl.minimum(tl.maximum(u + s - 2, 0), W - 1)
            a = tl.load(x + (image * H + yy) * W + xx).to(tl.int32)
            down = 6 if r == 2 else (4 if r == 1 or r == 3 else 1)
            across = 6 if s == 2 else (4 if s == 1 or s == 3 else 1)
            total += a * (down * across)
    inside = (v < H) & (u < W)
    tl.store(y + (image * H + v) * W + u, ((total + 128) >> 8).to(tl.uint8), mask=inside)
