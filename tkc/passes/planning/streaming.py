"""Plans of programs without dots, whose time is that of moving bytes: how many warps, and whether a
cluster shares a program.

    registers a thread = 32-bit registers of all tiles that are live together / threads

The fewest warps that keep this within MAX_TILE_REGISTERS: a thread then has several vectors in
flight, a barrier waits for few warps, and several blocks fit a multiprocessor, so that one computes
while another waits for memory. Less than four warps only where a thread's share of the longest tile
in memory would be less than a vector, and the same instructions then move more; where fewer lines
are sorted, each in one warp; or where threads meet in a loop for what they need when they meet
again, and fewer take less (planning/meetings.py). Where a program would fill
a multiprocessor, programs *stream*: a block of 16 warps takes one after the other, and issues the
copies of the next row as soon as it has this one in registers (a ring in shared memory, `ahead`).
Its programs come from the dynamic tile scheduler, since multiprocessors that wait for memory are
not equally quick. `persistent=True` or False decides otherwise.

In loops with loop-carried sums (a norm's backward pass) threads meet at a barrier in every
iteration: 8 warps at most, a cluster of such blocks for longer rows, and as many blocks on a
multiprocessor as their registers allow. Loops then read ahead only as far as that leaves two. Where
a block fills a multiprocessor anyway and threads can copy what its loop reads, it has as many warps
as hold a row, and a ring in shared memory has the next iterations' rows on their way.

A row too long for one block is split over the blocks of a cluster, if the program has loads,
stores, element-wise operations and reductions alone. Each block reads its part once, and a
reduction combines the parts through distributed shared memory.

Of rows for which such blocks would fill a multiprocessor, and beside which nothing long is alike in
all programs, blocks of few warps keep their part in shared memory and compute it in parts
(`row_parts`, fit-rows): several blocks then share a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.plan import LoadPlan
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import counted_slice, defining_slice, is_inside, loops_of
from tkc.ir.target import LINE
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import ancestor, block_of, holds, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.access import Access, moved_value, tile_of
from tkc.passes.analysis.alias import Overlaps, is_folded, may_meet, unchanged
from tkc.passes.analysis.expressions import expression
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.parts import size_of_parts
from tkc.passes.analysis.polynomials import least_distance
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.values import LEAVES, LOADS, POINTWISE, VIEWS, WRITES, BlockAccess
from tkc.passes.layouts.movers import crosses
from tkc.passes.planning.meetings import fewest_that_meet
from tkc.passes.planning.pressure import fits, pressure, room
from tkc.passes.planning.program import Program

WARP_COUNTS = 4, 8, 16, 32  # of a block
FEW_WARPS = 1, 2  # of a block whose tiles are less than a vector for each thread of more
CLUSTER_SIZES = 2, 4, 8  # 16 by keyword alone: not every device has room for one
STREAMING_WARPS = 16  # of a block through which programs stream
HELD_BYTES = 32768  # of a program, in a block whose shared memory holds them, if that is enough
MAX_BYTES_IN_FLIGHT = 65536  # of a program, that a multiprocessor then has
# of the largest tile, a thread: half without reductions; twice with a sort, which compares least
# what a thread holds, or with a register transpose
MAX_TILE_ELEMENTS = 32
# registers of tiles, a thread
MAX_TILE_REGISTERS = 72
MAX_LOOP_REGISTERS = 100  # in a loop
MAX_PART_REGISTERS = 64  # in a loop over parts of rows in shared memory
MAX_FEW_WARPS_REGISTERS = 32  # of less than four warps, which hide little latency
MAX_CRAMPED_REGISTERS = 104  # in a loop for which no block is large enough
MAX_CLUSTER_REGISTERS = 128  # of a block of a cluster
ROW_OPERATIONS = (
    tile.Load,
    tile.Store,
    tile.Reduce,
    tile.ProgramId,
    tile.NumPrograms,
    tile.Dim,
    tile.View,
    tile.Assume,
    tile.Return,
    tile.Kernel,
    scf.ForOp,
    scf.YieldOp,
    ew.Elementwise,
    *LEAVES,
    *VIEWS,
    *POINTWISE,
)
MAX_VECTOR_ELEMENTS = 16  # of bytes
VECTOR_BYTES = 16
RESERVED_SHARED_BYTES = 2048  # for reductions
L2_FETCH_BYTES = 256  # that the L2 cache requests from memory at once, at most
MIN_ROW_ELEMENTS = 1024  # of a row that blocks of a cluster could share
CLUSTER_REDUCTIONS = ("sum", "prod", "max", "min", "fmax", "fmin", "any", "all", "xor")


@dataclass(frozen=True)
class _Sizes:
    """What decides how many warps a program without dots has.

    words: 32-bit registers of all tiles that are live together. largest: elements of the largest
    tile. moved: bytes of the largest tile that is loaded or stored. sorted_lines: the fewest of a
    tile that is sorted. looped: there are loops. max_registers: of tiles, a thread. max_elements:
    of the largest tile, a thread.
    """

    words: int
    largest: int
    moved: int
    sorted_lines: int
    looped: bool
    max_registers: int
    max_elements: int

    @staticmethod
    def of(kernel: tile.Kernel, largest: int, context: PassContext) -> _Sizes:
        ops = list(kernel.walk())
        looped = any(isinstance(op, scf.ForOp) for op in ops)
        transposes = context.options.register_transpose is not False and _transposing(kernel)
        if transposes or any(isinstance(op, tile.Sort) for op in ops):
            elements = 2 * MAX_TILE_ELEMENTS
        elif any(isinstance(op, (tile.Reduce, tile.Scan)) for op in ops):
            elements = MAX_TILE_ELEMENTS
        else:
            elements = MAX_TILE_ELEMENTS // 2
        registers = MAX_LOOP_REGISTERS if looped else MAX_TILE_REGISTERS
        moved = max((_moved_bytes(op) for op in ops if _moves_tile(op)), default=0)
        sorts = [tile_type(op.arg).extents for op in ops if isinstance(op, tile.Sort)]
        lines = min((prod(extents[:-1]) for extents in sorts), default=FEW_WARPS[-1] + 1)
        return _Sizes(pressure(kernel), largest, moved, lines, looped, registers, elements)

    @property
    def warp_counts(self) -> tuple[int, ...]:
        """Of a block: threads that meet in every iteration are fewer."""
        few = tuple(w for w in FEW_WARPS if self._is_short_of(w) or self.sorted_lines <= w)
        return few + (WARP_COUNTS[:-1] if self.looped else WARP_COUNTS)

    def _is_short_of(self, warps: int) -> bool:
        """Whether threads of more warps than these would move less than a vector each, and threads
        of these hold little.
        """
        is_short = self.moved <= 32 * warps * VECTOR_BYTES
        return is_short and self.registers(warps) <= MAX_FEW_WARPS_REGISTERS

    def registers(self, warps: int, blocks: int = 1) -> int:
        """Of tiles, a thread of so many warps in each of so many blocks."""
        return -(-self.words // (32 * warps * blocks))

    def parts(self, warps: int, blocks: int, extent: int) -> int:
        """Parts of rows that so many threads hold with room for other blocks."""
        parts = 2
        while self.registers(warps, blocks * parts) > MAX_PART_REGISTERS and parts < extent:
            parts *= 2
        return parts

    def least_warps(self) -> int | None:
        """The fewest that hold all tiles."""
        for warps in self.warp_counts:
            if self.has_room(warps) and self.largest <= 32 * warps * self.max_elements:
                return warps
        return None

    def has_room(self, warps: int) -> bool:
        """Whether the registers of so many warps hold all tiles."""
        return self.registers(warps) <= self.max_registers


def _moved_bytes(op: Operation) -> int:
    """Of a tile that is loaded or stored, or of one of the parts for which alone it is loaded."""
    value = moved_value(op)
    return size_of_parts(value) * bits(tile_type(value).element) // 8


def _moves_tile(op: Operation) -> bool:
    """Whether an operation loads or stores a tile."""
    return isinstance(op, (*LOADS, *WRITES)) and tile_of(op) is not None


@dataclass(frozen=True)
class Blocks:
    """Of a program without dots. warps of a block; spread: blocks of a cluster that share a program
    and the extent of the rows that they split; streams: whether programs stream through blocks;
    parts: in which rows are computed that stay in shared memory.
    """

    warps: int
    spread: tuple[int, int] = (1, 0)
    streams: bool = False
    parts: int = 1


def choose(
    kernel: tile.Kernel,
    loads: Sequence[tuple[Operation, LoadPlan]],
    largest: int,
    context: PassContext,
    say: Callable[[str], None],
) -> Blocks:
    """The blocks of a program without dots; `largest`: elements of its largest tile. The user's
    num_warps, num_ctas and row_parts narrow the choice.
    """
    sizes, asked = _Sizes.of(kernel, largest, context), context.options.num_warps
    fit = _fit(kernel, sizes, context, say)
    clusters = context.target.clusters
    if held := _holding(kernel, loads, sizes, fit, context):
        say(
            f"{held.warps} warps in each of {held.spread[0]} blocks, in whose shared memory a"
            f" program's rows stay: they are computed in {held.parts} parts"
        )
        return held
    if clusters and (found := _streaming(kernel, loads, sizes, fit, context)):
        blocks, extent, stage = found
        say(_streaming_sentence(blocks, extent, stage))
        return Blocks(STREAMING_WARPS, (blocks, extent) if blocks > 1 else (1, 0), True)
    if fit and not fits(kernel, fit, 1, context):
        fit = None
    if (
        clusters
        and _needs_cluster(sizes, fit, loads, context)
        and (extent := row_of(kernel, context.overlaps))
        and (divided := _cluster_of(kernel, loads, sizes, extent, context))
    ):
        warps, blocks = divided
        say(
            f"{warps} warps in each of {blocks} blocks of a cluster, which split rows of {extent}:"
            f" {sizes.registers(warps, blocks)} registers of tiles a thread,"
            f" {sizes.registers(warps)} with one block"
        )
        return Blocks(warps, (blocks, extent))
    warps = asked or fit or _largest_block(sizes)
    said = ", as asked" if asked else ""
    say(f"{warps} warps{said}: {sizes.registers(warps)} registers of tiles a thread")
    return Blocks(warps)


def _fit(
    kernel: tile.Kernel, sizes: _Sizes, context: PassContext, say: Callable[[str], None]
) -> int | None:
    """Warps that hold all tiles: the fewest that the rules allow, or fewer that take less."""
    fit = sizes.least_warps()
    if fit is None or context.options.num_warps:
        return fit
    fewer = [w for w in (*FEW_WARPS, *WARP_COUNTS) if w < fit and sizes.has_room(w)]
    return fewest_that_meet(kernel, fewer, fit, context, say)


def _holding(
    kernel: tile.Kernel,
    loads: Sequence[tuple[Operation, LoadPlan]],
    sizes: _Sizes,
    fit: int | None,
    context: PassContext,
) -> Blocks | None:
    """The blocks in whose shared memory a program's rows stay, where registers hold them so that
    they fill a multiprocessor: several blocks then share it, of which some wait for memory while
    others compute. What is long and alike in all programs would be read again with each part.
    """
    options, extent = context.options, row_of(kernel, context.overlaps)
    if not extent or not _may_hold(sizes, fit, context):
        return None
    vector = _longest_vector(loads)
    sharing = (options.num_ctas,) if options.num_ctas > 1 else (1, *CLUSTER_SIZES)
    for most, blocks in product((HELD_BYTES, 2 * HELD_BYTES), sharing):
        shares = Shares.of(kernel, loads, WARP_COUNTS[1], blocks)
        warps = options.num_warps or (WARP_COUNTS[0] if most == HELD_BYTES else WARP_COUNTS[1])
        parts = options.row_parts or sizes.parts(warps, blocks, extent)
        fitting = shares.stage <= most or options.row_parts is not None
        if fitting and shares.are_own and _dealt(kernel, extent, blocks, warps, vector, parts):
            return Blocks(warps, (blocks, extent) if blocks > 1 else (1, 0), parts=parts)
    return None


def _may_hold(sizes: _Sizes, fit: int | None, context: PassContext) -> bool:
    """Whether a program's rows may stay in shared memory: as asked, or because registers hold them
    in blocks that fill a multiprocessor, and nothing else is asked for.
    """
    options = context.options
    if sizes.looped or not context.target.clusters or options.row_parts is not None:
        return not sizes.looped and context.target.clusters and options.row_parts != 1
    free = options.num_warps is None and options.num_ctas == 1 and options.persistent is not True
    return free and fit in (None, WARP_COUNTS[-1])


def _largest_block(sizes: _Sizes) -> int:
    """Warps of a block for a program that none is large enough for."""
    cramped = sizes.looped and sizes.registers(WARP_COUNTS[-2]) <= MAX_CRAMPED_REGISTERS
    return WARP_COUNTS[-2] if cramped else WARP_COUNTS[-1]


def _may_stream(sizes: _Sizes, fit: int | None, context: PassContext) -> bool:
    """Whether programs fill a multiprocessor, or more, and nothing else is asked for."""
    options = context.options
    return (
        options.num_warps in (None, STREAMING_WARPS)
        and options.num_ctas == 1
        and options.persistent is not False
        and not sizes.looped
        and fit in (None, WARP_COUNTS[-1])
    )


def _streaming(
    kernel: tile.Kernel,
    loads: Sequence[tuple[Operation, LoadPlan]],
    sizes: _Sizes,
    fit: int | None,
    context: PassContext,
) -> tuple[int, int, int] | None:
    """Blocks through which programs stream, the extent of the rows that these split, and bytes of
    each program; None where programs do not stream.
    """
    if not _may_stream(sizes, fit, context):
        return None
    if not (extent := row_of(kernel, context.overlaps)):
        return None
    for blocks in CLUSTER_SIZES if fit is None else (1,):
        if stage := _streamed_bytes(kernel, loads, sizes, extent, blocks):
            return blocks, extent, stage
    return None


def _streamed_bytes(
    kernel: tile.Kernel,
    loads: Sequence[tuple[Operation, LoadPlan]],
    sizes: _Sizes,
    extent: int,
    blocks: int,
) -> int:
    """Bytes of each program in a block, where programs stream through so many of them; else 0."""
    if sizes.words // (32 * STREAMING_WARPS * blocks) > MAX_CLUSTER_REGISTERS:
        return 0
    if not _dealt(kernel, extent, blocks, STREAMING_WARPS, _longest_vector(loads)):
        return 0
    found = Shares.of(kernel, loads, STREAMING_WARPS, blocks)
    return found.stage if found.streams else 0


def _streaming_sentence(blocks: int, extent: int, stage: int) -> str:
    shared = f" in each of {blocks} blocks of a cluster, which split rows of {extent}"
    return (
        f"{STREAMING_WARPS} warps{shared * (blocks > 1)}, through which programs stream: {stage}"
        " bytes of each fill a multiprocessor"
    )


def _needs_cluster(
    sizes: _Sizes,
    fit: int | None,
    loads: Sequence[tuple[Operation, LoadPlan]],
    context: PassContext,
) -> bool:
    """Whether a program is too much for one block, or is to be split over several: threads that
    meet in every iteration are fewer, unless the next iterations' rows are on their way meanwhile.
    """
    asked = context.options.num_warps
    if context.options.num_ctas > 1:
        return True
    if asked:
        return sizes.registers(asked) > MAX_CLUSTER_REGISTERS
    if fit is None or not sizes.looped or fit <= WARP_COUNTS[1]:
        return fit is None
    long = {
        op
        for op, _ in loads
        if isinstance(op.parent_op(), scf.ForOp)
        and isinstance(op.results[0].type, TileType)
        and tile_type(op.results[0]).size >= MIN_ROW_ELEMENTS
    }
    rings = through_rings(loads, 32 * fit, context.overlaps).values()
    return not long or not long.issubset({op for found in rings for op in found})


def _cluster_of(
    kernel: tile.Kernel,
    loads: Sequence[tuple[Operation, LoadPlan]],
    sizes: _Sizes,
    extent: int,
    context: PassContext,
) -> tuple[int, int] | None:
    """Warps of a block, and blocks of a cluster that split rows; None where no cluster divides
    them.
    """
    asked, ctas = context.options.num_warps, context.options.num_ctas
    warps = WARP_COUNTS[:-1] if sizes.looped else WARP_COUNTS[1:]
    possible = [
        (w, b)
        for w in ((asked,) if asked else warps)
        for b in ((ctas,) if ctas > 1 else CLUSTER_SIZES)
        if _dealt(kernel, extent, b, w, 8)
    ]
    limit = sizes.max_registers
    if not sizes.looped:
        narrow = has_narrow_loads(loads)
        limit = MAX_CLUSTER_REGISTERS // 2 if narrow else MAX_CLUSTER_REGISTERS
    good = [(w, b) for w, b in possible if sizes.registers(w, b) <= limit] or possible[-1:]
    if not good:
        return None
    if sizes.looped:  # few blocks, of few warps
        return min(good, key=lambda choice: (choice[0] > WARP_COUNTS[1], choice[::-1]))
    return min(good)


def _longest_vector(loads: Sequence[tuple[Operation, LoadPlan]]) -> int:
    """Elements of a vector of the tiles that are loaded, at most."""
    tiles = [op.results[0].type for op, _ in loads]
    long = [t for t in tiles if isinstance(t, TileType) and t.size >= 1024]
    return max((8 * VECTOR_BYTES // bits(element_of(t)) for t in long), default=1)


def _dealt(
    kernel: tile.Kernel, extent: int, blocks: int, warps: int, vector: int, parts: int = 1
) -> bool:
    """Whether all threads of so many blocks have as many vectors of each of so many parts of long
    tiles: warps have rows of their own as far as those deal out, and share a row then.
    """
    rows = [
        tile_type(value).size // extent
        for op in kernel.walk()
        for value in op.results
        if isinstance(value.type, TileType) and extent in tile_type(value).extents
    ]
    alone = min((n & -n for n in rows), default=1)
    each = blocks * 32 * max(1, warps // alone) * vector
    return extent % (parts * each) == 0


def part_of(kernel: tile.Kernel, extent: int, context: PassContext) -> int:
    """Elements of a part of rows that one block, or a cluster, cannot hold: a power of two. As much
    as a cluster has room for, whose blocks then come back to less, and sooner; else what leaves a
    multiprocessor several blocks."""
    words, asked = pressure(kernel), context.options.num_warps
    ctas = context.options.num_ctas
    clusters = (
        context.target.clusters
        and (asked is None or ctas > 1)
        and row_of(kernel, context.overlaps) == extent
    )
    warps, blocks = (
        (asked or STREAMING_WARPS, ctas if ctas > 1 else CLUSTER_SIZES[-1])
        if clusters
        else (asked or WARP_COUNTS[1], 1)
    )
    most = (
        room(warps, True, context)
        if clusters
        else min(MAX_TILE_REGISTERS, room(warps, True, context) // 2)
    )
    size = 1 << (extent - 1).bit_length() - 1
    while size > MAX_VECTOR_ELEMENTS and (
        words * size > 32 * warps * blocks * most * extent
        or size > 32 * warps * blocks * MAX_TILE_ELEMENTS
        or clusters
        and extent % size
    ):
        size //= 2
    return size


def rows_of_part(kernel: tile.Kernel, extent: int, context: PassContext) -> int:
    """How many of so many rows a block holds at a time, a power of two less than all; 0 where it
    holds none."""
    warps = context.options.num_warps or WARP_COUNTS[1]
    most = 32 * warps * min(MAX_TILE_REGISTERS, room(warps, True, context) // 2)
    # an element takes instructions also where no register holds it
    rows = min(extent - 1, most * extent // max(1, pressure(kernel), Program.of(kernel).largest))
    return 1 << rows.bit_length() - 1 if rows > 0 else 0


def copied_by_threads(op: tile.Load, plan: LoadPlan, threads: int) -> bool:
    """Whether so many threads can copy a tile to shared memory, each what it reads itself, 16 bytes
    at a time.
    """
    return (
        plan.vector == VECTOR_BYTES
        and tile_type(op.result).bytes >= VECTOR_BYTES * threads
        and op.mask is None
        and (op.other is None or _is_number(op.other))
        and not any(isinstance(o.type, TileType) for o in op.offsets)
    )


def _is_number(value: SSAValue) -> bool:
    """Whether a number is known, or will be when what is known has been computed."""
    while isinstance(value.owner, (ew.Cast, tile.Splat)):
        value = value.owner.arg
    return constant(value) is not None


def through_rings(
    loads: Sequence[tuple[Operation, LoadPlan]], threads: int, overlaps: Overlaps
) -> dict[scf.ForOp, list[tile.Load]]:
    """Loads that so many threads can copy to shared memory iterations early, by their loops."""
    found: dict[scf.ForOp, list[tile.Load]] = {}
    for op, plan in loads:
        loop = op.parent_op()
        if (
            isinstance(op, tile.Load)
            and isinstance(loop, scf.ForOp)
            and isinstance(op.result.type, TileType)
            and copied_by_threads(op, plan, threads)
            and unchanged(op, loop, overlaps)
            and counted_slice(op.operands, loop) is not None
        ):
            found.setdefault(loop, []).append(op)
    return found


@dataclass(frozen=True)
class Shares:
    """What a block reads: own: tiles of each program, alike: those that all programs share; copied:
    those of them that threads can copy, each what it reads itself, 16 bytes at a time. stage, kept:
    bytes of what is copied of a program, and of all that is shared, in one of the blocks of a
    cluster."""

    own: tuple[tile.Load, ...]
    alike: tuple[tile.Load, ...]
    copied: frozenset[tile.Load]
    blocks: int

    @staticmethod
    def of(
        kernel: tile.Kernel, loads: Sequence[tuple[Operation, LoadPlan]], warps: int, blocks: int
    ) -> Shares:
        tiles = [
            (op, plan)
            for op, plan in loads
            if isinstance(op, tile.Load)
            and isinstance(op.result.type, TileType)
            and op.parent_op() is kernel
        ]

        copied = frozenset(
            op for op, plan in tiles if copied_by_threads(op, plan, 32 * warps * blocks)
        )
        own = tuple(op for op, _ in tiles if program_axes(op.operands))
        return Shares(own, tuple(op for op, _ in tiles if op not in own), copied, blocks)

    @property
    def stage(self) -> int:
        return (
            sum(tile_type(op.result).bytes for op in self.own if op in self.copied) // self.blocks
        )

    @property
    def kept(self) -> int:
        return sum(tile_type(op.result).bytes for op in self.alike) // self.blocks

    @property
    def are_own(self) -> bool:
        """Whether all that is long is a program's own, and can be copied."""
        return self.stage > 0 and all(
            op in self.copied and op in self.own or tile_type(op.result).size < MIN_ROW_ELEMENTS
            for op in (*self.own, *self.alike)
        )

    @property
    def streams(self) -> bool:
        """Whether all long rows of a program can be copied, and are few enough bytes that a block
        waits for them while it has nothing else.
        """
        return 0 < self.stage <= MAX_BYTES_IN_FLIGHT and all(
            op in self.copied or tile_type(op.result).size < 1024 for op in self.own
        )


def persistent(
    kernel: tile.Kernel, streams: bool, context: PassContext, say: Callable[[str], None]
) -> bool:
    """Whether a block takes one program after the other: as asked, because they stream through it,
    or because they wait for one another, and the next one's blocks can arrive meanwhile. A program
    may wait for those before it only; blocks take theirs in order, and are all there at once."""
    asked = context.options.persistent

    def early(op):
        return (
            isinstance(op, tile.Load)
            and isinstance(op.result.type, TileType)
            and op.parent_op() is kernel
            and program_axes(op.operands)
            and unchanged(op, kernel, context.overlaps)
        )

    if (
        asked is False
        or not asked
        and not (tile.waits_for_programs(kernel) and any(map(early, kernel.walk())))
    ):
        return streams
    say(
        "persistent: a block takes one program after the other,"
        f" {'as asked' if asked else 'and reads the next one where it waits for others'}"
    )
    return True


def has_narrow_loads(loads: Sequence[tuple[Operation, LoadPlan]]) -> bool:
    """Whether long tiles are loaded element by element, each less than a register: addresses, tests
    and halves take as many registers again, and only more blocks keep memory busy.
    """
    return any(
        isinstance(op.result.type, TileType) and op.result.type.size >= 1024 and plan.vector < 4
        for op, plan in loads
        if isinstance(op, tile.Load)
    )


def has_collectives(kernel: tile.Kernel) -> bool:
    """Whether programs have something to wait for: elements that meet."""
    return holds(kernel, (tile.Reduce, tile.Scan, tile.Sort))


def _transposing(kernel: tile.Kernel) -> list[tile.Store]:
    return [
        op
        for op in kernel.walk()
        if isinstance(op, tile.Store) and isinstance(op.value.owner, tile.Transpose)
    ]


def has_transposed_store(kernel: tile.Kernel) -> bool:
    """Whether a tile is stored transposed."""
    return bool(_transposing(kernel))


def transposed_bytes(kernel: tile.Kernel) -> int:
    """Of all tiles that are stored transposed."""
    return sum(tile_type(op.value).bytes for op in _transposing(kernel))


def stores_whole_rows(
    kernel: tile.Kernel,
    loads: Sequence[LoadPlan],
    warps: int,
    ranges: Ranges,
    context: PassContext,
    say: Callable[[str], None],
) -> bool:
    """Whether tiles that threads have turned, a vector by a vector, go through shared memory once
    more: what a warp has of them is half a line of each row, and lines that are written as a whole
    cost the memory less. They do where all vectors are whole and at least two blocks' tiles fit
    beside one another."""

    def whole(store: tile.Store) -> bool:
        access, t = Access.of(store, ranges, True), tile_type(store.value)
        vector = 128 // access.bits
        return (
            t.rank == 2
            and access.vector == vector
            and t.size >= 32 * warps * vector**2
            and t.extents[access.order[0]] * access.bits >= 8 * LINE
        )

    stores, size = _transposing(kernel), transposed_bytes(kernel)
    if (
        2 * (size + RESERVED_SHARED_BYTES) > context.room()
        or not all(map(whole, stores))
        or any(plan.path != "registers" or plan.vector != 16 for plan in loads)
    ):
        return False
    say(
        f"what is transposed in registers is written in whole rows, through {size} bytes of"
        " shared memory"
    )
    return True


def with_l2_fetch(
    ops: Sequence[Operation], loads: Sequence[LoadPlan], say: Callable[[str], None]
) -> tuple[LoadPlan, ...]:
    """Of a tile that is stored along another axis: where whole vectors of its rows are read, the
    cache requests two lines at once. The other one is a neighbour's, which runs at the same time,
    and memory opens fewer pages.
    """
    wide = [
        plan.vector == 16
        and plan.path == "registers"
        and isinstance(op, tile.Load)
        and isinstance(op.result.type, TileType)
        for op, plan in zip(ops, loads, strict=False)
    ]
    if any(wide):
        say(
            "what is read along one axis and written along another comes from memory"
            f" {L2_FETCH_BYTES} bytes"
            " at a time"
        )
    return tuple(
        replace(plan, fetch=L2_FETCH_BYTES) if w else plan
        for w, plan in zip(wide, loads, strict=False)
    )


# ---- rows for a cluster
# ------------------------------------------------------------------------------------------------
def row_of(kernel: tile.Kernel, overlaps: Overlaps) -> int:
    """The extent of the axis that the blocks of a cluster could share: reduced, in every large
    tile, once in each; 0 if there is none.
    """
    ops = list(kernel.walk())
    if not all(map(_is_of_rows, ops)):
        return 0
    reduced = [
        tile_type(op.args[0]).extents[op.axis.value.data]
        for op in ops
        if isinstance(op, tile.Reduce)
    ]
    extent = max(reduced, default=0)
    if extent < MIN_ROW_ELEMENTS or not all(_divides(op, extent) for op in ops):
        return 0
    return extent if _keeps_parts_apart(ops, extent, overlaps) else 0


def _is_of_rows(op: Operation) -> bool:
    """Whether an operation is one of those that parts of rows can have."""
    if isinstance(op, ROW_OPERATIONS):
        return True
    return isinstance(op, tile.Extract) and tile_type(op.arg).size == 1


def _divides(op: Operation, extent: int) -> bool:
    """Whether each of several blocks can do its part of an operation, of rows of an extent."""
    for value in (*op.operands, *op.results):
        t = value.type
        if isinstance(t, TileType) and not _divides_tile(t, extent):
            return False
    if isinstance(op, tile.Reduce):
        return op.kind.data in CLUSTER_REDUCTIONS
    if isinstance(op, tile.Reshape):
        return not crosses(op, WARP_COUNTS[0])
    if isinstance(op, tile.Store) and not isinstance(op.value.type, TileType):
        return False
    if isinstance(op, (tile.Load, tile.Store)):
        return not any(isinstance(offset.type, TileType) for offset in op.offsets)
    return True


def _divides_tile(t: TileType, extent: int) -> bool:
    """Whether a tile has rows of an extent along one axis, or is so small that each block has it
    all.
    """
    return t.extents.count(extent) <= 1 and (extent in t.extents or t.size < 1024)


def _keeps_parts_apart(ops: Sequence[Operation], extent: int, overlaps: Overlaps) -> bool:
    """Whether blocks that share a program's rows of an extent touch no memory that another of them
    writes, unless a reduction for which all of them meet orders the two: nothing else orders their
    accesses to global memory. In a loop round both it would have to order them the other way too.
    """
    accesses = [op for op in ops if isinstance(op, (tile.Load, tile.Store))]
    return all(
        not may_meet(store, other, overlaps)
        or _are_of_one_part(store, other, extent, overlaps)
        or _are_written_alike(store, other, extent)
        or not _loops_round(store, other)
        and _meets_between(other, store)
        for store in accesses
        if isinstance(store, tile.Store)
        for other in accesses
    )


def _loops_round(one: Operation, other: Operation) -> list[scf.ForOp | scf.WhileOp]:
    """The loops round both of two operations."""
    return [loop for loop in loops_of(one) if loop.is_ancestor(other)]


def _are_of_one_part(
    store: tile.Store, other: BlockAccess, extent: int, overlaps: Overlaps
) -> bool:
    """Whether each of the blocks that split rows of an extent touches elements in a store and in
    another access that no other block touches in either: those of the same columns of one array,
    in every iteration of the loops round both, or apart from those of other iterations.
    """
    mine, its = (_place_of_rows(op, extent) for op in (store, other))
    if mine is None or mine != its or is_folded(store.array, overlaps):
        return False
    both = _loops_round(store, other)
    begin = store.offsets[mine[0]]
    return not any(_moves_by_less(store.array, begin, extent, loop) for loop in both)


def _moves_by_less(
    array: SSAValue, begin: SSAValue, extent: int, loop: scf.ForOp | scf.WhileOp
) -> bool:
    """Whether rows of an array may begin at other columns in another iteration of a loop, but not
    behind their end.
    """
    if is_inside(array, loop):
        return True
    stays = constant(begin) is not None or not is_inside(begin, loop)
    return not stays and least_distance(begin, begin, loop) < extent


def _place_of_rows(op: BlockAccess, extent: int) -> tuple[int, Hashable, Hashable] | None:
    """The axis of an array along which rows of an extent lie in an access, the array and where they
    begin; None where there are none.
    """
    extents = list(op.extents.get_values())
    if extent not in extents:
        return None
    axis = extents.index(extent)
    return axis, expression(op.array), expression(op.offsets[axis])


def _are_written_alike(store: tile.Store, other: BlockAccess, extent: int) -> bool:
    """Whether two stores are of tiles of which no block has a part of its own: whoever makes one
    makes the other, in their order.
    """
    return isinstance(other, tile.Store) and not any(
        extent in tile_type(op.value).extents for op in (store, other)
    )


def _meets_between(load: BlockAccess, store: tile.Store) -> bool:
    """Whether what is stored depends on a reduction of a long row behind a load: every block has
    read before any writes. Either may be in a loop of its own.
    """
    if not isinstance(load, tile.Load):
        return False
    block: Block | None = block_of(store)
    while block is not None:
        there, here = ancestor(store, block), ancestor(load, block)
        if there is not None and here is not None:
            return here is not there and any(
                _meets_behind(op, load, here) for op in _needed_by(there, block)
            )
        around = block.parent_op()
        block = around.parent if around is not None else None
    return False


def _needed_by(op: Operation, block: Block) -> list[Operation]:
    """The operations of a block that one of it, with all that is inside, depends on."""
    return defining_slice([v for inner in op.walk() for v in inner.operands], block)


def _meets_behind(op: Operation, load: tile.Load, here: Operation) -> bool:
    """Whether the blocks of a cluster meet in an operation of a block after they have loaded, in
    another one of it, or in the same loop.
    """
    if isinstance(op, scf.ForOp):
        lower, upper = constant(op.lb), constant(op.ub)
        runs = lower is not None and upper is not None and lower < upper
        meeting = [inner for inner in op.body.block.ops if _meets_on_rows(inner)]
        if op is here:
            return any(load.parent is m.parent and load.is_before_in_block(m) for m in meeting)
        return runs and bool(meeting) and here.is_before_in_block(op)
    return _meets_on_rows(op) and here.is_before_in_block(op)


def _meets_on_rows(op: Operation) -> bool:
    return (
        isinstance(op, tile.Reduce)
        and tile_type(op.args[0]).extents[op.axis.value.data] >= MIN_ROW_ELEMENTS
    )
