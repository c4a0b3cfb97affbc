"""Tensor maps: what an array looks like to copies of boxes, and how a swizzle moves bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tkc.ir.interface import UNBOUNDED, Parameter, map_fields
from tkc.ir.shared_layout import SWIZZLES
from tkc.sim.ptx.faults import Unknown, require

# of a swizzle's width in bytes: which of the bits from 7 on are XORed into those from 4 on
XORED_BITS = {width: (1 << bits) - 1 for width, bits in SWIZZLES.items()}


@dataclass(frozen=True)
class TensorMap:
    """An array as copies of boxes see it: innermost dimension first, strides in bytes. size: bytes
    of an element; swizzle: its width in bytes, or 0; before: whether it begins before its memory.
    """

    element: str
    size: int
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    before: bool = False


def tensor_map(p: Parameter, arguments: Sequence[Any], address: int) -> TensorMap:
    """The map of an array argument, or of what the kernel makes of it, from what the interface
    says. arguments: of the launch; address: of the map's argument. Raises Fault where the hardware
    takes no such array, Unknown where a launch chooses another program for what the kernel makes.
    """
    given = arguments[p.argument]
    size = given.itemsize

    def leaf(kind: str, argument: int, axis: int) -> int:
        value = arguments[argument]
        if kind == "scalar":
            return int(value)
        return value.shape[axis] if kind == "shape" else value.strides[axis] // value.itemsize

    steps = [s // size for s in given.strides]
    offset, shape, strides = p.array(given.shape, steps, leaf)
    address += offset * size
    dims = map_fields(p, shape, [s * size for s in strides], size)
    positive = all(n > 0 and (n == 1 or step > 0) for n, step, _ in dims)
    if p.shape and (not positive or offset < 0 and min(shape) < UNBOUNDED):
        raise Unknown(
            "a tensor map of an array that is empty, has a stride that is not positive, or begins"
            " before its memory"
        )
    require(
        positive
        and address % 16 == 0
        and all(s % 16 == 0 for n, s, _ in dims[1:] if n > 1)
        and dims[0][1] == size,
        "an array that no tensor map can describe",
    )
    extents, steps_in_bytes, box = zip(*dims, strict=True)
    return TensorMap(p.element, size, address, extents, steps_in_bytes, box, p.swizzle, offset < 0)


def swizzled(at: np.ndarray, width: int) -> np.ndarray:
    """Where the hardware puts what belongs at an address."""
    return at ^ (at >> 7 & XORED_BITS[width]) << 4
