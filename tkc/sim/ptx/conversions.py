"""Conversions from one type to another: `cvt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tkc.sim.ptx.faults import Unknown
from tkc.sim.ptx.kinds import BITS_OF_BYTES, FLOATS, KIND_BYTES, KIND_TYPES, tf32_bits
from tkc.sim.ptx.machine import ClusterMachine, rule
from tkc.sim.ptx.text import Instruction

# to whole numbers, by the rounding that the opcode names
TO_WHOLE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rzi": np.trunc,
    "rni": np.rint,
    "rmi": np.floor,
    "rpi": np.ceil,
}
PAIRS = ("bf16x2", "f16x2", "e4m3x2", "e5m2x2")


@rule("cvt")
def cvt(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    into, *operands = i.operands
    target, source = i.parts[-2:]
    if target in PAIRS and source == "f32":
        high, low = (m.read(o, "f32") for o in operands)
        return m.write(into, packed_pair(high, low, target[:-2], i.parts), mask)
    if target == "f16x2":
        return m.write(into, widened_pair(m.read(operands[0], "u16"), source[:-2]), mask)
    if target not in KIND_TYPES or source not in KIND_TYPES:
        raise Unknown(f"a conversion from {source} to {target}")
    m.write(into, converted(m.read(operands[0], source), source, target, i.parts[1]), mask)


def packed_pair(high: np.ndarray, low: np.ndarray, kind: str, parts: list[str]) -> np.ndarray:
    """Two float32 as a pair of shorter floats in one word; float8 saturates."""
    t, bits = KIND_TYPES[kind], 8 * KIND_BYTES[kind]

    def shortened(x: np.ndarray) -> np.ndarray:
        if bits == 8 or "satfinite" in parts:
            largest = float(ml_dtypes.finfo(t).max)
            x = np.clip(x, -largest, largest)
        if "relu" in parts:
            x = np.maximum(x, 0)
        short = towards_zero(x, t) if "rz" in parts else x.astype(t)
        return with_one_nan(short).view(f"u{bits // 8}").astype(np.uint32)

    return shortened(high) << np.uint32(bits) | shortened(low)


def towards_zero(x: np.ndarray, t: type[Any]) -> np.ndarray:
    """A shorter float: the nearest, or the one before it where that is beyond the number."""
    near = x.astype(t)
    beyond = np.abs(near.astype(np.float64)) > np.abs(x.astype(np.float64))
    word = BITS_OF_BYTES[near.dtype.itemsize]
    return (near.view(word) - beyond.astype(word)).view(t)


def widened_pair(pair: np.ndarray, kind: str) -> np.ndarray:
    """Two float8 in 16 bits as a pair of float16 in one word."""

    def widened(shift: int) -> np.ndarray:
        short = (pair >> shift & 255).astype(np.uint8).view(KIND_TYPES[kind])
        return short.astype(np.float16).view(np.uint16).astype(np.uint32)

    return widened(8) << np.uint32(16) | widened(0)


def converted(x: np.ndarray, source: str, target: str, rounding: str) -> np.ndarray:
    """One number a thread. rounding: a word of the opcode, where there is a choice."""
    t = KIND_TYPES[target]
    if target == "tf32":
        return tf32_bits(x.view(np.uint32))
    if source[0] in "fb" and target[0] in "us":
        return saturated(TO_WHOLE[rounding](x.astype(np.float64)), t)
    if source == target and source[0] == "f":
        return TO_WHOLE[rounding](x)
    if rounding == "rz" and source[0] in "us" and target == "f32":
        return cut_off(x)
    if "rz" in rounding and source in FLOATS and KIND_BYTES[source] > KIND_BYTES[target]:
        return with_one_nan(towards_zero(x, t))
    return with_one_nan(x.astype(t)) if source == "f32" and target in FLOATS else x.astype(t)


def cut_off(x: np.ndarray) -> np.ndarray:
    """Integers as float32, rounded towards zero."""
    near = x.astype(np.float32)
    beyond = [abs(int(n)) > abs(int(v)) for n, v in zip(near.flat, x.flat, strict=True)]
    word = near.view(np.uint32) - np.array(beyond, np.uint32).reshape(x.shape)
    return word.view(np.float32)


def with_one_nan(x: np.ndarray) -> np.ndarray:
    """Floats of 16 bits as the hardware rounds to them: every NaN has the same bits."""
    if x.dtype.itemsize != 2:
        return x
    return np.where(np.isnan(x), np.uint16(0x7FFF), x.view(np.uint16)).view(x.dtype)


def saturated(whole: np.ndarray, t: type[np.integer]) -> np.ndarray:
    """Whole numbers, infinities and NaN (0) as an integer type."""
    info = np.iinfo(t)
    finite = np.nan_to_num(whole, nan=0.0, posinf=1e30, neginf=-1e30)
    return np.array([max(info.min, min(info.max, int(v))) for v in finite], object).astype(t)
