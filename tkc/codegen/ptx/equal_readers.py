"""Values that may not share registers because ptxas would take one for the other.

Within a basic block, ptxas (13.0 and 13.5) merges two equal instructions that read the same
registers although a wgmma wrote these registers in between:

    wgmma {r0, …}, x, y      wait      mul t, m, r0
    wgmma {r0, …}, x, z      wait      mul u, m, r0      // becomes u = t; the first wgmma is dead

Copies of the registers, other fences, and zeros written first change nothing; other registers, or
a branch in between, do. So results of two dots may share registers only if no operation that reads
the one could be equal to an operation of the same basic block that reads the other. Operations are
compared by what they compute, down to the values that both use.

A loop whose number of rounds ptxas knows becomes one basic block where nothing in it branches. Its
rounds write the same registers, so that it must stay a loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import cast

from xdsl.ir import Block, Operation, OpResult, SSAValue

from tkc.ir import threads, tile
from tkc.ir.registers import ALIASES, sources
from tkc.ir.types import element_of

# What reads their results reads their operand.
SELECTIONS = (*ALIASES, threads.DotWait, threads.Accumulator)
# Their first instructions on registers can be the same.
COMBINING = tile.AlongAxis

Writers = Mapping[SSAValue, threads.DotAsync]


def read_alike(left: Collection[SSAValue], right: Collection[SSAValue]) -> bool:
    """Whether an operation that reads one of `left` may be equal, in ptxas's eyes, to one of its
    block that reads what another dot wrote of `right`, if all of these values were in the same
    registers.
    """
    first, second = _written_by_dots(left), _written_by_dots(right)
    if not (first and second):
        return False
    confused, near = _Confused(first, second), defaultdict(list)
    for value, dot in first.items():
        for op in _readers(value):
            near[op.parent, _kind(op)].append((dot, op))
    return any(
        dot is not other and confused.operations(a, b) and not _branch_between(a, b)
        for value, other in second.items()
        for b in _readers(value)
        for dot, a in near.get((b.parent, _kind(b)), ())
    )


def merges_iterations(body: Block) -> bool:
    """Whether ptxas, if it unrolled a loop with this body, would have dots of several iterations in
    one basic block.
    """
    ops = list(body.ops)
    return any(isinstance(op, threads.DotAsync) for op in ops) and not any(map(_branches, ops))


def _written_by_dots(values: Collection[SSAValue]) -> Writers:
    """Of these values, those whose registers a dot of their own block wrote last, with the dot."""
    found = ((value, dot_of(value)) for value in values)
    return {value: dot for value, dot in found if dot is not None}


def dot_of(value: SSAValue) -> threads.DotAsync | None:
    """The dot of a value's own block that wrote the value's registers last."""
    block, op = value.owner.parent, value.owner
    while isinstance(op, (threads.DotWait, threads.Accumulator)):
        value = op.operands[cast(OpResult, value).index]
        op = value.owner
    own = isinstance(op, threads.DotAsync) and op.parent is block
    return cast(threads.DotAsync, op) if own else None


def _readers(value: SSAValue) -> Iterator[Operation]:
    """The operations with results that read a value's registers, in the block that defines it. A
    dot is not one: ptxas merges no two of them.
    """
    for use in value.uses:
        op = use.operation
        if isinstance(op, SELECTIONS):
            for result in op.results:
                yield from _readers(result)
        elif isinstance(op, threads.DotAsync) or op.parent is not value.owner.parent:
            continue
        elif op.results and not op.regions:
            yield op


def _branch_between(a: Operation, b: Operation) -> bool:
    """Whether two operations of one block of the program are in different basic blocks."""
    for first, last in ((a, b), (b, a)):
        branches, op = False, first.next_op
        while op is not None and op is not last:
            branches = branches or _branches(op)
            op = op.next_op
        if op is last:
            return branches
    return False


def _branches(op: Operation) -> bool:
    """Whether an operation ends a basic block: it waits in a loop, or some threads alone arrive."""
    arrives = isinstance(op, threads.MbarrierArrive) and not op.of_copies
    return bool(op.regions) or arrives or isinstance(op, threads.MbarrierWait)


def _kind(op: Operation) -> object:
    return COMBINING if isinstance(op, COMBINING) else type(op)


class _Confused:
    """Equality of values where results of different dots in the same registers count as equal.

    Tiles are registers to ptxas: parts of tiles count as the tiles, and tiles of other extents as
    those of the same elements, for one dot may be read whole and the other in parts.
    """

    def __init__(self, left: Writers, right: Writers):
        self.left, self.right = left, right
        self.known: dict[tuple[SSAValue, SSAValue], bool] = {}

    def values(self, a: SSAValue, b: SSAValue) -> bool:
        """Whether two values may be equal."""
        if a is b:
            return True
        if (a, b) not in self.known:
            first, second = sources(a) or {a}, sources(b) or {b}  # a number shows no tile
            self.known[a, b] = (
                not first.isdisjoint(second)
                or not (first.isdisjoint(self.left) or second.isdisjoint(self.right))
                or any(self._results(x, y) for x in first for y in second)
            )
        return self.known[a, b]

    def _results(self, a: SSAValue, b: SSAValue) -> bool:
        if not (isinstance(a, OpResult) and isinstance(b, OpResult)):
            return False
        same = element_of(a.type) == element_of(b.type) and a.index == b.index
        return same and self.operations(a.op, b.op)

    def operations(self, a: Operation, b: Operation) -> bool:
        """Whether two operations may compute the same, though not of the same values."""
        if a is b:
            return False
        if isinstance(a, COMBINING) and isinstance(b, COMBINING):
            return self.values(a._operands[0], b._operands[0])
        return (
            type(a) is type(b)
            and not a.regions
            and a.properties == b.properties
            and len(a._operands) == len(b._operands)
            and all(map(self.values, a._operands, b._operands))
        )
