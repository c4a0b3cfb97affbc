"""Where threads wait: barriers of a block and of a cluster, mbarriers, and the registers that roles
give one another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tkc.sim.ptx.machine import SIZE, WARP, Machine, require, rule
from tkc.sim.ptx.memory import place
from tkc.sim.ptx.text import Instruction, Unknown

MOST_BYTES = (1 << 20) - 1  # that an mbarrier counts
REGISTERS = 65536  # of a multiprocessor


# ---- of a block
# --------------------------------------------------------------------------------------------------
@dataclass
class Meeting:
    """One of a block's sixteen barriers. expected: threads, once somebody came; arrived: how many
    of them came; waiting: who of them stays.
    """

    waiting: np.ndarray
    expected: int = 0
    arrived: int = 0


def meet(
    m: Machine, i: Instruction, mask: np.ndarray, number: str, count: str | None, stays: bool
) -> list[np.ndarray]:
    """Threads come to barriers, those that stay wait there; the threads of each barrier that all
    have come to.
    """
    meetings, numbers, complete = m.state.setdefault("meetings", {}), m.read(number, "u32"), []
    counts = np.full(m.n, m.each) if count is None else m.read(count, "u32").astype(np.int64)
    for rank, n in sorted({*zip(m.rank[mask].tolist(), numbers[mask].tolist(), strict=False)}):
        came = mask & (m.rank == rank) & (numbers == n)
        expected = int(counts[came][0])
        require(n < 16, f"a block has no barrier {n}")
        require(
            (counts[came] == expected).all() and expected % WARP == 0 and expected <= m.each,
            "a barrier's threads are warps of the block, as many for all who come",
        )
        at = meetings.setdefault((rank, n), Meeting(np.zeros(m.n, bool)))
        require(
            not at.arrived or at.expected == expected, f"barrier {n} is for {at.expected} threads"
        )
        at.expected, at.arrived = expected, at.arrived + int(came.sum())
        require(
            at.arrived <= expected,
            f"{at.arrived} threads come to barrier {n}, which is for {expected}",
        )
        if stays:
            at.waiting |= came
        if at.arrived == expected:
            complete.append(at.waiting)
            del meetings[rank, n]
    return complete


@rule("bar.sync", "bar.arrive", "barrier.sync")
def bar(m: Machine, i: Instruction, mask: np.ndarray) -> np.ndarray | None:
    stays, at = i.parts[1] == "sync", int(m.counters[mask][0]) if mask.any() else 0
    complete = meet(
        m, i, mask, i.operands[0], i.operands[1] if len(i.operands) > 1 else None, stays
    )
    if stays:
        m.wait(mask, at)
    for who in complete:
        m.wake(who, 1)
    return None


@rule("bar.red")
def reduction(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """What all threads say together, of which those that wait elsewhere are none."""
    into, number, said = i.operands
    at = int(m.counters[mask][0])
    answers = m.state.setdefault("answers", np.zeros(m.n, bool))
    np.copyto(answers, m.predicate(said), where=mask)
    complete = meet(m, i, mask, number, None, True)
    m.wait(mask, at)
    for who in complete:
        m.write(into, np.full(m.n, {"and": np.all, "or": np.any}[i.parts[2]](answers[who])), who)
        m.wake(who, 1)


@rule("bar.warp.sync")
def bar_warp(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """The warp has met: it does all of this together."""


# ---- of a cluster
# --------------------------------------------------------------------------------------------------
class Gathering:
    """The barrier of a cluster. due: the phase in which each thread arrived last."""

    def __init__(self, m: Machine):
        self.phase, self.arrived, self.due, self.waiting = (
            0,
            np.zeros(m.n, bool),
            np.full(m.n, -1),
            np.zeros(m.n, bool),
        )
        m.ended.append(lambda mask: self.advance(m))

    def advance(self, m: Machine) -> None:
        """Threads that have ended count as arrived."""
        if not (self.arrived | m.done).all() or not self.arrived.any():
            return
        self.phase += 1
        self.arrived[:] = False
        m.wake(self.waiting.copy())
        self.waiting[:] = False


def gathering(m: Machine) -> Gathering:
    if "gathering" not in m.state:
        m.state["gathering"] = Gathering(m)
    return m.state["gathering"]


@rule("barrier.cluster.arrive")
def cluster_arrive(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    g = gathering(m)
    require(not (g.arrived & mask).any(), "a thread arrives at its cluster's barrier twice")
    g.arrived |= mask
    g.due[mask] = g.phase
    g.advance(m)


@rule("barrier.cluster.wait")
def cluster_wait(m: Machine, i: Instruction, mask: np.ndarray) -> np.ndarray:
    g = gathering(m)
    require(
        (g.due[mask] >= 0).all(), "a thread waits at its cluster's barrier without having arrived"
    )
    early = mask & (g.due >= g.phase)
    g.waiting |= early
    return early


# ---- mbarriers
# --------------------------------------------------------------------------------------------------
@dataclass
class Mbarrier:
    """Arrivals and bytes that its phase still waits for, of `count`; parity of the phase; who
    waits.
    """

    count: int
    pending: int
    bytes: int = 0
    parity: int = 0
    waiting: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def advance(self, m: Machine) -> None:
        require(abs(self.bytes) <= MOST_BYTES, f"an mbarrier counts at most {MOST_BYTES} bytes")
        if self.pending or self.bytes:
            return
        self.pending, self.parity = self.count, self.parity ^ 1
        m.wake(self.waiting.copy())
        self.waiting[:] = False


def barriers(
    m: Machine, i: Instruction, mask: np.ndarray, where: str
) -> list[tuple[Mbarrier, np.ndarray]]:
    """Each mbarrier that threads address, with those threads."""
    _, at = place(m, i.name, m.address(where), 8, mask)
    return [(mbarrier(m, a), mask & (at == a)) for a in np.unique(at[mask]).tolist()]


def mbarrier(m: Machine, at: int) -> Mbarrier:
    """The one at an index of shared memory."""
    found = m.state.setdefault("mbarriers", {}).get(at)
    require(found is not None, "an mbarrier that nobody initialised")
    return found


@rule("mbarrier.init")
def init(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    _, at = place(m, i.name, m.address(i.operands[0]), 8, mask)
    for a in np.unique(at[mask]).tolist():
        count = int(m.read(i.operands[1], "u32")[mask & (at == a)][0])
        require(0 < count < 1 << 20, f"an mbarrier of {count} arrivals")
        m.state.setdefault("mbarriers", {})[a] = Mbarrier(count, count, waiting=np.zeros(m.n, bool))


@rule("mbarrier.arrive")
def arrive(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """Every thread for itself; with `expect_tx` the phase waits for so many bytes as well."""
    if i.operands[0] != "_":
        raise Unknown(f"the state that {i.name} gives")
    for barrier, who in barriers(m, i, mask, i.operands[1]):
        if "expect_tx" in i.parts:
            barrier.bytes += int(m.read(i.operands[2], "u32")[who].sum())
        barrier.pending -= int(who.sum())
        require(
            barrier.pending >= 0, f"more than {barrier.count} arrivals in a phase of an mbarrier"
        )
        barrier.advance(m)


@rule("mbarrier.complete_tx")
def complete(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    for barrier, who in barriers(m, i, mask, i.operands[0]):
        deliver(m, barrier, int(m.read(i.operands[1], "u32")[who].sum()))


def deliver(m: Machine, barrier: Mbarrier, size: int) -> None:
    """Bytes have come; they may come before they are expected."""
    barrier.bytes -= size
    barrier.advance(m)


@rule("st.async")
def store_async(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """A store to any block of the cluster, whose bytes its barrier counts."""
    registers = i.operands[1] if isinstance(i.operands[1], list) else [i.operands[1]]
    size = SIZE[i.kind]
    space, at = place(m, i.name, m.address(i.operands[0]), size * len(registers), mask)
    for n, r in enumerate(registers):
        space[(at[:, None] + n * size + np.arange(size))[mask]] = (
            np.ascontiguousarray(m.read(r, f"u{8 * size}"))[mask].view(np.uint8).reshape(-1, size)
        )
    for barrier, who in barriers(m, i, mask, i.operands[2]):
        deliver(m, barrier, size * len(registers) * int(who.sum()))


@rule("mbarrier.test_wait", "mbarrier.try_wait")
def wait(m: Machine, i: Instruction, mask: np.ndarray) -> np.ndarray | None:
    """Whether the last phase of a parity is over. A try waits for that, and with a seed now and
    then gives up.
    """
    parity, over = m.read(i.operands[2], "u32"), np.zeros(m.n, bool)
    require((parity[mask] < 2).all(), "a parity is 0 or 1")
    stays = np.zeros(m.n, bool)
    for barrier, who in barriers(m, i, mask, i.operands[1]):
        over |= who & (parity != barrier.parity)
        if i.parts[1] == "try_wait" and (m.launch.seed is None or m.rng.random() < 0.9):
            waits = who & (parity == barrier.parity)
            barrier.waiting |= waits
            stays |= waits
    m.write(i.operands[0], over, mask & ~stays)
    return stays if stays.any() else None


# ---- registers of roles
# --------------------------------------------------------------------------------------------------
@rule("setmaxnreg")
def registers(m: Machine, i: Instruction, mask: np.ndarray) -> np.ndarray | None:
    """A warp that wants more waits until others have given theirs."""
    wanted, grows = int(i.operands[0]), i.parts[1] == "inc"
    entry = min(256, REGISTERS // m.each // 8 * 8)
    held = m.state.setdefault("held registers", np.full(m.n // WARP, entry))
    # a block has what it began with; the multiprocessor's rest is nobody's
    free = m.state.setdefault("free registers", np.zeros(m.blocks, int))
    short = m.state.setdefault("short of registers", np.zeros(m.n, bool))
    require(wanted % 8 == 0 and 24 <= wanted <= 256, f"a thread cannot have {wanted} registers")
    stays = np.zeros(m.n, bool)
    for warp in np.flatnonzero(mask.reshape(-1, WARP)[:, 0]):
        rank, lanes, more = m.rank[warp * WARP], m.threads // WARP == warp, wanted - held[warp]
        require(
            more >= 0 if grows else more <= 0,
            f"a thread with {held[warp]} registers asks for {wanted} by {i.parts[1]}",
        )
        if more > free[rank]:
            stays |= lanes
            short |= lanes
            continue
        free[rank] -= more
        held[warp] = wanted
        if more < 0:
            m.wake(short.copy())
            short[:] = False
    return stays if stays.any() else None
