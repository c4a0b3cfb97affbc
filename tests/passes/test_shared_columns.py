"""Dots of 64 rows by two warpgroups that share their columns: right in any order of threads and as
PTX, clean in the assembler, and every synchronization is needed.
"""

from __future__ import annotations

from functools import cache
from math import inf

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembles_clean, survivors
from tkc.ir import shared, threads
from tkc.ir.fragments import wgmma_accumulator
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4

ROWS, KEYS = 64, 64
FORCED = dict(roles="cooperative", split_warps=(4, 2))


def attended(q, k, o, D: tkc.constexpr):
    """Keys are values, too; each row's maximum is over columns of both warpgroups."""
    m = tkc.program_id(0) * ROWS
    qt, acc = tkc.load(q, (m, 0), (ROWS, D)), tkc.zeros((ROWS, D))
    top = tkc.full((ROWS,), -1000.0)
    for n in tkc.range(0, k.shape[0], KEYS):
        kt = tkc.load(k, (n, 0), (KEYS, D))
        s = tkc.dot(qt, kt.T)
        top = tkc.maximum(top, tkc.max(s, axis=1))
        p = tkc.where(s == top[:, None], 1.0, 0.0)
        acc = tkc.dot(p.to(q.dtype), kt, acc)
    tkc.store(o, (m, 0), acc)


def computed(q, k, o, D: tkc.constexpr):
    """The right operand is computed: both warpgroups write it, and read it in both majors."""
    m = tkc.program_id(0) * ROWS
    qt, acc = tkc.load(q, (m, 0), (ROWS, D)), tkc.zeros((ROWS, D))
    for n in tkc.range(0, k.shape[0], KEYS):
        kt = tkc.load(k, (n, 0), (KEYS, D)).to(q.dtype)
        s = tkc.dot(qt, kt.T)
        acc = tkc.dot(tkc.minimum(s, 1.0).to(q.dtype), kt, acc)
    tkc.store(o, (m, 0), acc)


KERNELS = {"attended": (attended, tkc.bfloat16), "computed": (computed, tkc.float8_e4m3)}


@cache
def lowered(name: str, d: int, **options):
    kernel, kind = KERNELS[name]

    def matrix(dtype) -> ArrayArgument:
        facts = ArrayFacts((Fact(), Fact(exact=d)), (Fact(d), Fact(exact=1)), 16)
        return ArrayArgument(dtype, facts)

    given = context("sm_90a", **options)
    module = traced(kernel, matrix(tkc.bfloat16), matrix(kind), matrix(tkc.float32), D=d)
    through(module, PIPELINE[-1], given)
    return module, given


def run(
    name: str,
    d: int,
    module,
    seed: int = 0,
    rows: int = 70,
    keys: int = 150,
    by=level4.run,
    resident: int = 1,
):
    rng = np.random.default_rng(rows)
    kinds = {tkc.bfloat16: ml_dtypes.bfloat16, tkc.float8_e4m3: ml_dtypes.float8_e4m3fn}
    q = rng.integers(-2, 3, (rows, d)).astype(ml_dtypes.bfloat16)
    k = rng.integers(-2, 3, (keys, d)).astype(kinds[KERNELS[name][1]])
    q[:, 4:-4], k[:, 4:-4] = 0, 0  # sums of few small integers are exact
    o = np.zeros((rows, d), np.float32)
    by(module, [q, k, o], (-(-rows // ROWS), 1, 1), seed=seed, resident=resident)
    wide_q, wide_k = q.astype(np.float64), np.zeros((-(-keys // KEYS) * KEYS, d))
    wide_k[:keys] = k.astype(np.float64)
    s, want, top = wide_q @ wide_k.T, np.zeros((rows, d)), np.full(rows, -1000.0)
    for n in range(0, len(wide_k), KEYS):
        part = s[:, n : n + KEYS]
        top = np.maximum(top, part.max(1))
        p = part == top[:, None] if name == "attended" else np.minimum(part, 1.0)
        want += p.astype(ml_dtypes.bfloat16).astype(np.float64) @ wide_k[n : n + KEYS]
    np.testing.assert_array_equal(o, want)


EVERY = pytest.mark.parametrize("name", KERNELS)


@EVERY
def test_sums_of_more_columns_than_a_warpgroup_holds(name):
    module, given = lowered(name, 512)
    assert [dot.warps for dot in given.plan.dots] == [(1, 2), (1, 2)]
    assert [dot.a for dot in given.plan.dots] == ["shared", "written"]
    assert any("they share the columns of each dot" in line for line in given.decisions)
    assembles_clean(module)


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_threads(name, seed):
    run(name, 128, lowered(name, 128, **FORCED)[0], seed)


@pytest.mark.parametrize("d, swizzle", [(64, 64), (96, 32), (192, 64), (256, 128)])
def test_each_part_begins_with_a_panel(d, swizzle):
    """Half of the columns, dense in memory, are whole panels of the block."""
    module, given = lowered("attended", d, **FORCED)
    assert [dot.warps for dot in given.plan.dots] == [(1, 2), (1, 2)]
    rings = [t for op in module.walk() if isinstance(op, shared.Alloc) and (t := op.result.type)]
    assert {t.memory.swizzle for t in rings if t.extents == (KEYS, d)} >= {swizzle}
    run("attended", d, module)
    assembles_clean(module)


def test_code_never_begins_inside_a_panel(monkeypatch):
    """A descriptor would show other columns, which no simulation of tiles sees."""
    monkeypatch.setattr("tkc.passes.plan.narrow_panel", lambda load, most: None)
    monkeypatch.setattr("tkc.passes.planning.operands.narrow_panel", lambda load, most: None)
    module = lowered.__wrapped__("attended", 96, **FORCED)[0]
    with pytest.raises(tkc.CompileError, match="begin inside one of its panels of 32"):
        assembles_clean(module)


def test_what_threads_write_for_both_meets_no_bank_twice():
    module, _ = lowered("computed", 512)
    writes = [op for op in module.walk() if isinstance(op, shared.Write)]
    assert writes and {op.conflicts.value.data for op in writes} == {1}


def softmax(q, k, o, D: tkc.constexpr):
    """A running maximum that only keeps powers small: whether they are, all threads ask."""
    qt, acc = tkc.load(q, (0, 0), (ROWS, D)), tkc.zeros((ROWS, D))
    top, total = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,))
    for n in tkc.range(0, k.shape[0], KEYS):
        kt = tkc.load(k, (n, 0), (KEYS, D))
        s = tkc.dot(qt, kt.T)
        new = tkc.maximum(top, tkc.max(s, axis=1))
        p, shrink = tkc.exp2(s - new[:, None]), tkc.exp2(top - new)
        total, top = total * shrink + tkc.sum(p, axis=1), new
        acc = tkc.dot(p.to(q.dtype), kt, acc * shrink[:, None])
    tkc.store(o, (0, 0), acc * (1 / total)[:, None])


def test_threads_meet_once_to_know_whether_powers_are_small():
    """What they write for one another has stages, for which nobody meets."""
    facts = ArrayFacts((Fact(16), Fact(exact=128)), (Fact(128), Fact(exact=1)), 16)
    given = [ArrayArgument(kind, facts) for kind in (tkc.bfloat16, tkc.bfloat16, tkc.float32)]
    module = traced(softmax, *given, D=128)
    decided = through(module, PIPELINE[-1], context("sm_90a", **FORCED))
    assert any("only keeps powers small" in line for line in decided.decisions)
    loop = next(
        op
        for op in module.walk()
        if isinstance(op, scf.ForOp) and any(isinstance(o, threads.DotAsync) for o in op.body.ops)
    )
    assert sum(isinstance(op, threads.BlockBarrier) for op in loop.body.block.ops) == 1
    rng = np.random.default_rng(0)
    q, k = (rng.normal(0, 1, (n, 128)).astype(ml_dtypes.bfloat16) for n in (64, 192))
    o = np.zeros((64, 128), np.float32)
    for seed in range(2):
        level4.run(module, [q, k, o], (1, 1, 1), seed=seed)
        s = q.astype(np.float64) @ k.astype(np.float64).T
        p = np.exp2(s - s.max(1, keepdims=True))
        want = p @ k.astype(np.float64) / p.sum(1, keepdims=True)
        assert np.abs(o - want).max() < 0.02


@EVERY
def test_a_program_without_iterations(name):
    run(name, 128, lowered(name, 128, **FORCED)[0], keys=0)


@EVERY
def test_the_text(name):
    run(name, 128, lowered(name, 128, **FORCED)[0], by=machine.run)


# The dots that read a stage are the work of the whole warpgroup, and the leader has waited for
# them. What is written is read through the same view, whichever of two stages it is of.
EQUIVALENT = {
    "leader alone: mbarrier_arrive empty in consumer",
    "leader alone: mbarrier_arrive empty 2 in consumer",
    "stage: stage written in consumer",
}


def test_each_synchronization_is_needed():
    module, given = lowered("attended", 128, num_stages=2, **FORCED)
    assert min(given.plan.rings) == 2
    total, left = survivors(
        module,
        *(
            lambda m, seed=seed, shape=shape: run("attended", 128, m, seed, *shape)
            for seed in range(4)
            for shape in ((64, 450), (300, 64), (300, 130))
        ),
        known=EQUIVALENT.__contains__,
    )
    assert total > 100 and not left, left


def test_the_option_forces_it_and_columns_must_divide():
    given = lowered("attended", 128, **FORCED)[1]
    assert {dot.warps for dot in given.plan.dots} == {(1, 2)}
    assert not any("not used" in line for line in given.decisions)
    given = lowered("attended", 48, **FORCED)[1]
    assert any("48 columns do not divide by 16 among 2 warpgroups" in x for x in given.decisions)


def classified(x, w, y, N: tkc.constexpr):
    """A program has whole rows of a product, and their softmax: more than a warpgroup holds."""
    m = tkc.program_id(0) * ROWS
    acc = tkc.zeros((ROWS, N))
    for k in tkc.range(0, x.shape[1], 32):
        acc = tkc.dot(tkc.load(x, (m, k), (ROWS, 32)), tkc.load(w, (k, 0), (32, N)), acc)
    e = tkc.exp(acc - tkc.max(acc, axis=1)[:, None])
    tkc.store(y, (m, 0), e / tkc.sum(e, axis=1)[:, None])


@cache
def classes(n: int, **options):
    def matrix(dtype, columns) -> ArrayArgument:
        facts = ArrayFacts(
            (Fact(), Fact(8) if columns is None else Fact(exact=columns)),
            (Fact(8) if columns is None else Fact(columns), Fact(exact=1)),
            16,
        )
        return ArrayArgument(dtype, facts)

    given = context("sm_90a", **options)
    arrays = matrix(tkc.bfloat16, None), matrix(tkc.bfloat16, n), matrix(tkc.float32, n)
    module = traced(classified, *arrays, N=n)
    through(module, PIPELINE[-1], given)
    return module, given


def test_what_one_warpgroup_does_not_hold_two_share():
    module, given = classes(256)
    assert [dot.warps for dot in given.plan.dots] == [(1, 2)]
    assert any("two warpgroups share columns: an accumulator" in x for x in given.decisions)
    assembles_clean(module)
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, (70, 96)).astype(ml_dtypes.bfloat16)
    w = rng.integers(-1, 2, (96, 256)).astype(ml_dtypes.bfloat16)
    s = x.astype(np.float64) @ w.astype(np.float64)
    want = np.exp(s - s.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    for by in level4.run, machine.run:
        y = np.zeros((70, 256), np.float32)
        by(module, [x, w, y], (2, 1, 1), seed=1, resident=1)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-7)


def test_what_one_warpgroup_holds_it_keeps():
    assert [dot.warps for dot in classes(64)[1].plan.dots] == [(1, 1)]
    # asked for one warpgroup, the plan has one
    assert [dot.warps for dot in classes(256, num_warps=4)[1].plan.dots] == [(1, 1)]


def test_the_accumulator_has_halves_of_columns():
    layout = wgmma_accumulator(64, 128, 1, 2)
    coordinates = layout.table()
    assert [coordinates[4 * i, 0, 0].tolist() for i in range(2)] == [[0, 0], [0, 64]]
