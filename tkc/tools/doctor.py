"""`tkc doctor`: what is installed here, what is missing, and how to get it."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Finding:
    """One line: what was looked for, what there is (empty: nothing), and a way out. needed: tkc
    does not work without it.
    """

    what: str
    found: str
    remedy: str = ""
    needed: bool = False


def examine() -> list[Finding]:
    """Everything tkc stands on, on this machine. Never raises."""
    out = [
        Finding(
            "Python",
            platform.python_version(),
            "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer",
            True,
        )
    ]
    for package, needed, why in (
        ("xdsl", True, ""),
        ("llvmlite", True, ""),
        ("numpy", True, ""),
        ("ml_dtypes", True, ""),
        ("cuda-bindings", False, "needed to launch on a GPU"),
        ("torch", False, "one source of GPU arrays"),
        ("cupy", False, "another source of GPU arrays"),
    ):
        out.append(
            Finding(
                package,
                _version(package),
                f"pip install {package}{f' ({why})' if why else ''}",
                needed,
            )
        )
    return [*out, *_tools(), *_gpu(), _cache()]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "installed" if importlib.util.find_spec(package.replace("-", "_")) else ""


def _tools() -> list[Finding]:
    from tkc.codegen.ptx import ptxas

    out = []
    for tool, package in (("ptxas", "nvidia-cuda-nvcc"), ("nvdisasm", "nvidia-cuda-nvdisasm")):
        path = ptxas.find(tool)
        try:
            text = f"{ptxas.version(path)} at {path}" if path else ""
        except OSError as e:
            text = f"{path} does not run: {e.strerror}"
        out.append(
            Finding(
                tool, text, f"pip install {package} (for .resources and .sass; launches do without)"
            )
        )
    return out


def _gpu() -> list[Finding]:
    from tkc.errors import DeviceError
    from tkc.runtime import driver

    try:
        version = driver.check(driver.api().cuDriverGetVersion(), "asking for the driver's version")
        out = [Finding("CUDA driver", f"{version // 1000}.{version % 1000 // 10}")]
        for n in range(driver.count()):
            c = driver.capability(n)
            try:
                target = f"compiled for as {driver.planned_for(n)}"
            except DeviceError as e:
                target = str(e)
            out.append(
                Finding(
                    f"cuda:{n}",
                    f"{driver.name(n)}, sm_{c}, {driver.attribute(n, 'MULTIPROCESSOR_COUNT')}"
                    f" multiprocessors, {target}",
                )
            )
        return out
    except DeviceError as e:
        return [Finding("GPU", "", f"{e} (kernels run on the CPU meanwhile)")]


def _cache() -> Finding:
    from tkc.errors import CacheError
    from tkc.runtime import cache

    disk = cache.disk()
    if disk is None:
        return Finding("disk cache", "turned off by TKC_CACHE=0")
    try:
        disk.check()
    except CacheError as e:
        return Finding("disk cache", "", str(e))
    sizes = [os.path.getsize(p) for p in disk.root.glob("*/*.tkc")]
    return Finding("disk cache", f"{disk.root}, {len(sizes)} entries, {sum(sizes) / 2**20:.1f} MiB")


def doctor(console: Console) -> int:
    """Prints the findings; 1 if something needed is missing."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), show_header=False)
    findings = examine()
    for f in findings:
        mark = "[green]ok[/]" if f.found else "[red]missing[/]" if f.needed else "[yellow]none[/]"
        table.add_row(mark, f.what, f.found or f.remedy)
    console.print(table)
    return int(any(f.needed and not f.found for f in findings))
