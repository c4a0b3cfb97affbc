"""Programs that read what they have written: no copy passes a store that may touch its bytes.

Each kernel runs compiled, with its threads, under the happens-before check, and gives what the
program in its order gives.
"""

import numpy as np
import pytest

import tkc

TARGETS = pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
SIZES = pytest.mark.parametrize("n", [64, 128])
STEPS = 4


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")


@tkc.jit
def in_place(x, w, steps, N: tkc.constexpr):
    for _ in range(steps):
        v = tkc.load(x, (0, 0), (N, N))
        tkc.store(x, (0, 0), tkc.dot(v, tkc.load(w, (0, 0), (N, N))).to(x.dtype))


@tkc.jit
def shifted(x, y, w, steps, N: tkc.constexpr):
    """Reads matrix i of x and writes matrix i + 1 of y, which may be x."""
    for i in range(steps):
        v = tkc.load(x, (i, 0, 0), (None, N, N))
        tkc.store(y[i + 1], (0, 0), tkc.dot(v, tkc.load(w, (0, 0), (N, N))).to(y.dtype))


@tkc.jit
def by_pointers(x, w, steps, N: tkc.constexpr):
    places = tkc.arange(N)[:, None] * N + tkc.arange(N)[None, :]
    for _ in range(steps):
        v = tkc.load(x, (0, 0), (N, N))
        tkc.store(x.ptr + places, tkc.dot(v, tkc.load(w, (0, 0), (N, N))).to(x.dtype))


@tkc.jit
def by_atomics(x, w, steps, N: tkc.constexpr):
    for _ in range(steps):
        v = tkc.load(x, (0, 0), (N, N)).to(tkc.float16)
        tkc.atomic_add(x, (0, 0), tkc.dot(v, tkc.load(w, (0, 0), (N, N))))


@tkc.jit
def later(x, w, out, steps, N: tkc.constexpr):
    """A second loop reads what the first one wrote."""
    for i in range(steps):
        v = tkc.load(w, (0, 0), (N, N))
        tkc.store(x[i], (0, 0), (v * (i + 1)).to(x.dtype))
    total = tkc.zeros((N, N))
    for i in range(steps):
        total = tkc.dot(tkc.load(x, (i, 0, 0), (None, N, N)), tkc.load(w, (0, 0), (N, N)), total)
    tkc.store(out, (0, 0), total)


@tkc.jit
def epilogue(a, b, c, d, k, column, N: tkc.constexpr):
    """What is added to the product is read from c, and the result written to d, which may be c."""
    total = tkc.zeros((N, N))
    for i in range(0, k, 64):
        total = tkc.dot(tkc.load(a, (0, i), (N, 64)), tkc.load(b, (i, 0), (64, N)), total)
    total = total + tkc.load(c, (0, 0), (N, N)).to(tkc.float32)
    tkc.store(d, (0, column), total.to(d.dtype))


@tkc.jit
def several(a, b, c, d, k, N: tkc.constexpr):
    """Results that overlap in c (and in d, which may be c): the last one written counts."""
    total = tkc.zeros((N, N))
    for i in range(0, k, 64):
        total = tkc.dot(tkc.load(a, (0, i), (N, 64)), tkc.load(b, (i, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))
    tkc.store(d, (0, 16), (total + 1).to(d.dtype))
    tkc.store(c, (0, 8), (total + 2).to(c.dtype))


def matrix(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(n, n)) * scale).astype(np.float16)


def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float16)


def near(got: np.ndarray, want: np.ndarray) -> None:
    want = want.astype(np.float64)
    assert np.abs(got - want).max() <= 4e-3 * max(1, np.abs(want).max())


@TARGETS
@SIZES
@pytest.mark.parametrize("stages", [None, 1, 2])
@pytest.mark.parametrize("kernel", [in_place, by_pointers], ids=lambda k: k.__name__)
def test_a_loop_that_overwrites_its_operand(kernel, stages, n, target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    x, w = matrix(n), matrix(n, 1, n**-0.5)
    want = x
    for _ in range(STEPS):
        want = product(want, w)
    kernel[1](x, w, STEPS, n, **({"num_stages": stages} if stages else {}))
    near(x, want)


@TARGETS
@SIZES
@pytest.mark.parametrize("roles", [None, "one"])
@pytest.mark.parametrize("how", ["one argument twice", "views", "apart"])
def test_arguments_that_share_memory(how, roles, n, target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    x, w = np.zeros((STEPS + 1, n, n), np.float16), matrix(n, 1, n**-0.5)
    x[0] = matrix(n)
    y = {"one argument twice": x, "views": x[:, :, :], "apart": np.zeros_like(x)}[how]
    shifted[1](x, y, w, STEPS, n, **({"roles": roles} if roles else {}))
    want = x[0]
    for i in range(STEPS):
        want = product(want if how != "apart" else x[i], w)
        near(y[i + 1], want)


@SIZES
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("column", [0, 8, 64])
def test_an_epilogue_that_writes_what_it_reads(column, warps, n, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    a, b, c = (np.random.default_rng(s).integers(-2, 3, (n, n)) for s in range(3))
    c = np.concatenate([c, c], 1).astype(np.float16)
    want = c.copy()
    want[:, column : column + n] = a @ b + c[:, :n]
    epilogue[1](a.astype(np.float16), b.astype(np.float16), c, c, n, column, n, num_warps=warps)
    np.testing.assert_array_equal(c, want)


@SIZES
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("twice", [False, True])
def test_results_that_overlap(twice, warps, n, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    a, b = (np.random.default_rng(s).integers(-2, 3, (n, n)) for s in range(2))
    c = np.zeros((n, n + 64), np.float16)
    d = c if twice else np.zeros_like(c)
    want, other = np.zeros_like(c), np.zeros_like(c)
    want[:, :n] = a @ b
    (want if twice else other)[:, 16 : n + 16] = a @ b + 1
    want[:, 8 : n + 8] = a @ b + 2
    several[1](a.astype(np.float16), b.astype(np.float16), c, d, n, n, num_warps=warps)
    np.testing.assert_array_equal(c, want)
    np.testing.assert_array_equal(d, want if twice else other)


@tkc.jit
def stored_and_read(x, y, out, N: tkc.constexpr):
    tkc.store(x, (0, 0), tkc.load(x, (0, 0), (N, N)) + 1)
    v = tkc.load(y, (0, 0), (N, N)).T
    tkc.store(out, (0, 0), tkc.dot(v, v))


@TARGETS
@SIZES
@pytest.mark.parametrize("how", ["one argument twice", "views", "apart"])
def test_a_barrier_between_a_store_and_a_load_of_the_same_memory(how, n, target):
    """Of other threads' elements; it is in no schedule of the simulator that one is missed."""
    x = np.zeros((n + 1, n), np.float32)
    y = {"one argument twice": x[:n], "views": x[1:], "apart": np.zeros_like(x[1:])}[how]
    compiled = stored_and_read.compile(x[:n], y, np.zeros((n, n), np.float32), n, target=target)
    lines = compiled.ir("final").splitlines()
    stored = next(i for i, line in enumerate(lines) if "tile.store %x" in line)
    reads = ("tile.cp_async", "tile.tma_load", "tile.load %y")
    read = next(i for i, line in enumerate(lines) if i > stored and any(r in line for r in reads))
    barriers = sum("tile.block_barrier" in line for line in lines[stored:read])
    assert (barriers > 0) is (how != "apart")


@TARGETS
@SIZES
def test_atomic_updates_of_an_operand(n, target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    x, w = matrix(n).astype(np.float32), matrix(n, 1, 0.5 * n**-0.5)
    want = x.astype(np.float64)
    for _ in range(STEPS):
        want = want + want.astype(np.float16).astype(np.float64) @ w.astype(np.float64)
    by_atomics[1](x, w, STEPS, n)
    near(x, want)


@TARGETS
@SIZES
def test_a_loop_reads_what_the_one_before_wrote(n, target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    x, w = np.zeros((STEPS, n, n), np.float16), matrix(n, 1, n**-0.5)
    out = np.zeros((n, n), np.float32)
    later[1](x, w, out, STEPS, n)
    steps = [(w.astype(np.float32) * (i + 1)).astype(np.float16) for i in range(STEPS)]
    near(out, sum(s.astype(np.float64) @ w.astype(np.float64) for s in steps))
