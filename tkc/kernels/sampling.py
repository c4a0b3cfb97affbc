"""Drawing tokens from logits, sorting rows, and moving rows between beams.

    p = softmax(x / T) of the tokens that are kept; the token drawn is argmax of x / T − log(−log u)
    top-k    the k largest;  top-p  of those the fewest whose probabilities add up to P or more
    min-p    those at least as probable as min_p times the most probable one

No row is sorted for a draw: the least element that is kept is found by cutting the interval of
the elements' bits, which are ordered as the elements are, into four, each time with the counts, or
masses, of what is above three bounds. Of equal elements at the boundary the first are kept. u is
philox's of seed, row and token, so that the same seed gives the same tokens.

A long row is sorted in parts, which are merged in pairs: an element's place is its place in its
part, and how many of the other part come before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import e, inf, log2

import tkc
from tkc.kernels.arrays import (
    Array,
    contiguous,
    dtype_of,
    empty,
    expect,
    flat,
    floats,
    last,
    matrix,
    power,
)
from tkc.kernels.blocks import row_block
from tkc.kernels.operator import operator
from tkc.kernels.selection import ordered

BLOCK, MEASURED = 4096, 16384  # elements of a row at once
INFINITE = -0x7F800001  # −∞ by its ordered bits
LOWEST = -(1 << 31)
# of the bits of a short float's float32 the last ones are zeros
ZEROS = {"bfloat16": 16, "float16": 13, "float32": 0}
SORTED, MERGED = 512, 1024  # elements of a program that sorts, and of one that merges
WHOLE = 512  # of a row that is sorted at once


# ---- drawing -------------------------------------------------------------------------------------
def _number_of(bits):
    """The float32 whose ordered bits these are."""
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tkc.float32, bitcast=True)


def _measured(x, bounds, top, rate, COUNT, MASS, N):
    """How many elements are each bound or more, and the mass of these, where they are asked for."""
    counts, masses = [0 for _ in bounds], [0.0 for _ in bounds]
    for at in tkc.range(0, x.shape[0], N):
        values = tkc.load(x, (at,), (N,), other=-inf).to(tkc.float32)
        there = [values >= bound for bound in bounds]
        if COUNT:
            counts = [n + tkc.sum(tkc.where(t, 1, 0)) for n, t in zip(counts, there, strict=True)]
        if MASS:
            mass = tkc.exp2((values - top) * rate)
            masses = [
                m + tkc.sum(tkc.where(t, mass, 0.0)) for m, t in zip(masses, there, strict=True)
            ]
    return counts, masses


def _boundary(x, lower, upper, goal, MASS, top, rate, ZERO, N):
    """The largest number, by its ordered bits without zeros at their end, at which the mass, or
    the count, of what is as large reaches a goal: it does at lower, and not at upper."""
    while lower + 1 < upper:
        step, good = tkc.maximum((upper >> 2) - (lower >> 2), 1), True
        marks = [tkc.minimum(lower + i * step, upper - 1) for i in (1, 2, 3)]
        bounds = [_number_of(mark << ZERO) for mark in marks]
        found = _measured(x, bounds, top, rate, not MASS, MASS, N)[MASS]
        for mark, reached in zip(marks, found, strict=True):
            before, good = good, good & (reached >= goal)
            upper = tkc.where(before & (reached < goal), mark, upper)
            lower = tkc.where(good, mark, lower)
    return lower


def _about(x, lower, top, rate, ZERO, N):
    """(count, mass) of what is `lower` or more, and of what is more, and the mass of an element
    between."""
    bounds = [_number_of(bits << ZERO) for bits in (lower, lower + 1)]
    (count, more), (mass, above) = _measured(x, bounds, top, rate, True, True, N)
    each = (mass - above) / tkc.maximum(count - more, 1).to(tkc.float32)
    return (count, mass), (more, above), each


def _noise(seed, row, at, N):
    """−log(−log u) of a row's tokens."""
    which = (at // 4 + tkc.arange(N // 4)).to(tkc.int64) + (row.to(tkc.int64) << 32)
    bits = tkc.philox(seed, which)
    a, b, c, d = ((word >> 8).to(tkc.float32) * 2.0**-24 + 2.0**-25 for word in bits)
    pairs = tkc.join(tkc.join(a, b), tkc.join(c, d)).permute(0, 2, 1)
    return -tkc.log(-tkc.log(pairs.reshape(N)))


def _number(of_rows, row, number):
    """A number of a row, or of all."""
    return number if of_rows is None else of_rows[row]


@tkc.jit
def _keep(
    logits,
    bounds,
    equals,
    temperature,
    top_k,
    top_p,
    min_p,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    ZERO: tkc.constexpr,
    N: tkc.constexpr,
):
    """bounds: of a row the least number that is kept, the next one, the largest, what a difference
    is multiplied by for a power of two, and what min-p keeps; equals: how many that are the least
    are kept."""
    row = tkc.program_id(0)
    x, warmth = logits[row], _number(temperatures, row, temperature)
    k, p = _number(top_ks, row, top_k), _number(top_ps, row, top_p)
    highest = tkc.full((N,), -inf)
    for at in tkc.range(0, x.shape[0], N):
        values = tkc.load(x, (at,), (N,), other=-inf).to(tkc.float32)
        highest = tkc.maximum(highest, tkc.where(values == values, values, -inf))
    top = tkc.max(highest)
    greedy = warmth <= 0
    rate = tkc.where(greedy, 0.0, log2(e) / tkc.where(greedy, 1.0, warmth))
    k = tkc.where(greedy, 1, tkc.where((k <= 0) | (k > x.shape[0]), x.shape[0], k))
    upper = (tkc.max(ordered(highest)) >> ZERO) + 1
    lower, ties, mass = INFINITE >> ZERO, x.shape[0], 0.0
    if k < x.shape[0]:
        lower = _boundary(x, lower, upper, k, False, top, rate, ZERO, N)
    if (k < x.shape[0]) | (p < 1):
        found, above, each = _about(x, lower, top, rate, ZERO, N)
        ties = tkc.minimum(k - above[0], ties)
        mass = above[1] + ties.to(tkc.float32) * each
    if p < 1:
        goal = tkc.maximum(p * mass, 1e-30)  # the largest is kept always
        before, most = lower, ties
        lower = _boundary(x, lower, upper, goal, True, top, rate, ZERO, N)
        found, above, each = _about(x, lower, top, rate, ZERO, N)
        needed = tkc.ceil((goal - above[1]) / tkc.where(each > 0, each, 1.0)).to(tkc.int32)
        ties = tkc.where(lower == before, tkc.minimum(most, needed), needed)
        ties = tkc.maximum(ties, tkc.where(above[0] == 0, 1, 0))
    share = _number(min_ps, row, min_p)
    floor = tkc.where(share > 0, top + tkc.log(tkc.maximum(share, 1e-38)) * warmth, -inf)
    floor, one = tkc.where(greedy, -inf, floor), tkc.zeros((1,))
    least = _number_of(lower << ZERO), _number_of((lower + 1) << ZERO)
    for i, number in enumerate((*least, top, rate, floor)):
        tkc.store(bounds[i], (row,), number + one)
    tkc.store(equals, (row,), ties + tkc.zeros((1,), tkc.int32))


@tkc.jit
def _draw(logits, bounds, equals, out, seed, N: tkc.constexpr):
    """Of what is kept, the first of equals, that with the largest sum of logarithm and noise."""
    row = tkc.program_id(0)
    x, ties, seen = logits[row], equals[row], 0
    least, more, top, rate, floor = (bounds[i, row] for i in range(5))
    best, token = tkc.full((N,), -inf), tkc.zeros((N,), tkc.int32)
    for at in tkc.range(0, x.shape[0], N):
        values = tkc.load(x, (at,), (N,), other=-inf).to(tkc.float32)
        kept = (values >= more) & (values >= floor)
        equal = (values >= least) & (values < more) & (at + tkc.arange(N) < x.shape[0])
        if tkc.any(kept | equal):
            equal = tkc.where(equal, 1, 0)
            first = seen + tkc.cumsum(equal) - equal < ties
            kept = kept | ((equal > 0) & first & (values >= floor))
            score = (values - top) * (rate / log2(e)) + _noise(seed, row, at, N)
            score = tkc.where(kept, score, -inf)
            token = tkc.where(score > best, at + tkc.arange(N), token)
            best = tkc.maximum(best, score)
            seen = seen + tkc.sum(equal)
    token = tkc.min(tkc.where(best == tkc.max(best), token, 0x7FFFFFFF))
    tkc.store(out, (row,), token.to(out.dtype) + tkc.zeros((1,), out.dtype))


@operator(varies="seed")
def sample(
    logits: Array,
    seed: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    temperatures: Array | None = None,
    top_ks: Array | None = None,
    top_ps: Array | None = None,
    min_ps: Array | None = None,
) -> Iterator[Array]:
    """A token of each row, int64 [rows], drawn from softmax(logits / temperature) of what is kept:
    the top_k largest (0: all), of these the fewest with probabilities that add up to top_p or more,
    and none below min_p times the largest.

    logits: [rows, tokens] of bfloat16, float16 or float32; NaN counts as −∞. A temperature of 0
    takes the largest, the first of equals. temperatures, top_ks, …: a number each row instead,
    float32 (top_ks int32) [rows]. The same seed gives the same tokens, on every device. Raises
    LaunchError where shapes or types do not fit.
    """
    if len(logits.shape) != 2 or not logits.shape[1]:
        raise tkc.LaunchError(f"sample: logits are [rows, tokens], got {list(logits.shape)}")
    floats(logits)
    if (kind := dtype_of(logits)) not in ZEROS:
        raise tkc.LaunchError(f"sample takes {', '.join(ZEROS)}, got {kind}; convert the logits")
    rows = logits.shape[0]
    for name, given in (
        ("temperatures", temperatures),
        ("top_ks", top_ks),
        ("top_ps", top_ps),
        ("min_ps", min_ps),
    ):
        expect(given, (rows,), name)
    out = empty(logits, (rows,), "int64")
    yield out
    logits, length = contiguous(logits), max(128, power(logits.shape[1]))
    bounds, equals = empty(logits, (5, rows), "float32"), empty(logits, (rows,), "int32")
    _keep[rows](
        logits,
        bounds,
        equals,
        float(temperature),
        top_k,
        float(top_p),
        float(min_p),
        temperatures,
        top_ks,
        top_ps,
        min_ps,
        ZERO=ZEROS[kind],
        N=min(MEASURED, length),
    )
    _draw[rows](logits, bounds, equals, out, seed, N=min(BLOCK, length))


@tkc.jit
def _argmax(x, out, ROWS: tkc.constexpr, N: tkc.constexpr):
    row = tkc.program_id(0) * ROWS
    best, place = tkc.full((ROWS, N), LOWEST, tkc.int32), tkc.zeros((ROWS, N), tkc.int32)
    for at in tkc.range(0, x.shape[1], N):
        here = (at + tkc.arange(N) < x.shape[1])[None, :]
        bits = tkc.where(here, ordered(tkc.load(x, (row, at), (ROWS, N))), LOWEST)
        better = (bits > best) | here & (at == 0)
        best = tkc.where(better, bits, best)
        place = tkc.where(better, (at + tkc.arange(N))[None, :], place)
    top = tkc.max(best, axis=1)[:, None]
    inside = (tkc.arange(N) < x.shape[1])[None, :]
    first = tkc.min(tkc.where((best == top) & inside, place, 0x7FFFFFFF), axis=1)
    tkc.store(out, (row,), first.to(out.dtype))


def _check_sorted(x: Array, name: str) -> None:
    """Raises LaunchError for elements that ordered bits of 32 do not hold."""
    if "64" in (kind := dtype_of(x)) or kind == "uint32":
        raise tkc.LaunchError(f"{name} takes numbers of 32 bits or fewer, got {kind}")


@operator
def argmax(x: Array, axis: int = -1) -> Iterator[Array]:
    """The index (int64) of the largest element along an axis, the first of equals; NaN is larger
    than anything. Raises LaunchError where the axis has no elements, or for numbers of 64 bits.
    """
    turned = last(x, axis)
    _check_sorted(x, "argmax")
    if not turned.shape[-1]:
        raise tkc.LaunchError("argmax of no elements; give the axis one or more")
    out = empty(x, turned.shape[:-1], "int64")
    yield out
    rows = matrix(contiguous(turned))
    height, width = row_block(rows.shape[0], min(rows.shape[1], BLOCK))
    _argmax[tkc.cdiv(rows.shape[0], height)](rows, flat(out), ROWS=height, N=width)


# ---- sorting -------------------------------------------------------------------------------------
def _word(x, index, DESCENDING):
    """An element with its index below it, in 64 bits of the order that is wanted."""
    bits = ordered(x)
    return ((~bits if DESCENDING else bits).to(tkc.int64) << 32) | index.to(tkc.int64)


def _put_sorted(words, values, indices, row, at, DESCENDING):
    """Words as elements and indices."""
    bits, dtype = (words >> 32).to(tkc.int32), values.dtype
    bits = ~bits if DESCENDING else bits
    if dtype.is_float:
        bits = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tkc.float32, bitcast=True)
    tkc.store(values, (row, at), bits.to(dtype))
    tkc.store(indices, (row, at), (words & 0xFFFFFFFF).to(indices.dtype))


@tkc.jit
def _sort_parts(
    x,
    words,
    values,
    indices,
    DESCENDING: tkc.constexpr,
    ROWS: tkc.constexpr,
    N: tkc.constexpr,
):
    row, at = tkc.program_id(0) * ROWS, tkc.program_id(1) * N
    i = tkc.broadcast_to((at + tkc.arange(N))[None, :], (ROWS, N))
    found = _word(tkc.load(x, (row, at), (ROWS, N)), i, DESCENDING)
    found = tkc.sort(tkc.where(i < x.shape[1], found, 0x7FFFFFFFFFFFFFFF), axis=1)
    if words is None:
        _put_sorted(found, values, indices, row, at, DESCENDING)
    else:
        tkc.store(words, (row, at), found)


@tkc.jit
def _merge(
    words,
    out,
    values,
    indices,
    part,
    DESCENDING: tkc.constexpr,
    STEPS: tkc.constexpr,
    N: tkc.constexpr,
):
    """Pairs of sorted parts become one: element i of one part goes behind those of the other that
    are smaller, found by halving.
    """
    row, i = tkc.program_id(1), tkc.program_id(0) * N + tkc.arange(N)
    length, mine = words.shape[1], i // part
    here, start = i < length, (mine ^ 1) * part
    held = tkc.load(words[row].ptr + i, mask=here)
    count = tkc.maximum(tkc.minimum(length - start, part), 0)
    low, high = tkc.zeros((N,), tkc.int32), count
    for _ in tkc.range(STEPS):
        middle = (low + high) // 2
        open_ = here & (low < high)
        other = tkc.load(words[row].ptr + (start + middle), mask=open_)
        low = tkc.where(open_ & (other < held), middle + 1, low)
        high = tkc.where(open_ & (other >= held), middle, high)
    to = (mine // 2) * (2 * part) + (i - mine * part) + low
    if values is None:
        tkc.store(out[row].ptr + to, held, mask=here)
    else:
        bits = (held >> 32).to(tkc.int32)
        bits = ~bits if DESCENDING else bits
        if values.dtype.is_float:
            bits = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tkc.float32, bitcast=True)
        tkc.store(values[row].ptr + to, bits.to(values.dtype), mask=here)
        tkc.store(indices[row].ptr + to, held & 0xFFFFFFFF, mask=here)


@operator
def sort(x: Array, axis: int = -1, descending: bool = False) -> Iterator[tuple[Array, Array]]:
    """The elements along an axis in order, and their indices (int64): a stable sort, NaN last
    (descending: first). Numbers of 32 bits or fewer. Raises LaunchError for others.
    """
    turned = last(x, axis)
    _check_sorted(x, "sort")
    values, indices = empty(turned, turned.shape), empty(turned, turned.shape, "int64")
    yield last(values, axis), last(indices, axis)
    source, found, places = (matrix(contiguous(turned)), matrix(values), matrix(indices))
    rows, columns = source.shape
    if not rows or not columns:
        return
    n = min(SORTED, power(columns))
    height = max(1, min(power(rows), SORTED // n))
    parts, whole = tkc.cdiv(columns, n), columns <= WHOLE
    words: Array = None if whole else empty(x, (rows, parts * n), "int64")
    _sort_parts[tkc.cdiv(rows, height), parts](
        source, words, found, places, DESCENDING=descending, ROWS=height, N=n
    )
    if whole:
        return
    other, part = empty(x, (rows, parts * n), "int64"), n
    grid = tkc.cdiv(columns, MERGED), rows
    while part < columns:
        final = 2 * part >= columns
        _merge[grid](
            words[:, :columns],
            None if final else other[:, :columns],
            found if final else None,
            places if final else None,
            part,
            DESCENDING=descending,
            STEPS=part.bit_length(),
            N=MERGED,
        )
        words, other, part = other, words, 2 * part


@sort.backward(saves="x result axis")
def _(saved, grad, _):
    found = saved.x.new_zeros(saved.x.shape).scatter(saved.axis, saved.result[1], grad)
    return found, None, None


# ---- beams ---------------------------------------------------------------------------------------
@tkc.jit
def _beam_gather(x, parents, out, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    row, column, z = tkc.program_id(0) * ROWS, tkc.program_id(1) * COLUMNS, tkc.program_id(2)
    which = tkc.load(parents[z], (row,), (ROWS,), other=-1)
    tkc.store(out[z], (row, column), tkc.load(x[z], (which, column), (ROWS, COLUMNS)))


@operator
def beam_gather(x: Array, parents: Array) -> Iterator[Array]:
    """What each beam takes over from its parent, such as a cache: out[b, i] = x[b, parents[b, i]].
    x: [batch, beams, …]; parents: integers [batch, new beams]; one outside of the beams gives
    zeros. Raises LaunchError where shapes do not fit.
    """
    if len(x.shape) < 2 or len(parents.shape) != 2 or parents.shape[0] != x.shape[0]:
        raise tkc.LaunchError(
            "beam_gather: x is [batch, beams, …] and parents [batch, new beams], got"
            f" {list(x.shape)} and {list(parents.shape)}"
        )
    out = empty(x, (*parents.shape, *x.shape[2:]))
    yield out
    if 0 in out.shape or not x.shape[1]:
        return
    batch, beams = x.shape[:2]
    columns = flat(x).shape[0] // (batch * beams)
    height, width = min(4, power(parents.shape[1])), min(1024, power(columns))
    _beam_gather[tkc.cdiv(parents.shape[1], height), tkc.cdiv(columns, width), batch](
        contiguous(x).reshape((batch, beams, columns)),
        contiguous(parents),
        out.reshape((batch, parents.shape[1], columns)),
        ROWS=height,
        COLUMNS=width,
    )
