"""Element-wise operations: one class each, made from the table FUNCTIONS, the same at every level.

All operands are scalars of one type, or tiles of one type (same shape, element and, from level 1
on, layout):

    %c = tile.add %a, %b : !tile.tile<128x64xf32>
    %h = tile.cast %c : !tile.tile<128x64xf32> to !tile.tile<128x64xbf16>
    %q = tile.lt %a, %b : i32                           (gives i1)
    %d = tile.select %q, %a, %b : i32

Numerics: integer `floordiv` and `mod` floor, `div_trunc` and `rem_trunc` truncate; `max` and `min`
propagate NaN, `fmax` and `fmin` give the other operand; `div` of float32 is within 2 ulp, `div_rn`
is IEEE; float16, bfloat16 and float8 operands are computed in float32 and rounded once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, StringAttr, i1
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from tkc.ir.definition import op_definition
from tkc.ir.syntax import TileOperation
from tkc.ir.types import (
    PointerType,
    TileType,
    bits,
    element_of,
    is_bool,
    is_float,
    is_integer,
    like,
)


@dataclass(frozen=True)
class Function:
    """An element-wise function: number of operands, the element types it takes, and whether it
    gives a truth value.
    """

    name: str
    arity: int
    # "number", "float", "integer", "bits" (integer or bool), "any" (also bool and pointers)
    domain: str
    truth: bool = False

    def accepts(self, t: Attribute) -> bool:
        match self.domain:
            case "float":
                return is_float(t)
            case "integer":
                return is_integer(t)
            case "bits":
                return is_integer(t) or is_bool(t)
            case "number":
                return is_float(t) or is_integer(t)
            case _:
                return True


def _table(arity: int, domain: str, names: str, truth: bool = False) -> list[Function]:
    return [Function(name, arity, domain, truth) for name in names.split()]


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in [
        *_table(1, "number", "neg abs"),
        *_table(
            1,
            "float",
            "exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tanh erf floor ceil round trunc"
            " reciprocal",
        ),
        *_table(1, "float", "isnan isinf", truth=True),
        *_table(1, "bits", "not"),
        *_table(1, "integer", "popcount clz"),
        *_table(2, "number", "add sub mul max min"),
        *_table(2, "float", "div div_rn pow atan2 fmax fmin"),
        *_table(2, "number", "floordiv mod rem_trunc"),
        *_table(2, "integer", "div_trunc"),
        *_table(2, "bits", "and or xor"),
        *_table(2, "integer", "shl shr mulhi"),
        *_table(2, "any", "eq ne lt le gt ge", truth=True),
        *_table(3, "float", "fma"),
    ]
}

COMPARISONS: dict[str, Callable] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
"""The functions that compare two numbers, of any kind."""


def _div_trunc(a: Any, b: Any) -> Any:
    """The quotient rounded towards zero, of integers or arrays of them; 0 of a division by zero."""
    safe = np.where(np.equal(b, 0), 1, b) if isinstance(b, np.ndarray) else b or 1
    floor = a // safe
    up = (floor * safe != a) & ((a < 0) != (safe < 0))
    return (
        (floor + up) * np.not_equal(b, 0)
        if isinstance(up, np.ndarray)
        else (floor + bool(up) if b else 0)
    )


_INTEGERS: dict[str, Callable] = COMPARISONS | {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": max,
    "min": min,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "neg": operator.neg,
    "abs": abs,
    "not": operator.invert,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "div_trunc": _div_trunc,
    "rem_trunc": lambda a, b: a - _div_trunc(a, b) * b if b else 0,
}


_OF_ARRAYS: dict[str, Callable] = _INTEGERS | {
    "max": np.maximum,
    "min": np.minimum,
    "floordiv": lambda a, b: np.where(
        np.equal(b, 0), 0, np.floor_divide(a, np.where(np.equal(b, 0), 1, b))
    ),
    "mod": lambda a, b: np.where(np.equal(b, 0), 0, np.mod(a, np.where(np.equal(b, 0), 1, b))),
    "rem_trunc": lambda a, b: np.where(np.equal(b, 0), 0, a - _div_trunc(a, b) * b),
}


def of_integers(name: str, *args: Any) -> Any:
    """The value of a function of integers, or of arrays of them, before a type wraps it (a
    comparison: 0 or 1); None for functions that a width is part of.
    """
    if any(isinstance(a, np.ndarray) for a in args):
        return (
            None
            if (function := _OF_ARRAYS.get(name)) is None
            else np.asarray(function(*args)).astype(np.int64)
        )
    return None if (function := _INTEGERS.get(name)) is None else int(function(*args))


class _OneType(TileOperation):
    """Base of operations whose text names one type or two: `%a, %b : type`."""

    def print_operands(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        if self.attributes:
            printer.print_string(" ")
            printer.print_attr_dict(self.attributes)
        printer.print_string(" : ")

    @classmethod
    def parse_operands(
        cls, parser: Parser, count: int
    ) -> tuple[list[UnresolvedOperand], dict[str, Attribute]]:
        """What stands before the types: operands and attributes."""
        names = [parser.parse_unresolved_operand()]
        for _ in range(count - 1):
            parser.parse_punctuation(",")
            names.append(parser.parse_unresolved_operand())
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return names, attributes


class Elementwise(_OneType):
    """Base of the generated classes: `fn` is the row of FUNCTIONS; operands `args`, one result."""

    if TYPE_CHECKING:
        # set by _define: definitions of xDSL admit no other class attribute
        fn: ClassVar[Function]

    traits = traits_def(Pure())
    result = result_def()

    def __init__(self, *args: SSAValue):
        t = SSAValue.get(args[0]).type
        super().__init__(operands=list(args), result_types=[like(t, i1) if self.fn.truth else t])

    @property
    def args(self) -> tuple[SSAValue, ...]:
        return self._operands

    def verify_(self) -> None:
        first = self.operands[0].type
        for other in self.operands[1:]:
            if other.type != first:
                raise VerifyException(
                    f"'{self.name}' takes operands of one type, got {first} and {other.type}"
                )
        if not self.fn.accepts(element_of(first)):
            raise VerifyException(f"'{self.name}' does not take {element_of(first)}")
        expected = like(first, i1) if self.fn.truth else first
        if self.result.type != expected:
            raise VerifyException(f"'{self.name}' gives {expected}, not {self.result.type}")

    def print(self, printer: Printer) -> None:
        self.print_operands(printer)
        printer.print_attribute(self.operands[0].type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names, attributes = cls.parse_operands(parser, cls.fn.arity)
        t = parser.parse_type()
        op = cls(*parser.resolve_operands(names, [t] * len(names), parser.pos))
        op.attributes |= attributes
        return op


class Unary(Elementwise):
    arg = operand_def()


class Binary(Elementwise):
    lhs, rhs = operand_def(), operand_def()


class Ternary(Elementwise):
    first = operand_def()
    second = operand_def()
    third = operand_def()


def _define(fn: Function) -> type[Elementwise]:
    base = {1: Unary, 2: Binary, 3: Ternary}[fn.arity]
    title = "".join(part.capitalize() for part in fn.name.split("_"))
    cls: type[Elementwise] = op_definition(
        type(
            title,
            (base,),
            {
                "name": f"tile.{fn.name}",
                "__doc__": f"`{fn.name}`, element by element.",
                "__module__": __name__,
            },
        )
    )
    cls.fn = fn  # set afterwards: a definition admits no other class attributes
    return cls


CLASSES: dict[str, type[Elementwise]] = {name: _define(fn) for name, fn in FUNCTIONS.items()}
"""The operation class of each function: CLASSES["add"](a, b) builds a `tile.add`."""


@op_definition
class Select(_OneType):
    """`where`: the second operand where the condition holds, else the third."""

    name = "tile.select"
    condition, if_true, if_false, result = operand_def(), operand_def(), operand_def(), result_def()
    traits = traits_def(Pure())

    def __init__(self, condition: SSAValue, if_true: SSAValue, if_false: SSAValue):
        super().__init__(
            operands=[condition, if_true, if_false], result_types=[SSAValue.get(if_true).type]
        )

    def verify_(self) -> None:
        t = self.result.type
        if self.if_true.type != t or self.if_false.type != t:
            raise VerifyException(f"'tile.select' gives {t} from operands of another type")
        if self.condition.type not in (like(t, i1), i1):
            raise VerifyException(
                f"'tile.select' of {t} takes a condition of {like(t, i1)}, got"
                f" {self.condition.type}"
            )

    def print(self, printer: Printer) -> None:
        self.print_operands(printer)
        if self.condition.type == i1 and isinstance(self.result.type, TileType):
            printer.print_string("i1, ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names, attributes = cls.parse_operands(parser, 3)
        t = parser.parse_type()
        condition = like(t, i1)
        if parser.parse_optional_punctuation(","):
            condition, t = t, parser.parse_type()
        op = cls(*parser.resolve_operands(names, [condition, t, t], parser.pos))
        op.attributes |= attributes
        return op


class _Conversion(_OneType):
    arg, result = operand_def(), result_def()
    traits = traits_def(Pure())

    def __init__(self, arg: SSAValue, result: Attribute):
        super().__init__(arg=arg, result_types=[result])

    def verify_(self) -> None:
        if like(self.arg.type, i1) != like(self.result.type, i1):
            raise VerifyException(
                f"'{self.name}' keeps the shape and layout: {self.arg.type} to {self.result.type}"
            )

    def print(self, printer: Printer) -> None:
        self.print_operands(printer)
        printer.print_attribute(self.arg.type)
        printer.print_string(" to ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        (arg,), attributes = cls.parse_operands(parser, 1)
        t = parser.parse_type()
        parser.parse_keyword("to")
        op = cls(parser.resolve_operand(arg, t), parser.parse_type())
        op.attributes |= attributes
        return op


@op_definition
class Cast(_Conversion):
    """Another element type, by value: floats round to nearest even, float to integer truncates, to
    bool is `!= 0`.
    """

    name = "tile.cast"


@op_definition
class Bitcast(_Conversion):
    """Another element type of the same width, by bits; also pointers to or from 64-bit integers."""

    name = "tile.bitcast"


@op_definition
class PointerAdd(TileOperation):
    """Pointers moved by a number of elements, of any integer type; the sum does not wrap."""

    name = "tile.pointer_add"
    __form__ = "pointer offset"
    pointer, offset, result = operand_def(), operand_def(), result_def()
    traits = traits_def(Pure())

    def __init__(self, pointer: SSAValue, offset: SSAValue):
        super().__init__(pointer=pointer, offset=offset, result_types=[pointer.type])

    def verify_(self) -> None:
        if not isinstance(element_of(self.pointer.type), PointerType) or not is_integer(
            element_of(self.offset.type)
        ):
            raise VerifyException(
                f"'tile.pointer_add' takes pointers and integers, got {self.pointer.type} and"
                f" {self.offset.type}"
            )
        if like(self.pointer.type, i1) != like(self.offset.type, i1):
            raise VerifyException("'tile.pointer_add' takes operands of one shape")


@op_definition
class InlinePtx(TileOperation):
    """PTX of the user's, element by element: `$0`, `$1`, … are the results, then the operands;
    `pack`: for so many elements at once, of `packed_registers` registers each. It may have any
    effect, so it is neither moved, doubled nor dropped. `meaning` names a NumPy
    function of MEANINGS that gives the results; without one the simulator of PTX does.
    """

    name = "tile.inline_ptx"
    __form__ = "@text [args]"
    args, results_ = var_operand_def(), var_result_def()
    text = prop_def(StringAttr)
    isa = prop_def(StringAttr)
    meaning = opt_prop_def(StringAttr)
    pack = opt_prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        text: str,
        args: Sequence[SSAValue],
        results: Sequence[Attribute],
        isa: str = "8.0",
        meaning: str | None = None,
        pack: int = 1,
    ):
        super().__init__(
            text=text,
            isa=isa,
            meaning=meaning,
            pack=pack if pack > 1 else None,
            args=list(args),
            result_types=[list(results)],
        )

    def verify_(self) -> None:
        types = [v.type for v in (*self.args, *self.results)]
        if any(like(t, i1) != like(types[0], i1) for t in types):
            raise VerifyException(
                "'tile.inline_ptx' takes and gives values of one shape, got"
                f" {', '.join(map(str, types))}"
            )
        if any(isinstance(element_of(t), PointerType) for t in types[len(self.args) :]):
            raise VerifyException("'tile.inline_ptx' gives no pointers")
        if self.packed not in (1, 2, 4):
            raise VerifyException(f"'tile.inline_ptx' packs 1, 2 or 4 elements, not {self.packed}")

    @property
    def packed(self) -> int:
        """Elements that one run of the text takes."""
        return 1 if self.pack is None else self.pack.value.data

    @property
    def function(self) -> Callable:
        """The user's NumPy function for it. Raises LookupError where this process has none."""
        name = "" if self.meaning is None else self.meaning.data
        if name not in MEANINGS:
            raise LookupError(
                f"the meaning {name} of inline PTX is a function of the process that traced it"
            )
        return MEANINGS[name]


def packed_registers(element: Attribute, pack: int) -> int:
    """The registers of one operand or result of inline PTX: elements of 8 and 16 bits that come
    several at once share registers of 32 bits, the first one lowest.
    """
    if pack == 1 or is_bool(element) or bits(element) >= 32:
        return pack
    return -(-pack * bits(element) // 32)


MEANINGS: dict[str, Callable] = {}
"""The meanings of inline PTX in this process."""


def meaning_of(function: Callable) -> str:
    """The name under which a function is known to be a meaning."""
    qualified = getattr(function, "__qualname__", getattr(function, "__name__", "f"))
    name, n = f"{getattr(function, '__module__', '')}:{qualified}", 0
    while MEANINGS.setdefault(f"{name}#{n}" if n else name, function) is not function:
        n += 1
    return f"{name}#{n}" if n else name


OPERATIONS: tuple[type[Operation], ...] = (
    *CLASSES.values(),
    Select,
    Cast,
    Bitcast,
    PointerAdd,
    InlinePtx,
)
