"""The elements of tiles that are known when a kernel is compiled: what is computed of aranges and
constants alone, integers of at most 32 bits and truth values.

    known_elements(value)                 all elements, in the tile's extents
    known_in_registers(elements, layout)  of each register, what every thread holds in it
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import shared, tile
from tkc.ir.layout import Layout
from tkc.ir.types import TileType, bits, element_of, is_bool, is_integer, is_unsigned
from tkc.ir.values import operands_first

MOVES = (tile.Splat, tile.Broadcast, tile.Reshape, tile.Transpose, shared.Convert)
Elements = np.ndarray
Found = dict[SSAValue, Elements | None]


def known_elements(value: SSAValue, seen: Found | None = None) -> Elements | None:
    """The elements of a tile (of a scalar: an array of rank 0), None where they are not known.
    seen: what was found out before.
    """
    seen = {} if seen is None else seen
    for at in operands_first(value, _asked, seen):
        seen[at] = _elements(at, seen)
    return seen[value]


def known_in_registers(elements: Elements, layout: Layout) -> list[int | None]:
    """Of each register the number that all threads hold in it, what is padding left out; None where
    they differ. A register of padding alone holds anything: 0.
    """
    held = in_threads(elements, layout)
    real = inside(layout)
    found: list[int | None] = []
    for r in range(layout.num_registers):
        own = held[..., r][real[..., r]]
        same = not own.size or bool((own == own[0]).all())
        found.append((int(own[0]) if own.size else 0) if same else None)
    return found


def in_threads(elements: Elements, layout: Layout) -> Elements:
    """[blocks * warps, lanes, registers]: what each thread holds; of padding, anything."""
    at = np.minimum(layout.table(), np.array(layout.shape, int) - 1)
    return elements[tuple(np.moveaxis(at, -1, 0))]


def inside(layout: Layout) -> np.ndarray:
    """[blocks * warps, lanes, registers]: whether it is an element, not padding."""
    real = layout.table() < np.array(layout.shape, int)
    return np.logical_and.reduce(real, axis=-1)


def _asked(value: SSAValue) -> Iterator[SSAValue]:
    op = value.owner
    if _is_of_integers(value.type) and isinstance(op, (*MOVES, ew.Elementwise, ew.Select, ew.Cast)):
        yield from op.operands


def _is_of_integers(t: Attribute) -> bool:
    element = element_of(t)
    return is_bool(element) or is_integer(element) and bits(element) <= 32


def _elements(value: SSAValue, seen: Found) -> Elements | None:
    """Of operands that were looked at before."""
    t, op = value.type, value.owner
    if not _is_of_integers(t):
        return None
    extents = t.extents if isinstance(t, TileType) else ()
    match op:
        case tile.Constant():
            return np.full(extents, op.number, np.int64)
        case tile.Arange():
            start = op.start.value.data
            return _wrapped(np.arange(start, start + math.prod(extents)), t)
    asked = list(_asked(value))
    args = [a for v in asked if (a := seen[v]) is not None]
    return _computed(op, args, extents, t) if asked and len(args) == len(asked) else None


def _computed(
    op: Operation | Block, args: list[Elements], extents: tuple[int, ...], t: Attribute
) -> Elements | None:
    """Of the operands' elements."""
    match op:
        case tile.Splat() | tile.Broadcast():
            return np.broadcast_to(args[0], extents)
        case tile.Reshape():
            return args[0].reshape(extents)
        case tile.Transpose():
            return args[0].transpose(op.permutation.get_values())
        case ew.Select():
            return np.where(args[0] != 0, args[1], args[2])
        case ew.Elementwise():
            found = ew.of_integers(op.fn.name, *args)
            return None if found is None else _wrapped(found, t)
        case ew.Cast() if is_bool(element_of(t)):
            return (args[0] != 0).astype(np.int64)
    return _wrapped(args[0], t)


def _wrapped(numbers: Elements, t: Attribute) -> Elements:
    """Integers as the element type holds them."""
    element = element_of(t)
    width = 1 if is_bool(element) else bits(element)
    low = numbers & (1 << width) - 1
    if is_unsigned(element) or is_bool(element):
        return low
    return low - ((low >> width - 1) << width)
