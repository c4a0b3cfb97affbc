"""defer-reductions: a sum that a loop only adds to stays in parts, one for each thread that has
some; threads meet after the loop.

    for … iter_args(%t) {                               for … iter_args(%t) {               %t: [rows, threads of a row], a sum in parts
      %z = tile.reduce sum[%x] {axis = 1}                 %z = what a thread's own registers sum to: %x as [rows, 16, 4, 2], along 16 and 2
      %s = tile.mul %t, %f                     ->         %s = tile.mul %t, broadcast(%f)
      %u = tile.add %s, %z                                %u = tile.add %s, %z
      scf.yield %u                                        scf.yield %u
    }                                                   }
                                                        tile.reduce sum[…] {axis = 1}

Sums are linear: what an iteration adds to a sum, takes from it or multiplies it by (one factor for
a whole row) it may do to each part. Which lanes and warps have parts is said by the layout of what
is summed: the digits of its axis that are not registers. What the sum was before the loop goes to
the first part, or is parts already, where it is made of such a sum itself (an iteration that
rotate-loops has put before the loop).

A carried value is treated if its iteration makes it from itself and from sums along one axis, whose
parts lie alike, by additions, differences, factors, selections and branches, and if nothing else
reads
what lies between. What relax-stabilizers asks of a row's sum, not to be large, is then asked of each part: a comparison says that it may be (`estimate`).  Other sums round otherwise (REAL).
"""

from __future__ import annotations

from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import shared, tile
from tkc.ir.digits import LayoutError
from tkc.ir.elementwise import CLASSES
from tkc.ir.layout import Layout, movement
from tkc.ir.rewrite import after, before, erase_dead, replace, retype
from tkc.ir.threads import Vote
from tkc.ir.types import TileType, bits, is_bool
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant

REAL = True


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        for loop in [op for op in kernel.walk() if isinstance(op, scf.ForOp)]:
            for i, argument in enumerate(loop.body.block.args[1:]):
                try:
                    found = Parts(loop, i)
                except (Unfit, LayoutError):
                    continue
                found.rewrite()
                context.decisions.append(
                    f"defer-reductions: the sum %{argument.name_hint or i} stays in {found.count}"
                    " parts a row, in the threads that have them, until its loop ends"
                )
        while erase_dead(kernel.body.block):
            pass  # what the sum was before, as a whole


class Unfit(Exception):
    """A sum that cannot stay in parts."""


class Parts:
    """A carried sum as its parts. Raises Unfit or LayoutError where it is none."""

    def __init__(self, loop: scf.ForOp, index: int):
        self.loop, self.index, self.body = loop, index, loop.body.block
        self.argument, self.axis = self.body.args[1 + index], -1
        self.layout: Layout | None = None  # of the sum in parts
        self.reduces: list[tile.Reduce] = []
        self.members: dict[
            SSAValue, int
        ] = {}  # what becomes a sum in parts; of a product the operand that is one
        self._follow(self.body.last_op.operands[index])
        if self.layout is None:
            raise Unfit
        self.members.setdefault(self.argument, 0)
        for value in self.members:
            if not all(self._taken(use.operation, use.index) for use in value.uses):
                raise Unfit
        for factor in self._factors():
            if isinstance(factor.type, TileType) and movement(
                factor.type.register_layout, self._row(factor.type)[1].register_layout
            ) not in ("none", "registers"):
                raise Unfit

    @property
    def count(self) -> int:
        return self.layout.shape[self.axis]

    # ---- what it is made of
    # ----------------------------------------------------------------------------------------------
    def _follow(self, value: SSAValue) -> None:
        """Members from a value back to the carried one, to sums and zeros."""
        if value in self.members or constant(value) == 0:
            return
        op = value.owner
        if value is self.argument:
            self.members[value] = 0
            return
        if isinstance(op, Block) or not self._inside(op):
            raise Unfit
        self.members[value] = 0
        match op:
            case tile.Reduce():
                self._leaf(op)
            case scf.IfOp():
                for region in op.regions:
                    self._follow(region.block.last_op.operands[value.index])
            case ew.Select():
                self._follow(op.if_true)
                self._follow(op.if_false)
            case ew.Elementwise() if op.fn.name in ("add", "sub", "neg"):
                for v in op.operands:
                    self._follow(v)
            case ew.Elementwise() if op.fn.name == "mul":
                kept = dict(self.members), list(self.reduces), self.layout, self.axis
                try:
                    self._follow(op.lhs)
                except Unfit:
                    self.members, self.reduces, self.layout, self.axis = kept
                    self._follow(op.rhs)
                    self.members[value] = 1
            case _:
                raise Unfit

    def _inside(self, op: Operation) -> bool:
        block = op.parent
        while block is not None and block is not self.body:
            parent = block.parent_op()
            if not isinstance(parent, scf.IfOp):
                return False
            block = parent.parent
        return block is self.body

    def _leaf(self, op: tile.Reduce) -> None:
        t, axis = op.args[0].type, op.axis.value.data
        if op.kind.data != "sum" or is_bool(t.element) or bits(t.element) < 32:
            raise Unfit
        *_, layout = self._cut(op)
        if self.layout not in (None, layout) or self.axis not in (-1, axis):
            raise Unfit
        if layout.shape[axis] == 1:
            raise Unfit  # no two threads have parts
        self.layout, self.axis = layout, axis
        self.reduces.append(op)

    def _cut(self, op: tile.Reduce) -> tuple[list[int], Layout, list[int], Layout]:
        """The axis as what registers count and what threads do, largest stride first: the shape,
        its layout, which axes of it are registers, and the layout of the sum in parts.
        """
        t, axis = op.args[0].type, op.axis.value.data
        layout, pieces = t.register_layout, []
        if layout.padded_shape[axis] != layout.shape[axis]:
            raise Unfit
        own = layout.digits(axis, ("registers",))
        for d in sorted(layout.digits(axis), key=lambda d: -d.stride):
            if pieces and pieces[-1][1] == (d in own):
                pieces[-1] = pieces[-1][0] * d.extent, d in own
            else:
                pieces.append((d.extent, d in own))
        shape = [*t.extents[:axis], *(n for n, _ in pieces), *t.extents[axis + 1 :]]
        cut = layout.reshape(shape)
        gone, left = [axis + i for i, (_, mine) in enumerate(pieces) if mine], cut
        for a in reversed(gone):
            left = left.drop(a)
        return (
            shape,
            cut,
            gone,
            left.reshape(
                [
                    *t.extents[:axis],
                    prod(n for n, mine in pieces if not mine),
                    *t.extents[axis + 1 :],
                ]
            ),
        )

    def _taken(self, op: Operation, index: int) -> bool:
        """Whether an operand of an operation may be a sum in parts."""
        if op is self.body.last_op:
            return index == self.index
        if isinstance(op, scf.YieldOp):
            return op.parent_op().results[index] in self.members
        if op.attributes.get("estimate") is not None:
            return index == 0
        if not op.results or op.results[0] not in self.members:
            return False
        match op:
            case ew.Select():
                return index > 0
            case ew.Elementwise():
                return (
                    op.fn.name != "mul" or index == self.members[op.result] and op.lhs is not op.rhs
                )
        return False

    def _factors(self) -> list[SSAValue]:
        """What is the same for all parts of a row."""
        ops = [v.owner for v in self.members if isinstance(v.owner, (ew.Select, CLASSES["mul"]))]
        return [
            op.condition if isinstance(op, ew.Select) else op.operands[1 - self.members[op.result]]
            for op in ops
        ]

    # ---- rewriting
    # ----------------------------------------------------------------------------------------------
    def _type(self, element) -> TileType:
        return TileType(self.layout.shape, element, self.layout)

    def _row(self, t: TileType) -> tuple[TileType, TileType]:
        """A row's type with an axis of one element for the parts, and without it, in the threads of
        the parts.
        """
        one = self.layout.operand_of_broadcast(
            [*t.extents[: self.axis], 1, *t.extents[self.axis :]]
        )
        return TileType(one.shape, t.element, one), TileType(
            t.extents, t.element, one.reshape(t.extents)
        )

    def _spread(self, value: SSAValue, anchor: Operation) -> SSAValue:
        """One value a row, for all of its parts."""

        def make(op):
            return before(anchor, op).results[0]

        if not isinstance(value.type, TileType):
            return make(tile.Splat(value, self._type(value.type)))
        if isinstance(value.owner, tile.Splat):
            return make(tile.Splat(value.owner.arg, self._type(value.type.element)))
        if (number := constant(value)) is not None:
            return make(tile.Constant(number, self._type(value.type.element)))
        one, row = self._row(value.type)
        if value.type != row:
            value = make(shared.Convert(value, row))
        return make(tile.Broadcast(make(tile.Reshape(value, one)), self._type(value.type.element)))

    def _first(self, value: SSAValue, anchor: Operation) -> SSAValue:
        """A whole value as parts: all of it in the first."""
        element, make = (
            getattr(value.type, "element", value.type),
            lambda op: before(anchor, op).results[0],
        )
        zero = make(tile.Constant(0, self._type(element)))
        if constant(value) == 0:
            return zero
        index = self.layout.operand_of_broadcast(
            [n if a == self.axis else 1 for a, n in enumerate(self.layout.shape)]
        )
        line = index.reshape([self.count])
        ids = make(
            tile.Reshape(
                make(tile.Arange(0, TileType(line.shape, i32, line))),
                TileType(index.shape, i32, index),
            )
        )
        first = make(
            CLASSES["eq"](
                make(tile.Broadcast(ids, self._type(i32))), make(tile.Constant(0, self._type(i32)))
            )
        )
        return make(ew.Select(first, self._spread(value, anchor), zero))

    def _begins(self, value: SSAValue, user: Operation) -> bool:
        """Whether what the sum was before the loop is made of such sums as well, for nobody else:
        an iteration that stands before its loop, say.
        """
        if constant(value) == 0:
            return True
        op = value.owner
        if (
            not isinstance(op, Operation)
            or op.parent is not self.loop.parent
            or any(use.operation is not user for use in value.uses)
        ):
            return False
        match op:
            case tile.Reduce():
                return self._like(op)
            case ew.Elementwise() if op.fn.name in ("add", "sub", "neg"):
                return all(self._begins(v, op) for v in op.operands)
            case ew.Elementwise() if op.fn.name == "mul":
                return any(
                    self._begins(v, op) and self._factor(op.operands[1 - i])
                    for i, v in enumerate(op.operands)
                )
            case ew.Select():
                return self._factor(op.condition) and all(
                    self._begins(v, op) for v in op.operands[1:]
                )
        return False

    def _like(self, op: tile.Reduce) -> bool:
        """Whether a sum's parts lie as those of the loop's."""
        try:
            return (
                op.kind.data == "sum"
                and not is_bool(op.args[0].type.element)
                and op.axis.value.data == self.axis
                and self._cut(op)[-1] == self.layout
            )
        except (Unfit, LayoutError):
            return False

    def _factor(self, value: SSAValue) -> bool:
        return not isinstance(value.type, TileType) or movement(
            value.type.register_layout, self._row(value.type)[1].register_layout
        ) in ("none", "registers")

    def _begun(self, value: SSAValue, anchor: Operation) -> SSAValue:
        """That in parts, where it stands."""
        if constant(value) == 0:
            return before(
                anchor, tile.Constant(0, self._type(getattr(value.type, "element", value.type)))
            ).result
        op = value.owner
        if isinstance(op, tile.Reduce):
            return self._own(op)
        whole = (
            0
            if isinstance(op, ew.Select)
            else (
                next(
                    1 - i
                    for i, v in enumerate(op.operands)
                    if self._begins(v, op) and self._factor(op.operands[1 - i])
                )
                if isinstance(op, CLASSES["mul"])
                else -1
            )
        )
        new = before(
            op,
            type(op)(
                *(
                    self._spread(v, op) if i == whole else self._begun(v, op)
                    for i, v in enumerate(op.operands)
                )
            ),
        )
        new.attributes |= op.attributes
        return new.results[0]

    def rewrite(self) -> None:
        loop, end = self.loop, self.body.last_op
        for reduce in self.reduces:
            self._of_registers(reduce)
        for value in [v for v in self.members if not isinstance(v.owner, tile.Reduce)]:
            op = value.owner
            if isinstance(op, Block):
                continue
            if isinstance(op, scf.IfOp):
                for region in op.regions:
                    self._zero(region.block.last_op, value.index)
            for i in range(len(op.operands)):
                if isinstance(op, (ew.Select, CLASSES["mul"])) and i == (
                    0 if isinstance(op, ew.Select) else 1 - self.members[value]
                ):
                    op.operands[i] = self._spread(op.operands[i], op)
                elif not isinstance(op, scf.IfOp):
                    self._zero(op, i)
            retype(value, self._type(getattr(value.type, "element", value.type)))
        self._zero(end, self.index)
        start = loop.iter_args[self.index]
        loop.operands[3 + self.index] = (
            self._begun(start, loop) if self._begins(start, loop) else self._first(start, loop)
        )
        result, whole = loop.results[self.index], self.argument.type
        for value in (self.argument, result):
            retype(value, self._type(getattr(whole, "element", whole)))
        if result.first_use is None:
            return
        total = after(
            loop,
            tile.Reduce(
                "sum",
                result,
                self.axis,
                [
                    whole
                    if not isinstance(whole, TileType)
                    else whole.with_layout(self.layout.drop(self.axis))
                ],
            ),
        ).results[0]
        total.name_hint = result.name_hint
        if isinstance(whole, TileType) and total.type != whole:
            total = after(total.owner, shared.Convert(total, whole)).result
        result.replace_uses_with_if(
            total,
            lambda use: (
                use.operation
                is not (
                    total.owner if isinstance(total.owner, tile.Reduce) else total.owner.arg.owner
                )
            ),
        )

    def _zero(self, op: Operation, index: int) -> None:
        if constant(v := op.operands[index]) == 0:
            op.operands[index] = before(
                op, tile.Constant(0, self._type(getattr(v.type, "element", v.type)))
            ).result

    def _own(self, op: tile.Reduce) -> SSAValue:
        """The part that each thread's registers sum to."""
        shape, cut, gone, _ = self._cut(op)
        value = before(
            op, tile.Reshape(op.args[0], TileType(shape, op.args[0].type.element, cut))
        ).result
        for a in reversed(gone):
            left = value.type.register_layout.drop(a)
            value = before(
                op, tile.Reduce("sum", value, a, [TileType(left.shape, value.type.element, left)])
            ).results[0]
        return (
            value
            if value.type.extents == self.layout.shape
            else before(op, tile.Reshape(value, self._type(value.type.element))).result
        )

    def _of_registers(self, op: tile.Reduce) -> None:
        """A sum of the loop; who asked whether it is small asks that of every part."""
        value = self._own(op)
        estimates = [
            use.operation
            for use in op.results[0].uses
            if use.operation.attributes.get("estimate") is not None
        ]
        self.members[value] = 0
        replace(op, [value])
        if estimates:
            self._estimate(estimates)

    def _estimate(self, compares: list[ew.Elementwise]) -> None:
        """Votes are of all parts, and what is asked beside them is asked of each; whoever wants the
        answer of a row gets it where it is wanted.
        """
        asked, t = list(compares), compares[0].result.type
        for op in asked:
            asked += [
                use.operation
                for use in op.result.uses
                if isinstance(use.operation, (CLASSES["and"], CLASSES["or"]))
                and use.operation.result.type == t
                and use.operation not in asked
            ]
        for op in [op for op in compares[0].parent.ops if op in asked]:
            for i, v in enumerate(op.operands):
                if v.owner not in asked and v.type != self._type(
                    getattr(v.type, "element", v.type)
                ):
                    op.operands[i] = self._spread(v, op)
            old, uses = op.result, list(op.result.uses)
            retype(old, self._type(getattr(t, "element", t)))
            for user, index in [(use.operation, use.index) for use in uses]:
                if isinstance(user, Vote) or user in asked:
                    continue
                if isinstance(user, scf.IfOp):
                    user.operands[0] = before(user, Vote(old)).result
                    continue
                row = before(
                    user,
                    tile.Reduce(
                        "all",
                        old,
                        self.axis,
                        [
                            t.with_layout(self.layout.drop(self.axis))
                            if isinstance(t, TileType)
                            else t
                        ],
                    ),
                ).results[0]
                if isinstance(t, TileType) and row.type != t:
                    row = before(user, shared.Convert(row, t)).result
                user.operands[index] = row
