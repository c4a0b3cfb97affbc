"""Linear attention of feature maps: weights φ(q)·φ(k), which may be divided by their sum.

    Based (Arora et al., 2024)    φ(x)·φ(y) = 1 + s + s²/2,  s = scale · x·y

With z = √scale · x of width f, φ(z) has z_i² / √2 and z_i z_j for i < j, then z, then 1: a product
that stands twice in s² is one feature. They are in the order of j − i, going round: feature
d f + i is z_i z_j with j = (i + d) mod f.

The sum of weights is one more column of the result, of a column of ones beside v:

    Σ_s φ(q_t)·φ(k_s) (v_s, 1) = (N_t, Z_t),    o_t = N_t / (Z_t + ε)
    dN_t = do_t / (Z_t + ε),    dZ_t = −(do_t · o_t) / (Z_t + ε)

so that gradients, states, ragged batches and segments are those of linear_attention.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import tkc
from tkc.kernels.arrays import Array, contiguous, empty, expect, floats, matrix, power
from tkc.kernels.blocks import row_block
from tkc.kernels.chunks import WIDEST
from tkc.kernels.linear_attention import (
    linear_attention,
    linear_attention_backward,
    linear_attention_step,
)
from tkc.kernels.operator import operator

UNIT = 16  # features and columns come in whole units: rows of short floats begin at 32 bytes
MAPPED_ROWS = 64  # of a program: what features are of is computed once for all
EPSILON = 1e-6  # beside a sum of weights


def _features(width: int) -> int:
    """How many features a row of this width has, with the zeros behind them."""
    return tkc.cdiv(width * (width + 1) // 2 + width + 1, UNIT) * UNIT


@tkc.jit
def _taylor(x, out, root, F: tkc.constexpr, ROWS: tkc.constexpr, N: tkc.constexpr):
    row, n, pairs = tkc.program_id(0) * ROWS, tkc.arange(N), F * (F + 1) // 2
    values = tkc.load(x, (row, 0), (ROWS, power(F))).to(tkc.float32) * root

    def factor(index, given):
        index = tkc.broadcast_to(tkc.where(given, index, 0)[None, :], (ROWS, N))
        return tkc.where(given[None, :], tkc.gather(values, index, 1), 1.0)

    weights = tkc.where(n < F, 0.5**0.5, tkc.where(n <= pairs + F, 1.0, 0.0))
    one = factor(tkc.where(n < pairs, n % F, n - pairs), n < pairs + F)
    result = one * factor((n % F + n // F) % F, n < pairs) * weights[None, :]
    tkc.store(out, (row, 0), result.to(out.dtype))


@tkc.jit
def _taylor_backward(grad, x, out, root, F: tkc.constexpr, ROWS: tkc.constexpr, N: tkc.constexpr):
    row, i, pairs = tkc.program_id(0) * ROWS, tkc.arange(N), F * (F + 1) // 2
    rows = row + tkc.arange(ROWS)
    there = (rows[:, None] < x.shape[0]) & (i < F)[None, :]
    slopes, values = (t.ptr + rows[:, None] * t.strides[0] for t in (grad, x))

    def taken(at, index, mask):
        return tkc.load(at + index[None, :], mask=mask, other=0.0).to(tkc.float32)

    total = taken(slopes, i, there) * taken(values, i, there) * (2**0.5 * root)
    total = total + taken(slopes, pairs + i, there)
    for d in tkc.range(1, F // 2 + 1):
        after, before = (i + d) % F, (i + F - d) % F
        up, down = d * F + i, d * F + before
        total = total + taken(slopes, up, there & (up < pairs)[None, :]) * (
            taken(values, after, there) * root
        )
        total = total + taken(slopes, down, there & (down < pairs)[None, :]) * (
            taken(values, before, there) * root
        )
    tkc.store(out, (row, 0), (total * root).to(out.dtype))


def _check_features(x: Array, name: str) -> None:
    floats(x)
    if not len(x.shape) or not x.shape[-1]:
        raise tkc.LaunchError(f"{name}: x is [..., width], got {list(x.shape)}; give it an axis")


@operator
def taylor_features(x: Array, scale: float | None = None) -> Iterator[Array]:
    """φ(x), [..., F] of x's element type, with φ(x)·φ(y) = 1 + s + s²/2 and s = scale x·y.

    x: [..., f], f of 1 or more; F: f (f + 1) / 2 + f + 1 and zeros behind them, to a multiple of
    16. scale: f^-½ by default, above 0. Differentiable with torch. Raises LaunchError where x has
    no such shape.
    """
    _check_features(x, "taylor_features")
    width = x.shape[-1]
    out = empty(x, (*x.shape[:-1], _features(width)))
    yield out
    rows, result = matrix(contiguous(x)), matrix(out)
    height = min(MAPPED_ROWS, power(rows.shape[0]))
    _taylor[tkc.cdiv(rows.shape[0], height)](
        rows, result, _root(width, scale), F=width, ROWS=height, N=result.shape[1], num_warps=4
    )


def _root(width: int, scale: float | None) -> float:
    if scale is not None and not scale > 0:
        raise tkc.LaunchError(f"taylor_features: scale is above 0, got {scale}")
    return sqrt(width**-0.5 if scale is None else scale)


@operator
def taylor_features_backward(grad: Array, x: Array, scale: float | None = None) -> Iterator[Array]:
    """The gradient of x from that of its features."""
    _check_features(x, "taylor_features_backward")
    width = x.shape[-1]
    expect(grad, (*x.shape[:-1], _features(width)), "grad")
    out = empty(x)
    yield out
    rows, block = matrix(contiguous(x)), power(width)
    height, _ = row_block(rows.shape[0], block)
    _taylor_backward[tkc.cdiv(rows.shape[0], height)](
        matrix(contiguous(grad)),
        rows,
        matrix(out),
        _root(width, scale),
        F=width,
        ROWS=height,
        N=block,
    )


taylor_features.gradient_by(taylor_features_backward, "x")


# ---- weights divided by their sum ----------------------------------------------------------------
@tkc.jit
def _beside_ones(x, out, ROWS: tkc.constexpr, V: tkc.constexpr, UNIT: tkc.constexpr):
    row, width = tkc.program_id(0) * ROWS, x.shape[1]
    tkc.store(out[:, 0:width], (row, 0), tkc.load(x, (row, 0), (ROWS, V)))
    ones = tkc.where(tkc.arange(UNIT) == 0, 1.0, tkc.zeros((ROWS, UNIT)))
    tkc.store(out, (row, width), ones.to(out.dtype))


@tkc.jit
def _divide(sums, out, epsilon, ROWS: tkc.constexpr, V: tkc.constexpr):
    row, width = tkc.program_id(0) * ROWS, out.shape[1]
    total = tkc.load(sums, (row, width), (ROWS, None)).to(tkc.float32) + epsilon
    values = tkc.load(sums[:, 0:width], (row, 0), (ROWS, V)).to(tkc.float32)
    tkc.store(out, (row, 0), (values / total[:, None]).to(out.dtype))


@tkc.jit
def _divide_backward(
    grad, sums, out, epsilon, ROWS: tkc.constexpr, V: tkc.constexpr, UNIT: tkc.constexpr
):
    row, width = tkc.program_id(0) * ROWS, grad.shape[1]
    total = tkc.load(sums, (row, width), (ROWS, None), other=1.0).to(tkc.float32) + epsilon
    values = tkc.load(sums[:, 0:width], (row, 0), (ROWS, V)).to(tkc.float32)
    slopes = tkc.load(grad, (row, 0), (ROWS, V)).to(tkc.float32) / total[:, None]
    tkc.store(out[:, 0:width], (row, 0), slopes.to(out.dtype))
    of_total = -tkc.sum(slopes * values, axis=1) / total
    others = tkc.where(tkc.arange(UNIT)[None, :] == 0, of_total[:, None], 0.0)
    tkc.store(out, (row, width), others.to(out.dtype))


def _rows_of(x: Array, width: int) -> tuple[int, dict[str, int]]:
    """How many programs take x's rows, of `width` elements, and their compile-time values."""
    height, _ = row_block(x.shape[0], power(width))
    return tkc.cdiv(x.shape[0], height), {"ROWS": height, "V": power(width)}


@operator(name="beside_ones")
def _with_ones(x: Array) -> Iterator[Array]:
    """x [..., width], then 1, then zeros to 16 columns more."""
    out = empty(x, (*x.shape[:-1], x.shape[-1] + UNIT))
    yield out
    rows = matrix(contiguous(x))
    programs, sizes = _rows_of(rows, x.shape[-1])
    _beside_ones[programs](rows, matrix(out), **sizes, UNIT=UNIT)


@_with_ones.backward()
def _(saved, grad):
    return grad[..., :-UNIT]


@operator(name="divided_by_sum")
def _divided(sums: Array) -> Iterator[Array]:
    """[..., width] of [..., width + 16] by the element behind them."""
    out = empty(sums, (*sums.shape[:-1], sums.shape[-1] - UNIT))
    yield out
    result = matrix(out)
    programs, sizes = _rows_of(result, out.shape[-1])
    _divide[programs](matrix(contiguous(sums)), result, EPSILON, **sizes)


@operator(name="divided_by_sum_backward")
def _divided_backward(grad: Array, sums: Array) -> Iterator[Array]:
    """The gradient of sums."""
    out = empty(sums)
    yield out
    rows = matrix(contiguous(grad))
    programs, sizes = _rows_of(rows, grad.shape[-1])
    _divide_backward[programs](
        rows, matrix(contiguous(sums)), matrix(out), EPSILON, **sizes, UNIT=UNIT
    )


_divided.gradient_by(_divided_backward, "sums")


def normalized_linear_attention(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    rate: Array | None = None,
    weight: Array | None = None,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
) -> tuple[Array, Array]:
    """`linear_attention` with each position's weights divided by their sum and 10^-6, for q and k
    that are 0 or more: o [batch, T, heads, V], and the last state [batch, heads, K, V + 16], whose
    column V is that of the sums and whose other columns behind V are 0.

    Arguments are those of linear_attention, and of the result's form `initial`. Differentiable with
    torch. Raises LaunchError where a shape or type does not fit.
    """
    sums, state = linear_attention(q, k, _with_ones(v), g, rate, weight, initial, cu_seqlens, 1.0)
    return _divided(sums), state


def normalized_linear_attention_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    rate: Array | None = None,
    weight: Array | None = None,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """The gradients of q, k, v, g, weight and initial from that of the result, as in
    linear_attention_backward.
    """
    given = q, k, _with_ones(v), g, rate, weight, initial, cu_seqlens, 1.0
    slopes = _divided_backward(grad, linear_attention(*given)[0])
    dq, dk, dv, *others = linear_attention_backward(slopes, *given)
    return dq, dk, contiguous(dv[..., :-UNIT]), *others


def normalized_linear_attention_step(
    q: Array,
    k: Array,
    v: Array,
    state: Array,
    g: Array | None = None,
    rate: Array | None = None,
    weight: Array | None = None,
) -> Array:
    """One position of each sequence: the state, [batch, heads, K, V + 16] as in
    normalized_linear_attention, becomes the next one in place, and o is [batch, heads, V]. The rest
    is as in linear_attention_step.
    """
    return _divided(linear_attention_step(q, k, _with_ones(v), state, g, rate, weight, 1.0))


def _check_width(x: Array, name: str) -> None:
    if _features(x.shape[-1]) > WIDEST:
        raise tkc.LaunchError(
            f"{name}: q and k have {x.shape[-1]} channels, whose features are more than {WIDEST};"
            " project them to 21 or fewer"
        )


def based(
    q: Array,
    k: Array,
    v: Array,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    scale: float | None = None,
    normalize: bool = True,
) -> tuple[Array, Array]:
    """o_t = Σ_{s<=t} w_ts v_s with w_ts = 1 + x + x²/2, x = scale · q_t·k_s, over Σ_s w_ts where
    normalized: o [batch, T, heads, V], and the last state of `taylor_features` of k.

    q, k: [batch, T, heads or a divisor of them, f], f up to 21; v: [batch, T, heads, V]. initial:
    the state before, [batch, heads, F, V + 16] as in normalized_linear_attention, of V columns
    where not normalized. cu_seqlens: as in linear_attention. scale: f^-½ by default. Features are
    rounded to q's element type. Differentiable with torch. Raises LaunchError where a shape or type
    does not fit.
    """
    _check_width(q, "based")
    q, k = (taylor_features(x, scale) for x in (q, k))
    if normalize:
        return normalized_linear_attention(q, k, v, None, None, None, initial, cu_seqlens)
    return linear_attention(q, k, v, None, None, None, initial, cu_seqlens, 1.0)


def based_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    scale: float | None = None,
    normalize: bool = True,
) -> tuple[Array, Array, Array, Array]:
    """The gradients of q, k, v and initial (without elements where there is none) from that of the
    result of `based`.
    """
    _check_width(q, "based_backward")
    mapped = [taylor_features(x, scale) for x in (q, k)]
    if normalize:
        given = *mapped, v, None, None, None, initial, cu_seqlens
        results = normalized_linear_attention_backward(grad, *given)
    else:
        given = *mapped, v, None, None, None, initial, cu_seqlens, 1.0
        results = linear_attention_backward(grad, *given)
    dq, dk = (
        taylor_features_backward(d, x, scale) for d, x in zip(results[:2], (q, k), strict=True)
    )
    return dq, dk, results[2], results[5]


def based_step(
    q: Array,
    k: Array,
    v: Array,
    state: Array,
    scale: float | None = None,
    normalize: bool = True,
) -> Array:
    """One position of each sequence: the state, as `based` gives it, becomes the next one in place,
    and o is [batch, heads, V]. q, k: [batch, heads or a divisor, f]; v: [batch, heads, V].
    """
    _check_width(q, "based_step")
    q, k = (taylor_features(x, scale) for x in (q, k))
    if normalize:
        return normalized_linear_attention_step(q, k, v, state)
    return linear_attention_step(q, k, v, state, None, None, None, 1.0)
