"""Loop nests: tile expressions evaluated 16 lanes at a time.

A tile that has not had to be stored is an expression: `Nest.eval(value, index)` writes the code of
one chunk of it and gives a `Chunk`. An index is one `Index` an axis, at most one of which runs over
the lanes; shape operations only change the index, so they cost nothing. A chunk is more than bits:

    uniform   one scalar for all lanes    program_id * 128, a row's maximum spread over the row
    affine    base + step·lane            arange; so `x.ptr + i` is one contiguous vector load
                                          (where that wraps in a type: modulo 2ᵇⁱᵗˢ)
    vector    everything else

Code is written at the depth its index needs: what depends on the row alone lands in front of the
loop over the row's chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from xdsl.ir import Attribute, Operation, SSAValue

from tkc.codegen.cpu import functions, numbers
from tkc.codegen.cpu.emit import LANES, Function, Section, iota, literal, suffix, vec
from tkc.codegen.cpu.masked import masked_load, masked_store
from tkc.codegen.cpu.values import (
    ZERO,
    Buffer,
    Chunk,
    Env,
    Index,
    row_major,
    vector_axis,
)
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.ranges import Overflow, Ranges, bounds
from tkc.ir.types import (
    PointerType,
    TileType,
    bits,
    element_of,
    is_integer,
    is_unsigned,
    pointee_of,
)
from tkc.ir.values import array_type, operands_first, owner_op, tile_type

T = TypeVar("T")
_Key = tuple[SSAValue, tuple[Index, ...], int]  # of a chunk: the value, where, and its width
VIEWS = (tile.Multiple, tile.Broadcast, tile.Transpose, tile.Slice, tile.Flip, tile.Reshape)
ELEMENTWISE = (ew.Elementwise, ew.Select, ew.Cast, ew.Bitcast)
EVERY_LANE = "splat (i1 true)"


@dataclass
class Level:
    """A loop of a nest: where its code is written, and what has been computed there."""

    part: Section
    memo: dict[Hashable, Any] = field(default_factory=dict)


class Place(NamedTuple):
    """A position along an axis of an array, as an offset in elements, and its range: first (None:
    the position is not below) up to, not with, `limit`.
    """

    at: Chunk
    limit: str
    first: str | None


class Move(NamedTuple):
    """A position along an axis of an array, and the axis's stride in elements."""

    at: Chunk
    stride: str
    known_stride: int | None


class Nest:
    """One loop nest being written into `f`, over what `env` holds."""

    def __init__(self, f: Function, env: Env):
        self.f, self.env, self.width = f, env, 1
        self.vector_masks: set[str] = set()
        self.levels, self.ranges = [Level(f.section())], Ranges()

    # ----------------------------------------------------------------------------------------------
    def loop(
        self,
        stop: int,
        step: int,
        carried: Sequence[tuple[str, str]],
        body: Callable[..., Sequence[str] | None],
        lanes: bool = False,
        start: int = 0,
    ) -> list[str]:
        """A loop of the nest: body(Index, *values) gives the next values. `lanes`: the index runs
        over the lanes.
        """

        def inside(i: str, *values: str) -> Sequence[str]:
            self.levels.append(Level(self.f.section()))
            depth = len(self.levels) - 1 if i.startswith("%") else 0
            out = body(Index(i, int(lanes and self.width > 1), depth), *values)
            self.levels.pop()
            return out or ()

        return self.f.loop(stop, step, carried, inside, start)

    def chunks(self, extent: int, body: Callable[[Index], None], lanes: int = LANES) -> None:
        """body for every chunk of an axis: whole chunks in a loop, then one narrow chunk."""
        whole = extent - extent % lanes
        if whole:
            self.width = lanes
            self.loop(whole, lanes, [], body, lanes=True)
        if extent > whole:
            self.width = extent - whole
            self.levels.append(Level(self.f.section()))
            body(Index(str(whole), int(self.width > 1)))
            self.levels.pop()
        self.width = 1

    def walk(
        self,
        shape: Sequence[int],
        body: Callable[[tuple[Index, ...]], None],
        lanes: int = LANES,
        axis: int | None = None,
    ) -> None:
        """body(index) for every chunk of a shape; chunks run along `axis` (default: the last longer
        than 1).
        """
        axis = vector_axis(shape) if axis is None else axis
        index = [ZERO] * len(shape)
        loops = [a for a, n in enumerate(shape) if a != axis and n > 1]

        def chunk(i: Index) -> None:
            if axis is not None:
                index[axis] = i
            body(tuple(index))

        def down(depth: int) -> None:
            if depth < len(loops):
                a = loops[depth]

                def inside(i: Index) -> None:
                    index[a] = i
                    down(depth + 1)

                self.loop(shape[a], 1, [], inside)
            elif axis is None:
                body(tuple(index))
            else:
                self.chunks(shape[axis], chunk, lanes)

        down(0)

    @contextmanager
    def depth(self, d: int) -> Iterator[None]:
        """Code goes in front of the loops that are nested deeper than `d`."""
        with self.f.at(self.levels[min(d, len(self.levels) - 1)].part):
            yield

    def once(self, key: Hashable, depth: int, make: Callable[[], T]) -> T:
        """make() at a depth, or what it gave before."""
        for level in self.levels:
            if key in level.memo:
                known: T = level.memo[key]
                return known
        depth = min(depth, len(self.levels) - 1)
        with self.depth(depth):
            out = make()
        self.levels[depth].memo[key] = out
        return out

    # ----------------------------------------------------------------------------------------------
    def lanes(self, c: Chunk, t: str) -> str:
        """The chunk as `width` lanes of type t."""
        if c.vector or self.width == 1:
            return c.base
        return self.once(("lanes", c, t, self.width), c.depth, lambda: self._spread(c, t))

    def _spread(self, c: Chunk, t: str) -> str:
        f, w = self.f, self.width
        if t == "ptr" and c.step:
            raise AssertionError("pointers are spread by `pointers`")
        out = f.splat(t, c.base, w)
        return f.op("add", vec(t, w), out, iota(t, w, 0, c.step)) if c.step else out

    def pointers(self, c: Chunk, size: int) -> str:
        """The chunk as `width` pointers to elements of `size` bytes."""
        if c.vector or self.width == 1:
            return c.base
        return self.once(
            ("pointers", c, size, self.width),
            c.depth,
            lambda: self.f.gep(c.base, iota("i64", self.width, 0, c.step), size, self.width),
        )

    def shift(self, i: Index, scale: int, offset: int) -> Index:
        """offset + scale·index."""
        if scale == 1 and offset == 0:
            return i
        if not i.base.startswith("%"):
            return Index(str(int(i.base) * scale + offset), i.step * scale, i.depth)

        def make() -> str:
            return self.f.add(self.f.mul(i.base, str(scale)), str(offset))

        base = self.once(("shift", i.base, scale, offset), i.depth, make)
        return Index(base, i.step * scale, i.depth)

    def eval(self, v: SSAValue, index: tuple[Index, ...]) -> Chunk:
        """The chunk of a tile (or scalar) at an index, written once for each index."""
        if not isinstance(v.type, TileType):
            return Chunk(self.env.register(v))
        if (known := self._remembered(self._key(v, index))) is not None:
            return known
        for part, where in operands_first((v, index), self._read_at):
            out = self._evaluate(part, where)
        return out

    def _key(self, v: SSAValue, index: tuple[Index, ...]) -> _Key:
        """Under which the chunk of a tile at an index is remembered: its extents of 1 are read at
        0, and what no lane counts is one number.
        """
        index = tuple(
            ZERO if n == 1 else i for i, n in zip(index, tile_type(v).extents, strict=True)
        )
        return v, index, self.width if any(i.step for i in index) else 1

    def _remembered(self, key: _Key) -> Chunk | None:
        return next((level.memo[key] for level in self.levels if key in level.memo), None)

    def _read_at(
        self, at: tuple[SSAValue, tuple[Index, ...]]
    ) -> list[tuple[SSAValue, tuple[Index, ...]]]:
        """The tiles that a tile without a buffer is computed from, each with the index it is read
        at; none where that chunk is written already.
        """
        v, index = at
        key = self._key(v, index)
        written = v in self.env or self._remembered(key) is not None
        return [] if written else self._operands_at(owner_op(v), key[1])

    def _evaluate(self, v: SSAValue, index: tuple[Index, ...]) -> Chunk:
        key = self._key(v, index)
        if (known := self._remembered(key)) is not None:
            return known
        index = key[1]
        saved, self.width = self.width, key[2]
        out = (
            self._buffer(self.env.buffer(v), index, tile_type(v).extents)
            if v in self.env
            else self.result_of(owner_op(v), index)
        )
        self.width = saved
        self.levels[min(out.depth, len(self.levels) - 1)].memo[key] = out
        return out

    def eval_all(
        self, buffers: dict[SSAValue, Buffer], index: tuple[Index, ...]
    ) -> list[tuple[Buffer, Chunk]]:
        """The chunks of tiles, each with its buffer."""
        return [(b, self.eval(v, index)) for v, b in buffers.items()]

    def spread(self, v: SSAValue, index: tuple[Index, ...]) -> Chunk:
        """`eval` of a value that broadcasts to the index (a mask, `other`)."""
        if not isinstance(v.type, TileType):
            return Chunk(self.env.register(v))
        return self.eval(v, index[len(index) - v.type.rank :])

    def result_of(self, op: Operation, index: tuple[Index, ...]) -> Chunk:
        """The elements of an operation's result at an index."""
        match op:
            case tile.Constant():
                return Chunk(literal(numbers.held(element_of(op.result.type)), op.number))
            case tile.Splat():
                return Chunk(self.env.register(op.arg))
            case tile.Arange():
                return self._arange(op, index[0])
            case tile.Reshape() if moves_elements(op):
                return self._buffer(self.env.buffer(op.arg), index, tile_type(op.result).extents)
            case _ if isinstance(op, VIEWS):
                [(v, where)] = self._operands_at(op, index)
                return self.eval(v, where)
            case tile.Load():
                return self.load(op, index)
            case tile.LoadPointers():
                return self.load_pointers(op, index)
            case ew.PointerAdd():
                return self._pointer_add(op, index)
            case _:
                return self.compute(op, [self.eval(v, index) for v in op._operands])

    def _operands_at(
        self, op: Operation, index: tuple[Index, ...]
    ) -> list[tuple[SSAValue, tuple[Index, ...]]]:
        """The tiles that an element-wise operation or a view reads at an index, and where."""
        extents = tile_type(op.results[0]).extents
        where = index  # of a broadcast too: `_key` puts 0 where the operand's extent is 1
        match op:
            case tile.Transpose():
                inverse = {p: index[i] for i, p in enumerate(op.permutation.get_values())}
                where = tuple(inverse[a] for a in range(len(index)))
            case tile.Slice():
                places = zip(index, op.steps, op.offsets.get_values(), strict=False)
                where = tuple(self.shift(i, s, o) for i, s, o in places)
            case tile.Flip():
                axis = op.axis.value.data
                where = tuple(
                    self.shift(i, -1, extents[axis] - 1) if a == axis else i
                    for a, i in enumerate(index)
                )
            case tile.Reshape():
                mapped = unit_reshape(tile_type(op.arg).extents, extents)
                if mapped is None:
                    return []
                where = tuple(ZERO if a is None else index[a] for a in mapped)
            case _ if not isinstance(op, (*VIEWS, *ELEMENTWISE)):
                return []
        return [(v, where) for v in op.operands if isinstance(v.type, TileType)]

    def compute(self, op: Operation, args: list[Chunk]) -> Chunk:
        """An element-wise operation, a select or a cast of chunks."""
        depth = max((a.depth for a in args), default=0)
        with self.depth(depth):
            if isinstance(op, tile.Multiple):
                return args[0]
            if affine := self._affine(op, args):
                return replace(affine, depth=depth)
            uniform = all(a.uniform for a in args)
            out = self._computed(op, args, uniform, 1 if uniform else self.width)
        return Chunk(out, 0, depth, vector=not uniform and self.width > 1)

    def _computed(self, op: Operation, args: list[Chunk], uniform: bool, w: int) -> str:
        """The lanes of `compute`, or the one number of all lanes."""

        def take(c: Chunk, t: Attribute) -> str:
            if uniform:
                return c.base
            if isinstance(t, PointerType) and c.step:
                return self.pointers(c, numbers.size(t.element))
            return self.lanes(c, numbers.held(t))

        f, element = self.f, element_of(op.operands[0].type)
        match op:
            case ew.Select():
                t, one = element_of(op.result.type), args[0].uniform
                condition = args[0].base if one else self.lanes(args[0], "i1")
                yes, no = (take(c, t) for c in args[1:])
                return f.select(condition, vec(numbers.held(t), w), yes, no, w, uniform=one)
            case ew.Cast():
                t = element_of(op.result.type)
                return numbers.convert(f, element, take(args[0], element), t, w)
            case ew.Bitcast():
                t = element_of(op.result.type)
                return numbers.bitcast(f, element, take(args[0], element), t, w)
            case ew.Elementwise():
                xs = [take(a, element) for a in args]
                return functions.elementwise(f, op.fn.name, element, w, *xs)
        raise NotImplementedError("an operation of another level")

    def _affine(self, op: Operation, args: list[Chunk]) -> Chunk | None:
        """Integer arithmetic that keeps base + step·lane."""
        if not is_integer(element_of(op.operands[0].type)):
            return None
        if not any(a.step for a in args) or any(a.vector for a in args):
            return None
        match op:
            case ew.Cast():
                return self._affine_cast(op, args[0])
            case ew.Elementwise() if op.fn.name in ("add", "sub"):
                sign = 1 if op.fn.name == "add" else -1
                return self._affine_result(op, args, args[0].step + sign * args[1].step)
            case ew.Elementwise() if op.fn.name == "mul":
                a, b = args if args[0].step else args[::-1]
                if b.uniform and not b.base.startswith("%"):
                    return self._affine_result(op, [a, b], a.step * int(b.base))
        return None

    def _affine_result(self, op: ew.Elementwise, args: list[Chunk], step: int) -> Chunk:
        t = numbers.held(element_of(op.operands[0].type))
        overflow = max(*(a.overflow for a in args), self.ranges.overflow(op))
        return Chunk(self.f.op(op.fn.name, t, *(a.base for a in args)), step, overflow=overflow)

    def _affine_cast(self, op: ew.Cast, c: Chunk) -> Chunk | None:
        element, t = element_of(op.arg.type), element_of(op.result.type)
        if not is_integer(t):
            return None
        if c.overflow and numbers.size(t) > numbers.size(element):
            return None  # each lane is extended as the number it is
        whole, range_ = bounds(t), self.ranges.of(op.arg)
        fits = whole is not None and range_ is not None and whole.holds(range_)
        return Chunk(
            numbers.convert(self.f, element, c.base, t, 1),
            c.step,
            overflow=Overflow.NEVER if fits and not c.overflow else Overflow.WRAPS,
        )

    def _arange(self, op: tile.Arange, i: Index) -> Chunk:
        t = numbers.held(element_of(op.result.type))
        i = self.shift(i, 1, op.start.value.data)
        base = i.base
        if t != "i64" and base.startswith("%"):
            base = self.once(
                ("arange", base, t), i.depth, lambda: self.f.emit(f"trunc i64 {i.base} to {t}")
            )
        return Chunk(base, i.step, i.depth)

    def wide(self, c: Chunk, t: Attribute) -> Chunk:
        """An integer chunk as i64, to be used as an offset."""
        held = numbers.held(t)
        if held == "i64":
            return c
        if c.step and c.overflow is Overflow.WRAPS:
            c = Chunk(self.lanes(c, held), 0, c.depth, self.width > 1)
        if c.affine and not c.base.startswith("%"):
            return replace(c, base=str(int(c.base) % (1 << bits(t)))) if is_unsigned(t) else c
        extend = "zext" if is_unsigned(t) else "sext"
        w = self.width if c.vector else 1

        def make() -> str:
            return self.f.emit(f"{extend} {vec(held, w)} {c.base} to {vec('i64', w)}")

        return replace(c, base=self.once(("wide", c.base, extend), c.depth, make))

    def _pointer_add(self, op: ew.PointerAdd, index: tuple[Index, ...]) -> Chunk:
        pointer = self.eval(op.pointer, index)
        offset = self.wide(self.eval(op.offset, index), element_of(op.offset.type))
        size = numbers.size(pointee_of(op.pointer.type))
        return self.move(pointer, offset, size, max(pointer.depth, offset.depth))

    def move(self, pointer: Chunk, offset: Chunk, size: int, depth: int) -> Chunk:
        """Pointers moved by a number of elements of `size` bytes."""
        f, w = self.f, self.width
        with self.depth(depth):
            if pointer.affine and offset.affine:
                at = f.gep(pointer.base, offset.base, size)
                return Chunk(at, pointer.step + offset.step, depth)
            if pointer.uniform:
                return Chunk(f.gep(pointer.base, offset.base, size, w), 0, depth, True)
            at = f.emit(
                f"getelementptr [{size} x i8], {vec('ptr', w)} {self.pointers(pointer, size)},"
                f" {vec('i64', w)} {self.lanes(offset, 'i64')}"
            )
            return Chunk(at, 0, depth, True)

    # ----------------------------------------------------------------------------------------------
    def address(self, b: Buffer, index: tuple[Index, ...], shape: Sequence[int]) -> Chunk:
        """Pointers into a buffer seen under `shape`; outer terms first, so that they are computed
        outside inner loops.
        """
        strides = row_major(shape)
        pairs = list(zip(index, strides, strict=True))
        known = sum(int(i.base) * s for i, s in pairs if not i.base.startswith("%"))
        terms = [(i.depth, i.base, s) for i, s in pairs if i.base.startswith("%")]
        if known:
            terms.append((0, str(known), 1))
        out = Chunk(b.pointer)
        for depth, base, stride in sorted(terms, key=lambda t: t[0]):
            out = self._advanced(out, base, stride, numbers.size(b.element), max(depth, out.depth))
        return replace(out, step=sum(i.step * s for i, s in pairs))

    def _advanced(self, out: Chunk, base: str, stride: int, size: int, depth: int) -> Chunk:
        """A pointer behind base · stride elements."""

        def make() -> str:
            return self.f.gep(out.base, self.f.mul(base, str(stride)), size)

        return Chunk(self.once(("address", out.base, base, stride, size), depth, make), 0, depth)

    def _buffer(self, b: Buffer, index: tuple[Index, ...], shape: Sequence[int]) -> Chunk:
        at = self.address(b, index, shape)
        with self.depth(at.depth):
            return self.fetch(at, b.element)

    def element_at(self, b: Buffer, index: tuple[Index, ...]) -> Chunk:
        """One element of a buffer."""
        return self._buffer(b, index, b.shape)

    def fetch(self, at: Chunk, element: Attribute, mask: str | None = None) -> Chunk:
        """Elements at pointers (where the mask, of `width` lanes, holds; else 0), in the current
        section.
        """
        f, w, t, size = self.f, self.width, memory_type(element), numbers.size(element)
        if at.uniform or w == 1:
            where = at.base
            if mask is not None and w == 1:
                where = f.select(mask, "ptr", where, "@zeros")
            return Chunk(self._unpack(element, f.load(t, where, size), 1), 0, at.depth)
        if at.affine and abs(at.step) == 1:
            raw = self._fetch_neighbours(at, t, size, mask)
        else:
            raw = f.call(
                f"llvm.masked.gather.{suffix(t, w)}.{suffix('ptr', w)}",
                vec(t, w),
                (f"{vec('ptr', w)} align {size}", self.pointers(at, size)),
                (vec("i1", w), mask or EVERY_LANE),
                (vec(t, w), "zeroinitializer"),
            )
        return Chunk(self._unpack(element, raw, w), 0, at.depth, True)

    def _fetch_neighbours(self, at: Chunk, t: str, size: int, mask: str | None) -> str:
        """A vector that lies in memory forwards (step 1) or backwards (step -1)."""
        f, w = self.f, self.width
        backwards = at.step == -1
        pointer = f.gep(at.base, str(1 - w), size) if backwards else at.base

        def ordered(x: str, u: str) -> str:
            return f.shuffle(u, x, range(w - 1, -1, -1), w) if backwards else x

        if mask is None:
            return ordered(f.load(t, pointer, size, w), t)
        return ordered(masked_load(f, t, pointer, ordered(mask, "i1"), size, w), t)

    def _unpack(self, element: Attribute, x: str, w: int) -> str:
        if numbers.stored(element) == "half":
            x = self.f.emit(f"bitcast {vec('i16', w)} {x} to {vec('half', w)}")
        return numbers.unpack(self.f, element, x, w)

    def put(self, at: Chunk, element: Attribute, value: Chunk, mask: str | None = None) -> None:
        """The inverse of `fetch`, where the code stands now."""
        f, w, t, size = self.f, self.width, memory_type(element), numbers.size(element)
        x = (
            self.pointers(value, numbers.size(element.element))
            if isinstance(element, PointerType)
            else self.lanes(value, numbers.held(element))
        )
        x = numbers.pack(f, element, x, w)
        if numbers.stored(element) == "half":
            x = f.emit(f"bitcast {vec('half', w)} {x} to {vec('i16', w)}")
        one_place = w == 1 or (at.affine and at.step == 1)
        if one_place and mask is None:
            f.store(t, x, at.base, size, w)
        elif w == 1 and mask is not None:
            f.when(mask, lambda: f.store(t, x, at.base, size))
        elif one_place and mask is not None:
            masked_store(f, t, x, at.base, mask, size, w)
        else:
            f.do_call(
                f"llvm.masked.scatter.{suffix(t, w)}.{suffix('ptr', w)}",
                (vec(t, w), x),
                (f"{vec('ptr', w)} align {size}", self.pointers(at, size)),
                (vec("i1", w), mask or EVERY_LANE),
            )

    def keep(self, b: Buffer, index: tuple[Index, ...], value: Chunk) -> None:
        """A chunk into a buffer."""
        self.put(self.address(b, index, b.shape), b.element, value)

    def keep_all(self, chunks: list[tuple[Buffer, Chunk]], index: tuple[Index, ...]) -> None:
        """The chunks of `eval_all` into their buffers."""
        for b, c in chunks:
            self.keep(b, index, c)

    # ----------------------------------------------------------------------------------------------
    def locate(
        self, op: tile.Load | tile.Store | tile.AtomicBlock, index: tuple[Index, ...]
    ) -> tuple[Chunk, str | None, int]:
        """Pointers of a chunk of a block of an array, the mask of the lanes that exist (None: all),
        and the depth of both.
        """
        base, moves, places = self._axes(op, index)
        size = numbers.size(array_type(op.array).element)
        pointer = self._moved(Chunk(base), moves, size)
        mask, depth = self._inside(places)
        if op.mask is not None:
            mask, depth = self._and_given(self.spread(op.mask, index), mask, depth)
        return pointer, mask, max(depth, pointer.depth)

    def _axes(
        self, op: tile.Load | tile.Store | tile.AtomicBlock, index: tuple[Index, ...]
    ) -> tuple[str, list[Move], list[Place]]:
        """Of a block of an array: a pointer to its start, moves from there to an index, and the
        places along the axes that have to exist.
        """
        array, t = self.env.array(op.array), array_type(op.array)
        size, position = numbers.size(t.element), iter(index)
        base, moves, places = array.pointer, [], []
        for a, (offset, extent) in enumerate(zip(op.offsets, op.extents.get_values(), strict=True)):
            i = next(position) if extent >= 0 else ZERO
            stride, limit, known = array.strides[a], array.extents[a], t.facts.strides[a].exact
            if isinstance(offset.type, TileType):
                # a gather: one row for each element of the offset
                at = self.wide(self.eval(offset, (i,)), element_of(offset.type))
                moves.append(Move(at, stride, known))
                places.append(Place(at, limit, "0"))
                continue
            start = self.wide(Chunk(self.env.register(offset)), offset.type).base
            base = self._moved_base(base, start, stride, size)
            at = Chunk(i.base, i.step, i.depth)
            if i.base != "0" or i.step:
                moves.append(Move(at, stride, known))
            found = self.ranges.of(offset)
            nonnegative = found is not None and found.lo >= 0
            places.append(Place(at, *self._range_from(start, limit, nonnegative)))
        return base, moves, places

    def _moved_base(self, base: str, start: str, stride: str, size: int) -> str:
        return self.once(
            ("base", base, start, stride),
            0,
            lambda: self.f.gep(base, self.f.mul(start, stride), size),
        )

    def _range_from(self, start: str, limit: str, nonnegative: bool) -> tuple[str, str | None]:
        """[0, limit) counted from `start`: the end, and the begin where `start` may be negative."""

        def left() -> str:
            return limit if start == "0" else self.f.emit(f"sub nsw i64 {limit}, {start}")

        def first() -> str:
            return self.f.emit(f"sub nsw i64 0, {start}")

        end = self.once(("left", limit, start), 0, left)
        return end, None if nonnegative else self.once(("first", start), 0, first)

    def _moved(self, pointer: Chunk, moves: list[Move], size: int) -> Chunk:
        """Pointers to a place; outer moves first, so that they are computed outside inner loops."""
        for move in sorted(moves, key=lambda m: m.at.depth):
            offset, depth = self._in_elements(move), max(pointer.depth, move.at.depth)
            pointer = self.once(
                ("move", pointer, offset, size, self.width),
                depth,
                partial(self.move, pointer, offset, size, depth),
            )
        return pointer

    def _in_elements(self, move: Move) -> Chunk:
        """How many elements a move is: position times stride."""
        f, at, stride = self.f, move.at, move.stride
        if not at.vector and not (at.step and move.known_stride is None):
            base = self.once(("row", at.base, stride), at.depth, lambda: f.mul(at.base, stride))
            return Chunk(base, at.step * (move.known_stride or 0), at.depth)

        def rows() -> str:
            factors = self.lanes(at, "i64"), self.lanes(Chunk(stride), "i64")
            return f.op("mul", vec("i64", self.width), *factors)

        return Chunk(self.once(("rows", at, stride, self.width), at.depth, rows), 0, at.depth, True)

    def _inside(self, places: list[Place]) -> tuple[str | None, int]:
        """The mask of the lanes whose places all exist (None: nothing to test), and its depth."""
        by_lane = [p for p in places if not p.at.uniform]
        ok: str | None = None
        depth = 0
        for place in sorted((p for p in places if p.at.uniform), key=lambda p: p.at.depth):
            depth = max(depth, place.at.depth)
            ok = self.once(("ok", *place, ok), depth, partial(self._is_inside, place, ok))
        if self.width == 1:
            return ok, depth
        mask = ok if by_lane or ok is None else self.lanes(Chunk(ok, 0, depth), "i1")
        for place in by_lane:
            depth = max(depth, place.at.depth)
            key = ("lane-test", *place, mask, self.width)
            mask = self.once(key, depth, partial(self._lanes_inside, place, mask))
        return mask, depth

    def _is_inside(self, place: Place, ok: str | None) -> str:
        """Whether a place that all lanes share exists, and `ok` holds."""
        f, at = self.f, place.at
        if at.base == "0" and place.first is None:
            here = f.emit(f"icmp sgt i64 {place.limit}, 0")
        else:
            here = f.emit(f"icmp slt i64 {at.base}, {place.limit}")
        if place.first is not None:
            here = f.op("and", "i1", here, f.emit(f"icmp sge i64 {at.base}, {place.first}"))
        return here if ok is None else f.op("and", "i1", ok, here)

    def _and_given(self, given: Chunk, mask: str | None, depth: int) -> tuple[str, int]:
        """A mask and the one that the program gives."""
        depth = max(depth, given.depth)

        def both() -> str:
            x = self.lanes(given, "i1") if self.width > 1 else given.base
            return x if mask is None else self.f.op("and", vec("i1", self.width), mask, x)

        return self.once(("masked", mask, given, self.width), depth, both), depth

    def _lanes_inside(self, place: Place, ok: str | None) -> str:
        """Which lanes of base + step·lane lie in [first, limit); `ok` is a scalar to be and-ed the
        first time, later a vector.
        """
        f, w, at = self.f, self.width, place.at
        scalar = ok is not None and ok not in self.vector_masks
        if at.affine and at.step == 1:
            count = f.emit(f"sub nsw i64 {place.limit}, {at.base}")
            if scalar:
                count = f.emit(f"select i1 {ok}, i64 {count}, i64 0")
            inside = self._compare_lanes("slt", count)
            if place.first is not None:
                before = f.emit(f"sub nsw i64 {place.first}, {at.base}")
                inside = f.op("and", vec("i1", w), inside, self._compare_lanes("sge", before))
        else:
            t, x = vec("i64", w), self.lanes(at, "i64")
            inside = f.emit(f"icmp slt {t} {x}, {self.lanes(Chunk(place.limit), 'i64')}")
            first = self.lanes(Chunk(place.first), "i64") if place.first else "zeroinitializer"
            inside = f.op("and", vec("i1", w), inside, f.emit(f"icmp sge {t} {x}, {first}"))
            if scalar and ok is not None:
                inside = f.op("and", vec("i1", w), inside, f.splat("i1", ok, w))
        if ok is not None and not scalar:
            inside = f.op("and", vec("i1", w), inside, ok)
        self.vector_masks.add(inside)
        return inside

    def _compare_lanes(self, relation: str, count: str) -> str:
        """The number of each lane compared with a count."""
        f, w = self.f, self.width
        low = f.call("llvm.smin.i64", "i64", ("i64", count), ("i64", str(w)))
        limit = f.emit(
            f"trunc i64 {f.call('llvm.smax.i64', 'i64', ('i64', low), ('i64', '0'))} to i32"
        )
        return f.emit(
            f"icmp {relation} {vec('i32', w)} {iota('i32', w)}, {f.splat('i32', limit, w)}"
        )

    def load(self, op: tile.Load, index: tuple[Index, ...]) -> Chunk:
        """The elements of a block of an array at an index."""
        at, mask, depth = self.locate(op, index)
        return self._loaded(op, index, at, mask, depth, array_type(op.array).element)

    def load_pointers(self, op: tile.LoadPointers, index: tuple[Index, ...]) -> Chunk:
        """The elements at the pointers of an index."""
        at = self.eval(op.pointers, index)
        mask, depth = None, at.depth
        if op.mask is not None:
            given = self.spread(op.mask, index)
            depth = max(depth, given.depth)
            mask = given.base if self.width == 1 else self.lanes(given, "i1")
        return self._loaded(op, index, at, mask, depth, pointee_of(op.pointers.type))

    def _loaded(
        self,
        op: tile.Load | tile.LoadPointers,
        index: tuple[Index, ...],
        at: Chunk,
        mask: str | None,
        depth: int,
        element: Attribute,
    ) -> Chunk:
        """What a load gives: the elements that exist, `other` elsewhere."""
        other = None if op.other is None else self.spread(op.other, index)
        if other is not None:
            depth = max(depth, other.depth)
        with self.depth(depth):
            if self.width > 1 and at.uniform and mask is not None:
                at = Chunk(self.f.splat("ptr", at.base, self.width), 0, at.depth, True)
            got = self.fetch(at, element, mask)
            if mask is not None and other is not None:
                t, w = numbers.held(element), self.width if got.vector else 1
                yes, no = (self.lanes(c, t) if got.vector else c.base for c in (got, other))
                got = Chunk(self.f.select(mask, vec(t, w), yes, no, w), 0, depth, got.vector)
        return replace(got, depth=depth)


def memory_type(element: Attribute) -> str:
    """How a value crosses memory: half as i16, whose masked access every target has."""
    t = numbers.stored(element)
    return "i16" if t == "half" else t


def unit_reshape(source: Sequence[int], target: Sequence[int]) -> list[int | None] | None:
    """For a reshape that only inserts or drops extents of 1: the target's axis of every source axis
    (None: extent 1).
    """
    if [n for n in source if n > 1] != [n for n in target if n > 1]:
        return None
    long = iter(a for a, n in enumerate(target) if n > 1)
    return [next(long) if n > 1 else None for n in source]


def moves_elements(op: Operation) -> bool:
    """Whether a reshape needs its operand in a buffer."""
    return isinstance(op, tile.Reshape) and (
        unit_reshape(tile_type(op.arg).extents, tile_type(op.result).extents) is None
    )
