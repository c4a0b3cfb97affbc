"""What is remembered of a program from one plan to the next: nothing where anything changed."""

import numpy as np
import pytest
from xdsl.dialects.builtin import StringAttr, UnitAttr, f32

import tkc
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import before, erase
from tkc.ir.text import parse
from tkc.ir.types import TileType
from tkc.ir.values import operations_in
from tkc.passes.analysis.remembered import Memory, mark, remembered, unchanged, unmark


@tkc.jit
def summed(x, out, N: tkc.constexpr):
    total = tkc.zeros((N,))
    for k in tkc.range(0, x.shape[0], N):
        total = total + tkc.load(x, (k,), (N,)) * 2.0
    tkc.store(out, (0,), tkc.sum(total))


@pytest.fixture
def module():
    x = np.zeros(4096, np.float32)
    return parse(summed.compile(x, x, N=1024, target="sm_90a").ir("trace"))


def only(module, kind):
    (found,) = operations_in(module, kind)
    return found


class Counted:
    """A question about a program that counts how often it is answered."""

    def __init__(self):
        self.times = 0
        self.ask = remembered(self._answer)

    def _answer(self, module):
        self.times += 1
        return len(list(module.walk()))


def asked_again(module, change):
    """Whether a question is answered anew after a change."""
    memory, question = Memory(), Counted()
    for _ in range(2):
        with unchanged(module, memory):
            question.ask(module)
    assert question.times == 1
    change(module)
    with unchanged(module, memory):
        question.ask(module)
    return question.times == 2


def exchange_operands(module):
    multiply = only(module, CLASSES["mul"])
    multiply.operands = multiply.operands[::-1]


def name_an_attribute(module):
    only(module, tile.Load).attributes["seen"] = UnitAttr()


def change_a_property(module):
    only(module, tile.Reduce).properties["kind"] = StringAttr("max")


def change_a_type(module):
    only(module, tile.Load).result._type = TileType((2048,), f32)


def move(module):
    """An operation of a loop to before it."""
    load = only(module, tile.Load)
    loop = load.parent_op()
    load.detach()
    before(loop, load)


def leave_out(module):
    erase(only(module, tile.Store))


@pytest.mark.parametrize(
    "change",
    [
        exchange_operands,
        name_an_attribute,
        change_a_property,
        change_a_type,
        move,
        leave_out,
        lambda module: mark(only(module, tile.Load), "seen", UnitAttr()),
    ],
)
def test_a_change_is_seen(change, module):
    assert asked_again(module, change)


def test_what_stays_is_not_asked_again(module):
    assert not asked_again(module, lambda module: None)
    assert not asked_again(module, lambda module: module.clone())


def test_another_program_is_asked(module):
    memory, question = Memory(), Counted()
    for each in (module, module.clone(), module):
        with unchanged(each, memory):
            question.ask(each)
    assert question.times == 3


def test_marks_within_a_block(module):
    """A mark is seen at once, and what is answered then still holds in the next block."""
    memory, question, load = Memory(), Counted(), only(module, tile.Load)
    with unchanged(module, memory):
        question.ask(module)
        mark(load, "seen", UnitAttr())
        question.ask(module)
        mark(load, "seen", UnitAttr())
        question.ask(module)
    assert question.times == 2
    with unchanged(module, memory):
        question.ask(module)
        assert question.times == 2
        unmark(load, "seen")
        question.ask(module)
    assert question.times == 3


def test_outside_nothing_is_remembered(module):
    question = Counted()
    for _ in range(2):
        question.ask(module)
    assert question.times == 2
    for _ in range(2):
        with unchanged():
            question.ask(module)
            question.ask(module)
    assert question.times == 4
