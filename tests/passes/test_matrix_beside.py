"""A matrix that stands beside the dots of a loop, the biases of scores: tensor maps bring it with
the operands of the dot before its use, where shared memory has room for that.
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
from tkc.ir import shared
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4

ROWS = 128


def biased(q, k, b, o, D: tkc.constexpr, KEYS: tkc.constexpr):
    """Keys are values, too; a row takes those of its largest score so far."""
    m = tkc.program_id(0) * ROWS
    qt, acc = tkc.load(q, (m, 0), (ROWS, D)), tkc.zeros((ROWS, D))
    top = tkc.full((ROWS,), -1000.0)
    for n in tkc.range(0, k.shape[0], KEYS):
        kt = tkc.load(k, (n, 0), (KEYS, D))
        s = tkc.dot(qt, kt.T) + tkc.load(b, (m, n), (ROWS, KEYS)).to(tkc.float32)
        top = tkc.maximum(top, tkc.max(s, axis=1))
        p = tkc.where(s == top[:, None], 1.0, 0.0)
        acc = tkc.dot(p.to(q.dtype), kt, acc)
    tkc.store(o, (m, 0), acc)


@cache
def lowered(d: int, keys: int, **options):
    def matrix(dtype, columns: int | None) -> ArrayArgument:
        exact = Fact(8) if columns is None else Fact(exact=columns)
        stride = Fact(8) if columns is None else Fact(columns)
        return ArrayArgument(dtype, ArrayFacts((Fact(), exact), (stride, Fact(exact=1)), 16))

    given = context("sm_90a", **options)
    arrays = [matrix(tkc.bfloat16, n) for n in (d, d, None)] + [matrix(tkc.float32, d)]
    module = traced(biased, *arrays, D=d, KEYS=keys)
    through(module, PIPELINE[-1], given)
    return module, given


def run(module, d: int, tile: int, rows: int = 140, keys: int = 200, by=level4.run, **given):
    rng = np.random.default_rng(rows + keys)
    q, k = (rng.integers(-2, 3, (n, d)).astype(ml_dtypes.bfloat16) for n in (rows, keys))
    q[:, 4:-4], k[:, 4:-4] = 0, 0  # sums of few small integers are exact
    b = rng.integers(-9, 10, (rows, keys)).astype(ml_dtypes.bfloat16)
    o = np.zeros((rows, d), np.float32)
    by(module, [q, k, b, o], (-(-rows // ROWS), 1, 1), **{"seed": 0, "resident": 1} | given)
    whole = -(-keys // tile) * tile
    wide, biases = np.zeros((whole, d)), np.zeros((rows, whole))
    wide[:keys], biases[:, :keys] = k, b
    s = q.astype(np.float64) @ wide.T + biases
    want, top = np.zeros((rows, d)), np.full(rows, -1000.0)
    for n in range(0, whole, tile):
        top = np.maximum(top, s[:, n : n + tile].max(1))
        want += (s[:, n : n + tile] == top[:, None]).astype(np.float64) @ wide[n : n + tile]
    np.testing.assert_array_equal(o, want)


def test_tensor_maps_copy_it():
    module, given = lowered(64, 64)
    assert {load.path for load in given.plan.loads} == {"tma"}
    assert any("of 1 loads beside the dots tensor maps copy 1" in x for x in given.decisions)
    reads = [op for op in module.walk() if isinstance(op, shared.Read)]
    assert reads and {op.conflicts.value.data for op in reads} == {1}
    assembles_clean(module)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_threads(seed):
    run(lowered(64, 64)[0], 64, 64, seed=seed)


def test_programs_one_after_the_other():
    run(lowered(64, 64)[0], 64, 64, rows=500, keys=72)


def test_no_keys():
    run(lowered(64, 64)[0], 64, 64, keys=0)


def test_the_text():
    run(lowered(64, 64)[0], 64, 64, by=machine.run)


def test_where_it_has_no_room_threads_load_it():
    _, given = lowered(128, 128)
    assert sorted(load.path for load in given.plan.loads) == ["registers", "tma", "tma", "tma"]


# The dots that read a stage are the work of the whole warpgroup, and the leader has waited for
# them. The last dot of a program is over before the next but one begins.
EQUIVALENT = {
    *(f"leader alone: mbarrier_arrive empty{ring} in consumer" for ring in ("", " 2", " 3")),
    *(f"leader alone: mbarrier_arrive empty{ring} in consumer, 2" for ring in (" 2", " 3")),
    "earlier: mbarrier_arrive empty 3 in consumer, 2",
}


def test_each_synchronization_is_needed():
    module, _ = lowered(64, 64, num_stages=2, dynamic_schedule=False)
    total, left = survivors(
        module,
        *(
            lambda m, seed=seed, shape=shape: run(m, 64, 64, *shape, seed=seed)
            for seed in range(4)
            for shape in ((128, 456), (300, 64), (300, 136), (500, 64))
        ),
        known=EQUIVALENT.__contains__,
    )
    assert total > 60 and not left, left
