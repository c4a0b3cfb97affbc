"""What roles wait for in one order: a role says what others wait for before it waits for these."""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes import stages
from tests.passes.kernels import aligned
from tests.passes.stages import LAST, compiled
from tkc.sim import level0

B2 = aligned(tkc.bfloat16, 2)


def stored_behind_dots(w, a, b, o):
    """Where blocks lie is what a program has stored, in the loop of dots and in one behind it."""
    p = tkc.program_id(0)
    mine, acc = w[p], tkc.zeros((64, 8))
    for k in tkc.range(0, p % 4 * 32, 32):
        row = tkc.maximum(mine[k // 32], 0) * 8
        tkc.store(mine, (k // 32 + 1,), tkc.full((1,), 1))
        acc += tkc.dot(tkc.load(a, (row, k), (64, 32)), tkc.load(b, (0, k), (8, 32)).T)
    for j in tkc.range(0, 2):
        tkc.store(mine, (j + 4,), tkc.full((1,), j))
    tkc.store(o, (p * 64, 0), acc)


@pytest.mark.parametrize("programs", [3, 8])
def test_a_number_of_a_program_is_taken_when_all_is_stored(programs):
    """The producer claims the next program behind what it waits for in the last loop."""
    rng = np.random.default_rng(0)
    w = rng.integers(-1, 2, (programs, 16)).astype(np.int32)
    a, b = (rng.integers(-2, 3, (n, 128)).astype(tkc.bfloat16.numpy) for n in (80, 16))
    module = traced(stored_behind_dots, array(tkc.int32, 2), B2, B2, array(tkc.float32, 2))
    modules, given = compiled(module, num_stages=4)
    assert any("copies wait for what programs store" in line for line in given.decisions)
    assert any("blocks claim programs" in line for line in given.decisions)
    want = [w.copy(), a, b, np.zeros((64 * programs, 8), np.float32)]
    level0.run(modules["simplify"], want, (programs,))
    for seed in (0, 1):
        found = [w.copy(), a, b, np.zeros((64 * programs, 8), np.float32)]
        stages.run(modules[LAST], found, (programs, 1, 1), seed=seed)
        np.testing.assert_array_equal(found[3], want[3])
        np.testing.assert_array_equal(found[0], want[0])


def held_round_a_loop(a, b, c, o):
    """A block is read by the dots of one loop, and the dots of the next one read others."""
    n = tkc.num_programs(0)
    x = tkc.load(a, (tkc.program_id(0) * 64, 0), (64, 64))
    acc, most = tkc.zeros((64, 64)), tkc.max(tkc.max(x, axis=0), axis=0)
    for k in tkc.range(0, b.shape[0], 64):
        y = (tkc.load(b, (k, 0), (64, 64)) * most).to(a.dtype)
        acc += tkc.minimum(tkc.dot(x, y), 3)
    s = tkc.minimum(tkc.dot(x, tkc.load(b, (0, 0), (64, 64))), n).to(a.dtype)
    for k in tkc.range(0, c.shape[0], 64):
        acc = tkc.dot(s, tkc.load(c, (k, 0), (64, 64)), acc)
    tkc.store(o, (tkc.program_id(0) * 64, 0), acc)


@pytest.mark.parametrize("count", [2, 3])
def test_what_a_loop_holds_is_no_stage_of_another_loops_ring(count):
    """With two stages, of which one is held until the program ends, the second loop would wait."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-1, 2, (n, 64)).astype(tkc.bfloat16.numpy) for n in (128, 192, 192))
    module = traced(held_round_a_loop, B2, B2, B2, array(tkc.float32, 2))
    modules, _ = compiled(module, num_stages=count)
    want = [a, b, c, np.zeros((128, 64), np.float32)]
    level0.run(modules["simplify"], want, (2,))
    found = [a, b, c, np.zeros((128, 64), np.float32)]
    stages.run(modules[LAST], found, (2, 1, 1), seed=0)
    np.testing.assert_array_equal(found[3], want[3])
