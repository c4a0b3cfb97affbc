"""Arguments for runs in the simulator: copies that lie as the originals do, and made-up elements."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ALIGNMENT = 1024                    # addresses keep their value modulo this


def clones(arguments: Sequence) -> list:
    """The arguments with every array copied: same strides, same alignment, and arrays that share bytes still do."""
    arrays = {i: (*np.lib.array_utils.byte_bounds(a), a) for i, a in enumerate(arguments) if isinstance(a, np.ndarray) and a.size}
    spans: list[list[int]] = []
    for low, high, _ in sorted(arrays.values(), key=lambda s: s[:2]):
        if spans and low < spans[-1][1]: spans[-1][1] = max(spans[-1][1], high)
        else: spans.append([low, high])
    blocks = [(low, high, _room(high - low, low)) for low, high in spans]
    out = list(arguments)
    for i, (start, _, array) in arrays.items():
        low, _, room = next(b for b in blocks if b[0] <= start < b[1])
        out[i] = np.ndarray(array.shape, array.dtype, room, array.ctypes.data - low, array.strides)
    for i, (_, _, array) in arrays.items(): out[i][...] = array
    for i, (_, _, array) in arrays.items(): out[i].flags.writeable = array.flags.writeable
    return out


def _room(size: int, like: int) -> np.ndarray:
    """Zeroed bytes whose address is `like` modulo ALIGNMENT."""
    whole = np.zeros(size + ALIGNMENT, np.uint8)
    start = (like - whole.ctypes.data) % ALIGNMENT
    return whole[start:start + size]


def blank(shape: Sequence[int], strides: Sequence[int], dtype: np.dtype, align: int = 0) -> np.ndarray:
    """An array of zeros with these strides (in elements), `align` bytes past a round address."""
    reach = [(n - 1) * s * dtype.itemsize for n, s in zip(shape, strides)]
    if 0 in shape: return np.zeros(shape, dtype)
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + dtype.itemsize
    return np.ndarray(shape, dtype, _room(high - low, align + low), -low, [s * dtype.itemsize for s in strides])


def fill(array: np.ndarray, rng: np.random.Generator, exact: bool = False) -> None:
    """Normal floats, or (exact) small whole numbers, whose sums no order of summation changes; integers are 0 to 3, so that they can be indices."""
    if array.dtype.kind in "iub": array[...] = rng.integers(0, 2 if array.dtype.kind == "b" else 4, array.shape).astype(array.dtype)
    elif exact: array[...] = rng.integers(-2, 3, array.shape).astype(array.dtype)
    else: array[...] = rng.standard_normal(array.shape, np.float32).astype(array.dtype)
