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
from typing import TypeAlias, TypeGuard, cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES, Select
from tkc.ir.plan import Plan, place_of
from tkc.ir.rewrite import (
    after,
    before,
    body_of,
    clone_slice,
    counted_slice,
    defining_slice,
    erase,
    known_ahead,
    rebuild_for,
    rebuild_while,
    replace,
)
from tkc.ir.types import SharedType, TileType
from tkc.ir.values import (
    block_of,
    first_of,
    next_of,
    owner_of,
    owner_op,
    shared_type,
    terminator_of,
    yielded_by,
)
from tkc.passes import PassContext
from tkc.passes.analysis.alias import source_unchanged, unchanged
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.own import own_layout, users
from tkc.passes.analysis.values import LEAVES, POINTWISE, VIEWS, WRITES
from tkc.passes.cuts.held import Access, HeldRows, held_rows
from tkc.passes.planning.rings import shared_places
from tkc.passes.warpgroups.carried import Carried

FEW = 32  # elements of a tile that is no block of memory
DEFAULT_STAGES = 3  # of a kernel without a plan
Add, Mul, Lt, And = (CLASSES[n] for n in ("add", "mul", "lt", "and"))
Loop: TypeAlias = scf.ForOp | scf.WhileOp
Filler: TypeAlias = shared.Copy | shared.Write  # what fills a stage


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in [op for op in module.body.block.ops if isinstance(op, tile.Kernel)]:
        for ring in _rings(kernel, context):
            ring.thread(kernel.body.block, ring.start(kernel))
        _hold(kernel, context)
        for loop in [op for op in kernel.walk() if isinstance(op, (scf.ForOp, scf.WhileOp))]:
            _issue_ahead(loop, kernel, context)
        for copy in [op for op in kernel.walk() if isinstance(op, shared.Copy)]:
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
            tokens.append(_issued(copy, mapping, stage.result, copy.mask, anchor))
        return _joined(tokens, anchor)

    def _read(self, loop: scf.ForOp, stage: SSAValue, ready: SSAValue) -> None:
        """What read a copy's buffer in a loop reads its part, which is there."""
        inside = set(loop.body.block.ops)
        for r in self.rows:
            for copy in (op for op in r.members if op in inside):
                _read_stage(cast(shared.Copy, copy), self.rings[r], stage, ready)


def _issue_ahead(loop: Loop, kernel: tile.Kernel, context: PassContext) -> None:
    """Gives rings to those copies of a loop that can run ahead."""
    copies = [
        op
        for op in body_of(loop).ops
        if isinstance(op, shared.Copy) and op.engine is None and _runs_ahead(op, loop, context)
    ]
    stages = _stages(copies, kernel, context)
    if stages > 1 or copies and _are_own(copies):
        _CopiesAhead(loop, copies, stages, context).run()


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


def _stages(copies: list[shared.Copy], kernel: tile.Kernel, context: PassContext) -> int:
    """The planned stages, fewer where shared memory does not hold them."""
    if not copies:
        return 1
    wanted = context.plan.stages if context.plan else DEFAULT_STAGES
    bytes_ = sum(shared_type(copy.buffer).bytes for copy in copies)
    buffers = (op for op in kernel.walk() if isinstance(op, shared.Alloc))
    others = sum(shared_type(op.result).bytes for op in buffers) - bytes_
    others += shared.scratch_of(kernel)
    fit = max(1, (context.target.shared_bytes - others - 1024) // bytes_)
    if fit < wanted:
        context.decisions.append(
            f"pipeline-async-copies: {fit} stages instead of {wanted}, {bytes_} bytes each fill"
            " shared memory"
        )
    return min(wanted, fit)


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


class _Counter:
    """What a loop counts by: the variable of a range, or the first value that a while loop carries,
    behind which it carries those of the next iterations.
    """

    def __init__(self, loop: Loop):
        self.loop = loop

    @property
    def first(self) -> SSAValue:
        """Of the first iteration."""
        loop = self.loop
        return loop.lb if isinstance(loop, scf.ForOp) else loop.arguments[0]

    def before_loop(self, at: SSAValue, number: int) -> SSAValue:
        """Of an iteration, counted from the first, whose predecessor's is `at`; before the loop."""
        loop = self.loop
        return self.following(at, loop) if isinstance(loop, scf.ForOp) else loop.arguments[number]

    def following(self, at: SSAValue, anchor: Operation) -> SSAValue:
        """A range's next one."""
        return before(anchor, Add(at, self.step)).result

    @property
    def step(self) -> SSAValue:
        return cast(scf.ForOp, self.loop).step

    def inside(self, anchor: Operation, number: int, distance: SSAValue | None) -> SSAValue:
        """In the loop: of the iteration `number` further on. distance: so many steps of a range."""
        args = body_of(self.loop).args
        return args[number] if distance is None else before(anchor, Add(args[0], distance)).result

    def goes_on(self, at: SSAValue, anchor: Operation) -> SSAValue:
        """Whether the loop runs the iteration of that counter."""
        loop = self.loop
        if isinstance(loop, scf.ForOp):
            return before(anchor, Lt(at, loop.ub)).result
        test = loop.before_region.block
        mapping: dict[SSAValue, SSAValue] = {test.args[0]: at}
        clone_slice(list(test.ops)[:-1], mapping, anchor)
        return mapping[yielded_by(test)[0]]


class _CopiesAhead:
    """Copies of one loop that get rings: `run` issues each `ahead` iterations early.

    loads: what the copies' addresses are loaded from, which is asked for one iteration before them.
    known: what the program looks up by its counter alone, carried for one iteration.
    """

    def __init__(self, loop: Loop, copies: list[shared.Copy], stages: int, context: PassContext):
        self.loop, self.copies, self.stages, self.context = loop, copies, stages, context
        self.counter = _Counter(loop)
        body = body_of(loop)
        self.variable: SSAValue = body.args[0]
        self.own = _are_own(copies)
        self.ahead = stages if self.own else stages - 1
        sources = [v for copy in copies for v in copy.operands if v is not copy.buffer]
        self.addresses = defining_slice(sources, body)
        self.loads = [op for op in self.addresses if isinstance(op, tile.Load)]
        self.asking = _asking(self.loads, body)
        self.needed = _without(self.loads, sources, self.addresses)
        self.early = _looked_up(body) if self.own else []
        self.known = [op for op in self.early if self._is_looked_up_at_once(op)]
        found = defining_slice([op.result for op in self.known], body)
        self.by_place = [op for op in found if op in self.early]

    def _is_looked_up_at_once(self, op: Operation) -> TypeGuard[tile.Load]:
        """Whether an operation loads what the loop does not change, by no other load."""
        if not isinstance(op, tile.Load) or not unchanged(op, self.loop, self.context.overlaps):
            return False
        sources = defining_slice(op.operands, body_of(self.loop))
        return not any(isinstance(v, tile.Load) for v in sources)

    def run(self) -> None:
        """Rewrites the loop and says so in the decisions."""
        self.rings = {copy: _ring(self.loop, self.stages, copy.buffer) for copy in self.copies}
        self.zero = before(self.loop, tile.Constant(0, i32)).result
        extra = [self.zero, *self._first_copies()]
        self.zero.name_hint = "stage"
        self._rebuild(extra)
        self._iterate()
        for op in reversed(self.addresses):
            if not any(r.first_use for r in op.results):
                erase(op)
        count, loads = len(self.copies), len(self.loads)
        self.context.decisions.append(
            f"pipeline-async-copies: {count} copies of a loop {self.stages} stages deep"
            + (f", {loads} load{'s'[: loads > 1]} of their addresses one further" if loads else "")
        )

    def _first_copies(self) -> list[SSAValue]:
        """Before the loop: the tokens of the first iterations' copies, what the next one's are
        addressed by, and what the first iteration looks up.
        """
        loop, at, tokens = self.loop, self.counter.first, []
        for number in range(self.ahead):
            if number:
                at = self.counter.before_loop(at, number)
            stage = _number(loop, number, self.zero)
            tokens.append(self._issue(loop, at, stage, self._ask(loop, at)))
        loaded = self._ask(loop, self.counter.following(at, loop)) if self.loads else []
        return [*tokens, *loaded, *self._look_up(loop, self.counter.first)]

    def _rebuild(self, extra: list[SSAValue]) -> None:
        """The loop with what it carries besides: a stage, tokens, and what was loaded ahead."""
        loop = self.loop
        if isinstance(loop, scf.ForOp):
            self.carried = len(loop.iter_args)
            self.loop = rebuild_for(loop, range(self.carried), extra)
        else:
            self.carried = len(loop.arguments)
            self.loop = rebuild_while(loop, extra)
        self.counter = _Counter(self.loop)
        args: Sequence[SSAValue] = body_of(self.loop).args[-len(extra) :]
        self.stage, rest = args[0], args[1:]
        self.tokens = rest[: self.ahead]
        self.loaded = rest[self.ahead : self.ahead + len(self.loads)]
        self.looked = rest[self.ahead + len(self.loads) :]

    def _iterate(self) -> None:
        """In the loop: waits for this iteration's copies and issues those of a later one."""
        body = body_of(self.loop)
        for op in self.early:
            op.detach()
        first, terminator = first_of(body), terminator_of(body)
        body.insert_ops_before(self.early, first)
        # before the wait: what is told to other blocks waits for loads, and these would wait behind
        # the copies
        later = self._look_up_next(first) if self.known else []
        ready = before(first, shared.WaitCopies([self.tokens[0]], self.ahead - 1)).ready
        token, asked = self._issue_next(self._behind_reads(body) if self.own else first)
        for op, value in zip(self.known, self.looked, strict=True):
            replace(op, [value])
        for copy in self.copies:
            self._read_ring(copy, ready)
        step = before(terminator, threads.RingNext(self.stage, self.zero, self.stages))
        terminator.operands = [
            *terminator.operands,
            step.next_stage,
            *self.tokens[1:],
            token,
            *asked,
            *later,
        ]
        left = self.loop.results[self.carried + 1 : self.carried + 1 + self.ahead]
        after(self.loop, shared.WaitCopies(list(left), 0))

    def _look_up_next(self, anchor: Operation) -> list[SSAValue]:
        """What the next iteration looks up; behind the last one, its own numbers again."""
        iv = body_of(self.loop).args[0]
        is_range = isinstance(self.loop, scf.ForOp)
        coming = self.counter.inside(anchor, 1, self.counter.step if is_range else None)
        there = self.counter.goes_on(coming, anchor)
        return self._look_up(anchor, before(anchor, Select(there, coming, iv)).result)

    def _behind_reads(self, body: Block) -> Operation:
        """Where a thread has read its bytes, and asks for its next ones."""
        reads = {
            op for copy in self.copies for op in users(copy.buffer) if isinstance(op, shared.Read)
        }
        last = [op for op in body.ops if any(inner in reads for inner in op.walk())][-1]
        return next_of(last)

    def _issue_next(self, anchor: Operation) -> tuple[SSAValue, list[SSAValue]]:
        """The copies of the iteration `ahead` further on, and addresses of the one behind it."""
        distance = None
        if isinstance(self.loop, scf.ForOp):
            step = self.loop.step
            distance = before(anchor, Mul(step, _number(anchor, self.ahead, step))).result
        target = self.stage
        if not self.own:
            count = before(anchor, tile.Constant(self.ahead, i32)).result
            onward = threads.RingNext(self.stage, self.zero, self.stages, count)
            target = before(anchor, onward).next_stage
        coming = self.counter.inside(anchor, self.ahead, distance)
        token = self._issue(anchor, coming, target, self.loaded)
        if not self.loads:
            return token, []
        return token, self._ask(anchor, self.counter.following(coming, anchor))

    def _read_ring(self, copy: shared.Copy, ready: SSAValue) -> None:
        """What read a copy's buffer reads the ring's stage, behind the wait."""
        _read_stage(copy, self.rings[copy], self.stage, ready)

    # ---- operations of another iteration ---------------------------------------------------------
    def _ask(self, anchor: Operation, at: SSAValue) -> list[SSAValue]:
        """What is loaded for the addresses of that iteration."""
        mapping = {self.variable: at}
        clone_slice(self.asking, mapping, anchor)
        return [mapping[op.result] for op in self.loads]

    def _look_up(self, anchor: Operation, at: SSAValue) -> list[SSAValue]:
        """What a program looks up by its place, of that iteration."""
        mapping = {self.variable: at}
        clone_slice(self.by_place, mapping, anchor)
        return [mapping[op.result] for op in self.known]

    def _issue(
        self, anchor: Operation, at: SSAValue, stage: SSAValue, loaded: Sequence[SSAValue]
    ) -> SSAValue:
        """The copies of the iteration whose counter is `at`, as one token."""
        valid = self.counter.goes_on(at, anchor)
        mapping = {self.variable: at}
        mapping |= {op.result: v for op, v in zip(self.loads, loaded, strict=False)}
        clone_slice(self.needed, mapping, anchor)
        tokens = []
        for copy in self.copies:
            mask = valid
            if copy.mask is not None:
                mask = _both(anchor, mapping.get(copy.mask, copy.mask), valid)
            view = before(anchor, shared.Stage(self.rings[copy], stage)).result
            tokens.append(_issued(copy, mapping, view, mask, anchor))
        return _joined(tokens, anchor)


def _issued(
    copy: shared.Copy,
    mapping: dict[SSAValue, SSAValue],
    buffer: SSAValue,
    mask: SSAValue | None,
    anchor: Operation,
) -> SSAValue:
    """The copy of another iteration, asynchronous, before an operation: its token."""
    other = copy.other
    new = shared.CopyAsync(
        mapping.get(copy.array, copy.array),
        [mapping.get(o, o) for o in copy.offsets],
        buffer,
        copy.extents.get_values(),
        mask,
        None if other is None else mapping.get(other, other),
    )
    new.properties |= _kept(copy, "vector", "threads")
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


def _kept(copy: shared.Copy, *names: str) -> dict[str, Attribute]:
    """Those of a copy's properties that it has."""
    return {name: copy.properties[name] for name in names if name in copy.properties}


def _asking(loads: list[tile.Load], body: Block) -> list[Operation]:
    """Loads of addresses with what they are computed from, in order."""
    before_them = defining_slice([v for op in loads for v in op.operands], body)
    last = [op for op in loads if not any(v.owner is op for o in loads for v in o.operands)]
    return [*before_them, *last]


def _looked_up(body: Block) -> list[Operation]:
    """The few numbers that a program looks up, and what they follow from: asked for before the wait
    for its blocks, they arrive with these.
    """
    known: list[Operation] = []
    for op in body.ops:
        if isinstance(op, WRITES):
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


def _without(
    loads: list[tile.Load], values: list[SSAValue], ops: list[Operation]
) -> list[Operation]:
    """Of the operations that values are computed from, those behind the loads."""
    wanted: set[Operation] = set()
    work = [v.owner for v in values]
    while work:
        op = work.pop()
        if isinstance(op, Block) or op not in ops or op in loads or op in wanted:
            continue
        wanted.add(op)
        work += [v.owner for inner in op.walk() for v in inner.operands]
    return [op for op in ops if op in wanted]


def _rings(kernel: tile.Kernel, context: PassContext) -> list[Ring]:
    """The plan's rings with the copies, or the writes, that fill them."""
    fillers: dict[int, list[Filler]] = {}
    for op in kernel.walk():
        if isinstance(op, shared.Copy) and op.engine is not None:
            fillers.setdefault(_plan_of(context).load(op).ring, []).append(op)
        elif isinstance(op, shared.Write) and "number" in op.attributes:
            fillers.setdefault(_plan_of(context).load(op).relayout_ring, []).append(op)
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
        anchor = next(
            op for op in kernel.body.block.ops if any(inner in self.copies for inner in op.walk())
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
            moved = [
                op
                for op in defining_slice(copy.operands, block_of(copy))
                if last.is_before_in_block(op)
            ]
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
            new = shared.CopyAsync(
                copy.array, copy.offsets, view, copy.extents.get_values(), copy.mask, copy.other
            )
            new.properties |= _kept(copy, "engine", "cut", "among", "hint", "fetch", "tf32")
            tokens.append(before(copy, new).token)
            erase(copy)
            erase(alloc)
        joined = tokens[0] if len(tokens) == 1 else after(new, shared.JoinTokens(tokens)).token
        wait = after(owner_op(joined), shared.WaitCopies([joined], 0))
        return list(after(wait, threads.RingNext(stage, parity, self.stages)).results)


def _both(anchor: Operation, mask: SSAValue, valid: SSAValue) -> SSAValue:
    if isinstance(mask.type, TileType):
        valid = before(anchor, tile.Splat(valid, mask.type)).result
    return before(anchor, And(mask, valid)).result


def _after(view: SSAValue, ready: SSAValue) -> None:
    """Every read of the buffer (through whatever views) waits for the token."""
    for use in list(view.uses):
        match use.operation:
            case shared.Read() as read:
                replace(read, _read_after(read, ready))
            case (
                shared.SharedSlice()
                | shared.SharedTranspose()
                | shared.SharedReshape()
                | shared.Stage() as inner
            ):
                _after(inner.result, ready)


def _read_after(read: shared.Read, ready: SSAValue) -> shared.Read:
    new = shared.Read(read.buffer, read.result.type, [*read.after, ready])
    if read.conflicts is not None:
        new.properties["conflicts"] = read.conflicts
    return new


def _at_once(copy: shared.Copy) -> None:
    """A copy that nothing overlaps with: issued and waited for here."""
    new = shared.CopyAsync(
        copy.array, copy.offsets, copy.buffer, copy.extents.get_values(), copy.mask, copy.other
    )
    new.properties |= _kept(copy, "vector", "threads")
    buffer = copy.buffer
    before(copy, new)
    ready = before(copy, shared.WaitCopies([new.token], 0)).ready
    erase(copy)
    for use in list(buffer.uses):
        if isinstance(use.operation, shared.Read):
            replace(use.operation, _read_after(use.operation, ready))
