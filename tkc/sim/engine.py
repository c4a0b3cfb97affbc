"""The scheduler: agents as generators, asynchronous operations, one seed one run.

An agent yields None (others may go on here) or a Wait (until its condition holds). Each step picks
one agent that can go on, or one asynchronous operation that can take place, at random; how often
each is picked is drawn once a run over two orders of magnitude, so that producers are slow under
some seeds and quick under others. Of every four seeds one has copies that land as late as they can,
and one as early.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from xdsl.ir import Operation

from tkc.ir.text import location_of
from tkc.sim.errors import SimulationError
from tkc.sim.report import Violation


@dataclass(eq=False, slots=True)
class Wait:
    """Until `ready()`; `what()` says what for. idle: for the leader of the agent's own instance,
    which is no reason for a deadlock.
    """

    ready: Callable[[], bool]
    what: Callable[[], str]
    op: Operation | None = None
    idle: bool = False


# what an agent does; the result is for the generator that it is called from
Steps = Generator[Wait | None, None, Any]


@dataclass(eq=False)
class Copy:
    """An asynchronous operation: `act` happens once, at some moment after `ready` holds."""

    act: Callable[[], None]
    op: Operation
    ready: Callable[[], bool] | None = None
    done: bool = False


class HasEnd(Protocol):
    """What is done at some moment, and stays so."""

    @property
    def done(self) -> bool: ...


def all_done(what: Iterable[HasEnd]) -> Callable[[], bool]:
    """Asks whether all are done: at every step of the scheduler, so that what is done is asked
    once.
    """
    left = list(what)

    def ready() -> bool:
        while left and left[-1].done:
            left.pop()
        return not left

    return ready


@dataclass(eq=False)
class Task:
    """An agent at work."""

    name: str
    steps: Steps
    weight: float
    wait: Wait | None = None


@dataclass
class Scheduler:
    """Runs tasks and copies until all are over."""

    seed: int
    steps: int = 0
    max_steps: int = 5_000_000
    tasks: list[Task] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.copy_weight = (None, 1e-6, 1e6, None)[self.seed % 4] or self._weight()

    def _weight(self) -> float:
        return 10 ** self.random.uniform(-1, 1)

    def spawn(self, name: str, steps: Steps) -> None:
        """Adds an agent."""
        self.tasks.append(Task(name, steps, self._weight()))

    def start(self, copy: Copy) -> Copy:
        """Adds an asynchronous operation."""
        self.copies.append(copy)
        return copy

    def run(self) -> None:
        """Until nothing is left. Raises Violation for a deadlock, SimulationError for a program
        without an end, and what the agents raise.
        """
        while self.tasks or self.copies:
            able = [t for t in self.tasks if t.wait is None or t.wait.ready()]
            ready = [c for c in self.copies if c.ready is None or c.ready()]
            if not able and not ready:
                self._deadlock()
            self.steps += 1
            if self.steps > self.max_steps:
                raise SimulationError(f"no end within {self.max_steps} steps")
            self._step(able, ready)

    def _step(self, able: list[Task], ready: list[Copy]) -> None:
        """One of the agents goes on, or one of the copies lands."""
        weights = sum([t.weight for t in able])
        at = self.random.random() * (weights + (self.copy_weight if ready else 0))
        for task in able:
            at -= task.weight
            if at < 0:
                return self._advance(task)
        if ready:
            self._complete(ready[int(self.random.random() * len(ready))])
        else:
            self._advance(able[-1])

    def _advance(self, task: Task) -> None:
        task.wait = None
        try:
            task.wait = next(task.steps)
        except StopIteration:
            self.tasks.remove(task)

    def _complete(self, copy: Copy) -> None:
        self.copies.remove(copy)
        try:
            copy.act()
        except SimulationError as e:
            e.operation, e.agents = e.operation or copy.op, e.agents or (f"'{copy.op.name}'",)
            raise
        copy.done = True

    def _deadlock(self) -> NoReturn:
        stuck = [(t.name, t.wait) for t in self.tasks if t.wait and not t.wait.idle]
        lines = [
            f"{name} waits in '{wait.op.name}'{_at(wait.op)} for {wait.what()}"
            for name, wait in stuck
            if wait.op is not None
        ]
        raise Violation(
            "deadlock",
            "; ".join(lines) or "nobody can go on",
            stuck[0][1].op if stuck else None,
            tuple(name for name, _ in stuck),
        )


def _at(op: Operation) -> str:
    place = location_of(op)
    return f" at {place}" if place else ""


@dataclass(frozen=True)
class Statistics:
    """Of a run without a violation."""

    seed: int
    steps: int
    blocks: int
    agents: int
