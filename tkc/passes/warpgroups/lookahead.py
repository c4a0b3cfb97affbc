"""Early test of the next stage: a consumer tests whether its loop's next stage is full while it
still has other work. A step of roles.py.

    for … iter_args(%s, %p):                    for … iter_args(%s, %p, %there):
      mbarrier_wait %full[%s] %p                  mbarrier_wait %full[%s] %p unless %there
      dots of %ring[%s]                           dots of %ring[%s]
      %s1, %p1 = ring_next %s, %p           ->    %s1, %p1 = ring_next %s, %p
      dot_wait                                    dot_wait
                                                  %next = mbarrier_test %full[%s1] %p1
      vector work                                 vector work
      yield %s1, %p1                              yield %s1, %p1, %next

Between the last result of an iteration and the first dot of the next one stand a stage's address,
its parity and a wait, in which this warpgroup issues no dots. Done early they overlap the dots; a
stage that is not full by then is waited for as before. The attribute `ahead` asks the emitter for
the same for the induction variable: its next value, and the loop's condition, before the dots end.

Only where the loop's own dots are over before the vector work: where dots run on into the next
iteration, the tensor cores are busy and the wait is hidden.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import UnitAttr, i1
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import threads, tile
from tkc.ir.rewrite import after, before, rebuild_for, replace
from tkc.ir.types import TileType
from tkc.ir.values import index_of, operations_in, terminator_of, yielded_by


def look_ahead(role: threads.Role) -> None:
    for loop in operations_in(role, scf.ForOp):
        body = loop.body.block
        wait, over = _first_wait(body), _last_dots(body)
        if wait is None or over is None or not _works(over):
            continue
        step = _step(wait)
        if step is None or [
            yielded_by(body)[index_of(v) - 1] for v in (wait.index[0], wait.parity)
        ] != list(step.results):
            continue
        stage, parity = (loop.iter_args[index_of(v) - 1] for v in (wait.index[0], wait.parity))
        rebuild_for(
            loop, range(len(loop.iter_args)), [_asked(loop, wait.barriers, stage, parity)]
        ).attributes["ahead"] = UnitAttr()
        there, end = body.args[-1], terminator_of(body)
        there.name_hint = "there"
        if not step.is_before_in_block(over):
            step.detach()
            before(over, step)
        next_ = after(_behind(over), threads.MbarrierTest(wait.barriers, *step.results)).result
        end.operands = [*end.operands, next_]
        replace(wait, threads.MbarrierWait(wait.barriers, wait.index[0], wait.parity, there))


def _first_wait(body: Block) -> threads.MbarrierWait | None:
    """The wait for a carried stage, before anything else that takes time."""
    for op in body.ops:
        if isinstance(op, threads.MbarrierWait):
            carried = all(
                isinstance(v.owner, Block) and v.owner is body and index_of(v) > 0
                for v in (op.index[0], op.parity)
            )
            return op if carried and op.unless is None else None
        if isinstance(op, (threads.DotAsync, threads.DotWait)) or op.regions:
            return None
    return None


def _last_dots(body: Block) -> threads.DotWait | None:
    """The wait for the last of the block's own dots; None where some run on."""
    waits = [op for op in body.ops if isinstance(op, threads.DotWait)]
    return waits[-1] if waits and waits[-1].pending.value.data == 0 else None


def freed(over: threads.DotWait) -> list[Operation]:
    """The arrivals that follow a wait for dots, which release what these have read, and their
    fences.
    """
    found: list[Operation] = []
    while isinstance(
        op := (found[-1] if found else over).next_op, (threads.MbarrierArrive, threads.Fence)
    ):
        found.append(op)
    return found


def _behind(over: threads.DotWait) -> Operation:
    """The last of those arrivals: they come first, others wait for them."""
    return [over, *freed(over)][-1]


def _works(over: threads.DotWait) -> bool:
    """Whether tiles are computed behind the dots."""
    op = over.next_op
    while op is not None:
        if not isinstance(op, scf.YieldOp) and any(
            isinstance(r.type, TileType) for r in op.results
        ):
            return True
        op = op.next_op
    return False


def _step(wait: threads.MbarrierWait) -> threads.RingNext | None:
    return next(
        (
            use.operation
            for use in wait.index[0].uses
            if isinstance(use.operation, threads.RingNext)
            and use.index == 0
            and use.operation.parity is wait.parity
            and use.operation.parent is wait.parent
        ),
        None,
    )


def _asked(loop: scf.ForOp, barriers: SSAValue, stage: SSAValue, parity: SSAValue) -> SSAValue:
    """Whether the first stage is full: tested behind the last dots before the loop, or false."""
    step, op = stage.owner, loop.prev_op
    while op is not None and not isinstance(op, threads.DotWait) and op is not step:
        op = op.prev_op
    if (
        isinstance(op, threads.DotWait)
        and isinstance(step, threads.RingNext)
        and step.next_parity is parity
        and step.parent is loop.parent
        and step.is_before_in_block(op)
    ):
        return after(_behind(op), threads.MbarrierTest(barriers, stage, parity)).result
    return before(loop, tile.Constant(0, i1)).result
