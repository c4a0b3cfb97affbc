"""A campaign: stages in order, each with a deadline, and what they leave behind."""
import tarfile

import pytest
from click.testing import CliRunner

from benchmarks import campaign
from benchmarks.campaign import STAGES, Stage, main


@pytest.fixture
def stages(monkeypatch):
    made = {"good": Stage(("-c", "print('first'); print('last')"), 20, 1), "bad": Stage(("-c", "raise SystemExit(3)"), 20), "slow": Stage(("-c", "import time; print('begun', flush=True); time.sleep(60)"), 0.7)}
    monkeypatch.setattr(campaign, "STAGES", made)
    return made


def test_every_stage_is_run_and_kept(stages, tmp_path):
    done = CliRunner().invoke(main, ["--out", str(tmp_path), "--seconds", "50"])
    assert done.exit_code == 1 and "last" in done.output and "first" not in done.output
    assert [s in done.output for s in ("done", "exit 3", "stopped")] == [True] * 3
    with tarfile.open(tmp_path / "all.tgz") as whole: assert set(whole.getnames()) == {"good.log", "bad.log", "slow.log"}
    assert (tmp_path / "slow.log").read_text() == "begun\n"


def test_a_stage_without_time_does_not_begin(stages, tmp_path):
    done = CliRunner().invoke(main, ["--out", str(tmp_path), "--seconds", "3"])
    assert done.exit_code == 1 and done.output.count("not begun") == 2 and "stopped" in done.output


def test_the_real_stages_name_what_exists():
    for stage in STAGES.values():
        for part in stage.command:
            if part.endswith(".py") or part.startswith("tests/"): assert (campaign.ROOT / part).exists(), part


def test_names_and_where_to_go_on(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(campaign, "run", lambda stage, name, out, limit: ran.append(name) or (0, 1.0))
    assert CliRunner().invoke(main, ["--after", "product_types", "--out", str(tmp_path)]).exit_code == 0
    assert CliRunner().invoke(main, ["launch", "tests", "--out", str(tmp_path)]).exit_code == 0
    assert ran == [*list(STAGES)[list(STAGES).index("product_types") + 1:], "tests", "launch"]
