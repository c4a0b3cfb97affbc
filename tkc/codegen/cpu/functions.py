"""Element-wise functions as vector code: arithmetic, and the elementary functions of float32 as
polynomials.

The polynomials interpolate the function at Chebyshev nodes in float64 when this module is imported
(`fit`): no table of
unexplained constants.  Largest errors over all float32 inputs that the tests sample: exp, exp2, log, log2 2 ulp; sin, cos 2 ulp
(reduced in float64 up to |x| = 2^40, by libm beyond); tanh 3 ulp; erf 3 ulp.  expm1, log1p, atan2, pow and everything of float64 call libm lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.polynomial import chebyshev
from xdsl.ir import Attribute

from tkc.codegen.cpu.emit import Function, constant, suffix, vec
from tkc.codegen.cpu.numbers import FLOAT8, held, is_short, rounded
from tkc.ir.types import is_bool, is_float, is_unsigned


@cache
def fit(name: str, degree: int, low: float, high: float) -> tuple[float, ...]:
    """Coefficients, constant first, of the polynomial that meets a function of SHAPES at the
    Chebyshev nodes of [low, high].
    """
    f = SHAPES[name]
    series = chebyshev.Chebyshev.interpolate(
        np.vectorize(f, otypes=[float]), degree, domain=[low, high]
    )
    return tuple(series.convert(kind=np.polynomial.Polynomial).coef)


def _even(f, limit):
    return lambda t: f(math.sqrt(t)) / math.sqrt(t) if t > 1e-12 else limit


SHAPES: dict[str, Callable[[float], float]] = {
    "exp2": lambda x: 2.0**x,
    "exp": math.exp,
    "log": lambda x: (
        (math.log1p(x) - x + x * x / 2) / x**3 if abs(x) > 1e-3 else 1 / 3 - x / 4 + x * x / 5
    ),
    "sin": lambda t: (_even(math.sin, 1.0)(t) - 1) / t if t > 1e-4 else -1 / 6 + t / 120,
    "cos": lambda t: (
        (math.cos(math.sqrt(t)) - 1 + t / 2) / t**2
        if t > 1e-2
        else 1 / 24 - t / 720 + t * t / 40320
    ),
    "tanh": lambda t: (_even(math.tanh, 1.0)(t) - 1) / t if t > 1e-4 else -1 / 3 + 2 * t / 15,
    "erf": _even(math.erf, 2 / math.sqrt(math.pi)),
    "erfc": lambda x: math.erfc(x) * math.exp(x * x),
}


class Maths:
    """Float arithmetic of one width, as method calls."""

    def __init__(self, f: Function, w: int, t: str = "float"):
        self.f, self.w, self.t, self.T, self.I = f, w, t, vec(t, w), vec("i32", w)

    def k(self, x: float) -> str:
        return constant(self.t, x, self.w)

    def i(self, n: int) -> str:
        return constant("i32", n, self.w)

    def add(self, a, b):
        return self.f.op("fadd", self.T, a, b)

    def sub(self, a, b):
        return self.f.op("fsub", self.T, a, b)

    def mul(self, a, b):
        return self.f.op("fmul", self.T, a, b)

    def div(self, a, b):
        return self.f.op("fdiv", self.T, a, b)

    def neg(self, a):
        return self.f.emit(f"fneg {self.T} {a}")

    def call(self, name, *args):
        return self.f.call(
            f"llvm.{name}.{suffix(self.t, self.w)}", self.T, *((self.T, a) for a in args)
        )

    def fma(self, a, b, c):
        return self.call("fma", a, b, c)

    def less(self, a, b):
        return self.f.emit(f"fcmp olt {self.T} {a}, {b}")

    def unordered(self, a):
        return self.f.emit(f"fcmp uno {self.T} {a}, {a}")

    def equal(self, a, b):
        return self.f.emit(f"fcmp oeq {self.T} {a}, {b}")

    def pick(self, c, a, b):
        return self.f.select(c, self.T, a, b, self.w)

    def word(self, a):
        return self.f.emit(f"bitcast {self.T} {a} to {self.I}")

    def real(self, n):
        return self.f.emit(f"bitcast {self.I} {n} to {self.T}")

    def int_op(self, opcode, a, b):
        return self.f.op(opcode, self.I, a, b)

    def to_int(self, a):
        return self.f.emit(f"fptosi {self.T} {a} to {self.I}")

    def of_int(self, n):
        return self.f.emit(f"sitofp {self.I} {n} to {self.T}")

    def horner(self, coefficients, x):
        out = self.k(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            out = self.fma(out, x, self.k(c))
        return out

    def clamp(self, x, low, high):
        """NaN gives `low`."""
        x = self.pick(self.f.emit(f"fcmp ogt {self.T} {x}, {self.k(low)}"), x, self.k(low))
        return self.pick(self.less(x, self.k(high)), x, self.k(high))

    def scale(self, x, n):
        """x·2ⁿ with one rounding, −280 < n < 260: two factors, each a power of two."""
        half = self.int_op("ashr", n, self.i(1))

        def power(e):
            return self.real(self.int_op("shl", self.int_op("add", e, self.i(127)), self.i(23)))

        return self.mul(self.mul(x, power(half)), power(self.int_op("sub", n, half)))


def exp2(f: Function, x: str, w: int) -> str:
    m = Maths(f, w)
    y = m.clamp(x, -160.0, 130.0)
    n = m.call("rint", y)
    out = m.scale(m.horner(fit("exp2", 6, -0.5, 0.5), m.sub(y, n)), m.to_int(n))
    return m.pick(m.unordered(x), x, out)


LN2 = math.log(2)
LN2_HIGH = float(
    np.frombuffer(
        np.array(np.frombuffer(np.float32(LN2).tobytes(), np.uint32) & 0xFFFFF000).tobytes(),
        np.float32,
    )[0]
)


def exp(f: Function, x: str, w: int) -> str:
    m = Maths(f, w)
    y = m.clamp(x, -110.0, 90.0)
    n = m.call("rint", m.mul(y, m.k(1 / LN2)))
    r = m.fma(n, m.k(-LN2_HIGH), y)
    r = m.fma(n, m.k(-(LN2 - LN2_HIGH)), r)
    out = m.scale(m.horner(fit("exp", 6, -0.35, 0.35), r), m.to_int(n))
    return m.pick(m.unordered(x), x, out)


def _split(m: Maths, x: str) -> tuple[str, str]:
    """x = 2ⁿ·(1 + r), r in [√½ − 1, √2 − 1); subnormals scaled first."""
    tiny = m.less(x, m.k(2.0**-126))
    word = m.word(m.pick(tiny, m.mul(x, m.k(2.0**25)), x))
    shifted = m.int_op("sub", word, m.i(0x3F3504F3))
    n = m.int_op("ashr", shifted, m.i(23))
    mantissa = m.real(m.int_op("add", m.int_op("and", shifted, m.i(0x7FFFFF)), m.i(0x3F3504F3)))
    n = m.int_op("sub", n, m.f.select(tiny, m.I, m.i(25), m.i(0), m.w))
    return m.of_int(n), m.sub(mantissa, m.k(1.0))


def _log_edges(m: Maths, x: str, out: str) -> str:
    out = m.pick(m.equal(x, m.k(math.inf)), x, out)
    out = m.pick(m.equal(x, m.k(0.0)), m.k(-math.inf), out)
    return m.pick(m.f.emit(f"fcmp ult {m.T} {x}, {m.k(0.0)}"), m.k(math.nan), out)


def log(f: Function, x: str, w: int) -> str:
    m = Maths(f, w)
    n, r = _split(m, x)
    square = m.mul(r, r)
    tail = m.fma(
        m.mul(square, r),
        m.horner(fit("log", 8, math.sqrt(0.5) - 1, math.sqrt(2) - 1), r),
        m.mul(n, m.k(LN2 - LN2_HIGH)),
    )
    out = m.fma(n, m.k(LN2_HIGH), m.add(r, m.fma(m.k(-0.5), square, tail)))
    return _log_edges(m, x, out)


def log2(f: Function, x: str, w: int) -> str:
    m = Maths(f, w)
    n, r = _split(m, x)
    square = m.mul(r, r)
    tail = m.fma(
        m.mul(square, r),
        m.horner(fit("log", 8, math.sqrt(0.5) - 1, math.sqrt(2) - 1), r),
        m.mul(m.k(-0.5), square),
    )
    high = float(np.float32(1 / LN2))
    low = m.fma(r, m.k(1 / LN2 - high), m.mul(tail, m.k(1 / LN2)))
    return _log_edges(m, x, m.add(n, m.fma(r, m.k(high), low)))


def _reduced(m: Maths, x: str) -> tuple[str, str]:
    """x − n·π/2 in [−π/4, π/4] and n mod 4, through float64."""
    f, w = m.f, m.w
    d = Maths(f, w, "double")
    y = f.emit(f"fpext {m.T} {x} to {d.T}")
    n = d.call("rint", d.mul(y, d.k(2 / math.pi)))
    r = d.fma(
        n, d.k(-6.123233995736766e-17), d.fma(n, d.k(-math.pi / 2), y)
    )  # the second: π/2 minus its float64
    turn = d.sub(n, d.mul(d.k(4.0), d.call("floor", d.mul(n, d.k(0.25)))))
    finite = f.emit(f"fcmp olt {d.T} {turn}, {d.k(4.0)}")
    turn = d.pick(finite, turn, d.k(0.0))
    return f.emit(f"fptrunc {d.T} {r} to {m.T}"), f.emit(f"fptosi {d.T} {turn} to {m.I}")


def _wave(f: Function, x: str, w: int, shift: int) -> str:
    m = Maths(f, w)
    r, n = _reduced(m, x)
    n = m.int_op("add", n, m.i(shift)) if shift else n
    t = m.mul(r, r)
    quarter = (math.pi / 4) ** 2 * 1.01
    sine = m.fma(m.mul(t, r), m.horner(fit("sin", 4, 0.0, quarter), t), r)
    cosine = m.fma(
        m.mul(t, t), m.horner(fit("cos", 4, 0.0, quarter), t), m.fma(t, m.k(-0.5), m.k(1.0))
    )
    odd = f.emit(
        f"icmp ne {m.I} {m.int_op('and', n, m.i(1))}, {'0' if w == 1 else 'zeroinitializer'}"
    )
    sign = m.int_op("shl", m.int_op("and", n, m.i(2)), m.i(30))
    return m.real(m.int_op("xor", m.word(m.pick(odd, cosine, sine)), sign))


def sin(f: Function, x: str, w: int) -> str:
    return _far(f, "sin", x, w, _wave(f, x, w, 0))


def cos(f: Function, x: str, w: int) -> str:
    return _far(f, "cos", x, w, _wave(f, x, w, 1))


def _far(f: Function, name: str, x: str, w: int, near: str) -> str:
    """`near` where |x| is at most 2^40, libm's result beyond: in a function of its own, so that
    here stays straight-line code.
    """
    m, helper = Maths(f, w), f"tkc.far.{name}.{w}"
    if helper not in f.module.functions:
        g = f.module.function(helper, m.T, [(m.T, "x"), (m.T, "near")])
        n = Maths(g, w)
        far = g.emit(f"fcmp ogt {n.T} {n.call('fabs', '%x')}, {n.k(2.0**40)}")
        some, yes, no = (
            (
                far
                if w == 1
                else g.call(f"llvm.vector.reduce.or.{suffix('i1', w)}", "i1", (vec("i1", w), far))
            ),
            g.fresh("far"),
            g.fresh("near"),
        )
        g.branch_if(some, yes, no)
        g.label(no)
        g.do(f"ret {n.T} %near")
        g.label(yes)
        g.do(f"ret {n.T} {n.pick(far, by_lane(g, name, 'float', w, '%x'), '%near')}")
    return f.call(helper, m.T, (m.T, x), (m.T, near))


def tanh(f: Function, x: str, w: int) -> str:
    m = Maths(f, w)
    size = m.call("fabs", x)
    t = m.mul(x, x)
    near = m.fma(m.mul(t, size), m.horner(fit("tanh", 6, 0.0, 0.37), t), size)
    far = m.sub(m.k(1.0), m.div(m.k(2.0), m.add(exp(f, m.mul(size, m.k(2.0)), w), m.k(1.0))))
    return m.call("copysign", m.pick(m.less(size, m.k(0.6)), near, far), x)


def erf(f: Function, x: str, w: int) -> str:
    m = Maths(f, w)
    size = m.call("fabs", x)
    near = m.mul(size, m.horner(fit("erf", 8, 0.0, 1.0), m.mul(x, x)))
    y = m.clamp(size, 0.0, 4.0)
    far = m.sub(
        m.k(1.0), m.mul(exp(f, m.neg(m.mul(y, y)), w), m.horner(fit("erfc", 10, 0.9, 4.0), y))
    )
    out = m.pick(m.less(size, m.k(1.0)), near, far)
    return m.pick(m.unordered(x), x, m.call("copysign", out, x))


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
LIBM = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "sin",
    "cos",
    "tanh",
    "erf",
    "pow",
    "atan2",
    "fmod",
)


def by_lane(f: Function, name: str, t: str, w: int, *args: str) -> str:
    """A call of libm for every lane."""
    name, out = name + ("f" if t == "float" else ""), "poison"
    if w == 1:
        return f.call(name, t, *((t, a) for a in args))
    for lane in range(w):
        value = f.call(name, t, *((t, f.extract(t, a, lane, w)) for a in args))
        out = f.emit(f"insertelement {vec(t, w)} {out}, {t} {value}, i64 {lane}")
    return out


# --------------------------------------------------------------------------------------------------
BINARY_FLOAT = {
    "add": "fadd contract",
    "sub": "fsub contract",
    "mul": "fmul contract",
    "div": "fdiv",
    "div_rn": "fdiv",
}
BINARY_INT = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
COMPARE = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
EXACT = ("neg", "abs", "max", "min", "floor", "ceil", "round", "trunc")
ROUNDING = {
    "floor": "floor",
    "ceil": "ceil",
    "round": "rint",
    "trunc": "trunc",
    "abs": "fabs",
    "sqrt": "sqrt",
}


def elementwise(f: Function, name: str, element: Attribute, w: int, *args: str) -> str:
    """One function of ir.elementwise.FUNCTIONS on held values of `element`; gives a held value (i1
    for tests).
    """
    if name in COMPARE:
        return _compare(f, name, element, w, *args)
    if not is_float(element):
        return _integer(f, name, element, w, *args)
    out = of_floats(f, name, held(element), w, *args)
    if (
        name in ("isnan", "isinf")
        or not is_short(element)
        or name in EXACT
        and not isinstance(element, FLOAT8)
    ):
        return out
    return rounded(f, element, out, w)


def _compare(f, name, element, w, a, b) -> str:
    ordered, signed, unsigned = COMPARE[name]
    T = vec(held(element), w)
    if is_float(element):
        return f.emit(f"fcmp {ordered} {T} {a}, {b}")
    return f.emit(
        "icmp"
        f" {unsigned if is_unsigned(element) or is_bool(element) or held(element) == 'ptr' else signed}"
        f" {T} {a}, {b}"
    )


def of_floats(f: Function, name: str, t: str, w: int, *args: str) -> str:
    """A function of held floats, as exact as the held type `t`."""
    m, a = Maths(f, w, t), args[0]
    if name in BINARY_FLOAT:
        return f.op(BINARY_FLOAT[name], m.T, *args)
    if name in ROUNDING:
        return m.call(ROUNDING[name], a)
    if t == "float" and name in VECTOR:
        return VECTOR[name](f, a, w)
    if name in LIBM:
        return by_lane(f, name, t, w, *args)
    match name:
        case "neg":
            return m.neg(a)
        case "fma":
            return m.fma(*args)
        case "rsqrt":
            return m.div(m.k(1.0), m.call("sqrt", a))
        case "reciprocal":
            return m.div(m.k(1.0), a)
        case "isnan":
            return m.unordered(a)
        case "isinf":
            return m.equal(m.call("fabs", a), m.k(math.inf))
        case "max" | "min":
            near = m.pick(
                f.emit(f"fcmp {'ogt' if name == 'max' else 'olt'} {m.T} {a}, {args[1]}"), a, args[1]
            )
            return m.pick(m.unordered(a), a, near)
        case "mod":  # the sign of the divisor, as Python's
            b, r = args[1], by_lane(f, "fmod", t, w, *args)
            zero = "zeroinitializer" if w > 1 else constant(t, 0.0)
            differs = f.op("xor", vec("i1", w), m.less(r, zero), m.less(b, zero))
            wrong = f.op("and", vec("i1", w), differs, f.emit(f"fcmp one {m.T} {r}, {zero}"))
            out = m.pick(wrong, m.add(r, b), r)
            return m.pick(m.equal(r, zero), m.call("copysign", zero, b), out)
        case "floordiv":  # as NumPy: from the remainder, then to the nearest integer
            b, r, one = args[1], by_lane(f, "fmod", t, w, *args), m.k(1.0)
            zero = "zeroinitializer" if w > 1 else constant(t, 0.0)
            q = m.div(m.sub(a, r), b)
            wrong = f.op(
                "and",
                vec("i1", w),
                f.op("xor", vec("i1", w), m.less(r, zero), m.less(b, zero)),
                f.emit(f"fcmp une {m.T} {r}, {zero}"),
            )
            q = m.pick(wrong, m.sub(q, one), q)
            low, quotient = m.call("floor", q), m.div(a, b)
            whole = m.pick(
                f.emit(f"fcmp ogt {m.T} {m.sub(q, low)}, {m.k(0.5)}"), m.add(low, one), low
            )
            whole = m.pick(m.equal(q, zero), m.call("copysign", zero, quotient), whole)
            return m.pick(m.equal(b, zero), quotient, whole)
    raise NotImplementedError(name)


def _integer(f: Function, name: str, element: Attribute, w: int, *args: str) -> str:
    t, unsigned = held(element), is_unsigned(element)
    T, a, width = vec(t, w), args[0], int(t[1:])

    def k(n):
        return constant(t, n, w)

    def test(cond, x, y):
        return f.emit(f"icmp {cond} {T} {x}, {y}")

    def pick(c, x, y):
        return f.select(c, T, x, y, w)

    def call(what, *x):
        return f.call(f"llvm.{what}.{suffix(t, w)}", T, *x)

    if name in BINARY_INT:
        return f.op(BINARY_INT[name], T, *args)
    match name:
        case "neg":
            return f.op("sub", T, k(0), a)
        case "not":
            return f.op("xor", T, a, k(-1) if width > 1 else k(True))
        case "abs":
            return a if unsigned else call("abs", (T, a), ("i1", "false"))
        case "max" | "min":
            return call(("u" if unsigned else "s") + name, (T, a), (T, args[1]))
        case "popcount":
            return call("ctpop", (T, a))
        case "clz":
            return call("ctlz", (T, a), ("i1", "false"))
        case "shl" | "shr":
            outside = test("uge", args[1], k(width))
            if name == "shr" and not unsigned:
                return f.op("ashr", T, a, pick(outside, k(width - 1), args[1]))
            return pick(
                outside,
                k(0),
                f.op("shl" if name == "shl" else "lshr", T, a, pick(outside, k(0), args[1])),
            )
        case "mulhi":
            W, extend = vec(f"i{2 * width}", w), "zext" if unsigned else "sext"
            x, y = (f.emit(f"{extend} {T} {v} to {W}") for v in args)
            high = f.op("lshr", W, f.op("mul", W, x, y), constant(f"i{2 * width}", width, w))
            return f.emit(f"trunc {W} {high} to {T}")
        case "floordiv" | "mod":
            b, div = args[1], name == "floordiv"
            zero = test("eq", b, k(0))
            if unsigned:
                return pick(zero, k(0), f.op("udiv" if div else "urem", T, a, pick(zero, k(1), b)))
            minus = test("eq", b, k(-1))  # the smallest integer by −1 traps
            safe = pick(f.op("or", vec("i1", w), zero, minus), k(1), b)
            q, r = f.op("sdiv", T, a, safe), f.op("srem", T, a, safe)
            wrong = f.op(
                "and", vec("i1", w), test("ne", r, k(0)), test("slt", f.op("xor", T, r, safe), k(0))
            )
            out = (
                pick(wrong, f.op("sub", T, q, k(1)), q)
                if div
                else pick(wrong, f.op("add", T, r, safe), r)
            )
            return pick(zero, k(0), pick(minus, f.op("sub", T, k(0), a) if div else k(0), out))
    raise NotImplementedError(name)
