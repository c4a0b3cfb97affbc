"""A plan: every choice the compiler makes about a kernel, as frozen data. The plan pass makes it;
later passes carry it out.

Dots and loads are counted in the order in which they stand in the program (a walk, outside in). The
plan pass writes its number on each, and passes that move or copy one keep it.

    Plan(warps=8, stages=3,
         dots=(DotPlan("mma", (4, 2)),),                  mma.sync, 4 warps along m and 2 along n
         loads=(LoadPlan("async", 16), LoadPlan("async", 16)))
"""

from __future__ import annotations

from ast import literal_eval
from dataclasses import dataclass, field, fields
from typing import TypeVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Operation

C = TypeVar("C")  # what a plan chooses: DotPlan or LoadPlan


@dataclass(frozen=True)
class DotPlan:
    """How one dot is computed.

    instruction: "mma" (mma.sync), "wgmma", or "fma" (multiply-adds of one element). warps: warps
    (warpgroups for wgmma) along M and N. a, b: where the operands come from: "registers", "shared"
    (wgmma reads shared memory; for mma an operand that its loop does not change is read again in
    every iteration), "written" (wgmma reads what consumers have written there), "relaid" or
    "converted" (it reads what the converter has written there: what was loaded, or what it has
    computed). chunk: K
    elements in registers at once, of fma, and of mma where operands are computed. swap: computed as
    its transpose (bᵀ aᵀ)ᵀ, which puts a thin M on the side that has no minimum. parts: of a partial
    dot's columns: how many, and how many are in flight at once (split-sums). permuted: K of both
    operands is counted in the order of an accumulator's registers (tkc.passes.layouts.relayout).
    paired: of 16 rows a thread has two neighbours (tkc.ir.fragments.paired). rings: of a and b, the
    index of the ring that the converter fills, or -1.
    """

    instruction: str
    warps: tuple[int, int] = (1, 1)
    a: str = "registers"
    b: str = "registers"
    chunk: int = 0
    swap: bool = False
    parts: tuple[int, int] = (1, 1)
    permuted: bool = False
    paired: bool = False
    rings: tuple[int, int] = (-1, -1)


@dataclass(frozen=True)
class LoadPlan:
    """How one load gets its block.

    path: "registers", "shared" (copied to shared memory, then read), "async" (the same, in a ring
    that runs ahead), "own" (in a ring that each thread fills for itself, in the layout in which it
    reads), "held" (likewise in shared memory, from the first to the last of several loops over the
    parts of rows), "tma" (a producer fills the ring by tensor maps), "cp_async" (a role of threads
    fills the ring) or "broadcast" (a number that the producer loads and writes beside a stage of
    the ring). vector: bytes of one thread's access.
    multicast: the axis of the block along which blocks of the cluster share the copy, or -1. among:
    the axes of the cluster along which those blocks are neighbours.
    """

    path: str = "registers"
    vector: int = 0
    multicast: int = -1
    among: tuple[int, ...] = (0,)
    # tma, broadcast: the index in Plan.rings; loads of one ring fill a stage together
    ring: int = -1
    # tma: the L2 hint for its lines: "evict_last", "evict_first" or none
    eviction: str = ""
    # in which a block's share of a multicast copy arrives: several where its rows are longer than
    # a swizzle
    boxes: int = 1
    # registers, tma: bytes that L2 requests from memory at a miss; 0: the default
    fetch: int = 0
    # tma: bytes of the widest swizzle that its block may have in shared memory, where warpgroups
    # read parts of its columns; 0: the widest that fits
    panel: int = 0


@dataclass(frozen=True)
class Plan:
    """Choices for a whole kernel; the defaults are those of one role, one program a block."""

    # compute warps of a program
    warps: int = 4
    # of each ring
    stages: int = 1
    # one for each dot, and each load, in program order
    dots: tuple[DotPlan, ...] = ()
    loads: tuple[LoadPlan, ...] = ()
    # "one", "cooperative", "pingpong" or "co_resident"
    roles: str = "one"
    # of a thread of the producer, of a consumer and of the converter, or of the copier
    registers: tuple[int, ...] | None = None
    # of a block at once: in turn (2: ping-pong), or co-resident
    programs: int = 1
    # blocks along the first two program axes
    cluster: tuple[int, int] = (1, 1)
    # (blocks of a cluster that share each program, the extent of the axes that they divide)
    cluster_split: tuple[int, int] = (1, 0)
    # loops without dots read one iteration ahead
    prefetch: bool = False
    # parts in which rows that stay in shared memory are computed (fit-rows makes loops over them)
    row_parts: int = 1
    # roles: what is small beside dots, and no tensor map copies, is loaded one iteration early, or
    # before dots in no loop
    early_small_loads: bool = True
    # roles: what consumers load by pointers in a loop with dots is loaded one iteration early
    early_pointers: bool = False
    # programs of axis 0 that run together before axis 1 moves on
    raster: int = 1
    # every second program of a block walks K backwards, and every second raster group its columns:
    # what the one before read last is in the L2 cache
    serpentine: bool = False
    # a block runs one program after the other
    persistent: bool = False
    # of a multiprocessor, whose registers they share (0: as many as fit)
    blocks: int = 0
    # tiles that are read along one axis and written along another are transposed in registers
    register_transpose: bool = False
    # and then stored in whole rows, through shared memory
    rows: bool = False
    # persistent: tiles that all programs read are read once and kept in registers
    resident_operands: bool = False
    # blocks claim programs one by one; otherwise they are assigned statically
    dynamic_schedule: bool = False
    # programs that share one output tile, each a part of K
    split_k: int = 1
    # these are the blocks of a cluster, each of which adds up a share of the results; otherwise the
    # last one to finish adds up all
    parts_in_cluster: bool = False
    # parts of K, at most, in which all blocks share the programs of the last wave; 0: they do not
    stream_k: int = 0
    # stages of each ring that a producer fills
    rings: tuple[int, ...] = ()
    # of each operand that several warpgroups write and read in a loop: two let each write its part
    # of the next one while others still read this one
    written_stages: int = 1
    # numbers of the dots that run one iteration late, with what needs them there
    rotate: tuple[int, ...] = ()
    # roles that copy wait for what consumers store: programs may read it afterwards
    copies_wait: bool = False
    # the first dot of a block's next program is issued before this one's epilogue
    cross_tile_prologue: bool = False
    # running maxima that only keep powers small are updated where needed
    relax: bool = True
    # how results are stored: "direct", "shared" or "tma"
    epilogue: str = "direct"
    # tma: buffers in turn through which each result is stored; 0: stages of rings,
    subtiles: int = 1
    # of these loads, one for each result, which a program then needs no longer
    reuse_operand_stages: tuple[int, ...] = ()
    # of a result that are stored at once, at most
    columns: int = 64
    # what was chosen, why, and what was rejected
    decisions: tuple[str, ...] = field(default=(), compare=False)
    # bytes of shared memory that the plan leaves, by its own account
    spare: int = field(default=0, compare=False)

    @property
    def members(self) -> int:
        """Co-resident programs of a block."""
        return self.programs if self.roles == "co_resident" else 1

    def dot(self, op: Operation) -> DotPlan | None:
        """The choice for a dot, by the number that the plan pass wrote on it; None where it has
        none.
        """
        return _numbered(self.dots, op)

    def load(self, op: Operation) -> LoadPlan:
        """The choice for a load, straight to registers where none was made."""
        return _numbered(self.loads, op) or LoadPlan()

    def to_text(self) -> str:
        """What differs from the defaults, as a Python literal (decisions and what it spares left
        out); `from_text` reads it back.
        """
        return repr(_changed(self))

    @staticmethod
    def from_text(text: str) -> Plan:
        """Raises ValueError where the text is no plan."""
        try:
            data = literal_eval(text)
            for name, cls in ("dots", DotPlan), ("loads", LoadPlan):
                if name in data:
                    data[name] = tuple(cls(**d) for d in data[name])
            return Plan(**data)
        except (SyntaxError, TypeError, ValueError) as error:
            raise ValueError(f"not a plan: {text!r}") from error


def written_on(kernel: Operation) -> Plan | None:
    """The plan that a kernel carries as text, as after the plan pass; None where there was none."""
    text = kernel.attributes.get("plan")
    return Plan.from_text(text.data) if isinstance(text, StringAttr) else None


def number_of(op: Operation) -> int | None:
    """The number of a dot or load, which the plan pass writes on it; None where none was."""
    return _integer(op, "number")


def ring_filled(op: Operation) -> int | None:
    """The ring whose stage an operation fills from registers; None where it fills none."""
    return _integer(op, "ring")


def fill_ring(op: Operation, ring: int) -> None:
    """Says that an operation fills a stage of a ring, from registers."""
    op.attributes["ring"] = IntegerAttr(ring, i64)


def place_of(op: Operation) -> tuple[int | None, int]:
    """The number of a load, and which part it loads of a block that is one in the plan, from 1
    on (split-sums cuts them); 0 is the whole, which something else may use.
    """
    return number_of(op), _integer(op, "part") or 0


def _integer(op: Operation, name: str) -> int | None:
    attribute = op.attributes.get(name)
    return attribute.value.data if isinstance(attribute, IntegerAttr) else None


def _numbered(choices: tuple[C, ...], op: Operation) -> C | None:
    number = number_of(op)
    return choices[number] if number is not None and number < len(choices) else None


def _changed(part: Plan | DotPlan | LoadPlan) -> dict[str, object]:
    """Fields of a plan, or of a part of it, that differ from their defaults."""
    found: dict[str, object] = {}
    for f in fields(part):
        value = getattr(part, f.name)
        if value == f.default or not f.compare:
            continue
        found[f.name] = tuple(map(_changed, value)) if f.name in ("dots", "loads") else value
    return found
