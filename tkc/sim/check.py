"""The happens-before check of a compiled kernel: a few programs of its launch, over random
schedules.

Which programs: the first and the last of the grid, its middle, and some at random, each with the
one after it, so that neighbours run at once; the first few, in order, where programs wait for those
before them. A persistent kernel is launched with half as many clusters as it has programs, so that
each takes two, one after the other; where they wait, with as many as run. Products of matrices,
which cost the most and order nothing, are left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tkc.ir import tile
from tkc.sim import level0, level4
from tkc.sim.errors import SimulationError
from tkc.sim.inputs import clones
from tkc.sim.report import Report, report_of

MAX_CLUSTERS = 6  # that run


@dataclass(frozen=True)
class Checked:
    """What ran, and what was found. clusters: those that ran, of `of`."""

    clusters: tuple[int, ...]
    of: int
    runs: int
    seconds: float
    findings: tuple[Report, ...]

    def __str__(self) -> str:
        clusters = ", ".join(map(str, self.clusters))
        what = (
            f"{self.runs} schedules of {len(self.clusters)} of {self.of} clusters"
            f" ({clusters}), {self.seconds:.1f} s"
        )
        if not self.findings:
            return f"nothing found in {what}"
        plural = "s" * (len(self.findings) != 1)
        return "\n".join(
            [f"{len(self.findings)} finding{plural} in {what}", *(f"  {f}" for f in self.findings)]
        )


def sample(kernel: tile.Kernel, n: int, seed: int = 0, most: int = MAX_CLUSTERS) -> list[int]:
    """Numbers of programs (or clusters) below n: the corners, then others at random; the first ones
    where programs wait for those before them.
    """
    if tile.waits_for_programs(kernel):
        return list(range(min(n, most)))
    corners = sorted({0, n - 1, n // 2})
    rest = random.Random(seed).sample(range(n), min(n, most))
    return [*dict.fromkeys([*corners, *rest])][: min(n, most)]


def check(
    module: ModuleOp,
    arguments: Sequence[Any],
    grid: Sequence[int],
    seed: int = 0,
    runs: int = 8,
    seconds: float = 10.0,
) -> Checked:
    """Runs a level-4 kernel on copies of the arguments until `runs` schedules of two clusters are
    over, or the time is; the same finding is reported once.
    """
    kernel, began = level0.kernel_of(module), time.perf_counter()
    launch = level4.Launch(kernel, arguments, grid)
    together = tile.waits_for_programs(kernel)
    launched = _launched(launch, together)
    chosen = sample(kernel, launched, seed)
    found: dict[object, Report] = {}
    ran: list[int] = []
    done = 0
    for number in range(runs if launched else 0):
        if number and time.perf_counter() - began > seconds:
            break
        first = chosen[number % len(chosen)]
        clusters = chosen if together else [*dict.fromkeys([first, (first + 1) % launched])]
        try:
            level4.run(
                module,
                clones(arguments),
                grid,
                seed + number,
                launched if launch.persistent else 2,
                only=clusters,
                products=False,
                out=lambda text: None,
            )
        except SimulationError as e:
            report = report_of(e)
            key = report.kind, report.location, e.operation and e.operation.name
            found.setdefault(key, report)
        ran += clusters
        done += 1
    return Checked(
        tuple(dict.fromkeys(ran)),
        launched,
        done,
        time.perf_counter() - began,
        tuple(found.values()),
    )


def _launched(launch: level4.Launch, together: bool) -> int:
    """The clusters of a launch; of a persistent kernel half as many as it has programs. together:
    programs wait for one another.
    """
    if not launch.persistent:
        return launch.clusters
    needed = -(-prod(launch.grid) // launch.size)
    half = -(-needed // 2)
    # more would run what is waited for
    return min(half, MAX_CLUSTERS) if together else half
