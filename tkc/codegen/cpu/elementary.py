"""Elementary functions of float32 as vector code, and calls of libm for the rest.

Largest errors over all float32 inputs that the tests sample: exp, exp2, log, log2 2 ulp; sin, cos
2 ulp (reduced in float64 up to |x| = 2^40, by libm beyond); tanh 3 ulp; erf 3 ulp. expm1, log1p,
atan2, pow and everything of float64 call libm lane by lane.
"""

from __future__ import annotations

import math

from tkc.codegen import polynomials
from tkc.codegen.cpu.emit import Function, suffix, vec
from tkc.codegen.cpu.maths import Floats, Integers

LN2 = math.log(2)
PER_LN2 = 1 / LN2
PER_LN2_HIGH = 1.4426950216293335  # of float32
LN2_HIGH = 0.693115234375  # of few bits, so that its product with an exponent is exact
# of exp(x), |x| <= 0.35: it meets exp in the Chebyshev nodes
EXP = (
    1.0,
    1.0000000400118616,
    0.5000000049985319,
    0.16666405420229077,
    0.041666340288428944,
    0.008375958626776273,
    0.0013942147884212052,
)
# of 2^x, |x| <= 1/2, likewise
EXP2 = (
    1.0,
    0.6931472067028329,
    0.24022650922289554,
    0.05550327226669895,
    0.00961805667843204,
    0.0013400428177711937,
    0.00015461444724808513,
)
# of (log(1 + r) - r + r r / 2) / r^3, r from 1/sqrt(2) - 1 to sqrt(2) - 1: wider than the range
# of `polynomials.LOG1P`, so that less cancels where log2 adds the exponent
LOG_TAIL = (
    0.33333331180030046,
    -0.249999969579341,
    0.2000071574886707,
    -0.16667802320402714,
    0.14249057647093444,
    -0.12425687316559743,
    0.11685419897726831,
    -0.11479733924645953,
    0.06971611623899263,
)
SQRT_HALF = 0x3F3504F3  # bits of float32


def exp2(m: Floats, x: str) -> str:
    y = m.clamp(x, -160.0, 130.0)
    n = m.call("rint", y)
    out = m.scale(m.polynomial(EXP2, m.sub(y, n)), _to_integer(m, n))
    return m.pick(m.is_nan(x), x, out)


def exp(m: Floats, x: str) -> str:
    y = m.clamp(x, -110.0, 90.0)
    n = m.call("rint", m.mul(y, 1 / LN2))
    r = m.fma(n, -LN2_HIGH, y)
    r = m.fma(n, -(LN2 - LN2_HIGH), r)
    out = m.scale(m.polynomial(EXP, r), _to_integer(m, n))
    return m.pick(m.is_nan(x), x, out)


def _to_integer(m: Floats, x: str) -> str:
    return m.f.emit(f"fptosi {m.type} {x} to {vec('i32', m.w)}")


def _split(m: Floats, x: str) -> tuple[str, str]:
    """x = 2ⁿ·(1 + r), r in [√½ − 1, √2 − 1); subnormals scaled first."""
    i = Integers(m.f, m.w)
    tiny = m.test("olt", x, 2.0**-126)
    word = i.bits_of(m.pick(tiny, m.mul(x, 2.0**25), x))
    shifted = i.op("sub", word, SQRT_HALF)
    n = i.op("ashr", shifted, 23)
    mantissa = i.float_of(i.op("add", i.op("and", shifted, 0x7FFFFF), SQRT_HALF))
    n = i.op("sub", n, i.pick(tiny, 25, 0))
    return m.f.emit(f"sitofp {i.type} {n} to {m.type}"), m.sub(mantissa, 1.0)


def _log_edges(m: Floats, x: str, out: str) -> str:
    out = m.pick(m.test("oeq", x, math.inf), x, out)
    out = m.pick(m.test("oeq", x, 0.0), -math.inf, out)
    return m.pick(m.test("ult", x, 0.0), math.nan, out)


def _log_tail(m: Floats, r: str, added: str) -> str:
    """log(1 + r) - r + r r / 2 + what is added."""
    return m.fma(m.mul(m.mul(r, r), r), m.polynomial(LOG_TAIL, r), added)


def log(m: Floats, x: str) -> str:
    n, r = _split(m, x)
    tail = _log_tail(m, r, m.mul(n, LN2 - LN2_HIGH))
    near = m.add(r, m.fma(m.mul(r, r), -0.5, tail))
    return _log_edges(m, x, m.fma(n, LN2_HIGH, near))


def log2(m: Floats, x: str) -> str:
    n, r = _split(m, x)
    tail = _log_tail(m, r, m.mul(m.mul(r, r), -0.5))
    # the leading term in two parts: near 1, where n is 0, its rounding is the result's
    low = m.fma(r, PER_LN2 - PER_LN2_HIGH, m.mul(tail, PER_LN2))
    return _log_edges(m, x, m.add(n, m.fma(r, PER_LN2_HIGH, low)))


def _reduced(m: Floats, x: str) -> tuple[str, str]:
    """x − n·π/2 in [−π/4, π/4] and n mod 4, through float64."""
    f, d = m.f, Floats(m.f, m.w, "double")
    y = f.emit(f"fpext {m.type} {x} to {d.type}")
    n = d.call("rint", d.mul(y, 2 / math.pi))
    # the last factor: π/2 minus its float64
    r = d.fma(n, -6.123233995736766e-17, d.fma(n, -math.pi / 2, y))
    turn = d.sub(n, d.mul(4.0, d.call("floor", d.mul(n, 0.25))))
    turn = d.pick(d.test("olt", turn, 4.0), turn, 0.0)  # 0 of what is infinite
    quadrant = f.emit(f"fptosi {d.type} {turn} to {vec('i32', m.w)}")
    return f.emit(f"fptrunc {d.type} {r} to {m.type}"), quadrant


def _wave(m: Floats, x: str, shift: int) -> str:
    """sin (shift 0) or cos (shift 1) of what is not too large."""
    i, (r, n) = Integers(m.f, m.w), _reduced(m, x)
    n = i.op("add", n, shift) if shift else n
    s = m.mul(r, r)
    sine, cosine = polynomials.sine(m, r, s), polynomials.cosine(m, s)
    odd = i.test("ne", i.op("and", n, 1), 0)
    sign = i.op("shl", i.op("and", n, 2), 30)
    return i.float_of(i.op("xor", i.bits_of(m.pick(odd, cosine, sine)), sign))


def sin(m: Floats, x: str) -> str:
    near = _wave(m, x, 0)
    return _far(m, "sin", x, m.pick(m.test("oeq", x, 0.0), x, near))  # -0 stays


def cos(m: Floats, x: str) -> str:
    return _far(m, "cos", x, _wave(m, x, 1))


def _far(m: Floats, name: str, x: str, near: str) -> str:
    """`near` where |x| is at most 2^40, libm's result beyond: in a function of its own, so that
    here stays straight-line code.
    """
    helper = f"tkc.far.{name}.{m.w}"
    if helper not in m.f.module.functions:
        g = m.f.module.function(helper, m.type, [(m.type, "x"), (m.type, "near")])
        n = Floats(g, m.w)
        some = far = n.test("ogt", n.call("fabs", "%x"), 2.0**40)
        if m.w > 1:
            some = g.call(f"llvm.vector.reduce.or.{suffix('i1', m.w)}", "i1", (n.truth, far))
        yes, no = g.fresh("far"), g.fresh("near")
        g.branch_if(some, yes, no)
        g.label(no)
        g.do(f"ret {n.type} %near")
        g.label(yes)
        g.do(f"ret {n.type} {n.pick(far, by_lane(g, name, 'float', m.w, '%x'), '%near')}")
    return m.f.call(helper, m.type, (m.type, x), (m.type, near))


def tanh(m: Floats, x: str) -> str:
    size = m.call("fabs", x)
    near = polynomials.near_tanh(m, size, m.mul(x, x))
    far = m.sub(1.0, m.div(2.0, m.add(exp(m, m.mul(size, 2.0)), 1.0)))
    return m.call("copysign", m.pick(m.test("olt", size, 0.6), near, far), x)


def erf(m: Floats, x: str) -> str:
    size = m.call("fabs", x)
    near = polynomials.near_erf(m, size, m.mul(x, x))
    power = m.neg(polynomials.far_erf_log2(m, m.clamp(size, 0.0, 4.0)))
    far = m.sub(1.0, exp2(m, power))
    out = m.pick(m.test("olt", size, 1.0), near, far)
    return m.pick(m.is_nan(x), x, m.call("copysign", out, x))


VECTOR = {
    "exp": exp,
    "exp2": exp2,
    "log": log,
    "log2": log2,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
    "erf": erf,
}
LIBM = (*VECTOR, "expm1", "log1p", "pow", "atan2", "fmod")


def by_lane(f: Function, name: str, t: str, w: int, *args: str) -> str:
    """A call of libm for every lane."""
    name, out = name + ("f" if t == "float" else ""), "poison"
    if w == 1:
        return f.call(name, t, *((t, a) for a in args))
    for lane in range(w):
        value = f.call(name, t, *((t, f.extract(t, a, lane, w)) for a in args))
        out = f.emit(f"insertelement {vec(t, w)} {out}, {t} {value}, i64 {lane}")
    return out
