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
from typing import Any, Self

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    OperandDef,
    RegionDef,
    ResultDef,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from tkc.ir.types import bits, is_float

SEGMENTS = "operandSegmentSizes", "resultSegmentSizes"


_DICTIONARY = re.compile(r"\s*\{\s*(?:[A-Za-z_]\w*\s*[=,}]|\"[^\"\n]*\"\s*=|\}\s*[{:\n])")


def _split(token: str) -> tuple[str, str]:
    """A token of a form as (kind, name)."""
    if token.startswith("#"):
        return "keyword", token[1:]
    if token.startswith("@"):
        return ("property?", token[1:-1]) if token.endswith("?") else ("property", token[1:])
    if token.startswith("["):
        return "bracket", token[1:-1]
    if token.endswith("?"):
        return "optional", token[:-1]
    if token.endswith("*"):
        return "many", token[:-1]
    return "one", token


class TileOperation(IRDLOperation):
    """Base of every operation of the dialect: text from `__form__` (a dunder: definitions of xDSL
    admit no other plain class attribute).
    """

    __form__ = ""

    # ----------------------------------------------------------------------------------------------
    def print(self, printer: Printer) -> None:
        shown, separate = set(SEGMENTS), False
        for kind, name in map(_split, self.__form__.split()):
            value: Any = None if kind == "keyword" else getattr(self, name)
            match kind:
                case "keyword":
                    printer.print_string(f" {name}")
                    separate = False
                case "property" | "property?":
                    shown.add(name)
                    if value is None:
                        continue
                    printer.print_string(", " if separate else " ")
                    _print_bare(printer, value)
                    separate = False
                case "one":
                    printer.print_string(", " if separate else " ")
                    printer.print_ssa_value(value)
                    separate = True
                case "optional" if value is not None:
                    printer.print_string(f" {name} ")
                    printer.print_ssa_value(value)
                    separate = False
                case "bracket":
                    printer.print_string("[")
                    printer.print_list(value, printer.print_ssa_value)
                    printer.print_string("]")
                    separate = False
                case "many" if value:
                    printer.print_string(f" {name}(")
                    printer.print_list(value, printer.print_ssa_value)
                    printer.print_string(")")
                    separate = False
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
        groups, properties, definition = {}, {}, cls.get_irdl_definition()
        separate = False
        for kind, name in map(_split, cls.__form__.split()):
            if separate and kind in ("one", "property"):
                parser.parse_punctuation(",")
            if separate and kind == "property?" and parser.parse_optional_punctuation(",") is None:
                continue
            separate = False
            match kind:
                case "keyword":
                    parser.parse_keyword(name)
                case "property":
                    properties[name] = _parse_bare(parser)
                case "property?":
                    if (value := _parse_optional_bare(parser)) is not None:
                        properties[name] = value
                case "one":
                    groups[name] = [parser.parse_unresolved_operand()]
                    separate = True
                case "optional":
                    groups[name] = (
                        [parser.parse_unresolved_operand()]
                        if parser.parse_optional_keyword(name)
                        else []
                    )
                case "bracket":
                    groups[name] = parser.parse_comma_separated_list(
                        parser.Delimiter.SQUARE, parser.parse_unresolved_operand
                    )
                case "many":
                    groups[name] = (
                        parser.parse_comma_separated_list(
                            parser.Delimiter.PAREN, parser.parse_unresolved_operand
                        )
                        if parser.parse_optional_keyword(name)
                        else []
                    )
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


def optional_attributes(parser: Parser) -> dict[str, Attribute]:
    """An attribute dictionary, told from a region's brace by what follows: `name =`, `name,` or
    `name}`.
    """
    text, at = parser.lexer.input.content, parser.pos
    return dict(parser.parse_optional_attr_dict()) if _DICTIONARY.match(text, at) else {}


def _group_results(definition, types):
    """Result types as one group a result definition (at most one is variadic or optional)."""
    single = [type(d) is ResultDef for _, d in definition.results]
    spare = len(types) - sum(single)
    groups, at = [], 0
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

    def __init__(self, arg: SSAValue, result: Attribute, **properties):
        super().__init__(operands=[arg], properties=properties, result_types=[result])


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
