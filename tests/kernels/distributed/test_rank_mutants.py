"""Whatever orders the memory of several GPUs in a product that waits for what it reads, as compiled
for Hopper: without it, or with less of it, the simulator finds a race or a deadlock.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.distributed import waiting
from tkc.kernels.distributed import exchange, pieces
from tkc.kernels.distributed.groups import of_one_process
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
        waiting.push[1](a[r].reshape(-1), tkc.peers(data, r), seen, turns, C=PIECE, N=PIECE)
        gathered = data[r].reshape(2, W, M, K)
        waiting.product_of_gathered[W, 1](gathered, w, y[r], seen, turns, C=PIECE, BM=M, BN=N, BK=K)

    _, found, alive = rank_launches(W, run, "sm_90a", made)
    want = np.concatenate(a).astype(float) @ w.astype(float)
    return found, y, [want.reshape(W, M, N)] * W, alive


@tkc.jit
def doubled(x, y, N: tkc.constexpr):
    tkc.store(y, (0,), tkc.load(x, (0,), (N,)) * 2)


GIVEN, TURNS = 32, 2  # elements, and how often: the second time over what was given the first time


def exchanges(made):
    """Ranks give one another an array in each of two turns: five launches a turn."""
    groups = of_one_process(W)
    x = [np.random.default_rng(r).normal(size=(TURNS, GIVEN)).astype("f4") for r in range(W)]
    y = [np.zeros((TURNS, GIVEN), np.float32) for _ in range(W)]

    def run(r):
        for turn in range(TURNS):
            memory = exchange.begun(groups[r], "test", GIVEN, "float32")
            exchange.give((x[r][turn],), 1 - r, memory, groups[r])
            doubled[1](exchange.receive(1 - r, memory, groups[r]), y[r][turn], N=GIVEN)

    _, found, alive = rank_launches(W, run, "sm_90a", made)
    return found, y, [2 * x[1 - r] for r in range(W)], (alive, groups)


def verdict(made, seed, changed=None, launches=launches):
    """What the ranks do on a schedule. changed: (rank, launch, module) in place of what it was."""
    found, y, want, _ = launches(made)
    if changed is not None:
        r, number, module = changed
        found[r][number] = replace(found[r][number], module=module)
    try:
        ranks.run(found, seed, in_place=True)
    except SimulationError:
        return "found"
    right = all(
        abs(one.astype(float) - other).max() < 0.1 * abs(other).max()
        for one, other in zip(y, want, strict=True)
    )
    return "clean" if right else "value"


def test_nothing_is_found_in_it(made):
    assert {verdict(made, seed) for seed in SEEDS} == {"clean"}


def missed(made, launches, number, stream=0):
    """(how many mutants of a launch of a stream there are, which of them nothing finds)"""
    original, count, found = launches(made)[0][stream][number].module, 0, []
    for place in places(original):
        fence = place.operator == "drop" and "fence async_global" in place.label
        if place.operator not in OPERATORS and not fence:
            continue
        count += 1
        changed = stream, number, mutated(original, place)
        if all(verdict(made, seed, changed, launches) == "clean" for seed in SEEDS):
            found.append(place.label)
    return count, found


@pytest.mark.parametrize("number", [0, 1])
def test_every_mutant_is_found(made, number):
    roles = "tile.roles" in str(launches(made)[0][0][number].module)
    assert roles == (number == 1)  # the product has warp roles, and waits in them
    count, found = missed(made, launches, number)
    assert count >= 8 and set(found) <= set(EQUIVALENT[number]), found


# launches of the second turn: which, how many mutants there are at least, and those that leave a
# program right: a number is written once, and no further before it is read; what is announced was
# written by launches before, not by other threads; what is written behind a wait is the rank's own
EXCHANGED = {
    "begin": (5, 6, ("until equal: scf.while", "alone: store_pointers", "wait later: scf.while")),
    "tell": (7, 3, ("alone: store_pointers",)),
    "receive": (8, 3, ("until equal: scf.while",)),
}


def test_nothing_is_found_in_exchanges(made):
    assert {verdict(made, seed, launches=exchanges) for seed in SEEDS} == {"clean"}


@pytest.mark.parametrize("name", EXCHANGED)
def test_every_mutant_of_an_exchange_is_found(made, name):
    number, least, equivalent = EXCHANGED[name]
    count, found = missed(made, exchanges, number)
    assert count >= least and set(found) <= set(equivalent), (count, found)


def products_of_peers(made):
    """Each rank stores its product to the other one by tensor maps, which copies what has come."""
    rng = np.random.default_rng(0)
    a = [rng.normal(size=(2 * M, K)).astype(BF16) for _ in range(W)]
    w = rng.normal(size=(K, M)).astype(BF16)
    y, out = ([np.zeros((2 * M, M), BF16) for _ in range(W)] for _ in range(2))
    flags = [np.zeros(2, np.int32) for _ in range(W)]

    def run(r):
        seen = tkc.peers(flags, r)
        waiting.product_to_peer[2](a[r], w, tkc.peers(y, r), seen, BM=M, BN=M, BK=K)
        waiting.came[2](y[r], out[r], seen, BM=M, BN=M)

    _, found, alive = rank_launches(W, run, "sm_90a", made)
    return found, out, [a[1 - r].astype(float) @ w.astype(float) for r in range(W)], (alive, y)


def test_a_signal_waits_for_what_tensor_maps_store(made):
    text = str(products_of_peers(made)[0][0][0].module)
    assert "tile.tma_store" in text and "tile.roles" in text
    assert {verdict(made, seed, launches=products_of_peers) for seed in SEEDS} == {"clean"}


def test_every_mutant_of_a_product_for_a_peer_is_found(made):
    count, found = missed(made, products_of_peers, 0)
    # all threads have met behind the wait for the stores, which makes these visible by itself
    equivalent = "alone: store_pointers in consumer", "drop: fence async_global in consumer"
    assert count >= 6 and set(found) <= set(equivalent), (count, found)


def turns_of_pieces(made):
    """Two ranks give one another rows in pieces, and multiply them, in each of two turns."""
    groups, rng = of_one_process(W), np.random.default_rng(0)
    a = [rng.normal(size=(TURNS, ROWS, 2 * K)).astype(BF16) for _ in range(W)]
    w = rng.normal(size=(2 * K, N)).astype(BF16)
    y = [np.zeros((TURNS, W * ROWS, N), BF16) for _ in range(W)]

    def run(r):
        for turn in range(TURNS):
            pieces.product_of_pieces(a[r][turn], w, y[r][turn], groups[r])

    _, found, alive = rank_launches(W, run, "sm_90a", made)
    want = np.concatenate(a, 1).astype(float) @ w.astype(float)
    return found, y, [want] * W, (alive, groups)


def pieces_beside(made):
    """The first turn, each rank's rows given beside the product that reads them: what gives and
    what multiplies are streams of their own, as on a GPU. Rank 1 goes on to give those of the
    second turn.
    """
    found, y, want, alive = turns_of_pieces(made)
    give, keep, product = zip(*(launches[:3] for launches in found), strict=True)
    streams = [[keep[r], product[r]] for r in range(W)] + [[give[r]] for r in range(W)]
    streams[-1].append(found[1][3])
    return streams, [one[0] for one in y], [one[0] for one in want], alive


ROWS = 40  # of a rank
# by launch of a stream of rank 0: how many mutants there are at least, and those that leave a
# program right: consumers, who copy nothing, have waited where their copies have come
PIECES = {
    "give": (0, W, 4, set()),
    "product": (
        1,
        0,
        8,
        {"no wait: scf.while in consumer", "relaxed: load_pointers in consumer"},
    ),
}


@pytest.fixture
def small_pieces(monkeypatch):
    for name, value in {"GIVERS": 2, "GIVER_WARPS": 4, "MIN_PIECE": K}.items():
        monkeypatch.setattr(pieces, name, value)


@pytest.mark.parametrize("launches", [pieces_beside, turns_of_pieces])
def test_nothing_is_found_in_pieces(made, small_pieces, launches):
    assert {verdict(made, seed, launches=launches) for seed in SEEDS} == {"clean"}


@pytest.mark.parametrize("name", PIECES)
def test_every_mutant_of_pieces_is_found(made, small_pieces, name):
    number, stream, least, equivalent = PIECES[name]
    count, found = missed(made, pieces_beside, number, stream)
    assert count >= least and set(found) <= equivalent, (count, found)
