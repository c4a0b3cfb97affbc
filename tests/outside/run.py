"""Runs other projects' tests of their Triton kernels with tkc in Triton's place; prints a table.

    python -m tests.outside.run SUITE CHECKOUT [--each N] [--seconds S] [--only WORD]
                                [--workers N] [--timeout S] [--triton] [--keep FOLDER]

SUITE: a row of SUITES. CHECKOUT: where the developer fetched that project; nothing of it is kept
here. Each file of tests runs in a process of its own, so that a crash costs one file. each: N cases
of each test function, chosen by their names; the table is then an estimate of all of a file's
cases, each function's outcomes in proportion to how many cases it has. workers: so many processes
share all files' cases (pytest-xdist), for `seconds` in all; timeout: seconds of a case
(pytest-timeout). triton: Triton itself stays in its place, to see what it passes. keep: a folder
for a file of outcomes, one a line, written as cases end, so that a run that is stopped loses none.
On a machine without a GPU the tests run in host memory. Cases that fail only where they read the
text of Triton's own compiler are counted apart. `tests/outside/triton.md` has the last tables.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.outside.cases import function_of

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Suite:
    """Files of tests of a project: patterns, apart by spaces. path: what is put on Python's path of
    its checkout. modules: names that its tests import -> files of the checkout that are not tests
    of kernels. bare: a package whose own code is not run, since it wants extensions that were not
    built.
    """

    files: str
    path: str = "."
    environment: tuple[tuple[str, str], ...] = ()
    modules: tuple[tuple[str, str], ...] = ()
    bare: str = ""


COLUMNS = ("passed", "text", "failed", "skipped", "not run")
# Triton's tests of its language; the others are of its texts, its debugger, its AMD back end
OF_TRITON = (
    *("core", "standard", "random", "conversions", "matmul", "block_pointer"),
    *("tensor_descriptor", "pipeliner", "tuple", "libdevice"),
)
SUITES = {
    "triton": Suite(
        " ".join(f"python/test/unit/language/test_{name}.py" for name in OF_TRITON),
        modules=(
            ("triton._internal_testing", "python/triton/_internal_testing.py"),
            ("triton.tools.mxfp", "python/triton/tools/mxfp.py"),
        ),
    ),
    "liger": Suite("test/transformers/test_*.py", "src"),
    "fla": Suite("tests/ops/test_*.py", ".", (("FLA_CI_ENV", "1"),)),
    "mamba": Suite("tests/ops/triton/test_*.py", bare="mamba_ssm"),
}


@dataclass(frozen=True)
class Choice:
    """How a suite runs. each: cases of each test function (0: all). seconds: of a run; timeout: of
    a case, where there are workers. workers: processes that share the cases of all files (0: each
    file has a process of its own). itself: Triton stays in its place. keep: a folder for outcomes
    and for the log of a run; "": one that is removed at its end.
    """

    each: int
    seconds: float
    workers: int
    timeout: float
    itself: bool
    keep: str = ""

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Where the files of a run are; those of an earlier run are emptied."""
        with contextlib.ExitStack() as stack:
            name = self.keep or stack.enter_context(tempfile.TemporaryDirectory())
            folder = Path(name).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            for file in ("outcomes", "collected", "log"):
                (folder / file).write_text("")
            yield folder


@dataclass(frozen=True)
class Found:
    """Of a run: every case, and (outcome, reason) by case of those that ran."""

    cases: list[str]
    outcomes: dict[str, tuple[str, str]]

    def counts(self) -> collections.Counter:
        """Outcomes of all cases, as those of each function's cases that ran."""
        every = collections.Counter(map(function_of, self.cases))
        ran = collections.Counter(map(function_of, self.outcomes))
        counts: collections.Counter = collections.Counter()
        for case, (outcome, _) in self.outcomes.items():
            function = function_of(case)
            counts[outcome] += max(every[function], 1) / ran[function]
        counts = collections.Counter({k: round(n) for k, n in counts.items()})
        counts["not run"] = sum(n for f, n in every.items() if not ran[f])
        return counts

    def by_file(self) -> dict[str, Found]:
        """The same, file by file."""
        files = dict.fromkeys(c.split("::")[0] for c in (*self.cases, *self.outcomes))
        return {
            Path(file).name: Found(
                [c for c in self.cases if c.split("::")[0] == file],
                {c: o for c, o in self.outcomes.items() if c.split("::")[0] == file},
            )
            for file in files
        }


def environment(suite: Suite, checkout: Path, folder: Path, choice: Choice) -> dict[str, str]:
    paths = (str(ROOT), str(checkout / suite.path), str(checkout), os.environ.get("PYTHONPATH", ""))
    return {
        **os.environ,
        **dict(suite.environment),
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "OUTSIDE_OUTCOMES": str(folder / "outcomes"),
        "OUTSIDE_COLLECTED": str(folder / "collected"),
        "OUTSIDE_EACH": str(choice.each),
        "OUTSIDE_MIXED": str(int(choice.workers > 0)),
        "OUTSIDE_TRITON": str(int(choice.itself)),
        "OUTSIDE_BARE": f"{suite.bare}={checkout / suite.bare}" if suite.bare else "",
        "OUTSIDE_MODULES": os.pathsep.join(f"{n}={checkout / p}" for n, p in suite.modules),
    }


def pytest_command(choice: Choice, files: list[Path]) -> list[str]:
    shared = (
        *("-n", str(choice.workers), "--max-worker-restart", "1000", "--maxschedchunk", "2"),
        *("--timeout", str(choice.timeout), "--timeout-method", "thread"),
    )
    return [
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.outside.place"),
        *("-p", "no:cacheprovider", "--rootdir", ".", "--color=no"),
        *("-o", "addopts=", "--continue-on-collection-errors"),
        *(shared if choice.workers else ()),
        *map(str, files),
    ]


def run(suite: Suite, checkout: Path, files: list[Path], choice: Choice) -> Found:
    """The cases of some files that ran within the time."""
    with choice.folder() as folder, open(folder / "log", "r+") as log:
        started = subprocess.Popen(
            pytest_command(choice, [f.relative_to(checkout) for f in files]),
            cwd=checkout,
            env=environment(suite, checkout, folder, choice),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            started.wait(choice.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        outcomes: dict[str, tuple[str, str]] = {}
        for line in (folder / "outcomes").read_text().splitlines():
            outcome, case, reason = (line.split("\t") + [""])[:3]
            outcomes.setdefault(case, (outcome, reason))
        if not outcomes:
            log.seek(0)
            print("".join(log.readlines()[-20:]), file=sys.stderr)
        return Found((folder / "collected").read_text().splitlines(), outcomes)


def show(name: str, found: Found) -> collections.Counter:
    """Prints a row of the table."""
    counts = found.counts()
    shown = " | ".join(str(counts[k]) for k in COLUMNS)
    print(f"| {name} | {sum(counts.values())} | {len(found.outcomes)} | {shown} |", flush=True)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--each", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--triton", action="store_true")
    parser.add_argument("--keep", default="")
    given = parser.parse_args()
    choice = Choice(
        given.each, given.seconds, given.workers, given.timeout, given.triton, given.keep
    )
    suite, checkout = SUITES[given.suite], given.checkout.resolve()
    found = {f for pattern in suite.files.split() for f in checkout.glob(pattern)}
    files = sorted(f for f in found if given.only in f.name)
    print("| file | cases | of which ran | passed | text | failed | skipped | not run |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    total: collections.Counter = collections.Counter()
    every = Found([], {})
    for group in [files] if choice.workers else [[f] for f in files]:
        ran = run(suite, checkout, group, choice)
        for name, part in ran.by_file().items():
            total += show(name, part)
        every.cases.extend(ran.cases)
        every.outcomes.update(ran.outcomes)
    shown = " | ".join(str(total[k]) for k in COLUMNS)
    print(f"| **all** | {sum(total.values())} | {len(every.outcomes)} | {shown} |")
    failed = {c: r for c, (outcome, r) in every.outcomes.items() if outcome in ("failed", "text")}
    for reason, count in collections.Counter(failed.values()).most_common(40):
        print(f"{count:6}  {reason}")
    for case in failed:
        print(f"        {case}")


if __name__ == "__main__":
    main()
