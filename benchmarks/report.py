"""What a race leaves behind: benchmarks/results/<date>-<name>.md, .json and .png (a plot, which is
not committed), and a short table on the terminal.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path

from benchmarks.harness import Quartiles, Result

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "triton", "numpy", "xdsl", "llvmlite", "cuda-bindings", "ml_dtypes")
INK = {"ours": "#c0392b", "rival": "#34495e", "bound": "#95a5a6"}


# --------------------------------------------------------------------------------------------------
def _output(*command: str) -> str:
    """What a command prints, or nothing."""
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def commit() -> str:
    """The commit that is measured: TKC_COMMIT where the code was copied without its history, `+`
    for changed files.
    """
    if given := os.environ.get("TKC_COMMIT"):
        return given
    changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    return (_output("git", "rev-parse", "--short=12", "HEAD") or "unknown") + (
        "+" if changed else ""
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def environment() -> dict:
    """Where and with what a race was run."""
    gpu = _output(
        "nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader"
    ).splitlines()
    name, driver, power = (gpu[0].split(", ") + ["", ""])[:3] if gpu else ("none", "", "")
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "gpu": name,
        "driver": driver,
        "power limit": power,
        "cpu": processor(),
        "cores": (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "python": platform.python_version(),
        **{p: v for p in PACKAGES if (v := _version(p))},
    }


# --------------------------------------------------------------------------------------------------
UNITS = (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def seconds(t: float) -> str:
    """1.234 us, 56.78 ms: four digits and the unit that suits."""
    for unit, scale in UNITS:
        if abs(t) >= scale:
            return f"{t / scale:.4g} {unit}"
    return f"{t:.4g} s"


def _spread(q: Quartiles | None, form=lambda x: f"{x:.3f}") -> str:
    return f"{form(q.median)} [{form(q.low)}, {form(q.high)}]" if q else "-"


def rows(result: Result) -> list[tuple[str, ...]]:
    """One row a contestant, fastest first: name, time, rate, ratio to the best rival, error."""
    contest, ranked = (
        result.contest,
        sorted(result.seconds, key=lambda n: Quartiles.of(result.seconds[n]).median),
    )
    table = []
    for name in ranked:
        median = Quartiles.of(result.seconds[name]).median
        rate = f"{contest.rate(median):.4g} {contest.unit}" if contest.amount else "-"
        error = f"{result.errors[name]:.3e}" if name in result.errors else "-"
        table.append((name, seconds(median), rate, _spread(result.against_best_rival(name)), error))
    return table


HEADER = ("contestant", "median", "rate", "x best other rival [quartiles]", "error")


def verdicts(result: Result) -> list[tuple[str, str, str]]:
    """Of each figure: what was promised, what came out, and met, missed or not measured."""
    out = []
    for figure in result.contest.figures:
        q = result.figure(figure)
        out.append(
            (
                figure.text,
                _spread(q, seconds if figure.seconds else lambda x: f"{x:.4g}"),
                "not measured" if q is None else "met" if figure.met(q.median) else "MISSED",
            )
        )
    if (most := result.contest.worst_error) is not None:
        worst = result.worst_error()
        out.append(
            (
                f"errors of ours at most {most:g} x the least of a rival",
                "-" if worst is None else f"{worst:.4f}",
                "not measured" if worst is None else "met" if worst <= most else "MISSED",
            )
        )
    return out


def text(result: Result) -> str:
    """The short table for a terminal."""
    lines = [f"{result.contest.title} ({result.rounds} rounds)"]
    table = [HEADER, *rows(result)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
    lines += [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)).rstrip()
        for row in table
    ]
    lines += [f"  out: {name}: {why[:200]}" for name, why in result.failures.items()]
    lines += [f"  {verdict}: {promise}: {value}" for promise, value, verdict in verdicts(result)]
    return "\n".join(lines)


def markdown(result: Result, where: dict) -> str:
    contest = result.contest

    def line(cells):
        return "| " + " | ".join(cells) + " |"

    parts = [
        f"# {contest.title}",
        "",
        ", ".join(f"{k} {v}" for k, v in where.items() if v),
        "",
        (
            f"{result.rounds} rounds, each contestant once a round in a shuffled order."
            f" {contest.timing}. Ratios are taken inside a round: the speed over that of"
        ),
        "the best other rival of the same round, median and quartiles.",
        "",
    ]
    parts += [line(HEADER), line(["---"] * len(HEADER)), *map(line, rows(result)), ""]
    if result.failures:
        parts += [f"Out of the race: {name}: {why}" for name, why in result.failures.items()] + [""]
    if verdicts(result):
        parts += [
            line(("figure", "measured", "")),
            line(["---"] * 3),
            *map(line, verdicts(result)),
            "",
        ]
    parts += [*contest.notes, ""] if contest.notes else []
    return "\n".join(parts)


def data(result: Result, where: dict) -> dict:
    """Everything measured, for machines: seconds of every round included."""
    contest = result.contest
    return {
        "name": contest.name,
        "title": contest.title,
        "environment": where,
        "timing": contest.timing,
        "amount": contest.amount,
        "unit": contest.unit,
        "tolerance": contest.tolerance,
        "seed": result.seed,
        "rounds": result.rounds,
        "order": result.order,
        "seconds": result.seconds,
        "errors": result.errors,
        "failures": result.failures,
        "roles": {c.name: c.role for c in contest.contestants},
        "figures": [
            {"figure": promise, "measured": value, "verdict": verdict}
            for promise, value, verdict in verdicts(result)
        ],
    }


# --------------------------------------------------------------------------------------------------
def draw(result: Result, path: Path) -> bool:
    """Times (or rates) of all rounds, a dot each, the median as a bar; False where matplotlib is
    missing.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    contest, names = (
        result.contest,
        sorted(result.seconds, key=lambda n: -Quartiles.of(result.seconds[n]).median),
    )
    roles = {c.name: c.role for c in contest.contestants}
    unit, scale = next(
        (u, s) for u, s in UNITS if max(map(max, result.seconds.values())) >= s or s == UNITS[-1][1]
    )
    value = contest.rate if contest.amount else (lambda t: t / scale)
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.45 * len(names)))
    for y, name in enumerate(names):
        points = [value(t) for t in result.seconds[name]]
        axes.barh(y, Quartiles.of(points).median, color=INK[roles[name]], height=0.6, alpha=0.75)
        axes.plot(points, [y] * len(points), "k.", markersize=4)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel(contest.unit if contest.amount else unit)
    axes.set_xlim(left=0)
    axes.set_title(contest.title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def write(result: Result, folder: Path) -> Path:
    """The three files; returns the path of the markdown."""
    where = environment()
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{where['date']}-{result.contest.name}"
    if result.seconds:
        draw(result, folder / f"{stem}.png")
    (folder / f"{stem}.json").write_text(json.dumps(data(result, where), indent=1) + "\n")
    (folder / f"{stem}.md").write_text(markdown(result, where))
    return folder / f"{stem}.md"
