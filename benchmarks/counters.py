"""python -m benchmarks.counters: bytes that kernels move, by the memory's own counters (Nsight
Compute), beside the bytes that they have to.

    python -m benchmarks.counters                              every case below
    python -m benchmarks.counters softmax-131072 --most 1.02
    python -m benchmarks.counters --show softmax-131072        the ncu command, for a machine where
                                                               it runs under other rights

Each case is a process of its own under `ncu`, which flushes the caches before the kernel; its array
is larger than the L2 cache, so a row that were read twice would show. ncu is looked for on PATH and
where NVIDIA installs it; TKC_NCU names another. Where the driver keeps the counters to
administrators (ERR_NVGPUCTRPERM), run it as root or with NVreg_RestrictProfilingToAdminUsers=0.
Exit status: 1 if a kernel reads more than `--most` times its bytes, 2 if nothing could be counted.
"""

from __future__ import annotations

import csv
import glob
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

READ, WRITTEN, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
PLACES = (
    "/usr/local/cuda*/bin/ncu",
    "/opt/nvidia/nsight-compute/*/ncu",
    "/opt/nvidia/nsight-compute/*/target/linux-desktop-*/ncu",
)


@dataclass(frozen=True)
class Case:
    """An operation of memory_bound.py at a shape: the kernel that counts, and the bytes it has to
    read and to write for each element (of a norm the weights come on top, 2 of each column).
    """

    operation: str
    shape: tuple[int, ...]
    kernel: str
    read: int
    written: int

    def bytes(self) -> tuple[int, int]:
        n = 1
        for extent in self.shape:
            n *= extent
        return n * self.read, n * self.written


LONG = 2048, 131072
CASES = {
    "softmax-131072": Case("softmax", LONG, "_softmax", 2, 2),
    "layer_norm-131072": Case("layer_norm", LONG, "_norm", 2, 2),
    "rms_norm-131072": Case("rms_norm", LONG, "_norm", 2, 2),
    "cross_entropy-131072": Case("cross_entropy", LONG, "_cross_entropy", 2, 2),
    "softmax-4096": Case("softmax", (32768, 4096), "_softmax", 2, 2),
    "layer_norm_backward-4096": Case("layer_norm_backward", (32768, 4096), "_norm_backward", 4, 2),
    "cumsum": Case("cumsum", (1 << 30,), "_cumsum", 2, 2),
    "topk-131072": Case("topk", LONG, "_chunk_maxima", 2, 0),
}


def find() -> str | None:
    """ncu: TKC_NCU, on PATH, or the newest where NVIDIA installs it."""
    return (
        os.environ.get("TKC_NCU")
        or shutil.which("ncu")
        or next((p for place in PLACES for p in sorted(glob.glob(place), reverse=True)), None)
    )


def command(name: str, ncu: str) -> list[str]:
    return [
        ncu,
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--metrics",
        ",".join((READ, WRITTEN, TIME)),
        "--kernel-name",
        f"regex:^{CASES[name].kernel}$",
        "--launch-count",
        "1",
        sys.executable,
        "-m",
        "benchmarks.counters",
        "--run",
        name,
    ]


def counted(text: str) -> dict[str, float]:
    """The counters of the last kernel that ncu printed. Raises ValueError where there is none."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    # the row of units names no kernel
    rows = [row for row in csv.DictReader(lines) if row.get("Kernel Name")] if lines else []
    if not rows:
        raise ValueError(
            next(
                (
                    line
                    for line in reversed(text.splitlines())
                    if "ERR_" in line or "error" in line.lower() or "No kernels" in line
                ),
                "ncu printed no kernel",
            )
        )
    return {name: float(rows[-1][name].replace(",", "")) for name in (READ, WRITTEN, TIME)}


def run(name: str) -> None:
    """In a child process: the operation once."""
    import torch

    from benchmarks import memory_bound
    from tkc import kernels

    case, normal = CASES[name], memory_bound.normal_of(0)
    if case.operation == "topk":
        kernels.topk(normal(*case.shape), 64)
    else:
        build = next(b for name, _, b in memory_bound.OPERATIONS if name == case.operation)
        build(normal, *case.shape)[2]()
    torch.cuda.synchronize()


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option(
    "--most",
    type=float,
    default=1.02,
    show_default=True,
    help="Bytes read over those that have to be.",
)
@click.option("--run", "child", type=click.Choice(list(CASES)), hidden=True)
@click.option("--show", is_flag=True, help="Print the commands only.")
def main(names: tuple[str, ...], most: float, child: str | None, show: bool) -> None:
    """Counts the bytes that kernels move."""
    if child:
        return run(child)
    chosen, ncu, console = names or tuple(CASES), find(), Console(soft_wrap=True)
    if show:
        for name in chosen:
            click.echo(shlex.join(command(name, ncu or "ncu")))
        return
    if ncu is None:
        raise click.ClickException(
            "ncu is not on PATH nor where NVIDIA installs it; install Nsight Compute or set TKC_NCU"
        )
    table, good, found = (
        Table(
            "case",
            "read",
            "x of the array",
            "written",
            "x",
            "us",
            title="bytes by the counters",
            title_justify="left",
        ),
        True,
        0,
    )
    for name in chosen:
        done = subprocess.run(command(name, ncu), capture_output=True, text=True)
        try:
            got = counted(done.stdout + done.stderr)
        except ValueError as error:
            table.add_row(name, str(error))
            continue
        found += 1
        read, written = CASES[name].bytes()
        good = good and got[READ] <= most * read
        table.add_row(
            name,
            f"{got[READ] / 1e6:.1f} MB",
            f"{got[READ] / read:.4f}",
            f"{got[WRITTEN] / 1e6:.1f} MB",
            f"{got[WRITTEN] / written:.4f}" if written else "",
            f"{got[TIME] / 1e3:.1f}",
        )
    console.print(table)
    sys.exit(2 if not found else not good)


if __name__ == "__main__":
    main()
