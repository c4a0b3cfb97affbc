"""A plan: every choice the compiler makes about a kernel, as frozen data. The plan pass makes it; later passes realise it.

Dots and loads are counted in the order in which they stand in the program (a walk, outside in). That order is the same until
select-layouts has realised them, so a number is name enough.

    Plan(warps=8, stages=3,
         dots=(DotPlan("mma", (4, 2)),),                  mma.sync, 4 warps along m and 2 along n
         loads=(LoadPlan("async", 16), LoadPlan("async", 16)))
"""
from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class DotPlan:
    """How one dot is computed.

    instruction: "mma" (mma.sync), "wgmma", or "fma" (one multiply-add at a time).
    warps: how many warps, or warpgroups for wgmma, part m and n among them.
    a, b: where the operands come from, "registers" or "shared" (wgmma reads shared memory itself).
    chunk: fma only: so many k are held in registers at once.
    swap: computed as its own transpose (bᵀ aᵀ)ᵀ, which puts a thin m on the side that has no minimum.
    """
    instruction: str
    warps: tuple[int, int] = (1, 1)
    a: str = "registers"
    b: str = "registers"
    chunk: int = 0
    swap: bool = False


@dataclass(frozen=True)
class LoadPlan:
    """How one load gets its block.

    path: "registers" (straight), "shared" (copied to shared memory, then read) or "async" (the same, in a ring that runs ahead).
    vector: bytes of one thread's access.  multicast: the axis of the cluster whose blocks share the copy, or -1.
    """
    path: str = "registers"
    vector: int = 0
    multicast: int = -1


@dataclass(frozen=True)
class Plan:
    """Choices for a whole kernel; the defaults are those of one role, one program a block."""
    warps: int = 4                                  # compute warps of a program
    stages: int = 1                                 # of each ring
    dots: tuple[DotPlan, ...] = ()                  # one a dot, in program order
    loads: tuple[LoadPlan, ...] = ()                # one a load, in program order
    roles: str = "one"                              # "one", "cooperative" or "pingpong"
    registers: tuple[int, int] | None = None        # of a producer's and a consumer's thread
    programs: int = 1                               # at once in a block (2: ping-pong between programs)
    cluster: tuple[int, int] = (1, 1)               # blocks along the first two program axes
    raster: int = 1                                 # programs of axis 0 that stand together before axis 1 moves on
    persistent: bool = False                        # a block takes one program after the other
    split_k: int = 1                                # programs that share one output block, each a part of k
    epilogue: str = "direct"                        # stores of accumulators: "direct", "shared" or "tma"
    decisions: tuple[str, ...] = field(default=(), compare=False)   # what, why, and what was rejected

    def to_text(self) -> str:
        """One line of JSON; `from_text` reads it back."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> Plan:
        data = json.loads(text)
        pair = lambda v: None if v is None else tuple(v)
        dots = tuple(DotPlan(**{**d, "warps": tuple(d["warps"])}) for d in data["dots"])
        loads = tuple(LoadPlan(**d) for d in data["loads"])
        return Plan(**{**data, "dots": dots, "loads": loads, "registers": pair(data["registers"]), "cluster": tuple(data["cluster"]),
                       "decisions": tuple(data["decisions"])})
