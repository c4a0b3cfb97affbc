"""How a warp should touch a block of global memory: which axis runs fastest, how many neighbours a
thread takes at once.

Everything here is a question about one load, store or atomic (all have the same operands):
`Access.of(op, ranges)`.

    axis      the axis of the tile whose neighbours are neighbours in memory
    vector    elements one thread may move in one access, 16 bytes at most: what alignment, strides,
              offsets, extents and masks all allow
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.axis_info import contiguity
from tkc.ir.digits import Digit, copies
from tkc.ir.layout import Layout, blocked
from tkc.ir.ranges import Ranges
from tkc.ir.target import SECTOR
from tkc.ir.types import Fact, TileType, bits, element_of
from tkc.ir.values import array_type
from tkc.passes.analysis.values import (
    WRITES,
    BlockAccess,
    PointerAccess,
    computed_of,
)

# Bytes of a tile that caches hold in whatever order they are requested.
CACHED_TILE_BYTES = 4096
# Accesses to the elements of a vector, one after the other, that are as good as one: of words whose
# lines are in the cache, more than that take fewer turns than a way through shared memory.
MAX_ACCESSES, MAX_ACCESSES_OF_CACHED = 2, 4
# Contiguous bytes that make an access worth its sector.
MIN_CONTIGUOUS_BYTES = 16


def moved_value(op: Operation) -> SSAValue:
    """What an access loads, or what it stores."""
    if isinstance(op, (tile.Load, tile.LoadPointers)):
        return op.results[0]
    assert isinstance(op, WRITES)
    return op.value


def tile_of(op: Operation) -> TileType | None:
    """The type of what an access moves, None where that is a scalar."""
    t = moved_value(op).type
    return t if isinstance(t, TileType) else None


def bytes_of(op: Operation) -> int:
    """The bytes of the tile that an access moves. Raises TypeError where it moves a scalar."""
    t = tile_of(op)
    if t is None:
        raise TypeError(f"{op.name} moves no tile")
    return t.bytes


def addresses(value: SSAValue) -> bool:
    """Whether a value says where another load is: copies that run ahead need it as early."""
    uses = (use for v in computed_of(value) for use in v.uses)
    return any(isinstance(use.operation, (tile.Load, tile.View)) and use.index > 0 for use in uses)


def may_run_ahead(op: tile.Load) -> bool:
    """Whether a load can be made before its iteration of a loop: of a block that says of itself
    what there is of it, at a place that is known, which names no place itself.
    """
    gathers = any(isinstance(offset.type, TileType) for offset in op.offsets)
    return op.mask is None and not gathers and not addresses(op.result)


@dataclass(frozen=True)
class Access:
    """The shape of one access to global memory, all that a choice of layout needs."""

    shape: tuple[int, ...]
    bits: int
    order: tuple[int, ...]  # the tile's axes, fastest in memory first
    vector: int

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return self.bits // 8 * prod(self.shape)

    @staticmethod
    def of(op: Operation, ranges: Ranges, ragged: bool = False) -> Access:
        """The access of a load, store or atomic.

        ragged: the emitter splits vectors at a ragged end, so that the array's extent need not be a
        multiple of them.
        """
        t = tile_of(op)
        assert t is not None
        if isinstance(op, BlockAccess):
            order, vector = _of_block(op, ranges, ragged)
        else:
            order, vector = _of_pointers(op, t, ranges)
        return Access(t.extents, bits(element_of(t)), order, max(1, vector))

    def layout(
        self,
        warps: int,
        reduced: tuple[int, ...] = (),
        share: bool = True,
        cluster_split: tuple[int, int] = (1, 0),
    ) -> Layout:
        """The coalesced layout: vectors along the fastest axis, then lanes.

        Warps stay off the axes that will be `reduced`, where the others have room. `share`: shorter
        vectors rather than idle threads. `cluster_split`: as in a Plan.
        """
        blocks, extent = cluster_split
        if blocks > 1:
            axis = self.shape.index(extent) if extent in self.shape else None
            part = tuple(n // blocks if a == axis else n for a, n in enumerate(self.shape))
            own = replace(self, shape=part)
            found = own.layout(warps, reduced, share)
            # of a byte more elements make a vector than the threads of a block can be dealt
            while axis is not None and own.vector > 1 and found.padded_shape[axis] != part[axis]:
                own = replace(own, vector=own.vector // 2)
                found = own.layout(warps, reduced, share)
            return found.across_blocks(blocks, axis)
        vector = self.vector
        if share:
            per_thread = self.bytes * 8 // self.bits // (32 * warps)
            vector = min(vector, max(32 // self.bits, _floor_power(per_thread)))
        # warps that read parts of the same sectors take turns in the L1 cache
        of_lanes = 8 * SECTOR // self.bits if self.bytes > CACHED_TILE_BYTES else 1
        return coalesced(self.shape, vector, warps, self.order, reduced, of_lanes)

    def fits(self, layout: Layout, warps: int, cached: bool = False) -> bool:
        """Whether the access is as good as it need be in a layout chosen for something else.
        cached: its lines are there for another access of the program.
        """
        if self.bytes <= CACHED_TILE_BYTES:
            return True
        accesses = MAX_ACCESSES_OF_CACHED if cached and self.bits >= 32 else MAX_ACCESSES
        given, best = self._run(layout, accesses), self._run(self.layout(warps), accesses)
        return given >= min(best, MIN_CONTIGUOUS_BYTES * 8 // self.bits)

    def _run(self, layout: Layout, accesses: int) -> int:
        """Neighbouring elements that the lanes of a warp touch together, in so many accesses at
        most: each takes its sectors from the cache again.
        """
        axis = self.order[0]
        run = layout.vector(axis, min(max(1, 128 // self.bits), accesses * self.vector))
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
    of_lanes: int = 1,
) -> Layout:
    """`blocked`, with the warps on axes that are not reduced as far as those have room for them.
    of_lanes: neighbours along the fastest axis that the lanes of a warp keep together.
    """
    if not shape or not reduced:
        return blocked(shape, vector, warps, order)
    units, left = [1] * len(shape), warps
    kept = [a for a in range(len(shape)) if a not in reduced]
    for axis in sorted(kept, key=lambda a: -shape[a]):
        room = -(-shape[axis] // (max(vector, of_lanes) if axis == order[0] else 1))
        while left % 2 == 0 and room % (2 * units[axis]) == 0:
            units[axis] *= 2
            left //= 2
    for axis in sorted(reduced, key=order.index):
        while left % 2 == 0:
            units[axis] *= 2
            if _is_idle(blocked(shape, vector, tuple(units), order), axis):
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
    shorter vectors; eight lanes read what is contiguous, four write it.
    """
    (a, n), (b, m) = rows, columns
    while prod(shape) // (n * m) < 32 * warps and max(n, m) > max(1, 32 // bits):
        n, m = (n // 2, m) if n >= m else (n, m // 2)
    vector = {a: n, b: m}
    cells = tuple(extent // vector.get(axis, 1) for axis, extent in enumerate(shape))
    lanes = {a: min(8, _floor_power(cells[a]))}
    lanes[b] = 32 // lanes[a]
    others = [axis for axis in reversed(range(len(shape))) if axis not in (a, b)]
    lanes_per_axis = tuple(lanes.get(axis, 1) for axis in range(len(shape)))
    coarse = blocked(cells, 1, warps, (a, b, *others), lanes_per_axis)

    def wider(digits: Iterable[Digit]) -> tuple[Digit, ...]:
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


def in_runs(layout: Layout, axis: int, is_fast: bool) -> Layout:
    """The layout with each warp's share of an axis in one piece, below the warps: a scan along it
    then needs the least of other warps. Likewise each thread's share, unless the axis is_fast:
    neighbours along it are neighbours in memory, which the lanes of a warp then have together.
    """

    def along(digits: Iterable[Digit]) -> list[Digit]:
        return sorted((d for d in digits if d.axis == axis), key=lambda d: d.stride)

    registers, lanes = along(layout.registers), along(layout.lanes)
    low = [d for d in registers if not lanes or not is_fast or d.stride < lanes[0].stride]
    moved, step = {}, 1
    for d in (*low, *lanes, *(d for d in registers if d not in low), *along(layout.warps)):
        moved[d] = replace(d, stride=step)
        step *= d.extent

    def renumbered(digits: Iterable[Digit]) -> tuple[Digit, ...]:
        return tuple(moved.get(d, d) for d in digits)

    return replace(
        layout,
        registers=renumbered(layout.registers),
        lanes=renumbered(layout.lanes),
        warps=renumbered(layout.warps),
    )


def _is_idle(layout: Layout, axis: int) -> bool:
    """Whether a warp holds nothing but padding along an axis."""
    return any(at >= layout.shape[axis] for at in layout.offsets("warps")[:, axis].tolist())


def _floor_power(n: int) -> int:
    return 1 << n.bit_length() - 1 if n > 0 else 1


def _of_block(op: BlockAccess, ranges: Ranges, ragged: bool) -> tuple[tuple[int, ...], int]:
    """The order of a block's axes in memory, fastest first, and the elements of a vector."""
    strides, extents = array_type(op.array).facts.strides, op.extents.get_values()
    kept = [axis for axis, n in enumerate(extents) if n >= 0]
    dense = [a for a in reversed(kept) if strides[a].exact == 1]
    fast = next((a for a in dense if extents[a] > 1), dense[0] if dense else None)
    axes = _by_stride(kept, kept[-1] if fast is None else fast, [s.exact for s in strides])
    order = tuple(map(kept.index, axes))
    if fast is None or isinstance(op.offsets[fast].type, TileType):
        return order, 1
    return order, _vector_of_block(op, fast, ranges, ragged)


def _by_stride(axes: list[int], first: int, strides: Sequence[int | None]) -> list[int]:
    """One axis, then the others: by their strides where all are known, else the last first."""
    rest = [a for a in reversed(axes) if a != first]
    known = {a: abs(stride) for a in rest if (stride := strides[a]) is not None}
    return [first, *(sorted(rest, key=known.__getitem__) if len(known) == len(rest) else rest)]


def _vector_of_block(op: BlockAccess, fast: int, ranges: Ranges, ragged: bool) -> int:
    """Elements that one thread may move at once along the array's dense axis `fast`."""
    array, extents = array_type(op.array), op.extents.get_values()
    facts, element = array.facts, bits(array.element) // 8
    offset = ranges.of(op.offsets[fast])
    assert offset is not None
    divisors = [
        facts.align // element if facts.align % element == 0 else 1,
        offset.divisor,
        extents[fast] & -extents[fast],
    ]
    if not ragged or isinstance(op, tile.AtomicBlock) or op.mask is not None:
        divisors.append(_divisor(facts.shape[fast]))
    divisors += [_divisor(facts.strides[a]) for a in range(len(extents)) if a != fast]
    return _floor_power(gcd(max(1, 16 // element), *divisors))


def _divisor(fact: Fact) -> int:
    return fact.exact if fact.exact is not None else fact.divisor


def _of_pointers(op: Operation, t: TileType, ranges: Ranges) -> tuple[tuple[int, ...], int]:
    """The order of the axes of a tile of pointers in memory, and the elements of a vector."""
    assert isinstance(op, PointerAccess)
    element = bits(element_of(t)) // 8
    along = [contiguity(op.pointers, axis, ranges) for axis in range(t.rank)]
    fast = max(range(t.rank), key=lambda a: (along[a].run, a))
    order = (fast, *(a for a in reversed(range(t.rank)) if a != fast))
    vector = gcd(along[fast].run, along[fast].divisor, max(1, 16 // element), t.extents[fast])
    if op.mask is not None:
        vector = gcd(vector, contiguity(op.mask, fast, ranges).same)
    return order, _floor_power(vector)
