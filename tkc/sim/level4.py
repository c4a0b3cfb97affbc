"""Level 4: threads. What `tkc.sim.engine` runs and the happens-before check watches.

A *cluster* has blocks, a block has instances of roles (one, where the kernel has no roles), and an
instance two agents: the *leader*, its first warp, and the *laggard*, the other warps (of its
warpgroup, where warpgroups act apart: each further one is then an agent too). Tiles are held whole,
by the instance: the leader computes values and runs ahead; every operation of threads is an action
that the leader performs and the laggard repeats later, with its own clock, its own share of the
threads and of the elements. So a leader that frees a buffer which other warps still read is found
out. A role of one elected thread, or of one warp, has no laggard.

An asynchronous dot is the work of a whole warpgroup: it starts when both agents have issued it, and
whoever waits for it knows of both. Copies happen at a moment of the scheduler's choice between
issue and wait; until then their destination holds NaN.

Accesses to global memory are watched too, within a cluster and between clusters (global_order).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import DenseArrayBase
from xdsl.ir import Block as IrBlock
from xdsl.ir import Operation

from tkc.ir import shared, threads, tile
from tkc.sim import asynchronous as a
from tkc.sim import dataflow, level0
from tkc.sim import synchronization as s
from tkc.sim.barriers import Rendezvous
from tkc.sim.clocks import GENERIC, Clocks
from tkc.sim.engine import Scheduler, Statistics
from tkc.sim.global_memory import GlobalMemory
from tkc.sim.global_order import READS, UPDATES, WRITES, GlobalOrder
from tkc.sim.instance import BlockState, Buffer, Dot, Instance, Ring, TensorMap
from tkc.sim.report import Violation


# --------------------------------------------------------------------------------------------------
def identity(m, op):
    block, launch = m.block, m.launch
    return np.int32(
        {
            "block": block.number,
            "blocks": launch.clusters * launch.size,
            "cluster": block.cluster.number,
            "clusters": launch.clusters,
            "cluster_rank": block.rank,
            "thread": 0,
            "warp": 0,
        }[op.what.data]
    )


def next_program(m, op, total):
    """As `atom.inc` counts: past the last program by one for each block, then from zero again for
    the next launch.
    """
    launch = m.launch
    if "spread" in launch.kernel.attributes and m.block.rank:
        return np.int32(0)
    claimed, launch.counter = (
        launch.counter,
        (0 if launch.counter >= total - 1 else launch.counter + 1),
    )
    return np.int32(launch.clusters + claimed)


Instance.rules = dataflow.RULES | {
    threads.NextProgram: next_program,
    threads.Identity: identity,
    threads.TensorMap: lambda m, op, array: TensorMap(
        replace(
            array,
            shape=tuple(array.shape[a] for a in op.axes),
            strides=tuple(array.strides[a] for a in op.axes),
        ),
        op.result.type,
        op.tf32 is not None,
    ),
    threads.Barriers: lambda m, op: Ring(m.launch.addresses[op], op.result.type.stages),
    threads.Turn: lambda m, op: (),
    threads.Undefined: lambda m, op: Dot(
        m.block.cluster.clocks.matrix(),
        value=np.full(op.result.type.tile.extents, np.nan, np.float32),
        waited=True,
    ),
    shared.Alloc: lambda m, op: Buffer(m.block.memory, m.launch.addresses[op], op.result.type),
    shared.Stage: a.stage,
    shared.SharedSlice: a.shared_slice,
    **dict.fromkeys(
        (shared.SharedTranspose, shared.SharedReshape),
        lambda m, op, b: Buffer(b.memory, b.base, op.result.type),
    ),
}
Instance.steps = {
    scf.ForOp: s.for_,
    scf.IfOp: s.if_,
    scf.WhileOp: s.while_,
    threads.Roles: s.roles,
    threads.Barrier: s.barrier,
    threads.BarrierArrive: lambda m, op: s.barrier(m, op, False),
    threads.BlockBarrier: s.block_barrier,
    threads.ClusterArrive: s.cluster_arrive,
    threads.ClusterWait: s.cluster_wait,
    threads.Fence: s.fence,
    threads.MbarrierInit: s.mbarrier_init,
    threads.MbarrierWait: s.mbarrier_wait,
    threads.MbarrierTest: s.mbarrier_test,
    threads.MbarrierArrive: s.mbarrier_arrive,
    threads.MbarrierExpect: s.mbarrier_expect,
    threads.TmaLoad: a.tma_load,
    threads.TmaStore: a.tma_store,
    threads.BulkCommit: a.commit("bulk", False),
    threads.BulkWait: a.bulk_wait,
    threads.CpAsync: a.cp_async,
    threads.CpCommit: a.commit("copies", True),
    threads.CpWait: a.cp_wait,
    threads.DotAsync: a.dot_async,
    threads.DotCommit: a.commit("dots", True),
    threads.DotWait: a.dot_wait,
    shared.Read: a.read,
    shared.Write: a.write,
    threads.Send: a.exchanged,
    threads.BroadcastStore: a.post,
    threads.BroadcastLoad: a.fetch,
    tile.Load: a.global_access(READS, level0.load),
    tile.LoadPointers: a.global_access(READS, level0.load_pointers),
    tile.Store: a.global_access(WRITES, a.store),
    tile.StorePointers: a.global_access(WRITES, level0.store_pointers),
    tile.Atomic: a.global_access(UPDATES, level0.atomic),
    tile.AtomicBlock: a.global_access(UPDATES, level0.atomic_block),
}


# --------------------------------------------------------------------------------------------------
class Cluster:
    """The blocks that run together."""

    def __init__(self, launch: Launch, number: int):
        # atomic operations done; of which others what is known (global_order)
        self.tick, self.seen = (
            0,
            {},
        )
        self.launch, self.number, self.clocks = (
            launch,
            number,
            Clocks(launch.strict_reads, launch.hazards),
        )
        self.barrier = Rendezvous("the cluster's barrier")
        self.blocks = [BlockState(self, rank) for rank in range(launch.size)]

    def at(self, rank: int) -> BlockState:
        return self.blocks[rank]

    def start(self, values: list) -> None:
        for block in self.blocks:
            one = Instance(
                block,
                f"block {block.number}" if self.launch.size * self.launch.clusters > 1 else "block",
                self.launch.block_warps,
            )
            one.assign(self.launch.kernel.arguments, values)
            self.launch.spawn(
                one, self.launch.kernel.body.block, lambda block=block: self._end(block)
            )

    def _end(self, block: BlockState) -> None:
        known = np.max([a.knows[GENERIC] for a in block.agents], 0)
        for index, epoch, op in block.visits:
            if known[index] < epoch:
                raise Violation(
                    "pending at exit",
                    f"block {block.number} can end before '{op.name}' has reached its shared"
                    " memory: nobody in it waits for that",
                    op,
                    (f"block {block.number}",),
                )
        block.over = True
        self.launch.ended(self)


class Launch:
    """One kernel on one grid under one seed."""

    def __init__(
        self,
        kernel: tile.Kernel,
        arguments: Sequence,
        grid: Sequence[int],
        seed: int,
        resident: int,
        strict_reads: bool,
        out,
        only: Sequence[int] | None = None,
        hazards: bool = True,
        ring: bool = False,
        products: bool = True,
    ):
        self.kernel, self.grid, self.out, self.hazards, self.ring, self.products = (
            kernel,
            tuple(grid),
            out,
            hazards,
            ring,
            products,
        )
        self.memory, self.strict_reads, self.scheduler = (
            GlobalMemory(),
            strict_reads,
            Scheduler(seed),
        )
        self.order, self.claimed = GlobalOrder(self.memory), set()
        self.values = level0.bind(kernel, arguments, self.memory)
        shape = kernel.attributes.get("cluster")
        self.cluster_shape = (
            tuple(shape.get_values())
            if isinstance(shape, DenseArrayBase)
            else tuple(a.value.data for a in shape)
            if shape is not None
            else (1, 1)
        )
        self.size, self.persistent, self.spread = (
            prod(self.cluster_shape),
            "persistent" in kernel.attributes,
            "spread" in kernel.attributes,
        )
        self.clusters = (
            min(resident, -(-prod(self.grid) * kernel.integer("split", 1) // self.size))
            if self.persistent
            else clusters_of(self.grid, (1, 1) if self.spread else self.cluster_shape)
        )
        self.block_warps = _block_warps(kernel)
        self.addresses, self.shared_bytes = addresses_of(kernel)
        self.waiting = deque(range(self.clusters) if only is None else only)
        self.running, self.agents, self.resident, self.counter = 0, 0, resident, 0
        self.code: dict[Operation, level0.Decoded] = {}

    def program_of(self, block: BlockState) -> tuple[int, ...]:
        """The program of a block: neighbours along the first axes share a cluster, or the blocks of
        a cluster share a program.
        """
        if self.spread:
            return clusters_program(block.cluster.number, self.grid)
        across, (cx, cy) = -(-self.grid[0] // self.cluster_shape[0]), (*self.cluster_shape, 1)[:2]
        rest, x = divmod(block.cluster.number, across)
        down = -(-self.grid[1] // cy) if len(self.grid) > 1 else 1
        z, y = divmod(rest, down)
        return x * cx + block.rank % cx, y * cy + block.rank // cx, z

    def spawn(
        self, instance: Instance, body: IrBlock, after: Callable[[], None] = lambda: None
    ) -> None:
        self.agents += len(instance.agents)
        self.scheduler.spawn(instance.leader.name, instance.lead(body, after))
        for agent in instance.followers:
            self.scheduler.spawn(agent.name, instance.follow(agent))

    def ended(self, cluster: Cluster) -> None:
        if all(block.over for block in cluster.blocks):
            self.running -= 1
            self.fill()

    def fill(self) -> None:
        while self.waiting and self.running < self.resident:
            self.running += 1
            Cluster(self, self.waiting.popleft()).start(self.values)


def clusters_program(number: int, grid: Sequence[int]) -> tuple[int, int, int]:
    """The program of a cluster whose blocks share it."""
    rest, x = divmod(number, grid[0])
    z, y = divmod(rest, grid[1] if len(grid) > 1 else 1)
    return x, y, z


def clusters_of(grid: Sequence[int], shape: Sequence[int]) -> int:
    """How many clusters cover a grid; at its edges they have blocks beyond it."""
    (x, y, z), (cx, cy) = (*grid, 1, 1)[:3], (*shape, 1)[:2]
    return -(-x // cx) * -(-y // cy) * z


def _block_warps(kernel: tile.Kernel) -> int:
    for op in kernel.body.block.walk():
        if isinstance(op, threads.Roles):
            return sum(role.warps.value.data * role.instances for role in op.body.block.ops)
    return kernel.warps


def addresses_of(kernel: tile.Kernel) -> tuple[dict[Operation, int], int]:
    """Where each buffer and ring lies; those without an offset one after the other behind the
    others.
    """
    sizes = {
        op: op.result.type.bytes if isinstance(op, shared.Alloc) else 8 * op.result.type.stages
        for op in kernel.body.block.walk()
        if isinstance(op, (shared.Alloc, threads.Barriers))
    }
    at = {op: op.offset.value.data for op in sizes if op.offset is not None}
    end = max((at[op] + sizes[op] for op in at), default=0)
    for op, size in sizes.items():
        if op in at:
            continue
        at[op] = -(-end // 1024) * 1024 if isinstance(op, shared.Alloc) else -(-end // 8) * 8
        end = at[op] + size
    return at, max(end, kernel.integer("shared_bytes"))


def run(
    module,
    arguments: Sequence,
    grid: Sequence[int],
    seed: int = 0,
    resident: int = 1,
    *,
    only: Sequence[int] | None = None,
    strict_reads: bool = True,
    hazards: bool = True,
    ring: bool = False,
    products: bool = True,
    out=print,
) -> Statistics:
    """Runs a level-4 kernel, writing the arrays among `arguments` in place; raises Violation at the
    first broken rule.

    grid: the logical grid. A persistent kernel gets min(resident, clusters needed) clusters; any
    other all of them, `resident` at a time. only: the numbers of the clusters that run, of all that
    are launched. hazards: False looks at values alone, of a program whose barriers are not placed
    yet. ring: the module is one of tkc.sim.ring. products: False leaves dots at what they add to,
    where only the order of accesses is looked at. strict_reads: a generic read before an
    asynchronous write of the same bytes needs a proxy fence too.
    """
    launch = Launch(
        level0.kernel_of(module),
        arguments,
        grid,
        seed,
        resident,
        strict_reads,
        out,
        only,
        hazards,
        ring,
        products,
    )
    with np.errstate(all="ignore"):
        launch.fill()
        launch.scheduler.run()
    if only is None and launch.counter:
        claim = next(op for op in launch.kernel.walk() if isinstance(op, threads.NextProgram))
        raise Violation(
            "counter at exit",
            f"the launch ends with {launch.counter} programs claimed, and the next one would begin"
            " there: missing is a block's claim past the last program",
            claim,
            ("the launch",),
        )
    return Statistics(seed, launch.scheduler.steps, launch.clusters * launch.size, launch.agents)
