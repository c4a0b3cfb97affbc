"""Level 0: the block program.

Kernels, constants, shapes, reductions, dots and global memory on tiles and scalars.

    tile.kernel @matmul(%a: !tile.array<?x?xbf16>, …) {warps = 8 : i64} {
      %p = tile.program_id 0 : i32
      %acc = tile.constant 0.0 : !tile.tile<128x256xf32>       (a scalar type gives a scalar)
      %r = scf.for %k = %zero to %K step %bk iter_args(%c = %acc) -> (…) : i32 {
        %x = tile.load %a[%m, %k] {extents = array<i64: 128, 64>} : (!tile.array<…>, i32, i32)
            -> !tile.tile<128x64xbf16>
        …
        %d = tile.dot %x, %y, %c {precision = "ieee"} : (…) -> !tile.tile<128x256xf32>
        scf.yield %d : …
      }
      tile.return
    }

Control flow is xDSL's scf (for, if, while); integers of loops are i32 or i64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    SymbolNameConstraint,
    UnitAttr,
    f32,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    BaseAttr,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_region_def,
    opt_result_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    IsolatedFromAbove,
    IsTerminator,
    MemoryReadEffect,
    MemoryWriteEffect,
    Pure,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from tkc.ir.attributes import integer
from tkc.ir.definition import op_definition
from tkc.ir.syntax import (
    OneToOne,
    Source,
    TileOperation,
    check_word,
    number_of_bits,
    optional_attributes,
)
from tkc.ir.types import (
    ArrayType,
    PointerType,
    TileType,
    element_of,
    is_float,
    is_integer,
    like,
    pointee_of,
)
from tkc.ir.values import array_type, extents_of, tile_type


def ints(values: Iterable[int]) -> DenseArrayBase:
    return DenseArrayBase.from_list(i64, list(values))


SEGMENTED = (AttrSizedOperandSegments(as_property=True),)


class _Isolated(IsolatedFromAbove):
    """tkc.ir.verify looks at each operand of a kernel, and finds those from outside it."""

    def verify(self, op: Operation) -> None:
        """Nothing: see the class."""


# --------------------------------------------------------------------------------------------------
@op_definition
class Kernel(TileOperation):
    """A kernel: one block, ended by tile.return. Attributes: `warps` (compute warps of a program),
    `level` (0–4), `target`, `argument_names`, at level 4 also `cluster` ([x, y]), `persistent`,
    `cluster_programs` ([x, y]), `shared_bytes`; whatever a pass wants to record.
    """

    name = "tile.kernel"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(_Isolated(), SymbolOpInterface())

    def __init__(
        self,
        name: str,
        argument_types: Sequence[Attribute],
        attributes: dict[str, Attribute] | None = None,
        region: Region | None = None,
    ):
        region = region or Region(Block(arg_types=argument_types))
        super().__init__(sym_name=name, attributes=attributes or {}, regions=[region])

    @property
    def arguments(self) -> Sequence[BlockArgument]:
        return self.body.block.args

    def integer(self, name: str, default: int = 0) -> int:
        value = self.attributes.get(name)
        return value.value.data if isinstance(value, IntegerAttr) else default

    def integers(self, name: str) -> tuple[int, ...]:
        """The integers of an attribute that is a list of some; () where there is none."""
        match self.attributes.get(name):
            case DenseArrayBase() as given:
                return tuple(map(int, given.get_values()))
            case ArrayAttr() as given:
                return tuple(n.value.data for n in given if isinstance(n, IntegerAttr))
            case _:
                return ()

    def set_integer(self, name: str, value: int) -> None:
        self.attributes[name] = integer(value, i64)

    @property
    def cluster(self) -> tuple[int, int]:
        """Blocks of a cluster along the first two axes of the grid."""
        x, y = self.integers("cluster") or (1, 1)
        return x, y

    @property
    def cluster_programs(self) -> tuple[int, int]:
        """Programs that a cluster of a persistent kernel takes at once, along the first two axes of
        the grid.
        """
        x, y = self.integers("cluster_programs") or (1, 1)
        return x, y

    @property
    def warps(self) -> int:
        return self.integer("warps", 4)

    @property
    def level(self) -> int:
        return self.integer("level", 0)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string("(")
        printer.print_list(self.arguments, printer.print_block_argument)
        printer.print_string(")")
        if self.attributes:
            printer.print_string(" ")
            printer.print_attr_dict(self.attributes)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_symbol_name().data
        found = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN,
            lambda: (parser.parse_argument(), parser.parse_optional_location()),
        )
        attributes = optional_attributes(parser)
        kernel = cls(name, [], attributes, parser.parse_region([argument for argument, _ in found]))
        for argument, (_, place) in zip(kernel.arguments, found, strict=False):
            if place is not None:
                argument.location = place
        return kernel


@op_definition
class Return(TileOperation):
    """The end of a kernel. (A program that stops early is an scf.if round the rest of its body.)"""

    name = "tile.return"
    traits = traits_def(IsTerminator())


def _number(value: float | int, element: Attribute) -> IntegerAttr | FloatAttr:
    """A number as an attribute of an element type: an integer wraps to its bits, a float beyond the
    largest is infinite.
    """
    if is_float(element):
        try:
            return FloatAttr(float(value), element)
        except OverflowError:
            return FloatAttr(math.copysign(math.inf, value), element)
    assert type(element) is IntegerType
    return integer(int(value), element)


@op_definition
class Constant(Source):
    """A scalar, or a tile with that value everywhere. bool: 0 or 1 of i1."""

    name = "tile.constant"
    value = prop_def(BaseAttr(IntegerAttr) | BaseAttr(FloatAttr))

    def __init__(self, value: float | int | bool | Attribute, result: Attribute):
        held = value if isinstance(value, Attribute) else _number(value, element_of(result))
        super().__init__(value=held, result_types=[result])

    @property
    def number(self) -> int | float:
        """The value; a truth value as 0 or 1."""
        n = self.value.value.data
        return int(n) & 1 if element_of(self.result.type) == i1 else n

    def verify_(self) -> None:
        if self.value.type != element_of(self.result.type):
            raise VerifyException(f"a constant of {self.value.type} cannot be {self.result.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        (
            self.value.print_without_type(printer)
            if hasattr(self.value, "print_without_type")
            else printer.print_attribute(self.value)
        )
        if self.attributes:
            printer.print_string(" ")
            printer.print_attr_dict(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        value: Any = parser.parse_optional_boolean()
        if value is None:
            value = (
                parser.parse_number(allow_boolean=False)
                if parser._current_token.text[:2].lower() != "0x"
                else (parser.parse_integer(),)
            )
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        t = parser.parse_type()
        if isinstance(value, tuple):
            value = number_of_bits(value[0], element_of(t))
        op = cls(value, t)
        op.attributes |= attributes
        return op


class _GridAxis(Source):
    """Base of a number of the grid along an axis."""

    __form__ = "@axis"
    axis = prop_def(IntegerAttr)

    def __init__(self, axis: int):
        super().__init__(axis=axis, result_types=[i32])


@op_definition
class ProgramId(_GridAxis):
    """The index of this program along a grid axis: `tile.program_id 0 : i32`."""

    name = "tile.program_id"


@op_definition
class NumPrograms(_GridAxis):
    """The extent of the logical grid along an axis."""

    name = "tile.num_programs"


@op_definition
class Arange(Source):
    """start, start + 1, …: a rank-1 tile of integers."""

    name = "tile.arange"
    __form__ = "@start"
    start = prop_def(IntegerAttr)

    def __init__(self, start: int, result: TileType):
        super().__init__(start=start, result_types=[result])

    def verify_(self) -> None:
        t = self.result.type
        if not isinstance(t, TileType) or t.rank != 1 or not is_integer(t.element):
            raise VerifyException(f"'tile.arange' gives a rank-1 tile of integers, not {t}")


@op_definition
class Multiple(TileOperation):
    """The operand, known to be a multiple of `divisor` (a user's promise or a fact of the
    specialization). Of a pointer its address is, in bytes; of a tile of pointers, of each row of
    neighbours the first one's.
    """

    name = "tile.multiple"
    __form__ = "arg @divisor"
    arg, result = operand_def(), result_def()
    divisor = prop_def(IntegerAttr)
    traits = traits_def(Pure())

    def __init__(self, arg: SSAValue, divisor: int):
        super().__init__(arg=arg, divisor=divisor, result_types=[arg.type])


@op_definition
class Assume(TileOperation):
    """A scalar condition that the user promises to hold."""

    name = "tile.assume"
    __form__ = "condition"
    condition = operand_def(i1)
    traits = traits_def(MemoryWriteEffect())


# --------------------------------------------------------------------------------------------------
@op_definition
class Splat(OneToOne):
    """A scalar as a tile."""

    name = "tile.splat"
    __form__ = "arg"

    def verify_(self) -> None:
        if not isinstance(self.result.type, TileType) or self.arg.type != self.result.type.element:
            raise VerifyException(f"'tile.splat' cannot make {self.result.type} of {self.arg.type}")


@op_definition
class Broadcast(OneToOne):
    """Extents of 1 stretched (the rank stays)."""

    name = "tile.broadcast"
    __form__ = "arg"

    def verify_(self) -> None:
        a, r = tile_type(self.arg), tile_type(self.result)
        if a.rank != r.rank or any(
            m not in (1, n) for m, n in zip(a.extents, r.extents, strict=False)
        ):
            raise VerifyException(f"{a} does not broadcast to {r}")


@op_definition
class Reshape(OneToOne):
    """The same elements in row-major order under other extents; also inserts and drops extents of
    1.
    """

    name = "tile.reshape"
    __form__ = "arg"

    def verify_(self) -> None:
        if tile_type(self.arg).size != tile_type(self.result).size:
            raise VerifyException(
                f"{self.arg.type} has {tile_type(self.arg).size} elements, {self.result.type} has"
                f" {tile_type(self.result).size}"
            )


@op_definition
class Transpose(OneToOne):
    """Axis i of the result is axis permutation[i] of the operand."""

    name = "tile.transpose"
    __form__ = "arg"
    permutation = prop_def(DenseArrayBase)

    def __init__(self, arg: SSAValue, permutation: Sequence[int], result: Attribute | None = None):
        t = tile_type(arg)
        turned = TileType([t.extents[p] for p in permutation], t.element)
        super().__init__(arg, result or turned, permutation=permutation)

    def verify_(self) -> None:
        p = self.permutation.get_values()
        if sorted(p) != list(range(tile_type(self.arg).rank)) or tile_type(
            self.result
        ).extents != tuple(tile_type(self.arg).extents[i] for i in p):
            raise VerifyException(
                f"'tile.transpose' by {list(p)} does not take {self.arg.type} to {self.result.type}"
            )


@op_definition
class Slice(OneToOne):
    """A static part: starts `offsets`, extents of the result, steps `strides` (1 where absent)."""

    name = "tile.slice"
    __form__ = "arg"
    offsets = prop_def(DenseArrayBase)
    strides = opt_prop_def(DenseArrayBase)

    def __init__(
        self,
        arg: SSAValue,
        offsets: Sequence[int],
        result: TileType,
        strides: Sequence[int] | None = None,
    ):
        steps = strides if strides and any(s != 1 for s in strides) else None
        super().__init__(arg, result, offsets=offsets, strides=steps)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.strides.get_values()) if self.strides else (1,) * tile_type(self.arg).rank

    def verify_(self) -> None:
        for o, n, s, extent in zip(
            self.offsets.get_values(),
            tile_type(self.result).extents,
            self.steps,
            tile_type(self.arg).extents,
            strict=False,
        ):
            if o < 0 or o + (n - 1) * s >= extent:
                raise VerifyException(
                    f"'tile.slice' from {o}, {n} elements by {s}, leaves an extent of {extent}"
                )


@op_definition
class Extract(OneToOne):
    """One element at a static index, as a scalar that every thread has."""

    name = "tile.extract"
    __form__ = "arg"
    index = prop_def(DenseArrayBase)

    def __init__(self, arg: SSAValue, index: Sequence[int]):
        super().__init__(arg, element_of(arg.type), index=index)


@op_definition
class Flip(OneToOne):
    """The order of one axis reversed."""

    name = "tile.flip"
    __form__ = "arg"
    axis = prop_def(IntegerAttr)

    def __init__(self, arg: SSAValue, axis: int):
        super().__init__(arg, arg.type, axis=axis)


@op_definition
class Concat(TileOperation):
    """Tiles one after the other along an axis."""

    name = "tile.concat"
    __form__ = "[args]"
    args, result = var_operand_def(), result_def()
    axis = prop_def(IntegerAttr)
    traits = traits_def(Pure())

    def __init__(self, args: Sequence[SSAValue], axis: int, result: TileType):
        super().__init__(args=list(args), axis=axis, result_types=[result])


@op_definition
class ClusterSum(TileOperation):
    """What the blocks of a cluster have of this block's share of a tile, added up in the order of
    the blocks from this one on, round to the one before it. shares: one for each block of the
    cluster, in their order. All blocks of a cluster come here equally often.
    """

    name = "tile.cluster_sum"
    __form__ = "[shares]"
    shares, result = var_operand_def(TileType), result_def(TileType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, shares: Sequence[SSAValue]):
        super().__init__(shares=list(shares), result_types=[shares[0].type])

    def verify_(self) -> None:
        if any(share.type != self.result.type for share in self.shares):
            raise VerifyException("the shares and the result of 'tile.cluster_sum' have one type")


# --------------------------------------------------------------------------------------------------
REDUCTIONS = (
    *("sum", "max", "min", "fmax", "fmin", "prod", "any", "all", "xor"),
    *("argmax", "argmin", "combine"),
)


class AlongAxis(TileOperation):
    """Base of what combines the elements along an axis of tiles of one shape."""

    __form__ = "@kind [args]"
    args, results_ = var_operand_def(), var_result_def()
    kind = prop_def(StringAttr)
    axis = prop_def(IntegerAttr)
    combine = opt_region_def()
    traits = traits_def(Pure())

    def __init__(
        self,
        kind: str,
        args: Sequence[SSAValue],
        axis: int,
        results: Sequence[Attribute],
        combine: Region | None,
        **properties: Any,
    ):
        super().__init__(
            kind=kind,
            args=args,
            axis=axis,
            **properties,
            result_types=[results],
            regions=[combine],
        )

    @property
    def result(self) -> OpResult:
        """The result, or the first of several."""
        return self.results[0]


def _several(values: Sequence[SSAValue] | SSAValue) -> list[SSAValue]:
    return [values] if isinstance(values, SSAValue) else list(values)


@op_definition
class Reduce(AlongAxis):
    """Along one axis, which disappears (a rank-1 tile gives a scalar).

    kind argmax/argmin give i32 indices, the first of equals. kind combine takes several tiles of
    one shape and a region of 2n scalars that yields n: an associative combination.
    """

    name = "tile.reduce"

    def __init__(
        self,
        kind: str,
        args: Sequence[SSAValue] | SSAValue,
        axis: int,
        results: Sequence[Attribute] | None = None,
        combine: Region | None = None,
    ):
        values, element = _several(args), i32 if kind.startswith("arg") else None
        types = results or [reduced(tile_type(a), axis, element) for a in values]
        super().__init__(kind, values, axis, types, combine)

    def verify_(self) -> None:
        check_word(self.kind, REDUCTIONS, "unknown reduction")
        t, axis = self.args[0].type, self.axis.value.data
        if not isinstance(t, TileType) or not 0 <= axis < t.rank:
            raise VerifyException(f"'tile.reduce' along axis {axis} of {t}")


def reduced(t: TileType, axis: int, element: Attribute | None = None) -> Attribute:
    """Type of the reduction of a tile along an axis (without a layout)."""
    element, rest = element or t.element, [n for i, n in enumerate(t.extents) if i != axis]
    return TileType(rest, element) if rest else element


@op_definition
class Scan(AlongAxis):
    """Inclusive prefix along one axis: kind sum, prod, max, min, or combine with a region as in
    tile.reduce.
    """

    name = "tile.scan"
    reverse = opt_prop_def(UnitAttr)

    def __init__(
        self,
        kind: str,
        args: Sequence[SSAValue] | SSAValue,
        axis: int,
        reverse: bool = False,
        combine: Region | None = None,
    ):
        values = _several(args)
        types = [v.type for v in values]
        super().__init__(kind, values, axis, types, combine, reverse=reverse)


@op_definition
class Yield(TileOperation):
    """Ends the region of a combine."""

    name = "tile.yield"
    __form__ = "[args]"
    args = var_operand_def()
    traits = traits_def(IsTerminator())

    def __init__(self, *args: SSAValue):
        super().__init__(args=args)


@op_definition
class Sort(OneToOne):
    """Ascending (or descending) along the last axis; NaN last."""

    name = "tile.sort"
    __form__ = "arg"
    descending = opt_prop_def(UnitAttr)

    def __init__(self, arg: SSAValue, descending: bool = False):
        super().__init__(arg, arg.type, descending=descending)


@op_definition
class Histogram(TileOperation):
    """Counts (i32) of the values 0 … bins − 1 of a rank-1 integer tile; others, and masked ones,
    are not counted.
    """

    name = "tile.histogram"
    __form__ = "arg mask?"
    arg, mask, result = operand_def(), opt_operand_def(), result_def()
    traits = traits_def(Pure())

    def __init__(self, arg: SSAValue, bins: int, mask: SSAValue | None = None):
        super().__init__(arg=arg, mask=mask, result_types=[TileType([bins], i32)])


@op_definition
class Gather(TileOperation):
    """Elements of a tile at places along an axis that a tile of integers of the same rank names:
    result[i, j] = arg[index[i, j], j] along axis 0. Other extents are equal; places lie inside.
    """

    name = "tile.gather"
    __form__ = "arg index"
    arg, index, result = operand_def(), operand_def(), result_def()
    axis = prop_def(IntegerAttr)
    traits = traits_def(Pure())

    def __init__(self, arg: SSAValue, index: SSAValue, axis: int, result: Attribute):
        super().__init__(arg=arg, index=index, axis=axis, result_types=[result])


PRECISIONS = ("ieee", "tf32", "tf32x3")


@op_definition
class Dot(TileOperation):
    """acc + a·b: [.., M, K] × [.., K, N]. precision: "ieee" (products exact in the accumulator's
    type), "tf32", "tf32x3".

    From level 1 on `instruction` names what computes it ("mma", "wgmma", "fma").
    """

    name = "tile.dot"
    __form__ = "a b acc"
    a, b, acc, result = operand_def(), operand_def(), operand_def(), result_def()
    precision = prop_def(StringAttr)
    instruction = opt_prop_def(StringAttr)
    traits = traits_def(Pure())

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        acc: SSAValue,
        precision: str = "ieee",
        instruction: str | None = None,
    ):
        super().__init__(
            a=a,
            b=b,
            acc=acc,
            precision=precision,
            instruction=instruction,
            result_types=[acc.type],
        )

    def verify_(self) -> None:
        a, b, c = (extents_of(v) for v in (self.a, self.b, self.acc))
        if a[-1] != b[-2] or c != (*a[:-2], a[-2], b[-1]) or a[:-2] != b[:-2]:
            raise VerifyException(f"'tile.dot' of {list(a)} and {list(b)} does not give {list(c)}")
        if self.result.type != self.acc.type:
            raise VerifyException("'tile.dot' gives the type of its accumulator")
        check_word(self.precision, PRECISIONS, "'tile.dot' has no precision")
        if self.precision.data != "ieee" and element_of(self.a.type) != f32:
            raise VerifyException(
                f"'tile.dot' of {element_of(self.a.type)}: {self.precision.data} is for operands"
                " of f32"
            )


# --------------------------------------------------------------------------------------------------
@op_definition
class Dim(OneToOne):
    """An extent of an array: `tile.dim %a, 0`."""

    name = "tile.dim"
    __form__ = "arg @axis"
    axis = prop_def(IntegerAttr)

    def __init__(self, arg: SSAValue, axis: int, result: Attribute = i32):
        super().__init__(arg, result, axis=axis)


@op_definition
class Stride(OneToOne):
    """A stride of an array, in elements."""

    name = "tile.stride"
    __form__ = "arg @axis"
    axis = prop_def(IntegerAttr)

    def __init__(self, arg: SSAValue, axis: int, result: Attribute = i64):
        super().__init__(arg, result, axis=axis)


@op_definition
class Pointer(OneToOne):
    """The address of an array's first element."""

    name = "tile.pointer"
    __form__ = "arg"

    def __init__(self, arg: SSAValue):
        super().__init__(arg, PointerType(element_of(arg.type)))


@op_definition
class View(TileOperation):
    """Part of an array, no copy: per axis "index" (one operand; the axis disappears), "slice"
    (start and stop) or "all".
    """

    name = "tile.view"
    __form__ = "array [offsets]"
    array, offsets, result = operand_def(ArrayType), var_operand_def(), result_def(ArrayType)
    kinds = prop_def(ArrayAttr[StringAttr])
    traits = traits_def(Pure())

    def __init__(
        self, array: SSAValue, kinds: Sequence[str], offsets: Sequence[SSAValue], result: ArrayType
    ):
        super().__init__(
            array=array,
            offsets=list(offsets),
            kinds=ArrayAttr(map(StringAttr, kinds)),
            result_types=[result],
        )

    def verify_(self) -> None:
        kinds = [k.data for k in self.kinds]
        if len(kinds) != array_type(self.array).rank or len(self.offsets) != sum(
            {"index": 1, "slice": 2, "all": 0}[k] for k in kinds
        ):
            raise VerifyException(
                f"'tile.view' by {kinds} with {len(self.offsets)} offsets of {self.array.type}"
            )


@op_definition
class MakeArray(TileOperation):
    """An array from an address, extents and strides (in elements)."""

    name = "tile.make_array"
    __form__ = "pointer [shape] strides*"
    pointer, shape, strides, result = (
        operand_def(),
        var_operand_def(),
        var_operand_def(),
        result_def(ArrayType),
    )
    irdl_options = SEGMENTED
    traits = traits_def(Pure())

    def __init__(
        self,
        pointer: SSAValue,
        shape: Sequence[SSAValue],
        strides: Sequence[SSAValue],
        result: ArrayType,
    ):
        super().__init__(
            pointer=pointer, shape=list(shape), strides=list(strides), result_types=[result]
        )


# --------------------------------------------------------------------------------------------------
@op_definition
class Load(TileOperation):
    """A block of an array at element offsets. Elements outside the array (or where the mask is
    false) read as `other` (0).

    `extents` gives the extent along each axis, −1 where the axis is dropped (None in the source).
    An offset may be a rank-1 integer tile: a gather along that axis. All axes dropped: a scalar.
    """

    name = "tile.load"
    __form__ = "array [offsets] mask? other?"
    array, offsets, mask, other, result = (
        operand_def(ArrayType),
        var_operand_def(),
        opt_operand_def(),
        opt_operand_def(),
        result_def(),
    )
    extents = prop_def(DenseArrayBase)
    # bytes that the L2 cache asks memory for where it misses some of them
    fetch = opt_prop_def(IntegerAttr)
    irdl_options = SEGMENTED
    traits = traits_def(MemoryReadEffect())

    def __init__(
        self,
        array: SSAValue,
        offsets: Sequence[SSAValue],
        extents: Sequence[int],
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
        result: Attribute | None = None,
    ):
        kept = [n for n in extents if n >= 0]
        element = element_of(array.type)
        super().__init__(
            array=array,
            offsets=list(offsets),
            mask=mask,
            other=other,
            extents=extents,
            result_types=[result or (TileType(kept, element) if kept else element)],
        )

    def verify_(self) -> None:
        _verify_block(self, self.result.type)


class _BlockWrite(TileOperation):
    """Base of what writes a value to a block of an array."""

    array, offsets, value, mask = (
        operand_def(ArrayType),
        var_operand_def(),
        operand_def(),
        opt_operand_def(),
    )
    extents = prop_def(DenseArrayBase)
    irdl_options = SEGMENTED

    def __init__(
        self,
        array: SSAValue,
        offsets: Sequence[SSAValue],
        value: SSAValue,
        extents: Sequence[int],
        mask: SSAValue | None = None,
        **properties: Any,
    ):
        super().__init__(
            array=array,
            offsets=list(offsets),
            value=value,
            mask=mask,
            **properties,
            extents=extents,
        )

    def verify_(self) -> None:
        _verify_block(self, self.value.type)


@op_definition
class Store(_BlockWrite):
    """The inverse of tile.load; what lies outside the array, or is masked, is not written."""

    name = "tile.store"
    __form__ = "array [offsets] value mask?"
    traits = traits_def(MemoryWriteEffect())


def _verify_block(op, t: Attribute) -> None:
    extents = op.extents.get_values()
    if len(extents) != op.array.type.rank or len(op.offsets) != len(extents):
        raise VerifyException(
            f"'{op.name}' gives {len(op.offsets)} offsets and {len(extents)} extents for"
            f" {op.array.type}"
        )
    kept = tuple(n for n in extents if n >= 0)
    if (t.extents if isinstance(t, TileType) else ()) != kept:
        raise VerifyException(f"'{op.name}' of extents {list(kept)} does not match {t}")


@op_definition
class LoadPointers(TileOperation):
    """One element from each address (a tile or one); where the mask is false, `other` (or 0)."""

    name = "tile.load_pointers"
    __form__ = "pointers mask? other?"
    pointers, mask, other, result = (
        operand_def(),
        opt_operand_def(),
        opt_operand_def(),
        result_def(),
    )
    semantics = opt_prop_def(StringAttr)  # "acquire" orders later loads after it
    scope = opt_prop_def(StringAttr)
    irdl_options = SEGMENTED
    traits = traits_def(MemoryReadEffect())

    def __init__(
        self, pointers: SSAValue, mask: SSAValue | None = None, other: SSAValue | None = None
    ):
        t = pointers.type
        super().__init__(
            pointers=pointers, mask=mask, other=other, result_types=[like(t, pointee_of(t))]
        )


@op_definition
class StorePointers(TileOperation):
    """One element to each address where the mask is true."""

    name = "tile.store_pointers"
    __form__ = "pointers value mask?"
    pointers, value, mask = operand_def(), operand_def(), opt_operand_def()
    semantics = opt_prop_def(StringAttr)
    scope = opt_prop_def(StringAttr)
    traits = traits_def(MemoryWriteEffect())

    def __init__(self, pointers: SSAValue, value: SSAValue, mask: SSAValue | None = None):
        super().__init__(pointers=pointers, value=value, mask=mask)


ATOMICS = ("add", "max", "min", "and", "or", "xor", "exchange", "compare")


@op_definition
class Atomic(TileOperation):
    """Read-modify-write at addresses; the old values are the optional result. kind compare also
    takes `expected`.
    """

    name = "tile.atomic"
    __form__ = "@kind pointers value expected? mask?"
    pointers, value, expected, mask, result = (
        operand_def(),
        operand_def(),
        opt_operand_def(),
        opt_operand_def(),
        opt_result_def(),
    )
    kind = prop_def(StringAttr)
    semantics = opt_prop_def(StringAttr)  # relaxed, acquire, release, acq_rel (default)
    scope = opt_prop_def(StringAttr)  # block, gpu (default), system
    irdl_options = SEGMENTED
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())


@op_definition
class AtomicBlock(_BlockWrite):
    """Read-modify-write of a block of an array, without a result (may become a TMA reduction)."""

    name = "tile.atomic_block"
    __form__ = "@kind array [offsets] value mask?"
    kind = prop_def(StringAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        kind: str,
        array: SSAValue,
        offsets: Sequence[SSAValue],
        value: SSAValue,
        extents: Sequence[int],
        mask: SSAValue | None = None,
    ):
        super().__init__(array, offsets, value, extents, mask, kind=kind)


def kernels_of(module: ModuleOp) -> Iterator[Kernel]:
    """The kernels of a module."""
    return (op for op in module.body.block.ops if isinstance(op, Kernel))


def watches(op: Operation) -> bool:
    """Whether an operation reads what other programs may be writing meanwhile: an atomic, or a load
    with semantics.
    """
    return isinstance(op, Atomic) or isinstance(op, LoadPointers) and op.semantics is not None


def waits_for_programs(kernel: Kernel) -> bool:
    """Whether a program may wait for what another writes: a loop without a count reads memory that
    others write meanwhile.
    """
    return any(
        watches(op) for loop in kernel.walk() if loop.name == "scf.while" for op in loop.walk()
    )


DEPENDENCIES = ("wait", "launch")


@op_definition
class Dependency(TileOperation):
    """Where a launch that overlaps others of its stream stands. wait: until the launch before has
    ended, and all that it wrote is seen; launch: the next one may begin, up to its own wait.
    """

    name = "tile.dependency"
    __form__ = "@kind"
    kind = prop_def(StringAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, kind: str):
        super().__init__(kind=kind)

    def verify_(self) -> None:
        check_word(self.kind, DEPENDENCIES, "unknown dependency")


@op_definition
class Print(TileOperation):
    """Prints scalars or tiles for debugging: `{}` in the text is the place of one."""

    name = "tile.print"
    __form__ = "@text [args]"
    args = var_operand_def()
    text = prop_def(StringAttr)
    traits = traits_def(MemoryWriteEffect())


@op_definition
class Assert(TileOperation):
    """Traps with a message where a condition (scalar or tile) is false."""

    name = "tile.assert"
    __form__ = "@text condition"
    condition = operand_def()
    text = prop_def(StringAttr)
    traits = traits_def(MemoryWriteEffect())


OPERATIONS: tuple[type[Operation], ...] = (
    Kernel,
    Return,
    Constant,
    ProgramId,
    NumPrograms,
    Arange,
    Multiple,
    Assume,
    Splat,
    Broadcast,
    Reshape,
    Transpose,
    Slice,
    Extract,
    Flip,
    Concat,
    ClusterSum,
    Reduce,
    Scan,
    Yield,
    Sort,
    Histogram,
    Gather,
    Dot,
    Dim,
    Stride,
    Pointer,
    View,
    MakeArray,
    Load,
    Store,
    LoadPointers,
    StorePointers,
    Atomic,
    AtomicBlock,
    Dependency,
    Print,
    Assert,
)
