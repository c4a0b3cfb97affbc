"""Cross-entropy of logits and class numbers, for vocabularies of any size.

    loss[r] = log sum exp(x[r]) - x[r, target[r]]
    d x[r] = g[r] (softmax(x[r]) - onehot(target[r]))

`cross_entropy` reads the logits once and keeps a number a row; its backward pass reads them again
and writes the gradient. `cross_entropy_` does both in one pass over the row and leaves the gradient
where the logits were (Hsu et al., "Liger Kernel", 2024): the logits of a large vocabulary are often
the largest array of a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import e, inf, log, log2

import tkc
from tkc.kernels.arrays import Array, contiguous, empty, expect, floats, matrix
from tkc.kernels.blocks import row_block, row_configs, rows_grid
from tkc.kernels.operator import operator

LOG2E, LN2 = log2(e), log(2)
GRID = rows_grid("logits")


@tkc.autotune(row_configs("logits"), measure=False)
@tkc.jit
def _cross_entropy(
    logits,
    target,
    loss,
    lse,
    scale,
    IGNORE: tkc.constexpr,
    GRAD: tkc.constexpr,
    ROWS: tkc.constexpr,
    COLUMNS: tkc.constexpr,
):
    row = tkc.program_id(0) * ROWS
    values = tkc.load(logits, (row, 0), (ROWS, COLUMNS), other=-inf).to(tkc.float32)
    wanted = tkc.load(target, (row,), (ROWS,), other=IGNORE)
    inside = (wanted >= 0) & (wanted < logits.shape[1])
    if ROWS == 1:
        scores = logits[row, target[row]]
    else:
        scores = tkc.load(
            logits.ptr
            + ((row + tkc.arange(ROWS)) * logits.strides[0] + wanted * logits.strides[1]),
            mask=inside & (row + tkc.arange(ROWS) < logits.shape[0]),
        )
    top = tkc.max(values, axis=1)
    powers = tkc.exp2((values - top[:, None]) * LOG2E)
    total = tkc.sum(powers, axis=1)
    rest = tkc.log2(total) * LN2
    counts = wanted != IGNORE
    tkc.store(
        loss,
        (row,),
        tkc.where(counts, tkc.where(inside, rest - (scores.to(tkc.float32) - top), inf), 0).to(
            loss.dtype
        ),
    )
    if lse is not None:
        tkc.store(lse, (row,), rest + top)
    if GRAD:
        factor = tkc.where(counts, scale, 0.0)
        place = tkc.where(inside, wanted, -1).to(tkc.int32)
        here = tkc.arange(COLUMNS)[None, :] == place[:, None]
        slopes = powers * (factor / total)[:, None] - tkc.where(here, factor[:, None], 0.0)
        tkc.store(logits, (row, 0), slopes.to(logits.dtype))


@tkc.jit
def _cross_entropy_backward(
    logits,
    target,
    lse,
    grads,
    out,
    IGNORE: tkc.constexpr,
    ROWS: tkc.constexpr,
    COLUMNS: tkc.constexpr,
):
    row, column = tkc.program_id(0) * ROWS, tkc.program_id(1) * COLUMNS
    values = tkc.load(logits, (row, column), (ROWS, COLUMNS)).to(tkc.float32)
    wanted = tkc.load(target, (row,), (ROWS,), other=IGNORE)
    here = column + tkc.arange(COLUMNS)[None, :] == wanted[:, None]
    factor = tkc.where(wanted != IGNORE, tkc.load(grads, (row,), (ROWS,)).to(tkc.float32), 0)
    shares = tkc.exp2((values - tkc.load(lse, (row,), (ROWS,))[:, None]) * LOG2E)
    tkc.store(
        out, (row, column), ((shares - tkc.where(here, 1.0, 0.0)) * factor[:, None]).to(out.dtype)
    )


def _shapes(logits: Array, target: Array) -> None:
    if not len(logits.shape):
        raise tkc.LaunchError("cross_entropy: logits are [..., classes], got a scalar")
    if not logits.shape[-1]:
        raise tkc.LaunchError(f"cross_entropy: logits of {list(logits.shape)} have no classes")
    expect(target, logits.shape[:-1], "target")


def _launch(logits, target, loss, lse, scale, ignore_index, grad=False) -> None:
    _cross_entropy[GRID](
        logits,
        target.reshape((-1,)),
        loss.reshape((-1,)),
        lse,
        scale,
        IGNORE=ignore_index,
        GRAD=grad,
    )


@operator
def cross_entropy(
    logits: Array, target: Array, ignore_index: int = -100
) -> Iterator[tuple[Array, Array]]:
    """The loss of each row, float32, for logits [..., classes] and integer targets [...], and log
    sum exp of each row, which the gradient needs. Rows whose target is ignore_index have loss 0 and
    no gradient; a target outside of the classes gives an infinite loss.
    """
    _shapes(logits, target)
    floats(logits)
    loss, lse = (
        empty(logits, logits.shape[:-1], "float32"),
        empty(logits, logits.shape[:-1], "float32"),
    )
    yield loss, lse
    _launch(matrix(contiguous(logits)), target, loss, lse.reshape((-1,)), 1.0, ignore_index)


@operator(mutates="logits")
def cross_entropy_(
    logits: Array, target: Array, scale: float = 1.0, ignore_index: int = -100
) -> Iterator[Array]:
    """The loss of each row, float32; the logits become scale · their gradient, in one pass. For a
    mean over rows pass scale = 1 / rows. Raises LaunchError where logits are not contiguous or a
    shape does not fit."""
    _shapes(logits, target)
    floats(logits)
    loss = empty(logits, logits.shape[:-1], "float32")
    yield loss
    if contiguous(logits) is not logits and not getattr(logits, "is_contiguous", bool)():
        raise tkc.LaunchError("cross_entropy_ changes its logits in place: pass contiguous ones")
    _launch(matrix(logits), target, loss, None, scale, ignore_index, True)


@operator
def cross_entropy_backward(
    grad: Array, logits: Array, target: Array, lse: Array, ignore_index: int = -100
) -> Iterator[Array]:
    """The gradient of the logits from those of the losses."""
    _shapes(logits, target)
    floats(logits)
    out = empty(logits)
    yield out
    x, result = matrix(contiguous(logits)), matrix(out)
    rows, block = row_block(x.shape[0], min(x.shape[1], 4096))
    each = [v.reshape((-1,)) for v in (target, lse, contiguous(grad))]
    _cross_entropy_backward[tkc.cdiv(x.shape[0], rows), tkc.cdiv(x.shape[1], block)](
        x, *each, result, IGNORE=ignore_index, ROWS=rows, COLUMNS=block
    )


@cross_entropy.backward(saves="logits target result ignore_index", zeros=False)
def _(saved, grad, of_sums):
    logits, lse, out = saved.logits, saved.result[1], None
    if grad is not None:
        out = cross_entropy_backward(grad, logits, saved.target, lse, saved.ignore_index)
    if of_sums is not None:
        of_sums = of_sums[..., None] * (logits.float() - lse[..., None]).exp()
        out = of_sums if out is None else out + of_sums
    return out
