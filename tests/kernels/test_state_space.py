"""Mamba-2's scan against its recurrence in float64: steps, skips, gates, groups of heads, states,
ragged batches, gradients by differences, one step of decoding.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tests.kernels.test_linear_attention import gradients, recurrence
from tkc import kernels


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Case:
    """Arguments of a call."""

    def __init__(self, shape, groups=1, starts=None, softplus=True, whole=True):
        batch, length, heads, width, columns = shape
        self.starts = None if starts is None else np.array(starts, np.int32)
        sequences = batch if starts is None else len(starts) - 1
        values = (batch, length, heads, columns)
        self.x, self.grad = numbers(values), numbers(values, seed=1)
        self.b, self.c = (numbers((batch, length, groups, width), seed=i) for i in (2, 3))
        self.dt, self.a = numbers(values[:3], seed=4), -np.abs(numbers((heads,), seed=5))
        self.dt = self.dt if softplus else np.abs(self.dt)
        self.softplus, self.skip, self.z, self.bias = softplus, None, None, None
        if whole:
            self.skip, self.bias = numbers((heads,), seed=6), numbers((heads,), seed=7)
            self.z = numbers(values, seed=8)
        state = (sequences, heads, width, columns)
        self.initial, self.grad_final = numbers(state, seed=9), numbers(state, seed=10)

    @property
    def given(self):
        first = (self.x, self.dt, self.a, self.b, self.c, self.skip, self.z, self.bias)
        return (*first, self.softplus, self.initial, self.starts)

    def wanted(self):
        """y, the last state, and the gradients of all, in float64."""
        x, b, c, grad = (double(v) for v in (self.x, self.b, self.c, self.grad))
        heads = x.shape[2]
        b, c = (v.repeat(heads // v.shape[2], 2) for v in (b, c))
        skip, bias = (np.zeros(heads) if v is None else double(v) for v in (self.skip, self.bias))
        before = double(self.dt) + bias
        step = np.logaddexp(0, before) if self.softplus else before
        gate = 1.0 if self.z is None else double(self.z)
        s = 1.0 if self.z is None else gate * sigmoid(gate)
        slope_of_s = 0.0 if self.z is None else sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))
        a, dr = double(self.a), grad * s
        r, states = np.zeros(x.shape), []
        d, firsts = [np.zeros(v.shape) for v in (c, b, x, step, step)], []
        places = [(i, slice(None)) for i in range(len(x))]
        if self.starts is not None:
            places = [(0, slice(i, j)) for i, j in zip(self.starts, self.starts[1:], strict=False)]
        for n, at in enumerate(places):
            rows = [v[at] for v in (c, b, x, step * a, step)]
            r[at], last = recurrence(*rows, double(self.initial)[n], 1.0)
            states.append(last)
            *found, first = gradients(
                dr[at], double(self.grad_final)[n], *rows, double(self.initial)[n], 1.0
            )
            for whole, part in zip(d, found, strict=True):
                whole[at] = part
            firsts.append(first)
        r = r + skip[:, None] * x
        dc, db, dx, dg, dw = d
        dstep = dw + dg * a
        ddt = dstep * sigmoid(before) if self.softplus else dstep
        db, dc = (v.reshape(*self.b.shape[:3], -1, v.shape[3]).sum(3) for v in (db, dc))
        of_positions = (0, 1)
        slopes = {
            "x": dx + skip[:, None] * dr,
            "dt": ddt,
            "a": (dg * step).sum(of_positions),
            "b": db,
            "c": dc,
            "skip": (dr * x).sum((0, 1, 3)),
            "z": grad * r * slope_of_s,
            "bias": ddt.sum(of_positions),
            "initial": np.array(firsts),
        }
        return r * s, np.array(states), slopes


CASES = {
    "whole": Case((2, 70, 4, 16, 17), groups=2),
    "plain": Case((1, 67, 2, 16, 16), softplus=False, whole=False),
    "ragged": Case((1, 90, 2, 17, 16), starts=[0, 0, 3, 70, 90]),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name):
    case = CASES[name]
    out, final = kernels.ssd(*case.given)
    want, state, slopes = case.wanted()
    close(out, want, ulps=512)
    close(final, state, ulps=512)
    got = kernels.ssd_backward(case.grad, *case.given, case.grad_final)
    for part, (array, slope) in zip(got, slopes.items(), strict=True):
        if array != "bias" and getattr(case, array) is None:
            assert part.size == 0
        else:
            close(part, slope, ulps=4096)


@pytest.mark.parametrize("name", ["whole", "plain"])
def test_steps_are_the_recurrence(name):
    case = CASES[name]
    state, want = case.initial.copy(), case.wanted()[0]
    for t in range(3):
        x, dt, b, c, z = (
            None if v is None else np.ascontiguousarray(v[:, t])
            for v in (case.x, case.dt, case.b, case.c, case.z)
        )
        out = kernels.ssd_step(x, dt, case.a, b, c, state, case.skip, z, case.bias, case.softplus)
        close(out, want[:, t], ulps=64)


def test_bad_arguments_say_what_is_wrong():
    case = CASES["plain"]
    with pytest.raises(tkc.LaunchError, match=r"dt: expected the shape \[1, 67, 2\]"):
        kernels.ssd(case.x, case.dt[:, :3], case.a, case.b, case.c)
    with pytest.raises(tkc.LaunchError, match="one element type"):
        kernels.ssd(case.x, case.dt, case.a, case.b.astype(np.float16), case.c)


def test_on_gpus():
    x = np.empty((2, 2048, 8, 64), numbers((), "bfloat16").dtype)
    b, dt, a = (
        np.empty((2, 2048, 1, 128), x.dtype),
        *(np.empty(s, np.float32) for s in (x.shape[:3], 8)),
    )
    given = (x, dt, a, b, b, a, x, a, True)
    state = np.empty((2, 8, 128, 64), np.float32)
    row = [v[:, 0].copy() for v in (x, dt, b)]
    assembles(
        lambda: (
            kernels.ssd(*given),
            kernels.ssd_step(row[0], row[1], a, row[2], row[2], state, a, row[0], a, True),
        )
    )
    assembles(lambda: kernels.ssd_backward(x, *given), ("sm_90a",))
