"""fetch-ahead: what a loop with dots loads into registers is loaded one iteration early, so that nothing waits for global memory.

A scale or a bias that a loop reads beside its dots comes straight from global memory: hundreds of clocks in which the next dot is not even issued,
for instructions wait in order. The value for the next iteration is asked for under the dots of this one, when what is small has been computed of the
old one, in whose registers it then arrives:

    for k:                                         s0 = load(scales, k_first)
      s = load(scales, k / 128)                    for k, carrying s = s0:
      acc = acc + dot(x, y) · s          ->          d = dot(x, y)
                                                     s1 = load(scales, next(k) / 128)       next(k): k + step, in the last iteration k
                                                     acc = acc + d · s
                                                     yield s1

Loads of blocks read zeros outside of their array, so the one before a loop that never runs is harmless. Only loads that are small, unmasked, always
done and computed from the loop's counter move (through no view that it chooses: where the loop never runs there may be none); not where the loop writes to memory, nor those that a tensor map makes.
"""
from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Select
from tkc.ir.rewrite import before, clone_slice, defining_slice, erase, rebuild_for
from tkc.ir.types import TileType, bits, element_of
from tkc.passes import PassContext

MOST = 1024                    # bytes of a tile that registers hold through an iteration


def run(module: ModuleOp, context: PassContext) -> None:
    plan = context.plan
    if plan is None or plan.roles == "one": return
    for kernel in module.body.block.ops:
        for loop in [op for op in kernel.walk() if isinstance(op, scf.ForOp) and any(isinstance(inner, tile.Dot) for inner in op.body.block.ops)]:
            loads = [op for op in loop.body.block.ops if isinstance(op, tile.Load) and _moves(op, loop, plan)]
            if not loads: continue
            _ahead(loop, loads)
            context.decisions.append(f"fetch-ahead: {len(loads)} small loads of a loop made one iteration early")


def _moves(op: tile.Load, loop: scf.ForOp, plan) -> bool:
    number = op.attributes["number"].value.data if "number" in op.attributes else len(plan.loads)
    if number >= len(plan.loads) or plan.loads[number].path != "registers" or op.mask is not None or op.other is not None: return False
    size = op.result.type.size if isinstance(op.result.type, TileType) else 1
    if size * bits(element_of(op.result.type)) > 8 * MOST: return False
    body = loop.body.block
    if any(isinstance(inner, (tile.Store, tile.StorePointers, tile.Atomic, tile.AtomicBlock)) or isinstance(inner, tile.LoadPointers) and inner.semantics is not None for inner in loop.walk()): return False
    needed = defining_slice(op.operands, body)
    if any(isinstance(inner, tile.View) for inner in needed): return False
    inputs = {v for inner in needed for v in inner.operands} | set(op.operands)
    return all(is_side_effect_free(inner) and not inner.regions for inner in needed) and not any(isinstance(v, BlockArgument) and v.block is body and v.index > 0 for v in inputs) \
        and any(v is body.args[0] for v in inputs)


def _ahead(loop: scf.ForOp, loads: list[tile.Load]) -> None:
    body = loop.body.block
    needed = defining_slice([v for op in loads for v in op.operands], body)
    count, mapping = len(loop.iter_args), {body.args[0]: loop.lb}
    clone_slice([*needed, *loads], mapping, loop)
    loop = rebuild_for(loop, range(count), [mapping[op.result] for op in loads])
    arguments, counter = body.args[-len(loads):], body.args[0]
    for op, argument in zip(loads, arguments): op.result.replace_all_uses_with(argument)
    _used_early(body, set(arguments))
    first = next(op for op in reversed(list(body.ops)) if isinstance(op, tile.Dot)).next_op                    # under the dots
    after_ = before(first, CLASSES["add"](counter, loop.step)).result
    following = before(first, Select(before(first, CLASSES["lt"](after_, loop.ub)).result, after_, counter)).result
    ahead: dict = {counter: following}
    clone_slice([*needed, *loads], ahead, first)
    body.last_op.operands = [*body.last_op.operands, *(ahead[op.result] for op in loads)]
    for op, argument in zip(loads, arguments):
        argument.name_hint = op.result.name_hint
        erase(op)


def _used_early(body: Block, fetched: set[SSAValue]) -> None:
    """Moves what is computed of fetched values, and is small too, to the start: their registers are then free for the next ones."""
    start, known = None, set(fetched)
    for op in list(body.ops):
        if op.regions or not is_side_effect_free(op) or len(op.results) != 1 or op is body.last_op: continue
        t = op.results[0].type
        if isinstance(t, TileType) and t.size * bits(element_of(t)) > 8 * MOST: continue
        if not any(v in known for v in op.operands) or any(v not in known and v.owner is not body and isinstance(v.owner, Operation) and v.owner.parent is body for v in op.operands): continue
        known.add(op.results[0])
        op.detach()
        if start is None: body.insert_op_before(op, body.first_op)
        else: body.insert_op_after(op, start)
        start = op
