"""Productions of dots, and of the loops that pipelines are for. Hopper's tensor cores take operands
whose rows begin at multiples of 16 bytes, in blocks of 64 or 128 rows; of random extents and arrays
hardly any are so, so `dot_loop` writes loops of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tkc.fuzz.grammar import ArraySpec, Tile, is_float
from tkc.fuzz.value_productions import ValueWriter
from tkc.fuzz.writer import MOST_ELEMENTS

# of wgmma: M, N and K of a dot, element types of its operands
EXTENTS = (64, 64, 128), (8, 16, 24, 32, 64, 64, 96), (32, 32, 64)
OPERAND_TYPES = ("bfloat16",) * 4 + ("float16", "float16", "int8", "float8_e4m3")
# of any dot
TYPES = (
    ("bfloat16",) * 4
    + ("float16", "float16", "float32", "float32", "int8", "int8")
    + ("float8_e4m3", "float8_e5m2", "float64", "int32")
)
MOST_PRODUCT = 64  # of two elements of operands in loops of dots
FEW = "tkc.minimum(tkc.maximum({0}, -3), 3)"  # of a dot's results, numbers to multiply with
READ_ALIKE = 10  # one kernel of so many has dots whose results are read alike
# one of so many computes the program's number of a tile, of so many elements
OF_A_TILE, TILES = 10, (8, 64, 256, 1024)
# how the program's number is computed of a tile, of so many elements
NUMBERS_OF_TILES = (
    "tkc.max(tkc.arange({0}) - {1} + p0, axis=0)",
    "tkc.argmax((tkc.arange({0}) == p0 % {0}).to(tkc.int32), axis=0)",
    "tkc.reduce(tkc.arange({0}) - {1} + p0, 0, lambda a, b: tkc.where(a > b, a, b))",
    "tkc.max((tkc.arange(2 * {0}) - {1} + p0)[:{0}], axis=0)",
)
# one of so many has consumers hand on elements between two dots: for where a block lies, a branch,
# or a loop without a count
HANDED_ON = 10
# one of so many goes on using an operand that its dots take from registers; one of so many has its
# loop in another
HELD, NESTED = 10, 10
# one of so many computes with the right operand beside its dot
BESIDE = 10
# one of so many multiplies its right operands by what it has computed before, in one loop of two
SCALED = 10
BEGUN = 0.8  # of sums, those that begin with other numbers than zeros
MOST_RESULTS = 8192  # elements of the accumulator of a loop of dots


def accumulator_of(dtype: str) -> str:
    """The element type of the accumulator for operands of a type."""
    if dtype == "float64":
        return dtype
    return "float32" if is_float(dtype) else "int32"


@dataclass(frozen=True)
class DotLoop:
    """A loop of dots while it is written: element types, extents M, N and K, its index, where the
    result's columns begin, and what the program's number is called.
    """

    dtype: str
    total: str
    shape: tuple[int, int, int]
    index: str
    column: str
    program: str


class DotWriter(ValueWriter):
    """Writes dots and loops of them."""

    def extents(self) -> tuple[int, int, int] | None:
        """M, N and K of a dot, None where a tile would be too large."""
        m, n, k = (self.pick(self.sizes) for _ in range(3))
        return (m, n, k) if max(m * n, m * k, n * k) <= MOST_ELEMENTS else None

    def operands(self, m: int, n: int, k: int) -> tuple[str, str, int, str]:
        """Operands of a dot as text, the bound of a product, the accumulator's dtype."""
        dtype = self.pick(TYPES)
        texts, bounds = [], []
        for shape in ((m, k), (k, n)):
            turned = self.chance(0.3)
            stored = shape[::-1] if turned else shape
            t = (
                self.tile(stored, dtype)
                if self.chance(0.5)
                else self.to(self.block(stored, dtype), dtype)
            )
            t = self.small(t, 4 if dtype != "float8_e5m2" else 2)
            texts.append(f"{t.name}.T" if turned else t.name)
            bounds.append(t.bound)
        return texts[0], texts[1], bounds[0] * bounds[1] * k, accumulator_of(dtype)

    def precision(self, dtype: str) -> str:
        """How exact a dot of float32 is, as an argument."""
        if dtype != "float32" or self.chance(0.7):
            return ""
        return f', precision="{self.pick(("ieee", "tf32", "tf32x3"))}"'

    def zeros(self, shape: tuple[int, ...], dtype: str, name: str | None = None) -> Tile:
        """A tile of zeros under a name."""
        return self.let(f"tkc.zeros({shape}, tkc.{dtype})", dtype, shape, 0, name)

    def begun(self, shape: tuple[int, int], dtype: str) -> Tile:
        """What a sum begins with: zeros, or now and then other numbers."""
        if not self.begins or self.apart.random() > BEGUN:
            return self.zeros(shape, dtype)
        m, n = shape
        text = f"(tkc.arange({m})[:, None] + tkc.arange({n})[None, :]) % 4"
        return self.let(f"({text}).to(tkc.{dtype})", dtype, shape, 3)

    def _dot(self, depth: int) -> None:
        extents = self.extents()
        if extents is None:
            return
        m, n, k = extents
        a, b, bound, dtype = self.operands(m, n, k)
        if self.chance(0.6):
            self.let(f"tkc.dot({a}, {b}{self.precision(dtype)})", dtype, (m, n), bound)
            return
        c = self.tile((m, n), dtype, 1000)
        text = f"tkc.dot({a}, {b}, {c.name}{self.precision(dtype)})"
        self.let(text, dtype, (m, n), bound + c.bound)

    # ----------------------------------------------------------------------------------------------
    def stages(self) -> str:
        """The option of a loop, or nothing."""
        return f", num_stages={self.random.randint(1, 4)}" if self.chance(0.2) else ""

    def trips(self) -> tuple[str, int, int]:
        """The bounds of a loop, the greatest value of its variable, and how often it runs."""
        n, step = self.random.choice((0, 1, 1, 2, 3, 4, 5)), self.pick((1, 1, 2, 16))
        name = self.pick(self.numbers)
        count = self.numbers[name]
        if self.chance(0.5) and count <= 5:
            text = f"0, {name} * {step}, {step}" if step > 1 else f"0, {name}"
            return text, max(0, count - 1) * step, count
        low = self.pick((0, 0, 1, -2))
        return f"{low}, {low + n * step}, {step}", max(abs(low), low + n * step), n

    def _accumulate(self, depth: int) -> None:
        """The loop that pipelines are for: loads, a dot, an accumulator that nothing else reads."""
        extents = self.extents()
        if extents is None:
            return
        m, n, k = extents
        i, (text, most, trips) = self.fresh("k"), self.trips()
        of_integers = self.chance(0.15)
        acc = self.begun((m, n), "int32" if of_integers else "float32")
        self.line(f"for {i} in tkc.range({text}{self.stages()}):")
        saved = self.enter()
        self.pool = [v for v in self.pool if v.name != acc.name]
        self.mutable, self.indices[i] = set(), (0, most)
        for _ in range(self.pick((0, 0, 0, 1, 2))):
            self.step(0)
        dtype = (
            "int8"
            if of_integers
            else self.pick(("bfloat16", "bfloat16", "float16", "float32", "float8_e4m3"))
        )
        row = self.place_of(i, 16, self.pick(("p * 16", "0", self.index())))
        x = self.to(self.block_at(self.input(2, dtype), (row, i), (m, k)), dtype)
        y = self._right_operand(i, dtype, k, n)
        if self.chance(0.25):
            scaled = not of_integers and dtype != "float8_e4m3"
            text = f"{x.name} * {y.name}[0, 0]" if scaled else f"-{x.name}"
            x = self.let(text, dtype, (m, k), x.bound * 4)
        self.add_dot(acc, x, y, partial=self.chance(0.2))
        self.leave(saved)
        bound = 64 * k * max(trips, 1) + acc.bound
        self.pool = [replace(v, bound=bound) if v.name == acc.name else v for v in self.pool]

    def _right_operand(self, i: str, dtype: str, k: int, n: int) -> Tile:
        """Rows of K from i on, as they lie or transposed."""
        b = self.input(2, dtype)
        if self.chance(0.7):
            return self.to(self.block_at(b, (i, self.index()), (k, n)), dtype)
        z = self.block_at(b, (self.index(), i), (n, k))
        return self.to(self.let(f"{z.name}.T", z.dtype, (k, n), z.bound), dtype)

    def block_at(self, a: ArraySpec, offsets: Sequence[str], shape: tuple[int, ...]) -> Tile:
        """The block of an array that begins there."""
        text = f"tkc.load({a.name}, ({', '.join(offsets)}), {shape})"
        return self.let(text, a.dtype, shape, a.bound)

    def add_dot(self, acc: Tile, a: Tile, b: Tile, partial: bool = False) -> None:
        """Adds a product to an accumulator, whose bound stays; partial: by a sum of its own."""
        product = f"tkc.dot({a.name}, {b.name}" + (")" if partial else f", {acc.name})")
        self.line(f"{acc.name} = {acc.name} + {product}" if partial else f"{acc.name} = {product}")

    # ----------------------------------------------------------------------------------------------
    def operand(self, dtype: str, rows: int, columns: int, row: str, column: str) -> Tile:
        """A block of an array of which each row begins at a multiple of 16 bytes, as it lies or
        transposed; the program may choose the array.
        """
        turned, drop = self.chance(0.4), self.chance(0.25)
        even = 16 if dtype.endswith(("8", "e4m3")) else 8
        found = [a for a in self.arrays if self._is_operand(a, dtype, 2 + drop, even)]
        if not found or self.chance(0.6):
            shape = self.pick((0, 1, 31, 64, 130)), self.pick((1, 2, 5, 8)) * even
            found = [ArraySpec(f"a{len(self.arrays)}", dtype, (2, *shape) if drop else shape)]
            self.arrays += found
        a = self.pick(found)
        name = f"{a.name}[{self.pick(('p0 % 2', '1'))}]" if drop else a.name
        place, extents = (
            ((column, row), (columns, rows)) if turned else ((row, column), (rows, columns))
        )
        text = f"tkc.load({name}, ({', '.join(place)}), {extents}){'.T' * turned}"
        return self.let(text, dtype, (rows, columns), a.bound)

    def end_of_iteration(self, loop: DotLoop) -> None:
        """What else a loop of dots does."""

    def place_of(self, i: str, step: int, row: str) -> str:
        """Where a block begins that a loop with this index and step reads: here at the row."""
        return row

    @staticmethod
    def _is_operand(a: ArraySpec, dtype: str, rank: int, even: int) -> bool:
        if a.dtype != dtype or a.name[0] != "a" or a.order != "C":
            return False
        return len(a.shape) == rank and a.shape[-1] % even == 0

    def changed(self, t: Tile) -> Tile:
        """An operand computed from what was loaded."""
        text = self.pick((f"-{t.name}", f"tkc.maximum({t.name}, 0)", f"tkc.minimum({t.name}, 2)"))
        return self.let(text, t.dtype, t.shape, t.bound)

    def dot_loop(self) -> None:
        """A loop of one dot, of several it accumulates, or of two with vector work between; or dots
        without a loop.
        """
        m, n, k = MOST_RESULTS, MOST_RESULTS, 0
        while m * n > MOST_RESULTS:
            m, n, k = map(self.pick, EXTENTS)
        dtype = self.pick(OPERAND_TYPES)
        p = self._program_number()
        row, column = self.pick((f"{p} * {m}", "0")), self.pick((f"{p} * {n}", "0", "8"))
        loop = DotLoop(dtype, accumulator_of(dtype), (m, n, k), self.fresh("k"), column, p)
        form = self.pick(("sum", "sum", "partial", "computed", "before", "several", "chain"))
        if self.seed % READ_ALIKE == READ_ALIKE - 1:  # no draw: others stay what they were
            self._dots_read_alike(loop, row)
        elif self.seed % HELD == HELD - 3:
            self._loop_of_held_operands(loop, row)
        elif self.seed % SCALED == SCALED - 7:
            self._loops_of_scaled_operands(loop, row)
        elif self.seed % HANDED_ON == HANDED_ON - 8 or self.chance(0.25):
            self._loop_of_late_dots(loop, row)
        else:
            self._loop_of_early_dots(loop, row, form)

    def _program_number(self) -> str:
        """What the program's number is called: here and there it is computed of a tile whose last
        element it is, and of which warps have parts where it is large.
        """
        if self.seed % OF_A_TILE != OF_A_TILE - 2:  # no draw: others stay what they were
            return "p0"
        name, size = self.fresh("p"), TILES[self.seed // OF_A_TILE % len(TILES)]
        form = NUMBERS_OF_TILES[self.seed // OF_A_TILE // len(TILES) % len(NUMBERS_OF_TILES)]
        self.line(f"{name} = {form.format(size, size - 1)}")
        return name

    def _head(self, loop: DotLoop) -> None:
        """The line of the loop; where it begins and ends may depend on the program, so that
        neighbours differ.
        """
        k, trips, p = loop.shape[2], self.pick((0, 1, 2, 3, 5)), loop.program
        begin = self.pick(("0", "0", f"{p} % 3 * {k}"))
        end = self.pick((str(trips * k), f"n0 * {k}", f"{p} % 4 * {k}"))
        self.line(f"for {loop.index} in tkc.range({begin}, {end}, {k}):")

    def _results_of(
        self, loop: DotLoop, results: list[Tile], hidden: list[Tile], times: int
    ) -> None:
        """After a loop: its results are in scope, with a bound for so many products an iteration;
        what else it alone may use is not.
        """
        bound = MOST_PRODUCT * loop.shape[2] * 5 * 2 * times
        names = {t.name for t in (*results, *hidden)}
        kept = [v for v in self.pool if v.name not in names]
        self.pool = kept + [replace(t, bound=bound + t.bound) for t in results]

    def _loop_of_early_dots(self, loop: DotLoop, row: str, form: str) -> None:
        (m, n, k), dtype = loop.shape, loop.dtype
        sums = [self.begun((m, n), loop.total) for _ in range(1 + (form in ("several", "chain")))]
        before = [self.operand(dtype, m, k, row, "0")] if form == "before" else []
        beside = self._beside(loop, n)
        outer, turns = None, 1
        if self.seed % NESTED == NESTED - 4:
            turns = 1 + self.seed // NESTED % 3
            self.line(f"for {self.fresh('j')} in tkc.range({turns}):")
            outer = self.enter()
        self._head(loop)
        saved = self.enter()
        row = self.place_of(loop.index, k, row)
        x = before[0] if before else self.operand(dtype, m, k, row, loop.index)
        y = self._early_dots(loop, form, sums, x, row)
        self._read_beside(beside, y)
        self.end_of_iteration(loop)
        self.leave(saved)
        if outer:
            self.leave(outer)
        self._results_of(loop, sums, before, turns)

    def _loop_of_held_operands(self, loop: DotLoop, row: str) -> None:
        """A left operand that is computed, and read again behind the dot; or that the loop carries
        on, computed or loaded anew, or exchanges for another.
        """
        (m, n, k), dtype = loop.shape, loop.dtype
        form = ("read", "computed", "loaded", "exchanged")[self.seed // HELD % 4]
        acc, x = self.begun((m, n), loop.total), self.changed(self.operand(dtype, m, k, row, "0"))
        other = self.changed(self.operand(dtype, m, k, row, "0")) if form == "exchanged" else x
        largest = self.zeros((m, k), dtype)
        self._head(loop)
        saved = self.enter()
        place = self.place_of(loop.index, k, row)
        left = self.changed(self.operand(dtype, m, k, place, loop.index)) if form == "read" else x
        self.add_dot(acc, left, self.operand(dtype, k, n, loop.index, loop.column))
        if form == "read":
            self.line(f"{largest.name} = tkc.maximum({largest.name}, {left.name})")
        elif form == "computed":
            self.line(f"{x.name} = -{x.name}")
        elif form == "loaded":
            self.line(f"{x.name} = {self.operand(dtype, m, k, place, loop.index).name}")
        else:
            self.line(f"{x.name}, {other.name} = {other.name}, {x.name}")
        self.end_of_iteration(loop)
        self.leave(saved)
        self._results_of(loop, [acc], [x, other], 1)
        self.pool = [replace(v, bound=x.bound) if v.name == largest.name else v for v in self.pool]

    def _loops_of_scaled_operands(self, loop: DotLoop, row: str) -> None:
        """Right operands times a number that warps reduce, or that the loop carries too, times a
        column, or by places; then others of the same extents, as they are loaded, in a loop behind.
        What the dots give is added up, or multiplied.
        """
        if not loop.dtype.endswith("float16"):
            loop = replace(loop, dtype="bfloat16", total="float32")
        (m, n, k), dtype, by = loop.shape, loop.dtype, self.fresh("c")
        form = ("reduced", "carried", "column", "places")[self.seed // SCALED % 4]
        sums = self.seed // SCALED // 4 % 2  # of rows, or a product of them
        acc = self.zeros((m,) if sums else (m, n), loop.total)
        whole = self.operand(dtype, m, k, row, "0")
        rows = f"tkc.max({whole.name}, axis=0)"
        self.line(
            f"{by} = tkc.arange({k})[:, None] % 3"
            if form == "places"
            else f"{by} = tkc.minimum({rows}, 2)[:, None]"
            if form == "column"
            else f"{by} = tkc.minimum(tkc.max({rows}, axis=0), 2)"
        )
        for is_scaled in (True, False):
            self._head(loop)
            saved = self.enter()
            y = self.operand(dtype, k, k, "0", loop.index)
            if is_scaled:
                text = f"{FEW.format(f'{y.name} * {by}')}.to(tkc.{dtype})"
                y = self.let(text, dtype, (k, k), 3)
            s = self.let(f"tkc.dot({whole.name}, {y.name})", loop.total, (m, k), MOST_PRODUCT * k)
            p = self.let(FEW.format(s.name), loop.total, (m, k), 3)
            if sums:
                self.line(f"{acc.name} = {acc.name} + tkc.sum({p.name}, axis=1)")
            else:
                right = self.operand(dtype, k, n, loop.index, loop.column)
                self.add_dot(acc, self.to(p, dtype), right)
            if is_scaled and form == "carried":
                self.line(f"{by} = -{by}")
            self.end_of_iteration(loop)
            self.leave(saved)
        self._results_of(loop, [acc], [whole], 2)

    def _loop_of_late_dots(self, loop: DotLoop, row: str) -> None:
        m, n, k = loop.shape
        results = [self.zeros((m, n), loop.total)]
        q = self.operand(loop.dtype, m, k, row, "0")
        if self.seed % 3 == 1:  # no draw: others stay what they were
            q = self.changed(q)  # in registers, before the loop
        if self.chance(0.6):
            results.append(self.zeros((m,), loop.total))
        beside = self._beside(loop, k)
        self._head(loop)
        saved = self.enter()
        self._read_beside(beside, self._late_dots(loop, q, *results))
        self.end_of_iteration(loop)
        self.leave(saved)
        self._results_of(loop, results, [q], 8)

    def _dots_read_alike(self, loop: DotLoop, row: str) -> None:
        """Dots that begin with nothing, of operands that threads have computed, each of what an
        operation has made of the one before, and the operation is the same for all.
        """
        (m, _, k), dtype, total = loop.shape, loop.dtype, loop.total
        left = self.changed(self.operand(dtype, m, k, row, "0"))
        rights = [
            self.changed(self.operand(dtype, k, k, "0", "0")) for _ in range(self.pick((2, 2, 3)))
        ]
        below = f"tkc.arange({m})[:, None] >= tkc.arange({k})[None, :]"
        text = self.pick(("{0} % 4", f"tkc.where({below}, {{0}} % 3, 0)", FEW))
        for right in rights:
            dot = self.let(f"tkc.dot({left.name}, {right.name})", total, (m, k), MOST_PRODUCT * k)
            few = self.let(text.format(dot.name), total, (m, k), 4)
            left = self.to(few, dtype)

    def _beside(self, loop: DotLoop, columns: int) -> Tile | None:
        """What a loop collects of its dots' right operands, of so many columns; None where it does
        not.
        """
        if self.seed % BESIDE != BESIDE - 5:  # no draw: others stay what they were
            return None
        return self.zeros((loop.shape[2], columns), loop.dtype)

    def _read_beside(self, beside: Tile | None, right: Tile) -> None:
        if beside is not None:
            self.line(f"{beside.name} = tkc.maximum({beside.name}, {right.name})")
            self.pool = [
                replace(v, bound=right.bound) if v.name == beside.name else v for v in self.pool
            ]

    def _early_dots(self, loop: DotLoop, form: str, sums: list[Tile], x: Tile, row: str) -> Tile:
        """Dots of operands that do not depend on each other; here and there a sum of two is added
        to another. Gives the right operand as it was loaded.
        """
        m, n, k = loop.shape
        place = self.place_of(loop.index, k, loop.index)
        loaded = y = self.operand(loop.dtype, k, n, place, loop.column)
        if form == "computed":
            x, y = (self.changed(x), y) if self.chance(0.6) else (x, self.changed(y))
        of_two = form == "chain" and self.seed // 10 % 2 == 1  # no draw: others stay what they were
        if not of_two:
            self.add_dot(sums[0], x, y, partial=form == "partial")
        if form not in ("several", "chain"):
            return loaded
        a, b = self.pick(((x, None), (None, y), (None, None)))
        a = a or self.operand(loop.dtype, m, k, row, loop.index)
        b = b or self.operand(loop.dtype, k, n, loop.index, loop.column)
        if form == "several":
            self.add_dot(sums[1], a, b)
        else:
            if of_two:
                both = f"tkc.dot({a.name}, {b.name}, tkc.dot({x.name}, {y.name}))"
                self.line(f"{sums[0].name} = {sums[0].name} + {both}")
            else:
                self.add_dot(sums[0], a, b)
            self.add_dot(sums[1], x, b)
        return loaded

    def _late_dots(self, loop: DotLoop, q: Tile, acc: Tile, count: Tile | None = None) -> Tile:
        """Two or three dots of an iteration, each with a left operand made of the one before. Gives
        the right operand of the first.
        """
        (m, n, k), total, i = loop.shape, loop.total, loop.index
        rights: list[Tile] = []

        def product() -> Tile:
            rights.append(right := self.operand(loop.dtype, k, k, "0", i))
            return self.let(f"tkc.dot({q.name}, {right.name})", total, (m, k), MOST_PRODUCT * k)

        if self.chance(0.3):
            few = self.let(FEW.format(product().name), total, (m, k), 4)
            q = self.to(few, loop.dtype)
        causal = f"(tkc.arange({m})[:, None] >= {i} + tkc.arange({k})[None, :])"
        text = self.pick((FEW, "{0} % 4", f"tkc.where({causal}, {{0}} % 3, 0)"))
        few = self.let(text.format(product().name), total, (m, k), 4)
        if count:
            self.line(f"{count.name} = {count.name} + tkc.sum({few.name}, axis=1)")
        place = self._handed_on(few, i, k)
        p = self.to(few, loop.dtype)
        self.add_dot(acc, p, self.operand(loop.dtype, k, n, place, loop.column))
        return rights[0]

    def _handed_on(self, few: Tile, i: str, k: int) -> str:
        """Between two dots, what consumers hand on through shared memory: the largest element,
        which a branch or a loop asks for, or where the next block lies, of what a table has from
        the counter on. Gives where that is.
        """
        if self.seed % HANDED_ON != HANDED_ON - 8:  # no draw: others stay what they were
            return i
        form = self.seed // HANDED_ON % 4
        if form > 1:
            size = (32, 256)[form - 2]
            loaded = f"tkc.load({self.input(1, 'int32').name}, ({i},), ({size},))"
            place = self.fresh("p")
            self.line(f"{place} = tkc.minimum(tkc.max({loaded}, axis=0), 2) * {k}")
            return f"tkc.maximum({place}, 0)"
        asks = f"tkc.max(tkc.max({few.name}, axis=1), axis=0) > 1"
        self.line(f"{('if', 'while')[form]} {asks}:")
        saved = self.enter()
        self.line(f"{few.name} = tkc.where({few.name} > 1, {few.name} - 1, {few.name})")
        self.leave(saved)
        return i
