"""Compile time of unmodified Triton kernels, by tkc beside Triton itself, without a GPU.

    python -m benchmarks.triton_compile CHECKOUTS [--only WORD] [--rounds 3] [--json FILE]

CHECKOUTS: as of triton_kernels. Each case is a process of its own on one core, with no cache on
disk: it calls the case's functions on arrays that nobody reads, writes down the launches instead of
making them, and then compiles each for a Hopper GPU to the binary; of what is tuned, the first
configuration. Counted are processor seconds, those of the assemblers with them, from the first
compilation on: modules are imported before, and what a compiler sets up once counts with the first
kernel. Triton (`pip install triton==3.6.0`) needs torch beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIDES = "tkc", "triton"
MAX_SECONDS = 300.0  # seconds of a process
TARGET, CAPABILITY = "sm_90a", 90
Recorded = list[tuple[Any, tuple, dict[str, Any]]]  # kernel, arguments, and those by name


def seconds() -> float:
    """Of processors, of this process and of those it has waited for."""
    own, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


# ---- the sides: each gives a function that compiles a launch, and fills `recorded`
def _of_tkc(recorded: Recorded) -> Callable[..., None]:
    import tests.outside.place  # noqa: F401  # puts tkc in Triton's place, the host in a GPU's
    from tkc.triton.runtime.compiled import CompiledKernel
    from tkc.triton.runtime.jit import JITFunction

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        recorded.append((self, args, kwargs))

    JITFunction.run = run  # type: ignore[method-assign]
    JITFunction.__getitem__ = (  # type: ignore[method-assign]  # launches go by no launch cache
        lambda self, grid: partial(run, self, grid=grid)
    )

    def compiled(kernel: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        CompiledKernel(kernel, args, kwargs).compiled_for(TARGET).resources  # noqa: B018

    return compiled


def _of_triton(recorded: Recorded) -> Callable[..., None]:
    os.environ["OUTSIDE_TRITON"] = "1"
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import autotuner, driver, jit

    class Driver:
        """Of a GPU that is not there."""

        launcher_cls = None

        def __getattr__(self, name: str) -> Any:
            given = {
                "get_current_target": GPUTarget("cuda", CAPABILITY, 32),
                "get_current_device": 0,
                "get_current_stream": 0,
                "get_active_torch_device": torch.device("cpu"),
                "get_benchmarker": lambda *a, **k: [1.0, 1.0, 1.0],
            }
            if name not in given:
                raise AttributeError(name)
            return lambda *args: given[name]

        class utils:  # noqa: N801  # as Triton's driver has it
            @staticmethod
            def get_device_properties(device: int) -> dict[str, int]:
                from tkc.triton.runtime.driver import properties

                return properties()

    driver.set_active(Driver())
    import tests.outside.place  # noqa: F401  # the host in a GPU's place

    compile_ = jit.JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        recorded.append((self, args, kwargs))

    def tuned(self: Any, *args: Any, **kwargs: Any) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        config = (self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs)[0]
        if config.pre_hook is not None:
            config.pre_hook(self.nargs | kwargs | config.all_kwargs())
        self.fn.run(*args, **kwargs, **config.all_kwargs())

    jit.JITFunction.run = run
    autotuner.Autotuner.run = tuned

    def compiled(kernel: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        compile_(kernel, *args, grid=(1,), warmup=True, **kwargs)

    return compiled


def one(side: str, title: str, root: Path) -> dict[str, Any]:
    """In a process of its own: seconds of each kernel of a case, in order."""
    recorded: Recorded = []
    compiled = (_of_tkc if side == "tkc" else _of_triton)(recorded)
    import torch

    import benchmarks.triton_packages  # noqa: F401  # adds its cases
    from benchmarks import rivals_triton
    from benchmarks.triton_cases import CASES, Operands

    class Unread(Operands):
        def normal(self, *shape: int, dtype: str = "bfloat16", grad: bool = False) -> torch.Tensor:
            return torch.empty(shape, dtype=getattr(torch, dtype)).requires_grad_(grad)

    case = next(c for c in CASES if c.title == title)
    made = torch.empty(64, 64)
    rivals_triton.softmax(made, made)
    compiled(*recorded.pop())
    problem = ""
    try:
        case.make(Unread(root, "cpu"))()
    except Exception as error:  # of what reads results: what was launched before counts
        problem = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    found, seen = [], set()
    for kernel, args, kwargs in recorded:
        name = kernel.__name__
        if name in seen:
            continue
        seen.add(name)
        began = seconds()
        compiled(kernel, args, kwargs)
        found.append((name, seconds() - began))
    return {"kernels": found, "problem": problem}


def measured(side: str, title: str, root: Path) -> dict[str, Any]:
    """`one` in a process on one core, with empty caches."""
    with tempfile.TemporaryDirectory() as room:
        env = os.environ | {
            "TKC_CACHE": "0",
            "TKC_AUTOTUNE": "0",
            "TRITON_CACHE_DIR": room,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        core = min(os.sched_getaffinity(0))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.triton_compile", str(root), "--one", side, title],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    if done.returncode:
        return {"kernels": [], "problem": (done.stderr.strip().splitlines() or ["?"])[-1][:160]}
    return json.loads(done.stdout.splitlines()[-1])


def row(title: str, root: Path, rounds: int) -> dict[str, Any]:
    """A case's seconds on both sides: the kernels that both compiled, medians over rounds."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    problems = {}
    for _ in range(rounds):
        for side in SIDES:
            made = measured(side, title, root)
            found[side].append(dict(made["kernels"]))
            problems[side] = made["problem"]
    both = set.intersection(*(set(times) for side in SIDES for times in found[side]))
    line: dict[str, Any] = {"case": title, "kernels": sorted(both), "problems": problems}
    for side in SIDES:
        totals = [sum(times[name] for name in both) for times in found[side]]
        line[side] = statistics.median(totals)
    return line


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", default="tutorials", help="cases whose titles match this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(*asked.one, asked.checkouts)))
        return 0
    import benchmarks.triton_packages  # noqa: F401
    from benchmarks.triton_cases import CASES

    rows = []
    print("| case | kernels | tkc, s | Triton, s | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for title in (c.title for c in CASES if re.search(asked.only, c.title)):
        line = row(title, asked.checkouts, asked.rounds)
        if not line["kernels"]:
            print(f"| {title} | 0 | | | {line['problems']} |", flush=True)
            continue
        rows.append(line)
        ratio = line["tkc"] / line["triton"]
        times = f"{line['tkc']:.2f} | {line['triton']:.2f} | {ratio:.2f}"
        print(f"| {title} | {len(line['kernels'])} | {times} |", flush=True)
    if asked.json:
        asked.json.write_text("".join(json.dumps(line) + "\n" for line in rows))
    if rows:
        ratios = [line["tkc"] / line["triton"] for line in rows]
        print(
            f"\n{len(rows)} cases: geometric mean {statistics.geometric_mean(ratios):.2f} of"
            f" Triton's time, worst {max(ratios):.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
