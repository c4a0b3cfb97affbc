"""The productions of the grammar: `Author.step` writes one statement, picked by the policy's
weights; `kernel(seed)` a whole kernel.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tkc.fuzz.grammar import INTEGERS, POLICIES, WHOLE, ArraySpec, Kernel, Tile, is_float
from tkc.fuzz.streams import Streams

COMPARE = ("<", "<=", ">", ">=", "==", "!=")


class Author(Streams):
    """Writes whole kernels."""

    def step(self, depth: int = 2) -> None:
        names = [
            n for n in self.weights if depth or n not in ("loop", "branch", "repeat", "accumulate")
        ]
        getattr(self, "_" + self.random.choices(names, [self.weights[n] for n in names])[0])(depth)

    # ----------------------------------------------------------------------------------------------
    def _load(self, depth):
        self.block(self.shape(), self.dtype())

    def _pointers(self, depth):
        self.addresses(self.shape(self.pick((1, 2, 2))), self.dtype())

    def _gather(self, depth):
        shape = self.shape(2)
        a, axis = self.input(2, self.dtype()), self.random.randrange(2)
        rows = self.fresh("r")
        narrow = self.pick(("", "", "", ".to(tkc.uint8)", ".to(tkc.int8)", ".to(tkc.int64)"))
        self.line(
            f"{rows} = ((tkc.arange({shape[axis]}) * {self.random.randint(1, 7)} + {self.index()})"
            f" % {self.pick((self.random.randint(1, 40), 300))}){narrow}"
        )
        self.let(
            f"tkc.load({a.name},"
            f" ({', '.join(rows if i == axis else self.index() for i in range(2))}), {shape})",
            a.dtype,
            shape,
            a.bound,
        )

    def partner(self, t: Tile) -> tuple[str, int]:
        """A second operand: of the same shape, one that broadcasts, or a number."""
        r = self.random.random()
        if r < 0.2 and t.dtype != "bool_":
            return (str(n := self.random.randint(0 if t.dtype.startswith("u") else -3, 4)), abs(n))
        if r < 0.4 and len(t.shape) > 1:
            axis = self.random.randrange(len(t.shape))
            u = self.small(self.tile((t.shape[axis],), t.dtype), 8)
            return (
                f"{u.name}[{', '.join(':' if i == axis else 'None' for i in range(len(t.shape)))}]",
                u.bound,
            )
        u = self.small(self.tile(t.shape, t.dtype), 16)
        return u.name, u.bound

    def _binary(self, depth):
        t = self.tile()
        root = int(WHOLE[t.dtype] ** 0.5) if is_float(t.dtype) else 1 << 60
        t = self.small(t, min(root - 1, 1000)) if is_float(t.dtype) else t
        other, bound = self.partner(t)
        if is_float(t.dtype) and bound > root:
            return
        kinds = ["+", "-", "*", "max", "min"] + (
            ["&", "|", "^", "//", "%", "<<", ">>"] if not is_float(t.dtype) else ["%", "//"]
        )
        match kind := self.pick(kinds):
            case "+" | "-":
                self.let(f"{t.name} {kind} {other}", t.dtype, t.shape, t.bound + bound)
            case "*":
                self.let(f"{t.name} * {other}", t.dtype, t.shape, t.bound * max(bound, 1))
            case "max" | "min":
                self.let(
                    f"tkc.{kind}imum({t.name}, {other})", t.dtype, t.shape, max(t.bound, bound)
                )
            case "&" | "|" | "^":
                self.let(f"{t.name} {kind} {other}", t.dtype, t.shape, 2 * max(t.bound, bound))
            case "//" | "%":
                self.let(
                    f"{t.name} {kind}"
                    f" {self.pick((1, 2, 3, 4, 7, 8) if t.dtype.startswith('u') or t.dtype[0] == 'f' and t.dtype[5:7] == '8_' else (1, 2, 3, 4, 7, -2, -3))}",
                    t.dtype,
                    t.shape,
                    max(t.bound, 7),
                )
            case "<<" | ">>":
                self.let(
                    f"{t.name} {kind} {self.random.randint(0, 3)}", t.dtype, t.shape, t.bound * 8
                )

    def truth(self, shape=None) -> Tile:
        found = [
            v for v in self.pool if v.dtype == "bool_" and v.shape and shape in (None, v.shape)
        ]
        if found and self.chance(0.6):
            return self.pick(found)
        t = self.tile(shape)
        other, _ = self.partner(t)
        return self.let(f"{t.name} {self.pick(COMPARE)} {other}", "bool_", t.shape, 1)

    def _compare(self, depth):
        c = self.truth()
        if self.chance(0.4):
            self.let(f"{c.name} {self.pick('&|^')} {self.truth(c.shape).name}", "bool_", c.shape, 1)
        elif self.chance(0.3):
            self.let(f"~{c.name}", "bool_", c.shape, 1)

    def _where(self, depth):
        c = self.truth()
        a = self.tile(c.shape)
        b, bound = self.partner(a)
        self.let(f"tkc.where({c.name}, {a.name}, {b})", a.dtype, a.shape, max(a.bound, bound))

    def _unary(self, depth):
        t = self.tile()
        if t.dtype.startswith("u"):
            self.let(f"~{t.name}", t.dtype, t.shape, WHOLE[t.dtype])
            return
        text = self.pick(
            ("-{0}", "tkc.abs({0})")
            + (
                ("tkc.floor({0})", "tkc.round({0})", "tkc.fma({0}, 1, 2)")
                if t.dtype == "float32"
                else ()
            )
            + (("~{0}",) if not is_float(t.dtype) else ())
        )
        if is_float(t.dtype):
            t = self.small(t, WHOLE[t.dtype] // 4)
        self.let(text.format(t.name), t.dtype, t.shape, t.bound + 2)

    def _cast(self, depth):
        self.to(self.tile(), self.pick((self.dtype(), self.dtype(), self.pick(INTEGERS))))

    # ----------------------------------------------------------------------------------------------
    def _shape(self, depth):
        t = self.tile()
        axis, rank = self.random.randrange(len(t.shape)), len(t.shape)
        n, dtype, bound = t.shape[axis], t.dtype, t.bound

        def colons(text):
            return ", ".join(text if i == axis else ":" for i in range(rank))

        def of(m):
            return tuple(m if i == axis else e for i, e in enumerate(t.shape))

        match self.random.randrange(10):
            case 0 if rank > 1:
                self.let(f"{t.name}.T", dtype, (*t.shape[:-2], t.shape[-1], t.shape[-2]), bound)
            case 1:
                order = self.random.sample(range(rank), rank)
                self.let(
                    f"tkc.permute({t.name}, {order})", dtype, [t.shape[i] for i in order], bound
                )
            case 2:
                self.let(f"tkc.flip({t.name}, axis={axis})", dtype, t.shape, bound)
            case 3:
                size = prod(t.shape)
                first = self.pick([d for d in range(1, size + 1) if size % d == 0])
                self.let(
                    f"{t.name}.reshape({first}, {size // first})",
                    dtype,
                    (first, size // first),
                    bound,
                )
            case 4:
                low, step = self.random.randrange(n), self.pick((1, 1, 2, 3))
                high = self.random.randint(low + 1, n)
                self.let(
                    f"{t.name}[{colons(f'{low}:{high}:{step}')}]",
                    dtype,
                    of(len(range(low, high, step))),
                    bound,
                )
            case 5 if rank > 1:
                self.let(
                    f"{t.name}[{colons(str(self.random.randrange(-n, n)))}]",
                    dtype,
                    t.shape[:axis] + t.shape[axis + 1 :],
                    bound,
                )
            case 6 if prod(t.shape) <= 2048:
                u = self.tile(
                    of(
                        self.pick(
                            [
                                v.shape[axis]
                                for v in self.pool
                                if len(v.shape) == rank
                                and v.shape[:axis] + v.shape[axis + 1 :]
                                == t.shape[:axis] + t.shape[axis + 1 :]
                            ]
                            or [n]
                        )
                    ),
                    dtype,
                )
                if prod(u.shape) <= 2048:
                    self.let(
                        f"tkc.cat({t.name}, {u.name}, axis={axis})",
                        dtype,
                        of(n + u.shape[axis]),
                        max(bound, u.bound),
                    )
            case 7 if prod(t.shape) <= 2048:
                u = self.tile(t.shape, dtype)
                if self.chance(0.5):
                    self.let(
                        f"tkc.interleave({t.name}, {u.name})",
                        dtype,
                        (*t.shape[:-1], 2 * t.shape[-1]),
                        max(bound, u.bound),
                    )
                else:
                    self.let(
                        f"tkc.join({t.name}, {u.name})", dtype, (*t.shape, 2), max(bound, u.bound)
                    )
            case 8 if prod(t.shape) <= 1024 and rank < 3:
                self.let(
                    f"tkc.broadcast_to({t.name}[{', '.join(['None' if i == axis else ':' for i in range(rank + 1)])}],"
                    f" {(s := (*t.shape[:axis], self.pick((1, 2, 4)), *t.shape[axis:]))})",
                    dtype,
                    s,
                    bound,
                )
            case _:
                self.let(
                    f"tkc.broadcast_to({t.name}[{', '.join(['0'] * rank)}], {(s := self.shape())})",
                    dtype,
                    s,
                    bound,
                )

    # ----------------------------------------------------------------------------------------------
    def _reduce(self, depth):
        t = self.tile() if self.chance(0.85) else self.truth()
        axis, n = self.random.randrange(len(t.shape)), 0
        n, left = t.shape[axis], t.shape[:axis] + t.shape[axis + 1 :]
        keep = ", keep_dims=True" if self.chance(0.2) else ""
        left = tuple(1 if i == axis else m for i, m in enumerate(t.shape)) if keep else left
        kind = self.pick(
            ("sum", "sum", "max", "min", "argmax", "argmin", "any", "all")
            + (("xor_sum",) if not is_float(t.dtype) and t.dtype != "bool_" else ())
        )
        if kind == "sum" and is_float(t.dtype) and t.bound * n > WHOLE[t.dtype]:
            t = self.small(t, max(1, min(8, WHOLE[t.dtype] // n)))
            if t.bound * n > WHOLE[t.dtype]:
                return
        if t.dtype == "bool_":
            dtype = "bool_" if kind in ("any", "all") else "int32"
        elif kind in ("any", "all"):
            dtype = "bool_"
        elif kind.startswith("arg"):
            dtype = "int32"
        elif kind == "sum" and not is_float(t.dtype):
            dtype = (
                t.dtype
                if t.dtype.endswith(("32", "64"))
                else "uint32"
                if t.dtype[0] == "u"
                else "int32"
            )
        else:
            dtype = t.dtype
        bound = {
            "sum": t.bound * n,
            "argmax": n,
            "argmin": n,
            "any": 1,
            "all": 1,
            "xor_sum": 2 * t.bound,
        }.get(kind, t.bound)
        self.let(f"tkc.{kind}({t.name}, axis={axis}{keep})", dtype, left, bound)

    def _scan(self, depth):
        t = self.tile()
        axis = self.random.randrange(len(t.shape))
        reverse = ", reverse=True" if self.chance(0.3) else ""
        dtype = (
            t.dtype
            if is_float(t.dtype) or t.dtype.endswith(("32", "64"))
            else "uint32"
            if t.dtype[0] == "u"
            else "int32"
        )
        if is_float(dtype):
            t = self.small(t, max(1, min(8, WHOLE[dtype] // t.shape[axis])))
            if t.bound * t.shape[axis] > WHOLE[dtype]:
                return
        self.let(
            f"tkc.cumsum({t.name}, axis={axis}{reverse})", dtype, t.shape, t.bound * t.shape[axis]
        )

    def _combine(self, depth):
        t = self.small(self.tile(), 8)
        axis = self.random.randrange(len(t.shape))
        if self.chance(0.5):
            self.let(
                f"tkc.reduce({t.name}, {axis}, lambda a, b: tkc.maximum(a, b))",
                t.dtype,
                t.shape[:axis] + t.shape[axis + 1 :],
                t.bound,
            )
        else:
            self.let(
                f"tkc.scan({t.name}, {axis}, lambda a, b: tkc.minimum(a,"
                f" b){', reverse=True' if self.chance(0.3) else ''})",
                t.dtype,
                t.shape,
                t.bound,
            )

    def _sort(self, depth):
        t = self.tile()
        axis = self.random.randrange(len(t.shape))
        if t.shape[axis] > 64:
            return
        if self.chance(0.6):
            self.let(
                f"tkc.sort({t.name}, axis={axis}, descending={self.chance(0.5)})",
                t.dtype,
                t.shape,
                t.bound,
            )
        else:
            self.let(
                f"tkc.topk({t.name}, {(k := self.random.randint(1, t.shape[axis]))}, axis={axis})",
                t.dtype,
                tuple(k if i == axis else m for i, m in enumerate(t.shape)),
                t.bound,
            )

    def _histogram(self, depth):
        n = self.shape(1)
        t = self.tile(n, self.pick(("int32", "int8", "uint8")))
        bins, mask = self.pick((4, 7, 16, 33)), self.mask(n)
        self.let(
            f"tkc.histogram({t.name}, {bins}{f', mask={mask}' if mask else ''})",
            "int32",
            (bins,),
            n[0],
        )

    # ----------------------------------------------------------------------------------------------
    def factors(self, m: int, n: int, k: int) -> tuple[str, str, int, str]:
        """Operands of a dot as text, the bound of a product, the accumulator's dtype."""
        dtype = self.pick(
            ("bfloat16",) * 4
            + (
                "float16",
                "float16",
                "float32",
                "float32",
                "int8",
                "int8",
                "float8_e4m3",
                "float8_e5m2",
                "float64",
                "int32",
            )
        )
        texts, bounds = [], []
        for shape in ((m, k), (k, n)):
            turned = self.chance(0.3)
            t = (
                self.tile(shape[::-1] if turned else shape, dtype)
                if self.chance(0.5)
                else self.to(self.block(shape[::-1] if turned else shape, dtype), dtype)
            )
            t = self.small(t, 4 if dtype != "float8_e5m2" else 2)
            texts.append(f"{t.name}.T" if turned else t.name)
            bounds.append(t.bound)
        return (
            texts[0],
            texts[1],
            bounds[0] * bounds[1] * k,
            "float64" if dtype == "float64" else "float32" if is_float(dtype) else "int32",
        )

    def precision(self, dtype) -> str:
        return (
            f', precision="{self.pick(("ieee", "tf32", "tf32x3"))}"'
            if dtype == "float32" and self.chance(0.3)
            else ""
        )

    def _dot(self, depth):
        m, n, k = (self.pick(self.sizes) for _ in range(3))
        if max(m * n, m * k, n * k) > 4096:
            return
        a, b, bound, dtype = self.factors(m, n, k)
        if self.chance(0.6):
            self.let(f"tkc.dot({a}, {b}{self.precision(dtype)})", dtype, (m, n), bound)
        else:
            c = self.tile((m, n), dtype, 1000)
            self.let(
                f"tkc.dot({a}, {b}, {c.name}{self.precision(dtype)})",
                dtype,
                (m, n),
                bound + c.bound,
            )

    def rebind(self, t: Tile, most: int) -> None:
        """Another value for a name in scope, of its dtype and shape."""
        with_this = self.small(self.tile(t.shape, t.dtype) if t.shape else self.like(t), most)
        texts = (
            [f"{with_this.name}"]
            + ([f"{t.name} + {with_this.name}"] if t.bound + with_this.bound <= most else [])
            + ([f"tkc.maximum({t.name}, {with_this.name})"] if t.dtype != "bool_" else [])
        )
        self.let(self.pick(texts), t.dtype, t.shape, most, t.name)

    def like(self, t: Tile) -> Tile:
        return self.pick([v for v in self.pool if v.shape == t.shape and v.dtype == t.dtype])

    def carried(self) -> list[Tile]:
        found = [v for v in self.pool if v.name in self.mutable and v.dtype != "bool_"]
        return [
            self.small_in_place(v, 24)
            for v in self.random.sample(found, min(len(found), self.random.randint(1, 3)))
        ]

    def small_in_place(self, t: Tile, most: int) -> Tile:
        most = min(most, WHOLE[t.dtype] // 2)
        if t.bound <= most:
            return t
        return self.let(
            (
                f"{t.name} % {most}"
                if self.chance(0.5) or t.dtype.startswith("u")
                else f"tkc.minimum(tkc.maximum({t.name}, {-most}), {most})"
            ),
            t.dtype,
            t.shape,
            most,
            t.name,
        )

    def _hint(self, depth):
        """A promise, kept."""
        name = self.pick(self.numbers)
        value = self.numbers[name]
        divides = self.pick([d for d in range(1, 17) if value % d == 0])
        self.line(
            f"tkc.assume({name}"
            f" {self.pick((f'<= {value + self.random.randint(0, 3)}', f'>= {value - self.random.randint(0, 3)}', f'% {divides} == 0'))})"
        )

    def stages(self) -> str:
        return f", num_stages={self.random.randint(1, 4)}" if self.chance(0.2) else ""

    def trips(self) -> tuple[str, int, int]:
        """The bounds of a loop and the greatest value of its variable."""
        n, step = self.random.choice((0, 1, 1, 2, 3, 4, 5)), self.pick((1, 1, 2, 16))
        name = self.pick(self.numbers)
        if self.chance(0.5) and self.numbers[name] <= 5:
            return (
                f"0, {name}" + (f" * {step}, {step}" if step > 1 else ""),
                max(0, self.numbers[name] - 1) * step,
                self.numbers[name],
            )
        low = self.pick((0, 0, 1, -2))
        return f"{low}, {low + n * step}, {step}", max(abs(low), low + n * step), n

    def loop_body(
        self,
        depth: int,
        carried: list[Tile],
        head: str,
        tail=None,
        index: tuple[str, int] | None = None,
    ) -> None:
        bounds = {t.name: max(t.bound, 8) if WHOLE[t.dtype] > 16 else t.bound for t in carried}
        self.pool = [replace(v, bound=bounds.get(v.name, v.bound)) for v in self.pool]
        self.line(head)
        saved = self.enter()
        if index:
            self.indices[index[0]] = (0, index[1])
        self.mutable = set(bounds)
        for _ in range(self.random.randint(1, 4)):
            self.step(depth - 1)
        now = {v.name: v for v in self.pool}
        for t in carried:
            if self.chance(0.7):
                self.rebind(now[t.name], bounds[t.name])
        for t in carried:
            last = next(v for v in self.pool if v.name == t.name)
            if last.bound > bounds[t.name]:
                self.let(
                    f"{t.name} % {bounds[t.name]}" if bounds[t.name] else f"{t.name} * 0",
                    t.dtype,
                    t.shape,
                    bounds[t.name],
                    t.name,
                )
        twins = [
            (a, b)
            for a in carried
            for b in carried
            if a.name < b.name
            and (a.dtype, a.shape, bounds[a.name]) == (b.dtype, b.shape, bounds[b.name])
        ]
        if twins and self.chance(0.5):
            self.line("{0}, {1} = {1}, {0}".format(*(t.name for t in self.pick(twins))))
        if tail:
            self.line(tail)
        if self.lines[-1].endswith(head):
            self.line("pass")
        self.leave(saved)
        self.pool = [replace(v, bound=bounds.get(v.name, v.bound)) for v in self.pool]

    def _loop(self, depth):
        i, (text, most, _) = self.fresh("i"), self.trips()
        self.loop_body(
            depth, self.carried(), f"for {i} in tkc.range({text}{self.stages()}):", index=(i, most)
        )

    def _repeat(self, depth):
        j, n = self.fresh("j"), self.pick(self.numbers)
        if self.numbers[n] > 5:
            return
        carried = self.carried()
        self.line(f"{j} = 0")
        self.loop_body(depth, carried, f"while {j} < {n}:", f"{j} = {j} + 1", (j, 5))

    def _branch(self, depth):
        scalars = [v for v in self.pool if not v.shape]
        condition = (
            f"{self.pick(scalars).name} > {self.random.randint(0, 3)}"
            if scalars and self.chance(0.4)
            else f"{self.index()} {self.pick(COMPARE)} {self.pick(self.indices)}"
        )
        if condition.startswith(tuple("v" + c for c in "0123456789")) and any(
            v.dtype == "bool_" and condition.startswith(v.name + " ") for v in scalars
        ):
            condition = condition.split()[0]
        found = [v for v in self.pool if v.name in self.mutable and v.dtype != "bool_"]
        ends: dict[str, int] = {}
        before = list(self.pool)
        for head in (f"if {condition}:", "else:")[: 2 if self.chance(0.6) else 1]:
            self.line(head)
            self.pool = list(before)
            saved = self.enter()
            for _ in range(self.random.randint(0, 2)):
                self.step(depth - 1)
            for t in self.random.sample(found, min(len(found), self.random.randint(0, 2))):
                self.rebind(
                    next(v for v in self.pool if v.name == t.name), 8 if WHOLE[t.dtype] >= 16 else 2
                )
            self.line("pass")
            self.leave(saved)
            for v in self.pool:
                ends[v.name] = max(ends.get(v.name, 0), v.bound)
        self.pool = [replace(v, bound=max(v.bound, ends.get(v.name, 0))) for v in before]

    def _accumulate(self, depth):
        """The loop that pipelines are for: loads, a dot, an accumulator that nothing else reads."""
        m, n, k = (self.pick(self.sizes) for _ in range(3))
        if max(m * n, m * k, n * k) > 4096:
            return
        i, (text, most, trips) = self.fresh("k"), self.trips()
        acc = self.let(f"tkc.zeros(({m}, {n}))", "float32", (m, n), 0)
        number = self.chance(0.15)
        if number:
            acc = self.let(f"tkc.zeros(({m}, {n}), tkc.int32)", "int32", (m, n), 0, acc.name)
        self.line(f"for {i} in tkc.range({text}{self.stages()}):")
        saved = self.enter()
        self.pool = [v for v in self.pool if v.name != acc.name]
        self.mutable, self.indices[i] = set(), (0, most)
        for _ in range(self.pick((0, 0, 0, 1, 2))):
            self.step(0)
        dtype = (
            "int8"
            if number
            else self.pick(("bfloat16", "bfloat16", "float16", "float32", "float8_e4m3"))
        )
        a, b = self.input(2, dtype), self.input(2, dtype)
        x = self.let(
            f"tkc.load({a.name}, ({self.pick(('p * 16', '0', self.index()))}, {i}), ({m}, {k}))",
            a.dtype,
            (m, k),
            a.bound,
        )
        y = (
            self.let(
                f"tkc.load({b.name}, ({i}, {self.index()}), ({k}, {n}))", b.dtype, (k, n), b.bound
            )
            if self.chance(0.7)
            else None
        )
        if y is None:
            z = self.let(
                f"tkc.load({b.name}, ({self.index()}, {i}), ({n}, {k}))", b.dtype, (n, k), b.bound
            )
        x, y = (
            self.to(x, dtype),
            self.to(y or self.let(f"{z.name}.T", z.dtype, (k, n), z.bound), dtype),
        )
        if self.chance(0.25):
            x = self.let(
                (
                    f"{x.name} * {y.name}[0, 0]"
                    if not number and dtype != "float8_e4m3"
                    else f"-{x.name}"
                ),
                dtype,
                (m, k),
                x.bound * 4,
            )
        self.line(
            f"{acc.name} = tkc.dot({x.name}, {y.name}, {acc.name})"
            if self.chance(0.8)
            else f"{acc.name} = {acc.name} + tkc.dot({x.name}, {y.name})"
        )
        self.leave(saved)
        self.pool = [
            replace(v, bound=64 * k * max(trips, 1)) if v.name == acc.name else v for v in self.pool
        ]

    # ----------------------------------------------------------------------------------------------
    def _store(self, depth):
        if len(self.arrays) < 14:
            self.store(self.pick(self.pool) if self.pool else None)

    def _private(self, depth):
        """Store, and load what may have been stored, in an array of the program's own."""
        own = [a for a in self.arrays if a.name[0] == "w"]
        if not own or self.chance(0.3) and len(self.arrays) < 12:
            self.own(
                "w",
                self.pick(("float32", "float32", "int32", "bfloat16", "float16")),
                tuple(n + self.pick((0, 1, 5)) for n in self.shape(2)),
            )
            own = [a for a in self.arrays if a.name[0] == "w"]
        a = self.pick(own)
        shape = (
            tuple(max(1, min(n, 64) - self.pick((0, 0, 1, 3))) for n in a.shape[1:])
            if self.chance(0.6)
            else self.shape(2)
        )
        if prod(shape) > 4096:
            return
        for _ in range(self.random.randint(1, 2)):
            t = self.small(self.tile(shape, a.dtype), 8)
            if self.chance(0.3):
                pointers, inside = self._lines(f"{a.name}p", 2, shape)
                self.line(f"tkc.store({pointers}, {t.name}, mask={inside})")
            else:
                self.line(f"tkc.store({a.name}p, ({self.index()}, {self.index()}), {t.name})")
        if self.chance(0.8):
            self.let(
                f"tkc.load({a.name}p, ({self.index()}, {self.index()}), {shape})", a.dtype, shape, 8
            )

    def _atomic(self, depth):
        """Sums that all programs share (whole numbers: any order gives the same), or extremes in an
        array of one's own.
        """
        dtype = self.pick(("float32", "int32"))
        t = self.small(self.tile(self.shape(self.pick((1, 2))), dtype), 8)
        if len(self.arrays) > 12:
            return
        name = f"s{len(self.arrays)}"
        self.arrays.append(
            ArraySpec(name, dtype, tuple(n + self.pick((0, -1, 2)) or 1 for n in t.shape))
        )
        offsets = ", ".join(self.index() for _ in t.shape)
        mask = self.mask(t.shape)
        self.line(
            f"tkc.atomic_{self.pick(('add', 'add', 'max', 'min'))}({name}, ({offsets},),"
            f" {t.name}{f', mask={mask}' if mask else ''})"
        )


def kernel(seed: int, policy: str | None = None, steps: int | None = None) -> Kernel:
    """The kernel of a seed."""
    w = Author(seed, policy, steps)
    if w.policy == "roles":
        w.stream()
    for _ in range(w.steps // (4 if w.policy == "roles" else 1)):
        w.step()
    results = [v for v in w.pool if v.shape or w.chance(0.5)][-4:]
    for t in w.random.sample(results, min(len(results), 3)):
        w.store(t)
    if not results:
        w.store()
    order = list(w.arrays)
    head = [
        "    p0 = tkc.program_id(0)",
        "    p = p0"
        + (
            " + tkc.num_programs(0) * (tkc.program_id(1) + tkc.num_programs(1) * tkc.program_id(2))"
            if len(w.grid) > 1
            else ""
        ),
    ]
    arguments = ", ".join([a.name for a in order] + list(w.numbers))
    source = (
        "\n".join(
            [
                "import tkc",
                "",
                "",
                f"def kernel({arguments}):",
                *head,
                *("    " + text for text in w.locals),
                *w.lines,
            ]
        )
        + "\n"
    )
    return Kernel(
        seed,
        w.policy,
        source,
        order,
        w.numbers,
        w.grid,
        w.pick((None, None, 4, 8) if w.policy == "roles" else (None, 1, 2, 4, 4, 8)),
        w.pick((1, 2, 2, 3, 4, 5)),
    )


__all__ = ["POLICIES", "Author", "kernel"]
