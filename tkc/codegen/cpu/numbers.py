"""Element types on the CPU: how each is held in a register, stored in memory, and converted.

float16, bfloat16 and float8 are *held* as float32 whose value the short type has exactly, so that
arithmetic is float32
arithmetic followed by one rounding; `rounded` rounds in place, `pack` and `unpack` go to and from memory.  A truth value
is held as i1 and stored in a byte.  Every function takes `w`, the number of lanes.
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

from tkc.codegen.cpu.emit import Function, constant, suffix, vec
from tkc.ir.types import PointerType, bits, is_bool, is_float, is_unsigned

FLOAT8 = (Float8E4M3FNType, Float8E5M2Type)


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
    return bits(t) // 8


def is_short(t: Attribute) -> bool:
    return isinstance(t, (Float16Type, BFloat16Type, *FLOAT8))


def unpack(f: Function, t: Attribute, x: str, w: int) -> str:
    """Memory to register."""
    match t:
        case Float16Type():
            return f.emit(f"fpext {vec('half', w)} {x} to {vec('float', w)}")
        case BFloat16Type():
            wide = f.emit(f"zext {vec('i16', w)} {x} to {vec('i32', w)}")
            return _cast(
                f,
                "bitcast",
                "i32",
                f.op("shl", vec("i32", w), wide, constant("i32", 16, w)),
                "float",
                w,
            )
        case Float8E5M2Type():
            wide = f.emit(f"zext {vec('i8', w)} {x} to {vec('i16', w)}")
            half = _cast(
                f,
                "bitcast",
                "i16",
                f.op("shl", vec("i16", w), wide, constant("i16", 8, w)),
                "half",
                w,
            )
            return _cast(f, "fpext", "half", half, "float", w)
        case Float8E4M3FNType():
            wide = f.emit(f"zext {vec('i8', w)} {x} to {vec('i32', w)}")
            i, k = vec("i32", w), lambda n: constant("i32", n, w)
            size_ = f.op("and", i, wide, k(0x7F))
            value = _cast(f, "bitcast", "i32", f.op("shl", i, size_, k(20)), "float", w)
            scaled = _cast(
                f,
                "bitcast",
                "float",
                f.op("fmul", vec("float", w), value, constant("float", 2.0**120, w)),
                "i32",
                w,
            )
            finite = f.select(
                f.emit(f"icmp eq {i} {size_}, {k(0x7F)}"), i, k(0x7FC00000), scaled, w
            )
            return _cast(
                f,
                "bitcast",
                "i32",
                f.op("or", i, finite, f.op("shl", i, f.op("and", i, wide, k(0x80)), k(24))),
                "float",
                w,
            )
    return (
        f.emit(
            f"icmp ne {vec('i8', w)} {x}, {constant('i8', 0, w) if w == 1 else 'zeroinitializer'}"
        )
        if is_bool(t)
        else x
    )


def pack(f: Function, t: Attribute, x: str, w: int) -> str:
    """Register to memory; a short float is already rounded, so this is exact."""
    i, k = vec("i32", w), lambda n: constant("i32", n, w)
    match t:
        case Float16Type():
            return _cast(f, "fptrunc", "float", x, "half", w)
        case BFloat16Type():
            return f.emit(
                f"trunc {i} {f.op('lshr', i, _cast(f, 'bitcast', 'float', x, 'i32', w), k(16))} to"
                f" {vec('i16', w)}"
            )
        case Float8E5M2Type():
            half = _cast(f, "bitcast", "half", _cast(f, "fptrunc", "float", x, "half", w), "i16", w)
            return f.emit(
                f"trunc {vec('i16', w)} {f.op('lshr', vec('i16', w), half, constant('i16', 8, w))}"
                f" to {vec('i8', w)}"
            )
        case Float8E4M3FNType():
            word = _cast(f, "bitcast", "float", x, "i32", w)
            value = _cast(f, "bitcast", "i32", f.op("and", i, word, k(0x7FFFFFFF)), "float", w)
            small = _cast(
                f,
                "bitcast",
                "float",
                f.op("fmul", vec("float", w), value, constant("float", 2.0**-120, w)),
                "i32",
                w,
            )
            size_ = f.op("lshr", i, small, k(20))
            size_ = f.select(f.emit(f"fcmp uno {vec('float', w)} {x}, {x}"), i, k(0x7F), size_, w)
            sign = f.op("and", i, f.op("lshr", i, word, k(24)), k(0x80))
            return f.emit(f"trunc {i} {f.op('or', i, size_, sign)} to {vec('i8', w)}")
    return f.emit(f"zext {vec('i1', w)} {x} to {vec('i8', w)}") if is_bool(t) else x


def rounded(f: Function, t: Attribute, x: str, w: int) -> str:
    """A float32 rounded to the nearest value of a short type (ties to even); float8 saturates, NaN
    stays.
    """
    F = vec("float", w)
    match t:
        case Float16Type():
            return _cast(f, "fpext", "half", _cast(f, "fptrunc", "float", x, "half", w), "float", w)
        case BFloat16Type():
            return _round_bits(f, x, 16, w)
        case Float8E4M3FNType() | Float8E5M2Type():
            e4m3 = isinstance(t, Float8E4M3FNType)
            dropped, largest, smallest, magic = (
                (20, 448.0, 2.0**-6, 2.0**14) if e4m3 else (21, 57344.0, 2.0**-14, 2.0**7)
            )
            size_ = f.call(f"llvm.fabs.{suffix('float', w)}", F, (F, x))
            normal = _round_bits(f, size_, dropped, w)
            tiny = f.op(
                "fsub",
                F,
                f.op("fadd", F, size_, constant("float", magic, w)),
                constant("float", magic, w),
            )
            near = f.select(
                f.emit(f"fcmp olt {F} {size_}, {constant('float', smallest, w)}"),
                F,
                tiny,
                normal,
                w,
            )
            near = f.select(
                f.emit(f"fcmp ogt {F} {near}, {constant('float', largest, w)}"),
                F,
                constant("float", largest, w),
                near,
                w,
            )
            return f.call(f"llvm.copysign.{suffix('float', w)}", F, (F, near), (F, x))
    return x


def _round_bits(f: Function, x: str, dropped: int, w: int) -> str:
    """Nearest even at `dropped` bits of the mantissa, in integer arithmetic (exact for subnormals,
    unlike vcvtneps2bf16).
    """
    i, F, k = vec("i32", w), vec("float", w), lambda n: constant("i32", n, w)
    word = _cast(f, "bitcast", "float", x, "i32", w)
    odd = f.op("and", i, f.op("lshr", i, word, k(dropped)), k(1))
    up = f.op("add", i, f.op("add", i, word, k((1 << dropped - 1) - 1)), odd)
    near = f.op("and", i, up, k(-1 << dropped))
    quiet = f.op("or", i, f.op("and", i, word, k(-1 << dropped)), k(0x7FC00000))
    return _cast(
        f,
        "bitcast",
        "i32",
        f.select(f.emit(f"fcmp uno {F} {x}, {x}"), i, quiet, near, w),
        "float",
        w,
    )


def tf32(f: Function, x: str, w: int) -> str:
    """float32 with 10 bits of mantissa, to nearest, ties away from zero; infinities and NaN stay."""
    i, k = vec("i32", w), lambda n: constant("i32", n, w)
    word = _cast(f, "bitcast", "float", x, "i32", w)
    near = f.op("and", i, f.op("add", i, word, k(0x1000)), k(-0x2000))
    special = f.emit(f"icmp uge {i} {f.op('and', i, word, k(0x7FFFFFFF))}, {k(0x7F800000)}")
    return _cast(f, "bitcast", "i32", f.select(special, i, word, near, w), "float", w)


def _cast(f: Function, opcode: str, a: str, x: str, b: str, w: int) -> str:
    return x if a == b else f.emit(f"{opcode} {vec(a, w)} {x} to {vec(b, w)}")


def convert(f: Function, a: Attribute, x: str, b: Attribute, w: int) -> str:
    """By value, as tile.cast: held a to held b."""
    A, B = held(a), held(b)
    if a == b:
        return rounded(f, b, x, w) if isinstance(b, FLOAT8) else x  # an infinity saturates
    if is_bool(b):
        zero = "zeroinitializer" if w > 1 else constant(A, 0)
        return (
            f.emit(f"fcmp une {vec(A, w)} {x}, {zero}")
            if is_float(a)
            else f.emit(f"icmp ne {vec(A, w)} {x}, {zero}")
        )
    if is_float(a) and is_float(b):
        if A == "double" and isinstance(b, (Float16Type, *FLOAT8)):
            return rounded(f, b, _to_odd(f, x, w), w)
        return rounded(f, b, _cast(f, "fptrunc" if A == "double" else "fpext", A, x, B, w), w)
    if is_float(a):
        kind = "fptoui" if is_unsigned(b) else "fptosi"
        return f.call(f"llvm.{kind}.sat.{suffix(B, w)}.{suffix(A, w)}", vec(B, w), (vec(A, w), x))
    unsigned = is_unsigned(a) or is_bool(a)
    if is_float(b):
        return rounded(f, b, _cast(f, "uitofp" if unsigned else "sitofp", A, x, B, w), w)
    if A == B:
        return x
    if int(A[1:]) > int(B[1:]):
        return _cast(f, "trunc", A, x, B, w)
    return _cast(f, "zext" if unsigned else "sext", A, x, B, w)


def _to_odd(f: Function, x: str, w: int) -> str:
    """float64 to float32 such that a second rounding gives what one rounding would: an inexact
    result gets an odd last bit.
    """
    D, F, i = vec("double", w), vec("float", w), vec("i32", w)
    near = f.emit(f"fptrunc {D} {x} to {F}")
    back = f.emit(f"fpext {F} {near} to {D}")
    word = _cast(f, "bitcast", "float", near, "i32", w)

    def fabs(v):
        return f.call(f"llvm.fabs.{suffix('double', w)}", D, (D, v))

    over = f.emit(f"fcmp ogt {D} {fabs(back)}, {fabs(x)}")
    down = f.select(over, i, f.op("sub", i, word, constant("i32", 1, w)), word, w)
    odd = f.op("or", i, down, constant("i32", 1, w))
    inexact = f.emit(f"fcmp one {D} {back}, {x}")
    finite = f.emit(f"fcmp one {D} {fabs(x)}, {constant('double', float('inf'), w)}")
    inexact = f.op("and", vec("i1", w), inexact, finite)
    return _cast(f, "bitcast", "i32", f.select(inexact, i, odd, word, w), "float", w)


def bitcast(f: Function, a: Attribute, x: str, b: Attribute, w: int) -> str:
    """By bits, as tile.bitcast."""
    A, B = stored(a), stored(b)
    x = pack(f, a, x, w)
    if A != B:
        x = _cast(
            f, "ptrtoint" if A == "ptr" else "inttoptr" if B == "ptr" else "bitcast", A, x, B, w
        )
    return unpack(f, b, x, w)
