"""Sums of a loop that run on into its next iteration. A part of consuming.py.

    for …:                                       for … iter_args(%sum, …, %before):
      s = dots                                     s = dots
                                                   dot_wait 1 (%sum)
                                                   mbarrier_arrive %empty[%before]
      dot_wait 0 (s);  p = f(s)                    dot_wait 0 (s);  p = f(s)
      t = dots;  sum = dots of p, %ring[%s]   ->   t = dots;  sum = dots of p, %ring[%s]
      dot_wait 1 (t);  t leaves                    dot_wait 1 (t);  t leaves
      dot_wait 0 (sum)                             yield sum, %s
      mbarrier_arrive %empty[%s]                 dot_wait 0 (sum)
      yield sum                                  mbarrier_arrive %empty[%before]

Between an iteration's last dot and the first one of the next the tensor cores have nothing to do.
Where a sum is waited for behind the next iteration's first dots, they have those meanwhile. The
stage that the sum's last dot reads is released an iteration later.

Where all dots of a loop add to sums, they are one group, and the next iteration's adds to it:

    for … iter_args(%acc, …):                   for … iter_args(%sum, %before, …):
      mbarrier_wait %full[%s] %p                  mbarrier_wait %full[%s] %p
      %d = tile.dot %ring[%s], …, %acc    ->      %d = dot_async %ring[%s], …, %sum;  dot_commit
      yield %d, …                                 dot_wait 1;  mbarrier_arrive %empty[%before]
                                                  yield %d, %s, …
                                                dot_wait 0;  mbarrier_arrive %empty[%before]

A left operand in registers is computed when the group before is over: it still reads its own, and
ptxas would give both the same registers. What it is computed from is read while that one runs; what
needs no computing is read when it is over. A sum that starts from zero starts in undefined
registers, which its first dot overwrites (`keep`): to the assembler they are in use from the role's
beginning. Where the role has other dots, which need registers of their own, sums begin with their
values.

Of other loops a sum runs on only where the rest of the iteration computes nothing, else the dot is
over by then; and where its left operand does not have the registers of the dot under which it runs,
which is in flight then.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.registers import ALIASES, sources
from tkc.ir.rewrite import after, before, defining_slice, erase, rebuild_for, replace, retype
from tkc.ir.types import PendingType, TileType
from tkc.ir.values import (
    block_of,
    first_of,
    index_of,
    parent_of,
    pending_type,
    terminator_of,
    tile_type,
    yielded_by,
)
from tkc.passes.analysis.values import LEAVES, VIEWS
from tkc.passes.planning.operands import running_sums
from tkc.passes.planning.operands import zero as is_zero
from tkc.passes.warpgroups.in_flight import (
    InFlightDot,
    in_registers,
    is_touched_later,
    written_by,
)
from tkc.passes.warpgroups.rings import RingBarriers

# their results are registers of their operand, or none, or come from memory
MOVES = (shared.Read, shared.Convert, threads.DotWait, tile.Dot, tile.Slice, *LEAVES, *VIEWS)


def are_one_group(block: Block) -> list[tile.Dot]:
    """The dots of a loop's body if all add to sums that go round it, and none waits for another:
    whose operand threads make, or whose registers they touch, when it is over.
    """
    loop = block.parent_op()
    if not isinstance(loop, scf.ForOp) or not running_sums(loop):
        return []
    dots = [op for op in block.ops if isinstance(op, tile.Dot)]
    apart = any(written_by(dot) or is_touched_later(dot) for dot in dots)
    return [] if apart or len(dots) > 1 and any(map(in_registers, dots)) else dots


def may_run_on(stages: list[tuple[RingBarriers, SSAValue, Block]], block: Block) -> bool:
    """Whether a dot of a loop's body that reads stages may run on into the next iteration: the body
    waits for them, and one is released when it has waited for the next one, which is another.
    """
    return all(where is block and ring.stages > 1 for ring, _, where in stages)


def carried_count(block: Block, flights: list[InFlightDot]) -> int:
    """How many of the last dots in flight at the end of a loop's body run on into its next
    iteration: those behind which it computes nothing. Nor does it make tiles before its first dot,
    behind whose issue they are waited for.
    """
    first = next((op for op in block.ops if isinstance(op, threads.DotAsync)), None)
    if first is None or not isinstance(block.parent_op(), scf.ForOp):
        return 0
    if any(_makes_tiles(op) for op in block.ops if op.is_before_in_block(first)):
        return 0
    count = 0
    while count < len(flights) and _runs_on(flights[-1 - count], first):
        count += 1
    return count


def _runs_on(flight: InFlightDot, first: threads.DotAsync) -> bool:
    """Whether a dot adds to what a loop carries, which nothing else reads, of stages that the body
    waits for, and the rest of the iteration computes nothing. Its left operand has registers of its
    own: those of the iteration's first dot are written again before the wait.
    """
    uses, block, issued = list(flight.dot.result.uses), block_of(first), flight.issued
    if len(uses) != 1 or not isinstance(uses[0].operation, scf.YieldOp):
        return False
    carried = block.args[1 + uses[0].index]
    return (
        issued.acc is carried
        and not flight.before
        and {use.operation for use in carried.uses} == {flight.dot, issued}
        and first.is_before_in_block(issued)
        and not written_by(flight.dot)
        and not is_touched_later(flight.dot)
        and _computed_of(flight.dot, block) != {first}
        and may_run_on(flight.stages, block)
        and not any(_computes(op) for op in block.ops if issued.is_before_in_block(op))
    )


def _computed_of(dot: tile.Dot, block: Block) -> set[Operation]:
    """The dots of whose results a dot's left operand is computed in a block."""
    found, work, seen = set[Operation](), [dot.a], set[SSAValue]()
    while work:
        value = work.pop()
        while isinstance(wait := value.owner, threads.DotWait):
            value = wait.args[index_of(value)]
        owner = value.owner
        if isinstance(owner, threads.DotAsync):
            found.add(owner)
        elif isinstance(owner, Operation) and owner.parent is block and value not in seen:
            seen.add(value)
            work += [v for inner in owner.walk() for v in inner.operands]
    return found


def _makes_tiles(op: Operation) -> bool:
    return any(isinstance(r.type, TileType) for inner in op.walk() for r in inner.results)


def _computes(op: Operation) -> bool:
    """Whether an operation of a body takes time in which a dot is over: arithmetic of tiles."""
    return _makes_tiles(op) and not isinstance(op, MOVES)


def carry(
    block: Block,
    flights: list[InFlightDot],
    released: list[tuple[RingBarriers, SSAValue]],
    group: list[tile.Dot],
    alone: bool,
) -> None:
    """Has dots at the end of a loop's body run on: they are waited for behind the first dots of its
    next iteration, where the stages are released whose last readers they were. group: all dots of
    the body, if they are one; alone: the role has no others.
    """
    loop = block.parent_op()
    assert isinstance(loop, scf.ForOp)
    indices = [next(iter(flight.dot.result.uses)).index for flight in flights]
    initial = [loop.iter_args[i] for i in indices]
    fresh = alone and bool(group) and all(map(is_zero, initial))
    arguments = [_start(loop, i, fresh) for i in indices]
    wait, go = _inside(block, flights, arguments, group)
    if fresh:
        _keep_if(go, block, {*arguments, *wait.results})
    zero = before(loop, tile.Constant(0, i32)).result
    some = before(loop, CLASSES["lt"](loop.lb, loop.ub)).result
    loop = rebuild_for(loop, range(len(loop.iter_args)), [zero] * len(released))
    terminator_of(block).operands = [*yielded_by(block), *(stage for _, stage in released)]
    _release(released, block.args, wait, go)
    done = after(loop, threads.DotWait(0, [loop.results[i] for i in indices]))
    last, sums = _release(released, loop.results, done, some), list(done.results)
    if fresh:
        yes, no = Block([scf.YieldOp(*sums)]), Block([scf.YieldOp(*initial)])
        chosen = scf.IfOp(some, [v.type for v in initial], Region(yes), Region(no))
        sums = list(after(last, chosen).results)
    for i, value in zip(indices, sums, strict=True):
        loop.results[i].replace_uses_with_if(value, lambda use: use.operation is not done)


def _inside(
    block: Block,
    flights: list[InFlightDot],
    arguments: list[SSAValue],
    group: list[tile.Dot],
) -> tuple[threads.DotWait, SSAValue]:
    """The wait in a body for the dots of the iteration before, which go round the loop as these
    arguments; and whether there is such an iteration.
    """
    loop, place = parent_of(first_of(block), scf.ForOp), _place_of_wait(block, group)
    for flight in flights:
        flight.dot.result.replace_all_uses_with(flight.pending)
        for dot in reversed(flight.dots):
            erase(dot)
    if not group:
        wait = place = _wait_behind_first(block, arguments, flights)
    elif in_registers(group[0]):
        wait = place = _waited(before(place, threads.DotWait(0, arguments)))
    else:
        wait = _wait_behind_first(block, [], flights)
    return wait, before(place, CLASSES["ne"](block.args[0], loop.lb)).result


def _start(loop: scf.ForOp, index: int, fresh: bool) -> SSAValue:
    """What a loop carries as a sum becomes one under way, of no value where it is fresh."""
    argument, value = loop.body.block.args[1 + index], loop.iter_args[index]
    retype(argument, t := PendingType(tile_type(argument)))
    start = threads.Undefined(t) if fresh else threads.Accumulator(value)
    loop.operands[3 + index] = before(loop, start).result
    return argument


def _place_of_wait(block: Block, group: list[tile.Dot]) -> Operation:
    """The fence before a body's first dot; where the left operand of its only one is computed, what
    does so.
    """
    computed = _computed(group[0]) if group and in_registers(group[0]) else None
    fences = (op for op in block.ops if isinstance(op, threads.Fence) and op.kind.data == "dot")
    return next(fences) if computed is None or isinstance(computed, tile.Dot) else computed


def _wait_behind_first(
    block: Block, arguments: list[SSAValue], flights: list[InFlightDot]
) -> threads.DotWait:
    """The wait behind the first dots' commit for those of the iteration before (arguments), but not
    for these themselves, which may add to the same sums (no arguments).
    """
    issued = next(op for op in block.ops if isinstance(op, threads.DotAsync)).result
    commit = next(op for op in block.ops if isinstance(op, threads.DotCommit))
    pending = [issued] if arguments else [flight.pending for flight in flights]
    ready = [True] * len(arguments) + [False] * len(pending)
    return _waited(after(commit, threads.DotWait(1, [*arguments, *pending], ready)))


def _waited(wait: threads.DotWait) -> threads.DotWait:
    """A wait whose results all others use."""
    for old, new in zip(wait.args, wait.results, strict=True):
        old.replace_uses_with_if(new, lambda use: use.operation is not wait)
    return wait


def _keep_if(go: SSAValue, block: Block, sums: set[SSAValue]) -> None:
    """Dots add to sums of the iteration before where there is one."""
    for op in list(block.ops):
        if isinstance(op, threads.DotAsync) and op.acc in sums:
            kept = threads.DotAsync(op.a, op.b, op.acc, pending_type(op.result), go)
            replace(op, kept)


def _release(
    released: list[tuple[RingBarriers, SSAValue]],
    values: Sequence[SSAValue],
    anchor: Operation,
    when: SSAValue,
) -> Operation:
    """Releases, behind a wait, the stages whose numbers a loop carries last; gives what is last."""
    for (ring, _), stage in zip(released, values[len(values) - len(released) :], strict=True):
        stage.name_hint = "stage_before"
        arrive = threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp", when=when)
        anchor = after(anchor, *ring.fence(), arrive)
    return anchor


def _computed(dot: tile.Dot) -> Operation:
    """The first operation that computes a dot's left operand of what was read in memory, or that
    writes registers in which the operand lies, also of nothing that was read: the dot before takes
    its own from the same registers.
    """
    block = block_of(dot)
    writers = {v.owner for v in sources(dot.a)}
    read: set[SSAValue] = set()
    for op in defining_slice([dot.a], block):
        if op in writers:
            return op
        loads = isinstance(op, (shared.Read, tile.Load, tile.LoadPointers))
        if loads and isinstance(op.results[0].type, TileType):
            read.update(op.results)
        elif any(v in read for v in op.operands):
            if not isinstance(op, ALIASES):
                return op
            read.update(op.results)
    return dot
