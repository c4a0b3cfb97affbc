"""Programs claimed from a counter of the launch, and scalars from role to role.

    producer, one thread                              consumers, every thread
    atom.relaxed.gpu.global.inc.u32 %n, [counter]     mbarrier.try_wait.parity …
    add.s32 %n, %n, %nctaid.x                         ld.shared.b32 %r, [slot]
    st.shared.b32 [slot], %n                          shfl.sync.idx.b32 %r, %r, 0
    mbarrier.arrive …                                 mbarrier.arrive …

The shuffle is for ptxas, which does not see that a value from memory is the same in a warp.

Without roles a block's first thread (of a cluster that shares programs, the first block's) claims,
and the others have a zero until it broadcasts the number:

    mov.b32 %n, 0
    @%first atom.relaxed.gpu.global.inc.u32 %n, [counter], …
"""

from __future__ import annotations

from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import one_thread
from tkc.codegen.ptx.integers import add
from tkc.codegen.ptx.scalars import shares_programs
from tkc.codegen.ptx.writer import Operand
from tkc.ir import threads
from tkc.ir.interface import Parameter


@emitter(threads.NextProgram)
def next_program(e: Emitter, op: threads.NextProgram) -> None:
    """The counter wraps at the last claim, so that it is zero again for the next launch."""
    w, counter = e.w, e.parameter(Parameter("workspace", "u64", bytes=4))
    last = add(e, e.integer(op.total), -1)
    if e.instance.single:
        claimed = w.op("atom.relaxed.gpu.global.inc.u32", "b32", f"[{counter}]", last)
    else:
        claimed, last = w.op("mov.b32", "b32", 0), w.register(last)
        with w.predicated(_first_of_cluster(e)):
            w.emit(f"atom.relaxed.gpu.global.inc.u32 {claimed}, [{counter}], {last}")
    of_clusters = e.cluster != (1, 1) and shares_programs(e)
    launched = e.special("%nclusterid.x" if of_clusters else "%nctaid.x")
    e.set(op.result, add(e, claimed, launched))


def _first_of_cluster(e: Emitter) -> Operand:
    """Whether this is the first thread of the first block of its cluster."""
    if e.cluster == (1, 1):
        return one_thread(e)
    w = e.w

    def make() -> str:
        first = one_thread(e)
        rank = w.op("setp.eq.u32", "pred", e.special("%cluster_ctarank"), 0)
        return w.op("and.pred", "pred", first, rank)

    return w.hoist("first of the cluster", make)


@emitter(threads.Workspace)
def workspace(e: Emitter, op: threads.Workspace) -> None:
    """Memory of the launch, or of each thread block."""
    size = op.bytes.value.data
    whole = op.whole is not None
    parameter = Parameter("workspace", "u64", bytes=size * whole, each=size * (not whole))
    e.set(op.result, e.parameter(parameter))


@emitter(threads.BroadcastStore)
def broadcast_store(e: Emitter, op: threads.BroadcastStore) -> None:
    """One thread writes a scalar to shared memory."""
    box, value = e.view(op.box), e.w.register(e.operand(op.value))
    with e.w.predicated(one_thread(e)):
        e.w.emit(f"st.shared.b32 [{box.base}+{box.offset}], {value}")


@emitter(threads.BroadcastLoad)
def broadcast_load(e: Emitter, op: threads.BroadcastLoad) -> None:
    """The scalar, in every thread."""
    box, w = e.view(op.box), e.w
    read = w.op("ld.shared.b32", "b32", f"[{box.base}+{box.offset}]")
    if not e.instance.single:
        read = w.op("shfl.sync.idx.b32", "b32", read, 0, 31, -1)
    e.set(op.result, read)
