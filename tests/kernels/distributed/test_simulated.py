"""Functions of several ranks as compiled for Hopper, ranks beside one another in the simulator,
under the happens-before check: what they compute, that nothing is found in them, and that whatever
is taken from their synchronization is.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.distributed.test_ranks import attended, close, each, exact, positions
from tkc.kernels import distributed
from tkc.kernels.distributed import pieces
from tkc.kernels.distributed.groups import beside

BF16 = ml_dtypes.bfloat16


def simulated(world, run, seed=0):
    """What `run(group)` gives for each rank."""
    groups = beside(world)
    return tkc.simulate_ranks(world, lambda r: run(groups[r]), seeds=[seed])


@pytest.mark.parametrize("shots", [1, 2])
def test_all_reduce(shots):
    x = each(2, (300,))
    found = simulated(2, lambda g: [distributed.all_reduce(x[g.rank], g, shots) for _ in range(3)])
    for calls in found:
        for y in calls:
            close(y, sum(map(exact, x)), np.float32)


def test_all_gather_matmul():
    a, w = each(2, (64, 128), BF16), each(2, (128, 128), BF16, 1)
    found = simulated(
        2, lambda g: [distributed.all_gather_matmul(a[g.rank], w[g.rank], g) for _ in range(2)]
    )
    for r, calls in enumerate(found):
        for y in calls:
            close(y, exact(np.concatenate(a)) @ exact(w[r]), BF16)


@pytest.mark.parametrize("rows", [40, 64])
def test_all_gather_matmul_in_pieces(rows, monkeypatch):
    """Blocks with rows of both ranks, and a last piece that is not whole; memory used again."""
    for name, value in {"GIVERS": 2, "GIVER_WARPS": 4, "MIN_PIECE": 64}.items():
        monkeypatch.setattr(pieces, name, value)
    a, w = each(2, (rows, 136), BF16), each(2, (136, 64), BF16, 1)
    launched = []
    monkeypatch.setattr(pieces, "product_of_pieces", seen(pieces.product_of_pieces, launched))
    found = simulated(
        2, lambda g: [distributed.all_gather_matmul(a[g.rank], w[g.rank], g) for _ in range(3)]
    )
    assert len(launched) == 6
    for r, calls in enumerate(found):
        for y in calls:
            close(y, exact(np.concatenate(a)) @ exact(w[r]), BF16)


def seen(function, calls):
    """The function, which tells of its calls."""

    def call(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return call


def test_matmul_reduce_scatter():
    a, w = each(2, (128, 64), BF16), each(2, (64, 128), BF16, 1)
    found = simulated(
        2,
        lambda g: [distributed.matmul_reduce_scatter(a[g.rank], w[g.rank], g) for _ in range(2)],
    )
    want = sum(exact(x) @ exact(y) for x, y in zip(a, w, strict=True))
    for r, calls in enumerate(found):
        for y in calls:
            close(y, want[r * 64 : (r + 1) * 64], BF16)


@pytest.mark.parametrize("balanced", [False, True])
def test_ring_attention(balanced):
    heads, n, d = 1, 64, 64
    q, k, v = (each(2, (heads, n, d), BF16, seed) for seed in range(3))
    found = simulated(
        2,
        lambda g: [
            distributed.ring_attention(q[g.rank], k[g.rank], v[g.rank], g, True, balanced)
            for _ in range(2)
        ],
    )
    places = positions(2, n, balanced)
    want, _ = attended(q, k, v, places, True)
    for r, calls in enumerate(found):
        for y in calls:
            close(y, want[:, places[r]], BF16)
