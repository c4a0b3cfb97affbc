"""Which integers of a program that wrap level 0 follows: those of which offsets, and bounds of the
elements of an access, are made. It keeps their mathematical values beside the wrapped ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.ranges import Overflow, Ranges, repeated_scalar
from tkc.ir.truths import every
from tkc.ir.types import element_of, is_bool, is_integer, is_unsigned
from tkc.sim.errors import OffsetOverflow

COMPARISONS = ("lt", "le", "gt", "ge")
LOGICAL = ("and", "or", "xor", "not")
ARITHMETIC = (
    *("add", "sub", "mul", "neg", "abs", "shl", "max", "min"),
    *("floordiv", "mod", "div_trunc", "rem_trunc"),
)


def follows(op: Operation) -> tuple[str, bool]:
    """How the result of an element-wise operation, or one that moves elements, follows from
    operands that wrapped, and whether it may wrap by itself: "computed" of their mathematical
    values, "moved" as they are, "compared" where one is a bound (`of_bounds`), "" where it does
    not.
    """
    t = element_of(op.results[0].type)
    if not is_bool(t) and (not is_integer(t) or is_unsigned(t)):
        return "", False
    if not isinstance(op, ew.Elementwise):
        return "moved", False
    if is_bool(t):
        if op.fn.name in COMPARISONS:
            return "compared", False
        return ("computed" if op.fn.name in LOGICAL else ""), False
    return ("computed", t != i64) if op.fn.name in ARITHMETIC else ("", False)


def of_bounds(
    operands: Sequence[SSAValue], exact: Sequence[np.ndarray], held: Mapping[SSAValue, np.ndarray]
) -> list[np.ndarray]:
    """What a comparison compares: of its operands the mathematical values of bounds alone, for what
    is no bound wraps as it does; nothing where none is a bound. Asked only where an operand
    wrapped: the ranges that say it take longer than the comparison.
    """
    bounds = list(map(_is_bound, operands))
    if not any(bounds):
        return []
    each = zip(operands, exact, bounds, strict=True)
    return [value if bound else held[v] for v, value, bound in each]


def _is_bound(value: SSAValue) -> bool:
    """Whether a value is a scalar that may bound the elements of a tile. Of a kernel that has been
    planned, programs' numbers are computed, and nothing says any more what a hash is made of.
    """
    scalar = repeated_scalar(value)
    return scalar is not None and not _is_planned(scalar) and Ranges().may_bound(scalar)


def widened(numbers: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Integers as those of 64 bits, in which sums and products of shorter ones do not wrap."""
    return [v.astype(np.int64) if v.dtype.kind in "iu" else v for v in numbers]


def refuse_index(
    op: Operation,
    functions: Mapping[str, Callable[..., np.ndarray]],
    held: Mapping[SSAValue, np.ndarray],
) -> None:
    """Asked of a result that is not the mathematical one. Raises OffsetOverflow where the operation
    itself wraps, though compiled code takes its result for what mathematics says. What an access
    does not reach may wrap as well: another one may be made of the same operands.
    """
    result = op.results[0]
    if not isinstance(op, ew.Elementwise) or _is_planned(result):
        return
    if Ranges().overflow(op) is not Overflow.NEVER:
        return
    x = widened([np.asarray(held[v]) for v in op.operands])
    if not every(functions[op.fn.name](*x) == held[result]):
        raise OffsetOverflow("an integer that offsets may be made of wraps where it is made")


def _is_planned(value: SSAValue) -> bool:
    """Whether a value's kernel has warps."""
    owner = value.owner
    at = owner.parent_op() if isinstance(owner, Block) else owner
    while at is not None and not isinstance(at, tile.Kernel):
        at = at.parent_op()
    return at is not None and at.integer("warps", 0) > 0
