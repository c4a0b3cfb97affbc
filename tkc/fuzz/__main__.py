"""python -m tkc.fuzz: everything, resumed where it was; `kernels`, `host` and `texts`: one of them
by hand, each failure printed with what shows it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tkc.fuzz.campaign import CAMPAIGNS, Campaign, State, fuzz
from tkc.fuzz.campaign import Progress as CampaignProgress
from tkc.fuzz.grammar import POLICIES, Kernel
from tkc.runtime.toolchain import package_hash

if TYPE_CHECKING:
    from tkc.fuzz.check import Failure


@click.group(invoke_without_command=True)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(CAMPAIGNS)),
    help="This campaign; may be given more than once. All but devices by default.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Of the items of each campaign, 1 being "
    + ", ".join(f"{c.wanted:,} {c.name}" for c in CAMPAIGNS.values() if c.wanted)
    + " and every mutant.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Where the seeds of runs, kernels and texts begin.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="all processors",
    help="Processes.",
)
@click.option("--seconds", type=float, help="Start nothing new after so long.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=Path("out/fuzz.json"),
    show_default=True,
    help="What is done, and what was found; an interrupted fuzz goes on from there.",
)
@click.option("--fresh", is_flag=True, help="Forget the state.")
@click.pass_context
def main(
    context: click.Context,
    only: tuple[str, ...],
    share: float,
    seed: int,
    jobs: int,
    seconds: float | None,
    state: Path,
    fresh: bool,
) -> None:
    """Clean runs of pipelined programs, random kernels, broken texts of IR, and mutants of
    synchronisation. The exit status is 1 if anything was found.
    """
    if context.invoked_subcommand:
        return
    path = state.with_stem(f"{state.stem}-{seed}") if seed else state
    if fresh:
        path.unlink(missing_ok=True)
    console = Console(stderr=True)
    wanted = {
        c: max(1, round(share * (c.size() if c.size else c.wanted)))
        for c in CAMPAIGNS.values()
        if (c.name in only if only else c.by_default)
    }
    done, version = State.read(path), package_hash()[:12]
    if version not in done.sources:
        done.sources.append(version)
    if len(done.sources) > 1:
        console.print(
            f"what {path} says was done by {len(done.sources)} versions of tkc; --fresh begins"
            " anew",
            style="yellow",
            soft_wrap=True,
        )
    with Bars(console, wanted, done) as bars:
        fuzz(wanted, done, jobs, seed, seconds, bars.show)
    Console().print(summary(done, wanted))
    sys.exit(any(done.of(c).faults for c in wanted))


class Bars(Progress):
    """A bar for each campaign on a terminal; each fault is printed once."""

    def __init__(self, console: Console, wanted: dict[Campaign, int], state: State) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[found]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.bars = {
            c: self.add_task(
                c.title, total=total, completed=min(total, state.of(c).items), found=""
            )
            for c, total in wanted.items()
        }
        self.printed = dict.fromkeys(wanted, 0)
        for campaign in wanted:
            self.show(campaign, state.of(campaign))

    def show(self, campaign: Campaign, progress: CampaignProgress) -> None:
        """How far a campaign is."""
        found = f"[red]{len(progress.faults)} found[/red]" if progress.faults else ""
        self.update(self.bars[campaign], completed=progress.items, found=found)
        for item, fault in progress.faults[self.printed[campaign] :]:
            text = f"{campaign.name} {item}: {fault}"
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.printed[campaign] = len(progress.faults)


def summary(state: State, wanted: dict[Campaign, int]) -> Table:
    """What was done and found, a line a campaign."""
    columns = ("campaign", "", "done", "of", "found", "also", "seconds")
    table = Table(*columns, title="tkc fuzz", title_justify="left")
    for campaign, total in wanted.items():
        p = state.of(campaign)
        table.add_row(
            campaign.name,
            campaign.title,
            f"{p.items:,}",
            f"{total:,}",
            f"{len(p.faults)}",
            ", ".join(f"{n:,} {k.replace('_', ' ')}" for k, n in sorted(p.counts.items()) if n),
            f"{p.seconds:,.0f}",
        )
    return table


@main.command()
@click.option(
    "--seeds",
    default="0:100",
    show_default=True,
    metavar="A:B",
    help="From A up to, not including, B; or one seed.",
)
@click.option("--policy", type=click.Choice(list(POLICIES)), help="Instead of the seed's own.")
@click.option("--steps", type=int, help="Statements of a kernel; the seed's own by default.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="sm_80, sm_89, sm_90a; by default one of them, chosen by the seed.",
)
@click.option("--thorough", is_flag=True, help="Every number of stages, several schedules.")
@click.option("--show", is_flag=True, help="Print the kernels and run nothing.")
@click.option("--refused", is_flag=True, help="Also show what was refused.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Write failing kernels and their IR here."
)
@click.option(
    "--reduce",
    "reducing",
    is_flag=True,
    help="Reduce what fails and print it (or write it with --keep).",
)
@click.option("--seconds", type=float, help="Stop after so long.")
def kernels(
    seeds: str,
    policy: str | None,
    steps: int | None,
    targets: tuple[str, ...],
    thorough: bool,
    show: bool,
    refused: bool,
    keep: Path | None,
    reducing: bool,
    seconds: float | None,
) -> None:
    """Random kernels of the language, at every level, on the CPU and with other plans, against
    level 0.
    """
    from tkc.fuzz.check import check
    from tkc.fuzz.productions import kernel

    began, ran = time.monotonic(), 0
    kinds: Counter[str] = Counter()
    for seed in _span(seeds):
        k = kernel(seed, policy, steps)
        if show:
            print(k.source)
            continue
        if seconds and time.monotonic() - began > seconds:
            break
        ran += 1
        for failure in check(k, targets or None, thorough):
            kinds[failure.kind] += 1
            if failure.kind != "refused" or refused:
                _show(k, failure, keep, reducing)
    if show:
        return
    bad = sum(n for kind, n in kinds.items() if kind != "refused")
    print(
        f"{ran} kernels in {time.monotonic() - began:.0f} s: {bad} failures, {kinds['refused']}"
        f" refused{', ' + repr(dict(kinds)) if bad else ''}"
    )
    sys.exit(bad > 0)


def _span(seeds: str) -> range:
    """A:B, or one number."""
    first, _, last = seeds.partition(":")
    return range(int(first), int(last or int(first) + 1))


def _show(k: Kernel, failure: Failure, keep: Path | None, reducing: bool) -> None:
    print(f"seed {k.seed} ({k.policy}, grid {k.grid}): {failure}", flush=True)
    if keep:
        _keep(keep, k, failure)
    if reducing and failure.stage not in ("trace", "level 0"):
        _reduce(keep, k, failure)


@main.command()
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first program.")
@click.option("--seconds", type=float, help="Stop after so long.")
def host(count: int, seed: int, seconds: float | None) -> None:
    """Programs of the host that change, between launches, what a kernel reads while it is traced,
    against Python itself.
    """
    from tkc.fuzz.host import check, program

    began, ran, found = time.monotonic(), 0, 0
    launches: Counter[str] = Counter()
    for number in range(seed, seed + count):
        if seconds and time.monotonic() - began > seconds:
            break
        outcome = check(program(number))
        ran += 1
        launches.update(made=outcome.launches, refused=outcome.refused)
        for fault in outcome.faults:
            found += 1
            print(f"program {number}: {fault}", flush=True)
    print(
        f"{ran} programs in {time.monotonic() - began:.0f} s, {launches['made']} launches:"
        f" {found} stale, {launches['refused']} refused"
    )
    sys.exit(found > 0)


@main.command()
@click.argument("count", type=click.IntRange(1), default=1000)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--passes", is_flag=True, help="What verifies also goes through the passes.")
def texts(count: int, seed: int, passes: bool) -> None:
    """COUNT broken texts of IR; each kind of fault is shown once."""
    from tkc.fuzz.mutation import run

    sys.exit(run(count, seed, passes) > 0)


def _reduce(folder: Path | None, k: Kernel, failure: Failure) -> None:
    from tkc.fuzz.check import reduced
    from tkc.ir.text import show

    try:
        text = show(reduced(k, failure))
    except Exception as e:
        print(f"not reduced: {type(e).__name__}: {e}")
        return
    if folder:
        (folder / f"{k.seed}.reduced.mlir").write_text(
            f"// {failure}".splitlines()[0] + f"\n// grid {k.grid}, {k.numbers}\n{text}"
        )
    else:
        print(text, flush=True)


def _keep(folder: Path, k: Kernel, failure: Failure) -> None:
    from tkc.fuzz.check import arguments, traced
    from tkc.ir.text import show

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{k.seed}.py").write_text(
        f"# {failure}\n# grid {k.grid}, warps {k.warps}, stages {k.stages}, {k.numbers}\n{k.source}"
    )
    with contextlib.suppress(Exception):
        (folder / f"{k.seed}.mlir").write_text(show(traced(k, arguments(k))))


if __name__ == "__main__":
    main()
