"""`python benchmarks/run.py NAME...`: the races of this folder, one process each.

    python benchmarks/run.py                          every race that this machine can run
    python benchmarks/run.py vector_add softmax --rounds 12 --out /tmp/results

A race is a module of this folder with a function `contest(seed) -> Contest`, or `contests(seed)`
that yields several. Each module runs in a process of its own with a deadline, so that one that
hangs or crashes costs only itself; a risky contestant is tried in a further one. Results go to
out/races (or --out); the short tables are printed again at the end.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # instead of this folder, whose names are no top-level modules

from benchmarks import harness, report  # noqa: E402

RACES = (
    "vector_add",
    "softmax",
    "memory_bound",
    "memory_plans",
    "matmul_mma",
    "product",
    "product_types",
    "product_odd",
    "product_figures",
    "product_grouped",
    "recurrences",
    "models",
    "training",
    "plain_programs",
    "plain_layers",
    "plain_recurrences",
    "attention",
    "attention_variants",
    "attention_mods",
    "attention_serving",
    "attention_backward",
    "attention_gradients",
    "attention_blocks",
    "launch",
    "examples",
    "golden_programs",
    "compile_time",
    "warm_start",
    "cpu_matmul",
    "check_speed",
)
ON_CPU = ("compile_time", "warm_start", "cpu_matmul", "check_speed")


def load(name: str, seed: int) -> Iterator[harness.Contest]:
    """The contests of a module, one after the other: each may fill the GPU's memory."""
    module = importlib.import_module(f"benchmarks.{name}")
    if hasattr(module, "contests"):
        yield from module.contests(seed)
    else:
        yield module.contest(seed)


def has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def try_one(name: str, of: str, contestant: str, seed: int) -> int:
    """In a child process: check one contestant and time it once; what it raises is printed."""
    contest = next(c for c in load(name, seed) if c.name == of)
    chosen = next(c for c in contest.contestants if c.name == contestant)
    runner = chosen.make()
    if contest.reference and chosen.role != "bound":
        harness.check(runner, contest.reference(), contest.tolerance)
    contest.timer(runner.run)
    return 0


def trial(name: str, seed: int, deadline: float) -> harness.Trial:
    def run(contest, contestant):
        command = [
            sys.executable,
            __file__,
            name,
            "--try",
            contestant.name,
            "--of",
            contest.name,
            "--seed",
            str(seed),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=deadline)
        except subprocess.TimeoutExpired:
            raise harness.Wrong(
                f"gave no result within {deadline:g} s in a process of its own"
            ) from None
        if done.returncode:
            raise harness.Wrong(harness.last_words(done.stderr, done.returncode))

    return run


def race_one(name: str, options: argparse.Namespace) -> int:
    """The races of one module in this process; the tables go to stdout, the progress to stderr."""
    say, failed = lambda text: print(text, file=sys.stderr, flush=True), 0
    for contest in load(name, options.seed):
        result = harness.race(
            contest,
            options.rounds,
            options.seed,
            trial(name, options.seed, options.deadline / 2),
            budget=options.deadline / 2,
            say=say,
        )
        report.write(result, Path(options.out))
        print(report.text(result), flush=True)
        failed += not result.seconds
        del contest, result
    return 1 if failed else 0


def bounded(command: list[str], deadline: float) -> tuple[int | None, str]:
    """Exit status (None: stopped at the deadline, with all its children) and what it printed."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed = child.communicate(timeout=deadline)[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[0].strip()
    return child.returncode, printed.strip()


def race_all(names: list[str], options: argparse.Namespace) -> int:
    tables, failed = [], 0
    for name in names:
        command = [
            sys.executable,
            __file__,
            name,
            "--one",
            "--rounds",
            str(options.rounds),
            "--out",
            options.out,
            "--seed",
            str(options.seed),
            "--deadline",
            str(options.deadline),
        ]
        status, printed = bounded(command, options.deadline)
        tables.append(
            printed
            or f"{name}: "
            + (
                f"stopped after {options.deadline:g} s"
                if status is None
                else f"exit status {status}"
            )
        )
        failed += status != 0
    print("\n\n".join(tables), flush=True)
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RACES))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", default=str(ROOT / "out" / "races"))
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--deadline", type=float, default=150, help="seconds a race may take")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--try", dest="contestant", help=argparse.SUPPRESS)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in options.names:
        if not (ROOT / "benchmarks" / f"{name}.py").exists():
            parser.error(f"no race is named {name!r}; there are {', '.join(RACES)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.contestant:
        return try_one(options.names[0], options.of, options.contestant, options.seed)
    if options.one:
        return race_one(options.names[0], options)
    return race_all(options.names or [*(RACES if has_gpu() else ON_CPU)], options)


if __name__ == "__main__":
    sys.exit(main())
