"""defer-reductions: a sum that a loop only adds to stays in parts, one for each thread that has
some; threads meet after the loop.

Before:

    for … iter_args(%t) {
      %z = tile.reduce sum[%x] {axis = 1}
      %s = tile.mul %t, %f
      %u = tile.add %s, %z
      scf.yield %u
    }

After, where %t is a sum in parts, [rows, threads of a row]:

    for … iter_args(%t) {
      %z = what a thread's own registers sum to: %x as [rows, 16, 4, 2], along 16 and 2
      %s = tile.mul %t, broadcast(%f)
      %u = tile.add %s, %z
      scf.yield %u
    }
    tile.reduce sum[…] {axis = 1}

Sums are linear: what an iteration adds to a sum, takes from it or multiplies it by (one factor for
a whole row) it may do to each part. The layout of what is summed says which lanes and warps have
parts: the digits of its axis that are not registers. The sum's value before the loop goes to the
first part, or is in parts already, where it is made of such a sum itself (an iteration that
rotate-loops has put before the loop).

A carried value is treated if its iteration makes it from itself and from sums along one axis, whose
parts have one layout, by additions, differences, factors, selections and branches, and if nothing
else reads the values between. A comparison that relax-stabilizers makes to see that a row's sum is
not large (attribute `estimate`) is then made of each part. Other sums round otherwise (REAL).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import shared, tile
from tkc.ir.digits import LayoutError
from tkc.ir.elementwise import CLASSES
from tkc.ir.layout import Layout, movement
from tkc.ir.rewrite import Builder, after, before, erase_dead, replace, retype
from tkc.ir.threads import Vote
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import (
    Walk,
    block_of,
    index_of,
    layout_of,
    operations_in,
    owner_op,
    parent_of,
    terminator_of,
    tile_type,
    without_recursion,
    yielded_by,
)
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant

REAL = True


def run(module: ModuleOp, context: PassContext) -> None:
    """Keeps in parts every carried sum that can be."""
    for kernel in module.body.block.ops:
        for loop in operations_in(kernel, scf.ForOp):
            for i, argument in enumerate(loop.body.block.args[1:]):
                try:
                    found = Parts(loop, i)
                except (NotInParts, LayoutError):
                    continue
                found.rewrite()
                context.decisions.append(
                    f"defer-reductions: the sum %{argument.name_hint or i} stays in {found.count}"
                    " parts a row, in the threads that have them, until its loop ends"
                )
        while erase_dead(kernel.body.block):
            pass  # what the sum was before, as a whole


class NotInParts(Exception):
    """A sum that cannot stay in parts."""


class Parts:
    """A carried sum as its parts. Raises NotInParts or LayoutError where it is none."""

    def __init__(self, loop: scf.ForOp, index: int) -> None:
        self.loop, self.index, self.body = loop, index, loop.body.block
        self.argument, self.axis = self.body.args[1 + index], -1
        self._found: Layout | None = None  # the layout, once a sum is found
        self.reduces: list[tile.Reduce] = []
        # what becomes a sum in parts; of a product the operand that is one
        self.members: dict[SSAValue, int] = {}
        without_recursion(self._follow(yielded_by(self.body)[index]))
        if self._found is None:
            raise NotInParts
        self.members.setdefault(self.argument, 0)
        for value in self.members:
            if not all(self._taken(use.operation, use.index) for use in value.uses):
                raise NotInParts
        if not all(map(self._is_in_place, self._factors())):
            raise NotInParts

    @property
    def layout(self) -> Layout:
        """The layout of the sum in parts."""
        if self._found is None:
            raise NotInParts
        return self._found

    @property
    def count(self) -> int:
        """How many parts a row has."""
        return self.layout.shape[self.axis]

    # ---- what it is made of

    def _follow(self, value: SSAValue) -> Walk[None]:
        """Members from a value back to the carried one, to sums and zeros."""
        if value in self.members or constant(value) == 0:
            return
        if value is self.argument:
            self.members[value] = 0
            return
        op = value.owner
        if isinstance(op, Block) or not self._inside(op):
            raise NotInParts
        self.members[value] = 0
        match op:
            case tile.Reduce():
                self._leaf(op)
            case scf.IfOp():
                for region in op.regions:
                    yield self._follow(yielded_by(region.block)[index_of(value)])
            case ew.Select():
                yield self._follow(op.if_true)
                yield self._follow(op.if_false)
            case ew.Elementwise() if op.fn.name in ("add", "sub", "neg"):
                for v in op.operands:
                    yield self._follow(v)
            case ew.Elementwise() if op.fn.name == "mul":
                yield self._follow_product(value, *op.args)
            case _:
                raise NotInParts

    def _follow_product(self, value: SSAValue, left: SSAValue, right: SSAValue) -> Walk[None]:
        """Follows the operand of a product that is a sum; the other is its factor."""
        kept = dict(self.members), list(self.reduces), self._found, self.axis
        try:
            yield self._follow(left)
        except (NotInParts, LayoutError):
            self.members, self.reduces, self._found, self.axis = kept
            yield self._follow(right)
            self.members[value] = 1

    def _inside(self, op: Operation) -> bool:
        block = op.parent
        while block is not None and block is not self.body:
            parent = block.parent_op()
            if not isinstance(parent, scf.IfOp):
                return False
            block = parent.parent
        return block is self.body

    def _leaf(self, op: tile.Reduce) -> None:
        t, axis = tile_type(op.args[0]), op.axis.value.data
        if op.kind.data != "sum" or bits(t.element) < 32:
            raise NotInParts
        *_, layout = self._cut(op)
        if self._found not in (None, layout):  # one has one axis: rows lie in one layout, too
            raise NotInParts
        if layout.shape[axis] == 1:
            raise NotInParts  # no two threads have parts
        self._found, self.axis = layout, axis
        self.reduces.append(op)

    def _cut(self, op: tile.Reduce) -> tuple[list[int], Layout, list[int], Layout]:
        """The axis as what registers count and what threads do, largest stride first: the shape,
        its layout, which axes of it are registers, and the layout of the sum in parts. Raises
        LayoutError where threads have places that no element has.
        """
        t, axis, layout = tile_type(op.args[0]), op.axis.value.data, layout_of(op.args[0])
        pieces: list[tuple[int, bool]] = []  # an extent, and whether registers count it
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
        parts = prod(n for n, mine in pieces if not mine)
        return shape, cut, gone, left.reshape([*t.extents[:axis], parts, *t.extents[axis + 1 :]])

    def _taken(self, op: Operation, index: int) -> bool:
        """Whether an operand of an operation may be a sum in parts."""
        if op is self.body.last_op:
            return index == self.index
        if isinstance(op, scf.YieldOp):
            return parent_of(op, scf.IfOp).results[index] in self.members
        if op.attributes.get("estimate") is not None:
            return index == 0
        if not op.results or op.results[0] not in self.members:
            return False
        match op:
            case ew.Select():
                return index > 0
            case ew.Elementwise():
                if op.fn.name != "mul":
                    return True
                left, right = op.args
                return index == self.members[op.result] and left is not right
        return False

    def _factors(self) -> list[SSAValue]:
        """What is the same for all parts of a row."""
        ops = [v.owner for v in self.members if isinstance(v.owner, (ew.Select, CLASSES["mul"]))]
        return [
            op.condition if isinstance(op, ew.Select) else op.operands[1 - self.members[op.result]]
            for op in ops
        ]

    # ---- rewriting

    def _type(self, element: Attribute) -> TileType:
        """The type of a sum in parts."""
        return TileType(self.layout.shape, element, self.layout)

    def _row(self, t: TileType) -> tuple[TileType, TileType]:
        """A row's type with an axis of one element for the parts, and without it, in the threads of
        the parts.
        """
        shape = [*t.extents[: self.axis], 1, *t.extents[self.axis :]]
        one = self.layout.operand_of_broadcast(shape)
        row = one.reshape(t.extents)
        return TileType(one.shape, t.element, one), TileType(t.extents, t.element, row)

    def _broadcast(self, value: SSAValue, anchor: Operation) -> SSAValue:
        """One value a row, for all of its parts."""

        make = Builder(anchor)
        if not isinstance(value.type, TileType):
            return make(tile.Splat(value, self._type(value.type)))
        if isinstance(value.owner, tile.Splat):
            return make(tile.Splat(value.owner.arg, self._type(element_of(value.type))))
        if (number := constant(value)) is not None:
            return make(tile.Constant(number, self._type(element_of(value.type))))
        one, row = self._row(value.type)
        if value.type != row:
            value = make(shared.Convert(value, row))
        return make(
            tile.Broadcast(make(tile.Reshape(value, one)), self._type(element_of(value.type)))
        )

    def _first(self, value: SSAValue, anchor: Operation) -> SSAValue:
        """A whole value as parts: all of it in the first."""
        element, make = element_of(value.type), Builder(anchor)
        zero = make(tile.Constant(0, self._type(element)))
        if constant(value) == 0:
            return zero
        index = self.layout.operand_of_broadcast(
            [n if a == self.axis else 1 for a, n in enumerate(self.layout.shape)]
        )
        line = index.reshape([self.count])
        numbers = make(tile.Arange(0, TileType(line.shape, i32, line)))
        ids = make(tile.Reshape(numbers, TileType(index.shape, i32, index)))
        first = make.eq(make(tile.Broadcast(ids, self._type(i32))), make.number(0, self._type(i32)))
        return make(ew.Select(first, self._broadcast(value, anchor), zero))

    def _begins(self, value: SSAValue) -> Walk[bool]:
        """Whether the sum's value before the loop is made of such sums too: it may be the sum of an
        iteration that stands before its loop.
        """
        if constant(value) == 0:
            return True
        op = value.owner
        if not isinstance(op, Operation) or op.parent is not self.loop.parent:
            return False
        match op:
            case tile.Reduce():
                return self._like(op)
            case ew.Elementwise() if op.fn.name in ("add", "sub", "neg"):
                return (yield self._all_begin(op.operands))
            case ew.Elementwise() if op.fn.name == "mul":
                return (yield self._begun_factor(op)) >= 0
            case ew.Select():
                return self._is_in_place(op.condition) and (yield self._all_begin(op.operands[1:]))
        return False

    def _all_begin(self, values: Sequence[SSAValue]) -> Walk[bool]:
        """Whether `_begins` holds of all these operands."""
        for v in values:
            if not (yield self._begins(v)):
                return False
        return True

    def _begun_factor(self, op: Operation) -> Walk[int]:
        """Of a product the operand that begins as a sum, the other being in place; -1 where none
        does.
        """
        for i, v in enumerate(op.operands):
            if (yield self._begins(v)) and self._is_in_place(op.operands[1 - i]):
                return i
        return -1

    def _like(self, op: tile.Reduce) -> bool:
        """Whether a sum's parts have the layout of the loop's."""
        try:
            return op.kind.data == "sum" and self._cut(op)[-1] == self.layout
        except (NotInParts, LayoutError):
            return False

    def _is_in_place(self, value: SSAValue) -> bool:
        """Whether threads that have parts of a row also have its factor, in some register."""
        if not isinstance(value.type, TileType):
            return True
        row = self._row(value.type)[1].register_layout
        return movement(layout_of(value), row) in ("none", "registers")

    def _begun(self, value: SSAValue, anchor: Operation) -> Walk[SSAValue]:
        """That in parts, where it stands."""
        if constant(value) == 0:
            return Builder(anchor).number(0, self._type(element_of(value.type)))
        op = owner_op(value)
        if isinstance(op, tile.Reduce):
            return self._own(op)
        whole = yield self._whole_operand(op)
        operands = []
        for i, v in enumerate(op.operands):
            operands.append(self._broadcast(v, op) if i == whole else (yield self._begun(v, op)))
        new = op.clone()
        new.operands = operands
        retype(new.results[0], self._type(element_of(value.type)))
        return before(op, new).results[0]

    def _whole_operand(self, op: Operation) -> Walk[int]:
        """The operand that is the same for all parts of a row; -1 where there is none."""
        if isinstance(op, ew.Select):
            return 0
        if not isinstance(op, CLASSES["mul"]):
            return -1
        return 1 - (yield self._begun_factor(op))

    def rewrite(self) -> None:
        """Puts the sum in parts in place of the carried one."""
        for reduce in self.reduces:
            self._of_registers(reduce)
        for value in [v for v in self.members if not isinstance(v.owner, tile.Reduce)]:
            if not isinstance(value, BlockArgument):
                self._rewrite_member(value, owner_op(value))
        self._zero(terminator_of(self.body), self.index)
        loop, whole = self.loop, self.argument.type
        start = loop.iter_args[self.index]
        loop.operands[3 + self.index] = (
            without_recursion(self._begun(start, loop))
            if without_recursion(self._begins(start))
            else self._first(start, loop)
        )
        result = loop.results[self.index]
        for value in (self.argument, result):
            retype(value, self._type(element_of(whole)))
        if result.first_use is not None:
            self._reduce_behind(result, whole)

    def _rewrite_member(self, value: SSAValue, op: Operation) -> None:
        """An operation of the loop whose result becomes a sum in parts."""
        if isinstance(op, scf.IfOp):
            for region in op.regions:
                self._zero(terminator_of(region.block), index_of(value))
        else:
            factor = -1
            if isinstance(op, ew.Select):
                factor = 0
            elif isinstance(op, CLASSES["mul"]):
                factor = 1 - self.members[value]
            for i in range(len(op.operands)):
                if i == factor:
                    op.operands[i] = self._broadcast(op.operands[i], op)
                else:
                    self._zero(op, i)
        retype(value, self._type(element_of(value.type)))

    def _reduce_behind(self, result: SSAValue, whole: Attribute) -> None:
        """Joins the parts behind the loop, for all that uses the sum."""
        reduce = after(
            self.loop, tile.Reduce("sum", result, self.axis, [self._without_axis(whole)])
        )
        total: SSAValue = reduce.results[0]
        total.name_hint = result.name_hint
        if isinstance(whole, TileType) and total.type != whole:
            total = after(reduce, shared.Convert(total, whole)).result
        result.replace_uses_with_if(total, lambda use: use.operation is not reduce)

    def _without_axis(self, t: Attribute) -> Attribute:
        """The type of a row as a reduction over its parts gives it."""
        return t.with_layout(self.layout.drop(self.axis)) if isinstance(t, TileType) else t

    def _zero(self, op: Operation, index: int) -> None:
        """Gives an operand that is zero the type of a sum in parts."""
        if constant(v := op.operands[index]) == 0:
            op.operands[index] = Builder(op).number(0, self._type(element_of(v.type)))

    def _own(self, op: tile.Reduce) -> SSAValue:
        """The part that each thread's registers sum to."""
        shape, cut, gone, _ = self._cut(op)
        build, element = Builder(op), element_of(op.args[0].type)
        value = build(tile.Reshape(op.args[0], TileType(shape, element, cut)))
        for a in reversed(gone):
            left = layout_of(value).drop(a)
            value = build(tile.Reduce("sum", value, a, [TileType(left.shape, element, left)]))
        if tile_type(value).extents == self.layout.shape:
            return value
        return build(tile.Reshape(value, self._type(element)))

    def _of_registers(self, op: tile.Reduce) -> None:
        """A sum of the loop, in parts; estimates of it become estimates of every part."""
        value = self._own(op)
        estimates = [
            use.operation
            for use in op.results[0].uses
            if isinstance(use.operation, ew.Elementwise)
            and use.operation.attributes.get("estimate") is not None
        ]
        self.members[value] = 0
        replace(op, [value])
        if estimates:
            self._estimate(estimates)

    def _estimate(self, compares: list[ew.Elementwise]) -> None:
        """Comparisons of a sum, and what is computed from them, are made of all parts.

        Votes are of all parts too; other users of a row's truth value get it where they use it.
        """
        t = compares[0].result.type
        of_parts = self._of_parts(compares)
        for op in [op for op in block_of(compares[0]).ops if op in of_parts]:
            for i, v in enumerate(op.operands):
                if v.owner not in of_parts and v.type != self._type(element_of(v.type)):
                    op.operands[i] = self._broadcast(v, op)
            result = op.results[0]
            uses = list(result.uses)
            retype(result, self._type(element_of(t)))
            for use in uses:
                if use.operation not in of_parts:
                    self._join_truth(result, use.operation, use.index, t)

    def _of_parts(self, compares: list[ew.Elementwise]) -> list[Operation]:
        """Comparisons, and the conjunctions and disjunctions that depend on them."""
        found: list[Operation] = list(compares)
        for op in found:
            for use in op.results[0].uses:
                user = use.operation
                joins = isinstance(user, (CLASSES["and"], CLASSES["or"]))
                if joins and user not in found and user.results[0].type == compares[0].result.type:
                    found.append(user)
        return found

    def _join_truth(self, value: SSAValue, user: Operation, index: int, t: Attribute) -> None:
        """Gives a user of a row's truth value that of all parts."""
        if isinstance(user, Vote):
            return
        if isinstance(user, scf.IfOp):
            user.operands[0] = before(user, Vote(value)).result
            return
        build = Builder(user)
        row = build(tile.Reduce("all", value, self.axis, [self._without_axis(t)]))
        if isinstance(t, TileType) and row.type != t:
            row = build(shared.Convert(row, t))
        user.operands[index] = row
