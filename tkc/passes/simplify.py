"""simplify: the same program with less in it.

    %z = tile.constant 0.0 : tile<64x64xf32>             %d = tile.dot %x, %y, %acc
    %p = tile.dot %x, %y, %z                       ->
    %d = tile.add %acc, %p

    scf.for %k = … iter_args(%t = %x, %u = %u0) {        %c = tile.mul %a, %b        (does not change in the loop)
      %c = tile.mul %a, %b                               scf.for %k = … iter_args(%t = %x) {
      …                                            ->      …
      scf.yield %t1, %u                                    scf.yield %t1              (%u never changed)
    }                                                    }

In rounds until nothing changes:
  fold       constants, ranges, casts, splats, views (analysis/folding.py); operations equal to an earlier one are that one
  loops      what an iteration does not change is computed before the loop; carried values that nobody needs, or that never change,
             are dropped
  dead code  whatever no effect depends on, through loops and branches

Tiles leave a loop only if that costs no registers worth mentioning: index tiles and what makes big
tiles from small ones stay, or every thread would hold them from the first iteration to the last.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import Pure, is_side_effect_free

from tkc.ir import shared, threads, tile
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import erase, is_inside, rebuild_for, rebuild_if, replace
from tkc.ir.types import TileType
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant, fold

MOST_ROUNDS, LIGHT = (
    10,
    2048,
)  # 32-bit words of a tile that may stay in registers all through a loop
REAL = True  # constants of floats are folded
COSTLY = (tile.Reduce, tile.Scan, tile.Dot, tile.Sort, tile.Histogram)


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        start = sum(1 for _ in kernel.walk())
        for _ in range(MOST_ROUNDS):
            changed = _fold(kernel.body.block, {}, Ranges())
            changed |= _hoist(kernel.body.block)
            changed |= _unchanged(kernel)
            changed |= sweep(kernel)
            if not changed:
                break
        end = sum(1 for _ in kernel.walk())
        if end != start:
            context.decisions.append(f"simplify: {end} operations of {start}")


# ---- folding and common subexpressions
# ---------------------------------------------------------------------------------
def _fold(block: Block, seen: dict, ranges: Ranges) -> bool:
    changed, op = False, block.first_op
    while op is not None:
        if (values := fold(op, ranges)) is not None:
            before = op.prev_op
            replace(op, values)
            op, changed = (before.next_op if before is not None else block.first_op), True
            continue
        if isinstance(op, tile.Assume) and constant(op.condition) == 1:
            op, gone, changed = op.next_op, op, True
            erase(gone)
            continue
        if (key := _key(op)) is not None:
            if (twin := seen.get(key)) is not None:
                gone, op, changed = op, op.next_op, True
                replace(gone, twin.results)
                continue
            seen[key] = op
        for region in op.regions:
            for inner in region.blocks:
                changed |= _fold(inner, dict(seen), ranges)
        op = op.next_op
    return changed


def _key(op: Operation):
    """What an operation computes; None if it has effects."""
    if op.regions or not op.results or not op.has_trait(Pure):
        return None
    return (
        type(op),
        tuple(op.operands),
        tuple(sorted(op.properties.items(), key=lambda p: p[0])),
        tuple(r.type for r in op.results),
    )


# ---- loops
# --------------------------------------------------------------------------------------------------
def _hoist(block: Block) -> bool:
    changed = False
    for op in list(block.ops):
        for region in op.regions:
            for inner in region.blocks:
                changed |= _hoist(inner)
        if isinstance(op, (scf.ForOp, scf.WhileOp)):
            inside = {inner for region in op.regions for inner in region.blocks}
            for inner in [o for b in inside for o in b.ops]:
                if _may_leave(inner, op):
                    inner.detach()
                    block.insert_op_before(inner, op)
                    changed = True
    return changed


def _may_leave(op: Operation, loop: Operation) -> bool:
    if not op.results or not op.has_trait(Pure):
        return False
    if any(
        is_inside(v, loop) for inner in op.walk() for v in inner.operands if not is_inside(v, op)
    ):
        return False
    if isinstance(op, (*COSTLY, tile.Constant, tile.Splat)):
        return True
    sizes = [_words(v) for v in op.results]
    return max(sizes) <= max(
        LIGHT, max((_words(v) for v in op.operands if v.has_one_use()), default=0)
    )


def _words(value: SSAValue) -> int:
    t = value.type
    return t.bytes // 4 if isinstance(t, TileType) else 1


def _unchanged(kernel: tile.Kernel) -> bool:
    """A carried value that every iteration yields as it was is what it was before the loop."""
    changed = False
    for loop in [op for op in kernel.walk() if isinstance(op, scf.ForOp)]:
        body = loop.body.block
        for argument, start, end, result in zip(
            body.args[1:], loop.iter_args, body.last_op.operands, loop.results, strict=False
        ):
            if (end is argument or end is start) and (
                argument.first_use is not None
                and not _only_yields(argument)
                or result.first_use is not None
            ):
                argument.replace_uses_with_if(start, lambda use: use.operation is not body.last_op)
                result.replace_all_uses_with(start)
                changed = True
    return changed


def _only_yields(argument: BlockArgument) -> bool:
    return all(use.operation is argument.block.last_op for use in argument.uses)


# ---- dead code
# --------------------------------------------------------------------------------------------------
def sweep(kernel: tile.Kernel) -> bool:
    """Erases what no effect depends on. A carried value is alive only if its result, or something
    alive in the loop, uses it.
    """
    alive: set = set()
    work: list = [op for op in kernel.walk() if _has_effect(op)]
    while work:
        item = work.pop()
        if item in alive:
            continue
        alive.add(item)
        work += _needs(item)
    changed = False
    for op in reversed(list(kernel.walk())):
        if op.parent is None:
            continue
        if isinstance(op, scf.ForOp) and op in alive:
            changed |= _trim(op, alive)
        elif isinstance(op, scf.IfOp) and op in alive and op.results:
            changed |= _trim_branch(op, alive)
        elif (
            op not in alive
            and (op.results or isinstance(op, (scf.ForOp, scf.IfOp)))
            and not any(r.first_use for r in op.results)
        ):
            erase(op)
            changed = True
    return changed


def _has_effect(op: Operation) -> bool:
    if isinstance(op, (scf.YieldOp, scf.ConditionOp, tile.Yield)) or op.regions:
        return False
    if isinstance(op, (tile.Load, shared.Read)):
        return False
    if isinstance(op, tile.LoadPointers):
        return op.semantics is not None  # an acquire orders what follows
    return not is_side_effect_free(op)


def _needs(item) -> list:
    """What must be alive if an operation or a value is."""
    if isinstance(item, Operation):
        parent = item.parent_op()
        around = [parent] if parent is not None and not isinstance(parent, tile.Kernel) else []
        match item:
            case scf.ForOp():
                return around + [item.lb, item.ub, item.step]
            case scf.IfOp():
                return around + [item.cond]
            case threads.Roles() | threads.Role():
                return around
            case scf.WhileOp():
                return around + [
                    *item.arguments,
                    *item.before_region.block.last_op.operands,
                    *item.after_region.block.last_op.operands,
                ]
        return (
            around
            + list(item.operands)
            + [v for region in item.regions for inner in region.walk() for v in inner.operands]
        )
    if isinstance(item, OpResult):
        op, i = item.owner, item.index
        match op:
            case scf.ForOp():
                return [
                    op,
                    op.iter_args[i],
                    op.body.block.args[1 + i],
                    op.body.block.last_op.operands[i],
                ]
            case scf.IfOp():
                return [op, *(region.block.last_op.operands[i] for region in op.regions)]
        return [op]
    loop = item.block.parent_op()
    if isinstance(loop, scf.ForOp):
        return [loop] + ([loop.results[item.index - 1]] if item.index else [])
    return [] if loop is None or isinstance(loop, tile.Kernel) else [loop]


def _trim_branch(branch: scf.IfOp, alive: set) -> bool:
    """Drops the results of a branch that are not alive."""
    keep = [i for i, r in enumerate(branch.results) if r in alive or r.first_use is not None]
    if len(keep) == len(branch.results):
        return False
    rebuild_if(branch, keep)
    return True


def _trim(loop: scf.ForOp, alive: set) -> bool:
    """Drops the carried values of a loop that are not alive."""
    keep = [i for i, r in enumerate(loop.results) if r in alive]
    dead = [i for i in range(len(loop.results)) if i not in keep]
    if not dead:
        return False
    body = loop.body.block
    for i in dead:
        argument = body.args[1 + i]
        if loop.results[i].first_use is not None or any(
            use.operation is not body.last_op
            and use.operation not in alive
            and use.operation.parent is None
            for use in argument.uses
        ):
            return False
        argument.replace_all_uses_with(
            loop.iter_args[i]
        )  # only what is dead, or is dropped now, still used it
    rebuild_for(loop, keep)
    return True
