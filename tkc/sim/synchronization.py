"""Level 4: control flow, roles, barriers and fences.

Each rule is a generator `rule(m, op)` on an Instance; what all its agents do is an action passed to
`m.both`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from tkc.ir import threads
from tkc.ir.values import holds, parent_of
from tkc.sim.barriers import Mbarrier, ThreadBarrier
from tkc.sim.blocks import WARP, Agent
from tkc.sim.clocks import ASYNC, GENERIC, GLOBAL, INIT
from tkc.sim.engine import Copy, Steps, Wait, all_done
from tkc.sim.instance import Instance
from tkc.sim.level0 import repeats, rounded, trips
from tkc.sim.report import Violation

MBARRIER_CELLS = np.arange(2)
WARPGROUP_WARPS = 4
PROXY_FENCES = {"async_shared": ASYNC, "async_global": GLOBAL}
LAST_BARRIER = 15  # instances of roles take the hardware's barriers from here down, one each


# --------------------------------------------------------------------------------------------------
def for_(m: Instance, op: scf.ForOp) -> Steps:
    carried = tuple(m[v] for v in op.iter_args)
    for i in trips(m, op):
        carried = yield from m.enter(op.body, (rounded(i, op.lb.type), *carried))
    return carried


def if_(m: Instance, op: scf.IfOp) -> Steps:
    return (yield from m.enter(op.true_region if m[op.cond] else op.false_region, ()))


def while_(m: Instance, op: scf.WhileOp) -> Steps:
    carried = [m[v] for v in op.operands]
    memory = m.launch.memory
    while True:
        entered, stores = carried, memory.stores
        goes_on, *carried = yield from m.enter(op.before_region, entered)
        if not goes_on:
            return tuple(carried)
        carried = yield from m.enter(op.after_region, carried)
        if repeats(m, entered, carried, stores):
            yield _until_stored(m, op, stores)
        else:
            yield None


def _until_stored(m: Instance, op: Operation, stores: int) -> Wait:
    """Until global memory has been written again. stores: writes so far."""
    return Wait(
        lambda: m.launch.memory.stores != stores,
        lambda: "somebody to write to global memory",
        op,
    )


def roles(m: Instance, op: threads.Roles) -> Steps:
    yield Wait(lambda: m.idle, lambda: "its other warps", op)
    first, rest = m.leader.knows, m.agents[-1].knows
    instances: list[Instance] = []
    number = LAST_BARRIER
    for role in op.body.block.ops:
        assert isinstance(role, threads.Role)
        for copy in range(role.instances):
            if holds(role, threads.BlockBarrier):
                m.block.taken[number] = role.sym_name.data
            number -= 1
            knows = (rest if instances else first, rest)
            instances.append(_instance(m, role, copy, knows))
            instances[-1].start(role.body.block)

    def join(agent: Agent) -> Steps:
        yield Wait(all_done(instances), lambda: "the roles to end", op, idle=True)
        for one in instances:
            for other in one.agents:
                agent.learn(other.knows)
        agent.tick()

    yield from m.both(op, join)
    return ()


def _instance(
    m: Instance, role: threads.Role, copy: int, knows: tuple[np.ndarray, np.ndarray]
) -> Instance:
    """An instance of a role, with all values from before. knows: of its leader and followers."""
    name = f"{m.name} {role.sym_name.data}" + (f" {copy}" if role.instances > 1 else "")
    warps, single = role.warps.value.data, role.single is not None
    one = Instance(m.block, name, warps, single, knows, _groups(role))
    one.values, one.exact = dict(m.values), dict(m.exact)
    one.assign([role.instance], [np.int32(copy)])
    return one


def each_of(op: Operation) -> str:
    """Which parts of an instance do an operation each; empty: the instance does it once."""
    each = op.properties.get("each")
    return each.data if isinstance(each, StringAttr) else ""


def _groups(role: threads.Role) -> int:
    """How many warpgroups of a role act apart: each has asynchronous dots of its own."""
    apart = any(
        each_of(op) == "warpgroup" or isinstance(op, threads.DotAsync) for op in role.walk()
    )
    return max(1, role.warps.value.data // WARPGROUP_WARPS) if apart else 1


# --------------------------------------------------------------------------------------------------
def meeting(
    m: Instance,
    op: Operation,
    find: Callable[[Agent], tuple[ThreadBarrier, int]],
    waits: bool = True,
) -> Steps:
    """All agents arrive at a barrier, and wait there. find: an agent's barrier, and how many
    threads that takes.
    """

    def action(agent: Agent) -> Steps:
        yield None
        if m.single:
            raise Violation(
                "arrivals", f"{m.name} is one thread and cannot take part in a barrier of warps"
            )
        barrier, needed = find(agent)
        generation = barrier.arrive(agent, needed, agent.warps * WARP, op)
        if not waits:
            return
        yield Wait(lambda: barrier.over(generation), lambda: str(barrier), op)
        agent.learn(barrier.done[generation])

    yield from m.both(op, action, meet=waits)
    return ()


def barrier(m: Instance, op: threads.Barrier | threads.BarrierArrive) -> Steps:
    number = m.offset(op.id)
    if not 0 <= number <= LAST_BARRIER:
        raise Violation("bounds", f"barrier {number}; a block has barriers 0 to {LAST_BARRIER}")
    if number in m.block.taken:
        raise Violation(
            "barrier",
            f"{m.name} uses hardware barrier {number}, on which all threads of"
            f" {m.block.taken[number]} meet: count up from 1",
            op,
            (m.name,),
        )

    def find(agent: Agent) -> tuple[ThreadBarrier, int]:
        return m.block.barrier(number, f"barrier {number}"), op.threads.value.data

    return (yield from meeting(m, op, find, isinstance(op, threads.Barrier)))


def block_barrier(m: Instance, op: threads.BlockBarrier) -> Steps:
    if m.in_turn and m.groups > 1 and op.each is None:
        raise Violation(
            "deadlock",
            f"all warps of {m.name} are to meet within the turn of one warpgroup, for which the"
            " others wait",
            op,
            (m.name,),
        )

    def find(agent: Agent) -> tuple[ThreadBarrier, int]:
        if op.each is None or m.groups == 1:
            return m.block.barrier(m.name, f"the barrier of {m.name}"), m.warps * WARP
        name = f"the barrier of warpgroup {agent.group} of {m.name}"
        return m.block.barrier((m.name, agent.group), name), WARPGROUP_WARPS * WARP

    return (yield from meeting(m, op, find))


def turn(m: Instance, op: threads.Turn) -> Steps:
    """Warpgroups take turns, of which none learns anything: turns order no memory. Here they run at
    once, so that what a turn would wait for in vain is a rule: see block_barrier.
    """
    m.in_turn = op.what.data == "begin"
    yield from ()
    return ()


def before_release(m: Instance, op: Operation) -> Steps:
    """All warps of an instance meet before one thread of it releases for them, as the code does
    that is made of a release.
    """
    if not m.single and m.followers:
        name = f"the barrier of {m.name}"
        yield from meeting(m, op, lambda agent: (m.block.barrier(m.name, name), m.warps * WARP))


def cluster_arrive(m: Instance, op: threads.ClusterArrive) -> Steps:
    def action(agent: Agent) -> Steps:
        yield None
        cluster = m.block.cluster
        share = m.warps * WARP if m.single else agent.warps * WARP
        agent.cluster_generation = cluster.barrier.arrive(
            agent,
            cluster.launch.size * cluster.launch.block_warps * WARP,
            share,
            op,
            INIT if op.relaxed is not None else slice(None),
        )

    yield from m.both(op, action)
    return ()


def cluster_wait(m: Instance, op: threads.ClusterWait) -> Steps:
    def action(agent: Agent) -> Steps:
        cluster, generation = m.block.cluster, agent.cluster_generation
        if generation is None:
            raise Violation(
                "arrivals", f"{agent.name} waits at the cluster's barrier without an arrival"
            )
        yield Wait(lambda: cluster.barrier.over(generation), lambda: str(cluster.barrier), op)
        agent.learn(cluster.barrier.done[generation])
        agent.cluster_generation = None

    yield from m.both(op, action)
    return ()


def fence(m: Instance, op: threads.Fence) -> Steps:
    kind = op.kind.data
    if kind == "dot":
        m.dot_fence = True

    def action(agent: Agent) -> Steps:
        if kind in PROXY_FENCES:
            agent.fence(PROXY_FENCES[kind])
        elif kind == "mbarrier_init":
            agent.knows[INIT, agent.index] = agent.epoch
            agent.tick()
        yield None

    yield from m.both(op, action)
    return ()


def mbarrier_init(m: Instance, op: threads.MbarrierInit) -> Steps:
    """By one thread; where warps part into roles by one of the second warp, so that the leader,
    too, knows of it by a barrier only.
    """
    ring, block = m[op.barriers], m.block
    warp = threads.making_warp(parent_of(op, Operation))
    maker = m.agents[min(warp, len(m.followers))]

    def action(agent: Agent) -> Steps:
        yield None
        for stage in range(ring.stages) if agent is maker else ():
            address = ring.base + 8 * stage
            if address in block.mbarriers:
                raise Violation("barrier", f"the mbarrier at byte {address} is initialised twice")
            label = f"mbarrier {op.barriers.name_hint or address}[{stage}]" + (
                f" of block {block.rank}" if m.launch.size > 1 else ""
            )
            block.memory.write(address, MBARRIER_CELLS, agent.access(op), op)
            block.mbarriers[address] = Mbarrier(label, op.count.value.data, agent)
            block.memory.guard(address, MBARRIER_CELLS)

    yield from m.both(op, action)
    return ()


def mbarrier_wait(m: Instance, op: threads.MbarrierWait) -> Steps:
    address, parity = m.address(op.barriers, op.index), m.offset(op.parity)
    skip = op.unless is not None and bool(m[op.unless])

    def action(agent: Agent) -> Steps:
        found = m.mbarrier(address, agent, op)
        if agent is m.leader and skip:
            found.due |= dict.fromkeys(m.followers, found.phase)
            return
        yield Wait(lambda: found.complete(parity), lambda: f"parity {parity & 1} of {found}", op)
        observe(m, agent, found, op)

    yield from m.both(op, action)
    return ()


def observe(m: Instance, agent: Agent, found: Mbarrier, op: Operation) -> None:
    """An agent has seen the end of a phase; its followers have yet to look."""
    found.observe(agent, op)
    if agent is m.leader:
        found.due |= dict.fromkeys(m.followers, found.phase)


def mbarrier_test(m: Instance, op: threads.MbarrierTest) -> Steps:
    yield None
    found, parity = m.mbarrier(m.address(op.barriers, op.index), m.leader, op), m.offset(op.parity)
    # else the test might have come a moment too soon
    known = m.leader.knows[GENERIC, found.column] >= found.phase
    over = found.complete(parity) and (known or m.launch.scheduler.random.random() < 0.5)
    if over:
        # followers look for themselves: at the wait that this test may skip
        found.observe(m.leader, op)
    return np.bool_(over)


def mbarrier_arrive(m: Instance, op: threads.MbarrierArrive) -> Steps:
    address, targets = m.address(op.barriers, op.index), m.targets(op.to)
    each = op.each is not None
    if op.when is not None and not m[op.when]:
        return ()

    def action(agent: Agent) -> Steps:
        yield None
        if op.of_copies:
            return _arrive_of_copies(m, agent, m.mbarrier(address, agent, op), op)
        if agent is not m.leader and not each:
            return
        for rank in targets:
            m.mbarrier(address, agent, op, rank).arrive(
                agent.knows, agent.warps if each else 1, op, agent.name
            )
            if rank != m.block.rank:
                m.block.cluster.at(rank).remote_accesses.append((agent.index, agent.epoch, op))
        agent.tick()

    yield from m.both(op, action)
    return ()


def _arrive_of_copies(
    m: Instance, agent: Agent, found: Mbarrier, op: threads.MbarrierArrive
) -> None:
    """Arrivals of an agent's threads when its copies until now have landed."""
    clocks, knows = m.block.cluster.clocks, agent.knows.copy()
    copies = [*(c for group in agent.copies.closed for c in group), *agent.copies.open]

    def land() -> None:
        for _, event in copies:
            np.maximum(knows[GENERIC], clocks.end(event)[GENERIC], out=knows[GENERIC])
        found.arrive(knows, WARP * agent.warps, op, agent.name)

    m.launch.scheduler.start(Copy(land, op, all_done(copy for copy, _ in copies)))
    agent.copies.closed.clear()
    agent.copies.open = []
    agent.tick()


def mbarrier_expect(m: Instance, op: threads.MbarrierExpect) -> Steps:
    yield None
    found = m.mbarrier(m.address(op.barriers, op.index), m.leader, op)
    found.expect(op.bytes.value.data, op)
    found.arrive(m.leader.knows, 1, op, m.leader.name)
    m.leader.tick()
    return ()
