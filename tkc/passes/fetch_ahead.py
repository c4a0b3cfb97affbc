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
loads its own tile again, which is in the cache. Whether a load may be early at all is asked of the
schedule (schedule/expand.py). The programs that a persistent thread block runs in turn are a loop
like any other, which runs at least once; where they wait for one another, those of all thread
blocks write nothing to it, and the next one's tile arrives while this one waits.

Which loads, and when, is the plan's choice:

`prefetch`: in a program without dots every load, at the start of an iteration: memory is busy while
the iteration computes. So is, in one role, what is small in a loop without dots beside others with
dots (a recurrence on their results), whose few threads wait for each step.

roles: beside dots what is small, a scale or a bias, and no tensor map copies, unless the plan finds
no registers for it (`early_small_loads`). It comes straight from global memory, and instructions
wait in order, so that the next dot would be issued late. The next one is loaded during the dots of
this iteration, when what is small has been computed from the old one, in whose registers it then
arrives; the last iteration loads its own again. (Where a dot's operand is computed of it, at the
start: that computation is what it arrives during.) So does one of an array that nothing bounds,
whose first block is loaded only where the loop has an iteration.

So is what consumers load by pointers (`early_pointers`), an operand of a dot or what is beside one,
be it a tile or a number (but not one that says where a block is copied from: the role that copies
is ahead anyway); of an iteration that does not exist nothing is loaded.

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
from typing import TypeAlias

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.host_values import is_unbounded
from tkc.ir.plan import Plan
from tkc.ir.rewrite import defining_slice, is_inside
from tkc.ir.types import ArrayType, TileType, bits
from tkc.ir.values import block_of, holds, is_side_effect_free
from tkc.passes import PassContext
from tkc.passes.analysis.access import may_run_ahead
from tkc.passes.analysis.alias import Overlaps, kernel_around, unchanged, unwritten
from tkc.passes.analysis.values import LOADS
from tkc.passes.planning.converting import STAYS
from tkc.passes.planning.operands import MAX_BESIDE_BYTES
from tkc.passes.schedule.expand import End, LoopSchedule, broken_rules, expand, reads, surely_runs

Loading: TypeAlias = tile.Load | tile.LoadPointers


def run(module: ModuleOp, context: PassContext) -> None:
    plan = context.plan
    if plan is None:
        return
    for kernel in module.body.block.ops:
        _in_loops(kernel, plan, context)
        if plan.roles != "one" and (moved := _before_dots(kernel, plan, context)):
            context.decisions.append(
                f"fetch-ahead: {moved} small load{'s'[: moved > 1]} before the dots"
            )


def _in_loops(op: Operation, plan: Plan, context: PassContext) -> None:
    """Makes loads of loops early, outer loops first."""
    if isinstance(op, scf.ForOp) and (loads := _early_loads(op, plan, context)):
        op = expand(op, _schedule(op, loads, context.overlaps), context.overlaps)
        context.decisions.append(
            f"fetch-ahead: {len(loads)} load{'s'[: len(loads) > 1]} of a loop one iteration early"
        )
    for inner in [inner for region in op.regions for b in region.blocks for inner in b.ops]:
        _in_loops(inner, plan, context)


# ---- which loads
# --------------------------------------------------------------------------------------------------
def _early_loads(loop: scf.ForOp, plan: Plan, context: PassContext) -> list[Loading]:
    """The loads of a loop that are made one iteration early."""
    if plan.roles == "one":
        beside = holds(kernel_around(loop), tile.Dot) and not holds(loop, tile.Dot)
    else:
        beside = bool(_dots_of(loop))
    if not plan.prefetch and not beside:
        return []
    return [
        op
        for op in loop.body.block.ops
        if isinstance(op, LOADS) and _wanted(op, plan) and _may_be_early(op, loop, context.overlaps)
    ]


def _dots_of(loop: scf.ForOp) -> list[tile.Dot]:
    return [op for op in loop.body.block.ops if isinstance(op, tile.Dot)]


def _wanted(op: Loading, plan: Plan) -> bool:
    """Whether the plan has a load made early: beside dots what goes straight to registers, few of
    them; without dots, what is not a scalar.
    """
    if isinstance(op, tile.LoadPointers):
        return plan.early_pointers and STAYS not in op.attributes and not op.semantics
    if plan.prefetch:
        return isinstance(op.result.type, TileType) and plan.load(op).path not in ("own", "held")
    return (
        plan.early_small_loads
        and "number" in op.attributes
        and STAYS not in op.attributes
        and plan.load(op).path not in ("tma", "cp_async", "own", "held")
        and _bytes(op.result) <= MAX_BESIDE_BYTES
    )


def _bytes(value: SSAValue) -> int:
    """Of registers: an array takes none, and is never moved for them."""
    if isinstance(value.type, ArrayType):
        return MAX_BESIDE_BYTES + 1
    return value.type.bytes if isinstance(value.type, TileType) else bits(value.type) // 8


def _may_be_early(op: Loading, loop: scf.ForOp, overlaps: Overlaps) -> bool:
    """Whether the block of another iteration may be read in this one: by pointers, that of the same
    program.
    """
    watches = any(map(tile.watches, loop.walk()))
    if isinstance(op, tile.LoadPointers):
        if watches or surely_runs(loop):
            return False
    elif not may_run_ahead(op):
        return False
    elif watches and not unchanged(op, loop, overlaps):
        return False  # by programs of other blocks, too, that one waits for
    return not any(broken_rules(loop, _schedule(loop, [op], overlaps), overlaps))


# ---- before dots
# --------------------------------------------------------------------------------------------------
def _before_dots(kernel: tile.Kernel, plan: Plan, context: PassContext) -> int:
    """Moves small loads before the first dot of their block; how many."""
    moved = 0
    for block in [b for op in kernel.walk() for region in op.regions for b in region.blocks]:
        first = next((op for op in block.ops if holds(op, tile.Dot)), None)
        if first is None or isinstance(block.parent_op(), scf.ForOp):
            continue
        for op in list(block.ops):
            if isinstance(op, tile.Load) and first.is_before_in_block(op):
                early = _wanted(op, plan) and op.mask is None
                early = early and unchanged(op, kernel, context.overlaps)
                moved += early and _move_before(first, op)
    return moved


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
def _schedule(loop: scf.ForOp, loads: list[Loading], overlaps: Overlaps) -> LoopSchedule:
    """Loads one iteration early, behind the last dot of a loop, or at the start where there is none
    or its operands are made of them. What is made of the old ones comes first, where their
    registers are then free for the next ones. Behind the last program is the place of another one,
    which may write there.
    """
    dots, fetched = _dots_of(loop), [op.results[0] for op in loads]
    used = _used_early(loop.body.block, set(fetched)) if dots else _widened(loop, fetched)
    others = [op for op in list(loop.body.block.ops)[:-1] if op not in {*loads, *used}]
    start = others.index(dots[-1]) + 1 if dots and not _feeds(loads, dots, loop) else 0
    blocks = [op for op in loads if isinstance(op, tile.Load)]
    pointed = [op for op in loads if op not in blocks]
    end = End.CLAMP if dots or _is_bound_to(blocks, loop, overlaps) else End.ANY
    early = (blocks, 1, end), (pointed, 1, End.GUARD)
    return LoopSchedule.of(
        loop, ((used, 0, end), (others[:start], 0, end), *early, (others[start:], 0, end))
    )


def _is_bound_to(loads: Sequence[tile.Load], loop: scf.ForOp, overlaps: Overlaps) -> bool:
    """Whether some loads are there only in iterations that a loop has: nothing else says of which
    array they are, or what there is of it; or another program may write where the next one would
    be.
    """
    if surely_runs(loop) and not all(unwritten(op, overlaps) for op in loads):
        return True
    return any(is_inside(op.array, loop) or is_unbounded(op.array) for op in loads)


def _feeds(loads: Sequence[Loading], dots: Sequence[tile.Dot], loop: scf.ForOp) -> bool:
    """Whether a dot's operand is computed of what is loaded: that takes its time before the dot,
    and what is loaded for the next iteration arrives meanwhile.
    """
    operands = [v for dot in dots for v in dot.operands[:2]]
    return not {*loads}.isdisjoint(defining_slice(operands, loop.body.block))


def _widened(loop: scf.ForOp, fetched: Sequence[SSAValue]) -> list[Operation]:
    """Casts of fetched values, if those are all their uses."""
    users = [use.operation for v in fetched for use in v.uses]
    all_casts = all(isinstance(op, Cast) and op.parent is loop.body.block for op in users)
    return users if all_casts else []


def _used_early(body: Block, fetched: set[SSAValue]) -> list[Operation]:
    """What is computed of fetched values, and is small too."""
    known, found = set(fetched), list[Operation]()
    for op in list(body.ops)[:-1]:
        if (
            op.regions
            or not is_side_effect_free(op)
            or len(op.results) != 1
            or _bytes(op.results[0]) > MAX_BESIDE_BYTES
        ):
            continue
        made = [v for v in reads(op, body) if isinstance(v.owner, Operation)]
        if any(v in known for v in op.operands) and all(v in known for v in made):
            known.add(op.results[0])
            found.append(op)
    return found
