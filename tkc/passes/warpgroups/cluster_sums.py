"""Sums over the blocks of a cluster, each of which gets a share: consumers send every block its
share, and add up what comes.

    %own = tile.cluster_sum [%p, %q]        tile.mbarrier_wait %empty[0] %parity ^ 1
                                            tile.mbarrier_expect %full[0] {bytes of a share}
                                     ->     if %rank != 0: tile.send %ring[0] %p, %full[0] to 0
                                            if %rank != 1: tile.send %ring[0] %q, %full[0] to 1
                                            tile.mbarrier_wait %full[0] %parity
                                            %own = (%rank == 0 ? %p : %q) + (tile.read %ring[0])
                                            tile.mbarrier_arrive %empty[0], all blocks

The ring has a stage for each other block, by how many places it is behind this one, and is written
again when all of them have read what they were sent. A block ends when it has been told so of its
last sum: nothing arrives behind its end.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES, Select
from tkc.ir.plan import Plan
from tkc.ir.rewrite import Builder, after, before, only_if, replace
from tkc.ir.types import SharedType
from tkc.ir.values import first_of, layout_of, operations_in, tile_type
from tkc.passes import PassContext
from tkc.passes.layouts.buffers import best_layout, read
from tkc.passes.warpgroups.carried import Carried


def send_shares(consumer: threads.Role, plan: Plan, roles: Operation, context: PassContext) -> None:
    """Replaces the sum over a cluster that consumers make, where there is one. roles: before which
    rings and barriers stand.
    """
    for op in operations_in(consumer, tile.ClusterSum):
        _ClusterSum(op, plan, roles, context).write(consumer.body.block)


class _ClusterSum(Carried):
    """One of them; its state is a parity, and the number of the only stage of its barriers."""

    def __init__(self, op: tile.ClusterSum, plan: Plan, roles: Operation, context: PassContext):
        self.op, self.context, self.blocks = op, context, len(op.shares)
        self.type = t = tile_type(op.result)
        memory = best_layout(t.with_layout(None), [layout_of(op.result)] * 2)
        ring = shared.Alloc(SharedType(self.blocks - 1, t.shape, t.element, memory))
        self.ring = before(roles, ring).result
        self.full, self.empty = (before(roles, threads.Barriers(1)).result for _ in range(2))
        self.ring.name_hint = "shares"
        self.full.name_hint, self.empty.name_hint = "told", "heard"
        readers = self.blocks * plan.warps
        before(roles, threads.MbarrierInit(self.full, 1), threads.MbarrierInit(self.empty, readers))

    def write(self, block: Block) -> None:
        """In a role's program."""
        zero = before(first_of(block), tile.Constant(0, i32)).result
        stage, parity = self.thread(block, [zero, zero])
        last = block.last_op
        assert last is not None
        one = after(last, tile.Constant(1, i32))
        other = after(one, CLASSES["xor"](parity, one.result))
        after(other, threads.MbarrierWait(self.empty, stage, other.results[0]))

    def inside(self, op: Operation) -> bool:
        return any(inner is self.op for inner in op.walk())

    def thread(self, block: Block, state: list[SSAValue]) -> list[SSAValue]:
        for op in list(block.ops):
            if op is self.op:
                return self._summed(*state)
            if op.regions:
                state = self.around(op, state)
        return state

    def _summed(self, stage: SSAValue, parity: SSAValue) -> list[SSAValue]:
        build, others = Builder(self.op), self.blocks - 1
        rank = build(threads.Identity("cluster_rank"))
        every = build.number((1 << self.blocks) - 1)
        build.do(threads.MbarrierWait(self.empty, stage, build.xor(parity, build.number(1))))
        build.do(threads.MbarrierExpect(self.full, stage, others * self.type.bytes))
        own = self.op.shares[0]
        for block, share in enumerate(self.op.shares):
            behind = build.mod(build.sub(rank, build.number(block - self.blocks)), self.blocks)
            is_other = build.ne(behind, build.number(0))
            place = build.max(build.sub(behind, build.number(1)), build.number(0))
            there = build(shared.Stage(self.ring, place))
            send = threads.Send(there, share, self.full, stage, to=build.number(block))
            only_if(is_other, build.do(send))
            if block:
                own = build(Select(is_other, own, share))
        build.do(threads.MbarrierWait(self.full, stage, parity))
        for number in range(others):
            place = build(shared.Stage(self.ring, build.number(number)))
            own = build.add(own, read(place, self.type, self.op, self.context))
        build.do(threads.MbarrierArrive(self.empty, stage, every, each="warp"))
        following = build.do(threads.RingNext(stage, parity, 1))
        replace(self.op, [own])
        return list(following.results)
