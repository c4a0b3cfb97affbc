"""Activations, their gated forms, and dropout: element by element, at the memory's speed.

gelu(x) = x P(X <= x), X normal; "tanh": x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
          (Hendrycks and Gimpel, 2016)
silu(x) = x / (1 + exp -x)
swiglu(a, b) = silu(a) b,   geglu(a, b) = gelu(a) b   (Shazeer, 2020)
dropout(x) = x / (1 - p) where philox(seed, index) >= p, else 0: the mask is made again in the
backward pass, never stored
"""

from __future__ import annotations

from collections.abc import Iterator
from math import e, log2, pi, sqrt
from types import MappingProxyType

import tkc
from tkc.kernels.arrays import Array, contiguous, empty, flat, floats, same_shape
from tkc.kernels.blocks import strip
from tkc.kernels.operator import operator


def _gelu(x, derivative: bool):
    """gelu(x), or its derivative."""
    below = 0.5 + 0.5 * tkc.erf(x * sqrt(0.5))
    return below + x * tkc.exp(-0.5 * x * x) * (1 / sqrt(2 * pi)) if derivative else x * below


def _sigmoid(x):
    return 1 / (1 + tkc.exp2(x * -log2(e)))


def _gelu_tanh(x, derivative: bool):
    c, cube = 2 * sqrt(2 / pi), 0.044715
    # (1 + tanh u) / 2 = sigmoid(2 u)
    s = 1 / (1 + tkc.exp2(x * (-log2(e) * c - log2(e) * c * cube * (x * x))))
    return s * (1 + x * (1 - s) * (c + 3 * c * cube * (x * x))) if derivative else x * s


def _silu(x, derivative: bool):
    s = _sigmoid(x)
    return s * (1 + x * (1 - s)) if derivative else x * s


# kernels read it: what could change would be compared at each launch
FUNCTIONS = MappingProxyType({"gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu})


@tkc.jit
def _activation(x, gate, out, F: tkc.constexpr, N: tkc.constexpr):
    i = tkc.program_id(0) * N
    result = FUNCTIONS[F](tkc.load(x, (i,), (N,)).to(tkc.float32), False)
    if gate is not None:
        result = result * tkc.load(gate, (i,), (N,)).to(tkc.float32)
    tkc.store(out, (i,), result.to(out.dtype))


@tkc.jit
def _activation_backward(grad, x, gate, out, out_gate, F: tkc.constexpr, N: tkc.constexpr):
    i = tkc.program_id(0) * N
    g, values = tkc.load(grad, (i,), (N,)).to(tkc.float32), tkc.load(x, (i,), (N,)).to(tkc.float32)
    if gate is not None:
        tkc.store(out_gate, (i,), (g * FUNCTIONS[F](values, False)).to(out_gate.dtype))
        g = g * tkc.load(gate, (i,), (N,)).to(tkc.float32)
    tkc.store(out, (i,), (g * FUNCTIONS[F](values, True)).to(out.dtype))


@tkc.jit
def _dropout(x, out, p, scale, seed, N: tkc.constexpr):
    i = tkc.program_id(0) * N
    # four elements share a call of it
    a, b, c, d = tkc.philox(seed, (i // 4 + tkc.arange(N // 4))[:, None])
    which = tkc.arange(4)[None, :]
    bits = tkc.where(which == 0, a, tkc.where(which == 1, b, tkc.where(which == 2, c, d)))
    values = tkc.load(x, (i,), (N,)).to(tkc.float32).reshape(N // 4, 4)
    kept = tkc.where((bits >> 8).to(tkc.float32) * 2.0**-24 >= p, values * scale, 0)
    tkc.store(out, (i,), kept.reshape(N).to(out.dtype))


def _forward(x: Array, gate: Array | None, function: str):
    same_shape(x=x, gate=gate)
    floats(x, gate)
    out = empty(x)
    yield out
    values, target = flat(contiguous(x)), flat(out)
    n = target.shape[0]
    _activation[tkc.cdiv(n, strip(n))](
        values, None if gate is None else flat(contiguous(gate)), target, F=function, N=strip(n)
    )


def _backward(grad: Array, x: Array, gate: Array | None, function: str):
    same_shape(grad=grad, x=x, gate=gate)
    floats(grad, x, gate)
    out, out_gate = empty(x), None if gate is None else empty(gate)
    yield out if gate is None else (out, out_gate)
    target, other = (
        flat(out),
        ((None, None) if gate is None else (flat(contiguous(gate)), flat(out_gate))),
    )
    n = target.shape[0]
    _activation_backward[tkc.cdiv(n, strip(n))](
        flat(contiguous(grad)),
        flat(contiguous(x)),
        other[0],
        target,
        other[1],
        F=function,
        N=strip(n),
    )


def _kind(approximate: str) -> str:
    if approximate not in ("none", "tanh"):
        raise tkc.LaunchError(f"approximate is 'none' or 'tanh', got {approximate!r}")
    return "gelu" if approximate == "none" else "gelu_tanh"


@operator
def gelu(x: Array, approximate: str = "none") -> Iterator[Array]:
    """GELU element by element, by erf or ("tanh") its approximation; computed in float32. Raises
    LaunchError for another `approximate`.
    """
    yield from _forward(x, None, _kind(approximate))


@operator
def silu(x: Array) -> Iterator[Array]:
    """x · sigmoid(x) element by element; computed in float32."""
    yield from _forward(x, None, "silu")


@operator
def swiglu(x: Array, gate: Array) -> Iterator[Array]:
    """silu(x) · gate, for arrays of one shape; computed in float32."""
    yield from _forward(x, gate, "silu")


@operator
def geglu(x: Array, gate: Array, approximate: str = "none") -> Iterator[Array]:
    """gelu(x) · gate, for arrays of one shape; computed in float32."""
    yield from _forward(x, gate, _kind(approximate))


@operator
def gelu_backward(grad: Array, x: Array, approximate: str = "none") -> Iterator[Array]:
    """The gradient of gelu's x."""
    yield from _backward(grad, x, None, _kind(approximate))


@operator
def silu_backward(grad: Array, x: Array) -> Iterator[Array]:
    """The gradient of silu's x."""
    yield from _backward(grad, x, None, "silu")


@operator
def swiglu_backward(grad: Array, x: Array, gate: Array) -> Iterator[tuple[Array, Array]]:
    """The gradients of swiglu's x and gate."""
    yield from _backward(grad, x, gate, "silu")


@operator
def geglu_backward(
    grad: Array, x: Array, gate: Array, approximate: str = "none"
) -> Iterator[tuple[Array, Array]]:
    """The gradients of geglu's x and gate."""
    yield from _backward(grad, x, gate, _kind(approximate))


@operator(varies="seed")
def dropout(x: Array, p: float, seed: int) -> Iterator[Array]:
    """Each element is 0 with probability p, else x / (1 - p). The same seed gives the same mask, on
    every device. Raises LaunchError unless 0 <= p <= 1.
    """
    if not 0 <= p <= 1:
        raise tkc.LaunchError(f"p is a probability, 0 to 1, got {p}")
    floats(x)
    out = empty(x)
    yield out
    n = flat(out).shape[0]
    _dropout[tkc.cdiv(n, strip(n))](
        flat(contiguous(x)), flat(out), float(p), 1 / (1 - p) if p < 1 else 0.0, seed, N=strip(n)
    )


gelu.gradient_by(gelu_backward, "x", everywhere=True)


silu.gradient_by(silu_backward, "x", everywhere=True)


swiglu.gradient_by(swiglu_backward, "x gate", everywhere=True)


geglu.gradient_by(geglu_backward, "x gate", everywhere=True)


@dropout.backward(saves="p seed")
def _(saved, grad):
    return dropout(grad, saved.p, saved.seed)
