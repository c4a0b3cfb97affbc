"""epilogue_stores: what of a result each warpgroup stores itself, and which accesses are of another
way through a branch.
"""

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Block, Region

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
