"""Attention forward: softmax(Q Kᵀ · scale) V, from the plain block program that
examples/attention.py explains.

One kernel serves every variant; what a launch does not use is not in its code:

    causal, window      row i sees the columns up to i + shift, shift = keys − queries (the queries
                        are the last ones), and the last `window` of these
    grouped queries     `GROUP` heads of Q share one of K and V
    soft cap            scores s become cap · tanh(s / cap)
    cu_seqlens          ragged batches: Q, K and V of all sequences one after the other, and where
                        each begins
    log-sum-exp         log of each row's sum of exponentials, to combine parts with
    float8              Q, K and V of 8 bits, each with a scale a head; probabilities become float8
                        too, times 2^LIFT, so that small ones keep their bits. Decoding reads K and
                        V of 8 bits and multiplies in 16

A single query with many keys (decoding) is bound by the bytes of K and V: `_decode` gives each
head's keys to many programs, the group's heads as rows of one block, and `_combine` adds their
parts up: each part's sum relative to its own maximum. Where keys lie in pages, a block is rows of
one page, or of several gathered by rows where a block has more; a page's number is loaded well
before the copies that it is for (pipeline-async-copies), and what a sequence does not have is not
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil, e, inf, log, log2, prod
from typing import NamedTuple

import tkc
from tkc.kernels.arrays import Array, dtype_of, empty, expect, full, library
from tkc.kernels.matmul import strides_of
from tkc.kernels.operator import operator

LOG2E, LN2 = log2(e), log(2)
FLOAT8 = "float8_e4m3"
# the sum of a block of 128 columns then still fits what relaxed maxima allow float8
LIFT = 1
# by D up to which registers hold the accumulator: rows of Q that a program may have, one to four
# warpgroups of 64
WIDEST = {64: 256, 128: 256, 192: 128, 256: 64}
# by D up to which: rows of Q and of K that a program may also have, and the time of a row relative
# to one of 128 x 128 (measured on an H200, as the tables below)
HOPPER = {
    64: ((256, 64, 0.88), (192, 96, 0.92)),
    96: ((192, 64, 0.93),),
}
# likewise, where masks cut what rows see: co-resident tiles of 64 rows and columns, the time of a
# row, and columns by which each tile's loop is shorter than that of 128 rows
CO_RESIDENT = {
    64: (4, 0.88, -60),
    96: (3, 0.885, -70),
    128: (3, 0.965, -55),
}
# likewise, where all loops walk over the same columns: the time of a row by a column of K, columns
# in whose time a row begins and ends, and of a last block's mask
EQUAL_LOOPS = {
    128: (
        (128, 128, 1.0, 141, 10),
        (192, 64, 1.002, 142, 3),
        (128, 112, 1.012, 152, 10),
        (128, 80, 1.007, 142, 7),
    )
}
# columns in whose time a row waits that has one block of K, since no other's dots run beside its
# vector work
SINGLE_BLOCK_COLUMNS = 90
# columns, in time, by which one more row lengthens the loop of a window
WINDOW_COLUMNS_PER_ROW = 2.5
# of a decoding step: programs that share the keys, at most, and keys of each, at least
MAX_DECODE_PARTS = 264
MIN_KEYS_PER_PART = 256


@tkc.jit
def _attention(
    q,
    k,
    v,
    o,
    lse,
    cu_seqlens,
    qs,
    ks,
    vs,
    scale,
    cap,
    window,
    GROUP: tkc.constexpr,
    CAUSAL: tkc.constexpr,
    WINDOW: tkc.constexpr,
    CAP: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    if cu_seqlens is not None:  # arrays of [tokens, heads, D]
        start, end = cu_seqlens[b], cu_seqlens[b + 1]
        q, k, v, o = q[:, h], k[:, h // GROUP], v[:, h // GROUP], o[:, h]
        queries = end - start
        # the grid is as long as the longest: a sequence without rows here has no columns
        keys = tkc.where(m < queries, queries, 0)
    else:
        start, queries, keys = 0, q.shape[2], k.shape[2]
        q, k, v, o = q[b, h], k[b, h // GROUP], v[b, h // GROUP], o[b, h]
    if qs is not None:
        scale = scale * qs[h]
    if ks is not None:
        scale = scale * ks[h // GROUP]
    c, shift = scale * LOG2E, keys - queries if cu_seqlens is None else 0
    rows, qi = m + tkc.arange(BM) + shift, tkc.load(q, (start + m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, DV))
    first = tkc.maximum(m + shift - window + 1, 0) // BN * BN if WINDOW else 0
    for n in tkc.range(first, tkc.minimum(keys, m + BM + shift) if CAUSAL else keys, BN):
        cols = n + tkc.arange(BN)
        # the last row sees the last column: what rows behind it see is not stored
        keep = rows[:, None] >= cols[None, :] if CAUSAL else cols[None, :] < keys
        if WINDOW:
            keep = keep & (rows[:, None] - cols[None, :] < window)
        s = tkc.dot(qi, tkc.load(k, (start + n, 0), (BN, D)).T)
        if CAP:
            s = cap * tkc.tanh(s * (scale / cap)) * (1 / scale)
        s = tkc.where(keep, s, -inf)
        new = tkc.maximum(top, tkc.max(s, axis=1) * c)
        base = tkc.where(new == -inf, 0, new)  # a row with nothing to see
        low = base - LIFT if v.dtype.bits == 8 else base
        p, shrink = tkc.exp2(s * c - low[:, None]), tkc.exp2(top - base)
        total = total * shrink + tkc.sum(p, axis=1)
        acc = tkc.dot(p.to(v.dtype), tkc.load(v, (start + n, 0), (BN, DV)), acc * shrink[:, None])
        top = new
    out = acc * tkc.where(total > 0, 1 / total, 0)[:, None]
    out = (out if vs is None else out * vs[h // GROUP]).to(o.dtype)
    if cu_seqlens is None:
        tkc.store(o, (m, 0), out)
    else:
        tkc.store(o, (start + m, 0), out, mask=(m + tkc.arange(BM))[:, None] < queries)
    if lse is not None:
        sums = tkc.where(
            total > 0, ((top - LIFT if v.dtype.bits == 8 else top) + tkc.log2(total)) * LN2, -inf
        )
        if cu_seqlens is None:
            tkc.store(lse[b, h], (m,), sums)
        else:
            tkc.store(lse[h], (start + m,), sums, mask=m + tkc.arange(BM) < queries)


def _paged(x, h, page, n, inside, width: int, size: int, block: int):
    """Rows from n on of a head, in pages of `size` rows: `page` is a page's number where a block is
    part of one page, else the pool's row of each.
    """
    if size % block == 0:
        return tkc.load(x[page, :, h], (n % size, 0), (block, width), mask=inside)
    return tkc.load(x[:, h], (page, 0), (block, width), mask=inside)


@tkc.jit
def _decode(
    q,
    k,
    v,
    acc,
    top,
    total,
    lengths,
    table,
    qs,
    ks,
    vs,
    scale,
    PAGE: tkc.constexpr,
    EACH: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """One query of each head of a group against a part of the keys: a sum, and what it is relative
    to. What is kept in 8 bits is multiplied in 16, which hold it exactly.
    """
    part, h, b = tkc.program_id(0), tkc.program_id(1), tkc.program_id(2)
    keys = k.shape[2] if lengths is None else lengths[b]
    first = part * EACH
    last, c = tkc.minimum(keys, first + EACH), scale * LOG2E
    if ks is not None:
        c = c * ks[h]
    if qs is not None:
        c = c * tkc.load(qs[h], (0,), (BM,))
    qi, short = tkc.load(q[b, h], (0, 0), (BM, D)), k.dtype.bits == 8
    rows = qs is not None or short and q.dtype == tkc.bfloat16  # have each a factor of their own
    # relative to a power of two: float16 has the bits, not the range
    if short and q.dtype == tkc.bfloat16:
        most = tkc.max(tkc.abs(qi.to(tkc.float32)), axis=1)
        unit = tkc.where(most > 0, tkc.exp2(tkc.floor(tkc.log2(most))), 1)
        qi, c = qi.to(tkc.float32) / unit[:, None], c * unit
    if short:
        qi = qi.to(tkc.float16)
    held = tkc.float16 if short else v.dtype
    if table is None:
        k, v = k[b, h], v[b, h]
    high, sums, out = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, DV))
    for n in tkc.range(first, last, BN):
        keep = (n + tkc.arange(BN))[None, :] < last
        if table is not None:
            cols = n + tkc.arange(BN)
            page = (
                table[b, n // PAGE]
                if PAGE % BN == 0
                else tkc.load(table[b], (cols // PAGE,), (BN,)) * PAGE + cols % PAGE
            )
            ki, vi = (
                _paged(x, h, page, n, (cols < last)[:, None], width, PAGE, BN)
                for x, width in ((k, D), (v, DV))
            )
        s = tkc.where(
            keep,
            tkc.dot(qi, (tkc.load(k, (n, 0), (BN, D)) if table is None else ki).to(qi.dtype).T),
            -inf,
        )
        new = tkc.maximum(high, tkc.max(s, axis=1) * c)
        p, shrink = tkc.exp2(s * (c[:, None] if rows else c) - new[:, None]), tkc.exp2(high - new)
        sums, high = sums * shrink + tkc.sum(p, axis=1), new
        if table is None:
            # p is 0 behind the end; 0 times what lies there need not be
            vi = tkc.load(v, (n, 0), (BN, DV), mask=(n + tkc.arange(BN) < last)[:, None])
        out = tkc.dot(p.to(held), vi.to(held), out * shrink[:, None])
    tkc.store(acc[b, h, part], (0, 0), out if vs is None else out * vs[h])
    tkc.store(top[b, h, part], (0,), high)
    tkc.store(total[b, h, part], (0,), sums)


@tkc.jit
def _combine(
    acc,
    top,
    total,
    o,
    lse,
    MAX_DECODE_PARTS: tkc.constexpr,
    DV: tkc.constexpr,
    GROUP: tkc.constexpr,
):
    """The parts of one head, each scaled to the largest maximum; in one order, so that the same
    arguments give the same bits.
    """
    g, h, b = tkc.program_id(0), tkc.program_id(1), tkc.program_id(2)
    parts = tkc.arange(MAX_DECODE_PARTS)
    inside = parts < acc.shape[2]
    tops = tkc.where(inside, tkc.load(top[b, h, :, g], (0,), (MAX_DECODE_PARTS,)), -inf)
    high = tkc.max(tops, axis=0)
    weights = tkc.where(tops == -inf, 0, tkc.exp2(tops - high))
    sums = tkc.sum(tkc.load(total[b, h, :, g], (0,), (MAX_DECODE_PARTS,)) * weights, axis=0)
    out = tkc.zeros((DV,))
    for i in tkc.range(acc.shape[2]):
        weight = tkc.where(top[b, h, i, g] == -inf, 0, tkc.exp2(top[b, h, i, g] - high))
        out = out + tkc.load(acc[b, h, i, g], (0,), (DV,)) * weight
    tkc.store(o[b, h * GROUP + g, 0], (0,), tkc.where(sums > 0, out / sums, 0).to(o.dtype))
    if lse is not None:
        tkc.store(
            lse[b, h * GROUP + g],
            (0,),
            tkc.full((1,), 0.0) + tkc.where(sums > 0, (high + tkc.log2(sums)) * LN2, -inf),
        )


# --------------------------------------------------------------------------------------------------
def _width(d: int, step: int = 16) -> int:
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
        self, window: int | None, each: Callable[[int, int], float], even: float
    ) -> float:
        """Of a launch, relative. Arguments as of `_blocks`; each: programs of a multiprocessor."""
        block = self.block
        loop = 1 if window is None else window + WINDOW_COLUMNS_PER_ROW * block.rows
        return self.rows * self.time * loop * _turns(each(block.rows, block.co_resident), even)


def _hopper_candidates(d: int, columns: int, window: int | None, uneven: int, keys: int):
    """The blocks that may be best for 128 rows of Q or more. Arguments as of `_blocks`."""
    if keys and (alike := _of_size(EQUAL_LOOPS, d)) and d > max(HOPPER):
        found = []
        for m, n, time, start, mask in alike:
            blocks = tkc.cdiv(keys, n)
            total = time * n * blocks + start + mask * (keys % n > 0)
            found.append(_Candidate(Block(m, n), m, total + SINGLE_BLOCK_COLUMNS * (blocks == 1)))
        return found
    sizes = ((128, columns, 1.0), *(_of_size(HOPPER, d) or ()))
    found = [_Candidate(Block(m, n), m, time) for m, n, time in sizes]
    if (uneven or window is not None) and (tiles := _of_size(CO_RESIDENT, d)):
        count, time, shorter = tiles
        time *= 1 + shorter / uneven if uneven else 1
        found.append(_Candidate(Block(64, 64, count), 64 * count, time))
    return found


def _of_size(table: Mapping[int, tuple], d: int) -> tuple | None:
    """The row of a table by the largest D; None where D is larger."""
    return next((row for most, row in table.items() if d <= most), None)


def _float32_block(d: int, target: str) -> tuple[int, int]:
    if d <= 128 or target in ("sm_90a", "cpu"):
        return 64, 64 if d <= 64 else 32
    return (64, 16) if d <= 192 else (32, 16)


def _programs_each(programs: Callable[[int, int], float], target: str) -> Callable[..., float]:
    """A function of rows and co-resident tiles that gives the programs of each multiprocessor."""

    def each(rows: int, co_resident: int = 1) -> float:
        if target == "cpu":
            return 0
        return programs(rows, co_resident) / tkc.target(target).multiprocessors

    return each


def _blocks(
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
    elif target != "sm_90a":
        bm, bn = _mma_block(d, target, queries, each)
    else:
        bm, bn = 64 if queries <= 64 else 128, 128 if d <= 128 else 64
        free = (rows, columns) == (None, None)
        if bm == 128 and free and _fits_tma(q, k, v):
            found = _hopper_candidates(d, bn, window, uneven, keys)
            return min(found, key=lambda c: c.launch_time(window, each, even)).block
    return Block(rows or bm, columns or bn)


def _mma_block(d: int, target: str, queries: int, each: Callable[[int], float]) -> tuple[int, int]:
    """64 rows as long as every program has a multiprocessor."""
    short = queries <= 64 or d > 128
    bm = 64 if short or 0 < each(64) <= 1 else 128
    return bm, 32 if 128 < d <= 192 and target != "cpu" else 64


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

    return _blocks(
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


def _turns(each: float, even: float) -> float:
    """How often the longest program's time passes before so many of each multiprocessor are done:
    one by one those of one length, else as they fill the multiprocessors, longest first, and then a
    while not all."""
    return ceil(each) if even == 1 else max(1, even * each) + 0.3


def options_of(q: Array, k: Array, block: Block) -> dict[str, int]:
    """The options that give a program of many rows a warpgroup for each 64, where it has a loop,
    and each of those side by side one. Raises LaunchError where there is none.
    """
    rows = block.rows
    if block.co_resident > 1 or rows == 64:
        return {"programs": block.co_resident} if tkc.target_of(q) == "sm_90a" and _loops(k) else {}
    if rows <= 128 or (target := tkc.target_of(q)) == "cpu":
        return {}
    if target != "sm_90a" or dtype_of(q) in ("float32", FLOAT8):
        raise tkc.LaunchError(
            f"attention: rows = {rows} of {dtype_of(q)} is not for {target}: three or four"
            " warpgroups are Hopper's, for 16-bit types; leave rows out"
        )
    return {"num_warps": rows // 16} if _loops(k) else {}


def _check_block(d: int, rows: int | None, columns: int | None) -> None:
    """Raises LaunchError where no program has such a block."""
    if rows is not None and (rows not in WIDEST or d > WIDEST[rows]):
        raise tkc.LaunchError(
            "attention: rows is one of"
            f" {', '.join(f'{n} (D up to {most})' for n, most in WIDEST.items())}, or None; got"
            f" {rows} with D = {d}"
        )
    if columns is not None and not (16 <= columns <= 256 and columns % 16 == 0):
        raise tkc.LaunchError(
            f"attention: columns is a multiple of 16 from 16 to 256, or None; got {columns}"
        )


def _check(q: Array, k: Array, v: Array, mixed: bool = False) -> None:
    """Raises LaunchError where shapes or types do not fit together; mixed: k and v may be float8
    beside a q of 16 bits.
    """
    if len({library(x) for x in (q, k, v)}) > 1:
        raise tkc.LaunchError(
            "attention: q, k and v are arrays of different libraries; convert them to one"
        )
    if mixed and dtype_of(k) == dtype_of(v) == FLOAT8 and dtype_of(q) in ("bfloat16", "float16"):
        pass
    elif len({dtype_of(x) for x in (q, k, v)}) > 1 or dtype_of(q) not in (
        "bfloat16",
        "float16",
        "float32",
        FLOAT8,
    ):
        raise tkc.LaunchError(
            "attention: expected one element type of bfloat16, float16, float32 and"
            f" {FLOAT8}{f' (or k and v of {FLOAT8} beside a q of 16 bits)' * mixed}, got"
            f" {dtype_of(q)}, {dtype_of(k)} and {dtype_of(v)}; convert them"
        )
    if not len(q.shape) == len(k.shape) == len(v.shape):
        raise tkc.LaunchError(
            f"attention: expected arrays of one rank, got {list(q.shape)}, {list(k.shape)} and"
            f" {list(v.shape)}"
        )
    if q.shape[-1] != k.shape[-1]:
        raise tkc.LaunchError(
            f"attention: rows of q have {q.shape[-1]} elements, those of k {k.shape[-1]}; they must"
            " have as many"
        )
    if tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
        raise tkc.LaunchError(
            f"attention: k is {list(k.shape)} and v {list(v.shape)}; they must have the same keys"
            " and heads"
        )


def _group(queries: int, keys: int) -> int:
    if not keys or queries % keys:
        raise tkc.LaunchError(
            f"attention: {queries} heads of q cannot share {keys} of k and v; the first must be a"
            " multiple of the second"
        )
    return queries // keys


def _scales(
    arrays: tuple[Array, Array, Array], heads: int, shared: int, scales: dict[str, Array | None]
) -> None:
    """Raises LaunchError unless the scales of q, k and v are those of float8 arrays, float32, one a
    head.
    """
    for of, (name, x) in zip(arrays, scales.items(), strict=True):
        if x is None:
            continue
        if dtype_of(of) != FLOAT8:
            raise tkc.LaunchError(
                f"attention: {name} is for arrays of {FLOAT8}, and {name[0]} is {dtype_of(of)};"
                " multiply by it before the call"
            )
        expect(x, (heads if name == "q_scale" else shared,), name)
        if dtype_of(x) != "float32":
            raise tkc.LaunchError(f"attention: {name} is float32, got {dtype_of(x)}; convert it")


def _numbers(
    arrays: tuple[Array, Array, Array],
    scale: float | None,
    scales: dict[str, Array | float | None],
    shared: int,
) -> tuple[float | None, list[Array | None]]:
    """Scales of q and k that are numbers join that of the scores, one of v becomes an array."""
    if not (numbers := {name: x for name, x in scales.items() if isinstance(x, (int, float))}):
        return scale, list(scales.values())
    for of, name in zip(arrays, scales, strict=False):
        if name in numbers and dtype_of(of) != FLOAT8:
            raise tkc.LaunchError(
                f"attention: {name} is for arrays of {FLOAT8}, and {name[0]} is {dtype_of(of)};"
                " multiply by it before the call"
            )
    q, v = arrays[0], arrays[2]
    if {"q_scale", "k_scale"} & numbers.keys():
        scale = (
            (max(q.shape[-1], 1) ** -0.5 if scale is None else scale)
            * numbers.get("q_scale", 1)
            * numbers.get("k_scale", 1)
        )

    def each(name, x):
        return (
            x
            if name not in numbers
            else full(v, (shared,), x, "float32")
            if name == "v_scale"
            else None
        )

    return scale, [each(name, x) for name, x in scales.items()]


def _result(q: Array) -> str:
    """The element type of a result: that of q, but bfloat16 for one of 8 bits."""
    return "bfloat16" if dtype_of(q) == FLOAT8 else dtype_of(q)


def _options(causal: bool, window: int | None, softcap: float, scale: float | None, d: int) -> dict:
    if window is not None and (window < 1 or not causal):
        raise tkc.LaunchError(
            f"attention: a window is a number of keys from 1 on, with causal=True; got {window}"
            f" with causal={causal}"
        )
    if softcap < 0:
        raise tkc.LaunchError(f"attention: a soft cap is positive, or 0 for none; got {softcap}")
    scale = max(d, 1) ** -0.5 if scale is None else scale
    if not scale > 0:
        raise tkc.LaunchError(
            f"attention: scale is positive, got {scale}; negate q for a negative one"
        )
    return dict(
        scale=float(scale),
        cap=float(softcap),
        window=window or 0,
        CAUSAL=causal,
        WINDOW=window is not None,
        CAP=softcap > 0,
    )


@operator(name="attention")
def _forward(
    q: Array,
    k: Array,
    v: Array,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    heads_first: bool = True,
    rows: int | None = None,
    columns: int | None = None,
    q_scale: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    sums: bool = True,
) -> Iterator[tuple[Array, Array]]:
    """attention's result, in memory as q is, and its log-sum-exp (with `sums`)."""
    _check(q, k, v)
    if len(q.shape) != 4:
        raise tkc.LaunchError(
            f"attention: expected q of [batch, heads, queries, D], got {list(q.shape)}"
        )
    out = empty(q, (*q.shape[:-1], v.shape[-1]), _result(q))
    turn = (lambda x: x) if heads_first else lambda x: x.swapaxes(1, 2)
    q, k, v, o = map(turn, (q, k, v, out))
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    if k.shape[0] != batch:
        raise tkc.LaunchError(
            f"attention: q has {batch} batches and k {k.shape[0]}; they must be as many"
        )
    group, options = _group(heads, k.shape[1]), _options(causal, window, softcap, scale, d)
    _check_block(max(d, v.shape[-1]), rows, columns)
    _scales((q, k, v), heads, k.shape[1], dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale))
    lse = empty(q, (batch, heads, queries) if sums else (0,), "float32")
    yield out, lse
    if not out.size if library(out) != "torch" else not out.numel():
        return
    if queries == 1 and keys >= 2 * MIN_KEYS_PER_PART and window is None and not softcap:
        return _decoded(
            q,
            k,
            v,
            o,
            lse if sums else None,
            None,
            options["scale"],
            None,
            q_scale,
            k_scale,
            v_scale,
        )
    block, step = (
        block_of(q, k, v, causal, window, rows, columns),
        (32 if dtype_of(q) == FLOAT8 else 16),
    )
    options |= options_of(q, k, block)
    _attention[tkc.cdiv(queries, block.rows), heads, batch](
        q,
        k,
        v,
        o,
        lse if sums else None,
        None,
        q_scale,
        k_scale,
        v_scale,
        GROUP=group,
        D=_width(d, step),
        DV=_width(v.shape[-1], step),
        BM=block.rows,
        BN=block.columns,
        **options,
    )


def _decoded(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array | None,
    lengths: Array | None,
    scale: float,
    table: Array | None,
    q_scale: Array | None,
    k_scale: Array | None,
    v_scale: Array | None,
) -> None:
    (batch, heads, _, d), dv, size = q.shape, v.shape[-1], 0 if table is None else v.shape[1]
    shared, keys = (
        (v.shape[1], v.shape[2]) if table is None else (v.shape[2], table.shape[1] * size)
    )
    group = heads // shared
    bm, bn = max(16, -(-group // 16) * 16), 64
    if size % bn:
        k, v = _rows(k), _rows(v)
    count = max(
        1, min(tkc.cdiv(keys, MIN_KEYS_PER_PART), tkc.cdiv(MAX_DECODE_PARTS * 4, batch * shared))
    )
    each = tkc.cdiv(tkc.cdiv(keys, count), bn) * bn
    count = tkc.cdiv(keys, each)
    acc, (top, total) = (
        empty(q, (batch, shared, count, group, dv), "float32"),
        (empty(q, (batch, shared, count, group), "float32") for _ in range(2)),
    )
    rows, each_row = (
        q.reshape((batch, shared, group, d)),
        (q_scale if q_scale is None else q_scale.reshape((shared, group))),
    )
    _decode[count, shared, batch](
        rows,
        k,
        v,
        acc,
        top,
        total,
        lengths,
        table,
        each_row,
        k_scale,
        v_scale,
        scale,
        PAGE=size,
        EACH=each,
        D=_width(d),
        DV=_width(dv),
        BM=bm,
        BN=bn,
    )
    _combine[group, shared, batch](
        acc,
        top,
        total,
        o,
        lse,
        MAX_DECODE_PARTS=1 << (count - 1).bit_length(),
        DV=_width(dv),
        GROUP=group,
    )


@operator(name="attention_ragged")
def _ragged(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens: Array,
    max_seqlen: int,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    q_scale: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    sums: bool = True,
) -> Iterator[tuple[Array, Array]]:
    """attention of sequences that lie one after the other."""
    _check(q, k, v)
    if len(q.shape) != 3 or q.shape[0] != k.shape[0]:
        raise tkc.LaunchError(
            "attention: expected q, k and v of [tokens, heads, D] with as many tokens, got"
            f" {list(q.shape)} and {list(k.shape)}"
        )
    if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 1 or dtype_of(cu_seqlens) != "int32":
        raise tkc.LaunchError(
            "attention: cu_seqlens is an array of int32 with one more element than sequences, got"
            f" {dtype_of(cu_seqlens)} {list(cu_seqlens.shape)}"
        )
    (tokens, heads, d), dv = q.shape, v.shape[-1]
    group, options = _group(heads, k.shape[1]), _options(causal, window, softcap, scale, d)
    _scales((q, k, v), heads, k.shape[1], dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale))
    out, lse = (
        empty(q, (tokens, heads, dv), _result(q)),
        empty(q, (heads, tokens) if sums else (0,), "float32"),
    )
    yield out, lse
    if not prod(out.shape):
        return
    sequences = cu_seqlens.shape[0] - 1
    block, step = (
        _blocks(
            q,
            k,
            v,
            max_seqlen,
            lambda rows, co_resident: heads * (tokens / (rows * co_resident) + sequences / 2),
            0.5,
            window,
            uneven=max_seqlen if causal and window is None else 0,
        ),
        (32 if dtype_of(q) == FLOAT8 else 16),
    )
    options |= options_of(q, k, block)
    _attention[tkc.cdiv(max_seqlen, block.rows), heads, sequences](
        q,
        k,
        v,
        out,
        lse if sums else None,
        cu_seqlens,
        q_scale,
        k_scale,
        v_scale,
        GROUP=group,
        D=_width(d, step),
        DV=_width(dv, step),
        BM=block.rows,
        BN=block.columns,
        **options,
    )


def _rows(pool: Array) -> Array:
    """A pool's pages as one array of rows. Raises LaunchError where they do not lie one after the
    other.
    """
    steps = pool.stride() if library(pool) == "torch" else getattr(pool, "strides", None)
    if steps is not None and pool.shape[0] > 1 and steps[0] != steps[1] * pool.shape[1]:
        raise tkc.LaunchError(
            f"attention_decode: pages of {pool.shape[1]} rows are read row by row and must lie one"
            " after the other in the pool; copy it, or make pages of a multiple of 64 rows"
        )
    return pool.reshape((pool.shape[0] * pool.shape[1], *pool.shape[2:]))


@operator(name="attention_decode")
def _step(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array,
    scale: float | None = None,
    pages: Array | None = None,
    q_scale: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    sums: bool = True,
) -> Iterator[tuple[Array, Array]]:
    """One query a head, and as many keys of each batch as `lengths` says."""
    _check(q, k, v, mixed=True)
    if pages is not None and (
        len(pages.shape) != 2
        or dtype_of(pages) != "int32"
        or len(q.shape) == 4
        and pages.shape[0] != q.shape[0]
    ):
        raise tkc.LaunchError(
            "attention_decode: pages is int32 of [batch, pages of a sequence], got"
            f" {dtype_of(pages)} {list(pages.shape)}"
        )
    if len(q.shape) != 4 or q.shape[2] != 1:
        raise tkc.LaunchError(
            f"attention_decode: expected q of [batch, heads, 1, D], got {list(q.shape)}"
        )
    expect(lengths, q.shape[:1], "lengths")
    if dtype_of(lengths) != "int32":
        raise tkc.LaunchError(
            f"attention_decode: lengths are int32, got {dtype_of(lengths)}; convert them"
        )
    shared = k.shape[1 if pages is None else 2]
    _group(q.shape[1], shared)
    _scales((q, k, v), q.shape[1], shared, dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale))
    out, lse = (
        empty(q, (*q.shape[:-1], v.shape[-1]), _result(q)),
        empty(q, q.shape[:-1] if sums else (0,), "float32"),
    )
    yield out, lse
    if prod(out.shape):
        _decoded(
            q,
            k,
            v,
            out,
            lse if sums else None,
            lengths,
            float(scale or max(q.shape[-1], 1) ** -0.5),
            pages,
            q_scale,
            k_scale,
            v_scale,
        )


def attention(
    q: Array,
    k: Array,
    v: Array,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    heads_first: bool = True,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    with_lse: bool = False,
    rows: int | None = None,
    columns: int | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
) -> Array | tuple[Array, Array]:
    """softmax(q kᵀ · scale + mask) v, computed in float32, of q's element type (bfloat16, float16
    or float32); of float8_e4m3 bfloat16.

    q: [batch, heads, queries, D]; k: [batch, shared heads, keys, D]; v: [batch, shared heads, keys,
    DV], with heads a multiple of the shared heads (grouped queries); with heads_first=False [batch,
    queries, heads, D] and so on. Any strides. scale: D^−½ by default. causal: the queries are the
    last of the keys' positions, and see what is not after them; window: only the last so many.
    softcap: scores s become softcap · tanh(s / softcap). cu_seqlens, max_seqlen: ragged batches,
    arrays of [tokens, heads, D], where the sequences begin (int32, their number + 1) and the length
    of the max_seqlen. with_lse: also the log-sum-exp of each row, float32 of [batch, heads,
    queries] ([heads, tokens]). rows, columns: of Q and of K in a program's block, which the shapes
    choose otherwise (not for ragged batches): on Hopper 192 or 256 rows are three or four
    warpgroups that take turns at the tensor cores. q_scale, k_scale, v_scale: what float8 q, k and
    v are to be multiplied by, a number or float32 of [heads] (k, v: [shared heads]); the
    probabilities are rounded to float8, sums are float32. A row that sees nothing gives zeros, and
    −inf. Raises LaunchError where shapes, types or options do not fit.
    """
    if (cu_seqlens is None) != (max_seqlen is None):
        raise tkc.LaunchError("attention: cu_seqlens and max_seqlen come together")
    if cu_seqlens is not None and (rows or columns):
        raise tkc.LaunchError(
            "attention: rows and columns are not for ragged batches; leave them out"
        )
    scale, scales = _numbers(
        (q, k, v),
        scale,
        dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale),
        v.shape[-2 if cu_seqlens is not None or not heads_first else -3],
    )
    out = (
        _forward(
            q, k, v, causal, scale, window, softcap, heads_first, rows, columns, *scales, with_lse
        )
        if cu_seqlens is None
        else _ragged(
            q, k, v, cu_seqlens, max_seqlen, causal, scale, window, softcap, *scales, with_lse
        )
    )
    return out if with_lse else out[0]


def attention_decode(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array,
    scale: float | None = None,
    with_lse: bool = False,
    pages: Array | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
) -> Array | tuple[Array, Array]:
    """One step of decoding: each head's single query against the first lengths[batch] of its keys.

    q: [batch, heads, 1, D]; k, v: [batch, shared heads, capacity, D]; lengths: int32 [batch]; what
    stands behind them does not matter, NaN neither. pages: the keys lie in pages, k and v are pools
    of [pages, page size, shared heads, D] (any page size; multiples of 64 are read a page at a
    time, others row by row), and pages, int32 of [batch, pages of a sequence], says which are a
    sequence's, in order; what stands behind its length is not read. k and v may be float8_e4m3
    beside a q of bfloat16 or float16, or all three (then the result is bfloat16); q_scale, k_scale,
    v_scale: what they are to be multiplied by, a number or float32 of [heads] (k, v: [shared
    heads]). The keys are dealt out over many programs and their parts added up in one order, so
    that the same arguments give the same bits. Raises LaunchError where shapes or types do not fit.
    """
    scale, scales = _numbers(
        (q, k, v),
        scale,
        dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale),
        k.shape[-3 if pages is None else -2],
    )
    out = _step(q, k, v, lengths, scale, pages, *scales, with_lse)
    return out if with_lse else out[0]
