"""Every pair of layouts that can meet, a part of them: written as PTX, run with threads at level 4
and on the machine for PTX (tests/gpu/test_conversions.py runs all on a GPU).
"""

from collections import Counter

import numpy as np
import pytest

from tests.passes import conversions as C
from tkc.sim import level4, ptx

CASES = list(C.cases())


def test_they_are_many_of_every_kind():
    """Of all: 616 are the same, 68 move between registers, 3866 between lanes, 6224 between warps
    (2026-11-21). Here some are counted.
    """
    assert sum(len(C.targets(*c)) for c in CASES) > 10_000
    found = sum((C.movements(*c) for c in CASES[::12]), Counter())
    assert found["lanes"] > 200 and found["warps"] > 300 and found["none"], found


@pytest.mark.parametrize("part", range(8))
def test_pairs_convert(part):
    for i, case in enumerate(CASES[part::8]):
        if i % 16:
            continue
        made = C.module(*case)
        program = C.compiled(made)
        if case[1] in ((16, 16), (7, 100), (64,), (100,)):
            x, out, want = C.arrays(case[0], case[1], len(C.targets(*case)))
            if i % 32:
                level4.run(made, [x, out], (1, 1, 1), i)
            else:
                _, out = ptx.run(program, [x, out])
            np.testing.assert_array_equal(out, want, err_msg=str(case))
