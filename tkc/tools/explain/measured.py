"""The time that a launch really takes: on the GPU where there is one of the target, on arrays made
for it; on the CPU for the target "cpu".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tkc.errors import Error
from tkc.runtime import driver, timing
from tkc.runtime.arrays import ITEMSIZE, ArrayInfo
from tkc.runtime.specialize import ScalarInfo
from tkc.tools.explain.subject import Subject

BUDGET = 2.0  # seconds of measuring
MAX_BYTES = 32 << 30  # of all arrays together
FILLED_BYTES = 1 << 24  # of made-up elements, which are repeated in larger arrays


def why_not(subject: Subject) -> str:
    """Why a launch cannot be measured on this machine; "" where it can."""
    if subject.extents is None:
        return "the grid is not known; give --grid"
    if any(isinstance(i, ScalarInfo) and i.value is None for i in subject.infos):
        return "a number among the arguments is not given"
    arrays = [i for i in subject.infos if isinstance(i, ArrayInfo)]
    if sum(_bytes(i) for i in arrays) > MAX_BYTES:
        return "its arrays are too large to be made here"
    if subject.target == "cpu":
        return ""
    if not driver.available():
        return "there is no GPU"
    if subject.target not in (driver.target_of(0), driver.planned_for(0)):
        return f"the GPU here is {driver.planned_for(0)}, {driver.name(0)}"
    return ""


def seconds(subject: Subject) -> float | None:
    """The median of a launch with made-up elements; None where it failed. Integers among them are
    0 to 3, so that they can be indices. Raises tkc.Error where `why_not` says a reason.
    """
    if reason := why_not(subject):
        raise Error(f"{subject.kernel.__name__} cannot be measured: {reason}")
    device = -1 if subject.target == "cpu" else 0
    with ExitStack() as stack:
        memory = _host if device < 0 else _device
        values = [
            stack.enter_context(memory(i)) if isinstance(i, ArrayInfo) else i.value
            for i in subject.infos
        ]
        launch = _prepared(subject, values)
        return timing.measure([launch], device, BUDGET)[0]


def _prepared(subject: Subject, values: Sequence[Any]) -> Callable[[], None]:
    return subject.kernel.prepare(
        *values[: subject.kernel.positional],
        **dict(
            zip(
                subject.kernel.names[subject.kernel.positional :],
                values[subject.kernel.positional :],
                strict=True,
            )
        ),
        **subject.options,
        grid=subject.extents,
        target=subject.target,
    )


def _bytes(info: ArrayInfo) -> int:
    low, high = info.span
    return high - low if prod(info.shape) else 0


def _elements(info: ArrayInfo, size: int) -> np.ndarray:
    """Bytes of made-up elements: at most FILLED_BYTES, or `size`."""
    from tkc.sim.inputs import fill

    dtype = ArrayInfo(0, (0,), (1,), info.dtype).numpy().dtype
    some = np.empty(max(1, min(size, FILLED_BYTES) // ITEMSIZE[info.dtype]), dtype)
    fill(some, np.random.default_rng(0))
    return some.view(np.uint8)


@contextmanager
def _host(info: ArrayInfo) -> Iterator[np.ndarray]:
    from tkc.sim.inputs import blank, fill

    dtype = ArrayInfo(0, (0,), (1,), info.dtype).numpy().dtype
    array = blank(info.shape, info.strides, dtype)
    fill(array, np.random.default_rng(0))
    yield array


@contextmanager
def _device(info: ArrayInfo) -> Iterator[ArrayInfo]:
    """The same array in the memory of the first GPU."""
    d, (low, high) = driver.api(), info.span
    size = max(1, high - low)
    with driver.context(0):
        at = int(driver.check(d.cuMemAlloc(size), f"allocating {size} bytes"))
        try:
            some = _elements(info, size)
            for begin in range(0, size, some.nbytes):
                count = min(some.nbytes, size - begin)
                driver.check(
                    d.cuMemcpyHtoD(at + begin, some.ctypes.data, count), "filling an array"
                )
            yield replace(info, pointer=at - low, device=0)
        finally:
            driver.check(d.cuMemFree(at), "freeing an array")
