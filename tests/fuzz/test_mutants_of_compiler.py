"""The mutants of the compiler: which conditions are sites, and what one at work does."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
import time
from collections import deque
from functools import partial

import pytest

from tests import mutants_of_compiler
from tests.mutants_of_compiler import (
    ROOT,
    SITE,
    Finding,
    Runs,
    Sites,
    Trials,
    _Instrument,
    in_child,
    in_children,
    run_of,
    spread,
)
from tests.mutants_reached import MOST_TESTS, Reached, digest

TEXT = """
def may_move(op, stores):
    if op is None or op.is_volatile or len(stores) > 2:
        return False
    for store in stores:
        if store == op:
            continue
        if store in op:
            return "it is written"
    return op.is_load and not stores


def movable(stores):
    found = []
    for store in stores:
        if store.is_volatile:
            continue
        found.append(store)
    return found


def reason(op) -> str:
    if op.is_load:
        return ""
    if op.is_volatile:
        return "it is volatile"
    return ""


def _meet(a, b):
    if a is b or a == b:
        return True
    if a < b:
        return False
    return b.is_load


def other(op):
    if isinstance(op, int):
        return None
    if op > 3:
        op = op + 1
    return op
"""


@pytest.fixture
def sites(monkeypatch):
    found = Sites()
    monkeypatch.setattr(mutants_of_compiler, "SITES", found)
    return found


def instrumented(sites):
    tree = _Instrument("x.py").visit(ast.parse(TEXT))
    names = {SITE: sites.value}
    exec(compile(ast.fix_missing_locations(tree), "x.py", "exec"), names)
    return names


def test_sites_are_conditions_that_refuse(sites):
    instrumented(sites)
    assert [(s.text, s.refusing) for s in sites.all] == [
        ("op.is_volatile", True),
        ("len(stores) > 2", True),
        ("store in op", True),
        ("op.is_load", False),
        ("store.is_volatile", True),
        ("op.is_volatile", True),
        ("a == b", True),
        ("b.is_load", True),
    ]


class Load(list):
    is_volatile, is_load = True, True


def test_an_active_site_never_refuses(sites):
    may_move = instrumented(sites)["may_move"]
    assert may_move(Load(), []) is False and sites.refused == {0}
    sites.active = 0
    assert may_move(Load(), [])
    assert may_move(Load([1]), [1]) == "it is written"


def test_a_child_says_what_it_found():
    assert in_child(lambda: None, 5) is None
    assert in_child(lambda: "a kernel", 5) == "a kernel"
    assert "ZeroDivisionError" in in_child(lambda: str(1 // 0), 5)


def test_a_child_that_does_not_end_is_a_finding():
    def never():
        while True:
            pass

    assert "no end within 1 s" in in_child(never, 1)


def test_children_give_what_they_found_as_they_end():
    def after(seconds):
        time.sleep(seconds)
        return seconds

    tasks = [(name, partial(after, s), 5) for name, s in (("a", 0.6), ("b", 0.1), ("c", 0.1))]
    found = list(in_children(deque(tasks), 2, math.inf))
    assert [name for name, _ in found] == ["b", "c", "a"]
    assert dict(found) == {"a": 0.6, "b": 0.1, "c": 0.1}


def test_children_give_more_than_a_pipe_holds():
    assert in_child(lambda: "x" * 10**6, 5) == "x" * 10**6


def test_children_end_at_the_limit_and_so_does_what_they_started(tmp_path):
    pids = tmp_path / "pids"

    def waits():
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        pids.write_text(str(started.pid))
        started.wait()

    began = time.monotonic()
    tasks = [("quick", lambda: 1, 5), ("slow", waits, 50), ("other", waits, 50)]
    assert list(in_children(deque(tasks), 2, began + 2)) == [("quick", 1)]
    assert time.monotonic() - began < 20
    with pytest.raises(ProcessLookupError):
        for _ in range(50):  # whoever adopts it takes its status in time
            os.kill(int(pids.read_text()), 0)
            time.sleep(0.1)


def test_what_fails_without_a_mutant_finds_none(sites, monkeypatch, tmp_path):
    instrumented(sites)

    def caught(number, runs):
        tests = [test for _, test in runs.tests]
        failing = [t for t in tests if t == "flaky" or (t == "good" and number == 0)]
        return Finding(failing[0], f"test {failing[0]}") if failing else None

    monkeypatch.setattr(mutants_of_compiler, "caught", caught)
    runs = Runs([], [(0.1, "flaky"), (0.2, "good")])
    trials = Trials({0: runs, 1: runs}, {})
    trials.add(0)
    trials.add(1)
    trials.run(1, math.inf, tmp_path / "found.json")
    names = [site.name for site in sites.all]
    found = {names[0]: "test good", names[1]: None}
    assert json.loads((tmp_path / "found.json").read_text()) == found


def test_a_crash_without_a_mutant_finds_none(sites, monkeypatch, tmp_path):
    instrumented(sites)

    def caught(number, runs):
        if number == 0 or (number == 1 and runs.tests[0][1] == "good"):
            raise IndexError
        if runs.tests[0][1] == "crashes":
            raise KeyError

    monkeypatch.setattr(mutants_of_compiler, "caught", caught)
    good, crashing = Runs([], [(0.1, "good")]), Runs([], [(0.1, "crashes")])
    trials = Trials({0: good, 1: crashing, 2: good}, {})
    for number in range(3):
        trials.add(number)
    trials.run(2, math.inf, tmp_path / "found.json")
    assert list(trials.found.values()).count(None) == 2
    assert trials.found[sites.all[0].name] == "IndexError: "


def test_what_caught_a_mutant_before_runs_first(monkeypatch):
    assert run_of("kernel in_place 13: sm_89 warps 4 stages 2: wrong: …") == ("in_place", 13)
    assert run_of("test a.py::b[c d]: cannot be collected") == "a.py::b[c d]"
    assert run_of("no end within 60 s, or a crash") is None
    ran = []

    def failing(run):
        ran.append(run)

    monkeypatch.setattr(mutants_of_compiler, "failing_test", failing)
    monkeypatch.setattr(mutants_of_compiler, "failing_kernel", failing)
    mutants_of_compiler.caught(None, Runs([], [(0.1, "other")], "first"))
    assert ran[0] == ["first"]


def test_collections_add_up(tmp_path):
    one = Reached(
        {"a": [("memory", 2, 0)]}, {"a": [(0.5, "t")]}, {}, ["memory 2", "t"], {"1"}, {"f"}
    )
    one.write(tmp_path / "reached.json")
    assert Reached.read(tmp_path / "reached.json") == one
    one = Reached.read(tmp_path / "reached.json")
    one.add(Reached({"a": [("memory", 1, 0)]}, {"b": [(0.1, "u")]}, {}, ["memory 1", "u"]))
    assert sorted(one.kernels.pop("a")) == [("memory", 1, 0), ("memory", 2, 0)]
    assert one == Reached(
        {},
        {"a": [(0.5, "t")], "b": [(0.1, "u")]},
        {},
        ["memory 2", "t", "memory 1", "u"],
        {"1"},
        {"f"},
    )


def test_a_later_run_of_a_test_stands_for_the_earlier(tmp_path):
    one = Reached({}, {"a": [(0.5, "t")], "b": [(0.5, "t")]}, {}, ["t"])
    one.add(Reached({}, {"b": [(0.1, "t")]}, {}, ["t"]))
    assert one.tests == {"a": [(0.5, "t")], "b": [(0.1, "t")]}


def test_of_a_check_no_more_is_kept_than_a_mutant_is_run_on():
    one = Reached()
    runs = [(n / 100, f"tests/test_x.py::test[{n}]") for n in range(100)]
    one.add(Reached({}, {"p/x.py f: a": [*runs, (9.0, "tests/test_x.py::other")]}, {}, []))
    kept = one.tests["p/x.py f: a"]
    assert len(kept) == MOST_TESTS and (9.0, "tests/test_x.py::other") in kept[:2]


def test_what_runs_a_function_with_a_new_check_is_run_again():
    functions = {"p/x.py f": [(0.1, "t")], "p/x.py g": [(0.1, "u")], "p/y.py f": [(0.1, "v")]}
    checks = ["p/x.py f: a", "p/x.py g: a", "p/y.py f: a"]

    def again(*names):
        one = Reached({}, {}, functions, ["t", "u", "v"])
        one.asked = {digest(name) for name in checks}
        one.ask([*checks, *names])
        return {"t", "u", "v"} - set(one.done)

    assert again() == set()
    assert again("p/x.py f: b") == {"t"}
    assert again("p/x.py h: a") == {"t", "u"}  # nobody is known to run it
    assert again("p/z.py h: a") == set()


def test_the_first_cases_of_all_functions_run_first():
    names = [*(f"a.py::one[{n}]" for n in range(4)), "a.py::two", "b.py::three[0]"]
    assert spread(names) == [
        "a.py::one[0]",
        "a.py::two",
        "b.py::three[0]",
        "a.py::one[1]",
        "a.py::one[2]",
        "a.py::one[3]",
    ]


def test_a_run_goes_on_where_one_ended(tmp_path):
    def run(*options):
        files = ["--reached", tmp_path / "reached.json", "--out", tmp_path / "found.json"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.mutants_of_compiler", *options, *map(str, files)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    file = "tests/passes/test_split_masked_loops.py"
    left, right = (
        f"{file}::test_any_other_mask_stays[of what may wrap]",
        f"{file}::test_small_tiles_are_not_worth_a_branch",
    )
    asked = run("--names").splitlines()
    Reached(done=[left], asked=set(map(digest, asked))).write(tmp_path / "reached.json")
    run("--collect", "--kernels", "0", "--tests", left, right)
    reached = Reached.read(tmp_path / "reached.json")
    assert reached.done == [left, right]
    assert {test for tests in reached.tests.values() for _, test in tests} == {right}

    assert " 0 not run" not in run("--limit", "0")
    first, *rest = sorted(reached.tests)
    (tmp_path / "found.json").write_text(json.dumps(dict.fromkeys(rest, "a test")))
    assert " 0 not run" in run("--jobs", "2", "--each", "1")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.keys() <= {first, *rest} and {found[name] for name in rest} == {"a test"}
