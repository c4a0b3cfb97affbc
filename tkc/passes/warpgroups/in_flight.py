"""Dots in flight, and what must come after them: until a dot is over, its accumulator and a left
operand in registers are its own, and so is what it reads in shared memory. A part of consuming.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.registers import sources
from tkc.ir.types import SharedType, TileType
from tkc.ir.values import block_of, index_of, yielded_by
from tkc.passes.warpgroups.rings import RingBarriers


@dataclass
class InFlightDot:
    """A dot in flight: what it was, its pending value, and the stages it releases at its end.
    before: the dots to whose sum it adds, the first one first, which are over when it is.
    """

    dot: tile.Dot
    issued: threads.DotAsync
    pending: SSAValue
    stages: list[tuple[RingBarriers, SSAValue, Block]]
    before: tuple[tile.Dot, ...] = ()

    @property
    def dots(self) -> tuple[tile.Dot, ...]:
        """All dots of its sum."""
        return *self.before, self.dot

    @cached_property
    def owned(self) -> set[SSAValue]:
        """Values in whose registers its accumulator or left operands lie."""
        held = [dot.a for dot in self.dots if in_registers(dot)]
        if not starts_anew(self.dots[0]):
            held.append(self.dots[0].acc)
        return set().union(*map(sources, held))

    @cached_property
    def replacing(self) -> set[SSAValue]:
        """Values that take a left operand's place when the loop goes on."""
        carried = (i for dot in self.dots for i in _carried_operand(dot))
        return set().union(*(_made_of(yielded_by(block_of(self.dot))[i]) for i in carried))

    def continues_in(self, op: Operation) -> bool:
        """Whether an operation is a dot that adds to this one's sum, which nothing else needs: the
        tensor cores take them in order, without a wait between them.
        """
        result = self.dot.result
        return isinstance(op, tile.Dot) and op.acc is result and len(list(result.uses)) == 1

    def is_needed_by(self, op: Operation) -> bool:
        """Whether an operation must come after the dot: it uses the result, writes an operand in
        shared memory anew, or reads or writes registers that are the dot's until its end.
        """
        used = {v for inner in op.walk() for v in inner.operands}
        if self.dot.result in used or self.replacing.intersection(op.results):
            return True
        if isinstance(op, shared.Write) and any(op.buffer in written_by(dot) for dot in self.dots):
            return True
        if isinstance(op, tile.Dot) and any(op.a is dot.a for dot in self.dots):
            used.discard(op.a)  # dots may read one operand together
        return any(not self.owned.isdisjoint(sources(v)) for v in used)


def starts_anew(dot: tile.Dot) -> bool:
    """Whether a dot adds to nothing."""
    return isinstance(dot.acc.owner, tile.Constant) and dot.acc.owner.number == 0


def in_registers(dot: tile.Dot) -> bool:
    """Whether a dot's left operand is in registers."""
    return isinstance(dot.a.type, TileType) and dot.a.type.register_layout is not None


def is_touched_later(dot: tile.Dot) -> bool:
    """Whether a loop reads or writes the registers of its dot's left operand behind the dot: it
    goes on being computed from iteration to iteration, or is of use elsewhere.
    """
    if not in_registers(dot):
        return False
    held = sources(dot.a)
    behind = [op for op in block_of(dot).ops if dot.is_before_in_block(op)]
    used = {v for top in behind for op in top.walk() for v in op.operands}
    return bool(_carried_operand(dot)) or any(not held.isdisjoint(sources(v)) for v in used)


def _carried_operand(dot: tile.Dot) -> list[int]:
    """The numbers of the values that a loop carries in which its dot's left operand lies."""
    block = block_of(dot)
    if not isinstance(block.parent_op(), scf.ForOp):
        return []
    return [index_of(v) - 1 for v in sources(dot.a) if v.owner is block]


def _made_of(value: SSAValue) -> set[SSAValue]:
    """A value and what it may be: what a branch gives, and what it shows the registers of."""
    found = {value, *sources(value)}
    for v in list(found):
        if isinstance(v.owner, scf.IfOp):
            for region in v.owner.regions:
                found |= _made_of(yielded_by(region.block)[index_of(v)])
    return found


def written_by(dot: tile.Dot) -> list[SSAValue]:
    """The buffers that a dot reads and that threads write."""
    return [
        buffer
        for buffer in map(shown_by, (dot.a, dot.b))
        if isinstance(buffer.owner, shared.Alloc)
        or isinstance(buffer.type, SharedType)
        and any(isinstance(use.operation, shared.Write) for use in buffer.uses)
    ]


def shown_by(buffer: SSAValue) -> SSAValue:
    """The stage or buffer that a view shows."""
    while isinstance(buffer.owner, shared.VIEWS):
        buffer = buffer.owner.operands[0]
    return buffer


def stage_shown(buffer: SSAValue) -> shared.Stage | None:
    """The stage of a ring that a buffer, or a view of one, shows."""
    owner = shown_by(buffer).owner
    return owner if isinstance(owner, shared.Stage) else None


def stage_number(buffer: SSAValue) -> SSAValue | None:
    """The number of the stage that a buffer, or a view of one, shows."""
    return None if (stage := stage_shown(buffer)) is None else stage.index[0]
