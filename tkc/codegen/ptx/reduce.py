"""Reductions and scans: a tree over the registers of a thread, then butterflies over its lanes.

Warps do not meet here: a reduction over warps is a reduce_partial, a trip through shared memory and
a tile.reduce (swizzle-shared
makes them).  Padding takes the neutral element.

A `combine` region need not commute, so its registers and lanes are folded in the order of the axis:
digit by digit of the layout, from the smallest stride to the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Attribute, Region

from tkc.codegen.ptx.conversions import normal
from tkc.codegen.ptx.coordinates import coordinate, inside
from tkc.codegen.ptx.elementwise import function, select
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.values import Tile, compute_class, compute_type
from tkc.codegen.ptx.writer import Operand
from tkc.ir import shared, threads, tile
from tkc.ir.layout import WARP, Layout, register_map
from tkc.ir.reductions import FUNCTION, neutral
from tkc.ir.types import TileType, is_bool, is_float

Values = tuple[Operand, ...]


def shuffle(e: Emitter, x: Operand, mask: Operand, kind: str, how: str = "bfly") -> Operand:
    """The value of the lane whose number differs by `mask` (how "idx": of lane number `mask`)."""
    if not isinstance(x, str):
        return x
    w = e.w
    if kind == "pred":
        return w.op(
            "setp.ne.b32", "pred", shuffle(e, w.op("selp.b32", "b32", 1, 0, x), mask, "b32", how), 0
        )
    if kind == "b64":
        low, high = w.many("b32", 2)
        w.emit(f"mov.b64 {{{low}, {high}}}, {x}")
        into = w.new("b64")
        w.emit(
            f"mov.b64 {into}, {{{shuffle(e, low, mask, 'b32', how)},"
            f" {shuffle(e, high, mask, 'b32', how)}}}"
        )
        return into
    return w.op(f"shfl.sync.{how}.b32", "b32", x, mask, 31, -1)


def lanes_along(e: Emitter, layout: Layout, axis: int) -> list[tuple[int, int]]:
    """(lane mask, stride along the axis) of each bit of the lanes that lie along the axis, smallest
    stride first.
    """
    found, weight = [], 1
    for d in layout.lanes:
        if d.axis == axis:
            if d.extent & d.extent - 1 or weight & weight - 1:
                e.fail(
                    f"a reduction over {d.extent} lanes needs a power of two: choose another layout"
                )
            found += [(weight << b, d.stride << b) for b in range(d.extent.bit_length() - 1)]
        weight *= d.extent
    return sorted(found, key=lambda pair: pair[1])


class Folder:
    """How two partial results (tuples of operands) become one."""

    def __init__(
        self, e: Emitter, kind: str, elements: Sequence[Attribute], region: Region | None = None
    ):
        self.e, self.kind, self.region, self.elements = (
            e,
            kind,
            region,
            (*elements, i32) if region else tuple(elements),
        )
        self.classes = tuple(map(compute_class, self.elements))

    def __call__(self, a: Values, b: Values) -> Values:
        """a comes before b along the axis."""
        if self.kind == "combine":
            return self._region(a, b)
        if self.kind.startswith("arg"):
            return self._first_of(a, b)
        return (function(self.e, FUNCTION[self.kind], self.elements[0], (a[0], b[0])),)

    def _region(self, a: Values, b: Values) -> Values:
        """The last of a tuple, 0 or 1, says whether there is an element at all, or padding: a
        region has no neutral element.
        """
        e, block, (*a, here), (*b, there) = self.e, self.region.block, a, b
        if here == 0 or there == 0:
            return (*a, here) if there == 0 else (*b, there)
        with e.w.scope():
            for name, x in zip(block.args, (*a, *b), strict=True):
                e.values[name] = x
            e.block(block)
            found = [e.operand(v) for v in block.last_op.operands]
        for real, instead in ((there, a), (here, b)):
            if isinstance(real, str):
                real = e.w.op("setp.ne.b32", "pred", real, 0)
                found = [
                    select(e, t, real, x, y)
                    for t, x, y in zip(self.elements, found, instead, strict=False)
                ]
        return (*found, 1 if 1 in (here, there) else e.w.op("or.b32", "b32", here, there))

    def _wins(self, a: Operand, b: Operand) -> Operand:
        """b beats a: it is larger (smaller), or the first NaN."""
        e, t, sign = self.e, self.elements[0], "gt" if self.kind == "argmax" else "lt"
        a, b = (e.w.register(x, self.classes[0]) for x in (a, b))
        if not is_float(t):
            return function(e, sign, t, (b, a))
        kind = compute_type(t)
        return e.w.op(
            f"setp.{sign}u.and.{kind}",
            "pred",
            b,
            a,
            e.w.op(f"setp.num.{kind}", "pred", a, a),
            type=kind,
        )

    def _first_of(self, a: Values, b: Values) -> Values:
        e = self.e
        take = self._wins(a[0], b[0])
        if len(a) > 2 or len(b) > 2:  # across lanes: of equals the smaller index
            a, b = a[:2], b[:2]
            tie = e.w.op("setp.lt.s32", "pred", e.w.register(b[1]), a[1])
            tie = e.w.op(
                "and.pred", "pred", tie, e.w.op("not.pred", "pred", self._wins(b[0], a[0]))
            )
            take = e.w.op("or.pred", "pred", e.w.register(take, "pred"), tie)
        return select(e, self.elements[0], take, b[0], a[0]), select(e, i32, take, b[1], a[1])

    def nothing(self, like: Values) -> Values:
        """What changes no bit of what follows it: of sums −0, for 0 + −0 is 0; of a combine what
        does not count.
        """
        if self.kind == "combine":
            return (*like[:-1], 0)
        return (neutral(self.kind, self.elements[0]),)

    # ---- over registers and lanes
    # -------------------------------------------------------------------------------
    def tree(self, items: list[Values]) -> Values:
        while len(items) > 1:
            items = [
                self(*items[i : i + 2]) if i + 1 < len(items) else items[i]
                for i in range(0, len(items), 2)
            ]
        return items[0]

    def asked(self, x: Values) -> Values:
        """Truth values of all lanes, by a vote: there is any unless all are not."""
        if not isinstance(x[0], str):
            return x
        turned = (
            (lambda v: self.e.w.op("not.pred", "pred", v)) if self.kind == "any" else lambda v: v
        )
        return (turned(self.e.w.op("vote.sync.all.pred", "pred", turned(x[0]), -1, type="b32")),)

    def across(self, x: Values, mask: int) -> Values:
        """With the lane on the other side of `mask`; for a region, the lane with the bit comes
        second.
        """
        e = self.e
        other = tuple(shuffle(e, v, mask, c) for v, c in zip(x, self.classes, strict=False))
        if self.kind.startswith("arg"):
            return self((*x, None), (*other, None))
        if self.kind != "combine":
            return self(x, other)
        second = e.w.hoist(
            ("bit", mask),
            lambda: e.w.op("setp.ne.b32", "pred", e.w.op("and.b32", "b32", e.lane(), mask), 0),
            root=True,
        )

        def pick(yes, no):
            return tuple(
                select(e, t, second, a, b) for t, a, b in zip(self.elements, yes, no, strict=False)
            )

        return self(pick(other, x), pick(x, other))


def lines(layout: Layout, axis: int) -> list[list[int]]:
    """The registers of each line along the axis, each coordinate once (registers may hold copies)."""
    return [list(group) for group in layout.register_groups(axis)]


def in_warp(
    e: Emitter, folder: Folder, layout: Layout, axis: int, item: Callable[[int], Values]
) -> list[Values]:
    """Each line along the axis folded over registers and lanes: one value for each register of
    `layout.drop(axis)`.
    """
    lanes = lanes_along(e, layout, axis)
    answers = []
    for group in lines(layout, axis):
        if folder.kind == "combine":
            x = _ordered(
                folder,
                layout,
                axis,
                lanes,
                [(int(layout.offsets("registers")[r, axis]), item(r)) for r in group],
            )
        else:
            x = folder.tree([item(r) for r in group])
            if (
                folder.kind in ("any", "all")
                and is_bool(folder.elements[0])
                and sum(mask for mask, _ in lanes) == WARP - 1
            ):
                x = folder.asked(x)
            else:
                for mask, _ in lanes:
                    x = folder.across(x, mask)
        answers.append(x)
    return answers


def _ordered(
    folder: Folder,
    layout: Layout,
    axis: int,
    lanes: list[tuple[int, int]],
    items: list[tuple[int, Values]],
) -> Values:
    """Folds registers up to the stride of the next lane bit, then that bit, and so on."""
    at = 0
    for mask, stride in [*lanes, (0, layout.padded_shape[axis] + 1)]:
        if at < stride:
            items = [
                (where, _chain(folder, [x for _, x in part]))
                for where, part in groupby(items, key=lambda pair: pair[0] // stride)
            ]
            items = [(w * stride, x) for w, x in items]
        if mask:
            items = [(where, folder.across(x, mask)) for where, x in items]
            at = stride
    return items[0][1]


def _chain(folder: Folder, items: list[Values]) -> Values:
    x = items[0]
    for y in items[1:]:
        x = folder(x, y)
    return x


def reduced_items(
    e: Emitter, args: Sequence[Tile], axis: int, kind: str
) -> Callable[[int], Values]:
    """The elements of register r, or the neutral element where it is padding; argmax and argmin
    carry their index, a combine whether it is real.
    """
    layout = args[0].layout

    def item(r: int) -> Values:
        found = [e.element(a, r) for a in args]
        held = inside(e, layout, r) if layout.padded_shape[axis] != layout.shape[axis] else True
        if held is not True:
            if kind == "combine":
                return (
                    *found,
                    (
                        int(held)
                        if not isinstance(held, str)
                        else e.w.op("selp.b32", "b32", 1, 0, held)
                    ),
                )
            found = [select(e, args[0].element, held, found[0], neutral(kind, args[0].element))]
        if kind == "combine":
            return (*found, 1)
        return (*found, coordinate(e, layout, r, axis)) if kind.startswith("arg") else tuple(found)

    return item


@emitter(tile.Reduce)
def reduce(e: Emitter, op: tile.Reduce) -> None:
    kind, axis, args = op.kind.data, op.axis.value.data, [e.tile(a) for a in op.args]
    layout = args[0].layout
    if layout.warps_along(axis) * layout.blocks_along(axis) > 1:
        e.fail("a reduction over warps has to go through shared memory: swizzle-shared makes it so")
    elements = [a.element for a in args]
    folder = Folder(e, kind, elements + [i32] * kind.startswith("arg"), op.combine)
    answers = in_warp(e, folder, layout, axis, reduced_items(e, args, axis, kind))
    for position, result in enumerate(op.results):
        which = 1 if kind.startswith("arg") else position
        deliver(e, result, layout.drop(axis), [x[which] for x in answers])


def deliver(e: Emitter, result, layout: Layout, values: list[Operand]) -> None:
    """The values of the registers of `layout` as a result in its own layout (the same threads)."""
    t = result.type
    if not isinstance(t, TileType):
        return e.set(result, normal(e, values[0], t))
    chosen_from = register_map(layout, t.register_layout)
    if chosen_from is None:
        e.fail(
            f"a reduction leaves its result as {layout}, but it is wanted as {t.register_layout}:"
            " convert it"
        )
    e.set(result, e.build(t, [values[i] for i in chosen_from]))


@emitter(shared.ReducePartial)
def reduce_partial(e: Emitter, op: shared.ReducePartial) -> None:
    kind, axis, arg, t = op.kind.data, op.axis.value.data, e.tile(op.arg), op.result.type
    layout, wanted = arg.layout, t.register_layout
    answers = in_warp(
        e, Folder(e, kind, [arg.element]), layout, axis, reduced_items(e, [arg], axis, kind)
    )
    place = {
        tuple(at): i
        for i, at in reversed(list(enumerate(layout.drop(axis).offsets("registers").tolist())))
    }

    def without(at):
        return tuple(x for a, x in enumerate(at) if a != axis)

    e.set(
        op.result,
        e.build(t, [answers[place[without(at)]][0] for at in wanted.offsets("registers").tolist()]),
    )


@emitter(threads.Vote)
def vote(e: Emitter, op: threads.Vote) -> None:
    """By the lanes of each warp, or at a barrier by all threads of the block."""
    if op.scope is None or op.scope.data == "block" and e.instance.first != 0:
        e.fail("a vote of the warps of a role is a reduction: swizzle-shared makes it one")
    arg, w = e.tile(op.arg), e.w
    held = [inside(e, arg.layout, r) for r in range(arg.count)]
    found = [
        select(e, i1, h, e.element(arg, r), True) if isinstance(h, str) else e.element(arg, r)
        for r, h in enumerate(held)
        if h is not False
    ]
    all_ = Folder(e, "all", [i1]).tree([(x,) for x in dict.fromkeys(found)])[0]
    if not isinstance(all_, str):
        e.set(op.result, all_)
    elif op.scope.data == "warp" or e.instance.warps == 1:
        e.set(op.result, w.op("vote.sync.all.pred", "pred", all_, -1, type="b32"))
    else:
        e.set(op.result, w.op("bar.red.and.pred", "pred", e.instance.barrier, all_, type="b32"))


# ---- scans
# --------------------------------------------------------------------------------------------------
@emitter(tile.Scan, shared.ScanTotal)
def scan(e: Emitter, op: tile.Scan | shared.ScanTotal) -> None:
    """Inclusive prefixes. Each thread adds up what it holds in one piece; lanes exchange totals
    alone; what came before is added to each element once.
    """
    whole = isinstance(op, shared.ScanTotal)
    sources = [op.arg] if whole else op.args
    kind, axis, args, back = (
        op.kind.data,
        op.axis.value.data,
        [e.tile(a) for a in sources],
        op.reverse is not None,
    )
    layout = args[0].layout
    if layout.warps_along(axis) > 1:
        e.fail("a scan over warps has to go through shared memory: swizzle-shared makes it so")
    folder = Folder(e, kind, [a.element for a in args], None if whole else op.combine)
    at = layout.offsets("registers")
    item = reduced_items(e, args, axis, kind)
    walk = Walk(e, folder, {r: item(r) for r in range(layout.num_registers)}, at[:, axis], back)
    steps = stretches(lanes_along(e, layout, axis), layout.padded_shape[axis])
    totals = [
        walk.line(sorted(group, key=lambda r: int(at[r, axis]), reverse=back), steps)
        for group in lines(layout, axis)
    ]
    first = {tuple(place): r for r, place in reversed(list(enumerate(at.tolist())))}
    for position, result in enumerate([op.result] if whole else op.results):
        e.set(
            result,
            e.build(
                result.type, [walk.prefix[first[tuple(place)]][position] for place in at.tolist()]
            ),
        )
    if whole:
        deliver(e, op.total, layout.drop(axis), [x[0] for x in totals])


def stretches(lanes: list[tuple[int, int]], extent: int) -> list[tuple[tuple[int, ...], int, int]]:
    """An axis from the inside out: (masks of the lanes that count, or () for registers; the length
    of a stretch that is one of these; of all of them).
    """
    found, done = [], 1
    for mask, stride in lanes:
        if stride > done:
            found.append(((), done, stride))
        if found and found[-1][0]:
            found[-1] = (*found[-1][0], mask), found[-1][1], 2 * stride
        else:
            found.append(((mask,), stride, 2 * stride))
        done = 2 * stride
    return [*found, ((), done, extent)] if extent > done else found


@dataclass
class Walk:
    """The steps of a scan: up the stretches of the axis, whose totals are scanned, and down again
    with what comes before each.
    """

    e: Emitter
    folder: Folder
    prefix: dict[int, Values]
    at: np.ndarray
    back: bool

    def line(self, order: list[int], steps: list[tuple[tuple[int, ...], int, int]]) -> Values:
        """Prefixes of the registers of a line; its total, in every lane."""
        total, carry = self.up(order, steps)
        carry(None)
        return total

    def up(self, order: list[int], steps) -> tuple[Values, Callable[[Values | None], None]]:
        """The total of a stretch, and what puts that before it which comes before."""
        if not steps or len(steps) == 1 and not steps[0][0]:
            return self.serial(order)
        *inner, (masks, low, _) = steps
        if masks:
            total, carry = self.up(order, inner)
            before, total = self.lanes(total, masks)
            return total, lambda outer: carry(self.join(outer, before))
        total, parts = None, []
        for _, part in groupby(order, key=lambda r: int(self.at[r]) // low):
            own, carry = self.up(list(part), inner)
            parts.append((carry, total))
            total = self.join(total, own)

        def down(outer: Values | None) -> None:
            for carry, before in parts:
                carry(self.join(outer, before))

        return total, down

    def serial(self, order: list[int]) -> tuple[Values, Callable[[Values | None], None]]:
        total = None
        for r in order:
            total = self.prefix[r] = self.join(total, self.prefix[r])

        def down(outer: Values | None) -> None:
            for r in order:
                self.prefix[r] = self.join(outer, self.prefix[r])

        return total, down

    def join(self, a: Values | None, b: Values | None) -> Values | None:
        return b if a is None else a if b is None else self.folder(a, b)

    def lanes(self, total: Values, masks: tuple[int, ...]) -> tuple[Values, Values]:
        """Of totals of lanes: what the lanes before come to, and all of them. By doubling: both
        halves know their own, and the other's.
        """
        e, w, folder = self.e, self.e.w, self.folder
        before = folder.nothing(total)
        for mask in masks:
            bit = w.hoist(
                ("bit", mask),
                lambda: w.op("setp.ne.b32", "pred", w.op("and.b32", "b32", e.lane(), mask), 0),
                root=True,
            )
            later = (
                w.memo(("no bit", mask), lambda: w.op("not.pred", "pred", bit))
                if self.back
                else bit
            )
            other = tuple(
                shuffle(e, v, mask, c) for v, c in zip(total, folder.classes, strict=False)
            )

            def choose(yes, no):
                return tuple(
                    select(e, t, later, a, b)
                    for t, a, b in zip(folder.elements, yes, no, strict=False)
                )

            before = choose(other if mask == masks[0] else folder(other, before), before)
            total = (
                folder(choose(other, total), choose(total, other))
                if folder.kind == "combine"
                else folder(total, other)
            )
        return before, total
