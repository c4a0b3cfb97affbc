"""Reductions as data: the function of two elements that each repeats, and the element that changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import copysign

from xdsl.ir import Attribute, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, Elementwise, Select
from tkc.ir.shared import Convert
from tkc.ir.types import (
    TileType,
    bits,
    element_of,
    f32,
    is_bool,
    is_float,
    is_integer,
    is_unsigned,
)

FUNCTION = {
    "sum": "add",
    "prod": "mul",
    "max": "max",
    "min": "min",
    "fmax": "fmax",
    "fmin": "fmin",
    "any": "or",
    "all": "and",
    "xor": "xor",
}
# of which an element may count several times
IDEMPOTENT = ("max", "min", "fmax", "fmin", "any", "all")
# of integers, by one instruction of a whole warp
WARP_INSTRUCTION = {"sum": "add", "xor": "xor", "max": "max", "min": "min"}


def reduces_at_once(kind: str, element: Attribute) -> bool:
    """Whether one instruction reduces what all lanes of a warp have: of integers of 32 bits, which
    floats are where their order alone counts.
    """
    if is_float(element):
        return kind in ("max", "min", "fmax", "fmin") and bits(element) <= 32
    return kind in WARP_INSTRUCTION and bits(element) == 32


def total_type(kind: str, t: Attribute) -> Attribute:
    """What parts of a reduction are joined in: short floats are not rounded after each."""
    short = is_float(element_of(t)) and bits(element_of(t)) < 32 and kind in ("sum", "prod")
    return t if not short else TileType(t.extents, f32) if isinstance(t, TileType) else f32


def neutral(kind: str, element: Attribute) -> bool | int | float:
    """What changes nothing: -0.0 of sums, which keeps one of -0.0 what it is; of argmax and argmin,
    what never wins; of fmax and fmin NaN, which any number replaces.
    """
    if kind in ("fmax", "fmin"):
        return float("nan")
    if kind in ("sum", "xor", "any"):
        return False if is_bool(element) else -0.0 if is_float(element) else 0
    if kind == "prod":
        return 1.0 if is_float(element) else 1
    if kind == "all":
        return True
    low = kind in ("max", "argmax")
    if is_bool(element):
        return not low
    if is_float(element):
        return float("-inf") if low else float("inf")
    width, unsigned = bits(element), is_unsigned(element)
    if unsigned:
        return 0 if low else (1 << width) - 1
    return -(1 << width - 1) if low else (1 << width - 1) - 1


@dataclass(frozen=True)
class OnlyPlace:
    """One place along an axis of a tile: that of a number, of which the first is `first`."""

    tile: SSAValue
    number: SSAValue
    first: int


def only_place(op: tile.Reduce) -> OnlyPlace | None:
    """Of a sum of `where(places == n, x, 0)` along the axis of its places, which picks one element
    of each line: x at n. None of other reductions.
    """
    chosen = op.args[0].owner
    if op.kind.data != "sum" or not isinstance(chosen, Select):
        return None
    if not _is_zero(chosen.if_false) or not isinstance(chosen.condition.type, TileType):
        return None
    at = _along(chosen.condition, op.axis.value.data)
    if at is None or not isinstance(equal := at[0].owner, Elementwise) or equal.fn.name != "eq":
        return None
    for places, number in (equal.args, equal.args[::-1]):
        one, found = _scalar(number), _along(places, at[1])
        if one is not None and found is not None and isinstance(found[0].owner, tile.Arange):
            return OnlyPlace(chosen.if_true, one, found[0].owner.start.value.data)
    return None


def _is_zero(value: SSAValue) -> bool:
    """Whether a value is 0, and not -0."""
    while isinstance(value.owner, (tile.Splat, tile.Broadcast, tile.Reshape, Convert)):
        value = value.owner.operands[0]
    number = value.owner.number if isinstance(value.owner, tile.Constant) else None
    return number == 0 and copysign(1, number) > 0


def _scalar(value: SSAValue) -> SSAValue | None:
    """What every element of a tile is."""
    while isinstance(value.owner, (tile.Splat, tile.Broadcast, tile.Reshape, Convert)):
        value = value.owner.operands[0]
    return None if isinstance(value.type, TileType) or not is_integer(value.type) else value


def _along(value: SSAValue, axis: int) -> tuple[SSAValue, int] | None:
    """The tile whose elements another one repeats, and its axis that is the other's `axis`; None
    where it has none.
    """
    while isinstance(op := value.owner, (tile.Broadcast, tile.Reshape, Cast, Convert)):
        t, source = value.type, op.operands[0].type
        if isinstance(op, Cast) and not _keeps_apart(op):
            return None
        if not isinstance(t, TileType) or not isinstance(source, TileType):
            return None
        if isinstance(op, tile.Reshape):
            found = _without_units(t.extents, source.extents, axis)
            if found is None:
                return None
            axis = found
        if source.extents[axis] == 1 and isinstance(op, tile.Broadcast):
            return None
        value = op.operands[0]
    return value, axis


def _keeps_apart(op: Cast) -> bool:
    """Whether a cast of places gives different ones different values: truth values as they are, and
    integers that hold any place.
    """
    element = element_of(op.result.type)
    return is_bool(element_of(op.arg.type)) or is_integer(element) and bits(element) >= 32


def _without_units(shape: Sequence[int], other: Sequence[int], axis: int) -> int | None:
    """The axis that is one of another shape's, which differs in axes of one element alone."""
    wide, before = ([a for a, n in enumerate(s) if n > 1] for s in (shape, other))
    same = [shape[a] for a in wide] == [other[a] for a in before]
    return before[wide.index(axis)] if same and axis in wide else None
