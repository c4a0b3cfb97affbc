"""The gradients of linear attention with a decay a head.

With D_ij = exp(G_i - G_j) for j <= i, else 0, E = exp G, F = exp(G_last - G), S the state before a
chunk and dS the gradient of the one behind it, in a chunk

    dQ  = scale · (E∘(dO Sᵀ) + ((dO Vᵀ)∘D Diag(w)) K),    dV = Diag(w) dU,  dw = V · dU
    dU  = F∘(K dS) + scale · ((Q Kᵀ)∘D)ᵀ dO,    dS' = exp(G_last) dS + scale · (E∘Q)ᵀ dO
    dK  = Diag(w F) V dSᵀ + scale · ((dO Vᵀ)∘D Diag(w))ᵀ Q

Two walks store S and dS of all chunks, in the element type. All chunks are then independent: a
program takes one of them, and several heads that share q and k, whose gradients it adds up. Where
that gives too few programs each adds up a part of them, and `add_heads` the parts.

The decay of position t multiplies all that goes from before it to it or behind it, so that with
p_ij = scale · D_ij w_j (dO_i · v_j) (q_i · k_j) and sums within the chunk,

    dg_t = exp(G_last) <S, dS> + Σ_{i>=t} x_i + Σ_{j<t} y_j
    x_i  = scale · E_i q_i · (S dO_i) + Σ_j p_ij - Σ_j p_ji,      y_j = w_j F_j k_j · (dS v_j)

A sum of q · dQ - k · dK from the sequence's end is the same, but for rounding, which adds up there.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import tkc
from tkc.kernels.arrays import Array, empty
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.chunks import (
    CHUNK,
    across,
    add_heads,
    decay_of_chunk,
    extent,
    first_slot,
    from_end,
    into_state,
    power_of_two,
    row_weights,
    scaled,
    seen_scores,
    sequence,
    times,
)
from tkc.kernels.segments import Decays, Walk, begun, walk_of

BLOCK = 64  # columns of V that a program takes at once


@tkc.jit
def _keep_states(
    k,
    v,
    g,
    rate,
    weight,
    starts,
    initial,
    states,
    final,
    scale,
    other,
    inner,
    REVERSE: tkc.constexpr,
    SEGMENTS: tkc.constexpr,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    """states: the transposed state before each chunk, [slots, heads, V, K]. inner, if wanted: its
    inner product with `other` in each block of columns, [slots, heads, blocks]."""
    head, block = tkc.program_id(0) // BLOCKS, tkc.program_id(0) % BLOCKS
    column = block * V
    segment, z = tkc.program_id(1), tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(k.shape[1], C), C)
    k, v, g, weight = (sequence(x, starts, z) for x in (k, v, g, weight))
    length = k.shape[0]
    first, chunks = extent(length, segment, SEGMENTS, C)
    state = tkc.zeros((V, K))
    if initial is not None:
        given = initial[z, head] if SEGMENTS == 1 else initial[z, head, segment]
        state = tkc.load(given, (0, column), (K, V)).to(tkc.float32).T
    for chunk in tkc.range(0, chunks):
        t = first + (chunks - 1 - chunk if REVERSE else chunk) * C
        keys = tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K))
        values = tkc.load(v, (t, head // GROUPS[2], column), (C, None, V)).T
        if inner is not None:
            beside = tkc.load(other[slot + t // C, head], (column, 0), (V, K))
            product = tkc.sum(state * beside.to(tkc.float32))
            tkc.store(inner[slot + t // C, head], (block,), product + tkc.zeros((1,)))
        tkc.store(states[slot + t // C, head], (column, 0), state.to(states.dtype))
        total, end = decay_of_chunk(g, rate, t, head, length, C)
        each = None if REVERSE else row_weights(weight, t, head, C)
        factor = into_state(total, end, each, REVERSE)
        state = times(state, power_of_two(end))
        state = tkc.dot(scaled(values, across(factor), scale), keys, state)
    if final is not None:
        tkc.store(final[z, head], (0, column), state.to(final.dtype).T)


@tkc.jit
def _query_gradients(
    grad,
    q,
    k,
    v,
    g,
    rate,
    weight,
    starts,
    states,
    dq,
    sums,
    scale,
    members,
    GROUPS: tkc.constexpr,
    WHOLE: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """dQ of so many heads, and x of each. WHOLE: a tile has all of V's columns, and it is a
    loop of heads that copies ahead."""
    first, t, z = tkc.program_id(0) * members, tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(grad.shape[1], C), C) + tkc.program_id(1)
    grad, q, k, v, g, weight, dq, sums = (
        sequence(x, starts, z) for x in (grad, q, k, v, g, weight, dq, sums)
    )
    if t < grad.shape[0]:
        queries = tkc.load(q, (t, first // GROUPS[0], 0), (C, None, K))
        keys = tkc.load(k, (t, first // GROUPS[1], 0), (C, None, K))
        found = tkc.zeros((C, K))
        for member in tkc.range(0, members):
            head = first + member
            total, _ = decay_of_chunk(g, rate, t, head, grad.shape[0], C)
            each, up = row_weights(weight, t, head, C), power_of_two(total)
            asked, along, shape = tkc.zeros((C, C)), tkc.zeros((C,)), (C, None, V)
            for column in tkc.range(0, V if WHOLE else grad.shape[2], V):
                grads, values = (tkc.load(x, (t, head, column), shape) for x in (grad, v))
                before = tkc.load(states[slot, head], (column, 0), (V, K))
                asked, risen = tkc.dot(grads, values.T, asked), scaled(grads, up)
                found = tkc.dot(risen, before, found)
                if sums is not None:
                    read = tkc.dot(queries, before.T)
                    along = along + tkc.sum(read * risen.to(tkc.float32), axis=1)
            asked = times(seen_scores(asked, total, False, C), across(each))
            if sums is not None:
                alike = tkc.dot(queries, keys.T)  # again: registers do not hold it
                pairs = asked * alike
                along = along + tkc.sum(pairs, axis=1) - tkc.sum(pairs, axis=0)
                tkc.store(sums, (t, head), (along * scale)[:, None])
            found = tkc.dot(asked.to(keys.dtype), keys, found)
        tkc.store(dq, (t, first // members, 0), (found * scale).to(dq.dtype)[:, None, :])


def _tiles(grad, v, states, t, head, column, C, V, K):
    """dO, V and the transposed state of a block of columns."""
    grads, values = (tkc.load(x, (t, head, column), (C, None, V)) for x in (grad, v))
    return grads, values, tkc.load(states[head], (column, 0), (V, K))


def _added_keys(asked, found, tiles, down, each):
    grads, values, behind = tiles
    asked = tkc.dot(values, grads.T, asked)
    return asked, tkc.dot(scaled(values, down, each), behind, found)


def _value_gradients(keys, scores, tiles, down):
    """dU, V · dU, and what the last has of the states."""
    grads, values, behind = tiles
    of_states = times(tkc.dot(keys, behind.T), down)
    slope, values = tkc.dot(scores, grads, of_states), values.to(tkc.float32)
    return slope, tkc.sum(slope * values, axis=1), tkc.sum(of_states * values, axis=1)


def _store_gate(dg, sums, inner, t, head, writes, end, C, BLOCKS):
    """dg of a chunk. sums: x; writes: y; inner: of blocks of S and dS."""
    across_chunk = 0.0
    for block in tkc.static_range(BLOCKS):
        across_chunk = across_chunk + inner[head, block]
    across_chunk = across_chunk * tkc.exp2(end)
    behind = tkc.cumsum(tkc.load(sums, (t, head), (C, None)), reverse=True)
    before = tkc.cumsum(writes) - writes
    tkc.store(dg, (t, head), (behind + before + across_chunk)[:, None])


def _store_rows(x, t, head, column, tile):
    tkc.store(x, (t, head, column), tile.to(x.dtype)[:, None, :])


@tkc.jit
def _key_gradients(
    grad,
    q,
    k,
    v,
    g,
    rate,
    weight,
    starts,
    states,
    sums,
    inner,
    dk,
    dv,
    dw,
    dg,
    scale,
    members,
    GROUPS: tkc.constexpr,
    WHOLE: tkc.constexpr,
    BLOCKS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """dK of so many heads, and dV, dw and dg of each. Tiles have a row for each key."""
    first, t, z = tkc.program_id(0) * members, tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(grad.shape[1], C), C) + tkc.program_id(1)
    grad, q, k, v, g, weight, sums, dk, dv, dw, dg = (
        sequence(x, starts, z) for x in (grad, q, k, v, g, weight, sums, dk, dv, dw, dg)
    )
    if t < grad.shape[0]:
        queries = tkc.load(q, (t, first // GROUPS[0], 0), (C, None, K))
        keys = tkc.load(k, (t, first // GROUPS[1], 0), (C, None, K))
        found = tkc.zeros((C, K))
        for member in tkc.range(0, members):
            head = first + member
            total, end = decay_of_chunk(g, rate, t, head, grad.shape[0], C)
            each, down = row_weights(weight, t, head, C), from_end(total, end)
            asked, along, writes = tkc.zeros((C, C)), tkc.zeros((C,)), tkc.zeros((C,))
            if WHOLE:
                tiles = _tiles(grad, v, states[slot], t, head, 0, C, V, K)
                asked, found = _added_keys(asked, found, tiles, down, each)
            else:
                for column in tkc.range(0, grad.shape[2], V):
                    tiles = _tiles(grad, v, states[slot], t, head, column, C, V, K)
                    asked, found = _added_keys(asked, found, tiles, down, each)
            asked = times(seen_scores(asked, total, True, C), each, scale)
            found = tkc.dot(asked.to(keys.dtype), queries, found)
            alike = tkc.dot(keys, queries.T) * scale  # again: registers do not hold it
            scores = seen_scores(alike, total, True, C).to(keys.dtype)
            if WHOLE:
                slope, along, writes = _value_gradients(keys, scores, tiles, down)
                _store_rows(dv, t, head, 0, times(slope, each))
            else:
                for column in tkc.range(0, grad.shape[2], V):
                    tiles = _tiles(grad, v, states[slot], t, head, column, C, V, K)
                    slope, *more = _value_gradients(keys, scores, tiles, down)
                    along, writes = along + more[0], writes + more[1]
                    _store_rows(dv, t, head, column, times(slope, each))
            if dw is not None:
                tkc.store(dw, (t, head), along[:, None])
            if dg is not None:
                writes = times(writes, each)
                _store_gate(dg, sums, inner[slot], t, head, writes, end, C, BLOCKS)
        tkc.store(dk, (t, first // members, 0), found.to(dk.dtype)[:, None, :])


class Gradients(NamedTuple):
    """Where they go; None: not wanted. dq and dk have the shapes of q and k."""

    dq: Array
    dk: Array
    dv: Array
    dg: Array | None
    dw: Array | None
    first: Array | None


def _members(n: Walk, chunks: int) -> int:
    """Heads that share q and k of which a program adds up the gradients: as many as leave a GPU
    enough programs."""
    shared = gcd(*n.groups[:2])
    programs = n.heads // shared * chunks * n.sequences
    parts = [p for p in range(1, shared + 1) if shared % p == 0 and p * programs >= 4 * PROGRAMS]
    return shared // min(parts, default=shared)


def _of_parts(x: Array, heads: int, members: int) -> Array:
    """Where the gradient of x goes: to it, or to parts of what heads that share it add up."""
    parts = heads // members
    return x if x.shape[2] == parts else empty(x, (*x.shape[:2], parts, x.shape[3]), "float32")


def backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    decays: Decays,
    initial: Array | None,
    scale: float,
    after: Array | None,
    to: Gradients,
) -> None:
    """after: the gradient of the last state."""
    batch, length, heads, columns = v.shape
    block = max(16, tkc.cdiv(min(BLOCK, columns), 16) * 16)
    n = walk_of(q, k, v, decays.starts, heads, block)
    if not n.sequences or not heads or not columns:
        return
    chunks = max(1, tkc.cdiv(length, CHUNK))
    slots = batch * chunks if decays.starts is None else length // CHUNK + n.sequences
    states = empty(v, (slots, heads, columns, n.width))
    behind, sums, inner = states, None, None  # of g's gradient
    if to.dg is not None:
        behind, sums = empty(v, states.shape), empty(v, to.dg.shape, "float32")
        inner = empty(v, (slots, heads, n.blocks), "float32")
    members = _members(n, chunks)
    common = {"WHOLE": n.blocks == 1 and members > 1, "GROUPS": n.groups[:2], **n.tiles}
    grid, given = (heads // members, chunks, n.sequences), (grad, q, k, v, *decays)
    of_queries, of_keys = (_of_parts(x, heads, members) for x in (to.dq, to.dk))
    walks = {"SEGMENTS": n.segments, "REVERSE": False, **n.options}
    first, _ = begun(n, k, v, decays, initial, None)
    _keep_states[n.grid](k, v, *decays, first, states, None, None, None, None, **walks)
    _query_gradients[grid](*given, states, of_queries, sums, scale, members, **common)
    back = n._replace(groups=(n.groups[1], n.groups[0], 1))
    walks = {"SEGMENTS": n.segments, "REVERSE": True, **back.options}
    last, first = begun(back, q, grad, decays, after, to.first, scale, True)
    beside = None if inner is None else states
    _keep_states[n.grid](q, grad, *decays, last, behind, first, scale, beside, inner, **walks)
    to_of_keys = of_keys, to.dv, to.dw, to.dg, scale, members
    _key_gradients[grid](*given, behind, sums, inner, *to_of_keys, **common, BLOCKS=n.blocks)
    add_heads(of_queries, to.dq)
    add_heads(of_keys, to.dk)
