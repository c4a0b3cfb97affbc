"""Integers become floats rounded once, to the nearest and of two the even one: as they are, by way
of float64, and as constants.
"""

import numpy as np
import pytest

import tkc
from tests.operations.case import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    I32,
    I64,
    NAMES,
    U32,
    U64,
    Case,
    rubbish,
    run,
)
from tests.operations.edges import nearest
from tests.operations.elementwise import odd_rounded

HOWS = ("level 0", "cpu", "sm_80", "sm_89", "sm_90a")
SOURCES, SHORT = (I32, I64, U32, U64), (BF16, F16, E4M3, E5M2)


def near_ties(t: np.dtype) -> np.ndarray:
    """Integers of a type beside the middle between two neighbours, of floats of 3 to 24 bits."""
    low, high = int(np.iinfo(t).min), int(np.iinfo(t).max)
    found = {0, low, high, high - 1}
    for digits in (3, 4, 8, 11, 24):
        for spacing in range(1, 8 * t.itemsize - digits + 1, 3):
            for kept in (1 << digits - 1, (1 << digits - 1) + 1, (1 << digits) - 1):
                middle = (2 * kept + 1) << spacing - 1
                for beside in (0, 1, -1, 1 << max(0, spacing - 20), -1 << max(0, spacing - 30)):
                    found |= {middle + beside, -middle - beside}
    return np.array(sorted(n for n in found if low <= n <= high), object).astype(t)


def once(x: np.ndarray, t: np.dtype) -> np.ndarray:
    return x.astype(t) if t in (F32, F64) else nearest(odd_rounded(x), t)


def converted(x, o0, o1, o2, o3, o4, o5, N: tkc.constexpr):
    a = tkc.load(x, (0,), (N,))
    for o in (o0, o1, o2, o3, o4, o5):
        tkc.store(o, (0,), a.to(o.dtype))


def through_float64(x, o0, o1, o2, o3, N: tkc.constexpr):
    a = tkc.load(x, (0,), (N,)).to(tkc.float64)
    for o in (o0, o1, o2, o3):
        tkc.store(o, (0,), a.to(o.dtype))


def scalars(x, o0, o1, o2, o3, o4, o5, N: tkc.constexpr):
    for i in range(N):
        for o in (o0, o1, o2, o3, o4, o5):
            tkc.store(o, (i,), tkc.full((1,), x[i].to(o.dtype)))


def constants(o0, o1, o2, o3, o4, o5, NUMBERS: tkc.constexpr, TYPE: tkc.constexpr):
    for i, number in enumerate(NUMBERS):
        for o in (o0, o1, o2, o3, o4, o5):
            tkc.store(o, (i,), tkc.full((1,), number, TYPE).to(o.dtype))


def _check(kernel, integers: np.ndarray, targets, how: str, **given) -> None:
    def arguments(r):
        return dict(**given, **{f"o{i}": rubbish(len(integers), t) for i, t in enumerate(targets)})

    def want(a):
        return {f"o{i}": once(integers, t) for i, t in enumerate(targets)}

    run(Case(f"{kernel.__name__} of {integers.dtype}", kernel, arguments, want), how)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_conversions(source, how):
    x = near_ties(source)
    _check(converted, x, (*SHORT, F32, F64), how, x=x, N=len(x))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("source", (I32, U32), ids=str)
def test_through_float64(source, how):
    """float64 holds these."""
    x = near_ties(source)
    _check(through_float64, x, SHORT, how, x=x, N=len(x))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_scalars(source, how):
    x = near_ties(source)[::60]
    _check(scalars, x, (*SHORT, F32, F64), how, x=x, N=len(x))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_constants(source, how):
    x = np.concatenate([near_ties(source)[::60], np.array([(1 << 30) + (1 << 22) + 1], source)])
    if source.itemsize == 8:
        x = np.concatenate([x, np.array([(1 << 60) + (1 << 36) + 1], source)])
    numbers = tuple(map(int, x))
    _check(
        constants,
        x,
        (*SHORT, F32, F64),
        how,
        NUMBERS=numbers,
        TYPE=NAMES[source],
    )
