"""Runs other projects' tests of their Triton kernels with tkc in Triton's place; prints a table.

    python -m tests.outside.run SUITE CHECKOUT [--sample N | --each N] [--seconds S] [--only WORD]

SUITE: a row of SUITES. CHECKOUT: where the developer fetched that project; nothing of it is kept
here. Each file of tests runs in a process of its own, so that a crash costs one file. sample: N
cases of each file at most, chosen by their names (0: all). each: N cases of each test function; the
table is then an estimate of all of a file's cases, each function's outcomes in proportion to how
many cases it has. On a machine without a GPU the tests run
in host memory. Cases that fail only where they read the text of Triton's own compiler are counted
apart. `tests/outside/triton.md` has the last table of Triton's tests.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Suite:
    """Files of tests of a project. path: what is put on Python's path of its checkout. modules:
    names that its tests import -> files of the checkout that are not tests of kernels.
    """

    files: str
    path: str = "."
    environment: tuple[tuple[str, str], ...] = ()
    modules: tuple[tuple[str, str], ...] = ()


COLUMNS = ("passed", "text", "failed", "skipped", "not run")
SUITES = {
    "triton": Suite(
        "python/test/unit/language/test_*.py",
        modules=(
            ("triton._internal_testing", "python/triton/_internal_testing.py"),
            ("triton.tools.mxfp", "python/triton/tools/mxfp.py"),
        ),
    ),
    "liger": Suite("test/transformers/test_*.py", "src"),
    "fla": Suite("tests/ops/test_*.py", ".", (("FLA_CI_ENV", "1"),)),
    "mamba": Suite("tests/ops/triton/test_*.py"),
}


def environment(suite: Suite, checkout: Path, outcomes: Path) -> dict[str, str]:
    paths = (str(ROOT), str(checkout / suite.path), str(checkout), os.environ.get("PYTHONPATH", ""))
    return {
        **os.environ,
        **dict(suite.environment),
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "OUTSIDE_OUTCOMES": str(outcomes),
        "OUTSIDE_MODULES": os.pathsep.join(f"{n}={checkout / p}" for n, p in suite.modules),
    }


def pytest_command(*arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.outside.place"),
        *("-p", "no:cacheprovider", "--rootdir", ".", "--color=no", *arguments),
    ]


def collected(suite: Suite, checkout: Path, file: Path) -> list[str]:
    """The cases of a file, by name."""
    done = subprocess.run(
        pytest_command("--collect-only", str(file.relative_to(checkout))),
        cwd=checkout,
        env=environment(suite, checkout, Path(os.devnull)),
        capture_output=True,
        text=True,
    )
    return [
        line for line in done.stdout.splitlines() if "::" in line and " " not in line.split("[")[0]
    ]


def chosen(cases: list[str], sample: int) -> list[str]:
    """Some of the cases, by their names alone."""
    return sorted(cases, key=lambda c: crc32(c.encode()))[:sample] if sample else cases


def function_of(case: str) -> str:
    return case.split("[")[0]


def chosen_of_each(cases: list[str], each: int) -> list[str]:
    """So many cases of each test function."""
    functions = dict.fromkeys(map(function_of, cases))
    return [c for f in functions for c in chosen([c for c in cases if function_of(c) == f], each)]


def in_proportion(cases: list[str], found: list[list[str]]) -> collections.Counter:
    """Outcomes of all cases, as those of each function's cases that ran."""
    every = collections.Counter(map(function_of, cases))
    ran = collections.Counter(function_of(case) for _, case, _ in found)
    counts: collections.Counter = collections.Counter()
    for outcome, case, _ in found:
        counts[outcome] += every[function_of(case)] / ran[function_of(case)]
    counts = collections.Counter({k: round(n) for k, n in counts.items()})
    counts["not run"] = sum(n for f, n in every.items() if not ran[f])
    return counts


def outcomes_of(suite: Suite, checkout: Path, cases: list[str], seconds: float) -> list[list[str]]:
    """(outcome, case, reason) of each that ran within the time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "outcomes")
        path.touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                pytest_command(*cases),
                cwd=checkout,
                env=environment(suite, checkout, path),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
            )
        return [(line.split("\t") + [""])[:3] for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--each", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    suite, checkout = SUITES[given.suite], given.checkout.resolve()
    total: collections.Counter = collections.Counter()
    reasons: collections.Counter = collections.Counter()
    print("| file | cases | passed | text | failed | skipped | not run |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for file in sorted(checkout.glob(suite.files)):
        if given.only not in file.name:
            continue
        every = collected(suite, checkout, file)
        cases = chosen_of_each(every, given.each) if given.each else chosen(every, given.sample)
        found = outcomes_of(suite, checkout, cases, given.seconds) if cases else []
        if given.each:
            cases, counts = every, in_proportion(every, found)
        else:
            counts = collections.Counter(outcome for outcome, _, _ in found)
            counts["not run"] = len(cases) - len(found)
        total += counts
        reasons.update(reason for outcome, _, reason in found if outcome in ("failed", "text"))
        shown = (counts[k] for k in COLUMNS)
        print(f"| {file.name} | {len(cases)} | {' | '.join(map(str, shown))} |", flush=True)
    shown = (total[k] for k in COLUMNS)
    print(f"| **all** | {sum(total.values())} | {' | '.join(map(str, shown))} |")
    for reason, count in reasons.most_common(40):
        print(f"{count:6}  {reason}")


if __name__ == "__main__":
    main()
