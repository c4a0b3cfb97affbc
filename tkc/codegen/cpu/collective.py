"""Reductions, scans, sorting and histograms.

A reduction along the vector axis keeps one accumulator a lane and folds the lanes at the end,
always in the same order; along
another axis every lane reduces its own column.  The first element starts the accumulator, so no kind needs an identity.
Short floats are summed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tkc.codegen.cpu import functions, numbers
from tkc.codegen.cpu.emit import LANES, iota, vec
from tkc.codegen.cpu.nest import ZERO, Chunk, Index, Nest, vector_axis
from tkc.codegen.cpu.planning import tiles
from tkc.ir import tile
from tkc.ir.reductions import FUNCTION
from tkc.ir.types import TileType, element_of, is_bool, is_float

State = Sequence[str]  # accumulators, held, of `w` lanes
# of `cost`: below it a reduction runs over 64 lanes at once, to hide the latency of the sums
CHEAP = 8


def branches(region) -> bool:
    """Does a combine region hold control flow?"""
    return region is not None and any(op.regions for op in region.block.ops)


class Collective:
    def combiner(
        self, op, nest: Nest
    ) -> tuple[list[str], Callable[[State, State, int], list[str]]]:
        """Types of the accumulators, and what joins two states of w lanes, written where the code
        stands.
        """
        f, kind, element = self.f, op.kind.data, element_of(op.args[0].type)
        t = numbers.held(element)
        if kind == "combine":
            types = [numbers.held(element_of(a.type)) for a in op.args]
            return types, lambda a, b, w: self.region_of(op.combine, nest, [*a, *b], w)
        if kind in ("argmax", "argmin"):

            def better(a, b, w):
                """b, if it is better, or as good and earlier; NaN is best of all."""
                T, I, M = vec(t, w), vec("i32", w), vec("i1", w)
                if is_float(element):
                    na, nb = (f.emit(f"fcmp uno {T} {x}, {x}") for x in (a[0], b[0]))
                    ahead = f.emit(
                        f"fcmp {'ogt' if kind == 'argmax' else 'olt'} {T} {b[0]}, {a[0]}"
                    )
                    ahead = f.op(
                        "or",
                        M,
                        ahead,
                        f.op(
                            "and", M, nb, f.op("xor", M, na, "splat (i1 true)" if w > 1 else "true")
                        ),
                    )
                    equal = f.op(
                        "or", M, f.emit(f"fcmp oeq {T} {a[0]}, {b[0]}"), f.op("and", M, na, nb)
                    )
                else:
                    ahead = functions.elementwise(
                        f, "gt" if kind == "argmax" else "lt", element, w, b[0], a[0]
                    )
                    equal = f.emit(f"icmp eq {T} {a[0]}, {b[0]}")
                earlier = f.op("and", M, equal, f.emit(f"icmp slt {I} {b[1]}, {a[1]}"))
                take = f.op("or", M, ahead, earlier)
                return [f.select(take, T, b[0], a[0], w), f.select(take, I, b[1], a[1], w)]

            return [t, "i32"], better

        def simple(a, b, w):
            if is_float(element):
                return [functions.of_floats(f, FUNCTION[kind], t, w, a[0], b[0])]
            return [functions.elementwise(f, FUNCTION[kind], element, w, a[0], b[0])]

        return [t], simple

    def region_of(self, region, nest: Nest, args: Sequence[str], w: int) -> list[str]:
        """A combine region on w lanes: chunk by chunk if its operations are element-wise, as code
        of its own (w = 1) if it branches.
        """
        if branches(region):
            self.env.update(zip(region.block.args, args, strict=True))
            self.body(region.block)
            return [self.env[v] for v in region.block.last_op.operands]
        vector, depth = w > 1, len(nest.levels) - 1
        local = {
            v: Chunk(x, 0, depth, vector) for v, x in zip(region.block.args, args, strict=True)
        }
        saved, nest.width = nest.width, w
        section = self.f.section()
        level, nest.levels[depth].part = nest.levels[depth].part, section
        for op in region.block.ops:
            if isinstance(op, tile.Yield):
                break
            local[op.results[0]] = (
                nest.result_of(op, ())
                if not op.operands
                else nest.compute(
                    op, [local[v] if v in local else Chunk(self.env[v]) for v in op.operands]
                )
            )
        out = []
        with self.f.at(section):
            for v in region.block.last_op.operands:
                out.append(
                    nest.lanes(local[v] if v in local else Chunk(self.env[v]), numbers.held(v.type))
                )
        nest.levels[depth].part, nest.width = level, saved
        return out

    def inputs(self, op, nest: Nest, index: tuple[Index, ...]) -> list[str]:
        """The operands of a reduction at an index, as states: held lanes, with the position for
        argmax.
        """
        out = [nest.lanes(nest.eval(v, index), numbers.held(element_of(v.type))) for v in op.args]
        if op.kind.data in ("any", "all") and not is_bool(element_of(op.args[0].type)):
            raise NotImplementedError(
                f"'{op.kind.data}' of {element_of(op.args[0].type)}; compare with 0 first"
            )
        if op.kind.data.startswith("arg"):
            i = index[op.axis.value.data]
            position = (
                nest.once(
                    ("position", i), i.depth, lambda: self.f.emit(f"trunc i64 {i.base} to i32")
                )
                if i.base.startswith("%")
                else i.base
            )
            out.append(nest.lanes(Chunk(position, i.step, i.depth), "i32"))
        return out

    def finish(self, op, state: State, w: int) -> list[str]:
        """From accumulators to results: rounded, without the values of argmax."""
        if op.kind.data.startswith("arg"):
            return [state[1]]
        if op.kind.data == "combine":
            return list(state)
        return [numbers.rounded(self.f, element_of(op.args[0].type), state[0], w)]

    def fold(self, types: Sequence[str], state: State, w: int, join) -> list[str]:
        """w lanes to one: halves, the lower one first."""
        f = self.f
        if w == 1:
            return list(state)
        low = 1 << (w - 1).bit_length() - 1

        def part(x, t, a, n):
            return (
                f.extract(t, x, a, w)
                if n == 1
                else f.emit(
                    f"shufflevector {vec(t, w)} {x}, {vec(t, w)} poison, <{n} x i32>"
                    f" {iota('i32', n, a)}"
                )
            )

        lower, upper = (
            [part(x, t, 0, low) for x, t in zip(state, types, strict=False)],
            [part(x, t, low, w - low) for x, t in zip(state, types, strict=False)],
        )
        if w - low == low:
            return self.fold(types, join(lower, upper, low), low, join)
        return join(self.fold(types, lower, low, join), self.fold(types, upper, w - low, join), 1)

    def reduce(self, op) -> None:
        self.done.add(op)
        shape, axis = op.args[0].type.extents, op.axis.value.data
        others = self.prepare(list(op.args))
        results = [
            self.buffer(r.type) if isinstance(r.type, TileType) else None for r in op.results
        ]
        kept = [n for a, n in enumerate(shape) if a != axis]
        nest = Nest(self.f, self.env)
        types, join = self.combiner(op, nest)
        lanes = axis == vector_axis(shape) and op.kind.data != "combine"

        def at(index: tuple[Index, ...], i: Index):
            return (*index[:axis], i, *index[axis:])

        def inputs(index: tuple[Index, ...]) -> list[str]:
            out, beside = (
                self.inputs(op, nest, index),
                [(b, nest.eval(v, index)) for v, b in others.items()],
            )
            for b, c in beside:
                nest.keep(b, index, c)
            return out

        def deliver(index: tuple[Index, ...], state: State, w: int):
            for r, b, x in zip(op.results, results, self.finish(op, state, w), strict=False):
                if b is None:
                    self.env[r] = x
                else:
                    nest.keep(b, index, Chunk(x, 0, len(nest.levels) - 1, w > 1))

        def along_lanes(index: tuple[Index, ...]):
            n = shape[axis]
            width = (
                LANES
                if n < 8 * LANES or self.costs_more(op.args, CHEAP) or len(types) > 1
                else 4 * LANES
            )
            state, at_ = None, 0
            while at_ < n:
                width = min(width, 1 << (n - at_).bit_length() - 1) if n - at_ >= LANES else n - at_
                count = (n - at_) // width
                part = self.chunked(
                    nest, types, lambda i: inputs(at(index, i)), join, at_, count, width
                )
                part = self.fold(types, part, width, join)
                state, at_ = part if state is None else join(state, part, 1), at_ + count * width
            deliver(index, state, 1)

        def along_columns(index: tuple[Index, ...]):
            w = nest.width
            first = self.first(nest, lambda: inputs(at(index, ZERO)))
            carried = [(vec(t, w), x) for t, x in zip(types, first, strict=False)]
            deliver(
                index,
                nest.loop(
                    shape[axis],
                    1,
                    carried,
                    lambda i, *state: join(state, inputs(at(index, i)), w),
                    start=1,
                ),
                w,
            )

        nest.walk(
            kept,
            along_lanes if lanes else along_columns,
            lanes=1 if lanes or branches(op.combine) else LANES,
        )
        for v, b in others.items():
            self.own(v, b)
        for r, b in zip(op.results, results, strict=False):
            if b is not None:
                self.own(r, b)

    def first(self, nest: Nest, make):
        """Code of the first element, in a level of its own (its memo ends with it)."""
        out = []
        nest.loop(1, 1, [], lambda _: out.extend(make()) or ())
        return out

    def chunked(
        self, nest: Nest, types, inputs, join, start: int, count: int, width: int
    ) -> list[str]:
        """Accumulators of `width` lanes over `count` chunks."""
        nest.width = width

        def step(base, depth=0):
            return Index(base, int(width > 1), depth)

        first = self.first(nest, lambda: inputs(step(str(start))))
        carried = [(vec(t, width), x) for t, x in zip(types, first, strict=False)]
        out = nest.loop(
            start + count * width,
            width,
            carried,
            lambda i, *state: join(state, inputs(i), width),
            lanes=True,
            start=start + width,
        )
        nest.width = 1
        return out

    def reduced_scalar(self, kind: str, v: SSAValue) -> str:
        """All elements of a tile reduced to one register."""
        flat = v
        while isinstance(flat.type, TileType):
            op = tile.Reduce(kind, flat, flat.type.rank - 1)
            self.reduce(op)
            flat = op.results[0]
        return self.env[flat]

    # ----------------------------------------------------------------------------------------------
    def scan(self, op) -> None:
        self.done.add(op)
        shape, axis, reverse = op.args[0].type.extents, op.axis.value.data, op.reverse is not None
        others = self.prepare(list(op.args))
        for v, b in others.items():
            self.fill(b, v)
            self.own(v, b)
        results = [self.buffer(r.type) for r in op.results]
        nest = Nest(self.f, self.env)
        types, join = self.combiner(op, nest)
        kept, n = [m for a, m in enumerate(shape) if a != axis], shape[axis]

        def at(index, i):
            return (*index[:axis], nest.shift(i, -1, n - 1) if reverse else i, *index[axis:])

        def column(index: tuple[Index, ...]):
            w = nest.width

            def deliver(i, state):
                for b, x in zip(results, self.finish(op, state, w), strict=False):
                    nest.keep(b, at(index, i), Chunk(x, 0, len(nest.levels) - 1, w > 1))
                return state

            def start():
                state = self.inputs(op, nest, at(index, ZERO))
                deliver(ZERO, state)
                return state

            first = self.first(nest, start)
            nest.loop(
                n,
                1,
                [(vec(t, w), x) for t, x in zip(types, first, strict=False)],
                lambda i, *state: deliver(i, join(state, self.inputs(op, nest, at(index, i)), w)),
                start=1,
            )

        nest.walk(
            kept, column, lanes=1 if axis == vector_axis(shape) or branches(op.combine) else LANES
        )
        for r, b in zip(op.results, results, strict=False):
            self.own(r, b)

    # ----------------------------------------------------------------------------------------------
    def histogram(self, op) -> None:
        self.done.add(op)
        self.prepare(tiles(op.operands))
        out, f, nest = self.buffer(op.result.type), self.f, Nest(self.f, self.env)
        nest.walk(op.result.type.extents, lambda index: nest.keep(out, index, Chunk("0")))
        nest = Nest(self.f, self.env)
        element, bins = op.arg.type.element, op.result.type.size

        def one(index):
            x = nest.wide(nest.eval(op.arg, index), element).base
            inside = f.emit(f"icmp ult i64 {x}, {bins}")
            if op.mask is not None:
                inside = f.op("and", "i1", inside, nest.spread(op.mask, index).base)

            def count():
                at = f.gep(out.pointer, x, 4)
                f.store("i32", f.op("add", "i32", f.load("i32", at, 4), "1"), at, 4)

            f.when(inside, count)

        nest.walk(op.arg.type.extents, one, lanes=1)
        self.own(op.result, out)

    def sort(self, op) -> None:
        """Merge sort of every row, NaN last: runs of 1, 2, 4, … between two halves of scratch
        memory.
        """
        self.done.add(op)
        out, f, element, shape = (
            self.buffer(op.result.type),
            self.f,
            op.result.type.element,
            op.result.type.extents,
        )
        self.fill(out, op.arg)
        size = numbers.size(element)
        spare, offset = self.scratch(shape[-1] * size)
        name = self.merge_sort(element, op.descending is not None)
        rows = op.result.type.size // shape[-1]

        def row(i):
            f.do_call(
                name,
                ("ptr", f.gep(out.pointer, f.mul(i, str(shape[-1])), size)),
                ("ptr", spare),
                ("i64", str(shape[-1])),
            )
            return ()

        f.loop(rows, 1, [], row)
        self.release(offset, shape[-1] * size)
        self.own(op.result, out)

    def merge_sort(self, element, descending: bool) -> str:
        """@sort(row, spare, n), bottom up and stable."""
        name = f"sort.{element}.{descending}"
        if name in self.module.functions:
            return name
        f, size = (
            self.module.function(name, "void", [("ptr", "row"), ("ptr", "spare"), ("i64", "n")]),
            numbers.size(element),
        )
        t, memory, last = numbers.held(element), numbers.stored(element), is_float(element)

        def read(base, i):
            raw = f.load(memory, f.gep(base, i, size), size)
            return raw, numbers.unpack(f, element, raw, 1)

        def before(a, b):
            """b goes before a: strictly smaller, and numbers before NaN."""
            less = functions.elementwise(f, "gt" if descending else "lt", element, 1, b, a)
            if not last:
                return less
            nan = f.emit(f"fcmp uno {t} {a}, {a}")
            return f.op("or", "i1", less, f.op("and", "i1", nan, f.emit(f"fcmp ord {t} {b}, {b}")))

        def smin(a, b):
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
        take_b = f.op(
            "and", "i1", right, f.op("or", "i1", before(x, y), f.op("xor", "i1", left, "true"))
        )
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
