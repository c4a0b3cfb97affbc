"""How far two orders of the same sums may lie apart: level 0 with a bound on the rounding error
beside every float.

A value that carries an error is an array with an attribute `error` (of its shape, or 0): |value −
exact| ≤ error, whatever the order of the sums in it. One rule serves all functions that are
monotone in each argument between the corners of the box of arguments, x ± error; sums and dots have
the classic γ = n·u. Where a comparison could go either way, or a function has no bound, the error
is infinite: nothing is promised there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product as corners

import numpy as np
from xdsl.ir import Operation

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import element_of, is_float
from tkc.sim import level0
from tkc.sim.global_memory import MIDDLE, SHIFT, GlobalMemory
from tkc.sim.level0 import dtype_of, widened

# and a margin of two where short
UNIT = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
LEAST = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "bfloat16": 2.0**-133,
    "float16": 2.0**-24,
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
}
MOVES = {k: f for k, f in level0.SHAPES.items() if k not in (tile.Multiple, ew.Select)}


class Inexact(np.ndarray):
    """An array with an error beside it; what NumPy makes of it has none until a rule says so."""

    error: np.ndarray | float = 0.0


def error_of(x) -> np.ndarray | float:
    return getattr(x, "error", 0.0)


def wide(x) -> np.ndarray:
    x = widened(x)
    with np.errstate(invalid="ignore"):
        return np.asarray(x).astype(np.float64) if x.dtype.kind in "fiub" else x


def rounding(value: np.ndarray, t) -> np.ndarray | float:
    """Of one rounding to type t, doubled for functions that are not rounded correctly."""
    name = dtype_of(t).name
    if name not in UNIT:
        return 0.0
    size = np.abs(wide(value))
    return np.where(np.isfinite(size), 2 * UNIT[name] * size + LEAST[name], 0.0)


def elementwise(m, op, out, *x):
    """The most that the function differs at the corners of the box of its arguments."""
    f, errors = level0.FUNCTIONS[op.fn.name], [error_of(v) for v in x]
    if op.fn.name in ("sin", "cos"):
        return np.minimum(errors[0], 2.0)
    if any(
        np.any(e) and v.dtype.kind != "f" for v, e in zip(map(widened, x), errors, strict=False)
    ):
        return np.where(sum(errors) > 0, np.inf, 0.0)
    mid, worst = wide(out), 0.0
    if any(np.any(e) for e in errors):
        for signs in corners((-1, 1), repeat=len(x)):
            there = wide(f(*(_moved(v, s * e) for v, s, e in zip(x, signs, errors, strict=False))))
            worst = np.maximum(worst, np.where(there == mid, 0.0, np.abs(there - mid)))
        if op.fn.name in ("div", "div_rn", "reciprocal", "rsqrt", "log", "log2", "log1p"):
            worst = np.where(np.abs(wide(x[-1])) <= errors[-1], np.inf, worst)
    return (
        np.where(worst > 0, np.inf, 0.0) if element_of(op.results[0].type) == level0.i1 else worst
    )


def _moved(x, by):
    return wide(x) + by if widened(x).dtype.kind == "f" else np.asarray(x)


def select(m, op, out, c, a, b):
    ea, eb = error_of(a), error_of(b)
    return np.where(
        error_of(c) > 0, np.abs(wide(a) - wide(b)) + ea + eb, np.where(np.asarray(c), ea, eb)
    )


def dot(m, op, out, a, b, acc):
    x, y, k = np.abs(wide(a)), np.abs(wide(b)), a.shape[-1]
    ea, eb = error_of(a) + np.zeros_like(x), error_of(b) + np.zeros_like(y)
    u = (
        2.0**-10
        if op.precision.data == "tf32" and a.dtype == np.float32
        else (
            2.0**-20
            if op.precision.data == "tf32x3"
            else UNIT.get(dtype_of(op.result.type).name, 0.0)
        )
    )
    if a.dtype.itemsize == 1 and a.dtype.kind not in "iu":
        u = max(u, 2.0**-13)  # float8 is summed with fewer bits
    return error_of(acc) + x @ eb + ea @ y + ea @ eb + (k + 2) * u * (x @ y + np.abs(wide(acc)))


def reduce(m, op, out, *x):
    kind, axis, error = op.kind.data, op.axis.value.data, error_of(x[0])
    error = np.broadcast_to(error, x[0].shape)
    if kind in ("max", "min"):
        return (
            error.max(axis)
            if isinstance(op, tile.Reduce)
            else np.broadcast_to(error.max(axis, keepdims=True), x[0].shape)
        )
    if kind == "sum":
        return _summed(np.add, op, error, axis) + x[0].shape[axis] * UNIT.get(
            x[0].dtype.name, 0.0
        ) * _summed(np.add, op, np.abs(wide(x[0])), axis)
    if kind == "prod":
        return (
            np.inf
            if error.any()
            else x[0].shape[axis] * UNIT.get(x[0].dtype.name, 0.0) * np.abs(wide(out))
        )
    return np.inf if any(np.any(error_of(v)) for v in x) or kind == "combine" else 0.0


def _summed(f, op, x, axis):
    if isinstance(op, tile.Reduce):
        return f.reduce(x, axis=axis)
    return (
        np.flip(f.accumulate(np.flip(x, axis), axis=axis), axis)
        if op.reverse
        else f.accumulate(x, axis=axis)
    )


def cast(m, op, out, x):
    error = error_of(x)
    if is_float(element_of(op.result.type)):
        return error
    return np.where(
        error > 0, np.inf if element_of(op.result.type) == level0.i1 else error + 1, 0.0
    )


def inline(m, op, out, *x):
    return np.inf if any(np.any(error_of(v)) for v in x) else 0.0


def bitcast(m, op, out, x):
    """What was a number is bits: they may be any where it was not exact."""
    error = error_of(x)
    return (
        np.where(np.broadcast_to(error, np.shape(x)) > 0, np.inf, 0.0)
        if np.shape(out) == np.shape(x)
        else np.inf
        if np.any(error)
        else 0.0
    )


ERRORS = dict.fromkeys(ew.CLASSES.values(), elementwise) | {
    ew.Select: select,
    ew.Cast: cast,
    ew.Bitcast: bitcast,
    ew.InlinePtx: inline,
    tile.Dot: dot,
    tile.Reduce: reduce,
    tile.Scan: reduce,
    tile.Sort: lambda m, op, out, x: np.broadcast_to(error_of(x), x.shape).max(),
}


class BoundMemory(GlobalMemory):
    """What was stored with an error has it when it is loaded."""

    def __init__(self):
        super().__init__()
        self.errors: dict[int, np.ndarray] = {}
        self.first: dict[int, int] = {}

    def same(self, number: int) -> int:
        """The first buffer with the same bytes: an array may be given twice."""

        def span(b):
            return (b.host + b.low, b.data.size)

        if number not in self.first:
            self.first[number] = next(
                i
                for i, b in enumerate(self.buffers, 1)
                if span(b) == span(self.buffers[number - 1])
            )
        return self.first[number]

    def note(self, pointers: np.ndarray, live: np.ndarray, error, dtype: np.dtype) -> None:
        error = np.broadcast_to(error, pointers.shape)
        for number in np.unique(pointers[live] >> SHIFT).tolist():
            b, which = self.buffers[number - 1], live & (pointers >> SHIFT == number)
            errors = self.errors.setdefault(
                self.same(number), np.zeros(b.data.size // dtype.itemsize + 1)
            )
            errors[self.places(pointers[which], number, dtype)] = error[which]

    def noted(self, pointers: np.ndarray, live: np.ndarray, dtype: np.dtype) -> np.ndarray:
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

    def places(self, pointers, number: int, dtype: np.dtype) -> np.ndarray:
        return (
            pointers - (number << SHIFT) - MIDDLE - self.buffers[number - 1].low
        ) // dtype.itemsize


def load(m, op, out, *_):
    place = (
        level0.live_pointers(m, op) if isinstance(op, tile.LoadPointers) else level0.block(m, op)
    )
    return m.memory.noted(*place, dtype_of(op.result.type)) if m.memory.errors else 0.0


def store(m, op, out, *_):
    place = (
        level0.live_pointers(m, op) if isinstance(op, tile.StorePointers) else level0.block(m, op)
    )
    error = error_of(m[op.value])
    if is_float(element_of(op.value.type)) or np.any(error) or m.memory.errors:
        m.memory.note(*place, error, dtype_of(op.value.type))


def atomic(m, op, out, *_):
    pointers, live = (
        level0.live_pointers(m, op) if isinstance(op, tile.Atomic) else level0.block(m, op)
    )
    if not is_float(element_of(op.value.type)):
        return 0.0
    t = dtype_of(op.value.type)
    sizes = np.abs(wide(m.memory.load(pointers, live, t))) + np.abs(wide(m[op.value]))
    m.memory.note(
        pointers,
        live,
        m.memory.noted(pointers, live, t) + error_of(m[op.value]) + 64 * UNIT[t.name] * sizes,
        t,
    )
    return np.inf


ERRORS |= {
    tile.Load: load,
    tile.LoadPointers: load,
    tile.Store: store,
    tile.StorePointers: store,
    tile.Atomic: atomic,
    tile.AtomicBlock: atomic,
}


class BoundMachine(level0.Machine):
    """One program, with errors."""

    def execute(self, op: Operation) -> None:
        super().execute(op)
        rule = MOVES.get(type(op)) or ERRORS.get(type(op))
        if rule is None:
            return
        x = [self.values[v] for v in op.operands]
        if type(op) in MOVES:
            error = (
                rule(self, op, *(np.broadcast_to(error_of(v), np.shape(v)) for v in x))
                if any(np.any(error_of(v)) for v in x)
                else 0.0
            )
        else:
            error = rule(self, op, self.values[op.results[0]] if op.results else None, *x)
        if not op.results:
            return
        out, t = self.values[op.results[0]], op.results[0].type
        if (
            type(op) not in MOVES
            and is_float(element_of(t))
            and not isinstance(op, (tile.Load, tile.LoadPointers, tile.Sort))
        ):
            error = error + rounding(out, t)
        error = np.nan_to_num(error, nan=np.inf, posinf=np.inf)
        if not np.any(error):
            return
        inexact = np.asarray(out).view(Inexact)
        inexact.error = np.broadcast_to(error, np.shape(out))
        self.values[op.results[0]] = inexact


def run(
    module, arguments: Sequence, grid: Sequence[int], programs: Iterable[Sequence[int]]
) -> list:
    """Runs programs of a level-0 kernel; gives for each argument that is an array the bound on each
    of its elements, None for the others.
    """
    kernel, memory = level0.kernel_of(module), BoundMemory()
    values = level0.bind(kernel, arguments, memory)
    with np.errstate(all="ignore"):
        code: dict = {}
        for program in programs:
            m = BoundMachine(memory, tuple(program), tuple(grid), lambda text: None, code)
            m.assign(kernel.arguments, values)
            m.run(kernel.body.block)
        number, out = 0, []
        for given in arguments:
            number += isinstance(given, np.ndarray)
            out.append(memory.of_array(number, given) if isinstance(given, np.ndarray) else None)
    return out
