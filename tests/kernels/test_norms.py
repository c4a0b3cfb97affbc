"""Layer norm and RMS norm, with and without residual, against float64, forward and backward; sums
over many rows.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import ROWS, TARGETS, assembles, close, double, numbers
from tkc import kernels


def norm(h, weight, bias, eps, centre):
    h = double(h)
    if centre:
        h = h - h.mean(-1, keepdims=True)
    y = h / np.sqrt((h * h).mean(-1, keepdims=True) + eps)
    return (y if weight is None else y * double(weight)) + (0 if bias is None else double(bias))


def gradients(grad, h, weight, eps, centre):
    g, h = double(grad), double(h)
    if centre:
        h = h - h.mean(-1, keepdims=True)
    s = 1 / np.sqrt((h * h).mean(-1, keepdims=True) + eps)
    n, d = h * s, g if weight is None else g * double(weight)
    x = s * (d - n * (d * n).mean(-1, keepdims=True) - (d.mean(-1, keepdims=True) if centre else 0))
    rows = tuple(range(g.ndim - 1))
    return x, (g * n).sum(rows), g.sum(rows)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ROWS)
def test_forward(shape, dtype):
    x, residual, weight, bias = (
        numbers(shape, dtype, 0) + numbers((), dtype) * 3,
        numbers(shape, dtype, 1),
        numbers(shape[-1:], dtype, 2),
        numbers(shape[-1:], dtype, 3),
    )
    close(kernels.layer_norm(x, weight, bias), norm(x, weight, bias, 1e-5, True), ulps=8)
    close(kernels.layer_norm(x), norm(x, None, None, 1e-5, True), ulps=8)
    close(kernels.rms_norm(x, weight), norm(x, weight, None, 1e-6, False), ulps=8)
    out, total = kernels.add_rms_norm(x, residual, weight)
    close(total, double(x) + double(residual))
    close(out, norm(total, weight, None, 1e-6, False), ulps=8)
    silu = double(residual) / (1 + np.exp(-double(residual)))
    gated = norm(x, weight, None, 1e-6, False) * silu
    close(kernels.gated_rms_norm(x, residual, weight), gated, dtype, ulps=8)
    gated = norm(double(x) * silu, weight, None, 1e-6, False)
    close(kernels.gated_rms_norm(x, residual, weight, gate_first=True), gated, dtype, ulps=8)
    out, total = kernels.add_layer_norm(x, residual, weight, bias, 1e-3)
    close(out, norm(total, weight, bias, 1e-3, True), ulps=8)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("shape", [*ROWS, (600, 65), (1031, 7), (37, 8200)])
def test_backward(shape):
    grad, h, weight, extra = (numbers(shape[-1:] if i == 2 else shape, seed=i) for i in range(4))
    for got, want in zip(
        kernels.layer_norm_backward(grad, h, weight),
        gradients(grad, h, weight, 1e-5, True),
        strict=True,
    ):
        close(got, want, ulps=64)
    got, want = (
        kernels.rms_norm_backward(grad, h, weight, extra, 1e-6),
        gradients(grad, h, weight, 1e-6, False),
    )
    close(got[0], want[0] + double(extra), ulps=64)
    close(got[1], want[1], ulps=64)


def test_a_large_mean_does_not_cost_digits():
    x = numbers((4, 1000)) + np.float32(1000)
    # of the difference to the mean, 1000 times finer than x's
    close(kernels.layer_norm(x), norm(x, None, None, 1e-5, True), ulps=2048)


def test_bad_shapes():
    with pytest.raises(tkc.LaunchError, match=r"weight: expected the shape \[5\], got \[4\]"):
        kernels.rms_norm(numbers((3, 5)), numbers((4,)))
    with pytest.raises(tkc.LaunchError, match="x of .* and residual of"):
        kernels.add_rms_norm(numbers((3, 5)), numbers((5, 3)))
    with pytest.raises(tkc.LaunchError, match="x of .* and gate of"):
        kernels.gated_rms_norm(numbers((3, 5)), numbers((5, 3)))


@pytest.mark.parametrize("columns", [64, 1000, 4096, 8192, 65536, 131072])
def test_on_gpus(columns):
    x, targets = (
        np.empty((64, columns), numbers((), "bfloat16").dtype),
        (("sm_90a",) if columns > 8192 else TARGETS),
    )
    assembles(
        lambda: (
            kernels.layer_norm(x, x[0], x[0]),
            kernels.add_rms_norm(x, x, x[0]),
            kernels.gated_rms_norm(x, x, x[0]),
        ),
        targets,
    )
    if columns <= 65536:
        assembles(
            lambda: (
                kernels.layer_norm_backward(x, x, x[0]),
                kernels.rms_norm_backward(x, x, None),
            ),
            targets,
        )
