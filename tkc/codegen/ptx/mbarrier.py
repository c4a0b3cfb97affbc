"""mbarriers, and the barrier of a cluster.

An mbarrier is 8 bytes of shared memory.  An arrival at the same barrier of other blocks is done by as many threads as there are blocks: thread
i goes to block i, whose shared memory begins where `mapa` says; the stage adds to that as it does at home.  It is written without
`.release.cluster`, which would put a memory barrier of the whole GPU into every step: what a
stage's readers did is complete when their dots have been waited for.
"""

from __future__ import annotations

from tkc.codegen.ptx import traps
from tkc.codegen.ptx.access import store_tile
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.global_memory import one_thread
from tkc.codegen.ptx.shared_memory import everywhere
from tkc.codegen.ptx.values import BarriersView
from tkc.codegen.ptx.writer import Operand
from tkc.ir import threads

SUSPEND = "0x989680"  # nanoseconds a try_wait may sleep


def place(e: Emitter, view: BarriersView, index: Operand, base: Operand | None = None) -> str:
    """The address of one barrier of a ring, as text in brackets; `base`: in another block's shared
    memory.
    """
    base = view.base if base is None else base
    if not isinstance(index, str):
        return f"[{base}+{view.offset + 8 * index}]"
    at = e.w.memo(("mbarrier", base, index), lambda: e.w.op("mad.lo.s32", "b32", index, 8, base))
    return f"[{at}+{view.offset}]"


def of(e: Emitter, op) -> str:
    return place(e, e.value(op.barriers), e.operand(op.index[0]))


def by(e: Emitter, thread: Operand):
    return e.w.predicated(None if thread is True else thread)


def only(e: Emitter):
    return by(e, one_thread(e))


def maker(e: Emitter) -> Operand:
    """Whether this is the thread that makes barriers and asks for maps."""
    warp = threads.making_warp(e.kernel)
    return (
        e.w.hoist(
            ("maker", e.instance), lambda: e.w.op("setp.eq.s32", "pred", e.thread(), 32 * warp)
        )
        if warp
        else one_thread(e)
    )


@emitter(threads.MbarrierInit)
def init(e: Emitter, op: threads.MbarrierInit) -> None:
    """One branch for all of them: predicated, each would become a branch of its own."""
    view, first, done = e.value(op.barriers), maker(e), e.w.label("set")
    if first is not True:
        e.w.raw(f"\t@!{first} bra {done};")
    for s in range(view.stages):
        e.w.emit(f"mbarrier.init.shared::cta.b64 {place(e, view, s)}, {op.count.value.data}")
    e.w.place(done)


@emitter(threads.MbarrierWait)
def wait(e: Emitter, op: threads.MbarrierWait) -> None:
    """try_wait may give up early: always a loop."""
    w, at, parity = e.w, of(e, op), e.operand(op.parity)
    done = None
    if op.unless is not None:
        known = e.operand(op.unless)
        if known is True:
            return
        if isinstance(known, str):
            done = w.label("there")
            w.raw(f"\t@{known} bra {done};")
    again, there = w.label("wait"), w.new("pred")
    began = w.op("mov.u64", "b64", "%globaltimer") if e.debug else ""
    w.place(again)
    w.emit(f"mbarrier.try_wait.parity.shared::cta.b64 {there}, {at}, {parity}, {SUSPEND}")
    if e.debug:
        bounded(e, op, there, again, began)
    else:
        w.raw(f"\t@!{there} bra {again};")
    if done:
        w.place(done)


def bounded(e: Emitter, op: threads.MbarrierWait, there: str, again: str, began: str) -> None:
    """TKC_DEBUG=1: a wait that lasts too long says for what."""
    w, come = e.w, e.w.label("come")
    w.raw(f"\t@{there} bra {come};")
    spent = w.op("sub.s64", "b64", w.op("mov.u64", "b64", "%globaltimer"), began)
    late = w.op("setp.gt.s64", "pred", spent, e.debug * 10**9)
    w.raw(f"\t@!{late} bra {again};")
    traps.check(
        e,
        True,
        f"{e.instance.name} waits for parity {{1}} of mbarrier"
        f" {op.barriers.name_hint or 'number'}[{{0}}], and no such phase ended within {e.debug} s:"
        " an arrival, or bytes of a copy, are missing",
        e.operand(op.index[0]),
        e.operand(op.parity),
    )
    w.place(come)


@emitter(threads.MbarrierTest)
def test(e: Emitter, op: threads.MbarrierTest) -> None:
    there = e.w.new("pred")
    e.w.emit(
        f"mbarrier.test_wait.parity.shared::cta.b64 {there}, {of(e, op)}, {e.operand(op.parity)}"
    )
    e.set(op.result, there)


@emitter(threads.MbarrierExpect)
def expect(e: Emitter, op: threads.MbarrierExpect) -> None:
    at = of(e, op)  # for all: what follows may use it too
    with only(e):
        e.w.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, {at}, {op.bytes.value.data}")


@emitter(threads.MbarrierArrive)
def arrive(e: Emitter, op: threads.MbarrierArrive) -> None:
    w, view, index = e.w, e.value(op.barriers), e.operand(op.index[0])
    by_warp = op.each is not None and op.each.data == "warp" and not e.instance.single
    when = True if op.when is None else e.operand(op.when)
    if when is False:
        return
    if op.to is None or e.cluster == (1, 1):
        first = (
            w.hoist("first lane", lambda: w.op("setp.eq.s32", "pred", e.lane(), 0), root=True)
            if by_warp
            else one_thread(e)
        )
        at = place(e, view, index)
        if first is True:
            first = when
        elif when is not True:
            first = _both(e, first, when)
        with w.predicated(None if first is True else first):
            w.emit(f"mbarrier.arrive.shared::cta.b64 _, {at}")
        return
    mask, blocks = e.operand(op.to), e.cluster[0] * e.cluster[1]
    if e.instance.single:  # one thread, one block after the other
        for block in range(blocks):
            base = w.hoist(
                ("peer", block),
                lambda: w.op("mapa.shared::cluster.u32", "b32", e.shared_base(), block),
            )
            at, held = place(e, view, index, base), has(e, mask, block)
            if held is not False:
                held = when if held is True else held if when is True else _both(e, held, when)
                with w.predicated(None if held is True else held):
                    w.emit(f"mbarrier.arrive.shared::cluster.b64 _, {at}")
        return
    thread = e.lane() if by_warp else e.thread()
    base = w.hoist(
        ("peers", thread),
        lambda: w.op(
            "mapa.shared::cluster.u32",
            "b32",
            e.shared_base(),
            w.op("min.u32", "b32", thread, blocks - 1),
        ),
    )

    def goes():
        return _both(
            e,
            w.op("setp.lt.u32", "pred", thread, blocks),
            has(e, mask, thread) if mask != (1 << blocks) - 1 else True,
        )

    chosen = (
        w.memo(("goes", thread, mask), goes)
        if isinstance(mask, str)
        else w.hoist(("goes", thread, mask), goes)
    )
    at = place(e, view, index, base)
    if when is not True:
        chosen = _both(e, chosen, when)
    with w.predicated(chosen):
        w.emit(f"mbarrier.arrive.shared::cluster.b64 _, {at}")


@emitter(threads.Send)
def send(e: Emitter, op: threads.Send) -> None:
    """Each store names the barrier beside its bytes, in the block it goes to."""
    e.need("8.1")
    w, value, view, index = e.w, e.tile(op.value), e.value(op.barriers), e.operand(op.index[0])
    for peer, v, there in everywhere(e, value.layout, e.value(op.buffer), op.lone is not None):
        base = w.hoist(
            ("peer", peer),
            lambda peer=peer: w.op("mapa.shared::cluster.u32", "b32", e.shared_base(), peer),
        )
        store_tile(
            e,
            value,
            v,
            there,
            "shared::cluster.mbarrier::complete_tx::bytes",
            ".async.weak",
            f", {place(e, view, index, base)}",
        )


def has(e: Emitter, mask: Operand, bit: Operand) -> Operand:
    """Whether a mask has a bit."""
    if not isinstance(mask, str) and not isinstance(bit, str):
        return bool(mask >> bit & 1)
    w = e.w
    return w.op(
        "setp.ne.u32",
        "pred",
        w.op("and.b32", "b32", w.op("shr.u32", "b32", w.register(mask), bit), 1),
        0,
    )


def _both(e: Emitter, a: str, b: Operand) -> str:
    return a if b is True else e.w.op("and.pred", "pred", a, b)


# ---- the cluster's own barrier
# ------------------------------------------------------------------------------------------
@emitter(threads.ClusterArrive)
def cluster_arrive(e: Emitter, op: threads.ClusterArrive) -> None:
    e.w.emit(f"barrier.cluster.arrive{'.relaxed' if op.relaxed else ''}.aligned")


@emitter(threads.ClusterWait)
def cluster_wait(e: Emitter, op: threads.ClusterWait) -> None:
    e.w.emit("barrier.cluster.wait.aligned")
