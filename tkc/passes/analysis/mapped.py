"""Which blocks of arrays a tensor map can move, and how: questions about one load or store.

A map's innermost dimension is dense. Where that is not the array's last axis (a transposed matrix,
as `b.T` of torch), the map is of the array with its axes in another order, `order`, and the block
lands in shared memory that much turned: nothing is copied, the dot reads it from there as it would
any other major.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import TileType, bits
from tkc.passes.analysis.access import argument_of

BOX = 256  # elements of a map's box along each of its dimensions
PLACE = 128  # and it lands at a multiple of so many bytes of shared memory


def dense_axis(array: SSAValue) -> int:
    """The axis of an array (or view) along which neighbours are neighbours in memory: the last one
    that is known to be dense, the last if none is.
    """
    strides = array.type.facts.strides
    return next(
        (a for a in reversed(range(len(strides))) if strides[a].exact == 1), len(strides) - 1
    )


def through(view: tile.View, axis: int) -> int:
    """The axis of a view's array that is its axis number `axis`."""
    return [a for a, kind in enumerate(view.kinds) if kind.data != "index"][axis]


def dense_of_block(op: tile.Load | tile.Store) -> int:
    """The axis of a block's tile that is dense in memory."""
    dense = dense_axis(op.array)
    return sum(n >= 0 for n in op.extents.get_values()[:dense])


def of_block(op: tile.Load) -> SharedLayout:
    """How a tensor map leaves a block: the widest swizzle of the axis that is dense in memory; a
    single row as it is, for which panels would be as high as a swizzle's eight, and behind it what
    the next stage's place asks for."""
    t, dense = op.result.type, dense_of_block(op)
    order = (dense, *(a for a in reversed(range(t.rank)) if a != dense))
    if t.size == t.extents[dense] <= BOX:
        return SharedLayout(t.extents, bits(t.element), 0, order, -t.bytes % PLACE)
    return SharedLayout.widest(t.extents, bits(t.element), order)


def _is_part(array: SSAValue) -> bool:
    """Whether a view does more than to fix some of the axes of its array."""
    return isinstance(array.owner, tile.View) and (
        any(kind.data == "slice" for kind in array.owner.kinds) or _is_part(array.owner.array)
    )


def unmapped(op: tile.Load | tile.Store) -> str:
    """Why a tensor map cannot move a block; empty if it can."""
    extents, element, argument = (
        op.extents.get_values(),
        bits(op.array.type.element) // 8,
        argument_of(op.array),
    )
    if op.mask is not None or getattr(op, "other", None) is not None:
        return "a mask"
    if argument is None or _is_part(op.array):
        return "an array made in the kernel, or part of one"
    if any(isinstance(o.type, TileType) for o in op.offsets):
        return "a gather"
    facts, dense = argument.type.facts, dense_axis(op.array)
    array, inner = op.array, dense
    while array is not argument:
        array, inner = array.owner.array, through(array.owner, inner)
    if extents[dense] < 0 or facts.strides[inner].exact != 1:
        return "neither rows nor columns that are dense"
    if len(facts.shape) > 5 or any(n > BOX for a, n in enumerate(extents) if a != dense):
        return "a block too large for a tensor map"
    steps = [s for a, s in enumerate(facts.strides) if a != inner]
    if facts.align % 16 or any(
        (s.exact if s.exact is not None else s.divisor) * element % 16 for s in steps
    ):
        return "rows that do not start at multiples of 16 bytes"
    if extents[dense] * element % 32:
        return "rows of a block narrower than a swizzle"
    return ""
