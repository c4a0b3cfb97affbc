"""The consumers' part of a program: they wait for stages, issue dots and release the stages when
these are over. A step of roles.py.

    tile.wait_copies [%t]                            mbarrier_wait %full[%s] %p
    %d = tile.dot %ring[%s], …, %acc          ->     fence dot;  %d = dot_async …;  dot_commit
    … %d …                                           dot_wait 0;  mbarrier_arrive %empty[%s]; … %d …

An operand that threads write is fenced for the tensor cores where it was written, and written
again when the dots that read it are over.

A dot runs until something needs it (`Overlap`); the accumulators of a loop run one group deep, so
that a stage is released when the next group is in flight (`_dots`). Sums of other loops run on into
the next iteration (carried_dots.py).
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES, Cast
from tkc.ir.rewrite import (
    after,
    before,
    defining_slice,
    erase,
    rebuild_for,
    stamp,
)
from tkc.ir.types import PendingType, TileType
from tkc.ir.values import (
    block_of,
    first_of,
    index_of,
    next_of,
    owner_op,
    terminator_of,
    tile_type,
    yielded_by,
)
from tkc.passes.analysis.alias import Overlaps
from tkc.passes.analysis.values import VIEWS
from tkc.passes.planning.operands import running_sums
from tkc.passes.planning.operands import zero as is_zero
from tkc.passes.warpgroups.carried_dots import (
    InFlightDot,
    carried_count,
    carry,
    shown_by,
    written_by,
)
from tkc.passes.warpgroups.epilogue_stores import release_stages, stage_of, store_results
from tkc.passes.warpgroups.maps import Maps
from tkc.passes.warpgroups.rings import RingBarriers, arrived, origin, relayouts, ring_of, state_of


def consume(
    block: Block,
    rings: dict[SSAValue, RingBarriers],
    maps: Maps,
    turns: bool,
    overlaps: Overlaps,
) -> None:
    """Turns the tokens of a block of consumers into waits, releases and stores."""
    anew = [op for op in block.walk() if relayouts(op)]
    raw = {ring_of(origin(write)) for write in anew}
    arrived(block, {ring: barriers for ring, barriers in rings.items() if ring not in raw})
    for write in anew:
        before(write, threads.MbarrierWait(rings[ring_of(write)].full, *state_of(write)))
        erase(write)
    outs = [op for op in block.walk() if isinstance(op, shared.CopyOut)]
    through = list(dict.fromkeys(filter(None, map(stage_of, outs))))
    late = {stage.index[0] for stage in through}  # stages that are released a step late
    around = dict.fromkeys(op.parent_op() for op in block.walk() if isinstance(op, tile.Dot))
    for loop in around:
        if not isinstance(loop, scf.ForOp) or not (made := running_sums(loop)):
            continue
        together = [dot for dots in made for dot in dots]
        if (
            any(map(written_by, together))
            or len(together) > 1
            and any(map(_in_registers, together))
        ):
            continue  # one dot's operand is made when the one before is over
        stages = list(
            {
                (stage[0].full, stage[1]): stage
                for dots in made
                for dot in dots
                for stage in _stages_read(dot, rings)
            }.values()
        )
        if all(where is loop.body.block for *_, where in stages):
            late.update(stage for _, stage, _ in stages)
            _dots(loop, made, [(ring, stage) for ring, stage, _ in stages], len(around) > 1)
    Overlap(block, rings, late, turns).run()
    if turns:
        before(first_of(block), threads.Turn("start"))
    if through:
        release_stages(through, {ring: barriers.empty for ring, barriers in rings.items()})
    if outs:
        store_results(outs, maps, block, overlaps)
    if outs:
        block.add_op(
            stamp(
                threads.BulkWait(
                    0,
                    each=(
                        "warpgroup"
                        if any(op.each for op in block.walk() if isinstance(op, threads.BulkCommit))
                        else None
                    ),
                ),
                terminator_of(block),
            )
        )


def _stages_read(
    dot: tile.Dot, rings: dict[SSAValue, RingBarriers]
) -> list[tuple[RingBarriers, SSAValue, Block]]:
    """The rings' stages that a dot reads and others fill, each once, and the block in which each is
    waited for.
    """
    found: dict[tuple[SSAValue, SSAValue], tuple[RingBarriers, SSAValue, Block]] = {}
    for stage in filter(None, map(_shown, (dot.a, dot.b))):
        if stage.ring not in rings:
            continue  # consumers write it
        ring, index = rings[stage.ring], stage.index[0]
        found.setdefault((ring.full, index), (ring, index, block_of(stage)))
    return list(found.values())


# by the ring's full barrier and the stage's number
LastReaders = dict[tuple[SSAValue, SSAValue], tile.Dot | None]


class Overlap:
    """Dots of a block run on until something needs them; a stage is released when the dots that
    read it in its block are over.
    """

    def __init__(
        self,
        block: Block,
        rings: dict[SSAValue, RingBarriers],
        late: set[SSAValue],
        turns: bool,
    ):
        self.block, self.rings, self.late, self.turns = block, rings, late, turns
        self.flights: list[InFlightDot] = []
        # what dots before have made; and of it what no wait since the last issue shows to be there
        self.made = _carried_results(block)
        self.unproven: set[SSAValue] = set()
        # the last dot of the block that reads a stage; None: dots further inside read it, and it is
        # released at the block's end
        self.last_reader: LastReaders = {}

    def run(self) -> None:
        """Makes the block's dots asynchronous, in place."""
        for op in list(self.block.ops):
            if isinstance(op, shared.Write) and _is_operand(op.buffer):
                after(op, threads.Fence("async_shared"))
        self._note_readers()
        for op in list(self.block.ops):
            self._land_needed(op)
            self._prove(op)
            for region in op.regions:
                for inner in list(region.blocks):
                    Overlap(inner, self.rings, self.late, self.turns).run()
            if isinstance(op, tile.Dot) and _is_wgmma(op):
                self._issue(op)
        if self.turns:
            _take_turns(self.block)
        if self.flights and self.block.last_op is not None:
            self._end(self.block.last_op)
        _release_stages(self.block, self.rings, self.late)

    def _note_readers(self) -> None:
        for op in self.block.ops:
            for inner in op.walk():
                if not isinstance(inner, tile.Dot) or inner is op and not _is_wgmma(op):
                    continue
                for ring, stage, where in _stages_read(inner, self.rings):
                    if where is self.block:
                        self.last_reader[ring.full, stage] = inner if inner is op else None

    def _issue(self, dot: tile.Dot) -> None:
        t = PendingType(tile_type(dot.acc))
        fresh = isinstance(dot.acc.owner, tile.Constant) and dot.acc.owner.number == 0
        first = next((f for f in self.flights if f.continues_in(dot)), None)
        acc = dot.acc if first is None else first.pending
        new = threads.DotAsync(dot.a, dot.b, None if fresh else acc, t)
        before(dot, threads.Fence("dot"), new, threads.DotCommit())
        flight = InFlightDot(dot, new, new.result, _stages_read(dot, self.rings))
        if first is not None:
            self.flights.remove(first)
            flight.stages += first.stages
            flight.before = first.dots
        self.flights.append(flight)
        self.unproven = set(self.made)

    def _land_needed(self, op: Operation) -> None:
        """Waits, before an operation, for the dots that it needs."""
        needed = [
            i
            for i, flight in enumerate(self.flights)
            if _needs(op, flight, self.block) and not (_is_wgmma(op) and flight.continues_in(op))
        ]
        if self.flights and op.regions and not is_plain(op):
            needed = [len(self.flights) - 1]
        if isinstance(op, scf.YieldOp) and op is self.block.last_op:
            return  # `_end`
        if needed:
            self._land(op, needed[-1])

    def _prove(self, op: Operation) -> None:
        """Before an operation that touches what an earlier dot made, while dots issued since are in
        flight: a wait for no more than was waited for shows the assembler that it is there.
        """
        touched = [v for inner in op.walk() for v in inner.operands if v in self.unproven]
        if not self.flights or not touched or isinstance(op, tile.Dot):
            return
        self._wait(op, len(self.flights), [False] * len(self.flights))

    def _wait(self, anchor: Operation, pending: int, ready: list[bool]) -> threads.DotWait:
        flights = self.flights
        wait = before(anchor, threads.DotWait(pending, [f.pending for f in flights], ready))
        self.unproven.clear()
        for flight, value, done in zip(flights, wait.results, ready, strict=True):
            if not done:
                flight.pending = value
        return wait

    def _land(self, anchor: Operation, last: int) -> None:
        """Waits, before the anchor, for the dots up to a number; the rest stay on their way."""
        flights = self.flights
        ready = [i <= last for i in range(len(flights))]
        wait = self._wait(anchor, len(flights) - 1 - last, ready)
        for flight, value, done in zip(flights, wait.results, ready, strict=True):
            if not done:
                continue
            flight.dot.result.replace_all_uses_with(value)
            self.made.add(value)
            self._release_read_by(flight, anchor)
            for dot in reversed(flight.dots):
                erase(dot)
        self.flights = [f for f, done in zip(flights, ready, strict=True) if not done]

    def _end(self, last: Operation) -> None:
        """Waits for dots at the block's end, but for sums that run on into the next iteration."""
        count = 0 if self.turns else carried_count(self.block, self.flights)
        if len(self.flights) > count:
            self._land(last, len(self.flights) - count - 1)
        if self.flights:
            released = [
                (ring, stage)
                for flight in self.flights
                for ring, stage, _ in flight.stages
                if self.last_reader.get((ring.full, stage)) is flight.dot
            ]
            self.late.update(stage for _, stage in released)
            carry(self.block, self.flights, released)
            self.flights = []

    def _release_read_by(self, flight: InFlightDot, anchor: Operation) -> None:
        """Releases the stages whose last reader a dot was."""
        for ring, stage, _ in flight.stages:
            if self.last_reader.get((ring.full, stage)) not in flight.dots:
                continue
            if ring.read:
                _read_by(anchor, stage)
            arrive = threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp")
            before(anchor, *ring.fence(), arrive)


def _carried_results(block: Block) -> set[SSAValue]:
    """What a loop carries that dots of the iteration before have made."""
    if not isinstance(block.parent_op(), scf.ForOp):
        return set()
    carried = zip(block.args[1:], yielded_by(block), strict=True)
    return {argument for argument, value in carried if isinstance(value.owner, tile.Dot)}


def _in_registers(dot: tile.Dot) -> bool:
    """Whether a dot's left operand is in registers."""
    return isinstance(dot.a.type, TileType) and dot.a.type.register_layout is not None


def _is_operand(buffer: SSAValue) -> bool:
    """Whether dots read a buffer, or views of it."""
    return any(
        isinstance(use.operation, tile.Dot)
        or isinstance(use.operation, (shared.SharedTranspose, shared.SharedSlice))
        and _is_operand(use.operation.results[0])
        for use in buffer.uses
    )


def _is_wgmma(op: Operation) -> bool:
    return (
        isinstance(op, tile.Dot) and op.instruction is not None and op.instruction.data == "wgmma"
    )


def is_plain(op: Operation) -> bool:
    """Whether a branch does arithmetic alone, which may run under dots."""
    return isinstance(op, scf.IfOp) and all(
        isinstance(inner, scf.YieldOp)
        or is_side_effect_free(inner)
        and not isinstance(inner, (tile.Dot, scf.ForOp, scf.WhileOp))
        for inner in op.walk()
        if inner is not op
    )


def _take_turns(block: Block) -> None:
    """Where several groups of dots are issued one after the other, the warpgroups do so in turn:
    one's vector work runs under the other's dots.
    """
    fences = [op for op in block.ops if isinstance(op, threads.Fence) and op.kind.data == "dot"]
    commits = [op for op in block.ops if isinstance(op, threads.DotCommit)]
    if len(fences) < 2 or any(op.regions and not is_plain(op) for op in block.ops):
        return
    before(fences[0], threads.Turn("begin"))
    after(commits[-1], threads.Turn("end"))


def _needs(op: Operation, flight: InFlightDot, block: Block) -> bool:
    """Whether an operation must come after a dot: it uses the result, or makes what takes the place
    of the operand in registers.
    """
    if any(v is flight.dot.result for inner in op.walk() for v in inner.operands):
        return True
    if isinstance(op, shared.Write) and any(op.buffer in written_by(dot) for dot in flight.dots):
        return True
    operand = flight.dot.a
    while isinstance(operand.owner, VIEWS):
        operand = operand.owner.arg
    if (
        isinstance(op, Cast)
        and isinstance(operand.owner, Block)
        and operand.owner is block
        and isinstance(block.last_op, scf.YieldOp)
        and index_of(operand) > 0
    ):
        return _becomes(op.result, block.last_op.operands[index_of(operand) - 1])
    return False


def _becomes(value: SSAValue, result: SSAValue) -> bool:
    """Whether a value is the result, or what a branch may make it."""
    if value is result:
        return True
    return isinstance(result.owner, scf.IfOp) and any(
        _becomes(value, yielded_by(region.block)[index_of(result)])
        for region in result.owner.regions
    )


def _read_by(anchor: Operation, stage: SSAValue) -> None:
    """What threads read of a stage they have read before the anchor, where it is released; also
    what a branch alone looks at.
    """
    behind = [
        op
        for top in block_of(anchor).ops
        if top is anchor or anchor.is_before_in_block(top)
        for op in top.walk()
    ]

    def earlier(op: Operation) -> None:
        for v in op.operands:
            if v.owner in behind:
                earlier(owner_op(v))
        op.detach()
        before(anchor, op)
        behind.remove(op)

    for read in [
        op for op in behind if isinstance(op, shared.Read) and _stage_of(op.buffer) is stage
    ]:
        earlier(read)


def _release_stages(block: Block, rings: dict[SSAValue, RingBarriers], late: set[SSAValue]) -> None:
    """Stages that were waited for here and read by dots further inside, or by threads, are free at
    the block's end.
    """
    for ring in dict.fromkeys(rings.values()):
        for use in list(ring.full.uses):
            wait = use.operation
            if not isinstance(wait, threads.MbarrierWait) or wait.parent is not block:
                continue
            stage = wait.index[0]
            if stage in late or any(
                u.operation.parent is block and isinstance(u.operation, threads.MbarrierArrive)
                for u in stage.uses
            ):
                continue
            for place in (
                _behind_readers(block, stage)
                if ring.single
                else [block.last_op if isinstance(block.last_op, scf.YieldOp) else None]
            ):
                for op in (
                    *ring.fence(),
                    threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp"),
                ):
                    if place is not None:
                        before(place, op)
                    else:
                        block.add_op(stamp(op, wait))


def _behind_readers(block: Block, stage: SSAValue) -> list[Operation]:
    """Where the loop whose dots read a stage is over, in each way through a branch round it; in one
    without such a loop where it begins.
    """

    def reads(op):
        return any(
            isinstance(inner, threads.DotAsync) and stage in _stages_of(inner)
            for inner in op.walk()
        )

    around = next((op for op in reversed(list(block.ops)) if reads(op)), None)
    if isinstance(around, scf.IfOp):
        loops = [
            next((op for op in region.block.ops if isinstance(op, scf.ForOp) and reads(op)), None)
            for region in around.regions
        ]
        if not any(
            reads(op)
            for region, loop in zip(around.regions, loops, strict=False)
            for op in region.block.ops
            if loop is None or loop.is_before_in_block(op)
        ):
            return [
                first_of(region.block) if loop is None else next_of(loop)
                for region, loop in zip(around.regions, loops, strict=True)
            ]
    return [next_of(around) if isinstance(around, scf.ForOp) else terminator_of(block)]


def _stages_of(dot: threads.DotAsync) -> list[SSAValue]:
    """The rings' stages that a dot under way reads."""
    return [stage.index[0] for stage in map(_shown, (dot.a, dot.b)) if stage is not None]


def _stage_of(buffer: SSAValue) -> SSAValue | None:
    """The number of the stage that a buffer, or a view of one, shows."""
    return None if (stage := _shown(buffer)) is None else stage.index[0]


def _shown(buffer: SSAValue) -> shared.Stage | None:
    """The stage of a ring that a buffer, or a view of one, shows."""
    owner = shown_by(buffer).owner
    return owner if isinstance(owner, shared.Stage) else None


def _dots(
    loop: scf.ForOp,
    made: list[list[tile.Dot]],
    stages: list[tuple[RingBarriers, SSAValue]],
    among_others: bool,
) -> None:
    """The sums of a loop, one group of dots deep: a stage is released when the next group is
    under way. A left operand in registers is computed when the dot before is over: it still reads
    its own, and ptxas would give both the same registers. What it is computed from is read while
    that one runs; what needs no computing is read when it is over.

    A sum that starts from zero starts in undefined registers, which its first dot overwrites: to
    the assembler they are in use from the role's beginning. Where the role has dots elsewhere too
    (`among_others`), which need registers of their own, each loop's sums begin with their values.
    """
    body, dots = loop.body.block, [op for op in loop.body.block.ops if isinstance(op, tile.Dot)]
    carried = [first.acc for first, *_ in made]  # each sum as the loop carries it
    indices = [index_of(sum_) - 1 for sum_ in carried]
    keep = [i for i in range(len(loop.iter_args)) if i not in indices]
    initial, kinds = (
        [loop.iter_args[i] for i in indices],
        [PendingType(tile_type(sum_)) for sum_ in carried],
    )
    started = among_others or not all(map(is_zero, initial))
    pending = [
        before(loop, threads.Accumulator(v) if started else threads.Undefined(t)).result
        for v, t in zip(initial, kinds, strict=True)
    ]
    zero = before(loop, tile.Constant(0, i32)).result
    some = before(loop, CLASSES["lt"](loop.lb, loop.ub)).result
    # stand for the results until they exist
    holders = [after(loop, threads.Undefined(t)) for t in kinds]
    placeholder = after(holders[0], threads.DotWait(0, [holder.result for holder in holders]))
    for i, result in zip(indices, placeholder.results, strict=False):
        loop.results[i].replace_all_uses_with(result)
    computed = isinstance(dots[0].a.type, TileType)
    place = _computed(dots[0]) if computed else dots[0]
    early = [
        op for op in defining_slice([dot.a for dot in dots], body) if op.is_before_in_block(place)
    ]
    behind = [op for top in body.ops if top not in early for op in top.walk()]
    # behind this iteration's fence: the last one's needs another
    late = isinstance(place, shared.Read) or any(
        isinstance(op, shared.Read) and _stage_of(op.buffer) in [stage for _, stage in stages]
        for op in behind
    )
    inside = [before(place, threads.Undefined(t)) for t in kinds]
    go = before(place, CLASSES["ne"](body.args[0], loop.lb)).result
    # a sum, and what it is on its way
    flying = dict(zip(carried, (held.result for held in inside), strict=False))
    if computed:
        wait = before(place, threads.DotWait(0, list(flying.values())))
        flying = dict(zip(carried, wait.results, strict=False))
    before(dots[0], threads.Fence("dot"))
    for dot in dots:
        flying[dot.result] = before(
            dot,
            threads.DotAsync(
                dot.a,
                dot.b,
                flying[dot.acc],
                PendingType(tile_type(dot.acc)),
                keep=go if dot.acc in carried and not started else None,
            ),
        ).result
    ends = [flying[made_of[-1].result] for made_of in made]
    before(dots[-1], threads.DotCommit())
    if not computed:
        wait = before(dots[-1], threads.DotWait(1, ends, [False] * len(ends)))
        ends = list(wait.results)
    for i, sum_ in zip(indices, carried, strict=False):
        terminator_of(body).operands[i] = sum_  # the carried tile goes; its dots with it
    for dot in reversed(dots):
        erase(dot)
    loop = rebuild_for(loop, keep, [*pending, *[zero] * len(stages)])
    sums, earlier = body.args[-len(made) - len(stages) : -len(stages)], body.args[-len(stages) :]
    for stage in earlier:
        stage.name_hint = "stage_before"
    for held, sum_ in zip(inside, sums, strict=False):
        held.result.replace_all_uses_with(sum_)
        erase(held)
    after(
        wait,
        *(
            op
            for (ring, _), stage in zip(stages, earlier, strict=False)
            for op in (
                *ring.fence(),
                threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp", when=go),
            )
        ),
    )
    terminator_of(body).operands = [*yielded_by(body), *ends, *(stage for _, stage in stages)]
    done = after(loop, threads.DotWait(0, loop.results[-len(made) - len(stages) : -len(stages)]))
    last = after(
        done,
        *(
            op
            for (ring, _), stage in zip(stages, loop.results[-len(stages) :], strict=False)
            for op in (
                *(ring.fence() if late else ()),
                threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp", when=some),
            )
        ),
    )
    ends = list(done.results)
    if not started:
        yes, no = Block([scf.YieldOp(*ends)]), Block([scf.YieldOp(*initial)])
        chosen = after(last, scf.IfOp(some, [v.type for v in initial], Region(yes), Region(no)))
        ends = list(chosen.results)
    for result, value in zip(placeholder.results, ends, strict=True):
        result.replace_all_uses_with(value)
    for op in (placeholder, *holders):
        erase(op)


def _computed(dot: tile.Dot) -> Operation:
    """The first operation that computes a dot's left operand of what was read in memory. Where
    nothing does, what reads it: ptxas has it read to the registers from which the dot before takes
    its own.
    """
    tainted: set[SSAValue] = set()
    first: Operation = dot
    for op in defining_slice([dot.a], block_of(dot)):
        if isinstance(op, (shared.Read, tile.Load, tile.LoadPointers)) and isinstance(
            op.results[0].type, TileType
        ):
            tainted.update(op.results)
            if first is dot:
                first = op
        elif any(v in tainted for v in op.operands) and not isinstance(op, tile.Transpose):
            return op
    return first
