"""Blocks that are read beside results come through rings of their own: which do, and that they are
read, before and after what else touches their array.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned
from tests.passes.test_role_choices import plan_of, says
from tkc.fuzz.check import Comparison, Variant

H2, F2, I1 = aligned(tkc.float16, 2), aligned(tkc.float32, 2), array(tkc.int32, 1)
BM, BN, BK = 128, 128, 64


def product(a, b, m, n, N: tkc.constexpr = BN):
    acc = tkc.zeros((BM, N), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, N)), acc)
    return acc


def added(a, b, c, y):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = product(a, b, m, n)
    tkc.store(y, (m, n), (acc + tkc.load(c, (m, n), (BM, BN)).to(tkc.float32)).to(y.dtype))


def added_in_place(a, b, c, y):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = product(a, b, m, n)
    tkc.store(y, (m, n), (acc + tkc.load(y, (m, n), (BM, BN)).to(tkc.float32)).to(y.dtype))


def gated(a, b, c, y):
    """Two blocks, of which one is a transpose in memory."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = product(a, b, m, n) * tkc.load(c, (n, m), (BN, BM)).T.to(tkc.float32)
    tkc.store(y, (m, n), (acc + tkc.load(y, (m, n), (BM, BN)).to(tkc.float32)).to(y.dtype))


def skipped(a, b, c, y, which):
    """Some programs return early."""
    if which[tkc.program_id(0)] > 0:
        m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
        acc = product(a, b, m, n)
        tkc.store(y, (m, n), (acc + tkc.load(c, (m, n), (BM, BN)).to(tkc.float32)).to(y.dtype))


def without_loop(a, b, c, y):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    x = tkc.load(y, (m, n), (BM, BN)).to(tkc.float32)
    x = x + tkc.dot(tkc.load(a, (m, 0), (BM, BK)), tkc.load(b, (0, n), (BK, BN)))
    tkc.store(y, (m, n), x.to(y.dtype))


def mixed(a, b, c, y):
    """Much is computed of each element, so that a few columns are computed at a time."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = product(a, b, m, n)
    x = tkc.load(c, (m, n), (BM, BN)).to(tkc.float32)
    z = tkc.load(y, (m, n), (BM, BN)).to(tkc.float32)
    for _ in range(4):
        acc = tkc.maximum(acc - x, z) + tkc.minimum(acc, x) - z
    tkc.store(y, (m, n), (acc + x).to(y.dtype))


def in_a_loop(a, b, c, y):
    """A program takes several places, as the rows of a persistent kernel."""
    n = tkc.program_id(1) * BN
    for m in tkc.range(tkc.program_id(0) * BM, y.shape[0], tkc.num_programs(0) * BM):
        acc = product(a, b, m, n)
        tkc.store(y, (m, n), (acc + tkc.load(c, (m, n), (BM, BN)).to(tkc.float32)).to(y.dtype))


def twice(a, b, c, y):
    """What is read beside the second result is the first."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = product(a, b, m, n)
    tkc.store(y, (m, n), acc.to(y.dtype))
    more = tkc.load(y, (m, n), (BM, BN)).to(tkc.float32)
    tkc.store(c, (m, n), (acc + more).to(y.dtype))


def again(a, b, c, y):
    """What one iteration stores the next one reads."""
    n = tkc.program_id(1) * BN
    for _ in tkc.range(2):
        acc = product(a, b, tkc.program_id(0) * BM, n)
        before = tkc.load(y, (tkc.program_id(0) * BM, n), (BM, BN)).to(tkc.float32)
        tkc.store(y, (tkc.program_id(0) * BM, n), (acc - before).to(y.dtype))


KERNELS = [added, added_in_place, gated, without_loop, mixed, in_a_loop, twice, again]
OPTIONS = [
    (),
    (("roles", "pingpong"),),
    (("roles", "cooperative"),),
    (("cluster", (2, 1)),),
    (("cluster", (1, 2)), ("roles", "cooperative")),
    (("dynamic_schedule", True),),
    (("split_k", 2),),
    (("stream_k", 2),),
    (("swap_dots", True),),
    (("epilogue", "direct"),),
    (("store_columns", 32),),
]


def faults(kernel, options, kinds, rows=3, columns=2, more=()):
    module = traced(kernel, *kinds, *(I1 for _ in more))

    def make() -> dict:
        rng = np.random.default_rng(0)

        def block(*shape):
            return rng.integers(-2, 3, shape).astype(np.float16)

        m, n, k = rows * BM - 16, columns * BN - 32, 2 * BK + 16
        data = {"a": block(m, k), "b": block(k, n)}
        data["c"] = block(n, m) if kernel is gated else block(m, n)
        data["y"] = block(m, n)
        return data | {name: np.array([1, 0, 1], np.int32) for name in more}

    comparison = Comparison(module, make, (1 if kernel is in_a_loop else rows, columns))
    return list(comparison.passes(Variant("sm_90a", None, 3, each=False, forced=options)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_what_is_read_beside_results(kernel, options):
    assert not faults(kernel, options, [H2] * 4)


@pytest.mark.parametrize("options", OPTIONS[:6], ids=str)
def test_what_is_read_where_a_program_returns_early(options):
    assert not faults(skipped, options, [H2] * 4, more=("which",))


@pytest.mark.parametrize(
    "kernel, rings",
    [(added, 2), (added_in_place, 2), (without_loop, 2), (in_a_loop, 2), (twice, 1)],
)
def test_which_blocks_have_a_ring(kernel, rings):
    assert len(plan_of(kernel, *[H2] * 4).rings) == rings


def test_a_block_has_no_ring_where_registers_do_not_hold_it():
    """Of 128 registers of a sum, and as many of float32."""

    def wide(a, b, c, y):
        m, n = tkc.program_id(0) * BM, tkc.program_id(1) * 2 * BN
        acc = product(a, b, m, n, 2 * BN)
        tkc.store(y, (m, n), (acc + tkc.load(c, (m, n), (BM, 2 * BN))).to(y.dtype))

    assert len(plan_of(wide, H2, H2, H2, H2).rings) == 2
    assert len(plan_of(wide, H2, H2, F2, H2).rings) == 1


def test_rings_of_such_blocks_are_said():
    made = plan_of(added, *[H2] * 4)
    assert says(made, "of 1 loads beside the dots tensor maps copy 1")
