"""Sums of a program of which several turns make a part each: kept in a workspace of the launch,
counted, and added up in their order by the one that comes last, which goes on with the program. For
split_k.py and stream_k.py.

    tile.store %parts[%slot], %sum                   this turn's part
    %n = tile.atomic add %count[%program], 1
    %last = %n == parts - 1
    … %all = %parts[0] + %parts[1] + …               by the last one
    scf.if %last { tile.atomic exchange %count[%program], 0 }

The result does not depend on which turn is last: the same bits every time. A counter is zero again
when its program is done. What a sum begins with, the first part alone has (`begin_once`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.rewrite import Builder, stamp
from tkc.ir.threads import Workspace
from tkc.ir.types import ArrayFacts, ArrayType, Fact, TileType
from tkc.ir.values import terminator_of, tile_type
from tkc.passes.analysis.folding import constant


@dataclass(frozen=True)
class Parts:
    """The parts of a program's sum. count: how many; piece: rows and columns in which one is kept
    and added up; at_once: so many are asked for, and then added (0: one at a time, by a loop);
    row_of: the first row in which a part is kept.
    """

    sum: SSAValue
    kept: SSAValue
    count: SSAValue | int
    piece: tuple[int, int]
    at_once: int
    row_of: Callable[[Builder, SSAValue | int], SSAValue]

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = tile_type(self.sum).extents
        return rows, columns

    def _tile(self, *extents: int) -> TileType:
        return TileType(extents, tile_type(self.sum).element)

    def corners(self) -> list[tuple[int, int]]:
        (rows, columns), (height, width) = self.shape, self.piece
        return [(row, at) for row in range(0, rows, height) for at in range(0, columns, width)]

    def store(self, build: Builder, row: SSAValue) -> None:
        """This turn's part, from a row on."""
        for at in self.corners():
            piece = self.sum
            if self.piece != self.shape:
                piece = build(tile.Slice(self.sum, at, self._tile(*self.piece)))
            place = [build.add(row, at[0]), build.of(at[1])]
            build.do(tile.Store(self.kept, place, piece, self.piece))

    def is_last(self, build: Builder, counter: SSAValue) -> SSAValue:
        """Counts this turn's part; whether it is the last one."""
        came = build(atomic("add", counter, build.number(1), True))
        return build.eq(came, build.sub(build.of(self.count), 1))

    def total(self, build: Builder) -> SSAValue:
        """All parts, added up in their order, piece by piece."""

        def join(tiles: list[SSAValue], axis: int, *shape: int) -> SSAValue:
            t = self._tile(*shape)
            return tiles[0] if len(tiles) == 1 else build(tile.Concat(tiles, axis, t))

        # one loop after the other: nothing of the next piece is there before this one is whole
        first = self.row_of(build, 0)
        sums = [self._added(build, first, at) for at in self.corners()]
        (rows, columns), (height, width) = self.shape, self.piece
        across = columns // width
        wide = (sums[i : i + across] for i in range(0, len(sums), across))
        return join([join(row, 1, height, columns) for row in wide], 0, rows, columns)

    def _added(self, build: Builder, first: SSAValue, at: tuple[int, int]) -> SSAValue:
        """The pieces of all parts at a corner; first: the row of the first one."""
        n, t = max(self.at_once, 1), self._tile(*self.piece)

        def load(build: Builder, row: SSAValue) -> SSAValue:
            place = [build.add(row, at[0]), build.of(at[1])]
            return build(tile.Load(self.kept, place, self.piece, result=t))

        total, end, rest = load(build, first), self.count, range(0)
        if isinstance(end, int):
            rounds = (end - 1) // n if end - 1 > self.at_once else 0
            rest = range(1 + rounds * n, end)
            end = rest.start
        if end != 1:
            adding = Block(arg_types=[i32, t])
            one, step = build.number(1), build.number(n)
            loop = build.do(scf.ForOp(one, build.of(end), step, [total], Region(adding)))
            adding.add_op(stop := stamp(scf.YieldOp(), loop))
            inside, (part, sum_) = Builder(stop), adding.args
            numbers = [part, *(inside.add(part, i) for i in range(1, n))]
            pieces = [load(inside, self.row_of(inside, i)) for i in numbers]
            stop.operands = [reduce(inside.add, pieces, sum_)]
            total = loop.results[0]
        return reduce(build.add, [load(build, self.row_of(build, i)) for i in rest], total)


def begin_once(loop: scf.ForOp, part: SSAValue) -> None:
    """Lets part 0 of a program's sum alone begin with what the sum begins with."""
    start, build = loop.iter_args[0], Builder(loop)
    if constant(start) != 0:
        zero = build(tile.Constant(0, start.type))
        loop.operands[3] = build.select(build.eq(part, 0), start, zero)


def kept(build: Builder, sum_: SSAValue, count: int, whole: bool = False) -> SSAValue:
    """The array of so many parts of a sum for each program (or in all: `whole`), by their rows."""
    t = tile_type(sum_)
    columns = t.extents[1]
    workspace = Workspace(t.element, t.bytes * count, whole)
    dense = ArrayFacts((Fact(), Fact(exact=columns)), (Fact(exact=columns), Fact(exact=1)), 16)
    extents = [build.number(1 << 30), build.number(columns)]
    strides = [build.number(columns), build.number(1)]
    array = ArrayType(2, t.element, dense)
    return build(tile.MakeArray(build(workspace), extents, strides, array))


def go_on(
    body: Block,
    rest: list[Operation],
    replaced: SSAValue,
    condition: SSAValue,
    last: SSAValue,
    counter: SSAValue,
    total: Callable[[Builder], SSAValue],
) -> None:
    """What follows a program's sum, which total gives there, where a condition holds; its counter
    is zero again behind the last part.
    """
    build, inner = Builder(terminator_of(body)), Block()
    branch = build.do(scf.IfOp(condition, [], Region(inner)))
    inner.add_op(end := stamp(scf.YieldOp(), branch))
    whole = total(Builder(end))
    for op in rest:
        op.detach()
        inner.insert_op_before(op, end)
        for nested in op.walk():
            nested.operands = [whole if v is replaced else v for v in nested.operands]
    zero = build.number(0)
    done = Block([atomic("exchange", counter, zero, False), scf.YieldOp()])
    build.do(scf.IfOp(last, [], Region(done)))


def after_loop(loop: scf.ForOp) -> list[Operation]:
    """What follows a loop in its block."""
    found, op = [], loop.next_op
    while op is not None and not isinstance(op, scf.YieldOp):
        found.append(op)
        op = op.next_op
    return found


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
