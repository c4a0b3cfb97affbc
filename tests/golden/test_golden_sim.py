"""The golden programs in the simulator: right values and nothing found, over schedules.
tests/fuzz/test_mutants.py has what a change of each does.
"""

import pytest

from tkc.fuzz.programs import programs

CASES = {
    "vector_add": [((n,), 1) for n in (16, 1024, 2000)],
    "cooperative_product": [
        ((256, 256, 64), 1),
        ((128, 256, 320), 1),
        ((300, 520, 136), 2),
        ((640, 256, 72), 1),
        ((8, 8, 8), 1),
    ],
    "pingpong_product": [
        ((128, 192, 64), 1),
        ((256, 192, 328), 1),
        ((300, 520, 136), 2),
        ((640, 200, 72), 1),
        ((8, 8, 8), 3),
    ],
    "attention_forward": [((1, 128, 1), 1), ((1, 384, 1), 1), ((2, 128, 3), 2), ((1, 256, 2), 4)],
}


def test_there_are_no_others():
    assert set(CASES) == {name for name, p in programs().items() if p.golden}


@pytest.mark.parametrize(
    "name, shape, resident", [(name, *case) for name, cases in CASES.items() for case in cases]
)
def test_golden(name, shape, resident):
    for seed in range(6 if name == "vector_add" else 3):
        assert programs()[name].run(shape, seed, resident) is None
