"""The one writer of software pipelines: a loop and a schedule of it become the loop that runs by
the schedule.

A schedule says how many iterations early each operation of a loop's body runs, in which order an
iteration of the new loop does them, and what is done at the ends. An operation may be done more
than once: it is then computed again where it would have to be carried.

    for %n:                               steps: load[%n·8] 1 early, clamped; use
      %x = load[%n·8]                     %x0 = load[lb·8]
      use %x                        ->    for %n carrying %x = %x0:
                                            %next = %n + step where there is that iteration, else %n
                                            %y = load[%next·8]
                                            use %x
                                            yield %y

What is early of the first iterations stands before the loop. At the other end the loop runs all of
its iterations, in the last of which what is early has none left to work on (`End`). Or it is
peeled: it ends an iteration earlier, and what is not early of the last one stands behind it, under
a branch, for there may be none:

    for %n:                               steps: %s 1 early, %o; peeled
      %s = q·k[%n]                        if %lb < %ub:
      %o += f(%s)·v[%n]             ->      %s = q·k[lb]
                                            for %n from the second on, carrying %s, %o:
                                              %t = q·k[%n]
                                              %o += f(%s)·v[%n - step]
                                              yield %t, …
                                            %o += f(%s)·v[last]

What is read later than it is made is carried, as many iterations as lie between. A schedule is
legal where

  data flow   what a step reads was made in an earlier iteration of the new loop, or before it in
              the same one; what a loop carries is made in the iteration before
  order       of two accesses that may meet in memory, of which one writes, the first stays first,
              and so does what an acquire or a release orders; effects are done once. Programs that
              a thread block takes in turn are ordered only behind what waits for other programs
  ends        for an iteration that does not exist an early step computes, loads what is there, or
              is guarded; what is clamped, or stands before a branch, reads of the iteration only
              what is so too
  rings       a stage is filled again behind what reads it

A while is a loop like any other: its counter is the first value that it carries, and that of a
later iteration is known where the loop hands it on from another that it carries. So is the stage of
a ring, which is not carried for a later iteration but counted on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import TypeAlias

from xdsl.dialects import scf
from xdsl.dialects.builtin import i1
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tkc.errors import VerifyError
from tkc.ir import shared, tile
from tkc.ir.elementwise import Cast
from tkc.ir.host_values import is_unbounded
from tkc.ir.ranges import Ranges, bounds
from tkc.ir.rewrite import (
    Builder,
    before,
    body_of,
    clone_slice,
    erase_dead,
    is_inside,
    only_if,
    replace,
    stamp,
)
from tkc.ir.threads import Identity, RingNext
from tkc.ir.types import SIGNED, UNSIGNED, SharedType, TileType, element_of, is_integer
from tkc.ir.values import defining_op, is_side_effect_free, owner_op, shared_type, yielded_by
from tkc.passes.analysis import alias
from tkc.passes.analysis.values import WRITES

Loop: TypeAlias = scf.ForOp | scf.WhileOp
OF_ARRAYS = (tile.Load, shared.CopyAsync)
LOADS = (*OF_ARRAYS, tile.LoadPointers)
GLOBAL = (*LOADS, *WRITES)  # accesses of global memory
ON_CHIP = (shared.Alloc, shared.Read, shared.Write, shared.WaitCopies)  # of none of that


class End(Enum):
    """What an early step does for an iteration that does not exist.

    ANY: the same, and nobody reads what it makes. CLAMP: what it did for the last one, but no
    effect again. GUARD: nothing; what it loads are zeros. (Of a peeled loop all steps that have no
    iteration are left out, but for those of ANY before it.)
    """

    ANY = "any"
    CLAMP = "clamp"
    GUARD = "guard"


@dataclass(frozen=True)
class Step:
    """An operation of a loop's body, done so many iterations early."""

    op: Operation
    early: int = 0
    end: End = End.ANY


@dataclass(frozen=True)
class LoopSchedule:
    """The steps of an iteration of the new loop, in their order. peel: what is not early of the
    last iteration stands behind the loop; of such a schedule steps are early by one at most, and
    the counter of what is not early is carried, unless it `counts_back` from that of what is.
    """

    steps: tuple[Step, ...]
    peel: bool = False
    counts_back: bool = False

    @staticmethod
    def of(
        loop: Loop,
        groups: Iterable[tuple[Iterable[Operation], int, End]],
        again: Callable[[Operation], bool] = is_side_effect_free,
        **how: bool,
    ) -> LoopSchedule:
        """The schedule that does groups of operations in turn, each in the order of the body, so
        many iterations early. What a group needs that may be done `again` is done with it.
        """
        body = body_of(loop)
        place = {op: i for i, op in enumerate(body.ops)}
        steps: dict[tuple[Operation, int], Step] = {}
        for ops, early, end in groups:
            wanted, work = set[Operation](), list(ops)
            while work:
                if (op := work.pop()) not in wanted and (op, early) not in steps:
                    wanted.add(op)
                    made = (v.owner for v in reads(op, body))
                    work += [x for x in made if isinstance(x, Operation) and again(x)]
            for op in sorted(wanted, key=place.__getitem__):
                steps[op, early] = Step(op, early, end)
        return LoopSchedule(tuple(steps.values()), **how)

    @property
    def depth(self) -> int:
        """How many iterations early the earliest step is."""
        return max((step.early for step in self.steps), default=0)


def reads(op: Operation, body: Block) -> list[SSAValue]:
    """What an operation of a loop's body uses of the body, what those inside it use included."""
    return [v for inner in op.walk() for v in inner.operands if _is_of(v, body)]


def _is_of(value: SSAValue, body: Block) -> bool:
    """Whether a value is made in a block, or is an argument of it."""
    return (value.owner if isinstance(value.owner, Block) else value.owner.parent) is body


def expand(loop: Loop, schedule: LoopSchedule, overlaps: alias.Overlaps = ()) -> Loop:
    """Writes the loop that runs by a schedule in place of one, and returns it.

    overlaps: groups of array arguments that share memory. Raises VerifyError where the schedule is
    not legal.
    """
    if (reason := next(broken_rules(loop, schedule, overlaps), None)) is not None:
        raise VerifyError(f"expand: {reason}")
    return _Writer(loop, schedule).write()


# ---- what is legal
# --------------------------------------------------------------------------------------------------
def broken_rules(
    loop: Loop, schedule: LoopSchedule, overlaps: alias.Overlaps = ()
) -> Iterator[str]:
    """Why a schedule of a loop is not legal, rule by rule."""
    if schedule.peel and (schedule.depth > 1 or isinstance(loop, scf.WhileOp)):
        yield "a counted loop is peeled by one iteration"
    yield from _order(loop, schedule, overlaps)
    yield from _rings(schedule)
    for step in schedule.steps:
        guarded = schedule.peel and step.end is End.GUARD
        if step.early and not guarded and not _is_harmless(step, schedule, loop):
            yield f"{step.op.name} is not harmless for an iteration that does not exist"
    for op in _Writer(loop, schedule).behind:
        yield f"{op.name} is done behind what reads it"


def _order(loop: Loop, schedule: LoopSchedule, overlaps: alias.Overlaps) -> Iterator[str]:
    """Effects are done once, and accesses that may meet keep their order."""
    accesses = {op: list(filter(_touches, op.walk())) for op in list(body_of(loop).ops)[:-1]}
    times = Counter(step.op for step in schedule.steps)
    for op, inner in accesses.items():
        if times[op] != 1 and any(map(alias.writes, inner)):
            yield f"{op.name} has effects, and is done {times[op]} times"
    for first, second in _swapped(loop, schedule, accesses):
        pairs = product(accesses[first], accesses[second])
        if any(_may_conflict(x, y, overlaps) for x, y in pairs):
            yield f"{second.name} is done before {first.name}, and they may meet"


def _swapped(
    loop: Loop, schedule: LoopSchedule, accesses: dict[Operation, list[Operation]]
) -> Iterator[tuple[Operation, Operation]]:
    """Operations of which the second is done before the first, of its iteration or of the one
    before, which nothing permits but that they do not meet.
    """
    place = {op: i for i, op in enumerate(accesses)}
    wait = next((i for op, i in place.items() if any(map(tile.watches, accesses[op]))), len(place))
    in_order = not (alias.is_of_programs(loop) or surely_runs(loop))
    steps = [(i, step) for i, step in enumerate(schedule.steps) if accesses[step.op]]
    for (i, first), (j, second) in product(steps, steps):
        ahead = second.early - first.early, -j
        is_own = place[first.op] < place[second.op] and ahead > (0, -i)
        if is_own or (in_order or place[second.op] >= wait) and ahead > (1, -i):
            yield first.op, second.op


def _rings(schedule: LoopSchedule) -> Iterator[str]:
    """Stages are filled again behind what reads them."""
    steps = list(enumerate(schedule.steps))
    for i, copy in steps:
        if not isinstance(copy.op, shared.CopyAsync):
            continue
        stage = defining_op(copy.op.buffer, shared.Stage)
        ring = copy.op.buffer if stage is None else stage.ring
        readers = set(_takers(ring)) - {copy.op}
        for j, step in steps:
            ahead = copy.early - step.early - shared_type(ring).stages
            if (ahead, j) > (0, i) and not readers.isdisjoint(step.op.walk()):
                yield f"{step.op.name} reads a stage behind what fills it again"


def _takers(buffer: SSAValue) -> Iterator[Operation]:
    """What touches a buffer, or a view of it."""
    for use in buffer.uses:
        views = [r for r in use.operation.results if isinstance(r.type, SharedType)]
        yield from () if views else (use.operation,)
        for view in views:
            yield from _takers(view)


def _touches(op: Operation) -> bool:
    """Whether an operation itself touches memory, or must keep its place."""
    return alias.writes(op) or alias.reads(op)


def _may_conflict(x: Operation, y: Operation, overlaps: alias.Overlaps) -> bool:
    """Whether it may matter which of two accesses comes first."""
    if alias.orders(x) or alias.orders(y):
        return True
    if isinstance(x, ON_CHIP) or isinstance(y, ON_CHIP):
        return not (isinstance(x, GLOBAL) or isinstance(y, GLOBAL))
    load, other = (x, y) if _reads(x) else (y, x)
    if _reads(load):
        if tile.watches(other):
            return not alias.unwritten(load, overlaps)
        if not isinstance(other, (shared.CopyOut, *WRITES)):
            return False
    return alias.may_meet(x, y, overlaps)


def _reads(op: Operation) -> bool:
    """Whether an operation reads global memory, which nothing else writes meanwhile."""
    return alias.reads(op) or isinstance(op, shared.CopyIn)


def surely_runs(loop: Operation) -> bool:
    """Whether a loop has an iteration: that over a thread block's programs."""
    return (
        isinstance(loop, scf.ForOp)
        and isinstance(loop.lb.owner, Identity)
        and isinstance(loop.parent_op(), tile.Kernel)
    )


def _is_harmless(step: Step, schedule: LoopSchedule, loop: Loop) -> bool:
    """Whether an early step does no harm for an iteration that does not exist."""
    op, args, clamps = step.op, body_of(loop).args, step.end is End.CLAMP
    if clamps or schedule.peel:
        alike = {s.op for s in schedule.steps if (s.early, s.end) == (step.early, step.end)}
        given = args if schedule.peel else args[:1]
        if not all(v in given or v.owner in alike for v in reads(op, body_of(loop))):
            return False
    if not op.results:
        return step.end is not End.ANY
    return _may_be_loaded(step, loop) if _reads(op) else is_side_effect_free(op)


def _may_be_loaded(step: Step, loop: Loop) -> bool:
    """Whether what an early step loads is there, or it has a guard."""
    op, clamps = step.op, step.end is End.CLAMP
    if clamps and surely_runs(loop):
        return True
    if not isinstance(op, LOADS):
        return False
    if step.end is End.GUARD:
        return True
    return not _is_of_iteration(op, loop) and (clamps or not _is_unbounded(op))


def _is_of_iteration(op: Operation, loop: Loop) -> bool:
    """Whether an iteration says of which array a load is."""
    return isinstance(op, OF_ARRAYS) and is_inside(op.array, loop)


def _is_bound_to_iteration(op: Operation, loop: Loop) -> bool:
    """Whether what is loaded may be there in no iteration but the loop's own."""
    return _is_unbounded(op) or _is_of_iteration(op, loop)


def _is_unbounded(op: Operation) -> bool:
    """Whether an operation loads by pointers, or of an array that nothing bounds."""
    if isinstance(op, OF_ARRAYS):
        return is_unbounded(op.array)
    return isinstance(op, tile.LoadPointers)


# ---- the loop
# --------------------------------------------------------------------------------------------------
Slot: TypeAlias = tuple[SSAValue, int]
Known: TypeAlias = dict[tuple[SSAValue | str, int], SSAValue]


def _turn(following: SSAValue, stage: SSAValue) -> RingNext | None:
    """What turns a ring by a stage, if that gives what follows one."""
    turn = defining_op(following, RingNext)
    is_next = turn is not None and turn.next_stage is following and turn.stage is stage
    return turn if turn is not None and is_next and turn.steps is None else None


class _Writer:
    """Writes one loop. Values of the old one are named by the iteration that they are of, counted
    from the one that the new loop is in. slots: those that the new loop carries.
    """

    def __init__(self, loop: Loop, schedule: LoopSchedule):
        self.loop, self.body, self.steps = loop, body_of(loop), schedule.steps
        self.depth, self.counts_back = schedule.depth, schedule.counts_back
        self.peel = schedule.peel and self.depth > 0
        is_counted = isinstance(loop, scf.ForOp)
        self.counter, self.args = self.body.args[0], list[SSAValue](self.body.args[is_counted:])
        self.begin = loop.iter_args if isinstance(loop, scf.ForOp) else loop.arguments
        self.following = dict(zip(self.args, yielded_by(self.body), strict=True))
        self.turns = {v: turn for v, x in self.following.items() if (turn := _turn(x, v))}
        self.behind: list[Operation] = []  # what would be read before it is made
        steps = sorted(self.steps, key=lambda step: step.early)
        self.deepest: dict[SSAValue, int] = {r: s.early for s in steps for r in s.op.results}
        self.slots: list[Slot] = [] if self.peel else [(a, 0) for a in self.args]
        self._find_slots()

    def _find_slots(self) -> None:
        """What the new loop carries, in the order in which it is made."""
        done = set[Slot]()
        for step in self.steps:
            for v in reads(step.op, self.body):
                self._need(v, step.early, done)
            done.update((r, step.early) for r in step.op.results)
        for a in self.args:
            self._need(a, 1, done)
        for v, ahead in self.slots:  # which grow
            self._need(v, ahead + 1, done)
        made = [r for step in self.steps for r in step.op.results]
        order = list(self.following.values() if self.peel else (*self.args, *made))
        self.slots.sort(key=lambda slot: order.index(slot[0]) if slot[0] in order else len(order))
        self.slots += [(self.counter, 0)] * self.peel

    def _need(self, v: SSAValue, ahead: int, done: set[Slot]) -> None:
        """Carries a value where it is not made before. done: what the same iteration has made."""
        if v in self.turns:
            return
        while ahead > 0 and v in self.following:
            v, ahead = self.following[v], ahead - 1
        key = v, ahead
        is_known = v is self.counter or v in self.turns or key in done or key in self.slots
        if is_known or not _is_of(v, self.body):
            return
        if v not in self.following and self.deepest.get(v, 0) <= ahead:
            self.behind.append(owner_op(v))
            return
        self.slots.append(key)

    def write(self) -> Loop:
        """The new loop, in the old one's place."""
        loop, end, steps = self.loop, stamp(scf.YieldOp(), self.loop), list(self.steps)
        if not self.peel or isinstance(loop, scf.WhileOp):
            new, ends = self._between(loop, steps)
            return self._stand(new, ends)
        some, inside = Builder(loop).lt(loop.lb, loop.ub), Block([end])
        # nothing runs beside what stands outside: in the order of the body
        place = {op: i for i, op in enumerate(self.body.ops)}
        steps.sort(key=lambda step: (step.end is not End.ANY, place[step.op]))
        new, end.operands = self._between(end, steps)
        no = Block([stamp(scf.YieldOp(*loop.iter_args), loop)])
        types = [a.type for a in self.args]
        branch = before(loop, scf.IfOp(some, types, Region(inside), Region(no)))
        return self._stand(new, list(branch.results))

    def _stand(self, new: Loop, ends: Sequence[SSAValue]) -> Loop:
        """The new loop, when others use its results in place of the old one's."""
        replace(self.loop, ends)
        erase_dead(body_of(new))
        return new

    def _between(self, anchor: Operation, steps: list[Step]) -> tuple[Loop, list[SSAValue]]:
        """The new loop between what stands before it and behind it, before an operation; what it
        gives. steps: in the order in which they stand there.
        """
        loop = self.loop
        known: Known = {(a, self.depth): v for a, v in zip(self.args, self.begin, strict=True)}
        begin = loop.lb if isinstance(loop, scf.ForOp) else self.begin[0]
        known[self.counter, self.depth] = known["last", self.depth] = begin
        at = _Iteration(self, anchor, known)
        for first in range(self.depth, 0, -1):
            for step in (step for step in steps if step.early >= first):
                at.do(step, loop if step.end is End.ANY else anchor, first)
            at.known = {(v, ahead - 1): x for (v, ahead), x in at.known.items()}
        new = before(anchor, self._new(at))
        behind = _Iteration(self, anchor, dict(zip(self.slots, new.results, strict=True)))
        for step in (step for step in steps if self.peel and not step.early):
            behind.do(step, anchor)
        return new, [behind.value(a, self.peel) for a in self.args]

    def _new(self, at: _Iteration) -> Loop:
        """The loop, whose first iteration is `at`."""
        loop, end, start = self.loop, stamp(scf.YieldOp(), self.loop), self.depth * self.peel
        given = [at.value(*slot) for slot in self.slots]
        slots = [(self.counter, 0)] * isinstance(loop, scf.ForOp) + self.slots
        inner = Block([end], arg_types=[v.type for v, _ in slots])
        for (v, _), argument in zip(slots, inner.args, strict=True):
            argument.name_hint = v.name_hint
        known: Known = dict(zip(slots, inner.args, strict=True))
        if self.counts_back:
            known.pop((self.counter, 0), None)
        known[self.counter, start] = known["last", start] = inner.args[0]
        now = _Iteration(self, end, known, is_there=True)
        for step in self.steps:
            now.do(step, end)
        end.operands = [now.value(v, ahead + 1) for v, ahead in self.slots]
        if isinstance(loop, scf.ForOp):
            begin, upper = at.bounds(start)
            new: Loop = scf.ForOp(begin, upper, loop.step, given, Region(inner))
        else:
            test = self._test([v.type for v in given])
            new = scf.WhileOp(given, [v.type for v in given], Region(test), Region(inner))
        new.attributes |= loop.attributes
        return new

    def _test(self, types: list[Attribute]) -> Block:
        """The test of a while that carries more, all of which it passes on."""
        block = Block(arg_types=types)
        end = stamp(scf.ConditionOp(block.args[0], *block.args), self.loop)
        block.add_op(end)
        known: Known = dict(zip(self.slots, block.args, strict=True))
        end.operands[0] = _Iteration(self, end, known).exists(0)
        return block


class _Iteration:
    """One iteration of the new loop, or what stands of one before or behind it. is_there: the new
    loop has it.
    """

    def __init__(self, of: _Writer, anchor: Operation, known: Known, is_there: bool = False):
        self.of, self.anchor, self.known, self.is_there = of, anchor, known, is_there

    def value(self, v: SSAValue, ahead: int) -> SSAValue:
        """A value of the old loop, of the iteration so many ahead."""
        if not _is_of(v, self.of.body):
            return v
        if (v, ahead) in self.known:
            return self.known[v, ahead]
        if v is self.of.counter and isinstance(self.of.loop, scf.ForOp):
            return self.count(ahead, self.of.loop)
        following = self.of.following[v], ahead - 1
        if v in self.of.turns and following not in self.known:
            return self.turned(v, ahead)
        return self.value(*following)

    def count(self, ahead: int, loop: scf.ForOp) -> SSAValue:
        """The counter of a counted loop, so many steps from one that is known."""
        counter, build = self.of.counter, Builder(self.anchor)
        steps = ahead - (near := self._near(counter, ahead))
        by = loop.step if abs(steps) == 1 else build.mul(loop.step, abs(steps))
        move = build.add if steps > 0 else build.sub
        return self._noted(counter, ahead, move(self.known[counter, near], by))

    def bounds(self, ahead: int) -> tuple[SSAValue, SSAValue]:
        """Where the new loop begins, so many iterations ahead, and where it ends. It has no
        iteration where that counter is beyond its type, as it may be behind the last one of a loop.
        """
        loop, counter = self.of.loop, self.of.counter
        assert isinstance(loop, scf.ForOp)
        begin = self.value(counter, ahead)
        if not ahead or not Ranges().may_wrap(loop):
            return begin, loop.ub
        build, now = Builder(self.anchor), self.value(counter, 0)
        is_held = build.lt(now, begin)
        most = build.select(is_held, build.number(_most(counter.type), counter.type), now)
        return build.select(is_held, begin, now), build.min(loop.ub, most)

    def turned(self, v: SSAValue, ahead: int) -> SSAValue:
        """The stage of a ring, so many further than one that is known."""
        turn, near, build = self.of.turns[v], self._near(v, ahead), Builder(self.anchor)
        stages, steps = turn.stages.value.data, build.number(ahead - near)
        found = build(RingNext(self.known[v, near], turn.parity, stages, steps))
        return self._noted(v, ahead, found)

    def _near(self, v: SSAValue, ahead: int) -> int:
        """The iteration that is nearest to one, of those for which a value is known."""
        return min((n for x, n in self.known if x is v), key=lambda n: abs(n - ahead))

    def _noted(self, what: SSAValue | str, ahead: int, found: SSAValue) -> SSAValue:
        self.known[what, ahead] = found
        return found

    def last(self, ahead: int) -> SSAValue:
        """The counter, that of the last iteration where it goes beyond."""
        if ("last", ahead) in self.known:
            return self.known["last", ahead]
        there, here = self.exists(ahead), self.value(self.of.counter, ahead)
        found = Builder(self.anchor).select(there, here, self.last(ahead - 1))
        return self._noted("last", ahead, found)

    def exists(self, ahead: int) -> SSAValue:
        """Whether the loop has that iteration. It may seem so where a counter is beyond its type
        (`is_counted`).
        """
        if ("exists", ahead) in self.known:
            return self.known["exists", ahead]
        loop = self.of.loop
        if isinstance(loop, scf.ForOp):
            found = Builder(self.anchor).lt(self.value(self.of.counter, ahead), loop.ub)
            return self._noted("exists", ahead, found)
        test = loop.before_region.block
        *ops, _ = test.ops
        read = {v for op in ops for v in reads(op, test)}
        args = zip(test.args, self.of.args, strict=True)
        mapping: dict[SSAValue, SSAValue] = {x: self.value(a, ahead) for x, a in args if x in read}
        clone_slice(ops, mapping, self.anchor)
        return self._noted("exists", ahead, mapping[yielded_by(test)[0]])

    def is_counted(self, ahead: int) -> SSAValue:
        """Whether the loop has that iteration, whose counter may be beyond its type."""
        if ("is counted", ahead) not in self.known:
            self._noted("is counted", ahead, self._is_counted(ahead))
        return self.known["is counted", ahead]

    def _is_counted(self, ahead: int) -> SSAValue:
        loop, counter, build, ranges = self.of.loop, self.of.counter, Builder(self.anchor), Ranges()
        if not isinstance(loop, scf.ForOp):
            return self.exists(ahead)
        here, t = self.value(counter, ahead), counter.type
        first = min(n for v, n in self.known if v is counter)
        steps = ahead - first
        if not self._may_wrap(loop, steps, ranges):
            return self.exists(ahead)
        reached = ranges.known(loop.ub).hi + steps * ranges.known(loop.step).hi
        if self.is_there and t in SIGNED and ranges.known(loop.lb).lo >= 0:
            without_sign = UNSIGNED[SIGNED.index(t)]
            if reached <= _most(without_sign):
                return build.lt(*(build(Cast(v, without_sign)) for v in (here, loop.ub)))
        found = build.and_(build.lt(self.value(counter, ahead - 1), here), self.exists(ahead))
        if steps == 1 and self.is_there:
            return found
        return build.and_(self.is_counted(ahead - 1), found)

    def _may_wrap(self, loop: scf.ForOp, steps: int, ranges: Ranges) -> bool:
        """Whether a counter so many steps behind one that is known may be beyond its type: that of
        an iteration of the loop, or before it the counter it begins with.
        """
        if self.is_there:
            return steps > 0 and ranges.may_wrap(loop, steps)
        begin, step = ranges.known(loop.lb), ranges.known(loop.step)
        is_any = begin.is_data or begin.exact is not None
        return is_any and steps > 0 and begin.hi + steps * step.hi > _most(loop.lb.type)

    def do(self, step: Step, anchor: Operation, first: int = 0) -> None:
        """Writes a step before an operation. first: how far ahead the first of all is."""
        self.anchor, ahead, op = anchor, step.early, step.op
        clamps = step.end is End.CLAMP and ahead > 0
        mapping = {
            v: self.last(ahead) if clamps and v is self.of.counter else self.value(v, ahead)
            for v in reads(op, self.of.body)
        }
        there = None
        if self._is_guarded(step, first):
            # a block of an array that is there is read nowhere but there
            is_bound = isinstance(op, OF_ARRAYS) and not _is_bound_to_iteration(op, self.of.loop)
            there = self.exists(ahead) if is_bound else self.is_counted(ahead)
        if isinstance(op, tile.Multiple) and self._may_be_none(step, first):
            mapping |= {op.arg: self._or_zero(mapping.get(op.arg, op.arg), ahead)}
        new = before(anchor, op.clone(mapping))
        if there is not None and not is_side_effect_free(op):
            new = _guarded(new, there)
        self.known |= {(r, ahead): x for r, x in zip(op.results, new.results, strict=True)}

    def _may_be_none(self, step: Step, first: int) -> bool:
        """Whether a step may be done for an iteration that does not exist. In a loop, what is
        clamped is of the last one.
        """
        if step.early == 0 or self.of.peel and not (first and step.end is End.ANY):
            return False
        if not first:
            return not self.of.peel and step.end is not End.CLAMP
        return not (step.early == first and surely_runs(self.of.loop))

    def _or_zero(self, number: SSAValue, ahead: int) -> SSAValue:
        """What a promise is made of: an iteration that does not exist made none, and 0 is a
        multiple of all numbers. Pointers are promised nothing where nothing is loaded.
        """
        if not is_integer(element_of(number.type)):
            return number
        build, there = Builder(self.anchor), self.exists(ahead)
        return build.select(there, number, build.number(0, number.type))

    def _is_guarded(self, step: Step, first: int) -> bool:
        """Whether a step is done only where its iteration exists."""
        op, is_first = step.op, step.early == first
        if self.of.peel or is_first and (not first or surely_runs(self.of.loop)):
            return False
        if step.end is End.CLAMP:
            # what is loaded of an array without bounds is not there where there is no iteration
            return not op.results or first > 0 and _is_unbounded(op)
        return step.end is End.GUARD


def _most(t: Attribute) -> int:
    """The largest number of an integer type."""
    whole = bounds(t)
    assert whole is not None
    return whole.hi


def _guarded(op: Operation, there: SSAValue) -> Operation:
    """An operation that is done only where an iteration is there."""
    if not isinstance(op, LOADS):
        only_if(there, op)
        return op
    build = Builder(op)
    masked: Attribute | None = None if op.mask is None else op.mask.type
    if masked is None and op.results and isinstance(t := op.results[0].type, TileType):
        masked = TileType(t.extents, i1, t.layout)
    if isinstance(masked, TileType):
        there = build(tile.Splat(there, masked))
    if op.mask is not None:
        there = build.and_(op.mask, there)
    new: tile.Load | tile.LoadPointers | shared.CopyAsync
    if isinstance(op, tile.LoadPointers):
        new = tile.LoadPointers(op.pointers, there, op.other)
    elif isinstance(op, tile.Load):
        extents = op.extents.get_values()
        new = tile.Load(op.array, op.offsets, extents, there, op.other, op.result.type)
    else:
        extents = op.extents.get_values()
        new = shared.CopyAsync(op.array, op.offsets, op.buffer, extents, there, op.other, op.after)
    new.properties = op.properties | new.properties
    new.attributes |= op.attributes
    replace(op, new)
    return new
