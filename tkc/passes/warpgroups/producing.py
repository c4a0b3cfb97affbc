"""The parts of a program that copy: the producer's copies, and the relayout role, which writes
operands again in another layout. A step of roles.py.

    %t = tile.copy_async %a[…] %ring[%s]  …      mbarrier_wait %empty[%s] %p ^ 1
    tile.wait_copies [%t]                  ->    mbarrier_expect %full[%s] {bytes}
    %d = tile.dot …                              tma_load %map[…] %ring[%s], %full[%s]

Everything that only consumers need is removed: a dot is replaced by the accumulator it would add
to, and what then has no use is swept away.
"""

from __future__ import annotations

from collections.abc import Set

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.errors import VerifyError
from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES, Cast
from tkc.ir.rewrite import Builder, after, before, erase, replace
from tkc.ir.types import SharedType, TileType, bits
from tkc.ir.values import index_of, operations_in, shared_type, terminator_of, yielded_by
from tkc.passes.analysis.program_axes import sources
from tkc.passes.analysis.values import WRITES
from tkc.passes.planning.order import observing_operations
from tkc.passes.programs.clusters import Multicast
from tkc.passes.warpgroups import broadcasts
from tkc.passes.warpgroups.maps import Maps
from tkc.passes.warpgroups.rings import (
    RingBarriers,
    arrived,
    await_free,
    bytes_of,
    group_of,
    is_by_threads,
    origins,
    relayouts,
    ring_of,
    shared_along,
    stage_of,
    state_of,
)

# what a producer does, or a converter
PRODUCER_OPERATIONS = (
    threads.BroadcastStore,
    threads.MbarrierArrive,
    threads.MbarrierWait,
    threads.MbarrierExpect,
    threads.TmaLoad,
    threads.CpAsync,
    threads.Fence,
)


def produce(
    block: Block,
    rings: dict[SSAValue, RingBarriers],
    maps: Maps | None = None,
    multicast: Multicast | None = None,
    claims: Set[Operation] = frozenset(),
    consumers_observe: bool = False,
) -> None:
    """The producer's part of a program; without maps that of the role that copies what tensor maps
    do not: all its threads wait for room and copy, and what they copied says itself that it is
    there. claims: what it does for all roles; consumers_observe: the kernel has operations by which
    the consumers alone observe other programs.
    """
    programs, drained = terminator_of(block), set()
    for wait in operations_in(block, shared.WaitCopies):
        copies = group_of(wait)
        if is_by_threads(copies[0]) != (maps is None):
            continue
        ring, head = rings[ring_of(copies[0])], copies[0]
        stage, parity = state_of(head)
        free = await_free(head, ring.empty, stage, parity)
        if maps is None:
            for copy in copies:
                before(copy, _by_threads(copy))
            before(wait, threads.MbarrierArrive(ring.full, stage, each="copies"))
            continue
        broadcasts.move_behind(free, stage)
        before(head, threads.MbarrierExpect(ring.full, stage, bytes_of(copies)))
        for copy in copies:
            _load(copy, ring, stage, maps, multicast)
        if ring.peers is not None and ring not in drained:
            drained.add(ring)
            _drain(programs, ring, (stage, parity))
    for write in [op for op in block.walk() if relayouts(op)]:
        erase(write)
    if consumers_observe:
        _drop_observations(block)
    _strip(block, claims)


def _strip(block: Block, kept: Set[Operation] = frozenset()) -> None:
    """Leaves a role what it does itself."""
    for op in [
        op for op in block.walk() if not isinstance(op, PRODUCER_OPERATIONS) and op not in kept
    ]:
        match op:
            case tile.Dot():
                replace(op, [op.acc])
            case tile.Atomic() if op.result is not None:
                replace(op, [before(op, tile.Constant(0, op.result.type)).result])
            case _ if (
                not op.regions
                and not op.results
                and not isinstance(op, (scf.YieldOp, scf.ConditionOp, tile.Yield))
                and not relayouts(op)
            ):
                erase(op)
    for op in operations_in(block, (shared.WaitCopies, shared.JoinTokens, shared.CopyAsync))[::-1]:
        erase(op)
    erase_unread(block)


def _drop_observations(block: Block) -> None:
    """Erases the operations by which the consumers alone observe other programs, and branches and
    loops that follow from them: no copy needs what they give, and such a loop might not end.
    """
    role = block.parent_op()
    assert role is not None
    observing = set(observing_operations(role))

    def goes(op: Operation) -> bool:
        if not (op in observing or op.regions):
            return False
        inside = set(op.walk())
        if any(isinstance(x, PRODUCER_OPERATIONS) for x in inside):
            return False
        return not observing.isdisjoint(inside | sources([v for x in inside for v in x.operands]))

    for op in [op for op in block.walk() if goes(op)][::-1]:
        replace(op, [before(op, tile.Constant(0, r.type)).result for r in op.results])


def erase_unread(block: Block) -> bool:
    """Erases buffers, what is read of them, tiles, and loops that compute such until a condition
    holds, that nothing uses. True if some went.
    """
    changed = False
    for op in [op for op in block.walk() if _computes(op)][::-1]:
        if not any(r.first_use for r in op.results):
            erase(op)
            changed = True
    return changed


def _computes(op: Operation) -> bool:
    """Whether an operation does nothing for other roles or programs but give its results."""
    if isinstance(op, scf.WhileOp):
        inside = [inner for inner in op.walk() if inner is not op]
        acts = (*PRODUCER_OPERATIONS, *WRITES)
        return not any(isinstance(inner, acts) or tile.watches(inner) for inner in inside)
    of_memory = isinstance(op, (shared.Alloc, shared.Read, *shared.VIEWS))
    return not op.regions and (of_memory or any(isinstance(r.type, TileType) for r in op.results))


def convert(
    block: Block,
    rings: dict[SSAValue, RingBarriers],
    raw: dict[SSAValue, RingBarriers],
    consumers_observe: bool = False,
) -> None:
    """The role that relays operands, or computes them: it waits for what was copied and for room,
    reads and writes, and says both. raw: the rings that it reads; consumers_observe: as of a
    producer.
    """
    arrived(block, raw)
    last: dict[tuple[SSAValue, SSAValue], threads.MbarrierArrive] = {}
    for write in [op for op in block.walk() if relayouts(op)]:
        target, (stage, parity) = rings[ring_of(write)], state_of(write)
        await_free(write, target.empty, stage, parity)
        fence = after(write, threads.Fence("async_shared"))
        said = after(fence, threads.MbarrierArrive(target.full, stage, each="warp"))
        for read in origins(write):
            # of one block an operand may be made in two ways, or two operands, for two dots
            copied = rings[ring_of(read)].empty, stage_of(read.buffer).index[0]
            if copied in last:
                erase(last[copied])
            last[copied] = after(said, threads.MbarrierArrive(*copied, each="warp"))
    if consumers_observe:
        _drop_observations(block)
    _strip(block)


def _by_threads(copy: shared.CopyAsync) -> threads.CpAsync:
    """A copy that all threads of a role make."""
    extents = copy.extents.get_values()
    new = threads.CpAsync(copy.array, copy.offsets, copy.buffer, extents, copy.mask)
    new.properties |= {"engine": copy.properties["engine"]}
    return new


def _load(
    copy: shared.CopyAsync,
    ring: RingBarriers,
    stage: SSAValue,
    maps: Maps,
    multicast: Multicast | None,
) -> None:
    """A copy as a tensor map's boxes into a stage: one, or a block's share of what the blocks of a
    cluster copy for all of them.
    """
    t, to = shared_type(copy.buffer), None
    box = [max(n, 1) for n in copy.extents.get_values()]
    parts = [(copy.buffer, list(copy.offsets))]
    if copy.cut is not None and multicast is not None:
        to = multicast.masks[shared_along(copy)]
        box, parts = _share_of(copy, copy.cut.value.data, box, multicast)
    for view, offsets in parts:
        if t.memory.fast != t.rank - 1:
            view = before(
                copy, shared.SharedTranspose(view, [a for a in reversed(t.memory.order)])
            ).result
        map, place = maps.of(
            copy.array,
            offsets,
            box,
            t.memory.swizzle,
            copy.tf32 is not None,
            copy.fetch.value.data if copy.fetch else 0,
        )
        hint = copy.hint.data if copy.hint else None
        before(copy, threads.TmaLoad(map, place, view, ring.full, stage, to, hint))


Boxes = list[tuple[SSAValue, list[SSAValue]]]  # of a copy: parts of its buffer, and their offsets


def _share_of(
    copy: shared.CopyAsync, axis: int, box: list[int], multicast: Multicast
) -> tuple[list[int], Boxes]:
    """The share of a copy along an axis that a block of the cluster makes: extents of its boxes,
    and these. Of rows that lie in several panels it is a box in each.
    """
    t = shared_type(copy.buffer)
    fast, along, build = t.memory.fast, shared_along(copy), Builder(copy)
    piece = t.extents[axis] // multicast.parts(along)
    panel = t.memory.swizzle * 8 // bits(t.element)
    share, zero = build.mul(multicast.part(build, along), piece), build.number(0)
    sizes = [piece if a == axis else n for a, n in enumerate(t.extents)]
    if axis != fast:
        sizes[fast] = min(sizes[fast], panel)
    memory, _ = t.memory.slice([0] * t.rank, sizes)
    kind = SharedType(1, sizes, t.element, memory)
    parts: Boxes = []
    for at in range(0, t.extents[fast] if axis != fast else 1, panel):
        start = before(copy, tile.Constant(at, i32)).result if at else zero
        place = [share if a == axis else start if a == fast else zero for a in range(t.rank)]
        view = before(copy, shared.SharedSlice(copy.buffer, place, kind)).result
        offsets = [
            o if p is zero else build.add(o, p if p.type == o.type else build(Cast(p, o.type)))
            for o, p in zip(copy.offsets, place, strict=False)
        ]
        parts.append((view, offsets))
    cut = (axis, fast)
    extents = zip(box, sizes, strict=False)
    return [size if a in cut else n for a, (n, size) in enumerate(extents)], parts


def _at_the_end(value: SSAValue, loop: Operation) -> SSAValue:
    """What a loop and those in it carry on as this value, when it is over."""
    while not isinstance(value, BlockArgument) or value.block.parent_op() is not loop:
        value = _earlier(value)
    return loop.results[index_of(value) - 1]


def _earlier(value: SSAValue) -> SSAValue:
    """The stage, or the parity, of a ring from which this one follows: through branches by any way,
    as all begin with the same, and of loops the one that they begin with.
    """
    around = value.block.parent_op() if isinstance(value, BlockArgument) else value.owner
    match around:
        case scf.ForOp():
            return around.iter_args[index_of(value) - isinstance(value, BlockArgument)]
        case scf.WhileOp() if value.owner is around.before_region.block:
            return around.operands[index_of(value)]
        case scf.WhileOp():
            return yielded_by(around.before_region.block)[1 + index_of(value)]
        case scf.IfOp():
            return yielded_by(around.true_region.block)[index_of(value)]
        case threads.RingNext():
            return around.operands[index_of(value)]
    raise VerifyError("a stage that blocks of a cluster share is carried by loops and branches")


def _drain(loop: Operation, ring: RingBarriers, inside: tuple[SSAValue, SSAValue]) -> None:
    """No block ends while another may still write to it or arrive in it: the producer sees every
    stage come back behind the loop over programs. inside: stage and parity where one is filled.
    """
    stage, parity = (_at_the_end(value, loop) for value in inside)
    one = after(loop, tile.Constant(1, i32))
    last: Operation = one
    for i in range(ring.stages):
        flipped = after(last, CLASSES["xor"](parity, one.result))
        last = after(flipped, threads.MbarrierWait(ring.empty, stage, flipped.result))
        if i + 1 < ring.stages:
            last = after(last, threads.RingNext(stage, parity, ring.stages))
            stage, parity = last.results
