"""Atomic updates of global memory.

Each element is updated once, by the first of the threads that hold it; the others get the old value from it.  A scalar is
updated by the instance's first thread.  What has no instruction (a float maximum, 16-bit words) is a loop of compare-and-swap.

acquire and release: one fence before, one after, and relaxed updates between them; the fence before
follows a barrier, so that what the other threads wrote comes first too.
"""

from __future__ import annotations

from xdsl.ir import Attribute

from tkc.codegen.ptx.access import Group, both
from tkc.codegen.ptx.barriers import meet
from tkc.codegen.ptx.blocks import Block, mask_of
from tkc.codegen.ptx.elementwise import function, select
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.global_memory import (
    SCOPES,
    broadcast,
    one_thread,
    pointer_group,
    shared_out,
    stores_once,
)
from tkc.codegen.ptx.traps import guarded
from tkc.codegen.ptx.values import compute_class, compute_type
from tkc.codegen.ptx.writer import Operand
from tkc.ir import tile
from tkc.ir.types import TileType, bf16, bits, element_of, f16, is_float

NAMES = {
    "add": "add",
    "max": "max",
    "min": "min",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "exchange": "exch",
}


def spelled(e: Emitter, kind: str, t: Attribute) -> str | None:
    """The instruction's operation and type, None where there is none."""
    width = bits(t)
    if kind in ("and", "or", "xor", "exchange", "compare"):
        return f"{NAMES.get(kind, 'cas')}.b{width}" if width >= 32 else None
    if is_float(t):
        return (
            {32: "add.f32", 64: "add.f64"}.get(
                width,
                {
                    f16: "add.noftz.f16",
                    bf16: "add.noftz.bf16" if e.target.capability >= 90 else None,
                }.get(t),
            )
            if kind == "add"
            else None
        )
    if width < 32:
        return None
    return f"{kind}.{'u' if kind == 'add' and width == 64 else compute_type(t)[0]}{width}"


def update(
    e: Emitter,
    kind: str,
    t: Attribute,
    at: Group,
    x: Operand,
    expected: Operand | None,
    scope: str,
    wanted: bool,
) -> Operand | None:
    """One element; its old value, widened, if wanted."""
    if at.held is False:
        return 0 if wanted else None
    w, name, width = e.w, spelled(e, kind, t), bits(t)
    held = at.held if isinstance(at.held, str) else None
    if name is None:
        return _by_swapping(e, kind, t, at, x, expected, scope)
    narrow = width == 16
    cls = "b16" if narrow else "b64" if width == 64 else "b32"
    given = w.register(e.packed([x], t), "b32" if narrow else cls)
    if narrow:
        given = w.op("cvt.u16.u32", "b16", given)
        e.need("7.8" if t == bf16 else "6.3")
    operands = (
        f"{w.register(e.packed([expected], t), cls)}, {given}" if kind == "compare" else given
    )
    if not wanted and kind not in ("exchange", "compare"):
        with w.predicated(held):
            w.emit(f"red.relaxed.{scope}.global.{name} {at.text}, {operands}")
        return None
    old = w.new(cls)
    if held and not narrow:
        w.move(old, 0)
    elif held:
        w.emit(f"mov.b16 {old}, 0")
    with w.predicated(held):
        w.emit(f"atom.relaxed.{scope}.global.{name} {old}, {at.text}, {operands}")
    return e.unpacked(w.op("cvt.u32.u16", "b32", old), t) if narrow else old


def _by_swapping(
    e: Emitter, kind: str, t: Attribute, at: Group, x: Operand, expected: Operand | None, scope: str
) -> Operand:
    """Reads the word, swaps in what it should become, until nobody came between."""
    w, width = e.w, bits(t)
    word, again, end = "b64" if width == 64 else "b32", w.label("swap"), w.label("swapped")
    address, shift, old, answer = (
        w.op("add.s64", "b64", at.address, at.offset),
        None,
        w.new(word),
        w.new(word),
    )
    if width < 32:  # the 32-bit word round it
        shift = w.op(
            "shl.b32", "b32", w.op("and.b32", "b32", w.op("cvt.u32.u64", "b32", address), 3), 3
        )
        address = w.op("and.b64", "b64", address, -4)
    w.move(answer, 0)
    if isinstance(at.held, str):
        w.raw(f"\t@!{at.held} bra {end};")
    w.emit(f"ld.relaxed.{scope}.global.{word} {old}, [{address}]")
    w.place(again)
    part = old if shift is None else w.op("bfe.u32", "b32", old, shift, width)
    before = e.unpacked(part, t)
    if kind == "exchange":
        after: Operand = x
    elif kind == "compare":
        after = select(e, t, function(e, "eq", t, (before, expected)), x, before)
    else:
        after = function(e, kind, t, (before, x))
    raw = w.register(e.packed([after], t), word)
    if shift is not None:
        raw = w.op("bfi.b32", "b32", raw, old, shift, width)
    seen = w.op(f"atom.relaxed.{scope}.global.cas.{word}", word, f"[{address}]", old, raw)
    lost = w.op(f"setp.ne.{word}", "pred", seen, old)
    w.move(answer, part)
    w.move(old, seen)
    w.raw(f"\t@{lost} bra {again};")
    w.place(end)
    return e.unpacked(answer, t)


def ordered(e: Emitter, semantics: str, scope: str, before: bool) -> None:
    if before and semantics in ("release", "acq_rel"):
        meet(e)
        e.w.emit(f"fence.acq_rel.{scope}")
    if not before and semantics in ("acquire", "acq_rel"):
        e.w.emit(f"fence.acq_rel.{scope}")


def _semantics(op) -> tuple[str, str]:
    return op.semantics.data if op.semantics is not None else "acq_rel", SCOPES[
        op.scope.data if op.scope is not None else None
    ]


@emitter(tile.Atomic)
def atomic(e: Emitter, op: tile.Atomic) -> None:
    kind, (semantics, scope), wanted = (
        op.kind.data,
        _semantics(op),
        op.result is not None and op.result.first_use is not None,
    )
    t = op.value.type
    element = element_of(t)
    ordered(e, semantics, scope, before=True)
    if not isinstance(t, TileType):
        group = guarded(
            e,
            lambda r: Group(
                e.register(op.pointers), 0, both(e, mask_of(e, op.mask, 0), one_thread(e))
            ),
            bits(t) // 8,
            "updates",
            op.pointers,
        )(0)
        old = update(
            e,
            kind,
            element,
            group,
            e.operand(op.value),
            e.operand(op.expected) if op.expected is not None else None,
            scope,
            wanted,
        )
        ordered(e, semantics, scope, before=False)
        if wanted:
            e.set(op.result, broadcast(e, old, compute_class(element)))
        return
    layout, value = t.register_layout, e.tile(op.value)
    once = stores_once(e, layout)
    group = guarded(
        e, pointer_group(e, op.pointers, op.mask, once), bits(element) // 8, "updates", op.pointers
    )
    old = [
        update(
            e,
            kind,
            element,
            group(r),
            e.element(value, r),
            e.element(e.tile(op.expected), r) if op.expected is not None else None,
            scope,
            wanted,
        )
        for r in range(value.count)
    ]
    ordered(e, semantics, scope, before=False)
    if wanted:
        e.set(op.result, shared_out(e, op.result.type, once, old))


@emitter(tile.AtomicBlock)
def atomic_block(e: Emitter, op: tile.AtomicBlock) -> None:
    """The updates of a block are relaxed: its order with others is the launch's."""
    t, kind = op.value.type, op.kind.data
    element = element_of(t)
    if not isinstance(t, TileType):
        at = guarded(
            e,
            lambda r: Block(e, op, None).group(0, op.mask, one_thread(e)),
            bits(element) // 8,
            "updates",
            op.array,
        )(0)
        update(e, kind, element, at, e.operand(op.value), None, "gpu", False)
        return
    block, once, value = (
        Block(e, op, t.register_layout),
        stores_once(e, t.register_layout),
        e.tile(op.value),
    )
    group = guarded(
        e, lambda r: block.group(r, op.mask, once(r)), bits(element) // 8, "updates", op.array
    )
    for r in range(value.count):
        update(e, kind, element, group(r), e.element(value, r), None, "gpu", False)
