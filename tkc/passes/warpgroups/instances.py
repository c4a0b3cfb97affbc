"""Which of a block's programs each instance of the consumers' role runs, and what follows from that
for the rings: in one place for the three ways that there are. Used by roles.py.

    Shared       one instance of all consumer warpgroups runs every program        cooperative
    InTurn       two instances of a warpgroup run every second program each        pingpong
    SideBySide   an instance a warpgroup; programs of a tile group run at once     co_resident

An instance passes the stages that others use. In turn, those of the other's program, before its
first one and behind each (pingpong.py). Side by side, those of the others in rings of their own,
and in the rings that all share the blocks before and behind its own, which it waits for and
releases (co_resident.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tkc.ir import threads
from tkc.ir.plan import Plan
from tkc.ir.values import shared_type
from tkc.passes.warpgroups.co_resident import Consumer, Producer, Span, spans
from tkc.passes.warpgroups.pingpong import alternate, own_buffers


class Shared:
    """All consumer warpgroups share each program: nothing is to be done."""

    def __init__(self, members: int = 1, common: dict[SSAValue, Span] | None = None):
        self.members = members  # programs that run at once
        # of each ring that they share: the loop that fills it, and its bounds for all of them
        self.common = common or {}

    def bounds(self) -> list[SSAValue]:
        """The values that roles wait for beside those of their own program."""
        return [v for span in self.common.values() for v in (span.first, span.last)]

    def replace_bounds(self, carried: Mapping[SSAValue, SSAValue]) -> None:
        """Bounds that go round the loop over programs."""
        for span in dict.fromkeys(self.common.values()):
            span.first = carried.get(span.first, span.first)
            span.last = carried.get(span.last, span.last)

    def readers_of(self, ring: SSAValue) -> int:
        """How many instances release a stage of a ring."""
        return self.members if ring in self.common else 1

    def is_single(self, ring: SSAValue) -> bool:
        """Whether an instance has no second stage of a ring for its next program."""
        own = self.members > 1 and ring not in self.common
        return own and shared_type(ring).stages < 2 * self.members

    def gather(self, producer: threads.Role, copied: dict[SSAValue, SSAValue]) -> None:
        """What the producer loads for all instances; copied: its copies of the program's values."""

    def part(self, consumer: threads.Role, full: dict[SSAValue, SSAValue]) -> None:
        """What an instance passes, before dots are asynchronous; full: mbarriers by ring."""

    def settle(self, consumer: threads.Role) -> None:
        """What instances have of their own, when dots are asynchronous."""


class InTurn(Shared):
    """Two instances run every second program each."""

    def settle(self, consumer: threads.Role) -> None:
        alternate(consumer)


class SideBySide(Shared):
    """Each instance runs one of a tile group's programs."""

    def gather(self, producer: threads.Role, copied: dict[SSAValue, SSAValue]) -> None:
        theirs = {ring: span.of(copied) for ring, span in self.common.items()}
        Producer(producer, self.members, theirs).gather()

    def part(self, consumer: threads.Role, full: dict[SSAValue, SSAValue]) -> None:
        Consumer(consumer, self.members, self.common).part(full)

    def settle(self, consumer: threads.Role) -> None:
        own_buffers(consumer)


def instances_of(block: Block, plan: Plan) -> Shared:
    """How a plan assigns programs; block: of the kernel, before its roles part."""
    if plan.members > 1:
        programs = next(op for op in block.ops if isinstance(op, scf.WhileOp))
        return SideBySide(plan.members, spans(programs, plan.members))
    return InTurn() if plan.programs == 2 else Shared()
