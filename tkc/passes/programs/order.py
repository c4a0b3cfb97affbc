"""Program order: which program has which number. schedule-programs assigns numbers to blocks in
sequence; an order maps a number to program ids.

    Raster              rows (axis 0) in groups, column by column (axis 1)
    ByLength            where programs grow along axis 0 (a causal mask), or where they slide along
                        it, and the first of them are shorter

Each has values that are computed once before the programs begin, and `place`, which writes the ids
that belong to a number: row, column and, in a grid with an axis 2, layer. Tile groups
(tile_groups.py) have one place for all their programs; rows and columns then count groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from xdsl.dialects import scf
from xdsl.dialects.builtin import f32, i32, i64
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.plan import Plan
from tkc.ir.rewrite import Builder
from tkc.ir.types import bits
from tkc.ir.values import array_type, is_side_effect_free, operations_in
from tkc.passes import PassContext
from tkc.passes.analysis.program_axes import direction, from_memory, program_axes, sources
from tkc.passes.programs.tile_groups import Grid, TileGroups

SECTION_DIVISOR = 2  # a section's arrays take one part in so many of the L2 cache
# (neighbours of a section, at most; which part, one in so many, of the axis along which programs
# grow then runs last: short programs, enough to balance the blocks at the end)
DEFERRED_ROWS = ((3, 5), (10, 8))


class Order(Protocol):
    def place(self, build: Builder, number: SSAValue) -> list[SSAValue]:
        """The ids of a program, or of a tile group, from its number."""


def order_of(
    loop: scf.ForOp | None,
    plan: Plan,
    build: Builder,
    grid: Grid,
    tile_groups: TileGroups,
    blocks: SSAValue,
    context: PassContext,
) -> Order:
    """What the plan requests, unless programs differ in length by a loop. blocks: how many run at
    once.
    """
    if loop is None:
        return Raster(grid, plan.raster, plan.serpentine)
    room = context.target.cache // SECTION_DIVISOR
    if _grows(loop):
        context.decisions.append(
            "schedule-programs: programs differ in length along axis 0: the longest first"
            + (", claimed one by one" if plan.dynamic_schedule else "")
        )
        return ByLength.growing(build, grid, loop, room)
    context.decisions.append(
        "schedule-programs: the first programs of axis 0, whose loop is shorter than the others',"
        " come last, or every second of them first"
    )
    return ByLength.sliding(build, grid, loop, room, tile_groups, blocks)


# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Raster:
    """Blocks start roughly in order of their physical ids, axis 0 fastest; a `raster` of g makes g
    programs of axis 0 stand together for each step of axis 1:

        raster 2, grid 4 x 3        order of start:   0  2  4
                                                      1  3  5
                                                      6  8 10
                                                      7  9 11

    A wave of six programs then reads 2 rows and 3 columns, not 4 and 2. The map is a bijection of
    the grid onto itself, so every program still runs once; what is left over of the rows is a
    narrower group. serpentine: every second group goes from its last column to its first, as every
    second program walks its loop backwards (serpentine.py).
    """

    grid: Grid
    group: int
    serpentine: bool = False

    def place(self, build: Builder, number: SSAValue) -> list[SSAValue]:
        grid, layer = self.grid, []
        if grid.deep:
            size = build.mul(grid.rows, grid.columns)
            layer = [build.floordiv(number, size)]
            number = build.sub(number, build.mul(layer[0], size))
        if self.group > 1:
            return [
                *in_groups(
                    build,
                    number,
                    grid.rows,
                    grid.columns,
                    build.number(self.group),
                    self.serpentine,
                ),
                *layer,
            ]
        column = build.floordiv(number, grid.rows)
        return [build.sub(number, build.mul(column, grid.rows)), column, *layer]


def in_groups(
    build: Builder,
    number: SSAValue,
    rows: SSAValue,
    columns: SSAValue,
    size: SSAValue,
    back: bool = False,
    joined: bool = False,
) -> tuple[SSAValue, SSAValue]:
    """Row and column of a number, rows taken in groups of a size; what is left over is a group of
    its own, or `joined` to the last whole one. back: every second group from its last column to its
    first.
    """
    wide = build.mul(size, columns)
    which = build.floordiv(number, wide)
    if joined:
        which = build.min(which, last := build.sub(build.max(build.floordiv(rows, size), 1), 1))
    start = build.mul(which, size)
    height = (
        build.select(build.eq(which, last), build.sub(rows, start), size)
        if joined
        else build.min(size, build.sub(rows, start))
    )
    inside = build.sub(number, build.mul(which, wide))
    column = build.floordiv(inside, height)
    row = build.add(start, build.sub(inside, build.mul(column, height)))
    return row, (
        build.select(
            build.eq(build.and_(which, 1), 1), build.sub(build.sub(columns, 1), column), column
        )
        if back
        else column
    )


# --------------------------------------------------------------------------------------------------
def uneven(kernel: tile.Kernel, plan: Plan) -> scf.ForOp | None:
    """The loop by which programs differ in length along axis 0: one that grows, or, where programs
    with dots are claimed, one that slides. None where programs wait for those before them.
    """
    if _keeps_launch_order(kernel):
        return None
    loops = operations_in(kernel, scf.ForOp)
    grown = next((op for op in loops if _grows(op)), None)
    return (
        next((op for op in loops if _slides(op)), None)
        if grown is None and plan.dynamic_schedule and plan.dots
        else grown
    )


def _keeps_launch_order(kernel: tile.Kernel) -> bool:
    """Whether programs may wait for those before them: with fewer blocks, which take programs in
    another order, they would wait for ever.
    """
    return tile.waits_for_programs(kernel)


def _grows(loop: scf.ForOp) -> bool:
    """Whether a loop's end moves with axis 0 (up or down), and its beginning does not."""
    return (
        0 in program_axes([loop.ub])
        and 0 not in program_axes([loop.lb])
        and not from_memory([loop.ub])
    )


def _slides(loop: scf.ForOp) -> bool:
    """Whether both ends of a loop move with axis 0, and follow from a program's place and the
    kernel's arguments alone.
    """
    found = sources([loop.lb, loop.ub])
    return (
        program_axes([loop.lb]) == program_axes([loop.ub]) == {0}
        and not from_memory([loop.lb, loop.ub])
        and all(
            not op.regions
            and is_side_effect_free(op)
            and all(
                isinstance(v.owner, Operation) or isinstance(v.owner.parent_op(), tile.Kernel)
                for v in op.operands
            )
            for op in found
        )
    )


@dataclass(frozen=True)
class ByLength:
    """Where a loop's end depends on axis 0 (a causal mask), programs differ in length. Those of
    axis 0 run last to first (or first to last, where the end is seen to fall along it), the longest
    early (longest processing time first), next to the same row of neighbours along the other axes:

        5 rows, 4 neighbours, sections of two       row 4     0  1    8  9
                                                    row 3     2  3   10 11
                                                    row 2     4  5   12 13
                                                    row 1     6  7   14 15
                                                    row 0    16 17   18 19     the shortest, last

    As many neighbours make a section as have arrays that fill a part of the L2 cache
    (SECTION_DIVISOR): all of a section's programs then read these from the cache. The last section
    takes what is left over, so that it is never a small one.

    Where sections have few neighbours, the shortest programs of all of them run behind all others
    (DEFERRED_ROWS): short programs fill the time between the ends of long ones, and such a section
    alone has few of these. They read the first part of the arrays once more and do little with it,
    which costs short axes more than it balances.

    Where both ends depend on axis 0 (a sliding window), programs are of one length but for the
    first of the axis, for which the window has not begun to slide. These run last, behind the
    others neighbour by neighbour, so that the launch does not end with a wave of whole ones. How
    many are short follows from the loop's bounds in the first two programs and the last.

    But every second of them runs first of all, as many as there are blocks for. If all blocks began
    with a whole program, each at another place, they would request everything from memory at once,
    and again at their next programs, all in step. Short ones begin where their neighbours do, and
    end one after the other.

        7 rows, 3 of them short, 2 neighbours       row 6     2  6
                                                    row 5     3  7
                                                    row 4     4  8
                                                    row 3     5  9
                                                    row 2     0  1
                                                    row 1    10 11
                                                    row 0    12 13

    few: rows that come last, but for `begun` that come first, in `leads` programs, where there are
    such. whole: how many programs come between. rows, sections: how many rows, and neighbours of a
    section, there and behind that. falls: rows are counted from the other end.
    """

    grid: Grid
    few: SSAValue
    whole: SSAValue
    rows: tuple[SSAValue, SSAValue]
    sections: tuple[SSAValue, SSAValue]
    falls: bool = False
    leads: tuple[SSAValue, SSAValue] | None = None

    @staticmethod
    def growing(build: Builder, grid: Grid, loop: scf.ForOp, room: int) -> ByLength:
        """Of a loop whose end moves."""
        section = _section(build, loop, grid.others, room)
        few = _level(build, section, grid.rows)
        most, least = build.sub(grid.rows, few), build.max(few, 1)
        whole, most = build.mul(most, grid.others), build.max(most, 1)
        sections = section, _section(build, loop, grid.others, room, few, grid.rows)
        return ByLength(grid, few, whole, (most, least), sections, direction(loop.ub, 0) == -1)

    @staticmethod
    def sliding(
        build: Builder,
        grid: Grid,
        loop: scf.ForOp,
        room: int,
        tile_groups: TileGroups,
        blocks: SSAValue,
    ) -> ByLength:
        """Of a loop both of whose ends move. blocks: how many run at once."""
        one, few = build.number(1), _short(build, loop, grid.rows, tile_groups)
        most = build.sub(grid.rows, few)
        whole, most = build.mul(most, grid.others), build.max(most, 1)
        sections = one, _section(build, loop, grid.others, room, few, grid.rows)
        begun = _begun(build, few, grid, blocks)
        leads = begun, build.mul(begun, grid.others)
        return ByLength(grid, few, whole, (most, few), sections, leads=leads)

    def place(self, build: Builder, number: SSAValue) -> list[SSAValue]:
        """The ids of a program, or of a tile group, from its number."""
        grid, few, rest = self.grid, self.few, number
        begun, lead = self.leads or (few, None)
        leading = None if lead is None else build.lt(number, lead)
        if lead is not None:
            rest = build.sub(number, lead)
        early = build.lt(rest, self.whole)

        def one_of(leads: SSAValue, whole: SSAValue, last: SSAValue) -> SSAValue:
            """For those that lead, for those that are not short, and for the other short ones."""
            found = build.select(early, whole, last)
            return found if leading is None else build.select(leading, leads, found)

        number = one_of(number, rest, build.sub(rest, self.whole))
        (most, least), between = self.rows, early
        if leading is not None:
            least = build.max(build.sub(few, begun), 1)
        rows = one_of(begun, most, least)
        if leading is not None:
            between = build.and_(early, build.ge(rest, 0))
        section = build.select(between, *self.sections)
        neighbour, turn = in_groups(build, number, grid.others, rows, section, joined=True)
        layer = grid.layer(build, neighbour)
        row = build.sub(build.sub(build.select(early, grid.rows, few), 1), turn)
        if leading is not None:
            every_second = build.sub(build.sub(few, 1), build.add(turn, turn))
            row = one_of(every_second, row, build.sub(row, build.min(build.add(turn, 1), begun)))
        if self.falls:
            row = build.sub(build.sub(grid.rows, 1), row)
        return [row, grid.column(build, neighbour, layer), *layer]


def _section(
    build: Builder,
    loop: scf.ForOp,
    others: SSAValue,
    room: int,
    few: SSAValue | None = None,
    rows: SSAValue | None = None,
) -> SSAValue:
    """How many neighbours along the other axes have their arrays in a cache of so many bytes: those
    a loop loads from or adds to, or of these what the first `few` rows of programs of all may read.
    Arrays that each program makes for itself count for nothing.
    """
    accesses = (op for op in loop.walk() if isinstance(op, (tile.Load, tile.AtomicBlock)))
    arrays = dict.fromkeys(op.array for op in accesses)
    sizes = [_bytes(build, array) for array in arrays if _is_shared(array)]
    if not sizes:
        return others
    each, available = reduce(build.add, sizes), build.number(room, i64)
    if few is not None and rows is not None:
        each = build.mul(each, build(Cast(few, i64)))
        available = build.mul(available, build(Cast(rows, i64)))
    # every block begins with this: a division of 64-bit integers is much slower than one of floats
    fit = build.div_rn(
        build(Cast(available, f32)), build(Cast(build.max(each, build.number(1, i64)), f32))
    )
    return build.max(
        build.min(build(Cast(build.min(fit, build(Cast(others, f32))), i32)), others), 1
    )


def _is_shared(array: SSAValue) -> bool:
    """Whether an array is one for all programs, and known before any of them."""
    while isinstance(array.owner, tile.View):
        array = array.owner.array
    return not program_axes([array]) and not from_memory([array])


def _bytes(build: Builder, array: SSAValue) -> SSAValue:
    """Bytes of an array, or of a view: of the array's axes that the view does not fix."""
    axes = list(range(len(array_type(array).facts.shape)))
    while isinstance(array.owner, tile.View):
        free = [axis for axis, kind in enumerate(array.owner.kinds) if kind.data != "index"]
        axes, array = [free[a] for a in axes], array.owner.array
    total = build.number(bits(array_type(array).element) // 8, i64)
    for axis in axes:
        total = build.mul(total, build(Cast(build(tile.Dim(array, axis)), i64)))
    return total


def _level(build: Builder, section: SSAValue, rows: SSAValue) -> SSAValue:
    """How many of the first rows of programs, which are the shortest, come behind all sections."""
    (few, few_part), (several, several_part) = DEFERRED_ROWS
    rest = build.select(build.le(section, several), build.up(rows, several_part), 0)
    return build.select(build.le(section, few), build.up(rows, few_part), rest)


def _short(build: Builder, loop: scf.ForOp, rows: SSAValue, tile_groups: TileGroups) -> SSAValue:
    """How many of the first programs of axis 0 (or of the first so many tile groups, with padding
    tiles ahead of the first) have a shorter loop than the last one: its end moves with the program
    from the first on, its beginning later.
    """

    def ends(program: SSAValue) -> tuple[SSAValue, SSAValue]:
        if tile_groups.members == 1:
            known: dict[SSAValue, SSAValue] = {}
            low = _anew(build, loop.lb, program, known)
            return low, _anew(build, loop.ub, program, known)
        first = build.sub(build.mul(program, tile_groups.members), tile_groups.ahead)
        return _anew(build, loop.lb, build.max(first, 0), {}), _anew(
            build, loop.ub, build.add(first, tile_groups.members - 1), {}
        )

    (start, end), (_, second), (last, longest) = (
        ends(i) for i in (build.number(0), build.number(1), build.sub(rows, 1))
    )
    steps = build.up(
        build.sub(build.sub(longest, last), build.sub(end, start)),
        build.max(build.sub(second, end), 1),
    )
    if steps.type == i32:
        return build.max(build.min(steps, rows), 0)
    # a loop over arrays of more than 2³¹ elements counts in 64 bits, programs never do
    return build(Cast(build.max(build.min(steps, build(Cast(rows, steps.type))), 0), i32))


def _anew(
    build: Builder, value: SSAValue, program: SSAValue, known: dict[SSAValue, SSAValue]
) -> SSAValue:
    """A number that is computed from a program's place on axis 0, for another one; from wherever
    its operations stand.
    """
    if value not in known:
        op = value.owner
        if isinstance(op, tile.ProgramId):
            return program
        if not isinstance(op, Operation):
            return value
        for v in op.operands:
            known[v] = _anew(build, v, program, known)
        build.do(op.clone(known))
    return known[value]


def _begun(build: Builder, few: SSAValue, grid: Grid, blocks: SSAValue) -> SSAValue:
    """How many of `few` short rows of programs come before all others: every second one, and with
    their neighbours no more than there are blocks. None where most are short, or two at most, which
    the end needs.
    """
    worth = build.and_(build.le(build.add(few, few), grid.rows), build.gt(few, 2))
    return build.select(
        worth,
        build.min(build.floordiv(few, 2), build.floordiv(blocks, build.max(grid.others, 1))),
        0,
    )
