"""One text form for every operation of the dialect, derived from a one-line `__form__`.

An operation class states the order of its operands and properties once, e.g. for a load

    __form__ = "array [offsets] mask? other?"

which prints

    tile.load %a[%m, %k] mask %q {extents = …} : (…) -> …

    name      one operand
    [name]    any number of operands in brackets
    name?     an optional operand, announced by its own name as a keyword
    name*     any number of operands, in parentheses announced by the name (left out when there are
              none)
    @name     a property, printed bare if it is a string or an integer; @name? if it is optional
    #text     a keyword that is always there

Properties not named in the form follow in braces, then the types (`: (operands) -> results`), then
regions. Declarative formats of xDSL cannot say this: a functional type over several variadic
operands is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Self

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, Region, SSAValue
from xdsl.ir.core import SSAValues
from xdsl.irdl import (
    AttrSizedOperandSegments,
    InferenceContext,
    IRDLOperation,
    OpDef,
    OperandDef,
    OptOperandDef,
    RegionDef,
    ResultDef,
    VarOperandDef,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tkc.ir.attributes import Concrete, integer
from tkc.ir.types import bits, is_float

SEGMENTS = "operandSegmentSizes", "resultSegmentSizes"
VALUES, LISTS = (OpResult, BlockArgument), (list, tuple, SSAValues)


_DICTIONARY = re.compile(r"\s*\{\s*(?:[A-Za-z_]\w*\s*[=,}]|\"[^\"\n]*\"\s*=|\}\s*[{:\n])")


Part = tuple[str, str]  # of a form: (kind, name)
_KINDS = {"?": "optional", "*": "many"}
# what stands between an operand, or a bare property, and the part before it, if that is an operand
_LISTED = ("one", "property", "property?")


def _split(token: str) -> Part:
    """A token of a form as (kind, name)."""
    if token.startswith("#"):
        return "keyword", token[1:]
    if token.startswith("@"):
        return ("property?", token[1:-1]) if token.endswith("?") else ("property", token[1:])
    if token.startswith("["):
        return "bracket", token[1:-1]
    if token[-1] in _KINDS:
        return _KINDS[token[-1]], token[:-1]
    return "one", token


def _attribute(value: Any) -> Attribute | None:
    """A property of a Python value: integers have 64 bits, sequences are arrays of them, a flag
    that is False is left out.
    """
    match value:
        case None | Attribute():
            return value
        case bool():
            return UnitAttr() if value else None
        case int():
            return integer(value, i64)
        case str():
            return StringAttr(value)
    return DenseArrayBase.from_list(i64, list(value))


@cache
def _fixed_results(operation: type[IRDLOperation]) -> list[Attribute] | None:
    """The types of the results, where the definition leaves no choice."""
    definition = operation.get_irdl_definition()
    types = [d.constr for _, d in definition.results if type(d) is ResultDef]
    if len(types) != len(definition.results):
        return None
    if not all(t.can_infer(set(), length_known=True) for t in types):
        return None
    return [found for t in types for found in t.infer(InferenceContext(), length=1)]


class _Signature(NamedTuple):
    """The operands of an operation without regions, whose results are one value each."""

    operands: tuple[type, ...]  # how each name is defined
    results: int
    sizes: bool  # a property says how many values each name has


@cache
def _signature(operation: type[IRDLOperation]) -> _Signature | None:
    """None of an operation of another kind."""
    definition = operation.get_irdl_definition()
    operands = tuple(type(d) for _, d in definition.operands)
    listed = sum(kind is not OperandDef for kind in operands)
    by_sizes = [isinstance(o, AttrSizedOperandSegments) for o in definition.options]
    results = [type(d) is ResultDef for _, d in definition.results]
    if not all(results) or not all(by_sizes) or definition.regions or definition.successors:
        return None
    if listed > 1 and not by_sizes:
        return None
    return _Signature(operands, len(results), bool(by_sizes))


@cache
def _segments(sizes: tuple[int, ...]) -> DenseArrayBase:
    return DenseArrayBase.from_list(i32, sizes)


def _counts(operands: Sequence[Any], kinds: tuple[type, ...]) -> tuple[int, ...] | None:
    """How many values are given for each name; None where they are not as these are defined."""
    counts = []
    for given, kind in zip(operands, kinds, strict=True):
        if type(given) in VALUES:
            counts.append(1)
        elif given is None and kind is OptOperandDef:
            counts.append(0)
        elif (
            kind is VarOperandDef and type(given) in LISTS and all(type(v) in VALUES for v in given)
        ):
            counts.append(len(given))
        else:
            return None
    return tuple(counts)


def walked(op: Operation) -> Iterator[Operation]:
    """An operation and all inside it, in their order. The one that was given last may be erased."""
    yield op
    for region in op.regions:
        block = region._first_block
        while block is not None:
            inner = block._first_op
            while inner is not None:
                following = inner._next_op
                if inner.regions:
                    yield from walked(inner)
                else:
                    yield inner
                inner = following
            block = block._next_block


class TileOperation(IRDLOperation, metaclass=Concrete):
    """Base of every operation of the dialect: text from `__form__` (a dunder: definitions of xDSL
    admit no other plain class attribute).
    """

    __form__ = ""

    # the rules of xDSL, which states them in Python: an operation is equal to itself alone
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __init__(
        self,
        *,
        operands: Sequence[Any] | None = None,
        result_types: Sequence[Any] | None = None,
        properties: Mapping[str, Attribute | None] | None = None,
        attributes: dict[str, Attribute] | None = None,
        regions: Sequence[Any] | None = None,
        **given: Any,
    ):
        """`given` are operands (None: an optional one is absent) and properties (see `_attribute`)
        by their names. Result types may be left out where the definition fixes them.
        """
        if operands is None:
            operands = [given.pop(n, None) for n, _ in self.get_irdl_definition().operands]
        if result_types is None:
            result_types = _fixed_results(type(self)) or ()
        known = {
            name: attribute
            for name, value in (properties or given).items()
            if (attribute := _attribute(value)) is not None
        }
        if not regions and self._built(operands, result_types, known, attributes or {}):
            return
        super().__init__(
            operands=operands,
            result_types=result_types,
            properties=known,
            attributes=attributes,
            regions=regions,
        )

    def _built(
        self,
        operands: Sequence[Any],
        result_types: Sequence[Any],
        properties: dict[str, Attribute],
        attributes: dict[str, Attribute],
    ) -> bool:
        """Initialises an operation whose values are given as they are defined. xDSL's builder,
        which does the rest, takes many forms of values, and looks at each several times.
        """
        signature = _signature(type(self))
        if (
            signature is None
            or (len(operands), len(result_types)) != (len(signature.operands), signature.results)
            or any(isinstance(t, (list, tuple)) for t in result_types)
            or (counts := _counts(operands, signature.operands)) is None
        ):
            return False
        flat: list[SSAValue] = []
        for given in operands:
            if type(given) in VALUES:
                flat.append(given)
            elif given is not None:
                flat += given
        if signature.sizes:
            properties["operandSegmentSizes"] = _segments(counts)
        Operation.__init__(
            self,
            operands=flat,
            result_types=result_types,
            properties=properties,
            attributes=attributes,
        )
        return True

    # ----------------------------------------------------------------------------------------------
    def print(self, printer: Printer) -> None:
        shown, follows_operand = set(SEGMENTS), False
        for kind, name in map(_split, self.__form__.split()):
            value: Any = None if kind == "keyword" else getattr(self, name)
            if kind.startswith("property"):
                shown.add(name)
            if bool(value) if kind == "many" else kind == "keyword" or value is not None:
                _print_part(printer, kind, name, value, follows_operand)
                follows_operand = kind == "one"
        rest = {k: v for k, v in {**self.properties, **self.attributes}.items() if k not in shown}
        if rest:
            printer.print_string(" ")
            printer.print_attr_dict(rest)
        self.print_types(printer)
        for region in self.regions:
            printer.print_string(" ")
            printer.print_region(region, print_empty_block=False)

    def print_types(self, printer: Printer) -> None:
        if not self.operands and not self.results:
            return
        printer.print_string(" : ")
        if self.operands:
            printer.print_string("(")
            printer.print_list(self.operand_types, printer.print_attribute)
            printer.print_string(")")
        if self.results:
            printer.print_string(" -> " if self.operands else "")
            types = self.result_types
            printer.print_string("(" if len(types) > 1 else "")
            printer.print_list(types, printer.print_attribute)
            printer.print_string(")" if len(types) > 1 else "")

    # ----------------------------------------------------------------------------------------------
    @classmethod
    def parse(cls, parser: Parser) -> Self:
        definition = cls.get_irdl_definition()
        groups, properties = cls._parse_form(parser)
        given = optional_attributes(parser)
        attributes = {k: v for k, v in given.items() if k not in definition.properties}
        properties |= {k: v for k, v in given.items() if k in definition.properties}
        ordered = [groups.get(name, []) for name, _ in definition.operands]
        operand_types, result_types = cls.parse_types(
            parser, sum(map(len, ordered)), len(definition.results)
        )
        flat = [operand for group in ordered for operand in group]
        if len(flat) != len(operand_types):
            parser.raise_error(
                f"'{cls.name}' has {len(flat)} operands but {len(operand_types)} operand types"
            )
        values = iter(parser.resolve_operands(flat, operand_types, parser.pos))
        groups_of_values = [[next(values) for _ in group] for group in ordered]
        operands = [
            group[0] if type(d) is OperandDef else group
            for group, (_, d) in zip(groups_of_values, definition.operands, strict=False)
        ]
        regions = [
            parser.parse_region() if type(d) is RegionDef else _optional_region(parser)
            for _, d in definition.regions
        ]
        results = _group_results(definition, result_types)
        return cls.build(
            operands=operands,
            result_types=results,
            properties=properties,
            attributes=attributes,
            regions=regions,
        )

    @classmethod
    def _parse_form(
        cls, parser: Parser
    ) -> tuple[dict[str, list[UnresolvedOperand]], dict[str, Attribute]]:
        """Operands by name and bare properties, as the form says."""
        groups: dict[str, list[UnresolvedOperand]] = {}
        properties: dict[str, Attribute] = {}
        follows_operand = False
        for kind, name in map(_split, cls.__form__.split()):
            if follows_operand and kind in _LISTED:
                if kind != "property?":
                    parser.parse_punctuation(",")
                elif parser.parse_optional_punctuation(",") is None:
                    continue
            follows_operand = kind == "one"
            if kind == "keyword":
                parser.parse_keyword(name)
            elif kind == "property":
                properties[name] = _parse_bare(parser)
            elif kind == "property?":
                if (value := _parse_optional_bare(parser)) is not None:
                    properties[name] = value
            else:
                groups[name] = _parse_operands(parser, kind, name)
        return groups, properties

    @classmethod
    def parse_types(
        cls, parser: Parser, operands: int, results: int
    ) -> tuple[list[Attribute], list[Attribute]]:
        if not operands and not results:
            return [], []
        ins: list[Attribute] = []
        outs: list[Attribute] = []
        if parser.parse_optional_punctuation(":") is None:
            return ins, outs
        if operands:
            ins = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        if not operands or parser.parse_optional_punctuation("->"):
            found = parser.parse_optional_comma_separated_list(
                parser.Delimiter.PAREN, parser.parse_type
            )
            outs = [parser.parse_type()] if found is None else list(found)
        return ins, outs


def _print_part(printer: Printer, kind: str, name: str, value: Any, follows_operand: bool) -> None:
    """One part of a form that is there."""
    separator = ", " if follows_operand else " "
    match kind:
        case "keyword":
            printer.print_string(f" {name}")
        case "property" | "property?":
            printer.print_string(separator)
            _print_bare(printer, value)
        case "one":
            printer.print_string(separator)
            printer.print_ssa_value(value)
        case "optional":
            printer.print_string(f" {name} ")
            printer.print_ssa_value(value)
        case _:
            opened, closed = "[]" if kind == "bracket" else (f" {name}(", ")")
            printer.print_string(opened)
            printer.print_list(value, printer.print_ssa_value)
            printer.print_string(closed)


def _parse_operands(parser: Parser, kind: str, name: str) -> list[UnresolvedOperand]:
    """The operands of one part of a form."""
    if kind in ("optional", "many") and not parser.parse_optional_keyword(name):
        return []
    if kind in ("one", "optional"):
        return [parser.parse_unresolved_operand()]
    brackets = parser.Delimiter.SQUARE if kind == "bracket" else parser.Delimiter.PAREN
    return parser.parse_comma_separated_list(brackets, parser.parse_unresolved_operand)


def optional_attributes(parser: Parser) -> dict[str, Attribute]:
    """An attribute dictionary; a region, which begins with a brace too, is none: behind the brace
    of a dictionary stands `name =`, `name,` or `name}`.
    """
    text, at = parser.lexer.input.content, parser.pos
    return dict(parser.parse_optional_attr_dict()) if _DICTIONARY.match(text, at) else {}


def _group_results(definition: OpDef, types: list[Attribute]) -> list[Any]:
    """Result types as one group a result definition (at most one is variadic or optional)."""
    single = [type(d) is ResultDef for _, d in definition.results]
    spare = len(types) - sum(single)
    groups: list[Any] = []
    at = 0
    for is_single in single:
        n = 1 if is_single else spare
        groups.append(types[at] if is_single else types[at : at + n])
        at += n
    return groups


def _optional_region(parser: Parser) -> list[Region]:
    region = parser.parse_optional_region()
    return [] if region is None else [region]


class Source(TileOperation):
    """Base of operations without operands, with one result."""

    result = result_def()
    traits = traits_def(Pure())


class OneToOne(TileOperation):
    """Base of operations that show one operand as one result, and compute nothing."""

    arg, result = operand_def(), result_def()
    traits = traits_def(Pure())

    def __init__(self, arg: SSAValue, result: Attribute, **properties: Any):
        super().__init__(result_types=[result], arg=arg, **properties)


def check_word(word: StringAttr | None, allowed: Sequence[str], what: str) -> None:
    """Raises VerifyException unless a property is one of these words."""
    if word is not None and word.data not in allowed:
        raise VerifyException(f"{what} {word.data!r}; there are {', '.join(allowed)}")


def _print_bare(printer: Printer, value: Attribute) -> None:
    match value:
        case StringAttr() if value.data.isidentifier():
            printer.print_string(value.data)
        case IntegerAttr() if value.type == i64:
            printer.print_string(str(value.value.data))
        case _:
            printer.print_attribute(value)


def _parse_optional_bare(parser: Parser) -> Attribute | None:
    if (name := parser.parse_optional_identifier()) is not None:
        if name == "true":
            return IntegerAttr.from_bool(True)
        if name == "false":
            return IntegerAttr.from_bool(False)
        if name == "unit":
            return UnitAttr()
        return StringAttr(name)
    if (number := parser.parse_optional_integer(allow_boolean=False)) is not None:
        return IntegerAttr(number, i64)
    return parser.parse_optional_attribute()


def _parse_bare(parser: Parser) -> Attribute:
    value = _parse_optional_bare(parser)
    return value if value is not None else parser.parse_attribute()


def number_of_bits(n: int, element: Attribute) -> float | int:
    """A hexadecimal literal of a float type gives its bits (infinities and NaN print so)."""
    if not is_float(element):
        return n
    import ml_dtypes
    import numpy as np

    dtype = {
        "f16": np.float16,
        "f32": np.float32,
        "f64": np.float64,
        "bf16": ml_dtypes.bfloat16,
        "f8E4M3FN": ml_dtypes.float8_e4m3fn,
        "f8E5M2": ml_dtypes.float8_e5m2,
    }[str(element)]
    return float(
        np.array(n, {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[bits(element)]).view(
            dtype
        )
    )
