"""Tiles that are loaded to be taken apart."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.values import extents_of, tile_type
from tkc.passes.analysis.values import LOADS


def is_one_of_equal_parts(op: Operation | Block) -> bool:
    """Whether an operation takes one of equal parts side by side, along one axis or several."""
    if not isinstance(op, tile.Slice):
        return False
    sizes = zip(op.offsets.get_values(), extents_of(op.arg), extents_of(op.result), strict=True)
    return set(op.steps) <= {1} and all(at % n == 0 and whole % n == 0 for at, whole, n in sizes)


def size_of_parts(value: SSAValue) -> int:
    """Elements of a tile, or of one of the equal parts for which alone it is loaded."""
    users = [use.operation for use in value.uses]
    if users and isinstance(value.owner, LOADS) and all(map(is_one_of_equal_parts, users)):
        return max(tile_type(op.results[0]).size for op in users)
    return tile_type(value).size
