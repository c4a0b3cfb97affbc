"""How often a loop runs, computed where it is asked for.

    range(first, last, step)       (last - first + step - 1) // step
                                   (last - 1 - first) // step + 1 without a sign, if first < last

The first needs bounds that lie no farther apart than their type reaches, as an array's extent and
0 do. Where a bound may be any number it is the second: without a sign a type holds the distance of
any two of its numbers.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import SSAValue

from tkc.ir.elementwise import Cast
from tkc.ir.ranges import Ranges, bounds
from tkc.ir.rewrite import Builder
from tkc.ir.types import SIGNED, UNSIGNED


def trips(build: Builder, first: SSAValue, last: SSAValue, step: SSAValue) -> SSAValue:
    """The number of iterations of a loop from `first` to `last`, integers of one type, by a step of
    1 and more; 0 or less where there are none.
    """
    if not _may_lie_apart(first, last, step):
        return build.up(build.sub(last, first), step)
    count = build.add(_apart(build, first, build.sub(last, 1), step), 1)
    return build.select(build.lt(first, last), count, 0)


def steps_to(build: Builder, first: SSAValue, there: SSAValue, step: SSAValue) -> SSAValue:
    """The number of whole steps from `first` to a number that is not less."""
    if not _may_lie_apart(first, there, step):
        return build.floordiv(build.sub(there, first), step)
    return _apart(build, first, there, step)


def _apart(build: Builder, first: SSAValue, there: SSAValue, step: SSAValue) -> SSAValue:
    """The number of whole steps from `first` to a number that is not less, however far."""
    without_sign = UNSIGNED[SIGNED.index(first.type)]
    distance = build(Cast(build.sub(there, first), without_sign))
    whole = build.floordiv(distance, build(Cast(step, without_sign)))
    return build(Cast(whole, first.type))


def counter_of(build: Builder, loop: scf.ForOp, count: SSAValue, n: SSAValue) -> SSAValue:
    """The counter of iteration n of `count`; where the loop ends, if it has fewer."""
    counter = build.add(loop.lb, build.mul(n, loop.step))
    return build.select(build.lt(n, count), counter, loop.ub)


def _may_lie_apart(first: SSAValue, last: SSAValue, step: SSAValue) -> bool:
    """Whether their type may not hold the distance of two bounds and a step: not of extents and
    numbers of programs, which are not that large.
    """
    ranges, whole = Ranges(), bounds(first.type)
    begin, end, by = (ranges.known(v) for v in (first, last, step))
    assert whole is not None
    may_be_any = any(r.is_data or r.exact is not None for r in (begin, end) if r.exact != 0)
    return may_be_any and not (
        whole.lo <= end.lo - begin.hi and end.hi - begin.lo + by.hi - 1 <= whole.hi
    )
