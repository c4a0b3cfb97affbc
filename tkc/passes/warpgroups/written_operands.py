"""Operands that several warpgroups write together and all read: rings that the consumers fill.

Before, in a loop of two warpgroups' role:

    %b = tile.alloc
    tile.write %b, %x
    … dots of other operands …
    %d = tile.dot %a, %b, …

After:

    %b = tile.stage %ring[%s]
    tile.write %b, %x;  fence async_shared
    mbarrier_arrive %full[%s], each warp
    … dots of other operands …
    mbarrier_wait %full[%s] %p
    %d = tile.dot %a, %b, …

A warpgroup that has written its part goes on until it needs the parts of others: one may be ahead
by what stands between, and computes while the other multiplies. A barrier of all would have both
wait, twice: once for what they read, once before they write again. With two stages or more nothing
says when a stage is free. Who writes it again has waited for the others' parts of the stage
between, which they wrote when they had read this one: dots that read it end in their iteration
(consuming.py).
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.plan import Plan
from tkc.ir.rewrite import after, before, erase
from tkc.ir.types import SharedType
from tkc.ir.values import shared_type
from tkc.passes.warpgroups.carried import Carried


def exchange_operands(block: Block, plan: Plan, anchor: Operation) -> None:
    """Makes the buffers of operands that a role's warpgroups write in its loops stages of rings,
    before their tokens become waits. anchor: where buffers and barriers of all roles stand.
    """
    if plan.written_stages < 2 or plan.warps < 8:
        return
    written = [op for op in block.walk() if isinstance(op, shared.Alloc) and can_exchange(op)]
    for alloc in written:
        ring = _WrittenRing(alloc, plan.written_stages)
        ring.thread(block, ring.start(anchor, block, plan.warps))


def can_exchange(alloc: shared.Alloc) -> bool:
    """Whether a loop's buffer is written once an iteration, as a whole, and then read by dots of
    that iteration alone.
    """
    block = alloc.parent
    if block is None or not isinstance(block.parent_op(), scf.ForOp):
        return False
    users = _users(alloc.result)
    writes = [op for op in users if isinstance(op, shared.Write)]
    dots = [op for op in users if isinstance(op, tile.Dot)]
    return (
        len(writes) == 1
        and bool(dots)
        and len(users) == 1 + len(dots)
        and writes[0].buffer is alloc.result
        and "number" not in writes[0].attributes
        and all(op.parent is block and writes[0].is_before_in_block(op) for op in dots)
    )


def _users(buffer: SSAValue) -> list[Operation]:
    """The operations that read or write a buffer, through its views too."""
    found: list[Operation] = []
    for op in dict.fromkeys(use.operation for use in buffer.uses):
        found += _users(op.results[0]) if isinstance(op, shared.VIEWS) else [op]
    return found


class _WrittenRing(Carried):
    """The ring that takes the place of one buffer."""

    def __init__(self, alloc: shared.Alloc, stages: int):
        self.alloc, self.stages = alloc, stages
        users = _users(alloc.result)
        self.write = next(op for op in users if isinstance(op, shared.Write))
        block = alloc.parent
        assert block is not None
        self.first_dot = next(op for op in block.ops if op in users and isinstance(op, tile.Dot))

    def start(self, anchor: Operation, block: Block, warps: int) -> list[SSAValue]:
        """The ring, its barriers, and its first stage and parity."""
        t = shared_type(self.alloc.result)
        ring = shared.Alloc(SharedType(self.stages, t.shape, t.element, t.layout))
        self.ring = before(anchor, ring).result
        self.ring.name_hint = self.alloc.result.name_hint or "written"
        self.full = before(anchor, threads.Barriers(self.stages)).result
        self.full.name_hint = "full"
        before(anchor, threads.MbarrierInit(self.full, warps))
        first = block.first_op
        assert first is not None
        zero = before(first, tile.Constant(0, i32)).result
        return [zero, zero]

    def inside(self, op: Operation) -> bool:
        return any(inner is self.write for inner in op.walk())

    def thread(self, block: Block, state: list[SSAValue]) -> list[SSAValue]:
        """Stage and parity behind a block."""
        for op in list(block.ops):
            if op is self.write:
                return self._exchange(state)
            if op.regions:
                state = self.around(op, state)
        return state

    def _exchange(self, state: list[SSAValue]) -> list[SSAValue]:
        stage, parity = state
        view = before(self.alloc, shared.Stage(self.ring, stage)).result
        self.alloc.result.replace_all_uses_with(view)
        erase(self.alloc)
        after(self.write, threads.MbarrierArrive(self.full, stage, each="warp"))
        before(self.first_dot, threads.MbarrierWait(self.full, stage, parity))
        following = threads.RingNext(stage, parity, self.stages)
        return list(before(self.first_dot, following).results)
