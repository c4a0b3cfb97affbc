"""Reductions as data: the function of two elements that each repeats, and the element that changes
nothing.
"""

from __future__ import annotations

from xdsl.ir import Attribute

from tkc.ir.types import TileType, bits, element_of, f32, is_bool, is_float, is_unsigned

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
