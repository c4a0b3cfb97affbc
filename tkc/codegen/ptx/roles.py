"""Roles: the warps of a block are divided, each group runs its own code, and the registers of the
multiprocessor follow the work.

    warp = shfl(tid / 32)        the same in every lane, and ptxas knows it: branches cost nothing
    warp >= 4 -> next role
      setmaxnreg.dec 40          by all four warps of a warpgroup, before anything else
      (single: warps other than the first leave, then all lanes but the elected one)
      prologue of the role, body
      -> end
    next role: …

setmaxnreg needs two directives: the number of threads and `.minnctapersm`.  Each instance has a
hardware barrier of its own, counted down from 15; programs that name barriers count up from 1.
"""

from __future__ import annotations

from tkc.codegen.ptx.barriers import WARPS_PER_WARPGROUP, warpgroup
from tkc.codegen.ptx.emitter import Emitter, Instance, emitter
from tkc.codegen.ptx.writer import Integer
from tkc.ir import threads, tile

LAST_BARRIER = 15


def check_registers(e: Emitter, roles: list[threads.Role]) -> None:
    """Raises CompileError for registers that setmaxnreg cannot set, or that the block does not
    have.
    """
    entry = registers_at_entry(e)
    total, changes = 0, False
    for r in roles:
        warps, registers = r.warps.value.data, entry
        if r.registers is not None:
            registers, changes = r.registers.value.data, True
            if registers % 8 or not 24 <= registers <= 256:
                e.fail(
                    f"role {r.sym_name.data} asks for {registers} registers: a multiple of 8 from"
                    " 24 to 256 is possible"
                )
            if warps % WARPS_PER_WARPGROUP:
                e.fail(
                    f"role {r.sym_name.data} has {warps} warps: only groups of four change their"
                    " registers"
                )
        total += registers * 32 * warps * r.instances
    if changes and total > (available := -(-entry // 8) * 8 * e.threads):
        e.fail(
            f"the roles ask for {total} registers, a block of {e.threads} threads has"
            f" {available}, and more would be waited for without end"
        )


def blocks_of(e: Emitter) -> int:
    """Blocks that share a multiprocessor, by the plan."""
    return e.kernel.integer("blocks", 1)


def registers_at_entry(e: Emitter) -> int:
    """32-bit registers of each thread before roles change them."""
    return e.target.at_entry(e.threads * blocks_of(e))


@emitter(threads.Turn)
def turn(e: Emitter, op: threads.Turn) -> None:
    """A hardware barrier for each warpgroup: it waits at its own, the one before it arrives there
    when it is done; the last one arrives for the first turn.
    """
    groups = e.instance.warps // WARPS_PER_WARPGROUP
    if groups < 2:
        return
    w, count, last = e.w, 64 * WARPS_PER_WARPGROUP, groups - 1
    group = warpgroup(e)
    match op.what.data:
        case "start":
            with w.predicated(w.op("setp.eq.u32", "pred", group, last)):
                w.emit(f"bar.arrive 1, {count}")
        case "begin":
            own = w.hoist(("mine", e.instance), lambda: w.op("add.u32", "b32", group, 1))
            w.emit(f"bar.sync {own}, {count}")
        case "end":
            other = w.hoist(("other", e.instance), lambda: _after(e, group, last))
            w.emit(f"bar.arrive {other}, {count}")


def _after(e: Emitter, group: Integer, last: int) -> str:
    """The barrier of the warpgroup that follows."""
    w = e.w
    if last == 1:
        return w.op("sub.u32", "b32", 2, group)
    following = w.op("add.u32", "b32", group, 2)
    return w.op("selp.u32", "b32", 1, following, w.op("setp.eq.u32", "pred", group, last))


@emitter(threads.Roles)
def roles(e: Emitter, op: threads.Roles) -> None:
    """A branch by the warp's number to the code of its role."""
    w, parts = e.w, [r for r in op.body.block.ops if isinstance(r, threads.Role)]
    sizes = [r.warps.value.data * r.instances for r in parts]
    e.threads = 32 * sum(sizes)
    check_registers(e, parts)
    if any(r.registers for r in parts) and not e.directives:
        e.directives.append(f".minnctapersm {blocks_of(e)}")
    whole, end = e.instance, w.label("end")
    e.instance = Instance(sum(sizes))
    warp, first, barrier = e.warp(), 0, LAST_BARRIER
    for i, (r, size) in enumerate(zip(parts, sizes, strict=True)):
        is_last = r is parts[-1]
        following = end if is_last else w.label(parts[i + 1].sym_name.data)
        if not is_last:
            other = w.op("setp.ge.u32", "pred", warp, first + size)
            w.branch(following, other, uniform=".uni")
        w.comment(f"---- {r.sym_name.data}")
        role(e, r, warp, first, barrier, end)
        if not is_last:
            w.branch(end, uniform=".uni")
            w.place(following)
        first, barrier = first + size, barrier - r.instances
    w.place(end)
    e.instance = whole
    if not isinstance(op.next_op, tile.Return):
        w.emit("bar.warp.sync -1")
        w.emit("bar.sync 0")


def role(
    e: Emitter, r: threads.Role, warp: Integer, first: Integer, barrier: Integer, end: str
) -> None:
    """The code of one role, whose instances begin at warp `first` and count barriers down."""
    w, warps = e.w, r.warps.value.data
    if r.registers:
        n = r.registers.value.data
        change = "inc" if n > registers_at_entry(e) else "dec"
        w.emit(f"setmaxnreg.{change}.sync.aligned.u32 {n}")
    if r.single:
        if warps > 1:
            w.branch(end, w.op("setp.ne.u32", "pred", warp, first), uniform=".uni")
        elected = w.new("pred")
        w.emit(f"elect.sync _|{elected}, -1")
        w.branch(end, elected, negate=True)
    with w.section():
        index: Integer = 0
        if r.instances > 1:
            start, last = first, barrier

            def number() -> str:
                own = w.op("sub.s32", "b32", warp, start) if start else warp
                return w.op("div.u32", "b32", own, warps)

            index = w.hoist("instance index", number)
            first = w.hoist("first warp", lambda: w.op("mad.lo.s32", "b32", index, warps, start))
            barrier = w.hoist("barrier", lambda: w.op("sub.s32", "b32", last, index))
        single = r.single is not None
        e.instance = Instance(warps, first, barrier, single, r.sym_name.data, r.instances, index)
        e.values[r.instance] = index
        e.block(r.body.block)
