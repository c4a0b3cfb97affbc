"""`tkc triton FILE.py`: runs a user's script with tkc in Triton's place, and says a line about each
kernel that it launched.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from typing import Any

import tkc.triton
from tkc.errors import Error
from tkc.triton.runtime.compiled import CompiledKernel
from tkc.triton.runtime.jit import observed


def run(path: str, arguments: Sequence[str], target: str) -> list[str]:
    """Runs a script as __main__; gives a line for each kernel and combination of arguments."""
    launched: dict[Any, tuple[CompiledKernel, int]] = {}

    def record(kernel: CompiledKernel) -> None:
        key = kernel.name, kernel.form
        launched[key] = kernel, launched.get(key, (kernel, 0))[1] + 1

    tkc.triton.install()
    before, sys.argv = sys.argv, [path, *arguments]
    try:
        with observed(record):
            runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv = before
        tkc.triton.uninstall()
    return [line(kernel, count, target) for kernel, count in launched.values()]


def line(kernel: CompiledKernel, count: int, target: str) -> str:
    """What a kernel became on a GPU: how it multiplies and copies, its registers and spills."""
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
    ]
    return f"{launches}; {', '.join(p for p in parts if p)}"


def _multiplies(ptx: str) -> str:
    for word, name in (("wgmma.mma_async", "wgmma"), ("mma.sync", "mma.sync")):
        if word in ptx:
            return name
    return ""
