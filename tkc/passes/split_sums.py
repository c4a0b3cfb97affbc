"""split-sums: an accumulator and the partial dots that are added to it, cut in parts, so that
adding up one part overlaps the dot of another.

A partial dot (its own accumulator zero, its result added to what the loop carries) leaves the
tensor core idle while a warpgroup adds, and needs registers for its result beside the accumulator.
In parts, one part is added during the other's dot; or, where registers are short, the parts take
turns in the same registers.

Before:

    for k:  x, y = …
      d = dot(x, y, 0)
      acc = acc + d · s
    store acc

After:

    for k:  x, y = …
      d0 = dot(x, y[:, :64], 0);  d1 = dot(x, y[:, 64:], 0)
      acc0 = acc0 + d0 · s;  acc1 = acc1 + d1 · s
    store concat(acc0, acc1)

The plan says which dots, and how many parts are in flight at once: (2, 2) as above; (2, 1): d0,
acc0, d1, acc1. Where warpgroups have several blocks of 64 rows each, parts may be of rows
(`axis_of`), else they are of columns. Everything between the dot and the accumulator is element by
element, so a part is computed from parts.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Block, BlockArgument, Operation, SSAValue, Use

from tkc.ir import tile
from tkc.ir.plan import number_of
from tkc.ir.rewrite import Builder, after, before, erase, rebuild_for, retype
from tkc.ir.types import TileType
from tkc.ir.values import operations_in, parent_of, terminator_of, tile_type, yielded_by
from tkc.passes import PassContext
from tkc.passes.analysis.values import POINTWISE
from tkc.passes.cuts.axes import kept, with_extent


def run(module: ModuleOp, context: PassContext) -> None:
    """Splits the dots for which the plan asks for parts."""
    if context.plan is None:
        return
    for kernel in module.body.block.ops:
        for dot in operations_in(kernel, tile.Dot):
            chosen = context.plan.dot(dot)
            if not chosen or chosen.parts[0] == 1:
                continue
            parts, in_flight = chosen.parts
            axis, number = axis_of(dot, chosen.warps[0]), number_of(dot)
            Split(dot, axis, parts, in_flight > 1).run()
            context.decisions.append(
                f"split-sums: dot {number} in {parts} parts of its {('rows', 'columns')[axis]},"
                f" {'all in flight at once' if in_flight > 1 else 'one after the other'}"
            )


def axis_of(dot: tile.Dot, groups: int) -> int:
    """The axis along which a dot is cut: 0, its rows, or 1, its columns.

    Rows where each of so many warpgroups has several blocks of 64 of them, so that the instructions
    stay wide (narrow ones read more of shared memory); but not where what is done beside adding
    differs from column to column, for which such a warpgroup has no registers, nor where the left
    operand is in registers.
    """
    left = dot.a
    while isinstance(left.owner, tile.Transpose):
        left = left.owner.arg
    has_several_blocks = tile_type(dot.result).extents[0] > 64 * groups
    return 0 if has_several_blocks and _of_rows(dot) and isinstance(left.owner, tile.Load) else 1


def _of_rows(dot: tile.Dot) -> bool:
    """Whether what is done with a partial dot is the same for all of a row: scales of rows, or of
    all.
    """
    chain = chain_of(dot)
    others = [
        v.owner
        for op in chain
        for v in op.operands
        if isinstance(v.type, TileType)
        and v is not dot.result
        and v.owner not in chain
        and not (isinstance(v, BlockArgument) and v.block is dot.parent)
    ]
    return bool(chain) and all(map(_is_same_in_row, others))


def _is_same_in_row(op: Operation | Block) -> bool:
    if isinstance(op, tile.Broadcast):
        return tile_type(op.arg).extents[-1] == 1
    return isinstance(op, (tile.Splat, tile.Constant))


def chain_of(dot: tile.Dot) -> list[Operation]:
    """The operations between a partial dot and its loop's yield, if they can be split: all element
    by element, the carried accumulator used by them alone; otherwise none.
    """
    loop, value = dot.parent_op(), dot.result
    chain: list[Operation] = []
    while (use := _only_use(value)) and isinstance(use.operation, POINTWISE):
        if use.operation.parent is not dot.parent:
            break
        chain.append(use.operation)
        value = use.operation.results[0]
    if not chain or use is None or not isinstance(loop, scf.ForOp):
        return []
    body = loop.body.block
    if use.operation is not body.last_op:
        return []
    carried = body.args[1 + use.index]
    return chain if all(use.operation in chain for use in carried.uses) else []


def _only_use(value: SSAValue) -> Use | None:
    """The use of a value that has one; None of others."""
    return value.first_use if value.has_one_use() else None


class Split:
    """A dot, and the chain of operations from it to its loop's yield, in parts along an axis."""

    def __init__(self, dot: tile.Dot, axis: int, parts: int, in_flight: bool) -> None:
        self.dot, self.axis, self.parts, self.in_flight = dot, axis, parts, in_flight
        self.chain = chain_of(dot)
        self.whole: int = tile_type(dot.result).extents[axis]
        self.width = self.whole // parts
        self.part_of: dict[tuple[SSAValue, int], SSAValue] = {}

    def run(self) -> None:
        """Puts the parts in place of the dot, its chain and the carried accumulator."""
        loop, last = parent_of(self.dot, scf.ForOp), self.chain[-1]
        body, count = loop.body.block, len(loop.iter_args)
        index = list(yielded_by(body)).index(last.results[0])
        carried = body.args[1 + index]
        initial = [self.part(loop.iter_args[index], j, loop) for j in range(self.parts)]
        loop = rebuild_for(loop, range(count), initial)
        for j, argument in enumerate(body.args[-self.parts :]):
            self.part_of[carried, j] = argument
        if self.in_flight:
            for j in range(self.parts):
                self.part(self.dot.result, j, self.dot)
        ends = [self.part(last.results[0], j, last) for j in range(self.parts)]
        end = terminator_of(body)
        end.operands = [*(carried if i == index else v for i, v in enumerate(end.operands)), *ends]
        for op in reversed([self.dot, *self.chain]):
            erase(op)
        joined = tile.Concat(list(loop.results[-self.parts :]), self.axis, tile_type(carried))
        loop.results[index].replace_all_uses_with(after(loop, joined).result)
        rebuild_for(loop, [i for i in range(count + self.parts) if i != index])

    def part(self, value: SSAValue, j: int, anchor: Operation) -> SSAValue:
        """Part j of a value, made before the anchor unless it has been."""
        if not isinstance(value.type, TileType):
            return value
        if (value, j) not in self.part_of:
            self.part_of[value, j] = self._made(value, j, anchor)
        return self.part_of[value, j]

    def _made(self, value: SSAValue, j: int, anchor: Operation) -> SSAValue:
        op, t = value.owner, tile_type(value)
        if t.extents[self._axis(t)] == 1:
            return value
        if op is self.dot:
            return self._dot(j, anchor)
        part = self._type(t)
        match op:
            case Operation() if op in self.chain:
                return self._pointwise(op, j, part, anchor)
            case tile.Constant():
                return before(anchor, tile.Constant(op.number, part)).result
            case tile.Splat():
                return before(anchor, tile.Splat(op.arg, part)).result
            case tile.Broadcast() if tile_type(op.arg).rank == t.rank:
                return before(anchor, tile.Broadcast(self.part(op.arg, j, anchor), part)).result
            case Operation() if t.size == self.whole:
                return self._vector(op, value, j, anchor)
        return self._slice(value, j, anchor)

    def _vector(self, op: Operation, value: SSAValue, j: int, anchor: Operation) -> SSAValue:
        """Part j of a vector along the axis: loaded or computed by itself, if that can be."""
        t = tile_type(value)
        part = self._type(t)
        if isinstance(op, tile.Reshape) and tile_type(op.arg).extents == (self.whole,):
            return before(anchor, tile.Reshape(self.part(op.arg, j, anchor), part)).result
        if isinstance(op, tile.Load) and _is_plain(op):
            return self._load(op, j, part)
        if isinstance(op, tile.Arange):
            return before(op, tile.Arange(op.start.value.data + j * self.width, part)).result
        if isinstance(op, tile.Splat):
            return before(op, tile.Splat(op.arg, part)).result
        if isinstance(op, POINTWISE):
            # what is known before the loop is cut there, once
            place = anchor if op.parent is self.dot.parent else op
            return self._pointwise(op, j, part, place)
        return self._slice(value, j, anchor)

    def _dot(self, j: int, anchor: Operation) -> SSAValue:
        a, b = self.dot.a, self.dot.b
        if self.axis == 0:
            a = self._slice(a, j, anchor)
        else:
            b = self._slice(b, j, anchor)
        acc = self.part(self.dot.acc, j, anchor)
        new = tile.Dot(a, b, acc, self.dot.precision.data)
        new.attributes |= self.dot.attributes
        return before(anchor, new).result

    def _pointwise(self, op: Operation, j: int, part: TileType, anchor: Operation) -> SSAValue:
        new = op.clone({v: self.part(v, j, anchor) for v in op.operands})
        retype(new.results[0], part)
        return before(anchor, new).results[0]

    def _load(self, op: tile.Load, j: int, part: TileType) -> SSAValue:
        """A vector's part, loaded by itself."""
        extents, offsets, build = list(op.extents.get_values()), list(op.offsets), Builder(op)
        axis = kept(op)[self._axis(tile_type(op.result))]
        extents[axis] = self.width
        if j:
            offsets[axis] = build.add(offsets[axis], j * self.width)
        new = tile.Load(op.array, offsets, extents, result=part)
        new.attributes |= op.attributes | {"part": IntegerAttr(j + 1, i64)}
        return build(new)

    def _slice(self, value: SSAValue, j: int, anchor: Operation) -> SSAValue:
        t = tile_type(value)
        starts = [j * self.width if a == self._axis(t) else 0 for a in range(t.rank)]
        return before(anchor, tile.Slice(value, starts, self._type(t))).result

    def _axis(self, t: TileType) -> int:
        """The axis of a tile that is cut; vectors lie along it."""
        return self.axis if t.rank == 2 else 0

    def _type(self, t: TileType) -> TileType:
        """The type of a part of a tile."""
        return with_extent(t, self._axis(t), self.width)


def _is_plain(load: tile.Load) -> bool:
    """Whether a load has no mask, no other value and no indices as tiles."""
    return (
        load.mask is None
        and load.other is None
        and not any(isinstance(offset.type, TileType) for offset in load.offsets)
    )
