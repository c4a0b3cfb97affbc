"""schedule-programs: the order in which programs run.

The kernel's own ids are those of the logical grid. Blocks start roughly in order of their physical ids, axis 0 fastest; a
`raster` of g makes g programs of axis 0 stand together for each step of axis 1:

    raster 2, grid 4 x 3        order of start:   0  2  4
                                                  1  3  5          a wave of six programs reads 2 rows and 3 columns,
                                                  6  8 10          not 4 and 2
                                                  7  9 11

    %m = tile.program_id 0           %m = (id / (2·3))·2 + id mod (2·3) mod 2      (the last group may be narrower)
    %n = tile.program_id 1    ->     %n = id mod (2·3) / 2                         with id = program_id 0 + program_id 1 · num_programs 0

The map is a bijection of the grid onto itself, so every program still runs once.

A persistent plan makes the programs of a block an ordinary outer loop, so that copies of the next program overlap the end of this one;
a cluster's blocks take neighbours of axis 0, or of both axes, and where the grid ends between them, a ghost computes and stores nothing (a cluster that shares each program, `spread`,
counts as one block). The launch is flat, and so are its clusters: one of 2 x 2 has four blocks in a row, and its rank says which place is a block's:

    %t0 = tile.identity cluster
    scf.for %t = %t0 to %clusters_of_programs step (tile.identity clusters) {
      %m = …·2 + (tile.identity cluster_rank)        %n = …
      body;  stores under scf.if %m < num_programs 0
    }

Where a loop's end depends on axis 0 (a causal mask), programs differ in length. Those of axis 0 run last to first, the longest early, side by side with the
same row of neighbours on the other axes. As many neighbours make a section as have arrays of half of what the cache holds: all of a section's programs then read
these from the cache (measured on an H200, attention of B·S = 16384 and S = 1024 to 16384, sections of 20, 40, 60, 80 and 100 MiB: 20 is the fastest at each, by 20 % against 100 at
1024, where a round of programs of one length is as wide as the section and no block has company). The last section takes what is left over, so that it is never the small one. And blocks claim them
one by one (`queue`), so that who had a long one takes fewer:

    scf.while (%t = tile.identity cluster) while %t < %programs {
      …
      yield tile.next_program %programs
    }

What a program looks up by its place alone (where its rows begin, how long its loop is) goes with its number: who claims it looks it up, and nobody else waits for memory.

Where sections have few neighbours, the shortest programs of all of them come behind all others, a fifth of axis 0 for three neighbours or fewer, an eighth for ten: what is short fills up what the long ones
leave, and such a section alone has few of these (blocks of 192 x 64, 16 heads of 16384 rows in sections of two: the last multiprocessor ended 3.7 % behind the average). They read the first part of the
arrays once more, and do little with it: with shorter axes that costs more than it levels (7, 6 and 2 % at 768, 1024 and 2048 rows; an eighth gains 0.8 and 1.2 % at 8192 and 4096, in three programs side by side).

Where both ends depend on axis 0 (a window that slides), programs are of one length but for the first of the axis, for which the window has not begun to slide. These come last likewise, behind the
others neighbour by neighbour, so that the launch does not end with a wave of whole ones (1 x 16 heads of 16384 rows, a window of 1024: 2048 programs on 132 multiprocessors are sixteen turns, and
there is work for fifteen). How many are short is worked out from the loop's ends in the first two programs and the last.
But every second of them comes first of all, as many as there are blocks for. Whole ones all begin somewhere else: if all blocks begin with one, they ask memory for everything at once, and once
more as they go on to the next, all in step. Short ones begin where their neighbours do, and end one after the other. (On an H200 the
first two teams of a block took 7 and 4 thousand clocks longer than later ones, of 30. That window, in teams of three programs, takes 314 thousand clocks on the multiprocessor with most so, not 325, and 220.5 us,
not 226.8; the shortest two thirds first do as well there, but leave nothing small for the end: a window of 4096 took 1.3 % more clocks.)

Where a loop's end is loaded (a table of ragged groups), programs are claimed one by one too, in the order of the raster.

So are programs without dots that stream through blocks: multiprocessors are not equally quick where all wait for memory. The loop carries as many numbers as there are stages in the ring beside its own,
so that the copies of the next ones can be issued; a block begins with that many which it need not claim:

    scf.while (%t, %u = tile.identity cluster, %t + tile.identity clusters) while %t < %programs {
      %v = tile.next_program %programs                    asked for at once, answered by the end
      …
      yield %u, %v + tile.identity clusters
    }

With `split_k` parts, so many programs in turn share a block of the output (programs/split_k.py). With `stream_k`, all blocks share the programs of the last wave (programs/stream_k.py).
"""
from __future__ import annotations

from functools import reduce

from xdsl.dialects import scf
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, UnitAttr, f32, i1, i32, i64
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Cast
from tkc.ir.plan import Plan
from tkc.ir.rewrite import Builder, before, clone_slice, defining_slice, only_if, replace, stamp
from tkc.ir.threads import Identity, NextProgram
from tkc.ir.types import TileType, bits, like
from tkc.passes import PassContext
from tkc.passes.analysis.access import argument_of, overlapping, unchanged
from tkc.passes.analysis.program_axes import from_memory, program_axes, sources
from tkc.passes.analysis.values import in_workspace
from tkc.passes.programs import abreast
from tkc.passes.programs.clusters import place_in
from tkc.passes.programs.serpentine import backwards
from tkc.passes.programs.split_k import divide
from tkc.passes.programs.stream_k import Deal, Turn, share

SECTION = 2                                          # of the cache, one part in so many
LEVEL = ((3, 5), (10, 8))                            # where sections have so few neighbours, one part in so many of an axis along which programs grow comes last: a 25th or 64th of the work, enough to level what they leave


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        plan = context.plan
        if plan is None: continue
        if plan.spread[0] > 1:
            kernel.attributes["cluster"] = ArrayAttr([IntegerAttr(n, i64) for n in (plan.spread[0], 1)])
            kernel.attributes["spread"] = UnitAttr()
        if plan.persistent: _persistent(kernel, plan, context)
        elif plan.raster > 1: _raster(kernel, plan.raster)


def _raster(kernel: tile.Kernel, group: int) -> None:
    ids = [op for op in kernel.walk() if isinstance(op, tile.ProgramId) and op.axis.value.data < 2]
    if not ids: return
    build = Order(kernel.body.block.first_op)
    x, y, rows, columns = (build(op) for op in (tile.ProgramId(0), tile.ProgramId(1), tile.NumPrograms(0), tile.NumPrograms(1)))
    place = build.raster(build.add(build.mul(y, rows), x), rows, columns, build.number(group))
    place[0].name_hint, place[1].name_hint = "program_0", "program_1"
    for op in ids: replace(op, [place[op.axis.value.data]])


class Order(Builder):
    """Writes what follows from the order of programs."""

    def raster(self, linear: SSAValue, rows: SSAValue, columns: SSAValue, size: SSAValue, back: bool = False, joined: bool = False) -> list[SSAValue]:
        """Row and column of a number, rows taken in groups of a size; what is left over is a group of its own, or `joined` to the last whole one. back: every second group from its last column to its first."""
        wide = self.mul(size, columns)
        which = self.floordiv(linear, wide)
        if joined: which = self.min(which, last := self.sub(self.max(self.floordiv(rows, size), 1), 1))
        start = self.mul(which, size)
        height = self.select(self.eq(which, last), self.sub(rows, start), size) if joined else self.min(size, self.sub(rows, start))
        inside = self.sub(linear, self.mul(which, wide))
        column = self.floordiv(inside, height)
        row = self.add(start, self.sub(inside, self.mul(column, height)))
        return [row, self.select(self.odd(which), self.sub(self.sub(columns, 1), column), column) if back else column]

    def odd(self, n: SSAValue) -> SSAValue: return self.eq(self.and_(n, 1), 1)

    def looked_up(self, loads: list[tile.Load], needed: list[Operation], places: dict[SSAValue, SSAValue], there: SSAValue) -> list[SSAValue]:
        """What is loaded for the program of that place; zeros where there is none."""
        if not loads: return []
        yes, no = Block([end := scf.YieldOp()]), Block()
        clone_slice(needed, mapping := dict(places), end)
        end.operands = [mapping[op.result] for op in loads]
        zeros = [tile.Constant(0, i32) for _ in loads]
        no.add_ops([*zeros, scf.YieldOp(*zeros)])
        return list(self.do(scf.IfOp(there, [i32] * len(loads), Region(yes), Region(no))).results)

    def section(self, loop: scf.ForOp, others: SSAValue, room: int, few: SSAValue | None = None, rows: SSAValue | None = None) -> SSAValue:
        """How many neighbours along the other axes have their arrays in a cache of so many bytes: those a loop loads from, or of these what the first `few` rows of programs of all may read."""
        sizes = [self.bytes(array) for array in dict.fromkeys(op.array for op in loop.walk() if isinstance(op, tile.Load))]
        if not sizes: return others
        each, room = reduce(self.add, sizes), self.number(room, i64)
        if few is not None: each, room = self.mul(each, self(Cast(few, i64))), self.mul(room, self(Cast(rows, i64)))
        fit = self.div_rn(self(Cast(room, f32)), self(Cast(self.max(each, self.number(1, i64)), f32)))             # every block begins with this, and a division of 64 bits would take it hundreds of clocks
        return self.max(self.min(self(Cast(self.min(fit, self(Cast(others, f32))), i32)), others), 1)

    def level(self, section: SSAValue, rows: SSAValue) -> SSAValue:
        """How many of the first programs of axis 0, which are the shortest, come behind all sections."""
        few: SSAValue | int = 0
        for neighbours, part in reversed(LEVEL): few = self.select(self.le(section, neighbours), self.up(rows, part), few)
        return few

    def short(self, loop: scf.ForOp, rows: SSAValue, each: int, ahead: SSAValue | None) -> SSAValue:
        """How many of the first programs of axis 0 (or of the first so many, side by side, with ghosts ahead of the first) have a shorter loop than the last one: its end moves with the program
        from the first on, its beginning later."""
        def ends(program: SSAValue) -> tuple[SSAValue, SSAValue]:
            if each == 1: return self.anew(loop.lb, program, known := {}), self.anew(loop.ub, program, known)
            first = self.sub(self.mul(program, each), ahead)
            return self.anew(loop.lb, self.max(first, 0), {}), self.anew(loop.ub, self.add(first, each - 1), {})
        (start, end), (_, second), (last, longest) = (ends(i) for i in (self.number(0), self.number(1), self.sub(rows, 1)))
        steps = self.up(self.sub(self.sub(longest, last), self.sub(end, start)), self.max(self.sub(second, end), 1))
        if steps.type == i32: return self.max(self.min(steps, rows), 0)
        return self(Cast(self.max(self.min(steps, self(Cast(rows, steps.type))), 0), i32))           # a loop over arrays of more than 2³¹ elements counts in 64 bits, programs never do

    def begun(self, few: SSAValue, others: SSAValue, rows: SSAValue, blocks: SSAValue) -> SSAValue:
        """How many of `few` short programs of axis 0 come before all others: every second one, and with their neighbours no more than there are blocks. None where most are short."""
        return self.select(self.le(self.add(few, few), rows), self.min(self.floordiv(few, 2), self.floordiv(blocks, self.max(others, 1))), 0)

    def anew(self, value: SSAValue, program: SSAValue, known: dict[SSAValue, SSAValue]) -> SSAValue:
        """A number that is computed from a program's place on axis 0, for another one; from wherever its operations stand."""
        if value not in known:
            op = value.owner
            if isinstance(op, tile.ProgramId): return program
            if not isinstance(op, Operation): return value
            for v in op.operands: known[v] = self.anew(v, program, known)
            self.do(op.clone(known))
        return known[value]

    def bytes(self, array: SSAValue) -> SSAValue:
        """The bytes of an array or of a view, taken as large as the array's axes that it does not fix."""
        axes = list(range(len(array.type.facts.shape)))
        while isinstance(array.owner, tile.View):
            free = [axis for axis, kind in enumerate(array.owner.kinds) if kind.data != "index"]
            axes, array = [free[a] for a in axes], array.owner.array
        total = self.number(bits(array.type.element) // 8, i64)
        for axis in axes: total = self.mul(total, self(Cast(self(tile.Dim(array, axis)), i64)))
        return total


def _persistent(kernel: tile.Kernel, plan: Plan, context: PassContext) -> None:
    """The whole program as the body of a loop over the programs of a block; what no program id reaches stays before it."""
    block, (across, down) = kernel.body.block, plan.cluster
    members = plan.members
    ids = [op for op in kernel.walk() if isinstance(op, tile.ProgramId)]
    inside = _dependent(block) if plan.dots else _each_program(block, plan.keep, context.overlaps)
    if not inside: return
    uneven = next((op for op in kernel.walk() if isinstance(op, scf.ForOp) and 0 in program_axes([op.ub]) and 0 not in program_axes([op.lb]) and not from_memory([op.ub])), None)
    sliding = next((op for op in kernel.walk() if isinstance(op, scf.ForOp) and _slides(op)), None) if uneven is None and plan.queue and plan.dots else None
    deep = any(op.axis.value.data == 2 for op in ids)
    build, end = Order(block.last_op), block.last_op
    rows, columns = build(tile.NumPrograms(0)), build(tile.NumPrograms(1))
    teams = rows if across * members == 1 else build.floordiv(build.add(rows, build.number(across * members - 1)), build.number(across * members))
    wide = columns if down == 1 else build.up(columns, down)
    others = build.mul(wide, build(tile.NumPrograms(2))) if deep else wide
    total = build.mul(teams, others)
    if plan.split_k > 1: total = build.mul(total, build.number(plan.split_k))
    first, step = build(Identity("cluster")), build(Identity("clusters"))
    deal = Deal.of(total, next(op for op in inside if isinstance(op, scf.ForOp) and any(isinstance(inner, tile.Dot) for inner in op.walk())), step, plan.stream_k, end, across * down) if plan.stream_k else None
    ranks = place_in(build, plan.cluster) if plan.cluster != (1, 1) else ()
    rank = build(Identity("cluster_rank")) if deal and ranks else None
    grown = uneven if uneven is not None else sliding
    ahead = build.sub(build.mul(teams, members), rows) if members > 1 and grown is not None else None           # ghosts, beside the shortest programs
    if grown is not None:
        room = context.target.cache // SECTION
        section = build.section(grown, others, room) if uneven is not None else build.number(1)
        few = build.short(sliding, teams, members, ahead) if uneven is None else build.level(section, teams)
        most, least = build.sub(teams, few), build.max(few, 1)
        whole, most = build.mul(most, others), build.max(most, 1)
        sections = section, build.section(grown, others, room, few, teams)
        begun = build.begun(few, others, teams, step) if uneven is None and plan.queue else None
        leads = build.mul(begun, others) if begun is not None else 0

    def place_of(linear: SSAValue, build: Order) -> list[SSAValue]:
        """The program's ids, from its number in the order of all."""
        z = None
        if grown is not None:
            if begun is None:
                early = build.lt(linear, whole)
                linear = build.select(early, linear, build.sub(linear, whole))
                height, size = build.select(early, most, least), build.select(early, *sections)
            else:                                               # every second one of the short ones, those that are not, the other short ones
                leading, rest = build.lt(linear, leads), build.sub(linear, leads)
                early = build.lt(rest, whole)
                linear = build.select(leading, linear, build.select(early, rest, build.sub(rest, whole)))
                height = build.select(leading, begun, build.select(early, most, build.max(build.sub(few, begun), 1)))
                size = build.select(build.and_(early, build.ge(rest, 0)), *sections)
            pair, turn = build.raster(linear, others, height, size, joined=True)
            z = build.floordiv(pair, wide) if deep else None
            row = build.sub(build.sub(build.select(early, teams, few), 1), turn)
            if begun is not None: row = build.select(leading, build.sub(build.sub(few, 1), build.add(turn, turn)), build.select(early, row, build.sub(row, build.min(build.add(turn, 1), begun))))
            place = [row, build.sub(pair, build.mul(z, wide)) if deep else pair]
        else:
            if deep:
                layer = build.mul(teams, wide)
                z = build.floordiv(linear, layer)
                linear = build.sub(linear, build.mul(z, layer))
            if plan.raster > 1: place = build.raster(linear, teams, wide, build.number(plan.raster), plan.serpentine)
            else:
                column = build.floordiv(linear, teams)
                place = [build.sub(linear, build.mul(column, teams)), column]
        for axis, (size, mine) in enumerate(zip(plan.cluster, ranks)):
            if size > 1: place[axis] = build.add(build.mul(place[axis], build.number(size)), mine)
        if members > 1: place[0] = build.mul(place[0], members)
        if ahead is not None: place[0] = build.sub(place[0], ahead)
        return place + [z] * deep

    if uneven is not None: context.decisions.append("schedule-programs: programs differ in length along axis 0: the longest first" + (", claimed one by one" if plan.queue else ""))
    if sliding is not None: context.decisions.append("schedule-programs: the first programs of axis 0, whose loop is shorter than the others', come last, or every second of them first")
    asked = _looked_up(kernel, inside, context) if plan.queue and plan.dots else []
    if members > 1: asked = [op for op in asked if 0 not in program_axes([op.result])]          # each of a team's programs looks up its own
    needed = [op for op in defining_slice([op.result for op in asked], block) if op in inside and not isinstance(op, tile.ProgramId)]
    for op in inside: op.detach()
    real = None
    if plan.queue and not plan.dots:
        loop = _claiming_ahead(first, total, step, plan.stages, inside, end)
        body = loop.after_region.block
        place = place_of(body.args[0], Order(body.first_op))
    elif plan.queue:                                            # the next program's place is carried, and what it looks up there, so that a producer works it out for all
        def known(number: SSAValue, build: Order) -> list[SSAValue]:
            place = place_of(number, build)
            return [*place, *build.looked_up(asked, needed, {op.result: place[op.axis.value.data] for op in ids}, build.lt(number, total))]
        loop, place = _claiming(first, total, known(first, build))
        before(end, loop)
        body = loop.after_region.block
        body.add_ops([following := stamp(NextProgram(total), loop), *inside, stamp(scf.YieldOp(), loop)])
        body.last_op.operands = [following.result, *known(following.result, Order(body.last_op))]
        for op, value in zip(asked, place[-len(asked):]): replace(op, [value])
    else:
        body = Block(arg_types=[i32])
        loop = before(end, scf.ForOp(first, deal.turns if deal else total, step, [], Region(body)))
        body.add_ops([*inside, stamp(scf.YieldOp(), loop)])
        build = Order(body.first_op)
        number, part = body.args[0], None
        if plan.split_k > 1:
            number = build.floordiv(body.args[0], build.number(plan.split_k))
            part = build.sub(body.args[0], build.mul(number, build.number(plan.split_k)))
        if deal:
            turn = Turn.of(deal, body.args[0], body.first_op)
            number = turn.number
        place = place_of(number, build)
        for size, at, end_of in zip(plan.cluster, place, (rows, columns)):
            if size > 1: real = build.lt(at, end_of) if real is None else build.and_(real, build.lt(at, end_of))
    body.args[0].name_hint = "program"
    if members > 1: place[0], real = abreast.place_of(body, place[0], rows, grown is not None)
    for i, v in enumerate(place): v.name_hint = f"program_{i}"
    for op in ids: replace(op, [place[op.axis.value.data]])
    if members > 1:
        abreast.only_real(body, real)
        kernel.set_integer("members", members)
    if plan.split_k > 1 or deal or plan.serpentine: sums = next(op for op in body.ops if isinstance(op, scf.ForOp) and any(isinstance(inner, tile.Dot) for inner in op.walk()))
    if deal:
        share(body, sums, deal, turn, plan.warps // 4, across * down, rank)
        kernel.set_integer("split", plan.stream_k)
        context.decisions.append(f"schedule-programs: the last wave's programs are shared by all blocks, in at most {plan.stream_k} parts each; the last one to come adds them in order")
    if plan.serpentine: backwards(sums, Order(body.first_op), body.args[0], first, step)         # of what is left of a loop that is shared
    if plan.split_k > 1:
        divide(body, sums, number, part, plan.split_k)
        kernel.set_integer("split", plan.split_k)
        context.decisions.append(f"schedule-programs: {plan.split_k} programs share a block of the output; the last one adds their parts in order")
    if real is not None:
        for op in [op for op in body.walk() if isinstance(op, EFFECTS) and not (isinstance(op, tile.Store) and in_workspace(op))]: only_if(real, op)          # what a ghost puts aside nobody else reads
        for op in [op for op in body.walk() if isinstance(op, tile.LoadPointers)]: _masked(op, real)
        for op in [op for op in body.walk() if isinstance(op, tile.Assume)]: op.operands[0] = Builder(op).select(real, op.condition, before(op, tile.Constant(1, i1)).result)          # of a ghost nothing was promised
    if across * down > 1: kernel.attributes["cluster"] = ArrayAttr([IntegerAttr(n, i64) for n in (across * down, 1)])
    kernel.attributes["persistent"] = UnitAttr()
    if tile.waits_for_programs(kernel): kernel.attributes["together"] = UnitAttr()
    if plan.spread[0] > 1: kernel.set_integer("split", plan.spread[0])


def _masked(load: tile.LoadPointers, real: SSAValue) -> None:
    """A load that reads nothing where a program lies outside the grid: its addresses may be outside everything."""
    build, kind = Order(load), like(load.result.type, i1)
    mask = build(tile.Splat(real, kind)) if isinstance(kind, TileType) else real
    replace(load, [build(tile.LoadPointers(load.pointers, build.and_(load.mask, mask) if load.mask else mask, load.other))])


def _slides(loop: scf.ForOp) -> bool:
    """Whether both ends of a loop move with axis 0, and follow from a program's place and the kernel's arguments alone."""
    found = sources([loop.lb, loop.ub])
    return program_axes([loop.lb]) == program_axes([loop.ub]) == {0} and not from_memory([loop.lb, loop.ub]) and all(
        not op.regions and is_side_effect_free(op) and all(isinstance(v.owner, Operation) or isinstance(v.owner.parent_op(), tile.Kernel) for v in op.operands) for op in found)


def _claiming(first: SSAValue, total: SSAValue, place: list[SSAValue]) -> tuple[scf.WhileOp, list[SSAValue]]:
    """A loop while there are programs, which carries the program's number and ids, and the ids in its body; that yields those of the next one."""
    test, body = (Block(arg_types=[i32] * (1 + len(place))) for _ in range(2))
    more = CLASSES["lt"](test.args[0], total)
    test.add_ops([more, scf.ConditionOp(more.result, *test.args)])
    return scf.WhileOp([first, *place], [i32] * (1 + len(place)), Region(test), Region(body)), list(body.args[1:])


def _looked_up(kernel: tile.Kernel, inside: list[Operation], context: PassContext) -> list[tile.Load]:
    """The numbers of 32 bits that a program loads by its place alone, from arrays that the kernel does not change."""
    by_place: set[Operation] = set()
    for op in inside:
        looks_up = isinstance(op, tile.Load) and op.result.type == i32 and op.mask is None and unchanged(op, kernel, context.overlaps)
        if not op.regions and (looks_up or is_side_effect_free(op) and not any(isinstance(r.type, TileType) for r in op.results)) and all(v.owner in by_place or v.owner not in inside for v in op.operands): by_place.add(op)
    return [op for op in inside if op in by_place and isinstance(op, tile.Load)]


def _claiming_ahead(first: SSAValue, total: SSAValue, step: SSAValue, ahead: int, inside: list[Operation], end: Operation) -> scf.WhileOp:
    """The loop that carries the numbers of the next programs too, so that their blocks can be asked for; a block starts with as many that it need not claim."""
    build, numbers = Order(end), [first]
    for _ in range(ahead): numbers.append(build.add(numbers[-1], step))
    loop, coming = _claiming(first, total, numbers[1:])
    before(end, loop)
    body = loop.after_region.block
    body.add_ops([claim := stamp(NextProgram(total), loop), *inside, stamp(scf.YieldOp(), loop)])
    build, following = Order(body.last_op), claim.result
    for _ in range(ahead): following = build.add(following, step)
    body.last_op.operands = [*coming, following]
    return loop


EFFECTS = tile.Store, tile.StorePointers, tile.Print, tile.Assert                 # atomic operations have one role, which has no ghosts


def _dependent(block: Block) -> list[Operation]:
    """The operations of a kernel that a program id reaches, or that have effects, in order."""
    moved: set[Operation] = set()
    for op in block.ops:
        if isinstance(op, tile.Return): continue
        if isinstance(op, tile.ProgramId) or op.regions or not is_side_effect_free(op) or any(v.owner in moved for v in op.operands): moved.add(op)
    return [op for op in block.ops if op in moved]


def _each_program(block: Block, keep: bool, overlaps) -> list[Operation]:
    """The same for programs without dots, whose tiles fill the registers: indices, masks and what is computed of blocks that all programs share are made anew in each; the
    blocks themselves are read once where the plan keeps them."""
    kernel = block.parent_op()
    written = [argument_of(op.array) for op in kernel.walk() if isinstance(op, (tile.Store, tile.AtomicBlock))]
    if any(isinstance(op, (tile.StorePointers, tile.Atomic)) for op in kernel.walk()): written.append(None)

    def shared(op: Operation) -> bool:
        if isinstance(op, tile.Load): return keep and (array := argument_of(op.array)) is not None and None not in written and overlapping(array, overlaps).isdisjoint(written)
        return is_side_effect_free(op) and not any(isinstance(r.type, TileType) for r in op.results)
    moved: set[Operation] = set()
    for op in block.ops:
        if not isinstance(op, tile.Return) and (isinstance(op, tile.ProgramId) or op.regions or not shared(op) or any(v.owner in moved for v in op.operands)): moved.add(op)
    return [op for op in block.ops if op in moved]
