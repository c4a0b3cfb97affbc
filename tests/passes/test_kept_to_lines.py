"""Rows whose elements change places in every step: each warp has rows of its own, where there are
enough of them for all.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import context, f2, same, through
from tests.passes.stages import assembler, assembles_clean, count, run
from tkc.codegen.ptx.emit import emit
from tkc.ir import shared
from tkc.ir.layout import movement
from tkc.ir.values import layout_of, operations_in
from tkc.passes.pipeline import PIPELINE
from tkc.passes.plan import kernel_of
from tkc.passes.planning.meetings import Lines
from tkc.sim import ptx

LEVELS = 3
SAID = "warps keep to lines"


def shuffled(x, factors, out, ROWS: tkc.constexpr, N: tkc.constexpr):
    """Sums and scaled differences of both halves of a row, side by side; and so on (Stockham)."""
    row = tkc.program_id(0) * ROWS
    v = tkc.load(x, (row, 0), (ROWS, N))
    for level in range(LEVELS):
        factor = tkc.load(factors, (level, 0), (None, N // 2))[None, :]
        a, b = tkc.split(v.reshape((ROWS, 2, N // 2)).permute(0, 2, 1))
        v = tkc.join(a + b, (a - b) * factor).reshape((ROWS, N))
    tkc.store(out, (row, 0), v)


def expected(x: np.ndarray, factors: np.ndarray) -> np.ndarray:
    v = x.astype(np.float64)
    for level in range(LEVELS):
        a, b = np.split(v, 2, axis=1)
        v = np.stack((a + b, (a - b) * factors[level]), 2).reshape(v.shape)
    return v


def stages(rows: int, n: int, warps: int, name: str = "sm_90a"):
    f32 = array(tkc.float32, 2, shape=(None, n), strides=(n, 1), align=16)
    made, found = traced(shuffled, f32, f2, f32, ROWS=rows, N=n), {}
    given = context(name, num_warps=warps)
    through(made, PIPELINE[-1], given, lambda stage, m: found.update({stage: m.clone()}))
    return made, found, given


def meetings(module) -> int:
    moved = operations_in(kernel_of(module), shared.Convert)
    return sum(movement(layout_of(op.arg), layout_of(op.result)) == "warps" for op in moved)


@pytest.mark.parametrize(
    "rows, n, warps, keeps",
    [(4, 512, 4, True), (8, 256, 4, True), (8, 512, 8, True), (2, 1024, 4, False)],
)
def test_each_warp_has_rows_of_its_own(rows, n, warps, keeps):
    made, found, given = stages(rows, n, warps)
    assert any(SAID in said for said in given.decisions) == keeps
    assert (meetings(found["select-layouts"]) == 0) == keeps
    r = np.random.default_rng(n)
    x, factors = (
        r.standard_normal(s).astype(np.float32) for s in ((2 * rows, n), (LEVELS, n // 2))
    )
    want = expected(x, factors)
    for stage in ("select-layouts", PIPELINE[-1]):
        out = np.zeros_like(x)
        run(found[stage], [x, factors, out], (2, 1, 1))
        same([out], [want], 1e-6)
    _, _, out = ptx.run(emit(made, given.target), [x, factors, np.zeros_like(x)], (2, 1, 1))
    same([out], [want], 1e-6)


@pytest.mark.parametrize("warps", [1, 2, 8])
def test_what_is_said_of_lines_is_said_once(warps):
    """Of one warp nothing; the notes of the layouts that were not taken are gone."""
    _, found, given = stages(8, 512, warps)
    assert sum(SAID in said for said in given.decisions) == (warps > 1)
    notes = [said for said in given.decisions if "converted" in said]
    assert len(notes) >= count(found["select-layouts"], shared.Convert)
    assert not any("between warps" in said for said in notes)


@assembler
def test_it_assembles_clean():
    made, _, _ = stages(4, 512, 4)
    assembles_clean(made)


@pytest.mark.parametrize(
    "split, apart",
    [((4, 256, 2), 4), ((4, 2, 256), 4), ((2, 2, 512), 512), ((4, 1, 512), 2048), ((512, 4), 1)],
)
def test_rows_are_apart_whose_elements_are_taken_apart(split, apart):
    """Axes in front of those that a reshape splits or joins, and behind them, stay."""

    def kernel(x, out, SPLIT: tkc.constexpr):
        v = tkc.load(x, (0, 0), (4, 512)).reshape(SPLIT)
        tkc.store(out, (0, 0), (v * 2.0).reshape((4, 512)))

    made = kernel_of(traced(kernel, f2, f2, SPLIT=split))
    (load,) = (op for op in made.walk() if op.name == "tile.load")
    assert Lines(made).apart(load.results[0]) == apart
