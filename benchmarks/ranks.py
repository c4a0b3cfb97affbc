"""Parts of a program on every GPU of a host, a process each, with a time limit a part.

    run("benchmarks.several_gpus", ["all_reduce", ...], limit=230)    the parent
    work(parts, start)                                                each of the processes

A part that hangs or loses its device ends all processes; new ones go on with the part behind it.
NVLink multicast stays off, whatever the caller's environment says.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

OFF = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
GRACE = 3.0  # seconds that the others have once one process has ended


def run(
    module: str, names: Iterable[str], limit: float, each: float, world: int = 2
) -> dict[str, str]:
    """What became of each part: "right", "wrong: …", "hung or died" or "not run". Starts `world`
    processes of `python -m module --rank NAME...`; limit: seconds of all, each: of one part.
    """
    left, became, end = list(names), {}, time.monotonic() + limit
    while left and time.monotonic() < end:
        with tempfile.TemporaryDirectory() as room:
            state = Path(room, "state")
            _processes(module, left, state, world, each, end)
            said = state.read_text().splitlines() if state.exists() else []
        found = dict(line.split("\t", 1) for line in said)
        became |= found
        left = [name for name in left if name not in found]
        if left and time.monotonic() < end:
            print(f"!! {left[0]} HUNG OR DIED (or its processes did); going on behind it")
            became[left.pop(0)] = "hung or died"
    return became | {name: "not run: no time left" for name in left}


def report(title: str, became: Mapping[str, str]) -> int:
    """Prints what became of each part. Returns the exit code: 0 where all are right."""
    print(f"\n== {title}: what became of each part")
    for name, what in became.items():
        print(f"  {name:<34} {what[:600]}")
    wrong = sum(what != "right" for what in became.values())
    print(f"== {len(became) - wrong} of {len(became)} are right")
    return int(wrong > 0)


def _processes(
    module: str, names: list[str], state: Path, world: int, each: float, end: float
) -> None:
    told = {"RANKS_STATE": str(state), "RANKS_EACH": str(each)}
    started = processes(module, ["--rank", *names], world, told)
    while all(p.poll() is None for p in started) and time.monotonic() < end:
        time.sleep(0.05)
    grace = min(end, time.monotonic() + GRACE)
    while any(p.poll() is None for p in started) and time.monotonic() < grace:
        time.sleep(0.05)
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def processes(
    module: str, arguments: list[str], world: int, told: Mapping[str, str] = {}, **options: Any
) -> list[subprocess.Popen]:
    """A process a rank, of `python -m module ARGUMENTS`. told: to its environment; options: of
    subprocess.Popen.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    env = os.environ | OFF | told
    env |= {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", module, *arguments]
    return [
        subprocess.Popen(command, env=env | {"RANK": str(r), "LOCAL_RANK": str(r)}, **options)
        for r in range(world)
    ]


def work(
    names: Iterable[str], parts: Mapping[str, Callable[..., Any]], place: Any, agree: Callable
) -> None:
    """One process: calls `parts[name](place)` of each name, which raises where something is wrong,
    and ends itself behind a part that takes too long. agree(failed): whether it failed on any rank.
    """
    rank, each = int(os.environ["RANK"]), float(os.environ["RANKS_EACH"])
    for name in names:
        faulthandler.dump_traceback_later(each, exit=True)
        began, wrong = time.monotonic(), ""
        try:
            parts[name](place)
        except Exception as error:  # of a part: told, and the next one runs
            wrong = f"{type(error).__name__}: {str(error)[:1500]}"
            print(f"-- rank {rank}, {name}: {wrong}", flush=True)
            traceback.print_exc(limit=-4)
        # the others may wait for this rank for ever: then their limit ends them
        failed = agree(bool(wrong))
        faulthandler.cancel_dump_traceback_later()
        if rank == 0:
            result = "right" if not failed else f"wrong: {wrong or 'on another rank'}"
            line = " ".join(result.split())
            with open(os.environ["RANKS_STATE"], "a") as state:
                state.write(f"{name}\t{line}\n")
            print(f"   {name}: {line[:160]} ({time.monotonic() - began:.1f} s)", flush=True)


def end() -> None:
    """Ends the process without taking process groups down, which may wait for a peer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
