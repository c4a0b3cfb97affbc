"""Operands that two warpgroups write together and both read, in rings of two stages: no barrier of
all, the same results in any order of threads, and every synchronization is needed.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import erase, replace
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.passes.warpgroups.written_operands import can_exchange
from tkc.sim import level4
from tkc.sim.errors import SimulationError

D, ROWS, COLUMNS = 64, 128, 128


def gradients(q, k, dq, dk):
    """Of half the sum of squares of q kᵀ: parts of dq leave in every iteration, dk is summed."""
    n = tkc.program_id(0) * COLUMNS
    kt, acc = tkc.load(k, (n, 0), (COLUMNS, D)), tkc.zeros((COLUMNS, D))
    for m in tkc.range(0, q.shape[0], ROWS):
        qt = tkc.load(q, (m, 0), (ROWS, D))
        s = tkc.dot(kt, qt.T)
        # more vector work than what the dots take, and s again
        s = (tkc.log2(tkc.exp2(tkc.minimum(s, 100.0))) + tkc.maximum(s - 100.0, 0.0)).to(q.dtype)
        acc = tkc.dot(s, qt, acc)
        tkc.atomic_add(dq, (m, 0), tkc.dot(s.T, kt))
    tkc.store(dk, (n, 0), acc.to(dk.dtype))


def matrix(dtype) -> ArrayArgument:
    return ArrayArgument(dtype, ArrayFacts((Fact(), Fact(exact=D)), (Fact(D), Fact(exact=1)), 16))


@pytest.fixture(scope="module")
def lowered():
    arguments = [matrix(tkc.bfloat16), matrix(tkc.bfloat16), matrix(tkc.float32)]
    given = context("sm_90a", num_stages=2)
    module = traced(gradients, *arguments, matrix(tkc.bfloat16))
    through(module, PIPELINE[-1], given)
    return module, given


def data(rows: int, columns: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(rows)
    q, k = (rng.integers(-2, 3, (n, D)).astype(ml_dtypes.bfloat16) for n in (rows, columns))
    q[:, 4:], k[:, 4:] = 0, 0  # sums of few small integers are exact
    s = q.astype(np.float64) @ k.astype(np.float64).T
    arrays = [q, k, np.zeros((rows, D), np.float32), np.zeros_like(k)]
    return arrays, [s @ k.astype(np.float64), s.T @ q.astype(np.float64)]


def run(module, seed: int, rows: int = 3 * ROWS, columns: int = 2 * COLUMNS) -> None:
    arrays, (dq, dk) = data(rows, columns)
    level4.run(module, arrays, (columns // COLUMNS, 1, 1), seed)
    np.testing.assert_array_equal(arrays[2], dq)
    np.testing.assert_allclose(arrays[3].astype(np.float64), dk, rtol=2**-8)


def test_warpgroups_meet_at_no_barrier_of_all(lowered):
    module, given = lowered
    consumer = next(
        op
        for op in module.walk()
        if isinstance(op, threads.Role) and op.sym_name.data == "consumer"
    )
    assert given.plan.written_stages == 2
    assert not any(
        op.each is None for op in consumer.walk() if isinstance(op, threads.BlockBarrier)
    )


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_threads(lowered, seed):
    run(lowered[0], seed)


def test_a_program_without_iterations(lowered):
    run(lowered[0], 0, rows=0)


def _are_of_one_role(uses) -> bool:
    """Whether one block has all arrivals at an mbarrier and all waits for it."""
    users = [use.operation for use in uses]
    return len({op.parent for op in users if not isinstance(op, threads.MbarrierInit)}) == 1 and {
        type(op) for op in users
    } == {threads.MbarrierInit, threads.MbarrierArrive, threads.MbarrierWait}


@pytest.mark.parametrize("dropped", [threads.MbarrierArrive, threads.MbarrierWait])
def test_each_synchronization_is_needed(lowered, dropped):
    module = lowered[0].clone()
    ours = next(
        op
        for op in module.walk()
        if isinstance(op, threads.Barriers) and _are_of_one_role(op.result.uses)
    )
    for use in list(ours.result.uses):
        if isinstance(use.operation, dropped):
            use.operation.detach()
            use.operation.erase()
    with pytest.raises(SimulationError):
        for seed in range(6):
            run(module, seed)


def test_what_no_dot_reads_is_not_exchanged():
    arguments = [matrix(tkc.bfloat16), matrix(tkc.bfloat16), matrix(tkc.float32)]
    module = traced(gradients, *arguments, matrix(tkc.bfloat16))
    through(module, "pipeline-async-copies", context("sm_90a", num_stages=2))
    (alloc,) = [op for op in module.walk() if isinstance(op, shared.Alloc) and can_exchange(op)]
    for dot in [op for op in module.walk() if isinstance(op, tile.Dot)]:
        replace(dot, [dot.acc])
    for op in reversed([op for op in module.walk() if op.name == "tile.shared_transpose"]):
        if not op.results[0].first_use:
            erase(op)
    assert [use.operation.name for use in alloc.result.uses] == ["tile.write"]
    assert not can_exchange(alloc)
