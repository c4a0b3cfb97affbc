"""What kernels share that walk sequences in chunks: places of sequences, decays inside a chunk.

Exponents are sums of logarithms of decays between two positions of a chunk, so that none is above 0
where decays are at most 1, and nothing overflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import e, inf, log2, prod
from types import MappingProxyType
from typing import Any

import tkc
from tkc.kernels.arrays import Array, contiguous, empty, power

LOG2E = log2(e)
CHUNK = 64  # positions
WIDEST = 256  # of K and V
# What a decay inside a short block may reach (of the base e), so that products of exponentials and
# of numbers of ordinary size are in the range of the element type
RANGE = MappingProxyType({"float16": 14.0})
WIDE_RANGE = 60.0


def sequence(array: Any, starts: Any, z: Any) -> Any:
    """A sequence of a batch, or of the ragged batch [1, T, …] whose sequences begin at `starts`."""
    if array is None:
        return None
    return array[z] if starts is None else array[0, starts[z] : starts[z + 1]]


def is_shared(heads: int, *groups: int) -> bool:
    """Whether there are heads, and each of `groups` divides them."""
    return heads > 0 and all(n > 0 and heads % n == 0 for n in groups)


def sequences_of(x: Array, starts: Array | None, name: str) -> int:
    """How many sequences x, [batch, positions, …], has: of a batch, or of one ragged row. Raises
    LaunchError where `starts` is given and the batch is not one row; name: the function's."""
    batch = x.shape[0]
    if starts is None:
        return batch
    if batch != 1:
        raise tkc.LaunchError(
            f"{name}: with cu_seqlens the batch is one row of all positions, got {batch}"
        )
    return starts.shape[0] - 1


def rows_of(x: Any, starts: Any, z: Any, head: Any) -> Any:
    """What an array [batch, heads, …, positions] has of a sequence and head."""
    if x is None:
        return None
    if starts is None:
        return x[z, head]
    here = x[0, head]
    first, end = starts[z], starts[z + 1]
    return here[first:end] if len(here.shape) == 1 else here[:, first:end]


def extent(length: Any, segment: Any, SEGMENTS: Any, C: Any) -> Any:
    """The first position of a segment, and how many chunks it has."""
    chunks = tkc.cdiv(length, C)
    if SEGMENTS == 1:
        return 0, chunks
    each = tkc.cdiv(chunks, SEGMENTS)
    first = tkc.minimum(segment * each, chunks)
    return first * C, tkc.minimum(each, chunks - first)


def decay_of_chunk(g: Any, t: Any, head: Any, C: Any, K: Any = 1) -> Any:
    """Base-2 logarithms: of the decay from the chunk's start to and with each position, and of the
    whole chunk's; None without a decay. Of [C] and a number, or of [C, K] and [K] where g has a
    decay of each channel."""
    if g is None:
        return None, None
    if len(g.shape) == 3:
        steps = tkc.load(g, (t, head, 0), (C, None, K)).to(tkc.float32) * LOG2E
        return tkc.cumsum(steps), tkc.sum(steps, axis=0)
    steps = tkc.load(g, (t, head), (C, None)).to(tkc.float32) * LOG2E
    return tkc.cumsum(steps), tkc.sum(steps)


def seen_scores(scores: Any, total: Any, REVERSE: Any, C: Any) -> Any:
    """scores ∘ D; 0 where a position does not see another one."""
    i = tkc.arange(C)
    seen = i[:, None] <= i[None, :] if REVERSE else i[:, None] >= i[None, :]
    if total is None:
        return tkc.where(seen, scores, 0.0)
    apart = total[:, None] - total[None, :]
    return scores * tkc.exp2(tkc.where(seen, -apart if REVERSE else apart, -inf))


def decayed_step(state: Any, g: Any, z: Any, head: Any, K: Any) -> Any:
    """A state [K, V] after one position's decay: g is [batch, heads], [batch, heads, K] or None."""
    if g is None:
        return state
    if len(g.shape) == 2:
        return state * tkc.exp2(g[z, head].to(tkc.float32) * LOG2E)
    steps = tkc.load(g, (z, head, 0), (None, None, K)).to(tkc.float32)
    return state * tkc.exp2(steps * LOG2E)[:, None]


def first_slot(starts: Any, z: Any, chunks: Any, C: Any) -> Any:
    """Where a sequence's chunks begin in an array of all chunks, of `slots_of` rows; chunks: of one
    sequence of a batch that is not ragged."""
    return z * chunks if starts is None else starts[z] // C + z


def times(tile: Any, *factors: Any) -> Any:
    """The product with each factor that is not None: of the tile's extents, a number of each row,
    or a number."""
    for factor in factors:
        if factor is not None:
            of_rows = len(factor.shape) == 1 and len(tile.shape) == 2
            tile = tile * (factor[:, None] if of_rows else factor)
    return tile


def scaled(tile: Any, *factors: Any) -> Any:
    """The same, of the tile's element type."""
    if all(factor is None for factor in factors):
        return tile
    return times(tile.to(tkc.float32), *factors).to(tile.dtype)


def across(factor: Any) -> Any:
    """A number of each column, for `times` and `scaled`; None stays None."""
    return None if factor is None else factor[None, :]


def power_of_two(exponent: Any) -> Any:
    return None if exponent is None else tkc.exp2(exponent)


def from_end(total: Any, end: Any) -> Any:
    """The decay from each position to the chunk's end."""
    if total is None:
        return None
    return tkc.exp2((end if len(total.shape) == 1 else end[None, :]) - total)


def has_channels(total: Any) -> bool:
    """Whether the decay has a number of each channel."""
    return total is not None and len(total.shape) == 2


def own_weights(total: Any, C: Any) -> Any:
    """D_ij = exp(G_i - G_j) for j <= i, else 0, with a decay a head or none."""
    return seen_scores(tkc.full((C, C), 1.0), total, False, C)


def level_exponents(total: Any, n: Any, C: Any) -> Any:
    """(pairs, exponents of rows, which are those of columns): of D_ijc = exp(G_ic - G_jc), j < i,
    the part of level n.

    No product of exp(G_i) and exp(-G_j) gives D: the second one overflows. So blocks of 2^(n+1)
    positions are taken; between a position i of the second half and j of the first stands the first
    half's last position m, and exp(G_i - G_m) exp(G_m - G_j) has no exponent above 0. Each pair of
    positions is in one level.
    """
    half = tkc.arange(C) >> n
    pairs = (half[:, None] == half[None, :] + 1) & (half[:, None] % 2 == 1)
    return pairs, -tkc.abs(total - _at_middle(total, _middle(n, C)))


def _middle(n: Any, C: Any) -> Any:
    """Of each position's block of level n, the first half's last position."""
    return ((tkc.arange(C) >> (n + 1)) << (n + 1)) + (1 << n) - 1


def short_levels(steps: Any, most: Any, C: Any) -> Any:
    """How many of the levels one product can do: log2 of the positions of the longest blocks in
    which these logarithms of decays (base 2) reach no more than `most` (of the base e)."""
    steepest, count = tkc.min(steps) * (1 / LOG2E), 0
    for s in range(1, C.bit_length()):
        count = count + (steepest * (1 << s) >= -most).to(tkc.int32)
    return count


def block_exponents(total: Any, s: Any, C: Any) -> Any:
    """(pairs, exponents of rows, those of columns being their negatives) of exp(G_ic - G_jc), j <=
    i, where i and j are in one block of 2^s positions: relative to G at its middle, see
    `short_levels`."""
    i = tkc.arange(C)
    block = i >> s
    seen = (block[:, None] == block[None, :]) & (i[:, None] >= i[None, :])
    return seen, total - _at_middle(total, (block << s) + (((1 << s) - 1) >> 1))


def _at_middle(total: Any, middle: Any) -> Any:
    return tkc.gather(total, tkc.broadcast_to(middle[:, None], total.shape), 0)


def _alike(
    of_columns: Any, found: list[Any], queries: Any, keys: Any, seen: Any, exponent: Any
) -> list[Any]:
    """Adds to Q ⊙ K and, if wanted, K ⊙ K a part of them: of the pairs `seen`, whose rows have this
    exponent, and whose columns have it times of_columns."""
    near, up = scaled(keys, tkc.exp2(of_columns * exponent)).T, tkc.exp2(exponent)
    rows = [queries, keys][: len(found)]
    return [
        sums + tkc.where(seen, tkc.dot(scaled(tile, up), near), 0.0)
        for sums, tile in zip(found, rows, strict=True)
    ]


def alike_by_channels(found: list[Any], queries: Any, keys: Any, steps: Any, C: Any) -> list[Any]:
    """Adds to Q ⊙ K and K ⊙ K what a block of channels has, whose decays are these."""
    total, short = tkc.cumsum(steps), short_levels(steps, RANGE.get(keys.dtype.name, WIDE_RANGE), C)
    found = _alike(-1.0, found, queries, keys, *block_exponents(total, short, C))
    for n in tkc.range(short, C.bit_length() - 1):
        found = _alike(1.0, found, queries, keys, *level_exponents(total, n, C))
    return found


def short_factors(total: Any, before: Any, end: Any, SHORT: Any, C: Any) -> Any:
    """The part of `level_factors` in which i and j are in one block of SHORT positions, with
    factors relative to G at the block's middle, or to half of the chunk's decay where it is one
    block: so few positions that none of them overflows. With blocks of one position there are only
    the first pairs. end: the sum of a chunk's decays."""
    i = tkc.arange(C)
    if SHORT == 1:
        return i[:, None] == i[None, :], None, None, None, None
    block = i // SHORT
    here = block[:, None] == block[None, :]
    at = 0.5 * end[None, :]
    if SHORT < C:
        at = _at_middle(total, block * SHORT + SHORT // 2 - 1)
    to, below = here & (i[:, None] >= i[None, :]), here & (i[:, None] > i[None, :])
    return to, below, tkc.exp2(total - at), tkc.exp2(before - at), tkc.exp2(at - total)


def level_factors(total: Any, before: Any, n: Any, C: Any) -> Any:
    """(pairs, pairs below the diagonal, factor of rows, factor of rows read before their position,
    factor of columns): the parts of level n of D_ijc = exp(G_ic - G_jc), j <= i, and of
    exp(G_{i-1,c} - G_jc), j < i; before: G_{i-1}. See `level_exponents`."""
    pairs, exponents = level_exponents(total, n, C)
    factor = tkc.exp2(exponents)
    of_reads = tkc.exp2(-tkc.abs(before - _at_middle(total, _middle(n, C))))
    return pairs, pairs, factor, of_reads, factor


@tkc.jit
def _add_heads(x, out, GROUP: tkc.constexpr, K: tkc.constexpr):
    """Gradients of the heads that share one of q or k."""
    row, head = tkc.program_id(0), tkc.program_id(1)
    total = tkc.zeros((K,))
    for member in tkc.static_range(GROUP):
        total = total + tkc.load(x[row], (head * GROUP + member, 0), (None, K))
    tkc.store(out[row], (head, 0), total.to(out.dtype)[None, :])


def by_head(x: Array, heads: int) -> Array:
    """Where the gradient of x goes: one a head, for `add_heads` where heads share x."""
    if x.shape[2] == heads:
        return x
    return empty(x, (*x.shape[:2], heads, x.shape[3]), "float32")


def add_heads(x: Array, out: Array) -> None:
    """Adds up the gradients of the heads that share one of out, if they do."""
    if x is out:
        return
    rows, group = x.shape[0] * x.shape[1], x.shape[2] // out.shape[2]
    _add_heads[rows, out.shape[2]](
        x.reshape((rows, *x.shape[2:])),
        out.reshape((rows, *out.shape[2:])),
        GROUP=group,
        K=power(x.shape[3]),
    )


@tkc.jit
def _inner(x, y, out, ROWS: tkc.constexpr, N: tkc.constexpr):
    row, total = tkc.program_id(0) * ROWS, tkc.zeros((ROWS, N))
    for at in tkc.range(0, x.shape[1], N):
        a, b = (tkc.load(m, (row, at), (ROWS, N)).to(tkc.float32) for m in (x, y))
        total = total + a * b
    tkc.store(out, (row,), tkc.sum(total, axis=1))


def inner_products(x: Array, y: Array, shape: Sequence[int]) -> Array:
    """Of two arrays whose elements are taken as rows, one a number of the result, in float32."""
    rows = prod(shape)
    out = empty(x, shape, "float32")
    if rows:
        columns = prod(x.shape) // rows
        block = min(power(columns), 1024)
        count = max(1, 2048 // block)
        flats = [contiguous(s).reshape((rows, columns)) for s in (x, y)]
        _inner[tkc.cdiv(rows, count)](*flats, out.reshape((rows,)), ROWS=count, N=block)
    return out


@tkc.jit
def _inner_of_columns(x, y, out, ROWS: tkc.constexpr, N: tkc.constexpr):
    which, total = tkc.program_id(0), tkc.zeros((ROWS, N))
    for row in tkc.range(0, x.shape[1], ROWS):
        a, b = (tkc.load(m[which], (row, 0), (ROWS, N)).to(tkc.float32) for m in (x, y))
        total = total + a * b
    tkc.store(out[which], (0,), tkc.sum(total, axis=0))


def inner_products_of_columns(x: Array, y: Array) -> Array:
    """Of the columns of matrices [n, rows, columns], float32 [n, columns]."""
    n, rows, columns = x.shape
    out = empty(x, (n, columns), "float32")
    if n:
        _inner_of_columns[n](x, y, out, ROWS=min(16, power(rows)), N=power(columns))
    return out
