"""Dots whose operands no shared memory holds: the same at level 0, with threads and as PTX, and
clean in the assembler.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, traced
from tests.passes.kernels import context, through
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir import tile
from tkc.ir.target import target
from tkc.passes.fit_dots import _reason
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

NUMPY = {
    tkc.float32: np.float32,
    tkc.bfloat16: ml_dtypes.bfloat16,
    tkc.float64: np.float64,
    tkc.int32: np.int32,
    tkc.int8: np.int8,
    tkc.float8_e4m3: ml_dtypes.float8_e4m3fn,
}
SUMS = {tkc.float64: tkc.float64, tkc.int32: tkc.int32, tkc.int8: tkc.int32}
CASES = [
    (7, 1000, 100, tkc.float32, "sm_80"),
    (100, 1000, 7, tkc.float32, "sm_90a"),
    (1, 1000, 96, tkc.float64, "sm_89"),
    (16, 997, 64, tkc.int32, "sm_89"),
    (7, 1500, 100, tkc.bfloat16, "sm_80"),
    (16, 1500, 64, tkc.int8, "sm_89"),
    (100, 1024, 16, tkc.float8_e4m3, "sm_89"),
    (16, 4096, 64, tkc.float8_e4m3, "sm_80"),
]


def product(a, b, out, M: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr, TURNED: tkc.constexpr):
    y = tkc.load(b, (0, 0), (N, K)).T if TURNED else tkc.load(b, (0, 0), (K, N))
    tkc.store(out, (0, 0), tkc.dot(tkc.load(a, (0, 0), (M, K)), y) + 1)


@pytest.mark.parametrize(
    "turned, m, k, n, dtype, name",
    [
        (turned, *case)
        for i, case in enumerate(CASES)
        for turned in ((False, True) if i < 2 else (bool(i % 2),))
    ],
    ids=str,
)
def test_products(turned, m, k, n, dtype, name):
    """Small integers, whose sums are exact; columns of the arrays that are not the tile's hold
    others.
    """
    rng, t, sums = np.random.default_rng(0), NUMPY[dtype], SUMS.get(dtype, tkc.float32)
    a, b = (
        rng.integers(-2, 3, shape).astype(t)
        for shape in ((m, k + 5), (n, k + 5) if turned else (k + 5, n))
    )
    module = traced(product, *(array(dtype, 2),) * 2, array(sums, 2), M=m, K=k, N=n, TURNED=turned)
    want = np.float64(a[:, :k]) @ np.float64(b[:, :k].T if turned else b[:k]) + 1

    def given():
        return [a, b, np.zeros((m, n), NUMPY[sums])]

    for run in (level0.run, None):
        if run is None:
            found = through(module, PIPELINE[-1], context(name))
        data = given()
        if run:
            run(module, data, (1,))
        else:
            level4.run(module, data, (1, 1, 1), 1)
            np.testing.assert_array_equal(data[2], want)
            data = given()
            machine.run(module, data, (1, 1, 1))
        np.testing.assert_array_equal(data[2], want)
    assert (
        any(line.startswith("fit-dots: operands of") for line in found.decisions)
        or (a.size + b.size) * a.itemsize <= target(name).shared_bytes
    )
    if ptxas.find("ptxas") is None:
        return
    program = emit(
        module,
        target(name),
        # as Compiled.resources: where the assembler is tight with registers, the text that gives it
        # more
    )
    assert any(ptxas.assemble(text, name).clean for text in (program.text, program.roomy)), (
        ptxas.assemble(program.text, name).log
    )


def computed(a, b, out, M: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """Operands masked along k and computed, one of another dot and one by pointers, in a loop."""
    i, k, n = tkc.arange(M), tkc.arange(K), tkc.arange(N)
    for step in tkc.range(0, 2):
        x = tkc.load(
            a, (step, 0), (M, K), mask=(k % 3 != 0)[None, :] & (i > 0)[:, None], other=2
        ) * 2 + (k % 4)[None, :].to(a.dtype)
        y = tkc.where(
            k[:, None] > 5,
            tkc.load(b.ptr + k[:, None] * b.strides[0] + n[None, :], mask=(k < K - 3)[:, None]),
            tkc.load(b, (0, 0), (1, N)),
        )
        tkc.store(out, (0, 0), tkc.dot(x, y) + tkc.load(out, (0, 0), (M, N)))


@pytest.mark.parametrize("dtype, k", [(tkc.float64, 1401)])
def test_factors_that_are_computed(dtype, k):
    """What is masked, computed, loaded by pointers is so part by part; out is read and written in
    every iteration of the loop.
    """
    (m, n), rng, sums = (8, 8), np.random.default_rng(0), SUMS.get(dtype, tkc.float32)
    a, b = (rng.integers(-2, 3, shape).astype(NUMPY[dtype]) for shape in ((m + 2, k), (k, n)))
    module, given = (
        traced(computed, *(array(dtype, 2),) * 2, array(sums, 2), M=m, K=k, N=n),
        lambda: [a, b, np.ones((m, n), NUMPY[sums])],
    )
    level0.run(module, want := given(), (1,))
    found = through(module, PIPELINE[-1], context("sm_80"))
    assert any(f"k = {k} in parts" in line for line in found.decisions)
    machine.run(module, data := given(), (1, 1, 1))
    np.testing.assert_array_equal(data[2], want[2])
    if ptxas.find("ptxas"):
        assert any(
            ptxas.assemble(text, "sm_80").clean
            for p in [emit(module, target("sm_80"))]
            for text in (p.text, p.roomy)
        ), ptxas.assemble(emit(module, target("sm_80")).text, "sm_80").log


def between(a, b, out):
    x, y = tkc.load(a, (0, 0), (64, 1000)), tkc.load(b, (0, 0), (1000, 64))
    tkc.store(a, (0, 0), tkc.zeros((64, 64)))
    tkc.store(out, (0, 0), tkc.dot(x, y))


def test_what_is_written_between_is_not_read():
    module = traced(between, *(array(tkc.float32, 2),) * 3)
    through(module, "fit-dots", context("sm_80"))
    assert sum(isinstance(op, tile.Load) for op in module.walk()) == 2


@pytest.mark.parametrize(
    "room, why", [(100, "has 100 of shared memory for them"), (200, "pass through registers")]
)
def test_it_says_what_has_no_room_for_operands(room, why):
    assert why in _reason(150, room, context("sm_80"))
