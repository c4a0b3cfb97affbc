"""`python -m tkc.fuzz`: counts, resumption, and processes that crash or hang."""

import json
import os
import signal
import time
from collections import Counter

import pytest
from click.testing import CliRunner

from tkc.fuzz import campaign as c
from tkc.fuzz.__main__ import main


# --------------------------------------------------------------------------------------------------
def even(number):
    return ([f"{number} is odd"] if number % 2 else []), Counter(even=number % 2 == 0)


def killed(number):
    return os.kill(os.getpid(), signal.SIGSEGV) if number == 3 else ([], Counter())


def asleep(number):
    return time.sleep(60) if number == 2 else ([], Counter())


def stalled(number):
    """The first process that comes to item 2 never ends it."""
    if number == 2 and not os.path.exists(os.environ["STALLED"]):
        with open(os.environ["STALLED"], "w"):
            time.sleep(60)
    return [], Counter()


def broken(number):
    raise ValueError(f"item {number}")


def campaign(one, deadline=30.0):
    return c.Campaign(one.__name__, "", 0, deadline, one)


def test_items_faults_and_counts():
    state = c.fuzz({(odd := campaign(even)): 7}, c.State(), seed=10)
    p = state.of(odd)
    assert (
        p.done == [[0, 7]]
        and p.items == 7
        and p.counts == {"even": 4}
        and p.faults == [(1, "11 is odd"), (3, "13 is odd"), (5, "15 is odd")]
    )


def test_a_process_that_dies_costs_one_item():
    p = c.fuzz({(dies := campaign(killed)): 6}, c.State()).of(dies)
    assert p.items == 6 and p.faults == [(3, f"the process ended with status {-signal.SIGSEGV}")]


def test_a_process_that_hangs_costs_one_item(monkeypatch):
    monkeypatch.setattr(c, "START_SECONDS", 8.0)
    p = c.fuzz({(hangs := campaign(asleep, 1.0)): 4}, c.State()).of(hangs)
    assert p.items == 4 and p.faults == [(2, "no end within 1 s"), (2, "no end within 1 s, again")]


def test_a_stall_that_does_not_come_back_is_said_once(monkeypatch, tmp_path):
    monkeypatch.setattr(c, "START_SECONDS", 8.0)
    monkeypatch.setenv("STALLED", str(tmp_path / "stalled"))
    p = c.fuzz({(stalls := campaign(stalled, 1.0)): 4}, c.State()).of(stalls)
    assert p.items == 4 and p.faults == [(2, "no end within 1 s")]


def test_an_error_is_a_fault():
    assert c.fuzz({(wrong := campaign(broken)): 2}, c.State()).of(wrong).faults == [
        (0, "ValueError: item 0"),
        (1, "ValueError: item 1"),
    ]


def test_it_goes_on_where_it_was(tmp_path):
    odd, path = campaign(even), tmp_path / "state" / "fuzz.json"
    c.fuzz({odd: 60}, c.State.read(path), jobs=2)
    first = c.State.read(path).of(odd)
    assert first.items == 60 and len(first.faults) == 30
    c.fuzz({odd: 60}, (again := c.State.read(path)))
    assert again.of(odd).seconds == first.seconds, "nothing is left to do"
    c.fuzz({odd: 130}, (more := c.State.read(path)), jobs=2)
    assert more.of(odd).done == [[0, 130]] and sorted(
        item for item, _ in more.of(odd).faults
    ) == list(range(1, 130, 2))


@pytest.mark.parametrize(
    "done, total, left",
    [
        ([], 120, [(0, 50), (50, 100), (100, 120)]),
        ([[0, 50], [60, 70]], 80, [(50, 60), (70, 80)]),
        ([[0, 120]], 100, []),
        ([[20, 30]], 25, [(0, 20)]),
    ],
)
def test_what_is_left(done, total, left):
    assert c.Progress(done=done).left(total) == left


# --------------------------------------------------------------------------------------------------
def test_the_command(tmp_path):
    path = tmp_path / "fuzz.json"
    words = ["--share", "0.0001", "--jobs", "1", "--state", str(path)]
    done = CliRunner().invoke(main, [*words, "--only", "kernels", "--only", "texts"])
    assert done.exit_code == 0, done.output
    found = json.loads(path.read_text())
    assert (
        {name: p["done"] for name, p in found["campaigns"].items()}
        == {"kernels": [[0, 2]], "texts": [[0, 10]]}
        and " kernels " in done.output
        and " texts " in done.output
    )
    found["campaigns"]["texts"]["faults"], found["sources"] = [[3, "a fault"]], ["another"]
    path.write_text(json.dumps(found))
    done = CliRunner().invoke(main, [*words, "--only", "texts"])
    assert (
        done.exit_code == 1 and "texts 3: a fault" in done.output and "by 2 versions" in done.output
    )
    done = CliRunner().invoke(main, [*words, "--only", "texts", "--fresh"])
    assert done.exit_code == 0 and list(json.loads(path.read_text())["campaigns"]) == ["texts"]


@pytest.mark.parametrize(
    "words, status",
    [
        (["kernels", "--seeds", "3", "--show"], 0),
        (["kernels", "--seeds", "1:3", "--policy", "even"], 0),
        (["texts", "30", "--passes"], 0),
        (["--only", "nothing"], 2),
        (["--share", "0"], 2),
    ],
)
def test_campaigns_by_hand(words, status):
    assert CliRunner().invoke(main, words).exit_code == status
