"""The machines code is made for, as data."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Limits and engines of a GPU architecture."""
    name: str                    # "sm_90a"
    capability: int              # 90
    ptx: str                     # lowest PTX ISA version whose instructions we use
    shared_bytes: int            # dynamic shared memory one block may have
    registers: int = 65536       # 32-bit registers of a multiprocessor
    multiprocessors: int = 108   # a typical device, for cost models where no device is asked
    tma: bool = False
    wgmma: bool = False
    stmatrix: bool = False
    clusters: bool = False
    fp8: bool = False            # e4m3/e5m2 conversions and mma


TARGETS = {t.name: t for t in (
    Target("sm_80", 80, "7.0", 166912, multiprocessors=108),
    Target("sm_86", 86, "7.1", 101376, multiprocessors=84),
    Target("sm_89", 89, "8.1", 101376, multiprocessors=128, fp8=True),
    Target("sm_90a", 90, "8.0", 232448, multiprocessors=132, tma=True, wgmma=True, stmatrix=True, clusters=True, fp8=True),
)}


def target(name: str) -> Target:
    """The target of that name; ValueError names those there are."""
    if name not in TARGETS: raise ValueError(f"unknown target {name!r}; there are {', '.join(TARGETS)} and cpu")
    return TARGETS[name]
