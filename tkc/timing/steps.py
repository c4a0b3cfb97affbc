"""A block of level 4 as the steps of an agent: vector work, scalars that steer, and operations that
take time or wait.

Two things the assembler does are done here too: a product that is only added is a multiply-add
(planning/demands.py), and a wait for dots moves up over the straight-line arithmetic before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import threads, tile
from tkc.ir.target import Engines
from tkc.ir.types import SharedType, TileType
from tkc.ir.values import index_of, reached, yielded_by
from tkc.timing import demands
from tkc.timing.operations import TIMED_OPERATIONS

SYNCHRONIZATION = (
    threads.MbarrierWait,
    threads.MbarrierArrive,
    threads.MbarrierExpect,
    threads.TmaLoad,
    threads.Barrier,
    threads.BarrierArrive,
    threads.RingNext,
    threads.NextProgram,
)


class Scalar(NamedTuple):
    """A step that computes scalars that steer, and takes no time."""

    op: Operation


Step = demands.Demand | Scalar | Operation  # vector work; scalars; what takes time or waits


def steps_of(block: Block, steering: set[SSAValue], engines: Engines, warps: int) -> list[Step]:
    """What an agent of so many warps does in a block, in order. steering: scalars that are
    computed.
    """
    writer = _Writer(steering, engines, warps)
    for op in block.ops:
        writer.add(op)
    writer.end_of_work()
    return writer.steps


class _Writer:
    """straight: where straight-line arithmetic began, if dots may be on their way; else None."""

    def __init__(self, steering: set[SSAValue], engines: Engines, warps: int):
        self.steering, self.engines, self.warps = steering, engines, warps
        self.steps: list[Step] = []
        self.work: list[Operation] = []
        self.straight: int | None = None

    def add(self, op: Operation) -> None:
        if isinstance(op, threads.DotWait):
            self.end_of_work()
            self._wait_for_dots(op)
        elif _takes_time(op):
            self.end_of_work()
            self.steps.append(op)
            if isinstance(op, scf.IfOp):
                self.straight = len(self.steps)
            elif not isinstance(op, threads.MbarrierArrive):
                self.straight = None
        elif isinstance(op, scf.YieldOp):
            self.end_of_work()
            self.steps.append(op)
        elif any(r in self.steering for r in op.results):
            self.steps.append(Scalar(op))
        elif any(isinstance(v.type, TileType) for v in (*op.results, *op.operands)):
            self.work.append(op)

    def end_of_work(self) -> None:
        """Writes the vector work since the last operation that takes time."""
        if not self.work:
            return
        demand = demands.of(list(self.work), self.engines, self.warps)
        if demand.issue:
            self.steps.append(demand)
        self.work.clear()

    def _wait_for_dots(self, op: threads.DotWait) -> None:
        """A wait where straight-line arithmetic began; it takes the place of one that is there."""
        if self.straight is None:
            self.steps.append(op)
            self.straight = len(self.steps)
        elif self.straight and isinstance(self.steps[self.straight - 1], threads.DotWait):
            self.steps[self.straight - 1] = op
        else:
            self.steps.insert(self.straight, op)
            self.straight += 1


def _takes_time(op: Operation) -> bool:
    is_nest = bool(op.regions) and not isinstance(op, tile.AlongAxis)
    return is_nest or isinstance(op, TIMED_OPERATIONS)


def steering(kernel: tile.Kernel) -> set[SSAValue]:
    """The scalars that stages, parities, bounds, branches and programs follow from."""

    def scalars(values: Iterable[SSAValue]) -> list[SSAValue]:
        return [v for v in values if not isinstance(v.type, (TileType, SharedType))]

    steers = scalars(value for op in kernel.walk() for value in _steers_by(op))
    return set(reached(steers, lambda value: scalars(_comes_from(value))))


def _steers_by(op: Operation) -> list[SSAValue]:
    """The scalars by which an operation steers an agent."""
    match op:
        case scf.ForOp():
            return [op.lb, op.ub, op.step]
        case scf.IfOp():
            return [op.cond]
        case scf.ConditionOp():
            return [op.condition]
        case threads.BroadcastStore():
            return [op.value]
        case threads.Send() if isinstance(op.value.owner, tile.Splat):
            return [op.value.owner.arg]
        case _ if isinstance(op, SYNCHRONIZATION):
            return [v for v in op.operands if not isinstance(v.type, (TileType, SharedType))]
    return []


def _comes_from(value: SSAValue) -> list[SSAValue]:
    """What a value is computed from, or is in another iteration or branch."""
    owner = value.owner
    if isinstance(owner, Block):
        return _carried_into(owner, index_of(value))
    if not isinstance(owner, (scf.ForOp, scf.IfOp, scf.WhileOp)):
        return list(owner.operands)
    i = index_of(value)
    found = [
        region.block.last_op.operands[i]
        for region in owner.regions
        if region.blocks and isinstance(region.block.last_op, scf.YieldOp)
    ]
    if isinstance(owner, scf.ForOp):
        found.append(owner.iter_args[i])
    return found


def _carried_into(block: Block, i: int) -> list[SSAValue]:
    """What argument i of a loop's block is at first, and later."""
    match block.parent_op():
        case scf.ForOp() as loop if i:
            return [loop.iter_args[i - 1], yielded_by(block)[i - 1]]
        case scf.WhileOp() as loop:
            return [
                loop.arguments[i],
                yielded_by(loop.before_region.block)[1 + i],
                yielded_by(loop.after_region.block)[i],
            ]
    return []
