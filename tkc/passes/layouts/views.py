"""Views of tiles (broadcasts, transposes, reshapes) and equal parts of them: the layout of one side
from that of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.layout import Layout
from tkc.ir.values import extents_of
from tkc.passes.analysis.access import vectors_first
from tkc.passes.analysis.values import VIEWS

Derive = Callable[[Layout], Layout]
View = tile.Broadcast | tile.Transpose | tile.Reshape


def view_of(value: SSAValue) -> View:
    """The broadcast, transpose or reshape that makes a view."""
    assert isinstance(value.owner, VIEWS)
    return value.owner


def through_views(views: Sequence[View | tile.Slice], layout: Layout) -> Layout:
    """The layout of what views, or parts, are of, from that of the last one, which comes first."""
    for view in views:
        layout = backward(view, layout)
    return layout


def part_of(axis: int, offset: int, extents: Sequence[int], layout: Layout) -> Layout:
    """The layout of a part of a tile along an axis, as threads have it of the whole."""
    offsets = [0] * len(extents)
    offsets[axis] = offset
    return layout.slice(offsets, extents)[0]


def through_part(part: Derive, views: Sequence[View], layout: Layout) -> Layout:
    """The layout of what is shown as a part of a tile, from that of the tile."""
    return through_views(views, part(layout))


def backward(op: View | tile.Slice, layout: Layout) -> Layout:
    """The operand's layout from which the result of a view, or of one of equal parts, in `layout`
    is free.
    """
    match op:
        case tile.Slice():
            for axis, (n, m) in enumerate(
                zip(extents_of(op.result), extents_of(op.arg), strict=True)
            ):
                if n != m:
                    layout = Layout.concat([layout] * (m // n), axis)[0]
                    layout = vectors_first(layout, axis)
            return layout
        case tile.Broadcast():
            return layout.operand_of_broadcast(extents_of(op.arg))
        case tile.Transpose():
            permutation = op.permutation.get_values()
            return layout.transpose([permutation.index(i) for i in range(len(permutation))])
        case tile.Reshape():
            return layout.reshape(extents_of(op.arg))


def forward(op: View, layout: Layout) -> Layout:
    """The layout of a view's result where its operand is in `layout`."""
    new = extents_of(op.result)
    match op:
        case tile.Broadcast():
            for axis, (n, m) in enumerate(zip(extents_of(op.arg), new, strict=True)):
                if n != m:
                    layout = layout.broadcast(axis, m)
            return layout
        case tile.Transpose():
            return layout.transpose(op.permutation.get_values())
        case tile.Reshape():
            return layout.reshape(new)
