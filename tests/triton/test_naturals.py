"""Numbers that no launch of some code passes below 0, whether it is specialised on them or not: the
code divides them without a sign, and what they place is inside of arrays that nothing bounds.
"""

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl
from tkc.triton.runtime.compiled import CompiledKernel

BLOCK = 64


@triton.jit(do_not_specialize=["T"])
def of_batches(x, o, T, BLOCK: tl.constexpr):
    """Row t of a batch: both of one program number, as kernels of sequences count."""
    i = tl.program_id(0).to(tl.int64)
    b, t = i // T, i % T
    at = (b * T + t) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, tl.load(x + at) + t)


def ptx(count: int) -> str:
    x = np.zeros((6, BLOCK), np.float32)
    made = CompiledKernel(of_batches, [x, x, count], {"BLOCK": BLOCK}).compiled_for("sm_90a")
    return made.ptx


def test_naturals_are_divided_without_a_sign():
    text = ptx(3)
    assert "div.u32" in text and "rem.u32" in text
    assert "2147418112" not in text  # rows that nothing bounds are not tested
    assert "div.s32" in ptx(-3)


@pytest.mark.parametrize("count", (1, 3, 7))
def test_batches_are_right(count):
    x = np.arange(6 * BLOCK, dtype=np.float32).reshape(6, BLOCK)
    out = np.zeros_like(x)
    of_batches[(6,)](x, out, count, BLOCK=BLOCK)
    np.testing.assert_array_equal(out, x + (np.arange(6) % count)[:, None])
