"""What a function reads of what lies outside of it, by its source: names, attributes, imports."""

from __future__ import annotations

import ast
import dataclasses
import dis
import inspect
import sys
import textwrap
import types
from functools import cache
from typing import Any


@dataclasses.dataclass(frozen=True)
class Imported:
    """A name that a function imports. module: with its dots; attribute: of `from module import
    attribute`; renamed: whether `import a.b` has a name of its own, which `a` has otherwise.
    """

    name: str
    module: str
    attribute: str | None = None
    renamed: bool = False


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a function reads, and its text: names from outside of it, attribute chains
    (("math", "pi")), the names that it reads otherwise too, its source without comments, doc
    strings and places, the names by which it may read attributes, the functions that it calls with
    nothing, and what it imports.
    """

    names: frozenset[str]
    chains: frozenset[tuple[str, ...]]
    bare: frozenset[str]
    text: bytes
    named: frozenset[str]
    asked: frozenset[str] = frozenset()
    imports: tuple[Imported, ...] = ()

    def of(self, name: str) -> tuple[set[tuple[str, ...]], bool]:
        """The chains that begin with a name, and whether it is read through these alone."""
        return {c for c in self.chains if c[0] == name}, name not in self.bare


@cache
def reading_of(code: types.CodeType) -> Reading:
    """What a function reads of what lies outside of it, by its source."""
    from tkc.language.syntax_trees import definition_of, walk

    codes = [code]
    for c in codes:
        codes += [k for k in c.co_consts if isinstance(k, types.CodeType)]
    names = frozenset(n for c in codes for n in _outside_names(c)) | frozenset(code.co_freevars)
    tree: ast.AST | None = None if code.co_name == "<lambda>" else definition_of(code)
    if tree is None:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
        except (OSError, TypeError, SyntaxError):  # no source: the byte code stands for it
            chains_read = frozenset((n, a) for c in codes for n in names for a in c.co_names)
            return Reading(names, chains_read, names, _byte_code(codes), _attribute_names(codes))
    nodes = walk(tree)
    chains, bare = _chains_and_bare_names(nodes)
    text = _spelled(tree, without_decorators=True).encode()
    if code.co_name == "<lambda>":  # its source is the whole statement, which may hold several
        text += _byte_code(codes)
    asked, imports = _asked(nodes), _imports(nodes)
    return Reading(names, chains, bare, text, _attribute_names(codes), asked, imports)


def _attribute_names(codes: list[types.CodeType]) -> frozenset[str]:
    """The names by which code may read attributes: those that it names, and its texts, by which
    `getattr` may.
    """
    texts = (k for c in codes for k in c.co_consts if isinstance(k, str) and k.isidentifier())
    return frozenset(texts).union(*(c.co_names for c in codes))


def _asked(nodes: list[ast.AST]) -> frozenset[str]:
    """The last names of functions that are called with nothing: what they give is not a matter of
    their arguments.
    """
    calls = (n.func for n in nodes if isinstance(n, ast.Call) and not (n.args or n.keywords))
    found = (getattr(f, "attr", None) or getattr(f, "id", None) for f in calls)
    return frozenset(name for name in found if name)


def _imports(nodes: list[ast.AST]) -> tuple[Imported, ...]:
    """What a function imports itself."""
    found: list[Imported] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [
                Imported(a.asname or a.name.partition(".")[0], a.name, renamed=bool(a.asname))
                for a in node.names
            ]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [Imported(a.asname or a.name, module, a.name) for a in node.names]
    return tuple(found)


_GLOBAL, _NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"]
_GLOBAL_FLAGS = sys.version_info >= (3, 11)  # its argument has another bit


def _outside_names(code: types.CodeType) -> list[str]:
    """The names that a function reads from outside of it, as dis.get_instructions finds them."""
    found, extended, words = [], 0, code.co_code
    for op, low in zip(words[::2], words[1::2], strict=True):
        argument = extended | low
        if op == _GLOBAL:
            found.append(code.co_names[argument >> _GLOBAL_FLAGS])
        elif op == _NAME:
            found.append(code.co_names[argument])
        extended = argument << 8 if op == dis.EXTENDED_ARG else 0
    return found


def _chains_and_bare_names(
    nodes: list[ast.AST],
) -> tuple[frozenset[tuple[str, ...]], frozenset[str]]:
    """The attribute chains of names, and the names that are read without an attribute too."""
    chains, roots = set(), set()
    within = {n.value for n in nodes if isinstance(n, ast.Attribute)}
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node in within:  # a part of a longer chain
            continue
        chain: list[str] = []
        root: ast.AST = node
        while isinstance(root, ast.Attribute):
            chain.append(root.attr)
            root = root.value
        if isinstance(root, ast.Name):
            chains.add((root.id, *reversed(chain)))
            roots.add(root)
    loads = (n for n in nodes if isinstance(n, ast.Name) and n not in roots)
    return frozenset(chains), frozenset(n.id for n in loads)


def _spelled(node: Any, without_decorators: bool = False) -> str:
    """A syntax tree as text, as ast.dump gives it, without places, doc strings and the decorators
    of the function that it is of.
    """
    if isinstance(node, list):
        return f"[{','.join(map(_spelled, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    held = {name: getattr(node, name, None) for name in node._fields}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        if ast.get_docstring(node, False) is not None:
            held["body"] = node.body[1:]
        if without_decorators:
            held["decorator_list"] = []
    elif isinstance(node, ast.Module):
        first, *others = node.body
        return f"[{_spelled(first, True)},{_spelled(others)}]"
    fields = ",".join([f"{name}={_spelled(value)}" for name, value in held.items()])
    return f"{type(node).__name__}({fields})"


def _byte_code(codes: list[types.CodeType]) -> bytes:
    """What functions do, without their places in the source."""

    def plain(k: object) -> object:
        return k.co_name if isinstance(k, types.CodeType) else k

    return repr(
        [(c.co_code, [plain(k) for k in c.co_consts], c.co_names, c.co_varnames) for c in codes]
    ).encode()
