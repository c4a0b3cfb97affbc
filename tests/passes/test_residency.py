"""Rings of blocks of few warps whose loops run a few iterations."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.kernels import aligned
from tests.passes.stages import LAST, compiled, distinct, level
from tkc.ir.rewrite import loop_of
from tkc.ir.target import TARGETS, target
from tkc.ir.tile import Dot
from tkc.ir.values import operations_in
from tkc.passes.plan import kernel_of
from tkc.passes.planning.residency import (
    BLOCK_BYTES,
    MAX_FEW_TRIPS,
    resident_by_registers,
    runs_few_iterations,
    stages_within,
)
from tkc.sim import dataflow, level0, level4

BYTES = st.integers(512, 1 << 17)
BK, DIM = 64, 128


@tkc.jit
def scores(q, k, decay, a, K: tkc.constexpr, BK: tkc.constexpr):
    """Scores of 16 rows by 16, of operands that are computed in each of a few iterations."""
    row, column = tkc.program_id(0) * 16, tkc.program_id(1) * 16
    acc = tkc.zeros((16, 16))
    for at in tkc.range(0, K, BK):
        first = tkc.load(decay, (row, at), (None, BK))
        left = tkc.load(q, (row, at), (16, BK)).to(tkc.float32)
        left = left * tkc.exp2(tkc.load(decay, (row, at), (16, BK)) - first[None, :])
        right = tkc.load(k, (column, at), (16, BK)).T.to(tkc.float32)
        right = right * tkc.exp2(first[:, None] - tkc.load(decay, (column, at), (16, BK)).T)
        acc = tkc.dot(left, right, acc, precision="tf32")
    tkc.store(a, (row, column), acc)


def any_number(q, k, decay, a, BK: tkc.constexpr):
    """The same of operands as they are, of as many columns as there are."""
    acc = tkc.zeros((16, 16))
    for at in tkc.range(0, q.shape[1], BK):
        left = tkc.load(q, (0, at), (16, BK))
        acc = tkc.dot(left, tkc.load(k, (0, at), (16, BK)).T, acc)
    tkc.store(a, (0, 0), acc)


KINDS = ("bf16[4096, 128]", "bf16[4096, 128]", "f32[4096, 128]", "f32[4096, 4096]")
GIVEN = [*[aligned(tkc.bfloat16, 2)] * 2, *[aligned(tkc.float32, 2)] * 2]


# ---- how deep
@given(BYTES, BYTES, st.integers(1, 32), st.sampled_from(sorted(TARGETS)))
def test_a_ring_leaves_room_for_the_blocks_that_registers_hold(stage, others, resident, name):
    stages = stages_within(stage, others, resident, target(name))
    room = target(name).shared_bytes
    held = room // (stages * stage + others + BLOCK_BYTES)
    assert 1 <= stages <= 4
    assert stages == 1 or 3 * held >= 2 * resident
    assert stages <= 2 or held >= resident


@given(BYTES, st.integers(1, 31), st.sampled_from(sorted(TARGETS)))
def test_more_blocks_have_rings_no_deeper(stage, resident, name):
    few, many = (stages_within(stage, 0, n, target(name)) for n in (resident, resident + 1))
    assert many <= few


# ---- where loops run a few iterations
@pytest.mark.parametrize("trips", [1, MAX_FEW_TRIPS, MAX_FEW_TRIPS + 1])
def test_few_iterations_are_known(trips):
    kernel = kernel_of(traced(scores.fn, *GIVEN, K=trips * BK, BK=BK))
    (dot,) = operations_in(kernel, Dot)
    if trips > 1:  # a single iteration is no loop
        assert runs_few_iterations(kernel, {loop_of(dot)}) == (trips <= MAX_FEW_TRIPS)


def test_any_number_of_iterations_is_not_few():
    kernel = kernel_of(traced(any_number, *GIVEN, BK=BK))
    (dot,) = operations_in(kernel, Dot)
    assert not runs_few_iterations(kernel, {loop_of(dot)})
    assert not runs_few_iterations(kernel, {None})


def test_fewer_warps_hold_more_blocks():
    kernel = kernel_of(traced(scores.fn, *GIVEN, K=DIM, BK=BK))
    one, two = (resident_by_registers(kernel, warps, target("sm_90a")) for warps in (1, 2))
    assert one >= two >= 1


# ---- plans
def test_one_warp_reads_without_a_ring_where_it_would_keep_blocks_out():
    found = scores.compile(*KINDS, DIM, BK, target="sm_90a", num_warps=1)
    assert any("1 stage of" in line and "few iterations" in line for line in found.decisions)
    assert not any(line.startswith("pipeline-async-copies") for line in found.decisions)
    asked = scores.compile(*KINDS, DIM, BK, target="sm_90a", num_warps=1, num_stages=2)
    assert any(line.startswith("pipeline-async-copies") for line in asked.decisions)


def test_a_small_ring_stays():
    found = scores.compile(*KINDS, DIM, 32, target="sm_90a", num_warps=2)
    assert any("2 stages of" in line and "few iterations" in line for line in found.decisions)


def test_a_loop_of_any_length_keeps_its_ring():
    found = tkc.jit(any_number).compile(*KINDS, BK, target="sm_90a", num_warps=1)
    assert not any("few iterations" in line for line in found.decisions)
    assert "cp.async" in found.ptx


@pytest.mark.parametrize("warps", [1, 2])
def test_each_level_computes_the_same(warps):
    def data() -> list[np.ndarray]:
        rng = np.random.default_rng(warps)
        q, k = (rng.integers(-2, 3, (32, DIM)).astype(ml_dtypes.bfloat16) for _ in range(2))
        decay = rng.integers(-1, 2, (32, DIM)).astype(np.float32)
        return [q, k, decay, np.full((32, 32), np.nan, np.float32)]

    stages, _ = compiled(traced(scores.fn, *GIVEN, K=DIM, BK=BK), num_warps=warps)
    level0.run(traced(scores.fn, *GIVEN, K=DIM, BK=BK), want := data(), (2, 2))
    for module in distinct(stages):
        if level(module) in (1, 2, 3):
            dataflow.run(module, got := data(), (2, 2, 1))
            np.testing.assert_array_equal(got[3], want[3])
    for seed in range(2):
        level4.run(stages[LAST], got := data(), (2, 2, 1), seed)
        np.testing.assert_array_equal(got[3], want[3])
    machine.run(stages[LAST], got := data(), (2, 2, 1))
    np.testing.assert_array_equal(got[3], want[3])
