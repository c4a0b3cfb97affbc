"""The harness with made-up contestants and clocks: ratios, shuffling, checks, what it writes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from benchmarks import harness, report
from benchmarks.harness import (
    Contest,
    Contestant,
    Quartiles,
    Runner,
    Wrong,
    check,
    race,
    relative_error,
)

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    """A timer under which a machine gets 1 % slower with every turn, whoever's turn it is; `cost`
    is seconds by contestant.
    """

    def __init__(self, cost):
        self.cost, self.turns, self.log = cost, 0, []

    def __call__(self, run):
        self.turns += 1
        self.log.append(name := run.__name__)
        return self.cost[name] * 1.01**self.turns


def runner(name, value=None, out=None):
    def run():
        if out is not None:
            out[...] = value
        return out

    run.__name__ = name
    return Runner(run, out)


def contest(cost, timer=None, **extra):
    roles = {"ours": "ours", "copy": "bound"}
    return Contest(
        "fake",
        "A fake race",
        tuple(
            Contestant(name, lambda name=name: runner(name), roles.get(name, "rival"))
            for name in cost
        ),
        timer or Clock(cost),
        "a made-up clock",
        **extra,
    )


COST = {"ours": 1.0, "slow": 2.0, "fast": 1.1, "copy": 0.5}


# --------------------------------------------------------------------------------------------------
def test_every_round_has_every_contestant_once_in_changing_order():
    clock = Clock(COST)
    result = race(contest(COST, clock), rounds=12, seed=3)
    assert result.rounds == 12 and all(sorted(order) == sorted(COST) for order in result.order)
    assert len(set(map(tuple, result.order))) > 4
    # after one turn each that does not count
    assert clock.log[len(COST) :] == [name for order in result.order for name in order]


def test_a_drifting_machine_moves_times_but_hardly_ratios():
    result = race(contest(COST), rounds=40, seed=1)
    times = Quartiles.of(result.seconds["ours"])
    ratio = result.against_best_rival("ours")
    assert times.high > 1.5 * times.low
    assert abs(ratio.median - 1.1) < 0.02 and ratio.high - ratio.low < 0.06


def test_the_best_rival_is_that_of_the_round_and_never_the_bound_or_oneself():
    c = contest(COST)
    result = harness.Result(
        c,
        {"ours": [1.0, 1.0], "slow": [2.0, 0.5], "fast": [4.0, 1.0], "copy": [0.1, 0.1]},
        order=[list(COST)] * 2,
    )
    assert result.against_best_rival("ours") == Quartiles.of([2.0, 0.5])
    assert result.against_best_rival("slow") == Quartiles.of([4.0 / 2.0, 1.0 / 0.5])


def test_no_rival_no_ratio():
    assert race(contest({"ours": 1.0, "copy": 0.5}), rounds=3).against_best_rival("ours") is None


def test_quartiles():
    assert Quartiles.of([5.0]) == Quartiles(5.0, 5.0, 5.0)
    assert Quartiles.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Quartiles(2.0, 3.0, 4.0)


def test_a_spent_budget_ends_the_rounds_but_not_before_three():
    assert race(contest(COST), rounds=50, budget=0).rounds == 3


@pytest.mark.parametrize(
    "figure, met",
    [
        (harness.speed_ratio("ours", "fast", 1.05), True),
        (harness.speed_ratio("ours", "fast", 1.2), False),
        (harness.time_at_most("ours", 2.0, "t"), True),
        (harness.time_at_most("slow", 1.0, "t"), False),
        (harness.time_beyond("slow", "fast", 1.2, "t"), True),
        (harness.time_beyond("slow", "fast", 0.5, "t"), False),
    ],
)
def test_figures(figure, met):
    result = harness.Result(
        contest(COST, figures=(figure,)),
        {name: [t] * 3 for name, t in COST.items()},
        order=[list(COST)] * 3,
    )
    assert figure.met(result.figure(figure).median) == met
    assert report.verdicts(result)[0][2] == ("met" if met else "MISSED")


def test_a_figure_of_an_absent_contestant_is_not_measured():
    result = race(
        contest({"ours": 1.0}, figures=(harness.speed_ratio("ours", "absent", 1),)), rounds=3
    )
    assert report.verdicts(result)[0][2] == "not measured"


# --------------------------------------------------------------------------------------------------
def test_relative_error():
    want = np.array([3.0, 4.0])
    assert relative_error(np.array([3.0, 4.0], np.float32), want) == 0
    assert relative_error(np.array([3.0, 4.5]), want) == pytest.approx(0.1)
    assert relative_error(np.array([3.0, np.nan]), want) == float("inf")
    assert relative_error(np.array([3.0, np.inf]), want) == float("inf")
    assert relative_error(np.array([3.0]), want) == float("inf")
    assert relative_error(np.zeros((2, 0)), np.zeros((2, 0))) == 0


@pytest.mark.parametrize(
    "ours, rivals, worst",
    [
        ([2e-3, 3e-3], [2e-3, 4e-3], 1.5),
        ([0.0], [0.0], 1.0),
        ([1e-9], [0.0, 1e-3], float("inf")),
        ([0.0], [1e-3], 0.0),
        ([0.0], [], None),
        ([], [1e-3], None),
    ],
)
def test_errors_against_the_least_of_a_rival(ours, rivals, worst):
    """Sums of integers are exact, the rivals' too."""
    errors = {f"tkc {i}": e for i, e in enumerate(ours)} | {
        f"rival {i}": e for i, e in enumerate(rivals)
    }
    fake = Contest(
        "fake",
        "A fake race",
        tuple(
            Contestant(n, lambda: None, "ours" if n.startswith("tkc") else "rival") for n in errors
        ),
        None,
        "",
        worst_error=1.1,
    )
    result = harness.Result(fake, errors=errors)
    assert result.worst_error() == (worst if worst is None else pytest.approx(worst))
    assert report.verdicts(result)[-1][2] == (
        "not measured" if worst is None else "met" if worst <= 1.1 else "MISSED"
    )


def test_relative_error_over_several_chunks(monkeypatch):
    monkeypatch.setattr(harness, "CHUNK", 7)
    x = np.random.default_rng(0).standard_normal((5, 11))
    assert relative_error(x * 1.25, x) == pytest.approx(0.25)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_poison_is_nan_everywhere(dtype):
    out = np.zeros((3, 5), dtype)
    harness.poison(out)
    assert np.isnan(out.astype(np.float64)).all()


def test_an_element_that_is_not_written_is_found():
    out = np.ones(4)

    def run():
        out[:3] = 1
        return out

    with pytest.raises(Wrong, match="relative error inf"):
        check(Runner(run, out), np.ones(4), 1e-6)


def test_a_result_that_changes_is_found():
    out, calls = np.ones(4), []

    def run():
        calls.append(1)
        out[:] = 1 + 1e-9 * len(calls)
        return out

    with pytest.raises(Wrong, match="differ"):
        check(Runner(run, out), np.ones(4), 1e-6)


def test_a_wrong_contestant_is_out_and_in_the_report(tmp_path):
    good, bad = np.empty(8), np.empty(8)
    c = Contest(
        "fake",
        "A fake race",
        (
            Contestant("ours", lambda: runner("ours", 2.0, bad), "ours"),
            Contestant("rival", lambda: runner("rival", 1.0, good)),
            Contestant("broken", lambda: 1 / 0),
        ),
        Clock({"ours": 1, "rival": 1}),
        "a made-up clock",
        lambda: np.ones(8),
        tolerance=1e-3,
    )
    result = race(c, rounds=3)
    assert (
        set(result.seconds) == {"rival"}
        and "relative error 1 is over" in result.failures["ours"]
        and "ZeroDivisionError" in result.failures["broken"]
    )
    assert result.errors == {"rival": 0.0}
    text = report.write(result, tmp_path).read_text()
    assert "Out of the race: ours" in text and "Out of the race: broken" in text


def test_a_risky_contestant_is_tried_first():
    tried = []

    def trial(contest, contestant):
        tried.append(contestant.name)
        raise Wrong("gave no result within 1 s")

    c = Contest(
        "fake",
        "t",
        (
            Contestant(
                "ours", lambda: pytest.fail("made in spite of its trial"), "ours", risky=True
            ),
            Contestant("rival", lambda: runner("rival")),
        ),
        Clock({"rival": 1}),
        "t",
    )
    result = race(c, rounds=3, trial=trial)
    assert (
        tried == ["ours"]
        and "no result within" in result.failures["ours"]
        and "rival" in result.seconds
    )


def test_last_words():
    assert (
        harness.last_words(
            "Traceback\n  File\ntkc.errors.CompileError: x.py:3:1: no\n  File\n    code\n    ^\n", 1
        )
        == "tkc.errors.CompileError: x.py:3:1: no"
    )
    assert harness.last_words("", 7) == "exit status 7"


# --------------------------------------------------------------------------------------------------
def test_host_timers_measure_time():
    assert harness.host_timer(lambda: time.sleep(0.01), 3) == pytest.approx(0.01, rel=0.9)
    waits = []
    assert (
        0
        < harness.launch_timer(lambda: None, lambda: waits.append(1), launches=100, repeats=3)
        < 1e-4
    )
    assert len(waits) == 4


def test_the_files_of_a_race(tmp_path):
    figure = harness.speed_ratio("ours", "slow", 1.5)
    path = report.write(
        race(contest(COST, amount=3.0, unit="GB/s", figures=(figure,)), rounds=8), tmp_path
    )
    stem = path.with_suffix("")
    text, data = path.read_text(), json.loads(stem.with_suffix(".json").read_text())
    assert "| ours |" in text and figure.text in text and "| met |" in text
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert (
        data["rounds"] == 8
        and len(data["seconds"]["ours"]) == 8
        and data["roles"]["copy"] == "bound"
    )
    assert data["environment"]["commit"] and data["environment"]["cpu"]
    table = report.text(race(contest(COST), rounds=3))
    assert table.splitlines()[2].split()[0] == "copy" and len(table.splitlines()) == 2 + len(COST)


@pytest.mark.parametrize(
    "t, text",
    [
        (1.5, "1.5 s"),
        (2.5e-3, "2.5 ms"),
        (1e-6, "1 us"),
        (-3e-6, "-3 us"),
        (7e-9, "7 ns"),
        (0, "0 s"),
    ],
)
def test_seconds(t, text):
    assert report.seconds(t) == text


# --------------------------------------------------------------------------------------------------
RACE = """
import time
from benchmarks.harness import Contest, Contestant, Runner
def hang(): time.sleep(60)
def contests(seed):
    clock = "a made-up clock"
    ours = Contestant("ours", lambda: Runner(lambda: {ours}), "ours", risky=True)
    rival = Contestant("rival", lambda: Runner(lambda: None))
    yield Contest("other", "Another toy", (rival,), lambda run: 1e-6, clock)
    def timer(run):
        run()
        return 1e-6 if run.__code__.co_names == () else 2e-6
    yield Contest("toy", "A toy", (ours, rival), timer, clock)
"""


def command(tmp_path, ours, *arguments):
    """run.py beside a race of its own."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name in ("__init__", "harness", "report", "run"):
        (folder / f"{name}.py").write_text((ROOT / "benchmarks" / f"{name}.py").read_text())
    (folder / "toy.py").write_text(RACE.format(ours=ours))
    return subprocess.run(
        [sys.executable, str(folder / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_race_from_the_command_line(tmp_path):
    done = command(tmp_path, "None", "toy", "--rounds", "4", "--out", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr
    assert "Another toy (4 rounds)" in done.stdout and "A toy (4 rounds)" in done.stdout
    assert sorted(p.suffix for p in (tmp_path / "results").iterdir()) == [
        ".json",
        ".json",
        ".md",
        ".md",
        ".png",
        ".png",
    ]


def test_one_that_hangs_in_its_trial_is_out(tmp_path):
    done = command(
        tmp_path, "hang()", "toy", "--rounds", "3", "--out", str(tmp_path), "--deadline", "12"
    )
    assert (
        "out: ours" in done.stdout
        and "no result within 6 s" in done.stdout
        and "rival" in done.stdout
    )


def test_one_that_kills_its_process_is_out(tmp_path):
    done = command(
        tmp_path, "__import__('os')._exit(7)", "toy", "--rounds", "3", "--out", str(tmp_path)
    )
    assert "exit status 7" in done.stdout and done.returncode == 0


def test_an_unknown_race_is_one_sentence():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run.py"), "nosuch"],
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 2
        and "no race is named 'nosuch'" in done.stderr
        and "vector_add" in done.stderr
    )
