"""Every public function and method of tkc/ says of which types its parameters and its result are.

Public is what has no leading underscore and stands in a module or a class.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.sources import tree

ROOT = Path(__file__).parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _public_functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """The public functions and methods of these statements, with their qualified names."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _public_functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, Function) and not node.name.startswith("_"):
            yield prefix + node.name, node
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _public_functions(node.body, prefix)


def _is_static(function: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)


def _unannotated(function: Function, is_method: bool) -> list[str]:
    """The parameters without an annotation, and `return` where the result has none."""
    a = function.args
    named = [*a.posonlyargs, *a.args]
    if is_method and not _is_static(function):
        named = named[1:]
    named += [p for p in (a.vararg, *a.kwonlyargs, a.kwarg) if p is not None]
    return [p.arg for p in named if p.annotation is None] + ["return"] * (function.returns is None)


def test_public_functions_are_annotated():
    wrong = [
        f"{path.relative_to(ROOT)}:{function.lineno}: {name} lacks {', '.join(missing)}"
        for path in sorted((ROOT / "tkc").rglob("*.py"))
        for name, function in _public_functions(tree(path).body)
        if (missing := _unannotated(function, "." in name))
    ]
    assert not wrong, "annotate:\n" + "\n".join(wrong)
