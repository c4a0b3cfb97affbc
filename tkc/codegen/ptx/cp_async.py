"""cp.async: each thread copies 4, 8 or 16 bytes at a time from global to shared memory, past its
registers.

What lies outside the array, or is masked, is filled with zeros: the copy reads 0 of its bytes; with anything else by a store.  Where no
4 bytes may move together the copy goes through registers, which is slower and just as right: a wait
and a barrier follow either way.
"""

from __future__ import annotations

from tkc.codegen.ptx.access import Group, both, load_tile, store_tile
from tkc.codegen.ptx.blocks import Block, mask_of
from tkc.codegen.ptx.coordinates import is_first_copy
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.global_memory import otherwise
from tkc.codegen.ptx.shared_memory import plain_groups
from tkc.codegen.ptx.traps import access, span
from tkc.codegen.ptx.writer import Operand
from tkc.ir import threads
from tkc.ir.digits import Digit, copies
from tkc.ir.layout import Layout, blocked
from tkc.ir.origin import origin
from tkc.ir.types import TileType, bits


@emitter(threads.CpAsync)
def cp_async(e: Emitter, op: threads.CpAsync) -> None:
    view, element = e.value(op.buffer), op.array.type.element
    size, shape = bits(element) // 8, view.memory.shape
    most = op.vector.value.data if op.vector is not None else 16
    layout = (
        op.threads.data
        if op.threads is not None
        else blocked(shape, max(most // size, 1), e.instance.warps, view.memory.order)
    )
    block = Block(e, op, layout)
    width, place = plain_groups(e, layout, view)
    v = min(block.vector(most, op.mask), width)
    zero = op.other is None or e.constant(op.other) == 0
    if v * size < 4:
        e.notes.append(
            f"the copy of {'x'.join(map(str, shape))}x{element} goes through registers: only"
            f" {v * size} bytes may move together"
        )
        t = TileType(shape, element, layout)
        value = load_tile(
            e, t, v, lambda r: block.group(r, op.mask), otherwise(e, op.other), "global"
        )
        return store_tile(e, value, width, place, "shared")
    if width % v:
        e.fail(f"a copy of {v} elements at once into a buffer that takes {width}")
    bounds = (
        span(e, argument.index) if e.debug and (argument := origin(op.array)) is not None else None
    )
    first, seen, sizes = is_first_copy(e, layout), set(), {True: ""}
    for r in range(0, layout.num_registers, v):
        at = tuple(layout.offsets("registers")[r].tolist())
        if at in seen:
            continue
        seen.add(at)
        target, held = place(r), both(e, block.held(r), mask_of(e, op.mask, r))
        if target.held is False:
            continue
        if not zero and held is not True:
            _filled(e, op, target, both(e, both(e, target.held, first), opposite(e, held)), r, v)
        if not zero and held is False:
            continue
        if held is False:
            sizes[held] = ", 0"
        elif zero and held not in sizes:
            sizes[held] = f", {e.w.op('selp.b32', 'b32', v * size, 0, held)}"
        source, guard = Group(*block.address(r)), both(e, target.held, first)
        if not zero:
            guard = both(e, guard, held)
        if e.debug:
            access(
                e,
                Group(source.address, source.offset, both(e, guard, held)),
                v * size,
                "copies",
                bounds,
            )
        with e.w.predicated(guard if isinstance(guard, str) else None):
            e.w.emit(
                f"cp.async.{'cg' if v * size == 16 else 'ca'}.shared.global {target.text},"
                f" {source.text}, {v * size}{sizes.get(held, '')}"
            )


def opposite(e: Emitter, held: Operand) -> Operand:
    return (
        e.w.memo(("not", held), lambda: e.w.op("not.pred", "pred", held))
        if isinstance(held, str)
        else not held
    )


def _filled(e: Emitter, op: threads.CpAsync, target: Group, where: Operand, r: int, v: int) -> None:
    """What is there instead of absent elements."""
    t = TileType(
        (v,),
        op.array.type.element,
        Layout((v,), (Digit(v, 0, 1),), (copies(32),), (copies(e.instance.warps),)),
    )
    spare = otherwise(e, op.other)
    store_tile(
        e,
        e.build(t, [spare(r + i) for i in range(v)]),
        v,
        lambda _: Group(target.address, target.offset, where),
        "shared",
    )


@emitter(threads.CpCommit)
def cp_commit(e: Emitter, op: threads.CpCommit) -> None:
    e.w.emit("cp.async.commit_group")


@emitter(threads.CpWait)
def cp_wait(e: Emitter, op: threads.CpWait) -> None:
    n = op.pending.value.data
    e.w.emit("cp.async.wait_all" if n == 0 else f"cp.async.wait_group {n}")
