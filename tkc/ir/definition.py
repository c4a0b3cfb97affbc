"""Definitions of operations: those of xDSL, with operands and results that are read at once.

xDSL finds a named operand through a view of all operands, which it makes anew each time, and four
calls. A compilation asks for some hundred thousand. Here a name is a property that indexes the
operation's own tuple; what it gives is the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation, irdl_op_definition
from xdsl.irdl.operations import (
    AfterVariadicSingleAccessor,
    BeforeVariadicSingleAccessor,
    OptionalAttrAccessor,
    SingleAttrAccessor,
    UniqueVariadicAccessor,
    VariadicAttrAccessor,
    VarIRConstruct,
)

T = TypeVar("T", bound=IRDLOperation)
Values = Callable[[Operation], tuple[Any, ...]]
_VALUES: dict[VarIRConstruct, Values] = {
    VarIRConstruct.OPERAND: attrgetter("_operands"),
    VarIRConstruct.RESULT: attrgetter("results"),
}
_item = tuple.__getitem__  # the tuples' own class has one in Python


def op_definition(cls: type[T]) -> type[T]:
    """xDSL's `irdl_op_definition`, with direct access to operands and results by their names."""
    cls = irdl_op_definition(cls)
    for name, accessor in list(vars(cls).items()):
        values = _VALUES.get(getattr(accessor, "construct", None))  # type: ignore[arg-type]
        if values is not None and (get := _getter(accessor, values)) is not None:
            setattr(cls, name, property(get))
    return cls


def _getter(accessor: Any, values: Values) -> Callable[[Operation], Any] | None:
    """The function of an operation that gives what an accessor does; None of a kind that no
    operation of ours has.
    """
    index = accessor.idx
    match accessor:
        case BeforeVariadicSingleAccessor():
            return lambda op: _item(values(op), index)
        case AfterVariadicSingleAccessor():
            from_end = index - accessor.num_defs
            return lambda op: _item(values(op), from_end)
        case UniqueVariadicAccessor():
            after = accessor.num_defs - index - 1
            return lambda op: (found := values(op))[index : len(found) - after]
        case SingleAttrAccessor() | VariadicAttrAccessor() | OptionalAttrAccessor():
            return _getter_by_sizes(accessor, values)
    return None


def _getter_by_sizes(accessor: Any, values: Values) -> Callable[[Operation], Any]:
    """Of an operation that says in a property how many values each name has."""
    index, container = accessor.idx, accessor.option.container
    sizes = accessor.option.attribute_name

    def bounds(op: Operation) -> tuple[int, int]:
        starts = _starts(container(op)[sizes].data.data)
        return starts[index], starts[index + 1]

    def optional(op: Operation) -> Any:
        start, end = bounds(op)
        return _item(values(op), start) if end > start else None

    def several(op: Operation) -> Any:
        start, end = bounds(op)
        return values(op)[start:end]

    match accessor:
        case OptionalAttrAccessor():
            return optional
        case VariadicAttrAccessor():
            return several
    return lambda op: _item(values(op), bounds(op)[0])


@lru_cache(maxsize=1 << 12)
def _starts(sizes: bytes) -> Sequence[int]:
    """Where the values of each name begin, and where the last ones end; sizes: of 32 bits each."""
    starts = [0]
    for (size,) in struct.iter_unpack("<i", sizes):
        starts.append(starts[-1] + size)
    return starts
