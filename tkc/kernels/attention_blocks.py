"""Blocks of attention's programs: what ends a launch first, as the planner says where Hopper's
tensor cores multiply (`tkc.attention_block`); elsewhere registers and shared memory decide.
"""

from __future__ import annotations

from math import prod

import tkc
from tkc.kernels.arrays import Array, dtype_of, library
from tkc.kernels.copies import BYTES, strides_of

FLOAT8 = "float8_e4m3"
# columns of a sum that a warpgroup holds at most: wgmma's largest N; two share more
MAX_COLUMNS = 256
WARPGROUP = 64  # rows
ROWS = 64, 128, 192, 256  # of Q that may be asked for
# tiles of a cache side by side: pages' numbers and places leave four too few registers
CACHED_TILES = 3
MAX_TILED_D = 128  # with which three have registers


def width_of(d: int, step: int = 16) -> int:
    """Columns of a block that holds rows of d elements: the tensor core's step is 16 elements, or
    32 of 8 bits.
    """
    return max(step, -(-d // step) * step)


def has_wgmma(target: str) -> bool:
    return target != "cpu" and tkc.target(target).wgmma


def _float32_block(d: int, target: str) -> tuple[int, int]:
    if d <= 128 or target == "cpu" or has_wgmma(target):
        return 64, 64 if d <= 64 else 32
    return (64, 16) if d <= 192 else (32, 16)


def _chosen(
    q: Array, k: Array, v: Array, launch: tkc.AttentionLaunch, rows: int | None, columns: int | None
) -> tkc.AttentionBlock:
    """A program's block, as asked or what ends the launch first.

    Hopper's tensor cores read Q and K from shared memory, the others' from registers.
    """
    d, target = max(launch.widths), tkc.target_of(q)
    if rows is not None and rows > 2 * WARPGROUP:
        return tkc.AttentionBlock(rows, columns or (96 if rows == 192 and d <= 64 else 64))
    if dtype_of(q) == "float32":
        bm, bn = _float32_block(d, target)
    elif not has_wgmma(target):
        bm, bn = _mma_block(d, target, launch)
    elif _fits_tma(q, k, v):
        return tkc.attention_block(launch, target, rows, columns)
    else:
        bm, bn = 64 if launch.queries <= 64 else 128, 128 if d <= 128 else 64
    return tkc.AttentionBlock(rows or bm, columns or bn)


def _mma_block(d: int, target: str, launch: tkc.AttentionLaunch) -> tuple[int, int]:
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
) -> tkc.AttentionBlock:
    """The block of attention's programs, for q of [batch, heads, queries, D]: as asked, else what
    ends such a launch first.
    """
    batch, heads, queries, _ = q.shape
    launch = _launch(q, k, v, batch * heads, queries, k.shape[2], queries, causal, window)
    return _chosen(q, k, v, launch, rows, columns)


def block_of_sequences(
    q: Array, k: Array, v: Array, sequences: int, longest: int, causal: bool, window: int | None
) -> tkc.AttentionBlock:
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
) -> tkc.AttentionLaunch:
    """Arguments as of AttentionLaunch."""
    d, dv = widths = q.shape[-1], v.shape[-1]
    rows, columns = sequences * mean, prod(k.shape[:-1])
    moved = int(BYTES[dtype_of(q)] * (rows + columns) * (d + dv))
    return tkc.AttentionLaunch(sequences, queries, keys, mean, causal, window or 0, widths, moved)


def block_of_pages(q: Array, queries: int, size: int) -> tkc.AttentionBlock:
    """The block of many queries of a cache, for q of [batch, heads, queries, D]; size: rows of a
    page, or 0. Blocks of 64 columns, which lie in one page of as many rows or twice as many; tiles
    of 64 rows side by side where they fit, since masks cut what rows see; two warpgroups where rows
    of K are not gathered.
    """
    d, target = q.shape[-1], tkc.target_of(q)
    if dtype_of(q) == "float32":
        return tkc.AttentionBlock(*_float32_block(d, target))
    if has_wgmma(target):
        if d <= MAX_TILED_D:
            return tkc.AttentionBlock(64, 64, CACHED_TILES)
        return tkc.AttentionBlock(64 if size % 64 else 128, 64)
    launch = _launch(q, q, q, q.shape[0] * q.shape[1], queries, queries, queries, True, None)
    rows, columns = _mma_block(d, target, launch)
    return tkc.AttentionBlock(rows if d <= 64 else 64, columns)


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


def options_of(q: Array, k: Array, block: tkc.AttentionBlock) -> dict[str, int]:
    """The options that give a program of many rows a warpgroup for each 64, where it has a loop,
    and each of those side by side one. Raises LaunchError where there is none.
    """
    rows = block.rows
    if block.co_resident > 1 or rows == 64:
        if not has_wgmma(tkc.target_of(q)) or not _loops(k) or q.shape[-1] > MAX_COLUMNS:
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
    most_width = tkc.AttentionBlock.most_width
    if rows is not None and d > most_width(rows):
        known = (f"{n} (D up to {most_width(n)})" for n in ROWS)
        raise tkc.LaunchError(
            f"attention: rows is one of {', '.join(known)}, or None; got {rows} with D = {d}"
        )
    if columns is not None and not (16 <= columns <= 256 and columns % 16 == 0):
        raise tkc.LaunchError(
            f"attention: columns is a multiple of 16 from 16 to 256, or None; got {columns}"
        )
