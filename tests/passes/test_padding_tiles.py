"""A padding tile, beside the grid's end, computes with its group and does nothing that shows: it
ends where the others end, and accesses nothing that lies outside.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.stages import distinct, run
from tests.passes.test_roles import array, integers
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

BM, BK, STEPS = 64, 32, 3
OPTIONS = [
    pytest.param(dict(), 5, id="as planned"),
    pytest.param(dict(programs=3, num_warps=4), 1, id="one of three"),
    pytest.param(dict(programs=3, num_warps=4), 4, id="two groups of three"),
    pytest.param(dict(cluster=(2, 1)), 3, id="cluster"),
]
FLAGS = ArrayArgument(tkc.int32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))


def doubled_until_large(x, y, z, flags, c, BM: tkc.constexpr, BK: tkc.constexpr):
    """What ends a loop is loaded: a padding tile has a zero there."""
    p = tkc.program_id(0)
    left, acc = tkc.load(x[p], (0, 0), (BM, BK)), tkc.zeros((BM, BM), tkc.float32)
    for k in tkc.range(p % 3 * BK, y.shape[1], BK):
        part = tkc.dot(left, tkc.load(y, (0, k), (BK, BK))).to(tkc.bfloat16)
        acc = tkc.dot(part, tkc.load(y, (0, k), (BM, BK)).T, acc)
    n = flags[p]
    while n < 100:
        n = n * 2
    tkc.store(c[p], (0, 0), acc + n)


def views_in_a_loop(x, y, z, flags, c, BM: tkc.constexpr, BK: tkc.constexpr):
    """A counter, and a number that a loop carries, index an array."""
    p = tkc.program_id(0)
    left, acc = tkc.load(x[p], (0, 0), (BM, BK)), tkc.zeros((BM, BM), tkc.float32)
    rows, at = tkc.zeros((BM,), tkc.float32), p * 2
    for b in tkc.range(p * 2, p * 2 + 2):
        rows = rows + tkc.load(z[b], (0,), (BM,)) + 3 * tkc.load(z[at], (0,), (BM,))
        at = at + 1
    for k in tkc.range(p % 3 * BK, y.shape[1], BK):
        part = tkc.dot(left, tkc.load(y, (0, k), (BK, BK))).to(tkc.bfloat16)
        acc = tkc.dot(part, tkc.load(y, (0, k), (BM, BK)).T, acc)
    tkc.store(c[p], (0, 0), acc + rows[:, None])


def _products(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of each program: the sum over its steps of two dots, the first rounded to bfloat16."""
    right, found = np.float64(y), np.zeros((len(x), BM, BM))
    for p, left in enumerate(np.float64(x)):
        for k in range(p % 3 * BK, STEPS * BK, BK):
            part = (left @ right[:BK, k : k + BK]).astype(x.dtype)
            found[p] += np.float64(part) @ right[:, k : k + BK].T
    return found


@pytest.mark.parametrize("kernel", [doubled_until_large, views_in_a_loop])
@pytest.mark.parametrize("options, programs", OPTIONS)
def test_a_padding_tile_does_no_harm(options, programs, kernel):
    matrix, boxes = array(tkc.bfloat16), array(tkc.bfloat16, 3)
    given = boxes, matrix, array(tkc.float32), FLAGS, array(tkc.float32, 3)
    modules, _ = stages.compiled(traced(kernel, *given, BM=BM, BK=BK), **options)
    x = integers(programs * BM, BK, dtype=tkc.bfloat16, seed=0).reshape(programs, BM, BK)
    y = integers(BM, STEPS * BK, dtype=tkc.bfloat16, seed=1)
    z = integers(2 * programs, BM, dtype=tkc.float32, seed=2)
    flags, want = np.arange(1, programs + 1, dtype=np.int32), _products(x, y)
    if kernel is doubled_until_large:
        want += (flags * 2 ** np.ceil(np.log2(100 / flags)))[:, None, None]
    else:
        want += 4 * np.float64(z).reshape(programs, 2, BM).sum(1)[:, :, None]
    for module in distinct(modules):
        c = np.zeros((programs, BM, BM), np.float32)
        run(module, [x, y, z, flags, c], (programs, 1, 1))
        np.testing.assert_array_equal(c, want.astype(np.float32))
