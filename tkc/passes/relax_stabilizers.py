"""relax-stabilizers: a running maximum that only keeps powers small is brought up to date where
they would grow large, not in every iteration.

    for …:
      s = …
      new = max(top, max(s))
      p, f = exp2(s - new), exp2(top - new)
      total = total·f + sum(p)
      acc = acc·f + p·v
      top = new
  becomes
    for …:
      s = …
      p = exp2(s - top)                                 with the old maximum
      z = sum(p)
      ok = z <= 2¹⁶
      q, top, total, t = if vote ok: p, top, total + z, acc
        else:                                           what the iteration did before,
          new = where(ok, top, max(top, max(s)))        for rows that are not ok
          p, f = exp2(s - new), exp2(top - new)
          p, new, total·f + sum(p), acc·f
      acc = t + q·v

`stabilizers.prove` shows that what leaves the kernel is the same for every finite maximum (there is
the algebra). Then a maximum need not be the largest score so far; it must only keep every power,
and so every sum, inside the range of float32. The sum of a row's powers says so: it bounds each of
them, and it is infinite or NaN where the old maximum is −inf (nothing seen yet), or a score is
infinite or NaN: those rows take the exact path, as do all rows of a loop's first iteration. Where a
row is not ok its maximum becomes the true one. Powers never get smaller than with the true maximum,
which is no less than the old one, so nothing underflows that did not before; a sum of n iterations
is at most n · 2¹⁶, and a product p·v is 2¹⁶ times what it was, which float32 holds for |v| < 2¹¹¹.
Where powers are cast to float16 or float8 the bound is what these hold, and sums held in them stay
exact.

A row that has seen nothing yet has no maximum to start from, and any finite one would do. Where a
loop begins at its program's own place (a window), its first block is one that some rows do not see,
and the second iteration would take the exact path for them. So there the guess is 0, and stays if
the sum of the row's powers is not too small either:

    top, seen = where(top == -inf, 0, top), top > -inf     before the loop, which carries both
    p = exp2(s - top)
    ok = z <= 2¹⁶ and (z >= 2⁻¹⁶ or seen)

The branch yields seen = true; its other side top and seen as above, of the maximum that the exact
path finds from where(seen, top, -inf). Whatever else the row carries is then 0, or made of powers
relative to the maximum that came in (`_begins_with_zeros`), so the guess fits it; and what else
reads the maximum is only what the branch decides on (`_only_branch_reads`). Loops that begin where
all programs do are without the guess: they would execute its instructions for nothing.

Saved are, in every iteration, the search for the maximum, its exchange across threads, and the
multiplications by f. Rows vote (`tile.vote`): warps that have only rows that are ok go on, the
others take the branch. In it, rows that are ok keep their maximum and so their values, to the last
bit, and it does not matter how many threads vote together.

`relax = False` leaves a kernel as it is. So does a use that the proof does not cover; `.decisions`
has the reason. This is a fact of real numbers (REAL).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import Builder, before, defining_slice, rebuild_for, rebuild_if, stamp
from tkc.ir.text import location_of
from tkc.ir.threads import Vote
from tkc.ir.types import TileType, element_of
from tkc.ir.values import (
    block_of,
    index_of,
    made_of,
    operations_in,
    owner_op,
    reached,
    terminator_of,
    tile_type,
    yielded_by,
)
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.stabilizers import (
    Form,
    Forms,
    Unproved,
    depends,
    guarded,
    is_running_maximum,
    prove,
)
from tkc.passes.analysis.values import VIEWS
from tkc.passes.simplify import sweep

REAL = True  # another maximum rounds otherwise
# The largest sum of powers of a row, by the narrowest type that powers are cast to.
MAX_SUM = {"f16": 2.0**15, "f8E5M2": 2.0**15, "f8E4M3FN": 2.0**8}
MAX_SUM_OF_FLOAT32 = 2.0**16
# The least sum of a row's first powers that keeps the bits of narrow types.
MIN_SUM = {"f16": 1.0, "f8E5M2": 1.0, "f8E4M3FN": inf}
MIN_SUM_OF_FLOAT32 = 2.0**-16
ZERO, ONE = 0.0, 1.0
POWERS = (CLASSES["exp2"], CLASSES["exp"])


def run(module: ModuleOp, context: PassContext) -> None:
    """Relaxes every running maximum that the proof covers, where the plan says so."""
    if context.plan is None or not context.plan.relax:
        return
    for kernel in tile.kernels_of(module):
        for loop in operations_in(kernel, scf.ForOp):
            _relax_loop(loop, context)
        while sweep(kernel):
            pass


def _relax_loop(loop: scf.ForOp, context: PassContext) -> None:
    for argument in loop.body.block.args[1:]:
        maximum = is_running_maximum(loop, argument)
        if maximum is None:
            continue
        name, place = f"%{argument.name_hint or 'maximum'}", location_of(maximum)
        try:
            relaxation = Relaxation(loop, argument, maximum)
            relaxation.run()
        except Unproved as reason:
            what = f"stays exact: {reason}"
        else:
            loop = relaxation.loop
            what = (
                "only keeps powers small: a new one where a row's sum exceeds"
                f" {relaxation.max_sum:.0f}"
            )
        where = f" ({place})" if place else ""
        context.decisions.append(f"relax-stabilizers: the running maximum {name} {what}{where}")


class Relaxation:
    """The relaxation of one running maximum. Raises Unproved where that cannot be proved."""

    def __init__(self, loop: scf.ForOp, argument: BlockArgument, maximum: ew.Binary):
        self.loop, self.body, self.old, self.maximum = loop, loop.body.block, argument, maximum
        self.forms: Forms = prove(loop)
        self.old_forms: dict[SSAValue, Form] = {maximum.result: self.forms.of[argument]}
        reached = _reached(self.body, {maximum.result})
        # what dots make of it stays outside the branch
        of_dots = _reached(self.body, {op.result for op in reached if isinstance(op, tile.Dot)})
        self.late = [op for op in reached if isinstance(op, tile.Dot) or op in of_dots]
        self.inner = [op for op in reached if op not in self.late]
        self.powers = self._powers()
        element = element_of(maximum.result.type)
        if str(element) not in ("f32", "f64"):
            raise Unproved(f"it is a {element}")
        for value in self.forms.of:
            self._check_width(value)
        types = ["f32", *(str(element_of(op.result.type)) for op in self._casts())]
        self.max_sum = min(MAX_SUM.get(t, MAX_SUM_OF_FLOAT32) for t in types)
        self.min_sum = max(MIN_SUM.get(t, MIN_SUM_OF_FLOAT32) for t in types)
        self.search = self._search()
        self.shared = {op for op in self.body.ops if self._is_shared(op)}

    def _casts(self) -> list[ew.Cast]:
        return [op for op in self.inner if isinstance(op, ew.Cast)]

    def _powers(self) -> Sequence[Operation]:
        """The exponentials that depend on the new maximum. Raises Unproved where there are none, or
        one is in a branch.
        """
        powers = [
            inner
            for op in self.inner
            for inner in operations_in(op, POWERS)
            if self._is_power(inner)
        ]
        if any(op.parent is not self.body for op in powers):
            raise Unproved("a branch in the loop makes powers of it")
        if not powers:
            raise Unproved("no exponentials depend on it")
        return powers

    def _is_shared(self, op: Operation) -> bool:
        """Whether an operation is a product that only the branch and the search for the maximum
        read.
        """
        if not isinstance(op, CLASSES["mul"]) or op in self.search:
            return False
        return all(
            use.operation in self.inner or use.operation in self.search for use in op.result.uses
        )

    def _is_power(self, op: Operation) -> bool:
        form = self.forms.of.get(op.results[0])
        return form is not None and form.has(self.maximum.result) and not form.pure

    def _check_width(self, value: SSAValue) -> None:
        """A narrow type holds less: then only powers themselves, which their row's sum bounds, may
        be cast to it. Raises Unproved for others.
        """
        t, op = str(element_of(value.type)), value.owner
        if t not in MAX_SUM or self.forms.of[value].kind != "mul":
            return
        if isinstance(op, (Block, scf.ForOp, scf.IfOp, tile.Slice, *VIEWS)):
            return
        if not isinstance(op, ew.Cast) or not _is_power_or_zero(op.arg):
            raise Unproved(f"sums of its powers are held as {t}")

    def _search(self) -> set[Operation]:
        """What only the new maximum is computed from."""
        found: set[Operation] = {self.maximum}
        for op in reversed(list(self.body.ops)):
            if (
                op is not self.maximum
                and isinstance(op, (ew.Elementwise, ew.Select, ew.Cast, tile.Reduce, *VIEWS))
                and all(use.operation in found for r in op.results for use in r.uses)
            ):
                found.add(op)
        return found

    # ---- rows that have seen nothing
    def _guesses(self) -> bool:
        """Whether rows that have seen nothing may be many after an iteration, and 0 can be used as
        their maximum.
        """
        return (
            self.min_sum < inf
            and bool(program_axes([self.loop.lb]))
            and self._masks_by_rows()
            and self._begins_with_zeros()
            and self._only_branch_reads()
        )

    def _masks_by_rows(self) -> bool:
        """Whether a mask tells apart what has a maximum of its own: the same one of the scores
        whose maximum is searched and of those whose powers say that something has been seen.
        """
        power = self.powers[0].results[0]
        rank = power.type.rank if isinstance(power.type, TileType) else 0
        axes = [i for i in range(rank) if self.forms.of[power].varies(i)]
        masks = [
            op
            for op in self._makers(self.maximum)
            if isinstance(op, ew.Select)
            and -inf in map(constant, (op.if_true, op.if_false))
            and any(_differs(op.condition, i) for i in axes)
        ]
        return all(any(op in masks for op in self._makers(power)) for power in self.powers)

    def _makers(self, of: Operation) -> set[Operation]:
        """What an operation's operands are made of in an iteration, the new maximum apart."""

        def is_made(v: SSAValue) -> bool:
            op = v.owner
            return isinstance(op, Operation) and op.parent is self.body and op is not self.maximum

        values = reached(of.operands, lambda v: made_of(v) if is_made(v) else ())
        return {op for v in values if is_made(v) for op in owner_op(v).walk()}

    def _begins_with_zeros(self) -> bool:
        """Whether all that is relative to the maximum is 0 where the maximum is none when the loop
        begins.
        """
        first = self.loop.iter_args[self.old.index - 1]
        for argument, value in zip(self.body.args[1:], self.loop.iter_args, strict=True):
            form = self.forms.of.get(argument)
            if argument is self.old or form is None or not form.has(self.old):
                continue
            if form.kind != "mul" or not _is_zero(value, first):
                return False
        return True

    def _only_branch_reads(self) -> bool:
        """Whether only what the branch decides on reads the old maximum: other operations do not
        know that it is a guess.
        """
        return all(
            use.operation is self.maximum
            or (use.operation in self.inner and use.operation.parent is self.body)
            for use in self.old.uses
        )

    # ---- rewriting
    def run(self) -> None:
        """Rewrites the loop; `self.loop` is it from then on."""
        seen = self._guess() if self._guesses() else None
        end = terminator_of(self.body)
        for op in self.late:  # behind the branch, in their order
            op.detach()
            before(end, op)
        anchor = self.late[0] if self.late else end
        outer = {*self.late, end}
        results = self._results(outer)
        fast = Copier(self, anchor, {self.maximum.result: self.old})
        for op in self.body.ops:
            if op in self.shared or op in self.inner:
                fast.fast(op)
        ok = self._are_small(fast, seen, anchor)
        kept = [fast.get(v) for v in results]
        is_tile = isinstance(self.old.type, TileType)
        condition = before(anchor, Vote(ok)).result if is_tile else ok
        yes, no = Block(), Block()
        branch = before(
            anchor, scf.IfOp(condition, [v.type for v in results], Region(yes), Region(no))
        )
        yes.add_op(stamp(scf.YieldOp(*kept), branch))
        self._exact_path(no, branch, anchor, results, ok, seen)
        for value, result in zip(results, branch.results, strict=True):
            result.name_hint = value.name_hint
            value.replace_uses_with_if(result, lambda use: use.operation in outer)
        if seen is not None:
            self._see(branch, results.index(self.maximum.result))

    def _results(self, outer: set[Operation]) -> list[SSAValue]:
        """What some operations read of what the branch computes."""
        return [
            r
            for op in self.body.ops
            if op in self.inner or op is self.maximum
            for r in op.results
            if any(use.operation in outer for use in r.uses)
        ]

    def _are_small(self, fast: Copier, seen: SSAValue | None, anchor: Operation) -> SSAValue:
        """Whether the powers relative to the old maximum are small enough, for each row."""
        build, found = Builder(anchor), list[SSAValue]()
        for power in self.powers:
            z = self._sum(power, fast)
            fits = self._compared("le", z, self.max_sum, anchor)
            if seen is not None:
                large = self._compared("ge", z, self.min_sum, anchor)
                fits = build.and_(fits, build.or_(large, seen))
            found = [build.and_(found[0], fits) if found else fits]
        return found[0]

    def _exact_path(
        self,
        block: Block,
        branch: scf.IfOp,
        anchor: Operation,
        results: list[SSAValue],
        ok: SSAValue,
        seen: SSAValue | None,
    ) -> None:
        """What the iteration did before, with another maximum for rows that are not ok."""
        end = stamp(scf.YieldOp(), branch)
        block.add_op(end)
        mapping: dict[SSAValue, SSAValue | float] = {}
        if seen is not None:
            mapping[self.old] = self._unless(seen, self.old, -inf, end)
        slow = Copier(self, end, mapping)
        for op in self.body.ops:
            if op is anchor:
                break
            if op in self.search or op in self.shared or op in self.inner:
                slow.copy(op)
            if op is self.maximum:
                new = slow.get(op.results[0])
                slow.mapping[op.results[0]] = before(end, ew.Select(ok, self.old, new)).result
        end.operands = [slow.get(v) for v in results]

    def _guess(self) -> SSAValue:
        """The loop with a maximum that is 0 where nothing has been seen, and, carried with it,
        where something has.
        """
        loop, index = self.loop, self.old.index - 1
        start = loop.iter_args[index]
        seen = self._is_some(start, loop)
        seen.name_hint = "seen"
        loop.operands[3 + index] = self._unless(seen, start, 0.0, loop)
        self.loop = loop = rebuild_for(loop, range(len(loop.iter_args)), [seen])
        largest, anchor = loop.results[index], loop.next_op
        if largest.first_use is not None:
            assert anchor is not None
            true = self._unless(loop.results[-1], largest, -inf, anchor)
            largest.replace_uses_with_if(true, lambda use: use.operation is not true.owner)
        return self.body.args[-1]

    def _see(self, branch: scf.IfOp, index: int) -> None:
        """Rows that are ok have seen something; of others their maximum says so."""
        end = terminator_of(branch.false_region.block)
        new = end.operands[index]
        some = self._is_some(new, end)
        end.operands[index] = self._unless(some, new, 0.0, end)
        true_end = terminator_of(branch.true_region.block)
        yes = before(true_end, tile.Constant(1, some.type)).result
        branch = rebuild_if(branch, range(len(branch.results)), [(yes, some)])
        branch.results[-1].name_hint = "seen"
        body_end = terminator_of(self.body)
        body_end.operands = [*body_end.operands, branch.results[-1]]

    def _is_some(self, maximum: SSAValue, anchor: Operation) -> SSAValue:
        """Whether a maximum is not −inf."""
        build = Builder(anchor)
        return build.ne(maximum, build(tile.Constant(-inf, maximum.type)))

    def _unless(
        self, seen: SSAValue, value: SSAValue, number: float, anchor: Operation
    ) -> SSAValue:
        """The value, or a number where nothing has been seen."""
        build = Builder(anchor)
        return build.select(seen, value, build(tile.Constant(number, value.type)))

    def _compared(self, how: str, sums: SSAValue, bound: float, anchor: Operation) -> SSAValue:
        """A comparison of sums; where they are in parts, all of those may be compared instead."""
        limit = before(anchor, tile.Constant(bound, sums.type)).result
        compare = before(anchor, CLASSES[how](sums, limit))
        compare.attributes["estimate"] = UnitAttr()
        return compare.results[0]

    def _sum(self, power: Operation, fast: Copier) -> SSAValue:
        """For each maximum something no less than any of the powers, which is infinite or NaN if
        one of them is: a sum that is there, or the largest.
        """
        t = self.old.type
        found = self._existing_sum(power.results[0])
        if found is not None:
            return fast.get(found)
        value, form = fast.get(power.results[0]), self.forms.of[power.results[0]]
        for axis in reversed(range(tile_type(value).rank)):
            if not form.varies(axis):
                value = before(fast.anchor, tile.Reduce("max", value, axis)).results[0]
        return value if value.type == t else before(fast.anchor, tile.Reshape(value, t)).result

    def _existing_sum(self, value: SSAValue) -> SSAValue | None:
        """A sum of powers, for each maximum, that the loop computes anyway: also of powers that
        were cast to a narrow type, which holds more than `max_sum` and makes no less of what it
        cannot hold.
        """
        while _extents(value) != _extents(self.old):
            users = [use.operation for use in value.uses if use.operation in self.inner]
            sums = (op for op in users if isinstance(op, tile.Reduce) and op.kind.data == "sum")
            views = (op for op in users if isinstance(op, (tile.Reshape, ew.Cast)))
            following = next(chain(sums, views), None)
            if following is None:
                return None
            value = following.results[0]
        return value


def _extents(value: SSAValue) -> tuple[int, ...]:
    return value.type.extents if isinstance(value.type, TileType) else ()


def _reached(body: Block, start: set[SSAValue]) -> list[Operation]:
    """The operations of a block that some values reach."""
    values, found = set(start), []
    for op in body.ops:
        if op is not body.last_op and depends(op, values):
            found.append(op)
            values.update(op.results)
    return found


def _is_zero(value: SSAValue, maximum: SSAValue) -> bool:
    """Whether a value is 0 where a maximum is none: it is 0, or made of powers relative to that."""
    if constant(value) == 0:
        return True
    a, b = value.owner, maximum.owner
    if isinstance(a, Block) or isinstance(b, Block):
        return False

    def are_zero(*values: SSAValue) -> list[bool]:
        return [_is_zero(v, maximum) for v in values]

    match a:
        case scf.ForOp() | scf.IfOp():
            return a is b and _are_zero_together(a, index_of(value), index_of(maximum))
        case ew.Elementwise():
            match a.fn.name:
                case "exp2" | "exp":
                    return constant(maximum) is None and b in defining_slice(
                        a.operands, block_of(a)
                    )
                case "mul":
                    return any(are_zero(*a.operands))
                case "add" | "sub":
                    return all(are_zero(*a.operands))
            return False
        case ew.Select():
            return all(are_zero(a.if_true, a.if_false))
        case tile.Dot():
            return any(are_zero(a.a, a.b)) and _is_zero(a.acc, maximum)
    return isinstance(a, (tile.Reduce, ew.Cast, *VIEWS)) and _is_zero(a.operands[0], maximum)


def _are_zero_together(op: scf.ForOp | scf.IfOp, value: int, maximum: int) -> bool:
    """`_is_zero` of two results of a loop or a branch."""
    if isinstance(op, scf.ForOp):
        return _is_zero(op.iter_args[value], op.iter_args[maximum])
    ends = [yielded_by(region.block) for region in op.regions]
    return all(_is_zero(end[value], end[maximum]) for end in ends)


def _is_power_or_zero(value: SSAValue) -> bool:
    """Whether elements of a tile are powers, or zeros where a mask says so."""
    match value.owner:
        case ew.Select() as op:
            return all(constant(v) == 0 or _is_power_or_zero(v) for v in op.operands[1:])
        case scf.IfOp() as op:
            ends = [yielded_by(region.block) for region in op.regions]
            return all(_is_power_or_zero(end[index_of(value)]) for end in ends)
    return isinstance(value.owner, POWERS)


def _differs(value: SSAValue, axis: int) -> bool:
    """Whether a truth value may differ along an axis."""
    if not isinstance(value.type, TileType) or value.type.extents[axis] == 1:
        return False
    match value.owner:
        case tile.Broadcast() as op:
            return _differs(op.arg, axis)
        case tile.Splat():
            return False
        case ew.Elementwise() as op:
            return any(_differs(v, axis) for v in op.operands)
    return constant(value) is None


class Copier:
    """Copies of operations before an anchor; numbers that are known stay numbers as long as they
    can.
    """

    def __init__(
        self, relaxation: Relaxation, anchor: Operation, mapping: dict[SSAValue, SSAValue | float]
    ):
        self.of, self.anchor, self.mapping = relaxation, anchor, mapping

    def get(self, value: SSAValue) -> SSAValue:
        """What a value is here."""
        found = self.mapping.get(value, value)
        if isinstance(found, float):
            found = before(self.anchor, tile.Constant(found, value.type)).result
            self.mapping[value] = found
        return found

    def copy(self, op: Operation) -> None:
        """An operation as it is, of what its operands are here."""
        operands = [v for inner in op.walk() for v in inner.operands if v in self.mapping]
        new = before(self.anchor, op.clone({v: self.get(v) for v in operands}))
        self.mapping |= dict(zip(op.results, new.results, strict=True))

    def fast(self, op: Operation) -> None:
        """With the maximum as it was: m − m is 0, its power 1, and what was to shrink by that
        stays.
        """
        if len(op.results) != 1:
            return self.copy(op)
        value = op.results[0]
        form = self.of.forms.of.get(value)
        if form is not None and form.pure and not form.put(self.of.old_forms).degree:
            self.mapping[value] = ZERO if form.kind == "add" else ONE
            return
        if (source := guarded(op)) is not None and source in self.mapping:
            self.mapping[value] = self.mapping[source]
            return
        if isinstance(op, CLASSES["mul"]):
            for one, other in (op.operands, op.operands[::-1]):
                if self.mapping.get(one) is ONE:
                    self.mapping[value] = self.mapping.get(other, other)
                    return
        self.copy(op)
