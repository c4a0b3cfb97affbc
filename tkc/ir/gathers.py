"""How threads get the elements that a gather names: from registers of their own or of other lanes,
where the axis lies within a warp, else from shared memory.

A place names a lane and a register of it by the digits of the layout that lie along the axis. What
is not along it, reader and holder have in common: the lane's other bits, and the register's digits.

    lanes_of_places(op)  which registers each register of the result may come from; None: memory
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tkc.ir import tile
from tkc.ir.known_elements import in_threads, inside, known_elements
from tkc.ir.layout import Layout
from tkc.ir.types import bits
from tkc.ir.values import tile_type

Bit = tuple[int, int]  # stride along the axis, weight in the lane's number


@dataclass(frozen=True)
class Candidate:
    """A register that an element may be in. part: what the register adds along the axis. is_own:
    whoever wants this register's, wants its own lane's.
    """

    register: int
    part: int
    is_own: bool


@dataclass(frozen=True)
class LaneGather:
    """Of each register of the result the candidates; the bits of a place that name its lane, and
    those that name its register.
    """

    rows: tuple[tuple[Candidate, ...], ...]
    lane_bits: tuple[Bit, ...]
    register_bits: tuple[int, ...]

    @property
    def shuffles(self) -> int:
        """How many shuffles fetch 32-bit elements."""
        return sum(not c.is_own for row in self.rows for c in row)


def lanes_of_places(op: tile.Gather) -> LaneGather | None:
    """The gather by shuffles, if threads of other warps hold nothing that is wanted, and shuffles
    take no more turns than memory does: one for a register that is written, and some for one that
    is read at any places.
    """
    source, layout = (tile_type(v).register_layout for v in (op.arg, op.result))
    if source is None or layout is None:
        return None
    found = _candidates(op, source, layout, op.axis.value.data)
    turns = source.num_registers + RANDOM_READ * layout.num_registers
    words = max(1, bits(tile_type(op.arg).element) // 32)
    return found if found is not None and words * found.shuffles <= turns else None


RANDOM_READ = 2
"""A read at any places takes some turns more than a shuffle, which takes a choice besides."""


def _candidates(op: tile.Gather, source: Layout, layout: Layout, axis: int) -> LaneGather | None:
    if not _has_lines_in_warps(source, layout, axis):
        return None
    lane_bits = bits_along(source, axis, "lanes")
    register_bits = bits_along(source, axis, "registers")
    if lane_bits is None or register_bits is None:
        return None
    held: dict[tuple[int, ...], dict[int, int]] = {}
    for r, at in reversed(list(enumerate(source.offsets("registers").tolist()))):
        part = at.pop(axis)
        held.setdefault(tuple(at), {})[part] = r
    wanted = _wanted(op, source, layout, axis, sum(b for b, _ in register_bits))
    rows = []
    for r, at in enumerate(layout.offsets("registers").tolist()):
        del at[axis]
        line = held.get(tuple(at))
        if line is None:
            return None
        parts = dict.fromkeys(line, False) if wanted is None else wanted[r]
        rows.append(tuple(Candidate(line[part], part, own) for part, own in parts.items()))
    return LaneGather(tuple(rows), lane_bits, tuple(b for b, _ in register_bits))


def _has_lines_in_warps(source: Layout, layout: Layout, axis: int) -> bool:
    """Whether a thread of the result is, but for the place along the axis, where the source has it
    too, of which a warp has the whole axis.
    """
    others = [a for a in range(source.rank) if a != axis]
    in_warp = source.warps_along(axis) * source.blocks_along(axis) == 1
    return in_warp and all(
        np.array_equal(source.offsets(name)[:, others], layout.offsets(name)[:, others])
        for name in ("lanes", "warps", "blocks")
    )


def bits_along(layout: Layout, axis: int, section: str) -> tuple[Bit, ...] | None:
    """(stride along the axis, weight) of the bits of lanes or registers that lie along an axis;
    None where these are no bits.
    """
    found, weight = [], 1
    for d in getattr(layout, section):
        if d.axis == axis:
            if any(n & (n - 1) for n in (d.extent, d.stride, weight)):
                return None
            found += [(d.stride << b, weight << b) for b in range(d.extent.bit_length() - 1)]
        weight *= d.extent
    return tuple(sorted(found))


def _wanted(
    op: tile.Gather, source: Layout, layout: Layout, axis: int, mask: int
) -> list[dict[int, bool]] | None:
    """Of each register of the result, where places are known: the parts that registers of the
    source add along the axis, and whether all who want one hold it. mask: of a place's bits, those
    that name a register.
    """
    places = known_elements(op.index)
    if places is None:
        return None
    at, real = in_threads(places, layout), inside(layout)
    here = np.broadcast_to(source.offsets("lanes")[:, axis][None, :, None], at.shape)
    owns = (at & ~mask) == here
    found = []
    for r in range(layout.num_registers):
        parts = (at[..., r] & mask)[real[..., r]]
        own = owns[..., r][real[..., r]]
        found.append({int(p): bool(own[parts == p].all()) for p in np.unique(parts)} or {0: True})
    return found
