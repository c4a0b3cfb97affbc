"""Atomic updates of global memory.

Each element is updated once, by the first of the threads that hold it; the others get the old value
from it.  A scalar is updated by the instance's first thread.  What has no instruction (a float
maximum, 16-bit words) is a loop of compare-and-swap. Neighbours of 16 bits are added to by packed
reductions, up to eight at once, and those of 32 on Hopper up to four.

acquire and release: one fence before, one after, and relaxed updates between them; the fence before
follows a barrier, so that what the other threads wrote comes first too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute

from tkc.codegen.ptx.access import Group
from tkc.codegen.ptx.barriers import meet, rejoin
from tkc.codegen.ptx.blocks import Block
from tkc.codegen.ptx.elementwise import function, select
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import (
    SCOPES,
    broadcast,
    broadcast_tile,
    pointer_group,
    pointer_vector,
    scalar_group,
    scalar_pointer_group,
    size_of,
    stores_once,
)
from tkc.codegen.ptx.traps import guarded
from tkc.codegen.ptx.values import Tile, compute_class, compute_type, layout_of
from tkc.codegen.ptx.writer import Operand, braced
from tkc.ir import tile
from tkc.ir.types import TileType, bf16, bits, element_of, f16, f32, is_float
from tkc.ir.values import tile_type

BY_BITS = ("exchange", "compare")  # whatever the bits say
_BITWISE = {"and": "and", "or": "or", "xor": "xor", "exchange": "exch", "compare": "cas"}


@dataclass(frozen=True)
class Update:
    """What an atomic does to elements of a type: the kind of update, in which scope, and whether
    the old value is wanted.
    """

    kind: str
    element: Attribute
    scope: str = "gpu"
    wanted: bool = False

    def spelled(self, e: Emitter) -> str | None:
        """The instruction's operation and type, None where there is none."""
        kind, t, width = self.kind, self.element, bits(self.element)
        if kind in _BITWISE:
            return f"{_BITWISE[kind]}.b{width}" if width >= 32 else None
        if not is_float(t):
            if width < 32:
                return None
            sign = "u" if kind == "add" and width == 64 else compute_type(t)[0]
            return f"{kind}.{sign}{width}"
        if kind != "add":
            return None
        if width >= 32:
            return f"add.f{width}"
        if t == bf16:
            return "add.noftz.bf16" if e.target.bfloat16_sums else None
        return "add.noftz.f16" if t == f16 else None

    def together(self, e: Emitter) -> tuple[str, int]:
        """The instruction's operation and type for neighbours, and how many of them a register has;
        "" where there is none.
        """
        if self.kind != "add" or not self.spelled(e):
            return "", 1
        if self.element in (f16, bf16):
            return f"add.noftz.{'bf16x2' if self.element == bf16 else 'f16x2'}", 2
        if self.element == f32 and e.target.capability >= 90:
            return "add.f32", 1
        return "", 1

    def emit(self, e: Emitter, at: Group, x: Operand, expected: Operand | None) -> Operand:
        """One element; its old value, widened, if wanted."""
        if at.held is False:
            return 0
        w, t, width, name = e.w, self.element, bits(self.element), self.spelled(e)
        if name is None:
            return self._by_swapping(e, at, x, expected)
        narrow = width == 16
        cls = "b16" if narrow else "b64" if width == 64 else "b32"
        operands = w.register(e.packed([x], t), "b32" if narrow else cls)
        if narrow:
            operands = w.op("cvt.u16.u32", "b16", operands)
            e.need("7.8" if t == bf16 else "6.3")
        if self.kind == "compare" and expected is not None:
            operands = f"{w.register(e.packed([expected], t), cls)}, {operands}"
        if not self.wanted and self.kind not in ("exchange", "compare"):
            with w.predicated(at.held):
                w.emit(f"red.relaxed.{self.scope}.global.{name} {at.text}, {operands}")
            return 0
        old = w.new(cls)
        if isinstance(at.held, str):
            w.emit(f"mov.{cls} {old}, 0")
        with w.predicated(at.held):
            w.emit(f"atom.relaxed.{self.scope}.global.{name} {old}, {at.text}, {operands}")
        return e.unpacked(w.op("cvt.u32.u16", "b32", old), t) if narrow else old

    def _by_swapping(self, e: Emitter, at: Group, x: Operand, expected: Operand | None) -> Operand:
        """Reads the word, swaps in what it should become, until no other thread came between."""
        w, t, width, scope = e.w, self.element, bits(self.element), self.scope
        word, again, end = "b64" if width == 64 else "b32", w.label("swap"), w.label("swapped")
        address = w.op("add.s64", "b64", at.address, at.offset)
        old, answer, shift = w.new(word), w.new(word), ""
        if width < 32:  # the 32-bit word around it
            byte = w.op("and.b32", "b32", w.op("cvt.u32.u64", "b32", address), 3)
            shift = w.op("shl.b32", "b32", byte, 3)
            address = w.op("and.b64", "b64", address, -4)
        w.move(answer, 0)
        if isinstance(at.held, str):
            w.branch(end, at.held, negate=True)
        w.emit(f"ld.relaxed.{scope}.global.{word} {old}, [{address}]")
        w.place(again)
        part = w.op("bfe.u32", "b32", old, shift, width) if shift else old
        after = self._updated(e, part, x, expected)
        raw = w.register(e.packed([after], t), word)
        if shift:
            raw = w.op("bfi.b32", "b32", raw, old, shift, width)
        seen = w.op(f"atom.relaxed.{scope}.global.cas.{word}", word, f"[{address}]", old, raw)
        lost = w.op(f"setp.ne.{word}", "pred", seen, old)
        w.move(answer, part)
        w.move(old, seen)
        w.branch(again, lost)
        w.place(end)
        rejoin(e)
        return e.unpacked(answer, t)

    def _updated(self, e: Emitter, part: str, x: Operand, expected: Operand | None) -> Operand:
        """What an element becomes whose bits are in the lower part of a register."""
        w, t, width = e.w, self.element, bits(self.element)
        if self.kind == "exchange":
            return x
        before = e.unpacked(part, t)
        if self.kind == "compare" and expected is not None:
            wanted = w.op("bfe.u32", "b32", w.register(e.packed([expected], t)), 0, width)
            alike = w.op("setp.eq.b32", "pred", part, wanted)
            if is_float(t):  # a scalar, of which no NaN kept its bits when it was widened
                odd = (
                    w.op("setp.nan.f32", "pred", v, v) for v in map(w.register, (before, expected))
                )
                alike = w.op("or.pred", "pred", alike, w.op("and.pred", "pred", *odd))
            return select(e, t, alike, x, before)
        return function(e, self.kind, t, (before, x))


def ordered(
    e: Emitter, semantics: str, scope: str, before: bool, held: Operand | bool = True
) -> None:
    """The fence before, or behind, relaxed updates. held: which threads make updates.

    Fences are cumulative, so one by the thread that updates is for all that met it before, or meet
    it behind; each thread's own would wait for its own stores, one after the other.
    """
    if before and semantics in ("release", "acq_rel"):
        meet(e)
    elif before or semantics not in ("acquire", "acq_rel"):
        return
    with e.w.predicated(held):
        e.w.emit(f"fence.acq_rel.{scope}")


@emitter(tile.Atomic)
def atomic(e: Emitter, op: tile.Atomic) -> None:
    """An update of the elements that pointers name."""
    semantics = op.semantics.data if op.semantics is not None else "acq_rel"
    scope = SCOPES[op.scope.data if op.scope is not None else None]
    wanted = op.result is not None and op.result.first_use is not None
    update = Update(op.kind.data, element_of(op.value.type), scope, wanted)
    if isinstance(op.value.type, TileType):
        _update_tile(e, op, op.value.type, update, semantics)
    else:
        _update_scalar(e, op, update, semantics)


def _update_scalar(e: Emitter, op: tile.Atomic, update: Update, semantics: str) -> None:
    at = scalar_pointer_group(e, op, bits(update.element) // 8, "updates")
    expected = e.operand(op.expected) if op.expected is not None else None
    ordered(e, semantics, update.scope, before=True, held=at.held)
    old = update.emit(e, at, e.operand(op.value), expected)
    ordered(e, semantics, update.scope, before=False, held=at.held)
    if update.wanted and op.result is not None:
        e.set(op.result, broadcast(e, old, compute_class(update.element)))
    elif semantics in ("acquire", "acq_rel"):
        meet(e)


def _update_tile(e: Emitter, op: tile.Atomic, t: TileType, update: Update, semantics: str) -> None:
    ordered(e, semantics, update.scope, before=True)
    if update.kind in BY_BITS and is_float(update.element) and bits(update.element) < 32:
        # a number that was widened, a NaN, has other bits when it is rounded again
        update = replace(update, element=IntegerType(bits(update.element)))
    element = update.element
    value, once = _as(e.tile(op.value), t, element), stores_once(e, layout_of(t))
    compared = _as(e.tile(op.expected), t, element) if op.expected is not None else None
    places = pointer_group(e, op.pointers, op.mask, once)
    alone = update.wanted or value.count == 1
    v = 1 if alone else pointer_vector(e, op, layout_of(t), size_of(element))
    group = guarded(e, places, size_of(element), "updates", op.pointers)
    if update_together(e, update, value, v, group):
        return ordered(e, semantics, update.scope, before=False)

    def one(r: int) -> Operand:
        other = e.element(compared, r) if compared is not None else None
        return update.emit(e, group(r), e.element(value, r), other)

    found = [one(r) for r in range(value.count)]
    ordered(e, semantics, update.scope, before=False)
    if update.wanted and op.result is not None:
        own = tile_type(op.result)
        held = TileType(own.extents, element, own.register_layout)
        e.set(op.result, _as(broadcast_tile(e, held, once, found), own, own.element))


def _as(held: Tile, t: TileType, element: Attribute) -> Tile:
    """A tile's bits as elements of a type."""
    return Tile.of(TileType(t.extents, element, t.register_layout), held.registers)


@emitter(tile.AtomicBlock)
def atomic_block(e: Emitter, op: tile.AtomicBlock) -> None:
    """The updates of a block are relaxed: its order with others is the launch's."""
    t = op.value.type
    element = element_of(t)
    update = Update(op.kind.data, element)
    if not isinstance(t, TileType):
        at = scalar_group(e, op, element, "updates")
        update.emit(e, at, e.operand(op.value), None)
        return
    block, once = Block(e, op, layout_of(t)), stores_once(e, layout_of(t))
    group = guarded(
        e, lambda r: block.group(r, op.mask, once(r)), size_of(element), "updates", op.array
    )
    value = e.tile(op.value)
    if not update_together(e, update, value, block.vector(mask=op.mask), group):
        for r in range(value.count):
            update.emit(e, group(r), e.element(value, r), None)


def update_together(
    e: Emitter, update: Update, value: Tile, v: int, group: Callable[[int], Group]
) -> bool:
    """Adds v neighbouring elements at once, where an instruction does that; whether it does."""
    name, each = update.together(e)
    if not name or value.pack != each or v <= 1:
        return False
    w = e.w
    e.need("6.3" if update.element == f16 else "7.8")
    if v > 2 and e.target.capability < 90:
        v = 2
    operation, _, t = name.rpartition(".")
    for start in range(0, value.count, v):
        at = group(start)
        if at.held is False:
            continue
        words = [w.register(r, "b32") for r in value.registers[start // each : (start + v) // each]]
        wide = "" if len(words) == 1 else f".v{len(words)}"
        if wide:
            e.need("8.1")
        with w.predicated(at.held):
            source = words[0] if len(words) == 1 else braced(words)
            w.emit(f"red.relaxed.{update.scope}.global.{operation}{wide}.{t} {at.text}, {source}")
    return True
