"""Sorting networks, and histograms in shared memory.

A sort compares unsigned keys: integers with the sign bit flipped, floats with all bits flipped if
negative (NaN becomes the largest key, so it comes last both ways).  The network is Batcher's
bitonic one: element i meets element i ^ j; bit j of the position is a bit of the register number
or of the lane, so partners are two registers of a thread or one register of two lanes.

Where only the first K are wanted, each thread sorts K of its keys at a time (by Batcher's odd-even
merges) and keeps the lower half of two sorted runs: the smaller of a[i] and b[K - 1 - i], for all
i, which rise and then fall, so that log K steps sort them. Then lanes do the same with each
other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import Attribute

from tkc.codegen.ptx.access import Group, both, load_tile
from tkc.codegen.ptx.barriers import meet
from tkc.codegen.ptx.blocks import mask_of
from tkc.codegen.ptx.coordinates import coordinate, inside
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import stores_once
from tkc.codegen.ptx.integers import add, is_power_of_two, mul
from tkc.codegen.ptx.reduce import first_registers, lanes_along, lines, shuffle
from tkc.codegen.ptx.values import Tile, layout_of
from tkc.codegen.ptx.writer import Operand
from tkc.ir import shared, tile
from tkc.ir.layout import Layout
from tkc.ir.scratch import scratch
from tkc.ir.types import bits, is_bool, is_float, is_unsigned
from tkc.ir.values import tile_type

# Of a thread: stages of so many are told apart by barriers of their warp. The assembler takes time
# that grows faster than what it may move about, and finds no more to do at once in two such stages.
KEYS_OF_A_LONG_STAGE = 64


@dataclass(frozen=True)
class Keys:
    """Unsigned keys of elements of a type, in the order wanted."""

    e: Emitter
    element: Attribute
    descending: bool

    @property
    def width(self) -> int:
        """Bits of a key."""
        return 64 if bits(self.element) == 64 else 32

    def op(self, name: str, *operands: Operand) -> str:
        """An instruction whose result is a key, or a word of as many bits."""
        return self.e.w.op(f"{name}{self.width}", f"b{self.width}", *operands)

    def select(self, yes: Operand, no: Operand, condition: Operand) -> str:
        """One of two keys."""
        return self.op("selp.b", yes, no, condition)

    def lower(self, a: str, b: str) -> str:
        """The smaller of two keys."""
        return self.op("min.u", a, b)

    def upper(self, a: str, b: str) -> str:
        """The larger of two keys."""
        return self.op("max.u", a, b)

    def sort_pair(self, keys: list[str], i: int, j: int) -> None:
        """Puts the smaller of two keys first."""
        a, b = keys[i], keys[j]
        if self.width == 32:
            keys[i], keys[j] = self.lower(a, b), self.upper(a, b)
            return
        less = self.e.w.op("setp.lt.u64", "pred", a, b)
        keys[i], keys[j] = self.select(a, b, less), self.select(b, a, less)

    def of(self, value: Tile, registers: list[int]) -> list[str]:
        """The keys of a thread's elements; those of the padding are the largest."""
        w = self.e.w
        keys = [self.make(self.e.element(value, r)) for r in registers]
        for i, r in enumerate(registers):
            real = inside(self.e, value.layout, r)
            if isinstance(real, str):
                keys[i] = self.select(keys[i], -1, real)
            elif not real:
                keys[i] = w.register(-1, f"b{self.width}")
        return keys

    def _flipped(self, x: str, negative: str) -> str:
        """All bits flipped of what is negative, the sign of what is not."""
        sign = -(1 << self.width - 1)
        return self.op("xor.b", x, self.select(-1, sign, negative))

    def make(self, x: Operand) -> str:
        """The key of an element."""
        w, n, element = self.e.w, self.width, self.element
        if is_bool(element):
            x = w.op("selp.b32", "b32", 1, 0, w.register(x, "pred"))
        x = w.register(x, f"b{n}")
        if is_float(element):
            if self.descending:
                x = self.op("neg.f", x)
            key = self._flipped(x, w.op(f"setp.lt.s{n}", "pred", x, 0))
            return self.select(-1, key, w.op(f"setp.nan.f{n}", "pred", x, x))
        key = x
        if not is_unsigned(element) and not is_bool(element):
            key = self.op("xor.b", x, -(1 << n - 1))
        return self.op("not.b", key) if self.descending else key

    def element_of(self, key: str) -> Operand:
        """The element of a key."""
        w, n, element = self.e.w, self.width, self.element
        if is_float(element):
            x = self._flipped(key, w.op(f"setp.ge.s{n}", "pred", key, 0))
            return self.op("neg.f", x) if self.descending else x
        if self.descending:
            key = self.op("not.b", key)
        if is_bool(element):
            return w.op("setp.ne.b32", "pred", key, 0)
        return key if is_unsigned(element) else self.op("xor.b", key, -(1 << n - 1))


@emitter(tile.Sort)
def sort(e: Emitter, op: tile.Sort) -> None:
    """All elements of each line along the last axis, which lies in one warp."""
    value, t = e.tile(op.arg), tile_type(op.result)
    layout, axis = value.layout, value.layout.rank - 1
    if layout != layout_of(t):
        e.fail(f"a sort keeps its layout, but {layout} is to become {layout_of(t)}: convert it")
    if layout.warps_along(axis) > 1:
        e.fail("a sort over warps has to go through shared memory: passes make it so")
    lanes = {stride: mask for mask, stride in lanes_along(e, layout, axis)}
    extent, at = layout.padded_shape[axis], layout.offsets("registers")
    if not is_power_of_two(extent):
        e.fail(f"a sort of {extent} places needs a power of two: choose another layout")
    keys, place = Keys(e, t.element, op.descending is not None), first_registers(at)
    registers = sorted(set(place.values()))
    network = Network(
        keys, layout, lanes, dict(zip(registers, keys.of(value, registers), strict=True))
    )
    size = 2
    while size <= extent:
        step = size // 2
        while step:
            network.stage(size, step)
            if len(registers) >= KEYS_OF_A_LONG_STAGE:
                e.w.emit("bar.warp.sync -1")
            step //= 2
        size *= 2
    found = [keys.element_of(network.held[place[tuple(x)]]) for x in at.tolist()]
    e.set(op.result, e.build(t, found, exact=True))


@emitter(shared.SortFirst)
def sort_first(e: Emitter, op: shared.SortFirst) -> None:
    """The first elements of each line along the last axis, which lies in one warp."""
    value, t = e.tile(op.arg), tile_type(op.result)
    layout, axis = value.layout, value.layout.rank - 1
    count = 1 << (t.extents[-1] - 1).bit_length()
    keys = Keys(e, t.element, op.descending is not None)

    def merged(a: list[str], b: list[str]) -> list[str]:
        """The lower half of two sorted runs, sorted."""
        lower = [keys.lower(x, y) for x, y in zip(a, reversed(b), strict=True)]
        step = count // 2
        while step:
            for i in range(count):
                if not i & step:
                    keys.sort_pair(lower, i, i + step)
            step //= 2
        return lower

    def first(group: list[int]) -> list[str]:
        """The first keys of a line."""
        found = keys.of(value, group)
        best: list[str] = []
        for start in range(0, len(found), count):
            part = found[start : start + count]
            for i, j in odd_even(count):
                keys.sort_pair(part, i, j)
            best = merged(best, part) if best else part
        for mask, _ in lanes_along(e, layout, axis):
            others = [e.w.register(shuffle(e, k, mask, f"b{keys.width}")) for k in best]
            best = merged(best, others)
        return best

    at = layout.offsets("registers").tolist()
    of_line = {tuple(at[group[0]][:axis]): first(group) for group in lines(layout, axis)}
    wanted = layout_of(t).offsets("registers").tolist()
    found = [keys.element_of(of_line[tuple(place[:axis])][place[axis]]) for place in wanted]
    e.set(op.result, e.build(t, found, exact=True))


def odd_even(n: int) -> Iterator[tuple[int, int]]:
    """Comparisons that sort n keys, a power of two (Batcher, 1968)."""
    run = 1
    while run < n:
        step = run
        while step:
            for start in range(step % run, n - step, 2 * step):
                for i in range(start, min(start + step, n - step)):
                    if i // (2 * run) == (i + step) // (2 * run):
                        yield i, i + step
            step //= 2
        run *= 2


class Network:
    """A bitonic network over the keys of a thread, by register."""

    def __init__(self, keys: Keys, layout: Layout, lanes: dict[int, int], held: dict[int, str]):
        self.keys, self.lanes, self.held = keys, lanes, held
        self.at = layout.offsets("registers").tolist()
        self.place, self.axis = first_registers(layout.offsets("registers")), layout.rank - 1

    def stage(self, size: int, step: int) -> None:
        """Each pair at a distance of `step` in order; the order is up where bit `size` of the
        position is 0.
        """
        e, keys = self.keys.e, self.keys
        before = dict(self.held)
        for r, key in before.items():
            here = list(self.at[r])
            downward: Operand = bool(here[self.axis] & size)
            if size in self.lanes:
                downward = e.lane_bit(self.lanes[size])
            if step in self.lanes:
                other = e.w.register(shuffle(e, key, self.lanes[step], f"b{keys.width}"))
                takes_upper = self._takes_upper(e.lane_bit(self.lanes[step]), downward)
                upper = keys.upper(key, other)
                self.held[r] = keys.select(upper, keys.lower(key, other), takes_upper)
            elif not here[self.axis] & step:
                here[self.axis] += step
                self._pair(r, self.place[tuple(here)], before, downward)

    def _takes_upper(self, second: str, downward: Operand) -> str:
        """Whether this lane, the second of two or not, takes the larger key."""
        w = self.keys.e.w
        key = "upper", second, downward
        if isinstance(downward, str):
            return w.memo(key, lambda: w.op("xor.pred", "pred", second, downward))
        return w.memo(key, lambda: w.op("not.pred", "pred", second)) if downward else second

    def _pair(self, r: int, s: int, before: dict[int, str], downward: Operand) -> None:
        """Two registers of this thread."""
        keys, held = self.keys, self.held
        low = keys.lower(before[r], before[s])
        high = keys.upper(before[r], before[s])
        if isinstance(downward, str):
            held[r] = keys.select(high, low, downward)
            held[s] = keys.select(low, high, downward)
        else:
            held[r], held[s] = (high, low) if downward else (low, high)


@emitter(tile.Histogram)
def histogram(e: Emitter, op: tile.Histogram) -> None:
    """Counts in shared memory: cleared, added to by the first thread that holds an element, read
    back.
    """
    w, value, t = e.w, e.tile(op.arg), tile_type(op.result)
    bins, width = t.extents[0], 64 if bits(value.element) == 64 else 32
    own, at = e.own_scratch(scratch(op))
    base = w.op("add.s32", "b32", own, at)
    meet(e)
    for first in range(0, bins, e.instance.threads):
        here = w.op("add.s32", "b32", e.thread(), first)
        with w.predicated(w.op("setp.lt.s32", "pred", here, bins)):
            w.emit(f"st.shared.b32 [{add(e, base, mul(e, here, 4))}], {w.register(0)}")
    meet(e)
    once = stores_once(e, value.layout)
    for r in range(value.count):
        element = e.element(value, r)
        held = both(e, both(e, inside(e, value.layout, r), mask_of(e, op.mask, r)), once(r))
        if held is False:
            continue
        x = w.register(element, f"b{width}")
        held = both(e, held, w.op(f"setp.lt.u{width}", "pred", x, bins))
        if width == 64:
            x = w.op("cvt.u32.u64", "b32", x)
        with w.predicated(held):
            w.emit(f"red.relaxed.cta.shared.add.u32 [{w.op('mad.lo.s32', 'b32', x, 4, base)}], 1")
    meet(e)
    layout = layout_of(t)

    def groups(r: int) -> Group:
        address = w.register(add(e, base, mul(e, coordinate(e, layout, r, 0), 4)))
        return Group(address, 0, inside(e, layout, r))

    e.set(op.result, load_tile(e, t, 1, groups, None, "shared"))
