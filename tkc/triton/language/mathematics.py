"""Element-wise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tkc.language import values
from tkc.language.dtypes import float32
from tkc.language.tracer import fail
from tkc.language.values import Value
from tkc.triton.language.constants import unwrap
from tkc.triton.language.types import dtype
from tkc.triton.language.values import (
    Operand,
    absolute,
    arithmetic,
    cast,
    member,
    promoted,
    tensor,
    to_tensor,
)


class PropagateNan:
    """What an extreme of NaN and a number is: the number (NONE), or NaN (ALL)."""

    NONE = 0
    ALL = 0xFFFF


def checked(x: Operand, allowed: tuple[str, ...], what: str) -> tensor:
    """A tensor of one of these types."""
    t = to_tensor(x)
    if t.dtype.name not in allowed:
        fail(f"tl.{what} takes {' or '.join(allowed)}, got {t.dtype}; cast it with .to(tl.float32)")
    return t


def float_function(name: str, apply: Callable[[Value], Value], *allowed: str) -> Callable:
    """A function of float32 and float64 (or the types given)."""
    types = allowed or ("fp32", "fp64")

    def function(x: Operand) -> tensor:
        return tensor(apply(checked(x, types, name).value))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}, element by element."
    return function


def of_core(name: str) -> Callable[[Value], Value]:
    """An element-wise operation of tkc."""
    return lambda x: values.apply(name, x)


def _exp(x: Value) -> Value:
    """Of float32 as Triton has it: the power of two of x log2 e, which is rounded."""
    if x.dtype is not float32:
        return values.apply("exp", x)
    return values.apply("exp2", x * math.log2(math.e))


exp = member(float_function("exp", _exp))
exp2, log, log2, sin, cos, rsqrt, sqrt, erf, floor, ceil = (
    member(float_function(name, of_core(name)))
    for name in [
        "exp2",
        "log",
        "log2",
        "sin",
        "cos",
        "rsqrt",
        "sqrt",
        "erf",
        "floor",
        "ceil",
    ]
)
sqrt_rn = float_function("sqrt_rn", of_core("sqrt"), "fp32")


@member
def abs_(x: Operand) -> tensor:
    """The absolute value."""
    return absolute(to_tensor(x))


@member
def sigmoid(x: Operand) -> tensor:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + exp(-to_tensor(x)))


def umulhi(x: Operand, y: Operand) -> tensor:
    """The upper half of the product of two integers of 32 or 64 bits."""
    a, b = promoted(to_tensor(x), to_tensor(y))
    checked(a, ("int32", "int64", "uint32", "uint64"), "umulhi")
    bits = a.dtype.int_bitwidth
    if a.dtype.is_int_signed():
        unsigned = dtype(f"uint{bits}")
        a, b = cast(a, unsigned, bitcast=True), cast(b, unsigned, bitcast=True)
        return cast(
            tensor(values.apply("mulhi", a.value, b.value)), dtype(f"int{bits}"), bitcast=True
        )
    return tensor(values.apply("mulhi", a.value, b.value))


def fdiv(x: Operand, y: Operand, ieee_rounding: bool = False) -> tensor:
    """The quotient of floats."""
    a, b = promoted(to_tensor(x), to_tensor(y))
    if not a.dtype.is_floating():
        fail(f"tl.fdiv takes floats, got {a.dtype}")
    return tensor(values.apply("div_rn" if unwrap(ieee_rounding) else "div", a.value, b.value))


def div_rn(x: Operand, y: Operand) -> tensor:
    """The quotient of float32, rounded to nearest even."""
    a, b = promoted(to_tensor(x), to_tensor(y))
    checked(a, ("fp32", "fp64"), "div_rn")
    return tensor(values.apply("div_rn", a.value, b.value))


def fma(x: Operand, y: Operand, z: Operand) -> tensor:
    """x * y + z, rounded once."""
    a, b = promoted(to_tensor(x), to_tensor(y))
    c, a = promoted(to_tensor(z), a)
    c, b = promoted(c, b)
    if not a.dtype.is_floating():
        fail(f"tl.fma takes floats, got {a.dtype}")
    return tensor(values.apply("fma", a.value, b.value, c.value))


def _comparable(x: Operand) -> Operand:
    """An operand of an extreme: bfloat16 as float32."""
    given = unwrap(x)
    short = isinstance(given, tensor) and given.dtype.name == "bf16"
    return cast(given, float32) if short else given


def _extreme(name: str) -> Callable:
    def function(x: Operand, y: Operand, propagate_nan: Any = PropagateNan.NONE) -> tensor:
        a, b = promoted(_comparable(x), _comparable(y), weak=False)
        drop = a.dtype.is_floating() and unwrap(propagate_nan) != PropagateNan.ALL
        if a.dtype.is_bool():
            return tensor(values.apply("or" if name == "max" else "and", a.value, b.value))
        return tensor(values.apply(f"f{name}" if drop else name, a.value, b.value))

    function.__name__ = function.__qualname__ = f"{name}imum"
    function.__doc__ = (
        f"The {name}imum of two, element by element. propagate_nan: whether NaN and a number give"
        " NaN (ALL) or the number (NONE)."
    )
    return function


maximum, minimum = _extreme("max"), _extreme("min")


def clamp(x: Operand, min: Operand, max: Operand, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """x between min and max, of floats."""
    value, low, high = (to_tensor(_comparable(v)) for v in (x, min, max))
    low, high = promoted(low, high)
    value, low = promoted(value, low)
    value, high = promoted(value, high)
    if not value.dtype.is_floating():
        fail(f"tl.clamp takes floats, got {value.dtype}")
    return minimum(maximum(value, low, propagate_nan), high, propagate_nan)


def _named(name: str) -> Callable:
    def function(x: Operand, y: Operand, sanitize_overflow: Any = True) -> Any:
        return arithmetic(name, x, y)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`x {dict(add='+', sub='-', mul='*')[name]} y`, which wraps around."
    return function


add, sub, mul = map(_named, ("add", "sub", "mul"))


pi = math.pi
