"""Epilogue stores: results that consumers have written to shared memory are stored by tensor maps.
A step of roles.py.

    tile.write %subtile, %y                     bulk_wait read;  barrier;  tile.write %subtile, %y
    tile.copy_out %c[%m, %n] %subtile     ->    fence async_shared;  barrier
                                                tma_store %map[%m, %n] %subtile;  bulk_commit

One thread issues the copies. A buffer is free when its previous copy has been read (`bulk_wait`),
and is copied after a fence of the asynchronous proxy and a barrier of the threads that wrote it.
Two copies of a program to the same place are not ordered: where they may meet, the later one waits
until the first has written (`bulk_wait` without `read`); so does what says that it is written. A
result may be stored through a stage of a ring which the program has read for the last time
(`Plan.reuse_operand_stages`); the stage is released when the copy has read it:

    tile.write %ring[%s] …, %y                  barrier;  tile.write %ring[%s] …, %y
    tile.copy_out %c[%m, %n] %ring[%s]    ->    fence async_shared;  barrier
                                                tma_store …;  bulk_commit
                                                in the next program, before its loop:
                                                bulk_wait 0 read;  mbarrier_arrive %empty[%s]

That is late enough that the wait is short, and early enough for the program after the next, whose
stage it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, starmap
from typing import NamedTuple

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.layout import Layout
from tkc.ir.origin import root
from tkc.ir.rewrite import (
    before,
    erase,
    holding,
    is_inside,
    loops_of,
    rebuild_for,
    rebuild_while,
)
from tkc.ir.types import MapType
from tkc.ir.values import block_of, previous_of, shared_type, terminator_of, tile_type, type_of
from tkc.passes.analysis.alias import (
    WRITES,
    Overlaps,
    ancestor,
    is_alternative,
    is_before,
    is_folded,
    kernel_around,
    may_meet,
    reads,
    releases,
)
from tkc.passes.analysis.alias import apart as are_apart
from tkc.passes.analysis.polynomials import least_distance
from tkc.passes.warpgroups.maps import Maps


class Part(NamedTuple):
    """So many elements along an axis of a tile, of each warpgroup."""

    axis: int
    extent: int


def store_results(outs: list[shared.CopyOut], maps: Maps, block: Block, overlaps: Overlaps) -> None:
    """Buffers that a role's block has just written, to global memory; by each warpgroup its own
    rows or columns, where it wrote those and no other one reads them: then none waits for another.
    Buffers of their own are stored together, where nothing between them observes or changes what
    is stored; others, and those that results take in turn, one after the other.
    """
    accesses = _accesses(outs, block)
    together = _may_go_together(outs, accesses, overlaps)
    groups = [outs] if together else [[out] for out in outs]
    shares = [_common_share(group, accesses, overlaps) for group in groups]
    # who waits for copies counts all that are made: threads that make some would count too few
    each = "warpgroup" if all(shares) else None
    for group, share in zip(groups, shares, strict=True):
        in_flight = 0 if together else group[0].slots.value.data - 1
        # nothing else orders what two copies write
        follows = any(_may_overwrite(out, b, outs, overlaps) for out in group for b in outs)
        _await_earlier(group, in_flight, each, follows)
        is_awaited = _is_awaited(group, accesses, overlaps)
        fences = ["async_shared"]
        if _is_behind_stores(group, accesses, overlaps):
            fences.append("async_global")
        _store_group(group, maps, share if each else None, is_awaited, fences)
    for out in outs:
        erase(out)


def _accesses(outs: Sequence[shared.CopyOut], block: Block) -> list[Operation]:
    """What in a role's block may observe or change what is stored."""
    return [
        op
        for op in block.walk()
        if (
            reads(op) or isinstance(op, WRITES) and not all(is_alternative(op, out) for out in outs)
        )
        and not _of_workspace(op)
    ]


def _store_group(
    group: list[shared.CopyOut],
    maps: Maps,
    share: Part | None,
    is_awaited: bool,
    fences: Sequence[str],
) -> None:
    """Buffers to global memory when they are written; is_awaited: the role goes on when they have
    arrived; fences: behind what threads have written where copies read, or write.
    """
    end, each = group[-1], "warpgroup" if share else None
    before(end, *map(threads.Fence, fences), threads.BlockBarrier(each))
    for out in group:
        _store(out, maps, share, end)
    before(end, threads.BulkCommit(each))
    if is_awaited:
        before(
            end,
            threads.BulkWait(0, read=False, each=each),
            threads.Fence("async_global"),
            threads.BlockBarrier(),
        )


def _may_go_together(
    outs: Sequence[shared.CopyOut], accesses: list[Operation], overlaps: Overlaps
) -> bool:
    """Whether buffers may be stored when all are written."""
    return (
        len({out.buffer for out in outs}) == len(outs)
        and len({out.parent for out in outs}) == 1
        and not any(_meet(a, b, overlaps) for a, b in combinations(outs, 2))
        and not any(_is_passed(op, outs, overlaps) for op in accesses)
    )


def _await_earlier(
    group: list[shared.CopyOut], in_flight: int, each: str | None, follows: bool
) -> None:
    """Before a group's buffers are written: copies that still read them, but for so many that read
    others; and all copies, where nothing else orders what they write.
    """
    write = _write_of(group[0])
    if not all(stage_of(out) for out in group):
        before(write, threads.BulkWait(in_flight, each=each))
    before(write, threads.BlockBarrier(each))
    if follows:
        before(write, threads.BulkWait(0, read=False, each=each), threads.BlockBarrier())


def _common_share(
    group: list[shared.CopyOut], accesses: list[Operation], overlaps: Overlaps
) -> Part | None:
    """The part of buffers that each warpgroup writes and may store for itself."""
    writes = [_write_of(out) for out in group]
    shares = {own_part(tile_type(write.value).register_layout) for write in writes}
    share = shares.pop() if len(shares) == 1 else None
    if share and any(_of_others(out, op, share, overlaps) for out in group for op in accesses):
        return None
    return share


def _store(out: shared.CopyOut, maps: Maps, share: Part | None, end: Operation) -> None:
    """A buffer to global memory, whole or a share of it."""
    box = [max(n, 1) for n in out.extents.get_values()]
    if share:
        box[_axis_of(out.extents.get_values(), share)] = share.extent
    swizzle = shared_type(out.buffer).memory.swizzle
    map, place = maps.of(out.array, list(out.offsets), box, swizzle)
    before(
        end,
        threads.TmaStore(
            map,
            place,
            out.buffer,
            reduce=None if out.reduce is None else out.reduce.data,
            each="warpgroup" if share else None,
            axis=(_axis_of(type_of(map, MapType).extents, share) if share else None),
        ),
    )


def _is_awaited(group: list[shared.CopyOut], accesses: list[Operation], overlaps: Overlaps) -> bool:
    """Whether an access behind a group of copies needs what they write."""
    return any(
        (may_meet(out, op, overlaps) or releases(op)) and _may_follow(op, group[-1])
        for out in group
        for op in accesses
    )


def _is_behind_stores(
    group: list[shared.CopyOut], accesses: list[Operation], overlaps: Overlaps
) -> bool:
    """Whether threads may have stored before where a group of copies writes."""
    return any(
        isinstance(op, WRITES) and may_meet(out, op, overlaps) and _may_precede(op, out)
        for out in group
        for op in accesses
    )


def _is_passed(access: Operation, outs: Sequence[shared.CopyOut], overlaps: Overlaps) -> bool:
    """Whether copies that wait for the last of them would pass an access between them that meets
    one, or that says which accesses it orders.
    """
    place = ancestor(access, block_of(outs[0]))
    if place is None or not is_before(outs[0], place) or not is_before(place, outs[-1]):
        return False
    return not all(is_before(place, out) or are_apart(access, out, overlaps) for out in outs)


def _may_follow(access: Operation, store: shared.CopyOut) -> bool:
    """Whether a program may access memory after it has stored: in a loop of its own it may do so
    again.
    """
    block = block_of(store)
    place = ancestor(access, block)
    if block.parent_op() is None or place is None:
        return True
    return bool(_own_loops(store)) or not is_before(place, store)


def _may_precede(access: Operation, store: shared.CopyOut) -> bool:
    """Whether a program may have accessed memory before it stores."""
    place = ancestor(access, block_of(store))
    return place is None or bool(_own_loops(store)) or is_before(place, store)


def _own_loops(op: Operation) -> list[scf.ForOp | scf.WhileOp]:
    """The loops round an operation whose iterations are in order: not the outermost one of a kernel
    whose blocks take programs in turn, but where these wait for one another.
    """
    loops = loops_of(op)
    if not loops or "persistent" not in kernel_around(op).attributes:
        return loops
    watching = filter(tile.watches, loops[-1].walk())
    return loops[:-1] if all(map(_of_workspace, watching)) else loops


def _of_workspace(access: Operation) -> bool:
    """Whether an access is to memory of the launch, to which no result is stored."""
    match access:
        case tile.Load() | tile.Store() | tile.AtomicBlock():
            place = access.array
        case tile.LoadPointers() | tile.StorePointers() | tile.Atomic():
            place = access.pointers
        case _:
            return False
    return isinstance(root(place).owner, threads.Workspace)


def _axis_of(extents: Sequence[int], share: Part) -> int:
    """The axis of a block, with such extents, that is a tile's axis which warpgroups share."""
    return [a for a, n in enumerate(extents) if n > 1][share.axis]


def _of_others(out: shared.CopyOut, load: Operation, share: Part, overlaps: Overlaps) -> bool:
    """Whether a warpgroup that stores its own part of a result may store what another one reads: of
    the same memory, and not the part that it reads itself.
    """
    if not may_meet(out, load, overlaps):
        return False
    if not isinstance(load, tile.Load) or load.array is not out.array:
        return True
    if is_folded(out.array, overlaps):
        return True
    axis = _axis_of(out.extents.get_values(), share)
    own = own_part(tile_type(load.result).register_layout)
    return own != share or _place(load.offsets[axis]) != _place(out.offsets[axis])


def _may_overwrite(
    out: shared.CopyOut, other: shared.CopyOut, outs: Sequence[shared.CopyOut], overlaps: Overlaps
) -> bool:
    """Whether a copy may write what another one of a program, before it, has written: in the same
    iteration of the loops round both, or in an earlier one.
    """
    if outs.index(other) < outs.index(out) and _meet(out, other, overlaps):
        return True
    if out.reduce is not None and out.reduce == other.reduce:
        return False  # what they add comes to the same in any order
    common = [loop for loop in _own_loops(out) if loop.is_ancestor(other)]
    return any(_meet_again(out, other, loop, overlaps) for loop in common)


def _meet(a: shared.CopyOut, b: shared.CopyOut, overlaps: Overlaps) -> bool:
    """Whether two copies of an iteration may write the same element: to one argument, or to two
    that share memory, unless they are so many elements apart along one axis of one view.
    """
    if not may_meet(a, b, overlaps):
        return False
    if a.array is not b.array or is_folded(a.array, overlaps):
        return True

    def apart(x, y, n, m):
        return x[0] is y[0] and (x[1] + n <= y[1] or y[1] + m <= x[1])

    return not any(
        apart(_place(x), _place(y), max(n, 1), max(m, 1))
        for x, y, n, m in zip(
            a.offsets, b.offsets, a.extents.get_values(), b.extents.get_values(), strict=False
        )
    )


def _meet_again(
    a: shared.CopyOut, b: shared.CopyOut, loop: scf.ForOp | scf.WhileOp, overlaps: Overlaps
) -> bool:
    """Whether copies of two iterations of a loop may write the same element: not where each step
    of the loop moves them by as much as they have along an axis.
    """
    if not may_meet(a, b, overlaps):
        return False
    indices = _indices_inside(a.array, loop)
    if a.array is not b.array or is_folded(a.array, overlaps) or indices is None:
        return True
    extents = zip(a.extents.get_values(), b.extents.get_values(), strict=True)
    blocks = zip(a.offsets, b.offsets, starmap(max, extents), strict=True)
    axes = [*blocks, *((index, index, 1) for index in indices)]
    return not any(least_distance(x, y, loop) >= max(n, 1) for x, y, n in axes)


def _indices_inside(array: SSAValue, loop: Operation) -> list[SSAValue] | None:
    """What chooses an array in a loop, by an index along some axes; None where it does so in
    another way.
    """
    found: list[SSAValue] = []
    while is_inside(array, loop):
        view = array.owner
        if not isinstance(view, tile.View) or any(kind.data == "slice" for kind in view.kinds):
            return None
        found += view.offsets
        array = view.array
    return found


def _place(offset: SSAValue) -> tuple[SSAValue | None, int | float]:
    """An offset as a value and a constant."""
    total: int | float = 0
    while isinstance(offset.owner, CLASSES["add"]) and isinstance(
        offset.owner.operands[1].owner, tile.Constant
    ):
        total += offset.owner.operands[1].owner.number
        offset = offset.owner.operands[0]
    return (
        (None, total + offset.owner.number)
        if isinstance(offset.owner, tile.Constant)
        else (offset, total)
    )


def stage_of(out: shared.CopyOut) -> shared.Stage | None:
    """The stage of a ring through which a result is stored, if it does."""
    view = out.buffer.owner
    return (
        view.arg.owner
        if isinstance(view, shared.SharedSlice) and isinstance(view.arg.owner, shared.Stage)
        else None
    )


def release_stages(stages: list[shared.Stage], empty: dict[SSAValue, SSAValue]) -> None:
    """Stages through which a program's results are stored, released to these barriers:
    behind the beginning of the next program.
    """
    # results may be stored in a branch of it: a program outside of the grid has none
    block = block_of(stages[0])
    around = block.parent_op()
    if not isinstance(around, (scf.ForOp, scf.WhileOp)):
        raise TypeError("results are stored outside of the loop over programs")
    one, none = (before(around, tile.Constant(n, t)).result for n, t in ((0, i32), (0, i1)))
    extra = [one] * len(stages) + [none]
    if isinstance(around, scf.ForOp):
        rebuild_for(around, range(len(around.iter_args)), extra)
    else:
        rebuild_while(around, extra)
    *earlier, some = block.args[-len(extra) :]
    place = next(op for op in holding(block.ops, threads.DotAsync) if op.regions)
    before(
        place,
        threads.BulkWait(0),
        *(
            threads.MbarrierArrive(empty[stage.ring], was, each="warp", when=some)
            for stage, was in zip(stages, earlier, strict=False)
        ),
    )
    end = terminator_of(block)
    end.operands = [
        *end.operands,
        *(stage.index[0] for stage in stages),
        before(end, tile.Constant(1, i1)).result,
    ]


def _write_of(out: shared.CopyOut) -> shared.Write:
    write = previous_of(out)
    while not (isinstance(write, shared.Write) and write.buffer is out.buffer):
        write = previous_of(write)
    return write


def own_part(held: Layout | None) -> Part | None:
    """What each of several warpgroups holds of a tile, if it is contiguous."""
    groups = 0 if held is None else held.num_warps // 4
    if held is None or groups < 2:
        return None
    for axis, whole in enumerate(held.shape):
        extent, rest = divmod(whole, groups)
        if rest or extent % 8:
            continue
        holds = held.table()[..., axis].reshape(groups, -1) // extent
        if (holds == np.arange(groups)[:, None]).all():
            return Part(axis, extent)
    return None
