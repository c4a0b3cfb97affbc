"""Sums that live beside the accumulators of dots count where it is chosen how many warps, and
warpgroups, hold a program.
"""

import pytest

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import aligned
from tests.passes.stages import assembler
from tests.passes.test_plan import planned

H2, F2 = aligned(tkc.float16, 2), aligned(tkc.float32, 2)


def nested(a, b, o, M: tkc.constexpr, N: tkc.constexpr):
    """Sums of steps, each weighted by its number."""
    m, n, total = tkc.program_id(0) * M, tkc.program_id(1) * N, tkc.zeros((M, N))
    for g in tkc.range(a.shape[1] // 128):
        part = tkc.zeros((M, N))
        for k in tkc.range(g * 128, g * 128 + 128, 64):
            part = tkc.dot(tkc.load(a, (m, k), (M, 64)), tkc.load(b, (k, n), (64, N)), part)
        total = total + part * (g + 1)
    tkc.store(o, (m, n), total)


@pytest.mark.parametrize(
    "target, block, warps", [("sm_80", (128, 128), 8), ("sm_90a", (192, 128), 12)], ids=str
)
def test_a_sum_that_lives_beside_the_accumulator_takes_warps(target, block, warps):
    m, n = block
    assert planned(traced(nested, H2, H2, F2, M=m, N=n), target).warps == warps


@assembler
@pytest.mark.parametrize("target, block", [("sm_80", (128, 128)), ("sm_90a", (192, 128))], ids=str)
def test_it_spills_nothing(target, block):
    arrays = "f16[1536, 1536]", "f16[1536, 1536]", "f32[1536, 1536]"
    m, n = block
    assert not tkc.jit(nested).compile(*arrays, M=m, N=n, target=target).resources.spill_stores
