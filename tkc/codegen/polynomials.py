"""Polynomials of elementary functions of float32, and the formulas around them, for every back end.

The coefficients are minimax fits, lowest first, as exact as float32 shows. Each formula is written
once, over a back end's arithmetic: `F.mul(a, b)` is one instruction and gives its result.

    sine, cosine     of r, |r| <= pi/4, with s = r r
    log1p            of r, -1/3 <= r < 1/3
    near_tanh        of a, 0 <= a < 0.6, with s = a a
    near_erf         of x, |x| < 1, with s = x x
    far_erf_log2     of a, 1 <= a <= 4: -log2(erfc(a))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Value = str | int | float  # a register, or a constant


class Arithmetic(Protocol):
    """Instructions on operands of one width."""

    def mul(self, a: Value, b: Value) -> str: ...

    def fma(self, a: Value, b: Value, c: Value) -> str: ...

    def polynomial(self, coefficients: Sequence[float], x: Value) -> Value: ...


LOG1P = (
    -0.5,
    0.3333320915699005,
    -0.24999716877937317,
    0.20010748505592346,
    -0.16682299971580505,
    0.14001157879829407,
    -0.12167225033044815,
    0.14004769921302795,
    -0.12948665022850037,
)
TANH = (
    -0.3333333134651184,
    0.13333247601985931,
    -0.053952474147081375,
    0.021734436973929405,
    -0.008267083205282688,
    0.0022310575004667044,
)
SIN = (-0.1666666716337204, 0.008333329111337662, -0.00019839256128761917, 2.717564257181948e-06)
COS = (0.0416666679084301, -0.0013888883404433727, 2.479943577782251e-05, -2.720329916883202e-07)
ERF = (
    1.128379225730896,
    -0.37612637877464294,
    0.11283782124519348,
    -0.0268654003739357,
    0.005220945458859205,
    -0.000848282827064395,
    0.00011256943980697542,
    -9.641505130275618e-06,
)
ERFC = (
    -0.00027600364410318434,
    1.6296608448028564,
    0.9134921431541443,
    0.1564767211675644,
    -0.03641365095973015,
    0.006087242625653744,
    -0.000642805767711252,
    3.226171975256875e-05,
    -6.681317188395042e-08,
)


def sine(F: Arithmetic, r: Value, s: Value, coefficients: Sequence[float] = SIN) -> str:
    return F.fma(F.mul(s, r), F.polynomial(coefficients, s), r)


def cosine(F: Arithmetic, s: Value, coefficients: Sequence[float] = COS) -> str:
    return F.fma(F.mul(s, s), F.polynomial(coefficients, s), F.fma(s, -0.5, 1.0))


def log1p(F: Arithmetic, r: Value) -> str:
    return F.fma(F.polynomial(LOG1P, r), F.mul(r, r), r)


def near_tanh(F: Arithmetic, a: Value, s: Value) -> str:
    return F.fma(F.mul(s, a), F.polynomial(TANH, s), a)


def near_erf(F: Arithmetic, x: Value, s: Value) -> str:
    return F.mul(F.polynomial(ERF, s), x)


def far_erf_log2(F: Arithmetic, a: Value) -> Value:
    return F.polynomial(ERFC, a)
