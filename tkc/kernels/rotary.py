"""Rotary position embedding (Su et al., 2021): pairs of a head's channels are turned by angles that
grow with the position.

    halves          (x[i], x[i + R/2])   as in GPT-NeoX and Llama
    interleaved     (x[2i], x[2i + 1])   as in GPT-J
    y[i] = x[i] cos - x[i'] sin,  y[i'] = x[i'] cos + x[i] sin   of a pair (x[i], x[i'])

cos and sin are [positions, R / 2]; channels from R on are left as they are. The backward pass turns
the other way.
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels.arrays import Array, contiguous, empty, expect, floats, power
from tkc.kernels.operator import operator

# of a program, which turns several heads of a position by the same angles, and where heads are few
# those of several positions
ELEMENTS = 2048


@tkc.jit
def _rotary(
    x,
    cos,
    sin,
    out,
    sign,
    INTERLEAVED: tkc.constexpr,
    HALF: tkc.constexpr,
    REST: tkc.constexpr,
    POSITIONS: tkc.constexpr,
    HEADS: tkc.constexpr,
):
    batch, position, head = (
        tkc.program_id(2),
        tkc.program_id(1) * POSITIONS,
        tkc.program_id(0) * HEADS,
    )
    x, out, r, at = x[batch], out[batch], cos.shape[1], (position, head, 0)
    c, s = (
        tkc.load(t, (position, 0), (POSITIONS, HALF)).to(tkc.float32)[:, None, :]
        for t in (cos, sin)
    )
    s = s * sign
    if INTERLEAVED:
        a, b = tkc.split(
            tkc.load(x[:, :, 0 : 2 * r], at, (POSITIONS, HEADS, 2 * HALF))
            .to(tkc.float32)
            .reshape(POSITIONS, HEADS, HALF, 2)
        )
        tkc.store(
            out[:, :, 0 : 2 * r], at, tkc.interleave(a * c - b * s, b * c + a * s).to(out.dtype)
        )
    else:
        a, b = (
            tkc.load(x[:, :, i * r : (i + 1) * r], at, (POSITIONS, HEADS, HALF)).to(tkc.float32)
            for i in range(2)
        )
        tkc.store(out[:, :, 0:r], at, (a * c - b * s).to(out.dtype))
        tkc.store(out[:, :, r : 2 * r], at, (b * c + a * s).to(out.dtype))
    if REST:
        tkc.store(
            out,
            (position, head, 2 * r),
            tkc.load(x, (position, head, 2 * r), (POSITIONS, HEADS, REST)),
        )


@operator
def rotary(
    x: Array, cos: Array, sin: Array, interleaved: bool = False, inverse: bool = False
) -> Iterator[Array]:
    """x, [batch, positions, heads, channels], turned by cos and sin, [positions or more, R / 2]
    with R <= channels. inverse: by the negative angles, which is the gradient. Raises LaunchError
    where a shape does not fit."""
    if len(x.shape) != 4:
        raise tkc.LaunchError(
            f"rotary: x is [batch, positions, heads, channels], got rank {len(x.shape)}"
        )
    batch, positions, heads, channels = x.shape
    expect(sin, cos.shape, "sin")
    if len(cos.shape) != 2 or cos.shape[0] < positions or 2 * cos.shape[1] > channels:
        raise tkc.LaunchError(
            f"rotary: cos and sin are [positions >= {positions}, R / 2 <= {channels // 2}], got"
            f" {list(cos.shape)}"
        )
    floats(x, cos, sin)
    out = empty(x, x.shape)
    yield out
    half, rest = (
        power(max(1, cos.shape[1])),
        (power(channels - 2 * cos.shape[1]) if channels > 2 * cos.shape[1] else 0),
    )
    step = max(1, min(power(heads), ELEMENTS // (2 * half)))
    several = max(1, min(power(positions), ELEMENTS // (2 * half * step)))
    _rotary[tkc.cdiv(heads, step), tkc.cdiv(positions, several), batch](
        contiguous(x),
        cos,
        sin,
        out,
        -1.0 if inverse else 1.0,
        INTERLEAVED=interleaved,
        HALF=half,
        REST=rest,
        POSITIONS=several,
        HEADS=step,
    )


@rotary.backward(saves="cos sin interleaved inverse", without="cos sin", everywhere=True)
def _(saved, grad):
    return rotary(grad, saved.cos, saved.sin, saved.interleaved, not saved.inverse)
