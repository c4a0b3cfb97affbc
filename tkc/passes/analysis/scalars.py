"""Scalars of a program as numbers, where enough is known: of one program, or of all at once as an array of a number for each."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, Elementwise, Select, of_integers


def computed(op: Operation, number: Callable[[SSAValue], int | np.ndarray | None]) -> int | np.ndarray | None:
    """The integer that an operation computes of its operands' (which `number` gives), None where it is not known."""
    match op:
        case tile.Constant(): return op.number if isinstance(op.number, int) else None
        case Cast() | tile.Multiple(): return number(op.operands[0])
        case Select():
            chosen = number(op.operands[0])
            if chosen is None: return None
            if not isinstance(chosen, np.ndarray): return number(op.operands[1 if chosen else 2])
            a, b = map(number, op.operands[1:])
            return None if a is None or b is None else np.where(chosen, a, b)
        case Elementwise():
            numbers = [number(v) for v in op.operands]
            return None if any(n is None for n in numbers) else of_integers(op.fn.name, *numbers)
    return None
