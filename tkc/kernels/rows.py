"""Layers on rows: a tanh in a norm's place, and a softmax with zeros.

    DyT        y = weight tanh(α x) + bias                                     (Zhu et al., 2025)
               dx = g weight α (1 − t²),  dα = Σ g weight (1 − t²) x,  dweight = Σ g t,  dbias = Σ g
    sparsemax  y = max(x − τ, 0) with Σ y = 1                      (Martins and Astudillo, 2016)
               dx = g − the mean of g where y > 0, there; 0 elsewhere

τ is found by Newton's steps from max x − 1, which lies below it: the sum above τ is convex and made
of straight pieces, so that the steps never pass it and end at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import tkc
from tkc.kernels.arrays import (
    Array,
    contiguous,
    empty,
    expect,
    floats,
    matrix,
    power,
    same_shape,
)
from tkc.kernels.blocks import row_block, row_programs
from tkc.kernels.norms import MAX_FUSED_COLUMNS, sum_rows
from tkc.kernels.operator import operator

BLOCK = 4096  # elements of a row at once
MAX_STEPS = 64  # of Newton's method: rounding may leave it between two numbers


# ---- DyT -----------------------------------------------------------------------------------------
@tkc.jit
def _dyt(x, alpha, weight, bias, out, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    row, column = tkc.program_id(0) * ROWS, tkc.program_id(1) * COLUMNS
    t = tkc.tanh(tkc.load(x, (row, column), (ROWS, COLUMNS)).to(tkc.float32) * alpha[0])
    w, b = (tkc.load(v, (column,), (COLUMNS,)).to(tkc.float32)[None, :] for v in (weight, bias))
    tkc.store(out, (row, column), (t * w + b).to(out.dtype))


@tkc.jit
def _dyt_backward(
    grad,
    x,
    alpha,
    weight,
    out,
    weights,
    biases,
    alphas,
    ROWS: tkc.constexpr,
    COLUMNS: tkc.constexpr,
):
    part, column = tkc.program_id(0), tkc.program_id(1) * COLUMNS
    w, a = tkc.load(weight, (column,), (COLUMNS,)).to(tkc.float32)[None, :], alpha[0]
    by_weight, by_bias, by_alpha = (tkc.zeros((ROWS, COLUMNS)) for _ in range(3))
    for row in tkc.range(part * ROWS, x.shape[0], tkc.num_programs(0) * ROWS):
        values = tkc.load(x, (row, column), (ROWS, COLUMNS)).to(tkc.float32)
        g = tkc.load(grad, (row, column), (ROWS, COLUMNS)).to(tkc.float32)
        t = tkc.tanh(values * a)
        slope = g * w * (1 - t * t)
        tkc.store(out, (row, column), (slope * a).to(out.dtype))
        by_weight, by_bias, by_alpha = by_weight + g * t, by_bias + g, by_alpha + slope * values
    tkc.store(weights[part], (column,), tkc.sum(by_weight, axis=0))
    tkc.store(biases[part], (column,), tkc.sum(by_bias, axis=0))
    tkc.store(alphas[part], (column,), tkc.sum(by_alpha, axis=0))


def _check_dyt(x: Array, alpha: Array, weight: Array, bias: Array) -> None:
    floats(x, alpha, weight, bias)
    if not len(x.shape):
        raise tkc.LaunchError("dyt: x is [..., width], got a scalar; give it an axis")
    expect(alpha, (1,), "alpha")
    expect(weight, x.shape[-1:], "weight")
    expect(bias, x.shape[-1:], "bias")


@operator
def dyt(x: Array, alpha: Array, weight: Array, bias: Array) -> Iterator[Array]:
    """weight tanh(alpha x) + bias, of x's element type; x: [..., width]; alpha: [1]; weight and
    bias: [width]. Computed in float32. Differentiable with torch. Raises LaunchError where a shape
    does not fit.
    """
    _check_dyt(x, alpha, weight, bias)
    out = empty(x)
    yield out
    source, result = matrix(contiguous(x)), matrix(out)
    rows, block = row_block(source.shape[0], min(source.shape[1], BLOCK))
    _dyt[tkc.cdiv(source.shape[0], rows), tkc.cdiv(source.shape[1], block)](
        source, alpha, weight, bias, result, ROWS=rows, COLUMNS=block
    )


@operator
def dyt_backward(
    grad: Array, x: Array, alpha: Array, weight: Array
) -> Iterator[tuple[Array, Array, Array, Array]]:
    """The gradients of x, alpha, weight and bias."""
    same_shape(grad=grad, x=x)
    _check_dyt(x, alpha, weight, weight)
    out, of_alpha = empty(x), empty(alpha)
    of_weight, of_bias = empty(weight), empty(weight)
    yield out, of_alpha, of_weight, of_bias
    source, g, result = matrix(contiguous(x)), matrix(contiguous(grad)), matrix(out)
    rows, block = row_block(source.shape[0], min(source.shape[1], MAX_FUSED_COLUMNS // 8))
    parts = row_programs(tkc.cdiv(source.shape[0], rows), rows * block)
    weights, biases, alphas = (empty(x, (parts, source.shape[1]), "float32") for _ in range(3))
    _dyt_backward[parts, tkc.cdiv(source.shape[1], block)](
        g, source, alpha, weight, result, weights, biases, alphas, ROWS=rows, COLUMNS=block
    )
    sum_rows(weights, of_weight, biases, of_bias)
    sum_rows(alphas.reshape((parts * source.shape[1], 1)), of_alpha)


@dyt.backward(saves="x alpha weight")
def _(saved, grad):
    return dyt_backward(grad.to(saved.x.dtype), saved.x, saved.alpha, saved.weight)


# ---- sparsemax -----------------------------------------------------------------------------------
def _above(x, row, threshold, N):
    """How many elements of a row are above a threshold, and by how much in all."""
    count, total = tkc.zeros((N,)), tkc.zeros((N,))
    for at in tkc.range(0, x.shape[1], N):
        values = tkc.load(x[row], (at,), (N,), other=-inf).to(tkc.float32)
        over = values > threshold
        count = count + tkc.where(over, 1.0, 0.0)
        total = total + tkc.where(over, values - threshold, 0.0)
    return tkc.sum(count), tkc.sum(total)


@tkc.jit
def _sparsemax(x, out, N: tkc.constexpr):
    row, highest = tkc.program_id(0), tkc.full((N,), -inf)
    for at in tkc.range(0, x.shape[1], N):
        values = tkc.load(x[row], (at,), (N,), other=-inf).to(tkc.float32)
        highest = tkc.maximum(highest, values)
    threshold, steps, more = tkc.max(highest) - 1, 0, True
    while more:
        count, total = _above(x, row, threshold, N)
        further = threshold + (total - 1) / tkc.maximum(count, 1.0)
        steps = steps + 1
        more = (further > threshold) & (steps < MAX_STEPS)
        threshold = tkc.maximum(further, threshold)
    for at in tkc.range(0, x.shape[1], N):
        values = tkc.load(x[row], (at,), (N,)).to(tkc.float32)
        tkc.store(out[row], (at,), tkc.maximum(values - threshold, 0.0).to(out.dtype))


@tkc.jit
def _sparsemax_backward(grad, y, out, N: tkc.constexpr):
    row, count, total = tkc.program_id(0), tkc.zeros((N,)), tkc.zeros((N,))
    for at in tkc.range(0, y.shape[1], N):
        there = tkc.load(y[row], (at,), (N,)) > 0
        g = tkc.load(grad[row], (at,), (N,)).to(tkc.float32)
        count, total = count + tkc.where(there, 1.0, 0.0), total + tkc.where(there, g, 0.0)
    mean = tkc.sum(total) / tkc.maximum(tkc.sum(count), 1.0)
    for at in tkc.range(0, y.shape[1], N):
        there = tkc.load(y[row], (at,), (N,)) > 0
        g = tkc.load(grad[row], (at,), (N,)).to(tkc.float32)
        tkc.store(out[row], (at,), tkc.where(there, g - mean, 0.0).to(out.dtype))


def _row_length(x: Array) -> int:
    """Elements of a program's step."""
    return min(BLOCK, max(128, power(x.shape[1])))


@operator
def sparsemax(x: Array) -> Iterator[Array]:
    """The point nearest to each row of x, [..., width], whose elements are 0 or more and add up to
    1. Of x's element type, computed in float32. Differentiable with torch. Raises LaunchError for a
    scalar.
    """
    floats(x)
    if not len(x.shape):
        raise tkc.LaunchError("sparsemax: x is [..., width], got a scalar; give it an axis")
    out = empty(x)
    yield out
    rows = matrix(contiguous(x))
    if rows.shape[1]:
        _sparsemax[rows.shape[0]](rows, matrix(out), N=_row_length(rows))


@operator
def sparsemax_backward(grad: Array, y: Array) -> Iterator[Array]:
    """The gradient of x, from that of sparsemax's result y."""
    same_shape(grad=grad, y=y)
    out = empty(y)
    yield out
    rows = matrix(contiguous(y))
    if rows.shape[1]:
        _sparsemax_backward[rows.shape[0]](
            matrix(contiguous(grad)), rows, matrix(out), N=_row_length(rows)
        )


sparsemax.gradient_by(sparsemax_backward, "x", results="y")
