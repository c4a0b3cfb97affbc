"""What single operations take of shared memory, beside its buffers."""

from __future__ import annotations

from math import prod

from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.gathers import lanes_of_places
from tkc.ir.types import TileType, bits
from tkc.ir.values import tile_type


def scratch_of(kernel: Operation) -> int:
    """Bytes of shared memory that operations of a kernel take beside its buffers, for each copy of
    a role: one after the other, in the same place.
    """
    return max(map(scratch, kernel.walk()), default=0)


def scratch(op: Operation) -> int:
    """The bytes that one operation takes there: a histogram's counts, a gather's tile, and what one
    thread found for those that hold copies. Its threads meet before they write them.
    """
    found = None
    if isinstance(op, tile.Histogram):
        return -(-4 * tile_type(op.result).size // 16) * 16
    if isinstance(op, tile.Gather):
        if lanes_of_places(op) is not None:
            return 0
        t = tile_type(op.arg)
        return -(-t.size * max(1, bits(t.element) // 8) // 16) * 16
    if isinstance(op, tile.Atomic):
        found = op.result
    if isinstance(op, tile.LoadPointers) and op.semantics is not None:
        found = op.result
    if found is None or not isinstance(found.type, TileType):
        return 0
    return max(
        16,
        prod(1 << (n - 1).bit_length() for n in found.type.extents)
        * max(1, bits(found.type.element) // 8),
    )
