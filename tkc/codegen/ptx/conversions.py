"""Between element types: tile.cast and tile.bitcast.

cast     a widened element of one type -> of another (narrow results not yet rounded or wrapped:
         `normal` or elements.narrow does)
"""

from __future__ import annotations

import math

from xdsl.ir import Attribute

from tkc.codegen.ptx.elements import narrow, widen
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.float8 import FORMS
from tkc.codegen.ptx.values import (
    Tile,
    compute_class,
    compute_type,
    from_bits,
    rounded,
    to_bits,
    wrapped,
)
from tkc.codegen.ptx.writer import Operand
from tkc.ir import elementwise as ew
from tkc.ir.dtypes import BY_IR, to_odd
from tkc.ir.ranges import Range
from tkc.ir.types import TileType, bits, element_of, is_bool, is_float, is_unsigned


def normal(e: Emitter, x: Operand, element: Attribute) -> Operand:
    """A scalar as its type holds it: rounded or wrapped, and widened again."""
    if is_bool(element) or bits(element) >= 32 and isinstance(x, str):
        return x
    if not isinstance(x, str):
        return rounded(x, element) if is_float(element) else wrapped(int(x), element)
    return widen(e, e.w.register(narrow(e, [x], element)), element)


def limits(element: Attribute) -> tuple[int, int]:
    """The smallest and the largest value of an integer type."""
    width = bits(element)
    if is_unsigned(element):
        return 0, (1 << width) - 1
    return -(1 << width - 1), (1 << width - 1) - 1


def cast(
    e: Emitter, x: Operand, source: Attribute, target: Attribute, known: Range | None = None
) -> Operand:
    """A widened element of type `source`, of range `known`, as one of type `target`; a narrow
    result is not rounded or wrapped yet.
    """
    if source == target:
        return x
    if not isinstance(x, str):
        return _cast_constant(x, target)
    w, a, b = e.w, compute_type(source), compute_type(target)
    kind = compute_class(target)
    if a == "pred":
        if b == "pred":
            return x
        if b[0] == "f":
            return w.op(f"selp.{b}", kind, 1.0, 0.0, x)
        return w.op(f"selp.b{b[1:]}", kind, 1, 0, x)
    if b == "pred":
        return w.op(f"setp.{'neu' if a[0] == 'f' else 'ne'}.{a}", "pred", x, 0)
    match a[0] == "f", b[0] == "f":
        case True, False:
            return _float_to_integer(e, x, a, b, target)
        case False, True:
            return _integer_to_float(e, x, source, target, known)
        case False, False:
            return x if a[1:] == b[1:] else w.op(f"cvt.{b}.{a}", kind, x)
        case _:
            if a == b:
                return x
            if bits(target) < 32:
                return _to_odd(e, x)
            return w.op("cvt.rn.f32.f64" if b == "f32" else "cvt.f64.f32", kind, x)


def _to_odd(e: Emitter, x: str) -> str:
    """A float64 as a float32 whose last bit says whether others were cut off: a shorter type is
    rounded to from it as from the float64.
    """
    w = e.w
    cut = w.op("cvt.rz.f32.f64", "b32", x)
    rest = w.op("setp.neu.f64", "pred", w.op("cvt.f64.f32", "b64", cut), x)
    return w.op("or.b32", "b32", cut, w.op("selp.b32", "b32", 1, 0, rest))


def _is_held_by_float32(known: Range | None) -> bool:
    return known is not None and known.lo >= -(1 << 24) and known.hi <= 1 << 24


def _integer_to_float(
    e: Emitter, x: str, source: Attribute, target: Attribute, known: Range | None
) -> str:
    """A widened integer as a float; as float32 that shorter ones are rounded from, to odd where
    float32 does not hold it.
    """
    kind = compute_type(source)
    if bits(target) < 32 <= bits(source) and not _is_held_by_float32(known):
        return _integer_to_odd(e, x, kind)
    return e.w.op(f"cvt.rn.{compute_type(target)}.{kind}", compute_class(target), x)


def _integer_to_odd(e: Emitter, x: str, kind: str) -> str:
    """As `_to_odd`, of an integer of PTX type `kind`."""
    w = e.w
    cut = w.op(f"cvt.rz.f32.{kind}", "b32", x)
    back = w.op(f"cvt.rzi.{kind}.f32", "b64" if "64" in kind else "b32", cut)
    rest = w.op(f"setp.ne.{kind}", "pred", back, x)
    return w.op("or.b32", "b32", cut, w.op("selp.b32", "b32", 1, 0, rest))


def _short(x: int | float, target: Attribute) -> float:
    """A number as a float of few bits holds it, rounded once; float8 saturates."""
    found = float(to_odd(x, BY_IR[target].numpy))
    most = FORMS[target].largest if target in FORMS else math.inf
    return rounded(max(-most, min(most, found)) if found == found else found, target)


def _float_to_integer(e: Emitter, x: str, a: str, b: str, target: Attribute) -> str:
    """cvt saturates; NaN becomes 0 where neither side has 64 bits."""
    w, kind = e.w, compute_class(target)
    found = w.op(f"cvt.rzi.{b}.{a}", kind, x)
    if "64" in a + b:
        is_number = w.op(f"setp.num.{a}", "pred", x, x)
        found = w.op(f"selp.b{b[1:]}", kind, found, 0, is_number)
    if bits(target) >= 32:
        return found
    low, high = limits(target)
    if low:
        found = w.op(f"max.{b}", "b32", found, low)
    return w.op(f"min.{b}", "b32", found, high)


def _cast_constant(x: int | float, target: Attribute) -> Operand:
    if is_bool(target):
        return bool(x)
    if is_float(target):
        return _short(x, target) if bits(target) < 32 else rounded(x, target)
    if isinstance(x, float):
        low, high = limits(target)
        return 0 if x != x else int(max(low, min(high, x)))
    return wrapped(int(x), target)


@emitter(ew.Bitcast)
def bitcast(e: Emitter, op: ew.Bitcast) -> None:
    """The same bits as another type."""
    source, target, t = element_of(op.arg.type), element_of(op.result.type), op.result.type
    if isinstance(t, TileType):
        return e.set(op.result, Tile.of(t, e.tile(op.arg).registers), alias=True)
    x = e.operand(op.arg)
    if not isinstance(x, str):
        e.set(op.result, from_bits(to_bits(x, source), target))
    elif bits(source) < 32:
        e.set(op.result, widen(e, e.w.register(narrow(e, [x], source)), target))
    else:
        e.set(op.result, x)
