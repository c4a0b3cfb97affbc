"""What the arguments of a launch are to a Triton kernel: pointers, numbers, compile-time values,
tuples and descriptors, as a form that can be compared, and the flat arguments that tkc launches.

    kernel(x, (a, 3), BLOCK=64)   ->   form: pointer, tuple of (pointer, number), constant
                                       arguments: {"x": …, "t__0": …, "t__1": 3, "BLOCK": 64}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from tkc.errors import LaunchError
from tkc.language.dtypes import DType
from tkc.runtime.arrays import ArrayInfo, describe, dtype_name, is_array
from tkc.runtime.specialize import ScalarInfo
from tkc.triton.language import types
from tkc.triton.language.constants import constexpr, tuple_, unwrap
from tkc.triton.tools.tensor_descriptor import TensorDescriptor


@dataclass(frozen=True)
class Pointer:
    """The address of an array."""

    name: str


@dataclass(frozen=True)
class Number:
    """A number that is passed when the kernel runs; 1 where it is specialised. natural: an integer
    that is not negative, nor is it in other launches of this code.
    """

    name: str
    natural: bool = False


@dataclass(frozen=True)
class Constant:
    """A value that is part of the code. annotated: under tl.constexpr."""

    name: str
    annotated: bool


@dataclass(frozen=True)
class Descriptor:
    """An array with the extents of its blocks."""

    name: str
    block: tuple[int, ...]
    padding: str


@dataclass(frozen=True)
class Tuple:
    """Several arguments; kind: a class with named fields, or None."""

    parts: tuple
    kind: Any = None


# of arguments that are one of tkc's kernel, as they are given
Single = Pointer, Number, Constant
Form: TypeAlias = Pointer | Number | Constant | Descriptor | Tuple


@dataclass(frozen=True)
class Parameter:
    """What is known of a parameter from its declaration."""

    name: str
    is_constexpr: bool
    specialized: bool


class Wrapped:
    """What is taken as an array of another element type: triton.reinterpret."""

    base: Any
    dtype: types.dtype


def reinterpreted(value: Wrapped) -> ArrayInfo:
    """The array that is taken as another type."""
    inner = value.base
    device = inner.device.index or 0 if inner.device.type == "cuda" else -1
    name = value.dtype.core.name
    return ArrayInfo(inner.data_ptr(), (inner.numel(),), (1,), name, device, owner=inner)


def constant(value: Any) -> Any:
    """A compile-time value; dtypes of other libraries as the language's."""
    found = unwrap(value)
    if (of_library := types.of_library(found)) is not None:
        return of_library
    return tuple(map(constant, found)) if isinstance(found, list) else found


def _number(value: Any, parameter: Parameter) -> Any:
    if isinstance(value, (bool, float)) or parameter.specialized:
        return value
    for name, low, high in (("int32", -(2**31), 2**31), ("int64", -(2**63), 2**63)):
        if low <= value < high:
            return ScalarInfo(value, name, 1)
    return ScalarInfo(value, "uint64", 1)


def form_of(value: Any, p: Parameter, into: dict[str, Any]) -> Form:
    """The form of an argument; what is launched goes into a dictionary. Raises LaunchError."""
    if p.is_constexpr:
        into[p.name] = constant(value)
        return Constant(p.name, True)
    if isinstance(value, constexpr):
        into[p.name] = constant(value)
        return Constant(p.name, True)
    if isinstance(value, (bool, int, float)):
        into[p.name] = _number(value, p)
        return Number(p.name, type(value) is int and 0 <= value < 2**63)
    if isinstance(value, Wrapped) or is_array(value):
        into[p.name] = reinterpreted(value) if isinstance(value, Wrapped) else value
        return Pointer(p.name)
    if isinstance(value, TensorDescriptor):
        into[p.name] = view(value)
        return Descriptor(p.name, tuple(value.block_shape), value.padding)
    if isinstance(value, tuple):
        parts = tuple(
            form_of(v, Parameter(f"{p.name}__{i}", False, p.specialized), into)
            for i, v in enumerate(value)
        )
        return Tuple(parts, type(value) if hasattr(value, "_fields") else None)
    return _other(value, p, into)


def _other(value: Any, p: Parameter, into: dict[str, Any]) -> Form:
    """None, a dtype, a function, a number of NumPy."""
    if value is None or _is_constant(value):
        into[p.name] = constant(value)
        return Constant(p.name, False)
    if isinstance(value, ArrayInfo):
        into[p.name] = value
        return Pointer(p.name)
    if hasattr(value, "dtype") and hasattr(value, "item"):
        into[p.name] = ScalarInfo(value.item(), dtype_name(value.dtype.name, p.name))
        return Number(p.name)
    raise LaunchError(
        f"argument {p.name}: expected an array, a number, a tuple of them or a compile-time value,"
        f" got {type(value).__name__}"
    )


def _is_constant(value: Any) -> bool:
    return (
        isinstance(value, (str, DType))
        or types.of_library(value) is not None
        or hasattr(type(value), "__triton_call__")
    )


def view(value: TensorDescriptor) -> Any:
    """The array of a descriptor, of a kind that launches are remembered of where there is one."""
    as_strided = getattr(value.base, "as_strided", None)
    if as_strided is not None:
        with suppress(RuntimeError):  # extents beyond what is allocated
            return as_strided(tuple(value.shape), tuple(value.strides))
    return _of_descriptor(value)


def _of_descriptor(value: TensorDescriptor) -> ArrayInfo:
    found = reinterpreted(value.base) if isinstance(value.base, Wrapped) else describe(value.base)
    return ArrayInfo(
        found.pointer,
        tuple(value.shape),
        tuple(value.strides),
        found.dtype,
        found.device,
        found.writeable,
        found.owner,
    )


def leaves(form: Form) -> Iterator[Any]:
    """The arguments that a form is made of."""
    if isinstance(form, Tuple):
        for part in form.parts:
            yield from leaves(part)
    else:
        yield form


def rebuilt(form: Form, leaf: Callable[[Any], Any]) -> Any:
    """What the kernel sees: tuples of what `leaf` makes of their parts."""
    if not isinstance(form, Tuple):
        return leaf(form)
    made = [rebuilt(part, leaf) for part in form.parts]
    return form.kind(*made) if form.kind is not None else tuple_(made)
