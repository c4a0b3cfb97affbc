"""Floating-point functions as PTX: what the hardware has, and short formulas for what it has not.

f16, bf16 and f8 are computed in float32 and rounded by the caller; for them the hardware's
approximations are exact enough. Errors in ulp of float32: div, exp2, exp, log, log2, expm1, sqrt,
rsqrt, tanh, erf, atan2, sin and cos at most 2 to 4; pow grows with |y log2 x|, about 1 for each 2^4
of it beyond 8.  float64: within a few ulp; atan2 has no float64 form.  tests/operations has the
bounds.

The formulas are minimax polynomials (tkc/codegen/polynomials.py) on a reduced argument:

    exp    2^n 2^f, n = floor(x log2 e)
    log    x = 2^i m, m in [2/3, 4/3): i ln 2 + log1p(m - 1)
    tanh   odd polynomial, else 1 - 2/(e^2x + 1)   erf    odd polynomial, else 1 - 2^-T(x)
    sin    x = k pi/2 + r, |r| <= pi/4: the sine or cosine of r by the quadrant k; beyond 10^5
           (10^9 of float64) k and r by the digits of 2/pi that count (Payne and Hanek, "Radian
           reduction for trigonometric functions", SIGNUM 1983)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise

import numpy as np
from numpy.polynomial import Polynomial, chebyshev
from xdsl.ir import Attribute

from tkc.codegen import polynomials
from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.writer import Operand
from tkc.ir.types import bits

Function = Callable[..., Operand]  # of the emitter, the element type and the operands

LOG2E, LN2, PI = 1.4426950408889634, 0.6931471805599453, 3.141592653589793
LOG2E_HI, LOG2E_LO = 1.4426950216293335, 1.92596298909109e-08  # the first a float32
_EXPM1_64 = [1 / math.factorial(k + 2) for k in range(13)]
_SIN64 = [(-1) ** (i + 1) / math.factorial(2 * i + 3) for i in range(8)]
_COS64 = [(-1) ** i / math.factorial(2 * i + 4) for i in range(8)]
_EXPM1 = (
    0.5,
    0.1666666716337204,
    0.041666656732559204,
    0.008333110250532627,
    0.0013889375841245055,
    0.00019984379468951374,
    2.478995156707242e-05,
)
# a float32 of few bits, what that leaves, what both leave
_HALF_PI = (1.5707855224609375, 1.0804334124259185e-05, -1.6513995574653217e-13)
_ATAN = (
    -0.33333301544189453,
    0.19998638331890106,
    -0.14265243709087372,
    0.10957565903663635,
    -0.08419428765773773,
    0.058234021067619324,
    -0.03145517036318779,
    0.011064153164625168,
    -0.0018271482549607754,
)


class Floats:
    """Arithmetic on operands of one width: `F.mul(a, b)` is one instruction."""

    def __init__(self, e: Emitter, width: int = 32):
        self.w, self.type, self.cls = e.w, f"f{width}", f"b{width}"

    def op(self, name: str, *args: Operand) -> str:
        return self.w.op(f"{name}.{self.type}", self.cls, *args)

    def add(self, a: Operand, b: Operand) -> str:
        return self.op("add.rn", a, b) if isinstance(a, str) else self.op("add.rn", b, a)

    def sub(self, a: Operand, b: Operand) -> str:
        return self.op("sub.rn", a, b)

    def mul(self, a: Operand, b: Operand) -> str:
        return self.op("mul.rn", a, b)

    def fma(self, a: Operand, b: Operand, c: Operand) -> str:
        return self.op("fma.rn", a, b, c)

    def abs(self, a: Operand) -> str:
        return self.op("abs", a)

    def test(self, relation: str, a: Operand, b: Operand) -> str:
        return self.w.op(f"setp.{relation}.{self.type}", "pred", a, b)

    def select(self, condition: Operand, yes: Operand, no: Operand) -> str:
        return self.w.op(f"selp.{self.type}", self.cls, yes, no, condition)

    def signed_as(self, magnitude: Operand, sign: Operand) -> str:
        return self.op("copysign", sign, magnitude)

    def polynomial(self, coefficients: Sequence[float], x: Operand) -> Operand:
        """Horner's rule, lowest coefficient first."""
        r: Operand = coefficients[-1]
        for c in coefficients[-2::-1]:
            r = self.fma(r, x, c) if isinstance(r, str) else self.fma(x, r, c)
        return r


def _simple(f32: str, f64: str | None = None) -> Function:
    """One instruction; of float64 another, or none."""

    def apply(e: Emitter, t: Attribute, *args: Operand) -> Operand:
        if bits(t) < 64:
            return e.w.op(f32, "b32", *args, type="f32")
        if f64 is None:
            e.fail(f"'{f32.partition('.')[0]}' of float64 has no GPU form yet: cast to float32")
        return e.w.op(f64, "b64", *args, type="f64")

    return apply


def divisor(e: Emitter, b: str) -> tuple[str, str]:
    """What `quotient` needs of a divisor: a power of two that brings it away from the ends of
    float32's range, and the reciprocal of their product, to half an ulp by one step of Newton's
    (which makes NaN of zero and infinity: there the first value is right).
    """
    F = Floats(e)
    size = F.abs(b)
    scale = F.select(
        F.test("gt", size, 2.0**125), 2.0**-8, F.select(F.test("lt", size, 2.0**-125), 2.0**25, 1.0)
    )
    near = F.mul(b, scale)
    first = e.w.op("rcp.approx.ftz.f32", "b32", near)
    rest = F.fma(F.op("neg", near), first, 1.0)
    return scale, F.select(F.test("nan", rest, rest), first, F.fma(first, rest, first))


def quotient(e: Emitter, a: str, scale: str, reciprocal: str) -> str:
    """a / b within 2 ulp, as two products: for a divisor that many elements share."""
    F = Floats(e)
    return F.mul(F.mul(a, scale), reciprocal)


def inverse(e: Emitter, a: float, b: str) -> str:
    """a / b of a constant of at most 1 and a divisor that is not small: within 2 ulp, and 0 where
    it would be subnormal.
    """
    found = e.w.op("rcp.approx.ftz.f32", "b32", b)
    return found if a == 1 else Floats(e).mul(found, float(a))


def _number(name: str) -> Function:
    """NaN loses."""
    return _simple(f"{name}.f32", f"{name}.f64")


def _extremum(name: str) -> Function:
    """NaN wins."""

    def apply(e: Emitter, t: Attribute, a: Operand, b: Operand) -> Operand:
        if not isinstance(a, str):
            a, b = b, a
        if bits(t) < 64:
            return e.w.op(f"{name}.NaN.f32", "b32", a, b, type="f32")
        odd = e.w.op("setp.nan.f64", "pred", a, b)
        return e.w.op(
            "selp.f64",
            "b64",
            e.w.op("add.f64", "b64", a, b),
            e.w.op(f"{name}.f64", "b64", a, b),
            odd,
        )

    return apply


def remainder(e: Emitter, t: Attribute, a: Operand, b: Operand) -> Operand:
    """The exact remainder of a quotient rounded towards zero, as C's fmod: multiples of the divisor
    are taken off, so large ones at first that their quotient is exact.
    """
    F, w, wide = Floats(e, max(bits(t), 32)), e.w, bits(t) == 64
    digits, mantissa = (51, 52) if wide else (22, 23)
    far, exponents = (2.0**1000, 0x7FF << 52) if wide else (2.0**100, 0xFF << 23)
    a, b = w.register(a, F.cls), w.register(b, F.cls)
    size, left = F.abs(b), w.new(F.cls)
    w.emit(f"abs.{F.type} {left}, {a}")
    is_finite = w.op(
        f"setp.lt.and.{F.type}", "pred", left, float("inf"), F.test("gt", size, 0.0), type=F.type
    )
    again, done = w.label("again"), w.label("done")
    w.place(again)
    more = w.op(f"setp.ge.and.{F.type}", "pred", left, size, is_finite, type=F.type)
    w.emit(f"@!{more} bra {done}")
    near = size
    for _ in range(2):  # until the quotient is no infinity
        over = F.test("eq", F.op("div.rn", left, near), float("inf"))
        near = F.select(over, F.mul(near, far), near)
    quotient = F.op("div.rn", left, near)
    power = w.op(f"and.{F.cls}", F.cls, quotient, exponents)
    power = w.op(f"sub.s{F.type[1:]}", F.cls, power, digits << mantissa)
    near = F.mul(near, F.select(F.test("gt", quotient, 2.0**digits), power, 1.0))
    whole = F.op(f"cvt.rzi.{F.type}", F.op("div.rn", left, near))
    rest = F.fma(F.op("neg", whole), near, left)
    # the quotient was rounded up to a whole number
    rest = F.select(F.test("lt", rest, 0.0), F.add(rest, near), rest)
    w.emit(f"mov.{F.type} {left}, {rest}")
    w.emit(f"bra {again}")
    w.place(done)
    valid = F.select(w.op("and.pred", "pred", is_finite, F.test("num", b, b)), left, float("nan"))
    return F.signed_as(valid, a)


def exp(e: Emitter, t: Attribute, x: Operand) -> Operand:
    """2**n 2**f with n near x log2 e: the second factor is exact enough, the first a float whose
    exponent is made of n's bits, and -inf, inf and NaN come out right.
    """
    if bits(t) == 64:
        return _exp64(e, x)
    F = Floats(e)
    if bits(t) < 32:
        return F.op("ex2.approx.ftz", F.mul(x, LOG2E))
    # n + 126 in the last bits of a float, from 0 to 252: beyond, f is large, and 2**f what is left
    share = F.op("fma.rn.sat", x, LOG2E / 252, 0.5)
    counted = F.op("fma.rm", share, 252.0, 12582913.0)
    minus_n = F.sub(12583039.0, counted)
    f = F.fma(x, LOG2E_LO, F.fma(x, LOG2E_HI, minus_n))
    power = e.w.op("shl.b32", "b32", counted, 23)
    return F.mul(F.op("ex2.approx.ftz", f), power)


def exp2(e: Emitter, t: Attribute, x: Operand) -> Operand:
    if bits(t) < 64:
        return e.w.op("ex2.approx.ftz.f32", "b32", x)
    F = Floats(e, 64)
    y = F.op("min", F.op("max", x, -1100.0), 1100.0)
    n = F.op("cvt.rni.f64", y)
    return _nan_stays(F, x, _scaled64(e, _taylor_exp(F, F.mul(F.sub(y, n), LN2)), n))


def expm1(e: Emitter, t: Attribute, x: Operand) -> Operand:
    F = Floats(e, max(bits(t), 32))
    small = F.fma(
        F.mul(x, x),
        F.polynomial(_EXPM1 if bits(t) <= 32 else _EXPM1_64, x),
        x,
    )
    small = F.signed_as(small, x)  # -0 stays
    return F.select(F.test("lt", F.abs(x), 0.5), small, F.sub(exp(e, t, x), 1.0))


def log(
    e: Emitter, t: Attribute, x: Operand, scale: float = 1.0, is_normal: bool = False
) -> Operand:
    """Natural logarithm, times `scale` (log2: of the fraction alone, not of the exponent).
    is_normal: x is at least the least normal number, or NaN.
    """
    if bits(t) == 64:
        return _log64(e, x, scale)
    F, w = Floats(e), e.w
    if bits(t) < 32:
        rough = F.op("lg2.approx", x)
        return rough if scale != 1.0 else F.mul(rough, LN2)
    shift: Operand = 0.0
    y, instead = x, x
    if is_normal:
        is_usual = F.test("lt", x, float("inf"))
    else:
        tiny = F.test("lt", x, 1.1754943508222875e-38)
        y, shift = F.select(tiny, F.mul(x, 8388608.0), x), F.select(tiny, -23.0, 0.0)
        # right for 0, infinities, NaN and what is negative; no y is subnormal
        instead, is_usual = F.op("lg2.approx.ftz", y), _positive(F, x)
    exponent = _exponent(F, y)
    i = F.fma(w.op("cvt.rn.f32.s32", "b32", exponent), 2.0**-23, shift)
    m = F.sub(w.op("sub.s32", "b32", y, exponent), 1.0)
    r = polynomials.log1p(F, m)
    found = F.fma(i, LN2, r) if scale == 1.0 else F.fma(r, scale, i)
    return F.select(is_usual, found, instead)


def _exponent(F: Floats, x: Operand) -> str:
    """The i of x = 2^i m, m in [2/3, 4/3), in an exponent's place."""
    return F.w.op("and.b32", "b32", F.w.op("sub.s32", "b32", x, 0x3F2AAAAB), -0x800000)


def _positive(F: Floats, x: Operand) -> str:
    """Whether x is a number above 0, and finite."""
    return F.w.op("setp.lt.and.f32", "pred", x, float("inf"), F.test("gt", x, 0.0), type="f32")


def log2(e: Emitter, t: Attribute, x: Operand, is_normal: bool = False) -> Operand:
    return log(e, t, x, LOG2E, is_normal)


def log1p(e: Emitter, t: Attribute, x: Operand) -> Operand:
    """Of float32, log's reduction of 1 + x, with m - 1 = 2^-i x + (2^-i - 1) from x itself: what
    rounding 1 + x loses is in neither. Of float64, log(u) x / (u - 1) with u = 1 + x.
    """
    if bits(t) == 64:
        return _log1p64(e, t, x)
    F, w = Floats(e), e.w
    u = F.add(x, 1.0)
    exponent = _exponent(F, u)
    i = F.mul(w.op("cvt.rn.f32.s32", "b32", exponent), 2.0**-23)
    share = w.op("sub.s32", "b32", 0x40800000, exponent)  # 4 / 2^i, which is never subnormal
    m = F.add(w.op("sub.s32", "b32", x, exponent), F.fma(share, 0.25, -1.0))
    found = F.signed_as(F.fma(i, LN2, polynomials.log1p(F, m)), x)  # -0 stays
    return F.select(_positive(F, u), found, F.op("lg2.approx", u))


def _log1p64(e: Emitter, t: Attribute, x: Operand) -> Operand:
    F = Floats(e, 64)
    u = F.add(x, 1.0)
    ratio = F.op("div.rn", x, F.sub(u, 1.0))
    found = F.select(F.test("eq", u, 1.0), x, F.mul(log(e, t, u), ratio))
    return F.select(F.test("eq", x, float("inf")), x, found)


def tanh(e: Emitter, t: Attribute, x: Operand) -> Operand:
    F = Floats(e, max(bits(t), 32))
    if str(t) in ("bf16", "f8E4M3FN", "f8E5M2"):
        return F.op("tanh.approx", x)
    a, s = F.abs(x), F.mul(x, x)
    if bits(t) == 64:
        twice = exp(e, t, F.mul(F.op("min", a, 40.0), 2.0))
        large, small = (
            F.sub(1.0, F.op("div.rn", 2.0, F.add(twice, 1.0))),
            F.op("div.rn", expm1(e, t, F.mul(a, 2.0)), F.add(twice, 1.0)),
        )
        return _nan_stays(F, x, F.signed_as(F.select(F.test("lt", a, 0.25), small, large), x))
    # what e^2a and the reciprocal lack counts less than half in the difference; e^2a may be
    # infinite, and NaN goes through
    share = F.op("rcp.approx.ftz", F.add(F.op("ex2.approx.ftz", F.mul(a, 2 * LOG2E)), 1.0))
    small, large = polynomials.near_tanh(F, a, s), F.fma(share, -2.0, 1.0)
    return F.signed_as(F.select(F.test("lt", a, 0.6), small, large), x)


def erf(e: Emitter, t: Attribute, x: Operand) -> Operand:
    if bits(t) == 64:
        return _erf64(e, x)
    F = Floats(e)
    a, s = F.op("min.NaN", F.abs(x), 4.0), F.mul(x, x)
    power = F.op("neg", polynomials.far_erf_log2(F, a))
    tail = F.sub(1.0, F.op("ex2.approx.ftz", power))
    small = F.test("lt", a, 1.0)
    return F.select(small, polynomials.near_erf(F, x, s), F.signed_as(tail, x))


def _sine(shift: int) -> Function:
    """sin (shift 0) or cos (shift 1)."""

    def apply(e: Emitter, t: Attribute, x: Operand) -> Operand:
        F, w = Floats(e, max(bits(t), 32)), e.w
        wide = bits(t) == 64
        k = F.op(f"cvt.rni.{F.type}", F.mul(x, 2 / PI))
        parts = (
            (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
            if wide
            else _HALF_PI
        )
        r = x
        for part in parts:
            r = F.fma(k, -part, r)
        quadrant = w.op(f"cvt.rni.s32.{F.type}", "b32", k)
        if wide:
            _reduce_far64(e, x, r, quadrant)
        elif bits(t) == 32 or str(t) == "bf16":
            _reduce_far(e, x, r, quadrant)
        s = F.mul(r, r)
        if wide:
            sine = polynomials.sine(F, r, s, _SIN64)
            cosine = polynomials.cosine(F, s, _COS64)
        else:
            sine, cosine = polynomials.sine(F, r, s), polynomials.cosine(F, s)
        if shift:
            quadrant = w.op("add.s32", "b32", quadrant, shift)
        swap = w.op("setp.ne.b32", "pred", w.op("and.b32", "b32", quadrant, 1), 0)
        turn = w.op("setp.ne.b32", "pred", w.op("and.b32", "b32", quadrant, 2), 0)
        found = F.select(swap, cosine, sine)
        found = F.select(turn, F.op("neg", found), found)
        return found if shift else F.select(F.test("eq", x, 0.0), x, found)  # -0 stays

    return apply


@cache
def _two_over_pi(width: int, count: int) -> tuple[int, ...]:
    """Words of so many bits: one of zeros, then the digits of 2/pi behind the point."""
    digits = width * (count - 1)
    one = 1 << (digits + 64)

    def arc_tangent(n: int) -> int:  # of 1/n
        power = total = one // n
        for k in range(3, digits, 2):
            power = -power // (n * n)
            total += power // k
        return total

    pi = 16 * arc_tangent(5) - 4 * arc_tangent(239)  # Machin
    found = (2 * one << digits) // pi
    return tuple(found >> width * (count - 1 - i) & (1 << width) - 1 for i in range(count))


def _digits(e: Emitter, width: int, count: int, at: str, words: int) -> list[str]:
    """So many words of the digits of 2/pi, from bit `at` of the table on."""
    w, cls = e.w, f"b{width}"
    table = (
        f".global .align 8 .{cls} two_over_pi_{width}[{count}] ="
        f" {{{', '.join(map(str, _two_over_pi(width, count)))}}};"
    )
    if table not in e.globals:
        e.globals.append(table)
    log = width.bit_length() - 1
    word = w.op("shr.u32", "b32", at, log, type="u32")
    bit = w.op("and.b32", "b32", at, width - 1)
    start, place = w.new("b64"), w.new("b64")
    w.emit(f"mov.u64 {start}, two_over_pi_{width}")
    w.emit(f"mad.wide.u32 {place}, {word}, {width // 8}, {start}")
    size = width // 8
    loaded = [w.op(f"ld.global.{cls}", cls, f"[{place}+{size * i}]") for i in range(words + 1)]
    return [_shifted(e, width, a, b, bit) for a, b in pairwise(loaded)]


def _shifted(e: Emitter, width: int, before: str, after: str, bit: str) -> str:
    """A word of two, from a bit of the first on."""
    w = e.w
    if width == 32:
        return w.op("shf.l.wrap.b32", "b32", after, before, bit)
    rest = w.op("sub.u32", "b32", 64, bit)
    high = w.op("shl.b64", "b64", before, bit, type="u32")
    return w.op("or.b64", "b64", high, w.op("shr.u64", "b64", after, rest, type="u32"))


def _reduce_far(e: Emitter, x: Operand, r: Operand, quadrant: str) -> None:
    """Writes r and quadrant anew where |x| >= 10^5 (NaN for infinities). x = m 2^j with 24 bits of
    m: of 2/pi the digits that make multiples of 4 are left out, the next 96 are multiplied by m;
    the first two bits of that are the quadrant, the others the fraction, with 2^-70 lost.
    """
    F, w = Floats(e), e.w
    near = w.label("near")
    w.emit(f"@{F.test('ltu', F.abs(x), 1e5)} bra {near}")  # NaN too
    exponent = w.op("and.b32", "b32", w.op("shr.u32", "b32", x, 23, type="u32"), 255)
    at = w.op("sub.s32", "b32", exponent, 120)  # of the table's bits, the first that counts
    high, middle, low = _digits(e, 32, 8, at, 3)
    m = w.op("or.b32", "b32", w.op("and.b32", "b32", x, 0x7FFFFF), 0x800000)
    p = w.op(
        "mad.wide.u32",
        "b64",
        m,
        middle,
        w.op("cvt.u64.u32", "b64", w.op("mul.hi.u32", "b32", m, low)),
    )
    p = w.op(
        "add.u64",
        "b64",
        p,
        w.op(
            "shl.b64",
            "b64",
            w.op("cvt.u64.u32", "b64", w.op("mul.lo.u32", "b32", m, high)),
            32,
            type="u32",
        ),
    )
    whole = w.op("shr.u64", "b64", w.op("add.u64", "b64", p, 1 << 61), 62, type="u32")
    rest = w.op("sub.s64", "b64", p, w.op("shl.b64", "b64", whole, 62, type="u32"))
    angle = w.op(
        "cvt.rn.f32.f64",
        "b32",
        w.op("mul.rn.f64", "b64", w.op("cvt.rn.f64.s64", "b64", rest), PI / 2 * 2.0**-62),
    )
    q, minus = w.op("cvt.u32.u64", "b32", whole), F.test("lt", x, 0.0)
    angle = F.select(F.test("eq", F.abs(x), float("inf")), float("nan"), angle)
    w.emit(f"selp.f32 {r}, {F.op('neg', angle)}, {angle}, {minus}")
    w.emit(f"selp.b32 {quadrant}, {w.op('neg.s32', 'b32', q)}, {q}, {minus}")
    w.place(near)


def _reduce_far64(e: Emitter, x: Operand, r: Operand, quadrant: str) -> None:
    """The same of float64, where |x| >= 10^9: x = m 2^j with 64 bits of m, of which 192 digits are
    multiplied by m; of the 128 bits of that two are the quadrant, with 2^-126 lost.
    """
    F, w = Floats(e, 64), e.w
    near = w.label("near")
    w.emit(f"@{F.test('ltu', F.abs(x), 1e9)} bra {near}")  # NaN too
    exponent = w.op("cvt.u32.u64", "b32", w.op("shr.u64", "b64", x, 52, type="u32"))
    at = w.op("sub.s32", "b32", w.op("and.b32", "b32", exponent, 0x7FF), 1024)
    high, middle, low = _digits(e, 64, 19, at, 3)
    m = w.op("shl.b64", "b64", x, 11, type="u32")
    m = w.op("or.b64", "b64", m, 1 << 63)
    lost = w.op("mul.hi.u64", "b64", m, low)
    below = w.op("add.u64", "b64", w.op("mul.lo.u64", "b64", m, middle), lost)
    carry = w.op("selp.b64", "b64", 1, 0, w.op("setp.lt.u64", "pred", below, lost))
    above = w.op("add.u64", "b64", w.op("mul.hi.u64", "b64", m, middle), carry)
    above = w.op("add.u64", "b64", w.op("mul.lo.u64", "b64", m, high), above)
    whole = w.op("shr.u64", "b64", w.op("add.u64", "b64", above, 1 << 61), 62, type="u32")
    rest = w.op("sub.s64", "b64", above, w.op("shl.b64", "b64", whole, 62, type="u32"))
    turns = F.fma(
        w.op("cvt.rn.f64.s64", "b64", rest), 2.0**64, w.op("cvt.rn.f64.u64", "b64", below)
    )
    angle = F.mul(turns, PI / 2 * 2.0**-126)
    q, minus = w.op("cvt.u32.u64", "b32", whole), F.test("lt", x, 0.0)
    angle = F.select(F.test("eq", F.abs(x), float("inf")), float("nan"), angle)
    w.emit(f"selp.f64 {r}, {F.op('neg', angle)}, {angle}, {minus}")
    w.emit(f"selp.b32 {quadrant}, {w.op('neg.s32', 'b32', q)}, {q}, {minus}")
    w.place(near)


def power(e: Emitter, t: Attribute, x: Operand, y: Operand) -> Operand:
    """2**(y log2 |x|), in float64 for float32; a negative base takes whole exponents, odd ones keep
    its sign, that of a zero too. Infinite exponents are even, and -1 to such a power is 1.
    """
    F, w, narrow = Floats(e, 64), e.w, bits(t) < 64
    x, y = (
        (
            w.op("cvt.f64.f32", "b64", v)
            if isinstance(v, str) and narrow
            else w.register(float(v), "b64")
            if not isinstance(v, str)
            else v
        )
        for v in (x, y)
    )
    from tkc.ir.types import f64

    found = exp2(e, f64, F.mul(y, log2(e, f64, F.abs(x))))
    whole = F.test("eq", F.op("cvt.rzi.f64", y), y)
    half = F.mul(y, 0.5)
    odd = w.op("and.pred", "pred", whole, F.test("ne", F.op("cvt.rzi.f64", half), half))
    found = F.select(odd, F.signed_as(found, x), found)
    # no power of an infinity, or of a zero, is NaN
    number = w.op("setp.lt.and.f64", "pred", x, 0.0, F.test("gt", x, float("-inf")), type="f64")
    found = F.select(
        w.op("and.pred", "pred", number, w.op("not.pred", "pred", whole)), float("nan"), found
    )
    endless = F.test("eq", F.abs(y), float("inf"))
    unit = w.op("setp.eq.and.f64", "pred", F.abs(x), 1.0, endless, type="f64")
    one = w.op("or.pred", "pred", F.test("eq", y, 0.0), F.test("eq", x, 1.0))
    one = w.op("or.pred", "pred", one, unit)
    found = F.select(one, 1.0, found)
    return w.op("cvt.rn.f32.f64", "b32", found) if narrow else found


def atan2(e: Emitter, t: Attribute, y: Operand, x: Operand) -> Operand:
    if bits(t) == 64:
        e.fail("'atan2' of float64 has no GPU form yet: cast to float32")
    F = Floats(e)
    x, y = e.w.register(x), e.w.register(y)
    a, b = F.abs(x), F.abs(y)
    small, large = F.op("min", a, b), F.op("max", a, b)
    q = F.op("div.rn", small, large)
    q = F.select(F.test("eq", small, large), F.select(F.test("eq", large, 0.0), 0.0, 1.0), q)
    s = F.mul(q, q)
    angle = F.fma(F.mul(s, q), F.polynomial(_ATAN, s), q)
    angle = F.select(F.test("gt", b, a), F.sub(PI / 2, angle), angle)
    # the sign bit: also of -0
    angle = F.select(e.w.op("setp.lt.s32", "pred", x, 0), F.sub(PI, angle), angle)
    return F.select(F.test("nan", x, y), F.add(x, y), F.signed_as(angle, y))


def _remainder_of_floor(e: Emitter, t: Attribute, a: str, b: str) -> tuple[str, str, str]:
    """The remainder with the sign of the divisor, the one with that of the dividend, and whether
    they differ. From a rounded quotient neither would be right.
    """
    F = Floats(e, max(bits(t), 32))
    rest = e.w.register(remainder(e, t, a, b), F.cls)
    opposite = F.test("lt", F.mul(F.signed_as(1.0, rest), F.signed_as(1.0, b)), 0.0)
    off = e.w.op(f"setp.ne.and.{F.type}", "pred", rest, 0.0, opposite, type=F.type)
    found = F.select(off, F.add(rest, b), rest)
    return F.select(F.test("eq", rest, 0.0), F.signed_as(0.0, b), found), rest, off


def floor_remainder(e: Emitter, t: Attribute, a: Operand, b: Operand) -> Operand:
    """The exact remainder of a quotient rounded down."""
    F = Floats(e, max(bits(t), 32))
    a, b = e.w.register(a, F.cls), e.w.register(b, F.cls)
    return _remainder_of_floor(e, t, a, b)[0]


def floor_quotient(e: Emitter, t: Attribute, a: Operand, b: Operand) -> Operand:
    """The quotient rounded down, as NumPy has it: what is left without the remainder is divided,
    and is a whole number but for the rounding.
    """
    F = Floats(e, max(bits(t), 32))
    a, b = e.w.register(a, F.cls), e.w.register(b, F.cls)
    _, rest, off = _remainder_of_floor(e, t, a, b)
    near = F.op("div.rn", F.sub(a, rest), b)
    near = F.select(off, F.sub(near, 1.0), near)
    low, quotient = F.op(f"cvt.rmi.{F.type}", near), F.op("div.rn", a, b)
    whole = F.select(F.test("gt", F.sub(near, low), 0.5), F.add(low, 1.0), low)
    whole = F.select(F.test("eq", near, 0.0), F.signed_as(0.0, quotient), whole)
    return F.select(F.test("eq", b, 0.0), quotient, whole)


def isnan(e: Emitter, t: Attribute, x: Operand) -> Operand:
    return Floats(e, max(bits(t), 32)).test("nan", x, x)


def isinf(e: Emitter, t: Attribute, x: Operand) -> Operand:
    F = Floats(e, max(bits(t), 32))
    return F.test("eq", F.abs(x), float("inf"))


# ---- float64
# --------------------------------------------------------------------------------------------------
def _taylor_exp(F: Floats, r: Operand) -> Operand:
    return F.polynomial([1 / math.factorial(k) for k in range(14)], r)


def _nan_stays(F: Floats, x: Operand, found: Operand) -> Operand:
    return F.select(F.test("nan", x, x), x, found)


def _scaled64(e: Emitter, x: Operand, n: Operand) -> Operand:
    """x * 2**n in two steps, so that subnormal and huge results come out."""
    F, w = Floats(e, 64), e.w
    whole = w.op("cvt.rni.s32.f64", "b32", n)
    half = w.op("shr.s32", "b32", whole, 1, type="u32")

    def two_to(k: str) -> str:
        into = w.new("b64")
        w.emit(
            f"mov.b64 {into}, {{{w.register(0)},"
            f" {w.op('shl.b32', 'b32', w.op('add.s32', 'b32', k, 1023), 20, type='u32')}}}"
        )
        return into

    return F.mul(F.mul(x, two_to(half)), two_to(w.op("sub.s32", "b32", whole, half)))


def _exp64(e: Emitter, x: Operand) -> Operand:
    F = Floats(e, 64)
    y = F.op("min", F.op("max", x, -760.0), 720.0)
    n = F.op("cvt.rni.f64", F.mul(y, LOG2E))
    r = F.fma(n, -1.9082149292705877e-10, F.fma(n, -0.6931471803691238, y))
    return _nan_stays(F, x, _scaled64(e, _taylor_exp(F, r), n))


def _log64(e: Emitter, x: Operand, scale: float) -> Operand:
    """x = 2**i m, m in [0.7, 1.4): log m = 2 atanh((m - 1) / (m + 1)), a series of odd powers."""
    F, w = Floats(e, 64), e.w
    x = w.register(x, "b64")
    tiny = F.test("lt", x, 2.2250738585072014e-308)
    y = F.select(tiny, F.mul(x, 2.0**54), x)
    low, high = w.many("b32", 2)
    w.emit(f"mov.b64 {{{low}, {high}}}, {y}")
    exponent = w.op("and.b32", "b32", w.op("sub.s32", "b32", high, 0x3FE6A09E), -0x100000)
    i = w.op("cvt.rn.f64.s32", "b64", w.op("shr.s32", "b32", exponent, 20, type="u32"))
    i = F.select(tiny, F.sub(i, 54.0), i)
    m = w.new("b64")
    w.emit(f"mov.b64 {m}, {{{low}, {w.op('sub.s32', 'b32', high, exponent)}}}")
    s = F.op("div.rn", F.sub(m, 1.0), F.add(m, 1.0))
    q = F.mul(s, s)
    r = F.fma(F.mul(q, s), F.polynomial([2 / (2 * k + 3) for k in range(11)], q), F.mul(s, 2.0))
    found = F.fma(i, LN2, r) if scale == 1.0 else F.fma(r, scale, i)
    special = F.select(
        F.test("eq", x, 0.0), float("-inf"), F.select(F.test("lt", x, 0.0), float("nan"), x)
    )
    normal = w.op("setp.lt.and.f64", "pred", x, float("inf"), F.test("gt", x, 0.0), type="f64")
    return F.select(normal, found, special)


def _erf64(e: Emitter, x: Operand) -> Operand:
    """Up to 1 its series; beyond 1 - exp(-x^2) times a polynomial in (x - 2) / (x + 2)."""
    F = Floats(e, 64)
    a = F.op("min", F.abs(x), 6.0)
    s = F.mul(a, a)
    near = F.mul(
        a,
        F.polynomial(
            [2 / math.sqrt(PI) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(19)],
            s,
        ),
    )
    t = F.op("div.rn", F.sub(a, 2.0), F.add(a, 2.0))
    far = F.sub(1.0, F.mul(_exp64(e, F.op("neg", s)), F.polynomial(_scaled_erfc(), t)))
    return _nan_stays(F, x, F.signed_as(F.select(F.test("lt", a, 1.0), near, far), x))


@cache
def _scaled_erfc() -> tuple[float, ...]:
    """exp(x^2) erfc(x) as a polynomial in t = (x - 2) / (x + 2), for x of 1 to 6."""

    def f(t: float) -> float:
        x = 2 * (1 + t) / (1 - t)
        return math.erfc(x) * math.exp(x * x)

    def sampled(ts: np.ndarray) -> np.ndarray:
        return np.array([f(t) for t in ts])

    series = chebyshev.Chebyshev.interpolate(sampled, 20, domain=[-1 / 3 - 0.01, 0.51])
    return tuple(series.convert(kind=Polynomial).coef)


FUNCTIONS: dict[str, Function] = {
    "add": _simple("add.f32", "add.f64"),
    "sub": _simple("sub.f32", "sub.f64"),
    "mul": _simple("mul.f32", "mul.f64"),
    "fma": _simple("fma.rn.f32", "fma.rn.f64"),
    "neg": _simple("neg.f32", "neg.f64"),
    "abs": _simple("abs.f32", "abs.f64"),
    "max": _extremum("max"),
    "min": _extremum("min"),
    "fmax": _number("max"),
    "fmin": _number("min"),
    "div": _simple("div.full.f32", "div.rn.f64"),
    "div_rn": _simple("div.rn.f32", "div.rn.f64"),
    "reciprocal": _simple("rcp.rn.f32", "rcp.rn.f64"),
    "sqrt": _simple("sqrt.rn.f32", "sqrt.rn.f64"),
    "rsqrt": _simple("rsqrt.approx.f32", "rsqrt.approx.f64"),
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log1p": log1p,
    "pow": power,
    "tanh": tanh,
    "erf": erf,
    "sin": _sine(0),
    "cos": _sine(1),
    "atan2": atan2,
    "floordiv": floor_quotient,
    "mod": floor_remainder,
    "rem_trunc": remainder,
    "isnan": isnan,
    "isinf": isinf,
    "floor": _simple("cvt.rmi.f32.f32", "cvt.rmi.f64.f64"),
    "ceil": _simple("cvt.rpi.f32.f32", "cvt.rpi.f64.f64"),
    "round": _simple("cvt.rni.f32.f32", "cvt.rni.f64.f64"),
    "trunc": _simple("cvt.rzi.f32.f32", "cvt.rzi.f64.f64"),
}

# of an operand that is a normal number above 0, infinity or NaN
OF_NORMALS: dict[str, Function] = {
    "log": partial(log, is_normal=True),
    "log2": partial(log2, is_normal=True),
}
