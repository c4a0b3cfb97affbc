"""Group norm, alone and with SiLU, forward and backward, channels first or last.

    n = (x − mean) / sqrt(mean (x − mean)² + eps)        over the channels and positions of a group
    u = n weight_c + bias_c,   y = u, or u / (1 + exp −u)                 (Wu and He, 2018)

Backward, with g = dy, or dy silu'(u), and d = g weight_c:

    dx = s (d − n mean(d n) − mean d),   dweight_c = Σ g n,   dbias_c = Σ g

A program has a group of an image, whose positions the blocks of a cluster share. Of a group that
registers do not hold, distances from what its first positions are on average are summed, and their
squares, so that one reading gives both without cancellation; between its loops it stays in shared
memory where that has room. Sums for weight and bias are one an image and channel, added up in the
order of images.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import tkc
from tkc.kernels.activations import FUNCTIONS
from tkc.kernels.arrays import Array, contiguous, dtype_of, empty, expect, floats, power
from tkc.kernels.norms import sum_rows
from tkc.kernels.operator import operator

PART, SAMPLE = 1024, 16  # of the positions of a program that has a whole group
HELD, HELD_BACKWARD = 1 << 17, 1 << 13  # elements of a group that registers hold


def _of_channels(vector, first, other, CHANNELS):
    """Numbers of channels, beside positions."""
    if vector is None:
        return other
    return tkc.load(vector, (first,), (CHANNELS,)).to(tkc.float32)[:, None]


def _normalized(x, eps, FULL, HELD, CHANNELS, POSITIONS):
    """A group less its mean, and its inverse deviation."""
    count = CHANNELS * x.shape[1]
    values = tkc.load(x, (0, 0), (CHANNELS, POSITIONS)).to(tkc.float32)
    here = (tkc.arange(POSITIONS) < x.shape[1])[None, :]
    if HELD:
        mean = tkc.sum(values, axis=(0, 1)) / count
        apart = values - mean if FULL else tkc.where(here, values - mean, 0.0)
        square = tkc.sum(apart * apart, axis=(0, 1)) / count
    else:
        near = tkc.load(x, (0, 0), (CHANNELS, SAMPLE)).to(tkc.float32)
        near = tkc.sum(near, axis=(0, 1)) / (CHANNELS * tkc.minimum(x.shape[1], SAMPLE))
        apart = values - near if FULL else tkc.where(here, values - near, 0.0)
        mean = tkc.sum(apart, axis=(0, 1)) / count
        square = tkc.sum(apart * apart, axis=(0, 1)) / count
        square, apart = tkc.maximum(square - mean * mean, 0.0), apart - mean
    return apart, tkc.rsqrt(square + eps)


@tkc.jit
def _group_norm(
    x,
    weight,
    bias,
    out,
    eps,
    SILU: tkc.constexpr,
    FULL: tkc.constexpr,
    HELD: tkc.constexpr,
    CHANNELS: tkc.constexpr,
    POSITIONS: tkc.constexpr,
):
    image, group = tkc.program_id(1), tkc.program_id(0)
    x, out = x[image, group], out[image, group]
    first = group * CHANNELS
    apart, scale = _normalized(x, eps, FULL, HELD, CHANNELS, POSITIONS)
    w, b = (_of_channels(v, first, o, CHANNELS) for v, o in ((weight, 1.0), (bias, 0.0)))
    result = apart * (scale * w) + b
    if SILU:
        result = FUNCTIONS["silu"](result, False)
    tkc.store(out, (0, 0), result.to(out.dtype))


def _before_silu(g, n, w, b, SILU):
    """The gradient of what SiLU was applied to, if it was."""
    return g * FUNCTIONS["silu"](n * w + b, True) if SILU else g


@tkc.jit
def _group_norm_backward(
    grad,
    x,
    weight,
    bias,
    out,
    weights,
    biases,
    eps,
    SILU: tkc.constexpr,
    FULL: tkc.constexpr,
    HELD: tkc.constexpr,
    CHANNELS: tkc.constexpr,
    POSITIONS: tkc.constexpr,
):
    image, group = tkc.program_id(1), tkc.program_id(0)
    x, grad, out = x[image, group], grad[image, group], out[image, group]
    first, count = group * CHANNELS, CHANNELS * x.shape[1]
    apart, scale = _normalized(x, eps, FULL, HELD, CHANNELS, POSITIONS)
    w, b = (_of_channels(v, first, o, CHANNELS) for v, o in ((weight, 1.0), (bias, 0.0)))
    n, g = apart * scale, tkc.load(grad, (0, 0), (CHANNELS, POSITIONS)).to(tkc.float32)
    g = _before_silu(g, n, w, b, SILU)
    by_n, by_one = tkc.sum(g * n, axis=1), tkc.sum(g, axis=1)
    tkc.store(weights[image], (first,), by_n)
    tkc.store(biases[image], (first,), by_one)
    each = 1.0 if weight is None else w.reshape(CHANNELS)
    mean_n, mean_one = tkc.sum(by_n * each) / count, tkc.sum(by_one * each) / count
    tkc.store(out, (0, 0), (scale * (g * w - n * mean_n - mean_one)).to(out.dtype))


def _groups(x: Array, groups: int, channels_last: bool) -> Array:
    """[images, groups, channels of a group, positions], a view of a contiguous array."""
    channels = x.shape[-1] if channels_last else x.shape[1]
    images, of_group = x.shape[0], channels // groups
    positions = prod(x.shape) // max(images * channels, 1)
    if not channels_last:
        return x.reshape((images, groups, of_group, positions))
    turned = x.reshape((images, positions, groups, of_group))
    return turned.swapaxes(1, 2).swapaxes(2, 3)


def _checked(
    x: Array, groups: int, weight: Array | None, bias: Array | None, channels_last: bool
) -> int:
    """How many channels there are. Raises LaunchError where shapes do not fit."""
    floats(x, weight, bias)
    if len(x.shape) < 2:
        raise tkc.LaunchError(
            f"group_norm: x is [images, channels, …] or [images, …, channels], got {list(x.shape)}"
        )
    channels = x.shape[-1] if channels_last else x.shape[1]
    if groups < 1 or channels % groups:
        raise tkc.LaunchError(
            f"group_norm: {channels} channels do not make {groups} groups of one size"
        )
    expect(weight, (channels,), "weight")
    expect(bias, (channels,), "bias")
    return channels


def _block(groups: Array, held: int) -> dict[str, int]:
    """Of a program that has a group of an image; held: elements that registers hold."""
    channels, positions = groups.shape[2:]
    block = power(positions) if positions < PART else tkc.cdiv(positions, PART) * PART
    return {
        "FULL": positions == block,
        "HELD": channels * block <= held,
        "CHANNELS": channels,
        "POSITIONS": block,
    }


@operator
def group_norm(
    x: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    silu: bool = False,
    channels_last: bool = False,
) -> Iterator[Array]:
    """Group norm of x, [images, channels, …] (channels_last: [images, …, channels]), then SiLU if
    wanted; weight and bias: [channels]. Of x's element type, computed in float32. Differentiable
    with torch. Raises LaunchError where shapes do not fit.
    """
    _checked(x, groups, weight, bias, channels_last)
    out = empty(x, x.shape)
    yield out
    if 0 in x.shape:
        return
    source = _groups(contiguous(x), groups, channels_last)
    result = _groups(out, groups, channels_last)
    _group_norm[groups, x.shape[0]](
        source, weight, bias, result, float(eps), SILU=silu, **_block(source, HELD)
    )


@operator
def group_norm_backward(
    grad: Array,
    x: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    silu: bool = False,
    channels_last: bool = False,
) -> Iterator[tuple[Array, Array, Array]]:
    """The gradients of x, weight and bias."""
    channels = _checked(x, groups, weight, bias, channels_last)
    expect(grad, x.shape, "grad")
    kind = dtype_of(x if weight is None else weight)
    out, of_weight, of_bias = empty(x, x.shape), *(empty(x, (channels,), kind) for _ in range(2))
    yield out, of_weight, of_bias
    images = 0 if 0 in x.shape else x.shape[0]
    weights, biases = (empty(x, (images, channels), "float32") for _ in range(2))
    if images:
        source, g, result = (
            _groups(v, groups, channels_last) for v in (contiguous(x), contiguous(grad), out)
        )
        _group_norm_backward[groups, x.shape[0]](
            g,
            source,
            weight,
            bias,
            result,
            weights,
            biases,
            float(eps),
            SILU=silu,
            **_block(source, HELD_BACKWARD),
        )
    sum_rows(weights, of_weight, biases, of_bias)


@group_norm.backward(saves="x groups weight bias eps silu channels_last")
def _(saved, grad):
    x, weight, bias = group_norm_backward(
        grad.to(saved.x.dtype),
        saved.x,
        saved.groups,
        saved.weight,
        saved.bias,
        saved.eps,
        saved.silu,
        saved.channels_last,
    )
    return x, None, weight, bias
