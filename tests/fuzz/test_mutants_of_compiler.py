"""The mutants of the compiler: which conditions are sites, and what one at work does."""

from __future__ import annotations

import ast

import pytest

from tests import mutants_of_compiler
from tests.mutants_of_compiler import SITE, Sites, _Instrument, in_child

TEXT = """
def may_move(op, stores):
    if op is None or op.is_volatile or len(stores) > 2:
        return False
    for store in stores:
        if store == op:
            continue
        if store in op:
            return "it is written"
    return op.is_load and not stores


def movable(stores):
    found = []
    for store in stores:
        if store.is_volatile:
            continue
        found.append(store)
    return found


def other(op):
    if isinstance(op, int):
        return None
    if op > 3:
        op = op + 1
    return op
"""


@pytest.fixture
def sites(monkeypatch):
    found = Sites()
    monkeypatch.setattr(mutants_of_compiler, "SITES", found)
    return found


def instrumented(sites):
    tree = _Instrument("x.py").visit(ast.parse(TEXT))
    names = {SITE: sites.value}
    exec(compile(ast.fix_missing_locations(tree), "x.py", "exec"), names)
    return names


def test_sites_are_conditions_that_refuse(sites):
    instrumented(sites)
    assert [(s.text, s.refusing) for s in sites.all] == [
        ("op.is_volatile", True),
        ("len(stores) > 2", True),
        ("store in op", True),
        ("op.is_load", False),
        ("store.is_volatile", True),
    ]


class Load(list):
    is_volatile, is_load = True, True


def test_an_active_site_never_refuses(sites):
    may_move = instrumented(sites)["may_move"]
    assert may_move(Load(), []) is False and sites.refused == {0}
    sites.active = 0
    assert may_move(Load(), [])
    assert may_move(Load([1]), [1]) == "it is written"


def test_a_child_says_what_it_found():
    assert in_child(lambda: None, 5) is None
    assert in_child(lambda: "a kernel", 5) == "a kernel"
    assert "ZeroDivisionError" in in_child(lambda: str(1 // 0), 5)


def test_a_child_that_does_not_end_is_a_finding():
    def never():
        while True:
            pass

    assert "no end within 1 s" in in_child(never, 1)
