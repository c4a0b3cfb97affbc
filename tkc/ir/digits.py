"""The arithmetic of digits that layouts are written in, and their text; layout.py explains what
they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np


class LayoutError(ValueError):
    """A layout that does not exist, or a question that it cannot answer; the message is one
    sentence.
    """


@dataclass(frozen=True)
class Digit:
    """One digit of a hardware index: value v in [0, extent) moves the coordinate on `axis` by v *
    stride.
    """

    extent: int
    axis: int  # -1: replication, the value moves nothing
    stride: int

    def __str__(self) -> str:
        return f"{self.extent}:*" if self.axis < 0 else f"{self.extent}:{self.stride}@{self.axis}"


def copies(extent: int) -> Digit:
    """A replication digit."""
    return Digit(extent, -1, 0)


def total(digits: Iterable[Digit]) -> int:
    """How many values the digits count through."""
    return prod(digit.extent for digit in digits)


def bits_of(digits: Iterable[Digit]) -> list[Digit]:
    """The same function by digits of extent 2, the lowest first. Raises LayoutError where an extent
    is no power of two.
    """
    found: list[Digit] = []
    for digit in digits:
        if digit.extent & (digit.extent - 1):
            raise LayoutError(f"{digit.extent} is no power of two")
        count = digit.extent.bit_length() - 1
        found += [replace(digit, extent=2, stride=digit.stride << i) for i in range(count)]
    return found


def canonical(digits: Iterable[Digit], rank: int) -> tuple[Digit, ...]:
    """Without digits of extent 1, neighbours that continue each other merged: equal functions have
    equal digits.
    """
    merged: list[Digit] = []
    for digit in digits:
        if digit.extent == 1:
            continue
        if digit.extent < 1 or digit.axis >= rank or digit.axis >= 0 and digit.stride < 1:
            raise LayoutError(f"{digit} is no digit of a tile of rank {rank}")
        if digit.axis < 0:
            digit = copies(digit.extent)
        last = merged[-1] if merged else None
        if last and last.axis == digit.axis and last.stride * last.extent == digit.stride:
            merged[-1] = replace(last, extent=last.extent * digit.extent)
        else:
            merged.append(digit)
    return tuple(merged)


@lru_cache(1 << 12)
def offset_table(digits: tuple[Digit, ...], rank: int) -> np.ndarray:
    """[count, rank]: how far each value moves the coordinates; read-only, as many layouts have the
    same lanes and warps.
    """
    table = np.zeros((1, rank), int)
    for digit in digits:
        step = np.zeros((digit.extent, 1, rank), int)
        if digit.axis >= 0:
            step[:, 0, digit.axis] = np.arange(digit.extent) * digit.stride
        table = (step + table).reshape(len(step) * len(table), rank)
    table.flags.writeable = False
    return table


def divide(extent: int, stride: int, axes: Sequence[tuple[int, int]]) -> Iterator[Digit]:
    """A digit of the row-major number of several axes as digits of each axis (fastest first; the
    last has no end).
    """
    whole = Digit(extent, 0, stride)
    for axis, size in axes[:-1]:
        here = min(extent, size // stride) or 1
        if extent % here or (stride % size if stride > size else size % stride):
            break
        if stride < size:
            yield Digit(here, axis, stride)
        extent, stride = extent // here, max(stride // size, 1)
        if extent == 1:
            return
    else:
        if axes:
            yield Digit(extent, axes[-1][0], stride)
            return
    raise LayoutError(
        f"digit {whole} of the row-major order does not divide among axes of"
        f" {[size for _, size in axes]}"
    )


def matching_axes(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of runs of axes with equal products, as short as possible: 4x6x5 -> 24x5x1 gives ([0,
    1], [0]), ([2], [1]), ([], [2]).
    """
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [i] if i < len(old) else [], [j] if j < len(new) else []
        # an extent of 1 comes or goes alone
        if left and right and old[i] != new[j] and 1 in (old[i], new[j]):
            left, right = (left, []) if old[i] == 1 else ([], right)
        i, j = i + len(left), j + len(right)
        while (a := prod(old[k] for k in left)) != (b := prod(new[k] for k in right)):
            if a < b:
                left.append(i)
                i += 1
            else:
                right.append(j)
                j += 1
        yield left, right


# ---- text
# --------------------------------------------------------------------------------------------------


def parse_shape(text: str) -> tuple[int, ...]:
    """The inverse of `shape_text`."""
    try:
        return (
            () if text.strip() == "scalar" else tuple(int(word) for word in text.strip().split("x"))
        )
    except ValueError:
        raise LayoutError(f"cannot read the shape {text!r}: expected extents like 64x256") from None


def parse_digit(text: str) -> Digit:
    """The inverse of `str(digit)`."""
    extent, _, place = text.partition(":")
    stride, _, axis = place.partition("@")
    try:
        return copies(int(extent)) if place == "*" else Digit(int(extent), int(axis), int(stride))
    except ValueError:
        raise LayoutError(
            f"cannot read the digit {text!r}: expected extent:stride@axis or extent:*"
        ) from None


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def digits_text(digits: Sequence[Digit]) -> str:
    return " ".join(map(str, digits)) or "-"
