"""Stores of 32 bits that would meet banks twice: some lanes make them in another order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembles_clean
from tkc.ir import shared
from tkc.ir.fragments import wgmma_accumulator
from tkc.ir.shared_layout import SharedLayout, conflicts_of, exchange_of, exchanged
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4

D, ROWS = 64, 128


def parts(a, b, sums):
    """Each program adds its part of a sum to memory, by rows of the accumulator."""
    k, acc = tkc.program_id(0) * 64, tkc.zeros((ROWS, D))
    for i in tkc.range(0, a.shape[0], ROWS):
        left = tkc.load(a, (i, k), (ROWS, 64))
        tkc.atomic_add(sums, (i, 0), tkc.dot(left, tkc.load(b, (k, 0), (64, D)), acc))


def matrix(dtype, columns: int) -> ArrayArgument:
    facts = ArrayFacts((Fact(16), Fact(exact=columns)), (Fact(columns), Fact(exact=1)), 16)
    return ArrayArgument(dtype, facts)


@pytest.fixture(scope="module")
def lowered():
    arguments = matrix(tkc.bfloat16, 128), matrix(tkc.bfloat16, D), matrix(tkc.float32, D)
    module = traced(parts, *arguments)
    through(module, PIPELINE[-1], context("sm_90a"))
    return module


def test_no_store_meets_a_bank_twice(lowered):
    writes = [op for op in lowered.walk() if isinstance(op, shared.Write)]
    assert writes and {op.conflicts.value.data for op in writes} == {1}
    assembles_clean(lowered)


@pytest.mark.parametrize("run", [level4.run, machine.run])
def test_values(lowered, run):
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(-2, 3, shape).astype(ml_dtypes.bfloat16) for shape in ((256, 128), (128, D))
    )
    sums = np.zeros((256, D), np.float32)
    run(lowered, [a, b, sums], (2, 1, 1))
    np.testing.assert_array_equal(sums, a.astype(np.float32) @ b.astype(np.float32))


def test_the_exchange():
    """Rows by turns take the second neighbour's columns."""
    layout, memory = wgmma_accumulator(64, 32), SharedLayout.widest((64, 32), 32, (1, 0))
    assert conflicts_of(layout, memory, 2) == 2
    lane, bit = exchange_of(layout, memory, 2)
    starts = layout.table()[:, :, ::2].swapaxes(1, 2)
    made = exchanged(starts, lane, bit)
    assert memory.conflicts(made, 8) == 1
    # every lane makes all of its own
    for mine, others in zip(starts[0].swapaxes(0, 1), made[0].swapaxes(0, 1), strict=True):
        assert {*map(tuple, mine)} == {*map(tuple, others)}
    assert exchange_of(layout, SharedLayout((64, 32), 32, 0, (1, 0), pad=32), 2) is None
