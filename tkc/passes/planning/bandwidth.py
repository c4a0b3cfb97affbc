"""The time of programs without dots, in closed form: they move bytes, and wait.

    chain       clocks of one program: a load's latency, its threads' instructions, its collectives
                (a barrier waits for the longer the more warps it has, and for blocks of a cluster)
    waiting     chain x programs of each place, where registers and threads give a multiprocessor so
                many places; persistent blocks that read the next program early wait for the longer
                of its load and the rest
    issuing     all instructions of a multiprocessor's programs
    memory      all bytes, and those that programs read alike, from the L2 cache, where they stay
                nowhere nearer

Waiting, issuing and memory overlap as far as many programs share a multiprocessor: the time of a
launch is their norm with exponents near one (`Rows` of the device).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.plan import LoadPlan, Plan
from tkc.ir.rewrite import loop_of, loops_of
from tkc.ir.target import Target
from tkc.ir.values import tile_type
from tkc.passes.analysis.access import bytes_of, tile_of
from tkc.passes.analysis.program_axes import program_axes, sources
from tkc.passes.analysis.values import LOADS
from tkc.passes.planning import demands
from tkc.passes.planning.numbers import Numbers
from tkc.passes.planning.pressure import COLLECTIVES, demand

MAX_BLOCKS = 32  # of a multiprocessor
RESERVED_SHARED_BYTES = 2048  # of a block, for reductions
STEP_OF_REGISTERS = 8  # in which threads get them
VECTOR_BYTES = 16
MIN_REGISTERS, MAX_REGISTERS = 24, 256  # of a thread
SPILLED = 2  # accesses for a register that a thread lacks


@dataclass(frozen=True)
class Read:
    """A load of the plan's number: bytes of its tile, those of them inside its array, how often a
    program does it, and whether each program has its own.
    """

    number: int
    bytes: int
    inside: int
    trips: float
    own: bool


@dataclass(frozen=True)
class Moving:
    """What one program does. words: of 32 bits, that must be there at once; instructions: of a warp
    that did all of it alone, without those to memory; stored: bytes inside arrays; vector: bytes
    that a thread stores at once; meetings: collectives, one after the other; rows: that each of
    them has apart; gathers: loads from places that were loaded.
    """

    words: int
    instructions: float
    reads: tuple[Read, ...]
    stored: float
    vector: int
    meetings: float
    rows: int
    gathers: int

    @staticmethod
    def of(
        kernel: tile.Kernel,
        known: Numbers,
        loads: Sequence[Operation],
        stores: Sequence[Operation],
        vector: int,
    ) -> Moving:
        """vector: bytes that a thread stores at once."""
        runs: dict[Operation | None, list[Operation]] = {None: []}
        for op in kernel.walk():
            runs.setdefault(loop_of(op), []).append(op)
        times = {loop: _times(loop, known) for loop in runs}
        apart = {kernel, *loads, *stores}
        meeting = {op: n for loop, n in times.items() for op in runs[loop] if _meets(op)}
        return Moving(
            demand(kernel),
            sum(n * _instructions(runs[loop], apart) for loop, n in times.items()),
            _reads(loads, known, times),
            sum(times[loop_of(op)] * known.inside(op) for op in stores),
            vector,
            sum(meeting.values()),
            min((_rows(op) for op in meeting if isinstance(op, tile.Reduce)), default=1),
            sum(1 for op in loads if any(isinstance(o, LOADS) for o in sources(op.operands))),
        )

    @property
    def own(self) -> float:
        """Bytes that each program reads of its own, as often as it does."""
        return sum(r.inside for r in self.reads if r.own)

    @property
    def alike(self) -> float:
        """Bytes that all programs read, of one that does: from the L2 cache."""
        return sum(r.inside * r.trips for r in self.reads if not r.own)


@dataclass(frozen=True)
class Time:
    """seconds of a launch, and of what they are made; places: programs that run at once."""

    seconds: float
    waiting: float
    issuing: float
    memory: float
    places: float


def registers(moving: Moving, plan: Plan, target: Target) -> int:
    """Of a thread, about: what must be there at once, with addresses and copies of what is computed
    in parts; what is read early; what is kept.
    """
    times, threads = target.device.moving, 32 * plan.warps * plan.cluster_split[0]
    held = times.registers + times.held * moving.words / threads / plan.row_parts
    if plan.prefetch:
        held += sum(r.bytes for r in moving.reads if r.own) / 4 / threads
    if plan.resident_operands:
        held += sum(r.bytes for r in moving.reads if not r.own) / 4 / threads
    return _dealt(held)


def _dealt(registers: float) -> int:
    """Registers that a thread gets which needs so many."""
    return max(MIN_REGISTERS, ceil(registers / STEP_OF_REGISTERS) * STEP_OF_REGISTERS)


def occupancy(moving: Moving, plan: Plan, target: Target) -> int:
    """Blocks of a multiprocessor."""
    if plan.blocks:
        return plan.blocks
    most = _by_shared(moving, plan, target)
    return max(1, min(most, _by_threads(plan.warps, registers(moving, plan, target), target)))


def _by_threads(warps: int, each: int, target: Target) -> int:
    """Blocks of so many warps that a multiprocessor has registers and room for."""
    return min(
        target.registers // (32 * warps * min(MAX_REGISTERS, each)),
        target.threads // (32 * warps),
    )


def held_at_once(words: float, warps: int, target: Target) -> int:
    """Blocks of a multiprocessor whose threads have so many words that must be there at once."""
    times = target.device.moving
    each = _dealt(times.registers + times.held * words)
    return max(1, min(MAX_BLOCKS, _by_threads(warps, each, target)))


def _by_shared(moving: Moving, plan: Plan, target: Target) -> int:
    """Blocks of a multiprocessor whose rows stay in its shared memory; as many as there may be of
    others.
    """
    if plan.row_parts == 1:
        return MAX_BLOCKS
    return int(target.shared_bytes // (moving.own / plan.cluster_split[0] + RESERVED_SHARED_BYTES))


def time_of(
    moving: Moving,
    grid: tuple[int, int, int],
    plan: Plan,
    target: Target,
    resident: int | None = None,
) -> Time:
    """What a launch of so many programs takes. resident: blocks of a multiprocessor, where they are
    known.
    """
    times, programs = target.device.moving, prod(grid)
    warps, blocks = plan.warps, plan.cluster_split[0]
    multiprocessors = target.clustered(blocks)
    resident = resident or occupancy(moving, plan, target)
    places = max(1.0, multiprocessors * resident / blocks)
    # of those that are there at once, multiprocessors that have any; blocks of the busiest
    active = min(multiprocessors, programs * blocks)
    most = ceil(programs * blocks / active)
    turns = max(1.0, most / resident)
    clock = target.clock * 1e9
    accesses = _accesses(moving, plan.loads)
    each = (moving.instructions + accesses * times.access) / (warps * blocks)
    lacking = max(0.0, registers(moving, plan, target) - times.roomy)
    each += SPILLED * lacking * times.access
    issuing = each * warps / 4
    rest = max(times.chain * each, issuing) + times.latency * moving.gathers
    sharing = max(1, warps // moving.rows)  # warps of a row
    rest += moving.meetings * (times.meeting * log2(2 * sharing) + times.cluster * (blocks > 1))
    rate = min(times.fabric, target.memory * 1e9 / clock / active)
    reading, writing = moving.own / blocks / rate, times.written * moving.stored / blocks / rate
    again = 0.0 if _stays_near(moving, plan, resident, target) else moving.alike / blocks
    early = plan.prefetch or any(load.path == "own" for load in plan.loads)
    begin = times.begin + times.clustered * (blocks > 1)
    if plan.persistent:
        turns = float(ceil(turns))
        if not plan.dynamic_schedule:
            reading, writing = reading * times.uneven, writing * times.uneven
        if early:
            alone = max(times.latency + reading, rest) + times.turn
        else:
            alone = times.latency + reading + rest + times.turn
        # nothing is computed before the first rows are there
        before = begin + early * (times.latency + reading)
    else:
        alone = begin + times.latency + reading + rest
        before = 0.0
    copying = most * (reading + writing + again / times.fabric)
    clocks = norm(times.overlap, turns * alone, copying, most * issuing) + before
    seconds = times.launch + clocks / clock
    return Time(
        seconds,
        turns * alone / clock,
        most * issuing / clock,
        copying / clock,
        places,
    )


def _stays_near(moving: Moving, plan: Plan, resident: int, target: Target) -> bool:
    """Whether a block keeps what programs read alike, or it stays in the L1 cache: in a quarter of
    it, as rows stream through. The blocks of a cluster read a part each.
    """
    blocks = plan.cluster_split[0]
    here = min(resident, blocks) / blocks * moving.alike
    return plan.resident_operands or here <= target.half_shared_bytes / 2


def _times(loop: Operation | None, known: Numbers) -> float:
    """How often a program does what stands in a loop, 1 of what stands in none."""
    return prod(known.trips(around) for around in ([*loops_of(loop), loop] if loop else []))


def _instructions(ops: Sequence[Operation], apart: set[Operation]) -> float:
    """Of a warp that did these alone, but for those apart."""
    return demands.instructions([op for op in ops if op not in apart], 1)


def _reads(
    loads: Sequence[Operation], known: Numbers, times: dict[Operation | None, float]
) -> tuple[Read, ...]:
    """Of tiles. times: of what stands in each loop."""
    return tuple(
        Read(
            i,
            bytes_of(op),
            known.inside(op),
            times[loop_of(op)],
            bool(program_axes(op.operands)),
        )
        for i, op in enumerate(loads)
        if tile_of(op) is not None
    )


def _meets(op: Operation) -> bool:
    return isinstance(op, COLLECTIVES)


def _rows(op: tile.Reduce) -> int:
    """Rows of what is reduced."""
    t = tile_type(op.args[0])
    return max(1, int(t.size // t.extents[op.axis.value.data]))


def norm(exponent: float, *parts: float) -> float:
    """Of what overlaps so far: the larger the exponent, the better."""
    return float(sum(part**exponent for part in parts) ** (1 / exponent))


def _accesses(moving: Moving, loads: Sequence[LoadPlan]) -> float:
    """Instructions to memory of a warp that did all of it alone."""
    total = moving.stored / (32 * max(1, moving.vector))
    for read in moving.reads:
        vector = loads[read.number].vector if read.number < len(loads) else VECTOR_BYTES
        total += read.trips * read.bytes / (32 * max(1, vector))
    return total
