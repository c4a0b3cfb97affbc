"""Memory through which the ranks of one call exchange data, and the numbers that they wait for.

A call goes by turns 1, 2, 3 … that each program counts itself, in memory of its own (`turns`): a
launch that is recorded and replayed goes on counting. Turn by turn data lies in one half of a
staging array and then in the other: a rank that has seen the signals of turn n of all others knows
that they have read what turn n - 1 gave them, so turn n + 1 may write over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tkc
from tkc.kernels.distributed.groups import Group


class Staging(NamedTuple):
    """data: [2, …] of each rank, a half a turn; flags: [world, programs] of each rank, what others
    say to it; turns: [programs], how often a program has run.
    """

    data: tkc.peers
    flags: tkc.peers
    turns: Any


def staging(
    group: Group, call: str, shape: Sequence[int], dtype: Any, programs: int, *more: Any
) -> Staging:
    """The memory of calls of a function with arrays of this shape. more: what else tells such calls
    apart. All ranks call it together.
    """

    def make() -> Staging:
        return Staging(
            group.peers((2, *shape), dtype),
            group.peers((group.world, programs), "int32"),
            group.zeros((programs,), "int32"),
        )

    return group.remembered((call, tuple(shape), str(dtype), programs, more), make)
