"""shorten-exponentials: of what dots of short elements made, and of nothing else."""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import aligned, context, through
from tests.passes.stages import count
from tkc.ir.elementwise import CLASSES
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

N = 64


def sums(q, k, out, WIDE: tkc.constexpr, LOADED: tkc.constexpr):
    """Sums of exponentials of scores, less the largest so far; or of what is loaded."""
    most, total = tkc.full((N,), float("-inf")), tkc.zeros((N,))
    x = tkc.load(q, (0, 0), (N, N))
    for n in range(0, k.shape[0], N):
        y = tkc.load(k, (n, 0), (N, N))
        a, b = (v.to(tkc.float32) if WIDE else v for v in (x, y))
        s = tkc.dot(a, b.T)
        if LOADED:
            total = total + tkc.sum(tkc.exp(y.to(tkc.float32)), 1) + tkc.sum(s, 1)
        else:
            s = tkc.where(tkc.arange(N)[None, :] + n < k.shape[0], s, float("-inf"))
            now = tkc.maximum(most, tkc.max(s, 1))
            total = total * tkc.exp(most - now) + tkc.sum(tkc.exp(s - now[:, None]), 1)
            most = now
    tkc.store(out, (0, 0), total[None, :])


def module(wide: bool = False, loaded: bool = False):
    half, single = aligned(tkc.bfloat16, 2), aligned(tkc.float32, 2)
    return traced(sums, half, half, single, WIDE=wide, LOADED=loaded)


def test_exponentials_of_scores_are_powers_of_two():
    """Those of masked scores, and of what the loop carries."""
    made, given = module(), context("sm_90a")
    through(made, "shorten-exponentials", given)
    assert count(made, CLASSES["exp"]) == 0 and count(made, CLASSES["exp2"]) == 2
    assert any(d.startswith("shorten-exponentials: 2 of") for d in given.decisions)


@pytest.mark.parametrize("wide, loaded", [(True, False), (False, True)])
def test_others_stay(wide, loaded):
    """Of dots of float32, which are exact to float32; and of what is loaded, beside such a dot."""
    made, given = module(wide, loaded), context("sm_90a")
    through(made, "shorten-exponentials", given)
    assert count(made, CLASSES["exp2"]) == 0 and count(made, CLASSES["exp"])
    assert not any(d.startswith("shorten-exponentials") for d in given.decisions)


def picked(q, k, out):
    """Exponentials of loaded numbers, where scores are positive."""
    x, y = (tkc.load(a, (0, 0), (N, N)) for a in (q, k))
    s = tkc.dot(x, y.T)
    tkc.store(out, (0, 0), tkc.exp(tkc.where(s > 0, y.to(tkc.float32), 0.0)))


def test_what_scores_only_pick_stays():
    half, single = aligned(tkc.bfloat16, 2), aligned(tkc.float32, 2)
    made = traced(picked, half, half, single)
    through(made, "shorten-exponentials", context("sm_90a"))
    assert count(made, CLASSES["exp"]) == 1 and count(made, CLASSES["exp2"]) == 0


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_the_sums_are_right(name):
    """Also where all that has been seen is masked."""
    rng = np.random.default_rng(3)
    q = rng.standard_normal((N, N)).astype(ml_dtypes.bfloat16)
    k = rng.standard_normal((2 * N - 48, N)).astype(ml_dtypes.bfloat16)
    scores = q.astype(np.float64) @ k.astype(np.float64).T
    want = np.exp(scores - scores.max(1, keepdims=True)).sum(1)
    out = np.zeros((16, N), np.float32)
    level0.run(module(), [q, k, out], (1, 1, 1))
    np.testing.assert_allclose(out[0], want, rtol=1e-5)
    compiled = module()
    through(compiled, PIPELINE[-1], context(name))
    out = np.zeros((16, N), np.float32)
    level4.run(compiled, [q, k, out], (1, 1, 1), 1)
    np.testing.assert_allclose(out[0], want, rtol=1e-5)
