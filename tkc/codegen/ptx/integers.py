"""Integer arithmetic on addresses, offsets and indices, folded where operands are known."""

from __future__ import annotations

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.provenance import masked_by
from tkc.codegen.ptx.writer import Integer
from tkc.ir.ranges import Range

# (a & b) | c and (a & b) ^ c, as lop3 has them
LUT = {"or": 0xEA, "xor": 0x6A}
LEAST, LARGEST = -(1 << 31), (1 << 31) - 1  # of 32 bits


def is_power_of_two(n: int) -> bool:
    """Whether a positive number is a power of two."""
    return n & n - 1 == 0


def is_narrow(x: Integer) -> bool:
    """Whether an integer is a number or in a 32-bit register."""
    return not isinstance(x, str) or x.startswith("%r")


def register_class(type: str) -> str:
    """ "b64" of "s64"."""
    return "b64" if type[1:] == "64" else "b32"


def add(e: Emitter, a: Integer, b: Integer, type: str = "s32") -> Integer:
    """a + b; of addresses and offsets, which do not wrap."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0 or b == 0:
        return b if a == 0 else a
    if not isinstance(a, str):
        a, b = b, a
    return e.w.op(f"add.{type}", register_class(type), a, b)


def mul(e: Emitter, a: Integer, b: Integer, type: str = "s32") -> Integer:
    """a * b, which does not wrap."""
    if not isinstance(a, str):
        a, b = b, a
    if isinstance(b, str):
        return e.w.op(f"mul.lo.{type}", register_class(type), a, b)
    if isinstance(a, int):
        return a * b
    if b in (0, 1):
        return a if b else 0
    if b > 0 and is_power_of_two(b):
        shift = b.bit_length() - 1
        return e.w.op(f"shl.b{type[1:]}", register_class(type), a, shift, type="u32")
    return e.w.op(f"mul.lo.{type}", register_class(type), a, b)


def divide(e: Emitter, x: Integer, n: int) -> Integer:
    """x // n of a 32-bit number that is not negative."""
    if not isinstance(x, str):
        return x // n
    if n == 1:
        return x
    if is_power_of_two(n):
        return e.w.op("shr.u32", "b32", x, n.bit_length() - 1)
    return e.w.op("div.u32", "b32", x, n)


def remainder(e: Emitter, x: str, n: int, type: str = "s32") -> str:
    """x mod n; for a power of two, of any x."""
    if is_power_of_two(n):
        return e.w.op(f"and.b{type[1:]}", register_class(type), x, n - 1)
    return e.w.op(f"rem.{type}", register_class(type), x, n)


def wide(e: Emitter, x: Integer, unsigned: bool = False) -> Integer:
    """A 32-bit integer in 64 bits."""
    if not isinstance(x, str) or not is_narrow(x):
        return x
    return e.w.op("cvt.u64.u32" if unsigned else "cvt.s64.s32", "b64", x)


def narrowed(e: Emitter, x: Integer) -> Integer:
    """A 64-bit integer that is known to fit as 32 bits."""
    return e.w.op("cvt.u32.u64", "b32", x) if isinstance(x, str) and x.startswith("%d") else x


def saturated(e: Emitter, x: Integer, known: Range | None = None) -> Integer:
    """An integer, of range `known`, as the nearest of 32 bits."""
    if not isinstance(x, str):
        return min(max(x, LEAST), LARGEST)
    if is_narrow(x):
        return x
    if known is None or known.lo < LEAST:
        x = e.w.op("max.s64", "b64", x, LEAST)
    if known is None or known.hi > LARGEST:
        x = e.w.op("min.s64", "b64", x, LARGEST)
    return narrowed(e, x)


def displaced(
    e: Emitter, base: Integer, index: Integer, scale: Integer, bytes: int = 1, near: bool = False
) -> Integer:
    """base + index * scale * bytes: base 64 bits, index 32 or 64 (signed), scale 64 bits or a
    number. near: 32 bits hold scale * bytes, or index is 0.
    """
    w = e.w
    if not isinstance(index, str):
        if not isinstance(scale, str):
            return add(e, base, index * scale * bytes, "s64")
        return add(e, base, mul(e, scale, index * bytes, "s64"), "s64")
    if isinstance(scale, str):
        if near and isinstance(base, str) and is_narrow(index):
            step = w.op("cvt.u32.u64", "b32", scale)
            if bytes > 1:
                step = w.op("shl.b32", "b32", step, bytes.bit_length() - 1)
            return w.op("mad.wide.s32", "b64", index, step, base)
        in_bytes = mul(e, scale, bytes, "s64")
        return w.op("mad.lo.s64", "b64", wide(e, index), in_bytes, base)
    distance = scale * bytes
    if distance == 0:
        return base
    if is_narrow(index) and abs(distance) < 1 << 31 and isinstance(base, str):
        return w.op("mad.wide.s32", "b64", index, distance, base)
    return add(e, base, mul(e, wide(e, index), distance, "s64"), "s64")


def bitwise(
    e: Emitter, name: str, a: Integer, b: Integer, width: int = 32, into: str | None = None
) -> str:
    """a & b, a | b or a ^ b of which one at least is in a register. What joins constant bits to
    masked ones is one instruction: an assembler makes two of two constants that are immediate.
    """
    if not isinstance(a, str):
        a, b = b, a
    w, lasts = e.w, width == 32 and not isinstance(b, str)
    found = masked_by(e, a) if lasts and name in LUT and isinstance(a, str) else None
    if found is not None and found[1] != b:
        source, mask = found
        held = w.memo(("mask", mask), lambda: w.register(mask))
        result = into or w.new()
        w.emit(f"lop3.b32 {result}, {source}, {held}, {b}, {LUT[name]}")
        return result
    return w.op(f"{name}.b{width}", f"b{width}", a, b, into=into)


def quotient_by_constant(e: Emitter, a: Integer, b: int) -> str:
    """a // b for 0 <= a < 2^31 and b > 1, which is no power of two: a product with 2^n / b, rounded
    up, and a shift. Left to them, assemblers go by way of floats.
    """
    n = 31 + b.bit_length()
    high = e.w.op("mul.hi.u32", "b32", a, -(-(1 << n) // b))
    return e.w.op("shr.u32", "b32", high, n - 32)
