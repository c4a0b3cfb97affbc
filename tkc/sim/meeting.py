"""Where the blocks of a cluster meet at levels 0 to 3, whose interpreters run one after the other:
each block has a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np

from tkc.ir import tile
from tkc.ir.values import holds


class Meeting:
    """Where the blocks of a cluster meet, each of which has a thread of its own."""

    def __init__(self, blocks: int):
        self.barrier = threading.Barrier(blocks)
        self.given: list[Any] = [None] * blocks

    def of_all(self, rank: int, given: Any) -> list[Any]:
        """What all blocks give, of which this is one."""
        self.given[rank] = given
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found

    def run(self, blocks: Sequence[Callable[[], object]]) -> None:
        """Runs what the blocks do; raises what one of them raised first."""
        raised: list[Exception] = []

        def one(do: Callable[[], object]) -> None:
            try:
                with np.errstate(all="ignore"):
                    do()
            except threading.BrokenBarrierError:
                pass  # another one has raised
            except Exception as error:
                raised.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(do,)) for do in blocks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]


def cluster_sum(m: Any, op: tile.ClusterSum, *shares: np.ndarray) -> np.ndarray:
    """The share of a block, which m interprets, of what all blocks of its cluster have."""
    given = m.meeting.of_all(m.rank, shares)
    return reduce(np.add, [of[m.rank] for of in given[m.rank :] + given[: m.rank]])


def run_blocks(kernel: tile.Kernel, values: Sequence[Any], made: Callable[[], Any]) -> None:
    """Runs a persistent kernel: the blocks of a cluster that take programs of their own, and their
    members, one after the other unless they meet. values: its arguments; made: an interpreter.
    """
    members = kernel.integer("members", 1)
    number = members * (1 if "spread" in kernel.attributes else prod(kernel.cluster))
    meets = holds(kernel, tile.ClusterSum)
    meeting = Meeting(number)
    blocks: list[Callable[[], object]] = []
    for i in range(number):
        m = made()
        m.rank, m.member = divmod(i, members)
        m.meeting = meeting
        m.assign(kernel.arguments, values)
        blocks.append(partial(m.run, kernel.body.block))
    if meets:
        meeting.run(blocks)
        return
    for block in blocks:
        block()
