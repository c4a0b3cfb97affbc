"""Copies that fill one stage stand together: what a place is computed of goes with them, and one
ring has one form of an operand.
"""

import numpy as np

import tkc
from tests.language.kernels import i32, traced
from tests.passes import stages
from tests.passes.stages import LAST, distinct, run
from tests.passes.test_roles import array, integers
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

BYTES = ArrayArgument(tkc.float8_e4m3, ArrayFacts((Fact(),) * 2, (Fact(16), Fact(exact=1)), 16))
NUMBERS = ArrayArgument(tkc.int32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))


def at_a_largest_number(x, y, z, own, numbers, c, n):
    """Where a block lies warps find out together, in shared memory, behind another block's copy."""
    acc = tkc.zeros((64, 96), tkc.float32)
    left = tkc.load(x, (0, 0), (64, 32))
    for k in tkc.range(tkc.program_id(0) % 3 * 32, n * 32, 32):
        part = tkc.dot(left, tkc.load(own, (0, k), (32, 32))).to(tkc.bfloat16)
        row = tkc.minimum(tkc.max(tkc.load(numbers, (k,), (256,)), axis=0), 2) * 32
        right = tkc.load(y, (tkc.maximum(row, 0), 8), (32, 96))
        acc = tkc.dot(part, right, acc)
        tkc.store(own, (0, 0), tkc.load(z, (0, 0), (16, 16)))
    tkc.store(c, (0, 0), acc)


def test_what_a_place_is_computed_of_is_written_before_it_is_read():
    b = array(tkc.bfloat16)
    signature = traced(at_a_largest_number, b, b, b, b, NUMBERS, array(tkc.float32), i32())
    modules, _ = stages.compiled(signature, num_warps=8, num_stages=2)
    x, y = (integers(m, k, dtype=tkc.bfloat16, seed=m) for m, k in ((64, 32), (96, 128)))
    z, numbers = integers(16, 16, dtype=tkc.bfloat16, seed=3), np.arange(96, dtype=np.int32) // 48
    for module in distinct(modules):
        own, c = integers(32, 96, dtype=tkc.bfloat16, seed=4), np.zeros((64, 96), np.float32)
        want, now = np.zeros((64, 96)), np.float64(own)
        for k in range(0, 96, 32):
            part = (np.float64(x) @ now[:, k : k + 32]).astype(x.dtype)
            row = min(numbers[k:].max(), 2) * 32
            want += np.float64(part) @ np.float64(y)[row : row + 32, 8:104]
            now[:16, :16] = z
        run(module, [x, y, z, own, numbers, c, 3], (1, 1, 1))
        np.testing.assert_array_equal(c, want.astype(np.float32))


def relaid_in_two_forms(x, y, own, c, d, n):
    """A block of 8 bits is a left operand of two dots, one of which is taken as its transpose."""
    both, one = tkc.zeros((128, 64), tkc.float32), tkc.zeros((128, 64), tkc.float32)
    for k in tkc.range(0, n, 64):
        left = tkc.load(x, (k, 0), (64, 128)).T
        right = tkc.load(y, (k, 8), (64, 64))
        both = both + tkc.dot(tkc.load(own, (0, 0), (128, 64)), right, tkc.dot(left, right))
        one = tkc.dot(left, right, one)
        tkc.store(y, (0, 0), tkc.load(own, (16, 0), (16, 16)))
    tkc.store(c, (0, 0), both)
    tkc.store(d, (0, 0), one)


def of_8_bits(*shape: int) -> np.ndarray:
    return np.float32(integers(*shape, dtype=tkc.float32, seed=len(shape))).astype(
        tkc.float8_e4m3.numpy
    )


def test_one_ring_has_one_form_of_an_operand():
    results = (array(tkc.float32),) * 2
    signature = traced(relaid_in_two_forms, BYTES, BYTES, BYTES, *results, i32())
    modules, _ = stages.compiled(signature, num_warps=8, num_stages=4)
    x, own = of_8_bits(192, 128), of_8_bits(128, 64)
    for module in (modules["plan"], modules[LAST]):
        y, results = of_8_bits(192, 80), np.zeros((2, 128, 64))
        c, d, now = np.zeros((128, 64), np.float32), np.zeros((128, 64), np.float32), np.float64(y)
        for k in range(0, 192, 64):
            product = np.float64(x)[k : k + 64].T @ now[k : k + 64, 8:72]
            results[0] += product + np.float64(own) @ now[k : k + 64, 8:72]
            results[1] += product
            now[:16, :16] = np.float64(own)[16:32, :16]
        run(module, [x, y, own, c, d, 192], (1, 1, 1))
        np.testing.assert_array_equal(c, results[0].astype(np.float32))
        np.testing.assert_array_equal(d, results[1].astype(np.float32))
