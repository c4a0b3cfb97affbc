"""Arrays in the shape of a block: what the same blocks have again and again is made once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


def spread(x: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Values, or one value, in a shape; read-only where they are not an array of it."""
    if x is True:
        return _everywhere(shape)
    x = np.asarray(x)
    return x if x.shape == shape else np.broadcast_to(x, shape)


@lru_cache(1024)
def _everywhere(shape: tuple[int, ...]) -> np.ndarray:
    live = np.ones(shape, bool)
    live.flags.writeable = False
    return live


@lru_cache(1024)
def counted(extent: int, axis: int, rank: int) -> np.ndarray:
    """0, 1, 2, … along an axis of a block; read-only."""
    numbers = np.arange(extent).reshape([extent if a == axis else 1 for a in range(rank)])
    numbers.flags.writeable = False
    return numbers
