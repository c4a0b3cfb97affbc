"""Dots of 64 rows by two warpgroups that share their columns: right in any order of threads and as
PTX, clean in the assembler, and every synchronization is needed.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembles_clean, survivors
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
    given = lowered("attended", 64, **FORCED)[1]
    assert any("64 columns do not divide by 64 among 2 warpgroups" in x for x in given.decisions)


def test_the_accumulator_has_halves_of_columns():
    layout = wgmma_accumulator(64, 128, 1, 2)
    coordinates = layout.table()
    assert [coordinates[4 * i, 0, 0].tolist() for i in range(2)] == [[0, 0], [0, 64]]
