"""Linear attention with a decay of a number a head: simple GLA, retention, Lightning attention and
linear attention, in chunks, forward, backward and one step of decoding.

    S_t = exp(g_t) S_{t-1} + w_t k_t v_tᵀ,    o_t = scale · S_tᵀ q_t

In a chunk of C positions, with S the state before it, G the sum of g from the chunk's start to and
with a position, and D_ij = exp(G_i - G_j) for j <= i, else 0 (Sun et al., "Retentive network",
2023; Yang et al., "Gated linear attention transformers", 2024; Dao and Gu, "Transformers are SSMs",
2024):

    O  = scale · (Diag(exp G) Q S + (Q Kᵀ ∘ D) Diag(w) V)
    S' = exp(G_last) S + (Diag(w exp(G_last - G)) K)ᵀ V

A program walks the chunks of a head and a block of V's columns. Where that gives too few programs,
sequences are cut into segments: the state that each makes of nothing comes first, and their
composition in order gives the state before each. The gradients are sums of the same form:

    dQ_t = scale · Σ_{s<=t} exp(G_t - G_s) (dO_t · v_s) w_s k_s                forward in time
    dK_s = scale · Σ_{t>=s} exp(G_t - G_s) (v_s · dO_t) w_s q_t                backward in time
    dV_s = scale · Σ_{t>=s} exp(G_t - G_s) (k_s · q_t) w_s dO_t                backward in time
    dG_t = q_t · dQ_t - k_t · dK_t  (and <dS, S> at the end),   dg_t = Σ_{s>=t} dG_s

so that one kernel computes all four. Exponents are sums of g between two positions: none is above 0
for g <= 0, and nothing overflows. A decay a channel (GLA) takes another way: see recurrences.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import tkc
from tkc.kernels import recurrences
from tkc.kernels.arrays import (
    Array,
    all_contiguous,
    dtype_of,
    empty,
    expect,
    floats,
    last,
    power,
)
from tkc.kernels.attention_blocks import has_wgmma
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.chunks import (
    CHUNK,
    LOG2E,
    WIDEST,
    add_heads,
    by_head,
    decay_of_chunk,
    decayed_step,
    extent,
    inner_products,
    into_state,
    row_weights,
    scaled_rows,
    seen_scores,
    sequence,
    sequences_of,
)
from tkc.kernels.operator import operator
from tkc.kernels.recurrences import Recurrence

CHUNKS_OF_A_SEGMENT = 8  # at least: its state is written and read
OF_STATE = 16384  # numbers of a state that a program of a step has


@tkc.jit
def _segment_states(
    k,
    v,
    g,
    rate,
    weight,
    starts,
    states,
    decays,
    REVERSE: tkc.constexpr,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    head, column = tkc.program_id(0) // BLOCKS, tkc.program_id(0) % BLOCKS * V
    segment, z = tkc.program_id(1), tkc.program_id(2)
    k, v, g, weight = (sequence(x, starts, z) for x in (k, v, g, weight))
    length = k.shape[0]
    first, chunks = extent(length, segment, states.shape[2], C)
    state, decay = tkc.zeros((K, V)), 0.0
    for chunk in tkc.range(0, chunks):
        t = first + (chunks - 1 - chunk if REVERSE else chunk) * C
        keys = tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K))
        values = tkc.load(v, (t, head // GROUPS[2], column), (C, None, V))
        total, end = decay_of_chunk(g, rate, t, head, length, C)
        if total is not None:
            state = state * tkc.exp2(end)
            decay = decay + end
        each = None if REVERSE else row_weights(weight, t, head, C)
        factor = into_state(total, end, each, REVERSE)
        state = tkc.dot(scaled_rows(keys, factor).T, values, state)
    tkc.store(states[z, head, segment], (0, column), state)
    if column == 0:
        tkc.store(decays[z, head], (segment,), tkc.exp2(decay + tkc.zeros((1,))))


@tkc.jit
def _compose_states(
    states,
    decays,
    initial,
    final,
    before,
    after,
    REVERSE: tkc.constexpr,
    N: tkc.constexpr,
    V: tkc.constexpr,
):
    """Each segment's state becomes the one before it."""
    at, head, z = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2)
    state = tkc.zeros((N, V))
    if initial is not None:
        state = tkc.load(initial[z, head], (at, 0), (N, V)).to(tkc.float32) * before
    for i in tkc.range(0, states.shape[2]):
        segment = states.shape[2] - 1 - i if REVERSE else i
        local = tkc.load(states[z, head, segment], (at, 0), (N, V))
        tkc.store(states[z, head, segment], (at, 0), state)
        state = state * decays[z, head, segment] + local
    if final is not None:
        tkc.store(final[z, head], (at, 0), (state * after).to(final.dtype))


@tkc.jit
def _attend(
    q,
    k,
    v,
    g,
    rate,
    weight,
    starts,
    initial,
    other,
    out,
    sums,
    final,
    scale,
    before,
    after,
    REVERSE: tkc.constexpr,
    SEGMENTS: tkc.constexpr,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    head, block = tkc.program_id(0) // BLOCKS, tkc.program_id(0) % BLOCKS
    column, segment, z = block * V, tkc.program_id(1), tkc.program_id(2)
    q, k, v, g, weight, out, other = (
        sequence(x, starts, z) for x in (q, k, v, g, weight, out, other)
    )
    length = q.shape[0]
    first, chunks = extent(length, segment, SEGMENTS, C)
    state = tkc.zeros((K, V))
    if initial is not None:
        given = initial[z, head] if SEGMENTS == 1 else initial[z, head, segment]
        state = tkc.load(given, (0, column), (K, V)).to(tkc.float32) * before
    for chunk in tkc.range(0, chunks):
        t = first + (chunks - 1 - chunk if REVERSE else chunk) * C
        queries = tkc.load(q, (t, head // GROUPS[0], 0), (C, None, K))
        keys = tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K))
        values = tkc.load(v, (t, head // GROUPS[2], column), (C, None, V))
        scores = tkc.dot(queries, keys.T)
        result = tkc.dot(queries, state.to(queries.dtype))
        total, end = decay_of_chunk(g, rate, t, head, length, C)
        each = row_weights(weight, t, head, C)
        scores = seen_scores(scores, total, REVERSE, C)
        if total is not None:
            result = result * tkc.exp2(end - total if REVERSE else total)[:, None]
            state = state * tkc.exp2(end)
        if each is not None and not REVERSE:
            scores = scores * each[None, :]
        result = tkc.dot(scores.to(values.dtype), values, result) * scale
        stored = result * each[:, None] if each is not None and REVERSE else result
        tkc.store(out, (t, head, column), stored.to(out.dtype)[:, None, :])
        if sums is not None:
            beside = tkc.load(other, (t, head // GROUPS[3], column), (C, None, V))
            tkc.store(
                sequence(sums[block], starts, z),
                (t, head),
                tkc.sum(result * beside.to(tkc.float32), axis=1)[:, None],
            )
        factor = into_state(total, end, None if REVERSE else each, REVERSE)
        state = tkc.dot(scaled_rows(keys, factor).T, values, state)
    if final is not None:
        tkc.store(final[z, head], (0, column), (state * after).to(final.dtype))


@tkc.jit
def _gate_gradient(queries, values, weight, starts, ends, out, N: tkc.constexpr):
    """dg: sums from the end of q · dQ - k · dK, and of <dS, S>."""
    head, z = tkc.program_id(0), tkc.program_id(1)
    weight, out = sequence(weight, starts, z), sequence(out, starts, z)
    length, total = out.shape[0], 0.0
    if ends is not None:
        total = ends[z, head]
    blocks = tkc.cdiv(length, N)
    for block in tkc.range(0, blocks):
        t = (blocks - 1 - block) * N
        plus, minus = tkc.zeros((N,)), tkc.zeros((N,))
        for part in tkc.range(0, queries.shape[0]):
            plus = plus + tkc.load(sequence(queries[part], starts, z), (t, head), (N, None))
        for part in tkc.range(0, values.shape[0]):
            minus = minus + tkc.load(sequence(values[part], starts, z), (t, head), (N, None))
        if weight is not None:
            minus = minus * tkc.load(weight, (t, head), (N, None)).to(tkc.float32)
        here = plus - minus
        tkc.store(out, (t, head), (tkc.cumsum(here, reverse=True) + total).to(out.dtype)[:, None])
        total = total + tkc.sum(here)


@tkc.jit
def _add_up(parts, out, N: tkc.constexpr):
    at = tkc.program_id(0) * N
    total = tkc.zeros((N,))
    for part in tkc.range(0, parts.shape[0]):
        total = total + tkc.load(parts[part], (at,), (N,))
    tkc.store(out, (at,), total.to(out.dtype))


@tkc.jit
def _step(
    q,
    k,
    v,
    g,
    rate,
    weight,
    state,
    out,
    scale,
    GROUPS: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    column, head, z = tkc.program_id(0) * V, tkc.program_id(1), tkc.program_id(2)
    queries = tkc.load(q, (z, head // GROUPS[0], 0), (None, None, K)).to(tkc.float32)
    keys = tkc.load(k, (z, head // GROUPS[1], 0), (None, None, K)).to(tkc.float32)
    values = tkc.load(v, (z, head // GROUPS[2], column), (None, None, V)).to(tkc.float32)
    here = tkc.load(state[z, head], (0, column), (K, V)).to(tkc.float32)
    here = decayed_step(here, g, z, head, K)
    if rate is not None:
        here = here * tkc.exp2(rate[head].to(tkc.float32) * LOG2E)
    if weight is not None:
        values = values * weight[z, head].to(tkc.float32)
    here = here + keys[:, None] * values[None, :]
    tkc.store(state[z, head], (0, column), here.to(state.dtype))
    result = tkc.sum(queries[:, None] * here, axis=0) * scale
    tkc.store(out, (z, head, column), result.to(out.dtype)[None, None, :])


class _Shape(NamedTuple):
    """Extents of a call."""

    sequences: int
    heads: int
    width: int  # K
    columns: int  # V
    segments: int
    block: int  # columns of V of a program
    groups: tuple[int, ...]  # heads that share one of q, k, v, and of what is multiplied beside

    @property
    def blocks(self) -> int:
        """Programs that share a head's columns."""
        return tkc.cdiv(self.columns, self.block)


def _wide(width: int) -> int:
    """K of a program's tiles: wgmma takes the state's rows 64 at a time."""
    return max(16, power(width)) if width <= 64 else tkc.cdiv(width, 64) * 64


def _fewer(x: Array, weight: Array | None, reverse: bool) -> bool:
    """Whether registers hold less: mma.sync keeps both operands there, and weights of rows stay
    until the end of a step that goes back in time."""
    return not has_wgmma(tkc.target_of(x)) or (reverse and weight is not None)


def _block(width: int, columns: int, fewer: bool) -> int:
    """Columns of V of a program: as many as registers hold of state and result; see `_fewer`."""
    most = 32 if fewer else 80 if width <= 192 else 64
    each = tkc.cdiv(columns, tkc.cdiv(max(columns, 1), most))
    return max(16, tkc.cdiv(each, 16) * 16)


def _shape(
    q: Array, k: Array, v: Array, starts: Array | None, heads: int, beside: Array, block: int
) -> _Shape:
    batch, length = q.shape[:2]
    sequences = sequences_of(v, starts, "linear attention")
    chunks = tkc.cdiv(batch * length, max(sequences, 1) * CHUNK)
    programs = sequences * heads * tkc.cdiv(v.shape[3], block)
    segments = max(1, min(PROGRAMS // max(programs, 1), chunks // CHUNKS_OF_A_SEGMENT))
    groups = tuple(heads // x.shape[2] for x in (q, k, v, beside))
    return _Shape(sequences, heads, q.shape[3], v.shape[3], segments, block, groups)


class _Decays(NamedTuple):
    """What says how the state decays, and how much of a position goes into it."""

    g: Array | None
    rate: Array | None
    weight: Array | None
    starts: Array | None


def _launch(
    q: Array,
    k: Array,
    v: Array,
    decays: _Decays,
    out: Array,
    initial: Array | None = None,
    final: Array | None = None,
    scale: float = 1.0,
    reverse: bool = False,
    beside: Array | None = None,
    sums: Array | None = None,
) -> None:
    """out, for q, k, v of [batch, T, heads, …]. Backward in time, states are gradients of states,
    which `scale` does not multiply. sums: of result · beside over each block of columns."""
    heads = out.shape[2]
    block = _block(q.shape[3], v.shape[3], _fewer(q, decays.weight, reverse))
    n = _shape(q, k, v, decays.starts, heads, v if beside is None else beside, block)
    common = {"REVERSE": reverse, "GROUPS": n.groups, "C": CHUNK, "BLOCKS": n.blocks}
    widths = {"K": _wide(n.width), "V": n.block}
    before, after = (1.0 / scale, scale) if reverse else (1.0, 1.0)
    if not n.sequences or not heads or not n.columns:
        return
    grid = (heads * n.blocks, n.segments, n.sequences)
    if n.segments > 1:
        states = empty(q, (n.sequences, heads, n.segments, n.width, n.columns), "float32")
        shares = empty(q, states.shape[:3], "float32")
        _segment_states[grid](k, v, *decays, states, shares, **common, **widths)
        rows = max(1, 2048 // power(n.columns))
        _compose_states[tkc.cdiv(n.width, rows), heads, n.sequences](
            states,
            shares,
            initial,
            final,
            before,
            after,
            REVERSE=reverse,
            N=rows,
            V=power(n.columns),
        )
        initial, final, before = states, None, 1.0
    _attend[grid](
        q,
        k,
        v,
        *decays,
        initial,
        beside,
        out,
        sums,
        final,
        scale,
        before,
        after,
        SEGMENTS=n.segments,
        # factors of rows are more than four warps hold where there is no wgmma
        num_warps=None if decays.weight is None else 8,
        **common,
        **widths,
    )


def _has_channels(decays: _Decays) -> bool:
    """Whether g has a number of each channel of K (GLA)."""
    return decays.g is not None and len(decays.g.shape) == 4


def _checked(
    q: Array,
    k: Array,
    v: Array,
    decays: _Decays,
    initial: Array | None,
    scale: float | None,
) -> float:
    """The scale. Raises LaunchError for what does not fit."""
    floats(q, k, v, decays.g, decays.rate, decays.weight, initial)
    _check_operands(q, k, v)
    batch, length, heads, columns = v.shape
    if decays.g is not None:
        row = (batch, length, heads)
        expect(decays.g, (*row, q.shape[3]) if _has_channels(decays) else row, "g")
        if _has_channels(decays) and decays.weight is not None:
            raise tkc.LaunchError(
                "linear attention: with a decay a channel there is no weight; multiply v by it"
            )
    expect(decays.weight, (batch, length, heads), "weight")
    expect(decays.rate, (heads,), "rate")
    if decays.g is not None and decays.rate is not None:
        raise tkc.LaunchError("linear attention: give g or rate, not both")
    sequences = sequences_of(v, decays.starts, "linear attention")
    expect(initial, (sequences, heads, q.shape[3], columns), "initial")
    return q.shape[3] ** -0.5 if scale is None else scale


def _check_operands(q: Array, k: Array, v: Array) -> None:
    if len(q.shape) != 4 or len(v.shape) != 4:
        raise tkc.LaunchError(
            "linear attention: q, k and v are [batch, positions, heads, width], got"
            f" {list(q.shape)} and {list(v.shape)}"
        )
    batch, length, shared, width = q.shape
    heads = v.shape[2]
    expect(k, (batch, length, k.shape[2] if len(k.shape) == 4 else shared, width), "k")
    expect(v, (batch, length, *v.shape[2:]), "v")
    if heads % max(shared, 1) or heads % max(k.shape[2], 1):
        raise tkc.LaunchError(
            f"linear attention: v's {heads} heads are not a multiple of q's {shared} and k's"
            f" {k.shape[2]}"
        )
    if max(width, v.shape[3]) > WIDEST or not width:
        raise tkc.LaunchError(
            f"linear attention: widths are 1 to {WIDEST}, got {width} and {v.shape[3]}"
        )
    if len({dtype_of(x) for x in (q, k, v)}) > 1:
        raise tkc.LaunchError("linear attention: q, k and v have one element type; convert them")


@operator
def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    rate: Array | None = None,
    weight: Array | None = None,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    scale: float | None = None,
) -> Iterator[tuple[Array, Array]]:
    """S_t = exp(g_t) S_{t-1} + w_t k_t v_tᵀ, o_t = scale · S_tᵀ q_t: o [batch, T, heads, V] of v's
    element type, and the last state, float32 [batch, heads, K, V].

    q, k: [batch, T, heads or a divisor of them, K]; v: [batch, T, heads, V]; K and V up to 256. g:
    natural logarithm of the decay of each position and head, [batch, T, heads], not above 0 (simple
    GLA; Mamba-2: dt · A), or of each channel too, [batch, T, heads, K] (GLA); or rate: one of each
    head, [heads] (retention: log(1 - 2^(-5-h)); Lightning: -slope); neither: no decay. weight: how
    much of a position goes into the state, [batch, T, heads] (Mamba-2: dt), without channels.
    initial: the state before. cu_seqlens: the batch is one row of sequences that begin at these
    positions, int32 [sequences + 1], and states are one a sequence. scale: K^-½ by default. State
    and sums are float32; products have v's element type. Raises LaunchError where a shape or type
    does not fit. No gradient for rate.
    """
    decays = _Decays(g, rate, weight, cu_seqlens)
    factor = _checked(q, k, v, decays, initial, scale)
    out = empty(v)
    sequences = sequences_of(v, cu_seqlens, "linear attention")
    final = empty(v, (sequences, v.shape[2], q.shape[3], v.shape[3]), "float32")
    yield out, final
    q, k, v, initial, g, rate, weight = all_contiguous(q, k, v, initial, g, rate, weight)
    decays = _Decays(g, rate, weight, cu_seqlens)
    if _has_channels(decays):
        given = Recurrence(q, k, v, g, None, cu_seqlens, None, factor)
        recurrences.forward(given, initial, out, final)
    else:
        _launch(q, k, v, decays, out, initial, final, factor)


@operator
def linear_attention_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    rate: Array | None = None,
    weight: Array | None = None,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    scale: float | None = None,
    final: Array | None = None,
    grad_final: Array | None = None,
) -> Iterator[tuple[Array, Array, Array, Array, Array, Array]]:
    """The gradients of q, k, v, g, weight and initial from those of the result and, with the last
    state itself, of the last state. Without g (weight, initial) theirs has no elements.
    """
    decays = _Decays(g, rate, weight, cu_seqlens)
    factor = _checked(q, k, v, decays, initial, scale)
    expect(grad, v.shape, "grad")
    batch, length, heads, columns = v.shape
    dq, dk, dv = empty(q), empty(k), empty(v)
    dg, dw, ds = (empty(v, (0,) if x is None else x.shape, "float32") for x in (g, weight, initial))
    yield dq, dk, dv, dg, dw, ds
    grad, q, k, v, initial, after, g, rate, weight = all_contiguous(
        grad, q, k, v, initial, grad_final, g, rate, weight
    )
    decays = _Decays(g, rate, weight, cu_seqlens)
    if _has_channels(decays):
        given = Recurrence(q, k, v, g, None, cu_seqlens, None, factor)
        to = recurrences.Gradients(dq, dk, dv, dg, None, None if initial is None else ds)
        recurrences.backward(given, grad, initial, after, to)
        return
    flipped, after_flipped = (None if x is None else last(x, 2) for x in (initial, after))
    row = (batch, length, heads)
    # over each block of columns, q · dq and v · dv / w, which is k · dk / w
    queries, values = (
        empty(q, (tkc.cdiv(n, _block(other, n, _fewer(q, weight, reverse))), *row), "float32")
        for n, other, reverse in ((q.shape[3], columns, False), (columns, q.shape[3], True))
    )
    of_heads = [by_head(x, heads) for x in (dq, dk)]
    about_g = (None, None) if g is None else (q, queries)
    about_w = (None, None) if g is None and weight is None else (v, values)
    last_state = ds if initial is not None else None
    _launch(grad, v, k, decays, of_heads[0], flipped, None, factor, False, *about_g)
    _launch(v, grad, q, decays, of_heads[1], after_flipped, None, factor, True)
    _launch(k, q, grad, decays, dv, after, last_state, factor, True, *about_w)
    for whole, part in zip(of_heads, (dq, dk), strict=True):
        add_heads(whole, part)
    sums = (queries, values, weight, cu_seqlens)
    _gates_backward(*sums, None if g is None else dg, dw, after, final)


def _gates_backward(
    queries: Array,
    values: Array,
    weight: Array | None,
    starts: Array | None,
    dg: Array | None,
    dw: Array,
    after: Array | None,
    final: Array | None,
) -> None:
    """The gradients of weight and g, of sums over blocks of columns."""
    parts, batch, length, heads = values.shape
    if weight is not None:
        n = batch * length * heads
        _add_up[tkc.cdiv(n, 1024)](values.reshape((parts, n)), dw.reshape((n,)), N=1024)
    if dg is not None:
        ends = (
            None
            if after is None or final is None
            else inner_products(after, final, after.shape[:2])
        )
        sequences = batch if starts is None else starts.shape[0] - 1
        _gate_gradient[heads, sequences](queries, values, weight, starts, ends, dg, N=512)


@linear_attention.backward(
    saves="q k v g rate weight initial cu_seqlens scale result", without="rate", zeros=False
)
def _(saved, grad, grad_final):
    if grad is None:
        grad = saved.v.new_zeros(saved.v.shape)
    results = linear_attention_backward(
        grad,
        saved.q,
        saved.k,
        saved.v,
        saved.g,
        saved.rate,
        saved.weight,
        saved.initial,
        saved.cu_seqlens,
        saved.scale,
        saved.result[1],
        grad_final,
    )
    dq, dk, dv, *others = results
    given = (saved.g, saved.weight, saved.initial)
    dg, dw, ds = (None if x is None else d.to(x.dtype) for x, d in zip(given, others, strict=True))
    return dq, dk, dv, dg, None, dw, ds, None, None


@operator(mutates="state")
def linear_attention_step(
    q: Array,
    k: Array,
    v: Array,
    state: Array,
    g: Array | None = None,
    rate: Array | None = None,
    weight: Array | None = None,
    scale: float | None = None,
) -> Iterator[Array]:
    """One position of each sequence: the state, [batch, heads, K, V], becomes the next one in
    place, and o is [batch, heads, V]. q, k: [batch, heads or a divisor, K]; v: [batch, heads, V];
    g: [batch, heads] or [batch, heads, K]; weight: [batch, heads]; rate: [heads]. The rest is as in
    linear_attention.
    """
    floats(q, k, v, state, g, rate, weight)
    batch, heads, columns = v.shape
    width = q.shape[-1]
    expect(state, (batch, heads, width, columns), "state")
    for name, x in ("q", q), ("k", k):
        expect(x, (batch, x.shape[1], width), name)
        if heads % x.shape[1]:
            raise tkc.LaunchError(f"{name}: its {x.shape[1]} heads do not divide v's {heads}")
    if g is not None:
        expect(g, (batch, heads, width) if len(g.shape) == 3 else (batch, heads), "g")
    expect(weight, (batch, heads), "weight")
    expect(rate, (heads,), "rate")
    if width > WIDEST:
        raise tkc.LaunchError(f"linear_attention_step: K is at most {WIDEST}, got {width}")
    out = empty(v)
    yield out
    block = min(power(columns), max(1, OF_STATE // power(width)))
    _step[tkc.cdiv(columns, block), heads, batch](
        *all_contiguous(q, k, v, g, rate, weight),
        state,
        out,
        width**-0.5 if scale is None else scale,
        GROUPS=(heads // q.shape[1], heads // k.shape[1], 1),
        K=power(width),
        V=block,
        num_warps=4,
    )
