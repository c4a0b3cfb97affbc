"""The scheduler: agents as generators, asynchronous operations, one seed one run.

An agent yields None (others may go on here) or a Wait (until its condition holds). Each step picks
one agent that can go on, or one asynchronous operation that can take place, at random; how often
each is picked is drawn once a run over two orders of magnitude, so that some seeds have slow
producers, others late laggards. Of every four seeds one has copies that land as late as they can,
and one as early.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from xdsl.ir import Operation

from tkc.ir.text import location_of
from tkc.sim.errors import SimulationError
from tkc.sim.report import Violation


@dataclass(frozen=True)
class Wait:
    """Until `ready()`; `what()` says what for."""

    ready: Callable[[], bool]
    what: Callable[[], str]
    op: Operation | None = None
    idle: bool = False  # waits for its leader, not for others


@dataclass(eq=False)
class Copy:
    """An asynchronous operation: `act` happens once, at some moment after `ready` holds."""

    act: Callable[[], None]
    op: Operation
    ready: Callable[[], bool] | None = None
    done: bool = False


@dataclass(eq=False)
class Task:
    """An agent at work."""

    name: str
    steps: Generator
    weight: float
    wait: Wait | None = None


@dataclass
class Scheduler:
    """Runs tasks and copies until all are over."""

    seed: int
    steps: int = 0
    most: int = 5_000_000
    tasks: list[Task] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.copy_weight = (None, 1e-6, 1e6, None)[self.seed % 4] or self._weight()

    def _weight(self) -> float:
        return 10 ** self.random.uniform(-1, 1)

    def spawn(self, name: str, steps: Generator) -> None:
        self.tasks.append(Task(name, steps, self._weight()))

    def start(self, copy: Copy) -> Copy:
        self.copies.append(copy)
        return copy

    def run(self) -> None:
        while self.tasks or self.copies:
            able = [t for t in self.tasks if t.wait is None or t.wait.ready()]
            landing = [c for c in self.copies if c.ready is None or c.ready()]
            if not able and not landing:
                self._deadlock()
            self.steps += 1
            if self.steps > self.most:
                raise SimulationError(f"no end within {self.most} steps")
            at = self.random.random() * (
                sum([t.weight for t in able]) + (self.copy_weight if landing else 0)
            )
            for task in able:
                at -= task.weight
                if at < 0:
                    self._advance(task)
                    break
            else:
                (
                    self._land(landing[int(self.random.random() * len(landing))])
                    if landing
                    else self._advance(able[-1])
                )

    def _advance(self, task: Task) -> None:
        task.wait = None
        try:
            task.wait = next(task.steps)
        except StopIteration:
            self.tasks.remove(task)

    def _land(self, copy: Copy) -> None:
        self.copies.remove(copy)
        try:
            copy.act()
        except SimulationError as e:
            e.operation, e.agents = e.operation or copy.op, e.agents or (f"'{copy.op.name}'",)
            raise
        copy.done = True

    def _deadlock(self) -> None:
        stuck = [t for t in self.tasks if t.wait and not t.wait.idle]
        lines = [
            f"{t.name} waits in '{t.wait.op.name}'{_at(t.wait.op)} for {t.wait.what()}"
            for t in stuck
            if t.wait.op is not None
        ]
        raise Violation(
            "deadlock",
            "; ".join(lines) or "nobody can go on",
            stuck[0].wait.op if stuck else None,
            tuple(t.name for t in stuck),
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
