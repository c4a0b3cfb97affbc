"""Level 4: threads. What `tkc.sim.engine` runs and the happens-before check watches.

A *cluster* has blocks, a block has instances of roles (one, where the kernel has no roles), and an
instance two agents: the *leader*, its first warp, and the *follower*, the other warps (of its
warpgroup, where warpgroups act apart: each further one is then an agent too). Tiles are held whole,
by the instance: the leader computes values and runs ahead; every operation of threads is an action
that the leader performs and the follower repeats later, with its own clock, its own share of the
threads and of the elements. So a leader that frees a buffer which other warps still read is
reported. A role of one elected thread, or of one warp, has no follower.

An asynchronous dot is the work of a whole warpgroup: it starts when both agents have issued it, and
whoever waits for it knows of both. Copies happen at a moment of the scheduler's choice between
issue and wait; until then their destination holds NaN.

Accesses to global memory are watched too, within a cluster and between clusters (global_order).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tkc.ir import shared, threads, tile
from tkc.ir.types import MapType
from tkc.ir.values import operations_in, pending_type, shared_type, type_of
from tkc.sim import asynchronous as a
from tkc.sim import dataflow, level0
from tkc.sim import synchronization as s
from tkc.sim.blocks import (
    BlockState,
    Buffer,
    Cluster,
    Dot,
    Host,
    LaunchState,
    Options,
    Ring,
    Stream,
    TensorMap,
    addresses_of,
    clusters_of,
)
from tkc.sim.clocks import GENERIC
from tkc.sim.engine import Statistics, Steps
from tkc.sim.instance import Instance
from tkc.sim.level0 import Array
from tkc.sim.report import Violation

__all__ = ["Host", "Launch", "Options", "Stream", "addresses_of", "clusters_of", "run"]


# --------------------------------------------------------------------------------------------------
def identity(m: Instance, op: threads.Identity) -> np.int32:
    block, launch = m.block, m.launch
    known = {
        "block": block.number,
        "blocks": launch.clusters * launch.size,
        "cluster": block.cluster.number,
        "clusters": launch.clusters,
        "cluster_rank": block.rank,
        "thread": 0,
        "warp": 0,
    }
    return np.int32(known[op.what.data])


def next_program(m: Instance, op: threads.NextProgram, total: np.ndarray) -> np.int32:
    """As `atom.inc` counts: past the last program by one for each block, then from zero again for
    the next launch.
    """
    launch = m.launch
    if launch.spread and m.block.rank:
        return np.int32(0)
    claimed = launch.counter
    launch.counter = 0 if claimed >= total - 1 else claimed + 1
    return np.int32(launch.clusters + claimed)


def tensor_map(m: Instance, op: threads.TensorMap, array: Array) -> TensorMap:
    shape, strides = (tuple(x[a] for a in op.axes) for x in (array.shape, array.strides))
    described = replace(array, shape=shape, strides=strides)
    return TensorMap(described, type_of(op.result, MapType), op.tf32 is not None)


def known_dot(m: Instance, value: np.ndarray) -> Dot:
    """What asynchronous dots begin with: nobody waits for it."""
    return Dot([m.block.cluster.clocks.matrix()] * m.groups, value=value, waited=True)


def undefined(m: Instance, op: threads.Undefined) -> Dot:
    nothing = np.full(pending_type(op.result).tile.extents, np.nan, np.float32)
    return known_dot(m, nothing)


def accumulator(m: Instance, op: threads.Accumulator, tile: np.ndarray) -> Dot:
    return known_dot(m, tile)


def take(m: Instance, op: threads.Take, x: np.ndarray, number: np.ndarray) -> np.ndarray:
    place, axis = op.place(int(number)), op.axis.value.data
    line, zero = np.take(x, place or 0, axis), x.dtype.type(0)
    if x.shape[axis] > 1:
        line = line + zero  # of -0 and zeros the sum is 0
    return line if place is not None else np.full_like(line, zero)


def shared_view(
    m: Instance, op: shared.SharedTranspose | shared.SharedReshape, buffer: Buffer
) -> Buffer:
    return Buffer(buffer.memory, buffer.base, shared_type(op.result))


def rings(m: Instance, op: threads.Barriers) -> Ring:
    return Ring(m.launch.addresses[op], op.result.type.stages)


def alloc(m: Instance, op: shared.Alloc) -> Buffer:
    return Buffer(m.block.memory, m.launch.addresses[op], op.result.type)


Instance.rules = {
    **dataflow.RULES,
    threads.NextProgram: next_program,
    threads.Identity: identity,
    threads.TensorMap: tensor_map,
    threads.Barriers: rings,
    threads.Undefined: undefined,
    threads.Accumulator: accumulator,
    threads.Take: take,
    shared.Alloc: alloc,
    shared.Stage: a.stage,
    shared.SharedSlice: a.shared_slice,
    shared.SharedTranspose: shared_view,
    shared.SharedReshape: shared_view,
}
STEPS: dict[type[Operation], Callable[..., Steps]] = {
    scf.ForOp: s.for_,
    scf.IfOp: s.if_,
    scf.WhileOp: s.while_,
    threads.Roles: s.roles,
    threads.Barrier: s.barrier,
    threads.BarrierArrive: s.barrier,
    threads.BlockBarrier: s.block_barrier,
    threads.Turn: s.turn,
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
    threads.BulkCommit: a.commit,
    threads.BulkWait: a.bulk_wait,
    threads.CpAsync: a.cp_async,
    threads.CpCommit: a.commit,
    threads.CpWait: a.cp_wait,
    threads.DotAsync: a.dot_async,
    threads.DotCommit: a.commit,
    threads.DotWait: a.dot_wait,
    shared.Read: a.read,
    shared.Write: a.write,
    threads.Send: a.send,
    threads.BroadcastStore: a.broadcast_store,
    threads.BroadcastLoad: a.broadcast_load,
    tile.Load: a.reads_global,
    tile.LoadPointers: a.reads_global,
    tile.Store: a.stores_block,
    tile.StorePointers: a.stores_pointers,
    tile.Atomic: a.updates_pointers,
    tile.AtomicBlock: a.updates_block,
}


Instance.steps = STEPS


# --------------------------------------------------------------------------------------------------
class Launch(LaunchState):
    """One kernel on one grid under one seed. only: the numbers of the clusters that run, of all
    that are launched (None: all); host: what it shares with launches of other GPUs; stream: on
    which of them it runs, and after what.
    """

    def __init__(
        self,
        kernel: tile.Kernel,
        arguments: Sequence[Any],
        grid: Sequence[int],
        seed: int = 0,
        resident: int = 1,
        options: Options | None = None,
        only: Sequence[int] | None = None,
        host: Host | None = None,
        stream: Stream | None = None,
    ):
        options = options or Options()
        host = host or Host(seed, options.in_place, options.touched)
        super().__init__(kernel, grid, host, resident, options, stream or Stream())
        self.values = level0.bind(kernel, arguments, self.memory)
        self.waiting = deque(range(self.clusters) if only is None else only)
        self.running, self.whole = 0, only is None

    @property
    def over(self) -> bool:
        """Whether all its clusters have ended."""
        return not self.running and not self.waiting

    def fill(self) -> None:
        """Starts clusters while there is room for more."""
        while self.waiting and self.running < self.resident:
            self.running += 1
            cluster = Cluster(self, self.waiting.popleft())
            for block in cluster.blocks:
                self._start(block)

    def _start(self, block: BlockState) -> None:
        alone = self.size * self.clusters == 1
        name = f"{self.stream.name} block" if self.stream.name else "block"
        one = Instance(block, name if alone else f"{name} {block.number}", self.block_warps)
        one.assign(self.kernel.arguments, self.values)
        one.start(self.kernel.body.block, partial(self._end, block))

    def _end(self, block: BlockState) -> None:
        """Raises Violation where copies or arrivals may reach a block after its end."""
        known = np.max([agent.knows[GENERIC] for agent in block.agents], 0)
        for index, epoch, op in block.remote_accesses:
            if known[index] < epoch:
                raise Violation(
                    "pending at exit",
                    f"block {block.number} can end before '{op.name}' has reached its shared"
                    " memory: nobody in it waits for that",
                    op,
                    (f"block {block.number}",),
                )
        block.over = True
        if all(other.over for other in block.cluster.blocks):
            self.running -= 1
            self.fill()


def run(
    module: ModuleOp | tile.Kernel,
    arguments: Sequence[Any],
    grid: Sequence[int],
    seed: int = 0,
    resident: int = 1,
    *,
    only: Sequence[int] | None = None,
    **options: Any,
) -> Statistics:
    """Runs a level-4 kernel, writing the arrays among `arguments` in place; raises Violation at the
    first broken rule.

    grid: the logical grid. A persistent kernel gets min(resident, clusters needed) clusters; any
    other all of them, `resident` at a time. only: the numbers of the clusters that run, of all that
    are launched. options: of Options.
    """
    kernel = level0.kernel_of(module)
    launch = Launch(kernel, arguments, grid, seed, resident, Options(**options), only)
    with np.errstate(all="ignore"):
        launch.fill()
        launch.scheduler.run()
    check_ended(launch)
    return Statistics(seed, launch.scheduler.steps, launch.clusters * launch.size, launch.agents)


def check_ended(launch: Launch) -> None:
    """Raises Violation where a launch leaves its counter of programs elsewhere than it began."""
    if launch.whole and launch.counter:
        claim = operations_in(launch.kernel, threads.NextProgram)[0]
        raise Violation(
            "counter at exit",
            f"the launch ends with {launch.counter} programs claimed, and the next one would begin"
            " there: missing is a block's claim past the last program",
            claim,
            ("the launch",),
        )
