"""Results of dots that are stored to rows or columns by number: each part by its own numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler, assembles_clean
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

STEP = 32


def scatter(table, a, b, c, K, BM: tkc.constexpr, BN: tkc.constexpr, COLUMNS: tkc.constexpr):
    """Rows or columns of a product to places that a table has; those at -1 are left out."""
    m = tkc.program_id(0) * BM
    acc = tkc.zeros((BM, BN))
    for k in range(0, K, STEP):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, STEP)), tkc.load(b, (k, 0), (STEP, BN)), acc)
    if COLUMNS:
        tkc.store(c, (m, tkc.load(table, 0, BN)), acc.to(c.dtype))
    elif tkc.program_id(0) == 2:
        tkc.store(c, (tkc.load(table, m, BM), 0), tkc.full((BM, BN), 1, c.dtype))
    else:
        tkc.store(c, (tkc.load(table, m, BM), 0), acc.to(c.dtype))


def compiled(rows: int, columns: int, warps: int | None, by_column: bool, name: str):
    fact = ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16)
    table = ArrayArgument(tkc.int32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    arrays = [ArrayArgument(tkc.float16, fact)] * 3
    constants = {"BM": rows, "BN": columns, "COLUMNS": by_column}
    module = traced(scatter, table, *arrays, i32(), **constants)
    options = {} if warps is None else {"num_warps": warps}
    given = context(name, **options)
    plain = module.clone()
    through(module, PIPELINE[-1], given)
    return plain, module, given


def data(rows: int, columns: int, by_column: bool):
    rng, m, k = np.random.default_rng(rows + columns), 3 * rows, 3 * STEP
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((m, k), (k, columns)))
    order = rng.permutation(columns if by_column else m).astype(np.int32)
    order[::7] = -1
    return [order, a, b, np.zeros((m, columns), np.float16), k]


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize(
    "rows, columns, warps",
    [(64, 128, 4), (64, 32, None), (128, 128, 4), (128, 64, 8), (256, 64, 8), (256, 128, None)],
)
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_each_part_has_its_own_numbers(name, rows, columns, warps, by_column):
    plain, module, _ = compiled(rows, columns, warps, by_column, name)
    want, got = (data(rows, columns, by_column) for _ in range(2))
    level0.run(plain, want, (3, 1, 1))
    level4.run(module, got, (3, 1, 1), 1)
    np.testing.assert_array_equal(got[3], want[3])


@pytest.mark.parametrize("by_column", [False, True])
@assembler
def test_rows_go_through_shared_memory(by_column):
    """Sixteen bytes at once, though a branch stores to the same array by itself."""
    plain, module, given = compiled(128, 128, 8, by_column, "sm_90a")
    assert any("threads store by rows" in d for d in given.decisions) != by_column
    assembles_clean(module)
    want, got = (data(128, 128, by_column) for _ in range(2))
    level0.run(plain, want, (3, 1, 1))
    machine.run(module, got, (3, 1, 1))
    np.testing.assert_array_equal(got[3], want[3])
