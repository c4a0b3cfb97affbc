"""Functions of mathematics that are made of others, by one formula for every back end: of floats of
up to 32 bits in float32, of 64 in float64.

    atan    of |u| <= tan(pi/8): u + u^3 P(u^2); larger arguments by 1/x and (x - 1)/(x + 1)
    asin    of |x| <= 1/2: x + x^3 P(x^2); beyond pi/2 - 2 asin(sqrt((1 - x)/2)); acos likewise
    erfc    exp(-x^2) P(t) / (1 + 2x) with t = (x - 4)/(x + 4), and x^2 in two parts
    erfinv  x P(w - 5/2), w = -log(1 - x^2), or P(sqrt(w) - 4); of float64 with a step of Halley's
    lgamma  (x - n) P(x - n) around n = 1 and 2, Stirling's series beyond 3, Euler's reflection
            below 0
    cbrt    2^(log2(x) / 3) with a step of Newton's
    sinh, cosh, asinh, acosh, atanh by expm1, exp and log1p

Errors in ulp are in tests/operations/special.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tkc.language import coefficients
from tkc.language.dtypes import BY_NAME, float32
from tkc.language.operations import (
    copysign_bits,
    cos,
    div_rn,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    fma,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    maximum,
    minimum,
    rem_trunc,
    sin,
    sqrt,
    where,
)
from tkc.language.values import Operand, Value, cast, check, common, lift

inf, nan, PI, LN2 = math.inf, math.nan, math.pi, math.log(2)
TAN_EIGHTH = math.sqrt(2) - 1  # tan(pi/8)
# from where on asinh and acosh are the logarithm of twice their argument, by bits
LARGE = {32: 1e4, 64: 1e9}
# beyond which exp overflows before sinh and cosh do, by bits
NEAR_OVERFLOW = {32: 80.0, 64: 700.0}
# where erfc is 0, by bits
MAX_ERFC = {32: 11.0, 64: 28.0}


def _polynomial(c: Sequence[float], x: Any) -> Any:
    """Horner's rule, lowest coefficient first."""
    total: Operand = c[-1]
    for a in c[-2::-1]:
        total = fma(total, x, a)
    return lift(total)


def _bits(x: Any) -> int:
    """Of what a function is computed in."""
    return x.dtype.bits


def _computed(arguments: Sequence[Operand], one: Callable[..., Any]) -> Value:
    """`one` of the arguments in float32, or float64, rounded to their dtype."""
    dtype = common(*arguments)
    dtype = dtype if dtype.is_float else float32
    wide = dtype if dtype.bits > 32 else float32
    return cast(lift(one(*(lift(cast(lift(x, dtype), wide)) for x in arguments))), dtype)


def _function(name: str, python: Callable[..., float], what: str) -> Callable[[Any], Any]:
    """A function of one float, public as `name`; `python`: of numbers."""

    def register(one: Any) -> Any:
        def function(*given: Operand) -> Operand:
            arguments = [check(x) for x in given]
            if not any(isinstance(x, Value) for x in arguments):
                try:
                    return python(*arguments)
                except (ValueError, OverflowError):
                    arguments = [lift(float(x), float32) for x in arguments]
            return _computed(arguments, one)

        def of_one(x: Operand) -> Operand:
            return function(x)

        def of_two(x: Operand, y: Operand) -> Operand:
            return function(x, y)

        public = of_one if one.__code__.co_argcount == 1 else of_two
        public.__name__ = public.__qualname__ = name
        public.__doc__ = f"{what}, element by element; integers are taken as float32."
        return public

    return register


def _sign(x: Any) -> Any:
    """1 or -1: a factor, so that a derivative goes through it, at 0 too."""
    return copysign_bits(1.0, x)


# ---- angles
@_function("tan", math.tan, "The tangent")
def tan(x: Any) -> Any:
    return div_rn(sin(x), cos(x))


def _atan_up_to_1(q: Any) -> Any:
    """Of 0 <= q <= 1."""
    is_far = q > TAN_EIGHTH
    u = lift(where(is_far, div_rn(q - 1, q + 1), q))
    s = u * u
    near = fma(u * s, _polynomial(coefficients.ATAN[_bits(q)], s), u)
    return lift(where(is_far, near + PI / 4, near))


@_function("atan", math.atan, "The arc tangent")
def atan(x: Any) -> Any:
    sign = _sign(x)
    size = x * sign
    is_far = size > 1
    angle = _atan_up_to_1(lift(where(is_far, div_rn(1.0, size), size)))
    return sign * where(is_far, PI / 2 - angle, angle)


@_function("atan2", math.atan2, "The angle of a point, atan2(y, x), from -pi to pi")
def atan2(y: Any, x: Any) -> Any:
    a, b = x * _sign(x), y * _sign(y)
    small, large = minimum(a, b), maximum(a, b)
    on_diagonal = where(large == 0, 0.0, 1.0)
    angle = _atan_up_to_1(lift(where(small == large, on_diagonal, div_rn(small, large))))
    angle = lift(where(b > a, PI / 2 - angle, angle))
    angle = lift(where(_sign(x) < 0, PI - angle, angle))
    return where(isnan(x) | isnan(y), nan, _sign(y) * angle)


def _arc(size: Any) -> tuple[Any, Any]:
    """Whether a sine (or cosine) is beyond 1/2; asin of it, or else of sqrt((1 - it) / 2)."""
    is_far = size > 0.5
    z = lift(where(is_far, (1 - size) * 0.5, size * size))
    r = lift(where(is_far, sqrt(where(is_far, z, 1.0)), size))
    return is_far, fma(r * z, _polynomial(coefficients.ASIN[_bits(size)], z), r)


@_function("asin", math.asin, "The arc sine; NaN beyond 1")
def asin(x: Any) -> Any:
    sign = _sign(x)
    is_far, angle = _arc(x * sign)
    return sign * where(is_far, PI / 2 - 2 * angle, angle)


@_function("acos", math.acos, "The arc cosine; NaN beyond 1")
def acos(x: Any) -> Any:
    sign = _sign(x)
    is_far, angle = _arc(x * sign)
    far = where(x < 0, PI - 2 * angle, 2 * angle)
    return where(is_far, far, PI / 2 - sign * angle)


# ---- hyperbolic
def _half_exp(size: Any) -> Any:
    """exp(size) / 2, also where exp(size) is beyond the largest number."""
    half = exp(size * 0.5)
    return half * 0.5 * half


@_function("sinh", math.sinh, "The hyperbolic sine")
def sinh(x: Any) -> Any:
    sign = _sign(x)
    size = x * sign
    t = expm1(size)
    near = (t + div_rn(t, t + 1)) * 0.5
    return sign * where(size > NEAR_OVERFLOW[_bits(x)], _half_exp(size), near)


@_function("cosh", math.cosh, "The hyperbolic cosine")
def cosh(x: Any) -> Any:
    sign = _sign(x)
    size = x * sign
    e = exp(size)
    near = (e + div_rn(1.0, e)) * 0.5
    return where(size > NEAR_OVERFLOW[_bits(x)], _half_exp(size), near)


@_function("asinh", math.asinh, "The inverse of the hyperbolic sine")
def asinh(x: Any) -> Any:
    sign = _sign(x)
    size = x * sign
    near = log1p(size + div_rn(size * size, sqrt(fma(size, size, 1.0)) + 1))
    return sign * where(size > LARGE[_bits(x)], log(size) + LN2, near)


@_function("acosh", math.acosh, "The inverse of the hyperbolic cosine; NaN below 1")
def acosh(x: Any) -> Any:
    t = x - 1
    near = log1p(t + sqrt(fma(t, t, 2 * t)))
    return where(x < 1, nan, where(x > LARGE[_bits(x)], log(x) + LN2, near))


@_function("atanh", math.atanh, "The inverse of the hyperbolic tangent; NaN beyond 1")
def atanh(x: Any) -> Any:
    sign = _sign(x)
    size = x * sign
    return sign * 0.5 * log1p(div_rn(2 * size, 1 - size))


# ---- powers and logarithms
@_function("cbrt", lambda x: math.cbrt(x), "The cube root")
def cbrt(x: Any) -> Any:
    # what the root's cube lacks may be no subnormal number
    scale = 2.0**96 if _bits(x) == 32 else 2.0**900
    sign = _sign(x)
    is_tiny = x * sign < 1 / scale
    size = x * sign * where(is_tiny, lift(scale, x.dtype), 1.0)
    y = exp2(log2(size) * (1 / 3))
    square = y * y
    root = y - div_rn(fma(square, y, -size), 3 * square)
    root = root * where(is_tiny, lift(2.0 ** -(math.log2(scale) // 3), x.dtype), 1.0)
    return where((x == 0) | isinf(x), x, sign * root)


@_function("log10", math.log10, "The logarithm to base 10")
def log10(x: Any) -> Any:
    return log2(x) * math.log10(2)


@_function("hypot", math.hypot, "sqrt(x^2 + y^2), without overflow on the way")
def hypot(x: Any, y: Any) -> Any:
    a, b = x * _sign(x), y * _sign(y)
    small, large = minimum(a, b), maximum(a, b)
    q = div_rn(small, where(large == 0, 1.0, large))
    return where(isinf(x) | isinf(y), inf, large * sqrt(fma(q, q, 1.0)))


@_function("fmod", math.fmod, "The remainder of x / y with the sign of x, exactly, as C's fmod")
def fmod(x: Any, y: Any) -> Any:
    return rem_trunc(x, y)


# ---- the error function and the gamma function
@_function("erfc", math.erfc, "1 - erf(x), without cancellation")
def erfc(x: Any) -> Any:
    size = minimum(x * _sign(x), MAX_ERFC[_bits(x)])
    t = div_rn(size - 4, size + 4)
    scaled = div_rn(_polynomial(coefficients.ERFC[_bits(x)], t), fma(2.0, size, 1.0))
    square = size * size
    rest = fma(size, size, -square)
    tail = exp(-square) * (scaled - scaled * rest)
    return where(x < 0, 2 - tail, tail)


def _erfinv_of_number(x: float) -> float:
    """By Halley's iteration."""
    size, y = abs(x), 0.0
    if size >= 1:
        return math.copysign(inf, x) if size == 1 else nan
    for _ in range(60):
        error = math.erf(y) - size if size < 0.5 else (1 - size) - math.erfc(y)
        u = error * math.sqrt(PI) / 2 * math.exp(y * y)
        y -= u / (1 + y * u)
    return math.copysign(y, x)


@_function("erfinv", _erfinv_of_number, "The inverse of erf; NaN beyond 1")
def erfinv(x: Any) -> Any:
    sign = _sign(x)
    size = x * sign
    w = -log((1 - size) * (1 + size))
    near = _polynomial(coefficients.ERFINV_NEAR, w - 2.5)
    far = _polynomial(coefficients.ERFINV_FAR, sqrt(where(w < 5, 5.0, w)) - 4)
    y = size * lift(where(w < 5, near, far))
    if _bits(x) == 64:
        error = where(size < 0.5, erf(y) - size, (1 - size) - erfc(y))
        u = error * exp(y * y) * (math.sqrt(PI) / 2)
        y = y - div_rn(u, fma(y, u, 1.0))
    return sign * where(size == 1, inf, y)


@_function("lgamma", math.lgamma, "log |gamma(x)|")
def lgamma(x: Any) -> Any:
    size, bits = x * _sign(x), _bits(x)
    around_1 = lift(where(size < 0.5, size, size - 1))
    first = around_1 * _polynomial(coefficients.LGAMMA1[bits], around_1)
    first = where(size < 0.5, first - log(size), first)
    around_2 = size - 2
    second = around_2 * _polynomial(coefficients.LGAMMA2[bits], around_2)
    inverse = div_rn(1.0, size)
    series = inverse * _polynomial(coefficients.STIRLING[bits], inverse * inverse)
    large = fma(size - 0.5, log(size) - 1, series + (0.5 * math.log(2 * PI) - 0.5))
    above = lift(where(size < 1.5, first, where(size < 3, second, large)))
    above_whole = size - floor(size)
    fraction = lift(minimum(above_whole, 1 - above_whole))
    wave = where((x < 0) & (fraction > 0), size * sin(fraction * PI), 1.0)
    reflected = log(div_rn(PI, wave)) - above
    # the product of two tiny numbers is 0; there it is -log |x| on both sides
    below = where(fraction == 0, inf, where(size < 1e-18, above, reflected))
    return where(isinf(x), inf, where(x < 0, below, above))


# ---- bits
def nextafter(x: Operand, y: Operand) -> Operand:
    """The next float after x in the direction of y, of their dtype; y where they are equal."""
    a, b = check(x), check(y)
    if not isinstance(a, Value) and not isinstance(b, Value):
        return math.nextafter(a, b)
    dtype = common(a, b)
    dtype = dtype if dtype.is_float else float32
    p, q = lift(a, dtype), lift(b, dtype)
    kind = BY_NAME[f"int{dtype.bits}"]
    word = p.to(kind, bitcast=True)
    moved = where((_wide(p) < _wide(q)) == (_wide(p) > 0), word + 1, word - 1)
    found: Operand = lift(moved).to(dtype, bitcast=True)
    least = copysign_bits(lift(1, kind).to(dtype, bitcast=True), q)
    found = where(_wide(p) == 0, least, found)
    found = where(_wide(p) == _wide(q), q, found)
    return where(isnan(p) | isnan(q), nan, found)


def _wide(x: Value) -> Value:
    return cast(x, float32) if x.dtype.bits < 32 else x


def copysign(x: Operand, y: Operand) -> Operand:
    """The magnitude of x with the sign of y, of their dtype."""
    a, b = check(x), check(y)
    if not isinstance(a, Value) and not isinstance(b, Value):
        return math.copysign(a, b)
    dtype = common(a, b)
    dtype = dtype if dtype.is_float else float32
    return copysign_bits(lift(a, dtype), lift(b, dtype))
