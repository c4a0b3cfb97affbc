"""fit-rows: a row that no registers hold is read in parts, once for each time that something has to
be known of all of it.

Before:

    %x = tile.load %a[%r, 0] : tile<1x65536xf32>
    %m = tile.reduce max[%x]
    %p = exp2(%x - %m)
    %s = tile.reduce sum[%p]
    tile.store %o[%r, 0] %p / %s

After:

    %m = for %i = 0 to 65536 step 8192, %t = -inf:
      yield max(%t, tile.reduce max[load %a[%r, %i]])
    %s = for %i = 0 to 65536 step 8192, %t = 0:
      yield %t + tile.reduce sum[exp2(load %a[%r, %i] - %m)]
    for %i = 0 to 65536 step 8192:
      tile.store %o[%r, %i] exp2(load %a[%r, %i] - %m) / %s

What several of these loops read stays in shared memory from the first to the last as far as it has
room (cuts/held.py); the rest is found in the L2 cache, so that the device's memory is read once.
What a loop over rows reads again and again (the weights of a norm) is first loaded there where it
is used, and not held through the loop: often that is enough. Reductions
that need not wait for one another share a loop; all stores of rows share the last one, where a part
is read before any of it is written. Sums of narrow floats are rounded once, as they would be. A
scan goes on from part to part, from the last one on where it is reversed. Nothing is cut where an
operation combines elements along the row in another way, where pointers or atomics write, and where
something that a part loads again may have been written. What is sorted and longer than a warp sorts
is sorted in runs, which are merged (cuts/sorts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replace_options

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue, Use

from tkc.ir import tile
from tkc.ir.reductions import FUNCTION
from tkc.ir.rewrite import (
    before,
    clone_slice,
    defining_slice,
    erase,
    is_inside,
    loops_of,
    replace,
)
from tkc.ir.types import TileType
from tkc.ir.values import (
    ancestor,
    block_of,
    is_side_effect_free,
    operations_in,
    owner_op,
    terminator_of,
    tile_type,
)
from tkc.passes import PassContext
from tkc.passes.analysis.alias import Overlaps, apart, is_before, reads, unseen, writes
from tkc.passes.analysis.values import is_computed_by
from tkc.passes.cuts.axes import NotCut, needed
from tkc.passes.cuts.cut import Cut, is_block_of
from tkc.passes.cuts.parts import Part, cast_total, initial_totals, loop_over_parts
from tkc.passes.cuts.sorts import cut_sort
from tkc.passes.plan import overfull, plan
from tkc.passes.planning.streaming import part_of, rows_of_part
from tkc.passes.simplify import sweep

MIN_ROW_ELEMENTS = 1024  # of a row that is worth cutting
MIN_ROWS = 64  # of a tile that is computed some rows at a time


def run(module: ModuleOp, context: PassContext) -> None:
    """Cuts the rows of a kernel of which threads would have to hold more than registers can."""
    for kernel in module.body.block.ops:
        room = context.target.shared_bytes
        if cut := sum(cut_sort(sort, room) for sort in operations_in(kernel, tile.Sort)):
            context.decisions.append(f"fit-rows: sorts of long rows by merged runs: {cut}")
        if not isinstance(kernel, tile.Kernel):
            continue
        _cut_as_planned(module, kernel, context)
        if not (held := overfull(module, context)):
            continue
        if moved := _load_in_loops(kernel, context.overlaps):
            rows, are = ("rows", "are") if moved > 1 else ("row", "is")
            context.decisions.append(
                f"fit-rows: {held}; {moved} {rows} that a loop does not change {are} read in it,"
                " not held"
            )
        if moved and not (held := overfull(module, context)):
            continue
        if not _cut_across(kernel, held, context):
            _cut_rows(kernel, held, context)


def _cut_as_planned(module: ModuleOp, kernel: tile.Kernel, context: PassContext) -> None:
    """Makes loops over the parts of rows that the plan has stay in shared memory; the blocks are
    then those that it has found for them.
    """
    if operations_in(kernel, tile.Dot) or (made := plan(module, context)).row_parts == 1:
        return
    blocks = made.cluster_split[0]
    context.options = options = replace_options(context.options, row_parts=1)
    held = f"{made.warps} warps in each of {blocks} blocks hold rows in shared memory"
    if _cut_rows(kernel, held, context, made.row_parts):
        context.options = replace_options(
            options, num_warps=made.warps, num_ctas=blocks, persistent=False
        )


def _cut_across(kernel: tile.Kernel, held: str, context: PassContext) -> bool:
    """Computes some rows at a time of all that is stored, where rows do not meet and threads hold
    some of them. Returns whether it could.
    """
    stores = [op for op in operations_in(kernel, tile.Store) if isinstance(op.value.type, TileType)]
    extents = {tile_type(op.value).extents[0] for op in stores}
    if len(extents) != 1 or len({op.parent for op in stores}) != 1:
        return False
    extent = extents.pop()
    size = rows_of_part(kernel, extent, context)
    if extent < MIN_ROWS or not size:
        return False
    try:
        phase = Phase(dict.fromkeys(stores, 0), stores[-1])
    except NotCut:
        return False
    if not phase.may_stand(context.overlaps, stores):
        return False
    if not _may_delay(stores, phase.cut, extent, context.overlaps):
        return False
    phase.loop_over_parts(extent, size)
    sweep(kernel)
    context.decisions.append(f"fit-rows: {held}; {extent} rows are computed {size} at a time")
    return True


def _cut_rows(kernel: tile.Kernel, held: str, context: PassContext, parts: int = 0) -> bool:
    """Reads the longest rows that are reduced in parts, where that can be done; where none are
    reduced, the longest ones that are stored. parts: how many, where that is known. Whether it
    could.
    """
    extent = _longest_row(kernel)
    if extent < MIN_ROW_ELEMENTS:
        return False
    size = extent // parts if parts else part_of(kernel, extent, context)
    sinks = {op: axis for op in kernel.walk() if (axis := _row_axis(op, extent)) is not None}
    phases = []
    try:
        for block in dict.fromkeys(block_of(op) for op in sinks):
            here = {op: axis for op, axis in sinks.items() if op.parent is block}
            phases += _phases(here, extent, context.overlaps)
    except NotCut:
        return False
    for phase in phases:
        phase.loop_over_parts(extent, size)
    sweep(kernel)
    context.decisions.append(
        f"fit-rows: {held}; rows of {extent} are read in parts of {size}, {len(phases)} times"
    )
    return True


def _longest_row(kernel: tile.Kernel) -> int:
    """Of the rows that are reduced; where none are, of those that are stored."""
    extents = [_reduced_extent(op) for op in operations_in(kernel, tile.Reduce)] or [
        max(tile_type(op.value).extents)
        for op in operations_in(kernel, tile.Store)
        if isinstance(op.value.type, TileType)
    ]
    return max(extents, default=0)


def _reduced_extent(op: tile.Reduce) -> int:
    extents: tuple[int, ...] = tile_type(op.args[0]).extents
    return extents[op.axis.value.data]


def _row_axis(op: Operation, extent: int) -> int | None:
    """The axis of rows that an operation reduces, or stores; None of others."""
    if isinstance(op, tile.Store):
        t = op.value.type
        if not isinstance(t, TileType) or t.extents.count(extent) != 1:
            return None
        return t.extents.index(extent)
    if isinstance(op, tile.Reduce) and op.kind.data in FUNCTION:
        return op.axis.value.data if _reduced_extent(op) == extent else None
    return None


# ---- what a loop does not change
def _load_in_loops(kernel: tile.Kernel, overlaps: Overlaps) -> int:
    """Long tiles that are loaded before a loop and used in it alone are loaded in it.

    Returns how many were moved.
    """
    moved = 0
    for loop in operations_in(kernel, scf.ForOp):
        for load in [op for op in block_of(loop).ops if _is_long_load(op)]:
            moved += _load_in_loop(load, loop, overlaps)
    if moved:
        sweep(kernel)
    return moved


def _is_long_load(op: Operation) -> bool:
    return (
        isinstance(op, tile.Load)
        and isinstance(op.result.type, TileType)
        and op.result.type.size >= MIN_ROW_ELEMENTS
    )


def _load_in_loop(load: Operation, loop: scf.ForOp, overlaps: Overlaps) -> bool:
    """Moves a load, and what is made of it before the loop, to its first use. Whether it could."""
    made, uses = _made_before(load, loop)
    if not uses or not all(is_computed_by(op.__class__) for op in made - {load}):
        return False
    places = [ancestor(use.operation, loop.body.block) for use in uses]
    if not all(place is not None and unseen(load, place, overlaps) for place in places):
        return False
    first = next(op for op in loop.body.block.ops if op in places)
    mapping: dict[SSAValue, SSAValue] = {}
    clone_slice([op for op in block_of(loop).ops if op in made], mapping, first)
    for use in uses:
        use.operation.operands[use.index] = mapping[use.operation.operands[use.index]]
    return True


def _made_before(load: Operation, loop: scf.ForOp) -> tuple[set[Operation], list[Use]]:
    """The load and all operations outside the loop that depend on it, and the uses of their results
    by others.
    """
    made, work = {load}, [load]
    while work:
        outside = [
            use.operation
            for use in work.pop().results[0].uses
            if use.operation.results and not is_inside(use.operation.results[0], loop)
        ]
        new = [op for op in dict.fromkeys(outside) if op not in made]
        work += new
        made.update(new)
    return made, [use for op in made for use in op.results[0].uses if use.operation not in made]


# ---- phases
class Phase:
    """Reductions, or stores, of one block that one loop over the parts does, before the anchor.

    sinks: these operations, and the axis of rows of each.
    moved: what the parts are made of that stands behind the anchor, and moves before it.
    Raises NotCut.
    """

    def __init__(self, sinks: dict[Operation, int], anchor: Operation) -> None:
        self.sinks, self.anchor = sinks, anchor
        operands = [pair for op in sinks for pair in self._operands(op)]
        cut = ((value, axis) for value, axis in operands if axis is not None)
        self.cut = Cut.of_needs(cut, ordered=True)
        wholes = [*self.cut.wholes, *(value for value, axis in operands if axis is None)]
        self.moved = [
            op
            for op in defining_slice(wholes, block_of(anchor))
            if op is anchor or is_before(anchor, op)
        ]

    def _operands(self, op: Operation) -> list[tuple[SSAValue, int | None]]:
        """The operands of a sink, each with the axis along which it is cut, or None."""
        return [(v, needed(op, i, self.sinks[op])) for i, v in enumerate(op.operands)]

    @property
    def reductions(self) -> list[tile.Reduce]:
        """The reductions among the sinks."""
        return [op for op in self.sinks if isinstance(op, tile.Reduce)]

    @property
    def scans(self) -> list[tile.Scan]:
        """The scans along rows, which go on from part to part."""
        return list(self.cut.scans or ())

    @property
    def stores(self) -> list[tile.Store]:
        """The stores among the sinks."""
        return [op for op in self.sinks if isinstance(op, tile.Store)]

    def may_stand(self, overlaps: Overlaps, later: Sequence[tile.Store]) -> bool:
        """Whether the loop may stand where its anchor does.

        Nothing it moves has an effect, and nothing it loads has been, or will have been, written,
        but by stores that are later anyway.
        """
        movable = all(
            is_side_effect_free(op) and not isinstance(op, tile.Reduce) and not op.regions
            for op in self.moved
        )
        return movable and all(self._may_load(load, overlaps, later) for load in self.cut.loads)

    def _may_load(self, load: Operation, overlaps: Overlaps, later: Sequence[Operation]) -> bool:
        """Whether a load gives at the anchor what it gives where it stands."""
        # of a load before a loop, another iteration reads what this one stores
        is_once = loops_of(load) == loops_of(self.anchor)
        if not unseen(load, self.anchor, overlaps, later if is_once else ()):
            return False
        here = ancestor(load, block_of(self.anchor))
        # a store that it comes behind, also one of those that are made later, it must see
        return not any(
            writes(op) and not apart(load, op, overlaps) for op in _between(self.anchor, here)
        )

    def loop_over_parts(self, extent: int, size: int) -> None:
        """Puts a loop over the parts in place of the sinks."""
        for op in self.moved:
            op.detach()
            before(self.anchor, op)
        first = initial_totals([*self.reductions, *self.scans], self.anchor)
        backwards = any(scan.reverse is not None for scan in self.scans)
        totals = loop_over_parts(self.anchor, extent, size, first, self._part, backwards)
        anchor = self.anchor.next_op or terminator_of(block_of(self.anchor))
        for store in self.stores:
            erase(store)
        for reduction, total in zip(self.reductions, totals, strict=False):
            replace(reduction, [cast_total(total, reduction.result.type, anchor)])

    def _part(
        self, start: SSAValue, size: int, totals: Sequence[SSAValue], anchor: Operation
    ) -> list[SSAValue]:
        """The totals with one part more."""
        part = Part(self.cut, start, size)
        count = len(self.reductions)
        part.scanned = dict(zip(self.scans, totals[count:], strict=True))
        for op in self.sinks:  # all that is read, before anything is written
            for value, axis in self._operands(op):
                if axis is not None:
                    part.of(value, axis, anchor)
        found = [
            part.joined(op, self.sinks[op], total, anchor)
            for op, total in zip(self.reductions, totals[:count], strict=True)
        ]
        for store in self.stores:
            part.operation(store, self.sinks[store], anchor)
        return [*found, *part.scanned.values()]


def _phases(sinks: dict[Operation, int], extent: int, overlaps: Overlaps) -> list[Phase]:
    """The sinks of a block as loops, in order. Raises NotCut."""
    stores = [op for op in sinks if isinstance(op, tile.Store)]
    found: list[Phase] = []
    for op in sinks:
        if op not in stores:
            _add(op, sinks[op], found, overlaps, stores)
    if stores:
        found.append(Phase({store: sinks[store] for store in stores}, stores[-1]))
    if not all(phase.may_stand(overlaps, stores) for phase in found):
        raise NotCut
    if not _may_delay(stores, found[-1].cut, extent, overlaps):
        raise NotCut
    # what an earlier loop adds up is no part of a later one
    if any(owner_op(value) in sinks for phase in found for value, _ in phase.cut.needs):
        raise NotCut
    return found


def _add(
    op: Operation, axis: int, found: list[Phase], overlaps: Overlaps, stores: list[tile.Store]
) -> None:
    """Adds a reduction to the first phase that may do it, behind all it needs, or to a new one."""
    made = set(defining_slice(op.operands, block_of(op)))
    first = max((i + 1 for i, phase in enumerate(found) if made & set(phase.sinks)), default=0)
    for i in range(first, len(found)):
        joined = Phase(found[i].sinks | {op: axis}, found[i].anchor)
        if joined.may_stand(overlaps, stores):
            found[i] = joined
            return
    found.append(Phase({op: axis}, op))


def _may_delay(stores: Sequence[tile.Store], cut: Cut, extent: int, overlaps: Overlaps) -> bool:
    """Whether stores may be made with the last of them, a part of each after the other: nothing
    reads them in between, and no part writes what another reads or writes.
    """
    for store in stores:
        for op in _between(store, stores[-1]):
            accesses = reads(op) or writes(op) or tile.watches(op)
            if accesses and op not in stores and not apart(op, store, overlaps):
                return False
        for op in (*cut.loads, *stores):
            if op is store or apart(op, store, overlaps):
                continue
            if not _is_same_block(op, store, extent, cut, overlaps):
                return False
    return True


def _between(first: Operation, last: Operation | None) -> list[Operation]:
    """All operations between two of a block; none where the second is not later."""
    if last is None or not is_before(first, last):
        return []
    found: list[Operation] = []
    op = first.next_op
    while op is not None and op is not last:
        found += op.walk()
        op = op.next_op
    return found


def _is_same_block(
    op: Operation, store: tile.Store, extent: int, cut: Cut, overlaps: Overlaps
) -> bool:
    """Whether two blocks are one, cut alike."""
    if not isinstance(op, (tile.Load, tile.Store)) or not is_block_of(op, store, overlaps):
        return False
    if list(op.extents.get_values()).count(extent) == 1:
        return True
    value = op.result if isinstance(op, tile.Load) else op.value
    return {axis for v, axis in cut.needs if v is value} == {0}
