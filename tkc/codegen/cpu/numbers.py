"""Element types on the CPU: how each is held in a register, stored in memory, and converted.

float16, bfloat16 and float8 are *held* as float32 whose value the short type has exactly, so that
arithmetic is float32 arithmetic followed by one rounding; `rounded` rounds in place, `pack` and
`unpack` go to and from memory. A truth value is held as i1 and stored in a byte. Every function
takes `w`, the number of lanes.
"""

from __future__ import annotations

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float64Type,
)
from xdsl.ir import Attribute

from tkc.codegen.cpu.emit import Function, suffix, vec
from tkc.codegen.cpu.maths import Floats, Integers
from tkc.ir.types import PointerType, bits, is_bool, is_float, is_unsigned

FLOAT8 = (Float8E4M3FNType, Float8E5M2Type)
# bits of float32
INFINITY, QUIET_NAN = 0x7F800000, 0x7FC00000
MAGNITUDE = 0x7FFFFFFF
E4M3_NAN = 0x7F


def held(t: Attribute) -> str:
    """The LLVM type of a value in a register."""
    if isinstance(t, PointerType):
        return "ptr"
    if isinstance(t, Float64Type):
        return "double"
    if is_float(t):
        return "float"
    return "i1" if is_bool(t) else f"i{bits(t)}"


def stored(t: Attribute) -> str:
    """The LLVM type of a value in memory."""
    match t:
        case Float16Type():
            return "half"
        case BFloat16Type():
            return "i16"
        case Float8E4M3FNType() | Float8E5M2Type():
            return "i8"
        case _:
            return "i8" if is_bool(t) else held(t)


def size(t: Attribute) -> int:
    """Bytes of an element in memory."""
    return bits(t) // 8


def is_short(t: Attribute) -> bool:
    """Whether a type is held as float32 and has fewer bits."""
    return isinstance(t, (Float16Type, BFloat16Type, *FLOAT8))


def unpack(f: Function, t: Attribute, x: str, w: int) -> str:
    """Memory to register."""
    i = Integers(f, w)
    match t:
        case Float16Type():
            return f.cast("fpext", "half", x, "float", w)
        case BFloat16Type():
            return i.float_of(i.op("shl", f.cast("zext", "i16", x, "i32", w), 16))
        case Float8E5M2Type():
            h = Integers(f, w, 16)
            half = h.float_of(h.op("shl", f.cast("zext", "i8", x, "i16", w), 8), "half")
            return f.cast("fpext", "half", half, "float", w)
        case Float8E4M3FNType():
            wide = f.cast("zext", "i8", x, "i32", w)
            magnitude = i.op("and", wide, E4M3_NAN)
            value = Floats(f, w).mul(i.float_of(i.op("shl", magnitude, 20)), 2.0**120)
            value = i.pick(i.test("eq", magnitude, E4M3_NAN), QUIET_NAN, i.bits_of(value))
            sign = i.op("shl", i.op("and", wide, 0x80), 24)
            return i.float_of(i.op("or", value, sign))
    return Integers(f, w, 8).test("ne", x, 0) if is_bool(t) else x


def pack(f: Function, t: Attribute, x: str, w: int) -> str:
    """Register to memory; a short float is already rounded, so this is exact."""
    i, m = Integers(f, w), Floats(f, w)
    match t:
        case Float16Type():
            return f.cast("fptrunc", "float", x, "half", w)
        case BFloat16Type():
            return f.cast("trunc", "i32", i.op("lshr", i.bits_of(x), 16), "i16", w)
        case Float8E5M2Type():
            h = Integers(f, w, 16)
            half = h.bits_of(f.cast("fptrunc", "float", x, "half", w), "half")
            return f.cast("trunc", "i16", h.op("lshr", half, 8), "i8", w)
        case Float8E4M3FNType():
            word = i.bits_of(x)
            value = m.mul(i.float_of(i.op("and", word, MAGNITUDE)), 2.0**-120)
            magnitude = i.pick(m.is_nan(x), E4M3_NAN, i.op("lshr", i.bits_of(value), 20))
            sign = i.op("and", i.op("lshr", word, 24), 0x80)
            return f.cast("trunc", "i32", i.op("or", magnitude, sign), "i8", w)
    return f.cast("zext", "i1", x, "i8", w) if is_bool(t) else x


def rounded(f: Function, t: Attribute, x: str, w: int) -> str:
    """A float32 rounded to the nearest value of a short type (ties to even); float8 saturates, NaN
    stays.
    """
    match t:
        case Float16Type():
            return f.cast("fpext", "half", f.cast("fptrunc", "float", x, "half", w), "float", w)
        case BFloat16Type():
            return _round_bits(f, x, 16, w)
        case Float8E4M3FNType():
            return _round_float8(f, x, 20, 448.0, 2.0**-6, 2.0**14, w)
        case Float8E5M2Type():
            return _round_float8(f, x, 21, 57344.0, 2.0**-14, 2.0**7, w)
    return x


def _round_float8(
    f: Function, x: str, dropped: int, largest: float, smallest: float, magic: float, w: int
) -> str:
    """A float8 that drops so many bits of the mantissa, by its largest and its smallest normal
    number; a sum with `magic` has the last bit of subnormal ones.
    """
    m = Floats(f, w)
    magnitude = m.call("fabs", x)
    normal = _round_bits(f, magnitude, dropped, w)
    tiny = m.sub(m.add(magnitude, magic), magic)
    near = m.pick(m.test("olt", magnitude, smallest), tiny, normal)
    near = m.pick(m.test("ogt", near, largest), largest, near)
    return m.call("copysign", near, x)


def _round_bits(f: Function, x: str, dropped: int, w: int) -> str:
    """Nearest even at `dropped` bits of the mantissa, in integer arithmetic (exact for subnormals,
    unlike vcvtneps2bf16).
    """
    i = Integers(f, w)
    word, kept = i.bits_of(x), -1 << dropped
    odd = i.op("and", i.op("lshr", word, dropped), 1)
    up = i.op("add", i.op("add", word, (1 << dropped - 1) - 1), odd)
    quiet = i.op("or", i.op("and", word, kept), QUIET_NAN)
    return i.float_of(i.pick(Floats(f, w).is_nan(x), quiet, i.op("and", up, kept)))


def tf32(f: Function, x: str, w: int) -> str:
    """float32 with 10 bits of mantissa, to nearest, ties away from 0; infinities and NaN stay."""
    i = Integers(f, w)
    word = i.bits_of(x)
    near = i.op("and", i.op("add", word, 0x1000), -0x2000)
    special = i.test("uge", i.op("and", word, MAGNITUDE), INFINITY)
    return i.float_of(i.pick(special, word, near))


def convert(f: Function, a: Attribute, x: str, b: Attribute, w: int) -> str:
    """By value, as tile.cast: held a to held b."""
    if a == b:
        return rounded(f, b, x, w) if isinstance(b, FLOAT8) else x  # an infinity saturates
    if is_bool(b):
        if is_float(a):
            return Floats(f, w, held(a)).test("une", x, 0.0)
        return Integers(f, w, bits(a)).test("ne", x, 0)
    if is_float(b):
        return _to_float(f, a, x, b, w)
    source, target = held(a), held(b)
    if is_float(a):
        name = f"llvm.{'fptoui' if is_unsigned(b) else 'fptosi'}.sat"
        name = f"{name}.{suffix(target, w)}.{suffix(source, w)}"
        return f.call(name, vec(target, w), (vec(source, w), x))
    if bits(a) > bits(b):
        return f.cast("trunc", source, x, target, w)
    return f.cast("zext" if is_unsigned(a) or is_bool(a) else "sext", source, x, target, w)


def _to_float(f: Function, a: Attribute, x: str, b: Attribute, w: int) -> str:
    source, target = held(a), held(b)
    if not is_float(a):
        opcode = "uitofp" if is_unsigned(a) or is_bool(a) else "sitofp"
        if is_short(b) and not is_bool(a) and bits(a) >= 32:
            x, source = f.cast(opcode, source, _leading_bits(f, a, x, w), "double", w), "double"
            return rounded(f, b, _to_odd(f, x, w), w)
    elif source == "double" and is_short(b):
        return rounded(f, b, _to_odd(f, x, w), w)
    else:
        opcode = "fptrunc" if source == "double" else "fpext"
    return rounded(f, b, f.cast(opcode, source, x, target, w), w)


def _leading_bits(f: Function, a: Attribute, x: str, w: int) -> str:
    """An integer that float64 holds: where this one has too many bits its leading ones, of which
    the last is set where others were cut off.
    """
    if bits(a) < 64:
        return x
    i, shift = Integers(f, w, 64), "lshr" if is_unsigned(a) else "ashr"
    is_long = i.test("ne", i.op(shift, x, 53), i.op(shift, x, 63))
    kept = i.op("and", x, -1 << 11)
    odd = i.op("or", kept, i.pick(i.test("ne", x, kept), 1 << 11, 0))
    return i.pick(is_long, odd, x)


def _to_odd(f: Function, x: str, w: int) -> str:
    """float64 to float32 such that a second rounding gives what one rounding would: an inexact
    result gets an odd last bit.
    """
    i, d = Integers(f, w), Floats(f, w, "double")
    near = f.cast("fptrunc", "double", x, "float", w)
    back, word = f.cast("fpext", "float", near, "double", w), i.bits_of(near)
    magnitude = d.call("fabs", x)
    over = d.test("ogt", d.call("fabs", back), magnitude)
    odd = i.op("or", i.pick(over, i.op("sub", word, 1), word), 1)
    finite = d.test("one", magnitude, float("inf"))
    inexact = d.both(d.test("one", back, x), finite)
    return i.float_of(i.pick(inexact, odd, word))


def bitcast(f: Function, a: Attribute, x: str, b: Attribute, w: int) -> str:
    """By bits, as tile.bitcast."""
    source, target = stored(a), stored(b)
    opcode = "inttoptr" if target == "ptr" else "bitcast"
    opcode = "ptrtoint" if source == "ptr" else opcode
    return unpack(f, b, f.cast(opcode, source, pack(f, a, x, w), target, w), w)
