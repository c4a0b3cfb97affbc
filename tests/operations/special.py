"""Functions of mathematics that are made of others: each with its error in ulp, over the arguments
that it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tkc
from tests.operations.case import F32, F64, FLOATS, LARGEST, Case, Near, rubbish, special

EXTENTS = (1, 7, 100, 1000)


def of_numbers(f: Callable[..., float]) -> Callable[..., np.ndarray]:
    """A function of Python's numbers; NaN where it raises."""

    def one(*x: float) -> float:
        try:
            return f(*x)
        except (ValueError, OverflowError):
            return math.nan

    return np.vectorize(one, otypes=[float])


def log_gamma(x: float) -> float:
    """inf at the poles, and where it is too large."""
    if math.isinf(x) or x <= 0 and x == math.floor(x) or x > 1e305:
        return math.inf
    return math.lgamma(x)


@dataclass(frozen=True)
class Function:
    """`exact`: NumPy's, of float64; errors in ulp of float32 and float64; the arguments of float32
    and of float64 that are drawn; `absolute`: an error near zeros, by bits.
    """

    exact: Callable[..., np.ndarray]
    of32: float
    of64: float
    low: float = -4.0
    high: float = 4.0
    absolute: tuple[float, float] = (0.0, 0.0)
    arity: int = 1


FUNCTIONS = {
    "tan": Function(np.tan, 5, 8, -30, 30),
    "asin": Function(np.arcsin, 3, 4, -1.05, 1.05),
    "acos": Function(np.arccos, 3, 4, -1.05, 1.05),
    "atan": Function(np.arctan, 3, 4, -30, 30),
    "sinh": Function(np.sinh, 8, 16, -90, 90),
    "cosh": Function(np.cosh, 6, 16, -90, 90),
    "asinh": Function(np.arcsinh, 6, 12, -2e4, 2e4),
    "acosh": Function(np.arccosh, 6, 12, 0.5, 9),
    "atanh": Function(np.arctanh, 6, 12, -1.05, 1.05),
    "cbrt": Function(np.cbrt, 2, 3, -1e3, 1e3),
    "log10": Function(np.log10, 5, 8, -1, 1e4),
    "erfc": Function(of_numbers(math.erfc), 12, 16, -6, 9),
    "erfinv": Function(of_numbers(tkc.erfinv), 8, 16, -1.05, 1.05),
    "lgamma": Function(of_numbers(log_gamma), 12, 40, -9, 50, (4e-6, 4e-14)),
    "atan2": Function(np.arctan2, 4, 5, arity=2),
    "hypot": Function(np.hypot, 3, 4, arity=2),
    "fmod": Function(np.fmod, 0, 0, arity=2),
    "copysign": Function(np.copysign, 0, 0, arity=2),
}


def functions(x, y, o, n, N: tkc.constexpr, NAMES: tkc.constexpr):
    for i, name in enumerate(NAMES):
        a, b = tkc.load(x, (i, 0), (None, N)), tkc.load(y, (i, 0), (None, N))
        f = getattr(tkc, name)
        tkc.store(o, (i, 0), (f(a, b) if FUNCTIONS[name].arity == 2 else f(a))[None, :])
    tkc.store(
        n, (0,), tkc.nextafter(tkc.load(x, (0, 0), (None, N)), tkc.load(y, (0, 0), (None, N)))
    )


def drawn(r: np.random.Generator, name: str, dtype: np.dtype, n: int) -> np.ndarray:
    f, most = FUNCTIONS[name], LARGEST.get(dtype, np.inf)
    x = r.uniform(f.low, f.high, n)
    x[::3] *= 10.0 ** -r.integers(0, 7, x[::3].shape)
    x = x.clip(-most, most).astype(dtype)
    if n >= 96:
        s = special(dtype)
        if name == "copysign":  # by bits: an infinity of float8 stays one
            s = [v for v in s if not np.isinf(np.float64(v))]
        x[: len(s)], x[-4:] = s, np.array([-1, 1, 0.5, 2]).astype(dtype)
    return x


def case(dtype: np.dtype, n: int, names: tuple[str, ...]) -> Case:
    def arguments(r):
        x = np.stack([drawn(r, name, dtype, n) for name in names])
        y = np.stack([drawn(r, name, dtype, n)[::-1] for name in names])
        o, after = rubbish(x.shape, dtype), rubbish(n, dtype)
        return dict(x=x, y=y, o=o, n=after, N=n, NAMES=names)

    def want(a):
        found, ulps, absolute = [], [], []
        for name, x, y in zip(names, a["x"].astype(F64), a["y"].astype(F64), strict=True):
            f = FUNCTIONS[name]
            found.append(f.exact(x, y) if f.arity == 2 else f.exact(x))
            allowed = f.of64 if dtype == F64 else f.of32 if dtype == F32 else 0.6 if f.of32 else 0
            ulps.append(np.full(n, float(allowed)))
            # below the smallest normal number results may be flushed
            tiny = float(np.ldexp(1.0, {F64: -1021}.get(dtype, -125))) if f.of32 else 0.0
            absolute.append(np.maximum(np.full(n, f.absolute[dtype == F64]), tiny))
        x, y = a["x"][0], a["y"][0]
        after = np.nextafter(x, y) if x.dtype.kind == "f" else following(x, y)
        return dict(o=Near(np.stack(found), np.stack(ulps), np.stack(absolute)), n=after)

    return Case(
        f"special functions {'abcdef'[GROUPS.index(names)]} of {dtype} {n}",
        functions,
        arguments,
        want,
    )


def following(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """nextafter of ml_dtypes' floats, by a table of them all."""
    kind = f"u{x.itemsize}"
    every = np.arange(1 << 8 * x.itemsize).astype(kind).view(x.dtype).astype(F64)
    every = np.unique(every[~np.isnan(every)])
    at = np.searchsorted(every, np.where(np.isnan(x.astype(F64)), 0, x.astype(F64)))
    a, b = x.astype(F64), y.astype(F64)
    up = every[np.minimum(at + 1, len(every) - 1)]
    down = every[np.maximum(at - 1, 0)]
    found = np.where(a == b, b, np.where(b > a, up, down))
    return np.where(np.isnan(a) | np.isnan(b), np.nan, found).astype(x.dtype)


NAMES = tuple(FUNCTIONS)
GROUPS = [NAMES[i : i + 3] for i in range(0, len(NAMES), 3)]
CASES = [case(t, n, names) for t in FLOATS for n in EXTENTS for names in GROUPS]
