"""What an SSA value is while PTX is written.

scalar          an operand: a register's name or a Python number.  Numbers narrower than 32 bits are
                held wide: an i8 is extended to 32 bits, a bf16, f16 or f8 is the float32 of the
                same value, a truth value is a predicate.
tile            Tile: registers of each thread as its layout counts them.  32- and 64-bit elements
                take a register each, 16-bit ones share one in pairs (elements 2i and 2i + 1), 8-bit
                ones by four, where the layout has that many; else each has a 32-bit register alone,
                in the low bits.  Truth values are predicates.
array           Array: pointer, extents and strides, loaded when they are first read: a kernel takes
                as parameters only what it uses.
buffer          SharedView: a 32-bit base register, a constant byte offset, a SharedLayout.
mbarriers       BarriersView: likewise.
tensor map      TensorMap: its generic address.
pending         the Tile in whose registers the dot arrives;  token: None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.ir import Attribute

from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import (
    ArrayFacts,
    MapType,
    TileType,
    bf16,
    bits,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    is_bool,
    is_float,
    is_unsigned,
    ui8,
    ui16,
)

_NUMPY: dict[Attribute, Any] = {
    f16: np.float16,
    bf16: ml_dtypes.bfloat16,
    f8e4m3: ml_dtypes.float8_e4m3fn,
    f8e5m2: ml_dtypes.float8_e5m2,
    f32: np.float32,
    f64: np.float64,
}
_UNSIGNED: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def compute_class(element: Attribute) -> str:
    """The register class of a scalar (and of an element taken out of a tile)."""
    return "pred" if is_bool(element) else "b64" if bits(element) == 64 else "b32"


def compute_type(element: Attribute) -> str:
    """The PTX type in which arithmetic on an element is done."""
    if is_bool(element):
        return "pred"
    if is_float(element):
        return "f64" if bits(element) == 64 else "f32"
    is_pointer = bits(element) == 64 and not hasattr(element, "width")
    sign = "u" if is_unsigned(element) or is_pointer else "s"
    return sign + ("64" if bits(element) == 64 else "32")


def packing(element: Attribute, registers: int) -> int:
    """Elements in one 32-bit register."""
    if is_bool(element) or bits(element) >= 32:
        return 1
    p = 32 // bits(element)
    return p if registers % p == 0 else 1


def wrapped(n: int, element: Attribute) -> int:
    """An integer as the element type holds it."""
    width = bits(element) if not is_bool(element) else 1
    n &= (1 << width) - 1
    return n if is_unsigned(element) or is_bool(element) or n < 1 << width - 1 else n - (1 << width)


def to_bits(value: int | float | bool, element: Attribute) -> int:
    """The bits of a constant."""
    if not is_float(element):
        return int(value) & (1 << bits(element)) - 1
    with np.errstate(over="ignore"):
        n = np.array(value).astype(_NUMPY[element])
    return int(n.view(_UNSIGNED[bits(element)]))


def from_bits(n: int, element: Attribute) -> int | float:
    """The constant of those bits."""
    if not is_float(element):
        return wrapped(n, element)
    return float(np.array(n, _UNSIGNED[bits(element)]).view(_NUMPY[element]))


def rounded(value: float, element: Attribute) -> float:
    """A constant float as the element type holds it."""
    return from_bits(to_bits(value, element), element)


def carrier(element: Attribute) -> Attribute:
    """The type an element is moved as: narrow floats as integers, because a conversion to float32
    and back takes instructions, saturates infinities of float8 and quietens NaNs.
    """
    return {8: ui8, 16: ui16}.get(bits(element), element) if is_float(element) else element


@dataclass
class Tile:
    """A tile's registers in one thread.  An entry of `registers` is a name, or the bits of a
    constant (predicates: a bool).
    """

    registers: Sequence[Integer]
    element: Attribute
    layout: Layout

    @property
    def count(self) -> int:
        """Elements of one thread."""
        return self.layout.num_registers

    def __post_init__(self) -> None:
        self.pack = packing(self.element, self.layout.num_registers)  # elements in a register

    @staticmethod
    def of(t: TileType, registers: Sequence[Integer]) -> Tile:
        """A tile of this type in these registers."""
        return Tile(registers, t.element, layout_of(t))

    @property
    def bytes(self) -> Tile:
        """The same registers for being moved."""
        return Tile(self.registers, carrier(self.element), self.layout)


def layout_of(t: TileType) -> Layout:
    """How the registers of a tile are distributed. Raises TypeError for a type without that."""
    if t.register_layout is None:
        raise TypeError(f"{t} has no register layout")
    return t.register_layout


def element_count(t: TileType) -> int:
    """Elements of one thread."""
    return layout_of(t).num_registers


def registers_of(t: TileType) -> tuple[str, int]:
    """Class and number of the registers of a tile type."""
    n = element_count(t)
    if is_bool(t.element):
        return "pred", n
    return ("b64" if bits(t.element) == 64 else "b32"), n // packing(t.element, n)


@dataclass(frozen=True)
class Array:
    """An array: `pointer()`, `extent(axis)`, `stride(axis)` return operands (64, 32 and 64 bits;
    extents i32, strides in elements). `argument` is its index among the kernel's arguments if it is
    one whole. `long(axis)`: the extents of a wide array in 64 bits; None where 32 hold them. near:
    it ends less than 2^31 bytes from where it begins, so that 32 bits hold a stride in bytes along
    any axis of more than one element.
    """

    element: Attribute
    facts: ArrayFacts
    pointer: Callable[[], Integer]
    extent: Callable[[int], Integer]
    stride: Callable[[int], Integer]
    argument: int = -1
    long: Callable[[int], Integer] | None = None
    near: bool = False

    @property
    def rank(self) -> int:
        return len(self.facts.shape)

    @property
    def itemsize(self) -> int:
        return bits(self.element) // 8


@dataclass(frozen=True)
class SharedView:
    """A buffer (or a ring of them) at base + offset.  base is root + the sum of register * bytes
    over `terms`, where they are known: a matrix descriptor adds them in its own units.  align: what
    its first byte's address is known to be a multiple of, 16 at most.
    """

    base: Integer
    offset: int
    memory: SharedLayout
    stages: int = 1
    stage_bytes: int = 0
    root: Integer = ""
    terms: tuple[tuple[str, int], ...] = ()
    align: int = 16

    def moved(self, by: int, memory: SharedLayout | None = None) -> SharedView:
        """The view that many bytes on, perhaps of another layout."""
        return replace(self, offset=self.offset + by, memory=memory or self.memory)


@dataclass(frozen=True)
class BarriersView:
    """The mbarriers of a ring: 8 bytes each at base + offset."""

    base: Integer
    offset: int
    stages: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor map: its generic address and its type."""

    address: str
    type: MapType


Value = Operand | Tile | Array | SharedView | BarriersView | TensorMap | None
