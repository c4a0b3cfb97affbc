"""Losses of distillation and preferences against float64, and their gradients against
differences.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels
from tkc.kernels.divergences import _pairs, _tokens


def log_probabilities(shape, seed, dtype="float32"):
    x = double(numbers(shape, seed=seed, scale=2))
    x = x - x.max(-1, keepdims=True)
    found = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return found.astype(numbers((), dtype).dtype)


def divergence(x, y, kind, beta):
    q, p = np.exp(x), np.exp(y)
    m = beta * p + (1 - beta) * q
    if kind == "tvd":
        return 0.5 * np.abs(p - q)
    if kind == "kl" or beta == 0:
        return p * (y - x)
    if beta == 1:
        return q * (x - y)
    return beta * p * (y - np.log(m)) + (1 - beta) * q * (x - np.log(m))


@pytest.mark.parametrize(
    "kind, beta", [("kl", 0.5), ("jsd", 0.5), ("jsd", 0.1), ("jsd", 0), ("jsd", 1), ("tvd", 0.5)]
)
def test_divergences(kind, beta):
    shape = (2, 3, 257) if beta == 0.5 else (4, 4099)
    x, y = log_probabilities(shape, 0), log_probabilities(shape, 1)
    a, b, step = double(x), double(y), 1e-6
    close(kernels.divergence(x, y, kind, beta), divergence(a, b, kind, beta).sum(-1), ulps=32)
    grad = numbers(shape[:-1], seed=2)
    slopes = divergence(a + step, b, kind, beta) - divergence(a - step, b, kind, beta)
    want = slopes / (2 * step) * double(grad)[..., None]
    got = kernels.divergence_backward(grad, x, y, kind, beta)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max() + 1e-8


def log_sigmoid(z):
    return -np.logaddexp(0, -z)


def odds(x):
    return x - np.log(1 - np.exp(x))


PAIRS = {
    "dpo": lambda c, r, a, b: (
        -0.9 * log_sigmoid(0.3 * (c - a - r + b)) - 0.1 * log_sigmoid(-0.3 * (c - a - r + b))
    ),
    "ipo": lambda c, r, a, b: (c - a - r + b - 1 / 0.6) ** 2,
    "cpo": lambda c, r, a, b: -log_sigmoid(0.3 * (c - r)),
    "simpo": lambda c, r, a, b: -log_sigmoid(0.3 * (c - r) - 0.5),
    "orpo": lambda c, r, a, b: -0.3 * log_sigmoid(odds(c) - odds(r)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_pairs(kind):
    given = [-np.abs(numbers((37,), seed=i)) - 0.05 for i in range(4)]
    numbers_ = {"smoothing": 0.1, "margin": 0.5}
    wide, step, formula = [double(x) for x in given], 1e-6, PAIRS[kind]
    got = kernels.preference_loss(*given, kind, 0.3, **numbers_)
    close(got, formula(*wide), ulps=32)
    found = _pairs(*given, kind, 0.3, 0.5 if kind == "simpo" else 0.1)
    for i in range(2):
        moved = [w + step * (j == i) for j, w in enumerate(wide)]
        back = [w - step * (j == i) for j, w in enumerate(wide)]
        want = (formula(*moved) - formula(*back)) / (2 * step)
        assert np.abs(found[1 + i] - want).max() <= 1e-5 * max(1, np.abs(want).max())


def test_tokens():
    c, old, ref, adv = (numbers((5, 13), seed=i, scale=0.4) for i in range(4))
    a, b, d, e = map(double, (c, old, ref, adv))

    def grpo(a):
        ratio = np.exp(a - b)
        gain = np.minimum(ratio * e, np.clip(ratio, 0.8, 1.3) * e)
        return -gain + 0.04 * (np.exp(d - a) - (d - a) - 1)

    close(kernels.grpo_loss(c, old, ref, adv, 0.04, 0.2, 0.3), grpo(a), ulps=32)
    slopes = _tokens(c, old, ref, adv, "grpo", 0.04, 0.2, 0.3)[1]
    want = (grpo(a + 1e-6) - grpo(a - 1e-6)) / 2e-6
    assert np.abs(slopes - want).max() <= 1e-4 * np.abs(want).max()
    sign = np.sign(adv)
    close(
        kernels.kto_loss(c, ref, sign, old, 0.5),
        1 - 1 / (1 + np.exp(-np.sign(e) * 0.5 * (a - d - b))),
        ulps=32,
    )


def test_bad_arguments_say_what_is_wrong():
    x = numbers((3, 5))
    with pytest.raises(tkc.LaunchError, match="one of kl, jsd, tvd"):
        kernels.divergence(x, x, "other")
    with pytest.raises(tkc.LaunchError, match="compares with a reference"):
        kernels.preference_loss(x, x)
    with pytest.raises(tkc.LaunchError, match="expected one shape"):
        kernels.grpo_loss(x, x, x, x[0])
    with pytest.raises(tkc.LaunchError, match="a preference loss is one of"):
        kernels.preference_loss(x, x, kind="ppo")


def test_on_gpus():
    x = np.empty((64, 128256), np.float32)
    a = np.empty(4096, np.float32)

    def calls():
        kernels.divergence(x, x, "jsd")
        kernels.divergence_backward(a[:64], x, x, "jsd")
        kernels.preference_loss(a, a, a, a)
        kernels.preference_loss(a, a, kind="orpo")
        kernels.grpo_loss(a, a, a, a)

    assembles(calls)


def test_gradients_of_torch():
    torch = pytest.importorskip("torch")
    from tests.kernels.test_torch import same_gradients, tensors

    x, y = tensors((3, 31), (3, 31))
    y = y.detach().log_softmax(-1)
    same_gradients(
        lambda x: kernels.divergence(x, y),
        lambda x: torch.nn.functional.kl_div(x, y, reduction="none", log_target=True).sum(-1),
        x,
    )
    same_gradients(
        lambda c, r: kernels.preference_loss(c, r, kind="cpo"),
        lambda c, r: -torch.nn.functional.logsigmoid(0.1 * (c - r)),
        *tensors((7,), (7,)),
    )
