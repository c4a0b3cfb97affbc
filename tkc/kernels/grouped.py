"""Products of groups of rows, each with a matrix of its own, in one launch: the layers of experts,
whose rows are sorted by expert.

    c[start:end] = a[start:end] @ b[g]          for group g with its rows start = ends[g - 1] to end
                                                = ends[g]

Where groups end is known on the device alone. A small kernel writes for each program its group, its
rows, its columns and its steps of k; the product is then the plain one, with a row, a column and a
matrix that are loaded: tensor maps take all of them as coordinates. Only a group's last block,
which the next group begins in, stores by rows. Programs of which there turn out to be none take no
steps. Their number is bounded without knowing the groups: a / BM + 1 blocks of rows, and one more
for each group.

The table is also the order of the programs: a group after the other, so that its matrix is read
once, and in a group as on any matrix: so many blocks of rows side by side, column after column. An
order that does not know where groups end reads two matrices at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tkc
from tkc.kernels.activations import FUNCTIONS
from tkc.kernels.arrays import Array, dtype_of, empty, library, power, written_out
from tkc.kernels.copies import BYTES, aligned, strides_of
from tkc.kernels.matmul import MAX_REMEMBERED_SHAPES, result_dtype, summed
from tkc.kernels.operator import operator
from tkc.kernels.packed import decoded

MIN_BLOCK_ROWS, MIN_BLOCK_COLUMNS = (
    32,
    64,
)  # rows and columns of a block, at least, but of narrow results
BLOCKS = 16  # of the product's programs that one of _places looks for
# rows that go through the columns side by side: with as many columns they are what runs at once
ROWS_SIDE_BY_SIDE = 2048
SCALED = 128  # of k, and columns of b, that share a scale
MAX_GATED_BLOCK = 128 * 128  # elements of a block with two sums
TILES = ((128, 256), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64), (32, 64))


@tkc.jit
def _places(
    ends,
    places,
    rows,
    steps,
    columns,
    BM: tkc.constexpr,
    GROUPS: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    """places[:, t] = group, first row, end, steps and block of columns of program t; rows of no
    group follow the last one, with no steps.
    """
    groups, g, t = (
        ends.shape[0],
        tkc.arange(GROUPS),
        tkc.program_id(0) * BLOCKS + tkc.arange(BLOCKS),
    )

    def given(i):
        return tkc.where(
            i < groups,
            tkc.minimum(
                tkc.maximum(
                    tkc.load(ends, (tkc.minimum(i, groups - 1),), (GROUPS,)).to(tkc.int32), 0
                ),
                rows,
            ),
            rows,
        )

    def until(x):
        return tkc.scan(x, 0, tkc.maximum)  # an end before the one before leaves an empty group

    end, start = until(given(g)), until(tkc.where(g > 0, given(tkc.maximum(g - 1, 0)), 0))
    count = (end - start + (BM - 1)) // BM
    above = (tkc.cumsum(count) - count) * columns
    here = (t[:, None] >= above[None, :]) & (t[:, None] < (above + count * columns)[None, :])

    def of(x):
        return tkc.sum(tkc.where(here, x[None, :], 0), axis=1)

    there, group, high = of(tkc.full((GROUPS,), 1, tkc.int32)), of(g), of(count)
    inside = there * t - of(above)
    side = ROWS_SIDE_BY_SIDE // BM
    strip = inside // (side * columns)
    inside, height = (
        inside - strip * side * columns,
        tkc.maximum(tkc.minimum(side, high - strip * side), 1),
    )
    column = inside // height
    first, at = (
        of(start) + (strip * side + inside - column * height) * BM,
        tkc.program_id(0) * BLOCKS,
    )
    for i, x in enumerate(
        (
            tkc.minimum(group, groups - 1),
            first,
            of(end),
            tkc.where((there > 0) & (group < groups), steps, 0),
            column,
        )
    ):
        tkc.store(places[i], (at,), x)


def _configs(args: dict) -> list[tkc.Config]:
    """Blocks: a first one for the CPU, then those of which the model takes its choice; as low as
    the groups are on average.
    """
    (m, n), size, groups = args["c"].shape, BYTES[dtype_of(args["a"])], args["b"].shape[0]
    line = min(max(32, 128 // size), max(64 // size, power(args["a"].shape[-1])))
    high = max(MIN_BLOCK_ROWS, power(m // max(groups, 1)))
    tiles = [
        (bm, bn)
        for bm, bn in TILES
        if bm <= high
        and bn <= max(64, power(n))
        and (bm > MIN_BLOCK_ROWS or high == MIN_BLOCK_ROWS)
    ]
    if args.get("a_scale") is not None:
        tiles = [(bm, bn) for bm, bn in tiles if bn <= SCALED]
    host = (min(128, high), min(128, max(16, power(n))), 64)
    return [
        tkc.Config(BM=bm, BN=bn, BK=bk)
        for bm, bn, bk in dict.fromkeys([host, *((bm, bn, line) for bm, bn in tiles)])
    ]


def _gated_configs(args: dict, target: str) -> list[tkc.Config]:
    """Likewise, for two sums."""
    most = MAX_GATED_BLOCK
    if args.get("a_scale") is not None:  # partial sums stand beside the sums
        most //= 2 if target != "cpu" and tkc.target(target).wgmma else 4
    found = _configs(args)
    fit = [c for c in found if c.constants["BM"] * c.constants["BN"] <= most]
    return fit or [tkc.Config(BM=64, BN=64, BK=64)]


def _programs(rows: int, columns: int, groups: int, BM: int, BN: int) -> int:
    return (rows // BM + 1 + groups) * tkc.cdiv(columns, BN)


def _grid(args: dict) -> tuple[int]:
    rows, columns = args["c"].shape
    return (_programs(rows, columns, args["b"].shape[0], args["BM"], args["BN"]),)


def table(c: Array, ends: Array, k: int, BM: int, BN: int) -> Array:
    """Of the programs of these blocks of c, that sum over k."""
    (rows, columns), groups = c.shape, ends.shape[0]
    count = tkc.cdiv(_programs(rows, columns, groups, BM, BN), BLOCKS)
    places = empty(ends, (5, count * BLOCKS), "int32")
    _places[count](
        ends,
        places,
        rows,
        k,
        tkc.cdiv(columns, BN),
        BM=BM,
        GROUPS=power(groups + 1),
        BLOCKS=BLOCKS,
    )
    return places


def _key(args: dict) -> str:
    """ "bfloat16 4096x512x64 of 8 nn"."""
    a, b, c = args["a"], args["b"], args["c"]
    packed = args.get("PACKED")
    return (
        f"{dtype_of(a)} {c.shape[0]}x{c.shape[1]}x{a.shape[1]} of {b.shape[0]}"
        f" {''.join('n' if strides_of(x)[-1] == 1 else 't' for x in (a, b))}"
        + (f" {packed[0]} by {packed[1]}" if packed else "")
    )


@tkc.autotune(_configs, key=_key, measure=False)
@tkc.jit
def _grouped(
    a,
    b,
    places,
    c,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    order=None,
    factors=None,
    a_scale=None,
    b_scale=None,
    EACH: tkc.constexpr = 0,
    PACKED: tkc.constexpr = None,
):
    """EACH: row r is of a's row order[r] // EACH, if not 0; factors: its result is multiplied by
    factors[order[r]]. PACKED: as in `_matrix`.
    """
    group, m, end, steps, column = _place(places)
    w, n, at = b[group], column * BN, _rows_of(order, m, BM, EACH)
    acc = tkc.zeros((BM, BN), summed(a.dtype))
    for k in tkc.range(0, steps, BK):
        x, y = tkc.load(a, (at, k), (BM, BK)), _matrix(w, b_scale, group, k, n, BK, BN, PACKED, a)
        if a_scale is None:
            acc = tkc.dot(x, y, acc)
        else:
            acc = acc + tkc.dot(x, y) * _scales(a_scale, b_scale[group], at, n, k, BM)
    if factors is not None:
        acc = acc * tkc.load(factors, (tkc.load(order, (m,), (BM,)),), (BM,)).to(acc.dtype)[:, None]
    _put(c, m, n, end, acc)


@tkc.autotune(_gated_configs, key=_key, measure=False)
@tkc.jit
def _gated(
    a,
    b,
    places,
    c,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    order=None,
    kept=None,
    a_scale=None,
    b_scale=None,
    EACH: tkc.constexpr = 0,
    PACKED: tkc.constexpr = None,
):
    """c = silu(a @ first half of b) · (a @ second half of b); kept: both halves as they were."""
    group, m, end, steps, column = _place(places)
    w, n, half, at = b[group], column * BN, c.shape[1], _rows_of(order, m, BM, EACH)
    gate, up = tkc.zeros((BM, BN), summed(a.dtype)), tkc.zeros((BM, BN), summed(a.dtype))
    for k in tkc.range(0, steps, BK):
        x, y = tkc.load(a, (at, k), (BM, BK)), _matrix(w, b_scale, group, k, n, BK, BN, PACKED, a)
        z = _matrix(w, b_scale, group, k, half + n, BK, BN, PACKED, a)
        if a_scale is None:
            gate, up = tkc.dot(x, y, gate), tkc.dot(x, z, up)
        else:
            gate = gate + tkc.dot(x, y) * _scales(a_scale, b_scale[group], at, n, k, BM)
            up = up + tkc.dot(x, z) * _scales(a_scale, b_scale[group], at, half + n, k, BM)
    if kept is not None:
        _put(kept[:, :half], m, n, end, gate)
        _put(kept[:, half:], m, n, end, up)
    _put(c, m, n, end, FUNCTIONS["silu"](gate, False) * up)


def _matrix(w, scales, group, k, n, BK, BN, PACKED, a):
    """A block of a group's matrix. PACKED: the kind and group of weights of 4 bits, whose words are
    rows of n; None: they are as they are multiplied."""
    if PACKED is None:
        return tkc.load(w, (k, n), (BK, BN))
    kind, size = PACKED
    y = decoded(w, scales[group], None, n, k, BN, BK, size, kind, a.dtype)
    return y.to(a.dtype).T


def _place(places):
    """Of this program: the group, its first row, the group's end, k, and which columns."""
    group, m, end, steps, column = (places[i, tkc.program_id(0)] for i in range(5))
    tkc.assume(group >= 0)
    tkc.assume(end >= 0)
    # what is known to begin inside c is stored by tensor maps
    return group, tkc.maximum(m, 0), end, steps, tkc.maximum(column, 0)


def _rows_of(order, m, BM, EACH):
    """The rows of a that a block's rows are of."""
    if not EACH:
        return m
    pairs = tkc.load(order, (m,), (BM,))
    return pairs if EACH == 1 else pairs // EACH


def _scales(a_scale, b_scale, at, n, k, BM):
    """Of 128 of k: of each row of a, and of 128 columns of b."""
    rows = tkc.load(a_scale, (at, k // 128), (BM, None))
    return (rows * b_scale[k // 128, n // 128])[:, None]


def _put(c, m, n, end, values):
    """A block, but nothing from row `end` on."""
    if m + values.shape[0] <= end:
        tkc.store(c, (m, n), values.to(c.dtype))
    else:
        tkc.store(c[:end], (m, n), values.to(c.dtype))


@tkc.jit
def _outer(
    a,
    b,
    ends,
    c,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    order=None,
    LEFT: tkc.constexpr = 0,
    RIGHT: tkc.constexpr = 0,
):
    """c[g] = a[rows of g]ᵀ @ b[rows of g]: what a group's rows say of its matrix. LEFT, RIGHT: row
    r of a, of b, is order[r] // LEFT, if not 0.
    """
    m, n, g = tkc.program_id(0) * BM, tkc.program_id(1) * BN, tkc.program_id(2)
    rows = (a if order is None else order).shape[0]
    end = tkc.minimum(tkc.maximum(ends[g], 0), rows).to(tkc.int32)
    start = tkc.where(
        g > 0, tkc.minimum(tkc.maximum(ends[tkc.maximum(g - 1, 0)], 0), rows).to(tkc.int32), 0
    )
    x, y = a if LEFT else a[:end], b if RIGHT else b[:end]
    which = None if order is None else order[:end]
    acc = tkc.zeros((BM, BN), summed(a.dtype))
    for k in tkc.range(start, end, BK):
        left, right = _rows_at(which, k, BK, LEFT), _rows_at(which, k, BK, RIGHT)
        acc = tkc.dot(tkc.load(x, (left, m), (BK, BM)).T, tkc.load(y, (right, n), (BK, BN)), acc)
    tkc.store(c[g], (m, n), acc.to(c.dtype))


def _rows_at(order, k, BK, EACH):
    """Rows k … as they are, or those that `order` says."""
    if not EACH:
        return k
    pairs = tkc.load(order, (k,), (BK,), other=-1)
    return tkc.where(pairs >= 0, pairs // EACH, -1)


_chosen: dict[tuple, tuple[Any, ...]] = {}  # the blocks for arrays like these


def _like(x: Array) -> tuple:
    """What a choice for an array depends on: where its memory is, too, for a device has blocks of
    its own.
    """
    if hasattr(x, "data_ptr"):
        return x.shape, x.stride(), x.dtype, x.data_ptr() % 16, x.device.index
    return x.shape, getattr(x, "strides", None), x.dtype, type(x), getattr(x, "sharding", None)


def _checked(a: Array, b: Array, ends: Array) -> None:
    """Raises LaunchError where shapes, types or (of host arrays) the ends do not fit."""
    if len({library(x) for x in (a, b, ends)}) > 1:
        raise tkc.LaunchError(
            f"grouped_matmul: a is an array of {library(a)}, b of {library(b)}, ends of"
            f" {library(ends)}; convert to one"
        )
    if len(a.shape) != 2 or len(b.shape) != 3 or len(ends.shape) != 1:
        raise tkc.LaunchError(
            f"grouped_matmul takes a [M, K], b [G, K, N] and ends [G], got {list(a.shape)},"
            f" {list(b.shape)} and {list(ends.shape)}"
        )
    if a.shape[1] != b.shape[1]:
        raise tkc.LaunchError(
            f"grouped_matmul: a has {a.shape[1]} columns and b has {b.shape[1]} rows"
            f" ({list(a.shape)} @ {list(b.shape)}); transpose one"
        )
    if b.shape[0] != ends.shape[0]:
        raise tkc.LaunchError(
            f"grouped_matmul: {b.shape[0]} matrices and {ends.shape[0]} ends of groups; give one"
            " end a matrix"
        )
    if dtype_of(a) != dtype_of(b):
        raise tkc.LaunchError(
            f"grouped_matmul: expected one element type, got {dtype_of(a)} and {dtype_of(b)};"
            " convert one"
        )
    if dtype_of(a) not in BYTES:
        raise tkc.LaunchError(
            f"grouped_matmul does not take {dtype_of(a)}; convert to one of {', '.join(BYTES)}"
        )
    if dtype_of(ends) not in ("int32", "int64"):
        raise tkc.LaunchError(
            f"grouped_matmul: ends are int32 or int64, got {dtype_of(ends)}; convert them"
        )


@operator
def grouped_matmul(a: Array, b: Array, ends: Array, dtype: str | None = None) -> Iterator[Array]:
    """a's groups of rows, each times its matrix: c[ends[g - 1]:ends[g]] = a[ends[g - 1]:ends[g]] @
    b[g], the first group from row 0. torch calls it _grouped_mm.

    a: [M, K]; b: [G, K, N], of a's element type, in any memory order (for weights [G, N, K] pass
    b.swapaxes(1, 2)); ends: [G], int32 or int64, ascending, at most M; a group may be empty. Gives
    [M, N] of `dtype` (a's; int32 of integers, bfloat16 of 8-bit floats), summed in float32; rows
    after the last group are 0. One launch and a small one before it; nothing waits for the host.
    Differentiable with torch. Raises LaunchError where shapes or types do not fit.
    """
    _checked(a, b, ends)
    m, n = a.shape[0], b.shape[2]
    out = empty(a, (m, n), result_dtype(a, dtype))
    yield out
    if 0 in out.shape or 0 in b.shape:
        return
    a = aligned(a, n, m * n * a.shape[1])
    multiply(a, b, out, ends)


def _launch(kernel: Any, a: Array, b: Array, c: Array, ends: Array, **more: Any) -> None:
    """Launches a grouped product in the blocks that the model chooses for arrays like these. more:
    arguments of the kernel, None for an array that there is not.
    """
    others = tuple(_like(x) if hasattr(x, "shape") else x for x in more.values())
    facts = (kernel, *map(_like, (a, b, c)), *others)
    if (blocks := _chosen.get(facts)) is None:
        if len(_chosen) >= MAX_REMEMBERED_SHAPES:
            _chosen.clear()
        # what is measured (TKC_AUTOTUNE=1) has rows and steps, of the smallest blocks
        places = table(c, ends, a.shape[1], MIN_BLOCK_ROWS, MIN_BLOCK_COLUMNS)
        chosen = kernel.choose(a, b, places, c, grid=_grid, **more).config.constants
        blocks = _chosen[facts] = chosen["BM"], chosen["BN"]
    kernel[_grid](a, b, table(c, ends, a.shape[1], *blocks), c, **more)


def multiply(a: Array, b: Array, c: Array, ends: Array, **more: Any) -> None:
    """Launches c = a @ b by groups of rows; more: arguments of _grouped."""
    _launch(_grouped, a, b, c, ends, **more)


def multiply_gated(a: Array, b: Array, c: Array, ends: Array, **more: Any) -> None:
    """Launches c = silu(a @ gate) · (a @ up) likewise; more: arguments of _gated."""
    _launch(_gated, a, b, c, ends, **more)


@operator
def grouped_outer(a: Array, b: Array, ends: Array) -> Iterator[Array]:
    """For each group of rows a[rows].T @ b[rows], [G, K, N]: the gradient of grouped_matmul for its
    matrices. a: [M, K]; b: [M, N]; ends: [G], as there.
    """
    out = empty(a, (ends.shape[0], a.shape[1], b.shape[1]))
    yield out
    if 0 in out.shape or 0 in a.shape:
        return
    outer(a, b, out, ends)


def outer(
    a: Array,
    b: Array,
    out: Array,
    ends: Array,
    order: Array | None = None,
    left: int = 0,
    right: int = 0,
) -> None:
    """Launches grouped_outer; order, left, right: as _outer has them."""
    small = dtype_of(a) not in ("bfloat16", "float16")
    bm, bn = (min(64 if small else 128, max(16, power(x.shape[1]))) for x in (a, b))
    gathered = {} if order is None else {"order": order, "LEFT": left, "RIGHT": right}
    _outer[tkc.cdiv(a.shape[1], bm), tkc.cdiv(b.shape[1], bn), ends.shape[0]](
        a, b, ends, out, BM=bm, BN=bn, BK=32, **gathered
    )


@grouped_matmul.backward(saves="a b ends")
def _(saved, grad):
    grad = written_out(grad.to(saved.a.dtype))
    da = grouped_matmul(grad, saved.b.transpose(1, 2), saved.ends) if saved.needs["a"] else None
    db = grouped_outer(saved.a, grad, saved.ends) if saved.needs["b"] else None
    return da, db
