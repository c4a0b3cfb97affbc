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
    same iteration of loops of one range. Its type is part of it: casts of one number to several
    types differ.
    """
    if value is counter:
        return "counter"
    if (number := constant(value)) is not None:
        return repr(number), value.type  # 0.0 is not -0.0
    op = value.owner
    if isinstance(value, BlockArgument) or not isinstance(op, Operation):
        return value
    if op.regions or not is_side_effect_free(op) or len(op.results) > 1:
        return value
    properties = tuple(sorted((name, str(p)) for name, p in op.properties.items()))
    operands = tuple(expression(v, counter) for v in op.operands)
    return type(op), properties, value.type, operands
