"""Halves of a tile, taken apart and joined again, stay in their warps: lanes swap registers, and
what is between them does not go through shared memory.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler, assembles_clean, count, run
from tkc.codegen.ptx.emit import emit
from tkc.ir import shared
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, ptx

ROWS = 8


def butterflies(x, out, N: tkc.constexpr, LEVELS: tkc.constexpr, ROWS: tkc.constexpr):
    """Sums and differences of neighbours at distances of 2^level, one level after the other."""
    row = tkc.program_id(0) * ROWS
    v = tkc.load(x, (row, 0), (ROWS, N)).to(tkc.float32)
    for level in LEVELS:
        near = 1 << level
        a, b = tkc.split(v.reshape((ROWS, N // (2 * near), 2, near)).permute(0, 1, 3, 2))
        v = tkc.join(a + b, a - b).permute(0, 1, 3, 2).reshape((ROWS, N))
    tkc.store(out, (row, 0), v.to(out.dtype))


def butterflied(x: np.ndarray, levels) -> np.ndarray:
    v = x.astype(np.float64)
    for level in levels:
        parts = v.reshape(v.shape[0], -1, 2, 1 << level)
        a, b = parts[:, :, 0], parts[:, :, 1]
        v = np.stack((a + b, a - b), 2).reshape(v.shape)
    return v


ORDERS = {"upward": (0, 1, 2, 3, 4), "downward": (4, 3, 2, 1, 0), "mixed": (3, 0, 4, 1, 3)}


def stages(n: int, dtype, levels, name: str = "sm_90a"):
    made = traced(butterflies, *[array(dtype, 2)] * 2, N=n, LEVELS=levels, ROWS=ROWS)
    found = {}
    through(made, PIPELINE[-1], context(name), lambda stage, m: found.update({stage: m.clone()}))
    return made, found


@pytest.mark.parametrize("levels", ORDERS.values(), ids=list(ORDERS))
@pytest.mark.parametrize("dtype", [tkc.float32, tkc.float16])
@pytest.mark.parametrize("n", [32, 96, 256, 512])
def test_right_at_every_level(n, dtype, levels):
    x = np.random.default_rng(n).integers(-3, 4, (2 * ROWS, n)).astype(np.dtype(dtype.name))
    want = butterflied(x, levels)
    made, found = stages(n, dtype, levels)
    for stage in ("fit-rows", "select-layouts", "swizzle-shared", PIPELINE[-1]):
        out = np.zeros_like(x)
        run(found[stage], [x, out], (2, 1, 1))
        np.testing.assert_array_equal(out, want, err_msg=stage)
    out = np.zeros_like(x)
    _, out = ptx.run(emit(made, context("sm_90a").target), [x, out], (2, 1, 1))
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("levels", ORDERS.values(), ids=list(ORDERS))
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_only_what_is_stored_goes_through_shared_memory(levels, name):
    """Once, so that it is stored in vectors."""
    _, found = stages(256, tkc.float32, levels, name)
    last = found[PIPELINE[-1]]
    assert count(last, shared.Write) <= 1 and count(last, shared.Convert) >= 2


@assembler
def test_it_assembles_clean():
    made, _ = stages(256, tkc.float16, ORDERS["upward"])
    assembles_clean(made)


def test_level_0_is_the_meaning():
    x = np.random.default_rng(0).integers(-3, 4, (ROWS, 64)).astype(np.float32)
    made = traced(butterflies, *[array(tkc.float32, 2)] * 2, N=64, LEVELS=(0, 2, 5), ROWS=ROWS)
    out = np.zeros_like(x)
    level0.run(made, [x, out], (1, 1, 1))
    np.testing.assert_array_equal(out, butterflied(x, (0, 2, 5)))
