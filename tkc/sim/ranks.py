"""Launches of several GPUs in one process, under the happens-before check.

Each rank has a stream: launches that run one after the other. Ranks run beside one another, in any
order; arrays that they share are shared by address. What orders accesses of two ranks is a release
of scope "system" that the other acquires, and nothing else (releases.py); the end of a launch
orders it before the next one of its own rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tkc.ir import tile
from tkc.sim import level0
from tkc.sim.blocks import Host, Options, Stream
from tkc.sim.clocks import CAPACITY
from tkc.sim.engine import Statistics, Steps, Wait
from tkc.sim.level4 import Launch, check_ended
from tkc.sim.releases import Known, merged

OVER = np.full(CAPACITY, np.iinfo(np.int32).max, np.int32)  # the clock of a cluster that has ended


@dataclass(frozen=True)
class Given:
    """A launch: the kernel at level 4, its arguments (arrays are written in place), the grid."""

    module: ModuleOp | tile.Kernel
    arguments: Sequence[Any]
    grid: Sequence[int]


def run(
    ranks: Sequence[Sequence[Given]], seed: int = 0, resident: int = 4, **options: Any
) -> Statistics:
    """Runs the launches of each rank, in its order; raises Violation at the first broken rule.

    resident: clusters of a launch that run at once; of a kernel whose programs wait, all that are
    launched must. options: of Options.
    """
    chosen = Options(**options)
    host = Host(seed, chosen.in_place)
    launches: list[Launch] = []

    def stream(rank: int, given: Sequence[Given]) -> Steps:
        before: Known = {}
        for number, one in enumerate(given):
            name = f"rank {rank}" + (f" launch {number}" if len(given) > 1 else "")
            launch = Launch(
                level0.kernel_of(one.module),
                one.arguments,
                one.grid,
                resident=resident,
                options=chosen,
                host=host,
                stream=Stream(rank, name, before),
            )
            launches.append(launch)
            launch.fill()
            yield _end_of(launch)
            check_ended(launch)
            before = after(launch)

    for rank, given in enumerate(ranks):
        host.scheduler.spawn(f"rank {rank}", stream(rank, given))
    with np.errstate(all="ignore"):
        host.scheduler.run()
    blocks = sum(launch.clusters * launch.size for launch in launches)
    return Statistics(seed, host.scheduler.steps, blocks, sum(one.agents for one in launches))


def _end_of(launch: Launch) -> Wait:
    return Wait(lambda: launch.over, lambda: "its launch", idle=True)


def after(launch: Launch) -> Known:
    """What is known to whatever comes behind a launch in its stream."""
    ended = [h.known(OVER) | {h: OVER} for h in launch.histories]
    return merged([launch.stream.before, *ended])
