"""Causal convolution against float64: widths, states, ragged batches, gradients, steps."""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels


def reference(x, weight, bias, state, silu):
    """y, the last inputs, and what the gradient needs, of one sequence [T, D] in float64."""
    width = weight.shape[1]
    rows = np.concatenate([state, x])
    u = bias + sum(rows[w : w + len(x)] * weight[:, w] for w in range(width))
    s = 1 / (1 + np.exp(-u))
    slope = s * (1 + u * (1 - s)) if silu else np.ones(u.shape)
    return (u * s if silu else u), rows[len(rows) - width + 1 :], rows, slope


def gradients(grad, grad_final, rows, slope, weight):
    """Of x, weight, bias and state."""
    width, du = weight.shape[1], grad * slope
    d = np.zeros(rows.shape)
    d[len(rows) - width + 1 :] += grad_final
    for w in range(width):
        d[w : w + len(du)] += du * weight[:, w]
    taps = np.stack([(du * rows[w : w + len(du)]).sum(0) for w in range(width)], 1)
    return d[width - 1 :], taps, du.sum(0), d[: width - 1]


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize(
    "shape, width, starts",
    [
        ((2, 37, 70), 4, None),
        ((1, 130, 33), 3, None),
        ((3, 1, 5), 2, None),
        ((1, 90, 1030), 4, [0, 2, 2, 50, 90]),
    ],
)
def test_forward_and_backward(shape, width, starts, silu):
    batch, _, channels = shape
    count = batch if starts is None else len(starts) - 1
    starts = None if starts is None else np.array(starts, np.int32)
    x, grad = numbers(shape), numbers(shape, seed=1)
    weight, bias = numbers((channels, width), seed=2), numbers((channels,), seed=3)
    state, after = (numbers((count, width - 1, channels), seed=i) for i in (4, 5))
    name = "silu" if silu else ""
    y, last = kernels.causal_conv1d(x, weight, bias, state, name, starts)
    got = kernels.causal_conv1d_backward(grad, x, weight, bias, state, name, starts, None, after)
    bounds = None if starts is None else list(zip(starts, starts[1:], strict=False))
    taps, biases = 0, 0
    for z in range(count):
        at = (z, slice(None)) if bounds is None else (0, slice(*bounds[z]))
        want, final, rows, slope = reference(
            double(x)[at], double(weight), double(bias), double(state)[z], silu
        )
        dx, dw, db, ds = gradients(double(grad)[at], double(after)[z], rows, slope, double(weight))
        close(y[at], want, ulps=16)
        close(last[z], final)
        close(got[0][at], dx, ulps=32)
        close(got[3][z], ds, ulps=32)
        taps, biases = taps + dw, biases + db
    close(got[1], taps, ulps=256)
    close(got[2], biases, ulps=256)


def test_without_bias_and_state_in_bfloat16():
    x, weight = numbers((2, 50, 96), "bfloat16"), numbers((96, 4), "bfloat16", 1)
    y, last = kernels.causal_conv1d(x, weight)
    for z in range(2):
        want = reference(double(x)[z], double(weight), 0, np.zeros((3, 96)), True)
        close(y[z], want[0], "bfloat16", ulps=2)
        close(last[z], want[1])


def test_steps_go_on_where_a_sequence_ends():
    x, weight, bias = numbers((2, 20, 33)), numbers((33, 4), seed=1), numbers((33,), seed=2)
    whole, last = kernels.causal_conv1d(x, weight, bias)
    _, state = kernels.causal_conv1d(np.ascontiguousarray(x[:, :15]), weight, bias)
    for t in range(15, 20):
        y = kernels.causal_conv1d_step(np.ascontiguousarray(x[:, t]), weight, bias, state)
        close(y, double(whole[:, t]))
    assert (state == last).all()


def test_bad_arguments_say_what_is_wrong():
    x = numbers((2, 5, 8))
    with pytest.raises(tkc.LaunchError, match=r"weight is \[8, 2 to 4\]"):
        kernels.causal_conv1d(x, numbers((8, 5)))
    with pytest.raises(tkc.LaunchError, match=r"state: expected the shape \[2, 3, 8\]"):
        kernels.causal_conv1d(x, numbers((8, 4)), None, numbers((2, 4, 8)))
    with pytest.raises(tkc.LaunchError, match="'silu' or ''"):
        kernels.causal_conv1d(x, numbers((8, 4)), None, None, "relu")


def test_on_gpus():
    x, weight = np.empty((8, 2048, 5376), numbers((), "bfloat16").dtype), numbers((5376, 4))
    state = np.empty((8, 3, 5376), x.dtype)
    assembles(
        lambda: (
            kernels.causal_conv1d(x, weight, weight[:, 0], state),
            kernels.causal_conv1d_step(x[:, 0].copy(), weight, None, state),
        ),
        ("sm_90a",),
    )


def test_the_gradient_on_gpus():
    x, weight = np.empty((8, 2048, 5376), numbers((), "bfloat16").dtype), numbers((5376, 4))
    assembles(lambda: kernels.causal_conv1d_backward(x, x, weight, weight[:, 0]), ("sm_90a",))
