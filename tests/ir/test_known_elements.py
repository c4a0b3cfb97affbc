"""Elements that are known when a kernel is compiled: those that it computes when it runs."""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32
from tests.passes.kernels import Case
from tkc.ir import tile
from tkc.ir.digits import Digit, copies
from tkc.ir.dtypes import BY_NUMPY
from tkc.ir.known_elements import known_elements, known_in_registers
from tkc.ir.layout import Layout
from tkc.ir.values import operations_in
from tkc.sim import level0


def stored(module):
    """What a kernel stores."""
    return next(iter(operations_in(module, tile.Store))).value


def of_kernel(fn, out, *more):
    """A kernel's result by level 0, and what is known of it."""
    kinds = [array(BY_NUMPY[out.dtype], out.ndim), *(i32() for _ in more)]
    case = Case(fn, kinds, {}, lambda: [out, *more], (1,))
    data = case.data()
    level0.run(case.module(), data, (1,))
    return data[0], known_elements(stored(case.module()))


def lines(out):
    j = tkc.arange(48)
    tkc.store(out, (0,), tkc.minimum(tkc.maximum(j * 7 % 48 - 3, 0), 40) ^ (j & 5))


def bytes_of(out):
    j = tkc.arange(300).to(tkc.int8)
    tkc.store(out, (0,), tkc.where(j > 100, j + j, -j))


def unsigned(out):
    j = tkc.arange(64).to(tkc.uint32)
    tkc.store(out, (0,), (j - 9) // 5 - j * 77777777)


def truths(out):
    r, c = tkc.arange(8)[:, None], tkc.arange(16)[None, :]
    tkc.store(out, (0, 0), ((r == c) | ~(r + 3 > c)) & (c % 3).to(tkc.bool_))


def turned(out):
    r, c = tkc.arange(8)[:, None], tkc.arange(16)[None, :]
    x = tkc.where(r < c, r * 16 - c, tkc.zeros((8, 16), tkc.int32) + 5)
    tkc.store(out, (0, 0), tkc.permute(tkc.reshape(x, (32, 4)), (1, 0)))


@pytest.mark.parametrize(
    "fn, shape, dtype",
    [
        (lines, (48,), "int32"),
        (bytes_of, (300,), "int8"),
        (unsigned, (64,), "uint32"),
        (truths, (8, 16), "bool"),
        (turned, (4, 32), "int32"),
    ],
)
def test_what_is_known_is_what_is_computed(fn, shape, dtype):
    want, known = of_kernel(fn, np.zeros(shape, dtype))
    assert known is not None
    np.testing.assert_array_equal(known.astype(dtype), want)


def test_what_a_run_brings_is_not_known():
    def shifted(out, n):
        tkc.store(out, (0,), tkc.arange(32) + n)

    def floats(out):
        tkc.store(out, (0,), tkc.arange(32).to(tkc.float32))

    def long(out):
        tkc.store(out, (0,), tkc.arange(32).to(tkc.int64) * 3)

    assert of_kernel(shifted, np.zeros(32, np.int32), 3)[1] is None
    assert of_kernel(floats, np.zeros(32, np.float32))[1] is None
    assert of_kernel(long, np.zeros(32, np.int64))[1] is None


def test_a_chain_of_operations_is_no_chain_of_calls():
    def long(out):
        x = tkc.arange(32)
        for _ in tkc.static_range(1500):
            x = x ^ 3
        tkc.store(out, (0,), x)

    np.testing.assert_array_equal(of_kernel(long, np.zeros(32, np.int32))[1], np.arange(32))


def test_what_all_threads_hold_in_a_register():
    """Eight neighbours a lane; of 250 elements, 6 are padding."""
    layout = Layout((250,), (Digit(8, 0, 1),), (Digit(32, 0, 8),), (copies(2),))
    j = np.arange(250)
    assert known_in_registers(j % 8, layout) == list(range(8))
    assert known_in_registers((j == 0).astype(int), layout) == [None] + [0] * 7
    assert known_in_registers((j < 248).astype(int), layout) == [None, None] + [1] * 6
