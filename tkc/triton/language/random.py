"""Counter-based random numbers: Philox of 32 and 64 bits, with Triton's bits and floats."""

from __future__ import annotations

from typing import Any

from tkc.language.tracer import fail
from tkc.triton.language import types
from tkc.triton.language.constants import constexpr, tuple_, unwrap
from tkc.triton.language.creation import where
from tkc.triton.language.mathematics import cos, log, maximum, sin, sqrt, umulhi
from tkc.triton.language.types import dtype
from tkc.triton.language.values import Operand, cast, tensor, to_tensor

N_ROUNDS_DEFAULT = constexpr(10)
# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3": keys and multipliers by width
KEYS = {32: (0x9E3779B9, 0xBB67AE85), 64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}
ROUNDS = {32: (0xD2511F53, 0xCD9E8D57), 64: (0xD2E7470EE14C6C93, 0xCA5A826395121157)}


def philox_impl(
    c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: Any = N_ROUNDS_DEFAULT
) -> tuple_:
    """Rounds of Philox on a state of four words and a key of two."""
    width = c0.dtype.primitive_bitwidth
    if not c0.dtype.is_int_unsigned() or width not in KEYS:
        fail(f"Philox works on uint32 or uint64, got {c0.dtype}")
    a, b = ROUNDS[width]
    for _ in range(unwrap(n_rounds)):
        c0, c1, c2, c3 = (
            umulhi(_word(b, width), c2) ^ c1 ^ k0,
            c2 * b,
            umulhi(_word(a, width), c0) ^ c3 ^ k1,
            c0 * a,
        )
        k0, k1 = k0 + KEYS[width][0], k1 + KEYS[width][1]
    return tuple_((c0, c1, c2, c3))


def _word(x: int, width: int) -> tensor:
    return cast(to_tensor(x), dtype(f"uint{width}"))


def philox(
    seed: Operand, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: Any = N_ROUNDS_DEFAULT
) -> tuple_:
    """Four blocks of random bits of a seed and four counters, of 32 or 64 bits."""
    key = to_tensor(seed)
    if not key.dtype.is_int():
        fail(f"a seed is an integer, got {key.dtype}")
    key = cast(key, types.uint64)
    counters = [to_tensor(c) for c in (c0, c1, c2, c3)]
    width = counters[0].dtype.primitive_bitwidth
    if width not in KEYS:
        fail(f"Philox counts in 32 or 64 bits, got {counters[0].dtype}")
    if width == 32:
        low, high = (cast(key & 0xFFFFFFFF, types.uint32), cast(key >> 32, types.uint32))
    else:
        low, high = key, cast(to_tensor(0), types.uint64)
    word = dtype(f"uint{width}")
    a, b, c, d = (cast(x, word, bitcast=True) for x in counters)
    return philox_impl(a, b, c, d, low, high, n_rounds)


def randint4x(seed: Operand, offset: Operand, n_rounds: Any = N_ROUNDS_DEFAULT) -> tuple_:
    """Four blocks of random uint32 of a seed and a block of offsets."""
    at = to_tensor(offset)
    low = cast(at, types.uint32)
    zero = low * 0
    wide = at.dtype.primitive_bitwidth > 32
    high = cast(at >> 32, types.uint32) if wide else zero
    return philox(seed, low, high, zero, zero, n_rounds)


def randint(seed: Operand, offset: Operand, n_rounds: Any = N_ROUNDS_DEFAULT) -> tensor:
    """A block of random uint32."""
    return randint4x(seed, offset, n_rounds)[0]


def uint_to_uniform_float(x: Operand) -> tensor:
    """Random bits as a float in [0, 1)."""
    bits = to_tensor(x)
    width = bits.dtype.primitive_bitwidth
    if not bits.dtype.is_int() or width not in KEYS:
        fail(f"random bits are integers of 32 or 64 bits, got {bits.dtype}")
    # the largest factor with which the largest integer stays below 1
    scale = 4.6566127342e-10 if width == 32 else 1.0842020432385337e-19
    signed = cast(bits, dtype(f"int{width}"), bitcast=True)
    return where(signed < 0, -signed - 1, signed) * scale


def rand(seed: Operand, offset: Operand, n_rounds: Any = N_ROUNDS_DEFAULT) -> tensor:
    """Uniform float32 in [0, 1)."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


def rand4x(seed: Operand, offsets: Operand, n_rounds: Any = N_ROUNDS_DEFAULT) -> tuple_:
    """Four blocks of uniform float32."""
    return tuple_(map(uint_to_uniform_float, randint4x(seed, offsets, n_rounds)))


def pair_uniform_to_normal(u1: Operand, u2: Operand) -> tuple_:
    """Two normal numbers of two uniform ones (Box and Muller)."""
    first = maximum(1.0e-7, u1)
    angle = 6.283185307179586 * to_tensor(u2)
    radius = sqrt(-2.0 * log(first))
    return tuple_((radius * cos(angle), radius * sin(angle)))


def randn(seed: Operand, offset: Operand, n_rounds: Any = N_ROUNDS_DEFAULT) -> tensor:
    """Normal float32."""
    first, second, _, _ = rand4x(seed, offset, n_rounds)
    return pair_uniform_to_normal(first, second)[0]


def randn4x(seed: Operand, offset: Operand, n_rounds: Any = N_ROUNDS_DEFAULT) -> tuple_:
    """Four blocks of normal float32."""
    u1, u2, u3, u4 = rand4x(seed, offset, n_rounds)
    return pair_uniform_to_normal(u1, u2) + pair_uniform_to_normal(u3, u4)
