"""Loops whose bounds lie farther apart than their type reaches run as often where passes count
their iterations.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import i32, traced
from tests.passes.kernels import aligned
from tkc.fuzz.check import Comparison, Variant

N = 64
LARGEST = 2**31 - 1


def products(a, b, o, first, end, STEP: tkc.constexpr, SHIFT: tkc.constexpr):
    """Sums of products of blocks that the upper bits of a counter name."""
    m, n, acc = tkc.program_id(0) * N, tkc.program_id(1) * N, tkc.zeros((N, N))
    for at in tkc.range(first, end, STEP):
        k = (at >> SHIFT) & N
        acc = tkc.dot(tkc.load(a, (m, k), (N, N)), tkc.load(b, (k, n), (N, N)), acc)
    tkc.store(o, (m, n), acc)


FAR = [(0, LARGEST, 2**29, 23), (-2 * 10**9, 2 * 10**9, 5 * 10**8, 23), (2**30, -LARGEST, 8, 0)]


@pytest.mark.parametrize("option", [("roles", "pingpong"), ("serpentine", True)], ids=str)
@pytest.mark.parametrize("first, end, step, shift", [*FAR, (0, 192, 64, 0)])
def test_a_loop_whose_bounds_lie_far_apart(option, first, end, step, shift):
    kinds = aligned(tkc.float16, 2), aligned(tkc.float16, 2), aligned(tkc.float32, 2)
    module = traced(products, *kinds, i32(), i32(), STEP=step, SHIFT=shift)
    rng = np.random.default_rng(0)
    whole = [rng.integers(-1, 2, (2 * N, 2 * N)).astype(np.float16) for _ in range(2)]

    def make() -> dict:
        data = [*(x.copy() for x in whole), np.ones((2 * N, 2 * N), np.float32)]
        return dict(zip(("a", "b", "o", "first", "end"), (*data, first, end), strict=True))

    comparison = Comparison(module, make, (2, 2))
    assert comparison.want["o"].any() == (first < end)
    variant = Variant("sm_90a", None, 3, each=False, forced=(option,))
    assert not list(comparison.passes(variant))
