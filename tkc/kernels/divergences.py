"""Losses of distillation and of preferences, computed in float32.

Of two distributions by logarithms of probabilities x = log q (the student's) and y = log p, each
row by itself, with m = β p + (1 − β) q:

    kl     Σ p (y − x)                                       d/dx = −p
    jsd    β Σ p (y − log m) + (1 − β) Σ q (x − log m)       d/dx = (1 − β) q (x − log m)
           (β = 0 and 1 are kl and Σ q (x − y), its reverse: Agarwal et al., 2024)
    tvd    ½ Σ |p − q|                                       d/dx = ½ q sign(q − p)

Of log-probabilities of answers, c chosen and r rejected, with those of a reference c₀ and r₀, and
σ the logistic function:

    dpo    −log σ(z),  z = β ((c − c₀) − (r − r₀)); with smoothing ε: (1 − ε) of it and ε at −z
    ipo    ((c − c₀) − (r − r₀) − 1 / 2β)²
    cpo    −log σ(β (c − r))
    simpo  −log σ(β (c − r) − γ)
    orpo   −β log σ(log odds c − log odds r),  log odds c = c − log(1 − exp c)
    kto    1 − σ(±β (c − c₀ − z₀)): + where the answer is desirable; z₀ a divergence of the batch
    grpo   −min(ρ A, clip(ρ, 1 − ε₁, 1 + ε₂) A) + β (exp(c₀ − c) − (c₀ − c) − 1) of tokens,
           ρ = exp(c − c_old)

The slopes of the second kind are made with the losses, by tkc.vjp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import e, inf, log, log2
from types import MappingProxyType

import tkc
from tkc.kernels.arrays import (
    Array,
    contiguous,
    empty,
    flat,
    floats,
    matrix,
    power,
    same_shape,
)
from tkc.kernels.blocks import strip
from tkc.kernels.operator import first_order_only, operator

BLOCK = 4096  # elements of a row at once
LOG2E, LN2 = log2(e), log(2)
SMALLEST_PROBABILITY = 2.0**-126
SMALLEST_LOG2 = -1e30  # its power of two is 0
DIVERGENCES = ("kl", "jsd", "tvd")


# ---- distributions -------------------------------------------------------------------------------
def _mixed(x, y, beta):
    """q, p, and logarithms of base 2 of q, p and m: where a probability is 0, of a very small one,
    which it makes nothing of.
    """
    a, b = (tkc.maximum(v * LOG2E, SMALLEST_LOG2) for v in (x, y))
    q, p = tkc.exp2(a), tkc.exp2(b)
    return q, p, a, b, tkc.log2(tkc.maximum(beta * p + (1 - beta) * q, SMALLEST_PROBABILITY))


def _term(x, y, beta, KIND):
    """An element's part of the loss; 0 where its probability is."""
    q, p, a, b, middle = _mixed(x, y, beta)
    if KIND == "tvd":
        return 0.5 * tkc.abs(p - q)
    if KIND == "kl":
        return tkc.where(p > 0, p * (y - x), 0.0)
    return (beta * LN2 * p) * (b - middle) + ((1 - beta) * LN2 * q) * (a - middle)


def _slope(x, y, beta, KIND):
    """The derivative of that by x."""
    q, p, a, _, middle = _mixed(x, y, beta)
    if KIND == "tvd":
        return 0.5 * q * (tkc.where(q > p, 1.0, 0.0) - tkc.where(q < p, 1.0, 0.0))
    if KIND == "kl":
        return -p
    return ((1 - beta) * LN2 * q) * (a - middle)


def _reversed(x, y, KIND):
    """Of the reverse of kl: an element's part, or its derivative."""
    q = tkc.exp(x)
    part = tkc.where(q > 0, q * (x - y), 0.0)
    return part + q if KIND == "slope" else part


@tkc.jit
def _divergence(x, y, losses, beta, KIND: tkc.constexpr, N: tkc.constexpr):
    row, total = tkc.program_id(0), tkc.zeros((N,))
    for at in tkc.range(0, x.shape[1], N):
        # past the end probabilities are 0
        a, b = (tkc.load(v[row], (at,), (N,), other=-inf).to(tkc.float32) for v in (x, y))
        total = total + (_reversed(a, b, "term") if KIND == "reverse" else _term(a, b, beta, KIND))
    tkc.store(losses, (row,), tkc.sum(total) + tkc.zeros((1,)))


@tkc.jit
def _divergence_backward(grad, x, y, out, beta, KIND: tkc.constexpr, N: tkc.constexpr):
    row, at = tkc.program_id(0), tkc.program_id(1) * N
    a, b = (tkc.load(v[row], (at,), (N,)).to(tkc.float32) for v in (x, y))
    slope = _reversed(a, b, "slope") if KIND == "reverse" else _slope(a, b, beta, KIND)
    tkc.store(out[row], (at,), (slope * grad[row].to(tkc.float32)).to(out.dtype))


def _kind_of(kind: str, beta: float) -> str:
    if kind not in DIVERGENCES or not 0 <= beta <= 1:
        raise tkc.LaunchError(
            f"a divergence is one of {', '.join(DIVERGENCES)} with beta from 0 to 1, got {kind!r}"
            f" and {beta}"
        )
    if kind == "jsd" and beta in (0, 1):
        return "reverse" if beta else "kl"
    return kind


def _rows(*arrays: Array) -> list[Array]:
    return [matrix(contiguous(x)) for x in arrays]


@operator
def divergence(log_q: Array, log_p: Array, kind: str = "kl", beta: float = 0.5) -> Iterator[Array]:
    """The divergence of each row, float32 [...], of two distributions by their log-probabilities
    [..., classes]: "kl", "jsd" (generalized, with beta) or "tvd". Differentiable with torch for
    log_q. Raises LaunchError where shapes or names do not fit.
    """
    same_shape(log_q=log_q, log_p=log_p)
    floats(log_q, log_p)
    found = _kind_of(kind, beta)
    losses = empty(log_q, log_q.shape[:-1], "float32")
    yield losses
    x, y = _rows(log_q, log_p)
    n = min(BLOCK, max(128, power(x.shape[1])))
    _divergence[x.shape[0]](x, y, flat(losses), float(beta), KIND=found, N=n)


@operator
def divergence_backward(
    grad: Array, log_q: Array, log_p: Array, kind: str = "kl", beta: float = 0.5
) -> Iterator[Array]:
    """The gradient of log_q from those of the rows' divergences."""
    same_shape(log_q=log_q, log_p=log_p)
    found = _kind_of(kind, beta)
    out = empty(log_q)
    yield out
    (x, y), result = _rows(log_q, log_p), matrix(out)
    n = min(BLOCK, max(128, power(x.shape[1])))
    _divergence_backward[x.shape[0], tkc.cdiv(x.shape[1], n)](
        flat(contiguous(grad)), x, y, result, float(beta), KIND=found, N=n
    )


divergence.gradient_by(divergence_backward, "log_q", without="log_p")


# ---- preferences ---------------------------------------------------------------------------------
def _log_sigmoid(z):
    return tkc.minimum(z, 0.0) - tkc.log1p(tkc.exp(-tkc.abs(z)))


def _log_odds(x):
    return x - tkc.log(tkc.maximum(1 - tkc.exp(x), 1e-12))


def _dpo(c, r, c0, r0, n):
    z = n[0] * ((c - c0) - (r - r0))
    return -(1 - n[1]) * _log_sigmoid(z) - n[1] * _log_sigmoid(-z)


def _ipo(c, r, c0, r0, n):
    z = (c - c0) - (r - r0) - 0.5 / n[0]
    return z * z


def _cpo(c, r, c0, r0, n):
    return -_log_sigmoid(n[0] * (c - r))


def _simpo(c, r, c0, r0, n):
    return -_log_sigmoid(n[0] * (c - r) - n[1])


def _orpo(c, r, c0, r0, n):
    return -n[0] * _log_sigmoid(_log_odds(c) - _log_odds(r))


def _kto(c, sign, c0, z0, n):
    return 1 - tkc.exp(_log_sigmoid(sign * n[0] * (c - c0 - z0)))


def _grpo(c, old, c0, advantage, n):
    ratio = tkc.exp(c - old)
    clipped = tkc.minimum(tkc.maximum(ratio, 1 - n[1]), 1 + n[2])
    apart = c0 - c
    gain = tkc.minimum(ratio * advantage, clipped * advantage)
    return -gain + n[0] * (tkc.exp(apart) - apart - 1)


# kernels read it: what could change would be compared at each launch
LOSSES: MappingProxyType[str, Callable] = MappingProxyType(
    {"dpo": _dpo, "ipo": _ipo, "cpo": _cpo, "simpo": _simpo, "orpo": _orpo}
    | {"kto": _kto, "grpo": _grpo}
)
PAIRED = ("dpo", "ipo", "cpo", "simpo", "orpo")
REFERRING = ("dpo", "ipo")  # to a reference


@tkc.jit
def _preferences(
    a,
    b,
    c,
    d,
    losses,
    of_a,
    of_b,
    n0,
    n1,
    n2,
    KIND: tkc.constexpr,
    N: tkc.constexpr,
):
    """Losses of elements, and their derivatives by the first array and, if wanted, the second."""
    i = tkc.program_id(0) * N
    x, y, z, w = (
        tkc.zeros((N,)) if v is None else tkc.load(v, (i,), (N,)).to(tkc.float32)
        for v in (a, b, c, d)
    )
    value, pull = tkc.vjp(lambda x, y: LOSSES[KIND](x, y, z, w, (n0, n1, n2)), x, y)
    slopes = pull(1.0)
    tkc.store(losses, (i,), value)
    tkc.store(of_a, (i,), slopes[0])
    if of_b is not None:
        tkc.store(of_b, (i,), slopes[1])


def _launch(kind: str, arrays: list, results: list, numbers: tuple[float, ...]) -> None:
    n = results[0].size if not hasattr(results[0], "numel") else results[0].numel()
    if not n:
        return
    given = [None if x is None else flat(contiguous(x)) for x in arrays]
    made = [None if x is None else flat(x) for x in results]
    _preferences[tkc.cdiv(n, strip(n))](*given, *made, *numbers, KIND=kind, N=strip(n))


@operator(name="preference_losses")
def _pairs(
    chosen: Array,
    rejected: Array,
    chosen_reference: Array | None,
    rejected_reference: Array | None,
    kind: str,
    beta: float,
    number: float,
) -> Iterator[tuple[Array, Array, Array]]:
    """Losses of pairs, and their derivatives by both log-probabilities."""
    same_shape(
        chosen=chosen,
        rejected=rejected,
        chosen_reference=chosen_reference,
        rejected_reference=rejected_reference,
    )
    floats(chosen, rejected, chosen_reference, rejected_reference)
    if kind not in PAIRED:
        raise tkc.LaunchError(f"a preference loss is one of {', '.join(PAIRED)}, got {kind!r}")
    if kind in REFERRING and (chosen_reference is None or rejected_reference is None):
        raise tkc.LaunchError(f"{kind} compares with a reference; give its log-probabilities, too")
    losses, of_chosen, of_rejected = (empty(chosen, chosen.shape, "float32") for _ in range(3))
    yield losses, of_chosen, of_rejected
    arrays = [chosen, rejected, chosen_reference, rejected_reference]
    numbers = (float(beta), float(number), 0.0)
    _launch(kind, arrays, [losses, of_chosen, of_rejected], numbers)


@_pairs.backward(saves="result", without="chosen_reference rejected_reference", zeros=False)
def _(saved, grad, *of_derivatives):
    first_order_only("preference_loss", *of_derivatives)
    _, of_chosen, of_rejected = saved.result
    return grad * of_chosen, grad * of_rejected


def preference_loss(
    chosen: Array,
    rejected: Array,
    chosen_reference: Array | None = None,
    rejected_reference: Array | None = None,
    kind: str = "dpo",
    beta: float = 0.1,
    smoothing: float = 0.0,
    margin: float = 0.0,
) -> Array:
    """The loss of each pair of answers, float32 of chosen's shape: "dpo", "ipo", "cpo", "simpo" or
    "orpo". chosen, rejected: log-probabilities of answers (simpo and orpo: means over tokens), and
    those of a reference. smoothing: ε of dpo; margin: γ of simpo. Differentiable with torch for
    chosen and rejected. Raises LaunchError where shapes or names do not fit.
    """
    number = margin if kind == "simpo" else smoothing
    try:
        references = chosen_reference, rejected_reference
        return _pairs(chosen, rejected, *references, kind, beta, number)[0]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise


@operator(name="token_losses")
def _tokens(
    log_probs: Array,
    second: Array,
    reference: Array,
    fourth: Array,
    kind: str,
    beta: float,
    low: float,
    high: float,
) -> Iterator[tuple[Array, Array]]:
    """Losses of elements, and their derivatives by log_probs."""
    same_shape(log_probs=log_probs, second=second, reference=reference, fourth=fourth)
    floats(log_probs, second, reference, fourth)
    losses, slopes = (empty(log_probs, log_probs.shape, "float32") for _ in range(2))
    yield losses, slopes
    arrays = [log_probs, second, reference, fourth]
    _launch(kind, arrays, [losses, slopes, None], (float(beta), float(low), float(high)))


@_tokens.backward(saves="kind result", without="second reference fourth", zeros=False)
def _(saved, grad, *of_derivatives):
    first_order_only(f"{saved.kind}_loss", *of_derivatives)
    return grad * saved.result[1]


def kto_loss(
    log_probs: Array, reference: Array, sign: Array, divergence: Array, beta: float = 0.1
) -> Array:
    """KTO's loss of each answer, float32: 1 − σ(sign β (log_probs − reference − divergence)). sign:
    floats, 1 of desirable answers and −1 of others; divergence: z₀ of each. All of one shape.
    Differentiable with torch for log_probs. Raises LaunchError where shapes do not fit.
    """
    try:
        return _tokens(log_probs, sign, reference, divergence, "kto", beta, 0.0, 0.0)[0]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise


def grpo_loss(
    log_probs: Array,
    old: Array,
    reference: Array,
    advantages: Array,
    beta: float = 0.04,
    low: float = 0.2,
    high: float = 0.2,
) -> Array:
    """GRPO's loss of each token, float32: clipped at 1 − low and 1 + high, with beta times an
    estimate of the divergence from the reference. All of one shape: log-probabilities now, of the
    policy that drew the tokens, and of the reference; advantages. −cross_entropy(logits, tokens)[0]
    gives log-probabilities. Differentiable with torch for log_probs. Raises LaunchError where
    shapes do not fit.
    """
    try:
        return _tokens(log_probs, old, reference, advantages, "grpo", beta, low, high)[0]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
