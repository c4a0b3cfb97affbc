"""Hedgehog against sums over all pairs of positions in float64: features, results, gradients."""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels

BLOCK = 64


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def features(x, w):
    logits = np.einsum("bthd,hdf->bthf", x, w)
    return np.concatenate([softmax(logits), softmax(-logits)], -1)


def of_features(grad, x, w):
    """The gradients of x and w."""
    logits = np.einsum("bthd,hdf->bthf", x, w)
    parts = np.split(grad, 2, -1)
    ups = [
        p * (d - (p * d).sum(-1, keepdims=True))
        for p, d in zip((softmax(logits), softmax(-logits)), parts, strict=True)
    ]
    slope = ups[0] - ups[1]
    return np.einsum("bthf,hdf->bthd", slope, w), np.einsum("bthf,bthd->hdf", slope, x)


def attended(q, k, v, wq, wk, alpha, beta, scale):
    """o, and a function of do that gives all gradients, of [batch, T, heads, …] in float64."""
    q, k, v, wq, wk, alpha, beta = (double(x) for x in (q, k, v, wq, wk, alpha, beta))
    i, j = np.indices((q.shape[1],) * 2)
    apart = i // BLOCK - j // BLOCK
    near, far = (j <= i) & (apart <= 1), apart > 1
    s = np.where(near, scale * np.einsum("bthd,bshd->bhts", q, k), -np.inf)
    powers = np.exp(s - s.max(-1, keepdims=True)) * beta[:, None, None]
    mapped = features(q, wq), features(k, wk)
    linear = np.einsum("bthf,bshf->bhts", *mapped) * far
    weights = powers + alpha[:, None, None] * linear
    total = weights.sum(-1, keepdims=True) + 1e-6
    out = np.einsum("bhts,bshv->bthv", weights / total, v)

    def gradients(do):
        delta = np.einsum("bthv,bthv->bht", do, out)
        of_weights = (np.einsum("bthv,bshv->bhts", do, v) - delta[..., None]) / total
        ds = powers * of_weights
        whole, largest = ds.sum(-1), s.argmax(-1)
        ds = ds - np.where(np.arange(s.shape[-1]) == largest[..., None], whole[..., None], 0)
        of_linear = of_weights * far * alpha[:, None, None]
        slopes = (
            np.einsum("bhts,bshf->bthf", of_linear, mapped[1]),
            np.einsum("bhts,bthf->bshf", of_linear, mapped[0]),
        )
        (dq, dwq), (dk, dwk) = of_features(slopes[0], q, wq), of_features(slopes[1], k, wk)
        dq = dq + scale * np.einsum("bhts,bshd->bthd", ds, k)
        dk = dk + scale * np.einsum("bhts,bthd->bshd", ds, q)
        dv = np.einsum("bhts,bthv->bshv", weights / total, do)
        da = (of_weights * linear).sum((0, 2, 3))
        return dq, dk, dv, dwq, dwk, da, whole.sum((0, 2)) / beta

    return out, gradients


def given(shape, dtype="float32"):
    batch, length, heads, width, columns, count = shape
    q, k = (numbers((batch, length, heads, width), dtype, i) for i in (0, 1))
    v, grad = (numbers((batch, length, heads, columns), dtype, i) for i in (2, 3))
    wq, wk = (numbers((heads, width, count), dtype, i, scale=0.5) for i in (4, 5))
    alpha, beta = (np.abs(numbers((heads,), seed=i)) + 0.1 for i in (6, 7))
    return (q, k, v, wq, wk, alpha.astype(np.float32), beta.astype(np.float32)), grad


SHAPES = {
    "four blocks": (2, 250, 2, 16, 16, 16),
    "odd widths": (1, 193, 1, 17, 33, 5),
    "one block": (1, 7, 2, 16, 16, 16),
    "one position": (1, 1, 1, 1, 1, 1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_results_and_gradients(name):
    arguments, grad = given(SHAPES[name])
    want, gradients = attended(*arguments, arguments[0].shape[-1] ** -0.5)
    out, *kept = kernels.hedgehog(*arguments)
    close(out, want, ulps=64)
    got = kernels.hedgehog_backward(grad, *arguments, out, *kept)
    for part, expected in zip(got, gradients(double(grad)), strict=True):
        # where all weights are of one kind, those of α and β are differences of equals
        close(np.append(part, np.float32(1)), np.append(expected, 1), ulps=1024)


def test_features_and_their_gradients():
    (q, _, _, w, *_), _ = given((2, 70, 2, 16, 16, 5))
    grad = numbers((2, 70, 2, 10), seed=8)
    close(kernels.hedgehog_features(q, w), features(double(q), double(w)), ulps=16)
    want = of_features(double(grad), double(q), double(w))
    for part, expected in zip(kernels.hedgehog_features_backward(grad, q, w), want, strict=True):
        close(part, expected, ulps=64)


def test_short_floats():
    arguments, _ = given((1, 250, 2, 64, 64, 32), "bfloat16")
    want, _ = attended(*arguments, 0.125)
    close(kernels.hedgehog(*arguments)[0], want, "bfloat16", ulps=4)


def test_bad_arguments_say_what_is_wrong():
    (q, k, v, wq, wk, alpha, beta), _ = given((1, 5, 2, 16, 16, 8))
    with pytest.raises(tkc.LaunchError, match=r"alpha: expected the shape \[2\]"):
        kernels.hedgehog(q, k, v, wq, wk, alpha[:1], beta)
    with pytest.raises(tkc.LaunchError, match="one element type, and widths up to 128"):
        kernels.hedgehog(q, k, v.astype(np.float16), wq, wk, alpha, beta)
    with pytest.raises(tkc.LaunchError, match=r"the map: expected the shape \[2, 16, 8\]"):
        kernels.hedgehog_features(q, wq[:, :3])


def test_on_gpus():
    arguments, grad = given((2, 256, 4, 128, 128, 64), "bfloat16")
    row = np.empty((2, 256, 4), np.float32)
    kept = np.empty_like(grad), np.empty_like(grad), row, row, row
    assembles(lambda: kernels.hedgehog(*arguments))
    assembles(lambda: kernels.hedgehog_backward(grad, *arguments, *kept), ("sm_90a",))
