"""Arrays that a kernel makes of addresses in a table, which are no arguments of the launch."""

import numpy as np
import pytest

import tkc
from tkc.sim.errors import OutOfBounds

LENGTH, ROWS = 5, 3


@tkc.jit
def rows(addresses, out, n):
    x = tkc.array(addresses[tkc.program_id(0)], tkc.float32, (n,))
    tkc.store(out[tkc.program_id(0)], (0,), tkc.load(x, (0,), (8,)))


@tkc.jit
def doubled(addresses, n):
    x = tkc.array(addresses[tkc.program_id(0)], tkc.float32, (n,))
    tkc.store(x, (0,), 2 * tkc.load(x, (0,), (8,)))


def parts():
    arrays = [np.arange(LENGTH, dtype=np.float32) + 10 * i for i in range(ROWS)]
    return arrays, np.array([x.ctypes.data for x in arrays], np.int64)


WAYS = {
    "cpu": {},
    "level 0": {"TKC_INTERPRET": "1"},
    "sm_80": {"TKC_SIM": "1", "TKC_TARGET": "sm_80"},
    "sm_90a": {"TKC_SIM": "1", "TKC_TARGET": "sm_90a"},
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    for name, value in WAYS[request.param].items():
        monkeypatch.setenv(name, value)
    return request.param


@pytest.mark.parametrize("debug", [False, True])
def test_they_are_read(way, debug):
    arrays, table = parts()
    out = np.full((ROWS, 8), np.nan, np.float32)
    rows[ROWS](table, out, LENGTH, debug=debug)
    assert np.array_equal(out, np.pad(arrays, ((0, 0), (0, 8 - LENGTH))))


def test_they_are_written(way):
    arrays, table = parts()
    doubled[ROWS](table, LENGTH)
    assert [x[-1] for x in arrays] == [2 * (4 + 10 * i) for i in range(ROWS)]


def test_they_may_overlap(way):
    whole = np.arange(12, dtype=np.float32)
    table = whole.ctypes.data + np.array([16, 0, 8], np.int64)
    out = np.full((ROWS, 8), np.nan, np.float32)
    rows[ROWS](table, out, LENGTH)
    want = [whole[start : start + LENGTH] for start in (4, 0, 2)]
    assert np.array_equal(out, np.pad(want, ((0, 0), (0, 8 - LENGTH))))


@tkc.jit
def summed_into_view(addresses, base, view):
    x = tkc.array(addresses[0], tkc.float32, (base.shape[0],))
    tkc.store(view, (1,), tkc.sum(tkc.load(x, (0,), (8,))))


def test_an_argument_may_be_a_view_of_what_they_are_in(way):
    """A fault until 2026-11-29 (random kernel 23001037): bytes behind the view were out of bounds,
    for the address was held to be the view's.
    """
    whole = np.arange(8, dtype=np.float32)
    summed_into_view[1](np.array([whole.ctypes.data], np.int64), whole, whole[0:2])
    assert np.array_equal(whole, [0, 28, 2, 3, 4, 5, 6, 7])


def test_an_address_that_is_no_memory_is_reported(monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    with pytest.raises(OutOfBounds, match="belongs to no argument"):
        doubled[1](np.array([64], np.int64), LENGTH)


def test_validation_writes_copies_of_them(monkeypatch, capsys):
    monkeypatch.setenv("TKC_VALIDATE", "1")
    arrays, table = parts()
    doubled[ROWS](table, LENGTH)
    assert "passes change nothing" in capsys.readouterr().err
    assert [x[-1] for x in arrays] == [2 * (4 + 10 * i) for i in range(ROWS)]


@tkc.jit
def summed(x, y, out, n, k):
    """Every third block of a carried array, which is one of two, or one made of the other half."""
    a = x if k > 1 else y
    total = tkc.zeros((4,))
    for step in tkc.range(k):
        if step % 2 == 1:
            a = tkc.array(a.ptr + n, tkc.float32, (n - step, 4), (4, 1))
        total += tkc.load(a, (step, 0), (1, 4))[0]
    tkc.store(out, (0,), total)
    tkc.store(out, (4,), a.shape[0])


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_loops_and_branches_carry_arrays(way, k):
    n = 8
    x, y = (np.random.default_rng(i).normal(size=(20, 4)).astype(np.float32) for i in (1, 2))
    out = np.zeros(5, np.float32)
    summed[1](x, y, out, n, k)
    a, total = (x if k > 1 else y).ravel(), np.zeros(4, np.float32)
    extent = 20
    for step in range(k):
        if step % 2 == 1:
            a, extent = a[n:], n - step
        total += a.reshape(-1, 4)[step]
    assert np.allclose(out[:4], total) and out[4] == extent


def test_a_loop_carries_arrays_of_one_rank_and_element(way):
    @tkc.jit
    def reshaped(x, n):
        a = x
        for _k in tkc.range(n):
            a = tkc.array(x.ptr, tkc.float32, (n,))
        tkc.store(a, (0,), 1.0)

    with pytest.raises(tkc.CompileError, match="`a`.*array of float32, rank 2.*rank 1"):
        reshaped[1](np.zeros((4, 4), np.float32), 3)
