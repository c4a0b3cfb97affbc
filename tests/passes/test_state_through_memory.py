"""States that go through memory: what a loop stores in one iteration, loads of a later one feed to
dots. The compiled programs run with threads, under the check for races.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import aligned, context, through
from tkc.fuzz.check import Comparison, Variant
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

ROWS, STATE, STEPS, PART = 64, 128, 4, 32


@pytest.fixture(params=["sm_80", "sm_90a"])
def simulated(request, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", request.param)


@tkc.jit
def recurrent(h, w, steps, ROWS: tkc.constexpr, STATE: tkc.constexpr, PART: tkc.constexpr):
    """h[(t + 1) % buffers] = tanh(h[t % buffers] w), parts of the state at a time."""
    buffers = h.shape[0]
    for t in range(steps):
        acc = tkc.zeros((ROWS, STATE))
        for k in range(0, h.shape[2], PART):
            x = tkc.load(h, (t % buffers, 0, k), (None, ROWS, PART))
            acc = tkc.dot(x, tkc.load(w, (k, 0), (PART, STATE)), acc)
        tkc.store(h[(t + 1) % buffers], (0, 0), tkc.tanh(acc).to(h.dtype))


@pytest.mark.parametrize("buffers", [STEPS + 1, 2])
@pytest.mark.usefixtures("simulated")
def test_a_recurrent_layer(buffers):
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((STATE, STATE)) / 11).astype(np.float16)
    h = np.zeros((buffers, ROWS, STATE), np.float16)
    h[0] = rng.standard_normal((ROWS, STATE))
    want = h[0].astype(float)
    for _ in range(STEPS):
        want = np.tanh(want @ w.astype(float)).astype(np.float16).astype(float)
    recurrent[1](h, w, STEPS, ROWS, STATE, PART)
    np.testing.assert_allclose(h[STEPS % buffers], want, atol=2e-3)


@tkc.jit
def by_address(table, w, h, n, ROWS: tkc.constexpr):
    """h as an array of an address, whose blocks are copied, is the argument that is stored to."""
    x = tkc.array(table[0], tkc.float32, (n, ROWS))
    for i in tkc.range(STEPS):
        weights = tkc.load(w, (0, 0), (ROWS, ROWS))
        acc = tkc.dot(tkc.load(x, (i * ROWS, 0), (ROWS, ROWS)), weights, precision="tf32")
        tkc.store(h, (i * ROWS + ROWS, 0), acc)


@pytest.mark.parametrize("stages", [2, 3])
def test_a_state_that_is_read_by_its_address(stages):
    """The copies of a later iteration read what this one stores."""
    h, w = np.zeros((STEPS + 1, ROWS, ROWS), np.float32), np.eye(ROWS, dtype=np.float32)
    h[0] = np.arange(ROWS * ROWS).reshape(ROWS, ROWS) % 3
    h, table = h.reshape(-1, ROWS), np.array([h.ctypes.data], np.int64)
    f2 = aligned(tkc.float32, 2)
    module = traced(by_address.fn, array(tkc.int64), f2, f2, i32(), ROWS=ROWS)
    comparison = Comparison(module, lambda: dict(table=table, w=w, h=h, n=len(h)), (1,), near=1e-6)
    for target in ("sm_80", "sm_90a"):
        assert not list(comparison.passes(Variant(target, None, stages)))


@tkc.jit
def solve(lower, b, blocks, N: tkc.constexpr, COLUMNS: tkc.constexpr):
    """b becomes lower⁻¹ b, where lower has ones on its diagonal and blocks below it alone."""
    for i in range(blocks):
        x = tkc.load(b, (i * N, 0), (N, COLUMNS)).to(tkc.float32)
        for j in range(i):
            known = tkc.load(b, (j * N, 0), (N, COLUMNS))
            x = x - tkc.dot(tkc.load(lower, (i * N, j * N), (N, N)), known)
        tkc.store(b, (i * N, 0), x.to(b.dtype))


@pytest.mark.usefixtures("simulated")
def test_a_triangular_solve_in_place():
    rng, n, blocks = np.random.default_rng(0), 32, 4
    lower = np.tril(rng.standard_normal((n * blocks, n * blocks)) * 0.05, -1).astype(np.float16)
    lower *= np.kron(np.tril(np.ones((blocks, blocks)), -1), np.ones((n, n))).astype(np.float16)
    b = rng.standard_normal((n * blocks, 64)).astype(np.float16)
    want = b.astype(float)
    for i in range(0, n * blocks, n):
        want[i : i + n] -= lower[i : i + n, :i].astype(float) @ want[:i]
        want[i : i + n] = want[i : i + n].astype(np.float16)
    solve[1](lower, b, blocks, n, 64)
    np.testing.assert_allclose(b, want, atol=4e-3)


@tkc.jit
def looped(a, w, out, k, N: tkc.constexpr):
    """What lies outside of an operand reads as one, which no tensor map says."""
    acc = tkc.zeros((N, N))
    for i in range(0, k, N):
        x = tkc.load(a, (0, i), (N, N), other=1.0)
        acc = tkc.dot(x, tkc.load(w, (i, 0), (N, N)), acc)
    tkc.store(out, (0, 0), acc)


@pytest.mark.usefixtures("simulated")
def test_an_operand_that_reads_as_one_outside():
    rng = np.random.default_rng(0)
    a = rng.integers(-2, 3, (50, 104)).astype(np.float16)
    w = rng.integers(-2, 3, (128, 64)).astype(np.float16)
    out = np.zeros((64, 64), np.float32)
    looped[1](a, w, out, 128, 64)
    whole = np.ones((64, 128))
    whole[:50, :104] = a
    np.testing.assert_array_equal(out, whole @ w)


@tkc.jit
def added_ones(h, w, steps, N: tkc.constexpr, K: tkc.constexpr):
    """Besides what memory holds, an operand of ones, which is written before the loop."""
    ones = tkc.full((N, N), 1, h.dtype)
    for i in tkc.range(steps):
        acc = tkc.zeros((N, N))
        for k in tkc.range(0, N, K):
            acc = tkc.dot(tkc.load(h[i], (0, k), (N, K)), tkc.load(w, (k, 0), (K, N)), acc)
        acc = tkc.dot(acc.to(h.dtype), ones)
        tkc.store(h[i + 1], (0, 0), (acc % 5).to(h.dtype))


@pytest.mark.usefixtures("simulated")
def test_an_operand_that_is_written_before_the_first_store():
    rng, n, steps = np.random.default_rng(0), 64, 3
    h = np.zeros((steps + 1, n, n), np.float16)
    h[0] = rng.integers(0, 2, (n, n))
    w = np.zeros((n, n), np.float16)
    w[:2] = rng.integers(0, 2, (2, n))
    want = h[0].astype(float)
    for _ in range(steps):
        want = (want @ w) @ np.ones((n, n)) % 5
    added_ones[1](h, w, steps, n, 16)
    np.testing.assert_array_equal(h[steps], want)


def chained(h, w, v, o):
    """What is stored goes into a dot of the same iteration, which could run an iteration later."""
    acc = tkc.zeros((64, 64))
    for i in tkc.range(0, 4):
        s = tkc.dot(tkc.load(h, (i * 64, 0), (64, 64)), tkc.load(w, (i * 64, 0), (64, 64)))
        p = tkc.maximum(s, 0.0).to(h.dtype)
        acc = tkc.dot(p, tkc.load(v, (i * 64, 0), (64, 64)), acc)
        tkc.store(h, (i * 64 + 64, 0), p)
    tkc.store(o, (0, 0), acc)


def test_no_dot_runs_late_where_copies_wait_for_what_is_stored():
    half, wide = aligned(tkc.float16, 2), aligned(tkc.float32, 2)
    module, given = traced(chained, half, half, half, wide), context("sm_90a")
    rng = np.random.default_rng(0)
    h = np.zeros((320, 64), np.float16)
    h[:64] = rng.integers(-1, 2, (64, 64))
    w = np.concatenate([np.eye(64)[rng.permutation(64)] for _ in range(4)]).astype(np.float16)
    v = rng.integers(-1, 2, (256, 64)).astype(np.float16)
    level0.run(module, [h.copy(), w, v, want := np.zeros((64, 64), np.float32)], (1, 1, 1))
    through(module, PIPELINE[-1], given)
    assert given.plan.copies_wait and not any("iteration late" in line for line in given.decisions)
    level4.run(module, [h, w, v, got := np.zeros((64, 64), np.float32)], (1, 1, 1), 1)
    np.testing.assert_array_equal(got, want)
