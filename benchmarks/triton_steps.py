"""Steps of training and serving in Triton's language as its users write them, none with dots: a
third set, of kinds that the sets before have not. See triton_serving.
"""

import triton
import triton.language as tl


@triton.jit
def smooth_loss(x, target, loss, dx, N, smoothing, BLOCK: tl.constexpr):
    """Loss of a row with smoothed labels, and its gradient beside it."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    label = tl.load(target + row)
    largest, total, sum_of_all = float("-inf"), 0.0, 0.0
    for n in range(0, N, BLOCK):
        a = tl.load(x + row * N + n + c, mask=n + c < N, other=float("-inf")).to(tl.float32)
        now = tl.maximum(largest, tl.max(a, 0))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(a - now), 0)
        sum_of_all += tl.sum(tl.where(n + c < N, a, 0.0), 0)
        largest = now
    lse = largest + tl.log(total)
    own = tl.load(x + row * N + label).to(tl.float32)
    share = smoothing / N
    tl.store(loss + row, lse - (1.0 - smoothing) * own - share * sum_of_all)
    for n in range(0, N, BLOCK):
        a = tl.load(x + row * N + n + c, mask=n + c < N, other=0.0).to(tl.float32)
        d = tl.exp(a - lse) - share - tl.where(n + c == label, 1.0 - smoothing, 0.0)
        tl.store(dx + row * N + n + c, d.to(dx.dtype.element_ty), mask=n + c < N)


@triton.jit
def sparse_rows(start, column, value, x, y, D, BLOCK: tl.constexpr):
    """y = s x of a matrix s by rows: the rows of x that a row of s names, weighted and added."""
    row, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in range(tl.load(start + row), tl.load(start + row + 1)):
        at = tl.load(column + i)
        acc += tl.load(value + i) * tl.load(x + at * D + c).to(tl.float32)
    tl.store(y + row * D + c, acc.to(y.dtype.element_ty))


@triton.jit
def pool(x, y, H, W, C, BW: tl.constexpr, BC: tl.constexpr):
    """The largest of 3 x 3 with steps of 2 and a border, channels last."""
    line, c = tl.program_id(0), tl.program_id(2) * BC + tl.arange(0, BC)
    u = tl.program_id(1) * BW + tl.arange(0, BW)
    image, v = line // (H // 2), line % (H // 2)
    best = tl.full((BW, BC), float("-inf"), tl.float32)
    for r in tl.static_range(3):
        for s in tl.static_range(3):
            yy, xx = 2 * v + r - 1, 2 * u + s - 1
            inside = (yy >= 0) & (yy < H) & (xx >= 0) & (xx < W)
            at = ((image * H + yy) * W + xx)[:, None] * C + c[None, :]
            mask = inside[:, None] & (c[None, :] < C)
            best = tl.maximum(best, tl.load(x + at, mask=mask, other=float("-inf")).to(tl.float32))
    out = ((image * (H // 2) + v) * (W // 2) + u)[:, None] * C + c[None, :]
    tl.store(y + out, best.to(y.dtype.element_ty), mask=(u[:, None] < W // 2) & (c[None, :] < C))


@triton.jit
def memory_cell(z, c, h, new_c, D, N, BLOCK: tl.constexpr):
    """A step of an LSTM behind its products: z has the four gates of a row side by side."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, d = at // D, at % D
    base = row * 4 * D + d
    i = tl.sigmoid(tl.load(z + base, mask=at < N, other=0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(z + base + D, mask=at < N, other=0.0).to(tl.float32))
    g = tl.load(z + base + 2 * D, mask=at < N, other=0.0).to(tl.float32)
    o = tl.sigmoid(tl.load(z + base + 3 * D, mask=at < N, other=0.0).to(tl.float32))
    g = 2.0 * tl.sigmoid(2.0 * g) - 1.0
    state = f * tl.load(c + at, mask=at < N, other=0.0) + i * g
    tl.store(new_c + at, state, mask=at < N)
    out = o * (2.0 * tl.sigmoid(2.0 * state) - 1.0)
    tl.store(h + at, out.to(h.dtype.element_ty), mask=at < N)


@triton.jit
def _decayed(a, x, b, y):
    return a * b, x * b + y


@triton.jit
def associative_states(a, x, y, T, C, BT: tl.constexpr, BC: tl.constexpr):
    """h = a[t] h + x[t] by an associative scan along blocks of time."""
    b, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    t = tl.arange(0, BT)
    h = tl.zeros((BC,), tl.float32)
    for start in range(0, T, BT):
        at = (b * T + start + t[:, None]) * C + c[None, :]
        decay, add = tl.load(a + at).to(tl.float32), tl.load(x + at).to(tl.float32)
        whole, states = tl.associative_scan((decay, add), 0, _decayed)
        states += whole * h[None, :]
        tl.store(y + at, states.to(y.dtype.element_ty))
        h = tl.sum(tl.where(t[:, None] == BT - 1, states, 0.0), 0)


@triton.jit
def drawn_token(x, token, seed, temperature, N, BLOCK: tl.constexpr):
    """A token drawn by the logits of its row: the largest of logit plus Gumbel noise."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    which = tl.zeros((BLOCK,), tl.int32)
    for n in range(0, N, BLOCK):
        a = tl.load(x + row * N + n + c, mask=n + c < N, other=float("-inf")).to(tl.float32)
        u = tl.rand(seed, row * N + n + c)
        noisy = a / temperature - tl.log(-tl.log(tl.maximum(u, 1e-7)))
        which = tl.where(noisy > best, n + c, which)
        best = tl.maximum(best, noisy)
    place = tl.argmax(best, 0)
    tl.store(token + row, tl.sum(tl.where(c == place, which, 0), 0))


@triton.jit
def float8_by_blocks(x, y, scales, N, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """float8 with a scale a block of 128 of a row."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = r[:, None] * N + c[None, :]
    a = tl.load(x + at).to(tl.float32)
    s = tl.maximum(tl.max(tl.abs(a), 1), 1e-12) / 448.0
    tl.store(y + at, (a / s[:, None]).to(y.dtype.element_ty))
    tl.store(scales + r * (N // BLOCK) + tl.program_id(1), s)


@triton.jit
def weights_from_4_bits(packed, scales, zeros, y, N, G: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of weights from bytes of two, by groups of G columns."""
    row, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(packed + row * (N // 2) + c)
    low, high = (words & 15).to(tl.float32), (words >> 4).to(tl.float32)
    w = tl.reshape(tl.join(low, high), (2 * BLOCK,))
    n = tl.program_id(1) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    s = tl.load(scales + row * (N // G) + n // G).to(tl.float32)
    z = tl.load(zeros + row * (N // G) + n // G).to(tl.float32)
    tl.store(y + row * N + n, ((w - z) * s).to(y.dtype.element_ty))


@triton.jit
def sign_step(p, g, m, seed, lr, beta1, beta2, decay, N, BLOCK: tl.constexpr):
    """Lion, with parameters of 16 bits rounded by chance."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    a = tl.load(p + at, mask=inside).to(tl.float32)
    d = tl.load(g + at, mask=inside).to(tl.float32)
    mean = tl.load(m + at, mask=inside)
    step = mean * beta1 + d * (1.0 - beta1)
    sign = tl.where(step > 0.0, 1.0, tl.where(step < 0.0, -1.0, 0.0))
    new = a * (1.0 - lr * decay) - lr * sign
    bits = new.to(tl.uint32, bitcast=True)
    noise = tl.randint(seed, at).to(tl.uint32) & 0xFFFF
    rounded = ((bits + noise) & 0xFFFF0000).to(tl.float32, bitcast=True)
    tl.store(p + at, rounded.to(p.dtype.element_ty), mask=inside)
    tl.store(m + at, mean * beta2 + d * (1.0 - beta2), mask=inside)


@triton.jit
def dropped_and_normed(x, residual, w, b, seed, p, z, y, N, eps, BLOCK: tl.constexpr):
    """z = residual + dropout(x), y = layer norm of z."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    inside = c < N
    a = tl.load(x + row * N + c, mask=inside, other=0.0).to(tl.float32)
    kept = tl.rand(seed, row * N + c) > p
    a = tl.where(kept, a / (1.0 - p), 0.0)
    a += tl.load(residual + row * N + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(z + row * N + c, a.to(z.dtype.element_ty), mask=inside)
    mean = tl.sum(a, 0) / N
    centred = tl.where(inside, a - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / N + eps)
    gamma = tl.load(w + c, mask=inside).to(tl.float32)
    beta = tl.load(b + c, mask=inside).to(tl.float32)
    tl.store(y + row * N + c, (centred * scale * gamma + beta).to(y.dtype.element_ty), mask=inside)


@triton.jit
def turned_pairs(x, cos, sin, y, S, H: tl.constexpr, D: tl.constexpr):
    """Rotary embedding of neighbouring pairs."""
    token = tl.program_id(0)
    h, d, half = tl.arange(0, H), tl.arange(0, D), tl.arange(0, D // 2)
    at = token * H * D + h[:, None] * D + d[None, :]
    a = tl.reshape(tl.load(x + at).to(tl.float32), (H, D // 2, 2))
    even, odd = tl.split(a)
    c = tl.load(cos + (token % S) * (D // 2) + half)[None, :]
    s = tl.load(sin + (token % S) * (D // 2) + half)[None, :]
    out = tl.join(even * c - odd * s, odd * c + even * s)
    tl.store(y + at, tl.reshape(out, (H, D)).to(y.dtype.element_ty))


@triton.jit
def hadamard(x, y, scale, ROWS: tl.constexpr, N: tl.constexpr, LEVELS: tl.constexpr):
    """Rows times the Hadamard matrix of N, by sums and differences of halves."""
    r, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, N)
    a = tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32)
    for level in tl.static_range(LEVELS):
        pairs = tl.reshape(a, (ROWS, N // (2 << level), 2, 1 << level))
        first, second = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
        both = tl.join(first + second, first - second)
        a = tl.reshape(tl.permute(both, (0, 1, 3, 2)), (ROWS, N))
    tl.store(y + r[:, None] * N + c[None, :], (a * scale).to(y.dtype.element_ty))


@triton.jit
def channel_moments(x, total, squares, M, C, ROWS, BM: tl.constexpr, BC: tl.constexpr):
    """Sums and sums of squares of channels, for batch norm: a program adds those of its rows."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    first = tl.program_id(0) * ROWS
    s, q = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for start in range(first, first + ROWS, BM):
        r = start + tl.arange(0, BM)
        mask = (r[:, None] < M) & (c[None, :] < C)
        a = tl.load(x + r[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
        s += tl.sum(a, 0)
        q += tl.sum(a * a, 0)
    tl.atomic_add(total + c, s, mask=c < C)
    tl.atomic_add(squares + c, q, mask=c < C)


@triton.jit
def image_to_planes(x, mean, deviation, y, P, BLOCK: tl.constexpr):
    """Pixels of three bytes to three planes of numbers, normed."""
    image = tl.program_id(0)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for channel in tl.static_range(3):
        a = tl.load(x + (image * P + p) * 3 + channel, mask=p < P, other=0).to(tl.float32)
        value = (a / 255.0 - tl.load(mean + channel)) / tl.load(deviation + channel)
        tl.store(y + (image * 3 + channel) * P + p, value.to(y.dtype.element_ty), mask=p < P)


@triton.jit
def many_averages(averages, values, sizes, decay, BLOCK: tl.constexpr):
    """a += (1 - decay) (v - a) of several tensors, whose addresses stand in tables."""
    which = tl.program_id(0)
    a = tl.load(averages + which).to(tl.pointer_type(tl.float32))
    v = tl.load(values + which).to(tl.pointer_type(tl.bfloat16))
    size = tl.load(sizes + which)
    for start in range(tl.program_id(1) * BLOCK, size, tl.num_programs(1) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        old = tl.load(a + at, mask=at < size, other=0.0)
        new = tl.load(v + at, mask=at < size, other=0.0).to(tl.float32)
        tl.store(a + at, old + (1.0 - decay) * (new - old), mask=at < size)


@triton.jit
def focal_loss(x, target, loss, dx, alpha, N, BLOCK: tl.constexpr):
    """Focal loss of two classes with exponent 2, and its gradient."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < N, other=0.0).to(tl.float32)
    t = tl.load(target + at, mask=at < N, other=0.0).to(tl.float32)
    p = tl.sigmoid(a)
    bce = tl.maximum(a, 0.0) - a * t + tl.log(1.0 + tl.exp(-tl.abs(a)))
    miss = p + t - 2.0 * p * t
    weight = (alpha * t + (1.0 - alpha) * (1.0 - t)) * miss * miss
    tl.store(loss + at, weight * bce, mask=at < N)
    slope = 2.0 * (1.0 - 2.0 * t) * p * (1.0 - p) / tl.maximum(miss, 1e-6)
    tl.store(dx + at, (weight * (slope * bce + p - t)).to(dx.dtype.element_ty), mask=at < N)


@triton.jit
def factored_moments(g, rows, columns, M, N, ROWS, BM: tl.constexpr, BN: tl.constexpr):
    """Mean squares of the rows and of the columns of a gradient, as Adafactor keeps them."""
    first = tl.program_id(0) * ROWS
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    down = tl.zeros((BN,), tl.float32)
    for start in range(first, first + ROWS, BM):
        r = start + tl.arange(0, BM)
        a = tl.load(g + r[:, None] * N + c[None, :]).to(tl.float32)
        a = a * a
        tl.atomic_add(rows + r, tl.sum(a, 1) / N)
        down += tl.sum(a, 0)
    tl.atomic_add(columns + c, down / M)
