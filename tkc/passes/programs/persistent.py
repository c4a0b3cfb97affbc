"""The loop over the programs that a block takes in turn, and how the plan divides a program's loop
of dots among blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.errors import VerifyError
from tkc.ir import tile
from tkc.ir.plan import Plan
from tkc.ir.rewrite import Builder, before, holding, stamp
from tkc.ir.threads import Identity
from tkc.ir.values import first_of, terminator_of
from tkc.passes import PassContext
from tkc.passes.analysis.values import LOADS
from tkc.passes.programs import co_resident
from tkc.passes.programs.dynamic_tile_scheduler import Lookup, claimed, claimed_ahead
from tkc.passes.programs.order import Order, order_of, uneven
from tkc.passes.programs.serpentine import backwards
from tkc.passes.programs.split_k import Part, divide, divide_in_cluster
from tkc.passes.programs.stream_k import StreamKSchedule, Turn, share
from tkc.passes.programs.tile_groups import Grid, TileGroups, read_only_if


@dataclass
class ProgramLoop:
    """The loop over a block's programs. place: the ids of a program; real: whether it is none of
    those that fill up a cluster or a tile group, where there are any; turn: of programs whose steps
    blocks share; part: of programs that share an output tile.
    """

    body: Block
    place: list[SSAValue]
    real: SSAValue | None = None
    turn: Turn | None = None
    part: Part | None = None


@dataclass
class Programs:
    """All programs, numbered from 0 to `total`: of which a block, or a cluster, takes the first-th
    and every step-th.

    ends: programs along both axes; sums: a program's loop of dots; deal: how blocks share the last
    wave's steps, and rank: of a block in its cluster where they depend on it; is_uneven: whether
    programs are taken in the order of their length.
    """

    kernel: tile.Kernel
    plan: Plan
    end: Operation
    ends: tuple[SSAValue, SSAValue]
    total: SSAValue
    first: SSAValue
    step: SSAValue
    sums: scf.ForOp | None
    deal: StreamKSchedule | None
    is_uneven: bool
    tile_groups: TileGroups
    rank: SSAValue | None
    order: Order

    @staticmethod
    def of(
        kernel: tile.Kernel,
        plan: Plan,
        inside: list[Operation],
        ids: list[tile.ProgramId],
        context: PassContext,
    ) -> Programs:
        """Writes what blocks know before their first program."""
        end, sums = terminator_of(kernel.body.block), _loop_of_dots(inside)
        build = Builder(end)
        ends = build(tile.NumPrograms(0)), build(tile.NumPrograms(1))
        grid = Grid.of(
            build,
            ends,
            (plan.cluster[0] * plan.members, plan.cluster[1]),
            any(op.axis.value.data == 2 for op in ids),
        )
        total = build.mul(grid.rows, grid.others)
        if plan.split_k > 1 and not plan.parts_in_cluster:
            total = build.mul(total, plan.split_k)
        first, step = build(Identity("cluster")), build(Identity("clusters"))
        deal = None
        if plan.stream_k:
            size = plan.cluster[0] * plan.cluster[1]
            deal = StreamKSchedule.of(total, _the(sums), step, plan.stream_k, end, size)
        by_length = uneven(kernel, plan)
        tile_groups = TileGroups.of(build, plan, grid, ends[0], by_length is not None)
        rank = build(Identity("cluster_rank")) if deal and tile_groups.ranks else None
        order = order_of(by_length, plan, build, grid, tile_groups, step, context)
        return Programs(
            kernel,
            plan,
            end,
            ends,
            total,
            first,
            step,
            sums,
            deal,
            by_length is not None,
            tile_groups,
            rank,
            order,
        )

    def loop(
        self, inside: list[Operation], ids: list[tile.ProgramId], context: PassContext
    ) -> ProgramLoop:
        """The loop over a block's programs, with what they do."""
        plan, lookup = self.plan, None
        if plan.dynamic_schedule and plan.dots:
            lookup = Lookup.of(self.kernel, inside, ids, plan.members, context.overlaps)
        for op in inside:
            op.detach()
        if lookup:
            body, place = claimed(self.first, self.total, self._place_of, lookup, inside, self.end)
            found = ProgramLoop(body, place)
        elif plan.dynamic_schedule:
            body = claimed_ahead(self.first, self.total, self.step, plan.stages, inside, self.end)
            found = ProgramLoop(body, self._place_of(Builder(first_of(body)), body.args[0]))
        else:
            found = self._counted(inside)
        if plan.members > 1:
            found.place[0], found.real = co_resident.place_of(
                found.body, found.place[0], self.ends[0], self.is_uneven
            )
        return found

    def _counted(self, inside: list[Operation]) -> ProgramLoop:
        """Over every step-th program, or turn of those that blocks share."""
        count = self.deal.turns if self.deal else self.total
        body = _counted(self.first, count, self.step, inside, self.end)
        build = Builder(first_of(body))
        turn = part = None
        if self.deal:
            turn = Turn.of(self.deal, body.args[0], build.anchor)
            place = self._place_of(build, turn.number)
        else:
            plan = self.plan
            part = Part.of(build, body.args[0], plan.split_k, plan.parts_in_cluster)
            place = self._place_of(build, part.number)
        return ProgramLoop(body, place, self.tile_groups.real(build, place, self.ends), turn, part)

    def _place_of(self, build: Builder, number: SSAValue) -> list[SSAValue]:
        """The ids of a program."""
        return self.tile_groups.own(build, self.order.place(build, number))

    def divide(self, loop: ProgramLoop, context: PassContext) -> None:
        """The loop of dots in each program as the plan divides and turns it."""
        plan, body = self.plan, loop.body
        if plan.members > 1 and loop.real is not None:
            co_resident.only_real(body, loop.real)
        if self.deal and loop.turn:
            size = plan.cluster[0] * plan.cluster[1]
            share(body, _the(self.sums), self.deal, loop.turn, plan.warps // 4, size, self.rank)
            self._read_for_steps(body, loop.turn, context)
        if plan.serpentine:
            # of the steps that are left to a loop that is shared
            build = Builder(first_of(body))
            backwards(_the(self.sums), build, body.args[0], self.first, self.step)
        if plan.parts_in_cluster and loop.part and loop.part.part:
            divide_in_cluster(_the(self.sums), loop.part.part, plan.split_k, context.overlaps)
        elif plan.split_k > 1 and loop.part:
            divide(body, _the(self.sums), loop.part, plan.split_k, 32 * plan.warps)

    def _read_for_steps(self, body: Block, turn: Turn, context: PassContext) -> None:
        """A turn without steps reads nothing that the program may write whose place it has."""
        sums = _the(self.sums)
        loads = [op for op in body.ops if isinstance(op, LOADS) and op.is_before_in_block(sums)]
        if loads:
            has_steps = Builder(loads[0]).or_(turn.alone, turn.divided)
            read_only_if(has_steps, loads, context)


def _counted(
    first: SSAValue, total: SSAValue, step: SSAValue, inside: list[Operation], end: Operation
) -> Block:
    """The body of a loop over every so many-th of all numbers."""
    body = Block(arg_types=[i32])
    loop = before(end, scf.ForOp(first, total, step, [], Region(body)))
    body.add_ops([*inside, stamp(scf.YieldOp(), loop)])
    return body


def _loop_of_dots(inside: list[Operation]) -> scf.ForOp | None:
    loops = (op for op in holding(inside, tile.Dot) if isinstance(op, scf.ForOp))
    return next(loops, None)


def _the(loop: scf.ForOp | None) -> scf.ForOp:
    """The loop of a program's dots, which a plan that divides it is only made for."""
    if loop is None:
        raise VerifyError("the plan divides a loop of dots, and the program has none")
    return loop
