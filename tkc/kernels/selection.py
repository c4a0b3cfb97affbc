"""Choosing and counting: the k largest elements of rows, and histograms.

topk is a tournament: programs sort blocks of a row and keep k each, the winners meet again, until one block is left. What is sorted are words of 64 bits,

    the element as an integer of the same order << 32 | the index, from above

so that one sort carries both and the first of equals wins (as in torch, NaN is larger than anything).
"""
from __future__ import annotations

import tkc
from tkc.kernels.arrays import Array, contiguous, dtype_of, empty, flat, last, matrix, power, zeros
from tkc.kernels.blocks import PROGRAMS, parts
from tkc.kernels.operator import operator

MOST, BLOCK = 1024, 1024                        # k at most; elements that a program sorts, at least


def _ordered(x):
    """Numbers as int32 of the same order; its own inverse on the bits of floats."""
    if not x.dtype.is_float: return x.to(tkc.int32)
    bits = x.to(tkc.float32).to(tkc.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7fffffff)


@tkc.jit
def _first_round(x, winners, K: tkc.constexpr, N: tkc.constexpr):
    column, row = tkc.program_id(0) * N, tkc.program_id(1)
    i = column + tkc.arange(N)
    words = (_ordered(tkc.load(x[row], (column,), (N,))).to(tkc.int64) << 32) | (0xffffffff - i.to(tkc.int64))
    words = tkc.where(i < x.shape[1], words, -(1 << 63))
    tkc.store(winners[row], (tkc.program_id(0) * K,), tkc.topk(words, K))


@tkc.jit
def _next_round(words, winners, K: tkc.constexpr, N: tkc.constexpr):
    row = tkc.program_id(1)
    tkc.store(winners[row], (tkc.program_id(0) * K,), tkc.topk(tkc.load(words[row], (tkc.program_id(0) * N,), (N,), other=-(1 << 63)), K))


@tkc.jit
def _unpack(words, values, indices, ROWS: tkc.constexpr, K: tkc.constexpr):
    row = tkc.program_id(0) * ROWS
    found = tkc.load(words, (row, 0), (ROWS, K))
    bits = (found >> 32).to(tkc.int32)
    numbers = (bits ^ ((bits >> 31) & 0x7fffffff)).to(tkc.float32, bitcast=True) if values.dtype.is_float else bits
    tkc.store(values, (row, 0), numbers.to(values.dtype))
    tkc.store(indices, (row, 0), (0xffffffff - (found & 0xffffffff)).to(indices.dtype))


@tkc.jit
def _histogram(x, out, low, scale, BINS: tkc.constexpr, N: tkc.constexpr):
    counts = tkc.zeros((BINS,), tkc.int32)
    for start in tkc.range(tkc.program_id(0) * N, x.shape[0], tkc.num_programs(0) * N):
        values, inside = tkc.load(x, (start,), (N,)), start + tkc.arange(N) < x.shape[0]
        if x.dtype.is_float:
            place = (values.to(tkc.float32) - low) * scale
            inside = inside & (place >= 0) & (place <= BINS)
            values = tkc.minimum(tkc.where(inside, place, 0).to(tkc.int32), BINS - 1)
        counts = counts + tkc.histogram(values, BINS, mask=inside)
    tkc.atomic_add(out, (0,), counts, sem="relaxed")


@operator
def topk(x: Array, k: int, axis: int = -1) -> tuple[Array, Array]:
    """The k largest elements along an axis in descending order, and their indices (int64); of equals the first. Floats and integers of 32 bits or fewer.
    Raises LaunchError where k is not 1 … min(1024, the axis's length), or for other types."""
    turned, kind = last(x, axis), dtype_of(x)
    columns = turned.shape[-1]
    if not 1 <= k <= min(MOST, columns): raise tkc.LaunchError(f"topk of {columns} elements: k is 1 to {min(MOST, columns)}, got {k}")
    if "64" in kind or kind == "uint32": raise tkc.LaunchError(f"topk takes numbers of 32 bits or fewer, got {kind}")
    shape = (*turned.shape[:-1], k)
    values, indices = empty(turned, shape), empty(turned, shape, "int64")
    yield last(values, axis), last(indices, axis)
    source = matrix(contiguous(turned))
    rows, n, kernel = source.shape[0], max(BLOCK, 2 * power(k)), _first_round
    if not rows: return
    while kernel is _first_round or source.shape[1] > k:
        blocks = tkc.cdiv(source.shape[1], n)
        found = empty(x, (rows, blocks * k), "int64")
        for part in parts(rows): kernel[blocks, part.stop - part.start](source[part], found[part], K=k, N=min(n, max(power(source.shape[1]), power(k))))
        source, kernel = found, _next_round
    height = max(1, 1024 // power(k))
    _unpack[tkc.cdiv(rows, height)](source, matrix(values), matrix(indices), ROWS=height, K=k)


@operator
def histogram(x: Array, bins: int, low: float = 0.0, high: float = 1.0) -> Array:
    """How often (int32) each of 0 … bins - 1 occurs among integers; of floats, how many lie in each of `bins` equal parts of [low, high], high itself in the last.
    What lies outside is not counted. Raises LaunchError unless 1 <= bins <= 16384 and low < high."""
    if not 1 <= bins <= 1 << 14: raise tkc.LaunchError(f"histogram: bins are 1 to {1 << 14}, got {bins}")
    if not low < high: raise tkc.LaunchError(f"histogram: expected low < high, got {low} and {high}")
    out = zeros(x, (bins,), "int32")
    yield out
    values = flat(contiguous(x))
    _histogram[max(1, min(tkc.cdiv(values.shape[0], 4096), 4 * PROGRAMS))](values, out, float(low), bins / (high - low), BINS=bins, N=4096)


@topk.backward(saves="x result axis")
def _(saved, grad, _): return saved.x.new_zeros(saved.x.shape).scatter(saved.axis, saved.result[1], grad), None, None
