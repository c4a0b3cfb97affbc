"""Programs that read what they have written: no copy passes a store that may touch its bytes.

Each kernel runs compiled, with its threads, under the happens-before check, and gives what the
program in its order gives.
"""

import numpy as np
import pytest

import tkc
from tkc.errors import VerifyError
from tkc.passes import pipeline_async_copies
from tkc.passes.planning import rings
from tkc.passes.planning.roles import request

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
def epilogue(a, b, c, d, k, row, column, N: tkc.constexpr):
    """What is added to the product is read from c, and the result written to d, which may be c."""
    total = tkc.zeros((N, N))
    for i in range(0, k, 64):
        total = tkc.dot(tkc.load(a, (0, i), (N, 64)), tkc.load(b, (i, 0), (64, N)), total)
    total = total + tkc.load(c, (0, 0), (N, N)).to(tkc.float32)
    tkc.store(d, (row, column), total.to(d.dtype))


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
@pytest.mark.parametrize("roles", ["pingpong", "cooperative", "one"])
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("row, column", [(0, 0), (0, 8), (0, 64), (8, 0), (64, 16)])
def test_an_epilogue_that_writes_what_it_reads(row, column, views, roles, n, monkeypatch):
    """Of several warpgroups one waits where it stores to rows that another one reads."""
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    a, b = (np.random.default_rng(s).integers(-2, 3, (n, n)) for s in range(2))
    c = np.random.default_rng(2).integers(-2, 3, (2 * n, 2 * n)).astype(np.float16)
    d, want = c[:] if views else c, c.copy()
    want[row : row + n, column : column + n] = a @ b + c[:n, :n]
    given = a.astype(np.float16), b.astype(np.float16), c, d
    epilogue[1](*given, n, row, column, n, roles=roles, cluster=(1, 1))
    np.testing.assert_array_equal(c, want)


def test_warpgroups_wait_for_one_another_only_where_rows_meet():
    n, given = 128, ["f16[128, 128]"] * 4
    how = dict(target="sm_90a", roles="cooperative", cluster=(1, 1))
    text = epilogue.compile(*given, n, 0, 0, n, **how).ir("schedule-warpgroups")
    stores = [line for line in text.splitlines() if "tile.tma_store" in line]
    assert stores and all('each = "warpgroup"' in line for line in stores)


@SIZES
@pytest.mark.parametrize("roles", ["pingpong", "cooperative", "one"])
@pytest.mark.parametrize("twice", [False, True])
def test_results_that_overlap(twice, roles, n, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    a, b = (np.random.default_rng(s).integers(-2, 3, (n, n)) for s in range(2))
    c = np.zeros((n, n + 64), np.float16)
    d = c if twice else np.zeros_like(c)
    want, other = np.zeros_like(c), np.zeros_like(c)
    want[:, :n] = a @ b
    (want if twice else other)[:, 16 : n + 16] = a @ b + 1
    want[:, 8 : n + 8] = a @ b + 2
    given = a.astype(np.float16), b.astype(np.float16), c, d
    several[1](*given, n, n, roles=roles, cluster=(1, 1))
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


@tkc.jit
def rows(x, y, out, place, N: tkc.constexpr):
    """A row is scaled by its maximum into y, which may be x, and read again."""
    p = tkc.program_id(0)
    v = tkc.load(x[p], (0,), (N,))
    tkc.store(y[p], (place,), v / tkc.max(v))
    tkc.store(out[p], (0,), tkc.load(x[p], (0,), (N,)))


@tkc.jit
def rows_in_place(x, out, place, N: tkc.constexpr):
    p = tkc.program_id(0)
    v = tkc.load(x[p], (0,), (N,))
    tkc.store(x[p], (place,), v / tkc.max(v))
    tkc.store(out[p], (0,), tkc.load(x[p], (0,), (N,)))


def test_a_row_that_is_written_by_its_own_argument(monkeypatch):
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    x = np.random.default_rng(3).uniform(1, 2, (2, 65536)).astype(np.float32)
    out, want = np.zeros_like(x), x.copy()
    want[:, 16:] = (x / x.max(1, keepdims=True))[:, :-16]
    rows_in_place[2](x, out, 16, N=65536)
    near(out, want)


@pytest.mark.parametrize("columns", [8192, 65536])
@pytest.mark.parametrize("place, shared", [(0, True), (16, True), (16, False)])
def test_a_row_that_is_written_and_read_again(place, shared, columns, monkeypatch):
    """The blocks of a cluster may share it only where each reads what itself has written."""
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    x = np.random.default_rng(3).uniform(1, 2, (2, columns)).astype(np.float32)
    y, out, want = x if shared else np.zeros_like(x), np.zeros_like(x), x.copy()
    scaled = x / x.max(1, keepdims=True)
    if shared:
        want[:, place:] = scaled[:, : columns - place]
    rows[2](x, y, out, place, N=columns)
    near(out, want)


@tkc.jit
def read_again(a, b, c, out, k, row, N: tkc.constexpr):
    """A product is stored, and rows of it are read again by the program that stored it."""
    total = tkc.zeros((N, N))
    for i in range(0, k, 64):
        total = tkc.dot(tkc.load(a, (0, i), (N, 64)), tkc.load(b, (i, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))
    tkc.store(out, (0, 0), tkc.load(c, (row, 0), (N, N)))


@pytest.mark.parametrize("roles", ["pingpong", "cooperative", "one"])
@pytest.mark.parametrize("row", [0, 8, 64])
def test_a_result_that_is_read_again(row, roles, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    n = 128
    a, b = (np.random.default_rng(s).integers(-2, 3, (n, n)).astype(np.float16) for s in range(2))
    c, out = np.zeros((2 * n, n), np.float16), np.ones((n, n), np.float16)
    read_again[1](a, b, c, out, n, row, n, roles=roles, cluster=(1, 1))
    np.testing.assert_array_equal(c[:n], a @ b)
    np.testing.assert_array_equal(out, c[row : row + n])


@tkc.jit
def few(x, out, N: tkc.constexpr):
    """Several threads hold what one of them stores."""
    tkc.store(x, (0,), tkc.load(x, (0,), (N,)) + 1)
    tkc.store(out, (0,), tkc.load(x, (0,), (N,)) * 2)


@TARGETS
@pytest.mark.parametrize("n", [1, 4, 16, 512])
def test_a_tile_that_has_fewer_elements_than_there_are_threads(n, target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    x, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    few[1](x, out, n)
    np.testing.assert_array_equal(x, np.arange(n) + 1)
    np.testing.assert_array_equal(out, 2 * x)


@tkc.jit
def looked_up(places, y, out, steps):
    """What is loaded at a number that was looked up was stored in the same iteration."""
    for i in range(steps):
        at = tkc.load(places, (i,), (1,))
        tkc.store(y.ptr + at, tkc.full((1,), 10, tkc.int32) * i)
        tkc.store(out, (i,), tkc.load(y.ptr + at) + tkc.load(y.ptr + (at + 1) % 4))


@TARGETS
def test_a_load_at_a_number_that_was_fetched_ahead(target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    places = np.array([2, 0, 1, 0, 3, 2], np.int32)
    y, out, want = np.arange(4, dtype=np.int32), np.zeros(6, np.int32), []
    now = y.copy()
    for i, at in enumerate(places):
        now[at] = i * 10
        want.append(now[at] + now[(at + 1) % 4])
    looked_up[1](places, y, out, len(places))
    np.testing.assert_array_equal(out, want)


@tkc.jit
def partial_sums(a, b, out, k, N: tkc.constexpr):
    """The sum is stored before each dot adds to it."""
    total = tkc.zeros((N, N))
    for i in range(0, k, 64):
        tkc.store(out[i // 64], (0, 0), total)
        total = tkc.dot(tkc.load(a, (0, i), (N, 64)), tkc.load(b, (i, 0), (64, N)), total)
    tkc.store(out[k // 64], (0, 0), total)


@TARGETS
def test_sums_that_are_stored_on_their_way(target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    n, k = 64, 192
    r = np.random.default_rng(0)
    a, b = (r.integers(-2, 3, s).astype(np.float16) for s in ((n, k), (k, n)))
    out = np.zeros((k // 64 + 1, n, n), np.float32)
    partial_sums[1](a, b, out, k, n)
    for i in range(k // 64 + 1):
        np.testing.assert_array_equal(out[i], a[:, : 64 * i].astype(np.float32) @ b[: 64 * i])


@tkc.jit
def claimed(counter, a, b, out, k, N: tkc.constexpr):
    """Each program computes the product whose number it claims."""
    mine = tkc.atomic_add(counter.ptr, 1)
    total = tkc.zeros((N, N))
    for i in range(0, k, 64):
        total = tkc.dot(
            tkc.load(a, (mine.to(tkc.int32), 0, i), (None, N, 64)),
            tkc.load(b, (i, 0), (64, N)),
            total,
        )
    tkc.store(out[mine.to(tkc.int32)], (0, 0), total)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.float32])
def test_numbers_of_any_type_that_programs_claim(dtype, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    n, r = 128, np.random.default_rng(0)
    a, b = (r.integers(-2, 3, s).astype(np.float16) for s in ((3, n, n), (n, n)))
    out = np.zeros((3, n, n), np.float32)
    claimed[3](np.zeros(1, dtype), a, b, out, n, n)
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b)


@tkc.jit
def overwritten_on_the_way(x, few, out, N: tkc.constexpr):
    """Between a row's load and its sum some of it is overwritten, and read."""
    v = tkc.load(x, (0,), (N,))
    tkc.store(x, (N - 8,), tkc.full((8,), 100, tkc.float32))
    tkc.store(few, (0,), tkc.load(x, (N - 16,), (16,)))
    tkc.store(out, (0,), v - tkc.max(v))


@TARGETS
def test_a_long_row_that_is_overwritten_on_the_way(target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    n = 1 << 18
    x = np.random.default_rng(0).integers(0, 9, n).astype(np.float32)
    few, out, want = np.zeros(16, np.float32), np.zeros_like(x), x - x.max()
    overwritten_on_the_way[1](x, few, out, n)
    np.testing.assert_array_equal(out, want)
    assert (x[-8:] == 100).all() and (few[-8:] == 100).all() and (few[:8] == want[-16:-8] + 8).all()


@tkc.jit
def chased(table, a, b, out, steps, N: tkc.constexpr):
    """Each step stores which rows of `a` the next one multiplies."""
    acc = tkc.zeros((N, N))
    for k in tkc.range(0, steps):
        at = table[k]
        acc = tkc.dot(tkc.load(a, (at * N, 0), (N, N)), tkc.load(b, (k * N, 0), (N, N)), acc)
        tkc.store(table, (k + 1,), tkc.full((1,), 1, tkc.int32) * ((at + 3) % STEPS))
    tkc.store(out, (0, 0), acc)


@tkc.jit
def scaled_by_stored(scale, a, b, out, steps, N: tkc.constexpr):
    """Each step stores what the next one's product is multiplied with."""
    acc = tkc.zeros((N, N))
    for k in tkc.range(0, steps):
        by = tkc.load(scale, (k * N,), (N,))
        left, right = tkc.load(a, (k * N, 0), (N, N)), tkc.load(b, (k * N, 0), (N, N))
        acc = acc + tkc.dot(left, right) * by[None, :]
        tkc.store(scale, ((k + 1) * N,), by + 1)
    tkc.store(out, (0, 0), acc)


def operands_of_steps(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices of n rows a step and n columns."""
    found = (matrix(STEPS * n, seed)[:, :n] for seed in (1, 2))
    a, b = (np.ascontiguousarray(x) for x in found)
    return a, b


def run_chased(**options) -> tuple[np.ndarray, np.ndarray]:
    """What a launch gives and what it should."""
    n, table = 64, np.zeros(STEPS + 1, np.int32)
    (a, b), out = operands_of_steps(n), np.zeros((n, n), np.float32)
    chased[1](table, a, b, out, STEPS, N=n, **options)
    at, want = 0, np.zeros((n, n))
    for k in range(STEPS):
        want += product(a[at * n :][:n], b[k * n :][:n])
        at = (at + 3) % STEPS
    return out, want


def run_scaled() -> tuple[np.ndarray, np.ndarray]:
    """What a launch gives and what it should."""
    n = 64
    scale, out = np.ones((STEPS + 1) * n, np.float32), np.zeros((n, n), np.float32)
    a, b = operands_of_steps(n)
    scaled_by_stored[1](scale, a, b, out, STEPS, N=n)
    return out, sum((k + 1) * product(a[k * n :][:n], b[k * n :][:n]) for k in range(STEPS))


@TARGETS
@pytest.mark.parametrize("run", [run_chased, run_scaled])
def test_what_a_step_stores_for_the_next(run, target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    near(*run())


def test_numbers_looked_up_too_early_are_refused(monkeypatch):
    """Where nobody asks whether the loop changes the array that they are looked up in, the schedule
    is not legal.
    """
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    monkeypatch.setattr(pipeline_async_copies, "unchanged", lambda *given, **options: True)
    with pytest.raises(VerifyError, match="load is done before tile.store, and they may meet"):
        run_chased(roles="one", num_stages=3)


@pytest.mark.parametrize("in_order", [True, False])
def test_vectors_copied_too_early_are_seen(in_order, monkeypatch):
    """Where nobody asks whether the loop changes what stands beside a dot, the producer copies it,
    when its stores are over; where nobody orders these, either, it races.
    """
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    monkeypatch.setattr(rings, "unchanged", lambda *given, **options: True)
    if in_order:
        near(*run_scaled())
        return
    monkeypatch.setattr(request, "keep_in_order", lambda *given, **options: False)
    with pytest.raises(tkc.Error, match="race"):
        run_scaled()
