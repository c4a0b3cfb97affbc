"""Layouts for operations that move elements along an axis: reshape, slice, concat, flip, sort,
gather.

Each is a choice of registers (or, for sort and flip, stays inside a warp) if the axis it works on
lies right: these functions build the layouts in which it does.
"""

from __future__ import annotations

from math import gcd, prod

from tkc.ir import shared, tile
from tkc.ir.digits import Digit, LayoutError, copies
from tkc.ir.layout import WARP, Layout, blocked, register_map
from tkc.ir.rewrite import before, erase, replace
from tkc.ir.types import TileType, bits, element_of

LONGEST_FLIP = 32  # elements that a thread reverses in its registers
FIRST = 64  # registers that hold the first elements of a sort
FEW, SPARE = (
    8,
    4,
    # elements that a thread may always hold; times its share of a tile that a reshape may leave it
    # with
)


def stretched(shape: tuple[int, ...], width: int, steps: dict[int, int], warps: int) -> Layout:
    """A layout whose threads repeat along each axis of `steps` after so many coordinates (which
    divide its extent).
    """
    core = tuple(steps.get(a, n) for a, n in enumerate(shape))
    layout = blocked(core, min(max(1, 128 // width), core[-1] & -core[-1]), warps)
    held = [
        a for a, step in steps.items() if layout.padded_shape[a] != step
    ]  # threads do not divide it: each holds a whole period
    if held:
        rest = blocked(tuple(1 if a in held else n for a, n in enumerate(core)), 1, warps)
        layout = Layout(
            core, (*(Digit(core[a], a, 1) for a in held), *rest.registers), rest.lanes, rest.warps
        )
    extra = tuple(Digit(shape[a] // step, a, step) for a, step in steps.items())
    return Layout(shape, (*layout.registers, *extra), layout.lanes, layout.warps)


def one_thread(shape: tuple[int, ...], axis: int, warps: int) -> Layout:
    """The axis in registers alone, the others spread as far as they go."""
    rest = blocked(tuple(1 if a == axis else n for a, n in enumerate(shape)), 1, warps)
    return Layout(shape, (Digit(shape[axis], axis, 1), *rest.registers), rest.lanes, rest.warps)


def one_warp(shape: tuple[int, ...], axis: int, warps: int, most: int = WARP) -> Layout:
    """The axis in registers and (at most so many) lanes of one warp, padded to a power of two."""
    n = 1 << (shape[axis] - 1).bit_length()
    lanes = min(most, n)
    others = tuple(1 if a == axis else m for a, m in enumerate(shape))
    rest = blocked(others, 1, warps, threads_per=_across(others, WARP // lanes))
    used = tuple(d for d in rest.lanes if d.axis >= 0)
    spare = WARP // (lanes * prod(d.extent for d in used))
    return Layout(
        shape,
        (Digit(n // lanes, axis, 1), *rest.registers),
        (Digit(lanes, axis, n // lanes), *used, copies(spare)),
        rest.warps,
    )


def _across(extents: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Up to `count` lanes (a power of two) over axes, the last first."""
    found = []
    for n in reversed(extents):
        here = min(count, 1 << (n - 1).bit_length())
        found.append(here)
        count //= here
    return tuple(reversed(found))


def factor_flip(op: tile.Flip) -> None:
    """A flip too long for one thread, as flips of the digits of its index: 1024 reversed is 32 x 32
    reversed along both axes.
    """
    t, axis = op.arg.type, op.axis.value.data
    n = t.extents[axis]
    low = next((f for f in range(LONGEST_FLIP, 1, -1) if n % f == 0), 1)
    if n <= LONGEST_FLIP or low == 1:
        return
    split = before(
        op,
        tile.Reshape(
            op.arg, TileType((*t.extents[:axis], n // low, low, *t.extents[axis + 1 :]), t.element)
        ),
    ).result
    inner = before(op, tile.Flip(split, axis + 1)).result
    outer = before(op, tile.Flip(inner, axis))
    replace(op, before(outer.next_op, tile.Reshape(outer.result, t)).results)
    factor_flip(outer)


def first_of_sort(op: tile.Sort) -> None:
    """A sort of which only the first few elements are wanted, few enough for a thread's registers."""
    uses = [use.operation for use in op.result.uses]
    if len(uses) != 1 or not isinstance(uses[0], tile.Slice):
        return
    t, (part,) = op.arg.type, uses
    count, words = part.result.type.extents[-1], bits(t.element) // 32 or 1
    whole = (
        part.result.type.extents[:-1] == t.extents[:-1]
        and not any(part.offsets.get_values())
        and all(s == 1 for s in part.steps)
    )
    if whole and 2 * _power(count) <= _power(t.extents[-1]) and _power(count) * words <= FIRST:
        replace(
            part,
            before(
                part, shared.SortFirst(op.arg, part.result.type, op.descending is not None)
            ).results,
        )
        erase(op)


def first_layouts(op: shared.SortFirst, warps: int) -> tuple[Layout, Layout]:
    """Layouts of what is sorted, and of the first elements, which all lanes of a row then have. The
    fewest lanes a row that keep every thread busy: each sorts what it holds, and the more of them
    there are the more often they must meet."""
    t, count = op.arg.type, op.result.type.extents[-1]
    axis, n, rows = t.rank - 1, _power(t.extents[-1]), prod(t.extents[:-1])
    held = max(_power(count), FIRST // max(1, bits(t.element) // 32))
    lanes = 1
    while (
        lanes < WARP
        and n // lanes > _power(count)
        and (n // lanes > held or rows * lanes < WARP * warps)
    ):
        lanes *= 2
    layout = one_warp(t.extents, axis, warps, lanes)
    own, others = (
        Digit(count, axis, 1),
        lambda digits: tuple(copies(d.extent) if d.axis == axis else d for d in digits),
    )
    return layout, Layout(
        op.result.type.extents,
        (own, *(d for d in layout.registers if d.axis != axis)),
        others(layout.lanes),
        layout.warps,
    )


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def slice_source(op: tile.Slice, layout: Layout, warps: int) -> tuple[Layout, Layout]:
    """Layouts of a slice's operand and result between which it is a choice of registers; the
    operand's own if that serves.
    """
    t, r, offsets, steps = op.arg.type, op.result.type, op.offsets.get_values(), op.steps
    if all(s == 1 for s in steps):
        try:
            return layout, layout.slice(offsets, r.extents)[0]
        except LayoutError:
            pass
    strided = [a for a in range(t.rank) if steps[a] > 1]
    periods = {
        a: gcd(offsets[a], r.extents[a], t.extents[a])
        for a in range(t.rank)
        if a not in strided and r.extents[a] != t.extents[a]
    }
    inner = tuple(1 if a in strided else n for a, n in enumerate(t.extents))
    core = stretched(inner, bits(element_of(t)), periods, warps)
    whole = Layout(
        t.extents,
        (*(Digit(t.extents[a], a, 1) for a in strided), *core.registers),
        core.lanes,
        core.warps,
    )
    kept = tuple(1 if a in strided else n for a, n in enumerate(r.extents))
    part = core.slice([0 if a in strided else o for a, o in enumerate(offsets)], kept)[0]
    return whole, Layout(
        r.extents,
        (*(Digit(r.extents[a], a, 1) for a in strided), *part.registers),
        part.lanes,
        part.warps,
    )


def offsets_layout(
    op: tile.Load | tile.Store | tile.AtomicBlock, axis: int, layout: Layout
) -> Layout:
    """The layout of a gather's offsets along an array axis, given that of the block."""
    extents = op.extents.get_values()
    kept = [a for a, n in enumerate(extents) if n >= 0]
    here = tuple(extents[a] if a == axis else 1 for a in kept)
    return layout.operand_of_broadcast(here).reshape((extents[axis],))


def reshape_layouts(
    op: tile.Reshape, wanted: Layout, given: Layout, warps: int
) -> tuple[Layout, Layout]:
    """Layouts of a reshape's operand and result between which it is free: `wanted` for the result
    if that can be, else the operand's as `given`, else one made for the purpose."""
    old, new = op.arg.type.extents, op.result.type.extents
    ones = [n for n in old if n > 1] == [n for n in new if n > 1]
    try:
        source = wanted.reshape(old)
        if ones or source.reshape(new) == wanted:
            return source, wanted
    except LayoutError:
        pass
    try:
        result = given.reshape(new)
        if ones or result.reshape(old) == given:
            return given, result
    except LayoutError:
        pass
    flat = _divisible(old, new, warps)
    return flat.reshape(old), flat.reshape(new)


def crosses(op: tile.Reshape, warps: int) -> bool:
    """Whether a reshape is better sent through shared memory than made a choice of registers: where
    the layout that serves both shapes leaves each thread with far more elements than its share
    (7x16 to 16x7: with all of them)."""
    old, new, size = op.arg.type.extents, op.result.type.extents, op.arg.type.size
    if size <= FEW or [n for n in old if n > 1] == [n for n in new if n > 1]:
        return False
    return _divisible(old, new, warps).num_registers > max(FEW, SPARE * -(-size // (WARP * warps)))


def is_free(op: tile.Reshape) -> bool:
    """Whether every thread holds what a reshape, whose layouts are chosen, gives it."""
    try:
        return (
            register_map(
                op.arg.type.register_layout.reshape(op.result.type.extents),
                op.result.type.register_layout,
            )
            is not None
        )
    except LayoutError:
        return False


def _divisible(old: tuple[int, ...], new: tuple[int, ...], warps: int) -> Layout:
    """A layout of the elements in row-major order whose digits divide among the axes of both
    shapes.

    Cut where an axis of either shape begins. If each cut divides the next, the outermost parts go
    to lanes and warps as far as they are powers of two; otherwise (7x5 to 5x7) every thread holds
    everything.
    """
    size = prod(old)
    cuts = sorted({prod(shape[i:]) for shape in (old, new) for i in range(len(shape) + 1)})
    if any(b % a for a, b in zip(cuts, cuts[1:], strict=False)):
        cuts = [1, size]
        room = {"lanes": 1, "warps": 1}
    else:
        room = {"lanes": WARP, "warps": warps}
    registers, spread = [], {"lanes": [], "warps": []}
    for low, high in reversed(list(zip(cuts, cuts[1:], strict=False))):
        extent = high // low
        for place in "lanes", "warps":
            here = gcd(extent & -extent, room[place])
            extent, room[place] = extent // here, room[place] // here
            spread[place].insert(0, Digit(here, 0, low * extent))
        registers.insert(0, Digit(extent, 0, low))

    def total(digits):
        return prod(d.extent for d in digits)

    return Layout(
        (size,),
        tuple(registers),
        (*spread["lanes"], copies(WARP // total(spread["lanes"]))),
        (*spread["warps"], copies(warps // total(spread["warps"]))),
    )
