"""Unmodified Triton kernels of other projects: by tkc, beside Triton itself, in one run.

    python -m benchmarks.triton_kernels CHECKOUTS [--only WORD] [--seconds 150] [--rounds 8]
                                        [--out FILE] [--warm N]

CHECKOUTS: a folder with checkouts of `triton`, `liger`, `fla` and `mamba` (triton_cases.PATHS says
what is read of them); nothing of them is kept here. Each side has a process of its own, in which
the name `triton` means Triton, or tkc; this process tells them in turn what to do, so that one
kernel runs at a time. Both tune as the kernels' authors say. First, `warm` processes a side compile
the cases, those that are tuned in shares, so that what follows finds kernels in each side's own
cache on disk; what takes longer than `patience` is given up. Then, case by case: each side makes it
and runs it once, results are compared, and in shuffled rounds each side times some runs; a ratio is
taken inside a round, and its quartiles are reported.

A time is the GPU's, by events round a call, after L2 was flushed and with the GPU held back until
the host has launched everything. Beside it stands the host's time of a call. `difference` is
|ours - Triton's| / |Triton's|, the largest of all results. Lines are written as cases end.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmarks.triton_packages  # noqa: F401
import benchmarks.triton_written  # noqa: F401  # these add cases
import benchmarks.triton_written_eighth  # noqa: F401
import benchmarks.triton_written_fields  # noqa: F401
import benchmarks.triton_written_grids  # noqa: F401
import benchmarks.triton_written_layers  # noqa: F401
import benchmarks.triton_written_matrices  # noqa: F401
import benchmarks.triton_written_models  # noqa: F401
import benchmarks.triton_written_scenes  # noqa: F401
import benchmarks.triton_written_serving  # noqa: F401
import benchmarks.triton_written_seventh  # noqa: F401
import benchmarks.triton_written_signals  # noqa: F401
import benchmarks.triton_written_sixth  # noqa: F401
import benchmarks.triton_written_steps  # noqa: F401
from benchmarks.harness import Quartiles
from benchmarks.triton_cases import CASES, PACKAGES, Case, Operands, Run

ROOT = Path(__file__).resolve().parent.parent
SIDES = ("tkc", "triton")


# ---- one side: a process that makes and times cases
def results(value: Any) -> list[Any]:
    """The tensors of a result."""
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in results(v)]
    return [value.detach()] if hasattr(value, "detach") else []


def differences(ours: list[Any], theirs: list[Any]) -> float:
    """The largest relative difference of results; infinite where their forms differ."""
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        return math.inf
    found = 0.0
    for a, b in zip(ours, theirs, strict=True):
        a, b = a.double(), b.to(a.device).double()
        finite = b.isfinite()
        if not bool((a.isfinite() == finite).all()):
            return math.inf
        norm = float(b[finite].norm())
        found = max(found, float((a - b)[finite].norm()) / (norm or 1.0))
    return found


class Clock:
    """GPU seconds of a call, L2 flushed before it."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.filler = torch.zeros(64 << 20, dtype=torch.int32, device="cuda")
        self.rate = 2e9  # cycles a second, or some more

    def host(self, run: Run, repeats: int = 5) -> float:
        """Host seconds until a call has launched everything."""
        times = []
        for _ in range(repeats):
            self.torch.cuda.synchronize()
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        self.torch.cuda.synchronize()
        return statistics.median(times)

    def gpu(self, run: Run, hold: float, repeats: int) -> float:
        """Median of GPU seconds; hold: seconds that the host needs to launch a call."""
        cuda = self.torch.cuda
        marks = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for begin, end in marks:
            self.filler.zero_()
            cuda._sleep(int((1.5 * hold + 5e-5) * self.rate))
            begin.record()
            run()
            end.record()
        cuda.synchronize()
        return statistics.median(b.elapsed_time(e) for b, e in marks) / 1e3


_measure: list[Callable] = []  # what tuning measures by


def tune(measure: Callable) -> None:
    """Makes tuning measure configurations so, from the start: what was chosen is forgotten, also
    what Triton has on disk, which may be of processes that compiled only.
    """
    _measure[:] = [measure]
    from triton.runtime import autotuner, driver

    autotuner.Autotuner.check_disk_cache = lambda tuner, key, configs, measured: measured()

    active = driver.active
    with contextlib.suppress(AttributeError):  # Triton's driver is a stand-in until it is asked
        type(active).get_benchmarker = lambda self: _measured
    active.get_benchmarker = lambda: _measured
    forget()


def forget() -> None:
    """Forgets what tuning chose."""
    for found in gc.get_objects():
        if any(c.__name__ == "Autotuner" for c in type(found).__mro__):
            found.cache.clear()


def _measured(*args: Any, **options: Any) -> Any:
    return _measure[0](*args, **options)


class Share:
    """In tuning's place: measures nothing, and of the configurations that are tried compiles every
    count-th, from one of this number on. left: how many it leaves to others.
    """

    def __init__(self, number: int, count: int):
        self.number, self.count, self.tried, self.left = number, count, 0, 0

    def __call__(self, fn: Callable, *args: Any, quantiles: Any = None, **options: Any) -> Any:
        # a plan beside tkc's own is that of a configuration which this process compiled
        beside = getattr(fn, "beside", False)
        mine = beside or self.tried % self.count == self.number
        self.tried += not beside
        if mine:
            fn()
        else:
            self.left += 1
        return [1.0] * len(quantiles) if quantiles else 1.0


def briefly(fn: Callable, *args: Any, quantiles: Any = None, **options: Any) -> Any:
    """As tuning measures by default, for less time: every configuration of every case is tried."""
    from triton.testing import do_bench

    return do_bench(fn, warmup=3, rep=12, quantiles=quantiles)


class Side:
    """What a side's process keeps: the case that was made last."""

    def __init__(self, root: Path, device: str, scale: int):
        self.root, self.device, self.scale = root, device, scale
        self.run: Run | None = None
        self.clock: Clock | None = None
        self.hold = 0.0

    def make(self, title: str) -> dict[str, Any]:
        """Makes a case and runs it once."""
        self.run = None
        began = time.perf_counter()
        self.run = by_title(title).make(Operands(self.root, self.device, self.scale))
        # a tutorial tunes as it is imported, by arrays of other sizes that its keys do not tell
        forget()
        self.first = results(self.run())
        if self.device == "cuda":
            self.clock = self.clock or Clock()
            self.clock.torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - began}

    def compile(self, title: str, number: int, count: int) -> dict[str, Any]:
        """Compiles a share of a case's configurations, and says how many are left."""
        share = Share(number, count)
        tune(share)
        made = self.make(title)
        self.run = None
        self.first = []
        return made | {"left": share.left}

    def prepare(self, suites: list[str]) -> dict[str, Any]:
        """Imports what the cases of some suites will."""
        tune(briefly)
        operands = Operands(self.root, self.device, self.scale)
        for suite in suites:
            for name in PACKAGES.get(suite, ()):
                with contextlib.suppress(ImportError):
                    operands.package(name, suite)
        if self.device == "cuda":
            self.clock = Clock()
        return {}

    def save(self, path: str) -> dict[str, Any]:
        import torch

        torch.save([t.cpu() for t in self.first], path)
        return {}

    def compare(self, path: str) -> dict[str, Any]:
        import torch

        return {"difference": differences(self.first, torch.load(path))}

    def host(self) -> dict[str, Any]:
        assert self.run is not None and self.clock is not None
        self.first = []
        self.hold = self.clock.host(self.run)
        return {"seconds": self.hold}

    def time(self, repeats: int) -> dict[str, Any]:
        assert self.run is not None and self.clock is not None
        return {"seconds": self.clock.gpu(self.run, self.hold, repeats)}


def by_title(title: str) -> Case:
    return next(c for c in CASES if c.title == title)


def serve(options: argparse.Namespace) -> None:
    """Reads calls of Side's methods from stdin, one a line, and answers each by a line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels' projects print is no answer
    if options.side == "tkc":
        import tkc.triton

        tkc.triton.install()
    side = Side(Path(options.checkouts).resolve(), options.device, options.scale)
    for line in sys.stdin:
        name, *args = json.loads(line)
        try:
            answer = getattr(side, name)(*args)
        except Exception as e:
            words = str(e).strip().splitlines() or [""]
            place = _place(e)
            answer = {"error": f"{type(e).__name__}: {words[0][:200]}{place}"}
        print(json.dumps(answer), file=answers, flush=True)


def _place(e: BaseException) -> str:
    """The innermost line of an error."""
    trace = e.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"


# ---- the process in charge
class Lost(Exception):
    """A side that gave no answer, or an error."""


class Worker:
    """A side's process, started again after it was lost."""

    def __init__(self, side: str, options: argparse.Namespace):
        self.side, self.options = side, options
        self.process: subprocess.Popen | None = None

    def _started(self) -> subprocess.Popen:
        if self.process is None or self.process.poll() is not None:
            given = self.options
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.triton_kernels", given.checkouts),
                    *("--side", self.side, "--device", given.device),
                    *("--scale", str(given.scale)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if not given.loud else None,
                text=True,
                start_new_session=True,
            )
        return self.process

    def tell(self, name: str, *args: Any) -> None:
        process = self._started()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([name, *args]) + "\n")
            process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer. Raises Lost."""
        process = self._started()
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], max(seconds, 0.1))
        line = process.stdout.readline() if ready else ""
        if not line:
            self.end()
            status = process.returncode
            raise Lost(f"no answer within {seconds:.0f} s" if not ready else f"exit {status}")
        answer = json.loads(line)
        if "error" in answer:
            if "CUDA" in answer["error"]:  # its context may be of no more use
                self.end()
            raise Lost(answer["error"])
        return answer

    def ask(self, name: str, *args: Any, seconds: float = 30.0) -> dict[str, Any]:
        self.tell(name, *args)
        return self.answer(seconds)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Compiling:
    """A process that compiles for a side what is left to do, one piece after another.
    pieces: (title, number, count), the next one first.
    """

    def __init__(self, worker: Worker, pieces: deque[tuple[str, int, int]], patience: float):
        self.worker, self.pieces, self.patience = worker, pieces, patience
        self.piece: tuple[str, int, int] | None = None
        self.ends = 0.0

    def begin(self) -> None:
        """Begins the next piece, if there is one and none is under way."""
        if self.piece is None and self.pieces:
            self.piece = self.pieces.popleft()
            self.worker.tell("compile", *self.piece)
            self.ends = time.monotonic() + self.patience

    def finish(self) -> None:
        """Reads the answer. Of what is tuned the other shares follow."""
        assert self.piece is not None
        (title, number, count), self.piece = self.piece, None
        try:
            left = self.worker.answer(0.1)["left"]
        except Lost as e:
            print(f"{self.worker.side}, {title}: {e}", file=sys.stderr, flush=True)
            return
        if left and number == 0:
            self.pieces.extendleft((title, i, count) for i in range(1, count))

    @property
    def file(self) -> Any:
        assert self.worker.process is not None
        return self.worker.process.stdout


def warm_up(cases: list[Case], options: argparse.Namespace, seconds: float) -> None:
    """Compiles the cases of both sides, by `warm` processes a side."""
    ends = time.monotonic() + seconds
    pieces = {s: deque((c.title, 0, options.shares) for c in cases) for s in SIDES}
    every = [
        Compiling(Worker(s, options), pieces[s], options.patience)
        for _ in range(options.warm)
        for s in SIDES
    ]
    while time.monotonic() < ends:
        for c in every:
            c.begin()
        busy = [c for c in every if c.piece is not None]
        if not busy:
            break
        ready = select.select([c.file for c in busy], [], [], 0.2)[0]
        for c in busy:
            if c.file in ready or time.monotonic() > c.ends:
                c.finish()
    print(f"not compiled: { {s: len(p) for s, p in pieces.items()} }", file=sys.stderr, flush=True)
    for c in every:
        c.worker.end()


def race(case: Case, workers: dict[str, Worker], options: argparse.Namespace) -> dict[str, Any]:
    """One line of the table, as data."""
    found: dict[str, Any] = {"case": case.title}
    ready = []
    for side in SIDES:
        try:
            made = workers[side].ask("make", case.title, seconds=options.patience)
        except Lost as e:
            found[f"{side} error"] = str(e)
        else:
            found[f"{side} made"] = made["seconds"]
            ready.append(side)
    try:
        if len(ready) == len(SIDES):
            with tempfile.TemporaryDirectory(dir=options.shared) as folder:
                path = str(Path(folder) / "results.pt")
                workers["triton"].ask("save", path)
                found |= workers["tkc"].ask("compare", path)
        if options.device == "cuda":
            found |= timed({s: workers[s] for s in ready}, options)
    except Lost as e:
        found["tkc error"] = str(e)
    return found


def timed(workers: dict[str, Worker], options: argparse.Namespace) -> dict[str, Any]:
    """Times of a case by the sides that have made it, and ratios where both have."""
    hosts = {s: w.ask("host")["seconds"] for s, w in workers.items()}
    seconds: dict[str, list[float]] = {s: [] for s in workers}
    for _ in range(options.rounds):
        for side in random.sample(list(workers), len(workers)):
            seconds[side].append(workers[side].ask("time", options.repeats)["seconds"])
    found: dict[str, Any] = {s: statistics.median(t) for s, t in seconds.items()}
    found |= {f"{s} host": t for s, t in hosts.items()}
    if len(workers) == len(SIDES):
        q = Quartiles.of([t / o for o, t in zip(*(seconds[s] for s in SIDES), strict=True)])
        found["ratio"] = q.low, q.median, q.high
    return found


def shown(found: dict[str, Any]) -> str:
    """A row of the table."""

    def micro(key: str, digits: int) -> str:
        return f"{found[key] * 1e6:.{digits}f}" if key in found else ""

    errors = "; ".join(f"{s}: {found[f'{s} error']}" for s in SIDES if f"{s} error" in found)
    cells = [found["case"], *(micro(s, 1) for s in SIDES)]
    low, median, high = found.get("ratio", (0.0, 0.0, 0.0))
    cells.append(f"{median:.3f} ({low:.3f}–{high:.3f})" if median else "")
    cells += [micro(f"{s} host", 0) for s in SIDES]
    cells += [f"{found['difference']:.1e}" if "difference" in found else "", errors]
    return f"| {' | '.join(cells)} |"


def in_turn(cases: list[Case]) -> list[Case]:
    """Cases of every suite early, should time end."""
    places: dict[str, int] = {}
    for c in cases:
        places[c.title] = sum(k.suite == c.suite for k in cases[: cases.index(c)])
    return sorted(cases, key=lambda c: places[c.title])


def summary(every: list[dict[str, Any]]) -> str:
    ratios = sorted(f["ratio"][1] for f in every if "ratio" in f)
    lost = sum("tkc error" in f for f in every)
    text = f"{len(every)} cases, {len(ratios)} timed, {lost} not run by tkc"
    if not ratios:
        return text
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    slow = sum(r < 0.9 for r in ratios)
    return f"{text}; geometric mean {mean:.3f}, least {ratios[0]:.3f}, {slow} below 0.9"


def run_all(options: argparse.Namespace) -> None:
    began = time.monotonic()
    chosen = [c for c in CASES if any(w in c.title for w in options.only.split("|"))]
    cases = in_turn(chosen)
    workers = {s: Worker(s, options) for s in SIDES}
    for worker in workers.values():
        worker.tell("prepare", sorted({c.suite for c in cases}))
    if options.warm:
        warm_up(cases, options, options.seconds * options.warming)
        print(f"compiled in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for worker in workers.values():
        with contextlib.suppress(Lost):
            worker.answer(60.0)
    print("| case | tkc, µs | Triton, µs | ratio | host: tkc, µs | Triton | difference | |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |", flush=True)
    every = []
    for case in cases:
        if time.monotonic() - began > options.seconds:
            print(f"{len(cases) - len(every)} cases were left out for want of time")
            break
        found = race(case, workers, options)
        every.append(found)
        print(shown(found), flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps(found) + "\n")
    for worker in workers.values():
        worker.end()
    print(summary(every))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts")
    parser.add_argument("--only", default="", help="words of titles, apart by |")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to make a case")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5, help="runs of a turn")
    parser.add_argument("--warm", type=int, default=0, help="processes a side that compile first")
    parser.add_argument("--shares", type=int, default=4, help="of what is tuned, in compiling")
    parser.add_argument("--out", default="", help="a file for lines of JSON")
    parser.add_argument("--shared", default="/dev/shm", help="a folder for results to compare")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="what extents are divided by")
    parser.add_argument("--loud", action="store_true", help="shows what the sides print")
    parser.add_argument("--warming", type=float, default=0.55, help="share of the time for that")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.side:
        serve(options)
    else:
        run_all(options)


if __name__ == "__main__":
    main()
