"""The machines code is made for, as data: what an architecture has, and a device of it
(tkc/devices).

    target("sm_90a")                    code for sm_90a, planned for the architecture's usual device
    target("sm_90a:h100_pcie")          planned for the device of tkc/devices/h100_pcie.json
    target("sm_89:l4,multiprocessors=60")   for one like it, with what a driver says
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, gcd
from typing import Any

from tkc.devices import Assembler, Costs, Device, Engines, resolved
from tkc.errors import DeviceError

RESERVED_BYTES_OF_BLOCK = 1024  # of shared memory, by the hardware
LINE = 128  # bytes of a line of the caches of every GPU here
# bits of a row of an operand in shared memory that fills the widest swizzle, and bytes that wgmma
# reads, 256 bits deep: of 64 rows of its left operand, and of a column of its right one
SWIZZLE_BITS, LEFT_BYTES, RIGHT_BYTES = 1024, 2048, 32
# columns of an instruction of wgmma, at most, and registers that it needs beside its sums
WIDEST_DOT, REGISTERS_BESIDE_DOT = 256, 32
SECTOR = 32  # likewise of what memory and caches move at once
# bytes, of which rows of an array that a tensor map describes are multiples, and where a box begins
# in its rows: elsewhere the accelerator raises an illegal instruction. Of a row that ends elsewhere
# it writes as many bytes as make that up
ROW_ALIGNMENT = 16


def half_of(shared_bytes: int) -> int:
    """Bytes of shared memory that a block has where two share a multiprocessor, of those that one
    has alone: the hardware takes some for each.
    """
    return (shared_bytes + RESERVED_BYTES_OF_BLOCK) // 2 - RESERVED_BYTES_OF_BLOCK


@dataclass(frozen=True)
class Target:
    """Limits of a GPU architecture, and a device of it."""

    name: str  # "sm_90a"
    capability: int  # 90
    ptx: str  # lowest PTX ISA version whose instructions we use
    shared_bytes: int  # dynamic shared memory one block may have
    usual: str  # device for which code is planned unless told otherwise
    registers: int = 65536  # 32-bit registers of a multiprocessor
    threads: int = 2048  # of a multiprocessor at once
    tma: bool = False
    wgmma: bool = False
    stmatrix: bool = False
    clusters: bool = False
    fp8: bool = False  # e4m3/e5m2 conversions and mma
    bfloat16_sums: bool = False  # bfloat16 added and multiplied, also in memory

    @cached_property
    def device(self) -> Device:
        """What cost models and timelines know. Raises DeviceError where its file is bad."""
        return resolved(self.usual)

    @property
    def half_shared_bytes(self) -> int:
        """Of shared memory, what a block may have where two share a multiprocessor."""
        return half_of(self.shared_bytes)

    @property
    def engines(self) -> Engines:
        return self.device.engines

    @property
    def costs(self) -> Costs:
        return self.device.costs

    @property
    def assembler(self) -> Assembler:
        return self.device.assembler

    @property
    def multiprocessors(self) -> int:
        return self.device.chip.multiprocessors

    @property
    def tensor(self) -> int:
        """Dense 16-bit tensor-core operations a clock of a multiprocessor."""
        return self.device.chip.tensor

    @property
    def clock(self) -> float:
        """GHz it keeps up under load."""
        return self.device.rates.clock

    @property
    def fabric(self) -> float:
        """Bytes a clock from the L2 cache to each multiprocessor."""
        return self.device.rates.fabric

    @property
    def l2(self) -> float:
        """Bytes a clock from the L2 cache to all multiprocessors together."""
        return self.device.rates.l2

    @property
    def memory(self) -> float:
        """GB/s of the device's memory that a long read reaches."""
        return self.device.rates.memory

    @property
    def cache(self) -> int:
        """Bytes of L2 that one kernel may count on."""
        return self.device.rates.cache

    def clustered(self, size: int) -> int:
        """Multiprocessors that clusters of so many blocks, one on each, can use at once."""
        parts = self.costs.clustered[size - 1 : size] or (1.0,)
        most = int(self.multiprocessors * parts[0]) // size * size
        return min(most, sum(n // size * size for n in self.device.multiprocessors_of_gpcs))

    def neighbours(
        self,
        grid: Sequence[int],
        cluster: Sequence[int],
        raster: int,
        programs: float,
        parts: int = 1,
    ) -> tuple[float, float, float]:
        """Programs that a GPC has at once, on average, and in how many places along axes 0 and 1
        of the grid they stand: the L2 cache sends a GPC once what several of them ask for at once.
        Blocks fill one GPC after the other; clusters go to the GPCs in turn, of which the smallest
        is full before the others. programs: of a block; parts: blocks of a cluster that share one.
        """
        gpcs = len(self.device.multiprocessors_of_gpcs)
        places = self.multiprocessors / gpcs
        return _neighbours(places, gpcs, grid[0], (*cluster,), raster, programs, parts)

    def sent(self, programs: float, places: float) -> float:
        """The part of what programs of a GPC ask for that the L2 cache sends them, where they stand
        in so many places: each asks for what the others in its place do.
        """
        apart = min(programs, places) / programs
        return 1 - self.costs.together * (1 - apart)

    @staticmethod
    def beyond(grid: Sequence[int], cluster: Sequence[int], waves: float) -> float:
        """The share of the busiest multiprocessor's programs that are beyond the grid, and fill up
        clusters of its last rows and columns.
        """
        inside = 1.0
        for extent, size in zip(grid, cluster, strict=False):
            if extent % size:
                inside *= 1 - 1 / ceil(extent / size)
        whole = max(1, ceil(waves))
        return ceil(whole * (1 - inside)) / whole

    def crowded(self, times: Iterable[Any]) -> Any:
        """How long takes what several engines do at once, each so long alone: somewhat longer than
        the slowest, as they get in one another's way.
        """
        power = self.costs.crowd
        return sum(t**power for t in times) ** (1 / power)

    @staticmethod
    @lru_cache(None)
    def lines_of_row(row: int, pitch: int) -> float:
        """Lines that a row of at most a line's bytes touches on average, where rows are some
        multiple of `pitch` bytes apart.
        """
        offsets = range(0, LINE, gcd(pitch, LINE))
        return 1 + sum(at + row > LINE for at in offsets) / len(offsets)

    @staticmethod
    def cuts_sectors(pitch: int) -> bool:
        """Whether rows that are some multiple of `pitch` bytes apart may begin amid a sector."""
        return pitch % SECTOR != 0

    @staticmethod
    def sectors_of_row(row: int, pitch: int) -> float:
        """How many times a row's bytes the sectors have that it touches on average, where rows are
        some multiple of `pitch` bytes apart.
        """
        return 1 + SECTOR / 2 / row if Target.cuts_sectors(pitch) else 1.0

    @staticmethod
    def asked_of_line(row: int, pitch: int) -> float:
        """How often blocks side by side, whose rows have so many bytes, ask for one line."""
        return Target.lines_of_row(row, pitch) * LINE / row

    def dot_width(self, columns: int, unit: int, threads: int) -> int:
        """Columns of an instruction of wgmma, of which several make a dot of so many: the most for
        which each of a block's threads has registers. unit: of which they are a multiple.
        """
        most = min(WIDEST_DOT, 2 * (self.at_entry(threads) - REGISTERS_BESIDE_DOT))
        fitting = (n for n in range(most, 0, -1) if columns % n == 0 and n % unit == 0)
        return columns if columns <= most else next(fitting, columns)

    def at_entry(self, threads: int) -> int:
        """32-bit registers that ptxas gives each of so many threads, which fill a multiprocessor.
        setmaxnreg moves these between warpgroups; what the division leaves of the multiprocessor's
        (4096 of 640 threads) no block can claim."""
        return min(255, self.registers // threads // 8 * 8)


@lru_cache(4096)
def _neighbours(
    places: float,
    gpcs: int,
    rows: int,
    cluster: tuple[int, int],
    raster: int,
    programs: float,
    parts: int,
) -> tuple[float, float, float]:
    """As Target.neighbours, of so many rows of programs, and places of a GPC."""
    rows = ceil(rows / cluster[0])
    rows = min(rows, raster) if raster > 1 else rows
    size = cluster[0] * cluster[1]
    count = places / (size * parts)
    if size * parts == 1:
        count *= programs
        down = min(count, rows)
        return count, down, min(count, count / down + 0.5)
    apart = [rows / gcd(rows, step) for step in (gpcs, max(1, gpcs - 1))]
    down = min(count, sum(apart) / len(apart))
    across = min(count, max(1.0, gpcs * count / rows))
    return count * size, down * cluster[0], across * cluster[1]


class Targets(Mapping[str, Target]):
    """Targets by name. Iteration gives the architectures; a name may also have a device of one,
    behind a colon.
    """

    def __init__(self, *targets: Target):
        self._of = {t.name: t for t in targets}

    def __getitem__(self, name: str) -> Target:
        if name not in self._of:
            architecture, colon, device = name.partition(":")
            if not colon or architecture not in self._of:
                raise KeyError(name)
            try:
                found = resolved(device)
            except DeviceError:
                raise KeyError(name) from None
            if found.architecture != architecture:
                raise KeyError(name)
            self._of = self._of | {name: replace(self._of[architecture], usual=device)}
        return self._of[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._of if ":" not in name)

    def __len__(self) -> int:
        return sum(1 for _ in self)


TARGETS = Targets(
    Target("sm_80", 80, "7.0", 166912, "a100_40"),
    Target("sm_86", 86, "7.1", 101376, "rtx3090", threads=1536),
    Target(
        "sm_89",
        89,
        "8.1",
        101376,
        "rtx4090",
        threads=1536,
        fp8=True,
    ),
    Target(
        "sm_90a",
        90,
        "8.0",
        232448,
        "h200",
        tma=True,
        wgmma=True,
        stmatrix=True,
        clusters=True,
        fp8=True,
        bfloat16_sums=True,
    ),
)


def target(name: str) -> Target:
    """The target of that name; ValueError names those there are."""
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}; there are {', '.join(TARGETS)} and cpu")
    return TARGETS[name]
