"""consuming: what may run under dots that are in flight, and which dots stay in flight when an
iteration ends.
"""

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import f32, i1, i32
from xdsl.ir import Block, Operation, Region

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import aligned, context, through
from tkc.ir import threads, tile
from tkc.ir.types import TileType
from tkc.passes.pipeline import PIPELINE
from tkc.passes.warpgroups.consuming import is_plain

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
