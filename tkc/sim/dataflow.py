"""Levels 1 to 3: what shared buffers, copies and tokens add to level 0. Layouts move no value, so
they are ignored.

A buffer is an array [stages, *shape] of its element type, NaN (integers: −1) until it is written;
views of it are NumPy views. copy_async happens when its token is waited for: until then its
destination is poisoned, so that a read which is not ordered after the wait gets NaN. wait_copies
lands the groups it names and checks its depth: the groups in flight are a queue, `pending` of them
may stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tkc.ir import shared, threads, tile
from tkc.ir.layout import Layout
from tkc.ir.types import SharedType
from tkc.sim import level0
from tkc.sim.errors import OutOfBounds, SimulationError
from tkc.sim.level0 import Machine, dtype_of, rounded, shape_of


@dataclass
class Token:
    """Copies in flight: each is (buffer, values) until it lands."""

    copies: list[tuple[np.ndarray, np.ndarray]]


def poison(buffer: np.ndarray) -> None:
    buffer[...] = (
        -1
        if buffer.dtype.kind == "i"
        else (
            np.iinfo(buffer.dtype).max
            if buffer.dtype.kind == "u"
            else True
            if buffer.dtype.kind == "b"
            else np.nan
        )
    )


def alloc(m, op):
    buffer = np.empty((op.result.type.stages, *op.result.type.extents), dtype_of(op.result.type))
    poison(buffer)
    return buffer


def stage(m, op, ring, *index):
    at = [m.offset(i) for i in op.index]
    if any(not 0 <= i < ring.shape[0] for i in at):
        raise OutOfBounds(f"stage {at[0]} of a ring of {ring.shape[0]}")
    return ring[at[0] : at[0] + 1] if at else ring


def shared_slice(m, op, buffer, *_):
    starts, extents = [m.offset(o) for o in op.offsets], op.result.type.extents
    if any(
        o < 0 or o + n > size for o, n, size in zip(starts, extents, buffer.shape[1:], strict=False)
    ):
        raise OutOfBounds(f"a slice at {starts} of a buffer of {list(buffer.shape[1:])}")
    return buffer[(slice(None), *(slice(o, o + n) for o, n in zip(starts, extents, strict=False)))]


def block_of(m, op) -> np.ndarray:
    """The values a copy moves, in the shape of its buffer."""
    values = m.memory.load(
        *level0.block(m, op), dtype_of(op.buffer.type), 0 if op.other is None else m[op.other]
    )
    return values.reshape(op.buffer.type.extents)


def write(m, op, buffer, value):
    buffer[0] = np.reshape(value, buffer.shape[1:])


def post(m, op, box, value):
    box.reshape(-1)[0] = value


def copy(m, op, *_):
    m[op.buffer][0] = block_of(m, op)


def copy_async(m, op, *_):
    token = Token([(m[op.buffer], block_of(m, op))])
    poison(m[op.buffer])
    m.in_flight.append(token)
    return token


def join_tokens(m, op, *tokens):
    m.in_flight = [t for t in m.in_flight if not any(t is given for given in tokens)]
    joined = Token([c for t in tokens for c in t.copies])
    m.in_flight.append(joined)
    return joined


def wait_copies(m, op, *tokens):
    pending = op.pending.value.data
    landed, m.in_flight = (
        m.in_flight[: len(m.in_flight) - pending],
        m.in_flight[max(0, len(m.in_flight) - pending) :],
    )
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


def neutral(kind: str, dtype: np.dtype):
    """What a warp that holds only padding contributes."""
    if kind in ("max", "min"):
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        return (
            (limits.min if kind == "max" else limits.max)
            if limits
            else (-np.inf if kind == "max" else np.inf)
        )
    return kind in ("prod", "all")


def reduce_partial(m, op, x):
    axis, lines, ufunc = (
        op.axis.value.data,
        lines_of_warps(op.arg.type.register_layout, op.axis.value.data),
        level0.REDUCE[op.kind.data],
    )
    wide = level0.accumulated(x)
    parts = [
        (
            ufunc.reduce(np.take(wide, line, axis), axis=axis)
            if len(line)
            else np.full_like(np.take(wide, 0, axis), neutral(op.kind.data, wide.dtype))
        )
        for line in lines
    ]
    return rounded(np.stack(parts, axis), op.result.type)


def scan_total(m, op, x):
    prefixes = level0.scan(m, op, x)
    return prefixes, np.take(prefixes, 0 if op.reverse else -1, op.axis.value.data)


def ring_next(m, op, stage, parity, steps=1):
    wraps, stage = divmod(int(stage) + int(steps), op.stages.value.data)
    return np.int32(stage), np.int32(int(parity) ^ wraps & 1)


def dot(m, op, a, b, acc):
    """Factors may be buffers: what is in them."""
    a, b = (x[0] if isinstance(v.type, SharedType) else x for v, x in ((op.a, a), (op.b, b)))
    return level0.dot(m, op, a, b, acc)


def copy_out(m, op, *_):
    """A buffer to the block of the array that lies inside, or combined with what is there."""
    place, live = level0.block(m, op)
    values = np.reshape(m[op.buffer][0], place.shape)
    if op.reduce is None:
        m.memory.store(place, live, values)
    else:
        level0.update(m, op.reduce.data, place, live, values, 0, op.buffer.type.element)


RULES = level0.RULES | {
    tile.Dot: dot,
    shared.CopyOut: copy_out,
    shared.Convert: lambda m, op, x: x,
    shared.SortFirst: lambda m, op, x: level0.sort(m, op, x)[..., : op.result.type.extents[-1]],
    shared.ReducePartial: reduce_partial,
    shared.ScanTotal: scan_total,
    shared.Alloc: alloc,
    shared.Stage: stage,
    shared.SharedSlice: shared_slice,
    shared.SharedTranspose: lambda m, op, b: np.transpose(
        b, (0, *(p + 1 for p in op.permutation.get_values()))
    ),
    shared.SharedReshape: lambda m, op, b: np.reshape(b, (1, *op.result.type.extents)),
    shared.Read: lambda m, op, b, *_: np.array(b[0]).reshape(shape_of(op.result.type)),
    shared.Write: write,
    shared.Copy: copy,
    shared.CopyAsync: copy_async,
    shared.JoinTokens: join_tokens,
    shared.WaitCopies: wait_copies,
    shared.NoToken: lambda m, op: Token([]),
    threads.RingNext: ring_next,
    threads.BroadcastStore: post,
    threads.BroadcastLoad: lambda m, op, box: box.reshape(-1)[0],
}


class DataflowMachine(Machine):
    """One program at level 1, 2 or 3."""

    rules = RULES

    def __init__(self, *args):
        super().__init__(*args)
        self.in_flight: list[Token] = []


def run(module, arguments, grid, programs=None, **options) -> None:
    """level0.run for a kernel of level 0 to 3."""
    level0.run(module, arguments, grid, programs, machine=DataflowMachine, **options)
