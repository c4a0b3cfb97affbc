"""tile.inline_ptx: the user's text once for each element that a thread has, `$n` spelled as
registers.

An operand is in a register of its own width (8-bit ones in one of 16 bits, truth values in a
predicate) with the bits that memory would hold; a result is read back the same way. The text is in
braces, so what it declares is its own; a comment before it says which lines it has, and where they
come from (inline_text.py). Elements that come several at once share registers of 32 bits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.ir import Attribute

from tkc.codegen.ptx.elements import widen
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.inline_text import mark
from tkc.codegen.ptx.values import compute_class, element_count
from tkc.codegen.ptx.writer import Operand
from tkc.ir.elementwise import InlinePtx, packed_registers
from tkc.ir.text import location_of
from tkc.ir.types import TileType, bits, element_of, f8e4m3, f8e5m2, is_bool, is_float
from tkc.ir.values import tile_type


@emitter(InlinePtx)
def inline(e: Emitter, op: InlinePtx) -> None:
    """The text for each element of the operands and results."""
    e.need(op.isa.data)
    tiles = [v.type for v in (*op.results, *op.args) if isinstance(v.type, TileType)]
    if not tiles:
        for v, (x, *_) in zip(
            op.results, _once(e, op, [[e.operand(a)] for a in op.args]), strict=True
        ):
            e.set(v, x)
        return
    count, found = element_count(tiles[0]), [list[Operand]() for _ in op.results]
    for first in range(0, count, op.packed):
        some = range(first, min(first + op.packed, count))
        parts = _once(e, op, [[e.element(e.tile(a), r) for r in some] for a in op.args])
        for elements, part in zip(found, parts, strict=True):
            elements += part[: len(some)]
    for v, elements in zip(op.results, found, strict=True):
        e.set(v, e.build(tile_type(v), elements))


def _once(e: Emitter, op: InlinePtx, args: Sequence[list[Operand]]) -> list[list[Operand]]:
    """The text for the elements that it takes at once (the last one again where there are fewer);
    those of its results, widened.
    """
    w, pack = e.w, op.packed
    given: list[str] = []
    for x, a in zip(args, op.args, strict=True):
        given += _given(e, [*x, *x[-1:] * (pack - len(x))], element_of(a.type))
    types = [element_of(r.type) for r in op.results]
    results = [[w.new(_kind(t, pack)) for _ in range(packed_registers(t, pack))] for t in types]
    names = [*(r for each in results for r in each), *given]
    text = re.sub(
        r"\$(\$|\d+)", lambda m: "$" if m[1] == "$" else names[int(m[1])], op.text.data
    ).strip()
    code = re.sub(r"//[^\n]*", "", text).rstrip()
    end = "}" if code.endswith((";", "}")) else ";}"
    text = "\t{" + text + ("\n\t" if "//" in text.rpartition("\n")[2] else "") + end
    w.comment(mark(len(text.splitlines()), location_of(op)))
    w.raw(text)
    return [_taken(e, held, t, pack) for held, t in zip(results, types, strict=True)]


def _kind(t: Attribute, pack: int) -> str:
    """The class of an operand's registers."""
    if is_bool(t) or bits(t) >= 32:
        return compute_class(t)
    return "b16" if pack == 1 else "b32"


def _given(e: Emitter, elements: Sequence[Operand], t: Attribute) -> list[str]:
    """The registers of an operand."""
    kind = _kind(t, pack := len(elements))
    if is_bool(t) or bits(t) >= 32:
        return [e.w.register(x, kind) for x in elements]
    if pack == 1:
        return [e.w.op("cvt.u16.u32", "b16", e.w.register(e.packed(elements, t)))]
    each = 32 // bits(t)
    zero = 0.0 if is_float(t) else 0
    padded = [*elements, *[zero] * (-pack % each)]
    return [e.w.register(e.packed(padded[i : i + each], t)) for i in range(0, pack, each)]


def _taken(e: Emitter, held: Sequence[str], t: Attribute, pack: int) -> list[Operand]:
    """The elements of a result, widened."""
    if is_bool(t) or bits(t) >= 32:
        return list(held)
    if t in (f8e4m3, f8e5m2):
        e.has_float8()
    if pack == 1:
        return [widen(e, e.w.op("cvt.u32.u16", "b32", held[0]), t)]
    each = 32 // bits(t)
    return [widen(e, held[i // each], t, i % each) for i in range(pack)]
