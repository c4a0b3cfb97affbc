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

The result does not depend on which program finishes last: the same bits every time. As many parts
as registers hold are asked for at once, and then added. Counters and parts lie in a workspace of
the launch; a counter is zero again when its tile is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr, f32, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, PointerAdd
from tkc.ir.rewrite import Builder, stamp
from tkc.ir.threads import Workspace
from tkc.ir.types import ArrayFacts, ArrayType, Fact, TileType
from tkc.ir.values import is_side_effect_free, parent_of, terminator_of, tile_type
from tkc.passes.planning.operands import simple
from tkc.passes.planning.roles.registers import PART_REGISTERS, parts_at_once


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
    sum_, rest = loop.results[0], after_loop(loop)
    m, n = tile_type(sum_).extents
    build = Builder(terminator_of(body))
    number = build.number
    pointer = build(Workspace(f32, 4 * m * n * parts))
    rows = number(1 << 30)
    array = build(
        tile.MakeArray(
            pointer,
            [rows, number(n)],
            [number(n), number(1)],
            ArrayType(
                2, f32, ArrayFacts((Fact(), Fact(exact=n)), (Fact(exact=n), Fact(exact=1)), 16)
            ),
        )
    )
    first, zero = build.mul(program, number(m * parts)), number(0)
    build.do(tile.Store(array, [build.add(first, build.mul(part, number(m))), zero], sum_, (m, n)))
    counter = build(PointerAdd(build(Workspace(i32, 4)), program))
    came = build(atomic("add", counter, number(1), True))
    last = build.eq(came, number(parts - 1))
    inner = Block()
    build.do(scf.IfOp(last, [], Region(inner)))
    end = stamp(scf.YieldOp(), loop)
    inner.add_op(end)
    inside = Builder(end)

    def stored(where: Builder, number: SSAValue) -> SSAValue:
        at = where.add(first, where.mul(number, where.number(m)))
        return where(tile.Load(array, [at, zero], (m, n), result=TileType((m, n), f32)))

    total = _total(inside, parts, m * n // threads, stored, loop)
    for op in rest:
        op.detach()
        inner.insert_op_before(op, end)
        for i, v in enumerate(op.operands):
            if v is sum_:
                op.operands[i] = total
        for nested in op.walk():
            for i, v in enumerate(nested.operands):
                if v is sum_:
                    nested.operands[i] = total
    done = Block(
        [stamp(atomic("exchange", counter, zero, False), loop), stamp(scf.YieldOp(), loop)]
    )
    build.do(scf.IfOp(last, [], Region(done)))


def _total(
    inside: Builder,
    parts: int,
    registers: int,
    stored: Callable[[Builder, SSAValue], SSAValue],
    loop: scf.ForOp,
) -> SSAValue:
    """The parts' sum, in their order. registers: of a thread for a part; stored: a part by its
    number. A loop keeps loads apart that registers do not hold at once.
    """
    at_once = int(parts_at_once(parts, registers))
    total = stored(inside, inside.number(0))
    rounds, rest = divmod(parts - 1, at_once)
    if parts - 1 > at_once or 2 * registers > PART_REGISTERS:
        adding = Block(arg_types=[i32, total.type])
        adding.add_op(stop := stamp(scf.YieldOp(), loop))
        further = Builder(stop)
        numbers = [further.add(adding.args[0], further.number(i)) for i in range(at_once)]
        stop.operands = [_added(further, adding.args[1], [stored(further, i) for i in numbers])]
        first, end, step = map(inside.number, (1, 1 + rounds * at_once, at_once))
        total = inside(scf.ForOp(first, end, step, [total], Region(adding)))
    else:
        rest = parts - 1
    left = [stored(inside, inside.number(i)) for i in range(parts - rest, parts)]
    return _added(inside, total, left)


def _added(build: Builder, total: SSAValue, parts: Sequence[SSAValue]) -> SSAValue:
    """A sum and further parts, one after the other."""
    for part in parts:
        total = build.add(total, part)
    return total


def after_loop(loop: scf.ForOp) -> list[Operation]:
    found, op = [], loop.next_op
    while op is not None and not isinstance(op, scf.YieldOp):
        found.append(op)
        op = op.next_op
    return found


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


def atomic(kind: str, pointer: SSAValue, value: SSAValue, wanted: bool) -> tile.Atomic:
    """An update of a counter. wanted: its old value, which says whose parts are there, so that the
    update orders what they stored. One that nobody reads before the next launch orders nothing.
    """
    return tile.Atomic.build(
        operands=[pointer, value, [], []],
        properties={
            "kind": StringAttr(kind),
            "semantics": StringAttr("acq_rel" if wanted else "relaxed"),
            "scope": StringAttr("gpu"),
        },
        result_types=[[value.type] if wanted else []],
    )
