"""Ranges whose step is a number of the launch: as Python's of either sign; 0 is an error."""

import numpy as np
import pytest

import tkc

BOUNDS = [
    (5, 0, -2),
    (0, 7, 3),
    (7, 0, 3),
    (0, 7, -3),
    (-5, 5, 2),
    (5, -6, -5),
    (1, 2, 1),
    (3, 3, 1),
]


@tkc.jit
def visited(x, start, stop, step):
    count = 0
    for i in range(start, stop, step):
        tkc.store(x, (count,), i)
        count = count + 1
    tkc.store(x, (15,), count)


@pytest.mark.parametrize("how", [None, "TKC_INTERPRET", "TKC_SIM"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_a_step_of_either_sign(bounds, how, monkeypatch):
    if how:
        monkeypatch.setenv(how, "1")
    x = np.full(16, 99, np.int32)
    visited[1](x, *bounds)
    want = list(range(*bounds))
    assert x[15] == len(want) and x[: len(want)].tolist() == want


@pytest.mark.parametrize("how", [None, "TKC_INTERPRET", "TKC_SIM"])
def test_a_step_of_zero(how, monkeypatch):
    if how:
        monkeypatch.setenv(how, "1")
    with pytest.raises(tkc.Error, match="the step of a range is 0"):
        visited[1](np.zeros(16, np.int32), 0, 4, 0)


def test_a_step_known_to_be_positive_counts_as_the_range_does():
    @tkc.jit
    def kernel(x, n):
        for i in range(tkc.program_id(0), n, tkc.num_programs(0)):
            tkc.store(x, (i,), i)

    text = kernel.compile("i32[64]", "i32", target="sm_90a").ir("trace")
    assert "step" in text and "tile.assert" not in text
