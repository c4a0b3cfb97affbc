"""How long launches take, under a budget: every candidate in turn, in shuffled rounds, caches
flushed, the slow ones dropped early.

    times = measure([launch, …], device, budget=2.0)
            seconds of each (None: it failed or was dropped before two rounds)

On a GPU a launch lies between two events on its own stream, after a write of 256 MiB has replaced
what the L2 cache held; on the CPU (device −1) the clock is read round it. A card under a power
limit remembers what ran before: only medians over rounds are compared (benchmarks/harness.py judges
races; this ranks candidates).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from tkc.runtime import driver

FLUSH_BYTES = 256 << 20
MAX_ROUNDS = 15
# after so many rounds, candidates within this factor of the best are measured further
KEPT_AFTER_ROUNDS = {2: 1.25, 4: 1.08, 7: 1.03}
_filler: dict[int, int] = {}  # device -> address of FLUSH_BYTES bytes


def measure(
    launches: Sequence[Callable[[], None]],
    device: int,
    budget: float,
    failed: Callable[[int, Exception], None] = lambda i, e: None,
) -> list[float | None]:
    """Median seconds of each launch. `budget`: seconds after which no further round begins.
    `failed` gets what a launch raised; a device that is lost raises DeviceError.
    """
    clock = _Gpu(device) if device >= 0 else _host
    began = time.perf_counter()
    alive = _warmed_up(launches, clock, failed)
    times: dict[int, list[float]] = {i: [] for i in alive}
    shuffle = random.Random(0)
    for done in range(1, MAX_ROUNDS + 1):
        if not alive or done > 2 and time.perf_counter() - began > budget:
            break
        shuffle.shuffle(alive)
        for i, seconds in zip(alive, clock([launches[i] for i in alive]), strict=False):
            times[i].append(seconds)
        if done in KEPT_AFTER_ROUNDS:
            medians = {i: statistics.median(times[i]) for i in alive}
            limit = min(medians.values()) * KEPT_AFTER_ROUNDS[done]
            alive = [i for i in alive if medians[i] <= limit]
    return [statistics.median(times[i]) if times.get(i) else None for i in range(len(launches))]


def _warmed_up(
    launches: Sequence[Callable[[], None]],
    clock: Callable[[Sequence[Callable[[], None]]], list[float]],
    failed: Callable[[int, Exception], None],
) -> list[int]:
    """Those that run, by number: a turn that does not count, for loading and the first touch."""
    alive = []
    for i, launch in enumerate(launches):
        try:
            clock([launch])
            alive.append(i)
        except Exception as e:
            if driver.poison:
                raise
            failed(i, e)
    return alive


def _host(launches: Sequence[Callable[[], None]]) -> list[float]:
    found = []
    for launch in launches:
        began = time.perf_counter()
        launch()
        found.append(time.perf_counter() - began)
    return found


class _Gpu:
    """Times launches on one device; the events are kept."""

    def __init__(self, device: int):
        d = driver.api()
        self.device = device
        self.events: list[Any] = []
        with driver.context(device):
            if device not in _filler:
                _filler[device] = int(
                    driver.check(
                        d.cuMemAlloc(FLUSH_BYTES),
                        "allocating 256 MiB with which measurements flush the L2 cache",
                    )
                )

    def __call__(self, launches: Sequence[Callable[[], None]]) -> list[float]:
        d = driver.api()
        with driver.context(self.device):
            while len(self.events) < 2 * len(launches):
                self.events.append(driver.check(d.cuEventCreate(0), "making an event"))
            for i, launch in enumerate(launches):
                stream = launch.stream() if hasattr(launch, "stream") else 0
                driver.check(
                    d.cuMemsetD8Async(_filler[self.device], i & 0xFF, FLUSH_BYTES, stream),
                    "flushing the L2 cache",
                )
                driver.check(d.cuEventRecord(self.events[2 * i], stream), "recording an event")
                launch()
                driver.check(d.cuEventRecord(self.events[2 * i + 1], stream), "recording an event")
            driver.check(d.cuCtxSynchronize(), "waiting for a measurement")
            return [
                float(
                    driver.check(
                        d.cuEventElapsedTime(self.events[2 * i], self.events[2 * i + 1]),
                        "reading an event",
                    )
                )
                / 1e3
                for i in range(len(launches))
            ]


def capturing(stream: int) -> bool:
    """Whether a stream is being captured into a graph, where nothing can be measured."""
    return (
        int(
            driver.check(
                driver.api().cuStreamIsCapturing(stream), "asking whether a stream is captured"
            )
        )
        != 0
    )
