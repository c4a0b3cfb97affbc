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
(dynamic_tile_scheduler.py). An operand that is relaid (layouts/relayout.py), or computed of what is
copied (planning/converting.py), has two rings: the producer fills one, a third role, the converter,
the other. Its copy of the loops keeps the reads,
what lies between, and the writes:

    %x = tile.read %ring[%s]       converter:  mbarrier_wait %full[%s] %p;  %x = tile.read …;  …
    …                                          mbarrier_wait %empty2[%t] %q ^ 1
    tile.write %ring2[%t], %y  ->              tile.write %ring2[%t], %y;  fence async_shared
                                               mbarrier_arrive %full2[%t], %empty[%s], each warp
                                   consumer:   mbarrier_wait %full2[%t] %q

What tensor maps do not copy has rings that another role, the copier, fills by cp.async. All its
threads wait for room and ask for a stage, and arrive when what they copied has landed. Who waits
for it fences it for dots:

    tile.copy_async %a[…] %ring[%s] …  copier:    mbarrier_wait %empty[%s] %p ^ 1;  cp_async …
    tile.wait_copies [%t]          ->             mbarrier_arrive %full[%s], each copies
                                       consumer:  mbarrier_wait %full[%s] %p;  fence async_shared

Where programs wait for signals, each role waits; behind a wait the producer fences what it copies.
The roles' parts are in producing.py and consuming.py. Numbers that the producer loads for the
consumers are broadcast beside a stage (broadcasts.py). Results are stored by epilogue_stores.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.errors import VerifyError
from tkc.ir import shared, threads, tile
from tkc.ir.host_values import is_whole
from tkc.ir.layout import WARP
from tkc.ir.plan import Plan
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import Builder, after, before, defining_slice, replace, stamp
from tkc.ir.types import SharedType, TileType
from tkc.ir.values import is_side_effect_free, operations_in
from tkc.passes import PassContext
from tkc.passes.analysis.folding import fold
from tkc.passes.layouts.relayout import RELAYOUT_WARPS
from tkc.passes.planning.gathers import COPIER_WARPS
from tkc.passes.planning.order import acquiring_loops, observing_operations
from tkc.passes.planning.roles.registers import MIN_LOOKAHEAD_REGISTERS
from tkc.passes.programs.clusters import Multicast
from tkc.passes.simplify import sweep
from tkc.passes.warpgroups import broadcasts
from tkc.passes.warpgroups.cluster_sums import send_shares
from tkc.passes.warpgroups.consuming import consume
from tkc.passes.warpgroups.cross_tile_prologue import overlap_epilogue
from tkc.passes.warpgroups.dynamic_tile_scheduler import (
    precompute_next_tile,
    room_left,
    share_atomics,
    share_claims,
)
from tkc.passes.warpgroups.instances import Shared, instances_of
from tkc.passes.warpgroups.lookahead import look_ahead
from tkc.passes.warpgroups.maps import Maps
from tkc.passes.warpgroups.numbers_of_tiles import hold_whole, reduce_alone
from tkc.passes.warpgroups.producing import convert, erase_unread, produce
from tkc.passes.warpgroups.rings import (
    RingBarriers,
    barriers_of,
    group_of,
    is_by_threads,
    is_read_beside,
    origins,
    relayouts,
    ring_of,
    rings_converted,
    shared_along,
)
from tkc.passes.warpgroups.stored import order_stores
from tkc.passes.warpgroups.tails import straighten
from tkc.passes.warpgroups.written_operands import exchange_operands

PRODUCER_WARPS = 4


def split(kernel: tile.Kernel, plan: Plan, context: PassContext) -> None:
    """Writes the roles of a kernel whose plan has some."""
    block, registers = kernel.body.block, plan.registers
    if registers is None:
        raise VerifyError("a plan with roles says how many registers each role has")
    observes = bool(observing_operations(kernel))
    instances = instances_of(block, plan)
    posted = broadcasts.insert_broadcasts(kernel, plan)
    if plan.dynamic_schedule:
        room = room_left(kernel, plan.programs, context.target.shared_bytes)
        carried = precompute_next_tile(_programs(block), instances.bounds(), room)
        instances.replace_bounds(carried)
    order = order_stores(kernel, context.overlaps) if plan.copies_wait else None
    _make_arrays_early(block)
    moved = _suffix(block)
    first = next(op for op in moved if op.regions or not is_side_effect_free(op))
    _allocate_before(block, first)
    multicast = _multicast(kernel, plan, first)
    rings = _Rings(kernel, plan, instances, multicast, first)
    group = _roles(plan, rings, registers, first)
    maps = Maps(group.roles)
    copied = _copy_to(group, moved)
    for role in (group.producer, *group.others):
        reduce_alone(role)
    for role in (group.producer, group.consumer):
        broadcasts.keep_own_half(role, posted, role is group.producer)
    if order is not None:
        copiers = [group.producer, *group.copiers]
        order.divide(group.consumer, copiers, group.converters, group.roles)
    shared_claims = _share_work(plan, group, instances.members)
    instances.gather(group.producer, copied)
    produce(group.producer.body.block, rings.barriers, maps, multicast, shared_claims, observes)
    for loop in acquiring_loops(group.producer):
        # what threads wrote before the signal is read by the tensor memory accelerator
        after(loop, threads.Fence("async_global"))
    for role in group.converters:
        convert(role.body.block, rings.barriers, rings.raw, observes)
    for role in group.copiers:
        produce(role.body.block, rings.barriers, consumers_observe=observes)
    consumer = group.consumer
    instances.part(consumer, {ring: barriers.full for ring, barriers in rings.barriers.items()})
    turns = bool(plan.rotate) and plan.warps >= 8
    exchange_operands(consumer.body.block, plan, group.roles)
    consume(consumer.body.block, rings.barriers, maps, turns, context.overlaps)
    send_shares(consumer, plan, group.roles, context)
    _finish(kernel, plan, context, group, instances)
    context.decisions.append(_said(plan, group, len(set(rings.barriers.values()))))


def _said(plan: Plan, group: _Group, rings: int) -> str:
    return (
        f"schedule-warpgroups: a producer warp and {plan.warps * plan.programs} warps of consumers,"
        f" {f'{RELAYOUT_WARPS} of a converter, ' if group.converters else ''}"
        f"{f'{COPIER_WARPS} that copy by cp.async, ' if group.copiers else ''}"
        f"{rings} ring{'s' * (rings > 1)}"
    )


def _share_work(plan: Plan, group: _Group, members: int) -> set[Operation]:
    """What the producer claims for all roles; the atomics that only it makes."""
    readers = [group.consumer, *group.others]
    if plan.dynamic_schedule:
        share_claims(group.producer, readers, members)
    elif not plan.persistent:
        return share_atomics(group.producer, readers)
    return set()


def _allocate_before(block: Block, first: Operation) -> None:
    """Buffers and mbarriers of all roles, also those that stand behind what the roles do first."""
    for alloc in [op for op in block.ops if isinstance(op, (shared.Alloc, threads.Barriers))]:
        alloc.detach()
        before(first, alloc)


def _multicast(kernel: tile.Kernel, plan: Plan, first: Operation) -> Multicast | None:
    """Which copies blocks of a cluster share; None where they share none."""
    along = [
        shared_along(op)
        for op in kernel.walk()
        if isinstance(op, shared.CopyAsync) and op.cut is not None
    ]
    alone = plan.cluster == (1, 1)
    return None if alone or not along else Multicast(Builder(first), plan.cluster, along)


class _Rings:
    """The mbarriers of each ring. raw: those whose stages the converter reads; by_threads: whether
    a role of threads fills one.
    """

    def __init__(
        self,
        kernel: tile.Kernel,
        plan: Plan,
        instances: Shared,
        multicast: Multicast | None,
        first: Operation,
    ):
        self.plan, self.instances, self.multicast = plan, instances, multicast
        self.block = kernel.body.block
        self.barriers: dict[SSAValue, RingBarriers] = {}
        self.relaid = [op for op in kernel.walk() if relayouts(op)]
        self.read = {ring_of(read) for write in self.relaid for read in origins(write)}
        self.by_threads = False
        waits = operations_in(kernel, shared.WaitCopies)
        for copies in _filling_together([group_of(wait) for wait in waits]):
            self._filled_by(copies, first)
        self.raw = rings_converted(self.relaid, self.barriers)
        for write in self.relaid:
            if ring_of(write) not in self.barriers:
                made = barriers_of(first, [write], RELAYOUT_WARPS, plan.warps)
                self.barriers[ring_of(write)] = made

    def _filled_by(self, copies: list[shared.CopyAsync], first: Operation) -> None:
        """The barriers of the rings that some copies fill together."""
        rings = list(dict.fromkeys(map(ring_of, copies)))
        threads_copy = is_by_threads(copies[0])
        self.by_threads |= threads_copy
        filled = WARP * COPIER_WARPS if threads_copy else 1
        single = self.instances.is_single(rings[0])
        multicast = self.multicast if any(copy.cut is not None for copy in copies) else None
        peers = None if multicast is None else multicast.mask
        readers = self._readers(rings, multicast)
        made = barriers_of(first, copies, filled, readers, single, peers)
        self.barriers |= dict.fromkeys(rings, made)

    def _readers(self, rings: list[SSAValue], multicast: Multicast | None) -> int:
        """The warps that release a stage of rings that are filled together, of all blocks that
        share copies to it.
        """
        relaying = 0 if self.read.isdisjoint(rings) else RELAYOUT_WARPS
        if relaying and not any(is_read_beside(ring, self.block) for ring in rings):
            return relaying
        blocks = multicast.size if multicast else self.instances.readers_of(rings[0])
        return relaying + self.plan.warps * blocks


def _filling_together(sites: list[list[shared.CopyAsync]]) -> list[list[shared.CopyAsync]]:
    """The copies of several sites, those together that fill the same rings."""
    found: list[list[shared.CopyAsync]] = []
    for copies in sites:
        rings = set(map(ring_of, copies))
        same = [group for group in found if not rings.isdisjoint(map(ring_of, group))]
        whole = [*(copy for group in same for copy in group), *copies]
        found = [whole if same and group is same[0] else group for group in found]
        found = [group for group in found if group not in same[1:]] if same else [*found, whole]
    return found


@dataclass(frozen=True)
class _Group:
    """The roles of a kernel."""

    roles: threads.Roles
    producer: threads.Role
    consumer: threads.Role
    converters: list[threads.Role]
    copiers: list[threads.Role]

    @property
    def others(self) -> list[threads.Role]:
        return [*self.converters, *self.copiers]


def _roles(plan: Plan, rings: _Rings, registers: tuple[int, ...], first: Operation) -> _Group:
    """The roles, empty so far."""
    consumer = threads.Role("consumer", plan.warps, plan.programs, registers[1])
    producer = threads.Role("producer", PRODUCER_WARPS, 1, registers[0], single=True)
    converters = (
        [threads.Role("converter", RELAYOUT_WARPS, 1, registers[2])] if rings.relaid else []
    )
    copiers = [threads.Role("copier", COPIER_WARPS, 1, registers[2])] if rings.by_threads else []
    roles = before(first, threads.Roles([producer, consumer, *converters, *copiers]))
    return _Group(stamp(roles, first), producer, consumer, converters, copiers)


def _copy_to(group: _Group, moved: list[Operation]) -> dict[SSAValue, SSAValue]:
    """What the roles do, in each of them; what values of it are the producer's."""
    copied: dict[threads.Role, dict[SSAValue, SSAValue]] = {
        role: {} for role in (group.producer, *group.others)
    }
    for role, mapping in copied.items():
        for op in moved:
            role.body.block.add_op(op.clone(mapping))
    for op in moved:
        op.detach()
        group.consumer.body.block.add_op(op)
    return copied[group.producer]


def _finish(
    kernel: tile.Kernel, plan: Plan, context: PassContext, group: _Group, instances: Shared
) -> None:
    """What is done when dots are asynchronous, and the barriers at the kernel's start."""
    consumer, roles = group.consumer, group.roles
    roomy = plan.registers is not None and plan.registers[1] >= MIN_LOOKAHEAD_REGISTERS
    if roomy:
        look_ahead(consumer)
    while plan.programs > 1 and sweep(kernel):
        pass  # of what only the consumers use the producer has no copy left
    instances.settle(consumer)
    if plan.cross_tile_prologue and not overlap_epilogue(group.producer, consumer):
        context.decisions.append(
            "schedule-warpgroups: programs do not begin with their first dot alone, or do not end"
            " with their last: there is no cross-tile prologue"
        )
    _take_known_ways(group.producer)
    if roomy:
        straighten(consumer)
    before(roles, threads.Fence("mbarrier_init"))
    if prod(kernel.cluster) == 1:
        before(roles, threads.BlockBarrier())
    else:
        before(roles, threads.ClusterArrive(relaxed=True), threads.ClusterWait())
    for role in (group.producer, *group.others):
        hold_whole(role)
    others = [role.body.block for role in (group.producer, *group.others)]
    while sweep(kernel) or any([erase_unread(block) for block in others]):
        pass  # what these looked at to skip what consumers alone do, too
    _begin(kernel)


def _take_known_ways(role: threads.Role) -> None:
    """Of branches that one way alone goes through, that way (co_resident.py)."""
    for branch in operations_in(role, scf.IfOp):
        if (values := fold(branch, Ranges())) is not None:
            replace(branch, values)


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


def _make_arrays_early(block: Block) -> None:
    """Arrays that can have tensor maps are made before what the roles do: maps are no role's."""
    arrays = [op.result for op in block.ops if isinstance(op, tile.MakeArray)]
    first = next(op for op in block.ops if op.regions or not is_side_effect_free(op))
    for op in defining_slice(filter(is_whole, arrays), block):
        if first.is_before_in_block(op):
            op.detach()
            before(first, op)


def _suffix(block: Block) -> list[Operation]:
    """What the roles do: everything from the first operation with a region or an effect on,
    allocations and the first claims of work apart, and whatever makes a tile before it, since a
    tile is spread over the warps of the role that makes it, or is computed of one, or is a stage,
    which each role fills, reads and gives back.
    """
    made = tile.Return, shared.Alloc, threads.Barriers
    ops = [op for op in block.ops if not isinstance(op, made)]
    start = next(
        i
        for i, op in enumerate(ops)
        if op.regions or not (is_side_effect_free(op) or isinstance(op, tile.Atomic))
    )
    of_roles: dict[Operation, None] = {}
    for op in ops[:start]:
        if any(isinstance(r.type, (TileType, SharedType)) for r in op.results) or any(
            v.owner in of_roles for v in op.operands
        ):
            of_roles[op] = None
    return [*of_roles, *ops[start:]]
