"""Indices and bounds of arrays: a negative one counts from the end, as Python's.

It does so whether it is known when the kernel is compiled or only when it runs.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tkc.ir.text import show

HOWS = [None, "TKC_INTERPRET", "TKC_SIM"]


@pytest.fixture(params=HOWS, ids=str)
def how(request, monkeypatch):
    """Each way in which a kernel runs without a GPU."""
    if request.param:
        monkeypatch.setenv(request.param, "1")


@tkc.jit
def elements(x, y, out, i):
    tkc.store(out, 0, x[i])
    tkc.store(out, 1, y[i][1])
    tkc.store(out, 2, y[i, i])
    tkc.store(out, 3, y[i:][0][1])


@tkc.jit
def sections(x, out, lengths, i, j):
    for k, part in enumerate((x[i:], x[:j], x[i:j])):
        tkc.store(out, (k, 0), tkc.load(part, 0, 8, other=-1)[None, :])
        tkc.store(lengths, k, part.shape[0])


@pytest.mark.parametrize("i", [-3, -1, 0, 2])
def test_a_negative_index_counts_from_the_end(i, how):
    x, y = np.arange(10, 17, dtype=np.int32), np.arange(9, dtype=np.int32).reshape(3, 3)
    out = np.zeros(4, np.int32)
    elements[1](x, y, out, i)
    assert out.tolist() == [x[i], y[i][1], y[i, i], y[i:][0][1]]


@pytest.mark.parametrize("bounds", [(-3, -1), (2, -1), (-100, 5), (-2, 100), (0, -100), (3, 5)])
def test_negative_bounds_of_a_slice_count_from_the_end(bounds, how):
    x, lengths = np.arange(10, 17, dtype=np.int32), np.zeros(3, np.int32)
    out = np.zeros((3, 8), np.int32)
    sections[1](x, out, lengths, *bounds)
    i, j = bounds
    for got, n, want in zip(out, lengths, (x[i:], x[:j], x[i:j]), strict=True):
        assert n == len(want) and got.tolist() == want.tolist() + [-1] * (8 - n)


@pytest.mark.parametrize("n", [None, 7])
def test_bounds_known_to_the_compiler_are_those_of_python(n):
    """A bound before the first element is that element, whether or not the extent is known."""

    def kernel(x, out):
        tkc.store(out, 0, x[-100:].shape[0])
        tkc.store(out, 1, x[-2:].shape[0])
        tkc.store(out, 2, x[:-100].shape[0])

    from tkc.sim.level0 import run

    out = np.zeros(3, np.int32)
    facts = {"shape": (n,)} if n else {}
    module = traced(kernel, array(tkc.float32, 1, **facts), array(tkc.int32))
    run(module, [np.zeros(7, np.float32), out], (1, 1, 1))
    assert out.tolist() == [7, 2, 0]


@pytest.mark.parametrize(
    "how", ["program", "counter", "backwards", "promise", "unsigned", "branch", "and"]
)
def test_an_index_known_not_to_be_negative_costs_nothing(how):
    def kernel(x, out, n):
        if how == "program":
            tkc.store(out, 0, x[tkc.program_id(0)])
        elif how == "counter":
            for i in tkc.range(n):
                tkc.store(out, i, x[i])
        elif how == "backwards":
            for i in tkc.range(n - 1, -1, -1):
                tkc.store(out, i, x[i])
        elif how == "promise":
            tkc.assume(n >= 0)
            tkc.store(out, 0, x[n])
        elif how == "branch":
            if n > 0:
                tkc.store(out, 0, x[n - 1])
        elif how == "and":
            if n > 0 and x[n - 1] == 3:
                tkc.store(out, 0, 1)
        else:
            tkc.store(out, 0, x[n.to(tkc.uint32)])

    text = show(traced(kernel, array(tkc.int32), array(tkc.int32), i32()))
    assert "tile.select" not in text


def test_a_promise_in_a_branch_holds_there_alone():
    def kernel(x, out, n):
        if n >= 3:
            tkc.assume(n >= 0)
        tkc.store(out, 0, x[n])

    assert "tile.select" in show(traced(kernel, array(tkc.int32), array(tkc.int32), i32()))
