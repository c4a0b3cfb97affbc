"""TKC_DEBUG=1 on the CPU: an assertion before each access through pointers, that it stays inside
its array argument and is aligned, and one for each promise.

    %a = tile.bitcast %pointers                                             addresses, as integers
    tile.assert "reads 4 bytes outside of argument x" %inside               where they are not masked: from the array's first byte to its last
    %v = tile.load_pointers %pointers …

What follows an assertion that does not hold is not executed. (On a GPU: tkc.codegen.ptx.traps.)
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, UnitAttr, i64
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.codegen.cpu import numbers
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.origin import origin
from tkc.ir.rewrite import Builder
from tkc.ir.types import PointerType, TileType, element_of, is_integer, like

CHECK = "check"  # of an assertion that is ours
VERBS = {tile.LoadPointers: "reads", tile.StorePointers: "writes", tile.Atomic: "updates"}


def check(kernel: tile.Kernel) -> None:
    """Adds the assertions, in place."""
    spans: dict[BlockArgument, tuple[SSAValue, SSAValue]] = {}
    for op in list(kernel.walk()):
        if type(op) in VERBS:
            access(Builder(op), op, spans, kernel)
        elif isinstance(op, tile.Assume):
            claim(Builder(op), op.condition, "a promise (tkc.assume) does not hold")
        elif isinstance(op, tile.Multiple) and is_integer(element_of(op.arg.type)):
            build = Builder(op)
            claim(
                build,
                build.eq(
                    build.mod(
                        op.arg,
                        spread(
                            build,
                            build.number(op.divisor.value.data, element_of(op.arg.type)),
                            op.arg,
                        ),
                    ),
                    spread(build, build.number(0, element_of(op.arg.type)), op.arg),
                ),
                f"a number is promised to be a multiple of {op.divisor.value.data}, and is not",
            )


def access(build: Builder, op: Operation, spans: dict, kernel: tile.Kernel) -> None:
    """Of one operation: where its addresses lie."""
    t = element_of(op.pointers.type)
    size, address = (
        numbers.size(t.element if isinstance(t, PointerType) else t),
        build(ew.Bitcast(op.pointers, like(op.pointers.type, i64))),
    )
    live = None if op.mask is None else build(ew.CLASSES["not"](op.mask))

    def holds(condition):
        return condition if live is None else build.or_(condition, live)

    if size > 1:
        claim(
            build,
            holds(
                build.eq(
                    build.and_(address, spread(build, build.number(size - 1, i64), address)),
                    spread(build, build.number(0, i64), address),
                )
            ),
            f"{VERBS[type(op)]} {size} bytes at an address that is no multiple of {size}",
        )
    if (array := origin(op.pointers)) is None:
        return
    if array not in spans:
        spans[array] = span(Builder(kernel.body.block.first_op), array)
    low, high = (spread(build, x, address) for x in spans[array])
    inside = build.and_(
        build.ge(address, low),
        build.le(build.add(address, spread(build, build.number(size, i64), address)), high),
    )
    claim(
        build,
        holds(inside),
        f"{VERBS[type(op)]} {size} bytes outside of argument {array.name_hint or array.index}",
    )


def span(build: Builder, array: BlockArgument) -> tuple[SSAValue, SSAValue]:
    """First byte and end of an array argument."""
    low = high = build(ew.Bitcast(build(tile.Pointer(array)), i64))
    size, empty = numbers.size(array.type.element), None
    for axis in range(array.type.rank):
        extent = build(tile.Dim(array, axis, i64))
        reach = build.mul(build.mul(build.sub(extent, 1), build(tile.Stride(array, axis))), size)
        low, high = build.add(low, build.min(reach, 0)), build.add(high, build.max(reach, 0))
        none = build.eq(extent, 0)
        empty = none if empty is None else build.or_(empty, none)
    high = build.add(high, size)
    return low, high if empty is None else build.select(empty, low, high)


def spread(build: Builder, x: SSAValue, shape: SSAValue) -> SSAValue:
    """A scalar in the shape of a value."""
    return build(tile.Splat(x, like(shape.type, x.type))) if isinstance(shape.type, TileType) else x


def claim(build: Builder, condition: SSAValue, text: str) -> None:
    build.do(tile.Assert(operands=[condition], properties={"text": StringAttr(text)})).attributes[
        CHECK
    ] = UnitAttr()
