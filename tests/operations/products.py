"""dot: any extents and element types, batches, accumulators, precisions."""

from __future__ import annotations

import numpy as np

import tkc
from tests.operations.case import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    Case,
    Near,
    is_float,
    rubbish,
)

TRIPLES = (
    (1, 1, 1),
    (1, 7, 16),
    (7, 1, 1),
    (7, 16, 96),
    (16, 16, 16),
    (16, 96, 7),
    (96, 100, 16),
    (100, 7, 100),
    (64, 64, 64),
    (128, 16, 32),
    (1, 1000, 7),
    (16, 1, 1000),
)


def product(
    a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr, PRECISION: tkc.constexpr
):
    x, y = tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N))
    tkc.store(o, (0, 0), tkc.dot(x, y, tkc.load(c, (0, 0), (M, N)), precision=PRECISION))


def turned(
    a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr, PRECISION: tkc.constexpr
):
    """Both operands transposed in registers or on their way there."""
    x, y = tkc.load(a, (0, 0), (K, M)).T, tkc.load(b, (0, 0), (N, K)).T
    tkc.store(o, (0, 0), tkc.dot(x, y, tkc.load(c, (0, 0), (M, N)), precision=PRECISION))


def batched(a, b, o, B: tkc.constexpr, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    x, y = tkc.load(a, (0, 0, 0), (B, M, K)), tkc.load(b, (0, 0, 0), (B, K, N))
    tkc.store(o, (0, 0, 0), tkc.dot(x, y))


def factors(r, dtype, *shapes):
    if is_float(dtype):
        return [
            (r.integers(-16, 17, s) / 8 if dtype.itemsize == 1 else r.standard_normal(s)).astype(
                dtype
            )
            for s in shapes
        ]
    return [r.integers(0 if dtype.kind == "u" else -9, 10, s).astype(dtype) for s in shapes]


def sum_type(dtype):
    return (
        np.dtype(np.float64 if dtype == F64 else np.float32)
        if is_float(dtype)
        else I64
        if dtype.itemsize == 8
        else I32
    )


def near(x, y, c, dtype, precision) -> Near:
    """Sums of float32 in any order: one unit of float32 for each addition, of the sum of the
    magnitudes; tf32 first rounds its operands to 11 bits.
    """
    x, y, c, k = x.astype(F64), y.astype(F64), c.astype(F64), x.shape[-1]
    eps = 2.0**-53 if dtype == F64 else 2.0**-24
    magnitude = np.abs(x) @ np.abs(y) + np.abs(c)
    rounding = {"tf32": 2.0**-10, "tf32x3": 2.0**-20}.get(precision, 0.0)
    # Hopper's tensor cores keep 13 bits of an fp8 sum
    fp8 = 2.0**-13 if dtype in (E4M3, E5M2) else 0.0
    return Near(x @ y + c, 0, magnitude * ((k + 1) * eps + rounding + fp8))


def products(
    kernel,
    dtype: np.dtype,
    m: int,
    n: int,
    k: int,
    precision: str = "ieee",
    other: np.dtype | None = None,
) -> Case:
    t = kernel is turned

    def arguments(r):
        (a,) = factors(r, dtype, (k, m) if t else (m, k))
        (b,) = factors(r, other or dtype, (n, k) if t else (k, n))
        (c,) = factors(r, sum_type(dtype), (m, n))
        return dict(
            a=a, b=b, c=c, o=rubbish((m, n), sum_type(dtype)), M=m, N=n, K=k, PRECISION=precision
        )

    def want(g):
        a, b = (g["a"].T, g["b"].T) if t else (g["a"], g["b"])
        if is_float(dtype):
            return dict(o=near(a, b, g["c"], dtype, precision))
        return dict(o=(a.astype(I64) @ b.astype(I64) + g["c"]).astype(sum_type(dtype)))

    return Case(
        f"{'turned ' if t else ''}product of {dtype}{f' and {other}' if other else ''} {m}x{n}x{k}"
        f" {precision}",
        kernel,
        arguments,
        want,
    )


def batches(dtype: np.dtype, b: int, m: int, n: int, k: int) -> Case:
    def arguments(r):
        x, y = factors(r, dtype, (b, m, k), (b, k, n))
        return dict(a=x, b=y, o=rubbish((b, m, n), sum_type(dtype)), B=b, M=m, N=n, K=k)

    def want(g):
        if is_float(dtype):
            return dict(o=near(g["a"], g["b"], np.zeros(1), dtype, "ieee"))
        return dict(o=(g["a"].astype(I64) @ g["b"].astype(I64)).astype(sum_type(dtype)))

    return Case(f"batch of products of {dtype} {b}x{m}x{n}x{k}", batched, arguments, want)


KINDS = (F16, BF16, F32, F64, E4M3, E5M2, I8, U8, I16, I32, I64)
CASES = [
    *(products(product, t, *s) for t in KINDS for s in TRIPLES),
    *(products(turned, t, *s) for t in KINDS for s in TRIPLES[1:8:3] + TRIPLES[8:9]),
    *(products(product, F32, *s, precision=p) for p in ("tf32", "tf32x3") for s in TRIPLES),
    *(products(product, E4M3, *s, other=E5M2) for s in TRIPLES[3:9]),
    *(
        batches(t, *s)
        for t in (F16, BF16, F32, F64, I8, I32)
        for s in ((1, 7, 16, 7), (3, 16, 16, 16), (7, 1, 7, 16), (2, 32, 64, 32))
    ),
]
# cut in parts by fit-results and fit-dots
LARGE = (
    (1000, 16, 7),
    (100, 1, 1000),
    (1000, 7, 100),
    (256, 256, 16),
    (96, 1000, 16),
    (7, 100, 1000),
    (1000, 96, 1),
)
MORE = [
    products(kernel, t, *s)
    for t in KINDS
    for s in (LARGE if t in (F32, BF16, I8) else LARGE[:1])
    for kernel in (product, turned)[: 1 + (s == LARGE[1])]
]
