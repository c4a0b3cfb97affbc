"""Kernels with running maxima and carried sums on a GPU: maxima that keep moving, sums in parts,
votes of warps and of blocks.
"""

import numpy as np
import pytest

from tests.gpu.device import both
from tests.passes import test_defer_reductions as sums
from tests.passes import test_relax_stabilizers as maxima

NEAR = {"attention": 2e-2, "soft-cap": 2e-2, "sinks": 2e-2, "float16": 4e-3}


@pytest.mark.parametrize("relax", [True, False])
@pytest.mark.parametrize("name", maxima.CASES)
def test_maxima_that_keep_moving(name, relax):
    case = maxima.CASES[name]
    near = next((x for part, x in NEAR.items() if part in name), 2e-5)
    both(
        case.fn,
        case.grid,
        *case.data(np.random.default_rng(11)),
        **case.constants,
        rtol=near,
        atol=near * (2 if near > 1e-3 else 400),
        relax=relax,
    )


@pytest.mark.parametrize("name", [name for name in sums.CASES if name != "read on the way"])
def test_sums_in_parts(name):
    case = sums.CASES[name]
    both(
        case.fn,
        case.grid,
        *case.data(np.random.default_rng(12)),
        **case.constants,
        rtol=1e-5,
        atol=1e-2,
    )
