"""Shards that ranks give one another beside what they compute: where ranks are GPUs, by their copy
engines, so that no multiprocessor is taken from a product.

A call goes by turns. A turn begins on all ranks together: then whatever was given a turn before has
been read, and its place may be written again. What is given is followed, in the same queue, by the
turn's number, for which the receiver waits. Turns are counted in memory, not by the host: a launch
that is recorded and replayed goes on counting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tkc
from tkc.kernels.distributed.groups import Group

BEGUN, GIVEN = range(2)  # rows of flags
GIVING = 0  # the queue of what is given; products alternate between those behind it


class Exchange(NamedTuple):
    """data: [W, n] of each rank, a row a rank that gave it; flags: [2, W] of each rank, the turn
    that each rank has begun, and the one of what it gave; turns: [1].
    """

    data: tkc.peers
    flags: tkc.peers
    turns: Any


@tkc.jit
def _begin(flags: tkc.peers, turns, BEGUN: tkc.constexpr):
    """Waits until all ranks are here."""
    me, W = tkc.rank(), tkc.world()
    turn = turns[0] + 1
    for r in tkc.static_range(W):
        if r != me:
            tkc.signal(flags[r], (BEGUN, me), turn)
    for r in tkc.static_range(W):
        if r != me:
            tkc.wait(flags[me], (BEGUN, r), turn)
    tkc.store(turns, (0,), turn)


@tkc.jit
def _receive(flags: tkc.peers, turns, GIVEN: tkc.constexpr, FROM: tkc.constexpr):
    """Waits until what rank FROM gives in this turn is here."""
    tkc.wait(flags[tkc.rank()], (GIVEN, FROM), turns[0])


def begun(group: Group, call: str, n: int, dtype: Any) -> Exchange:
    """Begins a turn of calls that give each rank n elements at most. All ranks call it together."""

    def make() -> Exchange:
        return Exchange(
            group.peers((group.world, n), dtype),
            group.peers((2, group.world), "int32"),
            group.zeros((1,), "int32"),
        )

    memory = group.remembered((call, n, str(dtype)), make)
    group.begin()
    _begin[1](memory.flags, memory.turns, BEGUN=BEGUN, num_warps=1)
    return memory


def give(parts: Sequence[Any], to: int, memory: Exchange, group: Group) -> None:
    """Gives a rank arrays, which it finds one behind the other, beside what is launched behind.
    They stay alive until `group.join()`.
    """
    me, at = group.rank, 0
    with group.beside(GIVING):
        for x in parts:
            flat = x.reshape(-1)
            group.push(flat, memory.data.arrays[to][me, at:])
            at += len(flat)
        group.tell(memory.turns, memory.flags.arrays[to][GIVEN, me : me + 1])


def receive(source: int, memory: Exchange, group: Group) -> Any:
    """Waits for what a rank gives, and gives it: [n]."""
    _receive[1](memory.flags, memory.turns, GIVEN=GIVEN, FROM=source, num_warps=1)
    return memory.data.own[source]


def others(group: Group) -> Iterator[tuple[int, int, int]]:
    """(step, whom to give, whom to receive from) for the other ranks, so that in each step every
    rank gives one and receives from one.
    """
    for step in range(1, group.world):
        yield step, (group.rank - step) % group.world, (group.rank + step) % group.world


def queue(step: int) -> int:
    """Where the computation of a step is launched: beside that of the step before, so that its
    blocks fill the multiprocessors that the last ones of that leave.
    """
    return GIVING + 1 + step % 2
