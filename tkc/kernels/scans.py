"""Sums: of everything, and cumulative along an axis in a single pass over memory.

cumsum is a look-back scan (Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016), with two levels so that the order of
additions, and with it every bit, is the same in every run. Program i scans its block, publishes its sum, and adds

    the sums of its predecessors in its group of GROUP programs      all published at about the same time: one wait
    the prefix of the group before                                   published by that group's last program: one short step a group

Programs that wait are run by tkc in launch order, so that nobody waits for one that has not begun. Number and status share a word of 64 bits, and no
fence is needed: word = 1 << 32 | the number's bits, or 0 where there is nothing yet.
"""
from __future__ import annotations

import tkc
from tkc.kernels.arrays import Array, contiguous, dtype_of, empty, flat, last, matrix, zeros
from tkc.kernels.blocks import ELEMENTS, PROGRAMS, parts, power
from tkc.kernels.operator import operator

LONG, GROUP = 16384, 512                        # elements of a program that shares its row with others; programs of a group
NARROW = {"bool_", "int8", "int16", "int32", "uint8", "uint16"}


def _publish(at, number): tkc.store(at, (number.to(tkc.uint32, bitcast=True).to(tkc.uint64) | (1 << 32)), sem="release")


def _wait_for(at, like, mask=None):
    """The numbers that others publish; 0 where the mask is false."""
    words = tkc.load(at, mask=mask, other=1 << 32, sem="acquire")
    lowest = words if mask is None else tkc.min(words)
    while lowest < 1 << 32:
        words = tkc.load(at, mask=mask, other=1 << 32, sem="acquire")
        lowest = words if mask is None else tkc.min(words)
    return words.to(tkc.uint32).to(like, bitcast=True)


@tkc.jit
def _cumsum(x, out, sums, prefixes, REVERSE: tkc.constexpr, N: tkc.constexpr, GROUP: tkc.constexpr):
    block, row = tkc.program_id(0), tkc.program_id(1)
    x, out, sums, prefixes = x[row], out[row], sums[row], prefixes[row]
    kind = tkc.float32 if x.dtype.is_float else tkc.int32
    start = (tkc.num_programs(0) - 1 - block if REVERSE else block) * N
    values = tkc.load(x, (start,), (N,)).to(kind)
    own, group, scanned = tkc.sum(values), block // GROUP, tkc.cumsum(values, reverse=REVERSE)
    _publish(sums.ptr + block, own)
    lanes = tkc.arange(GROUP)
    before = tkc.sum(_wait_for(sums.ptr + (group * GROUP + lanes), kind, lanes < block % GROUP))
    if group > 0: before = before + _wait_for(prefixes.ptr + (group - 1), kind)
    if block % GROUP == GROUP - 1: _publish(prefixes.ptr + group, before + own)
    tkc.store(out, (start,), (scanned + before).to(out.dtype))


@tkc.jit
def _cumsum_rows(x, out, REVERSE: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    row = tkc.program_id(0) * ROWS
    values = tkc.load(x, (row, 0), (ROWS, COLUMNS)).to(tkc.float32 if x.dtype.is_float else tkc.int32)
    tkc.store(out, (row, 0), tkc.cumsum(values, axis=1, reverse=REVERSE).to(out.dtype))


@tkc.jit
def _sum(x, out, N: tkc.constexpr):
    first = tkc.program_id(0)
    total = tkc.zeros((N,), tkc.float32 if x.dtype.is_float else tkc.int64)
    for i in tkc.range(first * N, x.shape[0], tkc.num_programs(0) * N): total = total + tkc.load(x, (i,), (N,)).to(total.dtype)
    tkc.store(out.ptr + first, tkc.sum(total).to(out.dtype))


@operator
def cumsum(x: Array, axis: int = -1, reverse: bool = False) -> Array:
    """The running sum along an axis, from its end with reverse, in x's element type: floats of 32 bits or fewer are summed in float32 and rounded once, integers of 32
    bits or fewer in int32. The same bits in every run. Raises LaunchError for other types."""
    kind = dtype_of(x)
    if not (kind in NARROW or kind in ("float32", "float16", "bfloat16")): raise tkc.LaunchError(f"cumsum takes numbers of 32 bits or fewer, got {kind}")
    turned = last(x, axis)
    out = empty(turned)
    yield last(out, axis)
    source, target = matrix(contiguous(turned)), matrix(out)
    rows, columns = source.shape
    if columns <= LONG:
        block = power(max(columns, 1))                          # a scan over warps takes whole runs
        height = max(1, min(power(rows), ELEMENTS // block))
        _cumsum_rows[tkc.cdiv(rows, height)](source, target, REVERSE=reverse, ROWS=height, COLUMNS=block)
    elif rows:
        blocks = tkc.cdiv(columns, LONG)
        words = [zeros(x, (rows, n), "uint64") for n in (blocks, tkc.cdiv(blocks, GROUP))]
        for part in parts(rows): _cumsum[blocks, part.stop - part.start](*(a[part] for a in (source, target, *words)), REVERSE=reverse, N=LONG, GROUP=GROUP)


@operator
def sum(x: Array) -> Array:
    """The sum of all elements, as an array without axes: floats in x's type, summed in float32; integers in int64. The same bits in every run."""
    floats = "float" in dtype_of(x)
    out = empty(x, (), dtype_of(x) if floats else "int64")
    yield out
    values = flat(contiguous(x))
    n = max(1024, min(power(values.shape[0]), 8192))
    programs = max(1, min(tkc.cdiv(values.shape[0], n), 4 * PROGRAMS))
    if programs == 1: _sum[1](values, out, N=n)
    else:
        parts = empty(x, (programs,), "float32" if floats else "int64")
        _sum[programs](values, parts, N=n)
        _sum[1](parts, out, N=power(programs))


@cumsum.backward(saves="axis reverse")
def _(saved, grad): return cumsum(grad, saved.axis, not saved.reverse), None, None


@sum.backward(saves="x")
def _(saved, grad): return grad.expand(saved.x.shape)
