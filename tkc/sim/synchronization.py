"""Level 4: control flow, roles, barriers and fences.

Each rule is a generator `rule(m, op)` on an Instance; what both its agents do is an action passed
to `m.both`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from tkc.ir import threads
from tkc.sim.barriers import Mbarrier, Rendezvous
from tkc.sim.clocks import GENERIC, INIT
from tkc.sim.engine import Wait
from tkc.sim.errors import SimulationError
from tkc.sim.instance import WARP, Agent, Instance
from tkc.sim.level0 import repeats, rounded
from tkc.sim.report import Violation

WORDS = np.arange(2)  # the cells of an mbarrier
WARPGROUP = 4
LAST_BARRIER = 15  # instances of roles take the hardware's barriers from here down, one each


# --------------------------------------------------------------------------------------------------
def for_(m, op):
    low, high, step = (m.offset(v) for v in (op.lb, op.ub, op.step))
    if step <= 0:
        raise SimulationError(f"a loop with step {step}")
    carried = tuple(m[v] for v in op.iter_args)
    for i in range(low, high, step):
        carried = yield from m.enter(op.body, (rounded(i, op.lb.type), *carried))
    return carried


def if_(m, op):
    return (yield from m.enter(op.true_region if m[op.cond] else op.false_region, ()))


def while_(m, op):
    carried = [m[v] for v in op.operands]
    memory = m.launch.memory
    while True:
        entered, stores = carried, memory.stores
        goes_on, *carried = yield from m.enter(op.before_region, entered)
        if not goes_on:
            return tuple(carried)
        carried = yield from m.enter(op.after_region, carried)
        yield (
            Wait(
                lambda seen=stores: memory.stores != seen,
                lambda: "somebody to write to global memory",
                op,
            )
            if repeats(m, entered, carried, stores)
            else None
        )


def roles(m, op):
    yield Wait(lambda: m.idle, lambda: "its other warps", op)
    first, rest = m.leader.knows, m.agents[-1].knows
    instances, number = [], LAST_BARRIER
    for role in op.body.block.ops:
        for copy in range(role.instances):
            if any(isinstance(inner, threads.BlockBarrier) for inner in role.walk()):
                m.block.taken[number] = role.sym_name.data
            number -= 1
            name = f"{m.name} {role.sym_name.data}" + (f" {copy}" if role.instances > 1 else "")
            one = Instance(
                m.block,
                name,
                role.warps.value.data,
                role.single is not None,
                (rest if instances else first, rest),
                _groups(role),
            )
            one.values, one.exact = dict(m.values), dict(m.exact)
            one.assign([role.instance], [np.int32(copy)])
            instances.append(one)
            m.launch.spawn(one, role.body.block)

    def join(agent: Agent) -> Generator:
        yield Wait(
            lambda: all(i.finished and i.idle for i in instances),
            lambda: "the roles to end",
            op,
            idle=True,
        )
        for one in instances:
            for other in one.agents:
                agent.learn(other.knows)
        agent.tick()

    yield from m.both(op, join)
    return ()


def _groups(role: threads.Role) -> int:
    """How many warpgroups of a role act apart."""
    apart = any(
        getattr(op, "each", None) is not None and op.each.data == "warpgroup" for op in role.walk()
    )
    return max(1, role.warps.value.data // WARPGROUP) if apart else 1


# --------------------------------------------------------------------------------------------------
def meeting(m, op, find: Callable[[Agent], tuple[Rendezvous, int]], waits: bool = True):
    def action(agent: Agent) -> Generator:
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


def barrier(m, op, waits: bool = True):
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
    return (
        yield from meeting(
            m,
            op,
            lambda agent: (m.block.rendezvous(number, f"barrier {number}"), op.threads.value.data),
            waits,
        )
    )


def block_barrier(m, op):
    def find(agent: Agent) -> tuple[Rendezvous, int]:
        if op.each is None or m.groups == 1:
            return m.block.rendezvous(m.name, f"the barrier of {m.name}"), m.warps * WARP
        return (
            m.block.rendezvous(
                (m.name, agent.group), f"the barrier of warpgroup {agent.group} of {m.name}"
            ),
            WARPGROUP * WARP,
        )

    return (yield from meeting(m, op, find))


def cluster_arrive(m, op):
    def action(agent: Agent) -> Generator:
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


def cluster_wait(m, op):
    def action(agent: Agent) -> Generator:
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


def fence(m, op):
    kind = op.kind.data
    if kind == "dot":
        m.dot_fence = True

    def action(agent: Agent) -> Generator:
        if kind == "async_shared":
            agent.fence()
        elif kind == "mbarrier_init":
            agent.knows[INIT, agent.index] = agent.epoch
            agent.tick()
        yield None

    yield from m.both(op, action)
    return ()


def mbarrier_init(m, op):
    """Where warps part into roles by a thread of the second one: the leader, too, knows of it by a
    barrier.
    """
    ring, block, maker = (
        m[op.barriers],
        m.block,
        m.agents[min(threads.making_warp(op.parent_op()), len(m.followers))],
    )

    def action(agent: Agent) -> Generator:
        yield None
        for stage in range(ring.stages) if agent is maker else ():
            address = ring.base + 8 * stage
            if address in block.mbarriers:
                raise Violation("barrier", f"the mbarrier at byte {address} is initialised twice")
            label = f"mbarrier {op.barriers.name_hint or address}[{stage}]" + (
                f" of block {block.rank}" if m.launch.size > 1 else ""
            )
            block.memory.write(address, WORDS, agent.access(op), op)
            block.mbarriers[address] = Mbarrier(label, op.count.value.data, agent)
            block.memory.guard(address, WORDS)

    yield from m.both(op, action)
    return ()


def mbarrier_wait(m, op):
    address, parity, skip = (
        m.address(op.barriers, op.index),
        m.offset(op.parity),
        op.unless is not None and bool(m[op.unless]),
    )

    def action(agent: Agent) -> Generator:
        found = m.mbarrier(address, agent, op)
        if agent is m.leader and skip:
            found.due |= dict.fromkeys(m.followers, found.phase)
            return
        yield Wait(lambda: found.complete(parity), lambda: f"parity {parity & 1} of {found}", op)
        seen(m, agent, found, op)

    yield from m.both(op, action)
    return ()


def seen(m, agent: Agent, found: Mbarrier, op) -> None:
    found.observe(agent, op)
    if agent is m.leader:
        found.due |= dict.fromkeys(m.followers, found.phase)


def mbarrier_test(m, op):
    yield None
    found, parity = m.mbarrier(m.address(op.barriers, op.index), m.leader, op), m.offset(op.parity)
    # else the test might have come a moment too soon
    known = m.leader.knows[GENERIC, found.column] >= found.phase
    over = found.complete(parity) and (known or m.launch.scheduler.random.random() < 0.5)
    if over:
        # the laggard looks for itself: at the wait that this test may skip
        found.observe(m.leader, op)
    return np.bool_(over)


def mbarrier_arrive(m, op):
    address, targets, each = m.address(op.barriers, op.index), m.targets(op.to), op.each is not None
    if op.when is not None and not m[op.when]:
        return ()

    def action(agent: Agent) -> Generator:
        yield None
        if agent is not m.leader and not each:
            return
        for rank in targets:
            m.mbarrier(address, agent, op, rank).arrive(
                agent.knows, agent.warps if each else 1, op, agent.name
            )
            if rank != m.block.rank:
                m.block.cluster.at(rank).visits.append((agent.index, agent.epoch, op))
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
