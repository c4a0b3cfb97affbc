"""The recurrence of RWKV-7, a state that decays by channels and changes by one more rank, in
chunks: forward, backward and one step of decoding.

    S_t = (Diag(exp g_t) + b_t a_tᵀ) S_{t-1} + k_t v_tᵀ,    o_t = scale · S_tᵀ q_t

(Peng et al., "RWKV-7 Goose", 2025; DPLR of flash-linear-attention. The delta rule with a decay of
each channel is the case a = exp(g) ∘ k, b = -β k, with β k for k.) In a chunk, with S the state
before it, G the sum of g from the chunk's start to and with a position, E = exp G, E' = exp(G - g),
F = exp(G_last - G), x ⊙ y the C x C numbers Σ_c x_ic y_jc exp(G_ic - G_jc) for j <= i, else 0, and
a ⊘ y those of exp(G_{i-1,c} - G_jc) for j < i,

    M  = (I - A ⊘ B)^-1,   W = M (E'∘A),   T = M (A ⊘ K)
    O  = scale · ((E∘Q + (Q ⊙ B) W) S + (Q ⊙ K + (Q ⊙ B) T) V)
    S' = Diag(exp G_last) S + (F∘B)ᵀ W S + (F∘K + Tᵀ (F∘B))ᵀ V

so that all but two products do not depend on the state. `_pairs`, `inverted` of triangular.py,
`_combine_reads` and `_combine_writes` compute these factors for all chunks at once, and the walks
of recurrences.py do the rest. Backward, with H = S dS'ᵀ, x̂ the factor that holds x (Q̂ = E∘Q +
(Q ⊙ B) W, K̂ = F∘K + Tᵀ (F∘B)),

    dQ̂ = scale · dO Sᵀ,   d(Q ⊙ K) = scale · dO Vᵀ for j <= i,   dK̂ = V dS'ᵀ
    d(F∘B) = W H + T dK̂,   d(Q ⊙ B) = dQ̂ Wᵀ + d(Q ⊙ K) Tᵀ
    d(E'∘A) = Mᵀ ((F∘B) Hᵀ + (Q ⊙ B)ᵀ dQ̂)
    d(A ⊘ K) = Mᵀ ((Q ⊙ B)ᵀ d(Q ⊙ K) + (F∘B) dK̂ᵀ)
    d(A ⊘ B) = d(E'∘A) Wᵀ + d(A ⊘ K) Tᵀ

of `_outer_gradients`, `_asked_gradients` and `_solved_gradients`. From them `_row_gradients` (of q
and a) and `_column_gradients` (of k, b and g) sum over the pairs of a chunk; dg is the sum from the
end of dG_t = (q dq - k dk - b db)_t + (a da)_{t+1}.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

import tkc
from tkc.kernels.arrays import (
    Array,
    all_contiguous,
    contiguous,
    dtype_of,
    empty,
    expect,
    floats,
    power,
)
from tkc.kernels.chunks import (
    LOG2E,
    RANGE,
    WIDE_RANGE,
    decay_of_chunk,
    decayed_step,
    first_slot,
    from_end,
    level_factors,
    scaled,
    sequence,
    sequences_of,
    short_factors,
    times,
)
from tkc.kernels.operator import operator
from tkc.kernels.recurrences import Prepared, Recurrence, walked, walked_back
from tkc.kernels.triangular import inverted

WIDEST_KEYS = 128  # of K: tiles K x K stand beside those of keys
# of a chunk: wide, where keys have as few channels and a chunk's decays are one product
WIDE_POSITIONS, POSITIONS = 64, 32


def _rows(x, t, head, C, N):
    return tkc.load(x, (t, head, 0), (C, None, N))


def _put(x, t, head, tile):
    tkc.store(x, (t, head, 0), tile.to(x.dtype)[:, None, :])


def _totals(g, t, head, C, K):
    """Base-2 logarithms of E, of E', and of the whole chunk's decay."""
    total, end = decay_of_chunk(g, t, head, C, K)
    return total, total - _rows(g, t, head, C, K).to(tkc.float32) * LOG2E, end


def _four(rows, columns, factors):
    """Of rows (q, a) and columns (k, b), the parts of Q ⊙ K, Q ⊙ B, A ⊘ K and A ⊘ B that have these
    weights and factors."""
    to, below, of_queries, of_reads, of_columns = factors
    near = [scaled(tile, of_columns).T for tile in columns]
    queries, reads = scaled(rows[0], of_queries), scaled(rows[1], of_reads)
    found = [to * tkc.dot(queries, tile) for tile in near]
    return *found, *(0.0 * to if below is None else below * tkc.dot(reads, tile) for tile in near)


@tkc.jit
def _pairs(
    q,
    k,
    a,
    b,
    g,
    starts,
    seen,
    asked,
    read,
    lower,
    C: tkc.constexpr,
    K: tkc.constexpr,
    SHORT: tkc.constexpr,
):
    """seen: Q ⊙ K; asked: Q ⊙ B; read: A ⊘ K; lower: -(A ⊘ B)."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    q, k, a, b, g, seen, asked, read, lower = (
        sequence(x, starts, z) for x in (q, k, a, b, g, seen, asked, read, lower)
    )
    if t < k.shape[0]:
        rows, columns = ([_rows(x, t, head, C, K) for x in pair] for pair in ((q, a), (k, b)))
        total, before, _ = _totals(g, t, head, C, K)
        found = _four(rows, columns, short_factors(total, before, SHORT, C))
        qk, qb, ak, ab = found
        for n in tkc.range(int(log2(SHORT)), int(log2(C))):
            more = _four(rows, columns, level_factors(total, before, n, C))
            qk, qb, ak, ab = qk + more[0], qb + more[1], ak + more[2], ab + more[3]
        _put(seen, t, head, qk)
        _put(asked, t, head, qb)
        _put(read, t, head, ak)
        _put(lower, t, head, -ab)


@tkc.jit
def _combine_reads(
    q,
    a,
    g,
    starts,
    asked,
    inverses,
    asking,
    reading,
    C: tkc.constexpr,
    K: tkc.constexpr,
):
    """asking: Q̂; reading: W."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    q, a, g, asked, inverses, asking, reading = (
        sequence(x, starts, z) for x in (q, a, g, asked, inverses, asking, reading)
    )
    if t < g.shape[0]:
        total, before, _ = _totals(g, t, head, C, K)
        inverse = _rows(inverses, t, head, C, C)
        apart = tkc.dot(inverse, scaled(_rows(a, t, head, C, K), tkc.exp2(before))).to(q.dtype)
        _put(reading, t, head, apart)
        queries = _rows(q, t, head, C, K).to(tkc.float32) * tkc.exp2(total)
        _put(asking, t, head, tkc.dot(_rows(asked, t, head, C, C), apart, queries))


@tkc.jit
def _combine_writes(
    k,
    b,
    g,
    starts,
    seen,
    asked,
    read,
    inverses,
    writing,
    erasing,
    scores,
    solved,
    ends,
    scale,
    C: tkc.constexpr,
    K: tkc.constexpr,
):
    """writing: K̂; erasing: F∘B; scores: what is multiplied by V; solved: T; ends: the logarithm of
    each chunk's decay.
    """
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(g.shape[1], C), C) + tkc.program_id(1)
    k, b, g, seen, asked = (sequence(x, starts, z) for x in (k, b, g, seen, asked))
    read, inverses, writing, erasing, scores, solved = (
        sequence(x, starts, z) for x in (read, inverses, writing, erasing, scores, solved)
    )
    if t < g.shape[0]:
        total, _, end = _totals(g, t, head, C, K)
        down = from_end(total, end)
        erased = scaled(_rows(b, t, head, C, K), down)
        _put(erasing, t, head, erased)
        keys = _rows(k, t, head, C, K).to(tkc.float32) * down
        known = tkc.dot(_rows(inverses, t, head, C, C), _rows(read, t, head, C, C)).to(k.dtype)
        if solved is not None:
            _put(solved, t, head, known)
        _put(writing, t, head, tkc.dot(known.T, erased, keys))
        own = _rows(seen, t, head, C, C).to(tkc.float32)
        _put(scores, t, head, tkc.dot(_rows(asked, t, head, C, C), known, own) * scale)
        tkc.store(ends[slot], (head, 0), end[None, :])


def _below(tile, C):
    i = tkc.arange(C)
    return tkc.where(i[:, None] > i[None, :], tile, 0.0)


@tkc.jit
def _outer_gradients(
    grad,
    v,
    starts,
    states,
    after,
    dasking,
    dwriting,
    dseen,
    outer,
    inner,
    scale,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """dasking: dQ̂; dwriting: dK̂; dseen: dP; outer: H; inner: its diagonal."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(grad.shape[1], C), C) + tkc.program_id(1)
    grad, v, dasking, dwriting, dseen = (
        sequence(x, starts, z) for x in (grad, v, dasking, dwriting, dseen)
    )
    if t < grad.shape[0]:
        i, c = tkc.arange(C), tkc.arange(K)
        pairs, both = tkc.zeros((C, C)), tkc.zeros((K, K))
        of_queries, of_keys = tkc.zeros((C, K)), tkc.zeros((C, K))
        for column in tkc.range(0, grad.shape[2], V):
            grads, values = (tkc.load(x, (t, head, column), (C, None, V)) for x in (grad, v))
            state, behind = (tkc.load(x[slot, head], (column, 0), (V, K)) for x in (states, after))
            pairs = tkc.dot(grads, values.T, pairs)
            of_queries = tkc.dot(grads, state, of_queries)
            of_keys = tkc.dot(values, behind, of_keys)
            both = tkc.dot(state.T, behind, both)
        _put(dseen, t, head, tkc.where(i[:, None] >= i[None, :], pairs * scale, 0.0))
        _put(dasking, t, head, of_queries * scale)
        _put(dwriting, t, head, of_keys)
        tkc.store(outer[slot, head], (0, 0), both.to(outer.dtype))
        diagonal = tkc.sum(tkc.where(c[:, None] == c[None, :], both, 0.0), axis=0)
        tkc.store(inner[slot], (head, 0), diagonal[None, :])


@tkc.jit
def _asked_gradients(
    reading,
    solved,
    starts,
    dasking,
    dwriting,
    dseen,
    outer,
    derasing,
    dasked,
    C: tkc.constexpr,
    K: tkc.constexpr,
):
    """derasing: d(F∘B); dasked: d(Q ⊙ B)."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(reading.shape[1], C), C) + tkc.program_id(1)
    reading, solved, dasking, dwriting, dseen, derasing, dasked = (
        sequence(x, starts, z)
        for x in (reading, solved, dasking, dwriting, dseen, derasing, dasked)
    )
    if t < reading.shape[0]:
        apart, known = _rows(reading, t, head, C, K), _rows(solved, t, head, C, C)
        found = tkc.dot(known, _rows(dwriting, t, head, C, K))
        both = tkc.load(outer[slot, head], (0, 0), (K, K))
        _put(derasing, t, head, tkc.dot(apart, both, found))
        found = tkc.dot(_rows(dseen, t, head, C, C), known.T)
        _put(dasked, t, head, tkc.dot(_rows(dasking, t, head, C, K), apart.T, found))


@tkc.jit
def _solved_gradients(
    asked,
    inverses,
    reading,
    erasing,
    solved,
    starts,
    dasking,
    dwriting,
    dseen,
    outer,
    dreading,
    dread,
    dlower,
    C: tkc.constexpr,
    K: tkc.constexpr,
):
    """dreading: d(E'∘A); dread: d(A ⊘ K); dlower: d(A ⊘ B)."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(reading.shape[1], C), C) + tkc.program_id(1)
    asked, inverses, reading, erasing, solved = (
        sequence(x, starts, z) for x in (asked, inverses, reading, erasing, solved)
    )
    dasking, dwriting, dseen, dreading, dread, dlower = (
        sequence(x, starts, z) for x in (dasking, dwriting, dseen, dreading, dread, dlower)
    )
    if t < reading.shape[0]:
        by, inverse = _rows(asked, t, head, C, C), _rows(inverses, t, head, C, C)
        erased, dtype = _rows(erasing, t, head, C, K), asked.dtype
        both = tkc.load(outer[slot, head], (0, 0), (K, K))
        reads = tkc.dot(by.T, _rows(dasking, t, head, C, K), tkc.dot(erased, both.T)).to(dtype)
        reads = tkc.dot(inverse.T, reads).to(dtype)
        _put(dreading, t, head, reads)
        known = tkc.dot(erased, _rows(dwriting, t, head, C, K).T)
        known = tkc.dot(by.T, _rows(dseen, t, head, C, C), known).to(dtype)
        known = _below(tkc.dot(inverse.T, known), C).to(dtype)
        _put(dread, t, head, known)
        lower = tkc.dot(reads, _rows(reading, t, head, C, K).T)
        lower = tkc.dot(known, _rows(solved, t, head, C, C).T, lower)
        _put(dlower, t, head, _below(lower, C))


def _weighed(by, weights):
    return (by.to(tkc.float32) * weights).to(by.dtype)


def _sum_of(by, weights, tiles):
    """Σ of (by ∘ weights) x over two."""
    first = tkc.dot(_weighed(by[0], weights), tiles[0])
    return tkc.dot(_weighed(by[1], weights), tiles[1], first)


def _of_rows(by, columns, factors):
    """What dq and da have of these weights and factors; by: the gradients of the four products."""
    to, below, of_queries, of_reads, of_columns = factors
    near = [scaled(tile, of_columns) for tile in columns]
    asked = times(_sum_of(by[:2], to, near), of_queries)
    if below is None:
        return asked, 0.0 * asked
    return asked, _sum_of(by[2:], below, near) * of_reads


@tkc.jit
def _row_gradients(
    q,
    k,
    a,
    b,
    g,
    starts,
    dasking,
    dreading,
    dseen,
    dasked,
    dread,
    dlower,
    dq,
    da,
    dg,
    C: tkc.constexpr,
    K: tkc.constexpr,
    SHORT: tkc.constexpr,
):
    """dq, da, and what dg has of them."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    q, k, a, b, g, dasking, dreading, dq, da, dg = (
        sequence(x, starts, z) for x in (q, k, a, b, g, dasking, dreading, dq, da, dg)
    )
    by = [sequence(x, starts, z) for x in (dseen, dasked, dread, dlower)]
    if t < g.shape[0]:
        by = [_rows(x, t, head, C, C) for x in by]
        columns = [_rows(x, t, head, C, K) for x in (k, b)]
        total, before, _ = _totals(g, t, head, C, K)
        asks, reads = _of_rows(by, columns, short_factors(total, before, SHORT, C))
        for n in tkc.range(int(log2(SHORT)), int(log2(C))):
            more = _of_rows(by, columns, level_factors(total, before, n, C))
            asks, reads = asks + more[0], reads + more[1]
        asks = asks + _rows(dasking, t, head, C, K).to(tkc.float32) * tkc.exp2(total)
        reads = reads + _rows(dreading, t, head, C, K).to(tkc.float32) * tkc.exp2(before)
        _put(dq, t, head, asks)
        _put(da, t, head, reads)
        queries, slope = (_rows(x, t, head, C, K).to(tkc.float32) for x in (q, a))
        slope = slope * reads
        _put(dg, t, head, tkc.cumsum(queries * asks + slope, reverse=True) - slope)


def _of_columns(by, rows, factors):
    """What dk and db have of these weights and factors."""
    to, below, of_queries, of_reads, of_columns = factors
    queries, reads = scaled(rows[0], of_queries), scaled(rows[1], of_reads)
    found = []
    for asked, read in ((by[0], by[2]), (by[1], by[3])):
        total = tkc.dot(_weighed(asked, to).T, queries)
        if below is not None:
            total = tkc.dot(_weighed(read, below).T, reads, total)
        found.append(times(total, of_columns))
    return found


@tkc.jit
def _column_gradients(
    q,
    k,
    a,
    b,
    g,
    starts,
    dwriting,
    derasing,
    dseen,
    dasked,
    dread,
    dlower,
    inner,
    dk,
    db,
    dg,
    C: tkc.constexpr,
    K: tkc.constexpr,
    SHORT: tkc.constexpr,
):
    """dk, db and dg."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(g.shape[1], C), C) + tkc.program_id(1)
    q, k, a, b, g, dwriting, derasing, dk, db, dg = (
        sequence(x, starts, z) for x in (q, k, a, b, g, dwriting, derasing, dk, db, dg)
    )
    by = [sequence(x, starts, z) for x in (dseen, dasked, dread, dlower)]
    if t < g.shape[0]:
        by = [_rows(x, t, head, C, C) for x in by]
        rows = [_rows(x, t, head, C, K) for x in (q, a)]
        total, before, end = _totals(g, t, head, C, K)
        written, erased = _of_columns(by, rows, short_factors(total, before, SHORT, C))
        for n in tkc.range(int(log2(SHORT)), int(log2(C))):
            more = _of_columns(by, rows, level_factors(total, before, n, C))
            written, erased = written + more[0], erased + more[1]
        down = from_end(total, end)
        keys, others = (_rows(x, t, head, C, K).to(tkc.float32) for x in (k, b))
        behind = _rows(dwriting, t, head, C, K).to(tkc.float32) * down
        ends = tkc.sum(behind * keys, axis=0)
        written = written + behind
        behind = _rows(derasing, t, head, C, K).to(tkc.float32) * down
        ends = ends + tkc.sum(behind * others, axis=0)
        erased = erased + behind
        ends = ends + tkc.load(inner[slot], (head, 0), (None, K)) * tkc.exp2(end)
        _put(dk, t, head, written)
        _put(db, t, head, erased)
        slope = tkc.cumsum(written * keys + erased * others, reverse=True)
        _put(dg, t, head, _rows(dg, t, head, C, K) - slope + ends[None, :])


@tkc.jit
def _step(q, g, k, v, a, b, state, out, scale, K: tkc.constexpr, V: tkc.constexpr):
    column, head, z = tkc.program_id(0) * V, tkc.program_id(1), tkc.program_id(2)
    queries, keys, reads, others = (
        tkc.load(x, (z, head, 0), (None, None, K)).to(tkc.float32) for x in (q, k, a, b)
    )
    values = tkc.load(v, (z, head, column), (None, None, V)).to(tkc.float32)
    here = tkc.load(state[z, head], (0, column), (K, V)).to(tkc.float32)
    known = tkc.sum(reads[:, None] * here, axis=0)
    here = decayed_step(here, g, z, head, K) + keys[:, None] * values[None, :]
    here = here + others[:, None] * known[None, :]
    tkc.store(state[z, head], (0, column), here.to(state.dtype))
    result = tkc.sum(queries[:, None] * here, axis=0) * scale
    tkc.store(out, (z, head, column), result.to(out.dtype)[None, None, :])


def _check(operands: tuple, axes: int) -> None:
    """Raises LaunchError for what does not fit; axes: that v has."""
    q, g, k, v, a, b = operands
    floats(q, g, k, v, a, b)
    if len(q.shape) != axes or len(v.shape) != axes or not 1 <= q.shape[-1] <= WIDEST_KEYS:
        raise tkc.LaunchError(
            "rwkv7: q and v are [batch, positions, heads, width] (a step has no positions), and q's"
            f" width is 1 to {WIDEST_KEYS}; got {list(q.shape)} and {list(v.shape)}"
        )
    for name, x in ("g", g), ("k", k), ("a", a), ("b", b):
        expect(x, q.shape, name)
    expect(v, (*q.shape[:-1], v.shape[-1]), "v")
    if len({dtype_of(x) for x in (q, k, v, a, b)}) > 1:
        raise tkc.LaunchError("rwkv7: q, k, v, a and b have one element type; convert them")


def _checked(
    operands: tuple, initial: Array | None, starts: Array | None, least: float | None
) -> int:
    """How many sequences there are. Raises LaunchError for what does not fit."""
    _check(operands, 4)
    floats(initial)
    q, v = operands[0], operands[3]
    if least is not None and not least <= 0:
        raise tkc.LaunchError(f"rwkv7: least bounds g, which is at most 0; got {least}")
    sequences = sequences_of(v, starts, "rwkv7")
    expect(initial, (sequences, v.shape[2], q.shape[3], v.shape[3]), "initial")
    return sequences


def _short(least: float | None, positions: int, dtype: str) -> int:
    """Positions of the blocks in which exp(G_i) and exp(-G_j) stay in range: a power of two."""
    if least is None:
        return 1
    most = RANGE.get(dtype, WIDE_RANGE) / max(-least, 1e-6)
    return 1 << max(0, min(int(most), positions).bit_length() - 1)


class _Call:
    """A call's arguments, contiguous, and what does not depend on states."""

    def __init__(
        self,
        operands: tuple,
        starts: Array | None,
        longest: int | None,
        scale: float,
        least: float | None,
    ):
        q, g, k, v, a, b = (contiguous(x) for x in operands)
        self.v, self.g, self.starts, self.scale = v, g, starts, scale
        self.operands = (q, k, a, b, g, starts)  # of most kernels
        wide = q.shape[3] <= WIDE_POSITIONS
        self.short = _short(least, WIDE_POSITIONS if wide else POSITIONS, dtype_of(v))
        positions = max(POSITIONS, self.short)
        # short chunks have little work for a program that waits for each: more programs then
        columns = positions if wide else WIDE_POSITIONS
        self.walk = Recurrence(q, k, v, g, None, starts, longest, scale, False, positions, columns)
        self.tiles = {name: self.walk.common[name] for name in ("C", "K", "num_warps")}
        self.grid = v.shape[2], self.walk.chunks, self.walk.sequences
        self.empty = not (self.walk.sequences and v.shape[2] and v.shape[3])

    def of_pairs(self, dtype: str | None = None) -> Array:
        """A number of each pair of a chunk's positions."""
        return empty(self.v, (*self.v.shape[:3], self.walk.chunk), dtype)

    def of_keys(self) -> Array:
        return empty(self.v, (*self.v.shape[:3], self.g.shape[3]))

    def of_chunks(self) -> Array:
        """A number of each chunk, head and channel."""
        return empty(self.v, (self.walk.slots, *self.g.shape[2:]), "float32")

    def prepare(self, backward: bool) -> tuple[Prepared, Array, Array | None]:
        """The factors of the walks, Q ⊙ B, and T where it is wanted."""
        seen, asked, read, inverses, scores = (self.of_pairs() for _ in range(5))
        lower, solved = self.of_pairs("float32"), self.of_pairs() if backward else None
        _pairs[self.grid](*self.operands, seen, asked, read, lower, SHORT=self.short, **self.tiles)
        inverted(lower, inverses, self.starts, self.grid)
        asking, reading, writing, erasing = (self.of_keys() for _ in range(4))
        ends = self.of_chunks()
        q, k, a, b, g, starts = self.operands
        _combine_reads[self.grid](q, a, g, starts, asked, inverses, asking, reading, **self.tiles)
        written = writing, erasing, scores, solved, ends
        of_pairs = seen, asked, read, inverses
        _combine_writes[self.grid](k, b, g, starts, *of_pairs, *written, self.scale, **self.tiles)
        factors = Prepared(
            None, scores, inverses, asking, reading, writing, None, None, ends, (1, 1), erasing
        )
        return factors, asked, solved

    def factor_gradients(
        self,
        grad: Array,
        states: Array,
        after: Array,
        factors: Prepared,
        asked: Array,
        solved: Array | None,
    ) -> tuple[tuple, tuple, tuple, Array]:
        """Those of Q̂ and E'∘A; of K̂ and F∘B; of the numbers of pairs; and the diagonal of H."""
        dasking, dreading, dwriting, derasing = (self.of_keys() for _ in range(4))
        dseen, dasked, dread, dlower = (self.of_pairs() for _ in range(4))
        inner, width = self.of_chunks(), self.g.shape[3]
        outer = empty(self.v, (*inner.shape[:2], width, width))
        _outer_gradients[self.grid](
            grad,
            self.v,
            self.starts,
            states,
            after,
            dasking,
            dwriting,
            dseen,
            outer,
            inner,
            self.scale,
            V=self.walk.block,
            **self.tiles,
        )
        from_outer = (self.starts, dasking, dwriting, dseen, outer)
        _asked_gradients[self.grid](factors.k, solved, *from_outer, derasing, dasked, **self.tiles)
        _solved_gradients[self.grid](
            asked,
            factors.inverses,
            factors.k,
            factors.erasing,
            solved,
            *from_outer,
            dreading,
            dread,
            dlower,
            **self.tiles,
        )
        pairs = (dseen, dasked, dread, dlower)
        return (dasking, dreading), (dwriting, derasing), pairs, inner


@operator
def rwkv7(
    q: Array,
    g: Array,
    k: Array,
    v: Array,
    a: Array,
    b: Array,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    scale: float = 1.0,
    least: float | None = None,
) -> Iterator[tuple[Array, Array]]:
    """S_t = (Diag(exp g_t) + b_t a_tᵀ) S_{t-1} + k_t v_tᵀ, o_t = scale · S_tᵀ q_t: o of v's shape
    and element type, and the last state, float32 [sequences, heads, K, V].

    q (RWKV's r), g (its w: the natural logarithm of the decay, not above 0), k, a (-κ), b (κ times
    the learning rate): [batch, T, heads, K], K up to 128; v: [batch, T, heads, V]. g may have an
    element type of its own. initial: the state before. cu_seqlens: the batch is one row of
    sequences that begin at these positions, int32 [sequences + 1]; max_seqlen: the longest, where
    it is known. least: a number that no g is below (RWKV-7: -exp(-½)), which asks for fewer
    products; without it every g is exact. State and sums are float32; products have v's element
    type. Raises LaunchError where a shape or type does not fit.
    """
    operands = (q, g, k, v, a, b)
    sequences = _checked(operands, initial, cu_seqlens, least)
    out, final = empty(v), empty(v, (sequences, v.shape[2], q.shape[3], v.shape[3]), "float32")
    yield out, final
    call = _Call(operands, cu_seqlens, max_seqlen, scale, least)
    if call.empty:
        return
    factors, _, _ = call.prepare(False)
    initial = None if initial is None else contiguous(initial)
    walked(call.walk, factors, initial, out, final, None, None)


@operator
def rwkv7_backward(
    grad: Array,
    q: Array,
    g: Array,
    k: Array,
    v: Array,
    a: Array,
    b: Array,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    scale: float = 1.0,
    least: float | None = None,
    grad_final: Array | None = None,
) -> Iterator[tuple[Array, Array, Array, Array, Array, Array, Array]]:
    """The gradients of q, g, k, v, a, b and initial from those of the result and of the last state.
    Those of g and initial are float32. Without initial its gradient has no elements.
    """
    operands = (q, g, k, v, a, b)
    _checked(operands, initial, cu_seqlens, least)
    expect(grad, v.shape, "grad")
    dq, dk, dv, da, db = (empty(x) for x in (q, k, v, a, b))
    dg = empty(g, dtype="float32")
    ds = empty(v, (0,) if initial is None else initial.shape, "float32")
    yield dq, dg, dk, dv, da, db, ds
    call = _Call(operands, cu_seqlens, max_seqlen, scale, least)
    if call.empty:
        return
    grad, initial, last = all_contiguous(grad, initial, grad_final)
    factors, asked, solved = call.prepare(True)
    states, after = call.walk.states(), call.walk.states()
    walked(call.walk, factors, initial, None, None, states, None)
    first = None if initial is None else ds
    walked_back(call.walk, factors, grad, last, after, dv, first)
    slopes = call.factor_gradients(grad, states, after, factors, asked, solved)
    of_rows, of_columns, of_pairs, inner = slopes
    given, options = call.operands, {"SHORT": call.short, **call.tiles}
    _row_gradients[call.grid](*given, *of_rows, *of_pairs, dq, da, dg, **options)
    _column_gradients[call.grid](*given, *of_columns, *of_pairs, inner, dk, db, dg, **options)


@rwkv7.backward(saves="q g k v a b initial cu_seqlens max_seqlen scale least", zeros=False)
def _(saved, grad, grad_final):
    if grad is None:
        grad = saved.v.new_zeros(saved.v.shape)
    given = (saved.q, saved.g, saved.k, saved.v, saved.a, saved.b, saved.initial)
    others = (saved.cu_seqlens, saved.max_seqlen, saved.scale, saved.least)
    results = rwkv7_backward(grad, *given, *others, grad_final)
    slopes = (None if x is None else d.to(x.dtype) for x, d in zip(given, results, strict=True))
    return *slopes, None, None, None, None


@operator(mutates="state")
def rwkv7_step(
    q: Array,
    g: Array,
    k: Array,
    v: Array,
    a: Array,
    b: Array,
    state: Array,
    scale: float = 1.0,
) -> Iterator[Array]:
    """One position of each sequence: the state, [batch, heads, K, V], becomes the next one in
    place, and o is [batch, heads, V]. q, g, k, a, b: [batch, heads, K]; v: [batch, heads, V]. The
    rest is as in rwkv7.
    """
    _check((q, g, k, v, a, b), 3)
    floats(state)
    expect(state, (*q.shape, v.shape[-1]), "state")
    batch, heads, columns = v.shape
    out = empty(v)
    yield out
    width = power(q.shape[-1])
    block = min(power(columns), max(1, 8192 // width))
    given = (contiguous(x) for x in (q, g, k, v, a, b))
    _step[tkc.cdiv(columns, block), heads, batch](
        *given, state, out, scale, K=width, V=block, num_warps=4
    )
