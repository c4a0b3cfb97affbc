"""Roles: the warps of a block part, each group runs its own code, and the registers of the
multiprocessor follow the work.

    warp = shfl(tid / 32)                       the same in every lane, and ptxas knows it: branches on it cost nothing
    warp >= 4 -> next role
      setmaxnreg.dec 40                         by all four warps of a warpgroup, before anything else
      (single: warps other than the first leave, then all lanes but the elected one)
      prologue of the role, body
      -> end
    next role: …

Two directives let setmaxnreg count: the number of threads and `.minnctapersm 1`.  Each instance has a hardware barrier of its own,
counted down from 15; programs that name barriers count up from 1.
"""

from __future__ import annotations

from tkc.codegen.ptx.barriers import WARPGROUP, warpgroup
from tkc.codegen.ptx.emit import Emitter, Instance, emitter
from tkc.ir import threads, tile

LAST_BARRIER = 15


def check_registers(e: Emitter, roles: list[threads.Role]) -> None:
    asked = [r for r in roles if r.registers]
    if not asked:
        return
    for r in asked:
        n = r.registers.value.data
        if n % 8 or not 24 <= n <= 256:
            e.fail(
                f"role {r.sym_name.data} asks for {n} registers: a multiple of 8 from 24 to 256 is"
                " possible"
            )
        if r.warps.value.data % WARPGROUP:
            e.fail(
                f"role {r.sym_name.data} has {r.warps.value.data} warps: only groups of four change"
                " their registers"
            )
    entry = e.target.at_entry(e.threads)
    total = sum(
        (r.registers.value.data if r.registers else entry) * 32 * r.warps.value.data * r.instances
        for r in roles
    )
    if total > (all_of_them := -(-entry // 8) * 8 * e.threads):
        e.fail(
            f"the roles ask for {total} registers, a block of {e.threads} threads has"
            f" {all_of_them}, and more would be waited for without end"
        )


@emitter(threads.Turn)
def turn(e: Emitter, op: threads.Turn) -> None:
    """A hardware barrier for each warpgroup: it waits at its own, the one before it arrives there
    when it is done; the last one arrives for the first turn.
    """
    groups = e.instance.warps // WARPGROUP
    if groups < 2:
        return
    w, both, last = e.w, 64 * WARPGROUP, groups - 1
    group = warpgroup(e)
    match op.what.data:
        case "start":
            with w.predicated(w.op("setp.eq.u32", "pred", group, last)):
                w.emit(f"bar.arrive 1, {both}")
        case "begin":
            w.emit(
                "bar.sync"
                f" {w.hoist(('mine', e.instance), lambda: w.op('add.u32', 'b32', group, 1))},"
                f" {both}"
            )
        case "end":
            w.emit(
                f"bar.arrive {w.hoist(('other', e.instance), lambda: _after(w, group, last))},"
                f" {both}"
            )


def _after(w, group, last: int):
    """The barrier of the warpgroup that follows."""
    if last == 1:
        return w.op("sub.u32", "b32", 2, group)
    return w.op(
        "selp.u32",
        "b32",
        1,
        w.op("add.u32", "b32", group, 2),
        w.op("setp.eq.u32", "pred", group, last),
    )


@emitter(threads.Roles)
def roles(e: Emitter, op: threads.Roles) -> None:
    w, parts = e.w, list(op.body.block.ops)
    sizes = [r.warps.value.data * r.instances for r in parts]
    e.threads = 32 * sum(sizes)
    check_registers(e, parts)
    if any(r.registers for r in parts) and ".minnctapersm 1" not in e.directives:
        e.directives.append(".minnctapersm 1")
    whole, end = e.instance, w.label("end")
    e.instance = Instance(sum(sizes))
    warp, first, barrier = e.warp(), 0, LAST_BARRIER
    for r, size in zip(parts, sizes, strict=False):
        following = end if r is parts[-1] else w.label(parts[parts.index(r) + 1].sym_name.data)
        if r is not parts[-1]:
            w.raw(f"\t@{w.op('setp.ge.u32', 'pred', warp, first + size)} bra.uni {following};")
        w.comment(f"---- {r.sym_name.data}")
        role(e, r, warp, first, barrier, end)
        if r is not parts[-1]:
            w.raw(f"\tbra.uni {end};")
            w.place(following)
        first, barrier = first + size, barrier - r.instances
    w.place(end)
    e.instance = whole
    if not isinstance(op.next_op, tile.Return):
        w.emit("bar.warp.sync -1")
        w.emit("bar.sync 0")


def role(e: Emitter, r: threads.Role, warp, first: int, barrier: int, end: str) -> None:
    w, warps = e.w, r.warps.value.data
    if r.registers:
        n = r.registers.value.data
        w.emit(
            f"setmaxnreg.{'inc' if n > e.target.at_entry(e.threads) else 'dec'}.sync.aligned.u32 {n}"
        )
    if r.single:
        if warps > 1:
            w.raw(f"\t@{w.op('setp.ne.u32', 'pred', warp, first)} bra.uni {end};")
        elected = w.new("pred")
        w.emit(f"elect.sync _|{elected}, -1")
        w.raw(f"\t@!{elected} bra {end};")
    with w.section():
        who = 0
        if r.instances > 1:
            who = w.hoist(
                "who",
                lambda: w.op(
                    "div.u32", "b32", w.op("sub.s32", "b32", warp, first) if first else warp, warps
                ),
            )
            first = w.hoist("first warp", lambda: w.op("mad.lo.s32", "b32", who, warps, first))
            barrier = w.hoist("barrier", lambda: w.op("sub.s32", "b32", barrier, who))
        e.instance = Instance(
            warps, first, barrier, r.single is not None, r.sym_name.data, r.instances, who
        )
        e.values[r.who] = who
        e.block(r.body.block)
