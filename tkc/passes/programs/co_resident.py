"""Co-resident programs: a block runs neighbours along axis 0, a warpgroup each, which share what
does not depend on axis 0. The part of schedule-programs.

    %m = tile.program_id 0        %member = tile.identity member       0, 1 or 2, by warpgroup
    for %n = %first to %last:     %m = group·3 + %member
      …                      ->   %real = %m < num_programs 0
    store                         for %n = %first to (%real ? %last : %first): …
                                  if %real: store

Such a tile group takes as long as its longest program. So where programs grow along axis 0 (or
slide, shorter ones first), groups are aligned to the end of the axis, and padding tiles stand
before its beginning, beside the shortest programs:

    groups of three, eight programs     0 1 2   3 4 5   6 7 -
    where they grow                     - 0 1   2 3 4   5 6 7

    %t = group·3 - 1 + %member;  %real = %t >= 0;  %m = %real ? %t : num_programs 0

A padding tile before the first program has the id behind the last one, whose blocks no program
reads or writes. Each program runs the iterations that it needs itself; what they share is loaded
once for all of them (warpgroups/co_resident.py).
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tkc.errors import VerifyError
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Select
from tkc.ir.rewrite import Builder, holding
from tkc.ir.threads import Identity
from tkc.ir.values import first_of, owner_op, parent_of

BEGUN = "begun"  # of a loop whose first iteration stands before it (rotate-loops)


def place_of(body: Block, first: SSAValue, rows: SSAValue, last: bool) -> tuple[SSAValue, SSAValue]:
    """The id along axis 0 of one of a tile group's programs, and whether it is in the grid. first:
    where the tile group begins; last: tile groups end with the axis, so that padding tiles stand
    before it.
    """
    build = Builder(first_of(body))
    place = build.add(first, build(Identity("member")))
    if not last:
        return place, build.lt(place, rows)
    real = build.ge(place, 0)
    # what is computed of it may rely on no id being negative
    return (
        build.max(build.select(real, place, rows), 0),
        real,
    )


def only_real(body: Block, real: SSAValue) -> None:
    """Loops with dots have no iteration in a program that is not in the grid."""
    for loop in [op for op in holding(body.walk(), tile.Dot) if isinstance(op, scf.ForOp)]:
        first, last, _ = walked(loop)
        guard = parent_of(loop, scf.IfOp) if BEGUN in loop.attributes else loop
        build = Builder(guard)
        end = build.select(real, last, first)
        ended = loop if loop.ub is last else owner_op(loop.ub)
        ended.operands[list(ended.operands).index(last)] = end
        if guard is not loop:
            guard.operands[0] = build.lt(first, end)


def walked(loop: scf.ForOp) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Where a loop begins and ends, and its step: one whose first iteration stands before it began
    a step earlier, and ended where it ends, if the type holds its second counter (schedule/expand).
    """
    if BEGUN not in loop.attributes:
        return loop.lb, loop.ub, loop.step
    begun, last = loop.lb.owner, loop.ub
    if isinstance(begun, Select) and isinstance(last.owner, CLASSES["min"]):
        last = next(v for v in last.owner.operands if not _chosen_by(v, begun.condition))
        begun = begun.if_true.owner
    if not isinstance(begun, CLASSES["add"]) or begun.operands[1] is not loop.step:
        raise VerifyError(
            "co_resident: a rotated loop does not begin a step behind its first iteration"
        )
    return begun.operands[0], last, loop.step


def _chosen_by(value: SSAValue, condition: SSAValue) -> bool:
    return isinstance(value.owner, Select) and value.owner.condition is condition
