"""Whether offsets are made of an integer.

    %i = tile.mul %p, 37
    %x = tile.load %a[%i]               an offset; extents and the bounds of loops are others
    tile.store %b[%p], %i               none: what is stored, compared or becomes a float

Level 0 refuses a program whose offsets are not the mathematical numbers. It refuses nothing of
what else is made of an integer: one that wrapped is there what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue, Use

from tkc.ir import elementwise as ew
from tkc.ir import shared, threads, tile
from tkc.ir.types import element_of, is_integer

# of integers: what a wrapped operand would show in
_FOLLOWED = {
    *("add", "sub", "mul", "neg", "abs", "min", "max", "shl"),
    *("floordiv", "mod", "div_trunc", "rem_trunc"),
}
# the elements of the result are elements of an operand
_MOVES = (
    *(tile.Multiple, tile.Concat, tile.Splat, tile.Broadcast, tile.Reshape, tile.Transpose),
    *(tile.Slice, tile.Extract, tile.Flip, tile.Sort, shared.SortFirst, shared.Convert),
)
_WITH_OFFSETS = (
    *(tile.Load, tile.Store, tile.AtomicBlock, tile.View, shared.CopyIn, shared.CopyOut),
    *(shared.SharedSlice, threads.TmaLoad, threads.TmaStore),
)
_BOUNDS = 3  # operands of a loop before those that it carries


def makes_offsets(value: SSAValue) -> bool:
    """Whether an offset, an extent or a bound of a loop is computed of an integer. Of one that
    nothing uses, which is still being built, it may be.
    """
    if value.first_use is None:
        return True
    left, seen = [value], {value}
    while left:
        at = left.pop()
        for use in at.uses:
            if _is_offset(at, use):
                return True
            made = _carried_on(use)
            left += [v for v in made if v not in seen]
            seen.update(made)
    return False


def _is_offset(value: SSAValue, use: Use) -> bool:
    match op := use.operation:
        case scf.ForOp():
            return use.index < _BOUNDS
        case ew.PointerAdd() | tile.MakeArray():
            return True
    return isinstance(op, _WITH_OFFSETS) and value in op.offsets


def _carried_on(use: Use) -> Sequence[SSAValue]:
    """The integers that a use makes of another."""
    match op := use.operation:
        case ew.Elementwise():
            return op.results if op.fn.name in _FOLLOWED else ()
        case ew.Cast():
            return op.results if is_integer(element_of(op.result.type)) else ()
        case ew.Select():
            return op.results if use.index > 0 else ()
        case scf.ForOp() | scf.WhileOp() | scf.YieldOp() | scf.ConditionOp():
            return _through_control(op, use.index)
        case threads.BroadcastStore():
            return _received(op.box)
    return op.results if isinstance(op, _MOVES) else ()


def _received(box: SSAValue) -> Sequence[SSAValue]:
    """The numbers that are read where a thread leaves one: in a buffer, or a stage of a ring."""
    ring = box.owner.ring if isinstance(box.owner, shared.Stage) else box
    stages = [use.operation for use in ring.uses if isinstance(use.operation, shared.Stage)]
    users = [use.operation for at in (ring, *(s.result for s in stages)) for use in at.uses]
    return [user.result for user in users if isinstance(user, threads.BroadcastLoad)]


def _through_control(op: Operation, index: int) -> Sequence[SSAValue]:
    """What an operand of a loop, or what a block ends with, goes on as."""
    around = op.parent_op()
    match op:
        case scf.ForOp():
            return op.body.block.args[index - _BOUNDS + 1], op.results[index - _BOUNDS]
        case scf.WhileOp():
            return (op.before_region.block.args[index],)
        case scf.ConditionOp() if isinstance(around, scf.WhileOp) and index > 0:
            return around.after_region.block.args[index - 1], around.results[index - 1]
        case scf.YieldOp() if isinstance(around, scf.ForOp):
            return around.body.block.args[index + 1], around.results[index]
        case scf.YieldOp() if isinstance(around, scf.WhileOp):
            return (around.before_region.block.args[index],)
        case scf.YieldOp() if isinstance(around, scf.IfOp):
            return (around.results[index],)
    return ()
