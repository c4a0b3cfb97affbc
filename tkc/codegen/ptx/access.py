"""Groups of a thread's elements between registers and memory, in the widest instructions their
places allow.

A group is `vector` consecutive elements of the thread at one address: up to 16 bytes.  Both spaces, "global" and "shared".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Attribute

from tkc.codegen.ptx.emit import Emitter
from tkc.codegen.ptx.values import Tile, carrier, packing
from tkc.codegen.ptx.writer import Operand
from tkc.ir.types import TileType, bits, is_bool

WIDEST = 16  # bytes of one thread's access


@dataclass(frozen=True)
class Group:
    """Where a group of elements is: `[register + offset]`, and whether it is there at all (True,
    False or a predicate).
    """

    address: str
    offset: int
    held: Operand = True

    @property
    def text(self) -> str:
        return f"[{self.address}+{self.offset}]" if self.offset else f"[{self.address}]"


def both(e: Emitter, a: Operand, b: Operand) -> Operand:
    """Conjunction of truth values that may be known."""
    if a is False or b is False:
        return False
    if not isinstance(a, str):
        return b
    if not isinstance(b, str):
        return a
    return a if a == b else e.w.op("and.pred", "pred", a, b)


def _suffix(width: int, vector: int) -> tuple[str, str, int]:
    """(".v4.b32", register class, how many registers) for a vector of elements that fill whole
    registers.
    """
    total = width * vector
    kind, count = ("b64", total // 64) if width == 64 else ("b32", total // 32)
    return (f".v{count}.{kind}" if count > 1 else f".{kind}"), kind, count


def _one_by_one(element: Attribute, vector: int, pack: int) -> bool:
    return bool(vector % pack) or bits(element) * vector < 32 or is_bool(element)


def load_tile(
    e: Emitter,
    t: TileType,
    vector: int,
    group: Callable[[int], Group],
    other: Callable[[int], Operand] | Tile | None,
    space: str,
    hint: str = "",
    into: list[str] | None = None,
) -> Tile:
    """A tile from memory: `group(r)` is the place of elements [r, r + vector) of the thread.  `other`: what absent elements read as, a tile or a
    function of the element's number; None: zero, and absent ones that a bound cut off are never
    read.
    """
    layout, width = t.register_layout, bits(t.element)
    n, p = layout.num_registers, packing(t.element, layout.num_registers)
    spare = (lambda i: e.element(other, i)) if isinstance(other, Tile) else other or (lambda i: 0)
    if (
        width == 8 and vector == 2 and p == 4 and all(group(i).held is True for i in range(0, n, 2))
    ):  # half a register at a time
        halves = [
            e.w.op(f"ld{hint}.{space}.u16", "b32", at.text)
            for i in range(0, n, 2)
            for at in [group(i)]
        ]
        return Tile.of(
            t,
            [
                e.w.op(
                    "prmt.b32",
                    "b32",
                    *halves[i : i + 2],
                    0x5410,
                    into=into[i // 2] if into else None,
                )
                for i in range(0, len(halves), 2)
            ],
        )
    if p == 2 and vector % 2:  # halves of registers
        halves = [
            load_half(
                e, at, e.packed([spare(i)], t.element) if at.held is not True else 0, space, hint
            )
            for i in range(n)
            for at in [group(i)]
        ]
        registers = into or e.w.many("b32", n // 2)
        for i, r in enumerate(registers):
            e.w.emit(f"mov.b32 {r}, {_vector(halves[2 * i : 2 * i + 2])}")
        return Tile.of(t, registers)
    if _one_by_one(t.element, vector, p):  # packed afterwards
        moved = carrier(t.element)
        absent = (
            (lambda i: spare(i))
            if moved == t.element
            else lambda i: e.packed([spare(i)], t.element)
        )
        found = [
            load_element(e, at, moved, absent(i) if at.held is not True else 0, space, hint)
            for i in range(n)
            for at in [group(i)]
        ]
        return Tile.of(t, e.build(TileType(t.shape, moved, t.layout), found, into).registers)
    suffix, kind, count = _suffix(width, vector)
    registers: list[Operand] = []
    for i in range(n // vector):
        at = group(i * vector)
        first = i * vector // p
        absent = (
            [
                e.packed([spare(i * vector + j * p + k) for k in range(p)], t.element)
                for j in range(vector // p)
            ]
            if at.held is not True
            else ()
        )
        if at.held is False:
            registers += absent
            continue
        target = into[first : first + count] if into else e.w.many(kind, count)
        for r, x in zip(target, absent, strict=False):
            e.w.move(r, x)
        with e.w.predicated(at.held if isinstance(at.held, str) else None):
            e.w.emit(f"ld{hint}.{space}{suffix} {_vector(target)}, {at.text}")
        registers += target
    return Tile.of(t, registers)


def store_tile(
    e: Emitter,
    value: Tile,
    vector: int,
    group: Callable[[int], Group],
    space: str,
    hint: str = "",
    tail: str = "",
) -> None:
    """tail: further operands of every store."""
    width, p = bits(value.element), value.pack
    if p == 2 and vector % 2:
        halves: list[str] = []
        for r in value.registers:
            halves += (pair := e.w.many("b16", 2))
            e.w.emit(f"mov.b32 {_vector(pair)}, {e.w.register(r)}")
        for i, half in enumerate(halves):
            at = group(i)
            with e.w.predicated(at.held if isinstance(at.held, str) else None):
                if at.held is not False:
                    e.w.emit(f"st{hint}.{space}.b16 {at.text}, {half}")
        return
    if _one_by_one(value.element, vector, p):
        for i in range(value.count):
            at = group(i)
            if at.held is not False:
                store_element(e, at, carrier(value.element), e.element(value.bytes, i), space, hint)
        return
    suffix, kind, count = _suffix(width, vector)
    for i in range(value.count // vector):
        at = group(i * vector)
        if at.held is False:
            continue
        source = [e.w.register(r, kind) for r in value.registers[i * count : (i + 1) * count]]
        with e.w.predicated(at.held if isinstance(at.held, str) else None):
            e.w.emit(f"st{hint}.{space}{suffix} {at.text}, {_vector(source)}{tail}")


def _vector(registers: list[str]) -> str:
    return registers[0] if len(registers) == 1 else f"{{{', '.join(registers)}}}"


def load_half(e: Emitter, at: Group, absent: Operand, space: str, hint: str = "") -> str:
    """The 16 bits of an element; those of `absent` where it is not held."""
    w, target = e.w, e.w.new("b16")
    if at.held is not True:
        w.emit(
            f"cvt.u16.u32 {target}, {absent}"
            if isinstance(absent, str)
            else f"mov.b16 {target}, {absent}"
        )
    with w.predicated(at.held if isinstance(at.held, str) else None):
        if at.held is not False:
            w.emit(f"ld{hint}.{space}.b16 {target}, {at.text}")
    return target


def load_element(
    e: Emitter, at: Group, element: Attribute, other: Operand, space: str, hint: str = ""
) -> Operand:
    """One element, widened; `other` where it is not held."""
    width, w, held = bits(element), e.w, at.held
    if held is False:
        return other
    raw, maybe = w.new("b64" if width == 64 else "b32"), isinstance(held, str)
    target = w.new("b16") if width == 16 else raw
    if maybe:
        absent = (
            e.packed([other], element)
            if not is_bool(element)
            else w.op("selp.b32", "b32", 1, 0, other)
            if isinstance(other, str)
            else int(other)
        )
        if width != 16:
            w.move(raw, absent)
        elif isinstance(absent, str):
            w.emit(f"cvt.u16.u32 {target}, {absent}")
        else:
            w.emit(f"mov.b16 {target}, {absent}")
    with w.predicated(held if maybe else None):
        w.emit(f"ld{hint}.{space}.{'u8' if width == 8 else f'b{width}'} {target}, {at.text}")
    if width == 16:
        w.emit(f"cvt.u32.u16 {raw}, {target}")
    return w.op("setp.ne.b32", "pred", raw, 0) if is_bool(element) else e.unpacked(raw, element)


def store_element(
    e: Emitter, at: Group, element: Attribute, x: Operand, space: str, hint: str = ""
) -> None:
    if at.held is False:
        return
    raw = stored(e, element, x)
    with e.w.predicated(at.held if isinstance(at.held, str) else None):
        e.w.emit(f"st{hint}.{space}.b{bits(element)} {at.text}, {raw}")


def stored(e: Emitter, element: Attribute, x: Operand) -> str:
    """A widened element in a register from which its own width can be stored."""
    width, w = bits(element), e.w
    raw = (
        e.packed([x], element)
        if not is_bool(element)
        else w.op("selp.b32", "b32", 1, 0, x)
        if isinstance(x, str)
        else int(x)
    )
    raw = w.register(raw, "b64" if width == 64 else "b32")
    return w.op("cvt.u16.u32", "b16", raw) if width == 16 else raw
