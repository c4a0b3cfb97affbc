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

Where a store may overwrite a number that each role looks up for itself (where a copy is, how often
a loop runs), consumers also wait before it until the others have looked up all that stands there:

    mbarrier_arrive %read                          the others'
    block_barrier;  mbarrier_wait %read %p         the consumers'
    tile.store %c …
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
    """The mbarriers by which consumers say that they have stored, and others that they know; and
    these that they have looked up what is overwritten then, where something may be.
    """

    stored: SSAValue
    seen: SSAValue
    read: SSAValue | None
    stores: set[Operation]
    overlaps: Overlaps

    @property
    def barriers(self) -> list[SSAValue]:
        """All that there are."""
        return [b for b in (self.stored, self.seen, self.read) if b is not None]

    def divide(
        self,
        consumer: threads.Role,
        copiers: list[threads.Role],
        converters: list[threads.Role],
        roles: Operation,
    ) -> None:
        """Leaves each role its half, and initialises the barriers. Of the others those wait that
        read what is stored: of converters, which copy nothing, numbers. What the tensor memory
        accelerator reads is fenced. Where none does, because consumers load it themselves, nobody
        says so.
        """
        waiting = [role for role in copiers if self._reads(role)]
        waiting += [role for role in converters if waiting and self._looks_up(role)]
        if not waiting:
            for barrier in self.barriers:
                for op in [use.operation for use in barrier.uses]:
                    erase(op)
            return
        self._halve(consumer, waiting)
        arrivals = sum(1 if role.single is not None else role.warps.value.data for role in waiting)
        for barrier in self.barriers:
            count = 1 if barrier is self.stored else arrivals
            before(roles, threads.MbarrierInit(barrier, count))

    def _halve(self, consumer: threads.Role, waiting: list[threads.Role]) -> None:
        """Leaves each role what it says and what it waits for."""
        for barrier in self.barriers:
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
        has_numbers = bool(copies) or holds(role, threads.BroadcastStore)
        return has_numbers and self._looks_up(role) or self._is_stored(copies)

    def _looks_up(self, role: threads.Role) -> bool:
        """Whether a role may look up a number that is stored."""
        return self._is_stored([op for op in role.walk() if is_looked_up(op)])

    def _is_stored(self, reads: Collection[Operation]) -> bool:
        """Whether what some operations read may be stored."""
        return any(self.is_read_by(reads, store) for store in self.stores)

    def is_read_by(self, reads: Iterable[Operation], store: Operation) -> bool:
        """Whether what is stored may be copied, or looked up, by some operations."""
        return any(
            may_meet(read, store, self.overlaps)
            for read in reads
            if isinstance(read, shared.CopyAsync) or is_looked_up(read)
        )


def is_looked_up(op: Operation) -> bool:
    """Whether an operation loads a number, or indices, that says where copies are."""
    if not isinstance(op, LOADS):
        return False
    found = op.results[0].type
    return is_integer(element_of(found)) or not isinstance(found, TileType)


def _overwrites_numbers(
    stores: Collection[Operation], reads: Collection[Operation], overlaps: Overlaps
) -> bool:
    """Whether what roles look up may be overwritten."""
    looked_up = [read for read in reads if is_looked_up(read)]
    return any(may_meet(read, store, overlaps) for read in looked_up for store in stores)


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
    overwrites = _overwrites_numbers(stores, reads, overlaps)
    names = ("stored", "seen", "read") if overwrites else ("stored", "seen")
    barriers = {name: before(first, threads.Barriers(1)).result for name in names}
    for name, barrier in barriers.items():
        barrier.name_hint = name
    order = StoreOrder(barriers["stored"], barriers["seen"], barriers.get("read"), stores, overlaps)
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
            if stored and self._follows_stores(op, stored):
                state, stored = self._said(op, state), []
            if op in self.stores or isinstance(op, scf.IfOp) and not self._is_read_in(op):
                # whether a branch is taken, those who wait need not know
                found = [inner for inner in op.walk() if inner in self.stores]
                if found and not stored:
                    self._read_before(op, state)
                stored += found
            elif op.regions:
                state = self.around(op, state)
        if stored and self._is_read_behind(block.parent_op()):
            return self._said(terminator_of(block), state)
        return state

    def _is_read_behind(self, around: Operation | None) -> bool:
        """Whether what a block stores is followed by something that the program reads: other
        programs of a thread block read none of it, but may overwrite numbers of theirs.
        """
        if not isinstance(around, Construct):
            return False
        return self.order.read is not None or not is_of_programs(around)

    def _follows_stores(self, op: Operation, stored: list[Operation]) -> bool:
        """Whether what an operation reads is read behind what is stored before it: what it may
        change, and all that a later store may. Stores within a loop are told of by themselves.
        """
        if self.order.read is None:
            return any(self.order.is_read_by(op.walk(), store) for store in stored)
        has_stores = bool(op.regions) and self.inside(op)
        return has_stores or any(self.order.is_read_by(op.walk(), s) for s in self.stores)

    def _read_before(self, anchor: Operation, state: list[SSAValue]) -> None:
        """All roles have read what stands before an operation, where that matters."""
        (stage, parity), barrier = state, self.order.read
        if barrier is not None:
            before(
                anchor,
                threads.MbarrierArrive(barrier, stage, each="warp"),
                threads.BlockBarrier(),
                threads.MbarrierWait(barrier, stage, parity),
            )

    def _is_read_in(self, branch: scf.IfOp) -> bool:
        """Whether a branch may copy or look up what it stores, or what is overwritten later."""
        its_own = [op for op in branch.walk() if op in self.stores]
        stores = its_own if self.order.read is None else self.stores
        return any(self.order.is_read_by(branch.walk(), s) for s in stores)

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
