"""relax-stabilizers: a running maximum that only keeps powers small is brought up to date where
they would grow large, not in every iteration.

    for …:                                            for …:
      s = …                                             s = …
      new = max(top, max(s))                            p = exp2(s - top);  z = sum(p)                   with the old maximum
      p, f = exp2(s - new), exp2(top - new)             ok = z <= 2¹⁶
      total = total·f + sum(p)                          q, top, total, t = if vote ok: p, top, total + z, acc
      acc = acc·f + p·v                        ->         else:                                          what the iteration did before, for rows
      top = new                                             new = where(ok, top, max(top, max(s)))       that are not ok
                                                            p, f = exp2(s - new), exp2(top - new)
                                                            p, new, total·f + sum(p), acc·f
                                                        acc = t + q·v

`stabilizers.prove` shows that what leaves the kernel is the same for every finite maximum (there is
the algebra). Then a maximum need not be the largest score so far; it must only keep every power,
and so every sum, inside the range of float32. The sum of a row's powers says so: it bounds each of
them, and it is infinite or NaN where the old maximum is −inf (nothing seen yet), or a score is
infinite or NaN: those rows take the exact way, as do all rows of a loop's first iteration. Where a
row is not ok its maximum becomes the true one. Powers never get smaller than with the true maximum,
which is no less than the old one, so nothing underflows that did not before; a sum of n iterations
is at most n · 2¹⁶, and a product p·v is 2¹⁶ times what it was, which float32 holds for |v| < 2¹¹¹.
Where powers are cast to float16 or float8 the bound is what these hold, and sums held in them stay
exact.

A row that has seen nothing yet has no maximum to go by, and any finite one would do. Where a loop
begins where its program stands (a window), its first block is one that some rows do not see, and
the second iteration would take the exact way for them. So there the guess is 0, and stays if what
the row's parts sum to is not too small either:

    top, seen = where(top == -inf, 0, top), top > -inf                    before the loop, which carries both
    p = exp2(s - top);  ok = z <= 2¹⁶ and (z >= 2⁻¹⁶ or seen)             the branch yields seen = true; else top and seen as above, of what the exact way finds from where(seen, top, -inf)

Whatever else the row carries is then 0, or made of powers relative to the maximum that came in
(`_begins`), so the guess fits it; and what else reads the maximum is only what the branch decides
on (`_beside`). (On an H200 a window of 1024 at 16384 takes 2 % fewer clocks so. Other loops would
have three instructions of some 215 for nothing.)

Saved are, in every iteration, the search for the maximum, its journey across threads, and the
multiplications by f. Rows vote (`tile.vote`): whoever has only rows that are ok goes on, the others
take the branch. In it, rows that are ok keep their maximum and so their values, to the last bit,
and it does not matter how many threads vote together.

`relax = False` leaves a kernel as it is. So does a use that the proof does not cover; `.decisions`
has the reason. This is a fact of real numbers (REAL).
"""

from __future__ import annotations

from math import inf

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import before, defining_slice, rebuild_for, rebuild_if, stamp
from tkc.ir.text import location_of
from tkc.ir.threads import Vote
from tkc.ir.types import TileType, element_of
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.stabilizers import Forms, Unproved, guarded, is_running_maximum, prove
from tkc.passes.analysis.values import VIEWS
from tkc.passes.simplify import sweep

REAL = True  # another maximum rounds otherwise
LARGEST = {
    "f16": 2.0**15,
    "f8E5M2": 2.0**15,
    "f8E4M3FN": 2.0**8,
}  # sums whose terms these types hold; others as float32
LIMIT = 2.0**16
LEAST = {
    "f16": 1.0,
    "f8E5M2": 1.0,
    "f8E4M3FN": inf,
}  # a sum of first powers that keeps the bits of narrow types; others 2⁻¹⁶
ZERO, ONE = 0.0, 1.0


def run(module: ModuleOp, context: PassContext) -> None:
    if context.plan is None or not context.plan.relax:
        return
    for kernel in module.body.block.ops:
        for loop in [op for op in kernel.walk() if isinstance(op, scf.ForOp)]:
            for argument in loop.body.block.args[1:]:
                maximum = is_running_maximum(loop, argument)
                if maximum is None:
                    continue
                name, place = f"%{argument.name_hint or 'maximum'}", location_of(maximum)
                where = f" ({place})" if place else ""
                try:
                    limit, loop = (found := Relaxation(loop, argument, maximum)).run(), found.loop
                except Unproved as reason:
                    context.decisions.append(
                        f"relax-stabilizers: the running maximum {name} stays exact:"
                        f" {reason}{where}"
                    )
                else:
                    context.decisions.append(
                        f"relax-stabilizers: the running maximum {name} only keeps powers small: a"
                        f" new one where a row's sum exceeds {limit:.0f}{where}"
                    )
        while sweep(kernel):
            pass


class Relaxation:
    """Of one running maximum."""

    def __init__(self, loop: scf.ForOp, argument: SSAValue, maximum: ew.Binary):
        self.loop, self.body, self.old, self.maximum = loop, loop.body.block, argument, maximum
        self.forms: Forms = prove(loop)
        self.names = {maximum.result: self.forms.of[argument]}
        ops = _reached(self.body, {maximum.result})
        self.late = _reached(
            self.body, {op.result for op in ops if isinstance(op, tile.Dot)}
        )  # what dots make of it stays outside the branch
        self.late = [op for op in ops if isinstance(op, tile.Dot) or op in self.late]
        self.inner = [op for op in ops if op not in self.late]
        powers = [
            inner
            for op in self.inner
            for inner in op.walk()
            if isinstance(inner, (CLASSES["exp2"], CLASSES["exp"])) and self._is_power(inner)
        ]
        self.powers = [op for op in powers if op.parent is self.body]
        if powers != self.powers:
            raise Unproved("a branch in the loop makes powers of it")
        if not self.powers:
            raise Unproved("no exponentials depend on it")
        if str(element_of(maximum.result.type)) not in ("f32", "f64"):
            raise Unproved(f"it is a {element_of(maximum.result.type)}")
        for value in self.forms.of:
            self._fits(value)
        narrow = [str(element_of(op.result.type)) for op in self.inner if isinstance(op, ew.Cast)]
        self.limit = min([LIMIT, *(LARGEST.get(t, LIMIT) for t in narrow)])
        self.least = max([1 / LIMIT, *(LEAST.get(t, 1 / LIMIT) for t in narrow)])
        self.search, self.shared = self._search(), set()
        self.shared = {
            op
            for op in self.body.ops
            if isinstance(op, CLASSES["mul"])
            and op.result not in self.forms.of
            and op not in self.search
            and all(
                use.operation in self.inner or use.operation in self.search
                for use in op.result.uses
            )
        }

    def _is_power(self, op: Operation) -> bool:
        form = self.forms.of.get(op.result)
        return form is not None and form.has(self.maximum.result) and not form.pure

    def _fits(self, value: SSAValue) -> None:
        """A narrow type holds less: then only powers themselves, which their row's sum bounds, may
        be cast to it.
        """
        t, op = str(element_of(value.type)), value.owner
        if (
            t not in LARGEST
            or self.forms.of[value].kind != "mul"
            or isinstance(op, (Block, scf.ForOp, scf.IfOp, tile.Slice, *VIEWS))
        ):
            return
        if not isinstance(op, ew.Cast) or not _single(op.arg):
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
        """Whether rows that have seen nothing may be many after an iteration, and 0 can stand for
        their maximum.
        """
        return (
            self.least < inf
            and bool(program_axes([self.loop.lb]))
            and self._by_rows()
            and self._begins()
            and self._beside()
        )

    def _by_rows(self) -> bool:
        """Whether a mask tells apart what has a maximum of its own: the same one of the scores
        whose maximum is looked for and of those whose powers say that something has been seen.
        """
        form = self.forms.of[self.powers[0].result]
        axes = [i for i in range(getattr(self.powers[0].result.type, "rank", 0)) if form.varies(i)]
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
        found, work = set(), list(of.operands)
        while work:
            op = work.pop().owner
            if (
                isinstance(op, Operation)
                and op.parent is self.body
                and op is not self.maximum
                and op not in found
            ):
                found |= set(inner := list(op.walk()))
                work += [v for o in inner for v in o.operands]
        return found

    def _begins(self) -> bool:
        """Whether all that is relative to the maximum is 0 where the maximum is none when the loop
        begins.
        """
        first = self.loop.iter_args[self.old.index - 1]
        related = [
            (form, value)
            for argument, value in zip(self.body.args[1:], self.loop.iter_args, strict=False)
            if argument is not self.old
            and (form := self.forms.of.get(argument)) is not None
            and form.has(self.old)
        ]
        return all(form.kind == "mul" and _nothing(value, first) for form, value in related)

    def _beside(self) -> bool:
        """Whether only what the branch decides on reads the old maximum: what else does is not told
        that it is a guess.
        """
        return all(
            use.operation is self.maximum
            or use.operation in self.inner
            and use.operation.parent is self.body
            for use in self.old.uses
        )

    # ---- rewriting
    def run(self) -> float:
        seen = self._guess() if self._guesses() else None
        for op in self.late:  # behind the branch, in their order
            op.detach()
            before(self.body.last_op, op)
        anchor = self.late[0] if self.late else self.body.last_op
        outer = {*self.late, self.body.last_op}
        leaving = [
            r
            for op in self.body.ops
            if op in self.inner or op is self.maximum
            for r in op.results
            if any(use.operation in outer for use in r.uses)
        ]
        t = self.old.type
        fast = Copier(self, anchor, {self.maximum.result: self.old})
        for op in self.body.ops:
            if op in self.shared or op in self.inner:
                fast.fast(op)
        ok: SSAValue | None = None
        for power in self.powers:
            z = self._sum(power, fast)
            fits = self._asked("le", z, self.limit, anchor)
            if seen is not None:
                fits = before(
                    anchor,
                    CLASSES["and"](
                        fits,
                        before(
                            anchor, CLASSES["or"](self._asked("ge", z, self.least, anchor), seen)
                        ).result,
                    ),
                ).result
            ok = fits if ok is None else before(anchor, CLASSES["and"](ok, fits)).result
        kept = [fast.get(v) for v in leaving]
        vote = before(anchor, Vote(ok)).result if isinstance(t, TileType) else ok
        yes, no = Block(), Block()
        branch = before(anchor, scf.IfOp(vote, [v.type for v in leaving], Region(yes), Region(no)))
        yes.add_op(stamp(scf.YieldOp(*kept), branch))
        end = stamp(scf.YieldOp(), branch)
        no.add_op(end)
        slow = Copier(
            self, end, {} if seen is None else {self.old: self._unless(seen, self.old, -inf, end)}
        )
        for op in self.body.ops:
            if op is anchor:
                break
            if op in self.search or op in self.shared or op in self.inner:
                slow.copy(op)
            if op is self.maximum:
                slow.mapping[op.result] = before(
                    end, ew.Select(ok, self.old, slow.mapping[op.result])
                ).result
        end.operands = [slow.get(v) for v in leaving]
        for value, result in zip(leaving, branch.results, strict=False):
            result.name_hint = value.name_hint
            value.replace_uses_with_if(result, lambda use: use.operation in outer)
        if seen is not None:
            self._see(branch, leaving.index(self.maximum.result))
        return self.limit

    def _guess(self) -> SSAValue:
        """The loop with a maximum that is 0 where nothing has been seen, and, carried beside it,
        where something has.
        """
        loop, index = self.loop, self.old.index - 1
        start, t = loop.iter_args[index], self.old.type
        seen = before(
            loop, CLASSES["ne"](start, before(loop, tile.Constant(-inf, t)).result)
        ).result
        seen.name_hint = "seen"
        loop.operands[3 + index] = self._unless(seen, start, 0.0, loop)
        self.loop = loop = rebuild_for(loop, range(len(loop.iter_args)), [seen])
        largest, anchor = loop.results[index], loop.next_op
        if largest.first_use is not None:
            true = self._unless(loop.results[-1], largest, -inf, anchor)
            largest.replace_uses_with_if(true, lambda use: use.operation is not true.owner)
        return self.body.args[-1]

    def _see(self, branch: scf.IfOp, index: int) -> None:
        """Rows that are ok have seen something; of others their maximum says so."""
        end = branch.false_region.block.last_op
        new = end.operands[index]
        some = before(
            end, CLASSES["ne"](new, before(end, tile.Constant(-inf, new.type)).result)
        ).result
        end.operands[index] = self._unless(some, new, 0.0, end)
        yes = before(branch.true_region.block.last_op, tile.Constant(1, some.type)).result
        branch = rebuild_if(branch, range(len(branch.results)), [(yes, some)])
        branch.results[-1].name_hint = "seen"
        self.body.last_op.operands = [*self.body.last_op.operands, branch.results[-1]]

    def _unless(
        self, seen: SSAValue, value: SSAValue, number: float, anchor: Operation
    ) -> SSAValue:
        """The value, or a number where nothing has been seen."""
        return before(
            anchor, ew.Select(seen, value, before(anchor, tile.Constant(number, value.type)).result)
        ).result

    def _asked(self, how: str, sums: SSAValue, bound: float, anchor: Operation) -> SSAValue:
        """A question about sums; where they are in parts, all of them may be asked instead."""
        compare = before(
            anchor, CLASSES[how](sums, before(anchor, tile.Constant(bound, sums.type)).result)
        )
        compare.attributes["estimate"] = UnitAttr()
        return compare.result

    def _sum(self, power: Operation, fast: Copier) -> SSAValue:
        """For each maximum something no less than any of the powers, which is infinite or NaN if
        one of them is: a sum that is there, or the largest.
        """
        t, value = self.old.type, power.result
        extents = t.extents if isinstance(t, TileType) else ()
        while True:
            v = value.type
            if (v.extents if isinstance(v, TileType) else ()) == extents:
                return fast.get(value)
            sums = [
                use.operation
                for use in value.uses
                if isinstance(use.operation, tile.Reduce)
                and use.operation.kind.data == "sum"
                and use.operation in self.inner
            ]
            views = [
                use.operation
                for use in value.uses
                if isinstance(use.operation, tile.Reshape) and use.operation in self.inner
            ]
            if not (follow := sums or views):
                break
            value = follow[0].results[0]
        value, form = fast.get(power.result), self.forms.of[power.result]
        for axis in reversed([i for i in range(value.type.rank) if not form.varies(i)]):
            value = before(fast.anchor, tile.Reduce("max", value, axis)).results[0]
        return value if value.type == t else before(fast.anchor, tile.Reshape(value, t)).result


def _reached(body: Block, start: set[SSAValue]) -> list[Operation]:
    """The operations of a block that some values reach."""
    values, found = set(start), []
    for op in body.ops:
        if op is not body.last_op and any(
            v in values for inner in op.walk() for v in inner.operands
        ):
            found.append(op)
            values.update(op.results)
    return found


def _nothing(value: SSAValue, maximum: SSAValue) -> bool:
    """Whether a value is 0 where a maximum is none: it is 0, or made of powers relative to that."""
    a, b = value.owner, maximum.owner
    if constant(value) == 0:
        return True
    if not isinstance(a, Operation) or not isinstance(b, Operation):
        return False

    def each(*values):
        return [_nothing(v, maximum) for v in values]

    match a:
        case scf.ForOp():
            return a is b and _nothing(a.iter_args[value.index], a.iter_args[maximum.index])
        case scf.IfOp():
            return a is b and all(
                _nothing(end.operands[value.index], end.operands[maximum.index])
                for end in (region.block.last_op for region in a.regions)
            )
        case ew.Elementwise() if a.fn.name in ("exp2", "exp"):
            return constant(maximum) is None and b in defining_slice(a.operands, a.parent)
        case ew.Elementwise() if a.fn.name == "mul":
            return any(each(a.lhs, a.rhs))
        case ew.Elementwise() if a.fn.name in ("add", "sub"):
            return all(each(a.lhs, a.rhs))
        case ew.Select():
            return all(each(a.if_true, a.if_false))
        case tile.Dot():
            return any(each(a.a, a.b)) and _nothing(a.acc, maximum)
        case tile.Reduce() | ew.Cast():
            return _nothing(a.operands[0], maximum)
    return isinstance(a, VIEWS) and _nothing(a.operands[0], maximum)


def _single(value: SSAValue) -> bool:
    """Whether elements of a tile are powers, or zeros where a mask says so."""
    match value.owner:
        case ew.Select():
            return all(constant(v) == 0 or _single(v) for v in value.owner.operands[1:])
        case scf.IfOp():
            return all(
                _single(region.block.last_op.operands[value.index])
                for region in value.owner.regions
            )
    return isinstance(value.owner, (CLASSES["exp2"], CLASSES["exp"]))


def _differs(value: SSAValue, axis: int) -> bool:
    """Whether a truth value may differ along an axis."""
    if not isinstance(value.type, TileType) or value.type.extents[axis] == 1:
        return False
    match value.owner:
        case tile.Broadcast():
            return _differs(value.owner.arg, axis)
        case tile.Splat():
            return False
        case ew.Elementwise():
            return any(_differs(v, axis) for v in value.owner.operands)
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
        found = self.mapping.get(value, value)
        if isinstance(found, float):
            found = self.mapping[value] = before(
                self.anchor, tile.Constant(found, value.type)
            ).result
        return found

    def copy(self, op: Operation) -> None:
        before(
            self.anchor,
            op.clone(
                {v: self.get(v) for inner in op.walk() for v in inner.operands if v in self.mapping}
            ),
        )
        self.mapping |= dict(zip(op.results, self.anchor.prev_op.results, strict=False))

    def fast(self, op: Operation) -> None:
        """With the maximum as it was: m − m is 0, its power 1, and what was to shrink by that
        stays.
        """
        value = op.results[0] if len(op.results) == 1 else None
        form = self.of.forms.of.get(value)
        if form is not None and form.pure and not form.put(self.of.names).degree:
            self.mapping[value] = ZERO if form.kind == "add" else ONE
            return
        if (source := guarded(op)) is not None and source in self.mapping:
            self.mapping[value] = self.mapping[source]
            return
        if isinstance(op, CLASSES["mul"]):
            for one, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                if self.mapping.get(one) is ONE:
                    self.mapping[value] = self.mapping.get(other, other)
                    return
        self.copy(op)
