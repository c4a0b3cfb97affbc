"""Words of eight small numbers from which threads compute a dot's operand: each thread holds single
words of few columns, and copies wide pieces of rows ahead all the same.
"""

from functools import cache

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, i32, traced
from tests.passes import stages
from tests.passes.kernels import aligned
from tests.passes.stages import LAST, assembler, assembles_clean, compiled, without_threads
from tkc.fuzz.check import Comparison, Variant
from tkc.ir import threads
from tkc.ir.values import operations_in

M, N, K, BN, BK, GROUP = 16, 128, 256, 64, 64, 128
TARGETS = pytest.mark.parametrize("target", ["sm_80", "sm_90a"])


def product(x, words, zeros, scales, y):
    """y = x w, where w has eight columns in a word, each less a zero, times a scale of its group of
    rows."""
    n = tkc.program_id(0) * BN
    shifts = 4 * (tkc.arange(BN) % 8)
    acc = tkc.zeros((M, BN))
    for k in tkc.range(0, x.shape[1], BK):
        packed = tkc.load(words, (k, n // 8), (BK, BN // 8))
        spread = tkc.broadcast_to(packed[:, :, None], (BK, BN // 8, 8)).reshape((BK, BN))
        w = (spread >> shifts[None, :]) & 15
        zero = tkc.load(zeros, (k // GROUP, n), (None, BN))
        scale = tkc.load(scales, (k // GROUP, n), (None, BN))
        w = ((w - zero[None, :]).to(tkc.float16) * scale[None, :]).to(tkc.float16)
        acc = tkc.dot(tkc.load(x, (0, k), (M, BK)), w, acc)
    tkc.store(y, (0, n), acc)


def rows(dtype, n):
    return array(dtype, 2, shape=(None, n), strides=(n, 1), align=16)


@cache
def lowered(target: str):
    types = tkc.float16, tkc.int32, tkc.int32, tkc.float16, tkc.float32
    columns = K, N // 8, N, N, N
    arrays = (rows(*each) for each in zip(types, columns, strict=True))
    return compiled(traced(product, *arrays), target, roles="one", num_warps=4)


def check(module, run=stages.run, **how) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (M, K)).astype(np.float16)
    w = rng.integers(0, 16, (K, N))
    words = (w.reshape(K, -1, 8) << 4 * np.arange(8)).sum(-1).astype(np.uint32).view(np.int32)
    zeros = rng.integers(0, 16, (K // GROUP, N)).astype(np.int32)
    scales = rng.integers(1, 3, (K // GROUP, N)).astype(np.float16)
    y = np.full((M, N), 9, np.float32)
    run(module, [x, words, zeros, scales, y], (N // BN, 1, 1), **how)
    spread = (np.repeat(part, GROUP, axis=0) for part in (zeros, scales))
    want = x.astype(float) @ ((w - next(spread)) * next(spread))
    np.testing.assert_array_equal(y, want)


@TARGETS
def test_all_of_them_are_copied_ahead(target):
    """Two programs, in the simulators and by their text."""
    modules, given = lowered(target)
    assert any("4 copies of a loop" in line for line in given.decisions)
    copies = list(operations_in(modules[LAST], threads.CpAsync))
    assert {copy.vector.value.data for copy in copies} == {16}
    for module in without_threads(modules):
        check(module)
    check(modules[LAST], seed=1)
    check(modules[LAST], run=machine.run)


@TARGETS
@assembler
def test_it_assembles_clean(target):
    assembles_clean(lowered(target)[0][LAST])


def masked(x, w, o, steps, kept):
    """Two dots read a block of few columns of which a mask leaves rows out."""
    total, p = tkc.zeros((16, 8), tkc.int32), tkc.program_id(0)
    left = tkc.load(w, (0, 0), (16, 16))
    for i in tkc.range(0, steps):
        y = tkc.load(x, (i, 0), (16, 8), mask=(tkc.arange(16) < kept)[:, None])
        total = tkc.dot(left, y, total)
        tkc.store(o, (16 * i + 16, 0), tkc.dot(left, y))
    tkc.store(o, (0, 0), total)


@pytest.mark.parametrize("warps", [1, 2, 4])
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_a_mask_stands_where_threads_copy(name, warps):
    """It was taken for that of other rows, which the simulators of levels do not see."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.int8) for shape in ((48, 32), (16, 16)))
    given = {"x": x, "w": w, "o": np.zeros((96, 8), np.int32), "steps": 4, "kept": 2}
    kinds = (aligned(tkc.int8, 2), aligned(tkc.int8, 2), array(tkc.int32, 2))
    module = traced(masked, *kinds, i32(), i32())
    comparison = Comparison(module, lambda: dict(given), (1,))
    assert not list(comparison.passes(Variant(name, warps, 4)))
