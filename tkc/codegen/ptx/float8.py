"""float8 without instructions for it: its bits become a float32's and back by integer arithmetic,
exactly as cvt does from sm_89 on.

e4m3, 4 bits of exponent     s eeee mmm -> the bits of a float32 whose exponent is 120 too small:
                             times 2^120, which is exact for subnormals too; 0x7f is NaN
e5m2, 5 bits                 the upper half of a float16
back                         |x|, at most the largest; a normal one loses bits to nearest even by an
                             addition that carries into the exponent; below the smallest normal one
                             x + c does, whose last bit is the smallest float8; NaN is 0x7f
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack, unpack

from xdsl.ir import Attribute

from tkc.codegen.ptx.writer import Writer
from tkc.ir.types import f8e4m3, f8e5m2


@dataclass(frozen=True)
class Form:
    """mantissa: bits of it; bias: of the exponent; largest and smallest: of the normal numbers."""

    mantissa: int
    bias: int
    largest: float
    smallest: float

    @property
    def dropped(self) -> int:
        """Bits of a float32's mantissa that this one has not."""
        return 23 - self.mantissa

    @property
    def magic(self) -> float:
        """The float32 whose last bit is worth the smallest float8."""
        return self.smallest * 2.0**self.dropped


FORMS: dict[Attribute, Form] = {
    f8e4m3: Form(3, 7, 448.0, 2.0**-6),
    f8e5m2: Form(2, 15, 57344.0, 2.0**-14),
}


def widen(w: Writer, raw: str, element: Attribute, part: int) -> str:
    """Byte `part` of a register as a float32."""
    if element == f8e5m2:
        low, high = w.many("b16", 2)
        w.emit(f"mov.b32 {{{low}, {high}}}, {w.op('prmt.b32', 'b32', raw, 0, 0x4404 | part << 4)}")
        return w.op("cvt.f32.f16", "b32", low)
    byte = w.op("prmt.b32", "b32", raw, 0, 0x4440 | part)
    magnitude = w.op("and.b32", "b32", byte, 0x7F)
    small = w.op(
        "or.b32",
        "b32",
        w.op("shl.b32", "b32", magnitude, 20),
        w.op("and.b32", "b32", w.op("shl.b32", "b32", byte, 24), -1 << 31),
    )
    value = w.op("mul.f32", "b32", small, 2.0**120)
    return w.op("selp.b32", "b32", 0x7FFFFFFF, value, w.op("setp.eq.s32", "pred", magnitude, 0x7F))


def narrow(w: Writer, elements: list[str], element: Attribute, into: str | None = None) -> str:
    """One, two or four float32 as the bytes of a register: to nearest even; what is too large
    becomes the largest.
    """
    form, first, *others = FORMS[element], *elements
    found = _byte(w, first, form)
    for i, x in enumerate(others, 1):
        found = w.op("or.b32", "b32", found, w.op("shl.b32", "b32", _byte(w, x, form), 8 * i))
    if into:
        w.move(into, found)
    return into or found


def _byte(w: Writer, x: str, form: Form) -> str:
    size = w.op("min.f32", "b32", w.op("abs.f32", "b32", x), form.largest)
    odd = w.op("and.b32", "b32", w.op("shr.u32", "b32", size, form.dropped), 1)
    rounded = w.op("add.s32", "b32", w.op("add.s32", "b32", size, odd), (1 << form.dropped - 1) - 1)
    normal = w.op(
        "sub.s32",
        "b32",
        w.op("shr.u32", "b32", rounded, form.dropped),
        127 - form.bias << form.mantissa,
    )
    tiny = w.op("sub.s32", "b32", w.op("add.f32", "b32", size, form.magic), _bits(form.magic))
    magnitude = w.op(
        "selp.b32", "b32", tiny, normal, w.op("setp.lt.f32", "pred", size, form.smallest)
    )
    signed = w.op(
        "or.b32", "b32", magnitude, w.op("and.b32", "b32", w.op("shr.u32", "b32", x, 24), 0x80)
    )
    return w.op("selp.b32", "b32", signed, 0x7F, w.op("setp.num.f32", "pred", x, x))


def _bits(x: float) -> int:
    return unpack("I", pack("f", x))[0]
