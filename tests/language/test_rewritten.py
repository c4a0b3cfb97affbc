"""Rewritten functions: what is rewritten once stays so."""

import ast
import gc
import linecache
from types import CellType, CodeType, FunctionType

from tkc.language import syntax_trees
from tkc.language.control import callable_in_kernel as rewritten

SOURCE = """def outer(x):
    f = lambda a, b: (a and b)
    return f(x, x)
"""


def made(name: str) -> FunctionType:
    found: dict = {}
    exec(compile(SOURCE, name, "exec"), found)
    return found.pop("outer")


def test_of_equal_code_the_second_outlives_the_first():
    """A kernel that random kernels found: `f` was rewritten again, in what was rewritten, once
    equal code had died (seed 80012721).
    """
    name = "<equal code>"
    linecache.cache[name] = len(SOURCE), None, SOURCE.splitlines(True), name
    first = made(name)
    done = rewritten(first)
    del first
    gc.collect()
    second = made(name)
    again = rewritten(second)
    assert (
        again is not second
        and again.__code__ == done.__code__
        and again.__code__ is not done.__code__
    )
    del done
    gc.collect()
    inner = next(
        c for c in again.__code__.co_consts if isinstance(c, CodeType) and c.co_name == "<lambda>"
    )
    f = FunctionType(inner, {}, "f", None, tuple(CellType(None) for _ in inner.co_freevars))
    assert rewritten(f) is f


def test_the_lambdas_of_a_file_are_found_in_one_tree(monkeypatch):
    name, text = "<lambdas>", "".join(f"f{i} = lambda x: x + {i}\n" for i in range(5))
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    found: dict = {}
    exec(compile(text, name, "exec"), found)
    read, parse = [], syntax_trees._parsed
    monkeypatch.setattr(syntax_trees, "_parsed", lambda text: read.append(text) or parse(text))
    for i in range(5):
        definition = syntax_trees.definition_of(found[f"f{i}"].__code__)
        assert ast.unparse(definition) == f"lambda x: x + {i}"
    assert read == [text]
