"""Drawing tokens from logits, sorting rows, and moving rows between beams.

    p = softmax(x / T) of the tokens that are kept; the token drawn is argmax of x / T − log(−log u)
    top-k    the k largest;  top-p  of those the fewest whose probabilities add up to P or more
    min-p    those at least as probable as min_p times the most probable one

No row is sorted for a draw: the least element that is kept is found by halving the interval of
the elements' bits, which are ordered as the elements are, each time with a count and a mass of all
that is above. Of equal elements at the boundary the first are kept. u is philox's of seed, row and
token, so that the same seed gives the same tokens. Of a long row, all programs find the largest
element of each chunk first: what k chunks have, or chunks of the mass that is asked for, bounds
from below what is kept, and only chunks that reach it are looked at.

A long row is sorted in parts, which are merged in pairs: an element's place is its place in its
part, and how many of the other part come before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import e, inf, log2

import tkc
from tkc.kernels.arrays import (
    Array,
    at_the_end,
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
from tkc.kernels.blocks import parts, row_block
from tkc.kernels.operator import operator
from tkc.kernels.selection import ordered

BLOCK = 4096  # elements of a row at once
DRAWN = 2048  # of a row from which a token is drawn
# of a row, at most; elements of one, at least; of a program that finds their largest
MAX_CHUNKS, MIN_CHUNK, CHUNKS = 4096, 16, 128
BEYOND = 1 << 30  # a token that no row has
LOWEST, LARGEST = -(1 << 31), 2.0**128 - 2.0**104  # the largest float32
# of the bits of a short float's float32 the last ones are zeros
ZEROS = {"bfloat16": 16, "float16": 13, "float32": 0}
SORTED, MERGED = 512, 1024  # elements of a program that sorts, and of one that merges
WHOLE = 512  # of a row that is sorted at once


# ---- drawing -------------------------------------------------------------------------------------
def _numbered(row, given, of_rows):
    """The numbers of a row: its own where there is an array of them, else those of all."""
    return [one if own is None else own[row] for one, own in zip(given, of_rows, strict=True)]


def _wanted(row, tokens, given, of_rows):
    """What a row asks for: whether the largest, the factor of exponents of two, k and top-p."""
    warmth, k, p, _ = _numbered(row, given, of_rows)
    greedy = warmth <= 0
    rate = tkc.where(greedy, 0.0, log2(e) / tkc.where(greedy, 1.0, warmth))
    k = tkc.where(greedy, 1, tkc.where((k <= 0) | (k > tokens), tokens, k))
    return greedy, rate, k, p


def _floor(row, top, given, of_rows):
    """The least element of a row that min-p keeps; −∞ where there is none, or no temperature."""
    warmth, _, _, share = _numbered(row, given, of_rows)
    floor = top + tkc.log(tkc.maximum(share, 1e-38)) * warmth
    return tkc.where((share > 0) & (warmth > 0), floor, -inf)


def _tokens(chunks, at, CHUNK, N):
    """Tokens of N places from `at` on: of the row itself, or of chunks of it, each a row."""
    if chunks is None:
        return at + tkc.arange(N)
    which = tkc.load(chunks, (at // CHUNK,), (N // CHUNK,), other=BEYOND // CHUNK)
    return which[:, None] * CHUNK + tkc.arange(CHUNK)[None, :]


def _extents(chunks, CHUNK, N):
    """Of a part of what is looked at."""
    return (N,) if chunks is None else (N // CHUNK, CHUNK)


def _without_nan(values):
    """As finite float32, NaN as the least: a difference of halves of two is a number."""
    return tkc.minimum(tkc.fmax(_with_one_zero(values), -LARGEST), LARGEST)


def _exponent(values, top, rate):
    """Of two, of the share of values beside the largest."""
    return (values * 0.5 - top * 0.5) * (2 * rate)


def _with_one_zero(values):
    """Floats as float32, -0 as the 0 that it equals: their ordered bits differ."""
    return values.to(tkc.float32) + 0.0 if values.dtype.is_float else values


def _ordered(values, ZERO):
    """Their bits in order; ZERO last ones, which say nothing, are zeros in negative ones too."""
    return (ordered(values) >> ZERO) << ZERO


def _part(x, chunks, at, ZERO, CHUNK, N):
    """A part of what is looked at: values, their ordered bits, their tokens."""
    tokens = _tokens(chunks, at, CHUNK, N)
    if chunks is None:
        values = tkc.load(x, (at,), (N,), other=-inf)
    else:
        values = tkc.load(x.ptr + tokens, mask=tokens < x.shape[0], other=-inf)
    values = _without_nan(values)
    return values, _ordered(values, ZERO), tokens


def _measure(x, chunks, least, top, rate, ZERO, CHUNK, N):
    """How many elements are `least` or more by their bits, and the mass of these."""
    extents = _extents(chunks, CHUNK, N)
    count, mass = tkc.zeros(extents, tkc.int32), tkc.zeros(extents)
    for at in tkc.range(0, _length(x, chunks, CHUNK), N):
        values, bits, tokens = _part(x, chunks, at, ZERO, CHUNK, N)
        here = (bits >= least) & (tokens < x.shape[0])
        count = count + tkc.where(here, 1, 0)
        mass = mass + tkc.where(here, tkc.exp2(_exponent(values, top, rate)), 0.0)
    return tkc.sum(count), tkc.sum(mass)


def _length(x, chunks, CHUNK):
    return x.shape[0] if chunks is None else chunks.shape[0] * CHUNK


def _boundary(measure, low, high, all_, goal, GOAL, ZERO):
    """The largest bits at which the count (GOAL 0) or the mass (1) of what is as large reaches a
    goal; what was measured there, and just above. all_: what was measured at `low`, where it does;
    high: bits of the largest.
    """
    lower, upper, found, above = low >> ZERO, (high >> ZERO) + 1, all_, (0, 0.0)
    while lower + 1 < upper:
        middle = (lower >> 1) + (upper >> 1) + (lower & upper & 1)  # their sum has 33 bits
        count, mass = measure(middle << ZERO)
        enough = mass >= goal if GOAL else count >= goal
        lower, upper = tkc.where(enough, middle, lower), tkc.where(enough, upper, middle)
        found = tkc.where(enough, count, found[0]), tkc.where(enough, mass, found[1])
        above = tkc.where(enough, above[0], count), tkc.where(enough, above[1], mass)
    return lower << ZERO, found, above


def _bits(value, ZERO):
    """A number's ordered bits."""
    return tkc.min(_ordered(value + tkc.zeros((1,)), ZERO))


def _noise(seed, row, chunks, at, CHUNK, N):
    """−log(−log u) of tokens, four of which share what philox gives."""
    four = None if chunks is None else CHUNK // 4
    which = _tokens(chunks, at // 4, four, N // 4).reshape(N // 4).to(tkc.int64)
    bits = tkc.philox(seed, which + (row.to(tkc.int64) << 32))
    a, b, c, d = ((word >> 8).to(tkc.float32) * 2.0**-24 + 2.0**-25 for word in bits)
    pairs = tkc.join(tkc.join(a, b), tkc.join(c, d)).permute(0, 2, 1)
    return -tkc.log(-tkc.log(pairs.reshape(N)))


def _drawn(x, chunks, row, seed, least, ties, floor, top, rate, ZERO, CHUNK, N):
    """Of elements whose bits are above `least`, the first `ties` equal ones, and none below
    `floor`, the one with the largest sum of logarithm and noise.
    """
    best, token, seen = tkc.full((N,), -inf), tkc.zeros((N,), tkc.int32), 0
    for at in tkc.range(0, _length(x, chunks, CHUNK), N):
        values, bits, tokens = (v.reshape(N) for v in _part(x, chunks, at, ZERO, CHUNK, N))
        here = tokens < x.shape[0]
        equal = tkc.where((bits == least) & here, 1, 0)
        first = seen + tkc.cumsum(equal) - equal < ties
        kept = here & (values >= floor) & ((bits > least) | (equal > 0) & first)
        if tkc.any(kept):
            score = _exponent(values, top, rate / log2(e))
            score = score + _noise(seed, row, chunks, at, CHUNK, N)
            score = tkc.where(kept, score, -inf)
            token = tkc.where(score > best, tokens.to(tkc.int32), token)
            best = tkc.maximum(best, score)
        seen = seen + tkc.sum(equal)
    return tkc.min(tkc.where(best == tkc.max(best), token, 0x7FFFFFFF))


@tkc.jit
def _largest_of_chunks(
    logits,
    maxima,
    masses,
    temperature,
    temperatures,
    CHUNK: tkc.constexpr,
    CHUNKS: tkc.constexpr,
):
    """The largest element of each chunk, and the mass of all of a program beside its largest's."""
    part, row = tkc.program_id(0), tkc.program_id(1)
    (warmth,) = _numbered(row, [temperature], [temperatures])
    rate = tkc.where(warmth > 0, log2(e) / tkc.where(warmth > 0, warmth, 1.0), 0.0)
    at = part * (CHUNKS * CHUNK)
    values = _without_nan(tkc.load(logits[row], (at,), (CHUNKS * CHUNK,), other=-inf))
    largest = tkc.max(values.reshape(CHUNKS, CHUNK), axis=1)
    top = tkc.max(largest)
    shares = tkc.exp2(_exponent(values, top, rate))
    tkc.store(maxima[row], (part * CHUNKS,), largest)
    tkc.store(masses[row].ptr + part, tkc.sum(shares))


@tkc.jit
def _candidates(
    maxima,
    masses,
    chunks,
    found,
    masses_of_rows,
    tokens,
    temperature,
    top_k,
    top_p,
    min_p,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    ZERO: tkc.constexpr,
    CHUNKS: tkc.constexpr,
    N: tkc.constexpr,
):
    """The chunks of a row that have what is kept, in order; found: how many there are, and bits
    that what is kept has at least.

    Where k chunks have an element that large, k elements are; and where the largest of chunks have
    the mass that is asked for, all that are as large have.
    """
    row, given = tkc.program_id(0), (temperature, top_k, top_p, min_p)
    of_rows = temperatures, top_ks, top_ps, min_ps
    _, rate, k, p = _wanted(row, tokens, given, of_rows)
    values = tkc.load(maxima[row], (0,), (N,), other=-inf)
    bits, here, top = _ordered(values, ZERO), tkc.arange(N) < maxima.shape[1], tkc.max(values)
    each = tkc.exp2(_exponent(values, top, rate))

    def measure(least):
        there = here & (bits >= least)
        return tkc.sum(tkc.where(there, 1, 0)), tkc.sum(tkc.where(there, each, 0.0))

    of_parts = tkc.max(values.reshape(N // CHUNKS, CHUNKS), axis=1)
    scales = tkc.where(of_parts > -inf, tkc.exp2(_exponent(of_parts, top, rate)), 0.0)
    mass = tkc.sum(tkc.load(masses[row], (0,), (N // CHUNKS,)) * scales)
    lowest, least = _bits(-inf, ZERO), _bits(_floor(row, top, given, of_rows), ZERO)
    low = tkc.min(tkc.where(here, bits, 0x7FFFFFFF))
    every, high, goal = measure(low), _bits(top, ZERO), tkc.maximum(p * mass, 1e-30)
    if k < tokens:
        least = lowest
        if k <= every[0]:
            least, _, _ = _boundary(measure, low, high, every, k, 0, ZERO)
    elif p < 1:
        least = lowest
        if goal <= every[1]:
            least, _, _ = _boundary(measure, low, high, every, goal, 1, ZERO)
    wanted = tkc.where(here & (bits >= least), 1, 0)
    place = tkc.cumsum(wanted) - wanted
    tkc.store(chunks[row].ptr + place, tkc.arange(N), mask=wanted > 0)
    tkc.store(found[row].ptr, tkc.sum(wanted))
    tkc.store(found[row].ptr + 1, least)
    tkc.store(masses_of_rows.ptr + row, mass)


@tkc.jit
def _sample(
    logits,
    out,
    chunks,
    found,
    masses,
    seed,
    temperature,
    top_k,
    top_p,
    min_p,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    ZERO: tkc.constexpr,
    CHUNK: tkc.constexpr,
    N: tkc.constexpr,
):
    row, given = tkc.program_id(0), (temperature, top_k, top_p, min_p)
    of_rows = temperatures, top_ks, top_ps, min_ps
    x, looked_at = logits[row], None if chunks is None else chunks[row, : found[row, 0]]
    greedy, rate, k, p = _wanted(row, x.shape[0], given, of_rows)
    highest = tkc.full(_extents(chunks, CHUNK, N), -inf)
    for at in tkc.range(0, _length(x, looked_at, CHUNK), N):
        highest = tkc.maximum(highest, _part(x, looked_at, at, ZERO, CHUNK, N)[0])
    top = tkc.max(highest)

    def measure(least):
        return _measure(x, looked_at, least, top, rate, ZERO, CHUNK, N)

    least = _bits(-inf, ZERO) if chunks is None else found[row, 1]
    ties, high = x.shape[0], _bits(top, ZERO)
    every = measure(least)
    mass, last = every[1] if chunks is None else masses[row], every
    if k < x.shape[0]:
        least, last, above = _boundary(measure, least, high, every, k, 0, ZERO)
        ties = k - above[0]
        each = (last[1] - above[1]) / tkc.maximum(last[0] - above[0], 1).to(tkc.float32)
        mass = above[1] + ties.to(tkc.float32) * each
    if p < 1:
        goal = tkc.maximum(p * mass, 1e-30)  # the largest is kept always
        before, most = least, ties
        least, last, above = _boundary(measure, least, high, last, goal, 1, ZERO)
        each = (last[1] - above[1]) / tkc.maximum(last[0] - above[0], 1).to(tkc.float32)
        needed = tkc.ceil((goal - above[1]) / tkc.where(each > 0, each, 1.0)).to(tkc.int32)
        ties = tkc.where(least == before, tkc.minimum(most, needed), needed)
        ties = tkc.maximum(ties, tkc.where(above[0] == 0, 1, 0))
    floor = _floor(row, top, given, of_rows)
    token = _drawn(x, looked_at, row, seed, least, ties, floor, top, rate, ZERO, CHUNK, N)
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
    of_all = float(temperature), top_k, float(top_p), float(min_p)
    logits, wanted = contiguous(logits), (*of_all, temperatures, top_ks, top_ps, min_ps)
    looked_at, chunk = _chosen(logits, wanted)
    n = min(DRAWN, max(128, power(logits.shape[1])))
    _sample[rows](logits, out, *looked_at, seed, *wanted, ZERO=ZEROS[kind], CHUNK=chunk, N=n)


def _chosen(logits: Array, wanted: tuple) -> tuple[tuple, int]:
    """What a draw looks at of long rows: chunks of them, how many and what is least, the mass of
    each row; and how long a chunk is. Of short rows everything.
    """
    rows, tokens = logits.shape
    if tokens <= BLOCK:
        return (None, None, None), 1
    chunk = max(MIN_CHUNK, power(tkc.cdiv(tokens, MAX_CHUNKS)))
    count, parts_of_row = tkc.cdiv(tokens, chunk), tkc.cdiv(tokens, chunk * CHUNKS)
    maxima, masses = empty(logits, (rows, count), "float32"), empty(logits, (rows,), "float32")
    of_parts = empty(logits, (rows, parts_of_row), "float32")
    chunks, found = empty(logits, (rows, count), "int32"), empty(logits, (rows, 2), "int32")
    for part in parts(rows):
        _largest_of_chunks[parts_of_row, part.stop - part.start](
            logits[part],
            maxima[part],
            of_parts[part],
            wanted[0],
            None if wanted[4] is None else wanted[4][part],
            CHUNK=chunk,
            CHUNKS=CHUNKS,
        )
    _candidates[rows](
        maxima,
        of_parts,
        chunks,
        found,
        masses,
        tokens,
        *wanted,
        ZERO=ZEROS[dtype_of(logits)],
        CHUNKS=CHUNKS,
        N=max(CHUNKS, power(count)),
    )
    return (chunks, found, masses), chunk


# ---- the largest ---------------------------------------------------------------------------------
@tkc.jit
def _argmax(x, out, ROWS: tkc.constexpr, N: tkc.constexpr):
    row = tkc.program_id(0) * ROWS
    best, place = tkc.full((ROWS, N), LOWEST, tkc.int32), tkc.zeros((ROWS, N), tkc.int32)
    for at in tkc.range(0, x.shape[1], N):
        here = (at + tkc.arange(N) < x.shape[1])[None, :]
        bits = tkc.where(here, ordered(_with_one_zero(tkc.load(x, (row, at), (ROWS, N)))), LOWEST)
        better = (bits > best) | here & (at == 0)
        best = tkc.where(better, bits, best)
        place = tkc.where(better, (at + tkc.arange(N)).to(tkc.int32)[None, :], place)
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
    turned = at_the_end(x, axis)
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
    count = tkc.maximum(tkc.minimum(length - start, part), 0).to(tkc.int32)
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
    (descending: first), -0 before 0 (behind it). Numbers of 32 bits or fewer. Raises LaunchError
    for others.
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
    of_row, whole = tkc.cdiv(columns, n), columns <= WHOLE
    words: Array = None if whole else empty(x, (rows, of_row * n), "int64")
    _sort_parts[tkc.cdiv(rows, height), of_row](
        source, words, found, places, DESCENDING=descending, ROWS=height, N=n
    )
    if whole:
        return
    other, part = empty(x, (rows, of_row * n), "int64"), n
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
    return saved.x.new_zeros(saved.x.shape).scatter(saved.axis, saved.result[1], grad)


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
