"""Shapes: reshape, permute, slices, concatenation, joining, flips, broadcasts; every element type
moves through each.
"""

from __future__ import annotations

import numpy as np

import tkc
from tests.operations.case import DTYPES, Case, rubbish, values

PAIRS = ((1, 7), (7, 16), (16, 1), (16, 96), (96, 7), (7, 100), (100, 16), (1, 1000))


def turned(x, t, r, s, f, g, M: tkc.constexpr, N: tkc.constexpr):
    a = tkc.load(x, (0, 0), (M, N))
    tkc.store(t, (0, 0), a.T)
    tkc.store(r, (0, 0), a.reshape(N, M))
    tkc.store(s, (0, 0), a.reshape(1, M, N).permute(2, 0, 1).reshape(N, M))
    tkc.store(f, (0, 0), tkc.flip(a, axis=1))
    tkc.store(g, (0, 0), tkc.flip(a, axis=0))


def turns(dtype: np.dtype, m: int, n: int) -> Case:
    def arguments(r):
        return dict(
            x=values(r, dtype, (m, n)),
            t=rubbish((n, m), dtype),
            r=rubbish((n, m), dtype),
            s=rubbish((n, m), dtype),
            f=rubbish((m, n), dtype),
            g=rubbish((m, n), dtype),
            M=m,
            N=n,
        )

    def want(a):
        return dict(
            t=a["x"].T, r=a["x"].reshape(n, m), s=a["x"].T, f=a["x"][:, ::-1], g=a["x"][::-1]
        )

    return Case(f"turns of {dtype} {m}x{n}", turned, arguments, want)


def cut(x, y, c, d, j, i, s, e, b, M: tkc.constexpr, N: tkc.constexpr):
    p, q = tkc.load(x, (0, 0), (M, N)), tkc.load(y, (0, 0), (M, N))
    tkc.store(c, (0, 0), tkc.cat(p, q, p, axis=0))
    tkc.store(d, (0, 0), tkc.cat(p, q, axis=1))
    both = tkc.join(p, q)
    tkc.store(j, (0, 0, 0), both)
    first, second = tkc.split(both)
    tkc.store(i, (0, 0), tkc.interleave(second, first))
    tkc.store(s, (0, 0), p[M // 2 :, ::2])
    tkc.store(e, (0,), p[M - 1, N // 2])
    tkc.store(b, (0, 0, 0), tkc.broadcast_to(p[:, None, :], (M, 3, N)))


def cuts(dtype: np.dtype, m: int, n: int) -> Case:
    shapes = dict(
        c=(3 * m, n),
        d=(m, 2 * n),
        j=(m, n, 2),
        i=(m, 2 * n),
        s=(m - m // 2, -(-n // 2)),
        e=(1,),
        b=(m, 3, n),
    )

    def arguments(r):
        return dict(
            x=values(r, dtype, (m, n)),
            y=values(r, dtype, (m, n)),
            **{k: rubbish(v, dtype) for k, v in shapes.items()},
            M=m,
            N=n,
        )

    def want(a):
        x, y = a["x"], a["y"]
        return dict(
            c=np.concatenate([x, y, x]),
            d=np.concatenate([x, y], 1),
            j=np.stack([x, y], -1),
            i=np.stack([y, x], -1).reshape(m, 2 * n),
            s=x[m // 2 :, ::2],
            e=x[m - 1, n // 2].reshape(1),
            b=np.broadcast_to(x[:, None], (m, 3, n)),
        )

    return Case(f"cuts of {dtype} {m}x{n}", cut, arguments, want)


def made(o, p, v, N: tkc.constexpr):
    tkc.store(o, (0,), tkc.arange(5, N + 5).to(o.dtype))
    tkc.store(p, (0,), tkc.full((N,), 3, p.dtype))
    tkc.store(
        v,
        (0,),
        tkc.where(tkc.arange(N) % 3 == 1, tkc.zeros((N,), v.dtype), tkc.full((N,), 1).to(v.dtype)),
    )


def constants(dtype: np.dtype, n: int) -> Case:
    def arguments(r):
        return dict(o=rubbish(n, dtype), p=rubbish(n, dtype), v=rubbish(n, dtype), N=n)

    from tests.operations.elementwise import to_type

    def want(a):
        return dict(
            o=to_type(np.arange(5, n + 5, dtype=np.int32), dtype),
            p=np.full(n, 3).astype(dtype),
            v=np.where(np.arange(n) % 3 == 1, 0, 1).astype(dtype),
        )

    return Case(f"constants of {dtype} {n}", made, arguments, want)


def picked(x, rows, columns, r, c, k, M: tkc.constexpr, N: tkc.constexpr):
    a = tkc.load(x, (0, 0), (M, N))
    down, across = tkc.load(rows, (0, 0), (5, N)), tkc.load(columns, (0, 0), (M, 9))
    tkc.store(r, (0, 0), tkc.gather(a, down, 0))
    tkc.store(c, (0, 0), tkc.gather(a, across, axis=1))
    turned = tkc.arange(N) * 7 % N
    tkc.store(k, (0,), tkc.gather(tkc.load(x, (0, 0), (None, N)), turned, 0))


def picks(dtype: np.dtype, m: int, n: int) -> Case:
    """By places of several types, some of them outside."""
    kind = np.dtype(("i4", "i8", "u1", "i2")[(m + n) % 4])

    def arguments(r):
        low = -2 if kind.kind == "i" else 0
        return dict(
            x=values(r, dtype, (m, n)),
            rows=r.integers(low, min(m + 2, 120), (5, n)).astype(kind),
            columns=r.integers(low, min(n + 2, 120), (m, 9)).astype(kind),
            r=rubbish((5, n), dtype),
            c=rubbish((m, 9), dtype),
            k=rubbish(n, dtype),
            M=m,
            N=n,
        )

    def want(a):
        places = [a["rows"].astype(int).clip(0, m - 1), a["columns"].astype(int).clip(0, n - 1)]
        r, c = (np.take_along_axis(a["x"], p, i) for i, p in enumerate(places))
        return dict(r=r, c=c, k=a["x"][0, np.arange(n) * 7 % n])

    return Case(f"picks of {dtype} {m}x{n}", picked, arguments, want)


CASES = [
    *(picks(t, m, n) for t in DTYPES for m, n in PAIRS),
    *(turns(t, m, n) for t in DTYPES for m, n in PAIRS),
    *(cuts(t, m, n) for t in DTYPES for m, n in PAIRS),
    *(constants(t, n) for t in DTYPES for n in (1, 7, 16, 96, 100, 1000)),
]
MORE = [
    make(t, m, n)
    for make in (turns, cuts, picks)
    for t in DTYPES
    for m, n in ((1, 1), (7, 7), (96, 100), (1000, 1))
]
