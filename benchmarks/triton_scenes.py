"""Kernels on scenes, graphs and points in Triton's language as its users write them: those of the
seventh set that gather and compare. See triton_heads.
"""

import triton
import triton.language as tl


@triton.jit
def messages(x, edge, source, to, y, E, D, BE: tl.constexpr, BD: tl.constexpr):
    """y[to] += relu(x[source] + edge) for the edges of a graph in any order."""
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = (e[:, None] < E) & (d[None, :] < D)
    u = tl.load(source + e, mask=e < E, other=0).to(tl.int64)
    v = tl.load(to + e, mask=e < E, other=0).to(tl.int64)
    a = tl.load(x + u[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
    a += tl.load(edge + e.to(tl.int64)[:, None] * D + d[None, :], mask=inside, other=0.0)
    at = y + v[:, None] * D + d[None, :]
    tl.atomic_add(at, tl.maximum(a, 0.0), mask=inside, sem="relaxed")


@triton.jit
def sampled_levels(
    value,
    sides,
    first,
    place,
    weight,
    y,
    Q,
    S,
    H,
    LEVELS: tl.constexpr,
    POINTS: tl.constexpr,
    BQ: tl.constexpr,
    D: tl.constexpr,
):
    """Attention to a few places of an image's levels, which each query and head names, between the
    pixels there. value: [B, S, H, D], place: [B, Q, H, LEVELS, POINTS, 2] as parts of a level.
    """
    h, batch = tl.program_id(1), tl.program_id(2)
    n, d = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, D)
    inside = n < Q
    value += (batch * S * H + h) * D
    own = ((batch * Q + n) * H + h) * LEVELS * POINTS
    acc = tl.zeros((BQ, D), tl.float32)
    for level in range(LEVELS):
        high, wide = tl.load(sides + 2 * level), tl.load(sides + 2 * level + 1)
        start = tl.load(first + level)
        for p in tl.static_range(POINTS):
            at = own + level * POINTS + p
            share = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
            u = tl.load(place + 2 * at, mask=inside, other=0.0).to(tl.float32) * wide - 0.5
            v = tl.load(place + 2 * at + 1, mask=inside, other=0.0).to(tl.float32) * high - 0.5
            left, top = tl.floor(u), tl.floor(v)
            du, dv = u - left, v - top
            j, i = left.to(tl.int32), top.to(tl.int32)
            for corner in tl.static_range(4):
                r, s = i + corner // 2, j + corner % 2
                here = inside & (r >= 0) & (r < high) & (s >= 0) & (s < wide)
                part = share * (dv if corner // 2 else 1.0 - dv) * (du if corner % 2 else 1.0 - du)
                row = (start + r * wide + s) * H * D
                a = tl.load(value + row[:, None] + d[None, :], mask=here[:, None], other=0.0)
                acc += part[:, None] * a.to(tl.float32)
    at = y + ((batch * Q + n) * H + h)[:, None] * D + d[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit
def colours_of_rays(
    density, step, colour, weight, y, depth, R, S, BR: tl.constexpr, BS: tl.constexpr
):
    """What rays see through S samples each: the share of a sample is what those before it let
    through. colour: [R, S, 3].
    """
    r = (tl.program_id(0) * BR + tl.arange(0, BR))[:, None]
    s = tl.arange(0, BS)[None, :]
    inside = (r < R) & (s < S)
    at = r * S + s
    far = tl.load(step + at, mask=inside, other=0.0)
    dense = tl.load(density + at, mask=inside, other=0.0) * far
    before = tl.cumsum(dense, 1) - dense
    share = tl.exp(-before) * (1.0 - tl.exp(-dense))
    tl.store(weight + at, share, mask=inside)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    rest = 1.0 - tl.sum(share, 1)
    for c in tl.static_range(3):
        a = tl.load(colour + at * 3 + c, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row * 3 + c, tl.sum(share * a, 1) + rest, mask=row < R)
    middle = tl.cumsum(far, 1) - 0.5 * far
    tl.store(depth + row, tl.sum(share * middle, 1), mask=row < R)


@triton.jit
def blended_splats(
    mean, shape, colour, opaque, listed, first, y, W, SIDE: tl.constexpr, BATCH: tl.constexpr
):
    """A tile of an image from the Gaussians that a list names for it, the nearest first, until
    nothing shines through any of its pixels. shape: the three numbers of an inverse covariance.
    """
    i, j = tl.program_id(0), tl.program_id(1)
    p = tl.arange(0, SIDE * SIDE)
    row, column = i * SIDE + p // SIDE, j * SIDE + p % SIDE
    tile = i * tl.num_programs(1) + j
    k, end = tl.load(first + tile), tl.load(first + tile + 1)
    through = tl.full((SIDE * SIDE,), 1.0, tl.float32)
    red, green, blue = through * 0.0, through * 0.0, through * 0.0
    shines = 1.0
    while (k < end) & (shines > 1e-4):
        stop = tl.minimum(k + BATCH, end)
        for n in range(k, stop):
            g = tl.load(listed + n)
            du = column.to(tl.float32) + 0.5 - tl.load(mean + 2 * g)
            dv = row.to(tl.float32) + 0.5 - tl.load(mean + 2 * g + 1)
            a, b, c = tl.load(shape + 3 * g), tl.load(shape + 3 * g + 1), tl.load(shape + 3 * g + 2)
            power = -0.5 * (a * du * du + c * dv * dv) - b * du * dv
            alpha = tl.minimum(tl.load(opaque + g) * tl.exp(power), 0.99)
            alpha = tl.where((power <= 0.0) & (alpha >= 1.0 / 255.0), alpha, 0.0)
            share = through * alpha
            red += share * tl.load(colour + 3 * g)
            green += share * tl.load(colour + 3 * g + 1)
            blue += share * tl.load(colour + 3 * g + 2)
            through *= 1.0 - alpha
        shines = tl.max(through, 0)
        k = stop
    at = y + (row * W + column) * 4
    tl.store(at, red)
    tl.store(at + 1, green)
    tl.store(at + 2, blue)
    tl.store(at + 3, through)


@triton.jit
def mixture_losses(
    y, logit, mean, spread, loss, M, BM: tl.constexpr, K: tl.constexpr, D: tl.constexpr
):
    """-log of the density of y by a mixture of K Gaussians of D numbers, a spread for each, which
    a network gives as logarithms.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k, d = tl.arange(0, K), tl.arange(0, D)
    inside = m < M
    own = (m[:, None, None] * K + k[None, :, None]) * D + d[None, None, :]
    a = tl.load(y + m[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
    u = tl.load(mean + own, mask=inside[:, None, None], other=0.0).to(tl.float32)
    s = tl.load(spread + own, mask=inside[:, None, None], other=0.0).to(tl.float32)
    z = (a.to(tl.float32)[:, None, :] - u) * tl.exp(-s)
    each = tl.sum(-0.5 * z * z - s - 0.9189385332, 2)
    at = logit + m[:, None] * K + k[None, :]
    share = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
    top = tl.max(share, 1)[:, None]
    share -= top + tl.log(tl.sum(tl.exp(share - top), 1))[:, None]
    each += share
    most = tl.max(each, 1)
    out = -most - tl.log(tl.sum(tl.exp(each - most[:, None]), 1))
    tl.store(loss + m, out, mask=inside)


@triton.jit
def _bits_set(x):
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


@triton.jit
def nearest_by_bits(
    x, z, place, far, N, M, WORDS: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr
):
    """For each of N codes of 32 WORDS bits the one of M that differs in the fewest, the first of
    equals. x: [N, WORDS], z: [WORDS, M].
    """
    n, m = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BM)
    least = tl.full((BN,), 32 * WORDS + 1, tl.int32)
    found = tl.full((BN,), -1, tl.int32)
    for start in range(0, M, BM):
        at = start + m
        differ = tl.zeros((BN, BM), tl.uint32)
        for word in tl.static_range(WORDS):
            a = tl.load(x + n * WORDS + word, mask=n < N, other=0).to(tl.uint32, bitcast=True)
            b = tl.load(z + word * M + at, mask=at < M, other=0).to(tl.uint32, bitcast=True)
            differ += _bits_set(a[:, None] ^ b[None, :])
        count = tl.where(at[None, :] < M, differ.to(tl.int32), 32 * WORDS + 1)
        now, which = tl.min(count, 1, return_indices=True)
        found = tl.where(now < least, start + which, found)
        least = tl.minimum(now, least)
    tl.store(place + n, found, mask=n < N)
    tl.store(far + n, least, mask=n < N)


@triton.jit
def balanced(x, y, T, rounds, N: tl.constexpr, BT: tl.constexpr):
    """Small matrices whose rows and columns sum to 1, from logits, by Sinkhorn's rounds."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)[:, None, None]
    i, j = tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None, :]
    at = (t * N + i) * N + j
    a = tl.load(x + at, mask=t < T, other=0.0)
    a = tl.exp(a - tl.max(tl.max(a, 2), 1)[:, None, None])
    for _ in range(rounds):
        a = a / (tl.sum(a, 2)[:, :, None] + 1e-8)
        a = a / (tl.sum(a, 1)[:, None, :] + 1e-8)
    tl.store(y + at, a, mask=t < T)
