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
    is_inside,
    slice_inside,
    stamp,
)
from tkc.ir.types import SharedType
from tkc.ir.values import block_of, first_of, index_of, parent_of, terminator_of, yielded_by
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
    for i in range(len(loop.iter_args)):
        found = _fills(loop, i, loop, None if (even := _even(loop)) else loop.lb)
        if found is None:
            continue
        stages, used = found
        end = terminator_of(body)
        first = before(
            loop,
            threads.RingNext(
                loop.iter_args[i], loop.iter_args[i + 1], stages, build.mul(role.instance, used)
            ),
        )
        if not even:
            others = _fills(loop, i, end, Builder(end).add(body.args[0], loop.step))
            if others is None:
                raise VerifyError("ping-pong: the other program's stages are not known")
            used = others[1]
        over = before(end, threads.RingNext(end.operands[i], end.operands[i + 1], stages, used))
        updates.append((i, first, over))
    for i, first, over in updates:
        for j in (0, 1):
            loop.operands[3 + i + j] = first.results[j]
            terminator_of(body).operands[i + j] = over.results[j]
    loop.operands[0] = build.add(loop.lb, build.mul(role.instance, loop.step))
    loop.operands[2] = build.mul(loop.step, two)


def _take_turns(loop: scf.ForOp, mine: SSAValue, other: SSAValue) -> None:
    """A program's dots are a turn."""
    dots = [
        op
        for op in loop.body.block.ops
        if any(isinstance(inner, threads.DotAsync) for inner in op.walk())
    ]
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


def _even(loop: scf.ForOp) -> bool:
    """Whether the loops of all programs have the same bounds."""
    inner = [op for op in loop.body.block.walk() if isinstance(op, scf.ForOp)]
    ops = slice_inside([v for op in inner for v in (op.lb, op.ub, op.step)], loop)
    return not any(
        isinstance(v, BlockArgument) and v.block is loop.body.block
        for v in [
            *(v for op in ops for v in op.operands),
            *(v for op in inner for v in (op.lb, op.ub, op.step)),
        ]
    )


def _fills(
    loop: scf.ForOp, index: int, anchor: Operation, program: SSAValue | None
) -> tuple[int, SSAValue] | None:
    """Stages of the ring whose stage the loop carries there, and how many of them a program uses,
    as a value before the anchor; None if it is no ring's stage. program: the number of the program
    that is meant, where it matters."""
    argument, end = loop.body.block.args[1 + index], yielded_by(loop.body.block)[index]
    stages: set[int] = set()
    total = _Steps(loop, anchor, program, stages).of(end, argument)
    return (stages.pop(), total) if total is not None and stages else None


class _Steps:
    """How many steps of a ring lie between two of its stages."""

    def __init__(
        self, loop: scf.ForOp, anchor: Operation, program: SSAValue | None, stages: set[int]
    ):
        self.loop, self.build, self.program, self.stages = loop, Builder(anchor), program, stages

    def of(self, value: SSAValue, start: SSAValue) -> SSAValue | None:
        """None where that is not what they are."""
        if value is start:
            return self.build.number(0)
        owner = value.owner
        match owner:
            case threads.RingNext() if value is owner.next_stage:
                self.stages.add(owner.stages.value.data)
                earlier = self.of(owner.stage, start)
                return None if earlier is None else self.build.add(earlier, self.build.number(1))
            case scf.ForOp():
                i = index_of(value)
                each = self.of(yielded_by(owner.body.block)[i], owner.body.block.args[1 + i])
                earlier = None if each is None else self.of(owner.iter_args[i], start)
                return (
                    None
                    if earlier is None
                    else self.build.add(earlier, self.build.mul(each, self.trips(owner)))
                )
        return None

    def trips(self, inner: scf.ForOp) -> SSAValue:
        """How often a loop inside runs in the program that is meant."""
        body = self.loop.body.block
        mapping: dict[SSAValue, SSAValue] = (
            {} if self.program is None else {body.args[0]: self.program}
        )
        bounds = [inner.lb, inner.ub, inner.step]
        needed, build = slice_inside(bounds, self.loop), self.build
        read = [*bounds, *(v for op in needed for v in op.operands)]
        if any(isinstance(op, LOADS) for op in needed) or any(
            isinstance(v, BlockArgument) and is_inside(v, self.loop) and v not in mapping
            for v in read
        ):
            raise VerifyError("ping-pong: a loop's bounds depend on more than the program")
        clone_slice(needed, mapping, build.anchor)
        first, last, step = (mapping.get(v, v) for v in bounds)
        one, zero = (build.number(n, step.type) for n in (1, 0))
        trips = build.max(
            build.floordiv(build.add(build.sub(last, first), build.sub(step, one)), step), zero
        )
        # a loop over arrays of more than 2³¹ elements counts in 64 bits, stages never do
        return trips if trips.type == i32 else build(Cast(trips, i32))
