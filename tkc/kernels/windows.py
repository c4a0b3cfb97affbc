"""Convolutions of one, two and three axes, channels last, as products of gathered rows.

    y[p] = act(b + Σ_t W_t x[p σ + t δ − π]),    dx[h] = Σ_t W_tᵀ dy[(h + π − t δ) / σ],
    dW_t = Σ_p dy[p] x[p σ + t δ − π]ᵀ          positions outside of x, and fractions, are 0

x is a matrix of positions and channels; a block of the product reads the rows that its positions
see through one tap after the other, so that nothing is unfolded in memory. Where its positions are
whole rows of an image, or a part of one, and have steps of 1, what they see through a tap is a
block of the image, which a tensor map copies, with zeros for what is outside. The gradient of x
is the same product with other steps: positions that are equal modulo σ see the same taps, and are
programs of one such phase, the phases of most taps first. Each channel by itself (depthwise) is the
same without a product. Sums over positions are partial sums of programs, added up in one order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import gcd, prod
from typing import Any

import tkc
from tkc.kernels.arrays import (
    Array,
    contiguous,
    dtype_of,
    empty,
    expect,
    floats,
    matrix,
    power,
    zeros,
)
from tkc.kernels.attention_blocks import has_wgmma
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.matmul import ACTIVATIONS, before_activation, matmul
from tkc.kernels.norms import sum_rows
from tkc.kernels.operator import operator

AXES = 3
TILES = (
    *((128, 256), (256, 128), (256, 160), (128, 192), (128, 160)),
    *((128, 128), (128, 64), (64, 128), (64, 64)),
)
# where positions in so many rows are a box, or programs are no more than multiprocessors
MORE_TILES = *((224, 64), (112, 64), (224, 128), (112, 128)), *((200, 64), (192, 64), (192, 128))
ONES = (1,) * AXES
MOST_ROWS, MOST_AXES = 256, 5  # of a block that a tensor map copies: along an axis, of its array
LINE = 8  # elements of which rows of such an array are a multiple
# positions of a step of the weights' gradient that are a box: the better number first
STEPS = (64, 80, 96, 112, 128, 48, 32, 16)
HELD_IN_TURN = 128 * 128  # results of a program that one warpgroup holds beside its epilogue
HELD_TOGETHER = 64 * 192  # of a program of several taps' sums
# of a block of the weights' gradient, the better one first
SIDES = (*((256, 128), (128, 256), (128, 192), (128, 160), (128, 128)), *((64, 128), (64, 64)))
GATHERED = (
    128  # columns of one, of which threads gather rows; rows of a block whose results are apart
)
MOST_PARTS = 256  # partial sums of it
PLACES = PROGRAMS // 2  # multiprocessors of the largest GPU
READ = 32  # rows whose products take as long as one row that is read
PART = 600  # positions whose products take as long as a partial sum that is written and read
STRIP = 64, 64  # positions and channels of a program, of each channel by itself
STEP = 64  # positions of a step of a sum over them


@dataclass(frozen=True)
class Steps:
    """How positions see taps, an entry an axis: from `first`, by `move` a position and `tap` a tap,
    of `count` taps; weights' taps begin at `start` and go by `stride`.
    """

    first: tuple[int, ...]
    move: tuple[int, ...]
    tap: tuple[int, ...]
    count: tuple[int, ...]
    start: tuple[int, ...]
    stride: tuple[int, ...]
    taps: tuple[int, ...]  # of the weights
    out_first: tuple[int, ...] = (0, 0, 0)
    out_move: tuple[int, ...] = (1, 1, 1)


FIELDS = tuple(field.name for field in fields(Steps))


# ---- kernels -------------------------------------------------------------------------------------
def _of_phase(phases, number):
    """The steps of a program's phase: of what differs between them, scalars."""
    if len(phases) == 1:
        return phases[0]

    def one(values):
        found = values[0]
        for i, value in enumerate(values[1:], 1):
            if value != values[0]:
                found = tkc.where(number == i, value, found)
        return found

    def axes(name):
        return tuple(map(one, zip(*(getattr(steps, name) for steps in phases), strict=True)))

    # by its name the class would be compared at each launch
    return type(phases[0])(*map(axes, FIELDS))


def _positions(grid, out, phases, S):
    """How many there are along each axis in a program's phase; grid: the most of all phases."""
    if len(phases) == 1:
        return grid
    axes = zip(out, S.out_first, S.out_move, strict=True)
    return [tkc.cdiv(extent - first, move) for extent, first, move in axes]


def _places(rows, grid):
    """(image, position along each axis) of rows of a grid of positions."""
    _, h, w = grid
    return rows // (grid[0] * h * w), (rows // (h * w) % grid[0], rows // w % h, rows % w)


def _row(image, places, size):
    """The row of positions in images of a size."""
    return ((image * size[0] + places[0]) * size[1] + places[1]) * size[2] + places[2]


def _inside(places, size):
    """Whether positions are in images of a size: a negative number is a large one without sign."""
    d, h, w = (
        at.to(tkc.uint32) < (extent if isinstance(extent, int) else extent.to(tkc.uint32))
        for at, extent in zip(places, size, strict=True)
    )
    return d & h & w


def _digits(t, count):
    """The taps along each axis of the t-th one, the last axis the fastest."""
    _, b, c = count
    return t // (b * c), t // c % b, t % c


def _corner(image, places, size, S):
    """Where positions see their first taps: along each axis, and as a row, each perhaps outside."""
    corner = [p * move + at for p, move, at in zip(places, S.move, S.first, strict=True)]
    return corner, _row(image, corner, size)


def _number(t, S):
    """The number of the t-th tap that is seen among the weights'."""
    number = 0
    axes = zip(_digits(t, S.count), S.start, S.stride, S.taps, strict=True)
    for i, start, stride, extent in axes:
        number = number * extent + (i * stride + start)
    return number


def _through(places, t, S):
    """The step from what positions see first to what they see through the t-th tap, which they
    share, and where that is, along each axis."""
    step = [i * tap for i, tap in zip(_digits(t, S.count), S.tap, strict=True)]
    return step, [p + by for p, by in zip(places, step, strict=True)]


def _seen(corner, size, t, S):
    """The rows of what positions see through the t-th tap, -1 outside."""
    places, row = corner
    step, at = _through(places, t, S)
    return tkc.where(_inside(at, size), row + _row(0, step, size), -1)


def _corner_of_box(number, grid, BOX):
    """The first image and position of a box by its number; boxes fill the grid."""
    at: tuple = ()
    for extent, count in reversed(list(zip(grid, BOX[1:], strict=True))):
        boxes = tkc.cdiv(extent, count)
        at = (number % boxes * count, *at)
        number = number // boxes
    return (number * BOX[0], *at)


def _rows_of_box(corner, BOX, out, S):
    """The rows that results of a box's positions are."""
    found: tuple = ()
    rest = tkc.arange(prod(BOX))
    for at, extent in reversed(list(zip(corner, BOX, strict=True))):
        found = (rest % extent + at, *found)
        rest = rest // extent
    image, *places = found
    axes = list(zip(out, S.out_first, S.out_move, strict=True))[AXES - len(places) :]
    row = image
    for place, (extent, first, move) in zip(places, axes, strict=True):
        row = row * extent + place * move + first
    return row


def _boxes(images, grid, BOX):
    """How many there are."""
    count = tkc.cdiv(images, BOX[0])
    for extent, box in zip(grid, BOX[1:], strict=True):
        count = count * tkc.cdiv(extent, box)
    return count


def _of_phases(corner, places, move, k, channels, BOX):
    """Where a box begins in an array that `_by_phases` gives, and its extents there: of what is
    at `places` for a position 0, by `move` for each further one. k: channels from there on.
    """
    at, extents = [corner[0]], [BOX[0]]
    for axis, (position, place, step) in enumerate(zip(corner[1:], places, move, strict=True)):
        is_last = axis == len(move) - 1
        at.append(position + (place if step == 1 else place // step))
        extents.append(BOX[1 + axis])
        if step > 1 and is_last:
            k = place % step * channels + k
        elif step > 1:
            at.append(place % step)
            extents.append(1)
    return (*at, k), tuple(extents)


def _block(source, corner, t, k, channels, BOX, WIDTH, S):
    """Rows of what a box of positions from `corner` on sees through the t-th tap, WIDTH channels
    from k on. source: as `_by_phases` gives it."""
    rank = len(BOX) - 1
    axes = zip(_digits(t, S.count), S.tap, S.first, strict=True)
    places = [i * tap + first for i, tap, first in axes][AXES - rank :]
    at, extents = _of_phases(corner, places, S.move[AXES - rank :], k, channels, BOX)
    return tkc.load(source, at, (*extents, WIDTH)).reshape(prod(BOX), WIDTH)


def _target(image, places, out, S):
    """The rows that results of positions are; -1 outside."""
    moved = zip(places, S.out_first, S.out_move, strict=True)
    at = [p * move + first for p, first, move in moved]
    return tkc.where(_inside(at, out), _row(image, at, out), -1)


def _finished(acc, bias, n, activation):
    """activation(acc + bias) of columns from n on."""
    if bias is not None:
        acc = acc + tkc.load(bias, (n,), (acc.shape[1],)).to(tkc.float32)[None, :]
    return acc if activation is None else ACTIVATIONS[activation](acc)


def _mapped(size: tuple[int, ...], move: tuple[int, ...], *arrays: Array) -> bool:
    """Whether tensor maps copy what a box of positions is in arrays as `_by_phases` gives them.
    size, move: along the axes that they have.
    """
    whole = all(n % step == 0 for n, step in zip(size, move, strict=True))
    axes = 2 + len(size) + sum(step > 1 for step in move[:-1])
    lines = all(x.shape[-1] % LINE == 0 for x in arrays)
    return whole and lines and axes <= MOST_AXES and has_wgmma(tkc.target_of(arrays[0]))


def _box(count: int, images: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of boxes of `count` positions that fill a grid, of images and along each axis; ()
    where there are none. They are as long as they can be, along the last axes first.
    """

    def boxes(axes: tuple[int, ...], rest: int) -> Iterator[tuple[int, ...]]:
        if not axes:
            if images % rest == 0 and rest <= MOST_ROWS:
                yield (rest,)
            return
        for extent in range(min(axes[-1], rest, MOST_ROWS), 0, -1):
            if axes[-1] % extent == 0 and rest % extent == 0:
                yield from ((*box, extent) for box in boxes(axes[:-1], rest // extent))

    return next(boxes(grid, count), ())


def _is_in_a_row(box: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Whether a box's positions are neighbours in the order of all: behind the first axis along
    which it has several, it has all there are.
    """
    several = next((axis for axis, count in enumerate(box) if count > 1), len(box))
    return box[several + 1 :] == grid[several:]


def _boxes_of_blocks(args: dict, whole: bool) -> dict[int, tuple[int, ...]]:
    """Of each number of rows of a block, the box of positions that they are; () where there is
    none. whole: results are as far apart as positions, and a block of rows where these are.
    """
    heights = dict.fromkeys(rows for rows, _ in (*TILES, *MORE_TILES))
    if not args["RANK"]:
        return dict.fromkeys(heights, ())
    grid = (args["gd"], args["gh"], args["gw"])[AXES - args["RANK"] :]
    boxes = {rows: _box(rows, args["images"], grid) for rows in heights}
    return {
        rows: box if not whole or _is_in_a_row(box, grid) else () for rows, box in boxes.items()
    }


def _configs(args: dict) -> list[tkc.Config]:
    """A first one for the CPU, then those of which the model takes its choice."""
    w, back = args["w"], args["BACK"]
    n, k = (w.shape[2], w.shape[0]) if back else (w.shape[0], w.shape[2])
    line = max(16, min(64, power(k)))
    phases, rows = args["PHASES"], args["images"] * args["gd"] * args["gh"] * args["gw"]
    whole = phases[0].out_move == ONES
    boxes = _boxes_of_blocks(args, whole)

    def is_worth_it(tile: tuple[int, int]) -> bool:
        blocks = tkc.cdiv(rows, tile[0]) * tkc.cdiv(n, tile[1]) * len(phases)
        fits = tile in TILES or boxes[tile[0]] or blocks <= PLACES
        return bool(fits and (whole or boxes[tile[0]] or tile[0] <= GATHERED))

    tiles = [t for t in dict.fromkeys((*TILES, *MORE_TILES)) if t[1] <= max(64, power(n))]
    found: list[dict[str, Any]] = [
        {"BM": bm, "BN": bn, "BK": line, "BOX": boxes[bm]} for bm, bn in filter(is_worth_it, tiles)
    ]
    # phases have few steps, and results that threads store by rows: one program's beside the
    # next one's steps, though these are not as many
    in_turn = [
        {**block, "roles": "pingpong"}
        for block in found
        if not whole and block["BOX"] and block["BM"] * block["BN"] <= HELD_IN_TURN
    ]
    host = {"BM": 64, "BN": max(16, min(64, power(n))), "BK": line, "BOX": ()}
    return [tkc.Config(**block) for block in (host, *found, *in_turn)]


def _grid(args: dict) -> tuple[int, int, int]:
    rows = args["images"] * args["gd"] * args["gh"] * args["gw"]
    columns = args["y"].shape[1]
    return tkc.cdiv(rows, args["BM"]), tkc.cdiv(columns, args["BN"]), len(args["PHASES"])


@tkc.autotune(_configs, measure=False)
@tkc.jit
def _windows(
    x,
    seen,
    w,
    bias,
    y,
    images,
    gd,
    gh,
    gw,
    sd,
    sh,
    sw,
    od,
    oh,
    ow,
    PHASES: tkc.constexpr,
    BACK: tkc.constexpr,
    ACTIVATION: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    BOX: tkc.constexpr,
    RANK: tkc.constexpr,
):
    """Positions: a grid of gd x gh x gw; what they see: of sd x sh x sw; results: od x oh x ow.
    x, y: rows; seen: x as `_by_phases` gives it. BOX: extents of the images and positions of a
    program; () where they are gathered. RANK: axes of boxes; 0 where there can be none."""
    m, n, S = tkc.program_id(0) * BM, tkc.program_id(1) * BN, _of_phase(PHASES, tkc.program_id(2))
    taps = S.count[0] * S.count[1] * S.count[2]
    if BOX:
        corner = _corner_of_box(tkc.program_id(0), (gd, gh, gw)[AXES + 1 - len(BOX) :], BOX)
    else:
        grid = _positions((gd, gh, gw), (od, oh, ow), PHASES, S)
        image, places = _places(m + tkc.arange(BM), grid)
        corner = _corner(image, places, (sd, sh, sw), S)
    acc = tkc.zeros((BM, BN))
    for i in tkc.range(0, taps * tkc.cdiv(x.shape[1], BK)):
        k, tap = i // taps * BK, _number(i % taps, S)
        if BOX:
            block = _block(seen, corner, i % taps, k, x.shape[1], BOX, BK, S)
        else:
            block = tkc.load(x, (_seen(corner, (sd, sh, sw), i % taps, S), k), (BM, BK))
        if BACK:
            weights = tkc.load(w, (k, tap, n), (BK, None, BN))
        else:
            weights = tkc.load(w, (n, tap, k), (BN, None, BK)).T
        acc = tkc.dot(block, weights, acc)
    result = _finished(acc, bias, n, ACTIVATION).to(y.dtype)
    if S.out_move == ONES:
        tkc.store(y, (m, n), result)
    else:
        if BOX:
            rows = _rows_of_box(corner, BOX, (od, oh, ow), S)
        else:
            rows = _target(image, places, (od, oh, ow), S)
        tkc.store(y, (rows, n), result)


@tkc.jit
def _each(
    x,
    w,
    bias,
    y,
    gd,
    gh,
    gw,
    sd,
    sh,
    sw,
    od,
    oh,
    ow,
    PHASES: tkc.constexpr,
    ACTIVATION: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """Each channel by itself; w: [taps, channels]."""
    m, n, S = tkc.program_id(0) * BM, tkc.program_id(1) * BN, _of_phase(PHASES, tkc.program_id(2))
    grid = _positions((gd, gh, gw), (od, oh, ow), PHASES, S)
    image, places = _places(m + tkc.arange(BM), grid)
    corner = _corner(image, places, (sd, sh, sw), S)
    acc = tkc.zeros((BM, BN))
    for t in tkc.range(0, S.count[0] * S.count[1] * S.count[2]):
        row = _seen(corner, (sd, sh, sw), t, S)
        block = tkc.load(x, (row, n), (BM, BN)).to(tkc.float32)
        acc = acc + block * tkc.load(w, (_number(t, S), n), (None, BN)).to(tkc.float32)[None, :]
    result = _finished(acc, bias, n, ACTIVATION).to(y.dtype)
    at = m if S.out_move == ONES else _target(image, places, (od, oh, ow), S)
    tkc.store(y, (at, n), result)


@tkc.jit
def _of_weights(
    grad,
    x,
    parts,
    gd,
    gh,
    gw,
    sd,
    sh,
    sw,
    length,
    S: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """parts[part, :, t, :] = the sum over a part's positions of grad[p] x[seen through t]ᵀ, whose
    rows are gathered."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    taps = S.count[0] * S.count[1] * S.count[2]
    t, part = tkc.program_id(2) % taps, tkc.program_id(2) // taps
    end = tkc.minimum((part + 1) * length, grad.shape[0])
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(part * length, end, BK):
        image, places = _places(k + tkc.arange(BK), (gd, gh, gw))
        corner = _corner(image, places, (sd, sh, sw), S)
        block = tkc.load(x, (_seen(corner, (sd, sh, sw), t, S), n), (BK, BN))
        acc = tkc.dot(tkc.load(grad, (k, m), (BK, BM)).T, block, acc)
    tkc.store(parts[part, :, t], (m, n), acc.to(parts.dtype))


@tkc.jit
def _of_weights_by_boxes(
    grad,
    x,
    parts,
    images,
    gd,
    gh,
    gw,
    channels,
    length,
    S: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BOX: tkc.constexpr,
    TAPS: tkc.constexpr,
):
    """The same where a step's positions are a box, of images and along each axis: of TAPS taps that
    follow one another, which read the gradient together. grad: [images, positions, outputs]; x: as
    `_by_phases` gives it. length: boxes of a part."""
    m, n, grid = tkc.program_id(0) * BM, tkc.program_id(1) * BN, (gd, gh, gw)[AXES + 1 - len(BOX) :]
    groups = S.count[0] * S.count[1] * S.count[2] // TAPS
    t, part = tkc.program_id(2) % groups * TAPS, tkc.program_id(2) // groups
    end = tkc.minimum((part + 1) * length, _boxes(images, grid, BOX))
    sums = [tkc.zeros((BM, BN)) for _ in range(TAPS)]
    for number in tkc.range(part * length, end):
        corner = _corner_of_box(number, grid, BOX)
        block = tkc.load(grad, (*corner, m), (*BOX, BM)).reshape(prod(BOX), BM).T
        for i in range(TAPS):
            seen = _block(x, corner, t + i, n, channels, BOX, BN, S)
            sums[i] = tkc.dot(block, seen, sums[i])
    for i in range(TAPS):
        tkc.store(parts[part, :, t + i], (m, n), sums[i].to(parts.dtype))


@tkc.jit
def _of_each(
    grad,
    x,
    parts,
    gd,
    gh,
    gw,
    sd,
    sh,
    sw,
    length,
    S: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """The same of each channel by itself: parts[part, t, :]."""
    n, t, part = tkc.program_id(0) * BN, tkc.program_id(1), tkc.program_id(2)
    end = tkc.minimum((part + 1) * length, grad.shape[0])
    acc = tkc.zeros((BK, BN))
    for k in tkc.range(part * length, end, BK):
        image, places = _places(k + tkc.arange(BK), (gd, gh, gw))
        row = _seen(_corner(image, places, (sd, sh, sw), S), (sd, sh, sw), t, S)
        g = tkc.load(grad, (k, n), (BK, BN)).to(tkc.float32)
        acc = acc + g * tkc.load(x, (row, n), (BK, BN)).to(tkc.float32)
    tkc.store(parts[part, t], (n,), tkc.sum(acc, axis=0))


# ---- shapes --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Convolution:
    """Extents of three axes; those that there are not have one position and one tap."""

    size: tuple[int, ...]  # of x
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def out(self) -> tuple[int, ...]:
        """Of y."""
        return tuple(
            (n + 2 * p - d * (t - 1) - 1) // s + 1
            for n, t, s, p, d in zip(
                self.size, self.taps, self.stride, self.padding, self.dilation, strict=True
            )
        )

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a product of matrices."""
        ones = (1,) * AXES
        return self.taps == ones and self.stride == ones and not any(self.padding)

    def forward(self) -> Steps:
        """How a position of y sees x."""
        start, ones = (0,) * AXES, (1,) * AXES
        first = tuple(-p for p in self.padding)
        return Steps(first, self.stride, self.dilation, self.taps, start, ones, self.taps)

    def phases(self) -> Iterator[tuple[tuple[int, ...], Steps]]:
        """For positions of x that are equal modulo the strides: how many, and how they see y."""
        axes = zip(self.size, self.taps, self.stride, self.padding, self.dilation, strict=True)
        for phase in product(*([_phase(*axis, p) for p in range(axis[2])] for axis in axes)):
            grid, *steps = zip(*phase, strict=True)
            first, tap, count, start, stride, out_first, out_move = steps
            if min(grid) > 0:
                ones = (1,) * AXES
                yield (
                    grid,
                    Steps(first, ones, tap, count, start, stride, self.taps, out_first, out_move),
                )


def _phase(size: int, taps: int, stride: int, padding: int, dilation: int, phase: int) -> tuple:
    """Along one axis, of positions phase, phase + stride, …: how many, and the first position of y,
    its step a tap, the taps that are seen, the first of them, their step, and the phase again.
    """
    every = stride // gcd(stride, dilation)
    seen = [t for t in range(min(taps, every)) if (phase + padding - t * dilation) % stride == 0]
    positions = tkc.cdiv(max(size - phase, 0), stride)
    if not seen:
        return positions, 0, 0, 0, 0, 1, phase, stride
    first = (phase + padding - seen[0] * dilation) // stride
    count = tkc.cdiv(taps - seen[0], every)
    return positions, first, -(every * dilation) // stride, count, seen[0], every, phase, stride


def _described(x: Array, weight: Array, numbers: Sequence[int], name: str) -> Convolution:
    """Raises LaunchError where shapes or numbers do not fit."""
    rank = len(x.shape) - 2
    if not 1 <= rank <= AXES or len(weight.shape) != rank + 2:
        raise tkc.LaunchError(
            f"{name}: x is [images, 1 to 3 axes, channels] and weight [outputs, taps of these axes,"
            f" channels], got {list(x.shape)} and {list(weight.shape)}"
        )
    if dtype_of(x) != dtype_of(weight):
        raise tkc.LaunchError(
            f"{name}: x and weight have one element type, got {dtype_of(x)} and"
            f" {dtype_of(weight)}; convert one"
        )
    each = weight.shape[-1] == 1 and weight.shape[0] == x.shape[-1]
    if weight.shape[-1] != x.shape[-1] and not each:
        raise tkc.LaunchError(
            f"{name}: weight has {weight.shape[-1]} channels and x {x.shape[-1]}; it has as many,"
            " or one where there is an output for each channel by itself"
        )
    ones = (1,) * (AXES - rank)
    stride, padding, dilation = (tuple(numbers[i : i + AXES]) for i in (0, AXES, 2 * AXES))
    found = Convolution(
        (*ones, *x.shape[1:-1]), (*ones, *weight.shape[1:-1]), stride, padding, dilation
    )
    if min(*stride, *dilation) < 1 or min(padding) < 0 or min(found.taps) < 1:
        raise tkc.LaunchError(
            f"{name}: strides and dilations are 1 or more and paddings 0 or more, got {stride},"
            f" {dilation} and {padding}"
        )
    if min(found.out) < 1:
        raise tkc.LaunchError(
            f"{name}: taps of {list(found.taps[AXES - rank :])} do not fit x of"
            f" {list(x.shape[1:-1])} with padding {list(padding[AXES - rank :])}; pad more"
        )
    return found


def _is_each(x: Array, weight: Array) -> bool:
    """Whether outputs have a channel each."""
    return weight.shape[-1] == 1 and weight.shape[0] == x.shape[-1] and x.shape[-1] > 1


def _by_phases(x: Array, move: Sequence[int]) -> Array:
    """x, [images, positions along each axis, channels], with positions that are equal modulo `move`
    along axes of their own: those of the last axis, where they are neighbours, with the channels.
    """
    images, *size, channels = x.shape
    shape = [images]
    for extent, step in zip(size, move, strict=True):
        shape += [extent // step, step] if step > 1 else [extent]
    if move[-1] > 1:
        shape.pop()
    return x.reshape((*shape, move[-1] * channels))


def _rows(x: Array) -> Array:
    return contiguous(x).reshape((prod(x.shape[:-1]), x.shape[-1]))


def _launch(
    x: Array,
    weight: Array,
    bias: Array | None,
    y: Array,
    phases: tuple[Steps, ...],
    sizes: tuple[tuple[int, ...], ...],
    activation: str | None,
    back: bool,
    each: bool,
) -> None:
    """Grids of positions. sizes: of the largest, of what they see and of the results; each: of
    every channel by itself.
    """
    images, (grid, source, out) = y.shape[0], sizes
    rows, results = _rows(x), y.reshape((prod(y.shape[:-1]), y.shape[-1]))
    if each:
        taps = contiguous(weight.reshape((weight.shape[0], prod(phases[0].taps))).T)
        m, n = STRIP[0], min(STRIP[1], power(y.shape[-1]))
        blocks = tkc.cdiv(images * prod(grid), m), tkc.cdiv(y.shape[-1], n), len(phases)
        _each[blocks](
            rows,
            taps,
            bias,
            results,
            *grid,
            *source,
            *out,
            PHASES=phases,
            ACTIVATION=activation,
            BM=m,
            BN=n,
        )
        return
    w = contiguous(weight).reshape((weight.shape[0], prod(phases[0].taps), weight.shape[-1]))
    axes = len(x.shape) - 2
    move, apart = (step[AXES - axes :] for step in (phases[0].move, phases[0].out_move))
    boxed = _mapped(source[AXES - axes :], move, x) and all(
        extent % step == 0 for extent, step in zip(out[AXES - axes :], apart, strict=True)
    )
    _windows[_grid](
        rows,
        _by_phases(contiguous(x), move if boxed else ONES[:axes]),
        w,
        bias,
        results,
        images,
        *grid,
        *source,
        *out,
        PHASES=phases,
        BACK=back,
        ACTIVATION=activation,
        RANK=axes if boxed else 0,
    )


@operator(name="conv")
def _conv(
    x: Array,
    weight: Array,
    bias: Array | None,
    s0: int,
    s1: int,
    s2: int,
    p0: int,
    p1: int,
    p2: int,
    d0: int,
    d1: int,
    d2: int,
    activation: str | None = None,
) -> Iterator[Array]:
    """conv with a number an axis."""
    floats(x, weight, bias)
    found = _described(x, weight, (s0, s1, s2, p0, p1, p2, d0, d1, d2), "conv")
    expect(bias, weight.shape[:1], "bias")
    if activation is not None and activation not in ACTIVATIONS:
        raise tkc.LaunchError(
            f"activation is None or one of {', '.join(ACTIVATIONS)}, got {activation!r}"
        )
    rank = len(x.shape) - 2
    y = empty(x, (x.shape[0], *found.out[AXES - rank :], weight.shape[0]))
    yield y
    if 0 in y.shape:
        return
    if not x.shape[-1]:  # no tap reads anything: the result is the bias
        rows = matrix(y)
        sources, w = (empty(x, (n, 0)) for n in rows.shape)
        matmul(sources, w.T, bias, activation, rows)
        return
    if found.is_pointwise and not _is_each(x, weight):
        w = weight.reshape((weight.shape[0], weight.shape[-1]))
        matmul(_rows(x), w.T, bias, activation, matrix(y))
        return
    sizes = found.out, found.size, found.out
    each = _is_each(x, weight)
    _launch(x, weight, bias, y, (found.forward(),), sizes, activation, False, each)


@operator
def conv_backward(
    grad: Array,
    x: Array,
    weight: Array,
    s0: int = 1,
    s1: int = 1,
    s2: int = 1,
    p0: int = 0,
    p1: int = 0,
    p2: int = 0,
    d0: int = 1,
    d1: int = 1,
    d2: int = 1,
    of_x: bool = True,
    of_weight: bool = True,
) -> Iterator[tuple[Array, Array]]:
    """The gradients of conv's x and weight (without elements where not wanted) from that of its
    result without an activation. s, p, d: stride, padding, dilation of three axes, the last ones
    x's.
    """
    floats(grad, x, weight)
    found = _described(x, weight, (s0, s1, s2, p0, p1, p2, d0, d1, d2), "conv_backward")
    expect(grad, (x.shape[0], *found.out[3 - (len(x.shape) - 2) :], weight.shape[0]), "grad")
    dx = (zeros if _has_gaps(found) else empty)(x, x.shape if of_x else (0,))
    dw = empty(weight, weight.shape if of_weight else (0,))
    yield dx, dw
    if 0 in grad.shape or 0 in x.shape:
        return
    each = _is_each(x, weight)
    phases = sorted(found.phases(), key=lambda phase: -prod(phase[1].count))
    if of_x and (seen := [p for p in phases if prod(p[1].count)]):
        grids, steps = zip(*seen, strict=True)
        sizes = tuple(map(max, zip(*grids, strict=True))), found.out, found.size
        _launch(grad, weight, None, dx, steps, sizes, None, True, each)
    if of_weight:
        _weights_gradient(grad, x, dw, found, each)


def _has_gaps(found: Convolution) -> bool:
    """Whether positions of x are seen by none of y's."""
    return any(not prod(steps.count) for _, steps in found.phases())


@dataclass(frozen=True)
class Division:
    """How weights' gradients are divided: extents of a block, taps of a program that read the
    gradient of y together, partial sums of positions.
    """

    m: int
    n: int
    taps: int
    parts: int

    @property
    def is_held(self) -> bool:
        """Whether registers hold a program's sums, and shared memory stages enough of what several
        taps see.
        """
        return self.taps == 1 or self.m * self.n * self.taps <= HELD_TOGETHER

    def cost(self, outputs: int, channels: int, taps: int, positions: int) -> float:
        """So that few products are outside of it, each row that is read has many, rounds of
        programs are full, and little is written and read again: in products a position and tap.
        """
        blocks = tkc.cdiv(outputs, self.m) * tkc.cdiv(channels, self.n)
        programs = blocks * taps // self.taps * self.parts
        rounds = tkc.cdiv(programs, PLACES) * PLACES / (taps * self.parts)
        columns = self.n * self.taps
        products = rounds * (self.m * columns + READ * (self.m + columns))
        written = outputs * channels * self.parts * PART / positions if self.parts > 1 else 0
        return products + written


def _division(
    outputs: int, channels: int, taps: tuple[int, ...], positions: int, boxed: bool
) -> Division:
    """The division that costs least. boxed: tensor maps copy all operands."""
    every = prod(taps)
    most = max(1, min(tkc.cdiv(positions, 4 * STEP), 65535 // every, MOST_PARTS))
    found = [
        Division(m, n, together, parts)
        for m, n in SIDES
        if boxed or n <= GATHERED
        for together in ({1, taps[-1]} if boxed else {1})
        for parts in range(1, most + 1)
    ]
    held = (division for division in found if division.is_held)
    best = min(held, key=lambda division: division.cost(outputs, channels, every, positions))
    m, n = max(16, min(best.m, power(outputs))), max(16, min(best.n, power(channels)))
    return replace(best, m=m, n=n)


def _box_of_steps(x: Array, grad: Array, found: Convolution) -> tuple[int, ...]:
    """The positions of a step of weights' gradients, where they are a box; else ()."""
    axes = len(x.shape) - 2
    if not _mapped(found.size[AXES - axes :], found.stride[AXES - axes :], x, grad):
        return ()
    boxes = (_box(count, x.shape[0], found.out[AXES - axes :]) for count in STEPS)
    return next(filter(None, boxes), ())


def _weights_gradient(grad: Array, x: Array, out: Array, found: Convolution, each: bool) -> None:
    """Launches partial sums over positions, and their sum."""
    partial = _partial_sums_of_each if each else _partial_sums
    parts = partial(grad, x, out, found)
    if parts.shape[0] > 1 or each:
        sums = parts.reshape((parts.shape[0], prod(parts.shape[1:])))
        sum_rows(sums, out.reshape((sums.shape[1],)))


def _partial_sums_of_each(grad: Array, x: Array, out: Array, found: Convolution) -> Array:
    """Of each channel by itself."""
    g, rows, taps = _rows(grad), _rows(x), prod(found.taps)
    n = min(STRIP[1], power(rows.shape[1]))
    blocks = tkc.cdiv(rows.shape[1], n) * taps
    count = max(1, min(tkc.cdiv(g.shape[0], 4 * STEP), PROGRAMS // blocks, 65535 // taps))
    length = tkc.cdiv(tkc.cdiv(g.shape[0], count), STEP) * STEP
    parts = empty(x, (tkc.cdiv(g.shape[0], length), rows.shape[1], taps), "float32")
    given = g, rows, parts.swapaxes(1, 2), *found.out, *found.size, length
    _of_each[tkc.cdiv(rows.shape[1], n), taps, parts.shape[0]](
        *given, S=found.forward(), BN=n, BK=STEP
    )
    return parts


def _partial_sums(grad: Array, x: Array, out: Array, found: Convolution) -> Array:
    """[parts, outputs, taps, channels]; where there is one, the result."""
    positions, (outputs, channels) = prod(grad.shape[:-1]), (grad.shape[-1], x.shape[-1])
    taps, box = prod(found.taps), _box_of_steps(x, grad, found)
    plan = _division(outputs, channels, found.taps, positions, bool(box))
    step = prod(box) if box else STEP
    length = tkc.cdiv(tkc.cdiv(positions, plan.parts), step)
    count = tkc.cdiv(positions, length * step)
    shape = count, outputs, taps, channels
    parts = empty(x, shape, "float32") if count > 1 else out.reshape(shape)
    grid = tkc.cdiv(outputs, plan.m), tkc.cdiv(channels, plan.n), taps // plan.taps * count
    blocks = {"S": found.forward(), "BM": plan.m, "BN": plan.n}
    if box:
        seen = _by_phases(contiguous(x), found.stride[AXES - len(box) + 1 :])
        given = contiguous(grad), seen, parts, x.shape[0], *found.out, channels, length
        _of_weights_by_boxes[grid](*given, **blocks, BOX=box, TAPS=plan.taps)
    else:
        given = _rows(grad), _rows(x), parts, *found.out, *found.size, length * step
        _of_weights[grid](*given, **blocks, BK=STEP)
    return parts


@_conv.backward(saves="x weight bias s0 s1 s2 p0 p1 p2 d0 d1 d2 activation result")
def _(saved, grad):
    x, w, bias, wanted = saved.x, saved.weight, saved.bias, saved.needs
    s, p, d = ([getattr(saved, f"{name}{i}") for i in range(AXES)] for name in "spd")
    grad = before_activation(
        grad, saved.activation, saved.result, lambda: _conv(x, w, bias, *s, *p, *d, None)
    ).to(x.dtype)
    dx, dw = conv_backward(grad, x, w, *s, *p, *d, bool(wanted["x"]), bool(wanted["weight"]))
    return dx, dw, matrix(grad).sum(0) if wanted["bias"] else None


def _of_axes(value: int | Sequence[int], rank: int, one: int) -> tuple[int, ...]:
    """A number an axis of x, and what the axes have that there are not."""
    numbers = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(numbers) != rank or not all(isinstance(n, int) for n in numbers):
        raise tkc.LaunchError(
            f"conv: stride, padding and dilation are integers, or {rank} of them, got {value!r}"
        )
    return (*[one] * (AXES - rank), *numbers)


def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    activation: str | None = None,
) -> Array:
    """activation(x ∗ weight + bias), a convolution along one to three axes, channels last.

    x: [images, positions along each axis, channels]; weight: [outputs, taps along each axis,
    channels] (torch's, in its channels-last memory order, permuted without a copy), or [channels,
    taps …, 1] for each channel by itself; one float type, summed in float32. bias: [outputs].
    stride, padding (with zeros) and dilation: for all axes, or a number each. activation: as in
    `matmul`. Gives [images, positions, outputs]. Differentiable with torch for x, weight and bias.
    Raises LaunchError where shapes, types or numbers do not fit.
    """
    rank = max(1, min(len(x.shape) - 2, AXES))
    try:
        numbers = (
            *_of_axes(stride, rank, 1),
            *_of_axes(padding, rank, 0),
            *_of_axes(dilation, rank, 1),
        )
        return _conv(x, weight, bias, *numbers, activation)
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
