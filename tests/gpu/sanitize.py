"""compute-sanitizer over every example and library function on this machine's GPU: `make sanitize`,
or

    python -m tests.gpu.sanitize [--tool memcheck --tool …] [--case N] [--seconds N] [--jobs N]
    [NAME …]

memcheck sees accesses outside allocations (torch's pool is off, so that an allocation is one
array), racecheck hazards in shared memory, synccheck barriers used wrongly, initcheck reads of
global memory that nobody wrote (it does not see what the tensor memory accelerator stores). First
everything runs plainly, which compiles it; then the cases of each tool are dealt out over
processes. A case that hangs or ends its process loses itself alone: another process goes on with
the next. A table at the end; exit 1 unless every case was run and is clean.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAIN = "plain"  # no tool
TOOLS = {
    "memcheck": ["--padding", "32", "--report-api-errors", "no"],
    "racecheck": ["--racecheck-report", "analysis"],
    "synccheck": [],
    "initcheck": [],
}
FOUND = re.compile(
    r"========= (Invalid|Uninitialized|Misaligned|Error: (?:Race|Potential)|Warning: Race|Barrier"
    r" error|Program hit|Race reported|Host API)"
)


def find() -> str | None:
    """The path of compute-sanitizer, None where it is not installed."""
    places = [
        "/usr/local/cuda/bin",
        *(
            os.path.join(os.environ[v], "bin")
            for v in ("CUDA_HOME", "CUDA_PATH")
            if os.environ.get(v)
        ),
    ]
    for root in sys.path:
        places += (
            [str(p) for p in Path(root).glob("nvidia/*/bin")]
            if root and Path(root).is_dir()
            else []
        )
    return shutil.which("compute-sanitizer") or next(
        (f"{p}/compute-sanitizer" for p in places if os.access(f"{p}/compute-sanitizer", os.X_OK)),
        None,
    )


@dataclass
class Outcome:
    """What one case gave: findings of the tool, what became of it ("ran", "hung", "died", "not
    run"), what was said meanwhile.
    """

    findings: int = 0
    became: str = "not run"
    said: list[str] = field(default_factory=list)

    def __str__(self):
        return (
            str(self.findings)
            if self.became == "ran"
            else f"{self.became} {self.findings}"
            if self.findings
            else self.became
        )

    @property
    def clean(self) -> bool:
        return self.became == "ran" and not self.findings


def started(tool: str, names: Sequence[str]) -> subprocess.Popen:
    """The cases in a process (group) of their own, under the tool."""
    environment = os.environ | {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
    }
    under = (
        []
        if tool == PLAIN
        else [find(), "--tool", tool, *TOOLS[tool], "--error-exitcode", "9", "--print-limit", "40"]
    )
    return subprocess.Popen(
        [*under, sys.executable, "-m", "tests.gpu.sanitized", *names],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def watched(
    tool: str, names: Sequence[str], case_seconds: float, until: float
) -> dict[str, Outcome]:
    """Runs the cases, one process after the other until each had its turn; a case may take so many
    seconds, all together until a time.
    """
    outcomes, left = {n: Outcome() for n in names}, list(names)
    while left and time.monotonic() < until:
        child, lines = started(tool, left), queue.SimpleQueue()
        threading.Thread(
            target=lambda child=child, lines=lines: [
                *map(lines.put, child.stdout),
                lines.put(None),
            ],
            daemon=True,
        ).start()
        current, since, hung = left[0], time.monotonic(), False
        while True:
            end = min(since + case_seconds, until)
            try:
                line = lines.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                if time.monotonic() < end:
                    continue
                hung = True
                os.killpg(child.pid, signal.SIGKILL)
                break
            if line is None:
                break
            if line.startswith("== ") and line[3:].rstrip() in outcomes:
                current, since = line[3:].rstrip(), time.monotonic()
                for done in left[: left.index(current)]:
                    outcomes[done].became = "ran"
                left = left[left.index(current) :]
                continue
            if line.startswith("== end"):
                outcomes[current].became = "ran"
                left = left[1:]
            outcomes[current].said.append(line.rstrip())
            outcomes[current].findings += bool(FOUND.match(line))
        child.wait()
        if left:
            outcomes[current].became = "hung" if hung else "died"
        left = left[1:]
    return outcomes


def main() -> int:
    from tests.gpu.sanitized import examples, library

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tool", action="append", choices=TOOLS)
    parser.add_argument("--case", type=float, default=120, help="seconds for one case")
    parser.add_argument("--seconds", type=float, default=1800, help="for everything")
    parser.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes at once"
    )
    given = parser.parse_args()
    if find() is None:
        print(
            "compute-sanitizer is not installed: it is in the CUDA toolkit, or pip install"
            " nvidia-cuda-sanitizer-api"
        )
        return 2
    names, tools, until = (
        given.names
        or [*(f"examples/{n}" for n in examples("cpu")), *(f"kernels.{n}" for n in library())],
        given.tool or list(TOOLS),
        time.monotonic() + given.seconds,
    )
    table: dict[str, dict[str, Outcome]] = {t: {} for t in (PLAIN, *tools)}
    with ThreadPoolExecutor(given.jobs) as pool:
        for stage in ([PLAIN], tools):
            shares = max(1, given.jobs // len(stage))
            runs = [
                (tool, pool.submit(watched, tool, share, given.case, until))
                for k in range(shares)
                for tool in stage
                if (share := names[k::shares])
            ]
            for tool, run in runs:
                table[tool].update(run.result())
    for tool, outcomes in table.items():
        for name in names:
            if not outcomes[name].clean:
                print(
                    f"-- {tool}, {name}: {outcomes[name]}",
                    *(
                        line[:240]
                        for line in outcomes[name].said
                        if "Host Frame" not in line and "Saved host" not in line
                    ),
                    sep="\n",
                    flush=True,
                )
    width = max(map(len, names))
    print("\n" + "".ljust(width), *(t.rjust(10) for t in table))
    for name in names:
        print(name.ljust(width), *(str(outcomes[name]).rjust(10) for outcomes in table.values()))
    dirty = {tool: sum(not o.clean for o in outcomes.values()) for tool, outcomes in table.items()}
    print(
        "\n"
        + "; ".join(
            f"{tool}: {'clean' if not n else f'{n} of {len(names)} are not clean'}"
            for tool, n in dirty.items()
        )
    )
    return int(any(dirty.values()))


if __name__ == "__main__":
    sys.exit(main())
