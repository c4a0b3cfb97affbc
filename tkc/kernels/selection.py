"""Choosing and counting: the k largest elements of rows, and histograms.

What topk compares are words, integers of the same order as the elements with the index, from above,
below them: one sort carries both, and the first of equals wins (as in torch, NaN is larger than
anything). A row of up to 2048 elements is one block. Of a longer one, cut in chunks, the k largest
elements lie in the k chunks with the largest maxima:

    131072 elements
    -> 4096 maxima of chunks of 32, the only step that reads all
    -> 64 of them by a tournament
    -> the 2048 elements of those chunks
    -> 64

For an element in another chunk, each of the k chunks has one that comes before it. Where k is too
large for that, the elements themselves meet in the tournament: programs keep the largest of each
block, until one block is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt, prod
from typing import Any

import tkc
from tkc.kernels.arrays import Array, contiguous, dtype_of, empty, flat, last, matrix, power, zeros
from tkc.kernels.blocks import PROGRAMS, parts
from tkc.kernels.operator import operator

# k at most; elements of a row that is one block; of what a warp sorts, at least
MAX_K, MAX_BLOCK_ROW, MIN_SORTED_PART = 1024, 2048, 512
MAX_COUNT = (1 << 31) - 1  # that a bin holds
LOWEST_WORDS = -(1 << 63), -(1 << 31)  # a word below all others, of 64 bits and of 32
SHORT_TYPES = {"bool_", "int8", "int16", "uint8", "bfloat16", "float16"}


def ordered(x: Any) -> Any:
    """Numbers as integers of the same order, -0 below 0, NaN as the largest."""
    if not x.dtype.is_float:
        return x.to(tkc.int32)
    bits = x.to(tkc.float32).to(tkc.int32, bitcast=True)
    return tkc.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


def _words(x, index, here, SHORT: tkc.constexpr):
    """Elements and their indices, those that are not here below all others. SHORT: in 32 bits, of
    elements of 16 and fewer, with an index of 16.
    """
    if SHORT:
        bits = x.to(tkc.int16, bitcast=True).to(tkc.int32) if x.dtype.is_float else x.to(tkc.int32)
        if x.dtype.is_float:
            bits = tkc.where(x == x, bits ^ ((bits >> 15) & 0x7FFF), 0x7FFF)
        words = (bits << 16) | (0xFFFF - index)
    else:
        words = (ordered(x).to(tkc.int64) << 32) | (0xFFFFFFFF - index.to(tkc.int64))
    return tkc.where(here, words, LOWEST_WORDS[SHORT])


def _best(words, K):
    """The K (a power of two) largest words of a block: warps sort a part each, and the winners meet
    again.
    """
    n, part = words.shape[0], max(MIN_SORTED_PART, 2 * K)
    while n > part:
        words = tkc.topk(words.reshape(n // part, part), K, axis=1).reshape(n // part * K)
        n = n // part * K
    return tkc.topk(words, K)


def _index(words, SHORT: tkc.constexpr):
    return 0xFFFF - (words & 0xFFFF) if SHORT else 0xFFFFFFFF - (words & 0xFFFFFFFF)


def _put(words, values, indices, row, SHORT: tkc.constexpr, index=None):
    """Words of rows, back as elements and their indices."""
    key, dtype = (words >> (16 if SHORT else 32)).to(tkc.int32), values.dtype
    tkc.store(
        indices, (row, 0), (_index(words, SHORT) if index is None else index).to(indices.dtype)
    )
    if not dtype.is_float:
        tkc.store(values, (row, 0), key.to(dtype))
    elif SHORT:
        tkc.store(
            values, (row, 0), (key ^ ((key >> 15) & 0x7FFF)).to(tkc.int16).to(dtype, bitcast=True)
        )
    else:
        tkc.store(
            values,
            (row, 0),
            (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tkc.float32, bitcast=True).to(dtype),
        )


@tkc.jit
def _topk_rows(
    x,
    values,
    indices,
    SHORT: tkc.constexpr,
    ROWS: tkc.constexpr,
    K: tkc.constexpr,
    N: tkc.constexpr,
):
    row, column = tkc.program_id(0) * ROWS, tkc.arange(N)[None, :]
    block = tkc.load(x, (row, 0), (ROWS, N))
    words = _words(block, tkc.broadcast_to(column, (ROWS, N)), column < x.shape[1], SHORT)
    _put(tkc.topk(words, K, axis=1), values, indices, row, SHORT)


@tkc.jit
def _chunk_maxima(x, words, SHORT: tkc.constexpr, CHUNK: tkc.constexpr, N: tkc.constexpr):
    block, row = tkc.program_id(0) * N, tkc.program_id(1)
    low = (
        -float("inf")
        if x.dtype.is_float
        else 0
        if x.dtype.kind in ("uint", "bool")
        else -(1 << x.dtype.bits - 1)
    )
    top = tkc.max(tkc.load(x[row], (block,), (N,), other=low).reshape(N // CHUNK, CHUNK), axis=1)
    tkc.store(
        words[row],
        (block // CHUNK,),
        _words(top, block // CHUNK + tkc.arange(N // CHUNK), True, SHORT),
    )


@tkc.jit
def _in_order(winners, chunks, SHORT: tkc.constexpr, K: tkc.constexpr):
    row = tkc.program_id(0)
    tkc.store(
        chunks[row], (0,), tkc.sort(_index(tkc.load(winners[row], (0,), (K,)), SHORT).to(tkc.int32))
    )


@tkc.jit
def _largest_of_chunks(
    x, chunks, values, indices, SHORT: tkc.constexpr, CHUNK: tkc.constexpr, K: tkc.constexpr
):
    # chunks are in the order of the row: of equals the first wins here too
    row, place = (
        tkc.program_id(0),
        tkc.arange(K * CHUNK),
    )
    i = (tkc.load(chunks[row], (0,), (K,))[:, None] * CHUNK + tkc.arange(CHUNK)[None, :]).reshape(
        K * CHUNK
    )
    here = (i >= 0) & (i < x.shape[1])
    best = _best(_words(tkc.load(x[row].ptr + i, mask=here), place, here, SHORT), K)
    place = _index(best, SHORT).to(tkc.int32)
    index = (
        tkc.load(chunks[row].ptr + place // CHUNK, mask=place < K * CHUNK) * CHUNK + place % CHUNK
    )
    _put(best[None, :], values, indices, row, SHORT, index[None, :])


@tkc.jit
def _first_round(x, winners, K: tkc.constexpr, N: tkc.constexpr):
    column, row = tkc.program_id(0) * N, tkc.program_id(1)
    i = column + tkc.arange(N)
    tkc.store(
        winners[row],
        (tkc.program_id(0) * K,),
        _best(_words(tkc.load(x[row], (column,), (N,)), i, i < x.shape[1], False), K),
    )


@tkc.jit
def _next_round(words, winners, K: tkc.constexpr, N: tkc.constexpr):
    row = tkc.program_id(1)
    tkc.store(
        winners[row],
        (tkc.program_id(0) * K,),
        _best(
            tkc.load(
                words[row],
                (tkc.program_id(0) * N,),
                (N,),
                other=LOWEST_WORDS[words.dtype.bits == 32],
            ),
            K,
        ),
    )


@tkc.jit
def _unpack(words, values, indices, ROWS: tkc.constexpr, K: tkc.constexpr):
    row = tkc.program_id(0) * ROWS
    _put(tkc.load(words, (row, 0), (ROWS, K)), values, indices, row, False)


@tkc.jit
def _histogram(x, out, low, high, scale, BINS: tkc.constexpr, N: tkc.constexpr):
    counts = tkc.zeros((BINS,), tkc.int32)
    for start in tkc.range(tkc.program_id(0) * N, x.shape[0], tkc.num_programs(0) * N):
        values, inside = tkc.load(x, (start,), (N,)), start + tkc.arange(N) < x.shape[0]
        if x.dtype.is_float:
            values = values.to(tkc.float32)
            # of numbers, not of places: these are rounded beyond the ends
            inside = inside & (values >= low) & (values <= high)
            place = tkc.where(inside, (values - low) * scale, 0)
            values = tkc.minimum(place.to(tkc.int32), BINS - 1)
        counts = counts + tkc.histogram(values, BINS, mask=inside)
    tkc.atomic_add(out, (0,), counts, sem="relaxed")


@operator
def topk(x: Array, k: int, axis: int = -1) -> Iterator[tuple[Array, Array]]:
    """The k largest elements along an axis in descending order, and their indices (int64); of
    equals the first, of which -0 is not 0, but below. Floats and integers of 32 bits or fewer.
    Raises LaunchError where k is not 1 … min(1024, the axis's length), or for other types."""
    turned, kind = last(x, axis), dtype_of(x)
    columns = turned.shape[-1]
    if not 1 <= k <= min(MAX_K, columns):
        raise tkc.LaunchError(
            f"topk of {columns} elements: k is 1 to {min(MAX_K, columns)}, got {k}"
        )
    if "64" in kind or kind == "uint32":
        raise tkc.LaunchError(f"topk takes numbers of 32 bits or fewer, got {kind}")
    shape = (*turned.shape[:-1], k)
    values, indices = empty(turned, shape), empty(turned, shape, "int64")
    yield last(values, axis), last(indices, axis)
    source, best, places, most = (
        matrix(contiguous(turned)),
        matrix(values),
        matrix(indices),
        power(k),
    )
    rows, short = source.shape[0], kind in SHORT_TYPES
    if not rows:
        return
    # more are no longer the first of a sort, but all of it
    if columns <= MIN_SORTED_PART or columns <= MAX_BLOCK_ROW and most <= (64 if short else 32):
        block = max(power(columns), most)
        height = max(1, min(power(rows), (8192 if short else 4096) // block))
        return _topk_rows[tkc.cdiv(rows, height)](
            source, best, places, SHORT=short, ROWS=height, K=most, N=block
        )
    # as many maxima as elements in the chunks that are left, about
    chunk = 1 << max(1, min(64, MAX_BLOCK_ROW // most, isqrt(columns // most))).bit_length() - 1
    if chunk < 8:
        words, height = _tournament(source, _first_round, most), max(1, 1024 // most)
        return _unpack[tkc.cdiv(rows, height)](words, best, places, ROWS=height, K=most)
    chunks, n = tkc.cdiv(columns, chunk), 128 * chunk
    short = short and chunks <= 1 << 16
    words = empty(x, (rows, chunks), "int32" if short else "int64")
    for part in parts(rows):
        _chunk_maxima[tkc.cdiv(columns, n), part.stop - part.start](
            source[part], words[part], SHORT=short, CHUNK=chunk, N=n
        )
    chosen = empty(x, (rows, most), "int32")
    _in_order[rows](_tournament(words, _next_round, most), chosen, SHORT=short, K=most)
    _largest_of_chunks[rows](source, chosen, best, places, SHORT=short, CHUNK=chunk, K=most)


def _tournament(source: Array, kernel, k: int) -> Array:
    """The k largest words of each row, k a power of two."""
    while kernel is _first_round or source.shape[1] > k:
        rows, columns = source.shape
        n = max(2 * k, min(4096 if k <= 64 else 1024, power(columns)))
        found = empty(
            source,
            (rows, tkc.cdiv(columns, n) * k),
            "int64" if kernel is _first_round else dtype_of(source),
        )
        for part in parts(rows):
            kernel[tkc.cdiv(columns, n), part.stop - part.start](
                source[part], found[part], K=k, N=n
            )
        source, kernel = found, _next_round
    return source


@operator
def histogram(x: Array, bins: int, low: float = 0.0, high: float = 1.0) -> Iterator[Array]:
    """How often (int32) each of 0 … bins - 1 occurs among integers; of floats, how many lie in each
    of `bins` equal parts of [low, high], high itself in the last. What lies outside is not counted.
    Raises LaunchError unless 1 <= bins <= 16384 and low < high, and of more elements than int32
    counts.
    """
    if prod(x.shape) > MAX_COUNT:
        raise tkc.LaunchError(
            f"histogram counts up to {MAX_COUNT} elements, got {prod(x.shape)}; add up the"
            " histograms of parts of x"
        )
    if not 1 <= bins <= 1 << 14:
        raise tkc.LaunchError(f"histogram: bins are 1 to {1 << 14}, got {bins}")
    if not low < high:
        raise tkc.LaunchError(f"histogram: expected low < high, got {low} and {high}")
    out = zeros(x, (bins,), "int32")
    yield out
    values = flat(contiguous(x))
    _histogram[max(1, min(tkc.cdiv(values.shape[0], 4096), 4 * PROGRAMS))](
        values, out, float(low), float(high), bins / (high - low), BINS=bins, N=4096
    )


@topk.backward(saves="x result axis")
def _(saved, grad, _):
    return saved.x.new_zeros(saved.x.shape).scatter(saved.axis, saved.result[1], grad)
