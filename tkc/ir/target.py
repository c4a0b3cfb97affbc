"""The machines code is made for, as data."""

from __future__ import annotations

from dataclasses import dataclass

LINE = 128  # bytes of a line of the caches of every GPU here


@dataclass(frozen=True)
class Engines:
    """What a multiprocessor's engines do, for timelines (tkc/timing/timeline.py). Clocks are its
    own; a *quarter* of a multiprocessor has one warp of each warpgroup.

    Defaults are Hopper's. Sources: [G] CUDA C++ programming guide, table of arithmetic throughput
    (results a clock and multiprocessor); [A] ../shared/prototypes/ATTENTION.md, clocks read inside
    kernels on an H200; [C] calibrated with benchmarks/results of 2026-11-21, one number for all
    rows.
    """

    # clocks of a quarter for a warp's float32 add, multiply or multiply-add [G: 128 a clock]
    fma: float = 1.0
    # … integer, logic, comparison, selection, minimum, conversion to 16 bits of a pair [G: 64]
    alu: float = 2.0
    # … exp2, log2, reciprocal, square root, tanh, sine [G: 16, which is 8; A: 64 of them take 524]
    mufu: float = 8.2
    lsu: float = 4.0  # … shuffle, or an instruction to shared or global memory [G: 32]
    shared: float = 128.0  # bytes a clock that shared memory moves
    # vector work takes so much longer while the tensor cores run: they share the ports of the
    # registers [A: 1.4 to 1.7]
    crowding: float = 1.5
    # clocks of dots that may wait for the tensor core when issuing the next one must wait too [A:
    # issue returns 400 before the end]
    lead: float = 400.0
    # clocks from a dot's end on the tensor core to its registers [A: a lone warpgroup takes 1100
    # for dots of 1024]
    result: float = 60.0
    turn: float = 40.0  # … from one side of a barrier, full or empty, to the other
    wait: float = 50.0  # … of setting up a wait for a copy [A: 50 of chain]
    copy: float = 700.0  # … from asking for a copy to having it, out of the L2 cache
    atomic: float = 700.0  # … of claiming a program
    drain: float = 500.0  # … until a copy out has read its source
    # … before a block's first operation and after its last [C: as in tkc/passes/planning/cost.py]
    kernel: float = 6000.0
    begin: float = 1.5e-6  # seconds round a kernel
    top: float = 1.98  # GHz of a cool multiprocessor;
    # under power's limit, 700 W, this / cube root of (1 + `work` · the tensor cores' share of the
    # time): power grows with the cube of the clock, as the voltage
    heat: float = 2.12
    # goes with it, and dots of normal numbers draw 2.7 times what the rest does [A: 1.45 GHz at
    # 0.80 busy, 1.39 at 0.95]
    work: float = 2.7


@dataclass(frozen=True)
class Target:
    """Limits and engines of a GPU architecture."""

    name: str  # "sm_90a"
    capability: int  # 90
    ptx: str  # lowest PTX ISA version whose instructions we use
    shared_bytes: int  # dynamic shared memory one block may have
    registers: int = 65536  # 32-bit registers of a multiprocessor
    threads: int = 2048  # of a multiprocessor at once
    multiprocessors: int = 108  # of a typical device, where the cost model has no other
    tma: bool = False
    wgmma: bool = False
    stmatrix: bool = False
    clusters: bool = False
    fp8: bool = False  # e4m3/e5m2 conversions and mma
    # for cost models: dense 16-bit tensor-core operations a clock of a multiprocessor (a
    # multiply-add is two),
    tensor: int = 1024
    clock: float = 1.5  # GHz it keeps up under load,
    # bytes a clock from the L2 cache to each multiprocessor, all of them busy,
    fabric: float = 46.0
    memory: float = 900.0  # GB/s of the device's memory that a long read reaches,
    cache: int = 32 << 20  # bytes of L2 that one kernel may count on
    # multiprocessors that stand together, for a cluster's blocks are neighbours
    gpcs: tuple[int, ...] = ()
    engines: Engines = Engines()

    def clustered(self, size: int) -> int:
        """Multiprocessors that clusters of so many blocks, one on each, can use at once."""
        return sum(n // size * size for n in self.gpcs or (self.multiprocessors,))

    def at_entry(self, threads: int) -> int:
        """32-bit registers that ptxas gives each thread of a block of so many, where one block
        fills a multiprocessor. setmaxnreg moves these between warpgroups; what the division leaves
        of the multiprocessor's (4096 of 640 threads) no block can claim."""
        return min(255, self.registers // threads // 8 * 8)


TARGETS = {
    t.name: t
    for t in (
        Target(
            "sm_80",
            80,
            "7.0",
            166912,
            multiprocessors=108,
            tensor=2048,
            clock=1.35,
            memory=1400,
            cache=30 << 20,
        ),
        Target(
            "sm_86",
            86,
            "7.1",
            101376,
            threads=1536,
            multiprocessors=84,
            clock=1.7,
            memory=700,
            cache=5 << 20,
        ),
        Target(
            "sm_89",
            89,
            "8.1",
            101376,
            threads=1536,
            multiprocessors=128,
            fp8=True,
            clock=2.3,
            memory=850,
            cache=60 << 20,
        ),
        Target(
            "sm_90a",
            90,
            "8.0",
            232448,
            multiprocessors=132,
            tma=True,
            wgmma=True,
            stmatrix=True,
            clusters=True,
            fp8=True,
            tensor=4096,
            clock=1.65,
            fabric=78.0,
            memory=3900,
            cache=40 << 20,
            gpcs=(18, 18, 18, 18, 18, 18, 16, 8),
        ),
    )
}


def target(name: str) -> Target:
    """The target of that name; ValueError names those there are."""
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}; there are {', '.join(TARGETS)} and cpu")
    return TARGETS[name]
