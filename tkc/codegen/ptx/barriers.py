"""Hardware barriers and fences."""

from __future__ import annotations

from xdsl.ir import Operation

from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.writer import Integer
from tkc.ir import shared, threads, tile

WARPS_PER_WARPGROUP = 4


def meet(e: Emitter) -> None:
    """A barrier of all threads of the instance."""
    if e.instance.single:
        return
    if e.instance.warps == 1:
        return e.w.emit("bar.warp.sync -1")
    whole = e.instance.first == 0 and e.instance.barrier == 0
    e.w.emit(f"bar.sync {e.instance.barrier}" + ("" if whole else f", {e.instance.threads}"))


def rejoin(e: Emitter) -> None:
    """Behind a branch that lanes of a warp take apart, such as a loop that each leaves by itself.
    ptxas may take the warp for whole there and leave out what lets shuffles wait for each other:
    an H200 then added up other elements than it should.
    """
    if not e.instance.single:
        e.w.emit("bar.warp.sync -1")


def warpgroup(e: Emitter) -> Integer:
    """This thread's warpgroup in its instance, the same in every lane of a warp."""
    if e.instance.warps == WARPS_PER_WARPGROUP:
        return 0
    return e.w.hoist(("group", e.instance), lambda: e.w.op("shr.u32", "b32", e.warp(), 2))


def by_warpgroups(e: Emitter, op: Operation) -> bool:
    """Whether each warpgroup of an instance of several does an operation for itself."""
    return getattr(op, "each", None) is not None and e.instance.warps > WARPS_PER_WARPGROUP


@emitter(threads.BlockBarrier)
def block_barrier(e: Emitter, op: threads.BlockBarrier) -> None:
    """Of the instance, or of each of its warpgroups. Barriers from 1 up are for turns, one for each
    warpgroup of an instance, two at least; those of single warpgroups follow.
    """
    if not by_warpgroups(e, op):
        return meet(e)
    own = e.w.hoist(
        ("apart", e.instance),
        lambda: e.w.op(
            "add.u32", "b32", warpgroup(e), 1 + max(2, e.instance.warps // WARPS_PER_WARPGROUP)
        ),
    )
    e.w.emit(f"bar.sync {own}, {32 * WARPS_PER_WARPGROUP}")


@emitter(threads.Barrier)
def barrier(e: Emitter, op: threads.Barrier) -> None:
    """A named barrier of so many threads."""
    e.w.emit(f"bar.sync {e.operand(op.id)}, {op.threads.value.data}")


@emitter(threads.BarrierArrive)
def barrier_arrive(e: Emitter, op: threads.BarrierArrive) -> None:
    """Arrives at a named barrier without waiting."""
    e.w.emit(f"bar.arrive {e.operand(op.id)}, {op.threads.value.data}")


FENCES = {
    "mbarrier_init": "fence.mbarrier_init.release.cluster",
    "async_shared": "fence.proxy.async.shared::cta",
    "async_global": "fence.proxy.async.global",
    "dot": "wgmma.fence.sync.aligned",
    "block": "membar.cta",
    "gpu": "membar.gl",
}


DEPENDENCIES = {"wait": "wait", "launch": "launch_dependents"}


@emitter(tile.Dependency)
def dependency(e: Emitter, op: tile.Dependency) -> None:
    """Waits for the launch before, or lets the next one begin."""
    e.w.emit(f"griddepcontrol.{DEPENDENCIES[op.kind.data]}")


@emitter(threads.Fence)
def fence(e: Emitter, op: threads.Fence) -> None:
    """On targets without an asynchronous proxy its fences are nothing. After a warp's writes its
    lanes meet, if one of them arrives for all.
    """
    if op.kind.data in ("block", "gpu") or e.target.tma:
        e.w.emit(FENCES[op.kind.data])
    if isinstance(op.prev_op, shared.Write) and isinstance(op.next_op, threads.MbarrierArrive):
        e.w.emit("bar.warp.sync -1")
