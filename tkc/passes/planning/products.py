"""Blocks for a product on Hopper's tensor cores: every legal one with its schedule, and what the
cost model says of each. Nothing is traced: what the kernel's programs do and how it is planned
follow from the block.

    product_blocks(Product(4096, 4096, 4096), "sm_90a", 2)      [(0.00021, Block(128, 256, …)), …]

`work_of` and `plan_of` say what tracing and planning the kernel would (tests/passes/
test_products.py holds them to that), so that there is one estimate (cost.py). It has two depths:
bounds from below, cheap and of all blocks, say which cannot be among the best; these are not
estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product as cross
from math import ceil, gcd, inf, prod
from typing import Any, NamedTuple

import numpy as np

from tkc.ir.plan import DotPlan, LoadPlan, Plan
from tkc.ir.target import (
    LEFT_BYTES,
    LINE,
    RIGHT_BYTES,
    ROW_ALIGNMENT,
    SECTOR,
    Target,
    target,
)
from tkc.passes.layouts.epilogue_subtiles import (
    EPILOGUE_REGISTERS_PER_THREAD,
    lines_of_subtile,
    widest_subtile,
)
from tkc.passes.planning.cost import LEAST_UNIT, Dot, Moved, Part, Work, cost
from tkc.passes.planning.rings import MAX_STAGES
from tkc.passes.planning.roles.memory import BARRIER_BYTES, SUBTILE_COLUMNS
from tkc.passes.planning.roles.registers import (
    LARGE_ACCUMULATOR_REGISTERS,
    LARGE_ROLE_REGISTERS,
    MAX_OPERAND_REGISTERS,
    RELAYOUT_ROLE_REGISTERS,
    ROLE_REGISTERS,
    parts_at_once,
    parts_fit,
)
from tkc.passes.programs.clusters import MAX_PORTABLE_CLUSTER
from tkc.passes.programs.split_k import WHOLE_SHARE

BK = 64  # k of a step, of 16-bit elements: 128 bytes, the widest swizzle
WARPGROUP_ROWS = 64  # of a dot
WARP = 32  # threads
# rows of a dot, and how many warpgroups share them
WARPGROUPS = {64: 1, 128: 2, 192: 3, 256: 2}
# rows of blocks of any product; others divide its rows evenly, and are computed as transposes,
# whose rows are the block's columns
THIN_ROWS = 16, 32
TRANSPOSED_STEP = 8  # of which rows of a transposed block are a multiple
DEPTH_OF_DOT = 16  # k of an instruction
WIDEST, NARROWEST, STEP = 256, 32, 16  # columns
WHOLE_SWIZZLE, HALF_SWIZZLE = 64, 32  # columns
# blocks that warps copy for themselves, how many warps, and stages that they run ahead
SIDES_ALONE, DEPTHS_ALONE, WARPS_ALONE, STAGES_ALONE = (16, 32, 64, 128), (64, 128), (4, 8), (2, 4)
MAX_SUMS_ALONE = 64  # registers of a thread
WHOLE_VECTOR = 8  # elements: 16 bytes, of which rows are multiples that tensor maps store
CLUSTERS = ((1, 1), (2, 1), (1, 2))
# of small blocks, which read much, and where rows cut sectors, which the L2 cache serves slowly
LARGE_CLUSTERS = (*CLUSTERS, (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
SMALL = 192  # rows and columns of a block whose steps may be long, or its clusters large
RASTER = 8  # programs along rows that run before the next column of them
FEW_PARTS = 2, 3, 4, 6, 8  # of k, beside as many as fill the device once or twice
WAVES_OF_PARTS = 1, 2
MAX_PARTS = 32  # that meet in a launch
MIN_STEPS_OF_A_PART = 4
STREAMED = 2, 4  # parts of a program of the last wave
MAX_WARPGROUPS = 3  # of a block beside the warps that ask for copies
STAGES_BESIDE_SHARES = 3  # at least, of what is copied, beside shares of other blocks' sums
MAX_REMEMBERED = 4096  # products


class Block(NamedTuple):
    """A block and its schedule. in_turn: two programs of a block at once, each on a warpgroup of
    its own. together: parts of k are the blocks of a cluster. warps, stages: where there are no
    roles, and warps multiply what they have copied themselves; else 0.
    """

    rows: int
    columns: int
    in_turn: bool = False
    depth: int = BK
    cluster: tuple[int, int] = (1, 1)
    split_k: int = 1
    stream_k: int = 0
    warps: int = 0
    stages: int = 0
    together: bool = False

    @property
    def transposed(self) -> bool:
        """Whether its dots are computed as their transposes: their rows are the block's columns."""
        return self.rows % WARPGROUP_ROWS != 0

    @property
    def warpgroups(self) -> int:
        """How many share the rows of a program's dot; each other program has as many."""
        if self.warps:
            return self.warps // 4
        return WARPGROUPS[self.columns if self.transposed else self.rows]

    @property
    def sharing(self) -> int:
        """How many warpgroups share a program."""
        return 1 if self.in_turn else self.warpgroups

    @property
    def sums(self) -> int:
        """Registers of a thread for a program's sums."""
        return self.rows * self.columns // (128 * self.sharing)

    @property
    def options(self) -> dict[str, Any]:
        """Constants and launch options of the product's kernel."""
        found: dict[str, Any] = {"BM": self.rows, "BN": self.columns, "BK": self.depth}
        if self.warps:
            found |= {"roles": "one", "num_warps": self.warps, "raster": RASTER}
            return found | ({"num_stages": self.stages} if self.stages > 1 else {})
        found |= {
            "programs": 1 + self.in_turn,
            "cluster": self.cluster,
            "stream_k": self.stream_k,
        }
        if self.warpgroups == 3:
            found["num_warps"] = 12
        if self.split_k > 1:
            found["split_k"] = self.split_k
        if self.together:
            found["cluster"] = self.split_k, 1
        return found

    @property
    def share(self) -> int:
        """Columns of a program's sums that each of its parts stores."""
        return (self.rows if self.transposed else self.columns) // self.split_k


@dataclass(frozen=True)
class Product:
    """What a launch computes: extents, batches; whether rows of b are dense, so that a block's
    columns are rows of shared memory; bytes from one row (or column) of a and b to the next;
    whether a launch of its own adds up parts of k; elements of a's, b's and the result's rows that
    alignment lets a thread copy or store at once (0 of results with dense columns), WHOLE_VECTOR
    where tensor maps do it; whether columns of a are dense, so that a block's rows are rows of
    shared memory; bytes from one row of the result to the next.
    """

    m: int
    n: int
    k: int
    batches: int = 1
    dense_rows: bool = True
    pitches: tuple[int, int] = (LINE, LINE)
    apart: bool = False
    vectors: tuple[int, int, int] = (WHOLE_VECTOR, WHOLE_VECTOR, WHOLE_VECTOR)
    dense_columns: bool = False
    result_pitch: int = LINE

    @property
    def copied_by_threads(self) -> bool:
        """Whether threads copy an operand: a warpgroup beside those that multiply."""
        return min(self.vectors[:2]) < WHOLE_VECTOR

    @property
    def bytes(self) -> int:
        """Of the operands and the result, 16 bits an element."""
        return 2 * self.batches * (self.m * self.k + self.k * self.n + self.m * self.n)

    def adding(self, parts: int, machine: Target) -> float:
        """Seconds of a launch that adds up parts of k, 32 bits an element."""
        costs, size = machine.costs, 4 * self.m * self.n * parts
        return float(costs.later_launch_seconds + size / (costs.added * machine.memory * 1e9))

    @property
    def cuts_sectors(self) -> bool:
        """Whether rows of an operand may begin amid sectors."""
        return any(map(Target.cuts_sectors, self.pitches))

    @property
    def shares_sectors(self) -> bool:
        """Whether blocks side by side have parts of the same sectors of b."""
        return self.dense_rows and Target.cuts_sectors(self.pitches[1])

    def clusters(self, block: Block) -> tuple[tuple[int, int], ...]:
        """Worth a try of a block: those whose shares of it are whole swizzles, large ones of small
        blocks, and all where rows begin amid sectors; no more blocks than there are side by side.
        Programs in parts of k have none, nor those whose threads copy.
        """
        down, across = self.grid(block)
        return tuple(
            (n, m)
            for n, m in self._tried(block)
            if n <= down
            and m <= across
            and (self.dense_columns or _divides(block.rows, block.depth, m))
            and (self.dense_rows or _divides(block.columns, block.depth, n))
        )

    def _tried(self, block: Block) -> tuple[tuple[int, int], ...]:
        """Clusters of a block, whether its operands divide among them or not."""
        if block.split_k > 1 or block.stream_k or self.copied_by_threads:
            return CLUSTERS[:1]
        whole = not self.dense_rows or block.columns % WHOLE_SWIZZLE == 0
        small = block.rows + block.columns <= SMALL and not block.in_turn
        if self.cuts_sectors or small and whole:
            return LARGE_CLUSTERS
        return CLUSTERS if whole else CLUSTERS[:1]

    def takes(self, block: Block, machine: Target) -> bool:
        """Whether a block can be planned as it says."""
        if block.warps:
            return self.copied_by_threads
        parted = block.split_k > 1 and not self.apart
        streamed = block.stream_k > 0 and not _may_stream(block)
        may_part = _may_meet(block, machine) if block.together else _may_part(block, machine)
        if min(self.vectors[:2]) == 1 or streamed or parted and not may_part:
            return False
        alone = block.cluster == (1, 1)
        return _fits_registers(self, block) and (alone or block.cluster in self.clusters(block))

    def steps(self, block: Block) -> int:
        """Of a program that has all of k."""
        return ceil(self.k / block.depth)

    def grid(self, block: Block) -> tuple[int, int]:
        """Blocks along the result's rows and columns."""
        return ceil(self.m / block.rows), ceil(self.n / block.columns)

    def programs(self, block: Block) -> int:
        """Blocks of the result, as many as clusters make of them, without parts of k."""
        along = zip(self.grid(block), block.cluster, strict=True)
        return prod(ceil(n / cluster) * cluster for n, cluster in along) * self.batches


def _divides(rows: int, depth: int, sharing: int) -> bool:
    """Whether blocks of a cluster can share the copy of an operand with so many rows of k: by
    swizzles of these, or in eights of rows.
    """
    return max(1, depth // WHOLE_SWIZZLE) % sharing == 0 or rows % (8 * sharing) == 0


@lru_cache(MAX_REMEMBERED)
def _best(product: Product, machine: Target, count: int) -> tuple[tuple[float, Block], ...]:
    return tuple(_ranked(product, machine, count, None, inf))


def product_blocks(
    product: Product,
    name: str,
    count: int,
    allowed: Callable[[Block], bool] | None = None,
    below: float = inf,
) -> list[tuple[float, Block]]:
    """The `count` blocks that take the least time, with it in seconds, of those that are allowed;
    none on a target whose tensor cores do not take operands from shared memory (wgmma). below:
    seconds, of which any that take more may be left out.
    """
    machine = target(name)
    if not machine.wgmma:
        return []
    if allowed is None and below == inf:
        return list(_best(product, machine, count))
    return _ranked(product, machine, count, allowed, below)


def _ranked(
    product: Product,
    machine: Target,
    count: int,
    allowed: Callable[[Block], bool] | None,
    below: float,
) -> list[tuple[float, Block]]:
    pairs = [(block, c) for block in _legal(product, machine) for c in product.clusters(block)]
    if allowed is not None:
        pairs = [(block, c) for block, c in pairs if allowed(block._replace(cluster=c))]
    bounds = _bounds(product, pairs, machine)
    best: list[tuple[float, Block]] = []
    for i in np.argsort(bounds, kind="stable"):
        if bounds[i] > (best[-1][0] if len(best) == count else below):
            break
        block = pairs[i][0]._replace(cluster=pairs[i][1])
        best.append((seconds(product, block, machine), block))
        best = sorted(best, key=lambda found: found[0])[:count]
    return best


def seconds(product: Product, block: Block, machine: Target) -> float:
    """The estimate of a launch, with that which adds up parts where these are apart."""
    found = cost(work_of(product, block), plan_of(product, block, machine), machine).seconds
    return found + (product.adding(block.split_k, machine) if product.apart else 0.0)


# blocks, each in a cluster of so many
Clustered = Sequence[tuple[Block, tuple[int, int]]]


class _Blocks:
    """Blocks as arrays, one element each: what their fields are, and follows from them."""

    def __init__(self, product: Product, blocks: Clustered, machine: Target):
        self.product, self.machine = product, machine
        fields = [
            (b.rows, b.columns, b.depth, *c, b.split_k, b.stream_k, b.warps, b.in_turn, b.together)
            for b, c in blocks
        ]
        fields_of_all = np.array(fields, dtype=np.int64).reshape(-1, 10).T
        self.rows, self.columns, self.depth, self.across, self.down = fields_of_all[:5]
        self.parts, self.streamed, self.warps, self.in_turn, self.together = fields_of_all[5:]
        self.sizes = np.where(self.together, self.parts, self.across * self.down)
        self.grid = -(-product.m // self.rows), -(-product.n // self.columns)
        programs = product.batches * self.parts
        for count, cluster in zip(self.grid, (self.across, self.down), strict=True):
            programs = programs * (-(-count // cluster) * cluster)
        self.programs = programs
        places = {n: machine.clustered(n) for n in np.unique(self.sizes)}
        self.places = np.array([places[n] for n in self.sizes])
        steps = -(-product.k // self.depth)
        self.trips = -(-steps // self.parts)
        self.copies = self._copies(product.m, self.rows), self._copies(product.n, self.columns)
        self.copied = self.copies[0] / self.down + self.copies[1] / self.across

    def _copies(self, whole: int, extent: np.ndarray) -> np.ndarray:
        """Bytes of an operand's block that are inside of it."""
        return 2 * np.minimum(self.depth, self.product.k) * np.minimum(extent, whole)

    def dots(self) -> np.ndarray:
        """Clocks of a step's dots."""
        costs, tensor = self.machine.costs, self.machine.tensor
        turned = self.rows % WARPGROUP_ROWS != 0
        high = np.where(turned, self.columns, self.rows)
        wide = np.where(turned, self.rows, self.columns)
        instructions = high * self.depth / (WARPGROUP_ROWS * DEPTH_OF_DOT)
        stage = 2 * self.depth * (self.rows + self.columns)
        moved = instructions * (LEFT_BYTES + RIGHT_BYTES * wide) + stage
        done = 2 * self.rows * self.columns * self.depth / tensor
        by_roles = np.maximum(done, moved / costs.shared) + costs.step
        return np.where(self.warps, done / costs.mma_sync, by_roles)

    def step(self, dots: np.ndarray) -> np.ndarray:
        """Clocks of a step, at least."""
        costs, product = self.machine.costs, self.product
        stage = 2 * self.depth * (self.rows + self.columns)
        ahead = np.minimum(MAX_STAGES, self.machine.shared_bytes // stage) - 1
        maps = max(product.vectors[:2]) == WHOLE_VECTOR
        latency = (costs.copy_latency if maps else costs.load_latency) / np.maximum(ahead, 1)
        active = np.minimum(self.programs, self.places)
        fabric = self.copied / self.machine.fabric
        units = lines = np.zeros(len(self.rows))
        cut = np.zeros(len(self.rows))
        for axis, sharing in enumerate((self.down, self.across)):
            vector, pitch = product.vectors[axis], _known(product.pitches[axis], 2)
            size = 2 * self.depth * (self.columns if axis else self.rows)
            if vector < WHOLE_VECTOR:
                each = costs.async_load if vector > 1 else costs.staged_load
                copied = np.where(self.warps, self.copies[axis], size)
                units = units + copied / (2 * WARP * vector) * each
            row = self._row(axis)
            if vector == WHOLE_VECTOR:
                touched = _of_rows(Target.lines_of_row, row, pitch)
                lines = lines + size / row * touched * costs.copied_line / sharing
            if Target.cuts_sectors(pitch):
                touched = _of_rows(Target.sectors_of_row, row, pitch)
                cut = cut + self.copies[axis] * touched / sharing
                having = np.minimum(active, self.grid[1 - axis] * product.batches) / sharing
                asked = _of_rows(Target.asked_of_line, row, pitch) * having * costs.cut_line
                fabric = np.maximum(fabric, np.where(product.apart, 0.0, asked))
        fabric = np.maximum(fabric, cut / costs.cut_l2 * active)
        times = dots, fabric, np.where(self.warps, 0.0, lines), np.where(self.warps, 0.0, latency)
        return np.where(
            self.warps,
            np.maximum(np.maximum(dots, fabric), units),
            self.machine.crowded((*times, units)),
        )

    def _row(self, axis: int) -> np.ndarray:
        """Bytes of a row of an operand's block as a tensor map copies it."""
        product = self.product
        dense = product.dense_rows if axis else product.dense_columns
        return np.gcd(LINE, 2 * ((self.columns if axis else self.rows) if dense else self.depth))


def _of_rows(function: Callable[[int, int], float], rows: np.ndarray, pitch: int) -> np.ndarray:
    """A function of each row's bytes and their pitch."""
    kinds, number = np.unique(rows, return_inverse=True)
    return np.array([function(int(row), pitch) for row in kinds])[number]


def _bounds(product: Product, blocks: Clustered, machine: Target) -> np.ndarray:
    """Seconds that a launch of each block takes at least by the estimate: what clusters lack at the
    end of rows, and what programs of a GPC ask for, cost nothing.
    """
    costs, all_ = machine.costs, _Blocks(product, blocks, machine)
    unclustered = dict.fromkeys(block for block, _ in blocks)
    of_each = {block: _stored(product, block, machine) for block in unclustered}
    dots = all_.dots()
    step, programs = all_.step(dots), all_.programs
    shared = (all_.streamed > 0) | (all_.warps > 0)
    waves = np.where(shared, np.maximum(1, programs / all_.places), -(-programs // all_.places))
    # the end of a program may be hidden by copies of the next, but not by its dots
    stored = np.array([of_each[block] for block, _ in blocks])
    size = (4 if product.apart else 2) * all_.rows * all_.columns
    size = size / np.where(all_.together, all_.parts, 1)
    active = np.minimum(programs, all_.places)
    written = np.maximum(size / machine.fabric, size / machine.l2 * active)
    leaving, looping = costs.restart_clocks + stored + written, all_.trips * step
    alone = np.where(all_.warps, looping, np.maximum(looping, all_.trips * dots + leaving))
    slowed = looping + costs.storing_beside * stored
    beside = np.maximum(np.maximum(slowed, stored), (looping + leaving) / 2)
    clocks = np.where(all_.in_turn, waves * beside, looping + (waves - 1) * alone) + leaving
    # nothing overlaps the first copies of warps alone
    clocks = clocks + np.where(all_.warps, costs.load_latency + step, 0.0)
    begun = costs.launch_clocks + costs.cluster * (all_.sizes > 1)
    adding = np.zeros(len(blocks))
    if product.apart:
        adding = np.array([product.adding(b.split_k, machine) for b, _ in blocks])
    else:
        results = all_.rows * all_.columns
        sums = np.array([block.sums for block, _ in blocks])
        at_once = parts_at_once(all_.parts, sums)
        met = costs.meeting(results, all_.parts, at_once)
        clocks = clocks + (all_.parts > 1) * (all_.together == 0) * met
    moved = programs / machine.multiprocessors * all_.trips * all_.copied
    scale = 1 / (machine.device.clock(clocks + begun, moved / (clocks + begun)) * 1e9)
    computing = clocks * scale
    memory = product.bytes / (machine.memory * 1e9)
    memory += min(memory, costs.dirty / (machine.memory * 1e9))
    longer, shorter = np.maximum(computing, memory), np.minimum(computing, memory)
    found = begun * scale + longer + costs.overlap * shorter + costs.launch_seconds
    return np.where(all_.warps, costs.one_role, 1.0) * found + adding


def _stored(product: Product, block: Block, machine: Target) -> float:
    """Clocks in which a program stores its results, as `cost` has them, in several subtiles."""
    costs, rows, columns = machine.costs, block.rows, block.columns
    epilogue, vector, met = _epilogue(product, block, machine), product.vectors[2], 0.0
    if block.together:
        met = float(costs.meeting_in_cluster(rows * columns, block.split_k))
        rows, columns = (block.share, columns) if block.transposed else (rows, block.share)
    results, widest = rows * columns, gcd(WHOLE_SWIZZLE, columns)
    if epilogue == "direct":
        slower = (costs.columns, costs.odd_rows)[vector] if vector < 2 else 1.0
        return met + costs.store_direct * slower * results
    if epilogue == "shared":
        return met + costs.leaving_by_threads(results, widest, vector)
    high, wide = WARPGROUP_ROWS * block.sharing, widest
    if block.transposed:
        high, wide = lines_of_subtile(rows, WHOLE_SWIZZLE), high
    return met + costs.leaving(results, high, wide, costs.store_subtile < costs.store_tma)


def _legal(product: Product, machine: Target) -> Iterator[Block]:
    """Every block that registers allow and that is not all padding, in no cluster."""
    if product.copied_by_threads:
        for block in _alone(product):
            yield from _parts(product, block, machine)
    if min(product.vectors[:2]) == 1:  # no copy brings two bytes to shared memory
        return
    for rows in _rows(product):
        # many rows pay where they are not mostly padding, few where there are few, or few blocks
        few = rows < WARPGROUP_ROWS and product.m > 2 * rows
        many = few and product.programs(Block(rows, WHOLE_SWIZZLE)) > machine.multiprocessors
        if rows >= max(128, 2 * product.m) or many:
            continue
        for columns in _columns(product, rows):
            for block in _scheduled(product, Block(rows, columns), machine):
                for depth in _depths(product, block):
                    yield from _parts(product, block._replace(depth=depth), machine)


def _scheduled(product: Product, block: Block, machine: Target) -> Iterator[Block]:
    """A block whose warpgroups share programs, and one where they have one each in turn, where
    there are enough.
    """
    in_turn = block._replace(in_turn=True)
    several = product.programs(block) > machine.multiprocessors and product.batches == 1
    if several and not product.copied_by_threads and _fits_registers(product, in_turn):
        yield in_turn
    crowded = block.warpgroups + product.copied_by_threads > MAX_WARPGROUPS
    if not crowded and _fits_registers(product, block):
        yield block


def _alone(product: Product) -> Iterator[Block]:
    """Blocks whose warps multiply what they have copied themselves."""
    runs_ahead = max(product.vectors[:2]) > 1
    sides = [
        [n for n in SIDES_ALONE if n < 2 * max(extent, SIDES_ALONE[0])]
        for extent in (product.m, product.n)
    ]
    for rows, columns, depth, warps in cross(*sides, DEPTHS_ALONE, WARPS_ALONE):
        whole = rows == sides[0][-1] and columns == sides[1][-1] and warps == WARPS_ALONE[0]
        fits = rows * columns <= 32 * warps * MAX_SUMS_ALONE
        fits = fits and (whole or rows * columns >= 32 * 8 * warps)
        if fits and (depth == DEPTHS_ALONE[0] or depth < 2 * product.k):
            for stages in STAGES_ALONE if runs_ahead else (1,):
                yield Block(rows, columns, depth=depth, warps=warps, stages=stages)


def _rows(product: Product) -> list[int]:
    """Rows of blocks: those of dots, few, and the fewest with which there are so many blocks."""
    fewest = (
        ceil(product.m / ceil(product.m / rows) / step) * step
        for rows in range(THIN_ROWS[-1], max(WARPGROUPS), TRANSPOSED_STEP)
        for step in (TRANSPOSED_STEP, 2 * TRANSPOSED_STEP)
    )
    transposed = {n for n in fewest if THIN_ROWS[-1] < n < max(WARPGROUPS) and n % WARPGROUP_ROWS}
    return sorted({*THIN_ROWS, *WARPGROUPS, *transposed})


def _depths(product: Product, block: Block) -> tuple[int, ...]:
    """k of a step: half a swizzle where there is no more, two where a step of a small block is
    short.
    """
    if product.k <= BK // 2:
        return (BK // 2,)
    return (BK, 2 * BK) if block.rows + block.columns <= SMALL and product.k > BK else (BK,)


def _columns(product: Product, rows: int) -> Iterator[int]:
    """Columns of a block of so many rows: of a transposed one rows of dots, of dense rows halves of
    swizzles.
    """
    if rows % WARPGROUP_ROWS:
        if not product.dense_columns or rows % HALF_SWIZZLE == 0:
            yield from (n for n in WARPGROUPS if n <= max(WHOLE_SWIZZLE, product.n + STEP))
        return
    step = HALF_SWIZZLE if product.dense_rows else STEP
    for columns in range(max(step, NARROWEST), WIDEST + 1, step):
        if columns < max(WHOLE_SWIZZLE, product.n) + step:
            yield columns


def _fits_registers(product: Product, block: Block) -> bool:
    """Whether a thread has room for its sums, of one program or of its own."""
    if block.in_turn and block.warpgroups == 3:
        return False
    room = MAX_OPERAND_REGISTERS[block.warpgroups]
    if product.copied_by_threads:
        room -= LARGE_ROLE_REGISTERS[1] - RELAYOUT_ROLE_REGISTERS[block.warpgroups][1][1]
    return block.sums <= room


def _may_part(block: Block, machine: Target) -> bool:
    """Whether a thread has room for another part of its sums."""
    return parts_fit(block.sums, block.split_k, block.together, block.warpgroups, machine)


def _may_meet(block: Block, machine: Target) -> bool:
    """Whether parts of a block may be the blocks of a cluster, each with a share of the results,
    and room for the others' shares beside a few stages.
    """
    columns, parts = block.rows if block.transposed else block.columns, block.split_k
    stages = 2 * block.depth * (block.rows + block.columns) * STAGES_BESIDE_SHARES
    stored = 2 * block.rows * block.columns // parts
    return (
        parts <= MAX_PORTABLE_CLUSTER
        and columns % (WHOLE_SHARE * parts) == 0
        and _may_part(block, machine)
        and _sent(block) + stored + stages <= machine.shared_bytes - BARRIER_BYTES[0]
    )


def _may_stream(block: Block) -> bool:
    """Whether it has room for a piece of one, some columns at a time."""
    return block.sums + STEP <= MAX_OPERAND_REGISTERS[1]


def _parts(product: Product, block: Block, machine: Target) -> Iterator[Block]:
    """A block as it is, in parts of k, with the last wave's programs in parts; in parts alone where
    a launch adds these up. Where programs of several batches have steps of their own, as planned
    today, nothing shares them.
    """
    if not product.apart:
        yield block
    if block.in_turn or product.batches > 1 or block.warps and not product.apart:
        return
    programs, places = product.programs(block), machine.multiprocessors
    if programs > places and programs % places:
        yield from _streamed(product, block)
    elif programs <= places // 2:
        yield from _divided(product, block, machine)
    if programs <= places and not product.apart:
        yield from _met(product, block, machine)


def _met(product: Product, block: Block, machine: Target) -> Iterator[Block]:
    """With all programs in parts that are the blocks of a cluster."""
    most = min(product.steps(block) // MIN_STEPS_OF_A_PART, MAX_PORTABLE_CLUSTER)
    for parts in range(2, most + 1):
        found = block._replace(split_k=parts, together=True)
        waves = product.programs(block) * parts / machine.clustered(parts)
        if waves <= WAVES_OF_PARTS[-1] and _may_meet(found, machine):
            yield found


def _streamed(product: Product, block: Block) -> Iterator[Block]:
    """With programs of the last wave in parts."""
    most = product.steps(block) // MIN_STEPS_OF_A_PART if _may_stream(block) else 0
    yield from (block._replace(stream_k=n) for n in STREAMED if n <= most)


def _divided(product: Product, block: Block, machine: Target) -> Iterator[Block]:
    """With all programs in parts: few, or as many as fill the device."""
    if not (product.apart or _may_part(block, machine)):
        return
    places = machine.multiprocessors
    most = min(product.steps(block) // MIN_STEPS_OF_A_PART, places if product.apart else MAX_PARTS)
    waves = (turns * places // product.programs(block) for turns in WAVES_OF_PARTS)
    yield from (block._replace(split_k=n) for n in sorted({*FEW_PARTS, *waves}) if n <= most)


# ---- what tracing and planning the kernel would say
def work_of(product: Product, block: Block) -> Work:
    """What the product's programs do; parts of k that a launch of its own adds up are programs."""
    size, parts = (4, block.split_k) if product.apart else (2, 1)
    results, vector = block.rows * block.columns, product.vectors[2]
    operands = _moved(product, block, 0), _moved(product, block, 1)
    units = (
        gcd(WHOLE_SWIZZLE, block.rows) if product.dense_columns else LEAST_UNIT,
        gcd(WHOLE_SWIZZLE, block.columns) if product.dense_rows else LEAST_UNIT,
    )
    dot = Dot(0, (block.rows, block.columns, block.depth), 16, units)
    stored = Moved(-1, size * results, size * results, frozenset(), False)
    return Work(
        (*product.grid(block), product.batches * parts),
        (
            Part(ceil(product.steps(block) / parts), (dot,), operands),
            Part(1, (), (stored,)),
        ),
        stored=size * results,
        results=results,
        footprint=2 * product.batches * product.k * (product.m + product.n),
        odd_rows=results if vector == 1 else 0,
        columns=results if vector == 0 else 0,
        width=block.columns,
        height=block.rows,
        vector=max(1, vector),
        partial=_partial(product, block),
    )


def _known(pitch: int, size: int) -> int:
    """Bytes of which a pitch is known to be a multiple when a kernel is planned, of elements of so
    many bytes.
    """
    steps = (64 * size, 16 * size)
    return next((n for n in steps if pitch % n == 0), gcd(pitch, ROW_ALIGNMENT))


def _partial(product: Product, block: Block) -> float:
    """Bytes of the sectors that rows of a program's results have in part."""
    size = 4 if product.apart else 2
    pitch = _known(size * product.n if product.apart else product.result_pitch, size)
    if product.vectors[2] == 0 and not product.apart or not Target.cuts_sectors(pitch):
        return 0.0
    row = gcd(LINE, size * block.columns)
    return size * block.rows * block.columns / row * 2 * SECTOR


def _moved(product: Product, block: Block, axis: int) -> Moved:
    """The load of an operand: 0 is a, whose rows are those of axis 0."""
    extent, whole = ((block.rows, product.m), (block.columns, product.n))[axis]
    size = 2 * block.depth * extent
    deep = min(1, product.k / block.depth)
    inside = int(size * min(1, whole / extent) * deep)
    alone = product.batches > 1 or whole <= extent
    last = inside if alone else int(size * (((whole - 1) % extent + 1) / extent) * deep)
    across = product.dense_rows if axis else product.dense_columns
    row = gcd(LINE, 2 * (extent if across else block.depth))
    pitch = _known(product.pitches[axis], 2)
    cut = Target.cuts_sectors(pitch)
    return Moved(
        axis,
        size,
        inside,
        frozenset((axis, 2) if product.batches > 1 or product.apart else (axis,)),
        True,
        size / row * Target.lines_of_row(row, pitch),
        Target.sectors_of_row(row, pitch) if cut else 1.0,
        Target.asked_of_line(row, pitch) if cut else 0.0,
        last,
    )


def plan_of(product: Product, block: Block, machine: Target) -> Plan:
    """What the cost model looks at of the kernel's plan."""
    if block.warps:
        return Plan(
            warps=block.warps,
            stages=block.stages,
            dots=(DotPlan("mma"),),
            loads=tuple(
                LoadPlan("async" if vector > 1 else "shared", 2 * vector)
                for vector in product.vectors[:2]
            ),
            raster=RASTER,
        )
    programs, groups = 1 + block.in_turn, block.sharing
    parts = 1 if product.apart else block.split_k
    columns = _columns_stored(block, parts)
    epilogue = _epilogue(product, block, machine)
    stages, subtiles = _stages(block, columns if epilogue != "direct" else 0, machine)
    across, down = block.cluster
    loads = tuple(
        LoadPlan(
            "tma" if vector == WHOLE_VECTOR else "cp_async", 2 * vector, multicast, (1 - axis,)
        )
        for axis, (vector, multicast) in enumerate(
            zip(product.vectors[:2], (0 if down > 1 else -1, 0 if across > 1 else -1), strict=True)
        )
    )
    return Plan(
        warps=4 * groups,
        stages=stages,
        dots=(DotPlan("wgmma", (groups, 1), "shared", "shared", swap=block.transposed),),
        loads=loads,
        roles="pingpong" if block.in_turn else "cooperative",
        programs=programs,
        cluster=block.cluster,
        raster=1 if product.apart or product.batches > 1 else RASTER,
        persistent=True,
        split_k=parts,
        parts_in_cluster=block.together,
        stream_k=block.stream_k,
        epilogue=epilogue,
        columns=columns,
        subtiles=subtiles,
    )


def _columns_stored(block: Block, parts: int) -> int:
    """Columns of results that leave at once."""
    beside = LARGE_ROLE_REGISTERS[1] - ROLE_REGISTERS[3][1] if block.warpgroups == 3 else 0
    room = EPILOGUE_REGISTERS_PER_THREAD - beside
    if block.together:
        widest = min(widest_subtile([], block.sums, room), block.share)
        return next((c for c in SUBTILE_COLUMNS if c <= widest), 0)
    return widest_subtile([], block.sums * min(2, parts), room)


def _epilogue(product: Product, block: Block, machine: Target) -> str:
    """How results are stored: by tensor maps, by threads where rows begin elsewhere than those do,
    or from registers, of transposes and where sums leave none for rows of results.
    """
    narrow = block.together and not block.transposed and block.share % 16
    if product.apart or block.warps or narrow:
        return "direct"
    if product.vectors[2] == WHOLE_VECTOR:
        return "tma"
    groups = block.warpgroups
    roles = RELAYOUT_ROLE_REGISTERS[groups][1] if product.copied_by_threads else None
    large = block.sums > LARGE_ACCUMULATOR_REGISTERS
    room = (roles or (LARGE_ROLE_REGISTERS if large else ROLE_REGISTERS[groups]))[1]
    crowded = room - block.sums < machine.assembler.stored_by_rows
    direct = crowded or block.transposed or product.vectors[2] == 0
    return "direct" if direct else "shared"


def _sent(block: Block) -> int:
    """Bytes of shared memory for what the other blocks of a cluster send."""
    whole = 4 * block.rows * block.columns
    return whole - whole // block.split_k if block.together else 0


def _stages(block: Block, columns: int, machine: Target) -> tuple[int, int]:
    """Stages of the ring, and buffers through which results leave in turn, so many columns at a
    time (0: from registers).
    """
    height = WARPGROUP_ROWS * block.sharing
    if not columns:
        each, count = 0, 2
    elif block.transposed:
        lines = lines_of_subtile(block.rows, columns)
        each, count = lines * height, block.rows * block.columns // (lines * height)
    else:
        columns = gcd(block.columns, columns)
        each, count = columns * height, block.rows * block.columns // (columns * height)
    room, stage = (
        machine.shared_bytes - BARRIER_BYTES[0] - _sent(block),
        2 * block.depth * (block.rows + block.columns),
    )

    def fitting(buffers: int) -> int:
        taken = 2 * (1 + block.in_turn) * each * (buffers if count % buffers == 0 else 1)
        return min(MAX_STAGES, (room - taken) // stage)

    subtiles = max((1, 2), key=lambda n: (fitting(n), n))
    return fitting(subtiles), subtiles
