"""Whole kernels of one kind: dots in sequence, and rows that are read and written at several
places. What a plan makes of either depends on all of a kernel, so nothing else stands beside them.

All draw from a generator of their own: kernels of other seeds stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tkc.fuzz.grammar import ArraySpec
from tkc.fuzz.limit_productions import LimitWriter

Options = tuple[tuple[str, Any], ...]

FEW = "tkc.minimum(tkc.maximum({0}, -3), 3)"  # numbers to multiply with, or to add again
# M, N and K of dots; most are small, since threads are simulated
EXTENTS = (
    *((128, 64, 64), (128, 64, 64), (64, 64, 64), (128, 128, 64), (64, 128, 128)),
    *((128, 128, 128), (128, 256, 128)),
)
MOST_CHAINED = 128  # columns of a result of which a left operand is made
AGAIN = 0.4  # of kernels that begin with a loop that they have twice
MOST_DEPTH = 2  # loops and branches in one another
# options of the launch of dots: stages that fit, and roles; None leaves a choice to the plan
STAGES: tuple[Options, ...] = (
    *((("num_stages", None),), (("num_stages", None), ("num_warps", None))),
    *((("num_stages", 2),), (("num_stages", 2),), (("num_stages", 3),)),
)
ROLES: tuple[Options, ...] = (
    *((), (), ()),
    *((("roles", name),) for name in ("pingpong", "co_resident", "cooperative")),
)
CLUSTERS: tuple[Options, ...] = ((), (("cluster", (2, 1)),), (("cluster", (2, 1)),))
ROW = 4096  # elements of a row that blocks of a cluster may share
# options of the launch of rows, beside those that let plans fit
SPLITS: tuple[Options, ...] = (
    *((), (("num_ctas", 2),), (("num_ctas", 2),), (("num_ctas", 4),), (("row_parts", 2),)),
    *((("row_parts", 4), ("num_ctas", 2)), (("num_ctas", 2), ("prefetch", True))),
    *((("num_ctas", 2), ("persistent", True)), (("persistent", True),), (("persistent", True),)),
    *((("prefetch", True),),),
)
KEPT = "tkc.minimum(tkc.maximum({0}, -9), 9)"  # elements of rows, whose sums are exact
SMALL = 16  # elements of a small tile


@dataclass(frozen=True)
class Dots:
    """What dots in sequence share: where draws come from, M, N and K, the operands' type, names of
    arrays and numbers, the program's first row, and names of the sums.

    left [rows, 5 K], right [5 K, N] and another, one to transpose, first [rows, max(N, K)], out
    [rows, 3 N], bias [5 K]; begin: a number of the launch, loaded: one of memory, multiples of K;
    bounds: of loops, which mostly share them; held: a block of first.
    """

    random: Random
    shape: tuple[int, int, int]
    dtype: str
    left: str
    rights: tuple[str, str]
    turned: str
    first: str
    out: str
    bias: str
    begin: str
    loaded: str
    bounds: tuple[str, ...]
    held: str
    row: str
    out_row: str
    sums: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """What statements of rows share: where draws come from, names of the arrays of rows and of the
    one of small tiles, how many rows an array has for each program, the name of the row in hand and
    of a number of the launch.
    """

    random: Random
    arrays: tuple[str, ...]
    small: str
    each: int
    value: str
    number: str


class SequenceWriter(LimitWriter):
    """Writes kernels that hold one production alone."""

    def _inside(self, head: str, write: Callable[[], None]) -> None:
        """A block of statements below a line."""
        self.line(head)
        self.indent += 1
        write()
        self.indent -= 1

    def _array(
        self, kind: str, dtype: str, shape: tuple[int, ...], bound: int, **given: Any
    ) -> str:
        """The name of a new array."""
        name = f"{kind}{len(self.arrays)}"
        self.arrays.append(ArraySpec(name, dtype, shape, bound=bound, **given))
        return name

    def _launch(self, policy: str, grid: tuple[int, ...], forced: Options) -> None:
        """How the kernel is planned and launched."""
        self.policy, self.grid, self.forced = policy, grid, forced

    # ----------------------------------------------------------------------------------------------
    def dots_of_taken_work(self) -> None:
        """Dots in sequence of rows whose number a program takes from a counter."""
        self.taken = self._array("number", "int32", (1,), 0)
        self.dots_in_sequence()

    def dots_alike(self) -> None:
        """Dots in sequence that programs compute equally often where they look up how often: blocks
        of a cluster may share copies there.
        """
        self.dots_in_sequence("0", self.limits("dots alike").choice(CLUSTERS))

    def dots_in_sequence(self, length: str = "p0", options: Options = ()) -> None:
        """Loops of dots, single dots before, between and behind them, in branches, loops of loops
        and while loops, which share few arrays and one or two sums. length: which of the loaded
        lengths a program has.
        """
        r = self.limits("dots in sequence")
        grid = (r.choice((1, 2, 3)),)
        self._launch("roles", grid, r.choice(STAGES) + r.choice(ROLES) + options)
        d = self._begin_dots(r, length)
        begun = len(self.lines)
        if r.random() < AGAIN:
            self._loop_again(d)
        self._dot_steps(d, r.choice((1, 2, 3, 4)), 0, "0")
        if not any("tkc.dot(" in text for text in self.lines[begun:]):
            self._next_dot(d, "0")
        m, n, _ = d.shape
        out, row = self._rows_of_programs(r, "float32", m, len(d.sums) * n, d.row)
        for place, name in enumerate(d.sums):
            self.line(f"tkc.store({out}, ({row}, {place * n}), {name})")

    def _begin_dots(self, r: Random, length: str) -> Dots:
        """Arrays, numbers and sums; some of the last rows lie outside."""
        m, n, k = shape = r.choice(EXTENTS)
        dtype, rows = r.choice(("float16", "bfloat16")), self.programs * m - r.choice((0, 9))
        left = self._array("a", dtype, (rows, 5 * k), 1)
        rights = tuple(self._array("a", dtype, (5 * k, n), 1) for _ in range(2))
        turned = r.choice((rights[0], self._array("a", dtype, (n, 5 * k), 1)))
        first = self._array("a", dtype, (rows, max(n, k)), 1)
        bias = self._array("a", "float32", (5 * k,), 4)
        lengths = self._array("a", "int32", (self.programs,), 3)
        end, begin = self._argument(r.randint(0, 4) * k), self._argument(r.choice((0, k)))
        row, loaded, held = self.fresh("r"), self.fresh("e"), self.fresh("q")
        self.line(f"{row} = p0 * {m}", f"{loaded} = {lengths}[{length}] * {k}")
        self.line(f"{held} = tkc.load({first}, ({row}, 0), ({m}, {k}))")
        out, out_row = self._rows_of_programs(r, dtype, m, 3 * n, row)
        sums = tuple(self.fresh("t") for _ in range(r.choice((1, 1, 2))))
        block = f"tkc.load({first}, ({row}, 0), ({m}, {n})).to(tkc.float32)"
        zeros = f"tkc.zeros(({m}, {n}))"
        for name in sums:
            self.line(f"{name} = {r.choice((zeros, zeros, f'tkc.full(({m}, {n}), 1.0)', block))}")
        bounds = tuple(r.choices(self._bounds(begin, end, loaded, k), k=2))
        return Dots(
            *(r, shape, dtype, left, (rights[0], rights[1]), turned, first, out, bias),
            *(begin, loaded, bounds, held, row, out_row, sums),
        )

    @staticmethod
    def _bounds(begin: str, end: str, loaded: str, k: int) -> tuple[str, ...]:
        """Where loops with a step of k begin and end."""
        return (
            *(f"0, {end}, {k}",) * 3,
            *(f"{begin}, {end}, {k}", f"0, {end} + {k}, {k}", f"0, {loaded}, {k}"),
            *(f"0, p0 % 3 * {k}, {k}", f"p0 * {k}, {end}, {k}", f"{loaded}, {end}, {k}"),
            *(f"{end} - {k}, -1, -{k}", f"0, {2 * k}, {k}", f"{k}, {k}, {k}"),
        )

    def _rows_of_programs(
        self, r: Random, dtype: str, m: int, columns: int, row: str
    ) -> tuple[str, str]:
        """An array of which each program has m rows, and where they begin."""
        if r.random() < 0.25:
            return f"{self.own('w', dtype, (m, columns)).name}p", "0"
        rows = self.programs * m - r.choice((0, 9))
        return self._array("w", dtype, (rows, columns), 4), row

    def _dot_steps(self, d: Dots, count: int, depth: int, place: str) -> None:
        """Statements at a depth; place: where blocks of the columns of K begin."""
        for _ in range(count):
            kind, deeper = d.random.random(), depth < MOST_DEPTH
            if kind < 0.38 and deeper:
                self._loop_of_steps(d, depth)
            elif kind < 0.48 and deeper:
                condition = d.random.choice(
                    (f"p0 % 2 == {d.begin}", f"{d.loaded} > {d.shape[2]}", "p0 < 1")
                )
                self._steps_inside(d, f"if {condition}:", depth, place)
            elif kind < 0.52 and not depth:
                t = self.fresh("k")
                self.line(f"{t} = {d.begin}")
                step = f"{t} = {t} + {d.shape[2]}"
                self._steps_inside(d, f"while {t} < {d.loaded}:", depth, t, step)
            elif kind < 0.82:
                self._next_dot(d, place)
            else:
                self._beside_dots(d, place)

    def _steps_inside(
        self, d: Dots, head: str, depth: int, place: str, tail: str | None = None
    ) -> None:
        def write() -> None:
            self._dot_steps(d, d.random.choice((1, 1, 2, 3)), depth + 1, place)
            if tail:
                self.line(tail)

        self._inside(head, write)

    def _loop_of_steps(self, d: Dots, depth: int) -> None:
        i = self.fresh("k")
        self._steps_inside(d, f"for {i} in tkc.range({d.random.choice(d.bounds)}):", depth, i)

    def _loop_again(self, d: Dots) -> None:
        """A loop, dots, and the same loop."""
        begin = len(self.lines)
        self._loop_of_steps(d, 0)
        loop = self.lines[begin:]
        for _ in range(d.random.choice((1, 1, 2))):
            self._next_dot(d, "0")
        self.lines += loop

    def _left(self, d: Dots, place: str, columns: int) -> str:
        m, _, k = d.shape
        loaded = f"tkc.load({d.left}, ({d.row}, {place}), ({m}, {columns}))"
        same = f"tkc.load({d.first}, ({d.row}, 0), ({m}, {columns}))"
        held = d.held if columns == k else same
        return d.random.choice((loaded, loaded, loaded, same, held, held))

    def _right(self, d: Dots, place: str, rows: int) -> str:
        n, (one, other) = d.shape[1], d.rights
        loaded = f"tkc.load({one}, ({place}, 0), ({rows}, {n}))"
        another = f"tkc.load({other}, ({place}, 0), ({rows}, {n}))"
        turned = f"tkc.load({d.turned}, (0, {place}), ({n}, {rows})).T"
        return d.random.choice((loaded, loaded, loaded, another, turned))

    def _next_dot(self, d: Dots, place: str) -> None:
        """A dot that a sum takes, or that is made of it."""
        name, (_, n, k), kind = d.random.choice(d.sums), d.shape, d.random.random()
        depth = d.random.choice((k, k, k, k, k, k // 2))
        left, right = self._left(d, place, depth), self._right(d, place, depth)
        if kind < 0.7 or n > MOST_CHAINED:
            self.line(f"{name} = tkc.dot({left}, {right}, {name})")
        elif kind < 0.8:
            self.line(f"{name} += tkc.dot({left}, {right}) * 0.5")
        elif kind < 0.9:
            s = self.fresh("s")
            few = f"{FEW.format(s)}.to(tkc.{d.dtype})"
            self.line(f"{s} = tkc.dot({left}, {right})")
            self.line(f"{name} = tkc.dot({few}, {self._right(d, place, n)}, {name})")
        else:
            few = f"{FEW.format(name)}.to(tkc.{d.dtype})"
            self.line(f"{name} = tkc.dot({few}, {self._right(d, place, n)})")

    def _beside_dots(self, d: Dots, place: str) -> None:
        """What else happens to a sum."""
        r, name, (m, n, k) = d.random, d.random.choice(d.sums), d.shape
        kind, stored = r.random(), f"{name}.to(tkc.{d.dtype})"
        if kind < 0.3:
            block = f"tkc.load({d.first}, ({d.row}, 0), ({m}, {n}))"
            self.line(f"{name} += {block}.to(tkc.float32)")
        elif kind < 0.45 and n == k:
            self.line(f"{name} += {d.held}.to(tkc.float32)")
        elif kind < 0.6:
            self.line(f"{name} += tkc.load({d.bias}, ({place},), ({n},))[None, :]")
        elif kind < 0.7 and len(d.sums) > 1:
            one, other = d.sums
            self.line(f"{one}, {other} = {other}, {one}")
        elif kind < 0.85:
            self.line(f"tkc.store({d.out}, ({d.out_row}, {r.choice((0, 8, n))}), {stored})")
        elif kind < 0.93:
            again = f"tkc.load({d.out}, ({d.out_row}, {r.choice((0, 8))}), ({m}, {n}))"
            self.line(f"tkc.store({d.out}, ({d.out_row}, {place}), {stored})")
            self.line(f"{name} += {FEW.format(again)}.to(tkc.float32)")
        else:
            self.line(f"{name} = {r.choice((f'-{name}', FEW.format(name)))}")

    # ----------------------------------------------------------------------------------------------
    def rows_at_places(self) -> None:
        """Rows that are loaded, reduced and stored at the same columns or other ones, in loops or
        not, beside small tiles of them; some of the arrays are one in memory.
        """
        r = self.limits("rows at places")
        fitting = ("num_warps", r.choice((4, 4, 8))), ("num_stages", r.choice((2, 3)))
        self._launch("large", (r.choice((1, 2, 2)),), fitting + r.choice(SPLITS))
        dtype, each = r.choice(("float32", "float32", "float32", "bfloat16")), r.choice((1, 1, 2))
        shape = (self.programs * each, ROW)
        arrays = [self._array("w", dtype, shape, 2) for _ in range(2)]
        begin = r.choice((None, None, 0, 8))
        if begin is None:
            arrays.append(self._array("w", dtype, shape, 2))
        else:
            window, part = ((0, shape[0]), (begin, ROW)), (shape[0], ROW - begin)
            same = {"order": "view", "base": arrays[0], "window": window}
            arrays.append(self._array("w", dtype, part, 2, **same))
        small = self._array("w", dtype, (self.programs, SMALL), 2)
        rows = Rows(
            *(r, tuple(arrays), small, each, self.fresh("v"), self._argument(r.randint(0, 3)))
        )
        self.line(f"{rows.value} = {self._row(arrays[0], 'p0', '0')}")
        for _ in range(r.choice((3, 4, 5, 6))):
            self._next_row(rows, None)
        total = f"{rows.value} + {FEW.format(f'tkc.sum({rows.value}, axis=1)[:, None]')}"
        self._store_row(arrays[2], "p0", "0", KEPT.format(total), dtype)

    @staticmethod
    def _row(array: str, row: str, column: str, extent: int = ROW) -> str:
        return f"tkc.load({array}, ({row}, {column}), (1, {extent})).to(tkc.float32)"

    def _store_row(self, array: str, row: str, column: str, text: str, dtype: str) -> None:
        self.line(f"tkc.store({array}, ({row}, {column}), ({text}).to(tkc.{dtype}))")

    def _next_row(self, rows: Rows, index: str | None) -> None:
        """A statement of rows; index: of the loop round it, None where there is none."""
        r, v, kind = rows.random, rows.value, rows.random.random()
        columns, places = ["0"] * 5 + ["8", "16"], ["p0"] * 5
        if index:
            columns += [f"{index} * 8", f"{index} * {ROW}"]
            places.append(f"p0 + {self.programs} * {index}")
        array, row, column = r.choice(rows.arrays), r.choice(places), r.choice(columns)
        any_array = r.choice((*rows.arrays, rows.small))
        dtype = self.arrays[0].dtype
        if kind < 0.3:
            self.line(f"{v} = {KEPT.format(f'{v} + {self._row(array, row, column)}')}")
        elif kind < 0.5:
            reduced = f"tkc.{r.choice(('sum', 'max', 'min'))}({v}, axis=1)[:, None]"
            self.line(f"{v} = {KEPT.format(f'{v} + {FEW.format(reduced)}')}")
        elif kind < 0.72:
            self._store_row(array, row, column, v, dtype)
        elif kind < 0.8:
            total = f"tkc.sum({self._row(any_array, 'p0', '0', SMALL)}, axis=1)[:, None]"
            self.line(f"{v} = {KEPT.format(f'{v} + {total}')}")
        elif kind < 0.86:
            more = r.choice(("1", f"tkc.sum({v}, axis=1)[:, None]"))
            few = KEPT.format(f"{self._row(rows.small, 'p0', '0', SMALL // 2)} + {more}")
            self._store_row(any_array, "p0", r.choice(("0", "8")), few, dtype)
        elif index is None:
            self._loop_of_rows(rows)
        else:
            self.line(f"{v} = -{v}")

    def _loop_of_rows(self, rows: Rows) -> None:
        i, n = self.fresh("i"), rows.number
        bounds = rows.random.choice((n, n, "2", "0, p0 + 1", f"{n} - 1, -1, -1"))

        def write() -> None:
            for _ in range(rows.random.choice((1, 2, 3))):
                self._next_row(rows, i)

        self._inside(f"for {i} in tkc.range({bounds}):", write)
