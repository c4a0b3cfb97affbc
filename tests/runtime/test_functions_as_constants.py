"""Functions as compile-time arguments: another function is another kernel, however alike they look
and wherever they lie in memory.
"""

import numpy as np

import tkc


@tkc.jit
def applied(x, F: tkc.constexpr):
    tkc.store(x, (0,), F(tkc.load(x, (0,), (4,))))


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, v):
        return v * self.factor


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
