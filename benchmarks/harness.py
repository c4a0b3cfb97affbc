"""Fair races: contestants take turns in shuffled rounds, and only times of one round are compared.

A GPU under a power limit has a memory: what ran before changes the clocks of what runs now, and a
minute later everything is a few percent slower. So no two averages taken apart are compared here.
Each *round* runs every contestant once, in a shuffled order; a ratio is taken inside its round;
what is reported is the median of the ratios and their quartiles. The ratio below is of ours to the
best rival of the round:

    round 1    torch 1.52 ms   ours 1.49 ms    triton 1.55 ms      1.020
    round 2    ours 1.50 ms    triton 1.56 ms  torch 1.53 ms       1.020
    ...

Correct first: before any clock starts, each contestant runs on poisoned output, its result is
compared with a float64 reference by |out - reference| / |reference|, and a second run must give the
same bits. A contestant that fails is out of the race and in the report, with the reason. One that
may hang or kill the process (`risky`) is first tried in a child process with a deadline.

`Contest` is the description, `race` runs it, report.py writes it down. The same code times kernels,
launches and processes: a contest brings its own `timer`, a function from `run` to seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Runner:
    """A contestant made ready: `run` does the work once and returns its output (or None where there
    is nothing to check); `out`, if given, is the buffer it writes, which the check poisons first.
    """

    run: Callable[[], Any]
    out: Any = None


@dataclass(frozen=True)
class Contestant:
    """`make` compiles and allocates.  role: "ours", "rival", or "bound" (shown, never the best
    rival: a copy, say).
    """

    name: str
    make: Callable[[], Runner]
    role: str = "rival"
    risky: bool = False


@dataclass(frozen=True)
class Figure:
    """A promise about every round: `measure` maps the round's seconds by name to a number whose
    median must reach `bound`.
    """

    text: str
    needs: tuple[str, ...]
    measure: Callable[[dict[str, float]], float]
    bound: float
    at_least: bool = True
    seconds: bool = False  # the number is a time

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def speed_ratio(ours: str, rival: str, bound: float) -> Figure:
    return Figure(
        f"{ours} at {bound:g} x the speed of {rival} or more",
        (ours, rival),
        lambda t: t[rival] / t[ours],
        bound,
    )


def time_at_most(name: str, seconds: float, text: str) -> Figure:
    return Figure(text, (name,), lambda t: t[name], seconds, at_least=False, seconds=True)


def time_beyond(name: str, base: str, seconds: float, text: str) -> Figure:
    return Figure(
        text, (name, base), lambda t: t[name] - t[base], seconds, at_least=False, seconds=True
    )


@dataclass(frozen=True)
class Contest:
    """What is raced.

    `amount` is the work of one run in `unit` x seconds (bytes / 1e9 for "GB/s"); None: only times
    are shown. `reference` gives the float64 result; None: nothing is compared, runs must merely
    succeed.
    """

    name: str
    title: str
    contestants: tuple[Contestant, ...]
    timer: Callable[[Callable[[], Any]], float]
    timing: str  # how the timer measures, for the report
    reference: Callable[[], Any] | None = None
    tolerance: float = 1e-2
    amount: float | None = None
    unit: str = ""
    figures: tuple[Figure, ...] = ()
    worst_error: float | None = None  # what each of ours may have of the least error of a rival
    notes: tuple[str, ...] = ()

    def rate(self, seconds: float) -> float:
        return self.amount / seconds


@dataclass(frozen=True)
class Quartiles:
    low: float
    median: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Quartiles:
        if len(values) == 1:
            return Quartiles(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Quartiles(low, median, high)


@dataclass
class Result:
    """Seconds of each contestant, one a round; errors of those that were checked; reasons of those
    that are out.
    """

    contest: Contest
    seconds: dict[str, list[float]] = field(default_factory=dict)
    order: list[list[str]] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seed: int = 0

    @property
    def rounds(self) -> int:
        return len(self.order)

    def round(self, i: int) -> dict[str, float]:
        return {name: times[i] for name, times in self.seconds.items()}

    def against_best_rival(self, name: str) -> Quartiles | None:
        """Speed over that of the best *other* rival of the same round (1.02: 2 % faster); None
        without another rival.
        """
        rivals = [
            c.name
            for c in self.contest.contestants
            if c.role == "rival" and c.name in self.seconds and c.name != name
        ]
        if not rivals:
            return None
        return Quartiles.of(
            [
                min(times[r] for r in rivals) / times[name]
                for times in map(self.round, range(self.rounds))
            ]
        )

    def figure(self, figure: Figure) -> Quartiles | None:
        """The figure's number over the rounds; None if a contestant it speaks of is out."""
        if any(name not in self.seconds for name in figure.needs):
            return None
        return Quartiles.of(
            [figure.measure(times) for times in map(self.round, range(self.rounds))]
        )

    def worst_error(self) -> float | None:
        """The largest error of ours over the least of a rival (1 where both are exact); None where
        one of them has none.
        """
        mine, others = (
            [
                self.errors[c.name]
                for c in self.contest.contestants
                if c.role == role and c.name in self.errors
            ]
            for role in ("ours", "rival")
        )
        if not mine or not others:
            return None
        return max(mine) / min(others) if min(others) else float("inf") if max(mine) else 1.0


# --------------------------------------------------------------------------------------------------
class Wrong(Exception):
    """A contestant that gives a wrong, incomplete or changing result."""


def poison(array) -> None:
    """Every byte 0xff: NaN in every float type, so that an element that nobody wrote shows."""
    if hasattr(array, "view") and hasattr(array, "is_cuda"):
        import torch

        array.view(torch.uint8).fill_(0xFF)
    else:
        array.view(np.uint8).fill(0xFF)


def bits(array):
    """A copy of the bytes, comparable with `same`."""
    if hasattr(array, "is_cuda"):
        import torch

        return array.contiguous().view(torch.uint8).clone()
    return np.ascontiguousarray(array).view(np.uint8).copy()


def same(a, b) -> bool:
    return bool((a == b).all())


CHUNK = 1 << 26  # elements that are compared at once: 0.5 GB in float64


def relative_error(out, reference) -> float:
    """|out - reference| / |reference| in float64; infinite at a NaN or another shape of `out`."""
    if tuple(out.shape) != tuple(reference.shape):
        return float("inf")

    def double(x):
        return x.double() if hasattr(x, "double") else np.asarray(x).astype(np.float64)

    out, reference = out.reshape(-1), reference.reshape(-1)
    difference = norm = 0.0
    for i in range(0, out.shape[0], CHUNK):
        got, want = double(out[i : i + CHUNK]), double(reference[i : i + CHUNK])
        difference += float(((got - want) ** 2).sum())
        norm += float((want**2).sum())
    if not difference < float("inf"):
        return float("inf")
    return (difference / norm) ** 0.5 if norm else difference**0.5


def check(runner: Runner, reference, tolerance: float) -> float:
    """The relative error of one run; raises Wrong if it is over the tolerance or if a second run
    gives other bits.
    """

    def once():
        if runner.out is not None:
            poison(runner.out)
        return runner.run()

    out = once()
    error = relative_error(out, reference)
    if not error <= tolerance:
        raise Wrong(f"relative error {error:.3g} is over {tolerance:g}")
    first = bits(out)
    del out
    if not same(first, bits(once())):
        raise Wrong("two runs on the same inputs differ")
    return error


# --------------------------------------------------------------------------------------------------
Trial = Callable[[Contest, Contestant], None]  # tries a risky contestant elsewhere; raises Wrong


def race(
    contest: Contest,
    rounds: int = 8,
    seed: int = 0,
    trial: Trial | None = None,
    budget: float = float("inf"),
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Check every contestant, then run the rounds.  `budget`: seconds of rounds after which no
    further one begins (there are at least 3).
    """
    result, runners = Result(contest, seed=seed), {}
    reference = contest.reference() if contest.reference else None
    for contestant in contest.contestants:
        try:
            if contestant.risky and trial:
                trial(contest, contestant)
            with contextlib.redirect_stdout(sys.stderr):
                runner = contestant.make()
            if reference is not None and contestant.role != "bound":
                result.errors[contestant.name] = check(runner, reference, contest.tolerance)
            contest.timer(runner.run)  # a turn that does not count
        except Exception as e:
            result.failures[contestant.name] = (
                f"{type(e).__name__}:"
                f" {str(e).strip().splitlines()[0] if str(e).strip() else 'no message'}"
            )
            result.errors.pop(contestant.name, None)
            say(f"{contest.name}: {contestant.name} is out: {str(e).strip()[-2000:]}")
        else:
            runners[contestant.name] = runner
    del reference
    if not runners:
        return result
    shuffle, started, result.seconds = (
        random.Random(seed),
        time.monotonic(),
        {name: [] for name in runners},
    )
    for i in range(rounds):
        if i >= 3 and time.monotonic() - started > budget:
            break
        order = list(runners)
        shuffle.shuffle(order)
        result.order.append(order)
        for name in order:
            result.seconds[name].append(contest.timer(runners[name].run))
        say(f"{contest.name}: round {i + 1} of {rounds}")
    return result


def example(name: str):
    """The module examples/<name>.py; the examples import one another by name."""
    folder = str(Path(__file__).resolve().parent.parent / "examples")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def last_words(stderr: str, status: int) -> str:
    """What a failed process said: the last line of its traceback that is not indented, which names
    the exception.
    """
    return next(
        (line for line in reversed(stderr.splitlines()) if line.strip() and not line[0].isspace()),
        f"exit status {status}",
    )


# --------------------------------------------------------------------------------------------------
def gpu_timer(run: Callable[[], Any], warmup_ms: int = 25, rep_ms: int = 100) -> float:
    """Median of triton.testing.do_bench: events round each run, L2 flushed by writing before it."""
    from triton.testing import do_bench

    return do_bench(run, warmup=warmup_ms, rep=rep_ms, return_mode="median") / 1e3


GPU_TIMING = "GPU events, L2 flushed by writing, median (triton.testing.do_bench, 100 ms a turn)"
FLUSH_BYTES = 256 << 20


def recorded(run: Callable[[], Any], times: int = 1) -> Runner:
    """The run, so many times in a row, as a CUDA graph: its kernels without the host's time of each
    call. A run compiles, and chooses what it chooses by measuring, before it is recorded.
    """
    import torch

    for _ in range(3):
        run()
    graph, out = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        for _ in range(times):
            out = run()

    def replay() -> Any:
        graph.replay()
        return out

    return Runner(replay)


def gpu_timer_read_flush(run: Callable[[], Any], repeats: int = 50) -> float:
    """As gpu_timer, for kernels that are short or read little: L2 is flushed by *reading* 256 MiB,
    which leaves no dirty lines to be written back during the next kernel."""
    import torch

    filler = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for begin, end in marks:
        filler.sum()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks) / 1e3


def host_timer(run: Callable[[], Any], repeats: int = 5) -> float:
    """Median wall time of a blocking `run`."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def launch_timer(
    run: Callable[[], Any], synchronize: Callable[[], Any], launches: int = 5000, repeats: int = 5
) -> float:
    """Host seconds of one launch: `launches` in a row, the median of `repeats` such rows."""
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        for _ in range(launches):
            run()
        times.append((time.perf_counter() - start) / launches)
    synchronize()
    return statistics.median(times)
