"""Element by element: every function and operator on every element type it takes, at every extent;
every pair of types of a cast.
"""

from __future__ import annotations

import math
import operator

import numpy as np

import tkc
from tests.operations.case import (
    BOOL,
    DTYPES,
    EXTENTS,
    F32,
    F64,
    FLOATS,
    INTEGERS,
    LARGEST,
    Case,
    Near,
    is_float,
    rubbish,
    special,
    values,
)

OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "div": operator.truediv,
    "neg": operator.neg,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "invert": operator.invert,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def wide(x):
    return x.astype(F64)


# name -> (number of operands, NumPy's function of float64, ulps of float32, ulps of float64)
FLOAT = {
    "add": (2, np.add, 0, 0),
    "sub": (2, np.subtract, 0, 0),
    "mul": (2, np.multiply, 0, 0),
    "neg": (1, np.negative, 0, 0),
    "abs": (1, np.abs, 0, 0),
    "maximum": (2, np.maximum, 0, 0),
    "minimum": (2, np.minimum, 0, 0),
    "fmax": (2, np.fmax, 0, 0),
    "fmin": (2, np.fmin, 0, 0),
    "rem_trunc": (2, np.fmod, 0, 0),
    "floor": (1, np.floor, 0, 0),
    "ceil": (1, np.ceil, 0, 0),
    "round": (1, np.rint, 0, 0),
    "trunc": (1, np.trunc, 0, 0),
    "sqrt": (1, np.sqrt, 0, 0),
    "div_rn": (2, np.divide, 0, 0),
    "div": (2, np.divide, 2, 0),
    "rsqrt": (1, lambda x: 1 / np.sqrt(x), 2, 4),
    "exp": (1, np.exp, 2, 4),
    "exp2": (1, np.exp2, 2, 4),
    "expm1": (1, np.expm1, 4, 8),
    "log": (1, np.log, 3, 4),
    "log2": (1, np.log2, 3, 4),
    "log1p": (1, np.log1p, 4, 8),
    "sin": (1, np.sin, 2, 4),
    "cos": (1, np.cos, 2, 4),
    "tanh": (1, np.tanh, 4, 8),
    "erf": (1, np.vectorize(math.erf, otypes=[float]), 4, 8),
    "sigmoid": (1, lambda x: 1 / (1 + np.exp(-x)), 4, 8),
    "pow": (2, np.power, 16, 64),
}


def of(name: str, a, b):
    f = OPERATORS.get(name) or getattr(tkc, name)
    return f(a, b) if name in BINARY else f(a)


BINARY = {n for n, (arity, *_) in FLOAT.items() if arity == 2} | {
    "floordiv",
    "mod",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "div_trunc",
    "rem_trunc",
    *COMPARISONS,
}


def rows(x, y, o, t, N: tkc.constexpr, FUNCTIONS: tkc.constexpr, TRUTHS: tkc.constexpr):
    a, b = tkc.load(x, (0,), (N,)), tkc.load(y, (0,), (N,))
    for i, name in enumerate(FUNCTIONS):
        tkc.store(o, (i, 0), of(name, a, b).to(o.dtype)[None, :])
    for i, name in enumerate(TRUTHS):
        tkc.store(t, (i, 0), of(name, a, b)[None, :])


def blocks(x, y, o, M: tkc.constexpr, N: tkc.constexpr):
    """Broadcasting: a row, a column, a number, and a tile."""
    a, b = tkc.load(x, (0, 0), (M, N)), tkc.load(y, (0,), (N,))
    tkc.store(o, (0, 0), tkc.where(b[None, :] > a, a, b) + tkc.where(a > 0, a[0:1], 1) - a[:, 0:1])


def float_operands(r, dtype, n):
    x, y = values(r, dtype, n, -4, 4), values(r, dtype, n, -3, 3)
    if n >= 16:
        s = special(dtype)
        at = r.permutation(n)[: len(s)]
        x[at], y[np.roll(at, 1)] = s[: len(at)], s[: len(at)]
    if n >= 96:
        x[-12:] = (
            np.array([89, -104, 100.25, -88.5, 1e-3, 500, -700, 0.5, 3e4, 1e5, 99999, 7e8])
            .clip(-LARGEST.get(dtype, np.inf), LARGEST.get(dtype, np.inf))
            .astype(dtype)
        )
    return x, y


def float_case(dtype: np.dtype, n: int) -> Case:
    functions, truths = tuple(FLOAT), (*COMPARISONS, "isnan", "isinf")

    def arguments(r):
        x, y = float_operands(r, dtype, n)
        return dict(
            x=x,
            y=y,
            o=rubbish((len(functions), n), dtype),
            t=rubbish((len(truths), n), BOOL),
            N=n,
            FUNCTIONS=functions,
            TRUTHS=truths,
        )

    def want(a):
        x, y, out, ulps = wide(a["x"]), wide(a["y"]), [], []
        for arity, f, of32, of64 in FLOAT.values():
            found = f(*(x, y)[:arity])
            out.append(found)
            allowed = of64 if dtype == F64 else of32 if dtype == F32 else 0.6 if of32 else 0
            ulps.append(np.full(n, float(allowed)))
        # what lies below the smallest normal number may be flushed by the fast functions
        tiny = (
            float(np.ldexp(1.0, {F64: -1021}.get(dtype, -125)))
            * np.array([0.0 if of32 == 0 else 1.0 for _, _, of32, _ in FLOAT.values()])[:, None]
        )
        truth = [OPERATORS[c](x, y) for c in COMPARISONS] + [np.isnan(x), np.isinf(x)]
        return dict(o=Near(np.stack(out), np.stack(ulps), tiny), t=np.stack(truth))

    return Case(f"functions of {dtype} {n}", rows, arguments, want)


INTEGER = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": lambda x, y: np.negative(x),
    "abs": lambda x, y: np.abs(x),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "div_trunc": lambda x, y: truncated(x, y),
    "rem_trunc": np.fmod,
    "fmax": np.maximum,
    "fmin": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "invert": lambda x, y: np.invert(x),
    "shl": lambda x, y: shifted(x, y, lambda v, s: v << s),
    "shr": lambda x, y: shifted(x, y, lambda v, s: v >> s),
}


def truncated(x, y):
    """C's quotient: towards zero, 0 by zero, wrapped where it does not fit."""
    width, low = x.itemsize * 8, np.iinfo(x.dtype).min

    def one(a: int, b: int) -> int:
        q = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
        return (q - low) % (1 << width) + low

    return np.array([one(int(a), int(b)) for a, b in zip(x, y, strict=True)], object).astype(
        x.dtype
    )


def shifted(x, y, f):
    """Python's integers know no width: counts beyond it shift everything out, negative ones (large,
    read without sign) do too.
    """
    width, wrap = (
        x.itemsize * 8,
        lambda v: (
            (v + (1 << x.itemsize * 8 - 1)) % (1 << x.itemsize * 8) - (1 << x.itemsize * 8 - 1)
            if x.dtype.kind == "i"
            else v % (1 << x.itemsize * 8)
        ),
    )
    return np.array(
        [
            wrap(f(int(v), min(int(s) % (1 << width) if s < 0 else int(s), width)))
            for v, s in zip(x, y, strict=False)
        ],
        dtype=object,
    ).astype(x.dtype)


def integer_case(dtype: np.dtype, n: int) -> Case:
    functions = tuple(f for f in INTEGER if f not in ("shl", "shr")) + ("shl", "shr")

    def arguments(r):
        x, y = values(r, dtype, n), values(r, dtype, n)
        y[::2] = values(r, dtype, n, -9 if dtype.kind == "i" else 0, 9)[::2]
        if n >= 16:
            x[:4], y[:4] = (
                np.array([np.iinfo(dtype).min] * 2 + [np.iinfo(dtype).max] * 2, dtype),
                np.array([-1 if dtype.kind == "i" else 1, 0, 0, 1]).astype(dtype),
            )
            if dtype.itemsize == 8:  # of counts of shifts, half of the bits are none that count
                y[4:7] = np.array([1 << 32, (1 << 32) + 5, 1 << 63], np.uint64).astype(dtype)
        return dict(
            x=x,
            y=y,
            o=rubbish((len(functions), n), dtype),
            t=rubbish((6, n), BOOL),
            N=n,
            FUNCTIONS=functions,
            TRUTHS=COMPARISONS,
        )

    def want(a):
        x, y = a["x"], a["y"]
        return dict(
            o=np.stack([INTEGER[f](x, y).astype(dtype) for f in functions]),
            t=np.stack([OPERATORS[c](x, y) for c in COMPARISONS]),
        )

    return Case(f"functions of {dtype} {n}", rows, arguments, want)


def bool_case(n: int) -> Case:
    functions = ("and", "or", "xor", "invert")

    def arguments(r):
        return dict(
            x=values(r, BOOL, n),
            y=values(r, BOOL, n),
            o=rubbish((4, n), BOOL),
            t=rubbish((6, n), BOOL),
            N=n,
            FUNCTIONS=functions,
            TRUTHS=COMPARISONS,
        )

    def want(a):
        return dict(
            o=np.stack([a["x"] & a["y"], a["x"] | a["y"], a["x"] ^ a["y"], ~a["x"]]),
            t=np.stack([OPERATORS[c](a["x"], a["y"]) for c in COMPARISONS]),
        )

    return Case(f"functions of bool {n}", rows, arguments, want)


def broadcast_case(dtype: np.dtype, m: int, n: int) -> Case:
    def arguments(r):
        return dict(
            x=values(r, dtype, (m, n), -9, 9),
            y=values(r, dtype, n, -9, 9),
            o=rubbish((m, n), dtype),
            M=m,
            N=n,
        )

    def want(a):
        x, y = (a[k].astype(F64 if is_float(dtype) else dtype) for k in "xy")

        def low(v):
            return v.astype(dtype).astype(F64) if is_float(dtype) else v

        one = np.array(1, x.dtype)
        return dict(
            o=low(low(np.where(y > x, x, y) + np.where(x > 0, x[:1], one)) - x[:, :1]).astype(dtype)
        )

    return Case(f"broadcasts of {dtype} {m}x{n}", blocks, arguments, want)


# --------------------------------------------------------------------------------------------------
def casts(x, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, N: tkc.constexpr):
    a = tkc.load(x, (0,), (N,))
    for o in (o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14):
        tkc.store(o, (0,), a.to(o.dtype))


def to_type(x: np.ndarray, t: np.dtype) -> np.ndarray:
    """By value: floats to nearest even (float8 saturates), floats to integers truncate and saturate
    with NaN as 0, integers wrap, truth is `!= 0`.
    """
    if t == x.dtype:
        return x
    if t == BOOL:
        return (x.astype(F64) if is_float(x.dtype) else x) != 0
    if is_float(t):
        if x.dtype in INTEGERS and t == F64 or x.dtype == BOOL:
            return x.astype(t)
        # through float32 would round twice
        if x.dtype.itemsize == 8 and x.dtype in INTEGERS or x.dtype == F64:
            y = x.astype(F64) if x.dtype == F64 else odd_rounded(x)
        else:
            y = x.astype(F64)
        return (np.clip(y, -LARGEST[t], LARGEST[t]) if t in LARGEST else y).astype(t)
    if not is_float(x.dtype):
        return x.astype(t)
    low, high = int(np.iinfo(t).min), int(np.iinfo(t).max)

    def exact(v):
        return 0 if v != v else high if v >= high else low if v <= low else int(v)

    return np.array([exact(v) for v in x.astype(F64).tolist()], dtype=object).astype(t)


def odd_rounded(x: np.ndarray) -> np.ndarray:
    """64-bit integers as float64, rounded to odd: a second rounding to a shorter type is then as
    good as one.
    """

    def one(v: int) -> float:
        drop = max(0, abs(v).bit_length() - 53)
        kept = abs(v) >> drop
        return float((kept | (kept << drop != abs(v))) << drop) * (-1 if v < 0 else 1)

    return np.array([one(int(v)) for v in x])


def cast_case(source: np.dtype, n: int) -> Case:
    targets = DTYPES

    def arguments(r):
        if is_float(source):
            x = (
                (r.standard_normal(n) * 10.0 ** r.integers(-3, 4, n))
                .clip(-LARGEST.get(source, 3e4), LARGEST.get(source, 3e4))
                .astype(source)
            )
            if n >= 16:
                s = special(source)
                x[: len(s)] = s
        else:
            x = values(r, source, n)
            x[::3] = values(r, source, n, 0, 100)[::3]
        return dict(x=x, **{f"o{i}": rubbish(n, t) for i, t in enumerate(targets)}, N=n)

    return Case(
        f"casts of {source} {n}",
        casts,
        arguments,
        lambda a: {f"o{i}": to_type(a["x"], t) for i, t in enumerate(targets)},
    )


def truncations(x, o0, o1, o2, o3, o4, o5, N: tkc.constexpr):
    a = tkc.load(x, (0,), (N,))
    for o in (o0, o1, o2, o3, o4, o5):
        tkc.store(o, (0,), a.to(o.dtype, rounding="rtz"))


def towards_zero(x: np.ndarray, t: np.dtype) -> np.ndarray:
    """The largest float of a type that is not beyond each one; float8 saturates."""
    if t == x.dtype or t == F64 or t == F32 and x.dtype != F64:
        return x.astype(t)
    size = np.abs(x.astype(F64))
    if t == F32:
        near = size.astype(F32)
        found = np.where(near.astype(F64) > size, np.nextafter(near, F32.type(0)), near)
    else:
        words = np.arange(1 << t.itemsize * 8 - 1, dtype=f"u{t.itemsize}").view(t).astype(F64)
        finite = np.sort(words[np.isfinite(words)])
        found = finite[np.searchsorted(finite, np.nan_to_num(size, posinf=1e300), "right") - 1]
        found = np.where(np.isinf(size) & (t not in LARGEST), size, found)
    return np.where(np.isnan(size), np.nan, np.copysign(found, x.astype(F64))).astype(t)


def truncation_case(source: np.dtype, n: int) -> Case:
    def arguments(r):
        x = (r.standard_normal(n) * 10.0 ** r.integers(-9, 7, n)).astype(F64)
        x = x.clip(-LARGEST.get(source, np.inf), LARGEST.get(source, np.inf)).astype(source)
        if n >= 16:
            x[: len(special(source))] = special(source)
        return dict(x=x, **{f"o{i}": rubbish(n, t) for i, t in enumerate(FLOATS)}, N=n)

    return Case(
        f"truncations of {source} {n}",
        truncations,
        arguments,
        lambda a: {f"o{i}": towards_zero(a["x"], t) for i, t in enumerate(FLOATS)},
    )


CASES = [
    *(float_case(t, n) for t in FLOATS for n in EXTENTS),
    *(integer_case(t, n) for t in INTEGERS for n in EXTENTS),
    *(bool_case(n) for n in EXTENTS),
    *(
        broadcast_case(t, m, n)
        for t in (*INTEGERS, *FLOATS)
        for m, n in ((1, 7), (7, 16), (16, 1), (16, 96), (7, 100))
    ),
    *(cast_case(t, n) for t in DTYPES for n in EXTENTS),
    *(truncation_case(t, n) for t in FLOATS for n in EXTENTS),
]
