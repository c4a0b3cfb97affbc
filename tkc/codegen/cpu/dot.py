"""Dots: operands packed once in the computing type, then register-blocked kernels that add into the
accumulator's own buffer.

    A    rows of K (or, when A is a transposed tile, columns of M): a kernel broadcasts one element
         at a time, so either is as good
    B    panels of two vectors: panel p holds columns [p·V, p·V + V) as K rows of V
    C    the accumulator, row-major: a block of ROWS × V elements is loaded, gets K steps of fma in
         registers, and is stored (microkernel.py)

Packing evaluates the operand's expression, so a bfloat16 load, a cast or a mask costs no buffer of
its own. The result takes the accumulator's buffer when nothing reads the old value again; in a loop
the sum therefore never moves. While a kernel computes it prefetches the blocks that the loop's next
iteration packs (prefetch.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container

from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.ir import Operation, SSAValue

from tkc.codegen.cpu import numbers
from tkc.codegen.cpu.emit import LANES, vec
from tkc.codegen.cpu.microkernel import Microkernel
from tkc.codegen.cpu.nest import Nest, unit_reshape
from tkc.codegen.cpu.planning import POINTWISE
from tkc.codegen.cpu.prefetch import Prefetch
from tkc.codegen.cpu.values import Buffer, Chunk, Index
from tkc.ir import tile
from tkc.ir.types import TileType, element_of, is_float, is_unsigned
from tkc.ir.values import array_type, tile_type

COMPUTED = {"float": f32, "double": f64, "i32": i32, "i64": i64}  # what dots are computed in

Placement = Callable[[Nest, tuple[Index, ...]], Chunk]  # the pointers of a chunk


def natural(v: SSAValue, known: Container[SSAValue]) -> int:
    """The axis along which neighbouring elements of a tile are next to each other in memory."""
    while v not in known and isinstance(v.owner, POINTWISE):  # chains of them can be long
        operand = _first_varying(v.owner)
        if operand is None:
            break
        v = operand
    last, op = tile_type(v).rank - 1, v.owner
    if v in known:
        return last
    match op:
        case tile.Transpose():
            return list(op.permutation.get_values()).index(natural(op.arg, known))
        case tile.Load():
            kept = [a for a, n in enumerate(op.extents.get_values()) if n >= 0]
            exact = [array_type(op.array).facts.strides[a].exact for a in kept]
            return last if exact[-1] == 1 or 1 not in exact else exact.index(1)
        case tile.Reshape():
            mapped = unit_reshape(tile_type(op.arg).extents, tile_type(v).extents)
            axis = None if mapped is None else mapped[natural(op.arg, known)]
            return last if axis is None else axis
    return last


def _first_varying(op: Operation) -> SSAValue | None:
    """The first tile among the operands that does not repeat one element."""
    uniform = (tile.Broadcast, tile.Splat, tile.Constant)
    tiles = (x for x in op.operands if isinstance(x.type, TileType))
    return next((x for x in tiles if not isinstance(x.owner, uniform)), None)


class Dots(Prefetch):
    """The part of the lowering that multiplies tiles."""

    def dot(self, op: tile.Dot) -> None:
        """A product added to an accumulator, of each image of a batch."""
        self.done.add(op)
        t = self.dot_type(op)
        *batch, m, k = tile_type(op.a).extents
        n = tile_type(op.b).extents[-1]
        tf32 = op.precision.data == "tf32" and t == "float"
        scratch: list[tuple[int, int]] = []
        ahead = [x for x in (self.ahead(op.a), self.ahead(op.b)) if x is not None]
        left, by_column = self.pack_left(op.a, t, tf32, scratch)
        right, padded = self.pack_right(op.b, t, tf32, scratch)
        zero = isinstance(op.acc.owner, tile.Constant) and op.acc.owner.number == 0
        whole = numbers.stored(element_of(op.acc.type)) == t
        if whole:
            c = self.destination(op, zero, left)
        else:
            c = self.buffer(TileType(tile_type(op.acc).extents, COMPUTED[t]))
            if not zero:
                self.converted(c, op.acc)
        kernel = Microkernel(
            self.blocking, t, m, n, k, padded, by_column, zero, tuple(x.shape for x in ahead)
        )
        name, f = kernel.write(self.module), self.f
        sizes = m * k, kernel.panels * padded * kernel.panel, m * n  # of one image

        def one(i: str) -> None:
            images = (
                ("ptr", f.gep(base, f.mul(i, str(size)), kernel.size))
                for base, size in zip((left, right, c.pointer), sizes, strict=True)
            )
            following = (pair for x in ahead for pair in (("ptr", x.pointer), ("i64", x.stride)))
            f.do_call(name, *images, *following)

        f.loop(math.prod(batch), 1, [], one)
        for offset, nbytes in scratch:
            self.release(offset, nbytes)
        if whole:
            return self.own(op.result, c)
        out = self.buffer_for(op.result)
        self.converted(out, self.alias(c))
        self.release(c.offset, c.bytes)
        self.own(op.result, out)

    def dot_type(self, op: tile.Dot) -> str:
        """What the products and sums are computed in."""
        elements = [element_of(v.type) for v in (op.a, op.b, op.acc)]
        if any(is_float(e) for e in elements):
            return "double" if any(numbers.held(e) == "double" for e in elements) else "float"
        return "i64" if any(numbers.size(e) == 8 for e in elements) else "i32"

    def converted(self, b: Buffer, v: SSAValue) -> None:
        """A tile into a buffer of another element type."""
        self.prepare([v])
        nest, source = Nest(self.f, self.env), element_of(v.type)

        def chunk(index: tuple[Index, ...]) -> None:
            held = nest.lanes(nest.eval(v, index), numbers.held(source))
            x = numbers.convert(self.f, source, held, b.element, nest.width)
            nest.keep(b, index, Chunk(x, 0, len(nest.levels) - 1, nest.width > 1))

        nest.walk(b.shape, chunk)

    def destination(self, op: tile.Dot, zero: bool, left: str) -> Buffer:
        """A buffer that holds the accumulator's value and that nothing else needs: its own, one
        that it is computed from, or a new one. Not that of the left operand (`left`), which may be
        the accumulator, too: it is read until all columns are done.
        """
        if zero:
            return self.buffer_for(op.acc)
        if op.acc in self.buffers and not self.pending(op.acc):
            own = self.env.buffer(op.acc)
            if own.pointer != left:
                return own
        b = self._read_in_place_by(op.acc)
        if b is None or b.pointer == left:
            b = self.buffer_for(op.acc)
        self.fill(b, op.acc)
        return b

    def _read_in_place_by(self, v: SSAValue) -> Buffer | None:
        """A buffer of v's type that v is computed from, element by element, and that nothing reads
        otherwise.
        """
        leaves = self.leaves(v)
        for leaf, identity in leaves.items():
            if identity and leaf in self.buffers and leaf.type == v.type and not self.pending(leaf):
                b = self.buffers[leaf]
                if not any(self.env.get(x) is b for x in leaves if x is not leaf):
                    return b
        return None

    # ----------------------------------------------------------------------------------------------
    def scratch_for(self, nbytes: int, scratch: list[tuple[int, int]]) -> str:
        """A name for bytes of the workspace, noted in `scratch` to be released."""
        pointer, offset = self.scratch(nbytes)
        scratch.append((offset, nbytes))
        return pointer

    def packed(
        self, v: SSAValue, t: str, tf32: bool, axis: int, lanes: int, place: Placement
    ) -> None:
        """The tile evaluated along an axis, as type t."""
        others = self.prepare([v])
        f, nest, element = self.f, Nest(self.f, self.env), element_of(v.type)
        size = numbers.size(COMPUTED[t])

        def chunk(index: tuple[Index, ...]) -> None:
            c = nest.eval(v, index)
            beside = nest.eval_all(others, index)
            w = nest.width
            x, held = nest.lanes(c, numbers.held(element)), numbers.held(element)
            if tf32 and numbers.stored(element) == "float":
                x = numbers.tf32(f, x, w)
            if held != t:
                opcode = _conversion(t, is_float(element), is_unsigned(element) or held == "i1")
                x = f.emit(f"{opcode} {vec(held, w)} {x} to {vec(t, w)}")
            f.store(t, x, place(nest, index).base, size, w)
            nest.keep_all(beside, index)

        nest.walk(tile_type(v).extents, chunk, lanes=lanes, axis=axis)
        self.own_all(others)

    def pack_left(
        self, v: SSAValue, t: str, tf32: bool, scratch: list[tuple[int, int]]
    ) -> tuple[str, bool]:
        """Pointer to A, and whether it lies there by columns."""
        shape, rank = tile_type(v).extents, tile_type(v).rank
        if v in self.env and numbers.stored(element_of(v.type)) == t and not tf32:
            return self.env.buffer(v).pointer, False
        by_column = natural(v, self.env) == rank - 2
        *batch, rows, columns = range(rank)
        order = [*batch, columns, rows] if by_column else [*batch, rows, columns]
        pointer = self.scratch_for(tile_type(v).size * numbers.size(COMPUTED[t]) + 64, scratch)
        layout = Buffer(pointer, tuple(shape[a] for a in order), COMPUTED[t], 0, 0)

        def place(nest: Nest, index: tuple[Index, ...]) -> Chunk:
            return nest.address(layout, tuple(index[a] for a in order), layout.shape)

        self.packed(v, t, tf32, rows if by_column else columns, LANES, place)
        return pointer, by_column

    def pack_right(
        self, v: SSAValue, t: str, tf32: bool, scratch: list[tuple[int, int]]
    ) -> tuple[str, int]:
        """Pointer to the panels of B, and the rows of a panel (K, or more: padding that nothing
        reads).
        """
        by_rows = natural(v, self.env) != tile_type(v).rank - 2 or tile_type(v).extents[-2] == 1
        pack = self._pack_rows if by_rows else self._pack_columns
        return pack(v, t, tf32, scratch)

    def _pack_rows(
        self, v: SSAValue, t: str, tf32: bool, scratch: list[tuple[int, int]]
    ) -> tuple[str, int]:
        """B that lies by rows: every row of a panel is a chunk."""
        *batch, k, n = tile_type(v).extents
        size, panel = numbers.size(COMPUTED[t]), 2 * self.blocking.width(t)
        panels = -(-n // panel)
        pointer = self.scratch_for(math.prod(batch) * panels * k * panel * size + 64, scratch)
        layout = Buffer(pointer, (*batch, panels, k, panel), COMPUTED[t], 0, 0)
        flat = Buffer(pointer, (*batch, panels * k * panel), COMPUTED[t], 0, 0)

        def place(nest: Nest, index: tuple[Index, ...]) -> Chunk:
            # a chunk starts at a multiple of its width, which divides a panel
            *outer, i, j = index
            if not j.base.startswith("%"):
                number, column = divmod(int(j.base), panel)
                inner = Index(str(number)), i, Index(str(column), j.step)
                return nest.address(layout, (*outer, *inner), layout.shape)
            head = nest.address(flat, (*outer, nest.shift(i, panel, 0)), flat.shape)
            # (column / panel) · k · panel
            start = nest.once(("panel", j.base), j.depth, lambda: self.f.mul(j.base, str(k)))
            at = nest.once(
                ("panel", head.base, start),
                max(head.depth, j.depth),
                lambda: self.f.gep(head.base, start, size),
            )
            return Chunk(at, 1, j.depth)

        self.packed(v, t, tf32, len(batch) + 1, panel, place)
        return pointer, k

    def _pack_columns(
        self, v: SSAValue, t: str, tf32: bool, scratch: list[tuple[int, int]]
    ) -> tuple[str, int]:
        """B that lies by columns: as rows of K first, then each square of it transposed."""
        *batch, k, n = tile_type(v).extents
        f, size, width = self.f, numbers.size(COMPUTED[t]), self.blocking.width(t)
        panel, count = 2 * width, math.prod(batch)
        panels = -(-n // panel)
        rows, padded = (-(-extent // width) * width for extent in (n, k))
        plain = self.scratch_for(count * rows * padded * size + 64, scratch)
        layout = Buffer(plain, (*batch, rows, padded), COMPUTED[t], 0, 0)

        def place(nest: Nest, index: tuple[Index, ...]) -> Chunk:
            return nest.address(layout, (*index[:-2], index[-1], index[-2]), layout.shape)

        self.packed(v, t, tf32, len(batch), LANES, place)
        pointer = self.scratch_for(count * panels * padded * panel * size + 64, scratch)
        turn = self.transposer(t, width)

        def strip(image: str, column: str) -> None:
            """The column-th strip of `width` columns of B."""
            if column.startswith("%"):
                half, odd = f.emit(f"lshr i64 {column}, 1"), f.emit(f"and i64 {column}, 1")
            else:
                half, odd = str(int(column) // 2), str(int(column) % 2)
            start = f.add(f.mul(image, str(rows * padded)), f.mul(column, str(width * padded)))
            source = f.gep(plain, start, size)
            start = f.mul(image, str(panels * padded * panel))
            start = f.add(f.add(start, f.mul(half, str(padded * panel))), f.mul(odd, str(width)))
            target = f.gep(pointer, start, size)

            def square(i: str) -> None:
                f.do_call(
                    turn,
                    ("ptr", f.gep(source, f.mul(i, str(width)), size)),
                    ("i64", str(padded)),
                    ("ptr", f.gep(target, f.mul(i, str(width * panel)), size)),
                )

            f.loop(padded // width, 1, [], square)

        def strips(image: str) -> None:
            f.loop(rows // width, 1, [], lambda column: strip(image, column))

        f.loop(count, 1, [], strips)
        return pointer, padded

    def transposer(self, t: str, w: int) -> str:
        """@turn(from, stride, to): a w × w square transposed in registers, log2 w rounds of
        exchanges; rows of `to` are panels' rows.
        """
        name = f"turn.{t}.{w}"
        if name in self.module.functions:
            return name
        f = self.module.function(
            name,
            "void",
            [("ptr", "source"), ("i64", "stride"), ("ptr", "target")],
            attributes="nounwind noinline",
        )
        size = numbers.size(COMPUTED[t])
        rows = [
            f.load(t, f.gep("%source", f.mul("%stride", str(r)), size), size, w) for r in range(w)
        ]
        step = w // 2
        while step:
            for r in (r for r in range(w) if not r & step):
                x, y = rows[r], rows[r + step]
                low = [i if not i & step else w + i - step for i in range(w)]
                high = [i + step if not i & step else w + i for i in range(w)]
                rows[r], rows[r + step] = f.shuffle(t, x, low, w, y), f.shuffle(t, x, high, w, y)
            step //= 2
        for r in range(w):
            f.store(t, rows[r], f.gep("%target", str(r * 2 * w), size), size, w)
        f.do("ret void")
        return name


def _conversion(t: str, of_float: bool, unsigned: bool) -> str:
    """The opcode from a held element to the type that a dot is computed in."""
    if of_float:
        return "fpext" if t == "double" else "fptrunc"
    if t in ("float", "double"):
        return "uitofp" if unsigned else "sitofp"
    return "zext" if unsigned else "sext"
