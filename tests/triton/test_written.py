"""Forms that kernels written for the race have (benchmarks/triton_models.py, triton_signals.py):
right on the CPU and by the simulator of Hopper's programs, and compiled as blocks of arrays are.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl

rng = np.random.default_rng(0)


def small(*shape, dtype=np.float16, most=4):
    """Whole numbers of which sums are exact."""
    return rng.integers(-most, most, shape).astype(dtype)


def decisions(launched) -> str:
    return "\n".join(launched.decisions_for("sm_90a"))


@pytest.fixture(params=["CPU", "simulator"])
def anywhere(request, monkeypatch):
    """The CPU's back end, and the simulator of Hopper's programs with its threads."""
    if request.param == "simulator":
        monkeypatch.setenv("TKC_SIM", "1")
        monkeypatch.setenv("TKC_TARGET", "sm_90a")


# ---- arrays that a program makes at a place of its own
@triton.jit
def products_of_heads(a, b, c, S, H, BM: tl.constexpr, BK: tl.constexpr, D: tl.constexpr):
    """c = a b of each head, by block pointers that a loop moves."""
    batch, head = tl.program_id(1), tl.program_id(2)
    own = (batch * H + head).to(tl.int64) * S * D
    shared = (batch * (H // 2) + head // 2).to(tl.int64) * S * D
    at = tl.program_id(0) * BM
    a_at = tl.make_block_ptr(a + own, (D, S), (1, D), (0, 0), (D, BK), (0, 1))
    b_at = tl.make_block_ptr(b + shared, (S, D), (D, 1), (0, at), (BK, BM), (1, 0))
    acc = tl.zeros((D, BM), tl.float32)
    for _ in range(0, S, BK):
        x = tl.load(a_at, boundary_check=(1,), padding_option="zero")
        acc = tl.dot(x, tl.load(b_at, boundary_check=(0, 1), padding_option="zero"), acc)
        a_at = tl.advance(a_at, (0, BK))
        b_at = tl.advance(b_at, (BK, 0))
    c_at = tl.make_block_ptr(
        c + (batch * H + head) * D * D, (D, D), (D, 1), (0, at), (D, BM), (1, 0)
    )
    tl.store(c_at, acc.to(tl.float16), boundary_check=(0, 1))


def test_block_pointers_of_heads_have_tensor_maps(anywhere):
    batches, heads, s, d = 2, 4, 72, 64
    a, b = small(batches, heads, s, d), small(batches, heads // 2, s, d)
    c = np.zeros((batches, heads, d, d), np.float16)
    launched = products_of_heads[(1, batches, heads)](a, b, c, s, heads, BM=64, BK=32, D=d)
    exact = np.einsum("bhsi,bhsj->bhij", a.astype(float), np.repeat(b, 2, 1).astype(float))
    np.testing.assert_array_equal(c, exact.astype(np.float16))
    said = decisions(launched)
    assert "3 arrays made by programs are parts of arrays that the host knows" in said
    assert "copies a block" not in said


@triton.jit
def products_of_listed(a, b, c, place, S, BK: tl.constexpr, D: tl.constexpr):
    """The same of the head that a list names: a place of which nothing is known."""
    own = tl.load(place + tl.program_id(0)).to(tl.int64) * S * D
    a_at = tl.make_block_ptr(a + own, (D, S), (1, D), (0, 0), (D, BK), (0, 1))
    b_at = tl.make_block_ptr(b + own, (S, D), (D, 1), (0, 0), (BK, D), (1, 0))
    acc = tl.zeros((D, D), tl.float32)
    for _ in range(0, S, BK):
        acc = tl.dot(tl.load(a_at, boundary_check=(1,)), tl.load(b_at, boundary_check=(0,)), acc)
        a_at, b_at = tl.advance(a_at, (0, BK)), tl.advance(b_at, (BK, 0))
    r = tl.arange(0, D)
    tl.store(c + tl.program_id(0) * D * D + r[:, None] * D + r[None, :], acc.to(tl.float16))


def test_arrays_at_loaded_places_are_as_they_were(anywhere):
    heads, s, d = 3, 40, 64
    a, b, c = small(heads, s, d), small(heads, s, d), np.zeros((2, d, d), np.float16)
    launched = products_of_listed[(2,)](a, b, c, np.array([2, 0], np.int32), s, BK=32, D=d)
    exact = np.einsum("hsi,hsj->hij", a.astype(float), b.astype(float))[[2, 0]]
    np.testing.assert_array_equal(c, exact.astype(np.float16))
    assert "are parts of arrays" not in decisions(launched)


@triton.jit
def products_of_batches(a, b, c, S, BK: tl.constexpr, D: tl.constexpr):
    """By descriptors that each program makes of its batch."""
    batch = tl.program_id(0)
    a_of = tl.make_tensor_descriptor(a + batch * S * D, [S, D], [D, 1], [BK, D])
    b_of = tl.make_tensor_descriptor(b + batch * S * D, [S, D], [D, 1], [BK, D])
    c_of = tl.make_tensor_descriptor(c + batch * D * D, [D, D], [D, 1], [D, D])
    acc = tl.zeros((D, D), tl.float32)
    for k in range(0, S, BK):
        acc = tl.dot(a_of.load([k, 0]).T, b_of.load([k, 0]), acc)
    c_of.store([0, 0], acc.to(tl.float16))


def test_descriptors_of_batches_have_tensor_maps(anywhere):
    batches, s, d = 3, 72, 64
    a, b, c = small(batches, s, d), small(batches, s, d), np.zeros((batches, d, d), np.float16)
    launched = products_of_batches[(batches,)](a, b, c, s, BK=32, D=d)
    exact = np.einsum("bsi,bsj->bij", a.astype(float), b.astype(float))
    np.testing.assert_array_equal(c, exact.astype(np.float16))
    assert "copies a block" not in decisions(launched)


# ---- results by columns
@triton.jit
def product_by_columns(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The transpose of a b, stored as it is computed."""
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :], mask=rm[:, None] < M, other=0.0)
        y = tl.load(b + rk[:, None] * N + rn[None, :], mask=rn[None, :] < N, other=0.0)
        acc = tl.dot(x, y, acc)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c + rn[None, :] * M + rm[:, None], acc.to(tl.float16), mask=inside)


def test_a_result_by_columns_is_stored_by_rows_of_its_transpose(anywhere):
    m, n, k = 80, 144, 64
    a, b, c = small(m, k), small(k, n), np.zeros((n, m), np.float16)
    launched = product_by_columns[(2, 3)](a, b, c, m, n, k, BM=64, BN=64, BK=32)
    exact = a.astype(float) @ b.astype(float)
    np.testing.assert_array_equal(c, exact.T.astype(np.float16))
    said = decisions(launched)
    assert "bytes for the output" in said and "stored from registers" not in said


# ---- numbers that are repeated
@triton.jit
def products_of_words(x, packed, y, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Weights of 4 bits, eight side by side in a word."""
    rm, rn = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    rw = tl.program_id(0) * (BN // 8) + tl.arange(0, BN // 8)
    shifts = tl.broadcast_to((tl.arange(0, 8) * 4)[None, :], (BK * (BN // 8), 8))
    shifts = tl.reshape(shifts, (BK, BN))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        w = tl.load(packed + rk[:, None] * (N // 8) + rw[None, :])
        w = tl.interleave(w, w)
        w = tl.interleave(w, w)
        w = tl.interleave(w, w)
        w = ((w >> shifts) & 15).to(tl.float16)
        acc = tl.dot(tl.load(x + rm[:, None] * K + rk[None, :]), w, acc)
    tl.store(y + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


def test_words_joined_to_themselves_move_nothing(anywhere):
    m, n, k = 64, 128, 128
    x, packed = small(m, k, most=2), rng.integers(-(2**31), 2**31, (k, n // 8)).astype(np.int32)
    y = np.zeros((m, n), np.float16)
    launched = products_of_words[(2,)](x, packed, y, n, k, BM=64, BN=64, BK=64)
    each = packed.astype(np.int64)[:, :, None] >> np.arange(0, 32, 4)
    exact = x.astype(float) @ (each & 15).reshape(k, n)
    np.testing.assert_array_equal(y, exact.astype(np.float16))
    assert "between warps" not in decisions(launched)


@triton.jit
def products_of_groups(
    x, packed, scales, zeros, y, N, K, G: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """The same in groups of G rows with a scale and a zero for each column."""
    rm, rn = tl.arange(0, 16), tl.program_id(0) * BN + tl.arange(0, BN)
    rw = tl.program_id(0) * (BN // 8) + tl.arange(0, BN // 8)
    shifts = tl.reshape(tl.broadcast_to((tl.arange(0, 8) * 4)[None, :], (BN // 8, 8)), (1, BN))
    acc = tl.zeros((16, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        w = tl.load(packed + rk[:, None] * (N // 8) + rw[None, :])
        w = tl.interleave(w, w)
        w = tl.interleave(w, w)
        w = tl.interleave(w, w)
        z = tl.load(zeros + (k // G) * (N // 8) + rw[None, :])
        z = tl.interleave(z, z)
        z = tl.interleave(z, z)
        z = tl.interleave(z, z)
        s = tl.load(scales + (k // G) * N + rn[None, :])
        w = ((((w >> shifts) & 15) - ((z >> shifts) & 15)) * s).to(tl.float16)
        acc = tl.dot(tl.load(x + rm[:, None] * K + rk[None, :]), w, acc)
    tl.store(y + rm[:, None] * N + rn[None, :], acc)


def test_numbers_of_groups_come_by_the_ring_of_words_that_threads_copy(anywhere):
    n, k, group = 128, 256, 64
    x, scales = small(16, k, most=2), small(k // group, n, most=2)
    packed, zeros = (
        rng.integers(-(2**31), 2**31, (rows, n // 8)).astype(np.int32) for rows in (k, k // group)
    )
    y = np.zeros((16, n), np.float32)
    launched = products_of_groups[(2,)](x, packed, scales, zeros, y, n, k, G=group, BN=64, BK=64)
    each, zero = (
        (words.astype(np.int64)[:, :, None] >> np.arange(0, 32, 4) & 15).reshape(-1, n)
        for words in (packed, zeros)
    )
    weights = (each - np.repeat(zero, group, 0)) * np.repeat(scales.astype(float), group, 0)
    np.testing.assert_array_equal(y, x.astype(float) @ weights)
    by_rings = "of 2 loads beside the dots tensor maps copy 1, threads 1"
    assert by_rings in decisions(launched) and "fetch-ahead" not in decisions(launched)


@triton.jit
def paged(q, cache, table, o, LENGTH, PAGES, PAGE: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Sums of scores times keys of a cache in pages."""
    batch = tl.program_id(0)
    g, d = tl.arange(0, 16), tl.arange(0, D)
    x = tl.load(q + (batch * 16 + g)[:, None] * D + d[None, :])
    acc = tl.zeros((16, D), tl.float32)
    for n in range(0, LENGTH, BN):
        t = n + tl.arange(0, BN)
        page = tl.load(table + batch * PAGES + t // PAGE, mask=t < LENGTH, other=0)
        rows = (page * PAGE + t % PAGE)[:, None] * D + d[None, :]
        keys = tl.load(cache + rows, mask=t[:, None] < LENGTH, other=0.0)
        acc += tl.dot(tl.dot(x, keys.T).to(tl.float16), keys)
    tl.store(o + (batch * 16 + g)[:, None] * D + d[None, :], acc)


def test_a_table_of_pages_is_read_up_to_its_end(anywhere):
    batches, length, page, d = 2, 150, 16, 64
    pages = -(-length // page)  # of the last one a part: no page lies behind it
    q, cache = small(batches, 16, d, most=2), small(batches * pages, page, d, most=2)
    table = rng.permutation(batches * pages).astype(np.int32).reshape(batches, pages)
    o = np.zeros((batches, 16, d), np.float32)
    launched = paged[(batches,)](q, cache, table, o, length, pages, PAGE=page, BN=64, D=d)
    keys = cache[table].reshape(batches, -1, d)[:, :length].astype(float)
    exact = np.einsum("bgd,bnd,bne->bge", q.astype(float), keys, keys)
    np.testing.assert_array_equal(o, exact)
    assert "1 load of their addresses one further" in decisions(launched)


# ---- numbers of 4 bits with exponents
@triton.jit
def microscaled(x, w, scales, y, N: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    r, c, rk, rp = tl.arange(0, 64), tl.arange(0, N), tl.arange(0, BK), tl.arange(0, BK // 2)
    acc = tl.zeros((64, N), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + r[:, None] * K + (k + rk)[None, :])
        b = tl.load(w + c[None, :] * (K // 2) + (k // 2 + rp)[:, None])
        rs = k // 32 + tl.arange(0, BK // 32)
        s = tl.load(scales + c[:, None] * (K // 32) + rs[None, :])
        acc = tl.dot_scaled(a, None, "fp16", b, s, "e2m1", acc)
    tl.store(y + r[:, None] * N + c[None, :], acc)


def test_numbers_of_4_bits_and_their_exponents(anywhere):
    n, k = 64, 128
    x, w = small(64, k, most=2), rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
    scales = rng.integers(124, 131, (n, k // 32)).astype(np.uint8)
    scales[5, 1] = 255  # not a number
    y = np.zeros((64, n), np.float32)
    launched = microscaled[(1,)](x, w, scales, y, N=n, K=k, BK=64)
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    each = np.stack([w & 15, w >> 4], 2).reshape(n, k)
    numbers = np.where(each & 8, -1, 1) * sizes[each & 7]
    power = np.where(scales == 255, np.nan, 2.0 ** (scales.astype(float) - 127))
    exact = x.astype(float) @ (numbers * np.repeat(power, 32, 1)).T
    np.testing.assert_array_equal(y, exact)
    assert "between warps" not in decisions(launched)


# ---- lines that are scanned in each iteration
@triton.jit
def _least(a, b):
    return tl.minimum(a, b)


@triton.jit
def cheapest(x, y, M, N: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, N)
    line = tl.load(y + row * N + c)
    for i in range(M):
        cost = tl.abs(tl.load(x + row * M + i) - line)
        line = tl.associative_scan(line + cost, 0, _least)
    tl.store(y + row * N + c, line)


def test_a_line_that_is_scanned_in_each_iteration_lies_in_one_warp(anywhere):
    x, y = small(3, 5, dtype=np.float32), small(3, 256, dtype=np.float32)
    exact = y.copy()
    for i in range(5):
        exact = np.minimum.accumulate(exact + np.abs(x[:, i, None] - exact), 1)
    launched = cheapest[(3,)](x, y, 5, N=256)
    np.testing.assert_array_equal(y, exact)
    assert "plan: 1 warps" in decisions(launched)


# ---- numbers beyond what a type has
@triton.jit
def filled(x, y, N, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    a = tl.load(x + c, mask=c < N, other=-1.0e300)
    tl.store(y + c, a)
    tl.store(y + BLOCK + c, tl.full((BLOCK,), 1.0e300, y.dtype.element_ty))


@pytest.mark.parametrize("dtype", (np.float16, np.float32))
def test_numbers_beyond_the_largest_are_infinite(anywhere, dtype):
    x, y = small(32, dtype=dtype), np.zeros(64, dtype)
    filled[(1,)](x, y, 20, BLOCK=32).compiled_for("sm_90a")
    exact = np.concatenate([x[:20], np.full(12, -np.inf), np.full(32, np.inf)])
    np.testing.assert_array_equal(y, exact.astype(dtype))


# ---- states that loops write row by row
@triton.jit
def solved(a, b, y, N: tl.constexpr, R: tl.constexpr):
    """a y = b with a lower triangle, a row of y at a time."""
    n, r = tl.arange(0, N), tl.arange(0, R)
    left = tl.load(b + n[:, None] * R + r[None, :])
    out = tl.zeros((N, R), tl.float32)
    for i in range(N):
        column = tl.load(a + n * N + i, mask=n >= i, other=0.0)
        row = tl.sum(tl.where(n[:, None] == i, left, 0.0), 0) / tl.load(a + i * N + i)
        out = tl.where(n[:, None] == i, row[None, :], out)
        left -= column[:, None] * row[None, :]
    tl.store(y + n[:, None] * R + r[None, :], out)


def test_rows_that_several_threads_hold_are_written_by_one(anywhere):
    """Of the row, which is a sum over lanes, several of these have a copy; what it is written to
    is shared out among all threads.
    """
    size = 64
    a = np.tril(rng.normal(size=(size, size)) / 16, -1) + 2 * np.eye(size)
    b, y = rng.normal(size=(size, size)), np.zeros((size, size), np.float32)
    launched = solved[(1,)](a.astype(np.float32), b.astype(np.float32), y, N=size, R=size)
    assert np.abs(y - np.linalg.solve(a, b)).max() < 1e-5
    most = re.search(r"tiles take at most (\d+) registers", decisions(launched))
    assert most and int(most[1]) < 160
