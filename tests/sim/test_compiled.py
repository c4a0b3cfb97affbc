"""What the compiler makes, in the simulator: every stage of a kernel means the same, and the last
one is free of races.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tkc.compiler import compile
from tkc.ir.types import ArrayFacts, Fact
from tkc.language import dtypes
from tkc.language.signature import ArrayArgument, ConstantArgument, ScalarArgument, Signature
from tkc.sim import dataflow, level0, level4
from tkc.sim.mutants import mutants
from tkc.sim.report import Violation

UNSYNCHRONIZED = {
    "schedule-warpgroups",
    "double-buffer-exchanges",
    "allocate-shared",
}  # level 4 before insert-synchronization: nothing to run yet


def array(dtype, rank):
    return ArrayArgument(
        dtype, ArrayFacts((Fact(),) * rank, (Fact(8),) * (rank - 1) + (Fact(1, 1),), 16)
    )


def stages(kernel, target, **arguments):
    """(name, module) after every step."""
    given = tuple(
        (name, a if isinstance(a, (ArrayArgument, ScalarArgument)) else ConstantArgument(a))
        for name, a in arguments.items()
    )
    found = []
    compile(
        kernel, Signature(given), target, lambda name, module: found.append((name, module.clone()))
    )
    return found


def execute(module, arguments, grid, seed=0):
    if level0.kernel_of(module).level < 4:
        dataflow.run(module, arguments, grid)
    else:
        level4.run(module, arguments, grid, seed)


def matmul(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


def softmax(x, out, WIDTH: tkc.constexpr):
    row = tkc.program_id(0)
    inside = tkc.arange(WIDTH) < x.shape[1]
    s = tkc.where(inside, tkc.load(x, (row, 0), (None, WIDTH)), -float("inf"))
    e = tkc.exp(s - tkc.max(s, axis=0))
    tkc.store(out, (row, 0), (e / tkc.sum(e, axis=0))[None, :])


def product(module, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, ml_dtypes.bfloat16)
    execute(module, [a, b, c], (-(-m // 64), -(-n // 64)), seed)
    np.testing.assert_array_equal(
        np.float32(c), np.float32((np.float32(a) @ np.float32(b)).astype(ml_dtypes.bfloat16))
    )


BF = dtypes.bfloat16


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_every_stage_of_a_product(target):
    for name, module in stages(
        matmul, target, a=array(BF, 2), b=array(BF, 2), c=array(BF, 2), BM=64, BN=64, BK=32
    ):
        if name in UNSYNCHRONIZED:
            continue
        for shape in ((72, 80, 72), (8, 8, 8), (64, 64, 256)):
            for seed in range(3 if level0.kernel_of(module).level == 4 else 1):
                product(module, *shape, seed)


def test_every_stage_of_a_softmax():
    f32 = dtypes.float32
    for name, module in stages(softmax, "sm_80", x=array(f32, 2), out=array(f32, 2), WIDTH=1024):
        if name in UNSYNCHRONIZED:
            continue
        x = np.random.default_rng(0).normal(size=(3, 1000)).astype(np.float32)
        out = np.zeros_like(x)
        execute(module, [x, out], (3,))
        e = np.exp(np.float64(x) - x.max(1, keepdims=True))
        np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=2e-6)


def test_mutants_of_a_compiled_product_are_found():
    module = stages(
        matmul, "sm_80", a=array(BF, 2), b=array(BF, 2), c=array(BF, 2), BM=64, BN=64, BK=32
    )[-1][1]
    missed, count = [], 0
    for label, mutant in mutants(module):
        count += 1
        try:
            product(mutant, 64, 64, 256)
        except (Violation, AssertionError):
            continue
        missed.append(label)
    assert count > 3 and not missed
