"""Kernels for the tests of `tkc explain`, and what it gathers of them, each once a process."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

import tkc
from tkc.tools.explain import choices
from tkc.tools.explain.explanation import gather
from tkc.tools.explain.page import rendered
from tkc.tools.explain.subject import subject


def positive(x):
    return tkc.maximum(x, 0)


@tkc.jit
def product(a, b, c, BM: tkc.constexpr = 128, BN: tkc.constexpr = 128, BK: tkc.constexpr = 64):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), positive(acc).to(c.dtype))


@tkc.jit
def rows(x, out, N: tkc.constexpr):
    row = tkc.load(x, (tkc.program_id(0), 0), (1, N)).to(tkc.float32)
    powers = tkc.exp(row - tkc.max(row, axis=1)[:, None])
    result = powers / tkc.sum(powers, axis=1)[:, None]
    tkc.store(out, (tkc.program_id(0), 0), result.to(out.dtype))


@tkc.jit
def turned(x, out, N: tkc.constexpr = 64):
    i, j = tkc.program_id(0) * N, tkc.program_id(1) * N
    tkc.store(out, (j, i), tkc.load(x, (i, j), (N, N)).T)


@tkc.jit
def mistaken(x, out, N: tkc.constexpr = 64):
    a = tkc.load(x, (0,), (N,))
    b = tkc.load(x, (0,), (N // 2,))
    tkc.store(out, (0,), a + b)


def grid(args):
    return 16, 16


OPERANDS = {name: "bf16[2048, 2048]" for name in "abc"}
ARGUMENTS = {
    "product": (product, OPERANDS, (16, 16)),
    "rows": (rows, {"x": "f32[4096, 2048]", "out": "f32[4096, 2048]", "N": 2048}, (4096,)),
    "turned": (turned, {"x": "f32[512, 512]", "out": "f32[512, 512]"}, (8, 8)),
    "mistaken": (mistaken, {"x": "f32[64]", "out": "f32[64]"}, (1,)),
    "crowded": (product, OPERANDS | {"num_stages": 12, "roles": "one"}, (16, 16)),
}


@cache
def _about(name: str, target: str):
    kernel, arguments, extents = ARGUMENTS[name]
    return subject(kernel, arguments, extents, target)


@cache
def _explained(name: str, target: str) -> dict:
    with patch.object(choices, "MAX_COMPILED", 3):  # each takes half a second
        return gather(_about(name, target), measure=False)


def about(name: str, target: str = "sm_90a"):
    return _about(name, target)


def explained(name: str, target: str = "sm_90a") -> dict:
    return _explained(name, target)


def page(name: str, target: str = "sm_90a") -> str:
    return rendered(explained(name, target))
