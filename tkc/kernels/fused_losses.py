"""Cross-entropy of a linear layer, with its gradients, without all logits at once.

    z = x Wᵀ, or cap · tanh(x Wᵀ / cap)
    loss = Σ_t lse(z_t) - (1 - ε) z_t,y - ε/V Σ_v z_tv + ζ lse(z_t)²          over counted t
    dz_tv = p_tv (1 + 2 ζ lse(z_t)) - (1 - ε) [v = y] - ε/V,    p = softmax(z)
    dx = dz' W,  dW = dz'ᵀ x,   dz' = dz · (1 - (z / cap)²)

Rows are taken in parts: a part's logits are computed, become their gradients in place while its
loss is summed, and are multiplied by both operands (Hsu et al., "Liger Kernel", 2024). The parts
are as large as a gigabyte allows, so that the products are large and few.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod

import tkc
from tkc.kernels.arrays import Array, contiguous, dtype_of, empty, expect, flat, floats, power
from tkc.kernels.blocks import row_configs, rows_grid, strip
from tkc.kernels.losses import LN2, LOG2E
from tkc.kernels.matmul import matmul
from tkc.kernels.operator import first_order_only, operator

LOGITS = 1 << 29  # at once
ROWS_OF_LOGITS = rows_grid("logits")


@tkc.jit
def _factor(target, out, V, IGNORE: tkc.constexpr, MEAN: tkc.constexpr, N: tkc.constexpr):
    """What every row's loss is multiplied by: 1, or one over the number of rows that count."""
    count = tkc.zeros((N,), tkc.int32)
    for at in tkc.range(0, target.shape[0], N):
        wanted = tkc.load(target, (at,), (N,), other=IGNORE)
        count = count + tkc.where(wanted != IGNORE, 1, 0)
    total = tkc.maximum(tkc.sum(count), 1).to(tkc.float32)
    tkc.store(out, (0,), (1.0 / total if MEAN else 1.0) + tkc.zeros((1,)))


@tkc.autotune(row_configs("logits"), measure=False)
@tkc.jit
def _rows(
    logits,
    target,
    factor,
    losses,
    smoothing,
    zeta,
    cap,
    IGNORE: tkc.constexpr,
    CAPPED: tkc.constexpr,
    GRAD: tkc.constexpr,
    ROWS: tkc.constexpr,
    COLUMNS: tkc.constexpr,
):
    row, length = tkc.program_id(0) * ROWS, logits.shape[1]
    inside = (tkc.arange(COLUMNS) < length)[None, :]
    values = tkc.load(logits, (row, 0), (ROWS, COLUMNS)).to(tkc.float32)
    if CAPPED:
        values = cap * tkc.tanh(values / cap)
    values = tkc.where(inside, values, -inf)
    wanted = tkc.load(target, (row,), (ROWS,), other=IGNORE)
    counts = wanted != IGNORE
    here = tkc.arange(COLUMNS)[None, :] == wanted[:, None]
    top = tkc.max(values, axis=1)
    powers = tkc.exp2((values - top[:, None]) * LOG2E)
    total = tkc.sum(powers, axis=1)
    lse = tkc.log2(total) * LN2 + top
    score = tkc.sum(tkc.where(here, values, 0.0), axis=1)
    mean = tkc.sum(tkc.where(inside, values, 0.0), axis=1) / length
    loss = lse - (1 - smoothing) * score - smoothing * mean + zeta * lse * lse
    known = (wanted >= 0) & (wanted < length)
    scale = tkc.where(counts, factor[0], 0.0)
    loss = tkc.where(known, loss, inf)
    tkc.store(losses, (row,), tkc.where(counts, loss * factor[0], 0.0))
    if GRAD:
        share = (1 + 2 * zeta * lse) / total * scale
        grad = powers * share[:, None] - (smoothing / length * scale)[:, None]
        grad = grad - tkc.where(here, ((1 - smoothing) * scale)[:, None], 0.0)
        if CAPPED:
            slope = values / cap
            grad = grad * tkc.where(inside, 1 - slope * slope, 0.0)
        tkc.store(logits, (row, 0), grad.to(logits.dtype))


@tkc.jit
def _add_product(
    a,
    b,
    out,
    M: tkc.constexpr,
    N: tkc.constexpr,
    K: tkc.constexpr,
):
    """out += aᵀ b."""
    row, column = tkc.program_id(0) * M, tkc.program_id(1) * N
    total = tkc.zeros((M, N))
    for k in tkc.range(0, a.shape[0], K):
        left = tkc.load(a, (k, row), (K, M))
        total = tkc.dot(left.T, tkc.load(b, (k, column), (K, N)), total)
    before = tkc.load(out, (row, column), (M, N)).to(tkc.float32)
    tkc.store(out, (row, column), (total + before).to(out.dtype))


@tkc.jit
def _total(losses, out, N: tkc.constexpr):
    total = tkc.zeros((N,))
    for at in tkc.range(0, losses.shape[0], N):
        total = total + tkc.load(losses, (at,), (N,))
    tkc.store(out, (0,), tkc.sum(total) + tkc.zeros((1,)))


@tkc.jit
def _scale(x, factor, out, N: tkc.constexpr):
    at = tkc.program_id(0) * N
    values = tkc.load(x, (at,), (N,)).to(tkc.float32) * factor[0].to(tkc.float32)
    tkc.store(out, (at,), values.to(out.dtype))


def _check(x: Array, weight: Array, target: Array, smoothing: float, cap: float) -> None:
    floats(x, weight)
    if len(x.shape) != 2 or len(weight.shape) != 2 or not weight.shape[0]:
        raise tkc.LaunchError(
            "linear_cross_entropy: x is [rows, width] and weight [classes, width], got"
            f" {list(x.shape)} and {list(weight.shape)}"
        )
    expect(weight, (weight.shape[0], x.shape[1]), "weight")
    expect(target, x.shape[:1], "target")
    if dtype_of(x) != dtype_of(weight):
        raise tkc.LaunchError(
            f"linear_cross_entropy: x and weight have one element type, got {dtype_of(x)} and"
            f" {dtype_of(weight)}; convert one"
        )
    if not 0 <= smoothing <= 1 or cap < 0:
        raise tkc.LaunchError(
            "linear_cross_entropy: label_smoothing is 0 to 1 and softcap 0 (none) or more, got"
            f" {smoothing} and {cap}"
        )


@operator
def linear_cross_entropy(
    x: Array,
    weight: Array,
    target: Array,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    mean: bool = True,
    with_grad: bool = True,
    part: int | None = None,
) -> Iterator[tuple[Array, Array, Array]]:
    """The cross-entropy of the logits x @ weight.T, float32 [1], and its gradients for x and weight
    (without elements unless with_grad), computed at once.

    x: [rows, width]; weight: [classes, width], of x's element type; target: integers [rows]. Rows
    whose target is ignore_index count neither in the loss nor in its mean; a target outside of the
    classes gives an infinite loss. mean: of the rows that count, else their sum. label_smoothing,
    z_loss, softcap (0: none): ε, ζ and cap above. part: rows whose logits are in memory at once; by
    default as many as give 2^29 logits. Logits and their gradients are rounded to x's element type,
    the gradient of weight once a part. Raises LaunchError where shapes or types do not fit.
    """
    _check(x, weight, target, label_smoothing, softcap)
    rows, classes = x.shape[0], weight.shape[0]
    loss = empty(x, (1,), "float32")
    dx, dw = (empty(a, a.shape if with_grad else (0,)) for a in (x, weight))
    yield loss, dx, dw
    x, weight = contiguous(x), contiguous(weight)
    factor, losses = empty(x, (1,), "float32"), empty(x, (rows,), "float32")
    _factor[1](target, factor, classes, IGNORE=ignore_index, MEAN=mean, N=1024)
    parts = max(1, tkc.cdiv(rows * classes, LOGITS))
    part = max(1, part or tkc.cdiv(tkc.cdiv(rows, parts), 128) * 128)
    logits = empty(x, (min(part, rows), classes))
    for first in range(0, rows, part):
        here = slice(first, min(first + part, rows))
        some = logits[: here.stop - first]
        matmul(x[here], weight.T, out=some)
        _rows[ROWS_OF_LOGITS](
            some,
            target[here],
            factor,
            losses[here],
            float(label_smoothing),
            float(z_loss),
            float(softcap or 1.0),
            IGNORE=ignore_index,
            CAPPED=softcap > 0,
            GRAD=with_grad,
        )
        if with_grad:
            matmul(some, weight, out=dx[here])
            _weight_gradient(some, x[here], dw, not first)
    _total[1](losses, loss, N=1024)


def _weight_gradient(grad: Array, x: Array, out: Array, first: bool) -> None:
    """out = gradᵀ x, or what is added to it."""
    if first:
        matmul(grad.T, x, out=out)
        return
    m, n = (
        max(16, min(most, power(size))) for most, size in zip((128, 128), out.shape, strict=True)
    )
    _add_product[tkc.cdiv(out.shape[0], m), tkc.cdiv(out.shape[1], n)](grad, x, out, M=m, N=n, K=64)


@operator(name="scaled_by")
def _scaled_by(x: Array, factor: Array) -> Iterator[Array]:
    """x · factor, of one element, in x's element type: one rounding, and no array in between."""
    out = empty(x)
    yield out
    n = prod(x.shape)
    _scale[tkc.cdiv(n, strip(n))](flat(x), factor, flat(out), N=strip(n))


@linear_cross_entropy.backward(saves="result with_grad", zeros=False)
def _(saved, grad, of_dx, of_dw):
    if not saved.with_grad:
        raise tkc.LaunchError(
            "linear_cross_entropy: pass with_grad=True where a gradient is wanted"
        )
    first_order_only("linear_cross_entropy", of_dx, of_dw)
    _, dx, dw = saved.result
    wanted = ("x", dx), ("weight", dw)
    return {name: _scaled_by(g, grad) for name, g in wanted if saved.needs[name]}
