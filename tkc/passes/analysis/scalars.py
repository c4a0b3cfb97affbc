"""Scalars of a program as numbers, where enough is known: of one program, or of all at once as an
array of a number for each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, Elementwise, Select, of_integers
from tkc.ir.types import is_float

Number = int | float | np.ndarray

# What integers may be computed with, in float32, before they become integers again.
FLOATS: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "div_rn": np.divide,
}


def computed(op: Operation, number: Callable[[SSAValue], Number | None]) -> Number | None:
    """The number that an operation computes of its operands' (which `number` gives), None where it
    is not known: integers, and what is computed of them in float32.
    """
    match op:
        case tile.Constant():
            return op.number if isinstance(op.number, int) else None
        case Cast():
            truncates = is_float(op.arg.type) and not is_float(op.result.type)
            return _truncated(number(op.arg)) if truncates else number(op.arg)
        case tile.Multiple():
            return number(op.arg)
        case Select():
            return _selected(op, number)
        case Elementwise():
            return _function(op, [number(v) for v in op.operands])
    return None


def _truncated(value: Number | None) -> Number | None:
    if isinstance(value, np.ndarray):
        return np.trunc(value).astype(np.int64)
    return None if value is None else int(value)


def _selected(op: Select, number: Callable[[SSAValue], Number | None]) -> Number | None:
    condition = number(op.condition)
    if condition is None:
        return None
    if not isinstance(condition, np.ndarray):
        return number(op.if_true if condition else op.if_false)
    a, b = number(op.if_true), number(op.if_false)
    return None if a is None or b is None else np.where(condition, a, b)


def _function(op: Elementwise, numbers: list[Number | None]) -> Number | None:
    if any(n is None for n in numbers):
        return None
    if not is_float(op.result.type):
        return of_integers(op.fn.name, *numbers)
    if op.fn.name not in FLOATS:
        return None
    value = FLOATS[op.fn.name](*(np.asarray(n, np.float32) for n in numbers))
    return value if value.ndim else float(value)
