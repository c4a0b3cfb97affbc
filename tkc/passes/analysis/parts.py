"""Tiles that are loaded to be taken apart."""

from __future__ import annotations

from typing import TypeGuard

from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.types import bits
from tkc.ir.values import extents_of, tile_type
from tkc.passes.analysis.values import LOADS

MAX_BYTES = 16  # that one access of a thread moves


def is_one_of_equal_parts(op: Operation | Block) -> TypeGuard[tile.Slice]:
    """Whether an operation takes one of equal parts side by side, along one axis or several."""
    if not isinstance(op, tile.Slice):
        return False
    sizes = zip(op.offsets.get_values(), extents_of(op.arg), extents_of(op.result), strict=True)
    return set(op.steps) <= {1} and all(at % n == 0 and whole % n == 0 for at, whole, n in sizes)


def is_part_of_record(op: Operation | Block) -> bool:
    """Whether an operation takes one of equal parts, of which each thread reads all at once that
    are beside one another.
    """
    if not is_one_of_equal_parts(op):
        return False
    whole, part = tile_type(op.arg), tile_type(op.result)
    return whole.size // part.size * bits(whole.element) <= 8 * MAX_BYTES


def size_of_parts(value: SSAValue) -> int:
    """Elements of a tile, or of one of the parts of records for which alone it is loaded."""
    users = [use.operation for use in value.uses]
    if users and isinstance(value.owner, LOADS) and all(map(is_part_of_record, users)):
        return max(tile_type(op.results[0]).size for op in users)
    return tile_type(value).size
