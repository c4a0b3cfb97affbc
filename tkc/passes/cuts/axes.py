"""One axis of a tile through one operation: which axis of each operand is cut where the operation
is.

An operation's frame is the axis of its result; of a reduction, of what it reduces; of a store, of
what it stores.
"""

from __future__ import annotations

from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.types import TileType
from tkc.passes.analysis.values import POINTWISE

ALONG = (tile.Reduce, tile.Scan, tile.Flip, tile.Concat)  # operations that look along one axis
THROUGH = (
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
    """An operation does not let a cut through."""


def kept(op: tile.Load | tile.Store) -> list[int]:
    return [a for a, n in enumerate(op.extents.get_values()) if n >= 0]


def _block_offsets(op: Operation) -> range:
    return range(1, 1 + len(op.offsets)) if isinstance(op, (tile.Load, tile.Store)) else range(0)


def needed(op: Operation, index: int, frame: int) -> int | None:
    """The axis along which an operand is cut where the operation is along its frame; None where it
    is whole.
    """
    value = op.operands[index]
    if not isinstance(value.type, TileType):
        return None
    if index in _block_offsets(op):
        return 0 if kept(op).index(index - 1) == frame else None
    match op:
        case tile.Dot():
            last = op.result.type.rank - 1
            return None if frame == last - (index == 1) and index < 2 else frame
        case tile.Broadcast():
            return None if value.type.extents[frame] == 1 else frame
        case tile.Transpose():
            return op.permutation.get_values()[frame]
        case tile.Reshape():
            return _other(op.result.type.extents, value.type.extents, frame)
    return frame


def frame_of(op: Operation, index: int, axis: int) -> int:
    """The frame of an operation one of whose operands is cut along an axis."""
    if index in _block_offsets(op):
        return kept(op).index(index - 1)
    match op:
        case tile.Dot():
            last = op.result.type.rank - 1
            if index < 2 and axis == last - (index == 1):
                raise NotCut  # along k
            return axis
        case tile.Transpose():
            return list(op.permutation.get_values()).index(axis)
        case tile.Reshape():
            return _other(op.arg.type.extents, op.result.type.extents, axis)
    _lets_through(op, axis)
    return axis


def frame_back(op: Operation, axis: int) -> int:
    """The frame of an operation whose result is cut along an axis."""
    frame = axis + (axis >= op.axis.value.data) if isinstance(op, tile.Reduce) else axis
    _lets_through(op, frame)
    return frame


def _lets_through(op: Operation, frame: int) -> None:
    if (
        isinstance(op, THROUGH)
        or isinstance(op, ALONG)
        and op.axis.value.data != frame
        or isinstance(op, tile.Sort)
        and frame != op.arg.type.rank - 1
    ):
        return
    raise NotCut


def given(op: Operation, frame: int) -> int:
    """The axis of an operation's results."""
    if not isinstance(op, tile.Reduce):
        return frame
    if op.axis.value.data == frame:
        raise NotCut
    return frame - (frame > op.axis.value.data)


def _other(have: tuple[int, ...], give: tuple[int, ...], axis: int) -> int:
    """An axis through a reshape that only inserts and drops extents of 1."""
    wide, wider = ([a for a, n in enumerate(extents) if n > 1] for extents in (have, give))
    if have[axis] == 1 or [have[a] for a in wide] != [give[a] for a in wider]:
        raise NotCut
    return wider[wide.index(axis)]
