"""Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024) in its absorbed form: all heads of
a token attend to one cache of latents, which are the keys, and whose first columns are the values.

    q       [batch, queries, heads, rank + rotary]
    cache   [batch, capacity, rank + rotary]        one row a token: the latent, and a rotated key
    s       q cacheᵀ · scale
    out     softmax(s) cache[:, :rank]              [batch, queries, heads, rank]

The heads of one sequence are the rows of a block, those of a token after those of the one before.
Where sums of all `rank` columns are more than a program's registers hold, PARTS programs have a
part of the columns each, and scores are computed in each. Each reads whole rows, its own columns as
a block apart: one copy of it is the right factor of both dots, along the columns in one and along
the rows in the other. As in decoding
(`attention.py`), the keys are dealt out over programs too, and `combine` adds their parts up.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod
from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import Array, dtype_of, empty, expect, full, library
from tkc.kernels.attention import (
    LIFT,
    LOG2E,
    Parts,
    add_up,
    blocks_of,
    combine,
    pages_as_rows,
)
from tkc.kernels.attention_blocks import FLOAT8, MAX_COLUMNS, has_wgmma, width_of
from tkc.kernels.attention_checks import check_lengths, check_pages, result_type
from tkc.kernels.operator import operator

# rows of queries of a program whose two warpgroups share the columns of sums, and keys of a step
SHARED_ROWS, SHARED_KEYS = 64, 64
# programs among which keys are dealt out where the device is not known
PROGRAMS = 128
# rows of a program that only converts them
HALVED_ROWS = 8
# keys in whose time a program begins and ends: it loads its queries and stores sums
KEYS_OF_A_PROGRAM = 96


class Block(NamedTuple):
    """A program's block: rows of queries, keys of a step, in how many parts the columns of the
    result are, and options of the launch; whether what is kept in 8 bits is multiplied in float16.
    """

    rows: int
    keys: int
    parts: int
    options: dict[str, int]
    halves: bool = False


def _scaled(x: Any, scale: Any) -> Any:
    return x if scale is None else x * scale[0]


def _keep(m: Any, cols: Any, inside: Any, rows: int, keys: Any, span: tuple) -> Any:
    """Which columns, of those inside, rows from m on see. keys: of the sequence; span: queries,
    which are the last positions, and heads of each.
    """
    queries, heads = span
    if queries == 1:
        return inside
    place = (m + tkc.arange(rows)) // heads + (keys - queries)
    return inside & (place[:, None] >= cols)


def _weights(s: Any, high: Any, c: Any, by_row: Any, how: tuple[int, bool]) -> tuple:
    """Powers of scores relative to rows' new maxima, what those of the maxima before are multiplied
    by, and the new ones. c, by_row: what makes powers of two of scores; how: queries, and whether
    powers become float8.
    """
    queries, short = how
    new = tkc.maximum(high, tkc.max(s, axis=1) * c)
    base = tkc.where(new == -inf, 0, new) if queries > 1 else new  # nothing seen yet
    low = base - LIFT if short else base
    return tkc.exp2(s * by_row - low[:, None]), tkc.exp2(high - base), new


@tkc.jit
def _latent(
    q,
    cache,
    acc,
    top,
    total,
    lengths,
    table,
    latent_scale,
    powers,
    scale,
    QUERIES: tkc.constexpr,
    HEADS: tkc.constexpr,
    PAGE: tkc.constexpr,
    EACH: tkc.constexpr,
    PARTS: tkc.constexpr,
    RANK: tkc.constexpr,
    ROTARY: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """Rows from m on against a part of the keys: some columns of a sum, and what it is relative to.
    What is kept in 8 bits is multiplied in q's type: 16 bits hold it exactly, and with q of 8 bits
    probabilities become float8 too, times 2^LIFT. powers: what rows of queries were divided by.
    """
    i, part, b = tkc.program_id(0), tkc.program_id(1), tkc.program_id(2)
    own, m, width = i % PARTS, i // PARTS * BM, RANK // PARTS
    keys, first, c = lengths[b], part * EACH, scale * LOG2E
    last = tkc.minimum(keys, first + EACH)
    if QUERIES > 1:  # what the block's last row sees
        last = tkc.minimum(last, keys - QUERIES + (m + BM - 1) // HEADS + 1)
    if latent_scale is not None:
        c = c * latent_scale[0]
    # its own columns, the others, and behind them the rotated ones
    places = [((own + j) % PARTS * width, width) for j in range(PARTS)]
    places += [(RANK, ROTARY)] if ROTARY else []
    queries = [tkc.load(q[b], (m, at), (BM, size)) for at, size in places]
    c = c if powers is None else c * tkc.load(powers[b], (m,), (BM,))
    by_row = c if powers is None else c[:, None]
    x, row = (cache[b], None) if table is None else (cache, table[b])
    high, sums, out = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, width))
    exact, short = tkc.zeros((BM,)), q.dtype.bits == 8
    for n in tkc.range(first, last, BN):
        rows = [(x, at, size) for at, size in places]
        start, inside, blocks = blocks_of(rows, row, n, last, BN, PAGE)
        cols = start + tkc.arange(BN)
        s = tkc.zeros((BM, BN))
        blocks = [block.to(q.dtype) for block in blocks]
        for query, block in zip(queries[::-1], blocks[::-1], strict=True):
            s = tkc.dot(query, block.T, s)
        keep = _keep(m, cols[None, :], inside[None, :], BM, keys, (QUERIES, HEADS))
        p, shrink, new = _weights(tkc.where(keep, s, -inf), high, c, by_row, (QUERIES, short))
        (sums, exact), high = add_up(p, q.dtype, shrink, sums, exact), new
        out = tkc.dot(p.to(q.dtype), blocks[0], out * shrink[:, None])
    # a part's mean, relative to the logarithm of its sum: whatever sums were relative to
    seen = sums > 0
    mean = out * tkc.where(seen, 1 / sums, 0)[:, None]
    tkc.store(acc[b, 0, part], (m, own * width), _scaled(mean, latent_scale))
    if own == 0:
        whole = tkc.log2(exact) - LIFT if short else tkc.log2(sums)
        tkc.store(top[b, 0, part], (m,), tkc.where(seen, high + whole, -inf))
        tkc.store(total[b, 0, part], (m,), tkc.where(seen, 1.0, 0.0))


@tkc.jit
def _halved(q, out, powers, D: tkc.constexpr, BM: tkc.constexpr):
    """Rows in float16, divided by powers of two so that the largest element is less than 2, and
    these powers. Tensor cores take float8 as float16, which one instruction makes of two, no faster
    as bfloat16, which takes four.
    """
    m = tkc.program_id(0) * BM
    rows = tkc.load(q, (m, 0), (BM, D)).to(tkc.float32)
    top = tkc.maximum(tkc.max(abs(rows), axis=1), 2.0**-100)
    power = (top.to(tkc.int32, bitcast=True) & 0x7F800000).to(tkc.float32, bitcast=True)
    tkc.store(out, (m, 0), (rows * (1 / power)[:, None]).to(tkc.float16))
    tkc.store(powers, (m,), power)


@tkc.jit
def _widened(q, out, D: tkc.constexpr, BM: tkc.constexpr):
    """Rows of float8 in float16, which holds them exactly."""
    m = tkc.program_id(0) * BM
    tkc.store(out, (m, 0), tkc.load(q, (m, 0), (BM, D)).to(tkc.float16))


def _short(q: Array, target: str) -> Array:
    """Queries as tensor cores of the target take them: where these have no 8 bits, in float16, once
    and not in each step.
    """
    if dtype_of(q) != FLOAT8 or target == "cpu" or tkc.target(target).fp8 or not prod(q.shape):
        return q
    wide, rows = empty(q, q.shape, "float16"), prod(q.shape[:-1])
    flat = (x.reshape((rows, q.shape[-1])) for x in (q, wide))
    _widened[tkc.cdiv(rows, HALVED_ROWS)](*flat, D=width_of(q.shape[-1]), BM=HALVED_ROWS)
    return wide


def _shares_columns(rank: int, rotary: int, target: str) -> bool:
    """Whether sums of all columns are two warpgroups', and shared memory holds the queries, two
    steps' keys and the probabilities (of 16 bits) beside barriers. Of 8 bits, all of these and two
    steps' values, laid out anew, take less.
    """
    width = width_of(rank + rotary)
    needed = 2 * ((SHARED_ROWS + 2 * SHARED_KEYS) * width + SHARED_ROWS * SHARED_KEYS) + (2 << 10)
    fits = needed <= tkc.target(target).shared_bytes
    return MAX_COLUMNS < rank <= 2 * MAX_COLUMNS and rank % 128 == 0 and fits


def _block(rows: int, rank: int, rotary: int, kinds: tuple[str, str], target: str) -> Block:
    """The block of a program: 64 rows are one product of wgmma, 16 one of mma.sync. kinds: of q and
    of the cache. Where the cache alone is float8, threads convert it: more of them, and fewer keys,
    for want of registers.
    """
    short = kinds[1] == FLOAT8 != kinds[0]
    parts, warps = tkc.cdiv(rank, MAX_COLUMNS), {} if target == "cpu" else {"num_warps": 8}
    if rows <= 16:
        return Block(16, 32, parts, warps) if kinds[1] == FLOAT8 else Block(16, 32, 1, {})
    if has_wgmma(target) and _shares_columns(rank, rotary, target):
        return Block(SHARED_ROWS, SHARED_KEYS, 1, {}, halves=short)
    if has_wgmma(target) and not short:
        return Block(64, 64, parts, {}) if rows <= 64 else Block(128, 32, parts, {})
    return Block(32, 16, parts, warps)


def _count(programs: int, keys: int, step: int, target: str) -> int:
    """In how many parts keys are dealt out: those with which the last program is done first."""
    places = PROGRAMS if target == "cpu" else tkc.target(target).multiprocessors
    most = max(1, min(tkc.cdiv(keys, step), tkc.cdiv(4 * places, programs)))

    def time(count: int) -> float:
        turns = tkc.cdiv(programs * count, places)
        return turns * (tkc.cdiv(keys, count) + KEYS_OF_A_PROGRAM)

    return min(range(1, most + 1), key=time)


def _check(q: Array, cache: Array, rank: int, lengths: Array, pages: Array | None) -> None:
    """Raises LaunchError where shapes or types do not fit together."""
    name = "attention_latent"
    if library(q) != library(cache):
        raise tkc.LaunchError(
            f"{name}: q and cache are arrays of different libraries; convert them to one"
        )
    kinds = dtype_of(q), dtype_of(cache)
    if kinds[0] not in ("bfloat16", "float16", FLOAT8) or kinds[1] not in (kinds[0], FLOAT8):
        raise tkc.LaunchError(
            f"{name}: expected q of bfloat16, float16 or {FLOAT8}, and a cache of the same or of"
            f" {FLOAT8}, got {kinds[0]} and {kinds[1]}; convert them"
        )
    if len(q.shape) != 4 or len(cache.shape) != 3:
        raise tkc.LaunchError(
            f"{name}: expected q of [batch, queries, heads, D] and a cache of [batch, capacity, D],"
            f" or [pages, page size, D] beside pages, got {list(q.shape)} and {list(cache.shape)}"
        )
    if q.shape[-1] != cache.shape[-1]:
        raise tkc.LaunchError(
            f"{name}: rows of q have {q.shape[-1]} elements, those of the cache"
            f" {cache.shape[-1]}; they must have as many"
        )
    if pages is None and q.shape[0] != cache.shape[0]:
        raise tkc.LaunchError(
            f"{name}: q has {q.shape[0]} batches and the cache {cache.shape[0]}; they must be as"
            " many, or pass pages"
        )
    if not 32 <= rank <= q.shape[-1] or rank % 32:
        raise tkc.LaunchError(
            f"{name}: rank is a multiple of 32 up to {q.shape[-1]}, the columns of q, got {rank};"
            " pad the latents with zeros"
        )
    check_pages(q, pages, name)
    check_lengths(q, lengths, name)


@operator(name="attention_latent")
def _attend(
    q: Array,
    cache: Array,
    lengths: Array,
    rank: int,
    scale: float,
    pages: Array | None = None,
    latent_scale: Array | None = None,
    q_scale: Array | None = None,
    sums: bool = True,
) -> Iterator[tuple[Array, Array]]:
    """attention_latent's result and its log-sum-exp (with `sums`)."""
    _check(q, cache, rank, lengths, pages)
    if not scale > 0:
        raise tkc.LaunchError(
            f"attention_latent: scale is positive, got {scale}; negate q for a negative one"
        )
    for name, x, shape in (("latent_scale", latent_scale, (1,)), ("q_scale", q_scale, q.shape[:3])):
        expect(x, tuple(shape), name)
    (batch, queries, heads, d), rows = q.shape, q.shape[1] * q.shape[2]
    out = empty(q, (batch, queries, heads, rank), result_type(q))
    lse = empty(q, (batch, queries, heads) if sums else (0,), "float32")
    yield out, lse
    if not prod(out.shape):
        return
    size = 0 if pages is None else cache.shape[1]
    keys = cache.shape[1] if pages is None else pages.shape[1] * size
    target = tkc.target_of(q)
    q = _short(q, target)
    block = _block(rows, rank, d - rank, (dtype_of(q), dtype_of(cache)), target)
    if size % block.keys:
        cache = pages_as_rows(cache, "attention_latent")
    programs = tkc.cdiv(rows, block.rows) * block.parts
    count = _count(programs * batch, keys, block.keys, target)
    each = max(1, tkc.cdiv(tkc.cdiv(keys, count), block.keys)) * block.keys
    count = max(1, tkc.cdiv(keys, each))
    parts = Parts(
        empty(q, (batch, 1, count, rows, rank), "float32"),
        *(empty(q, (batch, 1, count, rows), "float32") for _ in range(2)),
    )
    given = q.reshape((batch, rows, d))
    powers = None if q_scale is None else q_scale.reshape((batch, rows))
    # where threads gather rows, consumers have no registers for powers
    if block.halves and dtype_of(q) == "bfloat16" and not size % block.keys:
        given, powers = empty(q, given.shape, "float16"), empty(q, (batch, rows), "float32")
        flat = (q.reshape((batch * rows, d)), given.reshape((batch * rows, d)))
        _halved[tkc.cdiv(batch * rows, HALVED_ROWS)](
            *flat, powers.reshape((batch * rows,)), D=width_of(d), BM=HALVED_ROWS
        )
    _latent[programs, count, batch](
        *(given, cache, *parts, lengths, pages, latent_scale, powers, scale),
        QUERIES=queries,
        HEADS=heads,
        PAGE=size,
        EACH=each,
        PARTS=block.parts,
        RANK=rank,
        ROTARY=width_of(d - rank) if d > rank else 0,
        BM=block.rows,
        BN=block.keys,
        **block.options,
    )
    one_query = out.reshape((batch, rows, 1, rank)), lse.reshape((batch, rows, 1)) if sums else None
    combine(parts, *one_query)


def attention_latent(
    q: Array,
    cache: Array,
    lengths: Array,
    rank: int,
    scale: float | None = None,
    with_lse: bool = False,
    pages: Array | None = None,
    latent_scale: Array | float | None = None,
    q_scale: Array | float | None = None,
) -> Array | tuple[Array, Array]:
    """Multi-head latent attention (MLA) to a cache of latents: a step of decoding, several tokens
    at once (speculative decoding), or a part of a prompt (chunked prefill).

    q: bfloat16, float16 or float8_e4m3 [batch, queries, heads, D], the first `rank` columns
    multiplied by the heads' key projection already (absorbed), the others rotated. cache: of q's
    type or float8_e4m3, [batch, capacity, D]: each token's latent of `rank` columns (a multiple of
    32), then its rotated key, which all heads share; the values are the latents. lengths: int32
    [batch], how many tokens a sequence has, those of the queries included, which are the last ones:
    query i of n sees the first lengths − n + i + 1 rows; what stands behind the lengths does not
    matter, NaN neither. scale: D ** -0.5 by default; models have that of a head before absorption
    (DeepSeek: 192 ** -0.5). pages: the cache is a pool of [pages, page size, D], and pages, int32
    of [batch, pages of a sequence], says which are a sequence's, in order; what stands behind its
    length is not read. latent_scale: what a float8 cache is to be multiplied by, a number or
    float32 of [1]. q_scale: what q of float8 is to be multiplied by, a number or float32 of [batch,
    queries, heads]. With q of float8 tensor cores multiply 8 bits, and probabilities are rounded to
    float8 too; with q of 16 bits a float8 cache is converted, which loses nothing.

    The result is [batch, queries, heads, rank], of q's type, bfloat16 where that is float8;
    with_lse: also the natural log-sum-exp of each row's scores, float32 [batch, queries, heads], −∞
    where a row sees nothing. The same arguments give the same bits. Raises LaunchError where shapes
    or types do not fit. Source: DeepSeek-AI, "DeepSeek-V2" (2024); parts of the keys are combined
    as in "Flash-Decoding" (Dao et al., 2023).
    """
    try:
        if latent_scale is not None and dtype_of(cache) != FLOAT8:
            raise tkc.LaunchError(
                f"attention_latent: latent_scale is for a cache of {FLOAT8}, and this one is"
                f" {dtype_of(cache)}; multiply by it before the call"
            )
        if isinstance(latent_scale, (int, float)):
            latent_scale = full(q, (1,), latent_scale, "float32")
        if q_scale is not None and dtype_of(q) != FLOAT8:
            raise tkc.LaunchError(
                f"attention_latent: q_scale is for q of {FLOAT8}, and this one is {dtype_of(q)};"
                " multiply by it before the call"
            )
        scale = max(q.shape[-1], 1) ** -0.5 if scale is None else float(scale)
        if isinstance(q_scale, (int, float)):
            scale, q_scale = scale * q_scale, None
        out = _attend(q, cache, lengths, rank, scale, pages, latent_scale, q_scale, with_lse)
        return out if with_lse else out[0]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
