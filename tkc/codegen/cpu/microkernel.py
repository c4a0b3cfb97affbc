"""The inner loops of a dot: C += A·B, or C = A·B, of one shape in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tkc.codegen.cpu.emit import Function, Module, constant, suffix, vec
from tkc.codegen.cpu.state import Blocking

MAX_LINES_A_BLOCK = 32  # cache lines that one block of C fetches; more would delay it


@dataclass(frozen=True)
class Microkernel:
    """@dot(A, B, C, …) of one shape, M × N × K: A by rows or by columns, B as panels of `padded`
    rows, C by rows, starting from 0 where `zero`. What is `ahead`, as rows and cache lines of each,
    is fetched meanwhile, some lines a block.
    """

    blocking: Blocking
    t: str
    m: int
    n: int
    k: int
    padded: int
    by_column: bool
    zero: bool
    ahead: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Of an element, in bytes."""
        return 8 if self.t in ("double", "i64") else 4

    @property
    def width(self) -> int:
        """Lanes of a vector."""
        return self.blocking.width(self.t)

    @property
    def panel(self) -> int:
        """Columns of B in a panel."""
        return 2 * self.width

    @property
    def panels(self) -> int:
        return -(-self.n // self.panel)

    @property
    def name(self) -> str:
        ahead = "".join(f".{rows}x{lines}" for rows, lines in self.ahead)
        form = ".column" * self.by_column + ".zero" * self.zero + ahead
        return f"dot.{self.t}.{self.m}x{self.n}x{self.k}.{self.padded}{form}"

    def write(self, module: Module) -> str:
        """The name of the function, written where the module has none of that name."""
        if self.name in module.functions:
            return self.name
        further = [
            p for x in range(len(self.ahead)) for p in (("ptr", f"next{x}"), ("i64", f"stride{x}"))
        ]
        f = module.function(
            self.name,
            "void",
            [*(("ptr noalias", name) for name in "abc"), *further],
            attributes="nounwind noinline",
        )
        whole = self.n - self.n % self.panel
        if whole:
            both = [self.width, self.width]
            f.loop(whole, self.panel, [], lambda j: self._columns(f, both, j))
        if rest := self.n % self.panel:
            widths = [self.width, rest - self.width] if rest > self.width else [rest]
            self._columns(f, widths, str(whole))
        f.do("ret void")
        return self.name

    def _columns(self, f: Function, widths: Sequence[int], j: str) -> None:
        """All rows of C, columns of `widths` from column j."""
        b, rows = f.gep("%b", f.mul(j, str(self.padded)), self.size), self.blocking.rows
        whole = self.m - self.m % rows
        if whole:
            f.loop(whole, rows, [], lambda i: self._block(f, rows, widths, i, j, b))
        if self.m % rows:
            self._block(f, self.m % rows, widths, str(whole), j, b)

    def _block(
        self, f: Function, count: int, widths: Sequence[int], i: str, j: str, b: str
    ) -> None:
        """`count` rows from row i, columns of `widths` from column j."""
        t, size, width = self.t, self.size, self.width
        row, along = (1, self.m) if self.by_column else (self.k, 1)  # strides of A
        self._fetch_ahead(f, i, j)
        a = f.gep("%a", f.mul(i, str(row)), size)
        c = f.gep("%c", f.add(f.mul(i, str(self.n)), j), size)
        # row, vector and place of each register of C
        at = [
            (r, v, f.gep(c, str(r * self.n + v * width), size))
            for r in range(count)
            for v in range(len(widths))
        ]
        zeros = constant(t, 0, width)
        loaded = [zeros if self.zero else f.load(t, p, size, widths[v]) for _, v, p in at]
        first = [
            x if self.zero else self._widened(f, x, widths[v])
            for x, (_, v, _) in zip(loaded, at, strict=True)
        ]

        def step(q: str, *sums: str) -> list[str]:
            line = f.gep(b, f.mul(q, str(self.panel)), size)
            bs = [
                f.load(t, f.gep(line, str(v * width), size), size, width)
                for v in range(len(widths))
            ]
            column = f.gep(a, f.mul(q, str(along)), size)
            scalars = [
                f.splat(t, f.load(t, f.gep(column, str(r * row), size), size), width)
                for r in range(count)
            ]
            return [
                self._multiply_add(f, scalars[r], bs[v], s)
                for (r, v, _), s in zip(at, sums, strict=True)
            ]

        sums = f.loop(self.k, 1, [(vec(t, width), x) for x in first], step)
        for (_, v, p), s in zip(at, sums, strict=True):
            w = widths[v]
            if w == 1:
                s = f.extract(t, s, 0, width)
            elif w < width:
                s = f.shuffle(t, s, range(w), width)
            f.store(t, s, p, size, w)

    def _fetch_ahead(self, f: Function, i: str, j: str) -> None:
        """The share of the lines ahead of the block of C at row i and column j."""

        def divided(x: str, n: int) -> str:
            return f.emit(f"udiv exact i64 {x}, {n}") if x.startswith("%") else str(int(x) // n)

        tall = -(-self.m // self.blocking.rows)
        number = f.add(f.mul(divided(j, self.panel), str(tall)), divided(i, self.blocking.rows))
        for x, (rows, lines) in enumerate(self.ahead):
            share = -(-rows * lines // (tall * self.panels))
            if share > MAX_LINES_A_BLOCK:
                continue
            for q in range(share):
                line = f.add(f.mul(number, str(share)), str(q))
                row = f.op("udiv", "i64", line, str(lines))
                column = f.op("shl", "i64", f.op("urem", "i64", line, str(lines)), "6")
                at = f.op("add", "i64", f.op("mul", "i64", row, f"%stride{x}"), column)
                f.do_call(
                    "llvm.prefetch.p0",
                    ("ptr", f.emit(f"getelementptr i8, ptr %next{x}, i64 {at}")),
                    ("i32", "0"),
                    ("i32", "2"),
                    ("i32", "1"),
                )

    def _widened(self, f: Function, x: str, w: int) -> str:
        """A vector of w lanes with further lanes of no meaning."""
        t, width = self.t, self.width
        if w == width:
            return x
        if w == 1:
            return f.emit(f"insertelement {vec(t, width)} poison, {t} {x}, i64 0")
        return f.shuffle(t, x, [i if i < w else 0 for i in range(width)], w)

    def _multiply_add(self, f: Function, a: str, b: str, c: str) -> str:
        t = vec(self.t, self.width)
        if self.t in ("float", "double"):
            return f.call(f"llvm.fma.{suffix(self.t, self.width)}", t, (t, a), (t, b), (t, c))
        return f.op("add", t, f.op("mul", t, a, b), c)
