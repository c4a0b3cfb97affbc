"""tile.inline_ptx: the user's text once for each element that a thread has, `$n` spelled as
registers.

An operand is in a register of its own width (8-bit ones in one of 16 bits, truth values in a
predicate) with the bits that memory would hold; a result is read back the same way. The text is in
braces, so what it declares is its own; a comment before it says where it comes from (ptxas.py reads
that where the assembler refuses it).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.ir import Attribute

from tkc.codegen.ptx.elements import widen
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.values import compute_class, element_count
from tkc.codegen.ptx.writer import Operand
from tkc.ir.elementwise import InlinePtx
from tkc.ir.text import location_of
from tkc.ir.types import TileType, bits, element_of, f8e4m3, f8e5m2, is_bool
from tkc.ir.values import tile_type


@emitter(InlinePtx)
def inline(e: Emitter, op: InlinePtx) -> None:
    """The text for each element of the operands and results."""
    e.need(op.isa.data)
    tiles = [v.type for v in (*op.results, *op.args) if isinstance(v.type, TileType)]
    if not tiles:
        for v, x in zip(op.results, _once(e, op, [e.operand(a) for a in op.args]), strict=True):
            e.set(v, x)
        return
    count = element_count(tiles[0])
    found = [_once(e, op, [e.element(e.tile(a), r) for a in op.args]) for r in range(count)]
    for v, elements in zip(op.results, zip(*found, strict=True), strict=True):
        e.set(v, e.build(tile_type(v), elements))


def _once(e: Emitter, op: InlinePtx, args: Sequence[Operand]) -> list[Operand]:
    """The text for one element; its results, widened."""
    w = e.w
    given = [_given(e, x, element_of(a.type)) for x, a in zip(args, op.args, strict=True)]
    results = [w.new(_kind(element_of(r.type))) for r in op.results]
    names = [*results, *given]
    text = re.sub(
        r"\$(\$|\d+)", lambda m: "$" if m[1] == "$" else names[int(m[1])], op.text.data
    ).strip()
    if (place := location_of(op)) is not None:
        w.comment(f"tkc.inline_ptx, {text.count(chr(10)) + 1} lines of {place}")
    w.raw("\t{" + text + ("" if text.endswith((";", "}")) else ";") + "}")
    return [_taken(e, x, element_of(r.type)) for x, r in zip(results, op.results, strict=True)]


def _kind(t: Attribute) -> str:
    return compute_class(t) if is_bool(t) or bits(t) >= 32 else "b16"


def _given(e: Emitter, x: Operand, t: Attribute) -> str:
    kind = _kind(t)
    if kind != "b16":
        return e.w.register(x, kind)
    return e.w.op("cvt.u16.u32", "b16", e.w.register(e.packed([x], t)))


def _taken(e: Emitter, x: str, t: Attribute) -> Operand:
    if _kind(t) != "b16":
        return x
    if t in (f8e4m3, f8e5m2):
        e.has_float8()
    return widen(e, e.w.op("cvt.u32.u16", "b32", x), t)
