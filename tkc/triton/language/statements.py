"""What Triton means by statements that Python reads in another way, as calls before a kernel's
source is rewritten for tracing.

    x = 1.0                     x = assigned(1.0)           a tensor: no longer a weak number
    x: tl.constexpr = n // 2    x = constant(n // 2)        stays a compile-time value
    x: tl.constexpr             pass                        so do later assignments of x
    x += y                      x = assigned(x + y)
    return 0                    return returned(0)
    assert c, "text"            asserted(c, "text")
"""

from __future__ import annotations

import ast

from tkc.language.syntax_trees import Transformer, placed, walk
from tkc.language.tracer import RUNTIME


class _Prepare(Transformer):
    """Of one function; functions and lambdas inside it keep their own."""

    def _call(self, name: str, at: ast.AST, *args: ast.expr) -> ast.expr:
        fn = ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load())
        call = placed(ast.Call(fn, list(args), []), at)
        for part in (fn, fn.value):
            placed(part, at)
        return call

    def __init__(self) -> None:
        self.constants: set[str] = set()  # names that are declared as compile-time values

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        names = {n.id for t in node.targets for n in walk(t) if isinstance(n, ast.Name)}
        name = "constant" if names and names <= self.constants else "assigned"
        node.value = self._call(name, node.value, node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name):
            return node
        read = placed(ast.Name(node.target.id, ast.Load()), node.target)
        made = placed(ast.BinOp(read, node.op, node.value), node)
        return placed(ast.Assign([node.target], self._call("assigned", node, made)), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        is_constant = ast.unparse(node.annotation).strip("'\"").split(".")[-1] == "constexpr"
        if node.value is None:
            if is_constant and isinstance(node.target, ast.Name):
                self.constants.add(node.target.id)
            return placed(ast.Pass(), node)
        name = "constant" if is_constant else "assigned"
        value = self._call(name, node.value, node.value)
        return placed(ast.Assign([node.target], value), node)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        if node.value is not None:
            node.value = self._call("returned", node.value, node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        args = [node.test, *([node.msg] if node.msg else [])]
        return placed(ast.Expr(self._call("asserted", node, *args)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node


def _assigned_parameters(node: ast.FunctionDef) -> list[ast.arg]:
    """Parameters that are no compile-time values and that the body assigns."""
    stored = {n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [
        a
        for a in every
        if a.arg in stored
        and not (a.annotation and ast.unparse(a.annotation).endswith("constexpr"))
    ]


def prepare(node: ast.FunctionDef | ast.Lambda) -> None:
    """Changes a definition in place."""
    if isinstance(node, ast.Lambda):
        return
    transformer = _Prepare()
    body = [transformer.visit(s) for s in node.body]
    given = []
    for a in _assigned_parameters(node):
        read = placed(ast.Name(a.arg, ast.Load()), a)
        store = placed(ast.Name(a.arg, ast.Store()), a)
        value = transformer._call("assigned", a, read)
        given.append(placed(ast.Assign([store], value), a))
    has_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    node.body = [*body[:has_docstring], *given, *body[has_docstring:]]
