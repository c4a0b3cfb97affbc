"""Whatever orders the memory of several GPUs in a product that waits for what it reads, as compiled
for Hopper: without it, or with less of it, the simulator finds a race or a deadlock.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tkc
from tkc.kernels.distributed import collectives, products
from tkc.runtime.simulate import rank_launches
from tkc.sim import ranks
from tkc.sim.errors import SimulationError
from tkc.sim.mutants import mutated, places
from tkc.sim.rank_mutants import OPERATORS

BF16, W, M, K, N, PIECE = ml_dtypes.bfloat16, 2, 64, 64, 16, 4096
SEEDS = range(6)
# what leaves a program right, by launch and by what a label begins with
EQUIVALENT = {
    0: (
        # of two signals the one to itself: a rank's next launch comes behind this one in any case
        *(f"{operator}: store_pointers" for operator in ("scope", "relaxed", "alone")),
    ),
    1: (
        # a number is written once: it is equal where it is at least that
        "until equal: scf.while in producer",
        "until equal: scf.while in consumer",
        # consumers read nothing of what the wait is for: the producer's copies do, and waited
        "no wait: scf.while in consumer",
        "relaxed: load_pointers in consumer",
    ),
}


@pytest.fixture(scope="module")
def made():
    return {}


def launches(made):
    """Both ranks give one another their rows, then multiply all: two launches a rank."""
    rng = np.random.default_rng(0)
    a = [rng.normal(size=(M, K)).astype(BF16) for _ in range(W)]
    w = rng.normal(size=(K, N)).astype(BF16)
    data = [np.zeros((2, W, M * K), BF16) for _ in range(W)]
    flags = [np.zeros((W, 1), np.int32) for _ in range(W)]
    y = [np.zeros((W, M, N), BF16) for _ in range(W)]

    def run(r):
        turns = np.zeros(1, np.int32)
        seen = tkc.peers(flags, r)
        collectives._push[1](a[r].reshape(-1), tkc.peers(data, r), seen, turns, C=PIECE, N=PIECE)
        gathered = data[r].reshape(2, W, M, K)
        products._product_of_gathered[W, 1](
            gathered, w, y[r], seen, turns, C=PIECE, BM=M, BN=N, BK=K
        )

    _, found, alive = rank_launches(W, run, "sm_90a", made)
    want = np.concatenate(a).astype(float) @ w.astype(float)
    return found, y, want.reshape(W, M, N), alive


def verdict(made, seed, changed=None):
    """What the ranks do on a schedule. changed: (rank, launch, module) in place of what it was."""
    found, y, want, _ = launches(made)
    if changed is not None:
        r, number, module = changed
        found[r][number] = replace(found[r][number], module=module)
    try:
        ranks.run(found, seed, in_place=True)
    except SimulationError:
        return "found"
    right = all(abs(one.astype(float) - want).max() < 0.1 * abs(want).max() for one in y)
    return "clean" if right else "value"


def test_nothing_is_found_in_it(made):
    assert {verdict(made, seed) for seed in SEEDS} == {"clean"}


@pytest.mark.parametrize("number", [0, 1])
def test_every_mutant_is_found(made, number):
    original = launches(made)[0][0][number].module
    roles = "tile.roles" in str(original)
    assert roles == (number == 1)  # the product has warp roles, and waits in them
    missed, count = [], 0
    for place in places(original):
        fence = place.operator == "drop" and "fence async_global" in place.label
        if place.operator not in OPERATORS and not fence:
            continue
        count += 1
        changed = 0, number, mutated(original, place)
        if all(verdict(made, seed, changed) == "clean" for seed in SEEDS):
            missed.append(place.label)
    assert count >= 8 and set(missed) <= set(EQUIVALENT[number]), missed
