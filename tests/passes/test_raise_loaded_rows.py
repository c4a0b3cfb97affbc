"""raise-pointers: blocks of rows whose number is loaded from memory, as those of sparse matrices
and of paged caches are, and updates by tiles of pointers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler, assembles_clean
from tkc.codegen.ptx.emit import emit
from tkc.ir import threads, tile
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact, TileType
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

BLOCK, BN = 64, 64


def sparse(values, dense, columns, starts, out, N):
    """Blocks of a sparse matrix, row by row, times a dense one."""
    i, j = tkc.program_id(0), tkc.program_id(1)
    r, rn = tkc.arange(BLOCK), j * BN + tkc.arange(BN)
    acc = tkc.zeros((BLOCK, BN))
    for at in range(tkc.load(starts.ptr + i), tkc.load(starts.ptr + i + 1)):
        column = tkc.load(columns.ptr + at)
        x = tkc.load(values.ptr + at * (BLOCK * BLOCK) + r[:, None] * BLOCK + r[None, :])
        y = tkc.load(dense.ptr + ((column + 1) * BLOCK + r)[:, None] * N + rn[None, :])
        acc = tkc.dot(x, y, acc)
    tkc.store(out.ptr + (i * BLOCK + r)[:, None] * N + rn[None, :], acc.to(out.dtype))


def flat(dtype) -> ArrayArgument:
    return ArrayArgument(dtype, ArrayFacts((Fact(),), (Fact(exact=1),), 16))


def sparse_module(index=tkc.int32):
    f16, starts, columns = flat(tkc.float16), flat(tkc.int32), flat(index)
    return traced(sparse, f16, f16, columns, starts, f16, replace(i32(16), nonnegative=True))


def sparse_data(n: int = 128, index: type = np.int32) -> tuple[list, np.ndarray]:
    """Columns -1, 0 and 1 of a dense matrix: the first block of its rows has the number -1."""
    rng = np.random.default_rng(n)
    values = rng.integers(-2, 3, (4, BLOCK, BLOCK)).astype(np.float16)
    whole = rng.integers(-2, 3, (3, BLOCK, n)).astype(np.float16)
    columns = np.array([1, -1, 0, 1], index)
    starts = np.array([0, 1, 1, 4], np.int32)
    want = np.zeros((3, BLOCK, n))
    for row in range(3):
        for at in range(starts[row], starts[row + 1]):
            want[row] += values[at].astype(float) @ whole[columns[at] + 1].astype(float)
    out = np.zeros(3 * BLOCK * n, np.float16)
    return [values.reshape(-1), whole.reshape(-1), columns, starts, out, n], want.reshape(-1)


def agrees(run: Callable[[list, tuple], None], index: type = np.int32) -> None:
    given, want = sparse_data(index=index)
    run(given, (3, 2, 1))
    np.testing.assert_array_equal(given[4], want)


@pytest.mark.parametrize("index", [tkc.int32, tkc.int64])
def test_blocks_of_loaded_rows_compute_the_same_at_every_level(index):
    kind = {tkc.int32: np.int32, tkc.int64: np.int64}[index]
    agrees(lambda given, grid: level0.run(sparse_module(index), given, grid), kind)
    raised = sparse_module(index)
    through(raised, "raise-pointers", context("sm_90a"))
    assert not any(
        isinstance(op, tile.LoadPointers | tile.StorePointers)
        and isinstance(op.pointers.type, TileType)
        for op in raised.walk()
    )
    agrees(lambda given, grid: level0.run(raised, given, grid), kind)
    for name in ("sm_80", "sm_90a"):
        module = sparse_module(index)
        through(module, PIPELINE[-1], context(name))
        agrees(lambda given, grid, module=module: level4.run(module, given, grid, 1), kind)


@assembler
def far_before(table, a, b, c, M, N, K):
    """Rows counted back from one that lies further behind than offsets of 32 bits reach."""
    r, first = tkc.arange(16), tkc.load(table.ptr)
    x = tkc.load(a.ptr + N.to(tkc.int64) * 16 + (first + r)[:, None] * 16 + r[None, :])
    tkc.store(c, (0, 0), tkc.dot(x, tkc.load(b, (0, 0), (16, 16))).to(c.dtype))


def windows(table, a, b, c, M, N, K):
    """Each row begins an element behind the one before; where is loaded."""
    r, first = tkc.arange(16), tkc.load(table.ptr)
    x = tkc.load(a.ptr + (first + r)[:, None] * M + r[None, :])
    tkc.store(c, (0, 0), tkc.dot(x, tkc.load(b, (0, 0), (16, 16))).to(c.dtype))


FAR = (1 << 27) + 8  # rows of 16 elements: some more than 2^31 elements


@pytest.mark.parametrize(
    "kernel, large, divisor, numbers, first",
    [
        (far_before, True, 1, (0, FAR, 0), -FAR),
        (windows, False, 1, (1, 0, 0), 5),
        (windows, False, 16, (0, 0, 0), 5),
        (windows, False, 16, (16, 0, 0), 5),
    ],
)
def test_rows_whose_numbers_do_not_fit_before_the_first(kernel, large, divisor, numbers, first):
    """Strides of one element and of none, and distances that take more than 32 bits."""
    m, n, k = numbers
    table, a = flat(tkc.int32), replace(flat(tkc.float16), wide=large)
    rest = [array(tkc.float16, 2)] * 2
    module = traced(kernel, table, a, *rest, replace(i32(divisor), nonnegative=True), i32(), i32())
    data = np.random.default_rng(0).integers(-2, 3, 512).astype(np.float16)
    b = np.random.default_rng(1).integers(-2, 3, (16, 16)).astype(np.float16)
    given = [np.array([first], np.int32), data, b, c := np.zeros((16, 16), np.float16), m, n, k]
    step = 16 if kernel is far_before else m
    begin = 0 if kernel is far_before else first * step
    at = begin + np.arange(16)[:, None] * step + np.arange(16)
    through(module, "raise-pointers", context("sm_90a"))
    level0.run(module, given, (1, 1, 1))
    np.testing.assert_array_equal(c, data.astype(float)[at] @ b.astype(float))


def test_blocks_of_loaded_rows_have_tensor_maps():
    """Those of both operands are of arrays that the host describes."""
    module = sparse_module()
    through(module, PIPELINE[-1], context("sm_90a"))
    assembles_clean(module)
    maps = [p for p in emit(module, target("sm_90a")).interface.parameters if p.kind == "map"]
    assert {p.argument for p in maps} >= {0, 1}
    agrees(lambda given, grid: machine.run(module, given, grid))


# ---- updates
def added(a, b, c, M, N, K, SPLIT: tkc.constexpr, WORDS: tkc.constexpr, WRAP: tkc.constexpr):
    """A part of a product, added to what is there by a tile of pointers."""
    rm, rn = (tkc.program_id(i) * BLOCK + tkc.arange(BLOCK) for i in range(2))
    rk = tkc.program_id(2) * BLOCK + tkc.arange(BLOCK)
    acc = tkc.zeros((BLOCK, BLOCK))
    for k in range(0, K, BLOCK * SPLIT):
        here = k + rk
        x = tkc.load(a.ptr + rm[:, None] * K + here[None, :], mask=here[None, :] < K)
        y = tkc.load(b.ptr + here[:, None] * N + rn[None, :], mask=here[:, None] < K)
        acc = tkc.dot(x, y, acc)
    inside = None if WRAP else (rm[:, None] < M) & (rn[None, :] < N)
    if WRAP:
        rm, rn = rm % M, rn % N
    places = c.ptr + rm[:, None] * N + rn[None, :]
    tkc.atomic_add(places, acc.to(c.dtype), mask=inside, **dict(WORDS))


def added_module(dtype=tkc.float32, wrap: bool = False, **words: str):
    operands = [flat(tkc.float16)] * 2 + [flat(dtype)] + [i32(16)] * 3
    constants = {"SPLIT": 2, "WORDS": tuple(words.items()), "WRAP": wrap}
    return traced(added, *operands, **constants)


def added_data(m: int, n: int, k: int, dtype) -> tuple[list, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.integers(-1, 2, s).astype(np.float16) for s in ((m, k), (k, n)))
    a_padded = np.concatenate([a.reshape(-1), np.zeros(BLOCK * k, np.float16)])
    b_padded = np.concatenate([b.reshape(-1), np.zeros(BLOCK, np.float16)])
    want = a.astype(float) @ b.astype(float)
    return [a_padded, b_padded, np.ones(m * n, dtype), m, n, k], want


def updates(module) -> list[type]:
    return [type(op) for op in module.walk() if isinstance(op, tile.Atomic | tile.AtomicBlock)]


@pytest.mark.parametrize("dtype", [tkc.float32, tkc.float16])
@pytest.mark.parametrize("words", [{}, {"sem": "relaxed"}, {"scope": "gpu"}], ids=str)
def test_updates_by_tiles_of_pointers_are_updates_of_blocks(dtype, words):
    m, n, k = 96, 80, 192
    numpy_type = {tkc.float32: np.float32, tkc.float16: np.float16}[dtype]

    def check(run: Callable[[list, tuple], None]) -> None:
        given, want = added_data(m, n, k, numpy_type)
        run(given, (2, 2, 2))
        np.testing.assert_array_equal(given[2].reshape(m, n), want + 1)

    module = added_module(dtype, **words)
    check(lambda given, grid: level0.run(module, given, grid))
    through(module, "raise-pointers", context("sm_90a"))
    assert updates(module) == [tile.AtomicBlock]
    check(lambda given, grid: level0.run(module, given, grid))
    for name in ("sm_80", "sm_90a"):
        compiled = added_module(dtype, **words)
        given = context(name)
        through(compiled, PIPELINE[-1], given)
        check(lambda given, grid, module=compiled: level4.run(module, given, grid, 1))
    assert given.has_roles
    assert any(isinstance(op, threads.TmaStore) and op.reduce for op in compiled.walk())


@pytest.mark.parametrize(
    "words, dtype",
    [
        ({"sem": "acq_rel"}, tkc.float32),
        ({"sem": "release"}, tkc.float32),
        ({"scope": "system"}, tkc.float32),
        ({}, tkc.int32),
    ],
    ids=str,
)
def test_updates_that_order_something_stay(words, dtype):
    """Those that say so, those of other GPUs and of the host, counters, which may be signals."""
    module = added_module(dtype, **words)
    through(module, "raise-pointers", context("sm_90a"))
    assert updates(module) == [tile.Atomic]


def test_updates_of_wrapped_places_stay():
    """What lies beyond is added at the beginning once more: nothing of it is left out."""
    module = added_module(wrap=True)
    through(module, "raise-pointers", context("sm_90a"))
    assert updates(module) == [tile.Atomic]


def counted(a, b, c, count, N):
    """A product added to memory, and a counter that says how many programs have done so."""
    r = tkc.arange(BLOCK)
    x, y = (tkc.load(p.ptr + r[:, None] * N + r[None, :]) for p in (a, b))
    tkc.atomic_add(c.ptr + r[:, None] * N + r[None, :], tkc.dot(x, y))
    before = tkc.atomic_add(count.ptr, 1)
    if before == tkc.num_programs(0) - 1:
        z = tkc.load(c.ptr + r[:, None] * N + r[None, :])
        tkc.store(c.ptr + r[:, None] * N + r[None, :], z * 2)


def test_updates_stay_where_a_program_watches_others():
    """The counter's release is for what was added before it."""
    operands = [flat(tkc.float16)] * 2 + [flat(tkc.float32), array(tkc.int32, 1), i32(16)]
    module = traced(counted, *operands)
    through(module, "raise-pointers", context("sm_90a"))
    assert updates(module) == [tile.Atomic, tile.Atomic]
    assert all(op.semantics is None for op in module.walk() if isinstance(op, tile.Atomic))
