"""Dots with rows for one warpgroup beside dots whose rows two share: they share its columns. The
same results in any order of threads, and every wait and barrier is needed.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembles_clean
from tkc.ir import threads
from tkc.ir.types import ArrayFacts, Fact, MapType
from tkc.ir.values import type_of
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4
from tkc.sim.errors import SimulationError

COLUMNS = 128  # of keys, whose rows two warpgroups share


def gradients(q, g, k, dq, dk, D: tkc.constexpr, ROWS: tkc.constexpr):
    """Of products of two scores: parts of dq leave in every iteration."""
    n = tkc.program_id(0) * COLUMNS
    kt, acc = tkc.load(k, (n, 0), (COLUMNS, D)), tkc.zeros((COLUMNS, D))
    for m in tkc.range(0, q.shape[0], ROWS):
        qt, gt = tkc.load(q, (m, 0), (ROWS, D)), tkc.load(g, (m, 0), (ROWS, D))
        s = tkc.maximum(tkc.dot(kt, qt.T), 0.0)
        s = (s * tkc.dot(kt, gt.T)).to(q.dtype)
        tkc.atomic_add(dq, (m, 0), tkc.dot(s.T, kt))
        acc = tkc.dot(s, qt, acc)
    tkc.store(dk, (n, 0), acc)


# columns of a head and rows of a step; panels of 64 and of 32 bytes
FORMS = {"192": (192, 64), "96": (96, 64)}
EVERY = pytest.mark.parametrize("form", FORMS)


@cache
def lowered(form: str):
    d, rows = FORMS[form]

    def matrix(dtype) -> ArrayArgument:
        facts = ArrayFacts((Fact(), Fact(exact=d)), (Fact(d), Fact(exact=1)), 16)
        return ArrayArgument(dtype, facts)

    arguments = [*[matrix(tkc.bfloat16)] * 3, *[matrix(tkc.float32)] * 2]
    given = context("sm_90a", num_stages=2, store_columns=32)
    module = traced(gradients, *arguments, D=d, ROWS=rows)
    through(module, PIPELINE[-1], given)
    return module, given


def loop_of(module) -> scf.ForOp:
    """The loop of the dots, in the consumers' role."""
    role = next(op for op in module.walk() if isinstance(op, threads.Role) and op.single is None)
    return next(
        op
        for op in role.walk()
        if isinstance(op, scf.ForOp)
        and any(isinstance(inner, threads.DotAsync) for inner in op.body.block.ops)
    )


def run(form: str, module, seed: int, steps: int = 3, programs: int = 1) -> None:
    d, step = FORMS[form]
    rows, columns = steps * step, programs * COLUMNS
    rng = np.random.default_rng(seed)
    q, g, k = (
        rng.integers(-1, 2, (n + 1, d)).astype(ml_dtypes.bfloat16)[:n]
        for n in (rows, rows, columns)
    )
    q[:, 4:], g[:, 4:], k[:, 4:-4] = 0, 0, 0  # sums of few small integers are exact
    left, right, other = (x.astype(np.float64) for x in (k, q, g))
    s = np.maximum(left @ right.T, 0) * (left @ other.T)
    dq, dk = np.zeros((rows + 1, d), np.float32)[:rows], np.zeros((columns, d), np.float32)
    level4.run(module, [q, g, k, dq, dk], (programs, 1, 1), seed)
    np.testing.assert_array_equal(dq, s.T @ left)
    np.testing.assert_array_equal(dk, s @ right)


def leaving(module) -> list[threads.TmaStore]:
    return [op for op in loop_of(module).body.block.ops if isinstance(op, threads.TmaStore)]


@EVERY
def test_two_warpgroups_share_its_columns(form):
    module, given = lowered(form)
    assert [dot.warps for dot in given.plan.dots] == [(2, 1), (2, 1), (1, 2), (2, 1)]
    d = FORMS[form][0]
    store = leaving(module)[0]
    assert store.each is not None and type_of(store.map, MapType).extents[-2:] == (64, d // 2)
    assembles_clean(module)


@EVERY
@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_threads(form, seed):
    run(form, lowered(form)[0], seed)


@EVERY
@pytest.mark.parametrize("steps", [0, 1])
def test_a_program_of_few_iterations(form, steps):
    run(form, lowered(form)[0], 0, steps, 2)


@EVERY
@pytest.mark.parametrize("kind", [threads.BulkWait, threads.Fence, threads.BlockBarrier])
def test_each_step_is_needed(form, kind):
    """Of those that bring a part from registers to memory, in the loop."""
    module = lowered(form)[0].clone()
    op = leaving(module)[0]
    while not isinstance(op, kind):
        op = op.prev_op
    op.detach()
    op.erase()
    with pytest.raises(SimulationError):
        for seed in range(4):
            run(form, module, seed, 4)


@pytest.mark.parametrize("options", [dict(num_warps=4), dict(programs=2)], ids=str)
def test_where_one_warpgroup_is_asked_for_it_has_all(options):
    facts = ArrayFacts((Fact(), Fact(exact=96)), (Fact(96), Fact(exact=1)), 16)
    kinds = [tkc.bfloat16] * 3 + [tkc.float32] * 2
    given = context("sm_90a", **options)
    module = traced(gradients, *(ArrayArgument(k, facts) for k in kinds), D=96, ROWS=64)
    through(module, PIPELINE[-1], given)
    assert all(dot.warps[1] == 1 for dot in given.plan.dots if dot.instruction == "wgmma")
