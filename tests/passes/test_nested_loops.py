"""A loop that accumulates a dot, in other loops of its program: two warpgroups that take programs
in turn count the steps of all of them.
"""

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import context, through
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

BM, BN, BK = 64, 64, 32
ROWS = 72  # of a block that only a transposed dot has


def same_steps(a, b, c, n):
    """As many steps in every iteration, by a number that the outer loop computes."""
    row = tkc.program_id(0) * BM
    for j in range(n):
        acc = tkc.zeros((BM, BN))
        for k in range(0, (n + 0 * j) * BK, BK):
            acc = tkc.dot(tkc.load(a, (row, k), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
        tkc.store(c, (row, j * BN), acc + j)


def constant_bounds(a, b, c, n):
    row = tkc.program_id(0) * BM
    for j in range(n):
        acc = tkc.zeros((BM, BN))
        for k in tkc.range(0, 2 * BK, BK):
            acc = tkc.dot(tkc.load(a, (row, k), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
        tkc.store(c, (row, j * BN), acc + j)


def more_each_time(a, b, c, n):
    row = tkc.program_id(0) * BM
    for j in range(n):
        acc = tkc.zeros((BM, BN))
        for k in range(0, j * BK, BK):
            acc = tkc.dot(tkc.load(a, (row, k), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
        tkc.store(c, (row, j * BN), acc + j)


@pytest.mark.parametrize("roles", [None, "pingpong", "cooperative"])
@pytest.mark.parametrize("kernel", [same_steps, constant_bounds, more_each_time])
def test_the_steps_of_loops_in_loops(kernel, roles):
    n, programs, rng = 3, 3, np.random.default_rng(0)

    def dense(dtype, rows, columns):
        return array(dtype, 2, shape=(rows, columns), strides=(columns, 1))

    module = traced(
        kernel,
        dense(tkc.float16, programs * BM, n * BK),
        dense(tkc.float16, n * BK, BN),
        dense(tkc.float32, programs * BM, n * BN),
        i32(),
    )
    a = rng.integers(-2, 3, (programs * BM, n * BK)).astype(np.float16)
    b = rng.integers(-2, 3, (n * BK, BN)).astype(np.float16)

    def given():
        return [a, b, np.zeros((programs * BM, n * BN), np.float32), n]

    level0.run(module, want := given(), (programs,))
    options = {} if roles is None else {"roles": roles}
    found = through(module, PIPELINE[-1], context("sm_90a", **options))
    assert (kernel is more_each_time) <= (found.plan.roles != "pingpong")
    level4.run(module, data := given(), (programs, 1, 1), 1)
    np.testing.assert_array_equal(data[2], want[2])
    machine.run(module, data := given(), (programs, 1, 1))
    np.testing.assert_array_equal(data[2], want[2])


def one_sum(a, b, c, n):
    """Of all steps of both loops, on top of what is there; only a transposed dot takes its rows."""
    acc = tkc.load(c, (0, 0), (ROWS, BN))
    for j in range(n):
        for k in range(j * 2 * BK, (j + 1) * 2 * BK, BK):
            acc = tkc.dot(tkc.load(a, (0, k), (ROWS, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (0, 0), acc)


def sums_with_more_between(a, b, c, n):
    """What one loop has added up is looked at, and added to again."""
    acc, seen = tkc.zeros((ROWS, BN)), tkc.zeros((ROWS, BN))
    for j in range(n):
        for k in range(j * 2 * BK, (j + 1) * 2 * BK, BK):
            acc = tkc.dot(tkc.load(a, (0, k), (ROWS, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
        seen = seen + acc
    tkc.store(c, (0, 0), seen)


@pytest.mark.parametrize("kernel", [one_sum, sums_with_more_between])
def test_a_transposed_sum_of_loops_in_loops(kernel):
    n, rng = 3, np.random.default_rng(0)

    def dense(dtype, rows, columns):
        return array(dtype, 2, shape=(rows, columns), strides=(columns, 1))

    module = traced(
        kernel,
        dense(tkc.float16, ROWS, 2 * n * BK),
        dense(tkc.float16, 2 * n * BK, BN),
        dense(tkc.float32, ROWS, BN),
        i32(),
    )
    a = rng.integers(-2, 3, (ROWS, 2 * n * BK)).astype(np.float16)
    b = rng.integers(-2, 3, (2 * n * BK, BN)).astype(np.float16)
    start = rng.integers(-2, 3, (ROWS, BN)).astype(np.float32)

    def given():
        return [a, b, start.copy(), n]

    level0.run(module, want := given(), (1,))
    found = through(module, PIPELINE[-1], context("sm_90a"))
    assert any("computed as its transpose" in line for line in found.decisions)
    level4.run(module, data := given(), (1, 1, 1), 1)
    np.testing.assert_array_equal(data[2], want[2])
    machine.run(module, data := given(), (1, 1, 1))
    np.testing.assert_array_equal(data[2], want[2])
