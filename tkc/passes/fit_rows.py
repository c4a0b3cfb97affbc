"""fit-rows: a row that no registers hold is read in parts, once for each time that something has to
be known of all of it.

    %x = tile.load %a[%r, 0] : tile<1x65536xf32>           %m = for %i = 0 to 65536 step 8192, %t = -inf:
    %m = tile.reduce max[%x]                                 yield max(%t, tile.reduce max[load %a[%r, %i]])
    %p = exp2(%x - %m)                               ->    %s = for %i = 0 to 65536 step 8192, %t = 0:
    %s = tile.reduce sum[%p]                                 yield %t + tile.reduce sum[exp2(load %a[%r, %i] - %m)]
    tile.store %o[%r, 0] %p / %s                           for %i = 0 to 65536 step 8192:
                                                             tile.store %o[%r, %i] exp2(load %a[%r,
                                                             %i] - %m) / %s

A multiprocessor's programs have their rows in the L2 cache when they come back to them, so that the
device's memory is read once. What a loop over rows reads again and again (the weights of a norm) is
first read there where it is used, and not held through the loop: often that is enough. Reductions
that need not wait for one another share a loop; all stores of rows share the last one, where a part
is read before any of it is written. Sums of narrow floats are rounded once, as they would be.
Nothing is cut where an operation looks along the row (a scan, a sort), where pointers or atomics
write, and where something that a part loads again may have been written.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.reductions import FUNCTION, neutral, total_type
from tkc.ir.rewrite import before, clone_slice, defining_slice, erase, is_inside, replace
from tkc.ir.types import TileType, element_of
from tkc.passes import PassContext
from tkc.passes.analysis.memory import ancestor, apart, is_before, reads, unseen, writes
from tkc.passes.analysis.values import POINTWISE, VIEWS
from tkc.passes.cuts.axes import NotCut, needed
from tkc.passes.cuts.cut import Cut, Part
from tkc.passes.plan import overfull
from tkc.passes.planning.streaming import part_of
from tkc.passes.simplify import sweep

LONG = 1024  # elements of a row that is worth cutting


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        if not (held := overfull(module, context)):
            continue
        if moved := _reread(kernel, context.overlaps):
            context.decisions.append(
                f"fit-rows: {held}; {moved} row{'s'[: moved > 1]} that a loop does not change"
                f" {'are' if moved > 1 else 'is'} read in it, not held"
            )
        if moved and not (held := overfull(module, context)):
            continue
        extent = max(
            (
                op.args[0].type.extents[op.axis.value.data]
                for op in kernel.walk()
                if isinstance(op, tile.Reduce)
            ),
            default=0,
        )
        if extent < LONG:
            continue
        size, sinks = (
            part_of(kernel, extent, context),
            [op for op in kernel.walk() if _axis(op, extent) is not None],
        )
        try:
            phases = [
                phase
                for block in dict.fromkeys(op.parent for op in sinks)
                for phase in _phases(
                    [op for op in sinks if op.parent is block], extent, context.overlaps
                )
            ]
        except NotCut:
            continue
        for phase in phases:
            phase.walk(extent, size)
        sweep(kernel)
        context.decisions.append(
            f"fit-rows: {held}; rows of {extent} are read in parts of {size}, {len(phases)} times"
        )


def _axis(op: Operation, extent: int) -> int | None:
    """The axis of rows that an operation takes whole, or stores."""
    t = (
        op.args[0].type
        if isinstance(op, tile.Reduce)
        else op.value.type
        if isinstance(op, tile.Store)
        else None
    )
    if not isinstance(t, TileType):
        return None
    if isinstance(op, tile.Store):
        return t.extents.index(extent) if t.extents.count(extent) == 1 else None
    return (
        axis
        if op.kind.data in FUNCTION and t.extents[axis := op.axis.value.data] == extent
        else None
    )


# ---- what a loop does not change
# -------------------------------------------------------------------------------------------
def _reread(kernel: tile.Kernel, overlaps) -> int:
    """Long tiles that are loaded before a loop and used in it alone are loaded in it. How many
    were.
    """
    moved = 0
    for loop in [op for op in kernel.walk() if isinstance(op, scf.ForOp)]:
        for load in [
            op
            for op in loop.parent.ops
            if isinstance(op, tile.Load)
            and isinstance(op.result.type, TileType)
            and op.result.type.size >= LONG
            and is_before(op, loop)
        ]:
            made, work = {load}, [load]
            while work:
                outside = [
                    use.operation
                    for use in work.pop().results[0].uses
                    if use.operation.results and not is_inside(use.operation.results[0], loop)
                ]
                work += (new := [op for op in dict.fromkeys(outside) if op not in made])
                made.update(new)
            uses = [use for op in made for use in op.results[0].uses if use.operation not in made]
            if not all(isinstance(op, (*POINTWISE, *VIEWS)) for op in made - {load}) or not uses:
                continue
            places = [ancestor(use.operation, loop.body.block) for use in uses]
            if None in places or not all(unseen(load, place, overlaps) for place in places):
                continue
            first = next(op for op in loop.body.block.ops if op in places)
            clone_slice([op for op in loop.parent.ops if op in made], mapping := {}, first)
            for use in uses:
                use.operation.operands[use.index] = mapping[use.operation.operands[use.index]]
            moved += 1
    if moved:
        sweep(kernel)
    return moved


# ---- phases
# --------------------------------------------------------------------------------------------------
class Phase:
    """Reductions, or stores, of one block that one loop over the parts does, before the anchor.
    `early`: what they are made of that stands behind it, and moves before it.
    """

    def __init__(self, sinks: Sequence[Operation], extent: int, anchor: Operation):
        self.sinks, self.anchor, self.axes = (
            list(sinks),
            anchor,
            {op: _axis(op, extent) for op in sinks},
        )
        self.cut = Cut.of_needs(
            (value, axis) for op in sinks for value, axis in self._cut(op) if axis is not None
        )
        wholes = [
            *self.cut.wholes,
            *(value for op in sinks for value, axis in self._cut(op) if axis is None),
        ]
        self.early = [
            op
            for op in defining_slice(wholes, anchor.parent)
            if op is anchor or is_before(anchor, op)
        ]

    def _cut(self, op: Operation) -> list[tuple[SSAValue, int | None]]:
        return [(v, needed(op, i, self.axes[op])) for i, v in enumerate(op.operands)]

    @property
    def reductions(self) -> list[tile.Reduce]:
        return [op for op in self.sinks if isinstance(op, tile.Reduce)]

    @property
    def stores(self) -> list[tile.Store]:
        return [op for op in self.sinks if isinstance(op, tile.Store)]

    def may_stand(self, overlaps, later: Sequence[tile.Store]) -> bool:
        """Whether it can be done where its anchor stands: nothing it moves has an effect, and
        nothing it loads has been, or will have been, written, but by stores that are later anyway.
        """

        def seen_early(load: Operation) -> bool:
            return any(
                writes(op) and op not in later and not apart(load, op, overlaps)
                for op in _between(self.anchor, ancestor(load, self.anchor.parent))
            )

        return all(
            is_side_effect_free(op) and not isinstance(op, tile.Reduce) and not op.regions
            for op in self.early
        ) and all(
            unseen(load, self.anchor, overlaps, later)
            and not (ancestor(load, self.anchor.parent) and seen_early(load))
            for load in self.cut.loads
        )

    def walk(self, extent: int, size: int) -> None:
        """A loop over the parts, and one part more of what is left."""
        for op in self.early:
            op.detach()
            before(self.anchor, op)

        def constant(n, t=i32):
            return before(self.anchor, tile.Constant(n, t)).result

        whole = extent - extent % size
        totals: Sequence[SSAValue] = [
            constant(
                neutral(op.kind.data, element_of(op.result.type)),
                total_type(op.kind.data, op.result.type),
            )
            for op in self.reductions
        ]
        body = Block(arg_types=[i32, *(v.type for v in totals)])
        loop = before(
            self.anchor,
            scf.ForOp(constant(0), constant(whole), constant(size), totals, Region(body)),
        )
        body.add_op(end := scf.YieldOp())
        end.operands = self._part(body.args[0], size, body.args[1:], end)
        totals = loop.results
        if extent % size:
            totals = self._part(constant(whole), extent % size, totals, self.anchor)
        anchor = self.anchor.next_op
        for op in self.stores:
            erase(op)
        for op, total in zip(self.reductions, totals, strict=False):
            replace(
                op,
                [
                    total
                    if total.type == op.result.type
                    else before(anchor, Cast(total, op.result.type)).result
                ],
            )

    def _part(
        self, start: SSAValue, size: int, totals: Sequence[SSAValue], anchor: Operation
    ) -> list[SSAValue]:
        """What the totals are with one part more."""
        part = Part(self.cut, start, size)
        for op in self.sinks:  # all that is read, before anything is written
            for value, axis in self._cut(op):
                if axis is not None:
                    part.of(value, axis, anchor)
        found = [
            part.joined(op, self.axes[op], total, anchor)
            for op, total in zip(self.reductions, totals, strict=False)
        ]
        for op in self.stores:
            part.operation(op, self.axes[op], anchor)
        return found


def _phases(sinks: Sequence[Operation], extent: int, overlaps) -> list[Phase]:
    """The sinks of a block as loops, in order. Raises NotCut."""
    stores, found = [op for op in sinks if isinstance(op, tile.Store)], []
    for op in sinks:
        if op in stores:
            continue
        made = set(defining_slice(op.operands, op.parent))
        first = max(
            (i + 1 for i, phase in enumerate(found) if not made.isdisjoint(phase.sinks)), default=0
        )
        for i in range(first, len(found)):
            if (joined := Phase([*found[i].sinks, op], extent, found[i].anchor)).may_stand(
                overlaps, stores
            ):
                found[i] = joined
                break
        else:
            found.append(Phase([op], extent, op))
    if stores:
        found.append(Phase(stores, extent, stores[-1]))
    if not all(phase.may_stand(overlaps, stores) for phase in found) or not _may_wait(
        stores, found[-1].cut, extent, overlaps
    ):
        raise NotCut
    return found


def _may_wait(stores: Sequence[tile.Store], cut: Cut, extent: int, overlaps) -> bool:
    """Whether stores may be made with the last of them, a part of each after the other: nobody
    looks in between, and no part writes what another reads or writes.
    """
    for store in stores:
        if any(
            (reads(op) or writes(op) or tile.watches(op))
            and op not in stores
            and not apart(op, store, overlaps)
            for op in _between(store, stores[-1])
        ):
            return False
        if not all(
            apart(op, store, overlaps) or _same_block(op, store, extent)
            for op in (*cut.loads, *stores)
            if op is not store
        ):
            return False
    return True


def _between(first: Operation, last: Operation | None) -> list[Operation]:
    """All operations from one of a block to a later one, both left out; none where it is not later."""
    if last is None or not is_before(first, last):
        return []
    found, op = [], first
    while (op := op.next_op) is not last:
        found += op.walk()
    return found


def _same_block(op: Operation, store: tile.Store, extent: int) -> bool:
    """Whether two blocks are one, cut alike."""
    alike = (
        isinstance(op, (tile.Load, tile.Store))
        and op.array is store.array
        and list(op.offsets) == list(store.offsets)
        and op.extents == store.extents
    )
    return (
        alike
        and list(op.extents.get_values()).count(extent) == 1
        and not any(isinstance(v.type, TileType) for v in op.offsets)
    )
