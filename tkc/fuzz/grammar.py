"""What random kernels are made of: element types, arrays, weights of productions; and the kernel
that a seed gives, as Python source with its arguments, grid and options.

Every kernel has one meaning: numbers are whole and bounded so that no order of operations rounds
(`Tile.bound` against `WHOLE`), integers may wrap, offsets never do; blocks may lie outside their
array, addresses may not unless they are masked; a program writes to its own part of an array, or
adds to what all share. So every back end and every level must give the same bits. A *policy*,
chosen by the seed, shifts weights and shapes, which reaches rare paths.
"""

from __future__ import annotations

import linecache
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
# From row to row of some arrays, of which two are more elements than 32 bits count
FAR_STRIDE = 1 << 30
FLOATS = ("float32", "float16", "bfloat16")
RARE_FLOATS = ("float8_e4m3", "float8_e5m2", "float64")
INTEGERS = ("int32", "int8", "int16", "int64", "uint8", "uint32", "uint16")


def is_float(dtype: str) -> bool:
    """Whether the name of an element type is that of a float."""
    return dtype.startswith(("float", "bfloat"))


@dataclass(frozen=True)
class Tile:
    """A tile (or scalar: shape ()) by its name: whole numbers of at most `bound`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bound: int


@dataclass(frozen=True)
class ArraySpec:
    """An array argument.

    order: C, T (last two axes exchanged), P (rows of a larger array), B (every row the same), F
    (the rows backwards), "folded" (the rows of each program are one in memory), "view" (the part
    `window` of the array `base`, in the same memory), "windows" (over each row of `base`, in the
    same memory, each `window[0][0]` behind the last), "addresses" (int64: addresses of rows of
    `base`, in an order of their own), "own addresses" (int64: the address of each program's part of
    `base`), "far" (FAR_STRIDE elements from row to row), "rows" (int32: numbers of rows of `base`).
    window: the first element and the one behind the last, by axis.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    order: str = "C"
    bound: int = 4
    base: str = ""
    window: tuple[tuple[int, int], ...] = ()


@dataclass
class Kernel:
    """What a seed gives. `source` defines `kernel`; `arguments()` makes its arguments afresh,
    always the same. constants: of compile-time parameters, each an expression of the names that
    `source` defines. forced: options of its launch, in whose place a plan may refuse.
    """

    seed: int
    policy: str
    source: str
    arrays: list[ArraySpec]
    numbers: dict[str, int]
    grid: tuple[int, ...]
    warps: int | None
    stages: int
    constants: dict[str, str] = field(default_factory=dict)
    forced: tuple[tuple[str, Any], ...] = ()
    filename: str = field(init=False)

    def __post_init__(self) -> None:
        self.filename = f"<kernel {self.seed}>"

    def names(self) -> dict[str, Any]:
        """What the source defines; `inspect` finds the source of its functions."""
        linecache.cache[self.filename] = (
            len(self.source),
            None,
            self.source.splitlines(True),
            self.filename,
        )
        names: dict[str, Any] = {}
        exec(compile(self.source, self.filename, "exec"), names)
        return names

    def function(self) -> Callable[..., None]:
        """The Python function of the kernel."""
        return self.names()["kernel"]

    def arguments(self) -> dict[str, Any]:
        """Arrays and numbers by the names of their parameters."""
        values = np.random.default_rng(self.seed)
        made: dict[str, np.ndarray] = {}
        for spec in self.arrays:
            made[spec.name] = _array(spec, values, made.get(spec.base))
        return made | self.numbers


def _array(spec: ArraySpec, values: np.random.Generator, base: np.ndarray | None) -> np.ndarray:
    low = 0 if spec.dtype.startswith("u") or spec.dtype == "bool_" else -spec.bound

    def make(*shape: int) -> np.ndarray:
        return values.integers(low, spec.bound + 1, shape).astype(NUMPY[spec.dtype])

    *outer, last = spec.shape
    match spec.order:
        case "view" if base is not None:
            return base[tuple(slice(start, stop) for start, stop in spec.window)]
        case "windows" if base is not None:
            row, each = base.strides
            strides = row, spec.window[0][0] * each, each
            return np.lib.stride_tricks.as_strided(base, spec.shape, strides)
        case "addresses" if base is not None:
            rows = values.permutation(np.resize(np.arange(base.shape[0]), spec.shape))
            return (base.ctypes.data + rows * base.strides[0]).astype(np.int64)
        case "own addresses" if base is not None:
            return (base.ctypes.data + np.arange(len(base)) * base.strides[0]).astype(np.int64)
        case "rows" if base is not None:
            return values.integers(0, base.shape[0], spec.shape).astype(np.int32)
        case "far":
            found = _far_apart(spec)
            found[...] = make(*spec.shape)
            return found
        case "T":
            return np.swapaxes(make(*outer[:-1], last, outer[-1]), -1, -2)
        case "P":
            return make(*outer, last + 5)[..., 2 : 2 + last]
        case "B":
            return np.broadcast_to(make(*spec.shape[1:]), spec.shape)
        case "F":
            return make(*spec.shape)[::-1]
        case "folded":
            programs, _, columns = spec.shape
            rows = make(programs, columns)
            strides = rows.strides[0], 0, rows.strides[1]
            return np.lib.stride_tricks.as_strided(rows, spec.shape, strides)
    return make(*spec.shape)


def _far_apart(spec: ArraySpec) -> np.ndarray:
    """An array of contiguous rows that are FAR_STRIDE elements apart, in memory of which only what
    is written is there.
    """
    dtype = np.dtype(NUMPY[spec.dtype])
    size, flags = spec.shape[0] * FAR_STRIDE * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size, flags=flags | getattr(mmap, "MAP_NORESERVE", 0))
    strides: list[int] = []
    row = dtype.itemsize
    for n in reversed(spec.shape[1:]):
        strides.insert(0, row)
        row *= n
    return np.ndarray(spec.shape, dtype, memory, 0, [FAR_STRIDE * dtype.itemsize, *strides])


EVEN = (16, 16, 32, 64, 8, 48)
ODD = (1, 2, 3, 5, 7, 13, 17, 19, 33)
WEIGHTS: dict[str, float] = dict(
    load=6,
    pointers=3,
    gather=1,
    indirect=0.7,
    table=0.5,
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
    call=0.7,
    dot=3,
    loop=2.5,
    accumulate=3,
    branch=2,
    repeat=0.7,
    unroll=0.7,
    count=0.5,
    store=2,
    private=2,
    update=1.5,
    recurrence=0.7,
    reread=0.7,
    atomic=0.7,
    combine=0.7,
    long_row=0,
    deep_dot=0,
    large_result=0,
)
# Productions that hold other statements: not written where the nesting is deepest
NESTING = (
    "loop",
    "branch",
    "repeat",
    "accumulate",
    "unroll",
    "update",
    "recurrence",
    "reread",
)
# changes of the weights, and extents
POLICIES: dict[str, tuple[dict[str, float], tuple[int, ...]]] = {
    "mixed": ({}, EVEN[:3] + ODD),
    "odd": ({}, ODD),
    "even": ({}, EVEN),
    "pipelines": (dict(accumulate=14, dot=6, shape=2), (*EVEN, 17)),
    # of loops of dots (dot_loops.py) with a few statements
    "roles": (
        dict.fromkeys(
            (*NESTING, "dot", "private", "atomic", "sort", "histogram", "combine"),
            0,
        ),
        (64, 64, 32, 16),
    ),
    "memory": (
        dict(load=8, pointers=8, gather=4, indirect=3, table=2, private=10, store=6, atomic=3),
        EVEN[:4] + ODD[:4],
    ),
    # programs that read what they have written
    "in_place": (dict(update=14, recurrence=8, reread=8, private=3, load=3, shape=2), EVEN),
    "layouts": (dict(shape=14, reduce=8, scan=5, dot=6, sort=2), EVEN[:3] + ODD),
    "control": (
        dict(loop=8, branch=8, repeat=3, accumulate=5, unroll=3, update=3),
        EVEN[:2] + ODD[:6],
    ),
    # tiles that are cut in parts
    "large": (
        dict.fromkeys(WEIGHTS, 0.1) | dict(long_row=2, deep_dot=2, large_result=1),
        EVEN[:3],
    ),
    "numbers": (dict(cast=14, binary=14, unary=6, compare=4, call=3), EVEN[:2] + ODD[:6]),
}
