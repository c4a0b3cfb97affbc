"""Conversions between layouts that threads cannot do in their own registers: through shared
memory.
"""

from __future__ import annotations

from math import gcd

from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.lanes import warp_conversion
from tkc.ir.layout import Layout, movement
from tkc.ir.ranges import Ranges, divisor
from tkc.ir.rewrite import before, erase, replace
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import array_type, defining_op, layout_of, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.access import Access
from tkc.passes.analysis.mapped import dense_axis, dense_of_block
from tkc.passes.layouts.buffers import (
    allocated,
    best_layout,
    check_room,
    is_read_as_well,
    read,
    view,
    written,
)

# Swaps of a conversion: each shuffles half of the registers; shared memory takes all of them twice.
MAX_SWAPS = 3
MIN_COPY_BYTES = 4  # of a thread's asynchronous copy
MAX_COPY_BYTES = 16
MAX_SHUFFLES = 4  # of a thread, in place of a write, a read and two meetings


def is_in_registers(op: shared.Convert) -> bool:
    """Whether each thread has what a conversion gives it."""
    return movement(layout_of(op.arg), layout_of(op.result)) in ("none", "registers")


def is_exchanged(op: shared.Convert) -> bool:
    """Whether lanes hand one another what a conversion needs."""
    return is_handed_on(layout_of(op.arg), layout_of(op.result), bits(tile_type(op.arg).element))


def is_handed_on(have: Layout, wanted: Layout, width: int) -> bool:
    """Whether lanes hand one another elements of so many bits in fewer turns than shared memory
    takes: by swaps, or of a vector that they hold several times by a few shuffles.
    """
    found = warp_conversion(have, wanted)
    if found is None or len(found.swaps) > MAX_SWAPS:
        return False
    return not found.shuffles or width == 32 and found.shuffles <= MAX_SHUFFLES


def convert(op: shared.Convert, context: PassContext) -> None:
    """Through shared memory, where a thread's own registers do not suffice, nor a few shuffles."""
    if is_in_registers(op) or op.parent is None:
        return
    check_room(tile_type(op.arg), op, context)
    load = defining_op(op.arg, tile.Load)
    is_wanted_so = load is None or not all(isinstance(u, shared.Convert) for u in _users(load))
    if load is not None and not is_wanted_so:
        threads = layout_of(load.result)
        if width := _copy_width(load, threads, context):
            _copy(load, threads, width, context)
            return
    if is_exchanged(op):
        return
    t, parts = tile_type(op.result), _parts(op)
    layouts = [layout_of(op.arg), layout_of(op.result)]
    buffer = allocated(t, best_layout(t, layouts, sliced=bool(parts)), op)
    written(buffer, op.arg, op, context)
    _read(op, parts, buffer, context)


def copy_ahead(load: tile.Load, vector: int, context: PassContext) -> None:
    """A copy for a load in a loop that is to run ahead, `vector` bytes at a time; threads may want
    it in the layout in which it is loaded, too. Where each would copy less in that, they copy in
    one of their own, if they need no tile (a mask, numbers of rows) that is in the former.
    """
    if load.result.first_use is None:
        return
    loaded = layout_of(load.result)
    layouts = [loaded]
    if not any(isinstance(v.type, TileType) for v in load.operands):
        layouts.append(Access.of(load, Ranges()).layout(loaded.num_warps, share=False))
    for threads in layouts:
        if (width := _copy_width(load, threads, context)) >= vector:
            _copy(load, threads, width, context)
            return


def _copy(load: tile.Load, threads: Layout, width: int, context: PassContext) -> None:
    """One copy of a block for all the layouts in which it is wanted, `width` bytes at a time.
    threads: which copies what.
    """
    readers = {op: _parts(op) for op in _converted(load)}
    t = tile_type(load.result)
    copied = threads, dense_of_block(load)
    memory = best_layout(t, _wanted(load), copied, sliced=any(readers.values()))
    buffer = allocated(t, memory, load)
    before(
        load,
        shared.Copy(
            load.array,
            load.offsets,
            buffer,
            load.extents.get_values(),
            load.mask,
            load.other,
            vector=width,
            threads=threads,
        ),
    )
    for op, parts in readers.items():
        _read(op, parts, buffer, context)
    if load.result.first_use is not None:
        replace(load, [read(buffer, t, load, context)])


def _users(load: tile.Load) -> list[Operation]:
    return list(dict.fromkeys(use.operation for use in load.result.uses))


def _converted(load: tile.Load) -> list[shared.Convert]:
    """The conversions of a loaded block that move data among threads."""
    users = _users(load)
    return [op for op in users if isinstance(op, shared.Convert) and not is_in_registers(op)]


def _wanted(load: tile.Load) -> list[Layout]:
    """The layouts in which threads want a loaded block."""
    converted = _converted(load)
    own = [layout_of(load.result)] if len(converted) < len(_users(load)) else []
    return [*(layout_of(op.result) for op in converted), *own]


def _read(
    op: shared.Convert, parts: list[tile.Slice], buffer: SSAValue, context: PassContext
) -> None:
    """Reads a buffer in place of a conversion. parts: its only users, which read what they need."""
    for part in parts:
        r = tile_type(part.result)
        piece = view(buffer, part.offsets.get_values(), r.extents, part)
        replace(part, [read(piece, r, part, context)])
    if parts:
        erase(op)
    else:
        replace(op, [read(buffer, tile_type(op.result), op, context)])


def reshape(op: tile.Reshape, context: PassContext) -> None:
    """Row-major into shared memory, and read under the other extents."""
    old, new = tile_type(op.arg), tile_type(op.result)
    buffer = allocated(old, SharedLayout(old.extents, bits(old.element)), op)
    written(buffer, op.arg, op, context)
    reshaped = before(op, shared.SharedReshape(buffer, new.extents)).result
    replace(op, [read(reshaped, new, op, context)])


def _parts(op: shared.Convert) -> list[tile.Slice]:
    """The slices of a converted tile, where nothing else uses it: each is then read where it is
    used, not the tile at once.
    """
    users = [use.operation for use in op.result.uses]
    parts = [user for user in users if isinstance(user, tile.Slice) and user.strides is None]
    return parts if len(parts) == len(users) else []


def _copy_width(load: tile.Load, threads: Layout, context: PassContext) -> int:
    """Bytes of each thread's asynchronous copies of a load in a layout; 0 where it must pass
    through registers: it fills with something else than zero, gathers along the axis that is dense
    in memory, drops that, is better read along another, or moves less than 4 bytes at a time; and
    in a role, whose copies are its producer's.
    """
    if load.other is not None or context.has_roles:
        return 0
    facts, extents = array_type(load.array).facts, load.extents.get_values()
    axis = dense_axis(load.array)
    is_gather = isinstance(load.offsets[axis].type, TileType)
    if extents[axis] < 0 or facts.strides[axis].exact != 1 or is_gather:
        return 0
    if not is_read_as_well(tile_type(load.result), _wanted(load), dense_of_block(load)):
        return 0
    itemsize = bits(element_of(load.result.type)) // 8
    run = threads.vector(dense_of_block(load)) * itemsize
    strides = [s.divisor if s.exact is None else s.exact for s in facts.strides]
    offset = divisor(load.offsets[axis]) * itemsize  # 0 where the offset is zero
    ragged = (facts.shape[axis].exact or facts.shape[axis].divisor) * itemsize
    steps = [n * itemsize for a, n in enumerate(strides) if a != axis]
    # gcd(0, n) is n: what is zero bounds nothing
    width = gcd(run, facts.align, offset, ragged, MAX_COPY_BYTES, *steps)
    return width if width >= MIN_COPY_BYTES else 0
