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
    for _ in range(100):
        if isinstance(value, BlockArgument):
            holder = value.owner.parent_op()
            if isinstance(holder, tile.Kernel):
                return value if isinstance(value.type, ArrayType) else None
            carried = getattr(holder, "iter_args", ())
            if not 0 < value.index <= len(carried):
                return None
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
            return None
        value = sources[0]
    return None
