"""Attention forward: softmax(Q Kᵀ · scale) V, from the plain block program that
examples/attention.py explains.

One kernel serves every variant; what a launch does not use is not in its code:

    causal, window      row i sees the columns up to i + shift, shift = keys − queries (the queries
                        are the last ones), and the last `window` of these
    grouped queries     `GROUP` heads of Q share one of K and V
    soft cap            scores s become cap · tanh(s / cap)
    cu_seqlens          ragged batches: Q, K and V of all sequences one after the other, and where
                        each begins
    sinks               a logit of each head that takes part in the sums, and has no value
    alibi_slopes        scores less a slope of the head times the distance of row and column
    log-sum-exp         log of each row's sum of exponentials, to combine parts with
    float8              Q, K and V of 8 bits, each with a scale a head, or one a block of rows (V's
                        products are then added up in registers); probabilities become float8 too,
                        times 2^LIFT, so that small ones keep their bits. Decoding reads K and V of
                        8 bits and multiplies in 16

A single query with many keys (decoding) is bound by the bytes of K and V: `_decode` gives each
head's keys to many programs, the group's heads as rows of one block, and `_combine` adds their
parts up: each part's sum relative to its own maximum. Where keys lie in pages, a block is rows of
one page, or of several gathered by rows where a block has more; a page's number is loaded well
before the copies that it is for (pipeline-async-copies), and what a sequence does not have is not
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import e, gcd, inf, log, log2, prod
from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import Array, dtype_of, empty, expect, library
from tkc.kernels.attention_blocks import (
    FLOAT8,
    MAX_COLUMNS,
    block_of,
    block_of_pages,
    block_of_sequences,
    check_block,
    has_wgmma,
    options_of,
    width_of,
)
from tkc.kernels.attention_checks import (
    check,
    check_heads,
    check_lengths,
    check_pages,
    check_scales,
    check_sequences,
    group_of,
    masks_of,
    numbers_of,
    result_type,
)
from tkc.kernels.operator import operator

LOG2E, LN2 = log2(e), log(2)
# the sum of a block of 128 columns then still fits what relaxed maxima allow float8
LIFT = 1
# of a decoding step: programs that share the keys, at most, and keys of each, at least
MAX_DECODE_PARTS = 264
MIN_KEYS_PER_PART = 256
MAX_KEYS = 1 << 29  # of a sequence in a cache
# rows of a block where a head has several queries
MAX_DECODE_ROWS = 64


def bounds_of(b: Any, cu_seqlens: Any, cu_seqlens_k: Any) -> tuple[Any, Any, Any, Any]:
    """Of sequence b of a ragged batch: where its queries begin, their number, and likewise of its
    keys, which are where the queries are without cu_seqlens_k.
    """
    start, end = cu_seqlens[b], cu_seqlens[b + 1]
    if cu_seqlens_k is None:
        return start, end - start, start, end - start
    key, last = cu_seqlens_k[b], cu_seqlens_k[b + 1]
    return start, end - start, key, last - key


def biased(s: Any, rows: Any, cols: Any, slopes: Any, head: Any, unit: Any) -> Any:
    """Scores less slopes[head] times the distance of row and column, in units of the scores."""
    if slopes is None:
        return s
    return s - slopes[head] * unit * tkc.abs(rows - cols).to(tkc.float32)


def write_rows(x: Any, start: Any, i: Any, value: Any, end: Any) -> None:
    """Stores rows from i on of a sequence that begins at `start`; end: where it ends, if not at the
    array's own end. Nothing where x is None.
    """
    if x is None:
        return
    value = value.to(x.dtype)
    if end is None:
        tkc.store(x, (i, 0), value)
        return
    inside = (i + tkc.arange(value.shape[0]))[:, None] < end
    tkc.store(x, (start + i, 0), value, mask=inside)


def add_up(p: Any, kind: Any, shrink: Any, total: Any, exact: Any) -> tuple[Any, Any]:
    """Sums of rows' powers, relative to new maxima. Of 8 bits those of the weights as they are
    multiplied, which then add up to one whatever they were rounded to, and (None: without) exact
    ones for the log-sum-exp.
    """
    if kind.bits != 8:
        return total * shrink + tkc.sum(p, axis=1), exact
    total = total * shrink + tkc.sum(p.to(kind).to(tkc.float32), axis=1)
    return total, None if exact is None else exact * shrink + tkc.sum(p, axis=1)


def _log_sums(top: Any, total: Any) -> Any:
    """The natural log-sum-exp of rows; −∞ where they see nothing."""
    return tkc.where(total > 0, (top + tkc.log2(total)) * LN2, -inf)


def _keys(k: Any, lengths: Any, b: Any) -> Any:
    """How many keys sequence b of a batch has."""
    return k.shape[2] if lengths is None else _within(lengths[b])


def _scaled(scale: Any, scales: tuple, sizes: tuple, place: tuple, m: Any) -> tuple:
    """(scale of a program's scores, K's scales of its steps, V's). scales: of Q, K and V, each one
    a head, or of blocks of so many rows (`sizes`); place: batch, head of Q, head of K and V; m: the
    program's first row.
    """
    qs, ks, vs = scales
    b, h, shared = place
    if qs is not None:
        scale = scale * (qs[b, h][m // sizes[0]] if sizes[0] else qs[h])
    if ks is not None and not sizes[1]:
        scale = scale * ks[shared]
    return scale, ks[b, shared] if sizes[1] else None, vs[b, shared] if sizes[2] else vs


def _of_step(scale: Any, factor: Any, ks: Any, n: Any, size: int) -> tuple[Any, Any]:
    """The scale of a step's scores, and what makes powers of two of them. factor: that of `scale`;
    size: of how many rows K's scales are, 0 where they are in `scale`.
    """
    if not size:
        return scale, factor
    scale = scale * ks[n // size]
    return scale, scale * LOG2E


def _weighed(p: Any, v: Any, acc: Any, vs: Any, n: Any, size: int) -> Any:
    """Adds the product of weights and values. size: of how many rows V's scales are, 0 where none
    is a block's.
    """
    return acc + tkc.dot(p, v) * vs[n // size] if size else tkc.dot(p, v, acc)


def _kept(rows: Any, cols: Any, keys: Any, causal: bool, window: Any, inside: Any) -> Any:
    """Which columns rows see. inside: of the columns, those that are none of another block (None:
    all). The last row sees the last column: what rows behind it see is not stored.
    """
    keep = rows[:, None] >= cols[None, :] if causal else cols[None, :] < keys
    if window is not None:
        keep = keep & (rows[:, None] - cols[None, :] < window)
    return keep if inside is None else keep & inside[None, :]


@tkc.jit
def _attention(
    q,
    k,
    v,
    o,
    lse,
    cu_seqlens,
    cu_seqlens_k,
    qs,
    ks,
    vs,
    sinks,
    slopes,
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
    lengths=None,
    table=None,
    PAGE: tkc.constexpr = 0,
    SCALED: tkc.constexpr = (0, 0, 0),
):
    # lengths: of each sequence's keys, in a cache; table: the pages of each, of PAGE rows; SCALED:
    # rows of Q, K and V that each scale is of (0: of all of a head)
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    if cu_seqlens is not None:  # arrays of [tokens, heads, D]
        start, queries, key, keys = bounds_of(b, cu_seqlens, cu_seqlens_k)
        q, k, v, o = q[:, h], k[:, h // GROUP], v[:, h // GROUP], o[:, h]
        # the grid is as long as the longest: a sequence without rows here has no columns
        keys = tkc.where(m < queries, keys, 0)
    else:
        start, key, queries, keys = 0, 0, q.shape[2], _keys(k, lengths, b)
        q, k, v, o = q[b, h], *_cached((k, v), b, h // GROUP, PAGE, BN), o[b, h]
    pages, (scale, ks, vs) = (
        None if table is None else table[b],
        _scaled(scale, (qs, ks, vs), SCALED, (b, h, h // GROUP), m),
    )
    alike = cu_seqlens is not None and cu_seqlens_k is None
    c, shift, row = scale * LOG2E, 0 if alike else keys - queries, m
    if lengths is not None:  # whose sums with rows are known not to wrap
        shift, row = _within(shift), _within(m)
    rows, qi = row + tkc.arange(BM) + shift, tkc.load(q, (start + m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, DV))
    if sinks is not None:  # as a column that was seen before
        ones = 2.0**LIFT if v.dtype.bits == 8 else 1.0
        top, total = tkc.full((BM,), 0.0) + sinks[h] * LOG2E, tkc.full((BM,), ones)
    first, exact = tkc.maximum(m + shift - window + 1, 0) // BN * BN if WINDOW else 0, total
    for n in tkc.range(first, tkc.minimum(keys, m + BM + shift) if CAUSAL else keys, BN):
        at, inside, both = (
            (n, None, None)
            if lengths is None
            else blocks_of([(k, 0, D), (v, 0, DV)], pages, n, keys, BN, PAGE)
        )
        cols, (here, unit) = at + tkc.arange(BN), _of_step(scale, c, ks, n, SCALED[1])
        keep = _kept(rows, cols, keys, CAUSAL, window if WINDOW else None, inside)
        s = tkc.dot(qi, (both[0] if both else tkc.load(k, (key + n, 0), (BN, D))).T)
        if CAP:
            s = cap * tkc.tanh(s * (here / cap)) * (1 / here)
        s = tkc.where(keep, biased(s, rows[:, None], cols[None, :], slopes, h, 1 / here), -inf)
        new = tkc.maximum(top, tkc.max(s, axis=1) * unit)
        base = tkc.where(new == -inf, 0, new)  # a row with nothing to see
        low = base - LIFT if v.dtype.bits == 8 else base
        p, shrink = tkc.exp2(s * unit - low[:, None]), tkc.exp2(top - base)
        total, exact = add_up(p, v.dtype, shrink, total, None if lse is None else exact)
        acc = _weighed(
            p.to(v.dtype),
            both[1] if both else tkc.load(v, (key + n, 0), (BN, DV)),
            *(acc * shrink[:, None], vs, n, SCALED[2]),
        )
        top = new
    out = acc * tkc.where(total > 0, 1 / total, 0)[:, None]
    out = out if vs is None or SCALED[2] else out * vs[h // GROUP]
    write_rows(o, start, m, out, None if cu_seqlens is None else queries)
    if lse is not None:
        sums = _log_sums(top - LIFT, exact) if v.dtype.bits == 8 else _log_sums(top, total)
        if cu_seqlens is None:
            tkc.store(lse[b, h], (m,), sums)
        else:
            tkc.store(lse[h], (start + m,), sums, mask=m + tkc.arange(BM) < queries)


def page_of(table: Any, n: Any, size: int, block: int) -> Any:
    """The pool's row of each of the `block` rows from n on of a sequence, which lie in several
    pages of `size` rows.
    """
    rows = n + tkc.arange(block)
    return tkc.load(table, (rows // size,), (block,)) * size + rows % size


def blocks_of(
    places: list[tuple[Any, Any, int]], table: Any, n: Any, last: Any, step: int, size: int
) -> tuple[Any, Any, list]:
    """The block of the `step` rows from n on of a sequence that ends at `last`, whole and with no
    row behind the end: where it begins, which of its rows are from n on, and for each of `places`,
    (array, first column, columns), what is there. What stands behind the end need not be numbers,
    and a mask would keep tensor maps from copying the block; what stands before n is other rows of
    the sequence, or zeros. table: the sequence's pages, of `size` rows, or None. Where a block has
    rows of several pages, they are gathered, and those behind the end are zeros.
    """
    if size % step:
        inside = n + tkc.arange(step) < last
        page, kept = page_of(table, n, size, step), inside[:, None]
        return (
            n,
            inside,
            [tkc.load(x, (page, at), (step, width), mask=kept) for x, at, width in places],
        )
    start = tkc.minimum(n, last - step)
    inside = start + tkc.arange(step) >= n
    if table is None:
        return start, inside, [tkc.load(x, (start, at), (step, width)) for x, at, width in places]
    page, row = table[n // size], start - n // size * size
    return start, inside, [tkc.load(x[page], (row, at), (step, width)) for x, at, width in places]


def _within(n: Any) -> Any:
    """A number of rows or keys, which is no more than MAX_KEYS, of either sign."""
    return tkc.minimum(tkc.maximum(n, -MAX_KEYS), MAX_KEYS)


def _cached(arrays: tuple, b: Any, h: Any, size: int, step: int) -> tuple:
    """A head's rows of sequence b: of [batch, heads, rows, D], or of pools of pages of `size` rows
    ([pages, size, heads, D] where pages hold whole blocks of `step` rows, else [rows, heads, D]).
    """
    if not size:
        return tuple(x[b, h] for x in arrays)
    return tuple(x[:, :, h] if size % step == 0 else x[:, h] for x in arrays)


def _part_and_row(blocks: int, rows: int) -> tuple[Any, Any]:
    """A program's part of the keys, and the first row of its block."""
    i = tkc.program_id(0)
    return (i, 0) if blocks == 1 else (i // blocks, i % blocks * rows)


def _by_row(x: Any, m: Any, rows: int, queries: int) -> Any:
    """A head's number for each row from m on."""
    if queries == 1:
        return tkc.load(x, (m,), (rows,))
    return tkc.load(x, ((m + tkc.arange(rows)) // queries,), (rows,))


def _visible(
    m: Any, cols: Any, inside: Any, rows: int, keys: Any, queries: int, window: Any
) -> Any:
    """Which columns, of those inside, rows from m on see: where there are several queries, which
    are the last positions, none that is behind; the last `window` (None: all).
    """
    if queries == 1 and window is None:
        return inside
    place = ((m + tkc.arange(rows)) % queries)[:, None] + (keys - queries)
    keep = inside & (place >= cols)
    return keep if window is None else keep & (place - cols < window)


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
    cap,
    window,
    QUERIES: tkc.constexpr,
    BLOCKS: tkc.constexpr,
    WINDOW: tkc.constexpr,
    CAP: tkc.constexpr,
    PAGE: tkc.constexpr,
    EACH: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """The queries of each head of a group, a row each in BLOCKS blocks, against a part of the keys:
    a sum, and what it is relative to. What is kept in 8 bits is multiplied in 16, which hold it
    exactly.
    """
    (part, m), h, b = _part_and_row(BLOCKS, BM), tkc.program_id(1), tkc.program_id(2)
    keys = k.shape[2] if lengths is None else lengths[b]
    first = part * EACH
    last, c = tkc.minimum(keys, first + EACH), scale * LOG2E
    if WINDOW:  # of the first query
        first = tkc.maximum(first, (keys - QUERIES - window + 1) // BN * BN)
    if ks is not None:
        c = c * ks[h]
    if qs is not None:
        c = c * _by_row(qs[h], m, BM, QUERIES)
    qi, short = tkc.load(q[b, h], (m, 0), (BM, D)), k.dtype.bits == 8
    rows = qs is not None or short and q.dtype == tkc.bfloat16  # have each a factor of their own
    # relative to a power of two: float16 has the bits, not the range
    if short and q.dtype == tkc.bfloat16:
        most = tkc.max(tkc.abs(qi.to(tkc.float32)), axis=1)
        unit = tkc.where(most > 0, tkc.exp2(tkc.floor(tkc.log2(most))), 1)
        qi, c = qi.to(tkc.float32) / unit[:, None], c * unit
    if short:
        qi = qi.to(tkc.float16)
    held = tkc.float16 if short else v.dtype
    k, v = _cached((k, v), b, h, PAGE, BN)
    pages = None if table is None else table[b]
    high, sums, out = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, DV))
    for n in tkc.range(first, last, BN):
        places = [(k, 0, D), (v, 0, DV)]
        start, inside, (ki, vi) = blocks_of(places, pages, n, last, BN, PAGE)
        cols, seen = (start + tkc.arange(BN))[None, :], inside[None, :]
        keep = _visible(m, cols, seen, BM, keys, QUERIES, window if WINDOW else None)
        s = tkc.dot(qi, ki.to(qi.dtype).T)
        if CAP:
            s = tkc.tanh(s * ((c[:, None] if rows else c) / (cap * LOG2E))) * (cap * LOG2E)
        s, most = tkc.where(keep, s, -inf), 1.0 if CAP else c
        new = tkc.maximum(high, tkc.max(s, axis=1) * most)
        # a row with nothing to see yet
        base = tkc.where(new == -inf, 0, new) if WINDOW or QUERIES > 1 else new
        p = tkc.exp2(s * (c[:, None] if rows and not CAP else most) - base[:, None])
        shrink = tkc.exp2(high - base)
        sums, high = sums * shrink + tkc.sum(p, axis=1), new
        out = tkc.dot(p.to(held), vi.to(held), out * shrink[:, None])
    tkc.store(acc[b, h, part], (m, 0), out if vs is None else out * vs[h])
    tkc.store(top[b, h, part], (m,), high)
    tkc.store(total[b, h, part], (m,), sums)


def _relative(top: Any, g: Any, most: int) -> Any:
    """What the parts of row g are relative to; −∞ behind the last part."""
    inside = tkc.arange(most) < top.shape[0]
    return tkc.where(inside, tkc.load(top[:, g], (0,), (most,)), -inf)


@tkc.jit
def _combine(
    acc,
    top,
    total,
    o,
    lse,
    sinks,
    prefix_acc,
    prefix_top,
    prefix_total,
    MAX_DECODE_PARTS: tkc.constexpr,
    MAX_PREFIX_PARTS: tkc.constexpr,
    DV: tkc.constexpr,
    GROUP: tkc.constexpr,
    QUERIES: tkc.constexpr,
):
    """The parts of one head's query, each scaled to the largest maximum; in one order, so that the
    same arguments give the same bits. Those of a prefix have all sequences' rows one after the
    other.
    """
    g, h, b = tkc.program_id(0), tkc.program_id(1), tkc.program_id(2)
    head, t = (h * GROUP + g, 0) if QUERIES == 1 else (h * GROUP + g // QUERIES, g % QUERIES)
    rows: Any = [(acc[b, h], top[b, h], total[b, h], g, MAX_DECODE_PARTS)]
    if prefix_acc is not None:
        found = (x[0, h] for x in (prefix_acc, prefix_top, prefix_total))
        rows.append((*found, b * (GROUP * QUERIES) + g, MAX_PREFIX_PARTS))
    relative = [_relative(of, i, most) for _, of, _, i, most in rows]
    high: Any = tkc.max(relative[0], axis=0)
    for other in relative[1:]:
        high = tkc.maximum(high, tkc.max(other, axis=0))
    if sinks is not None:
        high = tkc.maximum(high, sinks[head] * LOG2E)
    sums: Any = None
    for (_, _, of, i, most), tops in zip(rows, relative, strict=True):
        weights = tkc.where(tops == -inf, 0, tkc.exp2(tops - high))
        found = tkc.sum(tkc.load(of[:, i], (0,), (most,)) * weights, axis=0)
        sums = found if sums is None else sums + found
    if sinks is not None:
        sums = sums + tkc.exp2(sinks[head] * LOG2E - high)
    out = tkc.zeros((DV,))
    for part, of, _, row, _ in rows:
        for i in tkc.range(part.shape[0]):
            weight = tkc.where(of[i, row] == -inf, 0, tkc.exp2(of[i, row] - high))
            out = out + tkc.load(part[i, row], (0,), (DV,)) * weight
    # a sum that is NaN stays one
    tkc.store(o[b, head, t], (0,), tkc.where(sums == 0, 0, out / sums).to(o.dtype))
    if lse is not None:
        tkc.store(
            lse[b, head],
            (t,),
            tkc.full((1,), 0.0) + tkc.where(sums > 0, (high + tkc.log2(sums)) * LN2, -inf),
        )


# --------------------------------------------------------------------------------------------------
@operator(name="attention")
def dense(
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
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    deterministic: bool = False,
) -> Iterator[tuple[Array, Array]]:
    """attention's result, in memory as q is, and its log-sum-exp (with `sums`). deterministic:
    whether equal arguments give gradients of equal bits; the result itself always has them.
    """
    check(q, k, v)
    if len(q.shape) != 4:
        raise tkc.LaunchError(
            f"attention: expected q of [batch, heads, queries, D], got {list(q.shape)}"
        )
    out = empty(q, (*q.shape[:-1], v.shape[-1]), result_type(q))
    turn = (lambda x: x) if heads_first else lambda x: x.swapaxes(1, 2)
    q, k, v, o = map(turn, (q, k, v, out))
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    if k.shape[0] != batch:
        raise tkc.LaunchError(
            f"attention: q has {batch} batches and k {k.shape[0]}; they must be as many"
        )
    group, options = group_of(heads, k.shape[1]), masks_of(causal, window, softcap, scale, d)
    check_block(max(d, v.shape[-1]), rows, columns)
    check_heads(heads, sinks=sinks, alibi_slopes=alibi_slopes)
    scales = dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    scaled = check_scales((q, k, v), heads, k.shape[1], scales, (queries, keys, keys))
    lse = empty(q, (batch, heads, queries) if sums else (0,), "float32")
    yield out, lse
    if not out.size if library(out) != "torch" else not out.numel():
        return
    given, asked = (q_scale, k_scale, v_scale), rows is not None or columns is not None
    dealt = alibi_slopes is None and scaled == (0, 0, 0) and _deals_out_keys(q, k, given, asked)
    arrays = q, k, v, o, lse if sums else None
    if dealt and _decoded_as_few(arrays, given, sinks, options, causal, heads_first):
        return
    rows, columns = _within_scales(rows, columns, scaled)
    block, step = (
        block_of(q, k, v, causal, window, rows, columns),
        (32 if dtype_of(q) == FLOAT8 else 16),
    )
    step = max(step, block.step)
    options |= options_of(q, k, block) | dict(SCALED=scaled)
    _attention[tkc.cdiv(queries, block.rows), heads, batch](
        q,
        k,
        v,
        o,
        lse if sums else None,
        None,
        None,
        q_scale,
        k_scale,
        v_scale,
        sinks,
        alibi_slopes,
        GROUP=group,
        D=width_of(d, step),
        DV=width_of(v.shape[-1], step),
        BM=block.rows,
        BN=block.columns,
        **options,
    )


def _deals_out_keys(q: Array, k: Array, scales: tuple[Array | None, ...], asked: bool) -> bool:
    """Whether several programs share the keys of one: there are many, and of queries so few that
    blocks of them would leave half of the multiprocessors idle. asked: for a block.
    """
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    if keys < 2 * MIN_KEYS_PER_PART:
        return False
    if queries == 1:
        return True
    if (target := tkc.target_of(q)) == "cpu" or dtype_of(q) in (FLOAT8, "float32") or asked:
        return False
    places = tkc.target(target).multiprocessors
    blocks = batch * heads * tkc.cdiv(queries, MAX_DECODE_ROWS)
    widest = MAX_COLUMNS if has_wgmma(target) else MAX_COLUMNS // 2  # which registers hold
    few = queries <= keys and 2 * blocks <= places and q.shape[-1] <= widest
    return few and scales == (None, None, None)


def _decoded_as_few(
    arrays: tuple[Array, Array, Array, Array, Array | None],
    scales: tuple[Array | None, Array | None, Array | None],
    sinks: Array | None,
    options: dict,
    causal: bool,
    heads_first: bool,
) -> bool:
    """Launches decoding of queries that are the last ones, or of such that see all keys, as if each
    had a head; False where these have sinks, or do not lie by heads. arrays: q, k, v, the result
    and the log-sum-exp, or None.
    """
    q, k, v, o, lse = arrays
    batch, heads, queries, _ = q.shape
    if not causal and queries > 1:
        if not heads_first or sinks is not None:
            return False
        q, o = (x.reshape((batch, heads * queries, 1, x.shape[-1])) for x in (q, o))
        lse = None if lse is None else lse.reshape((batch, heads * queries, 1))
    _decoded(q, k, v, o, lse, None, None, scales, sinks, options)
    return True


def _within_scales(
    rows: int | None, columns: int | None, scaled: tuple[int, int, int]
) -> tuple[int | None, int | None]:
    """A block of as many rows and columns as asked, or so many fewer that one scale is of all.
    scaled: of how many rows of Q, K and V each scale is, 0 where one is a head's.
    """
    if not any(scaled):
        return rows, columns
    return gcd(rows or 128, scaled[0]), gcd(columns or 128, *scaled[1:])


class Parts(NamedTuple):
    """Sums of parts of the keys, and what they are relative to: [batch, shared heads, parts, rows]
    each, of float32, `acc` with an axis of columns. rows: of each head of a group its queries.
    """

    acc: Array
    top: Array
    total: Array

    def most(self) -> int:
        """A power of two that is no less than the number of parts."""
        return 1 << (self.acc.shape[2] - 1).bit_length()


def _parts(
    q: Array,
    k: Array,
    v: Array,
    queries: int,
    lengths: Array | None,
    table: Array | None,
    scales: tuple[Array | None, Array | None, Array | None],
    options: dict,
    most_rows: int,
) -> Parts:
    """Launches decoding of q, [batch, shared heads, rows, D], of each head `queries`, in blocks of
    `most_rows` at most. scales: of float8 q, k and v; options: scale, cap, window and flags.
    """
    (batch, shared, rows, d), dv, size = q.shape, v.shape[-1], 0 if table is None else v.shape[1]
    keys, bn = v.shape[2] if table is None else table.shape[1] * size, 64
    bm = max(16, tkc.cdiv(min(rows, most_rows), 16) * 16)
    blocks = tkc.cdiv(rows, bm)
    if size % bn:
        k, v = pages_as_rows(k), pages_as_rows(v)
    programs = batch * shared * blocks
    count = max(1, min(tkc.cdiv(keys, MIN_KEYS_PER_PART), tkc.cdiv(MAX_DECODE_PARTS * 4, programs)))
    each = max(1, tkc.cdiv(tkc.cdiv(keys, count), bn)) * bn
    count = max(1, tkc.cdiv(keys, each))
    acc = empty(q, (batch, shared, count, rows, dv), "float32")
    top, total = (empty(q, (batch, shared, count, rows), "float32") for _ in range(2))
    qs, *others = scales
    _decode[count * blocks, shared, batch](
        *(q, k, v, acc, top, total, lengths, table),
        *(qs if qs is None else qs.reshape((shared, rows // queries)), *others),
        *(options[name] for name in ("scale", "cap", "window")),
        QUERIES=queries,
        BLOCKS=blocks,
        WINDOW=options["WINDOW"],
        CAP=options["CAP"],
        PAGE=size,
        EACH=each,
        D=width_of(d),
        DV=width_of(dv),
        BM=bm,
        BN=bn,
    )
    return Parts(acc, top, total)


def _decoded(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array | None,
    lengths: Array | None,
    table: Array | None,
    scales: tuple[Array | None, Array | None, Array | None],
    sinks: Array | None,
    options: dict,
    prefix: tuple[Array, Array, Array | None, Array | None] | None = None,
) -> None:
    """Launches decoding, and what adds up its parts. prefix: keys, values, lengths and pages that
    all sequences have before their own, as those of one.
    """
    (batch, heads, queries, d), shared = q.shape, v.shape[1 if table is None else 2]
    rows = heads // shared * queries
    q = q.reshape((batch, shared, rows, d))
    most = rows if queries == 1 and rows <= 2 * MAX_DECODE_ROWS else MAX_DECODE_ROWS
    parts, before = _parts(q, k, v, queries, lengths, table, scales, options, most), None
    if prefix is not None:  # all rows see all of it: queries of heads of their own
        q = q.swapaxes(0, 1).reshape((1, shared, batch * rows, d))
        most = MAX_DECODE_ROWS if has_wgmma(tkc.target_of(q)) else MAX_DECODE_ROWS // 2
        before = _parts(q, *prefix[:2], 1, *prefix[2:], scales, options, most)
    combine(parts, o, lse, sinks, before)


def combine(
    parts: Parts,
    o: Array,
    lse: Array | None,
    sinks: Array | None = None,
    prefix: Parts | None = None,
) -> None:
    """Adds up the parts of sums into o, [batch, heads, queries, DV]. prefix: more parts, of a batch
    of one that has the rows of all.
    """
    (batch, shared, _, rows, dv), queries = parts.acc.shape, o.shape[2]
    _combine[rows, shared, batch](
        *(*parts, o, lse, sinks),
        *((None, None, None) if prefix is None else prefix),
        MAX_DECODE_PARTS=parts.most(),
        MAX_PREFIX_PARTS=1 if prefix is None else prefix.most(),
        DV=width_of(dv),
        GROUP=rows // queries,
        QUERIES=queries,
    )


@operator(name="attention_ragged")
def ragged(
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
    cu_seqlens_k: Array | None = None,
    max_seqlen_k: int | None = None,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    deterministic: bool = False,
) -> Iterator[tuple[Array, Array]]:
    """attention of sequences that lie one after the other. deterministic: as of `dense`."""
    check(q, k, v)
    check_sequences(q, k, cu_seqlens, cu_seqlens_k)
    (tokens, heads, d), dv = q.shape, v.shape[-1]
    check_heads(heads, sinks=sinks, alibi_slopes=alibi_slopes)
    group, options = group_of(heads, k.shape[1]), masks_of(causal, window, softcap, scale, d)
    check_scales(
        (q, k, v), heads, k.shape[1], dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    )
    out, lse = (
        empty(q, (tokens, heads, dv), result_type(q)),
        empty(q, (heads, tokens) if sums else (0,), "float32"),
    )
    yield out, lse
    if not prod(out.shape):
        return
    sequences = cu_seqlens.shape[0] - 1
    block, step = (
        block_of_sequences(q, k, v, sequences, max_seqlen, causal, window),
        (32 if dtype_of(q) == FLOAT8 else 16),
    )
    step = max(step, block.step)
    options |= options_of(q, k, block)
    _attention[tkc.cdiv(max_seqlen, block.rows), heads, sequences](
        q,
        k,
        v,
        out,
        lse if sums else None,
        cu_seqlens,
        cu_seqlens_k,
        q_scale,
        k_scale,
        v_scale,
        sinks,
        alibi_slopes,
        GROUP=group,
        D=width_of(d, step),
        DV=width_of(dv, step),
        BM=block.rows,
        BN=block.columns,
        **options,
    )


def pages_as_rows(pool: Array, name: str = "attention_decode") -> Array:
    """A pool's pages as one array of rows. Raises LaunchError where they do not lie one after the
    other. name: the function's.
    """
    steps = pool.stride() if library(pool) == "torch" else getattr(pool, "strides", None)
    if steps is not None and pool.shape[0] > 1 and steps[0] != steps[1] * pool.shape[1]:
        raise tkc.LaunchError(
            f"{name}: pages of {pool.shape[1]} rows are read row by row and must lie one"
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
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Array | None = None,
    prefix_k: Array | None = None,
    prefix_v: Array | None = None,
    prefix_pages: Array | None = None,
    prefix_length: Array | None = None,
) -> Iterator[tuple[Array, Array]]:
    """The last queries of each batch, and as many keys as `lengths` says."""
    check(q, k, v, mixed=True)
    check_pages(q, pages, "attention_decode")
    if len(q.shape) != 4:
        raise tkc.LaunchError(
            f"attention_decode: expected q of [batch, heads, queries, D], got {list(q.shape)}"
        )
    check_lengths(q, lengths, "attention_decode")
    shared = k.shape[1 if pages is None else 2]
    group_of(q.shape[1], shared)
    check_heads(q.shape[1], sinks=sinks)
    options = masks_of(True, window, softcap, scale, q.shape[-1])
    check_scales(
        (q, k, v), q.shape[1], shared, dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    )
    prefix = _prefix((k, v, pages), prefix_k, prefix_v, prefix_pages, prefix_length)
    if prefix is not None and (window is not None or q_scale is not None):
        raise tkc.LaunchError(
            "attention_decode: beside a prefix there is no window, and q_scale is a number; leave"
            " window out, or multiply q"
        )
    out, lse = (
        empty(q, (*q.shape[:-1], v.shape[-1]), result_type(q)),
        empty(q, q.shape[:-1] if sums else (0,), "float32"),
    )
    yield out, lse
    if not prod(out.shape):
        return
    given, scales = (q, k, v, out, lse if sums else None), (q_scale, k_scale, v_scale)
    if q.shape[2] >= MAX_DECODE_ROWS and prefix is None and dtype_of(k) != FLOAT8:
        _prefill(*given, lengths, pages, sinks, options)
    else:
        _decoded(*given, lengths, pages, scales, sinks, options, prefix)


def _prefill(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array | None,
    lengths: Array,
    table: Array | None,
    sinks: Array | None,
    options: dict,
) -> None:
    """Launches attention of many queries to a cache: blocks of rows of one head."""
    (batch, heads, queries, d), dv = q.shape, v.shape[-1]
    size, group = (0, heads // k.shape[1]) if table is None else (v.shape[1], heads // k.shape[2])
    block = block_of_pages(q, queries, size)
    if size % block.columns:
        k, v = pages_as_rows(k), pages_as_rows(v)
    _attention[tkc.cdiv(queries, block.rows), heads, batch](
        *(q, k, v, o, lse, None, None, None, None, None, sinks, None),
        lengths=lengths,
        table=table,
        GROUP=group,
        PAGE=size,
        D=width_of(d),
        DV=width_of(dv),
        BM=block.rows,
        BN=block.columns,
        **({"programs": block.co_resident} if block.co_resident > 1 else {}),
        **options,
    )


def _prefix(
    cache: tuple[Array, Array, Array | None],
    k: Array | None,
    v: Array | None,
    pages: Array | None,
    length: Array | None,
) -> tuple[Array, Array, Array | None, Array | None] | None:
    """A prefix as keys, values, lengths and pages of a batch of one; None where there is none.
    cache: keys, values and pages of the sequences. Raises LaunchError where it does not fit these.
    """
    if all(x is None for x in (k, v, pages, length)):
        return None
    if pages is not None and length is not None and k is None and v is None:
        return _paged_prefix(cache, pages, length)
    if k is None or v is None or pages is not None or length is not None:
        raise tkc.LaunchError(
            "attention_decode: a prefix is prefix_k and prefix_v, or prefix_pages and prefix_length"
        )
    heads = cache[0].shape[1 if cache[2] is None else 2]
    for x, of, name in ((k, cache[0], "prefix_k"), (v, cache[1], "prefix_v")):
        _check_prefix(x, of, heads, k.shape[1:2], name)
    return k.reshape((1, *k.shape)), v.reshape((1, *v.shape)), None, None


def _check_prefix(x: Array, cache: Array, heads: int, length: tuple[int, ...], name: str) -> None:
    """Raises LaunchError unless x, keys or values of a prefix, is of the cache's type and heads."""
    if len(x.shape) != 3 or dtype_of(x) != dtype_of(cache) or x.shape[0] != heads:
        raise tkc.LaunchError(
            f"attention_decode: {name} is {dtype_of(cache)} of [{heads} shared heads, length, D],"
            f" got {dtype_of(x)} {list(x.shape)}"
        )
    expect(x, (heads, *length, cache.shape[-1]), name)


def _paged_prefix(
    cache: tuple[Array, Array, Array | None], pages: Array, length: Array
) -> tuple[Array, Array, Array, Array]:
    """`_prefix` in pages of the pools."""
    if cache[2] is None:
        raise tkc.LaunchError(
            "attention_decode: prefix_pages are pages of the pools k and v, which come with pages;"
            " pass prefix_k and prefix_v"
        )
    table = pages.reshape((1, -1))
    check_pages(table, table, "attention_decode: prefix")
    check_lengths(table, length, "attention_decode: prefix")
    return *cache[:2], length, table


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
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Array | None = None,
    prefix_k: Array | None = None,
    prefix_v: Array | None = None,
    prefix_pages: Array | None = None,
    prefix_length: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Attention to a cache of keys: a step of decoding (one query a head), several tokens at once
    (speculative decoding), or a part of a prompt (chunked prefill).

    q: [batch, heads, queries, D]; k, v: [batch, shared heads, capacity, D]; lengths: int32 [batch],
    how many keys a sequence has, those of the queries included, which are the last ones: query i of
    n sees the first lengths − n + i + 1 keys, or the last `window` of these; what stands behind the
    lengths does not matter, NaN neither. softcap and sinks are those of `attention`. pages: the
    keys lie in pages, k and v are pools of [pages, page size, shared heads, D] (any page size;
    multiples of 64 are read a page at a time, others row by row), and pages, int32 of [batch, pages
    of a sequence], says which are a sequence's, in order; what stands behind its length is not
    read. k and v may be float8_e4m3 beside a q of bfloat16 or float16, or all three (then the
    result is bfloat16); q_scale, k_scale, v_scale: what they are to be multiplied by, a number or
    float32 of [heads] (k, v: [shared heads]).

    A prefix that all sequences share is read once for all of them: prefix_k and prefix_v, [shared
    heads, length, D], or pages of the pools, prefix_pages, int32 of [pages], with prefix_length,
    int32 of [1]. Every query sees it, before its sequence's own keys, which alone `lengths` counts.
    There is no window then, and no q_scale of heads.

    The keys are dealt out over many programs and their
    parts added up in one order, so that the same arguments give the same bits. Raises LaunchError
    where shapes or types do not fit.
    """
    try:
        scale, scales = numbers_of(
            (q, k, v),
            scale,
            dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale),
            k.shape[-3 if pages is None else -2],
        )
        masks, prefix = (window, softcap, sinks), (prefix_k, prefix_v, prefix_pages, prefix_length)
        out = _step(q, k, v, lengths, scale, pages, *scales, with_lse, *masks, *prefix)
        return out if with_lse else out[0]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
