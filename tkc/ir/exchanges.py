"""Conversions between layouts in which the lanes of a warp exchange halves of their registers.

Where elements are numbered by the bits of register and lane, a conversion inside a warp often swaps
a bit of the lane with a bit of the register:

    before   lane 0: a b    lane 1: c d        a register's bit says which of two neighbours
    after    lane 0: a c    lane 1: b d        the lane's bit does

Each lane keeps the half of its registers whose bit is the lane's own, and gives the other half to
the lane on the other side of that bit: one shuffle for two registers.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tkc.ir.layout import WARP, Layout, elements_of_both

Step = tuple[int, int]  # masks of the lane's bit and of the register's that are swapped


@lru_cache(4096)
def lane_exchanges(src: Layout, dst: Layout) -> tuple[tuple[Step, ...], tuple[int, ...]] | None:
    """The swaps, one behind the other, that convert `src` to `dst`, and which register of what they
    leave is each of the result's; None where a conversion is no series of swaps.
    """
    count = src.num_registers
    if count & (count - 1) or dst.num_registers != count:
        return None
    held, wanted = elements_of_both(src, dst)
    sources = _sources(held[:WARP].ravel(), wanted[:WARP].ravel())
    found = None if sources is None else _swaps(sources, count)
    if found is None:
        return None
    steps, registers = found
    for step in steps:
        held = _exchanged(held, *step)
    is_right = max(registers) < count and np.array_equal(held[:, registers], wanted)
    return found if is_right else None


def _swaps(sources: dict[int, int], count: int) -> tuple[tuple[Step, ...], tuple[int, ...]] | None:
    """Swaps and registers as of `lane_exchanges`, if bits of lanes stay or come from registers."""
    swapped = {bit: source for bit, source in sources.items() if bit >= count and source != bit}
    if any(not 0 < source < count for source in swapped.values()):
        return None
    registers = [0]
    for bit, source in sources.items():
        if bit < count:
            registers += [register ^ swapped.get(source, source) for register in registers]
    steps = tuple((bit // count, source) for bit, source in swapped.items())
    return steps, tuple(registers)


def _sources(held: np.ndarray, wanted: np.ndarray) -> dict[int, int] | None:
    """Of each bit of a place in the second order of a warp's elements: where the element at that
    bit alone is in the first. None where one is there more than once, or padding.
    """
    places = {element: place for place, element in enumerate(held.tolist())}
    if len(places) < held.size or -1 in places:
        return None
    bits = [1 << i for i in range(held.size.bit_length() - 1)]
    return {bit: places.get(int(wanted[bit]), 0) for bit in bits}


def _exchanged(held: np.ndarray, lane: int, register: int) -> np.ndarray:
    """The elements [threads, registers] after a swap."""
    threads, registers = np.indices(held.shape)
    given = ((threads & lane) != 0) != ((registers & register) != 0)
    return np.where(given, held[threads ^ lane, registers ^ register], held)
