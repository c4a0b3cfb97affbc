"""python -m benchmarks.campaign: all that a commit owes a GPU, the most telling first, as far as
the time goes.

    python -m benchmarks.campaign --out /tmp/results [STAGE …] [OPTION …]

    --seconds 560                         every stage, in this order, until the time is over
    tests attention                       these stages, in this order
    --after product                       those behind it, where the last one stopped
    memory_bound --pick memory_bound=transpose,adam
                                          of a stage the races that its BENCH_ONLY takes
    --fuzz 44                             and random kernels on so many processors beside them

A stage is a command in processes of its own with a deadline, and one that hangs or crashes costs
only itself. First comes a trial of a few seconds: where a package is missing or a file of another
name stands in the path, everything ends there, not one stage after the other. Stages that time the
host are alone; then each GPU takes the next stage when it is free, so tests and races run side by
side on different GPUs, one at a time on each; random kernels have the last processors of the
machine and no others (where there is `taskset`), for a race's host is in its figures. A stage's
output is in OUT/<stage>.log, its tables in OUT/<stage>/; OUT/all.tgz has everything but the plots
and is written anew after each stage, so that a machine that is taken away leaves what was done.
What each stage said last, and every figure that is missed, is printed at the end.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/gpu",
    "tests/kernels",
    "tests/runtime/test_gpu.py",
    "tests/operations/test_programs.py",
    "tests/language/test_inline_ptx.py",
)


@dataclass(frozen=True)
class Stage:
    """What runs: `command` behind `python`, with {out} for its own folder and {each} for the
    seconds of each of its `parts`; `seconds`: what it may take; `shown`: how many of its last lines
    are printed; alone: nothing else runs beside it; every: it sees every GPU of the machine, and
    not one.
    """

    command: tuple[str, ...]
    seconds: float
    shown: int = 12
    parts: int = 1
    alone: bool = False
    every: bool = False
    only: str = ""  # what BENCH_ONLY says to its races


def race(*names: str, seconds: float, shown: int = 20, alone: bool = False) -> Stage:
    return Stage(
        ("benchmarks/run.py", *names, "--rounds", "8", "--deadline", "{each}", "--out", "{out}"),
        seconds,
        shown,
        len(names),
        alone,
    )


# of tests: more of them run out of the GPU's memory
PROCESSES = max(1, min(15, (os.cpu_count() or 2) - 1))
# one test that hangs costs its own time, not the stage's
GUARD = (
    ("--timeout", "180", "--timeout-method=thread")
    if importlib.util.find_spec("pytest_timeout")
    else ()
)
TRIAL = (
    (
        "-m",
        "pytest",
        "tests/language/test_inline_ptx.py",
        "-m",
        "gpu",
        "-q",
        "-x",
        "-n",
        "1",
        "-p",
        "no:cacheprovider",
    ),
    ("-m", "tkc.fuzz", "--share", "0.00005", "--jobs", "1", "--fresh", "--state", "{out}.json"),
    (
        "-c",
        (
            "import triton, benchmarks.product, benchmarks.attention, benchmarks.memory_bound,"
            " tests.gpu.sanitize"
        ),
    ),
)
STAGES = {
    "tests": Stage(
        (
            "-m",
            "pytest",
            *TESTS,
            "-m",
            "gpu",
            "-q",
            "-rf",
            "--tb=line",
            "-n",
            str(PROCESSES),
            "--dist",
            "worksteal",
            *GUARD,
            "-p",
            "no:cacheprovider",
        ),
        480,
        40,
    ),
    # several in one process
    "devices": Stage(
        (
            "-m",
            "pytest",
            "tests/gpu/test_devices.py",
            "-m",
            "gpu",
            "-q",
            "-rs",
            "--tb=line",
            *GUARD,
            "-p",
            "no:cacheprovider",
        ),
        40,
        6,
        alone=True,
        every=True,
    ),
    "attention": race("attention", seconds=170),
    "product": race("product", seconds=150),
    "attention_variants": race("attention_variants", seconds=110),
    "attention_serving": race("attention_serving", seconds=110),
    "attention_blocks": race("attention_blocks", seconds=250),
    "attention_backward": race("attention_backward", seconds=250),
    "vector_add": race("vector_add", "softmax", seconds=60),
    "memory_bound": race("memory_bound", seconds=420),
    "memory_plans": race("memory_plans", seconds=150),
    "plain_programs": race("plain_programs", seconds=120),
    "plain_layers": race("plain_layers", seconds=120),
    "plain_recurrences": race("plain_recurrences", seconds=60),
    "recurrences": race("recurrences", seconds=250),
    "models": race("models", seconds=200),
    "training": race("training", seconds=120),
    "errors": Stage(("-m", "benchmarks.errors"), 60, 60),
    "counters": Stage(
        (
            "-m",
            "benchmarks.counters",
            "softmax-131072",
            "rms_norm-131072",
            "cross_entropy-131072",
            "cumsum",
        ),
        60,
        14,
    ),
    "launch": race("launch", seconds=120, alone=True),
    "product_types": race("product_types", seconds=110),
    "product_grouped": race("product_grouped", seconds=60),
    "product_figures": race("product_figures", seconds=100),
    "product_odd": race("product_odd", seconds=150),
    "sanitize": Stage(("-m", "tests.gpu.sanitize", "--seconds", "{each}"), 240, 60),
    "examples": race("examples", seconds=120),
    "golden_programs": race("golden_programs", seconds=90),
    "cpu": race("compile_time", "warm_start", "cpu_matmul", "check_speed", seconds=150, alone=True),
}


def run(
    stage: Stage,
    name: str,
    out: Path,
    limit: float,
    gpu: int | None = None,
    nice: int = 0,
    last: int = 0,
) -> tuple[int | None, float]:
    """(exit status, or None where it was stopped with all its children; seconds). gpu: the only one
    that it sees; last: on how many of the machine's processors, the last ones (0: all).
    """
    last = (
        ("taskset", "-c", f"{cores - last}-{cores - 1}")
        if 0 < last < (cores := os.cpu_count() or 1) and shutil.which("taskset")
        else ()
    )
    # a race ends its children itself
    command = [
        *(("nice", "-n", str(nice)) if nice else ()),
        *last,
        sys.executable,
        *(part.format(out=out / name, each=0.95 * limit / stage.parts) for part in stage.command),
    ]
    seen = ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": visible()[gpu]}) | (
        {"BENCH_ONLY": stage.only} if stage.only else {}
    )
    began = time.monotonic()
    with (out / f"{name}.log").open("a") as log:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | seen,
        )
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = None
    return status, time.monotonic() - began


def visible() -> list[str]:
    """The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES gives them."""
    if given := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return given.split(",")
    from tkc.errors import DeviceError
    from tkc.runtime import driver

    try:
        return [str(i) for i in range(driver.count())] or ["0"]
    except DeviceError:
        return ["0"]


def pack(out: Path) -> None:
    with tarfile.open(out / "all.tgz.new", "w:gz") as whole:
        for path in sorted(out.iterdir()):
            if not path.name.startswith("all.tgz"):
                whole.add(
                    path,
                    path.name,
                    filter=lambda info: None if info.name.endswith(".png") else info,
                )
    (out / "all.tgz.new").replace(out / "all.tgz")


class Campaign:
    """Stages on the GPUs of a machine, until the time is over."""

    def __init__(self, out: Path, seconds: float):
        self.out, self.end, self.lock = out, time.monotonic() + seconds, threading.Lock()
        self.said: dict[str, tuple[str, str]] = {}

    def left(self) -> float:
        return self.end - time.monotonic()

    def one(self, name: str, stage: Stage, gpu: int | None, nice: int = 0, last: int = 0) -> None:
        if self.left() < stage.seconds / 4:
            self.said[name] = "not begun", ""
            return
        status, took = run(stage, name, self.out, min(stage.seconds, self.left()), gpu, nice, last)
        with self.lock:
            self.said[name] = (
                ("stopped" if status is None else f"exit {status}" if status else "done"),
                f"{took:.0f}",
            )
            pack(self.out)

    def trial(self) -> bool:
        """Whether a kernel runs, a random one is checked, and all that races need is there."""
        return all(
            run(Stage(command, 90), "trial", self.out, min(90, self.left()), 0)[0] == 0
            for command in TRIAL
        )

    def all(self, stages: dict[str, Stage], gpus: int, fuzz: int) -> None:
        for name, stage in stages.items():
            if stage.alone:
                self.one(name, stage, None if stage.every else 0)
        waiting = deque((name, stage) for name, stage in stages.items() if not stage.alone)

        def lane(gpu: int) -> None:
            while True:
                try:
                    name, stage = waiting.popleft()
                except IndexError:
                    return
                self.one(name, stage, gpu)

        lanes = [threading.Thread(target=lane, args=(gpu,)) for gpu in range(gpus)]
        if fuzz:
            kernels = Stage(
                (
                    "-m",
                    "tkc.fuzz",
                    "--jobs",
                    str(fuzz),
                    "--seconds",
                    str(max(1, self.left() - 15)),
                    "--state",
                    str(self.out / "fuzz.json"),
                ),
                self.left(),
                20,
            )
            lanes.append(threading.Thread(target=self.one, args=("fuzz", kernels, None, 19, fuzz)))
        for thread in lanes:
            thread.start()
        for thread in lanes:
            thread.join()


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(STAGES)))
@click.option(
    "--after", type=click.Choice(list(STAGES)), help="Leave out this stage and those before it."
)
@click.option(
    "--seconds",
    type=float,
    default=3600,
    show_default=True,
    help="For all stages; one that has less than a quarter of its time left does not begin.",
)
@click.option(
    "--gpus", type=click.IntRange(1), help="GPUs that take stages.  [default: all that are visible]"
)
@click.option(
    "--fuzz",
    type=click.IntRange(0),
    default=0,
    help="Processes of `python -m tkc.fuzz` beside the stages.",
)
@click.option(
    "--pick",
    multiple=True,
    metavar="STAGE=NAMES",
    help="Of a stage these races alone, as its BENCH_ONLY names them; may be given more than once.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Where everything goes."
)
def main(
    names: tuple[str, ...],
    after: str | None,
    seconds: float,
    gpus: int | None,
    fuzz: int,
    pick: tuple[str, ...],
    out: Path,
) -> None:
    """Runs the stages. The exit status is 1 if one of them failed, was stopped or did not begin."""
    order = list(STAGES)
    chosen = [n for n in names or order if not after or order.index(n) > order.index(after)]
    picked = dict(p.partition("=")[::2] for p in pick)
    if wrong := [name for name, races in picked.items() if name not in chosen or not races]:
        raise click.BadParameter(
            f"{wrong[0]!r} is none of the stages that run, or nothing is said to be picked; give"
            " STAGE=NAMES",
            param_hint="--pick",
        )
    out.mkdir(parents=True, exist_ok=True)
    campaign, console = Campaign(out, seconds), Console(soft_wrap=True)
    if not campaign.trial():
        console.print(
            (out / "trial.log").read_text(errors="replace")[-4000:], markup=False, highlight=False
        )
        console.print("the trial failed: nothing was begun", style="red")
        sys.exit(1)
    campaign.all(
        {name: replace(STAGES[name], only=picked.get(name, "")) for name in chosen},
        gpus or len(visible()),
        fuzz,
    )
    table = Table("stage", "status", "seconds", title="campaign", title_justify="left")
    for name in [*chosen, *(["fuzz"] if fuzz else [])]:
        if (log := out / f"{name}.log").exists():
            console.rule(name)
            console.print(
                "\n".join(
                    log.read_text(errors="replace").splitlines()[
                        -(STAGES[name].shown if name in STAGES else 20) :
                    ]
                ),
                markup=False,
                highlight=False,
            )
        table.add_row(name, *campaign.said[name])
    console.print(table)
    subprocess.run(
        [sys.executable, "-m", "benchmarks.standing", "--missed", "--from", str(out)],
        cwd=ROOT,
        check=False,
    )
    sys.exit(any(status != "done" for status, _ in campaign.said.values()))


if __name__ == "__main__":
    main()
