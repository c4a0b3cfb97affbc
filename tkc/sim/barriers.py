"""mbarriers, named barriers and the barrier of a cluster, with the clocks they carry."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import Operation

from tkc.sim.clocks import ASYNC, GENERIC, INIT, Knowing
from tkc.sim.report import Violation

MAX_MBARRIER_BYTES = (1 << 20) - 1  # that the hardware counts


class Mbarrier:
    """One mbarrier: the parity that the hardware keeps is the last bit of `phase`, the number of
    phases that have ended.

    A phase ends when `count` arrivals came and as many bytes as were expected. observers: who saw
    the end of the last phase, with their epoch; due: followers whose leader has seen it and who
    have yet to look. The number of phases is a column of the clocks, so that it is known of an
    agent that waits for a phase whether it knows the end of the one before: if not, the same parity
    two phases earlier would let it pass.
    """

    def __init__(self, name: str, count: int, by: Knowing):
        self.name, self.count, self.pending, self.bytes, self.phase = name, count, count, 0, 0
        self.clock = by.clocks.matrix()
        self.done = self.clock.copy()
        self.observers: dict[Knowing, int] = {}
        self.due: dict[Knowing, int] = {}
        self.initialiser, self.epoch, self.column = by.index, by.epoch, by.clocks.column(name)

    def visible(self, agent: Knowing, far: bool, op: Operation) -> None:
        """Raises Violation where the agent may not see the initialisation. far: used by an
        asynchronous copy or by another block.
        """
        knows, column = agent.knows, self.initialiser
        if max(knows[ASYNC if far else GENERIC, column], knows[INIT, column]) < self.epoch:
            raise Violation(
                "barrier",
                f"{agent.name} uses {self.name} before its initialisation is visible: missing is"
                f" {'a fence mbarrier_init and ' if far else ''}a barrier",
                op,
                (agent.name,),
            )

    def complete(self, parity: int) -> bool:
        """Whether the last phase of a parity has ended."""
        return self.phase & 1 != parity & 1

    def arrive(self, clock: np.ndarray, n: int, op: Operation, who: str) -> None:
        """n arrivals of an agent that knows what `clock` says."""
        np.maximum(self.clock, clock, out=self.clock)
        self.pending -= n
        if self.pending < 0:
            raise Violation(
                "arrivals",
                f"{who} arrives at {self.name}, whose phase {self.phase} takes {self.count}"
                " arrivals and has them",
                op,
                (who,),
            )
        self._flip(op)

    def expect(self, n: int, op: Operation) -> None:
        """The phase waits for n more bytes."""
        self.bytes += n
        if abs(self.bytes) > MAX_MBARRIER_BYTES:
            raise Violation(
                "bytes",
                f"{self.name} waits for {self.bytes} bytes; at most {MAX_MBARRIER_BYTES} can be"
                " counted",
                op,
            )

    def deliver(self, clock: np.ndarray, n: int, op: Operation) -> None:
        """n bytes of a copy have arrived."""
        np.maximum(self.clock, clock, out=self.clock)
        self.expect(-n, op)
        self._flip(op)

    def observe(self, agent: Knowing, op: Operation) -> None:
        """The agent has seen that the current phase count stands."""
        if agent.knows[GENERIC, self.column] < self.phase - 1:
            raise Violation(
                "ambiguous",
                f"{agent.name} waits for the end of phase {self.phase - 1} of {self.name}, but"
                " nothing tells it of the phase before: an earlier phase of the same parity would"
                " let it pass",
                op,
                (agent.name,),
            )
        agent.learn(self.done)
        agent.tick()
        self.observers[agent] = agent.epoch
        self.due.pop(agent, None)

    def _flip(self, op: Operation) -> None:
        if self.pending or self.bytes:
            return
        for late in self.due:
            raise Violation(
                "lapped",
                f"phase {self.phase} of {self.name} ends while {late.name} has yet to see the end"
                f" of phase {self.phase - 1}",
                op,
                (late.name,),
            )
        for agent, epoch in self.observers.items():
            if self.clock[GENERIC, agent.index] < epoch:
                raise Violation(
                    "lapped",
                    f"phase {self.phase} of {self.name} can end before {agent.name} has seen the"
                    f" end of phase {self.phase - 1}: nobody who arrives waits for it",
                    op,
                    (agent.name,),
                )
        self.phase, self.pending, self.observers = self.phase + 1, self.count, {}
        self.clock[:INIT, self.column] = self.phase
        self.done = self.clock.copy()

    def __str__(self) -> str:
        return (
            f"{self.name} in phase {self.phase} ({self.pending} of {self.count} arrivals and"
            f" {self.bytes} bytes missing)"
        )


@dataclass
class ThreadBarrier:
    """A barrier of threads: named (bar.sync), of an instance, or of a cluster."""

    name: str
    threads: int = 0
    arrived: int = 0
    clock: np.ndarray | None = None
    done: list[np.ndarray] = field(default_factory=list)  # what each generation carried

    def arrive(
        self,
        agent: Knowing,
        threads: int,
        share: int,
        op: Operation,
        rows: int | slice = slice(None),
    ) -> int:
        """Counts `share` threads; gives the generation they belong to. rows: of what the agent
        knows, those that its arrival publishes.
        """
        generation = len(self.done)
        if self.arrived and self.threads != threads:
            raise Violation(
                "arrivals",
                f"{agent.name} is at {self.name} with {threads} threads, others are there with"
                f" {self.threads}",
                op,
                (agent.name,),
            )
        if self.clock is None:
            self.clock = agent.clocks.matrix()
        self.threads, self.arrived = threads, self.arrived + share
        np.maximum(self.clock[rows], agent.knows[rows], out=self.clock[rows])
        agent.tick()
        if self.arrived > threads:
            raise Violation(
                "arrivals",
                f"{self.arrived} threads are at {self.name}, which takes {threads}",
                op,
                (agent.name,),
            )
        if self.arrived == threads:
            self.done.append(self.clock)
            self.arrived, self.clock = 0, None
        return generation

    def over(self, generation: int) -> bool:
        """Whether all threads of a generation have arrived."""
        return len(self.done) > generation

    def __str__(self) -> str:
        return f"{self.name} ({self.arrived} of {self.threads} threads there)"
