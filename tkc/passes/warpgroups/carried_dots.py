"""Sums of a loop that run on into its next iteration, under its first dot. A part of consuming.py.

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
Where a sum is waited for behind the next iteration's first dot, they have that one meanwhile. The
stage that the sum's last dot reads is released an iteration later.

Only where the rest of the iteration computes nothing, else the dot is over by then; and where its
left operand does not have the registers of the dot under which it runs, which is in flight then.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import after, before, erase, rebuild_for, retype
from tkc.ir.types import PendingType, TileType
from tkc.ir.values import block_of, index_of, next_of, terminator_of, tile_type, yielded_by
from tkc.passes.analysis.values import LEAVES, VIEWS
from tkc.passes.warpgroups.in_flight import InFlightDot, is_touched_later, written_by
from tkc.passes.warpgroups.rings import RingBarriers

# their results are registers of their operand, or none, or come from memory
MOVES = (shared.Read, shared.Convert, threads.DotWait, tile.Dot, tile.Slice, *LEAVES, *VIEWS)


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
        and all(where is block for *_, where in flight.stages)
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
) -> None:
    """Has dots at the end of a loop's body run on: they are waited for behind the first dot of its
    next iteration, where the stages are released whose last readers they were.
    """
    loop = block.parent_op()
    assert isinstance(loop, scf.ForOp)
    indices = [next(iter(flight.dot.result.uses)).index for flight in flights]
    arguments = [block.args[1 + i] for i in indices]
    for flight, i, argument in zip(flights, indices, arguments, strict=True):
        flight.dot.result.replace_all_uses_with(flight.pending)
        erase(flight.dot)
        loop.operands[3 + i] = before(loop, threads.Accumulator(loop.iter_args[i])).result
        retype(argument, PendingType(tile_type(argument)))
    issued = next(op for op in block.ops if isinstance(op, threads.DotAsync))
    pending, ready = [*arguments, issued.result], [True] * len(arguments) + [False]
    wait = after(next_of(issued), threads.DotWait(1, pending, ready))
    go = before(wait, CLASSES["ne"](block.args[0], loop.lb)).result
    for old, new in zip(pending, wait.results, strict=True):
        old.replace_uses_with_if(new, lambda use: use.operation is not wait)
    zero = before(loop, tile.Constant(0, i32)).result
    some = before(loop, CLASSES["lt"](loop.lb, loop.ub)).result
    loop = rebuild_for(loop, range(len(loop.iter_args)), [zero] * len(released))
    terminator_of(block).operands = [*yielded_by(block), *(stage for _, stage in released)]
    done = after(loop, threads.DotWait(0, [loop.results[i] for i in indices]))
    for i, value in zip(indices, done.results, strict=True):
        loop.results[i].replace_uses_with_if(value, lambda use: use.operation is not done)
    for k, (ring, _) in enumerate(released):
        place = k - len(released)
        block.args[place].name_hint = "stage_before"
        for anchor, stage, when in (
            (wait, block.args[place], go),
            (done, loop.results[place], some),
        ):
            arrive = threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp", when=when)
            after(anchor, *ring.fence(), arrive)
