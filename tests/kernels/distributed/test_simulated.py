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
from tkc.kernels.distributed.groups import of_one_process

BF16 = ml_dtypes.bfloat16


def simulated(world, run, seed=0):
    """What `run(group)` gives for each rank."""
    groups = of_one_process(world)
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


def twice(call):
    return lambda g: [call(g) for _ in range(2)]


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_gathered_scattered_and_exchanged(world):
    x = each(world, (world, 100))
    gathered, scattered, exchanged = (
        simulated(world, twice(lambda g, f=f: f(x[g.rank], g)))
        for f in (distributed.all_gather, distributed.reduce_scatter, distributed.all_to_all)
    )
    for r in range(world):
        for turn in range(2):
            assert (gathered[r][turn] == np.stack(x)).all()
            close(scattered[r][turn], sum(map(exact, x))[r], np.float32)
            assert (exchanged[r][turn] == np.stack([one[r] for one in x])).all()


def test_experts():
    x = each(2, (8, 64))
    chosen = [np.random.default_rng(r).integers(0, 4, (8, 2)).astype(np.int32) for r in range(2)]

    def run(g):
        rows, every = distributed.dispatch(x[g.rank], chosen[g.rank], 4, g)
        return rows, distributed.combine(rows, every, 4, g)

    for r, calls in enumerate(simulated(2, twice(run))):
        for rows, back in calls:
            goes = [(chosen[s] // 2 == r).any(1)[:, None] for s in range(2)]
            assert (rows == np.stack([np.where(goes[s], x[s], 0) for s in range(2)])).all()
            ranks = sum((chosen[r] // 2 == to).any(1) for to in range(2))
            close(back, exact(x[r]) * ranks[:, None], np.float32)


def test_matmul_all_reduce():
    a, w = each(2, (64, 64), BF16), each(2, (64, 64), BF16, 1)
    want = sum(exact(x) @ exact(y) for x, y in zip(a, w, strict=True))
    calls = simulated(2, twice(lambda g: distributed.matmul_all_reduce(a[g.rank], w[g.rank], g)))
    for first, second in calls:
        close(first, want, BF16)
        assert (first == second).all() and (first == calls[0][0]).all()


def test_ring_attention_backward():
    n, d = 64, 64
    q, k, v, grad = (each(2, (1, n, d), BF16, seed) for seed in range(4))

    def run(g):
        mine = q[g.rank], k[g.rank], v[g.rank]
        y, lse = distributed.ring_attention(*mine, g, True, True, with_lse=True)
        return distributed.ring_attention_backward(grad[g.rank], *mine, y, lse, g, True, True)

    found, places = simulated(2, run), positions(2, n, True)
    want, powers = attended(q, k, v, places, True)
    order = np.argsort(np.concatenate(places))
    rows, cols, values, change = (exact(np.concatenate(x, 1))[:, order] for x in (q, k, v, grad))
    into = change @ values.transpose(0, 2, 1)
    scores = powers * (into - (powers * into).sum(-1, keepdims=True)) / np.sqrt(d)
    whole = (
        scores @ cols,
        scores.transpose(0, 2, 1) @ rows,
        powers.transpose(0, 2, 1) @ change,
    )
    for r, gradients in enumerate(found):
        for y, x in zip(gradients, whole, strict=True):
            close(y, x[:, places[r]], BF16)


def test_three_ranks_give_pieces(monkeypatch):
    for name, value in {"GIVERS": 2, "GIVER_WARPS": 4, "MIN_PIECE": 64}.items():
        monkeypatch.setattr(pieces, name, value)
    a, w = each(3, (24, 128), BF16), each(3, (128, 64), BF16, 1)
    calls = simulated(3, twice(lambda g: distributed.all_gather_matmul(a[g.rank], w[g.rank], g)))
    for r, results in enumerate(calls):
        for y in results:
            close(y, exact(np.concatenate(a)) @ exact(w[r]), BF16)


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
