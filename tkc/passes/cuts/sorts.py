"""Sorts of rows that are longer than the registers of a warp hold: runs are sorted, each by a warp,
and merged by Batcher's bitonic network, two of them at a time, then four, and so on.

    %y = tile.sort %x : tile<8192xf32>
  becomes, with %x as 8 runs of 1024,
    %r = tile.sort %x : tile<8x1024xf32>
    runs 0 and 1, 2 and 3, …: the less of each element and of its place from the other run's end is
    kept in the first run, the other one in the second; then each run is sorted
    runs 0 and 3, 1 and 2, …: the same; then 0 and 1, 2 and 3 place by place; each run is sorted
    …

What such a comparison leaves in a run rises and then falls, as does what later comparisons leave
there. A row that is no power of two of runs is filled with what comes last. NaN comes last in both
directions: the less of two drops it, the other one keeps it.
"""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import Builder, replace
from tkc.ir.types import TileType, bits, is_bool, is_float, is_unsigned
from tkc.ir.values import tile_type
from tkc.passes.layouts.movers import first_few, most_sorted

RUN = 1024  # elements of 32 bits that a warp sorts at a time


def cut_sort(op: tile.Sort, shared_bytes: int) -> bool:
    """Sorts in runs what no warp holds; returns whether it did. shared_bytes: of a block, through
    which runs meet.
    """
    t = tile_type(op.arg)
    if is_bool(t.element) or t.extents[-1] <= most_sorted(t.element) or first_few(op) is not None:
        return False
    whole = prod(t.extents[:-1]) << (t.extents[-1] - 1).bit_length()
    if whole * bits(t.element) // 8 > shared_bytes:
        return False
    replace(op, [_Merged(op).result()])
    return True


class _Merged:
    """A sort as merged runs. shape: of the tile without the axis that is sorted."""

    def __init__(self, op: tile.Sort):
        t = tile_type(op.arg)
        self.op, self.build, self.element = op, Builder(op), t.element
        self.descending = op.descending is not None
        self.shape, self.length = t.extents[:-1], t.extents[-1]
        self.run = RUN // (bits(t.element) // 32 or 1)
        self.runs = 1 << (-(-self.length // self.run) - 1).bit_length()

    def result(self) -> SSAValue:
        """The sorted tile."""
        rows = self._sorted(self._view(self._filled(), self.runs, self.run))
        count = 2
        while count <= self.runs:
            rows = self._meet(rows, (self.runs // count, count, self.run), (1, 2), count // 2)
            apart = count // 4
            while apart:
                rows = self._meet(rows, (self.runs // (2 * apart), 2, apart * self.run), (1,), 1)
                apart //= 2
            rows = self._sorted(self._view(rows, self.runs, self.run))
            count *= 2
        whole = self._view(rows, self.runs * self.run)
        if self.runs * self.run == self.length:
            return whole
        t = TileType((*self.shape, self.length), self.element)
        return self.build(tile.Slice(whole, [0] * t.rank, t))

    def _filled(self) -> SSAValue:
        """The row with what comes last behind it, where it is shorter than its runs."""
        missing = self.runs * self.run - self.length
        if not missing:
            return self.op.arg
        t = TileType((*self.shape, missing), self.element)
        last = self.build(tile.Constant(self._last(), t))
        whole = TileType((*self.shape, self.runs * self.run), self.element)
        return self.build(tile.Concat([self.op.arg, last], len(self.shape), whole))

    def _last(self) -> int | float:
        """What no element comes behind."""
        if is_float(self.element):
            return float("nan")
        width, unsigned = bits(self.element), is_unsigned(self.element)
        if self.descending:
            return 0 if unsigned else -(1 << (width - 1))
        return (1 << (width - (not unsigned))) - 1

    def _view(self, value: SSAValue, *digits: int) -> SSAValue:
        """The sorted axis as several."""
        t = TileType((*self.shape, *digits), self.element)
        return (
            value if tile_type(value).extents == t.extents else self.build(tile.Reshape(value, t))
        )

    def _sorted(self, value: SSAValue) -> SSAValue:
        return self.build(tile.Sort(value, self.descending))

    def _meet(
        self, value: SSAValue, digits: tuple[int, ...], turned: tuple[int, ...], low: int
    ) -> SSAValue:
        """Each element compared with its place where some axes are turned round, of those that the
        sorted axis is taken as; those with a number under `low` on the second get the less.
        """
        here, build = self._view(value, *digits), self.build
        there = here
        for axis in turned:
            there = build(tile.Flip(there, len(self.shape) + axis))
        first, then = self._functions()
        less, more = build(CLASSES[first](here, there)), build(CLASSES[then](here, there))
        t = tile_type(here)
        at = len(self.shape) + 1
        number = build(tile.Arange(0, TileType((digits[1],), i32)))
        ones = [n if axis == at else 1 for axis, n in enumerate(t.extents)]
        number = build(tile.Reshape(number, TileType(ones, i32)))
        number = build(tile.Broadcast(number, TileType(t.extents, i32)))
        is_low = build(CLASSES["lt"](number, build(tile.Constant(low, TileType(t.extents, i32)))))
        return build.select(is_low, less, more)

    def _functions(self) -> tuple[str, str]:
        """Which of two elements comes first, and which one then."""
        drops = "f" if is_float(self.element) else ""
        return (f"{drops}max", "min") if self.descending else (f"{drops}min", "max")
