"""Loop nests: tile expressions evaluated 16 lanes at a time.

A tile that nobody had to store yet is an expression: `Nest.eval(value, index)` writes the code of
one chunk of it and gives
a `Chunk`.  An index is one `Index` an axis, at most one of which runs over the lanes; shape operations only change the index, so
they cost nothing.  Chunks know more than their bits:

    uniform   one scalar for all lanes            program_id * 128, a row's maximum spread over the row
    affine    base + step·lane                    arange; so `x.ptr + i` is one contiguous vector load (where that wraps in a type: modulo 2ᵇⁱᵗˢ)
    vector    everything else

Code is written at the depth its index needs: what depends on the row alone lands in front of the
loop over the row's chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from xdsl.ir import Operation, SSAValue

from tkc.codegen.cpu import functions, numbers
from tkc.codegen.cpu.emit import LANES, Function, iota, literal, vec
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.ranges import Overflow, Ranges, bounds
from tkc.ir.types import PointerType, TileType, bits, element_of, is_bool, is_integer, is_unsigned
from tkc.ir.values import operands_first, tile_type


@dataclass(frozen=True)
class Index:
    """Position along one axis: base + step·lane (step 0: the same for all lanes); base is known
    from loop `depth` on.
    """

    base: str
    step: int = 0
    depth: int = 0


ZERO = Index("0")
VIEWS = (tile.Multiple, tile.Broadcast, tile.Transpose, tile.Slice, tile.Flip, tile.Reshape)
ELEMENTWISE = (ew.Elementwise, ew.Select, ew.Cast, ew.Bitcast)
EVERY_LANE = "splat (i1 true)"


@dataclass(frozen=True)
class Chunk:
    """A held value of all lanes of a chunk, see above."""

    base: str
    step: int = 0
    depth: int = 0
    vector: bool = False
    # whether some lane of base + step·lane may be another number in the chunk's type
    overflow: Overflow = Overflow.NEVER

    @property
    def uniform(self) -> bool:
        return not self.vector and not self.step

    @property
    def affine(self) -> bool:
        return not self.vector


@dataclass(eq=False)
class Buffer:
    """A tile in the program's workspace, row-major and dense; `pointer` is a name every block
    knows.
    """

    pointer: str
    shape: tuple[int, ...]
    element: object
    offset: int
    bytes: int
    fixed: bool = False  # never given back by liveness (a loop carries it)


@dataclass(frozen=True)
class ArrayValue:
    """A tile.array: names of its pointer, extents and strides (i64), and the strides known when
    compiling.
    """

    pointer: str
    extents: tuple[str, ...]
    strides: tuple[str, ...]


@dataclass
class _Level:
    part: list
    memo: dict = field(default_factory=dict)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, n = [], 1
    for extent in reversed(shape):
        strides.append(n)
        n *= extent
    return tuple(reversed(strides))


def vector_axis(shape: Sequence[int]) -> int | None:
    """The last axis longer than 1."""
    return next((a for a in reversed(range(len(shape))) if shape[a] > 1), None)


class Nest:
    """One loop nest being written into `f`. `env` maps values to scalars (names), Buffers and
    ArrayValues.
    """

    def __init__(self, f: Function, env: dict[SSAValue, object]):
        self.f, self.env, self.width, self.vector_masks = f, env, 1, set()
        self.levels, self.ranges = [_Level(f.section())], Ranges()

    # ----------------------------------------------------------------------------------------------
    def loop(
        self,
        stop: int,
        step: int,
        carried: Sequence[tuple[str, str]],
        body: Callable[..., Sequence[str]],
        lanes: bool = False,
        start: int = 0,
    ) -> list[str]:
        """A loop of the nest: body(Index, *values) gives the next values. `lanes`: the index runs
        over the lanes.
        """

        def inside(i: str, *values: str):
            self.levels.append(_Level(self.f.section()))
            out = body(
                Index(
                    i,
                    int(lanes and self.width > 1),
                    len(self.levels) - 1 if i.startswith("%") else 0,
                ),
                *values,
            )
            self.levels.pop()
            return out or ()

        return self.f.loop(stop, step, carried, inside, start)

    def chunks(self, extent: int, body: Callable[[Index], None], lanes: int = LANES) -> None:
        """body for every chunk of an axis: whole chunks in a loop, then one narrow chunk."""
        whole = extent - extent % lanes
        if whole:
            self.width = lanes
            self.loop(whole, lanes, [], lambda i: body(i), lanes=True)
        if extent > whole:
            self.width = extent - whole
            self.levels.append(_Level(self.f.section()))
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
        index: list[Index] = [ZERO] * len(shape)

        def down(a: int):
            if a == len(shape):
                if axis is None:
                    return body(tuple(index))

                def chunk(i):
                    index[axis] = i
                    body(tuple(index))

                return self.chunks(shape[axis], chunk, lanes)
            if a == axis or shape[a] == 1:
                return down(a + 1)

            def inside(i):
                index[a] = i
                down(a + 1)

            self.loop(shape[a], 1, [], inside)

        down(0)

    @contextmanager
    def depth(self, d: int):
        with self.f.at(self.levels[min(d, len(self.levels) - 1)].part):
            yield

    def once(self, key, depth: int, make: Callable[[], object]):
        """make() at a depth, or what it gave before."""
        for level in self.levels:
            if key in level.memo:
                return level.memo[key]
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

        def make():
            return self.f.add(self.f.mul(i.base, str(scale)), str(offset))

        return Index(
            self.once(("shift", i.base, scale, offset), i.depth, make), i.step * scale, i.depth
        )

    def eval(self, v: SSAValue, index: tuple[Index, ...]) -> Chunk:
        """The chunk of a tile (or scalar) at an index, written once for each index."""
        if not isinstance(v.type, TileType):
            return Chunk(self.env[v])
        for part, where in operands_first((v, index), self._read_at):
            out = self._evaluate(part, where)
        return out

    def _key(self, v: SSAValue, index: tuple[Index, ...]) -> tuple:
        """Under which the chunk of a tile at an index is remembered: its extents of 1 are read at
        0, and what no lane counts is one number.
        """
        index = tuple(ZERO if n == 1 else i for i, n in zip(index, v.type.extents, strict=True))
        return v, index, self.width if any(i.step for i in index) else 1

    def _remembered(self, key: tuple) -> Chunk | None:
        return next((level.memo[key] for level in self.levels if key in level.memo), None)

    def _read_at(self, at: tuple[SSAValue, tuple[Index, ...]]) -> list:
        """The tiles that a tile without a buffer is computed from, each with the index it is read
        at; none where that chunk is written already.
        """
        v, index = at
        key = self._key(v, index)
        written = v in self.env or self._remembered(key) is not None
        return [] if written else self._operands_at(v.owner, key[1])

    def _evaluate(self, v: SSAValue, index: tuple[Index, ...]) -> Chunk:
        key = self._key(v, index)
        if (known := self._remembered(key)) is not None:
            return known
        index = key[1]
        saved, self.width = self.width, key[2]
        out = (
            self._buffer(self.env[v], index, v.type.extents)
            if v in self.env
            else self.result_of(v.owner, index)
        )
        self.width = saved
        self.levels[min(out.depth, len(self.levels) - 1)].memo[key] = out
        return out

    def spread(self, v: SSAValue, index: tuple[Index, ...]) -> Chunk:
        """`eval` of a value that broadcasts to the index (a mask, `other`)."""
        if not isinstance(v.type, TileType):
            return Chunk(self.env[v])
        return self.eval(v, index[len(index) - v.type.rank :])

    def result_of(self, op, index: tuple[Index, ...]) -> Chunk:
        """The elements of an operation's result at an index."""
        match op:
            case tile.Constant():
                return Chunk(literal(numbers.held(element_of(op.result.type)), op.number))
            case tile.Splat():
                return Chunk(self.env[op.arg])
            case tile.Arange():
                return self._arange(op, index[0])
            case tile.Reshape() if moves_elements(op):
                return self._buffer(self.env[op.arg], index, tile_type(op.result).extents)
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
                return self.compute(
                    op,
                    [
                        self.eval(v, index) if isinstance(v.type, TileType) else Chunk(self.env[v])
                        for v in op.operands
                    ],
                )

    def _operands_at(
        self, op, index: tuple[Index, ...]
    ) -> list[tuple[SSAValue, tuple[Index, ...]]]:
        """The tiles that an element-wise operation or a view reads at an index, and where."""
        extents = tile_type(op.result).extents
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

    def compute(self, op, args: list[Chunk]) -> Chunk:
        """An element-wise operation, a select or a cast of chunks."""
        f, depth = self.f, max((a.depth for a in args), default=0)
        element = element_of(op.operands[0].type)
        with self.depth(depth):
            if isinstance(op, tile.Multiple):
                return args[0]
            if affine := self._affine(op, args, element):
                return replace(affine, depth=depth)
            uniform = all(a.uniform for a in args)
            w = 1 if uniform else self.width

            def take(c, t):
                return c.base if uniform else self.lanes(c, numbers.held(t))

            match op:
                case ew.Select():
                    t, one = element_of(op.result.type), args[0].uniform
                    condition = args[0].base if one else self.lanes(args[0], "i1")
                    out = f.select(
                        condition,
                        vec(numbers.held(t), w),
                        take(args[1], t),
                        take(args[2], t),
                        w,
                        uniform=one,
                    )
                case ew.Cast():
                    out = numbers.convert(
                        f, element, take(args[0], element), element_of(op.result.type), w
                    )
                case ew.Bitcast():
                    x = (
                        self.pointers(args[0], numbers.size(element.element))
                        if isinstance(element, PointerType) and not uniform
                        else take(args[0], element)
                    )
                    out = numbers.bitcast(f, element, x, element_of(op.result.type), w)
                case _:
                    if isinstance(element, PointerType):
                        xs = [
                            a.base if uniform else self.pointers(a, numbers.size(element.element))
                            for a in args
                        ]
                    else:
                        xs = [take(a, element) for a in args]
                    out = functions.elementwise(f, op.fn.name, element, w, *xs)
        return Chunk(out, 0, depth, vector=not uniform and self.width > 1)

    def _affine(self, op, args: list[Chunk], element) -> Chunk | None:
        """Integer arithmetic that keeps base + step·lane."""
        if not is_integer(element) or not any(a.step for a in args) or any(a.vector for a in args):
            return None
        T, f, overflow = numbers.held(element), self.f, max(a.overflow for a in args)
        match op:
            case ew.Cast() if is_integer(t := element_of(op.result.type)):
                if overflow and numbers.size(t) > numbers.size(element):
                    return None  # each lane is extended as the number it is
                fits = not overflow and bounds(t).holds(self.ranges.of(op.arg))
                return Chunk(
                    numbers.convert(f, element, args[0].base, t, 1),
                    args[0].step,
                    overflow=Overflow.NEVER if fits else Overflow.WRAPS,
                )
            case ew.Elementwise() if op.fn.name in ("add", "sub"):
                step = (
                    args[0].step + args[1].step
                    if op.fn.name == "add"
                    else args[0].step - args[1].step
                )
                return Chunk(
                    f.op(op.fn.name, T, args[0].base, args[1].base),
                    step,
                    overflow=max(overflow, self.ranges.overflow(op)),
                )
            case ew.Elementwise() if op.fn.name == "mul":
                a, b = args if args[0].step else args[::-1]
                if b.uniform and not b.base.startswith("%"):
                    return Chunk(
                        f.op("mul", T, a.base, b.base),
                        a.step * int(b.base),
                        overflow=max(overflow, self.ranges.overflow(op)),
                    )
        return None

    def _arange(self, op, i: Index) -> Chunk:
        t, start = numbers.held(op.result.type.element), op.start.value.data
        i = self.shift(i, 1, start)
        if t == "i64" or not i.base.startswith("%"):
            return Chunk(i.base, i.step, i.depth)
        return Chunk(
            self.once(
                ("arange", i.base, t), i.depth, lambda: self.f.emit(f"trunc i64 {i.base} to {t}")
            ),
            i.step,
            i.depth,
        )

    def wide(self, c: Chunk, t) -> Chunk:
        """An integer chunk as i64, to be used as an offset."""
        if numbers.held(t) == "i64":
            return c
        if c.step and c.overflow is Overflow.WRAPS:
            c = Chunk(self.lanes(c, numbers.held(t)), 0, c.depth, self.width > 1)
        if c.affine and not c.base.startswith("%"):
            return replace(c, base=str(int(c.base) % (1 << bits(t)))) if is_unsigned(t) else c
        extend = "zext" if is_unsigned(t) else "sext"
        w = self.width if c.vector else 1
        return replace(
            c,
            base=self.once(
                ("wide", c.base, extend),
                c.depth,
                lambda: self.f.emit(
                    f"{extend} {vec(numbers.held(t), w)} {c.base} to {vec('i64', w)}"
                ),
            ),
        )

    def _pointer_add(self, op, index) -> Chunk:
        pointer, offset = (
            self.eval(op.pointer, index),
            self.wide(self.eval(op.offset, index), element_of(op.offset.type)),
        )
        depth, size = (
            max(pointer.depth, offset.depth),
            numbers.size(element_of(op.pointer.type).element),
        )
        return self.move(pointer, offset, size, depth)

    def move(self, pointer: Chunk, offset: Chunk, size: int, depth: int) -> Chunk:
        """Pointers moved by a number of elements."""
        with self.depth(depth):
            if pointer.affine and offset.affine:
                return Chunk(
                    self.f.gep(pointer.base, offset.base, size), pointer.step + offset.step, depth
                )
            if pointer.uniform:
                return Chunk(
                    self.f.gep(pointer.base, offset.base, size, self.width), 0, depth, True
                )
            return Chunk(
                self.f.emit(
                    f"getelementptr [{size} x i8], {vec('ptr', self.width)}"
                    f" {self.pointers(pointer, size)}, {vec('i64', self.width)}"
                    f" {self.lanes(offset, 'i64')}"
                ),
                0,
                depth,
                True,
            )

    # ----------------------------------------------------------------------------------------------
    def address(self, b: Buffer, index: tuple[Index, ...], shape: Sequence[int]) -> Chunk:
        """Pointers into a buffer seen under `shape`; outer terms first, so that they are computed
        outside inner loops.
        """
        size, out, constant_part = numbers.size(b.element), Chunk(b.pointer), 0
        step = sum(i.step * s for i, s in zip(index, row_major(shape), strict=False))
        terms = []
        for i, s in zip(index, row_major(shape), strict=False):
            if i.base.startswith("%"):
                terms.append((i.depth, i.base, s))
            else:
                constant_part += int(i.base) * s
        if constant_part:
            terms.append((0, str(constant_part), 1))
        for depth, base, s in sorted(terms, key=lambda t: t[0]):

            def make():
                return self.f.gep(out.base, self.f.mul(base, str(s)), size)

            out = Chunk(
                self.once(("address", out.base, base, s, size), max(depth, out.depth), make),
                0,
                max(depth, out.depth),
            )
        return replace(out, step=step)

    def _buffer(self, b: Buffer, index: tuple[Index, ...], shape: Sequence[int]) -> Chunk:
        at = self.address(b, index, shape)
        with self.depth(at.depth):
            return self.fetch(at, b.element)

    def fetch(self, at: Chunk, element, mask: str | None = None) -> Chunk:
        """Elements at pointers (where the mask, of `width` lanes, holds; else 0), in the current
        section.
        """
        f, w, t, size = self.f, self.width, memory_type(element), numbers.size(element)
        aligned = f"align {size}"
        if at.uniform or w == 1:
            where = (
                at.base
                if mask is None or at.uniform and w > 1
                else f.select(mask, "ptr", at.base, "@zeros")
            )
            return Chunk(self._unpack(element, f.load(t, where, size), 1), 0, at.depth)
        T, name = (
            vec(t, w),
            f"v{w}{'p0' if t == 'ptr' else {'float': 'f32', 'double': 'f64'}.get(t, t)}",
        )
        if at.affine and abs(at.step) == 1:
            pointer = at.base if at.step == 1 else f.gep(at.base, str(1 - w), size)

            def reverse(x, u):
                return (
                    x
                    if at.step == 1
                    else f.emit(
                        f"shufflevector {vec(u, w)} {x}, {vec(u, w)} poison, <{w} x i32>"
                        f" {iota('i32', w, w - 1, -1)}"
                    )
                )

            if mask is None:
                raw = reverse(f.load(t, pointer, size, w), t)
            else:
                raw = reverse(
                    f.call(
                        f"llvm.masked.load.{name}.p0",
                        T,
                        (f"ptr {aligned}", pointer),
                        (vec("i1", w), reverse(mask, "i1")),
                        (T, "zeroinitializer"),
                    ),
                    t,
                )
        else:
            lanes = vec("ptr", w) + f" {aligned}"
            raw = f.call(
                f"llvm.masked.gather.{name}.v{w}p0",
                T,
                (lanes, self.pointers(at, size)),
                (vec("i1", w), mask or EVERY_LANE),
                (T, "zeroinitializer"),
            )
        return Chunk(self._unpack(element, raw, w), 0, at.depth, True)

    def _unpack(self, element, x: str, w: int) -> str:
        if numbers.stored(element) == "half":
            x = self.f.emit(f"bitcast {vec('i16', w)} {x} to {vec('half', w)}")
        return numbers.unpack(self.f, element, x, w)

    def put(self, at: Chunk, element, value: Chunk, mask: str | None = None) -> None:
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
        T, name = (
            vec(t, w),
            f"v{w}{'p0' if t == 'ptr' else {'float': 'f32', 'double': 'f64'}.get(t, t)}",
        )
        if w == 1:
            if mask is None:
                f.store(t, x, at.base, size)
            else:
                f.when(mask, lambda: f.store(t, x, at.base, size))
        elif at.affine and at.step == 1:
            if mask is None:
                f.store(t, x, at.base, size, w)
            else:
                f.do_call(
                    f"llvm.masked.store.{name}.p0",
                    (T, x),
                    (f"ptr align {size}", at.base),
                    (vec("i1", w), mask),
                )
        else:
            f.do_call(
                f"llvm.masked.scatter.{name}.v{w}p0",
                (T, x),
                (vec("ptr", w) + f" align {size}", self.pointers(at, size)),
                (vec("i1", w), mask or EVERY_LANE),
            )

    def keep(
        self, b: Buffer, index: tuple[Index, ...], value: Chunk, shape: Sequence[int] | None = None
    ) -> None:
        """A chunk into a buffer."""
        at = self.address(b, index, shape or b.shape)
        self.put(at, b.element, value)

    # ----------------------------------------------------------------------------------------------
    def locate(self, op, index: tuple[Index, ...]) -> tuple[Chunk, str | None, int]:
        """Pointers of a chunk of a block of an array, the mask of the lanes that exist (None: all),
        and the depth of both.
        """
        f, array, element = self.f, self.env[op.array], op.array.type.element
        facts, size, position = op.array.type.facts, numbers.size(element), iter(index)
        base, moves, tests, lane_tests = array.pointer, [], [], []
        for a, (offset, extent) in enumerate(
            zip(op.offsets, op.extents.get_values(), strict=False)
        ):
            i = next(position) if extent >= 0 else ZERO
            stride, limit = array.strides[a], array.extents[a]
            exact = facts.strides[a].exact
            if isinstance(
                offset.type, TileType
            ):  # a gather: one row for each element of the offset
                at = self.wide(self.eval(offset, (i,)), element_of(offset.type))
                moves.append((at, stride, exact))
                (tests if at.uniform else lane_tests).append((at, limit, "0"))
                continue
            start = self.wide(Chunk(self.env[offset]), offset.type).base

            def fold(base=base, start=start, stride=stride):
                return f.gep(base, f.mul(start, stride), size)

            base = self.once(("base", base, start, stride), 0, fold)
            left = self.once(
                ("left", limit, start),
                0,
                lambda: limit if start == "0" else f.emit(f"sub nsw i64 {limit}, {start}"),
            )
            first = (
                None
                if nonnegative(offset)
                else self.once(("first", start), 0, lambda: f.emit(f"sub nsw i64 0, {start}"))
            )
            at = Chunk(i.base, i.step, i.depth)
            if i.base != "0" or i.step:
                moves.append((at, stride, exact))
            (lane_tests if at.step else tests).append((at, left, first))
        pointer = Chunk(base)
        for at, stride, exact in sorted(moves, key=lambda m: m[0].depth):
            depth = max(pointer.depth, at.depth)
            if at.vector or at.step and exact is None:

                def spread(at=at, stride=stride):
                    return f.op(
                        "mul",
                        vec("i64", self.width),
                        self.lanes(at, "i64"),
                        self.lanes(Chunk(stride), "i64"),
                    )

                offset = Chunk(
                    self.once(("rows", at, stride, self.width), at.depth, spread), 0, at.depth, True
                )
            else:
                offset = Chunk(
                    self.once(("row", at.base, stride), at.depth, lambda: f.mul(at.base, stride)),
                    at.step * (exact or 0),
                    at.depth,
                )
            pointer = self.once(
                ("move", pointer, offset, size, self.width),
                depth,
                lambda: self.move(pointer, offset, size, depth),
            )
        ok, depth = None, 0
        for at, left, first in sorted(tests, key=lambda m: m[0].depth):
            depth = max(depth, at.depth)

            def check(at=at, left=left, first=first, ok=ok):
                if at.base == "0" and first is None:
                    here = f.emit(f"icmp sgt i64 {left}, 0")
                else:
                    here = f.emit(f"icmp slt i64 {at.base}, {left}")
                if first is not None:
                    here = f.op("and", "i1", here, f.emit(f"icmp sge i64 {at.base}, {first}"))
                return here if ok is None else f.op("and", "i1", ok, here)

            ok = self.once(("ok", at.base, left, first, ok), depth, check)
        mask = ok
        if self.width > 1 and (lane_tests or op.mask is not None):
            for at, left, first in lane_tests:
                depth = max(depth, at.depth)
                mask = self.once(
                    ("lane-test", at, left, first, mask, self.width),
                    depth,
                    lambda: self._lanes_inside(at, left, first, mask),
                )
            if ok is not None and not lane_tests:
                mask = self.lanes(Chunk(ok, 0, depth), "i1")
        if op.mask is not None:
            given = self.spread(op.mask, index)
            depth = max(depth, given.depth)

            def both():
                x = self.lanes(given, "i1") if self.width > 1 else given.base
                return x if mask is None else f.op("and", vec("i1", self.width), mask, x)

            mask = self.once(("masked", mask, given, self.width), depth, both)
        elif self.width > 1 and not lane_tests and ok is not None:
            mask = self.lanes(Chunk(ok, 0, depth), "i1")
        return pointer, mask, max(depth, pointer.depth)

    def _lanes_inside(self, at: Chunk, left: str, first: str | None, ok: str | None) -> str:
        """Which lanes of base + step·lane lie in [first, left); `ok` is a scalar to be and-ed the
        first time, later a vector.
        """
        f, w = self.f, self.width
        scalar = ok is not None and ok not in self.vector_masks
        if at.affine and at.step == 1:
            count = f.emit(f"sub nsw i64 {left}, {at.base}")
            if scalar:
                count = f.emit(f"select i1 {ok}, i64 {count}, i64 0")
            count = f.call(
                "llvm.smax.i64",
                "i64",
                ("i64", f.call("llvm.smin.i64", "i64", ("i64", count), ("i64", str(w)))),
                ("i64", "0"),
            )
            inside = f.emit(
                f"icmp slt {vec('i32', w)} {iota('i32', w)},"
                f" {f.splat('i32', f.emit(f'trunc i64 {count} to i32'), w)}"
            )
            if first is not None:
                before = f.emit(f"sub nsw i64 {first}, {at.base}")
                before = f.call(
                    "llvm.smax.i64",
                    "i64",
                    ("i64", f.call("llvm.smin.i64", "i64", ("i64", before), ("i64", str(w)))),
                    ("i64", "0"),
                )
                low = f.emit(
                    f"icmp sge {vec('i32', w)} {iota('i32', w)},"
                    f" {f.splat('i32', f.emit(f'trunc i64 {before} to i32'), w)}"
                )
                inside = f.op("and", vec("i1", w), inside, low)
        else:
            T, x = vec("i64", w), self.lanes(at, "i64")
            inside = f.emit(f"icmp slt {T} {x}, {self.lanes(Chunk(left), 'i64')}")
            low = f.emit(
                f"icmp sge {T} {x},"
                f" {self.lanes(Chunk(first), 'i64') if first else 'zeroinitializer'}"
            )
            inside = f.op("and", vec("i1", w), inside, low)
            if scalar:
                inside = f.op("and", vec("i1", w), inside, f.splat("i1", ok, w))
        if ok is not None and not scalar:
            inside = f.op("and", vec("i1", w), inside, ok)
        self.vector_masks.add(inside)
        return inside

    def load(self, op, index: tuple[Index, ...]) -> Chunk:
        at, mask, depth = self.locate(op, index)
        return self._loaded(op, index, at, mask, depth, op.array.type.element)

    def load_pointers(self, op, index: tuple[Index, ...]) -> Chunk:
        at = self.eval(op.pointers, index)
        mask, depth = None, at.depth
        if op.mask is not None:
            given = self.spread(op.mask, index)
            depth = max(depth, given.depth)
            mask = given.base if self.width == 1 else self.lanes(given, "i1")
        return self._loaded(op, index, at, mask, depth, element_of(op.pointers.type).element)

    def _loaded(self, op, index, at: Chunk, mask: str | None, depth: int, element) -> Chunk:
        """What a load gives: the elements that exist, `other` elsewhere."""
        other = None if op.other is None else self.spread(op.other, index)
        if other is not None:
            depth = max(depth, other.depth)
        w = self.width
        with self.depth(depth):
            lanes_needed = w > 1 and (not at.uniform or mask is not None)
            if lanes_needed and at.uniform and mask is not None:
                at = Chunk(self.f.splat("ptr", at.base, w), 0, at.depth, True)
            got = self.fetch(at, element, mask)
            if mask is not None and other is not None:
                t = numbers.held(element)
                vector = got.vector
                take = (lambda c: self.lanes(c, t)) if vector else (lambda c: c.base)
                got = Chunk(
                    self.f.select(
                        mask, vec(t, w if vector else 1), take(got), take(other), w if vector else 1
                    ),
                    0,
                    depth,
                    vector,
                )
        return replace(got, depth=depth)


def memory_type(element) -> str:
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


def nonnegative(v: SSAValue, depth: int = 12) -> bool:
    """A scalar that cannot be negative, as far as one sees."""
    if depth == 0:
        return False
    op = v.owner
    from xdsl.dialects import scf
    from xdsl.ir import Block

    if isinstance(op, Block):
        loop = op.parent_op()
        return isinstance(loop, scf.ForOp) and v is op.args[0] and nonnegative(loop.lb, depth - 1)
    match op:
        case tile.Constant():
            return op.number >= 0
        case tile.ProgramId() | tile.NumPrograms() | tile.Dim():
            return True
        case tile.Multiple() | ew.Cast():
            return (
                is_integer(element_of(op.operands[0].type))
                and nonnegative(op.operands[0], depth - 1)
                or is_bool(op.operands[0].type)
            )
        case ew.Elementwise() if op.fn.name in ("add", "mul", "max", "min", "floordiv", "mod"):
            return all(nonnegative(x, depth - 1) for x in op.operands)
    return is_unsigned(v.type)
