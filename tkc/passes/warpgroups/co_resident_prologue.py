"""Cross-tile prologue of co-resident programs: a program's first dot is in flight during the
epilogue of the one before it. Runs behind roles.py, for plans with `cross_tile_prologue`.

    consumer, for each program:                for each program; %s: its first scores, if %ahead
      wait Q                                     wait Q and pass earlier blocks, unless %ahead
      pass the blocks before its own             if it has any blocks:
      if it has any blocks:                        S = if %ahead: %s  else: wait K; q·k[0]; wait
        wait K;  S = q·k[0];  wait for S           softmax, loop, last dot
        softmax, loop, last dot            ->      pass the blocks behind its own;  claim
        wait for it                                if the next program has blocks of its own:
      epilogue                                       wait its Q;  pass blocks;  wait K;  S' = q·k[0]
      pass the blocks behind its own;  claim         wait for the last dot alone
                                                     epilogue while S' is computed;  wait for S'
                                                   else: wait for the last dot
                                                 epilogue, unless done
                                                 yield S', whether it is there

cross_tile_prologue.py does this for programs that a block takes one by one, whatever comes next;
here the next one may be a padding tile, and blocks that other programs need are passed in between.
So the epilogue is written in both branches: ptxas waits at once for a dot that is in flight where
two paths join if only one of them issued it (C7517), and keeps the old registers for the other
(C7512).

The stage of the last dot's operand is released behind that dot, so nothing may be waited for that
the producer loads only then: the blocks behind a program's own and before the next one's must all
fit the ring beside it. Where they do not, the program ends with its last dot as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from xdsl.dialects import scf
from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.errors import VerifyError
from tkc.ir import threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import (
    Builder,
    before,
    clone_slice,
    defining_slice,
    erase,
    rebuild_while,
    replace,
    stamp,
    with_results,
)
from tkc.ir.values import index_of, is_side_effect_free, terminator_of, yielded_by
from tkc.passes.warpgroups.lookahead import freed

WAITS = threads.MbarrierWait, threads.MbarrierArrive, threads.Fence
# what loops have that pass blocks
PASSING = (
    scf.ForOp,
    threads.MbarrierWait,
    threads.MbarrierArrive,
    threads.RingNext,
    scf.YieldOp,
)


def overlap_epilogue(consumer: threads.Role) -> bool:
    """False where programs begin or end with something else."""
    prologue = Prologue.of(
        next(op for op in consumer.body.block.ops if isinstance(op, scf.WhileOp))
    )
    if prologue is None:
        return False
    prologue.end()
    prologue.begin()
    return True


@dataclass
class Prologue:
    """How a program of a role begins and ends."""

    loop: scf.WhileOp
    branch: scf.IfOp  # round what a program does that has blocks of its own
    # what it waits for before: what is its own, and the blocks before its first one
    arrivals: list[Operation]
    first: list[Operation]  # its first dot: waits, fence, dot, commit
    landed: threads.DotWait  # and the wait for it
    last: threads.DotWait  # the wait for its last dot
    closing: list[Operation]  # behind results: the blocks behind its own, and the claim
    given: list[SSAValue]  # what the next program knows from these
    results: list[Operation]  # how results are stored
    made: list[Operation]  # what is computed of the last dot, before that

    @property
    def body(self) -> Block:
        return self.loop.after_region.block

    @property
    def dot(self) -> threads.DotAsync:
        return next(op for op in self.first if isinstance(op, threads.DotAsync))

    @property
    def way(self) -> Block:
        return self.branch.regions[0].block

    @staticmethod
    def of(loop: scf.WhileOp) -> Prologue | None:
        """None where programs begin or end with something else."""
        body = loop.after_region.block
        branch = _branch_of_dots(body)
        if branch is None:
            return None
        ops = list(branch.regions[0].block.ops)
        waits = [op for op in ops if isinstance(op, threads.DotWait)]
        first = _first_dot(ops, waits)
        if first is None:
            return None
        arrivals = [op for op in body.ops if op.is_before_in_block(branch) and _waits_or_passes(op)]
        behind = [op for op in body.ops if branch.is_before_in_block(op)]
        closing = _closing(behind)
        given = _read_elsewhere(closing)
        later = defining_slice(yielded_by(body), body)
        # the rest is the epilogue, with what is computed of the last dot if nothing else needs it
        apart = {*closing, *later, body.last_op}
        results = [op for op in behind if op not in apart]
        made = ops[ops.index(waits[-1]) + 1 + len(freed(waits[-1])) : -1]
        if not _is_of_epilogue(made, _needed_early(branch, [*closing, *later])):
            return None
        if not results or not _states(arrivals, body) <= set(given):
            return None
        return Prologue(
            loop, branch, arrivals, first, waits[0], waits[-1], closing, given, results, made
        )

    # ---- the end
    # ----------------------------------------------------------------------------------------------
    def end(self) -> None:
        """What stood behind results stands under the last dot, and the next program's first dot
        behind it; results are stored while that is computed, or behind the branch where there is no
        such dot.
        """
        n = len(self.last.results)
        chosen = self._choose_way()
        other = terminator_of(self.branch.regions[1].block)
        known = self._close(other, list(other.operands))
        ways: list[list[SSAValue]] = [
            list(chosen.results[n:]),
            [*(known[v] for v in self.given), *self._nothing(other)],
        ]
        for op in freed(self.last):
            erase(op)
        replace(self.last, list(chosen.results[:n]))
        closing = [op for op in reversed(list(self.body.ops)) if op in self.closing]
        self._hand_on(ways)
        for op in closing:
            erase(op)
        self._store_alone()

    def _choose_way(self) -> scf.IfOp:
        """Behind the last dot: where the ring has room for the blocks of what closes the program,
        that stands under the dot, and the next program's first dot, if there is one, behind it;
        else the dot ends first. Results are the dot's, what is handed on, whether the next
        program's first dot is issued, and that.
        """
        anchor, build = self.last, Builder(self.last)
        yields = list(yielded_by(self.way))
        passes = _passes(self.closing)
        room = _stages_of(passes) - 1
        total = self._count_of_passes(build, passes)
        kinds = [
            *(v.type for v in self.last.results),
            *(v.type for v in self.given),
            i1,
            self.landed.results[0].type,
        ]
        quick, slow, go, stay = (Block([scf.YieldOp()]) for _ in range(4))
        chosen = before(anchor, scf.IfOp(build.le(total, room), kinds, Region(quick), Region(slow)))
        known = self._close(terminator_of(quick), yields)
        values = [known[v] for v in self.given]
        going = self._next(terminator_of(quick), known, total, room)
        nested = before(terminator_of(quick), scf.IfOp(going, kinds, Region(go), Region(stay)))
        terminator_of(quick).operands = nested.results
        terminator_of(go).operands = self._go(terminator_of(go), known, yields, values)
        terminator_of(stay).operands = [
            *self._complete(terminator_of(stay)),
            *values,
            *self._nothing(terminator_of(stay)),
        ]
        sums = self._complete(terminator_of(slow))
        known = self._close(terminator_of(slow), yields)
        terminator_of(slow).operands = [
            *sums,
            *(known[v] for v in self.given),
            *self._nothing(terminator_of(slow)),
        ]
        return chosen

    def _count_of_passes(self, build: Builder, passes: list[scf.ForOp]) -> SSAValue:
        """The stages that what closes a program passes over, known at the last dot."""
        counts: dict[SSAValue, SSAValue] = {}
        needed = defining_slice([pass_.ub for pass_ in passes], self.body)
        early = [op for op in needed if self.branch.is_before_in_block(op)]
        clone_slice(early, counts, self.last)
        return _sum(build, [counts.get(pass_.ub, pass_.ub) for pass_ in passes])

    def _hand_on(self, ways: list[list[SSAValue]]) -> None:
        """What each way through the branch gives, as results of the branch."""
        place, first = self.branch.prev_op, self.body.first_op
        *given, self.ahead, self.scores = with_results(self.branch, ways)
        branch = place.next_op if place is not None else first
        if not isinstance(branch, scf.IfOp):
            raise VerifyError("co_resident: the branch of a program was not replaced by a branch")
        self.branch = branch
        for old, new in zip(self.given, given, strict=False):
            old.replace_all_uses_with(new)

    def _store_alone(self) -> None:
        """Results are stored behind the branch where the next program's first dot is not issued."""
        at = self.results[0]
        one = before(at, tile.Constant(1, i1)).result
        none = before(at, CLASSES["xor"](self.ahead, one)).result
        alone = before(at, scf.IfOp(none, [], Region(Block([scf.YieldOp()]))))
        for op in self.results:
            op.detach()
            before(terminator_of(alone.regions[0].block), op)

    def _complete(self, anchor: Operation) -> list[SSAValue]:
        """The last dot is over, and what it read is released."""
        wait = before(anchor, threads.DotWait(0, self.last.args))
        for op in freed(self.last):
            before(anchor, op.clone())
        return list(wait.results)

    def _nothing(self, anchor: Operation) -> list[SSAValue]:
        return [
            before(anchor, tile.Constant(0, t)).result for t in (i1, self.landed.results[0].type)
        ]

    def _close(self, anchor: Operation, yields: list[SSAValue]) -> dict[SSAValue, SSAValue]:
        """A copy of what closes a program, in a way through the branch that yields these values."""
        needed = set(
            defining_slice(
                [v for op in self.closing for inner in op.walk() for v in inner.operands], self.body
            )
        )
        known: dict[SSAValue, SSAValue] = dict(zip(self.branch.results, yields, strict=True))
        clone_slice(
            [
                op
                for op in self.body.ops
                if op in self.closing or op in needed and self.branch.is_before_in_block(op)
            ],
            known,
            anchor,
        )
        return known

    def _go(
        self,
        anchor: Operation,
        known: dict[SSAValue, SSAValue],
        yields: list[SSAValue],
        values: list[SSAValue],
    ) -> list[SSAValue]:
        """The next program's first dot is issued, and results are stored."""
        where = dict(known)
        clone_slice(self._first_of_next(where), where, anchor)
        states = {
            where[old]: where[new]
            for pass_ in _passes(self.arrivals)
            for old, new in zip(pass_.iter_args, pass_.results, strict=False)
        }
        sums = self._store_under_first(anchor, where, yields)
        scores = before(anchor, threads.DotWait(0, [sums[-1]])).results[0]
        for op in freed(self.landed):
            before(anchor, op.clone(where))
        return [
            *sums[:-1],
            *(states.get(v, v) for v in values),
            before(anchor, tile.Constant(1, i1)).result,
            scores,
        ]

    def _first_of_next(self, where: dict[SSAValue, SSAValue]) -> list[Operation]:
        """What the next program's first dot takes, that is not known yet."""
        wanted = {*self.arrivals, *self.first}
        read = [v for op in wanted for inner in op.walk() for v in inner.operands]
        needed = {
            *defining_slice(read, self.body),
            *defining_slice([v for op in self.first for v in op.operands], self.way),
        }
        of_way = [v for op in needed if op.parent is self.way for v in op.operands]
        needed |= set(defining_slice(of_way, self.body))
        return [
            op
            for op in (*self.body.ops, *self.way.ops)
            if op in wanted or op in needed and not all(r in where for r in op.results)
        ]

    def _store_under_first(
        self, anchor: Operation, where: dict[SSAValue, SSAValue], yields: list[SSAValue]
    ) -> list[SSAValue]:
        """The last dot is over, and results are stored under the next program's first one; the last
        dot's sums, and the first one, still pending.
        """
        count = len(self.last.args)
        pending = [*self.last.args, where[self.dot.result]]
        both = before(anchor, threads.DotWait(1, pending, [True] * count + [False]))
        for op in freed(self.last):
            before(anchor, op.clone())
        sums: dict[SSAValue, SSAValue] = dict(
            zip(self.last.results, both.results[:count], strict=True)
        )
        clone_slice(self.made, sums, anchor)
        shown = zip(self.branch.results, (sums.get(v, v) for v in yields), strict=False)
        clone_slice(self.results, dict(shown), anchor)
        return list(both.results)

    def _next(
        self, anchor: Operation, known: dict[SSAValue, SSAValue], total: SSAValue, room: int
    ) -> SSAValue:
        """Whether there is a next program that has blocks of its own, and the ring room for those
        before them. What is known then of its values.
        """
        ends, build = yielded_by(self.body), Builder(anchor)
        clone_slice(
            [
                op
                for op in defining_slice(ends, self.body)
                if self.branch.is_before_in_block(op) and not all(r in known for r in op.results)
            ],
            known,
            anchor,
        )
        known |= {
            argument: known.get(v, v) for argument, v in zip(self.body.args, ends, strict=False)
        }
        test = self.loop.before_region.block
        asked: dict[SSAValue, SSAValue] = {
            argument: known[a] for argument, a in zip(test.args, self.body.args, strict=True)
        }
        clone_slice([op for op in test.ops if op is not test.last_op], asked, anchor)
        heads = _passes(self.arrivals)
        clone_slice(
            [
                op
                for op in defining_slice(
                    [self.branch.cond, *(pass_.ub for pass_ in heads)], self.body
                )
                if op not in self.arrivals
            ],
            known,
            anchor,
        )
        going = build.and_(
            asked[yielded_by(test)[0]], known.get(self.branch.cond, self.branch.cond)
        )
        return (
            build.and_(
                going, build.le(_sum(build, [total, *(known.get(p.ub, p.ub) for p in heads)]), room)
            )
            if heads
            else going
        )

    # ---- the beginning
    # ----------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """A program whose first dot was issued before neither waits for what that reads nor passes
        what is before it.
        """
        nothing = [
            before(self.loop, tile.Constant(0, v.type)).result for v in (self.ahead, self.scores)
        ]
        self.loop = rebuild_while(self.loop, nothing)
        ahead, scores = self.body.args[-2:]
        ahead.name_hint, scores.name_hint = "ahead", "scores"
        terminator_of(self.body).operands = [*yielded_by(self.body), self.ahead, self.scores]
        for op in self.arrivals:
            if isinstance(op, threads.MbarrierWait):
                replace(op, threads.MbarrierWait(op.barriers, op.index[0], op.parity, ahead))
            else:
                op.operands[1] = Builder(op).select(ahead, 0, op.operands[1])
        anew = [*self.first, self.landed, *freed(self.landed)]
        yes, no = Block([scf.YieldOp(scores)]), Block()
        branch = before(self.landed, scf.IfOp(ahead, [scores.type], Region(yes), Region(no)))
        self.landed.results[0].replace_all_uses_with(branch.results[0])
        for op in anew:
            op.detach()
            no.add_op(op)
        no.add_op(stamp(scf.YieldOp(self.landed.results[0]), self.landed))


def _has_dots(op: Operation | Region) -> bool:
    return any(isinstance(inner, threads.DotAsync) for inner in op.walk())


def _branch_of_dots(body: Block) -> scf.IfOp | None:
    """The branch that has all dots of a program, in its first way."""
    with_dots = [op for op in body.ops if _has_dots(op)]
    branch = with_dots[0] if len(with_dots) == 1 else None
    if not isinstance(branch, scf.IfOp) or _has_dots(branch.regions[1]):
        return None
    return branch


def _first_dot(ops: list[Operation], waits: list[threads.DotWait]) -> list[Operation] | None:
    """How a program begins: its first dot with what it waits for and its commit, in straight code;
    None where it begins or ends with something else than one dot.
    """
    dot = next((op for op in ops if isinstance(op, threads.DotAsync)), None)
    if dot is None or dot.acc is not None or not isinstance(dot.next_op, threads.DotCommit):
        return None
    if len(waits) < 2 or list(waits[0].args) != [dot.result]:
        return None
    if any(wait.pending.value.data for wait in (waits[0], waits[-1])):
        return None
    head = ops[: ops.index(dot) + 2]
    if any(op.regions for op in head):
        return None
    return [op for op in head if isinstance(op, (*WAITS, threads.DotAsync, threads.DotCommit))]


def _passes_blocks(op: Operation) -> bool:
    """Whether a loop does nothing but wait for blocks of other programs and release them."""
    return isinstance(op, scf.ForOp) and all(isinstance(inner, PASSING) for inner in op.walk())


def _waits_or_passes(op: Operation) -> bool:
    return isinstance(op, threads.MbarrierWait) or _passes_blocks(op)


def _closing(behind: list[Operation]) -> list[Operation]:
    """What passes the blocks behind a program's own, and claims the next program: of what stands
    behind the branch, with the barriers of the claim and what the next program knows from it.
    """
    claimed = {op.index[0] for op in behind if isinstance(op, threads.MbarrierWait)}
    return [
        op
        for op in behind
        if _waits_or_passes(op)
        or isinstance(op, threads.BroadcastLoad)
        or isinstance(op, threads.MbarrierArrive)
        and op.index[0] in claimed
    ]


def _read_elsewhere(ops: list[Operation]) -> list[SSAValue]:
    """What some operations say that others read."""
    return [r for op in ops for r in op.results if any(use.operation not in ops for use in r.uses)]


def _is_of_epilogue(made: list[Operation], early: list[SSAValue]) -> bool:
    """Whether what is computed of the last dot may be computed later: early needs none of it."""
    pure = all(not op.regions and is_side_effect_free(op) for op in made)
    return pure and not any(v.owner in made for v in early)


def _needed_early(branch: scf.IfOp, ops: list[Operation]) -> list[SSAValue]:
    """What the first way of a branch yields for some operations behind it."""
    read = {v for op in ops for inner in op.walk() for v in inner.operands}
    yielded = yielded_by(branch.regions[0].block)
    return [yielded[branch.results.index(v)] for v in read if v in branch.results]


def _states(arrivals: list[Operation], body: Block) -> set[SSAValue]:
    """What a program yields to the next one's loops that pass blocks."""
    return {
        yielded_by(body)[index_of(a)]
        for op in _passes(arrivals)
        for a in op.iter_args
        if isinstance(a.owner, Block) and a.owner is body
    }


def _passes(ops: list[Operation]) -> list[scf.ForOp]:
    return [op for op in ops if isinstance(op, scf.ForOp)]


def _sum(build: Builder, values: list[SSAValue]) -> SSAValue:
    return reduce(build.add, values) if values else build.number(0)


def _stages_of(passes: list[scf.ForOp]) -> int:
    """The fewest stages of a ring that loops pass over."""
    return min(
        (
            op.stages.value.data
            for pass_ in passes
            for op in pass_.walk()
            if isinstance(op, threads.RingNext)
        ),
        default=1,
    )
