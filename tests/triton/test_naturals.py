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


@triton.jit(do_not_specialize=["T"])
def states(x, h, T, H: tl.constexpr, BT: tl.constexpr, K: tl.constexpr, V: tl.constexpr):
    """The sum of products before each chunk of a sequence, of which each has so many chunks."""
    i = tl.program_id(0).to(tl.int64)
    n, head = i // H, i % H
    chunks = tl.cdiv(T, BT)
    o_t, o_k, o_v = tl.arange(0, BT), tl.arange(0, K), tl.arange(0, V)
    x += (n * T * H + head) * K
    h += (n * chunks * H + head).to(tl.int64) * K * V
    total = tl.zeros([K, V], dtype=tl.float32)
    for i in range(chunks):
        at = h + i.to(tl.int64) * H * K * V + o_k[:, None] * V + o_v[None, :]
        tl.store(at, total.to(h.dtype.element_ty), mask=(o_k < K)[:, None] & (o_v < V)[None, :])
        t = i * BT + o_t
        v = tl.load(x + t[:, None] * (H * K) + o_k[None, :], mask=(t < T)[:, None], other=0.0)
        total += tl.dot(tl.trans(v), v)


def test_what_counts_chunks_of_sequences_is_a_stride_of_tensor_maps():
    """The host divides by chunks as the kernel does, and knows that no sum wraps on the way."""
    x, h = np.zeros((2, 256, 4, 64), np.float16), np.zeros((2, 4, 4, 64, 64), np.float16)
    sizes = {"H": 4, "BT": 64, "K": 64, "V": 64, "num_warps": 4}
    made = CompiledKernel(states, [x, h, 256], sizes).compiled_for("sm_90a")
    assert made.ptx.count("cp.async.bulk.tensor") == 2
