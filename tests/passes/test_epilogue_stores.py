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
