"""Sorting, histograms, gathers within a tile."""

from __future__ import annotations

from xdsl.ir import Attribute

from tkc.codegen.cpu import functions, numbers
from tkc.codegen.cpu.emit import Function
from tkc.codegen.cpu.nest import Nest
from tkc.codegen.cpu.planning import Planning
from tkc.codegen.cpu.values import Chunk, Index
from tkc.ir import tile
from tkc.ir.types import element_of, is_float
from tkc.ir.values import tile_type, tiles


class Sorting(Planning):
    """The part of the lowering that puts elements where their values say."""

    def histogram(self, op: tile.Histogram) -> None:
        """How many elements have each number, element by element."""
        self.done.add(op)
        self.prepare(tiles(op.operands))
        out, bins, f = self.buffer_for(op.result), tile_type(op.result).size, self.f
        nest = Nest(f, self.env)
        nest.walk(out.shape, lambda index: nest.keep(out, index, Chunk("0")))
        counts = Nest(f, self.env)

        def one(index: tuple[Index, ...]) -> None:
            x = counts.wide(counts.eval(op.arg, index), element_of(op.arg.type)).base
            inside = f.emit(f"icmp ult i64 {x}, {bins}")
            if op.mask is not None:
                inside = f.op("and", "i1", inside, counts.spread(op.mask, index).base)

            def count() -> None:
                at = f.gep(out.pointer, x, 4)
                f.store("i32", f.op("add", "i32", f.load("i32", at, 4), "1"), at, 4)

            f.when(inside, count)

        counts.walk(tile_type(op.arg).extents, one, lanes=1)
        self.own(op.result, out)

    def gather(self, op: tile.Gather) -> None:
        """Element by element, out of a buffer."""
        self.done.add(op)
        source, axis = self.buffer_for(op.arg), op.axis.value.data
        self.fill(source, op.arg)
        self.prepare([op.index])
        out, nest = self.buffer_for(op.result), Nest(self.f, self.env)

        def one(index: tuple[Index, ...]) -> None:
            place = nest.wide(nest.eval(op.index, index), element_of(op.index.type))
            at = (*index[:axis], Index(place.base, 0, place.depth), *index[axis + 1 :])
            nest.keep(out, index, nest.element_at(source, at))

        nest.walk(out.shape, one, lanes=1)
        self.own(op.result, out)

    def sort(self, op: tile.Sort) -> None:
        """Merge sort of every row, NaN last: runs of 1, 2, 4, … between two halves of scratch
        memory.
        """
        self.done.add(op)
        f, t = self.f, tile_type(op.result)
        out, n, size = self.buffer(t), t.extents[-1], numbers.size(t.element)
        self.fill(out, op.arg)
        spare, offset = self.scratch(n * size)
        name = self.merge_sort(t.element, op.descending is not None)

        def row(i: str) -> None:
            at = f.gep(out.pointer, f.mul(i, str(n)), size)
            f.do_call(name, ("ptr", at), ("ptr", spare), ("i64", str(n)))

        f.loop(t.size // n, 1, [], row)
        self.release(offset, n * size)
        self.own(op.result, out)

    def merge_sort(self, element: Attribute, descending: bool) -> str:
        """@sort(row, spare, n), bottom up and stable."""
        name = f"sort.{element}.{descending}"
        if name in self.module.functions:
            return name
        f = self.module.function(name, "void", [("ptr", "row"), ("ptr", "spare"), ("i64", "n")])
        size, memory = numbers.size(element), numbers.stored(element)

        def read(base: str, i: str) -> tuple[str, str]:
            raw = f.load(memory, f.gep(base, i, size), size)
            return raw, numbers.unpack(f, element, raw, 1)

        def smin(a: str, b: str) -> str:
            return f.call("llvm.smin.i64", "i64", ("i64", a), ("i64", b))

        f.branch("%pass")
        f.label("%pass")
        f.do("%width = phi i64 [1, %entry], [%wider, %copied]")
        f.branch_if(f.emit("icmp slt i64 %width, %n"), "%runs", "%end")
        f.label("%runs")
        f.do("%low = phi i64 [0, %pass], [%high, %merged]")
        f.branch_if(f.emit("icmp slt i64 %low, %n"), "%run", "%copy")
        f.label("%run")
        f.do(f"%middle = add i64 {smin(f.emit('add i64 %low, %width'), '%n')}, 0")
        f.do(f"%high = add i64 {smin(f.emit('add i64 %middle, %width'), '%n')}, 0")
        f.branch("%merge")
        f.label("%merge")
        f.do("%i = phi i64 [%low, %run], [%i2, %next]")
        f.do("%j = phi i64 [%middle, %run], [%j2, %next]")
        f.do("%k = phi i64 [%low, %run], [%k2, %next]")
        f.branch_if(f.emit("icmp slt i64 %k, %high"), "%step", "%merged")
        f.label("%step")
        left, right = f.emit("icmp slt i64 %i, %middle"), f.emit("icmp slt i64 %j, %high")
        a, b = f.select(left, "i64", "%i", "%low"), f.select(right, "i64", "%j", "%low")
        (raw_a, x), (raw_b, y) = read("%row", a), read("%row", b)
        goes_before = _goes_before(f, element, descending, x, y)
        not_left = f.op("xor", "i1", left, "true")
        take_b = f.op("and", "i1", right, f.op("or", "i1", goes_before, not_left))
        f.store(memory, f.select(take_b, memory, raw_b, raw_a), f.gep("%spare", "%k", size), size)
        f.branch("%next")
        f.label("%next")
        not_b = f.op("xor", "i1", take_b, "true")
        one_a, one_b = f.emit(f"zext i1 {not_b} to i64"), f.emit(f"zext i1 {take_b} to i64")
        f.do(f"%i2 = add i64 %i, {one_a}")
        f.do(f"%j2 = add i64 %j, {one_b}")
        f.do("%k2 = add i64 %k, 1")
        f.branch("%merge")
        f.label("%merged")
        f.branch("%runs")
        f.label("%copy")
        f.do_call(
            "llvm.memcpy.p0.p0.i64",
            ("ptr", "%row"),
            ("ptr", "%spare"),
            ("i64", f.op("mul", "i64", "%n", str(size))),
            ("i1", "false"),
        )
        f.branch("%copied")
        f.label("%copied")
        f.do("%wider = shl i64 %width, 1")
        f.branch("%pass")
        f.label("%end")
        f.do("ret void")
        return name


def _goes_before(f: Function, element: Attribute, descending: bool, a: str, b: str) -> str:
    """Whether b goes before a: strictly smaller, and numbers before NaN."""
    less = functions.elementwise(f, "gt" if descending else "lt", element, 1, b, a)
    if not is_float(element):
        return less
    t = numbers.held(element)
    a_only = f.op("and", "i1", f.emit(f"fcmp uno {t} {a}, {a}"), f.emit(f"fcmp ord {t} {b}, {b}"))
    return f.op("or", "i1", less, a_only)
