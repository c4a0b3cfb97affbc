"""Loops of dots as Hopper's engines take them: factors whose rows begin at multiples of 16 bytes,
blocks of 64 or 128 rows. Of random extents and arrays hardly any are, so these have a policy of
their own.
"""

from __future__ import annotations

from tkc.fuzz.grammar import ArraySpec, Tile, Writer, is_float

SHAPES = (64, 64, 128), (8, 16, 24, 32, 64, 64, 96), (32, 32, 64)  # m, n and k of a dot
KINDS = ("bfloat16",) * 4 + ("float16", "float16", "int8", "float8_e4m3")


class Streams(Writer):
    def factor(self, dtype: str, rows: int, columns: int, row: str, column: str) -> Tile:
        """A block of an array, which lies there as it is or turned; which array it is may be chosen
        by the program.
        """
        turned, drop, even = (
            self.chance(0.4),
            self.chance(0.25),
            16 if dtype.endswith(("8", "e4m3")) else 8,
        )
        found = [
            a
            for a in self.arrays
            if a.dtype == dtype
            and a.name[0] == "a"
            and a.order == "C"
            and len(a.shape) == 2 + drop
            and a.shape[-1] % even == 0
        ]
        if not found or self.chance(0.6):
            shape = self.pick((0, 1, 31, 64, 130)), self.pick((1, 2, 5, 8)) * even
            found = [ArraySpec(f"a{len(self.arrays)}", dtype, (2, *shape) if drop else shape)]
            self.arrays += found
        a = self.pick(found)
        name, place, extents = (
            f"{a.name}[{self.pick(('p0 % 2', '1'))}]" if drop else a.name,
            (row, column),
            (rows, columns),
        )
        if turned:
            place, extents = place[::-1], extents[::-1]
        return self.let(
            f"tkc.load({name}, ({', '.join(place)}), {extents}){'.T' * turned}",
            dtype,
            (rows, columns),
            a.bound,
        )

    def changed(self, t: Tile) -> Tile:
        """An operand computed from what was loaded."""
        text = self.pick((f"-{t.name}", f"tkc.maximum({t.name}, 0)", f"tkc.minimum({t.name}, 2)"))
        return self.let(text, t.dtype, t.shape, t.bound)

    def stream(self) -> None:
        """A loop of one dot, of several it accumulates, or of two with vector work between."""
        while True:
            (m, n, k), dtype = map(self.pick, SHAPES), self.pick(KINDS)
            if m * n <= 8192:
                break
        i, trips, total = (
            self.fresh("k"),
            self.pick((0, 1, 2, 3, 5)),
            "float32" if is_float(dtype) else "int32",
        )
        row, column = self.pick((f"p0 * {m}", "0")), self.pick((f"p0 * {n}", "0", "8"))
        form = self.pick(
            ("sum", "sum", "partial", "computed", "before", "several", "chain", "late", "late")
        )

        def zeros(shape):
            return self.let(f"tkc.zeros({shape}, tkc.{total})", total, shape, 0)

        sums = [zeros((m, n)) for _ in range(1 + (form in ("several", "chain")))]
        first = self.factor(dtype, m, k, row, "0") if form in ("before", "late") else None
        count = zeros((m,)) if form == "late" and self.chance(0.6) else None
        outside = {
            t.name for t in (*sums, *((first, count) if count else (first,) if first else ()))
        }
        begin, end = (
            self.pick(("0", "0", f"p0 % 3 * {k}")),
            self.pick((str(trips * k), f"n0 * {k}", f"p0 % 4 * {k}")),
        )  # by the program: neighbours may stand side by side
        self.line(f"for {i} in tkc.range({begin}, {end}, {k}):")
        saved = self.enter()
        if form == "late" and first is not None:
            self._late(dtype, total, first, sums[0], count, i, (m, n, k), column)
        else:
            x, y = first or self.factor(dtype, m, k, row, i), self.factor(dtype, k, n, i, column)
            if form == "computed":
                x, y = (self.changed(x), y) if self.chance(0.6) else (x, self.changed(y))

            def add(acc, a, b):
                return self.line(
                    f"{acc.name} = {acc.name} + tkc.dot({a.name}, {b.name})"
                    if form == "partial"
                    else f"{acc.name} = tkc.dot({a.name}, {b.name}, {acc.name})"
                )

            add(sums[0], x, y)
            if form in ("several", "chain"):
                a, b = self.pick(((x, None), (None, y), (None, None)))
                other = (
                    a or self.factor(dtype, m, k, row, i),
                    b or self.factor(dtype, k, n, i, column),
                )
                if form == "several":
                    add(sums[1], *other)
                else:
                    add(sums[0], *other)
                    add(sums[1], x, other[1])
        self.leave(saved)
        self.pool = [v for v in self.pool if v.name not in outside] + [
            Tile(t.name, total, t.shape, 16 * k * 5 * 2 * (8 if form == "late" else 1))
            for t in (*sums, *([count] if count else ()))
        ]

    def _late(
        self,
        dtype: str,
        total: str,
        q: Tile,
        acc: Tile,
        count: Tile | None,
        i: str,
        shape: tuple[int, int, int],
        column: str,
    ) -> None:
        """Two or three dots of an iteration, each with a left operand made of the one before."""
        m, n, k = shape
        if self.chance(0.3):
            first = self.let(
                f"tkc.dot({q.name}, {self.factor(dtype, k, k, '0', i).name})", total, (m, k), 16 * k
            )
            q = self.to(
                self.let(f"tkc.minimum(tkc.maximum({first.name}, -3), 3)", total, (m, k), 4), dtype
            )
        scores = self.let(
            f"tkc.dot({q.name}, {self.factor(dtype, k, k, '0', i).name})", total, (m, k), 16 * k
        )
        few = self.let(
            self.pick(
                (
                    f"tkc.minimum(tkc.maximum({scores.name}, -3), 3)",
                    f"{scores.name} % 4",
                    (
                        f"tkc.where((tkc.arange({m})[:, None] >= {i} + tkc.arange({k})[None, :]),"
                        f" {scores.name} % 3, 0)"
                    ),
                )
            ),
            total,
            (m, k),
            4,
        )
        if count:
            self.line(f"{count.name} = {count.name} + tkc.sum({few.name}, axis=1)")
        p = self.to(few, dtype)
        self.line(
            f"{acc.name} = tkc.dot({p.name}, {self.factor(dtype, k, n, i, column).name},"
            f" {acc.name})"
        )
