"""Walks of the chunks of a head and a block of V's columns, of decays that are numbers of heads.

What decays are, and what goes into the state of each position, is computed for all chunks at once
before them (`spread`), in rows that a walk copies ahead. Where heads and blocks alone give too few
programs, sequences are cut into segments: the state that each makes of nothing comes first, and
their composition in order gives the state before each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import Array, empty, power
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.chunks import (
    CHUNK,
    LOG2E,
    across,
    extent,
    first_slot,
    rows_of,
    scaled,
    sequence,
    sequences_of,
    times,
)

CHUNKS_OF_A_SEGMENT = 8  # at least: its state is written and read
BLOCK = 64  # columns of V of a program that makes states
MULTIPROCESSORS = PROGRAMS // 2  # of the largest GPU
HEADS = 32  # that a program of `_spread` takes at once, at most


class Decays(NamedTuple):
    """What says how the state decays, and how much of a position goes into it."""

    g: Array | None
    rate: Array | None
    weight: Array | None
    starts: Array | None


class Spread(NamedTuple):
    """The same for walks, None where it is 1 for all. Of each position, [batch, heads, positions]:
    totals, the base-2 logarithm G of the decay from the chunk's start to and with it; ups: exp G;
    intos: what its contribution to the state behind the chunk is multiplied by; weights. ends,
    [slots, heads]: base-2 logarithms of whole chunks' decays."""

    totals: Array | None
    ups: Array | None
    intos: Array | None
    weights: Array | None
    ends: Array | None
    starts: Array | None


class Walk(NamedTuple):
    """Extents of a call."""

    sequences: int
    heads: int
    width: int  # K
    columns: int  # V
    segments: int
    block: int  # columns of V of a program
    groups: tuple[int, ...]  # heads that share one of q, k and v

    @property
    def blocks(self) -> int:
        """Programs that share a head's columns."""
        return tkc.cdiv(self.columns, self.block)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Of programs."""
        return self.heads * self.blocks, self.segments, self.sequences

    @property
    def tiles(self) -> dict:
        """Extents of tiles."""
        return {"C": CHUNK, "K": _wide(self.width), "V": self.block}

    @property
    def options(self) -> dict:
        """Compile-time values of every kernel that walks."""
        return {"GROUPS": self.groups, "BLOCKS": self.blocks, **self.tiles}


def _wide(width: int) -> int:
    """K of a program's tiles: wgmma takes the state's rows 64 at a time."""
    return max(16, power(width)) if width <= 64 else tkc.cdiv(width, 64) * 64


def walk_of(q: Array, k: Array, v: Array, starts: Array | None, heads: int, block: int) -> Walk:
    """Of a walk with results of its own; block: columns of V of a program."""
    sequences = sequences_of(v, starts, "linear attention")
    groups = tuple(heads // x.shape[2] for x in (q, k, v))
    n = Walk(sequences, heads, q.shape[3], v.shape[3], 1, block, groups)
    return n._replace(segments=_segments(n, v, PROGRAMS))


def walk_of_states(q: Array, k: Array, v: Array, starts: Array | None, heads: int) -> Walk:
    """Of one that keeps states alone. Segments cost it a second walk: two do not pay."""
    n = walk_of(q, k, v, starts, heads, max(16, tkc.cdiv(min(BLOCK, v.shape[3]), 16) * 16))
    segments = _segments(n, v, MULTIPROCESSORS)
    return n._replace(segments=segments if segments > 2 else 1)


def _segments(n: Walk, v: Array, programs: int) -> int:
    """As many as a GPU has programs for, of no less than CHUNKS_OF_A_SEGMENT chunks each."""
    chunks = tkc.cdiv(v.shape[0] * v.shape[1], max(n.sequences, 1) * CHUNK)
    alone = max(n.sequences * n.heads * n.blocks, 1)
    return max(1, min(programs // alone, chunks // CHUNKS_OF_A_SEGMENT))


def slots_of(batch: int, length: int, starts: Array | None) -> int:
    """Rows of an array of all chunks: see chunks.first_slot."""
    if starts is None:
        return batch * max(1, tkc.cdiv(length, CHUNK))
    return length // CHUNK + starts.shape[0] - 1


@tkc.jit
def _spread(
    g,
    rate,
    weight,
    starts,
    totals,
    ups,
    intos,
    weights,
    ends,
    length,
    C: tkc.constexpr,
    H: tkc.constexpr,
):
    """length: of every sequence, where they are not ragged."""
    head, t, z = tkc.program_id(0) * H, tkc.program_id(1) * C, tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(length, C), C) + tkc.program_id(1)
    if starts is not None:
        length = starts[z + 1] - starts[z]
    g, weight = (sequence(x, starts, z) for x in (g, weight))
    totals, ups, intos, weights = (_of_heads(x, starts, z) for x in (totals, ups, intos, weights))
    if t < length:
        each = into = None
        if weight is not None:
            each = into = tkc.load(weight, (t, head), (C, H)).to(tkc.float32)
            _put(weights, head, t, each)
        if totals is not None:
            steps = _steps(g, rate, t, head, length, C, H)
            total, end = tkc.cumsum(steps), tkc.sum(steps, axis=0)
            _put(totals, head, t, total)
            _put(ups, head, t, tkc.exp2(total))
            tkc.store(ends[slot], (head,), end)
            into = times(tkc.exp2(end[None, :] - total), each)
        _put(intos, head, t, into)


def _put(x, head, t, rows):
    """Rows of positions, as an array [heads, positions] has them."""
    tkc.store(x, (head, t), rows.T)


def _steps(g, rate, t, head, length, C, H):
    """Base-2 logarithms of the decays of positions and heads."""
    if g is not None:
        return tkc.load(g, (t, head), (C, H)).to(tkc.float32) * LOG2E
    each = tkc.load(rate, (head,), (H,)).to(tkc.float32) * LOG2E
    return tkc.where(tkc.arange(C)[:, None] < length - t, each[None, :], 0.0)


def _of_heads(x, starts, z):
    """What an array [batch, heads, positions] has of a sequence."""
    if x is None:
        return None
    return x[z] if starts is None else x[0][:, starts[z] : starts[z + 1]]


def spread(decays: Decays, like: Array) -> Spread:
    """Launches what computes it. like: [batch, T, heads, …]."""
    batch, length, heads = like.shape[:3]
    g, rate, weight, starts = decays
    totals = ups = intos = weights = ends = None
    rows = by_positions(like)
    if g is not None or rate is not None:
        totals, ups = empty(like, rows, "float32"), empty(like, rows, "float32")
        ends = empty(like, (slots_of(batch, length, starts), heads), "float32")
    if weight is not None:
        weights = empty(like, rows, "float32")
    if totals is not None or weights is not None:
        intos = empty(like, rows, "float32")
        sequences = batch if starts is None else starts.shape[0] - 1
        block = min(HEADS, power(heads))
        grid = tkc.cdiv(heads, block), max(1, tkc.cdiv(length, CHUNK)), sequences
        _spread[grid](*decays, totals, ups, intos, weights, ends, length, C=CHUNK, H=block)
    return Spread(totals, ups, intos, weights, ends, starts)


def by_positions(like: Array) -> tuple[int, int, int]:
    """[batch, heads, positions] of like's, in whole units of 16 bytes, as tensor maps take them."""
    return like.shape[0], like.shape[2], tkc.cdiv(like.shape[1], 4) * 4


def row_at(rows: Any, t: Any, C: Any) -> Any:
    """Of a chunk's positions, what rows_of gives of an array of `Spread`."""
    return None if rows is None else tkc.load(rows, (t,), (C,))


@tkc.jit
def _walk_states(
    k,
    v,
    factors,
    ends,
    starts,
    initial,
    kept,
    last,
    shares,
    scale,
    REVERSE: tkc.constexpr,
    SEGMENTS: tkc.constexpr,
    GROUPS: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    """factors: of each position's contribution; kept: the transposed state before each chunk,
    [slots, heads, V, K]; last: the one behind the segment; shares: what the segment leaves of a
    state. Each if wanted."""
    tkc.launch_dependents()  # backward, the other direction's walk runs beside this one
    head, column = tkc.program_id(0) // BLOCKS, tkc.program_id(0) % BLOCKS * V
    segment, z = tkc.program_id(1), tkc.program_id(2)
    slot = first_slot(starts, z, tkc.cdiv(k.shape[1], C), C)
    k, v = (sequence(x, starts, z) for x in (k, v))
    factors = rows_of(factors, starts, z, head)
    first, chunks = extent(k.shape[0], segment, SEGMENTS, C)
    state, decay = tkc.zeros((V, K)), 0.0
    if initial is not None:
        state = begun(initial, z, head, segment, column, K, V)
    for chunk in tkc.range(0, chunks):
        t = first + (chunks - 1 - chunk if REVERSE else chunk) * C
        keys = tkc.load(k, (t, head // GROUPS[1], 0), (C, None, K))
        values = tkc.load(v, (t, head // GROUPS[2], column), (C, None, V)).T
        if kept is not None:
            tkc.store(kept[slot + t // C, head], (column, 0), state.to(kept.dtype))
        if ends is not None:
            end = ends[slot + t // C, head]
            state, decay = state * tkc.exp2(end), decay + end
        state = tkc.dot(scaled(values, across(row_at(factors, t, C)), scale), keys, state)
    if last is not None and len(last.shape) == 4:
        tkc.store(last[z, head], (0, column), state.to(last.dtype).T)
    elif last is not None:
        tkc.store(last[z, head, segment], (column, 0), state)
    if shares is not None and column == 0:
        tkc.store(shares[z, head], (segment,), tkc.exp2(decay + tkc.zeros((1,))))


def begun(initial: Any, z: Any, head: Any, segment: Any, column: Any, K: Any, V: Any) -> Any:
    """The transposed state that a walk begins with: of a caller's, or of `walk_states`."""
    if len(initial.shape) == 4:
        return tkc.load(initial[z, head], (0, column), (K, V)).to(tkc.float32).T
    return tkc.load(initial[z, head, segment], (column, 0), (V, K))


@tkc.jit
def _compose_states(
    states,
    shares,
    initial,
    final,
    REVERSE: tkc.constexpr,
    N: tkc.constexpr,
    K: tkc.constexpr,
):
    """Each segment's state becomes the one before it."""
    at, head, z = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2)
    state = tkc.zeros((N, K))
    if initial is not None:
        state = tkc.load(initial[z, head], (0, at), (K, N)).to(tkc.float32).T
    for i in tkc.range(0, states.shape[2]):
        segment = states.shape[2] - 1 - i if REVERSE else i
        local = tkc.load(states[z, head, segment], (at, 0), (N, K))
        tkc.store(states[z, head, segment], (at, 0), state)
        state = state * shares[z, head, segment] + local
    if final is not None:
        tkc.store(final[z, head], (0, at), state.to(final.dtype).T)


def walk_states(
    n: Walk,
    k: Array,
    v: Array,
    decays: Spread,
    initial: Array | None,
    kept: Array | None,
    final: Array | None,
    scale: float | None = None,
    reverse: bool = False,
) -> tuple[Array | None, Array | None]:
    """kept: where the transposed state before each chunk goes. Without it nothing is walked but
    what segments need. scale: what a position adds is multiplied by. reverse: from the end on, and
    beside what was launched before, which is the other walk: without segments neither has programs
    enough for a GPU. Returns the states that segments begin with, and where who walks them stores
    the last one."""
    given = decays.ups if reverse else decays.intos, decays.ends, decays.starts
    options = {"REVERSE": reverse, "SEGMENTS": n.segments}
    if n.segments > 1:
        states = empty(k, (n.sequences, n.heads, n.segments, n.columns, n.width), "float32")
        shares = empty(k, states.shape[:3], "float32")
        local = n._replace(block=_widest(n))
        _walk_states[local.grid](
            k, v, *given, None, None, states, shares, scale, **options, **local.options
        )
        rows = max(1, 2048 // power(n.width))
        _compose_states[tkc.cdiv(n.columns, rows), n.heads, n.sequences](
            states, shares, initial, final, REVERSE=reverse, N=rows, K=power(n.width)
        )
        initial, final = states, None
    if kept is not None:
        _walk_states[n.grid](
            *(k, v, *given, initial, kept, final, None, scale),
            beside=reverse and n.segments == 1,
            **options,
            **n.options,
        )
    return initial, final


def _widest(n: Walk) -> int:
    """Columns of V of a program that makes a segment's state: two warpgroups share what they copy
    where nearly all multiprocessors have a program then."""
    programs = n.sequences * n.heads * n.segments * tkc.cdiv(n.columns, 2 * BLOCK)
    wide = n.width <= 2 * BLOCK <= n.columns and programs >= 0.9 * MULTIPROCESSORS
    return 2 * BLOCK if wide else n.block
