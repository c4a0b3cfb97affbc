"""The element types, under the names of the language; tkc.ir.dtypes defines them."""

from tkc.ir.dtypes import (
    BY_IR,
    BY_NAME,
    BY_NUMPY,
    DTYPES,
    DType,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

__all__ = ["BY_IR", "BY_NAME", "BY_NUMPY", "DTYPES", "DType", *(t.name for t in DTYPES)]
