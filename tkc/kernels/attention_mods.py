"""Attention by any score and any mask, as FlexAttention's users write them (Dong et al., 2024).

    score_mod(score, b, h, q_idx, kv_idx) -> score     of scores that are scaled already
    mask_mod(b, h, q_idx, kv_idx) -> bool               whether a row sees a column

Both are functions of elements that become a part of three kernels: forward, and of the gradients
dQ and dK with dV, as in attention_backward.py, where the last one may add dQ up, too. They see
whole tiles: b and h are scalars, q_idx a
column or a row of integers, kv_idx the other one. Arrays that they captured are arguments of the
kernels (`tkc.lambda_lift`); what they read of these has a gradient, which `_queries` adds up in
memory (`tkc.vjp`), in float32 and in no fixed order: `deterministic` refuses it but where each
element is added to once.

A block mask (block_mask.py) lists, for each block of rows, the blocks of columns that rows of it
see: those that are seen whole, where the mask is not evaluated, and others. A program walks over
both lists in one loop. Without one it walks over all columns, and evaluates the mask everywhere.

Dropout draws bits by Philox from a seed, the head and the place in the matrix of scores, so that
each kernel draws the same. The row sums do not know of it: what a row keeps is divided by how
likely it is to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import e, inf, log, log2, prod
from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import Array, dtype_of, empty, zeros
from tkc.kernels.attention import bounds_of, write_rows
from tkc.kernels.attention_backward import (
    PAD,
    STEP,
    Batch,
    Rows,
    check_results,
    dense_memory,
    empty_gradients,
    empty_rows,
    give_gradient,
    padded_rows,
    scale_queries,
    write_row_terms,
)
from tkc.kernels.attention_blocks import has_wgmma, width_of
from tkc.kernels.attention_checks import check, check_heads, check_sequences, group_of
from tkc.kernels.attention_modifiers import MAX_CAPTURED, named
from tkc.kernels.operator import operator

LOG2E, LN2 = log2(e), log(2)
# bytes of a thread that code may keep in memory rather than make dQ apart, or of smaller blocks
MAX_SPILLED = 64
# the last row or column whose distance from any other is exact in float32
MAX_NEAR = 1 << 22
# between the seeds of two heads: an odd number of 64 bits (of the golden ratio)
STREAM = 0x9E3779B97F4A7C15 - (1 << 64)


def _part(x: Any, b: Any, h: Any) -> Any:
    """A batch's and head's part of an array whose extents there may be 1 for all."""
    return x[tkc.minimum(b, x.shape[0] - 1), tkc.minimum(h, x.shape[1] - 1)]


def _head_of(x: Any, b: Any, h: Any, ragged: bool) -> Any:
    """A head's rows, of an array of [batch, heads, rows, D] or [tokens, heads, D]."""
    return None if x is None else x[:, h] if ragged else x[b, h]


def _numbers_of(x: Any, b: Any, h: Any, ragged: bool) -> Any:
    """A head's numbers, one a row, of an array of [batch, heads, rows] or [heads, tokens]."""
    return None if x is None else x[h] if ragged else x[b, h]


def _row_numbers(x: Any, start: Any, m: Any, rows: int, end: Any, edge: bool, other: float) -> Any:
    """Numbers of rows from m on, of those that begin at `start`. edge: there may be some from `end`
    on, which have the other number.
    """
    if not edge:
        return tkc.load(x, (start + m,), (rows,))
    there = m + tkc.arange(rows) < end
    return tkc.load(x, (start + m,), (rows,), mask=there, other=other)


def _extents(q: Any, k: Any, b: Any, cu_seqlens: Any, cu_seqlens_k: Any) -> Any:
    """Of batch or sequence b: where its queries begin and their number, the same of its keys, and
    where the queries' padded rows begin.
    """
    if cu_seqlens is None:
        return 0, q.shape[2], 0, k.shape[2], 0
    found = bounds_of(b, cu_seqlens, cu_seqlens_k)
    return *found, padded_rows(found[0], b)


def _indices(first: Any, n: int, near: bool) -> Any:
    """Of so many rows or columns; near: none is behind MAX_NEAR, which the compiler then knows."""
    return (tkc.minimum(tkc.maximum(first, 0), MAX_NEAR) if near else first) + tkc.arange(n)


def _walk(
    lists: Any, b: Any, h: Any, i: Any, each: int, step: int, bounds: Any, some: Any
) -> tuple[Any, Any, int, Callable[[Any], tuple[Any, Any]]]:
    """The loop over what block i sees: first, stop, step, and a function of its variable that gives
    where an iteration begins, and whether all of it is seen (None: mask_mod says). lists: of blocks
    seen in part, and whole: (how many, which), each of `each` steps; or nothing. bounds: first and
    stop without lists. some: whether block i has rows or columns at all (None: yes).
    """
    counts, places, full_counts, full_places = lists
    if counts is None:
        first, stop = bounds
        return first, _where(some, stop), step, lambda n: (n, None)
    count, row = _part(counts, b, h)[i], _part(places, b, h)[i]
    if full_counts is None:
        stop = _where(some, count * each)
        return 0, stop, 1, lambda n: (_beginning(row[n // each], n, each, step), None)
    full, full_row = _part(full_counts, b, h)[i], _part(full_places, b, h)[i]

    def at(n: Any) -> tuple[Any, Any]:
        n_block = n // each
        is_full = n_block >= count
        in_part = row[tkc.minimum(n_block, row.shape[0] - 1)]
        whole = full_row[tkc.maximum(n_block - count, 0)]
        return _beginning(tkc.where(is_full, whole, in_part), n, each, step), is_full

    return 0, _where(some, (count + full) * each), 1, at


def _where(some: Any, stop: Any) -> Any:
    return stop if some is None else tkc.where(some, stop, 0)


def _beginning(block: Any, n: Any, each: int, step: int) -> Any:
    """Where step n of a loop begins, which is in a block of `each` of them."""
    return block * step if each == 1 else block * (each * step) + n % each * step


def _dropped(x: Any, drop: bool, seed: Any, share: Any, stream: Any, rows: Any, cols: Any) -> Any:
    """What dropout leaves: of each row and column 1 / share with a probability of `share`."""
    if not drop:
        return x
    place = (rows.to(tkc.int64) << 32) | cols.to(tkc.int64)
    drawn = tkc.rand(stream.to(tkc.int64) * STREAM + seed, place)
    return x * tkc.where(drawn < share, 1 / share, 0.0)


def _turn(i: Any, turns: Any, g: Any, group: int, alike: bool) -> tuple[Any, Any]:
    """The head of a group, and the step of its loop, of step i of a loop over all heads (alike) or
    over those of head g.
    """
    return (i // turns, i % turns) if alike and group > 1 else (g, i)


def _scored(mods: Any, captured: Any, s: Any, scale: Any, *place: Any) -> tuple[Any, Any, Any]:
    """Scores by score_mod, what makes powers of two of them, and the function from their gradient
    to that of `s * scale` and of what was captured (None where there is no score_mod). place: b, h,
    rows and columns.
    """
    if mods.of(*captured)()[0] is None:
        return s, scale * LOG2E, None

    def score(x: Any, *elements: Any) -> Any:
        found = mods.of(*elements)()[0](x, *place)
        return tkc.broadcast_to(found, *s.shape).to(tkc.float32)

    s, pull = tkc.vjp(score, s * scale, *captured)
    return s, LOG2E, pull


def _seen(mods: Any, captured: Any, s: Any, whole: Any, conditions: Any, *place: Any) -> Any:
    """Scores, −∞ where a row does not see a column: by mask_mod, unless the block is seen whole
    (None: it may not be), and by conditions that are there (None: none).
    """
    mask = mods.of(*captured)()[1]
    keep = None if mask is None else mask(*place)
    for condition in (*conditions, keep if keep is None or whole is None else keep | whole):
        s = s if condition is None else tkc.where(condition, s, -inf)
    return s


def _columns(m: Any, bm: int, bn: int, span: Any, causal: bool, windowed: bool) -> tuple[Any, Any]:
    """The first column, by blocks, and behind the last one that rows m to m + bm may see. span:
    queries, keys, window, ahead.
    """
    queries, keys, window, ahead = span
    first = tkc.maximum(m + keys - queries - window + ahead + 1, 0) // bn * bn if windowed else 0
    return first, tkc.minimum(keys, m + bm + keys - queries + ahead) if causal else keys


def _rows(n: Any, bm: int, bn: int, span: Any, causal: bool, windowed: bool) -> tuple[Any, Any]:
    """The first row, by blocks, and behind the last one that may see columns n to n + bn."""
    queries, keys, window, ahead = span
    first = tkc.maximum(n - (keys - queries) - ahead, 0) // bm * bm if causal else 0
    if not windowed:
        return first, queries
    return first, tkc.minimum(queries, n + bn - 1 - (keys - queries) - ahead + window)


def _conditions(rows: Any, cols: Any, span: Any, causal: bool, windowed: bool, edge: bool) -> tuple:
    """Whether a row sees a column: not too far ahead, nor behind, and in the array at all."""
    queries, keys, window, ahead = span
    distance = rows + (keys - queries + ahead) - cols
    return (
        distance >= 0 if causal else None,
        distance < window if windowed else None,
        cols < keys if edge else None,
    )


@tkc.jit
def _forward(
    q,
    k,
    v,
    o,
    lse,
    sinks,
    cu_seqlens,
    cu_seqlens_k,
    counts,
    places,
    full_counts,
    full_places,
    x0,
    x1,
    x2,
    x3,
    x4,
    x5,
    x6,
    x7,
    scale,
    window,
    ahead,
    seed,
    share,
    MODS: tkc.constexpr,
    GROUP: tkc.constexpr,
    BLOCK: tkc.constexpr,
    CAUSAL: tkc.constexpr,
    WINDOW: tkc.constexpr,
    DROP: tkc.constexpr,
    NEAR: tkc.constexpr,
    EDGE: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    ragged, rows, stream = cu_seqlens is not None, _indices(m, BM, NEAR), b * q.shape[1] + h
    start, queries, key, keys, _ = _extents(q, k, b, cu_seqlens, cu_seqlens_k)
    qi = tkc.load(_head_of(q, b, h, ragged), (start + m, 0), (BM, D))
    k, v = (_head_of(x, b, h // GROUP, ragged) for x in (k, v))
    captured = MODS.elements(x0, x1, x2, x3, x4, x5, x6, x7)
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, DV))
    if sinks is not None:  # as a column that was seen before
        top, total = tkc.full((BM,), 0.0) + sinks[h] * LOG2E, tkc.full((BM,), 1.0)
    lists, span = (counts, places, full_counts, full_places), (queries, keys, window, ahead)
    bounds = _columns(m, BM, BN, span, CAUSAL, WINDOW)
    of = b, h, m // BLOCK[0], BLOCK[1] // BN, BN, bounds, m < queries if ragged else None
    first, stop, step, at = _walk(lists, *of)
    for i in tkc.range(first, stop, step):
        n, whole = at(i)
        cols = _indices(n, BN, NEAR)
        here = b, h, rows[:, None], cols[None, :]
        s = tkc.dot(qi, tkc.load(k, (key + n, 0), (BN, D)).T)
        s, factor, _ = _scored(MODS, captured, s, scale, *here)
        inside = _conditions(*here[2:], span, CAUSAL, WINDOW, EDGE)
        s = _seen(MODS, captured, s, whole, inside, *here)
        new = tkc.maximum(top, tkc.max(s, axis=1) * factor)
        base = tkc.where(new == -inf, 0, new)  # a row with nothing to see
        p, shrink = tkc.exp2(s * factor - base[:, None]), tkc.exp2(top - base)
        total, top = total * shrink + tkc.sum(p, axis=1), new
        p = _dropped(p, DROP, seed, share, stream, *here[2:])
        vi = tkc.load(v, (key + n, 0), (BN, DV))
        acc = tkc.dot(p.to(v.dtype), vi, acc * shrink[:, None])
    out = acc * tkc.where(total > 0, 1 / total, 0)[:, None]
    write_rows(_head_of(o, b, h, ragged), start, m, out, queries if ragged else None)
    if lse is not None:
        sums = tkc.where(total > 0, (top + tkc.log2(total)) * LN2, -inf)
        stored = rows < queries if ragged else None
        tkc.store(_numbers_of(lse, b, h, ragged), (start + m,), sums, mask=stored)


@tkc.jit
def _queries(
    q,
    k,
    v,
    grad,
    log_sums,
    terms,
    dq,
    cu_seqlens,
    cu_seqlens_k,
    counts,
    places,
    full_counts,
    full_places,
    x0,
    x1,
    x2,
    x3,
    x4,
    x5,
    x6,
    x7,
    g0,
    g1,
    g2,
    g3,
    g4,
    g5,
    g6,
    g7,
    scale,
    window,
    ahead,
    seed,
    share,
    MODS: tkc.constexpr,
    GROUP: tkc.constexpr,
    BLOCK: tkc.constexpr,
    CAUSAL: tkc.constexpr,
    WINDOW: tkc.constexpr,
    DROP: tkc.constexpr,
    NEAR: tkc.constexpr,
    EDGE: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """dQ of a block of rows, and what these add to the gradients of captured arrays."""
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    ragged, rows, stream = cu_seqlens is not None, _indices(m, BM, NEAR), b * q.shape[1] + h
    start, queries, key, keys, padded = _extents(q, k, b, cu_seqlens, cu_seqlens_k)
    q, grad, dq = (_head_of(x, b, h, ragged) for x in (q, grad, dq))
    k, v = (_head_of(x, b, h // GROUP, ragged) for x in (k, v))
    log_sums, terms = (_numbers_of(x, b, h, ragged) for x in (log_sums, terms))
    qi, doi = tkc.load(q, (start + m, 0), (BM, D)), tkc.load(grad, (start + m, 0), (BM, DV))
    term = tkc.load(terms, (padded + m,), (BM,))
    sums = tkc.load(log_sums, (padded + m,), (BM,), other=inf)
    captured = MODS.elements(x0, x1, x2, x3, x4, x5, x6, x7)
    acc, lists = tkc.zeros((BM, D)), (counts, places, full_counts, full_places)
    span = queries, keys, window, ahead
    bounds = _columns(m, BM, BN, span, CAUSAL, WINDOW)
    of = b, h, m // BLOCK[0], BLOCK[1] // BN, BN, bounds, m < queries if ragged else None
    first, stop, step, at = _walk(lists, *of)
    for i in tkc.range(first, stop, step):
        n, whole = at(i)
        cols = _indices(n, BN, NEAR)
        here = b, h, rows[:, None], cols[None, :]
        ki, vi = tkc.load(k, (key + n, 0), (BN, D)), tkc.load(v, (key + n, 0), (BN, DV))
        s, factor, pull = _scored(MODS, captured, tkc.dot(qi, ki.T), scale, *here)
        inside = _conditions(*here[2:], span, CAUSAL, WINDOW, EDGE)
        s = s * factor - sums[:, None]
        p = tkc.exp2(_seen(MODS, captured, s, whole, inside, *here))
        dp = tkc.dot(doi, vi.T)
        dp = _dropped(dp, DROP, seed, share, stream, *here[2:])
        ds = p * (dp - term[:, None])
        if pull is not None:
            ds, *found = pull(ds)
            for part, into in zip(found, (g0, g1, g2, g3, g4, g5, g6, g7), strict=False):
                if into is not None:
                    part.add_to(into)
        acc = tkc.dot(ds.to(k.dtype), ki, acc)
    write_rows(dq, start, m, acc * scale, queries if ragged else None)


@tkc.jit
def _keys_and_values(
    q,
    k,
    v,
    grad,
    log_sums,
    terms,
    dk,
    dv,
    dq_sums,
    cu_seqlens,
    cu_seqlens_k,
    counts,
    places,
    full_counts,
    full_places,
    x0,
    x1,
    x2,
    x3,
    x4,
    x5,
    x6,
    x7,
    scale,
    window,
    ahead,
    seed,
    share,
    MODS: tkc.constexpr,
    GROUP: tkc.constexpr,
    BLOCK: tkc.constexpr,
    CAUSAL: tkc.constexpr,
    WINDOW: tkc.constexpr,
    DROP: tkc.constexpr,
    NEAR: tkc.constexpr,
    EDGE: tkc.constexpr,
    LAST: tkc.constexpr,
    ALIKE: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """dK and dV of a block of columns, or one of them where the other is None. Their parts of dQ
    are added to its sums, if there are any. EDGE, LAST: a block may have rows, or columns, behind
    the last ones. ALIKE: the lists are the same for all heads.
    """
    n, h, b = tkc.program_id(0) * BN, tkc.program_id(1), tkc.program_id(2)
    heads, cols, lists = (
        q.shape[1],
        _indices(n, BN, NEAR),
        (counts, places, full_counts, full_places),
    )
    ragged = cu_seqlens is not None
    start, queries, key, keys, padded = _extents(q, k, b, cu_seqlens, cu_seqlens_k)
    k, v, dk, dv = (_head_of(x, b, h, ragged) for x in (k, v, dk, dv))
    ki, vi = tkc.load(k, (key + n, 0), (BN, D)), tkc.load(v, (key + n, 0), (BN, DV))
    captured = MODS.elements(x0, x1, x2, x3, x4, x5, x6, x7)
    dki, dvi = tkc.zeros((BN, D)), tkc.zeros((BN, DV))
    span, some = (queries, keys, window, ahead), n < keys if ragged else None
    bounds = _rows(n, BM, BN, span, CAUSAL, WINDOW)
    for g in (0,) if ALIKE or GROUP == 1 else tkc.range(GROUP):
        of = b, h * GROUP + g, n // BLOCK[1], BLOCK[0] // BM, BM, bounds, some
        first, stop, step, at = _walk(lists, *of)
        turns = tkc.cdiv(tkc.maximum(stop - first, 0), step)
        for i in tkc.range(turns * (GROUP if ALIKE else 1)):
            of_group, t = _turn(i, turns, g, GROUP, ALIKE)
            head, (m, whole) = h * GROUP + of_group, at(first + t * step)
            here = b, head, _indices(m, BM, NEAR)[None, :], cols[:, None]
            qi = tkc.load(_head_of(q, b, head, ragged), (start + m, 0), (BM, D))
            doi = tkc.load(_head_of(grad, b, head, ragged), (start + m, 0), (BM, DV))
            s, factor, pull = _scored(MODS, captured, tkc.dot(ki, qi.T), scale, *here)
            inside = _conditions(*here[2:], span, CAUSAL, WINDOW, LAST and dq_sums is not None)
            sums = _numbers_of(log_sums, b, head, ragged)
            s = s * factor - _row_numbers(sums, padded, m, BM, queries, EDGE, inf)[None, :]
            p = tkc.exp2(_seen(MODS, captured, s, whole, inside, *here))
            dp = tkc.dot(vi, doi.T)
            drop = DROP, seed, share, b * heads + head, *here[2:]
            if dv is not None:
                dvi = tkc.dot(_dropped(p, *drop).to(grad.dtype), doi, dvi)
            if dk is not None:
                of_rows = _numbers_of(terms, b, head, ragged), padded, m, BM, queries, EDGE
                ds = p * (_dropped(dp, *drop) - _row_numbers(*of_rows, 0.0)[None, :])
                ds = (ds if pull is None else pull(ds)[0]).to(q.dtype)
                if dq_sums is not None:
                    into = _numbers_of(dq_sums, b, head, ragged)
                    tkc.atomic_add(into, (padded + m, 0), tkc.dot(ds.T, ki))
                dki = tkc.dot(ds, qi, dki)
    for x, value in ((dk, dki * scale), (dv, dvi)):
        write_rows(x, key, n, value, keys if ragged else None)


# --------------------------------------------------------------------------------------------------
def _divisor(most: int, block: int) -> int:
    """The largest power of two up to `most` that divides a block's extent."""
    while block % most:
        most //= 2
    return most


class _Blocks(NamedTuple):
    """Rows and columns of a program of the three kernels, and whether the last one adds to dQ."""

    forward: tuple[int, int]
    queries: tuple[int, int]
    keys: tuple[int, int]
    adds_queries: bool = False


def _float32_blocks(wide: int) -> _Blocks:
    if wide <= 64:
        return _Blocks((64, 32), (32, 32), (16, 32))
    return _Blocks((32, 32), (32, 16), (16, 32 if wide <= 128 else 16))


def _narrow_blocks(wide: int, busy: bool, wgmma: bool) -> _Blocks:
    """Where products are mma.sync's, or registers are needed besides."""
    if wide > 192:
        return _Blocks((64, 16), (64, 16), (32, 32))
    few = busy and wide > 64
    columns = 128 if wgmma else 64  # two warpgroups, or none
    return _Blocks((64, 64 if wide <= 128 else 32), (64, 16 if few else 32), (32, columns))


def _blocks(d: int, d_v: int, kind: str, busy: bool, target: str) -> tuple[_Blocks, ...]:
    """What registers and shared memory may hold, the largest first. busy: whether what score_mod
    reads or remembers, or random bits, need registers too.
    """
    wide = max(d, d_v)
    if kind == "float32":
        return (_float32_blocks(wide),)
    narrow = _narrow_blocks(wide, busy, has_wgmma(target))
    if not has_wgmma(target):
        return (narrow,)
    if wide > 192 or d + d_v > 320:
        large = _Blocks((128, 32), (128, 32), (32, 128))
    else:
        keys = (32 if d + d_v > 256 else 64, 128)
        large = _Blocks((128, 128 if wide <= 128 else 64), (128, 64), keys)
    found = [large, large._replace(forward=(128, 64)), narrow] if busy else [large]
    # dQ's parts have columns for both warpgroups, some of them padding
    adds = 64 < width_of(d) <= large.keys[1] and d + d_v <= 256
    return (*([large._replace(adds_queries=True)] if adds else []), *found)


def _blocks_of(q: Array, v: Array, busy: bool) -> tuple[_Blocks, ...]:
    """`_blocks` of these arrays."""
    return _blocks(q.shape[-1], v.shape[-1], dtype_of(q), busy, tkc.target_of(q))


def _options(
    q: Array, k: Array, v: Array, size: tuple, lists: tuple, masks: dict
) -> dict[str, Any]:
    """The compile-time arguments of a kernel. size: rows and columns of its programs; lists: those
    of a block of the lists, 0 where there are none.
    """
    rows, columns = size
    if all(lists):
        rows, columns = _divisor(rows, lists[0]), _divisor(columns, lists[1])
    return dict(
        GROUP=group_of(q.shape[1], k.shape[1]),
        BLOCK=lists if all(lists) else (rows, columns),
        D=width_of(q.shape[-1]),
        DV=width_of(v.shape[-1]),
        BM=rows,
        BN=columns,
        **masks,
    )


# by what a kernel is compiled for: whether its registers hold all it needs
_roomy: dict[tuple, bool] = {}


def _first_fitting(
    kernel: Any, launches: list[tuple[tuple, dict[str, Any]]], spilled: int = 0
) -> int:
    """Which of a kernel's launches, arguments and options, is the first whose code keeps in
    registers what it computes, but for so many bytes of a thread: the last one where none does, or
    nothing says how code was assembled.
    """
    for i, (arguments, options) in enumerate(launches[:-1]):
        target = tkc.target_of(arguments[0])
        kinds = tuple(str(getattr(x, "dtype", type(x))) for x in arguments)
        key = kernel, target, kinds, tuple(sorted(options.items(), key=lambda item: item[0]))
        if (fits := _roomy.get(key)) is None:
            compiled = kernel.compile(*arguments, target=target, **options)
            try:
                fits = compiled.resources.spill_stores <= spilled
                fits = fits and (not has_wgmma(target) or "wgmma" in compiled.ptx)
            except tkc.CompileError:  # there is no assembler here but the driver's
                fits = False
            _roomy[key] = fits
        if fits:
            return i
    return len(launches) - 1


def _together(q: Array, v: Array) -> bool:
    """Whether registers hold dK and dV of a block of columns at once."""
    d, d_v = q.shape[-1], v.shape[-1]
    if dtype_of(q) == "float32":
        return max(d, d_v) <= 64
    return max(d, d_v) <= 192 and d + d_v <= 320


def _masks(window: int | None, ahead: int | None) -> tuple[tuple[int, int], dict[str, bool]]:
    """(numbers, flags) of the kernels: what is seen ends `ahead` of the row and begins `window`
    columns before that end.
    """
    flags = dict(CAUSAL=ahead is not None, WINDOW=window is not None)
    return (window or 0, ahead or 0), flags


def _drawn(dropout: float) -> tuple[float, bool]:
    """How likely an element is to be kept, and whether any is dropped."""
    return 1.0 - dropout, dropout > 0


@operator(name="attention_modified", varies="seed")
def modified(
    q: Array,
    k: Array,
    v: Array,
    mods: str,
    scale: float,
    rows: int,
    columns: int,
    window: int | None = None,
    ahead: int | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    heads_first: bool = True,
    sums: bool = True,
    sinks: Array | None = None,
    deterministic: bool = False,
    unordered: int = 0,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    cu_seqlens_k: Array | None = None,
    max_seqlen_k: int | None = None,
    kv_counts: Array | None = None,
    kv_places: Array | None = None,
    full_kv_counts: Array | None = None,
    full_kv_places: Array | None = None,
    q_counts: Array | None = None,
    q_places: Array | None = None,
    full_q_counts: Array | None = None,
    full_q_places: Array | None = None,
    x0: Array | None = None,
    x1: Array | None = None,
    x2: Array | None = None,
    x3: Array | None = None,
    x4: Array | None = None,
    x5: Array | None = None,
    x6: Array | None = None,
    x7: Array | None = None,
) -> Iterator[tuple[Array, Array]]:
    """attention's result by modifiers, and its log-sum-exp (with `sums`). rows, columns: of a block
    of the lists, which are those of BlockMask. deterministic, unordered: of the gradients, as
    `modified_backward` has them.
    """
    check(q, k, v)
    out = empty(q, (*q.shape[:-1], v.shape[-1]))
    q, k, v, o = (x if heads_first else x.swapaxes(1, 2) for x in (q, k, v, out))
    batch = _batch(q, k, cu_seqlens, max_seqlen, cu_seqlens_k, max_seqlen_k)
    sequences, heads, of_rows = _sequences(q, batch)
    check_heads(heads, sinks=sinks)
    lse = empty(q, of_rows if sums else (0,), "float32")
    numbers, flags = _masks(window, ahead)
    share, drop = _drawn(dropout)
    yield out, lse
    if not prod(out.shape):
        return
    arguments = (
        *(q, k, v, o, lse if sums else None, sinks, cu_seqlens, cu_seqlens_k),
        *(kv_counts, kv_places, full_kv_counts, full_kv_places),
        *(x0, x1, x2, x3, x4, x5, x6, x7),
        *(scale, *numbers, seed, share),
    )
    flags |= dict(MODS=named(mods), DROP=drop, NEAR=_is_near(batch))
    sizes = dict.fromkeys(of.forward for of in _blocks_of(q, v, x0 is not None or drop))
    found = [_options(q, k, v, size, (rows, columns), flags) for size in sizes]
    found = [dict(options, EDGE=batch.has_edge(options["BLOCK"][1])) for options in found]
    options = found[_first_fitting(_forward, [(arguments, options) for options in found])]
    _forward[tkc.cdiv(batch.queries, options["BM"]), heads, sequences](*arguments, **options)


def _batch(
    q: Array,
    k: Array,
    cu_seqlens: Array | None,
    max_seqlen: int | None,
    cu_seqlens_k: Array | None,
    max_seqlen_k: int | None,
) -> Batch:
    """Of q and k, which are [batch, heads, rows, D] or, beside cu_seqlens, [tokens, heads, D].
    Raises LaunchError where sequences do not fit them.
    """
    if cu_seqlens is None:
        return Batch(q.shape[2], k.shape[2])
    check_sequences(q, k, cu_seqlens, cu_seqlens_k)
    assert max_seqlen is not None  # attention_call.check_together
    max_seqlen_k = max_seqlen if max_seqlen_k is None else max_seqlen_k
    return Batch(max_seqlen, max_seqlen_k, cu_seqlens, cu_seqlens_k)


def _sequences(q: Array, batch: Batch) -> tuple[int, int, tuple[int, ...]]:
    """How many sequences and heads there are, and the shape of an array of a number a row."""
    if batch.cu_seqlens is None:
        return q.shape[0], q.shape[1], tuple(q.shape[:3])
    return batch.cu_seqlens.shape[0] - 1, q.shape[1], (q.shape[1], q.shape[0])


def _is_near(batch: Batch) -> bool:
    return max(batch.queries, batch.keys) <= MAX_NEAR


def _check_gradients(refused: int, kv_counts: Array | None, q_counts: Array | None) -> None:
    """Raises LaunchError where gradients are asked for that there are none of. refused: the bits of
    captured arrays whose gradients would be added up in no fixed order.
    """
    if refused:
        raise tkc.LaunchError(
            "attention: gradients of a bias that broadcasts, or of what score_mod captured, are"
            " added up in no fixed order and so not deterministic; expand bias to [batch, heads,"
            " queries, keys], detach what needs no gradient, or leave deterministic out"
        )
    if kv_counts is not None and q_counts is None:
        raise tkc.LaunchError(
            "attention: a block mask without q_indices has no gradient; make it with"
            " create_block_mask, or compute_q_blocks=True"
        )


@operator(name="attention_modified_backward", varies="seed")
def modified_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    lse_grad: Array | None,
    mods: str,
    wanted: int,
    scale: float,
    rows: int,
    columns: int,
    window: int | None = None,
    ahead: int | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    heads_first: bool = True,
    sinks: Array | None = None,
    deterministic: bool = False,
    unordered: int = 0,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    cu_seqlens_k: Array | None = None,
    max_seqlen_k: int | None = None,
    kv_counts: Array | None = None,
    kv_places: Array | None = None,
    full_kv_counts: Array | None = None,
    full_kv_places: Array | None = None,
    q_counts: Array | None = None,
    q_places: Array | None = None,
    full_q_counts: Array | None = None,
    full_q_places: Array | None = None,
    x0: Array | None = None,
    x1: Array | None = None,
    x2: Array | None = None,
    x3: Array | None = None,
    x4: Array | None = None,
    x5: Array | None = None,
    x6: Array | None = None,
    x7: Array | None = None,
) -> Iterator[
    tuple[Array, Array, Array, Array, Array, Array, Array, Array, Array, Array, Array, Array]
]:
    """The gradients of modified's q, k, v, sinks and, in float32, of the captured arrays whose bits
    `wanted` has; of others an array of none. unordered: the bits of those to whose elements several
    programs may add, which is in no fixed order. Raises LaunchError where one of these is wanted
    and `deterministic`.
    """
    check(q, k, v)
    _check_gradients(wanted & unordered if deterministic else 0, kv_counts, q_counts)
    turn = (lambda x: x) if heads_first else lambda x: x.swapaxes(1, 2)
    batch = _batch(turn(q), turn(k), cu_seqlens, max_seqlen, cu_seqlens_k, max_seqlen_k)
    numbers_shape = _sequences(turn(q), batch)[2]
    check_results(q, v, grad, out, dict(lse=lse, lse_grad=lse_grad), numbers_shape)
    captured = x0, x1, x2, x3, x4, x5, x6, x7
    shapes = [
        tuple(x.shape) if x is not None and wanted >> i & 1 else (0,)
        for i, x in enumerate(captured)
    ]
    found = empty_gradients(q, k, v, sinks)
    of_captured = [zeros(q, shape, "float32") for shape in shapes]
    yield (*found, *of_captured)
    grad, q, k, v, out = (turn(x) for x in (dense_memory(grad), q, k, v, out))
    numbers, flags = _masks(window, ahead)
    share, drop = _drawn(dropout)
    blocks = _blocks_of(q, v, x0 is not None or drop)
    call = _Call(
        given=(q, k, v, grad),
        captured=captured,
        numbers=(scale, *numbers, seed, share),
        flags=dict(MODS=named(mods), DROP=drop, NEAR=_is_near(batch), **flags),
        block=(rows, columns),
        batch=batch,
        blocks=tuple(of for of in blocks if not (of.adds_queries and (deterministic or wanted))),
        lists=(kv_counts, kv_places, full_kv_counts, full_kv_places),
        turned=(q_counts, q_places, full_q_counts, full_q_places),
    )
    into = [g if wanted >> i & 1 else None for i, g in enumerate(of_captured)]
    dq, dk, dv = map(turn, found[:3])
    _launch(call, (out, lse, lse_grad, sinks, found[3]), (dq, dk, dv), into)


class _Call(NamedTuple):
    """What the kernels of the gradients get. given: q, k, v and the result's gradient; block: rows
    and columns of a block of the lists; batch: where sequences begin, and the longest; blocks: that
    may fit registers; lists: of blocks that rows see, and turned, that see columns.
    """

    given: tuple[Array, ...]
    captured: tuple[Array | None, ...]
    numbers: tuple[Any, ...]
    flags: dict[str, Any]
    block: tuple[int, int]
    batch: Batch
    blocks: tuple[_Blocks, ...]
    lists: tuple[Array | None, ...]
    turned: tuple[Array | None, ...]

    def options(self, size: tuple[int, int]) -> dict[str, Any]:
        q, k, v = self.given[:3]
        return _options(q, k, v, size, self.block, self.flags)

    @property
    def starts(self) -> tuple[Array | None, Array | None]:
        return self.batch.cu_seqlens, self.batch.cu_seqlens_k


def _launch(
    call: _Call,
    of_rows: tuple[Array, Array, Array | None, Array | None, Array],
    gradients: tuple[Array, Array, Array],
    into: list[Array | None],
) -> None:
    """The kernels. of_rows: the result, the log-sum-exp, its gradient, sinks and their gradient;
    gradients: dQ, dK and dV; into: where the gradients of captured arrays are added up.
    """
    (q, k, _, grad), (out, *sums, sinks, dsinks), (dq, dk, dv) = call.given, of_rows, gradients
    rows = empty_rows(out, call.batch, width_of(q.shape[-1]) * call.blocks[0].adds_queries)
    launches = _of_keys_and_values(call, dk, dv, rows)
    some = prod(k.shape[:-1]) > 0
    fitting = _first_fitting(_keys_and_values, launches, MAX_SPILLED) if some else -1
    if not call.blocks[fitting].adds_queries:
        rows = rows._replace(dq_sums=None)
    write_row_terms(rows, grad, out, (sums[0], sums[1]), sinks, dsinks, call.batch)
    if prod(q.shape[:-1]) and rows.dq_sums is None:
        _launch_queries(call, dq, rows, into)
    if some:
        _launch_keys_and_values(call, dk, dv, launches[fitting])
    if prod(q.shape[:-1]) and rows.dq_sums is not None:
        scale_queries(rows.dq_sums, dq, call.batch, call.numbers[0])


def _launch_queries(call: _Call, dq: Array, rows: Rows, into: list[Array | None]) -> None:
    arguments = (
        *(*call.given, rows.log_sums, rows.terms, dq, *call.starts, *call.lists),
        *(*call.captured, *into, *call.numbers),
    )
    found = [call.options(size) for size in dict.fromkeys(of.queries for of in call.blocks)]
    found = [dict(options, EDGE=call.batch.has_edge(options["BLOCK"][1])) for options in found]
    options = found[_first_fitting(_queries, [(arguments, options) for options in found])]
    sequences, heads, _ = _sequences(dq, call.batch)
    _queries[tkc.cdiv(call.batch.queries, options["BM"]), heads, sequences](*arguments, **options)


def _of_keys_and_values(
    call: _Call, dk: Array, dv: Array, rows: Rows
) -> list[tuple[tuple, dict[str, Any]]]:
    """Arguments and options of a launch, the first one of several, with each of the blocks."""
    # lists are those of the longest sequence, and their blocks may go past the padded rows; without
    # them no loop goes past the last row
    lists = call.turned
    edge = lists[0] is not None and (call.starts[0] is not None or PAD % call.block[0] != 0)
    alike = lists[0] is None or lists[0].shape[1] == 1
    q, _, v, *_ = call.given
    pair = (dk, dv) if _together(q, v) else (dk, None)
    found = []
    for of in call.blocks:
        options, sums = call.options(of.keys), rows.dq_sums if of.adds_queries else None
        arguments = (
            *(*call.given, rows.log_sums, rows.terms, *pair, sums, *call.starts, *lists),
            *(*call.captured, *call.numbers),
        )
        last = call.batch.has_edge(options["BLOCK"][1])
        options |= dict(EDGE=edge, LAST=last, ALIKE=alike)
        if of.adds_queries:  # warpgroups share dQ's columns in whole panels
            options |= dict(D=width_of(q.shape[-1], STEP), DV=width_of(v.shape[-1], STEP))
        found.append((arguments, options))
    return found


def _launch_keys_and_values(
    call: _Call, dk: Array, dv: Array, launch: tuple[tuple, dict[str, Any]]
) -> None:
    """One launch, or one for each of dK and dV where registers do not hold both."""
    (sequences, shared, _), (q, _, v, *_) = _sequences(dk, call.batch), call.given
    arguments, options = launch
    before, behind = arguments[: len(call.given) + 2], arguments[len(call.given) + 4 :]
    grid = tkc.cdiv(call.batch.keys, options["BN"]), shared, sequences
    for pair in ((dk, dv),) if _together(q, v) else ((dk, None), (None, dv)):
        _keys_and_values[grid](*before, *pair, *behind, **options)


give_gradient(modified, modified_backward, captured=[f"x{i}" for i in range(MAX_CAPTURED)])
