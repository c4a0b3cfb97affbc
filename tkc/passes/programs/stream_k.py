"""Stream-K: the last wave's programs are too few for all blocks, so their steps are dealt out evenly among the blocks. The part of schedule-programs for plans with
`stream_k` (Osama, Merrill, Cecka, Garland, Owens, "Stream-K: work-centric parallel decomposition for dense matrix-matrix multiplication on the GPU", PPoPP 2023, its hybrid form).

    8 programs of 4 steps, 3 blocks: two waves of whole programs, then programs 6 and 7 in three parts of 3 steps

    block 0   0 0 0 0   3 3 3 3   6 6 6                    a block's steps lie in two programs at most: two *turns*, of which either may be empty
    block 1   1 1 1 1   4 4 4 4   6   7 7                  program 6 in parts of blocks 0 and 1; 7 in those of 1 and 2
    block 2   2 2 2 2   5 5 5 5       7 7

    for %turn = block to whole + 2·blocks step blocks {
      number of the program, its steps from … to …, the parts it is in, which of them this is
      for %k in those steps: %sum += dot
      if in parts: store the part where this turn's is kept; count; the last one to come adds up all of them, in their order
      if whole, or last of its parts: the rest of the program
    }

The result depends on the number of blocks (of the device), not on who comes last: the same bits every time. Nobody waits for another. Parts are added up a few columns at a
time, so that a sum need leave no room for another.
"""
from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import f32, i1, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Cast, PointerAdd
from tkc.ir.rewrite import Builder, stamp
from tkc.ir.threads import Workspace
from tkc.ir.types import ArrayFacts, ArrayType, Fact, TileType
from tkc.passes.programs.split_k import after_loop, atomic

MOST = 144                                      # blocks that may share programs: multiprocessors of the largest device with roles
SPARE = 7, 8                                    # of the blocks, at most so many may have a program of their own in the last wave: else sharing gains less than it costs


class Counts(Builder):
    """Writes arithmetic of i32, whatever type a loop counts in."""

    def of(self, x: SSAValue | int, t: Attribute = i32) -> SSAValue: return self.number(x) if isinstance(x, int) else x if x.type in (i32, i1) else self(Cast(x, i32))


@dataclass(frozen=True)
class Deal:
    """What all blocks know: their number, whole programs, shared ones, steps of a program, steps of a block's share, and turns in all."""
    blocks: SSAValue
    whole: SSAValue
    shared: SSAValue
    steps: SSAValue
    share: SSAValue
    turns: SSAValue

    @staticmethod
    def of(programs: SSAValue, loop: scf.ForOp, blocks: SSAValue, parts: int, anchor: Operation) -> Deal:
        """parts: of a program, at most."""
        n = Counts(anchor)
        steps = n.max(n.up(n.sub(loop.ub, loop.lb), loop.step), 0)
        rest = n.mod(programs, blocks)
        worth = n.and_(n.and_(n.gt(rest, 0), n.ge(steps, parts)), n.and_(n.le(blocks, MOST), n.le(n.mul(rest, SPARE[1]), n.mul(blocks, SPARE[0]))))
        shared = n.select(worth, rest, 0)
        whole = n.sub(programs, shared)
        share = n.max(n.max(n.up(n.mul(shared, steps), blocks), n.up(steps, parts - 1)), 1)
        return Deal(blocks, whole, shared, steps, share, n.add(whole, n.select(worth, n.mul(blocks, 2), 0)))


@dataclass(frozen=True)
class Turn:
    """A turn's program, the first and the last of its steps, whether it has all of them, whether it has some but not all; and for these: where the program is
    among the shared ones, its first block, how many have parts of it, and where this turn's part is kept."""
    number: SSAValue
    first: SSAValue
    last: SSAValue
    alone: SSAValue
    divided: SSAValue
    place: SSAValue
    block: SSAValue
    parts: SSAValue
    slot: SSAValue

    @staticmethod
    def of(deal: Deal, turn: SSAValue, anchor: Operation) -> Turn:
        n = Counts(anchor)
        late = n.max(n.sub(turn, deal.whole), 0)
        tail, second, length = n.ge(turn, deal.whole), n.floordiv(late, deal.blocks), n.max(deal.steps, 1)
        block = n.sub(late, n.mul(second, deal.blocks))
        begin = n.mul(block, deal.share)
        end = n.min(n.add(begin, deal.share), n.mul(deal.shared, deal.steps))
        place = n.add(n.floordiv(begin, length), second)
        start = n.mul(place, deal.steps)
        low, high = n.max(begin, start), n.min(end, n.add(start, deal.steps))
        some, from_, to = n.lt(low, high), n.floordiv(start, deal.share), n.floordiv(n.sub(n.add(start, length), 1), deal.share)
        parts = n.add(n.sub(to, from_), 1)
        first = n.select(tail, n.sub(low, start), 0)
        return Turn(n.select(tail, n.max(n.add(deal.whole, n.min(place, n.sub(deal.shared, 1))), 0), turn), first, n.select(tail, n.max(n.sub(high, start), first), deal.steps),
                    n.or_(n.lt(turn, deal.whole), n.and_(some, n.eq(parts, 1))), n.and_(tail, n.and_(some, n.gt(parts, 1))), place, from_, parts, n.add(n.mul(second, deal.blocks), block))


def share(body: Block, loop: scf.ForOp, deal: Deal, turn: Turn, groups: int) -> None:
    """A program's body becomes that of a turn: its loop the turn's steps, and what follows it for whoever has the whole sum. groups: warpgroups that share a program."""
    _narrow(loop, turn)
    sum_, rest, t = loop.results[0], after_loop(loop), loop.results[0].type
    (m, width), n = t.extents, Counts(body.last_op)
    pointer = n(Workspace(f32, 4 * m * width * 2 * MOST, whole=True))
    kept = n(tile.MakeArray(pointer, [n.of(1 << 30), n.of(width)], [n.of(width), n.of(1)], ArrayType(2, f32, ArrayFacts((Fact(), Fact(exact=width)), (Fact(exact=width), Fact(exact=1)), 16))))
    counter = n(PointerAdd(n(Workspace(i32, 4)), turn.number))

    stores, other = Block(), Block([no := stamp(tile.Constant(0, i1), loop), stamp(scf.YieldOp(no.result), loop)])
    last = n(scf.IfOp(turn.divided, [i1], Region(stores), Region(other)))
    stores.add_op(end := stamp(scf.YieldOp(), loop))
    inside = Counts(end)
    row, size = inside.mul(turn.slot, m), piece_of(m, width, groups)
    for at in _corners(t, size): inside.do(tile.Store(kept, [inside.add(row, at[0]), inside.of(at[1])], inside(tile.Slice(sum_, at, TileType(size, f32))) if size != (m, width) else sum_, size))
    end.operands = [inside.eq(inside(atomic("add", counter, inside.of(1), True)), inside.sub(turn.parts, 1))]

    adds, as_is = Block(), Block([stamp(scf.YieldOp(sum_), loop)])
    total = n(scf.IfOp(n(CLASSES["not"](last)), [t], Region(as_is), Region(adds)))          # in this order: the sum is over where the parts are added, and leaves its registers to them
    adds.add_op(end := stamp(scf.YieldOp(), loop))
    end.operands = [_added(Counts(end), kept, deal, turn, t, size, loop)]

    inner = Block()
    n.do(scf.IfOp(n.or_(turn.alone, last), [], Region(inner)))
    inner.add_op(end := stamp(scf.YieldOp(), loop))
    for op in rest:
        op.detach()
        inner.insert_op_before(op, end)
        for nested in op.walk(): nested.operands = [total if v is sum_ else v for v in nested.operands]
    done = Block([stamp(atomic("exchange", counter, n.of(0), False), loop), stamp(scf.YieldOp(), loop)])
    n.do(scf.IfOp(last, [], Region(done)))


def piece_of(m: int, n: int, groups: int) -> tuple[int, int]:
    """Rows and columns in which a sum is kept, and added up: blocks of rows where each warpgroup has several, else half of the columns."""
    if m > 64 * groups: return 64 * groups, n
    return m, n // 2 if n % 16 == 0 else n


def _corners(t: TileType, size: tuple[int, int]) -> list[tuple[int, int]]: return [(row, column) for row in range(0, t.extents[0], size[0]) for column in range(0, t.extents[1], size[1])]


def _added(n: Counts, kept: SSAValue, deal: Deal, turn: Turn, t: TileType, size: tuple[int, int], loop: scf.ForOp) -> SSAValue:
    """All parts of the turn's program, added up in their order, piece by piece."""
    (m, width), piece, corners = t.extents, TileType(size, f32), _corners(t, size)

    def row_of(n: Counts, number: SSAValue | int) -> SSAValue:
        """Where a part is kept."""
        block = n.add(turn.block, number)
        second = n.sub(turn.place, n.floordiv(n.mul(block, deal.share), n.max(deal.steps, 1)))
        return n.mul(n.add(n.mul(second, deal.blocks), block), m)

    def load(n: Counts, row: SSAValue, at: tuple[int, int]) -> SSAValue: return n(tile.Load(kept, [n.add(row, at[0]), n.of(at[1])], size, result=piece))
    one, first, sums = n.of(1), row_of(n, 0), []
    for at in corners:                                          # one loop after the other: nothing of the next piece is there before this one is whole
        adding = Block(arg_types=[i32, piece])
        sums.append(n(scf.ForOp(one, turn.parts, one, [load(n, first, at)], Region(adding))))
        adding.add_op(end := stamp(scf.YieldOp(), loop))
        further = Counts(end)
        end.operands = [further(CLASSES["add"](adding.args[1], load(further, row_of(further, adding.args[0]), at)))]
    return n(tile.Concat(sums, int(size[0] == m), TileType((m, width), f32))) if len(sums) > 1 else sums[0]


def _narrow(loop: scf.ForOp, turn: Turn) -> None:
    """Its bounds become the turn's."""
    n, t = Counts(loop), loop.lb.type
    as_index = lambda v: v if v.type == t else n(Cast(v, t))
    bound = lambda steps: n(CLASSES["add"](low, n(CLASSES["mul"](as_index(steps), loop.step))))
    low = loop.lb
    loop.operands[1] = n(CLASSES["min"](loop.ub, bound(turn.last)))
    loop.operands[0] = bound(turn.first)
