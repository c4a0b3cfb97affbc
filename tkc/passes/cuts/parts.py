"""Writing the parts of a cut: one part (`Part`), and a loop over all (`loop_over_parts`).

    loop_over_parts(anchor, 1000, 128, totals, write)

writes, before the anchor, a loop with a part of 128 elements in each iteration, and behind it the
104 that are left; `write` makes one part, and returns the totals with that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Cast
from tkc.ir.reductions import FUNCTION, neutral, total_type
from tkc.ir.rewrite import Builder, before, retype
from tkc.ir.types import TileType, element_of
from tkc.ir.values import owner_op, terminator_of, tile_type
from tkc.passes.cuts.axes import frame_back, given, kept, needed, with_extent
from tkc.passes.cuts.cut import Cut, is_scanned

# Of one part: its start, its size, the totals of the parts before, and the operation before which
# it is written; returns the totals with this part.
WritePart = Callable[[SSAValue, int, Sequence[SSAValue], Operation], Sequence[SSAValue]]


def loop_over_parts(
    anchor: Operation,
    extent: int,
    size: int,
    totals: Sequence[SSAValue],
    write: WritePart,
    backwards: bool = False,
) -> Sequence[SSAValue]:
    """A loop over the parts of `size` elements, and one part more of what is left of the extent;
    backwards: from the last part on.

    Written before the anchor; returns the totals of all parts, from those to begin with.
    """
    build, whole = Builder(anchor), extent - extent % size
    if backwards and whole < extent:
        totals = write(build.number(whole), extent - whole, totals, anchor)
    bounds = [build.number(n) for n in (0, whole, size)]
    body = Block(arg_types=[i32, *(total.type for total in totals)])
    loop = before(anchor, scf.ForOp(bounds[0], bounds[1], bounds[2], totals, Region(body)))
    body.add_op(end := scf.YieldOp())
    start: SSAValue = body.args[0]
    if backwards:
        start = Builder(end).sub(before(end, tile.Constant(whole - size, i32)).result, start)
    end.operands = write(start, size, body.args[1:], end)
    if backwards or whole == extent:
        return loop.results
    return write(build.number(whole), extent - whole, loop.results, anchor)


def initial_totals(joined: Iterable[tile.Reduce | tile.Scan], anchor: Operation) -> list[SSAValue]:
    """The totals of no part at all, written before the anchor: of a scan, what its last element
    would be.
    """
    build = Builder(anchor)
    found: list[SSAValue] = []
    for op in joined:
        t, kind = op.results[0].type, op.kind.data
        if isinstance(op, tile.Scan):
            t = tile.reduced(tile_type(op.args[0]), op.axis.value.data)
        found.append(build(tile.Constant(neutral(kind, element_of(t)), total_type(kind, t))))
    return found


def cast_total(total: SSAValue, t: Attribute, anchor: Operation) -> SSAValue:
    """The total in the type of the reduction, which may be narrower."""
    return total if total.type == t else before(anchor, Cast(total, t)).result


def _along(total: SSAValue, t: TileType, axis: int, build: Builder) -> SSAValue:
    """What lacks an axis of a tile, the same all along it."""
    if not isinstance(total.type, TileType):
        return build(tile.Splat(total, t))
    extents = list(t.extents)
    extents[axis] = 1
    return build(tile.Broadcast(build(tile.Reshape(total, TileType(extents, t.element))), t))


class Part:
    """One part of a cut: `size` elements from `start` on."""

    def __init__(self, cut: Cut, start: SSAValue, size: int) -> None:
        self.cut, self.start, self.size = cut, start, size
        # values inside loops and branches that this part has its own copies of, whole
        self.copies: dict[SSAValue, SSAValue] = {}
        # parts of values along an axis, in the blocks around what is written, outermost first
        self.made: list[dict[tuple[SSAValue, int], SSAValue]] = [{}]
        self.totals: list[SSAValue] = []
        # of scans: the totals of the parts before, and with this one once it has been made
        self.scanned: dict[tile.Scan, SSAValue] = {}

    def all(self, anchor: Operation, totals: Sequence[SSAValue]) -> list[SSAValue]:
        """Writes a cut forward before the anchor.

        Returns the totals of the parts up to this one, from those of the parts before.
        """
        self.totals = list(totals)
        if self.cut.loads_first:
            self._write_needs(self.cut.inside, anchor)
        self._write(self.cut.ops, anchor)
        return self.totals

    def of(self, value: SSAValue, axis: int, anchor: Operation) -> SSAValue:
        """The part of a value along an axis, written before the anchor unless it has been."""
        for made in reversed(self.made):
            if (value, axis) in made:
                return made[value, axis]
        op = owner_op(value)
        if is_scanned(op, axis):
            self.made[-1][value, axis] = self._scan(op, axis, anchor)
            return self.made[-1][value, axis]
        new = self.operation(op, frame_back(op, axis), anchor)
        for old, result in zip(op.results, new.results, strict=True):
            self.made[-1][old, axis] = result
        return self.made[-1][value, axis]

    def joined(self, op: tile.Reduce, axis: int, total: SSAValue, anchor: Operation) -> SSAValue:
        """The total of a reduction over the parts before and this one."""
        build, part = Builder(anchor), self.of(op.args[0], axis, anchor)
        t = TileType(tile_type(part).extents, element_of(total.type))
        if part.type != t:
            part = build(Cast(part, t))
        reduced = build(tile.Reduce(op.kind.data, part, op.axis.value.data))
        return build(CLASSES[FUNCTION[op.kind.data]](total, reduced))

    def _scan(self, op: tile.Scan, axis: int, anchor: Operation) -> SSAValue:
        """A part of a scan, behind the parts before, whose total it raises by its own."""
        build, total, kind = Builder(anchor), self.scanned[op], op.kind.data
        part = self.of(op.args[0], axis, anchor)
        t = TileType(tile_type(part).extents, element_of(total.type))
        if part.type != t:
            part = build(Cast(part, t))
        own = build(tile.Scan(kind, part, axis, op.reverse is not None))
        joined = CLASSES[FUNCTION[kind]]
        whole = build(joined(_along(total, t, axis, build), own))
        self.scanned[op] = build(joined(total, build(tile.Reduce(kind, part, axis))))
        wanted = self._part_type(op.results[0], axis)
        return whole if whole.type == wanted else build(Cast(whole, wanted))

    def operation(self, op: Operation, frame: int, anchor: Operation) -> Operation:
        """The operation cut along its frame, written before the anchor."""
        if isinstance(op, tile.Arange):
            return self._arange(op, anchor)
        operands = [
            self._copy_of(v) if (axis := needed(op, i, frame)) is None else self.of(v, axis, anchor)
            for i, v in enumerate(op.operands)
        ]
        extents = None
        if isinstance(op, (tile.Load, tile.Store)):
            place, extents = kept(op)[frame], list(op.extents.get_values())
            extents[place] = self.size
            offset = operands[1 + place]
            if not isinstance(offset.type, TileType):
                by = self._start_as(offset.type, anchor)
                operands[1 + place] = Builder(anchor).add(offset, by)
        new = op.clone(dict(self.copies))  # clone adds results to the mapping: parts are no copies
        new.operands = operands
        if extents is not None:
            new.properties["extents"] = tile.ints(extents)
        for result in new.results:
            retype(result, self._part_type(result, given(op, frame)))
        return before(anchor, new)

    def _arange(self, op: tile.Arange, anchor: Operation) -> Operation:
        t = self._part_type(op.result, 0)
        by = self._start_as(t.element, anchor)
        numbers = before(anchor, tile.Arange(op.start.value.data, t)).result
        return before(anchor, CLASSES["add"](numbers, before(anchor, tile.Splat(by, t)).result))

    def _start_as(self, t: Attribute, anchor: Operation) -> SSAValue:
        """Where the part begins, as an integer of another type."""
        return self.start if t == i32 else before(anchor, Cast(self.start, t)).result

    def _write_needs(self, inside: set[Operation], anchor: Operation) -> None:
        """Writes the parts that some operations need, and that come from outside them."""
        for value, axis in self.cut.needs:
            if owner_op(value) not in inside and any(use.operation in inside for use in value.uses):
                self.of(value, axis, anchor)

    def _write(self, ops: Iterable[Operation], anchor: Operation) -> None:
        for op in ops:
            if isinstance(op, scf.ForOp) and self._is_cut(op):
                self._for(op, anchor)
            elif isinstance(op, scf.IfOp) and self._is_cut(op):
                self._if(op, anchor)
            elif isinstance(op, tile.Reduce) and op in self.cut.reductions:
                i = self.cut.reductions.index(op)
                self.totals[i] = self.joined(op, self.cut.frames[op], self.totals[i], anchor)
            elif op in self.cut.frames:
                self._note(op, self.operation(op, self.cut.frames[op], anchor))
            else:
                new = before(anchor, op.clone(self.copies))
                self.copies |= dict(zip(op.results, new.results, strict=True))

    def _is_cut(self, op: Operation) -> bool:
        return any(inner in self.cut.frames for inner in op.walk()) or any(
            result in self.cut.axes for result in op.results
        )

    def _for(self, op: scf.ForOp, anchor: Operation) -> None:
        old = op.body.block
        body = Block(arg_types=[self._type_of(argument) for argument in old.args])
        initial = self._like(op.iter_args, old.args[1:], anchor)
        new = scf.ForOp(
            self._copy_of(op.lb),
            self._copy_of(op.ub),
            self._copy_of(op.step),
            initial,
            Region(body),
        )
        new.attributes |= op.attributes
        body.add_op(end := scf.YieldOp())
        self._write_needs(set(op.walk()), anchor)
        before(anchor, new)
        arguments: dict[SSAValue, SSAValue] = dict(zip(old.args, body.args, strict=True))
        self.copies |= arguments
        self._write_block(
            old,
            end,
            old.args[1:],
            {(a, self.cut.axes[a]): b for a, b in arguments.items() if a in self.cut.axes},
        )
        self._note(op, new)

    def _if(self, op: scf.IfOp, anchor: Operation) -> None:
        self._write_needs(set(op.walk()), anchor)
        true, false = (
            Region(Block([scf.YieldOp()]) if region.blocks else []) for region in op.regions
        )
        types = [self._type_of(result) for result in op.results]
        new = before(anchor, scf.IfOp(self._copy_of(op.cond), types, true, false))
        for region, written in zip(op.regions, new.regions, strict=True):
            if region.blocks:
                self._write_block(region.block, terminator_of(written.block), op.results, {})
        self._note(op, new)

    def _write_block(
        self,
        old: Block,
        end: Operation,
        likes: Sequence[SSAValue],
        made: dict[tuple[SSAValue, int], SSAValue],
    ) -> None:
        """A block of a loop or branch before its new terminator, which yields values like those."""
        self.made.append(made)
        terminator = terminator_of(old)
        self._write([op for op in old.ops if op is not terminator], end)
        end.operands = self._like(terminator.operands, likes, end)
        self.made.pop()

    def _like(
        self, values: Sequence[SSAValue], likes: Sequence[SSAValue], anchor: Operation
    ) -> list[SSAValue]:
        """The values as parts where their likes exist in parts alone, else as they are."""
        return [
            self.of(v, self.cut.axes[like], anchor) if like in self.cut.axes else self._copy_of(v)
            for v, like in zip(values, likes, strict=True)
        ]

    def _note(self, op: Operation, new: Operation) -> None:
        """The results of a new operation stand for those of the one it is made from."""
        for old, result in zip(op.results, new.results, strict=True):
            result.name_hint = old.name_hint
            if old in self.cut.axes:
                self.made[-1][old, self.cut.axes[old]] = result
            else:
                self.copies[old] = result

    def _copy_of(self, value: SSAValue) -> SSAValue:
        return self.copies.get(value, value)

    def _type_of(self, value: SSAValue) -> Attribute:
        """The type of a value that this part has: a part's, where the value is cut."""
        axis = self.cut.axes.get(value)
        return value.type if axis is None else self._part_type(value, axis)

    def _part_type(self, value: SSAValue, axis: int) -> TileType:
        return with_extent(tile_type(value), axis, self.size)
