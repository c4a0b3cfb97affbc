"""The sampler: every family runs every day, and a week runs everything."""

import functools
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.sampling import DAYS, chosen, family, program, sampled, seed

CASES = (
    *(f"tests/passes/test_roles.py::test_every_level[{i}]" for i in range(40)),
    *(f"tests/kernels/test_softmax.py::test_rows[{i}]" for i in range(5)),
    "tests/kernels/test_softmax.py::test_one",
    *(f"tests/kernels/test_softmax.py::test_errors[{i}]" for i in range(9)),
    *(
        f"tests/operations/test_operations.py::test_operation[scans of {t} {n}-cpu]"
        for t in ("int", "float")
        for n in range(9)
    ),
    *(f"tests/runtime/test_jit.py::test_it[{i}]" for i in range(9)),
    *(f"tests/language/test_errors.py::test_saying[{i}]" for i in range(9)),
    *(f"tests/test_docs.py::test_the_blocks_run[{page}]" for page in ("ir", "models", "speed")),
    *(
        f"tests/kernels/distributed/test_{file}.py::test_it[{i}]"
        for file in ("example", "ranks", "watch")
        for i in range(3)
    ),
    "tests/test_docs.py::test_links",
    "tests/passes/test_roles.py::test_alone",
)


@pytest.mark.parametrize("first", [0, 3, 20_000])
def test_a_week_runs_everything(first):
    assert set().union(*(chosen(CASES, first + day) for day in range(DAYS))) == set(CASES)


@pytest.mark.parametrize("day", range(DAYS))
def test_every_family_runs_every_day(day):
    today = chosen(CASES, day)
    assert {family(case) for case in today} == {family(case) for case in CASES}
    whole = [c for c in CASES if family(c) is None]
    assert set(whole) <= today and len(today) < len(CASES) / 2


def test_messages_and_what_is_in_no_list_run_every_day():
    always = ("test_jit.py", "errors", "test_links")
    for case in CASES:
        assert (family(case) is None) == any(part in case for part in always), case
    assert family("tests/kernels/test_rms_errors.py::test_rms_error[exp]") is not None
    assert family("tests/kernels/test_norms.py::test_bad_arguments_are_refused[0]") is None


def test_the_tests_of_a_program_run_on_few_days():
    cases = {
        f"tests/passes/test_roles.py::test_{what}[{i}-{n}]": f"form {i}"
        for i in range(14)
        for what, count in (("steps", 6), ("shapes", 1))
        for n in range(count)
    }
    days = [chosen(cases, day, cases) for day in range(DAYS)]
    assert set().union(*days) == set(cases) and sum(map(len, days)) == len(cases)
    assert all(len(day) == 14 and len({cases[c] for c in day}) == 2 for day in days)


def test_parameters_name_a_program_that_is_kept():
    def kernel():
        """Of no use."""

    keeps, keeps_none = ModuleType("keeps"), ModuleType("keeps_none")
    keeps.compiled, keeps_none.n = functools.cache(kernel), kernel
    assert program(keeps, {"steps": 3, "form": CASES[0]}) == CASES[0]
    assert program(keeps, {"kernel": kernel, "n": 1, "name": "x"}) == "kernel x"
    assert program(keeps, {"n": 1}) == program(keeps_none, {"form": CASES[0]}) == ""


def test_files_that_start_processes_share_a_day():
    days = [{c for c in chosen(CASES, day) if "/distributed/" in c} for day in range(DAYS)]
    assert sorted(map(len, days)) == [1] * 5 + [2] * 2


def test_everything_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("TKC_TEST_SEED", "all")
    assert seed() is None and chosen(CASES, seed()) == set(CASES)
    assert list(sampled(range(30))) == list(range(30))
    monkeypatch.setenv("TKC_TEST_SEED", "12")
    assert seed() == 12 and list(sampled(range(30))) == [6, 13, 20, 27]


@pytest.mark.parametrize("days", [range(70, 77), range(5, 54, 7)], ids=["daily", "weekly"])
def test_what_a_test_goes_through_is_covered(days):
    """Whether the test runs every day, or one day of each week."""
    assert sorted(i for day in days for i in sampled(range(30), day)) == list(range(30))


COLLECTS = """
import os, sys
import pytest

for day in sys.argv[1:]:
    os.environ["TKC_TEST_SEED"] = day
    print("day", day)
    assert pytest.main(["--collect-only", "-q", "tests/ir"]) == 0
"""


def test_a_week_covers_what_pytest_collects():
    """Of one folder, with the real collection."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTS, "all", "3"],
        cwd=Path(__file__).resolve().parents[1],  # of the project
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    every, third = (
        {line for line in text.splitlines() if "::" in line}
        for text in done.stdout.partition("day all")[2].split("day 3")
    )
    days = [chosen(every, day) for day in range(DAYS)]
    assert set().union(*days) == every and all(len(day) < len(every) for day in days)
    assert third == days[3]
