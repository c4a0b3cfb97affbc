"""Productions that read and write memory: gathers, tables of addresses, atomics, and programs that
read what they have written: by the same argument, by another that shares its memory, by pointers.

Arrays of a program's own are w (numbers of at most 8) and x (which atomics add to).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tkc.fuzz.dot_productions import DotLoop, DotWriter
from tkc.fuzz.grammar import FAR_STRIDE, NUMPY, ArraySpec, Tile

OWN_TYPES = ("float32", "float32", "int32", "bfloat16", "float16")
OPERAND_TYPES = ("float16", "float16", "bfloat16", "bfloat16", "float32", "int8")
MOST_ARRAYS = 12  # of a kernel, before a production makes no more
MOST_OWN = 8  # the greatest number in an array w
MOST_ADDED = 1 << 14  # the greatest number in an array x
ALIGNED = 16  # bytes at multiples of which NumPy's arrays begin
BY_COLUMNS = 0.6  # of rows by their numbers, those that become columns
BESIDE_DOTS = 0.1  # of records, those beside dots
SLIDING = 10  # one of so many copies windows that slide over an array, one to the next
ROWS = (16, 32, 64)  # of blocks that go through memory from iteration to iteration


class MemoryWriter(DotWriter):
    """Writes accesses of memory whose order counts."""

    def _load(self, depth: int) -> None:
        self.block(self.shape(), self.dtype())

    def _pointers(self, depth: int) -> None:
        self.addresses(self.shape(self.pick((1, 2, 2))), self.dtype())

    def _gather(self, depth: int) -> None:
        shape = self.shape(2)
        a, axis = self.input(2, self.dtype()), self.random.randrange(2)
        rows = self.fresh("r")
        narrow = self.pick(("", "", "", ".to(tkc.uint8)", ".to(tkc.int8)", ".to(tkc.int64)"))
        spread = f"tkc.arange({shape[axis]}) * {self.random.randint(1, 7)} + {self.index()}"
        most = self.pick((self.random.randint(1, 40), 300))
        self.line(f"{rows} = (({spread}) % {most}){narrow}")
        self.block_at(a, [rows if i == axis else self.index() for i in range(2)], shape)

    def _indirect(self, depth: int) -> None:
        """Rows by numbers that were loaded, as offsets or as pointers."""
        m, n = self.shape(2)
        a = self.input(2, self.dtype())
        if not a.shape[0]:
            return
        numbers = self.to(self.block((m,), "int32"), "int32")
        rows = self.fresh("r")
        self.line(f"{rows} = {numbers.name} % {a.shape[0]}")
        if self.chance(0.4):
            self.block_at(a, [rows, self.index()], (m, n))
            return
        if self.is_uneven and self.apart.random() < BY_COLUMNS:
            self._gathered_columns(a, rows, m, n)
            return
        row, column = f"{rows}[:, None]", f"tkc.arange({n})[None, :]"
        pointers = f"{a.name}.ptr + {row} * {a.name}.strides[0] + {column} * {a.name}.strides[1]"
        mask = f"({row} >= 0) & ({column} < {a.name}.shape[1])"
        self.let(f"tkc.load({pointers}, mask={mask})", a.dtype, (m, n), a.bound)

    def _gathered_columns(self, a: ArraySpec, rows: str, m: int, n: int) -> None:
        """Rows by their numbers as the columns of a tile with a unit axis; some of what each has
        is left out.
        """
        row, column = f"{rows}[None, None, :]", f"tkc.arange({n})[None, :, None]"
        pointers = f"{a.name}.ptr + {row} * {a.name}.strides[0] + {column} * {a.name}.strides[1]"
        mask = f"({row} >= 0) & ({column} < {a.name}.shape[1]) & ({column} * {column} % 3 > 0)"
        found = self.let(f"tkc.load({pointers}, mask={mask})", a.dtype, (1, n, m), a.bound)
        self.let(f"tkc.reshape({found.name}, ({n}, {m})).T", a.dtype, (m, n), a.bound)

    def rolled(self) -> None:
        """Rows in a circle, of which the first may come from the end; or what one iteration loads
        the next one stores, when more of it is inside.
        """
        r, n, name = self.apart, self.apart.choice((8, 16)), f"a{len(self.arrays)}"
        most = r.randint(3, 40)
        self.arrays.append(ArraySpec(name, "float32", (most + 64, 32)))
        o = f"{self.own('o', 'float32', (n + 64, 16)).name}p"
        i, acc, j, c = (self.fresh(letter) for letter in "ivjc")
        block = f"{name}.ptr + {{}}[:, None] * {name}.strides[0] + {c}[None, :]"
        to = f"{o}.ptr + {{}}[:, None] * {o}.strides[0] + {c}[None, :]"
        self.line(f"{c}, {acc} = tkc.arange(16), tkc.zeros(({n}, 16))")
        if r.random() < 0.5:
            back = r.choice((0, 0, 1, 5))
            self.line(f"{i} = p0 * {n} - {back} + tkc.arange({n})")
            self.line(f"for {j} in tkc.range(0, n0):")
            self.line(f"    {acc} += tkc.load({block.format(f'({i} % {most})')} + {j})")
            place = to.format(f"({i} + {back} - p0 * {n})")
            self.line(f"tkc.store({place}, {acc}, mask=({i} < {most})[:, None])")
            return
        self.line(f"{i} = tkc.arange({n})")
        self.line(f"for {j} in tkc.range(0, n0 * 3, 3):")
        place, inside = to.format(f"({i} + {j})"), f"({i} < {j} + 2)[:, None]"
        self.line(f"    tkc.store({place}, {acc}, mask={inside})")
        self.line(f"    {acc} = tkc.load({block.format(f'({i} % ({j} + 2))')})")

    def records(self) -> None:
        """Parts of records that lie side by side, read each by itself, some of them under another
        mask, or with another number in place of what is masked; beside dots seldom.
        """
        if any("tkc.dot(" in line for line in self.lines) and self.apart.random() > BESIDE_DOTS:
            return
        r, n = self.apart, self.apart.choice((16, 32, 64))
        size, kinds = r.choice((2, 3, 4, 4, 8)), ("float32", "float32", "int32", "float16", "uint8")
        count, dtype = r.choice((size, size, r.randint(2, size))), r.choice(kinds)
        name, most = f"a{len(self.arrays)}", r.randint(1, 80)
        self.arrays.append(ArraySpec(name, dtype, (most, size)))
        o = f"{self.own('o', 'float32', (n,)).name}p"
        i, at, v = (self.fresh(letter) for letter in "iqv")
        numbers = r.choice(("tkc.arange({n})", "tkc.arange({n}) * 5 % 7", "{n} - tkc.arange({n})"))
        self.line(f"{i} = p0 * {r.choice((0, n, 3))} + {numbers.format(n=n)}")
        self.line(f"{at}, {v} = {name}.ptr + {i} * {size}, tkc.zeros(({n},))")
        for part in r.sample(range(size), count):
            inside = r.choice((most, most, most, max(most - 2, 0)))
            mask = f"({i} >= 0) & ({i} < {inside})"
            other = r.choice(("", "", f", other={r.randint(0, 2)}"))
            load = f"tkc.load({at} + {part}, mask={mask}{other})"
            self.line(f"{v} = {v} * 3 + {load}.to(tkc.float32)")
        self.line(f"tkc.store({o}.ptr + tkc.arange({n}), {v})")

    def stored_again(self) -> None:
        """A loop stores where its steps before have stored: a row that was loaded once and is
        reduced, or a product, in blocks that lie over one another, beside what threads store.
        """
        r, i = self.apart, self.fresh("i")
        if r.random() < 0.3:
            n, x = r.choice((4096, 8192)), self.fresh("v")
            w = f"{self.own('w', 'float32', (1, n)).name}p"
            self.line(f"{x} = tkc.load({w}, (0, 0), (1, {n}))")
            self.line(f"for {i} in tkc.range(0, n0):")
            made = f"({x} + tkc.sum({x}, axis=1)[:, None] + {i}) % 8"
            self.line(f"    tkc.store({w}, (0, 0), {made})")
            return
        m, n, k, dtype = r.choice((64, 128)), r.choice((32, 64)), 32, r.choice(OPERAND_TYPES[:4])
        names = []
        for shape in ((m, 2 * k), (2 * k, n)):
            names.append(f"a{len(self.arrays)}")
            self.arrays.append(ArraySpec(names[-1], dtype, shape, bound=1))
        o = f"{self.own('o', dtype, (m + 32, n + 96)).name}p"
        acc, j = self.fresh("v"), self.fresh("j")
        self.line(f"{acc} = tkc.zeros(({m}, {n}))")
        self.line(f"for {j} in tkc.range(0, {2 * k}, {k}):")
        left, right = f"tkc.load({names[0]}, (0, {j}), ({m}, {k}))", f"({j}, 0), ({k}, {n})"
        self.line(f"    {acc} = tkc.dot({left}, tkc.load({names[1]}, {right}), {acc})")
        self.line(f"for {i} in tkc.range(0, n0):")
        around = r.choice(("", "", f"if {i} % 3 != 1: "))
        forms = r.choice((("0", "0"), ("0", f"8 * {i}"), (f"{i}", "8"), ("0", f"{n} * {i}")))
        if r.random() < 0.4:
            few = f"tkc.load({o}, (0, 8), ({m}, {n})) % 8"
            self.line(f"    {acc} = {acc} % 8 + {few}")
        if r.random() < 0.3:
            self.line(f"    tkc.store({o}, (0, 1), ({acc} * 0 + 1).to(tkc.{dtype}))")
        value = f"({acc} + {i} % 4).to(tkc.{dtype})"
        self.line(f"    {around}tkc.store({o}, ({', '.join(forms)}), {value})")

    def old_values(self) -> None:
        """Updates of a program's own memory by pointers, whose old values count, in order."""
        r, n = self.apart, self.apart.choice((8, 32, 64, 200))
        dtype = r.choice(("int32", "int32", "uint32", "float32", "int64"))
        w, o = (f"{self.own(kind, dtype, (n,)).name}p" for kind in "wo")
        at, v = self.fresh("q"), self.fresh("v")
        self.line(f"{at} = tkc.arange({n})", f"{v} = ({at} % 5).to(tkc.{dtype})")
        for _ in range(r.randint(1, 3)):
            sem = r.choice(("", "", ', sem="relaxed"', ', sem="acquire"', ', sem="release"'))
            if r.random() < 0.3:
                old = f"tkc.atomic_add({w}.ptr + {r.randrange(n)}, 1{sem})"
                self.line(f"{v} = {v} + {old}")
                continue
            function = r.choice(("add", "add", "max", "min", "xchg"))
            mask = r.choice(("", "", f", mask={at} < {r.randint(1, n)}"))
            old, kept = f"tkc.atomic_{function}({w}.ptr + {at}, {v}{mask}{sem})", self.fresh("v")
            self.line(f"{kept} = {old}")
            if mask:
                kept = f"tkc.where({mask.removeprefix(', mask=')}, {kept}, 0)"
            self.line(f"{v} = ({v} + {kept}) % 8")
        self.line(f"tkc.store({o}, (0,), {v})")

    def one_result(self) -> None:
        """All programs have a part of one product, which they add to it behind a lock or in turns,
        or the last of them adds them all: each sees what others have stored behind its dots.
        """
        r, i, acc, at = self.apart, self.fresh("i"), self.fresh("v"), self.fresh("n")
        m, n, k, dtype = r.choice((64, 128)), r.choice((32, 64)), 32, r.choice(OPERAND_TYPES[:2])
        steps = self.programs + r.randint(0, 3)
        names = []
        for shape in ((m, steps * k), (steps * k, n)):
            names.append(f"a{len(self.arrays)}")
            self.arrays.append(ArraySpec(names[-1], dtype, shape, bound=1))
        c, own = f"total{len(self.arrays)}", f"({m}, {n})"  # no name of a value
        self.arrays.append(ArraySpec(c, "float32", (m, n), bound=2))
        number = f"number{len(self.arrays)}"
        self.arrays.append(ArraySpec(number, "int32", (2,), bound=0))
        self.line(f"{acc} = tkc.zeros({own})")
        self.line(f"for {i} in tkc.range(p * {k}, {steps * k}, {self.programs * k}):")
        left, right = f"tkc.load({names[0]}, (0, {i}), ({m}, {k}))", f"({i}, 0), ({k}, {n})"
        self.line(f"    {acc} = tkc.dot({left}, tkc.load({names[1]}, {right}), {acc})")
        add = f"tkc.store({c}, (0, 0), {acc} + tkc.load({c}, (0, 0), {own}))"
        match r.choice(("lock", "turns", "signals", "last")):
            case "lock":
                taken = f'tkc.atomic_cas({number}.ptr, 0, 1, sem="acquire")'
                self.line(f"while {taken} == 1:", "    pass", add)
                self.line(f'tkc.atomic_xchg({number}.ptr, 0, sem="release")')
            case "turns":
                seen = f'tkc.load({number}.ptr, sem="relaxed")'
                self.line(f"{at} = 0", f"while {seen} != p:", f"    {at} = {at} + 1")
                self.line(f'tkc.atomic_add({number}.ptr, 0, sem="acquire")', add)
                self.line(f'tkc.atomic_xchg({number}.ptr, p + 1, sem="release")')
            case "signals":
                self.line(f'while tkc.load({number}.ptr, sem="acquire") != p:', "    pass", add)
                self.line(f'tkc.atomic_xchg({number}.ptr, p + 1, sem="release")')
            case "last":
                w = self.own("w", "float32", (m, n)).name
                self.line(f"tkc.store({w}p, (0, 0), {acc})")
                self.line(f"if tkc.atomic_add({number}.ptr, 1) == {self.programs - 1}:")
                self.line(f"    for {i} in tkc.range(0, {self.programs}):")
                self.line(f"        {acc} = tkc.load({c}, (0, 0), {own})")
                self.line(f"        {acc} += tkc.load({w}[{i}], (0, 0), {own})")
                self.line(f"        tkc.store({c}, (0, 0), {acc})")

    def _table(self, depth: int) -> None:
        """An array made of an address that is loaded from a table."""
        tables = [a for a in self.arrays if a.order == "addresses"]
        if not tables or self.chance(0.4):
            if len(self.arrays) > MOST_ARRAYS:
                return
            dtype = self.pick(OPERAND_TYPES)
            shape = (self.random.randint(1, 4), *self.shape(self.pick((1, 2))))
            base = ArraySpec(f"b{len(self.arrays)}", dtype, shape)
            self.arrays.append(base)
            length = (self.random.randint(1, 5),)
            table = ArraySpec(
                f"t{len(self.arrays)}", "int64", length, "addresses", 0, base=base.name
            )
            self.arrays.append(table)
        else:
            table = self.pick(tables)
            base = next(a for a in self.arrays if a.name == table.base)
        inner, name = base.shape[1:], self.fresh("y")
        number = self.pick((f"p % {table.shape[0]}", str(self.random.randrange(table.shape[0]))))
        self.line(f"{name} = tkc.array({table.name}[{number}], tkc.{base.dtype}, {inner})")
        self.block_at(replace(base, name=name), [self.index() for _ in inner], self._near(inner))

    def far(self) -> None:
        """Multiplies a row so far from the first that 32 bits do not count the elements between, by
        a number that is loaded, or an argument as the stride is.
        """
        dtype, (m, k) = (
            self.pick(("float16", "bfloat16")),
            (self.pick((16, 64)), self.pick((16, 32))),
        )
        a = ArraySpec(f"far{len(self.arrays)}", dtype, (3, m, k), "far")
        self.arrays.append(a)
        table = ArraySpec(f"t{len(self.arrays)}", "int32", (4,), "rows", base=a.name)
        self.arrays.append(table)
        row, stride = self.fresh("r"), f"{a.name}s"
        self.strides[stride] = FAR_STRIDE
        number = f"{table.name}[{self.pick(('p % 4', '1', '3'))}]"
        if self.chance(0.4):
            number = f"{a.name}r"
            self.strides[number] = 2
        self.line(f"{row} = {number}.to(tkc.int64)")
        place = f"tkc.arange({m})[:, None] * {k} + tkc.arange({k})[None, :]"
        load = f"tkc.load({a.name}.ptr + {row} * {stride} + {place})"
        x, y = self.let(load, dtype, (m, k), a.bound), self.block((k, 16), dtype)
        y = self.small(self.to(y, dtype), 4)
        self.let(f"tkc.dot({x.name}, {y.name})", "float32", (m, 16), 16 * k)

    def _near(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Extents at most as large, or others of the policy."""
        if self.chance(0.4):
            return self.shape(len(shape))
        return tuple(max(1, min(n, 64) - self.pick((0, 0, 1, 3))) for n in shape)

    # ----------------------------------------------------------------------------------------------
    def _store(self, depth: int) -> None:
        if len(self.arrays) < MOST_ARRAYS + 2:
            self.store(self.pick(self.pool) if self.pool else None)

    def own_array(self, rank: int, dtype: str | None = None) -> ArraySpec | None:
        """An array w of this rank within a program, an old or a new one; None where there are
        enough.
        """
        found = [
            a
            for a in self.arrays
            if a.name[0] == "w" and len(a.shape) == 1 + rank and dtype in (None, a.dtype)
        ]
        if found and (self.chance(0.7) or len(self.arrays) >= MOST_ARRAYS):
            return self.pick(found)
        if len(self.arrays) >= MOST_ARRAYS:
            return None
        shape = tuple(n + self.pick((0, 1, 5)) for n in self.shape(rank))
        return self.own("w", dtype or self.pick(OWN_TYPES), shape)

    def alias(self, a: ArraySpec) -> ArraySpec:
        """An argument that shares memory with an array of a program's own: the array itself, or a
        part of each program's.
        """
        if a.order == "view" or len(self.arrays) >= MOST_ARRAYS + 3:
            return a
        found = [v for v in self.arrays if v.base == a.name and v.order == "view"]
        if found and self.chance(0.6):
            return self.pick(found)
        window = [(0, n) for n in a.shape]
        if self.chance(0.5):
            axis = self.random.randrange(1, len(a.shape))
            window[axis] = (self.pick((0, 1, 2, 8)), a.shape[axis] - self.pick((0, 0, 1)))
        shape = tuple(stop - start for start, stop in window)
        if min(shape) < 1:
            return a
        name = f"{a.name[0]}{len(self.arrays)}"
        view = ArraySpec(name, a.dtype, shape, "view", a.bound, a.name, tuple(window))
        self.add_own(view)
        return view

    def other_name(self, a: ArraySpec) -> ArraySpec:
        """The array, or now and then another argument that shares its memory."""
        return self.alias(a) if self.chance(0.3) else a

    def write(self, a: ArraySpec, offsets: Sequence[str], t: Tile) -> None:
        """Writes a tile to a program's part of an array: as a block, by pointers, or as an
        extremum.
        """
        kind = self.random.random()
        if kind < 0.2 and len(t.shape) <= 2:
            pointers, inside = self.pointers(f"{a.name}p", t.shape)
            self.line(f"tkc.store({pointers}, {t.name}, mask={inside})")
            return
        extremum = kind < 0.35 and a.dtype in ("float32", "int32")
        function = f"atomic_{self.pick(('max', 'min'))}" if extremum else "store"
        self.line(f"tkc.{function}({a.name}p, ({', '.join(offsets)},), {t.name})")

    def read(self, a: ArraySpec, offsets: Sequence[str], shape: tuple[int, ...]) -> Tile:
        """Reads a block of a program's part of an array, or the same by pointers."""
        bound = MOST_OWN if a.name[0] == "w" else MOST_ADDED
        if self.chance(0.15) and len(shape) <= 2:
            pointers, inside = self.pointers(f"{a.name}p", shape, True)
            return self.let(f"tkc.load({pointers}, mask={inside})", a.dtype, shape, bound)
        text = f"tkc.load({a.name}p, ({', '.join(offsets)},), {shape})"
        return self.let(text, a.dtype, shape, bound)

    def _private(self, depth: int) -> None:
        """Stores, and a load of what may have been stored, in an array of the program's own."""
        a = self.own_array(2)
        if a is None:
            return
        shape = self._near(a.shape[1:])
        for _ in range(self.random.randint(1, 2)):
            t = self.small(self.tile(shape, a.dtype), MOST_OWN)
            self.write(self.other_name(a), [self.index(), self.index()], t)
        if self.chance(0.8):
            self.read(self.other_name(a), [self.index(), self.index()], shape)

    # ----------------------------------------------------------------------------------------------
    def operand(self, dtype: str, rows: int, columns: int, row: str, column: str) -> Tile:
        """As without memory of the program's own; now and then a block of that."""
        if self.chance(0.8):
            return super().operand(dtype, rows, columns, row, column)
        shape = (self.pick((64, 130)), self.pick((4, 8)) * 16)
        found = [a for a in self._own_matrices() if (a.dtype, a.order) == (dtype, "C")]
        a = self.other_name(self.pick(found) if found else self.own("w", dtype, shape))
        place = f"({self.pick(('0', row))}, {self.pick(('0', column))})"
        text = f"tkc.load({a.name}p, {place}, {(rows, columns)})"
        return self.let(text, dtype, (rows, columns), MOST_OWN)

    def epilogue(self) -> None:
        """A result with a block of an array that it is stored to, mostly under another name and at
        another place.
        """
        found = [t for t in self.pool if len(t.shape) == 2 and t.dtype == "float32"]
        if not found:
            return
        t, dtype = found[-1], self.pick(("bfloat16", "float16"))
        m, n = t.shape
        a = self.own("w", dtype, (m + self.pick((0, 64)), n + self.pick((0, 8, 64))))
        c = self.let(f"tkc.load({a.name}p, (0, 0), {t.shape})", dtype, t.shape, MOST_OWN)
        total = self.let(f"{t.name} + {c.name}.to(tkc.float32)", "float32", t.shape, t.bound + 8)
        target = self.alias(a) if self.chance(0.7) else a
        place = f"{self.pick(('0', '0', '64'))}, {self.pick(('0', '8', '16', '64'))}"
        written = self._written(total, dtype)
        self.line(f"tkc.store({target.name}p, ({place}), {written.name})")

    def _own_matrices(self) -> list[ArraySpec]:
        return [a for a in self.arrays if a.name[0] == "w" and len(a.shape) == 3]

    def looked_up(self, i: str, step: int) -> str | None:
        """A number of rows that is looked up in an array of the program's own, which a statement
        of the loop may change; None where there are enough arrays.
        """
        a = self.own_array(1, "int32")
        if a is None:
            return None
        row = self.fresh("r")
        place = self.pick((f"{i} // {step} % {a.shape[1]}", "0"))
        self.line(f"{row} = tkc.maximum({self.other_name(a).name}p[{place}], 0) * 8")
        if self.chance(0.5):
            number = self.random.randint(0, MOST_OWN)
            new = self.pick((f"tkc.full((1,), {number})", f"tkc.full((1,), {i} // {step} % 4)"))
            self.line(f"tkc.store({a.name}p, ({self.pick((place, '0', '1'))},), {new})")
        return row

    def place_of(self, i: str, step: int, row: str) -> str:
        return (self.looked_up(i, step) if self.chance(0.15) else None) or row

    def end_of_iteration(self, loop: DotLoop) -> None:
        """Now and then writes to what the loop's operands are blocks of."""
        found = self._own_matrices()
        if not found or self.chance(0.4):
            return
        a = self.other_name(self.pick(found))
        t = self.small(self.tile((16, 16), a.dtype), 4)
        place = f"{self.pick(('0', '16', self.index()))}, {self.pick(('0', loop.index))}"
        self.line(f"tkc.store({a.name}p, ({place}), {t.name})")

    def _update(self, depth: int) -> None:
        """A loop that loads from an array, computes, and writes to the same array."""
        extents = self.extents()
        a = self.own_array(2, self.pick(OPERAND_TYPES))
        if extents is None or a is None:
            return
        if self.seed % SLIDING == SLIDING - 9:  # no draw: others stay what they were
            self._slide()
        m, n, k = extents
        total = self.zeros((m, n), "int32" if a.dtype == "int8" else "float32")
        i, (text, most, _) = self.fresh("i"), self.trips()
        self.line(f"for {i} in tkc.range({text}{self.stages()}):")
        saved = self.enter()
        self.pool = [v for v in self.pool if v.name != total.name]
        self.mutable, self.indices[i] = set(), (0, most)
        if self.chance(0.3):
            self.step(0)
        x = (
            self._gathered(i, a, (m, k))
            or self._by_address(i, a, (m, k))
            or self.read(self.other_name(a), self._offsets(i), (m, k))
        )
        for t in self._results(x, total):
            self.write(self.other_name(a), self._offsets(i), t)
        if self.chance(0.3):
            self._add_atomically(total.shape)
        self.leave(saved)
        # at most so many iterations of products of such numbers
        bound = MOST_OWN * 8 * k * 8
        self.pool = [replace(v, bound=bound) if v.name == total.name else v for v in self.pool]

    def _slide(self) -> None:
        """A loop over windows of an array, each of which shares all but one or two elements with
        the next, to which it writes: as the kernel makes them, or as an argument of the launch.
        """
        a = self.own_array(1, "int32")
        if a is None or a.order != "C" or a.shape[1] < 4:
            return
        is_argument = self.seed // SLIDING % 2
        shown = a if is_argument else self.other_name(a)
        columns, (w, i, x) = max(1, shown.shape[1] // 2), map(self.fresh, "wix")
        rows = (shown.shape[1] - columns) // (1 + is_argument) + 1
        if is_argument:  # s: no other production stores several rows there, which have one place
            shape = a.shape[0], rows, columns
            view = ArraySpec(
                f"s{len(self.arrays)}", a.dtype, shape, "windows", a.bound, a.name, ((2, 0),)
            )
            self.add_own(view)
            w = f"{view.name}p"
        else:
            self.line(
                f"{w} = tkc.array({shown.name}p.ptr, tkc.{a.dtype}, ({rows}, {columns}), (1, 1))"
            )
        self.line(f"for {i} in tkc.range(0, {min(rows - 1, 3)}):")
        saved = self.enter()
        self.line(f"{x} = tkc.load({w}, ({i}, 0), (1, {columns}))")
        self.line(f"tkc.store({w}, ({i} + 1, 0), {x})")
        self.leave(saved)

    def _gathered(self, i: str, a: ArraySpec, shape: tuple[int, int]) -> Tile | None:
        """Now and then: rows of an array by numbers that the loop itself changes."""
        numbers = self.own_array(1, "int32") if self.chance(0.2) else None
        if numbers is None:
            return None
        place = self.pick(("0", i))
        rows = self.read(self.other_name(numbers), [place], shape[:1])
        name = self.fresh("r")
        self.line(f"{name} = {rows.name} % {a.shape[1]}")
        new = f"({rows.name} + {self.random.randint(1, 3)}) % {MOST_OWN}"
        self.line(f"tkc.store({numbers.name}p, ({place},), {new})")
        return self.block_at(replace(a, name=f"{a.name}p", bound=MOST_OWN), [name, "0"], shape)

    def _by_address(self, i: str, a: ArraySpec, shape: tuple[int, int]) -> Tile | None:
        """Now and then: a block of an array that is made of the address of the program's part."""
        if not self.chance(0.2) or a.order != "C" or len(self.arrays) >= MOST_ARRAYS + 3:
            return None
        table = ArraySpec(
            f"t{len(self.arrays)}", "int64", a.shape[:1], "own addresses", 0, base=a.name
        )
        self.arrays.append(table)
        address, size = f"{table.name}[p]", np.dtype(NUMPY[a.dtype]).itemsize
        if prod(a.shape[1:]) * size % ALIGNED == 0:
            address = f"tkc.multiple_of({address}, {ALIGNED})"
        name = self.fresh("y")
        self.line(f"{name} = tkc.array({address}, tkc.{a.dtype}, {a.shape[1:]})")
        text = f"tkc.load({name}, ({', '.join(self._offsets(i))}), {shape})"
        return self.let(text, a.dtype, shape, MOST_OWN)

    def _offsets(self, i: str) -> list[str]:
        """Of a block in a loop: mostly the same in every iteration, or moving with it."""
        return [self.pick(("0", "0", "0", i, f"{i} + 1", self.index())) for _ in range(2)]

    def _results(self, x: Tile, total: Tile) -> list[Tile]:
        """What an iteration writes back: a product of what it read, or computed by element."""
        (m, k), n = x.shape, total.shape[1]
        if self.chance(0.25):
            return [self._written(self.changed(x), x.dtype)]
        y = self.small(self.to(self.block((k, n), x.dtype), x.dtype), 4)
        if self.chance(0.4):
            self.add_dot(total, x, y)
            if self.chance(0.5):
                return [self._written(self.changed(x), x.dtype)]
        product = self.let(f"tkc.dot({x.name}, {y.name})", total.dtype, (m, n), x.bound * 4 * k)
        return [self._written(product, x.dtype)]

    def _written(self, t: Tile, dtype: str) -> Tile:
        """A tile as an array w of this type holds it."""
        return self.to(self.small(t, 4), dtype)

    def _add_atomically(self, shape: tuple[int, ...]) -> None:
        """Adds to an array x and reads it, in the same loop."""
        found = [a for a in self.arrays if a.name[0] == "x" and len(a.shape) == 1 + len(shape)]
        if not found and len(self.arrays) >= MOST_ARRAYS:
            return
        a = self.pick(found) if found else self.own("x", self.pick(("float32", "int32")), shape)
        t = self.small(self.tile(shape, a.dtype), 4)
        if self.chance(0.4) and len(shape) <= 2:
            pointers, inside = self.pointers(f"{self.other_name(a).name}p", shape)
            old = self.fresh()
            self.line(f"{old} = tkc.atomic_add({pointers}, {t.name}, mask={inside})")
            self.let(f"tkc.where({inside}, {old}, 0)", a.dtype, shape, MOST_ADDED)
            return
        offsets = ", ".join(self.pick(("0", "0", self.index())) for _ in shape)
        self.line(f"tkc.atomic_add({self.other_name(a).name}p, ({offsets},), {t.name})")
        self.read(self.other_name(a), ["0" for _ in shape], shape)

    # ----------------------------------------------------------------------------------------------
    def _recurrence(self, depth: int) -> None:
        """A state that goes through memory from an iteration of one loop to the next, by a loop of
        dots inside.
        """
        if len(self.arrays) >= MOST_ARRAYS - 2:
            return
        dtype = self.pick(("float16", "bfloat16", "float32"))
        m, k, parts, count = (
            self.pick(ROWS),
            self.pick(ROWS[:2]),
            self.pick((1, 2)),
            self.pick((2, 3, 4)),
        )
        if self.chance(0.5):
            self._recurrent_layer(dtype, m, k, parts, count)
        else:
            self._triangular_solve(dtype, self.pick(ROWS[:2]), k, count)

    def _recurrent_layer(self, dtype: str, m: int, k: int, parts: int, count: int) -> None:
        d = k * parts
        turns = self.chance(0.4)  # two states by turns, else one after the other
        h = self.own("w", dtype, (2 if turns else count + 1, m, d))
        w = ArraySpec(f"a{len(self.arrays)}", dtype, (d, d), bound=2)
        self.arrays.append(w)
        i, j, acc = self.fresh("i"), self.fresh("k"), self.fresh()
        now, following = (f"{i} % 2", f"({i} + 1) % 2") if turns else (i, f"{i} + 1")
        self.line(f"for {i} in tkc.range({count}):")
        saved = self.enter()
        self.zeros((m, d), "float32", acc)
        self.line(f"for {j} in tkc.range(0, {d}, {k}{self.stages()}):")
        inner = self.enter()
        x = f"tkc.load({self.other_name(h).name}p, ({now}, 0, {j}), (None, {m}, {k}))"
        y = f"tkc.load({w.name}, ({j}, 0), ({k}, {d}))"
        self.line(f"{acc} = tkc.dot({x}, {y}, {acc})")
        self.leave(inner)
        state = self._written(Tile(acc, "float32", (m, d), MOST_OWN * 2 * d), dtype)
        self.line(f"tkc.store({h.name}p[{following}], (0, 0), {state.name})")
        self.leave(saved)

    def _triangular_solve(self, dtype: str, rows: int, columns: int, count: int) -> None:
        """Blocks of rows, each made of those before it, in place."""
        b = self.own("w", dtype, (rows * count, columns))
        factor = ArraySpec(f"a{len(self.arrays)}", dtype, (rows * count,) * 2, bound=2)
        self.arrays.append(factor)
        i, j, acc = self.fresh("i"), self.fresh("j"), self.fresh()
        self.line(f"for {i} in tkc.range({count}):")
        saved = self.enter()
        block = f"({rows}, {columns})"
        read = f"tkc.load({self.other_name(b).name}p, ({i} * {rows}, 0), {block})"
        self.line(f"{acc} = {read}.to(tkc.float32)")
        self.line(f"for {j} in tkc.range({i}):")
        self.indent += 1
        x = f"tkc.load({factor.name}, ({i} * {rows}, {j} * {rows}), ({rows}, {rows}))"
        y = f"tkc.load({b.name}p, ({j} * {rows}, 0), {block})"
        self.line(f"{acc} = {acc} - tkc.dot({x}, {y})")
        self.indent -= 1
        result = Tile(acc, "float32", (rows, columns), MOST_OWN * 3 * rows * count)
        self.line(f"tkc.store({b.name}p, ({i} * {rows}, 0), {self._written(result, dtype).name})")
        self.leave(saved)

    def _reread(self, depth: int) -> None:
        """A loop of dots that reads what a loop before it wrote."""
        if len(self.arrays) >= MOST_ARRAYS - 2:
            return
        dtype, count = self.pick(("float16", "bfloat16", "float32")), self.pick((1, 2, 3))
        m, k, n = self.pick(ROWS), self.pick(ROWS[:2]), self.pick(ROWS[:2])
        w = self.own("w", dtype, (m, k * count))
        i, j = self.fresh("i"), self.fresh("k")
        self.line(f"for {i} in tkc.range({count}):")
        saved = self.enter()
        self.mutable, self.indices[i] = set(), (0, count - 1)
        t = self._written(self.tile((m, k), dtype), dtype)
        self.line(f"tkc.store({self.other_name(w).name}p, (0, {i} * {k}), {t.name})")
        self.leave(saved)
        if self.chance(0.3):
            self.step(0)
        acc = self.zeros((m, n), "float32")
        self.line(f"for {j} in tkc.range(0, {k * count}, {k}{self.stages()}):")
        saved = self.enter()
        self.mutable = set()
        x = f"tkc.load({self.other_name(w).name}p, (0, {j}), ({m}, {k}))"
        y = self.small(self.to(self.block((k, n), dtype), dtype), 4)
        self.line(f"{acc.name} = tkc.dot({x}, {y.name}, {acc.name})")
        self.leave(saved)
        bound = MOST_OWN * 4 * k * count
        self.pool = [replace(v, bound=bound) if v.name == acc.name else v for v in self.pool]

    # ----------------------------------------------------------------------------------------------
    def _atomic(self, depth: int) -> None:
        """Sums that all programs share (whole numbers: any order gives the same), or extremes."""
        dtype = self.pick(("float32", "int32"))
        t = self.small(self.tile(self.shape(self.pick((1, 2))), dtype), MOST_OWN)
        if len(self.arrays) > MOST_ARRAYS:
            return
        name = f"s{len(self.arrays)}"
        shape = tuple(n + self.pick((0, -1, 2)) or 1 for n in t.shape)
        self.arrays.append(ArraySpec(name, dtype, shape))
        offsets = ", ".join(self.index() for _ in t.shape)
        mask = self.mask(t.shape)
        masked = f", mask={mask}" if mask else ""
        function = self.pick(("add", "add", "max", "min"))
        self.line(f"tkc.atomic_{function}({name}, ({offsets},), {t.name}{masked})")
