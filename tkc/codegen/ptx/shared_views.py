"""Shared memory: buffers, stages, slices and mbarriers are addresses: a 32-bit base and a constant."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.scalars import add, mul, narrowed
from tkc.codegen.ptx.values import BarriersView, SharedView
from tkc.ir import shared, threads


@emitter(shared.Alloc)
def alloc(e: Emitter, op: shared.Alloc) -> None:
    t = op.result.type
    if op.offset is None:
        e.fail("a buffer has no offset yet: allocate-shared comes before emission")
    e.set(
        op.result,
        SharedView(e.shared_base(), op.offset.value.data, t.memory, t.stages, t.stage_bytes),
    )


@emitter(threads.Barriers)
def barriers(e: Emitter, op: threads.Barriers) -> None:
    if op.offset is None:
        e.fail("mbarriers have no offset yet: allocate-shared comes before emission")
    e.set(op.result, BarriersView(e.shared_base(), op.offset.value.data, op.result.type.stages))


@emitter(shared.Stage)
def stage(e: Emitter, op: shared.Stage) -> None:
    ring, index = e.value(op.ring), narrowed(e, e.operand(op.index[0]))
    at = mul(e, index, ring.stage_bytes)
    if isinstance(at, str):
        e.set(
            op.result,
            SharedView(
                add(e, ring.base, at),
                ring.offset,
                ring.memory,
                1,
                ring.stage_bytes,
                ring.root or ring.base,
                (*ring.terms, (index, ring.stage_bytes)),
                ring.align,
            ),
        )
    else:
        e.set(op.result, replace(ring, offset=ring.offset + at, stages=1))


@emitter(shared.SharedTranspose, shared.SharedReshape)
def seen(e: Emitter, op: shared.SharedTranspose | shared.SharedReshape) -> None:
    e.set(op.result, e.value(op.arg).moved(0, op.result.type.memory))


@emitter(shared.SharedSlice)
def slice_(e: Emitter, op: shared.SharedSlice) -> None:
    """Constant offsets go into the constant; others are multiples of the swizzle's period, so that
    they simply add.
    """
    view, memory = e.value(op.arg), op.result.type.memory
    start = view.memory.offset([n if isinstance(n := e.operand(v), int) else 0 for v in op.offsets])
    base, terms, align = view.base, view.terms, gcd(view.align, start)
    for axis, v in enumerate(op.offsets):
        at = narrowed(e, e.operand(v))
        if not isinstance(at, str):
            continue
        step, size = view.memory.linear(axis)
        whole = (
            at
            if step == 1
            else (
                e.w.op("shr.u32", "b32", at, step.bit_length() - 1)
                if step & step - 1 == 0
                else e.w.op("div.u32", "b32", at, step)
            )
        )
        found = e.ranges.of(v)
        base, terms, align = (
            add(e, base, mul(e, whole, size)),
            (*terms, (whole, size)),
            gcd(align, size * max(1, found.divisor // step if found else 1)),
        )
    e.set(
        op.result,
        SharedView(
            base,
            view.offset + start,
            memory,
            1,
            view.stage_bytes,
            view.root or view.base,
            terms,
            align,
        ),
    )
