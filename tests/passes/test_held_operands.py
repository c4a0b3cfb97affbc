"""Left operands of wgmma that lie in registers: until a dot is over, nothing reads or writes them.

Each kernel runs as PTX on the machine of tkc.sim.ptx, which knows the registers of dots in flight.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.kernels import aligned, context, through
from tkc.ir import threads
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0

N, STEPS = 64, 4
DTYPES = {ml_dtypes.bfloat16: tkc.bfloat16, ml_dtypes.float8_e4m3fn: tkc.float8_e4m3}


def right(w, i, N):
    return tkc.load(w, (i * N, 0), (N, N))


def summed(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    """The operand is read again behind the dot."""
    total, rows = tkc.zeros((M, N)), tkc.zeros(M)
    for i in tkc.range(n):
        p = tkc.load(x, (i * M, 0), (M, N)) * 2
        total = tkc.dot(p, right(w, i, N), total)
        rows = rows + tkc.sum(p.to(tkc.float32), axis=1)
    tkc.store(o, (0, 0), total)
    tkc.store(r, (0, 0), tkc.broadcast_to(rows[:, None], (M, N)).to(r.dtype))


def stored(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    total = tkc.zeros((M, N))
    for i in tkc.range(n):
        p = tkc.load(x, (i * M, 0), (M, N)) * 2
        total = tkc.dot(p, right(w, i, N), total)
        tkc.store(r, (i * M, 0), p)
    tkc.store(o, (0, 0), total)


def counted(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    """The loop carries the operand, and computes its next value of it."""
    total, p = tkc.zeros((M, N)), tkc.load(x, (0, 0), (M, N))
    for i in tkc.range(n):
        total = tkc.dot(p, right(w, i, N), total)
        p = p + 1
    tkc.store(o, (0, 0), total)


def loaded_ahead(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    """As one pipelines by hand."""
    total, p = tkc.zeros((M, N)), tkc.load(x, (0, 0), (M, N))
    for i in tkc.range(n):
        total = tkc.dot(p, right(w, i, N), total)
        p = tkc.load(x, ((i + 1) * M, 0), (M, N))
    tkc.store(o, (0, 0), total)


def flipped(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    """The next value is a selection of the same registers."""
    total, p = tkc.zeros((M, N)), tkc.load(x, (0, 0), (M, N))
    for i in tkc.range(n):
        total = tkc.dot(p, right(w, i, N), total)
        p = tkc.flip(p, 0)
    tkc.store(o, (0, 0), total)


def exchanged(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    total, p, q = tkc.zeros((M, N)), *(tkc.load(x, (i, 0), (M, N)) + 1 for i in (0, M))
    for i in tkc.range(n):
        total = tkc.dot(p, right(w, i, N), total)
        p, q = q, p
    tkc.store(o, (0, 0), total)


def chosen(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    """A branch gives the next value."""
    total, p = tkc.zeros((M, N)), tkc.load(x, (0, 0), (M, N)) + 1
    for i in tkc.range(n):
        total = tkc.dot(p, right(w, i, N), total)
        p = tkc.load(x, (i * M, 0), (M, N)) if i % 2 == 1 else p + 1
    tkc.store(o, (0, 0), total)


def kept(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    """The operand of one dot is that of another in the next iteration."""
    total, before = tkc.zeros((M, N)), tkc.zeros((M, N), x.dtype)
    for i in tkc.range(n):
        p = tkc.load(x, (i * M, 0), (M, N)) * 2
        total = tkc.dot(p, right(w, i, N), total)
        total = tkc.dot(before, right(w, i, N), total)
        before = p
    tkc.store(o, (0, 0), total)


def grown(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    """A sum is read while another dot goes on with it."""
    left = tkc.load(x, (0, 0), (M, N))
    first = tkc.dot(left, right(w, 0, N))
    tkc.store(r, (0, 0), tkc.dot(left, right(w, 1, N), first).to(r.dtype))
    tkc.store(o, (0, 0), first)


def loaded_behind(x, w, o, r, n, M: tkc.constexpr, N: tkc.constexpr):
    """The next value is read of a stage at the place where the dot before is over."""
    total, p = tkc.zeros((M, N)), tkc.load(x, (0, 0), (M, N)) + 1
    for i in tkc.range(n):
        total = tkc.dot(p, tkc.load(w, (i * N, 0), (N, N)).T, total)
        p = tkc.load(x, (i * M, 0), (M, N))
    tkc.store(o, (0, 0), total)


KERNELS = (summed, stored, counted, loaded_ahead, flipped, exchanged, chosen, kept, grown)
KERNELS += (loaded_behind,)


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_their_registers_are_the_dots(kernel, dtype, rows):
    random = np.random.default_rng(0)
    x, w = (random.integers(-2, 3, (n * (STEPS + 1), N)).astype(dtype) for n in (rows, N))
    o, r = np.zeros((rows, N), np.float32), np.zeros((rows * STEPS, N), dtype)
    array, results = aligned(DTYPES[dtype], 2), aligned(tkc.float32, 2)
    module = traced(kernel, array, array, results, array, i32(), M=rows, N=N)
    wants = [a.copy() for a in (x, w, o, r)]
    level0.run(module, [*wants, STEPS], (1, 1, 1))
    through(module, PIPELINE[-1], context("sm_90a", num_warps=rows // 16))
    if dtype is ml_dtypes.bfloat16:
        assert any(isinstance(op, threads.DotAsync) for op in module.walk())
    machine.run(module, [x, w, o, r, STEPS], (1, 1, 1))
    assert (o == wants[2]).all() and (r.view(np.uint8) == wants[3].view(np.uint8)).all()
