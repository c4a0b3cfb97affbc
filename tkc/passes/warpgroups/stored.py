"""What programs store and the roles that copy may read afterwards: these wait for it. A step of
roles.py, for plans in which copies wait for stores (`Plan.copies_wait`).

    for %t …:                         for %t …:
      for %k …:  copies, dots           for %k …:  …
      tile.store %c …             ->    tile.store %c …
                                        mbarrier_wait %seen %p ^ 1               the consumers'
                                        block_barrier;  mbarrier_arrive %stored
                                        mbarrier_wait %stored %p                 the others'
                                        mbarrier_arrive %seen

So copies run ahead between two stores, and what a program reads is in the order in which it is
written, wherever its addresses come from. Consumers say so once for stores between which nothing is
read. They must not overtake who waits, in loops without a step: so the two barriers are those of a
ring of one stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import after, before, erase
from tkc.ir.types import TileType, element_of, is_integer
from tkc.ir.values import holds, operations_in, terminator_of
from tkc.passes.analysis.alias import Overlaps, is_of_programs, may_meet
from tkc.passes.analysis.values import LOADS
from tkc.passes.warpgroups.carried import Carried
from tkc.passes.warpgroups.rings import await_free, is_by_threads

STORES = (tile.Store, tile.StorePointers)
Construct = scf.ForOp | scf.WhileOp | scf.IfOp
READS = (shared.CopyAsync, *LOADS)


@dataclass(frozen=True)
class StoreOrder:
    """The mbarriers by which consumers say that they have stored, and others that they know."""

    stored: SSAValue
    seen: SSAValue
    stores: set[Operation]
    overlaps: Overlaps

    def divide(self, consumer: threads.Role, others: list[threads.Role], roles: Operation) -> None:
        """Leaves each role its half, and initialises the barriers. Of the others those wait that
        read what is stored; what the tensor memory accelerator reads is fenced. Where none does,
        because consumers load it themselves, nobody says so.
        """
        waiting = [role for role in others if self._reads(role)]
        if not waiting:
            for barrier in (self.stored, self.seen):
                for op in [use.operation for use in barrier.uses]:
                    erase(op)
            return
        self._halve(consumer, waiting)
        arrivals = sum(1 if role.single is not None else role.warps.value.data for role in waiting)
        before(roles, threads.MbarrierInit(self.stored, 1))
        before(roles, threads.MbarrierInit(self.seen, arrivals))

    def _halve(self, consumer: threads.Role, waiting: list[threads.Role]) -> None:
        """Leaves each role what it says and what it waits for."""
        for barrier in (self.stored, self.seen):
            for op in [use.operation for use in barrier.uses]:
                role = next((r for r in (consumer, *waiting) if r.is_ancestor(op)), None)
                says = isinstance(op, threads.MbarrierArrive)
                if role is None or (says == (barrier is self.stored)) != (role is consumer):
                    erase(op)
                elif role.single is not None and not says:
                    after(op, threads.Fence("async_global"))

    def _reads(self, role: threads.Role) -> bool:
        """Whether a role that copies, of which it is not yet known what it leaves to others, may
        copy what is stored, or look it up.
        """
        single = role.single is not None
        copies = [
            op
            for op in role.walk()
            if isinstance(op, shared.CopyAsync) and is_by_threads(op) != single
        ]
        read: list[Operation] = [*copies]
        if copies or holds(role, threads.BroadcastStore):
            read += [op for op in role.walk() if isinstance(op, LOADS) and _is_small(op)]
        return any(self.is_read_by(read, store) for store in self.stores)

    def is_read_by(self, reads: Iterable[Operation], store: Operation) -> bool:
        """Whether what is stored may be copied, or looked up, by some operations."""
        return any(
            may_meet(read, store, self.overlaps)
            for read in reads
            if isinstance(read, shared.CopyAsync) or isinstance(read, LOADS) and _is_small(read)
        )


def _is_small(load: Operation) -> bool:
    """Whether a load gives a number, or indices, that says where copies are."""
    return is_integer(element_of(load.results[0].type)) or not isinstance(
        load.results[0].type, TileType
    )


def order_stores(kernel: tile.Kernel, overlaps: Overlaps) -> StoreOrder | None:
    """Writes both halves of the order behind stores that a kernel may read; None where it has
    none.
    """
    reads = operations_in(kernel, READS)
    stores: set[Operation] = {
        op
        for op in kernel.walk()
        if isinstance(op, STORES) and any(may_meet(read, op, overlaps) for read in reads)
    }
    if not stores:
        return None
    block = kernel.body.block
    first = next(op for op in block.ops if any(inner in stores for inner in op.walk()))
    stored, seen = (before(first, threads.Barriers(1)).result for _ in range(2))
    order = StoreOrder(stored, seen, stores, overlaps)
    order.stored.name_hint, order.seen.name_hint = "stored", "seen"
    zero = before(first, tile.Constant(0, i32)).result
    _Parity(order).thread(block, [zero, zero])
    return order


class _Parity(Carried):
    """Threads the parity of the barriers through a program."""

    def __init__(self, order: StoreOrder):
        self.order, self.stores = order, order.stores

    def inside(self, op: Operation) -> bool:
        return any(inner in self.stores for inner in op.walk())

    def thread(self, block: Block, state: list[SSAValue]) -> list[SSAValue]:
        """Stage and parity behind a block."""
        stored: list[Operation] = []
        for op in list(block.ops):
            if any(self.order.is_read_by(op.walk(), store) for store in stored):
                state, stored = self._said(op, state), []
            if op in self.stores or isinstance(op, scf.IfOp) and not self._is_read_in(op):
                # whether a branch is taken, those who wait need not know
                stored += [inner for inner in op.walk() if inner in self.stores]
            elif op.regions:
                state = self.around(op, state)
        around = block.parent_op()
        if stored and isinstance(around, Construct) and not is_of_programs(around):
            state = self._said(terminator_of(block), state)
        return state

    def _is_read_in(self, branch: scf.IfOp) -> bool:
        """Whether a branch may copy or look up what it stores."""
        stores = (op for op in branch.walk() if op in self.stores)
        return any(self.order.is_read_by(branch.walk(), store) for store in stores)

    def _said(self, anchor: Operation, state: list[SSAValue]) -> list[SSAValue]:
        """The order of what is before an operation and what is behind."""
        (stage, parity), order = state, self.order
        await_free(anchor, order.seen, stage, parity)
        before(
            anchor,
            threads.BlockBarrier(),
            threads.MbarrierArrive(order.stored, stage),
            threads.MbarrierWait(order.stored, stage, parity),
            threads.MbarrierArrive(order.seen, stage, each="warp"),
        )
        return list(before(anchor, threads.RingNext(stage, parity, 1)).results)
