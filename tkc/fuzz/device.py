"""A random kernel launched on a GPU of this machine: its arguments are copied there with everything
that launches can see of them (strides, overlaps, tables of addresses), and the results back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tkc.runtime.arrays import ArrayInfo, describe

if TYPE_CHECKING:
    from tkc.fuzz.check import Failure
    from tkc.fuzz.grammar import Kernel

ALIGNMENT = 256  # bytes; that of memory which the driver allocates


@dataclass(frozen=True)
class Span:
    """Bytes of the host that arrays lie in, [low, high), and where they go: `offset` bytes into the
    memory of the device.
    """

    low: int
    high: int
    offset: int = 0


FAR_BYTES = 1 << 30  # from an array's first byte to its last one


def spans_of(arrays: Sequence[np.ndarray]) -> list[Span]:
    """Where arrays lie; those that share memory share a span. Spans begin at multiples of
    ALIGNMENT on the device.
    """
    merged: list[list[int]] = []
    for low, high in sorted(np.lib.array_utils.byte_bounds(a) for a in arrays if a.size):
        if merged and low < merged[-1][1]:
            merged[-1][1] = max(high, merged[-1][1])
        else:
            merged.append([low, high])
    spans, offset = [], 0
    for low, high in merged:
        spans.append(Span(low, high, offset))
        offset += -(-(high - low) // ALIGNMENT) * ALIGNMENT
    return spans


def moved(address: int, spans: Sequence[Span], base: int) -> int | None:
    """The address on a device, whose memory begins at `base`, of a byte of the host; None where no
    span holds it.
    """
    for span in spans:
        if span.low <= address < span.high:
            return base + span.offset + address - span.low
    return None


def placed(array: np.ndarray, spans: Sequence[Span], base: int) -> ArrayInfo:
    """What a launch is told of an array on device 0."""
    info = describe(array)
    pointer = moved(info.pointer, spans, base) or base
    return ArrayInfo(pointer, info.shape, info.strides, info.dtype, 0, info.writeable)


def is_table(array: np.ndarray, spans: Sequence[Span]) -> bool:
    """Whether an array holds addresses of others."""
    if array.dtype != np.int64 or not array.size:
        return False
    return moved(int(array.flat[0]), spans, 0) is not None


def launched(
    launch: Callable[..., Any], arguments: Mapping[str, Any], others: Mapping[str, Any]
) -> None:
    """Calls `launch` with arguments on device 0, and copies what it wrote into their arrays.

    others: arguments that are handed on as they are. Raises DeviceError where the device reports
    one.
    """
    from tkc.runtime import driver

    arrays = [v for v in arguments.values() if isinstance(v, np.ndarray)]
    spans = spans_of(arrays)
    size = max((s.offset + s.high - s.low for s in spans), default=0)
    d, doing = driver.api(), "running a random kernel"
    with driver.context(0), _memory(size + ALIGNMENT) as base:
        tables = {id(a): a.copy() for a in arrays if is_table(a, spans)}
        for a in arrays:
            if id(a) in tables:
                a[...] = np.vectorize(lambda n: moved(int(n), spans, base))(a)
        for low, high in _pieces(arrays):
            there = moved(low, spans, base)
            driver.check(d.cuMemcpyHtoD(there, low, high - low), doing)
        given = {
            n: placed(v, spans, base) if isinstance(v, np.ndarray) else v
            for n, v in arguments.items()
        }
        launch(**given, **others)
        driver.check(d.cuCtxSynchronize(), doing)
        for low, high in _pieces(arrays):
            there = moved(low, spans, base)
            driver.check(d.cuMemcpyDtoH(low, there, high - low), doing)
        for a in arrays:
            if id(a) in tables:
                a[...] = tables[id(a)]


def _pieces(arrays: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """The first bytes, and the ones behind the last, of what arrays hold: of rows that are far
    apart each by itself.
    """
    found: list[tuple[int, int]] = []
    for a in arrays:
        low, high = np.lib.array_utils.byte_bounds(a) if a.size else (0, 0)
        if high - low >= FAR_BYTES:
            found += _pieces(list(a))
        elif low < high:
            found.append((low, high))
    return found


@contextmanager
def _memory(size: int) -> Iterator[int]:
    """So many bytes of the current device. After an error of the device they stay allocated."""
    from tkc.runtime import driver

    base = int(driver.check(driver.api().cuMemAlloc(size), "allocating arguments"))
    yield base
    driver.check(driver.api().cuMemFree(base), "freeing arguments")


def check(kernel: Kernel) -> list[Failure]:
    """What a launch of a kernel on device 0 does that level 0 does not."""
    import tkc
    from tkc.fuzz.check import Comparison, arguments, traced

    comparison = Comparison(
        traced(kernel, arguments(kernel)), lambda: arguments(kernel), kernel.grid
    )
    names = kernel.names()
    function = tkc.jit(names["kernel"])
    constants = {n: eval(text, names) for n, text in kernel.constants.items()}
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages, **dict(kernel.forced)}

    def run(values: list[Any]) -> None:
        launched(
            function[kernel.grid],
            dict(zip(comparison.names, values, strict=True)),
            {**constants, **options},
        )

    failure = comparison.run("device", run)
    return [failure.under(kernel.forced)] if failure else []
