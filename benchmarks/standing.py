"""Where every figure stands, from benchmarks/results/races.jsonl or from folders of new races.

    python -m benchmarks.standing                  a line a race: ours beside the best rival of
                                                   each round, what was asked, whether it is met
    python -m benchmarks.standing --missed         only what is missed
    python -m benchmarks.standing product- --from out/measured
                                                   races by how their names begin
    python -m benchmarks.standing --collect out/measured
                                                   takes the races of a folder into races.jsonl
    python -m benchmarks.standing --write          the same as benchmarks/results/standing.md

races.jsonl has the newest race of each name, a line each, with the seconds of every round, the
machine and the commit; older ones are in git.  The geometric mean of each family (product,
attention, softmax …) follows the table.  Nothing is measured here.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Quartiles
from benchmarks.report import seconds

RESULTS = Path(__file__).resolve().parent / "results"
COLOURS = {"met": "green", "MISSED": "red", "not measured": "yellow"}
HEAD = (
    "race",
    "commit",
    "ours",
    "median",
    "rate",
    "x best rival [quartiles]",
    "asked",
    "measured",
    "",
)


def _read(folder: Path) -> list[dict]:
    """The races of a folder: those of its races.jsonl, then those with a file of their own."""
    found = []
    for path in sorted(folder.rglob("*.jsonl")):
        found += [json.loads(line) for line in path.read_text().splitlines()]
    for path in sorted(folder.rglob("*.json")):
        race = json.loads(path.read_text())
        if "seconds" in race:
            found.append(race)
    return found


def newest(folders: list[Path]) -> list[dict]:
    """The last race of each name: a later folder counts before an earlier one, and in a folder what
    stands later.
    """
    found = {race["name"]: race for folder in folders for race in _read(folder)}
    return [found[name] for name in sorted(found)]


def compact(race: dict) -> str:
    """A race in one line of JSON: times and errors to five digits, the order of turns left out."""

    def rounded(value: object) -> object:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        return [rounded(v) for v in value] if isinstance(value, list) else value

    kept = {key: value for key, value in race.items() if key != "order"}
    for key in ("seconds", "errors"):
        kept[key] = {name: rounded(value) for name, value in race[key].items()}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False)


def collect(folder: Path, into: Path = RESULTS) -> int:
    """Takes the races of a folder into races.jsonl; returns how many there are then."""
    races = newest([into, folder])
    (into / "races.jsonl").write_text("".join(compact(race) + "\n" for race in races))
    return len(races)


def ratios(race: dict, name: str) -> Quartiles | None:
    """Speed of a contestant over that of the best rival of each round."""
    rivals = [n for n in race["seconds"] if race["roles"].get(n) == "rival" and n != name]
    if not rivals:
        return None
    return Quartiles.of(
        [
            min(race["seconds"][r][i] for r in rivals) / t
            for i, t in enumerate(race["seconds"][name])
        ]
    )


def family(name: str) -> str:
    return name.split("-")[0]


@dataclass
class Standing:
    """Races as rows of HEAD. rows: by race; means: (family, which of ours) to the medians of its
    ratios; counted: figures by verdict, those of races that are not shown too.
    """

    rows: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    means: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    counted: Counter = field(default_factory=lambda: Counter(dict.fromkeys(COLOURS, 0)))

    @staticmethod
    def of(races: list[dict], missed: bool = False) -> Standing:
        """missed: only races that miss a figure, and of them only these figures."""
        standing = Standing()
        for race in races:
            standing._add(race, missed)
        return standing

    def _add(self, race: dict, missed: bool) -> None:
        self.counted.update(f["verdict"] for f in race["figures"])
        lines = []
        for ours in (n for n in race["seconds"] if race["roles"].get(n) == "ours"):
            q, median = ratios(race, ours), statistics.median(race["seconds"][ours])
            if q:
                self.means.setdefault(
                    (family(race["name"]), ours if ours.startswith("tkc tuned") else "as it is"), []
                ).append(q.median)
            lines.append(
                (
                    ours,
                    seconds(median),
                    f"{race['amount'] / median:.4g} {race['unit']}" if race["amount"] else "",
                    f"{q.median:.3f} [{q.low:.3f}, {q.high:.3f}]" if q else "",
                )
            )
        figures = [
            (f["figure"], f["measured"], f["verdict"])
            for f in race["figures"]
            if not missed or f["verdict"] != "met"
        ]
        if missed and not figures:
            return
        first = (race["name"], race["environment"].get("commit", ""))
        self.rows[race["name"]] = [
            (
                *(first if i == 0 else ("", "")),
                *(lines[i] if i < len(lines) else ("",) * 4),
                *(figures[i] if i < len(figures) else ("",) * 3),
            )
            for i in range(max(len(lines), len(figures)))
        ]

    def summary(self) -> list[str]:
        """The geometric mean of each family of several races."""
        return [
            f"{group}, {ours}: geometric mean of {len(values)} races"
            f" {statistics.geometric_mean(values):.3f} x the best rival"
            for (group, ours), values in sorted(self.means.items())
            if len(values) > 1 and min(values) > 0
        ]

    def total(self) -> str:
        return ", ".join(f"{n} {verdict}" for verdict, n in self.counted.items())

    def table(self) -> Table:
        table = Table(*HEAD)
        for rows in self.rows.values():
            for *row, verdict in rows:
                table.add_row(*row, f"[{COLOURS[verdict]}]{verdict}[/]" if verdict else "")
        return table

    def markdown(self) -> str:
        lines = [
            "# Where every figure stands",
            "",
            (
                "Written by `python -m benchmarks.standing --write` from the newest race of each"
                f" name in races.jsonl: {self.total()}."
            ),
            "",
        ]
        for name, races in groupby(self.rows, family):
            lines += [f"## {name}", "", "| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
            lines += [
                "| "
                + " | ".join((*row, f"**{verdict}**" if verdict not in ("", "met") else verdict))
                + " |"
                for race in races
                for *row, verdict in self.rows[race]
            ]
            lines += [
                "",
                *(line + "." for line in self.summary() if line.startswith(f"{name},")),
                "",
            ]
        return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--from",
    "folders",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Folders of tables, the later ones counting.  [default: benchmarks/results]",
)
@click.option("--missed", is_flag=True, help="Only races that miss a figure.")
@click.option("--write", is_flag=True, help="Write benchmarks/results/standing.md.")
@click.option(
    "--collect",
    "taken",
    type=click.Path(exists=True, path_type=Path),
    help="Take the races of this folder into benchmarks/results/races.jsonl.",
)
def main(
    names: tuple[str, ...],
    folders: tuple[Path, ...],
    missed: bool,
    write: bool,
    taken: Path | None,
) -> None:
    """Where every figure stands."""
    if taken:
        print(f"{collect(taken)} races in {RESULTS / 'races.jsonl'}")
        return
    if write and (names or folders or missed):
        raise click.UsageError(
            "--write writes the whole of benchmarks/results: leave out names, --from and --missed"
        )
    standing = Standing.of(
        [r for r in newest(list(folders) or [RESULTS]) if not names or r["name"].startswith(names)],
        missed,
    )
    if write:
        (RESULTS / "standing.md").write_text(standing.markdown())
        return
    console = Console(width=230)
    console.print(standing.table())
    for line in [*standing.summary(), standing.total()]:
        console.print(line)


if __name__ == "__main__":
    main()
