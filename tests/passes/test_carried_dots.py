"""Sums of a loop that run on into its next iteration: the same results in any order of threads, and
every wait and arrival that they need.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tkc.ir import threads, tile
from tkc.ir.types import ArrayFacts, Fact, PendingType
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.passes.warpgroups.in_flight import in_registers, is_touched_later
from tkc.sim import level0, level4
from tkc.sim.errors import SimulationError
from tkc.sim.level0 import kernel_of

D, ROWS, COLUMNS = 128, 64, 128


def gradients(q, g, k, dq, dk):
    """Of products of two scores: parts of dq leave in every iteration, under the sum of dk."""
    n = tkc.program_id(0) * COLUMNS
    kt, acc = tkc.load(k, (n, 0), (COLUMNS, D)), tkc.zeros((COLUMNS, D))
    for m in tkc.range(0, q.shape[0], ROWS):
        qt, gt = tkc.load(q, (m, 0), (ROWS, D)), tkc.load(g, (m, 0), (ROWS, D))
        s = tkc.maximum(tkc.dot(kt, qt.T), 0.0)
        s = (s * tkc.dot(kt, gt.T)).to(q.dtype)
        acc = tkc.dot(s, qt, acc)
        tkc.atomic_add(dq, (m, 0), tkc.dot(s.T, kt))
    tkc.store(dk, (n, 0), acc)


def matrix(dtype) -> ArrayArgument:
    return ArrayArgument(dtype, ArrayFacts((Fact(), Fact(exact=D)), (Fact(D), Fact(exact=1)), 16))


@pytest.fixture(scope="module")
def lowered():
    arguments = [*[matrix(tkc.bfloat16)] * 3, *[matrix(tkc.float32)] * 2]
    given = context("sm_90a", num_stages=2, store_columns=32)
    module = traced(gradients, *arguments)
    through(module, PIPELINE[-1], given)
    return module


def loop_of(module) -> scf.ForOp:
    """The loop whose sum is in flight where an iteration begins."""
    return next(
        op
        for op in module.walk()
        if isinstance(op, scf.ForOp) and any(isinstance(v.type, PendingType) for v in op.iter_args)
    )


def run(module, seed: int, rows: int = 3 * ROWS, columns: int = COLUMNS) -> None:
    rng = np.random.default_rng(seed)
    shapes = rows, rows, columns
    q, g, k = (rng.integers(-1, 2, (n, D)).astype(ml_dtypes.bfloat16) for n in shapes)
    q[:, 4:], g[:, 4:], k[:, 4:] = 0, 0, 0  # sums of few small integers are exact
    left, right, other = (x.astype(np.float64) for x in (k, q, g))
    s = np.maximum(left @ right.T, 0) * (left @ other.T)
    dq, dk = np.zeros((rows, D), np.float32), np.zeros((columns, D), np.float32)
    level4.run(module, [q, g, k, dq, dk], (columns // COLUMNS, 1, 1), seed)
    np.testing.assert_array_equal(dq, s.T @ left)
    np.testing.assert_array_equal(dk, s @ right)


def test_a_sum_is_waited_for_behind_the_next_iterations_first_dot(lowered):
    loop = loop_of(lowered)
    body = list(loop.body.block.ops)
    waits = [op for op in body if isinstance(op, threads.DotWait)]
    dots = [op for op in body if isinstance(op, threads.DotAsync)]
    assert waits[0].args[0] in loop.body.block.args and waits[0].pending.value.data == 1
    assert dots[0].is_before_in_block(waits[0]) and waits[0].is_before_in_block(dots[1])
    # nothing waits for the last dot in its own iteration
    assert waits[-1].pending.value.data == 1
    # and its stage is released where it is over
    assert isinstance(waits[0].next_op, (threads.Fence, threads.MbarrierArrive))


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_threads(lowered, seed):
    run(lowered, seed)


@pytest.mark.parametrize("rows", [0, ROWS])
def test_a_program_of_few_iterations(lowered, rows):
    run(lowered, 0, rows, 2 * COLUMNS)


def released_late(loop: scf.ForOp) -> list[threads.MbarrierArrive]:
    """The arrivals for the sum's stages: in the loop and behind it."""
    wait = next(op for op in loop.body.block.ops if isinstance(op, threads.DotWait))
    behind = next(
        use.operation
        for result in loop.results
        for use in result.uses
        if isinstance(use.operation, threads.DotWait)
    )
    return [
        next(op for op in (x.next_op, x.next_op.next_op) if isinstance(op, threads.MbarrierArrive))
        for x in (wait, behind)
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_each_arrival_is_needed(lowered, which):
    module = lowered.clone()
    arrival = released_late(loop_of(module))[which]
    arrival.detach()
    arrival.erase()
    with pytest.raises(SimulationError):
        run(module, 0, 4 * ROWS, 3 * COLUMNS)


def test_the_stage_is_not_released_before(lowered):
    module = lowered.clone()
    loop = loop_of(module)
    arrival = released_late(loop)[0]
    arrival.detach()
    wait = next(op for op in loop.body.block.ops if isinstance(op, threads.DotWait))
    loop.body.block.insert_op_before(arrival, wait)
    with pytest.raises(SimulationError):
        for seed in range(3):
            run(module, seed, 4 * ROWS)


# ---- what does not run on
def read_before_it_is_added_to(q, g, k, dq, dk):
    """What is computed between the dots reads the sum so far."""
    n = tkc.program_id(0) * COLUMNS
    kt, acc = tkc.load(k, (n, 0), (COLUMNS, D)), tkc.zeros((COLUMNS, D))
    for m in tkc.range(0, q.shape[0], ROWS):
        qt, gt = tkc.load(q, (m, 0), (ROWS, D)), tkc.load(g, (m, 0), (ROWS, D))
        s = tkc.maximum(tkc.dot(kt, qt.T), 0.0)
        s = (s * tkc.dot(kt, gt.T) + tkc.sum(acc, axis=1)[:, None]).to(q.dtype)
        acc = tkc.dot(s, qt, acc)
        tkc.atomic_add(dq, (m, 0), tkc.dot(s.T, kt))
    tkc.store(dk, (n, 0), acc)


def of_what_threads_write(q, g, k, dq, dk):
    """The right operand of the sum's dot is computed, and written to shared memory."""
    n = tkc.program_id(0) * COLUMNS
    kt, acc = tkc.load(k, (n, 0), (COLUMNS, D)), tkc.zeros((COLUMNS, D))
    for m in tkc.range(0, q.shape[0], ROWS):
        qt, gt = tkc.load(q, (m, 0), (ROWS, D)), tkc.load(g, (m, 0), (ROWS, D))
        s = tkc.maximum(tkc.dot(kt, qt.T), 0.0)
        s = (s * tkc.dot(kt, gt.T)).to(q.dtype)
        rows = tkc.dot(s.T, kt)
        acc = tkc.dot(s, rows.to(q.dtype), acc)
        tkc.atomic_add(dq, (m, 0), rows)
    tkc.store(dk, (n, 0), acc)


def of_the_first_dot_alone(q, g, k, dq, dk):
    """The left operand lies in the registers of the dot under which the sum would run."""
    n = tkc.program_id(0) * COLUMNS
    kt, acc = tkc.load(k, (n, 0), (COLUMNS, D)), tkc.zeros((COLUMNS, D))
    for m in tkc.range(0, q.shape[0], ROWS):
        qt, gt = tkc.load(q, (m, 0), (ROWS, D)), tkc.load(g, (m, 0), (ROWS, D))
        s = tkc.maximum(tkc.dot(kt, qt.T), 0.0).to(q.dtype)
        acc = tkc.dot(s, gt, acc)
        tkc.atomic_add(dq, (m, 0), tkc.dot(s.T, kt))
    tkc.store(dk, (n, 0), acc)


def two_sums(q, g, k, dq, dk):
    """The first sum is of the iteration's first dot, under which none of its own can run."""
    n = tkc.program_id(0) * COLUMNS
    kt = tkc.load(k, (n, 0), (COLUMNS, D))
    left, other = (kt * 2).to(q.dtype), (kt * 3).to(q.dtype)
    one, two = tkc.zeros((COLUMNS, ROWS)), tkc.zeros((COLUMNS, ROWS))
    for m in tkc.range(0, q.shape[0], ROWS):
        qt, gt = tkc.load(q, (m, 0), (ROWS, D)), tkc.load(g, (m, 0), (ROWS, D))
        one, two = tkc.dot(left, qt.T, one), tkc.dot(other, gt.T, two)
    tkc.store(dk, (n, 0), one)
    tkc.store(dk, (n, ROWS), two)


def branched(q, g, k, dq, dk):
    """A branch under the second score's dot masks the first one."""
    n = tkc.program_id(0) * COLUMNS
    kt, acc = tkc.load(k, (n, 0), (COLUMNS, D)), tkc.zeros((COLUMNS, D))
    rows, columns = tkc.arange(COLUMNS)[:, None], tkc.arange(ROWS)[None, :]
    for m in tkc.range(0, q.shape[0], ROWS):
        qt, gt = tkc.load(q, (m, 0), (ROWS, D)), tkc.load(g, (m, 0), (ROWS, D))
        s, t = tkc.dot(kt, qt.T), tkc.dot(kt, gt.T)
        if m < n:
            s = tkc.where(n + rows <= m + columns, s, 0.0)
        s = (s * t).to(q.dtype)
        acc = tkc.dot(s, qt, acc)
        tkc.atomic_add(dq, (m, 0), tkc.dot(s.T, kt))
    tkc.store(dk, (n, 0), acc)


def results_of(module, seed: int) -> list[np.ndarray]:
    """dq and dk of two programs, of small whole numbers."""
    rng = np.random.default_rng(seed)
    given = [rng.integers(-1, 2, (2 * COLUMNS, D)).astype(ml_dtypes.bfloat16) for _ in range(3)]
    for x in given:
        x[:, 2:] = 0
    made = [np.zeros((2 * COLUMNS, D), np.float32) for _ in range(2)]
    ran = level0 if kernel_of(module).level == 0 else level4
    ran.run(module, [*given, *made], (2, 1, 1), *([] if ran is level0 else [seed]))
    return made


@pytest.mark.parametrize(
    "kernel, carried",
    [
        (read_before_it_is_added_to, 0),
        (of_what_threads_write, 0),
        (of_the_first_dot_alone, 0),
        (two_sums, 1),
        (branched, 1),
    ],
)
def test_how_many_sums_run_on(kernel, carried):
    arguments = [*[matrix(tkc.bfloat16)] * 3, *[matrix(tkc.float32)] * 2]
    module = traced(kernel, *arguments)
    wanted = results_of(module, 0)
    through(module, PIPELINE[-1], context("sm_90a", num_stages=2, store_columns=32))
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    running = [v for loop in loops for v in loop.iter_args if isinstance(v.type, PendingType)]
    assert len(running) == carried
    # the rest of an iteration is not cloned into a branch under dots that run on
    assert all(len(op.results) <= 1 for op in module.walk() if isinstance(op, scf.IfOp))
    for got, want in zip(results_of(module, 0), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_dots_read_in_shared_memory_they_may_read_together():
    """A left operand that a later dot reads, too, is no register that somebody touches."""
    module = traced(gradients, *[matrix(tkc.bfloat16)] * 3, *[matrix(tkc.float32)] * 2)
    through(module, "pipeline-async-copies", context("sm_90a", num_stages=2, store_columns=32))
    first, second, *_ = (op for op in module.walk() if isinstance(op, tile.Dot))
    assert first.a is second.a and not in_registers(first)
    assert not is_touched_later(first)
