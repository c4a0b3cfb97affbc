"""Blocks for a product on Hopper's tensor cores: every legal one with its schedule, estimated in
closed form from the device's numbers, the best few kept for the compiler's model to choose among.

    tiles(Product(4096, 4096, 4096, 1, True, (8192, 8192)), "sm_90a", 12)   Tile(128, 256, …), …
    nanoseconds(product, tile, tkc.target("sm_90a"))                        what they are ranked by

One number for each: the time of the busiest multiprocessor, at the clock that power allows,

    waves · (steps · (tensor cores, L2 cache, latency of copies) + what a program ends with)

so that a tile of odd width that leaves no multiprocessor idle in the last wave is found like any
other, and so are few programs that share k (`split_k`, or `stream_k` in the last wave alone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, gcd, prod
from typing import Any

import tkc

BK = 64  # k of a step, of 16-bit elements: 128 bytes, the widest swizzle
WARPGROUP_ROWS = 64  # of a dot
WARP = 32  # threads
# rows of a dot, and how many warpgroups share them
WARPGROUPS = {64: 1, 128: 2, 192: 3, 256: 2}
# rows of blocks of any product; others divide its rows evenly, and are computed as transposes,
# whose rows are the block's columns
THIN_ROWS = 16, 32
TRANSPOSED_STEP = 8  # of which rows of a transposed block are a multiple
# of a thread for sums, by the warpgroups that share a multiprocessor's registers
SUMS = {1: 208, 2: 208, 3: 128}
# all of them; where a warpgroup beside these copies
ROOM, ROOM_BESIDE_COPIES = {1: 232, 2: 232, 3: 160}, {1: 240, 2: 200}
WIDEST, NARROWEST, STEP = 256, 32, 16  # columns
WHOLE_SWIZZLE, HALF_SWIZZLE = 64, 32  # columns
WHOLE_VECTOR = 8  # elements: 16 bytes, of which rows are multiples that tensor maps store
CLUSTERS = ((1, 1), (2, 1), (1, 2))
# where rows cut sectors, which the L2 cache serves slowly
CUT_SECTOR_CLUSTERS = (*CLUSTERS, (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
RASTER = 8  # blocks along rows that start before the next column does
FEW_PARTS = 2, 3, 4, 6, 8  # of k, beside as many as fill the device once or twice
WAVES_OF_PARTS = 1, 2
MAX_PARTS = 32  # that meet in a launch
MIN_STEPS_OF_A_PART = 4
STREAMED = 2, 4  # parts of a program of the last wave
MAX_STAGES = 8
MAX_WARPGROUPS = 3  # of a block beside the warps that ask for copies


@dataclass(frozen=True)
class Tile:
    """A block and its schedule. in_turn: two programs of a block at once, each on a warpgroup of
    its own.
    """

    rows: int
    columns: int
    in_turn: bool = False
    depth: int = BK
    cluster: tuple[int, int] = (1, 1)
    split_k: int = 1
    stream_k: int = 0

    @property
    def transposed(self) -> bool:
        """Whether its dots are computed as their transposes: their rows are the block's columns."""
        return self.rows % WARPGROUP_ROWS != 0

    @property
    def warpgroups(self) -> int:
        """How many share the rows of a program's dot; each other program has as many."""
        return WARPGROUPS[self.columns if self.transposed else self.rows]

    @property
    def options(self) -> dict[str, Any]:
        """Constants and launch options of the product's kernel."""
        found: dict[str, Any] = {
            "BM": self.rows,
            "BN": self.columns,
            "BK": self.depth,
            "programs": 1 + self.in_turn,
            "cluster": self.cluster,
            "stream_k": self.stream_k,
        }
        if self.warpgroups == 3:
            found["num_warps"] = 12
        if self.split_k > 1:
            found["split_k"] = self.split_k
        return found


@dataclass(frozen=True)
class Product:
    """What a launch computes: extents, batches; whether rows of b are dense, so that a block's
    columns are rows of shared memory; bytes from one row (or column) of a and b to the next;
    whether a launch of its own adds up parts of k; elements of a's, b's and the result's rows that
    alignment lets a thread copy or store at once (0 of results with dense columns), WHOLE_VECTOR
    where tensor maps do it.
    """

    m: int
    n: int
    k: int
    batches: int
    dense_rows: bool
    pitches: tuple[int, int]
    apart: bool = False
    vectors: tuple[int, int, int] = (WHOLE_VECTOR, WHOLE_VECTOR, WHOLE_VECTOR)

    @property
    def copied_by_threads(self) -> bool:
        """Whether threads copy an operand: a warpgroup beside those that multiply."""
        return min(self.vectors[:2]) < WHOLE_VECTOR

    @property
    def bytes(self) -> int:
        """Of the operands and the result, 16 bits an element."""
        return 2 * self.batches * (self.m * self.k + self.k * self.n + self.m * self.n)

    def adding(self, parts: int, machine: Any) -> float:
        """Nanoseconds of a launch that adds up parts of k, 32 bits an element."""
        costs, size = machine.costs, 4 * self.m * self.n * parts
        return float(costs.later_launch_seconds * 1e9 + size / (costs.added * machine.memory))

    def cuts_sectors(self, machine: Any) -> bool:
        """Whether rows of an operand may begin amid sectors."""
        return any(map(machine.cuts_sectors, self.pitches))

    def clusters(self, tile: Tile, machine: Any) -> tuple[tuple[int, int], ...]:
        """Worth a try of a tile: those whose shares of it are whole swizzles, and all where rows
        begin amid sectors; no more blocks than there are side by side. Programs in parts of k have
        none, nor those whose threads copy.
        """
        if tile.split_k > 1 or tile.stream_k or self.copied_by_threads:
            return CLUSTERS[:1]
        whole = not self.dense_rows or tile.columns % WHOLE_SWIZZLE == 0
        found: tuple[tuple[int, int], ...] = CLUSTERS if whole else CLUSTERS[:1]
        if self.cuts_sectors(machine):
            found = CUT_SECTOR_CLUSTERS
        down, across = self.grid(tile)
        return tuple((n, m) for n, m in found if n <= down and m <= across)

    def steps(self, tile: Tile) -> int:
        """Of a program that has all of k."""
        return ceil(self.k / tile.depth)

    def grid(self, tile: Tile) -> tuple[int, int]:
        """Blocks along the result's rows and columns."""
        return ceil(self.m / tile.rows), ceil(self.n / tile.columns)

    def programs(self, tile: Tile) -> int:
        """Blocks of the result, as many as clusters make of them, without parts of k."""
        along = zip(self.grid(tile), tile.cluster, strict=True)
        return prod(ceil(n / cluster) * cluster for n, cluster in along) * self.batches


def tiles(
    product: Product, target: str, count: int, allowed: Callable[[Tile], bool] = lambda tile: True
) -> list[Tile]:
    """Of the tiles that are allowed the `count` that the estimate puts first, on a target whose
    tensor cores take operands from shared memory (wgmma).
    """
    machine = tkc.target(target)
    legal = filter(allowed, _legal(product, machine))
    best: list[tuple[float, str, Tile]] = []
    # in the order of what they take at least: those that cannot be among the best are not estimated
    for least, _, tile in sorted((_least(product, t, machine), repr(t), t) for t in legal):
        if len(best) == count and least > best[-1][0]:
            break
        clustered = (replace(tile, cluster=c) for c in product.clusters(tile, machine))
        found = ((nanoseconds(product, t, machine), repr(t), t) for t in clustered if allowed(t))
        best = sorted([*best, *found])[:count]
    return [tile for *_, tile in best]


def _legal(product: Product, machine: Any) -> Iterator[Tile]:
    """Every tile that registers allow and that is not all padding, in no cluster."""
    for rows in _rows(product):
        # many rows pay where they are not mostly padding, few where there are few, or few blocks
        if rows >= max(128, 2 * product.m):
            continue
        if rows < WARPGROUP_ROWS and product.m > 2 * rows:
            blocks = product.programs(Tile(rows, WHOLE_SWIZZLE))
            if blocks > machine.multiprocessors:
                continue
        for columns in _columns(product, rows):
            for in_turn in (False,) if product.copied_by_threads else (False, True):
                tile = Tile(rows, columns, in_turn)
                idle = in_turn and product.programs(tile) <= machine.multiprocessors
                crowded = tile.warpgroups + product.copied_by_threads > MAX_WARPGROUPS
                if idle or crowded or not _fits_registers(tile):
                    continue
                for depth in _depths(product, rows):
                    yield from _parts(product, replace(tile, depth=depth), machine)


def _rows(product: Product) -> list[int]:
    """Rows of blocks: those of dots, few, and the fewest with which there are so many blocks."""
    fewest = (
        ceil(product.m / ceil(product.m / rows) / step) * step
        for rows in range(THIN_ROWS[-1], max(WARPGROUPS), TRANSPOSED_STEP)
        for step in (TRANSPOSED_STEP, 2 * TRANSPOSED_STEP)
    )
    transposed = {n for n in fewest if THIN_ROWS[-1] < n < max(WARPGROUPS) and n % WARPGROUP_ROWS}
    return sorted({*THIN_ROWS, *WARPGROUPS, *transposed})


def _depths(product: Product, rows: int) -> tuple[int, ...]:
    """k of a step: half a swizzle where there is no more, two where a step of few rows is short."""
    if product.k <= BK // 2:
        return (BK // 2,)
    return (BK, 2 * BK) if rows < WARPGROUP_ROWS else (BK,)


def _columns(product: Product, rows: int) -> Iterator[int]:
    """Columns of a block of so many rows: of a transposed one rows of dots, of dense rows halves of
    swizzles.
    """
    if rows % WARPGROUP_ROWS:
        yield from (n for n in WARPGROUPS if n <= max(WHOLE_SWIZZLE, product.n + STEP))
        return
    step = HALF_SWIZZLE if product.dense_rows else STEP
    for columns in range(max(step, NARROWEST), WIDEST + 1, step):
        if columns < max(WHOLE_SWIZZLE, product.n) + step:
            yield columns


def _fits_registers(tile: Tile) -> bool:
    """Whether a thread has room for its sums, of one program or of its own."""
    if tile.in_turn and tile.warpgroups == 3:
        return False
    return _sums(tile) <= SUMS[tile.warpgroups]


def _sums(tile: Tile) -> int:
    """Registers of a thread for a program's sums."""
    return tile.rows * tile.columns // (128 * (1 if tile.in_turn else tile.warpgroups))


def _parts(product: Product, tile: Tile, machine: Any) -> Iterator[Tile]:
    """A tile as it is, in parts of k, with the last wave's programs in parts."""
    programs, places = product.programs(tile), machine.multiprocessors
    yield tile
    if tile.in_turn:
        return
    if programs <= places // 2:
        most = places if product.apart else MAX_PARTS
        waves = (turns * places // programs for turns in WAVES_OF_PARTS)
        for parts in sorted({*FEW_PARTS, *waves}):
            if parts <= most and product.steps(tile) >= MIN_STEPS_OF_A_PART * parts:
                yield replace(tile, split_k=parts)
    elif programs > places and programs % places:
        for parts in STREAMED:
            if product.steps(tile) >= MIN_STEPS_OF_A_PART * parts:
                yield replace(tile, stream_k=parts)


def nanoseconds(product: Product, tile: Tile, machine: Any) -> float:
    """The estimate: of the busiest multiprocessor."""
    places = machine.clustered(prod(tile.cluster))
    programs = product.programs(tile) * tile.split_k
    active = min(programs, places)
    step = _step(product, tile, active, machine)
    waves, _ = _waves(product, tile, programs, places)
    if beyond := machine.beyond(product.grid(tile), tile.cluster, waves):
        filled = _step(product, tile, active, machine, beyond=True)
        step = replace(step, clocks=step.clocks + beyond * (filled.clocks - step.clocks))
    return _spent(product, tile, machine, places, step)


def _least(product: Product, tile: Tile, machine: Any) -> float:
    """What a tile takes in any cluster, at least: with copies that cost nothing."""
    dots, _ = _multiplied(tile, machine)
    return _spent(product, tile, machine, machine.multiprocessors, Step(dots, dots, 0.0, 0))


@dataclass(frozen=True)
class Step:
    """Clocks of one step of a program, those of its dots alone, bytes copied, and how many steps
    copies run ahead.
    """

    clocks: float
    dots: float
    copied: float
    stages: int


def _spent(product: Product, tile: Tile, machine: Any, places: int, step: Step) -> float:
    """Nanoseconds of a launch that has so many places for programs."""
    costs, programs = machine.costs, product.programs(tile) * tile.split_k
    waves, parts = _waves(product, tile, programs, places)
    steps = ceil(product.steps(tile) / tile.split_k)
    storing = _storing(product, tile, machine)
    leaving, looping = costs.restart_clocks + storing, steps * step.clocks
    if tile.in_turn:
        clocks = waves * max(looping, (looping + leaving) / 2, storing) + leaving
    else:
        # what copies take longer than dots, while the results of the program before leave
        ahead = min(steps, step.stages) * (step.clocks - step.dots)
        clocks = waves * (looping + leaving) - max(0.0, waves - 1) * min(leaving, ahead)
    if parts > 1 and not product.apart:
        clocks += costs.meeting(tile.rows * tile.columns, parts)
    clocks += costs.launch_clocks + costs.cluster * (prod(tile.cluster) > 1)
    copied = programs / machine.multiprocessors * steps * step.copied
    clock = machine.device.clock(clocks, copied / clocks)
    memory = _moved(product, tile, machine) / machine.memory
    computing = clocks / clock
    adding = product.adding(parts, machine) if product.apart else 0.0
    return float(max(computing, memory) + costs.overlap * min(computing, memory) + adding)


def _rows_copied(product: Product, tile: Tile) -> tuple[int, int]:
    """Bytes of rows of a and b as tensor maps copy them."""
    along_k = min(WHOLE_SWIZZLE, tile.depth)
    return 2 * along_k, 2 * (gcd(WHOLE_SWIZZLE, tile.columns) if product.dense_rows else along_k)


def _moved(product: Product, tile: Tile, machine: Any) -> float:
    """Bytes between memory and chip: of operands that the cache does not hold, where rows begin
    amid sectors, all of the sectors that rows of blocks touch.
    """
    if product.bytes <= machine.cache:
        return product.bytes
    sizes = product.m * product.k, product.k * product.n
    rows = zip(sizes, _rows_copied(product, tile), product.pitches, strict=True)
    read = sum(n * machine.sectors_of_row(row, pitch) for n, row, pitch in rows)
    return float(2 * product.batches * (read + product.m * product.n))


def _subtile(tile: Tile) -> tuple[int, int]:
    """Rows and columns of a part of the results, in which they leave one after the other."""
    if not tile.transposed:
        return WARPGROUP_ROWS * tile.warpgroups, gcd(WHOLE_SWIZZLE, tile.columns)
    steps = range(TRANSPOSED_STEP, WHOLE_SWIZZLE + 1, TRANSPOSED_STEP)
    return max(n for n in steps if tile.rows % n == 0), WARPGROUP_ROWS * tile.warpgroups


def _storing(product: Product, tile: Tile, machine: Any) -> float:
    """Clocks in which a program stores its results, subtile by subtile of each warpgroup: by tensor
    maps, by threads where rows begin elsewhere than those do, or from registers, of transposes and
    where sums leave none for rows of results.
    """
    results, vector, costs = tile.rows * tile.columns, product.vectors[2], machine.costs
    if vector == WHOLE_VECTOR:
        return float(costs.leaving(results, *_subtile(tile)))
    room = (ROOM_BESIDE_COPIES if product.copied_by_threads else ROOM)[tile.warpgroups]
    crowded = room - _sums(tile) < machine.assembler.stored_by_rows
    if vector == 0 or tile.transposed or crowded:
        slower = (costs.columns, costs.odd_rows)[vector] if vector < 2 else 1.0
        return float(costs.store_direct * slower * results)
    return float(costs.leaving_by_threads(results, _subtile(tile)[1], vector))


def _multiplied(tile: Tile, machine: Any) -> tuple[float, int]:
    """Clocks of a step's dots beside what goes into shared memory; the bytes that do."""
    rows, columns = (tile.columns, tile.rows) if tile.transposed else (tile.rows, tile.columns)
    tensor = 2 * rows * columns * tile.depth / machine.tensor
    stage = 2 * tile.depth * (tile.rows + tile.columns)
    # a dot of 64 rows and a k of 16 reads 2 KiB and 32 bytes for each column
    read = rows / WARPGROUP_ROWS * tile.depth / 16 * (2048 + 32 * columns)
    costs = machine.costs
    return max(tensor, (read + stage) / costs.shared) + costs.step, stage


def _step(product: Product, tile: Tile, active: int, machine: Any, beyond: bool = False) -> Step:
    """One step of a program. active: multiprocessors that have programs; beyond: of a program
    beyond the result.
    """
    costs = machine.costs
    dots, stage = _multiplied(tile, machine)
    across, down = tile.cluster
    grid = product.grid(tile)
    count, *places = machine.neighbours(
        grid, tile.cluster, RASTER, (1 + tile.in_turn) / (1 if product.apart else tile.split_k)
    )
    lines = copied = served = asked = units = 0.0
    given = (tile.rows, product.m, down), (tile.columns, product.n, across)
    rows_of = zip(
        given, _rows_copied(product, tile), product.pitches, product.vectors, strict=False
    )
    for axis, ((extent, whole, sharing), row, pitch, vector) in enumerate(rows_of):
        if vector < WHOLE_VECTOR:
            elements = min(tile.depth, product.k) * min(extent, whole)
            units += elements / (WARP * vector) * costs.async_load
        else:
            lines += 2 * tile.depth * extent / sharing / row * machine.lines_of_row(row, pitch)
        if beyond and grid[axis] % tile.cluster[axis]:
            copied += 2 * tile.depth * extent / sharing * costs.filled
            continue
        size = 2 * tile.depth * min(extent, whole)
        copied += size / sharing
        if machine.cuts_sectors(pitch):
            served += size / sharing * machine.sectors_of_row(row, pitch) / costs.cut_l2
            having = min(active, grid[1 - axis] * product.batches) / sharing
            asked = max(asked, having * machine.asked_of_line(row, pitch))
        else:
            served += size * machine.sent(count, places[axis]) / machine.l2
    fabric = max(copied / machine.fabric, served * active, asked * costs.cut_line)
    stages = min(MAX_STAGES, (machine.shared_bytes - 2 * prod(_subtile(tile))) // stage)
    shared = costs.shared_copy_latency * (prod(tile.cluster) > 1)
    by_maps = max(product.vectors[:2]) == WHOLE_VECTOR
    latency = costs.copy_latency + shared if by_maps else costs.load_latency
    times = dots, fabric, lines * costs.copied_line, units, latency / max(1, stages - 1)
    return Step(machine.crowded(times), dots, copied, stages)


def _waves(product: Product, tile: Tile, programs: int, places: int) -> tuple[float, int]:
    """Programs that the busiest multiprocessor has one after the other, and parts of those that are
    divided.
    """
    whole, rest = divmod(programs, places)
    if not tile.stream_k or not rest:
        return float(ceil(programs / places)), tile.split_k
    helpers = places - rest
    if rest <= helpers:
        parts = min(places // rest, tile.stream_k)
        return whole + 1 / parts, parts
    turns = ceil(rest / helpers)
    return whole + turns / (turns + 1), turns + 1
