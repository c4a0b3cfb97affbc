"""Where functions of floats have an end or a break: every pair of zeros, ones, halves, the largest,
the smallest, infinities and NaN; the sign of what is zero counts.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

import tkc
from tests.operations.case import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    FLOATS,
    LARGEST,
    Case,
    Near,
    rubbish,
    special,
)
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


# --------------------------------------------------------------------------------------------------
def larger(p, q):
    return tkc.where(p >= q, p, q)


def moves(x, o, M: tkc.constexpr, N: tkc.constexpr):
    """What moves elements, or chooses among them, rounds none."""
    a, i = tkc.load(x, (0, 0), (M, N)), tkc.arange(N)[None, :]
    places = tkc.broadcast_to(i * 5 % N, (M, N))
    one, other = x[0, 0], x[0, 1]
    for k, found in enumerate(
        (
            tkc.where(i % 2 == 0, a, tkc.flip(a, 0)),
            tkc.gather(a, places, 1),
            tkc.sort(a),
            tkc.sort(a, descending=True),
            tkc.broadcast_to(tkc.reduce(a, 1, larger, keep_dims=True), (M, N)),
            tkc.scan(a, 1, larger),
            tkc.broadcast_to(tkc.where(one > other, one, other), (M, N)),
            tkc.broadcast_to(tkc.topk(a, 1), (M, N)),
        )
    ):
        tkc.store(o, (k, 0, 0), found[None])


def infinities(m: int, n: int) -> Case:
    def arguments(r):
        x = r.uniform(-3, 3, (m, n)).astype(E5M2)
        x[::2, ::3], x[1::2, 1::4] = np.inf, -np.inf
        return dict(x=x, o=rubbish((8, m, n), E5M2), M=m, N=n)

    def want(a):
        x = a["x"].astype(F32)
        most, down = x.max(1, keepdims=True), -np.sort(-x, 1)
        found = (
            np.where(np.arange(n) % 2 == 0, x, x[::-1]),
            x[:, np.arange(n) * 5 % n],
            np.sort(x, 1),
            down,
            np.broadcast_to(most, x.shape),
            np.maximum.accumulate(x, 1),
            np.full(x.shape, x[0, :2].max()),
            np.broadcast_to(most, x.shape),
        )
        return dict(o=np.stack(found).astype(E5M2))

    return Case(f"infinities moved {m}x{n}", moves, arguments, want)


def rounded_infinities(x, o, N: tkc.constexpr):
    """What computes rounds: float8 has none."""
    a = tkc.load(x, (0,), (N,))
    less = -a
    for k, found in enumerate((a * 1.0, -less, a - 0.0, a.to(tkc.float16).to(x.dtype))):
        tkc.store(o, (k, 0), found[None, :])


def saturated(n: int) -> Case:
    def want(a):
        return dict(o=np.tile(a["x"].astype(F32).clip(-57344, 57344), (4, 1)).astype(E5M2))

    def arguments(r):
        x = np.resize([np.inf, -np.inf, 1.0, -57344.0, 0.25], n).astype(E5M2)
        return dict(x=x, o=rubbish((4, n), E5M2), N=n)

    return Case(f"infinities rounded {n}", rounded_infinities, arguments, want)


# --------------------------------------------------------------------------------------------------
def shortened(x, loaded, known, singles, N: tkc.constexpr, NUMBERS: tkc.constexpr):
    tkc.store(loaded, (0,), tkc.load(x, (0,), (N,)).to(loaded.dtype))
    for i, number in enumerate(NUMBERS):
        tkc.store(known, (i,), tkc.full((1,), number, tkc.float64).to(known.dtype))
        tkc.store(singles, (i,), tkc.full((1,), number, tkc.float32).to(known.dtype))


def nearest(x: np.ndarray, t: np.dtype) -> np.ndarray:
    """The nearest number of a type of few bits, the even one of two: among them all. What is beyond
    the largest by half a unit is infinite; float8 saturates.
    """
    words = np.arange(1 << 8 * t.itemsize - 1, dtype=f"u{t.itemsize}").view(t).astype(F64)
    words = words[np.isfinite(words)]
    size = np.abs(x)
    above = np.searchsorted(words, size).clip(1, len(words) - 1)
    low, high = size - words[above - 1], words[above] - size
    found = words[np.where((low < high) | (low == high) & (above % 2 == 1), above - 1, above)]
    if t not in LARGEST:
        found = np.where(size >= words[-1] + (words[-1] - words[-2]) / 2, np.inf, found)
    return np.copysign(np.where(np.isnan(size), np.nan, found), x).astype(t)


def conversions(t: np.dtype) -> Case:
    """Of ties, of what is a little more and less, which float32 does not tell apart, and of what is
    too large.
    """
    digits = ml_dtypes.finfo(t).nmant + 1
    ties = (1 + np.arange(1, 8, 2) * 2.0**-digits)[:, None] * (1 + 2.0**-40 * np.arange(-1, 2))
    x = np.concatenate([ties.ravel(), -(2.0**-3) * ties.ravel()])
    most = float(ml_dtypes.finfo(t).max)
    x = np.concatenate([x, most * np.array([1.01, -1.2, 1e6]), [np.inf, -np.inf, np.nan, -0.0]])
    n = len(x)

    def want(a):
        singles = nearest(x.astype(F32).astype(F64), t)
        return dict(loaded=nearest(x, t), known=nearest(x, t), singles=singles)

    def arguments(r):
        outputs = {k: rubbish(n, t) for k in ("loaded", "known", "singles")}
        return dict(x=x.copy(), **outputs, N=n, NUMBERS=tuple(x.tolist()))

    return Case(f"conversions of float64 to {t} {n}", shortened, arguments, want)


CASES = [case(t, tuple(names)) for t in FLOATS for names in (UNARY, BINARY)] + [
    *(infinities(m, n) for m, n in ((1, 7), (16, 32), (7, 100))),
    *map(saturated, (7, 96)),
    *map(conversions, (F16, BF16, E4M3, E5M2)),
]
