"""Element-wise steps, sparse sums and simulations. A part of the unseen kernels."""

from __future__ import annotations

from typing import Any

import tkc
from benchmarks.unseen.operands import Called, Operands, case, over


@tkc.jit
def sparse_rows(start, column, value, x, y, BN: tkc.constexpr, BLOCK: tkc.constexpr = 16):
    """y = S x for a sparse S by rows: a graph's neighbours, their features weighted and summed."""
    i, n = tkc.program_id(0), tkc.program_id(1) * BN
    first, last = start[i], start[i + 1]
    acc = tkc.zeros((BN,))
    for e in range(first, last, BLOCK):
        at = e + tkc.arange(BLOCK)
        c = tkc.load(column.ptr + at, mask=at < last, other=0)
        w = tkc.load(value.ptr + at, mask=at < last, other=0.0)
        acc += tkc.sum(tkc.load(x, (c, n), (BLOCK, BN)).to(tkc.float32) * w[:, None], 0)
    tkc.store(y, (i, n), acc.to(y.dtype)[None, :])


@tkc.jit
def weighted_bag(table, index, weight, offset, out, D: tkc.constexpr):
    """A weighted sum of rows of a table for each bag: entries offset[i] : offset[i + 1]."""
    i = tkc.program_id(0)
    acc = tkc.zeros((D,))
    for e in range(offset[i], offset[i + 1]):
        row = tkc.load(table, (index[e], 0), (None, D))
        acc += weight[e] * row.to(tkc.float32)
    tkc.store(out, (i, 0), acc.to(out.dtype)[None, :])


@tkc.jit
def square_sum(g, total, BLOCK: tkc.constexpr):
    """The sum of squares of a vector, added to one number."""
    x = tkc.load(g, (tkc.program_id(0) * BLOCK,), (BLOCK,)).to(tkc.float32)
    tkc.atomic_add(total, (0,), tkc.sum(x * x))


@tkc.jit
def clipped_adam(p, g, m, v, copy, total, limit, rate, b1, b2, c1, c2, decay, BLOCK: tkc.constexpr):
    """A step of Adam with gradients clipped to a norm, and a copy of the parameters in bfloat16."""
    at = (tkc.program_id(0) * BLOCK,)
    shrink = tkc.minimum(1.0, limit / (tkc.sqrt(total[0]) + 1e-6))
    grad = tkc.load(g, at, (BLOCK,)).to(tkc.float32) * shrink
    first = b1 * tkc.load(m, at, (BLOCK,)) + (1 - b1) * grad
    second = b2 * tkc.load(v, at, (BLOCK,)) + (1 - b2) * grad * grad
    old = tkc.load(p, at, (BLOCK,))
    new = old - rate * (first * c1 / (tkc.sqrt(second * c2) + 1e-8) + decay * old)
    tkc.store(p, at, new)
    tkc.store(m, at, first)
    tkc.store(v, at, second)
    tkc.store(copy, at, new.to(copy.dtype))


@tkc.jit
def bodies(position, mass, force, BM: tkc.constexpr, BN: tkc.constexpr):
    """Gravity of all bodies on each; position [3, N]."""
    m = tkc.program_id(0) * BM
    x, y, z = (tkc.load(position, (j, m), (None, BM))[:, None] for j in range(3))
    fx, fy, fz = (tkc.zeros((BM,)) for _ in range(3))
    for n in range(0, position.shape[1], BN):
        dx, dy, dz = (
            tkc.load(position, (j, n), (None, BN))[None, :] - a for j, a in enumerate((x, y, z))
        )
        near = tkc.rsqrt(dx * dx + dy * dy + dz * dz + 1e-3)
        pull = tkc.load(mass, (n,), (BN,))[None, :] * near * near * near
        fx, fy, fz = (
            f + tkc.sum(pull * d, 1) for f, d in zip((fx, fy, fz), (dx, dy, dz), strict=True)
        )
    for j, f in enumerate((fx, fy, fz)):
        tkc.store(force, (j, m), f[None, :])


@tkc.jit
def option_price(total, seed, steps, drift, spread, strike, BLOCK: tkc.constexpr):
    """An Asian option by simulation: what BLOCK random walks pay, added up."""
    walk = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    log, mean = tkc.zeros((BLOCK,)), tkc.zeros((BLOCK,))
    for t in range(steps):
        log += drift + spread * tkc.randn(seed, walk * steps + t)
        mean += tkc.exp(log)
    tkc.atomic_add(total, (0,), tkc.sum(tkc.maximum(mean / steps - strike, 0.0)))


@tkc.jit
def lstm_cell(gates, cell, bias, hidden, new_cell, D: tkc.constexpr, BLOCK: tkc.constexpr):
    """The element-wise part of an LSTM; gates [B, 4 D]."""
    b, d = tkc.program_id(0), tkc.program_id(1) * BLOCK
    i, f, g, o = (
        tkc.load(gates, (b, d + j * D), (None, BLOCK)).to(tkc.float32)
        + tkc.load(bias, (d + j * D,), (BLOCK,)).to(tkc.float32)
        for j in range(4)
    )
    c = tkc.load(cell, (b, d), (None, BLOCK))
    c = tkc.sigmoid(f) * c + tkc.sigmoid(i) * tkc.tanh(g)
    tkc.store(new_cell, (b, d), c[None, :])
    tkc.store(hidden, (b, d), (tkc.sigmoid(o) * tkc.tanh(c)).to(hidden.dtype)[None, :])


@tkc.jit
def rotate_and_cache(q, k, cosine, sine, slot, rotated, cache, H: tkc.constexpr, D: tkc.constexpr):
    """Rotary embedding of a token's heads; keys go to the cache's slot of the token."""
    t = tkc.program_id(0)
    c = tkc.load(cosine, (t, 0), (None, D // 2))[None, :]
    s = tkc.load(sine, (t, 0), (None, D // 2))[None, :]
    for source, target, at in ((q, rotated, t), (k, cache, slot[t])):
        low = tkc.load(source, (t, 0, 0), (None, H, D // 2)).to(tkc.float32)
        high = tkc.load(source, (t, 0, D // 2), (None, H, D // 2)).to(tkc.float32)
        tkc.store(target[at], (0, 0), (low * c - high * s).to(target.dtype))
        tkc.store(target[at], (0, D // 2), (high * c + low * s).to(target.dtype))


def _sparse(o: Operands, count: int, columns: int, most: int) -> tuple[Any, Any, Any]:
    """Starts, columns and values of a sparse matrix by rows."""
    lengths = o.integers(0, most, count)
    if not o.real:
        lengths += most // 2
    start = o.torch.zeros(count + 1, dtype=o.torch.int32, device=o.device)
    start[1:] = lengths.cumsum(0)
    entries = int(start[-1])
    return start, o.integers(0, columns, entries), o.floats(entries)


@case("sparse rows times features")
def _(o: Operands) -> Called:
    n, d = o.of(1 << 16, 50), o.of(256, 72)
    start, column, value = _sparse(o, n, n, 33)
    x, y = o.normal(n, d), o.empty(n, d)

    def function(x: Any, value: Any) -> Any:
        s = o.torch.sparse_csr_tensor(start, column, value.to(x.dtype), (n, n))
        return s @ x

    bn = 256 if o.large else 64
    return Called(
        lambda: sparse_rows[n, over(d, bn)](start, column, value, x, y, bn),
        (y,),
        function,
        (x, value),
        moved=2.0 * d * (len(column) + n) + 8.0 * len(column),
    )


@case("weighted bags of rows")
def _(o: Operands) -> Called:
    bags, table, d = o.of(32768, 20), o.of(1 << 20, 100), o.of(128, 128)
    start, index, weight = _sparse(o, bags, table, 33)
    x, out = o.normal(table, d), o.empty(bags, d)

    def function(x: Any, weight: Any) -> Any:
        return o.torch.nn.functional.embedding_bag(
            index.long(),
            x,
            start.long(),
            mode="sum",
            per_sample_weights=weight.to(x.dtype),
            include_last_offset=True,
        )

    return Called(
        lambda: weighted_bag[bags](x, index, weight, start, out, d),
        (out,),
        function,
        (x, weight),
        moved=2.0 * d * (len(index) + bags) + 8.0 * len(index),
    )


@case("Adam with clipped gradients")
def _(o: Operands) -> Called:
    n = o.of(1 << 26, 3000)
    p, m, v = o.floats(n), o.floats(n), o.floats(n).abs()
    g, copy, total = o.normal(n), o.empty(n), o.empty(1, dtype="float32")
    first = tuple(t.clone() for t in (p, m, v))
    numbers = (1.0, 1e-3, 0.9, 0.99, 2.0, 3.0, 0.01)

    def launch() -> None:
        square_sum[over(n, 4096)](g, total, 4096)
        clipped_adam[over(n, 1024)](p, g, m, v, copy, total, *numbers, 1024)

    def function(p: Any, g: Any, m: Any, v: Any) -> Any:
        limit, rate, b1, b2, c1, c2, decay = numbers
        g = g.to(p.dtype)
        g = g * (limit / (g.norm() + 1e-6)).clamp(max=1.0)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p - rate * (m * c1 / ((v * c2).sqrt() + 1e-8) + decay * p)
        return p, m, v, p

    def reset() -> None:
        total.zero_()
        for t, was in zip((p, m, v), first, strict=True):
            t.copy_(was)

    return Called(
        launch,
        (p, m, v, copy),
        function,
        (first[0], g, *first[1:]),
        reset=reset,
        moved=(4 * 6 + 2 * 3) * n,
    )


@case("gravity of all on all")
def _(o: Operands) -> Called:
    n = o.of(32768, 300)
    position, mass = o.floats(3, n), o.floats(n).abs()
    force = o.empty(3, n, dtype="float32")

    def function(position: Any, mass: Any) -> Any:
        d = position[:, None, :] - position[:, :, None]
        near = o.torch.rsqrt((d * d).sum(0) + 1e-3)
        return (d * (mass * near**3)).sum(2)

    return Called(
        lambda: bodies[over(n, 128)](position, mass, force, 128, 128),
        (force,),
        function,
        (position, mass),
        tolerance=1e-4,
    )


@case("option by simulation")
def _(o: Operands) -> Called:
    walks, steps = o.of(1 << 20, 2048), o.of(256, 16)
    total, block = o.empty(1, dtype="float32"), 1024

    def function() -> Any:
        log = 0.001 + 0.02 * o.torch.randn(steps, walks, device=o.device)
        return (o.torch.exp(log.cumsum(0)).mean(0) - 1.0).clamp(min=0).sum()[None]

    return Called(
        lambda: option_price[over(walks, block)](total, 7, steps, 0.001, 0.02, 1.0, block),
        (total,),
        function,
        (),
        tolerance=0.1,
        reset=total.zero_,
    )


@case("LSTM cell")
def _(o: Operands) -> Called:
    b, d = o.of(16384, 20), o.of(2048, 256)
    gates, cell, bias = o.normal(b, 4 * d), o.floats(b, d), o.normal(4 * d)
    hidden, new = o.empty(b, d), o.empty(b, d, dtype="float32")

    def function(gates: Any, cell: Any, bias: Any) -> Any:
        i, f, g, out = (gates + bias).to(cell.dtype).chunk(4, 1)
        c = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return (out.sigmoid() * c.tanh()).to(gates.dtype), c

    block = 1024 if o.large else 128
    return Called(
        lambda: lstm_cell[b, over(d, block)](gates, cell, bias, hidden, new, d, block),
        (hidden, new),
        function,
        (gates, cell, bias),
    )


@case("rotary embedding into a cache")
def _(o: Operands) -> Called:
    t, h, d = o.of(16384, 6), o.of(32, 4), 128
    q, k, out = o.normal(t, h, d), o.normal(t, h, d), o.empty(t, h, d)
    cosine, sine = o.floats(t, d // 2), o.floats(t, d // 2)
    slots = o.of(32768, 10)
    order = o.torch.randperm(slots, device=o.device)
    slot, cache = order[:t].to(o.torch.int32).contiguous(), o.empty(slots, h, d)

    def function(q: Any, k: Any, c: Any, s: Any) -> Any:
        def turned(x: Any) -> Any:
            low, high = x[..., : d // 2].to(c.dtype), x[..., d // 2 :].to(c.dtype)
            low, high = low * c[:, None] - high * s[:, None], high * c[:, None] + low * s[:, None]
            return o.torch.cat((low, high), -1).to(x.dtype)

        kept = o.torch.zeros(slots, h, d, dtype=q.dtype, device=q.device)
        kept[slot.long()] = turned(k)
        return turned(q), kept

    return Called(
        lambda: rotate_and_cache[t](q, k, cosine, sine, slot, out, cache, h, d),
        (out, cache),
        function,
        (q, k, cosine, sine),
        moved=2.0 * 4 * t * h * d + 4 * t * d,
    )
