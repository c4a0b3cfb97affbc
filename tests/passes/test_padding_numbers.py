"""Numbers that are found in memory by addresses, in loops without a count and by atomics say how
long a loop runs, whether it does and where its operands are: beside a padding tile, which leaves
them out, the other blocks of its cluster do not share copies that they say something about.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned
from tkc.fuzz.check import Comparison, Variant

BM, BN, BK = 128, 128, 64


def product(a, b, o, first, last, step, at=0):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(first, last, step):
        acc = tkc.dot(tkc.load(a, (m, at + k), (BM, BK)), tkc.load(b, (at + k, n), (BK, BN)), acc)
    tkc.store(o, (m, n), acc.to(o.dtype))


def end(a, b, o, e):
    product(a, b, o, 0, tkc.load(e.ptr) * BK, BK)


def end_of_column(a, b, o, e):
    product(a, b, o, 0, tkc.load(e.ptr + tkc.program_id(1)) * BK, BK)


def step(a, b, o, e):
    product(a, b, o, 0, 3 * BK, tkc.load(e.ptr) * BK)


def place(a, b, o, e):
    product(a, b, o, 0, BK, BK, tkc.load(e.ptr) * BK)


def counted(a, b, o, e):
    i = 0
    while e[i] > 1:
        i = i + 1
    product(a, b, o, 0, i * BK, BK)


def condition(a, b, o, e):
    if tkc.load(e.ptr) > 0:
        product(a, b, o, 0, 3 * BK, BK)


def inner(a, b, o, e):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for i in tkc.range(2):
        for k in tkc.range(0, tkc.load(e.ptr + i) * BK, BK):
            acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(o, (m, n), acc.to(o.dtype))


KERNELS = [end, end_of_column, step, place, counted, condition, inner]


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_a_padding_tile_leaves_out_what_others_go_by(kernel, cluster):
    h2 = aligned(tkc.float16, 2)
    module = traced(kernel, h2, h2, h2, array(tkc.int32, 1))

    def make() -> dict:
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-2, 3, (3 * BM, 3 * BM)).astype(np.float16) for _ in range(2))
        return {"a": a, "b": b, "o": np.ones_like(a), "e": np.array([2, 3, 1], np.int32)}

    comparison = Comparison(module, make, (3, 3))
    assert not list(
        comparison.passes(Variant("sm_90a", None, 3, each=False, forced=(("cluster", cluster),)))
    )
