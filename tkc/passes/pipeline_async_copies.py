"""pipeline-async-copies: level 2 to level 3. Copies run ahead of their use through rings.

In a loop, a copy whose addresses do not depend on what the loop computes gets a ring of `stages`
buffers; the copies of the first stages − 1 iterations are issued before the loop, and each
iteration issues those of the iteration stages − 1 further on:

    scf.for %k = … {
      %b = tile.alloc : !tile.shared<1, …>
      tile.copy %a[%m, %k] %b
      %x = tile.read %b
      …
    }

becomes

    %ring = tile.alloc : !tile.shared<3, …>
    %t0 = tile.copy_async %a[%m, %k0] %ring[0] mask %k0 < ub
    %t1 = tile.copy_async %a[%m, %k1] %ring[1] mask %k1 < ub
    scf.for %k = … iter_args(%s, %p0, %p1 = 0, %t0, %t1) {
      %ready = tile.wait_copies [%p0] {pending = 1}
      %p2 = tile.copy_async %a[%m, %k + 2 step] %ring[%s + 2 mod 3] mask …
      %x = tile.read %ring[%s] after(%ready)
      …
      scf.yield %s + 1 mod 3, %p1, %p2
    }
    tile.wait_copies [all] {pending = 0}

What a copy's address is loaded from (a page's number, the rows of a gather) is loaded one iteration
before the copy is issued, and carried: no copy waits for memory. All copies of one iteration are
one group (one token). Past the end of the loop the mask is false: nothing is read, zeros are
written, the group count stays what the waits expect; so trip counts 0, 1 and stages ± 1 need no
case of their own. A ring that threads fill and read each for itself (`own`) is filled again as soon
as it was read: all of its stages are on their way while the iteration computes. Where programs are
claimed one by one, the loop is a while that carries the numbers of the next ones, as many as the
ring has stages, and a copy's mask is the loop's test of its number. What a program loads by its
place alone beside its blocks (a class, a scale) is carried likewise, and small loads that follow
from it stand before the wait for the blocks. Copies by tensor maps, which a producer warp will
make, stay in their iteration: the ring's stage and parity are carried through all the loops round
it, so that the producer may be any number of stages ahead, in the next program too. Any other copy
is issued where it stands and waited for at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.host_values import is_unbounded
from tkc.ir.plan import Plan, place_of, ring_filled
from tkc.ir.rewrite import (
    after,
    before,
    body_of,
    clone_slice,
    counted_slice,
    defining_slice,
    erase,
    is_inside,
    known_ahead,
    rebuild_for,
    rebuild_while,
    replace,
)
from tkc.ir.scratch import scratch_of
from tkc.ir.types import SharedType, TileType, TokenType
from tkc.ir.values import (
    block_of,
    first_of,
    is_side_effect_free,
    next_of,
    operations_in,
    owner_of,
    owner_op,
    shared_type,
    terminator_of,
)
from tkc.passes import PassContext
from tkc.passes.allocate_shared import lifetimes
from tkc.passes.analysis.alias import source_unchanged, unchanged
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.own import own_layout, users
from tkc.passes.analysis.values import LEAVES, POINTWISE, VIEWS, WRITES
from tkc.passes.cuts.held import Access, HeldRows, held_rows
from tkc.passes.planning.rings import shared_places
from tkc.passes.schedule.expand import End, Loop, LoopSchedule, broken_rules, expand
from tkc.passes.warpgroups.carried import Carried

FEW = 32  # elements of a tile that is no block of memory
DEFAULT_STAGES = 3  # of a kernel without a plan
Filler: TypeAlias = shared.Copy | shared.Write  # what fills a stage


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in tile.kernels_of(module):
        for ring in _rings(kernel, context):
            ring.thread(kernel.body.block, ring.start(kernel))
        _hold(kernel, context)
        _in_loops(kernel, kernel, context)
        for copy in operations_in(kernel, shared.Copy):
            _at_once(copy)
        kernel.set_integer("level", 3)


def _hold(kernel: tile.Kernel, context: PassContext) -> None:
    """Copies once what several loops over its parts read, where the plan has it stay."""

    def wanted(op: Access) -> bool:
        return (
            isinstance(op, shared.Copy)
            and context.plan is not None
            and context.plan.load(op).path == "held"
            and own_layout(_buffer_of(op)) is not None
        )

    found: dict[scf.ForOp, list[HeldRows]] = {}
    for rows in held_rows(kernel, wanted, context.overlaps):
        found.setdefault(rows.loops[0], []).append(rows)
    for together in found.values():
        _RowsHeld(together).run()
        context.decisions.append(
            f"pipeline-async-copies: {len(together)} rows of {len(together[0].loops)} loops stay in"
            f" shared memory, {together[0].parts} parts each"
        )


class _RowsHeld:
    """Rows that loops of one range read: copied before the first of these, a group for each part,
    which that loop waits for one by one; the others find all parts.
    """

    def __init__(self, rows: list[HeldRows]) -> None:
        self.rows, self.loops, self.parts = rows, list(rows[0].loops), rows[0].parts
        self.early = [r for r in rows if r.first is self.loops[0]]
        self.late = [r for r in rows if r.first is not self.loops[0]]
        anchor = self.loops[0]
        self.rings = {
            r: _ring(anchor, self.parts, cast(shared.Copy, r.members[0]).buffer) for r in rows
        }
        self.zero = before(anchor, tile.Constant(0, i32)).result
        self.zero.name_hint = "part"

    def run(self) -> None:
        first, others = self.loops[0], self.loops[1:]
        tokens = [self._copy(self.early, part) for part in range(self.parts)]
        later = [self._copy(self.late, part) for part in range(self.parts)] if self.late else []
        loop = rebuild_for(first, range(count := len(first.iter_args)), [self.zero, *tokens])
        stage, *waiting = loop.body.block.args[1 + count :]
        begin, terminator = first_of(loop.body.block), terminator_of(loop.body.block)
        # a group that is empty keeps the count of those in flight
        pending = self.parts - 1 + len(later)
        ready = before(begin, shared.WaitCopies([waiting[0]], pending)).ready
        self._read(loop, stage, ready)
        none = before(terminator, shared.JoinTokens([])).token
        step = before(terminator, threads.RingNext(stage, self.zero, self.parts)).next_stage
        terminator.operands = [*terminator.operands, step, *waiting[1:], none]
        left = list(loop.results[count + 1 :])
        done = before(others[0], shared.WaitCopies([*left, *later], 0)).ready
        for each in others:
            self._in_other(each, done)

    def _in_other(self, loop: scf.ForOp, done: SSAValue) -> None:
        """A later loop reads what is there."""
        if not any(op.parent_op() is loop for r in self.rows for op in r.members):
            return
        new = rebuild_for(loop, range(count := len(loop.iter_args)), [self.zero])
        stage, terminator = new.body.block.args[1 + count], terminator_of(new.body.block)
        step = before(terminator, threads.RingNext(stage, self.zero, self.parts)).next_stage
        terminator.operands = [*terminator.operands, step]
        self._read(new, stage, done)

    def _copy(self, rows: list[HeldRows], part: int) -> SSAValue:
        """The copies of one part of some rows, before the first loop, as one token."""
        anchor, tokens = self.loops[0], []
        for r in rows:
            copy, loop = cast(shared.Copy, r.members[0]), r.first
            counter = loop.body.block.args[0]
            lower, step = (cast(int, constant(v)) for v in (loop.lb, loop.step))
            at = _number(anchor, lower + part * step, counter)
            mapping: dict[SSAValue, SSAValue] = {counter: at}
            sources = [v for v in copy.operands if v is not copy.buffer]
            clone_slice(defining_slice(sources, loop.body.block), mapping, anchor)
            stage = before(anchor, shared.Stage(self.rings[r], _number(anchor, part, self.zero)))
            tokens.append(_issued(copy, stage.result, anchor, mapping))
        return _joined(tokens, anchor)

    def _read(self, loop: scf.ForOp, stage: SSAValue, ready: SSAValue) -> None:
        """What read a copy's buffer in a loop reads its part, which is there."""
        inside = set(loop.body.block.ops)
        for r in self.rows:
            for copy in (op for op in r.members if op in inside):
                _read_stage(cast(shared.Copy, copy), self.rings[r], stage, ready)


def _in_loops(op: Operation, kernel: tile.Kernel, context: PassContext) -> None:
    """Gives rings to copies of loops, outer loops first."""
    if isinstance(op, (scf.ForOp, scf.WhileOp)):
        op = _issue_ahead(op, kernel, context)
    for inner in [inner for region in op.regions for b in region.blocks for inner in b.ops]:
        _in_loops(inner, kernel, context)


def _issue_ahead(loop: Loop, kernel: tile.Kernel, context: PassContext) -> Loop:
    """Gives rings to those copies of a loop that can run ahead; the loop that has them."""
    copies = [
        op
        for op in body_of(loop).ops
        if isinstance(op, shared.Copy) and op.engine is None and _runs_ahead(op, loop, context)
    ]
    stages = _stages(loop, copies, kernel, context)
    if stages > 1 or copies and _are_own(copies):
        return _CopiesAhead(loop, copies, stages, context).run()
    return loop


def _are_own(copies: list[shared.Copy]) -> bool:
    """Whether each thread reads only what it has copied itself."""
    return all(own_layout(_buffer_of(copy)) is not None for copy in copies)


def _buffer_of(filler: Filler) -> shared.Alloc:
    return owner_of(filler.buffer, shared.Alloc)


def _runs_ahead(copy: shared.Copy, loop: Loop, context: PassContext) -> bool:
    """Whether a copy may be issued iterations early: the loop does not write what it reads, its
    operands of a later iteration can be computed now, loaded from arrays that the loop does not
    change, and its buffer is the loop's own.
    """
    buffer = copy.buffer.owner
    if not isinstance(buffer, shared.Alloc) or buffer.parent is not body_of(loop):
        return False
    if isinstance(loop, scf.WhileOp) and (
        own_layout(buffer) is None or (known_ahead(loop) or 0) < _plan_of(context).stages
    ):
        return False

    def readable(op: Operation) -> bool:
        return (
            isinstance(loop, scf.ForOp)
            and isinstance(op, tile.Load)
            and unchanged(op, loop, context.overlaps)
        )

    if not source_unchanged(copy, loop, context.overlaps):
        return False
    return (
        counted_slice([v for v in copy.operands if v is not copy.buffer], loop, readable)
        is not None
    )


def _plan_of(context: PassContext) -> Plan:
    assert context.plan is not None, "only a plan has claimed programs and rings"
    return context.plan


def _stages(
    loop: Loop, copies: list[shared.Copy], kernel: tile.Kernel, context: PassContext
) -> int:
    """The planned stages of a loop's copies, fewer where shared memory does not hold them beside
    what else is there while the loop runs.
    """
    if not copies:
        return 1
    wanted = context.plan.stages if context.plan else DEFAULT_STAGES
    bytes_ = sum(shared_type(copy.buffer).bytes for copy in copies)
    others = _beside(loop, {copy.buffer for copy in copies}, kernel) + scratch_of(kernel)
    fit = max(1, (context.target.shared_bytes - others - 1024) // bytes_)
    if fit < wanted:
        context.decisions.append(
            f"pipeline-async-copies: {fit} stages instead of {wanted}, {bytes_} bytes each fill"
            " shared memory"
        )
    return min(wanted, fit)


def _beside(loop: Loop, own: set[SSAValue], kernel: tile.Kernel) -> int:
    """Bytes of the buffers that are there while a loop runs, but for its own."""
    position = {op: i for i, op in enumerate(kernel.walk())}
    inside = [position[op] for op in loop.walk()]
    first, last = min(inside), max(inside)
    return sum(
        buffer.bytes
        for buffer in lifetimes(kernel)
        if own.isdisjoint(buffer.op.results) and buffer.start <= last and first <= buffer.end
    )


def _number(anchor: Operation, value: int, like: SSAValue) -> SSAValue:
    return before(anchor, tile.Constant(value, like.type)).result


def _ring(anchor: Operation, stages: int, buffer: SSAValue) -> SSAValue:
    """A buffer of so many stages, before an operation, in place of one."""
    t = shared_type(buffer)
    ring = before(anchor, shared.Alloc(SharedType(stages, t.shape, t.element, t.layout))).result
    ring.name_hint = buffer.name_hint or "ring"
    return ring


def _joined(tokens: Sequence[SSAValue], anchor: Operation) -> SSAValue:
    """One token for several, which stand before an operation."""
    return tokens[0] if len(tokens) == 1 else before(anchor, shared.JoinTokens(tokens)).token


class _CopiesAhead:
    """Copies of one loop that get rings: `run` issues each `ahead` iterations early.

    loads: what the copies' addresses are loaded from, which is asked for one iteration before them.
    looked_up: the few numbers that a program looks up, and what follows from them; of these known:
    what follows from its counter alone, which is asked for one iteration early.
    """

    def __init__(self, loop: Loop, copies: list[shared.Copy], stages: int, context: PassContext):
        self.loop, self.copies, self.stages, self.context = loop, copies, stages, context
        self.own = _are_own(copies)
        self.ahead = stages if self.own else stages - 1
        self.looked_up = _looked_up(body_of(loop)) if self.own else []
        self.known = [op for op in self.looked_up if self._is_known(op)]

    def _is_known(self, op: Operation) -> bool:
        """Whether an operation is a load that may be one iteration early."""
        if not isinstance(op, tile.Load):
            return False
        others = [other for other in list(body_of(self.loop).ops)[:-1] if other is not op]
        groups = ([op], 1, End.CLAMP), (others, 0, End.ANY)
        schedule = LoopSchedule.of(self.loop, groups)
        return not any(broken_rules(self.loop, schedule, self.context.overlaps))

    def run(self) -> Loop:
        """Rewrites the loop and says so in the decisions."""
        old = len(self.loop.results)
        schedule = self._schedule(*self._at_once())
        new = expand(self.loop, schedule, self.context.overlaps)
        left = [token for token in new.results[old:] if isinstance(token.type, TokenType)]
        after(new, shared.WaitCopies(left, 0))
        count, loads = len(self.copies), len(self.loads)
        self.context.decisions.append(
            f"pipeline-async-copies: {count} copies of a loop {self.stages} stages deep"
            + (f", {loads} load{'s'[: loads > 1]} of their addresses one further" if loads else "")
        )
        return new

    def _at_once(self) -> tuple[list[Operation], shared.WaitCopies]:
        """The copies through rings, at the loop's start, with what they need, and waited for at
        once: which operations that takes, and the wait.
        """
        rings = {copy: _ring(self.loop, self.stages, copy.buffer) for copy in self.copies}
        zero = before(self.loop, tile.Constant(0, i32)).result
        zero.name_hint = "stage"
        self._carry(zero)
        body = body_of(self.loop)
        stage, first, end = body.args[-1], first_of(body), terminator_of(body)
        step = before(end, threads.RingNext(stage, zero, self.stages))
        end.operands = [*end.operands, step.next_stage]
        sources = [v for copy in self.copies for v in copy.operands if v is not copy.buffer]
        addresses, mapping = defining_slice(sources, body), dict[SSAValue, SSAValue]()
        clone_slice(addresses, mapping, first)
        tokens = []
        for copy in self.copies:
            view = before(first, shared.Stage(rings[copy], stage)).result
            tokens.append(_issued(copy, view, first, mapping))
        wait = before(first, shared.WaitCopies([_joined(tokens, first)], self.ahead - 1))
        for copy in self.copies:
            _read_stage(copy, rings[copy], stage, wait.ready)
        for op in reversed(addresses):
            if not any(r.first_use for r in op.results):
                erase(op)
        made = list(body.ops)
        made = made[: made.index(wait)]
        self.loads = [op for op in made if isinstance(op, tile.Load)]
        self.reads = {op for ring in rings.values() for op in users(ring)}
        return made, wait

    def _carry(self, stage: SSAValue) -> None:
        """The loop with a stage that it carries behind all else."""
        loop = self.loop
        if isinstance(loop, scf.ForOp):
            self.loop = rebuild_for(loop, range(len(loop.iter_args)), [stage])
        else:
            self.loop = rebuild_while(loop, [stage])

    def _schedule(self, made: list[Operation], wait: shared.WaitCopies) -> LoopSchedule:
        """Copies early, behind what reads the stage where that is the last thing before it is
        filled; loads of addresses one iteration earlier.
        """
        early = [op for op in made if isinstance(op, (shared.CopyAsync, shared.JoinTokens))]
        placed = {*made, wait, *self.known}
        others = [op for op in list(body_of(self.loop).ops)[:-1] if op not in placed]
        used = [i for i, op in enumerate(others) if not self.reads.isdisjoint(op.walk())]
        start = used[-1] + 1 if self.own else 0
        bounded = not any(
            is_inside(op.array, self.loop) or is_unbounded(op.array) for op in self.loads
        )
        groups: list[tuple[Sequence[Operation], int, End]] = [
            # before the wait: what is told to other blocks waits for loads, and these would wait
            # behind the copies
            ([op for op in self.looked_up if op not in self.known], 0, End.ANY),
            (self.known, 1, End.CLAMP),
            ([wait], 0, End.ANY),
            (others[:start], 0, End.ANY),
            (early, self.ahead, End.GUARD),
            (self.loads, self.ahead + 1, End.ANY if bounded else End.GUARD),
            (others[start:], 0, End.ANY),
        ]
        return LoopSchedule.of(self.loop, groups, _again)


def _again(op: Operation) -> bool:
    """Whether an operation costs nothing to be done for several iterations at once."""
    return is_side_effect_free(op) and not isinstance(op, shared.JoinTokens)


def _issued(
    copy: shared.Copy,
    buffer: SSAValue,
    anchor: Operation,
    mapping: dict[SSAValue, SSAValue],
) -> SSAValue:
    """A copy to a buffer, asynchronous, before an operation: its token. mapping: what it takes in
    place of its own operands.
    """
    operands = [buffer if v is copy.buffer else mapping.get(v, v) for v in copy.operands]
    new = shared.CopyAsync.create(
        operands=operands, result_types=[TokenType()], properties=dict(copy.properties)
    )
    return before(anchor, new).token


def _read_stage(copy: shared.Copy, ring: SSAValue, stage: SSAValue, ready: SSAValue) -> None:
    """What read a copy's buffer reads the ring's stage, behind the wait."""
    buffer = _buffer_of(copy)
    view = before(copy, shared.Stage(ring, stage)).result
    for use in list(buffer.result.uses):
        if use.operation is not copy:
            use.operation.operands[use.index] = view
    _after(view, ready)
    erase(copy)
    erase(buffer)


def _looked_up(body: Block) -> list[Operation]:
    """The few numbers that a program looks up, and what they follow from: asked for before the wait
    for its blocks, they arrive with these.
    """
    known: list[Operation] = []
    for op in body.ops:
        if any(isinstance(inner, WRITES) for inner in op.walk()):
            break
        small = not any(isinstance(v.type, TileType) and v.type.size > FEW for v in op.results)
        plain = isinstance(op, (tile.Load, tile.View, *POINTWISE, *VIEWS, *LEAVES))
        if (
            small
            and plain
            and all(
                v.owner in known or isinstance(v.owner, Block) or v.owner.parent is not body
                for v in op.operands
            )
        ):
            known.append(op)
    return defining_slice([op.result for op in known if isinstance(op, tile.Load)], body)


def _rings(kernel: tile.Kernel, context: PassContext) -> list[Ring]:
    """The plan's rings with the copies, or the writes, that fill them."""
    fillers: dict[int, list[Filler]] = {}
    for op in kernel.walk():
        if isinstance(op, shared.Copy) and op.engine is not None:
            fillers.setdefault(_plan_of(context).load(op).ring, []).append(op)
        elif isinstance(op, shared.Write) and (ring := ring_filled(op)) is not None:
            fillers.setdefault(ring, []).append(op)
    return [
        Ring(_plan_of(context).rings[n], found, _plan_of(context).copies_wait)
        for n, found in sorted(fillers.items())
    ]


class Ring(Carried):
    """Buffers that a producer fills, or a role that changes operands' layout: stage and parity are
    threaded through the whole program, each place that copies taking the next.
    """

    def __init__(self, stages: int, copies: list[Filler], places_first: bool = False):
        self.stages, self.copies, self.places_first = stages, set(copies), places_first
        self.buffers: dict[tuple[int | None, int], SSAValue] = {}

    def start(self, kernel: tile.Kernel) -> list[SSAValue]:
        """Before everything: a buffer for each load (loads at different places that are alike have
        the same), and the first stage.
        """
        filled = {*self.copies, *map(_buffer_of, self.copies)}
        anchor = next(
            op for op in kernel.body.block.ops if any(inner in filled for inner in op.walk())
        )
        blocks: dict[tuple[int | None, int], set[Block]] = {}
        kinds: dict[tuple[int | None, int], SSAValue] = {}
        for copy in [
            op
            for op in kernel.walk()
            if isinstance(op, (shared.Copy, shared.Write)) and op in self.copies
        ]:
            blocks.setdefault(place_of(copy), set()).add(block_of(copy))
            kinds.setdefault(place_of(copy), copy.buffer)
        order = sorted(blocks)
        numbers = shared_places([(blocks[at], kinds[at].type) for at in order])
        made: dict[int, SSAValue] = {}
        for at, number in zip(order, numbers, strict=True):
            if number not in made:
                made[number] = _ring(anchor, self.stages, kinds[at])
            self.buffers[at] = made[number]
        zero = before(anchor, tile.Constant(0, i32)).result
        return [zero, zero]

    def inside(self, op: Operation) -> bool:
        return any(inner in self.copies for inner in op.walk())

    def thread(self, block: Block, state: list[SSAValue]) -> list[SSAValue]:
        """Stage and parity after the block; its copies are issued and waited for in their place."""
        site: list[shared.Copy] = []
        for op in list(block.ops):
            if site and (
                op.regions
                and self.inside(op)
                or op in self.copies
                and place_of(op) in map(place_of, site)
            ):
                state, site = self._fill(site, state), []
            if isinstance(op, shared.Write) and op in self.copies:
                state = self._written(op, state)
            elif isinstance(op, shared.Copy) and op in self.copies:
                site.append(op)
            elif op.regions:
                state = self.around(op, state)
        return self._fill(site, state) if site else state

    def _written(self, write: shared.Write, state: list[SSAValue]) -> list[SSAValue]:
        """A stage that threads write: there when the write is over."""
        stage, parity = state
        self.copies.discard(write)
        alloc = _buffer_of(write)
        alloc.result.replace_all_uses_with(
            before(alloc, shared.Stage(self.buffers[place_of(write)], stage)).result
        )
        erase(alloc)
        return list(after(write, threads.RingNext(stage, parity, self.stages)).results)

    def _fill(self, copies: list[shared.Copy], state: list[SSAValue]) -> list[SSAValue]:
        """The copies of one stage, as one token; they stand together, before what reads any of
        them.
        """
        stage, parity = state
        tokens: list[SSAValue] = []
        last: Operation = copies[0]
        for copy in copies[1:]:
            moved = [op for op in _sources_of(copy) if last.is_before_in_block(op)]
            if self.places_first:
                # looked up before the stage's first copy is announced: consumers may overwrite it
                # when they see the stage
                for op in moved:
                    op.detach()
                    before(copies[0], op)
                moved = []
            for op in (*moved, copy):
                op.detach()
                last = after(last, op)
        for copy in copies:
            self.copies.discard(copy)
            alloc = _buffer_of(copy)
            view = before(alloc, shared.Stage(self.buffers[place_of(copy)], stage)).result
            alloc.result.replace_all_uses_with(view)
            tokens.append(_issued(copy, view, copy, {}))
            erase(copy)
            erase(alloc)
        joined = _joined(tokens, next_of(owner_op(tokens[-1])))
        wait = after(owner_op(joined), shared.WaitCopies([joined], 0))
        return list(after(wait, threads.RingNext(stage, parity, self.stages)).results)


def _sources_of(copy: shared.Copy) -> list[Operation]:
    """What a copy's place is computed of in its block, in order; with what threads hand one another
    in shared memory for it.
    """
    block, values = block_of(copy), list(copy.operands)
    while True:
        found = defining_slice(values, block)
        writes = {write for op in found if isinstance(op, shared.Read) for write in _writes_of(op)}
        more = [v for write in writes for v in write.operands if v not in values]
        if not more:
            return [op for op in block.ops if op in writes or op in found]
        values += more


def _writes_of(read: shared.Read) -> list[shared.Write]:
    """What fills the buffer that is read, in the block of the read."""
    uses = [use.operation for use in read.buffer.uses]
    return [op for op in uses if isinstance(op, shared.Write) and op.parent is read.parent]


def _after(view: SSAValue, ready: SSAValue) -> None:
    """Every read of the buffer (through whatever views) waits for the token."""
    for use in list(view.uses):
        match use.operation:
            case shared.Read() as read:
                new = shared.Read(read.buffer, read.result.type, [*read.after, ready])
                new.properties = read.properties | new.properties
                replace(read, new)
            case (
                shared.SharedSlice()
                | shared.SharedTranspose()
                | shared.SharedReshape()
                | shared.Stage() as inner
            ):
                _after(inner.result, ready)


def _at_once(copy: shared.Copy) -> None:
    """A copy that nothing overlaps with: issued and waited for here."""
    token = _issued(copy, copy.buffer, copy, {})
    _after(copy.buffer, before(copy, shared.WaitCopies([token], 0)).ready)
    erase(copy)
