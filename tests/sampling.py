"""Which tests run today: `make test` runs a seventh of those in the folders below, a week all.

Tests are dealt out in families. A *family* is a file with all its test functions and their cases;
of the tables of operations, it is the cases of one operation and element type; of a folder whose
files start many processes, it is the folder. Its tests are dealt out to seven days in the order of
a hash of their names, so that the deal does not depend on where one stands. In files that keep what
they compile from one test to the next, those of one program stand together: it is compiled on one
day and not on each. Every family runs at least one test a day, and within seven consecutive days
all of them. Tests of mutants sample these, too (`sampled`).

    TKC_TEST_SEED=3     the sample of day 3; by default the number of days since 1970
    TKC_TEST_SEED=all   every test (`make test-all`)

Tests of messages, and those that hold a list to the code, always run; so do the runtime but for
six files, and whatever is in no folder below.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

DAYS = 7

# Folders, files and tests that are sampled, and what takes long there
SAMPLED = {
    "tests/benchmarks/": "random kernels, stages of a campaign, trials in processes of their own",
    "tests/codegen/": "forms of instructions, random programs of the CPU back end",
    "tests/examples/": "sizes of the examples, and their IR after every pass",
    "tests/fuzz/": "seeds of random kernels",
    "tests/ir/": "layouts and pairs of layouts",
    "tests/golden/": "recorded kernels: their texts, PTX and simulations",
    "tests/kernels/": "shapes, element types and options of the library",
    "tests/language/": "forms of statements, element types, seeds of random programs",
    "tests/operations/": "element types and shapes of every operation",
    "tests/passes/": "forms of kernels: levels, lengths, texts, mutants",
    "tests/ptx_record/": "parts of the recorded kernels",
    "tests/runtime/test_arrays_without_maps.py": "plans and programs that the simulator runs",
    "tests/runtime/test_autotune.py": "kernels that are tuned",
    "tests/runtime/test_cache.py": "processes that share a cache, under several hash seeds",
    "tests/runtime/test_export.py": "kernels that are exported, by target",
    "tests/runtime/test_host_state.py": "what kernels read of the host, and a process for each",
    "tests/runtime/test_picture.py": "kernels whose timelines are drawn",
    "tests/sim/": "programs of the simulators and their mutants",
    "tests/test_docs.py::test_the_blocks_run": "pages whose programs run",
    "tests/test_growth.py": "kinds of programs, at several lengths",
    "tests/test_reliability.py": "commands of a document",
    "tests/tools/": "commands, in processes of their own",
    "tests/triton/": "operations and element types of another language",
    "tests/upstream_bugs/": "kernels that other compilers miscompiled, at every level",
}
# folders that are one family: files of a few tests each, most of which start a process per rank
ONE_FAMILY = ("tests/kernels/distributed/",)
MESSAGES = re.compile(
    r"(?<!rms_)error|refus|message|wrong|bad_|says|cannot|sentence", re.IGNORECASE
)
# files that are about messages alone
FILES_OF_MESSAGES = re.compile(r"/test_(errors|refusals\w*|rebinding_refused)\.py$")
# tests that hold a list to the code: whoever adds an operation, a kernel or an option must enter it
LISTS = re.compile(r"in_the_list|in_the_table|has_a_case|known_everywhere")
OPERATION = re.compile(r"\[([^\d\]]*)")  # of a case of tests/operations: the text before its shape
# parameters of tests that say which program is tested, in what has a name
PROGRAM = ("form", "case", "kernel", "fn", "name", "how")

T = TypeVar("T")


def seed() -> int | None:
    """The day whose sample runs; None: everything."""
    given = os.environ.get("TKC_TEST_SEED", "")
    if given == "all":
        return None
    return int(given) if given else int(time.time() // 86400)


def family(nodeid: str) -> str | None:
    """The family of a test, None of one that always runs."""
    function = nodeid.partition("[")[0]
    file, _, name = function.rpartition("::")
    if not function.startswith(tuple(SAMPLED)) or FILES_OF_MESSAGES.search(file):
        return None
    if MESSAGES.search(name) or LISTS.search(name):
        return None
    if file.startswith("tests/operations/"):
        found = OPERATION.search(nodeid)
        return f"{function}[{found[1] if found else ''}"
    return next((folder for folder in ONE_FAMILY if file.startswith(folder)), file)


def _rank(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@functools.cache
def _keeps_programs(module: Any) -> bool:
    """Whether a module has a function that is cached. Asked once for all its tests, and not of
    modules: one such as tkc looks for what a missing name may have meant.
    """
    return any(
        hasattr(v, "cache_info") for v in vars(module).values() if not isinstance(v, ModuleType)
    )


def program(module: Any, parameters: Mapping[str, Any]) -> str:
    """Of a test's parameters, those that say which program it is about; none where its module keeps
    no program for other tests, by a function that is cached.
    """
    if not _keeps_programs(module):
        return ""
    held = [parameters[key] for key in PROGRAM if key in parameters]
    names = [
        v if isinstance(v, str) else getattr(v, "name", getattr(v, "__name__", "")) for v in held
    ]
    return " ".join(map(str, names))


def chosen(
    nodeids: Iterable[str], day: int | None, programs: Mapping[str, str] | None = None
) -> set[str]:
    """The tests that run on a day. programs: of tests that are about one, by their ids."""
    every, programs = list(nodeids), programs or {}
    if day is None:
        return set(every)
    families: dict[str, list[str]] = {}
    for nodeid in every:
        if (name := family(nodeid)) is not None:
            families.setdefault(name, []).append(nodeid)

    def place(nodeid: str) -> tuple[str, str]:
        return _rank(programs.get(nodeid) or nodeid), _rank(nodeid)

    left_out: set[str] = set()
    for cases in families.values():
        turns = min(DAYS, len(cases))
        for i, nodeid in enumerate(sorted(cases, key=place)):
            if i * turns // len(cases) != day % turns:
                left_out.add(nodeid)
    return set(every) - left_out


def sampled(items: Iterable[T], day: int | None = None) -> Iterator[T]:
    """Of the items that one test goes through (mutants, say) those of the day, in their order.

    A test that runs every day goes through all of them from one multiple of seven days to the next.
    One that is dealt to a day of the week takes another seventh each week.
    """
    today = seed() if day is None else day
    for i, item in enumerate(items):
        if today is None or i % DAYS == (today + today // DAYS) % DAYS:
            yield item
