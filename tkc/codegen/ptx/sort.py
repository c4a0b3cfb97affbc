"""Sorting networks, and histograms in shared memory.

A sort compares unsigned keys: integers with the sign bit turned, floats with all bits turned if
negative (NaN becomes the largest
key, so it comes last both ways).  The network is Batcher's bitonic one: element i meets element i ^ j; bit j of the position is a
bit of the register number or of the lane, so partners are two registers of a thread or one register
of two lanes.

Where only the first K are wanted, each thread sorts K of its keys at a time (by Batcher's odd-even
merges) and keeps the lower half of two sorted runs: the smaller of a[i] and b[K - 1 - i], for all
i, which rise and then fall, so that log K steps sort them. Then lanes do the same with each
other's.
"""

from __future__ import annotations

from collections.abc import Iterator

from tkc.codegen.ptx.access import Group, both, load_tile
from tkc.codegen.ptx.barriers import meet
from tkc.codegen.ptx.coordinates import coordinate, inside
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import mask_of, stores_once
from tkc.codegen.ptx.integers import add, mul
from tkc.codegen.ptx.reduce import lanes_along, lines, shuffle
from tkc.codegen.ptx.writer import Operand
from tkc.ir import shared, tile
from tkc.ir.types import bits, is_bool, is_float, is_unsigned


@emitter(tile.Sort)
def sort(e: Emitter, op: tile.Sort) -> None:
    value, t, down = e.tile(op.arg), op.result.type, op.descending is not None
    layout, axis = value.layout, value.layout.rank - 1
    if layout != t.register_layout:
        e.fail(
            f"a sort keeps its layout, but {layout} is to become {t.register_layout}: convert it"
        )
    if layout.warps_along(axis) > 1:
        e.fail("a sort over warps has to go through shared memory: passes make it so")
    lanes = {stride: mask for mask, stride in lanes_along(e, layout, axis)}
    at = layout.offsets("registers")
    place = {tuple(x): r for r, x in reversed(list(enumerate(at.tolist())))}
    lines = sorted(set(place.values()))
    extent, width = layout.padded_shape[axis], 64 if bits(t.element) == 64 else 32
    if extent & extent - 1:
        e.fail(f"a sort of {extent} places needs a power of two: choose another layout")
    keys = {r: key(e, e.element(value, r), t.element, down, width) for r in lines}
    for r in lines:
        real = inside(e, layout, r)
        if real is not True:
            keys[r] = (
                e.w.op(f"selp.b{width}", f"b{width}", keys[r], -1, real)
                if isinstance(real, str)
                else e.w.register(-1, f"b{width}")
            )
    size = 2
    while size <= extent:
        step = size // 2
        while step:
            _stage(e, keys, at, place, axis, size, step, lanes, width)
            step //= 2
        size *= 2
    e.set(
        op.result,
        e.build(t, [unkey(e, keys[place[tuple(x)]], t.element, down, width) for x in at.tolist()]),
    )


@emitter(shared.SortFirst)
def sort_first(e: Emitter, op: shared.SortFirst) -> None:
    value, t, down = e.tile(op.arg), op.result.type, op.descending is not None
    layout, axis, width, w = (
        value.layout,
        value.layout.rank - 1,
        64 if bits(t.element) == 64 else 32,
        e.w,
    )
    count = 1 << (t.extents[-1] - 1).bit_length()
    at, wanted = layout.offsets("registers"), t.register_layout.offsets("registers")

    def ordered(keys: list[str], i: int, j: int) -> None:
        """The smaller of two keys first."""
        if width == 32:
            keys[i], keys[j] = (
                w.op("min.u32", "b32", keys[i], keys[j]),
                w.op("max.u32", "b32", keys[i], keys[j]),
            )
            return
        less = w.op("setp.lt.u64", "pred", keys[i], keys[j])
        keys[i], keys[j] = (
            w.op("selp.b64", "b64", a, b, less) for a, b in ((keys[i], keys[j]), (keys[j], keys[i]))
        )

    def merged(a: list[str], b: list[str]) -> list[str]:
        keys = [
            w.op(f"min.u{width}", f"b{width}", x, y) for x, y in zip(a, reversed(b), strict=False)
        ]
        step = count // 2
        while step:
            for i in range(count):
                if not i & step:
                    ordered(keys, i, i + step)
            step //= 2
        return keys

    found: dict[tuple[int, ...], list[str]] = {}
    for group in lines(layout, axis):
        keys = [key(e, e.element(value, r), t.element, down, width) for r in group]
        for i, r in enumerate(group):
            if (real := inside(e, layout, r)) is not True:
                keys[i] = (
                    w.op(f"selp.b{width}", f"b{width}", keys[i], -1, real)
                    if isinstance(real, str)
                    else w.register(-1, f"b{width}")
                )
        best = None
        for start in range(0, len(keys), count):
            part = keys[start : start + count]
            for i, j in odd_even(count):
                ordered(part, i, j)
            best = part if best is None else merged(best, part)
        for mask, _ in lanes_along(e, layout, axis):
            best = merged(best, [shuffle(e, k, mask, f"b{width}") for k in best])
        found[tuple(int(x) for x in at[group[0]][:axis])] = best
    e.set(
        op.result,
        e.build(
            t,
            [
                unkey(
                    e,
                    found[tuple(int(x) for x in place[:axis])][int(place[axis])],
                    t.element,
                    down,
                    width,
                )
                for place in wanted
            ],
        ),
    )


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


def _stage(
    e: Emitter,
    keys: dict[int, str],
    at,
    place,
    axis: int,
    size: int,
    step: int,
    lanes: dict[int, int],
    width: int,
) -> None:
    """Each pair at a distance of `step` in order; the order is up where bit `size` of the position
    is 0.
    """
    w = e.w

    def lower(a, b):
        return w.op(f"min.u{width}", f"b{width}", a, b)

    def upper(a, b):
        return w.op(f"max.u{width}", f"b{width}", a, b)

    def by_lane(mask):
        return w.hoist(
            ("bit", mask),
            lambda: w.op("setp.ne.b32", "pred", w.op("and.b32", "b32", e.lane(), mask), 0),
            root=True,
        )

    before = dict(keys)
    for r in before:
        here = [int(x) for x in at[r]]
        downward: Operand = by_lane(lanes[size]) if size in lanes else bool(here[axis] & size)
        if step in lanes:
            other, second = shuffle(e, before[r], lanes[step], f"b{width}"), by_lane(lanes[step])
            takes_upper = (
                w.memo(
                    ("upper", second, downward), lambda: w.op("xor.pred", "pred", second, downward)
                )
                if isinstance(downward, str)
                else (
                    w.memo(("upper", second, downward), lambda: w.op("not.pred", "pred", second))
                    if downward
                    else second
                )
            )
            keys[r] = w.op(
                f"selp.b{width}",
                f"b{width}",
                upper(before[r], other),
                lower(before[r], other),
                takes_upper,
            )
            continue
        if here[axis] & step:
            continue
        here[axis] += step
        s = place[tuple(here)]
        low, high = lower(before[r], before[s]), upper(before[r], before[s])
        if isinstance(downward, str):
            keys[r], keys[s] = (
                w.op(f"selp.b{width}", f"b{width}", a, b, downward)
                for a, b in ((high, low), (low, high))
            )
        else:
            keys[r], keys[s] = (high, low) if downward else (low, high)


def key(e: Emitter, x: Operand, element, down: bool, width: int) -> str:
    w, sign, cls = e.w, -(1 << width - 1), f"b{width}"
    if is_bool(element):
        x = w.op("selp.b32", "b32", 1, 0, w.register(x, "pred"))
    x = w.register(x, cls)
    if is_float(element):
        kind = f"f{width}"
        if down:
            x = w.op(f"neg.{kind}", cls, x)
        negative = w.op(f"setp.lt.s{width}", "pred", x, 0)
        k = w.op(f"xor.b{width}", cls, x, w.op(f"selp.b{width}", cls, -1, sign, negative))
        return w.op(f"selp.b{width}", cls, -1, k, w.op(f"setp.nan.{kind}", "pred", x, x))
    k = x if is_unsigned(element) or is_bool(element) else w.op(f"xor.b{width}", cls, x, sign)
    return w.op(f"not.b{width}", cls, k) if down else k


def unkey(e: Emitter, k: str, element, down: bool, width: int) -> Operand:
    w, sign, cls = e.w, -(1 << width - 1), f"b{width}"
    if is_float(element):
        negative = w.op(f"setp.ge.s{width}", "pred", k, 0)
        x = w.op(f"xor.b{width}", cls, k, w.op(f"selp.b{width}", cls, -1, sign, negative))
        return w.op(f"neg.f{width}", cls, x) if down else x
    if down:
        k = w.op(f"not.b{width}", cls, k)
    if is_bool(element):
        return w.op("setp.ne.b32", "pred", k, 0)
    return k if is_unsigned(element) else w.op(f"xor.b{width}", cls, k, sign)


@emitter(tile.Histogram)
def histogram(e: Emitter, op: tile.Histogram) -> None:
    """Counts in shared memory: cleared, added to by whoever holds an element first, read back."""
    w, value, t = e.w, e.tile(op.arg), op.result.type
    bins, width = t.extents[0], bits(value.element)
    own, at = e.own_scratch(shared.scratch(op))
    base = w.op("add.s32", "b32", own, at)
    meet(e)
    for first in range(0, bins, e.instance.threads):
        here = w.op("add.s32", "b32", e.thread(), first)
        with w.predicated(w.op("setp.lt.s32", "pred", here, bins)):
            w.emit(f"st.shared.b32 [{add(e, base, mul(e, here, 4))}], {w.register(0)}")
    meet(e)
    once = stores_once(e, value.layout)
    for r in range(value.count):
        x = e.element(value, r)
        held = both(e, both(e, inside(e, value.layout, r), mask_of(e, op.mask, r)), once(r))
        if held is False:
            continue
        x = w.register(x, "b64" if width == 64 else "b32")
        held = both(e, held, w.op(f"setp.lt.u{64 if width == 64 else 32}", "pred", x, bins))
        if width == 64:
            x = w.op("cvt.u32.u64", "b32", x)
        with w.predicated(held if isinstance(held, str) else None):
            w.emit(f"red.relaxed.cta.shared.add.u32 [{w.op('mad.lo.s32', 'b32', x, 4, base)}], 1")
    meet(e)
    layout = t.register_layout

    def groups(r):
        return Group(
            w.register(add(e, base, mul(e, coordinate(e, layout, r, 0), 4))),
            0,
            inside(e, layout, r),
        )

    e.set(op.result, load_tile(e, t, 1, groups, None, "shared"))
