"""Exchange between the blocks of a cluster by mbarriers: a block waits for the bytes it reads, and
for nothing else.

    %b = tile.alloc : !tile.shared<1, 1x64xf32>        %b = tile.alloc : !tile.shared<2, 1x64xf32>
    tile.write %b, %p {everywhere}                     %full = tile.mbarriers 2
    %q = tile.read %b                            ->    tile.mbarrier_expect %full[%s] {bytes = 256}
                                                       tile.send %b[%s] %p %full[%s]
                                                       tile.mbarrier_wait %full[%s] %parity
                                                       %q = tile.read %b[%s]

A barrier of the cluster would order everything a thread has done before, global loads and stores
too (`MEMBAR.ALL.GPU`): an arriving thread would wait for the loads it has just issued. `tile.send`
(st.async) orders its own bytes alone (as in QuACK's reductions, Dao et al. 2025).

Why nothing is overwritten early: stages alternate, so a block sends into a stage of another again
only when it has received what that one's warps sent into the other stage in between, and each of
them did so behind its reading of this one. Outside of loops one stage does. A block ends when it
has received all that is sent to it.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import before, erase
from tkc.ir.types import SharedType, bits
from tkc.ir.values import block_of, first_of, owner_of, shared_type, tile_type
from tkc.passes import PassContext
from tkc.passes.warpgroups.carried import Carried


def exchange(kernel: tile.Kernel, context: PassContext) -> None:
    """Narrow elements, which no instruction sends, leave all of them to the barrier of the cluster
    (insert-synchronization).
    """
    writes = [
        op for op in kernel.walk() if isinstance(op, shared.Write) and op.everywhere is not None
    ]
    if not writes or any(bits(tile_type(op.value).element) not in (32, 64) for op in writes):
        return
    block = kernel.body.block
    start, first = (
        first_of(block),
        next(op for op in block.ops if any(inner in writes for inner in op.walk())),
    )
    for write in writes:
        told = Exchange(write, start)
        told.thread(block, told.state(start))
    # whether all have begun is asked at once and answered as late as can be
    before(start, threads.Fence("mbarrier_init"), threads.ClusterArrive(relaxed=True))
    before(
        (
            first
            if first.parent is block
            else next(
                op
                for op in block.ops
                if any(isinstance(inner, threads.Send) for inner in op.walk())
            )
        ),
        threads.ClusterWait(),
    )
    context.decisions.append(
        f"schedule-warpgroups: {len(writes)} exchange{'s'[: len(writes) > 1]} between the blocks of"
        " a cluster, by mbarriers"
    )


class Exchange(Carried):
    """One write to all blocks and its readings."""

    def __init__(self, write: shared.Write, start: Operation):
        t = shared_type(write.buffer)
        self.write = write
        self.stages = 2 if _in_loop(write) else 1
        self.bytes = t.size * bits(t.element) // 8
        self.ring = before(
            start, shared.Alloc(SharedType(self.stages, t.shape, t.element, t.layout))
        ).result
        self.full = before(start, threads.Barriers(self.stages)).result
        self.ring.name_hint, self.full.name_hint = "told", "full"
        before(start, threads.MbarrierInit(self.full, 1))

    def state(self, start: Operation) -> list[SSAValue]:
        return [before(start, tile.Constant(0, i32)).result] * 2

    def inside(self, op: Operation) -> bool:
        return any(inner is self.write for inner in op.walk())

    def thread(self, block: Block, state: list[SSAValue]) -> list[SSAValue]:
        for op in list(block.ops):
            if op is self.write:
                return self._sent(state)
            if op.regions:
                state = self.around(op, state)
        return state

    def _sent(self, state: list[SSAValue]) -> list[SSAValue]:
        (stage, parity), write = state, self.write
        alloc = owner_of(write.buffer, shared.Alloc)
        place = before(write, shared.Stage(self.ring, stage)).result
        before(
            write,
            threads.MbarrierExpect(self.full, stage, self.bytes),
            threads.Send(place, write.value, self.full, stage, write.lone is not None),
        )
        users = {use.operation for use in alloc.result.uses} - {write}
        reading = next(op for op in block_of(write).ops if op in users)
        before(reading, threads.MbarrierWait(self.full, stage, parity))
        following = (
            before(reading, threads.RingNext(stage, parity, self.stages)).results
            if self.stages > 1
            else state
        )
        erase(write)
        alloc.result.replace_all_uses_with(place)
        erase(alloc)
        return list(following)


def _in_loop(op: Operation) -> bool:
    around = op.parent_op()
    while around is not None and not isinstance(around, (scf.ForOp, scf.WhileOp)):
        around = around.parent_op()
    return around is not None
