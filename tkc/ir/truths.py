"""Arrays of truth values, asked as a whole. NumPy's `all` and `any` go through Python and a
reduction, which takes longer than to search the bytes of the few hundred values that the threads of
a block, or the elements of a tile, have.
"""

from __future__ import annotations

import numpy as np


def every(truths: np.ndarray | np.bool_) -> bool:
    """Whether all of some truth values (bool, of any shape) hold: `truths.all()`."""
    return 0 not in truths.tobytes()


def some(truths: np.ndarray | np.bool_) -> bool:
    """Whether one of some truth values (bool, of any shape) holds: `truths.any()`."""
    return 1 in truths.tobytes()
