"""A cut through a program along one axis of a tile: what is cut (`Cut`), and one part of it written
anew (`Part`).

`Cut.of_result` goes forward from a dot's result through whatever uses it, loops and branches
included, up to stores and to sums (or maxima, …) along the axis, which add up over the parts, and
back through what these need; `Cut.of_needs` goes back alone. Parts of what is needed are made of
loads of the part alone, constants, and pure operations on parts; what does not depend on the axis
stays whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Cast
from tkc.ir.ranges import divisor
from tkc.ir.reductions import FUNCTION
from tkc.ir.rewrite import before, is_inside, loops_of, retype
from tkc.ir.types import TileType, element_of
from tkc.passes.analysis.access import argument_of
from tkc.passes.analysis.mapped import through
from tkc.passes.analysis.memory import apart, reads, unseen, writes
from tkc.passes.cuts.axes import NotCut, frame_back, frame_of, given, kept, needed


def factors(dot: tile.Dot) -> tuple[tuple[SSAValue, int], tuple[SSAValue, int]]:
    """The factors of a dot, and their axes of k."""
    last = dot.a.type.rank - 1
    return (dot.a, last), (dot.b, last - 1)


class Cut:
    """What has to be cut: `axes` of the values that exist in parts alone, `frames` of the
    operations between; `needs`: parts that are made of values that stay whole for others. Raises
    NotCut where something stands in the way."""

    def __init__(self, forward: bool):
        self.axes: dict[SSAValue, int] = {}
        self.frames: dict[Operation, int] = {}
        self.needs: dict[tuple[SSAValue, int], None] = {}
        self.early = False  # whether they are made before anything is stored
        self.sums: list[tile.Reduce] = []  # along the axis: each part's is joined to those before
        self.late: list[
            Operation
        ] = []  # what waits for these, and stands before the last operation that is cut
        self.forward = forward  # whether loops may carry parts

    @staticmethod
    def of_result(dot: tile.Dot, axis: int, overlaps) -> Cut:
        """Once a dot's result is in parts along an axis, all that is made of it is."""
        cut = Cut(True)
        cut._force(dot.result, axis)
        cut._frame(dot, axis)
        cut.around = min((op.parent for op in cut.frames), key=_depth)
        cut.ops = [op for op in cut.around.ops if any(inner in cut.frames for inner in op.walk())]
        cut.inside = {inner for op in cut.ops for inner in op.walk()}
        for op in cut.frames:
            while op is not None and op.parent is not cut.around:
                op = op.parent_op()
                if not isinstance(op, (scf.ForOp, scf.IfOp)):
                    raise NotCut
        cut._check_sums()
        cut._check_order()
        cut._check_memory(overlaps)
        return cut

    @staticmethod
    def of_needs(values: Iterable[tuple[SSAValue, int]]) -> Cut:
        """Parts of values along an axis of each. Whether its `loads` may be made there is the
        caller's to ask.
        """
        cut = Cut(False)
        for value, axis in values:
            cut._need(value, axis)
        return cut

    @property
    def loads(self) -> set[Operation]:
        """Loads that are made anew, of a part."""
        return {value.owner for value, _ in self.needs if reads(value.owner)}

    @property
    def wholes(self) -> list[SSAValue]:
        """What parts are made of that is not cut itself."""
        return [
            v
            for value, axis in self.needs
            for i, v in enumerate(value.owner.operands)
            if needed(value.owner, i, frame_back(value.owner, axis)) is None
        ]

    def _force(self, value: SSAValue, axis: int) -> None:
        """The value exists in parts alone: so do the results of whoever uses it."""
        if self.axes.setdefault(value, axis) != axis:
            raise NotCut
        for use in list(value.uses):
            op = use.operation
            if isinstance(op, scf.YieldOp):
                self._carry(op.parent_op(), use.index, axis)
            elif isinstance(op, scf.ForOp):
                self._carry(op, use.index - 3, axis)
            elif isinstance(op, tile.Reduce) and op.axis.value.data == axis:
                self._sum(op, axis)
            else:
                self._frame(op, frame_of(op, use.index, axis))

    def _sum(self, op: tile.Reduce, axis: int) -> None:
        if op.kind.data not in FUNCTION or not self.forward:
            raise NotCut
        self.frames[op] = axis
        self.sums.append(op)

    def _carry(self, op: Operation, index: int, axis: int) -> None:
        """A value that a loop carries, or a branch gives."""
        if not isinstance(op, (scf.ForOp, scf.IfOp)) or not self.forward:
            raise NotCut
        if op.results[index] in self.axes:
            return
        self._force(op.results[index], axis)
        if isinstance(op, scf.ForOp):
            self._force(op.body.block.args[1 + index], axis)
            self._need(op.iter_args[index], axis)
        for region in op.regions:
            self._need(region.block.last_op.operands[index], axis)

    def _frame(self, op: Operation, frame: int) -> None:
        if op in self.frames:
            if self.frames[op] != frame:
                raise NotCut
            return
        if (
            op.results
            and not is_side_effect_free(op)
            and not reads(op)
            or isinstance(op, tile.StorePointers)
            and op.semantics is not None
        ):
            raise NotCut
        self.frames[op] = frame
        for result in op.results:
            self._force(result, given(op, frame))
        for i, value in enumerate(op.operands):
            if (axis := needed(op, i, frame)) is not None:
                self._need(value, axis)

    def _need(self, value: SSAValue, axis: int) -> None:
        """A part of the value is needed, which may stay whole for others."""
        if (
            value in self.axes
            or isinstance(value, BlockArgument)
            or isinstance(value.owner, (scf.ForOp, scf.IfOp))
        ):
            if isinstance(value.owner, Block) and not isinstance(
                value.owner.parent_op(), scf.ForOp
            ):
                raise NotCut
            if isinstance(value, BlockArgument):
                self._carry(value.owner.parent_op(), value.index - 1, axis)
            elif value not in self.axes:
                self._carry(value.owner, value.index, axis)
            if self.axes.get(value, self._coming(value)) != axis:
                raise NotCut
            return
        if (value, axis) in self.needs:
            return
        op, frame = value.owner, frame_back(value.owner, axis)
        if not is_side_effect_free(op) and not reads(op):
            raise NotCut
        self.needs[value, axis] = None
        for i, operand in enumerate(op.operands):
            if (needs := needed(op, i, frame)) is not None:
                self._need(operand, needs)

    def _coming(self, value: SSAValue) -> int | None:
        """The axis of what a loop carries, where its result is being followed and it has not been
        reached.
        """
        return (
            self.axes.get(value.owner.parent_op().results[value.index - 1])
            if isinstance(value, BlockArgument) and value.index
            else None
        )

    def _check_sums(self) -> None:
        """No part waits for what all parts sum to; whoever else does can move behind them."""
        if any(op.parent is not self.around for op in self.sums):
            raise NotCut
        whole, waiting, last = {op.results[0] for op in self.sums}, set(), False
        for op in self.around.ops:
            if any(v in whole for inner in op.walk() for v in inner.operands):
                waiting.add(op)
                whole |= set(op.results)
                if not last:
                    self.late.append(op)
            last = last or op is self.ops[-1]
        if waiting & set(self.ops) or any(value in whole for value, _ in self.needs):
            raise NotCut

    def _check_order(self) -> None:
        """What stands between the first and the last operation that is cut runs before all of them;
        what waits for sums, behind them.
        """
        op, written, passed = self.ops[0], False, False
        while op is not self.ops[-1].next_op:
            touches = any(not is_side_effect_free(x) or reads(x) for x in op.walk())
            if op in self.late:
                if touches and not isinstance(op, (tile.Store, tile.StorePointers)):
                    raise NotCut
                passed = passed or touches
            elif passed and touches:
                raise NotCut  # they would change places
            elif op in self.ops:
                written = written or any(map(writes, op.walk()))
            elif any(writes(x) or written and reads(x) for x in op.walk()):
                raise NotCut
            op = op.next_op

    def _check_memory(self, overlaps) -> None:
        """A part loads what the whole would have: nothing that is stored before, by an earlier part
        or by what now runs before it, may be seen by its loads. And what it stores, no later part
        overwrites."""
        if any(writes(op) and op not in self.frames for op in self.inside):
            raise NotCut
        stores = [op for op in self.frames if writes(op)]
        if not all(
            self._in_order(a, b, overlaps) for a, b in combinations_with_replacement(stores, 2)
        ):
            raise NotCut
        for load in self.loads | {op for op in self.inside if reads(op)}:
            for store in stores:
                if apart(load, store, overlaps):
                    continue
                if not self._same_block(load, store):
                    raise NotCut
                self.early = True
        if not all(
            unseen(load, self.ops[-1], overlaps, self.frames) for load in self.loads - self.inside
        ):
            raise NotCut

    def _in_order(self, first: Operation, second: Operation, overlaps) -> bool:
        """Whether two stores, or one in a loop, leave the same where a part makes both before the
        next part does: they share no memory, or lie alike along the axis that is cut, so that parts
        do not meet."""
        if (
            first is second
            and not self._repeats(first)
            or first is not second
            and apart(first, second, overlaps)
        ):
            return True
        if not isinstance(first, tile.Store) or not isinstance(second, tile.Store):
            return False
        (array, axis, starts), (other, along, begins) = (self._place(op) for op in (first, second))
        if (
            array is None
            or (array, axis) != (other, along)
            or any(isinstance(v.type, TileType) for v in (*starts, *begins))
        ):
            return False
        extent = first.extents.get_values()[kept(first)[self.frames[first]]]
        return (
            starts == begins
            and not any(is_inside(v, op) for v in starts for op in self.ops)
            or all(divisor(v) % extent == 0 for v in (*starts, *begins))
        )

    def _repeats(self, op: Operation) -> bool:
        """Whether an operation is in a loop that each part has."""
        return any(loop in self.inside for loop in loops_of(op))

    def _place(self, op: tile.Store) -> tuple[SSAValue | None, int, list[SSAValue]]:
        """The argument that a store writes to, its axis that is cut, and what adds up to where the
        block begins along it.
        """
        array, axis = op.array, kept(op)[self.frames[op]]
        starts = [op.offsets[axis]]
        while isinstance(view := array.owner, tile.View):
            given, kinds, axis = (
                iter(view.offsets),
                [k.data for k in view.kinds],
                through(view, axis),
            )
            begins = [
                [next(given) for _ in range({"index": 1, "slice": 2, "all": 0}[kind])]
                for kind in kinds
            ]
            starts += begins[axis][:1]
            array = view.array
        return argument_of(array), axis, starts

    def _same_block(self, load: Operation, store: Operation) -> bool:
        """Whether a part's store changes only what the part itself has loaded: the same block, cut
        alike.
        """
        if (
            not isinstance(load, tile.Load)
            or not isinstance(store, tile.Store)
            or load.parent is not self.around
            or store.parent is not self.around
            or load in self.inside
        ):
            return False
        return (
            load.array is store.array
            and list(load.offsets) == list(store.offsets)
            and load.extents == store.extents
            and not any(isinstance(o.type, TileType) for o in load.offsets)
            and all(axis == self.frames[store] for value, axis in self.needs if value.owner is load)
        )


def _depth(block: Block) -> int:
    op = block.parent_op()
    return 0 if isinstance(op, tile.Kernel) else 1 + _depth(op.parent)


class Part:
    """One part: `size` from `start` on."""

    def __init__(self, cut: Cut, start: SSAValue, size: int):
        self.cut, self.start, self.size = cut, start, size
        self.whole: dict[SSAValue, SSAValue] = {}  # what loops of the part compute anew
        self.made: list[dict[tuple[SSAValue, int], SSAValue]] = [
            {}
        ]  # parts, by block, inside out last
        self.sums: list[SSAValue] = []

    def all(self, anchor: Operation, sums: Sequence[SSAValue]) -> list[SSAValue]:
        """Writes it before the anchor; gives the sums of the parts up to this one, from those of
        the parts before.
        """
        self.sums = list(sums)
        if self.cut.early:
            self._ahead(self.cut.inside, anchor)
        self.write(self.cut.ops, anchor)
        return self.sums

    def _sum(self, op: tile.Reduce, anchor: Operation) -> None:
        i = self.cut.sums.index(op)
        self.sums[i] = self.joined(op, self.cut.frames[op], self.sums[i], anchor)

    def joined(self, op: tile.Reduce, axis: int, total: SSAValue, anchor: Operation) -> SSAValue:
        """A total of the parts before and of this one."""
        part, element = self.of(op.args[0], axis, anchor), element_of(total.type)
        if part.type.element != element:
            part = before(anchor, Cast(part, TileType(part.type.extents, element))).result
        return before(
            anchor,
            CLASSES[FUNCTION[op.kind.data]](
                total, before(anchor, tile.Reduce(op.kind.data, part, op.axis.value.data)).result
            ),
        ).result

    def _ahead(self, inside: set[Operation], anchor: Operation) -> None:
        """Makes what is needed inside some operations, and comes from outside, before them."""
        for value, axis in self.cut.needs:
            if (
                isinstance(value.owner, Operation)
                and value.owner not in inside
                and any(use.operation in inside for use in value.uses)
            ):
                self.of(value, axis, anchor)

    def write(self, ops: Iterable[Operation], anchor: Operation) -> None:
        for op in ops:
            if isinstance(op, scf.ForOp) and self._is_cut(op):
                self._for(op, anchor)
            elif isinstance(op, scf.IfOp) and self._is_cut(op):
                self._if(op, anchor)
            elif op in self.cut.sums:
                self._sum(op, anchor)
            elif op in self.cut.frames:
                new = self.operation(op, self.cut.frames[op], anchor)
                for old, result in zip(op.results, new.results, strict=False):
                    self.made[-1][old, self.cut.axes[old]] = result
            else:
                new = before(anchor, op.clone(self.whole))
                self.whole |= dict(zip(op.results, new.results, strict=False))

    def _is_cut(self, op: Operation) -> bool:
        return any(inner in self.cut.frames for inner in op.walk()) or any(
            r in self.cut.axes for r in op.results
        )

    def _for(self, op: scf.ForOp, anchor: Operation) -> None:
        old, give = (
            op.body.block,
            lambda v, like, at: (
                self.of(v, self.cut.axes[like], at) if like in self.cut.axes else self._of(v)
            ),
        )
        body = Block(
            arg_types=[
                old.args[0].type,
                *(
                    self._type(a.type, self.cut.axes[a]) if a in self.cut.axes else a.type
                    for a in old.args[1:]
                ),
            ]
        )
        new = scf.ForOp(
            *(self._of(v) for v in op.operands[:3]),
            [give(v, a, anchor) for v, a in zip(op.iter_args, old.args[1:], strict=False)],
            Region(body),
        )
        new.attributes |= op.attributes
        body.add_op(end := scf.YieldOp())
        self._ahead(set(op.walk()), anchor)
        before(anchor, new)
        self.made.append(
            {
                (a, self.cut.axes[a]): b
                for a, b in zip(old.args, body.args, strict=False)
                if a in self.cut.axes
            }
        )
        self.whole |= dict(zip(old.args, body.args, strict=False))
        self.write([o for o in old.ops if o is not old.last_op], end)
        end.operands = [
            give(v, a, end) for v, a in zip(old.last_op.operands, old.args[1:], strict=False)
        ]
        self.made.pop()
        self._gave(op, new)

    def _if(self, op: scf.IfOp, anchor: Operation) -> None:
        types = [
            self._type(r.type, self.cut.axes[r]) if r in self.cut.axes else r.type
            for r in op.results
        ]
        self._ahead(set(op.walk()), anchor)
        new = before(
            anchor,
            scf.IfOp(
                self._of(op.cond),
                types,
                *(Region(Block([scf.YieldOp()]) if region.blocks else []) for region in op.regions),
            ),
        )
        for region, written in zip(op.regions, new.regions, strict=False):
            if not region.blocks:
                continue
            end = written.block.last_op
            self.made.append({})
            self.write([o for o in region.block.ops if o is not region.block.last_op], end)
            end.operands = [
                self.of(v, self.cut.axes[r], end) if r in self.cut.axes else self._of(v)
                for v, r in zip(region.block.last_op.operands, op.results, strict=False)
            ]
            self.made.pop()
        self._gave(op, new)

    def _gave(self, op: Operation, new: Operation) -> None:
        for old, result in zip(op.results, new.results, strict=False):
            result.name_hint = old.name_hint
            if old in self.cut.axes:
                self.made[-1][old, self.cut.axes[old]] = result
            else:
                self.whole[old] = result

    def of(self, value: SSAValue, axis: int, anchor: Operation) -> SSAValue:
        """The part of a value, made before the anchor unless it has been."""
        for made in reversed(self.made):
            if (value, axis) in made:
                return made[value, axis]
        op = value.owner
        new = self.operation(op, frame_back(op, axis), anchor)
        for old, result in zip(op.results, new.results, strict=False):
            self.made[-1][old, axis] = result
        return self.made[-1][value, axis]

    def operation(self, op: Operation, frame: int, anchor: Operation) -> Operation:
        """The operation along its part."""
        if isinstance(op, tile.Arange):
            t = self._type(op.result.type, 0)
            by = (
                self.start
                if t.element == i32
                else before(anchor, Cast(self.start, t.element)).result
            )
            return before(
                anchor,
                CLASSES["add"](
                    before(anchor, tile.Arange(op.start.value.data, t)).result,
                    before(anchor, tile.Splat(by, t)).result,
                ),
            )
        operands = [
            self._of(v) if (axis := needed(op, i, frame)) is None else self.of(v, axis, anchor)
            for i, v in enumerate(op.operands)
        ]
        extents = None
        if isinstance(op, (tile.Load, tile.Store)):
            place, extents = kept(op)[frame], list(op.extents.get_values())
            extents[place] = self.size
            offset = operands[1 + place]
            if not isinstance(offset.type, TileType):
                operands[1 + place] = self._moved(offset, anchor)
        new = op.clone(dict(self.whole))  # which clone adds its results to: a part is not the whole
        new.operands = operands
        if extents is not None:
            new.properties["extents"] = tile.ints(extents)
        for result in new.results:
            retype(result, self._type(result.type, given(op, frame)))
        return before(anchor, new)

    def _moved(self, offset: SSAValue, anchor: Operation) -> SSAValue:
        by = (
            self.start
            if offset.type == i32
            else before(anchor, Cast(self.start, offset.type)).result
        )
        return before(anchor, CLASSES["add"](offset, by)).result

    def _of(self, value: SSAValue) -> SSAValue:
        return self.whole.get(value, value)

    def _type(self, t: TileType, axis: int) -> TileType:
        return TileType([self.size if a == axis else n for a, n in enumerate(t.extents)], t.element)
