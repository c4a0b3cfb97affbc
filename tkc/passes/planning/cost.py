"""A closed-form cost model: an estimate in seconds, for ranking plans of one program and
configurations of one kernel. It is not a prediction (tkc/timing has one).

    Work.of(kernel, sizes)        what programs do: loops with trip counts, dots, bytes moved
    cost(work, plan, target)      a Cost: seconds, and what they are made of

A step of a loop takes a multiprocessor as long as the slowest of

    tensor        dots at the rate of the planned instruction; wgmma reads shared memory itself,
                  2 KiB and 32 N bytes for each 64 x N x 16, and shares it with the copies
    l2            bytes that its loads bring from the L2 cache (shared copies of a cluster once): as
                  many as a multiprocessor takes, or the cache gives to all of them: what programs
                  of one GPC ask for at once it sends once, unless rows cut its sectors
    lines         of 128 bytes that tensor maps ask for: narrow rows take one each, rows that begin
                  amid a line two
    latency       of a copy, divided by the stages that run ahead of the one in use
    units         copies that pass through registers
    relayout      of 8-bit operands: a role of its own reads and writes shared memory again

and somewhat longer, as these get in one another's way. Programs beyond the grid, which fill up
clusters, have blocks of zeros, which tensor maps make slowly.

A program adds what nothing overlaps: its epilogue and the restart of the pipeline, unless another
program of the block multiplies meanwhile. Programs come in waves; the last one costs like a full
one. The whole is not faster than memory. Without sizes there are many waves, and loops of unknown
trip count take ASSUMED_TRIPS steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod
from typing import TypeGuard

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from tkc.devices import Costs
from tkc.ir import tile
from tkc.ir.plan import LoadPlan, Plan
from tkc.ir.rewrite import loop_of, loops_of
from tkc.ir.target import (
    LEFT_BYTES,
    LINE,
    RIGHT_BYTES,
    ROW_ALIGNMENT,
    SECTOR,
    SWIZZLE_BITS,
    Target,
)
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import array_type, holds, tile_type
from tkc.passes.analysis.access import bytes_of, tile_of
from tkc.passes.analysis.alias import accessed
from tkc.passes.analysis.mapped import dense_of_block
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.values import LOADS, feeding_dots
from tkc.passes.layouts.epilogue_subtiles import ROWS_PER_WARPGROUP, lines_of_subtile
from tkc.passes.planning.bandwidth import Moving, time_of
from tkc.passes.planning.numbers import Numbers, Sizes
from tkc.passes.planning.roles.registers import parts_at_once
from tkc.passes.programs.stream_k import MAX_SHARED_PROGRAMS

LEAST_UNIT = 8  # columns of an instruction of wgmma are a multiple
STORES = (tile.Store, tile.StorePointers, tile.Atomic, tile.AtomicBlock)


@dataclass(frozen=True)
class Dot:
    """A dot of the plan's number, in a loop's body. units: of what rows (columns) of an instruction
    are a multiple where its right operand has them as columns: of a swizzle, where these are dense.
    """

    number: int
    shape: tuple[int, int, int]
    bits: int
    units: tuple[int, int] = (LEAST_UNIT, LEAST_UNIT)


@dataclass(frozen=True)
class Moved:
    """A load of the plan's number (−1: a store): bytes, those of them inside its array, the program
    axes it depends on, whether it feeds a dot, lines of the cache that a tensor map asks for, how
    many times its bytes the sectors have that it touches, and where rows cut sectors how often
    programs that stand side by side ask for one line. last: bytes inside of a program that is the
    last along those axes.
    """

    number: int
    bytes: int
    inside: int
    axes: frozenset[int]
    fed: bool
    lines: float = 0.0
    touched: float = 1.0
    asked: float = 0.0
    last: int = 0


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
    the arrays read; stored, results: bytes and elements of results of one program; of these
    odd_rows: elements in rows that start at odd elements, columns: in dense columns. width: the
    elements of a result's row, or what divides those of all; height: likewise its rows. vector:
    elements of a row that a thread may store at once, of any result. partial: bytes of the sectors
    that rows of results have in part, in which these may begin anywhere.
    """

    grid: tuple[int, int, int] | None
    parts: tuple[Part, ...]
    stored: int
    results: int
    footprint: int
    odd_rows: int = 0
    columns: int = 0
    width: int = 0
    height: int = 0
    vector: int = 1
    partial: float = 0.0
    # of programs without dots
    moving: Moving | None = None

    @staticmethod
    def of(kernel: tile.Kernel, sizes: Sizes | None = None) -> Work:
        known, order = Numbers(kernel, sizes), list(kernel.walk())
        loads = [op for op in order if isinstance(op, LOADS)]
        stored = [(op, t) for op in order if isinstance(op, STORES) and (t := tile_of(op))]
        tiles = [t for _, t in stored]
        return Work(
            None if sizes is None else sizes.grid,
            _parts_of(kernel, known, order, loads, [op for op, _ in stored]),
            stored=sum(bytes_of(op) for op, _ in stored),
            results=sum(t.size for t in tiles),
            footprint=_footprint(loads, known),
            odd_rows=_size_of_scattered(stored, "odd rows"),
            columns=_size_of_scattered(stored, "columns"),
            width=gcd(*(t.extents[-1] for t in tiles if t.rank)),
            height=gcd(*(t.extents[-2] for t in tiles if t.rank > 1)),
            vector=_stored_at_once(stored),
            partial=_partial(stored),
            moving=_moving(kernel, known, loads, stored),
        )


def _moving(
    kernel: tile.Kernel,
    known: Numbers,
    loads: Sequence[Operation],
    stored: Sequence[tuple[Operation, TileType]],
) -> Moving | None:
    """What a program without dots does; None where it has some."""
    if holds(kernel, tile.Dot):
        return None
    size = min((bits(t.element) // 8 for _, t in stored if t.rank), default=1)
    vector = max(1, size) * _stored_at_once(stored)
    return Moving.of(kernel, known, loads, [op for op, _ in stored], vector)


def _footprint(loads: Sequence[Operation], known: Numbers) -> int:
    """Bytes of the arrays of which blocks are loaded."""
    read = {accessed(op) for op in loads if isinstance(op, tile.Load)}
    return sum(known.bytes(argument) for argument in read if argument is not None)


def _size_of_scattered(stored: Sequence[tuple[Operation, TileType]], how: str) -> int:
    """Elements of the tiles that are stored in this way."""
    return sum(t.size for op, t in stored if scattered(op) == how)


def _stored_at_once(stored: Sequence[tuple[Operation, TileType]]) -> int:
    """Elements of a row of any of the blocks that alignment lets a thread store at once."""
    blocks = [op for op, _ in stored if isinstance(op, tile.Store | tile.AtomicBlock)]
    if not blocks or len(blocks) < len(stored):
        return 1
    sizes = [(gcd(ROW_ALIGNMENT, _pitch(op)), bits(array_type(op.array).element)) for op in blocks]
    return max(1, min(pitch * 8 // size for pitch, size in sizes))


def _partial(stored: Sequence[tuple[Operation, TileType]]) -> float:
    """Bytes of the sectors that rows of stored blocks have in part."""
    return sum(_partial_of_block(op) for op, _ in stored if isinstance(op, tile.Store))


def _partial_of_block(op: tile.Store) -> float:
    """Of rows of a line of memory at most each; none where they begin where sectors do, or columns
    are dense.
    """
    strides = array_type(op.array).facts.strides
    if not strides or strides[-1].exact != 1 or not Target.cuts_sectors(_pitch(op)):
        return 0.0
    row = gcd(LINE, op.extents.get_values()[-1] * bits(array_type(op.array).element) // 8)
    return bytes_of(op) / row * 2 * SECTOR


def _parts_of(
    kernel: tile.Kernel,
    known: Numbers,
    order: Sequence[Operation],
    loads: Sequence[Operation],
    stores: Sequence[Operation],
) -> tuple[Part, ...]:
    """What is computed and moved in each loop, and outside of loops. order: all operations."""
    parts: dict[Operation | None, tuple[list[Dot], list[Moved]]] = {}
    feeding = feeding_dots(kernel)

    def place(op: Operation) -> tuple[list[Dot], list[Moved]]:
        return parts.setdefault(loop_of(op), ([], []))

    for i, dot in enumerate(op for op in order if isinstance(op, tile.Dot)):
        *batch, m, n = tile_type(dot.acc).extents
        k = tile_type(dot.a).extents[-1] * prod(batch)
        units = _unit(dot.a, 0), _unit(dot.b, 1)
        place(dot)[0].append(Dot(i, (m, n, k), bits(element_of(dot.a.type)), units))
    for i, load in enumerate(loads):
        if tile_of(load) is not None:
            place(load)[1].append(_moved(i, load, known, load.results[0] in feeding))
    for store in stores:
        size = bytes_of(store)
        place(store)[1].append(Moved(-1, size, size, frozenset(), False))
    return tuple(
        Part(
            prod(known.trips(loop) for loop in ([*loops_of(loop), loop] if loop else [])),
            tuple(d),
            tuple(m),
        )
        for loop, (d, m) in parts.items()
    )


def _unit(operand: SSAValue, axis: int) -> int:
    """Rows (columns, axis 1) of an operand of which an instruction's are a multiple."""
    load = operand.owner
    if not isinstance(load, tile.Load) or dense_of_block(load) != axis:
        return LEAST_UNIT
    return max(LEAST_UNIT, _row(load) * 8 // bits(element_of(operand.type)))


def _moved(number: int, load: Operation, known: Numbers, feeds_dots: bool) -> Moved:
    around = [loop.lb for loop in loops_of(load) if isinstance(loop, scf.ForOp)]
    sectors, asked = 1.0, 0.0
    if is_cut(load):
        row, pitch = _row(load), _pitch(load)
        sectors, asked = Target.sectors_of_row(row, pitch), Target.asked_of_line(row, pitch)
    return Moved(
        number,
        bytes_of(load),
        known.inside(load),
        frozenset(program_axes([*load.operands, *around], ends=False)),
        feeds_dots,
        lines(load),
        sectors,
        asked,
        known.last(load),
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
    """What a plan would cost on a target's device."""
    if work.moving is not None and work.grid is not None:
        time = time_of(work.moving, work.grid, plan, target)
        turns = prod(work.grid) / time.places
        limit = "memory" if time.memory > max(time.waiting, time.issuing) else "latency"
        return Cost(time.seconds, turns, time.issuing, time.waiting, time.memory, limit)
    costs = target.costs
    per_block = max(1, plan.programs)
    memory, programs, resident, places = memory_of(work, plan, target)
    memory += min(memory, costs.dirty / (target.memory * 1e9))
    parallel = programs * plan.split_k
    waves, shares = _waves(work, plan, parallel, places)
    loops = _loops(work, plan, target, resident, parallel, places, waves)
    # of all blocks that a multiprocessor holds
    stored = _stored(work, plan, costs) * resident
    exposed = loops.exposed + stored
    if per_block == 1:
        each = loops.clocks + exposed
        hidden = max(0.0, waves - 1) * min(exposed, loops.ahead)
    else:
        # what one multiplies hides what the other stores, but for a part, and no more than that
        storing = stored - costs.restart_clocks
        looping = loops.clocks + costs.storing_beside * max(0.0, storing)
        each, hidden = max(looping, (loops.clocks + exposed) / per_block, storing), 0.0
    met = costs.meeting(work.results, shares, _at_once(work, plan))
    total = (
        waves * each
        - hidden
        + (exposed if per_block > 1 else 0)
        + (0 if shares == 1 or plan.parts_in_cluster else met)
    )
    begun = _begun(plan, costs, min(parallel, places)) if work.grid else 0.0
    on_each = parallel / (target.multiprocessors * resident)
    scale = 1 / (_clock(target, loops, total + begun, on_each) * 1e9)
    # memory is idle until programs have begun
    seconds = (
        begun * scale
        + max(total * scale, memory)
        + costs.overlap * min(total * scale, memory)
        + costs.launch_seconds
    )
    if target.wgmma and plan.roles == "one":
        seconds *= costs.one_role
    return Cost(
        seconds,
        waves / per_block,
        waves * loops.clocks * scale,
        (begun + total - waves * loops.clocks) * scale,
        memory,
        loops.limit if memory < total * scale else "memory",
    )


def _size(plan: Plan) -> int:
    """Blocks of a cluster."""
    return plan.split_k if plan.parts_in_cluster else prod(plan.cluster)


def _at_once(work: Work, plan: Plan) -> float:
    """Parts of k that the last program of several asks for at once."""
    if plan.split_k == 1:
        return 1.0
    return float(parts_at_once(plan.split_k, max(1, work.results // (32 * plan.warps))))


def _begun(plan: Plan, costs: Costs, programs: int) -> float:
    """Clocks until all of so many programs at once have begun, and after the last has ended."""
    blocks = programs / max(1, plan.programs)
    return costs.launch_clocks + costs.block_clocks * blocks + costs.cluster * (_size(plan) > 1)


def _clock(target: Target, loops: Loops, total: float, programs: float) -> float:
    """GHz that power allows. total: clocks of the launch; programs: of a place, on average."""
    if not target.wgmma or not total:
        return target.clock
    return target.device.clock(total, programs * loops.copied / total)


def _waves(work: Work, plan: Plan, parallel: int, places: int) -> tuple[float, int]:
    """How many programs one after the other the busiest place runs, and into how many parts the
    programs of the last wave are divided. Without sizes there are many waves.
    """
    if work.grid is None:
        return parallel / places, 1
    whole, rest = divmod(parallel, places)
    steps = max((p.trips for p in work.parts if p.dots), default=0)
    few, most = MAX_SHARED_PROGRAMS
    if not plan.stream_k or not rest or rest * most > places * few or steps < 2:
        return float(ceil(parallel / places)), plan.split_k
    helpers = places - rest
    if rest <= helpers:
        parts = min(places // rest, plan.stream_k)
        return whole + ceil(steps / parts) / steps, parts
    # each helper takes the last steps of several programs
    turns = ceil(rest / helpers)
    return whole + (steps - steps // (turns + 1)) / steps, turns + 1


@dataclass(frozen=True)
class Loops:
    """Clocks of a program's loops, and of what nothing overlaps outside of them; bytes that it
    copies; what limits the longest loop; clocks of its first steps that copies take longer than
    dots, and may while the results of the program before leave.
    """

    clocks: float
    exposed: float
    copied: float
    limit: str
    ahead: float


def _loops(
    work: Work,
    plan: Plan,
    target: Target,
    resident: int,
    parallel: int,
    places: int,
    waves: float,
) -> Loops:
    """What a program does besides storing its results."""
    clocks = exposed = copied = longest = ahead = 0.0
    limit = "memory"
    active = min(parallel, places) / resident if work.grid else 0.0
    launch = Launch(work.grid, active)
    for part in work.parts:
        trips = ceil(part.trips / plan.split_k) if part.dots else part.trips
        multiplied = _multiplied(part, plan, target)
        step = _step(part, plan, target, resident, launch, multiplied)
        if part.trips == 1 and not part.dots:
            exposed += step.clocks
        else:
            clocks += trips * step.clocks
        for where, share in _filled(part, plan, target, launch, waves):
            filled = _step(part, plan, target, resident, where, multiplied)
            clocks += trips * share * max(0.0, filled.clocks - step.clocks)
        copied += trips * step.copied
        if trips * step.clocks > longest and part.dots:
            longest, limit = trips * step.clocks, step.limit
            ahead = min(trips, plan.stages) * (step.clocks - step.tensor)
        if plan.roles == "one" and part.dots and trips > 1:
            # nothing overlaps its first copies
            exposed += _latency(part, plan, target.costs) + step.clocks
    return Loops(clocks, exposed, copied, limit, ahead if plan.roles != "one" else 0.0)


def step_clocks(work: Work, plan: Plan, target: Target) -> float:
    """Clocks of an iteration of the loops with dots, by what is copied and multiplied alone."""
    launch = Launch(work.grid, 0.0)
    with_dots = [part for part in work.parts if part.dots]
    steps = (
        _step(part, plan, target, 1, launch, _multiplied(part, plan, target)) for part in with_dots
    )
    return sum(step.clocks for step in steps)


def _filled(
    part: Part, plan: Plan, target: Target, launch: Launch, waves: float
) -> Iterator[tuple[Launch, float]]:
    """Where programs have operands that tensor maps fill up with zeros: beyond the grid, and at the
    end of an axis; with the share that these have of the busiest multiprocessor's programs.
    """
    if not launch.grid or not part.dots:
        return
    if beyond := target.beyond(launch.grid, plan.cluster, waves):
        yield replace(launch, beyond=True), beyond
    whole = max(1, ceil(waves))
    for axis, extent in enumerate(launch.grid):
        if any(axis in x.axes and x.last < x.inside for x in part.moved if x.fed):
            yield replace(launch, last=axis), ceil(whole / extent) / whole


def _stored(work: Work, plan: Plan, costs: Costs) -> float:
    """Clocks of a program's end: its results, and the restart of its pipeline."""
    if not any(p.dots for p in work.parts):
        return 0.0
    return costs.restart_clocks + _storing(work, plan, costs)


def _storing(work: Work, plan: Plan, costs: Costs) -> float:
    """Clocks in which a program stores its results; of one in parts that are blocks of a cluster,
    in which each gets its share and stores it.
    """
    if plan.parts_in_cluster:
        parts = plan.split_k
        turned = any(dot.swap for dot in plan.dots)
        of_share = replace(
            work,
            results=work.results // parts,
            odd_rows=work.odd_rows // parts,
            columns=work.columns // parts,
            width=work.width if turned else work.width // parts,
            height=work.height // parts if turned else work.height,
        )
        alone = replace(plan, parts_in_cluster=False)
        return float(costs.meeting_in_cluster(work.results, parts)) + _storing(
            of_share, alone, costs
        )
    if plan.epilogue == "direct":
        odd = (costs.odd_rows - 1) * work.odd_rows + (costs.columns - 1) * work.columns
        return costs.store_direct * (work.results + odd)
    rows, columns = ROWS_PER_WARPGROUP * max(1, plan.warps // 4), gcd(work.width, plan.columns)
    if plan.epilogue == "shared":
        return costs.leaving_by_threads(work.results, columns, work.vector)
    turned = any(dot.swap for dot in plan.dots)
    if turned:
        rows, columns = lines_of_subtile(work.height, plan.columns), rows
    leaving = costs.leaving(work.results, rows, columns, whole=plan.subtiles == 1)
    return leaving + costs.store_turned * turned


def memory_of(work: Work, plan: Plan, target: Target) -> tuple[float, int, int, int]:
    """Seconds of the memory; programs of the launch, blocks that a multiprocessor holds, and places
    for programs on the device.
    """
    per_block, traffic = max(1, plan.programs), 0.0
    whole = target.clustered(_size(plan))
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
    if work.grid:  # where axes 1 and 2 are too short for a raster, axis 0 moves on
        rows = min(max(rows, ceil(shared / (work.grid[1] * work.grid[2]))), work.grid[0])
    columns = ceil(shared / max(rows, 1))
    # axis 0 moves on first, axis 2 last
    layers = ceil(columns / min(columns, max(1, work.grid[1]))) if work.grid else 1
    columns = ceil(columns / layers)
    apart = {0: rows, 1: columns, 2: layers}
    for part in work.parts:
        trips = part.trips / plan.split_k if part.dots else part.trips
        for m in part.moved:
            # of rows that begin amid sectors, neighbours fetch the sectors that they share again
            distinct = min(shared, prod(apart[axis] for axis in m.axes))
            if m.number >= 0:
                traffic += trips * m.inside * m.touched * distinct / shared
    read = traffic * programs
    if work.footprint:
        read = work.footprint if work.footprint <= target.cache else max(read, work.footprint)
    kept = plan.split_k > 1 and not plan.parts_in_cluster  # parts, in memory
    written: float = work.stored * programs * (1 + 4 * plan.split_k * kept)
    written += target.costs.partial * work.partial * programs
    return (read + written) / (target.memory * 1e9), programs, resident, places


@dataclass(frozen=True)
class Step:
    """Clocks of one trip of the blocks that a multiprocessor holds, those of its dots alone, bytes
    that it copies, and what the clocks are spent on.
    """

    clocks: float
    tensor: float
    copied: float
    limit: str


@dataclass(frozen=True)
class Launch:
    """Where a step is done. grid: None where sizes are not known; active: multiprocessors that have
    programs, 0 likewise; beyond: whether its program is beyond the grid; last: an axis along which
    it is the last one.
    """

    grid: tuple[int, int, int] | None
    active: float
    beyond: bool = False
    last: int | None = None


def _step(
    part: Part,
    plan: Plan,
    target: Target,
    resident: int,
    launch: Launch,
    multiplied: tuple[float, float, float],
) -> Step:
    """One trip of a loop's body. multiplied: what `_multiplied` says of its dots."""
    costs = target.costs
    tensor, reads, relaid = multiplied
    copies = _copied(part, plan, target, launch)
    if reads:
        moved = sum(x.bytes for x in part.moved if x.fed) + 3 * relaid
        tensor = max(tensor, (reads + moved) / costs.shared) + costs.step
    served = copies.sent / target.l2 + copies.cut / costs.cut_l2
    fabric = max(
        copies.bytes / target.fabric, served * launch.active, copies.asked * costs.cut_line
    )
    stages = max(1, plan.stages)
    if not part.dots or not any(x.fed for x in part.moved):
        latency = 0.0
    elif _waits(part, plan):
        latency = _latency(part, plan, costs) + tensor + fabric + copies.units
    elif stages > 1:
        latency = _latency(part, plan, costs) / (stages - 1)
    else:
        latency = _latency(part, plan, costs) + tensor + fabric
    times = {
        "tensor": tensor * resident,
        "l2": fabric * resident,
        "latency": latency,
        "units": copies.units * resident,
        "lines": copies.lines * resident,
        "an operand relaid": costs.relayout + costs.relayout_byte * relaid if relaid else 0.0,
    }
    why = max(times, key=lambda part: times[part])
    clocks = times[why] if plan.roles == "one" else target.crowded(times.values())
    return Step(clocks, min(clocks, tensor * resident), copies.bytes * resident, why)


def _waits(part: Part, plan: Plan) -> bool:
    """Whether threads load an operand step by step, with nothing that runs ahead."""
    loads = [_load_of(x, plan) for x in part.moved if x.fed]
    return any(load is not None and load.path == "shared" for load in loads) and part.trips > 1


def _latency(part: Part, plan: Plan, costs: Costs) -> float:
    """Clocks from asking for a step's operands to having them."""
    paths = [plan.loads[x.number].path for x in part.moved if 0 <= x.number < len(plan.loads)]
    if "tma" not in paths:
        return costs.load_latency
    return costs.copy_latency + costs.shared_copy_latency * (prod(plan.cluster) > 1)


def _multiplied(part: Part, plan: Plan, target: Target) -> tuple[float, float, float]:
    """Clocks of a step's dots, bytes that wgmma reads in shared memory, bytes that are relaid."""
    costs = target.costs
    tensor = reads = relaid = 0.0
    for d in part.dots:
        chosen = plan.dots[d.number] if d.number < len(plan.dots) else None
        m, n, k = d.shape
        if chosen is not None and chosen.swap:
            m, n = n, m
        rate = target.tensor * 16 / max(d.bits, 8)
        if chosen is None or chosen.instruction == "fma":
            tensor += 2 * m * n * k / costs.fma
        elif chosen.instruction == "wgmma":
            rows = _up(m, 64)
            number = rows / 64 * k * d.bits / 256
            apart = _instructions(d, chosen.swap, plan, target) * (chosen.a == "shared")
            left, right = LEFT_BYTES * number * apart, RIGHT_BYTES * number * n
            slow = target.engines.reading(left, right) if _cuts_swizzles(d, chosen.swap) else 0.0
            tensor += max(slow, 2 * rows * n * k / rate)
            reads += left + right
            relaid += d.bits // 8 * k * (m * (chosen.a == "relaid") + n * (chosen.b == "relaid"))
        else:
            slower = costs.mma_sync if target.wgmma else 1
            tensor += 2 * _up(m, 16) * _up(n, 8) * k / (rate * slower)
    return tensor, reads, relaid


def _cuts_swizzles(dot: Dot, swap: bool) -> bool:
    """Whether rows of the right operand are parts of swizzles and columns of its matrix."""
    unit = dot.units[not swap]
    return unit > LEAST_UNIT and unit * dot.bits % SWIZZLE_BITS != 0


def _instructions(dot: Dot, swap: bool, plan: Plan, target: Target) -> int:
    """Instructions side by side that a dot takes: each reads the rows of the left operand again."""
    columns, unit = dot.shape[not swap], dot.units[not swap]
    consumers = plan.warps // 4 * max(1, plan.programs)
    return columns // target.dot_width(columns, unit, 128 * (consumers + 1))


@dataclass(frozen=True)
class Copies:
    """Bytes that a step brings from the L2 cache; its share of what that sends to a GPC, of whole
    sectors and of those that rows cut; how often all ask for one line of the latter; clocks of
    copies that pass through registers, of the lines that tensor maps ask for.
    """

    bytes: float
    sent: float
    cut: float
    asked: float
    units: float
    lines: float


def _sharing(load: LoadPlan | None, plan: Plan) -> int:
    """Blocks of a cluster that one copy serves."""
    if load is None or load.multicast < 0:
        return 1
    return prod(plan.cluster[axis] for axis in load.among)


def _load_of(moved: Moved, plan: Plan) -> LoadPlan | None:
    """How a load is planned; None of a store."""
    return plan.loads[moved.number] if 0 <= moved.number < len(plan.loads) else None


def _copied(part: Part, plan: Plan, target: Target, launch: Launch) -> Copies:
    """What a step copies."""
    costs = target.costs
    fabric = sent = cut = units = lines = asked = 0.0
    for x in part.moved:
        load = _load_of(x, plan)
        mapped = load is not None and load.path == "tma"
        inside, fill = _inside(x, plan, launch, costs)
        sharing = _sharing(load, plan)
        each = (inside + (fill * (x.bytes - inside) if mapped else 0)) / sharing
        fabric += each
        if x.touched > 1:
            cut += each * x.touched
            asked = max(asked, x.asked * _sharers(x, launch) / sharing)
        else:
            sent += each * sharing * _once(x, sharing, plan, target, launch)
        if load is None:
            continue
        if mapped:
            lines += x.lines * costs.copied_line / sharing
        else:
            # what lies beyond an array takes a role's turn, but no load of a warp's own
            copied = x.bytes if load.path == "cp_async" else inside
            instructions = copied / (32 * max(1, load.vector))
            units += instructions * _instruction(load.path, x.fed, costs)
    return Copies(fabric, sent, cut, asked, units, lines)


def _sharers(moved: Moved, launch: Launch) -> float:
    """Programs that have a block at once."""
    sizes = enumerate(launch.grid or ())
    return min(launch.active, prod(n for axis, n in sizes if axis not in moved.axes))


def _inside(moved: Moved, plan: Plan, launch: Launch, costs: Costs) -> tuple[int, float]:
    """Bytes of a block inside its array, and how many of them cost as much as one that is not."""
    if launch.beyond and _is_beyond(moved, plan, launch):
        return 0, costs.filled
    if launch.last in moved.axes and moved.last < moved.inside:
        return moved.last, costs.partly_filled
    return moved.inside, costs.filled


def _is_beyond(moved: Moved, plan: Plan, launch: Launch) -> bool:
    """Whether a block of a program beyond the grid is beyond its array."""
    sizes = zip(launch.grid or (), plan.cluster, strict=False)
    return any(axis in moved.axes and n % cluster for axis, (n, cluster) in enumerate(sizes))


def _once(moved: Moved, sharing: int, plan: Plan, target: Target, launch: Launch) -> float:
    """Copies of a block that the L2 cache sends, for each program that has it."""
    if launch.grid is None or moved.number < 0:
        return 1 / sharing
    parts = plan.split_k if plan.parts_in_cluster else 1
    programs = max(1, plan.programs) / plan.split_k * parts
    count, *places = target.neighbours(launch.grid, plan.cluster, plan.raster, programs, parts)
    apart = prod(places[axis] for axis in moved.axes if axis < len(places))
    return target.sent(count, apart)


def _instruction(path: str, fed: bool, costs: Costs) -> float:
    """Clocks of a warp's instruction that loads what no tensor map copies. fed: it feeds a dot."""
    if path in ("async", "cp_async"):
        return costs.async_load
    return costs.fragment_load if path == "registers" and fed else costs.staged_load


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


def scattered(op: Operation) -> str:
    """Why registers take longer to store a result: its rows start at odd elements, so that elements
    are stored one by one ("odd rows"), or its columns are dense ("columns"). Else "".
    """
    if (
        not isinstance(op, tile.Store)
        or len(strides := array_type(op.array).facts.strides) != 2
        or min(op.extents.get_values()) <= 1
    ):
        return ""
    if strides[1].exact == 1:
        pitch = strides[0].exact if strides[0].exact is not None else strides[0].divisor
        return "odd rows" if pitch % 2 else ""
    return "columns"


def lines(op: Operation) -> float:
    """Lines of the L2 cache that a tensor map asks for to copy a block, a swizzle's row at a time:
    a narrow row takes a line like a wide one, one that begins amid a line takes two.
    """
    if not isinstance(op, tile.Load) or not isinstance(op.result.type, TileType):
        return bytes_of(op) / LINE
    return bytes_of(op) / _row(op) * Target.lines_of_row(_row(op), _pitch(op))


def _row(op: tile.Load) -> int:
    """Bytes of a row of a block as a tensor map copies it."""
    size, dense, extents = (
        bits(array_type(op.array).element) // 8,
        dense_of_block(op),
        tile_type(op.result).extents,
    )
    return gcd(LINE, (extents[dense] if dense < len(extents) else 1) * size)


def is_cut(op: Operation) -> TypeGuard[tile.Load]:
    """Whether rows of a block may start amid a sector, in which the memory moves."""
    return isinstance(op, tile.Load) and Target.cuts_sectors(_pitch(op))


def _pitch(op: tile.Load | tile.Store | tile.AtomicBlock) -> int:
    """Bytes of which a block's rows begin at multiples."""
    size, facts = bits(array_type(op.array).element) // 8, array_type(op.array).facts.strides
    return gcd(
        *(
            (s.exact if s.exact is not None else s.divisor) * size
            for s, n in zip(facts, op.extents.get_values(), strict=False)
            if s.exact != 1 and n > 1
        )
    )


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
