"""Operands of 8 bits that tensor cores cannot read as they are in shared memory: relaid out there,
between a tensor map's copy and the dot.

wgmma reads 8-bit operands K-major only. And where a dot's left operand is computed from another
dot's result, each lane has columns 2q, 2q + 1 of every eight, while 8-bit A wants four neighbours.
An accumulator does not depend on the order of its terms: K is counted in the order of those
registers (`permuted_k`), of both operands, so nothing moves between lanes. Either way the right
operand is read and written once more (*relaid*), by a role of its own:

    %v = tile.load … : tile<K x N x f8, "…">      the layout that ldmatrix gives
    %p = reshape, transpose, reshape of %v        K in its other order: a choice of registers
    %r = tile.convert %p : … -> tile<…, "…">      four k to a register: bytes move within a thread
    %b = tile.convert %r : … -> tile<…, "KxNxb8 swizzle 128 order 0x1">
    %d = tile.dot %a, %b, …

%v is transposed where N is dense; %b becomes a ring of its own.

Layouts. Four warps. N dense: two neighbours are the 16 bits of ldmatrix, so a lane (q, g) gets
columns 2g, 2g + 1 of four k; these are 4q … 4q + 3, or 2q, 2q + 1 and eight further on where K is
permuted: with the views that is the same. As four k to a register they are what stmatrix stores in
rows of K. K dense: 16 bytes of a row to a lane.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import Digit, LayoutError
from tkc.ir.elementwise import Cast, Select
from tkc.ir.layout import WARP, Layout, blocked
from tkc.ir.plan import fill_ring
from tkc.ir.rewrite import before
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import (
    defining_op,
    extents_of,
    index_of,
    layout_of,
    reached,
    tile_type,
    yielded_by,
)

RELAYOUT_WARPS = 4  # of the role that relays operands out
MAX_OPERAND_ELEMENTS = 1 << 15  # which its threads hold at once
MATRIX_ROW_BYTES = 16  # that ldmatrix and stmatrix move


def read_layout(extents: tuple[int, ...], k: int, dense: int, permuted: bool) -> Layout:
    """The layout in which the role reads an operand whose axes `k` (K) and `dense` (in shared
    memory) are given.
    """
    n = 1 - k
    count_n, count_k = extents[n] // MATRIX_ROW_BYTES, extents[k] // MATRIX_ROW_BYTES
    if dense == k:  # 16 k to a lane
        across = gcd(8, count_k)
        down = 32 // across
        repeats = -(-extents[n] // (down * RELAYOUT_WARPS))
        return Layout(
            extents,
            (
                Digit(MATRIX_ROW_BYTES, k, 1),
                Digit(count_k // across, k, MATRIX_ROW_BYTES * across),
                Digit(repeats, n, down * RELAYOUT_WARPS),
            ),
            (Digit(across, k, MATRIX_ROW_BYTES), Digit(down, n, 1)),
            (Digit(RELAYOUT_WARPS, n, down),),
        )
    wide = gcd(RELAYOUT_WARPS, count_n)
    deep = RELAYOUT_WARPS // wide
    q, further = (2, 8) if permuted else (4, 2)
    return Layout(
        extents,
        (
            Digit(2, n, 1),
            Digit(2, k, 1),
            Digit(2, k, further),
            Digit(-(-count_k // deep), k, MATRIX_ROW_BYTES * deep),
            Digit(count_n // wide, n, MATRIX_ROW_BYTES * wide),
        ),
        (Digit(4, k, q), Digit(8, n, 2)),
        (Digit(wide, n, MATRIX_ROW_BYTES), Digit(deep, k, MATRIX_ROW_BYTES)),
    )


def written_layout(layout: Layout, k: int) -> Layout:
    """The same elements in the same threads, those along K first, so that each stmatrix writes the
    same rows and another one those between.
    """
    first = sorted((d for d in layout.registers if d.axis == k), key=lambda d: d.stride)
    return replace(layout, registers=(*first, *(d for d in layout.registers if d not in first)))


def fits(extents: tuple[int, ...], k: int, dense: int) -> bool:
    """Whether the role's threads can share an operand of these extents."""
    if len(extents) != 2 or prod(extents) > MAX_OPERAND_ELEMENTS or extents[k] % 32:
        return False
    n = extents[1 - k]
    if dense == k:
        return n % 8 == 0
    deep = RELAYOUT_WARPS // gcd(RELAYOUT_WARPS, n // MATRIX_ROW_BYTES)
    return n % MATRIX_ROW_BYTES == 0 and extents[k] // MATRIX_ROW_BYTES % deep == 0


def permuted(value: SSAValue, k: int, at: Operation) -> SSAValue:
    """A tile in registers with K in the order of an accumulator's registers: views."""
    extents = extents_of(value)
    k16 = (extents[k] // 16, 2, 4, 2)
    shape = (*extents[:k], *k16, *extents[k + 1 :])
    order = [*range(k), k, k + 2, k + 1, k + 3, *range(k + 4, len(shape))]
    return _reshaped(_transposed(_reshaped(value, shape, at), order, at), extents, at)


def _reshaped(value: SSAValue, shape: tuple[int, ...], at: Operation) -> SSAValue:
    t = TileType(shape, element_of(value.type), layout_of(value).reshape(shape))
    return before(at, tile.Reshape(value, t)).result


def _transposed(value: SSAValue, order: list[int], at: Operation) -> SSAValue:
    extents = [extents_of(value)[a] for a in order]
    t = TileType(extents, element_of(value.type), layout_of(value).transpose(order))
    return before(at, tile.Transpose(value, order, t)).result


def relaid(
    load: tile.Load, operand: SSAValue, k: int, is_permuted: bool, at: Operation, ring: int
) -> SSAValue:
    """The operand of a dot as a tile in shared memory with K dense, made of a load in registers;
    is_permuted: with K permuted; ring: whose stage it is.
    """
    views: list[tile.Transpose] = []
    value = operand
    while value is not load.result:
        view = defining_op(value, tile.Transpose)
        assert view is not None
        views.insert(0, view)
        value = view.arg
    for view in views:
        value = _transposed(value, list(view.permutation.get_values()), at)
    if is_permuted:
        value = permuted(value, k, at)
    t = tile_type(value)
    written = t.with_layout(written_layout(layout_of(value), k))
    memory = t.with_layout(SharedLayout.widest(t.extents, bits(t.element), (k, 1 - k)))
    value = before(at, shared.Convert(value, written)).result
    new = before(at, shared.Convert(value, memory))
    fill_ring(new, ring)
    new.result.name_hint = load.result.name_hint
    return new.result


def casts_behind(operand: SSAValue) -> set[Cast]:
    """The casts that make a dot's left operand, through what loops carry and branches yield."""
    values = reached([operand], lambda v: () if isinstance(v.owner, Cast) else _sources(v))
    return {v.owner for v in values if isinstance(v.owner, Cast)}


def _sources(value: SSAValue) -> list[SSAValue]:
    """The values that a loop's, a branch's or a select's result may be."""
    owner = value.owner
    match owner:
        case Block() if isinstance(loop := owner.parent_op(), scf.ForOp):
            i = index_of(value) - 1
            return [loop.iter_args[i], yielded_by(owner)[i]] if i >= 0 else []
        case scf.ForOp():
            i = index_of(value)
            return [owner.iter_args[i], yielded_by(owner.body.block)[i]]
        case scf.IfOp():
            return [yielded_by(region.block)[index_of(value)] for region in owner.regions]
        case Select():
            element = element_of(value.type)
            return [
                v
                for v in owner.operands
                if isinstance(v.type, TileType) and v.type.element == element
            ]
    return []


# ---- operands that are computed
def operand_memory(t: TileType, k: int) -> SharedLayout:
    """Where threads write an operand of a dot that they compute. k: its axis that is K. 16 bits may
    stay in rows, which matrix stores write at once; others are read K-major only.
    """
    fast = t.rank - 1 if bits(t.element) == 16 else k
    return SharedLayout.widest(t.extents, bits(t.element), (fast, 1 - fast))


def computed_layout(t: TileType, fast: int, reduced: frozenset[int]) -> Layout:
    """The layout in which the role computes an operand: 16 bytes along the axis that is dense where
    it is written to a lane, as long a piece of it to a warp as a matrix store takes, and warps
    along an axis that nothing is reduced along. Raises LayoutError where threads have none.
    """
    across = 1 - fast
    vector = gcd(8 * MATRIX_ROW_BYTES // bits(t.element), t.extents[fast])
    wide = gcd(8, t.extents[fast] // vector)
    lanes = {fast: wide, across: WARP // wide}
    free = [axis for axis in (across, fast) if axis not in reduced]
    if not free:
        raise LayoutError("an operand is reduced along both of its axes")
    warps = {axis: RELAYOUT_WARPS if axis == free[0] else 1 for axis in (0, 1)}
    each = {fast: vector, across: 1}
    if any(t.extents[axis] % (each[axis] * lanes[axis] * warps[axis]) for axis in (0, 1)):
        raise LayoutError(f"{RELAYOUT_WARPS} warps do not share an operand so small")
    return blocked(
        t.extents,
        vector,
        (warps[0], warps[1]),
        (fast, across),
        (lanes[0], lanes[1]),
    )
