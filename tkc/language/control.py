"""Control flow while tracing: the runtime half of what `rewrite` puts in place of for, while, if,
and, or, not.

Each construct first finds out whether it is about traced values. If not, it steps aside and Python
goes on. If it is, the body is traced into a block, as often as needed until the set of carried
slots is stable (usually once: see state.py), and the scf operation is made from the last pass.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeAlias

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, i32, i64
from xdsl.ir import Block, BlockArgument, Region, SSAValue

from tkc.ir import elementwise, ranges
from tkc.language import operations, values
from tkc.language.arrays import integer
from tkc.language.dtypes import bool_
from tkc.language.rewrite import rewritten
from tkc.language.slots import UNBOUND, Lost, contents, traced_function
from tkc.language.state import (
    Leaf,
    Mismatch,
    Snapshot,
    Spec,
    build,
    flatten,
    merge,
    mutable_parts,
    same,
    shared,
    types,
)
from tkc.language.tracer import discard, fail, frames, pure, tracer
from tkc.language.values import Operand, Scalar, Tile, Value, describe, lift, unpack

Thunk: TypeAlias = Callable[[], Any]
unbound = UNBOUND
_RUNTIME = sys.modules[__name__]
_CALL = "__call__"
MAX_PASSES = 40


def _clean(names: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in names.items() if not n.startswith("__tkc")}


def _condition(c) -> SSAValue:
    """A traced scalar as a truth value."""
    return (c if c.dtype is bool_ else c != 0).use()


def _is_traced(c, words: str) -> bool:
    """Whether a condition is traced; a tile has no single truth value."""
    if isinstance(c, Tile):
        fail(
            f"{words} needs one truth value, got a tile ({describe(c)}); combine tiles with &, |"
            " and ~, choose with tkc.where, or reduce with tkc.any or tkc.all"
        )
    return isinstance(c, Scalar)


# Python nests 20 blocks in a function; more are of helpers that call one another.
MAX_NESTED_BLOCKS = 100


class Construct:
    """Common to for, while and if: the snapshot at entry and the bindings to make in the user's
    frame.
    """

    traced = False
    broken = False

    def __init__(self):
        self.depth, self.bindings = len(tracer().blocks), {}
        if self.depth > MAX_NESTED_BLOCKS:
            fail(
                f"traced branches and loops are nested {MAX_NESTED_BLOCKS} deep: a helper that"
                " calls itself under a condition on run-time values is traced without end;"
                " recursion must stop on a compile-time condition"
            )

    def __getitem__(self, name: str):
        return self.bindings.get(name, UNBOUND)

    def _bind(
        self, snapshot: Snapshot, values: dict[tuple, Any], reasons: dict[tuple, str]
    ) -> None:
        """All names and containers as in the snapshot, except these slots."""
        snapshot.restore()
        self.bindings = dict(snapshot.names)
        for slot, value in values.items():
            snapshot.rebind(slot, value, self.bindings, reasons.get(slot, ""))

    def jump(self, kind: str) -> None:
        """A break or continue of this loop is about to run."""
        is_conditional = len(tracer().blocks) != self.depth
        if self.traced or is_conditional:
            where = "of a traced loop" if self.traced else "under a traced condition"
            fail(
                f"`break` {where} is not known at compile time; carry a truth value and test it in"
                " the head of the loop: `while i < n and not found`"
                if kind == "break"
                else f"`continue` {where} can skip the rest of the body only at the end of an `if`"
                " of that body; put the rest under an `else`"
            )
        self.broken |= kind == "break"


# --------------------------------------------------------------------------------------------------
@dataclass
class Range:
    """The trip counts of a traced loop."""

    start: Any
    stop: Any
    step: Any
    num_stages: int | None = None

    def __iter__(self):
        fail(
            "a traced range works in a `for` statement of a kernel only (not in comprehensions,"
            " zip, enumerate or list); use tkc.static_range to unroll"
        )

    __len__ = __getitem__ = __iter__


def range_(*bounds: Operand, num_stages: int | None = None) -> Range:
    """range(stop), range(start, stop) or range(start, stop, step) as a loop of the kernel: traced
    once, run at run time.

    num_stages: the depth of the loop's rings that the plan chooses where it can.
    """
    if num_stages is not None and (not isinstance(num_stages, int) or num_stages < 1):
        fail(f"num_stages is a positive integer, got {describe(num_stages)}")
    if not 1 <= len(bounds) <= 3:
        fail(f"tkc.range takes 1 to 3 numbers, got {len(bounds)}")
    start, stop, step = (
        (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1) if len(bounds) == 2 else bounds
    )
    start, stop, step = map(unpack, (start, stop, step))
    for what, v in (("start", start), ("stop", stop), ("step", step)):
        if (
            isinstance(v, bool)
            or not isinstance(v, (int, Scalar))
            or isinstance(v, Scalar)
            and not v.dtype.is_int
        ):
            fail(f"the {what} of a range is an integer, got {describe(v)}")
    if isinstance(step, int) and step == 0:
        fail("the step of a range is not 0")
    return Range(start, stop, step, num_stages)


def static_range(*bounds: int) -> range:
    """range(...) unrolled at compile time."""
    given = [unpack(b) for b in bounds]
    for b in given:
        if isinstance(b, Value):
            fail(
                f"tkc.static_range needs numbers known at compile time, got a traced {describe(b)};"
                " use tkc.range"
            )
    return builtins.range(*given)


def python_range(*bounds: Any) -> Range | range:
    """Python's range; with traced bounds, tkc.range."""
    return range_(*bounds) if any(isinstance(b, Value) for b in bounds) else builtins.range(*bounds)


class Loop(Construct):
    """Carried slots of a loop, found by tracing its body until nothing new changes."""

    def _begin(self, snapshot: Snapshot, assigned: tuple[str, ...], where: str) -> None:
        self.traced, self.where, self.snapshot, self.passes = True, where, snapshot, 0
        self.carried: dict[tuple, Spec] = {
            (0, n): Leaf(v.ssa.type)
            for n in assigned
            if isinstance(v := snapshot.names.get(n), Value)
        }
        self.lost: dict[tuple, str] = {}

    def old(self, slot: tuple) -> Any:
        owner, key = slot
        return (
            self.snapshot.names.get(key, UNBOUND)
            if owner == 0
            else self.snapshot.containers[owner][1][key]
        )

    def _open(self, block: Block) -> None:
        """Block arguments for the carried slots, bound in the frame."""
        self.entry, self.copies = {}, []
        for slot, spec in self.carried.items():
            args = [block.insert_arg(t, len(block.args)) for t in types(spec)]
            if (name := self.snapshot.label(slot)).isidentifier():
                for a in args:
                    a.name_hint = name
            self.entry[slot] = build(spec, iter(args))
            self.copies += [(slot, x, contents(x) or {}) for x in mutable_parts(self.entry[slot])]
        self._bind(self.snapshot, self.entry | dict.fromkeys(self.lost, UNBOUND), self.lost)

    def _settle(
        self, names: dict[str, Any], ignore: tuple[str, ...] = ()
    ) -> tuple[bool, dict[tuple, Any]]:
        """Compares the state with the entry's: (whether the carried slots stand, the contents to
        yield).
        """
        changed, after = self.snapshot.changes(names, self.where), Snapshot.take(names)
        stable, result, counts = True, {}, shared(changed, self.snapshot, after)
        self._check_copies(changed)
        for slot, (old, new) in changed.items():
            if slot in self.lost or slot[0] == 0 and slot[1] in ignore:
                continue
            if old is UNBOUND:  # first bound inside: a name of the body
                self.lost[slot] = (
                    f"`{self.snapshot.label(slot)}` has a value only inside {self.where}; give it"
                    " one before the loop to use it after"
                )
                continue
            spec = self._spec(slot, old, new, counts)
            stable = stable and self.carried.get(slot) == spec
            if isinstance(spec, str):
                self.lost[slot] = spec
                self.carried.pop(slot, None)
            else:
                self.carried[slot] = spec
                result[slot] = new
        for slot in self.carried:
            if slot not in result:
                result[slot] = self.entry.get(slot, self.old(slot))
        self.passes += 1
        if self.passes > MAX_PASSES:
            fail(
                f"the types of the variables of {self.where} do not settle:"
                f" {', '.join(self.snapshot.label(s) for s in self.carried)}; convert with .to()"
            )
        return stable, result

    def _check_copies(self, changed: dict[tuple, tuple[Any, Any]]) -> None:
        """Refuses what is changed in place and also replaced."""
        for slot, copy, before in self.copies:
            if changed.get(slot, (None, None))[1] is self.entry[slot]:
                continue
            now = contents(copy) or {}
            if now.keys() != before.keys() or not all(same(before[k], now[k]) for k in before):
                fail(
                    f"`{self.snapshot.label(slot)}` is changed in place and also replaced inside"
                    f" {self.where}; do one of the two"
                )

    def _spec(self, slot: tuple, old: Any, new: Any, counts: Counter) -> Spec | str:
        """What carries a slot, or the reason why nothing does."""
        label = self.snapshot.label(slot)
        if new is UNBOUND:
            return tracer().reasons.get(slot[1], f"`{label}` is deleted inside {self.where}")
        try:
            return merge(old, new, counts)
        except Mismatch as e:
            return (
                f"`{label}` is not the same kind of value before {self.where} and after an"
                f" iteration: {e}; convert with .to(), or start from a value of the later kind"
            )

    def _initial(self) -> list[SSAValue]:
        self.snapshot.restore()
        return [v for slot, spec in self.carried.items() for v in flatten(self.old(slot), spec)]

    def _yielded(self, result: dict[tuple, Any]) -> list[SSAValue]:
        return [v for slot, spec in self.carried.items() for v in flatten(result[slot], spec)]

    def _finish(self, results, ignore: tuple[str, ...] = ()) -> None:
        """Binds the results of the loop in the frame."""
        ssa, after = iter(results), {}
        for slot, spec in self.carried.items():
            after[slot] = build(spec, ssa)
        reasons = self.lost | {
            (0, n): (
                f"`{n}` is the variable of {self.where} and has no value after it; compute what you"
                " need from the bounds"
            )
            for n in ignore
        }
        self._bind(self.snapshot, after | dict.fromkeys(reasons, UNBOUND), reasons)


def _as_counted(r: Range, index: Scalar) -> Any:
    """The loop's variable where the loop counts as the range does."""
    return index


def _backwards(r: Range, index: Scalar) -> Any:
    """The loop's variable where a constant step is negative and the loop counts up from 0."""
    return r.start - index


def _by_steps(r: Range, index: Scalar) -> Any:
    """The loop's variable where the sign of the step is not known and the loop counts its trips."""
    return r.start + index * r.step


def _extremes(bound: int | Scalar) -> tuple[int, int]:
    """What a bound or step of a range is at least and at most."""
    if isinstance(bound, int):
        return bound, bound
    known = tracer().range_of(bound.use())
    return known.lo, known.hi


def counts_up(step: int | Scalar) -> bool:
    """Whether a step is known to be positive."""
    return _extremes(step)[0] > 0


def _trip_count(r: Range) -> Value:
    """Iterations of a loop whose step may be of either sign: as of Python's range, and none where
    the step is 0, which TKC_DEBUG traps.
    """
    where, maximum = operations.where, operations.maximum
    tracer().require_nonzero(r.step.ssa)
    operations.device_assert(r.step != 0, "the step of a range is 0")
    span = where(r.step > 0, r.stop - r.start, r.start - r.stop)
    size = maximum(where(r.step > 0, r.step, 0 - r.step), 1)
    # span + size may be beyond the type
    return lift(where(r.step == 0, 0, (maximum(span, 0) - 1) // size + 1))


class ForLoop(Loop):
    """`for target in iterable: body`, as an iterator whose one iteration (or few) is traced."""

    def __init__(
        self, iterable, names: dict[str, Any], targets: tuple[str, ...], assigned: tuple[str, ...]
    ):
        super().__init__()
        if isinstance(iterable, Value):
            iterable.__iter__()
        self.iterable, self.targets = iterable, targets
        if isinstance(iterable, Range):
            self._begin(
                Snapshot.take(_clean(names)),
                tuple(n for n in assigned if n not in targets),
                "the loop",
            )

    def __iter__(self):
        if not self.traced:
            yield from self.iterable
            return
        bounds, place = self._bounds()
        while True:
            before, body = Block(), Block(arg_types=[bounds[0].type])
            tracer().blocks += [before, body]
            self._open(body)
            yield self._variable(body.args[0], place)
            stable, result = self.settled
            if stable:
                return self._close(bounds, before, body, result)
            del tracer().blocks[-2:]
            discard(body)

    def _bounds(self) -> tuple[list[SSAValue], Callable[[Range, Scalar], Any]]:
        """Start, stop and step of a loop that counts up, and what gives the user's variable."""
        r = self.iterable
        start, stop, step, place = r.start, r.stop, r.step, _as_counted
        if isinstance(step, int) and step < 0:
            start, stop, step, place = 0, r.start - r.stop, -step, _backwards
        elif not counts_up(step):
            start, stop, step, place = 0, _trip_count(r), 1, _by_steps
        bounds = [integer(b, "a bound") for b in (start, stop, step)]
        width = i64 if any(b.type == i64 for b in bounds) else i32
        return [
            b if b.type == width else tracer().emit(elementwise.Cast(b, width)).result
            for b in bounds
        ], place

    def _variable(self, counter: SSAValue, place: Callable[[Range, Scalar], Any]) -> Any:
        """The user's variable, of known range where the sign of the step is known."""
        if self.targets:
            counter.name_hint = self.targets[0]
        r = self.iterable
        value = place(r, Scalar(counter))
        if place is not _by_steps:
            start, stop = _extremes(r.start), _extremes(r.stop)
            low, high = (start[0], stop[1] - 1) if place is _as_counted else (stop[0] + 1, start[1])
            tracer().promise(value.ssa, ranges.Range(low, max(low, high)))
        return value

    def _close(
        self, bounds: list[SSAValue], before: Block, body: Block, result: dict[tuple, Any]
    ) -> None:
        """Makes the loop of its last iteration, and binds its results in the frame."""
        t = tracer()
        yielded, args = self._yielded(result), list(body.args)[1:]
        t.blocks.pop()
        initial = self._initial()
        t.blocks.pop()
        # A guess that comes back unchanged is not carried after all.
        fixed: dict[BlockArgument, SSAValue] = {
            arg: first for y, arg, first in zip(yielded, args, initial, strict=False) if y is arg
        }
        keep = [k for k, arg in enumerate(args) if arg not in fixed]
        with t.inside(before), t.inside(body):
            kept = [yielded[k] for k in keep]
            t.emit(
                scf.YieldOp(*(fixed.get(v, v) if isinstance(v, BlockArgument) else v for v in kept))
            )
        for arg, first in fixed.items():
            arg.replace_all_uses_with(first)
            body.erase_arg(arg)
        t.inline(before)
        low, high, step = bounds
        loop = t.emit(scf.ForOp(low, high, step, [initial[k] for k in keep], Region(body)))
        if self.iterable.num_stages is not None:
            loop.attributes["num_stages"] = IntegerAttr(self.iterable.num_stages, i64)
        given = iter(loop.results)
        self._finish(
            [next(given) if k in keep else initial[k] for k in range(len(args))], self.targets
        )

    def leave(self, names: dict[str, Any]) -> None:
        self.settled = self._settle(_clean(names), self.targets)


class WhileLoop(Loop):
    """`while test: body`. Iterations whose test is a Python value run in Python; from the first
    traced test on it is a loop.
    """

    def __init__(self, assigned: tuple[str, ...]):
        super().__init__()
        self.assigned, self.again, self.opened = assigned, False, False

    def enter(self, names: dict[str, Any]) -> bool:
        """Before the test: opens the block of the test. False when the loop is finished."""
        t, names = tracer(), _clean(names)
        if not self.traced:
            self.plain = Snapshot.take(names)
            t.blocks.append(Block())
            return True
        if self.opened:
            stable, result = self._settle(names)
            if stable:
                return self._close(result)
            self._abandon()
        self._start()
        return True

    def _start(self) -> None:
        t = tracer()
        self.before, self.test_block, self.body = Block(), Block(), Block()
        t.blocks += [self.before, self.test_block]
        self.opened = False
        self._open(self.test_block)

    def _abandon(self) -> None:
        t = tracer()
        del t.blocks[self.depth :]
        discard(self.body)
        discard(self.test_block)
        discard(self.before)

    def test(self, condition: object, names: dict[str, Any]) -> bool:
        """After the test: a plain one decides now; a traced one opens the body."""
        t, condition, names = tracer(), unpack(condition), _clean(names)
        if not self.traced:
            block = t.blocks.pop()
            if not _is_traced(condition, "`while`"):
                t.inline(block)
                return bool(condition)
            discard(block)
            self.plain.restore()
            self._begin(self.plain, self.assigned, "the loop")
            self.opened, self.again = False, True
            return True
        if not _is_traced(condition, "`while`"):
            condition = lift(bool(condition), bool_)
        stable, result = self._settle(names)
        self.again = not stable
        if self.again:
            self._abandon()
            return True
        t.emit(scf.ConditionOp(_condition(condition), *self._yielded(result)))
        t.blocks[-1] = self.body
        self.opened = True
        self._open(self.body)
        return True

    def _close(self, result: dict[tuple, Any]) -> bool:
        t = tracer()
        t.emit(scf.YieldOp(*self._yielded(result)))
        t.blocks.pop()
        initial = self._initial()
        t.blocks.pop()
        t.inline(self.before)
        results = [ty for spec in self.carried.values() for ty in types(spec)]
        loop = t.emit(scf.WhileOp(initial, results, Region(self.test_block), Region(self.body)))
        self._finish(loop.results)
        return False


# --------------------------------------------------------------------------------------------------
class Branch(Construct):
    """`if test: … else: …`: both arms are traced, then merged."""

    def __init__(self, test, names: dict[str, Any]):
        super().__init__()
        self.test = unpack(test)
        self.traced = _is_traced(self.test, "`if`")
        if not self.traced:
            self.truth = bool(self.test)
            return
        self.condition = _condition(self.test)
        self.snapshot = Snapshot.take(_clean(names))

    def then(self) -> bool:
        if not self.traced:
            return self.truth
        self.arms = [Block(), Block()]
        self.ends: list[Any] = []
        tracer().blocks.append(self.arms[0])
        operations.promise(self.condition)
        self.bindings = dict(self.snapshot.names)
        return True

    def orelse(self, names: dict[str, Any]) -> bool:
        if not self.traced:
            return not self.truth
        self._end(names)
        self._bind(self.snapshot, {}, {})
        tracer().blocks.append(self.arms[1])
        return True

    def _end(self, names: dict[str, Any]) -> None:
        names = _clean(names)
        changed = self.snapshot.changes(names, "a branch")
        self.ends.append((changed, Snapshot.take(names)))
        tracer().blocks.pop()

    def merge(self, names: dict[str, Any]) -> None:
        """After both arms: the scf.if, and its results in the frame."""
        self._end(names)
        t, ((a, end_a), (b, end_b)) = tracer(), self.ends
        counts = shared({**a, **b}, end_a, end_b)
        merged, reasons, plain = {}, {}, {}
        for slot in {**a, **b}:
            old = (a.get(slot) or b[slot])[0]
            x, y = a[slot][1] if slot in a else old, b[slot][1] if slot in b else old
            spec = self._spec(slot, old, x, y, counts)
            if isinstance(spec, str):
                reasons[slot] = spec
            elif types(spec):
                merged[slot] = (x, y, spec)
            else:
                plain[slot] = build(spec, iter(()))
        for k, block in enumerate(self.arms):
            with t.inside(block):
                given = (v for *ends, spec in merged.values() for v in flatten(ends[k], spec))
                t.emit(scf.YieldOp(*given))
        results = [ty for *_, spec in merged.values() for ty in types(spec)]
        then, orelse = map(Region, self.arms)
        op = t.emit(scf.IfOp(self.condition, results, then, orelse))
        ssa = iter(op.results)
        after = {slot: build(spec, ssa) for slot, (_, _, spec) in merged.items()}
        self._bind(self.snapshot, after | plain | dict.fromkeys(reasons, UNBOUND), reasons)

    def _spec(self, slot: tuple, old: Any, x: Any, y: Any, counts: Counter) -> Spec | str:
        """What gives a slot after both arms, which leave x and y there, or why nothing does."""
        label = self.snapshot.label(slot)
        if x is UNBOUND or y is UNBOUND:
            reason = tracer().reasons.get(slot[1]) if old is not UNBOUND else None
            return reason or (
                f"`{label}` has a value in one branch of an `if` only; give it one before the"
                " `if`, or in both branches"
            )
        try:
            return merge(x, y, counts)
        except Mismatch as e:
            return (
                f"`{label}` differs between the branches of an `if`: {e}; give both the same"
                " kind, e.g. with .to()"
            )


# --------------------------------------------------------------------------------------------------
def _choose(condition: Scalar, then: Thunk, orelse: Thunk) -> Any:
    """One of two thunks: by select where both may run, else by scf.if."""
    t, blocks, found = tracer(), [Block(), Block()], []
    c = _condition(condition)
    for thunk, block in zip((then, orelse), blocks, strict=True):
        with unchanged("a conditional expression"), t.inside(block):
            if thunk is then:
                operations.promise(c)
            found.append(thunk())
    try:
        spec = merge(*found)
    except Mismatch as e:
        fail(
            f"the two sides of a conditional expression differ: {e}; give both the same kind, e.g."
            " with .to()"
        )
    if all(map(pure, blocks)):
        for b in blocks:
            t.inline(b)
        return _selected(c, found, spec)
    for side, block in zip(found, blocks, strict=True):
        with t.inside(block):
            t.emit(scf.YieldOp(*flatten(side, spec)))
    yes, no = map(Region, blocks)
    return build(spec, iter(t.emit(scf.IfOp(c, types(spec), yes, no)).results))


def _selected(condition: SSAValue, sides: list[Any], spec: Spec) -> Any:
    """One of two computed contents; `and` and `or` where a side of a truth value is known."""
    t, (a, b) = tracer(), sides
    if b is False or a is True:
        name, other = ("and", a) if b is False else ("or", b)
        if isinstance(other, bool):
            return values.wrap(condition) if sides == [True, False] else other
        if isinstance(other, Scalar) and other.dtype is bool_:
            return values.wrap(t.emit(elementwise.CLASSES[name](condition, other.use())).result)
    pairs = zip(flatten(a, spec), flatten(b, spec), strict=True)
    chosen = (x if x is y else t.emit(elementwise.Select(condition, x, y)).result for x, y in pairs)
    return build(spec, chosen)


def and_(first: object, *thunks: Thunk) -> object:
    """`a and b and c`; b is evaluated only where a holds."""
    return _short_circuit(first, thunks, "`and`", False)


def or_(first: object, *thunks: Thunk) -> object:
    """`a or b or c`; b is evaluated only where a does not hold."""
    return _short_circuit(first, thunks, "`or`", True)


def _short_circuit(first: object, thunks: tuple[Thunk, ...], words: str, decisive: bool) -> object:
    """The first operand of that truth, else the last; later ones are not evaluated."""
    result = unpack(first)
    for thunk in thunks:
        if _is_traced(result, words):
            result = _connected(result, thunk, words, decisive)
        elif bool(result) is decisive:
            return result
        else:
            result = unpack(thunk())
    _is_traced(result, words)
    return result


def _connected(left: Scalar, thunk: Thunk, words: str, decisive: bool) -> Any:
    """`left and thunk()`, or with `or`, of a traced truth value."""

    def known() -> bool:
        return decisive

    def right() -> Any:
        return _truth(thunk(), words)

    return _choose(left, known, right) if decisive else _choose(left, right, known)


def _truth(x: object, words: str) -> Any:
    """A truth value of Python, or a traced one."""
    c = unpack(x)
    if _is_traced(c, words):
        return c if c.dtype is bool_ else c != 0
    return bool(c)


def not_(x: object) -> object:
    """`not x`."""
    x = unpack(x)
    return ~_truth(x, "`not`") if _is_traced(x, "`not`") else not x


def contains(item: object, container: object) -> object:
    """`item in container`: of traced numbers, comparisons with the elements one after another."""
    x = unpack(item)
    if not isinstance(container, (tuple, list, set, frozenset, dict, range)):
        return x in container  # type: ignore[operator]  # Python says so where it cannot
    elements = [x] if isinstance(container, range) else [x, *map(unpack, container)]
    if not any(isinstance(e, Value) for e in elements):
        return x in container
    if any(isinstance(e, Tile) for e in elements):
        fail(
            "`in` of tiles has no single truth value; write (x == a) | (x == b), and reduce it with"
            " tkc.any or tkc.all"
        )
    if isinstance(container, range):
        return _in_range(x, container)
    # a number equals no string and no None
    numbers = [e for e in elements[1:] if not isinstance(e, (str, type(None)))]
    return or_(False, *(partial(operator.eq, x, e) for e in numbers))


def _in_range(x: Scalar, r: range) -> object:
    if not r:
        return False
    low, high, step = min(r[0], r[-1]), max(r[0], r[-1]), abs(r.step)
    inside = (x >= low) & (x <= high)
    return inside if step == 1 and x.dtype.is_int else inside & ((x - low) % step == 0)


def not_contains(item: object, container: object) -> object:
    """`item not in container`."""
    return not_(contains(item, container))


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "is": operator.is_,
    "isnot": operator.is_not,
    "in": contains,
    "notin": not_contains,
}


def ifexp(condition: object, then: Thunk, orelse: Thunk) -> object:
    """`then() if condition else orelse()`."""
    test = unpack(condition)
    if _is_traced(test, "`… if … else …`"):
        return _choose(test, then, orelse)
    return then() if test else orelse()


def chain(first: object, names: tuple[str, ...], *thunks: Thunk) -> object:
    """`a < b < c`: each operand is evaluated once, and only if needed."""

    def rest(left, k):
        right = thunks[k]()
        result = _COMPARISONS[names[k]](left, right)
        if isinstance(result, Tile):
            fail("a chained comparison of tiles has no single truth value; write (a < b) & (b < c)")
        return result if k + 1 == len(names) else and_(result, lambda: rest(right, k + 1))

    return rest(first, 0)


def used(x: object) -> object:
    """An operand of `is`: a value that was lost must not compare silently."""
    return x == x if type(x) is Lost else x


@contextmanager
def unchanged(what: str) -> Iterator[None]:
    """Python state must not change meanwhile."""
    before = Snapshot.take(_clean(frames()[0].f_locals))
    yield
    found = before.changes(before.names, what)
    if found:
        fail(f"{what} changes `{before.label(next(iter(found)))}`; let it only return its result")


def python_min(*args: Any, **kwargs: Any) -> Any:
    return _python_extreme(builtins.min, operations.minimum, args, kwargs)


def python_max(*args: Any, **kwargs: Any) -> Any:
    return _python_extreme(builtins.max, operations.maximum, args, kwargs)


def _python_extreme(python, ours, args, kwargs):
    items = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else list(args)
    if kwargs or not any(isinstance(x, Value) for x in items):
        return python(*args, **kwargs)
    if any(isinstance(x, Tile) for x in items):
        fail(
            f"{python.__name__}() of tiles has no single answer; use tkc.{ours.__name__} element by"
            f" element, or tkc.{python.__name__}(tile, axis)"
        )
    result = items[0]
    for x in items[1:]:
        result = ours(result, x)
    return result


_OURS = {
    id(builtins.range): python_range,
    id(builtins.min): python_min,
    id(builtins.max): python_max,
}


def callable_in_kernel(f: Any) -> Any:
    """What a call in a kernel calls: helpers rewritten; range, min and max for traced values."""
    if isinstance(f, FunctionType):
        return rewritten(f, _RUNTIME)
    if id(f) in _OURS:
        return _OURS[id(f)]
    if isinstance(f, MethodType) and isinstance(f.__func__, FunctionType):
        return MethodType(rewritten(f.__func__, _RUNTIME), f.__self__)
    inner = traced_function(f)
    if inner is not None:
        return rewritten(inner, _RUNTIME)
    if type(f).__module__ == "functools" and hasattr(f, "func"):
        return type(f)(callable_in_kernel(f.func), *f.args, **f.keywords)
    method = None if isinstance(f, type) else getattr(type(f), _CALL, None)
    return MethodType(rewritten(method, _RUNTIME), f) if isinstance(method, FunctionType) else f


call = callable_in_kernel


def depth() -> int:
    return len(tracer().blocks)


def result(value: object) -> object:
    """What a function with several `return`s gives; fails where some way gives no value."""
    if value is unbound:
        fail("this function returns a value on some ways only; return one of the same kind on all")
    return value


def check_return(depth_at_entry: int) -> None:
    """A `return` is about to run: not out of a traced region."""
    if len(tracer().blocks) != depth_at_entry:
        fail(
            "`return` inside a traced loop or a nested traced `if` cannot leave the function; a"
            " kernel may end early with `if c: return` outside of loops, elsewhere put the rest"
            " under an `else`"
        )


def for_loop(
    iterable: object,
    names: dict[str, Any],
    targets: tuple[str, ...],
    assigned: tuple[str, ...],
) -> ForLoop:
    return ForLoop(iterable, names, targets, assigned)


def while_loop(assigned: tuple[str, ...]) -> WhileLoop:
    return WhileLoop(assigned)


def branch(test: object, names: dict[str, Any]) -> Branch:
    return Branch(test, names)
