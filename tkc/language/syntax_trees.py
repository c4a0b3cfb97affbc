"""Python's syntax trees, walked and changed as `ast` does it, at a third of its time: what a node
holds is read from its `__dict__`, and nodes that only say how others are meant (ast.Load, ast.Add)
are not looked at.
"""

from __future__ import annotations

import ast
import linecache
import weakref
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, TypeAlias, TypeVar

LOCATION = ("lineno", "col_offset", "end_lineno", "end_col_offset")
Definition: TypeAlias = ast.FunctionDef | ast.Lambda
Node = TypeVar("Node", bound=ast.AST)
# the fields in which statements hold statements: no expression holds one
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
# of code objects: the lines of their file when it was read, and their definition
_found: weakref.WeakKeyDictionary[CodeType, tuple[list[str], Definition | None]] = (
    weakref.WeakKeyDictionary()
)


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that a node holds."""
    for value in node.__dict__.values():
        if isinstance(value, list):
            for each in value:
                if isinstance(each, ast.AST) and (each._fields or each._attributes):
                    yield each
        elif isinstance(value, ast.AST) and (value._fields or value._attributes):
            yield value


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all inside it; outer ones first."""
    found = [node]
    for n in found:  # which grows
        found += inside(n)
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements inside a node at any depth: no expression holds one."""
    for field in BODIES:
        held = node.__dict__.get(field)
        for inner in held if isinstance(held, list) else ():
            yield inner
            yield from statements(inner)


def placed(node: Node, at: ast.AST) -> Node:
    """A node, with the place of another one that has one."""
    held, there = node.__dict__, at.__dict__
    for name in LOCATION:
        if name in there:
            held[name] = there[name]
    return node


def locate(node: ast.AST, at: ast.AST) -> None:
    """Puts a node and all inside it at the place of another."""
    for n in walk(node):
        if n._attributes:
            placed(n, at)


class Transformer(ast.NodeTransformer):
    """A NodeTransformer."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visits what a node holds; a list of statements may become longer, or shorter."""
        held = node.__dict__
        for name, value in list(held.items()):
            if isinstance(value, list):
                value[:] = self._visited(value)
            elif isinstance(value, ast.AST) and (value._fields or value._attributes):
                new = self.visit(value)
                if new is None:
                    delattr(node, name)
                else:
                    held[name] = new
        return node

    def _visited(self, nodes: list[Any]) -> list[Any]:
        found = []
        for n in nodes:
            looked_at = isinstance(n, ast.AST) and (n._fields or n._attributes)
            new = self.visit(n) if looked_at else n
            if isinstance(new, list):
                found += new
            elif new is not None or n is None:
                found.append(new)
        return found


# ---- the source of functions
def _lines_of(code: CodeType) -> list[str]:
    """The lines of a file that hold a function, from its decorators on: up to the next line that is
    indented no deeper than it.
    """
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    first = lines[0] if lines else ""
    depth = len(first) - len(first.lstrip())
    last = _last_line(code) - code.co_firstlineno
    for n, line in enumerate(lines):
        text = line.lstrip()
        if n > last and text and text[0] not in "#)]}" and len(line) - len(text) <= depth:
            return lines[:n]
    return lines


def _last_line(code: CodeType) -> int:
    """The last line of a file that a function runs, or one inside it."""
    own = (line for _, _, line in code.co_lines() if line is not None)
    nested = (_last_line(c) for c in code.co_consts if isinstance(c, CodeType))
    return max([code.co_firstlineno, *own, *nested])


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _function_of(code: CodeType) -> ast.FunctionDef | None:
    """The definition of a code object in its file, from the lines of that one alone."""
    lines, first = _lines_of(code), code.co_firstlineno
    if not lines:
        return None
    around = "\n" * (first - 1)
    if lines[0][:1].isspace():
        if first < 2:
            return None
        around = "\n" * (first - 2) + "if True:\n"
    tree = _parsed(around + "".join(lines))
    if tree is None:  # a text at the margin within its lines, say
        tree = _parsed_file("".join(linecache.getlines(code.co_filename)))
    for node in statements(tree) if tree is not None else ():
        if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
            continue
        if min([node.lineno, *(d.lineno for d in node.decorator_list)]) == first:
            return node
    return None


@lru_cache(maxsize=8)
def _parsed_file(text: str) -> ast.Module | None:
    """The tree of a whole file, which is read for each of its lambdas."""
    return _parsed(text)


def _lambda_of(code: CodeType) -> ast.Lambda | None:
    """The only lambda that begins in a line."""
    tree, line = _parsed_file("".join(linecache.getlines(code.co_filename))), code.co_firstlineno
    around: list[ast.AST] = [tree] if tree is not None else []
    for node in around:  # which grows, by what may hold the line
        around += [n for n in inside(node) if not isinstance(n, ast.stmt) or _spans(n, line)]
    found = [n for n in around if isinstance(n, ast.Lambda) and n.lineno == line]
    return found[0] if len(found) == 1 else None


def _spans(statement: ast.stmt, line: int) -> bool:
    """Whether a line is one of a statement's, or of its decorators'."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(d.lineno for d in decorators)])
    return first <= line <= (statement.end_lineno or line)


def definition_of(code: CodeType) -> Definition | None:
    """The definition of a code object in its file, not to be changed; None of one of several
    lambdas in a line, and where there is no source.
    """
    lines = linecache.getlines(code.co_filename)
    known = _found.get(code)
    if known is None or known[0] is not lines:
        of = _lambda_of if code.co_name == "<lambda>" else _function_of
        known = _found[code] = lines, of(code)
    return known[1]
