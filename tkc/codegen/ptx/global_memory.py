"""Global memory: tiles of pointers, blocks of arrays, scalars."""
from __future__ import annotations

from tkc.codegen.ptx.conversions import normal
from tkc.codegen.ptx.coordinates import inside, is_first_copy
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.values import Tile, compute_class, packing, registers_of
from tkc.codegen.ptx.writer import Operand
from tkc.ir import tile
from tkc.ir.types import TileType, bits, element_of, is_bool


def both(e: Emitter, a: Operand, b: Operand) -> Operand:
    """Conjunction of truth values that may be known."""
    if a is False or b is False: return False
    if not isinstance(a, str): return b
    if not isinstance(b, str): return a
    return e.w.op("and.pred", "pred", a, b)


def load_element(e: Emitter, address: str, element, held: Operand, other: Operand, name: str = "ld.global") -> Operand:
    """One element, widened; `other` where not held."""
    width, w = bits(element), e.w
    if held is False: return other
    raw = w.new("b64" if width == 64 else "b32")
    kind = {8: "u8", 16: "b16", 32: "b32", 64: "b64"}[width]
    if isinstance(held, str): w.move(raw, 0)
    target = w.new("b16") if width == 16 else raw
    if width == 16 and isinstance(held, str): w.emit(f"mov.b16 {target}, 0")
    with w.predicated(held if isinstance(held, str) else None): w.emit(f"{name}.{kind} {target}, [{address}]")
    if width == 16: w.emit(f"cvt.u32.u16 {raw}, {target}")
    found = w.op("setp.ne.b32", "pred", raw, 0) if is_bool(element) else e.unpacked(raw, element)
    if isinstance(held, str) and other != 0:
        from tkc.codegen.ptx.elementwise import select
        found = select(e, element, held, found, other)
    return found


def store_element(e: Emitter, address: str, element, x: Operand, held: Operand, name: str = "st.global") -> None:
    if held is False: return
    width, w = bits(element), e.w
    raw = w.op("selp.b32", "b32", 1, 0, x) if is_bool(element) and isinstance(x, str) else int(x) if is_bool(element) else e.packed([x], element)
    raw = w.register(raw, "b64" if width == 64 else "b32")
    if width == 16: raw = w.op("cvt.u16.u32", "b16", raw)
    with w.predicated(held if isinstance(held, str) else None): w.emit(f"{name}.{ {8: 'b8', 16: 'b16', 32: 'b32', 64: 'b64'}[width]} [{address}], {raw}")


@emitter(tile.LoadPointers)
def load_pointers(e: Emitter, op: tile.LoadPointers) -> None:
    t = op.result.type
    element = element_of(t)
    if not isinstance(t, TileType):
        held = True if op.mask is None else e.operand(op.mask)
        other = 0 if op.other is None else e.operand(op.other)
        return e.set(op.result, load_element(e, e.register(op.pointers), element, held, other))
    layout, pointers = t.register_layout, e.tile(op.pointers)
    found = []
    for r in range(layout.num_registers):
        held = inside(e, layout, r)
        if op.mask is not None: held = both(e, held, e.element(e.tile(op.mask), r))
        other = 0 if op.other is None else e.element(e.tile(op.other), r) if isinstance(op.other.type, TileType) else e.operand(op.other)
        found.append(load_element(e, pointers.registers[r], element, held, other))
    e.set(op.result, e.build(t, found))


@emitter(tile.StorePointers)
def store_pointers(e: Emitter, op: tile.StorePointers) -> None:
    t = op.value.type
    element = element_of(t)
    if not isinstance(t, TileType):
        first = e.w.memo(("first thread", e.instance), lambda: e.w.op("setp.eq.s32", "pred", e.thread(), 0))
        held = first if op.mask is None else both(e, first, e.operand(op.mask))
        return store_element(e, e.register(op.pointers), element, e.operand(op.value), held)
    layout, pointers, values = t.register_layout, e.tile(op.pointers), e.tile(op.value)
    for r in range(layout.num_registers):
        held = both(e, inside(e, layout, r), is_first_copy(e, layout))
        if op.mask is not None: held = both(e, held, e.element(e.tile(op.mask), r))
        store_element(e, pointers.registers[r], element, e.element(values, r), held)
