"""Reshapes between any two shapes: free where every thread has what it is to give, else through
shared memory; the same at every level, on the CPU and as PTX, without a register spilled.
"""

import itertools
from math import prod

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tests.passes.demands import check as demands
from tests.passes.kernels import context, through
from tkc.codegen import cpu
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir import shared, tile
from tkc.ir.target import target
from tkc.passes.pipeline import PIPELINE
from tkc.sim import dataflow, level0, level4, ptx


def shapes(size: int, rank: int = 2) -> list[tuple[int, ...]]:
    """All ways to write a size as a product of extents."""
    if rank == 1:
        return [(size,)]
    return [
        (n, *rest)
        for n in range(1, size + 1)
        if size % n == 0
        for rest in shapes(size // n, rank - 1)
    ]


def pairs(size: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return list(itertools.permutations(shapes(size), 2))


def reshaped(x, out, one, SIZE: tkc.constexpr, PAIRS: tkc.constexpr):
    """Row i of the result: the tile under the first shape, with something added that is another
    number at each place there, under the second, and so again.
    """
    for i, (old, new) in enumerate(PAIRS):
        v = tkc.reshape(tkc.load(x, (0,), (SIZE,)), old) + (
            one * tkc.arange(prod(old[1:])).reshape((1, *old[1:])) if len(old) > 1 else one
        )
        w = tkc.reshape(v, new) * (one + tkc.arange(new[0])).reshape(
            (new[0], *(1 for _ in new[1:]))
        )
        tkc.store(out, (i, 0), tkc.reshape(w, (1, SIZE)))


def wanted(x, found) -> np.ndarray:
    rows = []
    for old, new in found:
        v = (
            x.reshape(old) + np.arange(prod(old[1:])).reshape((1, *old[1:]))
            if len(old) > 1
            else x + 1
        )
        rows.append(
            (
                v.reshape(new) * (1 + np.arange(new[0])).reshape((new[0], *(1 for _ in new[1:])))
            ).reshape(-1)
        )
    with np.errstate(over="ignore"):
        return np.array(rows).astype(x.dtype)


def module_of(size: int, found, dtype=tkc.int32):
    return traced(reshaped, array(dtype), array(dtype, 2), i32(), SIZE=size, PAIRS=tuple(found))


def numbers(size: int, dtype) -> np.ndarray:
    return (np.arange(size) % 101).astype(dtype)


def data(size: int, found, dtype=np.int32) -> list:
    return [numbers(size, dtype), np.zeros((len(found), size), dtype), 1]


def ways(
    size: int, found, machine: str, dtype=(tkc.int32, np.int32), seed: int = 0, **options
) -> None:
    """Every level, threads, and the text."""
    module, want = module_of(size, found, dtype[0]), wanted(numbers(size, dtype[1]), found)

    def look(name, m) -> None:
        given = data(size, found, dtype[1])
        if name == "select-layouts":
            demands(level0.kernel_of(m))
        if name in ("select-layouts", "swizzle-shared"):
            dataflow.run(m, given, (1,))
        elif name == PIPELINE[-1]:
            level4.run(m, given, (1, 1, 1), seed)
        else:
            return
        np.testing.assert_array_equal(given[1], want, err_msg=name)

    through(module, PIPELINE[-1], context(machine, **options), look)
    np.testing.assert_array_equal(
        ptx.run(emit(module, target(machine)), data(size, found, dtype[1]), seed=seed or None)[1],
        want,
    )


SMALL = (12, 18, 20, 30)


@pytest.mark.parametrize("size", SMALL)
def test_level_0_and_cpu(size):
    found = [*pairs(size), *zip(shapes(size, 3), reversed(shapes(size, 3)), strict=False)]
    module, want = module_of(size, found), wanted(numbers(size, np.int32), found)
    for run in (
        (lambda a: level0.run(module, a, (1,))),
        (lambda a: cpu.compile(module.clone()).run(a, (1, 1, 1))),
    ):
        given = data(size, found)
        run(given)
        np.testing.assert_array_equal(given[1], want)


@pytest.mark.parametrize("size", SMALL)
def test_every_pair_of_small_shapes(size):
    """Machines and numbers of warps in turn."""
    ways(
        size,
        pairs(size),
        ("sm_80", "sm_90a")[size // 6 % 2],
        num_warps=(1, 4, 2)[size // 2 % 3],
        seed=size,
    )


@pytest.mark.parametrize(
    "old, new",
    [
        ((7, 16), (16, 7)),
        ((7, 100), (100, 7)),
        ((1, 1000), (8, 125)),
        ((2, 500), (1000, 1)),
        ((100, 7), (35, 20)),
        ((2, 3, 35), (5, 6, 7)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "float64"])
def test_larger_ones_of_every_width(old, new, kind):
    ways(prod(old), [(old, new)], "sm_80", (getattr(tkc, kind), np.dtype(kind)))


def test_they_are_counted_and_free_ones_stay_free():
    def moved(*found, **options) -> tuple[int, int, int]:
        module = module_of(prod(found[0][0]), found, tkc.float32)
        given = through(module, "swizzle-shared", context("sm_80", **options))

        def count(kind):
            return sum(isinstance(op, kind) for op in module.walk())

        return (
            count(shared.SharedReshape),
            count(tile.Reshape),
            sum("reshaped to" in line and "data moves between" in line for line in given.decisions),
        )

    assert moved(((7, 16), (16, 7)))[0] == moved(((7, 16), (16, 7)))[2] >= 1
    assert (
        moved(((64, 64), (32, 128)))[0] == 0
        and moved(((4096,), (64, 64)))[0] == 0
        and moved(((1, 64), (64, 1)))[0] == 0
        and moved(((2, 3), (3, 2)))[0] == 0
    )


def several(x, y, out, N: tkc.constexpr):
    """Many of them alive at once."""
    a, b = tkc.load(x, (0, 0), (7, 100)), tkc.load(y, (0, 0), (100, 7))
    total = tkc.zeros((35, 20))
    for i in tkc.static_range(N):
        total = total + tkc.reshape(tkc.exp(tkc.reshape(a * (i + 1), (100, 7)) + b), (35, 20))
    tkc.store(
        out,
        (0, 0),
        total + tkc.reshape(tkc.reshape(tkc.sum(a, axis=1)[:, None] + a, (700,)), (35, 20)),
    )


@pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_no_register_is_spilled(machine):
    module = traced(several, *(array(tkc.float32, 2),) * 3, N=4)
    through(module, PIPELINE[-1], context(machine))
    found = ptxas.assemble(emit(module, target(machine)).text, machine)
    assert found.clean and found.registers <= 80, found.log
    x, y, out = (
        np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32),
        np.random.default_rng(1).standard_normal((100, 7)).astype(np.float32),
        np.zeros((35, 20), np.float32),
    )
    got = ptx.run(emit(module, target(machine)), [x, y, out])[2]
    want = sum(
        np.exp((x * (i + 1)).reshape(100, 7).astype(np.float64) + y).reshape(35, 20)
        for i in range(4)
    ) + (x.sum(1, dtype=np.float64)[:, None] + x).reshape(35, 20)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
