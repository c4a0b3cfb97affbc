"""torch's names for element-wise operations, so that a function written for tensors can be a part
of a kernel: `torch.where(q >= k, score, -inf)`, `torch.tanh(x)`, `x.abs()`, `x.clamp(0, 3)`.

torch asks each operand for `__torch_function__` (torch is not imported for it). What is not in
OF_TORCH is an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tkc.language import dtypes
from tkc.language import operations as ops
from tkc.language.dtypes import DType
from tkc.language.tracer import fail
from tkc.language.values import Value, describe, lift


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else ops.maximum(x, min)
    return x if max is None else ops.minimum(x, max)


def _divided(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return x // y
    fail(f"torch.div of a traced value: rounding_mode is None or 'floor', got {rounding_mode!r}")


def _sign(x: Any) -> Any:
    x = lift(x)
    return lift(ops.where(x > 0, 1, ops.where(x < 0, -1, 0)), x.dtype)


def _like(number: float) -> Callable[..., Any]:
    return lambda x, **_: lift(number, lift(x).dtype, lift(x).shape)


def _new(number: float) -> Callable[..., Any]:
    """Of a tensor's library a number: `b.new_ones((), dtype=torch.bool)`."""

    def new(x: Any, size: Any = (), *, dtype: Any = None, **_: Any) -> Any:
        if tuple(size):
            fail(f"a new tensor beside a traced value has rank 0, got the shape {list(size)}")
        name = str(lift(x).dtype.name if dtype is None else dtype).removeprefix("torch.")
        return lift(number, getattr(dtypes, "bool_" if name == "bool" else name))

    return new


def _truth(x: Any) -> Any:
    x = lift(x)
    return x if x.dtype is dtypes.bool_ else x != 0


def _converted(dtype: DType) -> Callable[[Any], Any]:
    return lambda x: lift(x).to(dtype)


OF_TORCH: dict[str, Callable[..., Any]] = {
    "exp": ops.exp,
    "exp2": ops.exp2,
    "expm1": ops.expm1,
    "log": ops.log,
    "log2": ops.log2,
    "log1p": ops.log1p,
    "sqrt": ops.sqrt,
    "rsqrt": ops.rsqrt,
    "sin": ops.sin,
    "cos": ops.cos,
    "tanh": ops.tanh,
    "erf": ops.erf,
    "sigmoid": ops.sigmoid,
    "floor": ops.floor,
    "ceil": ops.ceil,
    "trunc": ops.trunc,
    "isnan": ops.isnan,
    "isinf": ops.isinf,
    "where": ops.where,
    "maximum": ops.maximum,
    "minimum": ops.minimum,
    "abs": ops.abs_,
    "absolute": ops.abs_,
    "round": ops.round_,
    "pow": ops.pow_,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "relu": lambda x: ops.maximum(x, 0),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, min: ops.maximum(x, min),
    "clamp_max": lambda x, max: ops.minimum(x, max),
    "add": lambda x, y, *, alpha=1: x + y * alpha,
    "sub": lambda x, y, *, alpha=1: x - y * alpha,
    "mul": lambda x, y: x * y,
    "div": _divided,
    "true_divide": lambda x, y: x / y,
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "neg": lambda x: -x,
    "sign": _sign,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "logical_and": lambda x, y: _truth(x) & _truth(y),
    "logical_or": lambda x, y: _truth(x) | _truth(y),
    "logical_xor": lambda x, y: _truth(x) ^ _truth(y),
    "logical_not": lambda x: ~_truth(x),
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "bitwise_not": lambda x: ~x,
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "full_like": lambda x, value, **_: _like(value)(x),
    "new_zeros": _new(0),
    "new_ones": _new(1),
    "float": _converted(dtypes.float32),
    "half": _converted(dtypes.float16),
    "bfloat16": _converted(dtypes.bfloat16),
    "int": _converted(dtypes.int32),
    "long": _converted(dtypes.int64),
    "bool": _truth,
}


def _plain(x: Any) -> Any:
    """A tensor of rank 0 in host memory as its number."""
    if not isinstance(x, Value) and getattr(x, "shape", None) == () and hasattr(x, "item"):
        return x.item()
    return x


def _of_torch(cls: type, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
    name = getattr(func, "__name__", str(func))
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_").removeprefix("r")
    if name not in OF_TORCH:
        described = ", ".join(describe(x) for x in args if isinstance(x, Value))
        fail(
            f"torch.{name} of a traced value ({described}) has no meaning here; use operators,"
            " functions of tkc, or one of torch's element-wise functions"
        )
    return OF_TORCH[name](*map(_plain, args), **{k: _plain(v) for k, v in (kwargs or {}).items()})


def _method(name: str) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        return OF_TORCH[name](self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"torch.{name} of the value."
    return method


def register() -> None:
    """Gives values torch's methods, and its functions a way to them."""
    for name in OF_TORCH:
        if name not in ("where", "zeros_like", "ones_like", "full_like"):
            setattr(Value, name, _method(name))
    Value.device = None  # type: ignore[attr-defined]  # where `new_ones` would put a tensor
    Value.__torch_function__ = classmethod(_of_torch)  # type: ignore[attr-defined]
