"""Arrays of truth values as a whole: what NumPy's `all` and `any` say."""

import numpy as np
import pytest

from tkc.ir.truths import every, some

GRID = np.arange(24).reshape(4, 6)


@pytest.mark.parametrize(
    "truths",
    [
        np.zeros(0, bool),
        np.bool_(True),
        np.bool_(False),
        np.array(True),
        np.ones((3, 5), bool),
        np.zeros((3, 5), bool),
        GRID == 7,
        (GRID != 7)[:, ::2].T,
        (GRID % 6 == 1)[:, 1],
        np.broadcast_to(np.array([True, False]), (3, 2)),
        np.broadcast_to(True, (3, 2)),
        np.array([1.0, np.nan]) == np.array([1.0, np.nan]),
    ],
)
def test_as_numpy_says(truths):
    assert every(truths) is bool(np.all(truths))
    assert some(truths) is bool(np.any(truths))
