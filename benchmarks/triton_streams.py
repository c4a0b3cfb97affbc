"""Kernels without dots of an eighth set in Triton's language as its users write them: signals,
samples, images and points. See triton_mixers.
"""

import triton
import triton.language as tl


@triton.jit
def _one_after(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    """The step b behind the step a: states (y, y before) by a matrix of 2 x 2, then added to."""
    return (
        b0 * a0 + b1 * a2,
        b0 * a1 + b1 * a3,
        b2 * a0 + b3 * a2,
        b2 * a1 + b3 * a3,
        b0 * a4 + b1 * a5 + b4,
        b2 * a4 + b3 * a5 + b5,
    )


@triton.jit
def filtered_sounds(x, coefficient, y, T, FRAME: tl.constexpr, BT: tl.constexpr):
    """A filter of second order whose five coefficients change from frame to frame of a sound, by an
    associative scan of each block of time. coefficient: [B, T / FRAME, 5].
    """
    row, t = tl.program_id(0).to(tl.int64), tl.arange(0, BT)
    x += row * T
    y += row * T
    coefficient += row * (T // FRAME) * 5
    once, twice = 0.0, 0.0
    for start in range(0, T, BT):
        at = start + t
        inside = at < T
        own = coefficient + at // FRAME * 5
        x0 = tl.load(x + at, mask=inside, other=0.0)
        x1 = tl.load(x + at - 1, mask=inside & (at >= 1), other=0.0)
        x2 = tl.load(x + at - 2, mask=inside & (at >= 2), other=0.0)
        u = tl.load(own, mask=inside, other=0.0) * x0
        u += tl.load(own + 1, mask=inside, other=0.0) * x1
        u += tl.load(own + 2, mask=inside, other=0.0) * x2
        a1 = tl.load(own + 3, mask=inside, other=0.0)
        a2 = tl.load(own + 4, mask=inside, other=0.0)
        one, zero = tl.full((BT,), 1.0, tl.float32), tl.zeros((BT,), tl.float32)
        p0, p1, p2, p3, v0, v1 = tl.associative_scan((-a1, -a2, one, zero, u, zero), 0, _one_after)
        out = p0 * once + p1 * twice + v0
        tl.store(y + at, out, mask=inside)
        once, twice = (
            tl.sum(tl.where(t == BT - 1, out, 0.0), 0),
            tl.sum(tl.where(t == BT - 2, out, 0.0), 0),
        )


@triton.jit
def likely_enough(x, y, part, temperature, N, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Probabilities of a row's likeliest tokens that have `part` of all together, others 0: the
    threshold is found by halving STEPS times, the row read each time.
    """
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x += row * N
    by = 1.0 / tl.load(temperature + row)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        at = start + c
        a = tl.load(x + at, mask=at < N, other=float("-inf")).to(tl.float32) * by
        now = tl.maximum(largest, a)
        known = now > float("-inf")
        total = tl.where(known, total * tl.exp(largest - now) + tl.exp(a - now), 0.0)
        largest = now
    most = tl.max(largest, 0)
    wanted = tl.sum(total * tl.exp(largest - most), 0) * tl.load(part + row)
    low, high = most - 24.0, most
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        mass = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, N, BLOCK):
            at = start + c
            a = tl.load(x + at, mask=at < N, other=float("-inf")).to(tl.float32) * by
            mass += tl.where(a >= middle, tl.exp(a - most), 0.0)
        if tl.sum(mass, 0) >= wanted:
            low = middle
        else:
            high = middle
    mass = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        at = start + c
        a = tl.load(x + at, mask=at < N, other=float("-inf")).to(tl.float32) * by
        mass += tl.where(a >= low, tl.exp(a - most), 0.0)
    scale = 1.0 / tl.sum(mass, 0)
    for start in range(0, N, BLOCK):
        at = start + c
        a = tl.load(x + at, mask=at < N, other=float("-inf")).to(tl.float32) * by
        kept = tl.where(a >= low, tl.exp(a - most) * scale, 0.0)
        tl.store(y + row * N + at, kept, mask=at < N)


@triton.jit
def norm_of_channels(x, w, b, y, C, P, eps, BC: tl.constexpr, BP: tl.constexpr):
    """Layer norm over the channels of images whose channels come first: [B, C, P]."""
    c = tl.arange(0, BC)[:, None]
    p = (tl.program_id(0) * BP + tl.arange(0, BP))[None, :]
    at = tl.program_id(1).to(tl.int64) * C * P + c * P + p
    inside = (c < C) & (p < P)
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(a, 0) / C
    a = tl.where(inside, a - mean[None, :], 0.0)
    spread = tl.rsqrt(tl.sum(a * a, 0) / C + eps)
    out = a * spread[None, :] * tl.load(w + c, mask=c < C, other=0.0)
    out += tl.load(b + c, mask=c < C, other=0.0)
    tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def farthest_points(points, chosen, N, COUNT, BLOCK: tl.constexpr):
    """COUNT points of each cloud of N, each the farthest from those chosen before it, from the
    first point on. points: [B, 3, N].
    """
    cloud, n = tl.program_id(0), tl.arange(0, BLOCK)
    points += cloud * 3 * N
    x = tl.load(points + n, mask=n < N, other=0.0)
    y = tl.load(points + N + n, mask=n < N, other=0.0)
    z = tl.load(points + 2 * N + n, mask=n < N, other=0.0)
    far = tl.where(n < N, 1e10, -1.0)
    last = 0
    for i in range(COUNT):
        tl.store(chosen + cloud * COUNT + i, last)
        dx = x - tl.load(points + last)
        dy = y - tl.load(points + N + last)
        dz = z - tl.load(points + 2 * N + last)
        far = tl.minimum(far, dx * dx + dy * dy + dz * dz)
        last = tl.argmax(far, 0)
