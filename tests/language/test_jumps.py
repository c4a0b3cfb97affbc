"""`continue` in loops of a kernel, and `in`: as Python's."""

import numpy as np
import pytest

import tkc

HOWS = [None, "TKC_INTERPRET", "TKC_SIM"]


def _runs(how, monkeypatch, kernel, *arguments):
    if how:
        monkeypatch.setenv(how, "1")
    kernel[1](*arguments)


@tkc.jit
def skips(x, out, n):
    total, count = 0, 0
    for i in tkc.range(n):
        v = x[i]
        if v > 12:
            if v > 14:
                continue
            total = total + 100
            continue
        count = count + 1
        if v == 11:
            total = total - 1000
        else:
            continue
        total = total + v
    tkc.store(out, 0, total)
    tkc.store(out, 1, count)


def skipped(x, n):
    total, count = 0, 0
    for v in x[:n].tolist():
        if v > 12:
            total += 100 if v <= 14 else 0
            continue
        count += 1
        total += v - 1000 if v == 11 else 0
    return [total, count]


@tkc.jit
def skips_in_while(x, out, n):
    i, total = 0, 0
    while i < n:
        i = i + 1
        if x[i - 1] % 2 == 0:
            continue
        for k in range(2):
            if x[i - 1] > 13:
                continue
            total = total + k + 1
    tkc.store(out, 0, total)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("n", [0, 3, 7])
def test_continue(how, n, monkeypatch):
    x, out = np.array([10, 11, 12, 13, 14, 15, 11], np.int32), np.zeros(2, np.int32)
    _runs(how, monkeypatch, skips, x, out, n)
    assert out.tolist() == skipped(x, n)
    _runs(how, monkeypatch, skips_in_while, x, out, n)
    assert out[0] == 3 * sum(v % 2 == 1 and v <= 13 for v in x[:n].tolist())


@tkc.jit
def members(out, n, m):
    tkc.store(out, 0, tkc.where(n in (1, m, None, "two"), 1, 0))
    tkc.store(out, 1, tkc.where(n not in [3, 4], 1, 0))
    if n in {2, 5} and m not in (7,):
        tkc.store(out, 2, 1)
    tkc.store(out, 3, tkc.where(n in range(3, 9, 2), 1, 0))
    tkc.store(out, 4, tkc.where(n in range(5, 2, -1), 1, 0))
    if 0 < n in (3, 4):
        tkc.store(out, 5, 1)
    tkc.store(out, 6, tkc.where(4 in (n, m), 1, 0))
    if 4 in (1, 2) or n in () or n in range(0):
        tkc.store(out, 7, 1)
    tkc.store(out, 8, tkc.where(n / 2 in range(3), 1, 0))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("n, m", [(1, 7), (4, 4), (5, 3), (2, 7), (-3, -3), (3, 2)])
def test_membership_of_traced_numbers(how, n, m, monkeypatch):
    out = np.zeros(9, np.int32)
    _runs(how, monkeypatch, members, out, n, m)
    want = [
        n in (1, m, None, "two"),
        n not in [3, 4],
        n in {2, 5} and m not in (7,),
        n in range(3, 9, 2),
        n in range(5, 2, -1),
        0 < n in (3, 4),
        4 in (n, m),
        False,
        n / 2 in range(3),
    ]
    assert out.tolist() == [int(w) for w in want]
