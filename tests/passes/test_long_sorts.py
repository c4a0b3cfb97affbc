"""Rows that no warp sorts are sorted in runs, which are merged: NaN last both ways, any length."""

import numpy as np
import pytest

import tkc
from tkc.ir.target import target
from tkc.runtime.simulate import level4_of
from tkc.sim import level4


@tkc.jit
def ordered(x, y, N: tkc.constexpr, DOWN: tkc.constexpr):
    i = tkc.program_id(0)
    row = tkc.load(x, (i, 0), (None, N))
    tkc.store(y, (i, 0), tkc.sort(row, descending=DOWN)[None, :])


def wanted(row: np.ndarray, down: bool) -> np.ndarray:
    missing = np.isnan(row.astype(float))
    kept = np.sort(row[~missing])
    return np.concatenate([kept[::-1] if down else kept, row[missing]])


@pytest.mark.parametrize(
    ("length", "dtype", "down"),
    [
        (8192, np.float32, False),
        (6000, np.float32, True),
        (5000, np.int32, True),
        (4097, np.uint32, False),
        (2100, np.int64, True),
    ],
    ids=str,
)
def test_long_rows(length, dtype, down):
    x = np.random.default_rng(length).integers(0, 3000, (1, length)).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        x[0, [3, 9, 700]] = np.nan, np.inf, -np.inf
    y = np.zeros_like(x)
    values, given = ordered.bound(x, y, length, down)
    module = level4_of(ordered, ordered._describe(values), tuple(given.items()), target("sm_90a"))
    level4.run(module, [x, y], (1, 1, 1), 1)
    np.testing.assert_array_equal(y[0], wanted(x[0], down))


def test_registers_hold_the_runs():
    compiled = ordered.compile("f32[64, 8192]", "f32[64, 8192]", 8192, False, target="sm_90a")
    assert compiled.resources.spill_stores == 0
    assert any("sorts of long rows by merged runs: 1" in d for d in compiled.decisions)
