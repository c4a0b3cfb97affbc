"""Layers beside the norms, against float64: group norm, DyT, sparsemax, dropout in a norm, gated
layers, low-rank updates, optimizers.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels
from tkc.kernels.mlp import _mlp

BF16 = numbers((), "bfloat16").dtype


def silu(x):
    return x / (1 + np.exp(-x))


def slope(x):
    s = 1 / (1 + np.exp(-x))
    return s * (1 + x * (1 - s))


def group_norm(x, groups, w, b, act, grad):
    """Of x [images, channels, positions] in float64: y, dx, dw, db."""
    parts = x.reshape(len(x), groups, -1)
    apart = parts - parts.mean(2, keepdims=True)
    s = 1 / np.sqrt((apart**2).mean(2, keepdims=True) + 1e-5)
    n = (apart * s).reshape(x.shape)
    u = n * w[:, None] + b[:, None]
    g = grad * slope(u) if act else grad
    d = (g * w[:, None]).reshape(parts.shape)
    m = n.reshape(parts.shape)
    dx = s * (d - m * (d * m).mean(2, keepdims=True) - d.mean(2, keepdims=True))
    return silu(u) if act else u, dx.reshape(x.shape), (g * n).sum((0, 2)), g.sum((0, 2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("act, last", [(True, True), (False, False)])
def test_group_norm(dtype, act, last):
    x, grad = numbers((2, 12, 77), dtype), numbers((2, 12, 77), dtype, 1)
    w, b = numbers((12,), dtype, 2), numbers((12,), dtype, 3)
    wide = double(x), 3, double(w), double(b), act, double(grad)
    y, dx, dw, db = group_norm(*wide)

    def turned(a):
        return np.ascontiguousarray(a.swapaxes(1, 2)) if last else a

    given = turned(x), 3, w, b, 1e-5, act, last
    close(turned(kernels.group_norm(*given)), y, dtype, ulps=16)
    found = kernels.group_norm_backward(turned(grad), *given)
    close(turned(found[0]), dx, dtype, ulps=32)
    close(found[1], dw, dtype, ulps=64)
    close(found[2], db, dtype, ulps=64)


@pytest.mark.parametrize("shape, groups", [((1, 8, 6001), 1), ((1, 16, 2048), 4)])
def test_groups_of_a_norm_in_threads(shape, groups, monkeypatch):
    """Of which the blocks of a cluster have parts, that they read again; and smaller ones."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    x, grad = numbers(shape, "bfloat16"), numbers(shape, "bfloat16", 1)
    w, b = numbers(shape[1:2], "bfloat16", 2), numbers(shape[1:2], "bfloat16", 3)
    y, *want = group_norm(double(x), groups, double(w), double(b), True, double(grad))
    close(kernels.group_norm(x, groups, w, b, silu=True), y, "bfloat16", ulps=4)
    found = kernels.group_norm_backward(grad, x, groups, w, b, silu=True)
    for got, right in zip(found, want, strict=True):
        close(got, right, "bfloat16", ulps=4)


def test_dyt():
    x, grad = numbers((7, 130)), numbers((7, 130), seed=1)
    a, w, b = np.array([0.7], np.float32), numbers((130,), seed=2), numbers((130,), seed=3)
    t = np.tanh(0.7 * double(x))
    close(kernels.dyt(x, a, w, b), t * double(w) + double(b), ulps=16)
    d = double(grad) * double(w) * (1 - t * t)
    found = kernels.dyt_backward(grad, x, a, w)
    want = (
        0.7 * d,
        np.array([(d * double(x)).sum()]),
        (double(grad) * t).sum(0),
        double(grad).sum(0),
    )
    for got, right in zip(found, want, strict=True):
        close(got, right, ulps=64)


def sparsemax(x):
    order = -np.sort(-x, -1)
    count = np.arange(1, x.shape[-1] + 1)
    totals = np.cumsum(order, -1) - 1
    k = (order * count > totals).sum(-1, keepdims=True)
    return np.maximum(x - np.take_along_axis(totals, k - 1, -1) / k, 0)


@pytest.mark.parametrize("shape", [(5, 1), (3, 31), (2, 5000)])
def test_sparsemax(shape):
    x, grad = numbers(shape), numbers(shape, seed=1)
    y = sparsemax(double(x))
    got = kernels.sparsemax(x)
    close(got, y, ulps=16)
    there = y > 0
    mean = (double(grad) * there).sum(-1, keepdims=True) / there.sum(-1, keepdims=True)
    close(kernels.sparsemax_backward(grad, got), np.where(there, double(grad) - mean, 0), ulps=16)


@pytest.mark.parametrize("columns", [64, 67])
def test_dropout_in_a_norm_is_dropout(columns):
    x, r = numbers((9, columns)), numbers((9, columns), seed=1)
    w, b = numbers((columns,), seed=2), numbers((columns,), seed=3)
    got, total = kernels.dropout_add_layer_norm(x, r, w, b, 0.3, 42)
    want, right = kernels.add_layer_norm(kernels.dropout(x, 0.3, 42), r, w, b)
    close(total, double(right), ulps=2)
    close(got, double(want), ulps=8)
    with pytest.raises(tkc.LaunchError, match="a probability below 1"):
        kernels.dropout_add_layer_norm(x, r, w, b, 1.0, 42)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gated_layers(dtype):
    x, gate_up = numbers((3, 7, 24), dtype), numbers((40, 24), dtype, 1)
    down = numbers((18, 20), dtype, 2)
    both = double(x) @ double(gate_up).T
    gate, up = both[..., :20], both[..., 20:]
    close(kernels.gated_mlp(x, gate_up, down), silu(gate) * up @ double(down).T, dtype, ulps=24)
    _, kept, held = _mlp(x, gate_up, down)
    close(held, (silu(gate) * up).reshape(21, 20), dtype, ulps=24)
    grad = numbers((21, 20), dtype, 3)
    of_gates, _ = kernels.gated_mlp_backward(grad, kept)
    g, a, u = double(grad), double(kept)[:, :20], double(kept)[:, 20:]
    want = np.concatenate([g * u * slope(a), g * silu(a)], 1)
    close(of_gates, want, dtype, ulps=24)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_low_rank_updates(dtype):
    x, w, bias = numbers((37, 72), dtype), numbers((40, 72), dtype, 1), numbers((40,), dtype, 2)
    a, b = numbers((8, 72), dtype, 3), numbers((40, 8), dtype, 4)
    got, low = kernels.lora_linear(x, w, a, b, 0.5, bias)
    close(low, double(x) @ double(a).T, dtype, ulps=16)
    want = double(x) @ double(w).T + 0.5 * double(low) @ double(b).T + double(bias)
    close(got, want, dtype, ulps=16)
    with pytest.raises(tkc.LaunchError, match=r"b: expected the shape \[40, 8\]"):
        kernels.lora_linear(x, w, a, b[:, :4])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape, gates", [((2, 37, 72), (2,)), ((2, 37, 72), ()), ((19, 72), ())])
def test_branches_that_are_scaled_and_added(dtype, shape, gates):
    x, w = numbers(shape, dtype), numbers((40, 72), dtype, 1)
    bias, gate = numbers((40,), dtype, 2), numbers((*gates, 40), dtype, 3)
    residual = numbers((*shape[:-1], 40), dtype, 4)
    got = kernels.linear_gate_add(x, w, gate, residual, bias)
    each = double(gate)[..., None, :] if gates else double(gate)
    want = double(residual) + each * (double(x) @ double(w).T + double(bias))
    close(got, want, dtype, ulps=16)
    assert kernels.linear_gate_add(x[..., :0, :], w, gate, residual[..., :0, :]).shape[-2] == 0


@pytest.mark.parametrize(
    "change, said",
    [
        ({"residual": numbers((2, 36, 40))}, r"residual: expected the shape \[2, 37, 40\]"),
        ({"gate": numbers((3, 40))}, r"gate: expected the shape \[2, 40\]"),
        ({"weight": numbers((40, 72), "float16")}, "expected one element type"),
        ({"x": numbers((72,))}, r"x is \[..., positions, width\]"),
    ],
)
def test_branches_that_do_not_fit(change, said):
    given = {"x": numbers((2, 37, 72)), "weight": numbers((40, 72)), "gate": numbers((2, 40))}
    given |= {"residual": numbers((2, 37, 40))} | change
    with pytest.raises(tkc.LaunchError, match=said):
        kernels.linear_gate_add(**given)


def steps_of(kind, p, g, m, v, top, t):
    """A step in float64: param, m, v, top."""
    lr, b1, b2, eps, keep = 1e-2, 0.9, 0.999, 1e-8, 1 - 1e-2 * 0.1
    m2 = b1 * m + (1 - b1) * g
    if kind == "lion":
        return p * keep - lr * np.sign(m2), 0.999 * m + 0.001 * g, v, top
    first = lr * m2 / (1 - b1**t)
    if kind == "adamax":
        v2 = np.maximum(b2 * v, np.abs(g) + eps)
        return p * keep - first / v2, m2, v2, top
    v2 = b2 * v + (1 - b2) * g * g
    if kind == "amsgrad":
        top = np.maximum(top, v2)
        return p * keep - first / (np.sqrt(top / (1 - b2**t)) + eps), m2, v2, top
    most = 2 / (1 - b2) - 1
    known = most - 2 * t * b2**t / (1 - b2**t)
    if known > 5:
        share = (known - 4) * (known - 2) * most / ((most - 4) * (most - 2) * known)
        first = first * np.sqrt(share) / (np.sqrt(v2 / (1 - b2**t)) + eps)
    return p * keep - first, m2, v2, top


@pytest.mark.parametrize("kind, t", [("amsgrad", 3), ("adamax", 2), ("radam", 2), ("radam", 9)])
def test_variants_of_adam(kind, t):
    p, g, m, v, top = (numbers((130,), seed=i) for i in range(5))
    v, top = v * v, top * top if kind == "amsgrad" else None
    wide = [None if x is None else double(x) for x in (p, g, m, v, top)]
    want = steps_of(kind, *wide, t)
    kernels.adam_variant_(p, g, m, v, t, kind, 1e-2, weight_decay=0.1, top=top)
    for got, right in zip((p, m, v, top), want, strict=True):
        if got is not None:
            close(got, right, ulps=8)
    with pytest.raises(tkc.LaunchError, match="'amsgrad' with top"):
        kernels.adam_variant_(p, g, m, v, 1, "amsgrad")


def test_lion():
    p, g, m = (numbers((130,), seed=i) for i in range(3))
    want = steps_of("lion", *map(double, (p, g, m)), None, None, 1)
    kernels.lion_(p, g, m, 1e-2, 0.9, 0.999, 0.1)
    close(p, want[0], ulps=8)
    close(m, want[1], ulps=8)


def test_on_gpus():
    x, v = np.empty((64, 64, 320), BF16), np.empty(320, BF16)
    rows, vector = np.empty((512, 4096), BF16), np.empty(4096, BF16)
    f = np.empty(4096, np.float32)
    w = np.empty((4096, 4096), BF16)
    low = np.empty((16, 4096), BF16)

    def calls():
        kernels.group_norm(x, 32, v, v, 1e-5, True, True)
        kernels.group_norm_backward(x, x, 32, v, v, 1e-5, True, True)
        kernels.dyt(rows, f[:1], vector, vector)
        kernels.dyt_backward(rows, rows, f[:1], vector)
        kernels.sparsemax(rows)
        kernels.sparsemax_backward(rows, rows)
        kernels.dropout_add_layer_norm(rows, rows, vector, vector)
        kernels.lora_linear(rows, w, low, low.T.copy())
        kernels.linear_gate_add(rows, w, vector, rows, vector)
        kernels.adam_variant_(f, f.copy(), f.copy(), f.copy(), 3, "adamax")
        kernels.lion_(f, f.copy(), f.copy())

    assembles(calls)


def test_gradients_of_torch():
    torch = pytest.importorskip("torch")
    from tests.kernels.test_torch import same_gradients, tensors

    F = torch.nn.functional
    same_gradients(
        lambda x, w, b: kernels.group_norm(x, 2, w, b, silu=True),
        lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)),
        *tensors((2, 6, 5), (6,), (6,)),
        tolerance=1e-4,
    )

    def plain(x, u, d):
        gate, up = (x @ u.T).chunk(2, -1)
        return (F.silu(gate) * up) @ d.T

    same_gradients(kernels.gated_mlp, plain, *tensors((5, 8), (12, 8), (4, 6)), tolerance=1e-4)
    same_gradients(
        lambda x, w, a, b: kernels.lora_linear(x, w, a, b, 0.5)[0],
        lambda x, w, a, b: x @ w.T + 0.5 * (x @ a.T) @ b.T,
        *tensors((5, 8), (6, 8), (3, 8), (6, 3)),
        tolerance=1e-4,
    )
    same_gradients(
        kernels.linear_gate_add,
        lambda x, w, g, r, b: r + g[:, None] * (x @ w.T + b),
        *tensors((2, 5, 8), (6, 8), (2, 6), (2, 5, 6), (6,)),
        tolerance=1e-4,
    )
