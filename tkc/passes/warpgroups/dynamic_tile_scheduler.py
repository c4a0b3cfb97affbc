"""The dynamic tile scheduler for roles: the producer claims programs for all of them. A step of
roles.py.

The producer claims, and broadcasts the next program's number and ids to the consumers through a
ring of its own:

    last copy of %n                   producer, behind the loop of %n:
    %next = tile.next_program %n        next_program;  mbarrier_wait %empty;  broadcast_store …
    yield %next, %m, %n         ->      mbarrier_arrive %full;  mbarrier_wait …;  last copy
                                      consumer, behind its dots:
                                        mbarrier_wait %full;  broadcast_load …
                                        mbarrier_arrive %empty

The latency of a claim, and of the divisions that turn a number into ids, is hidden by the wait for
the last stage, and the next program's first copies follow at once. A claim at a program's begin
would be a whole program old when it is used, and blocks with long programs would claim too many.

Of co-resident programs whose loops begin at different places, the first ends its part of a tile
group while the others are at its last blocks: the producer claims as many iterations before the
loop's end as rings have stages (`claim_ahead`), so that the next group's first blocks are there:

    for %k = %first to %last { copies of %k }      for %k = %first to %some { copies of %k }
    claim, broadcast                         ->    claim, broadcast
    last copy                                      for %k = %some to %last { … };  last copy

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
from xdsl.traits import is_side_effect_free

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import (
    Builder,
    after,
    before,
    clone_slice,
    defining_slice,
    erase,
    following,
    rebuild_while,
    replace,
    with_results,
)
from tkc.ir.values import (
    block_of,
    next_of,
    parent_of,
    shared_type,
    terminator_of,
    yielded_by,
)
from tkc.passes.planning.hopper import work_claims
from tkc.passes.warpgroups.rings import ring_of, slots

MIN_PRECOMPUTED_OPERATIONS = 8  # so many take longer than a broadcast
# the producer holds them in registers until it may broadcast them: with more, ptxas spills
MAX_PRECOMPUTED_NUMBERS = 8
BROADCAST_BYTES = 128  # of shared memory, of a number
STAGE_BARRIER_BYTES = 16  # of a ring's stage


def share_claims(producer: threads.Role, others: list[threads.Role], members: int) -> None:
    """The producer's claims for all, and what follows from them for the next program: rings of two
    numbers. What does not follow from a claim each role works out itself.
    """
    anchor = parent_of(producer, threads.Roles)
    claims = [
        next(op for op in role.walk() if isinstance(op, threads.NextProgram))
        for role in (producer, *others)
    ]
    ends = yielded_by(block_of(claims[0]))
    follows = [
        i for i, v in enumerate(ends) if claims[0] in defining_slice([v], block_of(claims[0]))
    ]
    claimed = [slots(anchor, 2, "claimed") for _ in follows]
    full, empty = (before(anchor, threads.Barriers(2)).result for _ in range(2))
    full.name_hint, empty.name_hint = "full", "empty"
    before(
        anchor,
        threads.MbarrierInit(full, 1),
        threads.MbarrierInit(empty, sum(role.warps.value.data * role.instances for role in others)),
    )
    zero, one = (before(anchor, tile.Constant(n, i32)).result for n in (0, 1))
    for claim in claims:
        body = rebuild_while(parent_of(claim, scf.WhileOp), [zero, zero]).after_region.block
        stage, parity = body.args[-2:]
        end, carried = terminator_of(body), list(yielded_by(body))
        if claim is claims[0]:
            _claim(
                claim, body, follows, partial(_broadcast, stage, parity, claimed, full, empty, one)
            )
            carried = list(end.operands)
        else:
            place = _behind_dots(body) if members == 1 else end
            places = [before(place, shared.Stage(ring, stage)).result for ring in claimed]
            before(place, threads.MbarrierWait(full, stage, parity))
            for slot, i in zip(places, follows, strict=False):
                carried[i] = before(place, threads.BroadcastLoad(slot)).result
            before(place, threads.MbarrierArrive(empty, stage, each="warp"))
            # what only the producer works out has lost its use, and is swept away
            end.operands = carried
            replace(claim, carried[follows[0] : follows[0] + 1])
        end.operands = [*carried, *before(end, threads.RingNext(stage, parity, 2)).results]


def share_atomics(producer: threads.Role, others: list[threads.Role]) -> set[Operation]:
    """The numbers by which a program's loops take their work: the producer takes each, at once when
    it has issued the copies before it, and broadcasts it through a ring of two. Returns the
    producer's atomics.
    """
    anchor = parent_of(producer, threads.Roles)
    arrivals = sum(role.warps.value.data * role.instances for role in others)
    zero, one = (before(anchor, tile.Constant(n, i32)).result for n in (0, 1))
    kept: set[Operation] = set()
    by_role = [work_claims(role) for role in (producer, *others)]
    for claims in zip(*by_role, strict=True):
        ring = slots(anchor, 2, "claimed")
        full, empty = (before(anchor, threads.Barriers(2)).result for _ in range(2))
        full.name_hint, empty.name_hint = "full", "empty"
        before(anchor, threads.MbarrierInit(full, 1), threads.MbarrierInit(empty, arrivals))
        for claim in claims:
            loop = rebuild_while(parent_of(claim, scf.WhileOp), [zero, zero])
            body = loop.after_region.block
            stage, parity = body.args[-2:]
            if claim is claims[0]:
                kept.add(claim)
                taken = claim.results[0]
                _broadcast(stage, parity, [ring], full, empty, one, next_of(claim), [taken])
            else:
                place = before(claim, shared.Stage(ring, stage)).result
                before(claim, threads.MbarrierWait(full, stage, parity))
                number = before(claim, threads.BroadcastLoad(place)).result
                before(claim, threads.MbarrierArrive(empty, stage, each="warp"))
                replace(claim, [number])
            end = terminator_of(body)
            following = before(end, threads.RingNext(stage, parity, 2)).results
            end.operands = [*end.operands, *following]
    return kept


def _broadcast(
    stage: SSAValue,
    parity: SSAValue,
    rings: list[SSAValue],
    full: SSAValue,
    empty: SSAValue,
    one: SSAValue,
    anchor: Operation,
    values: list[SSAValue],
) -> None:
    """The producer's half: waits for a free stage of these rings, writes the values, arrives."""
    places = [before(anchor, shared.Stage(ring, stage)).result for ring in rings]
    free = CLASSES["xor"](parity, one)
    before(anchor, free, threads.MbarrierWait(empty, stage, free.result))
    for place, value in zip(places, values, strict=True):
        before(anchor, threads.BroadcastStore(place, value))
    before(anchor, threads.MbarrierArrive(full, stage))


def precompute_next_tile(
    programs: scf.WhileOp, asked: Sequence[SSAValue], room: int
) -> dict[SSAValue, SSAValue]:
    """What takes many steps and follows from a claimed program's numbers alone goes round the loop
    with them. So it follows from the claim: the producer computes it there, and broadcasts it. Only
    what a program's loops and copies wait for: what is computed behind them delays no role, and
    would take registers all along. asked: values that roles will wait for. room: bytes of shared
    memory that are left. What stands in their place, and in that of others.
    """
    body, end = programs.after_region.block, terminator_of(programs.after_region.block)
    claim = next(op for op in body.ops if isinstance(op, threads.NextProgram))
    numbers: set[SSAValue] = {
        body.args[i] for i, v in enumerate(end.operands) if claim in defining_slice([v], body)
    }
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
    if not worked:
        return {}
    steps = defining_slice(worked, body)
    starts: dict[SSAValue, SSAValue] = dict(zip(body.args, programs.arguments, strict=True))
    later: dict[SSAValue, SSAValue] = dict(zip(body.args, end.operands, strict=True))
    clone_slice(steps, starts, programs)
    rebuild_while(programs, [starts[v] for v in worked])
    clone_slice(steps, later, end)
    end.operands = [*end.operands, *(later[v] for v in worked)]
    carried = dict(zip(worked, body.args[-len(worked) :], strict=False))
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
    around = next(
        (
            op
            for op in reversed(list(body.ops))
            if any(isinstance(inner, shared.CopyAsync) for inner in op.walk())
        ),
        None,
    )
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
        loops, copies = (
            [op for op in region.block.ops if isinstance(op, kind)]
            for kind in (scf.ForOp, shared.CopyAsync)
        )
        place = next(
            (op for op in copies if not loops or loops[-1].is_before_in_block(op)),
            terminator_of(region.block),
        )
        mapping: dict[SSAValue, SSAValue] = {}
        clone_slice(moved, mapping, place)
        ways.append([mapping.get(v, v) for v in values])
        broadcast(place, ways[-1])
    for i, found in zip(follows, with_results(around, ways), strict=False):
        end.operands[i] = found
    for op in reversed(moved):
        if not any(r.first_use for r in op.results):
            erase(op)


def _behind_dots(body: Block) -> Operation:
    """What follows a program's last dots: its epilogue, in which nothing waits for a number."""
    last = [op for op in body.ops if any(isinstance(inner, tile.Dot) for inner in op.walk())]
    return next_of(last[-1]) if last else terminator_of(body)


def claim_ahead(producer: threads.Role) -> None:
    """Claims stand before a loop's last iterations: as many as its rings hold stages, but one,
    which is on its way.
    """
    for claim in [op for op in producer.walk() if isinstance(op, threads.NextProgram)]:
        block = block_of(claim)
        loop = next(
            (
                op
                for op in reversed(list(block.ops))
                if isinstance(op, scf.ForOp) and op.is_before_in_block(claim)
            ),
            None,
        )
        if loop is None:
            continue
        copies = [op for op in loop.walk() if isinstance(op, shared.CopyAsync)]
        ahead = (
            min(
                (shared_type(ring_of(copy)).stages for copy in copies),
                default=0,
            )
            - 1
        )
        if ahead < 2:
            continue
        posted = next(
            op
            for op in block.ops
            if isinstance(op, threads.MbarrierArrive) and claim.is_before_in_block(op)
        )
        between = [
            op for op in block.ops if loop.is_before_in_block(op) and op.is_before_in_block(posted)
        ]
        late = following(loop, between)
        build = Builder(loop)
        trips = build.max(
            build.sub(
                build.up(build.sub(loop.ub, loop.lb), loop.step),
                build.number(ahead, loop.step.type),
            ),
            build.number(0, loop.step.type),
        )
        some = build.add(loop.lb, build.mul(trips, loop.step))
        rest = after(posted, loop.clone())
        for old, new in zip(loop.results, rest.results, strict=False):
            old.replace_all_uses_with(new)
        rest.operands = [some, *rest.operands[1:3], *loop.results]
        loop.operands = [loop.lb, some, *loop.operands[2:]]
        for op in [op for op in reversed(between) if op in late]:
            op.detach()
            after(rest, op)
