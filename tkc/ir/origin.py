"""Where an address comes from."""

from __future__ import annotations

from xdsl.ir import BlockArgument, Operation, SSAValue

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
        sources = [v for v in owner.operands if _has_addresses(v)]
        if len(sources) != 1 or isinstance(owner, tile.LoadPointers):
            return value
        value = sources[0]
    return value


def makes_addresses(op: Operation) -> bool:
    """Whether an operation gives an array, a pointer or a tile of pointers that is made of numbers
    or loaded: nothing says in which memory that lies.
    """
    if not any(map(_has_addresses, op.results)):
        return False
    loads = isinstance(op, (tile.Load, tile.LoadPointers))
    return loads or not any(map(_has_addresses, op.operands))


def _has_addresses(value: SSAValue) -> bool:
    """Whether a value is an array, a pointer or a tile of pointers."""
    kind = value.type.element if isinstance(value.type, TileType) else value.type
    return isinstance(kind, (ArrayType, PointerType))
