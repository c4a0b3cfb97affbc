"""Registers that a number names: an element of a tile by bits of its place, loops that count places
written out.
"""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import (
    LAST,
    assembler,
    compiled,
    parses_back,
    run,
    without_threads,
)
from tkc.codegen.ptx.emit import emit
from tkc.ir import threads, tile
from tkc.ir.target import target
from tkc.ir.text import parse
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument, ScalarArgument
from tkc.passes.pipeline import PIPELINE

ROWS, COLUMNS = 8, 16


def column(x, out, n, START: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    """A column of a matrix; zeros where there is none of that number."""
    i, r = tkc.arange(START, START + COLUMNS), tkc.arange(0, ROWS)
    v = tkc.load(x.ptr + r[:, None] * COLUMNS + tkc.arange(0, COLUMNS)[None, :])
    tkc.store(out, (0,), tkc.sum(tkc.where((i == n)[None, :], v, 0), axis=1))


def matrix_of(dtype):
    return ArrayArgument(dtype, ArrayFacts((Fact(),), (Fact(exact=1),), 16))


def made_of(dtype=tkc.float32, start=0, rows=ROWS, columns=COLUMNS, warps=1):
    sizes = dict(START=start, ROWS=rows, COLUMNS=columns)
    made = traced(column, matrix_of(dtype), matrix_of(dtype), i32(), **sizes)
    through(made, PIPELINE[-1], context("sm_90a", num_warps=warps))
    return made


NAMES = {np.float32: tkc.float32, np.float16: tkc.float16, np.int32: tkc.int32, np.int8: tkc.int8}


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("start, n", [(0, 0), (0, 5), (0, 15), (0, 16), (0, -1), (3, 3), (3, 19)])
@pytest.mark.parametrize(
    "rows, columns, warps",
    [(8, 16, 1), (32, 16, 1), (64, 8, 2), (1, 256, 1), (2, 24, 1), (1, 96, 1)],
)
def test_an_element_of_a_row_is_picked(dtype, start, n, rows, columns, warps):
    x = np.random.default_rng(n + 9).integers(-99, 99, (rows, columns)).astype(dtype)
    out = np.full(rows, 7, dtype)
    machine.run(made_of(NAMES[dtype], start, rows, columns, warps), [x, out, n], (1, 1, 1))
    inside = 0 <= n - start < columns
    np.testing.assert_array_equal(out, x[:, n - start] if inside else np.zeros(rows))


@pytest.mark.parametrize("n, there", [(5, True), (2**32 + 5, False), (-(2**40), False)])
def test_a_number_of_64_bits_is_compared_whole(n, there):
    made = traced(
        column,
        matrix_of(tkc.float32),
        matrix_of(tkc.float32),
        ScalarArgument(tkc.int64),
        START=0,
        ROWS=8,
        COLUMNS=16,
    )
    through(made, PIPELINE[-1], context("sm_90a", num_warps=1))
    x, out = np.arange(128, dtype=np.float32).reshape(8, 16), np.full(8, 7, np.float32)
    machine.run(made, [x, out, n], (1, 1, 1))
    np.testing.assert_array_equal(out, x[:, n] if there else np.zeros(8))


@pytest.mark.parametrize("rows, columns", [(32, 16), (1, 32), (8, 16), (64, 1)])
def test_zeros_beside_it_are_added(rows, columns):
    """-0 and zeros are 0, not -0; what is not finite elsewhere does not count."""
    x = np.full((rows, columns), np.nan, np.float32)
    x[::2] = np.inf
    x[:, columns // 2] = -0.0
    out = np.full(rows, 7, np.float32)
    machine.run(made_of(rows=rows, columns=columns), [x, out, columns // 2], (1, 1, 1))
    assert (out == 0).all()
    assert np.signbit(out).all() == (columns == 1)


@pytest.mark.parametrize("n, is_one", [(5, True), (200, False)])
def test_places_of_few_bits_may_be_several(n, is_one):
    """Numbers 0 to 511 as bytes: each of them is a column of two."""

    def columns(x, out, n):
        i = tkc.arange(0, 512).to(tkc.int8 if is_one else tkc.uint8).to(tkc.int32)
        v = tkc.load(x, (0,), (512,))
        tkc.store(out.ptr, tkc.sum(tkc.where(i == n, v, 0.0), axis=0))

    row = ArrayArgument(tkc.float32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    made = traced(columns, row, row, i32())
    through(made, PIPELINE[-1], context("sm_90a", num_warps=1))
    assert not any(isinstance(op, threads.Take) for op in made.walk())
    x, out = np.arange(512, dtype=np.float32), np.zeros(1, np.float32)
    machine.run(made, [x, out, n], (1, 1, 1))
    assert out == x[n] + x[n + 256]


def test_a_register_is_chosen_by_bits_of_its_number():
    """Of four columns of a row in a lane's registers by two bits: three choices, and one for a
    number that names no column.
    """
    made = made_of(rows=32, columns=32)
    assert [type(op) for op in made.walk() if isinstance(op, (tile.Reduce, threads.Take))] == [
        threads.Take
    ]
    parses_back(made)
    text = emit(made, target("sm_90a")).text
    names = ("selp.f32", "setp.ne.b32", "shfl.sync.idx", "add.f32")
    assert [text.count(name) for name in names] == [8 * (3 + 1), 2, 8, 8]


def factor(a, y, N: tkc.constexpr):
    """The Cholesky factor of a matrix, column by column."""
    i = tkc.arange(0, N)
    left = tkc.load(a, (0, 0), (N, N))
    out = tkc.zeros((N, N), tkc.float32)
    for j in tkc.range(N):
        column = tkc.sum(tkc.where((i == j)[None, :], left, 0.0), axis=1)
        pivot = tkc.sum(tkc.where(i == j, column, 0.0), axis=0)
        column = tkc.where(i >= j, column * tkc.rsqrt(pivot), 0.0)
        out = tkc.where((i == j)[None, :], column[:, None], out)
        left = left - column[:, None] * column[None, :]
    tkc.store(y, (0, 0), out)


def inverse(a, y, N: tkc.constexpr):
    """The inverse of a matrix by Gauss and Jordan, in place."""
    i = tkc.arange(0, N)
    m = tkc.load(a, (0, 0), (N, N))
    for j in tkc.range(N):
        row = tkc.sum(tkc.where((i == j)[:, None], m, 0.0), axis=0)
        column = tkc.sum(tkc.where((i == j)[None, :], m, 0.0), axis=1)
        pivot = tkc.sum(tkc.where(i == j, row, 0.0), axis=0)
        row = tkc.where(i == j, 1.0, row) / pivot
        m = tkc.where((i == j)[None, :], 0.0, m)
        m = tkc.where((i == j)[:, None], row[None, :], m - column[:, None] * row[None, :])
    tkc.store(y, (0, 0), m)


def first_columns(a, y, N: tkc.constexpr):
    """Sums of the columns before each, of seven of them, the last first."""
    i = tkc.arange(0, N)
    left = tkc.load(a, (0, 0), (N, N))
    out = tkc.zeros((N, N), tkc.float32)
    for j in tkc.range(7):
        column = tkc.sum(tkc.where((i == 6 - j)[None, :], left, 0.0), axis=1)
        out = tkc.where((i >= 6 - j)[None, :], out + column[:, None], out)
    tkc.store(y, (0, 0), out)


def expected(kernel, a: np.ndarray) -> np.ndarray:
    match kernel.__name__:
        case "factor":
            return np.linalg.cholesky(a)
        case "inverse":
            return np.linalg.inv(a)
    whole = np.zeros_like(a)
    for j in range(7):
        whole[:, 6 - j :] += a[:, 6 - j : 7 - j]
    return whole


def stages_of(kernel, n: int, warps: int):
    matrix = ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))
    return compiled(traced(kernel, matrix, matrix, N=n), num_warps=warps)


@pytest.mark.parametrize("kernel", (factor, inverse, first_columns))
@pytest.mark.parametrize("n, warps", [(8, 1), (16, 1), (32, 1), (16, 4), (32, 2)])
def test_loops_that_count_places_are_right(kernel, n, warps):
    modules, _ = stages_of(kernel, n, warps)
    a = np.random.default_rng(n).normal(0, 0.3, (n, n))
    a = (a @ a.T + 2 * np.eye(n)).astype(np.float32)
    want = expected(kernel, a)
    for module in [*without_threads(modules), modules[LAST]]:
        y = np.zeros_like(a)
        run(module, [a, y], (1, 1, 1))
        np.testing.assert_allclose(y, want, atol=2e-5)
    y = np.zeros_like(a)
    machine.run(modules[LAST], [a, y], (1, 1, 1))
    np.testing.assert_allclose(y, want, atol=2e-5)


@assembler
@pytest.mark.parametrize("kernel, n", [(factor, 16), (factor, 32), (inverse, 16)])
def test_loops_that_count_places_are_written_out(kernel, n):
    """Which register an iteration takes or changes is known. Where ptxas spills because it is told
    how many blocks share a multiprocessor, it is not told.
    """
    a = np.zeros((n, n), np.float32)
    made = tkc.jit(kernel).compile(a, a, N=n, num_warps=1, target="sm_90a")
    assert any(f"{n} iterations are written out" in line for line in made.decisions)
    assert not any(isinstance(op, scf.ForOp) for op in parse(made.ir("final")).walk())
    assert made.resources.clean, made.resources.log


def counted(x, out, n, STEPS: tkc.constexpr, N: tkc.constexpr):
    """A column and another, again and again, STEPS times or n times."""
    i, r = tkc.arange(0, N), tkc.arange(0, 32)
    v = tkc.load(x.ptr + r[:, None] * N + i[None, :])
    for j in tkc.range(STEPS if STEPS else n):
        column = tkc.sum(tkc.where((i == j)[None, :], v, 0.0), axis=1)
        v = v + column[:, None]
    tkc.store(out.ptr + r[:, None] * N + i[None, :], v)


@pytest.mark.parametrize("steps, written_out", [(0, False), (1, False), (16, True), (100, False)])
def test_loops_of_many_iterations_stay_loops(steps, written_out):
    """And those of an unknown number."""
    made = traced(counted, *[matrix_of(tkc.float32)] * 2, i32(), STEPS=steps, N=16)
    given = through(made, PIPELINE[-1], context("sm_90a", num_warps=1))
    assert any("written out" in line for line in given.decisions) == written_out
    x, out = np.random.default_rng(0).integers(-9, 9, (2, 32, 16)).astype(np.float32)
    machine.run(made, [x, out, 20], (1, 1, 1))
    v = x.copy()
    for j in range(steps or 20):
        v = v + (v[:, j : j + 1] if j < 16 else 0)
    np.testing.assert_array_equal(out, v)


def copied_product(a, b, c):
    """A product whose steps are known, of copies of a producer, whose loop only copies."""
    acc = tkc.zeros((128, 128), tkc.float32)
    for k in tkc.range(0, 256, 64):
        x = tkc.load(a, (0, k), (128, 64))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (64, 128)), acc)
    tkc.store(c, (0, 0), acc)


def test_loops_that_name_no_registers_stay_loops():
    matrix = ArrayArgument(tkc.bfloat16, ArrayFacts((Fact(8),) * 2, (Fact(8), Fact(exact=1)), 16))
    modules, given = compiled(traced(copied_product, matrix, matrix, matrix))
    assert any("producer" in line for line in given.decisions)
    assert modules["index-registers"] is modules["insert-synchronization"]


def column_of_products(a, b, out, n, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """A column of a product, whose columns no bits number unless they are a power of two."""
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    tkc.store(out, (0,), tkc.sum(tkc.where((tkc.arange(N) == n)[None, :], x, 0), axis=1))


@pytest.mark.parametrize("name, columns", [("sm_90a", 96), ("sm_90a", 64), ("sm_80", 24)])
@pytest.mark.parametrize("n", [0, 13, 23])
def test_a_column_of_a_product_is_picked(name, columns, n):
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 16), (16, columns)))
    matrix = ArrayArgument(
        tkc.float16, ArrayFacts((Fact(8), Fact(8)), (Fact(8), Fact(exact=1)), 16)
    )
    sizes = dict(M=64, N=columns, K=16)
    made = traced(column_of_products, matrix, matrix, matrix_of(tkc.float32), i32(), **sizes)
    through(made, PIPELINE[-1], context(name, num_warps=4))
    machine.run(made, [a, b, out := np.zeros(64, np.float32), n], (1, 1, 1))
    np.testing.assert_array_equal(out, (a.astype(np.float32) @ b.astype(np.float32))[:, n])
