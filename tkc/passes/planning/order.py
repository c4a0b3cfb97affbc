"""What programs see of one another, and how roles live with it: numbers that programs take from
counters, which the producer takes for all roles, signals that they wait for, each role for itself,
and all else (locks, say), which the consumers see alone where nothing that other roles copy depends
on it. And what a program sees of itself: loads of what it has stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.rewrite import loops_of
from tkc.ir.types import TileType
from tkc.ir.values import (
    block_of,
    defining_op,
    holds,
    is_side_effect_free,
    operations_in,
    parents,
    terminator_of,
)
from tkc.passes import LaunchOptions
from tkc.passes.analysis.alias import (
    Overlaps,
    kernel_around,
    may_meet,
    unwritten,
    written_before,
)
from tkc.passes.analysis.program_axes import decides, program_axes, sources, ways_to
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import LOADS, WRITES, feeding_dots
from tkc.passes.planning.gathers import (
    BY_CONSUMERS,
    Why,
    load_by_consumers,
    loaded_by_consumers,
)
from tkc.passes.warpgroups.stored import STORES, is_looked_up

OBSERVED = "programs can observe the order in which they run"


def work_claims(kernel: Operation) -> list[tile.Atomic]:
    """The atomics by which programs take work: scalars with a result that is used."""
    return [
        op
        for op in kernel.walk()
        if isinstance(op, tile.Atomic) and op.result is not None and not is_signal(op)
    ]


def is_signal(op: Operation) -> bool:
    """Whether an operation is an atomic that only tells others something: nothing follows from it
    in its own program.
    """
    if not isinstance(op, tile.Atomic) or op.result is not None and op.result.first_use is not None:
        return False
    return op.semantics is not None and op.semantics.data in ("relaxed", "release")


@remembered
def acquiring_loops(kernel: Operation) -> list[scf.WhileOp]:
    """The loops in which programs wait for a signal and do nothing else: each role can run them, as
    what is waited for stays. (A turn does not: who runs late would never see it.)
    """
    tells = any(isinstance(op, tile.Atomic) for op in kernel_around(kernel).walk())
    return [
        op
        for op in kernel.walk()
        if isinstance(op, scf.WhileOp)
        and not op.results
        and len(op.after_region.block.ops) == 1
        and any(_acquires(inner) for inner in op.before_region.walk())
        and all(
            _acquires(inner)
            or isinstance(inner, scf.ConditionOp)
            or not inner.regions
            and is_side_effect_free(inner)
            for inner in op.before_region.walk()
        )
        and (_stays(op) or not tells)
    ]


def _stays(loop: scf.WhileOp) -> bool:
    """Whether a loop waits until a number is beyond another, or no longer what it was. One that
    waits for one number may find the next: the program itself goes on, and tells others.
    """
    condition = terminator_of(loop.before_region.block).operands[0]
    op = defining_op(condition, ew.Elementwise)
    return op is not None and op.fn.name in ("lt", "le", "gt", "ge", "eq")


def _acquires(op: Operation) -> bool:
    semantics = op.semantics if isinstance(op, tile.LoadPointers) else None
    return semantics is not None and semantics.data == "acquire"


def why_not_claimed(kernel: tile.Kernel, overlaps: Overlaps) -> str:
    """Why other roles may not run ahead of a program's consumers; empty if they may: all that
    programs see of one another is signals that they wait for (`acquiring_loops`), or numbers that
    they take from counters, before their first loop or once in each iteration of an outermost loop
    without a count, or what the consumers alone see (`observing_operations`). A producer may take
    numbers early: nothing that another program has written is read.
    """
    claims = _claims(kernel)
    if not claims:
        return ""
    if acquiring_loops(kernel):
        return f"{OBSERVED}: they wait, and take numbers from counters"
    if observing_operations(kernel):
        return OBSERVED
    if _reads_what_it_writes(kernel, overlaps):
        return f"{OBSERVED}: they read what they write"
    return ""


@remembered
def _claims(kernel: Operation) -> list[Operation]:
    return [op for op in kernel.walk() if tile.watches(op) and _is_claim(op, kernel)]


@remembered
def observing_operations(kernel: Operation) -> list[Operation]:
    """What reads memory that other programs may be writing meanwhile (an atomic of a lock, say),
    besides signals, numbers that are taken from counters, and loops that wait for signals: the
    consumers alone run it.
    """
    waits = {op for loop in acquiring_loops(kernel) for op in loop.before_region.walk()}
    return [
        op
        for op in kernel.walk()
        if tile.watches(op) and op not in waits and not is_signal(op) and not _is_claim(op, kernel)
    ]


def operands_depend_on_others(
    loads: Sequence[Operation], kernel: tile.Kernel, overlaps: Overlaps
) -> bool:
    """Whether a dot multiplies what another program may write, or say where or whether to load:
    then no role may copy it ahead of the operations that observe this.
    """
    feeding, observing = feeding_dots(kernel), set(observing_operations(kernel))
    return bool(observing) and any(
        not feeding.isdisjoint(load.results) and _depends_on(load, observing, overlaps)
        for load in loads
    )


def _depends_on(load: Operation, observing: set[Operation], overlaps: Overlaps) -> bool:
    """Whether a load, its place, or whether it runs at all, follows from operations that observe
    other programs, or from memory that programs write.
    """
    around = [v for op in parents(load) if not isinstance(op, tile.Kernel) for v in op.operands]
    found = {load, *sources([*load.operands, *around])}
    return not found.isdisjoint(observing) or any(
        isinstance(op, LOADS) and not unwritten(op, overlaps) for op in found
    )


def _reads_what_it_writes(kernel: tile.Kernel, overlaps: Overlaps) -> bool:
    loads = operations_in(kernel, LOADS)
    writes = operations_in(kernel, WRITES)
    return any(may_meet(load, write, overlaps) for load in loads for write in writes)


def _is_claim(op: Operation, kernel: Operation) -> bool:
    """Whether an operation is an atomic whose result the roles can share. One that says which
    accesses it orders, or whose result is not used, is a signal: it stays behind them.
    """
    if not isinstance(op, tile.Atomic) or op.result is None or op.result.type != i32:
        return False
    if op.result.first_use is None or op.semantics is not None and op.semantics.data != "relaxed":
        return False
    if any(isinstance(r.type, TileType) for other in sources(op.operands) for r in other.results):
        return False  # each role computes what follows from tiles for itself
    around = op.parent_op()
    if around is kernel:
        return is_at_beginning(op)
    if not isinstance(around, scf.WhileOp) or around.parent_op() is not kernel:
        return False
    return op.parent is around.after_region.block


def is_at_beginning(op: Operation) -> bool:
    """Whether nothing before an operation of a kernel's block has an effect but another claim."""
    return all(
        not other.regions and (is_side_effect_free(other) or isinstance(other, tile.Atomic))
        for other in itertools.takewhile(lambda other: other is not op, block_of(op).ops)
    )


def keep_in_order(
    kernel: tile.Kernel, loads: Sequence[Operation], options: LaunchOptions, overlaps: Overlaps
) -> bool:
    """What is done about loads whose program may write what they read, or what says where they are
    and whether they are made: copies wait for stores, as the result says, where they can; the other
    loads are marked, and no copy makes them early.
    """
    changed = {op for op in operations_in(kernel, LOADS) if not unwritten(op, overlaps)}
    if not changed:
        return False
    awaited, waits = _stores_can_be_awaited(kernel, changed, options), False
    for op in loads:
        if not isinstance(op, tile.Load) or BY_CONSUMERS in op.attributes:
            continue
        told_by = _told_by(op, changed)
        if told_by or written_before(op, overlaps):
            if awaited and _can_wait(op, told_by, overlaps):
                waits = True
            else:
                load_by_consumers(op, Why.MOVED if told_by else Why.WRITTEN)
    return waits


def _told_by(op: Operation, changed: Collection[Operation]) -> set[Operation]:
    """The loads of numbers that a program writes which say where an operation is, whether it runs,
    or how often.
    """
    return set(changed).intersection(sources([*op.operands, *ways_to(op)]))


def _can_wait(load: tile.Load, told_by: Collection[Operation], overlaps: Overlaps) -> bool:
    """Whether copies of a load can wait for what its program stores, there or to the numbers that
    say where it is: each role looks them up, between the same stores.
    """
    return (
        not loaded_by_consumers(load)
        and bool(loops_of(load))
        and all(map(is_looked_up, told_by))
        and not any(_is_stored_before(load, read, overlaps) for read in (load, *told_by))
    )


def _stores_can_be_awaited(
    kernel: tile.Kernel, changed: Collection[Operation], options: LaunchOptions
) -> bool:
    """Whether copies can wait for what consumers store: the role that copies waits at each store,
    and runs the loops round it and the branches in which something is read. What else is written,
    by atomics, nothing waits for.
    """
    writes = operations_in(kernel, WRITES)
    around = (at for op in writes for at in parents(op))
    follows = (at for at in around if not isinstance(at, scf.IfOp) or holds(at, LOADS))
    decisive = sources(v for at in follows for v in decides(at)).intersection(changed)
    return (
        options.split_k in (None, 1)
        and not options.stream_k
        and not acquiring_loops(kernel)
        and all(isinstance(op, STORES) for op in writes)
        and all(map(is_looked_up, decisive))
    )


def _is_stored_before(load: tile.Load, read: Operation, overlaps: Overlaps) -> bool:
    """Whether an iteration of a load's innermost loop may overwrite what is read before it comes to
    the load. The loads of a step stand together, before what is stored in it: a copy of this one
    would be too early, or where it lies overwritten too early.
    """
    loop = loops_of(load)[0]
    earlier = itertools.takewhile(lambda op: op is not load, loop.walk())
    return any(isinstance(op, WRITES) and may_meet(read, op, overlaps) for op in earlier)


def reads_first_of_written(
    loads: Sequence[tile.Load], along: Collection[int], overlaps: Overlaps
) -> bool:
    """Whether a padding tile of tile groups along some axes would copy operands that another
    program writes: of arrays that program ids index, it has the first (programs/tile_groups.py).
    """
    return any(
        not unwritten(load, overlaps) and not program_axes(_indices(load.array)).isdisjoint(along)
        for load in loads
    )


def _indices(array: SSAValue) -> Iterator[SSAValue]:
    """What the views of an array are indexed by."""
    while (view := defining_op(array, tile.View)) is not None:
        yield from view.offsets
        array = view.array
