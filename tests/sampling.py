"""Which cases of long families of tests run today: `make test` runs a seventh of each, a week all.

A *family* is a test function with its parametrized cases (of the tables of operations: the cases
of one operation and element type).  Its cases are dealt out to seven days in the order of a hash of
their names, so that the deal does not depend on where a case stands.  Every family runs at least
one case a day, and within seven consecutive days all of them.

    TKC_TEST_SEED=3     the sample of day 3; by default the number of days since 1970
    TKC_TEST_SEED=all   every case (`make test-all`)

Tests of messages, of the language and of the runtime always run whole: they are in no folder below.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

DAYS = 7
SMALLEST_FAMILY = 2  # cases; a single case always runs

# Folders whose families are sampled, and what their families are
SAMPLED = {
    "tests/codegen/": "forms of instructions, random programs of the CPU back end",
    "tests/examples/": "sizes of the examples, and their IR after every pass",
    "tests/fuzz/": "seeds of random kernels",
    "tests/ir/": "layouts and pairs of layouts",
    "tests/kernels/": "shapes, element types and options of the library",
    "tests/operations/": "element types and shapes of every operation",
    "tests/passes/": "forms of kernels: levels, lengths, texts, mutants",
    "tests/ptx_record/": "parts of the recorded kernels",
    "tests/sim/": "programs of the simulators and their mutants",
}
MESSAGES = re.compile(r"error|refus|message|wrong|bad_|says|cannot|sentence", re.IGNORECASE)
OPERATION = re.compile(r"\[([^\d\]]*)")  # of a case of tests/operations: the text before its shape

T = TypeVar("T")


def seed() -> int | None:
    """The day whose sample runs; None: everything."""
    given = os.environ.get("TKC_TEST_SEED", "")
    if given == "all":
        return None
    return int(given) if given else int(time.time() // 86400)


def family(nodeid: str) -> str | None:
    """The family of a case, None of one that always runs."""
    function, bracket, _ = nodeid.partition("[")
    if not bracket or not function.startswith(tuple(SAMPLED)):
        return None
    if MESSAGES.search(function.rpartition("::")[2]):
        return None
    if function.startswith("tests/operations/"):
        found = OPERATION.search(nodeid)
        return f"{function}[{found[1] if found else ''}"
    return function


def _rank(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def chosen(nodeids: Iterable[str], day: int | None) -> set[str]:
    """The cases that run on a day."""
    every = list(nodeids)
    if day is None:
        return set(every)
    families: dict[str, list[str]] = {}
    for nodeid in every:
        if (name := family(nodeid)) is not None:
            families.setdefault(name, []).append(nodeid)
    left_out: set[str] = set()
    for cases in families.values():
        if len(cases) < SMALLEST_FAMILY:
            continue
        turns = min(DAYS, len(cases))
        for i, nodeid in enumerate(sorted(cases, key=_rank)):
            if i % turns != day % turns:
                left_out.add(nodeid)
    return set(every) - left_out


def sampled(items: Iterable[T], day: int | None = None) -> Iterator[T]:
    """Of the items that one test goes through (mutants, say) those of the day, in their order."""
    today = seed() if day is None else day
    for i, item in enumerate(items):
        if today is None or i % DAYS == today % DAYS:
            yield item
