"""Writes statements of a random kernel: names in scope, tiles of a shape, loads and stores."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, TypeVar

from tkc.fuzz.grammar import (
    FLOATS,
    INTEGERS,
    NESTING,
    POLICIES,
    RARE_FLOATS,
    WEIGHTS,
    WHOLE,
    ArraySpec,
    Tile,
    is_float,
)

T = TypeVar("T")
# What is in scope: tiles, names that may be bound again, and indices with their bounds.
Scope = tuple[list[Tile], set[str], dict[str, tuple[int, int]]]
LETTERS_OF_PARAMETERS = "anostwx"
MOST_ELEMENTS = 4096  # of a tile
SHARE_APART = 0.2  # of kernels that have one of the forms below
UNEVEN = 0.6  # of loads by pointers, indices that are no range
MOST_INPUTS = 6  # arrays that are only read, before one of any type is taken again


def along(axis: int, rank: int, text: str = ":", other: str = "None") -> str:
    """An index of so many axes: `text` at one of them, `other` elsewhere."""
    return ", ".join(text if i == axis else other for i in range(rank))


class SourceWriter:
    """Writes statements; `pool` are the tiles in scope, `mutable` the names that may be bound again
    here.
    """

    def __init__(self, seed: int, policy: str | None = None, steps: int | None = None) -> None:
        self.random, self.seed = random.Random(seed), seed
        # what was added later draws from numbers of its own: kernels of a seed stay what they were
        self.apart = random.Random(f"apart {seed}")
        self.is_uneven, self.begins = (self.apart.random() < SHARE_APART for _ in range(2))
        self.policy = policy or self.random.choice(list(POLICIES))
        changes, self.sizes = POLICIES[self.policy]
        self.weights = WEIGHTS | changes
        self.lines: list[str] = []
        self.indent, self.count = 1, 0
        self.pool: list[Tile] = []
        self.mutable: set[str] = set()
        self.locals: list[str] = []
        self.arrays: list[ArraySpec] = []
        # what stands above the kernel, and values of its compile-time parameters
        self.definitions: list[str] = []
        self.constants: dict[str, str] = {}
        self.extra_numbers: dict[str, int] = {}  # that only some productions read
        self.forced: tuple[tuple[str, Any], ...] = ()  # options of the launch
        self.taken = ""  # the counter from which programs take their number, where there is one
        self.strides: dict[str, int] = {}  # likewise, of arrays whose rows are far apart
        self.numbers = {f"n{i}": self.random.choice((0, 1, 2, 3, 4, 5, 16)) for i in range(2)}
        self.grid: tuple[int, ...] = self.random.choice(((1,), (1,), (2,), (3, 2), (1, 1, 2)))
        self.indices = {
            "p": (0, self.programs - 1),
            "p0": (0, self.grid[0] - 1),
            **{n: (v, v) for n, v in self.numbers.items()},
        }
        self.steps = steps or self.random.randint(4, 14)

    @property
    def programs(self) -> int:
        """Of the launch."""
        return prod(self.grid)

    def step(self, depth: int = 2) -> None:
        """One statement, or a block of them, nested at most so deep."""
        names = [n for n in self.weights if depth or n not in NESTING]
        (name,) = self.random.choices(names, [self.weights[n] for n in names])
        getattr(self, f"_{name}")(depth)

    # ----------------------------------------------------------------------------------------------
    def pick(self, things: Iterable[T]) -> T:
        """One of some things, each as likely."""
        return self.random.choice(list(things))

    def chance(self, p: float) -> bool:
        """True with a probability."""
        return self.random.random() < p

    def fresh(self, letter: str = "v") -> str:
        """A name that nothing has. (Arrays and numbers that are parameters are counted apart.)"""
        self.count += 1
        return f"{letter * (1 + (letter in LETTERS_OF_PARAMETERS))}{self.count}"

    def enter(self) -> Scope:
        """Begins a block of statements; returns what `leave` needs at its end."""
        self.indent += 1
        return list(self.pool), set(self.mutable), dict(self.indices)

    def leave(self, saved: Scope) -> None:
        """Ends a block: the names from before it, with what is now known of them."""
        self.indent -= 1
        pool, self.mutable, self.indices = saved
        now = {v.name: v for v in self.pool}
        self.pool = [now.get(v.name, v) for v in pool]

    def line(self, *texts: str) -> None:
        """Lines of source at the block's indentation."""
        self.lines += ["    " * self.indent + text for text in texts]

    def let(
        self, text: str, dtype: str, shape: Sequence[int], bound: int, name: str | None = None
    ) -> Tile:
        """Binds a name to an expression. Of floats the caller keeps the bound within `WHOLE`."""
        name = name or self.fresh()
        self.line(f"{name} = {text}")
        tile = Tile(name, dtype, tuple(shape), min(bound, WHOLE[dtype]))
        self.pool = [*(v for v in self.pool if v.name != name), tile]
        self.mutable.add(name)
        return tile

    # ----------------------------------------------------------------------------------------------
    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Extents of the policy."""
        while True:
            axes = rank or self.pick((1, 1, 2, 2, 2, 2, 3))
            extents = tuple(self.pick(self.sizes) for _ in range(axes))
            if prod(extents) <= MOST_ELEMENTS:
                return extents

    def dtype(self) -> str:
        """An element type."""
        common = ("float32",) * 4 + FLOATS * 2 + ("int32",) * 3
        return self.pick(common + INTEGERS + RARE_FLOATS)

    def small(self, t: Tile, most: int) -> Tile:
        """The tile with a bound of at most `most`."""
        if t.bound <= most or t.dtype == "bool_":
            return t
        if self.chance(0.6) or t.dtype.startswith("u"):
            fits = most + 1 <= WHOLE[t.dtype] // (1 if is_float(t.dtype) else 2)
            text = f"{t.name} % {most + 1}" if fits else f"tkc.minimum({t.name}, {most})"
        else:
            text = f"tkc.minimum(tkc.maximum({t.name}, {-most}), {most})"
        return self.let(text, t.dtype, t.shape, most)

    def tile(
        self,
        shape: tuple[int, ...] | None = None,
        dtype: str | None = None,
        most: int | None = None,
    ) -> Tile:
        """A tile of this shape and dtype: one in scope, one cast or broadcast, or a new one."""
        found = [
            v for v in self.pool if shape in (None, v.shape) and v.shape and v.dtype != "bool_"
        ]
        same = [v for v in found if dtype in (None, v.dtype)]
        if same and self.chance(0.8):
            t = self.pick(same)
        elif found and self.chance(0.7):
            t = self.to(self.pick(found), dtype or self.dtype())
        else:
            t = self.new(shape or self.shape(), dtype)
        return t if most is None else self.small(t, most)

    def to(self, t: Tile, dtype: str) -> Tile:
        """The tile in another type, its numbers made small enough first."""
        if t.dtype == dtype:
            return t
        if t.bound > WHOLE[dtype] // 2:
            t = self.small(t, min(WHOLE[dtype] // 2, 100))
        wraps = dtype.startswith("u") and not t.dtype.startswith("u") and t.dtype != "bool_"
        bound = WHOLE[dtype] if wraps else t.bound
        return self.let(f"{t.name}.to(tkc.{dtype})", dtype, t.shape, bound)

    def new(self, shape: tuple[int, ...], dtype: str | None = None) -> Tile:
        """A tile that depends on no other: loaded, a range of numbers, or one number."""
        dtype = dtype or self.dtype()
        r = self.random.random()
        if r < 0.6:
            return self.to(self.block(shape, dtype), dtype)
        if r < 0.8 and len(shape) == 1:
            return self._range(shape[0], dtype)
        value = self.random.randint(0 if dtype.startswith("u") else -4, 4)
        return self.let(f"tkc.full({list(shape)}, {value}, tkc.{dtype})", dtype, shape, abs(value))

    def _range(self, extent: int, dtype: str) -> Tile:
        near_a_wrap = self.pick((0, 0, 120, 250, 32760))  # of short types
        start = self.random.randint(-3, 3) + near_a_wrap
        text = f"tkc.arange({start}, {start + extent})"
        t = self.let(text, "int32", (extent,), extent + abs(start))
        if dtype.endswith(("int8", "int16")) and self.chance(0.5):
            return self.let(f"{t.name}.to(tkc.{dtype})", dtype, t.shape, WHOLE[dtype])
        return self.to(t, dtype)

    # ----------------------------------------------------------------------------------------------
    def index(self) -> str:
        """A whole number as an expression, never far from zero."""
        name = self.pick(self.indices)
        _, high = self.indices[name]
        match self.random.randrange(7):
            case 0:
                return "0"
            case 1:
                return str(self.random.randint(-3, 20))
            case 2 if high * 32 < 4096:
                return f"{name} * {self.pick(self.sizes)}"
            case 3:
                return f"{name} - {self.random.randint(0, 5)}"
            case 4 if high > 20:
                return f"{name} // 2"
            case 5 if high * 16 < 4096:
                divisor = self.pick((3, 4, 8, 16))
                return f"tkc.multiple_of({name} * {divisor}, {divisor})"
            case _:
                return name

    def input(self, rank: int, dtype: str) -> ArraySpec:
        """An array that is only read, of this rank; mostly of this element type."""
        found = [a for a in self.arrays if a.name[0] == "a" and len(a.shape) == rank]
        same = [a for a in found if a.dtype == dtype]
        if same and self.chance(0.7):
            return self.pick(same)
        if found and len(self.arrays) > MOST_INPUTS:
            return self.pick(found)
        others = (1, 24, 40, 72, 0 if self.chance(0.15) else 31)
        shape = tuple(self.pick((*self.sizes, *others)) for _ in range(rank))
        order = self.pick("CCCCCTPBF" if rank > 1 else "CCCP")
        a = ArraySpec(f"a{len(self.arrays)}", dtype, shape, order, 4 if WHOLE[dtype] >= 16 else 2)
        self.arrays.append(a)
        return a

    def mask(self, shape: Sequence[int]) -> str | None:
        """An expression of truth values that broadcasts to a shape, or none."""
        if self.chance(0.65):
            return None
        found = [v for v in self.pool if v.dtype == "bool_" and v.shape == tuple(shape)]
        if found and self.chance(0.6):
            return self.pick(found).name
        numbers = [v for v in self.pool if v.shape == tuple(shape) and v.dtype != "bool_"]
        if numbers and self.chance(0.5):
            sign = self.pick((">", "<", "!=", ">="))
            return f"{self.pick(numbers).name} {sign} {self.random.randint(0, 3)}"
        axis = self.random.randrange(len(shape))
        end = self.pick((self.index(), self.random.randint(0, shape[axis])))
        line = f"(tkc.arange({shape[axis]}) < {end})"
        return line if len(shape) == 1 else f"{line}[{along(axis, len(shape))}]"

    def _other(self, dtype: str) -> tuple[str, int]:
        """What lies outside an array, as an argument, and its bound."""
        value = self.random.randint(0 if dtype.startswith("u") else -2, 2)
        return (f", other={value}", abs(value)) if self.chance(0.4) else ("", 0)

    def block(self, shape: Sequence[int], dtype: str) -> Tile:
        """A load in one of its forms."""
        if len(shape) <= 2 and self.chance(0.25):
            return self.addresses(shape, dtype)
        drop = self.chance(0.2) and len(shape) < 3
        a = self.input(len(shape) + drop, dtype)
        extents = [str(n) for n in shape]
        if drop:
            extents.insert(self.random.randrange(len(a.shape)), "None")
        offsets = [self.index() for _ in a.shape]
        mask, (other, bound) = self.mask(shape), self._other(a.dtype)
        masked = f", mask={mask}" if mask else ""
        place = f"({', '.join(offsets)},), ({', '.join(extents)},)"
        text = f"tkc.load({a.name}, {place}{masked}{other})"
        return self.let(text, a.dtype, shape, max(a.bound, bound))

    def pointers(self, array: str, shape: Sequence[int], is_read: bool = False) -> tuple[str, str]:
        """Addresses of a block of an array, and which of them exist. is_read: some may be alike."""
        rank, names = len(shape), []
        for n in shape:
            names.append(self.fresh("r"))
            start, numbers = self.index(), f"tkc.arange({n})"
            places = self._places(start, n) if is_read else f"{start} + {numbers}"
            self.line(f"{names[-1]} = {places}")
        spread = [f"{r}[{along(i, rank)}]" if rank > 1 else r for i, r in enumerate(names)]
        steps = [f"{r} * {array}.strides[{i}]" for i, r in enumerate(spread)]
        inside = [f"({r} >= 0) & ({r} < {array}.shape[{i}])" for i, r in enumerate(spread)]
        return " + ".join([f"{array}.ptr", *steps]), " & ".join(inside)

    def _places(self, start: str, n: int) -> str:
        """Indices from one on; of a few loads quotients, remainders, or what only looks alike."""
        numbers, count = f"tkc.arange({n})", self.apart.choice((2, 3, 4, 8))
        if not self.is_uneven or self.apart.random() > UNEVEN:
            return f"{start} + {numbers}"
        quotients = f"{numbers} // {count}"
        return self.apart.choice(
            (
                f"{start} + {quotients}",
                f"({start} + {numbers}) // {count}",
                f"({start} + {numbers}) % {n + count - 1}",
                f"{start} + tkc.arange(1) + {numbers}",
                f"{start} + {quotients} * 3 - {quotients} * 3 + {numbers}",
                f"({numbers}.to(tkc.int64) + {1 << 32} + {start}).to(tkc.int32)",
            )
        )

    def addresses(self, shape: Sequence[int], dtype: str) -> Tile:
        """A load by pointers."""
        a, (other, bound) = self.input(len(shape), dtype), self._other(dtype)
        if a.dtype.startswith("u"):
            other, bound = "", 0
        pointers, inside = self.pointers(a.name, shape, True)
        text = f"tkc.load({pointers}, mask={inside}{other})"
        return self.let(text, a.dtype, shape, max(a.bound, bound))

    # ----------------------------------------------------------------------------------------------
    def own(self, kind: str, dtype: str, shape: Sequence[int], order: str = "C") -> ArraySpec:
        """An array of which each program has a part, of that shape and under the array's name with
        a p; kind o: only written, w: also read (numbers up to 8).
        """
        a = ArraySpec(f"{kind}{len(self.arrays)}", dtype, (self.programs, *shape), order, 4)
        self.add_own(a)
        return a

    def add_own(self, a: ArraySpec) -> None:
        """Declares such an array."""
        self.arrays.append(a)
        self.locals.append(f"{a.name}p = {a.name}[p]")

    def store(self, t: Tile | None = None) -> None:
        """Stores a tile to an array of its own."""
        t = t or self.tile()
        shape = t.shape or (1,)
        extents = tuple(max(1, n + self.pick((0, 0, 0, 3, -1))) for n in shape)
        order = "T" if len(shape) > 1 and self.chance(0.15) else "C"
        name = f"{self.own('o', t.dtype, extents, order).name}p"
        text = t.name if t.shape else f"tkc.full((1,), {t.name})"
        mask = self.mask(shape)
        if len(shape) <= 2 and self.chance(0.2):
            pointers, inside = self.pointers(name, shape)
            both = f"{inside} & ({mask})" if mask else inside
            self.line(f"tkc.store({pointers}, {text}, mask={both})")
            return
        offsets = [self.index() if self.chance(0.3) else "0" for _ in shape]
        masked = f", mask={mask}" if mask else ""
        self.line(f"tkc.store({name}, ({', '.join(offsets)},), {text}{masked})")
