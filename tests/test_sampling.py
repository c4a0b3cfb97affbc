"""The sampler: every family runs every day, and a week runs everything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import DAYS, chosen, family, sampled, seed

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
    *(f"tests/language/test_values.py::test_it[{i}]" for i in range(9)),
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


def test_everything_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("TKC_TEST_SEED", "all")
    assert seed() is None and chosen(CASES, seed()) == set(CASES)
    assert list(sampled(range(30))) == list(range(30))
    monkeypatch.setenv("TKC_TEST_SEED", "12")
    assert seed() == 12 and list(sampled(range(30))) == [5, 12, 19, 26]


def test_a_week_covers_what_pytest_collects():
    """Of one folder, with the real collection."""
    root = Path(__file__).resolve().parents[1]  # of the project

    def collected(day: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/ir"],
            cwd=root,
            env=os.environ | {"TKC_TEST_SEED": day},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return {line for line in done.stdout.splitlines() if "::" in line}

    every = collected("all")
    days = [chosen(every, day) for day in range(DAYS)]
    assert set().union(*days) == every and all(len(day) < len(every) for day in days)
    assert collected("3") == days[3]
