"""Producer and consumers out of one program: the part of schedule-warpgroups for plans with roles.

The program's loops are cloned. The producer's copy keeps what its copies need: the loops, their
bounds, addresses, the ring's stage and parity. The consumers keep the rest. A ring's tokens become
two mbarriers a stage:

    %t = tile.copy_async %a[…] %ring[%s] …      producer:  mbarrier_wait %empty[%s] %p ^ 1
    tile.wait_copies [%t]                                  mbarrier_expect %full[%s] {bytes}
    %d = tile.dot %ring[%s], …, %acc                       tma_load %map[…] %ring[%s], %full[%s]
                                          ->    consumer:  mbarrier_wait %full[%s] %p
                                                           fence dot;  %d = dot_async …;  dot_commit
                                                           dot_wait 1
                                                           mbarrier_arrive %empty[stage before]

Dots run one group deep: a stage is released when the dot after its own has been issued and its own
has ended, by one arrival of each warp. In a cluster that shares copies each block loads a part for
those that share_claims it, and a stage is released to every block that writes there
(programs/clusters.py). The accumulator starts in undefined registers (`keep` is false in a loop's
first iteration); where a loop may have no iterations, its result is the initial value.

With the dynamic tile scheduler the producer claims programs for all roles
(dynamic_tile_scheduler.py). An operand that is relaid (layouts/relayout.py) has two rings: the
producer fills one, a third role, the converter, the other. Its copy of the loops keeps the reads,
what lies between, and the writes:

    %x = tile.read %ring[%s]       converter:  mbarrier_wait %full[%s] %p;  %x = tile.read …;  …
    …                                          mbarrier_wait %empty2[%t] %q ^ 1
    tile.write %ring2[%t], %y  ->              tile.write %ring2[%t], %y;  fence async_shared
                                               mbarrier_arrive %full2[%t], %empty[%s], each warp
                                   consumer:   mbarrier_wait %full2[%t] %q

The roles' parts are in producing.py and consuming.py. Numbers that the producer loads for the
consumers are broadcast beside a stage (broadcasts.py). Results are stored by epilogue_stores.py.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.errors import VerifyError
from tkc.ir import shared, threads, tile
from tkc.ir.plan import Plan
from tkc.ir.rewrite import Builder, before, defining_slice, stamp
from tkc.ir.types import TileType
from tkc.ir.values import parent_of, shared_type
from tkc.passes import PassContext
from tkc.passes.layouts.relayout import RELAYOUT_WARPS
from tkc.passes.planning.hopper import MIN_LOOKAHEAD_REGISTERS
from tkc.passes.programs.clusters import Multicast
from tkc.passes.simplify import sweep
from tkc.passes.warpgroups import broadcasts, co_resident_prologue
from tkc.passes.warpgroups.co_resident import Consumer, Producer, spans
from tkc.passes.warpgroups.consuming import consume
from tkc.passes.warpgroups.cross_tile_prologue import overlap_epilogue
from tkc.passes.warpgroups.dynamic_tile_scheduler import (
    claim_ahead,
    precompute_next_tile,
    room_left,
    share_atomics,
    share_claims,
)
from tkc.passes.warpgroups.lookahead import look_ahead
from tkc.passes.warpgroups.maps import Maps
from tkc.passes.warpgroups.pingpong import alternate, own_buffers
from tkc.passes.warpgroups.producing import convert, produce
from tkc.passes.warpgroups.rings import (
    RingBarriers,
    barriers_of,
    group_of,
    origin,
    relayouts,
    ring_of,
    shared_along,
)
from tkc.passes.warpgroups.tails import straighten

PRODUCER_WARPS = 4


def split(kernel: tile.Kernel, plan: Plan, context: PassContext) -> None:
    block, members, registers = kernel.body.block, plan.members, plan.registers
    if registers is None:
        raise VerifyError("a plan with roles says how many registers each role has")
    common = spans(_programs(block), members) if members > 1 else {}
    posted = broadcasts.insert_broadcasts(kernel, plan)
    if plan.dynamic_schedule:
        precomputed = precompute_next_tile(
            _programs(block),
            [v for span in common.values() for v in (span.first, span.last)],
            room_left(kernel, plan.programs, context.target.shared_bytes),
        )
        for span in dict.fromkeys(common.values()):
            span.first, span.last = (
                precomputed.get(span.first, span.first),
                precomputed.get(span.last, span.last),
            )
    moved = _suffix(block)
    first = next(op for op in moved if op.regions or not is_side_effect_free(op))
    # buffers of all roles, also one that stands behind what the roles do
    for alloc in [op for op in block.ops if isinstance(op, shared.Alloc)]:
        alloc.detach()
        before(first, alloc)
    alone, along = (
        plan.cluster == (1, 1),
        [
            shared_along(op)
            for op in kernel.walk()
            if isinstance(op, shared.CopyAsync) and op.cut is not None
        ],
    )
    multicast = None if alone or not along else Multicast(Builder(first), plan.cluster, along)
    rings: dict[SSAValue, RingBarriers] = {}
    anew = [op for op in kernel.walk() if relayouts(op)]
    raw = {ring_of(origin(write)) for write in anew}
    for wait in [op for op in kernel.walk() if isinstance(op, shared.WaitCopies)]:
        copies = group_of(wait)
        if ring_of(copies[0]) not in rings:
            readers = (
                RELAYOUT_WARPS
                if ring_of(copies[0]) in raw
                else plan.warps
                * (multicast.size if multicast else members if ring_of(copies[0]) in common else 1)
            )
            rings |= dict.fromkeys(
                map(ring_of, copies),
                barriers_of(
                    first,
                    copies,
                    1,
                    readers,
                    members > 1
                    and ring_of(copies[0]) not in common
                    and shared_type(ring_of(copies[0])).stages < 2 * members,
                ),
            )
    for write in anew:
        if ring_of(write) not in rings:
            rings[ring_of(write)] = barriers_of(first, [write], RELAYOUT_WARPS, plan.warps)
    peers = multicast.mask if multicast else None
    consumer = threads.Role("consumer", plan.warps, plan.programs, registers[1])
    producer = threads.Role("producer", PRODUCER_WARPS, 1, registers[0], single=True)
    converters = [threads.Role("converter", RELAYOUT_WARPS, 1, registers[2])] if anew else []
    maps = Maps(before(first, threads.Roles([producer, consumer, *converters])))
    copied: dict[threads.Role, dict[SSAValue, SSAValue]] = {
        role: {} for role in (producer, *converters)
    }
    for role, mapping in copied.items():
        for op in moved:
            role.body.block.add_op(op.clone(mapping))
    for op in moved:
        op.detach()
        consumer.body.block.add_op(op)
    roles = stamp(parent_of(producer, threads.Roles), first)
    for role in (producer, consumer):
        broadcasts.keep_own_half(role, posted, role is producer)
    shared_claims: set[Operation] = set()
    if plan.dynamic_schedule:
        share_claims(producer, [consumer, *converters], members)
    elif not plan.persistent:
        shared_claims = share_atomics(producer, [consumer, *converters])
    if (
        members > 1
        and Producer(
            producer, members, {ring: span.of(copied[producer]) for ring, span in common.items()}
        ).gather()
    ):
        claim_ahead(producer)
    produce(producer.body.block, rings, maps, multicast, shared_claims)
    for role in converters:
        convert(role.body.block, rings, raw)
    if members > 1:
        Consumer(consumer, members, common).part(
            {ring: barriers.full for ring, barriers in rings.items()}
        )
    consume(consumer.body.block, rings, maps, peers, bool(plan.rotate) and plan.warps >= 8)
    roomy = registers[1] >= MIN_LOOKAHEAD_REGISTERS
    if roomy:
        look_ahead(consumer)
    while plan.programs > 1 and sweep(kernel):
        pass  # of what only the consumers use the producer has no copy left
    if members > 1:
        own_buffers(consumer)
    elif plan.programs == 2:
        alternate(consumer)
    if plan.cross_tile_prologue and not (
        co_resident_prologue.overlap_epilogue(consumer)
        if members > 1
        else overlap_epilogue(producer, consumer)
    ):
        context.decisions.append(
            "schedule-warpgroups: programs do not begin with their first dot alone, or do not end"
            " with their last: there is no cross-tile prologue"
        )
    if roomy:
        straighten(consumer)
    before(roles, threads.Fence("mbarrier_init"))
    if alone:
        before(roles, threads.BlockBarrier())
    else:
        before(roles, threads.ClusterArrive(relaxed=True), threads.ClusterWait())
    while sweep(kernel):
        pass
    _begin(kernel)
    context.decisions.append(
        f"schedule-warpgroups: a producer warp and {plan.warps * plan.programs} warps of consumers,"
        f" {f'{RELAYOUT_WARPS} of relayout, ' if anew else ''}{len(set(rings.values()))}"
        f" ring{'s' * (len(set(rings.values())) > 1)}"
    )


def _begin(kernel: tile.Kernel) -> None:
    """Barriers are made and maps asked for at once: what follows from the arguments (where the
    first program lies takes several divisions) is worked out meanwhile, by other warps.
    """
    block = kernel.body.block
    maps = [op.result for op in block.ops if isinstance(op, threads.TensorMap)]
    barriers = (threads.Barriers, threads.MbarrierInit)
    early = defining_slice(maps, block)
    early += [op for op in block.ops if isinstance(op, barriers)]
    anchor = next(op for op in kernel.body.block.ops if op not in early)
    for op in early:
        op.detach()
        before(anchor, op)


def _programs(block: Block) -> scf.WhileOp:
    return next(op for op in block.ops if isinstance(op, scf.WhileOp))


def _suffix(block: Block) -> list[Operation]:
    """What the roles do: everything from the first operation with a region or an effect on,
    allocations and the first claims of work apart, and whatever makes a tile before it, since a
    tile is spread over the warps of the role that makes it.
    """
    ops = [op for op in block.ops if not isinstance(op, (tile.Return, shared.Alloc))]
    start = next(
        i
        for i, op in enumerate(ops)
        if op.regions or not (is_side_effect_free(op) or isinstance(op, tile.Atomic))
    )
    return [
        op for op in ops[:start] if any(isinstance(r.type, TileType) for r in op.results)
    ] + ops[start:]
