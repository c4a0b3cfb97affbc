"""python -m benchmarks.standing: where every figure stands, from the newest table of each race in benchmarks/results (or other folders).

    python -m benchmarks.standing                               a line a race: ours, beside the best rival of each round, what was asked and whether it is met
    python -m benchmarks.standing --missed                      only what is missed
    python -m benchmarks.standing product- --from out/measured  races by how their names begin

The geometric mean of each family (product, attention, softmax …) follows. Nothing is measured here; a race's own file has its rounds, quartiles, machine and commit.
"""
from __future__ import annotations

import json
import statistics
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Quartiles
from benchmarks.report import seconds

RESULTS = Path(__file__).resolve().parent / "results"
COUNTED = {"met": "[green]met[/green]", "MISSED": "[red]missed[/red]", "not measured": "[yellow]not measured[/yellow]"}


def newest(folders: list[Path]) -> list[dict]:
    """The last race of each name; what is later in the list of folders, or newer by its file's date, counts."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            race = json.loads(path.read_text())
            if "seconds" in race: found[race["name"]] = race
    return [found[name] for name in sorted(found)]


def ratios(race: dict, name: str) -> Quartiles | None:
    """Speed of a contestant over that of the best rival of each round."""
    rivals = [n for n in race["seconds"] if race["roles"].get(n) == "rival" and n != name]
    if not rivals: return None
    return Quartiles.of([min(race["seconds"][r][i] for r in rivals) / t for i, t in enumerate(race["seconds"][name])])


def family(name: str) -> str: return name.split("-")[0]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--from", "folders", multiple=True, type=click.Path(exists=True, path_type=Path), help="Folders of tables, the later ones counting.  [default: benchmarks/results]")
@click.option("--missed", is_flag=True, help="Only races that miss a figure.")
def main(names: tuple[str, ...], folders: tuple[Path, ...], missed: bool) -> None:
    table, means, counted = Table("race", "commit", "ours", "median", "rate", "x best rival [quartiles]", "asked", "measured", ""), {}, dict.fromkeys(COUNTED, 0)
    for race in newest(list(folders) or [RESULTS]):
        if names and not race["name"].startswith(names): continue
        for f in race["figures"]: counted[f["verdict"]] += 1
        lines = []
        for ours in (n for n in race["seconds"] if race["roles"].get(n) == "ours"):
            q, median = ratios(race, ours), statistics.median(race["seconds"][ours])
            if q: means.setdefault((family(race["name"]), ours if ours.startswith("tkc tuned") else "as it is"), []).append(q.median)
            lines.append((ours, seconds(median), f"{race['amount'] / median:.4g} {race['unit']}" if race["amount"] else "", f"{q.median:.3f} [{q.low:.3f}, {q.high:.3f}]" if q else ""))
        figures = [(f["figure"], f["measured"], COUNTED[f["verdict"]]) for f in race["figures"] if not missed or f["verdict"] != "met"]
        if missed and not figures: continue
        for i in range(max(len(lines), len(figures))):
            first = (race["name"], race["environment"].get("commit", "")) if i == 0 else ("", "")
            table.add_row(*first, *(lines[i] if i < len(lines) else ("",) * 4), *(figures[i] if i < len(figures) else ("",) * 3))
    console = Console(width=230)
    console.print(table)
    for (group, ours), values in sorted(means.items()):
        if len(values) > 1 and min(values) > 0: console.print(f"{group}, {ours}: geometric mean of {len(values)} races {statistics.geometric_mean(values):.3f} x the best rival")
    console.print(", ".join(f"{n} {verdict}" for verdict, n in counted.items()))


if __name__ == "__main__": main()
