"""The delta rule against its recurrence in float64: gates of heads and of channels, gradients,
shared heads, states, ragged batches, keys that are alike, one step of decoding.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers, torch_with_ops
from tests.runtime.test_arrays_without_maps import failures
from tkc import kernels
from tkc.kernels.triangular import _invert


def recurrence(q, k, v, beta, g, state, scale):
    """o, the last state, and the state after each position's decay, of [T, H, …], in float64; q and
    k have v's heads, g has K channels."""
    out, state, decayed = np.zeros(v.shape), state.copy(), []
    for t in range(len(v)):
        state = state * np.exp(g[t])[:, :, None]
        decayed.append(state)
        known = np.einsum("hkv,hk->hv", state, k[t])
        state = state + k[t][:, :, None] * (beta[t][:, None] * (v[t] - known))[:, None, :]
        out[t] = scale * np.einsum("hk,hkv->hv", q[t], state)
    return out, state, decayed


def gradients(do, ds, q, k, v, beta, g, state, scale):
    """Of q, k, v, beta, g and the first state, by the recurrence in reverse."""
    _, last, decayed = recurrence(q, k, v, beta, g, state, scale)
    d = [np.zeros(x.shape) for x in (q, k, v, beta, g)]
    for t in reversed(range(len(v))):
        before = decayed[t]
        wrong = v[t] - np.einsum("hkv,hk->hv", before, k[t])
        d[0][t] = scale * np.einsum("hkv,hv->hk", last, do[t])
        ds = ds + scale * q[t][:, :, None] * do[t][:, None, :]
        change = np.einsum("hkv,hk->hv", ds, k[t])
        d[3][t] = (change * wrong).sum(1)
        change = change * beta[t][:, None]
        d[2][t] = change
        d[1][t] = np.einsum("hkv,hv->hk", ds, beta[t][:, None] * wrong)
        d[1][t] -= np.einsum("hkv,hv->hk", before, change)
        ds = ds - k[t][:, :, None] * change[:, None, :]
        d[4][t] = (ds * before).sum(2)
        ds = ds * np.exp(g[t])[:, :, None]
        last = before / np.exp(g[t])[:, :, None]
    return *d, ds


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def arguments(shape, gated="head", shared=1, dtype="float32", sequences=None, alike=0.0):
    batch, length, heads, width, columns = shape
    of_heads = (batch, length, heads // shared, width)
    common = alike * numbers((batch, 1, heads // shared, width), seed=9)
    q, k = (unit(numbers(of_heads, seed=i) * (1 - alike) + common) for i in (0, 1))
    v, row = numbers((batch, length, heads, columns), dtype, 2), (batch, length, heads)
    beta = 1 / (1 + np.exp(-numbers(row, seed=3)))
    gates = {"head": row, "channel": (*row, width)}
    g = -np.abs(numbers(gates[gated], seed=4)) if gated in gates else None
    initial = numbers((sequences or batch, heads, width, columns), seed=5)
    return q.astype(v.dtype), k.astype(v.dtype), v, beta, g, initial


def parts(given, starts=None, normalize=False):
    """The arguments of `recurrence` for each sequence, and where it stands in the arrays."""
    q, k, v, beta, g, initial = given
    q, k = (double(x).repeat(v.shape[2] // x.shape[2], 2) for x in (q, k))
    if normalize:
        q, k = unit(q), unit(k)
    channels = np.zeros(q.shape)
    if g is not None:
        channels += double(g) if g.ndim == 4 else double(g)[..., None]
    places = [(b, slice(None)) for b in range(len(v))]
    if starts is not None:
        places = [(0, slice(a, b)) for a, b in zip(starts, starts[1:], strict=False)]
    for z, at in enumerate(places):
        rows = [x[at] for x in (q, k, double(v), double(beta), channels)]
        yield at, (*rows, double(initial)[z], q.shape[-1] ** -0.5)


def wanted(q, k, v, beta, g, initial, starts=None, normalize=False):
    out, states = np.zeros(v.shape), []
    for at, rows in parts((q, k, v, beta, g, initial), starts, normalize):
        out[at], state, _ = recurrence(*rows)
        states.append(state)
    return out, np.array(states)


def wanted_gradients(grad, last, given, starts=None, normalize=False):
    q, k, v, beta, g, initial = given
    heads = v.shape[2]
    full = (*v.shape[:3], q.shape[3])
    found = [np.zeros(shape) for shape in (full, full, v.shape, beta.shape, full)]
    firsts = []
    for z, (at, rows) in enumerate(parts(given, starts, normalize)):
        *d, first = gradients(double(grad)[at], double(last)[z], *rows)
        for whole, part in zip(found, d, strict=True):
            whole[at] = part
        firsts.append(first)
    for i, x in enumerate((q, k)):
        if normalize:
            wide = double(x).repeat(heads // x.shape[2], 2)
            along = (found[i] * unit(wide)).sum(-1, keepdims=True)
            found[i] = (found[i] - unit(wide) * along) / np.linalg.norm(
                wide, axis=-1, keepdims=True
            )
        found[i] = found[i].reshape(*x.shape[:3], -1, x.shape[3]).sum(3)
    if g is None:
        found[4] = np.zeros(0)
    elif g.ndim == 3:
        found[4] = found[4].sum(-1)
    return (*found, np.array(firsts))


CASES = {
    "gated": ((2, 131, 2, 17, 33), {}),
    "plain": ((1, 70, 2, 16, 16), {"gated": ""}),
    "channels": ((1, 67, 2, 17, 33), {"gated": "channel"}),
    "shared heads": ((1, 65, 4, 16, 70), {"shared": 2}),
    "keys alike": ((1, 128, 1, 32, 16), {"gated": "", "alike": 0.6}),
    "one position": ((1, 1, 1, 1, 1), {}),
    "more heads than a GPU has multiprocessors": ((1, 66, 67, 16, 128), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_forward(name):
    shape, options = CASES[name]
    given = arguments(shape, **options)
    q, k, v, beta, g, initial = given
    out, final = kernels.delta_rule(q, k, v, beta, g, initial)
    want, state = wanted(*given)
    close(out, want, ulps=1024)
    close(final, state, ulps=1024)


@pytest.mark.parametrize("name", CASES)
def test_backward(name):
    shape, options = CASES[name]
    given = arguments(shape, **options)
    grad, last = numbers(given[2].shape, seed=6), numbers(given[5].shape, seed=7)
    got = kernels.delta_rule_backward(grad, *given, None, None, None, False, last)
    for part, want in zip(got, wanted_gradients(grad, last, given), strict=True):
        close(part, want, ulps=4096)


def triangles(length, chunk):
    """What is below the diagonals of the chunks of keys that are alike, [1, length, 2, chunk], and
    the inverses with ones on the diagonal, in float64."""
    keys = unit(0.3 * numbers((length, 2, 32)) + numbers((1, 2, 32), seed=1))
    lower, inverses = np.zeros((2, 1, length, 2, chunk))
    for t, head in ((t, head) for t in range(0, length, chunk) for head in range(2)):
        here = keys[t : t + chunk, head]
        rows, n = slice(t, t + chunk), len(here)
        lower[0, rows, head, :n] = np.tril(here @ here.T, -1)
        whole = np.eye(chunk)
        whole[:n, :n] += lower[0, rows, head, :n]
        inverses[0, rows, head] = np.linalg.inv(whole)[:n]
    return lower.astype(np.float32), inverses


@pytest.mark.parametrize("length,chunk", [(16, 16), (75, 32), (150, 64)])
def test_inverses(length, chunk):
    lower, wanted = triangles(length, chunk)
    got = np.full(lower.shape, np.nan, np.float32)
    _invert[2, tkc.cdiv(length, chunk), 1](lower, None, got, C=chunk, BASE=16)
    close(got, wanted, ulps=64)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_inverses_by_the_text_for_gpus(target):
    lower, _ = triangles(75, 64)
    args = (lower, None, np.zeros(lower.shape, np.float32), 64, 16)
    assert not failures(_invert, *args, target=target, grid=(2, 2, 1))


def test_steep_channels_do_not_overflow():
    given = arguments((1, 67, 1, 16, 16), gated="channel")
    given[4][...] *= 40
    out, _ = kernels.delta_rule(*given)
    close(out, wanted(*given)[0], ulps=1024)


@pytest.mark.parametrize("gated", ["head", "channel"])
def test_ragged_batches(gated):
    starts = np.array([0, 0, 3, 80, 150], np.int32)
    given = arguments((1, 150, 4, 16, 17), gated, sequences=4, shared=2)
    out, final = kernels.delta_rule(*given, starts, 77)
    want, state = wanted(*given, starts)
    close(out, want, ulps=1024)
    close(final, state, ulps=1024)
    grad, last = numbers(out.shape, seed=6), numbers(final.shape, seed=7)
    got = kernels.delta_rule_backward(grad, *given, starts, 77, None, False, last)
    for part, want in zip(got, wanted_gradients(grad, last, given, starts), strict=True):
        close(part, want, ulps=4096)


@pytest.mark.parametrize("gated", ["head", "channel"])
def test_gradients_of_lengths(gated):
    q, k, *others = arguments((1, 70, 2, 17, 16), gated)
    given = (3 * q, 2 * k, *others)
    grad, last = numbers(given[2].shape, seed=6), numbers(given[5].shape, seed=7)
    got = kernels.delta_rule_backward(grad, *given, None, None, None, True, last)
    wanted = wanted_gradients(grad, last, given, normalize=True)
    for part, want in zip(got, wanted, strict=True):
        close(part, want, ulps=4096)


def test_torch_differentiates():
    torch = torch_with_ops()
    given = [torch.tensor(x) for x in arguments((1, 33, 2, 16, 16), "channel")]
    for x in given:
        x.requires_grad_()
    out, final = torch.ops.tkc.delta_rule(*given)
    grad, last = numbers(out.shape, seed=6), numbers(final.shape, seed=7)
    torch.autograd.backward([out, final], [torch.tensor(grad), torch.tensor(last)])
    wanted = wanted_gradients(grad, last, [x.detach().numpy() for x in given])
    for x, want in zip(given, wanted, strict=True):
        close(x.grad.numpy(), want, ulps=4096)


def test_short_floats_and_lengths():
    q, k, v, beta, g, initial = arguments((1, 130, 2, 64, 64), dtype="bfloat16")
    out, final = kernels.delta_rule(q * 3, k * 2, v, beta, g, initial, normalize=True)
    want, state = wanted(q * 3, k * 2, v, beta, g, initial, normalize=True)
    close(out, want, "bfloat16", ulps=6)
    close(final, state, "bfloat16", ulps=6)


@pytest.mark.parametrize("gated", ["head", "channel"])
def test_steps_are_the_recurrence(gated):
    given = arguments((2, 5, 4, 17, 33), gated, shared=2)
    q, k, v, beta, g, initial = given
    want, state = wanted(*given), initial.copy()
    for t in range(5):
        row = [np.ascontiguousarray(x[:, t]) for x in (q, k, v, beta, g)]
        out = kernels.delta_rule_step(*row[:4], state, row[4])
        close(out, want[0][:, t], ulps=64)
    close(state, want[1], ulps=64)


def test_bad_arguments_say_what_is_wrong():
    q, k, v, beta, g, _ = arguments((1, 5, 3, 16, 16))
    with pytest.raises(tkc.LaunchError, match="not a multiple of q's 2"):
        kernels.delta_rule(q[:, :, :2], k, v, beta)
    with pytest.raises(tkc.LaunchError, match=r"beta: expected the shape \[1, 5, 3\]"):
        kernels.delta_rule(q, k, v, beta[:, :2], g)
    with pytest.raises(tkc.LaunchError, match="one element type"):
        kernels.delta_rule(q, k, v.astype(np.float16), beta)


@pytest.mark.parametrize("gated", ["head", "channel"])
def test_on_gpus(gated):
    x = np.empty((2, 2048, 16, 128), numbers((), "bfloat16").dtype)
    beta, state = np.empty(x.shape[:3], np.float32), np.empty((2, 16, 128, 128), np.float32)
    g = beta if gated == "head" else np.empty(x.shape, np.float32)
    row = [x[:, 0].copy()] * 3
    assembles(
        lambda: (
            kernels.delta_rule(x, x, x, beta, g, state, normalize=True),
            kernels.delta_rule_step(*row, beta[:, 0].copy(), state),
        )
    )


@pytest.mark.parametrize("gated", ["head", "channel"])
def test_backward_on_gpus(gated):
    x = np.empty((2, 2048, 16, 128), numbers((), "bfloat16").dtype)
    beta, state = np.empty(x.shape[:3], np.float32), np.empty((2, 16, 128, 128), np.float32)
    g = beta if gated == "head" else np.empty(x.shape, np.float32)
    given = (x, x, x, x, beta, g, state, None, None, None, True, state)
    assembles(lambda: kernels.delta_rule_backward(*given), ("sm_90a",))
