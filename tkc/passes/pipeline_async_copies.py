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

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES, Select
from tkc.ir.plan import place_of
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
from tkc.passes import PassContext
from tkc.passes.analysis.alias import source_unchanged, unchanged
from tkc.passes.analysis.own import own_layout, users
from tkc.passes.analysis.values import LEAVES, POINTWISE, VIEWS, WRITES
from tkc.passes.warpgroups.carried import Carried

FEW = 32  # elements of a tile that is no block of memory
Add, Mul, Lt, And = (CLASSES[n] for n in ("add", "mul", "lt", "and"))


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        for ring in _rings(kernel, context):
            ring.thread(kernel.body.block, ring.start(kernel))
        for loop in [op for op in kernel.walk() if isinstance(op, (scf.ForOp, scf.WhileOp))]:
            copies = [
                op
                for op in body_of(loop).ops
                if isinstance(op, shared.Copy)
                and op.engine is None
                and _runs_ahead(op, loop, context)
            ]
            stages = _stages(copies, kernel, context)
            if (
                stages > 1
                or copies
                and all(own_layout(copy.buffer.owner) is not None for copy in copies)
            ):
                _pipeline(loop, copies, stages, context)
        for op in [op for op in kernel.walk() if isinstance(op, shared.Copy)]:
            _at_once(op)
        kernel.set_integer("level", 3)


def _runs_ahead(copy: shared.Copy, loop: scf.ForOp | scf.WhileOp, context: PassContext) -> bool:
    """Whether a copy may be issued iterations early: the loop does not write what it reads, its
    operands of a later iteration can be computed now, loaded from arrays that the loop does not
    change, and its buffer is the loop's own.
    """
    if not isinstance(copy.buffer.owner, shared.Alloc) or copy.buffer.owner.parent is not body_of(
        loop
    ):
        return False
    if isinstance(loop, scf.WhileOp) and (
        own_layout(copy.buffer.owner) is None or known_ahead(loop) < context.plan.stages
    ):
        return False

    def readable(op):
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


def _stages(copies: list[shared.Copy], kernel: tile.Kernel, context: PassContext) -> int:
    """The planned stages, fewer where shared memory does not hold them."""
    if not copies:
        return 1
    wanted = context.plan.stages if context.plan else 3
    bytes_ = sum(copy.buffer.type.bytes for copy in copies)
    others = (
        sum(
            op.result.type.bytes if isinstance(op, shared.Alloc) else shared.scratch(op)
            for op in kernel.walk()
        )
        - bytes_
    )
    fit = max(1, (context.target.shared_bytes - others - 1024) // bytes_)
    if fit < wanted:
        context.decisions.append(
            f"pipeline-async-copies: {fit} stages instead of {wanted}, {bytes_} bytes each fill"
            " shared memory"
        )
    return min(wanted, fit)


def _number(anchor: Operation, value: int, like: SSAValue) -> SSAValue:
    return before(anchor, tile.Constant(value, like.type)).result


def _pipeline(
    loop: scf.ForOp | scf.WhileOp, copies: list[shared.Copy], stages: int, context: PassContext
) -> None:
    body, counted = body_of(loop), isinstance(loop, scf.ForOp)
    iv = body.args[0]
    own = all(own_layout(copy.buffer.owner) is not None for copy in copies)
    ahead = stages if own else stages - 1
    sources = [v for copy in copies for v in copy.operands if v is not copy.buffer]
    slice_ = defining_slice(sources, body)
    loads = [op for op in slice_ if isinstance(op, tile.Load)]
    asking = (
        defining_slice([v for op in loads for v in op.operands], body)
        + [op for op in loads if not any(v.owner is op for other in loads for v in other.operands)]
        if loads
        else []
    )
    needed = _without(loads, sources, slice_)
    rings = {}
    for copy in copies:
        t: SharedType = copy.buffer.type
        rings[copy] = before(
            loop, shared.Alloc(SharedType(stages, t.shape, t.element, t.layout))
        ).result
        rings[copy].name_hint = copy.buffer.name_hint or "ring"

    def ask(anchor: Operation, at: SSAValue) -> list[SSAValue]:
        """What is loaded for the addresses of that iteration."""
        mapping: dict[SSAValue, SSAValue] = {iv: at}
        clone_slice(asking, mapping, anchor)
        return [mapping[op.result] for op in loads]

    def issue(anchor: Operation, at: SSAValue, stage: SSAValue, loaded: list[SSAValue]) -> SSAValue:
        """The copies of the iteration whose induction variable is `at`, as one token."""
        valid = before(anchor, Lt(at, loop.ub)).result if counted else _goes_on(loop, at, anchor)
        mapping: dict[SSAValue, SSAValue] = {iv: at} | {
            op.result: v for op, v in zip(loads, loaded, strict=False)
        }
        clone_slice(needed, mapping, anchor)
        tokens = []
        for copy in copies:
            mask = (
                valid
                if copy.mask is None
                else _both(anchor, mapping.get(copy.mask, copy.mask), valid)
            )
            view = before(anchor, shared.Stage(rings[copy], stage)).result

            def get(v):
                return None if v is None else mapping.get(v, v)

            new = shared.CopyAsync(
                get(copy.array),
                [get(o) for o in copy.offsets],
                view,
                copy.extents.get_values(),
                mask,
                get(copy.other),
            )
            new.properties |= {
                k: copy.properties[k] for k in ("vector", "threads") if k in copy.properties
            }
            tokens.append(before(anchor, new).token)
        return tokens[0] if len(tokens) == 1 else before(anchor, shared.JoinTokens(tokens)).token

    zero = before(loop, tile.Constant(0, i32)).result
    at, tokens = loop.lb if counted else loop.arguments[0], []
    for j in range(ahead):
        if j:
            at = before(loop, Add(at, loop.step)).result if counted else loop.arguments[j]
        tokens.append(issue(loop, at, _number(loop, j, zero), ask(loop, at)))
    zero.name_hint = "stage"
    old, loaded = (
        len(loop.iter_args if counted else loop.arguments),
        (ask(loop, before(loop, Add(at, loop.step)).result) if loads else []),
    )
    early = _looked_up(body) if own else []
    known = [
        op
        for op in early
        if isinstance(op, tile.Load)
        and unchanged(op, loop, context.overlaps)
        and not any(isinstance(v, tile.Load) for v in defining_slice(op.operands, body))
    ]
    by_place = [op for op in defining_slice([op.result for op in known], body) if op in early]

    def look_up(anchor: Operation, at: SSAValue) -> list[SSAValue]:
        clone_slice(by_place, mapping := {iv: at}, anchor)
        return [mapping[op.result] for op in known]

    extra = [zero, *tokens, *loaded, *look_up(loop, loop.lb if counted else loop.arguments[0])]
    loop = rebuild_for(loop, range(old), extra) if counted else rebuild_while(loop, extra)
    body = body_of(loop)
    stage, *carried = body.args[-len(extra) :]
    carried, loaded, looked = (
        carried[:ahead],
        carried[ahead : ahead + len(loads)],
        carried[ahead + len(loads) :],
    )
    terminator = body.last_op
    for op in early:
        op.detach()
    first = body.first_op
    body.insert_ops_before(early, first)
    later = []
    if (
        known
        # before the wait: what is told to other blocks waits for loads, and these would wait behind
        # the copies. Behind the last iteration its own numbers again
    ):
        following = before(first, Add(iv, loop.step)).result if counted else body.args[1]
        there = (
            before(first, Lt(following, loop.ub)).result
            if counted
            else _goes_on(loop, following, first)
        )
        later = look_up(first, before(first, Select(there, following, iv)).result)
    ready = before(first, shared.WaitCopies([carried[0]], ahead - 1)).ready
    if own:  # a thread asks for its next bytes when it has read these
        reads = {op for copy in copies for op in users(copy.buffer) if isinstance(op, shared.Read)}
        first = [op for op in body.ops if any(inner in reads for inner in op.walk())][-1].next_op
    distance = (
        before(first, Mul(loop.step, _number(first, ahead, loop.step))).result if counted else None
    )
    target = (
        stage
        if own
        else before(
            first,
            threads.RingNext(stage, zero, stages, before(first, tile.Constant(ahead, i32)).result),
        ).next_stage
    )
    coming = before(first, Add(iv, distance)).result if counted else body.args[ahead]
    token = issue(first, coming, target, loaded)
    asked = ask(first, before(first, Add(coming, loop.step)).result) if loads else []
    asked += later
    for op, value in zip(known, looked, strict=True):
        replace(op, [value])
    for copy in copies:
        alloc = copy.buffer.owner
        view = before(copy, shared.Stage(rings[copy], stage)).result
        for use in list(alloc.result.uses):
            user = use.operation
            if user is copy:
                continue
            user.operands[use.index] = view
        _after(view, ready)
        erase(copy)
        erase(alloc)
    step = before(terminator, threads.RingNext(stage, zero, stages))
    terminator.operands = [*terminator.operands, step.next_stage, *carried[1:], token, *asked]
    after(loop, shared.WaitCopies(list(loop.results[old + 1 : old + 1 + ahead]), 0))
    for op in reversed(slice_):
        if not any(r.first_use for r in op.results):
            erase(op)
    context.decisions.append(
        f"pipeline-async-copies: {len(copies)} copies of a loop {stages} stages deep"
        + (
            f", {len(loads)} load{'s'[: len(loads) > 1]} of their addresses one further"
            if loads
            else ""
        )
    )


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


def _goes_on(loop: scf.WhileOp, at: SSAValue, anchor: Operation) -> SSAValue:
    """Whether a loop would run once more with that counter."""
    test = loop.before_region.block
    mapping = {test.args[0]: at}
    clone_slice(list(test.ops)[:-1], mapping, anchor)
    return mapping[test.last_op.operands[0]]


def _without(
    loads: list[tile.Load], values: list[SSAValue], ops: list[Operation]
) -> list[Operation]:
    """Of the operations that values are computed from, those behind the loads."""
    wanted, work = set(), [v.owner for v in values]
    while work:
        op = work.pop()
        if op not in ops or op in loads or op in wanted:
            continue
        wanted.add(op)
        work += [v.owner for inner in op.walk() for v in inner.operands]
    return [op for op in ops if op in wanted]


def _rings(kernel: tile.Kernel, context: PassContext) -> list[Ring]:
    """The plan's rings with the copies, or the writes, that fill them."""
    fillers: dict[int, list[shared.Copy | shared.Write]] = {}
    for op in kernel.walk():
        match op:
            case shared.Copy() if op.engine is not None:
                number = context.plan.load(op).ring
            case shared.Write() if "number" in op.attributes:
                number = context.plan.load(op).relayout_ring
            case _:
                continue
        fillers.setdefault(number, []).append(op)
    return [Ring(context.plan.rings[number], found) for number, found in sorted(fillers.items())]


class Ring(Carried):
    """Buffers that a producer fills, or a role that lays factors anew: stage and parity are
    threaded through the whole program, each place that copies taking the next.
    """

    def __init__(self, stages: int, copies: list[shared.Copy | shared.Write]):
        self.stages, self.copies, self.buffers = stages, set(copies), {}

    def start(self, kernel: tile.Kernel) -> list[SSAValue]:
        """Before everything: a buffer for each load, and the first stage."""
        anchor = next(
            op for op in kernel.body.block.ops if any(inner in self.copies for inner in op.walk())
        )
        for copy in sorted(self.copies, key=place_of):
            place, t = place_of(copy), copy.buffer.type
            if place in self.buffers:
                continue
            self.buffers[place] = before(
                anchor, shared.Alloc(SharedType(self.stages, t.shape, t.element, t.layout))
            ).result
            self.buffers[place].name_hint = copy.buffer.name_hint or "ring"
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
            if op in self.copies and isinstance(op, shared.Write):
                state = self._written(op, state)
            elif op in self.copies:
                site.append(op)
            elif op.regions:
                state = self.around(op, state)
        return self._fill(site, state) if site else state

    def _written(self, write: shared.Write, state: list[SSAValue]) -> list[SSAValue]:
        """A stage that threads write: there when the write is over."""
        stage, parity = state
        self.copies.discard(write)
        alloc = write.buffer.owner
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
        tokens, last = [], copies[0]
        for copy in copies[1:]:
            moved = [
                op
                for op in defining_slice([v for v in copy.operands], copy.parent)
                if last.is_before_in_block(op)
            ]
            for op in (*moved, copy):
                op.detach()
                last = after(last, op)
        for copy in copies:
            self.copies.discard(copy)
            alloc = copy.buffer.owner
            view = before(alloc, shared.Stage(self.buffers[place_of(copy)], stage)).result
            alloc.result.replace_all_uses_with(view)
            new = shared.CopyAsync(
                copy.array, copy.offsets, view, copy.extents.get_values(), copy.mask, copy.other
            )
            new.properties |= {
                k: copy.properties[k]
                for k in ("engine", "cut", "among", "hint", "fetch", "tf32")
                if k in copy.properties
            }
            tokens.append(before(copy, new).token)
            erase(copy)
            erase(alloc)
        joined = tokens[0] if len(tokens) == 1 else after(new, shared.JoinTokens(tokens)).token
        wait = after(joined.owner, shared.WaitCopies([joined], 0))
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
    new.properties |= {k: copy.properties[k] for k in ("vector", "threads") if k in copy.properties}
    buffer = copy.buffer
    before(copy, new)
    ready = before(copy, shared.WaitCopies([new.token], 0)).ready
    erase(copy)
    for use in list(buffer.uses):
        if isinstance(use.operation, shared.Read):
            replace(use.operation, _read_after(use.operation, ready))
