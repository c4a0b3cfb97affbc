"""What releases publish and acquires learn of other clusters, at level 4 and between GPUs.

A release by an agent publishes what the agent knows: its own cluster's clock, and what it has
acquired of other clusters. Who reads the released value with an acquire knows all of that from then
on, if the scope of either operation holds them both: "block" a thread block, "gpu" the clusters of
one GPU, "system" all GPUs. What an agent acquires is an event of its cluster with a stamp, like an
access: other agents of the cluster know of it behind a barrier, and copies of the asynchronous
proxy behind a proxy fence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tkc.sim.clocks import GENERIC, Knowing

# of each cluster, the epochs of its agents up to which what they did is known
Known = dict["ClusterHistory", np.ndarray]


def merged(parts: Iterable[Known]) -> Known:
    """What is known by any of some."""
    out: Known = {}
    for part in parts:
        for cluster, clock in part.items():
            out[cluster] = np.maximum(out[cluster], clock) if cluster in out else clock
    return out


@dataclass(eq=False)
class ClusterHistory:
    """What the agents of one cluster have acquired of others.

    rank: the GPU that it runs on; before: what was over when its launch began; acquired: the column
    and epoch of an agent, and what it has known since then.
    """

    rank: int = 0
    before: Known = field(default_factory=dict)
    acquired: list[tuple[int, int, Known]] = field(default_factory=list)
    taken: set[tuple[int, Part]] = field(default_factory=set)
    _found: dict[tuple[int, ...], Known] = field(default_factory=dict)

    def known(self, view: np.ndarray) -> Known:
        """What is known of other clusters to who has this view of its own."""
        if not self.acquired:
            return self.before
        which = tuple(i for i, (at, epoch, _) in enumerate(self.acquired) if view[at] >= epoch)
        if which not in self._found:
            self._found[which] = merged([self.before, *(self.acquired[i][2] for i in which)])
        return self._found[which]


@dataclass(frozen=True, eq=False)
class Part:
    """What one release has published. block: the number of its thread block."""

    cluster: ClusterHistory
    block: int
    scope: str
    known: Known


Publication = tuple[Part, ...]


def covers(scope: str, one: tuple[ClusterHistory, int], other: tuple[ClusterHistory, int]) -> bool:
    """Whether a scope of one of two thread blocks, each with its cluster, holds both."""
    if scope == "system" or one == other:
        return True
    return scope == "gpu" and one[0].rank == other[0].rank


def release(agent: Knowing, cluster: ClusterHistory, block: int, scope: str) -> Part:
    """What an agent publishes now; what it does later is not in it."""
    own = agent.knows[GENERIC].copy()
    part = Part(cluster, block, scope, cluster.known(own) | {cluster: own})
    agent.tick()
    return part


def acquire(
    agent: Knowing, cluster: ClusterHistory, block: int, scope: str, published: Iterable[Part]
) -> None:
    """An agent learns what was published, as far as the scopes go."""
    for part in published:
        there, here = (part.cluster, part.block), (cluster, block)
        if (agent.index, part) in cluster.taken:
            continue
        if not (covers(part.scope, there, here) and covers(scope, there, here)):
            continue
        cluster.taken.add((agent.index, part))
        others = {c: clock for c, clock in part.known.items() if c is not cluster}
        if cluster in part.known:
            np.maximum(agent.knows[GENERIC], part.known[cluster], out=agent.knows[GENERIC])
        if others:
            cluster.acquired.append((agent.index, agent.epoch, others))
            agent.tick()


def joined(earlier: Publication, part: Part) -> Publication:
    """What a read-modify-write with a release publishes beside what it reads."""
    same = [
        p
        for p in earlier
        if (p.cluster, p.block, p.scope) == (part.cluster, part.block, part.scope)
    ]
    if same:
        known = merged([part.known, *(p.known for p in same)])
        part = Part(part.cluster, part.block, part.scope, known)
    return (*(p for p in earlier if p not in same), part)
