"""A program of one warp, all of which waits for the blocks of each iteration of its loop, has them
in a ring that it fills for itself, several iterations ahead.
"""

from functools import cache

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.stages import LAST, assembler, compiled, distinct, level
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir import shared
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact
from tkc.ir.values import operations_in
from tkc.language.signature import ArrayArgument
from tkc.sim import dataflow, level0, level4

# any number of rows of whole 16 columns
f2 = ArrayArgument(tkc.float32, ArrayFacts((Fact(), Fact(16)), (Fact(16), Fact(exact=1)), 16))
BLOCK = 128  # columns of a program: 16 bytes a lane


def recurrence(a, b, y, BLOCK: tkc.constexpr):
    """y[i] = a[i] y[i − 1] + b[i], of columns side by side."""
    m, y0 = tkc.program_id(0) * BLOCK, tkc.zeros((1, BLOCK))
    for i in tkc.range(0, a.shape[0]):
        y0 = tkc.load(a, (i, m), (1, BLOCK)) * y0 + tkc.load(b, (i, m), (1, BLOCK))
        tkc.store(y, (i, m), y0)


def there_and_back(a, b, y, z, BLOCK: tkc.constexpr):
    """The same, and then z[i] = y[i] + a[i] z[i + 1], of what the first loop has written."""
    m, y0 = tkc.program_id(0) * BLOCK, tkc.zeros((1, BLOCK))
    for i in tkc.range(0, a.shape[0]):
        y0 = tkc.load(a, (i, m), (1, BLOCK)) * y0 + tkc.load(b, (i, m), (1, BLOCK))
        tkc.store(y, (i, m), y0)
    z0 = tkc.zeros((1, BLOCK))
    for i in tkc.range(0, a.shape[0]):
        j = a.shape[0] - 1 - i
        z0 = tkc.load(y, (j, m), (1, BLOCK)) + tkc.load(a, (j, m), (1, BLOCK)) * z0
        tkc.store(z, (j, m), z0)


@cache
def made(kernel=recurrence, **options) -> tuple:
    arrays = [f2] * (3 if kernel is recurrence else 4)
    return compiled(traced(kernel, *arrays, BLOCK=BLOCK), **options)


def check(module, run, steps: int, columns: int, back: bool = False) -> None:
    rng = np.random.default_rng(steps)
    a, b = (rng.integers(-1, 2, (steps, columns)).astype(np.float32) for _ in range(2))
    y, want = np.full((steps, columns), np.nan, np.float32), np.zeros((steps, columns), np.float32)
    for i in range(steps):
        want[i] = a[i] * (want[i - 1] if i else 0) + b[i]
    arrays, grid = [a, b, y], (-(-columns // BLOCK), 1, 1)
    if not back:
        run(module, arrays, grid)
        np.testing.assert_array_equal(y, want)
        return
    run(module, [*arrays, z := np.full_like(y, np.nan)], grid)
    for i in reversed(range(steps)):
        want[i] += a[i] * (want[i + 1] if i + 1 < steps else 0)
    np.testing.assert_array_equal(z, want)


def test_a_warp_alone_reads_through_a_ring():
    """Of three stages or four: as many as all blocks that registers hold have room for."""
    stages, given = made()
    assert given.plan.warps == 1 and given.plan.stages in (3, 4) and given.plan.blocks > 16
    assert {load.path for load in given.plan.loads} == {"own"}
    rings = operations_in(stages["pipeline-async-copies"], shared.CopyAsync)
    assert rings and any("which each thread fills for itself" in d for d in given.decisions)


@pytest.mark.parametrize("options", [{"num_warps": 2}, {"num_stages": 1}], ids=str)
def test_others_read_one_iteration_ahead_into_registers(options):
    given = made(**options)[1]
    assert given.plan.prefetch and "own" not in {load.path for load in given.plan.loads}


@pytest.mark.parametrize("kernel", [recurrence, there_and_back])
@pytest.mark.parametrize(("steps", "columns"), [(1, 128), (2, 272), (7, 256)])
def test_each_level_computes_the_same(kernel, steps, columns):
    """Also what a thread of the second loop copies that it has written in the first one."""
    (stages, given), back = made(kernel), kernel is there_and_back
    assert "own" in {load.path for load in given.plan.loads}
    for module in distinct(stages):
        run = {0: level0.run, 4: None}.get(level(module), dataflow.run)
        if run is not None:
            check(module, run, steps, columns, back)
    threads = lambda m, data, grid: level4.run(m, data, grid, steps)  # noqa: E731
    check(stages[LAST], threads, steps, columns, back)
    check(stages[LAST], machine.run, steps, columns, back)


@assembler
@pytest.mark.parametrize("kernel", [recurrence, there_and_back])
def test_it_assembles_clean(kernel):
    program = emit(made(kernel)[0][LAST], target("sm_90a"))
    assert ptxas.assemble(program.text, "sm_90a").clean
