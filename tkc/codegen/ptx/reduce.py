"""Reductions and scans: a tree over the registers of a thread, then butterflies over its lanes; or
one instruction (`redux.sync`), where a whole warp reduces integers of 32 bits, or floats of which
the order alone counts: their bits are integers of that order.

Where lanes need not all have the result they deal it out: each step halves what they exchange.

Warps do not meet here: a reduction over warps is a reduce_partial, a trip through shared memory and
a tile.reduce (swizzle-shared makes them), a scan a scan_total, the same trip and a scan_carry.
Padding takes the neutral element.

A `combine` region need not commute, so its registers and lanes are folded in the order of the axis:
digit by digit of the layout, from the smallest stride to the largest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Attribute, Region, SSAValue

from tkc.codegen.ptx.access import bool_bits, both
from tkc.codegen.ptx.conversions import normal
from tkc.codegen.ptx.coordinates import base, coordinate, inside
from tkc.codegen.ptx.elementwise import function, select
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.integers import add, is_power_of_two
from tkc.codegen.ptx.values import Tile, compute_class, compute_type, layout_of
from tkc.codegen.ptx.writer import Integer, Operand, braced
from tkc.ir import shared, threads, tile
from tkc.ir.digits import bits_of
from tkc.ir.layout import WARP, Layout, register_map
from tkc.ir.reductions import (
    FUNCTION,
    IDEMPOTENT,
    WARP_INSTRUCTION,
    neutral,
    reduces_at_once,
)
from tkc.ir.types import TileType, is_bool, is_float
from tkc.ir.values import holds, tile_type, yielded_by

Values = tuple[Operand, ...]
XOR_OF_AND = 0x78  # of lop3: a ^ (b & c)
LaneBit = tuple[int, int]  # lane mask, stride along the axis
Stretch = tuple[tuple[int, ...], int, int]


def shuffle(e: Emitter, x: Operand, mask: Operand, kind: str, how: str = "bfly") -> Operand:
    """The value of the lane whose number differs by `mask` (how "idx": of lane number `mask`)."""
    if not isinstance(x, str):
        return x
    w = e.w
    if kind == "pred":
        bit = shuffle(e, w.op("selp.b32", "b32", 1, 0, x), mask, "b32", how)
        return w.op("setp.ne.b32", "pred", bit, 0)
    if kind == "b64":
        halves = w.many("b32", 2)
        w.emit(f"mov.b64 {braced(halves)}, {x}")
        into = w.new("b64")
        found = [w.register(shuffle(e, half, mask, "b32", how)) for half in halves]
        w.emit(f"mov.b64 {into}, {braced(found)}")
        return into
    return w.op(f"shfl.sync.{how}.b32", "b32", x, mask, 31, -1)


def lanes_along(e: Emitter, layout: Layout, axis: int) -> list[LaneBit]:
    """(lane mask, stride along the axis) of each bit of the lanes that lie along the axis, smallest
    stride first. Raises CompileError for a number of lanes that is no power of two.
    """
    found: list[LaneBit] = []
    weight = 1
    for d in layout.lanes:
        if d.axis == axis:
            if not is_power_of_two(d.extent) or not is_power_of_two(weight):
                e.fail(
                    f"a reduction over {d.extent} lanes needs a power of two: choose another layout"
                )
            found += [(weight << b, d.stride << b) for b in range(d.extent.bit_length() - 1)]
        weight *= d.extent
    return sorted(found, key=lambda pair: pair[1])


def copies_of(layout: Layout) -> int:
    """The bits of a lane's number between which lanes hold the same."""
    found, weight = 0, 1
    for d in layout.lanes:
        if d.axis < 0 and is_power_of_two(d.extent) and is_power_of_two(weight):
            found += weight * (d.extent - 1)
        weight *= d.extent
    return found


def moved_bits(e: Emitter, x: Integer, bits: Sequence[tuple[int, int]]) -> Integer:
    """A number of some bits of another: (bit there, bit here), in ascending order there."""
    found: Integer = 0
    pairs = [(there, here.bit_length() - there.bit_length()) for there, here in bits]
    for distance, part in groupby(pairs, key=lambda pair: pair[1]):
        mask = sum(there for there, _ in part)
        found = add(e, found, _shifted(e, x, mask, distance))
    return found


def _shifted(e: Emitter, x: Integer, mask: int, distance: int) -> Integer:
    """Some bits of a number, so many places higher."""
    if not isinstance(x, str):
        return (x & mask) << distance if distance > 0 else (x & mask) >> -distance
    x = e.w.op("and.b32", "b32", x, mask)
    if not distance:
        return x
    return e.w.op("shl.b32" if distance > 0 else "shr.u32", "b32", x, abs(distance))


def _sortable(e: Emitter, x: str) -> str:
    """The bits of a float32 as an integer that orders as it does, and back."""
    sign = e.w.op("shr.s32", "b32", x, 31)
    return e.w.op("lop3.b32", "b32", x, sign, (1 << 31) - 1, XOR_OF_AND)


class Folder:
    """How two partial results (tuples of operands) become one."""

    def __init__(
        self, e: Emitter, kind: str, elements: Sequence[Attribute], region: Region | None = None
    ):
        self.e, self.kind, self.region = e, kind, region
        self.elements = (*elements, i32) if region else tuple(elements)
        self.classes = tuple(map(compute_class, self.elements))

    def __call__(self, a: Values, b: Values, *, wanted: Operand = True) -> Values:
        """a comes before b along the axis. wanted: where the result is used."""
        if self.region is not None:
            return self._region(self.region, a, b, wanted)
        if self.kind.startswith("arg"):
            return self._first_of(a, b)
        return (function(self.e, FUNCTION[self.kind], self.elements[0], (a[0], b[0])),)

    def _region(self, region: Region, first: Values, second: Values, wanted: Operand) -> Values:
        """The last of a tuple, 0 or 1, says whether there is an element at all, or padding: a
        region has no neutral element.
        """
        e, (*a, here), (*b, there) = self.e, first, second
        if here == 0 or there == 0:
            return first if there == 0 else second
        if holds(region, tile.Assert):
            for real in (here, there):
                wanted = both(e, wanted, isinstance(real, int) or self._is_there(real))
        with e.w.scope():
            e.values.update(zip(region.block.args, (*a, *b), strict=True))
            outside, e.counts = e.counts, both(e, e.counts, wanted)
            e.block(region.block)
            e.counts = outside
            found = [e.operand(v) for v in yielded_by(region.block)]
        for real, instead in ((there, a), (here, b)):
            if isinstance(real, str):
                found = self._select(self._is_there(real), found, instead)
        return (*found, 1 if 1 in (here, there) else e.w.op("or.b32", "b32", here, there))

    def _is_there(self, real: Operand) -> Operand:
        return self.e.w.op("setp.ne.b32", "pred", real, 0)

    def _select(
        self, condition: Operand, yes: Sequence[Operand], no: Sequence[Operand]
    ) -> list[Operand]:
        return [
            select(self.e, t, condition, x, y)
            for t, x, y in zip(self.elements, yes, no, strict=False)
        ]

    def pick(self, condition: Operand, yes: Values, no: Values) -> Values:
        """One of two partial results."""
        return tuple(self._select(condition, yes, no))

    def _wins(self, a: Operand, b: Operand) -> Operand:
        """b beats a: it is larger (smaller), or the first NaN."""
        e, t, sign = self.e, self.elements[0], "gt" if self.kind == "argmax" else "lt"
        a, b = (e.w.register(x, self.classes[0]) for x in (a, b))
        if not is_float(t):
            return function(e, sign, t, (b, a))
        kind = compute_type(t)
        is_number = e.w.op(f"setp.num.{kind}", "pred", a, a)
        return e.w.op(f"setp.{sign}u.and.{kind}", "pred", b, a, is_number, type=kind)

    def _first_of(self, a: Values, b: Values, across: bool = False) -> Values:
        """across: of equals the one of the smaller index, not of the first lane."""
        e = self.e
        take = self._wins(a[0], b[0])
        if across:
            tie = e.w.op("setp.lt.s32", "pred", e.w.register(b[1]), a[1])
            loses = e.w.op("not.pred", "pred", self._wins(b[0], a[0]))
            tie = e.w.op("and.pred", "pred", tie, loses)
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
    def tree(self, items: list[Values]) -> Values:
        """All items, by pairs of neighbours."""
        while len(items) > 1:
            items = [
                self(*items[i : i + 2]) if i + 1 < len(items) else items[i]
                for i in range(0, len(items), 2)
            ]
        return items[0]

    def voted(self, x: Values) -> Values:
        """Truth values of all lanes, by a vote: there is any unless all are not."""
        if not isinstance(x[0], str):
            return x
        w = self.e.w
        if self.kind != "any":
            return (w.op("vote.sync.all.pred", "pred", x[0], -1, type="b32"),)
        none = w.op("vote.sync.all.pred", "pred", w.op("not.pred", "pred", x[0]), -1, type="b32")
        return (w.op("not.pred", "pred", none),)

    def shuffled(self, x: Values, mask: int) -> Values:
        """What the lane on the other side of `mask` has."""
        return tuple(shuffle(self.e, v, mask, c) for v, c in zip(x, self.classes, strict=False))

    def of_lane(self, x: Values, lane: Integer) -> Values:
        """What a lane has."""
        return tuple(
            shuffle(self.e, v, lane, c, "idx") for v, c in zip(x, self.classes, strict=False)
        )

    def across(self, x: Values, mask: int) -> Values:
        """With the lane on the other side of `mask`; for a region, the lane with the bit comes
        second.
        """
        other = self.shuffled(x, mask)
        if self.kind.startswith("arg"):
            return self._first_of(x, other, across=True)
        if self.kind != "combine":
            return self(x, other)
        second = self.e.lane_bit(mask)
        return self(self.pick(second, other, x), self.pick(second, x, other))

    def over_lanes(self, x: Values, masks: Sequence[int], copies: int = 0) -> Values:
        """With all lanes whose numbers differ from this one's in some bits. copies: those of the
        others between which lanes hold the same.
        """
        counted = sum(masks) + (copies if self.kind in IDEMPOTENT else 0)
        if counted == WARP - 1 and len(masks) >= self._least_steps() and isinstance(x[0], str):
            return (self._by_instruction(x[0]),)
        for mask in masks:
            x = self.across(x, mask)
        return x

    def _least_steps(self) -> float:
        """How many steps of a shuffle and a function each one instruction of the warp is worth,
        with what makes integers of floats; infinity where there is none.
        """
        if not reduces_at_once(self.kind, self.elements[0]):
            return math.inf
        return 4 if is_float(self.elements[0]) else 2

    def _by_instruction(self, x: str) -> str:
        w, t = self.e.w, self.elements[0]
        if not is_float(t):
            number = "b32" if self.kind == "xor" else compute_type(t)
            return w.op(f"redux.sync.{WARP_INSTRUCTION[self.kind]}.{number}", "b32", x, -1)
        low = self.kind.endswith("min")
        # NaN is beyond all numbers where it wins, and behind them where any number replaces it
        beyond = (1 << 31) - 1 if low == (self.kind[0] == "f") else -(1 << 31)
        is_number = w.op("setp.num.f32", "pred", x, x)
        key = w.op("selp.b32", "b32", _sortable(self.e, x), beyond, is_number)
        found = w.op(f"redux.sync.{'min' if low else 'max'}.s32", "b32", key, -1)
        return _sortable(self.e, found)


def lines(layout: Layout, axis: int) -> list[list[int]]:
    """The registers of each line along the axis, each coordinate once, without copies."""
    return [list(group) for group in layout.register_groups(axis)]


def first_registers(offsets: np.ndarray) -> dict[tuple[int, ...], int]:
    """The first register of each coordinate, of offsets [registers, rank]."""
    return {tuple(at): r for r, at in reversed(list(enumerate(offsets.tolist())))}


def in_warp(
    e: Emitter,
    folder: Folder,
    layout: Layout,
    axis: int,
    item: Callable[[int], Values],
) -> list[Values]:
    """Each line along the axis folded over registers and lanes: one value for each register of
    `layout.drop(axis)`.
    """
    lanes = lanes_along(e, layout, axis)
    copies = copies_of(layout)
    is_truth = folder.kind in ("any", "all") and is_bool(folder.elements[0])
    by_vote = is_truth and sum(mask for mask, _ in lanes) == WARP - 1

    def folded(group: list[int]) -> Values:
        if folder.kind == "combine":
            at = layout.offsets("registers")
            items = [(int(at[r, axis]), item(r)) for r in group]
            return _ordered(folder, layout, axis, lanes, items)
        x = folder.tree([item(r) for r in group])
        if by_vote:
            return folder.voted(x)
        return folder.over_lanes(x, [mask for mask, _ in lanes], copies)

    return [folded(group) for group in lines(layout, axis)]


def _ordered(
    folder: Folder,
    layout: Layout,
    axis: int,
    lanes: list[LaneBit],
    items: list[tuple[int, Values]],
) -> Values:
    """Folds registers up to the stride of the next lane bit, then that bit, and so on."""
    at = 0
    for mask, stride in [*lanes, (0, layout.padded_shape[axis] + 1)]:
        if at < stride:
            items = _folded_by(folder, items, stride)
        if mask:
            items = [(where, folder.across(x, mask)) for where, x in items]
            at = stride
    return items[0][1]


def _folded_by(
    folder: Folder, items: list[tuple[int, Values]], stride: int
) -> list[tuple[int, Values]]:
    """(position, value) of items, those of each stretch of the axis folded into one."""
    groups = groupby(items, key=lambda pair: pair[0] // stride)
    return [(n * stride, functools.reduce(folder, [x for _, x in part])) for n, part in groups]


def reduced_items(
    e: Emitter, args: Sequence[Tile], axis: int, kind: str
) -> Callable[[int], Values]:
    """The elements of register r, or the neutral element where it is padding; argmax and argmin
    carry their index, a combine whether it is real.
    """
    layout = args[0].layout
    padded = layout.padded_shape[axis] != layout.shape[axis]

    def item(r: int) -> Values:
        found = [e.element(a, r) for a in args]
        held = inside(e, layout, r) if padded else True
        if kind == "combine":
            return (*found, bool_bits(e, held))
        if held is not True:
            element = args[0].element
            found = [select(e, element, held, found[0], neutral(kind, element))]
        return (*found, coordinate(e, layout, r, axis)) if kind.startswith("arg") else tuple(found)

    return item


@emitter(tile.Reduce)
def reduce(e: Emitter, op: tile.Reduce) -> None:
    """A reduction whose axis lies in one warp."""
    kind, axis, args = op.kind.data, op.axis.value.data, [e.tile(a) for a in op.args]
    layout = args[0].layout
    if layout.warps_along(axis) * layout.blocks_along(axis) > 1:
        e.fail("a reduction over warps has to go through shared memory: swizzle-shared makes it so")
    finds_index = kind.startswith("arg")
    elements = [*(a.element for a in args), *([i32] if finds_index else [])]
    folder = Folder(e, kind, elements, op.combine)
    answers = in_warp(e, folder, layout, axis, reduced_items(e, args, axis, kind))
    for position, result in enumerate(op.results):
        which = 1 if finds_index else position
        found = [x[which] for x in answers]
        deliver(e, result, layout.drop(axis), found, exact=kind == "combine")


def deliver(
    e: Emitter, result: SSAValue, layout: Layout, values: Sequence[Operand], exact: bool = False
) -> None:
    """The values of the registers of `layout` as a result in its own layout (the same threads).
    exact: they are numbers of their type.
    """
    t = result.type
    if not isinstance(t, TileType):
        return e.set(result, values[0] if exact else normal(e, values[0], t))
    sources = register_map(layout, layout_of(t))
    if sources is None:
        e.fail(
            f"a reduction leaves its result as {layout}, but it is wanted as {layout_of(t)}:"
            " convert it"
        )
    e.set(result, e.build(t, [values[i] for i in sources], exact=exact))


@emitter(shared.ReducePartial)
def reduce_partial(e: Emitter, op: shared.ReducePartial) -> None:
    """The partial result of each warp; of lanes that share it, each may have a part."""
    kind, axis, args = op.kind.data, op.axis.value.data, [e.tile(a) for a in op.args]
    layout, item = args[0].layout, reduced_items(e, args, axis, kind)
    folder = Folder(e, kind, [a.element for a in args], op.combine)
    held = layout_of(tile_type(op.results[0]))
    if op.combine is None and held != layout.per_warp(axis):
        return _deal_out(e, op, folder, item)
    answers = in_warp(e, folder, layout, axis, item)
    for position, result in enumerate(op.results):
        found = [x[position] for x in answers]
        deliver_per_warp(e, result, layout, axis, found, exact=kind == "combine")


def _deal_out(
    e: Emitter, op: shared.ReducePartial, folder: Folder, item: Callable[[int], Values]
) -> None:
    """Lanes on both sides of a bit add up half of their elements each, by one shuffle for two; then
    those on both sides of the next bit half of these. Where none are left to halve, both have all.
    """
    axis, layout = op.axis.value.data, e.tile(op.args[0]).layout
    t = tile_type(op.results[0])
    result = layout_of(t)
    places = layout.drop(axis).offsets("registers").tolist()
    groups = lines(layout, axis)
    held = {
        tuple(at): folder.tree([item(r) for r in group])
        for at, group in zip(places, groups, strict=True)
    }
    pairs = list(enumerate(zip(bits_of(layout.lanes), bits_of(result.lanes), strict=True)))
    for i, (before, after) in pairs:
        if before.axis == axis and after.axis >= 0:
            along = after.axis - (after.axis > axis)
            held = _halved(e, folder, held, (along, after.stride), 1 << i)
    both_have = [1 << i for i, (before, after) in pairs if before.axis == axis and after.axis < 0]
    held = {at: folder.over_lanes(x, both_have) for at, x in held.items()}
    wanted = [(*at[:axis], *at[axis + 1 :]) for at in result.offsets("registers").tolist()]
    e.set(op.results[0], e.build(t, [held[at][0] for at in wanted]))


def _halved(
    e: Emitter,
    folder: Folder,
    held: dict[tuple[int, ...], Values],
    bit: tuple[int, int],
    mask: int,
) -> dict[tuple[int, ...], Values]:
    """Elements by coordinates, without a bit (axis, stride) of these: lanes with `mask` keep those
    that have it, the others those that have not, each with what the other lane has of them.
    """
    (axis, stride), second = bit, e.lane_bit(mask)
    found = {}
    for at, low in held.items():
        if at[axis] // stride % 2:
            continue
        high = held[(*at[:axis], at[axis] + stride, *at[axis + 1 :])]
        kept, sent = folder.pick(second, high, low), folder.pick(second, low, high)
        found[at] = folder(kept, folder.shuffled(sent, mask))
    return found


def deliver_per_warp(
    e: Emitter,
    result: SSAValue,
    layout: Layout,
    axis: int,
    values: Sequence[Operand],
    exact: bool = False,
) -> None:
    """What each warp's part of an axis comes to, of each register of `layout.drop(axis)`."""
    t = tile_type(result)
    place = first_registers(layout.drop(axis).offsets("registers"))
    wanted = layout_of(t).offsets("registers").tolist()
    positions = [place[(*at[:axis], *at[axis + 1 :])] for at in wanted]
    e.set(result, e.build(t, [values[i] for i in positions], exact=exact))


@emitter(threads.Vote)
def vote(e: Emitter, op: threads.Vote) -> None:
    """By the lanes of each warp, or at a barrier by all threads of the block."""
    if op.scope is None or op.scope.data == "block" and e.instance.first != 0:
        e.fail("a vote of the warps of a role is a reduction: swizzle-shared makes it one")
    arg, w = e.tile(op.arg), e.w
    held = [inside(e, arg.layout, r) for r in range(arg.count)]
    found = dict.fromkeys(
        select(e, i1, h, e.element(arg, r), True) for r, h in enumerate(held) if h is not False
    )
    (all_,) = Folder(e, "all", [i1]).tree([(x,) for x in found])
    if not isinstance(all_, str):
        e.set(op.result, all_)
    elif op.scope.data == "warp" or e.instance.warps == 1:
        e.set(op.result, w.op("vote.sync.all.pred", "pred", all_, -1, type="b32"))
    else:
        e.set(op.result, w.op("bar.red.and.pred", "pred", e.instance.barrier, all_, type="b32"))


# ---- scans
@emitter(tile.Scan)
def scan(e: Emitter, op: tile.Scan) -> None:
    """Inclusive prefixes of an axis that lies in one warp."""
    if e.tile(op.args[0]).layout.warps_along(op.axis.value.data) > 1:
        e.fail("a scan over warps has to go through shared memory: swizzle-shared makes it so")
    walk = Walk.of(e, op)
    for line in walk.lines:
        walk.line(line)
    walk.deliver(op.results)


@emitter(shared.ScanTotal)
def scan_total(e: Emitter, op: shared.ScanTotal) -> None:
    """What each warp's run of each line comes to. The last step is left to the operation that knows
    what comes before the run: each element then meets all that once.
    """
    walk = Walk.of(e, op)
    found = [walk.line(line) for line in walk.lines]
    for position, total in enumerate(op.totals):
        values = [x[position] for x in found]
        exact = walk.folder.kind == "combine"
        deliver_per_warp(e, total, walk.layout, op.axis.value.data, values, exact)
    walk.keep()
    e.scans[op.prefixes[0]] = walk


@emitter(shared.ScanCarry)
def scan_carry(e: Emitter, op: shared.ScanCarry) -> None:
    """Prefixes of each warp's run, behind the runs before it."""
    walk = e.scans[op.prefixes[0]]
    for waiting, outer in zip(walk.waiting, runs_before(e, op, walk), strict=True):
        for order, before in waiting:
            walk.carry(order, outer if before is None else walk.join(outer, before))
    walk.deliver(op.results)


def runs_before(e: Emitter, op: shared.ScanCarry, walk: Walk) -> list[Values | None]:
    """What the runs before this warp's come to, of each line."""
    axis, layout, folder = op.axis.value.data, walk.layout, walk.folder
    totals = [e.tile(t) for t in op.totals]
    there, number = totals[0].layout, base(e, layout.per_warp(axis), axis)
    real = -(-layout.shape[axis] * layout.warps_along(axis) // layout.padded_shape[axis])
    runs = list(range(real))  # that hold more than padding; none comes after the last
    runs = runs[:0:-1] if walk.back else runs[:-1]

    @functools.cache  # of all lines
    def is_earlier(run: Integer) -> Operand:
        """Whether a run comes before this warp's."""
        if not walk.back:
            return e.w.op("setp.gt.s32", "pred", e.w.register(number), run)
        earlier = e.w.op("setp.lt.s32", "pred", e.w.register(number), run)
        if isinstance(run, int):
            return earlier
        return both(e, earlier, e.w.op("setp.lt.s32", "pred", run, real))

    def counted(r: int, run: Integer) -> Values:
        """A run's total, if it comes before; else what changes nothing."""
        values = tuple(e.element(t, r) for t in totals)
        if folder.kind == "combine":
            return (*values, bool_bits(e, is_earlier(run)))
        return folder.pick(is_earlier(run), values, folder.nothing(values))

    def in_turn(line: Sequence[int]) -> Values:
        """Of a line's registers, by a function without a neutral element."""
        first, *others = ((*(e.element(t, line[i]) for t in totals), 1) for i in runs)
        found: Values = first
        for i, x in zip(runs[1:], others, strict=True):
            earlier = is_earlier(i)
            found = folder.pick(earlier, folder(found, x, wanted=earlier), found)
        return (*found[:-1], bool_bits(e, is_earlier(runs[0])))

    found: Sequence[Values | None]
    if not runs:
        found = [None] * len(lines(there, axis))
    elif lanes_along(e, there, axis):

        def item(r: int) -> Values:
            return counted(r, coordinate(e, there, r, axis))

        found = in_warp(e, folder, there, axis, item)
    elif folder.kind == "combine":
        found = [in_turn(line) for line in lines(there, axis)]
    else:
        found = [folder.tree([counted(line[i], i) for i in runs]) for line in lines(there, axis)]
    place = first_registers(there.drop(axis).offsets("registers"))
    return [found[place[tuple(at)]] for at in layout.drop(axis).offsets("registers").tolist()]


def stretches(lanes: list[LaneBit], extent: int) -> list[Stretch]:
    """An axis from the inside out: (masks of the lanes that count, or () for registers; the length
    of a stretch that is one of these; of all of them).
    """
    found: list[Stretch] = []
    done = 1
    for mask, stride in lanes:
        if stride > done:
            found.append(((), done, stride))
        if found and found[-1][0]:
            masks, low, _ = found[-1]
            found[-1] = (*masks, mask), low, 2 * stride
        else:
            found.append(((mask,), stride, 2 * stride))
        done = 2 * stride
    return [*found, ((), done, extent)] if extent > done else found


Carry = Callable[[Values | None], None]  # puts what comes before a stretch before its elements


@dataclass
class Walk:
    """The steps of a scan: up the stretches of the axis, whose totals are scanned, and down again
    with what comes before each. Each thread adds up what it holds in one piece; lanes exchange
    totals alone; what came before is added to each element once.
    """

    e: Emitter
    folder: Folder
    layout: Layout
    prefix: dict[int, Values]
    at: np.ndarray
    steps: Sequence[Stretch]
    lines: list[list[int]]  # registers, from the first on
    back: bool
    asked: bool  # whether somebody wants totals, and comes back with what is before the lines
    # of each line, the registers of stretches, and what comes before these within the line
    waiting: list[list[tuple[list[int], Values | None]]]

    @staticmethod
    def of(e: Emitter, op: tile.Scan | shared.ScanTotal) -> Walk:
        """That of an operation, before its first step."""
        axis, back = op.axis.value.data, op.reverse is not None
        args = [e.tile(a) for a in op.args]
        layout = args[0].layout
        item, at = reduced_items(e, args, axis, op.kind.data), layout.offsets("registers")
        prefix = {r: item(r) for r in range(layout.num_registers)}
        ordered = [
            sorted(line, key=lambda r: int(at[r, axis]), reverse=back)
            for line in lines(layout, axis)
        ]
        run = layout.padded_shape[axis] // layout.warps_along(axis)
        steps = stretches(lanes_along(e, layout, axis), run)
        folder = Folder(e, op.kind.data, [a.element for a in args], op.combine)
        asked = isinstance(op, shared.ScanTotal)
        return Walk(e, folder, layout, prefix, at[:, axis], steps, ordered, back, asked, [])

    def line(self, order: list[int]) -> Values:
        """The prefixes of a line; its total, in every lane, if asked for."""
        self.waiting.append([])
        total, carry = self.up(order, self.steps, self.asked)
        carry(None)
        return total

    def keep(self) -> None:
        """Until the last step: registers of other values may change before it."""

        def kept(x: Values) -> Values:
            return tuple(self.e.owned(v) if isinstance(v, str) else v for v in x)

        self.prefix = {r: kept(x) for r, x in self.prefix.items()}
        self.waiting = [
            [(order, kept(before) if before is not None else None) for order, before in line]
            for line in self.waiting
        ]

    def deliver(self, results: Sequence[SSAValue]) -> None:
        """Sets the results of the operation that a scan ends with."""
        offsets = self.layout.offsets("registers")
        first = first_registers(offsets)
        for position, result in enumerate(results):
            found = [self.prefix[first[tuple(place)]][position] for place in offsets.tolist()]
            exact = self.folder.kind == "combine"
            self.e.set(result, self.e.build(tile_type(result), found, exact=exact))

    def up(
        self, order: list[int], steps: Sequence[Stretch], asked: bool = True
    ) -> tuple[Values, Carry]:
        """The total of a stretch, if asked for, and what puts that before it which comes before."""
        if not steps or len(steps) == 1 and not steps[0][0]:
            return self.serial(order)
        *inner, (masks, low, _) = steps
        if masks:
            total, carry = self.up(order, inner)
            before, all_ = self.lanes(total, masks, asked)
            return all_ or (), lambda outer: carry(self.join(outer, before))
        so_far: Values | None = None
        parts: list[tuple[Carry, Values | None]] = []
        for _, part in groupby(order, key=lambda r: int(self.at[r]) // low):
            own, carry = self.up(list(part), inner)
            parts.append((carry, so_far))
            so_far = self.join(so_far, own)

        def down(outer: Values | None) -> None:
            for carry, before in parts:
                carry(self.join(outer, before) if before is not None else outer)

        return so_far or (), down

    def serial(self, order: list[int]) -> tuple[Values, Carry]:
        """Of one thread's registers alone. Where more comes before the line, a function that takes
        long joins that and what comes before several of them in the line, then each of them once;
        a single instruction is not worth the register that waits.
        """
        total: Values | None = None
        for r in order:
            total = self.prefix[r] = self.join(total, self.prefix[r])

        def down(outer: Values | None) -> None:
            waits = self.asked and len(order) > 1 and self.folder.kind == "combine"
            if not waits:
                self.carry(order, outer)
            if self.asked:
                self.waiting[-1].append((order, outer if waits else None))

        return total or (), down

    def carry(self, order: list[int], outer: Values | None) -> None:
        """Puts what comes before some registers before each."""
        for r in order:
            self.prefix[r] = self.join(outer, self.prefix[r])

    def join(self, a: Values | None, b: Values) -> Values:
        """Two neighbouring stretches; the first may be empty."""
        return b if a is None else self.folder(a, b)

    def lanes(
        self, own: Values, masks: tuple[int, ...], asked: bool
    ) -> tuple[Values, Values | None]:
        """Of totals of lanes: what the lanes before come to, and, if asked for, all of them."""
        if self.folder.kind == "combine":
            return self.prefixes(own, masks, asked)
        return self.doubled(own, masks)

    def doubled(self, total: Values, masks: tuple[int, ...]) -> tuple[Values, Values]:
        """Where there is a neutral element, by doubling: both halves know their own, and the
        other's.
        """
        folder, before = self.folder, self.folder.nothing(total)
        for mask in masks:
            later = self.later(mask)
            other = folder.shuffled(total, mask)
            grown = other if mask == masks[0] else folder(other, before, wanted=later)
            before = folder.pick(later, grown, before)
            total = folder(total, other)
        return before, total

    def prefixes(
        self, own: Values, masks: tuple[int, ...], asked: bool
    ) -> tuple[Values, Values | None]:
        """Where a fold does not commute and takes long: later halves fold what the last lane of
        the half before them has, and what comes before a lane is what its neighbour has.
        """
        folder, low, found = self.folder, 0, own
        for mask in masks:
            later = self.later(mask)
            other = folder.of_lane(found, self.lane(mask | low, mask if self.back else low))
            found = folder.pick(later, folder(other, found, wanted=later), found)
            low |= mask
        total = folder.of_lane(found, self.lane(low, 0 if self.back else low)) if asked else None
        neighbour = folder.of_lane(found, self.neighbour(masks))
        return folder.pick(self.is_first(low), folder.nothing(neighbour), neighbour), total

    def later(self, mask: int) -> str:
        """Whether this lane comes after that on the other side of a bit."""
        bit, w = self.e.lane_bit(mask), self.e.w
        if not self.back:
            return bit
        return w.memo(("no bit", mask), functools.partial(w.op, "not.pred", "pred", bit))

    def lane(self, changed: int, bits: int) -> Integer:
        """This lane's number with other values of some bits."""
        e, w = self.e, self.e.w

        def make() -> Integer:
            kept = WARP - 1 & ~changed
            at: Integer = w.op("and.b32", "b32", e.lane(), kept) if kept else 0
            return add(e, at, bits)

        return w.hoist(("lane with", changed, bits), make, root=True)

    def neighbour(self, masks: tuple[int, ...]) -> Integer:
        """The lane that comes before this one, if any does."""
        e, count = self.e, (1 << len(masks)) - 1
        bits = [(1 << i, mask) for i, mask in enumerate(masks)]

        def make() -> Integer:
            number = moved_bits(e, e.lane(), [(mask, place) for place, mask in bits])
            before = e.w.op("and.b32", "b32", add(e, number, 1 if self.back else -1), count)
            return add(e, self.lane(sum(masks), 0), moved_bits(e, before, bits))

        return e.w.hoist(("neighbour", self.back, masks), make, root=True)

    def is_first(self, mask: int) -> str:
        """Whether no lane comes before this one."""
        e, end = self.e, mask if self.back else 0

        def make() -> str:
            own = e.w.op("and.b32", "b32", e.lane(), mask)
            return e.w.op("setp.eq.s32", "pred", own, end)

        return e.w.hoist(("first of lanes", mask, end), make, root=True)
