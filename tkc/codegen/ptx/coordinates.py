"""Where this thread is in a tile: a base from lane and warp, computed once in the prologue, plus a
constant of each register.

coords(r, l, w, b) = offsets of r + of l + of w + of b               (layout.py: digits add up without carries)
                     '--- number ---'   '-- base(axis) --'
"""

from __future__ import annotations

from collections.abc import Iterable

from tkc.codegen.ptx.emit import Emitter
from tkc.codegen.ptx.scalars import add, mul
from tkc.codegen.ptx.writer import Operand
from tkc.ir.digits import Digit
from tkc.ir.layout import Layout


def digit(e: Emitter, index: Operand, weight: int, extent: int, last: bool) -> Operand:
    """Digit of an index: index // weight % extent; `last`: nothing above it."""
    w = e.w
    if not isinstance(index, str):
        return index // weight % extent

    def make() -> Operand:
        x = index
        if weight > 1:
            x = (
                w.op("shr.u32", "b32", x, weight.bit_length() - 1)
                if weight & weight - 1 == 0
                else w.op("div.u32", "b32", x, weight)
            )
        if not last:
            x = (
                w.op("and.b32", "b32", x, extent - 1)
                if extent & extent - 1 == 0
                else w.op("rem.u32", "b32", x, extent)
            )
        return x

    return w.hoist(("digit", index, weight, extent, last), make)


def along(e: Emitter, index: Operand, digits: Iterable[Digit], steps: dict[int, int]) -> Operand:
    """Sum over the digits of an index of value * stride * steps[axis]."""
    digits, weight, sum_ = list(digits), 1, 0
    for i, d in enumerate(digits):
        if steps.get(d.axis):
            last = i == len(digits) - 1
            sum_ = add(
                e, sum_, mul(e, digit(e, index, weight, d.extent, last), d.stride * steps[d.axis])
            )
        weight *= d.extent
    return sum_


def thread_offset(e: Emitter, layout: Layout, steps: dict[int, int]) -> Operand:
    """The thread's part of the coordinates of `layout`, weighted: sum over axes of coordinate *
    steps[axis].
    """
    if layout.num_warps != e.instance.warps:
        e.fail(f"the layout {layout} is of {layout.num_warps} warps, but {e.instance.warps} run it")

    def make() -> Operand:
        at = add(
            e, along(e, e.lane(), layout.lanes, steps), along(e, e.warp(), layout.warps, steps)
        )
        return (
            add(e, at, along(e, e.special("%cluster_ctarank"), layout.blocks, steps))
            if layout.blocks
            else at
        )

    return e.w.hoist(
        ("offset", e.instance, layout.lanes, layout.warps, layout.blocks, tuple(steps.items())),
        make,
    )


def base(e: Emitter, layout: Layout, axis: int) -> Operand:
    """The thread's part of one coordinate."""
    return thread_offset(e, layout, {axis: 1})


def number(layout: Layout, register: int, axis: int) -> int:
    """The register's part of one coordinate."""
    return int(layout.offsets("registers")[register, axis])


def coordinate(e: Emitter, layout: Layout, register: int, axis: int) -> Operand:
    return beyond(e, base(e, layout, axis), True, number(layout, register, axis))


def beyond(e: Emitter, origin: Operand, exact: bool, distance: int) -> Operand:
    """origin + distance; noted as such, if it is `exact`: what compares it may compare the distance
    instead.
    """
    found = add(e, origin, distance)
    if exact and isinstance(found, str):
        e.sums[found] = origin, distance
    return found


def inside(e: Emitter, layout: Layout, register: int) -> Operand:
    """Whether a register holds an element of the tile and not padding: True, False or a predicate."""
    known = layout.inside(register)
    if known is not None:
        return known

    def make() -> Operand:
        held: Operand = True
        for axis, (n, padded) in enumerate(zip(layout.shape, layout.padded_shape, strict=False)):
            if n == padded:
                continue
            here = e.w.op(
                "setp.lt.s32",
                "pred",
                e.w.register(base(e, layout, axis)),
                n - number(layout, register, axis),
            )
            held = here if held is True else e.w.op("and.pred", "pred", held, here)
        return held

    return e.w.memo(("inside", e.instance, layout, register), make)


def is_first_copy(e: Emitter, layout: Layout) -> Operand:
    """Whether this thread is the first of those that hold its elements: True or a predicate.
    (Registers may repeat as well.)
    """

    def make() -> Operand:
        copy: Operand = 0
        for index, digits in (
            (e.lane(), layout.lanes),
            (e.warp(), layout.warps),
            *([(e.special("%cluster_ctarank"), layout.blocks)] if layout.blocks else []),
        ):
            weight = 1
            for i, d in enumerate(digits):
                if d.axis < 0:
                    part = digit(e, index, weight, d.extent, i == len(digits) - 1)
                    copy = part if copy == 0 else e.w.op("or.b32", "b32", copy, part)
                weight *= d.extent
        return True if copy == 0 else e.w.op("setp.eq.s32", "pred", copy, 0)

    return e.w.hoist(("first", e.instance, layout.lanes, layout.warps, layout.blocks), make)
