"""Conversions between layouts that threads cannot do in their own registers: through shared
memory.
"""

from __future__ import annotations

from math import gcd
from typing import cast

from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.layout import Layout, movement
from tkc.ir.ranges import divisor
from tkc.ir.rewrite import before, erase, replace
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import array_type, defining_op, layout_of, tile_type
from tkc.passes import PassContext
from tkc.passes.layouts.buffers import allocated, best_layout, read, view, written

MIN_COPY_BYTES = 4  # of a thread's asynchronous copy
MAX_COPY_BYTES = 16


def is_in_registers(op: shared.Convert) -> bool:
    """Whether each thread has what a conversion gives it."""
    return movement(layout_of(op.arg), layout_of(op.result)) in ("none", "registers")


def convert(op: shared.Convert, context: PassContext) -> None:
    """Through shared memory, where a thread's own registers do not suffice."""
    if is_in_registers(op) or op.parent is None:
        return
    load = defining_op(op.arg, tile.Load)
    # a role's threads copy nothing: copies are its producer's
    width = 0 if context.has_roles or load is None else _copy_width(load)
    if load is not None and width:
        _copy(load, width, context)
        return
    t, parts = tile_type(op.result), _parts(op)
    layouts = [layout_of(op.arg), layout_of(op.result)]
    buffer = allocated(t, best_layout(t, layouts, sliced=bool(parts)), op)
    written(buffer, op.arg, op, context)
    _read(op, parts, buffer, context)


def _copy(load: tile.Load, width: int, context: PassContext) -> None:
    """One copy of a block for all the layouts in which it is wanted, `width` bytes at a time."""
    users = [cast(shared.Convert, use.operation) for use in load.result.uses]
    readers = {op: _parts(op) for op in users if not is_in_registers(op)}
    t, source = tile_type(load.result), layout_of(load.result)
    wanted, sliced = [layout_of(op.result) for op in readers], any(readers.values())
    buffer = allocated(t, best_layout(t, wanted, copied=source, sliced=sliced), load)
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
            threads=source,
        ),
    )
    for op, parts in readers.items():
        _read(op, parts, buffer, context)


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


def _copy_width(load: tile.Load) -> int:
    """Bytes of each thread's asynchronous copies of a load; 0 where it must pass through registers:
    it has other uses, fills with something else than zero, gathers along its rows, drops an axis
    that is not leading, or moves less than 4 bytes at a time.
    """
    users: list[Operation] = [use.operation for use in load.result.uses]
    if load.other is not None or not all(isinstance(user, shared.Convert) for user in users):
        return 0
    facts, extents = array_type(load.array).facts, load.extents.get_values()
    axis = len(extents) - 1
    is_gather = isinstance(load.offsets[axis].type, TileType)
    if extents[axis] < 0 or facts.strides[axis].exact != 1 or is_gather:
        return 0
    itemsize = bits(element_of(load.result.type)) // 8
    run = _run(layout_of(load.result)) * itemsize
    strides = [s.divisor if s.exact is None else s.exact for s in facts.strides[:-1]]
    offset = divisor(load.offsets[axis]) * itemsize  # 0 where the offset is zero
    ragged = (facts.shape[axis].exact or facts.shape[axis].divisor) * itemsize
    steps = [n * itemsize for n in strides]
    # gcd(0, n) is n: what is zero bounds nothing
    width = gcd(run, facts.align, offset, ragged, MAX_COPY_BYTES, *steps)
    return width if width >= MIN_COPY_BYTES else 0


def _run(layout: Layout) -> int:
    return layout.vector(layout.rank - 1)
