"""Levels 1 to 3: what shared buffers, copies and tokens add to level 0. Layouts move no value, so
they are ignored.

A buffer is an array [stages, *shape] of its element type, NaN (integers: −1) until it is written;
views of it are NumPy views. copy_async happens when its token is waited for: until then its
destination is poisoned, so that a read which is not ordered after the wait gets NaN. wait_copies
lands the groups it names and checks its depth: the groups in flight are a queue, `pending` of them
may stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tkc.ir import shared, threads, tile
from tkc.ir.layout import Layout
from tkc.ir.types import SharedType
from tkc.ir.values import layout_of, shared_type
from tkc.sim import level0
from tkc.sim.errors import OutOfBounds, SimulationError
from tkc.sim.level0 import ProgramInterpreter, dtype_of, rounded, shape_of


@dataclass
class Token:
    """Copies in flight: each is (buffer, values) until it lands."""

    copies: list[tuple[np.ndarray, np.ndarray]]


def poison(buffer: np.ndarray) -> None:
    """Fills a buffer with bits that are all 1: NaN, −1, True or the greatest number."""
    match buffer.dtype.kind:
        case "i":
            buffer[...] = -1
        case "u":
            buffer[...] = np.iinfo(buffer.dtype).max
        case "b":
            buffer[...] = True
        case _:
            buffer[...] = np.nan


def alloc(m: DataflowInterpreter, op: shared.Alloc) -> np.ndarray:
    t = op.result.type
    buffer = np.empty((t.stages, *t.extents), dtype_of(t))
    poison(buffer)
    return buffer


def stage(m: DataflowInterpreter, op: shared.Stage, ring: np.ndarray, *_: np.ndarray) -> np.ndarray:
    at = [m.offset(i) for i in op.index]
    if any(not 0 <= i < ring.shape[0] for i in at):
        raise OutOfBounds(f"stage {at[0]} of a ring of {ring.shape[0]}")
    return ring[at[0] : at[0] + 1] if at else ring


def shared_slice(
    m: DataflowInterpreter, op: shared.SharedSlice, buffer: np.ndarray, *_: np.ndarray
) -> np.ndarray:
    starts, extents = [m.offset(o) for o in op.offsets], op.result.type.extents
    parts, sizes = (
        [slice(o, o + n) for o, n in zip(starts, extents, strict=False)],
        buffer.shape[1:],
    )
    if any(p.start < 0 or p.stop > size for p, size in zip(parts, sizes, strict=False)):
        raise OutOfBounds(f"a slice at {starts} of a buffer of {list(sizes)}")
    return buffer[(slice(None), *parts)]


def block_of(m: DataflowInterpreter, op: shared.CopyIn) -> np.ndarray:
    """The values a copy moves, in the shape of its buffer."""
    t, other = shared_type(op.buffer), 0 if op.other is None else m[op.other]
    return m.memory.load(*level0.block(m, op), dtype_of(t), other).reshape(t.extents)


def read(m: DataflowInterpreter, op: shared.Read, buffer: np.ndarray, *_: Token) -> np.ndarray:
    return np.array(buffer[0]).reshape(shape_of(op.result.type))


def write(m: DataflowInterpreter, op: shared.Write, buffer: np.ndarray, value: np.ndarray) -> None:
    buffer[0] = np.reshape(value, buffer.shape[1:])


def broadcast_store(
    m: DataflowInterpreter, op: threads.BroadcastStore, box: np.ndarray, value: np.ndarray
) -> None:
    box.reshape(-1)[0] = value


def copy(m: DataflowInterpreter, op: shared.Copy, *_: Any) -> None:
    m[op.buffer][0] = block_of(m, op)


def copy_async(m: DataflowInterpreter, op: shared.CopyAsync, *_: Any) -> Token:
    token = Token([(m[op.buffer], block_of(m, op))])
    poison(m[op.buffer])
    m.in_flight.append(token)
    return token


def join_tokens(m: DataflowInterpreter, op: shared.JoinTokens, *tokens: Token) -> Token:
    m.in_flight = [t for t in m.in_flight if not any(t is given for given in tokens)]
    joined = Token([c for t in tokens for c in t.copies])
    m.in_flight.append(joined)
    return joined


def wait_copies(m: DataflowInterpreter, op: shared.WaitCopies, *tokens: Token) -> Token:
    pending = op.pending.value.data
    count = max(0, len(m.in_flight) - pending)
    landed, m.in_flight = m.in_flight[:count], m.in_flight[count:]
    late = [t for t in tokens if any(t is other for other in m.in_flight)]
    if late:
        raise SimulationError(f"a token is among the {pending} groups that may still be in flight")
    for token in landed:
        for buffer, values in token.copies:
            buffer[0] = values
        token.copies = []
    return Token([])


def lines_of_warps(layout: Layout, axis: int) -> list[np.ndarray]:
    """For each warp (of each block) along an axis, in order, the coordinates it holds on it."""
    within, starts = {0}, {0}
    for section in ("registers", "lanes"):
        within = {a + b for a in within for b in set(layout.offsets(section)[:, axis].tolist())}
    for section in ("warps", "blocks"):
        starts = {a + b for a in starts for b in set(layout.offsets(section)[:, axis].tolist())}
    return [
        np.array([c for c in sorted(start + w for w in within) if c < layout.shape[axis]], int)
        for start in sorted(starts)
    ]


def neutral(kind: str, dtype: np.dtype) -> float:
    """What a warp that holds only padding contributes."""
    if kind in ("fmax", "fmin"):
        return np.nan
    if kind not in ("max", "min"):
        return kind in ("prod", "all")
    if dtype.kind not in "iu":
        return -np.inf if kind == "max" else np.inf
    return np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max


def reduce_partial(
    m: DataflowInterpreter, op: shared.ReducePartial, *x: np.ndarray
) -> np.ndarray | level0.Results:
    kind, axis = op.kind.data, op.axis.value.data
    lines = lines_of_warps(layout_of(op.args[0]), axis)
    if op.combine is not None:
        runs = [[np.take(v, line, axis) for v in x] for line in lines if len(line)]
        found = [level0.prefixes(m, op, run, axis)[-1] for run in runs]
        return tuple(np.stack(part, axis) for part in zip(*found, strict=True))
    wide = level0.accumulated(x[0])
    nothing = np.full_like(np.take(wide, 0, axis), neutral(kind, wide.dtype))
    parts = [
        level0.REDUCE[kind].reduce(np.take(wide, line, axis), axis=axis) if len(line) else nothing
        for line in lines
    ]
    return rounded(np.stack(parts, axis), op.result.type)


def spread_partial(
    m: DataflowInterpreter, op: shared.SpreadPartial, parts: np.ndarray
) -> np.ndarray:
    axis, found = op.axis.value.data, np.empty(shape_of(op.result.type), parts.dtype)
    at = np.moveaxis(found, axis, -1)
    for i, line in enumerate(lines_of_warps(layout_of(op.result), axis)):
        at[..., line] = np.take(parts, i, axis)[..., None]
    return found


def scan_total(m: DataflowInterpreter, op: shared.ScanTotal, *x: np.ndarray) -> level0.Results:
    """Each warp's run alone; what only padding comes to changes nothing, or is any."""
    axis = op.axis.value.data
    lines = lines_of_warps(layout_of(op.args[0]), axis)
    prefixes = [np.zeros_like(v) for v in x]
    kind = op.kind.data
    nothing = [0 if op.combine is not None else neutral(kind, v.dtype) for v in x]
    totals = [
        np.full(shape_of(t.type), none, v.dtype)
        for v, t, none in zip(x, op.totals, nothing, strict=True)
    ]
    for i, line in enumerate(lines):
        if not len(line):
            continue
        found = level0.scan(m, op, *(np.take(v, line, axis) for v in x))
        for part, prefix, total in zip(_several(found), prefixes, totals, strict=True):
            _along(prefix, axis)[line] = _along(part, axis)
            _along(total, axis)[i] = np.take(part, 0 if op.reverse else -1, axis)
    return (*prefixes, *totals)


def joined(
    m: DataflowInterpreter,
    op: tile.AlongAxis,
    left: Sequence[np.ndarray],
    right: Sequence[np.ndarray],
) -> level0.Results:
    """Two partial results, the left one of what comes before."""
    if op.combine is not None:
        return level0.combined(m, op.combine, tuple(left), tuple(right))
    function = level0.REDUCE[op.kind.data]
    found = function(level0.accumulated(left[0]), level0.accumulated(right[0]))
    return (rounded(found, op.result.type),)


def scan_carry(
    m: DataflowInterpreter, op: shared.ScanCarry, *x: np.ndarray
) -> np.ndarray | level0.Results:
    """Runs in their order, each behind what those before it come to."""
    count, axis = len(op.results), op.axis.value.data
    prefixes, totals = x[:count], x[count:]
    runs = [(i, at) for i, at in enumerate(lines_of_warps(layout_of(op.args[0]), axis)) if len(at)]
    found = [np.array(v) for v in prefixes]
    before: level0.Results | None = None
    for i, line in reversed(runs) if op.reverse else runs:
        own = tuple(np.take(v, i, axis) for v in totals)
        if before is None:
            before = own
            continue
        part = [np.take(v, line, axis) for v in prefixes]
        outer = [
            np.broadcast_to(np.expand_dims(b, axis), p.shape)
            for b, p in zip(before, part, strict=True)
        ]
        for values, v in zip(found, joined(m, op, outer, part), strict=True):
            _along(values, axis)[line] = _along(v, axis)
        before = joined(m, op, before, own)
    return tuple(found) if count > 1 else found[0]


def _several(found: np.ndarray | level0.Results) -> level0.Results:
    return found if isinstance(found, tuple) else (found,)


def _along(x: np.ndarray, axis: int) -> np.ndarray:
    """A view with an axis in front."""
    return np.moveaxis(x, axis, 0)


def ring_next(
    m: DataflowInterpreter,
    op: threads.RingNext,
    stage: np.ndarray,
    parity: np.ndarray,
    steps: np.ndarray | int = 1,
) -> tuple[np.int32, np.int32]:
    wraps, following = divmod(int(stage) + int(steps), op.stages.value.data)
    return np.int32(following), np.int32(int(parity) ^ wraps & 1)


def dot(
    m: DataflowInterpreter, op: tile.Dot, a: np.ndarray, b: np.ndarray, acc: np.ndarray
) -> np.ndarray:
    """Operands may be buffers: what is in them."""
    a, b = (x[0] if isinstance(v.type, SharedType) else x for v, x in ((op.a, a), (op.b, b)))
    return level0.dot(m, op, a, b, acc)


def copy_out(m: DataflowInterpreter, op: shared.CopyOut, *_: Any) -> None:
    """A buffer to the block of the array that lies inside, or combined with what is there."""
    place, live = level0.block(m, op)
    values = np.reshape(m[op.buffer][0], place.shape)
    if op.reduce is None:
        m.memory.store(place, live, values)
    else:
        level0.update(m, op.reduce.data, (place, live), values, 0, shared_type(op.buffer).element)


RULES: level0.Rules = level0.RULES | {
    tile.Dot: dot,
    shared.CopyOut: copy_out,
    shared.Convert: lambda m, op, x: x,
    shared.SortFirst: lambda m, op, x: level0.sort(m, op, x)[..., : shape_of(op.result.type)[-1]],
    shared.ReducePartial: reduce_partial,
    shared.SpreadPartial: spread_partial,
    shared.ScanTotal: scan_total,
    shared.ScanCarry: scan_carry,
    shared.Alloc: alloc,
    shared.Stage: stage,
    shared.SharedSlice: shared_slice,
    shared.SharedTranspose: lambda m, op, b: np.transpose(
        b, (0, *(p + 1 for p in op.permutation.get_values()))
    ),
    shared.SharedReshape: lambda m, op, b: np.reshape(b, (1, *op.result.type.extents)),
    shared.Read: read,
    shared.Write: write,
    shared.Copy: copy,
    shared.CopyAsync: copy_async,
    shared.JoinTokens: join_tokens,
    shared.WaitCopies: wait_copies,
    shared.NoToken: lambda m, op: Token([]),
    threads.RingNext: ring_next,
    threads.BroadcastStore: broadcast_store,
    threads.BroadcastLoad: lambda m, op, box: box.reshape(-1)[0],
}


class DataflowInterpreter(ProgramInterpreter):
    """One program at level 1, 2 or 3."""

    rules = RULES

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.in_flight: list[Token] = []


def run(
    module: ModuleOp | tile.Kernel,
    arguments: Sequence[Any],
    grid: Sequence[int],
    programs: Iterable[Sequence[int]] | None = None,
    **options: Any,
) -> None:
    """level0.run for a kernel of level 0 to 3."""
    level0.run(module, arguments, grid, programs, interpreter=DataflowInterpreter, **options)
