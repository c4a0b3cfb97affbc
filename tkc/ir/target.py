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
    tensor: int = 1024           # for cost models: dense 16-bit tensor-core operations a clock of a multiprocessor (a multiply-add is two),
    clock: float = 1.5           # GHz it keeps up under load,
    fabric: float = 46.0         # bytes a clock from the L2 cache to each multiprocessor, all of them busy,
    memory: float = 900.0        # GB/s of the device's memory that a long read reaches,
    cache: int = 32 << 20        # bytes of L2 that one kernel may count on


TARGETS = {t.name: t for t in (
    Target("sm_80", 80, "7.0", 166912, multiprocessors=108, tensor=2048, clock=1.35, memory=1400, cache=30 << 20),
    Target("sm_86", 86, "7.1", 101376, multiprocessors=84, clock=1.7, memory=700, cache=5 << 20),
    Target("sm_89", 89, "8.1", 101376, multiprocessors=128, fp8=True, clock=2.3, memory=850, cache=60 << 20),
    Target("sm_90a", 90, "8.0", 232448, multiprocessors=132, tma=True, wgmma=True, stmatrix=True, clusters=True, fp8=True,
           tensor=4096, clock=1.65, fabric=78.0, memory=3900, cache=40 << 20),
)}


def target(name: str) -> Target:
    """The target of that name; ValueError names those there are."""
    if name not in TARGETS: raise ValueError(f"unknown target {name!r}; there are {', '.join(TARGETS)} and cpu")
    return TARGETS[name]
