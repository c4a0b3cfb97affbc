"""Layer norm and RMS norm, forward and backward, alone and fused with the addition of a residual
stream or a gate.

    layer norm    y = (h - mean h) / sqrt(mean (h - mean h)^2 + eps) * weight + bias
    RMS norm      y = h / sqrt(mean h^2 + eps) * weight
                  where h = x, or x + residual
    gated         y = RMS norm of x, times silu(z), or RMS norm of x silu(z)

Backward, with n = h normalized, s = 1 / sqrt(…), d = g * weight (Ba et al., 2016; Zhang and
Sennrich, 2019):

    d h = s (d - n mean(d n) - mean d)       the last term for layer norm only
    d weight = sum over rows of g n,  d bias = sum over rows of g

The statistics are computed again from the row, which is in registers anyway: nothing but inputs is
kept for the backward pass. mean(d n) is s mean(d h), of the centred row, so that it need not wait
for s: threads meet once for a row, and once more for its mean. Sums over rows are partial sums, one
a program and each in its own order of rows, and then the sum of those: the same shapes give the
same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tkc
from tkc.kernels.activations import FUNCTIONS, dropout, swiglu, swiglu_backward
from tkc.kernels.arrays import (
    Array,
    contiguous,
    dtype_of,
    empty,
    expect,
    floats,
    matrix,
    same_shape,
)
from tkc.kernels.blocks import columns_block, row_block, row_configs, row_programs, rows_grid
from tkc.kernels.operator import operator

# columns over which the sums over rows are a kernel of their own: sums and row would not fit a
# block's registers
MAX_FUSED_COLUMNS = 8192
GRID = rows_grid("x")


def _dropped(values, row, length, share, seed, QUADS):
    """What dropout of the whole matrix leaves of its rows. QUADS: rows are whole quarters."""
    rows, columns = values.shape
    first = (row + tkc.arange(rows))[:, None] * length
    if QUADS and columns % 4 == 0:  # four elements share a call of philox
        words = tkc.philox(seed, first // 4 + tkc.arange(columns // 4)[None, :])
        a, b, c, d = (w[:, :, None] for w in words)
        which = tkc.arange(4)[None, None, :]
    else:
        index = first + tkc.arange(columns)[None, :]
        a, b, c, d = tkc.philox(seed, index // 4)
        which = index % 4
    bits = tkc.where(which == 0, a, tkc.where(which == 1, b, tkc.where(which == 2, c, d)))
    chance = (bits >> 8).to(tkc.float32).reshape(rows, columns) * 2.0**-24
    return tkc.where(chance >= share, values / (1 - share), 0.0)


@tkc.autotune(row_configs("x"), measure=False)
@tkc.jit
def _norm(
    x,
    residual,
    weight,
    bias,
    out,
    total,
    eps,
    CENTRE: tkc.constexpr,
    ROWS: tkc.constexpr,
    COLUMNS: tkc.constexpr,
    share=None,
    seed=None,
    QUADS: tkc.constexpr = False,
    gate=None,
    FIRST: tkc.constexpr = False,
):
    """FIRST: the gate's silu is multiplied before the norm, not behind it."""
    row, length = tkc.program_id(0) * ROWS, x.shape[1]
    values = tkc.load(x, (row, 0), (ROWS, COLUMNS)).to(tkc.float32)
    if gate is not None:
        gate = tkc.load(gate, (row, 0), (ROWS, COLUMNS)).to(tkc.float32)
        gate = FUNCTIONS["silu"](gate, False)
        values = values * gate if FIRST else values
    if share is not None:
        values = _dropped(values, row, length, share, seed, QUADS)
    if residual is not None:
        values = (values + tkc.load(residual, (row, 0), (ROWS, COLUMNS)).to(tkc.float32)).to(
            total.dtype
        )
        tkc.store(total, (row, 0), values)
        values = values.to(tkc.float32)
    if CENTRE:
        mean = tkc.sum(values, axis=1) / length
        values = tkc.where((tkc.arange(COLUMNS) < length)[None, :], values - mean[:, None], 0)
    scale = tkc.rsqrt(tkc.sum(values * values, axis=1) / length + eps)
    result = values * scale[:, None]
    if weight is not None:
        result = result * tkc.load(weight, (0,), (COLUMNS,)).to(tkc.float32)[None, :]
    if bias is not None:
        result = result + tkc.load(bias, (0,), (COLUMNS,)).to(tkc.float32)[None, :]
    if gate is not None and not FIRST:
        result = result * gate
    tkc.store(out, (row, 0), result.to(out.dtype))


@tkc.jit
def _norm_backward(
    grad,
    extra,
    h,
    weight,
    out,
    weights,
    biases,
    means,
    scales,
    eps,
    CENTRE: tkc.constexpr,
    ROWS: tkc.constexpr,
    COLUMNS: tkc.constexpr,
):
    first, length = tkc.program_id(0), h.shape[1]
    inside = (tkc.arange(COLUMNS) < length)[None, :]
    scale = 1.0 if weight is None else tkc.load(weight, (0,), (COLUMNS,)).to(tkc.float32)[None, :]
    by_weight, by_bias = tkc.zeros((COLUMNS,)), tkc.zeros((COLUMNS,))
    for row in tkc.range(first * ROWS, h.shape[0], tkc.num_programs(0) * ROWS):
        values, g = (
            tkc.load(h, (row, 0), (ROWS, COLUMNS)).to(tkc.float32),
            tkc.load(grad, (row, 0), (ROWS, COLUMNS)).to(tkc.float32),
        )
        # where g itself is wanted too, it alone is kept
        mean, (d, rest) = (
            tkc.zeros((ROWS,)),
            ((g * scale, 1.0) if weights is None else (g, scale)),
        )
        if CENTRE:
            mean, middle = tkc.sum(values, axis=1) / length, tkc.sum(d * rest, axis=1) / length
            values = tkc.where(inside, values - mean[:, None], 0)
        square, both = tkc.sum(values * values, axis=1), tkc.sum(d * values * rest, axis=1)
        s = tkc.rsqrt(square / length + eps)[:, None]
        if scales is not None:
            tkc.store(means, (row,), mean)
            tkc.store(scales, (row,), s.reshape(ROWS))
        n = values * s
        result = rest * d - n * (s * (both / length)[:, None])
        if CENTRE:
            result = result - middle[:, None]
        result = result * s
        if extra is not None:
            result = result + tkc.load(extra, (row, 0), (ROWS, COLUMNS)).to(tkc.float32)
        tkc.store(out, (row, 0), result.to(out.dtype))
        if weights is not None:
            by_weight = by_weight + tkc.sum(g * n, axis=0)
        if biases is not None:
            by_bias = by_bias + tkc.sum(g, axis=0)
    if weights is not None:
        tkc.store(weights[first], (0,), by_weight)
    if biases is not None:
        tkc.store(biases[first], (0,), by_bias)


@tkc.jit
def _column_sums(
    grad, h, means, scales, weights, biases, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr
):
    column, part = tkc.program_id(0) * COLUMNS, tkc.program_id(1)
    by_weight, by_bias = tkc.zeros((ROWS, COLUMNS)), tkc.zeros((ROWS, COLUMNS))
    for row in tkc.range(part * ROWS, h.shape[0], tkc.num_programs(1) * ROWS):
        g, values = (
            tkc.load(grad, (row, column), (ROWS, COLUMNS)).to(tkc.float32),
            tkc.load(h, (row, column), (ROWS, COLUMNS)).to(tkc.float32),
        )
        mean, s = tkc.load(means, (row,), (ROWS,)), tkc.load(scales, (row,), (ROWS,))
        by_weight = by_weight + g * (values - mean[:, None]) * s[:, None]
        by_bias = by_bias + g
    tkc.store(weights[part], (column,), tkc.sum(by_weight, axis=0))
    if biases is not None:
        tkc.store(biases[part], (column,), tkc.sum(by_bias, axis=0))


@tkc.jit
def _sum_rows(x, out, y, out_y, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    column = tkc.program_id(0) * COLUMNS
    total, other = tkc.zeros((ROWS, COLUMNS)), tkc.zeros((ROWS, COLUMNS))
    for row in tkc.range(0, x.shape[0], ROWS):
        total = total + tkc.load(x, (row, column), (ROWS, COLUMNS))
        if y is not None:
            other = other + tkc.load(y, (row, column), (ROWS, COLUMNS))
    tkc.store(out, (column,), tkc.sum(total, axis=0).to(out.dtype))
    if y is not None:
        tkc.store(out_y, (column,), tkc.sum(other, axis=0).to(out_y.dtype))


def sum_rows(x: Array, out: Array, y: Array | None = None, out_y: Array | None = None) -> None:
    """out = the sum of the rows of x, [rows, columns], in their order, as long as it has elements;
    out_y that of y's, which is of the same shape, in the same launch."""
    height, width = columns_block(*x.shape)
    if x.shape[1]:
        _sum_rows[tkc.cdiv(x.shape[1], width)](x, out, y, out_y, ROWS=height, COLUMNS=width)


def _forward(
    x: Array,
    residual: Array | None,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    centre: bool,
    share: float | None = None,
    seed: int | None = None,
    gate: Array | None = None,
    gate_first: bool = False,
):
    if not len(x.shape):
        raise tkc.LaunchError(
            "a norm is along the last axis; expected an array of rank 1 or more, got a scalar"
        )
    for name, v in ("weight", weight), ("bias", bias):
        expect(v, x.shape[-1:], name)
    same_shape(x=x, residual=residual, gate=gate)
    floats(x, residual, weight, bias, gate)
    out, total = empty(x), None if residual is None else empty(residual)
    yield out if residual is None else (out, total)
    source, target = matrix(contiguous(x)), matrix(out)
    stream, sums = (
        (None, None) if residual is None else (matrix(contiguous(residual)), matrix(total))
    )
    more: dict[str, Any] = {}
    if share is not None:
        more = {"share": share, "seed": seed, "QUADS": source.shape[1] % 4 == 0}
    if gate is not None:
        more = {"gate": matrix(contiguous(gate)), "FIRST": gate_first}
    _norm[GRID](
        source,
        stream,
        weight,
        bias,
        target,
        sums,
        eps,
        CENTRE=centre,
        **more,
    )


def _backward(
    grad: Array, extra: Array | None, h: Array, weight: Array | None, eps: float, centre: bool
):
    same_shape(grad=grad, h=h, extra=extra)
    floats(grad, extra, h, weight)
    expect(weight, h.shape[-1:], "weight")
    out = empty(h)
    by_weight, by_bias = (
        empty(h, h.shape[-1:], dtype_of(h if weight is None else weight)),
        empty(h, h.shape[-1:], dtype_of(h if weight is None else weight)),
    )
    yield (out, by_weight, by_bias) if centre else (out, by_weight)
    source, g, more, target = (
        matrix(contiguous(h)),
        matrix(contiguous(grad)),
        None if extra is None else matrix(contiguous(extra)),
        matrix(out),
    )
    rows, block = row_block(*source.shape)
    wide = source.shape[1] > MAX_FUSED_COLUMNS
    programs = row_programs(tkc.cdiv(source.shape[0], rows), rows * block)
    parts = min(programs, 16) if wide else programs
    weights, biases = (
        empty(h, (parts, source.shape[1]), "float32") if wanted else None
        for wanted in (True, centre)
    )
    if wide:
        means, scales = (empty(h, source.shape[:1], "float32") for _ in range(2))
        _norm_backward[max(1, tkc.cdiv(source.shape[0], rows))](
            g,
            more,
            source,
            weight,
            target,
            None,
            None,
            means,
            scales,
            eps,
            CENTRE=centre,
            ROWS=rows,
            COLUMNS=block,
        )
        _column_sums[tkc.cdiv(source.shape[1], 512), parts](
            g, source, means, scales, weights, biases, ROWS=8, COLUMNS=512
        )
    else:
        _norm_backward[programs](
            g,
            more,
            source,
            weight,
            target,
            weights,
            biases,
            None,
            None,
            eps,
            CENTRE=centre,
            ROWS=rows,
            COLUMNS=block,
        )
    sum_rows(weights, by_weight, biases, None if biases is None else by_bias)


@operator
def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Iterator[Array]:
    """Layer norm along the last axis; weight and bias are vectors of its length. The result has x's
    element type; computed in float32, the variance from squared deviations. Raises LaunchError
    where a shape does not fit."""
    yield from _forward(x, None, weight, bias, eps, True)


@operator
def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-6) -> Iterator[Array]:
    """RMS norm along the last axis, in x's element type; computed in float32. Raises LaunchError
    where a shape does not fit.
    """
    yield from _forward(x, None, weight, None, eps, False)


@operator
def gated_rms_norm(
    x: Array,
    gate: Array,
    weight: Array | None = None,
    eps: float = 1e-6,
    gate_first: bool = False,
) -> Iterator[Array]:
    """rms_norm(x, weight) · silu(gate), as gated delta rules end (Qwen3-Next), or with gate_first
    rms_norm(x · silu(gate), weight), as Mamba-2 does; of x's element type, computed in float32.
    gate: of x's shape. Differentiable with torch. Raises LaunchError where a shape does not fit.
    """
    yield from _forward(x, None, weight, None, eps, False, gate=gate, gate_first=gate_first)


@operator
def add_layer_norm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Iterator[tuple[Array, Array]]:
    """layer_norm(x + residual) and x + residual, which is rounded to the residual's element type
    before it is normalized.
    """
    yield from _forward(x, residual, weight, bias, eps, True)


@operator
def add_rms_norm(
    x: Array, residual: Array, weight: Array | None = None, eps: float = 1e-6
) -> Iterator[tuple[Array, Array]]:
    """rms_norm(x + residual) and x + residual, which is rounded to the residual's element type
    before it is normalized.
    """
    yield from _forward(x, residual, weight, None, eps, False)


@operator(varies="seed")
def dropout_add_layer_norm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    p: float = 0.1,
    seed: int = 0,
    eps: float = 1e-5,
) -> Iterator[tuple[Array, Array]]:
    """add_layer_norm(dropout(x, p, seed), residual, …) in one pass: the norm, and the sum. The mask
    is dropout's for the seed. Raises LaunchError where shapes do not fit, or unless 0 <= p < 1.
    """
    if not 0 <= p < 1:
        raise tkc.LaunchError(f"p is a probability below 1, got {p}; 0 drops nothing")
    yield from _forward(x, residual, weight, bias, eps, True, float(p), seed)


@operator
def layer_norm_backward(
    grad: Array,
    h: Array,
    weight: Array | None = None,
    extra: Array | None = None,
    eps: float = 1e-5,
) -> Iterator[tuple[Array, Array, Array]]:
    """The gradients of layer norm's input h (`extra`, one that reaches h another way, added),
    weight and bias.
    """
    yield from _backward(grad, extra, h, weight, eps, True)


@operator
def rms_norm_backward(
    grad: Array,
    h: Array,
    weight: Array | None = None,
    extra: Array | None = None,
    eps: float = 1e-6,
) -> Iterator[tuple[Array, Array]]:
    """The gradients of RMS norm's input h (`extra`, one that reaches h another way, added) and
    weight.
    """
    yield from _backward(grad, extra, h, weight, eps, False)


layer_norm.gradient_by(layer_norm_backward, "x weight bias", h="x")


rms_norm.gradient_by(rms_norm_backward, "x weight", h="x", everywhere=True)


@gated_rms_norm.backward(saves="x gate weight eps gate_first")
def _(saved, grad):
    x, gate, weight, grad = saved.x, saved.gate, saved.weight, grad.to(saved.x.dtype)
    up = x if saved.gate_first else rms_norm(x, weight, saved.eps)
    if saved.gate_first:
        grad, of_weight = rms_norm_backward(grad, swiglu(gate, x), weight, None, saved.eps)
    of_gate, dx = swiglu_backward(grad, gate.to(x.dtype), up)
    if not saved.gate_first:
        dx, of_weight = rms_norm_backward(dx, x, weight, None, saved.eps)
    return dx, of_gate, of_weight


@add_layer_norm.backward(saves="result weight bias eps")
def _(saved, grad, grad_sum):
    h, weight, bias = layer_norm_backward(grad, saved.result[1], saved.weight, grad_sum, saved.eps)
    return h, h, weight, bias


@add_rms_norm.backward(saves="result weight eps")
def _(saved, grad, grad_sum):
    h, weight = rms_norm_backward(grad, saved.result[1], saved.weight, grad_sum, saved.eps)
    return h, h, weight


@dropout_add_layer_norm.backward(saves="x result weight bias p seed eps")
def _(saved, grad, grad_sum):
    h, weight, bias = layer_norm_backward(grad, saved.result[1], saved.weight, grad_sum, saved.eps)
    return dropout(h.to(saved.x.dtype), saved.p, saved.seed), h, weight, bias
