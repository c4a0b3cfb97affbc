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

FLOATS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "div_rn": np.divide,
}  # what integers may become on their way to another integer


def computed(
    op: Operation, number: Callable[[SSAValue], int | float | np.ndarray | None]
) -> int | float | np.ndarray | None:
    """The number that an operation computes of its operands' (which `number` gives), None where it
    is not known: integers, and what is computed of them in float32.
    """
    match op:
        case tile.Constant():
            return op.number if isinstance(op.number, int) else None
        case Cast() if is_float(op.arg.type) and not is_float(op.result.type):
            value = number(op.arg)
            return (
                None
                if value is None
                else (
                    np.trunc(value).astype(np.int64)
                    if isinstance(value, np.ndarray)
                    else int(value)
                )
            )
        case Cast() | tile.Multiple():
            return number(op.operands[0])
        case Select():
            chosen = number(op.operands[0])
            if chosen is None:
                return None
            if not isinstance(chosen, np.ndarray):
                return number(op.operands[1 if chosen else 2])
            a, b = map(number, op.operands[1:])
            return None if a is None or b is None else np.where(chosen, a, b)
        case Elementwise():
            numbers = [number(v) for v in op.operands]
            if any(n is None for n in numbers):
                return None
            if not is_float(op.result.type):
                return of_integers(op.fn.name, *numbers)
            if op.fn.name not in FLOATS:
                return None
            value = FLOATS[op.fn.name](*(np.asarray(n, np.float32) for n in numbers))
            return value if value.ndim else float(value)
    return None
