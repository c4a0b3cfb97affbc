"""Kernels on grids, strings, tokens and tables in Triton's language as its users write them: those
of the sixth set without dots. See triton_products.
"""

import triton
import triton.language as tl


@triton.jit
def lattice_step(f, g, H, W, rate, BH: tl.constexpr, BW: tl.constexpr):
    """A step of a lattice Boltzmann method in two dimensions, 9 velocities: streams from periodic
    neighbours, then relaxes. f, g: [9, H, W].
    """
    i = tl.program_id(0) * BH + tl.arange(0, BH)[:, None]
    j = tl.program_id(1) * BW + tl.arange(0, BW)[None, :]
    inside = (i < H) & (j < W)
    P = H * W
    up, down = (i + H - 1) % H, (i + 1) % H
    left, right = (j + W - 1) % W, (j + 1) % W
    f0 = tl.load(f + i * W + j, mask=inside)
    f1 = tl.load(f + P + i * W + left, mask=inside)
    f2 = tl.load(f + 2 * P + up * W + j, mask=inside)
    f3 = tl.load(f + 3 * P + i * W + right, mask=inside)
    f4 = tl.load(f + 4 * P + down * W + j, mask=inside)
    f5 = tl.load(f + 5 * P + up * W + left, mask=inside)
    f6 = tl.load(f + 6 * P + up * W + right, mask=inside)
    f7 = tl.load(f + 7 * P + down * W + right, mask=inside)
    f8 = tl.load(f + 8 * P + down * W + left, mask=inside)
    rho = f0 + f1 + f2 + f3 + f4 + f5 + f6 + f7 + f8
    u = (f1 + f5 + f8 - f3 - f6 - f7) / rho
    v = (f2 + f5 + f6 - f4 - f7 - f8) / rho
    base = 1.0 - 1.5 * (u * u + v * v)
    a, b = u + v, v - u
    at = g + i * W + j
    side, corner = rho * rate / 9.0, rho * rate / 36.0
    keep = 1.0 - rate
    tl.store(at, keep * f0 + rho * rate * (4.0 / 9.0) * base, mask=inside)
    tl.store(at + P, keep * f1 + side * (base + 3.0 * u + 4.5 * u * u), mask=inside)
    tl.store(at + 2 * P, keep * f2 + side * (base + 3.0 * v + 4.5 * v * v), mask=inside)
    tl.store(at + 3 * P, keep * f3 + side * (base - 3.0 * u + 4.5 * u * u), mask=inside)
    tl.store(at + 4 * P, keep * f4 + side * (base - 3.0 * v + 4.5 * v * v), mask=inside)
    tl.store(at + 5 * P, keep * f5 + corner * (base + 3.0 * a + 4.5 * a * a), mask=inside)
    tl.store(at + 6 * P, keep * f6 + corner * (base + 3.0 * b + 4.5 * b * b), mask=inside)
    tl.store(at + 7 * P, keep * f7 + corner * (base - 3.0 * a + 4.5 * a * a), mask=inside)
    tl.store(at + 8 * P, keep * f8 + corner * (base - 3.0 * b + 4.5 * b * b), mask=inside)


@triton.jit
def hash_encoded(p, table, sides, y, N, LEVELS, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Features of points in a cube by one level of a hash grid, between its 8 corners: two numbers
    an entry, [LEVELS, SIZE, 2].
    """
    n, level = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    inside = n < N
    side = tl.load(sides + level)
    px = tl.load(p + n * 3, mask=inside, other=0.0) * side
    py = tl.load(p + n * 3 + 1, mask=inside, other=0.0) * side
    pz = tl.load(p + n * 3 + 2, mask=inside, other=0.0) * side
    fx, fy, fz = tl.floor(px), tl.floor(py), tl.floor(pz)
    dx, dy, dz = px - fx, py - fy, pz - fz
    ix, iy, iz = fx.to(tl.uint32), fy.to(tl.uint32), fz.to(tl.uint32)
    a, b = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for corner in tl.static_range(8):
        x, y_, z = corner & 1, (corner >> 1) & 1, corner >> 2
        h = (ix + x) ^ ((iy + y_) * 2654435761) ^ ((iz + z) * 805459861)
        at = table + (level * SIZE + (h & (SIZE - 1)).to(tl.int32)) * 2
        share = (dx if x else 1.0 - dx) * (dy if y_ else 1.0 - dy) * (dz if z else 1.0 - dz)
        a += share * tl.load(at, mask=inside, other=0.0)
        b += share * tl.load(at + 1, mask=inside, other=0.0)
    to = y + (n * LEVELS + level) * 2
    tl.store(to, a.to(y.dtype.element_ty), mask=inside)
    tl.store(to + 1, b.to(y.dtype.element_ty), mask=inside)


@triton.jit
def first_triangles(o, d, t, depth, which, R, T, BR: tl.constexpr, BT: tl.constexpr):
    """The first triangle that each ray meets (Möller and Trumbore). t: [9, T], by coordinate."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = r < R
    ox, oy, oz = (
        tl.load(o + r * 3, mask=inside, other=0.0)[:, None],
        tl.load(o + r * 3 + 1, mask=inside, other=0.0)[:, None],
        tl.load(o + r * 3 + 2, mask=inside, other=0.0)[:, None],
    )
    dx, dy, dz = (
        tl.load(d + r * 3, mask=inside, other=1.0)[:, None],
        tl.load(d + r * 3 + 1, mask=inside, other=0.0)[:, None],
        tl.load(d + r * 3 + 2, mask=inside, other=0.0)[:, None],
    )
    nearest = tl.full((BR,), float("inf"), tl.float32)
    found = tl.full((BR,), -1, tl.int32)
    for start in range(0, T, BT):
        i = start + tl.arange(0, BT)[None, :]
        here = i < T
        ax, ay, az = (
            tl.load(t + i, mask=here, other=0.0),
            tl.load(t + T + i, mask=here, other=0.0),
            tl.load(t + 2 * T + i, mask=here, other=0.0),
        )
        ex, ey, ez = (
            tl.load(t + 3 * T + i, mask=here, other=0.0),
            tl.load(t + 4 * T + i, mask=here, other=0.0),
            tl.load(t + 5 * T + i, mask=here, other=0.0),
        )
        gx, gy, gz = (
            tl.load(t + 6 * T + i, mask=here, other=0.0),
            tl.load(t + 7 * T + i, mask=here, other=0.0),
            tl.load(t + 8 * T + i, mask=here, other=0.0),
        )
        px, py, pz = dy * gz - dz * gy, dz * gx - dx * gz, dx * gy - dy * gx
        det = ex * px + ey * py + ez * pz
        inverse = 1.0 / tl.where(tl.abs(det) > 1e-9, det, 1.0)
        sx, sy, sz = ox - ax, oy - ay, oz - az
        u = (sx * px + sy * py + sz * pz) * inverse
        qx, qy, qz = sy * ez - sz * ey, sz * ex - sx * ez, sx * ey - sy * ex
        v = (dx * qx + dy * qy + dz * qz) * inverse
        far = (gx * qx + gy * qy + gz * qz) * inverse
        hit = (tl.abs(det) > 1e-9) & (u >= 0.0) & (v >= 0.0) & (u + v <= 1.0) & (far > 1e-4)
        far = tl.where(hit & here, far, float("inf"))
        least, place = tl.min(far, 1, return_indices=True)
        found = tl.where(least < nearest, start + place, found)
        nearest = tl.minimum(nearest, least)
    tl.store(depth + r, nearest, mask=inside)
    tl.store(which + r, found, mask=inside)


@triton.jit
def norm_to_int8(x, r, w, total, y, scale, N, eps, BLOCK: tl.constexpr):
    """A residual added, a norm by mean squares, and rows in int8 with a scale each."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    at = row.to(tl.int64) * N + c
    a = tl.load(x + at, mask=c < N, other=0.0).to(tl.float32)
    a += tl.load(r + at, mask=c < N, other=0.0).to(tl.float32)
    tl.store(total + at, a.to(total.dtype.element_ty), mask=c < N)
    z = a * tl.rsqrt(tl.sum(a * a, 0) / N + eps)
    z *= tl.load(w + c, mask=c < N, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(z), 0), 1e-10) / 127.0
    whole = tl.floor(z / most + 0.5)
    tl.store(y + at, whole.to(tl.int8), mask=c < N)
    tl.store(scale + row, most)


@triton.jit
def places_in_experts(expert, place, count, T, CAPACITY, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """For each of a token's TOP experts its place among the expert's tokens, -1 beyond CAPACITY; a
    program counts for one expert.
    """
    e = tl.program_id(0)
    many = 0
    for start in range(0, T * TOP, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mine = tl.load(expert + at, mask=at < T * TOP, other=-1) == e
        rank = many + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(place + at, tl.where(rank < CAPACITY, rank, -1), mask=mine)
        many += tl.sum(mine.to(tl.int32), 0)
    tl.store(count + e, tl.minimum(many, CAPACITY))


@triton.jit
def _larger(a, i, b, j):
    later = (b > a) | ((b == a) & (j > i))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def running_maxima(x, y, place, N, BLOCK: tl.constexpr):
    """The largest so far of each row and where it is, the last of equals."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(x + row * N + c, mask=c < N, other=float("-inf"))
    best, at = tl.associative_scan((a, c), 0, _larger)
    tl.store(y + row * N + c, best, mask=c < N)
    tl.store(place + row * N + c, at, mask=c < N)


@triton.jit
def bilateral(x, y, H, W, space, tone, R: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr):
    """A blur that keeps edges: neighbours weighted by distance and by how like they are."""
    image = tl.program_id(2)
    i = tl.program_id(0) * BH + tl.arange(0, BH)[:, None]
    j = tl.program_id(1) * BW + tl.arange(0, BW)[None, :]
    x += image * H * W
    inside = (i < H) & (j < W)
    own = tl.load(x + i * W + j, mask=inside, other=0.0)
    total, weights = tl.zeros((BH, BW), tl.float32), tl.zeros((BH, BW), tl.float32)
    for r in range(-R, R + 1):
        for s in range(-R, R + 1):
            ii, jj = i + r, j + s
            here = (ii >= 0) & (ii < H) & (jj >= 0) & (jj < W)
            a = tl.load(x + ii * W + jj, mask=here, other=0.0)
            d = a - own
            weight = tl.where(here, tl.exp(-(r * r + s * s) * space - d * d * tone), 0.0)
            total += weight * a
            weights += weight
    tl.store(y + image * H * W + i * W + j, total / weights, mask=inside)


@triton.jit
def _mixed(key, seed):
    h = (key ^ seed) * 0x9E3779B1
    h = (h ^ (h >> 15)) * 0x85EBCA77
    return h ^ (h >> 13)


@triton.jit
def bloom_filled(key, bits, N, MASK, HASHES: tl.constexpr, BLOCK: tl.constexpr):
    """Sets the bits of keys in a Bloom filter."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.load(key + n, mask=n < N, other=0).to(tl.uint32, bitcast=True)
    for i in tl.static_range(HASHES):
        h = _mixed(k, i * 668265263) & MASK
        tl.atomic_or(
            bits + (h >> 5).to(tl.int32), 1 << (h & 31).to(tl.int32), mask=n < N, sem="relaxed"
        )


@triton.jit
def bloom_asked(key, bits, y, N, MASK, HASHES: tl.constexpr, BLOCK: tl.constexpr):
    """Whether a Bloom filter may have keys."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.load(key + n, mask=n < N, other=0).to(tl.uint32, bitcast=True)
    has = tl.full((BLOCK,), 1, tl.int32)
    for i in tl.static_range(HASHES):
        h = _mixed(k, i * 668265263) & MASK
        word = tl.load(bits + (h >> 5).to(tl.int32), mask=n < N, other=0)
        has &= word >> (h & 31).to(tl.int32)
    tl.store(y + n, (has & 1).to(tl.int8), mask=n < N)


@triton.jit
def _within(a, x, b, y):
    return a | b, tl.where(b != 0, y, x + y)


@triton.jit
def sums_of_runs(key, x, y, N, BLOCK: tl.constexpr):
    """Sums of runs of equal keys, which are sorted: scanned in a block, added where a run ends in
    one.
    """
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.load(key + n, mask=n < N, other=-1)
    before = tl.load(key + n - 1, mask=(n > 0) & (n < N), other=-1)
    after = tl.load(key + n + 1, mask=n + 1 < N, other=-1)
    a = tl.load(x + n, mask=n < N, other=0.0)
    _, total = tl.associative_scan(((k != before).to(tl.int32), a), 0, _within)
    last = (k != after) | (tl.arange(0, BLOCK) == BLOCK - 1)
    tl.atomic_add(y + k, total, mask=last & (n < N), sem="relaxed")


@triton.jit
def masked_softmax(x, bits, y, N, WORDS, BLOCK: tl.constexpr):
    """Softmax of rows where a bit of a packed mask is set."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    word = tl.load(bits + row * WORDS + c // 32, mask=c < N, other=0)
    here = ((word >> (c % 32)) & 1) != 0
    a = tl.load(x + row * N + c, mask=here & (c < N), other=float("-inf")).to(tl.float32)
    most = tl.max(a, 0)
    e = tl.exp(a - tl.where(most == float("-inf"), 0.0, most))
    total = tl.sum(e, 0)
    out = e / tl.where(total == 0.0, 1.0, total)
    tl.store(y + row * N + c, out.to(y.dtype.element_ty), mask=c < N)


@triton.jit
def factored_step(p, g, rows, columns, mean, out, rate, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Adafactor's step of a matrix by its moments of rows and columns."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (i[:, None] < M) & (j[None, :] < N)
    at = i[:, None] * N + j[None, :]
    r = tl.load(rows + i, mask=i < M, other=1.0)
    c = tl.load(columns + j, mask=j < N, other=1.0)
    a = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    step = a * tl.rsqrt(r[:, None] * c[None, :] / tl.load(mean) + 1e-30)
    step = tl.clamp(step, -1.0, 1.0)
    old = tl.load(p + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (old - rate * step).to(out.dtype.element_ty), mask=inside)


@triton.jit
def weighted_bags(table, index, weight, first, y, N, BLOCK: tl.constexpr):
    """Weighted sums of rows of a table, as many as each bag has."""
    bag, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin, end = tl.load(first + bag), tl.load(first + bag + 1)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in range(begin, end):
        row = tl.load(index + i).to(tl.int64)
        acc += tl.load(weight + i) * tl.load(table + row * N + c, mask=c < N, other=0.0)
    tl.store(y + bag * N + c, acc.to(y.dtype.element_ty), mask=c < N)


@triton.jit
def escape_times(y, H, W, left, top, step, MOST, BLOCK: tl.constexpr):
    """In how many steps points of the plane leave a circle of 2; a block goes on while any of its
    points is inside.
    """
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cr, ci = left + (n % W).to(tl.float32) * step, top + (n // W).to(tl.float32) * step
    zr, zi = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.int32)
    i = 0
    inside = n < H * W
    going = 1
    while (i < MOST) & (going != 0):
        zr, zi = zr * zr - zi * zi + cr, 2.0 * zr * zi + ci
        inside = inside & (zr * zr + zi * zi <= 4.0)
        count += inside.to(tl.int32)
        going = tl.max(inside.to(tl.int32), 0)
        i += 1
    tl.store(y + n, count, mask=n < H * W)
