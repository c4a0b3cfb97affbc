"""Which accesses to global memory may touch the same bytes, and what that forbids.

The one alias analysis of the passes: whatever moves a load, makes it ahead of its iteration, keeps
what it read or joins two accesses asks here first.

    may_be_early     unchanged, source_unchanged: a load in a loop, made in an earlier iteration
    may_be_late      unseen: a load, made at a later operation
    of two accesses  apart: they share no memory

Two array arguments share memory where the launch says so (`PassContext.overlaps`); a view, and an
array that the host derives from an argument (tkc.ir.derived), share that of the argument. Pointers
belong to the argument that they are made from; of pointers that are loaded, and of arrays made from
addresses, nothing is known, so that they may touch anything.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.elementwise import Elementwise
from tkc.ir.origin import origin
from tkc.ir.rewrite import body_of, loops_of
from tkc.ir.threads import Identity, NextProgram
from tkc.ir.types import TileType
from tkc.ir.values import (
    ancestor,
    array_type,
    block_of,
    defining_op,
    enclosing,
    is_side_effect_free,
)
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import WRITES

_WRITERS = (shared.CopyOut, *WRITES)

# Groups of array arguments, by number, that share memory: `PassContext.overlaps`.
Overlaps = Sequence[tuple[int, ...]]


# ---- what an access touches
def overlapping(argument: BlockArgument, overlaps: Overlaps) -> set[BlockArgument]:
    """An argument, and those that share memory with it."""
    arguments = list(argument.owner.args)
    return {argument, *(arguments[i] for pair in overlaps for i in pair if argument.index in pair)}


def accessed(op: Operation) -> BlockArgument | None:
    """The array argument in whose memory an access is; None where that is not known."""
    match op:
        case tile.Load() | tile.Store() | tile.AtomicBlock():
            return origin(op.array)
        case shared.Copy() | shared.CopyAsync() | shared.CopyOut():
            return origin(op.array)
        case tile.LoadPointers() | tile.StorePointers() | tile.Atomic():
            return origin(op.pointers)
        case _:
            return None


def is_folded(array: SSAValue, overlaps: Overlaps) -> bool:
    """Whether several elements of an array may be one in memory."""
    argument = origin(array)
    if argument is not None and (argument.index, argument.index) in overlaps:
        return True
    return array_type(array).facts.overlaps_itself


def apart(access: Operation, other: Operation, overlaps: Overlaps) -> bool:
    """Whether two accesses are of arrays that share no memory, and neither orders accesses to
    others.
    """
    if orders(access) or orders(other):
        return False
    return not may_meet(access, other, overlaps)


def may_meet(access: Operation, other: Operation, overlaps: Overlaps) -> bool:
    """Whether two accesses may touch the same bytes, whatever they order."""
    mine, its = accessed(access), accessed(other)
    return mine is None or its is None or its in overlapping(mine, overlaps)


def orders(op: Operation) -> bool:
    """Whether an access orders others to other memory: an acquire or a release, which atomics are
    unless they say that they are relaxed. (The updates of a block are relaxed.)
    """
    match op:
        case tile.Atomic():
            return not _is_relaxed(op)
        case tile.LoadPointers() | tile.StorePointers():
            return op.semantics is not None and not _is_relaxed(op)
        case _:
            return False


def releases(op: Operation) -> bool:
    """Whether an access tells others that what came before it is done."""
    semantics = getattr(op, "semantics", None)
    return orders(op) and (semantics is None or semantics.data != "acquire")


def reads(op: Operation) -> bool:
    """Whether an operation is a load of memory that nothing else writes meanwhile."""
    return isinstance(op, (tile.Load, tile.LoadPointers)) and not tile.watches(op)


def writes(op: Operation) -> bool:
    """Whether an operation may change memory, or must stay where it is for another reason."""
    return (
        not op.regions
        and not is_side_effect_free(op)
        and not reads(op)
        and not isinstance(op, (scf.YieldOp, tile.Yield, tile.Return, tile.Assume))
    )


# ---- a load in a loop, made in an earlier iteration
def unchanged(op: tile.Load | shared.Copy, loop: Operation, overlaps: Overlaps) -> bool:
    """Whether what a load in a loop reads may be read in another iteration than its own.

    Nothing in the loop may write it (where iterations are programs that nothing orders: nothing
    that its own program does before). Where the loop reads what others write, nothing in the kernel
    may, for that is what they run; and an acquire may order what else has been written.
    """
    array = accessed(op)
    return array is not None and _unchanged(op, loop, overlapping(array, overlaps))


def is_number_of_all(op: Operation, overlaps: Overlaps) -> bool:
    """Whether an operation is a kernel's load of a number that nothing in the kernel writes: where
    no program id reaches its place, it is the same for all programs.
    """
    return (
        isinstance(op, tile.Load)
        and not isinstance(op.result.type, TileType)
        and isinstance(kernel := op.parent_op(), tile.Kernel)
        and unchanged(op, kernel, overlaps)
    )


def _unchanged(
    op: tile.Load | shared.Copy, loop: Operation, arguments: Container[SSAValue]
) -> bool:
    """`unchanged`, of what lies in any of some arguments."""
    watched = [other for other in loop.walk() if tile.watches(other)]
    if not all(_is_relaxed(other) for other in watched):
        return False
    ops: Iterable[Operation]
    if op.parent_op() is loop and is_of_programs(loop):
        earlier = [each for each in _body(loop).ops if each.is_before_in_block(op)]
        ops = (inner for each in earlier for inner in each.walk())
    else:
        ops = (kernel_around(loop) if watched else loop).walk()
    return not _writes_any(ops, arguments)


def source_unchanged(copy: shared.Copy, loop: Operation, overlaps: Overlaps) -> bool:
    """Whether what a copy in a loop reads may be read in an earlier iteration than its own: as
    `unchanged`; an array that is made in the kernel may lie in any argument.
    """
    if accessed(copy) is None:
        return _unchanged(copy, loop, kernel_around(loop).body.block.args)
    return unchanged(copy, loop, overlaps)


def _is_relaxed(op: Operation) -> bool:
    semantics = getattr(op, "semantics", None)
    return semantics is not None and semantics.data == "relaxed"


def _writes_any(ops: Iterable[Operation], arguments: Container[SSAValue]) -> bool:
    """Whether any operation writes to some array arguments, or to one that is not known."""
    for op in ops:
        if isinstance(op, _WRITERS):
            written = accessed(op)
            if written is None or written in arguments:
                return True
    return False


def written_before(op: tile.Load, overlaps: Overlaps) -> bool:
    """Whether its own program may have written what a load of an argument reads: before it, or in
    an iteration before.
    """
    argument, earlier = accessed(op), _writes_before(op)
    if argument is None:
        return bool(earlier)
    return _writes_any(earlier, overlapping(argument, overlaps))


@remembered
def _writes_before(op: tile.Load) -> tuple[Operation, ...]:
    """What writes to memory before an operation, or in an iteration before."""
    loops, found, is_before = set(loops_of(op)), [], True
    for other in kernel_around(op).walk():
        is_before = is_before and other is not op
        if isinstance(other, WRITES) and (is_before or loops.intersection(loops_of(other))):
            found.append(other)
    return tuple(found)


def unwritten(load: Operation, overlaps: Overlaps) -> bool:
    """Whether no program writes what a load of any program may read."""
    array = accessed(load)
    return array is not None and not _writes_any(
        kernel_around(load).walk(), overlapping(array, overlaps)
    )


def is_of_programs(loop: Operation) -> bool:
    """Whether iterations are programs that a block takes in turn, and that do not wait for one
    another: nothing orders what two of them do to the user's arrays in any launch.
    """
    match loop:
        case scf.ForOp():
            taken = _is_cluster_number(loop.lb) and _is_of_clusters(loop.step)
        case scf.WhileOp() if loop.arguments:
            taken = _is_cluster_number(loop.arguments[0]) and any(
                isinstance(op, NextProgram) for op in body_of(loop).ops
            )
        case _:
            return False
    return taken and not any(tile.watches(op) for op in loop.walk())


def _is_cluster_number(value: SSAValue) -> bool:
    """Whether a value is this cluster's number, or one that is some times as many as there are
    clusters after it.
    """
    while (terms := _operands(value, "add")) is not None:
        further = [not _is_of_clusters(term) for term in terms]
        if all(further) or not any(further):
            return False
        value = terms[further.index(True)]
    identity = defining_op(value, Identity)
    return identity is not None and identity.what.data == "cluster"


def _is_of_clusters(value: SSAValue) -> bool:
    """Whether a value is the number of clusters, or some times that."""
    factors = _operands(value, "mul") or (value,)
    identities = [defining_op(factor, Identity) for factor in factors]
    return any(identity and identity.what.data == "clusters" for identity in identities)


def _operands(value: SSAValue, name: str) -> Sequence[SSAValue] | None:
    """What a function is applied to, where the value is its result."""
    op = defining_op(value, Elementwise)
    return op.args if op is not None and op.fn.name == name else None


def _body(loop: Operation) -> Block:
    assert isinstance(loop, (scf.ForOp, scf.WhileOp))
    return body_of(loop)


# ---- a load, made at a later operation
def unseen(
    load: Operation,
    at: Operation,
    overlaps: Overlaps,
    but: Collection[Operation] = (),
) -> bool:
    """Whether a load made at another operation, which it comes before, gives the same.

    Nothing that is written in between (or, where that operation is in a loop and the load is not,
    anywhere in the loop), `but` some operations, may share memory with it.
    """
    block = block_of(load)
    here = ancestor(at, block)
    if here is None:
        return False
    for op in kernel_around(at).walk():
        if not writes(op) or op in but or (place := ancestor(op, block)) is None:
            continue
        between = is_before(load, place) and (place is here or is_before(place, here))
        if between and not apart(load, op, overlaps):
            return False
    return True


# ---- places
def is_alternative(op: Operation, other: Operation) -> bool:
    """Whether a branch has one of two operations and the other branch the other one."""
    region = other.parent_region()
    while region is not None and (around := region.parent) is not None:
        if isinstance(around, scf.IfOp) and around.is_ancestor(op):
            return not region.is_ancestor(op)
        region = around.parent_region()
    return False


def is_before(op: Operation, other: Operation) -> bool:
    """Whether the first of two operations of a block comes before the second."""
    return op.is_before_in_block(other)


def kernel_around(op: Operation) -> tile.Kernel:
    """The kernel that an operation is in. Raises TypeError where it is in none."""
    kernel = op if isinstance(op, tile.Kernel) else enclosing(op, tile.Kernel)
    if kernel is None:
        raise TypeError(f"{op.name} is in no kernel")
    return kernel
