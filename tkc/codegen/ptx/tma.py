"""Tensor memory accelerator: boxes of an array to shared memory and back, by one thread of the
instance.

A map's dimensions run innermost first and may split the last axis in panels
(interface.map_dimensions says how); coordinates follow:

    box [batch, row, head, column] of a panelled map
    ->  {column % panel, row, column / panel, head, batch}

A box wider than the swizzle on a map without panels takes one copy a panel.  The single thread of a
producer issues its copies outright; elsewhere they are predicated on the instance's first thread,
not branched to, so that ptxas sees no divergence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from xdsl.ir import SSAValue

from tkc.codegen.ptx.barriers import WARPS_PER_WARPGROUP, by_warpgroups, warpgroup
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import one_thread
from tkc.codegen.ptx.integers import add, mul, saturated
from tkc.codegen.ptx.mbarrier import address_of, initializing_thread
from tkc.codegen.ptx.values import SharedView, TensorMap
from tkc.codegen.ptx.writer import Integer
from tkc.ir import threads
from tkc.ir.host_values import argument_number, host_array
from tkc.ir.interface import Parameter, map_dimensions
from tkc.ir.types import MapType, bits, is_float
from tkc.ir.values import type_of

POLICIES = {"evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}


@emitter(threads.TensorMap)
def tensor_map(e: Emitter, op: threads.TensorMap) -> None:
    """The map of an array argument, or of an array that the kernel makes of what the host knows:
    the host makes it, the kernel fetches it ahead.
    """
    t = type_of(op.result, MapType)
    argument = argument_number(op.arg)
    made = host_array(op.arg) if argument is None else (argument, 0, [], [])
    if made is None:
        e.fail("a tensor map is of an array argument, or of an array that the host can describe")
    argument, offset, shape, strides = made
    p = Parameter(
        "map",
        "b8[128]",
        argument,
        element="tf32" if op.tf32 is not None else str(t.element),
        box=t.extents,
        swizzle=t.swizzle,
        panelled=t.panelled,
        order=tuple(map(int, op.order.get_values())) if op.order is not None else (),
        fetch=op.fetch.value.data if op.fetch is not None else 0,
        offset=offset,
        shape=tuple(shape),
        strides=tuple(strides),
    )
    address = e.parameter(p)
    e.values[op.result] = TensorMap(address, t)
    with e.w.predicated(initializing_thread(e)):
        e.w.emit(f"prefetch.tensormap [{address}]")


def boxes(
    e: Emitter,
    t: MapType,
    offsets: Sequence[SSAValue],
    view: SharedView,
    shift: tuple[int, Integer] = (0, 0),
) -> Iterator[tuple[str, str, int]]:
    """Coordinates, place in shared memory and number of dimensions of each copy. shift: further
    along an axis, by so many elements.
    """
    dims, panel, last = _dimensions(t), t.panel, t.rank - 1
    split = any(part == "panel" for _, part in dims)
    if split and ((found := e.ranges.of(offsets[last])) is None or found.divisor % panel):
        e.fail(
            f"a box of a map with panels starts at a multiple of {panel} columns, which its offset"
            " is not known to be: use a map without panels"
        )
    # a coordinate has 32 bits, however large the array is: what these do not hold is outside of it
    start = [saturated(e, e.integer(o), e.ranges.of(o)) for o in offsets]
    axis, distance = shift
    start[axis] = add(e, start[axis], distance)

    def coordinate(axis: int, part: str, n: int) -> Integer:
        """One coordinate of copy number n."""
        at = start[axis]
        if part == "within":
            return 0  # boxes start at a panel's edge
        if part == "panel":
            if not isinstance(at, str):
                return at // panel
            return e.w.op("shr.s32", "b32", at, panel.bit_length() - 1, type="u32")
        return add(e, at, n * panel) if axis == last else at

    for n in range(1 if split else -(-t.extents[last] // panel)):
        coordinates = ", ".join(str(coordinate(axis, part, n)) for axis, part in dims)
        place = f"[{view.base}+{view.offset + n * view.memory.panel_stride}]"
        yield f"{{{coordinates}}}", place, len(dims)


def _dimensions(t: MapType) -> list[tuple[int, str]]:
    return list(map_dimensions(t.extents, bits(t.element), t.swizzle, t.panelled))


@emitter(threads.TmaLoad)
def load(e: Emitter, op: threads.TmaLoad) -> None:
    """Copies a box to shared memory, of several blocks perhaps; an mbarrier counts its bytes."""
    w, m, view = e.w, e.map(op.map), e.view(op.buffer)
    suffix = extra = ""
    if op.to is not None and e.cluster != (1, 1):
        suffix = ".multicast::cluster"
        mask = e.integer(op.to)
        if isinstance(mask, str):
            half = w.memo(("mask", mask), lambda: w.op("cvt.u16.u32", "b16", mask))
        else:
            half = w.hoist(("mask", mask), lambda: w.op("mov.b16", "b16", mask))
        extra = f", {half}"
    if op.hint is not None:
        policy = op.hint.data
        suffix += ".L2::cache_hint"
        number = w.hoist(("policy", policy), lambda: w.op("mov.b64", "b64", POLICIES[policy]))
        extra += f", {number}"
    barrier, copies = address_of(e, op), list(boxes(e, m.type, op.offsets, view))
    with w.predicated(one_thread(e)):
        for coords, at, n in copies:
            w.emit(
                f"cp.async.bulk.tensor.{n}d.shared::cluster.global.mbarrier::complete_tx::bytes{suffix}"
                f" {at}, [{m.address}, {coords}], {barrier}{extra}"
            )


@emitter(threads.TmaStore)
def store(e: Emitter, op: threads.TmaStore) -> None:
    """Copies or adds a box of shared memory to the array."""
    m, view = e.map(op.map), e.view(op.buffer)
    name = "cp.async.bulk.tensor.{}d.global.shared::cta.bulk_group"
    if op.reduce is not None:
        kind, t = op.reduce.data, m.type.element
        if kind != "add" and is_float(t) and bits(t) != 16:
            e.fail(
                f"the tensor memory accelerator has a {kind} of integers and of 16-bit"
                f" floats, not of {t}: use tkc.atomic_{kind}"
            )
        name = f"cp.reduce.async.bulk.tensor.{{}}d.global.shared::cta.{kind}.bulk_group"
    shift: tuple[int, Integer] = (0, 0)
    if by_warpgroups(e, op):
        assert op.axis is not None
        axis = op.axis.value.data
        memory, _ = op.share(view.memory, 0)
        _, share = op.share(view.memory, 1)
        view = replace(view, memory=memory, base=add(e, view.base, mul(e, warpgroup(e), share)))
        shift = axis, mul(e, warpgroup(e), m.type.extents[axis])
    copies = list(boxes(e, m.type, op.offsets, view, shift))
    with acting(e, op):
        for coords, at, n in copies:
            e.w.emit(f"{name.format(n)} [{m.address}, {coords}], {at}")


def acting(
    e: Emitter, op: threads.TmaStore | threads.BulkCommit | threads.BulkWait
) -> AbstractContextManager[None]:
    """One thread of the instance, or of each of its warpgroups."""
    if not by_warpgroups(e, op):
        return e.w.predicated(one_thread(e))

    def first() -> str:
        number = e.w.op("and.b32", "b32", e.thread(), 32 * WARPS_PER_WARPGROUP - 1)
        return e.w.op("setp.eq.s32", "pred", number, 0)

    return e.w.predicated(e.w.hoist(("first of its warpgroup", e.instance), first))


@emitter(threads.BulkCommit)
def commit(e: Emitter, op: threads.BulkCommit) -> None:
    """Ends a group of copies to the array."""
    with acting(e, op):
        e.w.emit("cp.async.bulk.commit_group")


@emitter(threads.BulkWait)
def wait(e: Emitter, op: threads.BulkWait) -> None:
    """Waits until few enough groups are pending."""
    with acting(e, op):
        e.w.emit(f"cp.async.bulk.wait_group{'.read' if op.read else ''} {op.pending.value.data}")
