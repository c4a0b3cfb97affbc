"""Levels 1 to 3 as text."""

import numpy as np
import pytest

from tkc.ir.layout import blocked
from tkc.ir.shared import WaitCopies
from tkc.ir.text import parse
from tkc.ir.verify import verify
from tkc.sim import dataflow
from tkc.sim.errors import OutOfBounds, SimulationError
from tkc.sim.global_memory import GlobalMemory

LAYOUT = str(blocked((8, 16), vector=4, warps=2))
TILE, SMEM = f'!tile.tile<8x16xf32, "{LAYOUT}">', "8x16xb32 swizzle 64"


def ring(depth="1", order="%token0", index="%s"):
    """Sums the 8x16 blocks of a row of blocks through a ring of two stages, one step ahead."""
    return f"""
tile.kernel @k(%x: !tile.array<?x?xf32>, %o: !tile.array<?x?xf32>, %n: i32) {{level = 3 : i64}} {{
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %width = tile.constant 16 : i32
  %acc = tile.constant 0.0 : {TILE}
  %ring = tile.alloc : !tile.shared<2, 8x16xf32, "{SMEM}">
  %first = tile.stage %ring[%zero] \
      : (!tile.shared<2, 8x16xf32, "{SMEM}">, i32) -> !tile.shared<1, 8x16xf32, "{SMEM}">
  %token = tile.copy_async %x[%zero, %zero] %first {{extents = array<i64: 8, 16>}} \
      : (!tile.array<?x?xf32>, i32, i32, !tile.shared<1, 8x16xf32, "{SMEM}">) -> !tile.token
  %sum, %t, %s, %p = scf.for %i = %zero to %n step %one \
      iter_args(%a = %acc, %token0 = %token, %s = %zero, %p = %zero) \
      -> ({TILE}, !tile.token, i32, i32) : i32 {{
    %next, %np = tile.ring_next %s, %p {{stages = 2 : i64}} : (i32, i32) -> (i32, i32)
    %i1 = tile.add %i, %one : i32
    %column = tile.mul %i1, %width : i32
    %there = tile.stage %ring[%next] \
        : (!tile.shared<2, 8x16xf32, "{SMEM}">, i32) -> !tile.shared<1, 8x16xf32, "{SMEM}">
    %token1 = tile.copy_async %x[%zero, %column] %there {{extents = array<i64: 8, 16>}} \
        : (!tile.array<?x?xf32>, i32, i32, !tile.shared<1, 8x16xf32, "{SMEM}">) -> !tile.token
    %ready = tile.wait_copies [{order}] {{pending = {depth} : i64}} : (!tile.token) -> !tile.token
    %here = tile.stage %ring[{index}] \
        : (!tile.shared<2, 8x16xf32, "{SMEM}">, i32) -> !tile.shared<1, 8x16xf32, "{SMEM}">
    %v = tile.read %here after(%ready) \
        : (!tile.shared<1, 8x16xf32, "{SMEM}">, !tile.token) -> {TILE}
    %b = tile.add %a, %v : {TILE}
    scf.yield %b, %token1, %next, %np : {TILE}, !tile.token, i32, i32
  }}
  tile.store %o[%zero, %zero] %sum {{extents = array<i64: 8, 16>}} \
      : (!tile.array<?x?xf32>, i32, i32, {TILE})
  tile.return
}}"""


def simulate(text, steps):
    module = parse(text)
    verify(module)
    x, out = (
        np.random.default_rng(0).integers(-9, 9, (8, 16 * steps)).astype(np.float32),
        np.zeros((8, 16), np.float32),
    )
    dataflow.run(module, [x, out, steps], (1,))
    return out, x.reshape(8, steps, 16).sum(1)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_ring_of_asynchronous_copies(steps):
    got, want = simulate(ring(), steps)
    np.testing.assert_array_equal(got, want)


def test_a_wait_that_is_too_shallow_is_found():
    with pytest.raises(SimulationError, match="may still be in flight"):
        simulate(ring(depth="2"), 3)
    with pytest.raises(SimulationError, match="may still be in flight"):
        simulate(ring(order="%token1"), 3)


def test_a_wait_for_fewer_groups_than_may_stay_lands_none():
    program = dataflow.DataflowInterpreter(GlobalMemory(), (0,), (1,))
    buffers = [np.full((1, 2), np.nan) for _ in range(3)]
    program.in_flight = [dataflow.Token([(b, np.zeros(2))]) for b in buffers]
    dataflow.wait_copies(program, WaitCopies([], 5))
    assert np.isnan(buffers).all() and len(program.in_flight) == 3
    dataflow.wait_copies(program, WaitCopies([], 2))
    assert (buffers[0] == 0).all() and np.isnan(buffers[1:]).all()


def test_the_wrong_stage_reads_poison():
    assert np.isnan(simulate(ring(index="%next"), 3)[0]).any()
    with pytest.raises(OutOfBounds, match="stage 2"):
        simulate(ring(index="%i1"), 5)


def test_lines_of_warps_partition_an_axis():
    layout = blocked((8, 48), vector=2, warps=(1, 3))
    lines = dataflow.lines_of_warps(layout, 1)
    assert len(lines) == 3 and sorted(np.concatenate(lines).tolist()) == list(range(48))
