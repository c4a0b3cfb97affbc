"""Right operands whose rows are no whole number of the narrowest swizzle: eight columns of 16 bits
are left over. No tensor map copies them, and matrix instructions read them all the same. All
numbers are small integers.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.stages import LAST, assembler, assembles_clean, compiled, without_threads
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

BM, BK = 64, 32
ROWS = ArrayArgument(tkc.float16, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), align=16))
WIDTHS = pytest.mark.parametrize("columns", [8, 24, 40])


def product(a, b, y, N: tkc.constexpr):
    m = tkc.program_id(0) * BM
    acc = tkc.zeros((BM, N))
    for k in range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, 8), (BK, N)), acc)
    tkc.store(y, (m, 0), acc.to(y.dtype))


@cache
def lowered(columns: int):
    return compiled(traced(product, ROWS, ROWS, ROWS, columns))


def check(module, columns: int, run=stages.run, **how) -> None:
    rng = np.random.default_rng(columns)
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((100, 104), (104, columns + 8)))
    y = np.full((100, columns), 9, np.float16)
    run(module, [a, b, y], (2, 1, 1), **how)
    np.testing.assert_array_equal(y, (a.astype(float) @ b[:, 8:].astype(float)).astype(y.dtype))


@WIDTHS
def test_consumers_load_them(columns):
    modules, given = lowered(columns)
    assert [load.path for load in given.plan.loads] == ["tma", "registers"]
    assert any("its rows are narrower than a swizzle" in line for line in given.decisions)
    for module in without_threads(modules):
        check(module, columns)
    for resident in (1, 2):
        check(modules[LAST], columns, seed=resident, resident=resident)


@WIDTHS
def test_text(columns):
    check(lowered(columns)[0][LAST], columns, run=machine.run, resident=1)


@WIDTHS
@assembler
def test_assembles(columns):
    assembles_clean(lowered(columns)[0][LAST])
