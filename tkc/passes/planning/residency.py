"""How many blocks of few warps are resident, and how deep their rings are then.

What hides the latency of memory is either a ring, which asks ahead, or other blocks, which compute
meanwhile. Where loops run a few iterations, a ring asks ahead a few times and holds its stages all
the time; blocks that shared memory keeps out then cost more than it gains.
"""

from __future__ import annotations

from collections.abc import Collection

from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.target import Target
from tkc.passes.planning.numbers import Numbers
from tkc.passes.planning.pressure import demand

MAX_FEW_TRIPS = 4  # of a loop that runs a few iterations
MAX_THREAD_REGISTERS = 255
ADDRESS_REGISTERS = 32  # of a thread, beside its tiles
BLOCK_BYTES = 1024  # of shared memory that the system takes of each block


def runs_few_iterations(kernel: tile.Kernel, loops: Collection[Operation | None]) -> bool:
    """Whether it is known of all loops that they run a few iterations."""
    numbers = Numbers(kernel, None)
    return all(loop is not None and numbers.trips(loop) <= MAX_FEW_TRIPS for loop in loops)


def resident_by_registers(kernel: tile.Kernel, warps: int, target: Target) -> int:
    """How many blocks of a kernel's threads the registers of a multiprocessor hold."""
    threads = 32 * warps
    each = min(MAX_THREAD_REGISTERS, -(-demand(kernel) // threads) + ADDRESS_REGISTERS)
    return max(1, min(target.registers // each, target.threads) // threads)


def stages_of_few(stage: int, others: int, resident: int, target: Target) -> int:
    """Stages of rings whose loops run a few iterations: as many as leave shared memory to all the
    blocks that registers hold (`resident`); two, if they leave it to most of them; else none ahead
    (1). stage, others: bytes of a stage, and of a block's other buffers.
    """

    def held(stages: int) -> int:
        return target.shared_bytes // (stages * stage + others + BLOCK_BYTES)

    deep = (n for n in (4, 3, 2) if held(n) >= resident)
    return next(deep, 2 if 3 * held(2) >= 2 * resident else 1)
