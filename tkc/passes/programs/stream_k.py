"""Stream-K: the programs of the last wave are too few for all blocks, so all blocks share their
steps. The part of schedule-programs for plans with `stream_k` (the hybrid form of Osama, Merrill,
Cecka, Garland, Owens, "Stream-K: work-centric parallel decomposition for dense matrix-matrix
multiplication on the GPU", PPoPP 2023).

    10 programs of 4 steps, 4 blocks: two waves of whole programs, then programs 8 and 9 in two
    parts of 2 steps.  11 programs: two waves, then programs 8, 9 and 10, of which blocks 0 to 2
    take all but the last step; block 3 takes the last steps of all three, in as many *turns*

    block 0   0 0 0 0   4 4 4 4   8 8             0 0 0 0   4 4 4 4   8 8 8
    block 1   1 1 1 1   5 5 5 5   9 9             1 1 1 1   5 5 5 5   9 9 9
    block 2   2 2 2 2   6 6 6 6       8 8         2 2 2 2   6 6 6 6   10 10 10
    block 3   3 3 3 3   7 7 7 7       9 9         3 3 3 3   7 7 7 7         8 9 10

    for %turn = block to whole + turns·blocks step blocks {
      number of the program, its steps from … to …, which part that is
      for %k in those steps: %acc += dot
      if in parts: store the part; count; the last one to finish adds up all parts, in order
      if whole, or last of its parts: the epilogue
    }

All programs are cut at the same steps, so that the blocks of a wave still walk the same K and read
the same rows and columns from the L2 cache; assigned in sequence, as in the paper, every block
would be at another K. The result depends on the number of blocks (of the device), not on which
finishes last: the same bits every time. No block waits for another. Parts are added up a few
columns at a time, so that an accumulator need leave no room for another.

With `cluster`, clusters take the place of blocks: the blocks of a cluster have the same turn and
the same steps of neighbouring programs, so that they share copies; each counts and adds up the
parts of its own program.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Cast, PointerAdd
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import Builder, stamp
from tkc.ir.threads import Workspace
from tkc.ir.values import terminator_of, tile_type
from tkc.passes.analysis.trips import counter_of, trips
from tkc.passes.programs.parts import Parts, after_loop, begin_once, go_on, kept

MAX_BLOCKS = 144  # that share programs: multiprocessors of the largest device with roles
# numerator and denominator of the blocks: with more programs in the last wave, sharing gains less
# than it costs
MAX_SHARED_PROGRAMS = 4, 5
# (registers of an accumulator, at most; registers of a thread for a piece of a part beside it)
PIECE_REGISTERS = ((128, 64), (1 << 16, 16))


class Counts(Builder):
    """Writes arithmetic of i32, whatever type a loop counts in."""

    def of(self, x: SSAValue | int, t: Attribute = i32) -> SSAValue:
        return (
            self.number(x)
            if isinstance(x, int)
            else x
            if x.type in (i32, i1)
            else self(Cast(x, i32))
        )


@dataclass(frozen=True)
class StreamKSchedule:
    """What all blocks know: their number, whole programs, shared ones and the parts of each, steps
    of a program and of a part that is not its last, blocks that have no part but last ones, and
    turns in all. few: so few programs are shared that every part has a block; else their last parts
    share the blocks that are left.
    """

    blocks: SSAValue
    whole: SSAValue
    shared: SSAValue
    parts: SSAValue
    steps: SSAValue
    part: SSAValue
    helpers: SSAValue
    few: SSAValue
    turns: SSAValue

    @staticmethod
    def of(
        programs: SSAValue,
        loop: scf.ForOp,
        blocks: SSAValue,
        parts: int,
        anchor: Operation,
        size: int = 1,
    ) -> StreamKSchedule:
        """parts: of a program, at most. Of clusters of a size `programs` are those that a cluster
        takes together, and `blocks` are clusters.
        """
        n = Counts(anchor)
        steps = n.max(trips(Builder(anchor), loop.lb, loop.ub, loop.step), 0)
        rest = n.mod(programs, blocks)
        helpers = n.sub(blocks, rest)
        few, each = n.le(rest, helpers), n.up(rest, helpers)  # last parts of each helper
        most = n.min(n.floordiv(blocks, n.max(rest, 1)), parts)
        part = n.max(
            n.select(few, n.up(steps, most), n.sub(steps, n.floordiv(steps, n.add(each, 1)))), 1
        )
        worth = n.and_(
            n.and_(n.gt(rest, 0), n.gt(steps, n.max(each, most))),
            n.and_(
                n.le(blocks, MAX_BLOCKS // size),
                n.le(n.mul(rest, MAX_SHARED_PROGRAMS[1]), n.mul(blocks, MAX_SHARED_PROGRAMS[0])),
            ),
        )
        shared = n.select(worth, rest, 0)
        whole = n.sub(programs, shared)
        return StreamKSchedule(
            blocks,
            whole,
            shared,
            n.up(steps, part),
            steps,
            part,
            helpers,
            few,
            n.add(whole, n.select(worth, n.mul(blocks, n.max(each, 1)), 0)),
        )


@dataclass(frozen=True)
class Turn:
    """A turn's program, the first and the last of its steps, whether it has all of them, whether it
    has some but not all; and for these: where the program is among the shared ones, and where this
    turn's part is kept."""

    number: SSAValue
    first: SSAValue
    last: SSAValue
    alone: SSAValue
    divided: SSAValue
    place: SSAValue
    slot: SSAValue

    @staticmethod
    def of(deal: StreamKSchedule, turn: SSAValue, anchor: Operation) -> Turn:
        n = Counts(anchor)
        late, tail = n.max(n.sub(turn, deal.whole), 0), n.ge(turn, deal.whole)
        again = n.floordiv(late, deal.blocks)
        block = n.sub(late, n.mul(again, deal.blocks))
        head, row = n.lt(block, deal.shared), n.floordiv(block, n.max(deal.shared, 1))
        place = n.select(
            deal.few,
            n.sub(block, n.mul(row, deal.shared)),
            n.select(head, block, n.add(n.sub(block, deal.shared), n.mul(again, deal.helpers))),
        )
        part = n.select(deal.few, row, n.select(head, 0, 1))
        # the blocks that are left have several turns, others one
        once = n.or_(n.eq(again, 0), n(CLASSES["not"](n.or_(deal.few, head))))
        some = n.and_(n.and_(tail, once), n.and_(n.lt(part, deal.parts), n.lt(place, deal.shared)))
        first = n.mul(part, deal.part)
        return Turn(
            n.select(tail, n.max(n.add(deal.whole, n.min(place, n.sub(deal.shared, 1))), 0), turn),
            n.select(some, first, 0),
            n.select(
                tail, n.select(some, n.min(n.add(first, deal.part), deal.steps), 0), deal.steps
            ),
            n.lt(turn, deal.whole),
            some,
            place,
            n.add(n.mul(place, deal.parts), part),
        )


def share(
    body: Block,
    loop: scf.ForOp,
    deal: StreamKSchedule,
    turn: Turn,
    groups: int,
    size: int = 1,
    rank: SSAValue | None = None,
) -> None:
    """A program's body becomes that of a turn: its loop the turn's steps, and what follows it for
    the block that has the whole sum. groups: warpgroups that share a program. size, rank: of a
    cluster, whose blocks take neighbouring programs in the same turns and parts, and this block's
    place in it.
    """
    _narrow(loop, turn, deal.steps)
    sum_, rest, t = loop.results[0], after_loop(loop), tile_type(loop.results[0])
    (m, width), n = t.extents, Counts(terminator_of(body))
    array = kept(n, sum_, 2 * MAX_BLOCKS, whole=True)

    def own(n: Builder, tile_group: SSAValue) -> SSAValue:
        # of what a cluster has of each kind, this block's
        return tile_group if rank is None else n.add(n.mul(tile_group, size), rank)

    def row_of(n: Builder, part: SSAValue | int) -> SSAValue:
        return n.mul(own(n, n.add(n.mul(turn.place, deal.parts), part)), m)

    parts = Parts(sum_, array, deal.parts, piece_of(m, width, groups), 1, row_of)
    counter = n(PointerAdd(n(Workspace(i32, 4 * MAX_BLOCKS, whole=True)), own(n, turn.place)))
    stores, other = (Block([end := stamp(scf.YieldOp(), loop)]), Block())
    other.add_ops([no := tile.Constant(0, i1), scf.YieldOp(no.result)])
    last = n(scf.IfOp(turn.divided, [i1], Region(stores), Region(other)))
    inside = Counts(end)
    parts.store(inside, inside.mul(own(inside, turn.slot), m))
    end.operands = [parts.is_last(inside, counter)]
    adds, as_is = Block([end := stamp(scf.YieldOp(), loop)]), Block([scf.YieldOp(sum_)])
    # in this order: the sum is over where the parts are added, and leaves its registers to them
    total = n(scf.IfOp(n(CLASSES["not"](last)), [t], Region(as_is), Region(adds)))
    end.operands = [parts.total(Counts(end))]
    go_on(body, rest, sum_, n.or_(turn.alone, last), last, counter, lambda build: total)


def piece_of(m: int, n: int, groups: int) -> tuple[int, int]:
    """Rows and columns in which a sum is kept, and added up: blocks of rows where each warpgroup
    has several, else half of the columns; beside a large sum fewer.
    """
    rows, columns = (64 * groups, n) if m > 64 * groups else (m, n // 2 if n % 16 == 0 else n)
    most = next(limit for sum_, limit in PIECE_REGISTERS if m * n <= 128 * groups * sum_)
    return rows, next(
        (
            columns // p
            for p in range(1, columns // 8 + 1)
            if columns % (8 * p) == 0 and rows * columns <= 128 * groups * most * p
        ),
        columns,
    )


def _narrow(loop: scf.ForOp, turn: Turn, steps: SSAValue) -> None:
    """Its bounds become the turn's, of a program of so many steps."""
    begin_once(loop, turn.first)
    n, t = Counts(loop), loop.lb.type

    def as_index(v):
        return v if v.type == t else n(Cast(v, t))

    def bound(step):
        return n(CLASSES["add"](low, n(CLASSES["mul"](as_index(step), loop.step))))

    low = loop.lb
    if Ranges().may_wrap(loop):
        end = counter_of(Builder(loop), loop, as_index(steps), as_index(turn.last))
    else:
        end = n(CLASSES["min"](loop.ub, bound(turn.last)))
    loop.operands[1], loop.operands[0] = end, bound(turn.first)
