"""The chunked recurrence with a decay a head or a channel, with the delta rule or without: forward
and backward. delta_rule.py and linear_attention.py are its callers.

    R = Diag(exp g_t) S_{t-1},   S_t = R + k_t u_tᵀ,   o_t = scale · S_tᵀ q_t
    u_t = v_t, or with the rule β_t (v_t - Rᵀ k_t)

In a chunk, with S the state before it, G the sum of g from the chunk's start to and with a
position, E = exp G, F = exp(G_last - G), and x ⊙ y the C x C numbers Σ_c x_ic y_jc exp(G_ic - G_jc)
for j <= i, else 0 (how: chunks.level_exponents, and chunks.block_exponents where decays
are not steep; Yang et al., "Parallelizing linear transformers with the delta rule over sequence
length", 2024; "Gated linear attention transformers", 2024; "Gated delta networks", 2025; Kimi team,
"Kimi linear", 2025):

    P  = scale · Q ⊙ K,    M = (I + the part of Diag(β) (K ⊙ K) below the diagonal)^-1
    U  = M Diag(β) (V - (E∘K) S),   or V
    O  = scale · (E∘Q) S + P U,     S' = Diag(exp G_last) S + (F∘K)ᵀ U

P and M do not depend on the state: `_pairs` and triangular.py compute them for all chunks at once.
`_walk` then walks the chunks of a head and a block of V's columns. It holds Sᵀ, so that in a chain
of dots what was just computed is each next one's left operand, which stays in registers. Backward,
with dS' the gradient of the state after a chunk, `_walk_back` walks them in reverse,

    Y  = Mᵀ (Pᵀ dO + (F∘K) dS'),    dV = Diag(β) Y
    dS = Diag(exp G_last) dS' + scale · (E∘Q)ᵀ dO - (E∘K)ᵀ dV

and `_query_gradients`, `_read_gradients` (Z, dβ) and `_key_gradients` have, for all chunks at
once, with N = Y Uᵀ below the diagonal and dP = scale · dO Uᵀ to and with it,

    dQ = scale · E∘(dO Sᵀ) + Σ_j dP_ij exp(G_i - G_j) k_j
    Z  = -E∘(Y Sᵀ) - Σ_j N_ij exp(G_i - G_j) k_j
    W  = F∘(U dS'ᵀ) + Σ_i dP_ij exp(G_i - G_j) q_i - Σ_i β_i N_ij exp(G_i - G_j) k_i
    dK = Diag(β) Z + W,    dβ = Y · V + K · Z
    dG = Q∘dQ + K∘(Diag(β) Z - W) (and dS'∘S' at the end),   dg = the sum of dG from the end
"""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import NamedTuple

import tkc
from tkc.kernels.arrays import Array, empty, power
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.chunks import (
    LOG2E,
    RANGE,
    WIDE_RANGE,
    across,
    add_heads,
    alike_by_channels,
    block_exponents,
    by_head,
    decay_of_chunk,
    first_slot,
    from_end,
    has_channels,
    inner_products,
    inner_products_of_columns,
    level_exponents,
    own_weights,
    power_of_two,
    rows_of,
    scaled,
    sequence,
    short_levels,
    times,
)
from tkc.kernels.triangular import inverted

CHUNK, BLOCK = 64, 64
CHANNELS = 32  # of a decay each, whose pairs are taken at once
READ, ASK, WRITE = 0, 1, 2  # rows of Prepared.factors


def _squares(tile):
    """The square of each row's length."""
    wide = tile.to(tkc.float32)
    return tkc.sum(wide * wide, axis=1)


def _lengths_of(lengths, starts, z, t, head, C):
    """What rows of k and q are multiplied by, stored by `_pairs`; None: nothing."""
    if lengths is None:
        return None, None
    return [tkc.load(sequence(lengths[i], starts, z), (t, head), (C, None)) for i in (0, 1)]


def _of_rows(*factors):
    """The product of factors of rows, numbers and None; None where all are."""
    given = [factor for factor in factors if factor is not None]
    return reduce(mul, given) if given else None


def _normalized(found, of_keys, of_queries):
    """Products of rows as they are, as those of rows of length 1."""
    rows = [of_queries, of_keys][: len(found)]
    return [sums * each[:, None] * of_keys[None, :] for sums, each in zip(found, rows, strict=True)]


def _with_channels(found, queries, keys, steps, raised, ends, t, head, column, C):
    """Q ⊙ K and, if wanted, K ⊙ K with those of channels whose decays are these; raised: where
    their E∘Q, E∘K and F∘K go."""
    total, end = tkc.cumsum(steps), tkc.sum(steps, axis=0)
    up, down = tkc.exp2(total), from_end(total, end)
    for x, tile, by in zip(raised, (queries, keys, keys), (up, up, down), strict=True):
        tkc.store(x, (t, head, column), scaled(tile, by)[:, None, :])
    tkc.store(ends, (head, column), end[None, :])
    return alike_by_channels(found, queries, keys, steps, C)


def _store_lengths(lengths, starts, z, t, head, own):
    """What rows of k and q are multiplied by."""
    for i in (0, 1):
        tkc.store(sequence(lengths[i], starts, z), (t, head), own[i][:, None])


def _store_factors(factors, ends, slot, t, head, decays, own, scale):
    """See `Prepared`; decays: of a head, or none; own: what rows of k and q are multiplied by."""
    (total, end), (of_keys, of_queries) = decays, own
    if factors is not None:
        up, down = power_of_two(total), from_end(total, end)
        tkc.store(factors[READ], (t,), _of_rows(up, of_keys))
        tkc.store(factors[ASK], (t,), _of_rows(up, of_queries, scale))
        tkc.store(factors[WRITE], (t,), _of_rows(down, of_keys))
    if end is not None:
        tkc.store(ends[slot], (head,), end + tkc.zeros((1,)))


@tkc.jit
def _pairs(
    q,
    k,
    g,
    beta,
    starts,
    lengths,
    scores,
    lower,
    asking,
    reading,
    writing,
    rates,
    factors,
    ends,
    scale,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    WIDTH: tkc.constexpr,
):
    """scores: P. lower: with the rule, what is below the diagonal of the matrix that M inverts.
    asking, reading, writing: E∘Q, E∘K and F∘K, where channels have their own decays. rates: β;
    factors: of rows of K and Q, see `Prepared`; ends: the logarithm of each chunk's decay. WIDTH:
    channels that are added at once."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(k.shape[1], C), C) + tkc.program_id(1)
    rates, factors = (rows_of(x, starts, z, head) for x in (rates, factors))
    q, k, g, beta, scores, lower = (sequence(x, starts, z) for x in (q, k, g, beta, scores, lower))
    raised = [sequence(x, starts, z) for x in (asking, reading, writing)]
    if t < k.shape[0]:
        i, rule = tkc.arange(C), beta is not None
        found = [tkc.zeros((C, C)) for _ in range(1 + rule)]
        squares = tkc.zeros((C,)), tkc.zeros((C,))
        for column in tkc.range(0, K, WIDTH):
            queries = tkc.load(q, (t, head // GROUPS[0], column), (C, None, WIDTH))
            keys = tkc.load(k, (t, head // GROUPS[1], column), (C, None, WIDTH))
            if writing is None:
                rows = [queries, keys][: len(found)]
                found = [tkc.dot(x, keys.T, sums) for x, sums in zip(rows, found, strict=True)]
            else:
                steps = tkc.load(g, (t, head, column), (C, None, WIDTH)).to(tkc.float32) * LOG2E
                at = t, head, column, C
                found = _with_channels(found, queries, keys, steps, raised, ends[slot], *at)
            if lengths is not None:
                squares = squares[0] + _squares(keys), squares[1] + _squares(queries)
        decays, own = (None, None), [None, None]
        if writing is None:
            decays = decay_of_chunk(g, t, head, C)
            weights = own_weights(decays[0], C)
            found = [weights * sums for sums in found]
        if lengths is not None:
            own = [tkc.rsqrt(x + 1e-6) for x in squares]
            found = _normalized(found, *own)
            _store_lengths(lengths, starts, z, t, head, own)
        _store_factors(factors, ends, slot, t, head, decays, own, scale)
        tkc.store(scores, (t, head, 0), (found[0] * scale).to(scores.dtype)[:, None, :])
        if rule:
            each = tkc.load(beta, (t, head), (C, None)).to(tkc.float32)
            below = tkc.where(i[:, None] > i[None, :], found[1], 0.0) * each[:, None]
            tkc.store(lower, (t, head, 0), below[:, None, :])
            tkc.store(rates, (t,), each)


def _decays(ends, slot, head, K):
    """What columns of Sᵀ are multiplied by in a chunk; None: nothing."""
    if ends is None:
        return None
    if len(ends.shape) == 2:
        return tkc.exp2(ends[slot, head])
    return tkc.exp2(tkc.load(ends[slot], (head, 0), (None, K)))[None, :]


def _factors(factors, t, C):
    """Of a chunk's rows of E∘K, E∘Q and F∘K, as numbers of columns; None: 1."""
    if factors is None:
        return None, None, None
    return [across(tkc.load(factors[row], (t,), (C,))) for row in (READ, ASK, WRITE)]


def _solved(short, new, keys, factors, t, head, C):
    """What is written with keys, and what M makes of what a chunk reads, transposed; None without
    M."""
    of_reads, rates, read, inverses = factors
    if inverses is None:
        return new, None
    if read is None:
        known = new.to(tkc.float32) - times(tkc.dot(short, keys.T), of_reads)
        known = known * across(tkc.load(rates, (t,), (C,)))
    else:
        known = tkc.dot(new, tkc.load(read, (t, head, 0), (C, None, C)).T)
        known = tkc.dot(short, keys.T, known)
    inverse = tkc.load(inverses, (t, head, 0), (C, None, C))
    solved = tkc.dot(known.to(keys.dtype), inverse.T).to(keys.dtype)
    return solved if read is None else new, solved


@tkc.jit
def _walk(
    q,
    k,
    writing,
    erasing,
    v,
    ends,
    rates,
    factors,
    scores,
    asked,
    read,
    inverses,
    starts,
    initial,
    out,
    final,
    states,
    fresh,
    scale,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    tkc.launch_dependents()  # backward, the walk in reverse runs beside this one
    head, column = tkc.program_id(0) // BLOCKS, tkc.program_id(0) % BLOCKS * V
    z = tkc.program_id(1)
    slot = first_slot(starts, z, tkc.cdiv(v.shape[1], C), C)
    rates, factors = (rows_of(x, starts, z, head) for x in (rates, factors))
    q, k, writing, erasing, v, out, fresh = (
        sequence(x, starts, z) for x in (q, k, writing, erasing, v, out, fresh)
    )
    scores, asked, read, inverses = (
        sequence(x, starts, z) for x in (scores, asked, read, inverses)
    )
    state = tkc.zeros((V, K))
    if initial is not None:
        state = tkc.load(initial[z, head], (0, column), (K, V)).to(tkc.float32).T
    for t in tkc.range(0, v.shape[0], C):
        keys = tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K))
        new = tkc.load(v, (t, head, column), (C, None, V)).T
        short = state.to(keys.dtype)
        of_reads, of_asks, of_writes = _factors(factors, t, C)
        if states is not None:
            tkc.store(states[slot + t // C, head], (column, 0), short.to(states.dtype))
        by = of_reads, rates, read, inverses
        new, solved = _solved(short, new, keys, by, t, head, C)
        if fresh is not None:
            tkc.store(fresh, (t, head, column), solved.T[:, None, :])
        if out is not None:
            queries = tkc.load(q, (t, head // GROUPS[0], 0), (C, None, K))
            result = times(tkc.dot(short, queries.T), scale if of_asks is None else of_asks)
            for tile, pairs in (new, scores), (solved, asked):
                if pairs is not None:
                    result = tkc.dot(tile, tkc.load(pairs, (t, head, 0), (C, None, C)).T, result)
            tkc.store(out, (t, head, column), result.to(out.dtype).T[:, None, :])
        written = keys if writing is None else tkc.load(writing, (t, head, 0), (C, None, K))
        state = times(state, _decays(ends, slot + t // C, head, K))
        state = tkc.dot(scaled(new, of_writes), written, state)
        if erasing is not None:
            state = tkc.dot(solved, tkc.load(erasing, (t, head, 0), (C, None, K)), state)
    if final is not None:
        tkc.store(final[z, head], (0, column), state.to(final.dtype).T)


@tkc.jit
def _walk_back(
    grad,
    q,
    k,
    writing,
    erasing,
    ends,
    rates,
    factors,
    scores,
    asked,
    read,
    inverses,
    starts,
    last,
    states,
    slopes,
    dv,
    first,
    scale,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    head, column = tkc.program_id(0) // BLOCKS, tkc.program_id(0) % BLOCKS * V
    z = tkc.program_id(1)
    slot = first_slot(starts, z, tkc.cdiv(grad.shape[1], C), C)
    rates, factors = (rows_of(x, starts, z, head) for x in (rates, factors))
    grad, q, k, writing, erasing, slopes, dv = (
        sequence(x, starts, z) for x in (grad, q, k, writing, erasing, slopes, dv)
    )
    scores, asked, read, inverses = (
        sequence(x, starts, z) for x in (scores, asked, read, inverses)
    )
    state = tkc.zeros((V, K))
    if last is not None:
        state = tkc.load(last[z, head], (0, column), (K, V)).to(tkc.float32).T
    chunks = tkc.cdiv(grad.shape[0], C)
    for chunk in tkc.range(0, chunks):
        at = chunks - 1 - chunk
        t = at * C
        keys = tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K))
        written = keys if writing is None else tkc.load(writing, (t, head, 0), (C, None, K))
        queries = tkc.load(q, (t, head // GROUPS[0], 0), (C, None, K))
        grads = tkc.load(grad, (t, head, column), (C, None, V)).T
        of_reads, of_asks, of_writes = _factors(factors, t, C)
        short = state.to(keys.dtype)
        tkc.store(states[slot + at, head], (column, 0), short.to(states.dtype))
        slope = times(tkc.dot(short, written.T), of_writes)
        slope = tkc.dot(grads, tkc.load(scores, (t, head, 0), (C, None, C)), slope)
        state = times(state, _decays(ends, slot + at, head, K))
        state = tkc.dot(scaled(grads, scale if of_asks is None else of_asks), queries, state)
        if inverses is not None:
            inverse = tkc.load(inverses, (t, head, 0), (C, None, C))
            if read is None:
                slope = tkc.dot(slope.to(keys.dtype), inverse)
                each = across(tkc.load(rates, (t,), (C,)))
                change = times(-slope * each, of_reads).to(keys.dtype)
            else:
                of_new = slope
                slope = tkc.dot(short, tkc.load(erasing, (t, head, 0), (C, None, K)).T)
                slope = tkc.dot(grads, tkc.load(asked, (t, head, 0), (C, None, C)), slope)
                slope = tkc.dot(slope.to(keys.dtype), inverse)
                change = slope.to(keys.dtype)
                of_new = tkc.dot(change, tkc.load(read, (t, head, 0), (C, None, C)), of_new)
                tkc.store(dv, (t, head, column), of_new.to(dv.dtype).T[:, None, :])
            state = tkc.dot(change, keys, state)
        tkc.store(slopes, (t, head, column), slope.to(slopes.dtype).T[:, None, :])
    if first is not None:
        tkc.store(first[z, head], (0, column), state.to(first.dtype).T)


def _of_unnormalized(slope, rows, length):
    """The gradient of rows from that of length ∘ rows, where `rows` are these."""
    if length is None:
        return slope
    along = tkc.sum(slope * rows.to(tkc.float32), axis=1)
    return (slope - rows.to(tkc.float32) * along[:, None]) * length[:, None]


def _below(tile, C):
    i = tkc.arange(C)
    return tkc.where(i[:, None] > i[None, :], tile, 0.0)


def _decayed_pairs(by, total, C):
    """What of D can be multiplied by before `_pulled`: all with a decay a head."""
    return by if has_channels(total) else by * own_weights(total, C)


def _pulled(found, pulls, decays, C, transposed):
    """found + Σ_j by_ij exp(G_i - G_j) x_j, or transposed Σ_i by_ij exp(G_i - G_j) x_i, of each
    (by, x) of pulls; with a decay a head, by is of `_decayed_pairs`. decays: of `_with_short`."""
    total, short = decays
    if not has_channels(total):
        for by, tile in pulls:
            found = tkc.dot(by.T if transposed else by, tile, found)
        return found

    def added(of_columns, found, seen, exponent):
        # exponents, so that of factors only those that are used next take registers
        inside = tkc.exp2(exponent if transposed else of_columns * exponent)
        part = tkc.zeros(found.shape)
        for by, tile in pulls:
            near = tkc.where(seen, by, 0.0)
            part = tkc.dot(near.T if transposed else near, scaled(tile, inside), part)
        return found + part * tkc.exp2(of_columns * exponent if transposed else exponent)

    found = added(-1.0, found, *block_exponents(total, short, C))
    for n in tkc.range(short, C.bit_length() - 1):
        found = added(1.0, found, *level_exponents(total, n, C))
    return found


def _with_short(total, g, t, head, dtype, C, K):
    """total, and with a decay a channel the levels that one product can do."""
    if not has_channels(total):
        return total, None
    steps = tkc.load(g, (t, head, 0), (C, None, K)).to(tkc.float32) * LOG2E
    return total, short_levels(steps, RANGE.get(dtype.name, WIDE_RANGE), C)


@tkc.jit
def _query_gradients(
    grad,
    q,
    k,
    g,
    lengths,
    fresh,
    slopes,
    starts,
    states,
    dq,
    dg,
    asked_by,
    rules,
    scale,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """dQ, dP and N, and what dg has of Q."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(grad.shape[1], C), C) + tkc.program_id(1)
    grad, q, k, g, fresh, slopes, dq, dg, asked_by, rules = (
        sequence(x, starts, z) for x in (grad, q, k, g, fresh, slopes, dq, dg, asked_by, rules)
    )
    if t < grad.shape[0]:
        asked, rule, found = tkc.zeros((C, C)), tkc.zeros((C, C)), tkc.zeros((C, K))
        for column in tkc.range(0, grad.shape[2], V):
            at, shape = (t, head, column), (C, None, V)
            grads, new = tkc.load(grad, at, shape), tkc.load(fresh, at, shape)
            before = tkc.load(states[slot, head], (column, 0), (V, K))
            asked, found = tkc.dot(grads, new.T, asked), tkc.dot(grads, before, found)
            if rules is not None:
                rule = tkc.dot(tkc.load(slopes, at, shape), new.T, rule)
        total, _ = decay_of_chunk(g, t, head, C, K)
        of_keys, of_queries = _lengths_of(lengths, starts, z, t, head, C)
        keys = scaled(tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K)), of_keys)
        decays = _with_short(total, g, t, head, keys.dtype, C, K)
        asked = _decayed_pairs(asked * scale, total, C).to(keys.dtype)
        tkc.store(asked_by, (t, head, 0), asked[:, None, :])
        if rules is not None:
            rule = _decayed_pairs(_below(rule, C), total, C)
            tkc.store(rules, (t, head, 0), rule.to(keys.dtype)[:, None, :])
        found = times(found, power_of_two(total), scale)
        found = _pulled(found, [(asked, keys)], decays, C, False)
        rows = scaled(tkc.load(q, (t, head // GROUPS[0], 0), (C, None, K)), of_queries)
        if dg is not None:
            _store_gate(dg, t, head, found * rows.to(tkc.float32))
        found = _of_unnormalized(found, rows, of_queries)
        tkc.store(dq, (t, head, 0), found.to(dq.dtype)[:, None, :])


def _store_gate(dg, t, head, slopes):
    """Slopes [C, K] as they are, or their sums with a decay a head."""
    if len(dg.shape) == 3:
        tkc.store(dg, (t, head, 0), slopes[:, None, :])
    else:
        tkc.store(dg, (t, head), tkc.sum(slopes, axis=1)[:, None])


def _finish_gate(dg, t, head, slopes, ends, C, K):
    """dg: sums from the chunk's end of its slopes and these, and of those of the last state."""
    if len(dg.shape) == 3:
        rows = tkc.load(dg, (t, head, 0), (C, None, K)) + slopes
        tkc.store(dg, (t, head, 0), (tkc.cumsum(rows, reverse=True) + ends[None, :])[:, None, :])
    else:
        rows = tkc.load(dg, (t, head), (C, None)) + tkc.sum(slopes, axis=1)
        tkc.store(dg, (t, head), (tkc.cumsum(rows, reverse=True) + ends)[:, None])


@tkc.jit
def _read_gradients(
    k,
    v,
    g,
    beta,
    lengths,
    slopes,
    rules,
    starts,
    states,
    reads,
    dv,
    dbeta,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """Diag(β) Z, dV and dβ."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(slopes.shape[1], C), C) + tkc.program_id(1)
    k, v, g, beta, slopes, rules, reads, dv, dbeta = (
        sequence(x, starts, z) for x in (k, v, g, beta, slopes, rules, reads, dv, dbeta)
    )
    if t < slopes.shape[0]:
        read, dots = tkc.zeros((C, K)), tkc.zeros((C,))
        each = tkc.load(beta, (t, head), (C, None)).to(tkc.float32)
        for column in tkc.range(0, slopes.shape[2], V):
            at, shape = (t, head, column), (C, None, V)
            before, slope = (
                tkc.load(states[slot, head], (column, 0), (V, K)),
                tkc.load(slopes, at, shape),
            )
            read, slope = tkc.dot(slope, before, read), slope.to(tkc.float32)
            dots = dots + tkc.sum(slope * tkc.load(v, at, shape).to(tkc.float32), axis=1)
            tkc.store(dv, at, (slope * each[:, None]).to(dv.dtype)[:, None, :])
        total, _ = decay_of_chunk(g, t, head, C, K)
        of_keys, _ = _lengths_of(lengths, starts, z, t, head, C)
        keys = scaled(tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K)), of_keys)
        decays = _with_short(total, g, t, head, keys.dtype, C, K)
        rule = tkc.load(rules, (t, head, 0), (C, None, C))
        read = _pulled(times(read, power_of_two(total)), [(rule, keys)], decays, C, False)
        dots = dots - tkc.sum(keys.to(tkc.float32) * read, axis=1)
        tkc.store(dbeta, (t, head), dots[:, None])
        tkc.store(reads, (t, head, 0), (read * -each[:, None]).to(reads.dtype)[:, None, :])


def _inner_of(inner, head, total, K):
    """The inner product of the states before a chunk and their gradients behind it."""
    return tkc.load(inner, (head, 0), (None, K)) if has_channels(total) else inner[head, 0]


@tkc.jit
def _key_gradients(
    q,
    k,
    g,
    beta,
    lengths,
    fresh,
    starts,
    after,
    inner,
    asked_by,
    rules,
    reads,
    dk,
    dg,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """dK and dg."""
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(fresh.shape[1], C), C) + tkc.program_id(1)
    q, k, g, beta, fresh, asked_by, rules, reads, dk, dg = (
        sequence(x, starts, z) for x in (q, k, g, beta, fresh, asked_by, rules, reads, dk, dg)
    )
    if t < fresh.shape[0]:
        written, at = tkc.zeros((C, K)), (t, head, 0)
        for column in tkc.range(0, fresh.shape[2], V):
            behind = tkc.load(after[slot, head], (column, 0), (V, K))
            new = tkc.load(fresh, (t, head, column), (C, None, V))
            written = tkc.dot(new, behind, written)
        total, end = decay_of_chunk(g, t, head, C, K)
        of_keys, of_queries = _lengths_of(lengths, starts, z, t, head, C)
        keys = scaled(tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K)), of_keys)
        decays = _with_short(total, g, t, head, keys.dtype, C, K)
        written = times(written, from_end(total, end))
        ends = tkc.sum(keys.to(tkc.float32) * written, axis=0)
        rows = scaled(tkc.load(q, (t, head // GROUPS[0], 0), (C, None, K)), of_queries)
        asked = tkc.load(asked_by, at, (C, None, C))
        pulls = [(asked, rows)]
        if beta is not None:
            each = tkc.load(beta, (t, head), (C, None)).to(tkc.float32)
            rule = tkc.load(rules, at, (C, None, C))
            pulls.append((rule, scaled(keys, -each)))
        written = _pulled(written, pulls, decays, C, True)
        slope = -written
        if reads is not None:
            read = tkc.load(reads, at, (C, None, K)).to(tkc.float32)
            slope, written = slope + read, written + read
        if dg is not None:
            if not has_channels(total):
                ends = tkc.sum(ends)
            ends = ends + _inner_of(inner[slot], head, total, K) * tkc.exp2(end)
            _finish_gate(dg, t, head, slope * keys.to(tkc.float32), ends, C, K)
        found = _of_unnormalized(written, keys, of_keys)
        tkc.store(dk, at, found.to(dk.dtype)[:, None, :])


class Recurrence(NamedTuple):
    """Arguments of a call, contiguous. g: [batch, T, heads], [batch, T, heads, K] or None; beta:
    [batch, T, heads], or None without the rule."""

    q: Array
    k: Array
    v: Array
    g: Array | None
    beta: Array | None
    starts: Array | None
    max_seqlen: int | None
    scale: float
    normalize: bool = False
    positions: int | None = None  # of a chunk, where it is not `chunk` that chooses
    columns: int | None = None  # of V of a program, at most, where it is not `block` that chooses

    @property
    def sequences(self) -> int:
        return self.v.shape[0] if self.starts is None else self.starts.shape[0] - 1

    @property
    def groups(self) -> tuple[int, int]:
        """Heads that share one of q and of k."""
        return self.v.shape[2] // self.q.shape[2], self.v.shape[2] // self.k.shape[2]

    @property
    def channels(self) -> bool:
        """Whether the decay has a number of each channel."""
        return self.g is not None and len(self.g.shape) == 4

    @property
    def chunk(self) -> int:
        """Positions."""
        return CHUNK if self.positions is None else self.positions

    @property
    def common(self) -> dict:
        """Compile-time values and options of every kernel; each holds several tiles of keys."""
        width = max(16, power(self.q.shape[3]))
        return {"GROUPS": self.groups, "C": self.chunk, "K": width, "num_warps": 8}

    @property
    def block(self) -> int:
        """Columns of V of a program."""
        widest = self.columns
        if self.common["K"] > 128:
            widest = BLOCK // 2
        elif widest is None:
            # where there are programs enough for a GPU, two warpgroups share what they copy
            blocks = self.sequences * self.v.shape[2] * tkc.cdiv(self.v.shape[3], BLOCK)
            widest = 2 * BLOCK if 2 * blocks > PROGRAMS else BLOCK
        return max(16, min(widest, power(self.v.shape[3])))

    @property
    def part(self) -> int:
        """Columns of V that a program takes at once which goes through all of them."""
        return min(BLOCK, self.block)

    @property
    def blocks(self) -> int:
        """Programs that share a head's columns."""
        return tkc.cdiv(self.v.shape[3], self.block)

    @property
    def chunks(self) -> int:
        """Of the longest sequence, at most."""
        return max(1, tkc.cdiv(self.max_seqlen or self.v.shape[1], self.chunk))

    @property
    def slots(self) -> int:
        """Of chunks: see chunks.first_slot."""
        batch, length = self.v.shape[:2]
        if self.starts is None:
            return batch * tkc.cdiv(length, self.chunk)
        return length // self.chunk + self.sequences

    def states(self) -> Array:
        """Room for a transposed state a chunk, [slots, heads, V, K]."""
        return empty(self.v, (self.slots, self.v.shape[2], self.v.shape[3], self.q.shape[3]))


class Prepared(NamedTuple):
    """What does not depend on states; what a walk asks, reads and writes with, and decays by.

    rates: β, [batch, heads, T]. factors, [batch, heads, 3, T], or None where all are 1: what rows
    are multiplied by of K as it is read, of Q (with the scale), and of K as it is written. ends:
    base-2 logarithms of each chunk's decay, [slots, heads] or [slots, heads, K]. A state that
    changes by one rank more (rwkv.py) is read with k, and what is solved for is written with
    `erasing`; asked is then what a chunk's queries ask of it, and read what k reads of values.
    """

    lengths: Array | None
    scores: Array
    inverses: Array | None
    q: Array
    k: Array
    writing: Array | None
    rates: Array | None
    factors: Array | None
    ends: Array | None
    groups: tuple[int, int]
    erasing: Array | None = None
    asked: Array | None = None
    read: Array | None = None


def _prepare(n: Recurrence) -> Prepared:
    row = tuple(n.v.shape[:3])
    lengths = empty(n.v, (2, *row), "float32") if n.normalize else None
    scores = empty(n.v, (*row, n.chunk))
    lower = inverses = rates = factors = ends = None
    raised: list[Array | None] = [None] * 3
    groups = n.groups
    # positions in whole units of 16 bytes, as tensor maps take them
    of_heads, positions = (row[0], row[2]), tkc.cdiv(row[1], 4) * 4
    if n.beta is not None:
        lower, inverses = empty(n.v, scores.shape, "float32"), empty(n.v, scores.shape)
        rates = empty(n.v, (*of_heads, positions), "float32")
    if n.normalize or (n.g is not None and not n.channels):
        factors = empty(n.v, (*of_heads, 3, positions), "float32")
    if n.g is not None:
        ends = empty(n.v, (n.slots, row[2], *n.g.shape[3:]), "float32")
    if n.channels:
        raised, groups = [empty(n.v, (*row, n.q.shape[3])) for _ in range(3)], (1, 1)
    grid = row[2], n.chunks, n.sequences
    given = n.q, n.k, n.g, n.beta, n.starts, lengths, scores, lower
    options = {**n.common, "WIDTH": n.common["K"]}
    if n.channels:  # tiles of few channels: a warp for eight positions
        options |= {"WIDTH": min(n.common["K"], CHANNELS), "num_warps": n.chunk // 8}
    _pairs[grid](*given, *raised, rates, factors, ends, n.scale, **options)
    if lower is not None:
        inverted(lower, inverses, n.starts, grid)
    asking, reading, writing = raised
    q, k = (n.q, n.k) if writing is None else (asking, reading)
    return Prepared(lengths, scores, inverses, q, k, writing, rates, factors, ends, groups)


def walked(n: Recurrence, p: Prepared, *results: Array | None) -> None:
    """results: initial state, out, final state, states of chunks, what the inverses solve for."""
    initial, *written = results
    _walk[n.v.shape[2] * n.blocks, n.sequences](
        p.q,
        p.k,
        p.writing,
        p.erasing,
        n.v,
        p.ends,
        p.rates,
        p.factors,
        p.scores,
        p.asked,
        p.read,
        p.inverses,
        n.starts,
        initial,
        *written,
        n.scale,
        V=n.block,
        BLOCKS=n.blocks,
        **{**n.common, "GROUPS": p.groups},
    )


def walked_back(
    n: Recurrence,
    p: Prepared,
    grad: Array,
    last: Array | None,
    after: Array,
    slopes: Array,
    first: Array | None,
    dv: Array | None = None,
) -> None:
    """Writes after: the gradient of the state after each chunk; slopes: Y; first: the gradient of
    the initial state; dv, with p.read, where Y is not of V but of what is read. It runs beside what
    was launched before, which is `walked`: neither walk has programs enough for a GPU."""
    _walk_back[n.v.shape[2] * n.blocks, n.sequences](
        grad,
        p.q,
        p.k,
        p.writing,
        p.erasing,
        p.ends,
        p.rates,
        p.factors,
        p.scores,
        p.asked,
        p.read,
        p.inverses,
        n.starts,
        last,
        after,
        slopes,
        dv,
        first,
        n.scale,
        V=n.block,
        BLOCKS=n.blocks,
        beside=True,
        **{**n.common, "GROUPS": p.groups},
    )


def inner_of_states(n: Recurrence, states: Array, after: Array) -> Array:
    """Of the states before each chunk and their gradients behind it, [slots, heads, 1 or K]."""
    slots, heads, columns, width = states.shape
    if not n.channels:
        return inner_products(states, after, (slots, heads, 1))
    flats = [x.reshape((slots * heads, columns, width)) for x in (states, after)]
    return inner_products_of_columns(*flats).reshape((slots, heads, width))


def forward(n: Recurrence, initial: Array | None, out: Array, final: Array) -> None:
    """out [batch, T, heads, V] and the last state."""
    if n.sequences and n.v.shape[2] and n.v.shape[3]:
        walked(n, _prepare(n), initial, out, final, None, None)


class Gradients(NamedTuple):
    """Where they go; None: not wanted. dq and dk have the shapes of q and k."""

    dq: Array
    dk: Array
    dv: Array
    dg: Array | None
    dbeta: Array | None
    first: Array | None


def backward(
    n: Recurrence, grad: Array, initial: Array | None, last: Array | None, to: Gradients
) -> None:
    """last: the gradient of the last state."""
    heads = n.v.shape[2]
    if not n.sequences or not heads or not n.v.shape[3]:
        return
    if n.channels:
        n = n._replace(positions=CHUNK // 2)  # tiles of decays, keys and gradients at once
    p, states, after = _prepare(n), n.states(), n.states()
    # without the rule U is V, and Y is dV
    fresh, slopes = (n.v, to.dv) if n.beta is None else (empty(n.v), empty(n.v))
    walked(n, p, initial, None, None, states, None if n.beta is None else fresh)
    walked_back(n, p, grad, last, after, slopes, to.first)
    dq, dk = by_head(to.dq, heads), by_head(to.dk, heads)
    row = (*n.v.shape[:3], n.chunk)
    asked, rules = empty(n.v, row), None if n.beta is None else empty(n.v, row)
    grid, lengths = (heads, n.chunks, n.sequences), p.lengths
    _query_gradients[grid](
        grad,
        n.q,
        n.k,
        n.g,
        lengths,
        fresh,
        slopes,
        n.starts,
        states,
        dq,
        to.dg,
        asked,
        rules,
        n.scale,
        V=n.part,
        **n.common,
    )
    reads = None
    if n.beta is not None:
        reads = empty(n.v, (*n.v.shape[:3], n.q.shape[3]))
        _read_gradients[grid](
            n.k,
            n.v,
            n.g,
            n.beta,
            lengths,
            slopes,
            rules,
            n.starts,
            states,
            reads,
            to.dv,
            to.dbeta,
            V=n.part,
            **n.common,
        )
    _key_gradients[grid](
        n.q,
        n.k,
        n.g,
        n.beta,
        lengths,
        fresh,
        n.starts,
        after,
        None if n.g is None else inner_of_states(n, states, after),
        asked,
        rules,
        reads,
        dk,
        to.dg,
        V=n.part,
        **n.common,
    )
    add_heads(dq, to.dq)
    add_heads(dk, to.dk)
