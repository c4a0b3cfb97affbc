"""python -m benchmarks.campaign: all that a commit owes a GPU, the most telling first, as far as the time goes.

    python -m benchmarks.campaign --seconds 560 --out /tmp/results            every stage, in this order, until the time is over
    python -m benchmarks.campaign tests attention --out /tmp/results          these
    python -m benchmarks.campaign --after product --out /tmp/results          those behind it, where the last one stopped

A stage is a command in processes of its own with a deadline, and one that hangs or crashes costs only itself. Its output is in OUT/<stage>.log, its tables in OUT/<stage>/; OUT/all.tgz has
everything and is written anew after each stage, so that a machine that is taken away leaves what was done. Tests run side by side, races alone. What each stage said last is printed at the end.
"""
from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/gpu", "tests/kernels", "tests/runtime/test_gpu.py", "tests/operations/test_programs.py", "tests/language/test_inline_ptx.py")


@dataclass(frozen=True)
class Stage:
    """What runs: `command` behind `python`, with {out} for its own folder and {each} for the seconds of each of its `parts`; `seconds`: what it may take; `shown`: how many of its last
    lines are printed."""
    command: tuple[str, ...]
    seconds: float
    shown: int = 12
    parts: int = 1


def race(*names: str, seconds: float, shown: int = 20) -> Stage:
    return Stage(("benchmarks/run.py", *names, "--rounds", "8", "--deadline", "{each}", "--out", "{out}"), seconds, shown, len(names))


GUARD = ("--timeout", "90", "--timeout-method=thread") if importlib.util.find_spec("pytest_timeout") else ()       # one test that hangs costs its own time, not the stage's
STAGES = {
    "tests": Stage(("-m", "pytest", *TESTS, "-m", "gpu", "-q", "-rf", "--tb=line", "-n", str(max(1, (os.cpu_count() or 2) - 1)), "--dist", "worksteal", *GUARD, "-p", "no:cacheprovider"), 480, 40),
    "attention": race("attention", seconds=170),
    "product": race("product", seconds=150),
    "attention_variants": race("attention_variants", seconds=110),
    "attention_blocks": race("attention_blocks", seconds=200),
    "memory_bound": race("vector_add", "softmax", "memory_bound", seconds=150),
    "memory_plans": race("memory_plans", seconds=150),
    "errors": Stage(("-m", "benchmarks.errors"), 60, 60),
    "counters": Stage(("-m", "benchmarks.counters", "softmax-131072", "rms_norm-131072", "cross_entropy-131072", "cumsum"), 60, 14),
    "launch": race("launch", seconds=20),
    "product_types": race("product_types", seconds=90),
    "product_grouped": race("product_grouped", seconds=60),
    "product_figures": race("product_figures", seconds=100),
    "product_odd": race("product_odd", seconds=120),
    "sanitize": Stage(("-m", "tests.gpu.sanitize", "--seconds", "{each}"), 240, 60),
    "examples": race("examples", seconds=120),
    "golden_programs": race("golden_programs", seconds=90),
    "cpu": race("compile_time", "warm_start", "cpu_matmul", "check_speed", seconds=150),
}


def run(stage: Stage, name: str, out: Path, limit: float) -> tuple[int | None, float]:
    """(exit status, or None where it was stopped with all its children; seconds)."""
    command = [sys.executable, *(part.format(out=out / name, each=0.95 * limit / stage.parts) for part in stage.command)]         # a race ends its children itself
    began = time.monotonic()
    with (out / f"{name}.log").open("w") as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try: status = child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = None
    return status, time.monotonic() - began


def pack(out: Path) -> None:
    with tarfile.open(out / "all.tgz.new", "w:gz") as whole:
        for path in sorted(out.iterdir()):
            if not path.name.startswith("all.tgz"): whole.add(path, path.name)
    (out / "all.tgz.new").replace(out / "all.tgz")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(STAGES)))
@click.option("--after", type=click.Choice(list(STAGES)), help="Leave out this stage and those before it.")
@click.option("--seconds", type=float, default=3600, show_default=True, help="For all stages; one that has less than a quarter of its time left does not begin.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where everything goes.")
def main(names: tuple[str, ...], after: str | None, seconds: float, out: Path) -> None:
    """Runs the stages. The exit status is 1 if one of them failed, was stopped or did not begin."""
    order = list(STAGES)
    chosen = [n for n in order[order.index(after) + 1 if after else 0:] if not names or n in names]
    out.mkdir(parents=True, exist_ok=True)
    end, table, console = time.monotonic() + seconds, Table("stage", "status", "seconds", title="campaign", title_justify="left"), Console(soft_wrap=True)
    good = True
    for name in chosen:
        stage, left = STAGES[name], end - time.monotonic()
        if left < stage.seconds / 4:
            table.add_row(name, "not begun", "")
            good = False
            continue
        status, took = run(stage, name, out, min(stage.seconds, left))
        good = good and status == 0
        table.add_row(name, "stopped" if status is None else f"exit {status}" if status else "done", f"{took:.0f}")
        pack(out)
    for name in chosen:
        if (log := out / f"{name}.log").exists():
            console.rule(name)
            console.print("\n".join(log.read_text(errors="replace").splitlines()[-STAGES[name].shown:]), markup=False, highlight=False)
    console.print(table)
    sys.exit(not good)


if __name__ == "__main__": main()
