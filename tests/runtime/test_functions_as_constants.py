"""Functions as compile-time arguments: another function is another kernel, however alike they look
and wherever they lie in memory.
"""

import functools
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

import tkc


@tkc.jit
def applied(x, F: tkc.constexpr):
    tkc.store(x, (0,), F(tkc.load(x, (0,), (4,))))


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, v):
        return v * self.factor

    def __getitem__(self, i):
        return self.factor * i

    def add(self, v):
        return v + self.factor


def scaled(factor):
    return lambda v: v * factor


def result(function) -> list[float]:
    x = np.arange(4, dtype=np.float32)
    applied[1](x, function)
    return x.tolist()


def test_two_lambdas_of_one_line():
    one, other = (lambda v: v + 1), (lambda v: v * 10)
    assert result(one) == [1, 2, 3, 4] and result(other) == [0, 10, 20, 30]


def test_a_function_that_is_gone_by_now():
    """The next one may have its place in memory."""
    for factor in range(2, 12):
        assert result(scaled(factor)) == [0, factor, 2 * factor, 3 * factor]
        assert result(lambda v, c=factor: v + c) == [factor, 1 + factor, 2 + factor, 3 + factor]


def test_functions_of_one_factory_and_objects_of_one_class():
    for make in (scaled, Scale):
        two, five = make(2.0), make(5.0)
        assert result(two) == [0, 2, 4, 6] and result(five) == [0, 5, 10, 15]
        assert result(two) == [0, 2, 4, 6]


def read_element(constant, v):
    return v * constant[1]


@tkc.jit
def read(x, C: tkc.constexpr, F: tkc.constexpr):
    tkc.store(x, (0,), F(C, tkc.load(x, (0,), (4,))))


@tkc.jit
def read_attribute(x, C: tkc.constexpr):
    tkc.store(x, (0,), tkc.load(x, (0,), (4,)) * C.factor)


def launched(kernel, *constants) -> list[float]:
    x = np.arange(4, dtype=np.float32)
    kernel[1](x, *constants)
    return x.tolist()


# by name: a launch with an object among its constants
READ = {
    "called": lambda scale: launched(applied, scale),
    "its method": lambda scale: launched(applied, scale.add),
    "in a partial": lambda scale: launched(applied, functools.partial(Scale.__call__, scale)),
    "its attribute": lambda scale: launched(read_attribute, scale),
    "its element": lambda scale: launched(read, scale, read_element),
}


@pytest.mark.parametrize("name", READ)
def test_what_an_object_holds_changes(name):
    scale, five = Scale(2.0), Scale(5.0)
    before, expected = READ[name](scale), READ[name](five)
    assert before != expected
    scale.factor = 5.0
    assert READ[name](scale) == expected
    scale.factor = 2.0
    assert READ[name](scale) == before and READ[name](five) == expected


@pytest.mark.parametrize("kernel", [read_attribute, applied])
def test_what_stays_is_compiled_once(kernel):
    scale = Scale(2.0)
    launched(kernel, scale)
    rebindings = kernel.rebindings
    launched(kernel, scale)
    launched(kernel, scale)
    assert kernel.rebindings == rebindings


@dataclass(frozen=True)
class Held:
    value: object


Pair = namedtuple("Pair", "value")
Other = namedtuple("Other", "value")
NUMBERS = 1, 1.0, True, np.float32(1), 0.0, -0.0


def told_apart(constant, v):
    """Which of those it is, by what equality does not tell."""
    held = getattr(constant, "value", constant)
    kinds = [type(constant).__name__, type(held).__name__, str(held)]
    return v * 0 + sum(map(ord, "".join(kinds)))


@pytest.mark.parametrize(
    "constants",
    [
        [Held(n) for n in NUMBERS],
        [Held(Held(n)) for n in NUMBERS],
        [Pair(1), Other(1), Pair(1.0)],
        [np.float32(0.0), np.float32(-0.0), np.float64(-0.0), np.float64(0.0)],
        [complex(0, 0), complex(0, -0.0)],
    ],
    ids=["record", "record in a record", "named tuples", "numbers of NumPy", "complex"],
)
def test_equal_constants_that_differ(constants):
    expected = [told_apart(c, 0) for c in constants]
    assert len(set(expected)) == len(expected)
    for c, number in [*zip(constants, expected, strict=True)] * 2:
        assert launched(read, c, told_apart) == [number] * 4
