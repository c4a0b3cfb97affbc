"""Rows that are counted, scanned, sorted, or walked in order. A part of the unseen kernels."""

from __future__ import annotations

from typing import Any

import tkc
from benchmarks.unseen.operands import Called, Operands, case, over


@tkc.jit
def histogram_of_rows(x, counts, BLOCK: tkc.constexpr):
    """How often each of 256 values occurs in a row of bytes."""
    i = tkc.program_id(0)
    total = tkc.zeros((256,), tkc.int32)
    for n in range(0, x.shape[1], BLOCK):
        values = tkc.load(x, (i, n), (None, BLOCK)).to(tkc.int32)
        total += tkc.histogram(values, 256, mask=n + tkc.arange(BLOCK) < x.shape[1])
    tkc.store(counts, (i, 0), total[None, :])


def compose(a, b, c, d, e, f, g, h):
    """The product of two matrices of 2 x 2: the later one on the left."""
    return e * a + f * c, e * b + f * d, g * a + h * c, g * b + h * d


@tkc.jit
def products_before(m, out, N: tkc.constexpr):
    """Running products of N matrices of 2 x 2 in a row; m [4, rows, N]."""
    i = tkc.program_id(0)
    parts = tuple(tkc.load(m, (j, i, 0), (None, None, N)) for j in range(4))
    found = tkc.scan(parts, 0, compose)
    for j in tkc.static_range(4):
        tkc.store(out[j], (i, 0), found[j][None, :])


@tkc.jit
def viterbi(emit, move, score, back, S: tkc.constexpr):
    """The best way to each of S states at each time, for a sequence a program."""
    b = tkc.program_id(0)
    moves = tkc.load(move, (0, 0), (S, S))
    best = tkc.load(emit, (b, 0, 0), (None, None, S))
    for t in range(1, emit.shape[1]):
        ways = best[:, None] + moves
        tkc.store(back[b], (t, 0), tkc.argmax(ways, 0)[None, :])
        best = tkc.max(ways, 0) + tkc.load(emit, (b, t, 0), (None, None, S))
    tkc.store(score, (b, 0), best[None, :])


@tkc.jit
def edit_distance(a, b, out, N: tkc.constexpr):
    """Levenshtein's distance of two texts of N letters, an anti-diagonal at a time; cell i of one
    is (i, d - i).
    """
    p = tkc.program_id(0)
    i = tkc.arange(2 * N)
    letters = tkc.load(a.ptr + p * N + i - 1, mask=(i >= 1) & (i <= N), other=0)
    before, here = tkc.where(i <= 0, 0, 1 << 20), tkc.where(i <= 1, 1, 1 << 20)
    for d in tkc.range(2, 2 * N + 1):
        j = d - i
        inside = (i >= 1) & (i <= N) & (j >= 1) & (j <= N)
        other = tkc.load(b.ptr + p * N + j - 1, mask=inside, other=0)
        left = tkc.gather(here, tkc.maximum(i - 1, 0), 0)
        corner = tkc.gather(before, tkc.maximum(i - 1, 0), 0)
        new = tkc.minimum(tkc.minimum(left, here) + 1, corner + tkc.where(letters == other, 0, 1))
        new = tkc.where((i == 0) | (j == 0), d, new)
        before, here = here, new
    tkc.store(out, (p,), tkc.sum(tkc.where(i == N, here, 0)))


@tkc.jit
def nucleus(logits, out, top, N: tkc.constexpr):
    """Probabilities of the fewest largest entries that sum to top, made to sum to 1."""
    i = tkc.program_id(0)
    x = tkc.load(logits, (i, 0), (None, N), other=-tkc.inf).to(tkc.float32)
    p = tkc.softmax(x)
    ordered = tkc.sort(p, descending=True)
    before = tkc.cumsum(ordered) - ordered
    least = tkc.min(tkc.where(before < top, ordered, 1.0))
    kept = tkc.where(p >= least, p, 0.0)
    tkc.store(out, (i, 0), (kept / tkc.sum(kept))[None, :])


@tkc.jit
def compact(x, out, count, BLOCK: tkc.constexpr):
    """The positive elements of x one after the other, blocks in any order; count[0] begins as 0."""
    at = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    values = tkc.load(x.ptr + at, mask=at < x.shape[0], other=0.0)
    keep = (values > 0).to(tkc.int32)
    place = tkc.cumsum(keep) - keep
    first = tkc.atomic_add(count.ptr, tkc.sum(keep))
    tkc.store(out.ptr + first + place, values, mask=keep > 0)


@tkc.jit
def cholesky(a, low, N: tkc.constexpr):
    """The factor L of a matrix of N x N for each program, a column at a time."""
    i = tkc.program_id(0)
    x = tkc.load(a, (i, 0, 0), (None, N, N))
    row, column = tkc.arange(N)[:, None], tkc.arange(N)[None, :]
    for j in range(N):
        v = tkc.sum(tkc.where(column == j, x, 0.0), 1)
        pivot = tkc.sum(tkc.where(tkc.arange(N) == j, v, 0.0))
        v = tkc.where(tkc.arange(N) >= j, v * tkc.rsqrt(pivot), 0.0)
        x = tkc.where((row > j) & (column > j), x - v[:, None] * v[None, :], x)
        x = tkc.where(column == j, v[:, None], x)
    tkc.store(low[i], (0, 0), tkc.where(row >= column, x, 0.0))


@tkc.jit
def thomas(a, b, c, d, x, BLOCK: tkc.constexpr):
    """Tridiagonal systems, one a column: all are [N, systems]; c and d are scratch afterwards."""
    at = tkc.program_id(0) * BLOCK
    n = b.shape[0]
    p, q = tkc.zeros((BLOCK,)), tkc.zeros((BLOCK,))
    for i in range(n):
        low = tkc.load(a, (i, at), (None, BLOCK))
        m = 1 / (tkc.load(b, (i, at), (None, BLOCK)) - low * p)
        p = tkc.load(c, (i, at), (None, BLOCK)) * m
        q = (tkc.load(d, (i, at), (None, BLOCK)) - low * q) * m
        tkc.store(c, (i, at), p[None, :])
        tkc.store(d, (i, at), q[None, :])
    last = tkc.zeros((BLOCK,))
    for j in range(n):
        i = n - 1 - j
        last = tkc.load(d, (i, at), (None, BLOCK)) - tkc.load(c, (i, at), (None, BLOCK)) * last
        tkc.store(x, (i, at), last[None, :])


@case("Cholesky of 32 x 32")
def _(o: Operands) -> Called:
    count, n = o.of(16384, 5), 32
    a = o.floats(count, n, n)
    a = a @ a.mT + 8 * o.torch.eye(n, device=o.device)
    low = o.empty(count, n, n, dtype="float32")
    return Called(
        lambda: cholesky[count](a, low, n),
        (low,),
        lambda a: o.torch.linalg.cholesky(a),
        (a,),
        tolerance=1e-4,
    )


@case("histograms of rows")
def _(o: Operands) -> Called:
    n, m = o.of(4096, 5), o.of(65536, 3000)
    x, counts = o.integers(0, 256, n, m, dtype="uint8"), o.empty(n, 256, dtype="int32")

    def function(x: Any) -> Any:
        at = x.long() + 256 * o.torch.arange(n, device=x.device)[:, None]
        return o.torch.bincount(at.flatten(), minlength=256 * n).view(n, 256)

    return Called(
        lambda: histogram_of_rows[n](x, counts, 2048), (counts,), function, (x,), tolerance=0
    )


@case("running products of 2 x 2")
def _(o: Operands) -> Called:
    n, m = o.of(16384, 5), 1024
    x, out = o.floats(4, n, m, scale=0.6), o.empty(4, n, m, dtype="float32")

    def function(x: Any) -> Any:
        a, out = x[:, :, 0], []
        for t in range(m):
            e = x[:, :, t]
            if t:
                a = o.torch.stack(
                    (
                        e[0] * a[0] + e[1] * a[2],
                        e[0] * a[1] + e[1] * a[3],
                        e[2] * a[0] + e[3] * a[2],
                        e[2] * a[1] + e[3] * a[3],
                    )
                )
            out.append(a)
        return o.torch.stack(out, 2)

    return Called(lambda: products_before[n](x, out, m), (out,), function, (x,), tolerance=1e-4)


@case("Viterbi")
def _(o: Operands) -> Called:
    b, t, s = o.of(2048, 3), o.of(512, 20), 64
    emit, move = o.floats(b, t, s), o.floats(s, s)
    score, back = o.empty(b, s, dtype="float32"), o.empty(b, t, s, dtype="int32")

    def function(emit: Any, move: Any) -> Any:
        best, back = emit[:, 0], [o.torch.zeros(b, s, device=emit.device)]
        for i in range(1, t):
            found = (best[:, :, None] + move).max(1)
            back.append(found.indices)
            best = found.values + emit[:, i]
        return best, o.torch.stack(back, 1)

    return Called(
        lambda: viterbi[b](emit, move, score, back, s),
        (score, back),
        function,
        (emit, move),
        tolerance=1e-5,
    )


@case("edit distance")
def _(o: Operands) -> Called:
    count, n = o.of(8192, 4), o.of(256, 32)
    a, b = o.integers(0, 4, count, n), o.integers(0, 4, count, n)
    out = o.empty(count, dtype="int32")

    def function(a: Any, b: Any) -> Any:
        torch, at = o.torch, o.torch.arange(n + 1, device=a.device)
        row = at.expand(count, n + 1)
        for i in range(n):
            new = row.new_full((count, n + 1), i + 1)
            new[:, 1:] = torch.minimum(row[:, 1:] + 1, row[:, :-1] + (a[:, i : i + 1] != b).int())
            row = torch.cummin(new - at, 1).values + at
        return row[:, n]

    return Called(lambda: edit_distance[count](a, b, out, n), (out,), function, (a, b), tolerance=0)


@case("nucleus of probabilities")
def _(o: Operands) -> Called:
    n, m = o.of(2048, 5), o.of(8192, 512)
    x, out = o.floats(n, m, scale=2.0), o.empty(n, m, dtype="float32")

    def function(x: Any) -> Any:
        p = x.softmax(1)
        ordered, at = p.sort(1, descending=True)
        kept = o.torch.where(ordered.cumsum(1) - ordered < 0.8, ordered, 0)
        kept = o.torch.zeros_like(p).scatter(1, at, kept)
        return kept / kept.sum(1, keepdim=True)

    return Called(lambda: nucleus[n](x, out, 0.8, m), (out,), function, (x,), tolerance=1e-3)


@case("compaction")
def _(o: Operands) -> Called:
    n = o.of(1 << 26, 900)
    x, out, count = o.floats(n), o.empty(n, dtype="float32"), o.empty(1, dtype="int32")

    return Called(
        lambda: compact[over(n, 2048)](x, out, count, 2048),
        (out,),
        lambda x: x.clamp(min=0).sort().values,
        (x,),
        tolerance=0,
        reset=lambda: (count.zero_(), out.zero_()),
        moved=6 * n,
        seen=lambda: (out.sort().values,),
        rival=lambda x: x[x > 0],
    )


@case("tridiagonal systems")
def _(o: Operands) -> Called:
    n, count = o.of(512, 20), o.of(65536, 200)
    a, c, d = o.floats(n, count), o.floats(n, count), o.floats(n, count)
    b, x = 8 + o.floats(n, count).abs(), o.empty(n, count, dtype="float32")
    first = c.clone(), d.clone()

    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        p, q, ps, qs = 0, 0, [], []
        for i in range(n):
            m = 1 / (b[i] - a[i] * p)
            p, q = c[i] * m, (d[i] - a[i] * q) * m
            ps.append(p)
            qs.append(q)
        x, out = 0, []
        for i in reversed(range(n)):
            x = qs[i] - ps[i] * x
            out.append(x)
        return o.torch.stack(out[::-1])

    return Called(
        lambda: thomas[over(count, 128)](a, b, c, d, x, 128),
        (x,),
        function,
        (a, b, *first),
        tolerance=1e-4,
        reset=lambda: (c.copy_(first[0]), d.copy_(first[1])),
        moved=4.0 * n * count * 9,
    )
