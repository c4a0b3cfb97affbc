"""Rows that several loops over their parts read: which may stay in shared memory from the first of
these loops to the last, so that memory is asked once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.rewrite import counted_slice, is_inside
from tkc.ir.values import block_of
from tkc.passes.analysis.alias import Overlaps, accessed, is_folded, overlapping
from tkc.passes.analysis.expressions import expression
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.values import WRITES

Access = tile.Load | shared.Copy


@dataclass(frozen=True)
class HeldRows:
    """Accesses that read the same parts of an array, one in each of several loops.

    loops: all of their block that go over so many parts, from the first one that reads something
    held on; members: one of each loop that reads these.
    """

    loops: tuple[scf.ForOp, ...]
    members: tuple[Access, ...]
    parts: int

    @property
    def first(self) -> scf.ForOp:
        """The loop that reads them first."""
        return next(loop for loop in self.loops if self.members[0].parent_op() is loop)


def held_rows(
    kernel: tile.Kernel, wanted: Callable[[Access], bool], overlaps: Overlaps
) -> list[HeldRows]:
    """Of the loads, or the copies, that are wanted, in program order. What is held is read before
    the first of its loops, and nothing that these loops write may be part of it.
    """
    return [
        rows
        for region in (r for op in kernel.walk() for r in op.regions)
        for block in region.blocks
        for values, loops in _of_one_range(block)
        for rows in _of_loops(loops, len(values), wanted, overlaps)
    ]


def _of_one_range(block: Block) -> Iterator[tuple[range, list[scf.ForOp]]]:
    """The loops of a block that count by the same constant bounds."""
    found: dict[range, list[scf.ForOp]] = {}
    for op in block.ops:
        if isinstance(op, scf.ForOp):
            lower, upper, step = (constant(v) for v in (op.lb, op.ub, op.step))
            if isinstance(lower, int) and isinstance(upper, int) and isinstance(step, int):
                found.setdefault(range(lower, upper, step), []).append(op)
    yield from ((values, loops) for values, loops in found.items() if len(loops) > 1)


def _of_loops(
    loops: list[scf.ForOp], parts: int, wanted: Callable[[Access], bool], overlaps: Overlaps
) -> Iterator[HeldRows]:
    alike: dict[Hashable, list[Access]] = {}
    for loop in loops:
        for op in loop.body.block.ops:
            if isinstance(op, Access) and wanted(op):
                alike.setdefault(_identity(op, loop), []).append(op)
    several = [
        members
        for members in alike.values()
        if len({op.parent_op() for op in members}) == len(members) > 1
    ]
    if not several:
        return
    readers = {members[0].parent_op() for members in several}
    reading = loops[next(i for i, loop in enumerate(loops) if loop in readers) :]
    for members in several:
        if _may_be_held(members, reading[0], overlaps):
            yield HeldRows(tuple(reading), tuple(members), parts)


def _may_be_held(members: list[Access], first: scf.ForOp, overlaps: Overlaps) -> bool:
    """Whether what members read may be read before the first loop: it can be addressed there, and
    nothing from there to the end of their last loop writes it, but each part of itself in the end.
    """
    array, last = accessed(members[0]), members[-1].parent_op()
    if array is None or last is None or not _addressed_before(members[0], first):
        return False
    meeting = overlapping(array, overlaps)

    def changes(op: Operation) -> bool:
        if tile.watches(op):
            return True
        if not isinstance(op, WRITES):
            return False
        written = accessed(op)
        return (written is None or written in meeting) and not _is_in_its_place(
            op, members[-1], overlaps
        )

    ops = list(block_of(first).ops)
    between = ops[ops.index(first) : ops.index(last) + 1]
    return not any(changes(inner) for outer in between for inner in outer.walk())


def _addressed_before(op: Access, first: scf.ForOp) -> bool:
    """Whether what an access of a later loop is addressed by is known before the first one."""
    loop = op.parent_op()
    assert isinstance(loop, scf.ForOp)
    addresses = [v for v in op.operands if not isinstance(v.owner, shared.Alloc)]
    needed = counted_slice(addresses, loop)
    if needed is None:
        return False
    every = {*addresses, *(v for inner in needed for v in inner.operands)}
    return all(is_inside(v, loop) or _is_there(v, first) for v in every)


def _is_in_its_place(store: Operation, access: Access, overlaps: Overlaps) -> bool:
    """Whether a store of a loop writes the very part that an access has read in the iteration."""
    return (
        isinstance(store, tile.Store)
        and not is_folded(store.array, overlaps)
        and store.parent is access.parent
        and access.is_before_in_block(store)
        and store.extents == access.extents
        and list(map(expression, (store.array, *store.offsets)))
        == list(map(expression, (access.array, *access.offsets)))
    )


def _is_there(value: SSAValue, anchor: Operation) -> bool:
    """Whether a value is computed before an operation."""
    owner = value.owner
    if isinstance(owner, Block) or owner.parent is not anchor.parent:
        return True
    return owner.is_before_in_block(anchor)


def _identity(op: Access, loop: scf.ForOp) -> Hashable:
    """What two loops' accesses have in common that read the same parts."""
    layout = op.threads if isinstance(op, shared.Copy) else op.result.type
    operands = [v for v in op.operands if not isinstance(v.owner, shared.Alloc)]
    return (
        type(op),
        tuple(op.extents.get_values()),
        layout,
        tuple(expression(v, loop.body.block.args[0]) for v in operands),
    )
