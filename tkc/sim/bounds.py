"""How far two orders of the same sums may lie apart: level 0 with a bound on the rounding error
beside every float.

A value that carries an error is an array with an attribute `error` (of its shape, or 0): |value −
exact| ≤ error, whatever the order of the sums in it. One rule serves all functions that are
monotone in each argument between the corners of the box of arguments, x ± error; sums and dots have
the classic γ = n·u. Where a comparison could go either way, or a function has no bound, the error
is infinite: nothing is promised there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import product as corners
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import element_of, is_bool, is_float
from tkc.sim import level0
from tkc.sim.global_memory import MIDDLE, SHIFT, Buffer, GlobalMemory
from tkc.sim.level0 import ProgramInterpreter, dtype_of, widened

# by element type: the unit roundoff (twice it of short types), and the least positive number
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
LEAST_POSITIVE = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "bfloat16": 2.0**-133,
    "float16": 2.0**-24,
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
}
# operations that only move elements
MOVES: dict[type[Operation], level0.Rule] = {
    k: f for k, f in level0.SHAPES.items() if k not in (tile.Multiple, ew.Select)
}

# operations whose results are rounded no further than their operands
UNROUNDED = {*MOVES, tile.Load, tile.LoadPointers, tile.Sort, tile.Gather}
# functions without a bound where their last argument may be 0
SINGULAR_AT_ZERO = {"div", "div_rn", "reciprocal", "rsqrt", "log", "log2", "log1p"}
MAX_UPDATES = 64  # atomic operations on one element, whose roundings are allowed for
Error = np.ndarray | float  # a bound for each element, or one for all


class Inexact(np.ndarray):
    """An array with an error beside it; what NumPy makes of it has none until a rule says so."""

    error: Error = 0.0


def error_of(x: object) -> Error:
    """The bound on the rounding error of a value, of its shape or 0."""
    return getattr(x, "error", 0.0)


def wide(x: level0.Number) -> np.ndarray:
    """Numbers in float64; what is none as it is."""
    x = widened(x)
    with np.errstate(invalid="ignore"):
        return np.asarray(x).astype(np.float64) if x.dtype.kind in "fiub" else x


def rounding(value: np.ndarray, t: Attribute) -> Error:
    """Of one rounding to type t, doubled for functions that are not rounded correctly."""
    name = dtype_of(t).name
    if name not in UNIT_ROUNDOFF:
        return 0.0
    size = np.abs(wide(value))
    return np.where(np.isfinite(size), 2 * UNIT_ROUNDOFF[name] * size + LEAST_POSITIVE[name], 0.0)


def elementwise(
    m: ProgramInterpreter, op: ew.Elementwise, out: np.ndarray, *x: np.ndarray
) -> Error:
    """The most that the function differs at the corners of the box of its arguments."""
    f, errors = level0.FUNCTIONS[op.fn.name], [error_of(v) for v in x]
    if op.fn.name in ("sin", "cos"):
        return np.minimum(errors[0], 2.0)
    if any(np.any(e) and v.dtype.kind != "f" for v, e in zip(map(widened, x), errors, strict=True)):
        return functools.reduce(np.maximum, map(_any_error_is_infinite, errors))
    mid = wide(out)
    worst: Error = 0.0
    if any(np.any(e) for e in errors):
        for signs in corners((-1, 1), repeat=len(x)):
            there = wide(f(*(_moved(v, s * e) for v, s, e in zip(x, signs, errors, strict=True))))
            worst = np.maximum(worst, np.where(there == mid, 0.0, np.abs(there - mid)))
        if op.fn.name in SINGULAR_AT_ZERO:
            worst = np.where(np.abs(wide(x[-1])) <= errors[-1], np.inf, worst)
    return _any_error_is_infinite(worst) if is_bool(element_of(op.result.type)) else worst


def _any_error_is_infinite(error: Error) -> np.ndarray:
    """Of results that are right or wrong: nothing is promised where there is an error."""
    return np.where(np.asarray(error) > 0, np.inf, 0.0)


def _moved(x: np.ndarray, by: Error) -> np.ndarray:
    return wide(x) + by if widened(x).dtype.kind == "f" else np.asarray(x)


def select(
    m: ProgramInterpreter,
    op: ew.Select,
    out: np.ndarray,
    c: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
) -> Error:
    ea, eb = error_of(a), error_of(b)
    return np.where(
        error_of(c) > 0, np.abs(wide(a) - wide(b)) + ea + eb, np.where(np.asarray(c), ea, eb)
    )


def _dot_unit(op: tile.Dot, dtype: np.dtype) -> float:
    """The relative error of one product and sum. dtype: of the operands."""
    precision = op.precision.data
    if precision == "tf32" and dtype == np.float32:
        return 2.0**-10
    if precision == "tf32x3":
        return 2.0**-20
    u = UNIT_ROUNDOFF.get(dtype_of(op.result.type).name, 0.0)
    # float8 is summed with fewer bits
    return max(u, 2.0**-13) if dtype.itemsize == 1 and dtype.kind not in "iu" else u


def dot(
    m: ProgramInterpreter,
    op: tile.Dot,
    out: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    acc: np.ndarray,
) -> Error:
    x, y, k = np.abs(wide(a)), np.abs(wide(b)), a.shape[-1]
    ea, eb = error_of(a) + np.zeros_like(x), error_of(b) + np.zeros_like(y)
    inherited = error_of(acc) + x @ eb + ea @ y + ea @ eb
    return inherited + (k + 2) * _dot_unit(op, a.dtype) * (x @ y + np.abs(wide(acc)))


def reduce(
    m: ProgramInterpreter, op: tile.Reduce | tile.Scan, out: np.ndarray, *x: np.ndarray
) -> Error:
    kind, axis, length = op.kind.data, op.axis.value.data, x[0].shape[op.axis.value.data]
    error = np.broadcast_to(error_of(x[0]), x[0].shape)
    u = UNIT_ROUNDOFF.get(x[0].dtype.name, 0.0)
    match kind:
        case "max" | "min" | "fmax" | "fmin" if isinstance(op, tile.Reduce):
            return error.max(axis)
        case "max" | "min" | "fmax" | "fmin":
            return np.broadcast_to(error.max(axis, keepdims=True), x[0].shape)
        case "sum":
            return _summed(op, error, axis) + length * u * _summed(op, np.abs(wide(x[0])), axis)
        case "prod":
            return np.inf if error.any() else length * u * np.abs(wide(out))
    return np.inf if any(np.any(error_of(v)) for v in x) or kind == "combine" else 0.0


def _summed(op: tile.Reduce | tile.Scan, x: np.ndarray, axis: int) -> np.ndarray:
    if isinstance(op, tile.Reduce):
        return np.add.reduce(x, axis=axis)
    if not op.reverse:
        return np.add.accumulate(x, axis=axis)
    return np.flip(np.add.accumulate(np.flip(x, axis), axis=axis), axis)


def cast(m: ProgramInterpreter, op: ew.Cast, out: np.ndarray, x: np.ndarray) -> Error:
    error, t = error_of(x), element_of(op.result.type)
    if is_float(t):
        return error
    if is_bool(t):
        return _any_error_is_infinite(error)
    return np.where(np.asarray(error) > 0, np.asarray(error) + 1, 0.0)


def inline(m: ProgramInterpreter, op: ew.InlinePtx, out: object, *x: np.ndarray) -> Error:
    return np.inf if any(np.any(error_of(v)) for v in x) else 0.0


def bitcast(m: ProgramInterpreter, op: ew.Bitcast, out: np.ndarray, x: np.ndarray) -> Error:
    """What was a number is bits: they may be any where it was not exact."""
    error = error_of(x)
    if np.shape(out) == np.shape(x):
        return _any_error_is_infinite(np.broadcast_to(error, np.shape(x)))
    return np.inf if np.any(error) else 0.0


ERRORS: dict[type[Operation], level0.Rule] = dict.fromkeys(ew.CLASSES.values(), elementwise) | {
    ew.Select: select,
    ew.Cast: cast,
    ew.Bitcast: bitcast,
    ew.InlinePtx: inline,
    tile.Dot: dot,
    tile.Reduce: reduce,
    tile.Scan: reduce,
    tile.Gather: lambda m, op, out, x, i: np.take_along_axis(
        np.broadcast_to(error_of(x), x.shape), i.astype(np.int64), op.axis.value.data
    ),
    tile.Sort: lambda m, op, out, x: np.broadcast_to(error_of(x), x.shape).max(),
}


class BoundMemory(GlobalMemory):
    """What was stored with an error has it when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[int, np.ndarray] = {}
        self.first: dict[int, int] = {}

    def same(self, number: int) -> int:
        """The first buffer with the same bytes: an array may be given twice."""

        def span(b: Buffer) -> tuple[int, int]:
            return (b.host + b.low, b.data.size)

        if number not in self.first:
            own = span(self.buffers[number - 1])
            self.first[number] = next(i for i, b in enumerate(self.buffers, 1) if span(b) == own)
        return self.first[number]

    def note(self, pointers: np.ndarray, live: np.ndarray, error: Error, dtype: np.dtype) -> None:
        """Remembers the errors of what is stored."""
        error = np.broadcast_to(error, pointers.shape)
        for number in np.unique(pointers[live] >> SHIFT).tolist():
            b, which = self.buffers[number - 1], live & (pointers >> SHIFT == number)
            errors = self.errors.setdefault(
                self.same(number), np.zeros(b.data.size // dtype.itemsize + 1)
            )
            errors[self.places(pointers[which], number, dtype)] = error[which]

    def noted(self, pointers: np.ndarray, live: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The errors of what is loaded."""
        out = np.zeros(pointers.shape)
        for number in np.unique(pointers[live] >> SHIFT).tolist():
            if (
                0 < number <= len(self.buffers)
                and (errors := self.errors.get(self.same(number))) is not None
            ):
                which = live & (pointers >> SHIFT == number)
                out[which] = errors[self.places(pointers[which], number, dtype)]
        return out

    def of_array(self, number: int, array: np.ndarray) -> np.ndarray:
        """The errors of the elements of the array that was registered as this number."""
        if self.same(number) not in self.errors:
            return np.zeros(array.shape)
        whole, size = self.errors[self.same(number)], array.itemsize
        return np.array(
            np.ndarray(
                array.shape,
                whole.dtype,
                whole,
                -self.buffers[number - 1].low // size * whole.itemsize,
                [s // size * whole.itemsize for s in array.strides],
            )
        )

    def places(self, pointers: np.ndarray, number: int, dtype: np.dtype) -> np.ndarray:
        """The elements of a buffer that pointers point to, by their number from its first byte."""
        return (
            pointers - (number << SHIFT) - MIDDLE - self.buffers[number - 1].low
        ) // dtype.itemsize


def load(
    m: BoundInterpreter, op: tile.Load | tile.LoadPointers, out: np.ndarray, *_: np.ndarray
) -> Error:
    if not m.memory.errors:
        return 0.0
    return m.memory.noted(*level0.places_of(m, op), dtype_of(op.result.type))


def store(
    m: BoundInterpreter, op: tile.Store | tile.StorePointers, out: None, *_: np.ndarray
) -> None:
    error, t = error_of(m[op.value]), op.value.type
    if is_float(element_of(t)) or np.any(error) or m.memory.errors:
        m.memory.note(*level0.places_of(m, op), error, dtype_of(t))


def atomic(
    m: BoundInterpreter, op: tile.Atomic | tile.AtomicBlock, out: object, *_: np.ndarray
) -> Error:
    if not is_float(element_of(op.value.type)):
        return 0.0
    (pointers, live), t = level0.places_of(m, op), dtype_of(op.value.type)
    sizes = np.abs(wide(m.memory.load(pointers, live, t))) + np.abs(wide(m[op.value]))
    before = m.memory.noted(pointers, live, t)
    error = before + error_of(m[op.value]) + MAX_UPDATES * UNIT_ROUNDOFF[t.name] * sizes
    m.memory.note(pointers, live, error, t)
    return np.inf


ERRORS |= {
    tile.Load: load,
    tile.LoadPointers: load,
    tile.Store: store,
    tile.StorePointers: store,
    tile.Atomic: atomic,
    tile.AtomicBlock: atomic,
}


class BoundInterpreter(ProgramInterpreter):
    """One program, with errors."""

    memory: BoundMemory

    def execute(self, op: Operation) -> None:
        super().execute(op)
        error = self._error(op)
        if error is None or not op.results:
            return
        value, t = op.results[0], op.results[0].type
        out = self.values[value]
        if is_float(element_of(t)) and type(op) not in UNROUNDED:
            error = error + rounding(out, t)
        error = np.nan_to_num(error, nan=np.inf, posinf=np.inf)
        if not np.any(error):
            return
        inexact = np.asarray(out).view(Inexact)
        inexact.error = np.broadcast_to(error, np.shape(out))
        self.values[value] = inexact

    def _error(self, op: Operation) -> Error | None:
        """Of an operation's first result, before it is rounded; None: it has none of its own."""
        x = [self.values[v] for v in op.operands]
        if moves := MOVES.get(type(op)):
            if not any(np.any(error_of(v)) for v in x):
                return 0.0
            return moves(self, op, *(np.broadcast_to(error_of(v), np.shape(v)) for v in x))
        if rule := ERRORS.get(type(op)):
            return rule(self, op, self.values[op.results[0]] if op.results else None, *x)
        return None


def run(
    module: ModuleOp | tile.Kernel,
    arguments: Sequence[Any],
    grid: Sequence[int],
    programs: Iterable[Sequence[int]],
) -> list[np.ndarray | None]:
    """Runs programs of a level-0 kernel; gives for each argument that is an array the bound on each
    of its elements, None for the others.
    """
    kernel, memory = level0.kernel_of(module), BoundMemory()
    values = level0.bind(kernel, arguments, memory)
    with np.errstate(all="ignore"):
        code: dict[Operation, level0.Decoded] = {}
        for program in programs:
            m = BoundInterpreter(memory, tuple(program), tuple(grid), lambda text: None, code)
            m.assign(kernel.arguments, values)
            m.run(kernel.body.block)
    number, out = 0, []
    for given in arguments:
        number += isinstance(given, np.ndarray)
        out.append(memory.of_array(number, given) if isinstance(given, np.ndarray) else None)
    return out
