"""Gradients of attention, from plain block programs without a schedule.

With P = softmax(S), S = Q Kᵀ · scale, and the log-sum-exp L of each row of S (Dao et al., 2022):

    D = rowsum(dO ∘ O) − dL         `_row_terms`, which also writes L in powers of two
    dS = P ∘ (dO Vᵀ − D)            in registers of both others
    dQ = dS K · scale               `_queries`, a program a block of rows
    dK = dSᵀ Q · scale, dV = Pᵀ dO  `_keys_and_values`, a program a block of columns, which walks
                                    over the rows of all heads of Q that share a head of K and V

Then scores are computed twice, and nothing is added up in memory: no atomics, no zeroed arrays, no
conversion afterwards. So equal arguments give equal bits, whatever else the GPU does. What a launch
needs besides its results is two float32 of each row, allocated by the call.

Where the tensor cores have room for dQ beside dK and dV, and nobody asks for equal bits, scores are
computed once: `_keys_and_values` adds its part of dQ to float32 sums in memory, which `_row_terms`
has zeroed and `_scaled_queries` then scales and rounds.

The two float32 of a row lie padded to a multiple of `PAD` rows (of each sequence, in ragged
batches). Rows that are only padding, and rows that see nothing, have L = +∞, so that P is 0 there
without a mask.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from math import e, inf, log2, prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import Array, dtype_of, empty, expect, library, written_out, zeros
from tkc.kernels.attention import biased, bounds_of, dense, ragged, write_rows
from tkc.kernels.attention_blocks import FLOAT8, has_wgmma, width_of
from tkc.kernels.attention_checks import (
    check,
    check_heads,
    check_sequences,
    group_of,
    masks_of,
)
from tkc.kernels.operator import Operator, operator

LOG2E = log2(e)
# rows that a block of `_queries` or `_keys_and_values` reads at once divide it
PAD = 128
# of a program of `_row_terms`
ROWS = 32
# elements of 16 bits to a multiple of which rows are padded where tensor maps copy them: narrower
# swizzles than of 64 bytes take twice as many lines
STEP = 32


def _part(x, *index):
    return None if x is None else x[index]


def padded_rows(start: Any, b: Any) -> Any:
    """Where sequence b, which begins at `start`, has its padded rows."""
    return (start + b * PAD) // PAD * PAD


def _capped(s, scale, cap):
    """Capped scores, before they are scaled, and the hyperbolic tangent in them."""
    t = tkc.tanh(s * (scale / cap))
    return t * (cap / scale), t


def _seen(s, rows, cols, window, causal: bool, windowed: bool, end=None):
    """Scores, −∞ where a row does not see a column; end: there are others behind it."""
    if not causal:
        return s if end is None else tkc.where(cols < end, s, -inf)
    keep = rows >= cols
    return tkc.where(keep & (rows - cols < window) if windowed else keep, s, -inf)


def _end(end, edge: bool, dq_sums):
    """Behind which columns are others, the next sequence's or none at all (whose exp2(0 − L) may be
    infinite, and that times a key of zeros no number), which would add to dQ's sums; None where
    there are none of either.
    """
    return end if edge and dq_sums is not None else None


@tkc.jit
def _row_terms(
    out,
    grad,
    lse,
    lse_grad,
    terms,
    log_sums,
    sinks,
    sink_parts,
    dq_sums,
    cu_seqlens,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
):
    """Of each row rowsum(dO ∘ O) − dL, and L in powers of two, in padded rows; where there are
    sinks, what a block of rows adds to their gradient; zeros where dQ is added up.
    """
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    if cu_seqlens is not None:
        start, queries, _, _ = bounds_of(b, cu_seqlens, None)
        at = padded_rows(start, b)
        out, grad, lse = out[:, h], grad[:, h], lse[h]
        terms, log_sums, dq_sums = terms[h], log_sums[h], _part(dq_sums, h)
        lse_grad = _part(lse_grad, h)
    else:
        start, at, queries = 0, 0, out.shape[2]
        out, grad, lse = out[b, h], grad[b, h], lse[b, h]
        terms, log_sums, dq_sums = terms[b, h], log_sums[b, h], _part(dq_sums, b, h)
        lse_grad = _part(lse_grad, b, h)
    inside = m + tkc.arange(BM) < queries
    o, do = (tkc.load(x, (start + m, 0), (BM, DV)).to(tkc.float32) for x in (out, grad))
    term = tkc.sum(o * do, axis=1)
    if lse_grad is not None:
        term = term - tkc.load(lse_grad, (start + m,), (BM,))
    row = tkc.load(lse, (start + m,), (BM,))
    seen = inside & (row != -inf)
    padded = m < tkc.cdiv(queries, PAD) * PAD
    term, log_sum = tkc.where(seen, term, 0.0), tkc.where(seen, row * LOG2E, inf)
    tkc.store(terms, (at + m,), term, mask=padded)
    tkc.store(log_sums, (at + m,), log_sum, mask=padded)
    if dq_sums is not None:
        tkc.store(dq_sums, (at + m, 0), tkc.zeros((BM, D)), mask=padded)
    if sinks is not None:  # the sink's dS, of a column whose value is 0
        part = tkc.sum(tkc.exp2(sinks[h] * LOG2E - log_sum) * -term, axis=0)
        i = b * tkc.num_programs(0) + tkc.program_id(0)
        tkc.store(sink_parts[h], (i,), tkc.full((1,), 0.0) + part)


@tkc.jit
def _sink_gradients(parts, out, N: tkc.constexpr):
    """The parts of each head, summed in one order."""
    h, total = tkc.program_id(0), tkc.zeros((N,))
    for i in tkc.range(0, parts.shape[1], N):
        total = total + tkc.load(parts[h], (i,), (N,))
    tkc.store(out, (h,), tkc.full((1,), 0.0) + tkc.sum(total, axis=0))


@tkc.jit
def _scaled_queries(dq_sums, dq, cu_seqlens, scale, D: tkc.constexpr, BM: tkc.constexpr):
    """dQ of a block of rows, of its sums."""
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    if cu_seqlens is not None:
        start, queries, _, _ = bounds_of(b, cu_seqlens, None)
        at, end = padded_rows(start, b), queries
        dq_sums, dq = dq_sums[h], dq[:, h]
    else:
        start, at, end = 0, 0, None
        dq_sums, dq = dq_sums[b, h], dq[b, h]
    write_rows(dq, start, m, tkc.load(dq_sums, (at + m, 0), (BM, D)) * scale, end)


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
):
    """dQ of a block of rows: a loop over the columns that they see."""
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    if cu_seqlens is not None:  # arrays of [tokens, heads, D]
        start, queries, key, keys = bounds_of(b, cu_seqlens, cu_seqlens_k)
        at = padded_rows(start, b)
        shift, keys = keys - queries, tkc.where(m < queries, keys, 0)
        q, k, v = q[:, h], k[:, h // GROUP], v[:, h // GROUP]
        grad, dq, log_sums, terms = grad[:, h], dq[:, h], log_sums[h], terms[h]
    else:
        start, key, at, queries, keys = 0, 0, 0, q.shape[2], k.shape[2]
        shift = keys - queries
        q, k, v = q[b, h], k[b, h // GROUP], v[b, h // GROUP]
        grad, dq, log_sums, terms = grad[b, h], dq[b, h], log_sums[b, h], terms[b, h]
    rows = m + tkc.arange(BM) + shift
    qi, doi = tkc.load(q, (start + m, 0), (BM, D)), tkc.load(grad, (start + m, 0), (BM, DV))
    sums, term = tkc.load(log_sums, (at + m,), (BM,)), tkc.load(terms, (at + m,), (BM,))
    acc = tkc.zeros((BM, D))
    first = tkc.maximum(m + shift - window + 1, 0) // BN * BN if WINDOW else 0
    for n in tkc.range(first, tkc.minimum(keys, m + BM + shift) if CAUSAL else keys, BN):
        cols = n + tkc.arange(BN)
        ki, vi = tkc.load(k, (key + n, 0), (BN, D)), tkc.load(v, (key + n, 0), (BN, DV))
        s = tkc.dot(qi, ki.T)
        s, t = _capped(s, scale, cap) if CAP else (s, None)
        s = biased(s * (scale * LOG2E), rows[:, None], cols[None, :], slopes, h, LOG2E)
        s = s - sums[:, None]
        if not CAUSAL:
            s = tkc.where(cols[None, :] < keys, s, -inf)
        p = tkc.exp2(_seen(s, rows[:, None], cols[None, :], window, CAUSAL, WINDOW))
        ds = p * (tkc.dot(doi, vi.T) - term[:, None])
        ds = ds if t is None else ds * (1 - t * t)
        acc = tkc.dot(ds.to(k.dtype), ki, acc)
    write_rows(dq, start, m, acc * scale, None if cu_seqlens is None else queries)


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
    slopes,
    scale,
    cap,
    window,
    GROUP: tkc.constexpr,
    CAUSAL: tkc.constexpr,
    WINDOW: tkc.constexpr,
    CAP: tkc.constexpr,
    EDGE: tkc.constexpr,
    D: tkc.constexpr,
    DV: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """dK and dV of a block of columns, or one of them where the other is None: a loop over the rows
    that see them, of each head of Q. Their parts of dQ are added to its sums, if there are any.
    EDGE: whether a block may have columns behind the last one.
    """
    n, h, b = tkc.program_id(0) * BN, tkc.program_id(1), tkc.program_id(2)
    if cu_seqlens is not None:  # arrays of [tokens, heads, D]
        start, queries, key, keys = bounds_of(b, cu_seqlens, cu_seqlens_k)
        at = padded_rows(start, b)
        shift, queries = keys - queries, tkc.where(n < keys, queries, 0)
        k, v = k[:, h], v[:, h]
        dk, dv = _part(dk, slice(None), h), _part(dv, slice(None), h)
    else:
        start, key, at, queries, keys = 0, 0, 0, q.shape[2], k.shape[2]
        shift = keys - queries
        k, v = k[b, h], v[b, h]
        dk, dv = _part(dk, b, h), _part(dv, b, h)
        q, grad, dq_sums = q[b], grad[b], _part(dq_sums, b)
        log_sums, terms = log_sums[b], terms[b]
    cols, end = n + tkc.arange(BN) - shift, _end(keys - shift, EDGE, dq_sums)
    ki, vi = tkc.load(k, (key + n, 0), (BN, D)), tkc.load(v, (key + n, 0), (BN, DV))
    dki, dvi = tkc.zeros((BN, D)), tkc.zeros((BN, DV))
    first = tkc.maximum(n - shift, 0) // BM * BM if CAUSAL else 0
    last = tkc.minimum(queries, n + BN - 1 - shift + window) if WINDOW else queries
    steps = tkc.maximum(tkc.cdiv(last - first, BM), 0)
    for i in tkc.range(GROUP * steps):
        g = h if GROUP == 1 else h * GROUP + i // steps
        m = first + (i if GROUP == 1 else i % steps) * BM
        rows = m + tkc.arange(BM)
        qg, dog = (q[g], grad[g]) if cu_seqlens is None else (q[:, g], grad[:, g])
        qi, doi = tkc.load(qg, (start + m, 0), (BM, D)), tkc.load(dog, (start + m, 0), (BM, DV))
        s = tkc.dot(ki, qi.T)
        s, t = _capped(s, scale, cap) if CAP else (s, None)
        s = biased(s * (scale * LOG2E), rows[None, :], cols[:, None], slopes, g, LOG2E)
        s = s - tkc.load(log_sums[g], (at + m,), (BM,))[None, :]
        p = tkc.exp2(_seen(s, rows[None, :], cols[:, None], window, CAUSAL, WINDOW, end))
        if dv is not None:
            dvi = tkc.dot(p.to(grad.dtype), doi, dvi)
        if dk is not None:
            ds = p * (tkc.dot(vi, doi.T) - tkc.load(terms[g], (at + m,), (BM,))[None, :])
            ds = (ds if t is None else ds * (1 - t * t)).to(q.dtype)
            if dq_sums is not None:
                tkc.atomic_add(dq_sums[g], (tkc.maximum(at + m, 0), 0), tkc.dot(ds.T, ki))
            dki = tkc.dot(ds, qi, dki)
    for x, value in ((dk, dki * scale), (dv, dvi)):
        write_rows(x, key, n, value, None if cu_seqlens is None else keys)


class _Block(NamedTuple):
    """Rows of Q and columns of K that a program has at once, and its warps and stages where the
    compiler does not choose them. holds: registers keep what the loop does not change.
    """

    rows: int
    columns: int
    warps: int = 0
    stages: int = 0
    holds: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What a launch is told of it."""
        named = dict(num_warps=self.warps, num_stages=self.stages)
        held = {"left_operand": "registers"} if self.holds else {}
        return {name: n for name, n in named.items() if n} | held


class _Blocks(NamedTuple):
    """The blocks of `_queries` and of `_keys_and_values`; whether the latter has registers for dK
    and dV at once, or is launched for each of them; whether it has some for dQ too; and a multiple
    of which rows' elements are padded to.
    """

    queries: _Block
    keys: _Block
    together: bool = True
    adds_queries: bool = False
    step: int = 16

    def widths(self, d: int, d_v: int) -> dict[str, int]:
        """Elements of rows of Q and K, and of V, as programs have them."""
        return dict(D=width_of(d, self.step), DV=width_of(d_v, self.step))


class Batch(NamedTuple):
    """Where sequences begin, of queries and (None: likewise) of keys, and the longest; no arrays
    where all are as long.
    """

    queries: int
    keys: int
    cu_seqlens: Array | None = None
    cu_seqlens_k: Array | None = None

    def has_edge(self, columns: int) -> bool:
        """Whether a block of so many columns may have some behind the last one."""
        return self.cu_seqlens is not None or self.keys % columns != 0


def _holds_wide_rows(target: str) -> bool:
    """Whether shared memory holds 32 rows of Q and of dO, and 16 of K and of V, of 256 float32."""
    return target == "cpu" or tkc.target(target).shared_bytes > 2 * (32 + 16) * 256 * 4 + (16 << 10)


def _blocks(
    d: int, d_v: int, kind: str, options: dict, target: str, batch: Batch, has_slopes: bool
) -> _Blocks:
    """What registers and shared memory hold: the gradients of a block stay in registers. options:
    CAUSAL, CAP, WINDOW and GROUP, of which each needs some.
    """
    softcap = options["CAP"]
    wide = max(d, d_v)
    if kind == "float32":
        if wide <= 64:
            return _Blocks(_Block(64, 32), _Block(16, 32))
        rows = 32 if wide <= 128 or _holds_wide_rows(target) else 16
        return _Blocks(_Block(rows, 16), _Block(16, 32 if wide <= 128 else 16), together=False)
    if not has_wgmma(target):
        if wide > 192:
            return _Blocks(_Block(64, 16), _Block(16, 32))
        if wide > 64:
            return _Blocks(_Block(64, 32), _Block(32, 64))
        # warps of 32 rows of sums read other factors once for both sixteens; with more in their
        # scores they have no registers for them
        is_plain = not (softcap or has_slopes or batch.cu_seqlens is not None)
        if not is_plain or target == "cpu":
            return _Blocks(_Block(128, 16), _Block(32, 64))
        queries = _Block(128, 32, warps=4, stages=2, holds=True)
        # a loop over the heads that share columns has more numbers to keep than one over rows
        return _Blocks(queries, _Block(32, 128, warps=4 if options["GROUP"] == 1 else 8))
    return _wgmma_blocks(d, d_v, softcap, _are_large(options, target, batch, has_slopes))


def _are_large(options: dict, target: str, batch: Batch, has_slopes: bool) -> bool:
    """Whether blocks of 128 rows and columns waste little: rows see all columns, or a column is
    seen by many. Slopes and a causal mask have no registers in them.
    """
    if not options["CAUSAL"] and batch.cu_seqlens is None:
        return True
    rows = min(batch.queries, options["window"]) if options["WINDOW"] else batch.queries
    fewest = tkc.target(target).device.attention.shared_scores
    return rows >= fewest and not (has_slopes and options["CAUSAL"])


def _wgmma_blocks(d: int, d_v: int, softcap: bool, are_large: bool) -> _Blocks:
    """The same on Hopper, in 16 bits. are_large: whether blocks may have 128 rows and columns."""
    d, d_v = (width_of(n, STEP) for n in (d, d_v))
    wide = max(d, d_v)
    if wide > 192 or d + d_v > 320:
        queries = _Block(128, 64 if wide <= 192 else 32)
        return _Blocks(queries, _Block(32, 128), together=False, step=STEP)
    narrow = d + d_v > 256 or softcap and wide > 64
    keys = _Block(32 if narrow else 64, 128)
    if d == d_v <= 64 and are_large and not softcap:
        # warpgroups share the rows of dQ as they share those of dK and dV
        return _Blocks(_Block(128, 64), _Block(128, 128), adds_queries=True, step=STEP)
    # warpgroups share dQ's columns, and the rows of dK and dV; all of dQ's parts together cost less
    # than scores that are computed twice
    adds = not narrow and 64 < d <= keys.columns
    return _Blocks(_Block(128, 64), keys, True, adds, STEP)


class Rows(NamedTuple):
    """Float32 of each row, in padded rows: rowsum(dO ∘ O) − dL, L in powers of two, and where dQ is
    added up (None: nowhere).
    """

    terms: Array
    log_sums: Array
    dq_sums: Array | None


def empty_rows(out: Array, batch: Batch, columns: int = 0) -> Rows:
    """For a result of [batch, heads, rows, D] or [tokens, heads, D]; columns: of dQ's sums, which
    are not added up where it is 0.
    """
    heads, cu_seqlens = out.shape[1], batch.cu_seqlens
    padded: tuple[int, ...]
    if cu_seqlens is None:
        padded = (out.shape[0], heads, tkc.cdiv(batch.queries, PAD) * PAD)
    else:
        padded = (heads, (out.shape[0] // PAD + cu_seqlens.shape[0]) * PAD)
    terms, log_sums = (empty(out, padded, "float32") for _ in range(2))
    return Rows(terms, log_sums, empty(out, (*padded, columns), "float32") if columns else None)


def write_row_terms(
    rows: Rows,
    grad: Array,
    out: Array,
    sums: tuple[Array, Array | None],
    sinks: Array | None,
    dsinks: Array,
    batch: Batch,
) -> None:
    """Writes each row's terms, and zeros where dQ is added up. sums: the log-sum-exp and its
    gradient; dsinks: where the gradient of sinks is written.
    """
    heads, cu_seqlens = out.shape[1], batch.cu_seqlens
    sequences = out.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    programs = tkc.cdiv(batch.queries, PAD) * (PAD // ROWS)
    some = sequences if prod(out.shape[:-1]) else 0
    parts = None if sinks is None else empty(out, (heads, some * programs), "float32")
    if some:
        columns = 0 if rows.dq_sums is None else rows.dq_sums.shape[-1]
        _row_terms[programs, heads, sequences](
            *(out, grad, *sums, rows.terms, rows.log_sums, sinks, parts, rows.dq_sums, cu_seqlens),
            D=width_of(columns),
            DV=width_of(out.shape[-1]),
            BM=ROWS,
        )
    if sinks is not None and heads:
        _sink_gradients[heads](parts, dsinks, N=256)


def _launch(
    given: tuple[Array, ...],
    sums: tuple[Array, Array | None],
    of_heads: tuple[Array | None, Array | None],
    gradients: tuple[Array, Array, Array, Array],
    batch: Batch,
    options: dict,
    deterministic: bool,
) -> None:
    """The kernels. given: dO, Q, K, V and O of [batch, heads, rows, D] or, in ragged batches,
    [tokens, heads, D]; sums: the log-sum-exp and its gradient; of_heads: sinks and
    slopes.
    """
    (grad, q, k, v, out), (dq, dk, dv, dsinks), cu_seqlens = given, gradients, batch.cu_seqlens
    sinks, slopes = of_heads
    heads, shared, d, d_v = q.shape[1], k.shape[1], q.shape[-1], v.shape[-1]
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    common = dict(GROUP=group_of(heads, shared), **options)
    blocks = _blocks(d, d_v, dtype_of(q), common, tkc.target_of(q), batch, slopes is not None)
    common |= blocks.widths(d, d_v)
    adds = blocks.adds_queries and not deterministic
    terms, log_sums, dq_sums = of_rows = empty_rows(out, batch, width_of(d) * adds)
    write_row_terms(of_rows, grad, out, sums, sinks, dsinks, batch)
    others = cu_seqlens, batch.cu_seqlens_k, slopes
    has_queries = sequences and prod(q.shape[:-1])
    if has_queries and not adds:
        rows, columns, *_ = blocks.queries
        how = dict(BM=rows, BN=columns, **blocks.queries.options)
        _queries[tkc.cdiv(batch.queries, rows), heads, sequences](
            q, k, v, grad, log_sums, terms, dq, *others, **how, **common
        )
    if adds and batch.cu_seqlens_k is None:
        # where keys begin is read, not remembered: dQ leaves no registers for it
        others = cu_seqlens, cu_seqlens, slopes
    if prod(k.shape[:-1]) and sequences:
        rows, columns, *_ = blocks.keys
        for pair in ((dk, dv),) if blocks.together else ((dk, None), (None, dv)):
            _keys_and_values[tkc.cdiv(batch.keys, columns), shared, sequences](
                q,
                k,
                v,
                grad,
                log_sums,
                terms,
                *pair,
                dq_sums,
                *others,
                EDGE=batch.has_edge(columns),
                BM=rows,
                BN=columns,
                **blocks.keys.options,
                **common,
            )
    if has_queries and dq_sums is not None:
        scale_queries(dq_sums, dq, batch, options["scale"])


def scale_queries(dq_sums: Array, dq: Array, batch: Batch, scale: float) -> None:
    """Writes dQ, of [batch, heads, rows, D] or [tokens, heads, D], from its sums in padded rows."""
    sequences = dq.shape[0] if batch.cu_seqlens is None else batch.cu_seqlens.shape[0] - 1
    _scaled_queries[tkc.cdiv(batch.queries, ROWS), dq.shape[1], sequences](
        dq_sums, dq, batch.cu_seqlens, scale, D=width_of(dq.shape[-1]), BM=ROWS
    )


def wants_equal_bits(x: Array, deterministic: bool, possible: bool = True) -> bool:
    """Whether equal arguments must give equal bits: asked for here, or of all of torch. possible:
    whether they can; where they cannot and torch is to warn only, this warns.
    """
    if deterministic or library(x) != "torch":
        return deterministic
    torch = sys.modules["torch"]
    if not torch.are_deterministic_algorithms_enabled():
        return False
    if possible or not torch.is_deterministic_algorithms_warn_only_enabled():
        return True
    warnings.warn(
        "attention: gradients of a bias that broadcasts, or of what score_mod captured, are added"
        " up in no fixed order, although torch.use_deterministic_algorithms is set",
        stacklevel=2,
    )
    return False


def check_results(
    q: Array, v: Array, grad: Array, out: Array, sums: dict[str, Array | None], rows: tuple
) -> None:
    """Raises LaunchError unless the result, its gradient and the sums are those of attention."""
    if dtype_of(q) == FLOAT8:
        raise tkc.LaunchError(
            f"attention_backward: {FLOAT8} has no gradient; convert q, k and v to bfloat16"
        )
    for name, x in dict(grad=grad, out=out).items():
        expect(x, (*q.shape[:-1], v.shape[-1]), name)
        if dtype_of(x) != dtype_of(q):
            raise tkc.LaunchError(
                f"attention_backward: {name} is {dtype_of(x)} and q {dtype_of(q)}; convert it"
            )
    for name, row in sums.items():
        expect(row, rows, name)
        if row is not None and dtype_of(row) != "float32":
            raise tkc.LaunchError(
                f"attention_backward: {name} is float32, got {dtype_of(row)}; convert it"
            )


def empty_gradients(q: Array, k: Array, v: Array, sinks: Array | None) -> tuple[Array, ...]:
    numbers = 0 if sinks is None else sinks.shape[0]
    return (*(empty(x, tuple(x.shape)) for x in (q, k, v)), empty(q, (numbers,), "float32"))


def dense_memory(x: Array) -> Array:
    return written_out(x) if library(x) == "torch" else x


@operator(name="attention_backward")
def of_dense(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    lse_grad: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    heads_first: bool = True,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    deterministic: bool = False,
) -> Iterator[tuple[Array, Array, Array, Array]]:
    """The gradients of attention's q, k, v and sinks (without these, an array of none)."""
    check(q, k, v)
    if len(q.shape) != 4:
        raise tkc.LaunchError(
            f"attention_backward: expected q of [batch, heads, queries, D], got {list(q.shape)}"
        )
    batch, heads, queries = (q.shape[i] for i in ((0, 1, 2) if heads_first else (0, 2, 1)))
    sums = dict(lse=lse, lse_grad=lse_grad)
    check_results(q, v, grad, out, sums, (batch, heads, queries))
    check_heads(heads, sinks=sinks, alibi_slopes=alibi_slopes)
    options = masks_of(causal, window, softcap, scale, q.shape[-1])
    found = empty_gradients(q, k, v, sinks)
    yield found
    turn = (lambda x: x) if heads_first else lambda x: x.swapaxes(1, 2)
    given = tuple(turn(x) for x in (dense_memory(grad), q, k, v, out))
    _launch(
        given,
        (lse, lse_grad),
        (sinks, alibi_slopes),
        (*map(turn, found[:3]), found[3]),
        Batch(queries, given[2].shape[2]),
        options,
        deterministic,
    )


@operator(name="attention_ragged_backward")
def of_ragged(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    cu_seqlens: Array,
    max_seqlen: int,
    lse_grad: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    cu_seqlens_k: Array | None = None,
    max_seqlen_k: int | None = None,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    deterministic: bool = False,
) -> Iterator[tuple[Array, Array, Array, Array]]:
    """The gradients of attention's q, k, v and sinks, of sequences one after the other."""
    check(q, k, v)
    check_sequences(q, k, cu_seqlens, cu_seqlens_k)
    check_results(q, v, grad, out, dict(lse=lse, lse_grad=lse_grad), (q.shape[1], q.shape[0]))
    check_heads(q.shape[1], sinks=sinks, alibi_slopes=alibi_slopes)
    options = masks_of(causal, window, softcap, scale, q.shape[-1])
    found = empty_gradients(q, k, v, sinks)
    yield found
    max_seqlen_k = max_seqlen if max_seqlen_k is None else max_seqlen_k
    _launch(
        (dense_memory(grad), q, k, v, out),
        (lse, lse_grad),
        (sinks, alibi_slopes),
        found,
        Batch(max_seqlen, max_seqlen_k, cu_seqlens, cu_seqlens_k),
        options,
        deterministic,
    )


def give_gradient(
    forward: Operator, other: Operator, without: str = "", captured: Sequence[str] = ()
) -> None:
    """Gives the gradient of a form of attention, which `other` computes. It takes parameters of the
    form, both results and their gradients by their names, and which of the captured arrays need a
    gradient. without: parameters that get none.
    """
    taken = [p.name for p in other.parameters]
    known = {p.name for p in forward.parameters}

    def gradient(saved: SimpleNamespace, grad: Array | None, lse_grad: Array | None) -> dict:
        out, lse = saved.result
        if lse.shape[0] == 0 and prod(out.shape):
            raise tkc.LaunchError(
                "attention: its gradient needs the log-sum-exp; call the operator with sums=True"
            )
        wanted = sum(1 << i for i, name in enumerate(captured) if saved.needs.get(name))
        ordered = not (wanted and wanted & saved.unordered)
        given = dict(
            vars(saved),
            grad=zeros(out) if grad is None else grad,
            out=out,
            lse=lse,
            lse_grad=lse_grad,
            wanted=wanted,
            deterministic=wants_equal_bits(saved.q, saved.deterministic, ordered),
        )
        found = other(*map(given.get, taken))
        return dict(zip(("q", "k", "v", "sinks", *captured), found, strict=True))

    saves = " ".join([*(name for name in taken if name in known), "result"])
    forward.backward(saves, without, zeros=False, everywhere=True)(gradient)


give_gradient(dense, of_dense, without="q_scale k_scale v_scale alibi_slopes")
give_gradient(ragged, of_ragged, without="q_scale k_scale v_scale alibi_slopes")
