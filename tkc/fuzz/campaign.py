"""Everything that fuzzing does, for hours if need be: `make fuzz`, or `python -m tkc.fuzz`.

A *campaign* is a number of items, each made of its own number alone, so that any of them can be run
again:

    runs      a golden program or a pipelined kernel in a random schedule of the simulator: no
              finding, right values
    kernels   a random kernel at every level, on the CPU and with one stage: level 0's results, to
              the bit
    devices   a random kernel on the GPU of this machine, only where asked for: level 0's results
    hosts     a program of the host that changes what a kernel reads: the bits of Python itself
    texts     a broken text of IR: read, or refused in a sentence, within two seconds
    mutants   a program of `runs` with one change of its synchronisation: found, unless declared
              equivalent

Items are run by processes of their own, so that one which crashes or hangs costs itself alone and
is reported. What is done is written to a file after every batch: an interrupted fuzz goes on where
it was.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from math import prod
from multiprocessing.connection import Connection, wait
from pathlib import Path

BATCH = 50  # items that a process gets at once
# seconds that a process may take more for its first item: it imports, and compiles what it runs
START_SECONDS = 60.0
OBJECTS_BEFORE_COLLECTION = 100_000  # a process looks for garbage in cycles so rarely
DEVICE_LOST = 3  # the status of a process whose device takes no launches any more


@dataclass(frozen=True)
class Campaign:
    """`one(number)` runs an item: the faults it has, and what else is counted. deadline: seconds
    after which an item hangs; size: how many there are (None: as many as one asks for);
    by_default: whether it runs where no campaign is named.
    """

    name: str
    title: str
    wanted: int
    deadline: float
    one: Callable[[int], tuple[list[str], Counter[str]]]
    size: Callable[[], int] | None = None
    by_default: bool = True


Found = tuple[list[str], Counter[str]]  # of an item: its faults, and what else is counted


# --------------------------------------------------------------------------------------------------
def run(number: int) -> Found:
    """A program in a random schedule."""
    import random

    from tkc.fuzz.programs import programs

    r, all_ = random.Random(number), list(programs().values())
    program = all_[number % len(all_)]
    # small ones more often
    (shape,), resident = (
        r.choices(program.shapes, [(1 + prod(s)) ** -0.5 for s in program.shapes]),
        r.choice((1, 1, 2, 3)),
    )
    found = program.run(shape, number, resident)
    return [f"{program.name} {shape}, {resident} at once: {found}"] if found else [], Counter()


def kernel(number: int) -> Found:
    """A random kernel at every level."""
    from tkc.fuzz.check import check
    from tkc.fuzz.productions import kernel as written

    failures = check(written(number))
    return [f"{f}" for f in failures if f.kind != "refused"], Counter(
        refused=any(f.kind == "refused" for f in failures)
    )


def device(number: int) -> Found:
    """A random kernel on this machine's GPU. An error of the driver ends the process: nothing else
    can be launched from it.
    """
    from tkc.fuzz.device import check
    from tkc.fuzz.productions import kernel as written

    failures = check(written(number))
    if any(f.kind in ("DeviceError", "TrapError") for f in failures):
        print(f"random kernel {number}: {failures[0]}", flush=True)
        os._exit(DEVICE_LOST)
    return [f"{f}" for f in failures if f.kind != "refused"], Counter(
        refused=any(f.kind == "refused" for f in failures)
    )


def host(number: int) -> Found:
    """A program of the host that changes its state between launches."""
    from tkc.fuzz import host

    outcome = host.check(host.program(number))
    return list(outcome.faults), Counter(launches=outcome.launches, refused=outcome.refused)


def text(number: int) -> Found:
    """A broken text of IR; of every twentieth also what the passes do with it."""
    import random

    from tkc.fuzz.mutation import fault, mutant

    broken = mutant(random.Random(number), _texts())
    problem = fault(broken, passes=number % 20 == 0)
    return [f"{problem}\n{broken[:4000]}"] if problem else [], Counter(
        through_passes=number % 20 == 0
    )


@cache
def _texts() -> list[str]:
    from tkc.fuzz.mutation import corpus

    return corpus()


def mutant(number: int) -> Found:
    """A change of a program's synchronisation."""
    from tkc.fuzz.mutants import equivalent, found

    program, place = _mutants()[number]
    if found(program, place):
        return [], Counter(found=1)
    if equivalent(program, place):
        return [], Counter(equivalent=1)
    return [f"{program.name}: '{place.label}' is not found"], Counter()


@cache
def _mutants() -> list:
    from tkc.fuzz.mutants import every

    return every()


def _count() -> int:
    return len(_mutants())


CAMPAIGNS = {
    c.name: c
    for c in (
        Campaign("runs", "schedules of programs without a fault", 100_000, 120, run),
        Campaign("kernels", "random kernels at every level", 20_000, 300, kernel),
        Campaign("devices", "random kernels on a GPU", 2_000, 120, device, by_default=False),
        Campaign("hosts", "hosts that change between launches", 5_000, 120, host),
        Campaign("texts", "broken texts of IR", 100_000, 30, text),
        Campaign("mutants", "changes of synchronisation", 0, 600, mutant, _count),
    )
}


# --------------------------------------------------------------------------------------------------
@dataclass
class Progress:
    """Of one campaign. done: spans of items [first, behind the last]; faults: (item, what)."""

    done: list[list[int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def items(self) -> int:
        """How many are done."""
        return sum(last - first for first, last in self.done)

    def add(
        self,
        first: int,
        last: int,
        faults: list[tuple[int, str]],
        counts: Counter[str],
        seconds: float,
    ) -> None:
        """Items from first up to last are done, with these results."""
        self.faults += faults
        self.counts, self.seconds = dict(Counter(self.counts) + counts), self.seconds + seconds
        spans, self.done = sorted([*self.done, [first, last]]), []
        for span in spans:
            if self.done and self.done[-1][1] == span[0]:
                self.done[-1][1] = span[1]
            else:
                self.done.append(list(span))

    def left(self, total: int) -> list[tuple[int, int]]:
        """Spans of at most BATCH items that are not done."""
        ends = [0, *(n for span in self.done for n in span), total]
        return [
            (n, min(n + BATCH, end, total))
            for start, end in zip(ends[::2], ends[1::2], strict=False)
            for n in range(start, min(end, total), BATCH)
        ]


@dataclass
class State:
    """What a fuzz has done, in a file (None: nowhere). sources: fingerprints of the packages that
    did it.
    """

    path: Path | None = None
    progress: dict[str, Progress] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> State:
        """What a file says; an empty state where there is none."""
        if not path.exists():
            return State(path)
        found = json.loads(path.read_text())
        return State(
            path, {name: Progress(**p) for name, p in found["campaigns"].items()}, found["sources"]
        )

    def of(self, campaign: Campaign) -> Progress:
        """The progress of a campaign."""
        return self.progress.setdefault(campaign.name, Progress())

    def write(self) -> None:
        """Replaces the file."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}.new")
        new.write_text(
            json.dumps(
                {
                    "sources": self.sources,
                    "campaigns": {name: asdict(p) for name, p in self.progress.items()},
                }
            )
        )
        new.replace(self.path)


# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Batch:
    """Items of a campaign from first up to, not including, last."""

    campaign: Campaign
    first: int
    last: int


def work(pipe: Connection, seed: int) -> None:
    """A process: batches in; out "item" before each of its items, its faults and counts behind it,
    and "over" behind the last.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)  # modules are large, and what they hold lives on
    try:
        while (batch := pipe.recv()) is not None:
            for item in range(batch.first, batch.last):
                pipe.send(("item", item))
                try:
                    faults, counts = batch.campaign.one(
                        item + (seed if batch.campaign.size is None else 0)
                    )
                except Exception as e:
                    faults, counts = [f"{type(e).__name__}: {e}"], Counter()
                pipe.send(("done", item, faults, counts))
            pipe.send(("over",))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the other end is closed


class Worker:
    """A process and the item that it runs. A batch outlives the process: another one continues
    after the item that ended it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._batch: Batch | None = None
        # of the current batch: its item, what went wrong and what was done, since when (seconds)
        self.item, self.began, self.since = 0, 0.0, 0.0
        self.faults: list[tuple[int, str]] = []
        self.counts: Counter[str] = Counter()
        self.stalled: int | None = None  # the item that hung before
        self._start()

    @property
    def batch(self) -> Batch:
        """The current batch. Raises RuntimeError where none was given yet."""
        if self._batch is None:
            raise RuntimeError("a worker without a batch")
        return self._batch

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=work, args=(far, self.seed), daemon=True)
        self.process.start()
        far.close()

    def give(self, batch: Batch) -> None:
        """Starts a batch."""
        self._batch, self.item = batch, batch.first
        self.faults, self.counts = [], Counter()
        self.began, self.stalled = time.monotonic(), None
        self.since = time.monotonic() + START_SECONDS
        self.pipe.send(batch)

    def receive(self) -> bool:
        """One message; whether the batch is over."""
        try:
            kind, *rest = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self.replace_process(f"the process ended with status {self._status()}")
        if kind == "item":
            self.item = rest[0]
        elif kind == "done":
            item, faults, counts = rest
            self.faults += [(item, f) for f in faults]
            self.counts += counts
            self.since = time.monotonic()
        return kind == "over"

    def _status(self) -> int | None:
        self.process.join(5)
        return self.process.exitcode

    def replace_process(self, why: str, again: bool = False) -> bool:
        """The process ended, or hangs, at its item: a new one gets what is left of the batch, with
        `again` that item too, once: whether a hang comes back tells a machine that stalled from an
        item that hangs. Returns whether the batch is over.
        """
        self.stop()
        again = again and self.stalled != self.item
        self.faults.append((self.item, why if self.stalled != self.item else f"{why}, again"))
        self.stalled = self.item
        rest = Batch(self.batch.campaign, self.item + (not again), self.batch.last)
        self._start()
        if rest.first >= rest.last:
            return True
        self.item, self.since = rest.first, time.monotonic() + START_SECONDS
        self.pipe.send(rest)
        return False

    def is_late(self) -> bool:
        """Whether the current item has run past its campaign's deadline."""
        if self._batch is None:
            return False
        return time.monotonic() - self.since > self._batch.campaign.deadline

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def fuzz(
    wanted: dict[Campaign, int],
    state: State,
    jobs: int = 1,
    seed: int = 0,
    seconds: float | None = None,
    report: Callable[[Campaign, Progress], None] = lambda campaign, progress: None,
) -> State:
    """Runs so many items of each campaign, less what the state says is done, until the time is
    over. seed: where the numbers of kernels, runs and texts begin.
    """
    began, batches, running = time.monotonic(), _left(wanted, state), []
    try:
        for batch in batches:
            running.append(Worker(seed))
            running[-1].give(batch)
            if len(running) == jobs:
                break
        while running:
            wait([w.pipe for w in running], timeout=1)
            for worker in list(running):
                over = False
                while not over and worker.pipe.poll():
                    over = worker.receive()
                if not over and worker.is_late():
                    over = worker.replace_process(
                        f"no end within {worker.batch.campaign.deadline:g} s", again=True
                    )
                if not over:
                    continue
                done, progress = worker.batch, state.of(worker.batch.campaign)
                progress.add(
                    done.first,
                    done.last,
                    worker.faults,
                    worker.counts,
                    time.monotonic() - worker.began,
                )
                state.write()
                report(done.campaign, progress)
                is_over = seconds is not None and time.monotonic() - began > seconds
                following = None if is_over else next(batches, None)
                if following is None:
                    worker.stop()
                    running.remove(worker)
                else:
                    worker.give(following)
    finally:
        for worker in running:
            worker.stop()
    return state


def _left(wanted: dict[Campaign, int], state: State) -> Iterator[Batch]:
    """The campaigns in turn, so that an interrupted fuzz is as far along in each."""
    each = [
        [Batch(campaign, *span) for span in state.of(campaign).left(total)]
        for campaign, total in wanted.items()
    ]
    longest = max(map(len, each), default=0)
    for share in range(longest):
        for batches in each:
            yield from batches[
                share * len(batches) // longest : (share + 1) * len(batches) // longest
            ]
