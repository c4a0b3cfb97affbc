"""A kernel that does nothing but read, by which `tkc calibrate` measures memory and caches."""

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
