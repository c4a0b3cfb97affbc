"""Programs of rows that stream through a cluster's blocks, and write what they or others read."""

import numpy as np

import tkc
from tests.passes.test_streaming import run, stages_of
from tkc.ir import threads


@tkc.jit
def _in_place(x, out, N: tkc.constexpr):
    row = tkc.program_id(0)
    v = tkc.load(x, (row, 0), (1, N))
    tkc.store(x, (row, 0), v + 1)
    tkc.store(out, (row, 0), v + tkc.sum(v, axis=1)[:, None])


def test_a_block_of_a_cluster_copies_its_part_of_rows_alone():
    """Another one may write its own meanwhile."""
    given = np.ones((2, 4096), np.float32), np.zeros((2, 4096), np.float32)
    options = dict(num_ctas=2, num_warps=4, num_stages=3, persistent=True)
    stages = stages_of(_in_place, *given, N=4096, **options)
    assert any(isinstance(op, threads.CpAsync) for op in stages["assign-registers"].walk())
    for seed in range(3):
        arrays = [a.copy() for a in given]
        run(stages["assign-registers"], arrays, [], (2,), seed)
        assert (arrays[0] == 2).all() and (arrays[1] == 4097).all()


@tkc.jit
def _written_in_a_loop(x, few, out, n, N: tkc.constexpr):
    row = tkc.program_id(0)
    v = tkc.load(x, (row, 0), (1, N))
    for i in tkc.range(0, n):
        tkc.store(few, (row, 0), tkc.sum(v, axis=1)[:, None] + i + tkc.zeros((1, 4)))
    total = tkc.sum(tkc.load(few, (row, 0), (1, 4)), axis=1)
    tkc.store(out, (row, 0), v + total[:, None])


def test_what_a_loop_of_a_program_writes_is_looked_up_behind_it():
    given = np.ones((2, 4096), np.float32), np.zeros((2, 4), np.float32), np.zeros((2, 4096), "f4")
    stages = stages_of(
        _written_in_a_loop, *given, 3, N=4096, num_warps=8, num_stages=2, persistent=True
    )
    for seed in range(2):
        arrays = [a.copy() for a in given]
        run(stages["assign-registers"], arrays, [3], (2,), seed)
        assert (arrays[2] == 1 + 4 * 4098).all()
