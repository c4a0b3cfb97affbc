"""Programs claimed from a counter of the launch, and scalars from role to role.

    producer, one thread                              consumers, every thread
    atom.relaxed.gpu.global.inc.u32 %n, [counter]     mbarrier.try_wait.parity …
    add.s32 %n, %n, %nctaid.x                         ld.shared.b32 %r, [slot]
    st.shared.b32 [slot], %n                          shfl.sync.idx.b32 %r, %r, 0      of a value from memory ptxas does not see that a warp has only one
    mbarrier.arrive …                                 mbarrier.arrive …
"""
from __future__ import annotations

from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.mbarrier import only
from tkc.codegen.ptx.scalars import add
from tkc.ir import threads
from tkc.ir.interface import Parameter


@emitter(threads.NextProgram)
def next_program(e: Emitter, op: threads.NextProgram) -> None:
    """The counter wraps at the last claim, so that it is zero again for the next launch."""
    if not e.instance.single: e.fail("programs are claimed by one thread, in a role of its own")
    w, counter = e.w, e.parameter(Parameter("workspace", "u64", bytes=4))
    claimed = w.op("atom.relaxed.gpu.global.inc.u32", "b32", f"[{counter}]", add(e, e.operand(op.total), -1))
    e.set(op.result, add(e, claimed, e.special("%nctaid.x")))


@emitter(threads.Workspace)
def workspace(e: Emitter, op: threads.Workspace) -> None: e.set(op.result, e.parameter(Parameter("workspace", "u64", **{"bytes" if op.whole else "each": op.bytes.value.data})))


@emitter(threads.Post)
def post(e: Emitter, op: threads.Post) -> None:
    box, value = e.value(op.box), e.w.register(e.operand(op.value))
    with only(e): e.w.emit(f"st.shared.b32 [{box.base}+{box.offset}], {value}")


@emitter(threads.Fetch)
def fetch(e: Emitter, op: threads.Fetch) -> None:
    box, w = e.value(op.box), e.w
    read = w.op("ld.shared.b32", "b32", f"[{box.base}+{box.offset}]")
    e.set(op.result, read if e.instance.single else w.op("shfl.sync.idx.b32", "b32", read, 0, 31, -1))
