"""Where functions of floats have an end or a break: every pair of zeros, ones, halves, the largest,
the smallest, infinities and NaN; the sign of what is zero counts.
"""

from __future__ import annotations

import math

import numpy as np

import tkc
from tests.operations.case import F32, F64, FLOATS, Case, Near, rubbish, special
from tests.operations.elementwise import OPERATORS

# name -> NumPy's function of float64 of one or two, errors in ulp of float32 and of float64
UNARY = {
    "neg": (np.negative, 0, 0),
    "floor": (np.floor, 0, 0),
    "ceil": (np.ceil, 0, 0),
    "round": (np.rint, 0, 0),
    "trunc": (np.trunc, 0, 0),
    "sqrt": (np.sqrt, 0, 0),
    "expm1": (np.expm1, 4, 8),
    "log1p": (np.log1p, 4, 8),
    "sin": (np.sin, 2, 4),
    "tan": (np.tan, 5, 8),
    "asin": (np.arcsin, 3, 4),
    "atan": (np.arctan, 3, 4),
    "sinh": (np.sinh, 8, 16),
    "tanh": (np.tanh, 4, 8),
    "asinh": (np.arcsinh, 6, 12),
    "atanh": (np.arctanh, 6, 12),
    "cbrt": (np.cbrt, 2, 3),
    "erf": (np.vectorize(math.erf, otypes=[float]), 4, 8),
}
BINARY = {
    "add": (np.add, 0, 0),
    "sub": (np.subtract, 0, 0),
    "mul": (np.multiply, 0, 0),
    "div_rn": (np.divide, 0, 0),
    "floordiv": (np.floor_divide, 0, 0),
    "mod": (np.mod, 0, 0),
    "rem_trunc": (np.fmod, 0, 0),
    "pow": (np.power, 16, 512),
}
FUNCTIONS = UNARY | BINARY
MOST = 9e8  # of float64: sines on a GPU take less than 10^9


def ends(x, y, o, s, N: tkc.constexpr, NAMES: tkc.constexpr):
    a, b = tkc.load(x, (0,), (N,)), tkc.load(y, (0,), (N,))
    one = tkc.full((N,), 1.0)
    for i, name in enumerate(NAMES):
        f = OPERATORS.get(name) or getattr(tkc, name)
        found = f(a, b) if name in BINARY else f(a)
        tkc.store(o, (i, 0), found[None, :])
        sign = tkc.where(
            tkc.isnan(found), 0.0, tkc.copysign(tkc.full((N,), 1.0), found.to(s.dtype))
        )
        tkc.store(s, (i, 0), sign[None, :])


def operands(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """All pairs; of float64 none beyond what sines take."""
    x = np.unique([1.5, -2.5, 0.5, -3.0, 7.0, 100.0, -0.0078125])
    x = np.concatenate([special(dtype), x.astype(dtype)])
    if dtype == F64:
        x = np.where(np.isfinite(x), x.clip(-MOST, MOST), x)
    a, b = np.meshgrid(x, x)
    return a.ravel(), b.ravel()


def case(dtype: np.dtype, names: tuple[str, ...]) -> Case:
    x, y = operands(dtype)

    def arguments(r):
        shape = len(names), len(x)
        o, s = rubbish(shape, dtype), rubbish(shape, F32)
        return dict(x=x.copy(), y=y.copy(), o=o, s=s, N=len(x), NAMES=names)

    def want(a):
        # float8 saturates, and float32 is what short floats are computed in
        wide = F64 if dtype == F64 else F32
        x, y, found, ulps = a["x"].astype(wide), a["y"].astype(wide), [], []
        for name in names:
            f, of32, of64 = FUNCTIONS[name]
            exact = name in BINARY and not of32
            kind = wide if exact else F64
            found.append(np.asarray(f(*(x.astype(kind), y.astype(kind))[: 1 + (name in BINARY)])))
            ulps.append(of64 if dtype == F64 else of32 if dtype == F32 else 0.6 if of32 else 0)
        found = np.stack([v.astype(F64) for v in found])
        sign = np.where(np.isnan(found), 0, np.copysign(1, found)).astype(F32)
        tiny = float(np.ldexp(1.0, -1021 if dtype == F64 else -125))
        allowed = np.array(ulps)[:, None] + np.zeros(found.shape)
        return dict(o=Near(found, allowed, np.where(allowed > 0, tiny, 0.0)), s=sign)

    group = "one" if names[0] in UNARY else "two"
    return Case(f"ends of {dtype} {group}", ends, arguments, want)


CASES = [case(t, tuple(names)) for t in FLOATS for names in (UNARY, BINARY)]
