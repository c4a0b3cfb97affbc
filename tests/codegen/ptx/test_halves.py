"""Two elements of 16 bits by one instruction, fields of bits, quotients by constants, and distances
as floats: results, and what the instructions are.
"""

import re

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import target
from tkc.runtime import simulate

N = 256
TARGET = "sm_90a"


@tkc.jit
def fields(x, out, BY: tkc.constexpr, MASK: tkc.constexpr, BITS: tkc.constexpr):
    codes = ((tkc.load(x, (0,), (N,)) >> BY) & MASK) | BITS
    tkc.store(out, (0,), codes)


@tkc.jit
def fields_by_element(x, out):
    by = (4 * (tkc.arange(N) % 4)).to(tkc.int16)
    tkc.store(out, (0,), (tkc.load(x, (0,), (N,)) >> by) & 15)


@tkc.jit
def counted(x, out, MASK: tkc.constexpr, LESS: tkc.constexpr):
    codes = tkc.load(x, (0,), (N,)) & MASK
    tkc.store(out, (0,), (codes.to(tkc.int32) - LESS).to(out.dtype))


@tkc.jit
def counted_of_pairs(x, out):
    """Two of four bits a byte, one after the other."""
    packed = tkc.load(x, (0,), (N // 2,))
    low, high = (packed & 15).to(tkc.int8) - 8, (packed >> 4).to(tkc.int8) - 8
    tkc.store(out, (0,), tkc.join(low, high).reshape(N).to(out.dtype))


@tkc.jit
def counted_of_words(x, out, BY: tkc.constexpr, MASK: tkc.constexpr, LESS: tkc.constexpr):
    """Eight of some bits a word."""
    word, at = tkc.load(x, (0,), (N // 8,)), tkc.arange(N) % 8 * BY
    word = tkc.broadcast_to(word[:, None], (N // 8, 8)).reshape(N)
    tkc.store(out, (0,), ((word >> at & MASK) - LESS).to(out.dtype))


@tkc.jit
def converted(x, out):
    tkc.store(out, (0,), tkc.load(x, (0,), (N,)).to(out.dtype))


@tkc.jit
def shifted(x, out, BY: tkc.constexpr, MASK: tkc.constexpr):
    tkc.store(out, (0,), (tkc.load(x, (0,), (N,)) >> BY & MASK).to(out.dtype))


@tkc.jit
def less(x, out, BY: tkc.constexpr):
    tkc.store(out, (0,), (BY - tkc.load(x, (0,), (N,))) * 3.0)


@tkc.jit
def quotients(x, out, rest, BY: tkc.constexpr):
    at = tkc.load(x, (0,), (N,)) & 0x7FFFFFFF
    tkc.store(out, (0,), at // BY)
    tkc.store(rest, (0,), at % BY)


@tkc.jit
def distances(at, out, MOST: tkc.constexpr):
    """Of rows and columns; MOST: a bound that the compiler is told of both, or 0."""
    m, n = at[0], at[1]
    if MOST:
        m, n = (tkc.minimum(tkc.maximum(x, -MOST), MOST) for x in (m, n))
    rows, columns = m + tkc.arange(32), n + tkc.arange(64)
    tkc.store(out, (0, 0), (rows[:, None] - columns[None, :]).to(tkc.float32))


def ran(kernel, *arrays, **constants) -> str:
    """Runs the PTX of one thread block, in place; gives its text."""
    values, options = kernel.bound(*arrays, num_warps=2, **constants)
    given = tuple(options.items())
    module = simulate.level4_of(kernel, kernel._describe(values), given, target(TARGET))
    machine.run(module, list(arrays), (1, 1, 1))
    return emit(module, target(TARGET)).text


def words(dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(0).integers(info.min, info.max, N, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
@pytest.mark.parametrize(
    "by, mask, together", [(4, 15, True), (12, 15, True), (0, 15, True), (4, 0x1FFF, False)]
)
def test_fields(by, mask, together, dtype):
    """A mask that keeps bits which another element shifts in is for each element alone."""
    x = words(dtype)
    out = np.zeros_like(x)
    text = ran(fields, x, out, BY=by, MASK=mask, BITS=0x4300)
    np.testing.assert_array_equal(out, x >> by & mask | 0x4300)
    assert text.count("lop3.b32") == N // 64 // (2 if together else 1)


def test_fields_that_differ_within_a_register():
    x = words(np.int16)
    out = np.zeros_like(x)
    ran(fields_by_element, x, out)
    np.testing.assert_array_equal(out, x >> 4 * (np.arange(N) % 4).astype(np.int16) & 15)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sums_with_constants(dtype):
    x = np.random.default_rng(0).standard_normal(N).astype(dtype)
    out = np.zeros_like(x)
    text = ran(less, x, out, BY=1.5)
    np.testing.assert_array_equal(out, (dtype(1.5) - x) * dtype(3.0))
    assert "sub.rn." in text and "mul.rn." in text and "cvt" not in text


@pytest.mark.parametrize("by", [3, 7, 9, 10, 641, 2**31 - 1, 2**30 + 1])
def test_quotients_by_constants(by):
    x = words(np.int32)
    x[:4] = 0, by - 1, by, 2**31 - 1
    found, rest = np.zeros_like(x), np.zeros_like(x)
    text = ran(quotients, x, found, rest, BY=by)
    np.testing.assert_array_equal(found, (x & 0x7FFFFFFF) // by)
    np.testing.assert_array_equal(rest, (x & 0x7FFFFFFF) % by)
    assert "div." not in text and "rem." not in text


FLOATS = ml_dtypes.bfloat16, np.float16


@tkc.jit
def remainders(x, out):
    tkc.store(out, (0,), (tkc.load(x, (0,), (N,)) % 101).to(out.dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("integer", [np.int64, np.uint64, np.int32, np.int16])
def test_small_numbers_of_any_width(integer, dtype):
    """Two registers of 64 bits each have no halves that one instruction takes."""
    x = np.random.default_rng(0).integers(0, 1 << 15, N).astype(integer)
    out = np.zeros(N, dtype)
    ran(remainders, x, out)
    np.testing.assert_array_equal(out.astype(np.int64), x.astype(np.int64) % 101)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask, taken", [(15, 8), (15, 0), (127, 100), (31, -3), (63, 64)])
@pytest.mark.parametrize("source", [np.int32, np.uint8, np.int16])
def test_integers_of_few_bits_as_floats(source, mask, taken, dtype):
    x = words(source)
    out = np.zeros(N, dtype)
    text = ran(counted, x, out, MASK=mask, LESS=taken)
    np.testing.assert_array_equal(out, ((x & mask).astype(int) - taken).astype(dtype))
    assert "cvt.rn" not in text


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask, taken", [(0x7FF, 8), (0xFFFF, 0), (15, 1 << 20), (127, 2000)])
def test_integers_of_more_bits_are_converted(mask, taken, dtype):
    x = words(np.int32)
    out = np.zeros(N, dtype)
    ran(counted, x, out, MASK=mask, LESS=taken)
    np.testing.assert_array_equal(out, ((x & mask) - taken).astype(np.float32).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_integers_of_few_bits_that_were_packed(dtype):
    x = words(np.uint8)[: N // 2]
    out = np.zeros(N, dtype)
    text = ran(counted_of_pairs, x, out)
    wanted = np.stack([x & 15, x >> 4], axis=1).reshape(N).astype(int) - 8
    np.testing.assert_array_equal(out, wanted.astype(dtype))
    assert "cvt.rn" not in text


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", [np.int32, np.uint32])
@pytest.mark.parametrize(
    "by, mask, taken, chosen",
    [(4, 15, 8, True), (4, 7, 0, True), (2, 3, 0, True), (4, 127, 0, False), (3, 7, 4, False)],
)
def test_integers_of_few_bits_that_threads_shift(by, mask, taken, chosen, source, dtype):
    """Where each is known to begin so many bits behind a byte, threads choose bytes; a mask that
    keeps bits of the next byte is for what was shifted.
    """
    x = words(source)[: N // 8]
    out = np.zeros(N, dtype)
    text = ran(counted_of_words, x, out, BY=by, MASK=mask, LESS=taken)
    wanted = (x[:, None] >> np.arange(8, dtype=source) * source(by) & source(mask)).astype(int)
    np.testing.assert_array_equal(out, (wanted.reshape(N) - taken).astype(dtype))
    assert "cvt.rn" not in text
    shifted = re.findall(r"shr.[su]32 (%r\d+), %r\d+, %r\d+;", text)
    used = [r for r in shifted if re.search(rf"prmt.b32 %r\d+, .*{r}\b", text)]
    if source == np.int32:
        assert shifted and chosen == (not used)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask", [0x7F, 0x1FF, 0x3FF, 0x7FFF])
@pytest.mark.parametrize("by", [0, 4, 6, 7, 8, 9, 12, 15, 20, 23, 28])
@pytest.mark.parametrize("source", [np.uint16, np.int16, np.uint32, np.int32])
def test_integers_of_two_bytes_that_are_shifted(source, by, mask, dtype):
    """Float16 has digits for more than a byte: the byte behind the first one counts, too."""
    x = words(source)
    out = np.zeros(N, dtype)
    ran(shifted, x, out, BY=by, MASK=mask)
    wanted = x.astype(np.int64) >> by & mask
    np.testing.assert_array_equal(out, wanted.astype(np.float32).astype(dtype))


@pytest.mark.parametrize("source", [np.int8, np.uint8, np.int16])
def test_integers_as_they_are_in_memory(source):
    """Bytes have fewer digits than float16, but more than bfloat16."""
    x = words(source)
    for dtype in FLOATS:
        out = np.zeros(N, dtype)
        text = ran(converted, x, out)
        np.testing.assert_array_equal(out, x.astype(np.float32).astype(dtype))
        assert ("cvt.rn" in text) == (dtype != np.float16 or source == np.int16)


@tkc.jit
def of_bfloat16(x, y, out, TIMES: tkc.constexpr):
    a, b = tkc.load(x, (0,), (N,)), tkc.load(y, (0,), (N,))
    tkc.store(out, (0,), a * b if TIMES else a - b)
    tkc.store(out, (N,), a + b)


@pytest.mark.parametrize("times", [True, False])
def test_bfloat16_without_sums_of_its_own(times, monkeypatch):
    """By fused multiply-adds; zeros keep their signs."""
    monkeypatch.setattr("tests.codegen.ptx.test_halves.TARGET", "sm_80")
    dtype = ml_dtypes.bfloat16
    x, y = (np.random.default_rng(i).standard_normal(N).astype(dtype) for i in range(2))
    x[:4], y[:4] = [0.0, -0.0, 0.0, -0.0], [1.0, 1.0, -1.0, -1.0]
    out = np.zeros(2 * N, dtype)
    text = ran(of_bfloat16, x, y, out, TIMES=times)
    np.testing.assert_array_equal(out[:N], x * y if times else x - y)
    np.testing.assert_array_equal(np.signbit(out[:N]), np.signbit(x * y if times else x - y))
    np.testing.assert_array_equal(out[N:], x + y)
    assert "fma.rn.bf16x2" in text and "cvt" not in text


@tkc.jit
def in_float32(x, y, out, OP: tkc.constexpr):
    """Of what has 16 bits, or fewer, by way of float32, and of 16 bits again."""
    a = tkc.load(x, (0,), (N,)).to(tkc.float32)
    b = tkc.load(y, (0,), (N // 2,)).to(tkc.float32)[:, None]
    b = tkc.broadcast_to(b, (N // 2, 2)).reshape(N)
    found = a * b if OP == "mul" else a + b if OP == "add" else a - b
    tkc.store(out, (0,), found.to(out.dtype))


def bits_of(dtype, count: int, seed: int) -> np.ndarray:
    """Numbers of any bits: infinite ones, and those that are next to nothing, too."""
    found = np.random.default_rng(seed).integers(0, 1 << 16, count, np.uint16).view(dtype)
    found[:6] = np.array([0, 0x8000, 1, 0x8003, 0x7F80, 0x7C00], np.uint16).view(dtype)
    return found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("integers", [True, False])
def test_sums_and_products_by_way_of_float32(integers, op, dtype):
    """They are computed in 16 bits where that rounds alike: not products of two bfloat16."""
    x = words(np.int8) if integers else bits_of(dtype, N, 1)
    y, out = bits_of(dtype, N // 2, 2), np.zeros(N, dtype)
    text = ran(in_float32, x, y, out, OP=op)
    a, b = x.astype(np.float32), np.repeat(y, 2).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = {"add": a + b, "sub": a - b, "mul": a * b}[op].astype(dtype)
    np.testing.assert_array_equal(out.astype(np.float32), wanted.astype(np.float32))
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(out)[numbers], np.signbit(wanted)[numbers])
    is_exact = integers or op != "mul" or dtype == np.float16
    assert (f"{op}.rn.{'bf16x2' if dtype != np.float16 else 'f16x2'}" in text) == is_exact
    assert is_exact != (f"{op}.f32" in text)


@pytest.mark.parametrize("most", [0, 1 << 20, (1 << 23) - 64, 1 << 29])
def test_distances_of_small_numbers_are_converted_once(most):
    """A float32 has all integers up to 2²⁴: of them the distance of a tile's corner is converted,
    and floats are added. Others are converted one by one, and rounded once.
    """
    for at in ((0, 0), (most, 0), (0, most), (most - 37, 5 - most), (17, 300)):
        out = np.zeros((32, 64), np.float32)
        text = ran(distances, np.array(at, np.int32), out, MOST=most)
        want = np.subtract.outer(at[0] + np.arange(32), at[1] + np.arange(64))
        np.testing.assert_array_equal(out, want.astype(np.float32))
        assert (text.count("cvt.rn.f32.s32") <= 4) == (most == 1 << 20)
