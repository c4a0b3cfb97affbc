"""A stage and its parity, threaded through the whole program: each place that uses them hands those
of the next stage to whatever comes after it, around every loop and through every branch.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import before, erase, rebuild_for, rebuild_if, rebuild_while
from tkc.ir.types import SharedType
from tkc.ir.values import block_of, owner_of, shared_type, terminator_of, yielded_by


class Carried:
    """Subclasses say which operations use the state (`inside`), and what it is behind a block
    (`thread`).
    """

    def inside(self, op: Operation) -> bool:
        raise NotImplementedError

    def thread(self, block: Block, state: list[SSAValue]) -> list[SSAValue]:
        raise NotImplementedError

    def around(self, op: Operation, state: list[SSAValue]) -> list[SSAValue]:
        """The state behind an operation with regions."""
        match op:
            case scf.ForOp() if self.inside(op):
                return self._loop(op, state)
            case scf.WhileOp() if self.inside(op):
                return self._while(op, state)
            case scf.IfOp() if self.inside(op):
                return self._branch(op, state)
        return state

    def _loop(self, loop: scf.ForOp, state: list[SSAValue]) -> list[SSAValue]:
        count, body = len(loop.iter_args), loop.body.block
        loop = rebuild_for(loop, range(count), state)
        self._body(body)
        return list(loop.results[-2:])

    def _while(self, loop: scf.WhileOp, state: list[SSAValue]) -> list[SSAValue]:
        loop = rebuild_while(loop, state)
        self._body(loop.after_region.block)
        return list(loop.results[-2:])

    def _body(self, body: Block) -> None:
        body.args[-2].name_hint, body.args[-1].name_hint = "stage", "parity"
        ends = self.thread(body, list(body.args[-2:]))
        terminator_of(body).operands = [*yielded_by(body), *ends]

    def _branch(self, branch: scf.IfOp, state: list[SSAValue]) -> list[SSAValue]:
        sides = [
            self.thread(region.block, state) if region.blocks else state
            for region in branch.regions
        ]
        return list(
            rebuild_if(branch, range(len(branch.results)), list(zip(*sides, strict=False))).results[
                -2:
            ]
        )


class Handed(Carried):
    """A buffer that is written once, and then read in the same block, as a ring of stages: who
    reads waits for what says that a stage is written (`say`). anchor: before it stand the ring and
    its barriers; arrivals: after so many a stage is written.
    """

    def __init__(self, write: shared.Write, anchor: Operation, stages: int, arrivals: int):
        self.write, self.stages, t = write, stages, shared_type(write.buffer)
        ring = shared.Alloc(SharedType(stages, t.shape, t.element, t.layout))
        self.ring = before(anchor, ring).result
        self.full = before(anchor, threads.Barriers(stages)).result
        self.full.name_hint = "full"
        before(anchor, threads.MbarrierInit(self.full, arrivals))

    def say(self, stage: SSAValue) -> None:
        """Writes what says, behind the write, that a stage is written."""
        raise NotImplementedError

    def hand_over(self, block: Block, start: Operation) -> None:
        """Rewrites a block; start: where the first stage and its parity are made."""
        zero = before(start, tile.Constant(0, i32)).result
        self.thread(block, [zero, zero])

    def inside(self, op: Operation) -> bool:
        return any(inner is self.write for inner in op.walk())

    def thread(self, block: Block, state: list[SSAValue]) -> list[SSAValue]:
        """Stage and parity behind a block."""
        for op in list(block.ops):
            if op is self.write:
                return self._handed(*state)
            if op.regions:
                state = self.around(op, state)
        return state

    def _handed(self, stage: SSAValue, parity: SSAValue) -> list[SSAValue]:
        alloc = owner_of(self.write.buffer, shared.Alloc)
        users = [op for op in users_of(alloc.result) if op is not self.write]
        reading = next(op for op in block_of(self.write).ops if op in users)
        alloc.result.replace_all_uses_with(before(alloc, shared.Stage(self.ring, stage)).result)
        erase(alloc)
        self.say(stage)
        before(reading, threads.MbarrierWait(self.full, stage, parity))
        if self.stages == 1:
            return [stage, parity]
        return list(before(reading, threads.RingNext(stage, parity, self.stages)).results)


def users_of(buffer: SSAValue) -> list[Operation]:
    """The operations that read or write a buffer, through its views too."""
    found: list[Operation] = []
    for op in dict.fromkeys(use.operation for use in buffer.uses):
        found += users_of(op.results[0]) if isinstance(op, shared.VIEWS) else [op]
    return found
