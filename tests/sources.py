"""Python files as trees, each parsed once for all tests that look at the code itself."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All that is in the tree of a file: walked once, too."""
    return tuple(ast.walk(tree(path)))
