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

from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import before, erase, holding, loop_of
from tkc.ir.types import bits
from tkc.ir.values import first_of, shared_type, tile_type
from tkc.passes import PassContext
from tkc.passes.warpgroups.carried import Handed


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
        Exchange(write, start).hand_over(block, start)
    # whether all have begun is asked at once and answered as late as can be
    before(start, threads.Fence("mbarrier_init"), threads.ClusterArrive(relaxed=True))
    before(
        first if first.parent is block else holding(block.ops, threads.Send)[0],
        threads.ClusterWait(),
    )
    context.decisions.append(
        f"schedule-warpgroups: {len(writes)} exchange{'s'[: len(writes) > 1]} between the blocks of"
        " a cluster, by mbarriers"
    )


class Exchange(Handed):
    """One write to all blocks and its readings."""

    def __init__(self, write: shared.Write, start: Operation):
        super().__init__(write, start, 2 if loop_of(write) else 1, 1)
        t = shared_type(write.buffer)
        self.ring.name_hint, self.bytes = "told", t.size * bits(t.element) // 8

    def say(self, stage: SSAValue) -> None:
        write, full = self.write, self.full
        before(
            write,
            threads.MbarrierExpect(full, stage, self.bytes),
            threads.Send(write.buffer, write.value, full, stage, write.lone is not None),
        )
        erase(write)
