"""Blocks of attention's programs on Hopper's tensor cores: those that registers and shared memory
hold, and which of them finishes a launch first.

    attention_block(AttentionLaunch(64, 4096, …), "sm_90a")         AttentionBlock(128, 128, …)

Free are the rows of Q and of K that a program has at once, tiles of 64 rows side by side, and the
width to which rows are padded (wide swizzles take fewer lines). Nothing is traced: how many tiles a
thread block holds is what planning the kernel would say (roles/registers.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd
from typing import NamedTuple

from tkc.devices import Device
from tkc.ir.target import LEFT_BYTES, LINE, RIGHT_BYTES, target
from tkc.passes.planning.roles.registers import (
    MAX_OPERAND_REGISTERS,
    MIN_LOOKAHEAD_REGISTERS,
    ROLE_REGISTERS,
    most_members,
)

WARPGROUP_ROWS = 64
# by D up to which registers hold the accumulator: rows of Q that a program may have, one to four
# warpgroups of 64
MAX_D_BY_ROWS = {64: 256, 128: 256, 192: 128, 256: 64}
COLUMNS = range(48, 177, 16)  # of K, at once
TILE_COLUMNS = 64  # of three warpgroups or more, at least, and of tiles side by side
MAX_TILE_COLUMNS = 128  # of a program of 64 rows
SIDE_BY_SIDE = 1, 3, 4  # tiles of 64 rows that may be asked for
# elements of 16 bits to which rows are padded: half a quarter, a half and a whole of a swizzle
STEPS = 16, 32, 64
MAX_LACKING = 32  # registers that a thread may lack: with more, most of a loop is spilled
CLAIM_REGISTERS = 8  # of a thread of co-resident programs that compute ahead: what they claim
STAGES = 2  # of K and V in shared memory, at least
RESERVED_SHARED_BYTES = 4096
CROWDED = 8  # exponent by which parts of a step that take equally long get in one another's way
MAX_REMEMBERED = 4096  # launches


class AttentionBlock(NamedTuple):
    """Rows of Q and of K that a tile has, how many co-resident tiles a thread block has, and a
    multiple of which rows' elements are padded.
    """

    rows: int
    columns: int
    co_resident: int = 1
    step: int = STEPS[0]

    @property
    def warpgroups(self) -> int:
        """That compute, of a thread block."""
        return max(1, self.co_resident * self.rows // WARPGROUP_ROWS)

    @staticmethod
    def most_width(rows: int) -> int:
        """The widest D of which a tile may have so many rows; 0 where none may."""
        return MAX_D_BY_ROWS.get(rows, 0)

    def width(self, d: int) -> int:
        """Elements that rows of d are padded to."""
        return -(-d // self.step) * self.step


@dataclass(frozen=True)
class AttentionLaunch:
    """What is launched. sequences: heads of all batches; queries, keys: of the longest; mean: its
    queries, on average; window: columns that a row sees, 0 for all; widths: elements of a row of Q
    and K, and of V; bytes: that memory moves.
    """

    sequences: int
    queries: int
    keys: int
    mean: float
    causal: bool
    window: int
    widths: tuple[int, int]
    bytes: int

    @property
    def even(self) -> bool:
        """Whether all programs take equally long."""
        return self.mean == self.queries and (not self.causal or self.window > 0)

    def programs(self, rows: int) -> float:
        """Of so many rows."""
        if self.mean == self.queries:
            return self.sequences * ceil(self.queries / rows)
        return self.sequences * (self.mean / rows + 0.5)

    def columns(self, rows: int) -> tuple[float, float]:
        """Columns that such a program walks over, at most and on average."""
        if self.window:
            seen = float(min(self.keys, self.window + rows))
            return seen, seen
        share = self.mean / self.queries
        if not self.causal:
            return float(self.keys), self.keys * share
        if self.keys < self.queries:  # the first rows see nothing
            return float(self.keys), (self.keys + rows) / 2 * share * self.keys / self.queries
        programs = ceil(self.queries / rows)
        padding = programs * rows - self.queries
        before = self.keys - self.queries
        mean = rows * (programs + 1) / 2 - padding / programs
        return float(self.keys), before + mean * share


# ---- which blocks there are
def blocks(launch: AttentionLaunch, shared: int) -> Iterator[AttentionBlock]:
    """Every block that registers and so many bytes of shared memory hold. co_resident: as many
    tiles as planning the kernel finds room for.
    """
    for step in STEPS:
        half = AttentionBlock(0, 0, step=step // 2)
        whole = AttentionBlock(0, 0, step=step)
        if step > STEPS[0] and not any(whole.width(n) > half.width(n) for n in launch.widths):
            continue
        for rows, columns in product(_rows(launch), COLUMNS):
            for block in _side_by_side(AttentionBlock(rows, columns, step=step), launch):
                if _fits(block, launch, shared):
                    yield block


def _rows(launch: AttentionLaunch) -> list[int]:
    """Rows of Q of a tile: no more than twice what there are."""
    longest = max(launch.widths)
    return [
        rows
        for rows, most in MAX_D_BY_ROWS.items()
        if longest <= most and (rows == WARPGROUP_ROWS or launch.queries > rows // 2)
    ]


def _side_by_side(block: AttentionBlock, launch: AttentionLaunch) -> set[AttentionBlock]:
    """A block with as many tiles of its rows side by side as may be asked for."""
    rows, columns = block.rows, block.columns
    if rows > WARPGROUP_ROWS:
        return {block} if rows <= 2 * WARPGROUP_ROWS or columns >= TILE_COLUMNS else set()
    if columns > MAX_TILE_COLUMNS:
        return set()
    asked = SIDE_BY_SIDE if columns >= TILE_COLUMNS else SIDE_BY_SIDE[:1]
    operands, scores = _operands(block, launch), columns // 2
    return {block._replace(co_resident=most_members(operands, scores, n)) for n in asked}


def _operands(block: AttentionBlock, launch: AttentionLaunch) -> int:
    """Registers of a thread for a tile's accumulator and left operand."""
    return block.width(launch.widths[1]) // 2 + block.columns // 4


def _lacking(block: AttentionBlock, launch: AttentionLaunch) -> int:
    """Registers that a thread has too few: beside the accumulator and the left operand there are
    scores of this step and the next; and co-resident programs claim theirs.
    """
    room = ROLE_REGISTERS[block.warpgroups][1]
    claims = CLAIM_REGISTERS * (block.co_resident > 2 and room >= MIN_LOOKAHEAD_REGISTERS)
    return max(0, _operands(block, launch) + block.columns + claims - room)


def _fits(block: AttentionBlock, launch: AttentionLaunch, shared: int) -> bool:
    """Whether registers and shared memory hold it; of tiles side by side without a register too
    few, which each of them would spill.
    """
    d, dv = map(block.width, launch.widths)
    held = block.rows * block.co_resident * d + STAGES * block.columns * (d + dv)
    return (
        _operands(block, launch) <= MAX_OPERAND_REGISTERS[block.warpgroups]
        and _lacking(block, launch) <= MAX_LACKING * (block.co_resident == 1)
        and 2 * held <= shared - RESERVED_SHARED_BYTES
    )


def _most_columns(block: AttentionBlock, launch: AttentionLaunch, shared: int) -> int:
    """Columns, 64 at most, of which shared memory holds two steps beside the rows and what
    warpgroups that share columns of sums write for one another.
    """
    d, dv = map(block.width, launch.widths)
    room = (shared - RESERVED_SHARED_BYTES) // 2 - block.rows * d
    columns = room // (STAGES * (d + dv + block.rows)) // 16 * 16
    return min(WARPGROUP_ROWS, max(16, columns))


# ---- how long a launch takes
@lru_cache(MAX_REMEMBERED)
def attention_block(
    launch: AttentionLaunch, name: str, rows: int | None = None, columns: int | None = None
) -> AttentionBlock:
    """The block with which a launch ends first on a target with wgmma; rows, columns: as asked."""
    machine = target(name)
    found = [
        block
        for block in blocks(launch, machine.shared_bytes)
        if (rows is None or (rows, 1) == (block.rows, block.co_resident))
        and columns in (None, block.columns)
    ]
    if not found:  # what is asked for may be more than that, or rows have more elements
        # whole panels for each of two warpgroups, which share columns of sums
        wide = max(launch.widths) > max(MAX_D_BY_ROWS.values())
        block = AttentionBlock(rows or WARPGROUP_ROWS, 0, step=STEPS[-1 if wide else 0])
        most = _most_columns(block, launch, machine.shared_bytes)
        return block._replace(columns=columns or most)
    return min(found, key=lambda block: (seconds(block, launch, machine.device), block))


def seconds(block: AttentionBlock, launch: AttentionLaunch, device: Device) -> float:
    """What a launch takes on a device, in closed form: the steps of the busiest multiprocessor's
    programs, one after the other. A step's dots and vector work overlap, but for a part of the
    shorter one; neither is faster than the lines in which K and V come. Nothing overlaps all of
    what a program waits for first.
    """
    times, chip = device.attention, device.chip
    rows = block.rows * block.co_resident
    step = _step(block, launch, device)
    steps, longest = _steps(block, launch), ceil(launch.columns(rows)[0] / block.columns)
    d, dv = map(block.width, launch.widths)
    fixed = times.program + times.result * rows * dv
    fixed += times.mask * rows * _masked(block, launch)
    fixed += times.first * times.line * (rows * _boxes(d) + _lines(block, launch))
    programs, places = launch.programs(rows), chip.multiprocessors
    last = fixed + (steps if launch.window else longest) * step
    average = fixed + steps * step
    if programs <= places:
        clocks = last
    elif launch.even:
        clocks = ceil(programs / places) * last
    else:  # as they fill the multiprocessors, longest first, and then a while not all
        clocks = max(last, programs / places * average + times.ending * average)
    running = (times.begin + clocks) / (device.rates.clock * 1e9)
    memory = launch.bytes / (device.rates.memory * 1e9)
    return times.launch + max(running, memory) + times.beside_memory * min(running, memory)


def _steps(block: AttentionBlock, launch: AttentionLaunch) -> float:
    """Of a program, on average: tiles side by side have loops of their own, of which those of the
    first rows are shorter, and those beyond the last row empty.
    """
    _, mean = launch.columns(block.rows)
    if launch.even and not launch.window:
        return ceil(mean / block.columns)
    tiles = ceil(launch.queries / block.rows)
    groups = ceil(tiles / block.co_resident)
    return tiles / (groups * block.co_resident) * (mean / block.columns + 0.5)


def _masked(block: AttentionBlock, launch: AttentionLaunch) -> int:
    """Columns of a row's blocks that masks cut."""
    if launch.causal or launch.window:
        ends = 2 if launch.window else 1
        return min(ends * (block.rows + block.columns), launch.keys)
    return block.columns if launch.keys % block.columns else 0


def _boxes(width: int) -> float:
    """Lines that a row of so many elements takes, a swizzle each."""
    return 2 * width / gcd(2 * width, LINE)


def _lines(block: AttentionBlock, launch: AttentionLaunch) -> float:
    """Lines of a step's K and V."""
    return block.columns * sum(_boxes(block.width(n)) for n in launch.widths)


def _step(block: AttentionBlock, launch: AttentionLaunch, device: Device) -> float:
    """Clocks of a step of all tiles of a thread block."""
    times, chip, groups = device.attention, device.chip, block.warpgroups
    d, dv = map(block.width, launch.widths)
    scores = groups * WARPGROUP_ROWS * block.columns
    scale = 2 * WARPGROUP_ROWS * 16 / chip.tensor  # clocks of a dot's column, 16 deep
    read = (RIGHT_BYTES * block.columns + LEFT_BYTES) / device.engines.shared
    tensor = d / 16 * max(block.columns * scale, read) + block.columns / 16 * dv * scale
    tensor *= groups
    vector = scores * times.score
    shown = times.shown_apart if block.co_resident > 1 else times.shown
    together = max(tensor, vector) + shown[groups - 1] * min(tensor, vector) + times.step
    together *= 1 + times.lacking * _lacking(block, launch)
    lines = _lines(block, launch) * times.line
    copied = 2 * block.columns * (d + dv) / device.rates.fabric
    return float(sum(part**CROWDED for part in (together, lines, copied)) ** (1 / CROWDED))
