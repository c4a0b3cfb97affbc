"""match-heights: dots that are computed as their transposes so that all of a program have rows for
the same warpgroups.

All numbers are small integers, so that sums are exact and every result has one right value.
"""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

import tkc
from benchmarks.plain_gradients import gradients_added
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tests.passes.stages import parses_back
from tests.runtime.test_arrays_without_maps import failures
from tkc.ir import shared, threads, tile
from tkc.ir.target import TARGETS, Target
from tkc.ir.types import ArrayFacts, Fact
from tkc.ir.values import block_of, next_of, tile_type
from tkc.language.signature import ArrayArgument
from tkc.runtime import simulate
from tkc.sim.level4 import run

BM, BN, D = 64, 128, 128
HALVES = ArrayArgument(tkc.float16, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), 16))
SUMS = ArrayArgument(tkc.float32, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), 16))


def gradients(q, k, do, bias, dq, dk, dv):
    """Dots of 64 rows and of 128, as attention's backward has them: what becomes of one is an
    operand of others, transposed and not; programs add to one result.
    """
    n = tkc.program_id(0) * BN
    kt = tkc.load(k, (n, 0), (BN, D))
    dkt, dvt = tkc.zeros((BN, D)), tkc.zeros((BN, D))
    for m in range(0, q.shape[0], BM):
        qt, dot = tkc.load(q, (m, 0), (BM, D)), tkc.load(do, (m, 0), (BM, D))
        rows, columns = m + tkc.arange(BM), n + tkc.arange(BN)
        s = tkc.dot(qt, kt.T) - tkc.load(bias, (m,), (BM,))[:, None]
        p = tkc.where(rows[:, None] >= columns[None, :], tkc.minimum(tkc.maximum(s, -1), 1), 0.0)
        dvt = tkc.dot(p.to(q.dtype).T, dot, dvt)
        dp = tkc.minimum(tkc.maximum(tkc.dot(dot, kt.T), -1), 1)
        ds = (p * dp).to(q.dtype)
        dkt = tkc.dot(ds.T, qt, dkt)
        tkc.atomic_add(dq, (m, 0), tkc.dot(ds, kt) * 2)
    tkc.store(dk, (n, 0), dkt)
    tkc.store(dv, (n, 0), dvt)


def alike(a, b, y):
    """Dots that are as high as one another already."""
    block = tkc.load(a, (0, 0), (BM, BM))
    s = tkc.dot(block, tkc.load(b, (0, 0), (BM, BN)))
    tkc.store(y, (0, 0), tkc.dot(s.to(a.dtype), tkc.load(b, (0, 0), (BM, BN)).T))


def expected(q, k, do, bias) -> tuple[np.ndarray, ...]:
    """dq, dk and dv in NumPy."""
    rows, columns = np.arange(len(q))[:, None], np.arange(len(k))[None, :]
    s = q @ k.T - bias[:, None]
    p = np.where(rows >= columns, np.clip(s, -1, 1), 0)
    ds = p * np.clip(do @ k.T, -1, 1)
    return 2 * ds @ k, ds.T @ q, p.T @ do


def test_results(monkeypatch):
    """With its threads, under the happens-before check, at odd numbers of rows."""
    monkeypatch.setenv("TKC_SIM", "1")
    rng = np.random.default_rng(0)
    queries, keys = 130, 150
    q, k, do = (rng.integers(-1, 2, (n, D)).astype(np.float16) for n in (queries, keys, queries))
    bias = rng.integers(-1, 2, queries).astype(np.float32)
    dq, dk, dv = (np.zeros((n, D), np.float32) for n in (queries, keys, keys))
    kernel = tkc.jit(gradients)
    kernel[(tkc.cdiv(keys, BN),)](q, k, do, bias, dq, dk, dv)
    wanted = expected(*(x.astype(np.float64) for x in (q, k, do, bias)))
    for got, want in zip((dq, dk, dv), wanted, strict=True):
        assert np.array_equal(got, want)


def test_two_warpgroups_and_no_spill():
    half, full = "f16[4096, 128]", "f32[4096, 128]"
    compiled = tkc.jit(gradients).compile(
        half, half, half, "f32[4096]", full, full, full, target="sm_90a"
    )
    assert any("match-heights: 3 dots" in line for line in compiled.decisions)
    assert any("2 warpgroups of consumers" in line for line in compiled.decisions)
    assert "wgmma.mma_async" in (compiled.ptx or "")
    assert not compiled.resources.spill_stores
    # what programs add to is the transpose of what warpgroups hold
    assert "cp.reduce.async.bulk.tensor" in compiled.ptx
    assert not re.search(r"\bred\.", compiled.ptx)


def test_branches_share_their_buffers():
    """The loop has a body with the mask and one without; both write operands and results."""
    module = level4_of(4096, 4096)
    branches = [op for op in module.walk() if isinstance(op, scf.IfOp)]
    assert branches
    assert not any(isinstance(op, shared.Alloc) for branch in branches for op in branch.walk())


def level4_of(queries: int, keys: int, target: Target = TARGETS["sm_90a"]) -> ModuleOp:
    """The kernel after every pass."""
    kernel = tkc.jit(gradients)
    halves = [f"f16[{n}, {D}]" for n in (queries, keys, queries)]
    sums = [f"f32[{n}, {D}]" for n in (queries, keys, keys)]
    values, _ = kernel.bound(*halves, f"f32[{queries}]", *sums)
    return simulate.level4_of(kernel, kernel._describe(values), (), target)


def test_barriers_between_warpgroups_are_needed():
    """A warpgroup may be a step ahead: what it writes others still multiply. Where shared memory
    has no room for two stages of it, each of the barriers that all warpgroups take, left out, is a
    race.
    """
    rng = np.random.default_rng(1)
    q, k, do = (rng.integers(-1, 2, (n, D)).astype(np.float16) for n in (192, 128, 192))
    numbers = q, k, do, np.zeros(192, np.float32)
    results = [np.zeros((n, D), np.float32) for n in (192, 128, 128)]
    module = level4_of(192, 128, replace(TARGETS["sm_90a"], shared_bytes=212 << 10))
    run(module, [*numbers, *results], (1, 1, 1), in_place=True)
    found = [
        op
        for op in module.walk()
        if isinstance(op, threads.BlockBarrier)
        and op.each is None
        and isinstance(op.parent_op(), scf.IfOp)
    ]
    assert len(found) >= 2
    for barrier in found[:2]:
        following = next_of(barrier)
        barrier.detach()
        with pytest.raises(tkc.Error, match="race|overwrites"):
            run(module, [*numbers, *results], (1, 1, 1), in_place=True)
        block_of(following).insert_op_before(barrier, following)


def test_the_text_gives_what_level_0_gives():
    rng = np.random.default_rng(2)

    def numbers(*shape, dtype=ml_dtypes.bfloat16):
        return (0.5 * rng.standard_normal(shape)).astype(dtype)

    block, rows = (1, 96, D), (1, 96)
    sums, terms = np.full(rows, 6, np.float32), numbers(*rows, dtype=np.float32)
    added = np.zeros(block, np.float32)
    args = (*(numbers(*block) for _ in range(4)), sums, terms, added, *(numbers(*block),) * 2)
    blocks = 0.09, 32, BN, D
    assert not failures(gradients_added, *args, *blocks, target="sm_90a", grid=(1, 1, 1))


@pytest.mark.parametrize("target, heights", [("sm_90a", {BN}), ("sm_80", {BM, BN})])
def test_heights(target, heights):
    """For wgmma alone; the text reads back."""
    vector = ArrayArgument(tkc.float32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    module = traced(gradients, HALVES, HALVES, HALVES, vector, SUMS, SUMS, SUMS)
    through(module, "match-heights", context(target))
    assert {tile_type(op.acc).extents[0] for op in module.walk() if isinstance(op, tile.Dot)} == (
        heights
    )
    parses_back(module)


def test_dots_alike_stay():
    module = traced(alike, HALVES, HALVES, SUMS)
    given = through(module, "match-heights", context("sm_90a"))
    assert not any("match-heights" in line for line in given.decisions)
