"""Drawing tokens from logits, sorting rows, and moving rows between beams.

    p = softmax(x / T) of the tokens that are kept; the token drawn is argmax of x / T − log(−log u)
    top-k    the k largest;  top-p  of those the fewest whose probabilities add up to P or more
    min-p    those at least as probable as min_p times the most probable one

No row is sorted for a draw: the least element that is kept is found by halving the interval of
the elements' bits, which are ordered as the elements are, each time with a count and a mass of all
that is above. Of equal elements at the boundary the first are kept. u is philox's of seed, row and
token, so that the same seed gives the same tokens.

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

BLOCK = 4096  # elements of a row at once
LOWEST = -(1 << 31)
# of the bits of a short float's float32 the last ones are zeros
ZEROS = {"bfloat16": 16, "float16": 13, "float32": 0}
SORTED, MERGED = 512, 1024  # elements of a program that sorts, and of one that merges
WHOLE = 512  # of a row that is sorted at once


# ---- drawing -------------------------------------------------------------------------------------
def _part(x, at, N):
    """A part of a row, NaN as the least, and its ordered bits."""
    values = tkc.load(x, (at,), (N,), other=-inf).to(tkc.float32)
    values = tkc.where(values == values, values, -inf)
    return values, ordered(values)


def _measure(x, least, top, rate, N):
    """How many elements are `least` or more by their bits, and the mass of these."""
    count, mass = tkc.zeros((N,), tkc.int32), tkc.zeros((N,))
    for at in tkc.range(0, x.shape[0], N):
        values, bits = _part(x, at, N)
        here = (bits >= least) & (at + tkc.arange(N) < x.shape[0])
        count = count + tkc.where(here, 1, 0)
        mass = mass + tkc.where(here, tkc.exp2((values - top) * rate), 0.0)
    return tkc.sum(count), tkc.sum(mass)


def _boundary(x, low, all_, goal, GOAL, top, rate, ZERO, N):
    """The largest bits at which the count (GOAL 0) or the mass (1) of what is as large reaches a
    goal; what was measured there, and just above. all_: what was measured at `low`.
    """
    lower, upper, found, above = low >> ZERO, 0x7FFFFFFF >> ZERO, all_, (0, 0.0)
    while lower + 1 < upper:
        middle = (lower >> 1) + (upper >> 1) + (lower & upper & 1)  # their sum has 33 bits
        count, mass = _measure(x, middle << ZERO, top, rate, N)
        enough = mass >= goal if GOAL else count >= goal
        lower, upper = tkc.where(enough, middle, lower), tkc.where(enough, upper, middle)
        found = tkc.where(enough, count, found[0]), tkc.where(enough, mass, found[1])
        above = tkc.where(enough, above[0], count), tkc.where(enough, above[1], mass)
    return lower << ZERO, found, above


def _noise(seed, row, at, N):
    """−log(−log u) of a row's tokens."""
    which = (at // 4 + tkc.arange(N // 4)).to(tkc.int64) + (row.to(tkc.int64) << 32)
    bits = tkc.philox(seed, which)
    a, b, c, d = ((word >> 8).to(tkc.float32) * 2.0**-24 + 2.0**-25 for word in bits)
    pairs = tkc.join(tkc.join(a, b), tkc.join(c, d)).permute(0, 2, 1)
    return -tkc.log(-tkc.log(pairs.reshape(N)))


def _drawn(x, row, seed, least, ties, floor, top, rate, N):
    """Of elements whose bits are above `least`, the first `ties` equal ones, and none below
    `floor`, the one with the largest sum of logarithm and noise.
    """
    best, token, seen = tkc.full((N,), -inf), tkc.zeros((N,), tkc.int32), 0
    for at in tkc.range(0, x.shape[0], N):
        values, bits = _part(x, at, N)
        here = at + tkc.arange(N) < x.shape[0]
        equal = tkc.where((bits == least) & here, 1, 0)
        first = seen + tkc.cumsum(equal) - equal < ties
        kept = here & (values >= floor) & ((bits > least) | (equal > 0) & first)
        if tkc.any(kept):
            score = (values - top) * (rate / log2(e)) + _noise(seed, row, at, N)
            score = tkc.where(kept, score, -inf)
            token = tkc.where(score > best, at + tkc.arange(N), token)
            best = tkc.maximum(best, score)
        seen = seen + tkc.sum(equal)
    return tkc.min(tkc.where(best == tkc.max(best), token, 0x7FFFFFFF))


def _number(of_rows, row, number):
    """A number of a row, or of all."""
    return number if of_rows is None else of_rows[row]


@tkc.jit
def _sample(
    logits,
    out,
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
    N: tkc.constexpr,
):
    row = tkc.program_id(0)
    x, warmth = logits[row], _number(temperatures, row, temperature)
    k, p = _number(top_ks, row, top_k), _number(top_ps, row, top_p)
    highest = tkc.full((N,), -inf)
    for at in tkc.range(0, x.shape[0], N):
        highest = tkc.maximum(highest, _part(x, at, N)[0])
    top = tkc.max(highest)
    greedy = warmth <= 0
    rate = tkc.where(greedy, 0.0, log2(e) / tkc.where(greedy, 1.0, warmth))
    k = tkc.where(greedy, 1, tkc.where((k <= 0) | (k > x.shape[0]), x.shape[0], k))
    low = ordered(tkc.full((1,), -inf))
    least, ties = tkc.min(low), x.shape[0]
    every = _measure(x, least, top, rate, N)
    mass, found, above = every[1], every, (0, 0.0)
    if k < x.shape[0]:
        least, found, above = _boundary(x, least, every, k, 0, top, rate, ZERO, N)
        ties = k - above[0]
        each = (found[1] - above[1]) / tkc.maximum(found[0] - above[0], 1).to(tkc.float32)
        mass = above[1] + ties.to(tkc.float32) * each
    if p < 1:
        goal = tkc.maximum(p * mass, 1e-30)  # the largest is kept always
        before, most = least, ties
        least, found, above = _boundary(x, least, found, goal, 1, top, rate, ZERO, N)
        each = (found[1] - above[1]) / tkc.maximum(found[0] - above[0], 1).to(tkc.float32)
        needed = tkc.ceil((goal - above[1]) / tkc.where(each > 0, each, 1.0)).to(tkc.int32)
        ties = tkc.where(least == before, tkc.minimum(most, needed), needed)
        ties = tkc.maximum(ties, tkc.where(above[0] == 0, 1, 0))
    share = _number(min_ps, row, min_p)
    floor = tkc.where(share > 0, top + tkc.log(tkc.maximum(share, 1e-38)) * warmth, -inf)
    token = _drawn(x, row, seed, least, ties, tkc.where(greedy, -inf, floor), top, rate, N)
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
    _sample[rows](
        contiguous(logits),
        out,
        seed,
        float(temperature),
        top_k,
        float(top_p),
        float(min_p),
        temperatures,
        top_ks,
        top_ps,
        min_ps,
        ZERO=ZEROS[kind],
        N=min(BLOCK, max(128, power(logits.shape[1]))),
    )


# ---- the largest ---------------------------------------------------------------------------------
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
