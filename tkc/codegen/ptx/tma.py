"""Tensor memory accelerator: boxes of an array to shared memory and back, by one thread of the
instance.

A map's dimensions run innermost first and may split the last axis in panels
(interface.map_dimensions says how); coordinates follow:

    box [batch, row, head, column] of a panelled map     ->  {column % panel, row, column / panel, head, batch}

A box wider than the swizzle on a map without panels takes one copy a panel.  The single thread of a producer issues its copies
outright; elsewhere they are predicated on the instance's first thread, not branched to, so that
ptxas sees no divergence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from tkc.codegen.ptx.barriers import WARPGROUP, by_warpgroups, warpgroup
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.mbarrier import by, maker, of, only
from tkc.codegen.ptx.scalars import add, mul, narrowed
from tkc.codegen.ptx.values import SharedView
from tkc.codegen.ptx.writer import Operand
from tkc.ir import threads
from tkc.ir.interface import Parameter, map_dimensions
from tkc.ir.types import MapType, bits, is_float

POLICIES = {"evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}


@dataclass(frozen=True)
class Map:
    """A tensor map: its generic address and its type."""

    address: str
    type: MapType


@emitter(threads.TensorMap)
def tensor_map(e: Emitter, op: threads.TensorMap) -> None:
    t, array = op.result.type, e.value(op.arg)
    if array.argument < 0:
        e.fail("a tensor map is of a whole array argument: a view has none")
    p = Parameter(
        "map",
        "b8[128]",
        array.argument,
        element="tf32" if op.tf32 is not None else str(t.element),
        box=t.extents,
        swizzle=t.swizzle,
        panelled=t.panelled,
        order=tuple(op.order.get_values()) if op.order is not None else (),
        fetch=op.fetch.value.data if op.fetch is not None else 0,
    )
    address = e.parameter(p)
    e.values[op.result] = Map(address, t)
    with by(e, maker(e)):
        e.w.emit(f"prefetch.tensormap [{address}]")


def boxes(
    e: Emitter,
    m: Map,
    offsets: Sequence[SSAValue],
    view: SharedView,
    further: tuple[int, Operand] = (0, 0),
) -> Iterator[tuple[str, str, int]]:
    """Coordinates, place in shared memory and number of dimensions of each copy. further: along an
    axis, by so much.
    """
    t = m.type
    dims, panel, last = (
        map_dimensions(t.extents, bits(t.element), t.swizzle, t.panelled),
        t.panel,
        t.rank - 1,
    )
    split = any(part == "panel" for _, part in dims)
    if split and ((found := e.ranges.of(offsets[last])) is None or found.divisor % panel):
        e.fail(
            f"a box of a map with panels starts at a multiple of {panel} columns, which its offset"
            " is not known to be: use a map without panels"
        )
    at_axis = [
        narrowed(e, e.operand(o)) for o in offsets
    ]  # a coordinate has 32 bits, however large the array is
    at_axis[further[0]] = add(e, at_axis[further[0]], further[1])
    for n in range(1 if split else -(-t.extents[last] // panel)):
        coords = []
        for axis, part in dims:
            at = at_axis[axis]
            match part:
                case "within":
                    at = 0  # boxes start at a panel's edge
                case "panel":
                    at = (
                        at // panel
                        if not isinstance(at, str)
                        else e.w.op("shr.s32", "b32", at, panel.bit_length() - 1, type="u32")
                    )
                case _ if axis == last:
                    at = add(e, at, n * panel)
            coords.append(str(at))
        yield (
            f"{{{', '.join(coords)}}}",
            f"[{view.base}+{view.offset + n * view.memory.panel_stride}]",
            len(dims),
        )


@emitter(threads.TmaLoad)
def load(e: Emitter, op: threads.TmaLoad) -> None:
    w, m, view = e.w, e.value(op.map), e.value(op.buffer)
    many = op.to is not None and e.cluster != (1, 1)
    mask = e.operand(op.to) if many else None
    suffix = extra = ""
    if many:
        suffix = ".multicast::cluster"
        half = (
            w.memo(("mask", mask), lambda: w.op("cvt.u16.u32", "b16", mask))
            if isinstance(mask, str)
            else w.hoist(("mask", mask), lambda: w.op("mov.b16", "b16", mask))
        )
        extra = f", {half}"
    if op.hint is not None:
        suffix += ".L2::cache_hint"
        extra += f", {w.hoist(('policy', op.hint.data), lambda: w.op('mov.b64', 'b64', POLICIES[op.hint.data]))}"
    barrier, copies = of(e, op), list(boxes(e, m, op.offsets, view))
    with only(e):
        for coords, at, n in copies:
            w.emit(
                f"cp.async.bulk.tensor.{n}d.shared::cluster.global.mbarrier::complete_tx::bytes{suffix}"
                f" {at}, [{m.address}, {coords}], {barrier}{extra}"
            )


@emitter(threads.TmaStore)
def store(e: Emitter, op: threads.TmaStore) -> None:
    m, view = e.value(op.map), e.value(op.buffer)
    if (
        op.reduce is not None
        and op.reduce.data != "add"
        and is_float(t := m.type.element)
        and bits(t) != 16
    ):
        e.fail(
            f"the tensor memory accelerator has a {op.reduce.data} of integers and of 16-bit"
            f" floats, not of {t}: use tkc.atomic_{op.reduce.data}"
        )
    name = (
        f"cp.reduce.async.bulk.tensor.{{}}d.global.shared::cta.{op.reduce.data}.bulk_group"
        if op.reduce is not None
        else "cp.async.bulk.tensor.{}d.global.shared::cta.bulk_group"
    )
    further: tuple[int, Operand] = (0, 0)
    if by_warpgroups(e, op):
        axis = op.axis.value.data
        rows = m.type.extents[axis]
        _, share = view.memory.slice(
            [rows, *[0] * (len(view.memory.shape) - 1)], [rows, *view.memory.shape[1:]]
        )
        view, further = (
            replace(view, base=add(e, view.base, mul(e, warpgroup(e), share))),
            (
                axis,
                mul(e, warpgroup(e), rows),
            ),
        )
    copies = list(boxes(e, m, op.offsets, view, further))
    with acting(e, op):
        for coords, at, n in copies:
            e.w.emit(f"{name.format(n)} [{m.address}, {coords}], {at}")


def acting(e: Emitter, op):
    """One thread of the instance, or of each of its warpgroups."""
    if not by_warpgroups(e, op):
        return only(e)
    return e.w.predicated(
        e.w.hoist(
            ("first of its warpgroup", e.instance),
            lambda: e.w.op(
                "setp.eq.s32", "pred", e.w.op("and.b32", "b32", e.thread(), 32 * WARPGROUP - 1), 0
            ),
        )
    )


@emitter(threads.BulkCommit)
def commit(e: Emitter, op: threads.BulkCommit) -> None:
    with acting(e, op):
        e.w.emit("cp.async.bulk.commit_group")


@emitter(threads.BulkWait)
def wait(e: Emitter, op: threads.BulkWait) -> None:
    with acting(e, op):
        e.w.emit(f"cp.async.bulk.wait_group{'.read' if op.read else ''} {op.pending.value.data}")
