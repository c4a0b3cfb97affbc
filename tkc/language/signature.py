"""What one specialization of a kernel knows of its arguments. The runtime makes it from real
arguments, `trace` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tkc.ir.types import ArrayFacts
from tkc.language.dtypes import DType


@dataclass(frozen=True)
class ArrayArgument:
    """An array: element type, facts of extents, strides (in elements) and alignment; wide: offsets
    need 64 bits. pointer: the kernel has its address.
    """

    dtype: DType
    facts: ArrayFacts
    wide: bool = False
    pointer: bool = False

    @property
    def rank(self) -> int:
        return len(self.facts.shape)


@dataclass(frozen=True)
class ScalarArgument:
    """A number passed at run time; an integer is known to be a multiple of `divisor` and, if
    nonnegative, at least 0.
    """

    dtype: DType
    divisor: int = 1
    nonnegative: bool = False


@dataclass(frozen=True)
class ConstantArgument:
    """A compile-time value: tkc.constexpr, None, or an integer equal to 1."""

    value: Any


@dataclass(frozen=True)
class PeersArgument:
    """One array a rank, all alike, and the rank that the kernel runs on."""

    world: int
    rank: int
    array: ArrayArgument


Argument = ArrayArgument | PeersArgument | ScalarArgument | ConstantArgument


@dataclass(frozen=True)
class Options:
    """Launch options that shape the code. None: the plan decides."""

    num_warps: int | None = None  # warps that compute a program; those that copy come on top
    # warps of a program whose steps wait for one another, where the plan's costs of several numbers
    # are alike
    suggested_warps: int | None = None
    num_stages: int | None = None  # buffers of each ring of copies: how far loads run ahead
    num_ctas: int = 1  # blocks of a cluster that share the tiles of one program
    # neighbouring programs along axes 0 and 1 that share a cluster, and what they copy
    cluster: tuple[int, int] | None = None
    maxnreg: int | None = None  # registers a thread, at most, of a kernel without roles
    # "one", "cooperative", "pingpong" or "co_resident": which warps copy, and which multiply
    roles: str | None = None
    # at once in a block; 2: ping-pong between programs; 2 to 4 co_resident: neighbours along axis
    # 0, a warpgroup each
    programs: int | None = None
    raster: int | None = None  # programs of axis 0 that stand together before axis 1 moves on
    # every second program of a block walks k, and every second raster its columns, backwards
    serpentine: bool | None = None
    # L2 keeps the rows of a raster, which are read again, longer than the columns, which are not
    retain: bool | None = None
    split_k: int | None = None  # programs that share one output block, each a part of k
    # programs of the last wave are shared by all blocks, each in at most so many parts of k; 0:
    # they are whole
    stream_k: int | None = None
    # 1: dots whose results a loop adds up stay whole; else they come in parts, so that one is added
    # up under the next
    sum_parts: int | None = None
    # a block takes one program after the other, and reads the next one's while it computes
    persistent: bool | None = None
    # what is read along one axis and written along another is transposed in registers
    register_transpose: bool | None = None
    # the next program's first dot runs under this one's epilogue
    cross_tile_prologue: bool | None = None
    # dots that wait for vector work run one iteration late, beside others (rotate-loops)
    rotate: bool | None = None
    # where a dot's left operand is read: "shared" memory, or "registers"
    left_operand: str | None = None
    swap_dots: bool | None = None  # dots are computed as their transposes (bᵀ aᵀ)ᵀ, or not
    # warps along m and n that share a dot of mma.sync or of multiply-adds; (4, 2) beside roles =
    # "cooperative": two warpgroups that share the columns of wgmma's
    split_warps: tuple[int, int] | None = None
    # how a dot's results are stored: through subtiles in shared memory, by tensor maps ("tma") or
    # row by row by threads ("shared"), or "direct", from registers
    epilogue: str | None = None
    # of a result that are stored at once, at most: 8 (from registers), 16, 32 or 64
    store_columns: int | None = None
    # buffers in turn through which each result is stored; 0: the stages of operands that a program
    # does not read again
    subtiles: int | None = None
    dynamic_schedule: bool | None = (
        None  # blocks claim their programs one by one, or they are dealt out
    )
    prefetch: bool | None = None  # loops without dots read one iteration ahead
    # parts in which rows that stay in shared memory are computed; 1: registers hold them
    row_parts: int | None = None
    relax: bool | None = None  # False: running maxima stay exact (relax-stabilizers)
    # the launch may begin before the one before it in its stream has ended, which it waits for
    # before it touches memory
    dependent: bool | None = None
    # the launch runs at once with the one before it, which is not `dependent`, and ends after that:
    # a promise that neither writes what the other reads or writes
    beside: bool | None = None
    # what operators mean: "torch" (promotion as PyTorch's; // and % round down) or "triton" (both
    # as in Triton's language; stores convert)
    semantics: str | None = None
    # checks that trap, as under TKC_DEBUG: True, or the seconds that a wait may take
    debug: int = 0
    extra: tuple[tuple[str, Any], ...] = field(default=())


@dataclass(frozen=True)
class Signature:
    """Arguments by parameter name, in the order of the function's parameters."""

    arguments: tuple[tuple[str, Argument], ...]
    options: Options = Options()
