"""Loads, stores, atomics, prints and asserts: what happens in the order of the program."""

from __future__ import annotations

from xdsl.ir import Operation

from tkc.codegen.cpu import functions, numbers
from tkc.codegen.cpu.checked import CHECK
from tkc.codegen.cpu.entry import return_if_signalled, word
from tkc.codegen.cpu.nest import Chunk, Index, Nest, memory_type
from tkc.codegen.cpu.planning import tiles
from tkc.ir import tile
from tkc.ir.messages import literals
from tkc.ir.text import location_of
from tkc.ir.types import PointerType, TileType, element_of, is_float, is_unsigned
from tkc.ir.values import tile_type

ORDER = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
INTEGER_UPDATES = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}


class Memory:
    def load(self, op: Operation) -> None:
        """A scalar load, or one that acquires (which happens here and now, and before which no load
        waits).
        """
        nest = Nest(self.f, self.env)
        if isinstance(op, tile.LoadPointers) and op.semantics is not None:
            return self.acquire(op)
        self.env[op.result] = (
            nest.load(op, ()) if isinstance(op, tile.Load) else nest.load_pointers(op, ())
        ).base

    def store(self, op: Operation) -> None:
        self.force_loads(op, None if getattr(op, "semantics", None) is not None else [op])
        if getattr(op, "semantics", None) is not None:
            self.f.do("fence release")
        self.done.add(op)
        shape = self.shape_of(op)
        others = self.prepare(
            tiles(
                v for v in op.operands if isinstance(v.type, TileType) and v.type.extents == shape
            )
        )
        for v in tiles(op.operands):
            if tile_type(v).extents != shape:
                self.prepare([v])
        nest = Nest(self.f, self.env)

        def chunk(index: tuple[Index, ...]):
            at, mask = self.place(nest, op, index)
            value = nest.spread(op.value, index)
            beside = [(b, nest.eval(v, index)) for v, b in others.items()]
            nest.put(at, element_of(op.value.type), value, mask)
            for b, c in beside:
                nest.keep(b, index, c)

        nest.walk(shape, chunk)
        for v, b in others.items():
            self.own(v, b)

    def shape_of(self, op: Operation) -> tuple[int, ...]:
        """Extents of what a store or atomic touches."""
        if hasattr(op, "array"):
            return tuple(n for n in op.extents.get_values() if n >= 0)
        return op.pointers.type.extents if isinstance(op.pointers.type, TileType) else ()

    def place(
        self, nest: Nest, op: Operation, index: tuple[Index, ...]
    ) -> tuple[Chunk, str | None]:
        """Pointers and mask of a store or atomic at an index."""
        if hasattr(op, "array"):
            return nest.locate(op, index)[:2]
        at, mask = nest.eval(op.pointers, index), None
        if op.mask is not None:
            given = nest.spread(op.mask, index)
            mask = given.base if nest.width == 1 else nest.lanes(given, "i1")
        return at, mask

    # ----------------------------------------------------------------------------------------------
    def acquire(self, op) -> None:
        """Loads that order what follows: one atomic load an element, then a fence."""
        self.force_loads(op)
        t, element = op.result.type, element_of(op.result.type)
        word, size = f"i{8 * numbers.size(element)}", numbers.size(element)
        result = self.buffer(t) if isinstance(t, TileType) else None
        self.done.add(op)
        self.prepare(tiles(op.operands))
        nest = Nest(self.f, self.env)

        def one(index):
            f = self.f
            at, mask = self.place(nest, op, index)
            where = at.base if mask is None else f.select(mask, "ptr", at.base, "@zeros")
            raw = f.emit(
                f"load atomic {word}, ptr {where}"
                f" {'acquire' if op.semantics.data != 'relaxed' else 'monotonic'}, align {size}"
            )
            x = numbers.unpack(f, element, self.from_word(raw, word, numbers.stored(element)), 1)
            if mask is not None and op.other is not None:
                x = f.select(mask, numbers.held(element), x, nest.spread(op.other, index).base)
            if result is None:
                self.env[op.result] = x
            else:
                nest.keep(result, index, Chunk(x))

        nest.walk(t.extents if result else (), one, lanes=1)
        if result:
            self.own(op.result, result)

    def from_word(self, x: str, word: str, t: str) -> str:
        return (
            x
            if word == t
            else self.f.emit(f"{'inttoptr' if t == 'ptr' else 'bitcast'} {word} {x} to {t}")
        )

    def to_word(self, x: str, t: str, word: str) -> str:
        return (
            x
            if word == t
            else self.f.emit(f"{'ptrtoint' if t == 'ptr' else 'bitcast'} {t} {x} to {word}")
        )

    def atomic(self, op) -> None:
        self.force_loads(op)
        result = getattr(op, "result", None)
        shape = self.shape_of(op)
        old = (
            self.buffer(result.type)
            if result is not None and isinstance(result.type, TileType)
            else None
        )
        self.done.add(op)
        for v in tiles(op.operands):
            for x, b in self.prepare([v]).items():
                self.fill(b, x)
                self.own(x, b)
        element = (
            op.array.type.element if hasattr(op, "array") else element_of(op.pointers.type).element
        )
        order = ORDER[
            op.semantics.data
            if getattr(op, "semantics", None) is not None
            else "relaxed"
            if hasattr(op, "array")
            else "acq_rel"
        ]
        nest = Nest(self.f, self.env)

        def one(index):
            at, mask = self.place(nest, op, index)
            value = nest.spread(op.value, index).base
            expected = (
                nest.spread(op.expected, index).base
                if getattr(op, "expected", None) is not None
                else None
            )
            got: list[str] = []
            if mask is None:
                got.append(self.update(op.kind.data, element, at.base, value, expected, order))
            else:
                before = self.f.block
                self.f.when(
                    mask,
                    lambda: got.extend(
                        (
                            self.update(op.kind.data, element, at.base, value, expected, order),
                            self.f.block,
                        )
                    ),
                )
                zero = {"float": "0.0", "double": "0.0", "ptr": "null", "i1": "false"}.get(
                    numbers.held(element), "0"
                )
                got[0] = self.f.emit(
                    f"phi {numbers.held(element)} [{got[0]}, {got[1]}], [{zero}, {before}]"
                )
            if old is not None:
                nest.keep(old, index, Chunk(got[0], 0, len(nest.levels) - 1))
            elif result is not None:
                self.env[result] = got[0]

        nest.walk(shape, one, lanes=1)
        if old is not None:
            self.own(result, old)

    def update(
        self, kind: str, element, pointer: str, value: str, expected: str | None, order: str
    ) -> str:
        """One read-modify-write; the old value."""
        f, t, size = self.f, numbers.stored(element), numbers.size(element)
        word = f"i{8 * size}"
        if not is_float(element) and not isinstance(element, PointerType) and kind != "compare":
            name = INTEGER_UPDATES.get(kind) or ("u" if is_unsigned(element) else "") + kind
            old = f.emit(
                f"atomicrmw {name} ptr {pointer}, {t} {numbers.pack(f, element, value, 1)} {order}"
            )
            return numbers.unpack(f, element, old, 1)
        if kind == "add" and t in ("float", "double"):
            return f.emit(f"atomicrmw fadd ptr {pointer}, {t} {value} {order}")

        def to_word(x):
            return self.to_word(numbers.pack(f, element, x, 1), t, word)

        def of_word(x):
            return numbers.unpack(f, element, self.from_word(x, word, t), 1)

        weaker = {"release": "monotonic", "acq_rel": "acquire"}.get(order, order)
        if kind == "compare":
            if is_float(element):
                return self.compare_floats(element, pointer, value, expected, order, weaker)
            pair = f.emit(
                f"cmpxchg ptr {pointer}, {word} {to_word(expected)}, {word} {to_word(value)}"
                f" {order} {weaker}"
            )
            return of_word(f.emit(f"extractvalue {{ {word}, i1 }} {pair}, 0"))
        if kind == "exchange":
            return of_word(f.emit(f"atomicrmw xchg ptr {pointer}, {word} {to_word(value)} {order}"))
        return self.exchange_until(
            element,
            pointer,
            order,
            weaker,
            lambda old: functions.elementwise(f, kind, element, 1, old, value),
        )

    def exchange_until(self, element, pointer: str, order: str, weaker: str, new) -> str:
        """cmpxchg until nobody came between; new(old value) gives what is to be stored."""
        f, t, size = self.f, numbers.stored(element), numbers.size(element)
        word = f"i{8 * size}"
        first, before = f.load(word, pointer, size), f.block
        head, done, seen = f.fresh("try"), f.fresh("done"), f.fresh("seen")
        f.branch(head)
        f.label(head)
        phi = f.section()
        old = numbers.unpack(f, element, self.from_word(seen, word, t), 1)
        replacement = self.to_word(numbers.pack(f, element, new(old), 1), t, word)
        pair = f.emit(
            f"cmpxchg ptr {pointer}, {word} {seen}, {word} {replacement} {order} {weaker}"
        )
        found, ok = (
            f.emit(f"extractvalue {{ {word}, i1 }} {pair}, 0"),
            f.emit(f"extractvalue {{ {word}, i1 }} {pair}, 1"),
        )
        f.branch_if(ok, done, head)
        phi.append(f"  {seen} = phi {word} [{first}, {before}], [{found}, {f.block}]")
        f.label(done)
        return old

    def compare_floats(
        self, element, pointer: str, value: str, expected: str, order: str, weaker: str
    ) -> str:
        """Compare by value (0 equals −0, NaN nothing), as arithmetic does."""
        f = self.f

        def new(old):
            equal = f.emit(f"fcmp oeq {numbers.held(element)} {old}, {expected}")
            return f.select(equal, numbers.held(element), value, old)

        return self.exchange_until(element, pointer, order, weaker, new)

    # ----------------------------------------------------------------------------------------------
    def print(self, op) -> None:
        """Scalars and tiles go through memory to the host's callback: (number of the message,
        address of the values).
        """
        f, spots = self.f, []
        for v in op.args:
            if isinstance(v.type, TileType):
                b = self.materialize(v)
                spots.append((b.pointer, v.type))
            else:
                b = self.buffer(TileType([1], v.type))
                self.f.store(
                    memory_type(v.type), self.as_memory(v), b.pointer, numbers.size(v.type)
                )
                spots.append((b.pointer, TileType([1], v.type)))
        table, _ = self.scratch(8 * max(1, len(spots)))
        for i, (pointer, _) in enumerate(spots):
            f.store("ptr", pointer, f.gep(table, str(i), 8), 8)
        number = len(self.messages)
        types = [
            [str(t.element), list(t.extents), isinstance(v.type, TileType)]
            for (_, t), v in zip(spots, op.args, strict=False)
        ]
        self.messages.append(
            {"kind": "print", "text": literals(op.text.data, len(types)), "types": types}
        )
        # where the callback would be the first Python code since a signal, it could not return what
        # the signal's handler raises
        return_if_signalled(f)
        callback = f.load("ptr", word(f, "print"), 8)
        f.do(f"call void {callback}(i64 {number}, ptr {table})")

    def as_memory(self, v) -> str:
        x = numbers.pack(self.f, v.type, self.env[v], 1)
        return self.f.emit(f"bitcast half {x} to i16") if numbers.stored(v.type) == "half" else x

    def check(self, op) -> None:
        """The numbers of the first failing assert and of its program are left in the context, and
        the program ends.
        """
        f = self.f
        condition = self.env.get(op.condition)
        if isinstance(op.condition.type, TileType):
            self.done.add(op)
            condition = self.reduced_scalar("all", op.condition)
        number = len(self.messages)
        place = location_of(op)
        said = (
            op.text.data
            if CHECK in op.attributes
            else f"tkc.device_assert failed{': ' if op.text.data else ''}{op.text.data}"
        )
        self.messages.append(
            {
                "kind": "assert",
                "text": said,
                "place": [place.file, place.line, place.column] if place is not None else None,
            }
        )
        fail, first, go = (f.fresh(name) for name in ("fail", "first", "go"))
        f.branch_if(condition, go, fail)
        f.label(fail)
        won = f.emit(f"cmpxchg ptr {word(f, 'error')}, i64 0, i64 {number + 1} monotonic monotonic")
        f.branch_if(f.emit(f"extractvalue {{i64, i1}} {won}, 1"), first, "%over")
        f.label(first)
        p0, p1, p2, n0, n1 = (
            f.emit(f"zext i32 %{name} to i64") for name in ("p0", "p1", "p2", "n0", "n1")
        )
        program = f.op("add", "i64", p0, f.mul(n0, f.op("add", "i64", p1, f.mul(n1, p2))))
        f.store("i64", program, word(f, "where"), 8)
        f.do(f"store atomic i64 1, ptr {word(f, 'attention')} seq_cst, align 8")
        f.branch("%over")
        f.label(go)
