"""Walks of the chunks of a head and a block of V's columns, of decays that are numbers of heads.

Where heads and blocks alone give too few programs, sequences are cut into segments: the state that
each makes of nothing comes first, and their composition in order gives the state before each.
"""

from __future__ import annotations

from typing import NamedTuple

import tkc
from tkc.kernels.arrays import Array, empty, power
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.chunks import (
    CHUNK,
    decay_of_chunk,
    extent,
    into_state,
    row_weights,
    scaled_rows,
    sequence,
    sequences_of,
)

CHUNKS_OF_A_SEGMENT = 8  # at least: its state is written and read


class Decays(NamedTuple):
    """What says how the state decays, and how much of a position goes into it."""

    g: Array | None
    rate: Array | None
    weight: Array | None
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
    """block: columns of V of a program."""
    batch, length = q.shape[:2]
    sequences = sequences_of(v, starts, "linear attention")
    chunks = tkc.cdiv(batch * length, max(sequences, 1) * CHUNK)
    programs = sequences * heads * tkc.cdiv(v.shape[3], block)
    segments = max(1, min(PROGRAMS // max(programs, 1), chunks // CHUNKS_OF_A_SEGMENT))
    groups = tuple(heads // x.shape[2] for x in (q, k, v))
    return Walk(sequences, heads, q.shape[3], v.shape[3], segments, block, groups)


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
    scale,
    REVERSE: tkc.constexpr,
    N: tkc.constexpr,
    V: tkc.constexpr,
):
    """Each segment's state, without the scale, becomes the one before it, with it."""
    at, head, z = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2)
    state = tkc.zeros((N, V))
    if initial is not None:
        state = tkc.load(initial[z, head], (at, 0), (N, V)).to(tkc.float32)
    for i in tkc.range(0, states.shape[2]):
        segment = states.shape[2] - 1 - i if REVERSE else i
        local = tkc.load(states[z, head, segment], (at, 0), (N, V))
        tkc.store(states[z, head, segment], (at, 0), state)
        state = state * decays[z, head, segment] + local * scale
    if final is not None:
        tkc.store(final[z, head], (at, 0), state.to(final.dtype))


def begun(
    n: Walk,
    k: Array,
    v: Array,
    decays: Decays,
    initial: Array | None,
    final: Array | None,
    scale: float = 1.0,
    reverse: bool = False,
) -> tuple[Array | None, Array | None]:
    """The states that segments begin with, and where walks store the last one. scale: what a
    position adds to the state is multiplied by."""
    if n.segments == 1:
        return initial, final
    states = empty(k, (n.sequences, n.heads, n.segments, n.width, n.columns), "float32")
    shares = empty(k, states.shape[:3], "float32")
    _segment_states[n.grid](k, v, *decays, states, shares, REVERSE=reverse, **n.options)
    rows = max(1, 2048 // power(n.columns))
    _compose_states[tkc.cdiv(n.width, rows), n.heads, n.sequences](
        states, shares, initial, final, scale, REVERSE=reverse, N=rows, V=power(n.columns)
    )
    return states, None
