"""From the start of a Python process to the PTX of `matmul`, with an empty and with a filled disk
cache; from the trace to the cubin of products and attention, in processes that compile for the
first time. `python -m benchmarks.compile_time` shows how the time grows with the program, without
a GPU; `--write` writes that to benchmarks/results/compile_time.md.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

import tkc
from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner
from tkc.runtime.jit import JitFunction

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "compile_time.md"
PROGRAM = """
import numpy as np, ml_dtypes
from matmul import matmul
a, b, c = (np.zeros((1024, 1024), ml_dtypes.bfloat16) for _ in range(3))
ptx = matmul.compile(a, b, c, target={target!r}).ptx
assert ".entry" in ptx
"""


COLD = """
import json, os, time
from {module} import {kernel} as kernel
def clocks(): return time.perf_counter(), sum(os.times()[:4])
begin = clocks()
compiled = kernel.compile({arguments}, target="sm_90a")
cubin = compiled.resources.cubin
end = clocks()
assert cubin[:4] == b"\\x7fELF"
steps = sum(seconds for _, seconds in compiled.times)
planned = sum(seconds for name, seconds in compiled.times if name in {planning})
found = dict(wall=end[0] - begin[0], processor=end[1] - begin[1], steps=steps, planned=planned)
print(json.dumps(found))
"""
# The steps that choose a kernel's schedule and write it.
PLANNING = (
    "plan",
    "rotate-loops",
    "schedule-programs",
    "stagger-programs",
    "fetch-ahead",
    "pipeline-async-copies",
    "schedule-warpgroups",
)
HEADS = "*['bf16[1, 16, 4096, 128]'] * 4, 'f32', D=128"
GRADIENTS = (
    "*['bf16[16, 4096, 128]'] * 4, *['f32[16, 4096]'] * 2, 'f32[16, 4096, 128]',"
    " *['bf16[16, 4096, 128]'] * 2, 'f32', 64, 128, 128"
)


@dataclass(frozen=True)
class Program:
    """A kernel of a module, its arguments, and the seconds that its compilation, and planning and
    scheduling of it, may take.
    """

    module: str
    kernel: str
    arguments: str
    whole: float
    planned: float


PROGRAMS = {
    "matmul": Program("matmul", "matmul", "*['bf16[4096, 4096]'] * 3", 0.8, 0.15),
    "attention": Program("attention", "attention", HEADS + ", CAUSAL=False", 1.5, 0.5),
    "attention, causal": Program("attention", "attention", HEADS + ", CAUSAL=True", 1.5, 0.5),
    "attention, gradients": Program(
        "benchmarks.plain_gradients", "gradients_added", GRADIENTS, 4.0, 1.5
    ),
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
    program = PROGRAMS[name]
    source = COLD.format(
        module=program.module,
        kernel=program.kernel,
        arguments=program.arguments,
        planning=PLANNING,
    )
    folder, last, asked = Path(tempfile.mkdtemp(prefix="tkc-cache-")), {}, set()

    def part(key: str) -> float:
        if not last or key in asked:
            shutil.rmtree(folder, ignore_errors=True)
            last.update(json.loads(start(source, folder)))
            asked.clear()
        asked.add(key)
        return last[key]

    names = {
        "wall": "trace to cubin",
        "processor": "of it, processor time",
        "steps": "of it, steps to PTX",
        "planned": "of it, planning and scheduling",
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
        figures=(
            harness.time_at_most(names["wall"], program.whole, f"{program.whole} s at most"),
            harness.time_at_most(
                names["planned"],
                program.planned,
                f"planning and scheduling: {program.planned} s at most",
            ),
        ),
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


# ---- growth
@tkc.jit
def steps(a, n: tkc.constexpr):
    """Dependent element-wise steps, which Python's loop unrolls."""
    v = tkc.load(a, (0,), (256,))
    for i in range(n):
        v = v * 1.5 + i
    tkc.store(a, (0,), v)


@tkc.jit
def dots(a, b, c, n: tkc.constexpr):
    """Dots in one loop, each with operands of its own."""
    sums = [tkc.zeros((64, 64)) for _ in range(n)]
    for k in range(0, a.shape[1], 32):
        for i in range(n):
            left = tkc.load(a, (64 * i, k), (64, 32))
            sums[i] = tkc.dot(left, tkc.load(b, (k, 64 * i), (32, 64)), sums[i])
    for i in range(n):
        tkc.store(c, (64 * i, 0), sums[i])


@tkc.jit
def chained(a, b, c, n: tkc.constexpr):
    """Dots in one loop, each of the result of the one before."""
    total = tkc.zeros((64, 64))
    for k in range(0, a.shape[1], 64):
        x = tkc.load(a, (0, k), (64, 64))
        for i in range(n):
            x = tkc.dot(x, tkc.load(b, (k, 64 * i), (64, 64))).to(tkc.float16)
        total += x
    tkc.store(c, (0, 0), total)


HALF = "f16[512, 4096]", "f16[4096, 512]", "f32[512, 64]"
GROWTH = {
    steps: (("f32[256]",), (250, 500, 1000, 2000), 5.0),
    dots: (HALF, (1, 2, 4, 8), 3.0),
    chained: (HALF, (1, 2, 4, 8), 3.0),
}


def measured(kernel: JitFunction, count: int, target: str) -> tuple[float, float | None]:
    """Seconds of the processor that compiling takes, and seconds of ptxas."""
    arguments, *_ = GROWTH[kernel]
    os.environ["TKC_CACHE"] = "0"
    kernel.compile(*arguments, 3, target=target)  # imports are no part of it
    begin = time.process_time()
    compiled = kernel.compile(*arguments, count, target=target)
    took = time.process_time() - begin
    if compiled.ptx is None:
        return took, None
    from tkc.codegen.ptx.ptxas import assemble

    begin = time.perf_counter()
    assemble(compiled.ptx, target)
    return took, time.perf_counter() - begin


def growth() -> Iterator[str]:
    """The table, line by line."""
    yield "| kernel | target | operations | compiler | ptxas | asked of the largest |  |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for kernel, (_, counts, most) in GROWTH.items():
        for target in ("sm_90a", "sm_80", "cpu"):
            for count in counts:
                took, assembler = measured(kernel, count, target)
                last = count == counts[-1]
                asked = f"{most:g} s at most" if last else ""
                verdict = ("met" if took <= most else "MISSED") if last else ""
                ptxas = "" if assembler is None else f"{assembler:.2f} s"
                cells = [kernel.__name__, target, count, f"{took:.2f} s", ptxas, asked, verdict]
                yield f"| {' | '.join(map(str, cells))} |"


HEAD = """# How compile time grows with the program

Written by `python -m benchmarks.compile_time --write`; no GPU takes part. Seconds of one core that
the compiler takes from the trace to PTX, or to machine code, after its modules are imported; the
assembler's seconds beside them.

"""


@click.command()
@click.option("--write", is_flag=True, help="write benchmarks/results/compile_time.md")
def main(write: bool) -> None:
    """How compile time grows with the number of operations."""
    lines = []
    for line in growth():
        click.echo(line)
        lines.append(line)
    if write:
        RESULTS.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
