"""Global memory: blocks and pointers, arrays of any extents and strides, gather and scatter,
atomics.
"""

from __future__ import annotations

import numpy as np

import tkc
from tests.operations.case import (
    BF16,
    DTYPES,
    F16,
    F32,
    F64,
    I32,
    I64,
    INTEGERS,
    U32,
    U64,
    Case,
    is_float,
    rubbish,
    special,
    values,
)


# --------------------------------------------------------------------------------------------------
def plain(x):
    return x


def padded(x):
    wide = np.zeros((x.shape[0], x.shape[1] + 5), x.dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def transposed(x):
    return np.ascontiguousarray(x.T).T


def spread(x):
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::2, ::3] = x
    return wide[::2, ::3]


def one_row(x):
    return _stretched(x[:1], x)


def one_column(x):
    return _stretched(x[:, :1], x)


def _stretched(part, x):
    return (
        np.broadcast_to(np.ascontiguousarray(part).view(f"u{x.itemsize}"), x.shape).view(x.dtype)
        if x.size
        else x
    )


STRIDES = (plain, padded, transposed, spread, one_row, one_column)
SHAPES = ((0, 5), (5, 0), (1, 1), (1, 7), (7, 1), (2, 3), (13, 17), (31, 37), (64, 96))


def copied(x, o, p, BM: tkc.constexpr = 16, BN: tkc.constexpr = 32):
    """A block by offsets, and one element an address; in both directions."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    tkc.store(o, (m, n), tkc.load(x, (m, n), (BM, BN)))
    i, j = m + tkc.arange(BM)[:, None], n + tkc.arange(BN)[None, :]
    inside = (i < x.shape[0]) & (j < x.shape[1])
    tkc.store(
        p.ptr + i * p.strides[0] + j * p.strides[1],
        tkc.load(x.ptr + i * x.strides[0] + j * x.strides[1], mask=inside),
        mask=inside,
    )


def copies(dtype: np.dtype, layout, shape: tuple[int, int]) -> Case:
    m, n = shape

    def arguments(r):
        return dict(
            x=layout(values(r, dtype, shape)),
            o=(
                transposed(rubbish(shape, dtype))
                if layout is plain
                else padded(rubbish(shape, dtype))
            ),
            p=rubbish(shape, dtype),
        )

    def want(a):
        return dict(o=np.array(a["x"]), p=np.array(a["x"]))

    return Case(
        f"copies of {dtype} {layout.__name__} {m}x{n}",
        copied,
        arguments,
        want,
        (max(-(-m // 16), 1), max(-(-n // 32), 1)),
    )


def gathered(x, rows, columns, o, p, s, K: tkc.constexpr, N: tkc.constexpr):
    """Rows and columns by tiles of offsets, some outside; a scatter."""
    r, c = tkc.load(rows, (0,), (K,)), tkc.load(columns, (0,), (N,))
    tkc.store(o, (0, 0), tkc.load(x, (r, 0), (K, N)))
    tkc.store(p, (0, 0), tkc.load(x, (r, c), (K, N)))
    tkc.store(s, (r, 1), tkc.load(x, (0, 0), (K, N)))


def gathers(dtype: np.dtype, k: int, n: int) -> Case:
    m = k + 6

    def arguments(r):
        rows = r.permutation(m)[:k].astype(I32)
        if k > 2:
            rows[1], rows[2] = -1, m
        return dict(
            x=values(r, dtype, (m, n)),
            rows=rows,
            columns=r.integers(-2, n + 2, n).astype(I32),
            o=rubbish((k, n), dtype),
            p=rubbish((k, n), dtype),
            s=rubbish((m, n), dtype),
            K=k,
            N=n,
        )

    def want(a):
        x, rows, columns = a["x"], a["rows"], a["columns"]
        inside = (rows >= 0) & (rows < m)
        o = np.where(inside[:, None], x[np.clip(rows, 0, m - 1)], np.zeros(1, dtype))
        there = inside[:, None] & ((columns >= 0) & (columns < n))[None, :]
        p = np.where(
            there, x[np.clip(rows, 0, m - 1)][:, np.clip(columns, 0, n - 1)], np.zeros(1, dtype)
        )
        s = a["s"].copy()
        s[rows[inside], 1:] = x[:k, :-1][inside]
        return dict(o=o.astype(dtype), p=p.astype(dtype), s=s)

    return Case(f"gathers of {dtype} {k}x{n}", gathered, arguments, want)


def masked(x, o, q, N: tkc.constexpr):
    """Masks and fill values, numbers and tiles."""
    k = tkc.arange(N)
    a = tkc.load(x, (0,), (N,), mask=k % 3 != 0, other=1)
    tkc.store(o, (0,), a, mask=k % 2 == 0)
    tkc.store(q.ptr + k, tkc.load(x.ptr + k, mask=k % 2 == 1, other=a), mask=k != 2)


def masks(dtype: np.dtype, n: int) -> Case:
    def arguments(r):
        return dict(x=values(r, dtype, n), o=rubbish(n, dtype), q=rubbish(n, dtype), N=n)

    def want(a):
        k = np.arange(n)
        first = np.where(k % 3 != 0, a["x"], np.ones(1, dtype))
        return dict(
            o=np.where(k % 2 == 0, first, a["o"]).astype(dtype),
            q=np.where(k != 2, np.where(k % 2 == 1, a["x"], first), a["q"]).astype(dtype),
        )

    return Case(f"masks of {dtype} {n}", masked, arguments, want)


# --------------------------------------------------------------------------------------------------
NUMBERS = (I32, I64, U32, U64, F16, BF16, F32, F64, *(t for t in INTEGERS if t.itemsize < 4))
SEMANTICS, SCOPES = ("relaxed", "acquire", "release", "acq_rel"), ("block", "gpu", "system")


def adding(
    x,
    sums,
    largest,
    smallest,
    by_block,
    N: tkc.constexpr,
    BINS: tkc.constexpr,
    SEM: tkc.constexpr,
    SCOPE: tkc.constexpr,
):
    """Programs add to the same few places; a block of an array too."""
    k = tkc.program_id(0) * N + tkc.arange(N)
    a, inside = tkc.load(x, (tkc.program_id(0) * N,), (N,)), k < x.shape[0]
    tkc.atomic_add(sums.ptr + k % BINS, a, mask=inside, sem=SEM, scope=SCOPE)
    tkc.atomic_max(largest.ptr + k % BINS, a, mask=inside, sem=SEM, scope=SCOPE)
    tkc.atomic_min(smallest.ptr + k % BINS, a, mask=inside)
    tkc.atomic_add(by_block, (0,), a, mask=inside)


def additions(dtype: np.dtype, n: int, sem: str = "acq_rel", scope: str = "gpu") -> Case:
    block, bins = 64, 7
    low, high = (-4, 5) if is_float(dtype) or dtype.kind == "i" else (0, 5)

    def arguments(r):
        return dict(
            x=r.integers(low, high, n).astype(dtype),
            sums=np.zeros(bins, dtype),
            largest=np.zeros(bins, dtype),
            smallest=np.zeros(bins, dtype),
            by_block=np.zeros(block, dtype),
            N=block,
            BINS=bins,
            SEM=sem,
            SCOPE=scope,
        )

    def want(a):
        x, k, one = (
            a["x"].astype(F64 if is_float(dtype) else dtype),
            np.arange(n),
            F64 if is_float(dtype) else dtype,
        )
        sums, largest, smallest, blocks = (
            np.zeros(bins, one),
            np.zeros(bins, one),
            np.zeros(bins, one),
            np.zeros(block, one),
        )
        np.add.at(sums, k % bins, x)
        np.maximum.at(largest, k % bins, x)
        np.minimum.at(smallest, k % bins, x)
        np.add.at(blocks, k % block, x)
        return dict(
            sums=sums.astype(dtype),
            largest=largest.astype(dtype),
            smallest=smallest.astype(dtype),
            by_block=blocks.astype(dtype),
        )

    return Case(
        f"atomic additions of {dtype} {n} {sem} {scope}",
        adding,
        arguments,
        want,
        (max(-(-n // block), 1),),
    )


def exchanging(x, bits, swapped, compared, old, N: tkc.constexpr):
    k = tkc.program_id(0) * N + tkc.arange(N)
    a, inside = tkc.load(x, (tkc.program_id(0) * N,), (N,)), k < x.shape[0]
    tkc.atomic_and(bits.ptr + k % 5, a, mask=inside)
    tkc.atomic_or(bits.ptr + 5 + k % 5, a, mask=inside)
    tkc.atomic_xor(bits.ptr + 10 + k % 5, a, mask=inside)
    tkc.store(old.ptr + k, tkc.atomic_xchg(swapped.ptr + k, a, mask=inside), mask=inside)
    tkc.atomic_cas(compared.ptr + k, 77, a, mask=inside)


def exchanges(dtype: np.dtype, n: int) -> Case:
    def arguments(r):
        compared = rubbish(n, dtype)
        compared[::2] = 3
        return dict(
            x=values(r, dtype, n),
            bits=values(r, dtype, 15),
            swapped=values(r, dtype, n),
            compared=compared,
            old=rubbish(n, dtype),
            N=64,
        )

    def want(a):
        bits, k = a["bits"].copy(), np.arange(n)
        np.bitwise_and.at(bits, k % 5, a["x"])
        np.bitwise_or.at(bits, 5 + k % 5, a["x"])
        np.bitwise_xor.at(bits, 10 + k % 5, a["x"])
        return dict(
            bits=bits,
            swapped=a["x"].copy(),
            old=a["swapped"].copy(),
            compared=np.where(a["compared"] == 77, a["x"], a["compared"]),
        )

    return Case(f"exchanges of {dtype} {n}", exchanging, arguments, want, (max(-(-n // 64), 1),))


def swapping(x, expected, memory, old, N: tkc.constexpr):
    k = tkc.program_id(0) * N + tkc.arange(N)
    inside = k < x.shape[0]
    a, wanted = (tkc.load(v, (tkc.program_id(0) * N,), (N,)) for v in (x, expected))
    tkc.store(old.ptr + k, tkc.atomic_cas(memory.ptr + k, wanted, a, mask=inside), mask=inside)


def swaps(dtype: np.dtype) -> Case:
    """By bits: zeros of two signs differ, NaN is what it is."""
    ends = special(dtype)
    expected, memory = (v.ravel() for v in np.meshgrid(ends, ends))
    n, word = len(memory), f"u{dtype.itemsize}"

    def want(a):
        equal = a["memory"].view(word) == a["expected"].view(word)
        return dict(memory=np.where(equal, a["x"], a["memory"]), old=a["memory"].copy())

    return Case(
        f"swaps of {dtype} {n}",
        swapping,
        lambda r: dict(
            x=values(r, dtype, n),
            expected=expected.copy(),
            memory=memory.copy(),
            old=rubbish(n, dtype),
            N=64,
        ),
        want,
        (-(-n // 64),),
    )


FEW = {
    (t, strides, s)
    for t in DTYPES
    for strides in STRIDES
    for s in (
        SHAPES
        if t in (F32, BF16)
        else SHAPES[6:8]
        if strides is not plain
        else (SHAPES[0], SHAPES[2], SHAPES[7])
    )
}
EVERY = [(t, strides, s) for t in DTYPES for strides in STRIDES for s in SHAPES]
CASES = [
    *(copies(*c) for c in EVERY if c in FEW),
    *(gathers(t, k, n) for t in DTYPES for k, n in ((1, 7), (7, 16), (16, 100))),
    *(swaps(t) for t in (F16, BF16, F32, F64)),
    *(masks(t, n) for t in DTYPES for n in (1, 7, 96, 1000)),
    *(additions(t, n) for t in NUMBERS for n in (1, 7, 1000)),
    *(additions(t, 100, s, c) for t in (I32, F32) for s in SEMANTICS for c in SCOPES),
    *(exchanges(t, n) for t in INTEGERS for n in (7, 100)),
]
MORE = [
    *(copies(*c) for c in EVERY if c not in FEW),
    *(gathers(t, k, n) for t in DTYPES for k, n in ((1, 96), (96, 1), (100, 7))),
    *(masks(t, n) for t in DTYPES for n in (16, 100)),
]
