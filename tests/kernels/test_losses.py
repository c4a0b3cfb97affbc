"""Cross-entropy against float64: losses, gradients, the in-place form, ignored rows, long rows."""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import TARGETS, assembles, close, double, numbers
from tkc import kernels


def reference(logits, target, ignore=-100):
    x = double(logits)
    top = x.max(-1, keepdims=True, initial=-np.inf)
    lse = (top + np.log(np.exp(x - top).sum(-1, keepdims=True)))[..., 0]
    counts = target != ignore
    at = np.where(counts, target, 0)[..., None]
    loss = np.where(counts, lse - np.take_along_axis(x, at, -1)[..., 0], 0)
    gradient = np.exp(x - lse[..., None])
    np.put_along_axis(gradient, at, np.take_along_axis(gradient, at, -1) - 1, -1)
    return loss, lse, gradient * counts[..., None]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 31), (7, 1025), (2, 3, 257), (3, 50257), (2, 131072)]
)
def test_cross_entropy(shape, dtype):
    logits, rng = numbers(shape, dtype, scale=3), np.random.default_rng(1)
    target = rng.integers(0, shape[-1], shape[:-1])
    target.flat[0] = -100
    loss, lse, gradient = reference(logits, target)
    got = kernels.cross_entropy(logits, target)
    close(got[0], loss, ulps=8)
    close(got[1], lse, ulps=8)
    grad = numbers(shape[:-1], "float32", 2)
    close(
        kernels.cross_entropy_backward(grad, logits, target, got[1]),
        gradient * double(grad)[..., None],
        dtype,
        ulps=16,
    )
    changed = logits.copy()
    close(kernels.cross_entropy_(changed, target, 0.5), loss, ulps=8)
    close(changed, 0.5 * gradient, ulps=16)


def test_no_rows_and_bad_shapes():
    loss, _ = kernels.cross_entropy(np.empty((0, 7), np.float32), np.empty(0, np.int64))
    assert loss.shape == (0,)
    with pytest.raises(tkc.LaunchError, match=r"target: expected the shape \[3\]"):
        kernels.cross_entropy(numbers((3, 5)), np.zeros(4, np.int64))
    with pytest.raises(tkc.LaunchError, match="pass contiguous"):
        kernels.cross_entropy_(numbers((5, 3)).T, np.zeros(3, np.int64))


@pytest.mark.parametrize("columns", [1000, 16384, 50257, 131072])
def test_on_gpus(columns):
    x, t, f = (
        np.empty((64, columns), numbers((), "bfloat16").dtype),
        np.empty(64, np.int64),
        np.empty(64, np.float32),
    )
    assembles(
        lambda: (
            kernels.cross_entropy(x, t),
            kernels.cross_entropy_(x, t),
            kernels.cross_entropy_backward(f, x, t, f),
        ),
        TARGETS if columns <= 16384 else ("sm_90a",),
    )
