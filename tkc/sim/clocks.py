"""Vector clocks: of agents, and of the asynchronous operations that they start.

An agent's accesses carry a stamp (agent, epoch); its epoch advances whenever it publishes what it
has done (an arrival, a fence, a barrier). `knows` is a matrix of four rows: entry [row, x] is the
epoch up to which what x did happened before

    GENERIC   this agent's ordinary accesses
    ASYNC     in shared memory, the asynchronous operations (TMA, wgmma) it starts: a proxy fence
              copies row GENERIC here
    GLOBAL    in global memory, the same, with a proxy fence of its own
    INIT      for barriers alone: initialisations that a `fence mbarrier_init` published

Two accesses are a race unless one is known, in the row of the later one's proxy, when the later one
happens. No order of execution enters: a race is found on every schedule that has the same
synchronisation.

An asynchronous operation is an agent of its own, in a *slot*: a column that one operation after the
other uses, where the later one's issuer knows the earlier one's end. So two copies in flight at
once are never in one column, and the columns stay few.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import Operation

from tkc.sim.errors import SimulationError

GENERIC, ASYNC, GLOBAL, INIT = 0, 1, 2, 3
CAPACITY = 512


@dataclass(eq=False, slots=True)
class Event:
    """An access: its stamp, what is known to have happened before it, and what would be if a proxy
    fence were not missing.
    """

    index: int
    epoch: int
    view: np.ndarray
    fenced: np.ndarray
    who: str
    # the view against earlier reads (lenient mode: generic reads need no proxy fence)
    reads_view: np.ndarray
    row: int = GENERIC


@dataclass
class Clocks:
    """The columns of one cluster: names, slots, and what each stamp was."""

    strict_reads: bool = True
    hazards: bool = True  # False: unordered accesses are let pass
    names: list[str] = field(default_factory=lambda: ["nobody"])
    slots: dict[int, int] = field(default_factory=dict)  # slot -> its last epoch
    history: dict[int, list[tuple[int, Operation]]] = field(default_factory=dict)

    def column(self, name: str) -> int:
        self.names.append(name)
        if len(self.names) > CAPACITY:
            raise SimulationError(
                f"more than {CAPACITY} agents, barriers and copies in flight in one cluster"
            )
        return len(self.names) - 1

    def matrix(self) -> np.ndarray:
        return np.zeros((4, CAPACITY), np.int32)

    def note(self, index: int, epoch: int, op: Operation) -> None:
        self.history.setdefault(index, []).append((epoch, op))

    def at(self, index: int, epoch: int) -> Operation | None:
        """The operation of a stamp."""
        found = [op for e, op in self.history.get(index, ()) if e == epoch]
        return found[-1] if found else None

    def start(self, knows: np.ndarray, row: int, op: Operation, who: str) -> Event:
        """An asynchronous operation that begins now, on a slot of its own."""
        view = knows[row].copy()
        slot = next((s for s, last in self.slots.items() if view[s] >= last), None)
        if slot is None:
            slot = self.column("")
        self.slots[slot] = epoch = self.slots.get(slot, 0) + 1
        self.names[slot] = f"'{op.name}' of {who}"
        self.note(slot, epoch, op)
        fenced = np.maximum(view, knows[GENERIC])
        lenient = view if self.strict_reads else fenced
        return Event(slot, epoch, view, fenced, self.names[slot], lenient, row)

    def end(self, event: Event) -> np.ndarray:
        """What whoever learns of the end of an asynchronous operation knows."""
        known = self.matrix()
        known[GENERIC] = known[event.row] = event.view
        own = known[:INIT, event.index]
        np.maximum(own, event.epoch, out=own)
        return known


class Knowing:
    """Something with a clock of its own: a group of threads that run in step."""

    def __init__(self, clocks: Clocks, name: str, knows: np.ndarray | None = None):
        self.clocks, self.name, self.index = clocks, name, clocks.column(name)
        self.knows = clocks.matrix() if knows is None else knows.copy()
        self.tick()

    @property
    def epoch(self) -> int:
        return int(self.knows[GENERIC, self.index])

    def tick(self) -> None:
        self.knows[GENERIC, self.index] += 1

    def learn(self, clock: np.ndarray) -> None:
        np.maximum(self.knows, clock, out=self.knows)

    def access(self, op: Operation) -> Event:
        """The stamp of an ordinary access that happens now."""
        self.clocks.note(self.index, self.epoch, op)
        view = self.knows[GENERIC]
        return Event(self.index, self.epoch, view, view, self.name, view)

    def fence(self, row: int = ASYNC) -> None:
        """fence.proxy.async: what ordinary accesses know, asynchronous operations know, in shared
        memory (ASYNC) or in global memory (GLOBAL).
        """
        np.maximum(self.knows[row], self.knows[GENERIC], out=self.knows[row])
        self.tick()
