"""split-sums: a sum and the partial dots it is made of, cut in parts, so that adding up one part
overlaps the dot of another.

A partial dot (its accumulator zero, its result added to what the loop carries) leaves the tensor
core idle while a warpgroup adds, and needs registers for its own result beside the sum. In parts,
one part is added under the other's dot; or, where registers are short, the parts take turns in the
same registers:

    for k:  x, y = …                                       for k:  x, y = …
      d = dot(x, y, 0)                                       d0 = dot(x, y[:, :64], 0);  d1 = dot(x, y[:, 64:], 0)
      acc = acc + d · s                            ->        acc0 = acc0 + d0 · s;  acc1 = acc1 + d1 · s
    store acc                                              store concat(acc0, acc1)

The plan says which dots, and how many parts are in flight at once: (2, 2) as above; (2, 1): d0,
acc0, d1, acc1. Where warpgroups have several blocks of 64 rows each, parts may be of rows
(`axis_of`), else they are of columns. Everything between the dot and the sum is element by element,
so a part is computed from parts.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.plan import number_of
from tkc.ir.rewrite import after, before, erase, rebuild_for, retype
from tkc.ir.types import TileType
from tkc.passes import PassContext
from tkc.passes.analysis.values import POINTWISE


def run(module: ModuleOp, context: PassContext) -> None:
    if context.plan is None:
        return
    for kernel in module.body.block.ops:
        for dot in [op for op in kernel.walk() if isinstance(op, tile.Dot)]:
            if not (chosen := context.plan.dot(dot)) or chosen.parts[0] == 1:
                continue
            (parts, together), axis, number = (
                chosen.parts,
                axis_of(dot, chosen.warps[0]),
                number_of(dot),
            )
            Split(dot, axis, parts, together > 1).run()
            context.decisions.append(
                f"split-sums: dot {number} in {parts} parts of its {('rows', 'columns')[axis]},"
                f" {'all in flight at once' if together > 1 else 'one after the other'}"
            )


def axis_of(dot: tile.Dot, groups: int) -> int:
    """The axis along which a dot is cut: its rows where a warpgroup has several blocks of them, so
    that the instructions stay wide (of 64 columns they ask shared memory for a third more); but not
    where what is done beside adding differs from column to column, for which such a warpgroup has
    no registers, nor where the left factor is in registers.
    """
    left = dot.a
    while isinstance(left.owner, tile.Transpose):
        left = left.owner.arg
    return (
        0
        if dot.result.type.extents[0] > 64 * groups
        and _of_rows(dot)
        and isinstance(left.owner, tile.Load)
        else 1
    )


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
    return bool(chain) and all(
        isinstance(op, (tile.Splat, tile.Constant))
        or isinstance(op, tile.Broadcast)
        and op.arg.type.extents[-1] == 1
        for op in others
    )


def chain_of(dot: tile.Dot) -> list[Operation]:
    """The operations between a partial dot and its loop's yield, if they can be split: all element
    by element, the carried sum used by them alone; otherwise none."""
    loop, chain, value = dot.parent_op(), [], dot.result
    while (
        value.has_one_use()
        and isinstance(op := value.first_use.operation, POINTWISE)
        and op.parent is dot.parent
    ):
        chain.append(op)
        value = op.results[0]
    if (
        not chain
        or not value.has_one_use()
        or value.first_use.operation is not loop.body.block.last_op
    ):
        return []
    carried = loop.body.block.args[1 + value.first_use.index]
    alike = all(
        v.type.extents == dot.result.type.extents
        for op in chain
        for v in (*op.operands, *op.results)
        if isinstance(v.type, TileType)
    )
    return (
        chain
        if alike
        and carried.type == value.type
        and all(use.operation in chain for use in carried.uses)
        else []
    )


class Split:
    def __init__(self, dot: tile.Dot, axis: int, parts: int, together: bool):
        self.dot, self.axis, self.parts, self.together, self.chain = (
            dot,
            axis,
            parts,
            together,
            chain_of(dot),
        )
        self.whole = dot.result.type.extents[axis]
        self.width = self.whole // parts
        self.narrow_of: dict[tuple[SSAValue, int], SSAValue] = {}

    def run(self) -> None:
        loop: scf.ForOp = self.dot.parent_op()
        body, index, count = (
            loop.body.block,
            self.chain[-1].results[0].first_use.index,
            len(loop.iter_args),
        )
        carried = body.args[1 + index]
        loop = rebuild_for(
            loop,
            range(count),
            [self.narrow(loop.iter_args[index], j, loop) for j in range(self.parts)],
        )
        for j, argument in enumerate(body.args[-self.parts :]):
            self.narrow_of[carried, j] = argument
        last = self.chain[-1]
        if self.together:
            for j in range(self.parts):
                self.narrow(self.dot.result, j, self.dot)
        ends = [self.narrow(last.results[0], j, last) for j in range(self.parts)]
        body.last_op.operands = [
            *(carried if i == index else v for i, v in enumerate(body.last_op.operands)),
            *ends,
        ]
        for op in reversed([self.dot, *self.chain]):
            erase(op)
        joined = after(
            loop, tile.Concat(list(loop.results[-self.parts :]), self.axis, carried.type)
        ).result
        loop.results[index].replace_all_uses_with(joined)
        rebuild_for(loop, [i for i in range(count + self.parts) if i != index])

    def narrow(self, value: SSAValue, j: int, anchor: Operation) -> SSAValue:
        """Part j of a value, made before the anchor."""
        if not isinstance(value.type, TileType):
            return value
        if (value, j) not in self.narrow_of:
            self.narrow_of[value, j] = self._narrow(value, j, anchor)
        return self.narrow_of[value, j]

    def _narrow(self, value: SSAValue, j: int, anchor: Operation) -> SSAValue:
        op, t = value.owner, value.type
        cut, one, vector = self._cut(t), t.extents[self._axis(t)] == 1, t.size == self.whole
        if one:
            return value
        if op is self.dot:
            factors = (
                (self._part(op.a, j, anchor), op.b)
                if self.axis == 0
                else (op.a, self._part(op.b, j, anchor))
            )
            new = tile.Dot(*factors, self.narrow(op.acc, j, anchor), op.precision.data)
            new.attributes |= op.attributes
            return before(anchor, new).result
        if op in self.chain:
            new = op.clone({v: self.narrow(v, j, anchor) for v in op.operands})
            retype(new.results[0], cut)
            return before(anchor, new).results[0]
        match op:
            case tile.Constant():
                return before(anchor, tile.Constant(op.number, cut)).result
            case tile.Splat():
                return before(anchor, tile.Splat(op.arg, cut)).result
            case tile.Broadcast() if op.arg.type.rank == t.rank:
                return before(anchor, tile.Broadcast(self.narrow(op.arg, j, anchor), cut)).result
            case tile.Reshape() if vector and op.arg.type.extents == (self.whole,):
                return before(anchor, tile.Reshape(self.narrow(op.arg, j, anchor), cut)).result
            case tile.Load() if (
                vector
                and op.mask is None
                and op.other is None
                and not any(isinstance(o.type, TileType) for o in op.offsets)
            ):
                return self._load(op, j, cut)
            case _ if (
                vector
                and isinstance(op, POINTWISE)
                and all(
                    v.type.extents == t.extents for v in op.operands if isinstance(v.type, TileType)
                )
            ):
                # what is known before the loop is cut there, once
                place = anchor if op.parent is self.dot.parent else op
                new = op.clone({v: self.narrow(v, j, place) for v in op.operands})
                retype(new.results[0], cut)
                return before(place, new).results[0]
            case _:
                return self._part(value, j, anchor)

    def _axis(self, t: TileType) -> int:
        return self.axis if t.rank == 2 else 0

    def _cut(self, t: TileType) -> TileType:
        return TileType(
            [self.width if a == self._axis(t) else n for a, n in enumerate(t.extents)], t.element
        )

    def _load(self, op: tile.Load, j: int, cut: TileType) -> SSAValue:
        """A vector's part, loaded by itself."""
        extents, offsets = list(op.extents.get_values()), list(op.offsets)
        axis = [a for a, n in enumerate(extents) if n >= 0][self._axis(op.result.type)]
        extents[axis] = self.width
        if j:
            offsets[axis] = before(
                op,
                CLASSES["add"](
                    offsets[axis],
                    before(op, tile.Constant(j * self.width, offsets[axis].type)).result,
                ),
            ).result
        new = tile.Load(op.array, offsets, extents, result=cut)
        new.attributes |= op.attributes | {"part": IntegerAttr(j + 1, i64)}
        return before(op, new).result

    def _part(self, value: SSAValue, j: int, anchor: Operation) -> SSAValue:
        t = value.type
        return before(
            anchor,
            tile.Slice(
                value,
                [j * self.width if a == self._axis(t) else 0 for a in range(t.rank)],
                self._cut(t),
            ),
        ).result
