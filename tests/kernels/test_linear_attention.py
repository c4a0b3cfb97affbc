"""Linear attention with a decay a head or a channel, against the recurrence in float64: forward,
gradients, states, ragged batches, shared heads, segments, one step of decoding.
"""

from importlib import import_module

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels
from tkc.kernels.segments import walk_of


def decay(g):
    """Of a state, by what g has for each head, or for each channel too."""
    return np.exp(g)[:, :, None] if g.ndim == 2 else np.exp(g)[:, None, None]


def recurrence(q, k, v, g, w, state, scale):
    """o and the last state, of [T, H, …], in float64; q and k have v's heads."""
    out, state = np.zeros(v.shape), state.copy()
    for t in range(len(v)):
        state = state * decay(g[t])
        state = state + w[t][:, None, None] * k[t][:, :, None] * v[t][:, None, :]
        out[t] = scale * np.einsum("hk,hkv->hv", q[t], state)
    return out, state


def gradients(do, ds, q, k, v, g, w, state, scale):
    """Of q, k, v, g, w and the first state, by the recurrence in reverse."""
    states = [state]
    for t in range(len(v)):
        grown = w[t][:, None, None] * k[t][:, :, None] * v[t][:, None, :]
        states.append(states[-1] * decay(g[t]) + grown)
    d = [np.zeros(x.shape) for x in (q, k, v, g, w)]
    ds = ds.copy()
    for t in reversed(range(len(v))):
        ds = ds + scale * q[t][:, :, None] * do[t][:, None, :]
        d[0][t] = scale * np.einsum("hkv,hv->hk", states[t + 1], do[t])
        d[1][t] = w[t][:, None] * np.einsum("hkv,hv->hk", ds, v[t])
        d[2][t] = w[t][:, None] * np.einsum("hkv,hk->hv", ds, k[t])
        d[3][t] = (decay(g[t]) * ds * states[t]).sum(tuple(range(g[t].ndim, 3)))
        d[4][t] = np.einsum("hkv,hk,hv->h", ds, k[t], v[t])
        ds = ds * decay(g[t])
    return (*d, ds)


class Case:
    """Arguments of a call, and the same in float64 with a value for each that is left out."""

    def __init__(self, shape, kind="g", dtype="float32", shared=1, starts=None, weighted=False):
        batch, length, heads, width, columns = shape
        self.starts = None if starts is None else np.array(starts, np.int32)
        q, k = (numbers((batch, length, heads // shared, width), dtype, i) for i in (0, 1))
        v, self.grad = (numbers((batch, length, heads, columns), dtype, i) for i in (2, 3))
        row, sequences = (batch, length, heads), batch if starts is None else len(starts) - 1
        of_gates = {"g": row, "channels": (*row, width)}.get(kind)
        g = None if of_gates is None else -np.abs(numbers(of_gates, seed=4))
        rate = np.log(1 - 2.0 ** (-2 - np.arange(heads))).astype(np.float32)
        rate = rate if kind == "rate" else None
        weight = np.abs(numbers(row, seed=5)) if weighted else None
        states = (numbers((sequences, heads, width, columns), seed=i) for i in (6, 7))
        initial, self.grad_final = states
        self.given = (q, k, v, g, rate, weight, initial, self.starts)
        every = np.zeros(row) if g is None else double(g)
        every = every if rate is None else every + double(rate)
        ones = np.ones(row) if weight is None else double(weight)
        q, k = (double(x).repeat(shared, 2) for x in (q, k))
        self.rows = (q, k, double(v), every, ones)
        self.scale, self.initial = width**-0.5, double(initial)

    def sequences(self):
        """Of each: where it stands in the arrays."""
        if self.starts is None:
            return [(b, slice(None)) for b in range(len(self.rows[0]))]
        return [(0, slice(a, b)) for a, b in zip(self.starts, self.starts[1:], strict=False)]

    def results(self):
        out, states = np.zeros(self.rows[2].shape), []
        for z, at in enumerate(self.sequences()):
            rows = [x[at] for x in self.rows]
            out[at], state = recurrence(*rows, self.initial[z], self.scale)
            states.append(state)
        return out, np.array(states)

    def gradients(self):
        found = [np.zeros(x.shape) for x in self.rows]
        firsts = []
        for z, at in enumerate(self.sequences()):
            rows = [x[at] for x in (double(self.grad), *self.rows)]
            *d, first = gradients(
                rows[0], double(self.grad_final)[z], *rows[1:], self.initial[z], self.scale
            )
            for whole, part in zip(found, d, strict=True):
                whole[at] = part
            firsts.append(first)
        return (*found, np.array(firsts))


CASES = {
    "simple GLA": Case((2, 131, 2, 17, 33)),
    "linear": Case((1, 65, 2, 16, 70), "none"),
    "retention": Case((1, 130, 3, 20, 16), "rate"),
    "weights": Case((1, 70, 2, 16, 16), weighted=True),
    "shared heads": Case((1, 100, 4, 16, 17), shared=2, weighted=True),
    "ragged": Case((1, 150, 2, 16, 16), starts=[0, 0, 3, 80, 150]),
    "ragged retention": Case((1, 90, 2, 16, 16), "rate", starts=[0, 63, 90]),
    "segments": Case((1, 1090, 1, 16, 16)),
    "ragged segments": Case((1, 2100, 1, 16, 16), starts=[0, 1090, 2100], weighted=True),
    "segments backward": Case((1, 1600, 1, 16, 24)),
    "GLA": Case((2, 67, 2, 17, 33), "channels"),
    "ragged GLA": Case((1, 90, 4, 16, 17), "channels", shared=2, starts=[0, 0, 3, 33, 90]),
    "one position": Case((2, 1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_forward(name):
    case = CASES[name]
    out, final = kernels.linear_attention(*case.given)
    want, state = case.results()
    # sums of g over a chunk reach 70 in float32, and exponents are their differences
    close(out, want, ulps=512)
    close(final, state, ulps=512)


@pytest.mark.parametrize("name", CASES)
def test_backward(name):
    case = CASES[name]
    q, k, v, g, _, weight, initial, _ = case.given
    got = kernels.linear_attention_backward(case.grad, *case.given, None, case.grad_final)
    want = list(case.gradients())
    for i, x in enumerate((q, k)):  # heads that share one
        want[i] = want[i].reshape(*x.shape[:3], -1, x.shape[3]).sum(3)
    for part, expected, given in zip(got, want, (q, k, v, g, weight, initial), strict=True):
        if given is None:
            assert part.size == 0
        else:
            close(part, expected, ulps=2048)


def test_gradients_of_decays_are_as_exact_in_long_sequences():
    """Sums from the sequence's end would add up what rounding leaves of every position."""
    case = Case((1, 2048, 1, 64, 64), dtype="bfloat16")
    results = kernels.linear_attention_backward(case.grad, *case.given, None, case.grad_final)
    got, want = double(results[3]), list(case.gradients())[3]
    assert np.linalg.norm(got - want) <= 0.01 * np.linalg.norm(want)


@pytest.mark.parametrize("columns", [17, 70])
def test_a_program_adds_up_heads_that_share(columns, monkeypatch):
    """As many as leave a GPU enough programs: here one program does for each chunk."""
    module = import_module("tkc.kernels.linear_attention_backward")
    monkeypatch.setattr(module, "PROGRAMS", 0)
    case = Case((1, 100, 4, 16, columns), shared=4, weighted=True)
    got = kernels.linear_attention_backward(case.grad, *case.given, None, case.grad_final)
    want = list(case.gradients())
    want[:2] = [x.sum(2, keepdims=True) for x in want[:2]]
    for part, expected in zip(got, want, strict=True):
        close(part, expected, ulps=2048)


def test_short_floats():
    case = Case((1, 200, 2, 64, 64), dtype="bfloat16")
    out, final = kernels.linear_attention(*case.given)
    want, state = case.results()
    close(out, want, "bfloat16", ulps=4)
    close(final, state, "bfloat16", ulps=4)


def test_steep_decay_does_not_overflow():
    case = Case((1, 100, 2, 16, 16))
    case.given[3][...] *= 40
    case.rows = (*case.rows[:3], double(case.given[3]), case.rows[4])
    close(kernels.linear_attention(*case.given)[0], case.results()[0], ulps=64)


@pytest.mark.parametrize("steep", [0.02, 1.0, 8.0, 300.0])
def test_channels_decay_as_steeply_as_they_like(steep):
    """One product of a chunk, of its short blocks, or none: of channels that are alike in this."""
    case = Case((1, 100, 2, 40, 16), "channels")
    g = case.given[3]
    g[..., :32] *= steep
    case.rows = (*case.rows[:3], double(g), case.rows[4])
    close(kernels.linear_attention(*case.given)[0], case.results()[0], ulps=512)
    got = kernels.linear_attention_backward(case.grad, *case.given, None, case.grad_final)
    for part, expected in zip(got[:4], list(case.gradients())[:4], strict=True):
        close(part, expected, ulps=4096)


@pytest.mark.parametrize("name", ["simple GLA", "retention", "shared heads", "linear", "GLA"])
def test_steps_are_the_recurrence(name):
    case = CASES[name]
    q, k, v, g, rate, weight, initial, _ = case.given
    state, want = initial.copy(), case.results()
    for t in range(5):
        row = [None if x is None else np.ascontiguousarray(x[:, t]) for x in (q, k, v, g, weight)]
        out = kernels.linear_attention_step(*row[:3], state, row[3], rate, row[4])
        close(out, want[0][:, t], ulps=64)


def test_bad_arguments_say_what_is_wrong():
    q, v, g = numbers((1, 5, 2, 16)), numbers((1, 5, 3, 16)), numbers((1, 5, 2))
    with pytest.raises(tkc.LaunchError, match="not a multiple of q's 2"):
        kernels.linear_attention(q, q, v)
    with pytest.raises(tkc.LaunchError, match=r"g: expected the shape \[1, 5, 2\]"):
        kernels.linear_attention(q, q, q, g[:, :3])
    with pytest.raises(tkc.LaunchError, match="give g or rate, not both"):
        kernels.linear_attention(q, q, q, g, numbers((2,)))
    with pytest.raises(tkc.LaunchError, match="there is no weight"):
        kernels.linear_attention(q, q, q, q, None, g)
    with pytest.raises(tkc.LaunchError, match="widths are 1 to 256"):
        kernels.linear_attention(*[numbers((1, 5, 2, 300))] * 3)
    with pytest.raises(tkc.LaunchError, match="one element type"):
        kernels.linear_attention(q, q, q.astype(np.float16))


@pytest.mark.parametrize("width", [64, 128])
def test_on_gpus(width):
    x = np.empty((8, 2048, 16, width), numbers((), "bfloat16").dtype)
    g, state = np.empty(x.shape[:3], np.float32), np.empty((8, 16, width, width), np.float32)
    assembles(
        lambda: (
            kernels.linear_attention(x, x, x, g, None, None, state),
            kernels.linear_attention_step(*[x[:, 0].copy()] * 3, state, g[:, 0].copy()),
        )
    )
    assembles(lambda: kernels.linear_attention_backward(x, x, x, x, g), ("sm_90a",))


def test_few_heads_are_cut_into_segments():
    q = np.empty((1, 8192, 2, 64), np.float32)
    assert walk_of(q, q, q, None, 2, 64).segments > 8
