"""What becomes of an integer: whether offsets are made of it, and whether anything else is.

    %i = tile.mul %p, 37
    %x = tile.load %a[%i]               an offset; extents and the bounds of loops are others
    %b = tile.lt %i, %n
    %y = tile.load_pointers %q, %b      a mask, which says what is accessed
    %s = tile.select %b, %x, %y         seen: so is what is stored, becomes a float, or decides

Level 0 refuses a program whose offsets, or what masks say of them, are not the mathematical
numbers. Of what is seen it refuses nothing: an integer that wrapped is there what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue, Use

from tkc.ir import elementwise as ew
from tkc.ir import shared, threads, tile
from tkc.ir.types import element_of, is_bool, is_integer

# of integers: what a wrapped operand would show in
_FOLLOWED = {
    *("add", "sub", "mul", "neg", "abs", "min", "max", "shl"),
    *("floordiv", "mod", "div_trunc", "rem_trunc"),
    *("lt", "le", "gt", "ge"),
}
_LOGICAL = {"and", "or", "xor", "not"}
# the elements of the result are elements of an operand
_MOVES = (
    *(tile.Multiple, tile.Concat, tile.Splat, tile.Broadcast, tile.Reshape, tile.Transpose),
    *(tile.Slice, tile.Extract, tile.Flip, tile.Sort, shared.SortFirst, shared.Convert),
)
_BLOCKS = (tile.Load, tile.Store, tile.AtomicBlock, shared.CopyIn)
_PARTS = (shared.CopyOut, threads.TmaLoad, threads.TmaStore, tile.View, shared.SharedSlice)
_BY_POINTERS = (tile.LoadPointers, tile.StorePointers, tile.Atomic)
_BOUNDS = 3  # operands of a loop before those that it carries


class End(Enum):
    """Where an integer, or a truth value made of it, ends. MASK: only accesses read it."""

    OFFSET, MASK, SEEN = range(3)


def ends(value: SSAValue) -> set[End]:
    """Everything that becomes of an integer. What nothing uses is still being built: an offset."""
    if value.first_use is None:
        return {End.OFFSET}
    found, left, seen = set[End](), [value], {value}
    while left:
        at = left.pop()
        for use in at.uses:
            next_ = _carried_on(at, use)
            if isinstance(next_, End):
                found.add(next_)
            else:
                left += [v for v in next_ if v not in seen]
                seen.update(next_)
    return found


def _carried_on(value: SSAValue, use: Use) -> Sequence[SSAValue] | End:
    """The values that a use of another makes of it, or what it ends as."""
    match op := use.operation:
        case ew.Elementwise() if op.fn.name in _FOLLOWED:
            return op.results
        case ew.Elementwise() if op.fn.name in _LOGICAL and is_bool(element_of(value.type)):
            return op.results
        case ew.Cast() if is_integer(element_of(value.type)) and is_integer(
            element_of(op.result.type)
        ):
            return op.results
        case ew.Select() if use.index > 0:
            return op.results
        case ew.PointerAdd() | tile.MakeArray():
            return End.OFFSET
        case scf.ForOp() | scf.WhileOp() | scf.YieldOp() | scf.ConditionOp():
            return _through_control(op, use.index)
        case threads.BroadcastStore():
            return _received(op.box)
        case _ if isinstance(op, _MOVES):
            return op.results
    return _accessed(op, value)


def _received(box: SSAValue) -> Sequence[SSAValue]:
    """The numbers that are read where a thread leaves one: in a buffer, or a stage of a ring."""
    ring = box.owner.ring if isinstance(box.owner, shared.Stage) else box
    stages = [use.operation for use in ring.uses if isinstance(use.operation, shared.Stage)]
    users = [use.operation for at in (ring, *(s.result for s in stages)) for use in at.uses]
    return [user.result for user in users if isinstance(user, threads.BroadcastLoad)]


def _accessed(op: Operation, value: SSAValue) -> End:
    """What a value is to an operation that computes nothing of it."""
    if isinstance(op, (*_BLOCKS, *_PARTS)) and value in op.offsets:
        return End.OFFSET
    if isinstance(op, (*_BLOCKS, *_BY_POINTERS)) and value is op.mask:
        return End.MASK
    return End.SEEN


def _through_control(op: Operation, index: int) -> Sequence[SSAValue] | End:
    """What an operand of a loop, or what a block ends with, goes on as."""
    around = op.parent_op()
    match op:
        case scf.ForOp():
            if index < _BOUNDS:
                return End.OFFSET
            return op.body.block.args[index - _BOUNDS + 1], op.results[index - _BOUNDS]
        case scf.WhileOp():
            return (op.before_region.block.args[index],)
        case scf.ConditionOp() if isinstance(around, scf.WhileOp):
            if index == 0:
                return End.SEEN
            return around.after_region.block.args[index - 1], around.results[index - 1]
        case scf.YieldOp() if isinstance(around, scf.ForOp):
            return around.body.block.args[index + 1], around.results[index]
        case scf.YieldOp() if isinstance(around, scf.WhileOp):
            return (around.before_region.block.args[index],)
        case scf.YieldOp() if isinstance(around, scf.IfOp):
            return (around.results[index],)
    return End.SEEN
