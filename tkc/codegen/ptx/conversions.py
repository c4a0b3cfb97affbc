"""Between element types: narrow elements in and out of 32-bit registers, and tile.cast.

    widen    part p of a register of packed elements -> 32 bits (integers extended, floats as float32)
    narrow   1, 2 or 4 widened elements -> one register, rounding to nearest even
    cast     a widened element of one type -> of another (narrow results not yet rounded or wrapped: `normal` or `narrow` does)

float8 has instructions from sm_89 on; before, float8.py makes its bits a float32's and back, with
the same results.
"""

from __future__ import annotations

from xdsl.ir import Attribute

from tkc.codegen.ptx import float8
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.values import Tile, compute_class, compute_type, rounded, to_bits, wrapped
from tkc.codegen.ptx.writer import Operand
from tkc.ir import elementwise as ew
from tkc.ir.types import (
    TileType,
    bf16,
    bits,
    element_of,
    f8e4m3,
    f8e5m2,
    is_bool,
    is_float,
    is_unsigned,
)

_FP8 = {f8e4m3: "e4m3", f8e5m2: "e5m2"}


def has_fp8(e: Emitter) -> bool:
    """Whether the target converts float8; what it asks of the assembler is noted."""
    if e.target.fp8:
        e.need("8.1" if e.target.capability == 89 else "7.8")
    return e.target.fp8


def widen(e: Emitter, raw: str, element: Attribute, part: int = 0) -> str:
    w = e.w
    if not is_float(element):
        low = part * bits(element) // 8
        if is_unsigned(element):
            selector = 0x4440 | low if bits(element) == 8 else 0x4400 | low + 1 << 4 | low
        else:
            selector = (
                0x888 + 0x111 * low << 4 | low
                if bits(element) == 8
                else 0x88 + 0x11 * (low + 1) << 8 | low + 1 << 4 | low
            )
        return w.op("prmt.b32", "b32", raw, 0, selector)
    if element == bf16:
        return w.op("and.b32", "b32", raw, -65536) if part else w.op("shl.b32", "b32", raw, 16)
    if element in _FP8 and not has_fp8(e):
        return float8.widen(w, raw, element, part)
    half = w.many("b16", 2)
    if element in _FP8:
        w.emit(f"mov.b32 {{{half[0]}, {half[1]}}}, {raw}")
        raw, part, half = (
            w.op(f"cvt.rn.f16x2.{_FP8[element]}x2", "b32", half[part // 2]),
            part % 2,
            w.many("b16", 2),
        )
    w.emit(f"mov.b32 {{{half[0]}, {half[1]}}}, {raw}")
    return w.op("cvt.f32.f16", "b32", half[part])


def halves(e: Emitter, raw: str, element: Attribute, part: int, into: str | None = None) -> str:
    """The lower or upper two float8 of a register as two float16, which hold them exactly: one
    instruction, where each by way of float32 takes three.
    """
    half = e.w.many("b16", 2)
    e.w.emit(f"mov.b32 {{{half[0]}, {half[1]}}}, {raw}")
    return e.w.op(f"cvt.rn.f16x2.{_FP8[element]}x2", "b32", half[part], into=into)


def narrow(
    e: Emitter, elements: list[Operand], element: Attribute, into: str | None = None
) -> Operand:
    w = e.w
    if not any(isinstance(x, str) for x in elements):
        raw = (
            sum(to_bits(x, element) << i * bits(element) for i, x in enumerate(elements))
            if not is_bool(element)
            else bool(elements[0])
        )
        if into:
            w.move(into, raw)
        return into or raw
    if bits(element) >= 32 or is_bool(element) or not is_float(element) and len(elements) == 1:
        if into:
            w.move(into, elements[0])
        return into or elements[0]
    if is_float(element):
        held = [w.register(float(x) if not isinstance(x, str) else x) for x in elements]
        if element in _FP8:
            if not has_fp8(e):
                return float8.narrow(w, held, element, into)
            pairs = []
            for lo, hi in zip(held[::2], held[1::2] or [w.register(0.0)], strict=False):
                pairs.append(w.op(f"cvt.rn.satfinite.{_FP8[element]}x2.f32", "b16", hi, lo))
            into = into or w.new()
            w.emit(f"mov.b32 {into}, {{{pairs[0]}, {pairs[-1]}}}")
            return into
        lo, hi = held if len(held) == 2 else (held[0], w.register(0.0))
        return w.op(
            f"cvt.rn.{'bf16' if element == bf16 else 'f16'}x2.f32", "b32", hi, lo, into=into
        )
    if len(elements) == 2:
        return w.op("prmt.b32", "b32", *elements, 0x5410, into=into)
    low, high = (w.op("prmt.b32", "b32", *elements[i : i + 2], 0x0040) for i in (0, 2))
    return w.op("prmt.b32", "b32", low, high, 0x5410, into=into)


def normal(e: Emitter, x: Operand, element: Attribute) -> Operand:
    """A scalar as its type holds it: rounded or wrapped, and widened again."""
    if is_bool(element) or bits(element) >= 32 and isinstance(x, str):
        return x
    if not isinstance(x, str):
        return rounded(x, element) if is_float(element) else wrapped(int(x), element)
    return widen(e, narrow(e, [x], element), element)


def cast(e: Emitter, x: Operand, source: Attribute, target: Attribute) -> Operand:
    if source == target:
        return x
    w, a, b = e.w, compute_type(source), compute_type(target)
    if not isinstance(x, str):
        return _cast_constant(x, target)
    if a == "pred":
        return (
            w.op(
                f"selp.{'b' if b[0] != 'f' else 'f'}{b[1:]}",
                compute_class(target),
                *((1.0, 0.0) if b[0] == "f" else (1, 0)),
                x,
            )
            if b != "pred"
            else x
        )
    if b == "pred":
        return w.op(f"setp.{'neu' if a[0] == 'f' else 'ne'}.{a}", "pred", x, 0)
    match a[0] == "f", b[0] == "f":
        case False, False:
            if a[1:] == b[1:]:
                return x
            return w.op(f"cvt.{b}.{a}", compute_class(target), x)
        case False, True:
            return w.op(f"cvt.rn.{b}.{a}", compute_class(target), x)
        case True, False:
            found = w.op(
                f"cvt.rzi.{b}.{a}", compute_class(target), x
            )  # saturates; NaN gives 0 where neither side has 64 bits
            if "64" in a + b:
                found = w.op(
                    f"selp.b{b[1:]}",
                    compute_class(target),
                    found,
                    0,
                    w.op(f"setp.num.{a}", "pred", x, x),
                )
            if bits(target) >= 32:
                return found
            low, high = (
                (0, (1 << bits(target)) - 1)
                if is_unsigned(target)
                else (-(1 << bits(target) - 1), (1 << bits(target) - 1) - 1)
            )
            return w.op(
                f"min.{b}", "b32", w.op(f"max.{b}", "b32", found, low) if low else found, high
            )
        case _:
            if a == b:
                return x
            return w.op("cvt.rn.f32.f64" if b == "f32" else "cvt.f64.f32", compute_class(target), x)


def _cast_constant(x: int | float | bool, target: Attribute) -> Operand:
    if is_bool(target):
        return bool(x)
    if is_float(target):
        return rounded(float(x), target)
    if isinstance(x, float):
        low, high = (
            (0, (1 << bits(target)) - 1)
            if is_unsigned(target)
            else (-(1 << bits(target) - 1), (1 << bits(target) - 1) - 1)
        )
        return 0 if x != x else int(max(low, min(high, x)))
    return wrapped(int(x), target)


@emitter(ew.Bitcast)
def bitcast(e: Emitter, op: ew.Bitcast) -> None:
    source, target, x = element_of(op.arg.type), element_of(op.result.type), e.value(op.arg)
    if isinstance(op.result.type, TileType):
        e.set(op.result, Tile.of(op.result.type, x.registers), alias=True)
    elif isinstance(x, str) and bits(source) < 32:
        e.set(op.result, widen(e, narrow(e, [x], source), target))
    elif isinstance(x, str):
        e.set(op.result, x)
    else:
        from tkc.codegen.ptx.values import from_bits

        e.set(op.result, from_bits(to_bits(x, source), target))
