"""Split-K: several programs share one output tile, each with a part of its loop; the last one to
finish adds the parts up, in order, and runs the epilogue. The part of schedule-programs for plans
with `split_k` > 1.

    for %k = %lo to %hi: %acc += dot      for %k in part %s of %lo … %hi: %acc += dot
    tile.store %c, f(%acc)          ->    tile.store %parts[%program·S + %s], %acc
                                          %n = tile.atomic add %count[%program], 1
                                          scf.if %n == S - 1 {
                                            %all = %parts[0] + %parts[1] + …
                                            tile.store %c, f(%all)
                                            tile.atomic exchange %count[%program], 0
                                          }

As many parts as registers hold are asked for at once, and then added (parts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Block, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, PointerAdd
from tkc.ir.rewrite import Builder
from tkc.ir.threads import Workspace
from tkc.ir.values import is_side_effect_free, parent_of, terminator_of, tile_type
from tkc.passes.planning.operands import simple
from tkc.passes.planning.roles.registers import PART_REGISTERS, parts_at_once
from tkc.passes.programs.parts import Parts, after_loop, go_on, kept


def undivided(kernel: tile.Kernel, dots: Sequence[tile.Dot]) -> str:
    """Why a kernel's loop cannot be shared by several programs; empty if it can: it makes one sum,
    and all that has an effect comes after it.
    """
    if len(dots) != 1 or not simple(dots[0]):
        return "its loop does more than accumulate one dot"
    loop = parent_of(dots[0], scf.ForOp)
    if len(loop.iter_args) > 1:
        return "its loop carries more than an accumulator"
    if loop.parent is not kernel.body.block:
        return "its loop is not the program's outermost"
    if any(
        not (is_side_effect_free(op) or isinstance(op, tile.Load))
        for op in loop.body.block.ops
        if op is not loop.body.block.last_op
    ):
        return "its loop has effects"
    for op in kernel.body.block.ops:
        if op is loop:
            break
        if op.regions or not (is_side_effect_free(op) or isinstance(op, tile.Load)):
            return "something has an effect before its loop"
    return ""


@dataclass(frozen=True)
class Part:
    """Which program of the output's blocks a turn has, and which of its parts; None of one that is
    not divided.
    """

    number: SSAValue
    part: SSAValue | None

    @staticmethod
    def of(build: Builder, turn: SSAValue, parts: int) -> Part:
        if parts == 1:
            return Part(turn, None)
        number = build.floordiv(turn, parts)
        return Part(number, build.sub(turn, build.mul(number, parts)))


def divide(body: Block, loop: scf.ForOp, turn: Part, parts: int, threads: int) -> None:
    """Divides the loop of an output tile, and lets the last program run what follows the loop.
    threads: that share a program's sums.
    """
    program, part = turn.number, turn.part
    if part is None:
        raise ValueError("the turn of a program that is not divided has no part")
    _narrow(loop, part, parts)
    sum_, rest, build = loop.results[0], after_loop(loop), Builder(terminator_of(body))
    m, n = tile_type(sum_).extents
    array = kept(build, Workspace(f32, 4 * m * n * parts), n)
    first = build.mul(program, m * parts)

    def row_of(build: Builder, part: SSAValue | int) -> SSAValue:
        return build.add(first, build.mul(build.of(part), m))

    registers = m * n // threads
    # a loop keeps loads apart that registers do not hold at once
    at_once = int(parts_at_once(parts, registers)) if 2 * registers <= PART_REGISTERS else 0
    found = Parts(sum_, array, parts, (m, n), at_once, row_of)
    found.store(build, row_of(build, part))
    counter = build(PointerAdd(build(Workspace(i32, 4)), program))
    last = found.is_last(build, counter)
    go_on(body, rest, sum_, last, last, counter, found.total)


def _narrow(loop: scf.ForOp, part: SSAValue, parts: int) -> None:
    """Its bounds become those of one part: as many steps for each, fewer or none for the last."""
    build, t = Builder(loop), loop.lb.type
    if part.type != t:
        part = build(Cast(part, t))
    step = loop.step
    each = build.mul(build.up(build.up(build.sub(loop.ub, loop.lb), step), parts), step)
    start = build.add(loop.lb, build.mul(part, each))
    loop.operands[1] = build.min(loop.ub, build.add(start, each))
    loop.operands[0] = start
