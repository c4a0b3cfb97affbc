"""A plan: every choice the compiler makes about a kernel, as frozen data. The plan pass makes it;
later passes realise it.

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

from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.ir import Operation

C = TypeVar("C")  # what a plan chooses: DotPlan or LoadPlan


@dataclass(frozen=True)
class DotPlan:
    """How one dot is computed.

    instruction: "mma" (mma.sync), "wgmma", or "fma" (one multiply-add at a time). warps: how many
    warps, or warpgroups for wgmma, part m and n among them. a, b: where the operands come from,
    "registers" or "shared". wgmma reads shared memory itself; for mma "shared" says that a operand
    which its loop does not change is read again in every iteration, not held. "relaid": wgmma
    reads it where another role has laid it anew. permuted: K of both operands is counted in the
    order in which an accumulator's registers lie (tkc.passes.layouts.relayout). chunk: fma only: so
    many k are held in registers at once. parts: of a partial dot's columns: how many, and how many
    are in flight at once (split-sums). swap: computed as its own transpose (bᵀ aᵀ)ᵀ, which puts a
    thin m on the side that has no minimum.
    """

    instruction: str
    warps: tuple[int, int] = (1, 1)
    a: str = "registers"
    b: str = "registers"
    chunk: int = 0
    swap: bool = False
    parts: tuple[int, int] = (1, 1)
    permuted: bool = False


@dataclass(frozen=True)
class LoadPlan:
    """How one load gets its block.

    path: "registers" (straight), "shared" (copied to shared memory, then read), "async" (the same,
    in a ring that runs ahead), "own" (in a ring that each thread fills for itself, in the layout in
    which it reads it), "tma" (a producer fills the ring by tensor maps) or "broadcast" (a number,
    which the producer loads and leaves beside a stage of the ring). vector: bytes of one thread's
    access. multicast: the axis of the block along which blocks of the cluster share the copy, or
    -1; among: those that do, the neighbours along these axes of the cluster.
    """

    path: str = "registers"
    vector: int = 0
    multicast: int = -1
    among: tuple[int, ...] = (0,)
    # tma, posted: which of the plan's rings; loads of one ring fill a stage together
    ring: int = -1
    relayout_ring: int = -1  # and the ring in which it is relaid
    eviction: str = ""  # tma: the L2 hint for its lines: "evict_last", "evict_first" or none
    # in which a block's share of such a copy arrives: several where its rows are longer than a
    # swizzle
    boxes: int = 1
    # registers, tma: bytes that L2 asks memory for where it misses some of them; 0: a sector or two
    fetch: int = 0


@dataclass(frozen=True)
class Plan:
    """Choices for a whole kernel; the defaults are those of one role, one program a block."""

    warps: int = 4  # compute warps of a program
    stages: int = 1  # of each ring
    dots: tuple[DotPlan, ...] = ()  # one a dot, in program order
    loads: tuple[LoadPlan, ...] = ()  # one a load, in program order
    roles: str = "one"  # "one", "cooperative", "pingpong" or "co_resident"
    # of a producer's and a consumer's thread, and of one that relays operands
    registers: tuple[int, ...] | None = None
    programs: int = 1  # at once in a block: in turn (2: ping-pong), or side by side (co_resident)
    cluster: tuple[int, int] = (1, 1)  # blocks along the first two program axes
    # so many blocks of a cluster share each program: axes of that extent are dealt out among them
    cluster_split: tuple[int, int] = (1, 0)
    prefetch: bool = False  # loops without dots read one iteration ahead
    raster: int = 1  # programs of axis 0 that stand together before axis 1 moves on
    # every second program of a block walks k backwards, and every second raster its columns: what
    # the last one read last is in the cache
    serpentine: bool = False
    persistent: bool = False  # a block takes one program after the other
    # of a multiprocessor, whose registers they share (0: as many as there happens to be room for)
    blocks: int = 0
    # tiles that are read along one axis and written along another are turned in registers, not in
    # shared memory
    register_transpose: bool = False
    rows: bool = False  # and then leave in whole rows, through shared memory
    # persistent: blocks that all programs read are read once and kept in registers
    resident_operands: bool = False
    # blocks claim their programs one by one; else they are dealt out
    dynamic_schedule: bool = False
    split_k: int = 1  # programs that share one output block, each a part of k
    # programs of the last wave are shared by all blocks, each in at most so many parts of k (0:
    # they are not)
    stream_k: int = 0
    rings: tuple[int, ...] = ()  # stages of each ring that a producer fills
    # numbers of the dots that run one iteration late, with what needs them there
    rotate: tuple[int, ...] = ()
    # the first dot of a block's next program is issued before this one's results are stored
    cross_tile_prologue: bool = False
    # running maxima that only keep powers small are brought up to date where needed
    relax: bool = True
    epilogue: str = "direct"  # stores of accumulators: "direct", "shared" or "tma"
    # tma: buffers in turn through which each result is stored; 0: through stages of rings,
    subtiles: int = 1
    # of these loads, which a program then needs no longer, one a result;
    reuse_operand_stages: tuple[int, ...] = ()
    columns: int = 64  # and at most so many of its columns at once
    # what, why, and what was rejected
    decisions: tuple[str, ...] = field(default=(), compare=False)
    # bytes of shared memory that it leaves, by its own account
    spare: int = field(default=0, compare=False)

    @property
    def members(self) -> int:
        """Programs that stand side by side in a block."""
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


def place_of(op: Operation) -> tuple[int | None, int]:
    """The number of a load, and which part it loads of the block that the plan knows as one, from 1
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
