"""Tiles of up to 2**20 elements: they compile to a text that the assembler is quick with, or are
refused at once with what would work.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import context, through
from tkc.errors import CompileError
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

TARGETS = ("sm_80", "sm_89", "sm_90a")
MAX_LINES = 40_000  # of PTX; ptxas takes some seconds over them
ROW, SQUARE = "f32[1048576]", "f32[1024, 1024]"


@tkc.jit
def sort(a, N: tkc.constexpr):
    tkc.store(a, (0,), tkc.sort(tkc.load(a, (0,), (N,))))


@tkc.jit
def topk(a, o, N: tkc.constexpr, K: tkc.constexpr):
    tkc.store(o, (0,), tkc.topk(tkc.load(a, (0,), (N,)), K))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "kernel, arguments",
    [
        (sort, (ROW, 8192)),
        (sort, (ROW, 16384)),
        (sort, (ROW, 1 << 20)),
        (sort, ("i64[4096]", 4096)),
        (topk, (ROW, ROW, 8192, 128)),
        (topk, (ROW, ROW, 8192, 1024)),
    ],
)
def test_long_sorts_are_refused_with_what_would_work(kernel, arguments, target):
    with pytest.raises(CompileError, match="does not fit the registers of a warp.*tkc.topk") as e:
        kernel.compile(*arguments, target=target)
    assert e.value.location.line in (kernel.fn.__code__.co_firstlineno + 2,)


@pytest.mark.parametrize("target", TARGETS)
def test_sorts_that_fit(target):
    assert sort.compile(ROW, 4096, target=target).ptx
    assert topk.compile(ROW, ROW, 8192, 16, target=target).ptx


@tkc.jit
def elementwise(a, b, N: tkc.constexpr):
    tkc.store(b, (0,), tkc.exp(tkc.load(a, (0,), (N,))) + 1)


@tkc.jit
def outer(a, b, c, N: tkc.constexpr):
    tkc.store(c, (0, 0), tkc.load(a, (0,), (N,))[:, None] * tkc.load(b, (0,), (N,))[None, :])


@tkc.jit
def softmax(a, M: tkc.constexpr, N: tkc.constexpr):
    x = tkc.load(a, (0, 0), (M, N))
    e = tkc.exp(x - tkc.max(x, axis=1)[:, None])
    tkc.store(a, (0, 0), e / tkc.sum(e, axis=1)[:, None])


@tkc.jit
def sums(a, o, M: tkc.constexpr, N: tkc.constexpr):
    x = tkc.load(a, (0, 0), (M, N))
    tkc.store(o, (0,), tkc.sum(tkc.exp(x - tkc.max(x, axis=1)[:, None]), axis=1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "kernel, arguments",
    [
        (elementwise, (ROW, ROW, 1 << 20)),
        (outer, (ROW, ROW, SQUARE, 1024)),
        (softmax, (SQUARE, 1024, 1024)),
        (softmax, ("f32[2048, 512]", 2048, 512)),
        (sums, (SQUARE, ROW, 1024, 1024)),
    ],
)
def test_tiles_of_a_million_elements(kernel, arguments, target):
    text = kernel.compile(*arguments, target=target).ptx
    assert text.count("\n") < MAX_LINES


def soft(a, b, M: tkc.constexpr, N: tkc.constexpr):
    """In place, and the sums of rows beside it."""
    x = tkc.load(a, (1, 2), (M, N))
    e = tkc.exp2(x - tkc.max(x, axis=1)[:, None])
    tkc.store(a, (1, 2), e * 2)
    tkc.store(b, (3,), tkc.sum(e, axis=1))


def neighbours(a, b, M: tkc.constexpr, N: tkc.constexpr):
    """Every part would read what an earlier one has written."""
    x = tkc.load(a, (1, 0), (M, N)) + tkc.load(a, (0, 0), (M, N))
    tkc.store(a, (0, 0), x - tkc.max(x, axis=1)[:, None])
    tkc.store(b, (0,), tkc.sum(x, axis=1))


@pytest.mark.parametrize("m, n", [(128, 128), (100, 96), (128, 70)])
@pytest.mark.parametrize("kernel", [soft, neighbours])
def test_rows_some_at_a_time(kernel, m, n):
    rng = np.random.default_rng(0)
    module = traced(kernel, array(tkc.float32, 2), array(tkc.float32, 1), M=m, N=n)
    a = rng.integers(-4, 5, (m + 3, n + 5)).astype(np.float32)

    def given():
        return [a.copy(), np.zeros(m + 3, np.float32)]

    level0.run(module, want := given(), (1,))
    found = through(module, PIPELINE[-1], context("sm_90a", num_warps=1))
    cut = any("rows are computed" in line for line in found.decisions)
    assert cut == (kernel is soft), found.decisions
    level4.run(module, data := given(), (1, 1, 1), 1)
    for got, expected in zip(data, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
