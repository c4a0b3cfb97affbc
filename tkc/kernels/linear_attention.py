"""Linear attention with a decay of a number a head: simple GLA, retention, Lightning attention and
linear attention, in chunks, forward, backward and one step of decoding.

    S_t = exp(g_t) S_{t-1} + w_t k_t v_tᵀ,    o_t = scale · S_tᵀ q_t

In a chunk of C positions, with S the state before it, G the sum of g from the chunk's start to and
with a position, and D_ij = exp(G_i - G_j) for j <= i, else 0 (Sun et al., "Retentive network",
2023; Yang et al., "Gated linear attention transformers", 2024; Dao and Gu, "Transformers are SSMs",
2024):

    O  = scale · (Diag(exp G) Q S + (Q Kᵀ ∘ D) Diag(w) V)
    S' = exp(G_last) S + (Diag(w exp(G_last - G)) K)ᵀ V

A program walks the chunks of a head and a block of V's columns; see segments.py, and
linear_attention_backward.py for the gradients. Exponents are sums of g between two positions: none
is above 0 for g <= 0, and nothing overflows. A decay a channel (GLA) takes another way: see
recurrences.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels import recurrences
from tkc.kernels.arrays import (
    Array,
    all_contiguous,
    dtype_of,
    empty,
    expect,
    floats,
    power,
)
from tkc.kernels.attention_blocks import has_wgmma
from tkc.kernels.chunks import (
    LOG2E,
    WIDEST,
    across,
    decayed_step,
    extent,
    first_slot,
    is_shared,
    rows_of,
    scaled,
    seen_scores,
    sequence,
    sequences_of,
    times,
)
from tkc.kernels.linear_attention_backward import Gradients, backward
from tkc.kernels.operator import operator
from tkc.kernels.recurrences import Recurrence
from tkc.kernels.segments import Decays, begun, row_at, spread, walk_of, walk_states

OF_STATE = 16384  # numbers of a state that a program of a step has


@tkc.jit
def _attend(
    q,
    k,
    v,
    totals,
    ups,
    intos,
    weights,
    ends,
    starts,
    initial,
    out,
    final,
    scale,
    SEGMENTS: tkc.constexpr,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    head, column = tkc.program_id(0) // BLOCKS, tkc.program_id(0) % BLOCKS * V
    segment, z = tkc.program_id(1), tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(k.shape[1], C), C)
    q, k, v, out = (sequence(x, starts, z) for x in (q, k, v, out))
    totals, ups, intos, weights = (
        rows_of(x, starts, z, head) for x in (totals, ups, intos, weights)
    )
    first, chunks = extent(q.shape[0], segment, SEGMENTS, C)
    state = tkc.zeros((V, K))
    if initial is not None:
        state = begun(initial, z, head, segment, column, K, V)
    for chunk in tkc.range(0, chunks):
        t = first + chunk * C
        queries = tkc.load(q, (t, head // GROUPS[0], 0), (C, None, K))
        keys = tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K))
        values = tkc.load(v, (t, head // GROUPS[2], column), (C, None, V)).T
        scores = tkc.dot(queries, keys.T)
        scores = seen_scores(scores, row_at(totals, t, C), False, C)
        scores = times(scores, across(row_at(weights, t, C)))
        result = tkc.dot(state.to(queries.dtype), queries.T)
        result = times(result, across(row_at(ups, t, C)))
        result = tkc.dot(values, scores.to(values.dtype).T, result) * scale
        tkc.store(out, (t, head, column), result.to(out.dtype).T[:, None, :])
        if ends is not None:
            state = state * tkc.exp2(ends[slot + t // C, head])
        state = tkc.dot(scaled(values, across(row_at(intos, t, C))), keys, state)
    if final is not None:
        tkc.store(final[z, head], (0, column), state.to(final.dtype).T)


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


def _block(q: Array, columns: int) -> int:
    """Columns of V of a program: wgmma's rows, or as many as registers hold of both operands of
    mma.sync."""
    if has_wgmma(tkc.target_of(q)):
        return 64
    each = tkc.cdiv(columns, tkc.cdiv(max(columns, 1), 32 if q.shape[3] <= 128 else 16))
    return max(16, tkc.cdiv(each, 16) * 16)


def _forward(
    q: Array,
    k: Array,
    v: Array,
    decays: Decays,
    initial: Array | None,
    out: Array,
    final: Array | None,
    scale: float,
) -> None:
    heads = v.shape[2]
    n = walk_of(q, k, v, decays.starts, heads, _block(q, v.shape[3]))
    if not n.sequences or not heads or not n.columns:
        return
    given = spread(decays, v)
    initial, final = walk_states(n, k, v, given, initial, None, final)
    _attend[n.grid](
        q,
        k,
        v,
        *given,
        initial,
        out,
        final,
        scale,
        SEGMENTS=n.segments,
        # factors of rows are more than four warps hold where there is no wgmma
        num_warps=8,
        **n.options,
    )


def _has_channels(decays: Decays) -> bool:
    """Whether g has a number of each channel of K (GLA)."""
    return decays.g is not None and len(decays.g.shape) == 4


def _checked(
    q: Array,
    k: Array,
    v: Array,
    decays: Decays,
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
    if not is_shared(heads, shared, k.shape[2]):
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
    decays = Decays(g, rate, weight, cu_seqlens)
    factor = _checked(q, k, v, decays, initial, scale)
    out = empty(v)
    sequences = sequences_of(v, cu_seqlens, "linear attention")
    final = empty(v, (sequences, v.shape[2], q.shape[3], v.shape[3]), "float32")
    yield out, final
    q, k, v, initial, g, rate, weight = all_contiguous(q, k, v, initial, g, rate, weight)
    decays = Decays(g, rate, weight, cu_seqlens)
    if _has_channels(decays):
        given = Recurrence(q, k, v, g, None, cu_seqlens, None, factor)
        recurrences.forward(given, initial, out, final)
    else:
        _forward(q, k, v, decays, initial, out, final, factor)


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
    grad_final: Array | None = None,
) -> Iterator[tuple[Array, Array, Array, Array, Array, Array]]:
    """The gradients of q, k, v, g, weight and initial from those of the result and of the last
    state. Without g (weight, initial) theirs has no elements.
    """
    decays = Decays(g, rate, weight, cu_seqlens)
    factor = _checked(q, k, v, decays, initial, scale)
    expect(grad, v.shape, "grad")
    batch, length, heads, columns = v.shape
    dq, dk, dv = empty(q), empty(k), empty(v)
    dg, dw, ds = (empty(v, (0,) if x is None else x.shape, "float32") for x in (g, weight, initial))
    yield dq, dk, dv, dg, dw, ds
    grad, q, k, v, initial, after, g, rate, weight = all_contiguous(
        grad, q, k, v, initial, grad_final, g, rate, weight
    )
    decays = Decays(g, rate, weight, cu_seqlens)
    wanted = (
        None if x is None else d for x, d in zip((g, weight, initial), (dg, dw, ds), strict=True)
    )
    of_g, of_weight, of_initial = wanted
    if _has_channels(decays):
        given = Recurrence(q, k, v, g, None, cu_seqlens, None, factor)
        others = of_g, None, of_initial
        recurrences.backward(
            given, grad, initial, after, recurrences.Gradients(dq, dk, dv, *others)
        )
        return
    to = Gradients(dq, dk, dv, of_g, of_weight, of_initial)
    backward(grad, q, k, v, decays, initial, factor, after, to)


linear_attention.gradient_by(
    linear_attention_backward,
    "q k v g weight initial",
    grads="grad grad_final",
    like="v",
    without="rate",
)


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
        if not is_shared(heads, x.shape[1]):
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
