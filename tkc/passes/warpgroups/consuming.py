"""The consumers' part of a program: they wait for stages, issue dots and release the stages when
these are over. A step of roles.py.

    tile.wait_copies [%t]                            mbarrier_wait %full[%s] %p
    %d = tile.dot %ring[%s], …, %acc          ->     fence dot;  %d = dot_async …;  dot_commit
    … %d …                                           dot_wait 0;  mbarrier_arrive %empty[%s]; … %d …

An operand that threads write is fenced for the tensor cores where it was written, and written
again when the dots that read it are over.

A dot runs until something needs it (`Overlap`); sums of loops run on into the next iteration
(carried_dots.py).
"""

from __future__ import annotations

from collections.abc import Collection, Container
from itertools import takewhile

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import (
    after,
    before,
    erase,
    stamp,
)
from tkc.ir.types import PendingType
from tkc.ir.values import (
    block_of,
    first_of,
    is_side_effect_free,
    next_of,
    operations_in,
    owner_op,
    terminator_of,
    tile_type,
    yielded_by,
)
from tkc.passes.analysis.alias import Overlaps
from tkc.passes.warpgroups.carried import users_of
from tkc.passes.warpgroups.carried_dots import are_one_group, carried_count, carry, may_run_on
from tkc.passes.warpgroups.epilogue_stores import release_stages, stage_of, store_results
from tkc.passes.warpgroups.in_flight import (
    InFlightDot,
    stage_number,
    stage_shown,
    starts_anew,
)
from tkc.passes.warpgroups.maps import Maps
from tkc.passes.warpgroups.rings import (
    RingBarriers,
    arrived,
    is_multiplied,
    is_read_beside,
    relayouts,
    ring_of,
    rings_converted,
    state_of,
)


def consume(
    block: Block,
    rings: dict[SSAValue, RingBarriers],
    maps: Maps,
    turns: bool,
    overlaps: Overlaps,
) -> None:
    """Turns the tokens of a block of consumers into waits, releases and stores."""
    _wait_for_stages(block, rings)
    outs = operations_in(block, shared.CopyOut)
    reused = list(dict.fromkeys(filter(None, map(stage_of, outs))))
    around = {op.parent for op in block.walk() if isinstance(op, tile.Dot)}
    Overlap(block, rings, reused, turns, len(around) == 1).run()
    if turns:
        before(first_of(block), threads.Turn("start"))
    if reused:
        release_stages(reused, {ring: barriers.empty for ring, barriers in rings.items()})
    if outs:
        store_results(outs, maps, block, overlaps)
        commits = operations_in(block, threads.BulkCommit)
        each = "warpgroup" if any(op.each for op in commits) else None
        block.add_op(stamp(threads.BulkWait(0, each=each), terminator_of(block)))


def _wait_for_stages(block: Block, rings: dict[SSAValue, RingBarriers]) -> None:
    """Waits where the block's tokens are waited for, and where it writes what is relaid out."""
    anew = [op for op in block.walk() if relayouts(op)]
    raw = rings_converted(anew, rings)
    own = {barriers for ring, barriers in raw.items() if is_read_beside(ring, block)}
    arrived(
        block,
        {ring: made for ring, made in rings.items() if ring not in raw or made in own},
    )
    for write in anew:
        before(write, threads.MbarrierWait(rings[ring_of(write)].full, *state_of(write)))
        erase(write)


def _stages_read(
    dot: tile.Dot, rings: dict[SSAValue, RingBarriers]
) -> list[tuple[RingBarriers, SSAValue, Block]]:
    """The rings' stages that a dot reads and others fill, each once, and the block in which each is
    waited for.
    """
    found: dict[tuple[SSAValue, SSAValue], tuple[RingBarriers, SSAValue, Block]] = {}
    for stage in _filled_by_others(dot, rings):
        ring, index = rings[stage.ring], stage.index[0]
        found.setdefault((ring.full, index), (ring, index, block_of(stage)))
    return list(found.values())


def _filled_by_others(dot: tile.Dot, rings: Container[SSAValue]) -> list[shared.Stage]:
    """What a dot reads of rings whose stages consumers do not write."""
    shown = filter(None, map(stage_shown, (dot.a, dot.b)))
    return [stage for stage in shown if stage.ring in rings]


class Overlap:
    """Dots of a block run on until something needs them; a stage is released when the dots that
    read it in its block are over.
    """

    def __init__(
        self,
        block: Block,
        rings: dict[SSAValue, RingBarriers],
        reused: Collection[shared.Stage],
        turns: bool,
        alone: bool,
    ):
        self.block, self.rings, self.reused, self.turns = block, rings, reused, turns
        self.alone = alone  # no other block of the role has dots
        self.group = are_one_group(block)
        if not all(may_run_on(_stages_read(dot, rings), block) for dot in self.group):
            self.group = []
        self.flights: list[InFlightDot] = []
        # what dots before have made; and of it what no wait since the last issue shows to be there
        self.made = _carried_results(block)
        self.unproven: set[SSAValue] = set()
        self.late: set[SSAValue] = set()  # stages that are released in the next iteration
        # the block's stages with each dot of it that reads one, in order; None: a dot further
        # inside. (Not their numbers: a loop that is written anew gives others.)
        self.readers: list[tuple[shared.Stage, tile.Dot | None]] = []

    def run(self) -> None:
        """Makes the block's dots asynchronous, in place."""
        for op in list(self.block.ops):
            if isinstance(op, shared.Write) and is_multiplied(op.buffer):
                after(op, threads.Fence("async_shared"))
        self._note_readers()
        for op in list(self.block.ops):
            self._complete_needed(op)
            self._prove(op)
            for region in op.regions:
                for inner in list(region.blocks):
                    Overlap(inner, self.rings, self.reused, self.turns, self.alone).run()
            if isinstance(op, tile.Dot) and _is_wgmma(op):
                self._issue(op)
        if self.turns:
            _take_turns(self.block, self.rings)
        if self.flights and self.block.last_op is not None:
            self._end(self.block.last_op)
        late = self.late.union(stage.index[0] for stage in self.reused)
        _release_stages(self.block, self.rings, late)

    def _note_readers(self) -> None:
        for op in self.block.ops:
            for inner in op.walk():
                if not isinstance(inner, tile.Dot) or inner is op and not _is_wgmma(op):
                    continue
                for stage in _filled_by_others(inner, self.rings):
                    if stage.parent is self.block:
                        self.readers.append((stage, inner if inner is op else None))

    def _last_reader(self, ring: RingBarriers, number: SSAValue) -> tile.Dot | None:
        """The last dot of the block that reads a stage; None where dots further inside read it, and
        it is released at the block's end.
        """
        for stage, dot in reversed(self.readers):
            if stage.index[0] is number and self.rings[stage.ring].full is ring.full:
                return dot
        return None

    def _issue(self, dot: tile.Dot) -> None:
        t = PendingType(tile_type(dot.acc))
        first = next((f for f in self.flights if f.continues_in(dot)), None)
        acc = dot.acc if first is None else first.pending
        new = threads.DotAsync(dot.a, dot.b, None if starts_anew(dot) else acc, t)
        if not self.group or not self.flights:
            before(dot, threads.Fence("dot"))
        before(dot, new)
        if not self.group or dot is self.group[-1]:
            before(dot, threads.DotCommit())
        flight = InFlightDot(dot, new, new.result, _stages_read(dot, self.rings))
        if first is not None:
            self.flights.remove(first)
            known = {(ring.full, stage) for ring, stage, _ in flight.stages}
            flight.stages += [each for each in first.stages if (each[0].full, each[1]) not in known]
            flight.before = first.dots
        self.flights.append(flight)
        self.unproven = set(self.made)

    def _complete_needed(self, op: Operation) -> None:
        """Waits, before an operation, for the dots that it needs."""
        if self.group:
            return
        needed = [
            i
            for i, flight in enumerate(self.flights)
            if flight.is_needed_by(op) and not (_is_wgmma(op) and flight.continues_in(op))
        ]
        if self.flights and op.regions and not is_plain(op):
            needed = [len(self.flights) - 1]
        if isinstance(op, scf.YieldOp) and op is self.block.last_op:
            return  # `_end`
        if needed:
            self._complete(op, needed[-1])

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

    def _complete(self, anchor: Operation, last: int) -> None:
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
        whole, count = len(self.flights), 0
        if self.group:
            count = whole
        elif not self.turns:
            count = carried_count(self.block, self.flights)
        if whole > count:
            self._complete(last, whole - count - 1)
        if self.flights:
            released = [
                (ring, stage)
                for flight in self.flights
                for ring, stage, _ in flight.stages
                if self._last_reader(ring, stage) in flight.dots
            ]
            self.late.update(stage for _, stage in released)
            carry(self.block, self.flights, released, self.group, self.alone)
            self.flights = []

    def _release_read_by(self, flight: InFlightDot, anchor: Operation) -> None:
        """Releases the stages whose last reader a dot was."""
        for ring, stage, _ in flight.stages:
            if self._last_reader(ring, stage) not in flight.dots:
                continue
            place = _read_by(anchor, stage) if ring.read else anchor
            arrive = threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp")
            before(place, *ring.fence(), arrive)


def _carried_results(block: Block) -> set[SSAValue]:
    """What a loop carries that dots of the iteration before have made."""
    if not isinstance(block.parent_op(), scf.ForOp):
        return set()
    carried = zip(block.args[1:], yielded_by(block), strict=True)
    return {argument for argument, value in carried if isinstance(value.owner, tile.Dot)}


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


def _take_turns(block: Block, rings: Container[SSAValue]) -> None:
    """Where several groups of dots are issued one after the other, the warpgroups do so in turn:
    one's vector work runs under the other's dots. Not where all of them meet in between.
    """
    fences = [op for op in block.ops if isinstance(op, threads.Fence) and op.kind.data == "dot"]
    commits = [op for op in block.ops if isinstance(op, threads.DotCommit)]
    if len(fences) < 2 or any(op.regions and not is_plain(op) for op in block.ops):
        return
    turn = (op for op in block.ops if fences[0].is_before_in_block(op))
    if any(_is_handed_on(op, rings) for op in takewhile(lambda op: op is not commits[-1], turn)):
        return
    before(fences[0], threads.Turn("begin"))
    after(commits[-1], threads.Turn("end"))


def _is_handed_on(op: Operation, rings: Container[SSAValue]) -> bool:
    """Whether consumers hand one another what an operation writes or reads in shared memory: no
    operand of dots, and in no ring.
    """
    if not isinstance(op, (shared.Read, shared.Write)) or is_multiplied(op.buffer):
        return False
    stage = stage_shown(op.buffer)
    return stage is None or stage.ring not in rings


def _read_by(anchor: Operation, stage: SSAValue) -> Operation:
    """What threads read of a stage they have read before the anchor, where it is released; also
    what a branch alone looks at. Gives where that is: behind the anchor where that reads the stage.
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

    reads = [
        op for op in behind if isinstance(op, shared.Read) and stage_number(op.buffer) is stage
    ]
    for read in reads:
        if read is not anchor:
            earlier(read)
    return next_of(anchor) if anchor in reads else anchor


def _release_stages(block: Block, rings: dict[SSAValue, RingBarriers], late: set[SSAValue]) -> None:
    """Stages that were waited for here and read by dots further inside, or by threads, are free at
    the block's end, or where threads have read them, if more of the ring is waited for behind that.
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
                else [_behind_reads(block, stage, ring)]
            ):
                for op in (
                    *ring.fence(),
                    threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp"),
                ):
                    if place is not None:
                        before(place, op)
                    else:
                        block.add_op(stamp(op, wait))


def _behind_reads(block: Block, stage: SSAValue, ring: RingBarriers) -> Operation | None:
    """What follows the last operation that reads a stage, where that is by threads, and others wait
    for more of the ring behind it, which may have no other stage; else the block's end: None where
    it is the role's.
    """
    places = [use.operation for use in stage.uses if isinstance(use.operation, shared.Stage)]
    users = {user for place in places for user in users_of(place.result)}
    ops = list(block.ops)
    last = max((i for i, op in enumerate(ops) if not users.isdisjoint(op.walk())), default=-1)
    waits = {use.operation for use in ring.full.uses}
    if isinstance(ops[last], shared.Read) and any(
        op.regions and not waits.isdisjoint(op.walk()) for op in ops[last + 1 :]
    ):
        return next_of(ops[last])
    return block.last_op if isinstance(block.last_op, scf.YieldOp) else None


def _behind_readers(block: Block, stage: SSAValue) -> list[Operation]:
    """Where the loop whose dots read a stage is over, in each way through a branch round it; in one
    without such a loop where it begins.
    """
    around = next((op for op in reversed(list(block.ops)) if _reads(op, stage)), None)
    if isinstance(around, scf.IfOp):
        ways = [_behind_loop(region.block, stage) for region in around.regions]
        places = [op for op in ways if op is not None]
        if len(places) == len(ways):
            return places
    return [next_of(around) if isinstance(around, scf.ForOp) else terminator_of(block)]


def _behind_loop(way: Block, stage: SSAValue) -> Operation | None:
    """What follows the loop of a block whose dots read a stage, the first operation where there is
    no such loop; None where others read it, too.
    """
    readers = [op for op in way.ops if _reads(op, stage)]
    if not readers:
        return first_of(way)
    loops = [op for op in readers if isinstance(op, scf.ForOp)]
    # what stands before the first loop reads it while the loop waits
    if not loops or loops[0] is not readers[-1]:
        return None
    return next_of(loops[0])


def _reads(op: Operation, stage: SSAValue) -> bool:
    """Whether dots in an operation read a stage."""
    return any(
        isinstance(inner, threads.DotAsync) and stage in _stages_of(inner) for inner in op.walk()
    )


def _stages_of(dot: threads.DotAsync) -> list[SSAValue]:
    """The rings' stages that a dot under way reads."""
    return [stage.index[0] for stage in map(stage_shown, (dot.a, dot.b)) if stage is not None]
