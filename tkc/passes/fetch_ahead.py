"""fetch-ahead: what a loop loads into registers is loaded one iteration early, so that nothing
waits for global memory.

Before:

    for %r = %lo to %hi step %s {
      %v = tile.load %x[%r, 0]
      … %v …
    }

After:

    %a = tile.load %x[%lo, 0]
    for %r = %lo to %hi step %s iter(%v = %a) {
      %b = tile.load %x[%r + %s, 0]
      … %v …
      yield %b
    }

A load gives zeros outside of its array, so loading a tile that is not used is harmless, before a
loop that never runs as in the last iteration. The array must exist all the same: a view that the
induction variable chooses (`x[i]`) exists only where the loop runs at all, and the last iteration
loads its own tile again, which is in the cache. What is read follows from the induction variable
and from what stands before the loop, and nothing in the loop writes to it (nor to an array that
overlaps it). The programs that a persistent thread block runs in turn are a loop like any other,
which runs at least once; where they wait for one another, those of all thread blocks write nothing
to it, and the next one's tile arrives while this one waits.

Which loads, and when, is the plan's choice:

`prefetch`: in a program without dots every load, at the start of an iteration: memory is busy while
the iteration computes. So is, in one role, what is small in a loop without dots beside others with
dots (a recurrence on their results), whose few threads wait for each step.

roles: beside dots what is small, a scale or a bias, and no tensor map copies, unless the plan finds
no registers for it (`early_small_loads`). It comes straight from global memory, and instructions
wait in order, so that the next dot would be issued late. The next one is loaded during the dots of
this iteration, when what is small has been computed from the old one, in whose registers it then
arrives; the last iteration loads its own again. So does one of an array that nothing bounds, whose
first block is loaded only where the loop has an iteration.

Before:

    for k:
      s = load(scales, k / 128)
      acc = acc + dot(x, y) · s

After, where next(k) is k + step, and k in the last iteration:

    s0 = load(scales, k_first)
    for k, carrying s = s0:
      d = dot(x, y)
      s1 = load(scales, next(k) / 128)
      acc = acc + d · s
      yield s1

Where dots are in no loop, or in one that this load is behind, there is no next iteration: what is
small is loaded before the first dot, so that it arrives during the dots.

Before:

    d = dot(x, y)
    s = load(scales, k)

After:

    s = load(scales, k)
    d = dot(x, y)
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i1
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.host_values import is_unbounded
from tkc.ir.plan import Plan
from tkc.ir.rewrite import (
    Builder,
    before,
    clone_slice,
    counted_slice,
    defining_slice,
    erase,
    is_inside,
    rebuild_for,
)
from tkc.ir.threads import Identity
from tkc.ir.types import ArrayType, TileType, bits
from tkc.ir.values import block_of, is_side_effect_free, operations_in, owner_op, terminator_of
from tkc.passes import PassContext
from tkc.passes.analysis.access import addresses
from tkc.passes.analysis.alias import unchanged
from tkc.passes.planning.operands import MAX_BESIDE_BYTES


def run(module: ModuleOp, context: PassContext) -> None:
    plan = context.plan
    if plan is None:
        return
    for kernel in module.body.block.ops:
        has_dots = _has_dots(kernel)
        for loop in operations_in(kernel, scf.ForOp):
            dots = [op for op in loop.body.block.ops if isinstance(op, tile.Dot)]
            beside = has_dots and not _has_dots(loop) if plan.roles == "one" else bool(dots)
            if not (plan.prefetch or beside):
                continue
            if loads := _early_loads(loop, plan, context):
                _ahead(loop, loads, dots[-1] if dots else None)
                context.decisions.append(
                    f"fetch-ahead: {len(loads)} load{'s'[: len(loads) > 1]} of a loop one iteration"
                    " early"
                )
        if plan.roles != "one" and (moved := _before_dots(kernel, plan, context)):
            context.decisions.append(
                f"fetch-ahead: {moved} small load{'s'[: moved > 1]} before the dots"
            )


# ---- which loads
# --------------------------------------------------------------------------------------------------
def _early_loads(loop: scf.ForOp, plan: Plan, context: PassContext) -> list[tile.Load]:
    """The loads of a loop that are made one iteration early."""
    return [
        op
        for op in loop.body.block.ops
        if isinstance(op, tile.Load)
        and _wanted(op, plan)
        and _may_be_early(op, loop, context.overlaps)
    ]


def _wanted(op: tile.Load, plan: Plan) -> bool:
    """Whether the plan has a load made early: beside dots what goes straight to registers, few of
    them; without dots, what is not a scalar.
    """
    if plan.prefetch:
        return isinstance(op.result.type, TileType) and plan.load(op).path not in ("own", "held")
    return (
        plan.early_small_loads
        and "number" in op.attributes
        and plan.load(op).path in ("registers", "broadcast")
        and _bytes(op.result) <= MAX_BESIDE_BYTES
    )


def _bytes(value: SSAValue) -> int:
    """Of registers: an array takes none, and is never moved for them."""
    if isinstance(value.type, ArrayType):
        return MAX_BESIDE_BYTES + 1
    return value.type.bytes if isinstance(value.type, TileType) else bits(value.type) // 8


def _may_be_early(op: tile.Load, loop: scf.ForOp, overlaps) -> bool:
    """Whether the block of another iteration may be read in this one."""
    if (
        is_inside(op.array, loop)
        and not _runs(loop)
        or op.mask is not None
        or any(isinstance(o.type, TileType) for o in op.offsets)
        or addresses(op.result)
    ):
        return False
    return unchanged(op, loop, overlaps) and counted_slice(op.operands, loop) is not None


def _runs(loop: scf.ForOp) -> bool:
    """Whether a loop runs at least once: that over a block's programs."""
    return isinstance(loop.lb.owner, Identity) and isinstance(loop.parent_op(), tile.Kernel)


# ---- before dots
# --------------------------------------------------------------------------------------------------
def _before_dots(kernel: tile.Kernel, plan: Plan, context: PassContext) -> int:
    """Moves small loads before the first dot of their block; how many."""
    moved = 0
    for block in [b for op in kernel.walk() for region in op.regions for b in region.blocks]:
        first = next((op for op in block.ops if _has_dots(op)), None)
        if first is None or isinstance(block.parent_op(), scf.ForOp):
            continue
        for op in list(block.ops):
            if isinstance(op, tile.Load) and first.is_before_in_block(op):
                early = _wanted(op, plan) and op.mask is None
                early = early and unchanged(op, kernel, context.overlaps)
                moved += early and _move_before(first, op)
    return moved


def _has_dots(op: Operation) -> bool:
    return any(isinstance(inner, tile.Dot) for inner in op.walk())


def _move_before(anchor: Operation, load: tile.Load) -> bool:
    """Moves a load, and what its offsets need, before an operation of its block; whether it may
    be."""
    block = block_of(load)
    needed = [
        op for op in defining_slice(load.operands, block) if not op.is_before_in_block(anchor)
    ]
    if any(op is anchor or op.regions or not is_side_effect_free(op) for op in needed):
        return False
    for op in (*needed, load):
        op.detach()
        block.insert_op_before(op, anchor)
    return True


# ---- one iteration early
# -----------------------------------------------------------------------------------------------
def _ahead(loop: scf.ForOp, loads: list[tile.Load], dot: tile.Dot | None) -> None:
    """`dot`: the last one of the loop, None in a loop without."""
    body = loop.body.block
    count, counter = len(loop.iter_args), body.args[0]
    needed = defining_slice([v for op in loads for v in op.operands], body)

    def asked(at: SSAValue, anchor: Operation) -> list[SSAValue]:
        """The loads, and what their offsets need, made again for another value of the counter."""
        mapping: dict[SSAValue, SSAValue] = {counter: at}
        clone_slice([*needed, *loads], mapping, anchor)
        return [mapping[op.result] for op in loads]

    first = asked(loop.lb, loop)
    if dot is None:
        first = [_only_where_it_runs(value, loop) for value in first]
    loop = rebuild_for(loop, range(count), first)
    arguments = body.args[1 + count :]
    for op, argument in zip(loads, arguments, strict=True):
        op.result.replace_all_uses_with(argument)
        argument.name_hint = op.result.name_hint
    if dot is not None:
        _used_early(body, set(arguments))
    anchor = _widened_first(body, arguments) if dot is None else _behind(dot)
    build = Builder(anchor)
    following = build.add(counter, loop.step)
    if dot is not None or any(is_inside(op.array, loop) or is_unbounded(op.array) for op in loads):
        following = build.select(build.lt(following, loop.ub), following, counter)
    end = terminator_of(body)
    end.operands = [*end.operands, *asked(following, anchor)]
    for op in loads:
        erase(op)


def _only_where_it_runs(value: SSAValue, loop: scf.ForOp) -> SSAValue:
    """What is loaded before a loop: of an array that nothing bounds only where the loop has
    iterations, for what a loop without any would load need not be there.
    """
    load = owner_op(value)
    if not isinstance(load, tile.Load) or not is_unbounded(load.array):
        return value
    build, t = Builder(load), load.result.type
    runs: SSAValue = build.lt(loop.lb, loop.ub)
    if isinstance(t, TileType):
        runs = build(tile.Splat(runs, TileType(t.extents, i1)))
    new = tile.Load(load.array, load.offsets, load.extents.get_values(), runs, load.other)
    new.attributes |= load.attributes
    found = before(load, new).result
    erase(load)
    return found


def _behind(op: Operation) -> Operation:
    """The operation behind one that is not the last of its block."""
    return op.next_op or terminator_of(block_of(op))


def _widened_first(body: Block, fetched: Sequence[SSAValue]) -> Operation:
    """Moves casts of fetched values to the start, if those are all their uses: the next ones then
    arrive in the same registers. Where the next ones are to be asked for.
    """
    casts = [
        use.operation
        for v in fetched
        for use in v.uses
        if isinstance(use.operation, Cast) and use.operation.parent is body
    ]
    if sum(len(list(v.uses)) for v in fetched) != len(casts):
        return _first(body)
    for op in casts:
        op.detach()
    body.insert_ops_before(casts, _first(body))
    return _behind(casts[-1]) if casts else _first(body)


def _first(body: Block) -> Operation:
    """The first operation of a loop's body, which has a terminator at least."""
    return body.first_op or terminator_of(body)


def _used_early(body: Block, fetched: set[SSAValue]) -> None:
    """Moves what is computed of fetched values, and is small too, to the start: their registers are
    then free for the next ones.
    """
    start: Operation | None = None
    known = set(fetched)
    for op in list(body.ops):
        if (
            op.regions
            or not is_side_effect_free(op)
            or len(op.results) != 1
            or op is body.last_op
            or _bytes(op.results[0]) > MAX_BESIDE_BYTES
        ):
            continue
        if not any(v in known for v in op.operands) or any(
            v not in known
            and v.owner is not body
            and isinstance(v.owner, Operation)
            and v.owner.parent is body
            for v in op.operands
        ):
            continue
        known.add(op.results[0])
        op.detach()
        if start is None:
            body.insert_op_before(op, _first(body))
        else:
            body.insert_op_after(op, start)
        start = op
