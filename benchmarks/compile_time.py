"""From the start of a Python process to the PTX of `matmul`, with an empty and with a filled disk
cache; from the trace to the cubin of products and attention, in processes that compile for the
first time.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import numpy as np, ml_dtypes
from matmul import matmul
a, b, c = (np.zeros((1024, 1024), ml_dtypes.bfloat16) for _ in range(3))
ptx = matmul.compile(a, b, c, target={target!r}).ptx
assert ".entry" in ptx
"""


COLD = """
import json, os, time
from {module} import {module} as kernel
def clocks(): return time.perf_counter(), sum(os.times()[:4])
begin = clocks()
compiled = kernel.compile({arguments}, target="sm_90a")
cubin = compiled.resources.cubin
end = clocks()
assert cubin[:4] == b"\\x7fELF"
steps = sum(seconds for _, seconds in compiled.times)
print(json.dumps(dict(wall=end[0] - begin[0], processor=end[1] - begin[1], steps=steps)))
"""
HEADS = "*['bf16[1, 16, 4096, 128]'] * 4, 'f32', D=128"
PROGRAMS = {
    "matmul": ("matmul", "*['bf16[4096, 4096]'] * 3", 0.8),
    "attention": ("attention", HEADS + ", CAUSAL=False", 1.5),
    "attention, causal": ("attention", HEADS + ", CAUSAL=True", 1.5),
}


def environment(cache: Path) -> dict[str, str]:
    """A process's variables: this checkout, the cache; bytecode is kept, as an installed package
    has it.
    """
    path = os.pathsep.join(
        [str(ROOT), str(ROOT / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
        "PYTHONPATH": path,
        "TKC_CACHE_DIR": str(cache),
    }


def start(program: str, cache: Path) -> str:
    """What one process prints; its standard error is shown if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(cache), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(harness.last_words(done.stderr, done.returncode))
    return done.stdout


def contests(seed: int) -> Iterator[Contest]:
    yield contest(seed)
    for name in PROGRAMS:
        yield cold(name)


def cold(name: str) -> Contest:
    """Trace to cubin in a process that has imported the kernel and nothing else, an empty cache,
    the assembler included; of it, what the steps take once the compiler is imported. On a machine
    of few cores with other work the processor's time says more than the clock's; on one of many,
    NumPy's threads that begin are in it.
    """
    module, arguments, most = PROGRAMS[name]
    folder, last, asked = Path(tempfile.mkdtemp(prefix="tkc-cache-")), {}, set()

    def part(key: str) -> float:
        if not last or key in asked:
            shutil.rmtree(folder, ignore_errors=True)
            last.update(json.loads(start(COLD.format(module=module, arguments=arguments), folder)))
            asked.clear()
        asked.add(key)
        return last[key]

    names = {
        "wall": "trace to cubin",
        "processor": "of it, processor time",
        "steps": "of it, steps to PTX",
    }
    return Contest(
        "compile-cold-" + name.replace(", ", "-"),
        f"Trace to cubin of {name} for sm_90a, a cold process",
        tuple(
            Contestant(
                text,
                lambda key=key: Runner(lambda: part(key)),
                "ours" if key == "wall" else "bound",
            )
            for key, text in names.items()
        ),
        lambda run: run(),
        "By the clocks of one process",
        figures=(harness.time_at_most("trace to cubin", most, f"{most} s at most"),),
    )


def contest(seed: int, target: str = "sm_80") -> Contest:
    folder = Path(tempfile.mkdtemp(prefix="tkc-cache-"))

    def cold() -> None:
        shutil.rmtree(folder / "cold", ignore_errors=True)
        start(PROGRAM.format(target=target), folder / "cold")

    def warm() -> Runner:
        start(PROGRAM.format(target=target), folder / "warm")
        return Runner(lambda: start(PROGRAM.format(target=target), folder / "warm"))

    imports = "import numpy, ml_dtypes, tkc"
    return Contest(
        "compile-time",
        f"Process start to the PTX of matmul for {target}",
        (
            Contestant("tkc, empty cache", lambda: Runner(cold), "ours"),
            Contestant("tkc, filled cache", warm, "ours"),
            Contestant(
                imports,
                lambda: Runner(
                    lambda: subprocess.run([sys.executable, "-c", imports], cwd=ROOT, check=True)
                ),
                "bound",
            ),
        ),
        lambda run: harness.host_timer(run, 1),
        "Wall time of one process",
        figures=(
            harness.time_at_most("tkc, empty cache", 1.2, "empty cache: 1.2 s at most"),
            harness.time_at_most("tkc, filled cache", 0.5, "filled cache: 0.5 s at most"),
        ),
    )
