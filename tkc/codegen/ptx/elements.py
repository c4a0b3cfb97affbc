"""Narrow elements in and out of 32-bit registers.

    widen    part p of a register of packed elements -> 32 bits (integers extended, floats as
             float32)
    narrow   1, 2 or 4 widened elements -> one register, rounding to nearest even

float8 has instructions from sm_89 on; before, float8.py makes its bits a float32's and back, with
the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xdsl.ir import Attribute

from tkc.codegen.ptx import float8
from tkc.codegen.ptx.values import to_bits
from tkc.codegen.ptx.writer import Integer, Operand, Writer, as_integer, braced
from tkc.ir.types import bf16, bits, f8e4m3, f8e5m2, is_bool, is_float, is_unsigned

_FLOAT8: dict[Attribute, str] = {f8e4m3: "e4m3", f8e5m2: "e5m2"}


class Context(Protocol):
    """What a conversion needs of the emitter."""

    w: Writer

    def has_float8(self) -> bool:
        """Whether the target converts float8."""


def widen(e: Context, raw: str, element: Attribute, part: int = 0) -> str:
    """Element `part` of a register of packed elements, in 32 bits of its own."""
    w = e.w
    if not is_float(element):
        return w.op("prmt.b32", "b32", raw, 0, _extension(element, part * bits(element) // 8))
    if element == bf16:
        return w.op("and.b32", "b32", raw, -65536) if part else w.op("shl.b32", "b32", raw, 16)
    if element in _FLOAT8 and not e.has_float8():
        return float8.widen(w, raw, element, part)
    half = w.many("b16", 2)
    if element in _FLOAT8:
        w.emit(f"mov.b32 {braced(half)}, {raw}")
        raw = w.op(f"cvt.rn.f16x2.{_FLOAT8[element]}x2", "b32", half[part // 2])
        part, half = part % 2, w.many("b16", 2)
    w.emit(f"mov.b32 {braced(half)}, {raw}")
    return w.op("cvt.f32.f16", "b32", half[part])


def _extension(element: Attribute, low: int) -> int:
    """The selector of prmt that extends the integer at byte `low` by zeros or by its sign."""
    if is_unsigned(element):
        return 0x4440 | low if bits(element) == 8 else 0x4400 | low + 1 << 4 | low
    if bits(element) == 8:
        return 0x888 + 0x111 * low << 4 | low
    return 0x88 + 0x11 * (low + 1) << 8 | low + 1 << 4 | low


def widen_pair(e: Context, raw: str, element: Attribute, part: int, into: str | None = None) -> str:
    """The lower or upper two float8 of a register as two float16, which hold them exactly: one
    instruction, where each by way of float32 takes three.
    """
    half = e.w.many("b16", 2)
    e.w.emit(f"mov.b32 {braced(half)}, {raw}")
    return e.w.op(f"cvt.rn.f16x2.{_FLOAT8[element]}x2", "b32", half[part], into=into)


def narrow(
    e: Context,
    elements: Sequence[Operand],
    element: Attribute,
    into: str | None = None,
    exact: bool = False,
) -> Integer:
    """One register of a tile from its widened elements: one, two or four of them. exact: they are
    numbers of their type, so that an infinity of float8 stays one.
    """
    w = e.w
    raw: Integer | None = None
    if not any(isinstance(x, str) for x in elements):
        raw = _packed_constant([x for x in elements if not isinstance(x, str)], element)
    elif len(elements) == 1 and (bits(element) >= 32 or not is_float(element)):
        raw = as_integer(elements[0])
    if raw is None:
        return _narrow_registers(e, elements, element, into, exact)
    if into:
        w.move(into, raw)
    return into or raw


def _narrow_registers(
    e: Context, elements: Sequence[Operand], element: Attribute, into: str | None, exact: bool
) -> str:
    """Elements of less than 32 bits, of which at least one is in a register."""
    w = e.w
    if is_float(element):
        held = [w.register(x if isinstance(x, str) else float(x)) for x in elements]
        if exact and element == f8e5m2:
            return _upper_bytes(w, held, into)
        return _narrow_floats(e, held, element, into)
    if len(elements) == 2:
        return w.op("prmt.b32", "b32", *elements, 0x5410, into=into)
    low, high = (w.op("prmt.b32", "b32", *elements[i : i + 2], 0x0040) for i in (0, 2))
    return w.op("prmt.b32", "b32", low, high, 0x5410, into=into)


def _upper_bytes(w: Writer, held: list[str], into: str | None) -> str:
    """Those of float16, as which numbers of float8_e5m2 begin."""
    upper = held[1::2] or [w.register(0.0)]
    pairs = [
        w.op("cvt.rn.f16x2.f32", "b32", hi, lo) for lo, hi in zip(held[::2], upper, strict=True)
    ]
    return w.op("prmt.b32", "b32", pairs[0], pairs[-1], 0x7531, into=into)


def _packed_constant(elements: Sequence[int | float], element: Attribute) -> int:
    if is_bool(element):
        return bool(elements[0])
    return sum(to_bits(x, element) << i * bits(element) for i, x in enumerate(elements))


def _narrow_floats(e: Context, held: list[str], element: Attribute, into: str | None) -> str:
    w = e.w
    if element not in _FLOAT8:
        lo, hi = held if len(held) == 2 else (held[0], w.register(0.0))
        kind = "bf16" if element == bf16 else "f16"
        return w.op(f"cvt.rn.{kind}x2.f32", "b32", hi, lo, into=into)
    if not e.has_float8():
        return float8.narrow(w, held, element, into)
    name = f"cvt.rn.satfinite.{_FLOAT8[element]}x2.f32"
    upper = held[1::2] or [w.register(0.0)]
    pairs = [w.op(name, "b16", hi, lo) for lo, hi in zip(held[::2], upper, strict=True)]
    into = into or w.new()
    w.emit(f"mov.b32 {into}, {braced([pairs[0], pairs[-1]])}")
    return into
