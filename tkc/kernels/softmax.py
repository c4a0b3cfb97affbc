"""Softmax and log-softmax along an axis, forward and backward: a row is read once and written once.

softmax(x)[i] = exp(x[i] - max x) / sum exp(x - max x)          d x = y (g - sum g y)
log_softmax(x)[i] = x[i] - max x - log sum exp(x - max x)       d x = g - exp(y) sum g
"""

from __future__ import annotations

from collections.abc import Iterator
from math import e, inf, log, log2

import tkc
from tkc.kernels.arrays import Array, contiguous, empty, floats, last, matrix, same_shape
from tkc.kernels.blocks import row_configs, rows_grid
from tkc.kernels.operator import operator

LOG2E, LN2 = log2(e), log(2)
FORWARD, BACKWARD = rows_grid("x"), rows_grid("y")


@tkc.autotune(row_configs("x"), measure=False)
@tkc.jit
def _softmax(x, out, LOG: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    row = tkc.program_id(0) * ROWS
    values = tkc.load(x, (row, 0), (ROWS, COLUMNS), other=-inf).to(tkc.float32)
    top = tkc.max(values, axis=1)
    shifted = (values - top[:, None]) * LOG2E
    powers = tkc.exp2(shifted)
    total = tkc.sum(powers, axis=1)
    result = (shifted - tkc.log2(total)[:, None]) * LN2 if LOG else powers * (1 / total)[:, None]
    tkc.store(out, (row, 0), result.to(out.dtype))


@tkc.autotune(row_configs("y"), measure=False)
@tkc.jit
def _softmax_backward(
    grad, y, out, LOG: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr
):
    row = tkc.program_id(0) * ROWS
    g = tkc.load(grad, (row, 0), (ROWS, COLUMNS)).to(tkc.float32)
    if LOG:
        values = tkc.load(y, (row, 0), (ROWS, COLUMNS), other=-inf).to(tkc.float32)
        result = g - tkc.exp2(values * LOG2E) * tkc.sum(g, axis=1)[:, None]
    else:
        values = tkc.load(y, (row, 0), (ROWS, COLUMNS)).to(tkc.float32)
        result = values * (g - tkc.sum(g * values, axis=1)[:, None])
    tkc.store(out, (row, 0), result.to(out.dtype))


def _forward(x: Array, axis: int, log_: bool):
    floats(x)
    turned = last(x, axis)
    out = empty(turned)
    yield last(out, axis)
    source, target = matrix(contiguous(turned)), matrix(out)
    _softmax[FORWARD](source, target, LOG=log_)


def _backward(grad: Array, result: Array, axis: int, log_: bool):
    same_shape(grad=grad, result=result)
    floats(grad, result)
    turned = last(result, axis)
    out = empty(turned)
    yield last(out, axis)
    g, y, target = matrix(contiguous(last(grad, axis))), matrix(contiguous(turned)), matrix(out)
    _softmax_backward[BACKWARD](g, y, target, LOG=log_)


@operator
def softmax(x: Array, axis: int = -1) -> Iterator[Array]:
    """exp(x) / sum exp(x) along an axis, in x's shape and float type; computed in float32. Raises
    LaunchError where x has no such axis.
    """
    yield from _forward(x, axis, False)


@operator
def log_softmax(x: Array, axis: int = -1) -> Iterator[Array]:
    """log(softmax(x, axis)), without the loss of log and exp. Raises LaunchError where x has no
    such axis.
    """
    yield from _forward(x, axis, True)


@operator
def softmax_backward(grad: Array, result: Array, axis: int = -1) -> Iterator[Array]:
    """The gradient of x from those of softmax's result and the result itself, all of one shape."""
    yield from _backward(grad, result, axis, False)


@operator
def log_softmax_backward(grad: Array, result: Array, axis: int = -1) -> Iterator[Array]:
    """The gradient of x from the gradient of log_softmax's result and that result; one shape."""
    yield from _backward(grad, result, axis, True)


softmax.gradient_by(softmax_backward, "x", everywhere=True)


log_softmax.gradient_by(log_softmax_backward, "x", everywhere=True)
