"""Hardware barriers and fences."""
from __future__ import annotations

from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.ir import threads


def meet(e: Emitter) -> None:
    """All threads of the instance."""
    if e.instance.single: return
    if e.instance.warps == 1: return e.w.emit("bar.warp.sync -1")
    whole = e.instance.first == 0 and e.instance.barrier == 0
    e.w.emit(f"bar.sync {e.instance.barrier}" + ("" if whole else f", {e.instance.threads}"))


@emitter(threads.BlockBarrier)
def block_barrier(e: Emitter, op: threads.BlockBarrier) -> None: meet(e)


@emitter(threads.Barrier)
def barrier(e: Emitter, op: threads.Barrier) -> None: e.w.emit(f"bar.sync {e.operand(op.id)}, {op.threads.value.data}")


@emitter(threads.BarrierArrive)
def barrier_arrive(e: Emitter, op: threads.BarrierArrive) -> None: e.w.emit(f"bar.arrive {e.operand(op.id)}, {op.threads.value.data}")


FENCES = {"mbarrier_init": "fence.mbarrier_init.release.cluster", "async_shared": "fence.proxy.async.shared::cta", "async_global": "fence.proxy.async.global",
          "dot": "wgmma.fence.sync.aligned", "block": "membar.cta", "gpu": "membar.gl"}


@emitter(threads.Fence)
def fence(e: Emitter, op: threads.Fence) -> None:
    """On targets without an asynchronous proxy its fences are nothing."""
    if op.kind.data in ("block", "gpu") or e.target.tma: e.w.emit(FENCES[op.kind.data])
