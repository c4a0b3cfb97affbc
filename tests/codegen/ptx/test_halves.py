"""Two elements of 16 bits by one instruction, fields of bits, and quotients by constants: results,
and what the instructions are.
"""

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
def less(x, out, BY: tkc.constexpr):
    tkc.store(out, (0,), (BY - tkc.load(x, (0,), (N,))) * 3.0)


@tkc.jit
def quotients(x, out, rest, BY: tkc.constexpr):
    at = tkc.load(x, (0,), (N,)) & 0x7FFFFFFF
    tkc.store(out, (0,), at // BY)
    tkc.store(rest, (0,), at % BY)


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
