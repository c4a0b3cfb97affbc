"""consuming: what may run under dots that are in flight, and which dots stay in flight when an
iteration ends.
"""

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import f32, i1, i32
from xdsl.ir import Block, Operation, Region

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import aligned, context, through
from tests.passes.stages import assembles_clean
from tkc.ir import threads, tile
from tkc.ir.types import PendingType, TileType
from tkc.passes.pipeline import PIPELINE
from tkc.passes.warpgroups.consuming import is_plain
from tkc.sim import level4

B2 = aligned(tkc.bfloat16, 2)


def number() -> Operation:
    return tile.Constant(2.0, f32)


def branch_of(*ops: Operation) -> scf.IfOp:
    """A branch with operations in one of its ways."""
    yes, no = Block([*ops, scf.YieldOp()]), Block([scf.YieldOp()])
    return scf.IfOp(tile.Constant(1, i1), [], Region(yes), Region(no))


def test_a_branch_that_does_more_than_arithmetic_waits_for_dots():
    block, one = tile.Constant(0.0, TileType((16, 16), f32)), tile.Constant(1, i32)
    body = Block([number(), scf.YieldOp()], arg_types=[i32])
    assert is_plain(branch_of(number(), number()))
    assert not is_plain(number())
    assert not is_plain(branch_of(threads.BlockBarrier()))
    assert not is_plain(branch_of(block, tile.Dot(*(block.result,) * 3)))
    assert not is_plain(branch_of(one, scf.ForOp(one, one, one, [], Region(body))))


def two_sums(a, b, c, d, e, SCALED: tkc.constexpr, N: tkc.constexpr):
    one = two = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        left, other = tkc.load(a, (0, k), (N, 64)), tkc.load(b, (0, k), (N, 64))
        right, again = (tkc.load(c, (k, 0), (64, N)) for _ in range(2))
        one = tkc.dot(left * 2 if SCALED else left, right, one)
        two = tkc.dot(other * 2 if SCALED else other, again, two)
    tkc.store(d, (0, 0), one.to(d.dtype))
    tkc.store(e, (0, 0), two.to(e.dtype))


@pytest.mark.parametrize("scaled", [False, True])
def test_of_several_sums_none_with_a_left_operand_in_registers_stays_in_flight(scaled):
    """Its registers take the next iteration's operand."""
    module = traced(two_sums, *(B2,) * 5, SCALED=scaled, N=64)
    through(module, PIPELINE[-1], context("sm_90a"))
    loop = next(
        op
        for op in module.walk()
        if any(isinstance(o, threads.DotAsync) for o in op.walk()) and isinstance(op, scf.ForOp)
    )
    waits = [op.pending.value.data for op in loop.walk() if isinstance(op, threads.DotWait)]
    assert (waits == [0]) == scaled


def scores_of_two(a, b, c, d, e, N: tkc.constexpr):
    """Scores are one sum of two dots, whose operands come in rings of their own."""
    left, other, acc = (
        tkc.load(a, (0, 0), (64, N)),
        tkc.load(b, (0, 0), (64, 64)),
        tkc.zeros((64, N)),
    )
    for k in tkc.range(0, c.shape[0], 64):
        one, two = tkc.load(c, (k, 0), (64, N)), tkc.load(d, (k, 0), (64, 64))
        s = tkc.dot(left, one.T, tkc.dot(other, two.T))
        acc = tkc.dot(tkc.maximum(s, 0.0).to(a.dtype), one, acc)
    tkc.store(e, (0, 0), acc.to(e.dtype))


@pytest.fixture(scope="module")
def chained():
    module = traced(scores_of_two, *(B2,) * 5, N=128)
    through(module, PIPELINE[-1], context("sm_90a"))
    return module


def test_a_dot_that_adds_to_another_dots_sum_does_not_wait_for_it(chained):
    loop = next(
        op
        for op in chained.walk()
        if isinstance(op, scf.ForOp) and any(isinstance(o, threads.DotAsync) for o in op.body.ops)
    )
    issued = [op for op in loop.body.ops if isinstance(op, threads.DotAsync)]
    first, second = (op for op in issued if op.acc is None or op.acc.owner in issued)
    assert second.acc is first.result and isinstance(second.acc.type, PendingType)
    waits = [op for op in loop.body.ops if isinstance(op, threads.DotWait)]
    assert not any(first.is_before_in_block(op) and op.is_before_in_block(second) for op in waits)
    assert any(second.is_before_in_block(op) for op in waits)
    # what both read is released when both are over
    arrivals = [op for op in loop.body.ops if isinstance(op, threads.MbarrierArrive)]
    assert not any(
        first.is_before_in_block(op) and op.is_before_in_block(second) for op in arrivals
    )
    assembles_clean(chained)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keys", [0, 64, 304])
def test_sums_of_two_dots_in_any_order_of_threads(chained, keys, seed):
    rng = np.random.default_rng(keys)
    shapes = (64, 128), (64, 64), (keys, 128), (keys, 64)
    a, b, c, d = (rng.integers(-1, 2, shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    for x in (a, b, c, d):
        x[:, 3:] = 0  # sums of few small integers are exact
    e = np.zeros((64, 128), ml_dtypes.bfloat16)
    level4.run(chained, [a, b, c, d, e], (1, 1, 1), seed=seed)
    wide = [x.astype(np.float64) for x in (a, b, c, d)]
    s = np.maximum(wide[0] @ wide[2].T + wide[1] @ wide[3].T, 0)
    np.testing.assert_array_equal(e, (s @ wide[2]).astype(ml_dtypes.bfloat16))


def one_block(a, b, c, o, N: tkc.constexpr):
    """Two dots of a sum, which the loop adds to another, read one block."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], N):
        right = tkc.load(c, (k, 0), (N, N))
        sum_ = tkc.dot(tkc.load(a, (0, k), (N, N)), right)
        total = total + tkc.dot(tkc.load(b, (0, k), (N, N)), right, sum_)
    tkc.store(o, (0, 0), total)


def test_a_stage_that_two_dots_of_a_sum_read_is_released_once():
    r = np.random.default_rng(0)
    a, b, c = (
        r.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((64, 256),) * 2 + ((256, 64),)
    )
    module = traced(one_block, *(B2,) * 3, aligned(tkc.float32, 2), N=64)
    through(module, PIPELINE[-1], context("sm_90a", num_stages=2))
    o = np.zeros((64, 64), np.float32)
    level4.run(module, [a, b, c, o], (1, 1, 1))
    left, other, right = (x.astype(np.float32) for x in (a, b, c))
    assert (o == (left + other) @ right).all()


@tkc.jit
def stored_on_the_way(a, b, d, c, steps):
    """A sum that each step stores, so that not all of a step is ahead of the loop, and one whose
    dot is late. Threads read the left operand.
    """
    m, total, other = tkc.program_id(0) * 128, tkc.zeros((128, 128)), tkc.zeros((128, 128))
    for k in tkc.range(0, steps, 64):
        x = tkc.load(a, (m, k), (128, 64)) + tkc.load(d, (m, k), (128, 64))
        y = tkc.load(b, (k, 0), (64, 128))
        total = tkc.dot(x, y, total)
        other = other * 0.5 - tkc.max(part := tkc.dot(x, y), axis=1)[:, None] + part
        tkc.store(c, (m, 0), total.to(c.dtype))
    tkc.store(c, (m, 0), (total + other).to(c.dtype))


def test_threads_hold_no_stage_through_a_loop_that_needs_it(monkeypatch):
    """Of a ring of two stages one had been read before the loop, and was released behind it."""
    random = np.random.default_rng(0)
    a, b, d = (
        random.integers(-1, 2, s).astype(ml_dtypes.bfloat16)
        for s in ((256, 256), (256, 128), (256, 256))
    )
    want, got = (np.zeros((256, 128), a.dtype) for _ in range(2))
    stored_on_the_way[2](a, b, d, want, 256)
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    stored_on_the_way[2](a, b, d, got, 256, num_stages=2)
    np.testing.assert_array_equal(got, want)
