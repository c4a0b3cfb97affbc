"""Along an axis: reductions, scans, sorting, the largest k, histograms."""

from __future__ import annotations

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
    values,
)

PAIRS = (
    (1, 1),
    (1, 7),
    (7, 16),
    (16, 1),
    (16, 96),
    (96, 7),
    (7, 100),
    (100, 16),
    (1, 1000),
    (1000, 1),
)
FOLDS = ("sum", "max", "min", "prod", "nanmax", "nanmin")


def reduced(
    x,
    rows,
    columns,
    places,
    truths,
    everything,
    M: tkc.constexpr,
    N: tkc.constexpr,
    KINDS: tkc.constexpr,
):
    a = tkc.load(x, (0, 0), (M, N))
    for i, kind in enumerate(KINDS):
        tkc.store(rows, (i, 0), getattr(tkc, kind)(a, axis=1).to(rows.dtype)[None, :])
        tkc.store(columns, (i, 0), getattr(tkc, kind)(a, axis=0, keep_dims=True).to(rows.dtype))
        tkc.store(everything, (i,), getattr(tkc, kind)(a).to(rows.dtype))
    for i, kind in enumerate(("argmax", "argmin")):
        tkc.store(places, (i, 0), getattr(tkc, kind)(a, axis=1)[None, :])
        tkc.store(places, (2 + i, 0), getattr(tkc, kind)(a))
    tkc.store(truths, (0, 0), tkc.any(a, axis=1)[None, :])
    tkc.store(truths, (1, 0), tkc.all(a, axis=1)[None, :])


def folded(kind: str, x: np.ndarray, axis) -> np.ndarray:
    """Integers wrap in the type that the sum is taken in; floats in float64."""
    if kind == "xor_sum":
        return np.bitwise_xor.reduce(x if axis is not None else x.ravel(), axis=axis or 0)
    y = x.astype(F64) if is_float(x.dtype) else x
    if not is_float(x.dtype) and kind in ("sum", "prod"):
        return getattr(np, kind)(
            y,
            axis=axis,
            dtype=np.dtype(f"{'u' if x.dtype.kind == 'u' else 'i'}{max(x.dtype.itemsize, 4)}"),
        )
    return getattr(np, kind)(y, axis=axis)


def outputs_of(dtype: np.dtype) -> np.dtype:
    """What sums of it are given in."""
    return (
        dtype
        if is_float(dtype) or dtype.itemsize >= 4
        else np.dtype("u4" if dtype.kind == "u" else "i4")
    )


def reductions(dtype: np.dtype, m: int, n: int) -> Case:
    kinds, out = (
        (*FOLDS, *(() if is_float(dtype) or dtype == BOOL else ("xor_sum",))),
        outputs_of(dtype),
    )

    def arguments(r):
        x = (
            values(r, dtype, (m, n))
            if not is_float(dtype)
            else (r.integers(-8, 9, (m, n)) / 4 if m % 2 else r.uniform(0.8, 1.25, (m, n))).astype(
                dtype
            )
        )
        return dict(
            x=x,
            rows=rubbish((len(kinds), m), out),
            columns=rubbish((len(kinds), n), out),
            places=rubbish((4, m), np.dtype(np.int32)),
            truths=rubbish((2, m), BOOL),
            everything=rubbish(len(kinds), out),
            M=m,
            N=n,
            KINDS=kinds,
        )

    def want(a):
        x, found = a["x"], {}
        for name, axis, count in (("rows", 1, n), ("columns", 0, m), ("everything", None, m * n)):
            stack = np.stack(
                [
                    np.asarray(folded(k, x, axis)).astype(F64 if is_float(dtype) else out)
                    for k in kinds
                ]
            )
            if not is_float(dtype):
                found[name] = stack
                continue
            # sums in float32 in any order: an error of count/2 units of float32 at most, of the sum
            # of magnitudes; then one rounding
            eps, own = (2.0**-53 if dtype == F64 else 2.0**-24), 0.0 if dtype in (F32, F64) else 0.6
            bound = np.stack(
                [
                    (
                        np.abs(x.astype(F64)).sum(axis) * count * eps
                        if k == "sum"
                        else (
                            np.abs(folded(k, x, axis)) * count * eps
                            if k == "prod"
                            else 0 * folded(k, x, axis)
                        )
                    )
                    for k in kinds
                ]
            )
            found[name] = Near(stack, own, bound)
        y = x.astype(F64) if is_float(dtype) else x
        places = a["places"].copy()
        places[0], places[1], places[2, 0], places[3, 0] = (
            y.argmax(1),
            y.argmin(1),
            y.argmax(),
            y.argmin(),
        )
        return found | dict(places=places, truths=np.stack([(y != 0).any(1), (y != 0).all(1)]))

    return Case(f"reductions of {dtype} {m}x{n}", reduced, arguments, want)


def extremes(x, rows, columns, everything, M: tkc.constexpr, N: tkc.constexpr):
    a = tkc.load(x, (0, 0), (M, N))
    for i, kind in enumerate(("nanmax", "nanmin", "max", "min")):
        tkc.store(rows, (i, 0), getattr(tkc, kind)(a, axis=1)[None, :])
        tkc.store(columns, (i, 0), getattr(tkc, kind)(a, axis=0, keep_dims=True))
        tkc.store(everything, (i,), getattr(tkc, kind)(a))


def with_nan(dtype: np.dtype, m: int, n: int) -> Case:
    """Some elements are NaN, and all of the first row and of the last column."""

    def arguments(r):
        x = values(r, dtype, (m, n))
        x[r.random((m, n)) < 0.2] = np.nan
        x[0], x[:, -1] = np.nan, np.nan
        outputs = {k: rubbish(s, dtype) for k, s in (("rows", (4, m)), ("columns", (4, n)))}
        return dict(x=x, **outputs, everything=rubbish(4, dtype), M=m, N=n)

    def want(a):
        x = a["x"].astype(F64)

        def four(axis):
            return np.stack(
                [f.reduce(x, axis=axis) for f in (np.fmax, np.fmin, np.maximum, np.minimum)]
            ).astype(dtype)

        return dict(rows=four(1), columns=four(0), everything=four((0, 1)))

    return Case(f"extremes of {dtype} {m}x{n}", extremes, arguments, want)


# --------------------------------------------------------------------------------------------------
def scanned(x, s, p, t, c, M: tkc.constexpr, N: tkc.constexpr):
    a = tkc.load(x, (0, 0), (M, N))
    tkc.store(s, (0, 0), tkc.cumsum(a, axis=1))
    tkc.store(p, (0, 0), tkc.cumprod(a, axis=0))
    tkc.store(t, (0, 0), tkc.cumsum(a, axis=0, reverse=True))
    tkc.store(c, (0, 0), tkc.scan(a, 1, tkc.maximum))


def scans(dtype: np.dtype, m: int, n: int) -> Case:
    out = outputs_of(dtype)

    def arguments(r):
        x = (
            values(r, dtype, (m, n))
            if not is_float(dtype)
            else (r.integers(-8, 9, (m, n)) / 4 if m % 2 else r.uniform(0.9, 1.1, (m, n))).astype(
                dtype
            )
        )
        return dict(
            x=x, **{k: rubbish((m, n), out) for k in "spt"}, c=rubbish((m, n), dtype), M=m, N=n
        )

    def want(a):
        x = a["x"]
        y = x.astype(F64) if is_float(dtype) else x.astype(out)
        with np.errstate(all="ignore"):
            s, p, t = (
                np.cumsum(y, 1, dtype=y.dtype),
                np.cumprod(y, 0, dtype=y.dtype),
                np.cumsum(y[::-1], 0, dtype=y.dtype)[::-1],
            )
        c = np.maximum.accumulate(y if is_float(dtype) else x, 1).astype(dtype)
        if not is_float(dtype):
            return dict(s=s, p=p, t=t, c=c)
        eps, own = (2.0**-53 if dtype == F64 else 2.0**-24), 0.0 if dtype in (F32, F64) else 0.6
        magnitude = np.abs(y)
        return dict(
            s=Near(s, own, np.cumsum(magnitude, 1) * n * eps),
            p=Near(p, own, np.abs(p) * m * eps),
            t=Near(t, own, np.cumsum(magnitude[::-1], 0)[::-1] * m * eps),
            c=c,
        )

    return Case(f"scans of {dtype} {m}x{n}", scanned, arguments, want)


# -------------------------------------------------------------------------------------------------
def combined(x, i, v, w, o, M: tkc.constexpr, N: tkc.constexpr):
    """The first of the largest with its place, and a linear recurrence."""

    def later(a, p, b, q):
        takes = (b > a) | ((b == a) & (q < p))
        return tkc.where(takes, b, a), tkc.where(takes, q, p)

    def step(a, b, c, d):
        return a * c, b * c + d

    t = tkc.load(x, (0, 0), (M, N))
    top, place = tkc.reduce((t, tkc.broadcast_to(tkc.arange(N)[None, :], (M, N))), 1, later)
    tkc.store(v, (0,), top)
    tkc.store(i, (0,), place)
    k = tkc.broadcast_to((tkc.arange(N) % 3)[None, :], (M, N))
    a, b = tkc.scan((k, k + 1), 1, step, reverse=True)
    tkc.store(w, (0, 0), a)
    tkc.store(o, (0, 0), b)


def combinations(dtype: np.dtype, m: int, n: int) -> Case:
    def arguments(r):
        return dict(
            x=values(r, dtype, (m, n), -4, 4),
            i=rubbish(m, np.dtype(np.int32)),
            v=rubbish(m, dtype),
            w=rubbish((m, n), np.dtype(np.int32)),
            o=rubbish((m, n), np.dtype(np.int32)),
            M=m,
            N=n,
        )

    def want(a):
        y = a["x"].astype(F64) if is_float(dtype) else a["x"]
        k = np.broadcast_to(np.arange(n, dtype=np.int32) % 3, (m, n))
        w, o = k.copy(), k + 1
        for j in range(n - 2, -1, -1):
            w[:, j], o[:, j] = w[:, j + 1] * w[:, j], o[:, j + 1] * k[:, j] + o[:, j]
        return dict(v=a["x"][np.arange(m), y.argmax(1)], i=y.argmax(1).astype(np.int32), w=w, o=o)

    return Case(f"combinations of {dtype} {m}x{n}", combined, arguments, want)


# ------------------------------------------------------------------------------------------------ s
def sorting(x, up, down, most, places, N: tkc.constexpr, K: tkc.constexpr):
    a = tkc.load(x, (0, 0), (2, N))
    tkc.store(up, (0, 0), tkc.sort(a))
    tkc.store(down, (0, 0), tkc.sort(a.T, axis=0, descending=True).T)
    found, at = tkc.topk(a, K, indices=True)
    tkc.store(most, (0, 0), found)
    tkc.store(places, (0, 0), at)
    tkc.store(most, (2, 0), tkc.topk(a, K))


def sorts(dtype: np.dtype, n: int) -> Case:
    k = min(n, 5)

    def arguments(r):
        x = values(r, dtype, (2, n))
        if is_float(dtype) and n >= 16:
            x[0, 3], x[1, 5], x[1, 9] = np.nan, -LARGEST.get(dtype, np.inf), np.nan
        return dict(
            x=x,
            up=rubbish((2, n), dtype),
            down=rubbish((2, n), dtype),
            most=rubbish((4, k), dtype),
            places=rubbish((2, k), np.dtype(np.int32)),
            N=n,
            K=k,
        )

    def want(a):
        x = a["x"]
        y = x.astype(F64) if is_float(dtype) else x
        odd = np.isnan(y) if is_float(dtype) else np.zeros(y.shape, bool)
        up = np.take_along_axis(x, np.lexsort((y, odd), 1), 1)
        order = np.array(
            [
                sorted(
                    range(n),
                    key=lambda j: (
                        odd[i, j],
                        -float(y[i, j]) if is_float(dtype) else -int(y[i, j]),
                        j,
                    ),
                )
                for i in range(2)
            ]
        )
        down = np.take_along_axis(x, order, 1)
        return dict(
            up=up,
            down=down,
            most=np.concatenate([down[:, :k]] * 2),
            places=order[:, :k].astype(np.int32),
        )

    return Case(f"sorting {dtype} {n}", sorting, arguments, want)


def counted(x, o, p, N: tkc.constexpr, BINS: tkc.constexpr):
    a = tkc.load(x, (0,), (N,))
    tkc.store(o, (0,), tkc.histogram(a, BINS))
    tkc.store(p, (0,), tkc.histogram(a, BINS, mask=tkc.arange(N) % 2 == 0))


def histograms(dtype: np.dtype, n: int, bins: int) -> Case:
    def arguments(r):
        return dict(
            x=values(r, dtype, n, -3, bins + 3),
            o=rubbish(bins, np.dtype(np.int32)),
            p=rubbish(bins, np.dtype(np.int32)),
            N=n,
            BINS=bins,
        )

    def count(x):
        return np.bincount(x[(x >= 0) & (x < bins)].astype(np.int64), minlength=bins).astype(
            np.int32
        )

    return Case(
        f"histogram of {dtype} {n} in {bins}",
        counted,
        arguments,
        lambda a: dict(o=count(a["x"]), p=count(a["x"][::2])),
    )


def squeezed(x, o, g, N: tkc.constexpr):
    a = tkc.load(x, (0, 0), (3, N))
    tkc.store(o, (0, 0), tkc.softmax(a))
    tkc.store(g, (0, 0), tkc.softmax(a, axis=0))


def softmaxes(dtype: np.dtype, n: int) -> Case:
    def arguments(r):
        return dict(
            x=values(r, dtype, (3, n), -9, 9),
            o=rubbish((3, n), dtype),
            g=rubbish((3, n), dtype),
            N=n,
        )

    def want(a):
        def one(x, axis):
            e = np.exp(x - x.max(axis, keepdims=True))
            return e / e.sum(axis, keepdims=True)

        y = a["x"].astype(F64)

        def ulps(axis):
            return (y.max(axis, keepdims=True) - y + 8 + n / 64) * (
                1 if dtype in (F32, F64) else 2.0**-8
            ) + (dtype not in (F32, F64)) / 2  # x - max is rounded too

        return dict(o=Near(one(y, 1), ulps(1)), g=Near(one(y, 0), ulps(0)))

    return Case(f"softmax of {dtype} {n}", squeezed, arguments, want)


CASES = [
    *(with_nan(t, m, n) for t in FLOATS for m, n in PAIRS),
    *(reductions(t, m, n) for t in DTYPES for m, n in PAIRS),
    *(scans(t, m, n) for t in (*INTEGERS, *FLOATS) for m, n in PAIRS),
    *(combinations(t, m, n) for t in (*INTEGERS, *FLOATS) for m, n in PAIRS[1:-2]),
    *(sorts(t, n) for t in (*INTEGERS, *FLOATS) for n in EXTENTS),
    *(
        histograms(t, n, b)
        for t in INTEGERS
        for n, b in zip(EXTENTS, (1, 10, 16, 100, 7, 96), strict=False)
    ),
    *(softmaxes(t, n) for t in FLOATS for n in EXTENTS),
]
MORE = [
    *(reductions(t, m, n) for t in DTYPES for m, n in ((1, 16), (100, 96))),
    *(scans(t, m, n) for t in (*INTEGERS, *FLOATS) for m, n in ((1, 16), (100, 96))),
]
