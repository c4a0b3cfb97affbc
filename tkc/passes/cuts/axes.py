"""One axis of a tile through one operation: which axis of each operand is cut where the operation
is cut along an axis.

An operation's frame is the axis of its result; of a reduction, of what it reduces; of a store, of
what it stores.
"""

from __future__ import annotations

from math import prod

from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.types import TileType
from tkc.ir.values import tile_type
from tkc.passes.analysis.values import POINTWISE

# Operations that combine elements along their attribute `axis`, and are independent along others.
ALONG_AXIS = (tile.Reduce, tile.Scan, tile.Flip, tile.Concat, tile.Gather)
# Operations of which every part can be computed from parts of the operands.
DIVISIBLE = (
    *POINTWISE,
    tile.Constant,
    tile.Splat,
    tile.Arange,
    tile.Dot,
    tile.Broadcast,
    tile.Transpose,
    tile.Reshape,
    tile.Load,
    tile.LoadPointers,
    tile.Store,
    tile.StorePointers,
)


class NotCut(Exception):
    """The program cannot be cut: an operation in the way is not divisible along the axis."""


def kept(op: tile.Load | tile.Store) -> list[int]:
    """The axes of the array that a block has, in order: those that it does not drop."""
    return [a for a, n in enumerate(op.extents.get_values()) if n >= 0]


def _block_offsets(op: tile.Load | tile.Store) -> range:
    """Which operands of a load or store are offsets."""
    return range(1, 1 + len(op.offsets))


def needed(op: Operation, index: int, frame: int) -> int | None:
    """The axis along which an operand is cut where the operation is cut along its frame.

    None where the operand stays whole.
    """
    value = op.operands[index]
    if not isinstance(value.type, TileType):
        return None
    if isinstance(op, (tile.Load, tile.Store)) and index in _block_offsets(op):
        return 0 if kept(op).index(index - 1) == frame else None
    match op:
        case tile.Dot():
            return None if frame == _k_axis(op, index) else frame
        case tile.Broadcast():
            return None if value.type.extents[frame] == 1 else frame
        case tile.Transpose():
            return op.permutation.get_values()[frame]
        case tile.Reshape():
            return _axis_through_reshape(tile_type(op.result).extents, value.type.extents, frame)
    return frame


def frame_of(op: Operation, index: int, axis: int) -> int:
    """The frame of an operation one of whose operands is cut along an axis. Raises NotCut."""
    if isinstance(op, (tile.Load, tile.Store)) and index in _block_offsets(op):
        return kept(op).index(index - 1)
    match op:
        case tile.Dot():
            if axis == _k_axis(op, index):
                raise NotCut  # along k
            return axis
        case tile.Transpose():
            return list(op.permutation.get_values()).index(axis)
        case tile.Reshape():
            return _axis_through_reshape(
                tile_type(op.arg).extents, tile_type(op.result).extents, axis
            )
    _check_divisible(op, axis)
    return axis


def frame_back(op: Operation, axis: int) -> int:
    """The frame of an operation whose result is cut along an axis. Raises NotCut."""
    frame = axis + (axis >= op.axis.value.data) if isinstance(op, tile.Reduce) else axis
    _check_divisible(op, frame)
    return frame


def _k_axis(dot: tile.Dot, index: int) -> int | None:
    """The axis of k of a dot's operand, which is also the axis of the result that it lacks.

    The last axis of the left operand, the last but one of the right; None of the accumulator.
    """
    last = tile_type(dot.result).rank - 1
    return {0: last, 1: last - 1}.get(index)


def _check_divisible(op: Operation, frame: int) -> None:
    if isinstance(op, DIVISIBLE):
        return
    if isinstance(op, ALONG_AXIS) and op.axis.value.data != frame:
        return
    if isinstance(op, tile.Sort) and frame != tile_type(op.arg).rank - 1:
        return
    raise NotCut


def given(op: Operation, frame: int) -> int:
    """The axis along which an operation's results are cut: of a reduction, not the one that it
    reduces.
    """
    if not isinstance(op, tile.Reduce):
        return frame
    return frame - (frame > op.axis.value.data)


def _axis_through_reshape(source: tuple[int, ...], target: tuple[int, ...], axis: int) -> int:
    """An axis through a reshape that keeps it: as many elements of the same distance, whatever the
    axes before and behind it become. Raises NotCut.
    """
    n, behind = source[axis], prod(source[axis + 1 :])
    found = [a for a, extent in enumerate(target) if extent == n]
    places = [a for a in found if prod(target[a + 1 :]) == behind]
    if not places:
        raise NotCut
    return places[-1]


def with_extent(t: TileType, axis: int, n: int) -> TileType:
    """The type of a tile with another extent along one axis, and no layout."""
    return TileType([n if a == axis else extent for a, extent in enumerate(t.extents)], t.element)
