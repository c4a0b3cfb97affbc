"""tile.take: of a line's registers one by the bits of the place, of its lanes one by a shuffle.

    columns 0 1 2 3 of a row in registers     ->     a = place & 1 ? 1 : 0     place & 2 ? b : a
                                                     b = place & 1 ? 3 : 2

All registers but one take a choice each, where a sum of what a comparison leaves takes a
comparison, a choice and an addition for each.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Attribute

from tkc.codegen.ptx.elementwise import function, select
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.integers import add
from tkc.codegen.ptx.reduce import deliver, lines, moved_bits, shuffle
from tkc.codegen.ptx.values import compute_class
from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir import threads
from tkc.ir.gathers import bits_along
from tkc.ir.layout import WARP, Layout
from tkc.ir.types import is_float


@emitter(threads.Take)
def take(e: Emitter, op: threads.Take) -> None:
    """Each line's element; zero where the number is that of no place."""
    value, axis = e.tile(op.arg), op.axis.value.data
    layout, t = value.layout, value.element
    place = add(e, e.integer(op.number), -op.first.value.data)
    lane, is_there = _lane(e, layout, axis, place), _is_there(e, op, place)
    parts = layout.offsets("registers")[:, axis].tolist()
    zero, found = 0.0 if is_float(t) else 0, []
    for line in lines(layout, axis):
        x = _chosen(e, t, {parts[r]: e.element(value, r) for r in line}, layout, axis, place)
        if lane is not None:
            x = shuffle(e, x, lane, compute_class(t), "idx")
        if is_float(t) and layout.shape[axis] > 1:
            x = function(e, "add", t, (x, zero))  # -0 and zeros are 0
        found.append(select(e, t, is_there, x, zero))
    deliver(e, op.result, layout.drop(axis), found)


def _lane(e: Emitter, layout: Layout, axis: int, place: Integer) -> Integer | None:
    """The lane that has a place: this one's bits but for those along the axis, if any lie there."""
    bits = bits_along(layout, axis, "lanes")
    if not bits:
        return None
    own = WARP - 1 - sum(weight for _, weight in bits)
    lane: Integer = e.w.op("and.b32", "b32", e.lane(), own) if own else 0
    return add(e, lane, moved_bits(e, place, bits))


def _is_there(e: Emitter, op: threads.Take, place: Integer) -> Operand:
    """Whether there is such a place."""
    first, extent = op.first.value.data, e.tile(op.arg).layout.shape[op.axis.value.data]
    if not isinstance(place, str):
        return 0 <= place < extent
    known = e.ranges.of(op.number)
    if known is not None and first <= known.lo and known.hi < first + extent:
        return True
    return e.w.op("setp.lt.u32", "pred", place, extent)


def _chosen(
    e: Emitter,
    t: Attribute,
    elements: Mapping[int, Operand],
    layout: Layout,
    axis: int,
    place: Integer,
) -> Operand:
    """Of elements, by what their registers add along the axis, that of a place."""
    left = dict(elements)
    for bit, _ in bits_along(layout, axis, "registers") or ():
        low, high = ({p & ~bit: x for p, x in left.items() if bool(p & bit) == up} for up in (0, 1))
        has = _has_bit(e, place, bit)
        left = {
            p: select(e, t, has, high[p], low[p]) if p in low and p in high else (low | high)[p]
            for p in low | high
        }
    (x,) = left.values()
    return x


def _has_bit(e: Emitter, place: Integer, bit: int) -> Operand:
    if not isinstance(place, str):
        return bool(place & bit)

    def make() -> str:
        return e.w.op("setp.ne.b32", "pred", e.w.op("and.b32", "b32", place, bit), 0)

    return e.w.memo(("has bit", place, bit), make)
