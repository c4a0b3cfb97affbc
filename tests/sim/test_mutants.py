"""The mutation score: every mutant of every program is found on every schedule, except the
equivalent ones.
"""

import pytest

from tests.sim import programs
from tests.sim.test_level4 import parse, run_chain, run_product, run_ring, run_turns, verdict
from tkc.sim.mutants import mutants

SEEDS = range(3)
RUNS = {
    "product": (programs.product(2, 2), lambda m, seed: run_product(m, 5, 2, seed)),
    "cluster": (programs.product(2, 2, 2), lambda m, seed: run_product(m, 3, 2, seed, 2)),
    "ring": (programs.ring(3), lambda m, seed: run_ring(m, 5, seed)),
    "exchange": (
        programs.exchange(before="tile.fence async_shared"),
        lambda m, seed: run_ring(m, 5, seed),
    ),
    "chain": (programs.chain(), lambda m, seed: run_chain(m, seed)),
    "turns": (programs.turns(), lambda m, seed: run_turns(m, 4, seed)),
}
EQUIVALENT = {
    (
        "turns",
        "drop: block_barrier",
    ),  # each warp's elements are written by itself before the roles part
    ("ring", "parity stays: ring_next"),  # groups of copies have no parity
    ("chain", "earlier: mbarrier_expect bar"),  # by the thread that has initialised the barrier
}


@pytest.mark.parametrize("name", RUNS)
def test_every_mutant_is_found(name, monkeypatch):
    text, run = RUNS[name]
    monkeypatch.setattr("tests.sim.test_level4.module_of", lambda module: module)
    missed, count, declared = [], 0, {label for program, label in EQUIVALENT if program == name}
    for label, mutant in mutants(parse(text)):
        count += 1
        declared.discard(label)
        if any(verdict(run, mutant, seed) == "missed" for seed in SEEDS):
            missed.append(label)
    assert count >= 10 and not declared and {(name, label) for label in missed} <= EQUIVALENT


def test_the_originals_are_clean():
    for text, run in RUNS.values():
        for seed in range(3, 13):
            run(text, seed)
