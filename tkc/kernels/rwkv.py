"""The recurrence of RWKV-7, a state that decays by channels and changes by one more rank, in
chunks: forward, backward and one step of decoding.

    S_t = (Diag(exp g_t) + b_t a_tᵀ) S_{t-1} + k_t v_tᵀ,    o_t = scale · S_tᵀ q_t

(Peng et al., "RWKV-7 Goose", 2025; DPLR of flash-linear-attention. The delta rule with a decay of
each channel is the case a = exp(g) ∘ k, b = -β k, with β k for k.) In a chunk, with S the state
before it, G the sum of g from the chunk's start to and with a position, E = exp G, E' = exp(G - g),
F = exp(G_last - G), x ⊙ y the C x C numbers Σ_c x_ic y_jc exp(G_ic - G_jc) for j <= i, else 0, and
a ⊘ y those of exp(G_{i-1,c} - G_jc) for j < i,

    M  = (I - A ⊘ B)^-1,   X = M ((E'∘A) S + (A ⊘ K) V)
    O  = scale · ((E∘Q) S + (Q ⊙ K) V + (Q ⊙ B) X)
    S' = Diag(exp G_last) S + (F∘K)ᵀ V + (F∘B)ᵀ X

`_pairs` and `inverted` of triangular.py compute these factors for all chunks at once, and the walks
of recurrences.py do the rest. Backward, with

    Y  = Mᵀ (scale · (Q ⊙ B)ᵀ dO + (F∘B) dS'),   dV = scale · (Q ⊙ K)ᵀ dO + (F∘K) dS' + (A ⊘ K)ᵀ Y
    dS = Diag(exp G_last) dS' + scale · (E∘Q)ᵀ dO + (E'∘A)ᵀ Y
    d(E∘Q) = scale · dO Sᵀ,    d(E'∘A) = Y Sᵀ,    d(F∘K) = V dS'ᵀ,    d(F∘B) = X dS'ᵀ
    d(Q ⊙ K) = scale · dO Vᵀ,  d(Q ⊙ B) = scale · dO Xᵀ,  d(A ⊘ K) = Y Vᵀ,  d(A ⊘ B) = Y Xᵀ

where products have numbers of pairs. `_pair_gradients` has the last line, and `_row_gradients` (of
q and a) and `_column_gradients` (of k, b and g) sum over the pairs of a chunk; dg is the sum from
the end of dG_t = (q dq - k dk - b db)_t + (a da)_{t+1}, and of dS'·S' at the end.
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
from tkc.kernels.recurrences import Prepared, Recurrence, inner_of_states, walked, walked_back
from tkc.kernels.triangular import inverted

WIDEST_KEYS = 128  # of K: tiles K x K stand beside those of keys
POSITIONS, COLUMNS = 32, 64  # of a chunk; of a program that walks chunks
NUMBERS = 16  # of a tile of keys, a thread of `_pairs`: with fewer, threads wait for one another


def _rows(x, t, head, C, N):
    return tkc.load(x, (t, head, 0), (C, None, N))


def _put(x, t, head, tile):
    tkc.store(x, (t, head, 0), tile.to(x.dtype)[:, None, :])


def _totals(g, t, head, C, K):
    """Base-2 logarithms of E, of E', and of the whole chunk's decay."""
    total, end = decay_of_chunk(g, t, head, C, K)
    return total, total - _rows(g, t, head, C, K).to(tkc.float32) * LOG2E, end


def _four(rows, columns, factors, C):
    """Of rows (q, a) and columns (k, b), the parts of Q ⊙ K, Q ⊙ B, A ⊘ K and A ⊘ B that have these
    pairs and factors."""
    to, below, of_queries, of_reads, of_columns = factors
    near = [scaled(tile, of_columns).T for tile in columns]
    found = []
    for row, pairs, factor in (rows[0], to, of_queries), (rows[1], below, of_reads):
        if pairs is None:
            found += [tkc.zeros((C, C)) for _ in near]
        else:
            tile = scaled(row, factor)
            found += [tkc.where(pairs, tkc.dot(tile, column), 0.0) for column in near]
    return found


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
    asking,
    reading,
    writing,
    erasing,
    ends,
    scale,
    C: tkc.constexpr,
    K: tkc.constexpr,
    SHORT: tkc.constexpr,
):
    """seen: scale · Q ⊙ K; asked: scale · Q ⊙ B; read: A ⊘ K; lower: -(A ⊘ B); asking, reading,
    writing, erasing: E∘Q, E'∘A, F∘K, F∘B; ends: the logarithm of each chunk's decay."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(g.shape[1], C), C) + tkc.program_id(1)
    q, k, a, b, g, seen, asked, read, lower = (
        sequence(x, starts, z) for x in (q, k, a, b, g, seen, asked, read, lower)
    )
    factors = [sequence(x, starts, z) for x in (asking, reading, writing, erasing)]
    if t < k.shape[0]:
        rows, columns = ([_rows(x, t, head, C, K) for x in pair] for pair in ((q, a), (k, b)))
        total, before, end = _totals(g, t, head, C, K)
        short = short_factors(total, before, end, SHORT, C)
        if SHORT == C:  # relative to half of the chunk's decay, from its start and to its end
            half = tkc.exp2(0.5 * end)[None, :]
            decays = [short[i] * half for i in (2, 3, 4, 4)]
        else:
            down = from_end(total, end)
            decays = [tkc.exp2(total), tkc.exp2(before), down, down]
        for x, tile, decay in zip(factors, (*rows, *columns), decays, strict=True):
            _put(x, t, head, scaled(tile, decay))
        tkc.store(ends[slot], (head, 0), end[None, :])
        qk, qb, ak, ab = _four(rows, columns, short, C)
        for n in tkc.range(int(log2(SHORT)), int(log2(C))):
            more = _four(rows, columns, level_factors(total, before, n, C), C)
            qk, qb, ak, ab = qk + more[0], qb + more[1], ak + more[2], ab + more[3]
        _put(seen, t, head, qk * scale)
        _put(asked, t, head, qb * scale)
        _put(read, t, head, ak)
        _put(lower, t, head, -ab)


@tkc.jit
def _pair_gradients(
    grad,
    v,
    solved,
    slopes,
    starts,
    dseen,
    dasked,
    dread,
    dlower,
    scale,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """Those of Q ⊙ K, Q ⊙ B, A ⊘ K and A ⊘ B; solved: X; slopes: Y."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    grad, v, solved, slopes = (sequence(x, starts, z) for x in (grad, v, solved, slopes))
    dseen, dasked, dread, dlower = (sequence(x, starts, z) for x in (dseen, dasked, dread, dlower))
    if t < grad.shape[0]:
        i = tkc.arange(C)
        qk, qb, ak, ab = (tkc.zeros((C, C)) for _ in range(4))
        for column in tkc.range(0, grad.shape[2], V):
            asks, new, known, reads = (
                tkc.load(x, (t, head, column), (C, None, V)) for x in (grad, v, solved, slopes)
            )
            qk, qb = tkc.dot(asks, new.T, qk), tkc.dot(asks, known.T, qb)
            ak, ab = tkc.dot(reads, new.T, ak), tkc.dot(reads, known.T, ab)
        for x, found in (dseen, qk), (dasked, qb):
            _put(x, t, head, tkc.where(i[:, None] >= i[None, :], found * scale, 0.0))
        for x, found in (dread, ak), (dlower, ab):
            _put(x, t, head, tkc.where(i[:, None] > i[None, :], found, 0.0))


def _with_states(pair, states, slot, t, head, C, K, V):
    """Products of two arrays' rows of a chunk with its state, over all columns of V."""
    found = tkc.zeros((C, K)), tkc.zeros((C, K))
    for column in tkc.range(0, pair[0].shape[2], V):
        state = tkc.load(states[slot, head], (column, 0), (V, K))
        tiles = [tkc.load(x, (t, head, column), (C, None, V)) for x in pair]
        found = tkc.dot(tiles[0], state, found[0]), tkc.dot(tiles[1], state, found[1])
    return found


def _sum_of(by, pairs, tiles):
    """Σ of by x over two, of these pairs."""
    first = tkc.dot(tkc.where(pairs, by[0], 0.0), tiles[0])
    return tkc.dot(tkc.where(pairs, by[1], 0.0), tiles[1], first)


def _of_rows(by, columns, factors):
    """What dq and da have of these pairs and factors; by: the gradients of the four products."""
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
    grad,
    slopes,
    states,
    dseen,
    dasked,
    dread,
    dlower,
    dq,
    da,
    dg,
    scale,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    SHORT: tkc.constexpr,
):
    """dq, da, and what dg has of them; states: before each chunk."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(g.shape[1], C), C) + tkc.program_id(1)
    q, k, a, b, g, grad, slopes, dq, da, dg = (
        sequence(x, starts, z) for x in (q, k, a, b, g, grad, slopes, dq, da, dg)
    )
    by = [sequence(x, starts, z) for x in (dseen, dasked, dread, dlower)]
    if t < g.shape[0]:
        behind = _with_states((grad, slopes), states, slot, t, head, C, K, V)
        by = [_rows(x, t, head, C, C) for x in by]
        columns = [_rows(x, t, head, C, K) for x in (k, b)]
        total, before, end = _totals(g, t, head, C, K)
        asks, reads = behind[0] * scale * tkc.exp2(total), behind[1] * tkc.exp2(before)
        more = _of_rows(by, columns, short_factors(total, before, end, SHORT, C))
        asks, reads = asks + more[0], reads + more[1]
        for n in tkc.range(int(log2(SHORT)), int(log2(C))):
            more = _of_rows(by, columns, level_factors(total, before, n, C))
            asks, reads = asks + more[0], reads + more[1]
        _put(dq, t, head, asks)
        _put(da, t, head, reads)
        queries, slope = (_rows(x, t, head, C, K).to(tkc.float32) for x in (q, a))
        slope = slope * reads
        _put(dg, t, head, tkc.cumsum(queries * asks + slope, reverse=True) - slope)


def _of_columns(by, rows, factors):
    """What dk and db have of these pairs and factors."""
    to, below, of_queries, of_reads, of_columns = factors
    queries, reads = scaled(rows[0], of_queries), scaled(rows[1], of_reads)
    found = []
    for asked, read in ((by[0], by[2]), (by[1], by[3])):
        total = tkc.dot(tkc.where(to, asked, 0.0).T, queries)
        if below is not None:
            total = tkc.dot(tkc.where(below, read, 0.0).T, reads, total)
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
    v,
    solved,
    after,
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
    V: tkc.constexpr,
    SHORT: tkc.constexpr,
):
    """dk, db and dg; after: the gradients of the states behind each chunk, inner: their products
    with those before it."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(g.shape[1], C), C) + tkc.program_id(1)
    q, k, a, b, g, v, solved, dk, db, dg = (
        sequence(x, starts, z) for x in (q, k, a, b, g, v, solved, dk, db, dg)
    )
    by = [sequence(x, starts, z) for x in (dseen, dasked, dread, dlower)]
    if t < g.shape[0]:
        by = [_rows(x, t, head, C, C) for x in by]
        rows = [_rows(x, t, head, C, K) for x in (q, a)]
        total, before, end = _totals(g, t, head, C, K)
        written, erased = _of_columns(by, rows, short_factors(total, before, end, SHORT, C))
        for n in tkc.range(int(log2(SHORT)), int(log2(C))):
            more = _of_columns(by, rows, level_factors(total, before, n, C))
            written, erased = written + more[0], erased + more[1]
        behind = _with_states((v, solved), after, slot, t, head, C, K, V)
        keys, others = (_rows(x, t, head, C, K).to(tkc.float32) for x in (k, b))
        of_keys, of_others = (x * from_end(total, end) for x in behind)
        ends = tkc.sum(of_keys * keys, axis=0) + tkc.sum(of_others * others, axis=0)
        ends = ends + tkc.load(inner[slot], (head, 0), (None, K)) * tkc.exp2(end)
        written, erased = written + of_keys, erased + of_others
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
    shaped = len(q.shape) == len(v.shape) == axes and q.shape[-2] > 0
    if not shaped or not 1 <= q.shape[-1] <= WIDEST_KEYS:
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
        max_seqlen: int | None,
        scale: float,
        least: float | None,
    ):
        q, g, k, v, a, b = (contiguous(x) for x in operands)
        self.v, self.g, self.starts, self.scale = v, g, starts, scale
        self.operands = (q, k, a, b, g, starts)  # of most kernels
        self.short = _short(least, POSITIONS, dtype_of(v))
        # short chunks have little work for a program that waits for each: more programs then
        self.walk = Recurrence(
            q, k, v, g, None, starts, max_seqlen, scale, False, POSITIONS, COLUMNS
        )
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

    def prepare(self) -> Prepared:
        """The factors of the walks."""
        seen, asked, read, inverses = (self.of_pairs() for _ in range(4))
        asking, reading, writing, erasing = factors = [self.of_keys() for _ in range(4)]
        lower, ends = self.of_pairs("float32"), self.of_chunks()
        pairs = seen, asked, read, lower
        numbers = NUMBERS if self.short > 1 else NUMBERS // 2  # levels keep more at once
        # more warps would leave a thread half of the registers
        warps = min(8, max(1, self.tiles["C"] * self.tiles["K"] // (32 * numbers)))
        options = {**self.tiles, "SHORT": self.short, "num_warps": warps}
        _pairs[self.grid](*self.operands, *pairs, *factors, ends, self.scale, **options)
        inverted(lower, inverses, self.starts, self.grid)
        return Prepared(
            None,
            seen,
            inverses,
            asking,
            reading,
            writing,
            None,
            None,
            ends,
            (1, 1),
            erasing,
            asked,
            read,
        )


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
    initial = None if initial is None else contiguous(initial)
    walked(call.walk, call.prepare(), initial, out, final, None, None)


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
    factors, walk = call.prepare(), call.walk
    states, after, solved, slopes = walk.states(), walk.states(), empty(v), empty(v)
    walked(walk, factors, initial, None, None, states, solved)
    walked_back(walk, factors, grad, last, after, slopes, None if initial is None else ds, dv)
    pairs = tuple(call.of_pairs() for _ in range(4))
    given, options = call.operands, {"V": walk.part, **call.tiles}
    _pair_gradients[call.grid](
        grad, call.v, solved, slopes, call.starts, *pairs, call.scale, **options
    )
    options["SHORT"] = call.short
    _row_gradients[call.grid](
        *given, grad, slopes, states, *pairs, dq, da, dg, call.scale, **options
    )
    inner = inner_of_states(walk, states, after)
    if call.short > 1 and options["K"] <= 64:  # else registers of so few do not hold the tiles
        options["num_warps"] = 4
    _column_gradients[call.grid](
        *given, call.v, solved, after, *pairs, inner, dk, db, dg, **options
    )


rwkv7.gradient_by(rwkv7_backward, "q g k v a b initial", grads="grad grad_final", like="v")


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
    block = min(power(columns), max(1, 4096 // width))
    given = (contiguous(x) for x in (q, g, k, v, a, b))
    _step[tkc.cdiv(columns, block), heads, batch](
        *given, state, out, scale, K=width, V=block, num_warps=2
    )
