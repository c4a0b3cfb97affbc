"""Where threads wait: barriers of a block and of a cluster, mbarriers, and the registers that roles
give one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tkc.ir.truths import every, some
from tkc.sim.barriers import MAX_MBARRIER_BYTES
from tkc.sim.ptx.accesses import PendingCopy, ThreadCopies, place
from tkc.sim.ptx.faults import Fault, Unknown, require
from tkc.sim.ptx.kinds import KIND_BYTES
from tkc.sim.ptx.machine import WARP, ClusterMachine, rule
from tkc.sim.ptx.text import Instruction

MULTIPROCESSOR_REGISTERS = 65536
BLOCK_BARRIERS = 16  # that the hardware has for each block
MIN_THREAD_REGISTERS, MAX_THREAD_REGISTERS = 24, 256


# ---- of a block
# --------------------------------------------------------------------------------------------------
@dataclass
class BlockBarrier:
    """One of a block's sixteen barriers. expected: threads, once one has arrived; arrived: how many
    have; waiting: those of them that wait.
    """

    waiting: np.ndarray
    expected: int = 0
    arrived: int = 0


class BlockBarriers:
    """The barriers of the blocks of a cluster that threads have arrived at, by (rank, number).
    answers: what each thread has said to a reduction.
    """

    def __init__(self, m: ClusterMachine):
        self.open: dict[tuple[int, int], BlockBarrier] = {}
        self.answers = np.zeros(m.n, bool)


def arrive_at_barriers(
    m: ClusterMachine,
    mask: np.ndarray,
    number: str,
    count: str | None,
    stays: bool,
) -> list[np.ndarray]:
    """Threads arrive at barriers, and wait there where they stay; gives the threads that waited at
    each barrier that is complete. Raises Fault for a barrier that there is not, or counts that do
    not agree.
    """
    barriers, numbers, complete = m.state_of(BlockBarriers), m.read(number, "u32"), []
    counts = np.full(m.n, m.each) if count is None else m.read(count, "u32").astype(np.int64)
    for rank, n in sorted({*zip(m.rank[mask].tolist(), numbers[mask].tolist(), strict=True)}):
        came = mask & (m.rank == rank) & (numbers == n)
        expected = int(counts[came][0])
        require(n < BLOCK_BARRIERS, f"a block has no barrier {n}")
        require(
            every(counts[came] == expected) and expected % WARP == 0 and expected <= m.each,
            "a barrier's threads are warps of the block, as many for all who come",
        )
        at = barriers.open.setdefault((rank, n), BlockBarrier(np.zeros(m.n, bool)))
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
            del barriers.open[rank, n]
    return complete


@rule("bar.sync", "bar.arrive", "barrier.sync")
def bar(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> np.ndarray | None:
    stays, at = i.parts[1] == "sync", int(m.counters[mask][0]) if some(mask) else 0
    number, count, *_ = (*i.operands, None)
    complete = arrive_at_barriers(m, mask, number, count, stays)
    if stays:
        m.wait(mask, at)
    for who in complete:
        m.wake(who, 1)
    return None


@rule("bar.red")
def reduction(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """What a predicate is in all threads of a block together, or in any of them."""
    into, number, said = i.operands
    at = int(m.counters[mask][0])
    answers = m.state_of(BlockBarriers).answers
    np.copyto(answers, m.predicate(said), where=mask)
    complete = arrive_at_barriers(m, mask, number, None, True)
    m.wait(mask, at)
    for who in complete:
        m.write(into, np.full(m.n, {"and": np.all, "or": np.any}[i.parts[2]](answers[who])), who)
        m.wake(who, 1)


@rule("bar.warp.sync")
def bar_warp(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """The warp has met: it does all of this together."""


# ---- of a cluster
# --------------------------------------------------------------------------------------------------
class ClusterBarrier:
    """The barrier of a cluster. due: the phase in which each thread arrived last."""

    def __init__(self, m: ClusterMachine):
        self.phase = 0
        self.arrived, self.waiting = np.zeros(m.n, bool), np.zeros(m.n, bool)
        self.due = np.full(m.n, -1)
        m.ended.append(lambda mask: self.advance(m))

    def advance(self, m: ClusterMachine) -> None:
        """Threads that have ended count as arrived."""
        if not every(self.arrived | m.done) or not some(self.arrived):
            return
        self.phase += 1
        self.arrived[:] = False
        m.wake(self.waiting.copy())
        self.waiting[:] = False


@rule("barrier.cluster.arrive")
def cluster_arrive(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    barrier = m.state_of(ClusterBarrier)
    require(not some(barrier.arrived & mask), "a thread arrives at its cluster's barrier twice")
    barrier.arrived |= mask
    barrier.due[mask] = barrier.phase
    barrier.advance(m)


@rule("barrier.cluster.wait")
def cluster_wait(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> np.ndarray:
    barrier = m.state_of(ClusterBarrier)
    require(
        every(barrier.due[mask] >= 0),
        "a thread waits at its cluster's barrier without having arrived",
    )
    early = mask & (barrier.due >= barrier.phase)
    barrier.waiting |= early
    return early


# ---- mbarriers
# --------------------------------------------------------------------------------------------------
@dataclass
class Mbarrier:
    """pending, bytes: arrivals (of `count`) and bytes that its phase still waits for; parity: of
    the phase; waiting: threads.
    """

    count: int
    pending: int
    bytes: int = 0
    parity: int = 0
    waiting: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def advance(self, m: ClusterMachine) -> None:
        """Begins the next phase where this one is complete."""
        require(
            abs(self.bytes) <= MAX_MBARRIER_BYTES,
            f"an mbarrier counts at most {MAX_MBARRIER_BYTES} bytes",
        )
        if self.pending or self.bytes:
            return
        self.pending, self.parity = self.count, self.parity ^ 1
        m.wake(self.waiting.copy())
        self.waiting[:] = False


class Mbarriers:
    """The initialised mbarriers of a cluster, by their index in shared memory."""

    def __init__(self, m: ClusterMachine):
        self.at: dict[int, Mbarrier] = {}


def barriers(
    m: ClusterMachine, i: Instruction, mask: np.ndarray, where: str
) -> list[tuple[Mbarrier, np.ndarray]]:
    """Each mbarrier that threads address, with those threads."""
    _, at = place(m, i.name, m.address(where), 8, mask)
    return [(mbarrier(m, a), mask & (at == a)) for a in np.unique(at[mask]).tolist()]


def mbarrier(m: ClusterMachine, at: int) -> Mbarrier:
    """The one at an index of shared memory. Raises Fault where nobody initialised it."""
    found = m.state_of(Mbarriers).at.get(at)
    if found is None:
        raise Fault("an mbarrier that nobody initialised")
    return found


@rule("mbarrier.init")
def init(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    _, at = place(m, i.name, m.address(i.operands[0]), 8, mask)
    for a in np.unique(at[mask]).tolist():
        count = int(m.read(i.operands[1], "u32")[mask & (at == a)][0])
        require(0 < count < 1 << 20, f"an mbarrier of {count} arrivals")
        barrier = Mbarrier(count, count, waiting=np.zeros(m.n, bool))
        m.state_of(Mbarriers).at[a] = barrier


@rule("mbarrier.arrive")
def arrive(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """Every thread for itself; with `expect_tx` the phase waits for so many bytes as well."""
    if i.operands[0] != "_":
        raise Unknown(f"the state that {i.name} gives")
    for barrier, who in barriers(m, i, mask, i.operands[1]):
        if "expect_tx" in i.parts:
            barrier.bytes += int(m.read(i.operands[2], "u32")[who].sum())
        count_down(m, barrier, who)


def count_down(m: ClusterMachine, barrier: Mbarrier, who: np.ndarray) -> None:
    """Threads arrive."""
    barrier.pending -= int(who.sum())
    require(barrier.pending >= 0, f"more than {barrier.count} arrivals in a phase of an mbarrier")
    barrier.advance(m)


@rule("cp.async.mbarrier.arrive")
def arrive_of_copies(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """An arrival of every thread, when the copies land that it has not waited for."""
    if "noinc" not in i.parts:
        raise Unknown(f"the arrival that {i.name} adds")
    for barrier, who in barriers(m, i, mask, i.operands[0]):
        copies = m.state_of(ThreadCopies).taken(who)

        def lands(
            barrier: Mbarrier = barrier,
            who: np.ndarray = who,
            copies: Sequence[PendingCopy] = copies,
        ) -> None:
            for copy in copies:
                m.shared.bytes[copy.target[copy.threads]] = copy.data(copy.threads)
            count_down(m, barrier, who)

        m.copies.append(lands)


@rule("mbarrier.complete_tx")
def complete(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    for barrier, who in barriers(m, i, mask, i.operands[0]):
        deliver(m, barrier, int(m.read(i.operands[1], "u32")[who].sum()))


def deliver(m: ClusterMachine, barrier: Mbarrier, size: int) -> None:
    """Bytes have come; they may come before they are expected."""
    barrier.bytes -= size
    barrier.advance(m)


@rule("st.async")
def store_async(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """A store to any block of the cluster, whose bytes its barrier counts."""
    registers = i.operands[1] if isinstance(i.operands[1], list) else [i.operands[1]]
    size = KIND_BYTES[i.kind]
    space, at = place(m, i.name, m.address(i.operands[0]), size * len(registers), mask)
    for n, r in enumerate(registers):
        space[(at[:, None] + n * size + np.arange(size))[mask]] = (
            np.ascontiguousarray(m.read(r, f"u{8 * size}"))[mask].view(np.uint8).reshape(-1, size)
        )
    for barrier, who in barriers(m, i, mask, i.operands[2]):
        deliver(m, barrier, size * len(registers) * int(who.sum()))


@rule("mbarrier.test_wait", "mbarrier.try_wait")
def wait(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> np.ndarray | None:
    """Whether the last phase of a parity is over. A try waits for that, and with a seed now and
    then gives up.
    """
    parity, over = m.read(i.operands[2], "u32"), np.zeros(m.n, bool)
    require(every(parity[mask] < 2), "a parity is 0 or 1")
    stays = np.zeros(m.n, bool)
    for barrier, who in barriers(m, i, mask, i.operands[1]):
        over |= who & (parity != barrier.parity)
        if i.parts[1] == "try_wait" and (m.launch.seed is None or m.rng.random() < 0.9):
            waits = who & (parity == barrier.parity)
            barrier.waiting |= waits
            stays |= waits
    m.write(i.operands[0], over, mask & ~stays)
    return stays if some(stays) else None


# ---- registers of roles
# --------------------------------------------------------------------------------------------------
class RegisterPool:
    """Registers that roles give one another. held: by a thread of each warp; free: of each block,
    which has what it began with; short: threads that wait for more.
    """

    def __init__(self, m: ClusterMachine):
        threads = m.each * m.program.together
        entry = min(MAX_THREAD_REGISTERS, MULTIPROCESSOR_REGISTERS // threads // 8 * 8)
        self.held = np.full(m.n // WARP, entry)
        self.free = np.zeros(m.blocks, int)
        self.short = np.zeros(m.n, bool)


@rule("setmaxnreg")
def registers(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> np.ndarray | None:
    """A warp that wants more waits until others have given theirs."""
    wanted, grows = int(i.operands[0]), i.parts[1] == "inc"
    pool = m.state_of(RegisterPool)
    require(
        wanted % 8 == 0 and MIN_THREAD_REGISTERS <= wanted <= MAX_THREAD_REGISTERS,
        f"a thread cannot have {wanted} registers",
    )
    stays = np.zeros(m.n, bool)
    for warp in np.flatnonzero(mask.reshape(-1, WARP)[:, 0]):
        rank, lanes = m.rank[warp * WARP], m.threads // WARP == warp
        more = wanted - pool.held[warp]
        require(
            more >= 0 if grows else more <= 0,
            f"a thread with {pool.held[warp]} registers asks for {wanted} by {i.parts[1]}",
        )
        if more > pool.free[rank]:
            stays |= lanes
            pool.short |= lanes
            continue
        pool.free[rank] -= more
        pool.held[warp] = wanted
        if more < 0:
            m.wake(pool.short.copy())
            pool.short[:] = False
    return stays if some(stays) else None
