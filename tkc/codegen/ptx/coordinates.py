"""Where this thread is in a tile: a base from lane and warp, computed once in the prologue, plus a
constant of each register.

coords(r, l, w, b) = offsets of r + of l + of w + of b
                     '- number -'   '-- base(axis) --'

Digits add up without carries (layout.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.integers import add, divide, is_power_of_two, mul
from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir.digits import Digit
from tkc.ir.layout import Layout


def digit(e: Emitter, index: Integer, weight: int, extent: int, last: bool) -> Integer:
    """Digit of an index: index // weight % extent; `last`: nothing above it."""
    if not isinstance(index, str):
        return index // weight % extent

    def make() -> Integer:
        x = divide(e, index, weight)
        if last:
            return x
        if is_power_of_two(extent):
            return e.w.op("and.b32", "b32", x, extent - 1)
        return e.w.op("rem.u32", "b32", x, extent)

    return e.w.hoist(("digit", index, weight, extent, last), make)


def along(e: Emitter, index: Integer, digits: Iterable[Digit], steps: dict[int, int]) -> Integer:
    """Sum over the digits of an index of value * stride * steps[axis]."""
    digits, weight = list(digits), 1
    total: Integer = 0
    for i, d in enumerate(digits):
        if steps.get(d.axis):
            value = digit(e, index, weight, d.extent, i == len(digits) - 1)
            total = add(e, total, mul(e, value, d.stride * steps[d.axis]))
        weight *= d.extent
    return total


def check_warps(e: Emitter, layout: Layout) -> None:
    """Raises CompileError for a layout of another number of warps than the instance has."""
    if layout.num_warps != e.instance.warps:
        e.fail(f"the layout {layout} is of {layout.num_warps} warps, but {e.instance.warps} run it")


def thread_offset(e: Emitter, layout: Layout, steps: dict[int, int]) -> Integer:
    """The thread's part of the coordinates of `layout`, weighted: sum over axes of coordinate *
    steps[axis].
    """
    check_warps(e, layout)

    def make() -> Integer:
        in_warp = along(e, e.lane(), layout.lanes, steps)
        at = add(e, in_warp, along(e, e.warp(), layout.warps, steps))
        if not layout.blocks:
            return at
        return add(e, at, along(e, e.special("%cluster_ctarank"), layout.blocks, steps))

    key = "offset", e.instance, layout.lanes, layout.warps, layout.blocks, tuple(steps.items())
    return e.w.hoist(key, make)


def base(e: Emitter, layout: Layout, axis: int) -> Integer:
    """The thread's part of one coordinate."""
    return thread_offset(e, layout, {axis: 1})


def number(layout: Layout, register: int, axis: int) -> int:
    """The register's part of one coordinate."""
    return int(layout.offsets("registers")[register, axis])


def coordinate(e: Emitter, layout: Layout, register: int, axis: int) -> Integer:
    """One coordinate of an element."""
    return beyond(e, base(e, layout, axis), True, number(layout, register, axis))


def beyond(e: Emitter, origin: Integer, exact: bool, distance: int) -> Integer:
    """origin + distance; recorded as such, if it is `exact`: a comparison may then compare the
    distance instead.
    """
    found = add(e, origin, distance)
    if exact and isinstance(found, str):
        e.sums[found] = origin, distance
    return found


def inside(e: Emitter, layout: Layout, register: int) -> Operand:
    """Whether a register holds an element, not padding: True, False or a predicate."""
    known = layout.inside(register)
    if known is not None:
        return known

    def make() -> Operand:
        held: Operand = True
        for axis, (n, padded) in enumerate(zip(layout.shape, layout.padded_shape, strict=True)):
            if n == padded:
                continue
            at = e.w.register(base(e, layout, axis))
            here = e.w.op("setp.lt.s32", "pred", at, n - number(layout, register, axis))
            held = here if held is True else e.w.op("and.pred", "pred", held, here)
        return held

    return e.w.memo(("inside", e.instance, layout, register), make)


def is_first_copy(e: Emitter, layout: Layout) -> Operand:
    """Whether this thread is the first of those that hold its elements: True or a predicate.
    (Registers may repeat as well.)
    """

    def copy_digits() -> Iterator[Integer]:
        indices = [(e.lane(), layout.lanes), (e.warp(), layout.warps)]
        if layout.blocks:
            indices.append((e.special("%cluster_ctarank"), layout.blocks))
        for index, digits in indices:
            weight = 1
            for i, d in enumerate(digits):
                if d.axis < 0:
                    yield digit(e, index, weight, d.extent, i == len(digits) - 1)
                weight *= d.extent

    def make() -> Operand:
        copy: Integer = 0
        for part in copy_digits():
            copy = part if copy == 0 else e.w.op("or.b32", "b32", copy, part)
        return True if copy == 0 else e.w.op("setp.eq.s32", "pred", copy, 0)

    return e.w.hoist(("first", e.instance, layout.lanes, layout.warps, layout.blocks), make)
