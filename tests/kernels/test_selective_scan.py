"""Mamba-1's selective scan against its recurrence in float64: gradients, states, ragged batches,
skip, gate and bias, steps.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers, torch_with_ops
from tkc import kernels

NAMES = ("x", "dt", "a", "b", "c", "skip", "z", "bias", "initial")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def of_sequence(given, grad, last, softplus):
    """y, the last state and the gradients, in NAMES' order, of [T, …], in float64."""
    x, dt, a, b, c, skip, z, bias, state = given
    raw = dt + bias
    step, gate = np.log1p(np.exp(raw)) if softplus else raw, z * sigmoid(z)
    states, results = [state], np.zeros(x.shape)
    for t in range(len(x)):
        state = np.exp(step[t][:, None] * a) * state + (step[t] * x[t])[:, None] * b[t]
        results[t] = state @ c[t] + skip * x[t]
        states.append(state)
    d = {name: np.zeros(v.shape) for name, v in zip(NAMES, given, strict=True)}
    d["z"] = grad * results * (sigmoid(z) * (1 + z * (1 - sigmoid(z))))
    dr, slope = grad * gate, last
    d["skip"] = (dr * x).sum(0)
    for t in reversed(range(len(x))):
        slope = slope + dr[t][:, None] * c[t]
        d["c"][t], d["b"][t] = dr[t] @ states[t + 1], (step[t] * x[t]) @ slope
        along = slope @ b[t]
        d["x"][t] = along * step[t] + dr[t] * skip
        slope = slope * np.exp(step[t][:, None] * a)
        d["dt"][t] = along * x[t] + (slope * states[t] * a).sum(1)
        d["a"] += slope * states[t] * step[t][:, None]
    d["initial"] = slope
    d["dt"] = d["dt"] * (sigmoid(raw) if softplus else 1)
    d["bias"] = d["dt"].sum(0)
    return results * gate, state, d


def wanted(given, grad, last, starts, softplus):
    x, dt, a, b, c, skip, z, bias, initial = (double(v) for v in given)
    places = [(i, slice(None)) for i in range(len(x))]
    if starts is not None:
        places = [(0, slice(*at)) for at in zip(starts, starts[1:], strict=False)]
    y, ends, slopes = np.zeros(x.shape), [], {n: 0 for n in ("a", "skip", "bias")}
    slopes |= {n: np.zeros(v.shape) for n, v in zip(NAMES, given, strict=True) if n not in slopes}
    for i, at in enumerate(places):
        row = (x[at], dt[at], a, b[at], c[at], skip, z[at], bias, initial[i])
        y[at], end, d = of_sequence(row, double(grad)[at], double(last)[i], softplus)
        ends.append(end)
        for name in ("x", "dt", "b", "c", "z"):
            slopes[name][at] = d[name]
        for name in ("a", "skip", "bias"):
            slopes[name] = slopes[name] + d[name]
        slopes["initial"][i] = d["initial"]
    return y, np.array(ends), [slopes[n] for n in NAMES]


def arguments(shape, width, dtype="float32", sequences=None, softplus=True):
    batch, length, channels = shape
    x, z = numbers(shape, dtype), numbers(shape, dtype, 1)
    dt, bias = numbers(shape, dtype, 2), numbers((channels,), seed=3)
    if not softplus:
        dt, bias = 0.1 * np.abs(dt), 0.1 * np.abs(bias)
    a = -np.abs(numbers((channels, width), seed=4)) - 0.1
    b, c = (numbers((batch, length, width), dtype, seed) for seed in (5, 6))
    initial = numbers((sequences or batch, channels, width), seed=7)
    return x, dt, a, b, c, numbers((channels,), seed=8), z, bias, initial


@pytest.mark.parametrize(
    "shape, width, starts, softplus",
    [
        ((2, 37, 70), 16, None, True),
        ((1, 60, 5), 3, [0, 0, 3, 35, 60], True),
        ((1, 17, 3), 64, None, False),
        ((1, 1, 1), 1, None, True),
        ((1, 290, 35), 2, [0, 0, 280, 290], True),  # segments, of which one sequence fills three
    ],
)
def test_forward_and_backward(shape, width, starts, softplus):
    at = None if starts is None else np.array(starts, np.int32)
    given = arguments(shape, width, "float32", starts and len(starts) - 1, softplus)
    grad, last = numbers(shape, seed=9), numbers(given[8].shape, seed=10)
    y, final = kernels.selective_scan(*given[:8], softplus, given[8], at)
    slopes = kernels.selective_scan_backward(grad, *given[:8], softplus, given[8], at, last)
    want = wanted(given, grad, last, at, softplus)
    close(y, want[0], ulps=128)
    close(final, want[1], ulps=128)
    for got, slope in zip(slopes, want[2], strict=True):
        close(got, slope, ulps=512)


def test_what_is_not_given_has_no_gradient():
    x, dt, a, b, c, *_ = arguments((1, 19, 6), 16)
    nothing = np.zeros(6, np.float32), np.full(x.shape, 50.0), np.zeros(6), np.zeros((1, 6, 16))
    grad, last = numbers(x.shape, seed=9), np.zeros((1, 6, 16))
    slopes = kernels.selective_scan_backward(grad, x, dt, a, b, c, softplus=True)
    # the gate silu(50) is 50
    _, _, want = wanted((x, dt, a, b, c, *nothing), grad / 50, last, None, True)
    for got, slope in zip(slopes[:5], want[:5], strict=True):
        close(got, slope, ulps=512)
    assert [v.size for v in slopes[5:]] == [0, 0, 0, 0]


def test_short_floats():
    given = arguments((1, 50, 40), 16, "bfloat16")
    y, _ = kernels.selective_scan(*given[:8], True, given[8])
    zeros = np.zeros(y.shape), np.zeros(given[8].shape)
    close(y, wanted(given, *zeros, None, True)[0], "bfloat16", ulps=2)


def test_torch_differentiates():
    torch = torch_with_ops()
    arrays = arguments((1, 20, 6), 16)
    given = [torch.tensor(x).requires_grad_() for x in arrays]
    y, final = torch.ops.tkc.selective_scan(*given[:8], True, given[8])
    grad, last = numbers(y.shape, seed=9), numbers(final.shape, seed=10)
    torch.autograd.backward([y, final], [torch.tensor(grad), torch.tensor(last)])
    for x, want in zip(given, wanted(arrays, grad, last, None, True)[2], strict=True):
        close(x.grad.numpy(), want, ulps=512)


def test_steps_are_the_scan():
    x, dt, a, b, c, skip, z, bias, initial = arguments((2, 4, 70), 16)
    want, final = kernels.selective_scan(x, dt, a, b, c, skip, z, bias, True, initial.copy())
    for t in range(4):
        row = [np.ascontiguousarray(v[:, t]) for v in (x, dt, b, c, z)]
        x_t, dt_t, b_t, c_t, z_t = row
        y = kernels.selective_scan_step(x_t, dt_t, a, b_t, c_t, initial, skip, z_t, bias, True)
        close(y, double(want[:, t]), ulps=16)
    close(initial, double(final), ulps=16)


def test_bad_arguments_say_what_is_wrong():
    x, dt, a, b, c, *_ = arguments((2, 5, 8), 16)
    with pytest.raises(tkc.LaunchError, match=r"b: expected the shape \[2, 5, 16\]"):
        kernels.selective_scan(x, dt, a, b[:, :, :4], c)
    with pytest.raises(tkc.LaunchError, match="one row of all positions, got 2"):
        kernels.selective_scan(x, dt, a, b, c, cu_seqlens=np.array([0, 5], np.int32))
    with pytest.raises(tkc.LaunchError, match=r"a is \[channels, 1 to 64\]"):
        kernels.selective_scan(x, dt, np.zeros((8, 65), np.float32), b, c)


@pytest.mark.parametrize("width", [16, 64])
def test_on_gpus(width):
    x = np.empty((2, 2048, 2048), numbers((), "bfloat16").dtype)
    b, a = np.empty((2, 2048, width), x.dtype), np.empty((2048, width), np.float32)
    state, skip = np.empty((2, *a.shape), np.float32), np.empty(2048, np.float32)
    given = (x, x, a, b, b, skip, x, skip, True, state)
    row, keys = x[:, 0].copy(), b[:, 0].copy()
    assembles(
        lambda: (
            kernels.selective_scan(*given),
            kernels.selective_scan_backward(x, *given, None, state),
            kernels.selective_scan_step(row, row, a, keys, keys, state, skip, row, skip, True),
        )
    )
