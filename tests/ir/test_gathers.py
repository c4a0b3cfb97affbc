"""Which gathers lanes do by shuffles, and how many of them."""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array
from tests.passes.kernels import PIPELINE, Case, context, through
from tkc.ir import tile
from tkc.ir.dtypes import BY_NUMPY
from tkc.ir.gathers import lanes_of_places
from tkc.ir.scratch import scratch
from tkc.ir.values import operations_in


def moved(x, out, N: tkc.constexpr, BY: tkc.constexpr):
    """Lines that change in a loop are in one warp."""
    line = tkc.load(x, (0,), (N,))
    at = tkc.minimum(tkc.maximum(tkc.arange(N) - BY, 0), N - 1)
    for i in tkc.range(x.shape[0]):
        line = tkc.cumsum(tkc.gather(line, at, 0) + i, 0)
    tkc.store(out, (0,), line)


def named(x, places, out, N: tkc.constexpr):
    at = tkc.load(places, (0,), (N,))
    tkc.store(out, (0,), tkc.cumsum(tkc.gather(tkc.load(x, (0,), (N,)), at, 0), 0))


def the_gather(fn, dtypes, n, **constants):
    kinds = [array(BY_NUMPY[np.dtype(t)], 1) for t in dtypes]
    module = Case(fn, kinds, {"N": n} | constants, lambda: [], (1,)).module()
    through(module, PIPELINE[-1], context("sm_90a"))
    return next(iter(operations_in(module, tile.Gather)))


def test_neighbours_need_one_shuffle():
    """Of a lane's neighbours in one piece all but one are its own: the first one's is the lane's
    before it, and of the first lane its own.
    """
    op = the_gather(moved, ["float32", "float32"], 512, BY=1)
    found = lanes_of_places(op)
    assert found is not None and found.shuffles == 1 and scratch(op) == 0


@pytest.mark.parametrize("n, is_by_shuffles", [(32, True), (64, True), (1024, False)])
def test_places_that_are_read_go_through_memory_where_shuffles_are_many(n, is_by_shuffles):
    op = the_gather(named, ["float32", "int32", "float32"], n)
    assert (lanes_of_places(op) is not None) == is_by_shuffles
    assert (scratch(op) == 0) == is_by_shuffles
