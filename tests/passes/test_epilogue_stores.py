"""epilogue_stores: what of a result each warpgroup stores itself, which accesses are of another way
through a branch, and how long a buffer is in use.
"""

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Block, Region

import tkc
from tkc.ir import tile
from tkc.ir.layout import blocked
from tkc.passes.analysis.alias import is_alternative
from tkc.passes.warpgroups.epilogue_stores import Part, own_part


@pytest.mark.parametrize(
    "shape, warps, part",
    [
        ((128, 64), 8, Part(0, 64)),
        ((32, 64), 8, Part(0, 16)),
        ((16, 64), 8, Part(0, 8)),
        ((8, 64), 8, None),  # four rows each: a swizzle has eight
        ((128, 64), 4, None),  # one warpgroup has it all
        ((128, 64), 2, None),
    ],
)
def test_a_part_is_whole_swizzles_of_several_warpgroups(shape, warps, part):
    layout = blocked(shape, 64 * shape[0] // (32 * warps), warps, (1, 0))
    assert own_part(layout) == part


def test_a_way_through_a_branch_is_no_alternative_to_itself():
    one, two, other, end = (tile.Constant(n, i32) for n in range(4))
    loop = scf.ForOp(one, two, one, [], Region(Block([end, scf.YieldOp()], arg_types=[i32])))
    yes, no = Block([one, two, loop, scf.YieldOp()]), Block([other, scf.YieldOp()])
    scf.IfOp(tile.Constant(1, i1), [], Region(yes), Region(no))
    assert is_alternative(one, other) and is_alternative(end, other) and is_alternative(other, end)
    assert not is_alternative(one, two) and not is_alternative(one, end)


@tkc.jit
def two_results(a, b, c, odd, N: tkc.constexpr):
    """One leaves by copies, the other by threads: its rows are no multiples of 16 bytes."""
    m, total = tkc.program_id(0) * 64, tkc.zeros((64, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (m, k), (64, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (m, 0), total.to(c.dtype))
    tkc.store(odd, (m, 0), total.to(c.dtype))


@pytest.mark.parametrize("n", [64, 96, 128])
def test_a_buffer_is_in_use_until_its_own_copy_has_read_it(n, monkeypatch):
    """Whatever leaves by threads between two of its copies is none."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    random = np.random.default_rng(0)
    a, b = (random.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((192, 128), (128, n)))
    c, odd = np.zeros((192, n), a.dtype), np.zeros((192, n + 1), a.dtype)[:, :n]
    two_results[3](a, b, c, odd, n)
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
    assert (c == want).all() and (odd == want).all()


@tkc.jit
def narrowed(a, b, c, M: tkc.constexpr, N: tkc.constexpr):
    """A product's results in 8 bits."""
    m, total = tkc.program_id(0) * M, tkc.zeros((M, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (m, k), (M, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (m, 0), total.to(c.dtype))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
@pytest.mark.parametrize("wider", [0, 16, 3])
@pytest.mark.parametrize("m, n", [(64, 32), (64, 128), (128, 64), (128, 96)])
def test_results_of_8_bits_are_stored_in_subtiles(m, n, wider, dtype, monkeypatch):
    """By tensor maps, or by threads where rows begin anywhere: a thread has two neighbours of an
    accumulator's row, too few for a store of its own.
    """
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    random = np.random.default_rng(n)
    low = 0 if dtype == "uint8" else -1
    a, b = (random.integers(low, 2, s).astype(np.float16) for s in ((m + 8, 64), (64, n)))
    if np.dtype(dtype).kind not in "iu":
        b = b * random.uniform(0.1, 2, n).astype(np.float16)
    whole = np.zeros((m + 8, n + wider), dtype)
    narrowed[2](a, b, whole[:, :n], m, n)
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(whole[:, :n].view(np.uint8), want.view(np.uint8))
    assert not whole[:, n:].view(np.uint8).any()
    decisions = narrowed.compile(a, b, whole[:, :n], m, n, target="sm_90a").decisions
    assert any("bytes for the output" in d for d in decisions), decisions


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_subtiles_of_8_bits_have_a_whole_swizzle(dtype):
    """However few columns there is room for."""
    a, b, c = np.zeros((128, 64), np.float16), np.zeros((64, 64), np.float16), np.zeros((128, 64))
    made = narrowed.compile(a, b, c.astype(dtype), 64, 64, target="sm_90a", store_columns=16)
    assert any("16 columns at a time" in d or "32 columns" in d for d in made.decisions)
