"""The types that PTX instructions name (`f32`, `b64`, `e4m3`, …) as NumPy types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

KIND_TYPES: dict[str, type[Any]] = {
    "b8": np.uint8,
    "u8": np.uint8,
    "s8": np.int8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.int16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
FLOATS = ("f16", "bf16", "f32", "f64")  # that instructions compute with
# two floats in a word, the first in its lower half
PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
KIND_BYTES = {kind: np.dtype(t).itemsize for kind, t in KIND_TYPES.items()}
# unsigned integers by their bytes: what a register holds
BITS_OF_BYTES: dict[int, type[Any]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
TF32_MASK = np.uint32(0xFFFFE000)  # the bits of a float32 that a tf32 keeps


def tf32_bits(words: np.ndarray) -> np.ndarray:
    """float32 as bits, rounded to tf32: to nearest, ties away from zero."""
    return words + np.uint32(0x1000) & TF32_MASK
