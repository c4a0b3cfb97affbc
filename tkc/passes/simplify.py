"""simplify: the same program with less in it.

    %z = tile.constant 0.0 : tile<64x64xf32>             %d = tile.dot %x, %y, %acc
    %p = tile.dot %x, %y, %z                       ->
    %d = tile.add %acc, %p

    scf.for %k = … iter_args(%t = %x, %u = %u0) {        %c = tile.mul %a, %b
      %c = tile.mul %a, %b                               scf.for %k = … iter_args(%t = %x) {
      …                                            ->      …
      scf.yield %t1, %u                                    scf.yield %t1
    }                                                    }

(%c does not change in the loop, and %u never changes.)  In rounds until nothing changes:
  fold       constants, ranges, casts, splats, views (analysis/folding.py), set bits counted by
             halves (analysis/counted_bits.py); of equal operations the first stays; loads that are
             filled with zeros say nothing of it
  loops      what an iteration does not change is computed before the loop; carried values that are
             not used, that never change, or that move as the loop counts, are dropped
  dead code  whatever no effect depends on, through loops and branches
  updates    atomic updates of floats whose old values nobody asks for order nothing, where the
             program says no order, and nothing in it watches what other programs write
  indices    conversions of small indices to floats are marked: of sums with constants the code
             generator converts one, and adds floats

Tiles leave a loop only if they are small: index tiles and operations that make large tiles from
small ones stay, or every thread would hold the result from the first iteration to the last.
"""

from __future__ import annotations

from collections.abc import Hashable

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr, f32, i32
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import Pure

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import Cast, Elementwise
from tkc.ir.ranges import Overflow, Ranges
from tkc.ir.rewrite import (
    Builder,
    erase,
    is_inside,
    narrow_while,
    rebuild_for,
    rebuild_if,
    replace,
)
from tkc.ir.types import TileType, element_of, is_float
from tkc.ir.values import (
    first_of,
    is_side_effect_free,
    operations_in,
    reached,
    terminator_of,
    yielded_by,
)
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant, fold
from tkc.passes.analysis.polynomials import Agreement, Scalars, TooLarge
from tkc.passes.analysis.unit_axes import drop_unit_axes

MAX_ROUNDS = 10
MAX_HOISTED_WORDS = 2048  # 32-bit words of a tile that may stay in registers all through a loop
REAL = True  # constants of floats are folded
COSTLY = (tile.Reduce, tile.Scan, tile.Dot, tile.Sort, tile.Histogram, tile.Gather)
# what is alive only where something needs it
WITHOUT_EFFECT = {scf.YieldOp, scf.ConditionOp, tile.Yield, tile.Load, shared.Read}
# so that it and a tile's extent are, together, among the integers that float32 has
MAX_SMALL = 1 << 23


def run(module: ModuleOp, context: PassContext) -> None:
    """Simplifies every kernel until nothing changes, in at most `MAX_ROUNDS` rounds."""
    for kernel in module.body.block.ops:
        start = sum(1 for _ in kernel.walk())
        for _ in range(MAX_ROUNDS):
            changed = _fold(kernel.body.block, {}, Ranges())
            changed |= _hoist(kernel.body.block)
            changed |= drop_unit_axes(kernel)
            changed |= _unchanged(kernel)
            changed |= _counted(kernel)
            changed |= sweep(kernel)
            if not changed:
                break
        _relax_updates(kernel)
        _mark_small(kernel)
        end = sum(1 for _ in kernel.walk())
        if end != start:
            context.decisions.append(f"simplify: {end} operations of {start}")


# ---- folding and common subexpressions
# ---------------------------------------------------------------------------------
def _fold(block: Block, seen: dict[Hashable, Operation], ranges: Ranges) -> bool:
    changed = False
    op = block.first_op
    while op is not None:
        if (values := fold(op, ranges)) is not None:
            before = op.prev_op
            replace(op, values)
            op, changed = (before.next_op if before is not None else block.first_op), True
            continue
        if isinstance(op, tile.Assume) and constant(op.condition) == 1:
            assume, op, changed = op, op.next_op, True
            erase(assume)
            continue
        if (key := _key(op)) is not None:
            if (twin := seen.get(key)) is not None:
                repeated, op, changed = op, op.next_op, True
                replace(repeated, twin.results)
                continue
            seen[key] = op
        for region in op.regions:
            for inner in region.blocks:
                changed |= _fold(inner, dict(seen), ranges)
        op = op.next_op
    return changed


# ---- conversions of indices
# --------------------------------------------------------------------------------------------------
def _mark_small(kernel: tile.Kernel) -> None:
    """Says of conversions to float32 that sums of what they convert are integers that float32 has:
    later nothing is known of where a program's place came from.
    """
    ranges = Ranges()
    for op in operations_in(kernel, Cast):
        if element_of(op.arg.type) != i32 or element_of(op.result.type) != f32:
            continue
        found = ranges.of(op.arg)
        if found is None or max(-found.lo, found.hi) > MAX_SMALL:
            continue
        op.attributes["small"] = UnitAttr()
        left = [op.arg]
        while left:
            match left.pop().owner:
                case Elementwise() as term if term.fn.name in ("add", "sub"):
                    left += term.operands
                    if ranges.overflow(term) is Overflow.NEVER:
                        term.attributes["exact"] = UnitAttr()
                case tile.Broadcast() | tile.Reshape() | tile.Transpose() as view:
                    left.append(view.arg)


# ---- atomic updates
# --------------------------------------------------------------------------------------------------
def _relax_updates(kernel: tile.Kernel) -> None:
    """An atomic without words about order is a release and an acquire of all a program does, which
    costs two fences. A sum of floats is no signal, so where nobody watches it orders nothing.
    """
    updates = [op for op in kernel.walk() if is_update(op)]
    if any(tile.watches(op) and op not in updates for op in kernel.walk()):
        return
    for op in updates:
        assert isinstance(op, tile.Atomic)
        op.semantics = StringAttr("relaxed")


def is_update(op: Operation) -> bool:
    """Whether an operation updates floats on one GPU, gives nothing of what was there, and says no
    order, or none.
    """
    if not isinstance(op, tile.Atomic) or op.result is not None and op.result.first_use is not None:
        return False
    if op.semantics is not None and op.semantics.data != "relaxed":
        return False
    if op.scope is not None and op.scope.data != "gpu":
        return False
    return is_float(element_of(op.value.type)) and op.kind.data in ("add", "max", "min")


def _key(op: Operation) -> Hashable | None:
    """What an operation computes; None if it has effects."""
    if op.regions or not op.results or not op.has_trait(Pure):
        return None
    return (
        type(op),
        tuple(op._operands),
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
        if op.regions and isinstance(op, (scf.ForOp, scf.WhileOp)):
            for child in [o for region in op.regions for b in region.blocks for o in b.ops]:
                if _may_leave(child, op):
                    child.detach()
                    block.insert_op_before(child, op)
                    changed = True
    return changed


def _may_leave(op: Operation, loop: Operation) -> bool:
    if not op.results or not op.has_trait(Pure):
        return False
    if isinstance(op, tile.Multiple):
        return False  # a loop that does not run promises nothing
    if any(
        is_inside(v, loop) for inner in op.walk() for v in inner.operands if not is_inside(v, op)
    ):
        return False
    if isinstance(op, (*COSTLY, tile.Constant, tile.Splat)):
        return True
    sizes = [_words(v) for v in op.results]
    return max(sizes) <= max(
        MAX_HOISTED_WORDS, max((_words(v) for v in op.operands if v.has_one_use()), default=0)
    )


def _words(value: SSAValue) -> int:
    t = value.type
    return t.bytes // 4 if isinstance(t, TileType) else 1


def _unchanged(kernel: tile.Kernel) -> bool:
    """A carried value that every iteration yields as it was is what it was before the loop."""
    changed = False
    for loop in operations_in(kernel, scf.ForOp):
        body = loop.body.block
        terminator = terminator_of(body)
        for argument, start, end, result in zip(
            body.args[1:], loop.iter_args, terminator.operands, loop.results, strict=True
        ):
            if end is not argument and end is not start:
                continue
            if not _only_yields(argument) or result.first_use is not None:
                _replace_but_in(terminator, argument, start)
                result.replace_all_uses_with(start)
                changed = True
    return changed


def _counted(kernel: tile.Kernel) -> bool:
    """A carried number that moves as its loop counts is the loop's number, and what lies between
    the two, where that is known.
    """
    changed = False
    for loop in operations_in(kernel, scf.ForOp):
        body = loop.body.block
        terminator, counter = terminator_of(body), body.args[0]
        for argument, start, end, result in zip(
            body.args[1:], loop.iter_args, terminator.operands, loop.results, strict=True
        ):
            if argument.type != counter.type or result.first_use is not None:
                continue
            if not _moves_by(end, argument, loop.step):
                continue
            ahead = _ahead(start, loop.lb)
            if ahead is not None:
                first = Builder(first_of(body))
                value = first.add(counter, ahead) if ahead else counter
                _replace_but_in(terminator, argument, value)
                changed = True
    return changed


def _moves_by(end: SSAValue, argument: BlockArgument, step: SSAValue) -> bool:
    """Whether an iteration adds the loop's step to a carried value."""
    op = end.owner
    if not isinstance(op, Elementwise) or op.fn.name != "add" or argument not in op.args:
        return False
    by = op.args[1] if op.args[0] is argument else op.args[0]
    known = constant(step)
    return by is step or (known is not None and constant(by) == known)


def _ahead(start: SSAValue, of: SSAValue) -> int | None:
    """By how much a number is more than another of its type, modulo two to the power of its bits;
    None where that depends on others, or on what has wrapped before it was extended or divided.
    """
    scalars = Scalars()
    try:
        ahead = (scalars.of(start) - scalars.of(of)).exact
    except TooLarge:
        return None
    agree = all(scalars.agreement(value) is not Agreement.NONE for value in (start, of))
    return ahead if agree else None


def _replace_but_in(user: Operation, old: SSAValue, new: SSAValue) -> None:
    """Replaces all uses of a value but those by one operation."""
    old.replace_uses_with_if(new, lambda use: use.operation is not user)


def _only_yields(argument: BlockArgument) -> bool:
    return all(use.operation is argument.block.last_op for use in argument.uses)


# ---- dead code
# --------------------------------------------------------------------------------------------------
def sweep(kernel: tile.Kernel) -> bool:
    """Erases what no effect depends on. A carried value is alive only if its result, or something
    alive in the loop, uses it.
    """
    ops = list(kernel.walk())
    effects: list[Operation | SSAValue] = [op for op in ops if _has_effect(op)]
    alive = set(reached(effects, _needs))
    changed = False
    for op in reversed(ops):
        if op.parent is not None:
            changed |= _trim(op, alive) if op in alive else _erase_unused(op)
    return changed


def _trim(op: Operation, alive: set[Operation | SSAValue]) -> bool:
    """Drops what a loop or branch carries or yields and is not alive."""
    if not op.regions:
        return False
    match op:
        case scf.ForOp():
            return _trim_loop(op, alive)
        case scf.WhileOp():
            return _passes_on(op) and _trim_while(op, alive)
        case scf.IfOp():
            return _trim_branch(op, alive)
    return False


def _erase_unused(op: Operation) -> bool:
    """Erases an operation that is not alive, and not used by another that is still there."""
    if not op.results and not isinstance(op, (scf.ForOp, scf.IfOp)):
        return False
    if any(result.first_use for result in op.results):
        return False
    erase(op)
    return True


def _has_effect(op: Operation) -> bool:
    if op.regions or type(op) in WITHOUT_EFFECT:
        return False
    if isinstance(op, tile.LoadPointers):
        return op.semantics is not None  # an acquire orders what follows
    return not is_side_effect_free(op)


def _needs(item: Operation | SSAValue) -> list[Operation | SSAValue]:
    """What must be alive if an operation or a value is."""
    if type(item) is OpResult:
        return [item.op, *_sources(item)]
    if isinstance(item, Operation):
        return _around(item) + _operands(item)
    if not isinstance(item, BlockArgument):
        return []
    loop = item.block.parent_op()
    if isinstance(loop, scf.ForOp):
        return [loop, loop.results[item.index - 1]] if item.index else [loop]
    if isinstance(loop, scf.WhileOp) and _passes_on(loop):
        return [loop, loop.results[item.index]]
    return [] if loop is None or isinstance(loop, tile.Kernel) else [loop]


def _around(op: Operation) -> list[Operation | SSAValue]:
    """The operation around another, inside the kernel."""
    parent = op.parent_op()
    return [] if parent is None or isinstance(parent, tile.Kernel) else [parent]


def _operands(op: Operation) -> list[Operation | SSAValue]:
    """The values that an operation needs whichever of its results are alive."""
    if not op.regions:
        return list(op._operands)
    match op:
        case scf.ForOp():
            return [op.lb, op.ub, op.step]
        case scf.IfOp():
            return [op.cond]
        case threads.Roles() | threads.Role():
            return []
        case scf.WhileOp():
            test, body = op.before_region.block, op.after_region.block
            if _passes_on(op):
                return [yielded_by(test)[0]]
            return [*op.arguments, *yielded_by(test), *yielded_by(body)]
    inside = [v for region in op.regions for inner in region.walk() for v in inner.operands]
    return [*op.operands, *inside]


def _sources(result: OpResult) -> list[SSAValue]:
    """The values that one result of a loop or branch comes from; none of other operations."""
    op, i = result.op, result.index
    if not op.regions:
        return []
    match op:
        case scf.ForOp():
            body = op.body.block
            return [op.iter_args[i], body.args[1 + i], yielded_by(body)[i]]
        case scf.WhileOp() if _passes_on(op):
            return [op.arguments[i], yielded_by(op.after_region.block)[i]]
        case scf.IfOp():
            return [yielded_by(region.block)[i] for region in op.regions]
    return []


def _trim_branch(branch: scf.IfOp, alive: set[Operation | SSAValue]) -> bool:
    """Drops the results of a branch that are not alive."""
    keep = [i for i, r in enumerate(branch.results) if r in alive or r.first_use is not None]
    if len(keep) == len(branch.results):
        return False
    rebuild_if(branch, keep)
    return True


def _passes_on(loop: scf.WhileOp) -> bool:
    """Whether the test of a loop passes on what it gets, and nothing else."""
    test = loop.before_region.block
    return list(yielded_by(test)[1:]) == list(test.args)


def _trim_while(loop: scf.WhileOp, alive: set[Operation | SSAValue]) -> bool:
    """Drops the carried values of such a loop that are not alive."""
    keep = [i for i, r in enumerate(loop.results) if r in alive or r.first_use is not None]
    if len(keep) == len(loop.results):
        return False
    test, body = loop.before_region.block, loop.after_region.block
    for i in set(range(len(loop.results))).difference(keep):
        for argument in (test.args[i], body.args[i]):
            argument.replace_all_uses_with(loop.arguments[i])
    narrow_while(loop, keep)
    return True


def _trim_loop(loop: scf.ForOp, alive: set[Operation | SSAValue]) -> bool:
    """Drops the carried values of a loop that are not alive."""
    keep = [i for i, r in enumerate(loop.results) if r in alive]
    dead = [i for i in range(len(loop.results)) if i not in keep]
    if not dead:
        return False
    body = loop.body.block
    for i in dead:
        if loop.results[i].first_use is not None:
            return False
        # only what is dead, or is dropped now, still used it
        body.args[1 + i].replace_all_uses_with(loop.iter_args[i])
    rebuild_for(loop, keep)
    return True
