"""Element-wise functions as vector code: arithmetic, comparisons, and rows of the elementary
functions (elementary.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.ir import Attribute

from tkc.codegen.cpu.elementary import LIBM, VECTOR, by_lane
from tkc.codegen.cpu.emit import Function, suffix, vec
from tkc.codegen.cpu.maths import Floats, Integers
from tkc.codegen.cpu.numbers import FLOAT8, held, is_short, rounded
from tkc.ir.types import PointerType, is_bool, is_float, is_unsigned

BINARY_FLOAT = {
    "add": "fadd contract",
    "sub": "fsub contract",
    "mul": "fmul contract",
    "div": "fdiv",
    "div_rn": "fdiv",
}
BINARY_INT = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
# of floats, signed and unsigned integers
COMPARE = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
EXACT = ("neg", "abs", "max", "min", "fmax", "fmin", "floor", "ceil", "round", "trunc")
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
    exact = name in EXACT and not isinstance(element, FLOAT8)
    if exact or name in ("isnan", "isinf") or not is_short(element):
        return out
    return rounded(f, element, out, w)


def _compare(f: Function, name: str, element: Attribute, w: int, a: str, b: str) -> str:
    ordered, signed, unsigned = COMPARE[name]
    t = vec(held(element), w)
    if is_float(element):
        return f.emit(f"fcmp {ordered} {t} {a}, {b}")
    without_sign = is_unsigned(element) or is_bool(element) or isinstance(element, PointerType)
    return f.emit(f"icmp {unsigned if without_sign else signed} {t} {a}, {b}")


# --------------------------------------------------------------------------------------------------
def of_floats(f: Function, name: str, t: str, w: int, *args: str) -> str:
    """A function of held floats, as exact as the held type `t`."""
    m = Floats(f, w, t)
    if name in BINARY_FLOAT:
        return f.op(BINARY_FLOAT[name], m.type, *args)
    if name in ROUNDING:
        return m.call(ROUNDING[name], args[0])
    if t == "float" and name in VECTOR:
        return VECTOR[name](m, args[0])
    if name in LIBM:
        return by_lane(f, name, t, w, *args)
    if name in OF_FLOATS:
        return OF_FLOATS[name](m, *args)
    raise NotImplementedError(name)


def _extremum(m: Floats, relation: str, a: str, b: str) -> str:
    """The first operand where the relation holds or where it is NaN, else the second."""
    near = m.pick(m.test(relation, a, b), a, b)
    return m.pick(m.is_nan(a), a, near)


def _number(m: Floats, relation: str, a: str, b: str) -> str:
    """The first operand where the relation holds or where the second is NaN, else the second."""
    return m.pick(m.either(m.test(relation, a, b), m.is_nan(b)), a, b)


def _remainder(m: Floats, a: str, b: str) -> tuple[str, str]:
    """The remainder with the sign of a, and whether that is wrong: the sign of b is another."""
    r, zero = by_lane(m.f, "fmod", m.t, m.w, a, b), m.zero()
    differs = m.differ(m.test("olt", r, zero), m.test("olt", b, zero))
    return r, m.both(differs, m.test("one", r, zero))


def _mod(m: Floats, a: str, b: str) -> str:
    """With the sign of the divisor, as Python's."""
    (r, wrong), zero = _remainder(m, a, b), m.zero()
    out = m.pick(wrong, m.add(r, b), r)
    return m.pick(m.test("oeq", r, zero), m.call("copysign", zero, b), out)


def _floor_division(m: Floats, a: str, b: str) -> str:
    """As NumPy: from the remainder, then to the nearest integer."""
    (r, wrong), zero = _remainder(m, a, b), m.zero()
    q = m.div(m.sub(a, r), b)
    q = m.pick(wrong, m.sub(q, 1.0), q)
    low, quotient = m.call("floor", q), m.div(a, b)
    whole = m.pick(m.test("ogt", m.sub(q, low), 0.5), m.add(low, 1.0), low)
    whole = m.pick(m.test("oeq", q, zero), m.call("copysign", zero, quotient), whole)
    return m.pick(m.test("oeq", b, zero), quotient, whole)


OF_FLOATS: dict[str, Callable[..., str]] = {
    "neg": Floats.neg,
    "fma": Floats.fma,
    "rsqrt": lambda m, a: m.div(1.0, m.call("sqrt", a)),
    "reciprocal": lambda m, a: m.div(1.0, a),
    "isnan": Floats.is_nan,
    "isinf": lambda m, a: m.test("oeq", m.call("fabs", a), math.inf),
    "max": lambda m, a, b: _extremum(m, "ogt", a, b),
    "min": lambda m, a, b: _extremum(m, "olt", a, b),
    "fmax": lambda m, a, b: _number(m, "ogt", a, b),
    "fmin": lambda m, a, b: _number(m, "olt", a, b),
    "mod": _mod,
    "rem_trunc": lambda m, a, b: by_lane(m.f, "fmod", m.t, m.w, a, b),
    "floordiv": _floor_division,
}


# --------------------------------------------------------------------------------------------------
def _integer(f: Function, name: str, element: Attribute, w: int, *args: str) -> str:
    t = held(element)
    i = Integers(f, w, int(t[1:]))
    if name in BINARY_INT:
        return i.op(BINARY_INT[name], *args)
    if name in OF_INTEGERS:
        return OF_INTEGERS[name](i, is_unsigned(element), *args)
    raise NotImplementedError(name)


def _call(i: Integers, name: str, *args: str) -> str:
    operands = ((i.type, a) for a in args)
    return i.f.call(f"llvm.{name}.{suffix(i.t, i.w)}", i.type, *operands)


def _defined_call(i: Integers, name: str, a: str) -> str:
    """A function that LLVM may leave undefined for one operand; here it is defined."""
    return i.f.call(f"llvm.{name}.{suffix(i.t, i.w)}", i.type, (i.type, a), ("i1", "false"))


def _shift_left(i: Integers, unsigned: bool, a: str, count: str) -> str:
    """0 where all bits are shifted out."""
    outside = i.test("uge", count, i.bits)
    return i.pick(outside, 0, i.op("shl", a, i.pick(outside, 0, count)))


def _shift_right(i: Integers, unsigned: bool, a: str, count: str) -> str:
    """0, or the sign, where all bits are shifted out."""
    outside = i.test("uge", count, i.bits)
    if not unsigned:
        return i.op("ashr", a, i.pick(outside, i.bits - 1, count))
    return i.pick(outside, 0, i.op("lshr", a, i.pick(outside, 0, count)))


def _high_product(i: Integers, unsigned: bool, a: str, b: str) -> str:
    """The upper half of a product."""
    wide, extend = Integers(i.f, i.w, 2 * i.bits), "zext" if unsigned else "sext"
    x, y = (i.f.emit(f"{extend} {i.type} {v} to {wide.type}") for v in (a, b))
    high = wide.op("lshr", wide.op("mul", x, y), i.bits)
    return i.f.emit(f"trunc {wide.type} {high} to {i.type}")


def _divided(i: Integers, unsigned: bool, a: str, b: str, quotient: bool) -> str:
    """The quotient rounded down, or its remainder; 0 of a division by zero."""
    opcode, zero = "div" if quotient else "rem", i.test("eq", b, 0)
    if unsigned:
        return i.pick(zero, 0, i.op("u" + opcode, a, i.pick(zero, 1, b)))
    minus = i.test("eq", b, -1)  # the smallest integer by −1 traps
    safe = i.pick(i.either(zero, minus), 1, b)
    q, r = i.op("sdiv", a, safe), i.op("srem", a, safe)
    signs_differ = i.test("slt", i.op("xor", r, safe), 0)
    wrong = i.both(i.test("ne", r, 0), signs_differ)
    if quotient:
        out, by_minus_one = i.pick(wrong, i.op("sub", q, 1), q), i.op("sub", 0, a)
    else:
        out, by_minus_one = i.pick(wrong, i.op("add", r, safe), r), i.k(0)
    return i.pick(zero, 0, i.pick(minus, by_minus_one, out))


def _truncated(i: Integers, unsigned: bool, a: str, b: str, quotient: bool) -> str:
    """The quotient rounded towards zero, or its remainder; 0 of a division by zero."""
    if unsigned:
        return _divided(i, unsigned, a, b, quotient)
    zero, minus = i.test("eq", b, 0), i.test("eq", b, -1)  # the smallest integer by −1 traps
    out = i.op("sdiv" if quotient else "srem", a, i.pick(i.either(zero, minus), 1, b))
    by_minus_one = i.op("sub", 0, a) if quotient else i.k(0)
    return i.pick(zero, 0, i.pick(minus, by_minus_one, out))


# each takes the integers, whether they are unsigned, and the operands
OF_INTEGERS: dict[str, Callable[..., str]] = {
    "neg": lambda i, unsigned, a: i.op("sub", 0, a),
    "not": lambda i, unsigned, a: i.op("xor", a, -1),
    "abs": lambda i, unsigned, a: a if unsigned else _defined_call(i, "abs", a),
    "max": lambda i, unsigned, a, b: _call(i, "umax" if unsigned else "smax", a, b),
    "min": lambda i, unsigned, a, b: _call(i, "umin" if unsigned else "smin", a, b),
    "popcount": lambda i, unsigned, a: _call(i, "ctpop", a),
    "clz": lambda i, unsigned, a: _defined_call(i, "ctlz", a),
    "shl": _shift_left,
    "shr": _shift_right,
    "mulhi": _high_product,
    "floordiv": lambda i, unsigned, a, b: _divided(i, unsigned, a, b, quotient=True),
    "mod": lambda i, unsigned, a, b: _divided(i, unsigned, a, b, quotient=False),
    "div_trunc": lambda i, unsigned, a, b: _truncated(i, unsigned, a, b, quotient=True),
    "rem_trunc": lambda i, unsigned, a, b: _truncated(i, unsigned, a, b, quotient=False),
}
