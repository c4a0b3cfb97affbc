"""What models do to tokens apart from products, as people write it in Triton: routing, gathering,
scaling, padding, losses. The cases are in triton_written_signals.
"""

import triton
import triton.language as tl


@triton.jit
def gathered_experts(x, place, weight, y, N, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """A token's sum of the TOP rows that its experts gave, weighted; a place below 0 is none."""
    token, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TOP):
        at = tl.load(place + token * TOP + i).to(tl.int64)
        w = tl.load(weight + token * TOP + i)
        row = tl.load(x + at * N + c, mask=(at >= 0) & (c < N), other=0.0)
        acc += w * row.to(tl.float32)
    tl.store(y + token * N + c, acc.to(y.dtype.element_ty), mask=c < N)


@triton.jit
def microscaled(x, y, exponents, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Float8 with a power of two for 32 numbers of a row, as a byte of its exponent."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = r[:, None] * N + c[None, :]
    a = tl.reshape(tl.load(x + at).to(tl.float32), (ROWS, BLOCK // 32, 32))
    most = tl.max(tl.abs(a), 2, keep_dims=True)
    e = (most.to(tl.int32, bitcast=True) >> 23) - 8
    e = tl.maximum(e, 1)
    inverse = ((254 - e) << 23).to(tl.float32, bitcast=True)
    scaled = tl.clamp(a * inverse, -448.0, 448.0)
    tl.store(y + at, tl.reshape(scaled, (ROWS, BLOCK)).to(y.dtype.element_ty))
    g = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    to = exponents + r[:, None] * (N // 32) + g[None, :]
    tl.store(to, tl.reshape(e, (ROWS, BLOCK // 32)).to(tl.uint8))


@triton.jit
def policy_loss(
    x, token, old, base, advantage, loss, entropy, N, low, high, beta, BLOCK: tl.constexpr
):
    """The clipped loss of a drawn token with its distance from a base policy, and the entropy of
    its row of logits, in a pass.
    """
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    largest, total, weighted = -float("inf"), 0.0, 0.0
    for n in range(0, N, BLOCK):
        a = tl.load(x + row * N + n + c, mask=n + c < N, other=-1.0e30).to(tl.float32)
        now = tl.maximum(largest, tl.max(a, 0))
        e = tl.exp(a - now)
        factor = tl.exp(largest - now)
        total = total * factor + tl.sum(e, 0)
        weighted = weighted * factor + tl.sum(e * a, 0)
        largest = now
    lse = largest + tl.log(total)
    own = tl.load(x + row * N + tl.load(token + row)).to(tl.float32) - lse
    a = tl.load(advantage + row)
    ratio = tl.exp(own - tl.load(old + row))
    clipped = tl.minimum(tl.maximum(ratio, 1.0 - low), 1.0 + high)
    gap = tl.load(base + row) - own
    distance = tl.exp(gap) - gap - 1.0
    tl.store(loss + row, beta * distance - tl.minimum(ratio * a, clipped * a))
    tl.store(entropy + row, lse - weighted / total)


@triton.jit
def routed_in_groups(
    x,
    bias,
    weights,
    experts,
    scale,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    TOP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """TOP of N experts of a token, from its KEPT best groups: a group's worth is that of its two
    best. Weights are sigmoids without the bias, normed.
    """
    r, c, g = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, N), tl.arange(0, GROUPS)
    s = tl.sigmoid(tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32))
    biased = s + tl.load(bias + c)[None, :]
    by_group = tl.reshape(biased, (ROWS, GROUPS, N // GROUPS))
    best, at = tl.max(by_group, 2, return_indices=True)
    within = tl.arange(0, N // GROUPS)
    others = tl.where(within[None, None, :] == at[:, :, None], float("-inf"), by_group)
    worth = best + tl.max(others, 2)
    kept = tl.zeros((ROWS, GROUPS), tl.int32)
    for _ in tl.static_range(KEPT):
        which = tl.argmax(worth, 1)
        chosen = g[None, :] == which[:, None]
        kept = tl.where(chosen, 1, kept)
        worth = tl.where(chosen, float("-inf"), worth)
    open_ = tl.where(kept[:, :, None] > 0, by_group, float("-inf"))
    left = tl.reshape(open_, (ROWS, N))
    total = tl.zeros((ROWS,), tl.float32)
    for i in tl.static_range(TOP):
        which = tl.argmax(left, 1)
        chosen = c[None, :] == which[:, None]
        w = tl.sum(tl.where(chosen, s, 0.0), 1)
        total += w
        tl.store(experts + r * TOP + i, which)
        tl.store(weights + r * TOP + i, w)
        left = tl.where(chosen, float("-inf"), left)
    tl.debug_barrier()
    k = tl.arange(0, TOP)
    own = weights + r[:, None] * TOP + k[None, :]
    tl.store(own, tl.load(own) * (scale / total)[:, None])


@triton.jit
def rows_adagrad(index, g, table, state, lr, eps, N, BLOCK: tl.constexpr):
    """A step of the rows of a table that are named, each once, with one moment a row."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    at = tl.load(index + row)
    if at >= 0:
        d = tl.load(g + row * N + c, mask=c < N, other=0.0).to(tl.float32)
        moment = tl.load(state + at) + tl.sum(d * d, 0) / N
        tl.store(state + at, moment)
        place = table + at * N + c
        a = tl.load(place, mask=c < N, other=0.0).to(tl.float32)
        a -= lr * d / (tl.sqrt(moment) + eps)
        tl.store(place, a.to(table.dtype.element_ty), mask=c < N)


@triton.jit
def padded(x, first, y, S, N, value, BS: tl.constexpr, BLOCK: tl.constexpr):
    """Sequences of any lengths, one behind the other, to rows of S with a value for what lacks."""
    batch, s = tl.program_id(0), tl.program_id(1) * BS + tl.arange(0, BS)
    c = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    begin, end = tl.load(first + batch), tl.load(first + batch + 1)
    here = s[:, None] < tl.minimum(end - begin, S)
    at = (begin + s)[:, None] * N + c[None, :]
    a = tl.load(x + at, mask=here & (c[None, :] < N), other=value)
    to = (batch * S + s)[:, None].to(tl.int64) * N + c[None, :]
    tl.store(y + to, a, mask=(s[:, None] < S) & (c[None, :] < N))
