"""RWKV-7's recurrence against float64: gradients, states, ragged batches, steep and bounded decays,
keys that are alike, one step of decoding.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers, torch_with_ops
from tkc import kernels

LEAST_DECAY = -np.exp(-0.5)  # of RWKV-7's g


def recurrence(q, g, k, v, a, b, state, scale):
    """o and the states before each position and behind the last, of [T, H, …], in float64."""
    out, states = np.zeros(v.shape), [state]
    for t in range(len(v)):
        known = np.einsum("hkv,hk->hv", state, a[t])
        state = state * np.exp(g[t])[:, :, None] + b[t][:, :, None] * known[:, None, :]
        state = state + k[t][:, :, None] * v[t][:, None, :]
        out[t] = scale * np.einsum("hk,hkv->hv", q[t], state)
        states.append(state)
    return out, states


def gradients(do, ds, q, g, k, v, a, b, state, scale):
    """Of q, g, k, v, a, b and the first state, by the recurrence in reverse."""
    _, states = recurrence(q, g, k, v, a, b, state, scale)
    dq, dg, dk, dv, da, db = (np.zeros(x.shape) for x in (q, g, k, v, a, b))
    for t in reversed(range(len(v))):
        before, decay = states[t], np.exp(g[t])[:, :, None]
        dq[t] = scale * np.einsum("hkv,hv->hk", states[t + 1], do[t])
        ds = ds + scale * q[t][:, :, None] * do[t][:, None, :]
        dk[t], dv[t] = np.einsum("hkv,hv->hk", ds, v[t]), np.einsum("hkv,hk->hv", ds, k[t])
        known, change = (np.einsum("hkv,hk->hv", x, y[t]) for x, y in ((before, a), (ds, b)))
        db[t], da[t] = (np.einsum("hkv,hv->hk", x, y) for x, y in ((ds, known), (before, change)))
        dg[t] = (ds * before * decay).sum(2)
        ds = ds * decay + a[t][:, :, None] * change[:, None, :]
    return dq, dg, dk, dv, da, db, ds


def arguments(shape, dtype="float32", sequences=None, alike=0.0, least=LEAST_DECAY):
    batch, length, heads, width, columns = shape
    of_keys = (batch, length, heads, width)
    toward = numbers(of_keys, seed=0) + alike * numbers((batch, 1, heads, width), seed=9)
    toward = toward / np.linalg.norm(toward, axis=-1, keepdims=True)
    rates = 1 / (1 + np.exp(-numbers(of_keys, seed=1)))
    g = least / (1 + np.exp(-numbers(of_keys, seed=2)))
    q, k = (numbers(of_keys, seed=i, scale=width**-0.5) for i in (3, 4))
    v = numbers((batch, length, heads, columns), dtype, 5)
    initial = numbers((sequences or batch, heads, width, columns), seed=6)
    q, k, a, b = (x.astype(v.dtype) for x in (q, k, -toward, toward * rates))
    return q, g.astype(np.float32), k, v, a, b, initial


def places(given, starts):
    if starts is None:
        return [(b, slice(None)) for b in range(len(given[0]))]
    return [(0, slice(a, b)) for a, b in zip(starts, starts[1:], strict=False)]


def wanted(given, starts=None, scale=1.0):
    out, states = np.zeros(given[3].shape), []
    for z, at in enumerate(places(given, starts)):
        rows = [double(x)[at] for x in given[:6]]
        out[at], each = recurrence(*rows, double(given[6])[z], scale)
        states.append(each[-1])
    return out, np.array(states)


def wanted_gradients(grad, last, given, starts=None, scale=1.0):
    found, firsts = [np.zeros(x.shape) for x in given[:6]], []
    for z, at in enumerate(places(given, starts)):
        rows = [double(x)[at] for x in given[:6]]
        *d, first = gradients(double(grad)[at], double(last)[z], *rows, double(given[6])[z], scale)
        for whole, part in zip(found, d, strict=True):
            whole[at] = part
        firsts.append(first)
    return (*found, np.array(firsts))


# (shape, arguments of `arguments`, of the call)
CASES = {
    "bounded": ((2, 131, 2, 17, 33), {}, {"least": LEAST_DECAY}),
    "exact": ((1, 67, 2, 16, 17), {}, {}),
    "some levels": ((1, 66, 1, 16, 16), {"least": -5.0}, {"least": -5.0, "scale": 0.25}),
    "wide keys": ((1, 45, 1, 100, 40), {}, {"least": LEAST_DECAY}),
    "keys alike": ((1, 128, 1, 32, 16), {"alike": 2.0}, {"least": LEAST_DECAY}),
    "one position": ((1, 1, 1, 1, 1), {}, {"least": -1e-9}),
}


@pytest.mark.parametrize("name", CASES)
def test_forward(name):
    shape, options, more = CASES[name]
    given = arguments(shape, **options)
    out, final = kernels.rwkv7(*given, **more)
    want, state = wanted(given, scale=more.get("scale", 1.0))
    close(out, want, ulps=1024)
    close(final, state, ulps=1024)


@pytest.mark.parametrize("name", CASES)
def test_backward(name):
    shape, options, more = CASES[name]
    given = arguments(shape, **options)
    grad, last = numbers(given[3].shape, seed=7), numbers(given[6].shape, seed=8)
    got = kernels.rwkv7_backward(grad, *given, **more, grad_final=last)
    wanted = wanted_gradients(grad, last, given, scale=more.get("scale", 1.0))
    for part, want in zip(got, wanted, strict=True):
        close(part, want, ulps=4096)


def test_steep_decays_do_not_overflow():
    given = arguments((1, 67, 1, 16, 16), least=-90.0)
    want, state = wanted(given)
    out, final = kernels.rwkv7(*given)
    close(out, want, ulps=1024)
    close(final, state, ulps=1024)
    grad, last = numbers(out.shape, seed=7), numbers(final.shape, seed=8)
    got = kernels.rwkv7_backward(grad, *given, grad_final=last)
    slopes = wanted_gradients(grad, last, given)
    for i in (0, 2, 3, 4, 5, 6):
        close(got[i], slopes[i], ulps=4096)
    # dg nearly vanishes, and is a difference of numbers of the other gradients' size
    assert np.abs(got[1] - slopes[1]).max() < 1e-5


def test_ragged_batches():
    starts = np.array([0, 0, 3, 80, 150], np.int32)
    given = arguments((1, 150, 2, 16, 17), sequences=4)
    out, final = kernels.rwkv7(*given, starts, 77, least=LEAST_DECAY)
    want, state = wanted(given, starts)
    close(out, want, ulps=1024)
    close(final, state, ulps=1024)
    grad, last = numbers(out.shape, seed=7), numbers(final.shape, seed=8)
    got = kernels.rwkv7_backward(grad, *given, starts, 77, 1.0, LEAST_DECAY, last)
    for part, want in zip(got, wanted_gradients(grad, last, given, starts), strict=True):
        close(part, want, ulps=4096)


@pytest.mark.parametrize("shape", [(0, 5, 2, 16, 16), (1, 0, 2, 16, 16), (1, 5, 2, 16, 0)])
def test_nothing(shape):
    given = arguments(shape)
    out, final = kernels.rwkv7(*given)
    assert out.shape == given[3].shape and final.shape == given[6].shape
    for slope, x in zip(kernels.rwkv7_backward(out, *given), given, strict=True):
        assert slope.shape == x.shape


def test_short_floats():
    given = arguments((1, 130, 2, 64, 64), "bfloat16")
    out, final = kernels.rwkv7(*given, least=LEAST_DECAY)
    want, state = wanted(given)
    close(out, want, "bfloat16", ulps=4)
    close(final, state, "bfloat16", ulps=4)
    grad, last = numbers(out.shape, "bfloat16", 7), numbers(final.shape, seed=8)
    got = kernels.rwkv7_backward(grad, *given, None, None, 1.0, LEAST_DECAY, last)
    for part, want in zip(got, wanted_gradients(grad, last, given), strict=True):
        close(part, want, "bfloat16", ulps=8)


def test_torch_differentiates():
    torch = torch_with_ops()
    given = [torch.tensor(x) for x in arguments((1, 33, 2, 16, 16))]
    for x in given:
        x.requires_grad_()
    out, final = torch.ops.tkc.rwkv7(*given)
    grad, last = numbers(out.shape, seed=7), numbers(final.shape, seed=8)
    torch.autograd.backward([out, final], [torch.tensor(grad), torch.tensor(last)])
    wanted = wanted_gradients(grad, last, [x.detach().numpy() for x in given])
    for x, want in zip(given, wanted, strict=True):
        close(x.grad.numpy(), want, ulps=4096)


def test_steps_are_the_recurrence():
    given = arguments((2, 5, 2, 17, 33))
    want, state = wanted(given), given[6].copy()
    for t in range(5):
        row = [np.ascontiguousarray(x[:, t]) for x in given[:6]]
        out = kernels.rwkv7_step(*row, state)
        close(out, want[0][:, t], ulps=64)
    close(state, want[1], ulps=64)


def test_bad_arguments_say_what_is_wrong():
    q, g, k, v, a, b, initial = arguments((1, 5, 3, 16, 16))
    with pytest.raises(tkc.LaunchError, match=r"g: expected the shape \[1, 5, 3, 16\]"):
        kernels.rwkv7(q, g[..., 0], k, v, a, b)
    with pytest.raises(tkc.LaunchError, match="one element type"):
        kernels.rwkv7(q, g, k, v.astype(np.float16), a, b)
    with pytest.raises(tkc.LaunchError, match="at most 0; got 1"):
        kernels.rwkv7(q, g, k, v, a, b, least=1.0)
    with pytest.raises(tkc.LaunchError, match="one row of all positions, got 2"):
        kernels.rwkv7(*(np.repeat(x, 2, 0) for x in (q, g, k, v, a, b)), None, np.array([0, 5]))
    with pytest.raises(tkc.LaunchError, match=r"initial: expected the shape \[1, 3, 16, 16\]"):
        kernels.rwkv7(q, g, k, v, a, b, initial[:, :2])


@pytest.mark.parametrize("least", [None, LEAST_DECAY])
@pytest.mark.parametrize("width", [64, 128])
def test_on_gpus(width, least):
    x = np.empty((2, 2048, 16, width), numbers((), "bfloat16").dtype)
    g, state = np.empty(x.shape, np.float32), np.empty((2, 16, width, width), np.float32)
    row = [y[:, 0].copy() for y in (x, g, x, x, x, x)]
    given = (x, g, x, x, x, x, state)
    assembles(
        lambda: (
            kernels.rwkv7(*given, least=least),
            kernels.rwkv7_backward(x, *given, least=least, grad_final=state),
            kernels.rwkv7_step(*row, state),
        )
    )
