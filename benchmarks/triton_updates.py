"""Steps of training and serving in Triton's language as its users write them: those of the seventh
set without dots. See triton_heads.
"""

import triton
import triton.language as tl


@triton.jit
def _nearest_code(value, table):
    """Which of 256 numbers in order is nearest, by halves."""
    low = tl.zeros(value.shape, tl.int32)
    for i in tl.static_range(8):
        further = low + (128 >> i)
        low = tl.where(tl.load(table + further) <= value, further, low)
    high = tl.minimum(low + 1, 255)
    nearer = tl.load(table + high) - value < value - tl.load(table + low)
    return tl.where(nearer, high, low)


@triton.jit
def step_of_bytes(
    p,
    g,
    m,
    v,
    most_m,
    most_v,
    signed,
    positive,
    new_p,
    new_m,
    new_v,
    new_most_m,
    new_most_v,
    rate,
    decay,
    scale1,
    scale2,
    BLOCKS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """AdamW whose moments are bytes that name numbers of tables, scaled for each SIZE of them."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    at = block.to(tl.int64)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    grad = tl.load(g + at).to(tl.float32)
    mean = tl.load(signed + tl.load(m + at).to(tl.int32)) * tl.load(most_m + block)[:, None]
    square = tl.load(positive + tl.load(v + at).to(tl.int32)) * tl.load(most_v + block)[:, None]
    mean = 0.9 * mean + 0.1 * grad
    square = 0.999 * square + 0.001 * grad * grad
    old = tl.load(p + at).to(tl.float32)
    new = old * (1.0 - rate * decay)
    new -= rate * mean * scale1 / (tl.sqrt(square * scale2) + 1e-8)
    tl.store(new_p + at, new.to(new_p.dtype.element_ty))
    top = tl.maximum(tl.max(tl.abs(mean), 1), 1e-30)
    tl.store(new_m + at, _nearest_code(mean / top[:, None], signed).to(tl.uint8))
    tl.store(new_most_m + block, top)
    top = tl.maximum(tl.max(square, 1), 1e-30)
    tl.store(new_v + at, _nearest_code(square / top[:, None], positive).to(tl.uint8))
    tl.store(new_most_v + block, top)


@triton.jit
def _moments_together(mean, squares, count, other, other_squares, more):
    both = count + more
    share = tl.where(both == 0.0, 0.0, more / both)
    step = other - mean
    return mean + step * share, squares + other_squares + step * step * count * share, both


@triton.jit
def norm_by_moments(x, w, b, y, mean_of, spread_of, N, eps, BLOCK: tl.constexpr):
    """Layer norm of long rows by Welford's moments of each lane, which are put together at the end;
    then once more over the row.
    """
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x += row * N
    mean, squares = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        inside = start + c < N
        a = tl.load(x + start + c, mask=inside, other=0.0).to(tl.float32)
        more = count + 1.0
        step = a - mean
        now = mean + step / more
        mean, squares, count = (
            tl.where(inside, now, mean),
            tl.where(inside, squares + step * (a - now), squares),
            tl.where(inside, more, count),
        )
    mean, squares, count = tl.reduce((mean, squares, count), 0, _moments_together)
    spread = tl.rsqrt(squares / count + eps)
    tl.store(mean_of + row, mean)
    tl.store(spread_of + row, spread)
    for start in range(0, N, BLOCK):
        inside = start + c < N
        a = tl.load(x + start + c, mask=inside, other=0.0, eviction_policy="evict_first")
        z = (a.to(tl.float32) - mean) * spread
        z = z * tl.load(w + start + c, mask=inside, other=0.0).to(tl.float32)
        z += tl.load(b + start + c, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row * N + start + c, z.to(y.dtype.element_ty), mask=inside)


@triton.jit
def short_convolution(
    x, w, b, state, slot, first, y, new_state, C, BT: tl.constexpr, BC: tl.constexpr
):
    """A causal convolution of time, 4 wide, of each channel of sequences in a row, with silu; what
    was before a sequence stands in its slot of the states: [slots, C, 3].
    """
    chunk, batch = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    begin = tl.load(first + batch)
    length = tl.load(first + batch + 1) - begin
    t = chunk * BT
    if t >= length:
        return
    at = tl.load(slot + batch).to(tl.int64) * C * 3 + c * 3
    own = x + begin.to(tl.int64) * C + c
    if chunk == 0:
        x0 = tl.load(state + at, mask=inside, other=0.0).to(tl.float32)
        x1 = tl.load(state + at + 1, mask=inside, other=0.0).to(tl.float32)
        x2 = tl.load(state + at + 2, mask=inside, other=0.0).to(tl.float32)
    else:
        x0 = tl.load(own + (t - 3) * C, mask=inside, other=0.0).to(tl.float32)
        x1 = tl.load(own + (t - 2) * C, mask=inside, other=0.0).to(tl.float32)
        x2 = tl.load(own + (t - 1) * C, mask=inside, other=0.0).to(tl.float32)
    w0 = tl.load(w + c * 4, mask=inside, other=0.0).to(tl.float32)
    w1 = tl.load(w + c * 4 + 1, mask=inside, other=0.0).to(tl.float32)
    w2 = tl.load(w + c * 4 + 2, mask=inside, other=0.0).to(tl.float32)
    w3 = tl.load(w + c * 4 + 3, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(b + c, mask=inside, other=0.0).to(tl.float32)
    for i in range(t, tl.minimum(t + BT, length)):
        x3 = tl.load(own + i * C, mask=inside, other=0.0).to(tl.float32)
        z = bias + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        z = z * tl.sigmoid(z)
        out = y + (begin + i).to(tl.int64) * C + c
        tl.store(out, z.to(y.dtype.element_ty), mask=inside)
        x0 = x1
        x1 = x2
        x2 = x3
    if t + BT >= length:
        tl.store(new_state + at, x0.to(new_state.dtype.element_ty), mask=inside)
        tl.store(new_state + at + 1, x1.to(new_state.dtype.element_ty), mask=inside)
        tl.store(new_state + at + 2, x2.to(new_state.dtype.element_ty), mask=inside)


@triton.jit
def recovered_tokens(draft, target, noise, owner, y, V, BLOCK: tl.constexpr):
    """For each drafted token the one to take if it is refused, drawn by what the target's chances
    exceed the draft's: the largest chance by exponential noise, which a sequence has for all.
    """
    n, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    noise += tl.load(owner + n) * V
    best, token = -1.0, 0
    for start in range(0, V, BLOCK):
        inside = start + c < V
        p = tl.load(target + n * V + start + c, mask=inside, other=0.0)
        p -= tl.load(draft + n * V + start + c, mask=inside, other=0.0)
        q = tl.load(noise + start + c, mask=inside, other=1.0)
        score = tl.where(inside, tl.maximum(p, 0.0) / q, -1.0)
        most, place = tl.max(score, 0, return_indices=True)
        token = tl.where(most > best, start + place, token)
        best = tl.maximum(most, best)
    tl.store(y + n, token)


@triton.jit
def accepted_tokens(draft, target, token, recovered, bonus, chance, first, y, V, MOST):
    """The drafted tokens of a sequence up to the first that is refused; then the recovered one, or
    the bonus. y: [sequences, MOST], filled with -1.
    """
    b = tl.program_id(0)
    begin = tl.load(first + b)
    length = tl.load(first + b + 1) - begin
    going = 1
    for i in range(length):
        if going != 0:
            n = (begin + i).to(tl.int64)
            own = tl.load(token + n)
            p, q = tl.load(target + n * V + own), tl.load(draft + n * V + own)
            if (q > 0.0) & (p >= tl.load(chance + n) * q):
                tl.store(y + b * MOST + i, own)
            else:
                tl.store(y + b * MOST + i, tl.load(recovered + n))
                going = 0
    if going != 0:
        tl.store(y + b * MOST + length, tl.load(bonus + b))


@triton.jit
def _normed_and_turned(at, w, cos, sin, head, HEADS, eps, D: tl.constexpr):
    r = tl.arange(0, D // 2)
    here = head[:, None] < HEADS
    a = tl.load(at + head[:, None] * D + r[None, :], mask=here, other=0.0).to(tl.float32)
    b = tl.load(at + head[:, None] * D + D // 2 + r[None, :], mask=here, other=0.0).to(tl.float32)
    scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / D + eps)[:, None]
    a *= scale * tl.load(w + r).to(tl.float32)[None, :]
    b *= scale * tl.load(w + D // 2 + r).to(tl.float32)[None, :]
    return a * cos[None, :] - b * sin[None, :], b * cos[None, :] + a * sin[None, :]


@triton.jit
def heads_to_cache(
    qkv,
    q_weight,
    k_weight,
    table,
    position,
    slot,
    q,
    cache_k,
    cache_v,
    k_scale,
    v_scale,
    eps,
    H: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
):
    """Heads of queries and keys normed and turned by position; keys and values then go in float8 to
    a token's slot of a cache, if it has one. table: [positions, D], cosines first.
    """
    t, r = tl.program_id(0), tl.arange(0, D // 2)
    place = tl.load(position + t)
    cos, sin = tl.load(table + place * D + r), tl.load(table + place * D + D // 2 + r)
    own = qkv + t.to(tl.int64) * (H + 2 * HK) * D
    head = tl.arange(0, H)
    a, b = _normed_and_turned(own, q_weight, cos, sin, head, H, eps, D)
    to = q + t.to(tl.int64) * H * D + head[:, None] * D + r[None, :]
    tl.store(to, a.to(q.dtype.element_ty))
    tl.store(to + D // 2, b.to(q.dtype.element_ty))
    row = tl.load(slot + t)
    if row < 0:
        return
    head, d = tl.arange(0, HK), tl.arange(0, D)
    a, b = _normed_and_turned(own + H * D, k_weight, cos, sin, head, HK, eps, D)
    by = 1.0 / tl.load(k_scale)
    to = cache_k + row.to(tl.int64) * HK * D + head[:, None] * D + r[None, :]
    tl.store(to, tl.clamp(a * by, -448.0, 448.0).to(cache_k.dtype.element_ty))
    tl.store(to + D // 2, tl.clamp(b * by, -448.0, 448.0).to(cache_k.dtype.element_ty))
    each = head[:, None] * D + d[None, :]
    v = tl.load(own + (H + HK) * D + each).to(tl.float32) / tl.load(v_scale)
    v = tl.clamp(v, -448.0, 448.0).to(cache_v.dtype.element_ty)
    tl.store(cache_v + row.to(tl.int64) * HK * D + each, v)


@triton.jit
def gates_of_experts(x, count, y, scale, T, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """silu(gate) up of the rows that each expert has, in float8 with a scale for BLOCK of a row. x:
    [E, T, 2 N], gates first; scale: [E, N / BLOCK, T].
    """
    group, expert = tl.program_id(0), tl.program_id(2)
    many = tl.load(count + expert)
    c = group * BLOCK + tl.arange(0, BLOCK)
    x += expert.to(tl.int64) * T * 2 * N
    y += expert.to(tl.int64) * T * N
    scale += (expert * tl.num_programs(0) + group) * T
    for t in tl.range(tl.program_id(1), many, tl.num_programs(1), num_stages=STAGES):
        gate = tl.load(x + t * 2 * N + c).to(tl.float32)
        out = gate * tl.sigmoid(gate) * tl.load(x + t * 2 * N + N + c).to(tl.float32)
        most = tl.maximum(tl.max(tl.abs(out), 0), 1e-10) / 448.0
        tl.store(y + t * N + c, tl.clamp(out / most, -448.0, 448.0).to(y.dtype.element_ty))
        tl.store(scale + t, most)


@triton.jit
def _decayed(a, x, b, y):
    return a * b, y + b * x


@triton.jit
def gradients_of_scan(a, h, dh, dx, da, T, C, BT: tl.constexpr, BC: tl.constexpr):
    """Gradients of h = a[t] h + x[t] along time, from its end: a scan of each block backwards, and
    what comes from later blocks.
    """
    batch, t = tl.program_id(1).to(tl.int64), tl.arange(0, BT)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    later = tl.zeros((BC,), tl.float32)
    own = batch * T * C
    for start in range(T - BT, -BT, -BT):
        at = start + t[:, None]
        to = own + at * C + c[None, :]
        inside = at >= 0
        by = tl.load(a + to + C, mask=inside & (at + 1 < T), other=0.0).to(tl.float32)
        d = tl.load(dh + to, mask=inside, other=0.0).to(tl.float32)
        product, grad = tl.associative_scan((by, d), 0, _decayed, reverse=True)
        grad += product * later[None, :]
        tl.store(dx + to, grad.to(dx.dtype.element_ty), mask=inside)
        before = tl.load(h + to - C, mask=at > 0, other=0.0).to(tl.float32)
        tl.store(da + to, (grad * before).to(da.dtype.element_ty), mask=inside)
        later = tl.sum(tl.where(t[:, None] == 0, grad, 0.0), 0)
