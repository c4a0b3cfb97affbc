"""Programs that overwrite a number that says where, whether or how often operands are loaded: a
role that copies ahead would read it too late, or too early.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned
from tkc.fuzz.check import Comparison, Variant

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
        copies_that_wait_beside,
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
