"""Kernels for the tests of the runtime."""

import math

import tkc

SCALE = 3.0
OFFSETS = (1, 2)


def helper(x):
    return x * SCALE


@tkc.jit
def add(x, y, out, n, BLOCK: tkc.constexpr = 64):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    inside = i < n
    tkc.store(
        out.ptr + i,
        tkc.load(x.ptr + i, mask=inside) + tkc.load(y.ptr + i, mask=inside),
        mask=inside,
    )


@tkc.jit
def strided(x, y, out, n, by, BLOCK: tkc.constexpr = 64):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    a, b = (tkc.load(t.ptr + i * t.strides[0], mask=i < n) for t in (x, y))
    tkc.store(out.ptr + i * out.strides[0], a + (b * by).to(b.dtype), mask=i < n)


@tkc.jit
def scaled(x, out, n, BLOCK: tkc.constexpr = 64):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    tkc.store(
        out.ptr + i, helper(tkc.load(x.ptr + i, mask=i < n)) + math.pi + OFFSETS[0], mask=i < n
    )


@tkc.jit
def shift(x, by, out, BLOCK: tkc.constexpr = 64):
    tkc.store(
        out, (tkc.program_id(0) * BLOCK,), tkc.load(x, (tkc.program_id(0) * BLOCK + by,), (BLOCK,))
    )


def grid(a):
    return -(-a["n"] // a["BLOCK"])
