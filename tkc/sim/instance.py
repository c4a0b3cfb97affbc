"""What runs at level 4: blocks, instances of roles, and their two agents (level4 tells the whole
story).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from xdsl.ir import Block as IrBlock
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import MapType, SharedType
from tkc.sim import dataflow, level0, ring
from tkc.sim.barriers import Mbarrier, Rendezvous
from tkc.sim.clocks import Clocks, Event, Knowing
from tkc.sim.engine import Copy, Wait
from tkc.sim.errors import SimulationError
from tkc.sim.level0 import Array
from tkc.sim.memory import ALL, CELL, Part, SharedMemory, cells_of, elements_of
from tkc.sim.report import Violation

if TYPE_CHECKING:
    from tkc.sim.level4 import Cluster

WARP = 32


# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Buffer:
    """A buffer (or ring) of a block's shared memory."""

    memory: SharedMemory
    base: int
    type: SharedType

    @property
    def layout(self) -> SharedLayout:
        return self.type.memory


@dataclass(frozen=True)
class Ring:
    """The mbarriers of a ring."""

    base: int
    stages: int


@dataclass(frozen=True)
class TensorMap:
    array: Array
    type: MapType
    tf32: bool = False


@dataclass(eq=False)
class Dot:
    """An asynchronous dot: its value once done, and what waiting for it teaches."""

    knows: np.ndarray
    issued: int = 0
    value: np.ndarray | None = None
    waited: bool = False
    copy: Copy | None = None


# --------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Groups:
    """Groups of copies or dots that an agent committed, oldest first; `open` is the current one."""

    open: list = field(default_factory=list)
    closed: deque = field(default_factory=deque)

    def commit(self) -> None:
        self.closed.append(self.open)
        self.open = []

    def beyond(self, pending: int) -> list:
        return [x for g in list(self.closed)[: max(0, len(self.closed) - pending)] for x in g]

    def drop(self, pending: int) -> None:
        while len(self.closed) > pending:
            self.closed.popleft()

    @property
    def empty(self) -> bool:
        return not self.open and not any(self.closed)


class Agent(Knowing):
    """Some warps of an instance, from and to: the leader (its first warp) or followers. group:
    their warpgroup, where warpgroups act apart; the first of each does what one thread of it does.
    """

    def __init__(
        self,
        clocks: Clocks,
        name: str,
        warps: int,
        part: Part,
        group: int = 0,
        first: bool = False,
        knows=None,
    ):
        super().__init__(clocks, name, knows)
        self.warps, self.part, self.group, self.first = warps, part, group, first
        self.queue: deque = deque()
        self.busy = False
        self.copies, self.bulk, self.dots = Groups(), Groups(), Groups()
        self.cluster_generation: int | None = None


class BlockState:
    """One thread block."""

    def __init__(self, cluster: Cluster, rank: int):
        self.cluster, self.rank, self.number = (
            cluster,
            rank,
            cluster.number * cluster.launch.size + rank,
        )
        self.memory = SharedMemory(cluster.launch.shared_bytes, cluster.clocks)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named: dict[object, Rendezvous] = {}
        self.taken: dict[int, str] = {0: "the block"}  # hardware barriers that instances meet on
        self.visits: list[
            tuple[int, int, Operation]
        ] = []  # copies and arrivals from elsewhere: stamp and operation
        self.agents: list[Agent] = []
        self.over = False

    def rendezvous(self, key: object, name: str) -> Rendezvous:
        return self.named.setdefault(key, Rendezvous(name))


class Instance(dataflow.DataflowMachine):
    """The warps of one role instance (or of a block without roles), and the values they hold
    together.

    rules: operations that compute; steps: operations of threads, as generators (both are filled in
    by level4).
    """

    steps: ClassVar[dict[type[Operation], Callable]] = {}

    def __init__(
        self,
        block: BlockState,
        name: str,
        warps: int,
        single: bool = False,
        knows: tuple[np.ndarray, np.ndarray] | None = None,
        groups: int = 1,
    ):
        launch = block.cluster.launch
        super().__init__(
            launch.memory, launch.program_of(block), launch.grid, launch.out, launch.code
        )
        self.block, self.name, self.launch, self.warps, self.single = (
            block,
            name,
            launch,
            warps,
            single,
        )
        self.rules = (
            self.rules
            | (ring.RULES if launch.ring else {})
            | ({} if launch.products else {tile.Dot: lambda m, op, a, b, acc: acc})
        )
        first, rest = knows or (None, None)
        alone, each, clocks = single or warps == 1, warps // groups, block.cluster.clocks
        self.groups, self.followers = groups, []
        self.leader = Agent(
            clocks,
            name if alone else f"{name} (first warp)",
            1,
            ALL if alone else (0, 1),
            0,
            True,
            first,
        )
        if not alone:
            self.followers.append(
                Agent(clocks, f"{name} (other warps)", each - 1, (1, each), 0, False, rest)
            )
        for group in range(1, groups):
            self.followers.append(
                Agent(
                    clocks,
                    f"{name} (warpgroup {group})",
                    each,
                    (group * each, (group + 1) * each),
                    group,
                    True,
                    rest,
                )
            )
        self.finished, self.dot_fence, self.last_dot = False, False, None
        self.adding: dict[SSAValue, Dot] = {}  # tiles that asynchronous dots in flight add to
        block.agents += self.agents

    def _track(self, op: Operation, code: level0.Decoded) -> None:
        if not self.launch.ring:
            super()._track(op, code)

    @property
    def agents(self) -> list[Agent]:
        return [self.leader, *self.followers]

    @property
    def idle(self) -> bool:
        return not any(f.queue or f.busy for f in self.followers)

    def share(self, agent: Agent, held: Layout | None) -> np.ndarray | None:
        """The elements of a tile whose values the first of a warpgroup writes for it; None: all."""
        each = self.warps // self.groups
        return elements_of(
            held,
            ALL if self.groups == 1 else (agent.group * each, (agent.group + 1) * each),
            True,
            self.block.rank,
        )

    # ---- the agents
    def lead(self, body: IrBlock, after: Callable[[], None] = lambda: None) -> Generator:
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

    def follow(self, agent: Agent) -> Generator:
        while True:
            yield Wait(lambda: agent.queue or self.finished, lambda: "its first warp", idle=True)
            if not agent.queue:
                return
            agent.busy = True
            op, action = agent.queue.popleft()
            try:
                yield from action(agent)
            except SimulationError as e:
                e.operation, e.agents = e.operation or op, e.agents or (agent.name,)
                raise
            agent.busy = False

    def _at_end(self, agent: Agent, op: Operation | None) -> None:
        for groups, what in (
            (agent.bulk, "stores that still read shared memory"),
            (agent.dots, "dots"),
            (agent.copies, "copies"),
        ):
            if not groups.empty:
                raise Violation(
                    "pending at exit",
                    f"{agent.name} ends with {what} that it has not waited for",
                    op,
                    (agent.name,),
                )

    def both(
        self, op: Operation, action: Callable[[Agent], Generator], meet: bool = False
    ) -> Generator:
        """Leader now, followers later; meet: none can pass without the others."""
        if meet:
            for f in self.followers:
                f.queue.append((op, action))
        yield from action(self.leader)
        if not meet:
            for f in self.followers:
                f.queue.append((op, action))

    # ---- the walk
    def walk(self, block: IrBlock) -> Generator:
        for op in block.ops:
            if type(op) in level0.TERMINATORS:
                return tuple([self.values[v] for v in op.operands])
            if self.adding:
                self._untouched(op)
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

    def _untouched(self, op: Operation) -> None:
        """The registers of an accumulator belong to the dot that adds to them until somebody has
        waited for it.
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

    def assign(self, targets, values) -> None:
        targets = tuple(targets)
        super().assign(targets, values)
        for value in targets if self.adding else ():
            self.adding.pop(value, None)  # the next iteration's

    def enter(self, region, arguments: Sequence) -> Generator:
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
        held=None,
        write: bool = False,
        whole: bool = False,
    ) -> None:
        # a slice of narrow elements begins anywhere
        cells = cells_of(
            buffer.layout,
            held,
            ALL if whole else agent.part,
            write,
            self.block.rank,
            buffer.base % CELL,
        )
        (buffer.memory.write if write else buffer.memory.read)(buffer.base, cells, event, op)

    def ordered(
        self,
        kind: str,
        event: Event,
        op: Operation,
        pointers,
        live,
        own=None,
        changed=None,
        others: bool = True,
        agent: Agent | None = None,
    ) -> None:
        """An access to global memory that happens now (global_order)."""
        if self.launch.hazards:
            self.launch.order.access(
                kind, self.block.cluster, event, op, pointers, live, own, changed, others, agent
            )

    def address(self, barriers: SSAValue, index: Sequence[SSAValue]) -> int:
        ring, at = self[barriers], self.offset(index[0]) if index else 0
        if not 0 <= at < ring.stages:
            raise Violation("bounds", f"stage {at} of a ring of {ring.stages} mbarriers")
        return ring.base + 8 * at

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
        bits_, size = self.offset(mask), self.launch.size
        if bits_ < 0 or bits_ >> size:
            raise Violation(
                "bounds", f"the mask {bits_:#x} names blocks beyond the {size} of the cluster"
            )
        return [r for r in range(size) if bits_ >> r & 1]
