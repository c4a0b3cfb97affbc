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
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.plan import Plan, ring_filled
from tkc.ir.rewrite import after
from tkc.ir.values import first_of
from tkc.passes.warpgroups.carried import Handed, users_of


def exchange_operands(block: Block, plan: Plan, anchor: Operation) -> None:
    """Makes the buffers of operands that a role's warpgroups write in its loops stages of rings,
    before their tokens become waits. anchor: where buffers and barriers of all roles stand.
    """
    if plan.written_stages < 2 or plan.warps < 8:
        return
    written = [op for op in block.walk() if isinstance(op, shared.Alloc) and can_exchange(op)]
    for alloc in written:
        write = next(op for op in users_of(alloc.result) if isinstance(op, shared.Write))
        ring = _WrittenRing(write, anchor, plan.written_stages, plan.warps)
        ring.ring.name_hint = alloc.result.name_hint or "written"
        ring.hand_over(block, first_of(block))


def can_exchange(alloc: shared.Alloc) -> bool:
    """Whether a loop's buffer is written once an iteration, as a whole, and then read by dots of
    that iteration alone.
    """
    block = alloc.parent
    if block is None or not isinstance(block.parent_op(), scf.ForOp):
        return False
    users = users_of(alloc.result)
    writes = [op for op in users if isinstance(op, shared.Write)]
    dots = [op for op in users if isinstance(op, tile.Dot)]
    return (
        len(writes) == 1
        and bool(dots)
        and len(users) == 1 + len(dots)
        and writes[0].buffer is alloc.result
        and ring_filled(writes[0]) is None
        and all(op.parent is block and writes[0].is_before_in_block(op) for op in dots)
    )


class _WrittenRing(Handed):
    """The ring that takes the place of one buffer."""

    def say(self, stage: SSAValue) -> None:
        after(self.write, threads.MbarrierArrive(self.full, stage, each="warp"))
