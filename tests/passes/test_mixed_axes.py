"""Axes that reshapes mix stay within warps, where others have room for these."""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import blank, context, normal, same, through
from tests.passes.stages import count
from tkc.ir import threads
from tkc.passes.layouts.views import mixed_axes
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4


def shuffled(x, o, R: tkc.constexpr, N: tkc.constexpr):
    """Sums and differences of the halves of rows, side by side, three times (Hadamard)."""
    v = tkc.load(x, (tkc.program_id(0) * R, 0), (R, N))
    for _ in tkc.static_range(3):
        first, second = tkc.split(v.reshape(R, 2, N // 2).permute((0, 2, 1)))
        v = tkc.join(first + second, first - second).reshape(R, N)
    tkc.store(o, (tkc.program_id(0) * R, 0), v)


@pytest.mark.parametrize("rows, warps, apart", [(4, 4, 1), (8, 4, 1), (4, 2, 1), (1, 4, 0)])
def test_rows_that_are_shuffled_have_warps_of_their_own(rows, warps, apart):
    """Where there are rows enough: threads meet for what was copied alone."""
    n = 128
    rows_of = array(tkc.float32, 2, shape=(None, n), strides=(n, 1))
    module = traced(shuffled, rows_of, rows_of, R=rows, N=n)
    through(module, PIPELINE[-1], context("sm_90a", num_warps=warps))
    assert (count(module, threads.BlockBarrier) <= 1) == apart
    x, out = normal(3 * rows, n), blank(3 * rows, n)
    level4.run(module, [x, out], (3, 1, 1))
    want = x
    for _ in range(3):
        first, second = want[:, : n // 2], want[:, n // 2 :]
        want = np.stack([first + second, first - second], axis=-1).reshape(want.shape)
    same([out], [want], 1e-6)


@pytest.mark.parametrize(
    "before, after, axes",
    [
        ((4, 128, 2), (4, 256), [1, 2]),
        ((4, 256), (4, 2, 128), [1]),
        ((4, 256), (4, 256, 1), []),
        ((1, 4, 1), (4,), []),
        ((4, 6), (6, 4), [0, 1]),
        ((2, 3, 5), (6, 5), [0, 1]),
        ((8,), (8,), []),
        ((1, 1), (1,), []),
        ((2, 1, 6, 7), (12, 7, 1), [0, 2]),
    ],
)
def test_which_axes_a_reshape_mixes(before, after, axes):
    assert list(mixed_axes(before, after)) == axes
