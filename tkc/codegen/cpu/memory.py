"""Loads, stores and atomics: what happens in the order of the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Attribute

from tkc.codegen.cpu import functions, numbers
from tkc.codegen.cpu.emit import Function, zero
from tkc.codegen.cpu.nest import Nest
from tkc.codegen.cpu.planning import Planning
from tkc.codegen.cpu.values import Chunk, Index
from tkc.ir import tile
from tkc.ir.types import PointerType, TileType, element_of, is_float, is_unsigned, pointee_of
from tkc.ir.values import array_type, tile_type, tiles

ORDER = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
WEAKER = {"release": "monotonic", "acq_rel": "acquire"}  # of a compare-and-swap that fails
INTEGER_UPDATES = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}

Write = tile.Store | tile.StorePointers | tile.Atomic | tile.AtomicBlock


class Memory(Planning):
    """The part of the lowering that accesses arrays and pointers."""

    def load(self, op: tile.Load | tile.LoadPointers) -> None:
        """A scalar load, or one that acquires (which happens here and now, and before which no load
        waits).
        """
        if isinstance(op, tile.LoadPointers) and op.semantics is not None:
            return self.acquire(op, op.semantics.data)
        nest = Nest(self.f, self.env)
        chunk = nest.load(op, ()) if isinstance(op, tile.Load) else nest.load_pointers(op, ())
        self.env[op.result] = chunk.base

    def store(self, op: tile.Store | tile.StorePointers) -> None:
        """A store of a tile or a scalar."""
        releases = isinstance(op, tile.StorePointers) and op.semantics is not None
        self.force_loads(op, None if releases else [op])
        if releases:
            self.f.do("fence release")
        self.done.add(op)
        shape, operands = shape_of(op), tiles(op.operands)
        others = self.prepare([v for v in operands if tile_type(v).extents == shape])
        for v in operands:
            if tile_type(v).extents != shape:
                self.prepare([v])
        nest = Nest(self.f, self.env)

        def chunk(index: tuple[Index, ...]) -> None:
            at, mask = place(nest, op, index)
            value = nest.spread(op.value, index)
            beside = nest.eval_all(others, index)
            nest.put(at, element_of(op.value.type), value, mask)
            nest.keep_all(beside, index)

        nest.walk(shape, chunk)
        self.own_all(others)

    def acquire(self, op: tile.LoadPointers, semantics: str) -> None:
        """Loads that order what follows: one atomic load an element."""
        self.force_loads(op)
        t, element = op.result.type, element_of(op.result.type)
        word = Word(self.f, element)
        result = self.buffer(t) if isinstance(t, TileType) else None
        self.done.add(op)
        self.prepare(tiles(op.operands))
        nest = Nest(self.f, self.env)
        order = "monotonic" if semantics == "relaxed" else "acquire"

        def one(index: tuple[Index, ...]) -> None:
            f = self.f
            at, mask = place(nest, op, index)
            where = at.base if mask is None else f.select(mask, "ptr", at.base, "@zeros")
            x = word.value(f.emit(f"load atomic {word.t}, ptr {where} {order}, align {word.size}"))
            if mask is not None and op.other is not None:
                x = f.select(mask, numbers.held(element), x, nest.spread(op.other, index).base)
            if result is None:
                self.env[op.result] = x
            else:
                nest.keep(result, index, Chunk(x))

        nest.walk(result.shape if result else (), one, lanes=1)
        if result:
            self.own(op.result, result)

    # ----------------------------------------------------------------------------------------------
    def atomic(self, op: tile.Atomic | tile.AtomicBlock) -> None:
        """An update of every element, one after the other."""
        self.force_loads(op)
        result = op.result if isinstance(op, tile.Atomic) else None
        old = None if result is None or not tiles([result]) else self.buffer_for(result)
        self.done.add(op)
        for v in tiles(op.operands):
            for x, b in self.prepare([v]).items():
                self.fill(b, x)
                self.own(x, b)
        update = Update(self.f, op)
        nest = Nest(self.f, self.env)
        expects = op.expected if isinstance(op, tile.Atomic) else None

        def one(index: tuple[Index, ...]) -> None:
            at, mask = place(nest, op, index)
            value = nest.spread(op.value, index).base
            expected = None if expects is None else nest.spread(expects, index).base
            got = self._where(
                mask, numbers.held(update.element), lambda: update.write(at.base, value, expected)
            )
            if old is not None:
                nest.keep(old, index, Chunk(got, 0, len(nest.levels) - 1))
            elif result is not None:
                self.env[result] = got

        nest.walk(shape_of(op), one, lanes=1)
        if result is not None and old is not None:
            self.own(result, old)

    def _where(self, mask: str | None, t: str, make: Callable[[], str]) -> str:
        """make() where the mask holds, a register of type t; 0 elsewhere."""
        if mask is None:
            return make()
        f, before = self.f, self.f.block
        ends: list[tuple[str, str]] = []
        f.when(mask, lambda: ends.append((make(), f.block)))
        [(got, end)] = ends
        none = "null" if t == "ptr" else zero(t)
        return f.emit(f"phi {t} [{got}, {end}], [{none}, {before}]")


def shape_of(op: Write) -> tuple[int, ...]:
    """Extents of what a store or atomic touches."""
    if isinstance(op, (tile.Store, tile.AtomicBlock)):
        return tuple(n for n in op.extents.get_values() if n >= 0)
    return op.pointers.type.extents if isinstance(op.pointers.type, TileType) else ()


def place(
    nest: Nest, op: Write | tile.LoadPointers, index: tuple[Index, ...]
) -> tuple[Chunk, str | None]:
    """Pointers and mask of an access at an index."""
    if isinstance(op, (tile.Store, tile.AtomicBlock)):
        return nest.locate(op, index)[:2]
    at, mask = nest.eval(op.pointers, index), None
    if op.mask is not None:
        given = nest.spread(op.mask, index)
        mask = given.base if nest.width == 1 else nest.lanes(given, "i1")
    return at, mask


@dataclass(frozen=True)
class Word:
    """An element as an integer of its size, which atomic instructions take."""

    f: Function
    element: Attribute

    @property
    def size(self) -> int:
        """In bytes."""
        return numbers.size(self.element)

    @property
    def t(self) -> str:
        return f"i{8 * self.size}"

    def value(self, x: str) -> str:
        """A held value from the integer."""
        stored = numbers.stored(self.element)
        if stored != self.t:
            x = self.f.emit(
                f"{'inttoptr' if stored == 'ptr' else 'bitcast'} {self.t} {x} to {stored}"
            )
        return numbers.unpack(self.f, self.element, x, 1)

    def of(self, x: str) -> str:
        """The inverse of `value`."""
        stored, x = numbers.stored(self.element), numbers.pack(self.f, self.element, x, 1)
        if stored == self.t:
            return x
        opcode = "ptrtoint" if stored == "ptr" else "bitcast"
        return self.f.emit(f"{opcode} {stored} {x} to {self.t}")


class Update:
    """The read-modify-write of an atomic operation, element by element."""

    def __init__(self, f: Function, op: tile.Atomic | tile.AtomicBlock):
        self.f, self.kind = f, op.kind.data
        if isinstance(op, tile.AtomicBlock):
            self.element, semantics = array_type(op.array).element, "relaxed"
        else:
            self.element = pointee_of(op.pointers.type)
            semantics = "acq_rel" if op.semantics is None else op.semantics.data
        self.order = ORDER[semantics]
        self.orders = f"{self.order} {WEAKER.get(self.order, self.order)}"
        self.word = Word(f, self.element)

    def write(self, pointer: str, value: str, expected: str | None) -> str:
        """One update; the old value."""
        f, word, element = self.f, self.word, self.element
        if expected is not None:
            return self._compare(pointer, value, expected)
        if not is_float(element) and not isinstance(element, PointerType):
            unsigned = "u" if is_unsigned(element) else ""
            name = INTEGER_UPDATES.get(self.kind) or unsigned + self.kind
            new = numbers.pack(f, element, value, 1)
            old = self._rmw(name, pointer, numbers.stored(element), new)
            return numbers.unpack(f, element, old, 1)
        if self.kind == "exchange":
            return word.value(self._rmw("xchg", pointer, word.t, word.of(value)))
        t = numbers.stored(element)
        if self.kind == "add" and t in ("float", "double"):
            return self._rmw("fadd", pointer, t, value)
        return self._until_unchanged(
            pointer, lambda old: functions.elementwise(f, self.kind, element, 1, old, value)
        )

    def _rmw(self, name: str, pointer: str, t: str, value: str) -> str:
        return self.f.emit(f"atomicrmw {name} ptr {pointer}, {t} {value} {self.order}")

    def _compare(self, pointer: str, value: str, expected: str) -> str:
        """By bits, of floats too, as the GPU's instruction does."""
        word = self.word
        return word.value(self._swap(pointer, word.of(expected), word.of(value))[0])

    def _swap(self, pointer: str, expected: str, new: str) -> tuple[str, str]:
        """A compare-and-swap of words: what was found, and whether it was as expected."""
        f, t = self.f, self.word.t
        pair = f.emit(f"cmpxchg ptr {pointer}, {t} {expected}, {t} {new} {self.orders}")
        found, equal = (f.emit(f"extractvalue {{ {t}, i1 }} {pair}, {i}") for i in (0, 1))
        return found, equal

    def _until_unchanged(self, pointer: str, new: Callable[[str], str]) -> str:
        """Repeats a compare-and-swap until no other thread came between; new(old value) is what
        is to be stored. The old value.
        """
        f, word = self.f, self.word
        first, before = f.load(word.t, pointer, word.size), f.block
        head, done, seen = f.fresh("try"), f.fresh("done"), f.fresh("seen")
        f.branch(head)
        f.label(head)
        phi = f.section()
        old = word.value(seen)
        found, unchanged = self._swap(pointer, seen, word.of(new(old)))
        f.branch_if(unchanged, done, head)
        phi.append(f"  {seen} = phi {word.t} [{first}, {before}], [{found}, {f.block}]")
        f.label(done)
        return old
