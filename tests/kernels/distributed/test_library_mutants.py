"""Whatever orders the memory of two GPUs in the library's collectives, and rows of experts: without
it, or with less of it, the simulator finds a race, a deadlock or another result.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tkc.kernels import distributed
from tkc.kernels.distributed import collectives
from tkc.kernels.distributed.groups import of_one_process
from tkc.runtime.simulate import rank_launches
from tkc.sim import ranks
from tkc.sim.errors import SimulationError
from tkc.sim.mutants import mutated, places
from tkc.sim.rank_mutants import OPERATORS

W, TURNS = 2, 3  # both halves of the memory are written, and one of them again
SEEDS = range(6)
BLOCK = 512  # elements of a program, of several warps: each rank sums some, and is given others
# a number is written once, and no further before it is read: it is equal where it is at least
EQUIVALENT = "until equal"


def each(*shape):
    return [np.random.default_rng(r).normal(size=shape).astype(np.float32) for r in range(W)]


EXPERTS = [np.random.default_rng(r).integers(0, 4, (8, 2)).astype(np.int32) for r in range(W)]
# by name: a call of rank r, and how many mutants of its last launch there are at least
CASES = {
    "all_reduce, one shot": (lambda g, x: distributed.all_reduce(x, g, 1), [each(1024)], 8),
    "all_reduce, two shots": (lambda g, x: distributed.all_reduce(x, g, 2), [each(1024)], 16),
    "dispatch": (lambda g, x, e: distributed.dispatch(x, e, 4, g)[0], [each(8, 64), EXPERTS], 8),
    "combine": (
        lambda g, x: distributed.combine(x, np.stack(EXPERTS), 4, g),
        [each(W, 8, 64)],
        8,
    ),
}


class Calls:
    """A call in each of some turns, by every rank, as often as one likes."""

    def __init__(self, call: Callable, arrays: list):
        self.call, self.arrays = call, arrays
        self.made: dict = {}  # kernels that were compiled
        self.want = self.results()

    def launches(self) -> tuple[list, list, Any]:
        """Those of each rank, which are not made, what they give, and what must stay alive."""
        groups, results = of_one_process(W), [[] for _ in range(W)]

        def run(r: int) -> None:
            for _ in range(TURNS):
                results[r].append(self.call(groups[r], *(a[r] for a in self.arrays)))

        _, found, alive = rank_launches(W, run, "sm_90a", self.made)
        return found, results, (alive, groups)

    def results(self, seed: int = 0, turn: int | None = None, module: Any = None) -> list:
        """What they give; module: in place of rank 0's last launch of a turn."""
        found, results, _ = self.launches()
        if turn is not None:
            number = len(found[0]) // TURNS * (turn + 1) - 1
            found[0][number] = replace(found[0][number], module=module)
        ranks.run(found, seed, in_place=True)
        return results

    def is_clean(self, seed: int, turn: int | None = None, module: Any = None) -> bool:
        try:
            found = self.results(seed, turn, module)
        except SimulationError:
            return False
        return all(
            (x == y).all()
            for one, other in zip(found, self.want, strict=True)
            for x, y in zip(one, other, strict=True)
        )

    def mutants(self) -> Iterator[tuple[str, bool]]:
        """Those of the last launch of a turn, and whether they are found: in the second turn, or
        in the last one, whose signals no later ones make up for.
        """
        module = self.launches()[0][0][-1].module
        for place in places(module):
            if place.operator in OPERATORS:
                changed = mutated(module, place)
                turns = ((turn, seed) for turn in (1, TURNS - 1) for seed in SEEDS)
                yield place.label, not all(self.is_clean(s, turn, changed) for turn, s in turns)


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_is_found(name, monkeypatch):
    monkeypatch.setattr(collectives, "BLOCK", BLOCK)
    call, arrays, least = CASES[name]
    calls = Calls(call, arrays)
    assert all(calls.is_clean(seed) for seed in SEEDS)
    found = list(calls.mutants())
    missed = [label for label, is_found in found if not is_found]
    assert len(found) >= least, found
    assert all(label.startswith(EQUIVALENT) for label in missed), missed
