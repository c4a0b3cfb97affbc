"""One producer for co-resident programs (programs/co_resident.py). A step of roles.py.

    producer, for each tile group of three        consumers, one warpgroup and program each

      Q of each, one after the other                wait for its own Q, stage + %instance
      for %n from the first program's begin         for each block of the group before its own:
             to the last one's end:                   wait, release
        wait until K's stage is free                for %n from its own begin to its own end:
        K of %n                                       wait, dots, release
                                                    epilogue
                                                    for each block of the group behind its own:
                                                      wait, release

What is loaded outside of loops each program has in stages of its own; a stage of what they share is
free when all have released it. A program takes part in the phases it does not need, too: a parity
tells a phase from the next one only, and a program that skipped one would be lapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects import scf
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from tkc.errors import VerifyError
from tkc.ir import shared, threads
from tkc.ir.elementwise import CLASSES, Cast
from tkc.ir.rewrite import (
    Builder,
    before,
    clone_slice,
    defining_slice,
    erase,
    following,
    holding,
    replace,
)
from tkc.ir.values import (
    block_of,
    defining_op,
    first_of,
    index_of,
    next_of,
    operations_in,
    owner_op,
    parent_of,
    shared_type,
    terminator_of,
)
from tkc.passes.analysis.trips import steps_to, trips
from tkc.passes.programs.co_resident import walked
from tkc.passes.warpgroups.rings import group_of, ring_of, stage_of, step_of


@dataclass(eq=False)
class Span:
    """A loop, and where it begins and ends for all of a tile group's programs together."""

    loop: scf.ForOp
    first: SSAValue
    last: SSAValue
    begun: bool  # its first block is loaded before it, be there an iteration or not

    def of(self, mapping: dict[SSAValue, SSAValue]) -> Span:
        """The span in a copy of the program."""
        loop = mapping[self.loop.body.block.args[0]].owner.parent_op()
        if not isinstance(loop, scf.ForOp):
            raise VerifyError("co_resident: a copied loop is no loop")
        first, last = (mapping.get(v, v) for v in (self.first, self.last))
        return Span(loop, first, last, self.begun)


class CoResident:
    """The programs of a role's loop over tile_groups."""

    def __init__(self, role: threads.Role, count: int, spans: dict[SSAValue, Span]):
        self.role, self.count, self.spans = role, count, spans
        self.programs = next(op for op in role.body.block.ops if isinstance(op, scf.WhileOp))
        self.member = next(
            op
            for op in role.walk()
            if isinstance(op, threads.Identity) and op.what.data == "member"
        )
        self.own = following(self.member, self.body.ops)

    @property
    def body(self) -> Block:
        return self.programs.after_region.block

    def _copies(self) -> list[shared.CopyAsync]:
        return operations_in(self.body, shared.CopyAsync)


def spans(programs: scf.WhileOp, count: int) -> dict[SSAValue, Span]:
    """For each ring that all programs of a tile group read, from where to where the loop walks that
    fills it.
    """
    body, walks = programs.after_region.block, shared_by(programs)
    member = next(
        op for op in body.walk() if isinstance(op, threads.Identity) and op.what.data == "member"
    )
    found = {
        loop: _span(loop, member, following(member, body.ops), count, _is_begun(walks, loop, body))
        for loop in dict.fromkeys(walks.values())
    }
    return {ring: found[loop] for ring, loop in walks.items()}


def _is_begun(walks: dict[SSAValue, scf.ForOp], loop: scf.ForOp, body: Block) -> bool:
    """Whether a program's first block of what a loop loads is loaded before all branches."""
    copies = [op for op in body.ops if isinstance(op, shared.CopyAsync)]
    return any(walks.get(ring_of(copy)) is loop for copy in copies)


def _span(
    loop: scf.ForOp, member: threads.Identity, own: set[Operation], count: int, begun: bool
) -> Span:
    first, last, step = walked(loop)
    anchor = behind_all(block_of(member), walked(loop))
    build = Builder(anchor)
    begins, ends = zip(
        *(_of(n, [first, last], member, own, anchor) for n in range(count)), strict=False
    )
    low = reduce(build.min, begins) if first.owner in own else first
    high = reduce(
        build.max,
        [low, *(build.select(build.lt(b, e), e, low) for b, e in zip(begins, ends, strict=False))],
    )
    return Span(loop, low, build.max(high, build.add(low, step)) if begun else high, begun)


def _of(
    n: int, values: list[SSAValue], member: threads.Identity, own: set[Operation], anchor: Operation
) -> list[SSAValue]:
    """What values are in one of the programs."""
    mapping: dict[SSAValue, SSAValue] = {member.result: Builder(anchor).number(n)}
    clone_slice(
        [op for op in defining_slice(values, block_of(member)) if op in own], mapping, anchor
    )
    return [mapping.get(v, v) for v in values]


def behind_all(body: Block, values: Sequence[SSAValue]) -> Operation:
    """Where values are known, and nothing has asked for them."""
    last = first_of(body)
    for v in values:
        if (
            isinstance(v.owner, Operation)
            and v.owner.parent is body
            and last.is_before_in_block(v.owner)
        ):
            last = v.owner
    return next_of(last)


def shared_by(programs: scf.WhileOp) -> dict[SSAValue, scf.ForOp]:
    """The rings that a program's loops fill, which all programs of a tile group read, and each
    one's loop.
    """
    found: dict[SSAValue, scf.ForOp] = {}
    for loop in operations_in(programs, scf.ForOp):
        for copy in loop.walk():
            if (
                isinstance(copy, shared.CopyAsync)
                and found.setdefault(ring_of(copy), loop) is not loop
            ):
                raise VerifyError("co_resident: two loops fill one ring")
    return found


class Producer(CoResident):
    """Loads for all of a tile_group."""

    def gather(self) -> None:
        """What each program has of its own is loaded for one after the other; loops become those of
        the tile_group.
        """
        for wait in [op for op in self.body.ops if isinstance(op, shared.WaitCopies)]:
            self._each(wait)
        for span in dict.fromkeys(self.spans.values()):
            first, last, _ = walked(span.loop)
            for old, new in ((first, span.first), (last, span.last)):
                if old is not new and old.owner in self.own:
                    old.replace_all_uses_with(new)
            _enter(span)
        # what else there is of a program is not the producer's
        replace(self.member, [Builder(self.member).number(0)])

    def _each(self, wait: shared.WaitCopies) -> None:
        """The copies that a wait of the program's top waits for, once for each program, in stages
        that follow one another.
        """
        copies = group_of(wait)
        if ring_of(copies[0]) in self.spans:
            return
        join = defining_op(wait.tokens[0], shared.JoinTokens)
        joins = [] if join is None else [join]
        step = step_of(copies[0])
        buffers = dict.fromkeys(owner_op(copy.buffer) for copy in copies)
        group = [*buffers, *copies, *joins, wait, step]
        states = self._states(step)
        self._clone_for_members(copies, group, states, step)
        replace(step, states[-1])
        for op in (wait, *joins, *copies):
            for result in op.results:
                if result.first_use:
                    result.replace_all_uses_with(before(op, shared.NoToken()).token)
            erase(op)

    def _states(self, step: threads.RingNext) -> list[Sequence[SSAValue]]:
        """Stage and parity of each program's copies, and of what comes after the last one's."""
        build, stage, stages = Builder(step), step.stage, step.stages.value.data
        further = (
            build.do(threads.RingNext(stage, step.parity, stages, build.number(n))).results
            for n in range(1, self.count + 1)
        )
        return [(stage, step.parity), *further]

    def _clone_for_members(
        self, copies: list, group: list[Operation], states: list, step: threads.RingNext
    ) -> None:
        """A group of operations, and what of a program's own it needs, for each program."""
        stage = step.stage
        needed = [
            op
            for op in defining_slice([v for copy in copies for v in copy.operands], self.body)
            if op in self.own and op not in group
        ]
        others = self._places(step)
        for member, state in enumerate(states[:-1]):
            for anchor in others if member else [step]:
                known = {
                    self.member.result: Builder(anchor).number(member),
                    stage: state[0],
                    step.parity: state[1],
                }
                clone_slice([*needed, *group], known, anchor)

    def _places(self, step: Operation) -> list[Operation]:
        """Where a tile group's other programs get what is their own: behind the first block of what
        they share, in each way through the branch round the loop, so that the first one can begin.
        """
        behind = [op for op in self.body.ops if step.is_before_in_block(op)]
        around, *_ = *holding(behind, shared.CopyAsync), None
        if not isinstance(around, scf.IfOp):
            return [self._behind_shared(behind) or step]
        ways = [region.block for region in around.regions]
        return [self._behind_shared(way.ops) or first_of(way) for way in ways]

    def _behind_shared(self, ops: Iterable[Operation]) -> Operation | None:
        """What follows the first wait for copies, if these are of what programs share."""
        wait = next((op for op in ops if isinstance(op, shared.WaitCopies)), None)
        found = wait is not None and ring_of(group_of(wait)[0]) in self.spans
        return next_of(wait) if wait is not None and found else None


class Consumer(CoResident):
    """One program of a tile_group."""

    def part(self, full: dict[SSAValue, SSAValue]) -> None:
        """Its stages of each ring: those of its own, and where in the tile group's stream its loop
        begins; behind its program, where the tile group's ends.
        """
        replace(self.member, [self.role.instance])
        firsts = {ring_of(copy): copy for copy in reversed(self._copies())}
        carried = {r: self._carried(stage_of(c.buffer).index[0]) for r, c in firsts.items()}
        for ring, state in carried.items():
            if ring not in self.spans:
                self._keep_own(shared_type(ring).stages, *state)
        for span in dict.fromkeys(self.spans.values()):
            # those that fill together are one
            rings = {carried[ring]: ring for ring, found in self.spans.items() if found is span}
            self._pass_others(span, list(rings.values()), list(rings), full)

    def _keep_own(self, stages: int, stage: BlockArgument, parity: BlockArgument) -> None:
        """Of a ring in which each program has stages of its own, those of this one."""
        start, end = first_of(self.body), terminator_of(self.body)
        mine = before(start, threads.RingNext(stage, parity, stages, self.role.instance))
        whole = Builder(end).number(self.count)
        over = before(end, threads.RingNext(stage, parity, stages, whole))
        self._become((stage, parity), mine.results, over.results)

    def _pass_others(
        self,
        span: Span,
        rings: list[SSAValue],
        states: list[tuple[BlockArgument, BlockArgument]],
        full: dict[SSAValue, SSAValue],
    ) -> None:
        """The stages of rings that all programs read, before this one's own and behind."""
        (first, last, step), end = walked(span.loop), terminator_of(self.body)
        build = Builder(behind_all(self.body, [first, last, step, span.first, span.last]))
        some, whole = build.lt(first, last), trips(build, span.first, span.last, step)
        head = build.select(some, steps_to(build, span.first, first, step), 0)
        own = build.select(some, trips(build, first, last, step), int(span.begun))
        tail = build.sub(whole, build.add(head, own))
        begins: Sequence[Sequence[SSAValue]] = states
        if first is not span.first:
            begins = _passed(build, head, rings, full, states)
        ends = [[end.operands[v.index] for v in state] for state in states]
        if span.begun:
            self._pass_first(rings, ends, full, span.loop)
        # behind results, which need not wait for these; before the next claim, which follows the
        # last of them
        claimed = next(op for op in self.body.ops if isinstance(op, threads.MbarrierWait))
        behinds = _passed(Builder(claimed), tail, rings, full, ends)
        for each, begin, behind in zip(states, begins, behinds, strict=True):
            self._become(each, begin, behind)

    def _pass_first(
        self, rings: list[SSAValue], ends: list, full: dict[SSAValue, SSAValue], loop: scf.ForOp
    ) -> None:
        """A program without blocks of its own has the first one for its first dot alone: it passes
        what else that is. ends: stages and parities behind the branch round the loop.
        """
        begun = {ring_of(op) for op in self.body.ops if isinstance(op, shared.CopyAsync)}
        end = terminator_of(parent_of(loop, scf.IfOp).regions[1].block)
        for ring, results in zip(rings, ends, strict=True):
            if ring in begun:
                continue
            stage, parity = (end.operands[index_of(v)] for v in results)
            before(end, threads.MbarrierWait(full[ring], stage, parity))
            step = before(end, threads.RingNext(stage, parity, shared_type(ring).stages))
            for old, new in zip(results, step.results, strict=True):
                end.operands[index_of(old)] = new

    def _become(
        self, state: Sequence[BlockArgument], mine: Sequence[SSAValue], over: Sequence[SSAValue]
    ) -> None:
        """A ring's stage and parity as the program finds them, and leaves them."""
        for old, new, behind in zip(state, mine, over, strict=False):
            for use in list(old.uses):
                if new is not old and use.operation not in (new.owner, behind.owner):
                    use.operation.operands[use.index] = new
            terminator_of(self.body).operands[old.index] = behind

    def _carried(self, stage: SSAValue) -> tuple[BlockArgument, BlockArgument]:
        """The stage and parity of a ring as the loop over programs carries them."""
        while not (isinstance(stage.owner, Block) and stage.owner is self.body):
            loop = stage.owner.parent_op() if isinstance(stage.owner, Block) else None
            if not isinstance(loop, scf.ForOp) or index_of(stage) == 0:
                raise VerifyError("co_resident: a ring's stage is not what its loops carry")
            stage = loop.iter_args[index_of(stage) - 1]
        index = index_of(stage)
        return self.body.args[index], self.body.args[index + 1]


def _enter(span: Span) -> None:
    """A tile group whose first block is loaded in any case has an iteration: the branch round its
    loop is taken (roles.py leaves that way alone).
    """
    branch = span.loop.parent_op()
    if not span.begun or not isinstance(branch, scf.IfOp):
        return
    asked = branch.cond.owner
    if isinstance(asked, CLASSES["lt"]) and list(asked.operands) == [span.first, span.last]:
        branch.operands[0] = Builder(branch).number(1, i1)


def _passed(
    build: Builder,
    count: SSAValue,
    rings: list[SSAValue],
    full: dict[SSAValue, SSAValue],
    states: Sequence[Sequence[SSAValue]],
) -> Sequence[Sequence[SSAValue]]:
    """Stages that a program has no use for: of all rings of a loop together, as the producer fills
    them.
    """
    body = Block(arg_types=[i32] * (1 + 2 * len(rings)))
    following: list[SSAValue] = []
    for ring, stage, parity in zip(rings, body.args[1::2], body.args[2::2], strict=False):
        stage.name_hint, parity.name_hint = "stage", "parity"
        step = threads.RingNext(stage, parity, shared_type(ring).stages)
        # released at the block's end (consuming.py)
        body.add_ops([threads.MbarrierWait(full[ring], stage, parity), step])
        following += step.results
    body.add_op(scf.YieldOp(*following))
    if count.type != i32:
        # a loop over arrays of more than 2³¹ elements counts in 64 bits, stages never do
        count = build(Cast(count, i32))
    loop = build.do(
        scf.ForOp(
            build.number(0),
            count,
            build.number(1),
            [v for state in states for v in state],
            Region(body),
        )
    )
    return list(zip(loop.results[::2], loop.results[1::2], strict=False))
