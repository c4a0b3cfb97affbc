"""Kernels on signals, images, rows and tables in Triton's language as its users write them: those
of the fifth set without dots. See triton_models.
"""

import triton
import triton.language as tl


@triton.jit
def turned_by_axes(x, cos, sin, y, T, H, W, HEADS: tl.constexpr, D: tl.constexpr):
    """Rotary embedding of the tokens of a video: the first quarter of the pairs turns by frame, the
    others by line and by column. cos, sin: [places, D / 2].
    """
    token, h, p = tl.program_id(0), tl.arange(0, HEADS), tl.arange(0, D // 2)
    within = token % (T * H * W)
    frame, line, column = within // (H * W), within // W % H, within % W
    place = tl.where(p < D // 8, frame, tl.where(p < D // 8 + 3 * D // 16, line, column))
    c = tl.load(cos + place * (D // 2) + p)[None, :]
    s = tl.load(sin + place * (D // 2) + p)[None, :]
    at = (token * HEADS + h[:, None]).to(tl.int64) * D + p[None, :]
    a = tl.load(x + at).to(tl.float32)
    b = tl.load(x + at + D // 2).to(tl.float32)
    tl.store(y + at, (a * c - b * s).to(y.dtype.element_ty))
    tl.store(y + at + D // 2, (b * c + a * s).to(y.dtype.element_ty))


@triton.jit
def _later_first(d, x, e, y):
    return d * e, y + e * x


@triton.jit
def advantages(
    reward,
    value,
    done,
    advantage,
    target,
    gamma,
    decay,
    T: tl.constexpr,
    ROWS: tl.constexpr,
    N,
):
    """Generalized advantage estimates: a scan from the last step to the first."""
    r, t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, T)[None, :]
    at = r * T + t
    inside = r < N
    v = tl.load(value + r * (T + 1) + t, mask=inside, other=0.0)
    after = tl.load(value + r * (T + 1) + t + 1, mask=inside, other=0.0)
    on = 1.0 - tl.load(done + at, mask=inside, other=0).to(tl.float32)
    delta = tl.load(reward + at, mask=inside, other=0.0) + gamma * after * on - v
    _, a = tl.associative_scan((gamma * decay * on, delta), 1, _later_first, reverse=True)
    tl.store(advantage + at, a, mask=inside)
    tl.store(target + at, a + v, mask=inside)


@triton.jit
def tones(x, counts, P, BLOCK: tl.constexpr):
    """How often each of 256 tones occurs in an image."""
    image = tl.program_id(0)
    total = tl.zeros((256,), tl.int32)
    for start in range(tl.program_id(1) * BLOCK, P, tl.num_programs(1) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        a = tl.load(x + image * P + at, mask=at < P, other=0).to(tl.int32)
        total += tl.histogram(a, 256, mask=at < P)
    tl.atomic_add(counts + image * 256 + tl.arange(0, 256), total)


@triton.jit
def equalized(x, counts, y, P, BLOCK: tl.constexpr):
    """Tones by their ranks among the tones of an image."""
    image, c = tl.program_id(0), tl.arange(0, 256)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    below = tl.cumsum(tl.load(counts + image * 256 + c), 0)
    least = tl.min(tl.where(below > 0, below, P), 0)
    table = (below - least).to(tl.float32) * 255.0 / tl.maximum(P - least, 1)
    table = tl.maximum(table, 0.0)
    a = tl.load(x + image * P + at, mask=at < P, other=0).to(tl.int32)
    tone = tl.gather(table, a, 0) + 0.5
    tl.store(y + image * P + at, tone.to(tl.uint8), mask=at < P)


@triton.jit
def sampled(x, grid, y, H, W, OH, OW, C, BP: tl.constexpr, BC: tl.constexpr):
    """Images [B, H, W, C] at places between pixels, by the four pixels around; zeros outside."""
    image, c = tl.program_id(1), tl.arange(0, BC)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    inside = p < OH * OW
    to = image * OH * OW + p
    u = (tl.load(grid + to * 2, mask=inside, other=0.0) + 1.0) * (W * 0.5) - 0.5
    v = (tl.load(grid + to * 2 + 1, mask=inside, other=0.0) + 1.0) * (H * 0.5) - 0.5
    left, top = tl.floor(u), tl.floor(v)
    du, dv = u - left, v - top
    j, i = left.to(tl.int32), top.to(tl.int32)
    acc = tl.zeros((BP, BC), tl.float32)
    for r in tl.static_range(2):
        for s in tl.static_range(2):
            ii, jj = i + r, j + s
            here = inside & (ii >= 0) & (ii < H) & (jj >= 0) & (jj < W)
            weight = (dv if r else 1.0 - dv) * (du if s else 1.0 - du)
            at = ((image * H + ii) * W + jj)[:, None] * C + c[None, :]
            a = tl.load(x + at, mask=here[:, None] & (c[None, :] < C), other=0.0)
            acc += weight[:, None] * a.to(tl.float32)
    mask = inside[:, None] & (c[None, :] < C)
    tl.store(y + to[:, None] * C + c[None, :], acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def overlaps(box, y, N, WORDS, least, ROWS: tl.constexpr):
    """A bit for each of 32 later boxes that overlaps with a box by more than `least`."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(1)
    j = word * 32 + tl.arange(0, 32)
    x0, y0 = tl.load(box + i * 4, mask=i < N), tl.load(box + i * 4 + 1, mask=i < N)
    x1, y1 = tl.load(box + i * 4 + 2, mask=i < N), tl.load(box + i * 4 + 3, mask=i < N)
    u0, v0 = tl.load(box + j * 4, mask=j < N), tl.load(box + j * 4 + 1, mask=j < N)
    u1, v1 = tl.load(box + j * 4 + 2, mask=j < N), tl.load(box + j * 4 + 3, mask=j < N)
    wide = tl.minimum(x1[:, None], u1[None, :]) - tl.maximum(x0[:, None], u0[None, :])
    high = tl.minimum(y1[:, None], v1[None, :]) - tl.maximum(y0[:, None], v0[None, :])
    both = tl.maximum(wide, 0.0) * tl.maximum(high, 0.0)
    either = ((x1 - x0) * (y1 - y0))[:, None] + ((u1 - u0) * (v1 - v0))[None, :] - both
    more = (both > least * either) & (j[None, :] > i[:, None]) & (j[None, :] < N)
    bits = more.to(tl.int32) << tl.arange(0, 32)[None, :]
    tl.store(y + i * WORDS + word, tl.sum(bits, 1), mask=i < N)


@triton.jit
def largest_kept(x, y, K, N, BLOCK: tl.constexpr):
    """A row's K numbers of largest magnitude, the others 0: the bound is found bit by bit."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(x + row * N + c, mask=c < N, other=0.0)
    size = a.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bound = 0
    for step in range(31):
        tried = bound | (1 << (30 - step))
        many = tl.sum((size >= tried).to(tl.int32), 0)
        bound = tl.where(many >= K, tried, bound)
    tl.store(y + row * N + c, tl.where(size >= bound, a, 0.0), mask=c < N)


@triton.jit
def compensated(x, y, N, BLOCK: tl.constexpr):
    """Sums of rows that carry what each addition lost (Kahan)."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    total, lost = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        a = tl.load(x + row * N + start + c, mask=start + c < N, other=0.0) - lost
        now = total + a
        lost = (now - total) - a
        total = now
    exact = tl.sum(total.to(tl.float64), 0) - tl.sum(lost.to(tl.float64), 0)
    tl.store(y + row, exact.to(tl.float32))


@triton.jit
def butterflies(x, turn, y, ROWS: tl.constexpr, N: tl.constexpr, LEVELS: tl.constexpr):
    """Fourier transforms of rows of N complex numbers side by side: pairs of the halves in LEVELS
    steps (Stockham). turn: cos and sin of each step, [LEVELS, N / 2, 2].
    """
    r, c, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 2 * N), tl.arange(0, N)
    a = tl.reshape(tl.load(x + r[:, None] * (2 * N) + c[None, :]), (ROWS, N, 2))
    re, im = tl.split(a)
    for level in tl.static_range(LEVELS):
        w_re, w_im = tl.split(tl.reshape(tl.load(turn + level * N + h), (N // 2, 2)))
        w_re, w_im = w_re[None, :], w_im[None, :]
        re0, re1 = tl.split(tl.trans(tl.reshape(re, (ROWS, 2, N // 2)), (0, 2, 1)))
        im0, im1 = tl.split(tl.trans(tl.reshape(im, (ROWS, 2, N // 2)), (0, 2, 1)))
        d_re, d_im = re0 - re1, im0 - im1
        re = tl.reshape(tl.join(re0 + re1, d_re * w_re - d_im * w_im), (ROWS, N))
        im = tl.reshape(tl.join(im0 + im1, d_re * w_im + d_im * w_re), (ROWS, N))
    out = tl.reshape(tl.join(re, im), (ROWS, 2 * N))
    tl.store(y + r[:, None] * (2 * N) + c[None, :], out)


@triton.jit
def _least(a, b):
    return tl.minimum(a, b)


@triton.jit
def warped_distance(x, z, y, M, N: tl.constexpr):
    """The cost of the cheapest path along two series (dynamic time warping), line by line: steps
    along a line are a running sum and a running minimum.
    """
    pair, j = tl.program_id(0), tl.arange(0, N)
    b = tl.load(z + pair * N + j)
    far = float("inf")
    line = tl.full((N,), far, tl.float32)
    for i in range(M):
        cost = tl.abs(tl.load(x + pair * M + i) - b)
        before = tl.gather(line, tl.maximum(j - 1, 0), 0)
        before = tl.where(j == 0, tl.where(i == 0, 0.0, far), before)
        sums = tl.cumsum(cost, 0)
        enter = tl.minimum(line, before) + cost - sums
        line = tl.associative_scan(enter, 0, _least) + sums
    tl.store(y + pair, tl.sum(tl.where(j == N - 1, line, 0.0), 0))


@triton.jit
def pooled_planes(x, mean, most, R, P: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Mean and largest of planes of P pixels, which are few and no power of two."""
    r, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (r < R) & (c < P)
    a = tl.load(x + r * P + c, mask=inside, other=float("-inf")).to(tl.float32)
    own = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(most + own, tl.max(a, 1).to(most.dtype.element_ty), mask=own < R)
    total = tl.sum(tl.where(inside, a, 0.0), 1)
    tl.store(mean + own, (total / P).to(mean.dtype.element_ty), mask=own < R)


@triton.jit
def noised(x, level, step, y, noise, seed, P, BLOCK: tl.constexpr):
    """Samples with noise of their step of a diffusion, and the noise."""
    sample = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.load(level + tl.load(step + sample))
    own = sample * P + at
    a = tl.load(x + own, mask=at < P, other=0.0).to(tl.float32)
    n = tl.randn(seed, own)
    z = tl.sqrt(keep) * a + tl.sqrt(1.0 - keep) * n
    tl.store(y + own, z.to(y.dtype.element_ty), mask=at < P)
    tl.store(noise + own, n.to(noise.dtype.element_ty), mask=at < P)


@triton.jit
def _ordered(a, b):
    return tl.minimum(a, b), tl.maximum(a, b)


@triton.jit
def median(x, y, H, W, BH: tl.constexpr, BW: tl.constexpr):
    """The median of 3 x 3 bytes, by a network; borders repeated."""
    image = tl.program_id(2)
    v = tl.program_id(0) * BH + tl.arange(0, BH)[:, None]
    u = tl.program_id(1) * BW + tl.arange(0, BW)[None, :]
    above, below = tl.maximum(v - 1, 0), tl.minimum(v + 1, H - 1)
    left, right = tl.maximum(u - 1, 0), tl.minimum(u + 1, W - 1)
    x += image * H * W
    inside = (v < H) & (u < W)
    a, b, c = (
        tl.load(x + above * W + left, mask=inside),
        tl.load(x + above * W + u, mask=inside),
        tl.load(x + above * W + right, mask=inside),
    )
    d, e, f = (
        tl.load(x + v * W + left, mask=inside),
        tl.load(x + v * W + u, mask=inside),
        tl.load(x + v * W + right, mask=inside),
    )
    g, h, i = (
        tl.load(x + below * W + left, mask=inside),
        tl.load(x + below * W + u, mask=inside),
        tl.load(x + below * W + right, mask=inside),
    )
    a, b = _ordered(a, b)
    d, e = _ordered(d, e)
    g, h = _ordered(g, h)
    b, c = _ordered(b, c)
    e, f = _ordered(e, f)
    h, i = _ordered(h, i)
    a, b = _ordered(a, b)
    d, e = _ordered(d, e)
    g, h = _ordered(g, h)
    low = tl.maximum(a, tl.maximum(d, g))
    high = tl.minimum(c, tl.minimum(f, i))
    b, e = _ordered(b, e)
    middle = tl.maximum(b, tl.minimum(e, h))
    low, middle = _ordered(low, middle)
    middle = tl.maximum(low, tl.minimum(middle, high))
    tl.store(y + image * H * W + v * W + u, middle, mask=inside)


@triton.jit
def confusions(said, true, counts, N, CLASSES, IGNORED, BLOCK: tl.constexpr):
    """How often each class was taken for each."""
    for start in range(tl.program_id(0) * BLOCK, N, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        a = tl.load(said + at, mask=at < N, other=0)
        b = tl.load(true + at, mask=at < N, other=IGNORED)
        tl.atomic_add(counts + b * CLASSES + a, 1, mask=(b != IGNORED) & (at < N), sem="relaxed")
