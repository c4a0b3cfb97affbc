"""How a 32-bit register was made of another one and constants, as far as the writer wrote it: what
reads a few of its bits may read them where they come from, and leave out what was done between.

    p & 15, added to -8             (p & 15) - 8
    prmt.b32 %r1, %r0, 0, 0x4442    bits 16 to 23 of %r0
    shr.s32 %r2, %r0, %r1           from bit %r1 of %r0 on

Registers that a loop writes again (`Emitter.coalesced`) are nobody's source.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.writer import Integer

WORD = 32
BYTE = 8
ZERO_EXTENDED = 0x4440  # the selector of prmt that takes a byte of the first operand


@dataclass(frozen=True)
class Made:
    """A register as (source & mask) + more."""

    source: str
    mask: int
    more: int


@dataclass(frozen=True)
class Bits:
    """So many bits of a register, from bit `at` on, a number or a register; what is behind them
    does not count where they are not `exact`, and is zero where they are.
    """

    register: str
    at: Integer
    count: int
    exact: bool


@dataclass(frozen=True)
class LowBits:
    """A register whose lowest bits are known, and which is not negative and at most `most`."""

    count: int
    value: int
    most: int


def made_with(e: Emitter, x: str) -> Made:
    """How a 32-bit register was made of another one and constants, where that is known."""
    more = 0
    match _made(e, x):
        case "add.s32" | "add.u32", str() as source, int() as term:
            x, more = source, term
        case "sub.s32" | "sub.u32", str() as source, int() as term:
            x, more = source, -term
    masked = masked_by(e, x)
    return Made(x, -1, more) if masked is None else Made(*masked, more)


def masked_by(e: Emitter, x: str) -> tuple[str, int] | None:
    """The register and the constant of whose bits a register has those that both have; None where
    it was not made so.
    """
    match _made(e, x):
        case "and.b32", str() as source, int() as mask:
            return source, mask
    return None


def bits_of(e: Emitter, x: str) -> Bits | None:
    """Which bits of another register a register has; None where it is not known to have any."""
    match _made(e, x):
        case "prmt.b32", str() as source, 0, int() as chosen if chosen & ~3 == ZERO_EXTENDED:
            return Bits(source, chosen % 4 * BYTE, BYTE, exact=True)
        case "shr.u32" | "shr.s32" as name, str() as source, int() as by if 0 <= by < WORD:
            before = bits_of(e, source) if name == "shr.u32" else None
            if before is None:
                return Bits(source, by, WORD - by, exact=name == "shr.u32")
            if isinstance(before.at, int) and by < before.count:
                return Bits(before.register, before.at + by, before.count - by, before.exact)
        case "shr.u32" | "shr.s32", str() as source, str() as by:
            known = low_bits(e, by)
            if known.most < WORD and known.count >= 3:
                return Bits(source, by, BYTE - known.value % BYTE, exact=False)
    return None


def low_bits(e: Emitter, x: Integer, steps: int = 8) -> LowBits:
    """What is known of a register's lowest bits, and of how large it is, from so many instructions
    before.
    """
    whole = (1 << WORD) - 1
    if not isinstance(x, str):
        return LowBits(WORD, x & whole, x & whole)
    match _made(e, x) if steps else ():
        case "shl.b32", str() as source, int() as by if 0 <= by < WORD:
            known = low_bits(e, source, steps - 1)
            most = known.most << by
            return LowBits(known.count + by, known.value << by, min(most, whole))
        case "and.b32", str() as source, int() as mask:
            known, mask = low_bits(e, source, steps - 1), mask & whole
            zeros = (mask & -mask).bit_length() - 1 if mask else WORD
            count = max(known.count, zeros)
            return LowBits(count, known.value & mask & (1 << count) - 1, min(known.most, mask))
        case "add.s32" | "add.u32", str() as source, (int() | str()) as term:
            known, other = (low_bits(e, v, steps - 1) for v in (source, term))
            count = min(known.count, other.count)
            most = known.most + other.most
            value = (known.value + other.value) % (1 << count)
            return LowBits(count, value, most if most <= whole else whole)
    return LowBits(0, 0, whole)


def identity(e: Emitter, x: Integer, steps: int = 4) -> Hashable:
    """What is the same of registers that are known to hold the same number."""
    match _made(e, x) if steps and isinstance(x, str) else ():
        case "shl.b32", str() as source, int() as by:
            return "shl", identity(e, source, steps - 1), by
        case "and.b32", str() as source, int() as mask if mask & mask + 1 == 0 <= mask:
            made = made_with(e, source)
            term, of = (made.more, made.source) if made.mask == -1 else (0, source)
            return "and", of, term & mask, mask
    return x


def _made(e: Emitter, x: str) -> tuple[Integer, ...]:
    """The instruction that made a register and its operands; nothing where one of them may have
    changed since.
    """
    name, *operands = e.w.made.get(x, ("",))
    return () if not e.coalesced.isdisjoint(operands) else (name, *operands)
