"""Where figures stand: the newest table of each race, its ratios inside rounds, what is missed."""

import json

from click.testing import CliRunner

from benchmarks.standing import RESULTS, Standing, collect, main, newest


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


def test_new_races_replace_those_of_their_name(tmp_path):
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.mkdir()
    new.mkdir()
    (kept / "races.jsonl").write_text(
        race("sum-1", [4.0], [2.0], "MISSED", "old")
        + "\n"
        + race("sum-2", [1.0], [1.0], "met", "old")
    )
    found = json.loads(race("sum-1", [1.0000001], [2.0], "met", "new")) | {
        "errors": {},
        "order": [[]],
    }
    (new / "2026-01-02-sum-1.json").write_text(json.dumps(found))
    for given in (kept / "races.jsonl",):
        lines = [json.loads(line) | {"errors": {}} for line in given.read_text().splitlines()]
        given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert collect(new, kept) == 2
    one, two = newest([kept])
    assert one["environment"]["commit"] == "new" and one["seconds"]["tkc"] == [1.0]
    assert two["environment"]["commit"] == "old" and "order" not in one
