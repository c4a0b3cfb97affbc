"""Ping-pong: two consumers of one warpgroup each take a block's programs in turn. The last step of
roles.py for plans with two programs.

    role consumer {warps = 4, copies = 2}: ^(%instance)
      the second arrives at the first one's turn              hardware barriers 1 and 2
      for %program = first + who·blocks to … step 2·blocks, from the stage who·n further on:
        barrier my turn
        for k: …dots…                                         one issues dots, alone,
        barrier_arrive the other's turn
        wait for the accumulator; epilogue                    while the other is in its epilogue
        stage and parity go n steps on                        n: the stages that its program uses

Where the trip count depends on the program, n is computed for the other's: the one that comes after
this one. Buffers that a consumer writes have a stage for each consumer. The producer is as for one
consumer: it fills stages in the order of programs.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.errors import VerifyError
from tkc.ir import shared, threads
from tkc.ir.elementwise import Cast
from tkc.ir.rewrite import (
    Builder,
    after,
    before,
    clone_slice,
    erase,
    holding,
    is_inside,
    slice_inside,
    stamp,
)
from tkc.ir.types import SharedType
from tkc.ir.values import block_of, first_of, index_of, parent_of, terminator_of, yielded_by
from tkc.passes.analysis.trips import trips
from tkc.passes.analysis.values import LOADS

CONSUMER_THREADS = 256  # of both consumers


def alternate(role: threads.Role) -> None:
    """Makes the two instances of a role run every second program each."""
    block = role.body.block
    loop = next(op for op in block.ops if isinstance(op, scf.ForOp))
    own_buffers(role)
    build = Builder(loop)
    one, two = build.number(1), build.number(2)
    mine, other = build.add(role.instance, one), build.sub(two, role.instance)
    waits = Block()
    branch = before(loop, scf.IfOp(build.eq(role.instance, one), [], [waits]))
    waits.add_ops([threads.BarrierArrive(other, CONSUMER_THREADS), scf.YieldOp()])
    stamp(branch, loop)
    _take_turns(loop, mine, other)
    body, updates = loop.body.block, []
    end = terminator_of(body)
    others = _Steps(loop, end, Builder(end).add(body.args[0], loop.step))
    own = _Steps(loop, loop, loop.lb)
    for i, (stage, parity) in enumerate(zip(loop.iter_args, loop.iter_args[1:], strict=False)):
        used, stages = own.carried(i), own.stages
        passed = others.carried(i) if own.depends else used
        if used is None or passed is None:
            continue
        before_it = build.mul(role.instance, used)
        first = build.do(threads.RingNext(stage, parity, stages, before_it))
        stage, parity = end.operands[i : i + 2]
        over = before(end, threads.RingNext(stage, parity, stages, passed))
        updates.append((i, first, over))
    for i, first, over in updates:
        for j in (0, 1):
            loop.operands[3 + i + j] = first.results[j]
            end.operands[i + j] = over.results[j]
    loop.operands[0] = build.add(loop.lb, build.mul(role.instance, loop.step))
    loop.operands[2] = build.mul(loop.step, two)


def _take_turns(loop: scf.ForOp, mine: SSAValue, other: SSAValue) -> None:
    """A program's dots are a turn."""
    dots = holding(loop.body.block.ops, threads.DotAsync)
    before(dots[0], threads.Barrier(mine, CONSUMER_THREADS))
    after(dots[-1], threads.BarrierArrive(other, CONSUMER_THREADS))


def own_buffers(role: threads.Role) -> None:
    """Each instance has its own of what only this role reads and writes, be it allocated in it or
    before all roles.
    """
    theirs = [
        op
        for op in block_of(parent_of(role, threads.Roles)).ops
        if isinstance(op, shared.Alloc)
        and op.result.type.stages == 1
        and op.result.first_use
        and all(role.is_ancestor(use.operation) for use in op.result.uses)
    ]
    for op in [*(op for op in role.walk() if isinstance(op, shared.Alloc)), *theirs]:
        t = op.result.type
        both = before(
            parent_of(role, threads.Roles),
            shared.Alloc(SharedType(role.instances, t.shape, t.element, t.layout)),
        )
        both.result.name_hint = op.result.name_hint
        op.result.replace_all_uses_with(
            before(first_of(role.body.block), shared.Stage(both.result, role.instance)).result
        )
        erase(op)


class _Steps:
    """How many steps of a ring a program makes, before an anchor; program: its number. stages: of
    the ring that was asked for last; depends: whether the steps depend on the program.
    """

    def __init__(self, loop: scf.ForOp, anchor: Operation, program: SSAValue):
        self.loop, self.build, self.program = loop, Builder(anchor), program
        self.stages, self.depends = 0, False

    def carried(self, index: int) -> SSAValue | None:
        """Of the ring whose stage the loop carries there; None where it carries none."""
        body, self.stages, self.depends = self.loop.body.block, 0, False
        steps = self._between(body.args[1 + index], yielded_by(body)[index])
        return steps if self.stages else None

    def _between(self, start: SSAValue, value: SSAValue) -> SSAValue | None:
        """From one value to another; None where there is something else between."""
        owner, build = value.owner, self.build
        if value is start:
            return build.number(0)
        if isinstance(owner, threads.RingNext) and value is owner.next_stage:
            self.stages = owner.stages.value.data
            earlier = self._between(start, owner.stage)
            return None if earlier is None else build.add(earlier, 1)
        if not isinstance(owner, scf.ForOp):
            return None
        i, body = index_of(value), owner.body.block
        each = self._between(body.args[1 + i], yielded_by(body)[i])
        earlier = None if each is None else self._between(start, owner.iter_args[i])
        if each is None or earlier is None:
            return None
        return build.add(earlier, build.mul(each, self._trips(owner)))

    def _trips(self, inner: scf.ForOp) -> SSAValue:
        """How often a loop inside runs in the program that is meant."""
        number = self.loop.body.block.args[0]
        mapping: dict[SSAValue, SSAValue] = {number: self.program}
        bounds = [inner.lb, inner.ub, inner.step]
        needed, build = slice_inside(bounds, self.loop), self.build
        read = [*bounds, *(v for op in needed for v in op.operands)]
        self.depends |= number in read
        if any(isinstance(op, LOADS) for op in needed) or any(
            isinstance(v, BlockArgument) and is_inside(v, self.loop) and v not in mapping
            for v in read
        ):
            raise VerifyError("ping-pong: a loop's bounds depend on more than the program")
        clone_slice(needed, mapping, build.anchor)
        first, last, step = (mapping.get(v, v) for v in bounds)
        count = build.max(trips(build, first, last, step), 0)
        # a loop over arrays of more than 2³¹ elements counts in 64 bits, stages never do
        return count if count.type == i32 else build(Cast(count, i32))
