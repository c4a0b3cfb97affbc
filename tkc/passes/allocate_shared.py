"""allocate-shared: every buffer gets its place in shared memory; buffers that are never live
together share bytes.

    %b = tile.alloc : !tile.shared<3, 128x64xbf16, …>
  becomes
    %b = tile.alloc 0 : !tile.shared<3, 128x64xbf16, …>

Two branches of a condition that each have a buffer for the same (of one type, used by operations of
the same kinds; loops with and without a mask are such) share one:

    scf.if %full { %b = tile.alloc …; A(%b) } else { %c = tile.alloc …; B(%c) }
  becomes
    %b = tile.alloc …
    scf.if %full { A(%b) } else { B(%b) }

A buffer is live from its first to its last use in program order, a small one always; one that is
defined outside a loop and used inside is live all through the loop. Places are given first-fit,
largest buffers first, at multiples of the swizzle's atom. mbarriers come last. The kernel records
the sum as `shared_bytes`; more than the target has is an error that names the buffers, and the
excess, so that the kernel can be planned again with so much less (tkc.passes.pipeline.with_room).

This runs before insert-synchronization, which must know which buffers share bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation, SSAValue

from tkc.errors import RoomError
from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import before, erase
from tkc.ir.target import half_of
from tkc.ir.text import location_of
from tkc.ir.values import ancestor, block_of, enclosing, operations_in, shared_type
from tkc.passes import PassContext

# Buffers of at most so many bytes share them with no other: that would cost barriers between their
# users.
MAX_UNSHARED_BYTES = 1024
MIN_ALIGNMENT = 128  # bytes, of a buffer
MBARRIER_BYTES = 8
VIEWS = (shared.Stage, *shared.VIEWS)


@dataclass
class Buffer:
    """A buffer with its live range in program order and its place."""

    op: Operation
    bytes: int
    alignment: int
    start: int
    end: int
    offset: int = -1

    def meets(self, other: Buffer) -> bool:
        """Whether both are live at once: roles run at the same time."""
        if enclosing(self.op, threads.Role) is not enclosing(other.op, threads.Role):
            return True
        return self.start <= other.end and other.start <= self.end


def run(module: ModuleOp, context: PassContext) -> None:
    """Gives every buffer of each kernel its offset. Raises RoomError where they do not fit."""
    for kernel in tile.kernels_of(module):
        for op in operations_in(kernel, scf.IfOp):
            _share_between_branches(op)
        available = context.target.shared_bytes
        buffers = lifetimes(kernel)
        total = _place(buffers)
        if kernel.integer("blocks", 1) == 2 and (context.has_roles or _may_be_two(total, context)):
            available = half_of(available)
        elif context.plan is not None and context.plan.dots:
            kernel.attributes.pop("blocks", None)
        if total > available and context.has_roles:
            buffers = lifetimes(kernel, within_roles=True)
            total = _place(buffers)
        for b in buffers:
            b.op.properties["offset"] = IntegerAttr(b.offset, i64)
        if total > available:
            _refuse(kernel, buffers, total, available, context)
        kernel.set_integer("shared_bytes", total)
        if buffers:
            context.decisions.append(
                f"allocate-shared: {len(buffers)} buffers, {sum(b.bytes for b in buffers)} bytes in"
                f" {total}"
            )


def _place(buffers: list[Buffer]) -> int:
    """Gives buffers their places; returns how many bytes they take."""
    placed: list[Buffer] = []
    for b in sorted(
        buffers, key=lambda b: (isinstance(b.op, threads.Barriers), -b.alignment, -b.bytes)
    ):
        b.offset = _first_fit(b, placed)
        placed.append(b)
    return max((b.offset + b.bytes for b in buffers), default=0)


def _may_be_two(total: int, context: PassContext) -> bool:
    """Whether a kernel of one role that has dots keeps to the half of a multiprocessor that its
    plan gives it: where it needs more, the first time a plan of fewer stages may do, and then one
    block has it all."""
    if context.plan is None or not context.plan.dots:
        return False
    again = "one" not in context.lack and context.options.num_stages is None
    return again or total <= half_of(context.target.shared_bytes)


def _share_between_branches(branches: scf.IfOp) -> None:
    """Replaces the buffers of one branch by those that the other one has for the same, in order."""
    if not branches.false_region.blocks:
        return
    one, other = (
        [op for op in region.block.ops if isinstance(op, shared.Alloc)]
        for region in (branches.true_region, branches.false_region)
    )
    for first in one:
        second = next((op for op in other if _is_alike(op, first)), None)
        if second is None:
            continue
        other.remove(second)
        first.detach()
        before(branches, first)
        second.result.replace_all_uses_with(first.result)
        erase(second)


def _is_alike(a: shared.Alloc, b: shared.Alloc) -> bool:
    kinds = ({type(use.operation) for use in op.result.uses} for op in (a, b))
    return a.result.type == b.result.type and next(kinds) == next(kinds)


def lifetimes(kernel: tile.Kernel, within_roles: bool = False) -> list[Buffer]:
    """Buffers of a kernel and from which to which operation (in program order) each is in use.
    within_roles: also of what one instance of a role has for itself, which then takes more barriers
    than where every buffer has its own place.
    """
    position = {op: i for i, op in enumerate(kernel.walk())}
    last = {op: max(position[inner] for inner in op.walk()) for op in position if op.regions}
    always = 0, len(position)
    # roles run at the same time
    has_roles = any(isinstance(op, threads.Roles) for op in kernel.body.block.ops)
    found = []
    for op in position:
        if isinstance(op, threads.Barriers):
            size = MBARRIER_BYTES * op.result.type.stages
            found.append(Buffer(op, size, MBARRIER_BYTES, *always))
        elif isinstance(op, shared.Alloc):
            t = shared_type(op.result)
            is_always = t.bytes <= MAX_UNSHARED_BYTES
            is_always |= has_roles and not (within_roles and _is_of_one_instance(op))
            span = always if is_always else _live_range(op, position, last)
            alignment = max(MIN_ALIGNMENT, t.memory.alignment)
            found.append(Buffer(op, t.bytes, alignment, *span))
    return found


def _live_range(
    op: shared.Alloc, position: dict[Operation, int], last: dict[Operation, int]
) -> tuple[int, int]:
    """From which to which operation a buffer is in use."""
    uses = list(_uses(op.result))
    if any(map(_is_from_other_blocks, uses)):
        return 0, len(position)  # other blocks are elsewhere in the program
    spans = [_span(user, op, position, last) for user in uses] or [(position[op], position[op])]
    start, end = min(s for s, _ in spans), max(e for _, e in spans)
    if any(isinstance(user, threads.CpAsync) for user in uses):
        end = _end_of_waits(end, position, threads.CpWait)
    if any(isinstance(user, threads.DotAsync) for user in uses):
        end = _end_of_waits(end, position, threads.DotWait)
    return start, end


def _is_of_one_instance(op: shared.Alloc) -> bool:
    """Whether one instance of a role alone has a buffer, to write, to read and for dots."""
    role = enclosing(op, threads.Role)
    users = (shared.Write, shared.Read, threads.DotAsync, *VIEWS)
    return (
        role is not None
        and role.instances == 1
        and all(isinstance(user, users) for user in _uses(op.result))
    )


def _is_from_other_blocks(user: Operation) -> bool:
    """Whether an operation writes to a buffer of other blocks of the cluster."""
    return isinstance(user, threads.Send) or (
        isinstance(user, shared.Write) and user.everywhere is not None
    )


def _end_of_waits(
    end: int,
    position: dict[Operation, int],
    kind: type[threads.CpWait] | type[threads.DotWait],
) -> int:
    """Copies write, and dots read, until they are waited for: the first wait for all of them after
    the last use.
    """
    waits = (
        i
        for op, i in position.items()
        if i >= end and isinstance(op, kind) and op.pending.value.data == 0
    )
    return min(waits, default=len(position))


def _uses(value: SSAValue) -> Iterator[Operation]:
    """Operations that use a buffer, through its views too."""
    for use in value.uses:
        if isinstance(use.operation, VIEWS):
            yield from _uses(use.operation.results[0])
        yield use.operation


def _span(
    user: Operation,
    alloc: Operation,
    position: dict[Operation, int],
    last: dict[Operation, int],
) -> tuple[int, int]:
    """The stretch of the program a use keeps the buffer alive: the user's, or that of the outermost
    region operation round it (short of the one the buffer itself is in), since a loop comes back.
    """
    op = ancestor(user, block_of(alloc))
    assert op is not None
    return position[op], position[op] if op is user else last.get(op, position[op])


def _first_fit(b: Buffer, placed: list[Buffer]) -> int:
    taken = sorted((p.offset, p.offset + p.bytes) for p in placed if p.meets(b))
    at = 0
    for start, end in taken:
        if at + b.bytes <= start:
            break
        at = max(at, -(-end // b.alignment) * b.alignment)
    return at


def _refuse(
    kernel: tile.Kernel, buffers: list[Buffer], total: int, available: int, context: PassContext
) -> None:
    largest = ", ".join(f"{b.bytes} bytes" for b in sorted(buffers, key=lambda b: -b.bytes)[:4])
    raise RoomError(
        f"kernel {kernel.sym_name.data} needs {total} bytes of shared memory and"
        f" {context.target.name} has {available} (largest buffers: {largest});"
        " use smaller tiles or fewer stages",
        location_of(kernel),
        total - available,
    )
