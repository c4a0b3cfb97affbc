"""What an access by pointers addresses: a block of an array that begins behind an argument's first
element, or behind a pointer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.host_values import argument_number
from tkc.passes.analysis.polynomials import Polynomial

# more bytes than any device's memory has, and rows so many of which 32 bits count
MEMORY_BYTES, ROWS_BEFORE = 1 << 38, 1 << 30
# elements that offsets of 32 bits reach, and of how many a row has to be that rows of so many
# before and behind an address have numbers of 32 bits
REACHED_ELEMENTS, MIN_MOVED_STRIDE = (1 << 31) - 1, 8
PointerBlock = tile.LoadPointers | tile.StorePointers | tile.Atomic


@dataclass(frozen=True)
class Axis:
    """An axis of the array that is addressed. extent: of the block; -1 for one that it lacks.
    gathered: numbers of the elements along it, which count from `start`. before: by how many
    elements the array begins before; moved: by as many as an argument's address can reach. Neither
    is in `start` and `bound`. less: so many elements fewer, which are another axis's `before` (and
    `elsewhere` there); limits: then by the largest of these, or 0, it begins before.
    """

    stride: Polynomial
    start: Polynomial
    bound: Polynomial | None
    extent: int
    gathered: SSAValue | None = None
    before: Polynomial | None = None
    moved: bool = False
    elsewhere: bool = False
    less: Polynomial | None = None
    limits: tuple[Polynomial, ...] = ()

    @property
    def begins_before(self) -> bool:
        """Whether it does in every launch."""
        return self.moved or self.before is not None and not self.elsewhere

    @property
    def counts_from_before(self) -> bool:
        return self.moved or self.before is not None or self.less is not None


@dataclass(frozen=True)
class Condition:
    """A part of a mask: a truth value, and of each of its axes which one of the mask it is."""

    value: SSAValue
    axes: dict[int, int]


@dataclass(frozen=True)
class Covered:
    """Of a tile's axis along which several elements are one: the first number that a mask leaves
    out, and the condition that does so; None where nothing depends on what it leaves out.
    """

    axis: int
    end: Polynomial
    condition: Condition | None


@dataclass
class Block:
    """What an access addresses: a block of an array that begins `offset` elements behind an
    argument's first, or behind a pointer, where the conditions hold. anchor: before which the array
    is made; None for that of an argument. rows: bytes of which the pointers promise that each row
    begins at a multiple. repeated: how many elements along each of the tile's axes are one of the
    block. covered: what a mask leaves out along these. assumed: divisors taken to be positive.
    """

    op: PointerBlock
    base: SSAValue
    anchor: Operation | None
    rows: int
    offset: Polynomial
    axes: list[Axis]
    conditions: list[Condition]
    repeated: dict[int, int] = field(default_factory=dict)
    covered: list[Covered] = field(default_factory=list)
    assumed: set[SSAValue] = field(default_factory=set)


def is_large(base: SSAValue | None) -> bool:
    """Whether what a pointer points into may have elements whose numbers take more than 32 bits: an
    argument that is specialized for that, and memory whose address is loaded.
    """
    number = None if base is None else argument_number(base)
    if base is None or number is None:
        return True
    kernel = base.owner.parent_op()
    assert isinstance(kernel, tile.Kernel)
    return number in kernel.integers("wide")
