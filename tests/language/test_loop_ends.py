"""Loops end where the number after their last would be beyond its type."""

import numpy as np
import pytest

import tkc
from tests.operations.case import Case, rubbish, run
from tkc.sim.errors import OffsetOverflow

HOWS = ("level 0", "cpu", "sm_80", "sm_89", "sm_90a")
LEAST, MOST = -(1 << 31), (1 << 31) - 1
RANGES = (
    (MOST - 8, MOST, 3),
    (MOST - 6, MOST, 3),
    (MOST - 2, MOST, 5),
    (5, MOST, 1 << 30),
    (-5, MOST, 1 << 30),
    (LEAST, MOST, 1 << 30),
    (LEAST, MOST, MOST),
    (LEAST, LEAST + 4, 7),
    (MOST, LEAST, 9),
    (LEAST + 9, LEAST, -3),
    (LEAST + 1, LEAST, -MOST),
    (MOST, 0, -(1 << 30)),
    (9, 0, -4),
)


def visited(sums, counts, start, stop, STEP: tkc.constexpr):
    total = count = 0
    for i in range(start, stop, STEP):
        total, count = total + i % 1009, count + 1
    tkc.store(sums, (0,), total)
    tkc.store(counts, (0,), count)


def constant(sums, counts, START: tkc.constexpr, STOP: tkc.constexpr, STEP: tkc.constexpr):
    total = count = 0
    for i in tkc.range(START, STOP, STEP):
        total, count = total + i % 1009, count + 1
    tkc.store(sums, (0,), total)
    tkc.store(counts, (0,), count)


def of_any_step(sums, counts, start, stop, step):
    total = count = 0
    for i in range(start, stop, step):
        total, count = total + i % 1009, count + 1
    tkc.store(sums, (0,), total)
    tkc.store(counts, (0,), count)


def loaded(sums, counts, bounds, STEP: tkc.constexpr):
    total = count = 0
    for i in range(bounds[0], bounds[1], STEP):
        total, count = total + i % 1009, count + 1
    tkc.store(sums, (0,), total)
    tkc.store(counts, (0,), count)


def _given(kernel, start: int, stop: int, step: int) -> dict:
    if kernel is visited:
        return dict(start=start, stop=stop, STEP=step)
    if kernel is constant:
        return dict(START=start, STOP=stop, STEP=step)
    if kernel is of_any_step:
        return dict(start=start, stop=stop, step=step)
    return dict(bounds=np.array([start, stop], np.int32), STEP=step)


def _is_short(bounds: tuple[int, int, int]) -> bool:
    """Whether the distance of the ends is a number of 32 bits: iterations are counted by it where
    the sign of a step is not known.
    """
    return abs(bounds[1] - bounds[0]) <= MOST


CASES = [
    (kernel, bounds)
    for kernel in (visited, constant, of_any_step, loaded)
    for bounds in RANGES
    if kernel is not of_any_step or _is_short(bounds)
]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kernel, bounds", CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_counts(kernel, bounds, how):
    numbers = range(*bounds)
    outputs = {k: np.dtype(np.int32) for k in ("sums", "counts")}
    want = dict(
        sums=np.array([sum(i % 1009 for i in numbers)], np.int32),
        counts=np.array([len(numbers)], np.int32),
    )
    run(
        Case(
            kernel.__name__,
            kernel,
            lambda r: {
                **{k: rubbish(1, t) for k, t in outputs.items()},
                **_given(kernel, *bounds),
            },
            lambda a: want,
        ),
        how,
    )


@pytest.mark.parametrize(
    "bounds", [b for b in RANGES if not _is_short(b)], ids=lambda v: getattr(v, "__name__", str(v))
)
def test_refused(bounds):
    """Level 0 refuses what the others would count wrongly."""
    case = Case(
        "far",
        of_any_step,
        lambda r: dict(
            sums=np.zeros(1, np.int32),
            counts=np.zeros(1, np.int32),
            **_given(of_any_step, *bounds),
        ),
        lambda a: {},
    )
    with pytest.raises(OffsetOverflow):
        run(case, "level 0")
