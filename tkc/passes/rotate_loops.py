"""rotate-loops: dots that wait for vector work move into the next iteration, beside dots that do
not: tensor cores and vector work overlap.

Where a dot's operand is computed from another dot of the same iteration, the two wait for each
other with vector work between. Taken one iteration late, the second dot has all it needs when an
iteration begins, and both run while the vector work of neither waits.

Before:

    for n:  s = q·k[n]
            p, r = softmax(s, …)
            o = o·r + p·v[n]

After:

    if there is an iteration:
      s = q·k[0];  p, r = softmax(s, …);  t = o·r
      for n from 1:
        s = q·k[n]                 these two do not depend
        o = t + p·v[n − 1]         on each other
        p, r = softmax(s, …);  t = o·r
      o = t + p·v[last]

The plan says which dots are late, by a search for the fewest clocks of an iteration
(planning/stages.py); vector work that needs a late dot is late with it:

    for n:  s = q·k[n];  p = f(s)                     for n from 1:
            t = p·v[n];  g = h(t)                       s = q·k[n];  t = p·v[n − 1]
            u = u + g·w[n]                   ->         g = h(t);  u = u + g·w[n − 1];  p = f(s)

The first iteration does what is not late; behind the loop stands what is late of the last one. What
a late operation needs of its own iteration is carried (p), but for what follows from the induction
variable: addresses and tiles (v) are made for its earlier value. With one role that is the variable
less a step, so that copies can run ahead of it; a producer needs no such help. Everything is data
flow; the values are those of the loop as it was, bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.plan import Plan, number_of
from tkc.ir.rewrite import before, loops_of
from tkc.ir.types import TileType, is_float
from tkc.ir.values import operations_in, owner_op, terminator_of, tile_type, yielded_by
from tkc.passes import PassContext
from tkc.passes.analysis.values import LEAVES, LOADS, VIEWS
from tkc.passes.planning.bodies import LoopGraph, WarpCosts, is_circular, shape
from tkc.passes.planning.operands import MAX_LIVE_REGISTERS, live_registers, running_sums
from tkc.passes.planning.stages import MAX_SEARCH_STEPS, ordered
from tkc.passes.programs.co_resident import BEGUN
from tkc.passes.schedule.expand import End, LoopSchedule, broken_rules, expand

# of a consumer's thread, for what its loop carries and makes of dots: more leave none for addresses
MAX_HELD_REGISTERS = 216


def run(module: ModuleOp, context: PassContext) -> None:
    if context.plan is None:
        return
    if not context.plan.rotate:
        for kernel in tile.kernels_of(module):
            _order_dots(kernel, context)
        return
    machine = WarpCosts(context.target, context.plan.warps, context.plan.roles != "one")
    for kernel in module.body.block.ops:
        for loop in _inside_out(kernel):
            dots = [
                op
                for op in loop.body.block.ops
                if isinstance(op, tile.Dot) and number_of(op) in context.plan.rotate
            ]
            if not dots or _holds_rotated(loop):
                continue
            anatomy = LoopGraph(loop, context.overlaps)
            late = anatomy.late(dots)
            if (body := anatomy.body(machine)) is None:
                continue  # the plan rotates no such loop
            order, _ = ordered(body, late, [MAX_SEARCH_STEPS])
            if (schedule := _legal(anatomy, late, order, context)) is None:
                continue
            expand(loop, schedule, context.overlaps).attributes[BEGUN] = UnitAttr()
            context.decisions += [
                f"rotate-loops: a dot of {shape(dot)} runs beside the next iteration's"
                for dot in dots
            ]


def _inside_out(kernel: tile.Kernel) -> list[scf.ForOp]:
    """The loops of a kernel, those in others before these: what is written anew holds none that are
    still to be.
    """
    loops = operations_in(kernel, scf.ForOp)
    return sorted(loops, key=lambda loop: len(loops_of(loop)), reverse=True)


def _holds_rotated(loop: scf.ForOp) -> bool:
    """Whether a loop in another is rotated, which gains more: it runs in each iteration."""
    return any(BEGUN in op.attributes for op in loop.walk() if op is not loop)


def _order_dots(kernel: tile.Kernel, context: PassContext) -> None:
    """In loops of several dots none of which is late, the order of dots and vector work in which
    both wait least.
    """
    if not context.has_roles:
        return
    for loop in operations_in(kernel, scf.ForOp):
        dots = [op for op in loop.body.block.ops if isinstance(op, tile.Dot)]
        if len({number_of(dot) for dot in dots}) > 1 and not running_sums(loop):
            _order_loop(kernel, loop, dots, context)


def _order_loop(
    kernel: tile.Kernel, loop: scf.ForOp, dots: list[tile.Dot], context: PassContext
) -> None:
    """The same of one loop, where a consumer's registers hold what is then live at once; where two
    blocks share a multiprocessor, fewer.
    """
    plan = context.plan
    assert plan is not None
    warpgroups = plan.warps // 4
    graph = LoopGraph(loop, context.overlaps)
    body = graph.body(WarpCosts(context.target, plan.warps, True))
    in_place = _before_added_to(graph, dots)
    if body is None or is_circular(set(body.edges) | in_place, len(graph.groups)):
        return
    body = dataclasses.replace(body, free=True, edges=body.edges | in_place)
    order, clocks = ordered(body, frozenset(), [MAX_SEARCH_STEPS])
    as_it_was = list(loop.body.block.ops)
    live = live_registers(kernel, dots, warpgroups, context.options)
    _arrange(graph, order)
    before_rounded, fits = _before_rounded(graph, dots), False
    rounded_last = body.edges | before_rounded
    if (
        before_rounded
        and not is_circular(set(rounded_last), len(graph.groups))
        and held_registers(loop, warpgroups) > MAX_HELD_REGISTERS
    ):
        body = dataclasses.replace(body, edges=rounded_last)
        order, clocks = ordered(body, frozenset(), [MAX_SEARCH_STEPS])
        _arrange(graph, order)
        fits = held_registers(loop, warpgroups) <= MAX_HELD_REGISTERS
    then_live = live_registers(kernel, dots, warpgroups, context.options)
    most = MAX_LIVE_REGISTERS[warpgroups * plan.programs]
    if plan.blocks == 2:
        # of two blocks, one has its dots while the other waits: no order is worth a spill
        most = context.target.assembler.paired_order
    if then_live > max(live, most) and not fits:
        _stand(as_it_was)
        return
    said = ", ".join(shape(op) for op in loop.body.block.ops if isinstance(op, tile.Dot))
    context.decisions.append(
        f"rotate-loops: dots in the order {said}: {clocks:.0f} clocks an iteration, of a"
        f" warpgroup alone; {then_live} registers a thread"
    )


def _before_rounded(graph: LoopGraph, dots: list[tile.Dot]) -> set[tuple[int, int, int]]:
    """What else reads a tile comes before the dot whose left operand is that tile, rounded: the
    operand then takes the tile's registers, where it would have some of its own.
    """
    edges = graph.edges()
    found = set[tuple[int, int, int]]()
    for dot in dots:
        rounded = dot.a.owner
        if not isinstance(rounded, Cast) or rounded not in graph.group_of:
            continue
        end, source = graph.group_of[dot], graph.group_of[rounded]
        behind = {end, source}
        while more := {b for a, b, d in edges if a in behind - {source} and not d} - behind:
            behind |= more
        users = {graph.group_of.get(use.operation) for use in rounded.operands[0].uses}
        found |= {(i, source, 0) for i in users if i is not None and i not in behind}
    return found


def held_registers(loop: scf.ForOp, warpgroups: int) -> int:
    """Registers of a thread for what a loop carries and what its body makes of dots, in the order
    in which it stands: a left operand is held until the dots that were issued up to its own are
    waited for.
    """
    ops = list(loop.body.block.ops)
    ends = _ends_of_use(ops)
    returned = {v for v in yielded_by(loop.body.block) if isinstance(v.owner, tile.Dot)}
    made = [(i, v) for i, op in enumerate(ops) for v in op.results if _is_held(v)]
    matrices = [v for v in loop.iter_args if isinstance(v.type, TileType)]
    carried = sum(tile_type(v).bytes for v in matrices)
    others = [(i, v) for i, v in made if v not in returned]
    most = max(
        sum(tile_type(v).bytes for start, v in others if start <= i < ends.get(v, -1))
        for i in range(len(ops))
    )
    return (carried + most) // (512 * warpgroups)


def _ends_of_use(ops: Sequence[Operation]) -> dict[SSAValue, int]:
    """The place of the last of a block's operations that needs each value."""
    place = {op: i for i, op in enumerate(ops)}
    ends = {v: place[op] for op in ops for inner in op.walk() for v in inner.operands}
    waited = [
        max(
            (
                place[v.owner]
                for v in op.operands
                if isinstance(v.owner, tile.Dot) and v.owner in place
            ),
            default=-1,
        )
        for op in ops
    ]
    for i, op in enumerate(ops):
        if isinstance(op, tile.Dot):
            over = (j for j in range(i + 1, len(ops)) if waited[j] >= i)
            ends[op.a] = max(ends[op.a], next(over, len(ops)))
    return ends


def _is_held(value: SSAValue) -> bool:
    """Whether a value is a matrix that threads hold: the result of a dot, or computed."""
    t = value.type
    return (
        isinstance(t, TileType)
        and t.rank == 2
        and min(t.extents) > 1
        and is_float(t.element)
        and not isinstance(value.owner, (*LOADS, *LEAVES, *VIEWS, tile.Broadcast))
    )


def _before_added_to(graph: LoopGraph, dots: list[tile.Dot]) -> set[tuple[int, int, int]]:
    """What reads an accumulator comes before the dot that adds to it, which does so in place."""
    return {
        (graph.group_of[op], graph.group_of[dot], 0)
        for dot in dots
        for op in graph.group_of
        if op is not dot and dot.acc in graph.reads(op)
    }


def _arrange(graph: LoopGraph, order: tuple[int, ...]) -> None:
    """Puts a loop's operations in the order of their groups; what is made anew for each use stands
    before its first one.
    """
    groups = [*(graph.groups[i] for i in order), graph.ops]
    in_turn = [(ops, 0, End.ANY) for ops in groups]
    steps = LoopSchedule.of(graph.loop, in_turn, graph.anew.__contains__).steps
    _stand([*(step.op for step in steps), terminator_of(graph.block)])


def _stand(ops: list[Operation]) -> None:
    """Puts all operations of a block in this order, its terminator last."""
    end = ops[-1]
    for op in ops[:-1]:
        op.detach()
        before(end, op)


def _legal(
    graph: LoopGraph, late: frozenset[int], order: tuple[int, ...], context: PassContext
) -> LoopSchedule | None:
    """The schedule with the program's first dot ahead where the plan wants that, or without: where
    a loop has no iteration, its first load may reach beyond memory that nothing bounds. None where
    what others are told in an iteration comes behind what it loads late.
    """
    plan, loop = context.plan, graph.loop
    assert plan is not None
    for is_ahead in dict.fromkeys((plan.cross_tile_prologue, False)):
        schedule = _schedule(graph, late, order, plan, is_ahead)
        if not any(broken_rules(loop, schedule, context.overlaps)):
            return schedule
    return None


def _schedule(
    graph: LoopGraph, late: frozenset[int], order: tuple[int, ...], plan: Plan, is_ahead: bool
) -> LoopSchedule:
    """That of a loop whose groups of these numbers are late, in this order; vector work of one
    stage that nothing comes between stands in the order in which it stood. is_ahead: whether its
    first dot may run ahead with the program before.
    """
    groups: list[tuple[list[Operation], int, End]] = []
    for i in order:
        ops, early = list(graph.groups[i]), int(i not in late)
        is_work = groups and not any(isinstance(x, tile.Dot) for x in (ops[0], groups[-1][0][0]))
        if is_work and groups[-1][1] == early:
            groups[-1][0].extend(ops)
        else:
            groups.append((ops, early, End.GUARD))
    if is_ahead:
        # the program's first dot harms nobody where there is no iteration, and may run ahead with
        # the program before
        first = next(i for i, (_, early, _) in enumerate(groups) if early)
        groups[first] = (*groups[first][:2], End.ANY)
    handed_on = [owner_op(v) for v in graph.yielded if v.owner in graph.anew]
    groups.append((handed_on, 1, End.GUARD))
    counts_back = plan.roles == "one"
    again = graph.anew.__contains__
    return LoopSchedule.of(graph.loop, groups, again, peel=True, counts_back=counts_back)
