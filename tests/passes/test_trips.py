"""Loops whose bounds lie farther apart than their type reaches, or at its ends, run as often where
passes count their iterations, divide them or begin them early.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
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


def checked(kernel, arguments, consts, first, end, options, count=2):
    """No fault of a kernel of two blocks of rows and columns, planned with options."""
    kinds = [aligned(tkc.float16, 2)] * (len(arguments) - 1) + [aligned(tkc.float32, 2)]
    module = traced(kernel, *kinds, i32(), i32(), **consts)

    def make() -> dict:
        rng = np.random.default_rng(0)
        data = [rng.integers(-1, 2, (count * N, 2 * N)).astype(np.float16) for _ in kinds[1:]]
        data.append(np.ones((count * N, 2 * N), np.float32))
        return dict(zip((*arguments, "first", "end"), (*data, first, end), strict=True))

    comparison = Comparison(module, make, (count, 2))
    assert comparison.want["o"].any() == (first < end)
    variant = Variant("sm_90a", None, 3, each=False, forced=options)
    assert not list(comparison.passes(variant))


FAR = [
    *((0, LARGEST, 2**29, 23), (-2 * 10**9, 2 * 10**9, 5 * 10**8, 23), (2**30, -LARGEST, 8, 0)),
    (2 * 10**9, 10**9 - LARGEST, 32, 0),
]
NEAR = [
    (LARGEST - 40, LARGEST, 32, 0),
    (LARGEST - 1, LARGEST, 1, 0),
    (-LARGEST, 60 - LARGEST, 16, 0),
]
OPTIONS = [
    *((("roles", "pingpong"),), (("serpentine", True),), (("split_k", 2),), (("stream_k", 2),)),
    (("split_k", 3), ("cluster", (3, 1))),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("first, end, step, shift", [*FAR, *NEAR, (0, 192, 64, 0)])
def test_a_loop_near_the_ends_of_its_type(options, first, end, step, shift):
    checked(products, "abo", dict(STEP=step, SHIFT=shift), first, end, options)


def as_far_as_said(a, b, o, ends):
    """Sums of products of as many blocks as a number in memory says."""
    m, n, acc = tkc.program_id(0) * N, tkc.program_id(1) * N, tkc.zeros((N, N))
    for k in tkc.range(0, ends[0] * N, N):
        acc = tkc.dot(tkc.load(a, (m, k), (N, N)), tkc.load(b, (k, n), (N, N)), acc)
    tkc.store(o, (m, n), acc)


@pytest.mark.parametrize("options", [(), *OPTIONS], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_loop_whose_end_is_read_before_all_programs(options, count):
    kinds = aligned(tkc.float16, 2), aligned(tkc.float16, 2), aligned(tkc.float32, 2)
    module = traced(as_far_as_said, *kinds, array(tkc.int32, 1))

    def make() -> dict:
        rng = np.random.default_rng(0)
        a = rng.integers(-1, 2, (3 * N, 3 * N)).astype(np.float16)
        o = np.ones((3 * N, 3 * N), np.float32)
        return {"a": a, "b": a.T.copy(), "o": o, "ends": np.array([count], np.int32)}

    comparison = Comparison(module, make, (3, 3))
    assert comparison.want["o"].any() == (count > 0)
    assert not list(comparison.passes(Variant("sm_90a", None, 3, each=False, forced=options)))


def attended(q, k, o, first, end, STEP: tkc.constexpr, LESS: tkc.constexpr, SHIFT: tkc.constexpr):
    """Two products of each block of rows, which the upper bits of a counter name: programs further
    on have fewer of them.
    """
    m, acc = tkc.program_id(0) * N, tkc.zeros((N, N))
    n = tkc.program_id(1) * N
    rows = tkc.load(q, (m, n), (N, N))
    for at in tkc.range(first, end - tkc.program_id(0) * LESS, STEP):
        block = tkc.load(k, ((at >> SHIFT) & N, n), (N, N))
        acc = tkc.dot(tkc.dot(rows, block.T).to(tkc.float16), block, acc)
    tkc.store(o, (m, n), acc)


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("first, end, step, shift", [*FAR, *NEAR, (0, 256, 64, 0)])
def test_programs_that_share_such_a_loop(members, first, end, step, shift):
    less = step if end > first else 0
    options = ("roles", "co_resident"), ("programs", members)
    checked(attended, "qko", dict(STEP=step, LESS=less, SHIFT=shift), first, end, options, 4)


def by_pointers(x, o, first, end, STEP: tkc.constexpr):
    """Sums of products of blocks by pointers, as many as the loop has iterations."""
    rows, columns, acc = tkc.arange(N), tkc.arange(N), tkc.zeros((N, N))
    for at in tkc.range(first, end, STEP):
        place = (at - first) // STEP * N + rows
        block = tkc.load(x.ptr + place[:, None] * N + columns[None, :])
        acc = tkc.dot(block, block.T, acc)
    tkc.store(o, (0, 0), acc)


@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize(
    "first, end, step", [(x, y, s) for x, y, s, _ in (NEAR[0], NEAR[2], FAR[0])]
)
def test_no_block_is_loaded_of_an_iteration_beyond_the_type(first, end, step, stages):
    kinds = aligned(tkc.float16, 2), aligned(tkc.float32, 2)
    module = traced(by_pointers, *kinds, i32(), i32(), STEP=step)

    def make() -> dict:
        # nothing is there behind the last block
        x = np.ones((N * len(range(first, end, step)), N), np.float16)
        return {"x": x, "o": np.zeros((N, N), np.float32), "first": first, "end": end}

    comparison = Comparison(module, make, (1,))
    assert not list(comparison.passes(Variant("sm_80", 4, stages)))
