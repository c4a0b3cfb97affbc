"""A cut through a program along one axis of a tile: what is cut (`Cut`).

`Cut.of_result` follows a dot's result (`Cut.of_uses` any value) forward through its uses, loops and
branches included, up to stores and to sums (or maxima, …) along the axis, which add up over the
parts, and then back through what these operations need. `Cut.of_needs` goes back alone. A part is
computed from loads of the part alone, from constants, and by pure operations on parts; what does
not depend on the axis stays whole. `tkc/passes/cuts/parts.py` writes the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations_with_replacement, product
from typing import NamedTuple, TypeGuard

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.host_values import is_whole
from tkc.ir.ranges import divisor
from tkc.ir.reductions import FUNCTION
from tkc.ir.rewrite import is_inside, loops_of
from tkc.ir.types import TileType
from tkc.ir.values import block_of, index_of, is_side_effect_free, owner_op, tile_type, yielded_by
from tkc.passes.analysis.alias import Overlaps, apart, is_folded, reads, unseen, writes
from tkc.passes.analysis.mapped import through
from tkc.passes.cuts.axes import NotCut, frame_back, frame_of, given, kept, needed

OFFSETS_OF_KIND = {"index": 1, "slice": 2, "all": 0}  # operands of a view, by the kind of an axis


def operands_along_k(dot: tile.Dot) -> tuple[tuple[SSAValue, int], tuple[SSAValue, int]]:
    """The left and the right operand of a dot, each with its axis of k."""
    last = tile_type(dot.a).rank - 1
    return (dot.a, last), (dot.b, last - 1)


class Cut:
    """What has to be cut along an axis.

    axes: values that exist in parts alone, and the axis of each.
    frames: the operations between them, and the axis each is cut along (see `axes.py`).
    needs: values, and axes, of which parts are made although they stay whole for other uses.
    reductions: reductions along the axis; each part's is joined to those of the parts before.
    scans: of a cut back, scans along the axis: each part's goes on from the parts before.
    carriers: loops that carry parts and branches that yield them, whether they hold frames or not.
    delayed: operations that wait for these, and stand before the last operation that is cut.
    loads_first: whether a part makes its loads before it stores anything.
    ops: of a cut forward, the operations of `block` that are cut, in order, loops and branches
        included; `inside`: they and all that is in them.
    """

    block: Block
    ops: list[Operation]
    inside: set[Operation]

    def __init__(self, forward: bool) -> None:
        self.axes: dict[SSAValue, int] = {}
        self.frames: dict[Operation, int] = {}
        self.needs: dict[tuple[SSAValue, int], None] = {}
        self.reductions: list[tile.Reduce] = []
        self.scans: dict[tile.Scan, None] | None = None
        self.carriers: dict[Operation, None] = {}
        self.delayed: list[Operation] = []
        self.loads_first = False
        self.forward = forward  # whether loops may carry parts

    @staticmethod
    def of_result(dot: tile.Dot, axis: int, overlaps: Overlaps) -> Cut:
        """A dot's result along an axis, and all that is computed from it. Raises NotCut."""
        cut = Cut(True)
        cut._frame(dot, axis)
        return cut._gathered(overlaps)

    @staticmethod
    def of_uses(value: SSAValue, axis: int, overlaps: Overlaps) -> Cut:
        """All that is computed from a value along an axis. Raises NotCut."""
        cut = Cut(True)
        cut._force(value, axis)
        if not cut.frames:
            raise NotCut  # nothing is
        return cut._gathered(overlaps)

    @staticmethod
    def of_needs(values: Iterable[tuple[SSAValue, int]], ordered: bool = False) -> Cut:
        """Parts of values, along an axis of each; ordered: each is made behind those before it, so
        that scans go on. Raises NotCut.

        The caller checks that its `loads` may be made where the parts are.
        """
        cut = Cut(False)
        if ordered:
            cut.scans = {}
        for value, axis in values:
            cut._need(value, axis)
        if len({scan.reverse is None for scan in cut.scans or ()}) > 1:
            raise NotCut  # some begin with the last part
        return cut

    def _gathered(self, overlaps: Overlaps) -> Cut:
        """The same of a cut forward, with its operations. Raises NotCut."""
        carrying = [v.owner.parent_op() for v in self.axes if isinstance(v, BlockArgument)]
        written = self.frames | self.carriers
        cut = [*written, *(op for op in carrying if op is not None)]
        self.block = min(map(block_of, cut), key=_depth)
        self.ops = [op for op in self.block.ops if any(x in written for x in op.walk())]
        self.inside = {inner for op in self.ops for inner in op.walk()}
        self._check_nesting()
        self._delay()
        self._check_order()
        self._check_memory(overlaps)
        return self

    @property
    def loads(self) -> set[Operation]:
        """The loads of which parts are made."""
        return {op for value, _ in self.needs if reads(op := owner_op(value))}

    @property
    def wholes(self) -> list[SSAValue]:
        """What parts are made of that is not cut itself."""
        return [
            operand
            for value, axis in self.needs
            for operand, part in _operand_axes(owner_op(value), self.frame_back(value, axis))
            if part is None
        ]

    def _force(self, value: SSAValue, axis: int) -> None:
        """The value exists in parts alone, and so do the results of its users."""
        self.axes[value] = axis
        for use in list(value.uses):
            op = use.operation
            if isinstance(op, scf.YieldOp):
                self._carry(op.parent_op(), use.index, axis)
            elif isinstance(op, scf.ForOp):
                self._carry(op, use.index - 3, axis)
            elif isinstance(op, tile.Reduce) and op.axis.value.data == axis:
                self._reduce(op, axis)
            else:
                self._frame(op, frame_of(op, use.index, axis))

    def _reduce(self, op: tile.Reduce, axis: int) -> None:
        if op.kind.data not in FUNCTION:
            raise NotCut
        self.frames[op] = axis
        self.reductions.append(op)

    def _carry(self, op: Operation | None, index: int, axis: int) -> None:
        """A value that a loop carries, or a branch yields, is cut."""
        if not isinstance(op, (scf.ForOp, scf.IfOp)) or not self.forward:
            raise NotCut
        if op.results[index] in self.axes:
            return
        self.carriers[op] = None
        self._force(op.results[index], axis)
        if isinstance(op, scf.ForOp):
            self._force(op.body.block.args[1 + index], axis)
            self._need(op.iter_args[index], axis)
        for region in op.regions:
            self._need(yielded_by(region.block)[index], axis)

    def _frame(self, op: Operation, frame: int) -> None:
        """An operation is cut along its frame."""
        if op in self.frames:
            if self.frames[op] != frame:
                raise NotCut
            return
        if op.results and not _is_repeatable(op):
            raise NotCut
        if isinstance(op, tile.StorePointers) and op.semantics is not None:
            raise NotCut
        self.frames[op] = frame
        for result in op.results:
            self._force(result, given(op, frame))
        self._need_operands(op, frame)

    def _need_operands(self, op: Operation, frame: int) -> None:
        for operand, axis in _operand_axes(op, frame):
            if axis is not None:
                self._need(operand, axis)

    def _need(self, value: SSAValue, axis: int) -> None:
        """A part of the value is needed, which may stay whole for others."""
        op = value.owner
        if value in self.axes or isinstance(op, (Block, scf.ForOp, scf.IfOp)):
            self._need_carried(value, axis)
            return
        if (value, axis) in self.needs:
            return
        frame = self.frame_back(value, axis)
        if not _is_repeatable(op):
            raise NotCut
        self.needs[value, axis] = None
        self._need_operands(op, frame)

    def frame_back(self, value: SSAValue, axis: int) -> int:
        """The frame of the operation that makes a value, of which a part along an axis is needed.
        Raises NotCut.
        """
        op = owner_op(value)
        if self.scans is not None and is_scanned(op, axis):
            self.scans[op] = None
            return axis
        return frame_back(op, axis)

    def _need_carried(self, value: SSAValue, axis: int) -> None:
        """A part is needed of a value that a loop carries, that a branch yields, or that is cut."""
        coming = None
        if isinstance(value, BlockArgument):
            loop = value.owner.parent_op()
            if not isinstance(loop, scf.ForOp):
                raise NotCut
            self._carry(loop, value.index - 1, axis)
            # the loop's result may be followed already, and this argument not be reached yet
            coming = self.axes.get(loop.results[value.index - 1]) if value.index else None
        elif value not in self.axes:
            self._carry(owner_op(value), index_of(value), axis)
        if self.axes.get(value, coming) != axis:
            raise NotCut

    def _check_nesting(self) -> None:
        """Only counted loops and branches stand between the block and what is cut."""
        for op in (*self.frames, *self.carriers):
            around: Operation | None = op
            while around is not None and around.parent is not self.block:
                around = around.parent_op()
                if not isinstance(around, (scf.ForOp, scf.IfOp)):
                    raise NotCut

    def _delay(self) -> None:
        """No part waits for a reduction over all parts, not in a loop or branch either; other
        operations that do can be delayed.
        """
        whole: set[SSAValue] = {op.results[0] for op in self.reductions}
        waiting: set[Operation] = set()
        is_behind = False
        for op in self.block.ops:
            if any(v in whole for inner in op.walk() for v in inner.operands):
                waiting.add(op)
                whole |= set(op.results)
                if not is_behind:
                    self.delayed.append(op)
            is_behind = is_behind or op is self.ops[-1]
        if waiting & set(self.ops):
            raise NotCut

    def _span(self) -> Iterator[Operation]:
        """The operations of the block from the first to the last that is cut."""
        op: Operation | None = self.ops[0]
        while op is not None and op is not self.ops[-1].next_op:
            yield op
            op = op.next_op

    def _check_order(self) -> None:
        """What stands between the first and the last operation that is cut runs before all of them;
        what is delayed, behind them.
        """
        stored = delayed_access = False
        for op in self._span():
            accesses = any(map(_is_access, op.walk()))
            if op in self.delayed:
                if accesses and not isinstance(op, (tile.Store, tile.StorePointers)):
                    raise NotCut
                delayed_access = delayed_access or accesses
            elif delayed_access and accesses:
                raise NotCut  # they would change places
            elif op in self.ops:
                stored = stored or any(map(writes, op.walk()))
            elif any(writes(x) or stored and reads(x) for x in op.walk()):
                raise NotCut

    def _check_memory(self, overlaps: Overlaps) -> None:
        """A part loads what the whole would have, and no later part overwrites what it stores.

        Nothing that is stored before, by an earlier part or by an operation that now runs before
        the part, may be seen by its loads.
        """
        if any(writes(op) and op not in self.frames for op in self.inside):
            raise NotCut
        stores = [op for op in self.frames if writes(op)]
        pairs = combinations_with_replacement(stores, 2)
        if not all(self._in_order(first, second, overlaps) for first, second in pairs):
            raise NotCut
        for load, store in product(self.loads | set(filter(reads, self.inside)), stores):
            if apart(load, store, overlaps):
                continue
            if not self._same_block(load, store, overlaps):
                raise NotCut
            self.loads_first = True
        outside = self.loads - self.inside
        if not all(unseen(load, self.ops[-1], overlaps, self.frames) for load in outside):
            raise NotCut

    def _in_order(self, first: Operation, second: Operation, overlaps: Overlaps) -> bool:
        """Whether two stores, or one in a loop, leave the same where a part makes both before the
        next part does: they share no memory, or lie alike along the axis that is cut, so that parts
        do not meet.
        """
        if first is second:
            if not self._repeats(first):
                return True
        elif apart(first, second, overlaps):
            return True
        if not isinstance(first, tile.Store) or not isinstance(second, tile.Store):
            return False
        a, b = self._place(first), self._place(second)
        if a.array is None or (a.array, a.axis) != (b.array, b.axis):
            return False
        if is_folded(a.array, overlaps):
            return False
        starts = [*a.starts, *b.starts]
        if any(isinstance(v.type, TileType) for v in starts):
            return False
        if a.starts == b.starts and not self._changes_any(a.starts):
            return True
        extent = first.extents.get_values()[kept(first)[self.frames[first]]]
        return all(divisor(v) % extent == 0 for v in starts)

    def _changes_any(self, values: Iterable[SSAValue]) -> bool:
        """Whether any of the values is computed inside the operations that are cut."""
        return any(is_inside(value, op) for value in values for op in self.ops)

    def _repeats(self, op: Operation) -> bool:
        """Whether an operation is in a loop that each part has."""
        return any(loop in self.inside for loop in loops_of(op))

    def _place(self, op: tile.Store) -> Place:
        array, axis = op.array, kept(op)[self.frames[op]]
        starts = [op.offsets[axis]]
        while isinstance(view := array.owner, tile.View):
            offsets = iter(view.offsets)
            by_axis = [
                [next(offsets) for _ in range(OFFSETS_OF_KIND[kind.data])] for kind in view.kinds
            ]
            axis = through(view, axis)
            starts += by_axis[axis][:1]
            array = view.array
        return Place(array if is_whole(array) else None, axis, starts)

    def _same_block(self, load: Operation, store: Operation, overlaps: Overlaps) -> bool:
        """Whether a part's store changes only what the part itself has loaded: the same block, cut
        alike.
        """
        if not isinstance(load, tile.Load) or not isinstance(store, tile.Store):
            return False
        if load.parent is not self.block or store.parent is not self.block or load in self.inside:
            return False
        return is_block_of(load, store, overlaps) and all(
            axis == self.frames[store] for value, axis in self.needs if value.owner is load
        )


class Place(NamedTuple):
    """Where a store writes: the array (None where it may be another in each iteration), its axis
    that is cut, and the values that add up to the block's offset along it.
    """

    array: SSAValue | None
    axis: int
    starts: list[SSAValue]


def is_block_of(op: tile.Load | tile.Store, store: tile.Store, overlaps: Overlaps) -> bool:
    """Whether an access is of the very block that a store writes, without indices as tiles, and
    no part of it shares memory with another.
    """
    return (
        op.array is store.array
        and not is_folded(op.array, overlaps)
        and list(op.offsets) == list(store.offsets)
        and op.extents == store.extents
        and not any(isinstance(offset.type, TileType) for offset in op.offsets)
    )


def is_scanned(op: Operation, axis: int) -> TypeGuard[tile.Scan]:
    """Whether an operation is a scan along an axis that can go on from what came before."""
    return isinstance(op, tile.Scan) and op.axis.value.data == axis and op.kind.data in FUNCTION


def _operand_axes(op: Operation, frame: int) -> list[tuple[SSAValue, int | None]]:
    """The operands of an operation, each with the axis along which it is cut, or None."""
    return [(operand, needed(op, i, frame)) for i, operand in enumerate(op.operands)]


def _is_repeatable(op: Operation) -> bool:
    """Whether an operation can be made again for each part."""
    return is_side_effect_free(op) or reads(op)


def _is_access(op: Operation) -> bool:
    """Whether an operation has effects, or loads."""
    return reads(op) or not is_side_effect_free(op)


def _depth(block: Block) -> int:
    """How many operations are around a block, inside the kernel."""
    op = block.parent_op()
    return 0 if op is None or isinstance(op, tile.Kernel) else 1 + _depth(block_of(op))
