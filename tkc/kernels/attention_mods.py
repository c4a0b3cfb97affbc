"""Attention by any score and any mask, as FlexAttention's users write them (Dong et al., 2024).

    score_mod(score, b, h, q_idx, kv_idx) -> score     of scores that are scaled already
    mask_mod(b, h, q_idx, kv_idx) -> bool               whether a row sees a column

Both are functions of elements that become a part of three kernels: forward, and of the gradients
dQ and dK with dV, as in attention_backward.py. They see whole tiles: b and h are scalars, q_idx a
column or a row of integers, kv_idx the other one. Arrays that they captured are arguments of the
kernels (`tkc.lambda_lift`); what they read of these has a gradient, which `_queries` adds up in
memory (`tkc.vjp`), in float32 and in no fixed order: `deterministic` refuses it but where each
element is added to once.

A block mask (block_mask.py) lists, for each block of rows, the blocks of columns that rows of it
see: those that are seen whole, where the mask is not evaluated, and others. A program walks over
both lists. Without one it walks over all columns, and evaluates the mask everywhere.

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
    Batch,
    check_results,
    dense_memory,
    empty_gradients,
    gradients_of,
    padded_rows,
    row_terms,
    wants_equal_bits,
)
from tkc.kernels.attention_blocks import has_wgmma, width_of
from tkc.kernels.attention_checks import check, check_heads, check_sequences, group_of
from tkc.kernels.attention_modifiers import MAX_CAPTURED, named
from tkc.kernels.operator import operator

LOG2E, LN2 = log2(e), log(2)
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


def _extents(q: Any, k: Any, b: Any, cu_seqlens: Any, cu_seqlens_k: Any) -> Any:
    """Of batch or sequence b: where its queries begin and their number, the same of its keys, and
    where the queries' padded rows begin.
    """
    if cu_seqlens is None:
        return 0, q.shape[2], 0, k.shape[2], 0
    found = bounds_of(b, cu_seqlens, cu_seqlens_k)
    return *found, padded_rows(found[0], b)


def _walks(
    lists: Any, b: Any, h: Any, i: Any, each: int, step: int, bounds: Any, some: Any
) -> list:
    """The loops over what block i sees: (first, stop, step, where an iteration begins, whether the
    mask is evaluated). lists: of blocks seen in part, and whole: (how many, which), each of `each`
    steps; or nothing. bounds: first and stop without lists. some: whether block i has rows or
    columns at all (None: yes).
    """
    if lists[0] is None:
        first, stop = bounds
        return [(first, _where(some, stop), step, lambda n: n, True)]
    found = []
    for counts, places, masked in ((*lists[:2], True), (*lists[2:], False)):
        if counts is not None:
            count, row = _part(counts, b, h)[i], _part(places, b, h)[i]
            stop = _where(some, count * each)
            found.append((0, stop, 1, _beginning(row, each, step), masked))
    return found


def _where(some: Any, stop: Any) -> Any:
    return stop if some is None else tkc.where(some, stop, 0)


def _beginning(row: Any, each: int, step: int) -> Callable[[Any], Any]:
    if each == 1:
        return lambda n: row[n] * step
    return lambda n: row[n // each] * (each * step) + n % each * step


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


def _scored(mods: Any, captured: Any, s: Any, *place: Any) -> tuple[Any, Any]:
    """The scores by score_mod, and the function from their gradient to that of `s` and of what was
    captured (None where there is no score_mod). place: b, h, rows and columns.
    """
    if mods.of(*captured)()[0] is None:
        return s, None

    def score(x: Any, *elements: Any) -> Any:
        found = mods.of(*elements)()[0](x, *place)
        return tkc.broadcast_to(found, *s.shape).to(tkc.float32)

    return tkc.vjp(score, s, *captured)


def _seen(mods: Any, captured: Any, s: Any, masked: bool, conditions: Any, *place: Any) -> Any:
    """Scores, −∞ where a row does not see a column: by mask_mod, and by conditions that are there
    (None: none).
    """
    mask = mods.of(*captured)()[1] if masked else None
    for keep in (*conditions, None if mask is None else mask(*place)):
        s = s if keep is None else tkc.where(keep, s, -inf)
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
    EDGE: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    ragged, rows, stream = cu_seqlens is not None, m + tkc.arange(BM), b * q.shape[1] + h
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
    for first, stop, step, at, masked in _walks(lists, *of):
        for i in tkc.range(first, stop, step):
            n = at(i)
            cols = n + tkc.arange(BN)
            here = b, h, rows[:, None], cols[None, :]
            s = tkc.dot(qi, tkc.load(k, (key + n, 0), (BN, D)).T)
            s, _ = _scored(MODS, captured, s * scale, *here)
            inside = _conditions(*here[2:], span, CAUSAL, WINDOW, EDGE)
            s = _seen(MODS, captured, s, masked, inside, *here)
            new = tkc.maximum(top, tkc.max(s, axis=1) * LOG2E)
            base = tkc.where(new == -inf, 0, new)  # a row with nothing to see
            p, shrink = tkc.exp2(s * LOG2E - base[:, None]), tkc.exp2(top - base)
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
    EDGE: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """dQ of a block of rows, and what these add to the gradients of captured arrays."""
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    ragged, rows, stream = cu_seqlens is not None, m + tkc.arange(BM), b * q.shape[1] + h
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
    for first, stop, step, at, masked in _walks(lists, *of):
        for i in tkc.range(first, stop, step):
            n = at(i)
            cols = n + tkc.arange(BN)
            here = b, h, rows[:, None], cols[None, :]
            ki, vi = tkc.load(k, (key + n, 0), (BN, D)), tkc.load(v, (key + n, 0), (BN, DV))
            s, pull = _scored(MODS, captured, tkc.dot(qi, ki.T) * scale, *here)
            inside = _conditions(*here[2:], span, CAUSAL, WINDOW, EDGE)
            s = _seen(MODS, captured, s, masked, inside, *here)
            p, dp = tkc.exp2(s * LOG2E - sums[:, None]), tkc.dot(doi, vi.T)
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
    EDGE: tkc.constexpr,
    ALIKE: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """dK and dV of a block of columns, or one of them where the other is None. ALIKE: the lists are
    the same for all heads.
    """
    n, h, b = tkc.program_id(0) * BN, tkc.program_id(1), tkc.program_id(2)
    heads, cols, lists = q.shape[1], n + tkc.arange(BN), (counts, places, full_counts, full_places)
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
        for first, stop, step, at, masked in _walks(lists, *of):
            turns = tkc.cdiv(tkc.maximum(stop - first, 0), step)
            for i in tkc.range(turns * (GROUP if ALIKE else 1)):
                of_group, t = _turn(i, turns, g, GROUP, ALIKE)
                head, m = h * GROUP + of_group, at(first + t * step)
                here = b, head, (m + tkc.arange(BM))[None, :], cols[:, None]
                qi = tkc.load(_head_of(q, b, head, ragged), (start + m, 0), (BM, D))
                doi = tkc.load(_head_of(grad, b, head, ragged), (start + m, 0), (BM, DV))
                s, pull = _scored(MODS, captured, tkc.dot(ki, qi.T) * scale, *here)
                inside = _conditions(*here[2:], span, CAUSAL, WINDOW, False)
                s = _seen(MODS, captured, s, masked, inside, *here) * LOG2E
                there = m + tkc.arange(BM) < queries if EDGE else None
                sums = _numbers_of(log_sums, b, head, ragged)
                sums = tkc.load(sums, (padded + m,), (BM,), mask=there, other=inf)
                p, dp = tkc.exp2(s - sums[None, :]), tkc.dot(vi, doi.T)
                drop = DROP, seed, share, b * heads + head, *here[2:]
                if dv is not None:
                    dvi = tkc.dot(_dropped(p, *drop).to(grad.dtype), doi, dvi)
                if dk is not None:
                    term = _numbers_of(terms, b, head, ragged)
                    term = tkc.load(term, (padded + m,), (BM,), mask=there)
                    ds = p * (_dropped(dp, *drop) - term[None, :])
                    ds = ds if pull is None else pull(ds)[0]
                    dki = tkc.dot(ds.to(q.dtype), qi, dki)
    for x, value in ((dk, dki * scale), (dv, dvi)):
        write_rows(x, key, n, value, keys if ragged else None)


# --------------------------------------------------------------------------------------------------
def _divisor(most: int, block: int) -> int:
    """The largest power of two up to `most` that divides a block's extent."""
    while block % most:
        most //= 2
    return most


Blocks = tuple[tuple[int, int], ...]  # rows and columns of the three kernels


def _float32_blocks(wide: int) -> Blocks:
    if wide <= 64:
        return (64, 32), (32, 32), (16, 32)
    return (32, 32), (32, 16), (16, 32 if wide <= 128 else 16)


def _narrow_blocks(wide: int, busy: bool, wgmma: bool) -> Blocks:
    """Where products are mma.sync's, or registers are needed besides."""
    if wide > 192:
        return (64, 16), (64, 16), (32, 32)
    few = busy and wide > 64
    columns = 128 if wgmma else 64  # two warpgroups, or none
    return (64, 64 if wide <= 128 else 32), (64, 16 if few else 32), (32, columns)


def _blocks(d: int, d_v: int, kind: str, busy: bool, listed: bool, target: str) -> Blocks:
    """Rows and columns of a program of `_forward`, `_queries` and `_keys_and_values`, by what
    registers and shared memory hold. busy: whether addresses of captured arrays, or random bits,
    need registers too; listed: whether there are two loops, with rings of their own.
    """
    wide = max(d, d_v)
    if kind == "float32":
        return _float32_blocks(wide)
    if not has_wgmma(target) or busy:
        return _narrow_blocks(wide, busy, has_wgmma(target))
    if wide > 192 or d + d_v > 320:
        return (128, 32), (128, 32), (32, 128)
    columns = 128 if wide <= 128 and not listed else 64
    return (128, columns), (128, 64), (32 if d + d_v > 256 else 64, 128)


def _options(
    q: Array, k: Array, v: Array, which: int, lists: tuple[int, int], busy: bool, masks: dict
) -> dict[str, Any]:
    """The compile-time arguments of kernel `which` (of `_blocks`). lists: rows and columns of a
    block of the lists, 0 where there are none.
    """
    d, d_v = q.shape[-1], v.shape[-1]
    rows, columns = _blocks(d, d_v, dtype_of(q), busy, all(lists), tkc.target_of(q))[which]
    if all(lists):
        rows, columns = _divisor(rows, lists[0]), _divisor(columns, lists[1])
    block = lists if all(lists) else (rows, columns)
    return dict(
        GROUP=group_of(q.shape[1], k.shape[1]),
        BLOCK=block,
        D=width_of(d),
        DV=width_of(d_v),
        BM=rows,
        BN=columns,
        **masks,
    )


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
    options = _options(q, k, v, 0, (rows, columns), x0 is not None or drop, flags)
    yield out, lse
    if not prod(out.shape):
        return
    _forward[tkc.cdiv(batch.queries, options["BM"]), heads, sequences](
        *(q, k, v, o, lse if sums else None, sinks, cu_seqlens, cu_seqlens_k),
        *(kv_counts, kv_places, full_kv_counts, full_kv_places),
        *(x0, x1, x2, x3, x4, x5, x6, x7),
        *(scale, *numbers, seed, share),
        MODS=named(mods),
        DROP=drop,
        EDGE=_has_edge(batch, options),
        **options,
    )


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


def _has_edge(batch: Batch, options: dict[str, Any]) -> bool:
    """Whether a block may have columns behind the last one."""
    return batch.cu_seqlens is not None or batch.keys % options["BLOCK"][1] != 0


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
    of_rows = _sequences(turn(q), batch)[2]
    check_results(q, v, grad, out, dict(lse=lse, lse_grad=lse_grad), of_rows)
    captured = x0, x1, x2, x3, x4, x5, x6, x7
    shapes = [
        tuple(x.shape) if x is not None and wanted >> i & 1 else (0,)
        for i, x in enumerate(captured)
    ]
    found = empty_gradients(q, k, v, sinks)
    of_captured = [zeros(q, shape, "float32") for shape in shapes]
    yield (*found, *of_captured)
    lists = kv_counts, kv_places, full_kv_counts, full_kv_places
    turned = q_counts, q_places, full_q_counts, full_q_places
    grad, q, k, v, out = (turn(x) for x in (dense_memory(grad), q, k, v, out))
    terms, log_sums, _ = row_terms(grad, out, (lse, lse_grad), sinks, found[3], batch)
    numbers, flags = _masks(window, ahead)
    share, drop = _drawn(dropout)
    call = _Call(
        given=(q, k, v, grad, log_sums, terms),
        captured=captured,
        numbers=(scale, *numbers, seed, share),
        flags=dict(MODS=named(mods), DROP=drop, **flags),
        block=(rows, columns),
        batch=batch,
    )
    dq, dk, dv = map(turn, found[:3])
    into = [g if wanted >> i & 1 else None for i, g in enumerate(of_captured)]
    if prod(q.shape[:-1]):
        _launch_queries(call, dq, lists, into)
    if prod(k.shape[:-1]):
        _launch_keys_and_values(call, dk, dv, turned)


class _Call(NamedTuple):
    """What both kernels of the gradients get. block: rows and columns of a block of the lists;
    batch: where sequences begin, and the longest.
    """

    given: tuple[Array, ...]
    captured: tuple[Array | None, ...]
    numbers: tuple[Any, ...]
    flags: dict[str, Any]
    block: tuple[int, int]
    batch: Batch

    def options(self, which: int) -> dict[str, Any]:
        q, k, v = self.given[:3]
        busy = self.captured[0] is not None or self.flags["DROP"]
        return _options(q, k, v, which, self.block, busy, self.flags)


def _launch_queries(call: _Call, dq: Array, lists: tuple, into: list[Array | None]) -> None:
    (sequences, heads, _), options = _sequences(dq, call.batch), call.options(1)
    starts = call.batch.cu_seqlens, call.batch.cu_seqlens_k
    _queries[tkc.cdiv(call.batch.queries, options["BM"]), heads, sequences](
        *(*call.given, dq, *starts, *lists, *call.captured, *into, *call.numbers),
        EDGE=_has_edge(call.batch, options),
        **options,
    )


def _launch_keys_and_values(call: _Call, dk: Array, dv: Array, lists: tuple) -> None:
    (sequences, shared, _), (q, _, v, *_) = _sequences(dk, call.batch), call.given
    options, starts = call.options(2), (call.batch.cu_seqlens, call.batch.cu_seqlens_k)
    alike = lists[0] is None or lists[0].shape[1] == 1
    # lists are those of the longest sequence; without them no loop goes past the last row
    edge = starts[0] is not None and lists[0] is not None
    for pair in ((dk, dv),) if _together(q, v) else ((dk, None), (None, dv)):
        _keys_and_values[tkc.cdiv(call.batch.keys, options["BN"]), shared, sequences](
            *(*call.given, *pair, *starts, *lists, *call.captured, *call.numbers),
            EDGE=edge,
            ALIKE=alike,
            **options,
        )


@modified.backward(
    saves="q k v result mods scale rows columns window ahead dropout seed heads_first sinks"
    " deterministic unordered cu_seqlens max_seqlen cu_seqlens_k max_seqlen_k"
    " kv_counts kv_places full_kv_counts full_kv_places q_counts q_places"
    " full_q_counts full_q_places x0 x1 x2 x3 x4 x5 x6 x7",
    zeros=False,
    everywhere=True,
)
def _(saved, grad, lse_grad):
    grad, out, lse, lse_grad = gradients_of(saved, grad, lse_grad)
    slots = [f"x{i}" for i in range(MAX_CAPTURED)]
    wanted = sum(1 << i for i, name in enumerate(slots) if saved.needs.get(name))
    given = dict(vars(saved))
    for name in ("needs", "result"):
        del given[name]
    given["deterministic"] = wants_equal_bits(saved.q, saved.deterministic)
    found = modified_backward(
        grad=grad, out=out, lse=lse, lse_grad=lse_grad, wanted=wanted, **given
    )
    named_gradients = dict(zip(("q", "k", "v"), found[:3], strict=True))
    if saved.sinks is not None:
        named_gradients["sinks"] = found[3]
    for i, name in enumerate(slots):
        if wanted >> i & 1:
            named_gradients[name] = found[4 + i]
    return tuple(named_gradients.get(p.name) for p in modified.parameters)
