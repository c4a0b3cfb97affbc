"""Productions at the limits of what passes may believe: numbers that wrap or are rounded, promises
that are made only where nothing runs, bounds below zero, loops near the end of a type, elements of
a block that are one in memory, while loops that loaded numbers end.

All draw from a generator of their own: kernels of a seed stay what they were.
"""

from __future__ import annotations

from random import Random

from tkc.fuzz.counting_productions import CountingWriter
from tkc.fuzz.grammar import ArraySpec

MOST_INT32 = 2**31 - 1
# arguments whose sums and products wrap, and what each is promised to be a multiple of
EXTREMES = (
    *((MOST_INT32, 1), (-MOST_INT32 - 1, 16), (MOST_INT32 - 7, 8), (MOST_INT32 - 63, 32)),
    *((1 << 30, 16), (248, 8), (-1, 1), (0, 16), (65535, 3), (-(1 << 24) - 1, 1)),
)
NARROW = ("int8", "uint8", "int16", "uint16", "int32")
WIDE = ("uint32", "int64")
ROUNDED = ("float32", "bfloat16", "float64")
EXTENTS = (8, 16, 32)

# what moves with a predicate, and what jumps, each with what it means
INLINE = (
    (
        "{ .reg .pred p; setp.lt.s32 p, $1, 0; @p neg.s32 $0, $1; @!p mov.b32 $0, $1; }",
        "np.abs(v)",
    ),
    (
        "{ .reg .pred p; mov.b32 $0, $1; setp.gt.s32 p, $1, 2; @!p bra L; sub.s32 $0, $1, 3; L: }",
        "np.where(v > 2, v - 3, v)",
    ),
)


class LimitWriter(CountingWriter):
    """Writes statements that are rare, each by itself."""

    def limits(self, name: str) -> Random:
        """Where the draws of a production come from."""
        return Random(f"{name} of {self.seed}")

    def _argument(self, value: int) -> str:
        """The name of a number of the launch."""
        name = f"m{len(self.extra_numbers)}"
        self.extra_numbers[name] = value
        return name

    def _walked(self, r: Random, n: int) -> tuple[str, str, ArraySpec]:
        """A sum of rows that a loop reads by pointers, some of which are also columns: what passes
        take for blocks. The name of the sum, an (n, n) tile of float32; that of its numbers; and
        the array.
        """
        a = ArraySpec(f"a{len(self.arrays)}", "float32", (4 * n, 4 * n))
        self.arrays.append(a)
        j, acc, k = self.fresh("j"), self.fresh("t"), self.fresh("k")
        trips = r.choice((f"tkc.range(0, {2 * n}, {n})", f"tkc.range(0, n0 * {n}, {n})"))
        self.line(f"{j}, {acc} = tkc.arange({n}), tkc.zeros(({n}, {n}))")
        self.line(f"for {k} in {trips}:")
        columns = f"({k} + {j})[None, :] * {a.name}.strides[1]"
        inside = f", mask=({k} + {j} < {a.name}.shape[1])[None, :]"
        place = f"{a.name}.ptr + {j}[:, None] * {a.name}.strides[0] + {columns}"
        self.line(f"    {acc} += tkc.load({place}{inside}, other=0)")
        return acc, j, a

    # ----------------------------------------------------------------------------------------------
    def wrapped_numbers(self) -> None:
        """What is computed of numbers near the ends of their types, beside a block by pointers."""
        r = self.limits("wrapped numbers")
        n = r.choice(EXTENTS)
        acc, j, _ = self._walked(r, n)
        kind = r.choice(("int32", "int32", *NARROW, *WIDE))
        names = []
        for value, divisor in r.sample(EXTREMES, 2):
            name = self._argument(value)
            promised = f"tkc.multiple_of({name}, {divisor})" if r.random() < 0.6 else name
            names.append(f"{promised}.to(tkc.{kind})" if kind != "int32" else promised)
        names.append(f"{j}.to(tkc.{kind})")
        if kind == "int32" and r.random() < 0.5:
            numbers = ArraySpec(f"a{len(self.arrays)}", "int32", (n,))
            self.arrays.append(numbers)
            names.append(f"tkc.load({numbers.name}, (0,), ({n},)) * {1 << r.randint(0, 29)}")
        wide = r.choice(names[:2])
        for _ in range(r.randint(1, 3)):
            other = r.choice((*names, *names[2:], str(r.choice((1, 3, 8, 100)))))
            wide = f"({wide} {r.choice(('+', '+', '-', '*'))} {other})"
        name = self.fresh("v")
        self.line(f"{name} = {self._narrowed(r, wide)} + tkc.zeros(({n},), tkc.{kind})")
        self._store_rounded(r, name, n)
        self.let(f"{acc} + ({name} % 5).to(tkc.float32)[None, :]", "float32", (n, n), 64)

    def _narrowed(self, r: Random, text: str) -> str:
        """A number of few bits made of one that may have wrapped."""
        by = r.choice((2, 3, 4, 8, 16))
        forms = ("{0}", "{0} // {1}", "{0} % {1}", "{0} >> 3", "tkc.minimum({0}, {1})", "{0} & 7")
        return f"({r.choice(forms).format(text, by)})"

    def _store_rounded(self, r: Random, name: str, n: int) -> None:
        """A row of numbers as floats, rounded once."""
        dtype = r.choice(ROUNDED)
        o = self.own("o", dtype, (n,))
        self.line(f"tkc.store({o.name}p, (0,), {name}.to(tkc.{dtype}))")

    # ----------------------------------------------------------------------------------------------
    def promises(self) -> None:
        """A promise that is not kept, in a branch or a loop that does not run, of a number by which
        what runs finds its block.
        """
        r = self.limits("promises")
        n, start, divisor = r.choice(EXTENTS), r.choice((2, 3, 5, 6, 12)), r.choice((4, 8, 16))
        dtype = r.choice(("float32", "float16", "uint8"))
        s, a = self._argument(start), ArraySpec(f"a{len(self.arrays)}", dtype, (n, 4 * n + 16))
        self.arrays.append(a)
        t, i, j = self.fresh("t"), self.fresh("i"), self.fresh("j")

        def block(place: str) -> str:
            if r.random() < 0.5:
                return f"tkc.load({a.name}, (0, {place}), ({n}, {n})).to(tkc.float32)"
            row = f"{a.name}.ptr + {j}[:, None] * {a.name}.strides[0]"
            return f"tkc.load({row} + ({place} + {j})[None, :]).to(tkc.float32)"

        self.line(f"{j}, {t} = tkc.arange({n}), tkc.zeros(({n}, {n}))")
        kept, broken = block(s), block(f"tkc.multiple_of({s}, {divisor})")
        heads = r.choice(((f"if n0 > {r.randint(16, 40)}:", "else:"), (None, None), ("", None)))
        match heads:
            case (str(head), str(other)) if head:
                self.line(head, f"    {t} += {broken}", other, f"    {t} += {kept}")
            case ("", _):
                self.line(f"for {i} in tkc.range(0, 3):")
                self.line(f"    if {i} > n0 + 2:", f"        {t} += {broken}")
                self.line("    else:", f"        {t} += {kept}")
            case _:
                none = r.choice((f"tkc.range({s}, {s})", f"tkc.range({s}, 0)"))
                self.line(f"for {i} in {none}:", f"    {t} += {broken}")
                self.line(f"for {i} in tkc.range(0, 2):", f"    {t} += {kept}")
        self.let(t, "float32", (n, n), 3 * a.bound)

    def bounds_below_zero(self) -> None:
        """Masks by pointers whose bounds may be below zero, of dots' operands and of a store, in a
        loop or not; some of the rows lie before the array.
        """
        r = self.limits("bounds below zero")
        n, dtype = r.choice(EXTENTS[1:]), r.choice(("float16", "bfloat16", "float32"))
        a = ArraySpec(f"a{len(self.arrays)}", dtype, (2 * n, n))
        o = ArraySpec(f"o{len(self.arrays) + 1}", "float32", (self.programs, n, n))
        self.arrays += [a, o]
        m = self._argument(r.choice((-(1 << 20), -16, -7, -1, 0, 5, n - 1, n)))
        i, j, acc, x, c = (self.fresh(letter) for letter in "ijtvc")
        fewer = r.choice((m, m, f"{m} - 20", f"{m} - {i}", f"{m} - {i} * {n}", f"{m} * 2"))
        before = r.choice((0, 0, 4))
        test = r.choice(("{r} < {m}", "{m} > {r}", "{r} <= {m}", "({r} >= 0) & ({r} < {m})"))
        if before:
            test = f"({{r}} >= 0) & ({test})"
        inside = test.format(r=j, m=fewer)
        spread = f"({inside})[:, None]" if before or r.random() < 0.6 else f"({inside})[None, :]"
        block = f"{{0}}.ptr + {{1}}{j}[:, None] * {n} + {c}[None, :]"
        self.line(f"{j}, {c} = tkc.arange({n}) - {before}, tkc.arange({n})")
        self.line(f"{i}, {acc} = 0, tkc.zeros(({n}, {n}))")
        self.line(f"for {i} in tkc.range(0, {r.choice((1, 2, 3))}):")
        load = f"tkc.load({block.format(a.name, '')}, mask={spread}, other={r.choice((0, 0, 1))})"
        dot = r.choice((f"tkc.dot({x}, {x}.T, {acc})", f"{acc} + {x}.to(tkc.float32)"))
        self.line(f"    {x} = {load}", f"    {acc} = {dot}")
        to = block.format(o.name, f"p * {n * n} + ")
        self.line(f"tkc.store({to}, {acc}, mask={spread.replace(i, '1')})")

    # ----------------------------------------------------------------------------------------------
    def short_offsets(self) -> None:
        """A block whose place a cast to fewer bits has wrapped."""
        r = self.limits("short offsets")
        n, kind = r.choice(EXTENTS), r.choice(("int8", "uint8", "int16", "uint16"))
        most = {"int8": 128, "uint8": 256, "int16": 1 << 15, "uint16": 1 << 16}[kind]
        a, o = ArraySpec(f"a{len(self.arrays)}", "float32", (n, 64)), self.own("o", "float32", (n,))
        self.arrays.append(a)
        t, i = self.fresh("t"), self.fresh("i")
        far = self._argument(r.choice((most - 2, most, most + 5, 2 * most + 3)))
        self.line(f"{t} = tkc.zeros(({n},))")
        self.line(f"for {i} in tkc.range(0, {r.choice((2, 4))}):")
        place = r.choice((f"{far} + {i}", f"{far} * ({i} + 1)", f"{i} + {most} - 1"))
        self.line(f"    {t} += tkc.load({a.name}, (0, ({place}).to(tkc.{kind})), ({n}, 1))[:, 0]")
        place = r.choice(("0", f"({far} + p0).to(tkc.{kind})"))
        self.line(f"tkc.store({o.name}p, ({place},), {t})")
        self.let(t, "float32", (n,), 4 * a.bound)

    def ends_of_types(self) -> None:
        """A loop near the last or the first number of int32, counted."""
        r = self.limits("ends of types")
        step, count = r.choice((1, 2, 3, 5, 64)), r.randint(0, 4)
        last = MOST_INT32 - r.randint(0, step)
        numbers = range(max(last - count * step - r.randint(0, step), 0), last, step)
        if r.random() < 0.4:
            numbers = range(-1 - numbers.start, -1 - numbers.stop, -step)
        found = sum(1 + (i - numbers.start) % 7 for i in numbers)
        ends = [numbers.start, numbers.stop, numbers.step]
        texts = [self._argument(v) if r.random() < 0.7 else str(v) for v in ends]
        i, c = self.fresh("i"), self.fresh("c")
        self.line(f"{c} = 0", f"for {i} in tkc.range({', '.join(texts)}):")
        extended = r.choice(("{i} - ({start})", "({i}.to(tkc.int64) - ({start})).to(tkc.int32)"))
        distance = extended.format(i=i, start=texts[0])
        self.line(f"    {c} = {c} + 1 + ({distance}) % 7")
        z = ArraySpec(f"z{len(self.arrays)}", "int32", (self.programs, 1), bound=0)
        self.add_own(z)
        self.line(f"tkc.store({z.name}p, (0,), tkc.full((1,), {c} - {found}, tkc.int32))")

    # ----------------------------------------------------------------------------------------------
    def one_in_memory(self) -> None:
        """Rows that are one in memory are read, and one of them is written in place."""
        r = self.limits("one in memory")
        m, n = r.choice((4, 16, 64)), r.choice(EXTENTS)
        dtype = r.choice(("float32", "int32", "float16"))
        w = f"{self.own('w', dtype, (m, n), 'folded').name}p"
        x, i = self.fresh("v"), self.fresh("i")
        self.line(f"for {i} in tkc.range(0, {r.randint(1, 3)}):")
        self.line(f"    {x} = tkc.load({w}, (0, 0), ({m}, {n}))")
        row = (
            f"{x}[{r.randrange(m)}:][:1]" if r.random() < 0.5 else f"tkc.max({x}, axis=0)[None, :]"
        )
        changed = r.choice((f"{row} + 1", f"{row} * 2 % 8", f"tkc.maximum({row}, {i})"))
        self.line(f"    tkc.store({w}, (0, 0), {changed})")

    def until_loaded(self) -> None:
        """A loop of dots that a loaded number ends, or in which one says where its operands are;
        before, in or behind it the program stores another number there.
        """
        r = self.limits("until loaded")
        k, n, dtype = 16, r.choice((16, 32)), r.choice(("float16", "bfloat16"))
        m, most = r.choice((16, 64)), 4
        x = ArraySpec(f"a{len(self.arrays)}", dtype, (m, k * most), bound=1)
        self.arrays.append(x)
        y = ArraySpec(f"a{len(self.arrays)}", dtype, (k * most, n), bound=1)
        self.arrays.append(y)
        ends = self.own("w", "int32", (4,))
        i, acc, end = self.fresh("i"), self.fresh("t"), self.fresh("e")
        read = f"tkc.minimum({ends.name}p[{{}}], {most})"
        store = f"tkc.store({ends.name}p, ({r.choice('001')},), tkc.full((1,), {r.randint(0, 9)}))"
        before, inside, behind = (r.random() < 0.3 for _ in range(3))
        self.line(f"{i}, {acc} = 0, tkc.zeros(({m}, {n}))")
        self.line(f"{end} = {read.format(r.choice(('0', 'n0 % 4')))}", *[store] * before)
        form = r.choice(("while", "while of loads", "range", "place"))
        step, ahead, j = f"{i} = {i} + {r.choice((1, 1, 2))}", f"{i} * {k}", self.fresh("j")
        match form:
            case "while":
                self.line(f"while {i} < {end}:")
            case "while of loads":
                self.line(f"while {i} < {read.format(f'{i} % 4')}:")
            case "range":
                self.line(f"for {j} in tkc.range(0, {end}):")
                ahead = f"{j} * {k}"
            case _:
                self.line(f"for {j} in tkc.range(0, {r.randint(1, 3)}):")
                ahead = f"({j} + tkc.maximum({end}, 0)) * {k}"
        left = f"tkc.load({x.name}, (0, {ahead}), ({m}, {k}))"
        right = f"tkc.load({y.name}, ({ahead}, 0), ({k}, {n}))"
        self.line(f"    {acc} = tkc.dot({left}, {right}, {acc})", *[f"    {store}"] * inside)
        if form.startswith("while"):
            self.line(f"    {step}")
        self.line(*[store] * behind)
        self._until_large(r, ends.name, i, end)
        self.let(f"{acc} + {i}", "float32", (m, n), k * most + 8)

    def _until_large(self, r: Random, ends: str, i: str, end: str) -> None:
        """Now and then a loop without an end where nothing is stored, or loaded."""
        if r.random() < 0.5:
            self.line(f"tkc.store({ends}p, (1,), tkc.full((1,), {r.randint(1, 5)}))")
            self.line(f"{end} = {ends}p[1]")
            self.line(f"while {end} < 100:", f"    {end} = {end} * 2")
            self.line(f"{i} = {i} + {end} % 7")

    def inline_text(self) -> None:
        """PTX of the user's own, with predicates or jumps."""
        r = self.limits("inline text")
        text, meaning = r.choice(INLINE)
        name, t = self.fresh("f"), self.tile(None, "int32", 1000)
        self.definitions.append(f"import numpy as np\n\n\ndef {name}(v):\n    return {meaning}\n")
        asked = f'tkc.inline_ptx("{text}", {t.name}, meaning={name})'
        self.let(asked, "int32", t.shape, t.bound + 3)
