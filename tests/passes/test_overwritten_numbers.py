"""Programs that overwrite a number that says where, whether or how often operands are loaded: a
role that copies ahead would read it too late, or too early.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned, context, through
from tkc.fuzz.check import Comparison, Variant
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

N, K, MOST = 64, 32, 4
VARIANTS = {
    "as planned": Variant("sm_90a", None, 3, each=False, seeds=range(2)),
    "two warpgroups": Variant("sm_90a", 8, 2, each=False, seeds=range(2)),
    "three programs": Variant("sm_90a", 4, 3, 3, each=False, seeds=range(2)),
}


def product(x, y, acc, i):
    """A sum and one step more of it."""
    return tkc.dot(tkc.load(x, (0, i * K), (N, K)), tkc.load(y, (i * K, 0), (K, N)), acc)


def trips_before(x, y, w, o):
    trips, acc = w[0], tkc.zeros((N, N))
    tkc.store(w, (0,), tkc.full((1,), 1))
    for i in tkc.range(0, trips):
        acc = product(x, y, acc, i)
    tkc.store(o, (0, 0), acc)


def trips_behind(x, y, w, o):
    trips, acc = w[0], tkc.zeros((N, N))
    for i in tkc.range(0, trips):
        acc = product(x, y, acc, i)
    tkc.store(w, (0,), tkc.full((1,), 1))
    tkc.store(o, (0, 0), acc)


def trips_by_pointer(x, y, w, o):
    trips, acc = tkc.load(w.ptr), tkc.zeros((N, N))
    tkc.store(w.ptr, 1)
    for i in tkc.range(0, trips):
        acc = product(x, y, acc, i)
    tkc.store(o, (0, 0), acc)


def place(x, y, w, o):
    first, acc = w[0], tkc.zeros((N, N))
    tkc.store(w, (0,), tkc.full((1,), 1))
    for i in tkc.range(0, MOST):
        acc = product(x, y, acc, i + first)
    tkc.store(o, (0, 0), acc)


def branch_of_a_loop(x, y, w, o):
    acc = tkc.zeros((N, N))
    for i in tkc.range(0, MOST):
        if w[0] > i:
            acc = product(x, y, acc, i)
        tkc.store(w, (0,), tkc.full((1,), 1 + i))
    tkc.store(o, (0, 0), acc)


def end_of_a_while(x, y, w, o):
    i, acc = 0, tkc.zeros((N, N))
    while i < w[0]:
        acc = product(x, y, acc, i)
        i = i + 1
    tkc.store(w, (0,), tkc.full((1,), MOST + 3))
    tkc.store(o, (0, 0), acc)


def end_that_its_loop_changes(x, y, w, o):
    i, acc = 0, tkc.zeros((N, N))
    while i < w[0]:
        acc = product(x, y, acc, i)
        i = i + 1
        tkc.store(w, (0,), tkc.full((1,), MOST - i // MOST))
    tkc.store(o, (0, 0), acc)


def branch_round_a_loop(x, y, w, o):
    acc = tkc.zeros((N, N))
    if w[0] > 2:
        tkc.store(w, (0,), tkc.full((1,), 1))
        for i in tkc.range(0, MOST):
            acc = product(x, y, acc, i)
    tkc.store(o, (0, 0), acc)


def read_for_the_next_step(x, y, w, o):
    """What the loop carries was read before it is overwritten, and is used behind that."""
    row, acc = w[0], tkc.zeros((N, N))
    for i in tkc.range(0, MOST):
        acc = product(x, y, acc, row % MOST)
        row = w[i]
        tkc.store(w, (i,), tkc.full((1,), i))
    tkc.store(o, (0, 0), acc)


def read_in_a_branch_that_stores(x, y, w, o):
    """It stores elsewhere; what it reads is overwritten behind it."""
    first, acc = 0, tkc.zeros((N, N))
    if x.shape[0] > 1:
        first = w[0]
        tkc.store(y, (0, 0), tkc.full((1, 1), 1, tkc.float16))
    tkc.store(w, (0,), tkc.full((1,), 1))
    for i in tkc.range(0, MOST):
        acc = product(x, y, acc, i + first)
    tkc.store(o, (0, 0), acc)


def place_by_a_maximum(x, y, w, o):
    """Of floats, which roles do not look up."""
    first = tkc.max(tkc.load(o, (0, 0), (1, 16)).reshape(16), axis=0).to(tkc.int32)
    acc = tkc.zeros((N, N))
    tkc.store(o, (0, 0), tkc.full((1, 16), 1.0))
    for i in tkc.range(0, MOST):
        acc = product(x, y, acc, i + first)
    tkc.store(o, (0, 0), acc)


def trips_by_a_maximum(x, y, w, o):
    trips = MOST - tkc.max(tkc.load(o, (0, 0), (1, 16)).reshape(16), axis=0).to(tkc.int32)
    acc = tkc.zeros((N, N))
    for i in tkc.range(0, trips):
        acc = product(x, y, acc, i)
        tkc.store(o, (0, 0), tkc.full((1, 16), 1.0))
    tkc.store(o, (0, 0), acc)


def stored_as_often_as_a_maximum_says(x, y, w, o):
    trips, acc = w[0], tkc.zeros((N, N))
    count = 2 + tkc.max(tkc.load(o, (0, 0), (1, 16)).reshape(16), axis=0).to(tkc.int32)
    tkc.store(o, (0, 0), tkc.full((1, 16), 1.0))
    for i in tkc.range(0, count):
        tkc.store(w, (i,), tkc.full((1,), 1))
    for i in tkc.range(0, trips):
        acc = product(x, y, acc, i + w[1])
    tkc.store(o, (0, 0), acc)


def stored_before_a_loop_that_stores(x, y, w, o):
    """Nothing is read between a store and those of a loop."""
    trips, acc = w[0], tkc.zeros((N, N))
    for i in tkc.range(0, trips):
        acc = product(x, y, acc, i)
    tkc.store(w, (0,), tkc.full((1,), 1))
    for i in tkc.range(0, MOST):
        tkc.store(w, (i,), tkc.full((1,), i))
    tkc.store(o, (0, 0), acc)


def copies_that_wait_beside(x, y, w, o):
    """Copies of another loop wait for each store, wherever it stands."""
    acc = tkc.zeros((N, N))
    for i in tkc.range(0, 2):
        acc = tkc.dot(tkc.load(o, (0, i * K), (N, K)).to(tkc.float16), tkc.load(y, (0, 0), (K, N)))
        tkc.store(o, (0, i * K), acc[:, :K])
    i = 0
    while i < w[i % MOST]:
        tkc.store(w, (i,), tkc.full((1,), 1))
        i = i + 1
    tkc.store(w, (0,), tkc.full((1,), MOST + 3))
    tkc.store(o, (0, 0), acc + i)


KERNELS = {
    f.__name__: f
    for f in (
        *(trips_before, trips_behind, trips_by_pointer, place, branch_of_a_loop, end_of_a_while),
        *(end_that_its_loop_changes, branch_round_a_loop, read_for_the_next_step),
        *(stored_before_a_loop_that_stores, read_in_a_branch_that_stores, copies_that_wait_beside),
        *(place_by_a_maximum, trips_by_a_maximum, stored_as_often_as_a_maximum_says),
    )
}


@pytest.mark.parametrize("number", [0, MOST])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_role_sees_what_the_program_does(name, variant, number):
    module = traced(
        KERNELS[name],
        aligned(tkc.float16, 2),
        aligned(tkc.float16, 2),
        array(tkc.int32),
        aligned(tkc.float32, 2),
    )

    def make():
        r = np.random.default_rng(0)
        return {
            "x": r.integers(-2, 3, (N, 2 * MOST * K)).astype(np.float16),
            "y": r.integers(-2, 3, (2 * MOST * K, N)).astype(np.float16),
            "w": np.full(MOST, number, np.int32),
            "o": np.zeros((N, N), np.float32),
        }

    assert not list(Comparison(module, make, (1,)).passes(VARIANTS[variant]))


def converted(x, y, acc, i):
    """Sums of products of what a role of its own computes: keys, of which some are doubled."""
    rows, keys = tkc.load(x, (0, 0), (128, 64)), tkc.load(y, (i * 64, 0), (64, 64))
    keys = keys.to(tkc.float32)
    keys = tkc.where((tkc.sum(keys * keys, axis=1) > 128)[:, None], keys, keys * 2)
    scores = tkc.dot(rows, keys.to(tkc.float16).T)
    return acc + tkc.sum(tkc.maximum(scores, 0), axis=1)


def converted_behind(x, y, w, o):
    trips, acc = w[0], tkc.zeros((128,))
    tkc.store(w, (0,), tkc.full((1,), 1))
    for i in tkc.range(0, trips):
        acc = converted(x, y, acc, i)
    tkc.store(o, (0,), acc)


def converted_before(x, y, w, o):
    trips, acc = w[0], tkc.zeros((128,))
    for i in tkc.range(0, trips):
        acc = converted(x, y, acc, i)
    tkc.store(w, (0,), tkc.full((1,), 1))
    tkc.store(o, (0,), acc)


@pytest.mark.parametrize("number", [0, 2, MOST])
@pytest.mark.parametrize("kernel", [converted_behind, converted_before])
def test_a_role_that_converts_looks_numbers_up_in_time(kernel, number):
    def module():
        kinds = aligned(tkc.float16, 2), aligned(tkc.float16, 2)
        return traced(kernel, *kinds, array(tkc.int32), array(tkc.float32, 1))

    def given():
        r = np.random.default_rng(0)
        x, y = (r.integers(-2, 3, (n, 64)).astype(np.float16) for n in (128, MOST * 64))
        return [x, y, np.full(MOST, number, np.int32), np.zeros(128, np.float32)]

    level0.run(module(), want := given(), (1,))
    compiled, found = module(), context("sm_90a")
    through(compiled, PIPELINE[-1], found)
    assert any("of a converter" in d for d in found.decisions)
    for seed in range(3):
        level4.run(compiled, got := given(), (1, 1, 1), seed)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["trips_behind", "place", "end_of_a_while"])
def test_copies_of_operands_stay_with_a_producer(name):
    """Roles read such numbers between the same stores: consumers need not load for that."""
    kinds = *(aligned(tkc.float16, 2),) * 2, array(tkc.int32), aligned(tkc.float32, 2)
    found = context("sm_90a")
    through(traced(KERNELS[name], *kinds), PIPELINE[-1], found)
    assert any(d.startswith("plan: copies wait for what programs") for d in found.decisions)
    assert not any("consumers load" in d for d in found.decisions)


@pytest.mark.parametrize("name", [n for n in KERNELS if "maximum" in n])
def test_what_follows_from_tiles_no_role_looks_up(name):
    """Consumers reduce it, and load what it says; none waits for stores that it counts."""
    kinds = *(aligned(tkc.float16, 2),) * 2, array(tkc.int32), aligned(tkc.float32, 2)
    found = context("sm_90a")
    through(traced(KERNELS[name], *kinds), PIPELINE[-1], found)
    assert any("consumers load" in d for d in found.decisions)
