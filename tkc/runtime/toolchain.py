"""What every compilation depends on, as fields: tkc itself and what it stands on, variables of the
environment, the processor of the host. `digest` hashes fields.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

RUN_TIME = (
    "TKC_CACHE",
    "TKC_CACHE_DIR",
    "TKC_DEBUG",
    "TKC_DUMP",
    "TKC_INTERPRET",
    "TKC_SIM",
    "TKC_TARGET",
    "TKC_VALIDATE",
)  # variables that no compilation reads


def digest(fields: Iterable[tuple[str, bytes]]) -> str:
    """A hash of fields, each a label and bytes, with their lengths, so that no two lists of fields
    run together.
    """
    h = hashlib.sha256()
    for label, data in fields:
        for part in (label.encode(), data):
            h.update(len(part).to_bytes(8, "little"))
            h.update(part)
    return h.hexdigest()


@cache
def toolchain() -> tuple[tuple[str, bytes], ...]:
    """tkc's own content and the versions of what it stands on; nothing is imported for it."""
    from tkc.devices import own_files

    fields = [
        ("tkc", package_hash().encode()),
        ("python", sys.version.encode()),
        *((p.name, p.read_bytes()) for p in own_files()),
    ]
    for name in ("xdsl", "llvmlite"):
        spec = importlib.util.find_spec(name)
        places = spec and spec.submodule_search_locations
        folder = Path(next(iter(places))).parent if places else None
        fields.append(
            (
                name,
                (
                    ",".join(
                        sorted(p for p in os.listdir(folder) if p.startswith(f"{name}-"))
                    ).encode()
                    if folder
                    else b"absent"
                ),
            )
        )
    return tuple(fields)


# folders of tkc that only call the compiler
OF_CALLERS = ("tools", "kernels")


@cache
def package_hash() -> str:
    """Of every source file of tkc that can change what is compiled."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(
        [
            *(p for p in root.rglob("*.py") if p.relative_to(root).parts[0] not in OF_CALLERS),
            *(root / "devices").glob("*.json"),
        ]
    )
    return digest((str(p.relative_to(root)), p.read_bytes()) for p in files)


def is_installed(file: str | None) -> bool:
    """Whether a file was installed, by pip or with the system."""
    folders = Path(file).parts if file else ()
    return not {"site-packages", "dist-packages"}.isdisjoint(folders)


def environment() -> list[tuple[str, bytes]]:
    """The TKC_* variables that a compilation may read."""
    return [
        (k, v.encode())
        for k, v in sorted(os.environ.items())
        if k.startswith("TKC_") and k not in RUN_TIME
    ]


@cache
def host_cpu() -> bytes:
    """The processor that CPU objects are made for."""
    import platform

    try:
        lines = [
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith(("flags", "Features", "model name"))
        ]
    except OSError:
        lines = []
    return "\n".join([platform.machine(), platform.processor(), *sorted(set(lines))]).encode()
