"""Values as expressions of what they are computed from, so that two that are computed apart from
one another are seen to be one.
"""

from __future__ import annotations

from collections.abc import Hashable

from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir.values import is_side_effect_free
from tkc.passes.analysis.folding import constant


def expression(value: SSAValue, counter: SSAValue | None = None) -> Hashable:
    """What a value is, with a loop's counter named as such: equal ones are the same number, in the
    same iteration of loops of one range."""
    if value is counter:
        return "counter"
    if (number := constant(value)) is not None:
        return number, value.type
    op = value.owner
    if isinstance(value, BlockArgument) or not isinstance(op, Operation):
        return value
    if op.regions or not is_side_effect_free(op) or len(op.results) > 1:
        return value
    properties = tuple(sorted((name, str(p)) for name, p in op.properties.items()))
    return type(op), properties, tuple(expression(v, counter) for v in op.operands)
