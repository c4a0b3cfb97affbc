"""insert-synchronization: the barriers among the threads of a role, or of a kernel that has none,
derived from what may touch the same bytes.

    tile.write %b, %x                                   tile.write %b, %x
    %y = tile.read %b                       ->          tile.block_barrier
                                                        %y = tile.read %b

A forward data-flow analysis carries the accesses to memory since the last barrier. An access that
conflicts with one of them (same bytes, at least one writes) gets a barrier before it; a barrier
clears them. A cp.async write counts until it was waited for *and* a barrier followed, since a
thread's wait says nothing of the other threads' copies; so do the reads of an asynchronous dot, for
one warpgroup waits for its own dots.

Stages of a ring are distinguished by arithmetic: a stage is a base value plus a step modulo the
number of stages (`ring_next`), and the back edge of a loop re-expresses the accesses of the
iteration before by what the base became. So a ring of n stages costs one barrier an iteration,
found rather than put there. An mbarrier at which all warps of a role arrive and for which all wait
orders what they did before they arrived and what they do when they have waited.

A buffer that every block of a cluster writes to in all of them (`everywhere`) is ordered by the
cluster's barrier alone, before the first write too: a block may be written to once it has begun.

Global memory is treated the same, except that a thread's own earlier access (the same block of an
array in one layout, no element of which is another thread's too) is no conflict, nor is one of a
ring whose threads fill and read it each for itself: such a ring costs no barrier at all. Nor is an
access of other elements: a block at other offsets, by a constant as large as the block, or of
another iteration of a loop whose step is as large. Arguments that share memory (which is part of
the specialization) are one array, and the programs that a persistent block takes in turn are as
unordered as if others ran them. The code of a release begins with a barrier of its own, since one
thread releases what all have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeAlias

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from tkc.errors import VerifyError
from tkc.ir import shared, threads, tile
from tkc.ir.axis_info import all_differ
from tkc.ir.elementwise import Elementwise, PointerAdd
from tkc.ir.plan import ring_filled
from tkc.ir.rewrite import before, body_of, is_inside
from tkc.ir.text import location_of
from tkc.ir.types import TileType
from tkc.ir.values import (
    ancestor,
    block_of,
    defining_op,
    first_of,
    next_of,
    operations_in,
    owner_op,
    shared_type,
    yielded_by,
)
from tkc.passes import PassContext
from tkc.passes.analysis.alias import Overlaps, is_folded, is_of_programs
from tkc.passes.analysis.own import own_layout, private

# of a scalar: the first thread of the block, or of a role's instance, stores and updates it
ALONE = ("the first thread",)
COMMUTING = ("add", "max", "min", "and", "or", "xor")  # kinds of updates
LOWEST_START = -(1 << 62)  # of a block of an array
MAX_GROUP_AGE = 64  # ages of cp.async groups saturate here
# Of arguments that share memory, the one that stands for all; set while a kernel is looked at
_STAND_IN: ContextVar[dict[SSAValue, SSAValue]] = ContextVar("_STAND_IN")
_OVERLAPS: ContextVar[Overlaps] = ContextVar("_OVERLAPS")
# What the operations of that kernel access: each is looked at again for every barrier that is put
_FOUND: ContextVar[dict[Operation, tuple[Access, ...]]] = ContextVar("_FOUND")
# and what its loops make of accesses, which no barrier changes
_MOVED: ContextVar[dict[tuple[Move, Access, Loop], Access]] = ContextVar("_MOVED")

Loop = scf.ForOp | scf.WhileOp
Move: TypeAlias = "Callable[[Access, Loop], Access]"
Commit = threads.CpCommit | threads.DotCommit
Wait = threads.CpWait | threads.DotWait


@dataclass(frozen=True)
class Place:
    """Bytes that an access touches: of a buffer in shared memory, or (buffer None) of an array in
    global memory.
    """

    buffer: shared.Alloc | None = None
    # The root of an array; None: any array.
    array: SSAValue | None = None
    # Base value (None: a constant) and step; no stage: all of them.
    stage: tuple[SSAValue | None, int] | None = None

    @property
    def is_global(self) -> bool:
        """Whether it is in global memory."""
        return self.buffer is None


@dataclass(frozen=True)
class Box:
    """A block of an array's elements: for each axis the base value (None: a constant) and the step
    at which it begins, and how many there are.
    """

    array: SSAValue
    axes: tuple[tuple[SSAValue | None, int, int], ...]

    @staticmethod
    def of(op: tile.Load | tile.Store | tile.AtomicBlock) -> Box | None:
        """What a block access touches; None where other elements are the same memory."""
        if is_folded(op.array, _OVERLAPS.get()):
            return None
        extents = (abs(n) for n in op.extents.get_values())
        starts = map(_start_of, op.offsets)
        return Box(op.array, tuple((*at, n) for at, n in zip(starts, extents, strict=True)))

    @property
    def values(self) -> tuple[SSAValue | None, ...]:
        """What it is described by."""
        return self.array, *(base for base, _, _ in self.axes)

    def is_apart(self, other: Box) -> bool:
        """Whether it has no element of another one, whatever the values are."""
        return self.array is other.array and any(
            base is its_base and (at + n <= its or its + count <= at)
            for (base, at, n), (its_base, its, count) in zip(self.axes, other.axes, strict=True)
        )


@dataclass(frozen=True)
class Access:
    """An access since the last barrier."""

    place: Place
    writes: bool
    # cp.async, or an asynchronous dot: groups committed since its own (-1: not yet committed)
    age: int | None = None
    waited: bool = False
    own: tuple[object, ...] | None = None  # what identifies the thread's own bytes
    box: Box | None = None  # global: which elements of an array
    start: bool = False  # of other blocks, before they have begun
    # the mbarriers, with the index of each, at which all threads of the role have arrived since
    told: frozenset[tuple[SSAValue, SSAValue]] = frozenset()

    @property
    def is_in_flight(self) -> bool:
        """Whether it is a copy, or a dot's read, that was not waited for."""
        return self.age is not None and not self.waited

    @property
    def is_dots(self) -> bool:
        """Whether it is the read of an asynchronous dot: no copy reads."""
        return self.age is not None and not self.writes


class _Conflict(Exception):
    """An operation that needs a barrier before it. far: for what another block of the cluster does;
    start: before it has begun.
    """

    def __init__(self, op: Operation, far: bool, start: bool):
        self.op, self.far, self.start = op, far, start


State = frozenset[Access]


def run(module: ModuleOp, context: PassContext) -> None:
    """Puts barriers into each kernel, in place."""
    for kernel in tile.kernels_of(module):
        roles = [op.body.block for op in operations_in(kernel, threads.Role) if op.single is None]
        blocks = roles or [kernel.body.block]
        _STAND_IN.set(_stand_ins(kernel, context.overlaps))
        _OVERLAPS.set(context.overlaps)
        _FOUND.set({})
        _MOVED.set({})
        barriers = sum(len(_with_barriers(block)) for block in blocks)
        far = 0 if roles else sum(isinstance(op, threads.ClusterWait) for op in kernel.walk())
        if barriers or far:
            of_cluster = f", {far} of the cluster" if far else ""
            context.decisions.append(f"insert-synchronization: {barriers} barriers{of_cluster}")


def _stand_ins(kernel: tile.Kernel, overlaps: Overlaps) -> dict[SSAValue, SSAValue]:
    """Of each argument that shares memory with others the one that stands for them."""
    arguments = list(kernel.arguments)
    groups: list[set[int]] = []
    for pair in overlaps:
        met = [g for g in groups if not g.isdisjoint(pair)]
        groups = [g for g in groups if g not in met] + [set(pair).union(*met)]
    return {arguments[i]: arguments[min(group)] for group in groups for i in group}


def _with_barriers(block: Block) -> list[Operation]:
    """Puts in the barriers that the threads of a block of code need among themselves: a kernel's,
    or those of an instance of a role. Returns those of the thread block.
    """
    barriers: list[Operation] = []
    first, begun = block.first_op, _begun(block)
    at, states = first, States({first: begun})
    while (conflict := _conflict(at, states)) is not None:
        if conflict.far:
            _put_cluster_barrier(block, conflict)
            first = block.first_op
            at, states = first, States({first: begun})
            continue
        barriers.append(put := before(conflict.op, threads.BlockBarrier()))
        # what comes before stays as it is
        at = _holder(put, block)
        states[at] = states[_holder(conflict.op, block)]
    # one found later, earlier in a loop, may have made another one needless
    for barrier in list(barriers):
        following, around = next_of(barrier), _holder(barrier, block)
        at = following if around is barrier else around
        without = States({at: states[around]}, states)
        barrier.detach()
        if _conflict(at, without) is None:
            barriers.remove(barrier)
            states |= without
        else:
            block_of(following).insert_op_before(barrier, following)
    return barriers


def _holder(op: Operation, block: Block) -> Operation:
    """The operation of a block that another is, or is in."""
    found = ancestor(op, block)
    assert found is not None
    return found


def _put_cluster_barrier(block: Block, conflict: _Conflict) -> None:
    """A barrier of the cluster. For whether all blocks have begun, the arrival is first in the
    block and the wait as late as can be.
    """
    at = conflict.op
    if conflict.start:
        around = ancestor(at, block)
        assert around is not None
        at = around
        before(first_of(block), threads.ClusterArrive())
    else:
        before(at, threads.ClusterArrive())
    before(at, threads.ClusterWait())


def _begun(block: Block) -> State:
    """What is in flight where a block of code begins."""
    return frozenset(
        Access(Place(_buffer(op.buffer).buffer), True, start=True)
        for op in operations_in(block, shared.Write)
        if op.everywhere is not None
    )


class States(dict[Operation | None, State]):
    """The accesses in flight before operations of one block. known: those of an earlier look at
    the block: where they are the same, so is all that follows.
    """

    def __init__(self, given: dict[Operation | None, State], known: States | None = None):
        super().__init__(given)
        self.known = {} if known is None else known


def _conflict(op: Operation | None, states: States) -> _Conflict | None:
    """The first operation from one on of which the state is known, in its block, that needs a
    barrier before it.
    """
    first, state = op, states[op]
    while op is not None:
        if type(op) in LOOKED_AT:
            if op is not first and states.known.get(op) == state:
                break
            states[op] = state
            try:
                state = _after(op, state)
            except _Conflict as conflict:
                return conflict
        op = op.next_op
    return None


def _flow(block: Block, state: State) -> State:
    """The accesses in flight after the block; raises _Conflict at the first operation that needs a
    barrier before it.
    """
    for op in block.ops:
        if type(op) in LOOKED_AT:
            state = _after(op, state)
    return state


def _after(op: Operation, state: State) -> State:
    """The accesses in flight after an operation; raises _Conflict as `_flow` does."""
    match op:
        case scf.ForOp():
            return _loop(op, state)
        case scf.WhileOp():
            return _while(op, state)
        case scf.IfOp():
            yes = _flow(op.true_region.block, state)
            no = _flow(op.false_region.block, state) if op.false_region.blocks else state
            return yes | no
        case (
            threads.BlockBarrier()
            | threads.ClusterWait()
            | threads.CpCommit()
            | threads.CpWait()
            | threads.DotCommit()
            | threads.DotWait()
        ):
            return _synchronized(op, state)
        case threads.MbarrierArrive() | threads.MbarrierWait() if _is_of_role(op):
            return _told(op, state)
    if isinstance(op, tile.Atomic | tile.StorePointers) and _publishes(op):
        state = _met(state)
    found = _FOUND.get()
    if op not in found:
        found[op] = tuple(_accesses(op))
    for access in found[op]:
        for earlier in state:
            _check(op, access, earlier)
    return state.union(found[op])


def _is_of_role(op: threads.MbarrierArrive | threads.MbarrierWait) -> bool:
    """Whether all warps of one role arrive at an mbarrier, and all of them then wait for it."""
    users = [use.operation for use in op.barriers.uses]
    arrivals = [user for user in users if isinstance(user, threads.MbarrierArrive)]
    waits = [user for user in users if isinstance(user, threads.MbarrierWait)]
    return (
        len(users) == 1 + len(arrivals) + len(waits)  # it is made, too
        and all(map(_is_of_all_warps, arrivals))
        and {(arrival.parent, arrival.index[0]) for arrival in arrivals}
        == {(wait.parent, wait.index[0]) for wait in waits if wait.unless is None}
        and len(arrivals) == len(waits)
    )


def _is_of_all_warps(arrival: threads.MbarrierArrive) -> bool:
    """Whether each warp arrives when it comes there: copies may arrive before and after."""
    return arrival.each is not None and arrival.each.data == "warp" and arrival.when is None


def _told(op: threads.MbarrierArrive | threads.MbarrierWait, state: State) -> State:
    """The accesses in flight after an arrival at an mbarrier of the role, or after the wait for
    it: what each thread did before it arrived is over for all that have waited.
    """
    key = op.barriers, op.index[0]
    if isinstance(op, threads.MbarrierWait):
        return frozenset(a for a in state if key not in a.told or _is_far(a.place))
    return frozenset(a if a.is_in_flight else replace(a, told=a.told | {key}) for a in state)


def _met(state: State) -> State:
    """The accesses in flight where all threads of the block, or of a role's instance, have met."""
    return frozenset(a for a in state if a.is_in_flight or _is_far(a.place))


def _synchronized(
    op: threads.BlockBarrier | threads.ClusterWait | Commit | Wait, state: State
) -> State:
    """The accesses in flight after a barrier, or a commit or wait of copies or dots."""
    match op:
        case threads.BlockBarrier():
            return frozenset(a for a in state if a.is_in_flight or not _is_ordered(op, a.place))
        case threads.ClusterWait():
            arrived_here = isinstance(op.prev_op, threads.ClusterArrive)
            return frozenset(a for a in state if a.is_in_flight or not a.start and not arrived_here)
    dots = isinstance(op, threads.DotCommit | threads.DotWait)
    in_flight = frozenset(a for a in state if a.age is not None and a.is_dots == dots)
    return (state - in_flight) | frozenset(
        _aged(op, a, a.age) for a in in_flight if a.age is not None
    )


def _aged(op: Commit | Wait, access: Access, age: int) -> Access:
    """A copy, or a dot's read, after a commit, or a wait."""
    if isinstance(op, threads.CpCommit | threads.DotCommit):
        return replace(access, age=min(age + 1, MAX_GROUP_AGE))
    return replace(access, waited=True) if age >= op.pending.value.data else access


def _publishes(op: tile.Atomic | tile.StorePointers) -> bool:
    """Whether an update or a store says that what the block stored before is there: one thread says
    so for all of them, when they have met.
    """
    if op.semantics is None:
        return isinstance(op, tile.Atomic)
    return op.semantics.data in ("release", "acq_rel")


def _check(op: Operation, new: Access, old: Access) -> None:
    """Raises _Conflict where two accesses need a barrier between them."""
    if not (new.writes or old.writes) or not _overlap(new.place, old.place):
        return
    if old.is_in_flight:
        raise VerifyError(
            f"{location_of(op) or ''}: '{op.name}' touches bytes that"
            f" {'a dot in flight still reads' if old.is_dots else 'a copy in flight still writes'}"
        )
    if new.own is not None and new.own == old.own:
        return
    if new.box is not None and old.box is not None and new.box.is_apart(old.box):
        return
    raise _Conflict(op, _is_far(new.place), old.start)


def _is_ordered(barrier: threads.BlockBarrier, place: Place) -> bool:
    """Whether a barrier orders what was done there. One of each warpgroup orders nothing between
    them.
    """
    return not _is_far(place) and (barrier.each is None or _is_of_warpgroups(place))


def _is_of_warpgroups(place: Place) -> bool:
    """Whether each warpgroup accesses a part of its own there, and no other: results that it writes
    and stores.
    """
    return place.buffer is not None and all(
        isinstance(use.operation, shared.Write)
        or isinstance(use.operation, threads.TmaStore)
        and use.operation.each is not None
        for use in place.buffer.result.uses
    )


def _is_far(place: Place) -> bool:
    """Whether other blocks of the cluster write there: nothing but the cluster's barrier orders
    that.
    """
    return place.buffer is not None and any(
        isinstance(use.operation, shared.Write) and use.operation.everywhere is not None
        for use in place.buffer.result.uses
    )


def _overlap(a: Place, b: Place) -> bool:
    if a.buffer is None or b.buffer is None:
        return a.is_global and b.is_global and (a.array is b.array or None in (a.array, b.array))
    if a.buffer is not b.buffer:
        return _share_bytes(a.buffer, b.buffer)
    if a.stage is None or b.stage is None or a.stage[0] is not b.stage[0]:
        return True
    return (a.stage[1] - b.stage[1]) % _stages(a.buffer) == 0


def _stages(buffer: shared.Alloc) -> int:
    return shared_type(buffer.result).stages


def _share_bytes(a: shared.Alloc, b: shared.Alloc) -> bool:
    """Whether two buffers share bytes (they may, where they are never live together)."""
    if a.offset is None or b.offset is None:
        return True
    x, y = a.offset.value.data, b.offset.value.data
    return x < y + shared_type(b.result).bytes and y < x + shared_type(a.result).bytes


def _loop(loop: scf.ForOp, state: State) -> State:
    """To the fixed point: accesses on entry and those of the back edge."""
    into, programs = frozenset(_enter(a, loop) for a in state), is_of_programs(loop)
    while True:
        out = _flow(loop.body.block, into)
        around = _around(out, loop, programs)
        if around <= into:
            return state | frozenset(_leave(a, loop) for a in out)
        into |= around


def _around(out: State, loop: Loop, programs: bool) -> State:
    """The accesses of an iteration as the next one sees them: where iterations are programs, not
    those of the user's arrays.
    """
    return frozenset(
        _again(a, loop)
        for a in out
        if not (programs and a.place.is_global and isinstance(a.place.array, BlockArgument))
    )


def _carried(loop: Loop) -> list[tuple[BlockArgument, SSAValue, SSAValue]]:
    """What a loop carries: its name in the body, what it is at first, and what the next iteration's
    is.
    """
    body = body_of(loop)
    if isinstance(loop, scf.ForOp):
        return list(zip(body.args[1:], loop.iter_args, yielded_by(body), strict=True))
    test = loop.before_region.block
    if list(yielded_by(test)[1:]) != list(test.args):
        return []  # its test passes on something else
    return list(zip(body.args, loop.arguments, yielded_by(body), strict=True))


def _once(move: Move) -> Move:
    """A function of an access and a loop, whose answers are kept while barriers are put in."""

    @wraps(move)
    def moved(access: Access, loop: Loop) -> Access:
        known, key = _MOVED.get(), (move, access, loop)
        if (found := known.get(key)) is None:
            found = known[key] = move(access, loop)
        return found

    return moved


@_once
def _enter(access: Access, loop: Loop) -> Access:
    """An access from before a loop, its constant stage re-expressed by the carried value that the
    loop's stages start from.
    """
    buffer, stage = access.place.buffer, access.place.stage
    if buffer is None or stage is None:
        return access
    for argument, value, _ in _carried(loop):
        base, step = _stage_of(value)
        if base is stage[0] and _is_base(argument, buffer):
            return replace(access, place=replace(access.place, stage=(argument, stage[1] - step)))
    if stage[0] is None:
        return replace(access, place=replace(access.place, stage=None))
    return access


def _is_base(argument: BlockArgument, alloc: shared.Alloc) -> bool:
    """Whether the stages of a ring are counted from this carried value in the loop."""
    return any(
        isinstance(use.operation, shared.Stage) and _stage_of(use.operation.index[0])[0] is argument
        for use in alloc.result.uses
    )


@_once
def _again(access: Access, loop: Loop) -> Access:
    """An access as the next iteration sees it."""
    left, buffer, stage = _leave(access, loop), access.place.buffer, access.place.stage
    # the next iteration's arrivals are others
    left = replace(left, told=frozenset(), box=left.box or _box_before(access.box, loop))
    if buffer is None or stage is None:
        return left
    for argument, _, following in _carried(loop):
        base, step = _stage_of(following)
        if base is stage[0] and base is not None:
            place = replace(access.place, stage=(argument, (stage[1] - step) % _stages(buffer)))
            return replace(left, place=place)
    if stage[0] is not None and is_inside(stage[0], loop):
        return replace(left, place=replace(access.place, stage=None))
    return left


def _box_before(box: Box | None, loop: Loop) -> Box | None:
    """A block of an array as the next iteration sees it: with those of all iterations before, which
    begin a step each below one another where they count from the loop's induction variable.
    """
    if box is None or not isinstance(loop, scf.ForOp):
        return None
    counter, step = loop.body.block.args[0], defining_op(loop.step, tile.Constant)
    others = [v for v in box.values if v is not None and v is not counter]
    if step is None or any(is_inside(v, loop) for v in others):
        return None

    def before_now(base: SSAValue | None, at: int, n: int) -> tuple[SSAValue | None, int, int]:
        if base is not counter or at == LOWEST_START:
            return base, at, n
        return base, LOWEST_START, at + n - int(step.number) - LOWEST_START

    return replace(box, axes=tuple(before_now(*axis) for axis in box.axes))


@_once
def _leave(access: Access, loop: Loop) -> Access:
    """An access as what follows the loop sees it."""
    own, box, stage = access.own, access.box, access.place.stage
    if own is not None and any(isinstance(v, SSAValue) and is_inside(v, loop) for v in own):
        own = None
    if box is not None and any(v is not None and is_inside(v, loop) for v in box.values):
        box = None
    if stage is not None and stage[0] is not None and is_inside(stage[0], loop):
        stage = _stage_behind(loop, stage)
    return replace(access, own=own, box=box, place=replace(access.place, stage=stage))


def _stage_behind(
    loop: Loop, stage: tuple[SSAValue | None, int]
) -> tuple[SSAValue | None, int] | None:
    """A stage of a loop's last iteration, counted from what the loop hands on; None where it is
    not known.
    """
    for result, (_, _, following) in zip(loop.results, _carried(loop), strict=False):
        base, step = _stage_of(following)
        if base is stage[0]:
            return result, stage[1] - step
    return None


def _while(loop: scf.WhileOp, state: State) -> State:
    into, programs = frozenset(_enter(a, loop) for a in state), is_of_programs(loop)
    while True:
        out = _flow(loop.before_region.block, into)
        around = _around(_flow(loop.after_region.block, out), loop, programs)
        if around <= into:
            return state | frozenset(_leave(a, loop) for a in out)
        into |= around


def _stage_of(value: SSAValue) -> tuple[SSAValue | None, int]:
    """A stage index as base and step."""
    owner = value.owner
    if isinstance(owner, tile.Constant) and value.type == i32:
        return None, int(owner.number)
    if not isinstance(owner, threads.RingNext) or value is not owner.next_stage:
        return value, 0
    by = 1
    if owner.steps is not None:
        constant = defining_op(owner.steps, tile.Constant)
        if constant is None:
            return value, 0
        by = int(constant.number)
    base, step = _stage_of(owner.stage)
    return base, (step + by) % owner.stages.value.data


def _start_of(value: SSAValue) -> tuple[SSAValue | None, int]:
    """An offset as base (None: none) and step: an offset does not overflow, but numbers of fewer
    bits wrap, and those of a tile have no one start.
    """
    by = 0
    if value.type not in (i32, i64):
        return value, 0
    while isinstance(op := value.owner, Elementwise) and op.fn.name == "add":
        a, b = op.args
        constant = defining_op(b, tile.Constant)
        if constant is None:
            constant, a = defining_op(a, tile.Constant), b
        if constant is None:
            break
        value, by = a, by + int(constant.number)
    if isinstance(op := value.owner, tile.Constant):
        return None, by + int(op.number)
    return value, by


def _accesses(op: Operation) -> Iterator[Access]:
    """What an operation touches, in shared memory and in global memory."""
    match op:
        case shared.Read():
            place = _buffer(op.buffer)
            yield Access(place, False, own=_filled(place))
        case shared.Write() if ring_filled(op) is not None:
            return  # a stage of a ring: mbarriers say when it is free
        case shared.Write():
            yield Access(_buffer(op.buffer), True)
        case threads.DotAsync():
            for place in _operands_in_buffers(op):
                yield Access(place, False, age=-1)
        case threads.BroadcastStore() | threads.BroadcastLoad():
            yield Access(_buffer(op.box), isinstance(op, threads.BroadcastStore))
        case threads.CpAsync() if op.engine is not None:
            yield Access(_array(op.array), False)  # a stage of a ring, likewise
        case threads.CpAsync():
            place = _buffer(op.buffer)
            yield Access(place, True, age=-1, own=_filled(place))
            yield Access(_array(op.array), False)
        case tile.Load():
            yield Access(_array(op.array), False, own=_own(op, op.result.type), box=Box.of(op))
        case tile.Store():
            yield Access(_array(op.array), True, own=_own(op, op.value.type), box=Box.of(op))
        case tile.AtomicBlock():
            yield Access(_array(op.array), True, own=_own_update(op), box=Box.of(op))
        case tile.LoadPointers():
            yield Access(_array(op.pointers), False, own=_own_pointers(op.pointers))
        case tile.StorePointers():
            yield Access(_array(op.pointers), True, own=_own_stored(op.pointers))
        case tile.Atomic():
            yield Access(_array(op.pointers), True, own=_own_update(op))


# operations that change which accesses are in flight: all others are passed over
LOOKED_AT: set[type[Operation]] = {
    scf.ForOp,
    scf.WhileOp,
    scf.IfOp,
    threads.BlockBarrier,
    threads.ClusterWait,
    threads.CpCommit,
    threads.CpWait,
    threads.DotCommit,
    threads.DotWait,
    threads.MbarrierArrive,
    threads.MbarrierWait,
    shared.Read,
    shared.Write,
    threads.DotAsync,
    threads.BroadcastStore,
    threads.BroadcastLoad,
    threads.CpAsync,
    tile.Load,
    tile.Store,
    tile.AtomicBlock,
    tile.LoadPointers,
    tile.StorePointers,
    tile.Atomic,
}


def _operands_in_buffers(dot: threads.DotAsync) -> list[Place]:
    """What a dot reads in shared memory where threads wrote it: stages of rings have mbarriers."""
    places = [_buffer(v) for v in (dot.a, dot.b) if not isinstance(v.type, TileType)]
    return [place for place in places if _is_written(place.buffer)]


def _is_written(buffer: shared.Alloc | None) -> bool:
    return buffer is not None and any(
        isinstance(use.operation, shared.Write) for use in buffer.result.uses
    )


def _filled(place: Place) -> tuple[object, ...] | None:
    """What identifies the bytes of a buffer that each thread fills and reads for itself."""
    layout = None if place.buffer is None else own_layout(place.buffer)
    return None if layout is None else (place.buffer, layout)


def _own(op: tile.Load | tile.Store, t: Attribute) -> tuple[object, ...] | None:
    """As `_own_pointers`: elements that are one in memory are what several threads load and one of
    them stores.
    """
    if isinstance(op, tile.Store) and not isinstance(t, TileType):
        return ALONE
    if not isinstance(t, TileType) or not _is_private(t):
        return None
    if is_folded(op.array, _OVERLAPS.get()) or not all(map(all_differ, op.offsets)):
        return None
    return (op.array, *op.offsets, op.extents, t.layout)


def _own_update(op: tile.Atomic | tile.AtomicBlock) -> tuple[object, ...] | None:
    """Updates of one kind that commutes, whose old values nobody asks for, may be made in any
    order, whichever threads make them.
    """
    t = op.value.type
    if not isinstance(t, TileType):
        return ALONE
    old = op.result if isinstance(op, tile.Atomic) else None
    if op.kind.data in COMMUTING and (old is None or old.first_use is None):
        return (op.kind.data, t.element)
    return _own_pointers(op.pointers) if isinstance(op, tile.Atomic) else None


def _own_stored(pointers: SSAValue) -> tuple[object, ...] | None:
    return _own_pointers(pointers) if isinstance(pointers.type, TileType) else ALONE


def _own_pointers(pointers: SSAValue) -> tuple[object, ...] | None:
    """Pointers that repeat lead one thread to what another one stored: they must be known to
    differ.
    """
    t = pointers.type
    if not isinstance(t, TileType) or not _is_private(t):
        return None
    return (pointers,) if all_differ(pointers) else None


def _is_private(t: TileType) -> bool:
    """Whether each element is one thread's alone. Of an element that several hold, and of a scalar,
    one stores and all load.
    """
    layout = t.register_layout
    return layout is not None and private(layout)


def _buffer(value: SSAValue) -> Place:
    """The bytes of a buffer, or of a stage of a ring, or of a view of either."""
    stage: tuple[SSAValue | None, int] = (None, 0)
    while not isinstance(op := owner_op(value), shared.Alloc):
        if isinstance(op, shared.Stage):
            stage, value = _stage_of(op.index[0]), op.ring
        else:
            value = op.operands[0]
    return Place(op, stage=stage)


def _array(value: SSAValue) -> Place:
    root = _root(value)
    return Place(array=None if root is None else _STAND_IN.get().get(root, root))


def _root(value: SSAValue) -> SSAValue | None:
    """The argument that an array, a pointer or a tile of pointers comes from; None if that is not
    known.
    """
    while True:
        first = _first_made_of(value)
        if not isinstance(first, BlockArgument):
            return first if isinstance(first.owner, threads.Workspace) else None
        around, number = first.owner.parent_op(), first.index
        if isinstance(around, tile.Kernel):
            return first
        if not isinstance(around, scf.ForOp):
            return None
        if _first_made_of(yielded_by(first.owner)[number - 1]) is not first:
            return None  # a loop that goes from one array to another
        value = around.iter_args[number - 1]


def _first_made_of(value: SSAValue) -> SSAValue:
    """The first of what an array, a pointer or a tile of pointers is made of, one after the
    other.
    """
    while True:
        match value.owner:
            case tile.View() as owner:
                value = owner.array
            case (tile.MakeArray() | PointerAdd()) as owner:
                value = owner.pointer
            case (
                tile.Pointer()
                | tile.Splat()
                | tile.Broadcast()
                | tile.Reshape()
                | tile.Transpose()
                | tile.Multiple()
                | shared.Convert()
            ) as owner:
                value = owner.arg
            case _:
                return value
