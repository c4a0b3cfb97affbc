"""Copies of what the loop itself stores: the roles that copy wait for the consumers' stores. All
numbers are small integers, so that sums are exact and every result has one right value.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    compiled,
    parses_back,
    survivors,
    without_threads,
)
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

BM, BN = 64, 32
HALVES = ArrayArgument(
    tkc.float16, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), align=16)
)
NUMBERS = ArrayArgument(tkc.int32, ArrayFacts((Fact(),), (Fact(exact=1),), align=16))


def chained(x, w, at, y, WHAT: tkc.constexpr):
    """Each step multiplies rows that the step before stored, at once ("plain"), or where a sum says
    so ("branch"), or at a place that it stored, too ("place"); or it stores before it loads
    ("before"), or two dots read what is stored ("pair").
    """
    acc = tkc.zeros((BM, BN))
    for t in range(0, w.shape[0], BN):
        m = t // BN * BM
        right = tkc.load(w, (t, 0), (BN, BN))
        if WHAT == "place":
            m = tkc.maximum(at[t // BN], 0) * BM
        if WHAT == "before":
            tkc.store(x, (m, 0), tkc.full((16, BN), 2, x.dtype))
        left = tkc.load(x, (m, 0), (BM, BN))
        product = tkc.minimum(tkc.maximum(tkc.dot(left, right), -2), 2)
        acc = acc + product
        if WHAT == "pair":
            acc = acc + tkc.dot(product.to(x.dtype), tkc.load(w, (t, 0), (BN, BN)).T)
        if WHAT == "branch":
            if tkc.sum(tkc.sum(product, axis=1), axis=0) > 0:
                tkc.store(x, (m + BM, 0), product.to(x.dtype))
        else:
            tkc.store(x, (m + BM, 0), product.to(x.dtype))
        if WHAT == "place":
            tkc.store(at, (t // BN,), tkc.full((2,), t // BN + 1, tkc.int32))
    tkc.store(y, (0, 0), acc)


FLOATS = ArrayArgument(
    tkc.float32, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), align=16)
)
WHAT = pytest.mark.parametrize("what", ["plain", "branch", "place", "before", "pair"])


@cache
def lowered(what: str, **options):
    return compiled(traced(chained, HALVES, HALVES, NUMBERS, FLOATS, what), **options)


def check(module, what: str, steps: int, run=stages.run, **how) -> None:
    rng = np.random.default_rng(steps)
    x = rng.integers(-1, 2, ((steps + 1) * BM, BN)).astype(np.float16)
    w = rng.integers(-1, 2, (steps * BN, BN)).astype(np.float16)
    at = np.zeros(steps + 1, np.int32)
    y = np.full((BM, BN), 9, np.float32)
    rows, sums, places = x.astype(np.float64), np.zeros((BM, BN)), at.copy()
    for t in range(steps):
        m = BM * (places[t] if what == "place" else t)
        if what == "before":
            rows[m : m + 16] = 2
        right = w[t * BN : t * BN + BN].astype(np.float64)
        product = np.clip(rows[m : m + BM] @ right, -2, 2)
        sums += product
        if what == "pair":
            sums += product @ right.T
        if what != "branch" or product.sum() > 0:
            rows[m + BM : m + 2 * BM] = product
        places[t + 1] = t + 1
    run(module, [x, w, at, y], (1, 1, 1), **how)
    np.testing.assert_array_equal(y, sums)
    np.testing.assert_array_equal(x, rows)


@WHAT
def test_what_a_loop_stores_tensor_maps_copy(what):
    """But for what is stored in the same step before it is loaded: copies come first in a step."""
    modules, given = lowered(what)
    paths = ["tma", "registers" if what == "before" else "tma", *["tma"] * (what == "pair")]
    assert given.plan.roles == "cooperative"
    assert given.plan.copies_wait == (what != "before")
    loads = [load.path for load in given.plan.loads]
    assert (loads[:1] + loads[2:] if what == "place" else loads) == paths
    parses_back(modules[LAST])


@WHAT
def test_every_level(what):
    modules, _ = lowered(what)
    for module in without_threads(modules):
        check(module, what, 4)


@WHAT
@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_threads(what, depth, steps):
    modules, _ = lowered(what, num_stages=depth)
    for seed in range(2):
        check(modules[LAST], what, steps, seed=seed)


@WHAT
def test_text(what):
    modules, _ = lowered(what)
    check(modules[LAST], what, 3, run=machine.run, resident=1)


@WHAT
@assembler
def test_assembles(what):
    assembles_clean(lowered(what)[0][LAST])


@pytest.mark.parametrize("what", ["plain", "place"])
def test_mutants(what):
    module = lowered(what, num_stages=2)[0][LAST]
    every, missed = survivors(
        module,
        *(
            lambda module, seed=seed, steps=steps: check(module, what, steps, seed=seed)
            for seed, steps in enumerate((1, 4, 5))
        ),
        among=lambda label: "stored" in label or "seen" in label or "async_global" in label,
        # consumers overtake nobody: each step waits for copies that wait for them; and the fence
        # may come behind the arrival that follows it
        known=lambda label: (
            label
            in ("drop: mbarrier_wait seen in consumer", "later: fence async_global in producer")
        ),
    )
    assert every > 4
    assert not missed


@tkc.jit
def laid(x, w, y):
    """Its right operand is not dense along k, and is overwritten between its load and its dot."""
    acc = tkc.zeros((64, 64))
    for t in range(0, x.shape[1], 32):
        left, right = tkc.load(x, (0, t), (64, 32)), tkc.load(w, (0, 0), (32, 64))
        tkc.store(w, (t // 32, 0), tkc.full((16, 16), 1, w.dtype))
        acc = tkc.dot(left, right, acc)
    tkc.store(y, (0, 0), acc)


def test_what_is_laid_out_is_read_before_it_is_overwritten(monkeypatch):
    """A random kernel stored what a copy still read: a role was to lay it out for the dot."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-3, 4, shape).astype(float) for shape in ((64, 128), (32, 64)))
    given = [a.astype(ml_dtypes.float8_e4m3fn) for a in (x, w)] + [np.zeros((64, 64), np.float32)]
    made = laid.compile(*given, target="sm_90a")
    assert any("relaid by a warpgroup" in line for line in made.decisions), made.decisions
    assert any("copies wait" in line for line in made.decisions)
    laid[1](*given)
    sums = np.zeros((64, 64))
    for t in range(4):
        sums += x[:, 32 * t : 32 * t + 32] @ w
        w[t : t + 16, :16] = 1
    np.testing.assert_array_equal(given[2], sums)
    np.testing.assert_array_equal(given[1].astype(float), w)
