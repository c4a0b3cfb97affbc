"""Prints and asserts: what a program says to the host."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tkc.codegen.cpu import numbers
from tkc.codegen.cpu.checked import CHECK
from tkc.codegen.cpu.collective import Collective
from tkc.codegen.cpu.entry import return_if_signalled, word
from tkc.codegen.cpu.nest import memory_type
from tkc.ir import tile
from tkc.ir.messages import literals
from tkc.ir.text import location_of
from tkc.ir.types import TileType


class Messages(Collective):
    """The part of the lowering that writes `messages` and the code that refers to them."""

    def print(self, op: tile.Print) -> None:
        """Scalars and tiles go through memory to the host's callback: (number of the message,
        address of the values).
        """
        f = self.f
        spots = [(self._in_memory(v), v) for v in op.args]
        table, _ = self.scratch(8 * max(1, len(spots)))
        types = []
        for i, (pointer, v) in enumerate(spots):
            f.store("ptr", pointer, f.gep(table, str(i), 8), 8)
            is_tile = isinstance(v.type, TileType)
            t = v.type if isinstance(v.type, TileType) else TileType([1], v.type)
            types.append([str(t.element), list(t.extents), is_tile])
        number = len(self.messages)
        self.messages.append(
            {"kind": "print", "text": literals(op.text.data, len(types)), "types": types}
        )
        # where the callback would be the first Python code since a signal, it could not return what
        # the signal's handler raises
        return_if_signalled(f)
        callback = f.load("ptr", word(f, "print"), 8)
        f.do(f"call void {callback}(i64 {number}, ptr {table})")

    def _in_memory(self, v: SSAValue) -> str:
        """A pointer to the elements of a tile or to a scalar."""
        if isinstance(v.type, TileType):
            return self.materialize(v).pointer
        f, b = self.f, self.buffer(TileType([1], v.type))
        x = numbers.pack(f, v.type, self.env.register(v), 1)
        if numbers.stored(v.type) == "half":
            x = f.emit(f"bitcast half {x} to i16")
        f.store(memory_type(v.type), x, b.pointer, numbers.size(v.type))
        return b.pointer

    def check(self, op: tile.Assert) -> None:
        """The numbers of the first failing assert and of its program are left in the context, and
        the program ends.
        """
        f = self.f
        if isinstance(op.condition.type, TileType):
            self.done.add(op)
            condition = self.reduced_scalar("all", op.condition)
        else:
            condition = self.env.register(op.condition)
        number, location, text = len(self.messages) + 1, location_of(op), op.text.data
        if CHECK not in op.attributes:
            text = f"tkc.device_assert failed{': ' if text else ''}{text}"
        place = None if location is None else [location.file, location.line, location.column]
        self.messages.append({"kind": "assert", "text": text, "place": place})
        fail, first, go = (f.fresh(name) for name in ("fail", "first", "go"))
        f.branch_if(condition, go, fail)
        f.label(fail)
        swap = f"cmpxchg ptr {word(f, 'error')}, i64 0, i64 {number} monotonic monotonic"
        won = f.emit(f"extractvalue {{i64, i1}} {f.emit(swap)}, 1")
        f.branch_if(won, first, "%over")
        f.label(first)
        p0, p1, p2, n0, n1 = (
            f.emit(f"zext i32 %{name} to i64") for name in ("p0", "p1", "p2", "n0", "n1")
        )
        program = f.op("add", "i64", p0, f.mul(n0, f.op("add", "i64", p1, f.mul(n1, p2))))
        f.store("i64", program, word(f, "where"), 8)
        f.do(f"store atomic i64 1, ptr {word(f, 'attention')} seq_cst, align 8")
        f.branch("%over")
        f.label(go)
