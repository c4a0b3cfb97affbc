"""Dots: operands packed once in the computing type, then register-blocked kernels that add into the
accumulator's own buffer.

    A    rows of K (or, when A is a transposed tile, columns of M): a kernel broadcasts one element at a time, so either will do
    B    panels of two vectors: panel p holds columns [p·V, p·V + V) as K rows of V
    C    the accumulator, row-major: a block of ROWS × V elements is loaded, gets K steps of fma in registers, and is stored

Packing evaluates the operand's expression, so a bfloat16 load, a cast or a mask costs no buffer of its own.  The result takes the
accumulator's buffer when nobody reads the old value again; in a loop the sum therefore never moves.  While a kernel computes it prefetches the
blocks that the loop's next round will pack (a product of 1024³ by 128×128×64: 143 instead of 124
GFLOP/s on one busy core).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.ir import Block, SSAValue

from tkc.codegen.cpu import numbers
from tkc.codegen.cpu.emit import LANES, constant, iota, suffix, vec
from tkc.codegen.cpu.nest import Buffer, Chunk, Index, Nest, unit_reshape
from tkc.codegen.cpu.planning import POINTWISE
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import TileType, element_of, is_float, is_unsigned
from tkc.ir.values import array_type, tile_type


@dataclass(frozen=True)
class Blocking:
    """Registers of the target: lanes of one vector of 4-byte elements, and rows of C in registers
    at once.
    """

    lanes: int
    rows: int

    def width(self, t: str) -> int:
        return self.lanes // 2 if t in ("double", "i64") else self.lanes


AVX512, AVX2 = Blocking(16, 8), Blocking(8, 6)


@dataclass(frozen=True)
class Ahead:
    """Memory to fetch into the second-level cache while a kernel computes: `rows` of `lines` cache
    lines, `stride` bytes apart.
    """

    pointer: str
    stride: str
    rows: int
    lines: int


def share(v: SSAValue, i: SSAValue) -> int | None:
    """How much a scalar grows when the loop's index grows by 1; None where that is not constant."""
    if v is i:
        return 1
    op = v.owner
    if isinstance(op, Block):
        return 0
    parts = [share(x, i) for x in op.operands if not isinstance(x.type, TileType)]
    if not any(p is None or p for p in parts) and not op.regions:
        return 0
    match op:
        case tile.Multiple() | ew.Cast():
            return parts[0]
        case ew.Elementwise() if op.fn.name == "add" and None not in parts:
            return parts[0] + parts[1]
        case ew.Elementwise() if op.fn.name == "sub" and None not in parts:
            return parts[0] - parts[1]
        case ew.Elementwise() if op.fn.name == "mul" and None not in parts:
            for a, b in (0, 1), (1, 0):
                if isinstance(op.operands[b].owner, tile.Constant):
                    return parts[a] * op.operands[b].owner.number
    return None


def natural(v: SSAValue, known) -> int:
    """The axis along which neighbouring elements of a tile are next to each other in memory."""
    t, op = v.type, v.owner
    last = t.rank - 1
    if v in known:
        return last
    match op:
        case tile.Transpose():
            inner = natural(op.arg, known)
            return list(op.permutation.get_values()).index(inner)
        case tile.Load():
            kept = [a for a, n in enumerate(op.extents.get_values()) if n >= 0]
            exact = [array_type(op.array).facts.strides[a].exact for a in kept]
            return last if exact[-1] == 1 or 1 not in exact else exact.index(1)
        case tile.Reshape() if (
            mapped := unit_reshape(tile_type(op.arg).extents, t.extents)
        ) is not None:
            axis = mapped[natural(op.arg, known)]
            return last if axis is None else axis
        case _ if isinstance(op, POINTWISE):
            for x in op.operands:
                if isinstance(x.type, TileType) and not isinstance(
                    x.owner, (tile.Broadcast, tile.Splat, tile.Constant)
                ):
                    return natural(x, known)
    return last


class Dots:
    blocking: Blocking = AVX512  # set by `compile` for the processor

    def dot(self, op) -> None:
        self.done.add(op)
        a, b = op.a.type, op.b.type
        t = self.dot_type(op)
        *batch, m, k = a.extents
        n, count = b.extents[-1], 1
        for extent in batch:
            count *= extent
        tf32 = op.precision.data == "tf32" and t == "float"
        scratch: list[tuple[int, int]] = []
        ahead = [x for x in (self.ahead(op.a), self.ahead(op.b)) if x is not None]
        left, by_column = self.pack_left(op.a, t, tf32, scratch)
        right, padded = self.pack_right(op.b, t, tf32, scratch)
        zero = isinstance(op.acc.owner, tile.Constant) and op.acc.owner.number == 0
        whole = numbers.stored(element_of(op.acc.type)) == t
        c = (
            self.destination(op, zero)
            if whole
            else self.buffer(
                TileType(
                    op.acc.type.extents, {"float": f32, "double": f64, "i32": i32, "i64": i64}[t]
                )
            )
        )
        if not whole and not zero:
            self.converted(c, op.acc)
        name = self.kernel_of_dot(
            t, m, n, k, padded, by_column, zero, tuple((x.rows, x.lines) for x in ahead)
        )
        size, f = numbers.size(c.element), self.f
        panels = -(-n // (2 * self.blocking.width(t)))

        def one(i):
            f.do_call(
                name,
                ("ptr", f.gep(left, f.mul(i, str(m * k)), size)),
                (
                    "ptr",
                    f.gep(right, f.mul(i, str(panels * padded * 2 * self.blocking.width(t))), size),
                ),
                ("ptr", f.gep(c.pointer, f.mul(i, str(m * n)), size)),
                *(pair for x in ahead for pair in (("ptr", x.pointer), ("i64", x.stride))),
            )
            return ()

        f.loop(count, 1, [], one)
        for offset, nbytes in scratch:
            self.release(offset, nbytes)
        if whole:
            return self.own(op.result, c)
        out = self.buffer(op.result.type)
        self.converted(out, self.alias(c))
        self.release(c.offset, c.bytes)
        self.own(op.result, out)

    def dot_type(self, op) -> str:
        """What the products and sums are computed in."""
        elements = [element_of(v.type) for v in (op.a, op.b, op.acc)]
        if any(is_float(e) for e in elements):
            return "double" if any(numbers.held(e) == "double" for e in elements) else "float"
        return "i64" if any(numbers.size(e) == 8 for e in elements) else "i32"

    def converted(self, b: Buffer, v: SSAValue) -> None:
        """A tile into a buffer of another element type."""
        self.prepare([v])
        nest = Nest(self.f, self.env)
        source = element_of(v.type)

        def chunk(index):
            x = numbers.convert(
                self.f,
                source,
                nest.lanes(nest.eval(v, index), numbers.held(source)),
                b.element,
                nest.width,
            )
            nest.keep(b, index, Chunk(x, 0, len(nest.levels) - 1, nest.width > 1))

        nest.walk(b.shape, chunk)

    def destination(self, op, zero: bool) -> Buffer:
        """A buffer that holds the accumulator's value and is ours: its own, one that it is computed
        from, or a new one.
        """
        if not zero and op.acc in self.buffers and not self.pending(op.acc):
            return self.env[op.acc]
        if not zero:
            for v, identity in self.leaves(op.acc).items():
                if identity and v in self.buffers and v.type == op.acc.type and not self.pending(v):
                    b = self.buffers[v]
                    if any(self.env.get(x) is b for x in self.leaves(op.acc) if x is not v):
                        continue
                    self.fill(b, op.acc)
                    return b
        b = self.buffer(op.acc.type)
        if not zero:
            self.fill(b, op.acc)
        return b

    # ----------------------------------------------------------------------------------------------
    def ahead(self, v: SSAValue) -> Ahead | None:
        """What the next round of the loop will load of this operand, where that is plain: a block
        that moves by a fixed step.
        """
        loop = self.block.parent_op()
        while isinstance(v.owner, (tile.Transpose, ew.Cast)) and v not in self.env:
            v = v.owner.operands[0]
        op = v.owner
        if (
            not isinstance(loop, scf.ForOp)
            or not isinstance(op, tile.Load)
            or v in self.env
            or v.type.rank != 2
        ):
            return None
        if op.parent_block() is not self.block or any(
            isinstance(x.type, TileType) for x in op.offsets
        ):
            return None
        kept, facts = (
            [a for a, n in enumerate(op.extents.get_values()) if n >= 0],
            array_type(op.array).facts,
        )
        along = next((a for a in reversed(kept) if facts.strides[a].exact == 1), None)
        shares = [share(offset, self.block.args[0]) for offset in op.offsets]
        if along is None or None in shares or not any(shares):
            return None
        across = kept[0] if kept[1] == along else kept[1]
        f, array, size = self.f, self.env[op.array], numbers.size(v.type.element)
        step, at = self.wide(loop.step), "0"
        for offset, part, stride in zip(op.offsets, shares, array.strides, strict=False):
            moved = f.add(self.wide(offset), f.mul(step, str(part)))
            at = f.add(at, f.mul(moved, stride))
        extents = op.extents.get_values()
        pointer = f.emit(
            f"getelementptr i8, ptr {array.pointer}, i64 {f.mul(at, str(size))}"
        )  # may lie outside: never loaded from
        return Ahead(
            pointer,
            f.mul(array.strides[across], str(size)),
            extents[across],
            -(-extents[along] * size // 64),
        )

    # ----------------------------------------------------------------------------------------------
    def scratch_for(self, nbytes: int, scratch: list) -> str:
        pointer, offset = self.scratch(nbytes)
        scratch.append((offset, nbytes))
        return pointer

    def packed(self, v: SSAValue, t: str, tf32: bool, axis: int, lanes: int, place) -> None:
        """The tile evaluated along an axis, as type t; place(nest, index) gives the pointers of a
        chunk.
        """
        others = self.prepare([v])
        f, nest, element = self.f, Nest(self.f, self.env), element_of(v.type)
        size = 8 if t in ("double", "i64") else 4

        def chunk(index: tuple[Index, ...]):
            c = nest.eval(v, index)
            beside = [(b, nest.eval(x, index)) for x, b in others.items()]
            w = nest.width
            x, held = nest.lanes(c, numbers.held(element)), numbers.held(element)
            if is_float(element):
                x = numbers.tf32(f, x, w) if tf32 and numbers.stored(element) == "float" else x
            if held != t:
                opcode = (
                    ("fpext" if t == "double" else "fptrunc")
                    if is_float(element)
                    else ("zext" if is_unsigned(element) or held == "i1" else "sext")
                )
                if not is_float(element) and t in ("float", "double"):
                    opcode = "uitofp" if opcode == "zext" else "sitofp"
                x = f.emit(f"{opcode} {vec(held, w)} {x} to {vec(t, w)}")
            f.store(t, x, place(nest, index).base, size, w)
            for b, y in beside:
                nest.keep(b, index, y)

        nest.walk(tile_type(v).extents, chunk, lanes=lanes, axis=axis)
        for x, b in others.items():
            self.own(x, b)

    def pack_left(self, v: SSAValue, t: str, tf32: bool, scratch: list) -> tuple[str, bool]:
        """Pointer to A, and whether it lies there by columns."""
        element, rank = element_of(v.type), v.type.rank
        size = 8 if t in ("double", "i64") else 4
        if v in self.env and numbers.stored(element) == t and not tf32:
            return self.env[v].pointer, False
        axis = natural(v, self.env)
        by_column = axis == rank - 2
        if not by_column:
            axis = rank - 1
        pointer = self.scratch_for(tile_type(v).size * size + 64, scratch)
        order = [*range(rank - 2), rank - 1, rank - 2] if by_column else list(range(rank))
        shape = [tile_type(v).extents[a] for a in order]
        layout = Buffer(
            pointer, tuple(shape), {"float": f32, "double": f64, "i32": i32, "i64": i64}[t], 0, 0
        )
        self.packed(
            v,
            t,
            tf32,
            axis,
            LANES,
            lambda nest, index: nest.address(layout, tuple(index[a] for a in order), shape),
        )
        return pointer, by_column

    def pack_right(self, v: SSAValue, t: str, tf32: bool, scratch: list) -> tuple[str, int]:
        """Pointer to the panels of B, and the rows of a panel (K, or more: padding that nobody
        reads).
        """
        *batch, k, n = tile_type(v).extents
        rank, size, width = v.type.rank, 8 if t in ("double", "i64") else 4, self.blocking.width(t)
        panel = 2 * width
        panels, count = -(-n // panel), 1
        for extent in batch:
            count *= extent
        element = {"float": f32, "double": f64, "i32": i32, "i64": i64}[t]
        if natural(v, self.env) != rank - 2 or k == 1:
            pointer = self.scratch_for(count * panels * k * panel * size + 64, scratch)
            layout, flat = (
                Buffer(pointer, (*batch, panels, k, panel), element, 0, 0),
                Buffer(pointer, (*batch, panels * k * panel), element, 0, 0),
            )

            def place(nest: Nest, index):
                # a chunk starts at a multiple of its width, which divides a panel
                *outer, i, j = index
                if not j.base.startswith("%"):
                    column = int(j.base)
                    return nest.address(
                        layout,
                        (
                            *outer,
                            Index(str(column // panel)),
                            i,
                            Index(str(column % panel), j.step),
                        ),
                        layout.shape,
                    )
                head = nest.address(flat, (*outer, nest.shift(i, panel, 0)), flat.shape)
                start = nest.once(
                    ("panel", j.base), j.depth, lambda: self.f.mul(j.base, str(k))
                )  # (column / panel) · k · panel
                return Chunk(
                    nest.once(
                        ("panel", head.base, start),
                        max(head.depth, j.depth),
                        lambda: self.f.gep(head.base, start, size),
                    ),
                    1,
                    j.depth,
                )

            self.packed(v, t, tf32, rank - 1, panel, place)
            return pointer, k
        rows, padded = (
            -(-n // width) * width,
            -(-k // width) * width,
        )  # B lies by columns: rows of K first, then squares turned
        plain = self.scratch_for(count * rows * padded * size + 64, scratch)
        layout = Buffer(plain, (*batch, rows, padded), element, 0, 0)
        self.packed(
            v,
            t,
            tf32,
            rank - 2,
            LANES,
            lambda nest, index: nest.address(
                layout, (*index[:-2], index[-1], index[-2]), layout.shape
            ),
        )
        pointer = self.scratch_for(count * panels * padded * panel * size + 64, scratch)
        turn, f = self.transposer(t, width), self.f

        def square(image, column):  # `column`: which strip of `width` columns of B
            source = f.gep(
                plain,
                f.add(f.mul(image, str(rows * padded)), f.mul(column, str(width * padded))),
                size,
            )
            half = (
                f.emit(f"lshr i64 {column}, 1") if column.startswith("%") else str(int(column) // 2)
            )
            odd = f.emit(f"and i64 {column}, 1") if column.startswith("%") else str(int(column) % 2)
            target = f.gep(
                pointer,
                f.add(
                    f.add(
                        f.mul(image, str(panels * padded * panel)), f.mul(half, str(padded * panel))
                    ),
                    f.mul(odd, str(width)),
                ),
                size,
            )

            def inner(i):
                f.do_call(
                    turn,
                    ("ptr", f.gep(source, f.mul(i, str(width)), size)),
                    ("i64", str(padded)),
                    ("ptr", f.gep(target, f.mul(i, str(width * panel)), size)),
                )
                return ()

            f.loop(padded // width, 1, [], inner)

        f.loop(
            count,
            1,
            [],
            lambda image: f.loop(rows // width, 1, [], lambda c: square(image, c) or ()) and (),
        )
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
        size, T = 8 if t in ("double", "i64") else 4, vec(t, w)
        rows = [
            f.load(t, f.gep("%source", f.mul("%stride", str(r)), size), size, w) for r in range(w)
        ]
        step = w // 2
        while step:
            for r in range(w):
                if r & step:
                    continue
                x, y = rows[r], rows[r + step]

                def mix(mask):
                    return f.emit(
                        f"shufflevector {T} {x}, {T} {y}, <{w} x i32>"
                        f" <{', '.join(f'i32 {i}' for i in mask)}>"
                    )

                rows[r] = mix([i if not i & step else w + i - step for i in range(w)])
                rows[r + step] = mix([i + step if not i & step else w + i for i in range(w)])
            step //= 2
        for r in range(w):
            f.store(t, rows[r], f.gep("%target", str(r * 2 * w), size), size, w)
        f.do("ret void")
        return name

    # ----------------------------------------------------------------------------------------------
    def kernel_of_dot(
        self,
        t: str,
        m: int,
        n: int,
        k: int,
        padded: int,
        by_column: bool,
        zero: bool,
        ahead: tuple[tuple[int, int], ...],
    ) -> str:
        """@dot(A, B, C, …) of one shape: C += A·B, or C = A·B where `zero`; what is `ahead` is
        fetched meanwhile, some lines a block.
        """
        name = f"dot.{t}.{m}x{n}x{k}.{padded}{'.column' * by_column}{'.zero' * zero}{''.join(f'.{r}x{l}' for r, l in ahead)}"
        if name in self.module.functions:
            return name
        further = [
            p for x in range(len(ahead)) for p in (("ptr", f"next{x}"), ("i64", f"stride{x}"))
        ]
        f = self.module.function(
            name,
            "void",
            [("ptr noalias", "a"), ("ptr noalias", "b"), ("ptr noalias", "c"), *further],
            attributes="nounwind noinline",
        )
        size, width, rows = (
            8 if t in ("double", "i64") else 4,
            self.blocking.width(t),
            self.blocking.rows,
        )
        panel = 2 * width
        row, along = (1, m) if by_column else (k, 1)  # strides of A

        tall = -(-m // rows)
        blocks = tall * -(-n // panel)

        def divided(x: str, n: int) -> str:
            return str(int(x) // n) if not x.startswith("%") else f.emit(f"udiv exact i64 {x}, {n}")

        def fetch(i: str, j: str):
            """This block's share of the lines ahead."""
            number = f.add(f.mul(divided(j, panel), str(tall)), divided(i, rows))
            for x, (count, lines) in enumerate(ahead):
                share_ = -(-count * lines // blocks)
                if share_ > 32:
                    continue  # too few blocks to hide them behind
                for q in range(share_):
                    line = f.add(f.mul(number, str(share_)), str(q))
                    at = f.op("mul", "i64", f.op("udiv", "i64", line, str(lines)), f"%stride{x}")
                    at = f.op(
                        "add",
                        "i64",
                        at,
                        f.op("shl", "i64", f.op("urem", "i64", line, str(lines)), "6"),
                    )
                    f.do_call(
                        "llvm.prefetch.p0",
                        ("ptr", f.emit(f"getelementptr i8, ptr %next{x}, i64 {at}")),
                        ("i32", "0"),
                        ("i32", "2"),
                        ("i32", "1"),
                    )

        def block(count: int, widths: list[int], i: str, j: str, b: str):
            """`count` rows from row i, columns of `widths` from column j."""
            fetch(i, j)
            a = f.gep("%a", f.mul(i, str(row)), size)
            c = f.gep("%c", f.add(f.mul(i, str(n)), j), size)
            at = [
                (r, v, f.gep(c, str(r * n + v * width), size))
                for r in range(count)
                for v in range(len(widths))
            ]
            zeros = {w: constant(t, 0, w) for w in widths}
            first = [zeros[widths[v]] if zero else f.load(t, p, size, widths[v]) for r, v, p in at]
            first = [
                self.widen(f, t, x, widths[v], width)
                for x, (r, v, p) in zip(first, at, strict=False)
            ]

            def step(q, *sums):
                line = f.gep(b, f.mul(q, str(panel)), size)
                bs = [
                    f.load(t, f.gep(line, str(v * width), size), size, width)
                    for v in range(len(widths))
                ]
                column, out = f.gep(a, f.mul(q, str(along)), size), []
                scalars = [
                    f.splat(t, f.load(t, f.gep(column, str(r * row), size), size), width)
                    for r in range(count)
                ]
                for (r, v, _), s in zip(at, sums, strict=False):
                    out.append(self.multiply_add(f, t, scalars[r], bs[v], s, width))
                return out

            sums = f.loop(k, 1, [(vec(t, width), x) for x in first], step)
            for (_r, v, p), s in zip(at, sums, strict=False):
                w = widths[v]
                if w == 1:
                    s = f.extract(t, s, 0, width)
                elif w < width:
                    s = f.emit(
                        f"shufflevector {vec(t, width)} {s}, {vec(t, width)} poison, <{w} x i32>"
                        f" {iota('i32', w)}"
                    )
                f.store(t, s, p, size, w)

        def column(widths: list[int], j: str):
            b = f.gep("%b", f.mul(j, str(padded)), size)
            whole = m - m % rows
            if whole:
                f.loop(whole, rows, [], lambda i: block(rows, widths, i, j, b) or ())
            if m % rows:
                block(m % rows, widths, str(whole), j, b)

        whole = n - n % panel
        if whole:
            f.loop(whole, panel, [], lambda j: column([width, width], j) or ())
        if rest := n % panel:
            column([width, rest - width] if rest > width else [rest], str(whole))
        f.do("ret void")
        return name

    @staticmethod
    def widen(f, t: str, x: str, w: int, width: int) -> str:
        """A narrow vector with further lanes of no meaning."""
        if w == width or not x.startswith("%"):
            return x if w == width else constant(t, 0, width)
        if w == 1:
            return f.emit(f"insertelement {vec(t, width)} poison, {t} {x}, i64 0")
        return f.emit(
            f"shufflevector {vec(t, w)} {x}, {vec(t, w)} poison, <{width} x i32>"
            f" <{', '.join(f'i32 {i if i < w else 0}' for i in range(width))}>"
        )

    @staticmethod
    def multiply_add(f, t: str, a: str, b: str, c: str, w: int) -> str:
        T = vec(t, w)
        if t in ("float", "double"):
            return f.call(f"llvm.fma.{suffix(t, w)}", T, (T, a), (T, b), (T, c))
        return f.op("add", T, f.op("mul", T, a, b), c)
