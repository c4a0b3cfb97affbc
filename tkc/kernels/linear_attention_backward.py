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

Of MANY chunks the sum begins with <S, dS> at their end. One from the sequence's end would be the
same, but for rounding, which adds up.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import tkc
from tkc.kernels.arrays import Array, empty, power
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.chunks import (
    CHUNK,
    across,
    add_heads,
    first_slot,
    power_of_two,
    rows_of,
    scaled,
    seen_scores,
    sequence,
    times,
)
from tkc.kernels.segments import (
    Decays,
    Walk,
    by_positions,
    row_at,
    slots_of,
    spread,
    walk_of_states,
    walk_states,
)

MANY = 4  # chunks whose gradients of decays are summed from one inner product of states


@tkc.jit
def _query_gradients(
    grad,
    q,
    k,
    v,
    totals,
    weights,
    starts,
    states,
    dq,
    reads,
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
    grad, q, k, v, dq = (sequence(x, starts, z) for x in (grad, q, k, v, dq))
    if t < grad.shape[0]:
        queries = tkc.load(q, (t, first // GROUPS[0], 0), (C, None, K))
        keys = tkc.load(k, (t, first // GROUPS[1], 0), (C, None, K))
        found = tkc.zeros((C, K))
        for member in tkc.range(0, members):
            head = first + member
            total, each = (row_at(rows_of(x, starts, z, head), t, C) for x in (totals, weights))
            up = power_of_two(total)
            asked, along, shape = tkc.zeros((C, C)), tkc.zeros((C,)), (C, None, V)
            for column in tkc.range(0, V if WHOLE else grad.shape[2], V):
                grads, values = (tkc.load(x, (t, head, column), shape) for x in (grad, v))
                before = tkc.load(states[slot, head], (column, 0), (V, K))
                asked, risen = tkc.dot(grads, values.T, asked), scaled(grads, up)
                found = tkc.dot(risen, before, found)
                if reads is not None:
                    read = tkc.dot(queries, before.T)
                    along = along + tkc.sum(read * risen.to(tkc.float32), axis=1)
            asked = times(seen_scores(asked, total, False, C), across(each))
            if reads is not None:
                alike = tkc.dot(queries, keys.T)  # again: registers do not hold it
                pairs = asked * alike
                along = along + tkc.sum(pairs, axis=1) - tkc.sum(pairs, axis=0)
                tkc.store(rows_of(reads, starts, z, head), (t,), along * scale)
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


def _store_rows(x, t, head, column, tile):
    tkc.store(x, (t, head, column), tile.to(x.dtype)[:, None, :])


@tkc.jit
def _key_gradients(
    grad,
    q,
    k,
    v,
    totals,
    weights,
    starts,
    ends,
    states,
    dk,
    dv,
    dw,
    writes,
    scale,
    members,
    GROUPS: tkc.constexpr,
    WHOLE: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """dK of so many heads, and dV, dw and y of each. Tiles have a row for each key."""
    first, t, z = tkc.program_id(0) * members, tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(grad.shape[1], C), C) + tkc.program_id(1)
    grad, q, k, v, dk, dv, dw = (sequence(x, starts, z) for x in (grad, q, k, v, dk, dv, dw))
    if t < grad.shape[0]:
        queries = tkc.load(q, (t, first // GROUPS[0], 0), (C, None, K))
        keys = tkc.load(k, (t, first // GROUPS[1], 0), (C, None, K))
        found = tkc.zeros((C, K))
        for member in tkc.range(0, members):
            head = first + member
            total, each = (row_at(rows_of(x, starts, z, head), t, C) for x in (totals, weights))
            down = None if ends is None else tkc.exp2(ends[slot, head] - total)
            asked, along, wrote = tkc.zeros((C, C)), tkc.zeros((C,)), tkc.zeros((C,))
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
                slope, along, wrote = _value_gradients(keys, scores, tiles, down)
                _store_rows(dv, t, head, 0, times(slope, each))
            else:
                for column in tkc.range(0, grad.shape[2], V):
                    tiles = _tiles(grad, v, states[slot], t, head, column, C, V, K)
                    slope, *more = _value_gradients(keys, scores, tiles, down)
                    along, wrote = along + more[0], wrote + more[1]
                    _store_rows(dv, t, head, column, times(slope, each))
            if dw is not None:
                tkc.store(dw, (t, head), along[:, None])
            if writes is not None:
                tkc.store(rows_of(writes, starts, z, head), (t,), times(wrote, each))
        tkc.store(dk, (t, first // members, 0), found.to(dk.dtype)[:, None, :])


@tkc.jit
def _gate_gradient(
    reads,
    writes,
    ends,
    before,
    behind,
    starts,
    dg,
    MANY: tkc.constexpr,
    C: tkc.constexpr,
    R: tkc.constexpr,
    K: tkc.constexpr,
):
    """dg of so many chunks, of whose last one the states are known. reads: x; writes: y."""
    head, first, z = tkc.program_id(0), tkc.program_id(1) * MANY, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(dg.shape[1], C), C)
    reads, writes = (rows_of(x, starts, z, head) for x in (reads, writes))
    dg = sequence(dg, starts, z)
    last = tkc.minimum(first + MANY, tkc.cdiv(dg.shape[0], C)) - 1
    if first <= last:
        product = tkc.zeros((R, K))
        for row in tkc.range(0, before.shape[2], R):
            x, y = (tkc.load(s[slot + last, head], (row, 0), (R, K)) for s in (before, behind))
            product = product + x.to(tkc.float32) * y.to(tkc.float32)
        total = tkc.sum(product) * tkc.exp2(ends[slot + last, head])
        total = total + tkc.sum(tkc.load(writes, (last * C,), (C,)))
        for i in tkc.range(0, last - first + 1):
            t = (last - i) * C
            here = tkc.load(reads, (t,), (C,)) - tkc.load(writes, (t,), (C,))
            tkc.store(dg, (t, head), (tkc.cumsum(here, reverse=True) + total)[:, None])
            total = total + tkc.sum(here)


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
    given: Decays,
    initial: Array | None,
    scale: float,
    after: Array | None,
    to: Gradients,
) -> None:
    """after: the gradient of the last state."""
    batch, length, heads, columns = v.shape
    n = walk_of_states(q, k, v, given.starts, heads)
    if not n.sequences or not heads or not columns:
        return
    chunks, decays = max(1, tkc.cdiv(length, CHUNK)), spread(given, v)
    states = slots_of(batch, length, given.starts), heads, columns, n.width
    before, behind = empty(v, states), empty(v, states)  # written at once
    reads = writes = None  # of g's gradient
    if to.dg is not None:
        reads, writes = (empty(v, by_positions(v), "float32") for _ in range(2))
    members = _members(n, chunks)
    common = {"WHOLE": n.blocks == 1 and members > 1, "GROUPS": n.groups[:2], **n.tiles}
    grid = heads // members, chunks, n.sequences
    arrays = grad, q, k, v, decays.totals, decays.weights, decays.starts
    of_queries, of_keys = (_of_parts(x, heads, members) for x in (to.dq, to.dk))
    back = n._replace(groups=(n.groups[1], n.groups[0], 1))
    walk_states(n, k, v, decays, initial, before, None)
    walk_states(back, q, grad, decays, after, behind, to.first, scale, True)
    _query_gradients[grid](*arrays, before, of_queries, reads, scale, members, **common)
    results = of_keys, to.dv, to.dw, writes
    _key_gradients[grid](*arrays, decays.ends, behind, *results, scale, members, **common)
    add_heads(of_queries, to.dq)
    add_heads(of_keys, to.dk)
    if to.dg is not None:
        grid, rows = (heads, tkc.cdiv(chunks, MANY), n.sequences), max(1, 2048 // n.tiles["K"])
        around = decays.ends, before, behind, given.starts
        _gate_gradient[grid](
            reads, writes, *around, to.dg, MANY=MANY, C=CHUNK, R=power(rows), K=power(n.width)
        )
