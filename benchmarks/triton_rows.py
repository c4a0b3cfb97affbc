"""Kernels without dots in Triton's language as its users write them, of kinds that no
package's case has. See triton_programs.
"""

import triton
import triton.language as tl


@triton.jit
def residual_norm(x, r, w, y, total, N, eps, BLOCK: tl.constexpr):
    """total = x + r; y = w total / rms(total)."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    inside = c < N
    a = tl.load(x + row * N + c, mask=inside, other=0.0).to(tl.float32)
    a += tl.load(r + row * N + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + row * N + c, a.to(total.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(a * a, 0) / N + eps)
    value = a * scale * tl.load(w + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * N + c, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def quantize_rows(x, y, scales, N, BLOCK: tl.constexpr):
    """y = x / scale in float8, the scale of a row its largest magnitude / 448."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(x + row * N + c, mask=c < N, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(a), 0), 1e-12) / 448.0
    tl.store(scales + row, scale)
    tl.store(y + row * N + c, (a / scale).to(y.dtype.element_ty), mask=c < N)


@triton.jit
def loss_of_rows(x, target, loss, N, BLOCK: tl.constexpr):
    """log of the sum of exponentials of a row, less its target's element; a pass over the row."""
    row = tl.program_id(0).to(tl.int64)
    most = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for n in range(0, N, BLOCK):
        c = n + tl.arange(0, BLOCK)
        a = tl.load(x + row * N + c, mask=c < N, other=-1.0e30).to(tl.float32)
        now = tl.maximum(most, a)
        sums = sums * tl.exp(most - now) + tl.exp(a - now)
        most = now
    top = tl.max(most, 0)
    total = tl.sum(sums * tl.exp(most - top), 0)
    own = tl.load(x + row * N + tl.load(target + row)).to(tl.float32)
    tl.store(loss + row, tl.log(total) + top - own)


@triton.jit
def route(x, weights, experts, N: tl.constexpr, TOP: tl.constexpr, ROWS: tl.constexpr):
    """The TOP largest of N logits of a token, and their softmax."""
    r, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, N)
    a = tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32)
    first = tl.max(a, 1)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for t in tl.static_range(TOP):
        best, at = tl.max(a, 1, return_indices=True)
        e = tl.exp(best - first)
        total += e
        tl.store(weights + r * TOP + t, e)
        tl.store(experts + r * TOP + t, at)
        a = tl.where(c[None, :] == at[:, None], float("-inf"), a)
    for t in tl.static_range(TOP):
        tl.store(weights + r * TOP + t, tl.load(weights + r * TOP + t) / total)


@triton.jit
def bag(table, index, y, N, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """y[i] = mean of the table's rows index[i, :]."""
    row, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for t in range(LENGTH):
        at = tl.load(index + row * LENGTH + t)
        acc += tl.load(table + at * N + c, mask=c < N, other=0.0).to(tl.float32)
    tl.store(y + row * N + c, (acc / LENGTH).to(y.dtype.element_ty), mask=c < N)


@triton.jit
def scatter_rows(x, index, y, N, BLOCK: tl.constexpr):
    """y[index[i]] += x[i]."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    at = tl.load(index + row)
    a = tl.load(x + row * N + c, mask=c < N, other=0.0).to(tl.float32)
    tl.atomic_add(y + at * N + c, a, mask=c < N)


@triton.jit
def depthwise(x, w, y, H, W, C, BW: tl.constexpr, BC: tl.constexpr):
    """3 × 3 depthwise convolution of images [.., H, W, C], zeros around."""
    row, j, cc = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, i = row // H, row % H
    rw, rc = j * BW + tl.arange(0, BW), cc * BC + tl.arange(0, BC)
    acc = tl.zeros((BW, BC), dtype=tl.float32)
    for a in tl.static_range(3):
        for b in tl.static_range(3):
            h, at = i + a - 1, rw + b - 1
            here = (h >= 0) & (h < H) & (at >= 0) & (at < W)
            place = x + ((n * H + h) * W + at)[:, None] * C + rc[None, :]
            value = tl.load(place, mask=here[:, None] & (rc[None, :] < C), other=0.0)
            weight = tl.load(w + (a * 3 + b) * C + rc, mask=rc < C, other=0.0)
            acc += value.to(tl.float32) * weight[None, :].to(tl.float32)
    out = y + ((n * H + i) * W + rw)[:, None] * C + rc[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=(rw[:, None] < W) & (rc[None, :] < C))


@triton.jit
def running_sum(x, y, N, BLOCK: tl.constexpr):
    """Running sums of rows, a part of a row at a time."""
    row = tl.program_id(0).to(tl.int64)
    before = 0.0
    for n in range(0, N, BLOCK):
        c = n + tl.arange(0, BLOCK)
        a = tl.load(x + row * N + c, mask=c < N, other=0.0)
        tl.store(y + row * N + c, tl.cumsum(a, 0) + before, mask=c < N)
        before += tl.sum(a, 0)


@triton.jit
def transposed(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """y = xᵀ."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    a = tl.load(x + rm[:, None] * N + rn[None, :], mask=inside)
    tl.store(y + rn[:, None] * M + rm[None, :], tl.trans(a), mask=tl.trans(inside))


@triton.jit
def adam_step(p, g, m, v, lr, beta1, beta2, eps, decay, c1, c2, N, BLOCK: tl.constexpr):
    """A step of AdamW, in place; moments in float32."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    grad = tl.load(g + i, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(m + i, mask=inside, other=0.0) * beta1 + grad * (1 - beta1)
    second = tl.load(v + i, mask=inside, other=0.0) * beta2 + grad * grad * (1 - beta2)
    value = tl.load(p + i, mask=inside, other=0.0).to(tl.float32) * (1 - lr * decay)
    value -= lr * (first / c1) / (tl.sqrt(second / c2) + eps)
    tl.store(m + i, first, mask=inside)
    tl.store(v + i, second, mask=inside)
    tl.store(p + i, value.to(p.dtype.element_ty), mask=inside)
