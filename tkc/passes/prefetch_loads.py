"""prefetch-loads: what a loop without dots reads is asked for one iteration ahead, so that memory is busy while this iteration computes.

    for %r = %lo to %hi step %s {                      %a = tile.load %x[%lo, 0]
      %v = tile.load %x[%r, 0]                         for %r = %lo to %hi step %s iter(%v = %a) {
      … %v …                                     ->      %b = tile.load %x[%r + %s, 0]
    }                                                    … %v …
                                                         yield %b
                                                       }

Loads of blocks whose offsets follow from the counter, of arrays that the loop does not write (nor one that overlaps them). The values are the same; the last iteration asks
for a block that nobody uses, mostly outside of the array, where nothing is read. A view that the counter chooses (`x[i]`) has no such outside: past the last there is none, so its
loads stay where they are.
"""
from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import before, erase, is_inside, rebuild_for
from tkc.ir.types import TileType
from tkc.passes import PassContext


def run(module: ModuleOp, context: PassContext) -> None:
    if context.plan is None or not context.plan.prefetch: return
    overlaps = dict(getattr(context.options, "extra", ())).get("overlaps", ())
    for kernel in module.body.block.ops:
        for loop in [op for op in kernel.walk() if isinstance(op, scf.ForOp)]:
            loads = [op for op in loop.body.block.ops if isinstance(op, tile.Load) and _can_be_early(op, loop, kernel, overlaps)]
            if not loads: continue
            _ask_ahead(loop, loads)
            context.decisions.append(f"prefetch-loads: {len(loads)} load{'s' if len(loads) > 1 else ''} of a loop one iteration ahead")


def root(value: SSAValue) -> SSAValue | None:
    """The argument that an array is a view of; None if that cannot be told."""
    while not isinstance(value, BlockArgument):
        if not isinstance(value.owner, tile.View): return None
        value = value.owner.array
    return value if isinstance(value.owner.parent_op(), tile.Kernel) else None


def _can_be_early(op: tile.Load, loop: scf.ForOp, kernel: tile.Kernel, overlaps) -> bool:
    array = root(op.array)
    if is_inside(op.array, loop): return False
    if array is None or not isinstance(op.result.type, TileType) or op.mask is not None or any(isinstance(o.type, TileType) for o in op.offsets): return False
    arguments = list(kernel.body.block.args)
    alike = {array, *(arguments[i] for pair in overlaps for i in pair if arguments.index(array) in pair)}
    for other in loop.walk():
        if isinstance(other, (tile.StorePointers, tile.Atomic, scf.WhileOp)): return False
        if isinstance(other, tile.LoadPointers) and other.semantics is not None: return False
        if isinstance(other, (tile.Store, tile.AtomicBlock)) and root(other.array) in (*alike, None): return False
    return all(_follows(v, loop) for v in (op.array, *op.offsets, *([op.other] if op.other is not None else [])))


def _follows(value: SSAValue, loop: scf.ForOp) -> bool:
    """Whether a value can be computed from the loop's counter and what stands before the loop."""
    if isinstance(value, BlockArgument): return value.block is not loop.body.block or value.index == 0
    if not is_inside(value, loop): return True
    return not value.owner.regions and is_side_effect_free(value.owner) and all(_follows(v, loop) for v in value.owner.operands)


def _ask_ahead(loop: scf.ForOp, loads: list[tile.Load]) -> None:
    body, count = loop.body.block, len(loop.iter_args)
    first = [_at(op, loop.lb, loop, loop) for op in loads]
    top = body.first_op
    following = before(top, CLASSES["add"](body.args[0], loop.step)).results[0]
    ahead = [_at(op, following, loop, top) for op in loads]
    new = rebuild_for(loop, range(count), first)
    body = new.body.block
    for op, argument in zip(loads, body.args[1 + count:]):
        op.result.replace_all_uses_with(argument)
        erase(op)
    yielded = body.last_op
    yielded.operands = [*yielded.operands, *ahead]


def _at(op: tile.Load, counter: SSAValue, loop: scf.ForOp, anchor: Operation) -> SSAValue:
    """The load, and what its offsets need, made again for another value of the counter."""
    known: dict[SSAValue, SSAValue] = {loop.body.block.args[0]: counter}

    def made(value: SSAValue) -> SSAValue:
        if value in known: return known[value]
        if isinstance(value, BlockArgument) or not is_inside(value, loop): return value
        new = value.owner.clone({v: made(v) for v in value.owner.operands})
        before(anchor, new)
        known[value] = new.results[value.index]
        return known[value]
    new = op.clone({v: made(v) for v in op.operands})
    new.attributes.pop("number", None)
    before(anchor, new)
    new.result.name_hint = op.result.name_hint
    return new.result
