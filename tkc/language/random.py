"""Counter-based random numbers: Philox 4x32-10, the same bits for the same seed and offset on every
device.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math

from tkc.language.dtypes import float32, uint32, uint64
from tkc.language.operations import cos, log, maximum, sqrt
from tkc.language.values import Operand, Value, apply, check, lift

KEYS, ROUNDS = (0x9E3779B9, 0xBB67AE85), (0xD2511F53, 0xCD9E8D57)


def _word(x, shift: int = 0):
    """32 bits of an integer as uint32; above those of one of 32 bits are zeros, whatever its sign,
    and a constant is of 32 bits where it would be as an argument.
    """
    x = check(x)
    if not isinstance(x, Value):
        short = -1 << 31 <= x < 1 << 31
        return lift(0 if shift and short else (x >> shift) & 0xFFFFFFFF, uint32)
    if shift and x.dtype.bits <= 32:
        return lift(0, uint32)
    return (x.to(uint64) >> shift).to(uint32) if x.dtype.bits > 32 else x.to(uint32)


def philox(seed: Operand, offset: Operand) -> tuple[Value, Value, Value, Value]:
    """Four uint32 tiles of random bits for a seed and an offset (tile or scalar), integers of 64
    bits, or of 32, which count without their sign.
    """
    c0, c1, k0, k1 = _word(offset), _word(offset, 32), _word(seed), _word(seed, 32)
    c2 = c3 = lift(0, uint32)
    for _ in range(10):
        h0, l0 = apply("mulhi", c0, ROUNDS[0]), c0 * ROUNDS[0]
        h1, l1 = apply("mulhi", c2, ROUNDS[1]), c2 * ROUNDS[1]
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = k0 + KEYS[0], k1 + KEYS[1]
    return c0, c1, c2, c3


def _uniform(bits):
    return (bits >> 8).to(float32) * 2.0**-24


def rand(seed: Operand, offset: Operand) -> Value:
    """Uniform float32 in [0, 1)."""
    return _uniform(philox(seed, offset)[0])


def randint(seed: Operand, offset: Operand) -> Value:
    """Random uint32."""
    return philox(seed, offset)[0]


def randn(seed: Operand, offset: Operand) -> Value:
    """Normal float32 (Box and Muller)."""
    a, b, *_ = philox(seed, offset)
    return sqrt(-2.0 * log(maximum(_uniform(a), 2.0**-25))) * cos(_uniform(b) * (2 * math.pi))
