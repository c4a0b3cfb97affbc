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
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

import tkc
from tkc.kernels.arrays import (
    Array,
    contiguous,
    dtype_of,
    empty,
    expect,
    floats,
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
MOST_ROWS = 256  # of a block, along an axis, that a tensor map copies
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
    return type(phases[0])(*map(axes, phases[0].__dataclass_fields__))


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


def _block(image, first, t, k, BOX, WIDTH, S):
    """Rows of what a block of positions sees through the t-th tap, WIDTH channels from k on; first:
    where the first position begins to see."""
    _, at = _through(first, t, S)
    block = tkc.load(image, (*at, k), (*BOX, WIDTH))
    return block.reshape(BOX[0] * BOX[1] * BOX[2], WIDTH)


def _target(image, places, out, S):
    """The rows that results of positions are; -1 outside."""
    moved = zip(places, S.out_first, S.out_move, strict=True)
    at = [p * move + first for p, first, move in moved]
    return tkc.where(_inside(at, out), _row(image, at, out), -1)


def _finished(acc, bias, y, m, n, of, S, activation):
    """activation(acc + bias), to where results of positions are; of: as `_target` takes it."""
    if bias is not None:
        acc = acc + tkc.load(bias, (n,), (acc.shape[1],)).to(tkc.float32)[None, :]
    if activation is not None:
        acc = ACTIVATIONS[activation](acc)
    image, places, out = of
    at = m if S.out_move == (1, 1, 1) else _target(image, places, out, S)
    tkc.store(y, (at, n), acc.to(y.dtype))


def _box(count: int, grid: tuple[int, ...], steps: Steps, x: Array) -> tuple[int, ...]:
    """Extents of a block of a grid that is any `count` positions in a row, from a multiple of that
    on; () where it is none, or no tensor map copies what they see of x.
    """
    if steps.move != ONES or not has_wgmma(tkc.target_of(x)):
        return ()
    box, rest = [1] * AXES, count
    for axis in reversed(range(AXES)):
        box[axis] = min(rest, grid[axis])
        if grid[axis] % box[axis] or rest % box[axis]:
            return ()
        rest //= box[axis]
    return tuple(box) if rest == 1 and max(box) <= MOST_ROWS else ()


def _configs(args: dict) -> list[tkc.Config]:
    """A first one for the CPU, then those of which the model takes its choice."""
    w, back = args["w"], args["BACK"]
    n, k = (w.shape[2], w.shape[0]) if back else (w.shape[0], w.shape[2])
    line = max(16, min(64, power(k)))
    host = (64, max(16, min(64, power(n))))
    grid, phases = (args["gd"], args["gh"], args["gw"]), args["PHASES"]
    rows, tiles = args["images"] * prod(grid), dict.fromkeys((*TILES, *MORE_TILES))
    whole = phases[0].out_move == ONES  # else results are apart, and no block of rows
    boxes = {bm: _box(bm, grid, phases[0], args["x"]) if whole else () for bm, _ in tiles}
    found = [host]
    for tile in tiles:
        blocks = tkc.cdiv(rows, tile[0]) * tkc.cdiv(n, tile[1]) * len(phases)
        one_round = blocks <= PLACES
        held = whole or tile[0] <= GATHERED
        if tile[1] <= max(64, power(n)) and (tile in TILES or boxes[tile[0]] or one_round) and held:
            found.append(tile)
    return [
        tkc.Config(BM=bm, BN=bn, BK=line, BOX=boxes.get(bm, ()) if i else ())
        for i, (bm, bn) in enumerate(found)
    ]


def _grid(args: dict) -> tuple[int, int, int]:
    rows = args["images"] * args["gd"] * args["gh"] * args["gw"]
    columns = args["y"].shape[1]
    return tkc.cdiv(rows, args["BM"]), tkc.cdiv(columns, args["BN"]), len(args["PHASES"])


@tkc.autotune(_configs, measure=False)
@tkc.jit
def _windows(
    x,
    whole,
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
):
    """Positions: a grid of gd x gh x gw; what they see: of sd x sh x sw; results: od x oh x ow.
    x: rows of the images `whole`. BOX: extents of the positions of a program; () where they are
    gathered."""
    m, n, S = tkc.program_id(0) * BM, tkc.program_id(1) * BN, _of_phase(PHASES, tkc.program_id(2))
    grid = _positions((gd, gh, gw), (od, oh, ow), PHASES, S)
    image, places = _places(m if BOX else m + tkc.arange(BM), grid)
    corner, taps = _corner(image, places, (sd, sh, sw), S), S.count[0] * S.count[1] * S.count[2]
    acc = tkc.zeros((BM, BN))
    for i in tkc.range(0, taps * tkc.cdiv(x.shape[1], BK)):
        k, tap = i // taps * BK, _number(i % taps, S)
        if BOX:
            block = _block(whole[image], corner[0], i % taps, k, BOX, BK, S)
        else:
            block = tkc.load(x, (_seen(corner, (sd, sh, sw), i % taps, S), k), (BM, BK))
        if BACK:
            weights = tkc.load(w, (k, tap, n), (BK, None, BN))
        else:
            weights = tkc.load(w, (n, tap, k), (BN, None, BK)).T
        acc = tkc.dot(block, weights, acc)
    _finished(acc, bias, y, m, n, (image, places, (od, oh, ow)), S, ACTIVATION)


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
    _finished(acc, bias, y, m, n, (image, places, (od, oh, ow)), S, ACTIVATION)


@tkc.jit
def _of_weights(
    grad,
    x,
    whole,
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
    BOX: tkc.constexpr,
):
    """parts[part, :, t, :] = the sum over a part's positions of grad[p] x[seen through t]ᵀ. BOX: as
    in `_windows`, of the positions of a step."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    taps = S.count[0] * S.count[1] * S.count[2]
    t, part = tkc.program_id(2) % taps, tkc.program_id(2) // taps
    end = tkc.minimum((part + 1) * length, grad.shape[0])
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(part * length, end, BK):
        image, places = _places(k if BOX else k + tkc.arange(BK), (gd, gh, gw))
        corner = _corner(image, places, (sd, sh, sw), S)
        if BOX:
            block = _block(whole[image], corner[0], t, n, BOX, BN, S)
        else:
            block = tkc.load(x, (_seen(corner, (sd, sh, sw), t, S), n), (BK, BN))
        acc = tkc.dot(tkc.load(grad, (k, m), (BK, BM)).T, block, acc)
    tkc.store(parts[part, :, t], (m, n), acc.to(parts.dtype))


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
) -> None:
    """Grids of positions. sizes: of the largest, of what they see and of the results."""
    images, (grid, source, out) = y.shape[0], sizes
    rows, results = _rows(x), y.reshape((prod(y.shape[:-1]), y.shape[-1]))
    if _is_each(x, weight):
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
    _windows[_grid](
        rows,
        contiguous(x).reshape((x.shape[0], *source, x.shape[-1])),
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
    if 0 in y.shape or not x.shape[-1]:
        return
    if found.is_pointwise and not _is_each(x, weight):
        w = weight.reshape((weight.shape[0], weight.shape[-1]))
        matmul(_rows(x), w.T, bias, activation, y.reshape((prod(y.shape[:-1]), y.shape[-1])))
        return
    sizes = found.out, found.size, found.out
    _launch(x, weight, bias, y, (found.forward(),), sizes, activation, False)


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
    nothing = 0 in grad.shape or 0 in x.shape
    make = zeros if nothing or _has_gaps(found) else empty
    dx = make(x, x.shape if of_x else (0,))
    dw = (zeros if nothing else empty)(weight, weight.shape if of_weight else (0,))
    yield dx, dw
    if nothing:
        return
    if of_x:
        phases = sorted(found.phases(), key=lambda phase: -prod(phase[1].count))
        grids, steps = zip(*(p for p in phases if prod(p[1].count)), strict=True)
        sizes = tuple(map(max, zip(*grids, strict=True))), found.out, found.size
        _launch(grad, weight, None, dx, steps, sizes, None, True)
    if of_weight:
        _weights_gradient(grad, x, dw, found, _is_each(x, weight))


def _has_gaps(found: Convolution) -> bool:
    """Whether positions of x are seen by none of y's."""
    return any(not prod(steps.count) for _, steps in found.phases())


def _sides(outputs: int, channels: int, taps: int, positions: int, wide: bool) -> tuple:
    """Extents of a block of the weights' gradient, and in how many partial sums of positions it is
    computed: so that few products are outside of it, each row that is read has many, rounds of
    programs are full, and little is written and read again. wide: tensor maps copy all operands.
    """

    def cost(plan: tuple[int, int, int]) -> float:
        m, n, count = plan
        blocks = tkc.cdiv(outputs, m) * tkc.cdiv(channels, n)
        rounds = tkc.cdiv(blocks * taps * count, PLACES) * PLACES / (taps * count)
        products = rounds * (m * n + READ * (m + n))
        written = outputs * channels * count * PART / positions if count > 1 else 0
        return products + written

    most = max(1, min(tkc.cdiv(positions, 4 * STEP), 65535 // taps, MOST_PARTS))
    sides = [(m, n) for m, n in SIDES if wide or n <= GATHERED]
    m, n, count = min(((m, n, c) for m, n in sides for c in range(1, most + 1)), key=cost)
    return max(16, min(m, power(outputs))), max(16, min(n, power(channels))), count


def _weights_gradient(grad: Array, x: Array, out: Array, found: Convolution, each: bool) -> None:
    """Launches partial sums over positions, and their sum."""
    g, rows, taps, steps = _rows(grad), _rows(x), prod(found.taps), found.forward()
    box = _box(STEP, found.out, steps, x)
    if each:
        n = min(STRIP[1], power(rows.shape[1]))
        blocks = tkc.cdiv(rows.shape[1], n) * taps
        count = max(1, min(tkc.cdiv(g.shape[0], 4 * STEP), PROGRAMS // blocks, 65535 // taps))
    else:
        m, n, count = _sides(g.shape[1], rows.shape[1], taps, g.shape[0], bool(box))
    length = tkc.cdiv(tkc.cdiv(g.shape[0], count), STEP) * STEP
    count = tkc.cdiv(g.shape[0], length)
    sizes = *found.out, *found.size
    if each:
        parts = empty(x, (count, rows.shape[1], taps), "float32")
        _of_each[tkc.cdiv(rows.shape[1], n), taps, count](
            g, rows, parts.swapaxes(1, 2), *sizes, length, S=steps, BN=n, BK=STEP
        )
    else:
        shape = count, g.shape[1], taps, rows.shape[1]
        parts = empty(x, shape, "float32") if count > 1 else out.reshape(shape)
        images = contiguous(x).reshape((x.shape[0], *found.size, x.shape[-1]))
        _of_weights[tkc.cdiv(g.shape[1], m), tkc.cdiv(rows.shape[1], n), taps * count](
            *(g, rows, images, parts, *sizes, length), S=steps, BM=m, BN=n, BK=STEP, BOX=box
        )
        if count == 1:
            return
    sums = parts.reshape((count, prod(parts.shape[1:])))
    sum_rows(sums, out.reshape((sums.shape[1],)))


@_conv.backward(saves="x weight bias s0 s1 s2 p0 p1 p2 d0 d1 d2 activation result")
def _(saved, grad):
    x, w, bias, wanted = saved.x, saved.weight, saved.bias, saved.needs
    s, p, d = ([getattr(saved, f"{name}{i}") for i in range(AXES)] for name in "spd")
    grad = before_activation(
        grad, saved.activation, saved.result, lambda: _conv(x, w, bias, *s, *p, *d, None)
    ).to(x.dtype)
    dx, dw = conv_backward(grad, x, w, *s, *p, *d, bool(wanted["x"]), bool(wanted["weight"]))
    return dx, dw, grad.reshape(-1, grad.shape[-1]).sum(0) if wanted["bias"] else None


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
