"""Whether a load may be made later in its program: what is written in between, and where."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.values import block_of, defining_op
from tkc.passes.analysis.access import argument_of, kernel_around, overlapping
from tkc.passes.analysis.values import POINTWISE


def reads(op: Operation) -> bool:
    """Whether an operation is a load of memory that nothing else writes meanwhile."""
    return isinstance(op, (tile.Load, tile.LoadPointers)) and not tile.watches(op)


def writes(op: Operation) -> bool:
    """Whether an operation may change memory, or must stay where it is for another reason."""
    return (
        not op.regions
        and not is_side_effect_free(op)
        and not reads(op)
        and not isinstance(op, (scf.YieldOp, tile.Yield, tile.Return, tile.Assume))
    )


def ancestor(op: Operation, block: Block) -> Operation | None:
    """The operation of a block that another is, or is in; None where it is outside."""
    found: Operation | None = op
    while found is not None and found.parent is not block:
        found = found.parent_op()
    return found


def is_before(op: Operation, other: Operation) -> bool:
    """Whether the first of two operations of a block comes before the second."""
    return op.is_before_in_block(other)


def apart(load: Operation, store: Operation, overlaps: Sequence[tuple[int, ...]]) -> bool:
    """Whether a load and a store are of arrays that share no memory."""
    read, written = _argument(load), _argument(store)
    if read is None or written is None:
        return False
    return written not in overlapping(read, overlaps)


def _argument(op: Operation) -> BlockArgument | None:
    """The array argument that an operation accesses; None where that is not known."""
    if isinstance(op, (tile.Load, tile.Store)):
        return argument_of(op.array)
    if isinstance(op, (tile.LoadPointers, tile.StorePointers)):
        return _base(op.pointers)
    return None


def _base(pointers: SSAValue) -> BlockArgument | None:
    """The array argument that pointers are made of, if it is one."""
    while isinstance(
        op := pointers.owner,
        (*POINTWISE, tile.Splat, tile.Broadcast, tile.Reshape, tile.Transpose),
    ):
        pointers = op.operands[0]
    pointer = defining_op(pointers, tile.Pointer)
    return None if pointer is None else argument_of(pointer.operands[0])


def unseen(
    load: Operation,
    at: Operation,
    overlaps: Sequence[tuple[int, ...]],
    but: Collection[Operation] = (),
) -> bool:
    """Whether a load made at another operation, which it comes before, gives the same.

    Nothing that is written in between (or, where that operation is in a loop and the load is not,
    anywhere in the loop), `but` some operations, may share memory with it.
    """
    block = block_of(load)
    here = ancestor(at, block)
    if here is None:
        return False
    for op in kernel_around(at).walk():
        if not writes(op) or op in but or (place := ancestor(op, block)) is None:
            continue
        between = is_before(load, place) and (place is here or is_before(place, here))
        if between and not apart(load, op, overlaps):
            return False
    return True
