"""Products of matrices in NumPy, and the rounding of their operands to tf32."""

from __future__ import annotations

import numpy as np

MAX_SINGLE_THREADED = 1 << 18  # multiplications that OpenBLAS does without its threads


def tf32(x: np.ndarray) -> np.ndarray:
    """float32 with 10 bits of mantissa: to nearest, ties away from zero."""
    word = np.asarray(x, np.float32).view(np.uint32)
    return np.where(
        np.isfinite(x), (word + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32), x
    )


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, so few rows at once that BLAS takes one thread: on a busy machine, to wake the others
    takes longer than to multiply tiles.
    """
    rows = max(1, MAX_SINGLE_THREADED // max(1, a.shape[-1] * b.shape[-1]))
    if a.shape[-2] <= rows:
        return a @ b
    return np.concatenate([a[..., i : i + rows, :] @ b for i in range(0, a.shape[-2], rows)], -2)
