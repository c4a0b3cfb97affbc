"""Blocks of attention's programs: how many rows and columns, by the device's times."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import Array, dtype_of, library
from tkc.kernels.copies import strides_of

FLOAT8 = "float8_e4m3"
# by D up to which registers hold the accumulator: rows of Q that a program may have, one to four
# warpgroups of 64
MAX_D_BY_ROWS = {64: 256, 128: 256, 192: 128, 256: 64}
# candidates on Hopper; their times are those of the device, in this order. D up to which a program
# may have so many rows of Q and of K
LARGE_BLOCKS = (64, 256, 64), (64, 192, 96), (96, 192, 64)
# likewise tiles of 64 rows and columns side by side, where masks cut what rows see
TILES = (64, 4), (96, 3), (128, 3)
# likewise rows of Q and of K, where all loops walk over the same columns and D is more than that of
# LARGE_BLOCKS
EQUAL_BLOCKS = (128, 128, 128), (128, 192, 64), (128, 128, 112), (128, 128, 80)
# tiles of a cache side by side: pages' numbers and places leave four too few registers
CACHED_TILES = 3


def width_of(d: int, step: int = 16) -> int:
    """Columns of a block that holds rows of d elements: the tensor core's step is 16 elements, or
    32 of 8 bits.
    """
    return max(step, -(-d // step) * step)


class Block(NamedTuple):
    """Rows of Q and of K that a tile has, and how many co-resident tiles a thread block has."""

    rows: int
    columns: int
    co_resident: int = 1


class _Candidate(NamedTuple):
    """A block on Hopper. rows: of all its co-resident tiles; time: of a row, relative."""

    block: Block
    rows: int
    time: float

    def launch_time(
        self,
        window: int | None,
        each: Callable[[int, int], float],
        even: float,
        times: Any,
    ) -> float:
        """Of a launch, relative. Arguments as of `choose_block`, each: of a multiprocessor; times:
        the device's.
        """
        block = self.block
        loop = 1 if window is None else window + times.window_row * block.rows
        turns = _turns(each(block.rows, block.co_resident), even, times.ending)
        return self.rows * self.time * loop * turns


def _hopper_candidates(
    d: int, columns: int, window: int | None, uneven: int, keys: int, few: bool, times: Any
) -> list[_Candidate]:
    """The blocks that may be best for 128 rows of Q or more. Arguments as of `choose_block`; few:
    programs of 64 rows have a multiprocessor each, so that half as many rows are done sooner,
    though one warpgroup's dots and vector work take turns; times: the device's.
    """
    if keys and d > max(most for most, *_ in LARGE_BLOCKS) and d <= EQUAL_BLOCKS[0][0]:
        return _of_equal_loops(keys, few, times)
    found = [_Candidate(Block(128, columns), 128, 1.0)]
    if few:
        found.append(_Candidate(Block(64, 64), 64, times.alone))
    most = min((most for most, *_ in LARGE_BLOCKS if d <= most), default=0)
    for (limit, rows, wide), time in zip(LARGE_BLOCKS, times.block_times, strict=True):
        if limit == most:
            found.append(_Candidate(Block(rows, wide), rows, time))
    return found + ([_side_by_side(d, uneven, times)] if uneven or window is not None else [])


def _side_by_side(d: int, uneven: int, times: Any) -> _Candidate:
    """Tiles of 64 rows and columns; of wide heads there is one. Arguments as of `choose_block`."""
    tiles = zip(TILES, times.tile_times, times.tile_columns, strict=True)
    fitting = next((tile for tile in tiles if d <= tile[0][0]), None)
    if fitting is None:
        return _Candidate(Block(128, 64), 128, 1.0)
    (_, count), time, shorter = fitting
    time *= 1 - shorter / uneven if uneven else 1
    return _Candidate(Block(64, 64, count), 64 * count, time)


def _of_equal_loops(keys: int, few: bool, times: Any) -> list[_Candidate]:
    """Candidates where all loops have so many columns."""
    found = []
    of_blocks = [
        (rows, columns, *of_block)
        for (_, rows, columns), *of_block in zip(
            EQUAL_BLOCKS, times.equal_times, times.equal_starts, times.equal_masks, strict=True
        )
    ]
    if few:
        of_blocks.append((64, 64, times.alone, times.equal_starts[0], times.equal_masks[0]))
    for rows, columns, time, start, mask in of_blocks:
        blocks = tkc.cdiv(keys, columns)
        total = time * columns * blocks + start + mask * (keys % columns > 0)
        waits = times.single_block * (blocks == 1)
        found.append(_Candidate(Block(rows, columns), rows, total + waits))
    return found


def has_wgmma(target: str) -> bool:
    return target != "cpu" and tkc.target(target).wgmma


def _float32_block(d: int, target: str) -> tuple[int, int]:
    if d <= 128 or target == "cpu" or has_wgmma(target):
        return 64, 64 if d <= 64 else 32
    return (64, 16) if d <= 192 else (32, 16)


def _programs_each(programs: Callable[[int, int], float], target: str) -> Callable[..., float]:
    """A function of rows and co-resident tiles that gives the programs of each multiprocessor."""

    def each(rows: int, co_resident: int = 1) -> float:
        if target == "cpu":
            return 0
        return programs(rows, co_resident) / tkc.target(target).multiprocessors

    return each


def choose_block(
    q: Array,
    k: Array,
    v: Array,
    queries: int,
    programs: Callable[[int, int], float],
    even: float,
    window: int | None,
    rows: int | None = None,
    columns: int | None = None,
    uneven: int = 0,
    keys: int = 0,
) -> Block:
    """A program's block, as asked or as large as registers and shared memory hold.

    Hopper's tensor cores read Q and K from shared memory, the others' from registers. Three and
    four warpgroups finish a row sooner, but leave multiprocessors idle where there are few rows.
    programs: how many programs of so many rows there are, or tile groups of them. even: how long
    their loops are on average, relative to the longest. A window's loop is the longer the more rows
    it serves, and slower where masks cut them. uneven: the longest loop's columns, if loops grow
    with the row. Where masks cut, warpgroups with tiles of their own see fewer columns, and read K
    and V together all the same. keys: the columns of all loops, if these are equal: narrower blocks
    may leave less of the last one empty.
    """
    d, target = max(q.shape[-1], v.shape[-1]), tkc.target_of(q)

    each = _programs_each(programs, target)
    if rows is not None and rows > 128:
        return Block(rows, columns or (96 if rows == 192 and d <= 64 else 64))
    if dtype_of(q) == "float32":
        bm, bn = _float32_block(d, target)
    elif not has_wgmma(target):
        bm, bn = _mma_block(d, target, queries, each, window is not None)
    else:
        bm, bn = 64 if queries <= 64 else 128, 128 if d <= 128 else 64
        free = (rows, columns) == (None, None)
        if bm == 128 and free and _fits_tma(q, k, v):
            times = tkc.target(target).device.attention
            few = 0 < each(64) <= 1
            found = _hopper_candidates(d, bn, window, uneven, keys, few, times)
            return min(found, key=lambda c: c.launch_time(window, each, even, times)).block
    return Block(rows or bm, columns or bn)


def _mma_block(
    d: int, target: str, queries: int, each: Callable[[int], float], windowed: bool
) -> tuple[int, int]:
    """64 rows as long as every program has a multiprocessor."""
    short = queries <= 64 or d > 128
    bm = 64 if short or 0 < each(64) <= 1 else 128
    if target == "cpu" or d > 192:
        return bm, 64
    if d > 128:
        return bm, 32
    return bm, 64 if bm == 64 else _columns_of_two_blocks(bm, d, target, windowed)


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
    finishes such a launch first.
    """
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    even = (
        1
        if not causal or window is not None
        else 1 - queries / (2 * keys)
        if queries <= keys
        else keys / (2 * queries)
    )
    # beside the longest
    programs, shortest = (
        (lambda rows: tkc.cdiv(queries, rows) * heads * batch),
        max(0, 2 * even - 1),
    )

    def tile_groups(rows: int, co_resident: int) -> float:
        """One tile group of each head, of the shortest tiles, has padding tiles; others none."""
        return (
            programs(rows) / co_resident
            + (programs(rows * co_resident) - programs(rows) / co_resident) * shortest
        )

    return choose_block(
        q,
        k,
        v,
        queries,
        tile_groups,
        even,
        window,
        rows,
        columns,
        keys if even < 1 else 0,
        keys if even == 1 and window is None else 0,
    )


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
        if d <= TILES[-1][0]:
            return Block(64, 64, CACHED_TILES)
        return Block(64 if size % 64 else 128, 64)
    rows, columns = _mma_block(d, target, queries, lambda rows: 0, False)
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


def _turns(each: float, even: float, ending: float) -> float:
    """How often the longest program's time passes before so many of each multiprocessor are done:
    one by one those of one length, else as they fill the multiprocessors, longest first, and then a
    while, `ending`, not all.
    """
    return ceil(each) if even == 1 else max(1, even * each) + ending


def options_of(q: Array, k: Array, block: Block) -> dict[str, int]:
    """The options that give a program of many rows a warpgroup for each 64, where it has a loop,
    and each of those side by side one. Raises LaunchError where there is none.
    """
    rows = block.rows
    if block.co_resident > 1 or rows == 64:
        return {"programs": block.co_resident} if has_wgmma(tkc.target_of(q)) and _loops(k) else {}
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
