"""From the start of a process to the first result of a kernel that the disk cache has: on the CPU
and, where there is one, on a GPU. What torch takes to be imported and CUDA to begin is shown apart.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.compile_time import environment
from benchmarks.harness import Contest, Contestant, Figure, Runner

SECONDS = 0.6
CPU = """
import numpy as np
mark("import numpy")
from vector_add import add
mark("import tkc")
x, out = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
add[1](x, x, out, 1000)
mark("first result")
assert (out == 2 * x).all()
"""
GPU = """
import torch
mark("import torch")
torch.zeros(1, device="cuda").item()
mark("CUDA begins")
from {module} import {kernel}
mark("import tkc")
{arrays}
torch.cuda.synchronize()
mark("arrays")
{launch}
torch.cuda.synchronize()
mark("first result")
assert {right}
"""
ADD = {
    "module": "vector_add",
    "kernel": "add",
    "arrays": "x, out = torch.arange(1000., device='cuda'), torch.zeros(1000, device='cuda')",
    "launch": "add[1](x, x, out, 1000)",
    "right": "torch.equal(out, 2 * x)",
}
PRODUCT = {
    "module": "matmul",
    "kernel": "matmul",
    "arrays": (
        "a, c = torch.eye(1024, device='cuda', dtype=torch.bfloat16), torch.zeros(1024, 1024,"
        " device='cuda', dtype=torch.bfloat16)"
    ),
    "launch": "matmul[(8, 8)](a, a, c)",
    "right": "torch.equal(a, c)",
}
ROWS = """
import json, sys, time
times = [("", float(sys.argv[1]))]
def mark(name): times.append((name, time.time()))
mark("python begins")
exec(sys.argv[2])
print(json.dumps({name: after - before for (_, before), (name, after) in zip(times, times[1:])}))
"""


class Processes:
    """Processes of one program, each with a filled cache. `seconds(…)` sums parts of one; every sum
    is asked once of each process, in any order.
    """

    def __init__(self, program: str):
        self.program, self.folder, self.parts, self.asked = (
            program,
            Path(tempfile.mkdtemp(prefix="tkc-cache-")),
            None,
            set(),
        )

    def start(self) -> dict[str, float]:
        done = subprocess.run(
            [sys.executable, "-c", ROWS, repr(time.time()), self.program],
            env=environment(self.folder),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(harness.last_words(done.stderr, done.returncode))
        return json.loads(done.stdout)

    def seconds(self, name: str, wanted: Callable[[str], bool]) -> float:
        if self.parts is None or name in self.asked:
            if self.parts is None:
                self.start()  # fills the cache
            self.parts, self.asked = self.start(), set()
        self.asked.add(name)
        return sum(t for part, t in self.parts.items() if wanted(part))

    def __del__(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def contest(name: str, title: str, program: str, apart: tuple[str, ...]) -> Contest:
    processes = Processes(program)

    def part(name, wanted, role):
        return Contestant(name, lambda: Runner(lambda: processes.seconds(name, wanted)), role)

    return Contest(
        name,
        title,
        (
            part("tkc", lambda p: p not in apart, "ours"),
            *(
                part(p, lambda q, p=p: q == p, "bound")
                for p in ("python begins", "import tkc", "first result", *apart)
            ),
        ),
        lambda run: run(),
        "Wall time of one process, by its own marks; tkc: all but " + ", ".join(apart),
        figures=(
            Figure(
                f"the rest of the process: {SECONDS} s at most",
                ("tkc",),
                lambda t: t["tkc"],
                SECONDS,
                at_least=False,
                seconds=True,
            ),
        ),
    )


def contests(seed: int) -> Iterator[Contest]:
    from benchmarks.run import has_gpu

    yield contest(
        "warm-start-cpu",
        "A process to the first result of a cached kernel, CPU",
        CPU,
        ("import numpy",),
    )
    if not has_gpu():
        return
    apart = "import torch", "CUDA begins", "arrays"
    yield contest(
        "warm-start-add",
        "A process to the first result of a cached vector add, GPU",
        GPU.format(**ADD),
        apart,
    )
    yield contest(
        "warm-start-product",
        "A process to the first result of a cached product of 1024³, GPU",
        GPU.format(**PRODUCT),
        apart,
    )
