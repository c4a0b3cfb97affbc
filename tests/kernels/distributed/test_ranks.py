"""Functions of several ranks, as threads of one process, against float64."""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tkc.kernels import distributed

CALLS = 3  # staging comes round


def each(world, shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for _ in range(world)]


def exact(x):
    return np.asarray(x).astype(np.float64)


def close(y, want, dtype):
    """Within what parts rounded to the dtype, and their sum, may lose."""
    most = {4: 1e-5, 2: 2e-2 if dtype == ml_dtypes.bfloat16 else 3e-3, 8: 1e-12}
    scale = max(1.0, abs(want).max())
    assert abs(exact(y) - want).max() <= most[np.dtype(dtype).itemsize] * scale


@pytest.mark.parametrize("world, shots, dtype", [(2, 1, np.float32), (3, 2, np.float16)])
def test_all_reduce(world, shots, dtype):
    x = each(world, (7, 1501), dtype)
    calls = distributed.threads(
        world,
        lambda g: [distributed.all_reduce(x[g.rank] * n, g, shots) for n in range(1, 1 + CALLS)],
    )
    for n in range(CALLS):
        results = [ofrank[n] for ofrank in calls]
        close(results[0], sum(exact(a * (n + 1)) for a in x), dtype)
        assert all((y == results[0]).all() for y in results)  # the same bits on all


def test_the_other_collectives():
    world, x = 3, each(3, (3, 33), np.float64)

    def run(g):
        mine = x[g.rank]
        return (
            distributed.all_gather(mine, g),
            distributed.all_to_all(mine, g),
            distributed.reduce_scatter(mine, g),
        )

    for r, (gathered, exchanged, summed) in enumerate(distributed.threads(world, run)):
        assert all(
            (gathered[s] == x[s]).all() and (exchanged[s] == x[s][r]).all() for s in range(3)
        )
        close(summed, sum(a[r] for a in x), np.float64)


def test_nothing_to_exchange():
    empty = [np.zeros((2, 0), np.float32)] * 2
    for y in distributed.threads(2, lambda g: distributed.all_gather(empty[g.rank], g)):
        assert y.shape == (2, 2, 0)


@pytest.mark.parametrize("world, m, k, n", [(2, 70, 40, 150), (3, 130, 33, 20)])
def test_products(world, m, k, n):
    a, w = each(world, (world * m, k)), each(world, (k, n), seed=1)

    def run(g):
        rows = a[g.rank][:m]
        return [
            (
                distributed.all_gather_matmul(rows, w[g.rank], g),
                distributed.matmul_reduce_scatter(a[g.rank], w[g.rank], g),
                distributed.matmul_all_reduce(a[g.rank], w[g.rank], g),
            )
            for _ in range(CALLS)
        ]

    gathered = exact(np.concatenate([one[:m] for one in a]))
    total = sum(exact(x) @ exact(y) for x, y in zip(a, w, strict=True))
    for r, calls in enumerate(distributed.threads(world, run)):
        for first, scattered, summed in calls:
            close(first, gathered @ exact(w[r]), np.float32)
            close(scattered, total[r * m : (r + 1) * m], np.float32)
            close(summed, total, np.float32)
            assert (summed == calls[0][2]).all()


def test_sums_of_float64_are_float64():
    a, w = each(2, (8, 16), np.float64), each(2, (16, 8), np.float64, 1)
    found = distributed.threads(
        2, lambda g: distributed.matmul_reduce_scatter(a[g.rank], w[g.rank], g)
    )
    close(np.concatenate(found), a[0] @ w[0] + a[1] @ w[1], np.float64)


def positions(world, n, balanced):
    """Where in the sequence the rows of each rank are."""
    pieces = np.split(np.arange(world * n), 2 * world)
    if not balanced:
        return np.split(np.arange(world * n), world)
    return [np.concatenate((pieces[r], pieces[-1 - r])) for r in range(world)]


def attended(q, k, v, places, causal):
    """Attention of ranks' rows, in the order of the sequence, and its probabilities."""
    rows, order = np.concatenate(places), np.argsort(np.concatenate(places))
    q, k, v = (exact(np.concatenate(x, 1))[:, order] for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[2])
    if causal:
        scores = np.where(np.tri(len(rows), dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    return powers @ v, powers


RINGS = [(2, True, False), (2, True, True), (3, False, False), (3, True, False), (3, True, True)]


@pytest.mark.parametrize("world, causal, balanced", RINGS)
def test_ring_attention(world, causal, balanced):
    heads, n, d = 2, 70, 24
    q, k, v, grad = (each(world, (heads, n, d), seed=s) for s in range(4))

    def run(g):
        mine = q[g.rank], k[g.rank], v[g.rank]
        for _ in range(CALLS):
            y, lse = distributed.ring_attention(*mine, g, causal, balanced, with_lse=True)
            gradients = distributed.ring_attention_backward(
                grad[g.rank], *mine, y, lse, g, causal, balanced
            )
        return y, *gradients

    places = positions(world, n, balanced)
    order = np.argsort(np.concatenate(places))
    want, powers = attended(q, k, v, places, causal)
    rows, cols, values, change = (exact(np.concatenate(x, 1))[:, order] for x in (q, k, v, grad))
    into = change @ values.transpose(0, 2, 1)
    scores = powers * (into - (powers * into).sum(-1, keepdims=True)) / np.sqrt(d)
    dq, dk = scores @ cols, scores.transpose(0, 2, 1) @ rows
    dv = powers.transpose(0, 2, 1) @ change
    for r, results in enumerate(distributed.threads(world, run)):
        for y, whole in zip(results, (want, dq, dk, dv), strict=True):
            close(y, whole[:, places[r]], np.float32)


def test_experts():
    world, tokens, d, each_token, number = 2, 37, 300, 2, 6
    x = each(world, (tokens, d))
    rng = np.random.default_rng(3)
    chosen = [
        np.stack([rng.choice(number, each_token, replace=False) for _ in range(tokens)]).astype(
            np.int32
        )
        for _ in range(world)
    ]
    factor = np.arange(1, number + 1, dtype=np.float32)

    def run(g):
        mine = np.arange(number) // (number // world) == g.rank
        for _ in range(CALLS):
            rows, experts = distributed.dispatch(x[g.rank], chosen[g.rank], number, g)
            # expert e multiplies by e + 1
            weight = (factor * mine)[experts].sum(-1)
            y = distributed.combine(rows * weight[..., None], experts, number, g)
        return rows, experts, y

    for r, (rows, experts, y) in enumerate(distributed.threads(world, run)):
        for s in range(world):
            here = (chosen[s] // (number // world) == r).any(-1)
            assert (rows[s] == np.where(here[:, None], x[s], 0)).all()
            assert (experts[s] == chosen[s]).all()
        close(y, exact(x[r]) * exact(factor[chosen[r]].sum(-1))[:, None], np.float32)


# ---- what goes wrong
def test_a_rank_that_dies_ends_the_others():
    said = {}

    def run(g):
        if g.rank == 1:
            raise ValueError("out of memory")
        try:
            distributed.all_reduce(np.ones(8, np.float32), g)
        except tkc.PeerError as error:
            said[g.rank] = str(error)

    with pytest.raises(ValueError, match="out of memory"):
        distributed.threads(2, run)
    assert "rank 1 has died: out of memory" in said[0]


def test_a_rank_that_does_not_come_is_waited_for_so_long():
    def run(g):
        if g.rank == 0:
            distributed.all_reduce(np.ones(8, np.float32), g)

    with pytest.raises(tkc.PeerError, match="rank 0 has waited 1 s"):
        distributed.threads(2, run, seconds=1)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda g: distributed.all_to_all(np.ones((3, 4)), g), "one row a rank, 1 of them"),
        (lambda g: distributed.all_reduce(np.ones(4), g, 3), "1 shot, or 2, got 3"),
        (
            lambda g: distributed.all_gather_matmul(np.ones((3, 4)), np.ones((5, 4)), g),
            r"a is \[M, K\] and w \[K, N\]",
        ),
        (
            lambda g: distributed.ring_attention(*(np.ones((1, n, 16)) for n in (4, 4, 5)), g),
            "alike",
        ),
        (
            lambda g: distributed.dispatch(np.ones((3, 4)), np.ones((4, 1), np.int32), 2, g),
            r"experts \[T, K\]",
        ),
        (
            lambda g: distributed.combine(np.ones((1, 3, 4)), np.ones((1, 4, 1), np.int32), 2, g),
            r"experts \[W, T, K\]",
        ),
        (
            lambda g: distributed.combine(
                np.ones((1, 3, 4), np.int32), np.ones((1, 3, 1), np.int32), 2, g
            ),
            "combine: x is summed in float32, got int32",
        ),
        (lambda g: distributed.all_reduce(np.ones(3, np.int32), g), "sum what all_gather gives"),
        (lambda g: distributed.reduce_scatter(np.ones((1, 3), np.uint8), g), "got uint8"),
    ],
)
def test_what_is_refused(call, text):
    with pytest.raises(tkc.LaunchError, match=text):
        distributed.threads(1, call)


def test_rows_are_dealt_out_evenly():
    with pytest.raises(tkc.LaunchError, match="3 rows out over 2 ranks"):
        distributed.threads(
            2, lambda g: distributed.matmul_reduce_scatter(np.ones((3, 4)), np.ones((4, 4)), g)
        )
