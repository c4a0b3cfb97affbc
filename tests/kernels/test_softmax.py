"""Softmax and log-softmax against float64, forward and backward; rows of every length; compiled for
GPUs.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import ROWS, TARGETS, assembles, close, double, numbers
from tkc import kernels

DTYPES = "float32", "bfloat16"


def softmax(x, axis=-1):
    x = double(x)
    powers = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis, keepdims=True)


def log_softmax(x, axis=-1):
    x = double(x)
    shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ROWS)
def test_forward(shape, dtype):
    x = numbers(shape, dtype, scale=3)
    close(kernels.softmax(x), softmax(x))
    with np.errstate(divide="ignore"):
        close(kernels.log_softmax(x), log_softmax(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ROWS)
def test_backward(shape, dtype):
    grad, y = (
        numbers(shape, dtype),
        softmax(numbers(shape, dtype, 1)).astype(numbers((), dtype).dtype),
    )
    g, p = double(grad), double(y)
    close(kernels.softmax_backward(grad, y), p * (g - (g * p).sum(-1, keepdims=True)), ulps=16)
    with np.errstate(divide="ignore"):
        y = log_softmax(numbers(shape, dtype, 1)).astype(grad.dtype)
    close(
        kernels.log_softmax_backward(grad, y),
        g - np.exp(double(y)) * g.sum(-1, keepdims=True),
        ulps=16,
    )


def test_any_axis():
    x = numbers((3, 5, 7))
    for axis in range(-3, 3):
        close(kernels.softmax(x, axis), softmax(x, axis))
    close(kernels.softmax(x.transpose(2, 0, 1)), softmax(x.transpose(2, 0, 1)))
    with pytest.raises(tkc.LaunchError, match="axis 3 of an array of rank 3"):
        kernels.softmax(x, 3)
    with pytest.raises(tkc.LaunchError, match="got list"):
        kernels.softmax([1.0, 2.0])


def test_infinities():
    x = np.array([[0, -np.inf, 1], [-np.inf, -np.inf, 2]], np.float32)
    close(kernels.softmax(x), softmax(x))


@pytest.mark.parametrize("columns", [64, 1000, 4096, 32768, 50257, 131072])
def test_on_gpus(columns):
    x = np.empty((64, columns), numbers((), "bfloat16").dtype)
    assembles(
        lambda: (
            kernels.softmax(x),
            kernels.softmax_backward(x, x),
            kernels.log_softmax_backward(x, x),
        ),
        TARGETS if columns <= 16384 else ("sm_90a",),
    )
