"""HGRN's scan against its recurrence in float64: states, ragged batches, gradients, steps."""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels


def wanted(grad, last, x, g, initial, starts):
    """h, the last state, and the gradients of x, g and initial."""
    grad, last, x, g, initial = (double(v) for v in (grad, last, x, g, initial))
    h, dx, dg, ends, firsts = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape), [], []
    places = [(b, slice(0, x.shape[1])) for b in range(len(x))]
    if starts is not None:
        places = [(0, slice(a, b)) for a, b in zip(starts, starts[1:], strict=False)]
    for z, (b, rows) in enumerate(places):
        state, before = initial[z], []
        for t in range(rows.start, rows.stop):
            before.append(state)
            state = h[b, t] = np.exp(g[b, t]) * state + x[b, t]
        ends.append(state)
        slope = last[z]
        for t in reversed(range(rows.start, rows.stop)):
            slope = dx[b, t] = slope + grad[b, t]
            slope = slope * np.exp(g[b, t])
            dg[b, t] = slope * before[t - rows.start]
        firsts.append(slope)
    return h, np.array(ends), dx, dg, np.array(firsts)


@pytest.mark.parametrize(
    "shape, starts",
    [
        ((2, 37, 70), None),
        ((1, 60, 5), [0, 0, 3, 35, 60]),
        ((1, 1, 1), None),
        ((2, 300, 5), None),  # in segments
        ((1, 1100, 5), [0, 0, 3, 500, 1100]),
    ],
)
def test_forward_and_backward(shape, starts):
    sequences = shape[0] if starts is None else len(starts) - 1
    x, grad, g = numbers(shape), numbers(shape, seed=1), -np.abs(numbers(shape, seed=2))
    initial, last = (numbers((sequences, shape[2]), seed=i) for i in (3, 4))
    at = None if starts is None else np.array(starts, np.int32)
    h, final = kernels.hgrn(x, g, initial, at)
    slopes = kernels.hgrn_backward(grad, g, h, initial, at, last)
    for got, want in zip((h, final, *slopes), wanted(grad, last, x, g, initial, at), strict=True):
        close(got, want, ulps=32)


def test_steps_are_the_recurrence():
    x, g, state = (
        numbers((2, 4, 70)),
        -np.abs(numbers((2, 4, 70), seed=1)),
        numbers((2, 70), seed=2),
    )
    want, _ = kernels.hgrn(x, g, state.copy())
    for t in range(4):
        out = kernels.hgrn_step(x[:, t].copy(), g[:, t].copy(), state)
        close(out, double(want[:, t]), ulps=8)


def test_bad_arguments_say_what_is_wrong():
    x = numbers((1, 5, 8))
    with pytest.raises(tkc.LaunchError, match=r"g: expected the shape \[1, 5, 8\]"):
        kernels.hgrn(x, x[:, :3])
    with pytest.raises(tkc.LaunchError, match="one row of all positions"):
        kernels.hgrn(numbers((2, 5, 8)), numbers((2, 5, 8)), None, np.array([0, 5], np.int32))


def test_on_gpus():
    x = np.empty((2, 2048, 2048), numbers((), "bfloat16").dtype)
    state = np.empty((2, 2048), np.float32)
    row = [x[:, 0].copy()] * 2
    assembles(
        lambda: (
            kernels.hgrn(x, x, state),
            kernels.hgrn_backward(x, x, x, state, None, state),
            kernels.hgrn_step(*row, state),
        )
    )
