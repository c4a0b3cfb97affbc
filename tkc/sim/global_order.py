"""Global memory at level 4: who wrote and who read each element, and whether anything orders the
two.

Blocks of different clusters run in any order: what one writes, another may neither read nor write,
unless both update it atomically, unless the bytes stay what they were, or an atomic operation of
the one was seen by an atomic operation of the other on the same array (a lock, a counter of those
that are done). Within a cluster the clocks of its agents decide, as for shared memory; between the
ordinary and the asynchronous proxy no fence is asked for here.

Only arrays that the program writes cost anything: of the others the reads are a list that nobody
looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from xdsl.ir import Operation

from tkc.sim.clocks import GENERIC, Event, Knowing
from tkc.sim.global_memory import MIDDLE, SHIFT, GlobalMemory, numbers_of
from tkc.sim.report import Violation, name_of

if TYPE_CHECKING:
    from tkc.sim.level4 import Cluster

READS, WRITES, UPDATES = "reads", "overwrites", "updates"
PAST = {READS: "read", WRITES: "wrote", UPDATES: "updated"}


@dataclass(eq=False)
class Places:
    """Elements of one array, as the pointers of an operation and which of them an agent accesses;
    worked out when somebody asks.
    """

    pointers: np.ndarray
    live: np.ndarray
    own: np.ndarray | None
    start: int
    itemsize: int
    size: int

    @cached_property
    def cells(self) -> np.ndarray:
        mine = self.live if self.own is None else np.zeros_like(self.live)
        if self.own is not None:
            mine[self.own] = self.live[self.own]
        return self.among(mine)

    def among(self, which: np.ndarray) -> np.ndarray:
        cells = (self.pointers[which] - self.start) // self.itemsize
        return cells[(cells >= 0) & (cells < self.size)]


@dataclass(frozen=True)
class Access:
    """One operation of one agent. tick: atomic operations that its cluster had done before."""

    cluster: Cluster
    tick: int
    event: Event
    kind: str
    op: Operation
    places: Places


@dataclass
class Traffic:
    """Of one array: writes (numbered from 1), for each element the last of them, and reads; what
    atomic operations on it have published.
    """

    size: int
    writes: list[Access] = field(default_factory=list)
    last: np.ndarray | None = None
    reads: list[Access] = field(default_factory=list)
    seen: dict[Cluster, int] = field(default_factory=dict)
    known: dict[Cluster, np.ndarray] = field(default_factory=dict)


class GlobalOrder:
    """The accesses of one launch."""

    def __init__(self, memory: GlobalMemory):
        self.memory, self.traffic = memory, {}
        self.shared: dict[tuple[int, int], tuple[int, int, int]] = {}

    def access(
        self,
        kind: str,
        cluster: Cluster,
        event: Event,
        op: Operation,
        pointers: np.ndarray,
        live: np.ndarray,
        own: np.ndarray | None = None,
        changed: Callable[[], np.ndarray] | None = None,
        others: bool = True,
        agent: Knowing | None = None,
    ) -> None:
        """Before it happens. own: flat indices of the elements that this agent accesses; changed:
        which elements get other bytes; others: is checked against other clusters too.
        """
        pointers, live = pointers.reshape(-1), live.reshape(-1)
        for number in self._buffers(pointers, live):
            b = self.memory.buffers[number - 1]
            first, low, size = self._shared_memory(number)
            traffic = self.traffic.setdefault(first, Traffic(size // b.owner.itemsize))
            places = Places(
                pointers,
                live,
                own,
                (number << SHIFT) + MIDDLE + low,
                b.owner.itemsize,
                traffic.size,
            )
            new = Access(cluster, cluster.tick, event, kind, op, places)
            if kind == READS and traffic.last is None:
                traffic.reads.append(new)
                continue
            self._check(traffic, new, new.places.cells, lambda a: a.cluster is cluster, b.name)
            if others:

                def foreign(a):
                    return a.cluster is not cluster

                if self._check(traffic, new, places.among(live), foreign, b.name, dry=True):
                    self._check(
                        traffic,
                        new,
                        places.among(live if changed is None else live & changed()),
                        foreign,
                        b.name,
                    )
            self._record(traffic, new)
            if kind == UPDATES and others:
                self._meet(traffic, cluster, semantics_of(op), agent)

    def _shared_memory(self, number: int) -> tuple[int, int, int]:
        """Of an array, and those that share memory with it: the first one's number, the first byte
        relative to this one's first element, and how many bytes there are.
        """
        key = number, len(self.memory.buffers)
        if key in self.shared:
            return self.shared[key]
        own = self.memory.buffers[number - 1]
        low, high, first, again = own.host + own.low, own.host + own.high, number, True
        while again:
            again = False
            for i, b in enumerate(self.memory.buffers, 1):
                start, stop = b.host + b.low, b.host + b.high
                meets = start < high and low < stop and b.owner.itemsize == own.owner.itemsize
                if meets and (start < low or high < stop or i < first):
                    low, high, first = min(low, start), max(high, stop), min(first, i)
                    again = True
        found = self.shared[key] = first, low - own.host, high - low
        return found

    def _buffers(self, pointers: np.ndarray, live: np.ndarray) -> list[int]:
        """Numbers of the arrays that are touched; of what lies in none the access itself will
        complain.
        """
        return [
            n
            for n in numbers_of(pointers if live.all() else pointers[live])
            if 0 < n <= len(self.memory.buffers)
        ]

    def _check(
        self,
        traffic: Traffic,
        new: Access,
        cells: np.ndarray,
        among: Callable[[Access], bool],
        name: str,
        dry: bool = False,
    ) -> bool:
        """Raises Violation where an earlier access of one of the cells is not ordered before; dry:
        says whether it would.
        """
        found = None
        if traffic.last is not None:
            earlier = (traffic.writes[i - 1] for i in np.unique(traffic.last[cells]).tolist() if i)
            found = next(
                (
                    a
                    for a in earlier
                    if among(a) and not ordered(a, new) and not (a.kind == new.kind == UPDATES)
                ),
                None,
            )
        if found is None and new.kind != READS:
            found = next(
                (
                    a
                    for a in traffic.reads
                    if among(a) and not ordered(a, new) and np.isin(a.places.cells, cells).any()
                ),
                None,
            )
        if found is None or dry:
            return found is not None
        what = (
            f"{new.event.who} {new.kind} what {found.event.who} {PAST[found.kind]} in"
            f" {name_of(found.op)}, in {name}; "
        )
        if found.cluster is new.cluster:
            raise Violation(
                "race",
                what
                + "nothing orders the two: missing is a barrier, or an arrival and a wait, between"
                " them",
                new.op,
                (new.event.who, found.event.who),
            )
        raise Violation(
            "order",
            what
            + "blocks run in any order: missing is an atomic operation of the one that the other"
            " has seen",
            new.op,
            (new.event.who, found.event.who),
        )

    def _record(self, traffic: Traffic, new: Access) -> None:
        if new.kind == READS:
            traffic.reads.append(new)
            return
        if traffic.last is None:
            traffic.last = np.zeros(traffic.size, np.int32)
        traffic.writes.append(new)
        traffic.last[new.places.cells] = len(traffic.writes)

    def _meet(
        self, traffic: Traffic, cluster: Cluster, semantics: str, agent: Knowing | None
    ) -> None:
        """An atomic operation publishes what its cluster did and knows (where it releases), and
        sees what others have published (where it acquires); to other agents of its cluster, what it
        knows itself."""
        if agent is not None and semantics in ("acquire", "acq_rel") and cluster in traffic.known:
            np.maximum(agent.knows[GENERIC], traffic.known[cluster], out=agent.knows[GENERIC])
        if agent is not None and semantics in ("release", "acq_rel"):
            traffic.known[cluster] = np.maximum(agent.knows[GENERIC], traffic.known.get(cluster, 0))
            agent.tick()
        cluster.tick += 1
        if semantics in ("acquire", "acq_rel"):
            for other, tick in traffic.seen.items():
                cluster.seen[other] = max(cluster.seen.get(other, 0), tick)
        if semantics in ("release", "acq_rel"):
            traffic.seen |= cluster.seen | {cluster: cluster.tick}


def semantics_of(op: Operation) -> str:
    """Of an atomic operation: acq_rel unless it says otherwise; reductions of the tensor memory
    accelerator are relaxed.
    """
    if not hasattr(op, "semantics"):
        return "relaxed"
    return op.semantics.data if op.semantics is not None else "acq_rel"


def ordered(earlier: Access, later: Access) -> bool:
    if earlier.cluster is later.cluster:
        return later.event.fenced[earlier.event.index] >= earlier.event.epoch
    return later.cluster.seen.get(earlier.cluster, 0) > earlier.tick
