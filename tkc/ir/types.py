"""Types of the tile dialect, and what is known of an element type.

    !tile.tile<128x64xbf16>                     a tile
    !tile.tile<128x64xbf16, "layout text">      from level 1 on: in registers, with a layout
    !tile.tile<128x64xbf16, shared "smem text">
                                                or in shared memory
    !tile.ptr<bf16>                             an address in global memory
    !tile.array<?x?xbf16, "strides 8 =1 align 16">
                                                an array argument or view with what its
                                                specialization knows
    !tile.shared<4, 128x64xbf16, "smem text">   a ring of 4 shared-memory buffers (stages 1: a plain
                                                buffer)
    !tile.barriers<4>                           mbarriers of a ring
    !tile.token                                 copies in flight (level 3)
    !tile.pending<!tile.tile<…>>                a tile that an asynchronous dot is still computing
    !tile.map<128x64xbf16, 128>                 a tensor map: the box one TMA moves and its swizzle
                                                in bytes

Scalars are the builtin integer and float types: `i32` is signed, `ui32` unsigned, `i1` a truth
value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, TypeGuard

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntAttr,
    IntegerType,
    NoneAttr,
    Signedness,
    StringAttr,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Data, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.mlir_lexer import MLIRTokenKind

from tkc.ir.attributes import Unique, extents_attribute, keep_hash, kept
from tkc.ir.fragments import parse_layout as layout_from_text
from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.strides import share_elements

ui8, ui16, ui32, ui64 = (IntegerType(n, Signedness.UNSIGNED) for n in (8, 16, 32, 64))
f8e4m3, f8e5m2 = Float8E4M3FNType(), Float8E5M2Type()
NO_LAYOUT = NoneAttr()
FLOATS = (f16, bf16, f32, f64, f8e4m3, f8e5m2)
SIGNED, UNSIGNED = (i8, i16, i32, i64), (ui8, ui16, ui32, ui64)
SCALARS = (i1, *SIGNED, *UNSIGNED, *FLOATS)
_FLOAT_BITS: dict[type[Attribute], int] = {
    Float16Type: 16,
    BFloat16Type: 16,
    Float32Type: 32,
    Float64Type: 64,
    Float8E4M3FNType: 8,
    Float8E5M2Type: 8,
}


def is_float(t: Attribute) -> TypeGuard[AnyFloat]:
    return type(t) in _FLOAT_BITS


def is_integer(t: Attribute) -> bool:
    return type(t) is IntegerType and t.width.data > 1


def is_bool(t: Attribute) -> bool:
    return type(t) is IntegerType and t.width.data == 1


def is_unsigned(t: Attribute) -> bool:
    return type(t) is IntegerType and t.signedness.data is Signedness.UNSIGNED


def bits(t: Attribute) -> int:
    """Storage width of an element type in bits (i1 is stored in a byte; a pointer has 64)."""
    if type(t) is IntegerType:
        return max(8, t.width.data)
    return 64 if type(t) is PointerType else _FLOAT_BITS[type(t)]


@irdl_attr_definition
class LayoutAttr(Data[Layout]):
    """A register layout as an attribute: `#tile.layout<"64x256: 2:1@1 …">`."""

    name = "tile.layout"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Layout:
        with parser.in_angle_brackets():
            return parse_layout(parser)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(str(self.data))


@irdl_attr_definition
class SharedLayoutAttr(Data[SharedLayout]):
    """A shared-memory layout as an attribute."""

    name = "tile.smem"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> SharedLayout:
        with parser.in_angle_brackets():
            return _checked(parser, SharedLayout.parse)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(str(self.data))


def _checked(parser: AttrParser, read):
    """A string literal through `read`; what it refuses becomes a parse error at the literal."""
    at = parser.pos
    text = parser.parse_str_literal()
    try:
        return read(text)
    except (ValueError, TypeError, IndexError) as e:
        parser.raise_error(f"bad layout {text!r}: {e}", at, parser.pos)


def parse_layout(parser: AttrParser) -> Layout:
    return _checked(parser, layout_from_text)


def _parse_shape(parser: AttrParser) -> tuple[ArrayAttr, Attribute]:
    """`128x64xbf16` -> extents and element type."""
    extents = []
    while (n := _dimension(parser)) is not None:
        extents.append(n)
        parser.parse_shape_delimiter()
    return ArrayAttr(map(IntAttr, extents)), parser.parse_type()


def _dimension(parser: AttrParser) -> int | None:
    if parser._current_token.kind not in (MLIRTokenKind.INTEGER_LIT, MLIRTokenKind.QUESTION):
        return None
    return parser.parse_shape_dimension()


def _print_shape(printer: Printer, extents, element: Attribute) -> None:
    for n in extents:
        printer.print_string("?x" if n < 0 else f"{n}x")
    printer.print_attribute(element)


class _Shaped(ParametrizedAttribute, metaclass=Unique):
    if TYPE_CHECKING:
        shape: ArrayAttr[IntAttr]
        element: Attribute

    @kept
    def extents(self) -> tuple[int, ...]:
        return tuple(n.data for n in self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.extents)

    @property
    def bytes(self) -> int:
        return self.size * bits(self.element) // 8


@irdl_attr_definition
class TileType(_Shaped, TypeAttribute):
    """A tile: any rank >= 1, any extents >= 1; `layout` is NoneAttr at level 0, from level 1 on a
    LayoutAttr (in registers) or a SharedLayoutAttr (in shared memory: what an asynchronous dot
    reads there)."""

    name = "tile.tile"
    shape: ArrayAttr[IntAttr]
    element: Attribute
    layout: Attribute

    def __init__(
        self,
        shape,
        element: Attribute,
        layout: Layout | SharedLayout | Attribute | None = None,
    ):
        if isinstance(layout, Layout):
            layout = LayoutAttr(layout)
        if isinstance(layout, SharedLayout):
            layout = SharedLayoutAttr(layout)
        if not isinstance(shape, ArrayAttr):
            shape = extents_attribute(tuple(shape))
        super().__init__(shape, element, NO_LAYOUT if layout is None else layout)

    def __hash__(self) -> int:
        return hash((self.extents, self.element, self.layout))

    @property
    def register_layout(self) -> Layout | None:
        return self.layout.data if isinstance(self.layout, LayoutAttr) else None

    @property
    def shared_layout(self) -> SharedLayout | None:
        return self.layout.data if isinstance(self.layout, SharedLayoutAttr) else None

    def with_layout(self, layout: Layout | SharedLayout | None) -> TileType:
        return TileType(self.shape, self.element, layout)

    def with_element(self, element: Attribute) -> TileType:
        return TileType(self.shape, element, self.layout)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape, element = _parse_shape(parser)
            if not parser.parse_optional_punctuation(","):
                return shape, element, NoneAttr()
            if parser.parse_optional_keyword("shared"):
                return shape, element, SharedLayoutAttr(_checked(parser, SharedLayout.parse))
            return shape, element, LayoutAttr(parse_layout(parser))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            _print_shape(printer, self.extents, self.element)
            if isinstance(self.layout, NoneAttr):
                return
            printer.print_string(", shared " if self.shared_layout is not None else ", ")
            printer.print_string_literal(str(self.shared_layout or self.register_layout))


class _OfType(ParametrizedAttribute, metaclass=Unique):
    """Base of what has one parameter, a type: its text is that type's."""

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return [parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(*self.parameters)


@irdl_attr_definition
class PointerType(_OfType, TypeAttribute):
    """An address of an element in global memory."""

    name = "tile.ptr"
    element: Attribute


MOST_DIVISOR = 128  # of an extent or stride that anything asks for


@dataclass(frozen=True)
class Fact:
    """What a specialization knows of an integer: its exact value, or a divisor of it and whether it
    is below zero (of a stride). In text: `=1`, `8`, and `-8` of a negative multiple of 8.
    """

    divisor: int = 1
    exact: int | None = None
    negative: bool = False

    def __str__(self):
        if self.exact is not None:
            return f"={self.exact}"
        return f"{'-' * self.negative}{self.divisor}"

    @staticmethod
    def parse(text: str) -> Fact:
        if text.startswith("="):
            return Fact(1, int(text[1:]))
        return Fact(abs(int(text)), None, text.startswith("-"))

    def divisible(self, n: int) -> bool:
        return (self.exact if self.exact is not None else self.divisor) % n == 0

    def either(self, other: Fact) -> Fact:
        """What is known of an integer that is known by the one or by the other."""
        if self.exact is not None and self.exact == other.exact:
            return self
        whole = gcd(*(f.divisor if f.exact is None else f.exact for f in (self, other)))
        below = [f.negative if f.exact is None else f.exact < 0 for f in (self, other)]
        return Fact(gcd(whole, MOST_DIVISOR), negative=all(below))


@dataclass(frozen=True)
class ArrayFacts:
    """Facts of an array: of its extents and strides (in elements), and the alignment of its first
    element in bytes.
    """

    shape: tuple[Fact, ...]
    strides: tuple[Fact, ...]
    align: int = 1

    @staticmethod
    def unknown(rank: int) -> ArrayFacts:
        return ArrayFacts((Fact(),) * rank, (Fact(),) * rank)

    def either(self, other: ArrayFacts) -> ArrayFacts:
        """What is known of an array of the same rank that is known by the one or by the other."""
        shape, strides = (
            tuple(a.either(b) for a, b in zip(mine, theirs, strict=True))
            for mine, theirs in ((self.shape, other.shape), (self.strides, other.strides))
        )
        return ArrayFacts(shape, strides, gcd(self.align, other.align))

    @property
    def overlaps_itself(self) -> bool:
        """Whether elements are known to share memory, as those of windows that slide do."""
        return share_elements(
            (stride.exact, n.exact)
            for stride, n in zip(self.strides, self.shape, strict=True)
            if stride.exact is not None
        )

    def __str__(self):
        return (
            f"shape {' '.join(map(str, self.shape))} strides {' '.join(map(str, self.strides))}"
            f" align {self.align}"
        )

    @staticmethod
    @lru_cache(maxsize=4096)  # every question about a block asks for the facts of its array
    def parse(text: str, rank: int) -> ArrayFacts:
        facts: dict[str, list[Fact]] = {"shape": [], "strides": [], "align": []}
        key: str | None = None
        for word in text.split():
            if word in facts:
                key = word
            elif key is None or not re.fullmatch(r"=?-?\d{1,18}", word):
                raise ValueError(f"unexpected {word!r} in the facts of an array")
            else:
                facts[key].append(Fact.parse(word))
        shape, strides = (tuple((facts[k] + [Fact()] * rank)[:rank]) for k in ("shape", "strides"))
        return ArrayFacts(shape, strides, facts["align"][0].divisor if facts["align"] else 1)


@irdl_attr_definition
class ArrayType(ParametrizedAttribute, TypeAttribute, metaclass=Unique):
    """An array in global memory: pointer, extents and strides in one value. Rank 0 is allowed."""

    name = "tile.array"
    rank_: IntAttr
    element: Attribute
    facts_: StringAttr

    def __init__(
        self, rank: int | IntAttr, element: Attribute, facts: ArrayFacts | StringAttr | None = None
    ):
        rank = rank if isinstance(rank, IntAttr) else IntAttr(rank)
        facts = (
            facts
            if isinstance(facts, StringAttr)
            else StringAttr(str(facts or ArrayFacts.unknown(rank.data)))
        )
        super().__init__(rank, element, facts)

    @property
    def rank(self) -> int:
        return self.rank_.data

    @property
    def facts(self) -> ArrayFacts:
        return ArrayFacts.parse(self.facts_.data, self.rank)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape, element = _parse_shape(parser)
            facts = ArrayFacts.unknown(len(shape))
            if parser.parse_optional_punctuation(","):
                facts = _checked(parser, lambda text: ArrayFacts.parse(text, len(shape)))
        return IntAttr(len(shape)), element, StringAttr(str(facts))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            _print_shape(printer, [-1] * self.rank, self.element)
            if self.facts != ArrayFacts.unknown(self.rank):
                printer.print_string(", ")
                printer.print_string_literal(self.facts_.data)


@irdl_attr_definition
class SharedType(_Shaped, TypeAttribute):
    """A ring of `stages` equal tiles in shared memory, or (stages 1) one tile."""

    name = "tile.shared"
    stages_: IntAttr
    shape: ArrayAttr[IntAttr]
    element: Attribute
    layout: Attribute

    def __init__(
        self, stages: int | IntAttr, shape, element: Attribute, layout: SharedLayout | Attribute
    ):
        stages = stages if isinstance(stages, IntAttr) else IntAttr(stages)
        if not isinstance(shape, ArrayAttr):
            shape = extents_attribute(tuple(shape))
        super().__init__(
            stages,
            shape,
            element,
            SharedLayoutAttr(layout) if isinstance(layout, SharedLayout) else layout,
        )

    @property
    def stages(self) -> int:
        return self.stages_.data

    @property
    def memory(self) -> SharedLayout:
        assert isinstance(self.layout, SharedLayoutAttr)
        return self.layout.data

    @kept
    def bytes(self) -> int:
        """Of all stages; a stage starts at a multiple of its alignment."""
        stage = self.memory
        return self.stages * (-(-stage.bytes // stage.alignment) * stage.alignment)

    @property
    def stage_bytes(self) -> int:
        return self.bytes // self.stages

    def single(self) -> SharedType:
        return SharedType(1, self.shape, self.element, self.layout)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            stages = parser.parse_integer(allow_negative=False, allow_boolean=False)
            parser.parse_punctuation(",")
            shape, element = _parse_shape(parser)
            parser.parse_punctuation(",")
            layout = SharedLayoutAttr(_checked(parser, SharedLayout.parse))
        return IntAttr(stages), shape, element, layout

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.stages}, ")
            _print_shape(printer, self.extents, self.element)
            printer.print_string(", ")
            printer.print_string_literal(str(self.memory))


@irdl_attr_definition
class BarriersType(ParametrizedAttribute, TypeAttribute):
    """The mbarriers of a ring: one 8-byte word a stage."""

    name = "tile.barriers"
    stages_: IntAttr

    def __init__(self, stages: int | IntAttr):
        super().__init__(stages if isinstance(stages, IntAttr) else IntAttr(stages))

    @property
    def stages(self) -> int:
        return self.stages_.data

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return [IntAttr(parser.parse_integer(allow_negative=False, allow_boolean=False))]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self.stages))


@irdl_attr_definition
class TokenType(ParametrizedAttribute, TypeAttribute):
    """Asynchronous copies in flight."""

    name = "tile.token"


@irdl_attr_definition
class PendingType(_OfType, TypeAttribute):
    """A tile whose value an asynchronous dot has yet to deliver: only `wait` makes it readable."""

    name = "tile.pending"
    tile: TileType


@irdl_attr_definition
class MapType(_Shaped, TypeAttribute):
    """A tensor map: `shape` is the box in the order of the array's axes, `swizzle` its width in
    bytes (0: none).

    The box is laid out in shared memory as SharedLayout(box without the leading 1s, swizzle) says.
    `panelled`: the array's last extent is a multiple of the swizzle's width, so that one map with
    the last axis split in panels moves a box of any width; otherwise a box wider than the swizzle
    takes one copy a panel.
    """

    name = "tile.map"
    shape: ArrayAttr[IntAttr]
    element: Attribute
    swizzle_: IntAttr
    panelled_: IntAttr

    def __init__(
        self, shape, element: Attribute, swizzle: int | IntAttr, panelled: bool | IntAttr = False
    ):
        if not isinstance(shape, ArrayAttr):
            shape = extents_attribute(tuple(shape))

        def as_int(v):
            return v if isinstance(v, IntAttr) else IntAttr(int(v))

        super().__init__(shape, element, as_int(swizzle), as_int(panelled))

    @property
    def swizzle(self) -> int:
        return self.swizzle_.data

    @property
    def panelled(self) -> bool:
        return bool(self.panelled_.data)

    @property
    def panel(self) -> int:
        """Elements of the last axis in one panel (the whole box where there is no swizzle)."""
        return (
            min(self.extents[-1], self.swizzle * 8 // bits(self.element))
            if self.swizzle
            else self.extents[-1]
        )

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape, element = _parse_shape(parser)
            parser.parse_punctuation(",")
            swizzle = parser.parse_integer(allow_negative=False, allow_boolean=False)
            panelled = 0
            if parser.parse_optional_punctuation(","):
                parser.parse_keyword("panelled")
                panelled = 1
        return shape, element, IntAttr(swizzle), IntAttr(panelled)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            _print_shape(printer, self.extents, self.element)
            printer.print_string(f", {self.swizzle}" + (", panelled" if self.panelled else ""))


TYPES = (
    LayoutAttr,
    SharedLayoutAttr,
    TileType,
    PointerType,
    ArrayType,
    SharedType,
    BarriersType,
    TokenType,
    PendingType,
    MapType,
)
for _type in TYPES:
    keep_hash(_type)


def element_of(t: Attribute) -> Attribute:
    """The element type of a tile, array, buffer or map; a scalar's is itself."""
    return t.element if isinstance(t, (TileType, ArrayType, SharedType, MapType)) else t


def pointee_of(t: Attribute) -> Attribute:
    """What a pointer, or a tile of pointers, points to. Raises TypeError for other types."""
    pointer = element_of(t)
    if not isinstance(pointer, PointerType):
        raise TypeError(f"expected pointers, got {t}")
    return pointer.element


def like(t: Attribute, element: Attribute) -> Attribute:
    """The type of the same shape and layout with another element: a tile for a tile, a scalar for a
    scalar.
    """
    return t.with_element(element) if isinstance(t, TileType) else element
