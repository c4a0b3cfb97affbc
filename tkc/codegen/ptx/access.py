"""Groups of a thread's elements between registers and memory, in the widest instructions that their
addresses allow.

A group is `vector` consecutive elements of the thread at one address: up to 16 bytes.  Both spaces,
"global" and "shared".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Attribute

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.values import Tile, carrier, element_count, packing
from tkc.codegen.ptx.writer import Integer, Operand, braced
from tkc.ir.types import TileType, bits, is_bool, is_float, is_unsigned

MAX_ACCESS_BYTES = 16  # of one thread


@dataclass(frozen=True)
class Group:
    """Where a group of elements is: `[register + offset]`, and whether it is there at all (True,
    False or a predicate).
    """

    address: Integer
    offset: int
    held: Operand = True

    @property
    def text(self) -> str:
        """As an instruction spells it."""
        return f"[{self.address}+{self.offset}]" if self.offset else f"[{self.address}]"


ABSENT = Group("", 0, False)


def both(e: Emitter, a: Operand, b: Operand) -> Operand:
    """Conjunction of truth values that may be known."""
    if a is False or b is False:
        return False
    if not isinstance(a, str):
        return b
    if not isinstance(b, str):
        return a
    return a if a == b else e.w.op("and.pred", "pred", a, b)


def either(e: Emitter, a: Operand, b: Operand) -> Operand:
    """Disjunction of truth values that may be known."""
    if not isinstance(a, str):
        return True if a else b
    if not isinstance(b, str):
        return True if b else a
    return e.w.op("or.pred", "pred", a, b)


def bool_bits(e: Emitter, x: Operand) -> Integer:
    """A truth value as 0 or 1."""
    return e.w.op("selp.b32", "b32", 1, 0, x) if isinstance(x, str) else int(x)


def _suffix(width: int, vector: int) -> tuple[str, str, int]:
    """(".v4.b32", register class, how many registers) for a vector of elements that fill whole
    registers.
    """
    total = width * vector
    kind, count = ("b64", total // 64) if width == 64 else ("b32", total // 32)
    return (f".v{count}.{kind}" if count > 1 else f".{kind}"), kind, count


def _one_by_one(element: Attribute, vector: int, pack: int) -> bool:
    return bool(vector % pack) or bits(element) * vector < 32 or is_bool(element)


@dataclass(frozen=True)
class _Load:
    """A tile from memory, `vector` elements at a time; fields as of `load_tile`."""

    e: Emitter
    t: TileType
    group: Callable[[int], Group]
    other: Callable[[int], Operand]
    name: str  # of the instruction, without its type
    into: list[str] | None

    def packed_other(self, first: int, count: int = 1) -> Integer:
        """A register of absent elements."""
        others = [self.other(first + k) for k in range(count)]
        return self.e.packed(others, self.t.element, exact=True)

    def half_registers(self, n: int) -> Tile:
        """Two bytes at a time, which are all there."""
        w = self.e.w
        halves = [w.op(f"{self.name}.u16", "b32", self.group(i).text) for i in range(0, n, 2)]
        found = [
            w.op("prmt.b32", "b32", *halves[i : i + 2], 0x5410, into=self._target(i // 2))
            for i in range(0, len(halves), 2)
        ]
        return Tile.of(self.t, found)

    def _target(self, i: int) -> str | None:
        return self.into[i] if self.into else None

    def halves(self, n: int) -> Tile:
        """16-bit elements one by one, two in a register."""
        w, halves = self.e.w, []
        for i in range(n):
            at = self.group(i)
            halves.append(load_half(self.e, at, self._absent(at, i), self.name))
        registers = self.into or w.many("b32", n // 2)
        for i, r in enumerate(registers):
            w.emit(f"mov.b32 {r}, {braced(halves[2 * i : 2 * i + 2])}")
        return Tile.of(self.t, registers)

    def _absent(self, at: Group, i: int, packed: bool = True) -> Operand:
        if at.held is True:
            return 0
        return self.packed_other(i) if packed else self.other(i)

    def elements(self, n: int) -> Tile:
        """Elements one by one, packed afterwards."""
        t, found = self.t, []
        moved = carrier(t.element)
        for i in range(n):
            at = self.group(i)
            absent = self._absent(at, i, packed=moved != t.element)
            found.append(_load_element(self.e, at, moved, absent, self.name))
        as_moved = TileType(t.shape, moved, t.layout)
        return Tile.of(t, self.e.build(as_moved, found, self.into, exact=True).registers)

    def vectors(self, n: int, vector: int) -> Tile:
        """Elements that fill whole registers."""
        e, p = self.e, packing(self.t.element, n)
        suffix, kind, count = _suffix(bits(self.t.element), vector)
        registers: list[Integer] = []
        for start in range(0, n, vector):
            at = self.group(start)
            absent: list[Integer] = []
            if at.held is not True:
                absent = [self.packed_other(start + j, p) for j in range(0, vector, p)]
            if at.held is False:
                registers += absent
                continue
            first = start // p
            target = self.into[first : first + count] if self.into else e.w.many(kind, count)
            for r, x in zip(target, absent, strict=False):
                e.w.move(r, x)
            with e.w.predicated(at.held):
                e.w.emit(f"{self.name}{suffix} {_vector(target)}, {at.text}")
            registers += target
        return Tile.of(self.t, registers)


def load_tile(
    e: Emitter,
    t: TileType,
    vector: int,
    group: Callable[[int], Group],
    other: Callable[[int], Operand] | None,
    space: str,
    hint: str = "",
    into: list[str] | None = None,
) -> Tile:
    """A tile from memory: `group(r)` is the place of elements [r, r + vector) of the thread.
    `other`: what absent elements read as, a function of the element's number; None: zero, and
    absent ones that a bound cut off are never read.
    """
    n = element_count(t)
    p = packing(t.element, n)
    load = _Load(e, t, group, other or (lambda i: 0), f"ld{hint}.{space}", into)
    if bits(t.element) == 8 and vector == 2 and p == 4:
        if all(group(i).held is True for i in range(0, n, 2)):
            return load.half_registers(n)
    elif p == 2 and vector % 2:
        return load.halves(n)
    if _one_by_one(t.element, vector, p):
        return load.elements(n)
    return load.vectors(n, vector)


def store_tile(
    e: Emitter,
    value: Tile,
    vector: int,
    group: Callable[[int], Group],
    space: str,
    hint: str = "",
    tail: str = "",
) -> None:
    """A tile to memory, `vector` elements at a time. tail: further operands of every store."""
    name, p = f"st{hint}.{space}", value.pack
    in_bytes = bits(value.element) == 8 and not is_bool(value.element)
    if p == 2 and vector % 2 or in_bytes and p == 4 and vector == 2:
        return _store_halves(e, value, group, name)
    if _one_by_one(value.element, vector, p):
        for i in range(value.count):
            at = group(i)
            if at.held is not False:
                store_element(e, at, carrier(value.element), e.element(value.bytes, i), space, hint)
        return
    suffix, kind, count = _suffix(bits(value.element), vector)
    for i in range(value.count // vector):
        at = group(i * vector)
        if at.held is False:
            continue
        source = [e.w.register(r, kind) for r in value.registers[i * count : (i + 1) * count]]
        with e.w.predicated(at.held):
            e.w.emit(f"{name}{suffix} {at.text}, {_vector(source)}{tail}")


def _store_halves(e: Emitter, value: Tile, group: Callable[[int], Group], name: str) -> None:
    """The halves of registers one by one: an element of 16 bits each, or two of 8."""
    halves: list[str] = []
    for r in value.registers:
        pair = e.w.many("b16", 2)
        e.w.emit(f"mov.b32 {braced(pair)}, {e.w.register(r)}")
        halves += pair
    for i, half in enumerate(halves):
        at = group(i * value.pack // 2)
        if at.held is not False:
            with e.w.predicated(at.held):
                e.w.emit(f"{name}.b16 {at.text}, {half}")


def _vector(registers: list[str]) -> str:
    return registers[0] if len(registers) == 1 else braced(registers)


def load_half(e: Emitter, at: Group, absent: Operand, name: str) -> str:
    """The 16 bits of an element; those of `absent` where it is not held. name: of the instruction,
    without its type.
    """
    target = e.w.new("b16")
    if at.held is not True:
        _move_half(e, target, absent)
    if at.held is not False:
        with e.w.predicated(at.held):
            e.w.emit(f"{name}.b16 {target}, {at.text}")
    return target


def _move_half(e: Emitter, target: str, x: Operand) -> None:
    """The low 16 bits of a number or of a 32-bit register."""
    e.w.emit(f"{'cvt.u16.u32' if isinstance(x, str) else 'mov.b16'} {target}, {x}")


def load_element(
    e: Emitter, at: Group, element: Attribute, other: Operand, space: str, hint: str = ""
) -> Operand:
    """One element, widened; `other` where it is not held."""
    return _load_element(e, at, element, other, f"ld{hint}.{space}")


def _load_element(e: Emitter, at: Group, element: Attribute, other: Operand, name: str) -> Operand:
    if at.held is False:
        return other
    w, width = e.w, bits(element)
    if at.held is True and width == 8 and not is_bool(element) and not is_float(element):
        raw = w.new()
        w.emit(f"{name}.{'u8' if is_unsigned(element) else 's8'} {raw}, {at.text}")
        return raw
    raw = w.new("b64" if width == 64 else "b32")
    target = w.new("b16") if width == 16 else raw
    if isinstance(at.held, str):
        absent = bool_bits(e, other) if is_bool(element) else e.packed([other], element, exact=True)
        if width == 16:
            _move_half(e, target, absent)
        else:
            w.move(raw, absent)
    with w.predicated(at.held):
        w.emit(f"{name}.{'u8' if width == 8 else f'b{width}'} {target}, {at.text}")
    if width == 16:
        w.emit(f"cvt.u32.u16 {raw}, {target}")
    return w.op("setp.ne.b32", "pred", raw, 0) if is_bool(element) else e.unpacked(raw, element)


def store_element(
    e: Emitter, at: Group, element: Attribute, x: Operand, space: str, hint: str = ""
) -> None:
    """One widened element to memory, where it is held."""
    if at.held is False:
        return
    raw = stored(e, element, x)
    with e.w.predicated(at.held):
        e.w.emit(f"st{hint}.{space}.b{bits(element)} {at.text}, {raw}")


def stored(e: Emitter, element: Attribute, x: Operand) -> str:
    """A widened element in a register from which its own width can be stored."""
    width, w = bits(element), e.w
    value = bool_bits(e, x) if is_bool(element) else e.packed([x], element, exact=True)
    raw = w.register(value, "b64" if width == 64 else "b32")
    return w.op("cvt.u16.u32", "b16", raw) if width == 16 else raw
