"""A seed becomes a kernel: Python source in our language, the arrays and numbers it takes, a grid
and options.

Every kernel means something, and exactly one thing: numbers are whole and bounded so that no order
of operations rounds (`Tile.bound` against `WHOLE`), integers may wrap, offsets never do; blocks may
lie outside their array, addresses may not unless they are masked; a program writes what is its own,
or adds to what all share. So any two ways of running one must agree to the bit. A *policy*, chosen
by the seed, shifts weights and shapes, which reaches rare paths.
"""

from __future__ import annotations

import linecache
import random
from dataclasses import dataclass, field
from math import prod

import ml_dtypes
import numpy as np

NUMPY = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "bool_": np.bool_,
}
# how far whole numbers are exact
WHOLE = {
    "float32": 1 << 24,
    "float64": 1 << 50,
    "float16": 2048,
    "bfloat16": 256,
    "float8_e4m3": 16,
    "float8_e5m2": 8,
    "bool_": 1,
} | {f"{u}int{b}": 1 << (b - 1 + bool(u)) for u in ("", "u") for b in (8, 16, 32, 64)}
FLOATS, SHORT = ("float32", "float16", "bfloat16"), ("float8_e4m3", "float8_e5m2", "float64")
INTEGERS = ("int32", "int8", "int16", "int64", "uint8", "uint32", "uint16")


def is_float(t):
    return t.startswith(("float", "bfloat"))


@dataclass(frozen=True)
class Tile:
    """A tile (or scalar: shape ()) by its name: whole numbers of at most `bound`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bound: int


@dataclass(frozen=True)
class ArraySpec:
    """An array argument. order: C, T (last two axes exchanged), P (rows of a larger array), B
    (every row the same), F (the rows backwards).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    order: str = "C"
    bound: int = 4


@dataclass
class Kernel:
    """What a seed gives. `source` defines `kernel`; `arguments()` makes its arguments afresh,
    always the same.
    """

    seed: int
    policy: str
    source: str
    arrays: list[ArraySpec]
    numbers: dict[str, int]
    grid: tuple[int, ...]
    warps: int | None
    stages: int
    filename: str = field(init=False)

    def __post_init__(self):
        self.filename = f"<kernel {self.seed}>"

    def function(self):
        """The Python function, its source where inspect finds it."""
        linecache.cache[self.filename] = (
            len(self.source),
            None,
            self.source.splitlines(True),
            self.filename,
        )
        names: dict = {}
        exec(compile(self.source, self.filename, "exec"), names)
        return names["kernel"]

    def arguments(self) -> dict:
        values = np.random.default_rng(self.seed)
        return {a.name: _array(a, values) for a in self.arrays} | self.numbers


def _array(a: ArraySpec, values) -> np.ndarray:
    low = 0 if a.dtype.startswith("u") or a.dtype == "bool_" else -a.bound

    def make(shape):
        return values.integers(low, a.bound + 1, shape).astype(NUMPY[a.dtype])

    if a.order == "T":
        return np.swapaxes(make((*a.shape[:-2], a.shape[-1], a.shape[-2])), -1, -2)
    if a.order == "P":
        return make((*a.shape[:-1], a.shape[-1] + 5))[..., 2 : 2 + a.shape[-1]]
    if a.order == "B":
        return np.broadcast_to(make(a.shape[1:]), a.shape)
    if a.order == "F":
        return make(a.shape)[::-1]
    return make(a.shape)


EVEN, ODD = (16, 16, 32, 64, 8, 48), (1, 2, 3, 5, 7, 13, 17, 19, 33)
WEIGHTS = dict(
    load=6,
    pointers=3,
    gather=1,
    binary=8,
    compare=1,
    where=3,
    unary=2,
    cast=4,
    shape=6,
    reduce=4,
    scan=2,
    sort=0.6,
    histogram=0.4,
    hint=0.5,
    dot=3,
    loop=2.5,
    accumulate=3,
    branch=2,
    repeat=0.7,
    store=2,
    private=2,
    atomic=0.7,
    combine=0.7,
)
POLICIES = {
    "mixed": ({}, EVEN[:3] + ODD),
    "odd": ({}, ODD),
    "even": ({}, EVEN),
    "pipelines": (dict(accumulate=14, dot=6, shape=2), EVEN + (17,)),
    "roles": (
        dict.fromkeys(
            (
                "dot",
                "accumulate",
                "loop",
                "repeat",
                "branch",
                "private",
                "atomic",
                "sort",
                "histogram",
                "combine",
            ),
            0,
        ),
        (64, 64, 32, 16),
    ),  # and a stream (streams.py)
    "memory": (
        dict(load=8, pointers=8, gather=4, private=10, store=6, atomic=3),
        EVEN[:4] + ODD[:4],
    ),
    "layouts": (dict(shape=14, reduce=8, scan=5, dot=6, sort=2), EVEN[:3] + ODD),
    "control": (dict(loop=8, branch=8, repeat=3, accumulate=5), EVEN[:2] + ODD[:6]),
    "numbers": (dict(cast=14, binary=14, unary=6, compare=4), EVEN[:2] + ODD[:6]),
}


# What is in scope: tiles, names that may be bound again, and indices with their bounds.
Scope = tuple[list[Tile], set[str], dict[str, tuple[int, int]]]


class Writer:
    """Writes statements; `pool` are the tiles in scope, `mutable` the names that may be bound again
    here.
    """

    def __init__(self, seed: int, policy: str | None = None, steps: int | None = None):
        self.random, self.seed = random.Random(seed), seed
        self.policy = policy or self.random.choice(list(POLICIES))
        changes, self.sizes = POLICIES[self.policy]
        self.weights = WEIGHTS | changes
        self.lines: list[str] = []
        self.indent, self.count = 1, 0
        self.pool: list[Tile] = []
        self.mutable: set[str] = set()
        self.locals: list[str] = []
        self.arrays: list[ArraySpec] = []
        self.numbers = {f"n{i}": self.random.choice((0, 1, 2, 3, 4, 5, 16)) for i in range(2)}
        self.grid = self.random.choice(((1,), (1,), (2,), (3, 2), (1, 1, 2)))
        self.indices = {
            "p": (0, prod(self.grid) - 1),
            "p0": (0, self.grid[0] - 1),
            **{n: (v, v) for n, v in self.numbers.items()},
        }
        self.steps = steps or self.random.randint(4, 14)

    # ----------------------------------------------------------------------------------------------
    def pick(self, things):
        return self.random.choice(list(things))

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

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def fresh(self, letter="v") -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def let(self, text: str, dtype: str, shape, bound: int, name: str | None = None) -> Tile:
        """Binds a name; a float that could round is brought back into range first by whoever calls."""
        name = name or self.fresh()
        self.line(f"{name} = {text}")
        t = Tile(
            name,
            dtype,
            tuple(shape),
            (
                min(bound, WHOLE[dtype])
                if is_float(dtype)
                else bound
                if bound < WHOLE[dtype]
                else WHOLE[dtype]
            ),
        )
        self.pool = [*(v for v in self.pool if v.name != name), t]
        self.mutable.add(name)
        return t

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        while True:
            s = tuple(
                self.pick(self.sizes) for _ in range(rank or self.pick((1, 1, 2, 2, 2, 2, 3)))
            )
            if prod(s) <= 4096:
                return s

    def dtype(self) -> str:
        return self.pick(("float32",) * 4 + FLOATS * 2 + ("int32",) * 3 + INTEGERS + SHORT)

    def small(self, t: Tile, most: int) -> Tile:
        """The tile with a bound of at most `most`."""
        if t.bound <= most or t.dtype == "bool_":
            return t
        if self.chance(0.6) or t.dtype.startswith("u"):
            return self.let(
                (
                    f"{t.name} % {most + 1}"
                    if most + 1 <= WHOLE[t.dtype] // (1 if is_float(t.dtype) else 2)
                    else f"tkc.minimum({t.name}, {most})"
                ),
                t.dtype,
                t.shape,
                most,
            )
        return self.let(
            f"tkc.minimum(tkc.maximum({t.name}, {-most}), {most})", t.dtype, t.shape, most
        )

    def tile(self, shape=None, dtype: str | None = None, most: int | None = None) -> Tile:
        """A tile of this shape and dtype: one in scope, one cast or broadcast, or a new one."""
        found = [
            v
            for v in self.pool
            if (v.shape if shape is None else shape) == v.shape and v.shape and v.dtype != "bool_"
        ]
        same = [v for v in found if dtype in (None, v.dtype)]
        if same and self.chance(0.8):
            t = self.pick(same)
        elif found and self.chance(0.7):
            t = self.to(self.pick(found), dtype or self.dtype())
        else:
            t = self.source(shape or self.shape(), dtype)
        return t if most is None else self.small(t, most)

    def to(self, t: Tile, dtype: str) -> Tile:
        if t.dtype == dtype:
            return t
        if t.bound > WHOLE[dtype] // 2:
            t = self.small(t, min(WHOLE[dtype] // 2, 100))
        wraps = dtype.startswith("u") and not t.dtype.startswith("u") and t.dtype != "bool_"
        return self.let(
            f"{t.name}.to(tkc.{dtype})", dtype, t.shape, WHOLE[dtype] if wraps else t.bound
        )

    def source(self, shape, dtype: str | None = None) -> Tile:
        dtype = dtype or self.dtype()
        r = self.random.random()
        if r < 0.6:
            return self.to(self.block(shape, dtype), dtype)
        if r < 0.8 and len(shape) == 1:
            start = self.random.randint(-3, 3) + self.pick(
                (0, 0, 120, 250, 32760)
            )  # near where short types wrap
            t = self.let(
                f"tkc.arange({start}, {start + shape[0]})", "int32", shape, shape[0] + abs(start)
            )
            return (
                self.let(f"{t.name}.to(tkc.{dtype})", dtype, shape, WHOLE[dtype])
                if dtype.endswith(("int8", "int16")) and self.chance(0.5)
                else self.to(t, dtype)
            )
        value = self.random.randint(0 if dtype.startswith("u") else -4, 4)
        return self.let(f"tkc.full({list(shape)}, {value}, tkc.{dtype})", dtype, shape, abs(value))

    # ----------------------------------------------------------------------------------------------
    def index(self) -> str:
        """A whole number as an expression, never far from zero."""
        name = self.pick(self.indices)
        low, high = self.indices[name]
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
                return f"tkc.multiple_of({name} * {(n := self.pick((3, 4, 8, 16)))}, {n})"
            case _:
                return name

    def input(self, rank: int, dtype: str) -> ArraySpec:
        found = [a for a in self.arrays if a.name[0] == "a" and len(a.shape) == rank]
        same = [a for a in found if a.dtype == dtype]
        if same and self.chance(0.7):
            return self.pick(same)
        if found and len(self.arrays) > 6:
            return self.pick(found)
        shape = tuple(
            self.pick((*self.sizes, 1, 24, 40, 72, 0 if self.chance(0.15) else 31))
            for _ in range(rank)
        )
        order = self.pick("CCCCCTPBF" if rank > 1 else "CCCP")
        a = ArraySpec(f"a{len(self.arrays)}", dtype, shape, order, 4 if WHOLE[dtype] >= 16 else 2)
        self.arrays.append(a)
        return a

    def mask(self, shape) -> str | None:
        if self.chance(0.65):
            return None
        found = [v for v in self.pool if v.dtype == "bool_" and v.shape == tuple(shape)]
        if found and self.chance(0.6):
            return self.pick(found).name
        numbers = [v for v in self.pool if v.shape == tuple(shape) and v.dtype != "bool_"]
        if numbers and self.chance(0.5):
            return (
                f"{self.pick(numbers).name} {self.pick(('>', '<', '!=', '>='))}"
                f" {self.random.randint(0, 3)}"
            )
        axis = self.random.randrange(len(shape))
        line = (
            f"(tkc.arange({shape[axis]}) <"
            f" {self.pick((self.index(), self.random.randint(0, shape[axis])))})"
        )
        return (
            line
            if len(shape) == 1
            else f"{line}[{', '.join(':' if i == axis else 'None' for i in range(len(shape)))}]"
        )

    def _other(self, dtype: str) -> tuple[str, int]:
        value = self.random.randint(0 if dtype.startswith("u") else -2, 2)
        return (f", other={value}", abs(value)) if self.chance(0.4) else ("", 0)

    def block(self, shape, dtype: str) -> Tile:
        """A load in one of its forms."""
        if len(shape) <= 2 and self.chance(0.25):
            return self.addresses(shape, dtype)
        a = self.input(len(shape) + (drop := self.chance(0.2) and len(shape) < 3), dtype)
        where = self.random.randrange(len(a.shape)) if drop else -1
        extents = [str(n) for n in shape]
        if drop:
            extents.insert(where, "None")
        offsets = [self.index() for _ in a.shape]
        mask, (other, bound) = self.mask(shape), self._other(a.dtype)
        text = (
            f"tkc.load({a.name}, ({', '.join(offsets)},),"
            f" ({', '.join(extents)},){f', mask={mask}' if mask else ''}{other})"
        )
        return self.let(text, a.dtype, shape, max(a.bound, bound))

    def _lines(self, a: str, rank: int, shape) -> tuple[str, str]:
        """Addresses of a block, and which of them exist."""
        names = []
        for n in shape:
            names.append(self.fresh("r"))
            self.line(f"{names[-1]} = {self.index()} + tkc.arange({n})")
        spread = [
            f"{r}[{', '.join(':' if i == k else 'None' for k in range(rank))}]" if rank > 1 else r
            for i, r in enumerate(names)
        ]
        return (
            f"{a}.ptr + " + " + ".join(f"{r} * {a}.strides[{i}]" for i, r in enumerate(spread)),
            " & ".join(f"({r} >= 0) & ({r} < {a}.shape[{i}])" for i, r in enumerate(spread)),
        )

    def addresses(self, shape, dtype: str) -> Tile:
        a, (other, bound) = self.input(len(shape), dtype), self._other(dtype)
        if a.dtype.startswith("u"):
            other, bound = "", 0
        pointers, inside = self._lines(a.name, len(shape), shape)
        return self.let(
            f"tkc.load({pointers}, mask={inside}{other})", a.dtype, shape, max(a.bound, bound)
        )

    def own(self, kind: str, dtype: str, shape, order="C") -> str:
        """An array of which each program has a part; kind o: only written, w: also read (numbers up
        to 8).
        """
        a = ArraySpec(f"{kind}{len(self.arrays)}", dtype, (prod(self.grid), *shape), order, 4)
        self.arrays.append(a)
        self.locals.append(f"{a.name}p = {a.name}[p]")
        return a.name

    def store(self, t: Tile | None = None) -> None:
        t = t or self.tile()
        shape = t.shape or (1,)
        extents = tuple(max(1, n + self.pick((0, 0, 0, 3, -1))) for n in shape)
        name = (
            self.own("o", t.dtype, extents, "T" if len(shape) > 1 and self.chance(0.15) else "C")
            + "p"
        )
        text = t.name if t.shape else f"tkc.full((1,), {t.name})"
        mask = self.mask(shape)
        if len(shape) <= 2 and self.chance(0.2):
            pointers, inside = self._lines(name, len(shape), shape)
            self.line(
                f"tkc.store({pointers}, {text}, mask={inside}{f' & ({mask})' if mask else ''})"
            )
        else:
            offsets = [self.index() if self.chance(0.3) else "0" for _ in shape]
            self.line(
                f"tkc.store({name}, ({', '.join(offsets)},),"
                f" {text}{f', mask={mask}' if mask else ''})"
            )
