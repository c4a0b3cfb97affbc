"""Operands that are computed of blocks with fewer elements: packed weights, and rows of which each
is read several times. The blocks come through the ring of their dot, threads read them as the dot
needs them, and nothing moves between warps.

All numbers are small integers, so that sums are exact and every result has one right value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler
from tests.passes.test_loaded_by_consumers import numbers, product
from tests.passes.test_raise_pointers import BK, BM, BN, remaining
from tests.runtime.test_arrays_without_maps import failures
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

M, N, K = 64, 128, 64
ROWS, COLUMNS, DEPTH = 100, 144, 192


@tkc.jit
def joined(a, packed, c):
    """Weights of 4 bits, two rows a byte."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        p = tkc.load(packed, (k // 2, n), (K // 2, N))
        low, high = (p & 15).to(tkc.int8) - 8, (p >> 4).to(tkc.int8) - 8
        w = tkc.join(low, high).permute(0, 2, 1).reshape(K, N)
        acc = tkc.dot(tkc.load(a, (m, k), (M, K)), w.to(a.dtype), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def in_halves(a, packed, c):
    """The same, one half of the rows above the other: signed bytes whose products wrap."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        p = tkc.load(packed, (k // 2, n), (K // 2, N))
        w = tkc.cat(p * 16 >> 4, p >> 4, axis=0)
        acc = tkc.dot(tkc.load(a, (m, k), (M, K)), w.to(a.dtype), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def gathered(a, packed, c):
    """Eight rows in 32 bits, by pointers: each row is loaded once."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    columns, inner = n + tkc.arange(N), tkc.arange(K)
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        at = packed.ptr + ((k + inner) // 8)[:, None] * packed.strides[0] + columns[None, :]
        words = tkc.load(at, mask=(columns < c.shape[1])[None, :])
        w = ((words >> (inner % 8 * 4)[:, None]) & 15) - 8
        acc = tkc.dot(tkc.load(a, (m, k), (M, K)), w.to(a.dtype), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


def _four() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 16, (DEPTH, COLUMNS))


def _bytes() -> tuple[np.ndarray, np.ndarray]:
    four = _four()
    return (four[0::2] | four[1::2] << 4).astype(np.uint8), four - 8


def _signed() -> tuple[np.ndarray, np.ndarray]:
    four = (_four() - 8).reshape(-1, 2, K // 2, COLUMNS)
    packed = (four[:, 0] & 15) | four[:, 1] << 4
    return packed.reshape(-1, COLUMNS).astype(np.int8), four.reshape(DEPTH, COLUMNS)


def _words() -> tuple[np.ndarray, np.ndarray]:
    four = _four()
    packed = sum(four[i::8] << (4 * i) for i in range(8)).astype(np.uint32).view(np.int32)
    return packed, four - 8


@dataclass(frozen=True)
class Case:
    """A kernel; packed weights, and what they stand for."""

    kernel: tkc.JitFunction
    weights: Callable[[], tuple[np.ndarray, np.ndarray]]

    def arguments(self) -> tuple[list[np.ndarray], np.ndarray]:
        packed, weights = self.weights()
        a = numbers(ROWS, DEPTH)
        return [a, packed, np.full((ROWS, COLUMNS), 9, np.float16)], product(a, weights)


CASES = {
    "joined": Case(joined, _bytes),
    "in halves": Case(in_halves, _signed),
    "gathered": Case(gathered, _words),
}
GRID = (tkc.cdiv(ROWS, M), tkc.cdiv(COLUMNS, N))
EACH = pytest.mark.parametrize("name", CASES)


@EACH
@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
def test_results(name, target, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", target)
    given, wanted = CASES[name].arguments()
    CASES[name].kernel[GRID](*given)
    np.testing.assert_array_equal(given[-1], wanted)


@EACH
def test_the_text_computes_the_same(name):
    given, _ = CASES[name].arguments()
    assert not failures(CASES[name].kernel, *given, target="sm_90a", grid=(*GRID, 1))


@EACH
def test_blocks_come_through_the_ring(name):
    """All operands by tensor maps, by wgmma, in the threads that need them."""
    given, _ = CASES[name].arguments()
    result = len(given) - 1
    compiled = CASES[name].kernel.compile(*given, target="sm_90a")
    assert "wgmma.mma_async" in compiled.ptx
    assert not compiled.resources.spill_stores
    maps = [p for p in compiled.interface.parameters if p.kind == "map"]
    assert sum(p.argument != result for p in maps) == 2
    assert not any("between warps" in d for d in compiled.decisions)


def test_what_two_parts_are_computed_of_is_read_once():
    """Both halves of a byte come from one read of it."""
    given, _ = CASES["joined"].arguments()
    compiled = CASES["joined"].kernel.compile(*given, target="sm_90a")
    assert compiled.stages["swizzle-shared"].count("tile.read") == 1


@pytest.mark.parametrize("name, read", [("joined", "ldmatrix"), ("gathered", "ld.shared.v2.b32")])
def test_neighbours_along_rows_are_read_at_once(name, read):
    """Threads have pairs of rows of a dot whose weights are dense along them, and store these."""
    given, _ = CASES[name].arguments()
    compiled = CASES[name].kernel.compile(*given, target="sm_90a")
    assert "'paired': True" in compiled.stages["plan"]
    assert read in compiled.ptx and "ld.shared.u8" not in compiled.ptx
    assert "st.shared.b32" in compiled.ptx and "st.shared.b16" not in compiled.ptx


@tkc.jit
def scaled(a, packed, scales, c, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Weights of 4 bits, two rows a byte; K rows share a scale."""
    m, n = tkc.program_id(0) * M, tkc.program_id(1) * N
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        p = tkc.load(packed, (k // 2, n), (K // 2, N))
        w = tkc.join(p & 15, p >> 4).permute(0, 2, 1).reshape(K, N)
        w = (w.to(tkc.int8) - 8).to(a.dtype) * tkc.load(scales, (k // K, n), (None, N))[None, :]
        acc = tkc.dot(tkc.load(a, (m, k), (M, K)), w, acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@pytest.mark.parametrize("columns, groups", [(128, 2), (256, 4)])
def test_many_columns_are_those_of_four_warpgroups(columns, groups, monkeypatch):
    """Few rows: what threads compute takes longer than the dot."""
    monkeypatch.setenv("TKC_SIM", "1")
    rng = np.random.default_rng(1)
    four, scales = rng.integers(0, 16, (128, columns)), rng.integers(1, 4, (2, columns))
    a = numbers(16, 128)
    packed = (four[0::2] | four[1::2] << 4).astype(np.uint8)
    given = [a, packed, scales.astype(np.float16), np.zeros((16, columns), np.float16)]
    compiled = scaled.compile(*given, 16, columns, 64, target="sm_90a")
    assert any(f"{groups} warpgroups of consumers" in said for said in compiled.decisions)
    scaled[(1, 1)](*given, 16, columns, 64)
    np.testing.assert_array_equal(given[-1], product(a, (four - 8) * np.repeat(scales, 64, axis=0)))


@tkc.jit
def plain(a, b, c, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], K):
        acc = tkc.dot(tkc.load(a, (0, k), (M, K)), tkc.load(b, (k, 0), (K, N)), acc)
    tkc.store(c, (0, 0), acc.to(c.dtype))


def test_many_rows_of_what_is_copied_are_those_of_two_warpgroups():
    given = ["f16[256, 128]", "f16[128, 64]", "f16[256, 64]", 256, 64, 64]
    compiled = plain.compile(*given, target="sm_90a", roles="cooperative")
    assert any("8 warps of consumers" in said for said in compiled.decisions), compiled.decisions


def test_results_of_packed_columns_are_cut_along_them():
    """A reshape that joins other axes keeps the columns."""
    rows, columns = 128, 512
    rng = np.random.default_rng(2)
    packed = rng.integers(0, 256, (64, columns)).astype(np.uint8)
    scales = rng.integers(1, 4, (2, columns)).astype(np.float16)
    given = [numbers(rows, 128), packed, scales, np.zeros((rows, columns), np.float16)]
    facts = ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16)
    half, byte = (ArrayArgument(t, facts) for t in (tkc.float16, tkc.uint8))
    module = traced(scaled.fn, half, byte, half, half, M=rows, N=columns, K=64)
    level0.run(module, given, (1, 1, 1))
    wanted, told = given[-1].copy(), context("sm_90a")
    through(module, "fit-results", told)
    assert any("128x512 results do not fit registers: axis 1" in said for said in told.decisions)
    given[-1][:] = 0
    level0.run(module, given, (1, 1, 1))
    np.testing.assert_array_equal(given[-1], wanted)


# ---- rows that are read several times
def repeated(a, b, c, M, N, K, masked: tkc.constexpr):
    """Each row of b stands for four rows of the operand; masked: where the last rows are zeros."""
    rm, rn = tkc.program_id(0) * BM + tkc.arange(BM), tkc.program_id(1) * BN + tkc.arange(BN)
    acc = tkc.zeros((BM, BN))
    for k in range(0, K, BK):
        rk = k + tkc.arange(BK)
        av = tkc.load(
            a.ptr + rm[:, None] * a.strides[0] + rk[None, :],
            mask=(rm < M)[:, None] & (rk < K)[None, :],
        )
        mask = (rn < N)[None, :]
        if masked:
            mask = mask & (rk < K)[:, None]
        bp = b.ptr + (rk // 4)[:, None] * b.strides[0] + rn[None, :]
        acc = tkc.dot(av, tkc.load(bp, mask=mask), acc)
    cp = c.ptr + rm[:, None] * c.strides[0] + rn[None, :]
    tkc.store(cp, acc.to(c.dtype), mask=(rm < M)[:, None] & (rn < N)[None, :])


def _repeated(masked: bool):
    facts = ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16)
    arrays = [ArrayArgument(tkc.float16, facts)] * 3
    return traced(repeated, *arrays, i32(), i32(8), i32(8), masked=masked)


@pytest.mark.parametrize("masked", (False, True))
@assembler
def test_rows_that_are_read_several_times(masked):
    """They are rows of a block, each loaded once; where a mask tells them apart, what it leaves out
    is 0 afterwards.
    """
    m, n, k = 100, 72, 96
    a, b = numbers(m, k), numbers(k // 4, n)
    wanted = product(a, np.repeat(b, 4, axis=0))

    def check(run: Callable) -> None:
        given = [a, b, np.zeros((m, n), np.float16), m, n, k]
        run(given, (2, 2, 1))
        np.testing.assert_array_equal(given[2], wanted)

    check(lambda given, grid: level0.run(_repeated(masked), given, grid))
    raised = _repeated(masked)
    told = context("sm_90a")
    through(raised, "raise-pointers", told)
    assert not remaining(raised)
    assert not any("a mask bounds an axis" in d for d in told.decisions)
    check(lambda given, grid: level0.run(raised, given, grid))
    module = _repeated(masked)
    through(module, PIPELINE[-1], context("sm_90a"))
    check(lambda given, grid: level4.run(module, given, grid, 1))
    check(lambda given, grid: machine.run(module, given, grid))


@EACH
def test_a_block_of_one_warpgroup_leaves_room_for_another(name):
    """The tensor cores have another block's dot while it makes its operand."""
    given, _ = CASES[name].arguments()
    compiled = CASES[name].kernel.compile(*given, target="sm_90a", num_warps=4)
    assert any("2 blocks share a multiprocessor" in line for line in compiled.decisions)
    assert not compiled.resources.spill_stores


def test_weights_that_threads_copy_leave_room_for_another_block(monkeypatch):
    """Rows of words begin at multiples of 8 bytes, which a role of threads copies. Scales come by
    the other ring: consumers ask memory for nothing that a fence could make them wait for.
    """
    monkeypatch.setenv("TKC_SIM", "1")
    rng = np.random.default_rng(3)
    columns = 136
    four, scales = rng.integers(0, 16, (320, columns)), rng.integers(1, 4, (5, columns))
    a = numbers(16, 320)
    packed = (four[0::2] | four[1::2] << 4).astype(np.uint8)
    given = [a, packed, scales.astype(np.float16), np.zeros((16, columns), np.float16)]
    compiled = scaled.compile(*given, 16, 64, 64, target="sm_90a")
    assert any("2 blocks share a multiprocessor" in said for said in compiled.decisions)
    assert any("copies a block of 32x64" in said for said in compiled.decisions)
    assert not compiled.resources.spill_stores
    loops = compiled.ptx[: compiled.ptx.rindex("wgmma.mma_async")]
    assert "ld.global" not in loops
    scaled[(1, 3)](*given, 16, 64, 64)
    np.testing.assert_array_equal(given[-1], product(a, (four - 8) * np.repeat(scales, 64, axis=0)))
