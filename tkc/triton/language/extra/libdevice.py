"""`libdevice`: functions of float32 and float64, element by element, as a table.

What stands in no table is refused by name: Bessel functions, the gamma function itself, and
operations of other roundings than to nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tkc.language import operations, special, values
from tkc.language.tracer import fail
from tkc.triton.language import types
from tkc.triton.language.creation import where
from tkc.triton.language.mathematics import checked
from tkc.triton.language.types import dtype
from tkc.triton.language.values import cast, promoted, tensor, to_tensor

FLOATS = ("fp32", "fp64")


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


def _of_tkc(name: str, *args: tensor) -> tensor:
    """A function of tkc's own table."""
    return tensor(values.lift(getattr(special, name)(*(x.value for x in args))))


def _quarter_turns(x: tensor) -> tuple[tensor, tensor, tensor]:
    """The sine and the cosine of pi times what x is beyond a number of halves, at most a quarter;
    and that number, modulo 4.
    """
    turn = x - 2 * _core("round", x * 0.5)  # exact, from -1 to 1
    halves = _core("round", 2 * turn)
    angle = (turn - 0.5 * halves) * math.pi
    return _core("sin", angle), _core("cos", angle), cast(halves, types.int32) & 3


def _sinpi(x: tensor) -> tensor:
    sine, cosine, halves = _quarter_turns(x)
    found = where((halves & 1) == 0, sine, cosine)
    found = where(halves >= 2, -1.0 * found, found)
    return where(found == 0.0, _with_sign(found, x), found)


def _cospi(x: tensor) -> tensor:
    sine, cosine, halves = _quarter_turns(x)
    found = where((halves & 1) == 0, cosine, sine)
    return where((halves == 1) | (halves == 2), -1.0 * found, found) + 0.0


def _normcdf(x: tensor) -> tensor:
    """erfc(a) / 2 for a = -x / sqrt(2); what rounding a leaves counts where erfc is steep."""
    root = math.sqrt(0.5)
    upper = float(np.float32(root)) if x.dtype.primitive_bitwidth == 32 else root
    a = x * -upper
    left = _core("fma", -1.0 * x, _number(x, upper), -1.0 * a) - x * (root - upper)
    found = 0.5 * _of_tkc("erfc", a)
    return where((a > 1.0) & (found > 0.0), found * (1 - 2 * a * left), found)


def _exponent(x: tensor) -> tensor:
    """floor(log2 |x|) of what is finite and not 0."""
    bits = x.dtype.primitive_bitwidth
    word = types.get_int_dtype(bits, True)
    width = x.dtype.fp_mantissa_width
    is_subnormal = _core("abs", x) < 2.0 ** (1 - x.dtype.exponent_bias)
    scaled = where(is_subnormal, x * 2.0 ** (width + 1), x)
    field = (cast(scaled, word, bitcast=True) >> width) & ((1 << (bits - 1 - width)) - 1)
    least = where(is_subnormal, x.dtype.exponent_bias + width + 1, x.dtype.exponent_bias)
    return cast(field, types.int32) - least


def _ilogb(x: tensor) -> tensor:
    least, most = -(1 << 31), (1 << 31) - 1
    found = where((x == 0.0) | _core("isnan", x), least, _exponent(x))
    return where(_core("isinf", x), most, found)


def _logb(x: tensor) -> tensor:
    found = where(x == 0.0, -math.inf, cast(_exponent(x), x.dtype))
    return where(_finite(x), found, x * x)


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
_SPECIAL = (
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("cbrt", "log10", "erfc", "erfinv", "lgamma"),
)
_UNARY: dict[str, Callable[[tensor], tensor]] = {
    **{name: partial(_core, own) for name, own in _RENAMED.items()},
    "round": _round_away,
    "exp10": lambda x: _core("exp2", x * math.log2(10)),
    "fast_exp10f": lambda x: _core("exp2", x * math.log2(10)),
    "fast_log10f": lambda x: _core("log", x) * (1 / math.log(10)),
    **{name: partial(_of_tkc, name) for name in _SPECIAL},
    "fast_tanf": lambda x: _core("sin", x) / _core("cos", x),
    "sinpi": _sinpi,
    "cospi": _cospi,
    "rcbrt": lambda x: 1 / _of_tkc("cbrt", x),
    "rcp_rn": lambda x: _core("div_rn", _number(x, 1.0), x),
    "saturatef": lambda x: where(x > 0.0, where(x < 1.0, x, 1.0), 0.0),
    "normcdf": _normcdf,
    "isnan": lambda x: cast(_core("isnan", x), types.int32),
    "isinf": lambda x: cast(_core("isinf", x), types.int32),
    "isinff": lambda x: cast(_core("isinf", x), types.int32),
    "finitef": lambda x: cast(_finite(x), types.int32),
    "isfinited": lambda x: cast(_finite(x), types.int32),
    "signbit": lambda x: cast(_sign_bit(x), types.int32),
    "ilogb": _ilogb,
    "logb": _logb,
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


def _remainder(x: tensor, y: tensor) -> tensor:
    """x less y times the nearest integer to x / y, exactly: of the remainder of 2 y."""
    size = _core("abs", y)
    rest = _core("abs", where(size < 2.0**x.dtype.exponent_bias, _of_tkc("fmod", x, 2 * size), x))
    less = rest - size
    found = where(rest + rest > size, where(less + less >= size, less - size, less), rest)
    found = where(_sign_bit(x), -1.0 * found, found)
    defined = _finite(x) & (size > 0.0)  # y may be infinite, and no NaN
    return where(defined, where(size == math.inf, x, found), math.nan)


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
    "remainder": _remainder,
    "hypot": partial(_of_tkc, "hypot"),
    "rhypot": lambda x, y: 1 / _of_tkc("hypot", x, y),
    "copysign": lambda x, y: _with_sign(x, y),
    "fdim": lambda x, y: where(x <= y, 0.0, x - y),
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
