"""Loops and branches that all blocks of a cluster take alike: they share copies of what is inside
and behind. The last argument but one is a table whose first number all programs read.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.stages import LAST, run
from tests.passes.test_roles import array, integers, result
from tkc.sim import level0

BM, BN, BK = 128, 64, 64


def in_a_while_loop(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, acc, i = tkc.program_id(0) * BM, tkc.zeros((BM, BN), tkc.float32), 0
    while i < counts[0]:
        for k in tkc.range(0, 2 * BK, BK):
            acc = tkc.dot(tkc.load(a, (m, 0), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
        i = i + 1
    tkc.store(c, (m, 0), acc)


def in_a_branch(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, acc = tkc.program_id(0) * BM, tkc.zeros((BM, BN), tkc.float32)
    for i in tkc.range(3):
        if i < counts[0]:
            for k in tkc.range(0, 2 * BK, BK):
                acc = tkc.dot(tkc.load(a, (m, 0), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (m, 0), acc)


def behind_a_while_loop(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, acc, k = tkc.program_id(0) * BM, tkc.zeros((BM, BN), tkc.float32), 0
    rows = tkc.load(a, (m, 0), (BM, BK))
    while k < counts[0] * BK:
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
        k = k + BK
    for k in tkc.range(0, 2 * BK, BK):
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (m, 0), acc)


def behind_a_branch(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, acc = tkc.program_id(0) * BM, tkc.zeros((BM, BN), tkc.float32)
    rows = tkc.load(a, (m, 0), (BM, BK))
    if counts[0] > 2:
        acc = tkc.dot(rows, tkc.load(b, (BK, 0), (BK, BN)), acc)
    for k in tkc.range(0, 2 * BK, BK):
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (m, 0), acc)


def before_a_while_loop(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, acc = tkc.program_id(0) * BM, tkc.zeros((BM, BN), tkc.float32)
    rows = tkc.load(a, (m, 0), (BM, BK))
    for k in tkc.range(0, 2 * BK, BK):
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
    k = 0
    while k < counts[0] * BK:
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
        k = k + BK
    tkc.store(c, (m, 0), acc)


FORMS = in_a_while_loop, in_a_branch, behind_a_while_loop, behind_a_branch, before_a_while_loop


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("programs", [1, 5])
@pytest.mark.parametrize("cluster", [(2, 1), (4, 1)], ids=str)
@pytest.mark.parametrize("kernel", FORMS, ids=lambda k: k.__name__)
def test_what_blocks_of_a_cluster_do_equally_often(kernel, cluster, programs, count):
    matrix, counts = array(tkc.bfloat16), np.full(1, count, np.int32)
    arguments = matrix, matrix, array(tkc.int32, 1), result(tkc.float32)
    module = traced(kernel, *arguments, BM=BM, BN=BN, BK=BK)
    modules, given = stages.compiled(module.clone(), cluster=cluster, roles="cooperative")
    assert given.plan.cluster == cluster
    a = integers(programs * BM, BK, dtype=tkc.bfloat16, seed=0)
    b = integers(3 * BK, BN, dtype=tkc.bfloat16, seed=1)
    want, got = (np.full((len(a), BN), np.nan, np.float32) for _ in range(2))
    level0.run(module, [a, b, counts, want], (programs, 1, 1))
    for resident in (1, 4):
        run(modules[LAST], [a, b, counts, got], (programs, 1, 1), seed=0, resident=resident)
        np.testing.assert_array_equal(got, want)
