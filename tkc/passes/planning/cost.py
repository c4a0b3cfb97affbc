"""A closed-form cost model: an estimate in seconds, for ranking plans of one program and
configurations of one kernel. It is not a prediction (tkc/timing has one).

    Work.of(kernel, sizes)        what programs do: loops with trip counts, dots, bytes moved
    cost(work, plan, target)      a Cost: seconds, and what they are made of

A step of a loop takes a multiprocessor as long as the slowest of

    tensor        dots at the rate of the planned instruction; wgmma reads shared memory itself,
                  2 KiB and 32 N bytes for each 64 x N x 16, and shares it with the copies
    l2            bytes that its loads bring from the L2 cache (shared copies of a cluster once)
    cut sectors   tensor-map copies of rows that begin between sectors of 32 bytes
    latency       of a copy, divided by the stages that run ahead of the one in use
    units         copies that pass through registers
    relayout      of 8-bit operands: a role of its own reads and writes shared memory again

A program adds what nothing overlaps: its epilogue and the restart of the pipeline, unless another
program of the block multiplies meanwhile. Programs come in waves; the last one costs like a full
one. The whole is not faster than memory. Without sizes there are many waves, and loops of unknown
trip count take ASSUMED_TRIPS steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import cast

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.plan import Plan
from tkc.ir.rewrite import loop_of, loops_of
from tkc.ir.target import Target
from tkc.ir.types import bits, element_of
from tkc.ir.values import array_type, owner_op, tile_type
from tkc.passes.analysis.access import bytes_of, tile_of
from tkc.passes.analysis.alias import accessed
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.scalars import computed
from tkc.passes.analysis.values import LOADS, feeding_dots

ASSUMED_TRIPS = 64  # of a loop whose trip count is not known
COPY_LATENCY = 1000  # clocks from issuing a copy to its arrival
LAUNCH_CLOCKS = 6000  # before the first step and after the last store
LAUNCH_SECONDS = 1.5e-6  # around the kernel
RESTART_CLOCKS = 600  # of a program, which nothing overlaps
# of a program's results, by how they are stored
STORE_CLOCKS_PER_ELEMENT = {"tma": 0.040, "one subtile": 0.055, "shared": 0.055, "direct": 0.4}
ODD_ROWS_FACTOR = 3.2  # how much longer direct stores take of rows that start at odd elements
COLUMN_STORE_FACTOR = 1.5  # and of dense columns
# (clocks, clocks an element): storing parts and learning which program is the last
SPLIT_K_CLOCKS = 2800, 0.5
# likewise, of each part that the last program adds up
SPLIT_K_PART_CLOCKS = 50, 0.11
CLUSTER_LAUNCH_CLOCKS = 400  # until the blocks of a cluster know each other
# into and out of shared memory: beyond the first wgmma slows a little with each byte, beyond the
# second with the square
FREE_SHARED_BYTES_PER_CLOCK, MAX_SHARED_BYTES_PER_CLOCK = 128, 185
# how much wgmma slows, over the square of its columns, where rows of its right operand are no whole
# swizzles
PARTIAL_SWIZZLE_PENALTY = 0.45 * 96**2
MMA_SYNC_RATE = 0.62  # of wgmma's, where there is wgmma
ONE_ROLE_FACTOR = 1.2  # how much longer a plan of one role takes than this model says, likewise
# of earlier kernels, which are written back to memory as others come in
DIRTY_CACHE_BYTES = 18e6
STAGED_LOAD_CLOCKS = 7  # of an instruction by which a warp loads what goes to shared memory
# in which a tensor map copies 128 bytes of a row; where rows begin in the middle of 32 bytes
MAP_LINE_CLOCKS, MAP_CUT_LINE_CLOCKS = 1.6, 4.2
# of the device, for which those clocks hold: all blocks share the L2 cache
USUAL_BUSY_SHARE = 0.91
SHALLOW_RING_PENALTY = 0.8  # with few stages behind the one in use
# in which a role relays 8-bit operands: of a step, and of each byte
RELAYOUT_CLOCKS = 740, 0.023
FILLED_BYTE_WEIGHT = 3  # cost of a byte that a tensor map fills with zero, in copied bytes
STORES = (tile.Store, tile.StorePointers, tile.Atomic, tile.AtomicBlock)


@dataclass(frozen=True)
class Sizes:
    """What a launch knows and code does not: programs along each axis, and of each argument its
    extents, or the number itself.
    """

    grid: tuple[int, int, int]
    arguments: tuple[tuple[int, ...] | int | float | None, ...] = ()


@dataclass(frozen=True)
class Dot:
    """A dot of the plan's number, in a loop's body."""

    number: int
    shape: tuple[int, int, int]
    bits: int


@dataclass(frozen=True)
class Moved:
    """A load of the plan's number (−1: a store): bytes, those of them inside its array, the program
    axes it depends on, whether it feeds a dot, and whether its rows cut sectors.
    """

    number: int
    bytes: int
    inside: int
    axes: frozenset[int]
    fed: bool
    cut: bool = False


@dataclass(frozen=True)
class Part:
    """A loop's body without the loops in it, or what stands in none; `trips`: how often one program
    does it.
    """

    trips: float
    dots: tuple[Dot, ...]
    moved: tuple[Moved, ...]


@dataclass(frozen=True)
class Work:
    """What the programs of a kernel do. grid: None where sizes are not known. footprint: bytes of
    the arrays read; stored: bytes, elements of results of one program, and what they count for
    where registers store them.
    """

    grid: tuple[int, int, int] | None
    parts: tuple[Part, ...]
    stored: int
    results: int
    footprint: int
    apart: float = 0.0

    @staticmethod
    def of(kernel: tile.Kernel, sizes: Sizes | None = None) -> Work:
        known, order = Numbers(kernel, sizes), list(kernel.walk())
        parts: dict[Operation | None, tuple[list[Dot], list[Moved]]] = {}
        loads = [op for op in order if isinstance(op, LOADS)]
        feeding = feeding_dots(kernel)

        def place(op: Operation) -> tuple[list[Dot], list[Moved]]:
            return parts.setdefault(loop_of(op), ([], []))

        for i, dot in enumerate(op for op in order if isinstance(op, tile.Dot)):
            *batch, m, n = tile_type(dot.acc).extents
            k = tile_type(dot.a).extents[-1] * prod(batch)
            place(dot)[0].append(Dot(i, (m, n, k), bits(element_of(dot.a.type))))
        for i, load in enumerate(loads):
            if tile_of(load) is None:
                continue
            around = [loop.lb for loop in loops_of(load) if isinstance(loop, scf.ForOp)]
            place(load)[1].append(
                Moved(
                    i,
                    bytes_of(load),
                    known.inside(load),
                    frozenset(program_axes([*load.operands, *around], ends=False)),
                    load.results[0] in feeding,
                    cut(load),
                )
            )
        stored = [(op, t) for op in order if isinstance(op, STORES) and (t := tile_of(op))]
        for store, _ in stored:
            size = bytes_of(store)
            place(store)[1].append(Moved(-1, size, size, frozenset(), False))
        made = tuple(
            Part(
                prod(known.trips(loop) for loop in ([*loops_of(loop), loop] if loop else [])),
                tuple(d),
                tuple(m),
            )
            for loop, (d, m) in parts.items()
        )
        read = {accessed(op) for op in loads if isinstance(op, tile.Load)}
        return Work(
            None if sizes is None else sizes.grid,
            made,
            stored=sum(bytes_of(op) for op, _ in stored),
            results=sum(t.size for _, t in stored),
            footprint=sum(known.bytes(argument) for argument in read if argument is not None),
            apart=sum(t.size * scattered(op) for op, t in stored),
        )


@dataclass(frozen=True)
class Cost:
    """seconds in all; waves and, in seconds, the parts. `limit` names the slowest part of the
    busiest loop.
    """

    seconds: float
    waves: float
    steps: float
    exposed: float
    memory: float
    limit: str


def cost(work: Work, plan: Plan, target: Target) -> Cost:
    cluster, clocks, exposed, limit, longest = (
        plan.cluster[0] * plan.cluster[1],
        0.0,
        0.0,
        "memory",
        0.0,
    )
    per_block = max(1, plan.programs)
    memory, programs, resident, places = memory_of(work, plan, target)
    memory += min(memory, DIRTY_CACHE_BYTES / (target.memory * 1e9))
    parallel = programs * plan.split_k
    busy = (
        parallel / ceil(parallel / places) / (places * USUAL_BUSY_SHARE)
        if work.grid and not plan.stream_k
        else 1.0
    )
    for part in work.parts:
        trips = part.trips / plan.split_k if part.dots else part.trips
        step, why = _step(part, plan, target, resident, busy)
        if part.trips == 1 and not part.dots:
            exposed += step
        else:
            clocks += trips * step
        if trips * step > longest and part.dots:
            longest, limit = trips * step, why
        if plan.roles == "one" and part.dots and trips > 1:
            exposed += COPY_LATENCY + step  # nothing overlaps its first copies
    waves = (
        parallel / (places * per_block)
        if work.grid is None or plan.stream_k
        else ceil(parallel / places) / per_block
    )
    out = (
        RESTART_CLOCKS
        + STORE_CLOCKS_PER_ELEMENT[
            "one subtile" if plan.epilogue == "tma" and plan.subtiles == 1 else plan.epilogue
        ]
        * (work.apart if plan.epilogue == "direct" else work.results)
        if work.parts and any(p.dots for p in work.parts)
        else 0
    )
    exposed += out
    # two programs at once hide what the other multiplies over
    each = clocks + exposed if per_block == 1 else max(clocks, (clocks + exposed) / per_block)
    met = (
        SPLIT_K_CLOCKS[0]
        + SPLIT_K_CLOCKS[1] * work.results
        + plan.split_k * (SPLIT_K_PART_CLOCKS[0] + SPLIT_K_PART_CLOCKS[1] * work.results)
        if plan.split_k > 1
        else 0
    )
    total = (
        waves * per_block * each
        + (exposed if per_block > 1 else 0)
        + (LAUNCH_CLOCKS + CLUSTER_LAUNCH_CLOCKS * (cluster > 1) if work.grid else 0)
    )
    seconds = (
        max(total / (target.clock * 1e9), memory)
        + 0.15 * min(total / (target.clock * 1e9), memory)
        + met / (target.clock * 1e9)
        + LAUNCH_SECONDS
    )
    if target.wgmma and plan.roles == "one":
        seconds *= ONE_ROLE_FACTOR
    scale = 1 / (target.clock * 1e9)
    return Cost(
        seconds,
        waves,
        waves * per_block * clocks * scale,
        (total - waves * per_block * clocks) * scale,
        memory,
        limit if memory < total * scale else "memory",
    )


def memory_of(work: Work, plan: Plan, target: Target) -> tuple[float, int, int, int]:
    """Seconds of the memory; programs of the launch, blocks that a multiprocessor holds, and places
    for programs on the device.
    """
    per_block, traffic = max(1, plan.programs), 0.0
    whole = target.clustered(plan.cluster[0] * plan.cluster[1])
    resident = _resident(work, plan, target)
    programs = (
        _up(work.grid[0], plan.cluster[0]) * _up(work.grid[1], plan.cluster[1]) * work.grid[2]
        if work.grid
        else 64 * whole * resident
    )
    resident = min(resident, max(1, ceil(programs / whole)))
    places = whole * resident
    shared = min(programs, places * per_block)
    rows = min(plan.raster * plan.cluster[0], shared) if plan.raster > 1 else shared
    if work.grid:
        rows = min(rows, work.grid[0])
    columns = ceil(shared / max(rows, 1))
    # axis 0 moves on first, axis 2 last
    layers = ceil(columns / min(columns, max(1, work.grid[1]))) if work.grid else 1
    columns = ceil(columns / layers)
    apart = {0: rows, 1: columns, 2: layers}
    for part in work.parts:
        trips = part.trips / plan.split_k if part.dots else part.trips
        for m in part.moved:
            distinct = min(shared, prod(apart[axis] for axis in m.axes))
            if m.number >= 0:
                traffic += trips * m.inside * distinct / shared
    read = traffic * programs
    if work.footprint:
        read = work.footprint if work.footprint <= target.cache else max(read, work.footprint)
    written = work.stored * programs * (1 if plan.split_k == 1 else 1 + 4 * plan.split_k)
    return (read + written) / (target.memory * 1e9), programs, resident, places


def _step(
    part: Part, plan: Plan, target: Target, resident: int, busy: float = 1.0
) -> tuple[float, str]:
    """Clocks of one trip of the blocks that a multiprocessor holds, and what they are spent on.
    busy: how much of the device is, beside what is usual.
    """
    tensor = reads = fabric = units = copies = anew = 0.0
    sectors = any(x.cut for x in part.moved)
    for d in part.dots:
        chosen = plan.dots[d.number] if d.number < len(plan.dots) else None
        m, n, k = d.shape
        if chosen is not None and chosen.swap:
            m, n = n, m
        rate = target.tensor * 16 / max(d.bits, 8)
        if chosen is None or chosen.instruction == "fma":
            tensor += 2 * m * n * k / 256
            continue
        if chosen.instruction == "wgmma":
            rows = _up(m, 64)
            tensor += (
                2
                * rows
                * n
                * k
                / rate
                * (1 + PARTIAL_SWIZZLE_PENALTY / n**2 if n > 64 and n % (1024 // d.bits) else 1)
            )
            reads += rows / 64 * k * d.bits / 256 * ((2048 if chosen.a == "shared" else 0) + 32 * n)
            anew += d.bits // 8 * k * (m * (chosen.a == "relaid") + n * (chosen.b == "relaid"))
        else:
            tensor += (
                2 * _up(m, 16) * _up(n, 8) * k / (rate * (MMA_SYNC_RATE if target.wgmma else 1))
            )
    for x in part.moved:
        load = plan.loads[x.number] if 0 <= x.number < len(plan.loads) else None
        filled = x.bytes - x.inside if load is not None and load.path == "tma" else 0
        sharing = (
            prod(plan.cluster[axis] for axis in load.among)
            if load is not None and load.multicast >= 0
            else 1
        )
        fabric += (x.inside + FILLED_BYTE_WEIGHT * filled) / target.fabric / sharing
        if load is not None and load.path == "tma" and sectors:
            copies += (
                x.bytes
                / 128
                * (
                    MAP_CUT_LINE_CLOCKS
                    * busy
                    * (1 + SHALLOW_RING_PENALTY / max(1, plan.stages - 1) ** 2)
                    if x.cut
                    else MAP_LINE_CLOCKS
                )
                / sharing
            )
        if load is None or load.path == "tma":
            continue
        vector = max(1, load.vector)
        units += x.bytes / (32 * vector) * (8 if load.path == "async" else STAGED_LOAD_CLOCKS)
    if reads:
        each = (reads + sum(x.bytes for x in part.moved if x.fed) + 3 * anew) / tensor
        tensor *= slowed(each)
    copied = any(x.fed for x in part.moved)
    stages = max(1, plan.stages)
    latency = (
        0.0
        if not copied or not part.dots
        else (COPY_LATENCY + tensor) / max(1, stages - 1)
        if stages > 1
        else COPY_LATENCY + tensor + fabric
    )
    times = {
        "tensor": tensor * resident,
        "l2": fabric * resident,
        "latency": latency,
        "units": units * resident,
        "cut sectors": copies * resident,
        "an operand relaid": RELAYOUT_CLOCKS[0] + RELAYOUT_CLOCKS[1] * anew if anew else 0.0,
    }
    why = max(times, key=lambda part: times[part])
    return times[why], why


def slowed(each: float) -> float:
    """How much longer wgmma takes where so many bytes a clock go into and out of shared memory."""
    return min(
        (1 + 0.0012 * max(0, each - FREE_SHARED_BYTES_PER_CLOCK))
        * max(1, each / MAX_SHARED_BYTES_PER_CLOCK) ** 2,
        max(1, each / FREE_SHARED_BYTES_PER_CLOCK),
    )


def _resident(work: Work, plan: Plan, target: Target) -> int:
    """Blocks of one role that a multiprocessor holds, by registers and shared memory; roles fill it
    alone.
    """
    if plan.roles != "one":
        return 1
    stage = sum(
        m.bytes
        for p in work.parts
        for m in p.moved
        if 0 <= m.number < len(plan.loads) and plan.loads[m.number].path in ("shared", "async")
    )
    held = (
        sum(d.shape[0] * d.shape[1] for p in work.parts for d in p.dots) // (32 * plan.warps) + 40
    )
    return max(
        1,
        min(
            target.shared_bytes // max(1, stage * plan.stages + 1024),
            target.registers // (32 * plan.warps * max(held, 32)),
            2048 // (32 * plan.warps),
        ),
    )


class Numbers:
    """Integers of a kernel as one launch has them, in a program in the middle of the grid."""

    def __init__(self, kernel: tile.Kernel, sizes: Sizes | None):
        self.sizes = sizes
        self.arguments: dict[SSAValue, tuple[int, ...] | int | float | None] = (
            dict(zip(kernel.body.block.args, sizes.arguments, strict=False)) if sizes else {}
        )

    def trips(self, loop: Operation) -> float:
        if not isinstance(loop, scf.ForOp):
            return ASSUMED_TRIPS
        low, high, step = map(self.of, (loop.lb, loop.ub, loop.step))
        if low is None or high is None or not step:
            return ASSUMED_TRIPS
        return max(0, ceil((high - low) / step))

    def bytes(self, argument: SSAValue) -> int:
        shape = self.arguments.get(argument)
        if not isinstance(shape, tuple):
            return 0
        return prod(shape) * bits(array_type(argument).element) // 8

    def inside(self, op: Operation) -> int:
        """Bytes of a block that are inside its array, which may be smaller than the block."""
        shape = self.arguments.get(op.array) if isinstance(op, tile.Load) else None
        if not isinstance(op, tile.Load) or not isinstance(shape, tuple):
            return bytes_of(op)
        return int(
            bytes_of(op)
            * prod(
                min(1, n / e) for n, e in zip(shape, op.extents.get_values(), strict=False) if e > 0
            )
        )

    def of(self, value: SSAValue) -> float | None:
        """The number, None where it is not known."""
        if isinstance(value, BlockArgument):
            known = self.arguments.get(value)
            if isinstance(known, int):
                return known
            loop = value.owner.parent_op()
            return self.of(loop.lb) if isinstance(loop, scf.ForOp) and value.index == 0 else None
        match op := owner_op(value):
            case tile.ProgramId() | tile.NumPrograms():
                if self.sizes is None:
                    return None
                n = self.sizes.grid[op.axis.value.data]
                return n // 2 if isinstance(op, tile.ProgramId) else n
            case tile.Dim():
                return self.extent(op)
        # of single numbers it makes a single number
        return cast("float | None", computed(op, self.of))

    def extent(self, op: tile.Dim) -> int | None:
        array, axis = op.operands[0], op.axis.value.data
        while isinstance(array.owner, tile.View):
            kinds = [k.data for k in array.owner.kinds]
            i = [place for place, kind in enumerate(kinds) if kind != "index"][axis]
            if kinds[i] != "all":
                return None
            array, axis = array.owner.array, i
        shape = self.arguments.get(array)
        return shape[axis] if isinstance(shape, tuple) else None


def scattered(op: Operation) -> float:
    """How much longer registers take to store a result whose rows start at odd elements, so that
    elements are stored one by one, or whose columns are dense.
    """
    if (
        not isinstance(op, tile.Store)
        or len(strides := array_type(op.array).facts.strides) != 2
        or min(op.extents.get_values()) <= 1
    ):
        return 1.0
    if strides[1].exact == 1:
        return (
            ODD_ROWS_FACTOR
            if (strides[0].exact if strides[0].exact is not None else strides[0].divisor) % 2
            else 1.0
        )
    return COLUMN_STORE_FACTOR


def cut(op: Operation) -> bool:
    """Whether rows of a block may start at 16 bytes past a multiple of 32, in which the memory
    moves.
    """
    if not isinstance(op, tile.Load):
        return False
    size, extents = bits(array_type(op.array).element) // 8, op.extents.get_values()
    return any(
        s.exact != 1 and (s.exact if s.exact is not None else s.divisor) * size % 32 and n > 1
        for s, n in zip(array_type(op.array).facts.strides, extents, strict=False)
    )


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
