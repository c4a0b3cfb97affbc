"""Where figures stand: the newest table of each race, its ratios inside rounds, what is missed."""

import json

from click.testing import CliRunner

from benchmarks.standing import RESULTS, Standing, main, newest


def race(name: str, ours: list[float], rival: list[float], verdict: str, commit: str) -> str:
    return json.dumps(
        {
            "name": name,
            "environment": {"commit": commit},
            "amount": 1.0,
            "unit": "GB/s",
            "seconds": {"tkc": ours, "torch": rival, "copy": [0.1] * len(ours)},
            "roles": {"tkc": "ours", "torch": "rival", "copy": "bound"},
            "figures": [{"figure": "faster", "measured": "", "verdict": verdict}],
        }
    )


def test_the_newest_table_of_each_race_counts(tmp_path):
    (tmp_path / "2026-01-01-sum-1.json").write_text(
        race("sum-1", [4.0, 4.0], [2.0, 2.0], "MISSED", "old")
    )
    (tmp_path / "2026-01-02-sum-1.json").write_text(
        race("sum-1", [1.0, 2.0], [2.0, 8.0], "met", "new")
    )
    (tmp_path / "2026-01-01-sum-2.json").write_text(
        race("sum-2", [1.0, 1.0], [0.5, 0.5], "MISSED", "old")
    )
    (tmp_path / "other.json").write_text("{}")
    said = CliRunner().invoke(main, ["--from", str(tmp_path)])
    assert said.exit_code == 0 and "new" in said.output and "3.000 [2.500, 3.500]" in said.output
    assert "geometric mean of 2 races 1.225" in said.output and "1 met, 1 MISSED" in said.output
    missed = CliRunner().invoke(main, ["--missed", "--from", str(tmp_path)]).output
    assert "sum-2" in missed and "sum-1" not in missed


def test_the_written_standing_is_that_of_the_tables():
    """`python -m benchmarks.standing --write` after new tables."""
    assert (RESULTS / "standing.md").read_text() == Standing.of(newest([RESULTS])).markdown()


def test_what_is_written_is_all_there_is(tmp_path):
    said = CliRunner().invoke(main, ["--write", "--from", str(tmp_path)])
    assert said.exit_code == 2 and "leave out names" in said.output
