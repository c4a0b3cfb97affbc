"""Ping-pong: two consumers of one warpgroup each, which take a block's programs in turn. The last step of roles.py for plans with two programs.

    role consumer {warps = 4, copies = 2}: ^(%who)
      second arrives at the first one's turn                              hardware barriers 1 and 2
      for %program = first + who·blocks to … step 2·blocks, from the stage who·n further on:
        barrier my turn
        for k: …dots…                                                     one issues dots, alone with the tensor cores,
        barrier_arrive the other's turn
        wait for the sum; results leave                                   while the other one's results leave
        stage and parity go n steps on: those are the other's             n: the stages that a program uses

Buffers that a consumer writes exist twice, a stage for each. The producer is as for one consumer: it fills stages in the order of programs.
"""
from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, BlockArgument, SSAValue

from tkc.errors import VerifyError
from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import after, before, defining_slice, erase, stamp
from tkc.ir.types import SharedType

THREADS = 256                                   # of both consumers


def alternate(role: threads.Role) -> None:
    """Makes a role that runs every program one whose two instances have every second program each."""
    block = role.body.block
    loop = next(op for op in block.ops if isinstance(op, scf.ForOp))
    _own_buffers(role)
    number = lambda n: before(loop, tile.Constant(n, i32)).result
    make = lambda name, a, b: before(loop, CLASSES[name](a, b)).result
    one, two = number(1), number(2)
    mine, other = make("add", role.who, one), make("sub", two, role.who)
    waits = Block()
    branch = before(loop, scf.IfOp(make("eq", role.who, one), [], [waits]))
    waits.add_ops([threads.BarrierArrive(other, THREADS), scf.YieldOp()])
    stamp(branch, loop)
    _take_turns(loop, mine, other)
    rings = {i: used for i, used in ((i, _fills(loop, i)) for i in range(len(loop.iter_args))) if used is not None}
    for i, (stages, used) in rings.items():
        skipped = make("mul", role.who, used)
        first = before(loop, threads.RingNext(loop.iter_args[i], loop.iter_args[i + 1], stages, skipped))
        end = loop.body.block.last_op
        over = before(end, threads.RingNext(end.operands[i], end.operands[i + 1], stages, used))
        for j in (0, 1): loop.operands[3 + i + j], end.operands[i + j] = first.results[j], over.results[j]
    loop.operands[0] = make("add", loop.lb, make("mul", role.who, loop.step))
    loop.operands[2] = make("mul", loop.step, two)


def _take_turns(loop: scf.ForOp, mine: SSAValue, other: SSAValue) -> None:
    """A program's dots are a turn."""
    dots = [op for op in loop.body.block.ops if any(isinstance(inner, threads.DotAsync) for inner in op.walk())]
    before(dots[0], threads.Barrier(mine, THREADS))
    after(dots[-1], threads.BarrierArrive(other, THREADS))


def _own_buffers(role: threads.Role) -> None:
    for op in [op for op in role.walk() if isinstance(op, shared.Alloc)]:
        t = op.result.type
        both = before(role.parent_op(), shared.Alloc(SharedType(role.instances, t.shape, t.element, t.layout)))
        both.result.name_hint = op.result.name_hint
        op.result.replace_all_uses_with(before(role.body.block.first_op, shared.Stage(both.result, role.who)).result)
        erase(op)


def _fills(loop: scf.ForOp, index: int) -> tuple[int, SSAValue] | None:
    """Stages of the ring whose stage the loop carries there, and how many of them a program uses, as a value before the loop; None if it is no ring's stage."""
    argument, end = loop.body.block.args[1 + index], loop.body.block.last_op.operands[index]
    stages: set[int] = set()
    total = _steps(end, argument, loop, stages)
    return (stages.pop(), total) if total is not None and stages else None


def _steps(value: SSAValue, start: SSAValue, anchor: scf.ForOp, stages: set[int]) -> SSAValue | None:
    """How many steps of a ring lie between two of its stages, computed before the anchor; None where that is not what they are."""
    if value is start: return before(anchor, tile.Constant(0, i32)).result
    owner = value.owner
    make = lambda name, a, b: before(anchor, CLASSES[name](a, b)).result
    match owner:
        case threads.RingNext() if value is owner.next_stage:
            stages.add(owner.stages.value.data)
            earlier = _steps(owner.stage, start, anchor, stages)
            return None if earlier is None else make("add", earlier, before(anchor, tile.Constant(1, i32)).result)
        case scf.ForOp():
            i = list(owner.results).index(value)
            each = _steps(owner.body.block.last_op.operands[i], owner.body.block.args[1 + i], anchor, stages)
            earlier = None if each is None else _steps(owner.iter_args[i], start, anchor, stages)
            return None if earlier is None else make("add", earlier, make("mul", each, _trips(owner, anchor)))
    return None


def _trips(loop: scf.ForOp, anchor: scf.ForOp) -> SSAValue:
    """How often a loop inside the anchor runs, which must be the same for all programs."""
    mapping: dict[SSAValue, SSAValue] = {}
    bounds = [loop.lb, loop.ub, loop.step]
    for op in defining_slice(bounds, anchor.body.block):
        if any(isinstance(v, BlockArgument) and v.block is anchor.body.block for v in op.operands): raise VerifyError("ping-pong: a loop's bounds depend on the program")
        before(anchor, op.clone(mapping))
    first, last, step = (mapping.get(v, v) for v in bounds)
    make = lambda name, a, b: before(anchor, CLASSES[name](a, b)).result
    one, zero = (before(anchor, tile.Constant(n, step.type)).result for n in (1, 0))
    return make("max", make("floordiv", make("add", make("sub", last, first), make("sub", step, one)), step), zero)
