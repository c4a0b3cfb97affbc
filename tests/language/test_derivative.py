"""tkc.vjp against differences in float64: every rule, sums of broadcasts, choices, reads by index;
what has no derivative is refused.
"""

import math

import numpy as np
import pytest

import tkc
from tkc.language.derivative import RULES

ROWS, COLUMNS = 5, 7

# by rule: the function of tkc, that of NumPy, and where its operands lie
ONE = {
    "neg": (lambda x: -x, lambda x: -x, (-2, 2)),
    "abs": (tkc.abs, abs, (-2, 2)),
    "exp": (tkc.exp, np.exp, (-2, 2)),
    "exp2": (tkc.exp2, np.exp2, (-2, 2)),
    "expm1": (tkc.expm1, np.expm1, (-2, 2)),
    "log": (tkc.log, np.log, (0.5, 3)),
    "log2": (tkc.log2, np.log2, (0.5, 3)),
    "log1p": (tkc.log1p, np.log1p, (-0.5, 3)),
    "sqrt": (tkc.sqrt, np.sqrt, (0.5, 3)),
    "rsqrt": (tkc.rsqrt, lambda x: x**-0.5, (0.5, 3)),
    "sin": (tkc.sin, np.sin, (-3, 3)),
    "cos": (tkc.cos, np.cos, (-3, 3)),
    "tanh": (tkc.tanh, np.tanh, (-3, 3)),
    "erf": (tkc.erf, None, (-3, 3)),
    "tan": (tkc.tan, np.tan, (-1, 1)),
    "asin": (tkc.asin, np.arcsin, (-0.9, 0.9)),
    "acos": (tkc.acos, np.arccos, (-0.9, 0.9)),
    "atan": (tkc.atan, np.arctan, (-3, 3)),
    "sinh": (tkc.sinh, np.sinh, (-2, 2)),
    "cosh": (tkc.cosh, np.cosh, (-2, 2)),
    "asinh": (tkc.asinh, np.arcsinh, (-2, 2)),
    "acosh": (tkc.acosh, np.arccosh, (1.5, 4)),
    "atanh": (tkc.atanh, np.arctanh, (-0.9, 0.9)),
    "cbrt": (tkc.cbrt, np.cbrt, (0.5, 3)),
    "log10": (tkc.log10, np.log10, (0.5, 3)),
    "erfc": (tkc.erfc, np.vectorize(math.erfc), (-2, 3)),
    "erfinv": (tkc.erfinv, np.vectorize(tkc.erfinv), (-0.9, 0.9)),
    "lgamma": (tkc.lgamma, np.vectorize(math.lgamma), (0.3, 6)),
    "floor": (lambda x: tkc.floor(x) + x, lambda x: np.floor(x) + x, (0.1, 0.9)),
    "mean": (
        lambda x: x / (tkc.sum(x, axis=1, keep_dims=True) + 9),
        lambda x: x / (x.sum(1, keepdims=True) + 9),
        (0, 1),
    ),
    "turned": (lambda x: (x.T * 2).reshape(5, 7) * x, None, (-1, 1)),
    "narrow": (lambda x: (x * 2).to(tkc.float16).to(tkc.float32), lambda x: 2 * x, (-1, 1)),
}
TWO = {
    "add": (lambda x, y: x + y, (-2, 2)),
    "sub": (lambda x, y: x - y, (-2, 2)),
    "mul": (lambda x, y: x * y, (-2, 2)),
    "div": (lambda x, y: x / y, (0.5, 2)),
    "pow": (lambda x, y: x**y, (0.5, 2)),
    "mod": (lambda x, y: x % y, (1, 1.9)),
    "rem_trunc": (lambda x, y: np.fmod(x, y), (1, 1.9)),
    "fmax": (lambda x, y: np.fmax(x, y), (-2, 2)),
    "fmin": (lambda x, y: np.fmin(x, y), (-2, 2)),
    "atan2": (lambda x, y: np.arctan2(x, y), (0.5, 2)),
    "hypot": (lambda x, y: np.hypot(x, y), (0.5, 2)),
    "max": (lambda x, y: np.maximum(x, y), (-2, 2)),
    "min": (lambda x, y: np.minimum(x, y), (-2, 2)),
    "where": (lambda x, y: np.where(x > y, x * y, y * y), (-2, 2)),
    "fma": (lambda x, y: x * y + x, (-2, 2)),
    "div_rn": (lambda x, y: x / y, (0.5, 2)),
}
OURS = {
    "pow": tkc.pow,
    "rem_trunc": tkc.rem_trunc,
    "fmax": tkc.fmax,
    "fmin": tkc.fmin,
    "atan2": tkc.atan2,
    "hypot": tkc.hypot,
    "max": tkc.maximum,
    "min": tkc.minimum,
    "where": lambda x, y: tkc.where(x > y, x * y, y * y),
    "fma": lambda x, y: tkc.fma(x, y, x),
    "div_rn": tkc.div_rn,
}


@tkc.jit
def of_one(x, g, value, dx, F: tkc.constexpr, M: tkc.constexpr, N: tkc.constexpr):
    result, pull = tkc.vjp(F, tkc.load(x, (0, 0), (M, N)))
    tkc.store(value, (0, 0), result)
    tkc.store(dx, (0, 0), pull(tkc.load(g, (0, 0), (M, N)))[0])


@tkc.jit
def of_two(x, y, g, value, dx, dy, F: tkc.constexpr, M: tkc.constexpr, N: tkc.constexpr):
    """y is a row, that all rows of x share."""
    result, pull = tkc.vjp(F, tkc.load(x, (0, 0), (M, N)), tkc.load(y, (0,), (N,)))
    tkc.store(value, (0, 0), result)
    first, second = pull(tkc.load(g, (0, 0), (M, N)))
    tkc.store(dx, (0, 0), first)
    tkc.store(dy, (0,), second)


def drawn(low, high, *shape, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def differences(f, x, g, step=1e-5):
    """The gradient of sum(f(x) · g), element by element."""
    x, found = x.astype(np.float64), np.zeros(x.shape)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        found[i] = ((f(up) - f(down)) * g).sum() / (2 * step)
    return found


def _erf(x):
    from math import erf

    return np.vectorize(erf)(x)


REFERENCES = {"erf": _erf, "turned": lambda x: (x.T * 2).reshape(5, 7) * x}


@pytest.mark.parametrize("name", ONE)
def test_one_operand(name):
    ours, theirs, span = ONE[name]
    theirs = theirs or REFERENCES[name]
    x, g = drawn(*span, ROWS, COLUMNS), drawn(-1, 1, ROWS, COLUMNS, seed=1)
    value, dx = np.zeros_like(x), np.zeros_like(x)
    of_one[1](x, g, value, dx, ours, ROWS, COLUMNS)
    rough = 1e-3 if name == "narrow" else 2e-5
    np.testing.assert_allclose(value, theirs(x.astype(np.float64)), rtol=rough, atol=rough)
    np.testing.assert_allclose(dx, differences(theirs, x, g), rtol=rough, atol=rough)


@pytest.mark.parametrize("name", TWO)
def test_two_operands(name):
    theirs, span = TWO[name]
    ours = OURS.get(name, theirs)
    x, g = drawn(*span, ROWS, COLUMNS), drawn(-1, 1, ROWS, COLUMNS, seed=1)
    y = drawn(*span, COLUMNS, seed=2) / (4 if name == "mod" else 1)
    value, dx, dy = np.zeros_like(x), np.zeros_like(x), np.zeros_like(y)
    of_two[1](x, y, g, value, dx, dy, ours, ROWS, COLUMNS)
    wide = [a.astype(np.float64) for a in (x, y)]
    np.testing.assert_allclose(value, theirs(*wide), rtol=2e-5, atol=2e-5)
    of_x = differences(lambda a: theirs(a, wide[1]), x, g, 1e-7)
    of_y = differences(lambda a: theirs(wide[0], a), y, g, 1e-7)
    np.testing.assert_allclose(dx, of_x, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(dy, of_y, rtol=1e-4, atol=1e-4)


def test_every_rule_has_a_case():
    # reciprocal and atan2 have no name in the language
    assert not set(RULES) - set(ONE) - set(TWO) - {"reciprocal", "atan2"}


def test_equals_share_the_gradient():
    x, y = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    g, value, dx, dy = np.ones_like(x), np.zeros_like(x), np.zeros_like(x), np.zeros_like(y)
    of_two[1](x, y, g, value, dx, dy, tkc.maximum, 2, 3)
    assert (dx == 0.5).all() and (dy == 1).all()


def test_what_does_not_matter_has_gradient_zero():
    x, y = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    g, value, dx, dy = np.ones_like(x), np.zeros_like(x), np.ones_like(x), np.ones_like(y)
    of_two[1](x, y, g, value, dx, dy, lambda a, b: a * tkc.floor(b), 2, 3)
    assert (dx == 1).all() and (dy == 0).all()


REFUSED = {
    "`sort` has no derivative": lambda x: tkc.sort(x),
    "a function with a floating value": lambda x: tkc.abs(x) > 0,
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message):
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(tkc.CompileError, match=message):
        of_one[1](x, x.copy(), x.copy(), x.copy(), REFUSED[message], 2, 4)


@tkc.jit
def of_integers(x, N: tkc.constexpr):
    tkc.vjp(tkc.abs, tkc.load(x, (0,), (N,)))


def test_an_integer_has_no_derivative():
    with pytest.raises(tkc.CompileError, match="takes floating tiles and scalars"):
        of_integers[1](np.zeros(4, np.int32), 4)
