"""A left operand in registers that every iteration computes anew, of nothing that it reads."""

import numpy as np

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.kernels import aligned, context, through
from tkc.ir import threads
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4

M, N, K = 128, 64, 32


def masked(a, b, out):
    """Columns of one block that each iteration masks by its own number."""
    x = tkc.load(a, (0, 0), (M, K)).to(tkc.float32) % 3
    total = tkc.zeros((M, N))
    for k in tkc.range(0, b.shape[0], K):
        here = tkc.arange(M)[:, None] >= k + tkc.arange(K)[None, :]
        left = tkc.where(here, x, 0.0).to(tkc.float16)
        total = tkc.dot(left, tkc.load(b, (k, 0), (K, N)), total)
    tkc.store(out, (0, 0), total)


def test_registers_are_written_when_the_dot_before_is_over():
    half, single = aligned(tkc.float16, 2), aligned(tkc.float32, 2)
    module, given = traced(masked, half, half, single), context("sm_90a", num_warps=8)
    through(module, PIPELINE[-1], given)
    assert any(isinstance(op, threads.DotAsync) for op in module.walk())
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((M, K), (4 * K, N)))
    left = a.astype(float) % 3
    want = np.zeros((M, N))
    for k in range(0, 4 * K, K):
        here = np.arange(M)[:, None] >= k + np.arange(K)
        want += np.where(here, left, 0) @ b[k : k + K].astype(float)
    for run in (
        lambda x: level4.run(module, x, (1, 1, 1), 1),
        lambda x: machine.run(module, x, (1, 1, 1)),
    ):
        out = np.zeros((M, N), np.float32)
        run([a, b, out])
        np.testing.assert_array_equal(out, want)
