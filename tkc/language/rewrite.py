"""The light rewrite of a function before it is traced: for, while, if, and, or, not, x if c else y,
chained comparisons, `is`, calls.

    for k in xs:                    __tkc_1__ = __tkc__.for_loop(xs, locals(), ("k",), ("acc", "k"))
        acc = acc + f(k)            for k in __tkc_1__:
                                        if __tkc_1__.traced: acc = __tkc_1__["acc"]; …
                                        acc = acc + __tkc__.call(f)(k)
                                        if __tkc_1__.traced: __tkc_1__.leave(locals())
                                    if __tkc_1__.traced: acc = __tkc_1__["acc"]; …

The result is ordinary Python with the user's line numbers, sharing the closure cells and globals of
the original: what is not about traced values runs as before. `if c: return` at the end of an arm
moves the rest of the function into the other arm (into both arms of an `if` in which some way
returns and others go on), and so does `if c: continue` the rest of a loop's body.
"""

from __future__ import annotations

import ast
import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias, TypeVar

from tkc.language.slots import is_users
from tkc.language.syntax_trees import (
    BODIES,
    Transformer,
    definition_of,
    inside,
    locate,
    placed,
    statements,
    walk,
)
from tkc.language.tracer import REWRITTEN, RUNTIME, fail, is_own

_Node = TypeVar("_Node", bound=ast.AST)
Prepare: TypeAlias = Callable[[ast.FunctionDef | ast.Lambda], None]
# By file, since code objects of two files are equal where their text and line are, and each must
# keep its own places; and by runtime, which may read the statements in its own way.
_cache: defaultdict[tuple[str, str], weakref.WeakKeyDictionary[CodeType, CodeType | None]] = (
    defaultdict(weakref.WeakKeyDictionary)
)
# of a code object's flags: what is run a part at a time
YIELDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_made: weakref.WeakSet[CodeType] = weakref.WeakSet()


def rewritten(f: FunctionType, runtime: ModuleType) -> FunctionType:
    """The function as it is traced; itself if it is a library's or its source cannot be had (then
    traced control flow fails). runtime: what it calls in place of statements; it may have

        prepare(node)    changes the definition before statements are rewritten (another language's
                         meaning of an assignment)
        takes_part(f)    whether a function's statements are rewritten at all; default: of all that
                         are not a library's
    """
    code = f.__code__
    takes_part = getattr(runtime, "takes_part", _takes_part)
    if RUNTIME in code.co_freevars or code in _made or not takes_part(f):
        return f
    known = _cache[code.co_filename, runtime.__name__]
    if code not in known:
        known[code] = _compile(code, getattr(runtime, "prepare", None))
    new = known[code]
    if new is None:
        return f
    REWRITTEN.add(code)
    cells = dict(zip(code.co_freevars, f.__closure__ or (), strict=False)) | {
        RUNTIME: CellType(runtime)
    }
    result = FunctionType(
        new, f.__globals__, f.__name__, f.__defaults__, tuple(cells[n] for n in new.co_freevars)
    )
    result.__kwdefaults__, result.__module__, result.__qualname__ = (
        f.__kwdefaults__,
        f.__module__,
        f.__qualname__,
    )
    return result


def _takes_part(f: FunctionType) -> bool:
    return is_users(f) and not is_own(f.__code__.co_filename)


def _compile(code: CodeType, prepare: Prepare | None) -> CodeType | None:
    definition = definition_of(code)
    if definition is None:
        return None
    node = _copied(definition)
    names = _parameters(node)
    if sorted(code.co_varnames[: len(names)]) != sorted(names):
        return None  # the file changed since it was imported
    if _may_yield(code) and _is_generator(node):
        return None
    if prepare is not None:
        prepare(node)
    made = _Rewriter().definition(node)
    inner = placed(ast.Expr(made) if isinstance(made, ast.Lambda) else made, node)
    found = _inside_factory(inner, code)
    _mark(found)
    return found


def _may_yield(code: CodeType) -> bool:
    """Whether a function, or one inside it, is a generator or a coroutine."""
    return bool(code.co_flags & YIELDING) or any(
        _may_yield(c) for c in code.co_consts if isinstance(c, CodeType)
    )


def _is_generator(node: ast.FunctionDef | ast.Lambda) -> bool:
    return any(isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)) for n in walk(node))


def _inside_factory(definition: ast.stmt, code: CodeType) -> CodeType:
    """Compiles a definition inside a function that has its free variables; a method also inside a
    class of its name, for its __private names.
    """
    place: Any = {"lineno": 1, "col_offset": 0}
    variables = [ast.arg(n, **place) for n in (*code.co_freevars, RUNTIME)]
    arguments = ast.arguments([], variables, None, [], [], None, [])
    # a function that names itself means the global (or its free variable), not the factory's
    is_global = isinstance(definition, ast.FunctionDef) and code.co_name not in code.co_freevars
    body = [ast.Global([code.co_name], **place), definition] if is_global else [definition]
    outer: ast.stmt = ast.FunctionDef("__factory__", arguments, body, [], **place)
    path = ["__factory__", code.co_name]
    owner = ["", *code.co_qualname.split(".")][-2]
    if owner.isidentifier():
        outer = ast.ClassDef(owner, [], [], [outer], [], **place)
        path.insert(0, owner)
    found = compile(ast.Module([outer], []), code.co_filename, "exec")
    for name in path:
        found = next(c for c in found.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return found


def _mark(code: CodeType) -> None:
    _made.add(code)
    REWRITTEN.add(code)
    for c in code.co_consts:
        if isinstance(c, CodeType):
            _mark(c)


def _copied(node: _Node) -> _Node:
    """As copy.deepcopy, of a tree in which no node is reached twice (but for those without fields,
    such as ast.Load, which Python shares).
    """
    if not node._fields:
        return node
    new = type(node).__new__(type(node))
    held = vars(new)
    for name, value in vars(node).items():
        if isinstance(value, ast.AST):
            held[name] = _copied(value)
        elif isinstance(value, list):
            held[name] = [_copied(v) if isinstance(v, ast.AST) else v for v in value]
        else:
            held[name] = value
    return new


# --------------------------------------------------------------------------------------------------
class _Assigned(ast.NodeVisitor):
    """Names that statements bind in their own scope."""

    def __init__(self):
        self.names: dict[str, None] = {}

    def generic_visit(self, node: ast.AST) -> None:
        for n in inside(node):
            self.visit(n)

    def visit_Name(self, n: ast.Name) -> None:
        if isinstance(n.ctx, (ast.Store, ast.Del)):
            self.names[n.id] = None

    def _definition(self, n):
        self.names[n.name] = None

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    def visit_Lambda(self, n: ast.Lambda) -> None:
        pass

    def visit_alias(self, n: ast.alias) -> None:
        self.names[(n.asname or n.name).partition(".")[0]] = None

    def visit_ExceptHandler(self, n: ast.ExceptHandler) -> None:
        if n.name:
            self.names[n.name] = None
        self.generic_visit(n)

    def visit_MatchAs(self, n: ast.MatchAs) -> None:
        if n.name:
            self.names[n.name] = None
        self.generic_visit(n)

    def visit_MatchStar(self, n: ast.MatchStar) -> None:
        if n.name:
            self.names[n.name] = None

    def visit_MatchMapping(self, n: ast.MatchMapping) -> None:
        if n.rest:
            self.names[n.rest] = None
        self.generic_visit(n)

    def _comprehension(self, n):  # its targets are its own; a := inside is ours
        for inner in walk(n):
            if isinstance(inner, ast.NamedExpr):
                self.names[inner.target.id] = None

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


def assigned(nodes: Sequence[ast.AST]) -> list[str]:
    visitor = _Assigned()
    for n in nodes:
        visitor.visit(n)
    return list(visitor.names)


def _own_nodes(
    nodes: Iterable[ast.AST], kind: type[_Node], outside: tuple[type[ast.AST], ...] = ()
) -> Iterator[_Node]:
    """Statements of a kind, not inside nested functions, nor inside nodes of `outside`."""
    apart = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, *outside)
    for n in nodes:
        if isinstance(n, kind):
            yield n
        if not isinstance(n, apart):
            held = n.__dict__
            for field in BODIES:
                if inner := held.get(field):
                    yield from _own_nodes(inner, kind, outside)


def _parameters(node: ast.FunctionDef | ast.Lambda) -> list[str]:
    return [a.arg for a in walk(node.args) if isinstance(a, ast.arg)]


def _shared_with_nested(node: ast.FunctionDef) -> list[str]:
    """Names of a function that functions inside it assign (nonlocal)."""
    nested = [
        name
        for f in statements(node)
        if isinstance(f, ast.FunctionDef)
        for g in statements(f)
        if isinstance(g, ast.Nonlocal)
        for name in g.names
    ]
    if not nested:
        return []
    own = {name for g in _own_nodes(node.body, ast.Nonlocal) for name in g.names}
    own.update(assigned(node.body), _parameters(node))
    return [name for name in dict.fromkeys(nested) if name in own]


# --------------------------------------------------------------------------------------------------
_RESULT = "__returned__"
# How often what follows an `if` is written into both of its arms, one within the other
MAX_COPIES = 4


_Jump = ast.Return | ast.Continue


def _jumps(nodes: Iterable[ast.AST], kind: type[_Jump]) -> bool:
    """Whether statements hold a `return`, or a `continue` of the loop whose body they are."""
    loops = (ast.For, ast.While) if kind is ast.Continue else ()
    return any(_own_nodes(nodes, kind, loops))


def _ends(body: list[ast.stmt], kind: type[_Jump]) -> bool:
    """Every way through these statements ends in a jump of this kind."""
    return bool(body) and (
        isinstance(body[-1], (kind, ast.Raise))
        or isinstance(body[-1], ast.If)
        and _ends(body[-1].body, kind)
        and _ends(body[-1].orelse, kind)
    )


def _at_the_end(jump: _Jump) -> ast.stmt:
    """What stands for a jump behind which nothing follows."""
    if isinstance(jump, ast.Continue):
        return placed(ast.Pass(), jump)
    value = jump.value or placed(ast.Constant(None), jump)
    name = placed(ast.Name(_RESULT, ast.Store()), jump)
    return placed(ast.Assign([name], value), jump)


def _without_jumps(
    body: list[ast.stmt], kind: type[_Jump], copies: int = MAX_COPIES
) -> list[ast.stmt]:
    """Without the jumps at the ends of arms: what follows such an arm moves into the other, and
    into both where each may go on.
    """
    for k, s in enumerate(body):
        rest = body[k + 1 :]
        if isinstance(s, kind):
            return [*body[:k], _at_the_end(s)]
        if not isinstance(s, ast.If) or not _jumps([s], kind):
            continue
        if _ends(s.body, kind):
            s.orelse = s.orelse + rest
        elif _ends(s.orelse, kind):
            s.body = s.body + rest
        elif rest and not copies:
            continue  # such a jump runs as it stands, where no traced branch is around it
        elif rest:
            again = [_copied(r) for r in rest]
            s.body, s.orelse, copies = s.body + rest, s.orelse + again, copies - 1
        s.body = _without_jumps(s.body, kind, copies)
        s.orelse = _without_jumps(s.orelse, kind, copies)
        return body[: k + 1]
    return body


class _Fill(Transformer):
    """Puts nodes, and statements, where their names stand."""

    def __init__(self, parts: dict[str, ast.AST | list[ast.stmt]]):
        self.parts = parts

    def visit_Name(self, n: ast.Name) -> ast.AST:
        part = self.parts.get(n.id)
        return part if isinstance(part, ast.AST) else n

    def visit_Expr(self, n: ast.Expr) -> ast.AST | list[ast.stmt]:
        if isinstance(n.value, ast.Name) and isinstance(part := self.parts.get(n.value.id), list):
            return part
        return self.generic_visit(n)


# --------------------------------------------------------------------------------------------------
class _Rewriter(Transformer):
    def __init__(self):
        self.loops, self.shared, self.count, self.returns = [], [], 0, False

    @contextmanager
    def _scope(self, shared: list[str]) -> Iterator[None]:
        """The state of a function's own statements; that of the function around it afterwards."""
        saved = self.loops, self.shared, self.returns
        self.loops, self.shared, self.returns = [], shared, False
        yield
        self.loops, self.shared, self.returns = saved

    def definition(self, node: ast.FunctionDef | ast.Lambda) -> ast.FunctionDef | ast.Lambda:
        """A function or lambda with its body rewritten, without decorators."""
        if isinstance(node, ast.Lambda):
            with self._scope(self.shared):
                node.body = self.visit(node.body)
            return node
        for g in _own_nodes(node.body, ast.Global):
            fail(
                f"a kernel cannot assign the global {', '.join(g.names)} (line {g.lineno}); return"
                " the value, or pass a list"
            )
        node.decorator_list = []
        with self._scope(_shared_with_nested(node)):
            node.body = self._function_body(node)
        return node

    def _function_body(self, node: ast.FunctionDef) -> list[ast.stmt]:
        """The rewritten statements of a function, and what the returns among them need."""
        body, prelude, coda = node.body, [], []
        if any(_jumps([s], ast.Return) for s in body if isinstance(s, ast.If)):
            body = _without_jumps(body, ast.Return)
            prelude = self.code(f"{_RESULT} = None", node)
            value = f"locals().get({_RESULT!r}, {RUNTIME}.unbound)"
            coda = self.code(f"return {RUNTIME}.result({value})", body[-1])
        if _jumps([s for s in body if not isinstance(s, ast.Return)], ast.Return):
            self.returns = True
            prelude = prelude + self.code(f"__tkc_depth__ = {RUNTIME}.depth()", node)
        has_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        docstring = body[:has_docstring]
        return docstring + prelude + self.block(body[has_docstring:]) + coda

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out = []
        for s in body:
            new = self.visit(s)
            out += new if isinstance(new, list) else [new]
        return out

    def code(self, text: str, at: ast.AST, **parts: ast.AST | list[ast.stmt]) -> list[ast.stmt]:
        """Statements from text, at the place of a node; names in `parts` become these nodes, `pass`
        of a name its statements.
        """
        tree = ast.parse(text)
        locate(tree, at)
        return _Fill(parts).visit(tree).body if parts else tree.body

    def temporary(self) -> str:
        self.count += 1
        return f"__tkc_{self.count}__"

    def restore(self, temp: str, names: list[str], at: ast.AST) -> list[ast.stmt]:
        """Binds the names as the construct says, if it is traced."""
        if not names:
            return []
        lines = [
            f"    {n} = {temp}[{n!r}]\n    if {n} is {RUNTIME}.unbound: del {n}\n" for n in names
        ]
        return self.code(f"if {temp}.traced:\n{''.join(lines)}", at)

    # ----------------------------------------------------------------------------------------------
    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        temp, targets = self.temporary(), assigned([node.target])
        names = [
            n
            for n in dict.fromkeys([*assigned(node.body), *targets, *self.shared])
            if n != _RESULT or _jumps(node.body, ast.Return)
        ]
        names += [n for n in assigned([ast.Expr(node.iter)]) if n not in names]
        iterable = self.visit(node.iter)
        self.loops.append(temp)
        body = self.block(_without_jumps(node.body, ast.Continue))
        self.loops.pop()
        start = self.code(
            f"{temp} = {RUNTIME}.for_loop(ITER, locals(), {tuple(targets)!r}, {tuple(names)!r})",
            node.iter,
            ITER=iterable,
        )
        loop = self.code(
            f"for TARGET in {temp}:\n    RESTORE\n    BODY\n    if {temp}.traced:"
            f" {temp}.leave(locals())",
            node,
            BODY=body,
            RESTORE=self.restore(temp, [n for n in names if n not in targets], node)
            or [placed(ast.Pass(), node)],
        )
        (statement,) = loop
        assert isinstance(statement, ast.For)
        statement.target = self.visit(node.target)
        return start + loop + self.restore(temp, names, node) + self.orelse(temp, node)

    def orelse(self, temp: str, node: ast.For | ast.While) -> list[ast.stmt]:
        return (
            self.code(f"if not {temp}.broken:\n    BODY", node, BODY=self.block(node.orelse))
            if node.orelse
            else []
        )

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        temp = self.temporary()
        names = list(
            dict.fromkeys([*assigned([ast.Expr(node.test)]), *assigned(node.body), *self.shared])
        )
        test = self.visit(node.test)
        self.loops.append(temp)
        body = self.block(_without_jumps(node.body, ast.Continue))
        self.loops.pop()
        nothing: list[ast.stmt] = [placed(ast.Pass(), node)]
        start = self.code(f"{temp} = {RUNTIME}.while_loop({tuple(names)!r})", node)
        loop = self.code(
            f"while {temp}.enter(locals()):\n    RESTORE\n    if not {temp}.test(TEST, locals()):"
            f" break\n    if {temp}.again: continue\n    AGAIN\n    BODY",
            node.test,
            TEST=test,
            BODY=body,
            RESTORE=self.restore(temp, names, node) or nothing,
            AGAIN=self.restore(temp, names, node) or nothing,
        )
        return start + loop + self.restore(temp, names, node) + self.orelse(temp, node)

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        temp = self.temporary()
        names = list(dict.fromkeys([*assigned(node.body), *assigned(node.orelse), *self.shared]))
        test, body, orelse = self.visit(node.test), self.block(node.body), self.block(node.orelse)
        nothing: list[ast.stmt] = [placed(ast.Pass(), node)]
        start = self.code(
            f"{temp} = {RUNTIME}.branch(TEST, locals())\nif {temp}.then():\n    BODY",
            node.test,
            TEST=test,
            BODY=body,
        )
        other = self.code(
            f"if {temp}.orelse(locals()):\n    RESTORE\n    BODY\nif {temp}.traced:"
            f" {temp}.merge(locals())",
            node.test,
            BODY=orelse or nothing,
            RESTORE=self.restore(temp, names, node) or nothing,
        )
        return start + other + self.restore(temp, names, node)

    def _jump(self, node):
        kind = "break" if isinstance(node, ast.Break) else "continue"
        return self.code(f"{self.loops[-1]}.jump({kind!r})", node) + [node] if self.loops else node

    visit_Break = visit_Continue = _jump

    def visit_Return(self, node: ast.Return) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if not self.returns:
            return node
        return self.code(f"{RUNTIME}.check_return(__tkc_depth__)", node) + [node]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node.args)
        decorators = [self.visit(d) for d in node.decorator_list]
        if _is_generator(node):
            return node
        self.definition(node)
        node.decorator_list = decorators
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    # ----------------------------------------------------------------------------------------------
    def expression(self, function: str, at: ast.AST, *operands: ast.expr) -> ast.expr:
        """A call of a function of the runtime, at the place of a node."""
        runtime = placed(ast.Name(RUNTIME, ast.Load()), at)
        called = placed(ast.Attribute(runtime, function, ast.Load()), at)
        return placed(ast.Call(called, list(operands), []), at)

    def thunk(self, node: ast.expr) -> ast.expr:
        empty = ast.arguments([], [], None, [], [], None, [])
        return placed(ast.Lambda(empty, node), node)

    def lazy(self, operands: list[ast.expr]) -> bool:
        """Operands may move into a lambda: they bind no name and do not yield."""
        return not any(
            isinstance(n, (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await))
            for o in operands
            for n in walk(o)
        )

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        if not self.lazy(node.values[1:]):
            return node
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        return self.expression(name, node, node.values[0], *map(self.thunk, node.values[1:]))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return self.expression("not_", node, node.operand) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if not self.lazy([node.body, node.orelse]):
            return node
        return self.expression(
            "ifexp", node, node.test, self.thunk(node.body), self.thunk(node.orelse)
        )

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) > 1 and self.lazy(node.comparators):
            names = {
                ast.Lt: "lt",
                ast.LtE: "le",
                ast.Gt: "gt",
                ast.GtE: "ge",
                ast.Eq: "eq",
                ast.NotEq: "ne",
                ast.Is: "is",
                ast.IsNot: "isnot",
                ast.In: "in",
                ast.NotIn: "notin",
            }
            kinds = ast.Tuple([ast.Constant(names[type(o)]) for o in node.ops], ast.Load())
            locate(kinds, node)
            return self.expression(
                "chain",
                node,
                node.left,
                kinds,
                *map(self.thunk, node.comparators),
            )
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and len(node.ops) == 1:
            name = "contains" if isinstance(node.ops[0], ast.In) else "not_contains"
            return self.expression(name, node, node.left, *node.comparators)
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            node.left, node.comparators[0] = (
                self.expression("used", n, n) for n in (node.left, node.comparators[0])
            )
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in (
            "super",
            "locals",
            "globals",
            "vars",
            "dir",
            "eval",
            "exec",
        ):
            return node
        node.func = self.expression("call", node.func, node.func)
        return node
