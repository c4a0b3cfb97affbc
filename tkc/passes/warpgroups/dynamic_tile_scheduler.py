"""The dynamic tile scheduler for roles: the producer claims programs for all of them. A step of
roles.py.

The producer claims, and broadcasts the next program's number and ids to the consumers through a
ring of its own (claims.py):

    last copy of %n                   producer, behind the loop of %n:
    %next = tile.next_program %n        next_program;  mbarrier_wait %empty;  broadcast_store …
    yield %next, %m, %n         ->      mbarrier_arrive %full;  mbarrier_wait …;  last copy
                                      consumer, behind its dots:
                                        mbarrier_wait %full;  broadcast_load …
                                        mbarrier_arrive %empty

The latency of a claim, and of the divisions that turn a number into ids, is hidden by the wait for
the last stage, and the next program's first copies follow at once. A claim at a program's begin
would be a whole program old when it is used, and blocks with long programs would claim too many.

The bounds of a tile group (minimum and maximum over its programs) are many operations, in which a
producer copies nothing and a consumer issues no dots. What is long, follows from a claimed number
alone and is needed by a loop or a copy is carried around the loop over programs
(`precompute_next_tile`), before the roles part: the producer computes and broadcasts it.

    while (%n = …) {                        %low, %high = bounds of the first
      %low, %high = bounds of %n      ->    while (%n = …, %low, %high) {
      …                                       …
    }                                         yield %next, bounds of %next
                                            }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerType, i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import (
    before,
    clone_slice,
    defining_slice,
    erase,
    holding,
    rebuild_while,
    replace,
    with_results,
)
from tkc.ir.values import (
    block_of,
    is_side_effect_free,
    next_of,
    operations_in,
    parent_of,
    terminator_of,
    yielded_by,
)
from tkc.passes.planning.order import work_claims
from tkc.passes.warpgroups.claims import ClaimRing

MIN_PRECOMPUTED_OPERATIONS = 8  # so many take longer than a broadcast
# the producer holds them in registers until it may broadcast them: with more, ptxas spills
MAX_PRECOMPUTED_NUMBERS = 8
BROADCAST_BYTES = 128  # of shared memory, of a number
STAGE_BARRIER_BYTES = 16  # of a ring's stage


def share_claims(producer: threads.Role, others: list[threads.Role], members: int) -> None:
    """The producer's claims for all, and what follows from them for the next program. What does not
    follow from a claim each role works out itself.
    """
    claim, *copies = (operations_in(role, threads.NextProgram)[0] for role in (producer, *others))
    follows = _following(claim)
    ring = ClaimRing(parent_of(producer, threads.Roles), len(follows), others)
    turn = ring.carried_by(parent_of(claim, scf.WhileOp))
    _claim(claim, turn.body, follows, partial(ring.post, turn))
    ring.advance(turn, yielded_by(turn.body))
    for copy in copies:
        turn = ring.carried_by(parent_of(copy, scf.WhileOp))
        carried = list(yielded_by(turn.body))
        place = _behind_dots(turn.body) if members == 1 else terminator_of(turn.body)
        for i, number in zip(follows, ring.take(turn, place), strict=True):
            carried[i] = number
        # what only the producer works out has lost its use, and is swept away
        terminator_of(turn.body).operands = carried
        replace(copy, carried[follows[0] : follows[0] + 1])
        ring.advance(turn, carried)


def share_atomics(producer: threads.Role, others: list[threads.Role]) -> set[Operation]:
    """The numbers by which a program's loops take their work: the producer takes each, at once when
    it has issued the copies before it. Returns the producer's atomics.
    """
    anchor, kept = parent_of(producer, threads.Roles), set[Operation]()
    by_role = [work_claims(role) for role in (producer, *others)]
    for claim, *copies in zip(*by_role, strict=True):
        ring = ClaimRing(anchor, 1, others)
        turn = ring.carried_by(parent_of(claim, scf.WhileOp))
        kept.add(claim)
        ring.post(turn, next_of(claim), [claim.results[0]])
        ring.advance(turn, yielded_by(turn.body))
        for copy in copies:
            turn = ring.carried_by(parent_of(copy, scf.WhileOp))
            replace(copy, ring.take(turn, copy))
            ring.advance(turn, yielded_by(turn.body))
    return kept


def precompute_next_tile(
    programs: scf.WhileOp, asked: Sequence[SSAValue], room: int
) -> dict[SSAValue, SSAValue]:
    """What takes many steps and follows from a claimed program's numbers alone goes round the loop
    with them. So it follows from the claim: the producer computes it there, and broadcasts it. Only
    what a program's loops and copies wait for: what is computed behind them delays no role, and
    would take registers all along. asked: values that roles will wait for. room: bytes of shared
    memory that are left. What stands in their place, and in that of others.
    """
    body = programs.after_region.block
    claim = next(op for op in body.ops if isinstance(op, threads.NextProgram))
    numbers: set[SSAValue] = {body.args[i] for i in _following(claim)}
    known, effort = _known(body, numbers), lambda v: len(defining_slice([v], body))
    found = [
        v
        for op in body.ops
        for v in op.results
        if v in known
        and v.type == i32
        and (v in asked or any(_waits(use.operation, body) for use in v.uses))
        and effort(v) >= MIN_PRECOMPUTED_OPERATIONS
    ]
    chosen = sorted(found, key=lambda v: (v not in asked, -effort(v)))[
        : max(0, min(MAX_PRECOMPUTED_NUMBERS, room // BROADCAST_BYTES - len(numbers)))
    ]
    worked = [v for v in found if v in chosen]
    return _carried_around(programs, worked, asked) if worked else {}


def _following(claim: threads.NextProgram) -> list[int]:
    """Which of the values that a loop over programs carries follow from its claim."""
    body = block_of(claim)
    return [i for i, v in enumerate(yielded_by(body)) if claim in defining_slice([v], body)]


def _carried_around(
    programs: scf.WhileOp, worked: list[SSAValue], asked: Sequence[SSAValue]
) -> dict[SSAValue, SSAValue]:
    """Values of a program's top, computed before the loop over programs and at its end, for the
    next one; what stands in their place.
    """
    body, end = programs.after_region.block, terminator_of(programs.after_region.block)
    steps = defining_slice(worked, body)
    starts: dict[SSAValue, SSAValue] = dict(zip(body.args, programs.arguments, strict=True))
    later: dict[SSAValue, SSAValue] = dict(zip(body.args, end.operands, strict=True))
    clone_slice(steps, starts, programs)
    rebuild_while(programs, [starts[v] for v in worked])
    clone_slice(steps, later, end)
    end.operands = [*end.operands, *(later[v] for v in worked)]
    carried: dict[SSAValue, SSAValue] = dict(zip(worked, body.args[-len(worked) :], strict=False))
    for old, new in carried.items():
        old.replace_uses_with_if(new, lambda use: use.operation not in steps)
    for op in reversed(steps):
        if not any(r.first_use or r in asked and r not in carried for r in op.results):
            erase(op)
    return carried


def room_left(kernel: tile.Kernel, instances: int, available: int) -> int:
    """Bytes of shared memory that a kernel's buffers and barriers leave. Of what is no ring each
    instance of the consumers will have its own.
    """
    taken = 2 * STAGE_BARRIER_BYTES  # of the claims' own ring
    for t in (op.result.type for op in kernel.walk() if isinstance(op, shared.Alloc)):
        size, unit = (
            t.bytes * (instances if t.stages == 1 else 1),
            max(BROADCAST_BYTES, t.memory.alignment),
        )
        taken += -(-size // unit) * unit + STAGE_BARRIER_BYTES * t.stages
    return available - taken


def _waits(op: Operation, body: Block) -> bool:
    """Whether it is a loop, a branch, something in one, or a copy."""
    return op.parent is not body or bool(op.regions) or isinstance(op, shared.CopyAsync)


def _known(body: Block, numbers: set[SSAValue]) -> set[SSAValue]:
    """Scalars of a block's top that follow from some of its arguments, and from nothing else that
    changes.
    """
    found, same = set(numbers), set[SSAValue]()
    for op in body.ops:
        if (
            op.regions
            or not is_side_effect_free(op)
            or isinstance(op, threads.Identity)
            or not all(isinstance(r.type, IntegerType) for r in op.results)
        ):
            continue
        here = [
            v
            for v in op.operands
            if (v.owner if isinstance(v.owner, Block) else v.owner.parent) is body
        ]
        if all(v in found or v in same for v in here):
            (found if any(v in found for v in here) else same).update(op.results)
    return found - numbers


def _claim(
    claim: threads.NextProgram,
    body: Block,
    follows: list[int],
    broadcast: Callable[[Operation, list[SSAValue]], None],
) -> None:
    """A claim, what follows from it (which of the values that the loop carries) and its
    announcement, before the wait for the last stage that the program fills: while it waits, a
    producer has time. In each way through a branch around that wait; behind a loop around it."""
    end = terminator_of(body)
    values = [end.operands[i] for i in follows]
    *_, around = None, *holding(body.ops, shared.CopyAsync)
    if not isinstance(around, scf.IfOp):
        claim.detach()
        before(
            next(
                op for op in body.ops if any(claim.result in inner.operands for inner in op.walk())
            ),
            claim,
        )
        return broadcast(end, values)
    moved = [
        op for op in defining_slice(values, body) if op is claim or around.is_before_in_block(op)
    ]
    ways = []
    for region in around.regions:
        place = _before_last_copy(region.block)
        mapping: dict[SSAValue, SSAValue] = {}
        clone_slice(moved, mapping, place)
        ways.append([mapping.get(v, v) for v in values])
        broadcast(place, ways[-1])
    for i, found in zip(follows, with_results(around, ways), strict=False):
        end.operands[i] = found
    for op in reversed(moved):
        if not any(r.first_use for r in op.results):
            erase(op)


def _before_last_copy(block: Block) -> Operation:
    """The first copy of a block behind its last loop; its end where there is none."""
    loops = [op for op in block.ops if isinstance(op, scf.ForOp)]
    copies = [op for op in block.ops if isinstance(op, shared.CopyAsync)]
    behind = (op for op in copies if not loops or loops[-1].is_before_in_block(op))
    return next(behind, terminator_of(block))


def _behind_dots(body: Block) -> Operation:
    """What follows a program's last dots: its epilogue, in which nothing waits for a number; and
    what other roles wait for before they come to say the number.
    """
    last = holding(body.ops, tile.Dot, threads.MbarrierArrive)
    return next_of(last[-1]) if last else terminator_of(body)
