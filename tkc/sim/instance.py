"""Level 4: the warps of one role instance: the values that they hold together, and how its leader
and followers go through the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import Block as IrBlock
from xdsl.ir import Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.layout import Layout
from tkc.sim import dataflow, level0, ring
from tkc.sim.barriers import Mbarrier
from tkc.sim.blocks import Agent, BlockState, Buffer, Dot, Ring
from tkc.sim.clocks import Event
from tkc.sim.engine import Steps, Wait
from tkc.sim.errors import SimulationError
from tkc.sim.global_order import GlobalAccess
from tkc.sim.memory import ALL_WARPS, CELL, WarpRange, cells_of, elements_of
from tkc.sim.report import Violation

Action = Callable[[Agent], Steps]  # what each agent does of an operation


class Instance(dataflow.DataflowInterpreter):
    """The warps of one role instance (or of a block without roles), and the values they hold
    together.

    rules: operations that compute; steps: operations of threads, as generators (both are filled in
    by level4).
    """

    steps: ClassVar[Mapping[type[Operation], Callable[..., Steps]]] = {}

    def __init__(
        self,
        block: BlockState,
        name: str,
        warps: int,
        single: bool = False,
        knows: tuple[np.ndarray, np.ndarray] | None = None,
        groups: int = 1,
    ):
        launch, options = block.cluster.launch, block.cluster.launch.options
        program = launch.program_of(block)
        super().__init__(launch.memory, program, launch.grid, options.out, launch.code)
        self.block, self.launch, self.name = block, launch, name
        self.warps, self.single, self.groups = warps, single, groups
        if options.ring:
            self.rules = {**self.rules, **ring.RULES}
        if not options.products:
            self.rules = {**self.rules, tile.Dot: lambda m, op, a, b, acc: acc}
        self.leader, self.followers = self._agents(*(knows or (None, None)))
        block.agents += self.agents
        self.finished = False
        self.in_turn = False  # of a warpgroup at the tensor cores
        self.dot_fence = False  # whether a fence came before the current group of dots
        self.last_dot: Dot | None = None
        self.adding: dict[SSAValue, Dot] = {}  # tiles that asynchronous dots in flight add to

    def _agents(
        self, first: np.ndarray | None, rest: np.ndarray | None
    ) -> tuple[Agent, list[Agent]]:
        """The leader and its followers. first, rest: what they know in the beginning."""
        clocks, each = self.block.cluster.clocks, self.warps // self.groups
        if self.single or self.warps == 1:
            return Agent(clocks, self.name, 1, ALL_WARPS, 0, True, first), []
        leader = Agent(clocks, f"{self.name} (first warp)", 1, (0, 1), 0, True, first)
        followers = [
            Agent(clocks, f"{self.name} (other warps)", each - 1, (1, each), 0, False, rest)
        ]
        for group in range(1, self.groups):
            part, name = self._warps_of(group), f"{self.name} (warpgroup {group})"
            followers.append(Agent(clocks, name, each, part, group, True, rest))
        return leader, followers

    def _warps_of(self, group: int) -> WarpRange:
        each = self.warps // self.groups
        return group * each, (group + 1) * each

    def _track(self, op: Operation, code: level0.Decoded) -> None:
        if not self.launch.options.ring:
            super()._track(op, code)

    @property
    def agents(self) -> list[Agent]:
        return [self.leader, *self.followers]

    @property
    def idle(self) -> bool:
        """Whether the followers have done all that the leader has."""
        return not any(f.queue or f.busy for f in self.followers)

    @property
    def done(self) -> bool:
        """Whether none of its agents has anything left to do."""
        return self.finished and self.idle

    def share(self, agent: Agent, held: Layout | None) -> np.ndarray | None:
        """The elements of a tile whose values the first of a warpgroup writes for it; None: all."""
        part = ALL_WARPS if self.groups == 1 else self._warps_of(agent.group)
        return elements_of(held, part, True, self.block.rank)

    # ---- the agents
    def start(self, body: IrBlock, after: Callable[[], None] = lambda: None) -> None:
        """Its agents begin with a block of operations; `after` is called when they have ended."""
        self.launch.agents += len(self.agents)
        self.launch.scheduler.spawn(self.leader.name, self._lead(body, after))
        for agent in self.followers:
            self.launch.scheduler.spawn(agent.name, self._follow(agent))

    def _lead(self, body: IrBlock, after: Callable[[], None]) -> Steps:
        try:
            yield from self.walk(body)
        except SimulationError as e:
            e.agents = e.agents or (self.leader.name,)
            raise
        self.finished = True
        yield Wait(lambda: self.idle, lambda: "its other warps", idle=True)
        for agent in self.agents:
            self._at_end(agent, body.last_op)
        after()

    def _follow(self, agent: Agent) -> Steps:
        queue = agent.queue
        work = Wait(lambda: bool(queue) or self.finished, lambda: "its first warp", idle=True)
        while True:
            yield work
            if not queue:
                return
            agent.busy = True
            op, action = queue.popleft()
            try:
                yield from action(agent)
            except SimulationError as e:
                e.operation, e.agents = e.operation or op, e.agents or (agent.name,)
                raise
            agent.busy = False

    def _at_end(self, agent: Agent, op: Operation | None) -> None:
        for pending, what in (
            (not agent.bulk.empty, "stores that still read shared memory"),
            (not agent.dots.empty, "dots"),
            (not agent.copies.empty, "copies"),
        ):
            if pending:
                raise Violation(
                    "pending at exit",
                    f"{agent.name} ends with {what} that it has not waited for",
                    op,
                    (agent.name,),
                )

    def both(self, op: Operation, action: Action, meet: bool = False) -> Steps:
        """The leader does it now, the followers later; meet: none can pass without the others."""
        if meet:
            for f in self.followers:
                f.queue.append((op, action))
        yield from action(self.leader)
        if not meet:
            for f in self.followers:
                f.queue.append((op, action))

    # ---- the walk
    def walk(self, block: IrBlock) -> Steps:
        """Executes a block's operations; gives the operands of its terminator."""
        for op in block.ops:
            if type(op) in level0.TERMINATORS:
                return tuple([self.values[v] for v in op._operands])
            if self.adding:
                self._check_not_in_flight(op)
            step = self.steps.get(type(op))
            if step is None:
                self.execute(op)
                continue
            try:
                out = yield from step(self, op)
            except SimulationError as e:
                e.operation = e.operation or op
                raise
            if op.results:
                self.assign(op.results, out if isinstance(out, tuple) else (out,))
        return ()

    def _check_not_in_flight(self, op: Operation) -> None:
        """Raises Violation where an operation uses an accumulator that a dot adds to and that
        nobody has waited for.
        """
        self.adding = {value: dot for value, dot in self.adding.items() if not dot.waited}
        for value in op.operands:
            if value in self.adding:
                raise Violation(
                    "in flight",
                    f"{self.name} uses"
                    f" {f'%{value.name_hint}' if value.name_hint else 'an accumulator'} in"
                    f" '{op.name}' while an asynchronous dot adds to its registers: missing is a"
                    " dot_wait before it",
                    op,
                    (self.leader.name,),
                )

    def assign(self, targets: Iterable[SSAValue], values: Iterable[Any]) -> None:
        if not self.adding:
            return super().assign(targets, values)
        targets = tuple(targets)
        super().assign(targets, values)
        for value in targets:
            self.adding.pop(value, None)  # the next iteration's

    def enter(self, region: Region, arguments: Sequence[Any]) -> Steps:
        """Executes a region; gives what its terminator yields."""
        if not region.blocks:
            return ()
        self.assign(region.block.args, arguments)
        return (yield from self.walk(region.block))

    # ---- places
    def buffer_access(
        self,
        agent: Agent,
        buffer: Buffer,
        event: Event,
        op: Operation,
        held: Layout | None = None,
        write: bool = False,
        whole: bool = False,
    ) -> None:
        """An access to a buffer that happens now: to the elements that the agent holds of a tile in
        the layout `held`, or to all.
        """
        # a slice of narrow elements begins anywhere
        cells = cells_of(
            buffer.layout,
            held,
            ALL_WARPS if whole else agent.part,
            write,
            self.block.rank,
            buffer.base % CELL,
        )
        (buffer.memory.write if write else buffer.memory.read)(buffer.base, cells, event, op)

    def ordered(self, access: GlobalAccess) -> None:
        """An access to global memory that happens now (global_order)."""
        if self.launch.options.hazards:
            access.block = self.block.number
            self.launch.order.access(self.block.cluster.history, access)

    def address(self, barriers: SSAValue, index: Sequence[SSAValue]) -> int:
        """The byte of shared memory at which an mbarrier of a ring lies."""
        found: Ring = self[barriers]
        at = self.offset(index[0]) if index else 0
        if not 0 <= at < found.stages:
            raise Violation("bounds", f"stage {at} of a ring of {found.stages} mbarriers")
        return found.base + 8 * at

    def mbarrier(
        self, address: int, agent: Agent, op: Operation, rank: int | None = None, far: bool = False
    ) -> Mbarrier:
        """The mbarrier at an address of a block of the cluster, as the agent may use it."""
        block = self.block if rank is None else self.block.cluster.at(rank)
        if block.over:
            raise Violation(
                "pending at exit",
                f"{agent.name} uses an mbarrier of block {rank}, which has ended",
                op,
                (agent.name,),
            )
        found = block.mbarriers.get(address)
        if found is None:
            raise Violation(
                "barrier",
                f"{agent.name} uses an mbarrier at byte {address} that nobody has initialised",
                op,
                (agent.name,),
            )
        found.visible(agent, far or block is not self.block, op)
        return found

    def targets(self, mask: SSAValue | None) -> list[int]:
        """Ranks of the blocks of a mask."""
        if mask is None:
            return [self.block.rank]
        named, size = self.offset(mask), self.launch.size
        if named < 0 or named >> size:
            raise Violation(
                "bounds", f"the mask {named:#x} names blocks beyond the {size} of the cluster"
            )
        return [r for r in range(size) if named >> r & 1]
