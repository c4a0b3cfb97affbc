"""Reductions and scans by functions of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from xdsl.ir import Block, Region

from tkc.ir import tile
from tkc.ir.types import element_of
from tkc.language.control import callable_in_kernel, unchanged
from tkc.language.operations import axis_of, restore_axes, tile_of
from tkc.language.tracer import fail, tracer
from tkc.language.values import Tile, Value, describe, lift, wrap

Combine: TypeAlias = Callable[..., Any]


def _combine_region(tiles: list[Tile], combine: Combine) -> Region:
    """The user's combination, traced on 2n scalars."""
    t, elements = tracer(), [element_of(x.ssa.type) for x in tiles]
    block = Block(arg_types=elements * 2)
    with unchanged("the combination of a reduction or scan"), t.inside(block):
        got = callable_in_kernel(combine)(*map(wrap, block.args))
        got = list(got) if isinstance(got, (tuple, list)) else [got]
        if len(got) != len(tiles):
            fail(f"the combination of {len(tiles)} tiles gives {len(tiles)} values, got {len(got)}")
        for x, g in zip(tiles, got, strict=True):
            if isinstance(g, Value) and (g.dtype is not x.dtype or g.shape):
                fail(f"the combination of {x.dtype.name} gives {x.dtype.name}, got {describe(g)}")
        t.emit(tile.Yield(*(lift(g, x.dtype).use() for x, g in zip(tiles, got, strict=True))))
    return Region(block)


def _tiles(x: Value | Sequence[Value], what: str) -> list[Tile]:
    tiles = [tile_of(t, what) for t in (x if isinstance(x, (tuple, list)) else (x,))]
    if not tiles or any(t.shape != tiles[0].shape for t in tiles):
        fail(f"{what} takes tiles of one shape, got {', '.join(map(describe, tiles))}")
    return tiles


def reduce(
    x: Value | Sequence[Value], axis: int, combine: Combine, keep_dims: bool = False
) -> Value | tuple[Value, ...]:
    """A reduction by an associative function of scalars: combine(a, b), or combine(a0, a1, b0, b1)
    for a tuple of two tiles.
    """
    tiles = _tiles(x, "tkc.reduce")
    axis, region = axis_of(axis, tiles[0], "tkc.reduce"), _combine_region(tiles, combine)
    op = tile.Reduce("combine", [t.use() for t in tiles], axis, combine=region)
    found = tuple(map(wrap, tracer().emit(op).results))
    if keep_dims:
        found = tuple(restore_axes(r, tiles[0].shape, (axis,)) for r in found)
    return found if isinstance(x, (tuple, list)) else found[0]


def scan(
    x: Value | Sequence[Value], axis: int, combine: Combine, reverse: bool = False
) -> Value | tuple[Value, ...]:
    """An inclusive prefix scan by an associative function of scalars, as in tkc.reduce."""
    tiles = _tiles(x, "tkc.scan")
    axis, region = axis_of(axis, tiles[0], "tkc.scan"), _combine_region(tiles, combine)
    op = tile.Scan("combine", [t.use() for t in tiles], axis, reverse, region)
    found = tuple(map(wrap, tracer().emit(op).results))
    return found if isinstance(x, (tuple, list)) else found[0]
