"""Factors of 8 bits that tensor cores cannot read as they lie: laid anew in shared memory, on their
way from a tensor map to the dot.

wgmma reads 8-bit factors K-major only. And where a dot's left factor is computed from another dot's
result, each lane has columns 2q, 2q + 1 of every eight, while 8-bit A wants four neighbours. A sum
does not mind in which order its terms come: K is counted in the order of those registers
(`permuted_k`), of both factors, so nothing moves between lanes. Either way the right factor is read
and written once more (*relaid*), by a role of its own:

    %v = tile.load … : tile<K x N x f8, "…">                      the layout that ldmatrix gives, transposed where N is dense
    %p = reshape, transpose, reshape of %v                        K in its other order: a choice of registers
    %r = tile.convert %p : … -> tile<…, "…">                      four k to a register: bytes move within a thread
    %b = tile.convert %r : … -> tile<…, "KxNxb8 swizzle 128 order 0x1">        becomes a ring of its own
    %d = tile.dot %a, %b, …

Layouts. Four warps. N dense: two neighbours are the 16 bits of ldmatrix, so a lane (q, g) gets
columns 2g, 2g + 1 of four k; these are 4q … 4q + 3, or 2q, 2q + 1 and eight further on where K is
permuted: with the views that is the same. As four k to a register they are what stmatrix stores in
rows of K. K dense: 16 bytes of a row to a lane.
"""

from __future__ import annotations

from math import gcd

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import Digit
from tkc.ir.elementwise import Cast, Select
from tkc.ir.layout import Layout
from tkc.ir.rewrite import before
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import TileType, bits

WARPS = 4  # of the role that lays factors anew
LARGEST = 1 << 15  # elements of a factor, which its threads hold at once
STEP = 16  # bytes of a row of a matrix that ldmatrix and stmatrix move


def read_layout(extents: tuple[int, int], k: int, dense: int, permuted: bool) -> Layout:
    """The layout in which the role reads a factor whose axes `k` (K) and `dense` (in shared memory)
    are given.
    """
    n = 1 - k
    count = extents[n] // STEP, extents[k] // STEP
    if dense == k:  # 16 k to a lane
        across = gcd(8, count[1])
        down = 32 // across
        return Layout(
            extents,
            (
                Digit(STEP, k, 1),
                Digit(count[1] // across, k, STEP * across),
                Digit(-(-extents[n] // (down * WARPS)), n, down * WARPS),
            ),
            (Digit(across, k, STEP), Digit(down, n, 1)),
            (Digit(WARPS, n, down),),
        )
    wide = gcd(WARPS, count[0])
    deep = WARPS // wide
    q, further = (2, 8) if permuted else (4, 2)
    return Layout(
        extents,
        (
            Digit(2, n, 1),
            Digit(2, k, 1),
            Digit(2, k, further),
            Digit(-(-count[1] // deep), k, STEP * deep),
            Digit(count[0] // wide, n, STEP * wide),
        ),
        (Digit(4, k, q), Digit(8, n, 2)),
        (Digit(wide, n, STEP), Digit(deep, k, STEP)),
    )


def written_layout(layout: Layout, k: int) -> Layout:
    """The same elements in the same threads, those along K first, so that each stmatrix writes the
    same rows and another one those between.
    """
    first = sorted((d for d in layout.registers if d.axis == k), key=lambda d: d.stride)
    return Layout(
        layout.shape,
        (*first, *(d for d in layout.registers if d not in first)),
        layout.lanes,
        layout.warps,
    )


def fits(extents: tuple[int, int], k: int, dense: int) -> bool:
    """Whether a factor's extents can be dealt out so."""
    return (
        len(extents) == 2
        and extents[0] * extents[1] <= LARGEST
        and extents[k] % 32 == 0
        and extents[1 - k] % (STEP if dense != k else 8) == 0
        and extents[k] // STEP % (WARPS // gcd(WARPS, extents[1 - k] // STEP) if dense != k else 1)
        == 0
    )


def permuted(value: SSAValue, k: int, at: Operation) -> SSAValue:
    """A tile in registers with K in the order of an accumulator's registers: views."""
    t = value.type
    k16 = (t.extents[k] // 16, 2, 4, 2)
    shape = (*t.extents[:k], *k16, *t.extents[k + 1 :])
    order = [*range(k), k, k + 2, k + 1, k + 3, *range(k + 4, len(shape))]
    split = before(
        at, tile.Reshape(value, TileType(shape, t.element, t.register_layout.reshape(shape)))
    ).result
    turned = _transposed(split, order, at)
    return before(
        at,
        tile.Reshape(
            turned, TileType(t.extents, t.element, turned.type.register_layout.reshape(t.extents))
        ),
    ).result


def _transposed(value: SSAValue, order: list[int], at: Operation) -> SSAValue:
    t = value.type
    return before(
        at,
        tile.Transpose(
            value,
            order,
            TileType([t.extents[a] for a in order], t.element, t.register_layout.transpose(order)),
        ),
    ).result


def relaid(load: tile.Load, factor: SSAValue, k: int, turn: bool, at: Operation) -> SSAValue:
    """The factor of a dot as a tile in shared memory with K dense, made of a load in registers;
    turn: K permuted.
    """
    views, value = [], factor
    while value is not load.result:
        views.insert(0, value.owner)
        value = value.owner.arg
    for op in views:
        value = _transposed(value, list(op.permutation.get_values()), at)
    if turn:
        value = permuted(value, k, at)
    t = value.type
    value = before(
        at, shared.Convert(value, t.with_layout(written_layout(t.register_layout, k)))
    ).result
    new = before(
        at,
        shared.Convert(
            value, t.with_layout(SharedLayout.widest(t.extents, bits(t.element), (k, 1 - k)))
        ),
    )
    if "number" in load.attributes:
        new.attributes["number"] = IntegerAttr(load.attributes["number"].value.data, i64)
    new.result.name_hint = load.result.name_hint
    return new.result


def casts_behind(factor: SSAValue) -> set[Operation]:
    """The casts that make a dot's left factor, through what loops carry and branches yield."""
    found, seen, work = set(), set(), [factor]
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        match owner:
            case Block() if isinstance(loop := owner.parent_op(), scf.ForOp) and value.index:
                work += [loop.iter_args[value.index - 1], owner.last_op.operands[value.index - 1]]
            case scf.ForOp():
                work += [
                    owner.iter_args[value.index],
                    owner.body.block.last_op.operands[value.index],
                ]
            case scf.IfOp():
                work += [region.block.last_op.operands[value.index] for region in owner.regions]
            case Select():
                work += [
                    v
                    for v in owner.operands
                    if isinstance(v.type, TileType) and v.type.element == value.type.element
                ]
            case Cast():
                found.add(owner)
    return found
