"""Level 0: what a tile program means. This file is the specification; every other level and target
answers to it.

A tile is a np.ndarray of its extents, a scalar the same of rank 0, an array `Array`, a pointer an
int64 (global_memory.py). Programs run one after another, axis 0 of the grid fastest. RULES holds
one rule an operation, at most five lines of NumPy.

Numbers. Integers wrap. float16, bfloat16 and float8 are computed in float32 and rounded once;
float8 saturates, as the GPU's conversions do. Functions of float32 (exp, sin, …), sums and products
along an axis are computed in float64 and rounded once. `dot` multiplies operands of up to 16 bits
in float32 (their products are exact) and others in float64, adds the accumulator and rounds to the
accumulator's type; "tf32" first rounds its operands to 10 bits of mantissa, to nearest with ties
away from zero. A float beyond an integer type saturates, NaN gives 0. Counts of shifts beyond the
width shift everything out; division of integers by zero gives 0.

Offsets are mathematical integers: where an offset differs from what the program's own integer type
computed, OffsetOverflow is raised (`ProgramInterpreter.exact` keeps such values beside the wrapped
ones). So are scalars that bound the elements of an access: a mask that compares a tile with one;
and sums of indices, and products of them that offsets are made of, where they are made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerType,
    ModuleOp,
    StringAttr,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import shared, threads, tile
from tkc.ir.dtypes import to_odd
from tkc.ir.messages import filled
from tkc.ir.ranges import NONNEGATIVE
from tkc.ir.truths import every
from tkc.ir.types import (
    ArrayType,
    PointerType,
    TileType,
    bits,
    element_of,
    f8e4m3,
    f8e5m2,
    is_float,
    is_integer,
    ui8,
    ui16,
    ui32,
    ui64,
)
from tkc.ir.values import tile_type
from tkc.sim import ptx, wrapping
from tkc.sim.errors import AssertionFailed, BadArgument, OffsetOverflow, SimulationError
from tkc.sim.global_memory import WRAPPED, GlobalMemory
from tkc.sim.meeting import cluster_sum, run_blocks
from tkc.sim.places import counted, spread
from tkc.sim.products import matmul, tf32

NUMPY: dict[Attribute, np.dtype] = {
    i1: np.dtype(np.bool_),
    i8: np.dtype(np.int8),
    i16: np.dtype(np.int16),
    i32: np.dtype(np.int32),
    i64: np.dtype(np.int64),
    ui8: np.dtype(np.uint8),
    ui16: np.dtype(np.uint16),
    ui32: np.dtype(np.uint32),
    ui64: np.dtype(np.uint64),
    f16: np.dtype(np.float16),
    bf16: np.dtype(ml_dtypes.bfloat16),
    f32: np.dtype(np.float32),
    f64: np.dtype(np.float64),
    f8e4m3: np.dtype(ml_dtypes.float8_e4m3fn),
    f8e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
LARGEST_FLOAT8: dict[Attribute, float] = {f8e4m3: 448.0, f8e5m2: 57344.0}
MAX_WHILE_ROUNDS = 1_000_000
# of a wait for another rank: between two looks, and until it is given up
RANKS_PERIOD_S, RANKS_SECONDS = 1e-4, 60.0
Number = np.ndarray | np.generic | float  # a scalar, or a tile
Results = tuple[Any, ...]


def dtype_of(t: Attribute) -> np.dtype:
    """The NumPy type of an element type, or of the elements of a tile type."""
    t = element_of(t)
    return NUMPY[i64 if type(t) is PointerType else t]


def shape_of(t: Attribute) -> tuple[int, ...]:
    """The extents of a tile type; () of any other."""
    return t.extents if isinstance(t, TileType) else ()


def widened(x: Number) -> np.ndarray:
    """Short floats as float32, everything else as it is."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.itemsize <= 2 and x.dtype.kind in "fV" else x


@cache
def rounding_to(t: Attribute) -> Callable[[Number], np.ndarray]:
    """What rounds values to an element type: floats to nearest even, integers wrap."""
    dtype, largest = dtype_of(t), LARGEST_FLOAT8.get(t)

    def to(x: Number) -> np.ndarray:
        x = to_odd(x, dtype)
        if x.dtype == dtype:
            return x
        return (x if largest is None else np.clip(x, -largest, largest)).astype(dtype)

    return to


def rounded(x: Number, t: Attribute) -> np.ndarray:
    """Values as elements of type t: floats to nearest even, integers wrap."""
    return rounding_to(element_of(t))(x)


def to_integer(x: Number, t: Attribute) -> np.ndarray:
    """Floats truncated to an integer type, saturating; NaN gives 0."""
    d, wide = np.iinfo(dtype_of(t)), widened(x).astype(np.float64)
    whole = np.trunc(np.nan_to_num(wide, nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = (whole > float(d.min) - 1) & (whole < float(d.max) + (d.bits < 64))
    nearest = np.where(whole < 0, d.dtype.type(d.min), d.dtype.type(d.max))
    return np.where(inside, np.where(inside, whole, 0).astype(d.dtype), nearest)


@dataclass(frozen=True)
class Array:
    """An array in global memory; strides in elements. `fault`: why no element may be accessed."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    fault: str = ""


# --------------------------------------------------------------------------------------------------
Function = Callable[..., Any]
Rule = Callable[..., Any]


class Prepared:
    """A rule that is made for each operation: what every visit would ask it again is asked once."""

    def __init__(self, of: Callable[[Any], Rule]):
        self.of = of


Rules = dict[type[Operation], Rule | Prepared]


def _in64(f: Function) -> Function:
    """A function of float32 that is computed in float64."""
    return lambda *x: f(
        *(np.asarray(v, np.float64) if np.asarray(v).dtype == np.float32 else v for v in x)
    )


def unsigned(x: Number) -> np.ndarray:
    """The bits of integers as unsigned numbers."""
    return np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}")


def _width(x: Number) -> int:
    return np.asarray(x).dtype.itemsize * 8


def _mulhi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if _width(a) <= 32:
        wide = np.int64 if np.asarray(a).dtype.kind == "i" else np.uint64
        return (np.asarray(a, wide) * np.asarray(b, wide) >> wide(_width(a))).astype(a.dtype)
    product = np.asarray(a, object) * np.asarray(b, object) >> _width(a)
    return np.asarray(product).astype(a.dtype)


def _product_and_sum(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return a * b + c


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float64, with the product in four exact parts, so that what is left of a
    difference is right.
    """
    plain = a * b + c

    def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        high = (np.asarray(x).view(np.uint64) & np.uint64(0xFFFFFFFFF8000000)).view(np.float64)
        return high, x - high

    (x, p), (y, q), product = halves(a), halves(b), a * b
    rest = ((x * y - product) + x * q + p * y) + p * q
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    exact = total + (lost + rest)
    # a zero has a sign; of what is not finite, `exact` is not either
    return np.where(np.isfinite(exact) & (exact != plain), exact, plain)


def _div_trunc(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rounded towards zero; 0 of a division by zero."""
    floor = np.floor_divide(a, b)
    inexact = (floor * b != a) & (b != 0)
    return floor + (inexact & ((a < 0) != (b < 0))).astype(floor.dtype)


FUNCTIONS: dict[str, Function] = {
    "neg": np.negative,
    "abs": np.abs,
    "not": np.invert,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "exp": _in64(np.exp),
    "exp2": _in64(np.exp2),
    "expm1": _in64(np.expm1),
    "log": _in64(np.log),
    "log2": _in64(np.log2),
    "log1p": _in64(np.log1p),
    "sin": _in64(np.sin),
    "cos": _in64(np.cos),
    "tanh": _in64(np.tanh),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sqrt": np.sqrt,
    "rsqrt": _in64(lambda x: 1 / np.sqrt(x)),
    "reciprocal": lambda x: 1 / x,
    "popcount": lambda x: np.bitwise_count(unsigned(x)),
    "clz": lambda x: sum((unsigned(x) >> k == 0).astype(np.int64) for k in range(_width(x))),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "div": np.divide,
    "div_rn": np.divide,
    "pow": _in64(np.power),
    "atan2": _in64(np.arctan2),
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "div_trunc": _div_trunc,
    "rem_trunc": np.fmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "mulhi": _mulhi,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "fma": lambda a, b, c: (
        _fma(a, b, c) if np.asarray(a).dtype == np.float64 else _in64(_product_and_sum)(a, b, c)
    ),
}


def elementwise(op: ew.Elementwise) -> Rule:
    function, to_type = FUNCTIONS[op.fn.name], rounding_to(element_of(op.result.type))
    if any(is_float(t := element_of(v.type)) and bits(t) <= 16 for v in op._operands):
        return lambda m, op, *x: to_type(function(*map(widened, x)))
    return lambda m, op, *x: to_type(function(*x))


def inline(m: ProgramInterpreter, op: ew.InlinePtx, *x: np.ndarray) -> Results:
    if op.meaning is None:
        types = [r.type for r in op.results]
        shape = shape_of(types[0]) if types else np.broadcast_shapes(*map(np.shape, x))
        try:
            return ptx.evaluate(op, x, shape, [dtype_of(element_of(t)) for t in types])
        except (ptx.Fault, ptx.Unknown) as e:
            raise SimulationError(f"inline PTX: {e}; give it a meaning=") from None
    try:
        found = op.function(*x)
    except LookupError as e:
        raise SimulationError(str(e)) from None
    return tuple(
        np.broadcast_to(rounded(v, r.type), shape_of(r.type))
        for v, r in zip(found if isinstance(found, tuple) else (found,), op.results, strict=True)
    )


def cast(m: ProgramInterpreter, op: ew.Cast, x: np.ndarray) -> np.ndarray:
    t = element_of(op.result.type)
    if t == i1:
        return widened(x) != 0
    if is_integer(t) and np.asarray(x).dtype.kind not in "iub":
        return to_integer(x, t)
    return rounded(widened(x), t)


def bitcast(m: ProgramInterpreter, op: ew.Bitcast, x: np.ndarray) -> np.ndarray:
    source, target = element_of(op.arg.type), element_of(op.result.type)
    if isinstance(target, PointerType):
        return x if isinstance(source, PointerType) else m.memory.of_host(x)
    if isinstance(source, PointerType):
        x = m.memory.to_host(x)
    return np.ascontiguousarray(x).reshape(shape_of(op.result.type)).view(dtype_of(target))


def pointee_of(t: Attribute) -> Attribute:
    """What pointers of a type, or of a tile's elements, point to. Raises TypeError for others."""
    pointer = element_of(t)
    if not isinstance(pointer, PointerType):
        raise TypeError(f"expected pointers, got {t}")
    return pointer.element


def pointer_add(
    m: ProgramInterpreter, op: ew.PointerAdd, pointer: np.ndarray, offset: np.ndarray
) -> np.ndarray:
    offset, wrapped = m.offsets(op.offset)
    moved = pointer + offset * dtype_of(pointee_of(op.pointer.type)).itemsize
    return moved if wrapped is NOWHERE else np.where(wrapped, WRAPPED, moved)


# --------------------------------------------------------------------------------------------------
REDUCE = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "any": np.logical_or,
    "all": np.logical_and,
    "xor": np.bitwise_xor,
}


def accumulated(x: Number) -> np.ndarray:
    """In the type that sums are computed in."""
    x = widened(x)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def combined(m: ProgramInterpreter, region: Region, left: Results, right: Results) -> Results:
    """A combine region applied to whole arrays at once (element by element where it branches)."""
    if not any(op.regions for op in region.block.ops):
        return tuple(np.broadcast_to(v, left[0].shape) for v in m.region(region, (*left, *right)))
    each = [m.region(region, [v[i] for v in (*left, *right)]) for i in np.ndindex(left[0].shape)]
    return tuple(
        np.array([e[k] for e in each]).reshape(left[0].shape).astype(v.dtype)
        for k, v in enumerate(left)
    )


def prefixes(
    m: ProgramInterpreter, op: tile.AlongAxis, x: Sequence[np.ndarray], axis: int
) -> list[Results]:
    """The running combinations along an axis, one an index."""
    assert op.combine is not None, "the kind of the operation is combine"
    slices = [tuple(np.take(v, i, axis) for v in x) for i in range(x[0].shape[axis])]
    for i in range(1, len(slices)):
        slices[i] = combined(m, op.combine, slices[i - 1], slices[i])
    return slices


def reduce(m: ProgramInterpreter, op: tile.Reduce, *x: np.ndarray) -> np.ndarray | Results:
    kind, axis = op.kind.data, op.axis.value.data
    if kind == "combine":
        return prefixes(m, op, x, axis)[-1]
    if kind in ("argmax", "argmin"):
        return rounded(getattr(np, kind)(widened(x[0]), axis=axis), op.result.type)
    wide = accumulated(x[0])
    return rounded(REDUCE[kind].reduce(wide, axis=axis, dtype=wide.dtype), op.result.type)


def scan(
    m: ProgramInterpreter, op: tile.Scan | shared.ScanTotal, *x: np.ndarray
) -> np.ndarray | Results:
    axis = op.axis.value.data
    if op.kind.data != "combine":
        return running(op, x[0])
    columns = zip(*prefixes(m, op, [in_order(op, v) for v in x], axis), strict=True)
    return tuple(in_order(op, np.stack(column, axis)) for column in columns)


def in_order(op: tile.Scan | shared.ScanTotal, x: np.ndarray) -> np.ndarray:
    """In the order in which a scan goes along its axis; or back from it."""
    return np.flip(x, op.axis.value.data) if op.reverse else x


def running(op: tile.Scan | shared.ScanTotal, x: np.ndarray) -> np.ndarray:
    """The scan of one tile by one of REDUCE."""
    wide = in_order(op, accumulated(x))
    sums = REDUCE[op.kind.data].accumulate(wide, axis=op.axis.value.data, dtype=wide.dtype)
    return in_order(op, rounded(sums, op.result.type))


def sort(m: ProgramInterpreter, op: tile.Sort | shared.SortFirst, x: np.ndarray) -> np.ndarray:
    wide, down = widened(x), op.descending is not None
    if wide.dtype.kind == "f":  # NaN last both ways
        return (-np.sort(-wide) if down else np.sort(wide)).astype(x.dtype)
    return np.flip(np.sort(x), -1) if down else np.sort(x)


def histogram(
    m: ProgramInterpreter, op: tile.Histogram, x: np.ndarray, mask: np.ndarray | bool = True
) -> np.ndarray:
    bins = tile_type(op.result).size
    counted = x[mask & (x >= 0) & (x < bins)]
    return np.bincount(counted.astype(np.int64), minlength=bins).astype(np.int32)


# --------------------------------------------------------------------------------------------------
def product(a: np.ndarray, b: np.ndarray, precision: str) -> np.ndarray:
    """a·b of the last two axes, in the wide type of `dot`."""

    def exact(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return matmul(x.astype(np.float64), y.astype(np.float64))

    if a.dtype == np.float32 and precision == "tf32":
        return exact(tf32(a), tf32(b))
    if a.dtype == np.float32 and precision == "tf32x3":
        return (
            exact(tf32(a), tf32(b))
            + exact(tf32(a), tf32(b - tf32(b)))
            + exact(tf32(a - tf32(a)), tf32(b))
        )
    if a.dtype.kind in "iub":
        return (
            exact(a, b).astype(np.int64)
            if a.dtype.itemsize <= 2
            else a.astype(np.int64) @ b.astype(np.int64)
        )
    return matmul(widened(a), widened(b)) if a.dtype.itemsize <= 2 else exact(a, b)


def dot(
    m: ProgramInterpreter, op: tile.Dot, a: np.ndarray, b: np.ndarray, acc: np.ndarray
) -> np.ndarray:
    return rounded(accumulated(acc) + product(a, b, op.precision.data), op.result.type)


# --------------------------------------------------------------------------------------------------
def view(m: ProgramInterpreter, op: tile.View, array: Array, *_: np.ndarray) -> Array:
    offsets, pointer, fault = iter(op.offsets), array.pointer, array.fault
    shape, strides = [], []
    for kind, extent, stride in zip(op.kinds, array.shape, array.strides, strict=True):
        start = m.offset(next(offsets)) if kind.data != "all" else 0
        if kind.data == "slice":
            start, extent = start, max(0, min(m.offset(next(offsets)), extent) - start)
        fault = fault or _missing(kind.data, start, extent)
        pointer += start * stride * array.dtype.itemsize
        if kind.data != "index":
            shape.append(extent)
            strides.append(stride)
    return Array(pointer, tuple(shape), tuple(strides), array.dtype, fault)


def _missing(kind: str, start: int, extent: int) -> str:
    """Why a view has no element along an axis; empty where it may have some."""
    if kind == "index" and not 0 <= start < extent:
        return f"index {start} of an extent of {extent}"
    return f"a view from {start}" if start < 0 else ""


def make_array(
    m: ProgramInterpreter, op: tile.MakeArray, pointer: np.ndarray, *_: np.ndarray
) -> Array:
    if not isinstance(op.pointer.type, PointerType):
        pointer = m.memory.of_host(pointer)
    shape, strides = (tuple(m.offset(v) for v in group) for group in (op.shape, op.strides))
    dtype = dtype_of(op.result.type.element)
    place = m.memory.adopted(int(pointer), shape, strides, dtype.itemsize)
    return Array(place, shape, strides, dtype)


class BlockAccess(Protocol):
    """An operation that accesses a block of an array. extents: of the block along each axis of the
    array, below 0 for an axis that the block has not.
    """

    @property
    def array(self) -> SSAValue: ...
    @property
    def offsets(self) -> Sequence[SSAValue]: ...
    @property
    def extents(self) -> DenseArrayBase[IntegerType]: ...
    @property
    def mask(self) -> SSAValue | None: ...


Places = tuple[np.ndarray, np.ndarray]  # pointers, and which of them are accessed


def block(m: ProgramInterpreter, op: BlockAccess) -> Places:
    """Pointers of a block of an array, and which elements of it exist and are not masked."""
    array, extents = m[op.array], op.extents.get_values()
    shape = tuple([n for n in extents if n >= 0])
    at: np.ndarray | np.int64 = np.int64(array.pointer)
    live: np.ndarray | bool = True if op.mask is None else m.mask(op.mask)
    lost: np.ndarray | bool = False
    axis = 0
    for offset, extent, bound, stride in zip(
        op.offsets, extents, array.shape, array.strides, strict=True
    ):
        index, wrapped = m.offsets(offset)
        within = not index.ndim and 0 <= index <= bound - max(extent, 1)
        if extent >= 0:
            along = counted(extent, axis, len(shape))
            axis += 1
            index = index.reshape(along.shape) if index.ndim else index + along
            wrapped = wrapped.reshape(along.shape) if wrapped.ndim else wrapped
        at = at + index * (stride * array.dtype.itemsize)
        if not within:
            live = live & (index >= 0) & (index < bound)
        if wrapped is not NOWHERE and wrapped.any():
            lost = lost | wrapped
    live = spread(live, shape)
    if array.fault and live.any():
        raise SimulationError(f"an access through a view that does not exist: {array.fault}")
    return spread(at if lost is False else np.where(lost, WRAPPED, at), shape), live


class PointerAccess(Protocol):
    """An operation that accesses a tile of pointers, or one."""

    @property
    def pointers(self) -> SSAValue: ...
    @property
    def mask(self) -> SSAValue | None: ...


def live_pointers(m: ProgramInterpreter, op: PointerAccess) -> Places:
    """The pointers of an access, and which of them are not masked."""
    pointers = np.asarray(m[op.pointers])
    mask = True if op.mask is None else m.mask(op.mask)
    return pointers, np.array(np.broadcast_to(mask, pointers.shape))


def places_of(m: ProgramInterpreter, op: Any) -> Places:
    """Where an operation accesses global memory: a block of an array, or a tile of pointers."""
    by_pointers = isinstance(op, (tile.LoadPointers, tile.StorePointers, tile.Atomic))
    return live_pointers(m, op) if by_pointers else block(m, op)


def load(m: ProgramInterpreter, op: tile.Load | tile.LoadPointers, *_: np.ndarray) -> np.ndarray:
    t, other = op.result.type, 0 if op.other is None else m[op.other]
    values = m.memory.load(*places_of(m, op), dtype_of(t), other)
    # addresses in memory are those of the host
    return m.memory.of_host(values) if isinstance(element_of(t), PointerType) else values


def stored(m: ProgramInterpreter, value: SSAValue) -> np.ndarray:
    """What is written to memory of a value: of pointers the addresses of the host."""
    pointers = isinstance(element_of(value.type), PointerType)
    return m.memory.to_host(m[value]) if pointers else m[value]


def store(m: ProgramInterpreter, op: tile.Store | tile.StorePointers, *_: np.ndarray) -> None:
    pointers, live = places_of(m, op)
    m.memory.store(pointers, live, spread(stored(m, op.value), live.shape))


UPDATES: dict[str, Function] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exchange": lambda old, new: new,
}


def update(
    m: ProgramInterpreter,
    kind: str,
    places: Places,
    value: Number,
    expected: Number,
    t: Attribute,
) -> np.ndarray:
    """Read-modify-write, element after element where two share an address; gives the old values."""
    pointers, live = places
    value, expected = (spread(v, pointers.shape) for v in (value, expected))
    old = np.zeros(pointers.shape, dtype_of(t))
    distinct = len(set(pointers[live].tolist())) == live.sum()
    at_once: Iterable[Any] = [...] if distinct else np.ndindex(pointers.shape)
    for i in at_once:
        at, on = np.asarray(pointers[i]), np.asarray(live[i])
        old[i] = before = m.memory.load(at, on, dtype_of(t))
        if kind == "compare":  # by bits
            on, new = on & (unsigned(before) == unsigned(expected[i])), value[i]
        else:
            new = rounded(UPDATES[kind](widened(before), widened(value[i])), t)
        m.memory.store(at, on, np.asarray(new))
    return old


def atomic(m: ProgramInterpreter, op: tile.Atomic, *_: np.ndarray) -> np.ndarray | None:
    expected = m[op.expected] if op.expected is not None else 0
    t = pointee_of(op.pointers.type)
    old = update(m, op.kind.data, live_pointers(m, op), m[op.value], expected, t)
    return old if op.result is not None else None


def atomic_block(m: ProgramInterpreter, op: tile.AtomicBlock, *_: np.ndarray) -> None:
    update(m, op.kind.data, block(m, op), m[op.value], 0, op.value.type)


# --------------------------------------------------------------------------------------------------
def assume(m: ProgramInterpreter, op: tile.Assume, condition: np.ndarray) -> None:
    if not np.all(condition):
        raise AssertionFailed("a promised condition does not hold")


def check(m: ProgramInterpreter, op: tile.Assert, condition: np.ndarray) -> None:
    if not np.all(condition):
        raise AssertionFailed(op.text.data)


def multiple(m: ProgramInterpreter, op: tile.Multiple, x: np.ndarray) -> np.ndarray:
    if isinstance(element_of(op.arg.type), PointerType):
        return x  # what is accessed there has addresses
    if (np.asarray(x) % op.divisor.value.data).any():
        raise AssertionFailed(f"{x} is promised to be a multiple of {op.divisor.value.data}")
    return x


def show(m: ProgramInterpreter, op: tile.Print, *x: np.ndarray) -> None:
    m.out(filled(op.text.data, [*map(str, x)]))


# --------------------------------------------------------------------------------------------------
def trips(m: ProgramInterpreter, op: scf.ForOp) -> range:
    """The values of a loop's variable. Raises SimulationError where its step is not positive."""
    low, high, step = (m.offset(v) for v in (op.lb, op.ub, op.step))
    if step <= 0:
        raise SimulationError(f"a loop with step {step}")
    return range(low, high, step)


def for_(m: ProgramInterpreter, op: scf.ForOp, *operands: Any) -> Results:
    carried = operands[3:]
    for i in trips(m, op):
        carried = m.region(op.body, (rounded(i, op.lb.type), *carried))
    return carried


def if_(m: ProgramInterpreter, op: scf.IfOp, condition: np.ndarray) -> Results:
    return m.region(op.true_region if condition else op.false_region, ())


def repeats(
    m: ProgramInterpreter, entered: Sequence[Any], carried: Sequence[Any], stores: int
) -> bool:
    """Whether the next round of a loop does what the last did, for all that it carries and all of
    memory are as they were.
    """
    return m.memory.stores == stores and all(
        np.array_equal(a, b, np.asarray(a).dtype.kind == "f")
        for a, b in zip(entered, carried, strict=True)
    )


def scope_of(op: Operation) -> str:
    """The scope that an access of memory says; "" of any other operation."""
    scope = getattr(op, "scope", None)
    return scope.data if isinstance(scope, StringAttr) else ""


def while_(m: ProgramInterpreter, op: scf.WhileOp, *carried: Any) -> Results:
    # another rank runs on another thread, and may write what this loop reads
    is_of_ranks = any(scope_of(inner) == "system" for inner in op.before_region.walk())
    end = time.monotonic() + RANKS_SECONDS if is_of_ranks else 0.0
    for _ in range(MAX_WHILE_ROUNDS):
        entered, stores = carried, m.memory.stores
        goes_on, *carried_on = m.region(op.before_region, entered)
        if not goes_on:
            return tuple(carried_on)
        carried = m.region(op.after_region, carried_on)
        if repeats(m, entered, carried, stores):
            if is_of_ranks and time.monotonic() < end:
                time.sleep(RANKS_PERIOD_S)
                continue
            raise SimulationError("a while loop waits for what no program before this one writes")
    raise SimulationError(f"a while loop that does not end within {MAX_WHILE_ROUNDS} rounds")


# --------------------------------------------------------------------------------------------------
def strided(m: ProgramInterpreter, op: tile.Slice, x: np.ndarray) -> np.ndarray:
    extents = shape_of(op.result.type)
    parts = zip(op.offsets.get_values(), extents, op.steps, strict=True)
    return x[tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in parts)]


SHAPES: dict[type[Operation], Rule] = {
    tile.Splat: lambda m, op, x: spread(x, op.result.type.extents),
    tile.Broadcast: lambda m, op, x: spread(x, op.result.type.extents),
    tile.Reshape: lambda m, op, x: np.reshape(x, op.result.type.extents),
    tile.Transpose: lambda m, op, x: np.transpose(x, op.permutation.get_values()),
    tile.Slice: strided,
    tile.Extract: lambda m, op, x: x[tuple(op.index.get_values())],
    tile.Flip: lambda m, op, x: np.flip(x, op.axis.value.data),
    tile.Concat: lambda m, op, *x: np.concatenate(x, op.axis.value.data),
    tile.Multiple: multiple,
    ew.Select: lambda m, op, c, a, b: np.where(c, a, b),
}


def workspace(m: ProgramInterpreter, op: threads.Workspace) -> np.int64:
    """One buffer for the launch, whatever program asks first."""
    if op not in m.memory.workspaces:
        size = op.bytes.value.data * (1 if op.whole else math.prod(m.grid))
        buffer = np.zeros(size, np.uint8).view(dtype_of(pointee_of(op.result.type)))
        m.memory.workspaces[op] = m.memory.register(buffer, "the workspace")
    return np.int64(m.memory.workspaces[op])


def next_program(m: ProgramInterpreter, op: threads.NextProgram, total: np.ndarray) -> np.int32:
    """The one block of a persistent kernel claims every program after its first."""
    m.claimed += 1
    return np.int32(m.claimed)


def identity(m: ProgramInterpreter, op: threads.Identity) -> np.int32:
    known = {"blocks": 1, "clusters": 1, "cluster_rank": m.rank, "member": m.member}
    return np.int32(known.get(op.what.data, 0))


def constant(op: tile.Constant) -> Rule:
    value = np.full(shape_of(op.result.type), op.number, dtype_of(op.result.type))
    value.flags.writeable = False  # every visit gives the same array
    return lambda m, op: value


def arange(m: ProgramInterpreter, op: tile.Arange) -> np.ndarray:
    numbers = op.start.value.data + np.arange(tile_type(op.result).size)
    return numbers.astype(dtype_of(op.result.type))


RULES: Rules = (
    SHAPES
    | dict.fromkeys(ew.CLASSES.values(), Prepared(elementwise))
    | {
        ew.Cast: cast,
        ew.Bitcast: bitcast,
        ew.PointerAdd: pointer_add,
        ew.InlinePtx: inline,
        tile.Constant: Prepared(constant),
        tile.ProgramId: lambda m, op: np.int32(m.program[op.axis.value.data]),
        tile.NumPrograms: lambda m, op: np.int32(m.grid[op.axis.value.data]),
        tile.Arange: arange,
        tile.Reduce: reduce,
        tile.Scan: scan,
        tile.Sort: sort,
        tile.Histogram: histogram,
        tile.Gather: lambda m, op, x, i: np.take_along_axis(
            x, i.astype(np.int64), op.axis.value.data
        ),
        tile.Dot: dot,
        tile.Dim: lambda m, op, a: rounded(a.shape[op.axis.value.data], op.result.type),
        tile.Stride: lambda m, op, a: rounded(a.strides[op.axis.value.data], op.result.type),
        tile.Pointer: lambda m, op, a: np.int64(a.pointer),
        tile.View: view,
        tile.MakeArray: make_array,
        tile.Load: load,
        tile.Store: store,
        tile.LoadPointers: load,
        tile.StorePointers: store,
        threads.NextProgram: next_program,
        threads.Workspace: workspace,
        threads.Identity: identity,
        tile.ClusterSum: cluster_sum,
        tile.Atomic: atomic,
        tile.AtomicBlock: atomic_block,
        tile.Assume: assume,
        tile.Assert: check,
        tile.Print: show,
        tile.Dependency: lambda m, op: (),
        threads.Vote: lambda m, op, x: np.bool_(np.all(x)),
        scf.ForOp: for_,
        scf.IfOp: if_,
        scf.WhileOp: while_,
    }
)
TERMINATORS: set[type[Operation]] = {tile.Return, tile.Yield, scf.YieldOp, scf.ConditionOp}
SCALARS = (np.generic, bool, int, float)
NOWHERE = np.zeros((), bool)


class Decoded(NamedTuple):
    """What every visit of an operation would ask it again. follows: integers whose mathematical
    value is kept, "computed" or "moved" with them, "compared" where they are bounds.
    """

    rule: Rule | None
    operands: tuple[SSAValue, ...]
    results: tuple[SSAValue, ...]
    follows: str = ""
    always: bool = False  # may wrap by itself: not only where an operand did

    @staticmethod
    def of(op: Operation, rules: Rules) -> Decoded:
        given, operands, results = rules.get(type(op)), tuple(op._operands), tuple(op.results)
        rule = given.of(op) if isinstance(given, Prepared) else given
        if len(results) != 1 or not isinstance(op, (ew.Elementwise, ew.Cast, *SHAPES)):
            return Decoded(rule, operands, results)
        return Decoded(rule, operands, results, *wrapping.follows(op))


class ProgramInterpreter:
    """One program: its values, its place in the grid, and the memory it shares with the others. A
    persistent kernel is one program for each block of one cluster, which takes all of the grid in
    turn. exact: the mathematical values of integers that wrapped; code: what is known of
    operations, which programs of one launch share.
    """

    rules: Rules = RULES
    rank = member = claimed = 0
    meeting: Any = None

    def __init__(
        self,
        memory: GlobalMemory,
        program: Sequence[int],
        grid: Sequence[int],
        out: Callable[[str], object] = print,
        code: dict[Operation, Decoded] | None = None,
    ):
        self.memory, self.out = memory, out
        self.values: dict[SSAValue, Any] = {}
        self.exact: dict[SSAValue, Any] = {}
        self.code = {} if code is None else code
        self.program, self.grid = (*program, 0, 0, 0), (*grid, 1, 1, 1)

    def __getitem__(self, value: SSAValue) -> Any:
        return self.values[value]

    def assign(self, targets: Iterable[SSAValue], values: Iterable[Any]) -> None:
        """Gives values to operations' results or to arguments of blocks."""
        held = self.values
        for target, value in zip(targets, values, strict=True):
            if type(value) is not np.ndarray and isinstance(value, SCALARS):
                value = np.asarray(value)
            held[target] = value

    def region(self, region: Region, arguments: Sequence[Any]) -> Results:
        """Runs a region's block; gives what its terminator yields."""
        if not region.blocks:
            return ()
        self.assign(region.block.args, arguments)
        return self.run(region.block)

    def run(self, block: Block) -> Results:
        """Executes a block's operations; gives the operands of its terminator."""
        for op in block.ops:
            if type(op) in TERMINATORS:
                return tuple([self.values[v] for v in op._operands])
            self.execute(op)
        return ()

    def execute(self, op: Operation) -> None:
        """Executes one operation. Raises SimulationError, which names it."""
        code = self.code.get(op)
        if code is None:
            code = self.code[op] = Decoded.of(op, self.rules)
        try:
            if code.rule is None:
                raise SimulationError("has no meaning at this level")
            out = code.rule(self, op, *[self.values[v] for v in code.operands])
            if code.results:
                self.assign(code.results, out if isinstance(out, tuple) else (out,))
            if code.follows:
                self._track(op, code)
        except SimulationError as e:
            e.operation = op if e.operation is None else e.operation
            raise

    # The mathematical value of an integer that wrapped, beside it: only arithmetic and moves of
    # data are followed.
    def _track(self, op: Operation, code: Decoded) -> None:
        known, held = self.exact, self.values
        if not code.always and not (known and any([v in known for v in code.operands])):
            return
        result = code.results[0]
        x = [np.asarray(known.get(v, held[v]) if known else held[v]) for v in code.operands]
        if code.follows == "compared":
            x = wrapping.of_bounds(code.operands, x, held)
            if not x:
                self.code[op] = code._replace(follows="")
                return
        exact = self._exactly(op, wrapping.widened(x))
        if every(exact == held[result]):
            known.pop(result, None)
            return
        known[result] = exact
        wrapping.refuse_index(op, FUNCTIONS, held)

    def _exactly(self, op: Operation, x: list[np.ndarray]) -> np.ndarray:
        if isinstance(op, ew.Elementwise):
            return FUNCTIONS[op.fn.name](*x)
        return x[0] if isinstance(op, ew.Cast) else SHAPES[type(op)](self, op, *x)

    def offsets(self, value: SSAValue) -> tuple[np.ndarray, np.ndarray]:
        """Integers used as offsets (int64), and where they are not the mathematical ones."""
        number = np.asarray(self.values[value])
        wrapped = self.exact[value] != number if value in self.exact else NOWHERE
        return number.astype(np.int64)[()], wrapped

    def mask(self, value: SSAValue) -> np.ndarray:
        """Which elements are accessed. Raises OffsetOverflow where what bounds them wrapped."""
        if value in self.exact:
            raise OffsetOverflow("a number that bounds the elements of an access wraps in its type")
        return self.values[value]

    def offset(self, value: SSAValue) -> int:
        """A scalar used as an offset, an extent or a bound."""
        number = int(self.values[value])
        if value in self.exact and (exact := int(np.ravel(self.exact[value])[0])) != number:
            raise OffsetOverflow(f"{exact} wraps to {number} in {value.type}")
        return number


def kernel_of(module: ModuleOp | tile.Kernel) -> tile.Kernel:
    """The kernel of a module that holds one."""
    if isinstance(module, tile.Kernel):
        return module
    kernels = [op for op in module.body.block.ops if isinstance(op, tile.Kernel)]
    if len(kernels) != 1:
        raise BadArgument(f"the module holds {len(kernels)} kernels; pass the one to run")
    return kernels[0]


def bind(kernel: tile.Kernel, arguments: Sequence[Any], memory: GlobalMemory) -> list[Any]:
    """Arguments as an interpreter's values. Raises BadArgument for one that the kernel does not
    take.
    """
    if len(arguments) != len(kernel.arguments):
        raise BadArgument(
            f"@{kernel.sym_name.data} takes {len(kernel.arguments)} arguments, got {len(arguments)}"
        )
    out: list[Any] = []
    not_negative = kernel.integers(NONNEGATIVE)
    for number, (parameter, given) in enumerate(zip(kernel.arguments, arguments, strict=True)):
        what, t = f"argument {number} ({parameter.name_hint or 'unnamed'})", parameter.type
        if isinstance(t, (ArrayType, PointerType)):
            out.append(_bound_memory(what, t, given, memory))
        elif is_float(t) or np.asarray(given).dtype.kind != "f":
            out.append(rounded(np.asarray(given), t))
        else:
            out.append(to_integer(np.asarray(given), t))
            if number in not_negative and out[-1] < 0:
                raise BadArgument(f"{what} is {given}; the kernel is specialized for numbers >= 0")
    return out


def _bound_memory(
    what: str, t: ArrayType | PointerType, given: object, memory: GlobalMemory
) -> Array | np.int64:
    """A NumPy array as an argument that is an array, or a pointer to its first element."""
    if not isinstance(given, np.ndarray):
        raise BadArgument(f"{what} is to be a NumPy array, not {type(given).__name__}")
    addresses = isinstance(t.element, PointerType)
    want = dtype_of(t.element)
    if given.dtype != want and not (addresses and given.dtype == np.uint64):
        raise BadArgument(f"{what} has elements {given.dtype}, the kernel takes {want}")
    pointer = memory.register(given, what)
    if isinstance(t, PointerType):
        return np.int64(pointer)
    if given.ndim != t.rank:
        raise BadArgument(f"{what} has rank {given.ndim}, the kernel takes rank {t.rank}")
    array = Array(pointer, given.shape, tuple(s // given.itemsize for s in given.strides), want)
    _check_facts(what, t, array, given.ctypes.data)
    return array


def _check_facts(what: str, t: ArrayType, array: Array, address: int) -> None:
    """A kernel is made for arrays of which its type's facts hold."""
    for name, facts, numbers in (
        ("extents", t.facts.shape, array.shape),
        ("strides", t.facts.strides, array.strides),
    ):
        for axis, (fact, n) in enumerate(zip(facts, numbers, strict=False)):
            if name == "strides" and (array.shape[axis] <= 1 or 0 in array.shape):
                continue  # nobody ever steps along it
            if n != fact.exact if fact.exact is not None else n % fact.divisor:
                raise BadArgument(
                    f"{what} has {name} {list(numbers)}, the kernel is made for {fact} along axis"
                    f" {axis}"
                )
    if address % t.facts.align:
        raise BadArgument(
            f"{what} starts at an address that is no multiple of {t.facts.align} bytes"
        )


def run(
    module: ModuleOp | tile.Kernel,
    arguments: Sequence[Any],
    grid: Sequence[int],
    programs: Iterable[Sequence[int]] | None = None,
    *,
    buffers: Sequence[np.ndarray] = (),
    memory: GlobalMemory | None = None,
    interpreter: type[ProgramInterpreter] = ProgramInterpreter,
    out: Callable[[str], object] = print,
) -> None:
    """Runs every program of `grid` (or only `programs`) in order, writing the arrays among
    `arguments` in place.

    arguments: one for each block argument of the kernel, NumPy arrays (ml_dtypes for bfloat16 and
    float8) and Python numbers. buffers: further arrays that addresses in the arguments point to.
    memory: where all of them are put (None: in a new one). Raises SimulationError and its kinds,
    naming the source line.
    """
    kernel, memory = kernel_of(module), memory or GlobalMemory()
    for number, array in enumerate(buffers):
        memory.register(array, f"buffers[{number}]")
    values, shape = bind(kernel, arguments, memory), tuple(grid)
    code: dict[Operation, Decoded] = {}
    with np.errstate(all="ignore"):
        if "persistent" in kernel.attributes:
            made = partial(interpreter, memory, (0, 0, 0), shape, out, code)
            run_blocks(kernel, values, made)
            return
        for program in programs if programs is not None else programs_of(grid):
            m = interpreter(memory, tuple(program), shape, out, code)
            m.assign(kernel.arguments, values)
            m.run(kernel.body.block)


def programs_of(grid: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The programs of a grid, axis 0 fastest."""
    return (p[::-1] for p in np.ndindex(*tuple(grid)[::-1]))
