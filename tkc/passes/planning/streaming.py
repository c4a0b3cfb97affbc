"""Plans of programs without dots, whose time is that of moving bytes: how many warps, and whether a
cluster shares a program.

    registers a thread = 32-bit registers of all tiles that are live together / threads

The fewest warps that keep this within MAX_TILE_REGISTERS: a thread then has several vectors in
flight, a barrier waits for few warps, and several blocks fit a multiprocessor, so that one computes
while another waits for memory. Where a program would fill a multiprocessor, programs *stream*: a
block of 16 warps takes one after the other, and issues the copies of the next row as soon as it has
this one in registers (a ring in shared memory, `ahead`). Its programs come from the dynamic tile
scheduler, since multiprocessors that wait for memory are not equally quick. `persistent=True` or
False decides otherwise.

In loops with loop-carried sums (a norm's backward pass) threads meet at a barrier in every
iteration: 8 warps at most, a cluster of such blocks for longer rows, and as many blocks on a
multiprocessor as their registers allow. Loops then read ahead only as far as that leaves two.

A row too long for one block is split over the blocks of a cluster, if the program has loads,
stores, element-wise operations and reductions alone. Each block reads its part once, and a
reduction combines the parts through distributed shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import scf
from xdsl.ir import Operation

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.plan import LoadPlan
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import defining_slice
from tkc.ir.target import LINE, Target
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.access import Access
from tkc.passes.analysis.alias import Overlaps, may_meet, unchanged
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.values import LEAVES, POINTWISE, VIEWS, BlockAccess
from tkc.passes.layouts.movers import crosses
from tkc.passes.planning.pressure import (
    MAX_REGISTERS_PER_THREAD,
    TILE_REGISTER_SHARE,
    demand,
    fits,
    pressure,
    room,
)

WARP_COUNTS = 4, 8, 16, 32  # of a block
CLUSTER_SIZES = 2, 4, 8  # 16 by keyword alone: not every device has room for one
STREAMING_WARPS = 16  # of a block through which programs stream
MAX_BYTES_IN_FLIGHT = 65536  # of a program, that a multiprocessor then has
# of the largest tile, a thread: half without reductions; twice with a sort, which compares least
# what a thread holds, or with a register transpose
MAX_TILE_ELEMENTS = 32
# registers of tiles, a thread
MAX_TILE_REGISTERS = 72
MAX_LOOP_REGISTERS = 100  # in a loop
MAX_CRAMPED_REGISTERS = 104  # in a loop for which no block is large enough
MAX_CLUSTER_REGISTERS = 128  # of a block of a cluster
MAX_READ_AHEAD_REGISTERS = 144  # with what is read ahead
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
SCALAR_REGISTERS = 8  # of addresses, masks, counters
ADDRESS_REGISTERS = 2
MIN_REGISTERS = 64  # of a thread, as blocks share a multiprocessor's
MAX_VECTOR_ELEMENTS = 16  # of bytes
VECTOR_BYTES = 16
RESERVED_SHARED_BYTES = 2048  # for reductions
L2_FETCH_BYTES = 256  # that the L2 cache requests from memory at once, at most
MIN_ROW_ELEMENTS = 1024  # of a row that blocks of a cluster could share
CLUSTER_REDUCTIONS = ("sum", "prod", "max", "min", "fmax", "fmin", "any", "all", "xor")


def choose(
    kernel: tile.Kernel,
    loads: Sequence[tuple[Operation, LoadPlan]],
    largest: int,
    context: PassContext,
    say: Callable[[str], None],
) -> tuple[int, tuple[int, int], bool]:
    """(warps, spread, whether programs stream through blocks) of a program without dots; `largest`:
    elements of its largest tile. The user's num_warps and num_ctas narrow the choice.
    """
    words, asked, ctas = pressure(kernel), context.options.num_warps, context.options.num_ctas

    def each(warps, blocks=1):
        return -(-words // (32 * warps * blocks))

    most = (
        MAX_LOOP_REGISTERS
        if any(isinstance(op, scf.ForOp) for op in kernel.walk())
        else MAX_TILE_REGISTERS
    )
    elements = (
        2 * MAX_TILE_ELEMENTS
        if context.options.register_transpose is not False
        and has_transposed_store(kernel)
        or any(isinstance(op, tile.Sort) for op in kernel.walk())
        else (
            MAX_TILE_ELEMENTS
            if any(isinstance(op, (tile.Reduce, tile.Scan)) for op in kernel.walk())
            else MAX_TILE_ELEMENTS // 2
        )
    )
    fit = next(
        (
            w
            for w in (WARP_COUNTS[:-1] if most is MAX_LOOP_REGISTERS else WARP_COUNTS)
            if each(w) <= most and largest <= 32 * w * elements
        ),
        None,
    )
    if (
        asked is None
        and ctas == 1
        and most is MAX_TILE_REGISTERS
        and fit in (None, WARP_COUNTS[-1])
        and context.options.persistent is not False
        and context.target.clusters
        and (extent := row_of(kernel, context.overlaps))
    ):
        for blocks in CLUSTER_SIZES if fit is None else (1,):
            if (
                words // (32 * STREAMING_WARPS * blocks) > MAX_CLUSTER_REGISTERS
                or not _dealt(kernel, extent, blocks, STREAMING_WARPS, _longest_vector(loads))
                or not (found := Shares.of(kernel, loads, STREAMING_WARPS, blocks)).streams
            ):
                continue
            say(
                f"{STREAMING_WARPS} warps"
                + (
                    f" in each of {blocks} blocks of a cluster, which split rows of {extent}"
                    if blocks > 1
                    else ""
                )
                + f", through which programs stream: {found.stage} bytes of each fill a"
                " multiprocessor"
            )
            return STREAMING_WARPS, (blocks, extent) if blocks > 1 else (1, 0), True
    if fit and not fits(kernel, fit, 1, context):
        fit = None
    if (
        (
            asked is None
            and (fit is None or most is MAX_LOOP_REGISTERS and fit > WARP_COUNTS[1])
            or ctas > 1
            or asked
            and each(asked) > MAX_CLUSTER_REGISTERS
        )
        and context.target.clusters
        and (extent := row_of(kernel, context.overlaps))
    ):
        limit = (
            most
            if most is MAX_LOOP_REGISTERS
            else MAX_CLUSTER_REGISTERS // 2
            if has_narrow_loads(loads)
            else MAX_CLUSTER_REGISTERS
        )
        possible = [
            (w, b)
            for w in (
                (asked,)
                if asked
                else WARP_COUNTS[:-1]
                if most is MAX_LOOP_REGISTERS
                else WARP_COUNTS[1:]
            )
            for b in ((ctas,) if ctas > 1 else CLUSTER_SIZES)
            if _dealt(kernel, extent, b, w, 8)
        ]
        good = [(w, b) for w, b in possible if each(w, b) <= limit] or possible[-1:]
        if good:
            warps, blocks = min(
                good,
                key=(lambda x: (x[0] > WARP_COUNTS[1], x[::-1]))
                if most is MAX_LOOP_REGISTERS
                else None,
            )
            say(
                f"{warps} warps in each of {blocks} blocks of a cluster, which split rows of"
                f" {extent}: {each(warps, blocks)} registers of tiles a thread, {each(warps)} with"
                " one block"
            )
            return warps, (blocks, extent), False
    warps = (
        asked
        or fit
        or (
            WARP_COUNTS[-2]
            if most is MAX_LOOP_REGISTERS and each(WARP_COUNTS[-2]) <= MAX_CRAMPED_REGISTERS
            else WARP_COUNTS[-1]
        )
    )
    say(f"{warps} warps{', as asked' if asked else ''}: {each(warps)} registers of tiles a thread")
    return warps, (1, 0), False


def _longest_vector(loads: Sequence[tuple[Operation, LoadPlan]]) -> int:
    """Elements of a vector of the tiles that are loaded, at most."""
    tiles = [op.results[0].type for op, _ in loads]
    long = [t for t in tiles if isinstance(t, TileType) and t.size >= 1024]
    return max((8 * VECTOR_BYTES // bits(element_of(t)) for t in long), default=1)


def _dealt(kernel: tile.Kernel, extent: int, blocks: int, warps: int, vector: int) -> bool:
    """Whether all threads of so many blocks have as many vectors of long tiles: warps have rows of
    their own as far as those deal out, and share a row then.
    """
    rows = [
        tile_type(value).size // extent
        for op in kernel.walk()
        for value in op.results
        if isinstance(value.type, TileType) and extent in tile_type(value).extents
    ]
    alone = min((n & -n for n in rows), default=1)
    return extent % (blocks * 32 * max(1, warps // alone) * vector) == 0


def part_of(kernel: tile.Kernel, extent: int, context: PassContext) -> int:
    """Elements of a part of rows that one block, or a cluster, cannot hold: a power of two. As much
    as a cluster has room for, whose blocks then come back to less, and sooner; else what leaves a
    multiprocessor several blocks."""
    words, asked = pressure(kernel), context.options.num_warps
    clusters = (
        context.target.clusters and asked is None and row_of(kernel, context.overlaps) == extent
    )
    warps, blocks = (
        (STREAMING_WARPS, CLUSTER_SIZES[-1]) if clusters else (asked or WARP_COUNTS[1], 1)
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
    rows = min(extent - 1, most * extent // max(1, pressure(kernel)))
    return 1 << rows.bit_length() - 1 if rows > 0 else 0


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

        def whole(op):
            return (
                op.mask is None
                and (op.other is None or constant(op.other) is not None)
                and not any(isinstance(o.type, TileType) for o in op.offsets)
            )

        copied = frozenset(
            op
            for op, plan in tiles
            if plan.vector == 16
            and tile_type(op.result).bytes >= 16 * 32 * warps * blocks
            and whole(op)
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
    return any(isinstance(op, (tile.Reduce, tile.Scan, tile.Sort)) for op in kernel.walk())


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


@dataclass(frozen=True)
class Reading:
    """How programs get their blocks. loads: of each where it goes; stages of a ring, 0 without one;
    prefetch, keep, blocks, queue: as in a Plan; taken: bytes of shared memory.
    """

    loads: tuple[LoadPlan, ...]
    stages: int = 0
    prefetch: bool = False
    keep: bool = False
    blocks: int = 0
    dynamic_schedule: bool = False
    taken: int = 0


def ahead(
    kernel: tile.Kernel,
    loads: Sequence[tuple[Operation, LoadPlan]],
    warps: int,
    blocks: int,
    persistent: bool,
    streams: bool,
    context: PassContext,
    say: Callable[[str], None],
) -> Reading:
    """Whether loops read one iteration ahead: where what they read, as narrow as it is in memory,
    still fits the registers. Programs that a block takes in turn are a loop too. Theirs may come
    through a ring in shared memory instead, which each thread fills for itself, 16 bytes at a time:
    it requests its next bytes as soon as it has these in registers, and nothing but its own wait
    orders them. What all programs share is read once, where registers or shared memory have room.
    """
    tiles = [
        op for op, _ in loads if isinstance(op, tile.Load) and isinstance(op.result.type, TileType)
    ]
    shares = Shares.of(kernel, loads if persistent else (), warps, blocks)
    shared, stage = max(0, context.room() - RESERVED_SHARED_BYTES), shares.stage
    # a cluster waits for the slowest of its blocks
    stages = (
        min(
            context.options.num_stages or int(streams) * (1 + (blocks > 1 and not shares.alike)),
            shared // stage,
        )
        if stage
        else 0
    )
    own = set(shares.own) & shares.copied if stages else set()

    def each(words):
        return -(-words // (32 * warps * blocks))

    vectors = {op: plan.vector for op, plan in loads}

    def size(ops):
        return each(sum(op.result.type.bytes // 4 for op in ops))

    def apart(op):
        # elements that are loaded one by one have a register each
        return op.result.type.bytes // 4 if vectors[op] >= 4 else op.result.type.size

    early = [
        op
        for op in tiles
        if isinstance(op.parent_op(), scf.ForOp) or op in shares.own and op not in own
    ]
    # 16 warps have 128 registers a thread, 32 have 64
    most = min(
        MAX_READ_AHEAD_REGISTERS,
        1600 // warps if warps < 32 else 48,
        int(TILE_REGISTER_SHARE * (context.options.maxnreg or MAX_REGISTERS_PER_THREAD)),
    )
    left, peak = (
        most - each(pressure(kernel)),
        (demand(kernel) + sum(map(apart, early))) // (32 * warps * blocks)
        + ADDRESS_REGISTERS * len(early),
    )
    more, kept = size(early), size(shares.alike)
    # kept as what is computed with
    prefetch, keep = (
        bool(early) and more <= left and peak <= most and context.options.prefetch is not False,
        bool(kept)
        and more + kept <= left
        and peak + each(sum(tile_type(op.result).size for op in shares.alike)) <= most,
    )
    queue = (
        bool(own)
        and not tile.waits_for_programs(kernel)
        and context.options.dynamic_schedule is not False
    )

    def resident(more):
        return context.target.registers // (
            32
            * warps
            * max(MIN_REGISTERS, -(-(each(pressure(kernel)) + more + SCALAR_REGISTERS) // 8) * 8)
        )

    looped, arriving = (
        any(isinstance(op, scf.ForOp) for op in kernel.walk()) and context.options.maxnreg is None,
        each(sum(map(apart, early))),
    )
    if (
        prefetch
        and looped
        and resident(arriving) < 2 <= resident(0)
        and context.options.prefetch is None
    ):
        prefetch = False
        say(
            f"loops read nothing ahead: with {arriving} registers a thread more, a multiprocessor"
            " would have one block, which would idle while it waits"
        )
    if stages:
        say(
            f"the blocks of the next {stages} programs come through a ring of {stages} stages of"
            f" {stage} bytes, which each thread fills for itself"
            + ("; programs are claimed one by one" if queue else "")
        )
    if prefetch:
        say(f"loops read one iteration ahead, into {more} registers a thread")
    if prefetch and persistent and not stages:
        say(_in_flight(sum(tile_type(op.result).bytes for op in early) // blocks, context.target))
    if keep:
        say(f"what all programs read stays in {kept} registers a thread")
    elif (
        stages
        and kept
        and shares.copied.issuperset(shares.alike)
        and stages * stage + shares.kept <= shared
    ):
        own, keep = own.union(shares.alike), True
        say(f"what all programs read stays in {shares.kept} bytes of shared memory")
    taken = sum(
        tile_type(op.result).bytes // blocks * (stages if op in shares.own else 1) for op in own
    )
    # what stagger-programs has of the next program
    begun = more if tile.waits_for_programs(kernel) else 0
    beside = begun + (keep and not stages) * kept  # as long as it is read ahead of
    together = (
        resident(prefetch * arriving + beside)
        if looped or blocks > 1 and not stages and has_narrow_loads(loads)
        else resident(more + beside)
        if prefetch and persistent and blocks == 1
        else 0
    )
    if together > 1:
        say(f"{together} blocks a multiprocessor")
    return Reading(
        tuple(replace(plan, path="own") if op in own else plan for op, plan in loads),
        stages,
        prefetch,
        keep,
        together if together > 1 else 0,
        queue,
        taken,
    )


def _in_flight(each: int, target: Target) -> str:
    """By Little's law: the bytes that a multiprocessor must have asked for at any time are latency
    x bandwidth / multiprocessors.
    """
    needed = target.costs.memory_latency * target.memory / 2 / target.multiprocessors
    return (
        f"{each} bytes of the next program are in flight while one computes:"
        f" {-(-needed // each):.0f} blocks a multiprocessor have {needed:.0f} bytes on their way,"
        f" half of the memory's rate for {target.costs.memory_latency:.0f} ns"
    )


# ---- rows for a cluster
# ------------------------------------------------------------------------------------------------
def row_of(kernel: tile.Kernel, overlaps: Overlaps) -> int:
    """The extent of the axis that the blocks of a cluster could share: reduced, in every large
    tile, once in each; 0 if there is none.
    """
    ops = list(kernel.walk())
    if not _keeps_parts_apart(ops, overlaps):
        return 0
    if not all(
        isinstance(op, ROW_OPERATIONS)
        or isinstance(op, tile.Extract)
        and tile_type(op.arg).size == 1
        for op in ops
    ):
        return 0
    extent = max(
        (
            tile_type(op.args[0]).extents[op.axis.value.data]
            for op in ops
            if isinstance(op, tile.Reduce)
        ),
        default=0,
    )
    if extent < MIN_ROW_ELEMENTS:
        return 0
    for op in ops:
        tiles = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, TileType)]
        if any(
            t.extents.count(extent) > 1 or extent not in t.extents and t.size >= 1024 for t in tiles
        ):
            return 0
        if isinstance(op, tile.Reduce) and op.kind.data not in CLUSTER_REDUCTIONS:
            return 0
        if isinstance(op, tile.Reshape) and (
            (extent in tile_type(op.arg).extents) != (extent in tile_type(op.result).extents)
            or crosses(op, WARP_COUNTS[0])
        ):
            return 0
        if isinstance(op, (tile.Load, tile.Store)) and any(
            isinstance(o.type, TileType) for o in op.offsets
        ):
            return 0
        if isinstance(op, tile.Store) and not isinstance(op.value.type, TileType):
            return 0
    return extent


def _keeps_parts_apart(ops: Sequence[Operation], overlaps: Overlaps) -> bool:
    """Whether blocks that share a program touch no memory that another of them writes, unless a
    reduction for which all of them meet orders the two: nothing else orders their accesses to
    global memory. What is written is read and written again at the same place alone, where each
    block has the part that it wrote.
    """
    accesses = [op for op in ops if isinstance(op, (tile.Load, tile.Store))]
    return all(
        _same_place(store, other)
        or not may_meet(store, other, overlaps)
        or _meets_between(other, store)
        for store in accesses
        if isinstance(store, tile.Store)
        for other in accesses
    )


def _meets_between(load: BlockAccess, store: tile.Store) -> bool:
    """Whether what is stored depends on a reduction of a long row behind a load: every block has
    read before any writes.
    """
    block = store.parent
    if not isinstance(load, tile.Load) or load.parent is not block or block is None:
        return False
    return any(
        isinstance(op, tile.Reduce)
        and tile_type(op.args[0]).extents[op.axis.value.data] >= MIN_ROW_ELEMENTS
        and load.is_before_in_block(op)
        for op in defining_slice([store.value], block)
    )


def _same_place(one: BlockAccess, other: BlockAccess) -> bool:
    """Whether two accesses are of one block of an array."""
    return one.array is other.array and tuple(one.offsets) == tuple(other.offsets)
