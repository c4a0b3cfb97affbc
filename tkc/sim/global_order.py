"""Global memory at level 4: who wrote and who read each element, and whether anything orders the
two.

Blocks of different clusters run in any order, on one GPU or on several: what one writes, another
may neither read nor write, unless both update it atomically in a scope that holds them both, unless
the bytes stay what they were, or a release of the one was acquired by the other (releases.py).
Within a cluster the clocks of its agents decide, as for shared memory. Copies of the tensor memory
accelerator are of another proxy: what an ordinary store wrote they read, or overwrite, behind a
`fence.proxy.async.global` in the thread that issues them.

Only arrays that the program writes are checked: of the others the reads are only listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

import numpy as np
from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.truths import every
from tkc.sim.clocks import Event, Knowing
from tkc.sim.global_memory import MIDDLE, SHIFT, GlobalMemory, numbers_of
from tkc.sim.releases import (
    ClusterHistory,
    Part,
    Publication,
    acquire,
    covers,
    joined,
    release,
)
from tkc.sim.report import Violation, name_of

READS, WRITES, UPDATES = "reads", "overwrites", "updates"
PAST = {READS: "read", WRITES: "wrote", UPDATES: "updated"}
RELEASES, ACQUIRES = ("release", "acq_rel"), ("acquire", "acq_rel")


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
        return self.among(self.live)

    def among(self, which: np.ndarray) -> np.ndarray:
        """Of those the agent accesses, some."""
        if self.own is not None:
            mine = np.zeros_like(self.live)
            mine[self.own] = which[self.own]
            which = mine
        cells = self.pointers[which] - self.start >> self.itemsize.bit_length() - 1
        return cells[(cells >= 0) & (cells < self.size)]


@dataclass
class GlobalAccess:
    """An access that is about to happen. kind: READS, WRITES or UPDATES; own: flat indices of the
    elements that this agent accesses (None: all); changed: which elements get other bytes; agent:
    of an atomic operation, who learns of others; block: the number of the thread block.
    """

    kind: str
    event: Event
    op: Operation
    pointers: np.ndarray
    live: np.ndarray
    own: np.ndarray | None = None
    changed: Callable[[], np.ndarray] | None = None
    agent: Knowing | None = None
    block: int = 0


@dataclass(eq=False, slots=True)
class Access:
    """One operation of one agent. block: the number of its thread block; scope: of an update;
    silent: it writes the bytes that are there.
    """

    cluster: ClusterHistory
    block: int
    event: Event
    kind: str
    op: Operation
    places: Places
    scope: str
    silent: bool = False

    @property
    def at(self) -> tuple[ClusterHistory, int]:
        return self.cluster, self.block

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing."""
        return self.kind == READS or isinstance(self.op, tile.LoadPointers)

    @property
    def same(self) -> tuple[object, ...]:
        """What two rounds of a loop that waits have in common."""
        return self.cluster, self.event.index, self.event.epoch, self.op


@dataclass
class Traffic:
    """Of one array: writes (numbered from 1), for each element the last of them, and reads; for
    each element what releases have published there.
    """

    size: int
    writes: list[Access] = field(default_factory=list)
    last: np.ndarray | None = None
    reads: list[Access] = field(default_factory=list)
    published: dict[int, Publication] = field(default_factory=dict)


class GlobalOrder:
    """The accesses of one launch, or of the launches of several GPUs."""

    def __init__(self, memory: GlobalMemory):
        self.memory = memory
        # by the number of the first array of those that overlap
        self.traffic: dict[int, Traffic] = {}
        self.shared: dict[tuple[int, int], tuple[int, int, int]] = {}

    def access(self, cluster: ClusterHistory, given: GlobalAccess) -> None:
        """Before it happens. Raises Violation where an earlier access is not ordered before it."""

        def within(earlier: Access) -> bool:
            return earlier.cluster is cluster

        def elsewhere(earlier: Access) -> bool:
            return earlier.cluster is not cluster

        kind, changed = given.kind, given.changed
        pointers, live = given.pointers.reshape(-1), given.live.reshape(-1)
        part: Part | None = None
        for number in self._buffers(pointers, live):
            b = self.memory.buffers[number - 1]
            first, low, size = self._shared_memory(number)
            traffic = self.traffic.setdefault(first, Traffic(size // b.owner.itemsize))
            start = (number << SHIFT) + MIDDLE + low
            places = Places(pointers, live, given.own, start, b.owner.itemsize, traffic.size)
            scope = scope_of(given.op)
            silent = changed is not None and not places.among(live & changed()).size
            new = Access(cluster, given.block, given.event, kind, given.op, places, scope, silent)
            if kind == READS and traffic.last is None:
                traffic.reads.append(new)
                continue
            if kind == UPDATES and given.agent is not None:
                part = self._synchronise(traffic, new, given.agent, part)
            self._check(traffic, new, new.places.cells, within, b.name)
            if self._unordered(traffic, new, new.places.cells, elsewhere):
                which = live if changed is None else live & changed()
                self._check(traffic, new, places.among(which), elsewhere, b.name)
            self._record(traffic, new)

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
            for n in numbers_of(pointers if every(live) else pointers[live])
            if 0 < n <= len(self.memory.buffers)
        ]

    def _unordered(
        self, traffic: Traffic, new: Access, cells: np.ndarray, among: Callable[[Access], bool]
    ) -> Access | None:
        """An earlier access of one of the cells that is not ordered before a new one."""
        if traffic.last is not None:
            for i in np.flatnonzero(np.bincount(traffic.last[cells])).tolist():
                if not i:
                    continue  # nobody wrote it
                a = traffic.writes[i - 1]
                late = among(a) and not ordered(a, new) and not together(a, new)
                if late and not (a.silent and new.kind == WRITES):
                    return a
        if new.is_read:
            return None
        for a in traffic.reads:
            late = among(a) and not ordered(a, new) and not together(a, new)
            if late and np.isin(a.places.cells, cells).any():
                return a
        return None

    def _check(
        self,
        traffic: Traffic,
        new: Access,
        cells: np.ndarray,
        among: Callable[[Access], bool],
        name: str,
    ) -> None:
        """Raises Violation where an earlier access of one of the cells is not ordered before. name:
        of the array.
        """
        found = self._unordered(traffic, new, cells, among)
        if found is not None:
            _fail(new, found, name)

    def _record(self, traffic: Traffic, new: Access) -> None:
        if new.is_read:
            last = traffic.reads[-1] if traffic.reads else None
            if last is None or last.same != new.same or new.kind == READS:
                traffic.reads.append(new)
            return
        if traffic.last is None:
            traffic.last = np.zeros(traffic.size, np.int32)
        cells = new.places.cells
        traffic.writes.append(new)
        traffic.last[cells] = len(traffic.writes)
        if new.kind == WRITES and traffic.published:
            for cell in cells.tolist():
                traffic.published.pop(cell, None)

    def _synchronise(
        self, traffic: Traffic, new: Access, agent: Knowing, part: Part | None
    ) -> Part | None:
        """An atomic operation learns what was published where it is (where it acquires), and
        publishes what its agent did and knows (where it releases). A store that is no
        read-modify-write replaces what was published there. part: of this operation, where it has
        touched another array; gives that.
        """
        semantics, cells = semantics_of(new.op), new.places.cells.tolist()
        if semantics in ACQUIRES:
            published = {p: None for cell in cells for p in traffic.published.get(cell, ())}
            acquire(agent, new.cluster, new.block, new.scope, published)
        stores = isinstance(new.op, tile.StorePointers)
        if semantics in RELEASES and cells and part is None:
            part = release(agent, new.cluster, new.block, new.scope)
        for cell in cells if stores or semantics in RELEASES else ():
            before = () if stores else traffic.published.get(cell, ())
            if semantics in RELEASES and part is not None:
                traffic.published[cell] = joined(before, part)
            else:
                traffic.published.pop(cell, None)
        return part


def _fail(new: Access, found: Access, name: str) -> NoReturn:
    what = (
        f"{new.event.who} {new.kind} what {found.event.who} {PAST[found.kind]} in"
        f" {name_of(found.op)}, in {name}; "
    )
    agents = (new.event.who, found.event.who)
    if fence_would_do(found, new):
        missing = "a fence.proxy.async.global between them, in the thread that issues the copy"
        message = f"{what}nothing orders the two: missing is {missing}"
        raise Violation("missing proxy fence", message, new.op, agents)
    if found.cluster is new.cluster:
        missing = "a barrier, or an arrival and a wait, between them"
        message = f"{what}nothing orders the two: missing is {missing}"
        raise Violation("race", message, new.op, agents)
    if found.cluster.rank != new.cluster.rank:
        if new.kind == found.kind == UPDATES:
            missing = "the scope 'system', of both"
        else:
            missing = "a release of the one that the other acquires, both of scope 'system'"
        message = f"{what}GPUs run in any order: missing is {missing}"
        raise Violation("order", message, new.op, agents)
    missing = "an atomic operation of the one that the other has seen"
    raise Violation("order", f"{what}blocks run in any order: missing is {missing}", new.op, agents)


def semantics_of(op: Operation) -> str:
    """Of an atomic operation: acq_rel unless it says otherwise; updates of a block, and reductions
    of the tensor memory accelerator, are relaxed.
    """
    if not isinstance(op, (tile.Atomic, tile.LoadPointers, tile.StorePointers)):
        return "relaxed"
    return op.semantics.data if op.semantics is not None else "acq_rel"


def scope_of(op: Operation) -> str:
    """Of an atomic operation: gpu unless it says otherwise."""
    scope = getattr(op, "scope", None)
    return "gpu" if scope is None else scope.data


def together(earlier: Access, later: Access) -> bool:
    """Whether two accesses may happen at once: both are atomic, in scopes that hold both."""
    return earlier.kind == later.kind == UPDATES and all(
        covers(a.scope, earlier.at, later.at) for a in (earlier, later)
    )


def ordered(earlier: Access, later: Access) -> bool:
    """Whether something orders two accesses. What was only read may be overwritten by a copy of
    another proxy without a fence between the proxies.
    """
    view = later.event.fenced if earlier.kind == READS else later.event.view
    return _known(earlier, later, view)


def fence_would_do(earlier: Access, later: Access) -> bool:
    """Whether a proxy fence is all that two accesses lack."""
    return _known(earlier, later, later.event.fenced)


def _known(earlier: Access, later: Access, view: np.ndarray) -> bool:
    at, epoch = earlier.event.index, earlier.event.epoch
    if earlier.cluster is later.cluster:
        return bool(view[at] >= epoch)
    clock = later.cluster.known(view).get(earlier.cluster)
    return clock is not None and bool(clock[at] >= epoch)
