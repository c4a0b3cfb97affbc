"""TKC_DEBUG=1 on the CPU: an assertion before each access through pointers, that it stays inside
its array argument and is aligned, and one for each promise.

    %a = tile.bitcast %pointers                                       addresses, as integers
    tile.assert "reads 4 bytes outside of argument x" %inside         where they are not masked:
    %v = tile.load_pointers %pointers …                               from the array's first byte to
                                                                      its last

What follows an assertion that does not hold is not executed. (On a GPU: tkc.codegen.ptx.traps.)
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, UnitAttr, i64
from xdsl.ir import BlockArgument, SSAValue

from tkc.codegen.cpu import numbers
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.origin import origin
from tkc.ir.rewrite import Builder
from tkc.ir.types import TileType, element_of, is_integer, like, pointee_of
from tkc.ir.values import array_type, first_of

CHECK = "check"  # attribute of an assertion that this module adds
Access = tile.LoadPointers | tile.StorePointers | tile.Atomic


def check(kernel: tile.Kernel) -> None:
    """Adds the assertions, in place."""
    spans: dict[BlockArgument, tuple[SSAValue, SSAValue]] = {}
    for op in list(kernel.walk()):
        match op:
            case tile.LoadPointers():
                _check_access(op, "reads", spans, kernel)
            case tile.StorePointers():
                _check_access(op, "writes", spans, kernel)
            case tile.Atomic():
                _check_access(op, "updates", spans, kernel)
            case tile.Assume():
                _claim(Builder(op), op.condition, "a promise (tkc.assume) does not hold")
            case tile.Multiple() if is_integer(element_of(op.arg.type)):
                build, divisor = Builder(op), op.divisor.value.data
                rest = build.mod(op.arg, _number(build, divisor, op.arg))
                _claim(
                    build,
                    build.eq(rest, _number(build, 0, op.arg)),
                    f"a number is promised to be a multiple of {divisor}, and is not",
                )


def _check_access(
    op: Access,
    verb: str,
    spans: dict[BlockArgument, tuple[SSAValue, SSAValue]],
    kernel: tile.Kernel,
) -> None:
    """Where the addresses of an access lie; `spans` keeps the bytes of each array argument."""
    build, size = Builder(op), numbers.size(pointee_of(op.pointers.type))
    address = build(ew.Bitcast(op.pointers, like(op.pointers.type, i64)))
    masked_off = None if op.mask is None else build(ew.CLASSES["not"](op.mask))

    def claim(condition: SSAValue, text: str) -> None:
        if masked_off is not None:
            condition = build.or_(condition, masked_off)
        _claim(build, condition, f"{verb} {size} bytes {text}")

    if size > 1:
        rest = build.and_(address, _number(build, size - 1, address))
        aligned = build.eq(rest, _number(build, 0, address))
        claim(aligned, f"at an address that is no multiple of {size}")
    if (array := origin(op.pointers)) is None:
        return
    if array not in spans:
        spans[array] = _span(Builder(first_of(kernel.body.block)), array)
    low, high = (_spread(build, x, address) for x in spans[array])
    end = build.add(address, _number(build, size, address))
    inside = build.and_(build.ge(address, low), build.le(end, high))
    claim(inside, f"outside of argument {array.name_hint or array.index}")


def _span(build: Builder, array: BlockArgument) -> tuple[SSAValue, SSAValue]:
    """First byte and end of an array argument."""
    t = array_type(array)
    low = high = build(ew.Bitcast(build(tile.Pointer(array)), i64))
    size, empty = numbers.size(t.element), None
    for axis in range(t.rank):
        extent = build(tile.Dim(array, axis, i64))
        reach = build.mul(build.mul(build.sub(extent, 1), build(tile.Stride(array, axis))), size)
        low, high = build.add(low, build.min(reach, 0)), build.add(high, build.max(reach, 0))
        none = build.eq(extent, 0)
        empty = none if empty is None else build.or_(empty, none)
    high = build.add(high, size)
    return low, high if empty is None else build.select(empty, low, high)


def _number(build: Builder, n: int, shape: SSAValue) -> SSAValue:
    """A constant in the type of a value."""
    return _spread(build, build.number(n, element_of(shape.type)), shape)


def _spread(build: Builder, x: SSAValue, shape: SSAValue) -> SSAValue:
    """A scalar in the shape of a value."""
    return build(tile.Splat(x, like(shape.type, x.type))) if isinstance(shape.type, TileType) else x


def _claim(build: Builder, condition: SSAValue, text: str) -> None:
    op = tile.Assert(operands=[condition], properties={"text": StringAttr(text)})
    build.do(op).attributes[CHECK] = UnitAttr()
