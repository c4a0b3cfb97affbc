"""Tensor maps: what the Tensor Memory Accelerator must know of an array, 128 bytes that only the
driver can write.

`describe` computes the fields from a map parameter and an array, and checks the hardware's rules,
so that a bad array is a MapError that names it; `encode` calls the driver. What a specialization
knows of an array argument keeps `plan` from asking for such a map; arrays that a kernel makes are
known only here, and a launch that meets a MapError takes a plan without maps
(`JitFunction._gpu_launch`). The C that `tkc.export` writes makes the same fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tkc.errors import MapError
from tkc.ir.interface import Parameter, map_fields
from tkc.runtime.arrays import ArrayInfo

TYPES = {
    "i8": "UINT8",
    "ui8": "UINT8",
    "f8E4M3FN": "UINT8",
    "f8E5M2": "UINT8",
    "i1": "UINT8",
    "ui16": "UINT16",
    "i16": "UINT16",
    "ui32": "UINT32",
    "i32": "INT32",
    "ui64": "UINT64",
    "i64": "INT64",
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "f32": "FLOAT32",
    "tf32": "TFLOAT32",
    "f64": "FLOAT64",
}
BITS = {
    "UINT8": 8,
    "UINT16": 16,
    "FLOAT16": 16,
    "BFLOAT16": 16,
    "UINT32": 32,
    "INT32": 32,
    "FLOAT32": 32,
    "TFLOAT32": 32,
    "UINT64": 64,
    "INT64": 64,
    "FLOAT64": 64,
}
SWIZZLES = {0: "NONE", 16: "NONE", 32: "32B", 64: "64B", 128: "128B"}
MAX_RANK, MAX_BOX, MAX_EXTENT, MAX_STRIDE = 5, 256, 1 << 32, 1 << 40


@dataclass(frozen=True)
class TensorMap:
    """The fields of a map, innermost dimension first. strides: bytes, of every dimension but the
    innermost.
    """

    type: str
    pointer: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    fetch: int = 0  # the most bytes that the cache is to read at once; 0: as many as it can


def describe(parameter: Parameter, array: ArrayInfo, name: str) -> TensorMap:
    """The map of an array argument. Raises MapError where the array breaks one of the
    accelerator's rules.
    """
    if parameter.element not in TYPES:
        raise MapError(f"{name}: there are no tensor maps of elements {parameter.element}")
    if len(array.shape) != len(parameter.box):
        raise MapError(
            f"{name}: expected rank {len(parameter.box)}, got {len(array.shape)}; reshape it"
        )
    kind, size = TYPES[parameter.element], array.itemsize
    if BITS[kind] != size * 8:
        raise MapError(
            f"{name}: expected elements {parameter.element}, got {array.dtype}; convert it"
        )
    extents, steps, box = zip(
        *map_fields(parameter, array.shape, [s * size for s in array.strides], size), strict=False
    )
    array = replace(
        array,
        shape=tuple(array.shape[a] for a in parameter.axes),
        strides=tuple(array.strides[a] for a in parameter.axes),
    )
    _check(array, name, parameter, extents, steps, box, size)
    return TensorMap(
        kind, array.pointer, extents, steps[1:], box, parameter.swizzle, parameter.fetch
    )


def _check(array: ArrayInfo, name: str, p: Parameter, extents, steps, box, size: int) -> None:
    copy = "pass a contiguous, aligned copy"
    if p.panelled and p.swizzle and array.shape[-1] % (p.swizzle // size):
        raise MapError(
            f"{name}: expected a last extent that is a multiple of {p.swizzle // size}, got"
            f" {array.shape[-1]}; pad it"
        )
    if len(box) > MAX_RANK:
        raise MapError(
            f"{name}: a tensor map has at most {MAX_RANK} dimensions, this one needs {len(box)};"
            " merge axes of the array"
        )
    if p.swizzle not in SWIZZLES:
        raise MapError(f"{name}: a swizzle of {p.swizzle} bytes; there are 0, 16, 32, 64 and 128")
    if array.pointer % 16:
        raise MapError(
            f"{name}: expected an address that is a multiple of 16, got {array.pointer:#x}; {copy}"
        )
    if steps[0] != size:
        raise MapError(
            f"{name}: expected the last axis to be contiguous (stride 1), got stride"
            f" {steps[0] // size}; {copy}"
        )
    for n, step in zip(extents[1:], steps[1:], strict=False):
        if n > 1 and (step % 16 or not 0 < step < MAX_STRIDE):
            raise MapError(
                f"{name}: expected strides that are positive multiples of 16 bytes, got {step};"
                f" {copy}, or pad the last axis"
            )
    _check_box(array, name, p, extents, box, size)


def _check_box(
    array: ArrayInfo, name: str, p: Parameter, extents: Sequence[int], box: Sequence[int], size: int
) -> None:
    if min(extents) < 1:
        raise MapError(
            f"{name}: a tensor map needs extents of at least 1, got shape {array.shape}; skip the"
            " launch, there is nothing to read"
        )
    if max(extents) > MAX_EXTENT:
        raise MapError(
            f"{name}: extents of at most 2^32, got shape {array.shape}; split the launch"
        )
    if max(box) > MAX_BOX:
        raise MapError(
            f"{name}: a box of {max(box)}; one copy moves at most {MAX_BOX} along an axis: use"
            " smaller tiles"
        )
    if box[0] * size % 16:
        raise MapError(
            f"{name}: an inner box of {box[0] * size} bytes is no multiple of 16; use wider tiles"
        )
    if p.swizzle and box[0] * size > p.swizzle:
        raise MapError(
            f"{name}: an inner box of {box[0] * size} bytes is wider than its swizzle of"
            f" {p.swizzle}"
        )


def promotion(strides: Sequence[int], most: int = 0) -> int:
    """Bytes that the cache reads where it reads any: fewer where rows start in the middle of the
    memory's 32, and as the plan says.
    """
    return 128 if any(s % 32 for s in strides) or 0 < most <= 128 else 256


def encode(m: TensorMap) -> bytes:
    """The 128 bytes, made by the driver. Raises DeviceError."""
    import ctypes

    from tkc.runtime import driver

    d = driver.api()
    rank = len(m.extents)
    strides = [s if n > 1 else 16 for n, s in zip(m.extents[1:], m.strides, strict=False)] or [
        16
    ]  # along an extent of 1 nothing is ever stepped
    made = driver.check(
        d.cuTensorMapEncodeTiled(
            getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{m.type}"),
            rank,
            m.pointer,
            [d.cuuint64_t(n) for n in m.extents],
            [d.cuuint64_t(s) for s in strides],
            [d.cuuint32_t(n) for n in m.box],
            [d.cuuint32_t(1)] * rank,
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[m.swizzle]}"),
            getattr(
                d.CUtensorMapL2promotion,
                f"CU_TENSOR_MAP_L2_PROMOTION_L2_{promotion(m.strides, m.fetch)}B",
            ),
            d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        f"encoding the tensor map {m}",
    )
    return ctypes.string_at(made.getPtr(), 128)
