"""Where an address comes from."""

from __future__ import annotations

from xdsl.ir import BlockArgument, SSAValue

from tkc.ir import tile
from tkc.ir.types import ArrayType, PointerType, TileType
from tkc.ir.values import owner_op


def origin(value: SSAValue) -> BlockArgument | None:
    """The array argument of the kernel that an array, a pointer or a tile of pointers is made from;
    None where that is not one.
    """
    made = root(value)
    if not isinstance(made, BlockArgument) or not isinstance(made.type, ArrayType):
        return None
    return made if isinstance(made.owner.parent_op(), tile.Kernel) else None


def root(value: SSAValue) -> SSAValue:
    """What an array, a pointer or a tile of pointers is made from: an argument of the kernel or of
    a loop, or the result of an operation that takes no array or pointer, takes several, or loads
    them.
    """
    for _ in range(100):
        if isinstance(value, BlockArgument):
            holder = value.owner.parent_op()
            carried = getattr(holder, "iter_args", ())
            if isinstance(holder, tile.Kernel) or not 0 < value.index <= len(carried):
                return value
            value = carried[value.index - 1]
            continue
        owner = owner_op(value)
        sources = [
            v
            for v in owner.operands
            if isinstance(v.type, (ArrayType, PointerType))
            or isinstance(v.type, TileType)
            and isinstance(v.type.element, PointerType)
        ]
        if len(sources) != 1 or isinstance(owner, tile.LoadPointers):
            return value
        value = sources[0]
    return value
