"""Blocks whose extent along an axis is one: the axis is dropped where only reshapes tell it from
one that is not there.

    %v = tile.load %x[%b, %t, %h, 0] {1, 64, 1, 64}         %w = tile.load %x[…] {-1, 64, -1, 64}
    %w = tile.reshape %v : 1x64x1x64 to 64x64          ->

    %u = tile.reshape %y : 64x64 to 1x64x1x64               tile.store %z[…] %y {-1, 64, -1, 64}
    tile.store %z[%b, %t, %h, 0] %u {1, 64, 1, 64}     ->

Tiles of a dot's operands and results then stay matrices, which tensor maps copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tkc.ir import tile
from tkc.ir.rewrite import before, erase, replace
from tkc.ir.types import TileType
from tkc.ir.values import defining_op, extents_of, only_user, tile_type


def drop_unit_axes(kernel: tile.Kernel) -> bool:
    """Drops them from the loads and stores of a kernel, in place; whether there were any."""
    changed = False
    for op in list(kernel.walk()):
        if isinstance(op, tile.Load):
            changed |= _of_load(op)
        elif isinstance(op, (tile.Store, tile.AtomicBlock)):
            changed |= _of_store(op)
    return changed


def _without(extents: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """A block's extents, of which ones are dropped (-1) so that those wanted remain; None where
    they cannot.
    """
    found: list[int] = []
    left = list(wanted)
    for n in extents:
        if n >= 0 and left and n == left[0]:
            left.pop(0)
            found.append(n)
        elif n in (1, -1):
            found.append(-1)
        else:
            return None
    return None if left or not wanted or found == list(extents) else found


def _of_load(op: tile.Load) -> bool:
    if not isinstance(op.result.type, TileType) or not op.result.has_one_use():
        return False
    reshape = only_user(op.result)
    if not isinstance(reshape, tile.Reshape) or op.mask is not None:
        return False
    extents = _without(op.extents.get_values(), extents_of(reshape.result))
    if extents is None or any(isinstance(o.type, TileType) for o in op.offsets):
        return False
    other = op.other
    if other is not None:
        other = before(op, tile.Reshape(other, reshape.result.type)).result
    new = tile.Load(op.array, op.offsets, extents, None, other)
    new.result.name_hint = reshape.result.name_hint
    new.attributes |= op.attributes
    replace(reshape, [before(op, new).result])
    erase(op)
    return True


def _of_store(op: tile.Store | tile.AtomicBlock) -> bool:
    reshape = defining_op(op.value, tile.Reshape)
    if (
        reshape is None
        or op.mask is not None
        or any(isinstance(o.type, TileType) for o in op.offsets)
    ):
        return False
    extents = _without(op.extents.get_values(), tile_type(reshape.arg).extents)
    if extents is None:
        return False
    if isinstance(op, tile.AtomicBlock):
        before(op, tile.AtomicBlock(op.kind.data, op.array, op.offsets, reshape.arg, extents))
    else:
        before(op, tile.Store(op.array, op.offsets, reshape.arg, extents))
    erase(op)
    return True
