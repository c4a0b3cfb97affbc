"""Reductions and scans.

A reduction along the vector axis keeps one accumulator a lane and folds the lanes at the end,
always in the same order; along another axis every lane reduces its own column. The first element
starts the accumulator, so no kind needs an identity. Short floats are summed in float32 and rounded
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from xdsl.ir import Attribute, Region, SSAValue

from tkc.codegen.cpu import functions, numbers
from tkc.codegen.cpu.emit import LANES, constant, vec
from tkc.codegen.cpu.nest import Nest
from tkc.codegen.cpu.planning import Planning
from tkc.codegen.cpu.values import ZERO, Buffer, Chunk, Index, vector_axis
from tkc.ir import tile
from tkc.ir.reductions import FUNCTION
from tkc.ir.types import TileType, element_of, is_bool, is_float
from tkc.ir.values import tile_type, yielded_by

State = Sequence[str]  # accumulators, held, of `w` lanes
Join = Callable[[State, State, int], list[str]]  # two states of w lanes as one
# of `cost`: below it a reduction runs over 64 lanes at once, to hide the latency of the sums
CHEAP = 8


def branches(region: Region | None) -> bool:
    """Whether a combine region holds control flow, or ends the program."""
    return region is not None and any(
        op.regions or isinstance(op, (tile.Assert, tile.Print)) for op in region.block.ops
    )


class Collective(Planning):
    """The part of the lowering that joins elements of a tile."""

    def combiner(self, op: tile.Reduce | tile.Scan, nest: Nest) -> tuple[list[str], Join]:
        """Types of the accumulators, and what joins two states of w lanes, written where the code
        stands.
        """
        f, kind, element = self.f, op.kind.data, element_of(op.args[0].type)
        t = numbers.held(element)
        if op.combine is not None:
            region, types = op.combine, [numbers.held(element_of(a.type)) for a in op.args]
            return types, lambda a, b, w: self.region_of(region, nest, [*a, *b], w)
        if kind in ("argmax", "argmin"):
            return [t, "i32"], lambda a, b, w: self._better(kind, element, a, b, w)
        name = FUNCTION[kind]
        if is_float(element):  # rounded once, at the end
            return [t], lambda a, b, w: [functions.of_floats(f, name, t, w, a[0], b[0])]
        return [t], lambda a, b, w: [functions.elementwise(f, name, element, w, a[0], b[0])]

    def _better(self, kind: str, element: Attribute, a: State, b: State, w: int) -> list[str]:
        """b, if it is better, or as good and earlier; NaN is best of all."""
        f, t, i, m = self.f, vec(numbers.held(element), w), vec("i32", w), vec("i1", w)
        ahead = functions.elementwise(f, "gt" if kind == "argmax" else "lt", element, w, b[0], a[0])
        equal = functions.elementwise(f, "eq", element, w, a[0], b[0])
        if is_float(element):
            nan_a, nan_b = (f.emit(f"fcmp uno {t} {x}, {x}") for x in (a[0], b[0]))
            number_a = f.op("xor", m, nan_a, constant("i1", True, w))
            ahead = f.op("or", m, ahead, f.op("and", m, nan_b, number_a))
            equal = f.op("or", m, equal, f.op("and", m, nan_a, nan_b))
        earlier = f.op("and", m, equal, f.emit(f"icmp slt {i} {b[1]}, {a[1]}"))
        take = f.op("or", m, ahead, earlier)
        return [f.select(take, t, b[0], a[0], w), f.select(take, i, b[1], a[1], w)]

    def region_of(self, region: Region, nest: Nest, args: Sequence[str], w: int) -> list[str]:
        """A combine region on w lanes: chunk by chunk if its operations are element-wise, as code
        of its own (w = 1) if it branches.
        """
        block = region.block
        if branches(region):
            self.env.update(zip(block.args, args, strict=True))
            self.body(block)
            return [self.env.register(v) for v in yielded_by(block)]
        depth = len(nest.levels) - 1
        local: dict[SSAValue, Chunk] = {
            v: Chunk(x, 0, depth, w > 1) for v, x in zip(block.args, args, strict=True)
        }

        def chunk_of(v: SSAValue) -> Chunk:
            return local[v] if v in local else Chunk(self.env.register(v))

        saved, nest.width = nest.width, w
        section = self.f.section()
        outer, nest.levels[depth].part = nest.levels[depth].part, section
        for op in block.ops:
            if isinstance(op, tile.Yield):
                break
            operands = [chunk_of(v) for v in op.operands]
            local[op.results[0]] = (
                nest.compute(op, operands) if operands else nest.result_of(op, ())
            )
        with self.f.at(section):
            out = [nest.lanes(chunk_of(v), numbers.held(v.type)) for v in yielded_by(block)]
        nest.levels[depth].part, nest.width = outer, saved
        return out

    def inputs(
        self, op: tile.Reduce | tile.Scan, nest: Nest, index: tuple[Index, ...]
    ) -> list[str]:
        """The operands of a reduction at an index, as states: held lanes, with the position for
        argmax.
        """
        out = [nest.lanes(nest.eval(v, index), numbers.held(element_of(v.type))) for v in op.args]
        kind, element = op.kind.data, element_of(op.args[0].type)
        if kind in ("any", "all") and not is_bool(element):
            raise NotImplementedError(f"'{kind}' of {element}; compare with 0 first")
        if kind.startswith("arg"):
            i = index[op.axis.value.data]
            position = i.base
            if position.startswith("%"):
                position = nest.once(
                    ("position", i), i.depth, lambda: self.f.emit(f"trunc i64 {i.base} to i32")
                )
            out.append(nest.lanes(Chunk(position, i.step, i.depth), "i32"))
        return out

    def finish(self, op: tile.Reduce | tile.Scan, state: State, w: int) -> list[str]:
        """From accumulators to results: rounded, without the values of argmax."""
        if op.kind.data.startswith("arg"):
            return [state[1]]
        if op.combine is not None:
            return list(state)
        return [numbers.rounded(self.f, element_of(op.args[0].type), state[0], w)]

    def fold(self, types: Sequence[str], state: State, w: int, join: Join) -> list[str]:
        """w lanes to one: halves, the lower one first."""
        f = self.f
        if w == 1:
            return list(state)
        low = 1 << (w - 1).bit_length() - 1

        def part(first: int, n: int) -> list[str]:
            pairs = zip(state, types, strict=True)
            if n == 1:
                return [f.extract(t, x, first, w) for x, t in pairs]
            return [f.shuffle(t, x, range(first, first + n), w) for x, t in pairs]

        lower, upper = part(0, low), part(low, w - low)
        if w - low == low:
            return self.fold(types, join(lower, upper, low), low, join)
        return join(self.fold(types, lower, low, join), self.fold(types, upper, w - low, join), 1)

    def reduce(self, op: tile.Reduce) -> None:
        """The results of a reduction: registers, or tiles in buffers."""
        self.done.add(op)
        shape, axis = tile_type(op.args[0]).extents, op.axis.value.data
        others = self.prepare(list(op.args))
        results = {
            r: self.buffer(r.type) if isinstance(r.type, TileType) else None for r in op.results
        }
        kept = [n for a, n in enumerate(shape) if a != axis]
        nest = Nest(self.f, self.env)
        types, join = self.combiner(op, nest)

        def inputs(index: tuple[Index, ...], i: Index) -> list[str]:
            whole = (*index[:axis], i, *index[axis:])
            out = self.inputs(op, nest, whole)
            nest.keep_all(nest.eval_all(others, whole), whole)
            return out

        def deliver(index: tuple[Index, ...], state: State, w: int) -> None:
            for (r, b), x in zip(results.items(), self.finish(op, state, w), strict=True):
                if b is None:
                    self.env[r] = x
                else:
                    nest.keep(b, index, Chunk(x, 0, len(nest.levels) - 1, w > 1))

        def along_lanes(index: tuple[Index, ...]) -> None:
            state: list[str] = []
            for first, count, width in self._chunkings(op, shape[axis], len(types)):
                part = self.chunked(
                    nest, types, lambda i: inputs(index, i), join, first, count, width
                )
                part = self.fold(types, part, width, join)
                state = join(state, part, 1) if state else part
            deliver(index, state, 1)

        def along_columns(index: tuple[Index, ...]) -> None:
            w = nest.width
            first = self.first(nest, lambda: inputs(index, ZERO))
            state = nest.loop(
                shape[axis],
                1,
                [(vec(t, w), x) for t, x in zip(types, first, strict=True)],
                lambda i, *state: join(state, inputs(index, i), w),
                start=1,
            )
            deliver(index, state, w)

        if axis == vector_axis(shape) and op.combine is None:
            nest.walk(kept, along_lanes, lanes=1)
        else:
            nest.walk(kept, along_columns, lanes=1 if branches(op.combine) else LANES)
        self.own_all(others)
        self.own_all({r: b for r, b in results.items() if b is not None})

    def _chunkings(self, op: tile.Reduce, n: int, states: int) -> Iterator[tuple[int, int, int]]:
        """n elements as runs of chunks of one width: the first element, how many, the width."""
        hides_latency = n >= 8 * LANES and states == 1 and not self.costs_more(op.args, CHEAP)
        width, first = 4 * LANES if hides_latency else LANES, 0
        while first < n:
            left = n - first
            width = min(width, 1 << left.bit_length() - 1) if left >= LANES else left
            yield first, left // width, width
            first += left // width * width

    def first(self, nest: Nest, make: Callable[[], Sequence[str]]) -> list[str]:
        """Code of the first element, in a level of its own (its memo ends with it)."""
        out: list[str] = []

        def once(_: Index) -> None:
            out.extend(make())

        nest.loop(1, 1, [], once)
        return out

    def chunked(
        self,
        nest: Nest,
        types: Sequence[str],
        inputs: Callable[[Index], list[str]],
        join: Join,
        start: int,
        count: int,
        width: int,
    ) -> list[str]:
        """Accumulators of `width` lanes over `count` chunks from element `start` on."""
        nest.width = width
        first = self.first(nest, lambda: inputs(Index(str(start), int(width > 1))))
        out = nest.loop(
            start + count * width,
            width,
            [(vec(t, width), x) for t, x in zip(types, first, strict=True)],
            lambda i, *state: join(state, inputs(i), width),
            lanes=True,
            start=start + width,
        )
        nest.width = 1
        return out

    def reduced_scalar(self, kind: str, v: SSAValue) -> str:
        """All elements of a tile reduced to one register."""
        while isinstance(v.type, TileType):
            op = tile.Reduce(kind, v, v.type.rank - 1)
            self.reduce(op)
            v = op.results[0]
        return self.env.register(v)

    # ----------------------------------------------------------------------------------------------
    def scan(self, op: tile.Scan) -> None:
        """The prefixes of a scan, in buffers."""
        self.done.add(op)
        shape, axis = tile_type(op.args[0]).extents, op.axis.value.data
        for v, b in self.prepare(list(op.args)).items():
            self.fill(b, v)
            self.own(v, b)
        results: list[Buffer] = [self.buffer_for(r) for r in op.results]
        nest = Nest(self.f, self.env)
        types, join = self.combiner(op, nest)
        kept, n = [m for a, m in enumerate(shape) if a != axis], shape[axis]

        def column(index: tuple[Index, ...]) -> None:
            w = nest.width

            def at(i: Index) -> tuple[Index, ...]:
                along = i if op.reverse is None else nest.shift(i, -1, n - 1)
                return (*index[:axis], along, *index[axis:])

            def deliver(i: Index, state: list[str]) -> list[str]:
                for b, x in zip(results, self.finish(op, state, w), strict=True):
                    nest.keep(b, at(i), Chunk(x, 0, len(nest.levels) - 1, w > 1))
                return state

            first = self.first(nest, lambda: deliver(ZERO, self.inputs(op, nest, at(ZERO))))
            nest.loop(
                n,
                1,
                [(vec(t, w), x) for t, x in zip(types, first, strict=True)],
                lambda i, *state: deliver(i, join(state, self.inputs(op, nest, at(i)), w)),
                start=1,
            )

        one_by_one = axis == vector_axis(shape) or branches(op.combine)
        nest.walk(kept, column, lanes=1 if one_by_one else LANES)
        self.own_all(dict(zip(op.results, results, strict=True)))
