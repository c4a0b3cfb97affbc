"""shorten-exponentials: exponentials of what dots of short elements made are powers of two.

    %s = tile.dot %q, %k                           %s = tile.dot %q, %k
    %x = tile.sub %s, %most                        %x = tile.sub %s, %most
    %p = tile.exp %x                       ->      %y = tile.mul %x, 1.4426950408889634
                                                   %p = tile.exp2 %y

exp of float32 is right to some units in the last place wherever it is asked for, which takes seven
instructions beside the power of two: x is split in a whole number and a rest. Without that the
product x log2 e is rounded, and the result wrong by |x| 2^-24 of itself, as much as it is where x
itself has been rounded once. Where x comes of a dot whose operands have 16 bits or fewer, or are
rounded to tf32, it has been rounded far more: the rounding error that level 0 permits of such a
program (sim/bounds.py) holds that of the product many times over. What is infinite, or no number,
stays so.

Exponentials of loaded values, of indices, and of what is computed of these alone stay exact. This
is a fact of real numbers (REAL).
"""

from __future__ import annotations

from math import e, log2

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import Builder, replace
from tkc.ir.types import bits, element_of
from tkc.ir.values import index_of, tile_type, yielded_by
from tkc.passes import PassContext

REAL = True  # the product is rounded
MAX_BITS = 16  # of an element of a dot's operands that has few digits
ROUNDED = ("tf32",)  # precisions in which operands of 32 bits are rounded
# what hands on how well its operands are known
HANDED_ON = (ew.Elementwise, ew.Cast, tile.Broadcast, tile.Reshape, tile.Transpose)


def run(module: ModuleOp, context: PassContext) -> None:
    """Rewrites the exponentials of float32 in kernels with dots of short elements."""
    for kernel in module.body.block.ops:
        known: dict[SSAValue, bool] = {}
        found = [
            op
            for op in kernel.walk()
            if isinstance(op, CLASSES["exp"])
            and element_of(op.result.type) == f32
            and _is_of_short_dots(op.args[0], known)
        ]
        for op in found:
            build = Builder(op)
            log2_e = build(tile.Constant(log2(e), op.result.type))
            replace(op, [build(CLASSES["exp2"](build.mul(op.args[0], log2_e)))])
        if found:
            context.decisions.append(
                f"shorten-exponentials: {len(found)} of what dots of short elements made are powers"
                " of two"
            )


def _is_of_short_dots(value: SSAValue, known: dict[SSAValue, bool]) -> bool:
    """Whether a value is computed of the result of a dot of short elements."""
    pending, seen = [value], {value}
    while pending:
        at = pending.pop()
        if known.get(at):
            known[value] = True
            return True
        if at in known:
            continue
        if isinstance(at.owner, tile.Dot):
            if _is_short(at.owner):
                known[value] = True
                return True
            continue
        for source in _sources(at):
            if source not in seen:
                seen.add(source)
                pending.append(source)
    known[value] = False
    return False


def _is_short(dot: tile.Dot) -> bool:
    """Whether a dot's operands have few digits."""
    if bits(tile_type(dot.a).element) <= MAX_BITS:
        return True
    return dot.precision is not None and dot.precision.data in ROUNDED


def _sources(value: SSAValue) -> list[SSAValue]:
    """The values that one is computed of, without what only says where something is."""
    if isinstance(value, BlockArgument):
        return _carried(value)
    assert isinstance(value, OpResult)
    op: Operation = value.owner
    match op:
        case tile.Reduce() | tile.Scan():
            return list(op.args)
        case ew.Select():  # its condition only says which of them
            return [op.if_true, op.if_false]
        case scf.ForOp():
            return [op.iter_args[index_of(value)], yielded_by(op.body.block)[index_of(value)]]
        case scf.IfOp():
            return [yielded_by(region.block)[index_of(value)] for region in op.regions]
    return list(op.operands) if isinstance(op, HANDED_ON) else []


def _carried(argument: BlockArgument) -> list[SSAValue]:
    """What a value that a loop carries is before the loop, and behind an iteration."""
    loop = argument.owner.parent_op()
    if not isinstance(loop, scf.ForOp) or argument.index == 0:
        return []
    number = argument.index - 1
    return [loop.iter_args[number], yielded_by(loop.body.block)[number]]
