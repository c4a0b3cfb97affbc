"""rotate-loops and the search under it: which dots run late, the IR before and after, every level equal for unlike kernels and short loops, the optimum against brute force."""
from functools import cache
from itertools import combinations, permutations
from time import perf_counter

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, attention, f32, traced
from tests.passes.kernels import aligned, context, through
from tests.passes.stages import assembler, assembles_clean, distinct, level, parses_back, run
from tkc.ir import tile
from tkc.ir.target import target
from tkc.passes.pipeline import PIPELINE, module_of
from tkc.passes.planning.bodies import Machine, best_stages
from tkc.passes.planning.stages import ALIKE, Body, Crossing, Group, choices, ordered, rotated, search

BF16 = ml_dtypes.bfloat16
LAST = PIPELINE[-1]
BEFORE = PIPELINE[PIPELINE.index("rotate-loops") - 1]


def chain(q, k, v, w, u, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Three dots, each waiting for the one before."""
    m = tkc.program_id(0) * BM
    qi, total = tkc.load(q, (m, 0), (BM, D)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        p = tkc.exp2(tkc.dot(qi, tkc.load(k, (n, 0), (BN, D)).T) * 0.1)
        g = tkc.exp2(tkc.dot(p.to(q.dtype), tkc.load(v, (n, 0), (BN, BN))) * 0.01)
        total = tkc.dot(g.to(q.dtype), tkc.load(w, (n, 0), (BN, D)), total)
    tkc.store(u, (m, 0), total)


def linear(q, k, v, o, last, C: tkc.constexpr, D: tkc.constexpr):
    """Linear attention, chunk by chunk: a result leaves in every iteration."""
    state, i = tkc.zeros((D, D)), tkc.arange(C)
    for n in tkc.range(0, k.shape[0], C):
        qi, ki, vi = (tkc.load(x, (n, 0), (C, D)) for x in (q, k, v))
        s = tkc.where(i[:, None] >= i[None, :], tkc.exp2(tkc.dot(qi, ki.T)), 0.0)
        tkc.store(o, (n, 0), tkc.dot(s.to(v.dtype), vi, tkc.dot(qi, state.to(v.dtype))))
        state = tkc.dot(ki.T, vi, state)
    tkc.store(last, (0, 0), state)


def backward(q, k, v, do, lse, delta, dk, dv, scale, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Attention's gradients of keys and values: blocks that early and late dots read."""
    n = tkc.program_id(0) * BN
    ki, vi = tkc.load(k, (n, 0), (BN, D)), tkc.load(v, (n, 0), (BN, D))
    gk, gv = tkc.zeros((BN, D)), tkc.zeros((BN, D))
    for m in tkc.range(0, q.shape[0], BM):
        qi, gi = tkc.load(q, (m, 0), (BM, D)), tkc.load(do, (m, 0), (BM, D))
        p = tkc.where((m + tkc.arange(BM) < q.shape[0])[None, :], tkc.exp2(tkc.dot(ki, qi.T) * scale - tkc.load(lse, (m,), (BM,))[None, :]), 0.0)
        gv = tkc.dot(p.to(q.dtype), gi, gv)
        ds = p * (tkc.dot(vi, gi.T) - tkc.load(delta, (m,), (BM,))[None, :])
        gk = tkc.dot(ds.to(q.dtype), qi, gk)
    tkc.store(dk, (n, 0), gk)
    tkc.store(dv, (n, 0), gv)


def carried(q, k, v, u, sums, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Late vector work with results of its own, values that early and late operations read as the loop carries them, and one that is handed on from one to another."""
    m = tkc.program_id(0) * BM
    qi, total, run_, before, shift = tkc.load(q, (m, 0), (BM, D)), tkc.zeros((BM, D)), tkc.zeros((BM,)), tkc.zeros((BM,)), tkc.zeros((BM,))
    for n in tkc.range(0, k.shape[0], BN):
        p = tkc.exp2(tkc.dot(qi, tkc.load(k, (n, 0), (BN, D)).T) * 0.1 - shift[:, None])
        t = tkc.dot(p.to(q.dtype), tkc.load(v, (n, 0), (BN, D)))
        before = run_
        run_ = run_ * 0.5 + tkc.sum(t, axis=1) + shift
        shift = shift + tkc.max(p, axis=1) * 0.25
        total = total * 0.5 + t * before[:, None]
    tkc.store(u, (m, 0), total + before[:, None])
    tkc.store(sums, (m,), run_ + shift)


def normal(*shape, seed=0): return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(BF16)


b, f, vector = aligned(tkc.bfloat16, 2), aligned(tkc.float32, 2), array(tkc.float32)
b4 = aligned(tkc.bfloat16, 4)
D = 64
# name: the kernel traced, and its arguments for so many iterations
KERNELS = {
    "attention": (lambda: traced(attention, *(b4,) * 4, f32(), CAUSAL=False, D=D, BM=64, BN=64), lambda n: [normal(1, 1, 64, D), normal(1, 1, 64 * n, D, seed=1), normal(1, 1, 64 * n, D, seed=2), np.full((1, 1, 64, D), np.nan, BF16), 0.125]),
    "chain": (lambda: traced(chain, *(b,) * 4, f, BM=64, BN=64, D=D), lambda n: [normal(64, D), normal(64 * n, D, seed=1), normal(64 * n, 64, seed=2), normal(64 * n, D, seed=3), np.full((64, D), np.nan, np.float32)]),
    "linear": (lambda: traced(linear, *(b,) * 3, f, f, C=64, D=D), lambda n: [*(normal(64 * n, D, seed=i) for i in range(3)), np.full((64 * n, D), np.nan, np.float32), np.full((D, D), np.nan, np.float32)]),
    "backward": (lambda: traced(backward, *(b,) * 4, vector, vector, f, f, f32(), BM=64, BN=64, D=D), lambda n: [normal(64 * n, D), *(normal(64, D, seed=i) for i in (1, 2)), normal(64 * n, D, seed=3), *(np.float32(normal(64 * n, seed=i)) for i in (4, 5)),
                                                                                                       *(np.full((64, D), np.nan, np.float32) for _ in range(2)), 0.125]),
    "carried": (lambda: traced(carried, *(b,) * 3, f, vector, BM=64, BN=64, D=D), lambda n: [normal(64, D), normal(64 * n, D, seed=1), normal(64 * n, D, seed=2), np.full((64, D), np.nan, np.float32), np.full(64, np.nan, np.float32)]),
}
ROLES = {"roles": {}, "one role": {"roles": "one", "rotate": True}, "older": {"rotate": True}}
MACHINES = {"roles": "sm_90a", "one role": "sm_90a", "older": "sm_80"}
LATE = {("attention", "roles"): (1,), ("chain", "roles"): (1, 2)}


@cache
def compiled(name: str, how: str):
    modules = {}
    given = through(KERNELS[name][0](), LAST, context(MACHINES[how], relax=False, **ROLES[how]), lambda step, module: modules.setdefault(step, module.clone()))
    return modules, given


def results(module, name: str, steps: int, seed: int = 0) -> list:
    data = KERNELS[name][1](steps)
    run(module, data, (1, 1, 1), **({"seed": seed} if level(module) == 4 else {}))
    return [x.astype(np.float32) for x in data if isinstance(x, np.ndarray)]


# ---- the loop as it was ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("how", ROLES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_values_are_those_of_the_loop_as_it_was(name, how, steps):
    """Bit for bit after the pass; at every later level as exactly as what is computed allows."""
    modules, _ = compiled(name, how)
    want = results(modules[BEFORE], name, steps)
    for x, y in zip(results(modules["rotate-loops"], name, steps), want): np.testing.assert_array_equal(x, y)
    later = dict(list(modules.items())[list(modules).index("rotate-loops"):])
    for module in distinct(later):
        if level(module) == 4 and module is not later[LAST]: continue
        for x, y in zip(results(module, name, steps), want): np.testing.assert_allclose(x, y, rtol=2e-2, atol=2e-2 * np.abs(y).max(initial=1e-3))


@pytest.mark.parametrize("name, how", LATE)
def test_which_dots_are_late(name, how):
    assert compiled(name, how)[1].plan.rotate == LATE[name, how]


@assembler
@pytest.mark.parametrize("how", ROLES)
@pytest.mark.parametrize("name", KERNELS)
def test_assembles_clean(name, how): assembles_clean(compiled(name, how)[0][LAST], MACHINES[how])
