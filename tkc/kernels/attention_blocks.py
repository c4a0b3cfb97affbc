"""Blocks of attention's programs: those that a device can run, and which of them finishes a launch
first.

Free are the rows of Q and of K that a program has at once, tiles of 64 rows side by side, and the
width to which rows are padded (wide swizzles take fewer lines). An estimate in closed form decides
where Hopper's tensor cores multiply (`seconds`); elsewhere registers and shared memory do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd, prod
from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import Array, dtype_of, library
from tkc.kernels.copies import BYTES, strides_of

FLOAT8 = "float8_e4m3"
WARPGROUP = 64  # rows
# by D up to which registers hold the accumulator: rows of Q that a program may have, one to four
# warpgroups of 64
MAX_D_BY_ROWS = {64: 256, 128: 256, 192: 128, 256: 64}
COLUMNS = range(48, 177, 16)  # of K, at once
TILE_COLUMNS = 64  # of three warpgroups or more, at least, and of tiles side by side
MAX_TILE_COLUMNS = 128  # of a program of 64 rows
SIDE_BY_SIDE = 1, 3, 4  # tiles of 64 rows that may be asked for
# elements of 16 bits to which rows are padded: half a quarter, a half and a whole of a swizzle
STEPS = 16, 32, 64
# 32-bit registers of a consumer's thread, by the warpgroups of a block
REGISTERS = {1: 232, 2: 232, 3: 160, 4: 112}
# those for accumulator, left operand and scores, by the tiles of 64 rows side by side
TILE_REGISTERS = {2: 232, 3: 152, 4: 112}
MAX_OPERANDS = {1: 144, 2: 144, 3: 128, 4: 80}  # of its accumulator and left operand
MAX_LACKING = 32  # that a plan may lack: with more, most of a loop is spilled
STAGES = 2  # of K and V in shared memory, at least
RESERVED_SHARED_BYTES = 4096
LINE = 128  # bytes that a tensor map asks for at once
LEFT_BYTES = 2048  # of shared memory that wgmma reads for the left operand of a dot, 16 deep
# tiles of a cache side by side: pages' numbers and places leave four too few registers
CACHED_TILES = 3
MAX_TILED_D = 128  # with which three have registers
CROWDED = 8  # exponent by which parts of a step that take equally long get in one another's way
MAX_REMEMBERED = 4096  # launches


def width_of(d: int, step: int = 16) -> int:
    """Columns of a block that holds rows of d elements: the tensor core's step is 16 elements, or
    32 of 8 bits.
    """
    return max(step, -(-d // step) * step)


class Block(NamedTuple):
    """Rows of Q and of K that a tile has, how many co-resident tiles a thread block has, and a
    multiple of which rows' elements are padded.
    """

    rows: int
    columns: int
    co_resident: int = 1
    step: int = 16

    @property
    def warpgroups(self) -> int:
        """That compute, of a thread block."""
        return max(1, self.co_resident * self.rows // WARPGROUP)


@dataclass(frozen=True)
class Launch:
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


def seconds(block: Block, launch: Launch, device: Any) -> float:
    """What a launch takes on a device, in closed form: the steps of the busiest multiprocessor's
    programs, one after the other. A step's dots and vector work overlap, but for a part of the
    shorter one; neither is faster than the lines in which K and V come.
    """
    times, chip = device.attention, device.chip
    rows = block.rows * block.co_resident
    step = _step(block, launch, device)
    steps, longest = _steps(block, launch), ceil(launch.columns(rows)[0] / block.columns)
    _, dv = launch.widths
    fixed = times.program + times.result * rows * width_of(dv, block.step)
    fixed += times.mask * rows * _masked(block, launch)
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


def _steps(block: Block, launch: Launch) -> float:
    """Of a program, on average: tiles side by side have loops of their own, of which those of the
    first rows are shorter, and those beyond the last row empty.
    """
    _, mean = launch.columns(block.rows)
    if launch.even and not launch.window:
        return ceil(mean / block.columns)
    tiles = ceil(launch.queries / block.rows)
    groups = ceil(tiles / block.co_resident)
    return tiles / (groups * block.co_resident) * (mean / block.columns + 0.5)


def _masked(block: Block, launch: Launch) -> int:
    """Columns of a row's blocks that masks cut."""
    if launch.causal or launch.window:
        ends = 2 if launch.window else 1
        return min(ends * (block.rows + block.columns), launch.keys)
    return block.columns if launch.keys % block.columns else 0


def _step(block: Block, launch: Launch, device: Any) -> float:
    """Clocks of a step of all tiles of a thread block."""
    times, chip, groups = device.attention, device.chip, block.warpgroups
    d, dv = (width_of(n, block.step) for n in launch.widths)
    scores = groups * WARPGROUP * block.columns
    scale = 2 * WARPGROUP * 16 / chip.tensor  # clocks of a dot's column, 16 deep
    tensor = groups * (
        d
        / 16
        * max(block.columns * scale, (32 * block.columns + LEFT_BYTES) / device.engines.shared)
        + block.columns / 16 * dv * scale
    )
    vector = scores * times.score
    shown = times.shown_apart if block.co_resident > 1 else times.shown
    together = max(tensor, vector) + shown[groups - 1] * min(tensor, vector) + times.step
    together *= 1 + times.lacking * _lacking(block, launch)
    boxes = sum(2 * n / gcd(2 * n, LINE) for n in (d, dv))
    lines = block.columns * boxes * times.line
    copied = 2 * block.columns * (d + dv) / device.rates.fabric
    return float(sum(part**CROWDED for part in (together, lines, copied)) ** (1 / CROWDED))


def _lacking(block: Block, launch: Launch) -> int:
    """Registers that a thread has too few: beside the accumulator and the left operand there are
    scores of this step and the next.
    """
    operands = _operands(block.columns, launch, block.step)
    return max(0, operands + block.columns - REGISTERS[block.warpgroups])


def _operands(columns: int, launch: Launch, step: int) -> int:
    """Registers of a thread for a tile's accumulator and left operand."""
    return width_of(launch.widths[1], step) // 2 + columns // 4


def _members(asked: int, columns: int, launch: Launch, step: int) -> int:
    """Co-resident tiles that a thread block has, where so many are asked for."""
    operands = _operands(columns, launch, step)
    fitting = (
        n
        for n in range(2, asked + 1)
        if operands <= MAX_OPERANDS[n] and operands + columns <= TILE_REGISTERS[n]
    )
    return max(fitting, default=1)


def blocks(launch: Launch, shared: int) -> Iterator[Block]:
    """Every block that registers and so many bytes of shared memory hold. co_resident: as many
    tiles as there are.
    """
    for step in STEPS:
        wider = (width_of(n, step) > width_of(n, step // 2) for n in launch.widths)
        if step > STEPS[0] and not any(wider):
            continue
        for rows, columns in product(_rows(launch), COLUMNS):
            for tiles in _tiles(rows, columns, launch, step):
                block = Block(rows, columns, tiles, step)
                if _fits(block, launch, shared):
                    yield block


def _rows(launch: Launch) -> list[int]:
    """Rows of Q of a tile: no more than twice what there are."""
    longest = max(launch.widths)
    return [
        rows
        for rows, most in MAX_D_BY_ROWS.items()
        if longest <= most and (rows == WARPGROUP or launch.queries > rows // 2)
    ]


def _tiles(rows: int, columns: int, launch: Launch, step: int) -> set[int]:
    """How many tiles of so many rows may stand side by side."""
    if rows > WARPGROUP:
        return {1} if rows <= 2 * WARPGROUP or columns >= TILE_COLUMNS else set()
    if columns > MAX_TILE_COLUMNS:
        return set()
    asked = SIDE_BY_SIDE if columns >= TILE_COLUMNS else SIDE_BY_SIDE[:1]
    return {1} | {_members(n, columns, launch, step) for n in asked[1:]}


def _fits(block: Block, launch: Launch, shared: int) -> bool:
    """Whether registers and shared memory hold it."""
    d, dv = (width_of(n, block.step) for n in launch.widths)
    operands = _operands(block.columns, launch, block.step)
    held = block.rows * block.co_resident * d + STAGES * block.columns * (d + dv)
    return (
        operands <= MAX_OPERANDS[block.warpgroups]
        and _lacking(block, launch) <= MAX_LACKING
        and not (block.co_resident == 2 and _nearly_holds_three(block, launch))
        and 2 * held <= shared - RESERVED_SHARED_BYTES
    )


def _nearly_holds_three(block: Block, launch: Launch) -> bool:
    """Whether a plan may hold three of a block's tiles with few registers lacking, which it then
    spills.
    """
    operands = _operands(block.columns, launch, block.step)
    return 0 < operands + block.columns - TILE_REGISTERS[3] <= MAX_LACKING


@lru_cache(MAX_REMEMBERED)
def fastest(launch: Launch, target: str, rows: int | None, columns: int | None) -> Block:
    """The block with which a launch ends first on a target with wgmma; rows, columns: as asked."""
    machine = tkc.target(target)
    found = [
        block
        for block in blocks(launch, machine.shared_bytes)
        if (rows is None or (rows, 1) == (block.rows, block.co_resident))
        and columns in (None, block.columns)
    ]
    if not found:  # what is asked for may be more than that
        return Block(rows or WARPGROUP, columns or WARPGROUP)
    return min(found, key=lambda block: (seconds(block, launch, machine.device), block))


def has_wgmma(target: str) -> bool:
    return target != "cpu" and tkc.target(target).wgmma


def _float32_block(d: int, target: str) -> tuple[int, int]:
    if d <= 128 or target == "cpu" or has_wgmma(target):
        return 64, 64 if d <= 64 else 32
    return (64, 16) if d <= 192 else (32, 16)


def _chosen(
    q: Array, k: Array, v: Array, launch: Launch, rows: int | None, columns: int | None
) -> Block:
    """A program's block, as asked or what ends the launch first.

    Hopper's tensor cores read Q and K from shared memory, the others' from registers.
    """
    d, target = max(launch.widths), tkc.target_of(q)
    if rows is not None and rows > 2 * WARPGROUP:
        return Block(rows, columns or (96 if rows == 192 and d <= 64 else 64))
    if dtype_of(q) == "float32":
        bm, bn = _float32_block(d, target)
    elif not has_wgmma(target):
        bm, bn = _mma_block(d, target, launch)
    elif _fits_tma(q, k, v):
        return fastest(launch, target, rows, columns)
    else:
        bm, bn = 64 if launch.queries <= 64 else 128, 128 if d <= 128 else 64
    return Block(rows or bm, columns or bn)


def _mma_block(d: int, target: str, launch: Launch) -> tuple[int, int]:
    """64 rows as long as every program has a multiprocessor."""
    short = launch.queries <= 64 or d > 128
    places = 0 if target == "cpu" else tkc.target(target).multiprocessors
    bm = 64 if short or 0 < launch.programs(64) <= places else 128
    if target == "cpu" or d > 192:
        return bm, 64
    if d > 128:
        return bm, 32
    return bm, 64 if bm == 64 else _columns_of_two_blocks(bm, d, target, launch.window > 0)


def _columns_of_two_blocks(rows: int, d: int, target: str, windowed: bool) -> int:
    """Rows of K, 64 at most, with which two programs' Q, and two stages of their K and V, share a
    multiprocessor's shared memory; 64 where there is no room for 48. windowed: a window's ends take
    registers, too, so that more than 160 accumulators leave a thread too few.
    """
    d = width_of(d)
    left = tkc.target(target).half_shared_bytes - 2 * rows * d
    columns = min(64, left // (2 * 2 * 2 * d) // 16 * 16)
    if columns < 48:
        return 64
    return min(columns, 160 - d) if windowed else columns


def _fits_tma(q: Array, k: Array, v: Array) -> bool:
    """Whether tensor maps serve these operands and a loop walks over the keys."""
    return dtype_of(q) != FLOAT8 and _loops(k) and all(map(_mapped, (q, k, v)))


def block_of(
    q: Array,
    k: Array,
    v: Array,
    causal: bool,
    window: int | None,
    rows: int | None = None,
    columns: int | None = None,
) -> Block:
    """The block of attention's programs, for q of [batch, heads, queries, D]: as asked, else what
    ends such a launch first.
    """
    batch, heads, queries, _ = q.shape
    launch = _launch(q, k, v, batch * heads, queries, k.shape[2], queries, causal, window)
    return _chosen(q, k, v, launch, rows, columns)


def block_of_sequences(
    q: Array, k: Array, v: Array, sequences: int, longest: int, causal: bool, window: int | None
) -> Block:
    """The block for so many sequences, one after the other in q of [tokens, heads, D]."""
    tokens, heads, _ = q.shape
    mean = tokens / max(1, sequences)
    if mean >= longest:  # all as long as the longest, or not known: as in batches
        mean = longest
    launch = _launch(q, k, v, heads * sequences, longest, longest, mean, causal, window)
    return _chosen(q, k, v, launch, None, None)


def _launch(
    q: Array,
    k: Array,
    v: Array,
    sequences: int,
    queries: int,
    keys: int,
    mean: float,
    causal: bool,
    window: int | None,
) -> Launch:
    """Arguments as of Launch."""
    d, dv = widths = q.shape[-1], v.shape[-1]
    rows, columns = sequences * mean, prod(k.shape[:-1])
    moved = int(BYTES[dtype_of(q)] * (rows + columns) * (d + dv))
    return Launch(sequences, queries, keys, mean, causal, window or 0, widths, moved)


def block_of_pages(q: Array, queries: int, size: int) -> Block:
    """The block of many queries of a cache, for q of [batch, heads, queries, D]; size: rows of a
    page, or 0. Blocks of 64 columns, which lie in one page of as many rows or twice as many; tiles
    of 64 rows side by side where they fit, since masks cut what rows see; two warpgroups where rows
    of K are not gathered.
    """
    d, target = q.shape[-1], tkc.target_of(q)
    if dtype_of(q) == "float32":
        return Block(*_float32_block(d, target))
    if has_wgmma(target):
        if d <= MAX_TILED_D:
            return Block(64, 64, CACHED_TILES)
        return Block(64 if size % 64 else 128, 64)
    launch = _launch(q, q, q, q.shape[0] * q.shape[1], queries, queries, queries, True, None)
    rows, columns = _mma_block(d, target, launch)
    return Block(rows if d <= 64 else 64, columns)


def _mapped(x: Array) -> bool:
    """Whether tensor maps can copy blocks of an array's rows of 16-bit elements: dense rows that
    begin at multiples of 16 bytes.
    """
    *outer, dense = strides_of(x)
    start = x.data_ptr() if library(x) == "torch" else x.data.ptr if library(x) == "cupy" else 0
    return (
        dense == 1
        and start % 16 == 0
        and all(stride % 8 == 0 for stride, n in zip(outer, x.shape, strict=False) if n > 1)
    )


def _loops(k: Array) -> bool:
    """Whether programs have a loop, whose warpgroups can take turns: of one key the compiler makes
    none.
    """
    return k.shape[-2 if len(k.shape) == 4 else 0] > 1


def options_of(q: Array, k: Array, block: Block) -> dict[str, int]:
    """The options that give a program of many rows a warpgroup for each 64, where it has a loop,
    and each of those side by side one. Raises LaunchError where there is none.
    """
    rows = block.rows
    if block.co_resident > 1 or rows == 64:
        if not has_wgmma(tkc.target_of(q)) or not _loops(k):
            return {}
        # two are what registers hold of more: of two that are asked for one may take turns
        return {"programs": max(3, block.co_resident) if block.co_resident > 1 else 1}
    if rows <= 128 or (target := tkc.target_of(q)) == "cpu":
        return {}
    if not has_wgmma(target) or dtype_of(q) in ("float32", FLOAT8):
        raise tkc.LaunchError(
            f"attention: rows = {rows} of {dtype_of(q)} is not for {target}: three or four"
            " warpgroups are Hopper's, for 16-bit types; leave rows out"
        )
    return {"num_warps": rows // 16} if _loops(k) else {}


def check_block(d: int, rows: int | None, columns: int | None) -> None:
    """Raises LaunchError where no program has such a block."""
    if rows is not None and (rows not in MAX_D_BY_ROWS or d > MAX_D_BY_ROWS[rows]):
        raise tkc.LaunchError(
            "attention: rows is one of"
            f" {', '.join(f'{n} (D up to {most})' for n, most in MAX_D_BY_ROWS.items())}, or None;"
            f" got {rows} with D = {d}"
        )
    if columns is not None and not (16 <= columns <= 256 and columns % 16 == 0):
        raise tkc.LaunchError(
            f"attention: columns is a multiple of 16 from 16 to 256, or None; got {columns}"
        )
