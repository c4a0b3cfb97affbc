"""mbarriers, and the barrier of a cluster.

An mbarrier is 8 bytes of shared memory.  An arrival at the same barrier of other blocks is done by
as many threads as there are blocks: thread i arrives in block i, whose shared memory begins where
`mapa` says; the stage adds to that as it does in the own block.  It is written without
`.release.cluster`, which would put a memory barrier of the whole GPU into every step: what a
stage's readers did is complete when their dots have been waited for.
"""

from __future__ import annotations

from functools import partial

from tkc.codegen.ptx import traps
from tkc.codegen.ptx.access import store_tile
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import one_thread
from tkc.codegen.ptx.shared_memory import everywhere
from tkc.codegen.ptx.values import BarriersView
from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir import threads

MAX_SLEEP_NS = "0x989680"  # of one try_wait


def place(e: Emitter, view: BarriersView, index: Integer, base: Integer | None = None) -> str:
    """The address of one barrier of a ring, as text in brackets; `base`: in another block's shared
    memory.
    """
    base = view.base if base is None else base
    if not isinstance(index, str):
        return f"[{base}+{view.offset + 8 * index}]"
    at = e.w.memo(("mbarrier", base, index), lambda: e.w.op("mad.lo.s32", "b32", index, 8, base))
    return f"[{at}+{view.offset}]"


OfBarrier = (
    threads.MbarrierWait
    | threads.MbarrierTest
    | threads.MbarrierExpect
    | threads.MbarrierArrive
    | threads.Send
    | threads.TmaLoad
)


def address_of(e: Emitter, op: OfBarrier) -> str:
    """The address of the barrier that an operation names."""
    return place(e, e.barriers(op.barriers), e.integer(op.index[0]))


def initializing_thread(e: Emitter) -> Operand:
    """Whether this is the thread that initialises barriers and fetches maps."""
    warp = threads.making_warp(e.kernel)
    if not warp:
        return one_thread(e)
    return e.w.hoist(
        ("maker", e.instance), lambda: e.w.op("setp.eq.s32", "pred", e.thread(), 32 * warp)
    )


@emitter(threads.MbarrierInit)
def init(e: Emitter, op: threads.MbarrierInit) -> None:
    """One branch for all of them: predicated, each would become a branch of its own."""
    view, first, done = e.barriers(op.barriers), initializing_thread(e), e.w.label("set")
    if isinstance(first, str):
        e.w.branch(done, first, negate=True)
    for s in range(view.stages):
        e.w.emit(f"mbarrier.init.shared::cta.b64 {place(e, view, s)}, {op.count.value.data}")
    e.w.place(done)


@emitter(threads.MbarrierWait)
def wait(e: Emitter, op: threads.MbarrierWait) -> None:
    """try_wait may return early: always a loop."""
    w, at, parity = e.w, address_of(e, op), e.operand(op.parity)
    done = ""
    if op.unless is not None:
        known = e.operand(op.unless)
        if known is True:
            return
        if isinstance(known, str):
            done = w.label("there")
            w.branch(done, known)
    again, there = w.label("wait"), w.new("pred")
    began = w.op("mov.u64", "b64", "%globaltimer") if e.debug else ""
    w.place(again)
    w.emit(f"mbarrier.try_wait.parity.shared::cta.b64 {there}, {at}, {parity}, {MAX_SLEEP_NS}")
    if e.debug:
        trap_if_late(e, op, there, again, began)
    else:
        w.branch(again, there, negate=True)
    if done:
        w.place(done)


def trap_if_late(e: Emitter, op: threads.MbarrierWait, there: str, again: str, began: str) -> None:
    """TKC_DEBUG=1: a wait that lasts too long says for what."""
    w, come = e.w, e.w.label("come")
    w.branch(come, there)
    spent = w.op("sub.s64", "b64", w.op("mov.u64", "b64", "%globaltimer"), began)
    late = w.op("setp.gt.s64", "pred", spent, e.debug * 10**9)
    w.branch(again, late, negate=True)
    traps.check(
        e,
        True,
        f"{e.instance.name} waits for parity {{1}} of mbarrier"
        f" {op.barriers.name_hint or 'number'}[{{0}}], and no such phase ended within {e.debug} s:"
        " an arrival, or bytes of a copy, are missing",
        e.integer(op.index[0]),
        e.integer(op.parity),
    )
    w.place(come)


@emitter(threads.MbarrierTest)
def test(e: Emitter, op: threads.MbarrierTest) -> None:
    """Whether a phase has ended."""
    there = e.w.new("pred")
    at = address_of(e, op)
    e.w.emit(f"mbarrier.test_wait.parity.shared::cta.b64 {there}, {at}, {e.operand(op.parity)}")
    e.set(op.result, there)


@emitter(threads.MbarrierExpect)
def expect(e: Emitter, op: threads.MbarrierExpect) -> None:
    """An arrival that adds bytes which copies will bring."""
    at = address_of(e, op)  # in every thread: what follows may use it too
    with e.w.predicated(one_thread(e)):
        e.w.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, {at}, {op.bytes.value.data}")


@emitter(threads.MbarrierArrive)
def arrive(e: Emitter, op: threads.MbarrierArrive) -> None:
    """An arrival in the own block, or in the blocks of a mask."""
    view, index = e.barriers(op.barriers), e.integer(op.index[0])
    when = True if op.when is None else e.operand(op.when)
    if when is False:
        return
    if op.of_copies:
        return _arrive_of_copies(e, place(e, view, index), when)
    by_warp = op.each is not None and op.each.data == "warp" and not e.instance.single
    if op.to is None or e.cluster == (1, 1):
        return _arrive_here(e, view, index, by_warp, when)
    mask = e.integer(op.to)
    if e.instance.single:
        _arrive_one_by_one(e, view, index, mask, when)
    else:
        _arrive_each_block(e, view, index, mask, e.lane() if by_warp else e.thread(), when)


def _arrive_here(
    e: Emitter, view: BarriersView, index: Integer, by_warp: bool, when: Operand
) -> None:
    w = e.w

    def lane_0() -> str:
        return w.op("setp.eq.s32", "pred", e.lane(), 0)

    first = w.hoist("first lane", lane_0, root=True) if by_warp else one_thread(e)
    at = place(e, view, index)
    with w.predicated(_both(e, first, when)):
        w.emit(f"mbarrier.arrive.shared::cta.b64 _, {at}")


def _arrive_of_copies(e: Emitter, at: str, when: Operand) -> None:
    """The copies' engine arrives: a thread that waited for copies would then need a fence, for
    which those that it has issued since have to land too.
    """
    with e.w.predicated(when):
        e.w.emit(f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 {at}")


def peer_base(e: Emitter, block: Integer) -> str:
    """The start of the shared memory of another block of the cluster."""
    return e.w.op("mapa.shared::cluster.u32", "b32", e.shared_base(), block)


def _arrive_one_by_one(
    e: Emitter, view: BarriersView, index: Integer, mask: Integer, when: Operand
) -> None:
    """One thread, in one block after the other."""
    for block in range(e.cluster[0] * e.cluster[1]):
        base = e.w.hoist(("peer", block), partial(peer_base, e, block))
        at, held = place(e, view, index, base), has_bit(e, mask, block)
        if held is not False:
            with e.w.predicated(_both(e, held, when)):
                e.w.emit(f"mbarrier.arrive.shared::cluster.b64 _, {at}")


def _arrive_each_block(
    e: Emitter, view: BarriersView, index: Integer, mask: Integer, thread: str, when: Operand
) -> None:
    """Each of the first threads in one block."""
    w, blocks = e.w, e.cluster[0] * e.cluster[1]
    base = w.hoist(
        ("peers", thread), lambda: peer_base(e, w.op("min.u32", "b32", thread, blocks - 1))
    )

    def goes() -> Operand:
        real = w.op("setp.lt.u32", "pred", thread, blocks)
        return _both(e, real, True if mask == (1 << blocks) - 1 else has_bit(e, mask, thread))

    key = "goes", thread, mask
    chosen = w.memo(key, goes) if isinstance(mask, str) else w.hoist(key, goes)
    at = place(e, view, index, base)
    with w.predicated(_both(e, chosen, when)):
        w.emit(f"mbarrier.arrive.shared::cluster.b64 _, {at}")


@emitter(threads.Send)
def send(e: Emitter, op: threads.Send) -> None:
    """Each store names the barrier beside its bytes, in the block it goes to."""
    e.need("8.1")
    value, view, index = e.tile(op.value), e.barriers(op.barriers), e.integer(op.index[0])
    to = None if op.to is None else e.integer(op.to)
    for peer, v, there in everywhere(e, value.layout, e.view(op.buffer), op.lone is not None, to):
        base = e.w.hoist(("peer", peer), partial(peer_base, e, peer))
        store_tile(
            e,
            value,
            v,
            there,
            "shared::cluster.mbarrier::complete_tx::bytes",
            ".async.weak",
            f", {place(e, view, index, base)}",
        )


def has_bit(e: Emitter, mask: Integer, bit: Integer) -> Operand:
    """Whether a mask has a bit."""
    if not isinstance(mask, str) and not isinstance(bit, str):
        return bool(mask >> bit & 1)
    w = e.w
    shifted = w.op("shr.u32", "b32", w.register(mask), bit)
    return w.op("setp.ne.u32", "pred", w.op("and.b32", "b32", shifted, 1), 0)


def _both(e: Emitter, a: Operand, b: Operand) -> Operand:
    """Conjunction of truth values, which may be True."""
    if a is True or b is True:
        return b if a is True else a
    return e.w.op("and.pred", "pred", a, b)


# ---- the cluster's own barrier
@emitter(threads.ClusterArrive)
def cluster_arrive(e: Emitter, op: threads.ClusterArrive) -> None:
    """Arrives at the barrier of the cluster."""
    e.w.emit(f"barrier.cluster.arrive{'.relaxed' if op.relaxed else ''}.aligned")


@emitter(threads.ClusterWait)
def cluster_wait(e: Emitter, op: threads.ClusterWait) -> None:
    """Waits at the barrier of the cluster."""
    e.w.emit("barrier.cluster.wait.aligned")
