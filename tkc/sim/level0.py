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
computed, OffsetOverflow is raised (`Machine.exact` keeps such values beside the wrapped ones).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import ml_dtypes
import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, bf16, f16, f32, f64, i1, i8, i16, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import threads, tile
from tkc.ir.messages import filled
from tkc.ir.types import (
    ArrayType,
    PointerType,
    TileType,
    element_of,
    f8e4m3,
    f8e5m2,
    is_float,
    is_integer,
    is_unsigned,
    ui8,
    ui16,
    ui32,
    ui64,
)
from tkc.sim.errors import AssertionFailed, BadArgument, OffsetOverflow, SimulationError
from tkc.sim.global_memory import WRAPPED, GlobalMemory

NUMPY = {
    t: np.dtype(d)
    for t, d in {
        i1: np.bool_,
        i8: np.int8,
        i16: np.int16,
        i32: np.int32,
        i64: np.int64,
        ui8: np.uint8,
        ui16: np.uint16,
        ui32: np.uint32,
        ui64: np.uint64,
        f16: np.float16,
        bf16: ml_dtypes.bfloat16,
        f32: np.float32,
        f64: np.float64,
        f8e4m3: ml_dtypes.float8_e4m3fn,
        f8e5m2: ml_dtypes.float8_e5m2,
    }.items()
}
LARGEST = {f8e4m3: 448.0, f8e5m2: 57344.0}
MOST_ROUNDS = 1_000_000
ONE_THREAD = 1 << 18  # multiplications that OpenBLAS does without its threads


def dtype_of(t: Attribute) -> np.dtype:
    """The NumPy type of an element type, or of the elements of a tile type."""
    t = element_of(t)
    return NUMPY[i64 if type(t) is PointerType else t]


def shape_of(t: Attribute) -> tuple[int, ...]:
    return t.extents if isinstance(t, TileType) else ()


def widened(x: np.ndarray) -> np.ndarray:
    """Short floats as float32, everything else as it is."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.itemsize <= 2 and x.dtype.kind in "fV" else x


def rounded(x: np.ndarray, t: Attribute) -> np.ndarray:
    """Values as elements of type t: floats to nearest even, integers wrap."""
    x, t = np.asarray(x), element_of(t)
    if x.dtype == dtype_of(t):
        return x
    if t in LARGEST:
        x = np.clip(x, -LARGEST[t], LARGEST[t])
    return x.astype(dtype_of(t))


def to_integer(x: np.ndarray, t: Attribute) -> np.ndarray:
    """Floats truncated to an integer type, saturating; NaN gives 0."""
    d, x = (
        np.iinfo(dtype_of(t)),
        np.trunc(
            np.nan_to_num(widened(x).astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        ),
    )
    inside = (x > float(d.min) - 1) & (x < float(d.max) + (d.bits < 64))
    return np.where(
        inside,
        np.where(inside, x, 0).astype(d.dtype),
        np.where(x < 0, d.dtype.type(d.min), d.dtype.type(d.max)),
    )


@dataclass(frozen=True)
class Array:
    """An array in global memory; strides in elements. `fault`: why no element may be accessed."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    fault: str = ""


# --------------------------------------------------------------------------------------------------
def _in64(f):
    return lambda *x: f(
        *(np.asarray(v, np.float64) if np.asarray(v).dtype == np.float32 else v for v in x)
    )


def _unsigned(x):
    return np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}")


def _width(x):
    return np.asarray(x).dtype.itemsize * 8


def _mulhi(a, b):
    product = np.asarray(a, object) * np.asarray(b, object) >> _width(a)
    return np.asarray(product).astype(a.dtype)


FUNCTIONS = {
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
    "popcount": lambda x: np.bitwise_count(_unsigned(x)),
    "clz": lambda x: sum((_unsigned(x) >> k == 0).astype(np.int64) for k in range(_width(x))),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "div": np.divide,
    "div_rn": np.divide,
    "pow": _in64(np.power),
    "atan2": _in64(np.arctan2),
    "floordiv": np.floor_divide,
    "mod": np.mod,
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
    "fma": _in64(lambda a, b, c: a * b + c),
}
EXACT = {"add", "sub", "mul", "neg", "abs", "shl", "floordiv", "mod", "max", "min"}


def elementwise(m, op, *x):
    return rounded(FUNCTIONS[op.fn.name](*map(widened, x)), op.result.type)


def inline(m, op, *x):
    try:
        found = op.function(*x)
    except LookupError as e:
        raise SimulationError(str(e)) from None
    return tuple(
        np.broadcast_to(rounded(v, r.type), shape_of(r.type))
        for v, r in zip(found if isinstance(found, tuple) else (found,), op.results, strict=True)
    )


def cast(m, op, x):
    t = element_of(op.result.type)
    if t == i1:
        return widened(x) != 0
    return (
        to_integer(x, t)
        if is_integer(t) and np.asarray(x).dtype.kind not in "iub"
        else rounded(widened(x), t)
    )


def bitcast(m, op, x):
    source, target = element_of(op.arg.type), element_of(op.result.type)
    if isinstance(target, PointerType):
        return x if isinstance(source, PointerType) else m.memory.of_host(x)
    if isinstance(source, PointerType):
        x = m.memory.to_host(x)
    return np.ascontiguousarray(x).reshape(shape_of(op.result.type)).view(dtype_of(target))


def pointer_add(m, op, pointer, offset):
    offset, wrapped = m.offsets(op.offset)
    return np.where(
        wrapped, WRAPPED, pointer + offset * dtype_of(element_of(op.pointer.type).element).itemsize
    )


# --------------------------------------------------------------------------------------------------
REDUCE = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
    "xor": np.bitwise_xor,
}


def accumulated(x: np.ndarray) -> np.ndarray:
    """In the type that sums are computed in."""
    x = widened(x)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def combined(m, region: Region, left: tuple, right: tuple) -> tuple:
    """A combine region applied to whole arrays at once (element by element where it branches)."""
    if not any(op.regions for op in region.block.ops):
        return tuple(np.broadcast_to(v, left[0].shape) for v in m.region(region, (*left, *right)))
    each = [m.region(region, [v[i] for v in (*left, *right)]) for i in np.ndindex(left[0].shape)]
    return tuple(
        np.array([e[k] for e in each]).reshape(left[0].shape).astype(v.dtype)
        for k, v in enumerate(left)
    )


def prefixes(m, op, x, axis) -> list[tuple]:
    """The running combinations along an axis, one an index."""
    slices = [tuple(np.take(v, i, axis) for v in x) for i in range(x[0].shape[axis])]
    for i in range(1, len(slices)):
        slices[i] = combined(m, op.combine, slices[i - 1], slices[i])
    return slices


def reduce(m, op, *x):
    kind, axis = op.kind.data, op.axis.value.data
    if kind == "combine":
        return prefixes(m, op, x, axis)[-1]
    if kind in ("argmax", "argmin"):
        return rounded(getattr(np, kind)(widened(x[0]), axis=axis), op.result.type)
    return rounded(
        REDUCE[kind].reduce(accumulated(x[0]), axis=axis, dtype=accumulated(x[0]).dtype),
        op.result.type,
    )


def scan(m, op, *x):
    kind, axis = op.kind.data, op.axis.value.data
    turned = (lambda v: np.flip(v, axis)) if op.reverse else (lambda v: v)
    if kind == "combine":
        return tuple(
            turned(np.stack(column, axis))
            for column in zip(*prefixes(m, op, [turned(v) for v in x], axis), strict=False)
        )
    return turned(
        rounded(
            REDUCE[kind].accumulate(
                turned(accumulated(x[0])), axis=axis, dtype=accumulated(x[0]).dtype
            ),
            op.result.type,
        )
    )


def sort(m, op, x):
    x, down = widened(x), op.descending is not None
    if x.dtype.kind == "f":
        return rounded(-np.sort(-x) if down else np.sort(x), op.result.type)  # NaN last both ways
    return np.flip(np.sort(x), -1) if down else np.sort(x)


def histogram(m, op, x, mask=True):
    counted = x[mask & (x >= 0) & (x < op.result.type.size)]
    return np.bincount(counted.astype(np.int64), minlength=op.result.type.size).astype(np.int32)


# --------------------------------------------------------------------------------------------------
def tf32(x: np.ndarray) -> np.ndarray:
    """float32 with 10 bits of mantissa: to nearest, ties away from zero."""
    word = np.asarray(x, np.float32).view(np.uint32)
    return np.where(
        np.isfinite(x), (word + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32), x
    )


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, so few rows at once that BLAS takes one thread: on a busy machine, to wake the others
    takes longer than to multiply tiles.
    """
    rows = max(1, ONE_THREAD // max(1, a.shape[-1] * b.shape[-1]))
    return (
        a @ b
        if a.shape[-2] <= rows
        else np.concatenate([a[..., i : i + rows, :] @ b for i in range(0, a.shape[-2], rows)], -2)
    )


def product(a: np.ndarray, b: np.ndarray, precision: str) -> np.ndarray:
    """a·b of the last two axes, in the wide type of `dot`."""

    def exact(x, y):
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


def dot(m, op, a, b, acc):
    return rounded(accumulated(acc) + product(a, b, op.precision.data), op.result.type)


# --------------------------------------------------------------------------------------------------
def view(m, op, array, *_):
    offsets, pointer, shape, strides, fault = iter(op.offsets), array.pointer, [], [], array.fault
    for kind, extent, stride in zip(
        (k.data for k in op.kinds), array.shape, array.strides, strict=False
    ):
        start = m.offset(next(offsets)) if kind != "all" else 0
        if kind == "slice":
            start, extent = start, max(0, min(m.offset(next(offsets)), extent) - start)
        fault = fault or (
            f"index {start} of an extent of {extent}"
            if kind == "index" and not 0 <= start < extent
            else f"a view from {start}"
            if start < 0
            else ""
        )
        pointer += start * stride * array.dtype.itemsize
        if kind != "index":
            shape.append(extent)
            strides.append(stride)
    return replace(array, pointer=pointer, shape=tuple(shape), strides=tuple(strides), fault=fault)


def make_array(m, op, pointer, *_):
    if not isinstance(op.pointer.type, PointerType):
        pointer = m.memory.of_host(pointer)
    return Array(
        int(pointer),
        *(tuple(m.offset(v) for v in group) for group in (op.shape, op.strides)),
        dtype_of(op.result.type.element),
    )


def block(m, op) -> tuple[np.ndarray, np.ndarray]:
    """Pointers of a block of an array, and which elements of it exist and are not masked."""
    array, rank, axis, lost = m[op.array], sum(n >= 0 for n in op.extents.get_values()), 0, False
    at, live = (
        np.int64(m[op.array].pointer),
        np.broadcast_to(
            True if op.mask is None else m[op.mask], [n for n in op.extents.get_values() if n >= 0]
        ),
    )

    def placed(x, extent, axis):
        return np.reshape(x, [-1 if a == axis else 1 for a in range(rank)]) if extent >= 0 else x

    for offset, extent, bound, stride in zip(
        op.offsets, op.extents.get_values(), array.shape, array.strides, strict=False
    ):
        start, wrapped = m.offsets(offset)
        whole = start if start.ndim or extent < 0 else start + np.arange(extent)
        index = placed(whole, extent, axis)
        at, live, lost, axis = (
            at + index * stride * array.dtype.itemsize,
            live & (index >= 0) & (index < bound),
            lost | placed(wrapped, extent, axis),
            axis + (extent >= 0),
        )
    if array.fault and live.any():
        raise SimulationError(f"an access through a view that does not exist: {array.fault}")
    return np.broadcast_to(np.where(lost, WRAPPED, at), live.shape), np.asarray(live)


def translated(m, t, x):
    """Addresses read from memory are those of the host."""
    return m.memory.of_host(x) if isinstance(element_of(t), PointerType) else x


def load(m, op, *_):
    return translated(
        m,
        op.result.type,
        m.memory.load(
            *block(m, op), dtype_of(op.result.type), 0 if op.other is None else m[op.other]
        ),
    )


def stored(m, t, x):
    return m.memory.to_host(x) if isinstance(element_of(t), PointerType) else x


def store(m, op, *_):
    pointers, live = block(m, op)
    m.memory.store(
        pointers, live, np.broadcast_to(stored(m, op.value.type, m[op.value]), live.shape)
    )


def live_pointers(m, op) -> tuple[np.ndarray, np.ndarray]:
    pointers = np.asarray(m[op.pointers])
    return pointers, np.array(
        np.broadcast_to(True if op.mask is None else m[op.mask], pointers.shape)
    )


def load_pointers(m, op, *_):
    return translated(
        m,
        op.result.type,
        m.memory.load(
            *live_pointers(m, op), dtype_of(op.result.type), 0 if op.other is None else m[op.other]
        ),
    )


def store_pointers(m, op, *_):
    pointers, live = live_pointers(m, op)
    m.memory.store(
        pointers, live, np.broadcast_to(stored(m, op.value.type, m[op.value]), live.shape)
    )


UPDATES = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exchange": lambda old, new: new,
}


def update(m, kind, pointers, live, value, expected, t) -> np.ndarray:
    """Read-modify-write, element after element where two share an address; gives the old values."""
    value, expected = (np.broadcast_to(v, pointers.shape) for v in (value, expected))
    old = np.zeros(pointers.shape, dtype_of(t))
    for i in (
        [...] if len(set(pointers[live].tolist())) == live.sum() else np.ndindex(pointers.shape)
    ):
        at, on = np.asarray(pointers[i]), np.asarray(live[i])
        old[i] = before = m.memory.load(at, on, dtype_of(t))
        if kind == "compare":
            on, new = on & (before == expected[i]), value[i]
        else:
            new = rounded(UPDATES[kind](widened(before), widened(value[i])), t)
        m.memory.store(at, on, np.asarray(new))
    return old


def atomic(m, op, *_):
    old = update(
        m,
        op.kind.data,
        *live_pointers(m, op),
        m[op.value],
        m[op.expected] if op.expected is not None else 0,
        element_of(op.pointers.type).element,
    )
    return old if op.result is not None else None


def atomic_block(m, op, *_):
    update(m, op.kind.data, *block(m, op), m[op.value], 0, op.value.type)


# --------------------------------------------------------------------------------------------------
def check(message: str):
    def rule(m, op, condition):
        if not np.all(condition):
            raise AssertionFailed(op.text.data if hasattr(op, "text") else message)

    return rule


def multiple(m, op, x):
    if (np.asarray(x) % op.divisor.value.data).any():
        raise AssertionFailed(f"{x} is promised to be a multiple of {op.divisor.value.data}")
    return x


def show(m, op, *x):
    m.out(filled(op.text.data, [*map(str, x)]))


# --------------------------------------------------------------------------------------------------
def for_(m, op, low, high, step, *carried):
    low, high, step = (m.offset(v) for v in (op.lb, op.ub, op.step))
    if step <= 0:
        raise SimulationError(f"a loop with step {step}")
    for i in range(low, high, step):
        carried = m.region(op.body, (rounded(i, op.lb.type), *carried))
    return tuple(carried)


def if_(m, op, condition):
    return m.region(op.true_region if condition else op.false_region, ())


def repeats(m, entered: Sequence, carried: Sequence, stores: int) -> bool:
    """Whether the next round of a loop does what the last did, for all that it carries and all of
    memory are as they were.
    """
    return m.memory.stores == stores and all(
        np.array_equal(a, b, np.asarray(a).dtype.kind == "f")
        for a, b in zip(entered, carried, strict=False)
    )


def while_(m, op, *carried):
    for _ in range(MOST_ROUNDS):
        entered, stores = carried, m.memory.stores
        goes_on, *carried = m.region(op.before_region, entered)
        if not goes_on:
            return tuple(carried)
        carried = m.region(op.after_region, carried)
        if repeats(m, entered, carried, stores):
            raise SimulationError("a while loop waits for what no program before this one writes")
    raise SimulationError(f"a while loop that does not end within {MOST_ROUNDS} rounds")


# --------------------------------------------------------------------------------------------------
SHAPES = {
    tile.Splat: lambda m, op, x: np.broadcast_to(x, op.result.type.extents),
    tile.Broadcast: lambda m, op, x: np.broadcast_to(x, op.result.type.extents),
    tile.Reshape: lambda m, op, x: np.reshape(x, op.result.type.extents),
    tile.Transpose: lambda m, op, x: np.transpose(x, op.permutation.get_values()),
    tile.Slice: lambda m, op, x: x[
        tuple(
            slice(o, o + (n - 1) * s + 1, s)
            for o, n, s in zip(
                op.offsets.get_values(), op.result.type.extents, op.steps, strict=False
            )
        )
    ],
    tile.Extract: lambda m, op, x: x[tuple(op.index.get_values())],
    tile.Flip: lambda m, op, x: np.flip(x, op.axis.value.data),
    tile.Concat: lambda m, op, *x: np.concatenate(x, op.axis.value.data),
    tile.Multiple: multiple,
    ew.Select: lambda m, op, c, a, b: np.where(c, a, b),
}


def workspace(m, op):
    """One buffer for the launch, whatever program asks first."""
    if op not in m.memory.workspaces:
        m.memory.workspaces[op] = m.memory.register(
            np.zeros(op.bytes.value.data * (1 if op.whole else math.prod(m.grid)), np.uint8).view(
                dtype_of(op.result.type.element)
            ),
            "the workspace",
        )
    return np.int64(m.memory.workspaces[op])


def next_program(m, op, total):
    """The one block of a persistent kernel claims every program after its first."""
    m.claimed += 1
    return np.int32(m.claimed)


RULES = (
    SHAPES
    | dict.fromkeys(ew.CLASSES.values(), elementwise)
    | {
        ew.Cast: cast,
        ew.Bitcast: bitcast,
        ew.PointerAdd: pointer_add,
        ew.InlinePtx: inline,
        tile.Constant: lambda m, op: np.full(
            shape_of(op.result.type), op.number, dtype_of(op.result.type)
        ),
        tile.ProgramId: lambda m, op: np.int32(m.program[op.axis.value.data]),
        tile.NumPrograms: lambda m, op: np.int32(m.grid[op.axis.value.data]),
        tile.Arange: (
            lambda m, op: (op.start.value.data + np.arange(op.result.type.size)).astype(
                dtype_of(op.result.type)
            )
        ),
        tile.Reduce: reduce,
        tile.Scan: scan,
        tile.Sort: sort,
        tile.Histogram: histogram,
        tile.Dot: dot,
        tile.Dim: lambda m, op, a: rounded(a.shape[op.axis.value.data], op.result.type),
        tile.Stride: lambda m, op, a: rounded(a.strides[op.axis.value.data], op.result.type),
        tile.Pointer: lambda m, op, a: np.int64(a.pointer),
        tile.View: view,
        tile.MakeArray: make_array,
        tile.Load: load,
        tile.Store: store,
        tile.LoadPointers: load_pointers,
        tile.StorePointers: store_pointers,
        threads.NextProgram: next_program,
        threads.Workspace: workspace,
        threads.Identity: lambda m, op: np.int32(
            {"blocks": 1, "clusters": 1, "cluster_rank": m.rank, "member": m.member}.get(
                op.what.data, 0
            )
        ),
        tile.Atomic: atomic,
        tile.AtomicBlock: atomic_block,
        tile.Assume: check("a promised condition does not hold"),
        tile.Assert: check(""),
        tile.Print: show,
        threads.Vote: lambda m, op, x: np.bool_(np.all(x)),
        scf.ForOp: for_,
        scf.IfOp: if_,
        scf.WhileOp: while_,
    }
)
TERMINATORS = {tile.Return, tile.Yield, scf.YieldOp, scf.ConditionOp}
SCALARS = (np.generic, bool, int, float)


class Decoded(NamedTuple):
    """What every visit of an operation would ask it again. follows: integers whose mathematical
    value is kept, "computed" or "moved" with them.
    """

    rule: Callable | None
    operands: tuple[SSAValue, ...]
    results: tuple[SSAValue, ...]
    follows: str = ""
    always: bool = False  # may wrap by itself: not only where an operand did

    @staticmethod
    def of(op: Operation, rules: dict) -> Decoded:
        rule, operands, results = rules.get(type(op)), tuple(op.operands), tuple(op.results)
        t = element_of(results[0].type) if results else None
        if t is None or not is_integer(t) or is_unsigned(t):
            return Decoded(rule, operands, results)
        if isinstance(op, ew.Elementwise) and op.fn.name in EXACT:
            return Decoded(rule, operands, results, "computed", t != i64)
        return Decoded(
            rule,
            operands,
            results,
            "moved" if isinstance(op, ew.Cast) or type(op) in SHAPES else "",
        )


class Machine:
    """One program: its values, its place in the grid, and the memory it shares with the others. A
    persistent kernel is one program for each block of one cluster, which takes all of the grid in
    turn. code: what is known of operations, which programs of one launch share.
    """

    rules = RULES
    rank = member = claimed = 0

    def __init__(
        self,
        memory: GlobalMemory,
        program: Sequence[int],
        grid: Sequence[int],
        out=print,
        code: dict[Operation, Decoded] | None = None,
    ):
        self.memory, self.out, self.values, self.exact, self.code = (
            memory,
            out,
            {},
            {},
            {} if code is None else code,
        )
        self.program, self.grid = (*program, 0, 0, 0), (*grid, 1, 1, 1)

    def __getitem__(self, value: SSAValue):
        return self.values[value]

    def assign(self, targets: Iterable[SSAValue], values: Iterable) -> None:
        for target, value in zip(targets, values, strict=True):
            self.values[target] = np.asarray(value) if isinstance(value, SCALARS) else value

    def region(self, region: Region, arguments: Sequence) -> tuple:
        """Runs a region's block; gives what its terminator yields."""
        if not region.blocks:
            return ()
        self.assign(region.block.args, arguments)
        return self.run(region.block)

    def run(self, block: Block) -> tuple:
        for op in block.ops:
            if type(op) in TERMINATORS:
                return tuple([self.values[v] for v in op.operands])
            self.execute(op)
        return ()

    def execute(self, op: Operation) -> None:
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
        if not code.always and not any(v in self.exact for v in code.operands):
            return
        x, result = (
            [np.asarray(self.exact.get(v, self.values[v])) for v in code.operands],
            code.results[0],
        )
        x = [v.astype(np.int64) if v.dtype.kind in "iu" else v for v in x]
        exact = (
            FUNCTIONS[op.fn.name](*x)
            if code.follows == "computed"
            else x[0]
            if isinstance(op, ew.Cast)
            else SHAPES[type(op)](self, op, *x)
        )
        if np.array_equal(exact, self.values[result]):
            self.exact.pop(result, None)
        else:
            self.exact[result] = exact

    def offsets(self, value: SSAValue) -> tuple[np.ndarray, np.ndarray]:
        """Integers used as offsets (int64), and where they are not the mathematical ones."""
        number = np.asarray(self.values[value])
        wrapped = (
            self.exact[value] != number
            if value in self.exact
            else np.zeros((1,) * number.ndim, bool)
        )
        return number.astype(np.int64), wrapped

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


def bind(kernel: tile.Kernel, arguments: Sequence, memory: GlobalMemory) -> list:
    """Arguments as the machine's values."""
    types, out = [a.type for a in kernel.arguments], []
    if len(arguments) != len(types):
        raise BadArgument(
            f"@{kernel.sym_name.data} takes {len(types)} arguments, got {len(arguments)}"
        )
    for number, (t, given) in enumerate(zip(types, arguments, strict=False)):
        what = f"argument {number} ({kernel.arguments[number].name_hint or 'unnamed'})"
        if isinstance(t, (ArrayType, PointerType)) and isinstance(given, np.ndarray):
            want = np.dtype(np.int64) if isinstance(t.element, PointerType) else dtype_of(t.element)
            if given.dtype != want and not (
                isinstance(t.element, PointerType) and given.dtype == np.uint64
            ):
                raise BadArgument(f"{what} has elements {given.dtype}, the kernel takes {want}")
            pointer = memory.register(given, what)
            if isinstance(t, PointerType):
                out.append(np.int64(pointer))
                continue
            if given.ndim != t.rank:
                raise BadArgument(f"{what} has rank {given.ndim}, the kernel takes rank {t.rank}")
            out.append(
                Array(pointer, given.shape, tuple(s // given.itemsize for s in given.strides), want)
            )
            _check_facts(what, t, out[-1], given.ctypes.data)
        elif isinstance(t, (ArrayType, PointerType)):
            raise BadArgument(f"{what} is to be a NumPy array, not {type(given).__name__}")
        else:
            out.append(
                rounded(np.asarray(given), t)
                if is_float(t) or np.asarray(given).dtype.kind != "f"
                else to_integer(np.asarray(given), t)
            )
    return out


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
    arguments: Sequence,
    grid: Sequence[int],
    programs: Iterable[Sequence[int]] | None = None,
    *,
    buffers: Sequence[np.ndarray] = (),
    machine: type[Machine] = Machine,
    out=print,
) -> None:
    """Runs every program of `grid` (or only `programs`) in order, writing the arrays among
    `arguments` in place.

    arguments: one for each block argument of the kernel, NumPy arrays (ml_dtypes for bfloat16 and
    float8) and Python numbers. buffers: further arrays that addresses in the arguments point to.
    Raises SimulationError and its kinds, naming the source line.
    """
    kernel, memory = kernel_of(module), GlobalMemory()
    for number, array in enumerate(buffers):
        memory.register(array, f"buffers[{number}]")
    values = bind(kernel, arguments, memory)
    with np.errstate(all="ignore"):
        persistent, order = (
            "persistent" in kernel.attributes,
            (
                programs
                if programs is not None
                else (p[::-1] for p in np.ndindex(*tuple(grid)[::-1]))
            ),
        )
        cluster, code = kernel.attributes.get("cluster"), {}
        blocks, members = (
            (
                cluster.data[0].value.data
                if cluster is not None and "spread" not in kernel.attributes
                else 1
            ),
            kernel.integer("members", 1),
        )
        for program in order if not persistent else range(blocks * members):
            m = machine(memory, (0, 0, 0) if persistent else tuple(program), tuple(grid), out, code)
            if persistent:
                m.rank, m.member = divmod(program, members)
            m.assign(kernel.arguments, values)
            m.run(kernel.body.block)
