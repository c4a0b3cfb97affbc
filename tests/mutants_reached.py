"""What `tests.mutants_of_compiler` collects: in which random kernels and tests each check of the
compiler refuses, in a file that a later run goes on with.

A collection is kept small: of a check no more runs than a mutant is run on, of a function of the
compiler no more than show what its checks do. It outlives edits, since checks have names without
lines. Where functions have checks that no collection has asked for, what runs those functions is
run again, and nothing else is.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

Kernel = tuple[str, int, int]  # a random one: policy, seed, number of the variant
Test = tuple[float, str]  # seconds, id

MOST_KERNELS, MOST_TESTS = 24, 48  # that are kept of a check
MOST_OF_A_FUNCTION = 24  # kernels and tests that are kept of a function


def module_of(name: str) -> str:
    """The module of a check, by the check's name, as tests of it have it in theirs."""
    return Path(name.partition(" ")[0]).stem


def function_of(name: str) -> str:
    """The file and the function of a check."""
    return name.partition(": ")[0]


def digest(name: str) -> str:
    """What stands for a check's name in a file."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def in_order(tests: Iterable[Test], stem: str) -> list[Test]:
    """Tests in the order in which a mutant is run on them: those named as its module is, then a
    case of each function, the quickest first, then another.
    """
    cases: Counter[str] = Counter()
    order = []
    for seconds, test in sorted(tests):
        function = test.partition("[")[0]
        order.append((stem not in test, cases[function], seconds, test))
        cases[function] += 1
    return [(seconds, test) for *_, seconds, test in sorted(order)]


@dataclass
class Reached:
    """By the name of a check, what it refuses in; by the name of a function, some of what runs its
    checks. done: kernels and tests that ran, whatever refused in them. asked: the digests of the
    checks that they were asked for. failed: tests that did not pass, and say nothing.
    """

    kernels: dict[str, list[Kernel]] = field(default_factory=dict)
    tests: dict[str, list[Test]] = field(default_factory=dict)
    functions: dict[str, list[Test]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @staticmethod
    def read(path: Path) -> Reached:
        """What a file says."""
        data = json.loads(path.read_text())
        ids = data["ids"]
        return Reached(
            {n: [(ids[i], seed, v) for i, seed, v in runs] for n, runs in data["kernels"].items()},
            {n: [(s, ids[i]) for s, i in runs] for n, runs in data["tests"].items()},
            {n: [(s, ids[i]) for s, i in runs] for n, runs in data["functions"].items()},
            [ids[i] for i in data["done"]],
            set(data["asked"]),
            set(data["failed"]),
        )

    def write(self, path: Path) -> None:
        """Replaces a file."""
        places: dict[str, int] = {}

        def place(name: str) -> int:
            return places.setdefault(name, len(places))

        def timed(runs: dict[str, list[Test]]) -> dict[str, list[tuple[float, int]]]:
            return {n: [(round(s, 3), place(i)) for s, i in of] for n, of in runs.items()}

        data = {
            "kernels": {n: [(place(p), s, v) for p, s, v in of] for n, of in self.kernels.items()},
            "tests": timed(self.tests),
            "functions": timed(self.functions),
            "done": [place(name) for name in self.done],
            "asked": sorted(self.asked),
            "failed": sorted(self.failed),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"ids": list(places), **data}, separators=(",", ":")))
        new.replace(path)

    def add(self, other: Reached) -> None:
        """What another collection reached, too: a later one of the same runs."""
        again = set(other.done)
        for name, kernels in other.kernels.items():
            kept = [k for k in self.kernels.get(name, []) if f"{k[0]} {k[1]}" not in again]
            some = sorted({*kept, *kernels}, key=lambda k: digest(f"{k}"))
            self.kernels[name] = some[:MOST_KERNELS]
        for mine, its, most in (
            (self.tests, other.tests, MOST_TESTS),
            (self.functions, other.functions, MOST_OF_A_FUNCTION),
        ):
            for name, runs in its.items():
                timed = [run for run in mine.get(name, []) if run[1] not in again]
                mine[name] = in_order([*timed, *runs], module_of(name))[:most]
        self.done += other.done
        self.failed = self.failed - again | other.failed

    def ask(self, names: Iterable[str]) -> None:
        """These are the checks from now on: what runs functions of those that nobody asked for is
        to be run again, and where nothing is known to run such a function, what runs others of its
        file.
        """
        digests = {digest(name): function_of(name) for name in names}
        new = {function for d, function in digests.items() if d not in self.asked}
        again: set[str] = set()
        for function in new:
            file = function.partition(" ")[0]
            of = [function] if function in self.functions else list(self.functions)
            again |= {
                run
                for name in of
                if name.partition(" ")[0] == file
                for _, run in self.functions[name]
            }
        self.done = [run for run in self.done if run not in again]
        self.asked = set(digests)
