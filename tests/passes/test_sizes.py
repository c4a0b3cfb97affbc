"""Tiles of up to 2**20 elements: they compile to a text that the assembler is quick with, or are
refused at once with what would work.
"""

import time

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
        (sort, (ROW, 1 << 16)),
        (sort, (ROW, 1 << 20)),
        (sort, ("i64[32768]", 32768)),
        (topk, (ROW, ROW, 1 << 16, 512)),
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
def first_largest(a, o, N: tkc.constexpr):
    tkc.store(o, (0,), tkc.full((1,), tkc.argmax(tkc.load(a, (0,), (N,)))))


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_that_threads_cannot_exchange_are_refused_at_once(target):
    began = time.process_time()
    with pytest.raises(CompileError, match="1048576 elements of a tile.*parts of one in a loop"):
        first_largest.compile(ROW, "i32[1]", 1 << 20, target=target)
    assert time.process_time() - began < 3  # it was 16


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


@tkc.jit
def running(a, b, N: tkc.constexpr):
    tkc.store(b, (0,), tkc.cumsum(tkc.load(a, (0,), (N,))))


@tkc.jit
def numbers(a, N: tkc.constexpr):
    """A hundred operations an element, none of which comes from memory."""
    tkc.store(a, (0,), tkc.rand(1, tkc.arange(N)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "kernel, arguments", [(running, (ROW, ROW, 1 << 20)), (numbers, (ROW, 1 << 20))]
)
def test_a_million_elements_some_at_a_time(kernel, arguments, target):
    assert kernel.compile(*arguments, target=target).ptx.count("\n") < MAX_LINES / 4


def scans(a, b, c, M: tkc.constexpr, N: tkc.constexpr, AXIS: tkc.constexpr, REVERSE: tkc.constexpr):
    """Two scans of what a block is computed of, and sums over one of them."""
    x = tkc.load(a, (0, 0), (M, N)) + 1
    sums = tkc.cumsum(x, axis=AXIS, reverse=REVERSE)
    tkc.store(b, (0, 0), sums - tkc.cumprod(x, axis=AXIS, reverse=REVERSE))
    tkc.store(c, (0,), tkc.sum(sums, axis=1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "dtype, m, n", [("int32", 100, 128), ("float16", 2, 3000), ("float32", 1, 5000)]
)
def test_scans_go_on_from_part_to_part(dtype, m, n, axis, reverse):
    kind = getattr(tkc, dtype)
    arguments = array(kind, 2), array(kind, 2), array(kind, 1)
    module = traced(scans, *arguments, M=m, N=n, AXIS=axis, REVERSE=reverse)
    a = (np.random.default_rng(0).integers(0, 2, (m, n)) - 1).astype(dtype)

    def given():
        return [a.copy(), np.zeros((m, n), dtype), np.zeros(m, dtype)]

    level0.run(module, want := given(), (1,))
    found = through(module, PIPELINE[-1], context("sm_90a", num_warps=1))
    assert any("fit-rows" in line for line in found.decisions), found.decisions
    level4.run(module, data := given(), (1, 1, 1), 1)
    for got, expected in zip(data, want, strict=True):
        np.testing.assert_array_equal(got, expected)


def combined(a, b, N: tkc.constexpr):
    """A function of the user's, of which nothing says what it begins with."""
    tkc.store(b, (0,), tkc.scan(tkc.load(a, (0,), (N,)), 0, lambda x, y: x + y))


def both_ways(a, b, N: tkc.constexpr):
    """One begins with the last part, the other with the first."""
    x = tkc.load(a, (0,), (N,))
    tkc.store(b, (0,), tkc.cumsum(x) - tkc.cumsum(x, reverse=True))


@pytest.mark.parametrize("kernel", [combined, both_ways])
def test_scans_that_do_not_go_on_are_made_at_once(kernel):
    module = traced(kernel, *[array(tkc.float32)] * 2, N=20000)
    a = np.random.default_rng(0).integers(-1, 2, 20000).astype(np.float32)
    level0.run(module, [a, want := np.zeros(20000, np.float32)], (1,))
    found = through(module, PIPELINE[-1], context("sm_90a", num_warps=1))
    assert not any("parts of" in line or "at a time" in line for line in found.decisions)
    level4.run(module, [a, got := np.zeros(20000, np.float32)], (1, 1, 1), 1)
    np.testing.assert_array_equal(got, want)
