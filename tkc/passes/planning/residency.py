"""Shared memory of rings and buffers; how many blocks of few warps are resident, and how deep
their rings are then.

What hides the latency of memory is either a ring, which asks ahead, or other blocks, which compute
meanwhile. Where loops run a few iterations, a ring asks ahead a few times and holds its stages all
the time; blocks that shared memory keeps out then cost more than it gains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.plan import LoadPlan
from tkc.ir.rewrite import loop_of
from tkc.ir.target import Target
from tkc.passes.allocate_shared import MAX_UNSHARED_BYTES
from tkc.passes.analysis.access import bytes_of
from tkc.passes.planning.numbers import Numbers
from tkc.passes.planning.pressure import MAX_REGISTERS_PER_THREAD, demand, scratch, together
from tkc.passes.planning.program import Program

MAX_FEW_TRIPS = 4  # of a loop that runs a few iterations
ADDRESS_REGISTERS = 32  # of a thread, beside its tiles
BLOCK_BYTES = 1024  # of shared memory that the system takes of each block


def runs_few_iterations(kernel: tile.Kernel, loops: Collection[Operation | None]) -> bool:
    """Whether it is known of all loops that they run a few iterations."""
    numbers = Numbers(kernel, None)
    return all(loop is not None and numbers.trips(loop) <= MAX_FEW_TRIPS for loop in loops)


def resident_by_registers(kernel: tile.Kernel, warps: int, target: Target) -> int:
    """How many blocks of a kernel's threads the registers of a multiprocessor hold."""
    threads = 32 * warps
    each = min(MAX_REGISTERS_PER_THREAD, -(-demand(kernel) // threads) + ADDRESS_REGISTERS)
    return max(1, min(target.registers // each, target.threads) // threads)


def stages_within(stage: int, others: int, resident: int, target: Target) -> int:
    """Stages of rings whose loops run a few iterations: as many as leave shared memory to all the
    blocks that registers hold (`resident`); two, if they leave it to most of them; else none ahead
    (1). stage, others: bytes of a stage, and of a block's other buffers.
    """

    def held(stages: int) -> int:
        return target.shared_bytes // (stages * stage + others + BLOCK_BYTES)

    deep = (n for n in (4, 3, 2) if held(n) >= resident)
    return next(deep, 2 if 3 * held(2) >= 2 * resident else 1)


def stages_of_few(
    kernel: tile.Kernel,
    warps: int,
    stage: int,
    others: int,
    target: Target,
    say: Callable[[str], None],
) -> int:
    """Stages of a kernel's rings whose loops run a few iterations (`stages_within`), by blocks of
    `warps` warps; says why.
    """
    resident = resident_by_registers(kernel, warps, target)
    chosen = stages_within(stage, others, resident, target)
    say(
        f"{chosen} stage{'s'[: chosen > 1]} of {stage} bytes: loops run a few iterations, and"
        f" registers hold {resident} blocks of a multiprocessor"
    )
    return chosen


def shared_bytes(program: Program, loads: tuple[LoadPlan, ...]) -> tuple[int, int]:
    """Bytes of one stage of the largest loop's rings, and of the buffers outside rings."""
    stages: dict[Operation | None, int] = {}
    for op, load in zip(program.loads, loads, strict=False):
        if load.path == "async":
            stages[loop_of(op)] = stages.get(loop_of(op), 0) + bytes_of(op)
    buffers = [
        (op, bytes_of(op))
        for op, load in zip(program.loads, loads, strict=False)
        if load.path == "shared"
    ]
    lasting = sum(size for _, size in buffers if size <= MAX_UNSHARED_BYTES)
    sharing = [(op, size) for op, size in buffers if size > MAX_UNSHARED_BYTES]
    others = lasting + together(sharing, program.kernel) + scratch(program.kernel)
    return max(stages.values(), default=0), others
