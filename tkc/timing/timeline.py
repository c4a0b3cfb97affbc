"""What a simulation in time finds: what each agent did when, and how long programs take.

docs/timeline.md explains how to read one; tkc/timing/simulation.py makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Operation


@dataclass(frozen=True)
class Segment:
    """What an agent did, in clocks from the block's start: `engine` is the busiest ("tensor",
    "fma", "alu", "mufu", "lsu", "shared", "copy"), or "wait"; `clocks` of each that it used.
    """

    agent: str
    engine: str
    what: str
    begin: float
    end: float
    clocks: tuple[tuple[str, float], ...] = ()


@dataclass
class Timeline:
    """What a multiprocessor did for the first programs of its blocks.

    starts: when each program began (of every instance of the consumers, sorted); trips: of each of
    these programs, iterations of each loop as run, and the real ones; periods: clocks of an
    iteration of each loop, as programs go on; steady: where an iteration of the loop that takes
    longest began and ended.
    """

    agents: list[str]
    segments: list[Segment] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    trips: list[dict[Operation, tuple[int, int]]] = field(default_factory=list)
    periods: dict[Operation, float] = field(default_factory=dict)
    steady: tuple[float, float] = (0.0, 0.0)
    end: float = 0.0

    def window(self, iterations: int = 1) -> list[Segment]:
        """The segments of so many iterations of the loop that takes longest, cut at their ends;
        clocks from the first one's start.
        """
        a, b = self.steady[0], self.steady[0] + iterations * (self.steady[1] - self.steady[0])
        return [
            Segment(
                s.agent,
                s.engine,
                s.what,
                max(s.begin, a) - a,
                min(s.end, b) - a,
                tuple(
                    (e, c * (min(s.end, b) - max(s.begin, a)) / (s.end - s.begin))
                    for e, c in s.clocks
                ),
            )
            for s in self.segments
            if s.end > a and s.begin < b and s.end > s.begin
        ]

    def shares(self) -> dict[str, float]:
        """The part of the steady iteration in which each engine is busy."""
        found: dict[str, float] = {}
        for s in self.window():
            for engine, clocks in s.clocks:
                found[engine] = found.get(engine, 0.0) + clocks / max(
                    1.0, self.steady[1] - self.steady[0]
                )
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))
