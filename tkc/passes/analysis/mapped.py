"""Which blocks of arrays a tensor map can move, and how: questions about one load or store.

A map's innermost dimension is dense. Where that is not the array's last axis (a transposed matrix,
as `b.T` of torch), the map is of the array with its axes in another order, `order`, and the block
arrives in shared memory transposed: nothing is copied, the dot reads it there as it would any other
major.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, i32, i64
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.host_values import is_whole, may_read_before_memory
from tkc.ir.ranges import Ranges
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.target import ROW_ALIGNMENT
from tkc.ir.types import ArrayFacts, Fact, TileType, bits
from tkc.ir.values import array_type, defining_op, extents_of, tile_type
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import BlockAccess

MAX_BOX_EXTENT = 256  # elements of a map's box along each of its dimensions
MAX_MAP_RANK = 5
BOX_ALIGNMENT = 128  # bytes, of a box in shared memory
MIN_SWIZZLE_BYTES, MAX_SWIZZLE_BYTES = 32, 128
# The attribute of a load whose swizzle has no more bytes than it says: parts of the block that dots
# read begin at its panels.
WIDEST_PANEL = "widest_panel"
# The attribute of a store of which `plan` knew that it begins inside its array: in the order that
# schedule-programs gives them, programs are harder to bound.
BEGINS_INSIDE = "begins_inside"
# And of one of which it knew that it begins inside, or lies before the array as a whole.
BEFORE_OR_INSIDE = "before_or_inside"


def dense_axis(array: SSAValue) -> int:
    """The axis of an array (or view) along which neighbours are neighbours in memory: the last one
    that is known to be dense, the last if none is.
    """
    strides = array_type(array).facts.strides
    dense = [a for a, stride in enumerate(strides) if stride.exact == 1]
    return dense[-1] if dense else len(strides) - 1


def through(view: tile.View, axis: int) -> int:
    """The axis of a view's array that is its axis number `axis`."""
    return [a for a, kind in enumerate(view.kinds) if kind.data != "index"][axis]


def dense_of_block(op: BlockAccess) -> int:
    """The axis of a block's tile that is dense in memory."""
    dense = dense_axis(op.array)
    return sum(n >= 0 for n in op.extents.get_values()[:dense])


@remembered
def of_block(op: tile.Load) -> SharedLayout:
    """The layout in shared memory of a block that a tensor map copies: the widest swizzle of the
    axis that is dense in memory, no wider than what is asked for (WIDEST_PANEL). A single row stays
    as it is (panels would be as high as a swizzle's eight rows), padded to the alignment of the
    next stage.
    """
    t, dense = tile_type(op.result), dense_of_block(op)
    order = (dense, *(a for a in reversed(range(t.rank)) if a != dense))
    if t.size == t.extents[dense] <= MAX_BOX_EXTENT:
        return SharedLayout(t.extents, bits(t.element), 0, order, -t.bytes % BOX_ALIGNMENT)
    most = narrowed_panel(op) or MAX_SWIZZLE_BYTES
    return SharedLayout.widest(t.extents, bits(t.element), order, most)


def narrowed_panel(op: tile.Load) -> int:
    """Bytes that the swizzle of a load's block has at most; 0: as many as fit."""
    asked = op.attributes.get(WIDEST_PANEL)
    return asked.value.data if isinstance(asked, IntegerAttr) else 0


def narrow_panel(op: tile.Load, most: int) -> None:
    """Says how many bytes the swizzle of a load's block has at most; 0: as many as fit."""
    op.attributes.pop(WIDEST_PANEL, None)
    if most:
        op.attributes[WIDEST_PANEL] = IntegerAttr(most, i64)


def lists_rows(op: Operation | Block) -> bool:
    """Whether an operation takes the rows of a block that are dense along its last axis, whatever
    number of axes they lie along, as those of a matrix: in shared memory nothing moves.
    """
    if not isinstance(op, tile.Reshape) or not isinstance(op.arg.owner, tile.Load):
        return False
    block, extents = tile_type(op.arg), extents_of(op.result)
    return (
        len(extents) == 2
        and block.extents[-1] == extents[-1]
        and dense_of_block(op.arg.owner) == block.rank - 1
    )


def layouts_of_operand(operand: SSAValue) -> list[tuple[SSAValue, SharedLayout]]:
    """The tiles in shared memory that a dot's operand is made of, from the load on: the load's
    block and each view of it (transposes, slices, rows of several axes), and their layouts.
    """
    op = operand.owner
    if isinstance(op, tile.Load):
        return [(operand, of_block(op))]
    assert isinstance(op, (tile.Transpose, tile.Reshape, tile.Slice))
    found = layouts_of_operand(op.arg)
    _, memory = found[-1]
    if isinstance(op, tile.Transpose):
        memory = memory.transpose(tuple(op.permutation.get_values()))
    elif isinstance(op, tile.Reshape):
        memory = memory.reshape(extents_of(op.result))
    else:
        memory, _ = memory.slice(op.offsets.get_values(), extents_of(op.result))
    return [*found, (operand, memory)]


def whole_of(array: SSAValue) -> SSAValue:
    """The array that another is a view of, or that array itself."""
    while (view := defining_op(array, tile.View)) is not None:
        array = view.array
    return array


def _is_part(array: SSAValue) -> bool:
    """Whether a view does more than to fix some of the axes of its array."""
    view = defining_op(array, tile.View)
    return view is not None and (
        any(kind.data == "slice" for kind in view.kinds) or _is_part(view.array)
    )


@remembered
def unmapped(op: BlockAccess) -> str:
    """Why a tensor map cannot move a block; empty if it can."""
    whole = whole_of(op.array)
    if op.mask is not None or isinstance(op, tile.Load) and op.other is not None:
        return "a mask"
    if not is_whole(whole) or _is_part(op.array):
        return "an array that the host cannot describe, or part of one"
    if any(isinstance(o.type, TileType) for o in op.offsets):
        return "a gather"
    if may_read_before_memory(whole):
        return "an array that begins before its memory, of which rows may lie outside"
    facts, dense = array_type(whole).facts, dense_axis(op.array)
    return _unmapped_shape(op, facts, dense, _axis_of_argument(op.array, dense)) or _unmapped_start(
        op
    )


@remembered
def _ranges() -> Ranges:
    """What is known of a program's integers."""
    return Ranges()


def divisor(value: SSAValue) -> int:
    """The largest known divisor of an integer (0: it is zero)."""
    found = _ranges().of(value)
    return 1 if found is None else found.divisor


def begins_inside(op: BlockAccess) -> bool:
    """Whether a block is known to begin at no negative element of its array."""
    ranges = _ranges()
    found = [ranges.offset(offset) for offset in op.offsets]
    return all(known is not None and known.lo >= 0 for known in found)


def is_before_or_inside(op: BlockAccess) -> bool:
    """Whether a block that begins before its array along an axis ends before it, too: places are
    multiples of the block's extent, from 0 on or not.
    """
    ranges = _ranges()
    found = zip(op.offsets, op.extents.get_values(), strict=True)
    return all(
        o.type == i32
        and (known := ranges.offset(o)) is not None
        and (known.lo >= 0 or known.divisor % max(n, 1) == 0)
        for o, n in found
    )


def may_lie_before(op: BlockAccess) -> bool:
    """Whether a block that a map stores may lie before its array, as a whole."""
    if BEGINS_INSIDE in op.attributes:
        return False
    return BEFORE_OR_INSIDE in op.attributes or not begins_inside(op)


def _unmapped_start(op: BlockAccess) -> str:
    """Why a tensor map cannot move a block to where it begins; empty if it can. What lies outside
    an array reads as zero on every side of it, but only behind its end is it not written: the copy
    engine raises an illegal instruction for a store or reduction that begins before an array. One
    that lies before it as a whole goes behind its end instead.
    """
    if isinstance(op, tile.Load) or {BEGINS_INSIDE, BEFORE_OR_INSIDE} & op.attributes.keys():
        return ""
    if begins_inside(op) or is_before_or_inside(op):
        return ""
    return "a block that may begin before its array (tkc.maximum with 0 tells that it does not)"


def _unencoded(facts: ArrayFacts, inner: int, itemsize: int) -> str:
    """Why the driver encodes no map of an array whose dense axis is `inner`; empty if it does.
    itemsize: bytes of an element.
    """
    if any(n.exact == 0 for n in facts.shape):
        return "an empty array"
    outer = list(zip(facts.strides, facts.shape, strict=True))
    del outer[inner]
    if any(_is_not_positive(stride) and extent.exact != 1 for stride, extent in outer):
        return "an array with a stride that is 0 or negative"
    steps = [s.divisor if s.exact is None else s.exact for s, _ in outer]
    if facts.align % ROW_ALIGNMENT or any(n * itemsize % ROW_ALIGNMENT for n in steps):
        return "rows that do not start at multiples of 16 bytes"
    return ""


def _is_not_positive(stride: Fact) -> bool:
    return stride.negative or stride.exact is not None and stride.exact <= 0


def _axis_of_argument(array: SSAValue, axis: int) -> int:
    """The axis of an array argument that is an axis of a view of it."""
    while (view := defining_op(array, tile.View)) is not None:
        array, axis = view.array, through(view, axis)
    return axis


def _unmapped_shape(op: BlockAccess, facts: ArrayFacts, dense: int, inner: int) -> str:
    """dense, inner: the dense axis, of the array that is accessed and of the argument."""
    extents = op.extents.get_values()
    itemsize = bits(array_type(op.array).element) // 8
    if extents[dense] < 0 or facts.strides[inner].exact != 1:
        return "neither rows nor columns that are dense"
    outer_extent = max((n for a, n in enumerate(extents) if a != dense), default=1)
    if len(facts.shape) > MAX_MAP_RANK:
        return f"an array of more than {MAX_MAP_RANK} axes"
    if outer_extent > MAX_BOX_EXTENT:
        return "a block too large for a tensor map"
    if unencoded := _unencoded(facts, inner, itemsize):
        return unencoded
    if extents[dense] * itemsize % MIN_SWIZZLE_BYTES:
        return "rows of a block narrower than a swizzle"
    if not isinstance(op, tile.Load) and not facts.shape[inner].divisible(
        max(ROW_ALIGNMENT // itemsize, 1)
    ):
        return "rows whose ends are not known to be multiples of 16 bytes, up to which it writes"
    if divisor(op.offsets[dense]) * itemsize % ROW_ALIGNMENT:
        return (
            "an offset along rows that is not known to be a multiple of 16 bytes (tkc.multiple_of"
            " tells it)"
        )
    return ""
