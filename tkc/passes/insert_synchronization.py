"""insert-synchronization: the barriers among the threads of a role, or of a kernel that has none,
derived from what may touch the same bytes.

    tile.write %b, %x                                   tile.write %b, %x
    %y = tile.read %b                       ->          tile.block_barrier
                                                        %y = tile.read %b

A forward data-flow analysis carries the accesses to memory since the last barrier.  An access that conflicts with one of them
(same bytes, at least one writes) gets a barrier before it; a barrier clears them.  A cp.async write counts until it was waited
for *and* a barrier followed, since a thread's wait says nothing of the other threads' copies.

Stages of a ring are told apart by arithmetic: a stage is a base value plus a step modulo the number
of stages (`ring_next`),
and going round the loop re-expresses the accesses of the iteration before by what the base became.  So a ring of n stages
costs one barrier an iteration, found rather than put there.

A buffer that every block of a cluster writes to in all of them (`everywhere`) is ordered by the
cluster's barrier alone, before the first write too: a block may be written to once it has begun.

Global memory is treated the same, except that a thread's own earlier access (the same array,
offsets and layout, no element of which is another thread's too) is no conflict, nor is one of a
ring whose threads fill and read it each for itself: such a ring costs no barrier at all. Arrays of
different arguments do not overlap (an overlap is part of the specialization), and the programs that
a persistent block takes in turn are as unordered as if others ran them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.errors import VerifyError
from tkc.ir import shared, threads, tile
from tkc.ir.axis_info import contiguity
from tkc.ir.elementwise import PointerAdd
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import before, body_of, is_inside
from tkc.ir.text import location_of
from tkc.ir.types import TileType
from tkc.passes import PassContext
from tkc.passes.analysis.access import is_of_programs
from tkc.passes.analysis.own import own_layout, private

OLDEST = 64  # ages of cp.async groups saturate here


@dataclass(frozen=True)
class Place:
    """Bytes that an access touches. `space` is an alloc (shared) or the root of an array (global;
    None: any array). stage: base value (None: a constant) and step; no stage: all of them."""

    space: Operation | SSAValue | None
    is_global: bool = False
    stage: tuple[SSAValue | None, int] | None = None


@dataclass(frozen=True)
class Access:
    """An access since the last barrier."""

    place: Place
    writes: bool
    age: int | None = None  # cp.async: groups committed since its own (-1: not yet committed)
    waited: bool = False
    own: tuple | None = None  # what identifies the thread's own bytes
    start: bool = False  # of other blocks, before they have begun
    stored: bool = False  # global: an ordinary store


class _Conflict(Exception):
    """far: with what another block of the cluster does."""

    def __init__(self, op: Operation, far: bool, start: bool):
        self.op, self.far, self.start = op, far, start


State = frozenset[Access]


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        roles = [
            op.body.block
            for op in kernel.walk()
            if isinstance(op, threads.Role) and op.single is None
        ]
        barriers = [barrier for block in roles or [kernel.body.block] for barrier in _placed(block)]
        far = sum(isinstance(op, threads.ClusterWait) for op in kernel.walk()) if not roles else 0
        if barriers or far:
            context.decisions.append(
                f"insert-synchronization: {len(barriers)} barriers"
                + (f", {far} of the cluster" if far else "")
            )


def _placed(block: Block) -> list[Operation]:
    """The barriers that the threads of a block of code need among themselves: a kernel's, or those
    of an instance of a role.
    """
    barriers: list[Operation] = []
    while (conflict := _conflict(block)) is not None:
        if not conflict.far:
            barriers.append(before(conflict.op, threads.BlockBarrier()))
            continue
        at = conflict.op
        while conflict.start and at.parent is not block:
            at = at.parent_op()
        before(
            block.first_op if conflict.start else at, threads.ClusterArrive()
        )  # whether all blocks have begun is asked at once and answered as late as can be
        before(at, threads.ClusterWait())
    for barrier in list(
        barriers
    ):  # one found later, earlier in a loop, may have made this one needless
        following = barrier.next_op
        barrier.detach()
        if _conflict(block) is None:
            barriers.remove(barrier)
        else:
            following.parent.insert_op_before(barrier, following)
    return barriers


def _conflict(block: Block) -> _Conflict | None:
    """The first operation that needs a barrier before it."""
    begun = frozenset(
        Access(Place(_buffer(op.buffer).space), True, start=True)
        for op in block.walk()
        if isinstance(op, shared.Write) and op.everywhere is not None
    )
    try:
        _flow(block, begun)
    except _Conflict as conflict:
        return conflict
    return None


def _flow(block: Block, state: State) -> State:
    """The accesses in flight after the block; raises _Conflict at the first operation that needs a
    barrier before it.
    """
    for op in block.ops:
        match op:
            case scf.ForOp():
                state = _loop(op, state)
            case scf.WhileOp():
                state = _while(op, state)
            case scf.IfOp():
                state = _flow(op.true_region.block, state) | (
                    _flow(op.false_region.block, state) if op.false_region.blocks else state
                )
            case threads.BlockBarrier():
                state = frozenset(
                    a for a in state if a.age is not None and not a.waited or _is_far(a.place)
                )
            case threads.ClusterWait():
                state = frozenset(
                    a
                    for a in state
                    if a.age is not None
                    and not a.waited
                    or not a.start
                    and not isinstance(op.prev_op, threads.ClusterArrive)
                )
            case threads.CpCommit():
                state = frozenset(
                    replace(a, age=min(a.age + 1, OLDEST)) if a.age is not None else a
                    for a in state
                )
            case threads.CpWait():
                state = frozenset(
                    (
                        replace(a, waited=True)
                        if a.age is not None and a.age >= op.pending.value.data
                        else a
                    )
                    for a in state
                )
            case tile.Atomic() if _publishes(op) and any(a.stored for a in state):
                raise _Conflict(op, False, False)
            case _:
                new = list(_accesses(op))
                for access in new:
                    for earlier in state:
                        _check(op, access, earlier)
                state |= frozenset(new)
    return state


def _publishes(op: tile.Atomic) -> bool:
    """Whether an update says that what the block stored before is there: one thread says so for all
    of them.
    """
    return op.semantics is None or op.semantics.data in ("release", "acq_rel")


def _check(op: Operation, new: Access, old: Access) -> None:
    if not (new.writes or old.writes) or not _overlap(new.place, old.place):
        return
    if old.age is not None and not old.waited:
        raise VerifyError(
            f"{location_of(op) or ''}: '{op.name}' touches bytes that a copy in flight still writes"
        )
    if new.own is not None and new.own == old.own:
        return
    raise _Conflict(op, _is_far(new.place), old.start)


def _is_far(place: Place) -> bool:
    """Whether other blocks of the cluster write there: nothing but the cluster's barrier orders
    that.
    """
    return isinstance(place.space, shared.Alloc) and any(
        isinstance(use.operation, shared.Write) and use.operation.everywhere is not None
        for use in place.space.result.uses
    )


def _overlap(a: Place, b: Place) -> bool:
    if a.is_global or b.is_global:
        return (
            a.is_global
            and b.is_global
            and (a.space is b.space or a.space is None or b.space is None)
        )
    if a.space is not b.space:
        return _bytes_meet(a.space, b.space)
    if a.stage is None or b.stage is None or a.stage[0] is not b.stage[0]:
        return True
    return (a.stage[1] - b.stage[1]) % a.space.result.type.stages == 0


def _bytes_meet(a: shared.Alloc, b: shared.Alloc) -> bool:
    """Whether two buffers share bytes (they may, where they are never live together)."""
    if a.offset is None or b.offset is None:
        return True
    x, y = a.offset.value.data, b.offset.value.data
    return x < y + b.result.type.bytes and y < x + a.result.type.bytes


def _loop(loop: scf.ForOp, state: State) -> State:
    """To the fixed point: accesses on entry and those that come round the back edge."""
    into, programs = frozenset(_enter(a, loop) for a in state), is_of_programs(loop)
    while True:
        out = _flow(loop.body.block, into)
        around = frozenset(
            _again(a, loop)
            for a in out
            if not (programs and a.place.is_global and isinstance(a.place.space, BlockArgument))
        )
        if around <= into:
            break
        into |= around
    return state | frozenset(_leave(a, loop) for a in out)


def _carried(loop: scf.ForOp | scf.WhileOp) -> list[tuple[BlockArgument, SSAValue, SSAValue]]:
    """What a loop carries: its name in the body, what it is at first, and what the next iteration's
    is.
    """
    body, counted = body_of(loop), isinstance(loop, scf.ForOp)
    if not counted and list(loop.before_region.block.last_op.operands[1:]) != list(
        loop.before_region.block.args
    ):
        return []  # its test passes on something else
    return list(
        zip(
            body.args[1:] if counted else body.args,
            loop.iter_args if counted else loop.arguments,
            body.last_op.operands,
            strict=False,
        )
    )


def _enter(access: Access, loop: scf.ForOp | scf.WhileOp) -> Access:
    """An access from before a loop, its constant stage re-expressed by the carried value that the
    loop's stages start from.
    """
    stage = access.place.stage
    if access.place.is_global or stage is None:
        return access
    for argument, value, _ in _carried(loop):
        base, step = _stage_of(value)
        if base is stage[0] and _is_base(argument, access.place.space):
            return replace(access, place=replace(access.place, stage=(argument, stage[1] - step)))
    return (
        access if stage[0] is not None else replace(access, place=replace(access.place, stage=None))
    )


def _is_base(argument: BlockArgument, alloc: Operation) -> bool:
    """Whether the stages of a ring are counted from this carried value in the loop."""
    return any(
        isinstance(use.operation, shared.Stage) and _stage_of(use.operation.index[0])[0] is argument
        for use in alloc.result.uses
    )


def _again(access: Access, loop: scf.ForOp | scf.WhileOp) -> Access:
    """An access as the next iteration sees it."""
    left, stage = _leave(access, loop), access.place.stage
    following = (
        None
        if stage is None
        else next((value for argument, _, value in _carried(loop) if argument is stage[0]), None)
    )
    if following is None:
        return left
    base, step = _stage_of(following)
    if base is not stage[0]:
        return left
    return replace(
        left,
        place=replace(
            access.place, stage=(base, (stage[1] - step) % access.place.space.result.type.stages)
        ),
    )


def _leave(access: Access, loop: scf.ForOp | scf.WhileOp) -> Access:
    """An access as what follows the loop sees it."""
    own = (
        access.own
        if access.own is None
        or not any(isinstance(v, SSAValue) and is_inside(v, loop) for v in access.own)
        else None
    )
    stage = access.place.stage
    if stage is not None and stage[0] is not None and is_inside(stage[0], loop):
        stage = None
    return replace(access, own=own, place=replace(access.place, stage=stage))


def _while(loop: scf.WhileOp, state: State) -> State:
    into, programs = frozenset(_enter(a, loop) for a in state), is_of_programs(loop)
    while True:
        out = _flow(loop.before_region.block, into)
        around = frozenset(
            _again(a, loop)
            for a in _flow(loop.after_region.block, out)
            if not (programs and a.place.is_global and isinstance(a.place.space, BlockArgument))
        )
        if around <= into:
            return state | frozenset(_leave(a, loop) for a in out)
        into |= around


def _stage_of(value: SSAValue) -> tuple[SSAValue | None, int]:
    """A stage index as base and step."""
    owner = value.owner
    if isinstance(owner, tile.Constant) and value.type == i32:
        return None, int(owner.number)
    if isinstance(owner, threads.RingNext) and value is owner.next_stage:
        base, step = _stage_of(owner.stage), 1
        if owner.steps is not None:
            if not isinstance(owner.steps.owner, tile.Constant):
                return value, 0
            step = int(owner.steps.owner.number)
        return base[0], (base[1] + step) % owner.stages.value.data
    return value, 0


def _accesses(op: Operation) -> Iterator[Access]:
    match op:
        case shared.Read():
            place = _buffer(op.buffer)
            yield Access(place, False, own=_filled(place.space))
        case shared.Write() if "number" in op.attributes:
            return  # a stage of a ring: mbarriers say when it is free
        case shared.Write():
            yield Access(_buffer(op.buffer), True)
        case threads.BroadcastStore():
            yield Access(_buffer(op.box), True)
        case threads.BroadcastLoad():
            yield Access(_buffer(op.box), False)
        case threads.CpAsync():
            place = _buffer(op.buffer)
            yield Access(place, True, age=-1, own=_filled(place.space))
            yield Access(Place(_root(op.array), True), False)
        case tile.Load():
            yield Access(Place(_root(op.array), True), False, own=_own(op, op.result.type))
        case tile.Store():
            yield Access(
                Place(_root(op.array), True), True, own=_own(op, op.value.type), stored=True
            )
        case tile.AtomicBlock():
            yield Access(Place(_root(op.array), True), True)
        case tile.LoadPointers():
            yield Access(Place(_root(op.pointers), True), False, own=_own_pointers(op.pointers))
        case tile.StorePointers():
            yield Access(
                Place(_root(op.pointers), True), True, own=_own_pointers(op.pointers), stored=True
            )
        case tile.Atomic():
            yield Access(Place(_root(op.pointers), True), True, own=(op.pointers, op.kind.data))


def _filled(alloc: shared.Alloc) -> tuple | None:
    """Of a buffer that each thread fills and reads for itself."""
    return None if (layout := own_layout(alloc)) is None else (alloc, layout)


def _own(op: tile.Load | tile.Store, t) -> tuple | None:
    return (op.array, *op.offsets, getattr(t, "layout", None)) if _private(t) else None


def _own_pointers(pointers: SSAValue) -> tuple | None:
    """Pointers that repeat lead one thread to what another one stored: they must be seen to differ."""
    t = pointers.type
    if not isinstance(t, TileType):
        return None
    along = [axis for axis, extent in enumerate(t.extents) if extent > 1]
    return (
        (pointers,)
        if _private(t)
        and (
            not along
            or len(along) == 1
            and contiguity(pointers, along[0], Ranges()).run == t.extents[along[0]]
        )
        else None
    )


def _private(t) -> bool:
    """Whether each element is one thread's alone. Of an element that several hold, and of a scalar,
    one stores and all load.
    """
    return isinstance(t, TileType) and (layout := t.register_layout) is not None and private(layout)


def _buffer(value: SSAValue) -> Place:
    stage = (None, 0)
    while not isinstance(op := value.owner, shared.Alloc):
        match op:
            case shared.Stage():
                stage, value = _stage_of(op.index[0]), op.ring
            case _:
                value = op.operands[0]
    return Place(op, stage=stage)


def _root(value: SSAValue) -> SSAValue | None:
    """The argument that an array, a pointer or a tile of pointers comes from; None if that cannot
    be told.
    """
    while True:
        owner = value.owner
        if isinstance(owner, Block):
            return value if isinstance(owner.parent_op(), tile.Kernel) else None
        match owner:
            case threads.Workspace():
                return value
            case tile.View():
                value = owner.array
            case tile.MakeArray() if isinstance(owner.pointer.owner, threads.Workspace):
                return owner.pointer
            case PointerAdd():
                value = owner.pointer
            case (
                tile.Pointer()
                | tile.Splat()
                | tile.Broadcast()
                | tile.Reshape()
                | tile.Transpose()
                | shared.Convert()
            ):
                value = owner.arg
            case _:
                return None
