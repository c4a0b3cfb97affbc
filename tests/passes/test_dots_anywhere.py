"""Programs whose dots stand outside of loops, in several loops, or in loops in loops: with warp
roles, and the same at every level and as PTX.

All numbers are small integers, so that sums are exact and every result has one right value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    compiled,
    count,
    exchanges_within_warps,
    parses_back,
    survivors,
    without_threads,
)
from tkc.ir import threads
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

BM, BN, BK = 128, 64, 32


def chained(x, w, v, y, INNER: tkc.constexpr):
    """Two products: the one in the middle stays in registers."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    h = tkc.zeros((BM, INNER))
    for k in range(0, x.shape[1], BK):
        h = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(w, (k, 0), (BK, INNER)), h)
    h = tkc.maximum(h, 0).to(x.dtype)
    tkc.store(y, (m, n), tkc.dot(h, tkc.load(v, (0, n), (INNER, BN))).to(y.dtype))


def adapted(x, w, v, u, y, RANK: tkc.constexpr):
    """A product and one of low rank that is added to it, by blocks of x that both read."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, small = tkc.zeros((BM, BN)), tkc.zeros((BM, RANK))
    for k in range(0, x.shape[1], BK):
        block = tkc.load(x, (m, k), (BM, BK))
        acc = tkc.dot(block, tkc.load(w, (k, n), (BK, BN)), acc)
        small = tkc.dot(block, tkc.load(v, (k, 0), (BK, RANK)), small)
    acc = tkc.dot(small.to(x.dtype), tkc.load(u, (0, n), (RANK, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def layers(x, w, v, y, INNER: tkc.constexpr):
    """The middle is computed a part of its columns at a time, by a loop in the loop."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for j in range(0, w.shape[1], INNER):
        h = tkc.zeros((BM, INNER))
        for k in range(0, x.shape[1], BK):
            h = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(w, (k, j), (BK, INNER)), h)
        h = tkc.maximum(h, 0).to(x.dtype)
        acc = tkc.dot(h, tkc.load(v, (j, n), (INNER, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def segments(a, b, c, d, y):
    """One sum that two loops add to."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    for k in range(0, c.shape[1], BK):
        acc = tkc.dot(tkc.load(c, (m, k), (BM, BK)), tkc.load(d, (k, n), (BK, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def nested(a, b, y):
    """One sum round two loops."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for s in range(a.shape[0]):
        for k in range(0, a.shape[2], BK):
            x = tkc.load(a, (s, m, k), (None, BM, BK))
            acc = tkc.dot(x, tkc.load(b, (s, k, n), (None, BK, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def kept(x, w, v, y):
    """A block from before the loop is read by dots in it and behind it."""
    m = tkc.program_id(0) * BM
    block = tkc.load(x, (m, 0), (BM, BN))
    acc = tkc.zeros((BM, BN))
    for k in range(0, w.shape[1], BN):
        s = tkc.dot(block, tkc.load(w, (0, k), (BN, BN)))
        acc = acc + tkc.maximum(s, 0)
    acc = tkc.dot(block, tkc.load(v, (0, 0), (BN, BN)), acc)
    tkc.store(y, (m, 0), acc.to(y.dtype))


def single(a, b, y):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.dot(tkc.load(a, (m, 0), (BM, BK)), tkc.load(b, (0, n), (BK, BN)))
    tkc.store(y, (m, n), acc.to(y.dtype))


def weighed(a, b, rows, y):
    """Dots in no loop, and small blocks that are loaded behind them."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    if m < a.shape[0]:
        x, z = tkc.load(a, (m, 0), (BM, BK)), tkc.load(b, (0, n), (BK, BN))
        acc = tkc.maximum(tkc.dot(x, z), tkc.dot(tkc.maximum(x, 0), z))
        acc = acc * tkc.load(rows, (m,), (BM,))[:, None]
        tkc.store(y, (m, n), acc.to(y.dtype))


def squares(a, b, x, y, N: tkc.constexpr):
    """Two dots in no loop, that share an operand."""
    m = tkc.program_id(0) * N
    rows = tkc.load(a, (m, 0), (N, N))
    for k, o in (b, x), (rows, y):
        other = k if k is rows else tkc.load(k, (m, 0), (N, N))
        tkc.store(o, (m, 0), tkc.dot(rows, other.T).to(o.dtype))


def in_a_row(a, b, y, COUNT: tkc.constexpr):
    """Dots outside of loops, each of what the one before gives: of their sums one lives at once."""
    m = tkc.program_id(0) * BM
    x = tkc.load(a, (m, 0), (BM, BN))
    for i in tkc.static_range(COUNT):
        product = tkc.dot(x, tkc.load(b, (i, 0, 0), (None, BN, BN)))
        x = tkc.minimum(tkc.maximum(product, -1), 1).to(a.dtype)
    tkc.store(y, (m, 0), x)


def chosen(a, b, y):
    """A dot in a condition."""
    m = tkc.program_id(0) * BM
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        if (k // BK + tkc.program_id(0)) % 3 < 2:
            acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(y, (m, 0), acc.to(y.dtype))


Arrays = list[np.ndarray]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


@dataclass(frozen=True)
class Case:
    """A kernel; the extents of its arrays, the last one its result, where m, n, k are those of a
    product; what it computes in NumPy, and its constants.
    """

    kernel: Callable
    extents: Callable[[int, int, int], list[tuple[int, ...]]]
    meaning: Callable[..., np.ndarray]
    constants: tuple = ()

    @property
    def arguments(self) -> list[ArrayArgument]:
        return [halves(len(shape)) for shape in self.extents(1, 1, 1)]

    def data(self, m: int, n: int, k: int) -> tuple[list, np.ndarray]:
        """Arguments at level 0, and the result that is expected."""
        rng = np.random.default_rng(m + n + k)
        shapes = self.extents(m, n, k)
        given = [aligned(rng.integers(-1, 2, shape).astype(np.float16)) for shape in shapes]
        given[-1][:] = 9
        expected = self.meaning(*(x.astype(np.float64) for x in given[:-1]))
        return given, expected


def aligned(x: np.ndarray) -> np.ndarray:
    """The same, with rows that start at multiples of 16 bytes."""
    *rows, columns = x.shape
    padded = np.zeros((*rows, -(-columns // 8) * 8), x.dtype)
    padded[..., :columns] = x
    return padded[..., :columns]


def halves(rank: int) -> ArrayArgument:
    strides = (*(Fact(8) for _ in range(rank - 1)), Fact(exact=1))
    return ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * rank, strides, 16))


CASES = {
    case.kernel.__name__ + "".join(f" {c}" for c in case.constants): case
    for case in [
        *(
            Case(
                chained,
                lambda m, n, k, inner=inner: [(m, k), (k, inner - 5), (inner - 5, n), (m, n)],
                lambda x, w, v: relu(x @ w) @ v,
                (inner,),
            )
            for inner in (32, 128)
        ),
        *(
            Case(
                adapted,
                lambda m, n, k, rank=rank: [(m, k), (k, n), (k, rank), (rank, n), (m, n)],
                lambda x, w, v, u: x @ w + (x @ v) @ u,
                (rank,),
            )
            for rank in (16, 64)
        ),
        Case(
            layers,
            lambda m, n, k: [(m, k), (k, 3 * 64 - 9), (3 * 64 - 9, n), (m, n)],
            lambda x, w, v: relu(x @ w) @ v,
            (64,),
        ),
        Case(
            segments,
            lambda m, n, k: [(m, k), (k, n), (m, k + 70), (k + 70, n), (m, n)],
            lambda a, b, c, d: a @ b + c @ d,
        ),
        Case(
            nested,
            lambda m, n, k: [(3, m, k), (3, k, n), (m, n)],
            lambda a, b: np.einsum("smk,skn->mn", a, b),
        ),
        Case(
            kept,
            lambda m, n, k: [(m, BN), (BN, k), (BN, BN), (m, BN)],
            lambda x, w, v: folded(relu(x @ w)) + x @ v,
        ),
        Case(single, lambda m, n, k: [(m, BK), (BK, n), (m, n)], lambda a, b: a @ b),
        Case(
            weighed,
            lambda m, n, k: [(m, BK), (BK, n), (m,), (m, n)],
            lambda a, b, rows: np.maximum(a @ b, relu(a) @ b) * rows[:, None],
        ),
        Case(
            in_a_row,
            lambda m, n, k: [(m, BN), (6, BN, BN), (m, BN)],
            lambda a, b: reduce(lambda x, w: np.clip(x @ w, -1, 1), b, a),
            (6,),
        ),
        Case(
            chosen,
            lambda m, n, k: [(m, k), (k, BN), (m, BN)],
            lambda a, b: some_steps(a, b),
        ),
    ]
}


def folded(x: np.ndarray) -> np.ndarray:
    """The sum of blocks of BN columns."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % BN)))
    return padded.reshape(x.shape[0], -1, BN).sum(1)


def some_steps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    program, step = np.arange(a.shape[0]) // BM, np.arange(a.shape[1]) // BK
    taken = (program[:, None] + step[None, :]) % 3 < 2
    return (a * taken) @ b


@cache
def lowered(name: str, **options):
    case = CASES[name]
    return compiled(traced(case.kernel, *case.arguments, *case.constants), **options)


def check(module, name: str, m: int, n: int, k: int, run=stages.run, **how) -> None:
    case = CASES[name]
    data, expected = case.data(m, n, k)
    grid = (-(-m // BM), -(-expected.shape[1] // BN), 1)
    run(module, data, grid, **how)
    np.testing.assert_array_equal(data[-1], expected.astype(np.float16))


NAMES = pytest.mark.parametrize("name", CASES)


@NAMES
def test_roles(name):
    modules, given = lowered(name)
    assert given.has_roles
    assert all(dot.instruction == "wgmma" for dot in given.plan.dots)
    assert count(modules[LAST], threads.DotAsync) >= len(given.plan.dots)
    parses_back(modules[LAST])


def test_small_loads_come_before_dots():
    _, given = lowered("weighed")
    assert "fetch-ahead: 1 small load before the dots" in given.decisions


def test_programs_without_loops_share_a_multiprocessor():
    """While one loads and stores, the other one computes."""
    arguments = [halves(2), halves(2), halves(2), halves(2)]
    _, given = compiled(traced(squares, *arguments, 64))
    assert any("2 blocks share a multiprocessor" in line for line in given.decisions)


def chained(a, b, c, d, N: tkc.constexpr):
    """Two dots in no loop, the second one of N columns."""
    m = tkc.program_id(0) * 64
    x = tkc.dot(tkc.load(a, (m, 0), (64, 64)), tkc.load(b, (0, 0), (64, 64)))
    y = tkc.dot(x.to(a.dtype), tkc.load(c, (0, 0), (64, N)))
    tkc.store(d, (m, 0), y.to(d.dtype))


@pytest.mark.parametrize("columns", [128, 256])
@assembler
def test_programs_whose_sums_need_all_registers_do_not(columns):
    """ptxas refuses a wgmma of more registers than a launch of two such blocks gives a thread."""
    modules, given = compiled(traced(chained, *[halves(2)] * 4, columns))
    paired = any("2 blocks share a multiprocessor" in line for line in given.decisions)
    assert paired == (columns == 128)
    assembles_clean(modules[LAST])


@NAMES
def test_every_level(name):
    modules, _ = lowered(name)
    for module in without_threads(modules):
        check(module, name, BM + 5, BN + 8, 3 * BK - 8)


@NAMES
@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (BM, BN, BK), (BM + 5, BN + 8, 136), (3 * BM - 7, 2 * BN, 200)], ids=str
)
def test_threads(name, shape):
    modules, _ = lowered(name)
    for resident in (1, 2):
        check(modules[LAST], name, *shape, seed=resident, resident=resident)


@NAMES
def test_text(name):
    modules, _ = lowered(name)
    for k in (3 * BK - 8, BK):
        check(modules[LAST], name, BM + 5, BN + 8, k, run=machine.run, resident=1)


@NAMES
@assembler
def test_assembles(name):
    modules, _ = lowered(name)
    assembles_clean(modules[LAST])


# Mutants that change nothing. The dot behind an inner loop runs beside the next one's, whose end it
# is over by: the waits behind that find it done.
UNDER_THE_NEXT_LOOP = {
    "deeper: dot_wait in consumer, 3",
    "earlier: mbarrier_arrive empty 2 in consumer",
    "earlier: mbarrier_arrive empty in consumer, 2",
    "later: mbarrier_wait full 2 in consumer",
}
# each of two consumers has the other's subtile
SWAPPED = {f"stage: stage unnamed{nth} in consumer" for nth in ("", " 2")}
# Each warp stores the rows that it wrote: a barrier orders lanes of one warp, which the simulator
# runs together, whether results lie beside each other or at one place.
WITHIN_WARPS = {"drop: block_barrier in consumer"}
BESIDE_WITHIN_WARPS = {
    *WITHIN_WARPS,
    "drop: block_barrier in consumer, 2",
    "alias: alloc unnamed 2",
}
EQUIVALENT = {
    "adapted 16": WITHIN_WARPS,
    "layers 64": UNDER_THE_NEXT_LOOP | WITHIN_WARPS,
    "nested": SWAPPED | BESIDE_WITHIN_WARPS,
}


@pytest.mark.parametrize("name", EQUIVALENT)
def test_results_are_exchanged_within_warps(name):
    modules, _ = lowered(name, num_stages=3)
    assert exchanges_within_warps(modules[LAST])


@pytest.mark.parametrize("name", EQUIVALENT)
def test_mutants(name):
    modules, _ = lowered(name, num_stages=3)
    every, missed = survivors(
        modules[LAST],
        *(
            lambda module, seed=seed, k=k: check(module, name, 4 * BM, BN, k * BK, seed=seed)
            for seed, k in enumerate((1, 4, 5, 7))
        ),
        # the dots that read a stage are the work of the whole warpgroup: the leader has waited
        known=lambda label: (
            label in EQUIVALENT[name] or "leader alone: mbarrier_arrive empty" in label
        ),
    )
    assert every > 40
    assert not missed
