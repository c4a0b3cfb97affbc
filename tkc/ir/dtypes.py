"""Element types as users name them: tkc.float32, tkc.bfloat16, … Each knows its IR type and its
NumPy type.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike
from xdsl.dialects.builtin import bf16, f16, f32, f64, i1, i8, i16, i32, i64
from xdsl.ir import Attribute

from tkc.ir.types import f8e4m3, f8e5m2, ui8, ui16, ui32, ui64


@dataclass(frozen=True, eq=False)
class DType:
    """An element type."""

    name: str
    ir: Attribute
    numpy: np.dtype
    kind: str  # "bool", "int", "uint", "float"

    @cached_property
    def bits(self) -> int:
        return self.numpy.itemsize * 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        return self.kind in ("int", "uint")

    def __repr__(self):
        return f"tkc.{self.name}"


def _of(name, ir, scalar, kind) -> DType:
    return DType(name, ir, np.dtype(scalar), kind)


bool_ = _of("bool_", i1, np.bool_, "bool")
int8, int16, int32, int64 = (
    _of(f"int{n}", t, f"int{n}", "int") for n, t in ((8, i8), (16, i16), (32, i32), (64, i64))
)
uint8, uint16, uint32, uint64 = (
    _of(f"uint{n}", t, f"uint{n}", "uint")
    for n, t in ((8, ui8), (16, ui16), (32, ui32), (64, ui64))
)
float16, float32, float64 = (
    _of(f"float{n}", t, f"float{n}", "float") for n, t in ((16, f16), (32, f32), (64, f64))
)
bfloat16 = _of("bfloat16", bf16, ml_dtypes.bfloat16, "float")
float8_e4m3 = _of("float8_e4m3", f8e4m3, ml_dtypes.float8_e4m3fn, "float")
float8_e5m2 = _of("float8_e5m2", f8e5m2, ml_dtypes.float8_e5m2, "float")

DTYPES = (
    bool_,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    bfloat16,
    float32,
    float64,
    float8_e4m3,
    float8_e5m2,
)
BY_NUMPY = {t.numpy: t for t in DTYPES}
BY_IR = {t.ir: t for t in DTYPES}
BY_NAME = {t.name: t for t in DTYPES}


def _leading_bits(x: np.ndarray) -> np.ndarray:
    """Integers as float64; of those that it does not hold the leading bits, of which the last is
    set where others were cut off.
    """
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    is_long = x >> 53 != x >> 63
    kept = x >> 11 << 11
    odd = kept | (x != kept).astype(x.dtype) << 11
    return np.where(is_long, odd, x).astype(np.float64)


def to_odd(x: ArrayLike, dtype: np.dtype) -> np.ndarray:
    """float64 and integers of 32 or 64 bits that become a float of 16 bits or fewer, as float32
    whose last bit says whether others were cut off, so that they are rounded once; everything else
    as it is.
    """
    x = np.asarray(x)
    if dtype.itemsize > 2 or dtype.kind not in "fV":
        return x
    if x.dtype.kind in "iu" and x.dtype.itemsize >= 4:
        x = _leading_bits(x)
    if x.dtype != np.float64:
        return x
    with np.errstate(over="ignore"):
        near = x.astype(np.float32)
    cut = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    return (cut.view(np.uint32) | (np.isfinite(x) & (cut != x))).view(np.float32)
