"""Producer and consumers out of one program: the half of schedule-warpgroups for plans with roles.

The program's loops are written twice. The producer's copy keeps what its copies need: the loops, their bounds, addresses, the ring's stage
and parity. The consumers keep the rest. A ring's tokens become two mbarriers a stage:

    %t = tile.copy_async %a[…] %ring[%s] …       producer:  mbarrier_wait %empty[%s] %p ^ 1;  mbarrier_expect %full[%s] {bytes}
    tile.wait_copies [%t]                                   tma_load %map[…] %ring[%s], %full[%s]
    %d = tile.dot %ring[%s], …, %acc             consumer:  mbarrier_wait %full[%s] %p
                                                            fence dot;  %d = dot_async …;  dot_commit
                                                            dot_wait 1;  mbarrier_arrive %empty[stage before]

Dots run one group deep: a stage is given back when the dot after its own has been issued and its own has ended, by one arrival
of each warp, so that no warp speaks for another. In a cluster that shares copies each block loads a part for those that share one, and a stage is
given back to every block that writes there (programs/clusters.py). The sum starts in the registers as they are (`keep` is false in a loop's first iteration); where a loop
may not run at all, its result is the initial value.

Where programs are claimed one by one, the producer claims them for all (claims.py). A factor that is laid anew (layouts/restage.py) has two rings: the producer fills one, a third role, the converter, the other. Its copy of the loops keeps the reads, what lies between,
and the writes:

    %x = tile.read %ring[%s]             converter:  mbarrier_wait %full[%s] %p;  %x = tile.read %ring[%s];  …
    …                                                mbarrier_wait %empty2[%t] %q ^ 1;  tile.write %ring2[%t], %y
    tile.write %ring2[%t], %y                        fence async_shared;  mbarrier_arrive %full2[%t], %empty[%s], one of each warp
                                         consumer:   mbarrier_wait %full2[%t] %q, and the stage is given back as any other

Numbers that the producer loads for the consumers it posts beside a stage (posts.py). Results leave by copies of their own (leaving.py).
"""
from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES, Cast
from tkc.ir.plan import Plan
from tkc.ir.rewrite import Builder, after, before, defining_slice, erase, rebuild_for, replace, stamp
from tkc.ir.types import PendingType, SharedType, TileType, bits
from tkc.passes import PassContext
from tkc.passes.analysis.values import VIEWS
from tkc.passes.layouts.restage import WARPS as CONVERTER_WARPS
from tkc.passes.planning.factors import running_sums
from tkc.passes.planning.hopper import ROOMY
from tkc.passes.programs.clusters import Multicast
from tkc.passes.simplify import sweep
from tkc.passes.warpgroups import onward, posts
from tkc.passes.warpgroups.abreast import Consumer, Producer, spans
from tkc.passes.warpgroups.boundaries import fuse
from tkc.passes.warpgroups.claims import claim_ahead, foresee, room_left, share
from tkc.passes.warpgroups.leaving import give_back, send, stage_of
from tkc.passes.warpgroups.lookahead import look_ahead
from tkc.passes.warpgroups.maps import Maps
from tkc.passes.warpgroups.pingpong import alternate, own_buffers
from tkc.passes.warpgroups.tails import straighten

PRODUCER_WARPS = 4
OWN = threads.Post, threads.MbarrierArrive, threads.MbarrierWait, threads.MbarrierExpect, threads.TmaLoad, threads.Fence      # what a producer does, or a converter


@dataclass(frozen=True)
class RingBarriers:
    """The mbarriers of the rings that are filled together."""
    full: SSAValue
    empty: SSAValue
    stages: int
    bytes: int
    read: bool                      # by threads, not by dots alone
    single: bool = False            # each program's own has no stage beside it for the next one's: it is given back as soon as can be

    def fence(self) -> list[Operation]:
        """Between what threads have read in a stage and what a copy will write there."""
        return [threads.Fence("async_shared")] if self.read else []


def split(kernel: tile.Kernel, plan: Plan, context: PassContext) -> None:
    block, members = kernel.body.block, plan.members
    common = spans(_programs(block), members) if members > 1 else {}
    posted = posts.post(kernel, plan)
    if plan.queue:
        foreseen = foresee(_programs(block), [v for span in common.values() for v in (span.first, span.last)], room_left(kernel, plan.programs, context.target.shared_bytes))
        for span in dict.fromkeys(common.values()): span.first, span.last = foreseen.get(span.first, span.first), foreseen.get(span.last, span.last)
    moved = _suffix(block)
    first = next(op for op in moved if op.regions or not is_side_effect_free(op))
    for op in [op for op in block.ops if isinstance(op, shared.Alloc)]:            # of all roles, also where one stands behind what they do
        op.detach()
        before(first, op)
    alone, along = plan.cluster == (1, 1), [_along(op) for op in kernel.walk() if isinstance(op, shared.CopyAsync) and op.cut is not None]
    multicast = None if alone or not along else Multicast(Builder(first), plan.cluster, along)
    rings: dict[SSAValue, RingBarriers] = {}
    anew = [op for op in kernel.walk() if _restages(op)]
    raw = {_ring(_origin(write)) for write in anew}
    for wait in [op for op in kernel.walk() if isinstance(op, shared.WaitCopies)]:
        copies = _group(wait)
        if _ring(copies[0]) not in rings:
            readers = CONVERTER_WARPS if _ring(copies[0]) in raw else plan.warps * (multicast.size if multicast else members if _ring(copies[0]) in common else 1)
            rings |= dict.fromkeys(map(_ring, copies), _barriers(first, copies, 1, readers, members > 1 and _ring(copies[0]) not in common and _ring(copies[0]).type.stages < 2 * members))
    for write in anew:
        if _ring(write) not in rings: rings[_ring(write)] = _barriers(first, [write], CONVERTER_WARPS, plan.warps)
    peers = multicast.mask if multicast else None
    consumer = threads.Role("consumer", plan.warps, plan.programs, plan.registers[1])
    producer = threads.Role("producer", PRODUCER_WARPS, 1, plan.registers[0], single=True)
    converters = [threads.Role("converter", CONVERTER_WARPS, 1, plan.registers[2])] if anew else []
    maps = Maps(before(first, threads.Roles([producer, consumer, *converters])))
    copied: dict[threads.Role, dict[SSAValue, SSAValue]] = {role: {} for role in (producer, *converters)}
    for role, mapping in copied.items():
        for op in moved: role.body.block.add_op(op.clone(mapping))
    for op in moved:
        op.detach()
        consumer.body.block.add_op(op)
    stamp(producer.parent_op(), first)
    for role in (producer, consumer): posts.share(role, posted, role is producer)
    if plan.queue: share(producer, [consumer, *converters], members)
    if members > 1 and Producer(producer, members, {ring: span.of(copied[producer]) for ring, span in common.items()}).gather(): claim_ahead(producer)
    _produce(producer.body.block, rings, maps, multicast)
    for role in converters: _convert(role.body.block, rings, raw)
    if members > 1: Consumer(consumer, members, common).part({ring: barriers.full for ring, barriers in rings.items()})
    _consume(consumer.body.block, rings, maps, peers, plan.rotate and plan.warps >= 8)
    roomy = plan.registers[1] >= ROOMY
    if roomy: look_ahead(consumer)
    while plan.programs > 1 and sweep(kernel): pass             # of what only the consumers use the producer has no copy left
    if members > 1: own_buffers(consumer)
    elif plan.programs == 2: alternate(consumer)
    if plan.fuse and not (onward.fuse(consumer) if members > 1 else fuse(producer, consumer)): context.decisions.append("schedule-warpgroups: programs do not begin with their first dot alone, or do not end with their last: their boundaries are not fused")
    if roomy: straighten(consumer)
    before(producer.parent_op(), threads.Fence("mbarrier_init"))
    if alone: before(producer.parent_op(), threads.BlockBarrier())
    else: before(producer.parent_op(), threads.ClusterArrive(relaxed=True), threads.ClusterWait())
    while sweep(kernel): pass
    _begin(kernel)
    context.decisions.append(f"schedule-warpgroups: a producer warp and {plan.warps * plan.programs} warps of consumers, {f'{CONVERTER_WARPS} that lay factors anew, ' if anew else ''}"
                             f"{len(set(rings.values()))} ring{'s' * (len(set(rings.values())) > 1)}")


def _begin(kernel: tile.Kernel) -> None:
    """Barriers are made and maps asked for at once: what follows from the arguments (where the first program lies takes several divisions) is worked out meanwhile, by other warps."""
    early = [op for kinds in (threads.TensorMap, (threads.Barriers, threads.MbarrierInit)) for op in kernel.body.block.ops if isinstance(op, kinds)]
    anchor = next(op for op in kernel.body.block.ops if op not in early)
    for op in early:
        op.detach()
        before(anchor, op)


def _programs(block: Block) -> scf.WhileOp: return next(op for op in block.ops if isinstance(op, scf.WhileOp))


def _suffix(block: Block) -> list[Operation]:
    """What the roles do: everything from the first operation with a region or an effect on, allocations apart, and whatever makes a
    tile before it, since a tile is spread over the warps of whoever makes it."""
    ops = [op for op in block.ops if not isinstance(op, (tile.Return, shared.Alloc))]
    start = next(i for i, op in enumerate(ops) if op.regions or not is_side_effect_free(op))
    return [op for op in ops[:start] if any(isinstance(r.type, TileType) for r in op.results)] + ops[start:]


def _group(wait: shared.WaitCopies) -> list[shared.CopyAsync]:
    """The copies a wait waits for."""
    token = wait.tokens[0].owner
    return [v.owner for v in token.tokens] if isinstance(token, shared.JoinTokens) else [token]


def _ring(op: shared.CopyAsync | shared.Write | shared.Read) -> SSAValue: return op.buffer.owner.ring


def _along(copy: shared.CopyAsync) -> tuple[int, ...]:
    """The axes of the cluster along which a copy is shared."""
    return tuple(copy.among.get_values()) if copy.among is not None else (0,)


def _restages(op: Operation) -> bool:
    """Whether an operation fills a stage of a ring from registers."""
    return isinstance(op, shared.Write) and "number" in op.attributes


def _origin(write: shared.Write) -> shared.Read:
    """What a factor that is laid anew was read from."""
    op = write.value.owner
    while not isinstance(op, shared.Read): op = op.arg.owner
    return op


def _barriers(anchor: Operation, copies: list[shared.CopyAsync] | list[shared.Write], filled: int, freed: int, single: bool = False) -> RingBarriers:
    """filled, freed: the arrivals after which a stage is full, and free."""
    stages = _ring(copies[0]).type.stages
    full, empty = (before(anchor, threads.Barriers(stages)).result for _ in range(2))
    full.name_hint, empty.name_hint = "full", "empty"
    before(anchor, threads.MbarrierInit(full, filled), threads.MbarrierInit(empty, freed))
    return RingBarriers(full, empty, stages, sum(c.buffer.type.size * bits(c.buffer.type.element) // 8 for c in copies),
                        any(isinstance(use.operation, shared.Read) for c in copies for use in c.buffer.uses), single)


def _state(copy: shared.CopyAsync | shared.Write) -> tuple[SSAValue, SSAValue]:
    """Stage and parity of the ring that a copy or a write fills."""
    stage = copy.buffer.owner.index[0]
    step = next(use.operation for use in stage.uses if isinstance(use.operation, threads.RingNext) and use.index == 0)
    return stage, step.parity


# ------------------------------------------------------------------------------------------------------------ the producer
def _produce(block: Block, rings: dict[SSAValue, RingBarriers], maps: Maps, multicast: Multicast | None) -> None:
    for wait in [op for op in block.walk() if isinstance(op, shared.WaitCopies)]:
        copies = _group(wait)
        ring, head = rings[_ring(copies[0])], copies[0]
        stage, parity = _state(head)
        one = before(head, tile.Constant(1, i32)).result
        before(head, threads.MbarrierWait(ring.empty, stage, before(head, CLASSES["xor"](parity, one)).result))
        posts.behind(head.prev_op, stage)
        before(head, threads.MbarrierExpect(ring.full, stage, ring.bytes))
        for copy in copies: _load(copy, ring, stage, maps, multicast)
        if multicast: _drain(block, ring)
    for write in [op for op in block.walk() if _restages(op)]: erase(write)
    _strip(block)


def _strip(block: Block) -> None:
    """Leaves a role what it does itself."""
    for op in [op for op in block.walk() if not isinstance(op, OWN)]:
        match op:
            case tile.Dot(): replace(op, [op.acc])
            case tile.Atomic() if op.result is not None: replace(op, [before(op, tile.Constant(0, op.result.type)).result])
            case _ if not op.regions and not op.results and not isinstance(op, (scf.YieldOp, scf.ConditionOp)) and not _restages(op): erase(op)
    for op in [op for op in block.walk() if isinstance(op, (shared.WaitCopies, shared.JoinTokens, shared.CopyAsync))][::-1]: erase(op)
    for op in [op for op in block.walk() if isinstance(op, (shared.Alloc, shared.Read, shared.SharedSlice)) or any(isinstance(r.type, TileType) for r in op.results)][::-1]:
        if not op.regions and not any(r.first_use for r in op.results): erase(op)


def _convert(block: Block, rings: dict[SSAValue, RingBarriers], raw: set[SSAValue]) -> None:
    """The role that lays factors anew: it waits for what was copied and for room, reads and writes, and says both."""
    _arrived(block, {ring: barriers for ring, barriers in rings.items() if ring in raw})
    for write in [op for op in block.walk() if _restages(op)]:
        read = _origin(write)
        source, target, (stage, parity) = rings[_ring(read)], rings[_ring(write)], _state(write)
        one = before(write, tile.Constant(1, i32)).result
        before(write, threads.MbarrierWait(target.empty, stage, before(write, CLASSES["xor"](parity, one)).result))
        fence = after(write, threads.Fence("async_shared"))
        after(after(fence, threads.MbarrierArrive(target.full, stage, each="warp")), threads.MbarrierArrive(source.empty, read.buffer.owner.index[0], each="warp"))
    _strip(block)


def _load(copy: shared.CopyAsync, ring: RingBarriers, stage: SSAValue, maps: Maps, multicast: Multicast | None) -> None:
    box, t, to = [max(n, 1) for n in copy.extents.get_values()], copy.buffer.type, None
    parts = [(copy.buffer, list(copy.offsets))]
    if copy.cut is not None:
        axis, fast, along, build = copy.cut.value.data, t.memory.fast, _along(copy), Builder(copy)
        to, piece, panel = multicast.masks[along], t.extents[axis] // multicast.parts(along), t.memory.swizzle * 8 // bits(t.element)
        share, zero = build.mul(multicast.part(build, along), piece), build.number(0)
        sizes = [piece if a == axis else n for a, n in enumerate(t.extents)]
        if axis != fast: sizes[fast] = min(sizes[fast], panel)                    # of rows that lie in several panels, a share is a box in each
        memory, _ = t.memory.slice([0] * t.rank, sizes)
        box, parts = [size if a in (axis, fast) else n for a, (n, size) in enumerate(zip(box, sizes))], []
        for at in range(0, t.extents[fast] if axis != fast else 1, panel):
            start = before(copy, tile.Constant(at, i32)).result if at else zero
            place = [share if a == axis else start if a == fast else zero for a in range(t.rank)]
            parts.append((before(copy, shared.SharedSlice(copy.buffer, place, SharedType(1, sizes, t.element, memory))).result,
                          [o if p is zero else before(copy, CLASSES["add"](o, p)).result for o, p in zip(copy.offsets, place)]))
    for view, offsets in parts:
        if t.memory.fast != t.rank - 1: view = before(copy, shared.SharedTranspose(view, [a for a in reversed(t.memory.order)])).result
        map, place = maps.of(copy.array, offsets, box, t.memory.swizzle, copy.tf32 is not None, copy.fetch.value.data if copy.fetch else 0)
        before(copy, threads.TmaLoad(map, place, view, ring.full, stage, to, copy.hint.data if copy.hint else None))


def _drain(block: Block, ring: RingBarriers) -> None:
    """No block ends while another may still write to it or arrive in it: the producer sees every stage come back."""
    loop = block.last_op
    stage, parity = loop.results[-2:]
    one = after(loop, tile.Constant(1, i32))
    last: Operation = one
    for i in range(ring.stages):
        flipped = after(last, CLASSES["xor"](parity, one.result))
        last = after(flipped, threads.MbarrierWait(ring.empty, stage, flipped.result))
        if i + 1 < ring.stages:
            last = after(last, threads.RingNext(stage, parity, ring.stages))
            stage, parity = last.results


# ------------------------------------------------------------------------------------------------------------ the consumers
def _arrived(block: Block, rings: dict[SSAValue, RingBarriers]) -> None:
    """Waits for what was copied into these rings; the copies go, they are the producer's."""
    for wait in [op for op in block.walk() if isinstance(op, shared.WaitCopies)]:
        copies = _group(wait)
        if ring := rings.get(_ring(copies[0])): before(wait, threads.MbarrierWait(ring.full, *_state(copies[0])))
        joined = wait.tokens[0].owner
        erase(wait)
        if isinstance(joined, shared.JoinTokens): erase(joined)
        for copy in copies: erase(copy)


def _consume(block: Block, rings: dict[SSAValue, RingBarriers], maps: Maps, peers: SSAValue | None, turns: bool) -> None:
    anew = [op for op in block.walk() if _restages(op)]
    raw = {_ring(_origin(write)) for write in anew}
    _arrived(block, {ring: barriers for ring, barriers in rings.items() if ring not in raw})
    for write in anew:
        before(write, threads.MbarrierWait(rings[_ring(write)].full, *_state(write)))
        erase(write)
    outs = [op for op in block.walk() if isinstance(op, shared.CopyOut)]
    through = list(dict.fromkeys(filter(None, map(stage_of, outs))))
    late = {stage.index[0] for stage in through}                      # stages that are given back a step late
    for loop in list(dict.fromkeys(op.parent_op() for op in block.walk() if isinstance(op, tile.Dot))):
        made = running_sums(loop) if isinstance(loop, scf.ForOp) else []
        if not made: continue
        stages = list({(stage[0].full, stage[1]): stage for dots in made for dot in dots for stage in _stages_read(dot, rings)}.values())
        if len(stages) == 1 or all(where is loop.body.block for *_, where in stages):
            late.update(stage for _, stage, _ in stages)
            _dots(loop, made, [(ring, stage) for ring, stage, _ in stages], peers)
    _overlap(block, rings, late, peers, turns)
    if turns: before(block.first_op, threads.Turn("start"))
    if through: give_back(through, {ring: barriers.empty for ring, barriers in rings.items()})
    if outs: send(outs, maps)
    if outs: block.add_op(stamp(threads.BulkWait(0, each="warpgroup" if any(op.each for op in block.walk() if isinstance(op, threads.BulkCommit)) else None), block.last_op))


def _stages_read(dot: tile.Dot, rings: dict[SSAValue, RingBarriers]) -> list[tuple[RingBarriers, SSAValue, Block]]:
    """The rings' stages that a dot reads, each once, and the block in which they were waited for."""
    found: dict[tuple, tuple] = {}
    for factor in (dot.a, dot.b):
        while not isinstance(factor.owner, Block) and isinstance(factor.owner, (shared.SharedTranspose, shared.SharedSlice)): factor = factor.owner.operands[0]
        if isinstance(factor.type, SharedType): found.setdefault((rings[factor.owner.ring].full, factor.owner.index[0]), (rings[factor.owner.ring], factor.owner.index[0], factor.owner.parent))
    return list(found.values())


@dataclass
class Flight:
    """A dot on its way: what it was, what it is now, and the stages that are free once it is over."""
    dot: tile.Dot
    pending: SSAValue
    stages: list[tuple[RingBarriers, SSAValue, Block]]


def _overlap(block: Block, rings: dict[SSAValue, RingBarriers], late: set[SSAValue], peers: SSAValue | None, turns: bool) -> None:
    """Dots run on until something needs them; a stage is given back when the dots that read it in its block are over."""
    flights: list[Flight] = []
    read = {}
    for op in list(block.ops):
        if isinstance(op, tile.Dot) and op.instruction is not None and op.instruction.data == "wgmma":
            for key, stage in ((tuple(s[:2]), s) for s in _stages_read(op, rings) if s[2] is block): read[key[0].full, key[1]] = (stage, op)
        for inner in (inner for inner in op.walk() if inner is not op and isinstance(inner, tile.Dot)):       # a stage that dots further inside read is given back at the block's end
            for ring, stage, where in _stages_read(inner, rings):
                if where is block: read[ring.full, stage] = None, None
    for op in list(block.ops):
        needed = [i for i, f in enumerate(flights) if _needs(op, f, block)]
        if flights and (op is block.last_op or op.regions and not _plain(op)): needed = [len(flights) - 1]
        if needed: flights = _land(op, flights, needed[-1], read, peers)
        for region in op.regions:
            for inner in region.blocks: _overlap(inner, rings, late, peers, turns)
        if isinstance(op, tile.Dot) and op.instruction is not None and op.instruction.data == "wgmma":
            t = PendingType(op.acc.type)
            fresh = isinstance(op.acc.owner, tile.Constant) and op.acc.owner.number == 0
            new = threads.DotAsync(op.a, op.b, None if fresh else op.acc, t)
            before(op, threads.Fence("dot"), new, threads.DotCommit())
            flights.append(Flight(op, new.result, _stages_read(op, rings)))
    if turns: _take_turns(block)
    if flights and block.last_op is not None: _land(block.last_op, flights, len(flights) - 1, read, peers)
    _give_back(block, rings, late, peers)


def _plain(op: Operation) -> bool:
    """Whether a branch does arithmetic alone, which may run under dots."""
    return isinstance(op, scf.IfOp) and all(isinstance(inner, scf.YieldOp) or is_side_effect_free(inner) and not isinstance(inner, (tile.Dot, scf.ForOp, scf.WhileOp)) for inner in op.walk() if inner is not op)


def _take_turns(block: Block) -> None:
    """Where several groups of dots are issued one after the other, the warpgroups do so in turn: one's vector work runs under the other's dots."""
    fences = [op for op in block.ops if isinstance(op, threads.Fence) and op.kind.data == "dot"]
    commits = [op for op in block.ops if isinstance(op, threads.DotCommit)]
    if len(fences) < 2 or any(op.regions and not _plain(op) for op in block.ops): return
    before(fences[0], threads.Turn("begin"))
    after(commits[-1], threads.Turn("end"))


def _needs(op: Operation, flight: Flight, block: Block) -> bool:
    """Whether an operation must come after a dot: it uses the result, or makes what takes the place of the factor in registers."""
    if any(v is flight.dot.result for inner in op.walk() for v in inner.operands): return True
    factor = flight.dot.a
    while isinstance(factor.owner, VIEWS): factor = factor.owner.arg
    if isinstance(op, Cast) and isinstance(factor.owner, Block) and factor.owner is block and isinstance(block.last_op, scf.YieldOp) and factor.index > 0:
        return _becomes(op.result, block.last_op.operands[factor.index - 1])
    return False


def _becomes(value: SSAValue, result: SSAValue) -> bool:
    """Whether a value is the result, or what a branch may make it."""
    if value is result: return True
    return isinstance(result.owner, scf.IfOp) and any(_becomes(value, region.block.last_op.operands[result.index]) for region in result.owner.regions)


def _land(anchor: Operation, flights: list[Flight], last: int, read: dict, peers: SSAValue | None) -> list[Flight]:
    """Waits, before the anchor, for the dots up to a number; the rest stay on their way."""
    ready = [i <= last for i in range(len(flights))]
    wait = before(anchor, threads.DotWait(len(flights) - 1 - last, [f.pending for f in flights], ready))
    for flight, value, done in zip(flights, wait.results, ready):
        if not done: flight.pending = value; continue
        flight.dot.result.replace_all_uses_with(value)
        for ring, stage, where in flight.stages:
            if read.get((ring.full, stage), (None, None))[1] is not flight.dot: continue
            if ring.read: _read_by(anchor, stage)
            before(anchor, *ring.fence(), threads.MbarrierArrive(ring.empty, stage, peers, each="warp"))
        erase(flight.dot)
    return [f for f, done in zip(flights, ready) if not done]


def _read_by(anchor: Operation, stage: SSAValue) -> None:
    """What threads read of a stage they have read before the anchor, where it is given back; also what a branch alone looks at."""
    behind = [op for top in anchor.parent.ops if top is anchor or anchor.is_before_in_block(top) for op in top.walk()]

    def earlier(op: Operation) -> None:
        for v in op.operands:
            if v.owner in behind: earlier(v.owner)
        op.detach()
        before(anchor, op)
        behind.remove(op)
    for read in [op for op in behind if isinstance(op, shared.Read) and _stage_of(op.buffer) is stage]: earlier(read)


def _give_back(block: Block, rings: dict[SSAValue, RingBarriers], late: set[SSAValue], peers: SSAValue | None) -> None:
    """Stages that were waited for here and read by dots further inside, or by threads, are free at the block's end."""
    for ring in dict.fromkeys(rings.values()):
        for use in list(ring.full.uses):
            wait = use.operation
            if not isinstance(wait, threads.MbarrierWait) or wait.parent is not block: continue
            stage = wait.index[0]
            if stage in late or any(u.operation.parent is block and isinstance(u.operation, threads.MbarrierArrive) for u in stage.uses): continue
            for place in _behind_readers(block, stage) if ring.single else [block.last_op if isinstance(block.last_op, scf.YieldOp) else None]:
                for op in (*ring.fence(), threads.MbarrierArrive(ring.empty, stage, peers, each="warp")):
                    if place is not None: before(place, op)
                    else: block.add_op(stamp(op, wait))


def _behind_readers(block: Block, stage: SSAValue) -> list[Operation]:
    """Where the loop whose dots read a stage is over, in each way through a branch round it; in one without such a loop where it begins."""
    reads = lambda op: any(isinstance(inner, threads.DotAsync) and stage in _stages_of(inner) for inner in op.walk())
    around = next((op for op in reversed(list(block.ops)) if reads(op)), None)
    if isinstance(around, scf.IfOp):
        loops = [next((op for op in region.block.ops if isinstance(op, scf.ForOp) and reads(op)), None) for region in around.regions]
        if not any(reads(op) for region, loop in zip(around.regions, loops) for op in region.block.ops if loop is None or loop.is_before_in_block(op)):
            return [region.block.first_op if loop is None else loop.next_op for region, loop in zip(around.regions, loops)]
    return [around.next_op if isinstance(around, scf.ForOp) else block.last_op]


def _stages_of(dot: threads.DotAsync) -> list[SSAValue]:
    """The rings' stages that a dot under way reads."""
    return [stage for factor in (dot.a, dot.b) if (stage := _stage_of(factor)) is not None]


def _stage_of(buffer: SSAValue) -> SSAValue | None:
    """The stage of a ring that a buffer, or a view of one, shows."""
    while isinstance(buffer.owner, (shared.SharedTranspose, shared.SharedSlice)): buffer = buffer.owner.operands[0]
    return buffer.owner.index[0] if isinstance(buffer.owner, shared.Stage) else None


def _dots(loop: scf.ForOp, made: list[list[tile.Dot]], stages: list[tuple[RingBarriers, SSAValue]], peers: SSAValue | None) -> None:
    """The sums of a loop, one group of dots deep: a stage is given back when the next group is under way. A left factor in registers is computed when the dot
    before is over: it still reads its own, and ptxas would give both the same registers. What it is computed from is read while that one runs; what needs no computing is read when it is over."""
    body, dots = loop.body.block, [op for op in loop.body.block.ops if isinstance(op, tile.Dot)]
    carried = [first.acc for first, *_ in made]                       # each sum as the loop carries it
    indices = [sum_.index - 1 for sum_ in carried]
    keep = [i for i in range(len(loop.iter_args)) if i not in indices]
    initial, kinds = [loop.iter_args[i] for i in indices], [PendingType(sum_.type) for sum_ in carried]
    pending = [before(loop, threads.Undefined(t)).result for t in kinds]
    zero = before(loop, tile.Constant(0, i32)).result
    some = before(loop, CLASSES["lt"](loop.lb, loop.ub)).result
    holders = [after(loop, threads.Undefined(t)) for t in kinds]      # stand for the results until they exist
    placeholder = after(holders[0], threads.DotWait(0, [holder.result for holder in holders]))
    for i, result in zip(indices, placeholder.results): loop.results[i].replace_all_uses_with(result)
    computed = isinstance(dots[0].a.type, TileType)
    place = _computed(dots[0]) if computed else dots[0]
    early = [op for op in defining_slice([dot.a for dot in dots], body) if op.is_before_in_block(place)]
    behind = [op for top in body.ops if top not in early for op in top.walk()]
    late = isinstance(place, shared.Read) or any(isinstance(op, shared.Read) and _stage_of(op.buffer) in [stage for _, stage in stages] for op in behind)    # behind this iteration's fence: the last one's needs another
    inside = [before(place, threads.Undefined(t)) for t in kinds]
    go = before(place, CLASSES["ne"](body.args[0], loop.lb)).result
    flying = dict(zip(carried, (held.result for held in inside)))     # a sum, and what it is on its way
    if computed:
        wait = before(place, threads.DotWait(0, list(flying.values())))
        flying = dict(zip(carried, wait.results))
    before(dots[0], threads.Fence("dot"))
    for dot in dots: flying[dot.result] = before(dot, threads.DotAsync(dot.a, dot.b, flying[dot.acc], PendingType(dot.acc.type), keep=go if dot.acc in carried else None)).result
    ends = [flying[made_of[-1].result] for made_of in made]
    before(dots[-1], threads.DotCommit())
    if not computed:
        wait = before(dots[-1], threads.DotWait(1, ends, [False] * len(ends)))
        ends = list(wait.results)
    for i, sum_ in zip(indices, carried): body.last_op.operands[i] = sum_         # the carried tile goes; its dots with it
    for dot in reversed(dots): erase(dot)
    loop = rebuild_for(loop, keep, [*pending, *[zero] * len(stages)])
    sums, earlier = body.args[-len(made) - len(stages):-len(stages)], body.args[-len(stages):]
    for stage in earlier: stage.name_hint = "stage_before"
    for held, sum_ in zip(inside, sums):
        held.result.replace_all_uses_with(sum_)
        erase(held)
    after(wait, *(op for (ring, _), stage in zip(stages, earlier) for op in (*ring.fence(), threads.MbarrierArrive(ring.empty, stage, peers, each="warp", when=go))))
    body.last_op.operands = [*body.last_op.operands, *ends, *(stage for _, stage in stages)]
    done = after(loop, threads.DotWait(0, loop.results[-len(made) - len(stages):-len(stages)]))
    last = after(done, *(op for (ring, _), stage in zip(stages, loop.results[-len(stages):]) for op in (*(ring.fence() if late else ()), threads.MbarrierArrive(ring.empty, stage, peers, each="warp", when=some))))
    yes, no = Block([scf.YieldOp(*done.results)]), Block([scf.YieldOp(*initial)])
    chosen = after(last, scf.IfOp(some, [v.type for v in initial], Region(yes), Region(no)))
    for result, value in zip(placeholder.results, chosen.results): result.replace_all_uses_with(value)
    for op in (placeholder, *holders): erase(op)


def _computed(dot: tile.Dot) -> Operation:
    """The first operation that computes a dot's left factor of what was read in shared memory. Where nothing does, what reads it: ptxas has it read to the registers from which the dot before takes its own."""
    tainted: set[SSAValue] = set()
    first: Operation = dot
    for op in defining_slice([dot.a], dot.parent):
        if isinstance(op, shared.Read):
            tainted.update(op.results)
            if first is dot: first = op
        elif any(v in tainted for v in op.operands) and not isinstance(op, tile.Transpose): return op
    return first
