"""Integers of a kernel that its host can compute: from arguments, extents and strides alone.

A tensor map is made by the host, so that one of an array that the kernel makes (`tile.make_array`)
needs such values for its address, extents and strides. `host_value` finds the expression, which is
plain data (`tkc.ir.interface.HostValue`).
"""

from __future__ import annotations

from xdsl.ir import BlockArgument, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, Elementwise, PointerAdd
from tkc.ir.interface import HOST_FUNCTIONS, UNBOUNDED, HostValue
from tkc.ir.types import ArrayType, is_integer
from tkc.ir.values import array_type, defining_op

# of a made array: it begins before the memory of its argument
BEGINS_BEFORE = "begins_before"
MAX_DEPTH = 32  # of an expression: deeper ones stay in the kernel


def argument_number(value: SSAValue) -> int | None:
    """The number of a kernel's argument; None of other values."""
    if isinstance(value, BlockArgument) and isinstance(value.owner.parent_op(), tile.Kernel):
        return value.index
    return None


def host_value(value: SSAValue, depth: int = MAX_DEPTH) -> HostValue | None:
    """The expression of an integer scalar; None where the host cannot compute it."""
    number = argument_number(value)
    if number is not None:
        return ("scalar", number) if is_integer(value.type) else None
    op = value.owner
    match op:
        case tile.Constant() if isinstance(op.number, int):
            return int(op.number)
        case tile.Multiple():
            return host_value(op.arg, depth)
        case Cast() if is_integer(op.arg.type) and is_integer(value.type):
            return host_value(op.arg, depth)
        case tile.Dim() | tile.Stride():
            array = argument_number(op.arg)
            kind = "shape" if isinstance(op, tile.Dim) else "stride"
            return None if array is None else (kind, array, op.axis.value.data)
        case Elementwise() if op.fn.name in HOST_FUNCTIONS and depth > 0:
            a, b = (host_value(x, depth - 1) for x in op.args)
            return None if a is None or b is None else (op.fn.name, a, b)
    return None


def host_pointer(value: SSAValue) -> tuple[int, HostValue] | None:
    """The array argument, by number, and the offset in elements of a pointer that the host can
    compute; None of others.
    """
    offset: HostValue = 0
    while (moved := defining_op(value, PointerAdd)) is not None:
        step = host_value(moved.offset)
        if step is None:
            return None
        offset, value = ("add", offset, step) if offset != 0 else step, moved.pointer
    start = defining_op(value, tile.Pointer)
    number = None if start is None else argument_number(start.arg)
    return None if number is None else (number, offset)


def host_array(array: SSAValue) -> tuple[int, HostValue, list[HostValue], list[HostValue]] | None:
    """Argument, offset, extents and strides of an array that is made in the kernel of what the host
    knows; None of others.
    """
    made = defining_op(array, tile.MakeArray)
    found = None if made is None else host_pointer(made.pointer)
    if made is None or found is None:
        return None
    sizes: list[HostValue] = []
    for value in (*made.shape, *made.strides):
        size = host_value(value)
        if size is None:
            return None
        sizes.append(size)
    rank = len(made.shape)
    return (*found, sizes[:rank], sizes[rank:])


def is_unbounded(array: SSAValue) -> bool:
    """Whether an array is made with an axis that nothing bounds: what lies outside of the memory is
    not known to be outside of the array.
    """
    made = defining_op(array, tile.MakeArray)
    if made is None:
        return False
    return any(fact.exact == UNBOUNDED for fact in array_type(made.result).facts.shape)


def may_read_before_memory(array: SSAValue) -> bool:
    """Whether rows may lie outside of an array that begins before memory: for these the copy engine
    reads the array's first address.
    """
    made = defining_op(array, tile.MakeArray)
    if made is None or BEGINS_BEFORE not in made.attributes:
        return False
    return any(fact.exact != UNBOUNDED for fact in array_type(made.result).facts.shape)


def is_whole(array: SSAValue) -> bool:
    """Whether an array is an argument of the kernel, or made of what the host knows: it can have a
    tensor map.
    """
    if isinstance(array.type, ArrayType) and argument_number(array) is not None:
        return True
    return host_array(array) is not None
