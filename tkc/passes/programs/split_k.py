"""Split-K: several programs share one output tile, each with a part of its loop. The part of
schedule-programs for plans with `split_k` > 1.

Where they are the blocks of a cluster (`parts_in_cluster`), each sends every other one a share of
what it has summed, and adds up and stores its own share of the results:

    for %k = %lo to %hi: %acc += dot      for %k in part %r of %lo … %hi: %acc += dot
    tile.store %c[%m, %n], f(%acc)   ->   %own = tile.cluster_sum [%acc[:, 0:w], %acc[:, w:2·w], …]
                                          tile.store %c[%m, %n + %r·w], f(%own)

with %r the block's rank. Otherwise the last program to finish adds the parts up, in order, and runs
the epilogue:

    for %k = %lo to %hi: %acc += dot      for %k in part %s of %lo … %hi: %acc += dot
    tile.store %c, f(%acc)          ->    tile.store %parts[%program·S + %s], %acc
                                          %n = tile.atomic add %count[%program], 1
                                          scf.if %n == S - 1 {
                                            %all = %parts[0] + %parts[1] + …
                                            tile.store %c, f(%all)
                                            tile.atomic exchange %count[%program], 0
                                          }

Either way the result does not depend on which program finishes last: the same bits every time. Of
those that the last one adds up, as many as registers hold are asked for at once (parts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, PointerAdd
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import Builder, erase
from tkc.ir.threads import Identity, Workspace
from tkc.ir.types import TileType
from tkc.ir.values import is_side_effect_free, parent_of, terminator_of, tile_type
from tkc.passes.analysis.alias import Overlaps
from tkc.passes.analysis.trips import counter_of, trips
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut
from tkc.passes.cuts.parts import Part as PartOfTile
from tkc.passes.planning.operands import simple
from tkc.passes.planning.roles.registers import PART_REGISTERS, parts_at_once
from tkc.passes.programs.parts import Parts, after_loop, begin_once, go_on, kept

WHOLE_SHARE = 8  # columns of a sum that each thread has some of


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


def why_not_shared(loop: scf.ForOp, parts: int, axis: int, overlaps: Overlaps) -> str:
    """Why so many programs cannot each finish a share of what follows a loop, along an axis of its
    sum; empty if they can: a share is a multiple of WHOLE_SHARE, and all that has an effect is
    computed of the sum, element by element.
    """
    if tile_type(loop.results[0]).extents[axis] % (WHOLE_SHARE * parts):
        return "the results do not divide into so many shares"
    try:
        _shares(loop, axis, overlaps)
    except NotCut:
        return "what follows the loop takes all of the results"
    return ""


def _shares(loop: scf.ForOp, axis: int, overlaps: Overlaps) -> Cut:
    """What follows a loop, as shares of its sum have it. Raises NotCut."""
    cut = Cut.of_uses(loop.results[0], axis, overlaps)
    rest = after_loop(loop)
    left = [op for op in rest if op not in cut.inside and op.name != "tile.return"]
    if not all(map(_is_pure, left)):  # what has an effect and needs a sum of all is left, too
        raise NotCut
    return cut


def _is_pure(op: Operation) -> bool:
    return is_side_effect_free(op) or isinstance(op, tile.Load)


@dataclass(frozen=True)
class Part:
    """Which program of the output's blocks a turn has, and which of its parts; None of one that is
    not divided.
    """

    number: SSAValue
    part: SSAValue | None

    @staticmethod
    def of(build: Builder, turn: SSAValue, parts: int, in_cluster: bool) -> Part:
        if parts == 1:
            return Part(turn, None)
        if in_cluster:  # whose blocks have the turn together
            return Part(turn, build(Identity("cluster_rank")))
        number = build.floordiv(turn, parts)
        return Part(number, build.sub(turn, build.mul(number, parts)))


def divide_in_cluster(loop: scf.ForOp, rank: SSAValue, parts: int, overlaps: Overlaps) -> None:
    """Divides the loop of an output tile among the blocks of a cluster, and what follows the loop
    in shares of their sum's columns.
    """
    cut, sum_ = _shares(loop, 1, overlaps), loop.results[0]
    t, last = tile_type(sum_), cut.ops[-1]
    _narrow(loop, rank, parts)
    m, width = t.extents[0], t.extents[1] // parts
    # behind all loads that each block makes: when a block has its sum, others may have stored
    build = Builder(last)
    shares = [
        build(tile.Slice(sum_, (0, i * width), TileType((m, width), t.element)))
        for i in range(parts)
    ]
    own = build(tile.ClusterSum(shares))
    of_block = PartOfTile(cut, build.mul(rank, build.number(width)), width)
    of_block.made[0][sum_, 1] = own
    of_block.all(last, [])
    for op in reversed(cut.ops):
        erase(op)


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
    array = kept(build, sum_, parts)
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
    begin_once(loop, part)
    build, t = Builder(loop), loop.lb.type
    if part.type != t:
        part = build(Cast(part, t))
    count = trips(build, loop.lb, loop.ub, loop.step)
    each = build.up(count, parts)
    if Ranges().may_wrap(loop, parts):
        begin = build.mul(part, each)
        bounds = [counter_of(build, loop, count, n) for n in (begin, build.add(begin, each))]
        loop.operands[0], loop.operands[1] = bounds
        return
    each = build.mul(each, loop.step)
    start = build.add(loop.lb, build.mul(part, each))
    loop.operands[1] = build.min(loop.ub, build.add(start, each))
    loop.operands[0] = start
