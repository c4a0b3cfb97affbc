"""Level 4: threads. What `tkc.sim.engine` runs and the happens-before check watches.

A *cluster* has blocks, a block has instances of roles (one, where the kernel has no roles), and an instance two agents: the *leader*, its first warp, and the
*laggard*, the other warps. Tiles are held whole, by the instance: the leader computes values and runs ahead; every operation of threads is an action
that the leader performs and the laggard repeats later, with its own clock, its own share of the threads and of the elements. So a leader that frees a
buffer which other warps still read is found out. A role of one elected thread, or of one warp, has no laggard.

An asynchronous dot is the work of a whole warpgroup: it starts when both agents have issued it, and whoever waits for it knows of both.
Copies happen at a moment of the scheduler's choice between issue and wait; until then their destination holds NaN.

Not watched: the order of accesses to global memory, and registers of an asynchronous dot that other operations overwrite.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import DenseArrayBase
from xdsl.ir import Block as IrBlock
from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.layout import LayoutError
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import MapType, PendingType, SharedType, TileType, bits
from tkc.sim import dataflow, level0
from tkc.sim.barriers import Mbarrier, Rendezvous
from tkc.sim.clocks import ASYNC, GENERIC, INIT, Clocks, Event, Knowing
from tkc.sim.engine import Copy, Scheduler, Statistics, Wait
from tkc.sim.errors import SimulationError
from tkc.sim.global_memory import GlobalMemory
from tkc.sim.level0 import Array, dtype_of, rounded
from tkc.sim.memory import ALL, LAGGARD, LEADER, SharedMemory, cells_of
from tkc.sim.report import Violation

WARP = 32


# ------------------------------------------------------------------------------------------------------ values
@dataclass(frozen=True)
class Buffer:
    """A buffer (or ring) of a block's shared memory."""
    memory: SharedMemory
    base: int
    type: SharedType

    @property
    def layout(self) -> SharedLayout: return self.type.memory


@dataclass(frozen=True)
class Ring:
    """The mbarriers of a ring."""
    base: int
    stages: int


@dataclass(frozen=True)
class TensorMap:
    array: Array
    type: MapType


@dataclass(eq=False)
class Dot:
    """An asynchronous dot: its value once done, and what waiting for it teaches."""
    knows: np.ndarray
    issued: int = 0
    value: np.ndarray | None = None
    waited: bool = False
    copy: Copy | None = None


# ------------------------------------------------------------------------------------------------------ agents
@dataclass(eq=False)
class Groups:
    """Groups of copies or dots that one agent committed, oldest first; `open` is the current one."""
    open: list = field(default_factory=list)
    closed: deque = field(default_factory=deque)

    def commit(self) -> None: self.closed.append(self.open); self.open = []
    def beyond(self, pending: int) -> list: return [x for g in list(self.closed)[:max(0, len(self.closed) - pending)] for x in g]
    def drop(self, pending: int) -> None:
        while len(self.closed) > pending: self.closed.popleft()
    @property
    def empty(self) -> bool: return not self.open and not any(self.closed)


class Agent(Knowing):
    """The leader or the laggard of an instance."""

    def __init__(self, clocks: Clocks, name: str, warps: int, part: str, knows=None):
        super().__init__(clocks, name, knows)
        self.warps, self.part = warps, part
        self.queue: deque = deque()
        self.copies, self.bulk, self.dots = Groups(), Groups(), Groups()
        self.cluster_generation: int | None = None


class BlockState:
    """One thread block."""

    def __init__(self, cluster: Cluster, rank: int):
        self.cluster, self.rank, self.number = cluster, rank, cluster.number * cluster.launch.size + rank
        self.memory = SharedMemory(cluster.launch.shared_bytes, cluster.launch.clocks)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named: dict[object, Rendezvous] = {}
        self.loads: list[Event] = []
        self.agents: list[Agent] = []
        self.over = False

    def rendezvous(self, key: object, name: str) -> Rendezvous: return self.named.setdefault(key, Rendezvous(name))


class Instance(dataflow.DataflowMachine):
    """The warps of one role instance (or of a block without roles), and the values they hold together."""

    def __init__(self, block: BlockState, name: str, warps: int, single: bool = False, knows: tuple[np.ndarray, np.ndarray] | None = None):
        launch = block.cluster.launch
        super().__init__(launch.memory, launch.program_of(block), launch.grid, launch.out)
        self.block, self.name, self.launch, self.warps, self.single = block, name, launch, warps, single
        first, rest = knows or (None, None)
        alone = single or warps == 1
        self.leader = Agent(launch.clocks, name if alone else f"{name} (first warp)", 1, ALL if alone else LEADER, first)
        self.laggard = None if alone else Agent(launch.clocks, f"{name} (other warps)", warps - 1, LAGGARD, rest)
        self.finished, self.dot_fence, self.last_dot = False, False, None
        block.agents += self.agents

    @property
    def agents(self) -> list[Agent]: return [self.leader] + ([self.laggard] if self.laggard else [])
    @property
    def idle(self) -> bool: return self.laggard is None or not self.laggard.queue and not self.laggard_busy
    laggard_busy = False

    # ---- the two agents
    def lead(self, body: IrBlock, after: Callable[[], None] = lambda: None) -> Generator:
        yield from self.walk(body)
        self.finished = True
        yield Wait(lambda: self.idle, lambda: "its other warps", idle=True)
        for agent in self.agents: self._at_end(agent, body.last_op)
        after()

    def lag(self) -> Generator:
        while True:
            yield Wait(lambda: self.laggard.queue or self.finished, lambda: "its first warp", idle=True)
            if not self.laggard.queue: return
            self.laggard_busy = True
            op, action = self.laggard.queue.popleft()
            try: yield from action(self.laggard)
            except SimulationError as e: e.operation = e.operation or op; raise
            self.laggard_busy = False

    def _at_end(self, agent: Agent, op: Operation | None) -> None:
        for groups, what in ((agent.bulk, "stores that still read shared memory"), (agent.dots, "dots"), (agent.copies, "copies")):
            if not groups.empty: raise Violation("pending at exit", f"{agent.name} ends with {what} that it has not waited for", op, (agent.name,))

    def both(self, op: Operation, action: Callable[[Agent], Generator], meet: bool = False) -> Generator:
        """Leader now, laggard later; meet: neither can pass without the other."""
        if self.laggard and meet: self.laggard.queue.append((op, action))
        yield from action(self.leader)
        if self.laggard and not meet: self.laggard.queue.append((op, action))

    # ---- the walk
    def walk(self, block: IrBlock) -> Generator:
        for op in block.ops:
            if isinstance(op, level0.TERMINATORS): return tuple(self.values[v] for v in op.operands)
            step = STEPS.get(type(op))
            if step is None: self.execute(op); continue
            try: out = yield from step(self, op)
            except SimulationError as e: e.operation = e.operation or op; raise
            if op.results: self.assign(op.results, out if isinstance(out, tuple) else (out,))
        return ()

    def enter(self, region, arguments: Sequence) -> Generator:
        if not region.blocks: return ()
        self.assign(region.block.args, arguments)
        return (yield from self.walk(region.block))

    # ---- places
    def buffer_access(self, agent: Agent, buffer: Buffer, event: Event, op: Operation, held=None, write: bool = False, part: str | None = None) -> None:
        cells = cells_of(buffer.layout, held, part or agent.part, write)
        (buffer.memory.write if write else buffer.memory.read)(buffer.base, cells, event, op)

    def address(self, barriers: SSAValue, index: Sequence[SSAValue]) -> int:
        ring, at = self[barriers], self.offset(index[0]) if index else 0
        if not 0 <= at < ring.stages: raise Violation("bounds", f"stage {at} of a ring of {ring.stages} mbarriers")
        return ring.base + 8 * at

    def mbarrier(self, address: int, agent: Agent, op: Operation, rank: int | None = None, far: bool = False) -> Mbarrier:
        """The mbarrier at an address of a block of the cluster, as the agent may use it."""
        block = self.block if rank is None else self.block.cluster.at(rank)
        if block.over: raise Violation("pending at exit", f"{agent.name} uses an mbarrier of block {rank}, which has ended", op, (agent.name,))
        found = block.mbarriers.get(address)
        if found is None: raise Violation("barrier", f"{agent.name} uses an mbarrier at byte {address} that nobody has initialised", op, (agent.name,))
        found.visible(agent, far or block is not self.block, op)
        return found

    def targets(self, mask: SSAValue | None) -> list[int]:
        """Ranks of the blocks of a mask."""
        if mask is None: return [self.block.rank]
        bits_, size = self.offset(mask), self.launch.size
        if bits_ < 0 or bits_ >> size: raise Violation("bounds", f"the mask {bits_:#x} names blocks beyond the {size} of the cluster")
        return [r for r in range(size) if bits_ >> r & 1]


# ------------------------------------------------------------------------------------------------------ control flow
def for_(m, op):
    low, high, step = (m.offset(v) for v in (op.lb, op.ub, op.step))
    if step <= 0: raise SimulationError(f"a loop with step {step}")
    carried = tuple(m[v] for v in op.iter_args)
    for i in range(low, high, step): carried = yield from m.enter(op.body, (rounded(i, op.lb.type), *carried))
    return carried


def if_(m, op): return (yield from m.enter(op.true_region if m[op.cond] else op.false_region, ()))


def while_(m, op):
    carried = [m[v] for v in op.operands]
    while True:
        goes_on, *carried = yield from m.enter(op.before_region, carried)
        if not goes_on: return tuple(carried)
        carried = yield from m.enter(op.after_region, carried)
        yield None


def roles(m, op):
    yield Wait(lambda: m.idle, lambda: "its other warps", op)
    first, rest = m.leader.knows, (m.laggard or m.leader).knows
    instances = []
    for role in op.body.block.ops:
        for copy in range(role.instances):
            name = f"{m.name} {role.sym_name.data}" + (f" {copy}" if role.instances > 1 else "")
            one = Instance(m.block, name, role.warps.value.data, role.single is not None, (rest if instances else first, rest))
            one.values, one.exact = dict(m.values), dict(m.exact)
            one.assign([role.who], [np.int32(copy)])
            instances.append(one)
            m.launch.spawn(one, role.body.block)

    def join(agent: Agent) -> Generator:
        yield Wait(lambda: all(i.finished and i.idle for i in instances), lambda: "the roles to end", op)
        for one in instances:
            for other in one.agents: agent.learn(other.knows)
        agent.tick()
    yield from m.both(op, join)
    return ()


# ------------------------------------------------------------------------------------------------------ barriers
def meeting(m, op, find: Callable[[Agent], tuple[Rendezvous, int]], waits: bool = True):
    def action(agent: Agent) -> Generator:
        yield None
        if m.single: raise Violation("arrivals", f"{m.name} is one thread and cannot take part in a barrier of warps")
        barrier, needed = find(agent)
        generation = barrier.arrive(agent, needed, agent.warps * WARP, op)
        if not waits: return
        yield Wait(lambda: barrier.over(generation), lambda: str(barrier), op)
        agent.learn(barrier.done[generation])
    yield from m.both(op, action, meet=waits)
    return ()


def barrier(m, op, waits: bool = True):
    number = m.offset(op.id)
    if not 0 <= number < 16: raise Violation("bounds", f"barrier {number}; a block has barriers 0 to 15")
    return (yield from meeting(m, op, lambda agent: (m.block.rendezvous(number, f"barrier {number}"), op.threads.value.data), waits))


def block_barrier(m, op): return (yield from meeting(m, op, lambda agent: (m.block.rendezvous(m.name, f"the barrier of {m.name}"), m.warps * WARP)))


def cluster_arrive(m, op):
    def action(agent: Agent) -> Generator:
        yield None
        cluster = m.block.cluster
        share = m.warps * WARP if m.single else agent.warps * WARP
        agent.cluster_generation = cluster.barrier.arrive(agent, cluster.launch.size * cluster.launch.block_warps * WARP, share, op, INIT if op.relaxed is not None else slice(None))
    yield from m.both(op, action)
    return ()


def cluster_wait(m, op):
    def action(agent: Agent) -> Generator:
        cluster, generation = m.block.cluster, agent.cluster_generation
        if generation is None: raise Violation("arrivals", f"{agent.name} waits at the cluster's barrier without an arrival")
        yield Wait(lambda: cluster.barrier.over(generation), lambda: str(cluster.barrier), op)
        agent.learn(cluster.barrier.done[generation])
    yield from m.both(op, action)
    return ()


def fence(m, op):
    kind = op.kind.data
    if kind == "dot": m.dot_fence = True

    def action(agent: Agent) -> Generator:
        if kind == "async_shared": agent.fence()
        elif kind == "mbarrier_init": agent.knows[INIT, agent.index] = agent.epoch; agent.tick()
        yield None
    yield from m.both(op, action)
    return ()


def mbarrier_init(m, op):
    ring, block = m[op.barriers], m.block
    for stage in range(ring.stages):
        address = ring.base + 8 * stage
        if address in block.mbarriers: raise Violation("barrier", f"the mbarrier at byte {address} is initialised twice")
        label = f"mbarrier {op.barriers.name_hint or address}[{stage}]" + (f" of block {block.rank}" if m.launch.size > 1 else "")
        block.memory.write(address, np.arange(2), m.leader.access(op), op)
        block.mbarriers[address] = Mbarrier(label, op.count.value.data, m.leader)
        block.memory.guarded[address // 4:address // 4 + 2] = True
    yield None
    return ()


def mbarrier_wait(m, op):
    address, parity, skip = m.address(op.barriers, op.index), m.offset(op.parity), op.unless is not None and bool(m[op.unless])

    def action(agent: Agent) -> Generator:
        found = m.mbarrier(address, agent, op)
        if agent is m.leader and skip:
            if m.laggard: found.due[m.laggard] = found.phase
            return
        yield Wait(lambda: found.complete(parity), lambda: f"parity {parity & 1} of {found}", op)
        seen(m, agent, found)
    yield from m.both(op, action)
    return ()


def seen(m, agent: Agent, found: Mbarrier) -> None:
    found.observe(agent)
    if agent is m.leader and m.laggard: found.due[m.laggard] = found.phase


def mbarrier_test(m, op):
    yield None
    found, parity = m.mbarrier(m.address(op.barriers, op.index), m.leader, op), m.offset(op.parity)
    over = found.complete(parity)
    if over: found.observe(m.leader)          # the laggard looks for itself: at the wait that this test may skip
    return np.bool_(over)


def mbarrier_arrive(m, op):
    address, targets, each = m.address(op.barriers, op.index), m.targets(op.to), op.each is not None

    def action(agent: Agent) -> Generator:
        yield None
        if agent is m.laggard and not each: return
        for rank in targets: m.mbarrier(address, agent, op, rank).arrive(agent.knows, agent.warps if each else 1, op, agent.name)
        agent.tick()
    yield from m.both(op, action)
    return ()


def mbarrier_expect(m, op):
    yield None
    found = m.mbarrier(m.address(op.barriers, op.index), m.leader, op)
    found.expect(op.bytes.value.data, op)
    found.arrive(m.leader.knows, 1, op, m.leader.name)
    m.leader.tick()
    return ()


# ------------------------------------------------------------------------------------------------------ copies
def box(m, op, memory: SharedLayout) -> tuple[np.ndarray, np.ndarray, SharedLayout]:
    """Global addresses of a box, which of them exist, and how it lies in shared memory."""
    source, t = m[op.map].array, m[op.map].type
    if source.pointer * 1 % 16 or any(s * source.dtype.itemsize % 16 for s, n in zip(source.strides[:-1], source.shape) if n > 1) or source.shape[-1] > 1 and source.strides[-1] != 1:
        raise Violation("alignment", f"a tensor map takes arrays whose rows are dense and start at multiples of 16 bytes, not strides {source.strides}")
    starts, at, live = [m.offset(o) for o in op.offsets], np.int64(source.pointer), np.bool_(True)
    for axis, (start, extent, bound, stride) in enumerate(zip(starts, t.extents, source.shape, source.strides)):
        index = (start + np.arange(extent, dtype=np.int64)).reshape([-1 if a == axis else 1 for a in range(t.rank)])
        at, live = at + index * stride * source.dtype.itemsize, live & (index >= 0) & (index < bound)
    slim = [n for i, n in enumerate(t.extents) if any(e > 1 for e in t.extents[:i + 1])] or [1]
    lands = SharedLayout(tuple(slim), bits(t.element), t.swizzle)
    if lands.num_panels > 1 and not t.panelled and len(slim) == len(memory.shape): lands = memory      # one copy a panel
    if prod(memory.shape) != t.size: raise Violation("bounds", f"a box of {list(t.extents)} and a buffer of {list(memory.shape)}")
    return at.reshape(lands.shape), np.broadcast_to(live, at.shape).reshape(lands.shape), lands


def aligned(buffer: Buffer, base: int) -> None:
    need = max(128, buffer.layout.atom)
    if base % (need if buffer.layout.swizzle > 16 else 128): raise Violation("alignment", f"TMA needs shared memory at a multiple of {need} bytes, not at {base}")


def tma_load(m, op):
    buffer, address, targets, agent = m[op.buffer], m.address(op.barriers, op.index), m.targets(op.to), m.leader
    pointers, live, lands = box(m, op, buffer.layout)
    aligned(buffer, buffer.base)
    yield None
    event, cells, places = m.launch.clocks.start(agent.knows, ASYNC, op, agent.name), cells_of(lands, None, ALL, True), []
    for rank in targets:
        block = m.block.cluster.at(rank)
        m.mbarrier(address, agent, op, rank, far=True)
        block.memory.write(buffer.base, cells, event, op)
        block.memory.poison(buffer.base, lands)
        block.loads.append(event)
        places.append(block)
    left = list(places)

    def land() -> None:                        # each block's bytes arrive on their own
        block = left.pop(m.launch.scheduler.random.randrange(len(left)))
        if block.over: raise Violation("pending at exit", f"a copy arrives in block {block.rank} after its end", op)
        block.memory.store(buffer.base, lands, m.memory.load(pointers, live, dtype_of(m[op.map].type.element)))
        block.mbarriers[address].deliver(m.launch.clocks.end(event), m[op.map].type.bytes, op)
    for _ in targets: m.launch.scheduler.start(Copy(land, op))
    return ()


REDUCTIONS = {"add": np.add, "max": np.maximum, "min": np.minimum}


def tma_store(m, op):
    buffer, agent, kind = m[op.buffer], m.leader, op.reduce.data if op.reduce else None
    pointers, live, lands = box(m, op, buffer.layout)
    aligned(buffer, buffer.base)
    yield None
    event = m.launch.clocks.start(agent.knows, ASYNC, op, agent.name)
    buffer.memory.read(buffer.base, cells_of(lands, None, ALL, False), event, op)
    element = m[op.map].type.element

    def act() -> None:
        values = buffer.memory.load(buffer.base, lands, dtype_of(element))
        if kind: values = rounded(REDUCTIONS[kind](level0.widened(m.memory.load(pointers, live, dtype_of(element))), level0.widened(values)), element)
        m.memory.store(pointers, live, values)
    agent.bulk.open.append((m.launch.scheduler.start(Copy(act, op)), event))
    return ()


def commit(groups: str, everyone: bool):
    def step(m, op):
        def action(agent: Agent) -> Generator:
            getattr(agent, groups).commit()
            yield None
        if groups == "dots": m.dot_fence = False
        if everyone: yield from m.both(op, action)
        else: yield from action(m.leader)
        return ()
    return step


def bulk_wait(m, op):
    agent, pending = m.leader, op.pending.value.data
    waited = agent.bulk.beyond(pending)
    yield Wait(lambda: all(copy.done for copy, _ in waited), lambda: "its bulk stores", op)
    for _, event in waited: agent.learn(m.launch.clocks.end(event))
    agent.bulk.drop(pending)
    return ()


def cp_async(m, op):
    buffer, pointers_live = m[op.buffer], level0.block(m, op)
    held = op.threads.data if op.threads is not None else None
    other = 0 if op.other is None else m[op.other]

    def act() -> None: buffer.memory.store(buffer.base, buffer.layout, m.memory.load(*pointers_live, dtype_of(buffer.type), other).reshape(buffer.layout.shape))
    copy = Copy(act, op)

    def action(agent: Agent) -> Generator:
        yield None
        event = m.launch.clocks.start(agent.knows, GENERIC, op, agent.name)
        cells = cells_of(buffer.layout, held, agent.part, True) if held is not None else coalesced(buffer.layout, m.warps, agent.part)
        buffer.memory.write(buffer.base, cells, event, op)
        if agent is m.leader: buffer.memory.poison(buffer.base, buffer.layout); m.launch.scheduler.start(copy)
        agent.copies.open.append((copy, event))
    yield from m.both(op, action)
    return ()


def coalesced(layout: SharedLayout, warps: int, part: str) -> np.ndarray:
    """The cells that a part of the warps copies, 16 bytes a thread, thread after thread along the rows."""
    cells = layout.table().reshape(-1, layout.shape[-1]) // 4
    chunk = max(1, 16 // layout.itemsize)
    thread = (np.arange(cells.shape[0])[:, None] * -(-cells.shape[1] // chunk) + np.arange(cells.shape[1]) // chunk) % (warps * WARP)
    first = np.unique(cells[thread < WARP])
    return {ALL: np.unique(cells), LEADER: first, LAGGARD: np.setdiff1d(np.unique(cells[thread >= WARP]), first)}[part]


def cp_wait(m, op):
    pending = op.pending.value.data

    def action(agent: Agent) -> Generator:
        waited = agent.copies.beyond(pending)
        yield Wait(lambda: all(copy.done for copy, _ in waited), lambda: "its copies", op)
        for _, event in waited: agent.knows[GENERIC] = np.maximum(agent.knows[GENERIC], m.launch.clocks.end(event)[GENERIC])
        agent.copies.drop(pending)
    yield from m.both(op, action)
    return ()


# ------------------------------------------------------------------------------------------------------ shared memory and registers
def read(m, op):
    buffer = m[op.buffer]
    def action(agent: Agent) -> Generator:
        yield None
        m.buffer_access(agent, buffer, agent.access(op), op, op.result.type.register_layout)
    yield from m.both(op, action)
    return buffer.memory.load(buffer.base, buffer.layout, dtype_of(buffer.type)).reshape(op.result.type.extents)


def write(m, op):
    buffer, value = m[op.buffer], np.asarray(m[op.value])
    def action(agent: Agent) -> Generator:
        yield None
        m.buffer_access(agent, buffer, agent.access(op), op, op.value.type.register_layout, write=True)
        if agent is m.leader: buffer.memory.store(buffer.base, buffer.layout, value.reshape(buffer.layout.shape))
    yield from m.both(op, action)
    return ()


def stage(m, op, ring, *_):
    at = m.offset(op.index[0]) if op.index else 0
    if not 0 <= at < ring.type.stages: raise Violation("bounds", f"stage {at} of a ring of {ring.type.stages}")
    return Buffer(ring.memory, ring.base + at * ring.type.stage_bytes, op.result.type)


def shared_slice(m, op, buffer, *_):
    starts = [m.offset(o) for o in op.offsets]
    try: _, start = buffer.layout.slice(starts, [*op.result.type.extents] if len(op.result.type.extents) == len(starts) else [1] * len(starts))
    except LayoutError as e: raise Violation("bounds", str(e)) from None
    return Buffer(buffer.memory, buffer.base + start, op.result.type)


# ------------------------------------------------------------------------------------------------------ asynchronous dots
def dot_async(m, op):
    a, b, acc = m[op.a], m[op.b], m[op.acc] if op.acc is not None else None
    keep, result = op.keep is None or bool(m[op.keep]), op.result.type.tile
    agents, before = len(m.agents), m.last_dot
    m.last_dot = dot = Dot(m.launch.clocks.matrix())

    def act() -> None:
        x, y = (v.memory.load(v.base, v.layout, dtype_of(v.type)) if isinstance(v, Buffer) else v for v in (a, b))
        old = acc.value if isinstance(acc, Dot) else acc
        new = level0.product(x, y, "tf32")
        dot.value = rounded(new if old is None or not keep else level0.accumulated(old) + new, result)
    dot.copy = Copy(act, op, lambda: dot.issued == agents and (before is None or before.copy.done))

    def action(agent: Agent) -> Generator:
        yield None
        if agent is m.leader and not m.dot_fence: raise Violation("missing dot fence", f"{agent.name} starts a group of asynchronous dots without a fence dot", op, (agent.name,))
        event = m.launch.clocks.start(agent.knows, ASYNC, op, agent.name)
        for operand in (a, b):
            if isinstance(operand, Buffer): m.buffer_access(agent, operand, event, op, part=ALL)
        np.maximum(dot.knows, agent.knows, out=dot.knows)
        np.maximum(dot.knows, m.launch.clocks.end(event), out=dot.knows)
        agent.tick()
        agent.dots.open.append(dot)
        dot.issued += 1
        if agent is m.leader: m.launch.scheduler.start(dot.copy)
    yield from m.both(op, action)
    return dot


def dot_wait(m, op):
    pending = op.pending.value.data

    def action(agent: Agent) -> Generator:
        waited = agent.dots.beyond(pending)
        yield Wait(lambda: all(d.copy.done for d in waited), lambda: "its dots", op)
        for d in waited: agent.learn(d.knows); d.waited = d.waited or agent is m.leader
        agent.dots.drop(pending)
    yield from m.both(op, action)
    out = []
    for operand, result in zip(op.args, op.results):
        d = m[operand]
        if isinstance(result.type, TileType) and not d.waited:
            raise Violation("not waited", f"{m.name} reads an accumulator whose dots are among the {pending} groups in flight, or not committed", op, (m.leader.name,))
        out.append(d.value if isinstance(result.type, TileType) else d)
    return tuple(out)


# ------------------------------------------------------------------------------------------------------ the tables
def identity(m, op):
    block, launch = m.block, m.launch
    return np.int32({"block": block.number, "blocks": launch.clusters * launch.size, "cluster": block.cluster.number, "clusters": launch.clusters,
                     "cluster_rank": block.rank, "thread": 0, "warp": 0}[op.what.data])


Instance.rules = dataflow.RULES | {
    threads.Identity: identity,
    threads.TensorMap: lambda m, op, array: TensorMap(array, op.result.type),
    threads.Barriers: lambda m, op: Ring(m.launch.addresses[op], op.result.type.stages),
    shared.Alloc: lambda m, op: Buffer(m.block.memory, m.launch.addresses[op], op.result.type),
    shared.Stage: stage, shared.SharedSlice: shared_slice,
    shared.SharedTranspose: lambda m, op, b: Buffer(b.memory, b.base, op.result.type),
}
STEPS = {
    scf.ForOp: for_, scf.IfOp: if_, scf.WhileOp: while_, threads.Roles: roles,
    threads.Barrier: barrier, threads.BarrierArrive: lambda m, op: barrier(m, op, False), threads.BlockBarrier: block_barrier,
    threads.ClusterArrive: cluster_arrive, threads.ClusterWait: cluster_wait, threads.Fence: fence,
    threads.MbarrierInit: mbarrier_init, threads.MbarrierWait: mbarrier_wait, threads.MbarrierTest: mbarrier_test,
    threads.MbarrierArrive: mbarrier_arrive, threads.MbarrierExpect: mbarrier_expect,
    threads.TmaLoad: tma_load, threads.TmaStore: tma_store, threads.BulkCommit: commit("bulk", False), threads.BulkWait: bulk_wait,
    threads.CpAsync: cp_async, threads.CpCommit: commit("copies", True), threads.CpWait: cp_wait,
    threads.DotAsync: dot_async, threads.DotCommit: commit("dots", True), threads.DotWait: dot_wait,
    shared.Read: read, shared.Write: write,
}


# ------------------------------------------------------------------------------------------------------ the launch
class Cluster:
    """The blocks that run together."""

    def __init__(self, launch: Launch, number: int):
        self.launch, self.number = launch, number
        self.barrier = Rendezvous("the cluster's barrier")
        self.blocks = [BlockState(self, rank) for rank in range(launch.size)]

    def at(self, rank: int) -> BlockState: return self.blocks[rank]

    def start(self, values: list) -> None:
        for block in self.blocks:
            one = Instance(block, f"block {block.number}" if self.launch.size * self.launch.clusters > 1 else "block", self.launch.block_warps)
            one.assign(self.launch.kernel.arguments, values)
            self.launch.spawn(one, self.launch.kernel.body.block, lambda block=block: self._end(block))

    def _end(self, block: BlockState) -> None:
        known = np.max([a.knows[ASYNC] for a in block.agents], 0)
        for event in block.loads:
            if known[event.index] < event.epoch:
                op = self.launch.clocks.at(event.index, event.epoch)
                raise Violation("pending at exit", f"block {block.number} ends and nobody in it has waited for a copy into its shared memory", op)
        block.over = True
        self.launch.ended(self)


class Launch:
    """One kernel on one grid under one seed."""

    def __init__(self, kernel: tile.Kernel, arguments: Sequence, grid: Sequence[int], seed: int, resident: int, strict_reads: bool, out):
        self.kernel, self.grid, self.out = kernel, tuple(grid), out
        self.memory, self.clocks, self.scheduler = GlobalMemory(), Clocks(strict_reads), Scheduler(seed)
        self.values = level0.bind(kernel, arguments, self.memory)
        shape = kernel.attributes.get("cluster")
        self.cluster_shape = tuple(shape.get_values()) if isinstance(shape, DenseArrayBase) else tuple(a.value.data for a in shape) if shape is not None else (1, 1)
        self.size, programs = prod(self.cluster_shape), prod(self.grid)
        self.persistent = "persistent" in kernel.attributes
        self.clusters = min(resident, -(-programs // self.size)) if self.persistent else -(-programs // self.size)
        self.block_warps = _block_warps(kernel)
        self.addresses, self.shared_bytes = _addresses(kernel)
        self.waiting = deque(range(self.clusters))
        self.running, self.agents, self.resident = 0, 0, resident

    def program_of(self, block: BlockState) -> tuple[int, ...]:
        """The program of a block: neighbours along the first axes share a cluster."""
        across, (cx, cy) = -(-self.grid[0] // self.cluster_shape[0]), (*self.cluster_shape, 1)[:2]
        rest, x = divmod(block.cluster.number, across)
        down = -(-self.grid[1] // cy) if len(self.grid) > 1 else 1
        z, y = divmod(rest, down)
        return x * cx + block.rank % cx, y * cy + block.rank // cx, z

    def spawn(self, instance: Instance, body: IrBlock, after: Callable[[], None] = lambda: None) -> None:
        self.agents += len(instance.agents)
        self.scheduler.spawn(instance.leader.name, instance.lead(body, after))
        if instance.laggard: self.scheduler.spawn(instance.laggard.name, instance.lag())

    def ended(self, cluster: Cluster) -> None:
        if all(block.over for block in cluster.blocks): self.running -= 1; self.fill()

    def fill(self) -> None:
        while self.waiting and self.running < self.resident: self.running += 1; Cluster(self, self.waiting.popleft()).start(self.values)


def _block_warps(kernel: tile.Kernel) -> int:
    for op in kernel.body.block.walk():
        if isinstance(op, threads.Roles): return sum(role.warps.value.data * role.instances for role in op.body.block.ops)
    return kernel.warps


def _addresses(kernel: tile.Kernel) -> tuple[dict[Operation, int], int]:
    """Where each buffer and ring lies; those without an offset one after the other behind the others."""
    sizes = {op: op.result.type.bytes if isinstance(op, shared.Alloc) else 8 * op.result.type.stages for op in kernel.body.block.walk() if isinstance(op, (shared.Alloc, threads.Barriers))}
    at = {op: op.offset.value.data for op in sizes if op.offset is not None}
    end = max((at[op] + sizes[op] for op in at), default=0)
    for op, size in sizes.items():
        if op in at: continue
        at[op] = -(-end // 1024) * 1024 if isinstance(op, shared.Alloc) else -(-end // 8) * 8
        end = at[op] + size
    return at, max(end, kernel.integer("shared_bytes"))


def run(module, arguments: Sequence, grid: Sequence[int], seed: int = 0, resident: int = 1, *, strict_reads: bool = True, out=print) -> Statistics:
    """Runs a level-4 kernel, writing the arrays among `arguments` in place; raises Violation at the first broken rule.

    grid: the logical grid. A persistent kernel gets min(resident, clusters needed) clusters; any other all of them, `resident` at a time.
    strict_reads: a generic read before an asynchronous write of the same bytes needs a proxy fence too.
    """
    launch = Launch(level0.kernel_of(module), arguments, grid, seed, resident, strict_reads, out)
    with np.errstate(all="ignore"):
        launch.fill()
        launch.scheduler.run()
    return Statistics(seed, launch.scheduler.steps, launch.clusters * launch.size, launch.agents)
