"""What operations of level 4 that take time or wait ask of a simulation in time.

`timed(op, simulation, agent)` is a generator of an agent's requests:

    "work", demand              vector work
    "delay", clocks, label      time that passes
    "until", test, label        a wait until test() holds
    "drain", clocks, label      a wait until so many clocks of the agent's own dots are left
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, singledispatch
from typing import Protocol

from xdsl.ir import Operation, SSAValue

from tkc.errors import CompileError
from tkc.ir import shared, threads, tile
from tkc.ir.target import Engines, Target
from tkc.ir.types import bits
from tkc.ir.values import shared_type, tile_type
from tkc.timing import demands
from tkc.timing.agents import Agent, Mbarrier
from tkc.timing.timeline import Segment

BarrierOp = (
    threads.MbarrierWait
    | threads.MbarrierArrive
    | threads.MbarrierExpect
    | threads.Send
    | threads.TmaLoad
)
Requests = Iterator[tuple]


class Simulation(Protocol):
    """What operations ask of a simulation (simulation.py). now: clocks from the block's start;
    fabric: when the copies issued so far have left the L2 cache; tick: numbers in order; blocks: of
    a launch at once.
    """

    now: float
    fabric: float
    tick: Iterator[int]
    blocks: int
    target: Target
    e: Engines
    segments: list[Segment]

    def at(self, when: float, what: Callable) -> None: ...

    def copy(self, size: int) -> float: ...

    def value(self, agent: Agent, value: SSAValue) -> int | None: ...


@singledispatch
def timed(op: Operation, simulation: Simulation, a: Agent) -> Requests:
    """The requests of an operation that takes time or waits."""
    raise TypeError(f"{op.name} takes no time")


# ---- mbarriers
@timed.register(threads.MbarrierWait)
def _(op: threads.MbarrierWait, simulation: Simulation, a: Agent) -> Requests:
    barrier, parity = _barrier(op, simulation, a), simulation.value(a, op.parity)
    yield "delay", simulation.e.wait / (4 if a.single else 1), "wait"
    yield (
        "until",
        (lambda: barrier.phase % 2 != parity),
        "full" if not a.single else "empty",
    )


@timed.register(threads.MbarrierArrive)
def _(op: threads.MbarrierArrive, simulation: Simulation, a: Agent) -> Requests:
    if op.when is not None and simulation.value(a, op.when) in (False, 0):
        return
    barrier = _barrier(op, simulation, a)
    # those to whom this one arrives arrive here
    count = _blocks_of(op.to, simulation, a)
    if op.each is not None:
        count *= max(1, a.warps // a.groups)
    if op.of_copies:
        simulation.at(max(simulation.now, a.sending), partial(barrier.arrive, 32 * count))
    else:
        barrier.arrive(count)
    yield from ()


@timed.register(threads.MbarrierExpect)
def _(op: threads.MbarrierExpect, simulation: Simulation, a: Agent) -> Requests:
    if not a.group:
        _barrier(op, simulation, a).expect(op.bytes.value.data)
    yield from ()


@timed.register(threads.Send)
def _(op: threads.Send, simulation: Simulation, a: Agent) -> Requests:
    """To all blocks, or one, which do the same."""
    barrier, buffer = _barrier(op, simulation, a), shared_type(op.buffer)
    share = buffer.size * bits(buffer.element) // 8 // a.groups
    # what goes to one block takes the way of its copies
    yield "delay", simulation.e.lsu if op.to is None else share / simulation.e.fabric, "send"
    if isinstance(op.value.owner, tile.Splat):
        _broadcast(a, op.buffer, simulation.value(a, op.value.owner.arg))
    simulation.at(simulation.now + simulation.e.turn, lambda: barrier.land(share))


def _barrier(op: BarrierOp, simulation: Simulation, a: Agent) -> Mbarrier:
    index = simulation.value(a, op.index[0]) if op.index else 0
    if index is None:
        raise CompileError("the timeline of this program depends on what it computes")
    return a.state.barriers[op.barriers][index]


def _blocks_of(mask: SSAValue | None, simulation: Simulation, a: Agent) -> int:
    """How many blocks of a cluster a mask names; 1 without one."""
    known = None if mask is None else simulation.value(a, mask)
    return 1 if known is None else known.bit_count()


# ---- copies
@timed.register(threads.TmaLoad)
def _(op: threads.TmaLoad, simulation: Simulation, a: Agent) -> Requests:
    barrier, size, e = _barrier(op, simulation, a), demands.copied(op), simulation.e
    total = size * _blocks_of(op.to, simulation, a)
    begin = simulation.copy(size)
    arrived = simulation.fabric + e.copy
    simulation.at(arrived, lambda: barrier.land(total))
    simulation.segments.append(
        Segment(a.name, "copy", f"copy {size} bytes", begin, arrived, (("copy", size / e.fabric),))
    )
    yield "delay", e.lsu, "issue"


@timed.register(threads.TmaStore)
def _(op: threads.TmaStore, simulation: Simulation, a: Agent) -> Requests:
    size = demands.copied(op)
    begin = simulation.copy(size)
    a.sending = simulation.fabric + simulation.e.drain
    clocks = size / simulation.e.fabric
    simulation.segments.append(
        Segment(a.name, "copy", "store", begin, simulation.fabric, (("copy", clocks),))
    )
    yield from ()


@timed.register(threads.BulkCommit)
@timed.register(threads.CpCommit)
def _(op: Operation, simulation: Simulation, a: Agent) -> Requests:
    a.bulk.append(a.sending)
    yield from ()


@timed.register(threads.BulkWait)
def _(op: threads.BulkWait, simulation: Simulation, a: Agent) -> Requests:
    yield from _wait_for_copies(op.pending.value.data, "copy out", simulation, a)


@timed.register(threads.CpWait)
def _(op: threads.CpWait, simulation: Simulation, a: Agent) -> Requests:
    yield from _wait_for_copies(op.pending.value.data, "copy", simulation, a)


def _wait_for_copies(pending: int, label: str, simulation: Simulation, a: Agent) -> Requests:
    """Until all groups of an agent's copies but the last `pending` have ended."""
    until = a.bulk[-1 - pending] if len(a.bulk) > pending else 0.0
    if until > simulation.now:
        yield "delay", until - simulation.now, label


@timed.register(threads.CpAsync)
def _(op: threads.CpAsync, simulation: Simulation, a: Agent) -> Requests:
    size = shared_type(op.buffer).bytes // a.groups
    instructions = size / (16 * 32 * 4)
    demand = demands.Demand()
    demand.add("lsu", instructions, instructions * simulation.e.lsu, "cp.async")
    yield "work", demand
    simulation.copy(size)
    a.sending = simulation.fabric + simulation.e.copy


@timed.register(tile.Load)
@timed.register(tile.LoadPointers)
@timed.register(tile.Atomic)
@timed.register(tile.AtomicBlock)
def _(op: Operation, simulation: Simulation, a: Agent) -> Requests:
    yield "work", demands.of([op], simulation.e, a.warps)
    if op.results:
        yield "delay", simulation.e.copy, "load"


# ---- dots
@timed.register(threads.DotAsync)
def _(op: threads.DotAsync, simulation: Simulation, a: Agent) -> Requests:
    clocks, reads = demands.tensor(op, simulation.target, a.groups)
    m, n = demands.result_extents(op)
    clocks *= simulation.e.slowed(reads / clocks)
    yield from _issue(simulation, a, clocks, f"dot {m}x{n}x{demands.depth_of(op)}")


@timed.register(tile.Dot)
def _(op: tile.Dot, simulation: Simulation, a: Agent) -> Requests:
    m, n = tile_type(op.acc).extents[-2:]
    k = tile_type(op.a).extents[-1] * tile_type(op.acc).size // (m * n)
    what = f"dot {m}x{n}x{k}"
    if op.instruction is None or op.instruction.data.startswith("fma"):
        demand = demands.Demand()
        products = m * n * k
        demand.add("fma", products / (32 * a.warps), products / (128 * max(1, a.groups)), what)
        yield "work", demand
        return
    width = bits(tile_type(op.a).element)
    clocks = demands.synchronous(m, n, k, width, simulation.target, a.groups)
    yield from _issue(simulation, a, clocks, what)
    a.in_flight.append(1)
    yield "drain", 0.0, "dots"


def _issue(simulation: Simulation, a: Agent, clocks: float, what: str) -> Requests:
    """A dot into the queue of the tensor cores."""
    a.queue.append([clocks, what, None, next(simulation.tick)])
    if not a.in_flight:
        a.in_flight.append(0)
    a.in_flight[-1] += 1
    yield "drain", simulation.e.lead, "issue"


@timed.register(threads.DotCommit)
def _(op: threads.DotCommit, simulation: Simulation, a: Agent) -> Requests:
    a.in_flight.append(0)
    yield from ()


@timed.register(threads.DotWait)
def _(op: threads.DotWait, simulation: Simulation, a: Agent) -> Requests:
    pending = op.pending.value.data
    late = sum(a.in_flight[-pending - 1 :]) if pending else 0
    if not late:
        left = 0.0
    elif late <= len(a.queue):
        left = sum(job[0] for job in a.queue[len(a.queue) - late :])
    else:
        left = a.queued()
    yield "drain", left, "dots"
    yield "delay", simulation.e.result, "result"


# ---- threads that wait for one another
@timed.register(threads.Turn)
def _(op: threads.Turn, simulation: Simulation, a: Agent) -> Requests:
    turns = a.state.turns
    if op.what.data == "start":
        turns.setdefault(a.who, 0)
    elif op.what.data == "begin":
        yield "until", (lambda: turns.get(a.who, 0) == a.group), "turn"
        yield "delay", simulation.e.turn, "turn"
    else:
        turns[a.who] = (a.group + 1) % a.groups


@timed.register(threads.Barrier)
def _(op: threads.Barrier, simulation: Simulation, a: Agent) -> Requests:
    barrier = _named(op, simulation, a)
    yield from _wait_with_others(barrier, 32 * a.warps // a.groups)
    yield "delay", simulation.e.turn, "barrier"


@timed.register(threads.BarrierArrive)
def _(op: threads.BarrierArrive, simulation: Simulation, a: Agent) -> Requests:
    _named(op, simulation, a).arrive(32 * a.warps // a.groups)
    yield from ()


@timed.register(threads.BlockBarrier)
def _(op: threads.BlockBarrier, simulation: Simulation, a: Agent) -> Requests:
    if op.each is None and a.groups > 1:
        barrier = a.state.named.setdefault(("all", a.who), Mbarrier(a.groups))
        yield from _wait_with_others(barrier, 1)
    yield "delay", simulation.e.turn, "barrier"


def _named(
    op: threads.Barrier | threads.BarrierArrive, simulation: Simulation, a: Agent
) -> Mbarrier:
    number = simulation.value(a, op.id)
    return a.state.named.setdefault(number, Mbarrier(op.threads.value.data))


def _wait_with_others(barrier: Mbarrier, arriving: int) -> Requests:
    """Arrives, and waits until all others have."""
    phase = barrier.phase
    barrier.arrive(arriving)
    yield "until", (lambda: barrier.phase != phase), "barrier"


@timed.register(threads.Fence)
def _(op: threads.Fence, simulation: Simulation, a: Agent) -> Requests:
    e = simulation.e
    clocks = {"async_shared": e.turn, "dot": e.fma_latency}.get(op.kind.data, e.turn)
    yield "delay", clocks, "fence"


# ---- scalars that agents hand to one another
@timed.register(threads.NextProgram)
def _(op: threads.NextProgram, simulation: Simulation, a: Agent) -> Requests:
    last = a.env.get(("claimed", a.name), a.env["block"])
    a.env[op.result] = a.env["claimed", a.name] = last + simulation.blocks
    yield from ()


@timed.register(threads.BroadcastStore)
def _(op: threads.BroadcastStore, simulation: Simulation, a: Agent) -> Requests:
    _broadcast(a, op.box, simulation.value(a, op.value))
    yield from ()


@timed.register(threads.BroadcastLoad)
def _(op: threads.BroadcastLoad, simulation: Simulation, a: Agent) -> Requests:
    slot = _slot(op.box)
    read = a.env.get(("read", slot), 0)
    a.env["read", slot], a.env[op.result] = read + 1, a.state.boxes[slot][read]
    yield from ()


def _broadcast(a: Agent, box: SSAValue, value: int | None) -> None:
    """A scalar of one thread, for all agents that load it."""
    if not a.group:
        a.state.boxes.setdefault(_slot(box), []).append(value)


def _slot(box: SSAValue) -> SSAValue:
    return box.owner.ring if isinstance(box.owner, shared.Stage) else box


TIMED_OPERATIONS = tuple(kind for kind in timed.registry if kind is not object)
