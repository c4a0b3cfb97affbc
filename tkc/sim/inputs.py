"""Arguments for runs in the simulator: copies laid out as the originals, and random elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Attribute

from tkc.ir import tile
from tkc.ir.types import ArrayType, Fact, PointerType, is_bool, is_float
from tkc.sim import level0

ADDRESS_MODULUS = 1024  # copies keep addresses modulo this


def clones(arguments: Sequence[Any]) -> list[Any]:
    """The arguments with every array copied: same strides, same alignment, and arrays that share
    bytes still do.
    """
    arrays = {
        i: (*np.lib.array_utils.byte_bounds(a), a)
        for i, a in enumerate(arguments)
        if isinstance(a, np.ndarray) and a.size
    }
    spans: list[list[int]] = []
    for low, high, _ in sorted(arrays.values(), key=lambda s: s[:2]):
        if spans and low < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], high)
        else:
            spans.append([low, high])
    blocks = [(low, high, _room(high - low, low)) for low, high in spans]
    out = list(arguments)
    for i, (start, _, array) in arrays.items():
        low, _, room = next(b for b in blocks if b[0] <= start < b[1])
        out[i] = np.ndarray(array.shape, array.dtype, room, array.ctypes.data - low, array.strides)
    for i, (_, _, array) in arrays.items():
        out[i][...] = array
    for i, (_, _, array) in arrays.items():
        out[i].flags.writeable = array.flags.writeable
    return out


def _room(size: int, like: int) -> np.ndarray:
    """Zeroed bytes whose address is `like` modulo ADDRESS_MODULUS."""
    whole = np.zeros(size + ADDRESS_MODULUS, np.uint8)
    start = (like - whole.ctypes.data) % ADDRESS_MODULUS
    return whole[start : start + size]


def blank(
    shape: Sequence[int], strides: Sequence[int], dtype: np.dtype, align: int = 0
) -> np.ndarray:
    """An array of zeros with these strides (in elements), `align` bytes past a round address."""
    reach = [(n - 1) * s * dtype.itemsize for n, s in zip(shape, strides, strict=False)]
    if 0 in shape:
        return np.zeros(shape, dtype)
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + dtype.itemsize
    return np.ndarray(
        shape, dtype, _room(high - low, align + low), -low, [s * dtype.itemsize for s in strides]
    )


def fill(array: np.ndarray, rng: np.random.Generator, exact: bool = False) -> None:
    """Normal floats, or (exact) small whole numbers, whose sums no order of summation changes;
    integers are 0 to 3, so that they can be indices.
    """
    if array.dtype.kind in "iub":
        array[...] = rng.integers(0, 2 if array.dtype.kind == "b" else 4, array.shape).astype(
            array.dtype
        )
    elif exact:
        array[...] = rng.integers(-2, 3, array.shape).astype(array.dtype)
    else:
        array[...] = rng.standard_normal(array.shape, np.float32).astype(array.dtype)


def made(kernel: tile.Kernel, size: int = 80, seed: int = 0) -> list[Any]:
    """Arguments that a kernel's types permit: extents of about `size`, rounded up to what is known
    to divide them; whole numbers are `size`.
    """
    rng = np.random.default_rng(seed)
    out = [_made(argument.type, size) for argument in kernel.arguments]
    for value in out:
        if isinstance(value, np.ndarray):
            fill(value, rng)
    return out


def _made(t: Attribute, size: int) -> np.ndarray | float:
    """An argument of a type; an array is zero."""
    if isinstance(t, PointerType):
        return blank((size * size,), (1,), level0.dtype_of(t.element))
    if not isinstance(t, ArrayType):
        return 0.5 if is_float(t) else True if is_bool(t) else size
    shape, step = [_permitted(fact, size) for fact in t.facts.shape], 1
    strides: list[int] = []
    for n, fact in zip(reversed(shape), reversed(t.facts.strides), strict=True):
        strides.insert(0, _permitted(fact, step))
        step = max(step, strides[0] * max(n, 1))
    return blank(shape, strides, level0.dtype_of(t.element))


def _permitted(fact: Fact, n: int) -> int:
    """The least number from n on of which a fact holds, or the one that it says."""
    return fact.exact if fact.exact is not None else -(-n // fact.divisor) * fact.divisor


def packed(arguments: Sequence[Any]) -> dict[str, np.ndarray]:
    """Arguments as entries of an .npz file: bytes of each array with its element type and strides
    (in elements).
    """
    out: dict[str, np.ndarray] = {}
    for i, value in enumerate(arguments):
        if not isinstance(value, np.ndarray):
            out[f"{i}"] = np.asarray(value)
            continue
        out[f"{i}"] = np.ascontiguousarray(value).reshape(value.shape).view(f"u{value.itemsize}")
        out[f"{i}.dtype"] = np.array(value.dtype.name)
        out[f"{i}.strides"] = np.array([s // value.itemsize for s in value.strides], np.int64)
    return out


def unpacked(entries: dict[str, np.ndarray]) -> list[Any]:
    """The inverse. Raises KeyError, TypeError or ValueError of entries that are not of `packed`."""
    import ml_dtypes

    out: list[Any] = []
    while str(i := len(out)) in entries:
        value = entries[f"{i}"]
        if f"{i}.dtype" not in entries:
            out.append(value.item())
            continue
        name = str(entries[f"{i}.dtype"])
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        array = blank(value.shape, [int(s) for s in entries[f"{i}.strides"]], dtype)
        array[...] = value.view(dtype)
        out.append(array)
    return out
