"""allocate-shared: every buffer gets its place in shared memory; buffers that are never live
together share bytes.

    %b = tile.alloc : !tile.shared<3, 128x64xbf16, …>     ->     %b = tile.alloc 0 : !tile.shared<3, 128x64xbf16, …>

A buffer is live from its first to its last use in program order, a small one always; one that lives
outside a loop and is used inside is live all
through the loop.  Places are given first-fit, largest buffers first, at multiples of the swizzle's atom.  mbarriers come last.
The kernel records the sum as `shared_bytes`; more than the target has is an error that names the
buffers, and the excess, so that the kernel can be planned anew with so much less room
(tkc.passes.pipeline.with_room).

This runs before insert-synchronization, which must know which buffers share bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation, SSAValue

from tkc.errors import RoomError
from tkc.ir import shared, threads, tile
from tkc.ir.text import location_of
from tkc.passes import PassContext

SMALL = 1024  # bytes of a buffer that has them for itself


@dataclass
class Buffer:
    """A buffer with its life in program order and its place."""

    op: Operation
    bytes: int
    alignment: int
    start: int
    end: int
    offset: int = -1

    def meets(self, other: Buffer) -> bool:
        return self.start <= other.end and other.start <= self.end


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        buffers = lifetimes(kernel)
        placed: list[Buffer] = []
        for b in sorted(
            buffers, key=lambda b: (isinstance(b.op, threads.Barriers), -b.alignment, -b.bytes)
        ):
            b.offset = _first_fit(b, placed)
            placed.append(b)
            b.op.properties["offset"] = IntegerAttr(b.offset, i64)
        total = max((b.offset + b.bytes for b in buffers), default=0)
        if total > context.target.shared_bytes:
            _refuse(kernel, buffers, total, context)
        kernel.set_integer("shared_bytes", total)
        if buffers:
            context.decisions.append(
                f"allocate-shared: {len(buffers)} buffers, {sum(b.bytes for b in buffers)} bytes in"
                f" {total}"
            )


def lifetimes(kernel: tile.Kernel) -> list[Buffer]:
    """Buffers of a kernel and from which to which operation (in program order) each is in use."""
    position = {op: i for i, op in enumerate(kernel.walk())}
    last = {op: max(position[inner] for inner in op.walk()) for op in position if op.regions}
    found = []
    for op in position:
        if not isinstance(op, (shared.Alloc, threads.Barriers)):
            continue
        uses = list(_uses(op.results[0]))
        places = [_span(user, op, position, last) for user in uses] or [
            (position[op], position[op])
        ]
        if isinstance(op, threads.Barriers):
            size, alignment, span = 8 * op.result.type.stages, 8, (0, len(position))
        else:
            size, alignment, span = (
                op.result.type.bytes,
                max(128, op.result.type.memory.alignment),
                (min(p[0] for p in places), max(p[1] for p in places)),
            )
        if any(isinstance(op, threads.Roles) for op in kernel.body.block.ops):
            span = 0, len(position)  # roles run side by side
        if any(
            isinstance(user, threads.Send)
            or isinstance(user, shared.Write)
            and user.everywhere is not None
            for user in uses
        ):
            span = 0, len(position)  # other blocks are elsewhere in the program
        if any(isinstance(user, threads.CpAsync) for user in uses):
            span = span[0], _landed(span[1], position)
        if size <= SMALL:
            span = 0, len(position)  # to share bytes would cost barriers between their users
        found.append(Buffer(op, size, alignment, *span))
    return found


def _landed(end: int, position: dict[Operation, int]) -> int:
    """Copies write until they are waited for: the first wait for all of them after the last use."""
    return min(
        (
            i
            for op, i in position.items()
            if i >= end and isinstance(op, threads.CpWait) and op.pending.value.data == 0
        ),
        default=len(position),
    )


def _uses(value: SSAValue):
    """Operations that use a buffer, through its views too."""
    for use in value.uses:
        op = use.operation
        if isinstance(
            op, (shared.Stage, shared.SharedSlice, shared.SharedTranspose, shared.SharedReshape)
        ):
            yield from _uses(op.results[0])
        yield op


def _span(user: Operation, alloc: Operation, position, last) -> tuple[int, int]:
    """The stretch of the program a use keeps the buffer alive: the user's, or that of the outermost
    region operation round it (short of the one the buffer itself is in), since a loop comes back.
    """
    op = user
    while op.parent is not alloc.parent:
        op = op.parent_op()
    return (
        (position[op], last.get(op, position[op]))
        if op is not user
        else (position[op], position[op])
    )


def _first_fit(b: Buffer, placed: list[Buffer]) -> int:
    taken = sorted((p.offset, p.offset + p.bytes) for p in placed if p.meets(b))
    at = 0
    for start, end in taken:
        if at + b.bytes <= start:
            break
        at = max(at, -(-end // b.alignment) * b.alignment)
    return at


def _refuse(kernel: tile.Kernel, buffers: list[Buffer], total: int, context: PassContext) -> None:
    largest = ", ".join(f"{b.bytes} bytes" for b in sorted(buffers, key=lambda b: -b.bytes)[:4])
    raise RoomError(
        f"kernel {kernel.sym_name.data} needs {total} bytes of shared memory and"
        f" {context.target.name} has {context.target.shared_bytes} (largest buffers: {largest});"
        " use smaller tiles or fewer stages",
        location_of(kernel),
        total - context.target.shared_bytes,
    )
