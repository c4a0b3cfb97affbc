"""Python files as trees, each parsed once for all tests that look at the code itself."""

import ast
from functools import cache
from pathlib import Path

from tkc.language.syntax_trees import walk


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All that is in the tree of a file, but for what only says how others are meant (ast.Load):
    walked once, too.
    """
    return tuple(walk(tree(path)))
