"""Set bits that a program counts by halves: one operation, of the same numbers."""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import context
from tests.passes.stages import count
from tkc.ir import elementwise as ew
from tkc.ir.values import operations_in
from tkc.ir.verify import verify
from tkc.passes import simplify
from tkc.passes.planning import demands
from tkc.sim import level0

POPCOUNT = ew.CLASSES["popcount"]
TYPES = {tkc.int8: np.int8, tkc.uint8: np.uint8, tkc.int16: np.int16, tkc.uint16: np.uint16} | {
    tkc.int32: np.int32,
    tkc.uint32: np.uint32,
    tkc.int64: np.int64,
    tkc.uint64: np.uint64,
}


def halves(n, width):
    """The lower n of each 2 n bits, as a number that the signed type has, too."""
    return sum(((1 << n) - 1) << at for at in range(0, width, 2 * n))


def multiplied(x, width):
    x = x - ((x >> 1) & halves(1, width))
    x = (x & halves(2, width)) + ((x >> 2) & halves(2, width))
    x = (x + (x >> 4)) & halves(4, width)
    ones = sum(1 << at for at in range(0, width, 8))
    return (x * ones) >> (width - 8) if width > 8 else x


def folded(x, width):
    """Every step masks both halves; from the fourth bit on their sum alone, the shift first."""
    for n in (1, 2):
        x = (x & halves(n, width)) + ((x >> n) & halves(n, width))
    n = 4
    while n < width:
        x = ((x >> n) + x) & halves(n, width)
        n *= 2
    return x


def shorter(x, width):
    """Masks that keep the bits alone that a number can have."""
    x = x - ((x >> 1) & halves(1, width))
    x = ((x >> 2) & halves(2, width)) + (x & halves(2, width))
    x = (x + (x >> 4)) & halves(4, width)
    x = (x + (x >> 8)) & sum(0x1F << at for at in range(0, width, 16))
    return (x + (x >> 16)) & 0x3F


def too_soon(x, width):
    """Four in fields of two bits do not fit."""
    x = x - ((x >> 1) & halves(1, width))
    x = (x + (x >> 2)) & halves(2, width)
    x = (x + (x >> 4)) & halves(4, width)
    return (x * 0x01010101) >> (width - 8)


def of_others(x, width):
    """The upper halves of another number."""
    x, y = x - ((x >> 1) & halves(1, width)), x - ((x >> 1) & halves(2, width))
    x = (x & halves(2, width)) + ((y >> 2) & halves(2, width))
    x = (x + (x >> 4)) & halves(4, width)
    return (x * 0x01010101) >> (width - 8)


def not_all(x, width):
    """The sum of three of four fields."""
    x = x - ((x >> 1) & halves(1, width))
    x = (x & halves(2, width)) + ((x >> 2) & halves(2, width))
    x = (x + (x >> 4)) & halves(4, width)
    return (x * 0x010101) >> (width - 8)


def summed(x, width):
    """All fields of four bits."""
    x = (x + (x >> 4)) & halves(4, width)
    return (x * 0x01010101) >> (width - 8)


def lower_of_others(x, width):
    """The lower halves of another number."""
    y = x ^ 0x12345678
    x, y = (v - ((v >> 1) & halves(1, width)) for v in (x, y))
    return summed((y & halves(2, width)) + ((x >> 2) & halves(2, width)), width)


def not_all_lower(x, width):
    """The lower halves but the first."""
    x = x - ((x >> 1) & halves(1, width))
    return summed((x & (halves(2, width) - 3)) + ((x >> 2) & halves(2, width)), width)


def left_out(x, width):
    """Fields of two bits are added as if they were of four."""
    x = x - ((x >> 1) & halves(1, width))
    x = (x & halves(4, width)) + ((x >> 4) & halves(4, width))
    return (x * 0x01010101) >> (width - 8)


def of_farther(x, width):
    """To fields of four bits, those behind their neighbours."""
    x = x - ((x >> 1) & halves(1, width))
    x = (x & halves(2, width)) + ((x >> 2) & halves(2, width))
    x = (x + (x >> 8)) & halves(4, width)
    return (x * 0x01010101) >> (width - 8)


def of_other_neighbours(x, width):
    """To fields of four bits, neighbours in another number."""
    y = x ^ 0x12345678
    x = x - ((x >> 1) & halves(1, width))
    x = (x & halves(2, width)) + ((x >> 2) & halves(2, width))
    x = (x + (y >> 4)) & halves(4, width)
    return (x * 0x01010101) >> (width - 8)


def counted(how, dtype):
    """Level 0 before and after simplify, of random numbers; and the operations that are left."""
    width = 8 * np.dtype(TYPES[dtype]).itemsize

    def kernel(x, out):
        tkc.store(out, 0, how(tkc.load(x, 0, 256), width))

    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, 256 * width // 8, dtype=np.uint8).view(TYPES[dtype])
    x[:4] = 0, 1, -1 if x.dtype.kind == "i" else 2**width - 1, np.iinfo(x.dtype).min
    outputs = []
    module = traced(kernel, array(dtype, 1), array(dtype, 1))
    for _ in range(2):
        outputs.append(np.zeros(256, TYPES[dtype]))
        level0.run(module, [x.copy(), outputs[-1]], (1,))
        simplify.run(module, context())
        verify(module)
    return x, *outputs, module


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("how", [multiplied, folded])
def test_halves_are_one_operation(how, dtype):
    x, before, after, module = counted(how, dtype)
    width = 8 * x.dtype.itemsize
    np.testing.assert_array_equal(before, [bin(int(n) % 2**width).count("1") for n in x])
    np.testing.assert_array_equal(after, before)
    assert count(module, POPCOUNT) == count(module, *ew.OPERATIONS) == 1


@pytest.mark.parametrize("dtype", [tkc.int32, tkc.uint32], ids=str)
def test_masks_may_be_shorter(dtype):
    _, before, after, module = counted(shorter, dtype)
    np.testing.assert_array_equal(after, before)
    assert count(module, POPCOUNT) == count(module, *ew.OPERATIONS) == 1


@pytest.mark.parametrize(
    "how",
    [
        too_soon,
        of_others,
        not_all,
        lower_of_others,
        not_all_lower,
        left_out,
        of_farther,
        of_other_neighbours,
    ],
)
def test_what_only_looks_like_it_stays(how):
    _, before, after, module = counted(how, tkc.uint32)
    np.testing.assert_array_equal(after, before)
    assert not count(module, POPCOUNT)


def test_where_functions_are_approximated_bits_are_counted():
    module = counted(multiplied, tkc.uint32)[-1]
    ops = list(operations_in(module, POPCOUNT))
    asked = demands.of(ops, context("sm_90a").target.engines, 1)
    assert asked.busiest == "mufu" and asked.issue == 8
