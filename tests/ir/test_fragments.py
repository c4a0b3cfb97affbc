"""Instruction fragments against the manuals' formulas (HOPPER.md 8), and ldmatrix/stmatrix plans by
simulation.
"""

from __future__ import annotations

import doctest

import numpy as np
import pytest

import tkc.ir.fragments
from tkc.ir.fragments import (
    MMA_INSTRUCTIONS,
    instructions_for,
    matrix_access,
    mma_a,
    mma_accumulator,
    mma_b,
    paired,
    parse_layout,
    permuted_k,
    wgmma_a,
    wgmma_a_permuted,
    wgmma_accumulator,
    wgmma_accumulators,
)
from tkc.ir.layout import Layout, LayoutError, blocked, movement, register_map
from tkc.ir.shared_layout import SharedLayout

# warp, lane, g, q
THREADS = [(w, lane, lane // 4, lane % 4) for w in range(4) for lane in range(32)]


def test_the_docstring():
    failed, attempted = doctest.testmod(tkc.ir.fragments)
    assert failed == 0 and attempted > 1


# ---- formulas, written down independently --------------------------------------------------------


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_wgmma_accumulator(n):
    acc = wgmma_accumulator(64, n)
    assert acc.num_registers == n // 2 and acc.num_warps == 4 and not acc.is_padded
    table = acc.table()
    for w, lane, g, q in THREADS:
        for i in range(n // 2):
            assert tuple(table[w, lane, i]) == (
                16 * w + g + 8 * (i >> 1 & 1),
                8 * (i >> 2) + 2 * q + (i & 1),
            )


# element e of 32-bit register a_j in one instruction: (row, k)
A = {
    16: lambda g, q, j, e: (g + 8 * (j & 1), 2 * q + e + 8 * (j >> 1)),
    8: lambda g, q, j, e: (g + 8 * (j & 1), 4 * q + e + 16 * (j >> 1)),
    32: lambda g, q, j, e: (g + 8 * (j & 1), q + 4 * (j >> 1)),
}
B = {
    16: lambda g, q, j, e: (2 * q + e + 8 * j, g),
    8: lambda g, q, j, e: (4 * q + e + 16 * j, g),
    32: lambda g, q, j, e: (q + 4 * j, g),
}


@pytest.mark.parametrize("groups", [1, 2])
def test_pairs_of_rows(groups):
    """The same rows of the instruction in both fragments, and neighbours in each thread."""
    m = 128 * groups
    order = np.arange(m).reshape(-1, 8, 2).swapaxes(1, 2).ravel()  # the row in each place
    for layout in wgmma_accumulator(m, 16, groups), wgmma_a(m, 32, groups), wgmma_a(m, 8, 1, 32):
        plain, near = layout.table(), paired(layout).table()
        np.testing.assert_array_equal(near[..., 1], plain[..., 1])
        np.testing.assert_array_equal(near[..., 0], order[plain[..., 0]])
        assert set(np.unique(near[..., 0] // 2 % 8 - np.arange(32)[:, None] // 4)) == {0}
    assert wgmma_accumulators(m, 16, groups)[1] == paired(wgmma_accumulator(m, 16, groups))


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_wgmma_a(bits, groups):
    k, p = 256 // bits, 32 // bits
    layout = wgmma_a(128 * groups, 4 * k, groups, bits)
    per = 4 * p  # registers of one instruction
    assert layout.num_warps == 4 * groups and layout.num_registers == 2 * 4 * per
    for group in range(groups):
        for w, lane, g, q in THREADS:
            for block in range(2):
                for step in range(4):
                    for j in range(4):
                        for e in range(p):
                            row, col = A[bits](g, q, j, e)
                            register = (block * 4 + step) * per + j * p + e
                            expected = (
                                64 * (group + block * groups) + 16 * w + row,
                                step * k + col,
                            )
                            assert layout.coords(register, lane, 4 * group + w) == expected


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("wm, wn", [(1, 1), (2, 2), (4, 1), (1, 4)])
def test_mma_operands(bits, wm, wn):
    """Instruction (i, j, s) of a warp reads consecutive registers of A and B and updates
    consecutive ones of C.
    """
    k, p, steps, ms, ns = 256 // bits, 32 // bits, 3, 2, 3
    m, n = 16 * wm * ms, 8 * wn * ns
    a, b, c = (
        mma_a(m, k * steps, wm, wn, bits),
        mma_b(k * steps, n, wm, wn, bits),
        mma_accumulator(m, n, wm, wn),
    )
    assert a.warp_replication == wn and b.warp_replication == wm and c.warp_replication == 1
    for warp in range(wm * wn):
        w_m, w_n = warp % wm, warp // wm
        for lane in range(32):
            g, q = lane // 4, lane % 4
            for i in range(ms):
                top = 16 * (w_m + i * wm)
                for s in range(steps):
                    for r in range(4 * p):
                        row, col = A[bits](g, q, r // p, r % p)
                        assert a.coords((i * steps + s) * 4 * p + r, lane, warp) == (
                            top + row,
                            s * k + col,
                        )
                for j in range(ns):
                    left = 8 * (w_n + j * wn)
                    for r in range(4):
                        assert c.coords((i * ns + j) * 4 + r, lane, warp) == (
                            top + g + 8 * (r >> 1),
                            left + 2 * q + (r & 1),
                        )
                    for s in range(steps):
                        for r in range(2 * p):
                            row, col = B[bits](g, q, r // p, r % p)
                            assert b.coords((s * ns + j) * 2 * p + r, lane, warp) == (
                                s * k + row,
                                left + col,
                            )


def test_mma_by_hand():
    """A product computed fragment by fragment, each instruction summing over what its lanes hold,
    is the product.
    """
    rng = np.random.default_rng(0)
    m, n, k = 32, 32, 48
    x, y = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    a, b, c = (layout.table()[0] for layout in (mma_a(m, k), mma_b(k, n), mma_accumulator(m, n)))
    result = np.zeros((m, n), int)
    for i in range(m // 16):
        for j in range(n // 8):
            for s in range(k // 16):
                fa = a[:, (i * 3 + s) * 8 :][:, :8].reshape(-1, 2)
                fb = b[:, (s * 4 + j) * 4 :][:, :4].reshape(-1, 2)
                fc = c[:, (i * 4 + j) * 4 :][:, :4].reshape(-1, 2)
                assert set(fa[:, 1]) == set(fb[:, 0])
                rows, cols, ks = sorted(set(fa[:, 0])), sorted(set(fb[:, 1])), sorted(set(fa[:, 1]))
                assert {tuple(at) for at in fc} == {(r, q) for r in rows for q in cols}
                result[np.ix_(rows, cols)] += x[np.ix_(rows, ks)] @ y[np.ix_(ks, cols)]
    assert (result == x @ y).all()


# ---- chains of products --------------------------------------------------------------------------


@pytest.mark.parametrize("n", [16, 64, 128, 176, 256])
@pytest.mark.parametrize("m, groups", [(64, 1), (128, 2), (128, 1), (192, 3)])
def test_an_accumulator_is_the_next_a(m, n, groups):
    assert wgmma_accumulator(m, n, groups) == wgmma_a(m, n, groups)
    assert movement(wgmma_accumulator(m, n, groups), wgmma_a(m, n, groups)) == "none"
    assert movement(mma_accumulator(m, n, 4 * groups), mma_a(m, n, 4 * groups)) == "none"


def test_8_bit_chains():
    acc = wgmma_accumulator(64, 64)
    assert movement(acc, wgmma_a(64, 64, bits=8)) == "lanes"
    assert movement(acc, wgmma_a_permuted(64, 64)) == "registers"
    plain, permuted = wgmma_a(64, 64, bits=8), wgmma_a_permuted(64, 64)
    slots = permuted_k(64)
    assert sorted(slots) == list(range(64))
    for w, lane, _, q in THREADS:
        for r in range(32):
            row, slot = plain.coords(r, lane, w)
            assert permuted.coords(r, lane, w) == (row, slots[slot])
            b, e = slot // 16, slot % 4
            assert slots[slot] == 16 * b + 2 * q + (e & 1) + 8 * (e >> 1)


def test_padded_fragments():
    acc = wgmma_accumulator(17, 20)
    assert acc.shape == (17, 20) and acc.padded_shape == (64, 24) and acc.is_padded
    assert mma_b(5, 3, 2, 2).padded_shape == (16, 16)
    assert wgmma_a(64, 1).padded_shape == (64, 16)


def test_names():
    assert parse_layout("wgmma 128x64 groups 2") == wgmma_accumulator(128, 64, 2)
    assert parse_layout("wgmma_a 64x64 bits 8") == wgmma_a(64, 64, bits=8)
    assert parse_layout("mma 64x64 warps 2x2") == mma_accumulator(64, 64, 2, 2)
    assert parse_layout("mma_a 64x32 warps 2x2 bits 8") == mma_a(64, 32, 2, 2, 8)
    assert parse_layout("mma_b 32x64 warps 4") == mma_b(32, 64, 4)
    with pytest.raises(
        LayoutError, match="tensor-core fragments hold elements of 8, 16 or 32 bits, not 64"
    ):
        mma_a(16, 16, bits=64)


# ---- the table of instructions -------------------------------------------------------------------


def test_instructions():
    names = [i.name for i in instructions_for("bf16", "bf16", "f32", 90)]
    assert names == ["wgmma.m64k16", "mma.m16n8k16"]
    assert [i.name for i in instructions_for("bf16", "bf16", "f32", 80)] == ["mma.m16n8k16"]
    assert (
        instructions_for("bf16", "f16", "f32", 90)
        == ()
        == instructions_for("bf16", "bf16", "f16", 90)
    )
    assert instructions_for("f8E4M3FN", "f8E5M2", "f32", 86) == ()
    fp8 = instructions_for("f8E4M3FN", "f8E5M2", "f32", 90)[0]
    assert (
        fp8.majors == ("k",) and fp8.k == 32 and fp8.bits == 8 and fp8.n == tuple(range(8, 257, 8))
    )
    for i in MMA_INSTRUCTIONS:
        assert i.k * i.bits == 256 and all(n % 8 == 0 and n <= 256 for n in i.n)
        assert ("mn" in i.majors) == (i.bits == 16 and i.name.startswith("wgmma"))


# ---- ldmatrix and stmatrix: run the instruction --------------------------------------------------


def ldmatrix(memory: np.ndarray, addresses: np.ndarray, count: int, trans: bool) -> np.ndarray:
    """[lane, count, bytes of a word]: what PTX says ldmatrix.m8n8.x{count}[.trans].b16 gives each
    lane.
    """
    words = np.zeros((32, count, 4), memory.dtype)
    for matrix in range(count):
        rows = np.stack(
            [memory[a : a + 16] for a in addresses[8 * matrix : 8 * matrix + 8]]
        ).reshape(8, 8, 2)
        if trans:
            rows = rows.transpose(1, 0, 2)
        for lane in range(32):
            words[lane, matrix] = rows[lane // 4, 2 * (lane % 4) :][:2].reshape(4)
    return words


def stmatrix(
    memory: np.ndarray, words: np.ndarray, addresses: np.ndarray, count: int, trans: bool
) -> None:
    for matrix in range(count):
        rows = np.zeros((8, 8, 2), memory.dtype)
        for lane in range(32):
            rows[lane // 4, 2 * (lane % 4) :][:2] = words[lane, matrix].reshape(2, 2)
        for row, address in zip(
            rows.transpose(1, 0, 2) if trans else rows,
            addresses[8 * matrix : 8 * matrix + 8],
            strict=False,
        ):
            memory[address : address + 16] = row.reshape(16)


def stored(shared: SharedLayout) -> tuple[np.ndarray, np.ndarray]:
    """A tile of distinct numbers (element, byte) and the memory that holds it."""
    tile = np.arange(np.prod(shared.shape) * shared.itemsize).reshape(
        *shared.shape, shared.itemsize
    )
    memory = np.full(shared.bytes, -1)
    for byte in range(shared.itemsize):
        memory[shared.table() + byte] = tile[..., byte]
    return tile, memory


def in_registers(layout: Layout, tile: np.ndarray) -> np.ndarray:
    """[warp, lane, register, byte]"""
    at = layout.table()
    return tile[tuple(at[..., axis] for axis in range(layout.rank))]


CASES = [  # layout, bits, shared memory, trans, count, conflicts
    (wgmma_accumulator(64, 64), 16, SharedLayout((64, 64), 16, 128), False, 4, 1),
    (wgmma_accumulator(128, 96, 2), 16, SharedLayout((128, 96), 16, 64), False, 4, 1),
    (wgmma_accumulator(64, 16), 16, SharedLayout((64, 16), 16, 32), False, 4, 1),
    (wgmma_accumulator(64, 8), 16, SharedLayout((64, 8), 16), False, 2, 1),
    (wgmma_accumulator(64, 64), 16, SharedLayout((64, 64), 16), False, 4, 8),
    (wgmma_accumulator(64, 64), 16, SharedLayout((64, 64), 16, pad=16), False, 4, 1),
    # M-major D
    (
        wgmma_accumulator(64, 64),
        16,
        SharedLayout((64, 64), 16, 128, (0, 1)),
        True,
        4,
        1,
    ),
    (mma_a(64, 64, 2, 2), 16, SharedLayout((64, 64), 16, 128), False, 4, 1),
    (mma_a(64, 64, 2, 2), 16, SharedLayout((64, 64), 16, 128, (0, 1)), True, 4, 1),
    (mma_b(64, 32, 2, 2), 16, SharedLayout((64, 32), 16, 128, (0, 1)), False, 4, 1),  # B K-major
    (mma_b(64, 64, 2, 2), 16, SharedLayout((64, 64), 16, 128), True, 4, 1),  # B N-major: .trans
    (mma_b(16, 8), 16, SharedLayout((16, 8), 16), True, 2, 1),
    (mma_a(32, 128, 2, 1, 8), 8, SharedLayout((32, 128), 8, 128), False, 4, 1),
    (mma_b(128, 16, 1, 2, 8), 8, SharedLayout((128, 16), 8, 128, (0, 1)), False, 4, 1),
    (mma_a(32, 32, 1, 1, 32), 32, SharedLayout((32, 32), 32, 128), False, 4, 1),
    (wgmma_a(64, 64, 1, 32), 32, SharedLayout((64, 64), 32, 128), False, 4, 1),
    # row statistics, copied in each quad
    (
        wgmma_accumulator(64, 64).drop(1),
        16,
        SharedLayout((64,), 16),
        True,
        1,
        1,
    ),
]


@pytest.mark.parametrize(
    "layout, bits, shared, trans, count, conflicts",
    CASES,
    ids=lambda v: str(v) if not isinstance(v, int) else "",
)
def test_matrix_access(layout, bits, shared, trans, count, conflicts):
    plan = matrix_access(layout, shared, bits)
    assert (plan.trans, plan.count, plan.conflicts) == (trans, count, conflicts)
    tile, memory = stored(shared)
    want, found = (
        in_registers(layout, tile),
        np.full((*layout.table().shape[:3], shared.itemsize), -1),
    )
    assert (plan.addresses() % 16 == 0).all()
    for warp in range(layout.num_warps):
        for words, addresses in zip(plan.words, plan.addresses()[warp], strict=False):
            values = ldmatrix(memory, addresses, count, plan.trans)
            for matrix, registers in enumerate(words):
                found[warp][:, list(registers)] = values[:, matrix].reshape(32, len(registers), -1)
    assert (found == want).all()
    blank = np.full_like(memory, -1)
    plan = matrix_access(layout, shared, bits, store=True)
    for warp in range(layout.num_warps):
        for words, addresses in zip(plan.words, plan.addresses()[warp], strict=False):
            values = np.stack(
                [want[warp][:, list(registers)].reshape(32, 4) for registers in words], 1
            )
            stmatrix(blank, values, addresses, count, plan.trans)
    assert (blank == memory).all()


def test_stmatrix_address_of_the_prototype():
    """row 16 w + l % 16, chunk 2 block + l / 16, byte = row * 128 + ((c ^ (row & 7)) << 4)
    (HOPPER.md 8).
    """
    plan = matrix_access(wgmma_accumulator(64, 64), SharedLayout((64, 64), 16, 128), 16, store=True)
    for w in range(4):
        for block in range(4):
            assert plan.words[block] == tuple(
                (8 * block + i, 8 * block + i + 1) for i in (0, 2, 4, 6)
            )
            for lane in range(32):
                row, chunk = 16 * w + lane % 16, 2 * block + lane // 16
                assert plan.addresses()[w, block, lane] == row * 128 + ((chunk ^ row & 7) << 4)


@pytest.mark.parametrize(
    "layout, bits, shared",
    [
        # eight in a row: plain vectors
        (
            blocked((64, 64), 8, 4),
            16,
            SharedLayout((64, 64), 16, 128),
        ),
        # 32-bit pairs: lanes are 8 bytes apart
        (
            wgmma_accumulator(64, 64),
            32,
            SharedLayout((64, 64), 32, 128),
        ),
        (mma_b(128, 16, bits=8), 8, SharedLayout((128, 16), 8)),  # no 8-bit transpose
        # rows not 16-byte aligned
        (
            wgmma_accumulator(64, 64),
            16,
            SharedLayout((64, 64), 16, pad=8),
        ),
        (wgmma_accumulator(17, 64), 16, SharedLayout((17, 64), 16, 128)),  # padding has no address
        (wgmma_accumulator(64, 64), 16, SharedLayout((64, 64), 8, 64)),  # other element
    ],
)
def test_no_matrix_access(layout, bits, shared):
    assert matrix_access(layout, shared, bits) is None


def test_a_row_for_every_lane_group():
    """Replicated lanes read one row eight times over: still an ldmatrix."""
    layout = Layout.parse("1x16: 2:1@1 2:8@1 | 4:2@1 8:* | -")
    plan = matrix_access(layout, SharedLayout((1, 16), 16), 16)
    assert plan.count == 2 and not plan.trans and plan.conflicts == 1
    assert register_map(layout, layout) == (0, 1, 2, 3)
