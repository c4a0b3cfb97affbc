"""Compile-time values: `constexpr`, tuples, and what makes a plain value of either."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class constexpr_type:
    """The type of a compile-time value: that value."""

    value: Any

    def __post_init__(self):
        object.__setattr__(self, "value", unwrap(self.value))

    def __str__(self) -> str:
        return f"constexpr_type[{self.value}]"


@dataclass(frozen=True, eq=False)
class constexpr:
    """A value known when the kernel is compiled. Operators on such values, and on Python's own,
    give such values; beside a tensor it is a weak number. As an annotation it marks a parameter.
    """

    value: Any

    def __post_init__(self):
        object.__setattr__(self, "value", unwrap(self.value))

    @property
    def type(self) -> constexpr_type:
        return constexpr_type(self.value)

    def __class_getitem__(cls, item: Any) -> builtins.type:
        return cls

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __iter__(self) -> Iterator:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.value[unwrap(index)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def logical_and(self, other: Any) -> constexpr:
        return constexpr(self.value and unwrap(other))

    def logical_or(self, other: Any) -> constexpr:
        return constexpr(self.value or unwrap(other))


def unwrap(x: Any) -> Any:
    """The value of a constexpr; anything else as it is."""
    while isinstance(x, constexpr):
        x = x.value
    return x


def unwrap_all(x: Any) -> Any:
    """As `unwrap`, of tuples and lists element by element."""
    x = unwrap(x)
    if isinstance(x, (builtin_tuple, list)):
        made = [unwrap_all(e) for e in x]
        return type(x)(*made) if hasattr(x, "_fields") else type(x)(made)
    return x


def _is_plain(x: Any) -> bool:
    return not hasattr(type(x), "__triton_value__")


def _method(fn: Callable) -> Callable:
    def method(self, other):
        if not _is_plain(other):
            return NotImplemented
        return constexpr(fn(self.value, unwrap(other)))

    return method


def _reflected(fn: Callable) -> Callable:
    def method(self, other):
        if not _is_plain(other):
            return NotImplemented
        return constexpr(fn(unwrap(other), self.value))

    return method


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
]:
    _fn = getattr(operator, _name if _name not in ("and", "or") else f"{_name}_")
    setattr(constexpr, f"__{_name}__", _method(_fn))
    setattr(constexpr, f"__r{_name}__", _reflected(_fn))
for _name in ["eq", "ne", "lt", "le", "gt", "ge"]:
    setattr(constexpr, f"__{_name}__", _method(getattr(operator, _name)))


def _unary(fn: Callable) -> Callable:
    return lambda self: constexpr(fn(self.value))


for _name in ["neg", "pos", "invert"]:
    setattr(constexpr, f"__{_name}__", _unary(getattr(operator, _name)))


class const:
    """As an annotation of a parameter: a pointer through which nothing is written."""


builtin_tuple = tuple


class tuple_(builtin_tuple):
    """A tuple that also joins with lists, as shapes are written in kernels."""

    def __add__(self, other: Any) -> tuple_:
        return tuple_((*self, *unwrap(other)))

    def __radd__(self, other: Any) -> tuple_:
        return tuple_((*unwrap(other), *self))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            bounds = (unwrap(b) for b in (index.start, index.stop, index.step))
            return tuple_(super().__getitem__(slice(*bounds)))
        return super().__getitem__(unwrap(index))

    def __mul__(self, count: Any) -> tuple_:
        return tuple_(super().__mul__(unwrap(count)))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(unwrap(other), (builtin_tuple, list)):
            return False
        return unwrap_all(builtin_tuple(self)) == unwrap_all(builtin_tuple(unwrap(other)))

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return super().__hash__()

    @property
    def values(self) -> list:
        return list(self)


CONSTEXPR_0 = constexpr(0)


def log2(n: Any) -> Any:
    """The whole part of the logarithm of a positive compile-time integer, to base 2."""
    return _as_given(n, int(unwrap(n)).bit_length() - 1)


def is_power_of_two(n: Any) -> Any:
    """Whether a compile-time integer is a power of two."""
    value = int(unwrap(n))
    return _as_given(n, value > 0 and not value & (value - 1))


def _as_given(given: Any, found: Any) -> Any:
    return constexpr(found) if isinstance(given, constexpr) else found
