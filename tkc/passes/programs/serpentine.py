"""Serpentine order: every second program of a block walks its loop backwards. The part of
schedule-programs for plans with `serpentine`.

    for %k = %lo to %hi step %s:        for %k = %lo to %hi step %s:
      %acc += dot of block %k     ->      %i = select(%program is odd, %last - (%k - %lo), %k)
                                          %acc += dot of block %i

Blocks of a wave walk K together, so what they read last is still in the L2 cache when their next
programs begin, which share rows or columns with them: those begin at that end. The order of a sum
depends on the launch's size alone, so results are the same bits every time.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import SSAValue

from tkc.ir.rewrite import Builder
from tkc.ir.values import first_of, owner_op
from tkc.passes.analysis.trips import trips


def backwards(
    loop: scf.ForOp, build: Builder, program: SSAValue, first: SSAValue, step: SSAValue
) -> None:
    """build: writes before all that a program does, which is the block's number (program − first) /
    step.
    """
    turn = build.floordiv(build.sub(program, first), step)
    odd = build.eq(build.and_(turn, 1), 1)
    outside, k = Builder(loop), loop.body.block.args[0]
    length = trips(outside, loop.lb, loop.ub, loop.step)
    # first and last: what both of a pair add up to
    ends = outside.add(
        outside.add(loop.lb, loop.lb), outside.mul(outside.sub(length, 1), loop.step)
    )
    inside = Builder(first_of(loop.body.block))
    there = inside.select(odd, inside.sub(ends, k), k)
    select = owner_op(there)
    mirrored = {select, *(v.owner for v in select.operands)}
    for use in list(k.uses):
        if use.operation not in mirrored:
            use.operation.operands[use.index] = there
