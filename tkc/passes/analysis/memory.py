"""Whether a load may be made later than it stands: what is written in between, and where."""

from __future__ import annotations

from collections.abc import Collection

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.passes.analysis.access import argument_of, overlapping
from tkc.passes.analysis.values import POINTWISE


def reads(op: Operation) -> bool:
    return isinstance(op, (tile.Load, tile.LoadPointers)) and not tile.watches(op)


def writes(op: Operation) -> bool:
    return (
        not op.regions
        and not is_side_effect_free(op)
        and not reads(op)
        and not isinstance(op, (scf.YieldOp, tile.Yield, tile.Return, tile.Assume))
    )


def ancestor(op: Operation, block: Block) -> Operation | None:
    """The operation of a block that another is, or is in."""
    while op is not None and op.parent is not block:
        op = op.parent_op()
    return op


def is_before(op: Operation, other: Operation) -> bool:
    """Of two operations of a block."""
    while (op := op.next_op) is not None:
        if op is other:
            return True
    return False


def apart(load: Operation, store: Operation, overlaps) -> bool:
    """Whether a load and a store are of arrays that share no memory."""
    found = [
        (
            argument_of(op.array)
            if isinstance(op, (tile.Load, tile.Store))
            else (
                _base(op.pointers)
                if isinstance(op, (tile.LoadPointers, tile.StorePointers))
                else None
            )
        )
        for op in (load, store)
    ]
    return None not in found and found[1] not in overlapping(found[0], overlaps)


def _base(pointers: SSAValue) -> SSAValue | None:
    """The array argument that pointers are made of, if it is one."""
    while True:
        op = pointers.owner
        if isinstance(op, tile.Pointer):
            return argument_of(op.operands[0])
        if (
            isinstance(op, Block)
            or not op.operands
            or not isinstance(
                op, (*POINTWISE, tile.Splat, tile.Broadcast, tile.Reshape, tile.Transpose)
            )
        ):
            return None
        pointers = op.operands[0]


def unseen(load: Operation, at: Operation, overlaps, but: Collection[Operation] = ()) -> bool:
    """Whether a load made at another operation, which it comes before, gives the same: nothing that
    is written in between (or, where that operation is in a loop and the load is not, anywhere in
    the loop), `but` some operations, shares memory with it."""
    here, kernel = ancestor(at, load.parent), at
    if here is None:
        return False
    while not isinstance(kernel, tile.Kernel):
        kernel = kernel.parent_op()
    for op in kernel.walk():
        if not writes(op) or op in but or (place := ancestor(op, load.parent)) is None:
            continue
        if (
            is_before(load, place)
            and (place is here or is_before(place, here))
            and not apart(load, op, overlaps)
        ):
            return False
    return True
