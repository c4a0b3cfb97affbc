"""`tkc triton FILE.py`: runs a user's script with tkc in Triton's place, and says a line about each
kernel that it launched: how it multiplies and copies, registers, spills, the time that the model
predicts, and on a GPU the time that it takes, beside Triton's where Triton is installed.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import tkc.triton
from tkc.errors import Error
from tkc.runtime import driver, timing
from tkc.runtime.arrays import describe
from tkc.tools import triton_itself
from tkc.triton.runtime.compiled import CompiledKernel
from tkc.triton.runtime.jit import observed

BUDGET = 0.5  # seconds of measuring a kernel
MICROSECONDS = 1e6


def run(path: str, arguments: Sequence[str], target: str, beside: bool = True) -> list[str]:
    """Runs a script as __main__; gives a line for each kernel and combination of arguments.
    beside: on a GPU the script runs once more, in a process where Triton itself is, if it is
    installed.
    """
    launched: dict[Any, tuple[CompiledKernel, int]] = {}

    def record(kernel: CompiledKernel) -> None:
        key = kernel.name, kernel.form
        launched[key] = kernel, launched.get(key, (kernel, 0))[1] + 1

    # looked for before tkc is in its place
    there = beside and driver.available() and triton_itself.is_installed()
    tkc.triton.install()
    before, sys.argv = sys.argv, [path, *arguments]
    try:
        with observed(record):
            runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv = before
        tkc.triton.uninstall()
    theirs = triton_itself.times(path, arguments) if there and launched else {}
    return [line(kernel, count, target, theirs) for kernel, count in launched.values()]


def line(
    kernel: CompiledKernel, count: int, target: str, theirs: dict[str, float] | None = None
) -> str:
    """What a kernel became on a GPU, and its times. theirs: Triton's seconds by a launch's name."""
    launches = f"{kernel.name}: {count} launch{'es' if count > 1 else ''}"
    try:
        compiled = kernel.compiled_for(target)
        found = compiled.resources
    except Error as e:
        return f"{launches}; does not compile for {target}: {str(e).splitlines()[0]}"
    roles = next((d for d in compiled.decisions if d.startswith("plan: roles")), "")
    ptx = compiled.ptx or ""
    parts = [
        _multiplies(ptx),
        "tensor maps" if "cp.async.bulk.tensor" in ptx else "",
        "producer and consumers" if roles else "one role",
        f"{found.registers} registers",
        f"{found.spill_stores + found.spill_loads} bytes spilled",
        *_times(kernel, target, theirs or {}),
    ]
    return f"{launches}; {', '.join(p for p in parts if p)}"


def _multiplies(ptx: str) -> str:
    for word, name in (("wgmma.mma_async", "wgmma"), ("mma.sync", "mma.sync")):
        if word in ptx:
            return name
    return ""


def _times(kernel: CompiledKernel, target: str, theirs: dict[str, float]) -> list[str]:
    """Of the launch that was recorded last; a model that has no time for it says none."""
    found = {}
    with suppress(Error):
        found["predicted"] = kernel.predicted(target)
    if kernel.compiled.target != "cpu":
        arrays = (v for v in kernel.arguments.values() if hasattr(v, "dtype"))
        device = next(describe(v).device for v in arrays)
        found["measured"] = timing.measure([kernel.prepared()], device, BUDGET)[0]
        name = triton_itself.named(kernel.function.__name__, kernel.arguments)
        found["Triton"] = theirs.get(name)
    return [f"{what} {s * MICROSECONDS:.1f} us" for what, s in found.items() if s is not None]
