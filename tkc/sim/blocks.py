"""Level 4: what a launch consists of: clusters of thread blocks, and the agents in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
from xdsl.ir import Operation

from tkc.ir import shared, threads, tile
from tkc.ir.interface import blocks_with_work
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import MapType, SharedType
from tkc.sim.barriers import Mbarrier, ThreadBarrier
from tkc.sim.clocks import Clocks, Event, Knowing
from tkc.sim.engine import Copy, Scheduler
from tkc.sim.global_memory import GlobalMemory, Touched
from tkc.sim.global_order import GlobalOrder
from tkc.sim.level0 import Array, Decoded
from tkc.sim.memory import SharedMemory, WarpRange
from tkc.sim.releases import ClusterHistory, Known

WARP = 32  # threads
T = TypeVar("T")


# ---- values of level 4
@dataclass(eq=False, slots=True)
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
    """An array as copies of boxes see it. tf32: floats are rounded to tf32 on their way."""

    array: Array
    type: MapType
    tf32: bool = False


@dataclass(eq=False)
class Dot:
    """An asynchronous dot: its value once done, and for each warpgroup, whose part is a dot of its
    own, the clock of whoever has waited for that.
    """

    knows: list[np.ndarray]
    issued: int = 0
    value: np.ndarray | None = None
    waited: bool = False
    copy: Copy | None = None

    @property
    def done(self) -> bool:
        return self.copy is None or self.copy.done


# ---- agents
@dataclass(eq=False)
class Groups(Generic[T]):
    """Groups of copies or dots that an agent committed, oldest first; `open` is the current one."""

    open: list[T] = field(default_factory=list)
    closed: deque[list[T]] = field(default_factory=deque)

    def commit(self) -> None:
        """Closes the current group."""
        self.closed.append(self.open)
        self.open = []

    def beyond(self, pending: int) -> list[T]:
        """What is in all groups but the last `pending`."""
        return [x for g in list(self.closed)[: max(0, len(self.closed) - pending)] for x in g]

    def drop(self, pending: int) -> list[list[T]]:
        """Forgets all groups but the last `pending`; gives the others, oldest first."""
        return [self.closed.popleft() for _ in range(len(self.closed) - pending)]

    @property
    def empty(self) -> bool:
        return not self.open and not any(self.closed)


class Agent(Knowing):
    """Some warps of an instance: the leader (its first warp) or followers. group: their warpgroup,
    where warpgroups act apart; the first of each does what one thread of it does.
    """

    def __init__(
        self,
        clocks: Clocks,
        name: str,
        warps: int,
        part: WarpRange,
        group: int = 0,
        first: bool = False,
        knows: np.ndarray | None = None,
    ):
        super().__init__(clocks, name, knows)
        self.warps, self.part, self.group, self.first = warps, part, group, first
        # what followers have yet to do after the leader: an operation and its action
        self.queue: deque[tuple[Operation, Callable[[Agent], Any]]] = deque()
        self.busy = False
        self.copies: Groups[tuple[Copy, Event]] = Groups()
        # with the events of what it reads in shared memory, and of what it writes
        self.bulk: Groups[tuple[Copy, Event, Event]] = Groups()
        # what groups of bulk stores write that are known to have read shared memory, oldest first
        self.unwritten: deque[list[Event]] = deque()
        self.dots: Groups[Dot] = Groups()
        self.cluster_generation: int | None = None


# ---- blocks
class BlockState:
    """One thread block."""

    def __init__(self, cluster: Cluster, rank: int):
        self.cluster, self.rank = cluster, rank
        self.number = cluster.number * cluster.launch.size + rank
        self.memory = SharedMemory(cluster.launch.shared_bytes, cluster.clocks)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named: dict[object, ThreadBarrier] = {}
        self.taken = {0: "the block"}  # hardware barriers that instances meet on, and who they are
        # copies and arrivals from elsewhere: stamp and operation
        self.remote_accesses: list[tuple[int, int, Operation]] = []
        self.agents: list[Agent] = []
        self.over = False

    def barrier(self, key: object, name: str) -> ThreadBarrier:
        """The barrier of threads with a key, made when it is first used."""
        return self.named.setdefault(key, ThreadBarrier(name))


class Cluster:
    """The blocks that run together."""

    def __init__(self, launch: LaunchState, number: int):
        self.launch, self.number = launch, number
        self.history = ClusterHistory(launch.stream.rank, launch.stream.before)
        launch.histories.append(self.history)
        self.clocks = Clocks(launch.options.strict_reads, launch.options.hazards)
        self.barrier = ThreadBarrier("the cluster's barrier")
        self.blocks = [BlockState(self, rank) for rank in range(launch.size)]

    def at(self, rank: int) -> BlockState:
        return self.blocks[rank]


# ---- the launch
@dataclass(frozen=True)
class Options:
    """How a launch is simulated. hazards: False looks at values alone, of a program whose barriers
    are not placed yet. ring: the module is one of tkc.sim.ring. products: False leaves dots at what
    they add to, where only the order of accesses is looked at. strict_reads: a generic read before
    an asynchronous write of the same bytes needs a proxy fence too. out: takes what is printed.
    in_place: what addresses in a table point to, and is no argument, is written, not a copy of it.
    touched: notes which bytes of global memory are read and written.
    """

    strict_reads: bool = True
    hazards: bool = True
    ring: bool = False
    products: bool = True
    out: Callable[[str], object] = print
    in_place: bool = False
    touched: Touched | None = None


@dataclass(eq=False)
class Host:
    """What launches of several GPUs share: global memory, the order of its accesses, time."""

    seed: int
    in_place: bool = False  # as of Options, both
    touched: Touched | None = None
    memory: GlobalMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = GlobalMemory(self.in_place, self.touched)
        self.scheduler, self.order = Scheduler(self.seed), GlobalOrder(self.memory)


@dataclass(frozen=True)
class Stream:
    """Where a launch runs: the GPU, its name in reports (empty: there is one), and what was over
    when the launch began.
    """

    rank: int = 0
    name: str = ""
    before: Known = field(default_factory=dict)


class LaunchState:
    """What the blocks of a launch share. size: blocks of a cluster; clusters: how many there are;
    resident: how many run at once.
    """

    def __init__(
        self,
        kernel: tile.Kernel,
        grid: Sequence[int],
        host: Host,
        resident: int,
        options: Options,
        stream: Stream,
    ):
        self.kernel, self.grid, self.options, self.resident = kernel, tuple(grid), options, resident
        self.stream, self.histories = stream, list[ClusterHistory]()
        self.memory, self.scheduler, self.order = host.memory, host.scheduler, host.order
        # accesses whose claims about bank conflicts have been looked at
        self.checked_conflicts: set[Operation] = set()
        self.cluster_shape, self.size = kernel.cluster, prod(kernel.cluster)
        self.persistent = "persistent" in kernel.attributes
        self.spread = "spread" in kernel.attributes
        self.clusters = self._number_of_clusters()
        self.block_warps = _block_warps(kernel)
        self.addresses, self.shared_bytes = addresses_of(kernel)
        self.agents, self.counter = 0, 0
        self.code: dict[Operation, Decoded] = {}

    def _number_of_clusters(self) -> int:
        if not self.persistent:
            return clusters_of(self.grid, (1, 1) if self.spread else self.cluster_shape)
        blocks = blocks_with_work(
            self.grid, self.size, self.kernel.cluster_programs, self.kernel.integer("split", 1)
        )
        return min(self.resident, blocks // self.size)

    def program_of(self, block: BlockState) -> tuple[int, ...]:
        """The program of a block: neighbours along the first axes share a cluster, or the blocks of
        a cluster share a program.
        """
        if self.spread:
            return clusters_program(block.cluster.number, self.grid)
        cx, cy = self.cluster_shape
        across = -(-self.grid[0] // cx)
        rest, x = divmod(block.cluster.number, across)
        down = -(-self.grid[1] // cy) if len(self.grid) > 1 else 1
        z, y = divmod(rest, down)
        return x * cx + block.rank % cx, y * cy + block.rank // cx, z


def clusters_program(number: int, grid: Sequence[int]) -> tuple[int, int, int]:
    """The program of a cluster whose blocks share it."""
    rest, x = divmod(number, grid[0])
    z, y = divmod(rest, grid[1] if len(grid) > 1 else 1)
    return x, y, z


def clusters_of(grid: Sequence[int], shape: Sequence[int]) -> int:
    """How many clusters cover a grid; at its edges they have blocks beyond it."""
    (x, y, z), (cx, cy) = (*grid, 1, 1)[:3], shape
    return -(-x // cx) * -(-y // cy) * z


def _block_warps(kernel: tile.Kernel) -> int:
    roles = next((op for op in kernel.body.block.walk() if isinstance(op, threads.Roles)), None)
    if roles is None:
        return kernel.warps
    ops = roles.body.block.ops
    return sum(op.warps.value.data * op.instances for op in ops if isinstance(op, threads.Role))


def addresses_of(kernel: tile.Kernel) -> tuple[dict[Operation, int], int]:
    """Where each buffer and ring lies, and how many bytes of shared memory there are; those without
    an offset lie one after the other behind the others.
    """
    placed = [
        op for op in kernel.body.block.walk() if isinstance(op, (shared.Alloc, threads.Barriers))
    ]
    at: dict[Operation, int] = {op: op.offset.value.data for op in placed if op.offset is not None}
    end = max((at[op] + _shared_bytes(op) for op in placed if op in at), default=0)
    for op in placed:
        if op in at:
            continue
        alignment = 1024 if isinstance(op, shared.Alloc) else 8
        at[op] = -(-end // alignment) * alignment
        end = at[op] + _shared_bytes(op)
    return at, max(end, kernel.integer("shared_bytes"))


def _shared_bytes(op: shared.Alloc | threads.Barriers) -> int:
    return op.result.type.bytes if isinstance(op, shared.Alloc) else 8 * op.result.type.stages
