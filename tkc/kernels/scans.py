"""Sums: of everything, and cumulative along an axis in a single pass over memory.

cumsum is a look-back scan (Merrill and Garland, "Single-pass parallel prefix scan with decoupled
look-back", 2016), with two levels so that the order of additions, and with it every bit, is the
same in every run. Program i scans its block, and publishes one word: the sum of its block, or, as
the last of a group of GROUP programs, the sum of everything up to its end. What comes before a
block is then the sum of neighbouring words, loaded at once:

    program       0     1     2     3  |  4     5     6     7  |  8        groups of 4
    word         s0    s1    s2    S3     s4    s5    s6    S7             S7 = S3 + s4 + … + s7
    program 6 adds                 S3  +  s4  + s5

Programs that wait are run by tkc in launch order, so that none waits for one that has not begun.
Number and status share a word of 64 bits, and no access is ordered after another: word =
HAS_NUMBER | the number's bits, or 0 where there is nothing yet.
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels.arrays import Array, contiguous, dtype_of, empty, flat, last, matrix, zeros
from tkc.kernels.blocks import PROGRAMS, parts, power, row_configs, rows_grid
from tkc.kernels.operator import operator

MAX_WHOLE_ROW = 8192  # elements of a row that one program scans
PART_ELEMENTS = 4096  # of a program that shares its row with others
GROUP_PROGRAMS = 256
ROWS_OF_X = rows_grid("x")
HAS_NUMBER = 1 << 32  # a word that has a number
NARROW = {"bool_", "int8", "int16", "int32", "uint8", "uint16"}


def _publish(at, number):
    tkc.store(at, number.to(tkc.uint32, bitcast=True).to(tkc.uint64) | HAS_NUMBER, sem="relaxed")


def _sum_of_words(at, wanted, kind):
    """The sum of the numbers that others publish, once all that are wanted are there."""
    words = tkc.load(at, mask=wanted, other=HAS_NUMBER, sem="relaxed")
    while not tkc.all(words >= HAS_NUMBER):
        words = tkc.load(at, mask=words < HAS_NUMBER, other=words, sem="relaxed")
    return tkc.sum(words.to(tkc.uint32).to(kind, bitcast=True))


@tkc.jit
def _cumsum(x, out, words, REVERSE: tkc.constexpr, N: tkc.constexpr, GROUP: tkc.constexpr):
    block, row, back = tkc.program_id(0), tkc.program_id(1), tkc.arange(GROUP)
    x, out, words = x[row], out[row], words[row]
    start, place = (tkc.num_programs(0) - 1 - block if REVERSE else block) * N, block % GROUP
    values = tkc.load(x, (start,), (N,)).to(tkc.float32 if x.dtype.is_float else tkc.int32)
    own = tkc.sum(values)
    if place < GROUP - 1:
        _publish(words.ptr + block, own)
    before = _sum_of_words(
        words.ptr + (block - 1 - back), (back <= place) & (back < block), values.dtype
    )
    if place == GROUP - 1:
        _publish(words.ptr + block, before + own)
    tkc.store(out, (start,), (tkc.cumsum(values, reverse=REVERSE) + before).to(out.dtype))


@tkc.autotune(row_configs("x", power), measure=False)  # a scan over warps takes whole runs
@tkc.jit
def _cumsum_rows(x, out, REVERSE: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    row = tkc.program_id(0) * ROWS
    values = tkc.load(x, (row, 0), (ROWS, COLUMNS)).to(
        tkc.float32 if x.dtype.is_float else tkc.int32
    )
    tkc.store(out, (row, 0), tkc.cumsum(values, axis=1, reverse=REVERSE).to(out.dtype))


@tkc.jit
def _sum(x, out, N: tkc.constexpr):
    first = tkc.program_id(0)
    total = tkc.zeros((N,), tkc.float32 if x.dtype.is_float else tkc.int64)
    for i in tkc.range(first * N, x.shape[0], tkc.num_programs(0) * N):
        total = total + tkc.load(x, (i,), (N,)).to(total.dtype)
    tkc.store(out.ptr + first, tkc.sum(total).to(out.dtype))


@operator
def cumsum(x: Array, axis: int = -1, reverse: bool = False) -> Iterator[Array]:
    """The running sum along an axis, from its end with reverse, in x's element type: floats of 32
    bits or fewer are summed in float32 and rounded once, integers of 32 bits or fewer in int32,
    which is the type of counts of flags. The same bits in every run. Raises LaunchError for other
    types."""
    kind = dtype_of(x)
    if not (kind in NARROW or kind in ("float32", "float16", "bfloat16")):
        raise tkc.LaunchError(f"cumsum takes numbers of 32 bits or fewer, got {kind}")
    turned = last(x, axis)
    out = empty(turned, dtype="int32" if kind == "bool_" else None)
    yield last(out, axis)
    source, target = matrix(contiguous(turned)), matrix(out)
    rows, columns = source.shape
    if columns <= MAX_WHOLE_ROW:
        _cumsum_rows[ROWS_OF_X](source, target, REVERSE=reverse)
    elif rows:
        blocks = tkc.cdiv(columns, PART_ELEMENTS)
        words = zeros(x, (rows, blocks), "uint64")
        for part in parts(rows):
            _cumsum[blocks, part.stop - part.start](
                source[part],
                target[part],
                words[part],
                REVERSE=reverse,
                N=PART_ELEMENTS,
                GROUP=GROUP_PROGRAMS,
            )


@operator
def sum(x: Array) -> Iterator[Array]:
    """The sum of all elements, as an array without axes: floats in x's type, summed in float32;
    integers in int64. The same bits in every run.
    """
    floats = "float" in dtype_of(x)
    out = empty(x, (), dtype_of(x) if floats else "int64")
    yield out
    values = flat(contiguous(x))
    n = max(1024, min(power(values.shape[0]), 8192))
    programs = max(1, min(tkc.cdiv(values.shape[0], n), 4 * PROGRAMS))
    if programs == 1:
        _sum[1](values, out, N=n)
    else:
        parts = empty(x, (programs,), "float32" if floats else "int64")
        _sum[programs](values, parts, N=n)
        _sum[1](parts, out, N=power(programs))


@cumsum.backward(saves="axis reverse")
def _(saved, grad):
    return cumsum(grad, saved.axis, not saved.reverse)


@sum.backward(saves="x")
def _(saved, grad):
    return grad.expand(saved.x.shape)
