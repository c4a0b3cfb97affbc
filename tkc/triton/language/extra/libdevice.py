"""`libdevice`: functions of float32 and float64, element by element, as a table.

What stands in no table is refused by name: Bessel functions, gamma functions, the inverse error
functions, and operations of other roundings than to nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tkc.language import operations, values
from tkc.language.tracer import fail
from tkc.triton.language import types
from tkc.triton.language.creation import where
from tkc.triton.language.mathematics import checked
from tkc.triton.language.types import dtype
from tkc.triton.language.values import cast, promoted, tensor, to_tensor

FLOATS = ("fp32", "fp64")
LN2 = math.log(2)


def _core(name: str, *args: Any) -> tensor:
    return tensor(values.apply(name, *(a.value if isinstance(a, tensor) else a for a in args)))


def _number(x: tensor, value: float) -> tensor:
    return tensor(values.number(value, x.value.dtype))


def _with_sign(size: tensor, x: tensor) -> tensor:
    """A size with the sign of x, of zeros and NaN too."""
    word = types.get_int_dtype(x.dtype.primitive_bitwidth, False)
    top = 1 << (word.int_bitwidth - 1)
    sign = cast(x, word, bitcast=True) & top
    return cast((cast(size, word, bitcast=True) & (top - 1)) | sign, x.dtype, bitcast=True)


def _round_away(x: tensor) -> tensor:
    """To the nearest integer, halves away from zero."""
    whole = _core("trunc", x)
    step = _with_sign(_number(x, 1.0), x)
    return where(_core("abs", x - whole) >= 0.5, whole + step, whole)


def _tan(x: tensor) -> tensor:
    return _core("sin", x) / _core("cos", x)


def _leg(x: tensor) -> tensor:
    return _core("sqrt", (1 - x) * (1 + x))


def _sinh(x: tensor) -> tensor:
    size = _core("abs", x)
    e = _core("expm1", size)
    small = (e + e / (e + 1)) * 0.5
    large = _core("exp", size - LN2)
    return _with_sign(where(size < 20.0, small, large), x)


def _cosh(x: tensor) -> tensor:
    e = _core("exp", _core("abs", x) - LN2)
    return e + 0.25 / e


def _asinh(x: tensor) -> tensor:
    size = _core("abs", x)
    square = size * size
    small = _core("log1p", size + square / (1 + _core("sqrt", square + 1)))
    return _with_sign(where(size > 1e9, _core("log", size) + LN2, small), x)


def _acosh(x: tensor) -> tensor:
    t = x - 1
    small = _core("log1p", t + _core("sqrt", 2 * t + t * t))
    return where(x > 1e9, _core("log", x) + LN2, small)


def _cbrt(x: tensor) -> tensor:
    size = _core("abs", x)
    near = _core("pow", size, _number(x, 1 / 3))
    better = near - (near * near * near - size) / (3 * near * near)
    plain = (size == 0.0) | (size == math.inf)
    return _with_sign(where(plain, size, better), x)


def _exponent(x: tensor) -> tensor:
    """floor(log2 |x|) of a normal number."""
    bits = x.dtype.primitive_bitwidth
    word = types.get_int_dtype(bits, True)
    width = x.dtype.fp_mantissa_width
    field = (cast(x, word, bitcast=True) >> width) & ((1 << (bits - 1 - width)) - 1)
    return cast(field - x.dtype.exponent_bias, types.int32)


def _finite(x: tensor) -> tensor:
    return ~(_core("isnan", x) | _core("isinf", x))


def _sign_bit(x: tensor) -> tensor:
    word = types.get_int_dtype(x.dtype.primitive_bitwidth, True)
    return cast(x, word, bitcast=True) < 0


# functions of tkc, by their names in libdevice
_SAME = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh")
_RENAMED = {n: n for n in (*_SAME, "erf", "floor", "ceil", "trunc")} | {
    "rint": "round",
    "nearbyint": "round",
    "sqrt_rn": "sqrt",
    "rsqrt_rn": "rsqrt",
    "fast_expf": "exp",
    "fast_logf": "log",
    "fast_log2f": "log2",
    "fast_sinf": "sin",
    "fast_cosf": "cos",
    "fast_tanhf": "tanh",
}
_UNARY: dict[str, Callable[[tensor], tensor]] = {
    **{name: partial(_core, own) for name, own in _RENAMED.items()},
    "round": _round_away,
    "exp10": lambda x: _core("exp2", x * math.log2(10)),
    "log10": lambda x: _core("log", x) * (1 / math.log(10)),
    "fast_exp10f": lambda x: _core("exp2", x * math.log2(10)),
    "fast_log10f": lambda x: _core("log", x) * (1 / math.log(10)),
    "tan": _tan,
    "fast_tanf": _tan,
    "sinpi": lambda x: _core("sin", x * math.pi),
    "cospi": lambda x: _core("cos", x * math.pi),
    "asin": lambda x: _core("atan2", x, _leg(x)),
    "acos": lambda x: _core("atan2", _leg(x), x),
    "atan": lambda x: _core("atan2", x, _number(x, 1.0)),
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": lambda x: 0.5 * _core("log1p", 2 * x / (1 - x)),
    "cbrt": _cbrt,
    "rcbrt": lambda x: 1 / _cbrt(x),
    "rcp_rn": lambda x: _core("div_rn", _number(x, 1.0), x),
    "saturatef": lambda x: where(x > 0.0, where(x < 1.0, x, 1.0), 0.0),
    "normcdf": lambda x: 0.5 + 0.5 * _core("erf", x * math.sqrt(0.5)),
    "isnan": lambda x: cast(_core("isnan", x), types.int32),
    "isinf": lambda x: cast(_core("isinf", x), types.int32),
    "isinff": lambda x: cast(_core("isinf", x), types.int32),
    "finitef": lambda x: cast(_finite(x), types.int32),
    "isfinited": lambda x: cast(_finite(x), types.int32),
    "signbit": lambda x: cast(_sign_bit(x), types.int32),
    "ilogb": _exponent,
    "logb": lambda x: cast(_exponent(x), x.dtype),
    "llrint": lambda x: cast(_core("round", x), types.int64),
    "llround": lambda x: cast(_round_away(x), types.int64),
}


def _div_rz(x: tensor, y: tensor) -> tensor:
    """The quotient towards zero: to nearest, and one step back where that is too large."""
    near = _core("div_rn", x, y)
    rest = _core("fma", -1.0 * near, y, x)
    beyond = (rest != 0.0) & (_sign_bit(rest) != _sign_bit(x)) & _finite(near)
    word = types.get_int_dtype(x.dtype.primitive_bitwidth, True)
    return cast(cast(near, word, bitcast=True) - cast(beyond, word), x.dtype, bitcast=True)


def _hypot(x: tensor, y: tensor) -> tensor:
    """Scaled, so that squares do not overflow."""
    a, b = _core("abs", x), _core("abs", y)
    large = _core("max", a, b)
    small = _core("min", a, b)
    ratio = where(large == 0.0, 0.0, small / large)
    return where(large == math.inf, large, large * _core("sqrt", 1 + ratio * ratio))


_BINARY: dict[str, Callable[[tensor, tensor], tensor]] = {
    "add_rn": lambda x, y: x + y,
    "sub_rn": lambda x, y: x - y,
    "mul_rn": lambda x, y: x * y,
    "div_rn": lambda x, y: _core("div_rn", x, y),
    "div_rz": _div_rz,
    "fast_dividef": lambda x, y: x / y,
    "pow": lambda x, y: _core("pow", x, y),
    "fast_powf": lambda x, y: _core("pow", x, y),
    "atan2": lambda x, y: _core("atan2", x, y),
    "fmod": lambda x, y: x % y,
    "remainder": lambda x, y: x - _core("round", x / y) * y,
    "hypot": _hypot,
    "rhypot": lambda x, y: 1 / _hypot(x, y),
    "copysign": lambda x, y: _with_sign(x, y),
    "fdim": lambda x, y: where(x > y, x - y, 0.0),
    "fmax": lambda x, y: _core("fmax", x, y),
    "fmin": lambda x, y: _core("fmin", x, y),
}


def _unary(name: str, fn: Callable) -> Callable:
    def function(arg0: Any) -> tensor:
        return fn(_as_float(to_tensor(arg0), name))

    function.__name__, function.__qualname__ = name, f"libdevice.{name}"
    function.__doc__ = f"{name}, of float32 or float64."
    return function


def _as_float(x: tensor, name: str) -> tensor:
    return checked(cast(x, types.float32) if x.dtype.is_int() else x, FLOATS, f"libdevice.{name}")


def _binary(name: str, fn: Callable) -> Callable:
    def function(arg0: Any, arg1: Any) -> tensor:
        x, y = promoted(to_tensor(arg0), to_tensor(arg1))
        return fn(_as_float(x, name), _as_float(y, name))

    function.__name__, function.__qualname__ = name, f"libdevice.{name}"
    function.__doc__ = f"{name}, of float32 or float64."
    return function


for _name, _fn in _UNARY.items():
    globals()[_name] = _unary(_name, _fn)
for _name, _fn2 in _BINARY.items():
    globals()[_name] = _binary(_name, _fn2)


def abs(arg0: Any) -> tensor:
    """The absolute value."""
    return tensor(values.lift(operations.abs_(to_tensor(arg0).value)))


def fma(arg0: Any, arg1: Any, arg2: Any) -> tensor:
    """arg0 * arg1 + arg2, rounded once."""
    x, y = promoted(to_tensor(arg0), to_tensor(arg1))
    z, x = promoted(to_tensor(arg2), x)
    return _core("fma", x, cast(y, x.dtype), z)


fma_rn = fma


def ldexp(arg0: Any, arg1: Any) -> tensor:
    """arg0 · 2 ** arg1, in two steps, so that powers do not overflow before the result does."""
    x, n = _as_float(to_tensor(arg0), "ldexp"), cast(to_tensor(arg1), types.int32)
    half = n >> 1
    first = _core("exp2", cast(half, x.dtype))
    return x * first * _core("exp2", cast(n - half, x.dtype))


scalbn = ldexp


# ---- bits
def _word(x: Any, signed: bool = False) -> tensor:
    t = to_tensor(x)
    if not t.dtype.is_int():
        fail(f"this function of libdevice takes integers, got {t.dtype}")
    return cast(t, types.get_int_dtype(max(t.dtype.int_bitwidth, 32), signed))


def popc(arg0: Any) -> tensor:
    """How many bits are set."""
    return cast(_core("popcount", _word(arg0)), types.int32)


def clz(arg0: Any) -> tensor:
    """How many zeros lead."""
    return cast(_core("clz", _word(arg0)), types.int32)


def ffs(arg0: Any) -> tensor:
    """The place of the first bit that is set, from 1; 0 of zero."""
    x = _word(arg0)
    lowest = x & (0 - x)
    return x.dtype.int_bitwidth - clz(lowest)


def brev(arg0: Any) -> tensor:
    """The bits in the other order."""
    x = _word(arg0)
    width, shift = x.dtype.int_bitwidth, 1
    whole = (1 << width) - 1
    while shift < width:
        mask = whole // ((1 << shift) + 1)  # groups of `shift` bits, every second one
        x = ((x >> shift) & mask) | ((x & mask) << shift)
        shift *= 2
    return cast(x, types.get_int_dtype(width, True))


def mulhi(arg0: Any, arg1: Any) -> tensor:
    """The upper half of a product of integers."""
    x, y = promoted(to_tensor(arg0), to_tensor(arg1))
    return _core("mulhi", x, y)


def mul24(arg0: Any, arg1: Any) -> tensor:
    """The product of the lower 24 bits."""
    return (to_tensor(arg0) & 0xFFFFFF) * (to_tensor(arg1) & 0xFFFFFF)


def hadd(arg0: Any, arg1: Any) -> tensor:
    """The mean of two integers, rounded down, without overflow."""
    x, y = promoted(to_tensor(arg0), to_tensor(arg1))
    return (x & y) + ((x ^ y) >> 1)


def rhadd(arg0: Any, arg1: Any) -> tensor:
    """The mean of two integers, rounded up, without overflow."""
    x, y = promoted(to_tensor(arg0), to_tensor(arg1))
    return (x | y) - ((x ^ y) >> 1)


def sad(arg0: Any, arg1: Any, arg2: Any) -> tensor:
    """|arg0 - arg1| + arg2."""
    x, y = promoted(to_tensor(arg0), to_tensor(arg1))
    return where(x > y, x - y, y - x) + to_tensor(arg2)


# ---- conversions: float2int_rn, int_as_float, …
_NAMES = {
    "float": "fp32",
    "double": "fp64",
    "int": "int32",
    "uint": "uint32",
    "ll": "int64",
    "ull": "uint64",
    "longlong": "int64",
}
_ROUNDINGS = {"rn": "round", "rz": "trunc", "rd": "floor", "ru": "ceil"}


def _conversion(name: str) -> Callable | None:
    """A function that converts, by its name; None of other names."""
    source, found, into = name.partition("_as_")
    if found and source in _NAMES and into in _NAMES:
        return lambda arg0: cast(cast(arg0, dtype(_NAMES[source])), dtype(_NAMES[into]), None, True)
    pair, _, rounding = name.rpartition("_")
    source, found, into = pair.partition("2")
    if not found or source not in _NAMES or into not in _NAMES or rounding not in _ROUNDINGS:
        return None
    a, b = dtype(_NAMES[source]), dtype(_NAMES[into])
    if a.is_floating() and b.is_int():
        return lambda arg0: cast(_core(_ROUNDINGS[rounding], cast(arg0, a)), b)
    return (lambda arg0: cast(cast(arg0, a), b)) if rounding == "rn" else None


def __getattr__(name: str) -> Any:
    found = _conversion(name)
    if found is None:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"tkc has no libdevice.{name}")
    found.__name__, found.__qualname__ = name, f"libdevice.{name}"
    globals()[name] = found
    return found
