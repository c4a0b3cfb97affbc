"""The check of a compiled kernel: which programs it takes, what it says of clean and of broken
ones.
"""

import numpy as np
import pytest

import tkc
from tests.sim.test_compiled import BF, array, matmul, stages
from tkc.ir import tile
from tkc.language import dtypes
from tkc.sim import dataflow, level0, level4
from tkc.sim.check import check, sample
from tkc.sim.errors import SimulationError
from tkc.sim.inputs import blank, clones, fill
from tkc.sim.mutants import mutants
from tkc.sim.report import Violation


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 1000])
def test_a_sample_has_the_corners_and_no_number_twice(n):
    found = sample(level0.kernel_of(final()), n)
    assert (
        len(found) == len(set(found)) == min(n, 6)
        and set(found) <= set(range(n))
        and {0, n - 1} & set(range(n)) <= set(found)
    )


def final():
    return stages(
        matmul, "sm_80", a=array(BF, 2), b=array(BF, 2), c=array(BF, 2), BM=64, BN=64, BK=32
    )[-1][1]


def inputs():
    a, b, c = (blank(s, (80, 1), np.dtype("bfloat16")) for s in ((72, 80), (80, 72), (72, 72)))
    for x in (a, b, c):
        fill(x, np.random.default_rng(0))
    return [a, b, c]


def test_a_clean_kernel_and_its_arguments_stay_as_they_are():
    given = inputs()
    before = [x.copy() for x in given]
    result = check(final(), given, (2, 2), runs=3)
    assert (
        not result.findings
        and result.runs == 3
        and result.of == 4
        and "nothing found in 3 schedules" in str(result)
    )
    for x, y in zip(given, before, strict=False):
        np.testing.assert_array_equal(x, y)


def test_findings_are_reported_once_with_their_line():
    broken = next(m for name, m in mutants(final()) if name == "drop: block_barrier")
    result = check(broken, inputs(), (2, 2), runs=4)
    assert result.findings and {f.kind for f in result.findings} <= {"race", "uninitialized"}
    assert len({(f.kind, f.message) for f in result.findings}) == len(result.findings)
    assert all(
        f.location and f.location.file.endswith("test_compiled.py") and f.agents
        for f in result.findings
    )


def test_copies_lie_as_the_originals_do():
    whole = np.arange(200, dtype=np.float32)
    given = [
        whole[3:100:2],
        whole[50:150].reshape(10, 10),
        7,
        np.broadcast_to(np.float32(1), (3, 3)),
        np.empty((0, 4)),
    ]
    got = clones(given)
    for x, y in zip(given, got, strict=False):
        if not isinstance(x, np.ndarray):
            assert x == y
            continue
        np.testing.assert_array_equal(x, y)
        if x.size:
            assert x.strides == y.strides and (x.ctypes.data - y.ctypes.data) % 1024 == 0
    got[0][:] = -1
    assert (got[1] == -1).sum() == 25 and (whole >= 0).all()


# --------------------------------------------------------------------------------------------------
def relay(x, words, out):
    """Each program adds its number to what the one before it has published."""
    program = tkc.program_id(0)
    before = tkc.load(words.ptr + program, sem="acquire")
    while before == 0:
        before = tkc.load(words.ptr + program, sem="acquire")
    tkc.store(words.ptr + program + 1, before + tkc.load(x.ptr + program), sem="release")
    tkc.store(out.ptr + program, before)


def relayed(level):
    I32 = dtypes.int32
    return next(
        m
        for name, m in reversed(
            stages(relay, "sm_80", x=array(I32, 1), words=array(I32, 1), out=array(I32, 1))
        )
        if level0.kernel_of(m).level == level
    )


def given(programs, first=1):
    return [
        np.arange(programs, dtype=np.int32),
        np.array([first] + [0] * programs, np.int32),
        np.zeros(programs, np.int32),
    ]


def test_of_programs_that_wait_the_first_run_in_order():
    kernel = level0.kernel_of(relayed(4))
    assert tile.waits_for_programs(kernel) and not tile.waits_for_programs(
        level0.kernel_of(final())
    )
    assert (
        sample(kernel, 100) == [0, 1, 2, 3, 4, 5]
        and sample(kernel, 3) == [0, 1, 2]
        and sample(kernel, 0) == []
    )
    result = check(relayed(4), given(40), (40,), runs=4)
    assert not result.findings and result.clusters == (0, 1, 2, 3, 4, 5)


def test_a_wait_that_nobody_ends_is_found_at_once():
    with pytest.raises(SimulationError, match="waits for what no program before this one writes"):
        dataflow.run(relayed(0), given(2), (2,), [(1,)])
    with pytest.raises(Violation, match="for somebody to write to global memory") as caught:
        level4.run(relayed(4), given(2, first=0), (2,), 0, 2)
    assert caught.value.kind == "deadlock" and caught.value.operation.name == "scf.while"
