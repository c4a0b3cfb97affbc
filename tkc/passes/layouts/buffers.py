"""Buffers in shared memory for tiles: which layout they get, how tiles are written and read.

Of the layouts a buffer may have, the one with the fewest bank conflicts over all its accesses is
taken; the degree of each access is recorded on it (`conflicts`, 1 is none).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TypeVar

from xdsl.dialects.builtin import IntegerAttr, i32, i64
from xdsl.ir import Operation, SSAValue

from tkc.errors import RoomError
from tkc.ir import shared, tile
from tkc.ir.fragments import matrix_access
from tkc.ir.layout import Layout
from tkc.ir.rewrite import before, retype
from tkc.ir.shared_layout import SharedLayout, conflicts_of, exchange_of
from tkc.ir.text import location_of
from tkc.ir.types import SharedType, TileType, bits
from tkc.ir.values import layout_of, shared_type, tile_type
from tkc.passes import PassContext

Access = TypeVar("Access", shared.Read, shared.Write)

SWIZZLE_BYTES = (128, 64, 32)
ROW_PADDING_BYTES = 16
MATRIX_ROW_BYTES = 16  # that a lane moves by ldmatrix and stmatrix


def check_room(t: TileType, op: Operation, context: PassContext) -> None:
    """Raises RoomError for a tile that shared memory cannot hold, before layouts are compared for
    it: of a million elements that takes seconds.
    """
    available = context.target.shared_bytes
    if t.bytes > available:
        raise RoomError(
            f"threads exchange {'x'.join(map(str, t.extents))} elements of a tile through shared"
            f" memory: {t.bytes} bytes, of which {context.target.name} has {available}; use smaller"
            " tiles, or parts of one in a loop",
            location_of(op),
            t.bytes - available,
        )


def allocated(t: TileType, memory: SharedLayout, at: Operation) -> SSAValue:
    """A buffer of one stage for a tile."""
    return before(at, shared.Alloc(SharedType(1, t.shape, t.element, memory))).result


def written(
    buffer: SSAValue, value: SSAValue, at: Operation, context: PassContext, everywhere: bool = False
) -> None:
    """Writes a tile; everywhere: in all blocks of the cluster."""
    t, layout = tile_type(value), in_runs(layout_of(value), buffer, store=True)
    if layout != layout_of(value):
        value = before(at, shared.Convert(value, t.with_layout(layout))).result
    before(at, recorded(shared.Write(buffer, value, everywhere), layout, context))


def read(buffer: SSAValue, t: TileType, at: Operation, context: PassContext) -> SSAValue:
    """A tile in registers, read from a buffer."""
    op = shared.Read(buffer, t)
    wanted = layout_of(op.result)
    layout = in_runs(wanted, buffer)
    retype(op.result, t.with_layout(layout))
    before(at, recorded(op, layout, context))
    return op.result if layout == wanted else before(at, shared.Convert(op.result, t)).result


def in_runs(layout: Layout, buffer: SSAValue, store: bool = False) -> Layout:
    """A tile's layout with neighbours in memory in consecutive registers, so that one access moves
    them, where each thread has some and no matrix instruction moves the tile as it is.
    """
    t = shared_type(buffer)
    return _in_runs(layout, t.memory, bits(t.element), store)


def _in_runs(layout: Layout, memory: SharedLayout, width: int, store: bool = False) -> Layout:
    """The same of a buffer of this layout, with elements of so many bits."""
    if layout.vector(memory.fast) > 1 or matrix_access(layout, memory, width, store) is not None:
        return layout
    run = next((d for d in layout.registers if (d.axis, d.stride) == (memory.fast, 1)), None)
    if run is None or run.extent % 2:
        return layout
    found = replace(layout, registers=(run, *(d for d in layout.registers if d != run)))
    return min(layout, found, key=lambda choice: _cost(choice, memory, width))


def view(
    buffer: SSAValue, offsets: Sequence[int], extents: Sequence[int], at: Operation
) -> SSAValue:
    """A part of a buffer."""
    t = shared_type(buffer)
    numbers = [before(at, tile.Constant(i, i32)).result for i in offsets]
    memory, _ = t.memory.slice(offsets, extents)
    return before(
        at, shared.SharedSlice(buffer, numbers, SharedType(1, tuple(extents), t.element, memory))
    ).result


def through_shared(
    values: Sequence[SSAValue],
    layout: Layout,
    at: Operation,
    context: PassContext,
    everywhere: bool = False,
) -> list[SSAValue]:
    """Small tiles in another layout, all of them written before one is read; everywhere: what each
    block of the cluster holds of them, in all of them.
    """
    types, buffers = [tile_type(value) for value in values], []
    for t, value in zip(types, values, strict=True):
        buffer = allocated(t, best_layout(t, [layout_of(value), layout]), at)
        written(buffer, value, at, context, everywhere)
        buffers.append(buffer)
    return [
        read(buffer, t.with_layout(layout), at, context)
        for t, buffer in zip(types, buffers, strict=True)
    ]


def best_layout(
    t: TileType,
    accesses: list[Layout],
    copied: tuple[Layout, int] | None = None,
    sliced: bool = False,
) -> SharedLayout:
    """The layout of a buffer for a tile: of every order and swizzle that fits, the one whose
    accesses conflict least; ties go to the widest swizzle with the last axis fastest (what tensor
    maps and wgmma read).

    accesses: the layouts in registers of what is written and read; copied: that of the threads of
    an asynchronous copy, and the axis along which a thread copies. sliced: parts start anywhere, so
    no swizzle.
    """
    width = bits(t.element)
    orders = [tuple(reversed(range(t.rank)))]
    if copied is not None:
        fast = copied[1]
        orders = [(fast, *(a for a in orders[0] if a != fast))]
    elif t.rank == 2:
        orders.append((0, 1))
    choices = [
        choice
        for order in orders
        for choice in _choices(t.extents, width, order, sliced, copied is not None)
    ]
    layouts = accesses if copied is None else [*accesses, copied[0]]
    # a swizzle is eight rows high: of a few rows it makes eight
    dense = min(c.bytes for c in choices)
    choices = [c for c in choices if c.bytes <= 2 * dense]

    def cost(memory: SharedLayout) -> float:
        return sum(_cost(_in_runs(layout, memory, width), memory, width) for layout in layouts)

    return min(choices, key=cost)


def is_read_as_well(t: TileType, accesses: list[Layout], fast: int) -> bool:
    """Whether threads read a buffer with this axis fastest in no more passes than one of rows."""
    rows = tuple(reversed(range(t.rank)))
    order = (fast, *(a for a in rows if a != fast))
    width = bits(t.element)
    turned, plain = (
        min(
            sum(_cost(layout, c, width) for layout in accesses)
            for c in _choices(t.extents, width, by, False, True)
        )
        for by in (order, rows)
    )
    return turned <= plain


def _choices(
    extents: tuple[int, ...], width: int, order: tuple[int, ...], sliced: bool, copied: bool
) -> list[SharedLayout]:
    """The layouts that a buffer may have, the preferred first."""
    row = extents[order[0]] * width // 8
    swizzles = [s for s in SWIZZLE_BYTES if row % s == 0 and not sliced]
    choices = [SharedLayout(extents, width, swizzle, order) for swizzle in (*swizzles, 0)]
    if len(extents) > 1 and row % ROW_PADDING_BYTES == 0:
        choices.append(SharedLayout(extents, width, 0, order, pad=ROW_PADDING_BYTES))
    elif len(extents) > 1 and not copied:
        choices.append(SharedLayout(extents, width, 0, order, pad=max(4, width // 8)))
    return choices


def _cost(layout: Layout, memory: SharedLayout, width: int) -> float:
    """Passes of the banks one warp needs to move its registers, for comparing layouts."""
    degree, moved = _degree(layout, memory, width)
    return degree * layout.num_registers * width / 8 / moved


@lru_cache(4096)  # the buffers of a program, and of programs like it, have few kinds of accesses
def _degree(
    layout: Layout, memory: SharedLayout, width: int, store: bool = False
) -> tuple[int, int]:
    """Worst bank conflict of an access, and the bytes each lane moves in one instruction."""
    plan = matrix_access(layout, memory, width, store)
    if plan is not None:
        return plan.conflicts, MATRIX_ROW_BYTES
    vector = layout.vector(memory.fast, max(1, 128 // width))
    row = memory.swizzle or memory.shape[memory.fast] * memory.bits // 8 + memory.pad
    while vector > 1 and (
        layout.num_registers % vector
        or memory.pad % (vector * width // 8)
        or row % (vector * width // 8)
    ):
        vector //= 2
    try:
        if store and width == 32 and exchange_of(layout, memory, vector) is not None:
            return 1, min(16, vector * width // 8)
        return conflicts_of(layout, memory, vector), min(16, vector * width // 8)
    except ValueError:
        return conflicts_of(layout, memory, 1), width // 8


def recorded(op: Access, layout: Layout, context: PassContext) -> Access:
    """The access with its bank conflicts noted; more than none is reported."""
    t = shared_type(op.buffer)
    degree, _ = _degree(layout, t.memory, bits(t.element), isinstance(op, shared.Write))
    op.properties["conflicts"] = IntegerAttr(degree, i64)
    if degree > 1:
        context.decisions.append(
            f"swizzle-shared: {op.name} of {t.memory} has {degree}-way bank conflicts"
        )
    return op


def offsets_of_parts(whole: tuple[int, int], part: tuple[int, int]) -> list[tuple[int, int]]:
    """Where the parts of a matrix begin, column by column."""
    columns, rows = range(0, whole[1], part[1]), range(0, whole[0], part[0])
    return [(row, column) for column, row in product(columns, rows)]
