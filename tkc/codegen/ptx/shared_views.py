"""Buffers, stages, slices and mbarriers in shared memory: a 32-bit base and a constant."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.integers import add, divide, mul, narrowed
from tkc.codegen.ptx.values import BarriersView, SharedView
from tkc.ir import shared, threads
from tkc.ir.types import BarriersType
from tkc.ir.values import shared_type, type_of


@emitter(shared.Alloc)
def alloc(e: Emitter, op: shared.Alloc) -> None:
    """A buffer at the offset that allocate-shared chose."""
    t = shared_type(op.result)
    if op.offset is None:
        e.fail("a buffer has no offset yet: allocate-shared comes before emission")
    e.set(
        op.result,
        SharedView(e.shared_base(), op.offset.value.data, t.memory, t.stages, t.stage_bytes),
    )


@emitter(threads.Barriers)
def barriers(e: Emitter, op: threads.Barriers) -> None:
    """A ring of mbarriers at the offset that allocate-shared chose."""
    if op.offset is None:
        e.fail("mbarriers have no offset yet: allocate-shared comes before emission")
    e.set(
        op.result,
        BarriersView(
            e.shared_base(), op.offset.value.data, type_of(op.result, BarriersType).stages
        ),
    )


@emitter(shared.Stage)
def stage(e: Emitter, op: shared.Stage) -> None:
    """One buffer of a ring."""
    ring, index = e.view(op.ring), narrowed(e, e.integer(op.index[0]))
    at = mul(e, index, ring.stage_bytes)
    if not isinstance(at, str) or not isinstance(index, str):
        assert isinstance(at, int)
        return e.set(op.result, replace(ring, offset=ring.offset + at, stages=1))
    stage = replace(
        ring,
        base=add(e, ring.base, at),
        stages=1,
        root=ring.root or ring.base,
        terms=(*ring.terms, (index, ring.stage_bytes)),
    )
    e.set(op.result, stage)


@emitter(shared.SharedTranspose, shared.SharedReshape)
def seen(e: Emitter, op: shared.SharedTranspose | shared.SharedReshape) -> None:
    """The same bytes in another layout."""
    e.set(op.result, e.view(op.arg).moved(0, shared_type(op.result).memory))


@emitter(shared.SharedSlice)
def slice_(e: Emitter, op: shared.SharedSlice) -> None:
    """Constant offsets go into the constant; others are multiples of the swizzle's period, so that
    they simply add.
    """
    view = e.view(op.arg)
    offsets = [e.integer(v) for v in op.offsets]
    start = view.memory.offset([0 if isinstance(n, str) else n for n in offsets])
    base, terms, align = view.base, view.terms, gcd(view.align, start)
    for axis, (v, offset) in enumerate(zip(op.offsets, offsets, strict=True)):
        at = narrowed(e, offset)
        if not isinstance(at, str):
            continue
        step, size = view.memory.linear(axis)
        steps = e.w.register(divide(e, at, step))
        base = add(e, base, mul(e, steps, size))
        terms = (*terms, (steps, size))
        found = e.ranges.of(v)
        align = gcd(align, size * max(1, found.divisor // step if found else 1))
    part = SharedView(
        base,
        view.offset + start,
        shared_type(op.result).memory,
        1,
        view.stage_bytes,
        view.root or view.base,
        terms,
        align,
    )
    e.set(op.result, part)
