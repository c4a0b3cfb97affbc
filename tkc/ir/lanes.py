"""Conversions between layouts in which elements stay in their warp: its lanes hand them over.

First lanes swap halves of their registers. Where elements are numbered by the bits of register and
lane, a conversion often swaps a bit of the lane with a bit of the register:

    before   lane 0: a b    lane 1: c d        a register's bit says which of two neighbours
    after    lane 0: a c    lane 1: b d        the lane's bit does

Each lane keeps the half of its registers whose bit is the lane's own, and gives the other half to
the lane on the other side of that bit: one shuffle for two registers.

Then each lane fetches each register of the result: most often its own, else one shuffle for each
register that any lane wants of another.

    warp_conversion(src, dst)  the swaps, and what is fetched of what they leave
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tkc.ir.layout import WARP, Layout, movement

LanePieces = list[tuple[int, int, int]]  # shift, bits, weight
Swap = tuple[int, int]  # masks of the lane's bit and of the register's
Place = tuple[int, int]  # register, lane


@dataclass(frozen=True)
class WarpConversion:
    """Swaps, one behind the other; then of each register of the result and each lane, where in what
    they leave the element is.
    """

    swaps: tuple[Swap, ...]
    fetches: tuple[tuple[Place, ...], ...]

    @property
    def shuffles(self) -> int:
        """How many shuffles fetch 32-bit elements."""
        crossing = [row for row in self.fetches if not is_own(row)]
        return sum(len({register for register, _ in row}) for row in crossing)

    def keeps_together(self, pack: int) -> bool:
        """Whether every `pack` registers behind one another stay so: one word can hold them."""
        return all(register % pack == 0 for _, register in self.swaps) and all(
            is_own(row) and row[0][0] == self.fetches[i - i % pack][0][0] + i % pack
            for i, row in enumerate(self.fetches)
        )


def is_own(row: Sequence[Place]) -> bool:
    """Whether each lane has what it fetches, all in the same register."""
    return list(row) == [(row[0][0], lane) for lane in range(WARP)]


def lane_pieces(values: Sequence[int] | np.ndarray) -> LanePieces | None:
    """A function of the lane as a sum of (lane >> shift & mask) * weight: [(shift, bits, weight)],
    None if it is none.
    """
    numbers = np.asarray(values).tolist()
    start = numbers[0]
    single = [numbers[1 << b] - start for b in range(5)]
    sums = [0]
    for step in single:  # of the lanes that also have the next bit
        sums += [s + step for s in sums]
    if numbers != [start + s for s in sums]:
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
def warp_conversion(src: Layout, dst: Layout) -> WarpConversion | None:
    """How lanes convert `src` to `dst`, by swaps where these suffice; None where elements change
    warps or threads have all they need, and where the lane that has an element is no sum of its
    reader's digits.
    """
    is_in_warps = np.array_equal(src.offsets("warps"), dst.offsets("warps"))
    if not is_in_warps or movement(src, dst) != "lanes":
        return None
    held, wanted = (layout.table()[0].tolist() for layout in (src, dst))  # [lanes, registers, rank]
    count = src.num_registers
    numbers = {
        tuple(held[lane][r]): lane * count + r
        for lane in reversed(range(WARP))
        for r in reversed(range(count))
    }
    places = np.array([[numbers.get(tuple(at), -1) for at in lane] for lane in wanted])
    swaps = _swaps(places, count)
    fetches = _fetches(_swapped(places, swaps, count), count)
    if swaps and not (fetches and all(map(is_own, fetches))):
        swaps, fetches = (), _fetches(places, count)
    return None if fetches is None else WarpConversion(swaps, fetches)


def _swaps(places: np.ndarray, count: int) -> tuple[Swap, ...]:
    """Those that bring bits of lanes where they are wanted from bits of registers; none where some
    do not come from there. places: [lanes, registers] of the second layout, each the number that
    the element has in the first, which counts the registers of one lane after those of another.
    """
    if not np.unique(places).size == places.size == WARP * count or count & (count - 1):
        return ()
    sources = {1 << bit: int(places.flat[count << bit]) for bit in range(5)}
    changed = {lane: source for lane, source in sources.items() if source != lane * count}
    if any(not 0 < source < count for source in changed.values()):
        return ()
    return tuple(changed.items())


def _swapped(places: np.ndarray, swaps: Sequence[Swap], count: int) -> np.ndarray:
    """Where elements are after swaps."""
    for lane, register in swaps:
        lane *= count
        changes = ((places & lane) != 0) != ((places & register) != 0)
        places = np.where(changes, places ^ (lane | register), places)
    return places


def _fetches(places: np.ndarray, count: int) -> tuple[tuple[Place, ...], ...] | None:
    """The places of a conversion, what is nowhere (-1) from anywhere."""
    rows = []
    for column in places.T.tolist():
        somewhere = max(column, key=lambda place: place >= 0)
        numbers = [somewhere if place < 0 else place for place in column]
        row = tuple((number % count, number // count) for number in numbers)
        if somewhere < 0 or lane_pieces([lane for _, lane in row]) is None:
            return None
        rows.append(row)
    return tuple(rows)
