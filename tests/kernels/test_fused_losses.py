"""The cross-entropy of a linear layer and its gradients against float64."""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers, torch_with_ops
from tkc import kernels


def reference(x, weight, target, smoothing=0.0, zeta=0.0, cap=0.0, mean=True):
    x, weight = double(x), double(weight)
    raw = x @ weight.T
    z = cap * np.tanh(raw / cap) if cap else raw
    top = z.max(-1, keepdims=True)
    lse = top[:, 0] + np.log(np.exp(z - top).sum(-1))
    counts = target != -100
    at = np.arange(len(x)), np.where(counts, target, 0)
    losses = lse - (1 - smoothing) * z[at] - smoothing * z.mean(-1) + zeta * lse**2
    scale = counts / (max(counts.sum(), 1) if mean else 1)
    dz = np.exp(z - lse[:, None]) * (1 + 2 * zeta * lse)[:, None] - smoothing / z.shape[1]
    dz[at] -= 1 - smoothing
    dz = dz * scale[:, None] * (1 - (z / cap) ** 2 if cap else 1)
    return (losses * scale).sum(), dz @ weight, dz.T @ x


@pytest.mark.parametrize(
    "shape, part, options",
    [
        ((5, 17, 31), None, {}),
        ((70, 33, 257), 32, {"label_smoothing": 0.1, "z_loss": 1e-3}),
        ((40, 16, 100), 16, {"softcap": 3.0, "mean": False}),
        ((1, 3, 2), None, {"label_smoothing": 0.2}),
    ],
)
def test_against_float64(shape, part, options):
    rows, width, classes = shape
    x, weight = numbers((rows, width)), numbers((classes, width), seed=1)
    target = np.random.default_rng(2).integers(0, classes, rows)
    target[rows // 2 :: 7] = -100 if rows > 1 else 0
    loss, dx, dw = kernels.linear_cross_entropy(x, weight, target, part=part, **options)
    names = {"label_smoothing": "smoothing", "z_loss": "zeta", "softcap": "cap"}
    want = reference(x, weight, target, **{names.get(n, n): v for n, v in options.items()})
    close(loss[0], np.array(want[0]), ulps=32)
    close(dx, want[1], ulps=128)
    close(dw, want[2], ulps=128)
    alone, none, _ = kernels.linear_cross_entropy(
        x, weight, target, with_grad=False, part=part, **options
    )
    assert alone == loss and none.size == 0


def test_bfloat16():
    x, weight = numbers((40, 64), "bfloat16"), numbers((300, 64), "bfloat16", 1, 0.2)
    target = np.arange(40)
    loss, dx, dw = kernels.linear_cross_entropy(x, weight, target, part=16)
    want = reference(x, weight, target)
    close(loss[0], np.array(want[0]), "bfloat16", ulps=1)
    close(dx, want[1], "bfloat16", ulps=4)
    close(dw, want[2], "bfloat16", ulps=4)


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_a_gradient_times_what_comes_after_is_rounded_once(factor):
    """And is made for those that require it alone."""
    torch = torch_with_ops()
    x = torch.from_numpy(numbers((40, 64))).bfloat16().requires_grad_()
    weight = torch.from_numpy(numbers((300, 64), seed=1, scale=0.2)).bfloat16().requires_grad_()
    loss, dx, dw = kernels.linear_cross_entropy(x, weight, torch.arange(40), part=16)
    found = torch.autograd.grad(loss[0] * factor, (x, weight), retain_graph=True)
    assert all(
        torch.equal(a, (b.float() * factor).bfloat16())
        for a, b in zip(found, (dx, dw), strict=True)
    )
    alone = kernels.linear_cross_entropy(x, weight.detach(), torch.arange(40), part=16)[0]
    assert torch.equal(torch.autograd.grad(alone[0] * factor, x)[0], found[0])


def test_bad_arguments_say_what_is_wrong():
    x, weight, target = numbers((5, 8)), numbers((7, 8)), np.zeros(5, np.int64)
    with pytest.raises(tkc.LaunchError, match=r"weight: expected the shape \[7, 8\]"):
        kernels.linear_cross_entropy(x, numbers((7, 9)), target)
    with pytest.raises(tkc.LaunchError, match=r"target: expected the shape \[5\]"):
        kernels.linear_cross_entropy(x, weight, target[:3])
    with pytest.raises(tkc.LaunchError, match="label_smoothing is 0 to 1"):
        kernels.linear_cross_entropy(x, weight, target, label_smoothing=1.5)
    assert kernels.linear_cross_entropy(x, weight, target + 7)[0] == np.inf


@pytest.mark.parametrize("classes", [32000, 128256])
def test_on_gpus(classes):
    kind = numbers((), "bfloat16").dtype
    x, weight = np.empty((512, 4096), kind), np.empty((classes, 4096), kind)
    target = np.zeros(512, np.int64)
    assembles(
        lambda: kernels.linear_cross_entropy(x, weight, target, softcap=30.0, part=256),
        ("sm_90a",),
    )
