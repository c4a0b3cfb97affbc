"""How a warp should touch a block of global memory: which axis runs fastest, how many neighbours a
thread takes at once.

Everything here is a question about one load, store or atomic (all have the same operands):
`Access.of(op, ranges)`.

    axis      the axis of the tile whose neighbours are neighbours in memory
    vector    elements one thread may move in one access, 16 bytes at most: what alignment, strides, offsets, extents and
              masks all allow
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.axis_info import contiguity
from tkc.ir.digits import Digit, copies
from tkc.ir.layout import Layout, blocked
from tkc.ir.origin import origin
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import body_of, loops_of
from tkc.ir.threads import Identity, NextProgram
from tkc.ir.types import TileType, bits, element_of
from tkc.passes.analysis.values import POINTWISE, VIEWS

BLOCKS = (tile.Load, tile.Store, tile.AtomicBlock)
POINTERS = (tile.LoadPointers, tile.StorePointers, tile.Atomic)
WRITES = (tile.Store, tile.AtomicBlock, tile.StorePointers, tile.Atomic)
SMALL = 4096  # bytes of a tile that caches hold whatever the order they are asked for
SECTOR = 16  # bytes in a row that make an access worth its sector


def tile_of(op: Operation) -> TileType | None:
    """The type of what an access moves, None where that is a scalar."""
    moved = op.result if isinstance(op, (tile.Load, tile.LoadPointers)) else op.value
    return moved.type if isinstance(moved.type, TileType) else None


def bytes_of(op: Operation) -> int:
    """What an access moves."""
    return tile_of(op).bytes


def argument_of(array: SSAValue) -> SSAValue | None:
    """The array argument that an array is a view of; None where that is made in the kernel."""
    while isinstance(array.owner, tile.View):
        array = array.owner.array
    return (
        array
        if isinstance(array, BlockArgument) and isinstance(array.owner.parent_op(), tile.Kernel)
        else None
    )


def overlapping(argument: BlockArgument, overlaps: Sequence[tuple[int, ...]]) -> set[BlockArgument]:
    """An argument, and those that share memory with it."""
    arguments = list(argument.owner.args)
    return {argument, *(arguments[i] for pair in overlaps for i in pair if argument.index in pair)}


def unchanged(op: tile.Load, loop: Operation, overlaps: Sequence[tuple[int, ...]]) -> bool:
    """Whether what a load in a loop reads may be read in another iteration than its own: nothing in
    the loop may write it (where iterations are programs that nothing orders: nothing that its own
    program does before). Where the loop looks at what others write, nothing in the kernel may, for
    that is what they run; and whoever looks with acquire may be told that something else has been
    written.
    """
    array = argument_of(op.array)
    if array is None:
        return False
    alike, watched = (
        overlapping(array, overlaps),
        [other for other in loop.walk() if tile.watches(other)],
    )
    if any(other.semantics is None or other.semantics.data != "relaxed" for other in watched):
        return False
    if op.parent_op() is loop and of_programs(loop):
        ops = [
            inner
            for each in body_of(loop).ops
            if each.is_before_in_block(op)
            for inner in each.walk()
        ]
    else:
        ops = (kernel_around(loop) if watched else loop).walk()
    return not any(
        origin(other.pointers if isinstance(other, POINTERS) else other.array) in (*alike, None)
        for other in ops
        if isinstance(other, WRITES)
    )


def written_before(op: tile.Load, overlaps: Sequence[tuple[int, ...]]) -> bool:
    """Whether its own program may have written what a load of an argument reads: before it, or in
    an iteration before.
    """
    alike, ops, loops = (
        overlapping(argument_of(op.array), overlaps),
        list(kernel_around(op).walk()),
        set(loops_of(op)),
    )
    at = ops.index(op)
    earlier = [
        other
        for i, other in enumerate(ops)
        if isinstance(other, WRITES) and (i < at or loops.intersection(loops_of(other)))
    ]
    return any(
        origin(other.pointers if isinstance(other, POINTERS) else other.array) in (*alike, None)
        for other in earlier
    )


def kernel_around(op: Operation) -> Operation:
    while not isinstance(op, tile.Kernel):
        op = op.parent_op()
    return op


def of_programs(loop: Operation) -> bool:
    """Whether iterations are programs that a block takes in turn, and that do not wait for one
    another: what two of them do to the user's arrays nothing orders in any launch.
    """
    first = (
        loop.lb
        if isinstance(loop, scf.ForOp)
        else loop.arguments[0]
        if isinstance(loop, scf.WhileOp) and loop.arguments
        else None
    )
    taken = (
        first is not None
        and isinstance(first.owner, Identity)
        and first.owner.what.data == "cluster"
    )
    taken = taken and (
        isinstance(loop.step.owner, Identity)
        if isinstance(loop, scf.ForOp)
        else any(isinstance(op, NextProgram) for op in body_of(loop).ops)
    )
    return taken and not any(tile.watches(op) for op in loop.walk())


def addresses(value: SSAValue) -> bool:
    """Whether a value says where another load is: whoever makes copies run ahead asks for it as
    early as they need it.
    """
    return any(
        isinstance(op := use.operation, (tile.Load, tile.View))
        and use.index > 0
        or isinstance(op, (*POINTWISE, *VIEWS))
        and addresses(op.results[0])
        for use in value.uses
    )


@dataclass(frozen=True)
class Access:
    """The shape of one access to global memory, all that a choice of layout needs."""

    shape: tuple[int, ...]
    bits: int
    order: tuple[int, ...]  # the tile's axes, fastest in memory first
    vector: int

    @property
    def bytes(self) -> int:
        n = self.bits // 8
        for extent in self.shape:
            n *= extent
        return n

    @staticmethod
    def of(op: Operation, ranges: Ranges, ragged: bool = False) -> Access:
        """ragged: the emitter takes apart vectors at a ragged end, so that the array's extent need
        not be a multiple of them.
        """
        t = tile_of(op)
        order, vector = (
            _of_block(op, ranges, ragged) if isinstance(op, BLOCKS) else _of_pointers(op, ranges)
        )
        return Access(t.extents, bits(element_of(t)), order, max(1, vector))

    def layout(
        self,
        warps: int,
        reduced: tuple[int, ...] = (),
        share: bool = True,
        cluster_split: tuple[int, int] = (1, 0),
    ) -> Layout:
        """The coalesced layout: vectors along the fastest axis, then lanes. Warps stay off the axes
        that will be `reduced`, where the others have room. `share`: shorter vectors rather than
        idle threads. `spread`: as in a Plan.
        """
        blocks, extent = cluster_split
        if blocks > 1:
            axis = next((a for a, n in enumerate(self.shape) if n == extent), None)
            mine = (
                self.shape
                if axis is None
                else tuple(n // blocks if a == axis else n for a, n in enumerate(self.shape))
            )
            return (
                replace(self, shape=mine).layout(warps, reduced, share).across_blocks(blocks, axis)
            )
        vector = self.vector
        if share:
            vector = min(
                vector,
                max(32 // self.bits, _floor_power(self.bytes * 8 // self.bits // (32 * warps))),
            )
        return coalesced(self.shape, vector, warps, self.order, reduced)

    def fits(self, layout: Layout, warps: int) -> bool:
        """Whether the access is as good as it need be in a layout chosen for something else."""
        if self.bytes <= SMALL:
            return True
        mine, best = self._run(layout), self._run(self.layout(warps))
        return mine >= min(best, SECTOR * 8 // self.bits)

    def _run(self, layout: Layout) -> int:
        """Neighbouring elements that the lanes of a warp touch together, in two accesses at most:
        each takes its sectors from the cache again.
        """
        axis = self.order[0]
        run = layout.vector(axis, min(max(1, 128 // self.bits), 2 * self.vector))
        for digit in sorted(layout.digits(axis, ["lanes"]), key=lambda d: d.stride):
            if digit.stride == run:
                run *= digit.extent
        return min(run, self.shape[axis])


def coalesced(
    shape: tuple[int, ...],
    vector: int,
    warps: int,
    order: tuple[int, ...],
    reduced: tuple[int, ...] = (),
) -> Layout:
    """`blocked`, with the warps on axes that are not reduced as far as those have room for them."""
    if not shape or not reduced:
        return blocked(shape, vector, warps, order)
    units, left = [1] * len(shape), warps
    for axis in sorted((a for a in range(len(shape)) if a not in reduced), key=lambda a: -shape[a]):
        room = -(-shape[axis] // (vector if axis == order[0] else 1))
        while left % 2 == 0 and 2 * units[axis] <= room:
            units[axis], left = 2 * units[axis], left // 2
    for axis in sorted(reduced, key=order.index):
        while left % 2 == 0:
            units[axis] *= 2
            if _idle(blocked(shape, vector, tuple(units), order), axis):
                units[axis] //= 2
                break
            left //= 2
    found = blocked(shape, vector, tuple(units), order)
    return replace(found, warps=(*found.warps, copies(left))) if left > 1 else found


def both_ways(
    shape: tuple[int, ...], rows: tuple[int, int], columns: tuple[int, int], bits: int, warps: int
) -> Layout:
    """For a tile that is read along one axis and written along another: each thread holds blocks of
    a vector of the one by a vector of the other, so that nothing moves between threads.

    rows, columns: (axis, elements of a vector). Where the tile has too few blocks for all threads,
    shorter vectors; eight lanes read what lies together, four write it.
    """
    (a, n), (b, m) = rows, columns
    while prod(shape) // (n * m) < 32 * warps and max(n, m) > max(1, 32 // bits):
        n, m = (n // 2, m) if n >= m else (n, m // 2)
    vector = {a: n, b: m}
    cells = tuple(extent // vector.get(axis, 1) for axis, extent in enumerate(shape))
    lanes = min(8, _floor_power(cells[a]))
    others = [axis for axis in reversed(range(len(shape))) if axis not in (a, b)]
    coarse = blocked(
        cells,
        1,
        warps,
        (a, b, *others),
        tuple(
            lanes if axis == a else 32 // lanes if axis == b else 1 for axis in range(len(shape))
        ),
    )

    def wider(digits):
        return tuple(
            d if d.axis < 0 else replace(d, stride=d.stride * vector.get(d.axis, 1)) for d in digits
        )

    return Layout(
        shape,
        (Digit(n, a, 1), Digit(m, b, 1), *wider(coarse.registers)),
        wider(coarse.lanes),
        wider(coarse.warps),
    )


def vectors_first(layout: Layout, axis: int) -> Layout:
    """The same elements in the same threads, neighbours along an axis in neighbouring registers."""
    near = [d for d in layout.registers if d.axis == axis and d.stride == 1]
    return replace(layout, registers=(*near, *(d for d in layout.registers if d not in near)))


def in_runs(layout: Layout, axis: int) -> Layout:
    """The layout with each warp's share of an axis in one piece, below the warps: what a scan along
    it needs least of others for.
    """

    def mine(digits):
        return sorted((d for d in digits if d.axis == axis), key=lambda d: d.stride)

    registers, lanes = mine(layout.registers), mine(layout.lanes)
    low = [d for d in registers if not lanes or d.stride < lanes[0].stride]
    moved, step = {}, 1
    for d in (*low, *lanes, *(d for d in registers if d not in low), *mine(layout.warps)):
        moved[d] = replace(d, stride=step)
        step *= d.extent

    def here(digits):
        return tuple(moved.get(d, d) for d in digits)

    return replace(
        layout, registers=here(layout.registers), lanes=here(layout.lanes), warps=here(layout.warps)
    )


def _idle(layout: Layout, axis: int) -> bool:
    """Whether a warp holds nothing but padding along an axis."""
    return any(at >= layout.shape[axis] for at in layout.offsets("warps")[:, axis].tolist())


def _floor_power(n: int) -> int:
    return 1 << n.bit_length() - 1 if n > 0 else 1


def _of_block(op: Operation, ranges: Ranges, ragged: bool = False) -> tuple[tuple[int, ...], int]:
    facts, extents = op.array.type.facts, op.extents.get_values()
    kept = [axis for axis, n in enumerate(extents) if n >= 0]
    position = {axis: i for i, axis in enumerate(kept)}

    def known(axis):
        return facts.strides[axis].exact

    fast = next((a for a in reversed(kept) if known(a) == 1 and extents[a] > 1), None) or next(
        (a for a in reversed(kept) if known(a) == 1), None
    )
    first = kept[-1] if fast is None else fast
    rest = [a for a in reversed(kept) if a != first]
    if all(known(a) is not None for a in rest):
        rest.sort(key=lambda a: abs(known(a)))
    order = tuple(position[a] for a in (first, *rest))
    if fast is None:
        return order, 1
    element = bits(op.array.type.element) // 8
    most = max(1, 16 // element)
    if isinstance(op.offsets[fast].type, TileType):
        return order, 1
    divisors = [
        facts.align // element if facts.align % element == 0 else 1,
        ranges.of(op.offsets[fast]).divisor,
        extents[fast] & -extents[fast],
    ]
    if not ragged or op.mask is not None or isinstance(op, tile.AtomicBlock):
        divisors.append(_divisor(facts.shape[fast]))
    divisors += [_divisor(facts.strides[a]) for a in range(len(extents)) if a != fast]
    return order, _floor_power(gcd(most, *divisors))


def _divisor(fact) -> int:
    return fact.exact if fact.exact is not None else fact.divisor


def _of_pointers(op: Operation, ranges: Ranges) -> tuple[tuple[int, ...], int]:
    t = tile_of(op)
    element = bits(element_of(t)) // 8
    along = [contiguity(op.pointers, axis, ranges) for axis in range(t.rank)]
    fast = max(range(t.rank), key=lambda a: (along[a].run, a))
    order = (fast, *(a for a in reversed(range(t.rank)) if a != fast))
    vector = gcd(along[fast].run, along[fast].divisor, max(1, 16 // element), t.extents[fast])
    if op.mask is not None:
        vector = gcd(vector, contiguity(op.mask, fast, ranges).same)
    return order, _floor_power(vector)
