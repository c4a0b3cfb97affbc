"""Arguments of a launch as the words that compiled code reads: of an array its address, extents and
strides in elements, of a number its bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from tkc.errors import LaunchError

WORD_MASK = (1 << 64) - 1


@cache
def numpy_type(name: str) -> np.dtype:
    """The NumPy type of an element type by tkc's name."""
    name = {"bool_": "bool", "float8_e4m3": "float8_e4m3fn"}.get(name, name)
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def words_of(
    wanted: Sequence[dict[str, Any]], arguments: Sequence[object]
) -> ctypes.Array[ctypes.c_uint64]:
    """The words of all arguments; `wanted` describes each, as the compiler wrote it. Raises
    LaunchError for an argument that does not fit.
    """
    words: list[int] = []
    for i, (want, given) in enumerate(zip(wanted, arguments, strict=True)):
        named = f"argument {want['name'] or i}"
        if want["kind"] == "scalar":
            words.append(_number(want, given, named))
        elif want["kind"] == "pointer" and isinstance(given, (int, np.integer)):
            words.append(int(given))
        else:
            words += _array(want, given, named)
    return (ctypes.c_uint64 * len(words))(*words)


def _number(want: dict[str, Any], given: object, named: str) -> int:
    dtype = numpy_type(want["dtype"])
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            value = np.asarray(given)
            value = (
                np.asarray(int(value) & WORD_MASK, np.uint64).astype(dtype)
                if dtype.kind in "iu"
                else value.astype(dtype)
            )
    except (TypeError, ValueError):
        raise LaunchError(
            f"{named} is to be a number of {want['dtype']}, got {type(given).__name__}"
        ) from None
    return int.from_bytes(value.tobytes().ljust(8, b"\0"), "little")


def _array(want: dict[str, Any], given: object, named: str) -> list[int]:
    dtype = numpy_type(want["dtype"])
    if not isinstance(given, np.ndarray):
        raise LaunchError(f"{named} is to be a NumPy array, got {type(given).__name__}")
    if given.dtype != dtype and not (dtype == np.int64 and given.dtype == np.uint64):
        raise LaunchError(f"{named} has elements {given.dtype}; the kernel takes {want['dtype']}")
    if want["kind"] == "pointer":
        return [given.ctypes.data]
    if given.ndim != want["rank"]:
        raise LaunchError(f"{named} has rank {given.ndim}; the kernel takes rank {want['rank']}")
    if any(s % given.itemsize for s in given.strides):
        raise LaunchError(f"{named} has strides that are no multiple of its element; pass a copy")
    strides = [s // given.itemsize for s in given.strides]
    # a stride that no element is reached by may be any number
    meaningful = [given.size > 0 and n > 1 for n in given.shape]
    _check_known(f"{named} has shape", given.shape, want["shape"], [True] * given.ndim)
    _check_known(f"{named} has strides", strides, want["strides"], meaningful)
    return [given.ctypes.data, *given.shape, *strides]


def _check_known(
    what: str, have: Sequence[int], known: Sequence[int | None], counts: Sequence[bool]
) -> None:
    """Raises LaunchError where a number differs from the one that the kernel was compiled for."""
    for axis, (x, y) in enumerate(zip(have, known, strict=True)):
        if y is not None and x != y and counts[axis]:
            raise LaunchError(
                f"{what} {tuple(have)}; the kernel was compiled for {y} along axis {axis}"
            )
