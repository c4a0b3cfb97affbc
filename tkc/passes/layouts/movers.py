"""Layouts for operations that move elements along an axis: reshape, slice, concat, flip, sort,
gather.

Each is a choice of registers (or, for sort and flip, stays inside a warp) if the axis it works on
is dealt out accordingly: these functions build the layouts in which it is.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from itertools import pairwise
from math import gcd, prod

from xdsl.ir import Attribute

from tkc.errors import CompileError
from tkc.ir import shared, tile
from tkc.ir.digits import Digit, LayoutError, copies
from tkc.ir.layout import WARP, Layout, blocked, register_map
from tkc.ir.rewrite import Builder, erase, replace
from tkc.ir.text import location_of
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import extents_of, layout_of, tile_type

MAX_FLIP_PER_THREAD = 32  # elements that a thread reverses in its registers
MAX_SORT_FIRST_REGISTERS = 64  # of a thread, for the first elements of a sort
# of a thread, for a row that a warp sorts: with more, the network spills
MAX_SORT_REGISTERS = 128
# Elements of a reshape that a thread may always hold, and how many times its share of the tile.
MIN_RESHAPE_PER_THREAD = 8
MAX_RESHAPE_SHARES = 4


def stretched(shape: tuple[int, ...], width: int, steps: dict[int, int], warps: int) -> Layout:
    """A layout whose threads repeat along each axis of `steps` after so many coordinates (which
    divide its extent). width: bits of an element.
    """
    core = tuple(steps.get(a, n) for a, n in enumerate(shape))
    layout = blocked(core, min(max(1, 128 // width), core[-1] & -core[-1]), warps)
    # where threads do not divide a period, each holds all of it
    held = [a for a, step in steps.items() if layout.padded_shape[a] != step]
    if held:
        rest = blocked(_without(core, held), 1, warps)
        registers = (*(Digit(core[a], a, 1) for a in held), *rest.registers)
        layout = Layout(core, registers, rest.lanes, rest.warps)
    extra = tuple(Digit(shape[a] // step, a, step) for a, step in steps.items())
    return Layout(shape, (*layout.registers, *extra), layout.lanes, layout.warps)


def _without(shape: Sequence[int], axes: Container[int]) -> tuple[int, ...]:
    """A shape with extents of 1 along some axes."""
    return tuple(1 if a in axes else n for a, n in enumerate(shape))


def one_thread(shape: tuple[int, ...], axis: int, warps: int) -> Layout:
    """The axis in registers alone, the others distributed as far as they go."""
    rest = blocked(_without(shape, (axis,)), 1, warps)
    return Layout(shape, (Digit(shape[axis], axis, 1), *rest.registers), rest.lanes, rest.warps)


def one_warp(
    shape: tuple[int, ...], axis: int, warps: int, most: int = WARP, held: Sequence[int] = ()
) -> Layout:
    """The axis in registers and (at most so many) lanes of one warp, padded to a power of two; the
    axes that are held in registers alone.
    """
    n = _power(shape[axis])
    lanes = min(most, n)
    others = _without(shape, (axis, *held))
    rest = blocked(others, 1, warps, threads_per=_across(others, WARP // lanes))
    used = tuple(d for d in rest.lanes if d.axis >= 0)
    spare = WARP // (lanes * prod(d.extent for d in used))
    own = {axis: Digit(n // lanes, axis, 1)} | {a: Digit(shape[a], a, 1) for a in held}
    return Layout(
        shape,
        (*(own[a] for a in sorted(own, reverse=True)), *rest.registers),
        (Digit(lanes, axis, n // lanes), *used, copies(spare)),
        rest.warps,
    )


def _across(extents: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Up to `count` lanes (a power of two) over axes, the last first."""
    found = []
    for n in reversed(extents):
        here = min(count, _power(n))
        found.append(here)
        count //= here
    return tuple(reversed(found))


def factor_flip(op: tile.Flip) -> None:
    """A flip too long for one thread, as flips of the digits of its index: 1024 reversed is 32 x 32
    reversed along both axes.
    """
    t, axis = tile_type(op.arg), op.axis.value.data
    n = t.extents[axis]
    low = next((f for f in range(MAX_FLIP_PER_THREAD, 1, -1) if n % f == 0), 1)
    if n <= MAX_FLIP_PER_THREAD or low == 1:
        return
    build = Builder(op)
    digits = (*t.extents[:axis], n // low, low, *t.extents[axis + 1 :])
    split = build(tile.Reshape(op.arg, TileType(digits, t.element)))
    inner = build(tile.Flip(split, axis + 1))
    outer = build.do(tile.Flip(inner, axis))
    replace(op, [build(tile.Reshape(outer.result, t))])
    factor_flip(outer)


def first_of_sort(op: tile.Sort) -> bool:
    """A sort of which only the first few elements are used, few enough for a thread's registers,
    becomes one that finds those alone. Returns whether it was one.
    """
    if (part := first_few(op)) is None:
        return False
    replace(part, shared.SortFirst(op.arg, tile_type(part.result), op.descending is not None))
    erase(op)
    return True


def first_few(op: tile.Sort) -> tile.Slice | None:
    """The slice that has the first few elements of a sort, where nothing else uses it."""
    uses = [use.operation for use in op.result.uses]
    if len(uses) != 1 or not isinstance(part := uses[0], tile.Slice):
        return None
    t, result = tile_type(op.arg), tile_type(part.result)
    if result.extents[:-1] != t.extents[:-1] or any(part.offsets.get_values()):
        return None
    count, words = _power(result.extents[-1]), bits(t.element) // 32 or 1
    is_small = 2 * count <= _power(t.extents[-1]) and count * words <= MAX_SORT_FIRST_REGISTERS
    return part if is_small and all(s == 1 for s in part.steps) else None


def most_sorted(element: Attribute) -> int:
    """How many elements of a type the registers of a warp hold to sort them."""
    return WARP * MAX_SORT_REGISTERS // (bits(element) // 32 or 1)


def check_sort(op: tile.Sort) -> None:
    """Raises CompileError for a sort whose rows are longer than the registers of a warp hold: the
    assembler would take minutes over it, and spill.
    """
    t = tile_type(op.arg)
    extent, most = t.extents[-1], most_sorted(t.element)
    if _power(extent) > most:
        raise CompileError(
            f"a sort of {extent} elements does not fit the registers of a warp, which sorts up to"
            f" {most} of {bits(t.element)} bits; sort parts (`tkc.topk(x.reshape(n // {most},"
            f" {most}), k, axis=1)` finds the first k of each, and tkc.topk of these the first of"
            " all; tkc.kernels.topk does that), or sort arrays with torch.sort",
            location_of(op),
        )


def first_layouts(op: shared.SortFirst, warps: int) -> tuple[Layout, Layout]:
    """Layouts of what is sorted, and of the first elements, which all lanes of a row then have. The
    fewest lanes a row that keep every thread busy: each sorts what it holds, and the more of them
    there are the more often they exchange elements.
    """
    t, result = tile_type(op.arg), tile_type(op.result)
    axis, count = t.rank - 1, result.extents[-1]
    n, first, rows = _power(t.extents[axis]), _power(count), prod(t.extents[:axis])
    held = max(first, MAX_SORT_FIRST_REGISTERS // max(1, bits(t.element) // 32))
    lanes = 1
    while lanes < WARP and n // lanes > first:
        if n // lanes <= held and rows * lanes >= WARP * warps:
            break
        lanes *= 2
    layout = one_warp(t.extents, axis, warps, lanes)
    registers = (Digit(count, axis, 1), *(d for d in layout.registers if d.axis != axis))
    shared_lanes = tuple(copies(d.extent) if d.axis == axis else d for d in layout.lanes)
    return layout, Layout(result.extents, registers, shared_lanes, layout.warps)


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def slice_source(op: tile.Slice, layout: Layout, warps: int) -> tuple[Layout, Layout]:
    """Layouts of a slice's operand and result between which it is a choice of registers; the
    operand's own if that serves.
    """
    t, r, offsets = tile_type(op.arg), tile_type(op.result), op.offsets.get_values()
    strided = [a for a, step in enumerate(op.steps) if step > 1]
    cut = [a for a, (n, m) in enumerate(zip(r.extents, t.extents, strict=True)) if n != m]
    if not strided:
        given = _sliced(layout, offsets, r.extents)
        if given is not None and (layout.is_padded or not given.is_padded):
            return layout, given
        with suppress(LayoutError):  # where half of the lanes would have nothing of a part
            source = within_threads(layout, cut)
            return source, source.slice(offsets, r.extents)[0]
        if given is not None:
            return layout, given
    periods = {
        a: gcd(offsets[a], n, m)
        for a, (n, m) in enumerate(zip(r.extents, t.extents, strict=True))
        if a not in strided and n != m
    }
    core = stretched(_without(t.extents, strided), bits(element_of(t)), periods, warps)
    starts = [0 if a in strided else o for a, o in enumerate(offsets)]
    part = core.slice(starts, _without(r.extents, strided))[0]
    return _with_registers(core, t.extents, strided), _with_registers(part, r.extents, strided)


def _sliced(layout: Layout, offsets: Sequence[int], extents: Sequence[int]) -> Layout | None:
    """The layout of a part as threads have it; None where they do not hold it alike."""
    with suppress(LayoutError):
        return layout.slice(offsets, extents)[0]
    return None


def within_threads(layout: Layout, axes: Sequence[int]) -> Layout:
    """The layout with some axes in each thread's registers: lanes and warps have, in their place,
    what is least significant of the others there. Raises LayoutError where registers have too
    little of those.
    """
    registers = list(layout.registers)

    def swapped(digit: Digit) -> Digit:
        if digit.axis not in axes:
            return digit
        others = [d for d in registers if d.axis >= 0 and d.axis not in axes]
        fitting = [d for d in others if d.extent % digit.extent == 0]
        if not fitting:
            raise LayoutError(f"{layout} has no registers to swap for axis {digit.axis}")
        given = min(fitting, key=lambda d: (-d.axis, d.stride))
        kept = Digit(given.extent // digit.extent, given.axis, given.stride * digit.extent)
        at = registers.index(given)
        registers[at : at + 1] = [digit, kept]
        return Digit(digit.extent, given.axis, given.stride)

    lanes = tuple(map(swapped, layout.lanes))
    warps = tuple(map(swapped, layout.warps))
    return Layout(layout.shape, tuple(registers), lanes, warps, layout.blocks)


def _with_registers(core: Layout, extents: tuple[int, ...], axes: list[int]) -> Layout:
    """The layout of a tile that has some axes wholly in registers, the others as in `core`."""
    registers = (*(Digit(extents[a], a, 1) for a in axes), *core.registers)
    return Layout(extents, registers, core.lanes, core.warps)


def offsets_layout(
    op: tile.Load | tile.Store | tile.AtomicBlock, axis: int, layout: Layout
) -> Layout:
    """The layout of a gather's offsets along an array axis, given that of the block."""
    extents = op.extents.get_values()
    kept = [a for a, n in enumerate(extents) if n >= 0]
    return layout.operand_along(kept.index(axis))


def reshape_layouts(
    op: tile.Reshape, wanted: Layout, given: Layout, warps: int
) -> tuple[Layout, Layout]:
    """Layouts of a reshape's operand and result between which it is free: `wanted` for the result
    if that can be, else the operand's as `given`, else one made for the purpose.
    """
    old, new = extents_of(op.arg), extents_of(op.result)
    source = _reshaped(wanted, new, old)
    if source is not None:
        return source, wanted
    result = _reshaped(given, old, new)
    if result is not None:
        return given, result
    flat = _divisible(old, new, warps)
    return flat.reshape(old), flat.reshape(new)


def _reshaped(layout: Layout, old: Sequence[int], new: Sequence[int]) -> Layout | None:
    """A layout under other extents, where that is possible there and back."""
    try:
        found = layout.reshape(new)
        return found if _same_but_ones(old, new) or found.reshape(old) == layout else None
    except LayoutError:
        return None


def _same_but_ones(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a reshape only inserts and drops extents of 1."""
    return [n for n in old if n > 1] == [n for n in new if n > 1]


def crosses(op: tile.Reshape, warps: int) -> bool:
    """Whether a reshape is better sent through shared memory than made a choice of registers: where
    the layout that serves both shapes leaves each thread with far more elements than its share
    (7x16 to 16x7: with all of them).
    """
    t, new = tile_type(op.arg), extents_of(op.result)
    if t.size <= MIN_RESHAPE_PER_THREAD or _same_but_ones(t.extents, new):
        return False
    share = -(-t.size // (WARP * warps))
    most = max(MIN_RESHAPE_PER_THREAD, MAX_RESHAPE_SHARES * share)
    return _divisible(t.extents, new, warps).num_registers > most


def is_free(op: tile.Reshape) -> bool:
    """Whether every thread holds what a reshape, whose layouts are chosen, gives it."""
    try:
        source = layout_of(op.arg).reshape(extents_of(op.result))
    except LayoutError:
        return False
    return register_map(source, layout_of(op.result)) is not None


def _divisible(old: tuple[int, ...], new: tuple[int, ...], warps: int) -> Layout:
    """A layout of the elements in row-major order whose digits divide among the axes of both
    shapes.

    Cut where an axis of either shape begins. If each cut divides the next, the outermost parts go
    to lanes and warps as far as they are powers of two; otherwise (7x5 to 5x7) every thread holds
    everything.
    """
    size = prod(old)
    cuts = sorted({prod(shape[i:]) for shape in (old, new) for i in range(len(shape) + 1)})
    room = {"lanes": WARP, "warps": warps}
    if any(b % a for a, b in pairwise(cuts)):
        cuts = [1, size]
        room = {"lanes": 1, "warps": 1}
    registers: list[Digit] = []
    threads: dict[str, list[Digit]] = {"lanes": [], "warps": []}
    for low, high in reversed(list(pairwise(cuts))):
        extent = high // low
        for place, digits in threads.items():
            here = gcd(extent & -extent, room[place])
            extent, room[place] = extent // here, room[place] // here
            digits.insert(0, Digit(here, 0, low * extent))
        registers.insert(0, Digit(extent, 0, low))

    def filled(digits: list[Digit], count: int) -> tuple[Digit, ...]:
        return *digits, copies(count // prod(d.extent for d in digits))

    return Layout(
        (size,),
        tuple(registers),
        filled(threads["lanes"], WARP),
        filled(threads["warps"], warps),
    )
