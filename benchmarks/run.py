"""`python benchmarks/run.py NAME...`: the races of this folder, one process each.

    python benchmarks/run.py                          every race that this machine can run
    python benchmarks/run.py vector_add softmax --rounds 12 --out /tmp/results

A race is a module of this folder with a function `contest(seed) -> Contest`.  Each runs in a process of its own with a deadline,
so that one that hangs or crashes costs only itself; a risky contestant is tried in a further one.  Results go to benchmarks/results
(or --out); the short tables are printed again at the end.
"""
from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__": sys.path[0] = str(ROOT)          # instead of this folder, whose names are no top-level modules

from benchmarks import harness, report  # noqa: E402

RACES = ("vector_add", "softmax", "matmul_mma", "launch", "compile_time", "cpu_matmul")
ON_CPU = ("compile_time", "cpu_matmul")


def load(name: str, seed: int) -> harness.Contest: return importlib.import_module(f"benchmarks.{name}").contest(seed)


def has_gpu() -> bool:
    try: import torch
    except ImportError: return False
    return torch.cuda.is_available()


def try_one(name: str, contestant: str, seed: int) -> int:
    """In a child process: check one contestant and time it once; what it raises is printed."""
    contest = load(name, seed)
    chosen = next(c for c in contest.contestants if c.name == contestant)
    runner = chosen.make()
    if contest.reference and chosen.role != "bound": harness.check(runner, contest.reference(), contest.tolerance)
    contest.timer(runner.run)
    return 0


def trial(name: str, seed: int, deadline: float) -> harness.Trial:
    def run(contest, contestant):
        command = [sys.executable, __file__, name, "--try", contestant.name, "--seed", str(seed)]
        try: done = subprocess.run(command, capture_output=True, text=True, timeout=deadline)
        except subprocess.TimeoutExpired: raise harness.Wrong(f"gave no result within {deadline:g} s in a process of its own") from None
        if done.returncode: raise harness.Wrong(harness.last_words(done.stderr, done.returncode))
    return run


def race_one(name: str, options: argparse.Namespace) -> int:
    """One race in this process; its table goes to stdout, the progress to stderr."""
    contest = load(name, options.seed)
    result = harness.race(contest, options.rounds, options.seed, trial(name, options.seed, options.deadline / 2), budget=options.deadline / 2,
                          say=lambda text: print(text, file=sys.stderr, flush=True))
    report.write(result, Path(options.out))
    print(report.text(result), flush=True)
    return 0 if result.seconds else 1


def bounded(command: list[str], deadline: float) -> tuple[int | None, str]:
    """Exit status (None: stopped at the deadline, with all its children) and what it printed."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try: printed = child.communicate(timeout=deadline)[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[0].strip()
    return child.returncode, printed.strip()


def race_all(names: list[str], options: argparse.Namespace) -> int:
    tables, failed = [], 0
    for name in names:
        command = [sys.executable, __file__, name, "--one", "--rounds", str(options.rounds), "--out", options.out, "--seed", str(options.seed),
                   "--deadline", str(options.deadline)]
        status, printed = bounded(command, options.deadline)
        tables.append(printed or f"{name}: " + (f"stopped after {options.deadline:g} s" if status is None else f"exit status {status}"))
        failed += status != 0
    print("\n\n".join(tables), flush=True)
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RACES))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--deadline", type=float, default=150, help="seconds a race may take")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--try", dest="contestant", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in options.names:
        if not (ROOT / "benchmarks" / f"{name}.py").exists(): parser.error(f"no race is named {name!r}; there are {', '.join(RACES)}")
    if options.rounds < 1: parser.error("--rounds must be at least 1")
    if options.contestant: return try_one(options.names[0], options.contestant, options.seed)
    if options.one: return race_one(options.names[0], options)
    return race_all(options.names or [name for name in RACES if name in ON_CPU or has_gpu()], options)


if __name__ == "__main__": sys.exit(main())
