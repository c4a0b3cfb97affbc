"""A campaign: stages in order, each with a deadline, and what they leave behind."""

import tarfile

import pytest
from click.testing import CliRunner

from benchmarks import campaign
from benchmarks.campaign import STAGES, Stage, main


@pytest.fixture
def stages(monkeypatch):
    made = {
        "good": Stage(("-c", "print('first'); print('last')"), 20, 1),
        "bad": Stage(("-c", "raise SystemExit(3)"), 20),
        "slow": Stage(("-c", "import time; print('begun', flush=True); time.sleep(60)"), 0.7),
    }
    monkeypatch.setattr(campaign, "STAGES", made)
    monkeypatch.setattr(campaign, "TRIAL", (("-c", "print('tried')"),))
    return made


def test_every_stage_is_run_and_kept(stages, tmp_path):
    done = CliRunner().invoke(main, ["--out", str(tmp_path), "--seconds", "50"])
    assert done.exit_code == 1 and "last" in done.output and "first" not in done.output
    assert [s in done.output for s in ("done", "exit 3", "stopped")] == [True] * 3
    with tarfile.open(tmp_path / "all.tgz") as whole:
        assert set(whole.getnames()) == {"trial.log", "good.log", "bad.log", "slow.log"}
    assert (tmp_path / "slow.log").read_text() == "begun\n"


def test_a_stage_without_time_does_not_begin(stages, tmp_path):
    done = CliRunner().invoke(main, ["--out", str(tmp_path), "--seconds", "3"])
    assert done.exit_code == 1 and done.output.count("not begun") == 2 and "stopped" in done.output


def test_races_of_a_stage_are_picked(stages, tmp_path):
    stages["good"] = Stage(("-c", "import os; print(os.environ.get('BENCH_ONLY'))"), 20, 1)
    for pick, said in (["--pick", "good=transpose,adam"], "transpose,adam"), ([], "None"):
        CliRunner().invoke(main, [*pick, "--seconds", "50", "--out", str(tmp_path / said)])
        assert (tmp_path / said / "good.log").read_text() == said + "\n"
    for wrong in ("other=x", "good=", "good"):
        done = CliRunner().invoke(main, ["--pick", wrong, "--out", str(tmp_path / "no")])
        assert done.exit_code == 2 and "--pick" in done.output and not (tmp_path / "no").exists()


def test_the_real_stages_name_what_exists():
    for stage in STAGES.values():
        for part in stage.command:
            if part.endswith(".py") or part.startswith("tests/"):
                assert (campaign.ROOT / part).exists(), part


def test_names_and_where_to_go_on(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(campaign, "TRIAL", ())
    monkeypatch.setattr(
        campaign,
        "run",
        lambda stage, name, out, limit, gpu=None, nice=0, last=0: (
            ran.append((name, gpu)) or (0, 1.0)
        ),
    )
    assert (
        CliRunner()
        .invoke(main, ["--after", "product_types", "--gpus", "1", "--out", str(tmp_path)])
        .exit_code
        == 0
    )
    behind = list(STAGES)[list(STAGES).index("product_types") + 1 :]
    assert [name for name, _ in ran] == sorted(behind, key=lambda name: not STAGES[name].alone)
    ran.clear()
    assert (
        CliRunner()
        .invoke(main, ["launch", "tests", "--gpus", "1", "--fuzz", "2", "--out", str(tmp_path)])
        .exit_code
        == 0
    )
    assert ran[0] == ("launch", 0) and sorted(ran[1:]) == [("fuzz", None), ("tests", 0)]
    ran.clear()
    assert (
        CliRunner()
        .invoke(
            main,
            [
                "sanitize",
                "tests",
                "launch",
                "--after",
                "tests",
                "--gpus",
                "1",
                "--out",
                str(tmp_path),
            ],
        )
        .exit_code
        == 0
    )
    assert ran == [("launch", 0), ("sanitize", 0)]
    ran.clear()
    assert (
        CliRunner().invoke(main, ["devices", "--gpus", "2", "--out", str(tmp_path)]).exit_code == 0
    )
    assert ran == [("devices", None)]  # it sees all of them


def test_gpus_take_stages_as_they_are_free(monkeypatch, tmp_path):
    """Each sees itself alone; one with a long stage takes one, the other the rest."""
    say = (
        "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], time.time(), flush=True);"
        " time.sleep({})"
    )
    monkeypatch.setattr(
        campaign,
        "STAGES",
        {
            "alone": Stage(("-c", say.format(0.3)), 20, alone=True),
            "long": Stage(("-c", say.format(2)), 20),
        }
        | {f"short{i}": Stage(("-c", say.format(0.1)), 20) for i in range(3)},
    )
    monkeypatch.setattr(campaign, "TRIAL", ())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert CliRunner().invoke(main, ["--out", str(tmp_path), "--seconds", "50"]).exit_code == 0

    def read(name):
        return (tmp_path / f"{name}.log").read_text().split()

    assert [read(name)[0] for name in ("alone", "long", "short0", "short1", "short2")] == [
        "5",
        "5",
        "7",
        "7",
        "7",
    ]
    assert float(read("alone")[1]) + 0.3 <= min(float(read(name)[1]) for name in ("long", "short0"))


def test_a_failed_trial_costs_nothing_more(monkeypatch, tmp_path):
    monkeypatch.setattr(campaign, "TRIAL", (("-c", "import this_is_not_there"),))
    done = CliRunner().invoke(main, ["--out", str(tmp_path)])
    assert (
        done.exit_code == 1
        and "this_is_not_there" in done.output
        and "nothing was begun" in done.output
        and not (tmp_path / "tests.log").exists()
    )
