"""Programs claimed from a counter of the launch, and scalars from role to role.

    producer, one thread                              consumers, every thread
    atom.relaxed.gpu.global.inc.u32 %n, [counter]     mbarrier.try_wait.parity …
    add.s32 %n, %n, %nctaid.x                         ld.shared.b32 %r, [slot]
    st.shared.b32 [slot], %n                          shfl.sync.idx.b32 %r, %r, 0      of a value from memory ptxas does not see that a warp has only one
    mbarrier.arrive …                                 mbarrier.arrive …

Without roles a block's first thread (of a cluster that shares programs, the first block's) claims,
and the others have a zero until it tells them:

    mov.b32 %n, 0
    @%first atom.relaxed.gpu.global.inc.u32 %n, [counter], …
"""

from __future__ import annotations

from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.global_memory import one_thread
from tkc.codegen.ptx.mbarrier import only
from tkc.codegen.ptx.scalars import add
from tkc.ir import threads
from tkc.ir.interface import Parameter


@emitter(threads.NextProgram)
def next_program(e: Emitter, op: threads.NextProgram) -> None:
    """The counter wraps at the last claim, so that it is zero again for the next launch."""
    w, counter = e.w, e.parameter(Parameter("workspace", "u64", bytes=4))
    last = add(e, e.operand(op.total), -1)
    if e.instance.single:
        claimed = w.op("atom.relaxed.gpu.global.inc.u32", "b32", f"[{counter}]", last)
    else:
        claimed, last = w.op("mov.b32", "b32", 0), w.register(last)
        rank = (
            None
            if e.cluster == (1, 1)
            else w.hoist(
                "first of the cluster",
                lambda: w.op(
                    "and.pred",
                    "pred",
                    one_thread(e),
                    w.op("setp.eq.u32", "pred", e.special("%cluster_ctarank"), 0),
                ),
            )
        )
        with w.predicated(rank or one_thread(e)):
            w.emit(f"atom.relaxed.gpu.global.inc.u32 {claimed}, [{counter}], {last}")
    e.set(
        op.result,
        add(
            e,
            claimed,
            e.special(
                "%nctaid.x"
                if e.cluster == (1, 1) or "spread" not in e.kernel.attributes
                else "%nclusterid.x"
            ),
        ),
    )


@emitter(threads.Workspace)
def workspace(e: Emitter, op: threads.Workspace) -> None:
    e.set(
        op.result,
        e.parameter(
            Parameter("workspace", "u64", **{"bytes" if op.whole else "each": op.bytes.value.data})
        ),
    )


@emitter(threads.BroadcastStore)
def post(e: Emitter, op: threads.BroadcastStore) -> None:
    box, value = e.value(op.box), e.w.register(e.operand(op.value))
    with only(e):
        e.w.emit(f"st.shared.b32 [{box.base}+{box.offset}], {value}")


@emitter(threads.BroadcastLoad)
def fetch(e: Emitter, op: threads.BroadcastLoad) -> None:
    box, w = e.value(op.box), e.w
    read = w.op("ld.shared.b32", "b32", f"[{box.base}+{box.offset}]")
    e.set(
        op.result, read if e.instance.single else w.op("shfl.sync.idx.b32", "b32", read, 0, 31, -1)
    )
