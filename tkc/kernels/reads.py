"""Kernels by which `tkc calibrate` measures: one that does nothing but read, of memory and caches,
and one that keeps the tensor cores busy. Their arrays need nothing but an array interface.
"""

from __future__ import annotations

from typing import Any

import tkc


@tkc.jit
def read(x: Any, out: Any, COUNT: tkc.constexpr, TIMES: tkc.constexpr, N: tkc.constexpr) -> None:
    """Each program adds up TIMES blocks of N elements, one after the other round a row of COUNT
    blocks.
    """
    first = tkc.program_id(0)
    total = tkc.load(x, ((first % COUNT) * N,), (N,))
    for i in tkc.range(1, TIMES):
        total = total + tkc.load(x, (((first + i) % COUNT) * N,), (N,))
    tkc.store(out, (first,), tkc.sum(total, axis=0))


@tkc.jit
def multiply(
    a: Any, b: Any, c: Any, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr
) -> None:
    """c = a b, a block of BM x BN elements for each program, in float32."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    total = tkc.zeros((BM, BN))
    for k in tkc.range(0, a.shape[1], BK):
        total = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), total)
    tkc.store(c, (m, n), total.to(c.dtype))
