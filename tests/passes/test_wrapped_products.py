"""Products of indices of which no offset is computed wrap as all integers do: level 0 has nothing
to refuse, and nothing may be known of their signs.
"""

import numpy as np
import pytest

import tkc
from tests.operations.case import Case, rubbish, run

HOWS = ("level 0", "cpu", "sm_80", "sm_89", "sm_90a")


def hashed_programs(remainders, signs, counts):
    """A polynomial of a program's number."""
    p = tkc.program_id(0)
    h = (((p * 31 + 7) * 31 + 5) * 31 + 3) * 31
    h = (h * 31 + 1) * 31
    tkc.store(remainders, (p,), h % 1000)
    tkc.store(signs, (p,), tkc.where(h < 0, 1, 0))
    tkc.store(counts, (p,), tkc.maximum(h, 0))


def hashed_counters(remainders, signs, counts, n):
    """The same of a loop's counter, through a branch and a carried sum."""
    total = negative = largest = 0
    for i in range(n):
        h = ((((i * 31 + 7) * 31 + 5) * 31 + 3) * 31 * 31 + 1) * 31
        total = total + (h % 1000 if i % 2 == 0 else h // 16)
        negative = negative + tkc.where(h < 0, 1, 0)
        largest = tkc.maximum(largest, tkc.maximum(-h, 0))
    tkc.store(remainders, (0,), total)
    tkc.store(signs, (0,), negative)
    tkc.store(counts, (0,), largest)


def _hash(i: np.ndarray) -> np.ndarray:
    i = i.astype(np.int32)
    h = (((i * 31 + 7) * 31 + 5) * 31 + 3) * 31
    return (h * 31 + 1) * 31


def _outputs(n: int) -> dict:
    return {k: rubbish(n, np.dtype(np.int32)) for k in ("remainders", "signs", "counts")}


def _programs(n: int) -> dict:
    h = _hash(np.arange(n))
    return dict(
        remainders=h % np.int32(1000), signs=(h < 0).astype(np.int32), counts=np.maximum(h, 0)
    )


def _counters(n: int) -> dict:
    h = _hash(np.arange(n))
    each = np.where(np.arange(n) % 2 == 0, h % np.int32(1000), h // np.int32(16))
    found = each.sum(dtype=np.int32), (h < 0).sum(dtype=np.int32), np.maximum(-h, 0).max()
    names = ("remainders", "signs", "counts")
    return {k: np.array([v], np.int32) for k, v in zip(names, found, strict=True)}


@pytest.mark.parametrize("how", HOWS)
def test_programs(how):
    n = 200
    case = Case("hash", hashed_programs, lambda r: _outputs(n), lambda a: _programs(n), (n,))
    run(case, how)


@pytest.mark.parametrize("how", HOWS)
def test_counters(how):
    n = 200
    case = Case(
        "hash of counters",
        hashed_counters,
        lambda r: dict(_outputs(1), n=n),
        lambda a: _counters(n),
    )
    run(case, how)
