"""IR as text: the context that knows the dialect, parse and print with source locations.

`parse` takes untrusted text: it refuses what would hang or exhaust the process (size, nesting, huge
numbers) and turns every failure into one located VerifyError.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache, lru_cache
from io import StringIO

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import Builtin, FileLineColLoc, IntAttr, ModuleOp, StringAttr, UnknownLoc
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Span, Token
from xdsl.utils.mlir_lexer import (
    KIND_BY_PUNCTUATION_SPELLING,
    MLIRLexer,
    MLIRToken,
    MLIRTokenKind,
)

from tkc.errors import Location, VerifyError
from tkc.ir import elementwise, shared, threads, tile
from tkc.ir.types import SCALARS, TYPES

Tile = Dialect(
    "tile",
    [*elementwise.OPERATIONS, *tile.OPERATIONS, *shared.OPERATIONS, *threads.OPERATIONS],
    list(TYPES),
)

_TYPE_NAMES = {t.name for t in TYPES}

MAX_BYTES, MAX_NESTING, MAX_DIGITS = 16 << 20, 100, 19

# xDSL's pattern of a string literal nests two repetitions and takes exponential time on an
# unterminated literal.
MLIRLexer._unescaped_characters_regex = re.compile(
    r'"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*"'
)

# What xDSL's lexer takes a dozen calls for: the tokens of which a text is made but for strings,
# symbols and numbers with a point, which it reads itself. A group each, in the order of KINDS.
_TOKEN = re.compile(
    r"(?:\s++|//[^\n]*+\n?+)*+(?:"
    r"([a-zA-Z_][a-zA-Z0-9_$.]*)"
    r"|(%(?:[0-9]+|[a-zA-Z$._-][a-zA-Z0-9$._-]*))"
    r"|(!(?:[0-9]+|[a-zA-Z$._-][a-zA-Z0-9$._-]*))"
    r"|((?:0(?!x)|[1-9])[0-9]*+(?!\.))"
    r"|(->|[:,()}\[\]<>=+/*?|]|\{(?!-#))"
    r")",
    re.ASCII,
)
KINDS = (
    None,
    MLIRTokenKind.BARE_IDENT,
    MLIRTokenKind.PERCENT_IDENT,
    MLIRTokenKind.EXCLAMATION_IDENT,
    MLIRTokenKind.INTEGER_LIT,
    None,  # punctuation says its own
)
_lex_of_xdsl = MLIRLexer.lex


def _lex(lexer: MLIRLexer) -> MLIRToken:
    found = _TOKEN.match(lexer.input.content, lexer.pos)
    if found is None or found.lastindex is None:
        return _lex_of_xdsl(lexer)
    lexer.pos = found.end()
    kind = KINDS[found.lastindex] or KIND_BY_PUNCTUATION_SPELLING[found[found.lastindex]]
    return Token(kind, Span(found.start(found.lastindex), lexer.pos, lexer.input))


MLIRLexer.lex = _lex  # type: ignore[method-assign,assignment]

# types by their texts: xDSL makes a new one of each integer type that it reads
_SCALARS = {str(t): t for t in SCALARS}
_scalar_of_xdsl = AttrParser._parse_optional_integer_or_float_type


def _scalar(parser: AttrParser) -> Attribute | None:
    token = parser._current_token
    found = _SCALARS.get(token.text) if token.kind is MLIRTokenKind.BARE_IDENT else None
    if found is None:
        return _scalar_of_xdsl(parser)
    parser._consume_token()
    return found


AttrParser._parse_optional_integer_or_float_type = _scalar  # type: ignore[method-assign,assignment]

# what follows the name of a type of ours that has no other such type, nor an attribute, inside
_PARAMETERS = re.compile(r'<(?:[^<>"!#]|"[^"\\\n]*")*+>')
_extended_of_xdsl = AttrParser._parse_extended_type_or_attribute


@lru_cache(maxsize=1 << 12)
def _type_of(name: str, parameters: str) -> Attribute:
    """The type of this text: most values of a program have one of a few."""
    return _extended_of_xdsl(Parser(context(), parameters), name, True)


def _extended(parser: AttrParser, name: str, is_type: bool = True) -> Attribute:
    found = _PARAMETERS.match(parser.lexer.input.content, parser.pos)
    if is_type and found is not None and name in _TYPE_NAMES:
        # what is wrong there is found again below, with its place
        with suppress(ParseError, VerifyException):
            read = _type_of(name, found[0])
            parser._resume_from(found.end())
            return read
    return _extended_of_xdsl(parser, name, is_type)  # type: ignore[call-overload]


AttrParser._parse_extended_type_or_attribute = _extended  # type: ignore[method-assign,assignment]


@cache
def context() -> Context:
    c = Context()
    for dialect in (Builtin, scf.Scf, Tile):
        c.load_dialect(dialect)
    return c


def parse(text: str, name: str = "<ir>") -> ModuleOp:
    """A module from its text. Raises VerifyError with file, line and column."""
    _refuse(text, name)
    try:
        return Parser(context(), text, name).parse_module()
    except ParseError as e:
        raise VerifyError(f"{_position(e, text, name)}: {e.msg}") from None
    except (
        VerifyException,
        ValueError,
        NotImplementedError,
        RecursionError,
        AttributeError,
        KeyError,
        TypeError,
        AssertionError,
        OverflowError,
    ) as e:
        raise VerifyError(f"{name}: {_first_line(e)}") from None
    except Exception as e:  # xDSL raises bare Exception in places
        raise VerifyError(f"{name}: {_first_line(e)}") from None


def _refuse(text: str, name: str) -> None:
    if len(text) > MAX_BYTES:
        raise VerifyError(f"{name}: {len(text)} bytes of IR; at most {MAX_BYTES} are read")
    depth = 0
    for m in re.finditer(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[{(\[<]|[})\]]|\d{20,}', text):
        token = m.group()
        if token[0] in "{([":
            depth += 1
        elif token[0] in "})]":
            depth -= 1
        elif token[0].isdigit():
            raise VerifyError(
                f"{name}:{text.count(chr(10), 0, m.start()) + 1}: a number of {len(token)} digits;"
                f" at most {MAX_DIGITS} are read"
            )
        if depth > MAX_NESTING:
            raise VerifyError(
                f"{name}:{text.count(chr(10), 0, m.start()) + 1}: nesting deeper than {MAX_NESTING}"
            )


def _position(e: ParseError, text: str, name: str) -> str:
    start = getattr(e.span, "start", 0)
    line = text.count("\n", 0, start) + 1
    return f"{name}:{line}:{start - text.rfind(chr(10), 0, start)}"


def _first_line(e: BaseException) -> str:
    return (str(e).strip().split("\n") or [""])[0] or type(e).__name__


@lru_cache(maxsize=1 << 12)
def _text_of(t: Attribute) -> str:
    out = StringIO()
    Printer(stream=out).print_attribute(t)
    return out.getvalue()


class _Printer(Printer):
    def print_attribute(self, attribute: Attribute) -> None:
        """The text of a type of ours is made once: most values of a program have one of a few."""
        if type(attribute) in TYPES:
            self.print_string(_text_of(attribute))
        else:
            super().print_attribute(attribute)

    def print_operation_type(self, op: Operation) -> None:
        """Without the location, which scf.while would print here and again at its end (and parses
        at its end only).
        """
        self.print_function_type(op.operand_types, op.result_types)


def show(op: Operation, locations: bool = False) -> str:
    """The text of a module or operation; with `locations`, each operation's place in the user's
    source follows it.
    """
    out = StringIO()
    _Printer(stream=out, print_debuginfo=locations).print_op(op)
    return out.getvalue() + "\n"


def location_of(op: Operation) -> Location | None:
    """The user's source of an operation, the nearest enclosing one's where it has none."""
    around: Operation | None = op
    while around is not None:
        loc = around.location
        if isinstance(loc, FileLineColLoc):
            return Location(loc.filename.data, loc.line.data, loc.column.data)
        around = around.parent_op()
    return None


@lru_cache(maxsize=1 << 12)
def source(location: Location) -> FileLineColLoc:
    """The attribute of a location."""
    return FileLineColLoc(
        StringAttr(location.file), IntAttr(location.line), IntAttr(location.column)
    )


def is_unknown(loc: Attribute) -> bool:
    return type(loc) is UnknownLoc
