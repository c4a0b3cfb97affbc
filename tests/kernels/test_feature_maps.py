"""Linear attention of feature maps against sums over all earlier positions in float64: forward,
gradients, states, one step of decoding.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels


def weights_of(q, k, scale):
    """1 + s + s²/2 of each position and each one up to it, [batch, heads, T, T], in float64."""
    s = scale * np.einsum("bthf,bshf->bhts", q, k)
    return np.tril(1 + s + s * s / 2), np.tril(1 + s)


def attended(q, k, v, scale, normalize):
    """o and, for do, the gradients of q, k and v."""
    shared = v.shape[2] // q.shape[2]
    q, k = (double(x).repeat(shared, 2) for x in (q, k))
    v, (weights, slopes) = double(v), weights_of(q, k, scale)
    total = weights.sum(-1, keepdims=True) + 1e-6 if normalize else np.ones((*weights.shape[:3], 1))
    shares = weights / total
    out = np.einsum("bhts,bshv->bthv", shares, v)

    def gradients(do):
        of_shares = np.einsum("bthv,bshv->bhts", do, v)
        if normalize:
            of_shares = of_shares - np.einsum("bthv,bthv->bht", do, out)[..., None]
        ds = of_shares / total * slopes * scale
        pairs = np.einsum("bhts,bshf->bthf", ds, k), np.einsum("bhts,bthf->bshf", ds, q)
        dq, dk = (x.reshape(*x.shape[:2], -1, shared, x.shape[3]).sum(3) for x in pairs)
        return dq, dk, np.einsum("bhts,bthv->bshv", shares, do)

    return out, gradients


def given(shape, dtype="float32", shared=1):
    batch, length, heads, width, columns = shape
    q, k = (numbers((batch, length, heads // shared, width), dtype, i) for i in (0, 1))
    v, grad = (numbers((batch, length, heads, columns), dtype, i) for i in (2, 3))
    return q, k, v, grad


SHAPES = {
    "a chunk and more": (2, 67, 2, 16, 64),
    "narrow": (1, 33, 1, 1, 1),
    "odd": (1, 70, 2, 5, 17),
    "widest": (1, 65, 1, 21, 16),
    "segments": (1, 1090, 1, 4, 16),
}


@pytest.mark.parametrize("width", [1, 2, 3, 5, 16, 21])
def test_taylor_features(width):
    x, y = numbers((3, 7, width)), numbers((3, 7, width), seed=1)
    a, b = (double(kernels.taylor_features(t, 0.3)) for t in (x, y))
    s = 0.3 * (double(x) * double(y)).sum(-1)
    close((a * b).sum(-1).astype(np.float32), 1 + s + s * s / 2, ulps=64)
    assert a.shape[-1] % 16 == 0


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_based(name, normalize):
    q, k, v, _ = given(SHAPES[name])
    want, _ = attended(q, k, v, q.shape[-1] ** -0.5, normalize)
    close(kernels.based(q, k, v, normalize=normalize)[0], want, ulps=512)


def test_heads_share_keys():
    q, k, v, _ = given((1, 50, 4, 16, 16), shared=2)
    close(kernels.based(q, k, v)[0], attended(q, k, v, 0.25, True)[0], ulps=128)


def test_short_floats():
    q, k, v, _ = given((1, 200, 2, 16, 64), "bfloat16")
    close(kernels.based(q, k, v)[0], attended(q, k, v, 0.25, True)[0], "bfloat16", ulps=4)


def test_sequences_of_a_ragged_batch():
    q, k, v, _ = given((1, 90, 2, 8, 16))
    starts = np.array([0, 0, 3, 90], np.int32)
    out, state = kernels.based(q, k, v, None, starts)
    for z, (a, b) in enumerate(zip(starts[1:], starts[2:], strict=False), 1):
        part, last = kernels.based(*[np.ascontiguousarray(x[:, a:b]) for x in (q, k, v)])
        close(out[:, a:b], double(part), ulps=64)
        close(state[z], double(last[0]), ulps=64)


@pytest.mark.parametrize("normalize", [False, True])
def test_steps_are_the_whole(normalize):
    q, k, v, _ = given((2, 20, 2, 16, 24))
    want, last = kernels.based(q, k, v, normalize=normalize)
    half = [np.ascontiguousarray(x[:, :10]) for x in (q, k, v)]
    rest = [np.ascontiguousarray(x[:, 10:]) for x in (q, k, v)]
    _, state = kernels.based(*half, normalize=normalize)
    again, final = kernels.based(*rest, state, normalize=normalize)
    close(again, double(want[:, 10:]), ulps=64)
    close(final, double(last), ulps=64)
    for t in range(10, 20):
        row = [np.ascontiguousarray(x[:, t]) for x in (q, k, v)]
        out = kernels.based_step(*row, state, normalize=normalize)
        close(out, double(want[:, t]), ulps=64)
    close(state, double(last), ulps=64)


def test_gradient_of_features():
    x, grad = numbers((5, 5)), numbers((5, 32), seed=1)
    got, step, want = kernels.taylor_features_backward(grad, x), 1e-3, np.zeros(x.shape)
    for i in range(5):
        near = [x.copy(), x.copy()]
        near[0][:, i] += step
        near[1][:, i] -= step
        up, down = (double(kernels.taylor_features(t)) for t in near)
        want[:, i] = (double(grad) * (up - down)).sum(-1) / (2 * step)
    close(got, want, ulps=8192)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients(name, normalize):
    q, k, v, grad = given(SHAPES[name])
    got = kernels.based_backward(grad, q, k, v, normalize=normalize)
    want = attended(q, k, v, q.shape[-1] ** -0.5, normalize)[1](double(grad))
    for part, expected in zip(got, want, strict=False):
        close(part, expected, ulps=2048)
    assert got[3].size == 0


def test_gradients_of_shared_heads_and_the_first_state():
    """The gradient of a state: of what follows, by that of one whole."""
    q, k, v, grad = given((1, 30, 4, 8, 16), shared=2)
    want = attended(q, k, v, 8**-0.5, True)[1](double(grad))
    for part, expected in zip(kernels.based_backward(grad, q, k, v), want, strict=False):
        close(part, expected, ulps=2048)
    first = numbers((1, 4, 48, 32), seed=7)
    first[..., 17:] = 0
    got = kernels.based_backward(grad, q, k, v, np.abs(first))[3]
    step, want = 1e-2, np.zeros(8)
    for i in range(8):
        near = [np.abs(first), np.abs(first)]
        near[0][0, 1, 3, 2 * i + 1] += step
        near[1][0, 1, 3, 2 * i + 1] -= step
        up, down = (double(kernels.based(q, k, v, x)[0]) for x in near)
        want[i] = (double(grad) * (up - down)).sum() / (2 * step)
    close(got[0, 1, 3, 1:16:2], want, ulps=2**15)


def test_bad_arguments_say_what_is_wrong():
    q, v = numbers((1, 5, 2, 22)), numbers((1, 5, 2, 16))
    with pytest.raises(tkc.LaunchError, match="22 channels, whose features are more than 256"):
        kernels.based(q, q, v)
    with pytest.raises(tkc.LaunchError, match="scale is above 0"):
        kernels.taylor_features(v, -1.0)
    with pytest.raises(tkc.LaunchError, match="give it an axis"):
        kernels.taylor_features(numbers(()))


def test_on_gpus():
    q, k, v, _ = given((2, 130, 4, 16, 64), "bfloat16")
    assembles(lambda: kernels.based(q, k, v))
    grad = np.empty((2, 130, 4, 160), q.dtype)
    assembles(lambda: kernels.taylor_features_backward(grad, q))
    assembles(lambda: kernels.based_backward(v, q, k, v), ("sm_90a",))
