"""Exchanges of a loop through two buffers in turn: how many times threads meet, results at every
level, and loops that keep one buffer.
"""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import context, through
from tkc.ir import shared, threads
from tkc.ir.layout import blocked
from tkc.ir.text import parse
from tkc.ir.values import operations_in
from tkc.passes import double_buffer_exchanges
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

NAME = "double-buffer-exchanges"


def farthest(x, out, n):
    """Each iteration takes the place of the greatest number, and lowers what is near."""
    i = tkc.arange(0, 128)
    v = tkc.load(x, (0,), (128,))
    for k in tkc.range(0, n):
        at = tkc.argmax(v, axis=0)
        tkc.store(out, (k,), at)
        v = tkc.where(tkc.abs(i - at) < 9, v - 100, v)


def twice(x, out, n):
    """The second exchange of an iteration needs what the first gave."""
    v = tkc.load(x, (0,), (128,))
    for k in tkc.range(0, n):
        most = tkc.max(v, axis=0)
        v = v - tkc.sum(tkc.where(v == most, v, 0), axis=0)
        tkc.store(out, (k,), most.to(tkc.int32))


def compiled(kernel, warps):
    module = traced(kernel, array(tkc.float32, 1), array(tkc.int32, 1), i32())
    found = context("sm_90a", num_warps=warps)
    through(module, PIPELINE[-1], found)
    return module, any(line.startswith(NAME) for line in found.decisions)


@pytest.mark.parametrize(
    "kernel, warps, applies", [(farthest, 4, True), (farthest, 1, False), (twice, 4, False)]
)
def test_one_round_of_exchanges_takes_turns(kernel, warps, applies):
    module, found = compiled(kernel, warps)
    assert found == applies
    x = np.random.default_rng(0).integers(-99, 99, 128).astype(np.float32)
    reference = traced(kernel, array(tkc.float32, 1), array(tkc.int32, 1), i32())
    level0.run(reference, [x, want := np.zeros(7, np.int32), 7], (1,))
    level4.run(module, [x, got := np.zeros(7, np.int32), 7], (1, 1, 1), 1)
    np.testing.assert_array_equal(got, want)
    machine.run(module, [x, got := np.zeros(7, np.int32), 7], (1, 1, 1))
    np.testing.assert_array_equal(got, want)


def test_threads_meet_once_an_iteration():
    """With one buffer they meet twice."""
    module, _ = compiled(farthest, 4)
    (ring,) = {op.operands[0] for op in operations_in(module, shared.Stage)}
    (loop,) = {op.parent_op() for op in operations_in(module, threads.RingNext)}
    assert ring.type.stages == 2
    assert len(operations_in(loop, threads.BlockBarrier)) == 1


S = '!tile.shared<1, 8x16xf32, "8x16xb32">'
T = f'!tile.tile<8x16xf32, "{blocked((8, 16), vector=1, warps=4)}">'
OTHER = f'!tile.tile<8x16xf32, "{blocked((8, 16), vector=1, warps=4, order=(0, 1))}">'
EXCHANGE = f"""%b = tile.alloc : {S}
    tile.write %b, %v : ({S}, {T})
    %w = tile.read %b : ({S}) -> {OTHER}"""
READ = f"%x = tile.read %before : ({S}) -> {OTHER}"


def exchanging(body: str) -> scf.ForOp:
    """The loop of a program of four warps, which has filled a buffer before."""
    module = parse(
        f"""tile.kernel @k(%n: i32) {{level = 3 : i64, warps = 4 : i64}} {{
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %v = tile.constant 1.0 : {T}
  %before = tile.alloc : {S}
  tile.write %before, %v : ({S}, {T})
  scf.for %i = %zero to %n step %one : i32 {{
    {body}
    scf.yield
  }}
  tile.return
}}"""
    )
    (loop,) = operations_in(module, scf.ForOp)
    return loop


def in_branch(text: str) -> str:
    return f"%yes = tile.constant 1 : i1\n scf.if %yes {{\n {text}\n scf.yield\n }}"


AGAIN = EXCHANGE.replace("%b", "%c").replace("%w", "%y")


@pytest.mark.parametrize(
    "body, buffers",
    [
        (EXCHANGE, 1),
        # threads meet between these two
        (f"{EXCHANGE}\n{AGAIN}", 0),
        # of a buffer that is no buffer of the loop
        (f"{EXCHANGE}\n{READ}", 0),
        (f"{READ}\n{EXCHANGE}", 0),
        (EXCHANGE.replace("%b,", "%before,"), 0),
        # not in every iteration
        (f"{EXCHANGE}\n{in_branch(READ)}", 0),
        (f"{EXCHANGE}\n{in_branch(AGAIN)}", 0),
        (f"{EXCHANGE}\ntile.block_barrier", 0),
    ],
)
def test_which_exchanges_take_turns(body, buffers):
    assert len(double_buffer_exchanges._exchanges(exchanging(body))) == buffers
