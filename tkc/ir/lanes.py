"""Where the lanes of a warp find the elements of a tile in another layout, and functions of the
lane that its digits give.

    fetches(src, dst)  of each register of dst, for each lane: which register of which lane has it
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tkc.ir.layout import WARP, Layout

LanePieces = list[tuple[int, int, int]]  # shift, bits, weight
Place = tuple[int, int]  # register, lane


def lane_pieces(values: Sequence[int] | np.ndarray) -> LanePieces | None:
    """A function of the lane as a sum of (lane >> shift & mask) * weight: [(shift, bits, weight)],
    None if it is none.
    """
    single = [int(values[1 << b] - values[0]) for b in range(5)]
    for lane in range(WARP):
        if values[lane] - values[0] != sum(s for b, s in enumerate(single) if lane >> b & 1):
            return None
    pieces: LanePieces = []
    for b, s in enumerate(single):
        if not s:
            continue
        shift, width, weight = pieces[-1] if pieces else (0, 0, 0)
        if width and shift + width == b and weight << width == s:
            pieces[-1] = shift, width + 1, weight
        else:
            pieces.append((b, 1, s))
    return pieces


@lru_cache(4096)
def fetches(src: Layout, dst: Layout) -> tuple[tuple[Place, ...], ...] | None:
    """Of each register of a tile's other layout and each lane, where in the same warp the element
    is; None where warps differ, or the lane that has it is no sum of the reader's digits.
    """
    if not np.array_equal(src.offsets("warps"), dst.offsets("warps")):
        return None
    owner = _owners(src)
    wanted = dst.table()[0].tolist()  # [lanes, registers, rank]
    found = []
    for r in range(dst.num_registers):
        places = [owner.get(tuple(wanted[lane][r])) for lane in range(WARP)]
        known = [place for place in places if place is not None]
        if not known:
            return None
        row = tuple(place or known[0] for place in places)
        if lane_pieces([lane for _, lane in row]) is None:
            return None
        found.append(row)
    return tuple(found)


def shuffles(src: Layout, dst: Layout) -> int | None:
    """How many shuffles bring a tile of 32-bit elements into another layout: one for each register
    that any lane wants of each of its own; None where shuffles do not.
    """
    found = fetches(src, dst)
    return None if found is None else sum(len({r for r, _ in row}) for row in found)


def _owners(src: Layout) -> dict[tuple[int, ...], Place]:
    """Coordinates within the first warp -> (register, lane)."""
    table = src.table()[0]
    return {
        tuple(table[lane, r].tolist()): (r, lane)
        for lane in reversed(range(WARP))
        for r in reversed(range(src.num_registers))
    }
