"""Integers of few bits as two floats of 16 bits: their bits behind those of a power of two, from
which that is taken away.

(p & 15) - 8      prmt.b32 %r, %p0, %p1, 0x5410           two elements in one register, or two
                                                          bytes of packed ones, or of words
                                                          that each is shifted from
                  lop3.b32 %r, %r, 0x000f000f, 0x4300     2^7 + (p & 15)
                  sub.rn.bf16x2 %r, %r, 2^7 + 8

Masks and constants that a register is known to be made with take no instructions of their own.
Otherwise each element is converted to float32, and these to floats of 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Attribute

from tkc.codegen.ptx import halves
from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.integers import LUT, add, divide, mul, narrowed
from tkc.codegen.ptx.provenance import BYTE, Made, bits_of, identity, low_bits, made_with
from tkc.codegen.ptx.values import Tile, to_bits
from tkc.codegen.ptx.writer import Integer
from tkc.ir.ranges import Range
from tkc.ir.types import bf16, f16, is_bool, is_float

DIGITS: dict[Attribute, int] = {bf16: 7, f16: 10}  # behind the leading one
TWICE = 0x10001
LOW_HALVES = 0x5410  # of two registers
UPPER = 0x5410  # added to two bytes' numbers: of two registers, with their second bytes above
BYTES = 0x4140  # the two lowest bytes of a register, as halves


@dataclass(frozen=True)
class Pair:
    """A register with two elements in its halves: those bits of them that the mask leaves are the
    integers less `more`; the bits of `flipped` are the other way round.
    """

    register: str
    mask: int
    more: int
    flipped: int = 0


def pair(
    e: Emitter, held: Tile, i: int, known: Range | None, target: Attribute, into: str | None
) -> Integer | None:
    """The i-th integer of a tile, all of which lie in a range, and the next one, as floats; None
    where these are none of 16 bits, or have too few digits for this.
    """
    digits = DIGITS.get(target)
    if digits is None or is_float(held.element) or is_bool(held.element):
        return None  # booleans are predicates, of which no register holds two
    if known is None or known.hi - known.lo >> digits:
        return None
    found = _packed(e, held, i, known, digits) or _apart(e, held, i, known, digits)
    if found is None:
        return None
    w, behind = e.w, e.w.new()
    mask = w.memo(("mask", found.mask), lambda: w.register(found.mask))
    leading = TWICE * (to_bits(float(1 << digits), target) | found.flipped)
    w.emit(f"lop3.b32 {behind}, {found.register}, {mask}, {leading}, {LUT['xor']}")
    less = TWICE * to_bits(float((1 << digits) - found.more), target)
    return halves.arithmetic(e, "sub", target, [behind, less], into)


def _packed(e: Emitter, held: Tile, i: int, known: Range, digits: int) -> Pair | None:
    """Of elements that share a register, and are in no other."""
    raw, part = held.registers[i // held.pack], i % held.pack
    if held.pack == 1 or not isinstance(raw, str) or (raw, held.element) in e.widened:
        return None
    if held.pack == 4:
        raw = e.w.op("prmt.b32", "b32", raw, 0, BYTES + 0x101 * part)
    return _whole(raw, known, digits)


def _word(e: Emitter, held: Tile, i: int) -> Integer | None:
    """An element as 32 bits, which hold all numbers that a pair may be of; None for a float."""
    x = e.element(held, i)
    return None if isinstance(x, float) else narrowed(e, x)


def _apart(e: Emitter, held: Tile, i: int, known: Range, digits: int) -> Pair | None:
    """Of elements in a register each."""
    x, y = _word(e, held, i), _word(e, held, i + 1)
    if not isinstance(x, str) or not isinstance(y, str):
        return None
    (a, b), whole = (made_with(e, x), made_with(e, y)), (1 << digits) - 1
    more = a.more
    if more == b.more and more <= known.lo and known.hi <= whole + more and abs(more) <= whole:
        low, high = _at_a_byte(e, a, whole), _at_a_byte(e, b, whole)
        return Pair(_both(e, low, high), high.mask << 16 | low.mask, more)
    return _whole(e.w.op("prmt.b32", "b32", x, y, LOW_HALVES), known, digits)


@dataclass(frozen=True)
class _Place:
    """Those bits of a register that a mask leaves, from the byte on that has bit `at`: a number, or
    a register.
    """

    register: str
    at: Integer
    mask: int

    @property
    def is_of_two_bytes(self) -> bool:
        """Whether the mask leaves more than the byte where it begins."""
        return self.mask >> BYTE != 0


def _at_a_byte(e: Emitter, made: Made, whole: int) -> _Place:
    """Where the bits of an integer begin at a byte: of what it was unpacked or shifted from, of
    which one instruction shifts all bytes.
    """
    mask, found = made.mask & whole, bits_of(e, made.source)
    kept = (1 << found.count) - 1 if found is not None else 0
    if found is None or mask & ~kept and not found.exact:
        return _Place(made.source, 0, mask)
    source = found.register
    if by := low_bits(e, found.at).value % BYTE:
        key = "bytes shifted", source, by
        source = e.w.memo(key, lambda: e.w.op("shr.u32", "b32", found.register, by))
    return _Place(source, found.at, mask & kept)


def _both(e: Emitter, low: _Place, high: _Place) -> str:
    """A register with what begins at the two places in its halves."""
    key = "selector", *((identity(e, place.at), place.is_of_two_bytes) for place in (low, high))
    chosen = e.w.memo(key, lambda: _selector(e, low, high))
    return e.w.op("prmt.b32", "b32", low.register, high.register, chosen)


def _selector(e: Emitter, low: _Place, high: _Place) -> Integer:
    """Of prmt: the byte of the first register where a place begins, and that of the second one, as
    the lower ones of halves; above, the bytes behind them, where the places have bits of these.
    """
    first = mul(e, divide(e, low.at, BYTE), 0x11 if low.is_of_two_bytes else 1)
    second = mul(e, divide(e, high.at, BYTE), 0x1100 if high.is_of_two_bytes else 0x100)
    return add(e, add(e, first, second), UPPER)


def _whole(raw: str, known: Range, digits: int) -> Pair | None:
    """Of a register of both."""
    width = max(known.lo, -1 - known.lo, known.hi, -1 - known.hi).bit_length()
    if known.lo >= 0:
        return Pair(raw, TWICE * ((1 << width) - 1), 0) if width <= digits else None
    half = 1 << width
    return Pair(raw, TWICE * (2 * half - 1), -half, half) if width < digits else None
