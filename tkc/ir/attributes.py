"""Attributes of xDSL, made, compared and hashed in fewer calls.

xDSL's attributes are dataclasses. Each asks its definition how it is made, compares by a tuple of
what it consists of, and hashes that anew each time; the types of tiles consist of attributes four
deep. A compilation asks for some hundred thousand comparisons. What the functions here give is the
same (`tkc.ir.definition` has those of operations).
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from dataclasses import fields
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import (
    ArrayAttr,
    BFloat16Type,
    BytesAttr,
    DenseArrayBase,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntAttr,
    IntegerAttr,
    IntegerType,
    SignednessAttr,
    StringAttr,
)
from xdsl.ir import Attribute, Data, ParametrizedAttribute

MAX_TYPES = 1 << 14  # that are kept to be given again


class Concrete(ABCMeta):
    """Of classes with which no other is registered: `isinstance` looks at their bases alone. What
    xDSL defines are abstract base classes, which takes `isinstance` three times as long, and a
    compilation asks some hundred thousand times.
    """

    __instancecheck__ = type.__instancecheck__


class Unique(Concrete):
    """Of attributes that are given again where an equal one was made: then they are compared by
    their identity, and verified once.
    """

    def __call__(cls, *parts: Any, **named: Any) -> Any:
        try:
            return _made(cls, *parts, **named)
        except TypeError:  # parts without a hash, such as a list of extents; or a wrong call
            return _unique(super().__call__(*parts, **named))


@lru_cache(MAX_TYPES)
def _made(attribute: type[Attribute], *parts: Any, **named: Any) -> Attribute:
    return _unique(type.__call__(attribute, *parts, **named))


@lru_cache(MAX_TYPES)
def _unique(attribute: Attribute) -> Attribute:
    """The first attribute that was equal to one."""
    return attribute


if TYPE_CHECKING:
    kept = property
else:

    def kept(compute):
        """A property that is computed once; xDSL's definitions refuse `cached_property`."""
        name = compute.__name__

        def get(self):
            held = self.__dict__
            if (found := held.get(name)) is None:
                found = held[name] = compute(self)
            return found

        return property(get, doc=compute.__doc__)


def keep_hash(attribute: type[Attribute]) -> None:
    """Has the hash of an attribute's parts computed once; of one without parts it is the class's,
    which tells types apart.
    """
    computed = attribute.__hash__ if fields(attribute) else (lambda self: hash(attribute))

    def kept_hash(self: Attribute) -> int:
        held = self.__dict__
        found = held.get("_hash")
        if found is None:
            found = held["_hash"] = computed(self)
        return found

    attribute.__hash__ = kept_hash  # type: ignore[assignment]


@lru_cache(1 << 12)
def integer(value: int, element: IntegerType) -> IntegerAttr:
    """An integer of a type, which wraps to its bits."""
    return IntegerAttr(value, element, truncate_bits=True)


@lru_cache(1 << 12)
def extents_attribute(extents: tuple[int, ...]) -> ArrayAttr[IntAttr]:
    return ArrayAttr(map(IntAttr, extents))


@cache
def _parameters(
    attribute: type[ParametrizedAttribute],
) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """The names of an attribute's parameters, and what converts each."""
    return [(n, d.converter) for n, d in attribute.get_irdl_definition().parameters]


def _make(self: ParametrizedAttribute, *parameters: Any) -> None:
    held = self.__dict__
    for (name, convert), given in zip(_parameters(type(self)), parameters, strict=True):
        held[name] = given if convert is None else convert(given)
    self.__post_init__()


def _is_same_data(self: Data[Any], other: object) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented
    mine, others = self.data, other.data
    return mine is others or mine == others


def _is_same_integer(self: IntegerType, other: object) -> bool:
    if self is other:
        return True
    if other.__class__ is not self.__class__:
        return NotImplemented
    one, two = self.__dict__, other.__dict__
    same_width = one["width"].data == two["width"].data
    return same_width and one["signedness"].data is two["signedness"].data


def _values(self: DenseArrayBase[Any]) -> tuple[Any, ...]:
    held = self.__dict__
    found = held.get("_values")
    if found is None:
        found = held["_values"] = self.elt_type.unpack(self.data.data, len(self))
    return found


def _text(self: Attribute) -> str:
    held = self.__dict__
    found = held.get("_text")
    if found is None:
        found = held["_text"] = _printed(self)
    return found


_printed = Attribute.__str__


def made_at_once() -> None:
    """Has xDSL's attributes do the same in fewer calls."""
    for attribute in (
        *(BFloat16Type, Float8E4M3FNType, Float8E5M2Type, Float16Type, Float32Type, Float64Type),
        *(IntegerType, IntAttr, StringAttr, SignednessAttr, IntegerAttr, ArrayAttr, BytesAttr),
        DenseArrayBase,
    ):
        keep_hash(attribute)
    ParametrizedAttribute.__init__ = _make  # type: ignore[method-assign]
    # of these that they are attributes need not be asked
    ParametrizedAttribute.__post_init__ = lambda self: self._verify()  # type: ignore[method-assign]
    Attribute.__str__ = _text  # type: ignore[method-assign]
    Data.__eq__ = _is_same_data  # type: ignore[method-assign,assignment]
    IntegerType.__eq__ = _is_same_integer  # type: ignore[method-assign,assignment]
    DenseArrayBase.get_values = _values  # type: ignore[method-assign]


made_at_once()
